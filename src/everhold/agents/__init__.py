"""Conversations with agents, for whoever holds them: `runtime.session(agent, id)` gives a
handle.
"""

from everhold.agents.blocking import BlockingSession
from everhold.agents.conversations import Agents
from everhold.agents.event_stream import Rings
from everhold.agents.services import SessionWork
from everhold.agents.session import AgentSession, Turn

__all__ = ["AgentSession", "Agents", "BlockingSession", "Rings", "SessionWork", "Turn"]
