"""A shop with a few programs, a database of its own, and a command line to try them with."""

import io
import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import pytest

from everhold.cli.app import main
from everhold.ports.program import REGISTRY

SHOP = """
import everhold

def send_money(order: str) -> str:
    return f"receipt for {order}"

@everhold.program
async def refund(ctx: everhold.Context, order: str, times: int = 1) -> str:
    reason = await ctx.llm(f"Why did {order} come back?")
    if not await ctx.approval(f"Refund {order}? {reason}"):
        return "declined"
    return await ctx.call(send_money, order)

@everhold.program
async def chat(ctx: everhold.Context) -> dict:
    name = await ctx.input("Your name?")
    a, b = await ctx.llm_batch(["one?", "two?"])
    return {"name": name, "answers": [a, b]}

@everhold.program
async def fails(ctx: everhold.Context) -> str:
    await ctx.llm("Anything?")
    raise ValueError("broken on purpose")

@everhold.program
async def waits(ctx: everhold.Context) -> str:
    return await ctx.receive("go")

@everhold.program
async def naps(ctx: everhold.Context) -> str:
    await ctx.sleep(3600)
    return "rested"

@everhold.program
async def grades(ctx: everhold.Context) -> int:
    return await ctx.llm("How good?", returns=int)

async def plain(ctx):
    return 1
"""

#: Every command, one after another, in a shop whose session `seven` waits for an approval.
EVERYTHING = [
    ["programs"],
    ["programs", "rank", "n=8"],
    ["sessions"],
    ["show", "seven"],
    ["explain", "seven"],
    ["inbox"],
    ["outbox"],
    ["intake", "seven", "--all"],
    ["eval"],
    ["schedule"],
    ["schedule", "add", "nightly", "shop.py:naps", "--cron", "@daily"],
    ["schedule", "next", "nightly"],
    ["trigger"],
    ["trigger", "add", "order.paid", "shop.py:waits"],
    ["emit", "order.paid", "{}", "--key", "7"],
    ["trigger", "log"],
    ["card"],
    ["usage"],
    ["info"],
    ["doctor"],
    ["replay", "seven"],
    ["diff", "seven", "seven"],
    ["check"],
    ["export", "seven", "-o", "out.jsonl"],
    ["import", "out.jsonl", "-d", "there.db"],
    ["fork", "seven", "--key", "forked"],
    ["signal", "seven", "hello"],
    ["answer", "seven", "--as", "ana", "--yes"],
    ["watch", "seven"],
    ["run", "shop.py:fails", "--key", "f", "--answer-with", "cat"],
    ["retry", "f"],
    ["budget", "f"],
    ["budget", "f", "--max-tokens", "900"],
    ["cancel", "forked"],
    ["delete", "forked", "--yes"],
    ["db"],
    ["db", "path"],
    ["db", "verify"],
    ["db", "migrate"],
    ["db", "copy", "copy.db"],
    ["db", "gc", "--older-than", "1d"],
    ["db", "vacuum"],
    ["init", "made"],
    ["completion", "bash"],
    ["version"],
]


@dataclass(frozen=True)
class Said:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Cli = Callable[..., Said]


def forget_programs(stem: str = "shop") -> None:
    """As in a new process: the next look at the file sees what changed."""
    for name in [name for name in sys.modules if name.startswith(f"{stem}_")]:
        del sys.modules[name]
    for key in [key for key in REGISTRY if f"{stem}.py:" in key[0]]:
        del REGISTRY[key]


class Keyboard(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def cli(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Cli:
    """Run a command; `typed` is what a person types at a terminal, `piped` what a script sends."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("EVERHOLD_DATABASE_URL", "sqlite:///shop.db")
    monkeypatch.setenv("COLUMNS", "120")
    (tmp_path / "shop.py").write_text(SHOP)

    def run(*words: str, typed: str | None = None, piped: str = "") -> Said:
        with monkeypatch.context() as patch:
            patch.setattr(sys, "stdin", io.StringIO(piped) if typed is None else Keyboard(typed))
            if typed is not None:
                patch.setattr(sys.stdout, "isatty", lambda: True)
            code = main(words)
        out, err = capsys.readouterr()
        return Said(code, click.unstyle(out), click.unstyle(err))

    return run
