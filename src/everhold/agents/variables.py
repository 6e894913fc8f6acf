"""The variables that programs of a session leave to later ones, by language.

Rules
  1. They follow from recorded outcomes: a replay, a fork and a session after a crash have the same.
  2. A turn that changes them records them as a node of the conversation when it settles. To go back
     to an earlier node is to go back to its variables.
  3. Programs that share variables run one after another.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from everhold.core.codec import JSON
from everhold.core.graph import Node, NodeKind


class ProgramVariables:
    """The current variables, and the node of each language that is not recorded yet."""

    def __init__(self) -> None:
        self.enabled = False  # sessions of earlier versions keep none in their recorded turns
        self._current: dict[str, JSON] = {}
        self._changed: dict[str, tuple[Node, JSON]] = {}  # nodes, with the answers they refer to
        self._locks: dict[str, asyncio.Lock] = {}

    def lock(self, language: str) -> asyncio.Lock:
        """Held while a program runs that shares variables."""
        return self._locks.setdefault(language, asyncio.Lock())

    def get(self, language: str) -> JSON:
        return self._current.get(language)

    def set(self, language: str, variables: JSON, q: int, answer: JSON) -> None:
        """Take over the variables of a program that has ended with this answer to query `q`."""
        self._current[language] = variables
        self._changed[language] = (Node("", None, NodeKind.VARIABLES, q=q), {q: answer})

    def reset(self) -> None:
        """Forget all variables."""
        for language in self._current:
            content: JSON = {"language": language, "variables": None}
            self._changed[language] = (Node("", None, NodeKind.VARIABLES, content=content), {})
        self._current = {}

    def restore(self, path: Iterable[Node]) -> None:
        """Take over the variables recorded on a path of the conversation."""
        self._current = {}
        self._changed = {}
        for node in path:
            if node.kind is NodeKind.VARIABLES:
                content: Any = node.content
                self._current[content["language"]] = content.get("variables")

    def take_changed(self) -> list[tuple[Node, Any]]:
        """The nodes to record, each with the answers it refers to."""
        changed = [self._changed[language] for language in sorted(self._changed)]
        self._changed = {}
        return changed
