"""The part of `Runtime` that holds conversations."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from everhold.agents.session import AgentSession
from everhold.archive import Archive
from everhold.core.codec import JSON
from everhold.core.errors import BadArguments
from everhold.drive.agent.agent import Agent
from everhold.drive.agent.life import INPUT

if TYPE_CHECKING:
    from everhold.runtime import Runtime


class Agents(Archive):
    """The part of `Runtime` that holds conversations."""

    async def session(self, agent: Agent, id: str) -> AgentSession:
        """The conversation of this id with an agent; one that was not begun yet begins."""
        if not isinstance(agent, Agent):
            raise BadArguments("session", f"{agent!r} is not an Agent; programs are begun with start()")
        runtime = cast("Runtime", self)
        status = await runtime.start(agent(), key=id, wait=0)
        return AgentSession(runtime, agent, status.session_id)

    async def _say(self: Any, session_id: str, said: dict[str, JSON]) -> None:
        """Tell a conversation something; it is kept until its program hears it."""
        await self._runner.signal(session_id, INPUT, said)

    async def _changed(self: Any, session_id: str, timeout: float | None) -> None:
        """Wait until a session may have changed."""
        await self._sessions.next_change(session_id, timeout)
