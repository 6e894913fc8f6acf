"""Inputs of a conversation: queue them, read their status, cancel them; and the policy for a
running turn.

An input has one id, however it is sent. A caller's key is its id: an input with a used id is not
accepted again, neither directly nor through the intake.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from everhold.agents.conversation_reader import ConversationReader
from everhold.core.codec import JSON, is_same_json, to_plain
from everhold.core.graph import to_blocks
from everhold.core.intake import (
    Boundary,
    DeliveryPolicy,
    Intake,
    IntakeItem,
    ItemCancellation,
    ItemKind,
    ItemState,
    Receipt,
)
from everhold.core.turn import SettledTurn
from everhold.engine.arguments import check_key_length
from everhold.engine.engine import Engine
from everhold.engine.intake_messages import CANCEL_TURN, COMMANDS
from everhold.errors import BadArguments, InputConflict, InputEnded, KeyConflict, UnknownInput

#: An input enters with the next turn, or at a checkpoint (`Boundary`) of the running one.
NEXT_TURN: Final = "next"


class BusyPolicy(StrEnum):
    """What happens to an input during a turn."""

    QUEUE = "queue"  # it waits for the next turn
    REJECT = "reject"  # it is refused
    STEER = "steer"  # the running turn gets it
    FORK = "fork"  # it starts a turn in a fork of the conversation


class InputStage(StrEnum):
    """The stage of an input."""

    WAITING = "waiting"  # in the intake, or until the running turn settles
    IN_TURN = "in_turn"
    SETTLED = "settled"
    CANCELLED = "cancelled"
    FAILED = "failed"


class InputStatus(msgspec.Struct, frozen=True):
    """The status of an input: its stage, its turn, and its intake item."""

    id: str
    stage: InputStage
    turn: int | None = None
    settled: SettledTurn | None = None
    item: IntakeItem | None = None
    reason: str = ""  # why it was cancelled or failed


async def enqueue_item(engine: Engine, session_id: str, item: IntakeItem) -> Receipt:
    """Queue an item. It is stored when this returns; a worker is notified, not waited for."""
    return await engine.let_in(session_id, item)


async def enqueue_command(
    engine: Engine,
    session_id: str,
    do: str,
    *,
    key: str,
    reason: str = "",
    reading: ConversationReader | None = None,
) -> Receipt:
    """Queue a command; see `AgentSession.command`."""
    if do not in COMMANDS:
        raise BadArguments(
            "command", f"{do!r} is not a command; the commands are {', '.join(COMMANDS)}"
        )
    if not isinstance(key, str) or not key.strip():
        raise BadArguments(
            "command",
            "key must not be blank; a repeated command with the same key runs once",
        )
    reading = reading or ConversationReader(engine.store, session_id)
    await reading.refresh()
    name = check_key_length(f"command:{do}:{to_plain(key, 'the key')}")
    body: dict[str, JSON] = {"do": do, "reason": to_plain(reason, "the reason")}
    done = IntakeItem(
        name, ItemKind.COMMAND, body, name, when=DeliveryPolicy.IDLE, state=ItemState.COMPLETED
    )
    if reading.settled(name) is not None:  # its intake item may have been deleted by `db vacuum`
        return Receipt(done, False)
    if do == CANCEL_TURN:
        body["turn"] = reading.under_way
    item = msgspec.structs.replace(done, state=ItemState.WAITING)

    def act(intake: Intake) -> Receipt:
        first = intake.items.get(name)  # the reason need not match
        return Receipt(first, False) if first is not None else intake.enqueue(item)

    return await engine.shielded.run(engine.acceptance.act(session_id, act, [name]))


async def list_intake_items(
    engine: Engine, session_id: str, *, all: bool = False
) -> list[IntakeItem]:
    """Queued items that are not claimed; with `all`, also claimed and ended ones."""

    def act(intake: Intake) -> list[IntakeItem]:
        return list(intake.items.values()) if all else intake.waiting()

    return await engine.store.intake(session_id, act, whole=all)


async def cancel_intake_items(
    engine: Engine, session_id: str, names: Sequence[str], reason: str = ""
) -> list[ItemCancellation]:
    if not names:
        raise BadArguments("cancel", "give at least one id or key")

    async def cancelled() -> list[ItemCancellation]:
        found = await engine.store.intake(
            session_id, lambda intake: intake.cancel(names, reason), named=names, only=True
        )
        engine.sessions.changed(session_id)
        return found

    return await engine.shielded.run(cancelled())


async def cancel_items_from(
    engine: Engine, session_id: str, anchor: str, reason: str = ""
) -> list[ItemCancellation]:
    async def cancelled() -> list[ItemCancellation]:
        found = await engine.store.intake(
            session_id, lambda intake: intake.cancel_from(anchor, reason), whole=True
        )
        if found is None:
            raise UnknownInput(session_id, anchor)
        engine.sessions.changed(session_id)
        return found

    return await engine.shielded.run(cancelled())


async def read_input_status(
    engine: Engine, session_id: str, id: str, reading: ConversationReader | None = None
) -> InputStatus:
    """The status of an input; see `AgentSession.input`."""
    reading = reading or ConversationReader(engine.store, session_id)
    # read the intake before the journal: an item that leaves the intake is in the journal then
    item = await find_intake_item(engine, session_id, id)
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
        case ItemState.COMPLETED:  # a command without an entry in the journal
            return InputStatus(name, InputStage.SETTLED, item=item)
    return InputStatus(name, InputStage.WAITING, item=item)


async def find_intake_item(engine: Engine, session_id: str, name: str) -> IntakeItem | None:
    """The intake item with this id or key, or None."""

    def act(intake: Intake) -> IntakeItem | None:
        known = intake.items.get(name)
        return known or next((item for item in intake.items.values() if item.key == name), None)

    return await engine.store.intake(session_id, act, named=[name], only=True)


async def require_not_ended(engine: Engine, session_id: str, input_id: str) -> None:
    """Raise `InputEnded` if an input was cancelled or refused."""
    item = await find_intake_item(engine, session_id, input_id)
    if item is not None and item.state in (ItemState.CANCELLED, ItemState.FAILED):
        why: Any = item.end if isinstance(item.end, dict) else {}
        raise InputEnded(
            session_id, input_id, item.state, str(why.get("reason") or why.get("message") or "")
        )


async def has_same_input(engine: Engine, session_id: str, input_id: str, said: JSON) -> bool:
    """Whether the intake has an input of this id; raises `InputConflict` for other content."""
    item = await find_intake_item(engine, session_id, input_id)
    if item is None:
        return False
    body: Any = item.body
    content = body.get("content") if isinstance(body, dict) else None
    if item.kind is not ItemKind.INPUT or not is_same_json(to_blocks(content), to_blocks(said)):
        raise InputConflict(input_id, session_id, item.id)
    return True


def require_same_input(session_id: str, input_id: str, first: JSON, said: JSON) -> None:
    """Raise `KeyConflict` if this id was used for other content."""
    if not is_same_json(to_blocks(first), to_blocks(said)):
        raise KeyConflict(input_id, session_id, "content")


def parse_busy_policy(given: str) -> BusyPolicy:
    try:
        return BusyPolicy(given)
    except ValueError:
        raise BadArguments(
            "send", f"busy={given!r} must be one of {', '.join(BusyPolicy)}"
        ) from None


def check_input_key(key: str | None) -> str | None:
    if key is not None and (not isinstance(key, str) or not key.strip()):
        raise BadArguments("enqueue", "key must be text that is not blank")
    return None if key is None else check_key_length(key)


def parse_boundary(at: str) -> Boundary | None:
    if at == NEXT_TURN:
        return None
    try:
        return Boundary(at)
    except ValueError:
        raise BadArguments(
            "enqueue", f"at={at!r} must be one of {', '.join((NEXT_TURN, *Boundary))}"
        ) from None


def check_moment(at: float) -> float:
    if isinstance(at, bool) or not isinstance(at, int | float):
        raise BadArguments("enqueue", f"available_at={at!r} must be a number of seconds since 1970")
    return float(at)
