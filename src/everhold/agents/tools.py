"""What one writes tools and policies with, in one place.

from everhold.agents.tools import Confirm, ToolContext, tool
"""

from everhold.agents.attachment_tool import read_attachment
from everhold.agents.subagents import subagent
from everhold.agents.tool_policy import Policy
from everhold.core.tool import Allow, Confirm, Deny, Later, Verdict, Wanted, Window
from everhold.plugins.mcp import McpServer
from everhold.ports.attachment import Attachment
from everhold.ports.code import CodeExecutor
from everhold.ports.tool import Tool, ToolContext, tool
from everhold.ports.tool_source import ToolSource
from everhold.programs.lua.code_executor import Lua

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
