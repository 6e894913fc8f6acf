"""alc:// addresses: types, packages, cards, scenarios, evals and logs.

Rules
  1. An address is `alc://<service>/<path>?<query>`, without percent-encoding. `.` and `..` are
     refused, and a name has none of `& = ? / %` and no space.
  2. An unknown, unreadable or too large parameter is refused before anything is read.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import msgspec

from everhold import packages
from everhold.errors import EverholdError
from everhold.mcp.algocline import alc_wire, transcripts
from everhold.mcp.algocline.alc_wire import AlcRefused
from everhold.mcp.algocline.eval_tools import read_eval
from everhold.mcp.algocline.package_tools import list_settings_folders
from everhold.mcp.protocol import INTERNAL_ERROR, INVALID_PARAMS, ProtocolError
from everhold.mcp.runtime_holder import RuntimeHolder
from everhold.packages.lua import folder, paths, scaffold
from everhold.packages.lua.listing import list_packages
from everhold.packages.lua.meta import read_package_meta

LUA_MIME_TYPE: Final = "text/x-lua"
JSON_MIME_TYPE: Final = "application/json"
#: The error code of a missing resource in protocols before 2026-07-28.
NOT_FOUND: Final = -32002
_NOT_FOUND_CODES: Final = ("unknown_card", "unknown_session", "unknown_scenario")

MAX_ADDRESS_CHARS: Final = 2000

_SERVICES: Final = ("types", "packages", "cards", "scenarios", "eval", "logs")
_RESERVED: Final = "&=?/% "
_LOG: Final = {"limit": (50, 10_000), "max_chars": (20_000, 1_000_000)}
_SAMPLES: Final = {"offset": (0, 10_000_000), "limit": (100, 10_000)}

RESOURCES: Final = (
    (scaffold.STUBS_FILE, "Types of all functions of `alc`, for Lua editors"),
    (scaffold.SHAPES_FILE, "Types of the package alc_shapes, if it is installed"),
)
TEMPLATES: Final = (
    (
        "alc://packages/{name}/init.lua",
        "package-init-lua",
        "The main file of an installed package",
        LUA_MIME_TYPE,
    ),
    ("alc://packages/{name}/meta", "package-meta", "The metadata of a package", JSON_MIME_TYPE),
    ("alc://cards/{card_id}", "card", "A card: an immutable record of a run", JSON_MIME_TYPE),
    (
        "alc://cards/{card_id}/samples",
        "card-samples",
        "The samples of a card (?offset=N&limit=M)",
        JSON_MIME_TYPE,
    ),
    ("alc://scenarios/{name}", "scenario", "The code of a scenario", LUA_MIME_TYPE),
    (
        "alc://eval/{result_id}",
        "eval-result",
        "The result of an eval",
        JSON_MIME_TYPE,
    ),
    (
        "alc://logs/{session_id}",
        "session-log",
        "Transcript of an ended session (?max_chars=N)",
        JSON_MIME_TYPE,
    ),
)


def list_resources() -> list[dict[str, Any]]:
    return [
        {
            "description": words,
            "mimeType": LUA_MIME_TYPE,
            "name": name,
            "uri": f"alc://types/{name}",
        }
        for name, words in RESOURCES
    ]


def list_resource_templates() -> list[dict[str, Any]]:
    return [
        {"description": words, "mimeType": mime, "name": name, "uriTemplate": uri}
        for uri, name, words, mime in TEMPLATES
    ]


class AlcResources:
    """Reads resources by address."""

    def __init__(self, holder: RuntimeHolder) -> None:
        self._holder = holder

    async def read(self, uri: str) -> tuple[str, str]:
        """The text at an address and its MIME type; raises `ProtocolError`."""
        service, parts, query = _parse_address(uri)
        try:
            match service, parts:
                case "types", [scaffold.STUBS_FILE | scaffold.SHAPES_FILE as name]:
                    _read_parameters(uri, query, {})
                    return self._types(uri, name), LUA_MIME_TYPE
                case "packages", [name, "init.lua" | "meta" as what]:
                    _check_name("package name", name, uri)
                    _read_parameters(uri, query, {})
                    return self._package(uri, name, what)
                case "cards", [card_id]:
                    _check_name("card_id", card_id, uri)
                    _read_parameters(uri, query, {})
                    card = await (await self._holder.runtime()).cards.get(card_id)
                    return alc_wire.dump_compact(card), JSON_MIME_TYPE
                case "cards", [card_id, "samples"]:
                    _check_name("card_id", card_id, uri)
                    page = _read_parameters(uri, query, _SAMPLES)
                    rows = await (await self._holder.runtime()).cards.samples(
                        card_id, offset=page["offset"], limit=page["limit"]
                    )
                    return alc_wire.dump_compact(rows), JSON_MIME_TYPE
                case "logs", [session_id]:
                    _check_name("session_id", session_id, uri)
                    runtime = await self._holder.runtime()
                    await transcripts.write_missing_transcripts(runtime.store, runtime.clock.now())
                    return transcripts.read_log(
                        session_id, _read_parameters(uri, query, _LOG)["max_chars"]
                    ), JSON_MIME_TYPE
                case "scenarios", [name]:
                    _check_name("scenario name", name, uri)
                    _read_parameters(uri, query, {})
                    return packages.show_scenario(name)["content"], LUA_MIME_TYPE
                case "eval", [eval_id]:
                    _check_name("eval result_id", eval_id, uri)
                    _read_parameters(uri, query, {})
                    text = await read_eval(await self._holder.runtime(), eval_id)
                    return text, JSON_MIME_TYPE
        except (EverholdError, AlcRefused) as error:
            number = NOT_FOUND if error.code in _NOT_FOUND_CODES else INTERNAL_ERROR
            raise ProtocolError(number, str(error), {"uri": uri, "code": error.code}) from None
        _raise_not_found(uri)

    def _types(self, uri: str, name: str) -> str:
        """The file in the home, or everhold's own stubs if the home has none."""
        try:
            return (paths.get_alc_home().types / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return scaffold.load_stubs() if name == scaffold.STUBS_FILE else _raise_not_found(uri)

    def _package(self, uri: str, name: str, what: str) -> tuple[str, str]:
        folders = self._holder.folders
        found = folder.find_package(name, folders.all, folders.all)
        if found is None or found.main is None:
            _raise_not_found(uri)
        if what == "meta":
            rows = list_packages(
                filter={"name": name, "active": True}, verbose="full", more=list_settings_folders()
            )["packages"]
            shown = {**msgspec.to_builtins(read_package_meta(found.main)), "name": name}
            for row in rows:
                shown |= {key: value for key, value in row.items() if key != "meta"}
            return alc_wire.dump_compact(shown), JSON_MIME_TYPE
        try:
            return found.main.read_text(encoding="utf-8"), LUA_MIME_TYPE
        except (OSError, UnicodeDecodeError) as error:
            raise AlcRefused(f"{found.main} cannot be read: {error}", "bad_package_file") from None


# ---- addresses


def _parse_address(uri: str) -> tuple[str, list[str], dict[str, str]]:
    if len(uri) > MAX_ADDRESS_CHARS:
        _refuse(f"the address has {len(uri)} characters, more than {MAX_ADDRESS_CHARS}")
    scheme, mark, rest = uri.partition("://")
    if scheme != "alc" or not mark:
        _refuse(f"invalid scheme: {uri} does not begin with alc://")
    path, _, asked = rest.partition("?")
    parts = [part for part in path.split("/") if part]
    for part in parts:
        if part in (".", ".."):
            _refuse(f"path traversal: '{part}' in {uri}")
    if not parts:
        _refuse(f"incomplete address: {uri}")
    if parts[0] not in _SERVICES:
        _refuse(f"unknown service: {parts[0]}")
    if len(parts) == 1:
        _refuse(f"incomplete address: {uri}")
    query: dict[str, str] = {}
    for pair in filter(None, asked.split("&")):
        key, _, value = pair.partition("=")
        if not key:
            _refuse(f"invalid query: a parameter of {uri} has no name")
        query[key] = value
    return parts[0], parts[1:], query


def _read_parameters(
    uri: str, query: dict[str, str], known: dict[str, tuple[int, int]]
) -> dict[str, int]:
    """The parameters of an address, with defaults for absent ones."""
    if query and not known:
        _refuse(f"{uri} takes no query params")
    found = {name: default for name, (default, _) in known.items()}
    for name, text in query.items():
        if name not in known:
            _refuse(f"{uri} does not have the query param '{name}'")
        if not (text.isascii() and text.isdigit()) or len(text) > 18:
            _refuse(f"invalid query param '{name}={text}' of {uri}: it is a whole number from 0")
        found[name] = int(text)
        most = known[name][1]
        if found[name] > most:
            _refuse(f"the query param '{name}' of {uri} may be {most} at most")
    return found


def _check_name(kind: str, name: str, uri: str) -> None:
    for letter in name:
        if letter in _RESERVED:
            _refuse(f"{kind} '{name}' has the reserved character '{letter}'")


def _refuse(words: str) -> NoReturn:
    raise ProtocolError(INVALID_PARAMS, words)


def _raise_not_found(uri: str) -> NoReturn:
    raise ProtocolError(NOT_FOUND, f"resource not found: {uri}", {"uri": uri})
