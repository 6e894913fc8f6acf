"""Converts items of an intake into messages for an agent. Pure functions, no I/O.

| item | no turn runs | a turn runs |
|---|---|---|
| input, wake, task | items claimed together become one turn | delivered singly at a checkpoint |
| command | applied | `cancel_turn` is applied, others wait |

An item without valid content fails with a code and a reason. The other items of its claim are
delivered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON, dumps, to_plain
from everhold.core.graph import compact_blocks, to_blocks
from everhold.core.intake import (
    MAX_CLAIMED,
    MAX_INPUT_BYTES,
    Boundary,
    DeliveryPolicy,
    Intake,
    IntakeItem,
    ItemKind,
    Lane,
    MergePolicy,
    require_input_fits,
)
from everhold.errors import EverholdError

#: The commands of a conversation.
CANCEL_TURN: Final = "cancel_turn"
COMMANDS: Final = ("refresh_tools", "reset", "compact", CANCEL_TURN)


class IntakeMessage(msgspec.Struct, frozen=True):
    """A message and the items that it is made of. Without a message, the items are just done."""

    said: dict[str, JSON] | None
    items: tuple[IntakeItem, ...]


class IntakePlan(msgspec.Struct, frozen=True):
    """What to do with the items of a claim, in order."""

    entries: list[IntakeMessage]
    failed: list[tuple[IntakeItem, JSON]]


class MalformedItem(Exception):
    """An item has no content that an agent can receive."""


def has_item_to_enter(intake: Intake, idle: bool) -> bool:
    """Whether any queued item may be delivered now. `idle`: no turn runs."""
    free = [item for item in intake.waiting() if item.available_at <= intake.now]
    return any(idle or is_for_running_turn(item) for item in free)


def count_joined_inputs(intake: Intake) -> int:
    """How many queued inputs form the next turn: the first, and those that join it."""
    waiting = [
        item
        for item in intake.waiting(Lane.INPUT)
        if item.available_at <= intake.now and item.running is None
    ]
    if not waiting:
        return MAX_CLAIMED
    return min(
        max(1, len(list(takewhile(lambda item: item.slot is MergePolicy.JOIN, waiting)))),
        MAX_CLAIMED,
    )


def is_for_running_turn(item: IntakeItem) -> bool:
    """Whether an item is meant for the running turn."""
    if item.kind is ItemKind.INPUT:
        return item.running is not None
    return (
        is_cancel_command(item)
        if item.kind is ItemKind.COMMAND
        else item.when is DeliveryPolicy.EARLY
    )


def is_cancel_command(item: IntakeItem) -> bool:
    """Whether an item is the command that cancels a turn."""
    return (
        item.kind is ItemKind.COMMAND
        and isinstance(item.body, dict)
        and item.body.get("do") == CANCEL_TURN
    )


def plan_intake_messages(
    items: Sequence[IntakeItem],
    turn: int | None,
    keep: Callable[[JSON], JSON] | None = None,
    limit: int = MAX_INPUT_BYTES,
) -> IntakePlan:
    """Plan the messages. `turn` is the running turn, if any; `keep` rewrites content for the
    journal; an item with more than `limit` bytes fails.
    """
    entries: list[IntakeMessage] = []
    failed: list[tuple[IntakeItem, JSON]] = []
    for item in items:
        try:
            said = _make_message(item, turn)
            if said is not None and "content" in said:
                require_input_fits(said["content"], limit)
            entries.append(
                IntakeMessage(said if keep is None else apply_keep_to_input(said, keep), (item,))
            )
        except MalformedItem as error:
            failed.append((item, {"code": "bad_input", "message": str(error)}))
        except EverholdError as error:
            failed.append((item, {"code": error.code, "message": str(error)}))
    if turn is None and len(entries) > 1:
        entries = [_join_messages(entries)]
    return IntakePlan(entries, failed)


def _make_message(item: IntakeItem, turn: int | None) -> dict[str, JSON] | None:
    if item.kind is ItemKind.COMMAND:
        return _command(item, turn)
    said = _input(item) if item.kind is ItemKind.INPUT else _make_marked_message(item)
    if turn is not None:
        said = {"do": "steer", **said}
        if item.kind is ItemKind.INPUT and item.boundary is Boundary.BEFORE_COMPLETION:
            said["boundary"] = item.boundary.value
    return said


def apply_keep_to_input(said: Any, keep: Callable[[JSON], JSON]) -> Any:
    """Rewrite the content of a message with the agent's `keep`. The sender may not have had the
    agent.
    """
    if not isinstance(said, dict) or "content" not in said:
        return said
    return {
        **said,
        "content": compact_blocks(to_plain(keep(to_blocks(said["content"])), "the input")),
    }


def _command(item: IntakeItem, turn: int | None) -> dict[str, JSON] | None:
    body: Any = item.body
    do = body.get("do") if isinstance(body, dict) else None
    if do not in COMMANDS:
        raise MalformedItem(f"{do!r} is not a command; there are {', '.join(COMMANDS)}")
    if do != CANCEL_TURN:
        return {**body, "id": item.id}
    if turn is None or body.get("turn") != turn:
        return None  # the turn to cancel is over
    return {"do": "cancel", "turn": turn, "reason": str(body.get("reason") or "")}


def _input(item: IntakeItem) -> dict[str, JSON]:
    match item.body:
        case {"content": str() | list() as content, **more} if _is_content(content):
            options = more.get("options")
            if options is not None and not isinstance(options, dict):
                raise MalformedItem("its options are not an object")
            return {
                "id": item.id,
                "content": content,
                **({} if not options else {"options": options}),
                **({"role": more["role"]} if "role" in more else {}),
            }
    raise MalformedItem("it has no content: text or a list of blocks")


def _is_content(content: JSON) -> bool:
    found = to_blocks(content)
    return bool(found) and all(
        isinstance(one, dict) and isinstance(one.get("type"), str) for one in found
    )


def _make_marked_message(item: IntakeItem) -> dict[str, JSON]:
    """News of a process, or a task, marked with its origin."""
    body: Any = item.body if isinstance(item.body, dict) else {"content": item.body}
    content = body.get("content", body)
    if not isinstance(content, str) and not (isinstance(content, list) and _is_content(content)):
        content = dumps(content)
    origin = str(body.get("origin") or "")
    if origin:
        mark = f"[from {origin}]"
        content = (
            f"{mark} {content}"
            if isinstance(content, str)
            else [{"type": "text", "text": mark}, *content]
        )
    if not content:
        raise MalformedItem("its content is empty")
    return {"id": item.id, "content": content, **({"origin": origin} if origin else {})}


def _join_messages(entries: Sequence[IntakeMessage]) -> IntakeMessage:
    """Join inputs to one: their contents in order, and the first options that are given."""
    said = [entry.said for entry in entries if entry.said is not None]
    parts = [to_blocks(one["content"]) for one in said]
    one: dict[str, JSON] = {
        "id": said[0]["id"],
        "content": compact_blocks([block for part in parts for block in part]),
    }
    one["parts"] = [[given["id"], len(part)] for given, part in zip(said, parts, strict=True)]
    options = next((given["options"] for given in said if "options" in given), None)
    if options is not None:
        one["options"] = options
    return IntakeMessage(one, tuple(item for entry in entries for item in entry.items))
