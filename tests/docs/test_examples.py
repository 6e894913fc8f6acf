"""The examples: each is short and runs, and what it says about kills and doubled work is true."""

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.warm import start

from .blocks import Reader, blocks

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
ON_POSTGRES = "two_workers.py"
SERVER = "web_app.py"
ALONE = [path for path in EXAMPLES if path.name not in (ON_POSTGRES, SERVER)]
#: The lines that an example prints, from its first one.
PRINTS = {
    "documents.py": [
        r"killed after 6\d\d calls; 5\d\d answers are recorded",
        r"{'invoice': 729, 'letter': 271}",
        r"4\d\d calls by the second process, one for each answer that was missing",
    ],
    "from_langgraph.py": [
        r"a process",
        r"  the model is asked: Write about bees\. ",
        r"Publish\? Bees dance for hours\. \(yes, or what to change\)",
        r"a process gets the answer: Shorter\.",
        r"  the model is asked: Write about bees\. Shorter\.",
        r"Publish\? Bees dance\. \(yes, or what to change\)",
        r"a process gets the answer: yes",
        r"online: Bees dance\.",
    ],
    "nightly.py": [
        rf"2026-03-{night}:00:00\+00:00: A quiet day\."
        for night in ("28T02", "29T01", "30T01", "31T01")
    ],
    "support.py": [
        r'a person is asked: Run refund with {"number":"7","cents":4200}\? it moves money',
        r"Your 42\.00 are on their way\.",
    ],
    "two_workers.py": [
        r"one worker was killed; the other one takes over",
        *(rf"customer-{number}: Your 42\.00 are on their way\." for number in range(6)),
    ],
}


def run(example: Path, reader: Reader) -> list[str]:
    """Run an example as a reader would; what it prints, line by line."""
    done = subprocess.run(
        [*start.python(), str(example)],
        cwd=reader.cwd,
        env=reader.env,
        capture_output=True,
        text=True,
        timeout=250,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


def differ(printed: list[str], patterns: list[str]) -> list[tuple[str, str]]:
    assert len(printed) == len(patterns), printed
    return [
        (line, pattern)
        for line, pattern in zip(printed, patterns, strict=True)
        if not re.fullmatch(pattern, line)
    ]


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_short(example: Path) -> None:
    longest = {"coding_agent.py": 200}  # a whole agent, not one idea
    assert len(example.read_text().splitlines()) <= longest.get(example.name, 60)


@pytest.mark.parametrize("example", ALONE, ids=lambda path: path.name)
def test_an_example_runs_and_prints_what_it_promises(example: Path, tmp_path: Path) -> None:
    printed = run(example, Reader(tmp_path))
    if example.name in PRINTS:
        assert differ(printed, PRINTS[example.name]) == []


def test_an_example_runs_on_postgres(postgres: Any, tmp_path: Path) -> None:
    """Also a second time, when all its sessions have ended."""
    reader = Reader(tmp_path)
    reader.env |= postgres.home("support")
    example = ROOT / "examples" / ON_POSTGRES
    assert differ(run(example, reader), PRINTS[ON_POSTGRES]) == []
    assert differ(run(example, reader), PRINTS[ON_POSTGRES][1:]) == []


def test_the_index_names_every_example() -> None:
    index = (ROOT / "docs" / "index.md").read_text()
    named = re.findall(r"\]\(\.\./examples/(\w+\.py)\)", index)
    assert sorted(named) == [path.name for path in EXAMPLES]


def test_the_port_from_langgraph_is_the_program_of_its_page() -> None:
    page = (ROOT / "docs" / "how-to" / "port-from-langgraph.md").read_text()
    (block,) = (block for block in blocks(page) if block.name == "post.py")
    _, _, program = block.text.partition("import everhold\n")
    assert "async def post(" in program
    assert program.strip() in (ROOT / "examples" / "from_langgraph.py").read_text()


# The web app


class Server:
    """`uvicorn web_app:app` on a free port."""

    def __init__(self, folder: Path) -> None:
        reader = Reader(folder)
        self._how = {"cwd": reader.cwd, "env": reader.env}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        """A process that serves; at the end it is stopped, if it was not killed."""
        command = [sys.executable, "-m", "uvicorn", "--app-dir", str(ROOT / "examples")]
        command += ["web_app:app", "--port", str(self.port), "--timeout-graceful-shutdown", "1"]
        with subprocess.Popen(command, **self._how) as process:  # type: ignore[call-overload]
            try:
                self._until_it_listens(process)
                yield process
            finally:
                process.terminate()

    def _until_it_listens(self, process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except ConnectionRefusedError:
                time.sleep(0.05)
        raise AssertionError(f"the server ended with {process.returncode}")

    def ask(self, method: str, path: str) -> tuple[int, str]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with closing(connection):
            connection.request(method, path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()


class Browser(threading.Thread):
    """Follows a chat as an EventSource does: it keeps the events, and their ids."""

    def __init__(self, server: Server, chat: str, since: str | None = None) -> None:
        super().__init__(daemon=True)
        self.events: list[tuple[str, str]] = []
        self.ids: list[str] = []
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self._connection.request("GET", chat, headers={"Last-Event-ID": since} if since else {})
        self._stream = self._connection.getresponse()
        self.start()

    def run(self) -> None:
        fields: dict[str, str] = {}
        try:
            while line := self._stream.readline().decode():
                name, _, value = line.rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                elif "event" in fields:
                    self.ids.append(fields["id"])
                    self.events.append((fields["event"], json.loads(fields["data"])))
                    fields = {}
        except (OSError, http.client.HTTPException):
            pass  # the server was killed
        finally:
            self._stream.close()
            self._connection.close()

    def wait_for(self, kind: str) -> None:
        while kind not in [kind for kind, _ in self.events]:
            assert self.is_alive(), self.events
            time.sleep(0.02)

    def texts(self, kind: str) -> list[str]:
        return [text for one, text in self.events if one == kind]


def test_a_web_app_continues_after_a_kill_and_shows_words_as_they_are_written(
    tmp_path: Path,
) -> None:
    """A message is sent, the server is killed while it waits for a person, and a second one
    continues: the approval is still on the page, and a browser gets what it has not seen.
    """
    server = Server(tmp_path)
    message = "/chats/ana/mail-1?text=My+lamp+is+broken"
    with server.running() as process:
        before = Browser(server, "/chats/ana")
        assert server.ask("POST", message) == (202, "null")
        before.wait_for("asked")
        os.kill(process.pid, signal.SIGKILL)
        before.join()
    assert before.texts("message")[0] == "My lamp is broken"
    assert before.texts("text") == []

    with server.running():
        assert server.ask("POST", message) == (202, "null")  # the same: it is not processed again
        after = Browser(server, "/chats/ana", before.ids[-2])
        after.wait_for("asked")  # it is heard now
        page = server.ask("GET", "/approvals")[1]
        assert (
            "<p>Run refund with {&quot;number&quot;:&quot;7&quot;,&quot;cents&quot;:4200}" in page
        )
        yes, no = re.findall(r"formaction=(\S+?)>", page)
        assert server.ask("POST", yes)[0] == 303
        after.wait_for("settled")
        assert server.ask("POST", no)[0] == 303  # somebody was faster
        assert "<form" not in server.ask("GET", "/approvals")[1]
    after.join()

    assert after.texts("text") == ["Your ", "42.00 ", "are ", "on ", "their ", "way."]
    assert after.texts("message")[-1] == "Your 42.00 are on their way."
    assert after.events[0] == before.events[-1]
    kinds = [kind for kind, _ in before.events[:-1] + after.events]
    assert kinds.count("input") == kinds.count("asked") == kinds.count("settled") == 1
