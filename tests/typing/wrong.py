"""A user's mistakes. Both type checkers report each on its line, which names mypy's code, and
nothing else.
"""

from dataclasses import dataclass

import everhold
import everhold.agents
import everhold.stores


@dataclass
class Verdict:
    right: bool


def count(words: str) -> int:
    return len(words.split())


@everhold.program
async def refund(ctx: everhold.Context, order: str) -> str:
    return order


@everhold.program  # E: arg-type
def not_async(ctx: everhold.Context) -> str:
    return "no"


@everhold.program  # E: arg-type
async def without_context(order: str) -> str:
    return order


# Calls

refund(order=7)  # E: arg-type
refund()  # E: call-arg
refund(order="7", cents=1)  # E: call-arg
refund("7", "8")  # E: call-arg


# Contexts


async def body(ctx: everhold.Context) -> None:
    words: int = await ctx.llm("Why?")  # E: assignment
    number: int = await ctx.llm("Right?", returns=Verdict)  # E: arg-type
    print((await ctx.llm("Right?", returns=Verdict)).wrong)  # E: attr-defined
    await ctx.llm("Why?", max_tokens="many")  # E: call-overload
    await ctx.llm("Why?", sytem="Be brief.")  # E: call-overload
    await ctx.llm("Why?", max_token=5)  # E: call-overload
    await ctx.llm("Why?", temperature="hot")  # E: call-overload
    await ctx.llm_batch(["Why?"], sytem="Be brief.")  # E: call-overload
    some: list[int] = await ctx.llm_batch(["Why?"])  # E: assignment
    await ctx.call(count, 7)  # E: call-overload
    await ctx.call(count)  # E: call-overload
    named: int = await ctx.input("Your name?")  # E: assignment
    judged: str = await ctx.input("Right?", returns=Verdict)  # E: arg-type
    text: str = await ctx.call(count, "a b")  # E: call-overload
    await ctx.call(count, "a b", rerun="maybe")  # E: call-arg arg-type
    await ctx.llm("Why?", retry=3)  # E: call-overload
    await ctx.llm("Why?", total_timeout="5")  # E: call-overload
    everhold.Retry(attempt=3)  # E: call-arg
    everhold.Retry(on=(3,))  # E: arg-type
    await ctx.approval("Sure?", default="yes")  # E: arg-type
    answer: str = await ctx.approval("Sure?")  # E: assignment
    done: int = await ctx.run(refund("7"))  # E: arg-type
    child: int = await ctx.spawn(refund("7"))  # E: arg-type
    await ctx.run(refund)  # E: arg-type
    await refund("7")  # E: misc
    await ctx.sleep("long")  # E: arg-type
    ctx.spwan(refund("7"))  # E: attr-defined
    print(words, number, text, answer, done, child, some, named, judged)


# Runtimes


async def outside(runtime: everhold.Runtime) -> None:
    result: int = await runtime.run(refund("7"))  # E: arg-type
    await runtime.run(refund)  # E: arg-type
    await runtime.run("refund")  # E: arg-type
    await runtime.run(refund("7"), key=7)  # E: arg-type
    await runtime.start(refund("7"), labels={"customer": 42})  # E: dict-item
    await runtime.start(refund("7"), budget=3)  # E: arg-type
    await runtime.answer(7, "yes")  # E: arg-type
    status = await runtime.status("s-1")
    print(status.queries)  # E: union-attr
    everhold.open("memory://", llm=7)  # E: arg-type
    everhold.open("memory://", lm=None)  # E: call-arg
    print(result)


# Agents

agent = everhold.Agent(tools=count)  # E: arg-type
everhold.Agent(max_turns="many")  # E: arg-type
everhold.Agent(instrcutions="Be brief.")  # E: call-arg
everhold.Agent(temprature=3)  # E: call-arg
everhold.Agent(temperature="hot")  # E: arg-type
everhold.Model("openai:gpt-5-mini", temprature=0)  # E: call-arg


@everhold.tool
async def summarise(text: str, context: everhold.agents.ToolContext) -> str:
    right: int = await context.llm(text, returns=Verdict)  # E: arg-type
    await context.llm(text, sytem="Be brief.")  # E: call-overload
    return str(right)


async def conversation(runtime: everhold.Runtime) -> None:
    session = await runtime.session(refund, "chat-1")  # E: arg-type
    turn: str = await session.send("Hello?")  # E: assignment
    await session.send(7)  # E: arg-type
    print(turn, (await session.send("Hello?")).words)  # E: attr-defined


said: int = everhold.run(refund("7"))  # E: assignment
everhold.run(refund)  # E: arg-type
everhold.Answer("x", usage=3)  # E: arg-type
print(everhold.no_such_name)  # E: attr-defined
print(everhold.agents.no_such_name)  # E: attr-defined
print(everhold.stores.no_such_name)  # E: attr-defined
