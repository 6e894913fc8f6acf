"""Which queries this process answers by itself, and in which sessions it may.

A model question of a session that is answered from outside, for example by an MCP host, is left
alone by workers.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from everhold.core.query import MODEL_KINDS, Kind, Query
from everhold.core.session import OUTSIDE, WORKERS, Birth
from everhold.engine.serving import Serving
from everhold.ports.answerer import Answerer

#: Queries that are remembered because they could not be answered here; then they are tried again.
MAX_REFUSED_QUERIES: Final = 10_000


class AnswerPolicy:
    def __init__(self, answerers: Mapping[Kind, Answerer], llm: str, serving: Serving) -> None:
        self._serving = serving
        self._llm = llm  # who answers model questions of sessions that are started here
        # sessions that a caller asked this process to move, of those that workers leave alone
        self._asked: set[str] = set()
        # queries that turned out not to be answerable here
        self._refused: set[tuple[str, int]] = set()
        self.answer_with(answerers)

    def answer_with(self, answerers: Mapping[Kind, Answerer], *, addressed: bool = False) -> None:
        """Use these answerers from now on, by the kind of query; with `addressed`, also for queries
        that name an addressee.

        Open queries are adopted by the next move of their session.
        """
        self._answerers = answerers
        self._addressed = addressed
        self._refused.clear()
        #: Whether an ordinary model question is answered here.
        self.answers_plain_llm = self.is_inline(Query(0, ""))

    def answerer(self, kind: Kind) -> Answerer:
        """The answerer of queries of this kind."""
        return self._answerers[kind]

    def is_inline(self, query: Query) -> bool:
        """Whether this process answers such a query itself."""
        found = self._answerers.get(query.kind)
        if found is None or (query.to is not None and not self._addressed):
            return False
        return found.takes(query)

    @property
    def model(self) -> Answerer | None:
        """The answerer of model questions, if there is one."""
        return self._answerers.get(Kind.LLM)

    @property
    def answers_models(self) -> bool:
        """Whether this process answers model questions, if only some of them."""
        return not MODEL_KINDS.isdisjoint(self._answerers)

    def may_answer(self, birth: Birth, query: Query) -> bool:
        """Whether the session lets this process answer such a query."""
        serving = self._serving
        if (
            query.kind not in MODEL_KINDS
            or birth.llm == WORKERS
            or (self._llm == OUTSIDE and not serving.adopts)
        ):
            return True
        return (
            birth.id in self._asked
            or birth.parent in self._asked
            or (not birth.llm and serving.adopts_older)
        )

    def ask(self, birth: Birth) -> None:
        """A caller asked this process to move a session: its models may answer it.

        What they could not answer before is tried again.
        """
        if self._refused:
            self._refused = {what for what in self._refused if what[0] != birth.id}
        if birth.llm != WORKERS:
            self._asked.add(birth.id)

    def refuse(self, session_id: str, q: int) -> None:
        """Remember that a query cannot be answered here."""
        if len(self._refused) >= MAX_REFUSED_QUERIES:
            self._refused.clear()
        self._refused.add((session_id, q))

    def is_refused(self, session_id: str, q: int) -> bool:
        return (session_id, q) in self._refused
