"""`everhold replay --watch`: a program is edited, and each time one reads what has come of it."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest

from tests.warm import start

PROGRAM = """
import everhold
from words import WHY

@everhold.program
async def refund(ctx: everhold.Context, order: str) -> str:
    reason = await ctx.llm(WHY.format(order=order))
    return "refunded" if await ctx.approval(f"Refund {order}?") else reason
"""
WORDS = 'WHY = "Why did {order} come back?"\n'
FITS = "k replays as recorded: 2 steps, 0 calls"


class Watching:
    """A process that watches, and all it has said so far."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [*start.everhold(), "replay", *words],
            cwd=folder,
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self._heard: list[bytes] = []
        self._seen = 0
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as said:
            self._heard.extend(said)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._listener.join(60)

    def interrupted(self) -> int:
        """Press Ctrl-C; returns how it exits."""
        os.killpg(self.process.pid, signal.SIGINT)
        return self.process.wait(60)

    @property
    def all(self) -> str:
        self._listener.join(60)
        return b"".join(self._heard).decode()

    def round(self) -> str:
        """What was said from the last round up to the end of the next one."""
        deadline = time.monotonic() + 60
        while True:
            said = b"".join(self._heard[self._seen :]).decode()
            if "Ctrl-C stops" in said:
                self._seen += said[: said.index("Ctrl-C stops")].count("\n") + 1
                return said
            assert time.monotonic() < deadline, said
            assert self.process.poll() is None, said
            time.sleep(0.05)


def environment() -> dict[str, str]:
    return {**os.environ, "EVERHOLD_DATABASE_URL": "sqlite:///app.db"}


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(PROGRAM)
    (tmp_path / "words.py").write_text(WORDS)
    command = [*start.everhold(), "run", "shop.py:refund", "order=7", "--key", "k"]
    done = subprocess.run(
        [*command, "--answer-with", "cat"], cwd=tmp_path, env=environment(), capture_output=True
    )
    assert done.returncode == 10, done.stderr
    return tmp_path


@pytest.fixture
def watching(shop: Path) -> Iterator[Watching]:
    with Watching(shop, "k", "--watch") as watch:
        yield watch


def test_each_edit_brings_a_new_verdict_until_ctrl_c(shop: Path, watching: Watching) -> None:
    """The program, a module that it imports, a slip of the finger and its mending: all are seen."""
    assert FITS in watching.round()

    (shop / "shop.py").write_text(PROGRAM.replace("Refund {order}?", "Pay {order} back?"))
    said = watching.round()
    assert "shop.py has changed" in said
    assert "q-1 was recorded as: Refund 7?" in said
    assert FITS in said

    (shop / "shop.py").write_text(PROGRAM.replace("await ctx.approval(", "await ctx.input("))
    said = watching.round()
    assert "[diverged]" in said
    assert "Why did 7 come back?" in said  # up to where it parts

    (shop / "words.py").write_text("WHY = \n")
    said = watching.round()
    assert "words.py has changed" in said
    assert "invalid syntax" in said

    (shop / "words.py").write_text(WORDS)
    assert "[diverged]" in watching.round()
    (shop / "shop.py").write_text(PROGRAM)
    assert FITS in watching.round()

    assert watching.interrupted() == 0
    assert "KeyboardInterrupt" not in watching.all


def test_a_file_that_cannot_be_loaded_in_the_beginning_is_watched_too(shop: Path) -> None:
    (shop / "words.py").write_text("WHY = \n")
    with Watching(shop, "k", "--watch") as watch:
        assert "[unknown_program]" in watch.round()
        (shop / "words.py").write_text(WORDS)
        assert FITS in watch.round()
