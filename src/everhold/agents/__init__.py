"""Conversations with agents, for whoever holds them: `runtime.session(agent, id)` gives a handle."""

from everhold.agents.blocking import BlockingSession
from everhold.agents.events import Rings
from everhold.agents.house import Agents
from everhold.agents.session import AgentSession, Turn
from everhold.agents.work import SessionWork

__all__ = ["AgentSession", "Agents", "BlockingSession", "Rings", "SessionWork", "Turn"]
