"""A home as algocline left it, a project, and a client of the profile that keeps every byte it is
sent.
"""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.warm import start

HOME = Path(__file__).resolve().parents[1] / "data" / "algocline-home"

#: A lock from before there was an alc.toml.
OLD = """version = 1

[[package]]
name = "mine"
linked_at = "2026-01-01T00:00:00Z"

[package.source]
type = "local_dir"
path = "../project/own/fresh"
"""


class House:
    """Folders for one test: `home` of algocline, `project` with an alc.toml, `base` with the
    database.
    """

    def __init__(self, base: Path) -> None:
        self.base = base
        self.wires: list[Wire] = []
        self.home, self.project, self.user = base / "alc", base / "project", base / "user"
        shutil.copytree(HOME, self.home)
        for folder in (self.project, self.user):
            folder.mkdir()
        (self.project / "add.lua").write_text("return ctx.a + 1\n")
        (self.project / "words.txt").write_text("return 1\n")
        (base / "old").mkdir()
        (base / "old" / "alc.lock").write_text(OLD)
        self.env = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith(("ALC_", "EVERHOLD_"))
            },
            "ALC_HOME": str(self.home),
            "HOME": str(self.user),
            "XDG_DATA_HOME": str(self.user / "data"),
            "EVERHOLD_DATABASE_URL": f"sqlite:///{base / 'app.db'}",
        }

    def everhold(self, *words: str, folder: Path | None = None) -> dict:
        done = subprocess.run(
            [*start.everhold(), *words, "--json"],
            cwd=folder or self.base,
            env=self.env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=250,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return json.loads(done.stdout)

    def serve(self, **env: str) -> "Wire":
        return Wire(self.project, {**self.env, **env}, self.base / "stderr", self.wires)

    def close(self) -> None:
        for wire in self.wires:
            if wire.process.poll() is None:
                wire.kill()


class Wire:
    """JSON lines to and from a server of the profile."""

    def __init__(
        self, folder: Path, env: dict[str, str], errors: Path, among: list["Wire"]
    ) -> None:
        self.errors = errors
        with errors.open("wb") as file:
            self.process = subprocess.Popen(
                [*start.everhold(), "mcp", "--profile", "algocline"],
                cwd=folder,
                env=env,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=file,
            )
        among.append(self)
        self.lines: list[bytes] = []
        self.number = 0
        about = {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "w", "version": "1"},
        }
        self.hello = self.ask("initialize", about)["result"]
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})

    def send(self, *messages: dict) -> None:
        """Write messages, all at once."""
        self.process.stdin.write(
            b"".join(json.dumps(message).encode() + b"\n" for message in messages)
        )
        self.process.stdin.flush()

    def begin(self, method: str, *each: dict) -> list[int]:
        """Begin a request with each of these parameters, all at once; their numbers."""
        numbers = [self.number + n + 1 for n in range(len(each))]
        self.number += len(each)
        self.send(
            *(
                {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
                for number, params in zip(numbers, each, strict=True)
            )
        )
        return numbers

    def heard(self, *numbers: int) -> list[dict]:
        """The answers to these requests, in whatever order they come."""
        found: dict[int, dict] = {}
        while found.keys() < set(numbers):
            line = self.process.stdout.readline()
            assert line, self.errors.read_text()
            self.lines.append(line)
            message = json.loads(line)
            found[message.get("id")] = message
        return [found[number] for number in numbers]

    def ask(self, method: str, params: dict | None = None) -> dict:
        return self.heard(*self.begin(method, params or {}))[0]

    def call(self, tool: str, /, **arguments) -> tuple[bool, str]:
        """Whether it was refused, and the text; an error of the protocol is raised."""
        told = self.ask("tools/call", {"name": tool, "arguments": arguments})
        if "error" in told:
            raise ProtocolError(told["error"])
        result = told["result"]
        assert "structuredContent" not in result
        (content,) = result["content"]
        assert content["type"] == "text"
        return result.get("isError", False), content["text"]

    def json(self, tool: str, /, **arguments) -> dict:
        refused, text = self.call(tool, **arguments)
        assert not refused, text
        return json.loads(text)

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate(timeout=250)

    def close(self) -> tuple[bytes, str]:
        """What was left on its standard output, and all of its standard error."""
        out, _ = self.process.communicate(timeout=250)
        return out, self.errors.read_text()


class ProtocolError(Exception):
    def __init__(self, error: dict) -> None:
        super().__init__(error["message"])
        self.code, self.message, self.data = error["code"], error["message"], error.get("data")
