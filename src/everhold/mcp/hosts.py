"""Adds the server to MCP hosts, by editing their files.

    claude-code     ~/.claude.json             .mcp.json for a project, `projects` in ~/.claude.json for local scope
    claude-desktop  claude_desktop_config.json in the settings folder of the system
    cursor          ~/.cursor/mcp.json         .cursor/mcp.json for a project
    vscode          mcp.json of the user       .vscode/mcp.json for a project
    codex           ~/.codex/config.toml       .codex/config.toml for a project

Rules
  1. Everything else in a host's file stays the same: other servers, unknown keys, comments, order,
     line ends.
  2. A file is replaced whole, with the same permissions, and the old content is stored beside it. A
     file that cannot be parsed is not changed.
  3. Every edit is idempotent. Only a server that starts everhold is changed or removed.
"""  # noqa: E501

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Literal

from everhold.errors import BadHostFile, BadSetting
from everhold.mcp import json_edit
from everhold.mcp.json_edit import MalformedText, ServerEntry
from everhold.mcp.token import TOKEN_VARIABLE
from everhold.packages.toml import (
    BadToml,
    check_toml_editor,
    drop_toml_value,
    format_toml_table,
    parse_toml,
    put_toml_value,
)

Scope = Literal["user", "project", "local"]

#: The default name of the server in a host.
DEFAULT_SERVER_NAME: Final = "everhold"
#: The suffix of the backup of a file.
BACKUP_SUFFIX: Final = ".before-everhold"
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class HostEnvironment:
    """The folders, system and variables that decide where hosts keep their files."""

    home: Path = field(default_factory=Path.home)
    folder: Path = field(default_factory=Path.cwd)
    system: str = sys.platform
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def settings(self) -> Path:
        """The folder where desktop programs keep the user's settings."""
        match self.system:
            case "darwin":
                return self.home / "Library" / "Application Support"
            case "win32":
                return Path(self.env.get("APPDATA") or self.home / "AppData" / "Roaming")
        return Path(self.env.get("XDG_CONFIG_HOME") or self.home / ".config")


@dataclass(frozen=True, slots=True)
class HostFile:
    """A file, and the path of keys to the servers in it."""

    file: Path
    servers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class McpHost:
    """One host. `plain` files allow no comments; `typed` entries have the transport in `type`.

    `variable` is the host's syntax for the environment variable with the token, in a header. None
    means that the host sends no headers.
    """

    name: str
    title: str
    places: Mapping[Scope, Callable[[HostEnvironment], HostFile]]
    look: str  # how a person sees that it worked
    toml: bool = False
    plain: bool = False
    typed: bool = False
    variable: str | None = None

    def place(self, world: HostEnvironment, scope: Scope) -> HostFile:
        if scope not in self.places:
            there = ", ".join(self.places)
            raise BadSetting(
                "--scope", f"{self.title} has no scope {scope!r}; its scopes are {there}"
            )
        return self.places[scope](world)

    def entry(self, command: list[str]) -> ServerEntry:
        kind = {"type": "stdio"} if self.typed else {}
        return {**kind, "command": command[0], "args": command[1:]}

    def remote(self, url: str) -> ServerEntry:
        """An entry for a server over HTTP. It has the variable with the token, never the token."""
        if self.toml:
            return {"url": url, "bearer_token_env_var": TOKEN_VARIABLE}
        if self.variable is None:
            error = BadSetting(
                "--http", f"{self.title} supports only servers that it starts itself"
            )
            error.hint = f"Leave out --http: everhold mcp install {self.name}"
            raise error
        kind = {"type": "http"} if self.typed else {}
        return {**kind, "url": url, "headers": {"Authorization": f"Bearer {self.variable}"}}

    def snippet(self, place: HostFile, name: str, entry: ServerEntry) -> str:
        """The text of the entry, for a person to paste into the file."""
        if self.toml:
            check_toml_editor("mcp", f"a server entry for {self.title}")
            return format_toml_table((*place.servers, name), entry)
        value: Any = {name: entry}
        for part in reversed(place.servers):
            value = {part: value}
        return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _claude_home(world: HostEnvironment) -> Path:
    return Path(world.env.get("CLAUDE_CONFIG_DIR") or world.home) / ".claude.json"


def _codex_home(world: HostEnvironment) -> Path:
    return Path(world.env.get("CODEX_HOME") or world.home / ".codex") / "config.toml"


_MCP: Final = ("mcpServers",)

HOSTS: Final[Mapping[str, McpHost]] = {
    host.name: host
    for host in (
        McpHost(
            "claude-code",
            "Claude Code",
            {
                "user": lambda world: HostFile(_claude_home(world), _MCP),
                "project": lambda world: HostFile(world.folder / ".mcp.json", _MCP),
                "local": lambda world: HostFile(
                    _claude_home(world), ("projects", world.folder.as_posix(), *_MCP)
                ),
            },
            "Start `claude` and type /mcp.",
            plain=True,
            typed=True,
            variable=f"${{{TOKEN_VARIABLE}}}",
        ),
        McpHost(
            "claude-desktop",
            "Claude Desktop",
            {
                "user": lambda world: HostFile(
                    world.settings() / "Claude" / "claude_desktop_config.json", _MCP
                )
            },
            "Quit Claude Desktop, open it again, and look under Settings, Developer.",
            plain=True,
        ),
        McpHost(
            "cursor",
            "Cursor",
            {
                "user": lambda world: HostFile(world.home / ".cursor" / "mcp.json", _MCP),
                "project": lambda world: HostFile(world.folder / ".cursor" / "mcp.json", _MCP),
            },
            "Start Cursor again and look at the MCP servers in its settings.",
            variable=f"${{env:{TOKEN_VARIABLE}}}",
        ),
        McpHost(
            "vscode",
            "VS Code",
            {
                "user": lambda world: HostFile(
                    world.settings() / "Code" / "User" / "mcp.json", ("servers",)
                ),
                "project": lambda world: HostFile(
                    world.folder / ".vscode" / "mcp.json", ("servers",)
                ),
            },
            "Run `MCP: List Servers` from the command palette.",
            typed=True,
            variable=f"${{env:{TOKEN_VARIABLE}}}",
        ),
        McpHost(
            "codex",
            "Codex",
            {
                "user": lambda world: HostFile(_codex_home(world), ("mcp_servers",)),
                "project": lambda world: HostFile(
                    world.folder / ".codex" / "config.toml", ("mcp_servers",)
                ),
            },
            "Start `codex` and type /mcp.",
            toml=True,
        ),
    )
}


# ---- the entry


def build_server_command(database: str | None = None) -> list[str]:
    """The server's command with absolute paths, because hosts start it in another folder with
    another PATH.
    """
    python = Path(os.path.abspath(sys.executable))
    script = python.with_name("everhold.exe" if sys.platform == "win32" else "everhold")
    words = [str(script)] if script.is_file() else [str(python), "-m", "everhold"]
    return [*words, "mcp", *(["--database", database] if database else [])]


def is_everhold_entry(entry: Any) -> bool:
    """Whether a host's entry starts any installation of everhold, or sends the token to one."""
    if not isinstance(entry, dict):
        return False
    if isinstance(entry.get("url"), str):
        headers = entry.get("headers")
        bearer = headers.get("Authorization") if isinstance(headers, dict) else None
        return entry.get("bearer_token_env_var") == TOKEN_VARIABLE or (
            isinstance(bearer, str) and TOKEN_VARIABLE in bearer
        )
    if not isinstance(entry.get("command"), str):
        return False
    args = entry.get("args")
    words = [
        Path(entry["command"].replace("\\", "/")).stem,
        *(args if isinstance(args, list) else []),
    ]
    return "everhold" in words and "mcp" in words


# ---- editing


def add_server_entry(host: McpHost, place: HostFile, name: str, entry: ServerEntry) -> bool:
    """Add the server to a host's file. Return whether the file changed."""

    if host.toml:
        check_toml_editor("mcp", f"editing {place.file}")

    def edit(text: str) -> str:
        there = _find_server(host, place, name, text)
        if there is not None and not is_everhold_entry(there):
            raise BadHostFile(
                str(place.file),
                f"it has another server named {name!r}",
                "Choose another name: --name NAME.",
            )
        path = (*place.servers, name)
        put, drop = (
            (put_toml_value, drop_toml_value)
            if host.toml
            else (json_edit.put_json_server, json_edit.drop_json_server)
        )
        # an entry of the other transport is replaced whole
        if there is not None and ("url" in there) != ("url" in entry):
            text = drop(text, path)
        return put(text, path, entry)

    return rewrite_host_file(place.file, edit, makes=True)


def remove_server_entry(host: McpHost, place: HostFile, name: str) -> bool:
    """Remove the server from a host's file, and the file if it is then empty.

    Return whether the server was there.
    """

    if host.toml:
        check_toml_editor("mcp", f"editing {place.file}")

    def edit(text: str) -> str | None:
        there = _find_server(host, place, name, text)
        if there is None:
            return text
        if not is_everhold_entry(there):
            raise BadHostFile(
                str(place.file),
                f"its server {name!r} does not start everhold",
                "Remove it by hand.",
            )
        drop = drop_toml_value if host.toml else json_edit.drop_json_server
        left = drop(text, (*place.servers, name))
        return None if left.strip() in ("", "{}") else left

    return rewrite_host_file(place.file, edit, makes=False)


def _find_server(host: McpHost, place: HostFile, name: str, text: str) -> Any:
    """The current entry of a server in a host's file, or None."""
    if not text.strip():
        return None
    found: Any = parse_toml(text) if host.toml else json_edit.parse_host_json(text).value
    if host.plain:
        try:
            json.loads(text.removeprefix("\ufeff"))
        except json.JSONDecodeError as error:
            raise MalformedText(f"line {error.lineno}: {error.msg}") from None
    for part in (*place.servers, name):
        if not isinstance(found, dict):
            raise MalformedText(f"{part!r} should be inside an object")
        if part not in found:
            return None
        found = found[part]
    return found


# ---- files


def rewrite_host_file(file: Path, edit: Callable[[str], str | None], *, makes: bool) -> bool:
    """Edit a file atomically, from its current content. Return whether it changed.

    The old content is stored in a backup beside it. An `edit` that returns empty text deletes the
    file. One that returns None deletes it without a backup, because everything in it was
    everhold's.
    """
    try:
        for _ in range(_TRIES):
            before = file.read_bytes() if file.exists() else None
            if before is None and not makes:
                return False
            after = edit((before or b"").decode())
            if after is not None and after.encode() == before:
                return False
            if _replace(file.resolve(), before, after):
                return True
    except UnicodeDecodeError:
        raise BadHostFile(str(file), "it is not UTF-8 text") from None
    except (MalformedText, BadToml) as error:
        raise BadHostFile(str(file), str(error)) from None
    except OSError as error:
        raise BadHostFile(str(file), error.strerror or str(error)) from None
    raise BadHostFile(
        str(file), "another program keeps writing it", "Close the host and try again."
    )


def _replace(file: Path, before: bytes | None, after: str | None) -> bool:
    """Replace a file, unless another process has changed it meanwhile."""
    file.parent.mkdir(parents=True, exist_ok=True)
    mode = 0o600 if before is None else file.stat().st_mode & 0o777
    fresh = file.with_name(f".{file.name}.{os.getpid()}.everhold")
    _write(fresh, (after or "").encode(), mode)
    try:
        if (file.read_bytes() if file.exists() else None) != before:
            return False
        if before is not None and after is not None:
            _write(file.with_name(file.name + BACKUP_SUFFIX), before, mode)
        if after:
            os.replace(fresh, file)
        else:
            file.unlink(missing_ok=True)
        return True
    finally:
        fresh.unlink(missing_ok=True)


def _write(file: Path, content: bytes, mode: int) -> None:
    """Create a file beside a host's file. At no moment more users can read it than that file."""
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    file.chmod(mode)
