"""A shop with programs of every kind, and clients of the official library that meet its MCP
server.
"""

import json
import os
from contextlib import asynccontextmanager
from pathlib import Path

from mcp import Client, StdioServerParameters

from everhold.mcp import make_front
from tests.warm import start

SHOP = '''
import os, subprocess, sys, warnings
from pathlib import Path
from typing import TypedDict

import everhold

PAID = Path(__file__).parent / "paid"


def send_money(order):
    with PAID.open("a") as file:
        file.write(order + "\\n")
    return "sent"


class Verdict(TypedDict):
    right: bool
    why: str


@everhold.program
async def greet(ctx: everhold.Context, name: str = "you") -> str:
    """Greet somebody.

    In the words of a model.
    """
    return await ctx.llm(f"Greet {name}.", system="Be brief.")


@everhold.program
async def panel(ctx: everhold.Context, task: str) -> dict:
    said = []
    for round in range(3):
        ctx.progress(round, 3)
        said += await ctx.llm_batch([f"Round {round}, voice {voice}: {task}" for voice in range(3)])
    return {"answer": said}


@everhold.program
async def refund(ctx: everhold.Context, order: str) -> str:
    reason = await ctx.llm(f"Why did {order} come back?")
    if not await ctx.approval(f"Refund {order}? {reason}"):
        return "declined"
    return await ctx.call(send_money, order)


@everhold.program
async def pays(ctx: everhold.Context) -> str:
    await ctx.call(send_money, "1")
    return await ctx.llm("Well?")


@everhold.program
async def survey(ctx: everhold.Context) -> list:
    name = await ctx.input("What is your name?")
    age = await ctx.input("How old are you?", returns=int)
    return [name, age]


@everhold.program
async def boss(ctx: everhold.Context, order: str) -> bool:
    return await ctx.approval(f"Refund {order}?")


@everhold.program
async def asks_the_boss(ctx: everhold.Context, order: str) -> str:
    agreed = await ctx.spawn(boss(order))
    other = await ctx.llm("Which order, really?")
    return await ctx.call(send_money, other) if agreed else "declined"


@everhold.program
async def family(ctx: everhold.Context) -> list:
    return [await ctx.spawn(asks_a_child()), await ctx.spawn(greet("Ada"))]


@everhold.program
async def asks_a_child(ctx: everhold.Context) -> str:
    return await ctx.spawn(greet()) + " and " + await ctx.llm("And you?")


@everhold.program
async def manager(ctx: everhold.Context, order: str) -> str:
    return await ctx.spawn(asks_the_boss(order)) + await ctx.llm("And?")


@everhold.program
async def elsewhere(ctx: everhold.Context) -> bool:
    return await ctx.approval("For Alice only?", to="alice")


@everhold.program
async def judge(ctx: everhold.Context) -> Verdict:
    return await ctx.llm("Is it right?", returns=Verdict)


@everhold.program
async def noisy(ctx: everhold.Context) -> str:
    print("a program that prints")
    sys.stdout.write("and writes")
    sys.stdout.flush()
    os.write(1, b"straight to the descriptor\\n")
    warnings.warn("and warns")
    ctx.log("kept in the log", "warn")
    await ctx.call(child)
    said = await ctx.llm("Say something.")
    print("again")
    return said


@everhold.program
async def logs(ctx: everhold.Context) -> str:
    ctx.log("kept in the log", "warn")
    return await ctx.llm("Say something.")


async def interrupted():
    raise KeyboardInterrupt


@everhold.program
async def interrupts(ctx: everhold.Context, call: bool) -> str:
    await ctx.llm("Well?")
    if call:
        await ctx.call(interrupted)
    raise KeyboardInterrupt


def child():
    subprocess.run(["echo", "a child that prints"], check=True)


@everhold.program
async def nap(ctx: everhold.Context, seconds: float = 3600) -> str:
    await ctx.sleep(seconds)
    return "rested"


@everhold.program
async def hears(ctx: everhold.Context) -> str:
    return await ctx.receive("go")


@everhold.program
async def breaks(ctx: everhold.Context) -> str:
    said = await ctx.llm("Anything?")
    if not (Path(__file__).parent / "mended").exists():
        raise ValueError("not mended yet")
    return said
'''


def build(folder: Path) -> Path:
    """The shop, in a folder of its own."""
    (folder / "shop.py").write_text(SHOP)
    (folder / "everhold.toml").write_text('database = "app.db"\nprograms = ["shop.py"]\n')
    return folder


@asynccontextmanager
async def opened(database=None, *, llm=None, mode="auto", profile="default", **options):
    """A client beside a server in this process; the current folder says where the shop is."""
    made = make_front(None if database is None else str(database), llm, profile)
    try:
        async with Client(made.server(), mode=mode, **options) as client:
            yield Host(client, made)
    finally:
        await made.close()


def command(folder: Path, *words: str, **env: str) -> StdioServerParameters:
    """How a host starts the server."""
    first, *rest = start.everhold()
    return StdioServerParameters(
        command=first, args=[*rest, "mcp", *words], cwd=folder, env={**os.environ, **env}
    )


class Host:
    """A client that remembers nothing but the last result."""

    def __init__(self, client, front=None):
        self.client, self.front = client, front
        self.last = None
        self.text = ""

    async def call(self, tool, **arguments):
        result = await self.client.call_tool(tool, arguments)
        self.last, self.text = result.structured_content, result.content[0].text
        assert result.is_error == (self.last.get("status") == "refused"), self.last
        return self.last

    async def refused(self, tool, **arguments):
        """The code of a refusal."""
        told = await self.call(tool, **arguments)
        assert told["status"] == "refused", told
        assert told["hint"]
        return told["code"]

    async def paused(self, program, **args):
        """A session at its first question."""
        told = await self.call("run", program=program, args=args)
        assert told["status"] in ("needs_response", "waiting"), told
        return told["session_id"]


def asked(told):
    """The open questions of a result, by id."""
    return {question["id"]: question for question in told.get("questions", ())}


def prompt_of(told):
    """The prompt of the only open question of a result."""
    (question,) = told["questions"]
    return question["prompt"]


def answers(told, words="yes"):
    return [
        {"id": question_id, "response": f"{words} to {question_id}"} for question_id in asked(told)
    ]


def last_json(text):
    """The arguments that `next` shows, as a host without memory reads them."""
    start = text.index('{"session_id"')
    return json.JSONDecoder().raw_decode(text[start:].replace(", …]", "]"))[0]
