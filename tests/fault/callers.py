"""The verbs of a runtime and of a conversation that change something: each prepared, called, looked
at, completed.

`Case` is one call of one verb. `prepare` makes what it needs, under a mark of its own. `look` says
where all of that stands, without ids, marks and times. `finish` does what remains to be done, so
that everything comes to its end.
"""

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, ClassVar
from uuid import NAMESPACE_URL, uuid5

import msgspec

import everhold
from everhold.agents import AgentSession, Lua
from everhold.agents.agent import Agent
from everhold.core.graph import extract_text
from everhold.core.message import user
from everhold.core.query import Kind
from everhold.core.tool import Later
from everhold.errors import UnknownSession
from everhold.notify import NotificationFailed
from everhold.ports.store import Store
from everhold.ports.tool import ToolContext, tool
from everhold.runtime import Runtime
from everhold.schedules import Feed
from everhold.stores import EnvelopeSession
from everhold.testing.clock import ManualClock
from everhold.testing.compare import SessionTrace

DONE: Counter[str] = Counter()  # how often each piece of work was done, by its mark
FAILS: set[str] = set()  # marks of which work fails
GATES: dict[str, asyncio.Event] = {}  # marks at which the model waits, and until when
BEGUN: set[str] = set()  # marks that the model has read
KEYS: list[str] = []  # idempotency keys of work that finishes later
SILENT: set[str] = set()  # sessions of which people are not told

_CHANGING = (
    (re.compile(r"s-[0-9a-f]{8,}(-[0-9a-f]+)?"), "s"),
    (re.compile(r"i-[0-9a-f]{16}"), "i"),
)


async def work(mark: str) -> str:
    DONE[mark] += 1
    if mark in FAILS:
        raise OSError("not yet")
    return "done"


@everhold.program
async def quick(ctx: everhold.Context, mark: str) -> str:
    return await ctx.call(work, mark, rerun="never")


@everhold.program
async def order(ctx: everhold.Context, mark: str) -> str:
    """A call, a question for a person, and another call."""
    first = await ctx.call(work, mark, rerun="never")
    if await ctx.approval("Go?"):
        first += await ctx.call(work, mark, rerun="ask")
    return first


@everhold.program
async def two(ctx: everhold.Context, mark: str) -> list[Any]:
    said = await asyncio.gather(ctx.input("One?"), ctx.input("Two?"))
    return [*said, await ctx.call(work, mark, rerun="never")]


@everhold.program
async def paid(ctx: everhold.Context, mark: str) -> Any:
    value = await ctx.receive("paid")
    return [value, await ctx.call(work, mark, rerun="never")]


@everhold.program
async def parent(ctx: everhold.Context, mark: str) -> Any:
    return await ctx.spawn(order(mark=mark))


@tool
async def print_book(context: ToolContext) -> str:
    """Have a book printed."""
    KEYS.append(context.idempotency_key)
    return Later("Is it printed?")  # type: ignore[return-value]


@tool(read_only=True)
def look_up() -> str:
    """Look something up."""
    return "found"


bot = Agent(instructions="Be brief.", name="callers_bot")
coder = Agent(tools=[look_up], code=Lua(), name="callers_coder")
PROGRAM = 'print(tool("look_up", {})) return 7'
printer = Agent(tools=[print_book], name="callers_printer")


async def model(query: Any) -> Any:
    """Says one thing; waits before, if a gate is shut for what was said."""
    words = msgspec.json.encode(query.messages).decode()
    for mark, gate in list(GATES.items()):
        if mark in words:
            BEGUN.add(mark)
            await gate.wait()
    if "Print" in words and "tool_result" not in words:
        return {"tool_calls": [{"name": "print_book", "input": {}}]}
    return "Said."


class Desk:
    """Tells people of inputs, but for those that it is silent about."""

    name, kinds, to, timeout, max_age = "desk", (Kind.INPUT,), (), 600.0, 600.0

    async def tell(self, id: str, message: bytes, now: float) -> None:
        if id.partition("/")[0] in SILENT:
            raise NotificationFailed("not now", final=True)


#: Where the intake is in what `Talk.look` returns.
INTAKE = 4
#: An input that was said again under its id while it was heard.
REPEATED = ["input", "completed", {"content": "Go on."}]


class Case:
    """One call of a verb that changes something."""

    verb_of: ClassVar[str]  # "Runtime.start", with what is special about the call after it
    # whether the same call again changes nothing; else it is repeated only if nothing has happened
    repeats = True
    whole = True  # whether it is done or not done, once its caller has left and everything rests
    gated = False  # whether a model waits, for which nobody waits here before `finish`

    def __init__(
        self, runtime: Runtime, store: Store, clock: ManualClock, mark: str, folder: Path
    ) -> None:
        self.runtime, self.store, self.clock, self.mark, self.folder = (
            runtime,
            store,
            clock,
            mark,
            folder,
        )
        self.id = ""

    async def prepare(self) -> None: ...

    def verb(self) -> Coroutine[Any, Any, Any]:
        raise NotImplementedError

    async def finish(self) -> None: ...

    async def look(self) -> Any:
        return await self.stands(self.id)

    async def clean(self) -> None: ...

    # ---- within

    async def start(self, call: Any) -> Any:
        status = await self.runtime.start(call, key=self.mark)
        self.id = status.session_id
        return status

    async def stands(self, session_id: str | None) -> Any:
        """Where a session stands: the journal without numbers, its marks, its letters and its
        intake.
        """
        try:
            record = await self.store.load(session_id or await self.store.find(self.mark) or "")
        except UnknownSession:
            return None
        items = await self.store.intake(
            record.birth.id,
            lambda intake: [(item.kind, item.state, item.body) for item in intake.items.values()],
            whole=True,
        )
        told = msgspec.to_builtins(SessionTrace.of(record))
        marks = [effect.q for effect in record.effects]
        return self.plain(
            [record.head.state, told, marks, record.head.mail, items, DONE[self.mark]]
        )

    def plain(self, found: Any) -> Any:
        words = msgspec.json.encode(found).decode().replace(self.mark, "MARK")
        for pattern, instead in _CHANGING:
            words = pattern.sub(instead, words)
        return msgspec.json.decode(words)

    async def until(self, true: Callable[[], Coroutine[Any, Any, Any]]) -> None:
        """Wait until something is so; the test itself has a limit."""
        while not await true():
            await asyncio.sleep(0.001)

    async def rest(self) -> None:
        """Wait until nothing is in progress here, but for what waits at a gate."""
        while True:
            tasks = set(self.runtime.engine.shielded.tasks)
            tasks |= set() if self.gated else self.runtime.engine.effects.tasks
            if tasks:
                await asyncio.wait(tasks)
            elif self.runtime.mover._wanted or self.runtime.mover._running:
                await self.runtime.mover.rest()
            else:
                return


# ---- sessions


class Run(Case):
    verb_of = "Runtime.run"

    def verb(self):
        return self.runtime.run(quick(mark=self.mark), key=self.mark)


class Start(Case):
    verb_of = "Runtime.start"

    def verb(self):
        return self.runtime.start(order(mark=self.mark), key=self.mark)

    async def finish(self):
        status = await self.runtime.start(order(mark=self.mark), key=self.mark)
        await self.runtime.answer(status.queries[0], True)


class StartUnchecked(Start):
    """A reference is accepted, and begun by a move."""

    verb_of = "Runtime.start of a reference"

    def verb(self):
        return self.runtime.start(
            order.ref, args={"mark": self.mark}, key=self.mark, unchecked=True
        )

    async def finish(self):
        status = await self.runtime.wait(await self.runtime.find(self.mark))
        await self.runtime.answer(status.queries[0], True)


class StartParent(Start):
    """The child goes on by itself."""

    verb_of = "Runtime.start with a child"

    def verb(self):
        return self.runtime.start(parent(mark=self.mark), key=self.mark)

    async def finish(self):
        self.id = await self.runtime.find(self.mark)
        child = (await self.runtime.sessions(parent=self.id))[0].session_id
        await self.runtime.answer(child, True)
        await self.runtime.wait(self.id)


class Answer(Case):
    verb_of = "Runtime.answer"

    async def prepare(self):
        self.query = (await self.start(order(mark=self.mark))).queries[0]

    def verb(self):
        return self.runtime.answer(self.query, True)


class AnswerModel(Case):
    """An answer to a model's question in memory: the short way."""

    verb_of = "Runtime.answer for a model"

    async def prepare(self):
        status = await self.start(asks(mark=self.mark))
        self.query = status.queries[0]

    def verb(self):
        return self.runtime.answer(self.query, "because")


@everhold.program
async def asks(ctx: everhold.Context, mark: str) -> Any:
    return [await ctx.llm("Why?", to="bob"), await ctx.call(work, mark, rerun="never")]


class AnswerMany(Case):
    verb_of = "Runtime.answer_many"

    async def prepare(self):
        self.queries = (await self.start(two(mark=self.mark))).queries

    def verb(self):
        return self.runtime.answer_many(self.id, {query.id: "x" for query in self.queries})


class Signal(Case):
    verb_of = "Runtime.signal"
    repeats = False

    async def prepare(self):
        await self.start(paid(mark=self.mark))

    def verb(self):
        return self.runtime.signal(self.id, "paid", 7)


class Cancel(Case):
    """The child of a session is cancelled with it."""

    verb_of = "Runtime.cancel"

    async def prepare(self):
        await self.start(parent(mark=self.mark))
        self.child = (await self.runtime.sessions(parent=self.id))[0].session_id
        await self.until(self.waits)

    async def waits(self):
        return (await self.runtime.status(self.child)).state == "paused"

    def verb(self):
        return self.runtime.cancel(self.id, "enough")

    async def look(self):
        return [await self.stands(self.id), await self.stands(self.child)]


class Move(Case):
    verb_of = "Runtime.move"

    async def prepare(self):
        await self.start(order(mark=self.mark))

    def verb(self):
        return self.runtime.move(self.id)


class Retry(Case):
    verb_of = "Runtime.retry"
    repeats = False

    async def prepare(self):
        FAILS.add(self.mark)
        await self.start(tries(mark=self.mark))
        FAILS.discard(self.mark)

    def verb(self):
        return self.runtime.retry(self.id)


@everhold.program
async def tries(ctx: everhold.Context, mark: str) -> str:
    if mark in FAILS:
        raise OSError("not yet")
    return await ctx.call(work, mark, rerun="never")


class SetBudget(Case):
    verb_of = "Runtime.set_budget"

    async def prepare(self):
        self.asked = (await self.start(order(mark=self.mark))).queries[0]

    def verb(self):
        return self.runtime.set_budget(self.id, {"max_llm_calls": 7})

    async def finish(self):
        await self.runtime.answer(self.asked, True)


class RaiseBudget(Case):
    """A session that has failed is retried."""

    verb_of = "Runtime.set_budget after a failure"
    repeats = False

    async def prepare(self):
        call = thrifty(mark=self.mark)
        self.id = (
            await self.runtime.start(call, key=self.mark, budget={"max_llm_calls": 0})
        ).session_id

    def verb(self):
        return self.runtime.set_budget(self.id, {"max_llm_calls": 7})


@everhold.program
async def thrifty(ctx: everhold.Context, mark: str) -> list[Any]:
    return [await ctx.llm(mark), await ctx.call(work, mark, rerun="never")]


class Fork(Case):
    verb_of = "Runtime.fork"
    repeats = False  # its key is taken

    async def prepare(self):
        status = await self.start(two(mark=self.mark))
        await self.runtime.answer_many(self.id, {query.id: "x" for query in status.queries})

    def verb(self):
        return self.runtime.fork(self.id, at=1, answer="y", query_id="q-0", key=f"{self.mark}-fork")

    async def look(self):
        fork = await self.store.find(f"{self.mark}-fork")
        return None if fork is None else await self.stands(fork)

    async def finish(self):
        fork = await self.store.find(f"{self.mark}-fork")
        status = await self.runtime.status(fork)
        if status.state == "paused":
            await self.runtime.answer_many(fork, {query.id: "x" for query in status.queries})


class Delete(Case):
    verb_of = "Runtime.delete"
    repeats = False

    async def prepare(self):
        await self.start(order(mark=self.mark))

    def verb(self):
        return self.runtime.delete(self.id)

    async def look(self):
        return await self.store.find(self.mark) is not None


class Complete(Case):
    verb_of = "Runtime.complete"

    async def prepare(self):
        talk = await self.runtime.session(printer, self.mark)
        self.id = talk.id
        await talk.send("Print!", id="print")
        self.key = KEYS[-1]

    def verb(self):
        return self.runtime.complete(self.id, self.key, "printed")

    async def finish(self):
        await (await self.runtime.session(printer, self.mark)).turn("print")


class Export(Case):
    verb_of = "Archive.export"

    async def prepare(self):
        await self.start(quick(mark=self.mark))

    @property
    def file(self):
        return self.folder / f"{self.mark}.jsonl"

    def verb(self):
        return self.runtime.archive.export(self.file, self.id)

    async def look(self):
        return [
            path.name.replace(self.mark, "")
            for path in self.folder.iterdir()
            if self.mark in path.name
        ]

    async def clean(self):
        self.file.unlink(missing_ok=True)


class Import(Export):
    """A session with a child comes back whole, and goes on."""

    verb_of = "Archive.import_"

    async def prepare(self):
        await self.start(parent(mark=self.mark))
        self.child = (await self.runtime.sessions(parent=self.id))[0].session_id
        await self.runtime.wait(self.child)
        await self.rest()
        await self.runtime.archive.export(self.file, self.id)
        await self.runtime.delete(self.id)
        await self.runtime.cancel(self.child)
        await self.runtime.delete(self.child)

    def verb(self):
        return self.runtime.archive.import_(self.file, existing="skip")

    async def look(self):
        return [await self.stands(self.id), await self.stands(self.child)]

    async def finish(self):
        await self.runtime.answer(self.child, True)
        await self.runtime.wait(self.id)


class Sweep(Case):
    """Each session goes whole; which of them are gone when a caller leaves is not promised."""

    verb_of = "Archive.gc"
    whole = False

    async def prepare(self):
        for n in range(2):
            await self.runtime.run(
                quick(mark=self.mark), key=f"{self.mark}-{n}", labels={"mark": self.mark}
            )

    def verb(self):
        return self.runtime.archive.gc(older_than=0, labels={"mark": self.mark})

    async def look(self):
        return [await self.store.find(f"{self.mark}-{n}") is not None for n in range(2)]


class Vacuum(Case):
    verb_of = "Archive.vacuum"

    async def prepare(self):
        talk = await self.runtime.session(bot, self.mark)
        self.id = talk.id
        for n in range(2):
            receipt = await talk.enqueue("Hi.", key=f"{n}")
            await talk.turn(receipt.item.id)
        await self.rest()

    def verb(self):
        return self.runtime.archive.vacuum(self.id)


class Reclaim(Case):
    verb_of = "Archive.reclaim"

    def verb(self):
        return self.runtime.archive.reclaim()

    async def look(self):
        return None


# ---- schedules and triggers


class Schedule(Case):
    verb_of = "Schedules.add"

    def verb(self):
        return self.runtime.schedules.add(self.mark, timedelta(hours=1), quick(mark=self.mark))

    async def look(self):
        found = await self.runtime.schedules.list(self.mark)
        began = [
            await self.stands(one.last_session) for one in found if one.last_session is not None
        ]
        nexts = [
            None if one.next_at is None else round(one.next_at - self.clock.now()) for one in found
        ]
        return [[(one.state, one.revision) for one in found], nexts, began]

    async def finish(self):
        """An hour passes."""
        self.clock.advance(3601)
        await self.until(self.fired)
        await self.rest()

    async def fired(self):
        return (await self.runtime.schedules.list(self.mark))[0].last_session is not None

    async def clean(self):
        with suppress(everhold.EverholdError):
            await self.runtime.schedules.remove(self.mark)


class PauseSchedule(Schedule):
    verb_of = "Schedules.pause"

    async def prepare(self):
        await Schedule.verb(self)

    def verb(self):
        return self.runtime.schedules.pause(self.mark)

    async def finish(self):
        self.clock.advance(3601)
        await self.rest()


class ResumeSchedule(Schedule):
    verb_of = "Schedules.resume"

    async def prepare(self):
        await Schedule.verb(self)
        await self.runtime.schedules.pause(self.mark)

    def verb(self):
        return self.runtime.schedules.resume(self.mark)


class Unschedule(Schedule):
    verb_of = "Schedules.remove"
    repeats = False

    async def prepare(self):
        await Schedule.verb(self)

    def verb(self):
        return self.runtime.schedules.remove(self.mark)

    async def finish(self): ...


class On(Case):
    verb_of = "Triggers.add"

    def verb(self):
        return self.runtime.triggers.add(self.mark, quick, args={"mark": self.mark})

    async def look(self):
        triggers = await self.runtime.triggers.list(self.mark)
        handed = await self.runtime.triggers.handovers(self.mark)
        began = [await self.stands(one.session_id) for one in handed]
        return self.plain(
            [[(one.name, one.enabled, one.revision) for one in triggers], _states(handed), began]
        )

    async def finish(self):
        """Something happens."""
        await self.runtime.triggers.emit(self.mark, {}, key="it")
        await self.rest()


class Off(On):
    verb_of = "Triggers.remove"
    repeats = False

    async def prepare(self):
        await On.verb(self)

    def verb(self):
        return self.runtime.triggers.remove(self.mark, "quick")


class DisableTrigger(On):
    verb_of = "Triggers.disable"

    async def prepare(self):
        await On.verb(self)

    def verb(self):
        return self.runtime.triggers.disable(self.mark, "quick")


class EnableTrigger(On):
    verb_of = "Triggers.enable"

    async def prepare(self):
        await On.verb(self)
        await DisableTrigger.verb(self)

    def verb(self):
        return self.runtime.triggers.enable(self.mark, "quick")


class Emit(On):
    """Two programs are begun by one event."""

    verb_of = "Triggers.emit"

    async def prepare(self):
        await On.verb(self)
        await self.runtime.triggers.add(self.mark, paid, args={"mark": self.mark})

    def verb(self):
        return self.runtime.triggers.emit(self.mark, {}, key="it")


class HandOver(On):
    """A session that is fed does not exist at first."""

    verb_of = "Triggers.retry"

    async def prepare(self):
        await self.runtime.triggers.add(self.mark, Feed(self.mark, signal="paid"), name="feed")
        await self.runtime.triggers.emit(self.mark, 7, key="it")
        self.handover = (await self.runtime.triggers.handovers(self.mark))[0].id
        await self.start(paid(mark=self.mark))

    def verb(self):
        return self.runtime.triggers.retry(self.handover)

    async def finish(self): ...


class DropHandover(HandOver):
    verb_of = "Triggers.drop"
    repeats = False

    def verb(self):
        return self.runtime.triggers.drop(self.handover)


def _states(handed: list[Any]) -> list[Any]:
    """What came of handovers. One that is tried by two callers at once may say that it was done
    already.
    """
    return [(one.trigger, one.state.replace("already", "started"), one.tries) for one in handed]


# ---- notifications


class OutboxRetry(Case):
    """People were told neither of one question nor of the other."""

    verb_of = "Notifications.retry"

    async def prepare(self):
        self.id = (await self.runtime.start(later(mark=self.mark), key=self.mark)).session_id
        SILENT.add(self.id)
        await self.runtime.signal(self.id, "paid")
        await self.until(self.given_up)
        SILENT.discard(self.id)

    async def states(self):
        return [entry.state for entry in await self.runtime.notifications.list(self.id)]

    async def given_up(self):
        return await self.states() == ["given_up"] * 2

    def verb(self):
        return self.runtime.notifications.retry(self.id)

    async def look(self):
        """What is tried again is told soon after: one is like the other."""
        return [
            "told" if state in ("waiting", "sending") else str(state)
            for state in await self.states()
        ]

    async def finish(self):
        await self.until(self.told)

    async def told(self):
        return await self.states() == ["told"] * 2

    async def clean(self):
        await self.runtime.delete(self.id)


@everhold.program
async def later(ctx: everhold.Context, mark: str) -> Any:
    await ctx.receive("paid")
    return await asyncio.gather(ctx.input("One?"), ctx.input("Two?"))


class OutboxDrop(OutboxRetry):
    verb_of = "Notifications.drop"

    def verb(self):
        return self.runtime.notifications.drop(self.id)

    async def finish(self): ...


# ---- conversations


class NewSession(Case):
    verb_of = "Runtime.session"

    def verb(self):
        return self.runtime.session(bot, self.mark)

    async def finish(self):
        await (await self.runtime.session(bot, self.mark)).send("Hello.", id="hello")


class Talk(Case):
    """A conversation in which one turn has settled."""

    talk: AgentSession
    agent = bot

    async def prepare(self):
        self.talk = await self.runtime.session(self.agent, self.mark)
        self.id = self.talk.id
        await self.talk.send("Hello.", id="hello")

    async def look(self):
        """What was said, and how often a model was asked; not the journal, where a repeated command
        is found twice.
        """
        state, told, *rest = await self.stands(self.id)
        questions = sum(asked.startswith("llm") for asked in told["asked"].values())
        return [
            state,
            questions,
            *rest,
            *await self.said(await self.runtime.session(self.agent, self.mark)),
        ]

    async def said(self, talk: AgentSession) -> list[Any]:
        """What was said, and what turns came to."""
        nodes = [(node.role, extract_text(node.content)) for node in await talk.history()]
        turns = [(turn.input, type(turn.outcome).__name__) for turn in await talk.turns()]
        return [
            self.plain(nodes),
            self.plain(turns),
            await talk.options(),
            len(await talk.frames()),
        ]


class Send(Talk):
    verb_of = "AgentSession.send"

    def verb(self):
        return self.talk.send("Go on.", id="go-on")

    async def look(self):
        """Without the same input in the intake: a call that is repeated during the turn waits
        there, and is completed with it.
        """
        seen = await super().look()
        seen[INTAKE] = [one for one in seen[INTAKE] if one != REPEATED]
        return seen


class SendNameless(Send):
    """What was said without an id cannot be said again."""

    verb_of = "AgentSession.send without an id"
    repeats = False

    def verb(self):
        return self.talk.send("Go on.")


class Stream(Send):
    verb_of = "AgentSession.stream"

    def verb(self):
        return _all(self.talk.stream("Go on.", id="go-on"))


async def _all(events: Any) -> list[Any]:
    return [event async for event in events]


class Compact(Talk):
    verb_of = "AgentSession.compact"

    def verb(self):
        return self.talk.compact(id="it")


class Reset(Talk):
    verb_of = "AgentSession.reset"

    def verb(self):
        return self.talk.reset(id="it")


class ContinueAs(Talk):
    verb_of = "AgentSession.continue_as"

    def verb(self):
        return self.talk.continue_as("other", [{"role": "user", "content": "So far."}], id="it")


class Configure(Talk):
    verb_of = "AgentSession.configure"

    def verb(self):
        return self.talk.configure({"max_tokens": 5}, id="it")


class ChangeTools(Talk):
    verb_of = "AgentSession.change_tools"

    def verb(self):
        return self.talk.change_tools(add=[look_up], id="it")

    async def look(self):
        seen = await super().look()
        talk = await self.runtime.session(bot, self.mark)
        return [*seen, (await talk.tools()).names]


class Execute(Talk):
    """A program of the host calls a tool in the middle."""

    verb_of = "AgentSession.execute"
    agent = coder

    def verb(self):
        return self.talk.execute("lua", PROGRAM, id="it")


class StreamExecution(Execute):
    verb_of = "AgentSession.stream_execution"
    repeats = False

    def verb(self):
        return _all(self.talk.stream_execution("lua", PROGRAM))


class ImportEnvelope(Case):
    verb_of = "Envelopes.import_"

    async def prepare(self):
        self.envelope = EnvelopeSession(
            id=uuid5(NAMESPACE_URL, self.mark), model="", max_turns=0, messages=[user("Hello.")]
        )

    def verb(self):
        return self.runtime.envelopes.import_(self.envelope)

    async def look(self):
        return await self.stands(await self.store.find(str(self.envelope.id)))


class SendAfter(Send):
    """The same call again is the same turn, though the conversation has moved on."""

    verb_of = "AgentSession.send after a node"

    async def prepare(self):
        await super().prepare()
        self.leaf = (await self.talk.view()).leaf

    def verb(self):
        return self.talk.send("Go on.", id="go-on", after=self.leaf)


class Branch(Talk):
    verb_of = "AgentSession.branch"

    def verb(self):
        return self.talk.branch(None)


class Apply(Talk):
    verb_of = "AgentSession.apply"

    async def prepare(self):
        await super().prepare()
        other = await self.runtime.session(bot, f"{self.mark}-other")
        await other.send("Another.", id="another")
        self.state = await other.stored()

    def verb(self):
        return self.talk.apply(self.state, id="it")


class ForkTalk(Talk):
    verb_of = "AgentSession.fork"
    repeats = False

    def verb(self):
        return self.talk.fork(key=f"{self.mark}-fork")

    async def look(self):
        fork = await self.store.find(f"{self.mark}-fork")
        return None if fork is None else await self.stands(fork)


class Enqueue(Talk):
    verb_of = "AgentSession.enqueue"

    def verb(self):
        return self.talk.enqueue("Go on.", key="go-on")


class CommandTalk(Talk):
    verb_of = "AgentSession.command"

    def verb(self):
        return self.talk.command("reset", key="it")


class CancelInput(Talk):
    """Two inputs wait for a moment that never comes."""

    verb_of = "AgentSession.cancel"

    async def prepare(self):
        await super().prepare()
        for key in ("a", "b"):
            await self.talk.enqueue(key, key=key, available_at=self.clock.now() + 1e9)

    def verb(self):
        return self.talk.cancel("a", "b")


class CancelFrom(CancelInput):
    verb_of = "AgentSession.cancel_from"

    def verb(self):
        return self.talk.cancel_from("a")


class Busy(Talk):
    """A conversation in which a turn runs: its model waits."""

    gated = True

    async def prepare(self):
        await super().prepare()
        GATES[self.mark] = self.gate = asyncio.Event()
        self.sending = asyncio.create_task(self.talk.send(f"Slowly {self.mark}.", id="slow"))
        await self.until(self.begun)

    async def begun(self):
        return self.mark in BEGUN

    async def finish(self):
        self.gate.set()
        await self.sending
        self.gated = False
        await self.rest()

    async def clean(self):
        GATES.pop(self.mark, None)
        self.sending.cancel()
        await asyncio.wait([self.sending])


class Steer(Busy):
    verb_of = "AgentSession.steer"

    def verb(self):
        return self.talk.steer("Hurry.", id="hurry")


class EnqueueBusy(Busy):
    verb_of = "AgentSession.enqueue during a turn"

    def verb(self):
        return self.talk.enqueue("Go on.", key="go-on")


class CancelTurn(Busy):
    verb_of = "AgentSession.cancel_turn"

    def verb(self):
        return self.talk.cancel_turn("enough")


class SendBusy(Busy):
    """The turn before ends while this input waits."""

    verb_of = "AgentSession.send during a turn"
    busy = "queue"
    whole = False  # the turn before ends or not

    async def prepare(self):
        await super().prepare()
        self.sending.add_done_callback(lambda task: None)

    def verb(self):
        return self.during()

    async def look(self):
        """Without the intake: the input waits there only if the turn before has not ended yet."""
        seen = await super().look()
        seen[INTAKE] = []
        return seen

    async def during(self):
        asyncio.get_running_loop().call_soon(self.gate.set)
        return await self.talk.send("Go on.", id="go-on", busy=self.busy)


class SendSteer(SendBusy):
    verb_of = "AgentSession.send to steer"
    busy = "steer"


class SendFork(Busy):
    """Neither is there a fork to which nothing was said."""

    verb_of = "AgentSession.send to a fork"
    input_id: str | None = "go-on"

    def verb(self):
        return self.talk.send("Go on.", id=self.input_id, busy="fork")

    async def look(self):
        forks = [one for one in await self.runtime.sessions(limit=1000) if one.origin == self.id]
        talks = [await self.runtime.session(bot, one.session_id) for one in forks]
        return [await self.said(talk) for talk in talks]

    async def rest(self):
        """The turn of the fork is not held up at the gate."""
        await super().rest()
        for one in await self.runtime.sessions(limit=1000):
            while one.origin == self.id and self.runtime.engine.sessions.jobs.get(one.session_id):
                await asyncio.sleep(0)


class SendForkNameless(SendFork):
    verb_of = "AgentSession.send to a fork without an id"
    repeats = False
    input_id = None


def cases(owner: type = Case) -> list[type[Case]]:
    """All of them."""
    found = [owner] if "verb_of" in vars(owner) else []
    return found + [each for part in owner.__subclasses__() for each in cases(part)]
