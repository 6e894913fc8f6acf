"""What one writes tools and policies with, in one place.

from everhold.tools import Confirm, ToolContext, tool
"""

from everhold.core.tool import Allow, Confirm, Deny, Later, Verdict, Wanted, Window
from everhold.drive.agent.attachment import read_attachment
from everhold.drive.agent.policy import Policy
from everhold.ports.attachment import Attachment
from everhold.ports.tool import Tool, ToolContext, tool

__all__ = [
    "Allow",
    "Attachment",
    "Confirm",
    "Deny",
    "Later",
    "Policy",
    "Tool",
    "ToolContext",
    "Verdict",
    "Wanted",
    "Window",
    "read_attachment",
    "tool",
]
