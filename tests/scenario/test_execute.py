"""Code that a host runs in a session; the variables that programs leave; and what they print while
they run.
"""

import asyncio

import pytest

import everhold
from everhold.agents import (
    Agent,
    CodeEnded,
    CodeExecuted,
    Confirm,
    EventKind,
    Lua,
    Stored,
    TurnCancelled,
    TurnFailed,
)
from everhold.blocking import open_blocking
from everhold.errors import (
    BadArguments,
    CodeExecutionUnavailable,
    InputTooLarge,
    KeyConflict,
    TurnWaiting,
)
from everhold.models import DeltaKind, subscribe
from everhold.testing import crash_everywhere
from tests.scenario.harness import ManualClock, die, dying, opened
from tests.scenario.talk import Scripted, told, use

pytestmark = pytest.mark.process
called = []


@pytest.fixture(autouse=True)
def fresh():
    called.clear()


@pytest.fixture(params=["memory", "sqlite"])
def place(request, tmp_path):
    return None if request.param == "memory" else tmp_path


@everhold.tool
def price(of: str) -> int:
    """Tell what something costs."""
    called.append(of)
    return len(of) * 100


def guard(wanted):
    return Confirm("it is metered") if wanted.input.get("of") == "gold" else everhold.agents.Allow()


clerk = Agent(instructions="You count.", tools=[price], code=Lua(), policy=guard, name="clerk")
forgetful = Agent(code=Lua(variables=False), name="forgetful")


async def value(session, code, **options):
    """What a program comes to."""
    turn = await session.execute("lua", code, **options)
    assert isinstance(turn.outcome, CodeExecuted) and turn.outcome.error is None, turn.outcome
    return turn.value


# ---- the host runs code


async def test_a_host_runs_code_with_the_tools_of_the_agent(place):
    """Its outcome is a receipt; the model sees nothing of it."""
    model = Scripted("Hello.")
    async with opened(place, llm=model) as runtime:
        session = await runtime.session(clerk, "s")
        turn = await session.execute("lua", "print('so') return {tool('price', {of = 'tea'})}")
        assert turn.outcome == CodeExecuted("lua", [300], "so")
        assert turn.value == [300] and called == ["tea"]
        assert await session.history() == [] and (await session.turns())[0].rounds == 0
        await session.send("Hi.")
        assert len(model.shown[0]) == 1
    assert called == ["tea"]


async def test_an_error_of_the_program_is_part_of_its_outcome():
    """What it printed before stays."""
    async with opened() as runtime:
        session = await runtime.session(clerk, "s")
        turn = await session.execute("lua", "print(1)\nerror('broken')")
        assert turn.outcome == CodeExecuted("lua", None, "1", "code:2: broken")


async def test_a_language_that_nothing_runs():
    """`code_execution_unavailable`, with what there is; nothing is stored."""
    async with opened() as runtime:
        session = await runtime.session(clerk, "s")
        with pytest.raises(CodeExecutionUnavailable, match="'cobol'") as caught:
            await session.execute("cobol", "STOP RUN.")
        assert "lua" in caught.value.hint and caught.value.code == "code_execution_unavailable"
        with pytest.raises(CodeExecutionUnavailable):
            [event async for event in session.stream_execution("cobol", "STOP RUN.")]
        with pytest.raises(BadArguments):
            await session.execute("lua", " ")
        with pytest.raises(InputTooLarge):
            await session.execute("lua", "-" * 2_000_000)
        # a process whose agent has no such executor any more
        await runtime.signal(
            session.id, "input", {"do": "execute", "id": "x", "language": "cobol", "code": "1"}
        )
        failed = (await session.turn("x")).outcome
        assert isinstance(failed, TurnFailed) and failed.code == "code_execution_unavailable"


async def test_a_program_may_finish_only_if_the_host_allows_it():
    """Then it ends there, and its value is marked as final."""
    async with opened() as runtime:
        session = await runtime.session(clerk, "s")
        turn = await session.execute("lua", "finish(7) print('never')", accept_finish=True)
        assert turn.outcome == CodeExecuted("lua", 7, finished=True)
        turn = await session.execute("lua", "finish(7)")
        assert turn.outcome.error == "finish is not accepted here: return the value"


class Foreign:
    """An executor of somebody else's: it finishes whatever it was told, or streams."""

    language = "foreign"
    description = "Runs nothing."
    accept_finish = True

    def __init__(self):
        self.go = asyncio.Event()

    async def run(self, request, granted, scope):
        if request.code == "finish":
            return CodeEnded("a value", finish=["over"])
        request.emit("one ")
        request.emit("two\n")
        await self.go.wait()
        request.emit("three\n")
        return CodeEnded(3, printed=["one two", "three"])


foreign = Foreign()
guest = Agent(code=foreign, name="guest")


@pytest.fixture
def stalled():
    foreign.go = asyncio.Event()
    return foreign.go


async def test_a_foreign_executor_that_finishes_without_being_allowed_to_is_refused():
    """Neither its value nor its finish counts."""
    async with opened() as runtime:
        session = await runtime.session(guest, "s")
        refused = (await session.execute("foreign", "finish")).outcome
        assert isinstance(refused, TurnFailed) and refused.code == "code_finish"
        turn = await session.execute("foreign", "finish", accept_finish=True)
        assert turn.outcome == CodeExecuted("foreign", "over", finished=True)


async def test_the_same_id_is_the_same_run(place):
    """Other code under it is a conflict."""
    async with opened(place) as runtime:
        session = await runtime.session(clerk, "s")
        code = "n = (n or 0) + 1 return n"
        assert [await value(session, code, id="one") for _ in range(2)] == [1, 1]
        with pytest.raises(KeyConflict):
            await session.execute("lua", "return 2", id="one")


async def test_a_person_approves_what_a_program_of_the_host_calls(tmp_path):
    """It waits as a turn does: also across a crash, and no tool is called twice."""
    clock = ManualClock()
    runtime = await dying(tmp_path, clock)
    session = await runtime.session(clerk, "s")
    await session.execute("lua", "sum = 1")
    code = (
        "sum = sum + tool('price', {of = 'tea'}) sum = sum + tool('price', {of = 'gold'})"
        " return sum"
    )
    turn = await session.execute("lua", code, id="one")
    assert turn.waiting and called == ["tea"]
    with pytest.raises(TurnWaiting):
        await session.execute("lua", "return 1")
    await die(runtime, clock)
    async with opened(tmp_path, clock=clock) as runtime:
        session = await runtime.session(clerk, "s")
        assert (await session.execute("lua", code, id="one", wait=0)).waiting
        await runtime.answer(turn.queries[0], True)
        assert (await session.turn("one")).value == 701
        assert await value(session, "return sum") == 701
    assert called == ["tea", "gold"]


# ---- variables


async def test_variables_last_from_program_to_program(place):
    """Of the host and of the model; with cycles, shared tables, and text of any bytes."""
    model = Scripted(
        use("lua", code="book.pages = book.pages + 1 return book.self == book"), "Done."
    )
    async with opened(place, llm=model) as runtime:
        session = await runtime.session(clerk, "s")
        await value(
            session,
            'book = {pages = 1, [2.5] = {}, bytes = "\\0\\200\\n"} book.self = book'
            " list = alc.json_decode('[]') local gone = 1 function lost() end",
        )
        await session.send("Count.")
        assert told(await session.history()) == [{"value": True}]
        found = await value(
            session,
            "return {book.pages, book.bytes == '\\0\\200\\n', type(book[2.5]), list,"
            " gone == nil, lost == nil, kept == nil}",
        )
        assert found == [2, True, "table", [], True, True, True]


async def test_a_program_that_fails_leaves_what_it_had_done():
    """Except where its time is over, or its variables are too large: then all stays as it was."""
    async with opened() as runtime:
        session = await runtime.session(clerk, "s")
        await session.execute("lua", "n = 1 error('x')")
        large = await session.execute("lua", "n = 2 text = ('x'):rep(300000)")
        assert "the limit is 262,144" in large.outcome.error
        await session.execute("lua", "n = 3 while true do end")
        assert await value(session, "return n") == 1


async def test_variables_can_be_opted_out_of():
    """For an agent, or for one program."""
    async with opened() as runtime:
        session = await runtime.session(forgetful, "f")
        await value(session, "n = 1")
        assert await value(session, "return n == nil")
        session = await runtime.session(clerk, "s")
        await value(session, "n = 1")
        assert await value(session, "local old = n n = 2 return old == nil", variables=False)
        assert await value(session, "return n") == 1


async def test_variables_follow_the_conversation(place):
    """A fork, a branch, and another session that gets the state have those of their point; `reset`
    forgets them.
    """
    async with opened(place, llm=Scripted("One.", "Two.")) as runtime:
        session = await runtime.session(clerk, "s")
        await value(session, "n = 1")
        await session.send("One?")
        leaf = (await session.snapshot()).leaf
        await value(session, "n = 2 m = 2")
        stored = Stored.read((await session.stored()).json())
        fork = await session.fork(2)
        assert await value(fork, "n = n + 10 return {n, m == nil}") == [11, True]
        assert await value(session, "return {n, m}") == [2, 2]

        await session.branch(leaf)
        assert await value(session, "return {n, m == nil}") == [1, True]
        other = await runtime.session(clerk, "other")
        await other.apply(stored)
        assert await value(other, "return {n, m}") == [2, 2]
        await other.reset()
        assert await value(other, "return n == nil and m == nil")


async def test_variables_last_in_another_process(tmp_path):
    """They come from the journal, after a crash and an import too."""
    clock = ManualClock()
    runtime = await dying(tmp_path, clock)
    await value(await runtime.session(clerk, "s"), "n = {1, 2}")
    await die(runtime, clock)
    async with opened(tmp_path, clock=clock) as runtime:
        session = await runtime.session(clerk, "s")
        assert await value(session, "return n") == [1, 2]
        await runtime.archive.export(tmp_path / "all.jsonl")
    async with opened() as runtime:
        await runtime.archive.import_(tmp_path / "all.jsonl")
        assert await value(await runtime.session(clerk, "s"), "return n") == [1, 2]


tasks = Agent(tools=[price], code=Lua(accept_finish=True), name="tasks")


def test_a_crash_anywhere_keeps_the_variables():
    """Before and after every commit: the same end, and nothing asked twice."""
    report = crash_everywhere(
        tasks("Count."),
        answers=[
            use("lua", code="sum = tool('price', {of = 'tea'})"),
            use("lua", code="sum = sum + tool('price', {of = 'milk'}) finish(sum)"),
        ],
    )
    assert report.result == 700


async def test_two_programs_at_once_share_the_variables_one_after_another():
    """No update is lost."""
    code = "local old = n or 0 tool('price', {of = 'tea'}) n = old + 1 return n"
    calls = [{"name": "lua", "input": {"code": code}} for _ in range(3)]
    async with opened(llm=Scripted({"tool_calls": calls}, "Done.")) as runtime:
        session = await runtime.session(clerk, "s")
        await session.send("Go.")
        assert sorted(one["value"] for one in told(await session.history())) == [1, 2, 3]
        assert await value(session, "return n") == 3


# ---- what programs print


def output(events):
    return "".join(event.text for event in events if event.kind is EventKind.OUTPUT)


async def test_what_a_program_prints_is_streamed_while_it_runs(place, stalled):
    """Before the program ends; and each reader ends with it."""
    async with opened(place) as runtime:
        session = await runtime.session(guest, "s")
        seen = []
        async for event in session.stream_execution("foreign", "print"):
            seen.append(event)
            if event.kind is EventKind.OUTPUT and event.text == "two\n":
                assert not stalled.is_set()
                stalled.set()
        assert output(seen) == "one two\nthree\n"
        kinds = [event.kind for event in seen]
        assert kinds[-1] is EventKind.SETTLED
        last = len(kinds) - 1 - kinds[::-1].index(EventKind.OUTPUT)
        assert kinds.index(EventKind.TOOL_STARTED) < kinds.index(EventKind.OUTPUT)
        assert last < kinds.index(EventKind.TOOL_FINISHED)


@pytest.mark.parametrize("cancelled", [False, True])
async def test_the_end_of_a_program_ends_its_readers(stalled, cancelled):
    """However it ends, and however many there are."""
    async with opened() as runtime:
        session = await runtime.session(guest, "s")

        async def read():
            return [event async for event in session.follow("one")]

        running = asyncio.ensure_future(session.execute("foreign", "print", id="one"))
        readers = [asyncio.ensure_future(read()) for _ in range(3)]
        async for event in session.follow("one"):
            if event.kind is EventKind.OUTPUT and event.text == "two\n":
                break
        if cancelled:
            await session.cancel_turn("enough")
        else:
            stalled.set()
        heard = await asyncio.wait_for(asyncio.gather(*readers), 10)
        assert isinstance((await running).outcome, TurnCancelled if cancelled else CodeExecuted)
        expected = "one two\n" if cancelled else "one two\nthree\n"
        assert [output(events) for events in heard] == [expected] * 3


@pytest.mark.parametrize("cancelled", [False, True])
async def test_whoever_reads_the_raw_stream_hears_of_its_end(stalled, cancelled):
    """With the call it belongs to, also where the program was cancelled; once."""
    async with opened() as runtime:
        session = await runtime.session(guest, "s")
        with subscribe(session.id) as stream:
            running = asyncio.ensure_future(session.execute("foreign", "print"))
            heard = []
            async for _, delta in stream:
                heard.append((delta.kind, delta.text))
                assert (delta.call, delta.name) == ("execute-1", "foreign")
                if delta.text == "two\n" and cancelled:
                    await session.cancel_turn()
                elif delta.text == "two\n":
                    stalled.set()
                if delta.kind is DeltaKind.END:
                    break
            await running
            assert stream.take() is None
        texts = ["one ", "two\n", "three\n"][: 2 if cancelled else 3]
        assert heard == [*((DeltaKind.OUTPUT, text) for text in texts), (DeltaKind.END, "")]


async def test_a_reader_ends_with_its_runtime(stalled):
    """Nobody waits for what can no longer come."""
    async with opened(replay=False) as runtime:
        session = await runtime.session(guest, "s")
        going = asyncio.ensure_future(session.execute("foreign", "print", wait=0))
        heard = []

        async def read():
            async for event in session.follow("x"):
                heard.append(event)

        reader = asyncio.ensure_future(read())
        await going
        while "two\n" not in [event.text for event in heard]:
            await asyncio.sleep(0.01)
        await runtime.close(grace=0.1)
        await asyncio.wait_for(reader, 10)


class Listener(everhold.Observer):
    def __init__(self):
        self.heard = []

    def printed(self, session_id, call, text):
        self.heard.append((call, text))


async def test_the_model_s_programs_stream_too():
    """To observers, and between their tool calls to whoever watches the turn."""
    listener = Listener()
    code = "print('one') tool('price', {of = 'tea'}) print('two', 2)"
    model = Scripted(use("lua", _id="c1", code=code), "Done.")
    async with opened(llm=model, observers=[listener]) as runtime:
        session = await runtime.session(clerk, "s")
        events = [event async for event in session.stream("Go.")]
        shown = [
            (event.kind, event.name, event.text)
            for event in events
            if event.kind is EventKind.OUTPUT or event.name == "price"
        ]
        assert shown == [
            (EventKind.OUTPUT, "lua", "one\n"),
            (EventKind.TOOL_STARTED, "price", ""),
            (EventKind.TOOL_FINISHED, "price", ""),
            (EventKind.OUTPUT, "lua", "two\t2\n"),
        ]
        assert listener.heard == [("c1", "one\n"), ("c1", "two\t2\n")]
    assert listener.heard == [("c1", "one\n"), ("c1", "two\t2\n")]


def test_the_blocking_runtime_runs_code_too(tmp_path):
    """With the same words."""
    with open_blocking(tmp_path / "app.db") as runtime:
        session = runtime.session(clerk, "s")
        assert session.execute("lua", "n = 2 return n").value == 2
        events = list(session.stream_execution("lua", "print(n)"))
        assert output(events) == "2\n" and events[-1].kind is EventKind.SETTLED
