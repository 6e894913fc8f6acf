"""Conversations with agents, for whoever holds them: `runtime.session(agent, id)` gives a
handle.
"""

from everhold.agents.conversations import Conversations, find_later_call
from everhold.agents.services import RuntimeSessionServices
from everhold.agents.session import AgentSession, Turn

__all__ = [
    "AgentSession",
    "Conversations",
    "RuntimeSessionServices",
    "Turn",
    "find_later_call",
]
