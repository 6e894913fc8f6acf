"""Who may answer which question: a question for a person is never answered by a model."""

import pytest

from everhold.core.query import (
    FOR_PEOPLE,
    MODEL_KINDS,
    SCRIPTED_KINDS,
    Kind,
    Query,
    refuse_other_kinds,
)
from everhold.errors import NotAllowed


def test_a_model_answers_no_question_for_people() -> None:
    assert FOR_PEOPLE
    for kind in FOR_PEOPLE:
        with pytest.raises(NotAllowed, match=f"q-3, a query of kind {kind}"):
            refuse_other_kinds(MODEL_KINDS, Query(3, "k", kind=kind))
        refuse_other_kinds(
            SCRIPTED_KINDS, Query(3, "k", kind=kind)
        )  # a person wrote the answer down


@pytest.mark.parametrize("kinds", [MODEL_KINDS, SCRIPTED_KINDS])
def test_a_call_is_answered_by_neither(kinds: frozenset[Kind]) -> None:
    refuse_other_kinds(kinds, Query(0, "k", kind=Kind.LLM))
    with pytest.raises(NotAllowed):
        refuse_other_kinds(kinds, Query(0, "k", kind=Kind.CALL))
