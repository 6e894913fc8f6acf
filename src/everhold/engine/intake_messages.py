"""How items of an intake are said to an agent. Plain functions: nothing is read or written here.

| item | where no turn is under way | in a turn |
|---|---|---|
| inputs, wakes, tasks | those that were claimed together are one turn | each is heard at a checkpoint, by itself |
| a command | is done | `cancel_turn` is done; the others wait |

An item that cannot be said to an agent fails, with a code and the reason; the others of its claim
are said.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON, dumps, to_plain
from everhold.core.graph import compact_blocks, to_blocks
from everhold.core.intake import (
    MAX_CLAIMED,
    Boundary,
    DeliveryPolicy,
    Intake,
    IntakeItem,
    ItemKind,
    Lane,
    MergePolicy,
)
from everhold.errors import EverholdError

#: What can be done to a conversation by a command.
CANCEL_TURN: Final = "cancel_turn"
COMMANDS: Final = ("refresh_tools", "reset", "compact", CANCEL_TURN)


class IntakeMessage(msgspec.Struct, frozen=True):
    """One thing to say, and the items that it is made of; None: there is nothing to say, they are
    done with.
    """

    said: dict[str, JSON] | None
    items: tuple[IntakeItem, ...]


class IntakePlan(msgspec.Struct, frozen=True):
    """What becomes of the items of a claim, in order."""

    entries: list[IntakeMessage]
    failed: list[tuple[IntakeItem, JSON]]


class MalformedItem(Exception):
    """An item is nothing that can be said to an agent."""


def has_item_to_enter(intake: Intake, idle: bool) -> bool:
    """Whether something that waits may enter, as far as can be told without asking the program."""
    free = [item for item in intake.waiting() if item.available_at <= intake.now]
    return any(idle or is_for_running_turn(item) for item in free)


def count_joined_inputs(intake: Intake) -> int:
    """How many of the inputs that wait for the next turn are one turn: the first, and those that
    join it.
    """
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
    """Whether an item is for the turn under way."""
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
    items: Sequence[IntakeItem], turn: int | None, keep: Callable[[JSON], JSON] | None = None
) -> IntakePlan:
    """What to say: `turn` is the one under way, or None; `keep` says how the agent wants it written
    down.
    """
    entries: list[IntakeMessage] = []
    failed: list[tuple[IntakeItem, JSON]] = []
    for item in items:
        try:
            said = _said(item, turn)
            entries.append(
                IntakeMessage(said if keep is None else apply_keep_to_input(said, keep), (item,))
            )
        except MalformedItem as error:
            failed.append((item, {"code": "bad_input", "message": str(error)}))
        except EverholdError as error:
            failed.append((item, {"code": error.code, "message": str(error)}))
    if turn is None and len(entries) > 1:
        entries = [_together(entries)]
    return IntakePlan(entries, failed)


def _said(item: IntakeItem, turn: int | None) -> dict[str, JSON] | None:
    if item.kind is ItemKind.COMMAND:
        return _command(item, turn)
    said = _input(item) if item.kind is ItemKind.INPUT else _told(item)
    if turn is not None:
        said = {"do": "steer", **said}
        if item.kind is ItemKind.INPUT and item.boundary is Boundary.BEFORE_COMPLETION:
            said["boundary"] = item.boundary.value
    return said


def apply_keep_to_input(said: Any, keep: Callable[[JSON], JSON]) -> Any:
    """What is said to an agent, as it is written down: whoever said it may not have had the agent
    at hand.
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
        raise MalformedItem(f"{do!r} is no command; there are {', '.join(COMMANDS)}")
    if do != CANCEL_TURN:
        return {**body, "id": item.id}
    if turn is None or body.get("turn") != turn:
        return None  # the turn that it was to cancel is over
    return {"do": "cancel", "turn": turn, "reason": str(body.get("reason") or "")}


def _input(item: IntakeItem) -> dict[str, JSON]:
    match item.body:
        case {"content": str() | list() as content, **more} if _is_said(content):
            options = more.get("options")
            if options is not None and not isinstance(options, dict):
                raise MalformedItem("its options are no object")
            return {
                "id": item.id,
                "content": content,
                **({} if not options else {"options": options}),
            }
    raise MalformedItem("it has no content that an agent could hear")


def _is_said(content: JSON) -> bool:
    found = to_blocks(content)
    return bool(found) and all(
        isinstance(one, dict) and isinstance(one.get("type"), str) for one in found
    )


def _told(item: IntakeItem) -> dict[str, JSON]:
    """What a process below says, or work for a turn of its own: marked with where it comes from."""
    body: Any = item.body if isinstance(item.body, dict) else {"content": item.body}
    content = body.get("content", body)
    if not isinstance(content, str) and not (isinstance(content, list) and _is_said(content)):
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
        raise MalformedItem("it says nothing")
    return {"id": item.id, "content": content, **({"origin": origin} if origin else {})}


def _together(entries: Sequence[IntakeMessage]) -> IntakeMessage:
    """Several inputs as one: their contents in order, and the options of the first that has any."""
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
