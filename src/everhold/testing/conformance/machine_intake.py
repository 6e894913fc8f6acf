"""The part of the machine that acts on leases, lanes and duties. See machine.py."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from everhold.core.intake import (
    Boundary,
    Claim,
    DeliveryPolicy,
    Intake,
    IntakeItem,
    ItemKind,
    MergePolicy,
)
from everhold.core.lease import Fence, LeaseGranted, LeaseOwner
from everhold.ports.store import Change, Duty, SessionRecord, Store
from everhold.testing.conformance.factories import make_touch
from everhold.testing.conformance.harness import list_ready

Act = Callable[[Store, int], Awaitable[Any]]

OWNERS: Final = st.sampled_from(
    [LeaseOwner("ada", "1"), LeaseOwner("ada", "2"), LeaseOwner("bob\0", "1")]
)
TURNS: Final = st.sampled_from([None, 1, 2])
NAMES: Final = ["k-1", "k-2", "k\0"]
TEXT: Final = st.text(st.characters(codec="utf-8"), max_size=3)
PICK: Final = st.integers(min_value=0, max_value=63)


class IntakeRules(RuleBasedStateMachine):
    """Takes leases, sends, claims, settles, and undertakes duties, the same in every store."""

    known: list[str]

    def __init__(self) -> None:
        super().__init__()
        self.fences: list[tuple[str, Fence]] = []
        self.claims: list[tuple[str, Claim]] = []
        self.sent = 0

    def same(self, act: Act) -> Any:
        """Do it to each; all must say the same. Returns what they said; ("refused", code) if they
        refused.
        """
        raise NotImplementedError

    def commit(self, changes: list[Change], fence: int) -> bool:
        raise NotImplementedError

    def records(self, pick: int) -> list[SessionRecord]:
        raise NotImplementedError

    def later(self) -> float:
        raise NotImplementedError

    def _on(self, id: str, act: Callable[[Intake], Any], *, whole: bool = False) -> Any:
        names = [*NAMES, *(f"i-{n}" for n in range(self.sent + 1))]
        return self.same(lambda store, _: store.intake(id, act, named=names, whole=whole))

    def _some(self, pick: int) -> str:
        return self.known[pick % len(self.known)]

    # ---- leases

    @rule(seconds=st.sampled_from([1.0, 30.0]))
    def time_passes(self, seconds: float) -> None:
        for _ in range(int(seconds)):
            self.later()

    @precondition(lambda self: self.known)
    @rule(pick=PICK, owner=OWNERS, ttl=st.sampled_from([5.0, 500.0]))
    def take_lease(self, pick: int, owner: LeaseOwner, ttl: float) -> None:
        id = self._some(pick)
        token = f"t-{len(self.fences)}"
        found = self._on(id, lambda intake: intake.take(owner, token, ttl))
        if isinstance(found, LeaseGranted):
            self.fences.append((id, found.lease.fence))

    @precondition(lambda self: self.fences)
    @rule(pick=PICK, how=st.sampled_from(["renew", "release", "guard"]))
    def use_lease(self, pick: int, how: str) -> None:
        id, fence = self.fences[-1 - pick % len(self.fences)]
        given = (fence, 50.0) if how == "renew" else (fence,)
        self._on(id, lambda intake: getattr(intake, how)(*given))

    @rule(owner=OWNERS, stays=st.booleans())
    def keep_or_leave(self, owner: LeaseOwner, stays: bool) -> None:
        async def act(store: Store, _: int) -> Any:
            return sorted(await store.keep(owner, 50.0)) if stays else await store.leave(owner)

        self.same(act)

    # ---- lanes

    @precondition(lambda self: self.known)
    @rule(
        pick=PICK,
        kind=st.sampled_from(ItemKind),
        key=st.none() | st.sampled_from(NAMES),
        body=TEXT,
        turn=TURNS,
        facts=st.fixed_dictionaries(
            {
                "boundary": st.sampled_from(Boundary),
                "when": st.sampled_from(DeliveryPolicy),
                "slot": st.sampled_from(MergePolicy),
                "merge": st.sampled_from([None, "m", "n"]),
                "available_at": st.sampled_from([0.0, 1020.0, 1100.0]),
            }
        ),
    )
    def send(
        self,
        pick: int,
        kind: ItemKind,
        key: str | None,
        body: str,
        turn: int | None,
        facts: dict[str, Any],
    ) -> None:
        self.sent += 1
        item = IntakeItem(f"i-{self.sent}", kind, {"text": body}, key, turn, **facts)
        self._on(self._some(pick), lambda intake: intake.enqueue(item))

    @precondition(lambda self: self.fences)
    @rule(pick=PICK, turn=TURNS, boundary=st.sampled_from(Boundary), most=st.integers(1, 3))
    def claim(self, pick: int, turn: int | None, boundary: Boundary, most: int) -> None:
        id, fence = self.fences[-1 - pick % min(3, len(self.fences))]
        token = f"c-{len(self.claims)}-{self.later()}"

        def act(intake: Intake) -> Any:
            if turn is None:
                return [intake.choose(fence, token, most)]
            return intake.claim_boundary(fence, token, turn, boundary, most)

        found = self._on(id, act)
        self.claims += [(id, claim) for claim in found if isinstance(claim, Claim)]

    @precondition(lambda self: self.fences and self.sent)
    @rule(pick=PICK, numbers=st.lists(st.integers(1, 30), max_size=3))
    def claim_certain(self, pick: int, numbers: list[int]) -> None:
        id, fence = self.fences[-1 - pick % min(3, len(self.fences))]
        token = f"n-{len(self.claims)}-{self.later()}"
        names = [f"i-{n}" for n in numbers]
        found = self._on(id, lambda intake: intake.claim_named(fence, token, names))
        if found and isinstance(found[0], Claim):
            self.claims.append((id, found[0]))

    @precondition(lambda self: self.claims)
    @rule(pick=PICK, how=st.sampled_from(["complete", "fail", "abandon"]), end=TEXT)
    def end_claim(self, pick: int, how: str, end: str) -> None:
        id, claim = self.claims[-1 - pick % len(self.claims)]
        self._on(id, lambda intake: _ended(intake, how, claim, end))

    @precondition(lambda self: self.claims)
    @rule(pick=PICK, how=st.sampled_from(["complete", "fail", "abandon"]), end=TEXT)
    def settle(self, pick: int, how: str, end: str) -> None:
        """End a claim in a commit, which lands with it or not at all."""
        id, claim = self.claims[-1 - pick % len(self.claims)]
        if id in self.known:
            records = self.records(self.known.index(id))
            if not records[0].head.ended:
                names = [item.id for item in claim.items]
                changes = [
                    make_touch(
                        one, intake=lambda intake: _ended(intake, how, claim, end), named=names
                    )
                    for one in records
                ]
                self.commit(changes, records[0].head.revision)

    @precondition(lambda self: self.known)
    @rule(pick=PICK, numbers=st.lists(st.integers(1, 30), max_size=3), suffix=st.booleans())
    def take_back(self, pick: int, numbers: list[int], suffix: bool) -> None:
        names = [*(f"i-{n}" for n in numbers), "k-1"]
        cancel = (
            (lambda intake: intake.cancel_from(names[0]))
            if suffix
            else (lambda intake: intake.cancel(names, "é"))
        )
        self._on(self._some(pick), cancel)

    @precondition(lambda self: self.known)
    @rule(pick=PICK, turn=TURNS, how=st.sampled_from(["defer", "defer", "vacuum", "end_all"]))
    def tidy(self, pick: int, turn: int | None, how: str) -> None:
        def act(intake: Intake) -> int:
            if how == "defer":
                return intake.defer(turn)
            return intake.vacuum() if how == "vacuum" else intake.end_all({"code": "over"})

        self._on(self._some(pick), act, whole=True)

    # ---- duties

    @rule(
        given=st.lists(
            st.tuples(
                st.sampled_from("ab"),
                st.none() | TEXT,
                st.none() | st.floats(0, 2000),
                st.integers(0, 2),
            ),
            max_size=2,
        )
    )
    def see_to(self, given: list[tuple[str, str | None, float | None, int]]) -> None:
        duties = [Duty("n", *one) for one in given]
        self.same(lambda store, _: store.undertake(duties))


def _ended(intake: Intake, how: str, claim: Claim, end: str) -> None:
    getattr(intake, how)(claim, *([] if how == "abandon" else [end]))


async def view_intakes(store: Store, known: list[str]) -> dict[str, Any]:
    """What a store shows of leases, lanes and duties."""
    seen: dict[str, Any] = {}
    for id in known:
        seen[f"{id}, its intake"] = await store.intake(id, _everything, whole=True)
        seen[f"{id}, what waits"] = await store.intake(id, lambda intake: intake.waiting())
    seen["ready"] = await list_ready(store, 1000), await list_ready(store, 1)
    seen["standing"] = await store.standing(known)
    seen["duties"] = (
        await store.duties("n"),
        await store.duties("n", due=1010.0),
        await store.duty("n", "a"),
    )
    seen["next duty"] = await store.next_duty()
    return seen


def _everything(intake: Intake) -> Any:
    return intake.now, intake.state, intake.lease, intake.seq, list(intake.items.values())
