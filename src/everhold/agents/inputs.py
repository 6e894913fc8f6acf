"""What waits to enter a conversation: put there, looked at, taken back; and what to do while a turn
is under way.

An input has one id, whichever way it came in. A caller's key is its id: what was said once under it
is not said again, neither directly nor through the intake.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

import msgspec

from everhold.agents.conversation_reader import ConversationReader
from everhold.agents.frame_options import check_options
from everhold.archive.retention import vacuum_all_intakes, vacuum_intakes
from everhold.core.codec import JSON, is_same_json, to_plain
from everhold.core.graph import compact_blocks, to_blocks
from everhold.core.intake import (
    Boundary,
    DeliveryPolicy,
    Intake,
    IntakeItem,
    ItemCancellation,
    ItemKind,
    ItemState,
    MergePolicy,
    Receipt,
)
from everhold.core.turn import SettledTurn
from everhold.engine.arguments import check_key_length
from everhold.engine.intake_messages import CANCEL_TURN, COMMANDS
from everhold.errors import BadArguments, InputConflict, InputEnded, KeyConflict, UnknownInput

if TYPE_CHECKING:
    from everhold.agents.session import AgentSession, InputContent
    from everhold.runtime import Runtime

#: Where something that is enqueued may enter: the next turn, or a checkpoint of the one under way.
NEXT_TURN: Final = "next"


class BusyPolicy(StrEnum):
    """What becomes of an input while a turn is under way."""

    QUEUE = "queue"  # it waits for the next turn
    REJECT = "reject"  # it is refused
    STEER = "steer"  # the turn hears it
    FORK = "fork"  # it begins a turn of a fork of the conversation


class InputStage(StrEnum):
    """Where an input stands."""

    WAITING = "waiting"  # in the intake, or for the turn under way to end
    IN_TURN = "in_turn"
    SETTLED = "settled"
    CANCELLED = "cancelled"
    FAILED = "failed"


class InputStatus(msgspec.Struct, frozen=True):
    """Where an input stands: the turn that it is in or was settled by, and what the intake knows of
    it.
    """

    id: str
    stage: InputStage
    turn: int | None = None
    settled: SettledTurn | None = None
    item: IntakeItem | None = None
    reason: str = ""  # why it was cancelled or failed


class InputVerbs:
    """The part of a conversation's handle that deals with what waits to enter it."""

    async def enqueue(
        self: Any,
        content: InputContent,
        *,
        key: str | None = None,
        at: str = NEXT_TURN,
        alone: bool = False,
        options: Mapping[str, JSON] | None = None,
        available_at: float = 0.0,
    ) -> Receipt:
        """Let something wait for the next turn, or for a checkpoint of the one under way; returns
        when it is kept.

        `at` is "next", "after_work" (the next checkpoint) or "before_completion" (the last one);
        what misses its turn is heard in the next. What waits together is one turn, unless it is to
        be `alone`. The same key with the same content is the first receipt; other content is a
        conflict.
        """
        session: AgentSession = self
        said = compact_blocks(session._kept(content))
        body: dict[str, JSON] = (
            {"content": said}
            if not options
            else {"content": said, "options": check_options(options)}
        )
        input_id = check_input_key(key) or f"i-{secrets.token_hex(8)}"
        boundary = _boundary(at)
        if key is not None or boundary is not None:
            await session._reading.refresh()
        heard = None if key is None else session._reading.input(input_id)
        if heard is not None:
            require_same_input(session.id, input_id, heard, said)
            return Receipt(
                IntakeItem(input_id, ItemKind.INPUT, body, key, state=ItemState.COMPLETED), False
            )
        more: dict[str, Any] = {}
        if boundary is not None:
            more = {"turn": session._reading.under_way, "boundary": boundary}
        slot = MergePolicy.ALONE if alone else MergePolicy.JOIN
        item = IntakeItem(
            input_id,
            ItemKind.INPUT,
            body,
            key,
            slot=slot,
            available_at=_moment(available_at),
            **more,
        )
        return await enqueue_item(session._runtime, session.id, item)

    async def command(self: Any, do: str, *, key: str, reason: str = "") -> Receipt:
        """Have something done to the conversation when no turn is under way: refresh_tools, reset
        or compact.

        `cancel_turn` is done at once, to the turn that is under way now. The same key is the same
        command.
        """
        return await enqueue_command(
            self._runtime, self.id, do, key=key, reason=reason, reading=self._reading
        )

    async def intake(self: Any, *, all: bool = False) -> list[IntakeItem]:
        """What waits to enter the conversation, in order, without what somebody is letting in; or
        all that is known.
        """
        return await list_intake_items(self._runtime, self.id, all=all)

    async def cancel(self: Any, *names: str, reason: str = "") -> list[ItemCancellation]:
        """Take back what waits, by id or key: the outcomes in the order asked for. What has entered
        stays.
        """
        return await cancel_intake_items(self._runtime, self.id, names, reason)

    async def cancel_from(self: Any, anchor: str, *, reason: str = "") -> list[ItemCancellation]:
        """Take back an item and all that came after it in its lane; raises `UnknownInput`."""
        return await cancel_items_from(self._runtime, self.id, anchor, reason)

    async def input(self: Any, id: str) -> InputStatus:
        """Where an input stands; raises `UnknownInput` if there was none of that id."""
        return await read_input_status(self._runtime, self.id, id, self._reading)


# ---- for whoever has no agent at hand, too


async def enqueue_item(runtime: Runtime, session_id: str, item: IntakeItem) -> Receipt:
    """Let an item wait. It is kept when this returns; a worker is woken, and not waited for."""
    return await runtime.engine.let_in(session_id, item)


async def enqueue_command(
    runtime: Runtime,
    session_id: str,
    do: str,
    *,
    key: str,
    reason: str = "",
    reading: ConversationReader | None = None,
) -> Receipt:
    """Let a command wait; see `InputVerbs.command`."""
    if do not in COMMANDS:
        raise BadArguments("command", f"{do!r} is none of {', '.join(COMMANDS)}")
    if not isinstance(key, str) or not key.strip():
        raise BadArguments(
            "command",
            "it needs a key that is not blank, so that the same again is the same command",
        )
    reading = reading or ConversationReader(runtime.store, session_id)
    await reading.refresh()
    name = check_key_length(f"command:{do}:{to_plain(key, 'the key')}")
    body: dict[str, JSON] = {"do": do, "reason": to_plain(reason, "the reason")}
    done = IntakeItem(
        name, ItemKind.COMMAND, body, name, when=DeliveryPolicy.IDLE, state=ItemState.COMPLETED
    )
    if reading.settled(name) is not None:  # a vacuum may have swept what the intake knew of it
        return Receipt(done, False)
    if do == CANCEL_TURN:
        body["turn"] = reading.under_way
    item = msgspec.structs.replace(done, state=ItemState.WAITING)

    def act(intake: Intake) -> Receipt:
        first = intake.items.get(name)  # whatever its reason was
        return Receipt(first, False) if first is not None else intake.enqueue(item)

    return await runtime.engine.shielded.run(runtime.engine.acceptance.act(session_id, act, [name]))


async def list_intake_items(
    runtime: Runtime, session_id: str, *, all: bool = False
) -> list[IntakeItem]:
    """What waits and nobody has claimed; or, with `all`, also what is claimed or has ended."""

    def act(intake: Intake) -> list[IntakeItem]:
        return list(intake.items.values()) if all else intake.waiting()

    return await runtime.store.intake(session_id, act, whole=all)


async def cancel_intake_items(
    runtime: Runtime, session_id: str, names: Sequence[str], reason: str = ""
) -> list[ItemCancellation]:
    if not names:
        raise BadArguments("cancel", "say what, by id or key")

    async def cancelled() -> list[ItemCancellation]:
        found = await runtime.store.intake(
            session_id, lambda intake: intake.cancel(names, reason), named=names, only=True
        )
        runtime.engine.sessions.changed(session_id)
        return found

    return await runtime.engine.shielded.run(cancelled())


async def cancel_items_from(
    runtime: Runtime, session_id: str, anchor: str, reason: str = ""
) -> list[ItemCancellation]:
    async def cancelled() -> list[ItemCancellation]:
        found = await runtime.store.intake(
            session_id, lambda intake: intake.cancel_from(anchor, reason), whole=True
        )
        if found is None:
            raise UnknownInput(session_id, anchor)
        runtime.engine.sessions.changed(session_id)
        return found

    return await runtime.engine.shielded.run(cancelled())


async def vacuum_ended_items(runtime: Runtime, session_id: str | None, older_than: float) -> int:
    """Forget what has ended; see `Runtime.vacuum`."""
    if (
        isinstance(older_than, bool)
        or not isinstance(older_than, int | float)
        or not older_than >= 0
    ):
        raise BadArguments("vacuum", f"older_than={older_than!r} should be seconds, 0 or more")

    if session_id is None:
        return await vacuum_all_intakes(runtime.store, older_than)
    await runtime.store.load(session_id, since=-1)  # raises UnknownSession
    return await vacuum_intakes(runtime.store, [session_id], older_than)


async def read_input_status(
    runtime: Runtime, session_id: str, id: str, reading: ConversationReader | None = None
) -> InputStatus:
    """Where an input stands; see `InputVerbs.input`."""
    reading = reading or ConversationReader(runtime.store, session_id)
    # before the journal: what leaves one is in the other
    item = await find_intake_item(runtime, session_id, id)
    await reading.refresh()
    name = id if item is None else item.id
    settled = reading.settled(name)
    if settled is not None:
        return InputStatus(name, InputStage.SETTLED, settled.turn, settled, item)
    if reading.input(name) is not None:
        if reading.head is not None and reading.head.ended:
            return InputStatus(
                name, InputStage.FAILED, item=item, reason=f"the session is {reading.head.state}"
            )
        entered = reading.told.entered(name)
        return InputStatus(
            name,
            InputStage.IN_TURN if entered else InputStage.WAITING,
            reading.under_way if entered else None,
            item=item,
        )
    if item is None:
        raise UnknownInput(session_id, id)
    why: Any = item.end if isinstance(item.end, dict) else {}
    reason = str(why.get("reason") or why.get("message") or "")
    match item.state:
        case ItemState.CANCELLED:
            return InputStatus(name, InputStage.CANCELLED, item=item, reason=reason)
        case ItemState.FAILED:
            return InputStatus(name, InputStage.FAILED, item=item, reason=reason)
        case ItemState.COMPLETED:  # a command that says nothing to the journal
            return InputStatus(name, InputStage.SETTLED, item=item)
    return InputStatus(name, InputStage.WAITING, item=item)


async def find_intake_item(runtime: Runtime, session_id: str, name: str) -> IntakeItem | None:
    """What the intake knows under an id or key."""

    def act(intake: Intake) -> IntakeItem | None:
        known = intake.items.get(name)
        return known or next((item for item in intake.items.values() if item.key == name), None)

    return await runtime.store.intake(session_id, act, named=[name], only=True)


async def require_not_ended(runtime: Runtime, session_id: str, input_id: str) -> None:
    """Raise `InputEnded` if an input was cancelled, or could not be let in."""
    item = await find_intake_item(runtime, session_id, input_id)
    if item is not None and item.state in (ItemState.CANCELLED, ItemState.FAILED):
        why: Any = item.end if isinstance(item.end, dict) else {}
        raise InputEnded(
            session_id, input_id, item.state, str(why.get("reason") or why.get("message") or "")
        )


async def has_same_input(runtime: Runtime, session_id: str, input_id: str, said: JSON) -> bool:
    """Whether the intake has an input of this id; raises `InputConflict` if it says something
    else.
    """
    item = await find_intake_item(runtime, session_id, input_id)
    if item is None:
        return False
    body: Any = item.body
    content = body.get("content") if isinstance(body, dict) else None
    if item.kind is not ItemKind.INPUT or not is_same_json(to_blocks(content), to_blocks(said)):
        raise InputConflict(input_id, session_id, item.id)
    return True


def require_same_input(session_id: str, input_id: str, first: JSON, said: JSON) -> None:
    """Raise `KeyConflict` if something else was said under this id."""
    if not is_same_json(to_blocks(first), to_blocks(said)):
        raise KeyConflict(input_id, session_id, "content")


def parse_busy_policy(given: str) -> BusyPolicy:
    try:
        return BusyPolicy(given)
    except ValueError:
        raise BadArguments("send", f"busy={given!r} is none of {', '.join(BusyPolicy)}") from None


def check_input_key(key: str | None) -> str | None:
    if key is not None and (not isinstance(key, str) or not key.strip()):
        raise BadArguments("enqueue", "a key is text, and not blank")
    return None if key is None else check_key_length(key)


def _boundary(at: str) -> Boundary | None:
    if at == NEXT_TURN:
        return None
    try:
        return Boundary(at)
    except ValueError:
        raise BadArguments(
            "enqueue", f"at={at!r} is none of {', '.join((NEXT_TURN, *Boundary))}"
        ) from None


def _moment(at: float) -> float:
    if isinstance(at, bool) or not isinstance(at, int | float):
        raise BadArguments("enqueue", f"available_at={at!r} is no moment; it is seconds since 1970")
    return float(at)
