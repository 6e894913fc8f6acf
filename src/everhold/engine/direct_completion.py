"""Who answers direct completions: the same answerer that answers a session's questions to a
model.
"""

from __future__ import annotations

from collections.abc import Callable

from everhold.core.codec import JSON
from everhold.core.graph import extract_text
from everhold.core.ledger import Ledger
from everhold.core.query import Query, QueryAnswer
from everhold.errors import AnswerFailed, EverholdError, ProviderUnconfigured
from everhold.ports.answerer import Answerer


class DirectCompletions:
    """Completions of one effect, and what they have cost."""

    def __init__(
        self,
        session_id: str,
        answerer: Answerer | None,
        answered: Callable[[Query, object], QueryAnswer],
    ) -> None:
        self._session_id = session_id
        self._answerer = answerer
        self._answered = answered
        self.spent = Ledger()

    async def complete(self, query: Query) -> JSON:
        if self._answerer is None:
            raise AnswerFailed(
                "no model is configured that could be asked", ProviderUnconfigured.code
            )
        try:
            answer = self._answered(query, await self._answerer.answer(query, self._session_id))
        except AnswerFailed:
            raise
        # some mean that the query stays open, which a part of an effect cannot
        except EverholdError as error:
            raise AnswerFailed(str(error), error.code) from None
        self.spent.add("", answer.usage)
        if answer.error is not None:
            raise AnswerFailed(answer.error["message"], answer.error["code"])
        return (
            answer.value
            if query.schema is not None or isinstance(answer.value, str)
            else extract_text(answer.value)
        )
