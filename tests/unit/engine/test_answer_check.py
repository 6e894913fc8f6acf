"""The door, without a runtime."""

import pytest

from everhold.core.journal import AskedQuery, Delivery, DeliveryNotes
from everhold.core.metrics import Metrics
from everhold.core.query import Kind, Query, QueryAnswer
from everhold.core.session import Head, SessionState
from everhold.core.status import Raised, Returned
from everhold.engine.answer_check import (
    AnswerCheck,
    GivenAnswer,
    list_answerable,
    settle_late_answer,
)
from everhold.errors import (
    AnswerConflict,
    AnswerRefused,
    BadArguments,
    ManyOpenQueries,
    NoOpenQuery,
    NotAllowed,
    QueryClosed,
    SessionEnded,
    UnknownQuery,
)


def ask(q, kind=Kind.LLM, **more):
    return Query(q, f"0:{q}", f"question {q}", kind, **more)


def head(state=SessionState.PAUSED):
    return Head(1, 1, state, 0, 0, None, 0.0, Metrics())


def door(*queries, working=()):
    opened = {query.q: AskedQuery(query, 0, 0.0) for query in queries}
    return AnswerCheck("s-1", head(), opened, dict.fromkeys(working, "w-1"))


def test_the_open_are_taken_and_the_others_are_late():
    """What is not open is decided about elsewhere."""
    taken, late = door(ask(0)).check([GivenAnswer("q-0", "x"), GivenAnswer("q-5", "y")], None)
    assert (taken, late) == ([QueryAnswer(0, "x")], [QueryAnswer(5, "y")])


def test_the_same_twice_in_one_call():
    """Counts once."""
    taken, _ = door(ask(0)).check([GivenAnswer("q-0", "x"), GivenAnswer("q-0", "x")], None)
    assert taken == [QueryAnswer(0, "x")]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([], BadArguments),
        ([GivenAnswer("q-0", "x"), GivenAnswer("q-0", "y")], AnswerConflict),
        ([GivenAnswer("seven", "x")], UnknownQuery),
        ([GivenAnswer("q-0", 7)], AnswerRefused),
        ([GivenAnswer(None, "x")], ManyOpenQueries),
        ([GivenAnswer("q-2", "x")], NotAllowed),
    ],
)
def test_what_is_refused(given, error):
    """Each with its own error."""
    with pytest.raises(error):
        door(ask(0), ask(1), ask(2, Kind.SESSION)).check(given, None)


def test_the_sole_query():
    """One question for somebody outside; a child or a running call does not count."""
    taken, _ = door(ask(0), ask(1, Kind.SESSION), ask(2, Kind.CALL), working=[2]).check(
        [GivenAnswer(None, "x")], None
    )
    assert taken == [QueryAnswer(0, "x")]
    with pytest.raises(NoOpenQuery):
        door(ask(1, Kind.SESSION)).check([GivenAnswer(None, "x")], None)


def test_a_sole_doubtful_effect():
    """It can be decided about without its id."""
    taken, _ = door(ask(0, Kind.CALL)).check([GivenAnswer(None, {"rerun": True})], None)
    assert taken == [QueryAnswer(0, {"rerun": True})]


def test_what_is_listed():
    """Questions for others, and effects in doubt as the question that is put to a person."""
    opened = {
        query.q: AskedQuery(query, 0, 0.0)
        for query in (ask(0), ask(1, Kind.CALL), ask(2, Kind.SESSION))
    }
    listed = list_answerable(opened, {})
    assert [entry.query.q for entry in listed] == [0, 1]
    assert "outcome was not recorded" in listed[1].query.prompt


JOURNAL = [
    Delivery(0, 0.0, [], [ask(0), ask(1), ask(2), ask(3)]),
    Delivery(1, 1.0, [QueryAnswer(0, "x")], [], DeliveryNotes(withdrawn=[1])),
    Delivery(2, 2.0, [QueryAnswer(2, "late", expired=True)]),
]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (QueryAnswer(0, "other"), AnswerConflict),
        (QueryAnswer(1, "x"), QueryClosed),
        (QueryAnswer(2, "late"), QueryClosed),
        (QueryAnswer(9, "x"), UnknownQuery),
    ],
)
def test_late_answers(answer, error):
    """Answered otherwise, withdrawn, expired, never asked."""
    settle_late_answer("s-1", head(), QueryAnswer(0, "x"), JOURNAL)
    with pytest.raises(error):
        settle_late_answer("s-1", head(), answer, JOURNAL)


@pytest.mark.parametrize(
    ("outcome", "error"), [(Raised("no"), SessionEnded), (Returned(1), QueryClosed)]
)
def test_a_query_that_was_open_at_the_end(outcome, error):
    """It takes no answer: the session has failed, or nobody waited for it."""
    end = Delivery(3, 3.0, notes=DeliveryNotes(outcome=outcome))
    with pytest.raises(error):
        settle_late_answer("s-1", head(SessionState.FAILED), QueryAnswer(3, "x"), [*JOURNAL, end])
