"""Subagents: other agents that a model may give a task to, each in a child session of its own.

    agent = Agent("…", subagents=[subagent(finder, name="finder", description="Finds papers.")])

Rules
  1. A child is a session of the agent at the top, which names the way down to it: whoever finds the
     top agent can go on with every child, and an agent that is only a subagent needs no name of its
     own in its module.
  2. Model, policies and plugins flow down; instructions, tools (also those of plugins), skills and
     subagents do not. A plugin of the name of one above takes its place; policies only become more.
  3. In one turn of the top agent at most `MAX_DELEGATIONS` children are begun in the whole tree, at
     most `MAX_DEPTH` deep.
  4. A child that fails is an error that the model sees. A child ends when the turn that waits for
     it is cancelled.

What the subagents of a conversation wait for: their questions are the questions of the turn that
waits for them.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Final, Self, TypeVar

import msgspec

from everhold.agents.builtin_tools import BuiltinTool, ToolHost
from everhold.agents.loop_state import AgentDefinition
from everhold.agents.tool_calls import inherit_policies
from everhold.core.codec import JSON
from everhold.core.journal import find_open_queries
from everhold.core.query import SENT_BY_NAME, Kind
from everhold.core.session import SessionId, SessionState
from everhold.core.status import OpenQuery, Paused, Status
from everhold.core.tool import Wanted
from everhold.engine.answer_check import list_answerable
from everhold.engine.engine import Engine
from everhold.errors import AnswerFailed, BadArguments, ChildFailed
from everhold.ports.store import SessionFilter

TASK_TOOL: Final = "task"
#: How deep a tree of agents may be, and how many children one turn of its top may begin.
MAX_DEPTH: Final = 5
MAX_DELEGATIONS: Final = 64
#: What a child says that says nothing.
NO_TEXT_RESULT: Final = "(subagent returned no text)"
#: Where the trees are counted.
_COUNTED: Final = "everhold-delegations"
_SCHEMA: Final[dict[str, JSON]] = {
    "type": "object",
    "properties": {
        "agent": {"type": "string", "description": "which agent"},
        "prompt": {
            "type": "string",
            "description": "the task, with everything that the agent has to know",
        },
    },
    "required": ["agent", "prompt"],
    "additionalProperties": False,
}


class Subagent(msgspec.Struct, frozen=True):
    """An agent, as the one above it knows it."""

    agent: Any
    name: str
    description: str = ""


def subagent(agent: AgentDefinition, *, name: str, description: str = "") -> Subagent:
    """An agent that another may give tasks to, under a name and with a description that the model
    is told.
    """
    if not hasattr(agent, "instructions"):
        raise BadArguments("subagent", f"{agent!r} is not an Agent")
    if not name or not name.isprintable() or len(name) > 64:
        raise BadArguments("subagent", f"a name has 1 to 64 printable characters, got {name!r}")
    return Subagent(agent, name, description.strip())


def collect_subagents(given: Sequence[Any]) -> dict[str, Subagent]:
    """Subagents by name: as `subagent` made them, or agents that have a name of their own."""
    found: dict[str, Subagent] = {}
    for one in given:
        made = one if isinstance(one, Subagent) else subagent(one, name=_own_name(one))
        if made.name in found:
            raise BadArguments("subagents", f"there are two of the name {made.name!r}")
        found[made.name] = made
    return found


class TreePosition(msgspec.Struct, frozen=True):
    """Where in a tree of agents a child stands."""

    path: list[str]  # the names on the way down from the top
    tree: str  # the session at the top, and its turn

    @property
    def depth(self) -> int:
        return len(self.path)


def find_descendant(top: AgentDefinition, path: Sequence[str]) -> AgentDefinition:
    """The agent at the end of the way down, with everything that flows down; `AnswerFailed` if it
    is gone.
    """
    found = top
    for name in path:
        known = found.subagents.get(name)
        if known is None:
            raise AnswerFailed(_undeclared(name, found.subagents), "unknown_subagent")
        below: AgentDefinition = copy.copy(known.agent)
        below.model = below.model or found.model
        below.policy = inherit_policies(below.policy, found.policy)
        own = {plugin.name for plugin in below.plugins}
        below.plugins = (
            *(plugin for plugin in found.plugins if plugin.name not in own),
            *below.plugins,
        )
        found = below
    return found


def resolve_agent(top: AgentDefinition, within: dict[str, JSON] | None) -> AgentDefinition:
    """The agent of one session: the top one or one below it, with the tool that reaches those
    below.
    """
    place = None if within is None else msgspec.convert(within, TreePosition)
    agent = top if place is None else find_descendant(top, place.path)
    if not agent.subagents:
        return agent
    found = copy.copy(agent)
    found.tools = (TaskTool(top, agent, place), *agent.tools)
    return found


class TaskTool(BuiltinTool):
    """The tool `task` of one session."""

    def __init__(
        self, top: AgentDefinition, agent: AgentDefinition, within: TreePosition | None
    ) -> None:
        super().__init__(TASK_TOOL, _described(agent.subagents), _SCHEMA)
        self._top = top
        self._known = agent.subagents
        self._within = within
        self._counted: str | None = None  # where the last delegation was counted

    async def held(self, box: ToolHost, wanted: Wanted) -> tuple[int | None, JSON]:
        """Row 31: the child is born with the way down to it, and its effects have keys of its
        own.
        """
        name = str(wanted.input["agent"])
        prompt = str(wanted.input["prompt"])
        if name not in self._known:
            raise AnswerFailed(_undeclared(name, self._known), "unknown_subagent")
        within = await self._below(box, name)
        try:
            q, said = await box.ctx.delegate(
                self._top(task=prompt, within=msgspec.to_builtins(within)),
                title=" ".join(f"{name}: {prompt}".split())[:80],
                source=f"subagent:{name}",
            )
        except ChildFailed as error:
            raise AnswerFailed(
                f"subagent {name!r} {error.state}: {error.error}", error.code
            ) from None
        finally:
            box.spend(f"subagent:{name}", box.ctx.cost)
        return (None, NO_TEXT_RESULT) if said in ("", None) else (q, said)

    async def _below(self, box: ToolHost, name: str) -> TreePosition:
        """Where the child will stand, if it may be begun: first the count, then the depth, which
        gives it back.
        """
        above = self._within or TreePosition([], f"{box.ctx.session_id}/{box.turn}")
        depth, most = _agreed(box)
        kept = box.ctx.state(_COUNTED)
        if self._within is None and self._counted not in (None, above.tree):
            await kept.delete(str(self._counted))  # of a turn that has settled
        self._counted = above.tree
        if await kept.incr(above.tree) > most:
            await kept.incr(above.tree, -1)
            raise AnswerFailed(
                f"delegation budget exhausted ({most} delegations)", "delegation_budget"
            )
        if above.depth >= depth:
            await kept.incr(above.tree, -1)
            words = f"delegation depth exceeded (depth {above.depth} >= max_depth {depth})"
            raise AnswerFailed(words, "delegation_depth")
        return TreePosition([*above.path, name], above.tree)


def _agreed(box: ToolHost) -> list[int]:
    """The limits, as they were when this was first decided."""
    found: list[int] = box.ctx.fact("subagents", [MAX_DEPTH, MAX_DELEGATIONS], [5, 64])
    return found


def _described(known: dict[str, Subagent]) -> str:
    lines = [f"- {one.name}: {one.description or '(no description)'}" for one in known.values()]
    listed = "\n".join(lines) or "(none)"
    return (
        "Give a task to another agent, and receive what it came to. It knows only what you"
        f" tell it.\n{listed}"
    )


def _undeclared(name: str, known: dict[str, Subagent]) -> str:
    return f'subagent not declared: "{name}" (known: {", ".join(known) or "none"})'


def _own_name(one: Any) -> str:
    name = getattr(one, "_name", None)
    if name is None:
        raise BadArguments(
            "subagents", "an agent without a name needs one: subagent(agent, name=…)"
        )
    return str(name)


T = TypeVar("T")

#: Seconds after which sessions below are looked at though nobody told of a change: another process
#: may have moved them.
CHILD_POLL_SECONDS: Final = 5.0


class ChangeWaiter:
    """Waits until one of the sessions that it watches may have changed. Watch first, then look:
    nothing is missed.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stack = ExitStack()
        self._futures: list[asyncio.Future[None]] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def watch(self, session_id: str) -> None:
        self._futures.append(self._stack.enter_context(self._engine.sessions.watched(session_id)))

    async def wait(self, timeout: float | None) -> None:
        await asyncio.wait(self._futures, timeout=timeout, return_when=asyncio.FIRST_COMPLETED)


def select_open_questions(status: Status) -> tuple[OpenQuery, ...]:
    """What somebody outside has to answer; an input that may come is not asked for."""
    queries = status.queries if isinstance(status, Paused) else ()
    return tuple(query for query in queries if query.kind not in SENT_BY_NAME)


def is_worked_on_here(engine: Engine, session_id: str, revision: int | None = None) -> bool:
    """Whether this process works on all that a session waits for; being told something is not
    waited for.

    With a revision: and whether the session stands there, as far as it is known here.
    """
    live = engine.sessions.cached(session_id)
    jobs = engine.sessions.jobs.get(session_id)
    if live is None or not jobs or (revision is not None and live.head.revision != revision):
        return False
    return all(q in jobs or entry.query.kind in SENT_BY_NAME for q, entry in live.opened.items())


async def find_questions_below(
    engine: Engine, session_id: str, watch: Callable[[str], Any] = lambda child: None
) -> tuple[OpenQuery, ...]:
    """What somebody outside has to answer before the sessions below this one go on; each of them is
    watched.
    """
    found: list[OpenQuery] = []
    wanted = SessionFilter(
        parent=SessionId(session_id), state=(SessionState.RUNNING, SessionState.PAUSED)
    )
    # who is waited for
    for child in [row.birth for row in await engine.store.list(wanted) if not row.birth.wakes]:
        watch(child.id)
        status = await engine.status(child.id)
        found += select_open_questions(status) or await find_questions_below(
            engine, child.id, watch
        )
    return tuple(found)


async def find_all_questions(engine: Engine, session_id: str) -> tuple[OpenQuery, ...]:
    """What somebody outside has to answer, this session or one below it, before it goes on."""
    record = await engine.store.load(session_id, since=-1)
    # and not handed over yet
    taken = {letter.body["q"] for letter in record.letters if letter.kind == "answer"}
    opened = {
        q: entry for q, entry in find_open_queries(record.deliveries).items() if q not in taken
    }
    working = {effect.q: effect.worker for effect in record.effects}
    found = [
        OpenQuery(record.birth.id, one.query, one.at) for one in list_answerable(opened, working)
    ]
    found = [query for query in found if query.kind not in SENT_BY_NAME]
    if found or not any(entry.query.kind is Kind.SESSION for entry in opened.values()):
        return tuple(found)
    return await find_questions_below(engine, session_id)


async def stream_until_question(
    engine: Engine, session_id: str, events: AsyncGenerator[T, None]
) -> AsyncGenerator[T, None]:
    """Events, until a session below waits for somebody outside: then nothing more happens before
    they answer.
    """
    below: asyncio.Future[Any] = asyncio.ensure_future(_waits_below(engine, session_id))
    working = [below]
    try:
        while True:
            following: asyncio.Future[T] = asyncio.ensure_future(_next(events))
            working = [below, following]
            await asyncio.wait(working, return_when=asyncio.FIRST_COMPLETED)
            if not following.done():
                return
            yield following.result()
    except StopAsyncIteration:
        return
    finally:
        for task in working:
            task.cancel()
        try:
            await asyncio.gather(*working, return_exceptions=True)
        finally:
            with suppress(RuntimeError):  # it still runs, if the caller was cancelled twice
                await events.aclose()


async def _next(events: AsyncIterator[T]) -> T:
    return await anext(events)


async def _waits_below(engine: Engine, session_id: str) -> None:
    """Return as soon as somebody outside has to answer before the sessions below go on."""
    while True:
        with ChangeWaiter(engine) as changes:
            changes.watch(session_id)
            if await find_questions_below(engine, session_id, changes.watch):
                return
            await changes.wait(CHILD_POLL_SECONDS)
