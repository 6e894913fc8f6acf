"""Agents: programs that hold a conversation, turn by turn."""
