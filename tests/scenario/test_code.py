"""Programs that a model writes: run in Lua, with the agent's tools at hand; and models that tools
ask.
"""

import asyncio
import os
import signal

import pytest

from everhold.agents.agent import Agent
from everhold.agents.code_tool import find_executor
from everhold.core.query import Kind, Usage
from everhold.core.tool import Allow, Confirm
from everhold.core.turn import TurnAnswered, TurnCancelled, TurnFailed
from everhold.errors import BadArguments, CodeExecutionStopped, CodeExecutionUnavailable
from everhold.plugins.approval import Approval
from everhold.ports.answerer import Answer
from everhold.ports.code import CodeEnded, CodeRequest, CodeToolResult
from everhold.ports.tool import ToolContext, tool
from everhold.programs.lua.code_executor import Lua
from everhold.programs.lua.protocol import LuaLimits
from everhold.testing.clock import ManualClock
from tests.scenario.harness import die, dying, opened, rows
from tests.scenario.talk import Scripted, told, use

done = []
verdicts = {}


@pytest.fixture(autouse=True)
def fresh():
    done.clear()
    verdicts.clear()


@tool
async def price(of: str) -> dict[str, int]:
    """Tell what something costs."""
    done.append(of)
    if of == "nothing":
        raise LookupError("nothing has no price")
    return {"cents": len(of) * 100}


@tool
async def stall() -> str:
    """Take for ever."""
    done.append("stall")
    await asyncio.sleep(600)
    return ""


def guard(wanted):
    return verdicts.get(wanted.tool, Allow())


clerk = Agent(instructions="You count.", tools=[price, stall], code=Lua(), policy=guard)
closer = Agent(instructions="You count.", tools=[price], code=[Lua(accept_finish=True)])
typed = Agent(instructions="You count.", code=[Lua(accept_finish=True)], returns=int)


async def run(code, agent=clerk, **options):
    """The turn in which the model runs this program, and what it was told of it."""
    model = Scripted(use("lua", code=code), "Done.")
    async with opened(llm=model, **options) as runtime:
        session = await runtime.session(agent, "s")
        turn = await session.send("Go.")
        return turn, told(await session.history())[0]


@pytest.mark.process
async def test_a_program_and_its_result():
    """What it returns and prints is the result."""
    turn, result = await run("print('so', 1)\nreturn {a = {1, 2}}")
    assert result == {"printed": "so\t1", "value": {"a": [1, 2]}} and turn.text == "Done."


guarded = Agent(tools=[price], code=Lua(), plugins=[Approval("price")], name="guarded")


@pytest.mark.process
async def test_a_program_gets_around_no_plugin():
    """Plugins are asked before the tools that a program calls, as before those that the model
    calls.
    """
    model = Scripted(use("lua", code='return tool("price", {of = "tea"})'), "Done.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(guarded, "s")
        turn = await session.send("Go.")
        assert [query.kind for query in turn.queries] == [Kind.APPROVAL] and done == []
        await runtime.answer(turn.queries[0], False)
        assert (await session.turn(turn.input_id)).text == "Done."
        assert "a person declined price" in told(await session.history())[0]["error"]
    assert done == []


@pytest.mark.process
async def test_a_program_calls_tools():
    """Row 25: each is a call of its own, with a key of its own, and its result comes back as a
    value.
    """
    code = """
      local one = tool("price", {of = "tea"})
      local two = tools{{"price", {of = "milk"}}, {name = "price", input = {of = "sugar"}}}
      print(one.cents)
      return one.cents + two[1].cents + two[2].cents
    """
    model = Scripted(use("lua", _id="c1", code=code), "Done.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(clerk, "s")
        await session.send("Go.")
        assert told(await session.history()) == [{"printed": "300", "value": 1200}]
        asked = [
            query
            for row in await rows(runtime, session.id)
            for query in row.asked
            if query.kind is Kind.CALL
        ]
    assert done == ["tea", "milk", "sugar"]
    assert [(query.name, query.options["call"]) for query in asked] == [
        ("lua", "c1"),
        ("code:lua:0", "c1"),
        ("price", "c1.0"),
        ("code:lua:1", "c1"),
        ("price", "c1.1"),
        ("price", "c1.2"),
        ("code:lua:2", "c1"),
    ]
    assert len({query.key for query in asked}) == len(asked)


@pytest.mark.process
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("local x\nreturn x.y", "code:2: attempt to index a nil value (local 'x')"),
        ("return 1 +", "code:1: unexpected symbol near <eof>"),
        ("error({a = 1})", 'error object: {"a":1}'),
        ("return tool('price', {of = 7})", "input.of should be a string, got 7"),
        ("return tool('nobody')", "there is no tool 'nobody'"),
        ("return tool('price', {of = 'nothing'})", "LookupError: nothing has no price"),
        ("return tool('lua', {code = 'return 1'})", "a program cannot call the tool that runs it"),
        ("return alc.llm('hello')", "a program can only call tools here"),
        ("return alc.state.get('x')", "a program can only call tools here"),
        ("return io.open('/etc/passwd').x", "nil value"),
        ("finish(7)", "finish is not accepted here"),
    ],
)
async def test_a_programs_error_is_data(code, error):
    """Row 25: the model is told what went wrong in it, and the turn goes on."""
    turn, result = await run(code)
    assert turn.text == "Done." and error in result["error"] and "value" not in result


@pytest.mark.process
async def test_a_program_may_catch_what_a_tool_raises():
    """With pcall, as Lua programs do."""
    _, result = await run("local ok, why = pcall(tool, 'price', {of = 'nothing'}) return {ok, why}")
    assert result["value"] == [False, "Error: LookupError: nothing has no price"]


@pytest.mark.process
async def test_a_program_reads_what_was_said():
    """Row 32: in order, from the first word to the call that runs it; what it does to its copy
    stays there.
    """
    code = """
      local roles = {}
      for i, one in ipairs(ctx.history) do roles[i] = one.role end
      ctx.history[1].text = "changed"
      return {roles, #ctx.history}
    """
    lines = [
        "Hello.",
        use("lua", code=code),
        "Done.",
        use("lua", code="return ctx.history[1].text"),
        "Done.",
    ]
    async with opened(llm=Scripted(*lines)) as runtime:
        session = await runtime.session(clerk, "s")
        for words in ("One.", "Two.", "Three."):
            await session.send(words)
        first, second = told(await session.history())
    assert first["value"] == [["user", "assistant", "user", "assistant"], 4]
    assert second["value"] == "One."


@pytest.mark.process
async def test_a_program_that_never_ends():
    """It is stopped, and that is its own error."""
    _, result = await run("while true do end")
    assert "did not pause" in result["error"]


@pytest.mark.process
@pytest.mark.parametrize(
    "asks", ["alc.llm, 'x'", "finish, 1", "alc.state.get, 'x'", "alc.llm_batch, {'x', 'y'}"]
)
async def test_a_program_that_asks_on_and_on_for_what_is_refused(asks):
    """It is told a few times, and then it is ended: that is its own error too."""
    _, result = await run(f"while true do pcall({asks}) end")
    assert result["error"].endswith("(refused 16 times)")


@pytest.mark.process
async def test_a_program_that_talks_too_much():
    """What is printed and returned is cut to what a model is shown; all of it is kept."""
    _, result = await run("for i = 1, 150 do print(('x'):rep(400)) end return ('y'):rep(40000)")
    assert len(result["printed"]) < 20_000 and "The whole result is attachment" in result["printed"]
    assert len(result["value"]) < 20_000 and "The whole result is attachment" in result["value"]


@pytest.mark.process
async def test_a_program_calls_so_many_tools():
    """Then it is given up."""
    _, result = await run("for i = 1, 200 do tool('price', {of = 'a'}) end")
    assert result == "Error: the program called more than 128 tools" and len(done) == 128


@pytest.mark.process
async def test_finish_is_honoured_only_where_it_is_accepted():
    """Row 25 (D15): with accept_finish the value ends the turn and is its answer; without, the
    program is told.
    """
    turn, _ = await run("finish('It is ' .. tool('price', {of = 'tea'}).cents)", closer)
    assert (
        isinstance(turn.outcome, TurnAnswered)
        and turn.value == "It is 300"
        and turn.text == "It is 300"
    )
    turn, result = await run("local ok, why = pcall(finish, 1) return why")
    assert (
        result["value"] == "finish is not accepted here: return the value" and turn.text == "Done."
    )


class Foreign:
    """An executor of somebody else's: it finishes whatever it was told."""

    language = "foreign"
    description = "Runs nothing."

    def __init__(self, accept_finish: bool) -> None:
        self.accept_finish = accept_finish

    async def run(self, request, granted, scope):
        return CodeEnded("a value", finish=["over"], printed=["said"])


@pytest.mark.parametrize("accepts", [True, False])
async def test_an_executor_that_finishes_without_being_allowed_to_is_refused(accepts):
    """The turn goes on, and the model is told that it failed; neither its value nor its finish
    counts.
    """
    agent = Agent(instructions="You count.", code=Foreign(accepts), name=f"foreign-{accepts}")
    model = Scripted(use("foreign", code="x"), "Done.")
    async with opened(llm=model, replay=False) as runtime:
        session = await runtime.session(agent, "s")
        turn = await session.send("Go.")
        result = told(await session.history())[0]
    if accepts:
        assert turn.text == "over"
    else:
        assert turn.text == "Done."
        assert "may not finish the turn" in str(result)
        assert "a value" not in str(result) and "over" not in str(result)


@pytest.mark.process
async def test_a_finish_of_the_wrong_type():
    """Where the agent returns a type, what finishes the turn has to fit it."""
    turn, _ = await run("finish(7)", typed)
    assert turn.value == 7
    turn, _ = await run("finish('seven')", typed)
    assert isinstance(turn.outcome, TurnFailed) and turn.outcome.code == "answer_refused"


@pytest.mark.process
async def test_policies_see_what_programs_call():
    """A person is asked about the very call; the program waits for the yes, however long that
    takes.
    """
    verdicts["price"] = Confirm("it is metered")
    model = Scripted(use("lua", code="return tool('price', {of = 'tea'}).cents"), "Done.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(clerk, "s")
        turn = await session.send("Go.")
        (query,) = turn.queries
        assert query.kind is Kind.APPROVAL and done == []
        await runtime.answer(session.id, True, query_id=query.id)
        assert (await session.turn(turn.input_id)).text == "Done."
        assert told(await session.history()) == [{"value": 300}]


@pytest.mark.process
async def test_a_program_goes_on_after_a_crash(tmp_path):
    """Killed in its second tool, it is made again from what it was granted: the first tool is not
    called again.
    """
    clock = ManualClock()
    code = (
        "print('one') local a = tool('price', {of = 'tea'}) print('two') pcall(tool, 'stall')"
        " return a.cents"
    )
    verdicts["stall"] = Confirm()
    runtime = await dying(tmp_path, clock, llm=Scripted(use("lua", code=code)))
    session = await runtime.session(clerk, "s")
    turn = await session.send("Go.", id="one")
    assert turn.waiting
    await die(runtime, clock)
    async with opened(tmp_path, clock=clock, llm=Scripted("Done.")) as runtime:
        session = await runtime.session(clerk, "s")
        await runtime.answer(session.id, False, query_id=turn.queries[0].id)
        assert (await session.turn("one")).text == "Done."
        assert told(await session.history()) == [{"printed": "one\ntwo", "value": 300}]
    assert done == ["tea"]


@pytest.mark.process
async def test_a_program_is_cancelled_with_its_turn():
    """And what it called with it."""
    model = Scripted(use("lua", code="return tool('stall')"), "Done.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(clerk, "s")
        going = asyncio.ensure_future(session.send("Go."))
        while not done:
            await asyncio.sleep(0.01)
        turn = await session.cancel_turn("enough")
        assert isinstance(turn.outcome, TurnCancelled)
        await going


# ---- the seam itself


def test_a_language_that_nothing_runs():
    """Row 25: no executor is an error of its own, which says what there is."""
    with pytest.raises(CodeExecutionUnavailable, match="'cobol'") as caught:
        find_executor({"lua": Lua()}, "cobol")
    assert "lua" in caught.value.hint


async def test_an_executor_refuses_another_language():
    """Whoever asks Lua for something else is told."""
    with pytest.raises(CodeExecutionUnavailable):
        await Lua().run(CodeRequest("python", "1"), [], "s")


@pytest.mark.process
async def test_a_runtime_that_is_dead():
    """Row 25: a worker that is killed under the program, each time, is not the program's error."""
    lua = Lua(limits=LuaLimits(cpu=30, wall=30))

    async def killed():
        while True:
            for worker in lua._home.pool().workers:
                if worker.busy:
                    os.kill(worker.process.pid, signal.SIGKILL)
            await asyncio.sleep(0.05)

    killer = asyncio.ensure_future(killed())
    try:
        with pytest.raises(CodeExecutionStopped):
            await lua.run(CodeRequest("lua", "while true do end"), [], "s")
    finally:
        killer.cancel()
    assert await lua.run(CodeRequest("lua", "return 1"), [], "t") == CodeEnded(1)
    await lua.close()


@pytest.mark.process
async def test_a_life_made_again_comes_to_the_same():
    """Whether it was held or not: the same dice, the same end."""
    lua, code = Lua(), "local a = math.random(1e9) tool('x') return {a, math.random(1e9)}"
    request = CodeRequest("lua", code)
    await lua.run(request, [], "s")
    held = await lua.run(request, [[CodeToolResult()]], "s")
    assert (
        await lua.run(request, [[CodeToolResult()]], "s")
        == held
        != await lua.run(request, [[CodeToolResult()]], "t")
    )
    await lua.close()


def test_what_is_no_executor():
    """And two for one language."""
    with pytest.raises(BadArguments, match="is not a code executor"):
        Agent(code="lua")
    with pytest.raises(BadArguments, match="two executors run 'lua'"):
        Agent(code=[Lua(), Lua()])


# ---- direct completions


@tool
async def translated(text: str, context: ToolContext) -> str:
    """Translate a text."""
    done.append(text)
    return await context.llm(f"Translate: {text}", system="You translate.")


@tool
def counted(text: str, context: ToolContext) -> int:
    """Count the words that matter."""
    found: int = context.llm_from_thread(f"Count: {text}", returns=int, model="local:small")
    return found


linguist = Agent("local:large", instructions="You know languages.", tools=[translated, counted])


async def ask(tool_call, *answers):
    asked = []
    lines = [tool_call, *answers, "Done."]

    async def model(query):
        asked.append((query.prompt, (query.options or {}).get("model")))
        line = lines.pop(0)
        if isinstance(line, Exception):
            raise line
        return Answer(line, Usage(prompt_tokens=10, completion_tokens=1, model="m"))

    async with opened(llm=model) as runtime:
        session = await runtime.session(linguist, "s")
        await session.send("Go.")
        report = (await session.usage()).report()["by_source"]
        return (
            asked,
            told(await session.history()),
            {source: cost["total"] for source, cost in report.items()},
        )


async def test_a_tool_asks_a_model():
    """Row 30: it asks the agent's model once; the cost has a source of its own, and a replay asks
    nobody.
    """
    asked, results, usage = await ask(use("translated", text="tea"), "thé")
    assert asked[1] == ("Translate: tea", "local:large") and results == ["thé"]
    assert usage == {"turn": 22, "tool:translated": 11}


async def test_a_tool_in_a_thread_asks_another_model():
    """Row 30: a typed answer, from the model it names."""
    asked, results, usage = await ask(use("counted", text="a b"), 2)
    assert (
        asked[1] == ("Count: a b", "local:small") and results == [2] and usage["tool:counted"] == 11
    )


async def test_a_model_that_cannot_be_asked():
    """The tool fails with its words, and the model that called it is told."""
    _, results, usage = await ask(use("translated", text="tea"), ValueError("it is down"))
    assert results == ["Error: ValueError: it is down"] and usage == {"turn": 22}
