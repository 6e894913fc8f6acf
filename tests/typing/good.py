# pyright: strict
"""A user's project. Both type checkers find nothing to complain about, and know every type that is
named here.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Literal, TypedDict, assert_type
from uuid import UUID

import msgspec
from pydantic import BaseModel, TypeAdapter

import everhold
from everhold.agents import ToolContext
from everhold.models import ModelSettings


@dataclass
class Verdict:
    right: bool
    why: str


class Row(TypedDict):
    number: int


class Point(msgspec.Struct):
    x: float


class Model(BaseModel):
    name: str


def count(words: str) -> int:
    return len(words.split())


async def send_money(order: str, cents: int = 0) -> str:
    return f"{order}: {cents}"


@everhold.program
async def refund(ctx: everhold.Context, order: str, cents: int = 100) -> str:
    """Give money back."""
    reason = await ctx.llm(f"Order {order} came back. Why?", system="Be brief.", temperature=0.2)
    assert_type(reason, str)
    if not await ctx.approval(
        f"Refund order {order}? {reason}", to="ada", timeout=60, default=False
    ):
        return "declined"
    return await ctx.call(send_money, order, cents=cents, rerun="never")


@everhold.program
async def watch(ctx: everhold.Context, day: int = 1) -> str:
    if await ctx.llm("More?", returns=bool):
        await ctx.restart(day=day + 1)
    else:
        return f"{day} days"


@everhold.program(name="judge", version=2, strict=True)
async def judge(ctx: everhold.Context, claims: Sequence[str]) -> Verdict:
    verdict = await ctx.llm("Right?", returns=Verdict, max_tokens=200)
    assert_type(verdict, Verdict)
    assert_type(await ctx.llm("How many?", returns=int), int)
    assert_type(await ctx.llm("Which?", returns=list[str]), list[str])
    assert_type(await ctx.llm("Which row?", returns=Row), Row)
    assert_type(await ctx.llm("Which point?", returns=Point), Point)
    assert_type(await ctx.llm("Which model?", returns=Model), Model)
    assert_type(await ctx.llm("Which numbers?", returns=TypeAdapter(list[int])), list[int])
    choice: Literal["yes", "no"] = await ctx.llm("Well?", returns=Literal["yes", "no"])
    maybe: int | None = await ctx.llm("How many, if any?", returns=int | None)
    free: object = await ctx.llm("Anything?", returns={"type": "object"})
    words = await ctx.call(count, f"{choice} {maybe} {free}")
    assert_type(words, int)
    assert_type(await ctx.call(count, words="a b"), int)
    assert_type(await ctx.call(count, "a b", timeout=5), int)
    assert_type(await ctx.call(send_money, "7", cents=3, retry=everhold.Retry(2)), str)
    assert_type(await ctx.call(send_money, "7", rerun="ask", timeout=60), str)
    assert_type(await ctx.call(lambda: 3), int)
    return verdict


@everhold.program
async def survey(ctx: everhold.Context, names: list[str]) -> list[str]:
    said = await ctx.llm_batch([f"Greet {name}" for name in names], system="Be brief.", top_p=0.5)
    assert_type(said, list[str])
    assert_type(
        await ctx.llm_batch(["Right?", {"prompt": "Sure?"}], returns=Verdict), list[Verdict]
    )
    mixed: list[str] = await ctx.llm_batch([{"prompt": "Well?", "system": "Be kind."}])
    assert_type(await ctx.llm("Well?", timeout=5, default=None), str | None)
    assert_type(await ctx.llm("Well?", timeout=5, default="none"), str)
    assert_type(await ctx.llm("Right?", returns=Verdict, default=Verdict(True, "")), Verdict)
    shared: ModelSettings = {"temperature": 0.2, "stop_sequences": ["."], "seed": None}
    assert_type(await ctx.llm("Well?", model="openai:gpt-5-mini", **shared), str)
    await ctx.llm("Well?", thinking="low", cache=True, extra={"openai_store": False})
    await ctx.llm("Well?", messages=[{"role": "user", "content": "Hello."}], on_unavailable="fail")
    assert_type(await ctx.input("Your name?", to="ada", timeout=60, default="nobody"), str)
    assert_type(await ctx.input("Your name?", timeout=60, default=None), str | None)
    assert_type(await ctx.input("Right?", returns=Verdict), Verdict)
    assert_type(await ctx.receive("paid", returns=Verdict, timeout=60), Verdict)
    return said + mixed


@everhold.program
async def both(ctx: everhold.Context, order: str) -> int:
    inline = await ctx.run(refund(order=order))
    assert_type(inline, str)
    child = ctx.spawn(judge(["a", "b"]), title="a child")
    assert_type(child.session_id, str)
    verdict = await child
    assert_type(verdict, Verdict)
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        one = group.create_task(ctx.run(refund(order)))
        two = group.create_task(ctx.llm("Two?"))
    assert_type((one.result(), two.result()), tuple[str, str])
    first, second = await asyncio.gather(ctx.llm("One?"), ctx.run(judge([])))
    assert_type(first, str)
    assert_type(second, Verdict)
    assert_type(ctx.now(), datetime)
    assert_type(ctx.uuid(), UUID)
    await ctx.sleep(3600)
    ctx.progress(1, 2, "half way")
    ctx.log("done", level="debug")
    visits = await ctx.state("shop").incr("visits")
    return int(visits) + ctx.version("steps", 2)


@everhold.program
async def tidy(ctx: everhold.Context) -> None:
    await ctx.receive("evening", timeout=60, default=None)


@everhold.tool(read_only=True)
def weather(city: str) -> str:
    return f"It rains in {city}."


@everhold.tool(rerun="never", timeout=5)
async def summarise(text: str, context: ToolContext) -> str:
    right = await context.llm("Right? " + text, returns=Verdict, temperature=0)
    assert_type(right, Verdict)
    assert_type(context.llm_from_thread("Which?", returns=int), int)
    return await context.llm("Summarise: " + text, max_tokens=200)


agent = everhold.Agent(
    "anthropic:claude-sonnet-4-6",
    instructions="Be brief.",
    tools=[weather, count, summarise],
    max_turns=3,
    temperature=0.2,
    extra={"anthropic_metadata": {"user_id": "u-1"}},
)
chosen = everhold.Model("openai:gpt-5-mini", temperature=0, extra_headers={"x-team": "blue"})


async def conversation(runtime: everhold.Runtime) -> None:
    session = await runtime.session(agent, "chat-1")
    assert_type(session, everhold.AgentSession)
    turn = await session.send("Does it rain in Paris?", id="i-1", wait=10)
    assert_type(turn, everhold.Turn)
    assert_type(turn.text, str)
    async for event in session.stream([{"type": "text", "text": "And in Rome?"}]):
        print(event.kind, event.text)
    for node in await session.history():
        print(node.id, node.content)
    assert_type((await session.usage()).total.total, int)
    assert_type(await session.fork(at=1), everhold.AgentSession)


async def model(query: everhold.Query) -> everhold.Answer:
    return everhold.Answer(
        query.prompt.upper(), usage=everhold.Usage(prompt_tokens=3, completion_tokens=4)
    )


async def main() -> None:
    call = refund("7")
    assert_type(call, everhold.Call[str])
    async with everhold.open("memory://", llm=model) as runtime:
        done: str = await runtime.run(refund(order="7"), key="refund-7")
        assert_type(await runtime.run(judge(claims=[done])), Verdict)
        await runtime.run(tidy())
        status = await runtime.start(
            both(order="8"), labels={"customer": "42"}, budget={"max_llm_calls": 9}
        )
        if isinstance(status, everhold.Paused):
            for query in status.queries:
                status = await runtime.answer(query, "yes", usage=everhold.Usage(1, 2))
        status = await runtime.answer(status.session_id, True, query_id="q-1", by={"user": "ada"})
        match await runtime.wait(status.session_id, timeout=60):
            case everhold.Finished() as finished:
                print(finished.result, finished.metrics)
            case everhold.Running() | everhold.Paused() | everhold.Accepted() as other:
                print(other.session_id)
        try:
            await runtime.run(call)
        except everhold.Waiting as waiting:
            print(waiting.session_id, waiting.queries)


def blocking() -> None:
    assert_type(
        everhold.run(
            refund("7"), key="refund-7", llm=everhold.CommandModel("claude -p", at_once=2)
        ),
        str,
    )
    assert_type(everhold.run(judge([]), llm=["one", {"right": True, "why": ""}]), Verdict)
    everhold.run(tidy(), llm=everhold.ScriptModel({"Why*": "because"}), database="sqlite:///app.db")
    everhold.run(tidy(), llm=lambda query: query.prompt, budget=everhold.Budget(max_llm_calls=3))
    with everhold.open_blocking("memory://", llm=None) as runtime:
        assert_type(runtime.run(refund("7")), str)
        runtime.cancel("s-1", "enough")
        session = runtime.session(agent, "chat-2")
        assert_type(session.send("Hello?"), everhold.Turn)
        for event in session.stream("And?"):
            print(event.cursor)


if __name__ == "__main__":
    asyncio.run(main())
