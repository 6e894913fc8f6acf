"""Subagents: agents that a model may give tasks to, each in a child session; and the open questions
of child sessions.

    agent = Agent("…", subagents=[subagent(finder, name="finder", description="Finds papers.")])

Rules
  1. A child is a session of the top agent, with the path to the subagent in its arguments: a
     process that loads the top agent can resume every child. A subagent needs no variable.
  2. Model, policies and plugins are inherited; instructions, tools (also those of plugins), skills
     and subagents are not. A plugin replaces an inherited one of the same name; policies only add
     up.
  3. One turn of the top agent starts at most `MAX_DELEGATIONS` children in the whole tree, at most
     `MAX_DEPTH` deep.
  4. If a child fails, the model sees an error. If the waiting turn is cancelled, its children are
     cancelled.

The open questions of a child are also open questions of the turn that waits for the child.
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
from everhold.ports.process_environment import (
    ProcessEnvironment,
    inherit_environment,
    merge_environment,
    parse_environment,
)
from everhold.ports.store import SessionFilter

TASK_TOOL: Final = "task"
#: Depth of a tree of agents, and children that one turn of its top may start.
MAX_DEPTH: Final = 5
MAX_DELEGATIONS: Final = 64
#: The result of a child without text.
NO_TEXT_RESULT: Final = "(subagent returned no text)"
#: The namespace that counts the children of each tree.
_COUNTED: Final = "everhold-delegations"
_SCHEMA: Final[dict[str, JSON]] = {
    "type": "object",
    "properties": {
        "agent": {"type": "string", "description": "the name of the agent"},
        "prompt": {
            "type": "string",
            "description": "the task, with everything that the agent needs to know",
        },
    },
    "required": ["agent", "prompt"],
    "additionalProperties": False,
}


class Subagent(msgspec.Struct, frozen=True):
    """An agent with the name and description that its parent uses."""

    agent: Any
    name: str
    description: str = ""


def subagent(agent: AgentDefinition, *, name: str, description: str = "") -> Subagent:
    """Wrap an agent as a subagent. The parent's model sees the name and the description."""
    if not hasattr(agent, "instructions"):
        raise BadArguments("subagent", f"{agent!r} is not an Agent")
    if not name or not name.isprintable() or len(name) > 64:
        raise BadArguments(
            "subagent", f"a name must have 1 to 64 printable characters, got {name!r}"
        )
    return Subagent(agent, name, description.strip())


def collect_subagents(given: Sequence[Any]) -> dict[str, Subagent]:
    """Subagents by name, from `subagent` or from agents with a name of their own."""
    found: dict[str, Subagent] = {}
    for one in given:
        made = one if isinstance(one, Subagent) else subagent(one, name=_own_name(one))
        if made.name in found:
            raise BadArguments("subagents", f"two subagents have the name {made.name!r}")
        found[made.name] = made
    return found


class TreePosition(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position of a child in a tree of agents."""

    path: list[str]  # the names from the top down
    tree: str  # the session at the top, and its turn
    # what options of the sessions above have set for processes, by their depth
    environment: dict[str, JSON] = {}
    between: list[str] = []  # the sessions below the top and above the child

    def list_above(self, parent: str) -> list[str]:
        """The sessions above the child, which is started by `parent`."""
        return list(dict.fromkeys((self.tree.rpartition("/")[0], *self.between, parent)))

    @property
    def depth(self) -> int:
        return len(self.path)


def find_descendant(top: AgentDefinition, path: Sequence[str]) -> AgentDefinition:
    """The agent at the end of the path, with everything it inherits; raises `AnswerFailed` if it is
    gone.
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


def find_place(within: dict[str, JSON] | None) -> TreePosition | None:
    """The position of a session in a tree of agents; None at the top."""
    return None if within is None else msgspec.convert(within, TreePosition)


def resolve_agent(top: AgentDefinition, within: dict[str, JSON] | None) -> AgentDefinition:
    """The agent of one session: the top one or a descendant, with the tool that calls its
    subagents.
    """
    place = find_place(within)
    agent = top if place is None else find_descendant(top, place.path)
    if place is not None and place.path:  # so that it is a copy
        agent.environment = _inherited_environment(top, place)
    if not agent.subagents:
        return agent
    found = copy.copy(agent)
    found.tools = (TaskTool(top, agent, place), *agent.tools)
    return found


def _inherited_environment(top: AgentDefinition, place: TreePosition) -> ProcessEnvironment:
    """The environment of a child: agent by agent, each with the options of its session."""
    agent = top
    found = merge_environment(top.environment, parse_environment(place.environment.get("0")))
    for depth, name in enumerate(place.path, 1):
        agent = agent.subagents[name].agent
        found = inherit_environment(found, agent.environment)
        found = merge_environment(found, parse_environment(place.environment.get(str(depth))))
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
        self._counted: str | None = None  # the tree of the last delegation

    async def held(self, box: ToolHost, wanted: Wanted) -> tuple[int | None, JSON]:
        """Row 31: the child starts with the path to it, and its effects have their own keys."""
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
        """The position of the new child, if it may start.

        The count is checked before the depth; a child that is too deep is subtracted from the count
        again.
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
                f"delegation budget exhausted: this tree has used {most}", "delegation_budget"
            )
        if above.depth >= depth:
            await kept.incr(above.tree, -1)
            words = f"delegation depth exceeded: it is {above.depth} here, and max_depth is {depth}"
            raise AnswerFailed(words, "delegation_depth")
        given = box.given_environment()
        environment = {**above.environment, **({str(above.depth): given} if given else {})}
        between = above.between if self._within is None else [*above.between, box.ctx.session_id]
        return TreePosition([*above.path, name], above.tree, environment, between)


def _agreed(box: ToolHost) -> list[int]:
    """The limits, as recorded when they were first used."""
    found: list[int] = box.ctx.fact("subagents", [MAX_DEPTH, MAX_DELEGATIONS], [5, 64])
    return found


def _described(known: dict[str, Subagent]) -> str:
    lines = [f"- {one.name}: {one.description or '(no description)'}" for one in known.values()]
    listed = "\n".join(lines) or "(none)"
    return (
        "Give a task to another agent and get its result. The agent knows only what the prompt"
        f" says.\n{listed}"
    )


def _undeclared(name: str, known: dict[str, Subagent]) -> str:
    return f'subagent not declared: "{name}"; declared are {", ".join(known) or "none"}'


def _own_name(one: Any) -> str:
    name = getattr(one, "_name", None)
    if name is None:
        raise BadArguments(
            "subagents", "this agent has no name; give it one: subagent(agent, name=…)"
        )
    return str(name)


T = TypeVar("T")

#: Seconds between two reads of child sessions without a notification: another process may move
#: them.
CHILD_POLL_SECONDS: Final = 5.0


class ChangeWaiter:
    """Waits until one of the watched sessions may have changed. Watch before you read: then no
    change is missed.
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
    """The open questions of a session. Inputs and signals are not questions."""
    return status.queries if isinstance(status, Paused) else ()


def is_worked_on_here(engine: Engine, session_id: str, revision: int | None = None) -> bool:
    """Whether this process works on everything that a session waits for, inputs and signals
    aside.

    With `revision`, also whether the session is at that revision in this process.
    """
    live = engine.sessions.cached(session_id)
    jobs = engine.sessions.jobs.get(session_id)
    if live is None or not jobs or (revision is not None and live.head.revision != revision):
        return False
    return all(q in jobs or entry.query.kind in SENT_BY_NAME for q, entry in live.opened.items())


async def find_questions_below(
    engine: Engine, session_id: str, watch: Callable[[str], Any] = lambda child: None
) -> tuple[OpenQuery, ...]:
    """Open questions of the child sessions, at any depth. Each child is watched."""
    found: list[OpenQuery] = []
    wanted = SessionFilter(
        parent=SessionId(session_id), state=(SessionState.RUNNING, SessionState.PAUSED)
    )
    # background processes (`wakes`) are not waited for
    for child in [row.birth for row in await engine.store.list(wanted) if not row.birth.wakes]:
        watch(child.id)
        status = await engine.status(child.id)
        found += select_open_questions(status) or await find_questions_below(
            engine, child.id, watch
        )
    return tuple(found)


async def find_all_questions(engine: Engine, session_id: str) -> tuple[OpenQuery, ...]:
    """Open questions of this session, or else of its child sessions."""
    record = await engine.store.load(session_id, since=-1)
    # answers that are stored and not delivered yet
    taken = {letter.body["q"] for letter in record.letters if letter.kind == "answer"}
    opened = {
        q: entry for q, entry in find_open_queries(record.deliveries).items() if q not in taken
    }
    working = {effect.q: effect.worker for effect in record.effects}
    found = [
        OpenQuery(record.birth.id, one.query, one.at, record.head.blocked(one.query.q))
        for one in list_answerable(opened, working)
    ]
    if found or not any(entry.query.kind is Kind.SESSION for entry in opened.values()):
        return tuple(found)
    return await find_questions_below(engine, session_id)


async def stream_until_question(
    engine: Engine, session_id: str, events: AsyncGenerator[T, None]
) -> AsyncGenerator[T, None]:
    """Yield events until a child session waits for an answer from outside."""
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
            with suppress(
                RuntimeError
            ):  # the generator still runs if the caller was cancelled twice
                await events.aclose()


async def _next(events: AsyncIterator[T]) -> T:
    return await anext(events)


async def _waits_below(engine: Engine, session_id: str) -> None:
    """Return as soon as a child session waits for an answer from outside."""
    while True:
        with ChangeWaiter(engine) as changes:
            changes.watch(session_id)
            if await find_questions_below(engine, session_id, changes.watch):
                return
            await changes.wait(CHILD_POLL_SECONDS)
