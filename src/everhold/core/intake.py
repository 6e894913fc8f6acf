"""The queue of a session, in two lanes that never merge: user inputs, and work (commands, wakes,
tasks).

An `Intake` holds the lanes and the lease of one session, read at one moment. Its verbs do no I/O: a
store reads it, runs one verb, and writes the changes, all in one transaction. So every store
behaves the same.

Rules
  1. Lanes are first in, first out. A key names one item for ever: the same key with the same
     content is the same item.
  2. Items are claimed under a live lease. A claim records the lease's generation. One generation
     never claims an item twice, a later one always may; after that the earlier claim is lost.
  3. Items that were claimed together and not finished are claimed together again.
  4. An item ends once: completed, cancelled or failed. It is kept as a tombstone until a vacuum.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from enum import StrEnum
from itertools import takewhile
from typing import Final

import msgspec

from everhold.core import lease as leases
from everhold.core.codec import JSON, dumps, is_same_json, to_plain
from everhold.core.lease import Fence, Lease, LeaseGranted, LeaseOwner, LeaseRefused
from everhold.core.session import ENDED, SessionState
from everhold.errors import BadArguments, ClaimLost, InputConflict, InputTooLarge, SessionEnded

#: The maximum number of items in one claim.
MAX_CLAIMED: Final = 64

#: The name of the signal that delivers input to an agent.
INPUT = "input"

#: The default limit of one input: far above what people write, below what models can read.
MAX_INPUT_BYTES: Final = 10**6


def measure_content(content: JSON) -> int:
    """The size of an input in bytes of JSON. The data of images does not count: providers have
    limits of their own for it.
    """
    if isinstance(content, str):
        return len(content.encode("utf-8", "surrogatepass"))
    if isinstance(content, list):
        return len(dumps([_without_image_data(block) for block in content]).encode())
    return len(dumps(content).encode())


def _without_image_data(block: JSON) -> JSON:
    match block:
        case {"type": "image", "image": {"data": str(), **image}, **more}:
            return {"type": "image", **more, "image": image}
    return block


def require_input_fits(content: JSON, limit: int) -> None:
    """Raises `InputTooLarge` for content above the limit."""
    size = measure_content(content)
    if size > limit:
        raise InputTooLarge(size, limit)


class Lane(StrEnum):
    """The order in which queued items are taken: inputs, or results of work."""

    INPUT = "input"
    WORK = "work"


class ItemKind(StrEnum):
    """What a queued item is."""

    INPUT = "input"  # a user's message
    COMMAND = "command"  # an operation on the session; never sent to a model
    WAKE = "wake"  # a message of a background child session
    TASK = "task"  # work for a turn of its own

    @property
    def lane(self) -> Lane:
        return Lane.INPUT if self is ItemKind.INPUT else Lane.WORK


class ItemState(StrEnum):
    """The state of a queued item."""

    WAITING = "waiting"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Boundary(StrEnum):
    """A point at which a running turn accepts queued items."""

    AFTER_WORK = "after_work"
    BEFORE_COMPLETION = "before_completion"


class DeliveryPolicy(StrEnum):
    """When queued work is delivered."""

    EARLY = "early"  # at the next boundary of a running turn
    IDLE = "idle"  # when no turn is running


class MergePolicy(StrEnum):
    """Whether an item is claimed alone, or together with its neighbours of the same name."""

    ALONE = "alone"
    JOIN = "join"


class ItemHold(msgspec.Struct, frozen=True):
    """The claim on an item."""

    claim: str
    token: str
    generation: int


class IntakeItem(msgspec.Struct, frozen=True, omit_defaults=True):
    """One queued item, or the tombstone of an ended one."""

    id: str
    kind: ItemKind
    body: JSON
    key: str | None = None
    turn: int | None = None  # the running turn it was sent to; None: the next one
    boundary: Boundary = Boundary.AFTER_WORK
    when: DeliveryPolicy = DeliveryPolicy.EARLY
    slot: MergePolicy = MergePolicy.ALONE
    merge: str | None = None  # with `JOIN`, neighbours of the same name are claimed together
    available_at: float = 0.0
    seq: int = 0  # set by the intake
    at: float = 0.0  # when it was accepted, by the store's clock
    state: ItemState = ItemState.WAITING
    deferred: bool = False  # its turn has ended: it is for the next one
    hold: ItemHold | None = None
    fence: int = 0  # number of claims so far
    end: JSON = None  # the details of its end

    @property
    def waits(self) -> bool:
        """Whether it waits for a turn."""
        return self.state is ItemState.WAITING

    @property
    def running(self) -> int | None:
        """The running turn that may still receive it."""
        return None if self.deferred else self.turn


class Claim(msgspec.Struct, frozen=True):
    """Items that one lease holder may deliver, in order."""

    id: str
    token: str
    generation: int
    items: tuple[IntakeItem, ...]


class Receipt(msgspec.Struct, frozen=True):
    """The result of an enqueue: the item, and whether it is new."""

    item: IntakeItem
    new: bool


class CancelOutcome(StrEnum):
    """The result of cancelling an item."""

    CANCELLED = "cancelled"
    CLAIMED = "claimed"
    COMPLETED = "completed"
    ALREADY = "already_cancelled"
    UNKNOWN = "unknown"


class ItemCancellation(msgspec.Struct, frozen=True):
    """The outcome of cancelling one item."""

    name: str  # the id or the key, as given
    outcome: CancelOutcome
    item: IntakeItem | None = None


class Intake:
    """The lease and the lanes of one session, at one moment of the store's clock."""

    def __init__(
        self,
        session_id: str,
        now: float,
        lease: Lease | None = None,
        seq: int = 0,
        items: Iterable[IntakeItem] = (),
        state: SessionState = SessionState.PAUSED,
        named: Iterable[str] | None = None,
        *,
        only: bool = False,
    ) -> None:
        self.state = state  # of the session
        # the ids and keys whose ended items were read; None: all ended items were
        self._looked_for = None if named is None else frozenset(named)
        self._only = only  # no other items were read
        self.session_id = session_id
        self.now = now
        self.lease = lease
        self.seq = seq
        self.items = {item.id: item for item in sorted(items, key=lambda item: item.seq)}
        self.written: dict[str, IntakeItem | None] = {}  # items to write; None: to delete
        self._before = (lease, seq)

    @property
    def moved(self) -> bool:
        """Whether the lease or the counter changed."""
        return (self.lease, self.seq) != self._before

    @property
    def lasting(self) -> bool:
        """Whether an item was accepted or has ended: changes that nothing could repeat."""
        return self.seq != self._before[1] or any(
            item and not item.waits for item in self.written.values()
        )

    # ---- the lease

    @property
    def holder(self) -> Lease | None:
        """The lease that was not released, even if it has expired."""
        return None if self.lease is None or self.lease.released else self.lease

    def take(self, owner: LeaseOwner, token: str, ttl: float) -> LeaseGranted | LeaseRefused:
        found = leases.take_lease(self.lease, owner, token, ttl, self.now)
        if isinstance(found, LeaseGranted):
            self.lease = found.lease
        return found

    def renew(self, fence: Fence, ttl: float) -> Lease:
        self.lease = leases.renew_lease(self.session_id, self.lease, fence, ttl, self.now)
        return self.lease

    def release(self, fence: Fence) -> None:
        self.lease = leases.release_lease(self.lease, fence)

    def guard(self, fence: Fence) -> None:
        """Raises `LeaseLost` unless this fence holds the lease now."""
        leases.require_lease(self.session_id, self.lease, fence, self.now)

    # ---- accepting

    def enqueue(self, item: IntakeItem) -> Receipt:
        """Accepts an item. If its key, or id, was used with the same content, returns that item."""
        first = self._first(item)
        if first is not None:
            return Receipt(first, False)
        if self.state in ENDED:
            raise SessionEnded(self.session_id, self.state, "sent anything")
        return Receipt(self._add(item), True)

    def mark(self, item: IntakeItem, end: JSON = None) -> None:
        """Accepts an item that is delivered at the same moment; only its tombstone is kept.

        Raises `ClaimLost` if it was accepted before.
        """
        first = self._first(item)
        if first is not None:
            raise ClaimLost(self.session_id, first.id)
        self._end(self._add(item), ItemState.COMPLETED, end)

    def restore(self, items: Sequence[IntakeItem]) -> None:
        """Adds items of another store, in order: with new numbers, in their states, unclaimed."""
        for item in items:
            self.seq += 1
            self._put(msgspec.structs.replace(item, seq=self.seq, hold=None))

    def _first(self, item: IntakeItem) -> IntakeItem | None:
        """The earlier item of the same name. Raises if the item cannot be stored."""
        if not item.id.strip() or (item.key is not None and not item.key.strip()):
            raise BadArguments("enqueue", "an id or a key must not be blank")
        for name in (item.key, item.id if self._only else None):
            if name is not None and self._looked_for is not None and name not in self._looked_for:
                raise BadArguments(
                    "enqueue",
                    f"the intake was read without {name!r}; pass it in `named`",
                )
        to_plain([item.id, item.key, item.merge, item.turn, item.available_at], "the item")
        to_plain(item.body, "the body")
        first = (
            self.items.get(item.id)
            if item.key is None
            else self._keyed(item.key) or self.items.get(item.id)
        )
        if first is not None and not is_same_json(_content(first), _content(item)):
            raise InputConflict(item.key or item.id, self.session_id, first.id)
        return first

    def _add(self, item: IntakeItem) -> IntakeItem:
        self.seq += 1
        came = msgspec.structs.replace(
            item,
            seq=self.seq,
            at=self.now,
            state=ItemState.WAITING,
            deferred=False,
            hold=None,
            fence=0,
            end=None,
        )
        self._put(came)
        return came

    # ---- reading

    def waiting(self, lane: Lane | None = None) -> list[IntakeItem]:
        """The queued items without a claim, in order."""
        return [item for item in self._open(lane) if not self._is_held(item)]

    def _open(self, lane: Lane | None = None) -> list[IntakeItem]:
        if self._only:
            raise BadArguments("intake", "queued items were not read (only=True reads named items)")
        return [
            item for item in self.items.values() if item.waits and lane in (None, item.kind.lane)
        ]

    def _is_held(self, item: IntakeItem) -> bool:
        """Whether its claim is valid: the lease is live and has the generation of the claim."""
        hold = item.hold
        lease = self.lease
        return (
            hold is not None
            and lease is not None
            and lease.live(self.now)
            and lease.generation == hold.generation
        )

    def _named(self, name: str) -> IntakeItem | None:
        return self.items.get(name) or self._keyed(name)

    def _keyed(self, key: str) -> IntakeItem | None:
        return next((item for item in self.items.values() if item.key == key), None)

    # ---- cancelling

    def cancel(self, names: Sequence[str], reason: str = "") -> list[ItemCancellation]:
        """Cancels items by id or key; the outcomes are in the same order."""
        return [self._cancel(name, self._named(name), reason) for name in names]

    def cancel_from(self, anchor: str, reason: str = "") -> list[ItemCancellation] | None:
        """Cancels an item and every later one of its lane; None if there is no such item."""
        first = self._named(anchor)
        if first is None:
            return None
        lane = [
            item
            for item in self.items.values()
            if item.kind.lane is first.kind.lane and item.seq >= first.seq
        ]
        return [self._cancel(item.id, item, reason) for item in lane]

    def _cancel(self, name: str, item: IntakeItem | None, reason: str) -> ItemCancellation:
        if item is None:
            return ItemCancellation(name, CancelOutcome.UNKNOWN)
        if not item.waits:
            ended = (
                CancelOutcome.ALREADY
                if item.state is ItemState.CANCELLED
                else CancelOutcome.COMPLETED
            )
            return ItemCancellation(name, ended, item)
        if self._is_held(item):
            return ItemCancellation(name, CancelOutcome.CLAIMED, item)
        return ItemCancellation(
            name, CancelOutcome.CANCELLED, self._end(item, ItemState.CANCELLED, {"reason": reason})
        )

    # ---- claiming

    def claim_next(self, fence: Fence, token: str, most: int = MAX_CLAIMED) -> Claim | None:
        """Claims inputs for the next turn."""
        return self._claim(fence, token, select_next_inputs(self._free(fence, Lane.INPUT), most))

    def claim_command(self, fence: Fence, token: str) -> Claim | None:
        """Claims the first item of the work lane if it is a command."""
        return self._claim(fence, token, select_first_command(self._free(fence, Lane.WORK)))

    def claim_work(
        self, fence: Fence, token: str, boundary: Boundary | None = None, most: int = MAX_CLAIMED
    ) -> Claim | None:
        """Claims work for a turn: at a boundary of the running one or, with None, for the next."""
        return self._claim(
            fence, token, select_first_work(self._free(fence, Lane.WORK), boundary, most)
        )

    def claim_boundary(
        self, fence: Fence, token: str, turn: int, boundary: Boundary, most: int = MAX_CLAIMED
    ) -> tuple[Claim | None, Claim | None]:
        """Claims what may enter the running turn now: its inputs, and work."""
        inputs = select_turn_inputs(self._free(fence, Lane.INPUT), turn, boundary, most)
        return self._claim(fence, f"{token}i", inputs), self.claim_work(
            fence, f"{token}w", boundary, most
        )

    def claim_named(
        self, fence: Fence, token: str, names: Sequence[str], boundary: Boundary | None = None
    ) -> tuple[Claim | None, list[str]]:
        """Claims certain work ahead of other items. Also returns the names of items that have ended
        or do not exist.
        """
        wanted = [item for item in self._free(fence, Lane.WORK) if item.id in names]
        gone = [name for name in names if name not in self.items or not self.items[name].waits]
        for item in wanted:
            together = [other.id for other in self._with(item)]
            if not set(together) <= set(names):
                raise BadArguments(
                    "claim", f"{item.id} was claimed together with others; claim all of {together}"
                )
        return self._claim(
            fence, token, select_first_work(wanted, boundary, MAX_CLAIMED, commands=True)
        ), gone

    def choose(self, fence: Fence, token: str, most: int = MAX_CLAIMED) -> Claim | None:
        """Claims what is first while no turn is running: see `order_idle_lanes`."""
        lane = order_idle_lanes(self._free(fence, Lane.INPUT), self._free(fence, Lane.WORK))
        if lane is Lane.INPUT:
            return self.claim_next(fence, token, most)
        return self.claim_command(fence, token) or self.claim_work(fence, token, None, most)

    def complete(self, claim: Claim, end: JSON = None) -> None:
        """Completes claimed items; raises `ClaimLost`, and changes nothing, if one was claimed
        again.
        """
        for item in self._owned(claim):
            self._end(item, ItemState.COMPLETED, end)

    def fail(self, claim: Claim, end: JSON) -> None:
        """Fails claimed items that cannot be delivered."""
        for item in self._owned(claim):
            self._end(item, ItemState.FAILED, end)

    def abandon(self, claim: Claim) -> None:
        """Gives claimed items back to the queue."""
        for item in self._owned(claim):
            self._put(msgspec.structs.replace(item, hold=None))

    def defer(self, turn: int | None = None) -> int:
        """Ends a turn, or all of them: their unclaimed inputs go to the next turn."""
        late = [
            item
            for item in self.waiting(Lane.INPUT)
            if item.running is not None and turn in (None, item.turn)
        ]
        for item in late:
            self._put(msgspec.structs.replace(item, deferred=True, hold=None))
        return len(late)

    def end_all(self, end: JSON) -> int:
        """Fails all queued items, because the session has ended."""
        left = self._open()
        for item in left:
            self._end(item, ItemState.FAILED, end)
        return len(left)

    def ended(self, before: float | None = None) -> list[str]:
        """The ids of ended items; with `before`, of those accepted up to that moment."""
        ended = [item for item in self.items.values() if not item.waits]
        return [item.id for item in ended if before is None or item.at <= before]

    def vacuum(self, before: float | None = None, among: Collection[str] | None = None) -> int:
        """Deletes ended items, if given only those accepted up to a moment or among these ids;
        returns how many.
        """
        gone = [id for id in self.ended(before) if among is None or id in among]
        for id in gone:
            del self.items[id]
            self.written[id] = None
        return len(gone)

    # ---- internals

    def _free(self, fence: Fence, lane: Lane) -> list[IntakeItem]:
        """The items that this holder may claim, in order."""
        self.guard(fence)
        return [
            item
            for item in self._open(lane)
            if item.available_at <= self.now
            and (item.hold is None or item.hold.generation != fence.generation)
        ]

    def _with(self, item: IntakeItem) -> list[IntakeItem]:
        """An item and the unfinished ones that were claimed together with it."""
        hold = item.hold
        if hold is None:
            return [item]
        return [
            other
            for other in self._open()
            if other.hold is not None and other.hold.claim == hold.claim
        ]

    def _claim(self, fence: Fence, token: str, chosen: Sequence[IntakeItem]) -> Claim | None:
        for first in self._open():
            if first.hold is not None and first.hold == ItemHold(
                first.hold.claim, token, fence.generation
            ):
                # the same token: a repeated call gets the same claim
                return Claim(first.hold.claim, token, fence.generation, tuple(self._with(first)))
        if not chosen:
            return None
        head = chosen[0]
        begun = head.hold is not None
        together = self._with(head) if begun else takewhile(lambda item: item.hold is None, chosen)
        hold = ItemHold(f"{head.kind.lane[0]}-{head.seq}-{head.fence + 1}", token, fence.generation)
        taken = tuple(
            msgspec.structs.replace(item, hold=hold, fence=item.fence + 1) for item in together
        )
        for item in taken:
            self._put(item)
        return Claim(hold.claim, token, fence.generation, taken)

    def _owned(self, claim: Claim) -> list[IntakeItem]:
        hold = ItemHold(claim.id, claim.token, claim.generation)
        found = [self.items.get(item.id) for item in claim.items]
        owned = [item for item in found if item is not None and item.waits and item.hold == hold]
        if len(owned) != len(claim.items):
            raise ClaimLost(self.session_id, claim.id)
        return owned

    def _end(self, item: IntakeItem, state: ItemState, end: JSON) -> IntakeItem:
        ended = msgspec.structs.replace(item, state=state, hold=None, end=to_plain(end, "the end"))
        self._put(ended)
        return ended

    def _put(self, item: IntakeItem) -> None:
        self.items[item.id] = self.written[item.id] = item


# ---- which items come next: functions of the claimable items, in order


def select_next_inputs(free: Sequence[IntakeItem], most: int) -> list[IntakeItem]:
    """Inputs for the next turn."""
    return [item for item in free if item.running is None][:most]


def select_turn_inputs(
    free: Sequence[IntakeItem], turn: int, boundary: Boundary, most: int
) -> list[IntakeItem]:
    """Inputs that the running turn accepts at a boundary."""
    last = boundary is Boundary.BEFORE_COMPLETION
    return [item for item in free if item.running == turn and (last or item.boundary is boundary)][
        :most
    ]


def select_first_command(free: Sequence[IntakeItem]) -> list[IntakeItem]:
    """The first item of the work, if it is a command."""
    return list(free[:1]) if free and free[0].kind is ItemKind.COMMAND else []


def select_first_work(
    free: Sequence[IntakeItem], boundary: Boundary | None, most: int, *, commands: bool = False
) -> list[IntakeItem]:
    """The first item of the work, with the neighbours that join it. Empty if that is a command, or
    may not enter the running turn.
    """
    if not free or (free[0].kind is ItemKind.COMMAND and not commands):
        return []
    head = free[0]
    if boundary is not None and head.when is not DeliveryPolicy.EARLY:
        return []
    if head.kind is ItemKind.COMMAND or head.slot is MergePolicy.ALONE or head.merge is None:
        return [head]
    joined = [head]
    for item in free[1:most]:
        if (item.kind, item.slot, item.when, item.merge) != (
            head.kind,
            MergePolicy.JOIN,
            head.when,
            head.merge,
        ):
            break
        joined.append(item)
    return joined


def order_idle_lanes(inputs: Sequence[IntakeItem], work: Sequence[IntakeItem]) -> Lane:
    """The next lane: a command older than the oldest input, then inputs, then other work."""
    waiting = select_next_inputs(inputs, 1)
    older = [item for item in select_first_command(work) if waiting and item.at < waiting[0].at]
    return Lane.WORK if older or not waiting else Lane.INPUT


def _content(item: IntakeItem) -> JSON:
    """The part of an item that must match when its key is used again; the turn is ignored."""
    return [item.key, item.kind, item.body, item.boundary]
