"""Decides which queries this process answers itself, and in which sessions it may.

Workers do not answer the model questions of a session that is answered from outside, such as by an
MCP host.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from everhold.core.query import MODEL_KINDS, ON_UNAVAILABLE, Kind, Query
from everhold.core.session import OUTSIDE, WORKERS, Birth
from everhold.engine.serving import Serving
from everhold.ports.answerer import FAIL, WAIT, Answerer

#: Refused queries that are remembered. When there are more, all are tried again.
MAX_REFUSED_QUERIES: Final = 10_000


class AnswerPolicy:
    """The answerers of this process, and the sessions that it may answer."""

    def __init__(
        self,
        answerers: Mapping[Kind, Answerer],
        llm: str,
        serving: Serving,
        on_unavailable: str = WAIT,
    ) -> None:
        self._serving = serving
        self._on_unavailable = on_unavailable
        self._llm = llm  # who answers model questions of sessions started here
        # sessions answered from outside that a caller asked this process to move
        self._asked: set[str] = set()
        # queries that an answerer here could not answer
        self._refused: set[tuple[str, int]] = set()
        self.answer_with(answerers)

    def answer_with(self, answerers: Mapping[Kind, Answerer], *, addressed: bool = False) -> None:
        """Use these answerers from now on, by query kind. With `addressed`, also for queries with
        an
        addressee.

        The next move of each session starts to answer its open queries.
        """
        self._answerers = answerers
        self._addressed = addressed
        self._refused.clear()
        #: Whether a model question without addressee or model name is answered here.
        self.answers_plain_llm = self.is_inline(Query(0, ""))

    def answerer(self, kind: Kind) -> Answerer:
        """The answerer of queries of this kind."""
        return self._answerers[kind]

    def is_inline(self, query: Query) -> bool:
        """Whether an answerer of this process takes this query."""
        found = self._answerers.get(query.kind)
        if found is None or (query.to is not None and not self._addressed):
            return False
        # a query that fails is taken, so that its answerer says why it cannot answer
        return found.takes(query) or (self._llm != OUTSIDE and self.fails(query))

    def fails(self, query: Query) -> bool:
        """Whether a model question that cannot be answered here fails instead of waiting.

        The question's own option comes first, then its answerer's, then the runtime's.
        """
        if query.kind not in MODEL_KINDS:
            return False
        found = self._answerers.get(query.kind)
        wanted = (query.options or {}).get(ON_UNAVAILABLE)
        wanted = wanted or (found and found.on_unavailable) or self._on_unavailable
        return wanted == FAIL

    @property
    def model(self) -> Answerer | None:
        """The answerer of model questions, if there is one."""
        return self._answerers.get(Kind.LLM)

    def check_model(self, name: str) -> None:
        """Raise if a model question that names this model would be refused here."""
        found = self.model
        if found is not None:
            found.check_model(name)

    @property
    def answers_models(self) -> bool:
        """Whether this process answers any model questions."""
        return not MODEL_KINDS.isdisjoint(self._answerers)

    def may_answer(self, birth: Birth, query: Query) -> bool:
        """Whether this process is allowed to answer this query of the session."""
        serving = self._serving
        if (
            query.kind not in MODEL_KINDS
            or birth.llm == WORKERS
            or (self._llm == OUTSIDE and not serving.adopts)
        ):
            return True
        if birth.llm == OUTSIDE and not self._answerers[query.kind].takes(query):
            return False  # it would only fail, and the outside may answer it
        return (
            birth.id in self._asked
            or birth.parent in self._asked
            or (not birth.llm and serving.adopts_older)
        )

    def ask(self, birth: Birth) -> None:
        """Allow this process to answer a session, because a caller asked to move it.

        Queries that were refused before are tried again.
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
