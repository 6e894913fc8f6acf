"""Decisions about a tool call, as data: whether it may run, its outcome, how much of it is shown.

Rules
  1. A call runs only if every policy allows it. One denial is enough to stop it, every confirmation
     is requested, and a missing verdict is a denial.
  2. A person approves one tool with one input, named by its digest. Any other input needs another
     approval.
  3. The key of a call is the same for every run of it, and unique over all sessions.
  4. A result that is too long for the model is cut at a line. The whole result is stored as an
     attachment, and the model gets its id.
"""

from __future__ import annotations

from hashlib import sha256
from sys import float_info
from typing import Annotated, Final, Literal

import msgspec

from everhold.core.codec import JSON
from everhold.core.schema import PositiveInt, describe_misfit, fits_type
from everhold.errors import BadArguments

OnTimeout = Literal["error", "fail"]
FiniteSeconds = Annotated[float, msgspec.Meta(gt=0, le=float_info.max)]

#: Codes of answers that the journal has instead of a result.
DENIED: Final = "tool_denied"
NEEDS_CONFIRM: Final = "tool_confirm"
LATER: Final = "tool_later"
HANDED_OVER: Final = "tool_handed"
BAD_INPUT: Final = "tool_input"
#: The codes whose message holds data, so that it is never cut: see `encode_pending_call`.
KEPT_WHOLE: Final = frozenset({NEEDS_CONFIRM, LATER, HANDED_OVER})


#: The fields of a recorded result with the side output of its tool.
SAID_KEY: Final = "$said"
WRITES_KEY: Final = "$writes"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that a model requests, for the policies that decide about it."""

    tool: str
    input: dict[str, JSON]
    call_id: str
    session_id: str
    key: str
    read_only: bool = False


# ---- whether it may run


class Allow(msgspec.Struct, frozen=True):
    """The call runs."""


class Deny(msgspec.Struct, frozen=True):
    """The call does not run, and the model gets the reason."""

    reason: str = ""


class Confirm(msgspec.Struct, frozen=True, omit_defaults=True):
    """The call runs if a person approves it; `to` names that person. Without an approval within
    `timeout` seconds it is denied.
    """

    reason: str = ""
    to: str | None = None
    timeout: float | None = None


#: The decision of a policy.
Verdict = Allow | Deny | Confirm


def digest_tool_call(tool: str, given: JSON) -> str:
    """The digest that an approval is bound to: tool and input; the order of names is ignored."""
    return sha256(msgspec.json.encode([tool, given], order="deterministic")).hexdigest()


def make_call_key(session_id: str, ordinal: int, call_id: str) -> str:
    """The idempotency key of a call: made from its position in its session, never random."""
    return sha256(f"{session_id}\0{ordinal}\0{call_id}".encode()).hexdigest()[:32]


# ---- side output


class SideOutput(msgspec.Struct, frozen=True):
    """Messages of a tool to the model beside its result, and its writes to durable values."""

    said: list[str] = []
    writes: list[list[JSON]] = []


def wrap_side_output(result: JSON, also: SideOutput) -> JSON:
    """A result with its side output. A result without any is unchanged, unless it looks like one
    with side output.
    """
    if also.writes:
        return {SAID_KEY: also.said, WRITES_KEY: also.writes, "result": result}
    if also.said or (isinstance(result, dict) and SAID_KEY in result):
        return {SAID_KEY: also.said, "result": result}
    return result


def unwrap_side_output(kept: JSON) -> tuple[JSON, SideOutput | None]:
    """A recorded result and its side output; None if it has none."""
    if isinstance(kept, dict) and SAID_KEY in kept:
        return kept["result"], SideOutput(kept[SAID_KEY], kept.get(WRITES_KEY, []))
    return kept, None


# ---- handoffs


class ToolHandoff(msgspec.Struct, frozen=True):
    """A program with its arguments that a tool returns: the program's result becomes the tool's."""

    program: str
    version: int
    args: dict[str, JSON]


def decode_handoff(text: str) -> ToolHandoff:
    """Decodes a recorded handoff."""
    return msgspec.json.decode(text, type=ToolHandoff)


# ---- calls that finish later


class Later(Exception):
    """Returned or raised by a tool whose result will be sent from outside.

    The call becomes a question that is answered from outside. After `timeout` seconds without an
    answer the model gets an error or, with `on_timeout="fail"`, the turn fails.
    """

    def __init__(
        self,
        prompt: str = "",
        *,
        timeout: float | None = None,
        on_timeout: OnTimeout = "error",
        to: str | None = None,
    ) -> None:
        super().__init__(prompt)
        if misfit := describe_misfit(on_timeout, OnTimeout):
            raise BadArguments("Later", f"on_timeout {misfit}")
        if timeout is not None and not fits_type(timeout, FiniteSeconds):
            raise BadArguments(
                "Later", f"timeout must be a finite number of seconds above 0, got {timeout!r}"
            )
        self.prompt = prompt
        self.timeout = timeout
        self.on_timeout = on_timeout
        self.to = to


def encode_pending_call(what: Confirm | list[Confirm] | Later | ToolHandoff) -> str:
    """Encodes a pending call for the journal, instead of a result."""
    if isinstance(what, Confirm | list | ToolHandoff):
        return msgspec.json.encode(what).decode()
    facts = {
        "prompt": what.prompt,
        "timeout": what.timeout,
        "on_timeout": what.on_timeout,
        "to": what.to,
    }
    return msgspec.json.encode(facts).decode()


def decode_confirms(text: str) -> list[Confirm]:
    """Decodes recorded confirmations: one, or several."""
    found: Confirm | list[Confirm] = msgspec.json.decode(text, type=Confirm | list[Confirm])
    return found if isinstance(found, list) else [found]


def decode_later(text: str) -> Later:
    """Decodes a recorded call that finishes later."""
    return Later(**msgspec.json.decode(text))


# ---- how much of a result is shown


class Window(msgspec.Struct, frozen=True):
    """The part of a result that the model sees."""

    size: PositiveInt = 16 * 1024  # bytes of UTF-8
    lines: PositiveInt = 400
    keep: Literal["head", "tail"] = "head"

    def __post_init__(self) -> None:
        for name in ("size", "lines"):
            if misfit := describe_misfit(getattr(self, name), PositiveInt):
                raise BadArguments("Window", f"{name} {misfit}")

    def cut(self, text: str) -> str | None:
        """The part that is shown; None if that is the whole text."""
        short = _rows(text) <= self.lines
        if short and len(text) * 4 <= self.size:
            return None
        data = text.encode("utf-8", "surrogatepass")
        if short and len(data) <= self.size:
            return None
        rows = text.split("\n")
        rows = [row + "\n" for row in rows[:-1]] + [row for row in rows[-1:] if row]
        kept: list[str] = []
        left = self.size
        for row in rows[: self.lines] if self.keep == "head" else rows[: -self.lines - 1 : -1]:
            left -= len(row.encode("utf-8", "surrogatepass"))
            if left < 0:
                break
            kept.append(row)
        if not kept:  # one line alone is too long
            part = data[: self.size] if self.keep == "head" else data[-self.size :]
            return part.decode("utf-8", "ignore")
        return "".join(kept if self.keep == "head" else reversed(kept))

    def note(self, text: str, shown: str, where: str) -> str:
        """The note to the model about the part that it does not see."""
        side = "first" if self.keep == "head" else "last"
        return (
            f"[Truncated to the {side} {len(shown.encode('utf-8', 'surrogatepass')):,} of"
            f" {len(text.encode('utf-8', 'surrogatepass')):,} bytes ({_rows(text):,} lines)."
            f" The whole result is attachment {where}.]"
        )


def _rows(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n"))
