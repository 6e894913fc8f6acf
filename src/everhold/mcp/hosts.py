"""The programs that hold a conversation and can start our server, and how each is told of it.

    claude-code     ~/.claude.json             .mcp.json for a project, `projects` in ~/.claude.json for one's own
    claude-desktop  claude_desktop_config.json in the folder where the system keeps settings
    cursor          ~/.cursor/mcp.json         .cursor/mcp.json for a project
    vscode          mcp.json of the user       .vscode/mcp.json for a project
    codex           ~/.codex/config.toml       .codex/config.toml for a project

Rules
  1. Everything else in a host's file stays as it is: other servers, unknown keys, comments, order,
     line ends.
  2. A file is replaced whole, with the rights it had, and what was there before is kept beside it.
     A file that cannot be read as what it should be is left alone.
  3. Doing it twice is doing it once. Only a server that starts everhold is changed or taken out.
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

#: What the server is called in a host unless somebody says otherwise.
DEFAULT_SERVER_NAME: Final = "everhold"
#: What is added to the name of a file for what it held before.
BACKUP_SUFFIX: Final = ".before-everhold"
_TRIES: Final = 5


@dataclass(frozen=True, slots=True)
class HostEnvironment:
    """Where we are: what decides where hosts keep their files."""

    home: Path = field(default_factory=Path.home)
    folder: Path = field(default_factory=Path.cwd)
    system: str = sys.platform
    env: Mapping[str, str] = field(default_factory=lambda: os.environ)

    def settings(self) -> Path:
        """The folder where programs with a window keep the user's settings."""
        match self.system:
            case "darwin":
                return self.home / "Library" / "Application Support"
            case "win32":
                return Path(self.env.get("APPDATA") or self.home / "AppData" / "Roaming")
        return Path(self.env.get("XDG_CONFIG_HOME") or self.home / ".config")


@dataclass(frozen=True, slots=True)
class HostFile:
    """A file, and the names that lead to the servers in it."""

    file: Path
    servers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class McpHost:
    """`plain` files take no comments, and `typed` ones say how a server is reached.

    `variable` is how a header names the environment variable with the token; None: the host reads
    no headers.
    """

    name: str
    title: str
    places: Mapping[Scope, Callable[[HostEnvironment], HostFile]]
    look: str  # where a person sees that it worked
    toml: bool = False
    plain: bool = False
    typed: bool = False
    variable: str | None = None

    def place(self, world: HostEnvironment, scope: Scope) -> HostFile:
        if scope not in self.places:
            there = ", ".join(self.places)
            raise BadSetting("--scope", f"{self.title} has no {scope!r} servers; there is {there}")
        return self.places[scope](world)

    def entry(self, command: list[str]) -> ServerEntry:
        kind = {"type": "stdio"} if self.typed else {}
        return {**kind, "command": command[0], "args": command[1:]}

    def remote(self, url: str) -> ServerEntry:
        """A server that is reached over HTTP. The file names the variable with the token, never the
        token.
        """
        if self.toml:
            return {"url": url, "bearer_token_env_var": TOKEN_VARIABLE}
        if self.variable is None:
            error = BadSetting("--http", f"{self.title} only knows servers that it starts itself")
            error.hint = f"Leave out --http: everhold mcp install {self.name}"
            raise error
        kind = {"type": "http"} if self.typed else {}
        return {**kind, "url": url, "headers": {"Authorization": f"Bearer {self.variable}"}}

    def snippet(self, place: HostFile, name: str, entry: ServerEntry) -> str:
        """What a person would write into the file."""
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


# ---- what a host is told to start


def build_server_command(database: str | None = None) -> list[str]:
    """The server's command with absolute paths: hosts start it anywhere, and with another PATH than
    ours.
    """
    python = Path(os.path.abspath(sys.executable))
    script = python.with_name("everhold.exe" if sys.platform == "win32" else "everhold")
    words = [str(script)] if script.is_file() else [str(python), "-m", "everhold"]
    return [*words, "mcp", *(["--database", database] if database else [])]


def is_everhold_entry(entry: Any) -> bool:
    """Whether a host's entry starts an everhold server, of whichever installation, or brings the
    token to one.
    """
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


# ---- putting it in, and taking it out


def add_server_entry(host: McpHost, place: HostFile, name: str, entry: ServerEntry) -> bool:
    """Tell a host of the server; whether that changed anything."""

    if host.toml:
        check_toml_editor("mcp", f"editing {place.file}")

    def edit(text: str) -> str:
        there = _server(host, place, name, text)
        if there is not None and not is_everhold_entry(there):
            raise BadHostFile(
                str(place.file),
                f"it has another server named {name!r}",
                "Choose another: --name NAME.",
            )
        path = (*place.servers, name)
        put, drop = (
            (put_toml_value, drop_toml_value)
            if host.toml
            else (json_edit.put_json_server, json_edit.drop_json_server)
        )
        # the other kind: nothing of it may stay
        if there is not None and ("url" in there) != ("url" in entry):
            text = drop(text, path)
        return put(text, path, entry)

    return rewrite_host_file(place.file, edit, makes=True)


def remove_server_entry(host: McpHost, place: HostFile, name: str) -> bool:
    """Take the server out of a host's file; whether it was there. A file that held nothing else
    goes with it.
    """

    if host.toml:
        check_toml_editor("mcp", f"editing {place.file}")

    def edit(text: str) -> str | None:
        there = _server(host, place, name, text)
        if there is None:
            return text
        if not is_everhold_entry(there):
            raise BadHostFile(
                str(place.file),
                f"its server {name!r} does not start everhold",
                "Take it out by hand.",
            )
        drop = drop_toml_value if host.toml else json_edit.drop_json_server
        left = drop(text, (*place.servers, name))
        return None if left.strip() in ("", "{}") else left

    return rewrite_host_file(place.file, edit, makes=False)


def _server(host: McpHost, place: HostFile, name: str, text: str) -> Any:
    """What a host's file says of a server now."""
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
            raise MalformedText(f"there should be an object around {part!r}")
        if part not in found:
            return None
        found = found[part]
    return found


# ---- files


def rewrite_host_file(file: Path, edit: Callable[[str], str | None], *, makes: bool) -> bool:
    """Edit a file in one move, from what is in it at that moment; whether it changed.

    What was in it is kept beside it. An edit that leaves nothing takes the file away; one that
    returns None says that nothing in it was anybody else's, and nothing is kept.
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
    """Put new content in a file's place unless somebody else has just done so."""
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
    """Write a file of ours beside a host's: never readable by more people than the host's own
    is.
    """
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as out:
        out.write(content)
        out.flush()
        os.fsync(out.fileno())
    file.chmod(mode)
