"""The built-in plugins, for `Agent(plugins=[…])`, and `McpServer`, a tool source.

They use only `everhold.hooks`, as your own plugins do. Names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from everhold.lazy_exports import make_lazy_exports

if TYPE_CHECKING:
    from everhold.plugins.approval import Approval as Approval
    from everhold.plugins.budget import Allowance as Allowance
    from everhold.plugins.budget import Price as Price
    from everhold.plugins.compaction import Compaction as Compaction
    from everhold.plugins.mcp import McpServer as McpServer
    from everhold.plugins.output_limit import OutputLimit as OutputLimit
    from everhold.plugins.redaction import Redaction as Redaction

_HOMES = {
    "Allowance": "plugins.budget",
    "Approval": "plugins.approval",
    "Compaction": "plugins.compaction",
    "McpServer": "plugins.mcp",
    "OutputLimit": "plugins.output_limit",
    "Price": "plugins.budget",
    "Redaction": "plugins.redaction",
}

__all__ = sorted(_HOMES)

if not TYPE_CHECKING:
    __getattr__, __dir__ = make_lazy_exports(__name__, _HOMES)
