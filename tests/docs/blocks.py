"""Fenced blocks of the documentation, run as a reader would run them.

    python     a script of its own; a first line `# name.py` names its file, which is run after the other
               blocks, if no command runs it. Tests in it are run with pytest
    console    `$ command` lines, run one after another at a terminal, and what they print, compared line by line
    lua        a program of its own, whose questions are answered with "ok"; a first line `-- name.lua` names its file
    toml, json are parsed; a first line `# name` writes the file
    sql        is run against the database of the page
    text, mermaid  are for reading
    py         signatures and fragments, for reading; only in the generated pages of docs/reference/api

Each page has a folder and a home of its own, a `claude` command that answers in a moment, and no
network. What changes from run to run (ids, times, process numbers) is compared as such.
`EVERHOLD_RECORD=1` writes what was printed into the page instead of comparing: console blocks are
recorded, not invented.
"""  # noqa: E501

import codecs
import json
import os
import pty
import re
import select
import shlex
import signal
import socket
import sqlite3
import struct
import subprocess
import sys
import time
import tomllib
from dataclasses import dataclass
from fcntl import ioctl
from pathlib import Path
from termios import TIOCSWINSZ

from tests.warm import start

LANGUAGES = {"python", "console", "lua", "toml", "json", "sql", "text", "mermaid", "py"}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?:#|--)\s*([\w./-]+\.\w+)\s*$")
PROMPT = re.compile(r"^(> ?|… ?|yes or no> ?|\(Pdb\) ?|.*\[y/N\]: ?)(.*)$")
DEBUGGER = re.compile(r"^(\(Pdb\) ?)(.*)$")
CHANGING = (
    (re.compile(r"s-[0-9a-f]{8,}(-[0-9a-f]+)?"), "s-ID"),
    (re.compile(r"\d+ (seconds?|minutes?|s)\b( ago)?|\d+ days ago|just now"), "AGO"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d( [A-Z]+)?"), "WHEN"),
    (re.compile(r"\d+\.\d+ ?s\b"), "SECONDS"),
    (re.compile(r"process(es)? \d+( and \d+)?( on [\w.-]+)?|kill -9 \d+"), "PROCESS"),
    (re.compile(r"llm \(q-\d+\)"), "llm (q-N)"),
    (re.compile(r"everhold-demo-\w+"), "FOLDER"),
    (re.compile(r"\d+ bytes"), "BYTES"),
    (re.compile(r"\b[0-9a-f]{40}\b"), "COMMIT"),
    (re.compile(r'"(expires_at|until|elapsed_ms)":\d+'), "MOMENT"),
    (re.compile(r"\s+$"), ""),
    (re.compile(r"  +"), "  "),
)
PYTEST = "-p no:cacheprovider -p everhold.testing.plugin"
CLAUDE = """#!/bin/sh
touch ~/asked
[ -e ~/waited-for ] && rm ~/waited-for && /bin/sleep 20
case "$(cat)" in
*"came back"*) echo "Damaged on arrival." ;;
*beginning*) echo "A fox found a clock." ;;
*middle*) echo "It ticked only at night." ;;
*"the end of"*) echo "Since then the fox sleeps by day." ;;
*) echo "They leave when the shops close." ;;
esac
"""
# A page sleeps until its model is at work, which then takes its time: on a busy machine too.
SLEEP = """#!/bin/sh
touch ~/waited-for
for _ in $(seq 600); do [ -e ~/asked ] && break; /bin/sleep 0.1; done
"""
LUA = """
import sys, everhold
from everhold import LuaProgram
async def model(query):
    return "ok"
code = sys.stdin.read()
if code.rstrip().endswith("return M"):
    code = f"local module = (function() {code} end)() return module.run(ctx)"
everhold.run(LuaProgram.text(code, {"task": "bees"}), llm=model, database="memory://")
"""


@dataclass(frozen=True)
class Block:
    language: str
    text: str

    @property
    def name(self) -> str | None:
        """The file that the first line names."""
        found = NAMED.match(self.text.partition("\n")[0])
        return found[1] if found else None


def blocks(page: str) -> list[Block]:
    return [Block(found[1], found[2]) for found in FENCE.finditer(page)]


class Reader:
    """Somebody who types in what a page shows, in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        self.home, self.cwd = folder, folder / "shop"
        self.cwd.mkdir()
        bin_ = folder / "bin"
        bin_.mkdir()
        for name, text in {
            "claude": CLAUDE,
            "sleep": SLEEP,
            "python": f'#!/bin/sh\nexec {shlex.join(start.python())} "$@"\n',
            "everhold": f'#!/bin/sh\nexec {shlex.join(start.everhold())} "$@"\n',
            "pytest": f'#!/bin/sh\nexec {sys.executable} -m pytest {PYTEST} "$@"\n',
        }.items():
            (bin_ / name).write_text(text)
            (bin_ / name).chmod(0o755)
        kept = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("EVERHOLD", "XDG_", "PYTEST"))
        }
        self.env = {
            **kept,
            "HOME": str(folder),
            "PATH": f"{bin_}:/usr/bin:/bin",
            "COLUMNS": "100",
            "TMPDIR": str(folder),
            "TERM": "xterm-256color",
            "LOGNAME": "you",
            "TZ": "UTC",
            # a reader has ours, and none of the others that are here
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join(path for path in sys.path if path.endswith("src")),
        }

    def read(self, page: list[Block]) -> list[str]:
        """Run the blocks of a page; returns them as they would be recorded now.

        Scripts that the page does not say to run are run last, so that no command needs them.
        """
        typed = "".join(block.text for block in page if block.language == "console")
        now = [self._block(block) for block in page]
        for block in page:
            if block.language == "python" and block.name and f"python {block.name}" not in typed:
                self._python(block)
        return now

    def _block(self, block: Block) -> str:
        if block.name is not None:
            (self.cwd / block.name).parent.mkdir(parents=True, exist_ok=True)
            (self.cwd / block.name).write_text(block.text)
        match block.language:
            case "python" if block.name is None:
                self._python(block)
            case "console":
                return self._console(block)
            case "lua":
                self._lua(block)
            case "toml":
                tomllib.loads(block.text)
            case "json":
                json.loads(block.text)
            case "sql":
                self._sql(block)
        return block.text

    def _python(self, block: Block) -> None:
        file = self.cwd / (block.name or "block.py")
        file.write_text(block.text)
        tested = ["-m", "pytest", *PYTEST.split()] if "\ndef test_" in block.text else []
        done = subprocess.run(
            [*start.python(), *tested, str(file)],
            cwd=self.cwd,
            env=self.env,
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=240,
        )
        waits = "waiting · " in done.stderr and "Traceback" not in done.stderr
        assert done.returncode == 0 or waits, f"{block.text}\n{done.stdout}{done.stderr}"

    def _lua(self, block: Block) -> None:
        done = subprocess.run(
            [*start.python(), "-c", LUA],
            cwd=self.cwd,
            env=self.env,
            input=block.text,
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, f"{block.text}\n{done.stderr}"

    def _sql(self, block: Block) -> None:
        files = sorted(self.home.rglob("*.db"), key=lambda path: path.stat().st_mtime)
        assert files, "an sql block needs a database on its page"
        connection = sqlite3.connect(files[-1])
        try:
            for statement in filter(str.strip, block.text.split(";")):
                connection.execute(statement).fetchall()
        finally:
            connection.close()

    def _console(self, block: Block) -> str:
        recorded: list[str] = []
        commands = re.split(r"^\$ ", block.text, flags=re.MULTILINE)[1:]
        for command in commands:
            typed, _, expected = command.partition("\n")
            prompt = DEBUGGER if "(Pdb)" in expected else PROMPT
            answers = [found[2] for line in expected.splitlines() if (found := prompt.match(line))]
            said = self._typed(typed, answers)
            if typed.startswith("cd "):
                self.cwd = self.cwd / typed[3:].strip()
            recorded.append(f"$ {typed}\n{said}")
        return "".join(recorded)

    def _typed(self, command: str, answers: list[str]) -> str:
        """Run a command at a terminal, type the answers when it prompts, and return what was
        seen.
        """
        pid, terminal = pty.fork()
        if pid == 0:
            os.chdir(self.cwd)
            os.execve("/bin/bash", ["bash", "-c", command], self.env)
        ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
        seen, waiting, deadline = "", list(answers), time.monotonic() + 240
        # what is read may end within a letter
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        while time.monotonic() < deadline:
            # clock: a pause between two looks at what was printed; a prompt that comes late is
            # answered late.
            if not select.select([terminal], [], [], 0.1)[0]:
                if (found := PROMPT.match(_plain(seen).rpartition("\n")[2])) and not found[2]:
                    os.write(terminal, (waiting.pop(0) + "\n").encode() if waiting else b"\x04")
                continue
            try:
                some = os.read(terminal, 65536)
            except OSError:
                break
            if not some:
                break
            seen += decoder.decode(some)
        else:
            os.kill(pid, signal.SIGKILL)
        os.close(terminal)
        os.waitpid(pid, 0)
        text = (
            _plain(seen)
            .replace(str(self.home / "shop"), "/home/you/shop")
            .replace(str(self.home), "/home/you")
        )
        text = text.replace(f" on {socket.gethostname()} ", " on laptop ")
        return text if not text or text.endswith("\n") else text + "\n"


def _plain(text: str) -> str:
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)
    # a bar is gone when the work is done
    text = re.sub(r"(?:\r*\w+ [╺ ]*[━╸][━╸╺ ]*\d+%[^\r\n]*)+\r*\n\r*", "", text)
    return "\n".join(
        line.rstrip() if line.strip() else "" for line in text.replace("\r\n", "\n").split("\n")
    )


def alike(text: str) -> list[str]:
    """The lines of a console block without what changes from run to run."""
    lines = []
    for line in text.rstrip("\n").split("\n"):
        for pattern, stands_for in CHANGING:
            line = pattern.sub(stands_for, line)
        lines.append(line)
    return lines


def recorded(page: str, texts: list[str]) -> str:
    """The page with its blocks replaced."""
    left = iter(texts)
    return FENCE.sub(lambda found: f"```{found[1]}\n{next(left)}```", page)
