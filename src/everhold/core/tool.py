"""What is decided about the call of a tool, as data: whether it may run, what it came to, how much
of it is shown.

Rules
  1. A call runs only if everybody who was asked allows it. One denial is enough, every confirmation
     is asked for, and no verdict is a denial.
  2. What a person approves is one tool with one input, named by its digest. Anything else needs
     another approval.
  3. A call's key is the same however often it is run, and no other call of any session has it.
  4. A result that is too long for the model is cut at a line; all of it is kept elsewhere, and the
     model is told where.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Final, Literal

import msgspec

from everhold.core.codec import JSON
from everhold.errors import BadArguments

#: What the journal has in the place of a result, where the call came to something else: codes of
#: answers.
DENIED: Final = "tool_denied"
NEEDS_CONFIRM: Final = "tool_confirm"
LATER: Final = "tool_later"
HANDED_OVER: Final = "tool_handed"
BAD_INPUT: Final = "tool_input"
#: Those that say what happens next, so that all of it is kept: see `encode_pending_call`.
KEPT_WHOLE: Final = frozenset({NEEDS_CONFIRM, LATER, HANDED_OVER})


#: The names under which a journaled result has what its tool said and wrote beside it.
SAID_KEY: Final = "$said"
WRITES_KEY: Final = "$writes"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A call that a model wants made, for whoever decides about it."""

    tool: str
    input: dict[str, JSON]
    call_id: str
    session_id: str
    key: str
    read_only: bool = False


# ---- whether it may run


class Allow(msgspec.Struct, frozen=True):
    """It runs."""


class Deny(msgspec.Struct, frozen=True):
    """It does not run, and the model is told why."""

    reason: str = ""


class Confirm(msgspec.Struct, frozen=True, omit_defaults=True):
    """It runs if a person says yes, who is `to` if that is set. Nobody's yes within `timeout`
    seconds is a no.
    """

    reason: str = ""
    to: str | None = None
    timeout: float | None = None


#: What a policy decides.
Verdict = Allow | Deny | Confirm


def digest_tool_call(tool: str, given: JSON) -> str:
    """What an approval is bound to: this tool with this input, whatever the order of its names."""
    return sha256(msgspec.json.encode([tool, given], order="deterministic")).hexdigest()


def make_call_key(session_id: str, ordinal: int, call_id: str) -> str:
    """The idempotency key of a call: where it stands in its session, and never dice."""
    return sha256(f"{session_id}\0{ordinal}\0{call_id}".encode()).hexdigest()[:32]


# ---- what is said and written beside a result


class SideOutput(msgspec.Struct, frozen=True):
    """What a tool said to the model beside its result, and what it wrote into durable values."""

    said: list[str] = []
    writes: list[list[JSON]] = []


def wrap_side_output(result: JSON, also: SideOutput) -> JSON:
    """A result with what came beside it; a result alone is as it is, unless it could be taken for
    one with more.
    """
    if also.writes:
        return {SAID_KEY: also.said, WRITES_KEY: also.writes, "result": result}
    if also.said or (isinstance(result, dict) and SAID_KEY in result):
        return {SAID_KEY: also.said, "result": result}
    return result


def unwrap_side_output(kept: JSON) -> tuple[JSON, SideOutput | None]:
    """A result, and what came beside it; None if it was kept alone."""
    if isinstance(kept, dict) and SAID_KEY in kept:
        return kept["result"], SideOutput(kept[SAID_KEY], kept.get(WRITES_KEY, []))
    return kept, None


# ---- what is handed on


class ToolHandoff(msgspec.Struct, frozen=True):
    """A program that a tool hands its call on to, which is what a tool does that returns one with
    its arguments.
    """

    program: str
    version: int
    args: dict[str, JSON]


def decode_handoff(text: str) -> ToolHandoff:
    """What was recorded of a call that was handed on."""
    return msgspec.json.decode(text, type=ToolHandoff)


# ---- what finishes later


class Later(Exception):
    """What a tool returns or raises when somebody else will give its result.

    The call becomes a question that is answered from outside. After `timeout` seconds without an
    answer the model is told so, or (`on_timeout="fail"`) the turn fails.
    """

    def __init__(
        self,
        prompt: str = "",
        *,
        timeout: float | None = None,
        on_timeout: Literal["error", "fail"] = "error",
        to: str | None = None,
    ) -> None:
        super().__init__(prompt)
        if on_timeout not in ("error", "fail"):
            raise BadArguments(
                "Later", f"on_timeout should be 'error' or 'fail', got {on_timeout!r}"
            )
        if timeout is not None and not 0 < timeout < float("inf"):
            raise BadArguments("Later", f"timeout should be a number of seconds, got {timeout!r}")
        self.prompt = prompt
        self.timeout = timeout
        self.on_timeout = on_timeout
        self.to = to


def encode_pending_call(what: Confirm | list[Confirm] | Later | ToolHandoff) -> str:
    """What the journal says of it, where a result would be."""
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
    """The confirmations that were recorded: one alone, or several."""
    found: Confirm | list[Confirm] = msgspec.json.decode(text, type=Confirm | list[Confirm])
    return found if isinstance(found, list) else [found]


def decode_later(text: str) -> Later:
    """What was recorded of a call that finishes later."""
    return Later(**msgspec.json.decode(text))


# ---- how much is shown


class Window(msgspec.Struct, frozen=True):
    """How much of a result the model is shown."""

    size: int = 16 * 1024  # bytes of UTF-8
    lines: int = 400
    keep: Literal["head", "tail"] = "head"

    def __post_init__(self) -> None:
        if self.size < 1 or self.lines < 1:
            raise BadArguments("Window", "size and lines should be 1 or more")

    def cut(self, text: str) -> str | None:
        """The part that is shown, or None if all of it is."""
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
        """What the model is told of the part that it does not see."""
        side = "first" if self.keep == "head" else "last"
        return (
            f"[The {side} {len(shown.encode('utf-8', 'surrogatepass')):,} of "
            f"{len(text.encode('utf-8', 'surrogatepass')):,} bytes are shown, of {_rows(text):,}"
            " lines. "
            f"All of it is kept as attachment {where}.]"
        )


def _rows(text: str) -> int:
    return text.count("\n") + (not text.endswith("\n"))
