"""The built-in strategies: programs that get a better answer from a model.

    from everhold.strategies import panel

    everhold.run(panel(task="Tea or coffee?"), llm=model)

`strategy("panel")` has the metadata of one: its use and its cost. Names are loaded when they are
first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from everhold.lazy_exports import make_lazy_exports

if TYPE_CHECKING:
    from everhold.packages.strategies import strategies as strategies
    from everhold.packages.strategies import strategy as strategy
    from everhold.packages.strategies.cot import cot as cot
    from everhold.packages.strategies.cove import cove as cove
    from everhold.packages.strategies.metadata import Strategy as Strategy
    from everhold.packages.strategies.panel import panel as panel
    from everhold.packages.strategies.rank import rank as rank
    from everhold.packages.strategies.reflect import reflect as reflect
    from everhold.packages.strategies.self_consistency import self_consistency as self_consistency
    from everhold.packages.strategies.tree_of_thoughts import tree_of_thoughts as tree_of_thoughts
    from everhold.packages.strategies.ucb import ucb as ucb

_HOMES = {
    "Strategy": "packages.strategies.metadata",
    "cot": "packages.strategies.cot",
    "cove": "packages.strategies.cove",
    "panel": "packages.strategies.panel",
    "rank": "packages.strategies.rank",
    "reflect": "packages.strategies.reflect",
    "self_consistency": "packages.strategies.self_consistency",
    "strategies": "packages.strategies",
    "strategy": "packages.strategies",
    "tree_of_thoughts": "packages.strategies.tree_of_thoughts",
    "ucb": "packages.strategies.ucb",
}

__all__ = sorted(_HOMES)

if not TYPE_CHECKING:
    __getattr__, __dir__ = make_lazy_exports(__name__, _HOMES)
