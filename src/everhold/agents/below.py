"""What the subagents of a conversation wait for: their questions are the questions of the turn that waits for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from everhold.core.query import Kind
from everhold.core.status import OpenQuery, Paused, Status

if TYPE_CHECKING:
    from everhold.agents.session import AgentSession
    from everhold.runtime import Runtime

#: Seconds between two looks at sessions below, which do not tell those above what they ask.
LOOK: Final = 0.25


def asked(status: Status) -> tuple[OpenQuery, ...]:
    """What somebody outside has to answer; an input that may come is not asked for."""
    queries = status.queries if isinstance(status, Paused) else ()
    return tuple(query for query in queries if query.kind is not Kind.SIGNAL)


async def asked_below(runtime: Runtime, session_id: str) -> tuple[OpenQuery, ...]:
    """What somebody outside has to answer before the sessions below this one go on."""
    found: list[OpenQuery] = []
    for child in await runtime.sessions(parent=session_id, state="paused"):
        status = await runtime.status(child.session_id)
        found += asked(status) or await asked_below(runtime, child.session_id)
    return tuple(found)


async def asked_anywhere(session: AgentSession) -> tuple[OpenQuery, ...]:
    """What somebody outside has to answer, this session or one below it, before it goes on."""
    status = await session._runtime.status(session.id)
    found = asked(status)
    if found or not session.agent.subagents or not isinstance(status, Paused):
        return found
    return await asked_below(session._runtime, session.id)
