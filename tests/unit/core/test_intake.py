"""What waits to enter a session: letting in, cancelling, claiming, ending."""

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from everhold.core.intake import (
    Boundary,
    CancelOutcome,
    Claim,
    DeliveryPolicy,
    Intake,
    IntakeItem,
    ItemCancellation,
    ItemHold,
    ItemKind,
    ItemState,
    Lane,
    MergePolicy,
    measure_content,
    order_idle_lanes,
    require_input_fits,
)
from everhold.core.lease import Fence, LeaseGranted, LeaseOwner, LeaseRefused
from everhold.core.session import SessionState
from everhold.errors import (
    BadArguments,
    BadValue,
    ClaimLost,
    InputConflict,
    InputTooLarge,
    LeaseLost,
    SessionEnded,
)

ANNA, BEN = LeaseOwner("anna", "1"), LeaseOwner("ben", "1")
EARLY, LATE = Boundary.AFTER_WORK, Boundary.BEFORE_COMPLETION


def said(id, **facts):
    """A user's input."""
    return IntakeItem(id, ItemKind.INPUT, {"text": id}, **facts)


def task(id, **facts):
    """Work for a turn."""
    return IntakeItem(id, ItemKind.TASK, {"do": id}, **facts)


def join(id, merge="m", **facts):
    """Work that may be done together with its neighbours."""
    return task(id, slot=MergePolicy.JOIN, merge=merge, **facts)


def command(id, **facts):
    return IntakeItem(id, ItemKind.COMMAND, {"name": id}, **facts)


def intake(*items, now=100.0, **facts):
    """An intake into which these have come, one after the other."""
    made = Intake("s-1", now, **facts)
    for item in items:
        made.enqueue(item)
    return made


def working(*items, owner=ANNA, **facts):
    """An intake, and the fence of who works on it."""
    made = intake(*items, **facts)
    found = made.take(owner, "t-1", 10.0)
    assert isinstance(found, LeaseGranted)
    return made, found.lease.fence


def later(before, seconds=0.0, **facts):
    """The same intake as a store reads it next."""
    return Intake(
        "s-1", before.now + seconds, before.lease, before.seq, before.items.values(), **facts
    )


def overtaken(before, owner=BEN):
    """The same intake after the lease ran out and somebody else took it."""
    after = later(before, 20.0)
    found = after.take(owner, "t-2", 10.0)
    assert isinstance(found, LeaseGranted)
    return after, found.lease.fence


def ids(found):
    """The ids of items or of a claim."""
    return [item.id for item in (found.items if isinstance(found, Claim) else found or ())]


# ---- the lease


def test_it_holds_the_lease():
    """Taken, renewed, guarded and released in the same moment as everything else."""
    made, fence = working()

    assert made.moved and made.holder is made.lease
    assert isinstance(made.take(BEN, "t-2", 10.0), LeaseRefused)
    assert made.renew(fence, 30.0).expires_at == 130.0
    made.guard(fence)
    made.release(fence)
    assert made.holder is None and made.lease is not None and made.lease.generation == 1


def test_nobody_holds_it_at_first():
    """Before anybody came there is no lease, and nothing to write."""
    made = intake()

    assert made.holder is None and not made.moved and not made.written


# ---- coming in


def test_what_comes_gets_its_place():
    """Each item gets the next number, the moment, and starts as if nobody had touched it."""
    used = said(
        "a",
        seq=9,
        at=1.0,
        state=ItemState.FAILED,
        deferred=True,
        hold=ItemHold("c", "t", 1),
        fence=3,
        end="x",
    )
    made = intake(used, said("b"))

    assert [*made.items.values()] == [said("a", seq=1, at=100.0), said("b", seq=2, at=100.0)]
    assert made.moved and [*made.written] == ["a", "b"]


def test_the_same_key_is_the_same_item():
    """The first receipt comes back, with the first item, also when it has ended, and for another
    turn.
    """
    made = intake(said("a", key="k"))
    made.cancel(["a"])

    again = made.enqueue(IntakeItem("b", ItemKind.INPUT, {"text": "a"}, key="k", turn=7))

    assert (again.new, again.item.id, again.item.state) == (False, "a", ItemState.CANCELLED)
    assert made.enqueue(said("c", key="other")).new


def test_an_id_names_one_item():
    """Without a key the id is the name."""
    made = intake(said("a"))

    assert not made.enqueue(said("a")).new
    with pytest.raises(InputConflict):
        made.enqueue(said("a", key="k"))


def test_a_key_is_not_an_id():
    """A key that looks like another item's id names nothing of it."""
    made = intake(said("a"))

    assert made.enqueue(said("b", key="a")).new


@pytest.mark.parametrize(
    "other",
    [
        IntakeItem("b", ItemKind.INPUT, {"text": "other"}, key="k"),
        IntakeItem("b", ItemKind.INPUT, {"text": "a"}, key="k", boundary=LATE),
        IntakeItem("b", ItemKind.TASK, {"text": "a"}, key="k"),
    ],
)
def test_the_same_key_with_other_content_is_a_conflict(other):
    """Other words, another boundary, another kind: refused, and the first stands."""
    made = intake(said("a", key="k"))

    with pytest.raises(InputConflict) as conflict:
        made.enqueue(other)

    assert (conflict.value.key, conflict.value.input_id) == ("k", "a")
    assert ids(made.waiting()) == ["a"]


@pytest.mark.parametrize("item", [said("a", key=""), said("a", key="  "), said(" ")])
def test_a_blank_name_is_refused(item):
    """It would be everybody's."""
    with pytest.raises(BadArguments):
        intake(item)


@pytest.mark.parametrize(
    "item",
    [
        IntakeItem("a", ItemKind.TASK, {"number": float("nan")}),
        IntakeItem("a", ItemKind.TASK, {"set": {1}}),
        said("\ud800"),
        said("a", key="\ud800"),
        said("a", available_at=float("inf")),
    ],
)
def test_what_cannot_be_kept_is_refused(item):
    """Before anything of it is."""
    made = intake()

    with pytest.raises(BadValue):
        made.enqueue(item)
    assert (made.items, made.seq) == ({}, 0)


def test_a_key_has_to_be_looked_for():
    """Where only some of what has ended was read, a key that was not named may be another's."""
    made = intake(said("b", key="k"), named=["k"])

    assert ids(made.waiting()) == ["b"]
    with pytest.raises(BadArguments, match="the intake was read without 'other'"):
        made.enqueue(said("c", key="other"))


def test_where_only_what_is_named_was_read_nothing_else_is_known():
    """Neither what waits, nor whether an id was given before that was not named."""
    made = Intake("s-1", 100.0, named=["b", "k"], only=True)

    assert made.enqueue(said("b", key="k")).new
    with pytest.raises(BadArguments, match="the intake was read without 'c'"):
        made.enqueue(said("c"))
    with pytest.raises(BadArguments, match="were not read"):
        made.waiting()


def test_a_session_that_has_ended_takes_nothing_in():
    """What came before is still told."""
    made = later(intake(said("a", key="k")), state=SessionState.COMPLETED)

    assert not made.enqueue(said("a", key="k")).new
    with pytest.raises(SessionEnded):
        made.enqueue(said("c"))


def test_what_is_handed_over_at_once_leaves_a_tombstone():
    """Also with the step that ends the session; once, whoever tries it again."""
    made = intake(state=SessionState.COMPLETED)
    made.mark(said("a", key="k"), {"step": 3})

    assert (made.items["a"].state, made.items["a"].end, made.items["a"].seq) == (
        ItemState.COMPLETED,
        {"step": 3},
        1,
    )
    with pytest.raises(ClaimLost):
        made.mark(said("a", key="k"))
    with pytest.raises(InputConflict):
        made.mark(said("b", key="k"))


def test_what_came_elsewhere_is_taken_in_as_it_stands():
    """In order, after what is here, claimed by nobody; its keys are known."""
    other, fence = working(said("a", key="k"), said("b"), task("c"))
    other.claim_next(fence, "1", 1)
    other.cancel(["b"], "why")
    made = intake(said("x"))
    made.restore([*other.items.values()])

    assert [(item.id, item.seq, item.state, item.hold) for item in made.items.values()] == [
        ("x", 1, ItemState.WAITING, None),
        ("a", 2, ItemState.WAITING, None),
        ("b", 3, ItemState.CANCELLED, None),
        ("c", 4, ItemState.WAITING, None),
    ]
    assert (made.items["b"].end, made.items["a"].fence, made.seq) == ({"reason": "why"}, 1, 4)
    assert not made.enqueue(said("a", key="k")).new


# ---- looking


def test_lanes_never_merge():
    """Inputs are one lane; commands, wakes and tasks are the other; each in the order in which they
    came.
    """
    wake = IntakeItem("w", ItemKind.WAKE, {})
    made = intake(task("t"), said("a"), command("c"), wake, said("b"))

    assert ids(made.waiting(Lane.INPUT)) == ["a", "b"]
    assert ids(made.waiting(Lane.WORK)) == ["t", "c", "w"]
    assert ids(made.waiting()) == ["t", "a", "c", "w", "b"]


def test_a_live_claim_hides():
    """While its lease lives, of its generation; not after release, expiry or takeover."""
    made, fence = working(said("a"))
    made.claim_next(fence, "c")

    assert ids(made.waiting()) == [] and ids(made.items.values()) == ["a"]
    assert ids(later(made, 20.0).waiting()) == ["a"]
    assert ids(overtaken(made)[0].waiting()) == ["a"]
    made.release(fence)
    assert ids(made.waiting()) == ["a"]


# ---- cancelling


def test_cancelling_tells_what_became_of_each():
    """Cancelled, claimed, completed, already cancelled, unknown: by id or key, in the order asked
    for.
    """
    made, fence = working(said("a"), said("b", key="k"), said("c"), task("t"))
    made.complete(made.claim_next(fence, "c-1", 1))
    made.claim_work(fence, "c-2")
    before = made.cancel(["c"], "because")

    found = made.cancel(["t", "nobody", "k", "a", "c"])

    assert before == [ItemCancellation("c", CancelOutcome.CANCELLED, made.items["c"])]
    assert made.items["c"].end == {"reason": "because"}
    assert [(one.name, one.outcome) for one in found] == [
        ("t", CancelOutcome.CLAIMED),
        ("nobody", CancelOutcome.UNKNOWN),
        ("k", CancelOutcome.CANCELLED),
        ("a", CancelOutcome.COMPLETED),
        ("c", CancelOutcome.ALREADY),
    ]
    assert (
        found[0].item is not None
        and found[0].item.hold is not None
        and found[0].item.hold.generation == 1
    )
    assert found[1].item is None


def test_what_failed_has_ended():
    """To whoever cancels, it is over."""
    made, fence = working(said("a"))
    made.fail(made.claim_next(fence, "c"), {"code": "bad"})

    assert made.cancel(["a"])[0].outcome is CancelOutcome.COMPLETED


def test_cancelling_from_one_on():
    """The anchor and all that came after it in its lane; None without an anchor."""
    made = intake(said("a"), said("b"), task("t"), said("c", key="k"))

    assert made.cancel_from("nobody") is None
    found = made.cancel_from("b", "enough")

    assert found is not None and [(one.name, one.outcome) for one in found] == [
        ("b", CancelOutcome.CANCELLED),
        ("c", CancelOutcome.CANCELLED),
    ]
    assert ids(made.waiting()) == ["a", "t"]


# ---- claiming inputs


def test_inputs_for_the_next_turn():
    """Those for no certain turn, and those whose turn is over; as many as are asked for."""
    made, fence = working(said("a"), said("b", turn=3), said("c"), said("d"))
    made.defer(4)
    first = made.claim_next(fence, "c-1", 2)
    made.defer(3)

    assert ids(first) == ["a", "c"]
    assert ids(made.claim_next(fence, "c-2")) == ["b", "d"]
    assert made.claim_next(fence, "c-3") is None


def test_inputs_for_the_running_turn():
    """At a boundary a turn lets in what is its own and meant for it; at the last one everything of
    its own.
    """
    made, fence = working(
        said("a", turn=3), said("b", turn=3, boundary=LATE), said("c", turn=2), said("d")
    )

    early = made.claim_boundary(fence, "c-1", 3, EARLY)
    late = made.claim_boundary(fence, "c-2", 3, LATE)

    assert [ids(one) for one in early] == [["a"], []]
    assert [ids(one) for one in late] == [["b"], []]


def test_a_boundary_lets_in_both_lanes():
    """Inputs of the turn and the work that is first."""
    made, fence = working(task("t"), said("a", turn=3))

    assert [ids(one) for one in made.claim_boundary(fence, "c", 3, EARLY)] == [["a"], ["t"]]
    assert made.claim_boundary(fence, "c-2", 3, EARLY) == (None, None)


# ---- claiming work


def test_work_alone():
    """One that stands alone, and one without a name to join under, is claimed by itself."""
    made, fence = working(task("a"), join("b", None), join("c"))

    assert [ids(made.claim_work(fence, token)) for token in "123"] == [["a"], ["b"], ["c"]]


def test_work_that_joins():
    """Neighbours of the same kind, name and policy; as many as are asked for, then the next
    ones.
    """
    others = [
        join("d", "n"),
        join("e", "n", when=DeliveryPolicy.IDLE),
        IntakeItem("f", ItemKind.WAKE, {}, slot=MergePolicy.JOIN, merge="n"),
    ]
    made, fence = working(join("a"), join("b"), join("c"), *others)

    assert ids(made.claim_work(fence, "1", most=2)) == ["a", "b"]
    assert [ids(made.claim_work(fence, token)) for token in "2345"] == [["c"], ["d"], ["e"], ["f"]]


def test_work_for_idle_hours_waits_at_a_boundary():
    """It blocks what comes after it, until no turn is under way or it is claimed."""
    made, fence = working(task("a", when=DeliveryPolicy.IDLE), task("b"))

    assert made.claim_work(fence, "1", EARLY) is None
    assert ids(made.claim_work(fence, "2")) == ["a"]
    assert ids(made.claim_work(fence, "3", EARLY)) == ["b"]


def test_what_is_not_available_yet_is_skipped():
    """Its time has to come first; others go on meanwhile."""
    made, fence = working(task("a", available_at=105.0), task("b"))

    assert ids(made.claim_work(fence, "1")) == ["b"]
    assert ids(later(made, 5.0).claim_work(fence, "2")) == ["a"]


def test_a_command_first_blocks_work():
    """It is claimed as a command; a later one neither joins nor jumps."""
    made, fence = working(command("a"), join("b"), command("c", slot=MergePolicy.JOIN, merge="m"))

    assert made.claim_work(fence, "1") is None
    assert ids(made.claim_command(fence, "2")) == ["a"]
    assert made.claim_command(fence, "3") is None
    assert ids(made.claim_work(fence, "4")) == ["b"]
    assert ids(made.claim_command(fence, "5")) == ["c"]


def test_certain_work():
    """By its ids: in order, up to where it cannot join; those that are gone are named."""
    made, fence = working(task("x"), join("a"), join("b"), join("c", "other"))

    claim, gone = made.claim_named(fence, "1", ["nobody", "c", "b", "a"])

    assert (ids(claim), gone) == (["a", "b"], ["nobody"])


def test_certain_work_keeps_the_rules():
    """The boundary holds, what stands alone stays alone, and a command may be named."""
    made, fence = working(
        command("x", slot=MergePolicy.JOIN, merge="m"),
        command("y", slot=MergePolicy.JOIN, merge="m"),
        task("a"),
    )

    assert ids(made.claim_named(fence, "1", ["x", "y"])[0]) == ["x"]
    assert ids(made.claim_named(fence, "2", ["a"], EARLY)[0]) == ["a"]
    made.cancel(["y"])
    assert made.claim_named(fence, "3", ["y"]) == (None, ["y"])


@pytest.mark.parametrize(
    ("items", "chosen"),
    [
        ([], []),
        ([task("t")], ["t"]),
        ([command("c")], ["c"]),
        ([said("a"), command("c"), task("t")], ["a"]),
        ([said("a", turn=1), task("t")], ["t"]),
    ],
)
def test_what_comes_first_where_no_turn_is_under_way(items, chosen):
    """Inputs before work; a command that came in the same moment comes after them."""
    made, fence = working(*items)

    assert ids(made.choose(fence, "1")) == chosen


@pytest.mark.parametrize(
    ("inputs", "work", "lane"),
    [
        ([said("a", at=2.0)], [command("c", at=1.0)], Lane.WORK),
        ([said("a", at=2.0)], [command("c", at=2.0)], Lane.INPUT),
        ([said("a", at=2.0)], [task("t", at=0.0), command("c", at=1.0)], Lane.INPUT),
        ([said("a", at=2.0)], [], Lane.INPUT),
        ([], [], Lane.WORK),
    ],
)
def test_an_older_command_goes_before_inputs(inputs, work, lane):
    """If it is first among the work, and really older."""
    assert order_idle_lanes(inputs, work) is lane


# ---- claims and generations


def test_claiming_needs_the_lease():
    """Every way of claiming does."""
    made, fence = working(said("a"), task("t"))
    other = Fence(BEN, "t-9", 1)

    for claim in (
        lambda: made.claim_next(other, "1"),
        lambda: made.claim_command(other, "1"),
        lambda: made.claim_work(other, "1"),
        lambda: made.claim_boundary(other, "1", 1, EARLY),
        lambda: made.claim_named(other, "1", ["t"]),
        lambda: made.choose(other, "1"),
        lambda: later(made, 20.0).choose(fence, "1"),
    ):
        with pytest.raises(LeaseLost):
            claim()
    assert all(item.hold is None for item in made.items.values())


def test_the_same_try_again_is_the_same_claim():
    """Who did not hear the answer tries again with the same token; in a later generation it is a
    new try.
    """
    made, fence = working(join("a"), join("b"))
    claim = made.claim_work(fence, "1")

    assert later(made).claim_work(fence, "1") == claim
    assert made.choose(fence, "1") == claim
    after, next_fence = overtaken(made)
    again = after.claim_work(next_fence, "1")
    assert again is not None and (again.generation, ids(again)) == (2, ["a", "b"])
    after.complete(again)


def test_a_generation_takes_an_item_once():
    """Its own claims hide from it, however many they are; what comes after is found."""
    made, fence = working(*(said(f"i-{n}") for n in range(70)))

    assert len(ids(made.claim_next(fence, "1"))) == 64
    assert ids(made.claim_next(fence, "2")) == [f"i-{n}" for n in range(64, 70)]
    assert made.claim_next(fence, "3") is None


def test_a_later_generation_may_take_it():
    """From then on the earlier one can complete, fail and give back nothing."""
    made, fence = working(said("a"))
    old = made.claim_next(fence, "1")
    after, next_fence = overtaken(made)
    new = after.claim_next(next_fence, "2")

    for end in (
        lambda: after.complete(old),
        lambda: after.fail(old, "x"),
        lambda: after.abandon(old),
    ):
        with pytest.raises(ClaimLost):
            end()
    assert new is not None and new.items[0].fence == 2
    after.complete(new, {"step": 4})
    assert (after.items["a"].state, after.items["a"].end) == (ItemState.COMPLETED, {"step": 4})


def test_a_clock_takes_nothing_from_who_works():
    """A lease that ran out, and that nobody took, still ends what was claimed under it."""
    made, fence = working(said("a"))
    claim = made.claim_next(fence, "1")
    late = later(made, 3600.0)

    late.complete(claim)

    assert late.items["a"].state is ItemState.COMPLETED


def test_what_was_claimed_together_stays_together():
    """The next generation takes it as it was, whatever limit or newcomers there are."""
    made, fence = working(join("a"), join("b"), join("c"))
    made.claim_work(fence, "1", most=2)
    after, next_fence = overtaken(made)

    assert ids(after.claim_work(next_fence, "2", most=1)) == ["a", "b"]
    third, last_fence = overtaken(after, ANNA)
    assert ids(third.claim_work(last_fence, "3")) == ["a", "b"]
    assert ids(third.claim_work(last_fence, "4")) == ["c"]


def test_what_was_not_claimed_with_it_does_not_join_it():
    """An earlier item that others went past is claimed up to where something was begun."""
    made, fence = working(join("a"), join("b"), join("c"))
    made.claim_named(fence, "1", ["b", "c"])
    after, next_fence = overtaken(made)

    assert ids(after.claim_work(next_fence, "2")) == ["a"]
    assert ids(after.claim_work(next_fence, "3")) == ["b", "c"]


def test_a_part_of_what_was_begun_is_refused():
    """And the whole of it is named."""
    made, fence = working(join("a"), join("b"))
    made.claim_work(fence, "1")
    after, next_fence = overtaken(made)

    with pytest.raises(BadArguments, match=r"\['a', 'b'\]"):
        after.claim_named(next_fence, "2", ["b"])
    assert ids(after.claim_named(next_fence, "3", ["b", "a"])[0]) == ["a", "b"]


# ---- ending


def test_what_is_given_back_may_be_claimed_again():
    """With a higher fence; who gave it back can end it no more."""
    made, fence = working(said("a"))
    old = made.claim_next(fence, "1")
    made.abandon(old)
    new = made.claim_next(fence, "2")

    assert new is not None and (new.items[0].fence, new.id) == (2, "i-1-2")
    with pytest.raises(ClaimLost):
        made.complete(old)
    assert made.items["a"].hold == ItemHold("i-1-2", "2", 1)


def test_an_item_ends_once():
    """What was completed is neither completed nor cancelled nor claimed again."""
    made, fence = working(said("a"))
    claim = made.claim_next(fence, "1")
    made.complete(claim)

    with pytest.raises(ClaimLost):
        made.complete(claim)
    assert made.claim_next(fence, "2") is None
    gone = later(intake(), named=())
    with pytest.raises(ClaimLost):
        gone.complete(claim)


def test_a_turn_that_is_over_leaves_nothing_behind():
    """What it did not let in is for the next one; what is claimed, cancelled or another turn's is
    left alone.
    """
    made, fence = working(
        said("a", turn=3), said("b", turn=3), said("c", turn=4), said("d", turn=3), said("e")
    )
    made.claim_named(fence, "x", [])
    made.cancel(["d"])
    made.claim_boundary(fence, "1", 3, EARLY, most=1)

    assert made.defer(3) == 1
    assert {item.id: item.deferred for item in made.items.values()} == {
        "a": False,
        "b": True,
        "c": False,
        "d": False,
        "e": False,
    }
    assert made.items["d"].state is ItemState.CANCELLED
    assert (made.defer(), made.defer()) == (1, 0)


def test_the_end_of_a_session_is_told_to_all():
    """Claimed or not, whatever waits fails; what had ended stays as it was."""
    made, fence = working(said("a"), said("b"), task("t"))
    made.claim_work(fence, "1")
    made.cancel(["b"])

    assert made.end_all({"code": "session_ended"}) == 2
    assert [item.state for item in made.items.values()] == [
        ItemState.FAILED,
        ItemState.CANCELLED,
        ItemState.FAILED,
    ]
    assert made.end_all({}) == 0


def test_what_must_not_be_forgotten():
    """What came in and what has ended; a lease or a claim that moved may be forgotten, and a
    vacuum.
    """
    made, fence = working(said("a"), said("b"))
    assert made.lasting
    claimed = later(made)
    claim = claimed.claim_next(fence, "1", 1)
    claimed.renew(fence, 5.0)
    assert not claimed.lasting and claimed.written
    ended = later(claimed)
    ended.complete(claim)
    assert ended.lasting
    clean = later(ended)
    clean.vacuum()
    assert not clean.lasting and clean.written


def test_a_vacuum_forgets_what_has_ended():
    """And nothing else; it says how much."""
    made = intake(said("a"), said("b"))
    made.cancel(["a"])

    assert (made.vacuum(), made.vacuum()) == (1, 0)
    assert ids(made.items.values()) == ["b"]
    assert made.written["a"] is None


def test_a_vacuum_may_leave_what_came_lately():
    """What came at a moment or before it is forgotten."""
    made = later(intake(said("a")), 5.0)
    made.enqueue(said("b"))
    made.cancel(["a", "b"])

    assert (made.vacuum(99.0), made.vacuum(100.0)) == (0, 1)
    assert ids(made.items.values()) == made.ended() == ["b"]


def test_a_vacuum_may_forget_certain_items_only():
    """Those that are named, if they have ended."""
    made = intake(said("a"), said("b"), said("c"))
    made.cancel(["a", "b"])

    assert made.vacuum(among=["b", "c", "d"]) == 1
    assert ids(made.items.values()) == ["a", "c"]


def test_an_end_that_cannot_be_kept_is_refused():
    """As anything else that is to be written."""
    made, fence = working(said("a"))
    claim = made.claim_next(fence, "1")

    with pytest.raises(BadValue):
        made.complete(claim, {"when": {1, 2}})


class Door(RuleBasedStateMachine):
    """Two workers and their sender, in any order: nothing is lost, nothing ends twice, nobody ends
    another's.
    """

    def __init__(self):
        super().__init__()
        self.intake = Intake("s-1", 100.0)
        self.fences = {}
        self.claims = []
        self.ended = {}
        self.sent = 0

    def _read(self, seconds=0.0):
        self.intake = Intake(
            "s-1",
            self.intake.now + seconds,
            self.intake.lease,
            self.intake.seq,
            self.intake.items.values(),
        )

    @rule(kind=st.sampled_from(ItemKind), joins=st.booleans(), turn=st.sampled_from([None, 1, 2]))
    def enqueue(self, kind, joins, turn):
        self._read()
        self.sent += 1
        slot, merge = (MergePolicy.JOIN, "m") if joins else (MergePolicy.ALONE, None)
        turn = turn if kind is ItemKind.INPUT else None
        self.intake.enqueue(
            IntakeItem(
                f"i-{self.sent}", kind, {}, key=f"k-{self.sent}", slot=slot, merge=merge, turn=turn
            )
        )

    @rule(owner=st.sampled_from([ANNA, BEN]), token=st.sampled_from("xyz"))
    def take(self, owner, token):
        self._read()
        found = self.intake.take(owner, token, 10.0)
        if isinstance(found, LeaseGranted):
            self.fences[owner] = found.lease.fence

    @rule(seconds=st.sampled_from([1.0, 20.0]))
    def wait(self, seconds):
        self._read(seconds)

    @rule(owner=st.sampled_from([ANNA, BEN]))
    def release(self, owner):
        self._read()
        if owner in self.fences:
            self.intake.release(self.fences[owner])

    @rule(
        owner=st.sampled_from([ANNA, BEN]),
        most=st.integers(1, 3),
        turn=st.sampled_from([None, 1, 2]),
    )
    def claim(self, owner, most, turn):
        self._read()
        token = f"c-{len(self.claims)}"
        fence = self.fences.get(owner, Fence(owner, "none", 0))
        try:
            found = (
                [self.intake.choose(fence, token, most)]
                if turn is None
                else self.intake.claim_boundary(fence, token, turn, LATE, most)
            )
        except LeaseLost:
            lease = self.intake.lease
            assert lease is None or not lease.live(self.intake.now) or lease.fence != fence
        else:
            self.claims += [claim for claim in found if claim is not None]

    @rule(data=st.data(), how=st.sampled_from(["complete", "fail", "abandon"]))
    def end(self, data, how):
        self._read()
        if not self.claims:
            return
        claim = data.draw(st.sampled_from(self.claims))
        before = dict(self.intake.items)
        hold = ItemHold(claim.id, claim.token, claim.generation)
        mine = all(before[item.id].waits and before[item.id].hold == hold for item in claim.items)
        try:
            getattr(self.intake, how)(claim, *([] if how == "abandon" else [how]))
        except ClaimLost:
            assert not mine and self.intake.items == before
        else:
            assert mine

    @rule(data=st.data())
    def cancel(self, data):
        self._read()
        if self.intake.items:
            self.intake.cancel([data.draw(st.sampled_from([*self.intake.items]))])

    @rule(turn=st.sampled_from([None, 1, 2]))
    def defer(self, turn):
        self._read()
        self.intake.defer(turn)

    @invariant()
    def nothing_is_lost_and_nothing_ends_twice(self):
        assert [*self.intake.items] == [f"i-{n + 1}" for n in range(self.sent)]
        for id, item in self.intake.items.items():
            if id in self.ended:
                assert item == self.ended[id]
            elif not item.waits:
                self.ended[id] = item

    @invariant()
    def a_claim_is_of_one_lane(self):
        lanes = {}
        for item in self.intake.items.values():
            if item.hold is not None:
                assert item.waits
                assert lanes.setdefault(item.hold.claim, item.kind.lane) is item.kind.lane


TestDoor = Door.TestCase
TestDoor.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_items_are_never_changed_in_place():
    """What a caller has in hand stays what it was."""
    made, fence = working(said("a"))
    before = made.items["a"]
    made.claim_next(fence, "1")

    assert before.hold is None and made.items["a"] is not before
    with pytest.raises(AttributeError):
        before.state = ItemState.FAILED
    assert msgspec.structs.replace(before, fence=1) != before


@pytest.mark.parametrize(
    ("content", "size"),
    [
        ("", 0),
        ("four", 4),
        ("é€", 5),
        ("\ud800", 3),
        ({"a": 1}, 7),
        ([{"type": "text", "text": "Hi."}], 30),
    ],
    ids=["empty", "ascii", "two and three bytes", "half a character", "object", "blocks"],
)
def test_the_size_of_an_input_is_in_bytes(content, size):
    assert measure_content(content) == size


def test_the_data_of_an_image_has_no_size():
    """The other facts of its block have."""
    image = {"type": "image", "image": {"data": "A" * 1000, "media_type": "image/png"}, "n": 1}
    assert measure_content([image]) == len(
        '[{"type":"image","n":1,"image":{"media_type":"image/png"}}]'
    )
    assert len(image["image"]["data"]) == 1000  # the input itself keeps it


@pytest.mark.parametrize(
    "block",
    [
        {"type": "file", "image": {"data": "A" * 1000}},
        {"type": "image", "image": {"data": ["A" * 1000]}},
        "A" * 1000,
    ],
    ids=["no image", "no text", "no block"],
)
def test_only_the_data_of_images_is_left_out(block):
    assert measure_content([block]) > 1000


def test_an_input_above_the_limit_is_refused():
    """The limit itself fits."""
    require_input_fits("12345", 5)
    with pytest.raises(InputTooLarge) as refused:
        require_input_fits("123456", 5)
    assert (refused.value.size, refused.value.limit) == (6, 5)
