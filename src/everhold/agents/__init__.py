"""Agents and their conversations: what you build an agent from, and what its sessions give back.

    Agent, subagent, Lua, McpServer     an agent, and what it may use
    tool, ToolContext, Policy, …        tools, and what decides whether a call may run
    AgentSession, Turn, Event, …        a conversation: `runtime.session(agent, id)` gives a handle
    Stored, ReadView, Snapshot          a conversation as data
    Message, user, assistant, …         messages, and what they are made of

Names are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from everhold.lazy_exports import make_lazy_exports

if TYPE_CHECKING:
    from everhold.agents.agent import Agent as Agent
    from everhold.agents.builtin_tools import read_attachment as read_attachment
    from everhold.agents.conversation_handle import ConversationHandle as ConversationHandle
    from everhold.agents.conversation_reader import NodeRef as NodeRef
    from everhold.agents.conversation_reader import ReadView as ReadView
    from everhold.agents.conversation_reader import Snapshot as Snapshot
    from everhold.agents.conversation_reader import Stored as Stored
    from everhold.agents.envelopes import EnvelopeExport as EnvelopeExport
    from everhold.agents.envelopes import EnvelopeImport as EnvelopeImport
    from everhold.agents.envelopes import InvalidEnvelope as InvalidEnvelope
    from everhold.agents.envelopes import fluers as fluers
    from everhold.agents.events import Event as Event
    from everhold.agents.events import EventKind as EventKind
    from everhold.agents.inputs import InputStage as InputStage
    from everhold.agents.inputs import InputStatus as InputStatus
    from everhold.agents.plugin_operations import OperationInfo as OperationInfo
    from everhold.agents.plugin_operations import PluginHandle as PluginHandle
    from everhold.agents.session import AgentSession as AgentSession
    from everhold.agents.session import InputContent as InputContent
    from everhold.agents.session import Turn as Turn
    from everhold.agents.subagents import Subagent as Subagent
    from everhold.agents.subagents import subagent as subagent
    from everhold.agents.tool_calls import Policy as Policy
    from everhold.agents.tool_selection import ToolAccess as ToolAccess
    from everhold.agents.tool_view import ToolInfo as ToolInfo
    from everhold.agents.tool_view import ToolSourceInfo as ToolSourceInfo
    from everhold.agents.tool_view import ToolState as ToolState
    from everhold.agents.tool_view import ToolsView as ToolsView
    from everhold.core.graph import Frame as Frame
    from everhold.core.graph import Node as Node
    from everhold.core.graph import NodeKind as NodeKind
    from everhold.core.graph import extract_text as extract_text
    from everhold.core.intake import CancelOutcome as CancelOutcome
    from everhold.core.intake import IntakeItem as IntakeItem
    from everhold.core.intake import ItemCancellation as ItemCancellation
    from everhold.core.intake import Receipt as Receipt
    from everhold.core.ledger import Ledger as Ledger
    from everhold.core.message import Block as Block
    from everhold.core.message import Image as Image
    from everhold.core.message import ImageData as ImageData
    from everhold.core.message import Message as Message
    from everhold.core.message import Role as Role
    from everhold.core.message import Text as Text
    from everhold.core.message import ToolResult as ToolResult
    from everhold.core.message import ToolUse as ToolUse
    from everhold.core.message import assistant as assistant
    from everhold.core.message import system as system
    from everhold.core.message import user as user
    from everhold.core.tool import Allow as Allow
    from everhold.core.tool import Confirm as Confirm
    from everhold.core.tool import Deny as Deny
    from everhold.core.tool import Later as Later
    from everhold.core.tool import Verdict as Verdict
    from everhold.core.tool import Wanted as Wanted
    from everhold.core.tool import Window as Window
    from everhold.core.turn import CodeExecuted as CodeExecuted
    from everhold.core.turn import EventOutcome as EventOutcome
    from everhold.core.turn import FrameOpened as FrameOpened
    from everhold.core.turn import HandoverOutcome as HandoverOutcome
    from everhold.core.turn import MaxTurnsReached as MaxTurnsReached
    from everhold.core.turn import OperationDone as OperationDone
    from everhold.core.turn import OptionsConfigured as OptionsConfigured
    from everhold.core.turn import SettledTurn as SettledTurn
    from everhold.core.turn import StateApplied as StateApplied
    from everhold.core.turn import ToolsChanged as ToolsChanged
    from everhold.core.turn import ToolsRefreshed as ToolsRefreshed
    from everhold.core.turn import TurnAborted as TurnAborted
    from everhold.core.turn import TurnAnswered as TurnAnswered
    from everhold.core.turn import TurnCancelled as TurnCancelled
    from everhold.core.turn import TurnFailed as TurnFailed
    from everhold.core.turn import TurnOutcome as TurnOutcome
    from everhold.plugins.mcp import McpServer as McpServer
    from everhold.ports.attachment import Attachment as Attachment
    from everhold.ports.code import CodeEnded as CodeEnded
    from everhold.ports.code import CodeExecutor as CodeExecutor
    from everhold.ports.code import CodePaused as CodePaused
    from everhold.ports.code import CodeRequest as CodeRequest
    from everhold.ports.code import CodeRunResult as CodeRunResult
    from everhold.ports.code import CodeToolCall as CodeToolCall
    from everhold.ports.code import CodeToolResult as CodeToolResult
    from everhold.ports.code import VariableKeeper as VariableKeeper
    from everhold.ports.process_environment import ProcessEnvironment as ProcessEnvironment
    from everhold.ports.process_environment import ProcessResult as ProcessResult
    from everhold.ports.tool import OfferedTool as OfferedTool
    from everhold.ports.tool import Tool as Tool
    from everhold.ports.tool import ToolContext as ToolContext
    from everhold.ports.tool import ToolSource as ToolSource
    from everhold.ports.tool import tool as tool
    from everhold.programs.lua.code_executor import Lua as Lua

_HOMES = {
    "Agent": "agents.agent",
    "AgentSession": "agents.session",
    "Allow": "core.tool",
    "Attachment": "ports.attachment",
    "Block": "core.message",
    "CancelOutcome": "core.intake",
    "CodeEnded": "ports.code",
    "CodeExecuted": "core.turn",
    "CodeExecutor": "ports.code",
    "CodePaused": "ports.code",
    "CodeRequest": "ports.code",
    "CodeRunResult": "ports.code",
    "CodeToolCall": "ports.code",
    "CodeToolResult": "ports.code",
    "Confirm": "core.tool",
    "Deny": "core.tool",
    "ConversationHandle": "agents.conversation_handle",
    "EnvelopeExport": "agents.envelopes",
    "EnvelopeImport": "agents.envelopes",
    "Event": "agents.events",
    "EventKind": "agents.events",
    "EventOutcome": "core.turn",
    "Frame": "core.graph",
    "FrameOpened": "core.turn",
    "HandoverOutcome": "core.turn",
    "Image": "core.message",
    "ImageData": "core.message",
    "InputContent": "agents.session",
    "InvalidEnvelope": "agents.envelopes",
    "InputStage": "agents.inputs",
    "InputStatus": "agents.inputs",
    "IntakeItem": "core.intake",
    "ItemCancellation": "core.intake",
    "Later": "core.tool",
    "Ledger": "core.ledger",
    "Lua": "programs.lua.code_executor",
    "MaxTurnsReached": "core.turn",
    "McpServer": "plugins.mcp",
    "Message": "core.message",
    "Node": "core.graph",
    "NodeKind": "core.graph",
    "NodeRef": "agents.conversation_reader",
    "OfferedTool": "ports.tool",
    "OperationDone": "core.turn",
    "OperationInfo": "agents.plugin_operations",
    "OptionsConfigured": "core.turn",
    "PluginHandle": "agents.plugin_operations",
    "Policy": "agents.tool_calls",
    "ProcessEnvironment": "ports.process_environment",
    "ProcessResult": "ports.process_environment",
    "ReadView": "agents.conversation_reader",
    "Receipt": "core.intake",
    "Role": "core.message",
    "SettledTurn": "core.turn",
    "Snapshot": "agents.conversation_reader",
    "StateApplied": "core.turn",
    "Stored": "agents.conversation_reader",
    "Subagent": "agents.subagents",
    "Text": "core.message",
    "Tool": "ports.tool",
    "ToolAccess": "agents.tool_selection",
    "ToolContext": "ports.tool",
    "ToolInfo": "agents.tool_view",
    "ToolResult": "core.message",
    "ToolSource": "ports.tool",
    "ToolSourceInfo": "agents.tool_view",
    "ToolState": "agents.tool_view",
    "ToolUse": "core.message",
    "ToolsChanged": "core.turn",
    "ToolsRefreshed": "core.turn",
    "ToolsView": "agents.tool_view",
    "Turn": "agents.session",
    "TurnAborted": "core.turn",
    "TurnAnswered": "core.turn",
    "TurnCancelled": "core.turn",
    "TurnFailed": "core.turn",
    "TurnOutcome": "core.turn",
    "VariableKeeper": "ports.code",
    "Verdict": "core.tool",
    "Wanted": "core.tool",
    "Window": "core.tool",
    "assistant": "core.message",
    "fluers": "agents.envelopes",
    "extract_text": "core.graph",
    "read_attachment": "agents.builtin_tools",
    "subagent": "agents.subagents",
    "system": "core.message",
    "tool": "ports.tool",
    "user": "core.message",
}

__all__ = sorted(_HOMES)

if not TYPE_CHECKING:
    __getattr__, __dir__ = make_lazy_exports(__name__, _HOMES)
