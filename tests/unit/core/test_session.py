"""The session's states and the moves between them."""

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from everhold.core.budget import Budget
from everhold.core.metrics import Metrics
from everhold.core.query import Blocked
from everhold.core.session import (
    ENDED,
    MOVES,
    Birth,
    Head,
    SessionEvent,
    SessionId,
    SessionState,
    apply_event,
    format_session_name,
    get_budget,
    mint,
)
from everhold.errors import IllegalMove
from tests.failures import collect_failures

DIAGRAM = """
running    paused    -> paused
running    answered  -> running
running    completed -> completed
running    failed    -> failed
running    cancelled -> cancelled
paused     paused    -> paused
paused     answered  -> running
paused     completed -> completed
paused     failed    -> failed
paused     cancelled -> cancelled
failed     retried   -> running
"""
LEGAL = {(was, event): now for was, event, _, now in map(str.split, DIAGRAM.strip().splitlines())}
REFUSED = [
    (state, event)
    for state in SessionState
    for event in SessionEvent
    if (state, event) not in LEGAL
]


def test_the_table_is_the_diagram():
    """The moves are these eleven and no others."""
    assert {
        (state, event): now for state, moves in MOVES.items() for event, now in moves.items()
    } == LEGAL


def test_a_legal_move():
    """A pair in the table leads where the table says."""
    moved = {
        (state, event): apply_event(SessionState(state), SessionEvent(event))
        for state, event in LEGAL
    }
    assert moved == LEGAL


def test_what_the_table_omits_is_refused():
    """Any other pair raises `IllegalMove`, which says both."""
    with collect_failures() as row:
        for state, event in REFUSED:
            with row(state, event):
                with pytest.raises(IllegalMove) as refused:
                    apply_event(state, event)
                assert str(refused.value) == f"a {state} session cannot be {event}"


def test_every_state_is_in_the_table():
    """Dead ends are written out."""
    assert set(MOVES) == set(SessionState)
    assert {state for state in SessionState if not MOVES[state]} == {
        SessionState.COMPLETED,
        SessionState.CANCELLED,
    }


def test_a_head_knows_whether_it_is_over():
    """Completed, failed and cancelled sessions have ended; running and paused ones have not."""
    ended = {state for state in SessionState if Head(1, 1, state, 0, 0, None, 0.0, Metrics()).ended}

    assert ended == {"completed", "failed", "cancelled"} == set(ENDED)


class Life(RuleBasedStateMachine):
    """Any events in any order. What may happen next follows from the last end alone."""

    def __init__(self):
        super().__init__()
        self.state = SessionState.RUNNING
        self.last_end = None

    @rule(event=st.sampled_from(SessionEvent))
    def happen(self, event):
        before = self.state
        allowed = (
            event is not SessionEvent.RETRIED
            if self.last_end is None
            else (self.last_end is SessionEvent.FAILED and event is SessionEvent.RETRIED)
        )
        try:
            self.state = apply_event(before, event)
        except IllegalMove:
            assert not allowed
            return
        assert allowed
        self.last_end = (
            event
            if event in (SessionEvent.COMPLETED, SessionEvent.FAILED, SessionEvent.CANCELLED)
            else None
        )

    @precondition(lambda self: self.last_end in (SessionEvent.COMPLETED, SessionEvent.CANCELLED))
    @rule(event=st.sampled_from(SessionEvent))
    def stay_over(self, event):
        with pytest.raises(IllegalMove):
            apply_event(self.state, event)

    @invariant()
    def the_state_tells_the_end(self):
        assert (self.state in ENDED) is (self.last_end is not None)
        if self.last_end is not None:
            assert self.state.value == self.last_end.value


TestLife = Life.TestCase
TestLife.settings = settings(max_examples=50, stateful_step_count=15)

DICE = st.integers(0, 2**96 - 1)
MOMENTS = st.floats(1e9, 4e9)


@given(at=MOMENTS, dice=DICE)
def test_the_form_of_an_id(at, dice):
    """An id is a prefix, sixteen digits of time and twenty-four of chance."""
    assert re.fullmatch(r"s-[0-9a-f]{16}-[0-9a-f]{24}", mint(at, dice))


@given(one=MOMENTS, other=MOMENTS, dice=st.tuples(DICE, DICE))
def test_ids_sort_by_time(one, other, dice):
    """Of two ids the earlier is the smaller text."""
    early, late = sorted((one, other))

    assert int(early * 1e9) == int(late * 1e9) or mint(early, dice[0]) < mint(late, dice[1])


@given(dice=st.sets(DICE, min_size=2, max_size=2))
def test_all_the_dice_are_in_the_id(dice):
    """Two ids of the same moment are different if their dice are."""
    assert len({mint(1e9, one) for one in dice}) == 2


def test_dice_beyond_ninety_six_bits():
    """More dice than fit do not make the id longer."""
    assert mint(1e9, 2**96 + 5) == mint(1e9, 5)


def test_who_wants_what_is_open_or_what_is_replayed_reads_from_there_on() -> None:
    head = Head(1, 1, SessionState.PAUSED, 9, 8, None, 0.0, Metrics(begun=4))
    assert (head.first(-1), head.first(-2)) == (8, 4)


def test_the_reason_of_a_blocked_query_is_kept_while_it_is_open():
    """The reason of another query stays; that of a query that was answered is dropped."""
    head = Head(1, 1, SessionState.PAUSED, 9, 8, None, 0.0, Metrics())
    key, model = Blocked("missing_key", "no key"), Blocked("unknown_model", "no model")
    assert head.blocked(2) is None
    head.block({2, 3}, 2, key)
    head.block({2, 3}, 3, model)
    assert (head.blocked(2), head.blocked(3), head.blocked(4)) == (key, model, None)
    head.block({3})
    assert (head.blocked(2), head.blocked(3)) == (None, model)
    head.block({3}, 3)  # without a reason: the known one stays
    assert head.blocked(3) == model
    head.block(())
    assert head.metrics.blocked is None


def test_a_changed_budget_replaces_that_of_the_birth():
    """Also one without limits."""
    birth = Birth(
        id=SessionId("s-1"), program="a:b", created_at=0.0, seeds=[], budget=Budget(max_tokens=9)
    )

    assert get_budget(birth, Metrics()) == Budget(max_tokens=9)
    assert get_budget(birth, Metrics(budget=Budget())) == Budget()


@pytest.mark.parametrize("key", [None, "", " ", "@last", "-k", "s-0123456789abcdef01"])
def test_a_session_is_called_by_its_id_if_its_key_could_be_misread(key):
    """No key, an empty one, an alias, an option or the form of an id: the id is the name."""
    assert format_session_name("s-1", key) == "s-1"


def test_a_session_is_called_by_its_key():
    """People chose the key, so messages say it."""
    assert format_session_name("s-1", "batch-1") == "batch-1"
