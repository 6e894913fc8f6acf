"""Effects whose outcome nobody knows."""

import pytest

from everhold.core.query import Kind, Query, QueryAnswer, Rerun
from everhold.core.schema import validate_value
from everhold.engine import unknown_effects


@pytest.mark.parametrize(
    ("kind", "rerun", "doubtful"),
    [
        (Kind.CALL, Rerun.SAFE, False),
        (Kind.CALL, Rerun.NEVER, True),
        (Kind.CALL, Rerun.ASK, True),
        (Kind.LLM, Rerun.SAFE, False),
    ],
)
def test_what_may_not_simply_be_run_again(kind, rerun, doubtful):
    """A call, unless it says that it is safe."""
    assert unknown_effects.is_unsafe_to_rerun(Query(0, "0:0", kind=kind, rerun=rerun)) is doubtful


def test_the_question_to_a_person():
    """It names the function and takes one of three answers; the query stays what it was."""
    query = Query(3, "0:3", kind=Kind.CALL, name="m:send")
    question = unknown_effects.make_rerun_question(query)
    assert question.prompt.startswith("m:send was started")
    assert (question.q, question.key, question.kind) == (3, "0:3", Kind.CALL)
    for answer in ({"rerun": True}, {"result": None}, {"error": "no"}):
        validate_value(answer, question.schema)


@pytest.mark.parametrize(
    ("said", "value", "error"),
    [
        ({"result": [1]}, [1], None),
        ({"error": "no"}, None, {"code": "error", "message": "no"}),
        ("words", "words", None),
    ],
)
def test_what_a_person_said_is_the_outcome(said, value, error):
    """A result is a value, an error is an error."""
    outcome = unknown_effects.apply_rerun_decision(QueryAnswer(0, said))
    assert (outcome.value, outcome.error) == (value, error)


def test_what_the_program_is_told():
    """The code of OutcomeUnknown and the name of the function."""
    told = unknown_effects.make_unknown_answer(Query(0, "0:0", kind=Kind.CALL, name="m:send"))
    assert told.error == {"code": "outcome_unknown", "message": "m:send"}
