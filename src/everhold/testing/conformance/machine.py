"""A state machine that does the same to several stores and compares them. Needs Hypothesis.

    class TestMyStore(side_by_side(MemoryStore, make_my_store).TestCase):
        pass

A factory is called once per example and returns an empty store that is not open. Numbers of
sessions and letters may differ between stores; everything else must be equal, refusals included.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Final

import msgspec
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from everhold.core import journal
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
from everhold.core.query import Kind
from everhold.core.session import SessionId, SessionState
from everhold.core.status import Outcome, Raised, Returned, Stopped
from everhold.errors import EverholdError
from everhold.ports.store import (
    Change,
    Duty,
    Effect,
    Letter,
    SessionFilter,
    SessionRecord,
    Store,
    ValueWrite,
    WorkerRecord,
)
from everhold.testing.conformance.factories import (
    make_birth,
    make_fork,
    make_head,
    make_query,
    make_start,
    make_step,
    make_touch,
)
from everhold.testing.conformance.harness import (
    OpenStore,
    find_problems,
    list_due,
    list_orphans,
    list_ready,
)

Act = Callable[[Store, int], Awaitable[Any]]

KINDS = st.sampled_from(
    [Kind.LLM, Kind.INPUT, Kind.APPROVAL, Kind.TOOL, Kind.CALL, Kind.TIMER, Kind.SIGNAL]
)
KEYS = st.none() | st.sampled_from(["k1", "k2"])
TEXT = st.text(st.characters(codec="utf-8"), max_size=5)
ADDRESSEES = st.none() | st.just("ada")
OUTCOMES = st.sampled_from([Returned("done"), Raised("no"), Stopped("enough")])
PICK = st.integers(min_value=0, max_value=63)
OWNERS: Final = st.sampled_from(
    [LeaseOwner("ada", "1"), LeaseOwner("ada", "2"), LeaseOwner("bob\0", "1")]
)
TURNS: Final = st.sampled_from([None, 1, 2])
NAMES: Final = ["k-1", "k-2", "k\0"]


class SideBySide(RuleBasedStateMachine):
    """Does the same to several stores. Subclassed by `side_by_side`."""

    makers: tuple[OpenStore, ...]

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.Runner()
        self.stores = [make() for make in self.makers]
        self.known: list[str] = []
        self.clock = 1000.0
        self.fences: list[tuple[str, Fence]] = []
        self.claims: list[tuple[str, Claim]] = []
        self.sent = 0
        for store in self.stores:
            store.use_clock(lambda: self.clock)
            self.loop.run(store.open())

    def teardown(self) -> None:
        try:
            assert [self.loop.run(find_problems(store)) for store in self.stores] == [
                [] for _ in self.stores
            ]
        finally:
            for store in self.stores:
                self.loop.run(store.close())
            self.loop.close()

    # ---- doing

    def same(self, act: Act) -> Any:
        said = [self.loop.run(_said(act, store, index)) for index, store in enumerate(self.stores)]
        assert said == said[:1] * len(said)
        return said[0]

    def each(self, act: Act) -> bool:
        """Run an act on each store; all must accept it, or refuse it with the same error. Returns
        whether they accepted it.
        """
        said = self.same(act)
        return not (isinstance(said, tuple) and said[:1] == ("refused",))

    def records(self, pick: int) -> list[SessionRecord]:
        """A known session, as each store has it."""
        id = self.known[pick % len(self.known)]
        return [self.loop.run(store.load(id)) for store in self.stores]

    def commit(self, changes: list[Change], fence: int) -> bool:
        return self.each(lambda store, index: store.commit(changes[index], fence))

    def later(self) -> float:
        self.clock += 1.0
        return self.clock

    def newcomer(self) -> str:
        return f"s-{int(self.later()):06}"

    # ---- rules

    @rule(kinds=st.lists(KINDS, max_size=3), to=ADDRESSEES, key=KEYS, title=TEXT)
    def begin(self, kinds: list[Kind], to: str | None, key: str | None, title: str) -> None:
        id = self.newcomer()
        queries = [make_query(q, kind, to=to) for q, kind in enumerate(kinds)]
        facts: dict[str, Any] = {
            "key": key,
            "title": title,
            "created_at": self.clock,
            "labels": {"n": str(len(kinds))},
        }
        if self.commit([make_start(id, *queries, **facts) for _ in self.stores], 0):
            self.known.append(id)

    @precondition(lambda self: self.known)
    @rule(
        pick=PICK,
        count=st.integers(0, 3),
        kinds=st.lists(KINDS, max_size=2),
        value=TEXT,
        lost=st.booleans(),
    )
    def move(self, pick: int, count: int, kinds: list[Kind], value: str, lost: bool) -> None:
        """Answer some open queries, withdraw one more if `lost`, ask others."""
        self._step(pick, count, kinds, value, lost, None)

    @precondition(lambda self: self.known)
    @rule(pick=PICK, outcome=OUTCOMES)
    def end(self, pick: int, outcome: Outcome) -> None:
        self._step(pick, 0, [], "", False, outcome)

    def _step(
        self,
        pick: int,
        count: int,
        kinds: list[Kind],
        value: str,
        lost: bool,
        outcome: Outcome | None,
    ) -> None:
        at = self.later()
        changes = []
        for record in self.records(pick):
            if (
                record.head.state is SessionState.COMPLETED
                or record.head.state is SessionState.CANCELLED
            ):
                return
            opened = list(journal.find_open_queries(record.deliveries))
            following = 1 + max(
                (query.q for one in record.deliveries for query in one.asked), default=-1
            )
            facts: dict[str, Any] = {
                "answers": dict.fromkeys(opened[:count], value),
                "withdrawn": opened[count : count + 1] if lost else [],
                "asked": [make_query(following + index, kind) for index, kind in enumerate(kinds)],
                "read": [letter.id for letter in record.letters],
            }
            changes.append(make_step(record, at=at, outcome=outcome, tip={"mail": 0}, **facts))
        self.commit(changes, changes[0].head.revision - 1)

    @precondition(lambda self: self.known)
    @rule(pick=PICK, behind=st.integers(1, 2))
    def come_late(self, pick: int, behind: int) -> None:
        changes = [
            make_touch(record, writes=[ValueWrite("n", "late", [1], 0)])
            for record in self.records(pick)
        ]
        assert not self.commit(changes, changes[0].head.revision - 1 - behind)

    @precondition(lambda self: self.known)
    @rule(
        pick=PICK,
        due=st.none() | st.floats(0, 5000),
        state=st.sampled_from([SessionState.PAUSED, SessionState.RUNNING]),
    )
    def wait(self, pick: int, due: float | None, state: SessionState) -> None:
        self._touch(pick, tip={"due_at": due, "state": state})

    @precondition(lambda self: self.known)
    @rule(pick=PICK, worker=st.sampled_from(["ada", "bob"]))
    def take_up(self, pick: int, worker: str) -> None:
        """Mark the newest open query as running."""
        opened = list(journal.find_open_queries(self.records(pick)[0].deliveries))
        self._touch(pick, effects=[Effect(q, worker, self.later()) for q in opened[-1:]])

    @precondition(lambda self: self.known)
    @rule(pick=PICK, body=TEXT)
    def write_oneself(self, pick: int, body: str) -> None:
        """Put an answer to the oldest open query into the session's own intake."""
        record = self.records(pick)[0]
        opened = list(journal.find_open_queries(record.deliveries))
        if not record.letters and opened:
            letter = Letter("answer", {"q": opened[0], "value": body}, self.later())
            self._touch(pick, letters=[letter], tip={"mail": 1, "state": SessionState.RUNNING})

    @precondition(lambda self: self.known)
    @rule(pick=PICK, to=PICK, body=TEXT)
    def write_another(self, pick: int, to: int, body: str) -> None:
        id = self.known[to % len(self.known)]
        if id != self.known[pick % len(self.known)]:
            self._touch(pick, letters=[Letter("signal", body, self.later(), to=SessionId(id))])

    @precondition(lambda self: self.known)
    @rule(
        pick=PICK,
        key=st.sampled_from(["a", "b"]),
        value=st.none() | st.lists(TEXT, min_size=1, max_size=1),
    )
    def keep(self, pick: int, key: str, value: list[str] | None) -> None:
        _, version = self.loop.run(self.stores[0].value("n", key))
        self._touch(pick, writes=[ValueWrite("n", key, value, version)])

    @precondition(lambda self: self.known)
    @rule(pick=PICK, key=KEYS)
    def bear(self, pick: int, key: str | None) -> None:
        id = self.newcomer()
        child = make_birth(
            id, parent=self.known[pick % len(self.known)], key=key, created_at=self.clock
        )
        tips = [make_head(state=SessionState.RUNNING) for _ in self.stores]
        if self._touch(pick, each=[{"births": [(child, tip)]} for tip in tips]):
            self.known.append(id)

    def _touch(self, pick: int, each: list[dict[str, Any]] | None = None, **facts: Any) -> bool:
        records = self.records(pick)
        if records[0].head.ended:
            return False
        given = [facts for _ in records] if each is None else each
        changes = [make_touch(record, **own) for record, own in zip(records, given, strict=True)]
        return self.commit(changes, records[0].head.revision)

    @precondition(lambda self: self.known)
    @rule(pick=PICK, at=PICK, key=KEYS)
    def branch(self, pick: int, at: int, key: str | None) -> None:
        """Fork at any step but an end, because nothing can follow an end."""
        self._branch(pick, at, key)

    def _branch(self, pick: int, at: int, key: str | None) -> None:
        records = self.records(pick)
        id = self.newcomer()
        steps = [
            one.n for one in records[0].deliveries if one.notes is None or one.notes.outcome is None
        ]
        if steps:
            n = steps[at % len(steps)]
            if self.commit(
                [make_fork(one, id, n, key=key, created_at=self.clock) for one in records], 0
            ):
                self.known.append(id)

    @precondition(lambda self: self.known)
    @rule(times=st.integers(2, 4))
    def branch_again(self, times: int) -> None:
        """Fork the newest session at its last step, then the fork, then the fork of that one."""
        for _ in range(times):
            self._branch(len(self.known) - 1, -1, None)

    @precondition(lambda self: self.known)
    @rule(pick=PICK)
    def delete(self, pick: int) -> None:
        id = self.known[pick % len(self.known)]
        fence = self.records(pick)[0].head.revision
        if self.each(lambda store, _: store.delete(id, fence)):
            self.known.remove(id)

    @rule(id=st.sampled_from(["ada", "bob"]), lives=st.booleans())
    def worker(self, id: str, lives: bool) -> None:
        row = WorkerRecord(id, "host", 1, self.later())
        self.each(lambda store, _: store.beat(row) if lives else store.release(id))

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
        """End a claim in a commit; both land or neither does."""
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

    # ---- comparing

    @invariant()
    def they_agree(self) -> None:
        one, *others = (self.loop.run(_view(store, self.known)) for store in self.stores)
        for other in others:
            for what, seen in one.items():
                assert seen == other[what], what


async def _view(store: Store, known: list[str]) -> dict[str, Any]:
    """Everything a store shows, without numbers that may differ."""
    seen: dict[str, Any] = {}
    for id in known:
        seen[id] = _plain(await store.load(id))
        seen[f"{id}, what is open"] = _plain(await store.load(id, -1))
    for wanted in (
        SessionFilter(),
        SessionFilter(state=(SessionState.PAUSED, SessionState.FAILED)),
        SessionFilter(labels={"n": "2"}),
        SessionFilter(newer_than=1010.0, limit=2),
        SessionFilter(after=SessionId(known[-1]) if known else None),
    ):
        listed = await store.list(wanted)
        seen[f"list {wanted}"] = [
            (one.birth, msgspec.structs.replace(one.head, ref=0)) for one in listed
        ]
    seen["found"] = [await store.find(key) for key in ("k1", "k2")]
    seen["inbox"] = await store.inbox(kind=None, to=None, limit=1000)
    seen["inbox of models"] = await store.inbox(kind=Kind.LLM, to=None, limit=2)
    seen["inbox of ada"] = await store.inbox(kind=None, to="ada", limit=1000)
    seen["due"] = sorted(await list_due(store, 2000.0, 1000)), await store.next_due()
    seen["orphans"] = sorted(await list_orphans(store, {"ada"}))
    seen["workers"] = [msgspec.structs.replace(one, age=0.0) for one in await store.workers()]
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
    seen["values"] = (
        await store.keys("n"),
        [await store.value("n", key) for key in ("a", "b", "late")],
    )
    return seen


def _everything(intake: Intake) -> Any:
    return intake.now, intake.state, intake.lease, intake.seq, list(intake.items.values())


def _plain(record: SessionRecord) -> Any:
    letters = [msgspec.structs.replace(letter, id=0) for letter in record.letters]
    effects = sorted(record.effects, key=lambda one: one.q)
    return (
        record.birth,
        msgspec.structs.replace(record.head, ref=0),
        record.deliveries,
        letters,
        effects,
    )


def _ended(intake: Intake, how: str, claim: Claim, end: str) -> None:
    getattr(intake, how)(claim, *([] if how == "abandon" else [end]))


async def _said(act: Act, store: Store, index: int) -> Any:
    """The result of an act in one store; a refusal is a result too."""
    try:
        return await act(store, index)
    except EverholdError as error:
        return ("refused", error.code)


def side_by_side(*makers: OpenStore) -> type[SideBySide]:
    """Make a machine that compares the stores of these factories."""
    return type(
        "SideBySide", (SideBySide,), {"makers": tuple(staticmethod(make) for make in makers)}
    )
