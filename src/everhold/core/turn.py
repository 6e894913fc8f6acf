"""A turn: one round of an agent, from an input to the outcome that settles it.

Rules
  1. Every input that was accepted ends in exactly one outcome, and every outcome is recorded once,
     with the commit that settles the turn. A turn that stopped is recorded like one that was
     answered: what was said stays.
  2. What is recorded is the receipt: asking again with the same input id gives the same one.

Options of turns: what holds for a session, for each of its frames, and for one turn.

Rules
  1. A frame has options of its own. A new one begins with those of the frame before it.
  2. Setting them concerns the current frame, and every frame that comes after it; or all frames,
     earlier ones too.
  3. What is given for one turn is laid over them, name by name, and is gone with the turn.
  4. None takes a name away.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from everhold.core.codec import JSON
from everhold.core.graph import INITIAL_FRAME, Frame


class TurnAnswered(msgspec.Struct, frozen=True, omit_defaults=True, tag="answered"):
    """The model is done. Its words are those of the leaf; the value is there if the agent returns
    one.
    """

    value: JSON = None


class MaxTurnsReached(msgspec.Struct, frozen=True, omit_defaults=True, tag="max_turns"):
    """The model kept calling tools until the limit."""

    limit: int


class TurnCancelled(msgspec.Struct, frozen=True, omit_defaults=True, tag="cancelled"):
    """Somebody cancelled the turn."""

    reason: str = ""


class TurnFailed(msgspec.Struct, frozen=True, omit_defaults=True, tag="failed"):
    """The model could not be asked, or what it said could not be used."""

    error: str
    code: str = ""


class TurnAborted(msgspec.Struct, frozen=True, omit_defaults=True, tag="aborted"):
    """A plugin stopped the turn."""

    plugin: str
    reason: str = ""


class FrameOpened(msgspec.Struct, frozen=True, omit_defaults=True, tag="framed"):
    """No words: a new frame was opened; or none, because nothing was to be done."""

    reason: str
    frame: str | None = None


class OptionsConfigured(msgspec.Struct, frozen=True, omit_defaults=True, tag="configured"):
    """No words: the options of a frame, or of all of them, are these now."""

    options: dict[str, JSON]
    frame: str
    everywhere: bool = False


class ToolsRefreshed(msgspec.Struct, frozen=True, omit_defaults=True, tag="refreshed"):
    """No words: those who offer tools were asked again, and these are offered now."""

    tools: list[str]
    fingerprint: str = ""
    unreached: list[str] = []  # what went wrong with whom


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
)


class SettledTurn(msgspec.Struct, frozen=True, omit_defaults=True):
    """The receipt of a turn."""

    turn: int
    input: str
    outcome: TurnOutcome
    leaf: str | None = None
    rounds: int = 0  # how often the model was asked
    taken: list[str] = []  # ids of the inputs that came while it ran and that the model heard


def merge_options(lower: dict[str, JSON], upper: dict[str, JSON] | None) -> dict[str, JSON]:
    """One set of options laid over another, name by name."""
    if not upper:
        return lower
    return {name: value for name, value in {**lower, **upper}.items() if value is not None}


class FrameOptions:
    """The options of one session, frame by frame."""

    def __init__(self) -> None:
        self._frames: dict[str, dict[str, JSON]] = {INITIAL_FRAME: {}}

    def of(self, frame: str) -> dict[str, JSON]:
        """What holds in a frame."""
        return self._frames.get(frame, {})

    def set(self, frame: str, options: dict[str, JSON], *, everywhere: bool = False) -> None:
        """Give a frame, or all frames that there are, these options and no others."""
        for one in self._frames if everywhere else (frame,):
            self._frames[one] = options

    def opened(self, frame: str, previous: str) -> None:
        """A frame was opened; it begins with the options of the one before."""
        self._frames[frame] = self.of(previous)


def compute_frame_options(
    first: dict[str, JSON], turns: Sequence[SettledTurn], frames: Iterable[Frame], frame: str
) -> dict[str, JSON]:
    """What holds in a frame, by what a conversation was given when it began, and by its
    receipts.
    """
    options = FrameOptions()
    options.set(INITIAL_FRAME, first)
    opened = [(_turn(one.id), one) for one in frames if one.previous is not None]
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
    return options.of(frame)


def _turn(node_id: str) -> int:
    return int(node_id.partition(".")[0])
