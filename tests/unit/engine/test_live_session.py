"""What a session in memory knows of its open queries."""

import pytest

from everhold.core.journal import Delivery, DeliveryNotes
from everhold.core.metrics import Metrics
from everhold.core.query import Kind, Query, QueryAnswer, is_noticed
from everhold.core.session import Birth, Head, Seed, SessionId, SessionState
from everhold.core.status import Stopped
from everhold.engine.live_session import LiveSession


class Silent:
    def drop(self):
        """Nothing to let go of."""


def live():
    birth = Birth(id=SessionId("s-1"), program="m:f", created_at=0.0, seeds=[Seed(0, "0")])
    return LiveSession(birth, Head(1, 1, SessionState.PAUSED, 0, 0, None, 0.0, Metrics()), Silent())


def ask(q, **more):
    return Query(q, f"0:{q}", **more)


@pytest.mark.parametrize(
    ("timer", "expiries", "due"),
    [
        (None, [], None),
        (None, [None], None),
        (5.0, [None], 5.0),
        (None, [7.0, 6.0, None], 6.0),
        (5.0, [7.0], 5.0),
        (8.0, [9.0, 7.0], 7.0),
    ],
)
def test_the_next_moment(timer, expiries, due):
    """A session moves by itself at its timer or at the first expiry, whichever comes first."""
    session = live()
    session.fold(Delivery(0, 0.0, [], [ask(q, expires_at=at) for q, at in enumerate(expiries)]))
    session.timer = timer
    assert session.due() == due


def test_an_answered_query_does_not_expire():
    """Answers, withdrawals and the end take queries out of account."""
    session = live()
    session.fold(Delivery(0, 0.0, [], [ask(q, expires_at=5.0 + q) for q in range(4)]))
    session.fold(Delivery(1, 1.0, [QueryAnswer(0, "x")]))
    assert session.due() == 6.0
    session.fold(Delivery(2, 2.0, notes=DeliveryNotes(withdrawn=[1])))
    assert session.due() == 7.0
    session.fold(Delivery(3, 3.0, notes=DeliveryNotes(outcome=Stopped(""))))
    assert (session.due(), session.opened, session.expiring) == (None, {}, {})


def test_what_somebody_outside_can_answer_is_counted():
    """Children, and what somebody works on, are not for people."""
    session = live()
    kinds = [Kind.LLM, Kind.SESSION, Kind.CALL, Kind.APPROVAL]
    session.fold(Delivery(0, 0.0, [], [ask(q, kind=kind) for q, kind in enumerate(kinds)]))
    session.working[2] = "w-1"
    assert session.remaining() == 2
    session.fold(Delivery(1, 1.0, [QueryAnswer(1, "the end of the child"), QueryAnswer(0, "x")]))
    assert session.remaining() == 1


def test_a_dropped_session_is_stale():
    """Whoever waits for its lock sees that it has to be rebuilt."""
    session = live()
    session.drop()
    assert session.stale


@pytest.mark.parametrize(
    ("kind", "to", "noticed"),
    [
        ("llm", None, False),
        ("llm", "eve", True),
        ("approval", None, True),
        ("input", None, True),
        ("call", None, False),
    ],
)
def test_what_has_a_row_in_the_inbox(kind, to, noticed):
    """Questions for people, signals, and whatever is addressed to somebody."""
    assert is_noticed(kind, to) is noticed
