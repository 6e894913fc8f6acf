"""alc:// addresses: two files of types, packages, cards and logs. Scenarios and evaluations come
with a later version.

Rules
  1. An address is `alc://<service>/<path>?<query>`; nothing in it is decoded. `.` and `..` lead
     nowhere, and a name holds none of `& = ? / %` and no space.
  2. A parameter that is unknown, unreadable or beyond its limit is refused before anything is read.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import mcp_types as types
import msgspec
from mcp.shared.exceptions import MCPError

from everhold.errors import EverholdError
from everhold.mcp.algocline import alc_wire, transcripts
from everhold.mcp.algocline.alc_wire import AlcRefused
from everhold.mcp.runtime_holder import RuntimeHolder
from everhold.packages.lua import folder, paths, scaffold
from everhold.packages.lua.meta import read_package_meta
from everhold.ports.store import Store

LUA_MIME_TYPE: Final = "text/x-lua"
JSON_MIME_TYPE: Final = "application/json"
#: What protocols before 2026-07-28 call a resource that is not there.
NOT_FOUND: Final = -32002

_SERVICES: Final = ("types", "packages", "cards", "scenarios", "eval", "logs")
_LATER: Final = ("scenarios", "eval")
_RESERVED: Final = "&=?/% "
_LOG: Final = {"limit": (50, 10_000), "max_chars": (20_000, 1_000_000)}
_SAMPLES: Final = {"offset": (0, 10_000_000), "limit": (100, 10_000)}

RESOURCES: Final = (
    (scaffold.STUBS_FILE, "Types of everything under `alc`, for editors of Lua"),
    (scaffold.SHAPES_FILE, "Types of the package alc_shapes, if it is installed"),
)
TEMPLATES: Final = (
    (
        "alc://packages/{name}/init.lua",
        "package-init-lua",
        "The main file of an installed package",
        LUA_MIME_TYPE,
    ),
    ("alc://packages/{name}/meta", "package-meta", "What a package says of itself", JSON_MIME_TYPE),
    ("alc://cards/{card_id}", "card", "A card: an immutable record of a run", JSON_MIME_TYPE),
    (
        "alc://cards/{card_id}/samples",
        "card-samples",
        "Rows of a card (?offset=N&limit=M)",
        JSON_MIME_TYPE,
    ),
    ("alc://scenarios/{name}", "scenario", "A scenario; comes with a later version", LUA_MIME_TYPE),
    (
        "alc://eval/{result_id}",
        "eval-result",
        "Result of an evaluation; comes with a later version",
        JSON_MIME_TYPE,
    ),
    (
        "alc://logs/{session_id}",
        "session-log",
        "Transcript of a session that has ended (?max_chars=N)",
        JSON_MIME_TYPE,
    ),
)


def list_resources() -> list[types.Resource]:
    return [
        types.Resource(
            uri=f"alc://types/{name}", name=name, description=words, mime_type=LUA_MIME_TYPE
        )
        for name, words in RESOURCES
    ]


def list_resource_templates() -> list[types.ResourceTemplate]:
    return [
        types.ResourceTemplate(uri_template=uri, name=name, description=words, mime_type=mime)
        for uri, name, words, mime in TEMPLATES
    ]


class AlcResources:
    """Reads what is at an address."""

    def __init__(self, holder: RuntimeHolder) -> None:
        self._holder = holder

    async def read(self, uri: str) -> tuple[str, str]:
        """The text at an address and its type; raises the protocol's error."""
        service, parts, query = _parsed(uri)
        try:
            match service, parts:
                case "types", [scaffold.STUBS_FILE | scaffold.SHAPES_FILE as name]:
                    _parameters(uri, query, {})
                    return self._types(uri, name), LUA_MIME_TYPE
                case "packages", [name, "init.lua" | "meta" as what]:
                    _named("package name", name, uri)
                    _parameters(uri, query, {})
                    return self._package(uri, name, what)
                case "cards", [card_id]:
                    _named("card_id", card_id, uri)
                    _parameters(uri, query, {})
                    return alc_wire.dump_compact(await self._card(card_id)), JSON_MIME_TYPE
                case "cards", [card_id, "samples"]:
                    _named("card_id", card_id, uri)
                    return await self._samples(
                        card_id, **_parameters(uri, query, _SAMPLES)
                    ), JSON_MIME_TYPE
                case "logs", [session_id]:
                    _named("session_id", session_id, uri)
                    return await self._log(
                        session_id, _parameters(uri, query, _LOG)["max_chars"]
                    ), JSON_MIME_TYPE
                case (("scenarios" | "eval"), [name]):
                    _named(
                        "scenario name" if service == "scenarios" else "eval result_id", name, uri
                    )
                    _parameters(uri, query, {})
                    _later(uri)
        except (EverholdError, AlcRefused) as error:
            raise MCPError(
                code=types.INTERNAL_ERROR, message=str(error), data={"uri": uri, "code": error.code}
            ) from None
        _absent(uri)

    def _types(self, uri: str, name: str) -> str:
        """As it stands in the home, where somebody may have put a newer one; ours are always
        here.
        """
        try:
            return (paths.get_alc_home().types / name).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            return scaffold.load_stubs() if name == scaffold.STUBS_FILE else _absent(uri)

    def _package(self, uri: str, name: str, what: str) -> tuple[str, str]:
        folders = self._holder.folders
        found = folder.find_package(name, folders.all, folders.all)
        if found is None or found.main is None:
            _absent(uri)
        if what == "meta":
            return alc_wire.dump_compact(
                {**msgspec.to_builtins(read_package_meta(found.main)), "name": name}
            ), JSON_MIME_TYPE
        try:
            return found.main.read_text(encoding="utf-8"), LUA_MIME_TYPE
        except (OSError, UnicodeDecodeError) as error:
            raise AlcRefused(f"Failed to read {found.main}: {error}", "bad_package_file") from None

    async def _card(self, card_id: str) -> Any:
        store = await self._store()
        package = (await store.value("card/id", card_id))[0]
        body = (
            None
            if package is None
            else (await store.value("card/body", f"{package[0]}/{card_id}"))[0]
        )
        if body is None:
            raise AlcRefused(f"card '{card_id}' not found", "bad_request")
        return body[0]

    async def _samples(self, card_id: str, offset: int, limit: int) -> str:
        await self._card(card_id)
        rows = (await (await self._store()).value("card/samples", card_id))[0] or [[]]
        return alc_wire.dump_compact(rows[0][offset : offset + limit])

    async def _log(self, session_id: str, most: int) -> str:
        runtime = await self._holder.runtime()
        await transcripts.write_missing_transcripts(runtime.store, runtime.clock.now())
        return transcripts.read_log(session_id, most)

    async def _store(self) -> Store:
        return (await self._holder.runtime()).store


# ---- addresses


def _parsed(uri: str) -> tuple[str, list[str], dict[str, str]]:
    scheme, mark, rest = uri.partition("://")
    if scheme != "alc" or not mark:
        _refuse(f"invalid scheme: expected alc://, got {uri}")
    path, _, asked = rest.partition("?")
    parts = [part for part in path.split("/") if part]
    for part in parts:
        if part in (".", ".."):
            _refuse(f"path traversal segment rejected: {part}")
    if not parts:
        _refuse(f"missing path segment in {uri}")
    if parts[0] not in _SERVICES:
        _refuse(f"unknown service: {parts[0]}")
    if len(parts) == 1:
        _refuse(f"missing path segment in {uri}")
    query: dict[str, str] = {}
    for pair in filter(None, asked.split("&")):
        key, _, value = pair.partition("=")
        if not key:
            _refuse(f"invalid query: empty key in query of {uri}")
        query[key] = value
    return parts[0], parts[1:], query


def _parameters(
    uri: str, query: dict[str, str], known: dict[str, tuple[int, int]]
) -> dict[str, int]:
    """The parameters of an address, each as it was given or as it usually is."""
    if query and not known:
        _refuse(f"query params not supported on {uri}")
    found = {name: usual for name, (usual, _) in known.items()}
    for name, text in query.items():
        if name not in known:
            _refuse(f"unsupported query param '{name}' on {uri}")
        if not (text.isascii() and text.isdigit()) or len(text) > 18:
            _refuse(
                f"invalid query param '{name}={text}' on {uri}: it should be a whole number from 0"
            )
        found[name] = int(text)
        most = known[name][1]
        if found[name] > most:
            _refuse(f"query param '{name}={text}' on {uri} exceeds cap of {most}")
    return found


def _named(kind: str, name: str, uri: str) -> None:
    for letter in name:
        if letter in _RESERVED:
            _refuse(f"{kind} '{name}' on {uri} contains reserved character '{letter}'")


def _refuse(words: str) -> NoReturn:
    raise MCPError(code=types.INVALID_PARAMS, message=words)


def _absent(uri: str) -> NoReturn:
    raise MCPError(code=NOT_FOUND, message=f"resource not found: {uri}", data={"uri": uri})


def _later(uri: str) -> NoReturn:
    words = f"{uri} cannot be read yet: scenarios and evaluations come with a later version"
    raise MCPError(
        code=types.INTERNAL_ERROR, message=words, data={"uri": uri, "code": "comes_later"}
    )
