"""Tools of agents: what a model may give, what it is told, and what happens when nobody knows what
happened.
"""

import asyncio
import enum
import threading
from dataclasses import dataclass
from typing import Annotated, Literal, TypedDict

import pytest

from everhold import Retry
from everhold.agents.agent import Agent
from everhold.core.message import Image, ImageData, Text
from everhold.core.query import Kind
from everhold.core.tool import Allow, Confirm, Later
from everhold.core.turn import TurnAnswered, TurnCancelled, TurnFailed
from everhold.errors import AnswerConflict, BadArguments, UnknownQuery
from everhold.plugins import Approval
from everhold.ports.stream import subscribe
from everhold.ports.tool import ToolContext, tool
from everhold.testing.clock import ManualClock
from tests.scenario.harness import die, dying, opened
from tests.scenario.talk import Scripted, told, use, uses


class World:
    """What happens outside."""

    def __init__(self):
        self.done = []
        self.keys = []
        self.running = self.most = 0
        self.begun = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.noticed = threading.Event()
        self.in_thread = threading.Event()


world = World()


@pytest.fixture(autouse=True)
def fresh_world():
    world.__init__()


class Size(enum.Enum):
    SMALL = "small"
    LARGE = "large"


@dataclass
class Place:
    city: str
    zip: int = 0


class Extra(TypedDict):
    note: str


@tool
def order(
    what: str,
    to: Place,
    size: Size = Size.SMALL,
    extra: Extra | None = None,
    how: Literal["air", "sea"] = "air",
) -> str:
    """Order something.

    Args:
        what: The thing.
        to: Where it goes.
    """
    assert isinstance(to, Place)
    assert isinstance(size, Size)
    world.done.append((what, to.city, size.name, extra, how))
    return "ordered"


@tool(read_only=True)
async def population(city: str) -> dict[str, int]:
    """How many people live in a city."""
    return {"people": {"Paris": 2}[city]}


@tool(read_only=True)
def drawing():
    """A picture with words."""
    return [Text("a dot"), Image(ImageData("image/png", b"\x89PNG"))]


@tool(read_only=True)
def place() -> Place:
    """Somewhere."""
    return Place("Rome", 1)


@tool
def forget() -> None:
    """Forget something."""


@tool
def quits():
    """Ends the process, if it may."""
    raise SystemExit(3)


@tool
def exhausted():
    """Raises what a future cannot carry."""
    raise StopIteration("no more")


@tool
def closed():
    """Raises what a coroutine that is dropped sees, in a thread."""
    raise GeneratorExit("no more")


@tool
async def closed_here():
    """Raises the same on the loop."""
    raise GeneratorExit("no more")


@tool
def long_winded():
    """Fails with many words."""
    raise ValueError("x" * 10_000)


@tool
def wrongly_typed():
    """Returns what JSON has no form for."""
    return {1, 2}


agent = Agent(
    tools=[
        order,
        population,
        drawing,
        place,
        forget,
        quits,
        exhausted,
        closed,
        closed_here,
        long_winded,
        wrongly_typed,
    ],
    name="various",
)


async def say(runtime, agent, words="Go on.", id="chat"):
    session = await runtime.session(agent, id)
    return session, await session.send(words)


async def test_what_a_model_gives_becomes_what_the_function_takes():
    """Dataclasses, enums, TypedDicts and literals are made of JSON; defaults are the function's."""
    given = {"what": "book", "to": {"city": "Rome"}, "size": "large", "extra": {"note": "soon"}}
    model = Scripted(
        use("order", **given), use("order", what="pen", to={"city": "Oslo", "zip": 1}, how="sea")
    )
    async with opened(llm=model) as runtime:
        _, turn = await say(runtime, agent)

    assert isinstance(turn.outcome, TurnAnswered)
    assert world.done == [
        ("book", "Rome", "LARGE", {"note": "soon"}, "air"),
        ("pen", "Oslo", "SMALL", None, "sea"),
    ]
    assert model.results == ["ordered"]


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (use("order", what=1, to={"city": "x"}), "Error: input.what should be a string, got 1"),
        (use("order", what="x", to={"zip": 1}), "Error: input.to should be an object with 'city'"),
        (use("order", what="x", to={"city": "x"}, size="huge"), "Error: input.size should be "),
        (
            use("order", what="x", to={"city": "x"}, colour=1),
            "Error: input.colour should be absent, got 1",
        ),
        (use("fly"), "Error: there is no tool 'fly'; the tools are: closed, closed_here, "),
        (use("population", city="Rome"), "Error: KeyError: 'Rome'"),
        (use("quits"), "Error: RuntimeError: SystemExit: 3"),
        (use("exhausted"), "Error: RuntimeError: StopIteration: no more"),
        (use("closed"), "Error: GeneratorExit: no more"),
        (use("closed_here"), "Error: GeneratorExit: no more"),
        (use("wrongly_typed"), "Error: the result of wrongly_typed cannot be stored as JSON"),
    ],
)
async def test_what_went_wrong_is_told_to_the_model(call, words):
    """Whatever a call comes to, it is a result: the turn goes on, and the model is told what to
    change.
    """
    model = Scripted(call, "I see.")
    async with opened(llm=model) as runtime:
        _, turn = await say(runtime, agent)

    assert turn.text == "I see."
    assert model.results[0].startswith(words)
    assert world.done == []


@pytest.mark.parametrize("given", [None, {}, "{}"])
async def test_nothing_is_given_in_more_ways_than_one(given):
    """Models say nothing as null, as an object, and as text."""
    model = Scripted({"tool_calls": [{"name": "forget", "input": given}]})
    async with opened(llm=model) as runtime:
        await say(runtime, agent)

    assert model.results == ["Done."]


async def test_an_error_is_shown_in_part():
    """A failure with many words does not fill the conversation."""
    model = Scripted(use("long_winded"))
    async with opened(llm=model) as runtime:
        await say(runtime, agent)

    assert model.results[0] == "Error: " + ("ValueError: " + "x" * 10_000)[:2_000] + "…"


async def test_results_are_text_json_or_blocks():
    """Objects are JSON, pictures are blocks, and a function that returns nothing has done what it
    does.
    """
    model = Scripted(
        uses(("population", {"city": "Paris"}), ("drawing", {}), ("place", {}), ("forget", {}))
    )
    async with opened(llm=model) as runtime:
        await say(runtime, agent)

    blocks = [
        {"type": "text", "text": "a dot"},
        {"type": "image", "image": {"media_type": "image/png", "data": "iVBORw=="}},
    ]
    assert model.results == [{"people": 2}, blocks, {"city": "Rome", "zip": 1}, "Done."]


# ---- what a tool knows of its call


@tool(rerun="safe")
async def charge(context: ToolContext, amount: int) -> str:
    """Charge somebody."""
    world.keys.append((context.call_id, context.idempotency_key, context.session_id))
    context.progress("charging", 1, 2)
    world.begun.set()
    await world.goes_on.wait()
    return "charged"


payer = Agent(tools=[charge], name="payer")


async def test_a_context_is_not_the_models_to_give():
    """A parameter annotated `ToolContext` is in no schema, and receives what is known of the
    call.
    """
    world.goes_on.set()
    model = Scripted(
        uses(("charge", {"amount": 1}), ("charge", {"amount": 1})), use("charge", "c-1", amount=1)
    )
    async with opened(llm=model) as runtime:
        session = await runtime.session(payer, "pay")
        with subscribe(session.id) as heard:
            await session.send("Charge thrice.")

    assert charge.schema["required"] == ["amount"]
    assert list(charge.schema["properties"]) == ["amount"]
    assert world.keys[2][0] == "c-1"
    assert len({key for _, key, _ in world.keys}) == 3
    assert {id for _, _, id in world.keys} == {session.id}
    progress = [delta for _, delta in iter(heard.take, None) if delta.kind == "progress"]
    assert [delta.text for delta in progress] == ["charging (1/2)"] * 3


async def test_the_idempotency_key_is_the_same_when_a_call_is_run_again(tmp_path):
    """The process died in the middle; the service outside recognises the second attempt."""
    clock, model = ManualClock(), Scripted(use("charge", amount=1))
    runtime = await dying(tmp_path, clock, llm=model)
    session = await runtime.session(payer, "pay")
    sending = asyncio.create_task(session.send("Charge.", id="i-1"))
    await world.begun.wait()
    sending.cancel()
    await die(runtime, clock)

    world.goes_on.set()
    async with opened(tmp_path, clock=clock, llm=model) as runtime:
        session = await runtime.session(payer, "pay")
        assert (await session.turn("i-1")).text == "Done."
    assert len(world.keys) == 2
    assert world.keys[0] == world.keys[1]


# ---- what nobody knows


@tool
async def transfer(amount: int) -> str:
    """Move money."""
    world.done.append(amount)
    world.begun.set()
    await world.goes_on.wait()
    return f"moved {amount}"


@tool(rerun="never")
async def launch() -> str:
    """Launch."""
    return await transfer.function(0)


@tool(read_only=True)
async def look() -> str:
    """Look."""
    return await transfer.function(-1)


banker = Agent(tools=[transfer, launch, look], name="banker")


async def killed(tmp_path, clock, model, agent=banker):
    """A conversation whose process dies while a tool runs."""
    runtime = await dying(tmp_path, clock, llm=model)
    session = await runtime.session(agent, "bank")
    sending = asyncio.create_task(session.send("Do it.", id="i-1"))
    await world.begun.wait()
    sending.cancel()
    await die(runtime, clock)
    world.goes_on.set()


@pytest.mark.parametrize(
    ("answer", "result", "done"),
    [
        ({"rerun": True}, "moved 5", [5, 5]),
        ({"result": "it went through"}, "it went through", [5]),
        ({"error": "the bank never saw it"}, "Error: the bank never saw it", [5]),
    ],
)
async def test_an_unknown_outcome_is_a_question(tmp_path, answer, result, done):
    """P3: a tool is not silently run again. A person says whether it is, or what came of it."""
    clock, model = ManualClock(), Scripted(use("transfer", amount=5))
    await killed(tmp_path, clock, model)
    async with opened(tmp_path, clock=clock, llm=model) as runtime:
        session = await runtime.session(banker, "bank")
        turn = await session.turn("i-1")
        assert turn.waiting
        assert [query.query.name for query in turn.queries] == ["transfer"]
        assert world.done == [5]
        await runtime.answer(turn.queries[0], answer)
        assert (await session.turn("i-1")).text == "Done."
        assert told(await session.history()) == [result]
    assert world.done == done


async def test_an_outcome_that_stays_unknown_is_told_to_the_model(tmp_path):
    """`rerun="never"`: the model is told that nobody knows."""
    clock, model = ManualClock(), Scripted(use("launch"))
    await killed(tmp_path, clock, model)
    async with opened(tmp_path, clock=clock, llm=model) as runtime:
        session = await runtime.session(banker, "bank")
        assert (await session.turn("i-1")).text == "Done."
    assert model.results == [
        "The outcome of launch is unknown: it was started and may or may not have happened."
    ]
    assert world.done == [0]


async def test_what_only_reads_is_run_again(tmp_path):
    """`read_only=True`: nobody is asked."""
    clock, model = ManualClock(), Scripted(use("look"))
    await killed(tmp_path, clock, model)
    async with opened(tmp_path, clock=clock, llm=model) as runtime:
        session = await runtime.session(banker, "bank")
        assert (await session.turn("i-1")).text == "Done."
    assert model.results == ["moved -1"]
    assert world.done == [-1, -1]


async def hesitate(wanted):
    world.begun.set()
    await world.goes_on.wait()
    return Allow()


guarded = Agent(tools=[transfer], plugins=[Approval("*")], policy=hesitate, name="guarded")


async def test_a_call_that_waits_for_its_approval_has_no_unknown_outcome(tmp_path):
    """The process died before the approval was asked for, so the tool was not run."""
    clock, model = ManualClock(), Scripted(use("transfer", amount=5))
    await killed(tmp_path, clock, model, guarded)
    async with opened(tmp_path, clock=clock, llm=model) as runtime:
        session = await runtime.session(guarded, "bank")
        turn = await session.turn("i-1")
        assert [query.kind for query in turn.queries] == ["approval"]
        await runtime.answer(turn.queries[0], True)
        assert (await session.turn("i-1")).text == "Done."
    assert world.done == [5]


# ---- limits


@tool(read_only=True, concurrency=2)
async def narrow() -> str:
    """Runs twice at once at most."""
    return await counted()


@tool(read_only=True)
async def wide() -> str:
    """Runs as often as its agent allows."""
    return await counted()


async def counted():
    world.running += 1
    world.most = max(world.most, world.running)
    await asyncio.sleep(0.01)
    world.running -= 1
    return "ok"


limited = Agent(tools=[narrow, wide], concurrency=3, name="limited")


@pytest.mark.parametrize(("name", "most"), [("narrow", 2), ("wide", 3)])
async def test_calls_run_side_by_side_up_to_a_limit(name, most):
    """A tool has a limit, and so has its agent; the results are in the order of the calls."""
    model = Scripted(uses(*[(name, {})] * 7))
    async with opened(llm=model) as runtime:
        await say(runtime, limited)

    assert world.most == most
    assert model.results == ["ok"] * 7


@tool(read_only=True, retry=Retry(3))
def flaky() -> str:
    """Fails twice."""
    world.done.append("try")
    if len(world.done) < 3:
        raise ConnectionError("not yet")
    return "at last"


@tool(read_only=True, timeout=0.05)
async def slow() -> str:
    """Never ends."""
    await asyncio.Event().wait()
    return ""


@tool(read_only=True, timeout=0.05)
def slow_thread(context: ToolContext) -> str:
    """Never ends by itself."""
    while not context.cancelled:
        world.in_thread.wait(0.01)  # clock: a pause between two looks
    world.noticed.set()
    return ""


trying = Agent(tools=[flaky, slow, slow_thread, order], name="trying")


async def test_a_tool_is_tried_again_with_growing_pauses():
    """Retries wait on the clock of the runtime."""
    clock, model = ManualClock(), Scripted(use("flaky"))
    async with opened(clock=clock, llm=model) as runtime:
        session = await runtime.session(trying, "chat")
        sending = asyncio.create_task(session.send("Try."))
        while not sending.done():
            await asyncio.sleep(0.01)
            clock.advance(1)

    assert model.results == ["at last"]
    assert world.done == ["try"] * 3


async def test_an_input_that_does_not_fit_is_not_tried_again():
    """A model's mistake stays one, however often it is tried."""
    model = Scripted(use("order", what="x", to={"city": "x"}, extra={}))
    async with opened(llm=model) as runtime:
        await say(runtime, trying)

    assert model.results[0].startswith("Error: input.extra")


@pytest.mark.parametrize("name", ["slow", "slow_thread"])
async def test_a_tool_that_takes_too_long_is_an_error(name):
    """A coroutine is stopped; a thread is told that nobody waits for it."""
    model = Scripted(use(name))
    async with opened(llm=model) as runtime:
        await say(runtime, trying)
        assert model.results == [f"Error: {name} took longer than 0.05 s"]
    assert name == "slow" or await asyncio.to_thread(world.noticed.wait, 10)


@tool
def patient(context: ToolContext) -> str:
    """Waits until nobody waits for it."""
    world.in_thread.set()
    while not context.cancelled:
        world.noticed.wait(0.01)  # clock: a pause between two looks
    world.noticed.set()
    return "too late"


@tool
async def waiting() -> str:
    """Waits for ever."""
    world.begun.set()
    try:
        await world.goes_on.wait()
    except asyncio.CancelledError:
        world.done.append("cancelled")
        raise
    return ""


idle = Agent(tools=[patient, waiting], name="idle")


async def test_tools_are_cancelled_with_their_turn():
    """Each call has a result all the same, and the next turn can begin."""
    model = Scripted(uses(("patient", {}), ("waiting", {})))
    async with opened(llm=model) as runtime:
        session = await runtime.session(idle, "chat")
        sending = asyncio.create_task(session.send("Wait."))
        await world.begun.wait()
        await asyncio.to_thread(world.in_thread.wait, 10)
        turn = await session.cancel_turn("enough")
        assert turn.outcome == TurnCancelled("enough")
        assert await asyncio.to_thread(world.noticed.wait, 10)
        await sending
        words = (
            "Error: the turn was cancelled; the tool was started, and its effect"
            " may or may not have happened"
        )
        assert told(await session.history()) == [words] * 2
        assert (await session.send("And now?")).text == "Done."
    assert world.done == ["cancelled"]


@tool
async def paid(amount: int) -> str:
    """Pays, and is done."""
    world.done.append(amount)
    return f"paid {amount}"


spender = Agent(
    tools=[paid, tool(waiting.function, name="other", read_only=True)],
    concurrency=1,
    name="spender",
)


async def test_what_was_done_is_told_though_its_turn_was_cancelled():
    """The model is not left to believe that a payment failed: it would pay again."""
    model = Scripted(uses(("paid", {"amount": 5}), ("other", {}), ("other", {})))
    async with opened(llm=model) as runtime:
        session = await runtime.session(spender, "chat")
        sending = asyncio.create_task(session.send("Pay."))
        await world.begun.wait()
        await session.cancel_turn("enough")
        await sending
        assert told(await session.history()) == ["paid 5"] + ["Error: the turn was cancelled"] * 2
        assert (await session.send("And now?")).text == "Done."
        assert model.shown[-1][2]["content"][0]["content"] == "paid 5"
    assert world.done == [5, "cancelled"]


async def test_who_was_asked_and_never_answered_leaves_no_doubt():
    """A call that waited for a person's yes when its turn was cancelled has not begun."""
    careful = Agent(tools=[paid], policy=lambda wanted: Confirm(), name="careful")
    async with opened(llm=Scripted(use("paid", amount=5)), replay=False) as runtime:
        session = await runtime.session(careful, "chat")
        assert (await session.send("Pay.")).waiting
        await session.cancel_turn("enough")
        assert told(await session.history()) == ["Error: the turn was cancelled"]
    assert world.done == []


# ---- what finishes later


@tool
async def print_book(context: ToolContext, title: str, how: str = "return") -> str:
    """Have a book printed."""
    world.keys.append(context.idempotency_key)
    later = Later(
        f"Is {title} printed?", timeout=60, on_timeout="fail" if how == "fail" else "error"
    )
    if how == "raise":
        raise later
    return later


printer = Agent(tools=[print_book], name="printer")


@pytest.mark.parametrize("how", ["return", "raise"])
async def test_a_tool_may_finish_later(tmp_path, how):
    """The call becomes a question with an id, and whoever has the result gives it: another process,
    days later.
    """
    model = Scripted(use("print_book", title="Ulysses", how=how))
    async with opened(tmp_path, llm=model) as runtime:
        session, turn = await say(runtime, printer)
        assert turn.waiting
        assert (await runtime.status(session.id)).state == "paused"
        [(_, query, _)] = await runtime.store.inbox(kind=Kind.TOOL, to=None, limit=10)
        assert (query.kind, query.name, query.prompt) == (
            Kind.TOOL,
            "print_book",
            "Is Ulysses printed?",
        )

    async with opened(tmp_path, llm=model) as runtime:
        session = await runtime.session(printer, "chat")
        await runtime.answer(turn.queries[0], {"pages": 700})
        assert (await session.turn(turn.input_id)).text == "Done."
        assert model.results == [{"pages": 700}]
        with pytest.raises(AnswerConflict):
            await runtime.answer(turn.queries[0], {"pages": 1})
    assert len(world.keys) == 1


async def test_a_result_that_comes_later_is_given_by_the_key_of_its_call():
    """The key is known before the question is: what the tool started may know it."""
    model = Scripted(use("print_book", title="Ulysses"))
    async with opened(llm=model) as runtime:
        session, turn = await say(runtime, printer)
        with pytest.raises(UnknownQuery):
            await runtime.complete(session.id, "another", "x")
        await runtime.complete(session.id, world.keys[0], "printed", by={"user": "press"})
        assert (await session.turn(turn.input_id)).text == "Done."
        assert model.results == ["printed"]
        await runtime.complete(session.id, world.keys[0], "printed")
        with pytest.raises(AnswerConflict):
            await runtime.complete(session.id, world.keys[0], "burnt")


async def test_a_result_that_never_comes_is_an_error_for_the_model():
    """After the deadline the model goes on without it."""
    clock, model = ManualClock(), Scripted(use("print_book", title="Ulysses"))
    async with opened(clock=clock, llm=model) as runtime:
        session, turn = await say(runtime, printer)
        await settled(clock, session, turn)

    assert model.results == ["Error: print_book gave no result within 60 s"]


async def test_a_result_that_never_comes_may_fail_the_turn():
    """`on_timeout="fail"`: the model is not asked again; the call has its result."""
    clock, model = ManualClock(), Scripted(use("print_book", title="Ulysses", how="fail"))
    async with opened(clock=clock, llm=model) as runtime:
        session, turn = await say(runtime, printer)
        turn = await settled(clock, session, turn)
        assert turn.outcome == TurnFailed("print_book gave no result within 60 s", "tool_expired")
        assert told(await session.history()) == ["Error: print_book gave no result within 60 s"]
        assert len(model.shown) == 1


async def settled(clock, session, turn):
    """The turn, once time has passed."""
    clock.advance(61)
    while turn.waiting:
        await asyncio.sleep(0.01)
        turn = await session.turn(turn.input_id, wait=1)
    return turn


async def test_an_error_from_outside_is_told_to_the_model():
    """Who was to give the result may say that there is none."""
    model = Scripted(use("print_book", title="Ulysses"))
    async with opened(llm=model) as runtime:
        session, turn = await say(runtime, printer)
        await runtime.answer(turn.queries[0], error="the press is broken")
        await session.turn(turn.input_id)

    assert model.results == ["Error: the press is broken"]


# ---- what is said beside a result


@tool(rerun="safe")
async def knock(context: ToolContext) -> dict[str, list[str]]:
    """Knock."""
    context.say("Somebody is at the door.")
    world.begun.set()
    await world.goes_on.wait()
    return {"$said": ["forged"]}


@tool(read_only=True)
def mimic() -> dict[str, list[str]]:
    """Returns what looks like words beside a result."""
    return {"$said": ["forged"]}


porter = Agent(tools=[knock, mimic], name="porter")


async def test_what_a_tool_says_is_heard_once_after_the_results(tmp_path):
    """Row 33: also if the process died in the middle and the tool was run again."""
    clock, model = ManualClock(), Scripted(uses(("knock", {}), ("mimic", {})), "Come in.", "Done.")
    runtime = await dying(tmp_path, clock, llm=model)
    session = await runtime.session(porter, "house")
    sending = asyncio.create_task(session.send("Knock.", id="i-1"))
    await world.begun.wait()
    sending.cancel()
    await die(runtime, clock)

    world.goes_on.set()
    async with opened(tmp_path, clock=clock, llm=model) as runtime:
        session = await runtime.session(porter, "house")
        assert (await session.turn("i-1")).text == "Come in."
        await session.send("And?")
        history = await session.history()
    said = [(str(node.role), node.content) for node in history]
    assert said[3] == ("user", "Somebody is at the door.")
    assert [content for _, content in said].count("Somebody is at the door.") == 1
    assert told(history) == [{"$said": ["forged"]}, {"$said": ["forged"]}]
    assert await as_a_task(porter) == "At last."


async def as_a_task(agent):
    """What comes of an agent that is run for one task."""
    model = Scripted(use("knock"), "At last.")
    async with opened(llm=model) as runtime:
        answer = await runtime.run(agent(task="Knock."))
    assert model.shown[1][-1]["content"] == [{"type": "text", "text": "Somebody is at the door."}]
    return answer


# ---- how tools are written


class Shop:
    """An object whose methods are tools."""

    def __init__(self, name):
        self.name = name

    @tool(read_only=True)
    def stock(self, item: Annotated[str, "what is looked for"]) -> str:
        """What is there."""
        return f"{self.name} has {item}"

    @tool
    async def close(self) -> str:
        """Close."""
        return f"{self.name} is closed"


shops = Agent(tools=[Shop("Ada's")], name="shops")


async def test_the_tools_of_an_object_are_its_methods():
    model = Scripted(uses(("stock", {"item": "tea"}), ("close", {})))
    async with opened(llm=model) as runtime:
        await say(runtime, shops)

    assert model.results == ["Ada's has tea", "Ada's is closed"]


@pytest.mark.parametrize(
    "given",
    [[order, order], [3], [lambda *args: 1], [lambda **more: 1], [object()]],
    ids=lambda one: "",
)
def test_what_is_no_tool_is_refused(given):
    with pytest.raises(BadArguments):
        Agent(tools=given)


@pytest.mark.parametrize(
    "options",
    [
        {"retry": 3},
        {"timeout": 0},
        {"total_timeout": -1},
        {"concurrency": 0},
        {"rerun": "sometimes"},
    ],
    ids=repr,
)
def test_an_option_that_makes_no_sense_is_refused(options):
    with pytest.raises(BadArguments):
        tool(**options)(lambda: None)


ran = []


@tool(read_only=True)
def note(what: str) -> str:
    """Take a note."""
    ran.append(what)
    return what


noting = Agent(tools=[note], name="noting")


async def test_calls_of_one_id_are_told_apart():
    """A model that names two calls alike, or not at all, has both run; each result is shown for its
    own call.
    """
    said = [
        {"type": "tool_use", "name": "note", "input": {"what": what}} for what in ("a", "b", "c")
    ]
    said[0]["id"] = said[1]["id"] = "same"
    model = Scripted({"content": said}, "Done.")
    ran.clear()
    async with opened(llm=model) as runtime:
        turn = await (await runtime.session(noting, "alike")).send("Go.")
        assert (turn.text, sorted(ran), model.results) == (
            "Done.",
            ["a", "b", "c"],
            ["a", "b", "c"],
        )
        calls, results = (message["content"] for message in model.shown[-1][-2:])
        assert [one["id"] for one in calls] == [one["tool_use_id"] for one in results]
        assert calls[0]["id"] == "same" and len({one["id"] for one in calls}) == 3


@pytest.mark.parametrize(
    "said",
    [
        {"content": [{"type": "tool_use", "id": "x", "input": {}}]},
        {"tool_calls": 5},
        {"tool_calls": [{"input": {}}]},
    ],
    ids=["block", "number", "simple"],
)
async def test_a_call_without_a_name_fails_the_turn_and_not_the_session(said):
    """What a host wrote wrong is an outcome; the conversation goes on."""
    model = Scripted(said, "Better.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(noting, "nameless")
        assert (await session.send("Go.")).outcome.code == "bad_tool_call"
        assert (await session.send("Again.")).text == "Better."
