"""A turn: one round of an agent, from an input to the outcome that settles it.

Rules
  1. Every input that was accepted ends in exactly one outcome, and every outcome is recorded once,
     with the commit that settles the turn. A turn that stopped is recorded like one that was
     answered: what was said stays.
  2. What is recorded is the receipt: asking again with the same input id gives the same one.
"""

from __future__ import annotations

import msgspec

from everhold.core.codec import JSON


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
