"""Conversations with agents, for whoever holds them: `runtime.session(agent, id)` gives a
handle.
"""

from everhold.agents.blocking import BlockingSession
from everhold.agents.conversations import Conversations
from everhold.agents.event_stream import LiveBuffers
from everhold.agents.services import RuntimeSessionServices
from everhold.agents.session import AgentSession, Turn

__all__ = [
    "AgentSession",
    "BlockingSession",
    "Conversations",
    "LiveBuffers",
    "RuntimeSessionServices",
    "Turn",
]
