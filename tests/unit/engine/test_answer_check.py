"""The door, without a runtime."""

import pytest

from everhold.core.journal import Delivery, Notes, Opened
from everhold.core.metrics import Metrics
from everhold.core.query import Answer, Kind, Query
from everhold.core.session import Head, State
from everhold.core.status import Raised, Returned
from everhold.engine.answer_check import Door, Given, answerable, settle
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


def head(state=State.PAUSED):
    return Head(1, 1, state, 0, 0, None, 0.0, Metrics())


def door(*queries, working=()):
    opened = {query.q: Opened(query, 0, 0.0) for query in queries}
    return Door("s-1", head(), opened, dict.fromkeys(working, "w-1"))


def test_the_open_are_taken_and_the_others_are_late():
    """What is not open is decided about elsewhere."""
    taken, late = door(ask(0)).check([Given("q-0", "x"), Given("q-5", "y")], None)
    assert (taken, late) == ([Answer(0, "x")], [Answer(5, "y")])


def test_the_same_twice_in_one_call():
    """Counts once."""
    taken, _ = door(ask(0)).check([Given("q-0", "x"), Given("q-0", "x")], None)
    assert taken == [Answer(0, "x")]


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ([], BadArguments),
        ([Given("q-0", "x"), Given("q-0", "y")], AnswerConflict),
        ([Given("seven", "x")], UnknownQuery),
        ([Given("q-0", 7)], AnswerRefused),
        ([Given(None, "x")], ManyOpenQueries),
        ([Given("q-2", "x")], NotAllowed),
    ],
)
def test_what_is_refused(given, error):
    """Each with its own error."""
    with pytest.raises(error):
        door(ask(0), ask(1), ask(2, Kind.SESSION)).check(given, None)


def test_the_sole_query():
    """One question for somebody outside; a child or a running call does not count."""
    taken, _ = door(ask(0), ask(1, Kind.SESSION), ask(2, Kind.CALL), working=[2]).check(
        [Given(None, "x")], None
    )
    assert taken == [Answer(0, "x")]
    with pytest.raises(NoOpenQuery):
        door(ask(1, Kind.SESSION)).check([Given(None, "x")], None)


def test_a_sole_doubtful_effect():
    """It can be decided about without its id."""
    taken, _ = door(ask(0, Kind.CALL)).check([Given(None, {"rerun": True})], None)
    assert taken == [Answer(0, {"rerun": True})]


def test_what_is_listed():
    """Questions for others, and effects in doubt as the question that is put to a person."""
    opened = {
        query.q: Opened(query, 0, 0.0)
        for query in (ask(0), ask(1, Kind.CALL), ask(2, Kind.SESSION))
    }
    listed = answerable(opened, {})
    assert [entry.query.q for entry in listed] == [0, 1]
    assert "outcome was not recorded" in listed[1].query.prompt


JOURNAL = [
    Delivery(0, 0.0, [], [ask(0), ask(1), ask(2), ask(3)]),
    Delivery(1, 1.0, [Answer(0, "x")], [], Notes(withdrawn=[1])),
    Delivery(2, 2.0, [Answer(2, "late", expired=True)]),
]


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (Answer(0, "other"), AnswerConflict),
        (Answer(1, "x"), QueryClosed),
        (Answer(2, "late"), QueryClosed),
        (Answer(9, "x"), UnknownQuery),
    ],
)
def test_late_answers(answer, error):
    """Answered otherwise, withdrawn, expired, never asked."""
    settle("s-1", head(), Answer(0, "x"), JOURNAL)
    with pytest.raises(error):
        settle("s-1", head(), answer, JOURNAL)


@pytest.mark.parametrize(
    ("outcome", "error"), [(Raised("no"), SessionEnded), (Returned(1), QueryClosed)]
)
def test_a_query_that_was_open_at_the_end(outcome, error):
    """It takes no answer: the session has failed, or nobody waited for it."""
    end = Delivery(3, 3.0, notes=Notes(outcome=outcome))
    with pytest.raises(error):
        settle("s-1", head(State.FAILED), Answer(3, "x"), [*JOURNAL, end])
