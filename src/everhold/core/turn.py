"""A turn: one round of an agent, from an input to the outcome that settles it; and its options.

Rules of turns
  1. Every accepted input gets exactly one outcome. Every outcome is recorded once, with the commit
     that settles the turn. A turn that stopped is recorded like one that was answered: its messages
     are kept.
  2. The recorded outcome is the receipt: the same input id always gets the same receipt.

Rules of options
  1. Every frame has options of its own. A new frame begins with those of the frame before it.
  2. Options are set for the current frame and the frames after it, or for all frames.
  3. Options for one turn override these, name by name, and end with the turn.
  4. The value None removes a name.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from everhold.core.codec import JSON
from everhold.core.graph import INITIAL_FRAME, Frame
from everhold.errors import BadArguments
from everhold.exception_info import ExceptionInfo


class TurnAnswered(msgspec.Struct, frozen=True, omit_defaults=True, tag="answered"):
    """The model has finished. Its text is that of the leaf; `value` is set if the agent returns
    one.
    """

    value: JSON = None


class MaxTurnsReached(msgspec.Struct, frozen=True, omit_defaults=True, tag="max_turns"):
    """The model called tools until the limit was reached."""

    limit: int


class TurnCancelled(msgspec.Struct, frozen=True, omit_defaults=True, tag="cancelled"):
    """The turn was cancelled."""

    reason: str = ""


class TurnFailed(msgspec.Struct, frozen=True, omit_defaults=True, tag="failed"):
    """The model could not be asked, or its answer could not be used."""

    error: str
    code: str = ""
    hint: str = ""
    exception: ExceptionInfo | None = None  # behind the error, if code of a user raised it


class TurnAborted(msgspec.Struct, frozen=True, omit_defaults=True, tag="aborted"):
    """A plugin stopped the turn."""

    plugin: str
    reason: str = ""


class FrameOpened(msgspec.Struct, frozen=True, omit_defaults=True, tag="framed"):
    """A turn without a message: it opened a new frame, or none; then `why` says why not, and the
    outcome is false.
    """

    reason: str
    frame: str | None = None
    why: str = ""

    def __bool__(self) -> bool:
        return self.frame is not None


class OptionsConfigured(msgspec.Struct, frozen=True, omit_defaults=True, tag="configured"):
    """A turn without a message: it set the options of one frame, or of all frames."""

    options: dict[str, JSON]
    frame: str
    everywhere: bool = False


class ToolsRefreshed(msgspec.Struct, frozen=True, omit_defaults=True, tag="refreshed"):
    """A turn without a message: it read the tool sources again; these tools are offered now."""

    tools: list[str]
    fingerprint: str = ""
    unreached: list[str] = []  # the sources that failed, each with its error


class StateApplied(msgspec.Struct, frozen=True, omit_defaults=True, tag="applied"):
    """A turn without a message: it applied the state of another conversation.

    `verified` says whether that conversation was in the same store and had these nodes. `by` is who
    applied the state.
    """

    source: str
    nodes: int  # the number of added nodes
    verified: bool = False
    by: JSON = None
    options: dict[str, dict[str, JSON]] = {}  # the options that were set, by frame


class ToolsChanged(msgspec.Struct, frozen=True, omit_defaults=True, tag="tools_changed"):
    """No message: a host changed the tools of the session; these are offered now."""

    tools: list[str]
    generation: int
    fingerprint: str = ""


class CodeExecuted(msgspec.Struct, frozen=True, omit_defaults=True, tag="executed"):
    """A turn without a message: it ran a program of the host. An error of the program is part of
    the outcome.
    """

    language: str
    value: JSON = None
    printed: str = ""
    error: str | None = None
    finished: bool = False  # whether it ended with `finish`


class OperationDone(msgspec.Struct, frozen=True, omit_defaults=True, tag="operated"):
    """A turn without a message: the host ran an operation of a plugin."""

    plugin: str
    operation: str
    value: JSON = None


#: How a turn ended.
TurnOutcome = (
    TurnAnswered
    | MaxTurnsReached
    | TurnCancelled
    | TurnFailed
    | TurnAborted
    | FrameOpened
    | OptionsConfigured
    | ToolsRefreshed
    | StateApplied
    | ToolsChanged
    | CodeExecuted
    | OperationDone
)


class HandoverOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a trigger did with an event, when the event was emitted. A `waiting` one is tried again
    later.
    """

    trigger: str
    state: str  # started, already, waiting or failed
    session_id: str | None = None  # the session that was started, or got the event
    error: str = ""


class EventOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The outcome of an event that a turn emitted: a handover for each trigger, or an error."""

    event: str
    key: str
    handovers: list[HandoverOutcome] = []
    error: str = ""


def check_event_name(name: str, what: str = "event") -> None:
    """Raise `BadArguments` for a name that no event or trigger can have."""
    # names are parts of ids, separated by slashes
    is_valid = (
        isinstance(name, str)
        and name.strip()
        and name.isprintable()
        and "/" not in name
        and len(name) <= 200
    )
    if not is_valid:
        raise BadArguments(
            what, f"a name has 1 to 200 printable characters and no '/', got {name!r}"
        )


class SettledTurn(msgspec.Struct, frozen=True, omit_defaults=True):
    """The receipt of a turn."""

    turn: int
    input: str
    outcome: TurnOutcome
    leaf: str | None = None
    rounds: int = 0  # the number of model calls
    taken: list[str] = []  # ids of inputs that arrived during the turn and that the model received
    events: list[EventOutcome] = []  # events that tools and plugins emitted in the turn


def merge_options(lower: dict[str, JSON], upper: dict[str, JSON] | None) -> dict[str, JSON]:
    """Merges options name by name: `upper` overrides `lower`, and None removes a name."""
    if not upper:
        return lower
    return {name: value for name, value in {**lower, **upper}.items() if value is not None}


class FrameOptions:
    """The options of one session, frame by frame."""

    def __init__(self) -> None:
        self._frames: dict[str, dict[str, JSON]] = {INITIAL_FRAME: {}}

    def of(self, frame: str) -> dict[str, JSON]:
        """The options of a frame."""
        return self._frames.get(frame, {})

    def set(self, frame: str, options: dict[str, JSON], *, everywhere: bool = False) -> None:
        """Replaces the options of a frame, or of all existing frames."""
        for one in self._frames if everywhere else (frame,):
            self._frames[one] = options

    def opened(self, frame: str, previous: str) -> None:
        """Adds a frame; it begins with the options of the previous one."""
        self._frames[frame] = self.of(previous)


def compute_frame_options(
    first: dict[str, JSON], turns: Sequence[SettledTurn], frames: Iterable[Frame]
) -> FrameOptions:
    """The options of all frames, from the first options of a conversation and its receipts."""
    options = FrameOptions()
    options.set(INITIAL_FRAME, first)
    opened = [(int(one.id.partition(".")[0]), one) for one in frames if one.previous is not None]
    for settled in turns:
        while opened and opened[0][0] <= settled.turn:
            _, one = opened.pop(0)
            options.opened(one.id, one.previous or INITIAL_FRAME)
        if isinstance(settled.outcome, OptionsConfigured):
            options.set(
                settled.outcome.frame,
                settled.outcome.options,
                everywhere=settled.outcome.everywhere,
            )
        elif isinstance(settled.outcome, StateApplied):
            for name, applied in settled.outcome.options.items():
                options.set(name, applied)
    for _, one in opened:  # by the running turn
        options.opened(one.id, one.previous or INITIAL_FRAME)
    return options
