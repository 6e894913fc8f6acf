"""What one may hear of a session's life."""

import logging

import pytest

from everhold.core.metrics import Metrics
from everhold.core.observer import Observer, Observers
from everhold.core.progress import Progress
from everhold.core.query import FailedAttempt, Query, QueryAnswer
from everhold.core.usage import TokenCost, TokenSource
from tests.failures import collect_failures

Q = Query(0, "0:0", "hello")
A = QueryAnswer(0, "hi")
COST = TokenCost(2, TokenSource.ESTIMATED, 1, TokenSource.ESTIMATED)
METRICS = Metrics(rounds=4)

#: Each event with the facts it is told.
EVENTS = {
    "paused": ("s-1", (Q,)),
    "answered": ("s-1", Q, A, COST),
    "partly_answered": ("s-1", Q, A, 2),
    "attempt_failed": ("s-1", Q, FailedAttempt(1, 3, "busy", 1.0, 2.0)),
    "resumed": ("s-1",),
    "progressed": ("s-1", Progress(1, 2, "half")),
    "printed": ("s-1", "c-1", "a line\n"),
    "completed": ("s-1", {"done": True}, METRICS),
    "failed": ("s-1", "it broke", METRICS),
    "cancelled": ("s-1", "enough", METRICS),
}
HOOKS = [name for name in vars(Observer) if not name.startswith("_")]


def listening(event, heard):
    """An observer that writes down what it hears of one event."""
    return type("Ears", (Observer,), {event: lambda self, *facts: heard.append(facts)})()


class Broken(Observer):
    def __getattribute__(self, name):
        if name in EVENTS:
            raise RuntimeError("oops")
        return super().__getattribute__(name)


def test_the_seam_is_these_ten_events():
    """Nothing is observed but what this page tests."""
    assert list(EVENTS) == HOOKS


def test_every_event_says_when_it_is_told():
    """An event without a sentence is not an event."""
    assert [event for event in HOOKS if not getattr(Observer, event).__doc__] == []


def test_an_observer_may_ignore_anything():
    """The class itself does nothing, whatever it is told."""
    told = {event: getattr(Observer(), event)(*EVENTS[event]) for event in HOOKS}
    assert told == dict.fromkeys(HOOKS)


def test_everybody_hears_the_same_facts():
    """Each observer gets the event as it was told."""
    with collect_failures() as row:
        for event in HOOKS:
            one, other = [], []
            observers = Observers([listening(event, one), listening(event, other)])
            with row(event):
                getattr(observers, event)(*EVENTS[event])
                assert one == other == [EVENTS[event]]


def test_a_broken_observer_is_reported_and_passed_over(caplog):
    """What one observer raises neither breaks the session nor deafens the next."""
    with collect_failures() as row:
        for event in HOOKS:
            heard = []
            observers = Observers([Broken(), listening(event, heard)])
            caplog.clear()
            with row(event):
                with caplog.at_level(logging.ERROR, logger="everhold"):
                    getattr(observers, event)(*EVENTS[event])
                assert heard == [EVENTS[event]]
                assert "observer Broken failed" in caplog.text


@pytest.mark.parametrize("event", ["completed", "failed", "cancelled"])
def test_an_observer_cannot_change_the_metrics(event):
    """Each observer gets its own copy of the counters."""
    kept = []
    getattr(Observers([listening(event, kept)]), event)(*EVENTS[event])

    kept[0][2].resumed()

    assert METRICS.rounds == 4


def test_an_interrupt_goes_up():
    """Ctrl-C is not an observer's failure."""

    class Interrupted(Observer):
        def resumed(self, session_id):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Observers([Interrupted()]).resumed("s-1")


def test_no_observers_are_false():
    """The hot path can skip the call when nobody listens."""
    assert not Observers()
    assert Observers([Observer()])


def test_observers_can_be_nested():
    """Several observers are an observer."""
    heard = []

    Observers([Observers([listening("resumed", heard)])]).resumed("s-1")

    assert heard == [("s-1",)]
