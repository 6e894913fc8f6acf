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

from everhold.core.codec import JSON, dumps, plain
from everhold.core.graph import blocks, brief
from everhold.core.intake import MOST, Boundary, Intake, Item, ItemKind, Lane, Slot, When
from everhold.errors import EverholdError

#: What can be done to a conversation by a command.
CANCEL_TURN: Final = "cancel_turn"
COMMANDS: Final = ("refresh_tools", "reset", "compact", CANCEL_TURN)


class Entry(msgspec.Struct, frozen=True):
    """One thing to say, and the items that it is made of; None: there is nothing to say, they are
    done with.
    """

    said: dict[str, JSON] | None
    items: tuple[Item, ...]


class Plan(msgspec.Struct, frozen=True):
    """What becomes of the items of a claim, in order."""

    entries: list[Entry]
    failed: list[tuple[Item, JSON]]


class Malformed(Exception):
    """An item is nothing that can be said to an agent."""


def enters(intake: Intake, idle: bool) -> bool:
    """Whether something that waits may enter, as far as can be told without asking the program."""
    free = [item for item in intake.waiting() if item.available_at <= intake.now]
    return any(idle or enters_early(item) for item in free)


def joined(intake: Intake) -> int:
    """How many of the inputs that wait for the next turn are one turn: the first, and those that
    join it.
    """
    waiting = [
        item
        for item in intake.waiting(Lane.INPUT)
        if item.available_at <= intake.now and item.running is None
    ]
    if not waiting:
        return MOST
    return min(max(1, len(list(takewhile(lambda item: item.slot is Slot.JOIN, waiting)))), MOST)


def enters_early(item: Item) -> bool:
    """Whether an item is for the turn under way."""
    if item.kind is ItemKind.INPUT:
        return item.running is not None
    return cancels(item) if item.kind is ItemKind.COMMAND else item.when is When.EARLY


def cancels(item: Item) -> bool:
    """Whether an item is the command that cancels a turn."""
    return (
        item.kind is ItemKind.COMMAND
        and isinstance(item.body, dict)
        and item.body.get("do") == CANCEL_TURN
    )


def plan(
    items: Sequence[Item], turn: int | None, keep: Callable[[JSON], JSON] | None = None
) -> Plan:
    """What to say: `turn` is the one under way, or None; `keep` says how the agent wants it written
    down.
    """
    entries: list[Entry] = []
    failed: list[tuple[Item, JSON]] = []
    for item in items:
        try:
            said = _said(item, turn)
            entries.append(Entry(said if keep is None else spoken(said, keep), (item,)))
        except Malformed as error:
            failed.append((item, {"code": "bad_input", "message": str(error)}))
        except EverholdError as error:
            failed.append((item, {"code": error.code, "message": str(error)}))
    if turn is None and len(entries) > 1:
        entries = [_together(entries)]
    return Plan(entries, failed)


def _said(item: Item, turn: int | None) -> dict[str, JSON] | None:
    if item.kind is ItemKind.COMMAND:
        return _command(item, turn)
    said = _input(item) if item.kind is ItemKind.INPUT else _told(item)
    if turn is not None:
        said = {"do": "steer", **said}
        if item.kind is ItemKind.INPUT and item.boundary is Boundary.BEFORE_COMPLETION:
            said["boundary"] = item.boundary.value
    return said


def spoken(said: Any, keep: Callable[[JSON], JSON]) -> Any:
    """What is said to an agent, as it is written down: whoever said it may not have had the agent
    at hand.
    """
    if not isinstance(said, dict) or "content" not in said:
        return said
    return {**said, "content": brief(plain(keep(blocks(said["content"])), "the input"))}


def _command(item: Item, turn: int | None) -> dict[str, JSON] | None:
    body: Any = item.body
    do = body.get("do") if isinstance(body, dict) else None
    if do not in COMMANDS:
        raise Malformed(f"{do!r} is no command; there are {', '.join(COMMANDS)}")
    if do != CANCEL_TURN:
        return {**body, "id": item.id}
    if turn is None or body.get("turn") != turn:
        return None  # the turn that it was to cancel is over
    return {"do": "cancel", "turn": turn, "reason": str(body.get("reason") or "")}


def _input(item: Item) -> dict[str, JSON]:
    match item.body:
        case {"content": str() | list() as content, **more} if _is_said(content):
            options = more.get("options")
            if options is not None and not isinstance(options, dict):
                raise Malformed("its options are no object")
            return {
                "id": item.id,
                "content": content,
                **({} if not options else {"options": options}),
            }
    raise Malformed("it has no content that an agent could hear")


def _is_said(content: JSON) -> bool:
    found = blocks(content)
    return bool(found) and all(
        isinstance(one, dict) and isinstance(one.get("type"), str) for one in found
    )


def _told(item: Item) -> dict[str, JSON]:
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
        raise Malformed("it says nothing")
    return {"id": item.id, "content": content, **({"origin": origin} if origin else {})}


def _together(entries: Sequence[Entry]) -> Entry:
    """Several inputs as one: their contents in order, and the options of the first that has any."""
    said = [entry.said for entry in entries if entry.said is not None]
    parts = [blocks(one["content"]) for one in said]
    one: dict[str, JSON] = {
        "id": said[0]["id"],
        "content": brief([block for part in parts for block in part]),
    }
    one["parts"] = [[given["id"], len(part)] for given, part in zip(said, parts, strict=True)]
    options = next((given["options"] for given in said if "options" in given), None)
    if options is not None:
        one["options"] = options
    return Entry(one, tuple(item for entry in entries for item in entry.items))
