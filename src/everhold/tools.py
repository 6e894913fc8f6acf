"""What one writes tools and policies with, in one place.

from everhold.tools import Confirm, ToolContext, tool
"""

from everhold.core.tool import Allow, Confirm, Deny, Later, Verdict, Wanted, Window
from everhold.drive.agent.attachment import read_attachment
from everhold.drive.agent.policy import Policy
from everhold.drive.agent.subagents import subagent
from everhold.plugins.mcp import McpServer
from everhold.ports.attachment import Attachment
from everhold.ports.code import CodeExecutor
from everhold.ports.source import ToolSource
from everhold.ports.tool import Tool, ToolContext, tool
from everhold.programs.lua.cell import Lua

__all__ = [
    "Allow",
    "Attachment",
    "CodeExecutor",
    "Confirm",
    "Deny",
    "Later",
    "Lua",
    "McpServer",
    "Policy",
    "Tool",
    "ToolContext",
    "ToolSource",
    "Verdict",
    "Wanted",
    "Window",
    "read_attachment",
    "subagent",
    "tool",
]
