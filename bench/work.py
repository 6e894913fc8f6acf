"""The work that every contender does: a program that asks `pauses` questions, one after the other.

Only the standard library may be imported here: the peers' environments load this file too.
"""

from enum import StrEnum
from statistics import median
from typing import Final

SIZE: Final = 200
PAUSES: Final = 20
PROMPTS: Final = tuple(f"{n:04d} ".ljust(SIZE, "p") for n in range(1000))
ANSWER: Final = "a" * SIZE

# The stretches of a long session that stand for "step 10" and for its last step.
EARLY: Final = slice(1, 20)
LATE: Final = slice(-20, -1)


class Level(StrEnum):
    """The durability of a step: it survives a killed process, a power loss, or nothing.

    On PostgreSQL it survives a power loss.
    """

    NORMAL = "NORMAL"
    FULL = "FULL"
    MEMORY = "MEMORY"
    POSTGRES = "POSTGRES"


# What SQLite's `PRAGMA synchronous` or PostgreSQL's `synchronous_commit` says when it is read back.
SYNCHRONOUS: Final = {Level.NORMAL: 1, Level.FULL: 2, Level.POSTGRES: "on"}


def expect(result: object, pauses: int) -> None:
    """Raise if a session did not return the length of all its answers."""
    if result != pauses * SIZE:
        raise AssertionError(
            f"a session of {pauses} pauses ended with {result!r}, not {pauses * SIZE}"
        )


def early_and_late(times: list[float]) -> dict[str, float]:
    """Condense the times of one long session's steps: near step 10, near the last, and all
    together.
    """
    return {
        "early": median(times[EARLY]),
        "late": median(times[LATE]),
        "mean": sum(times) / len(times),
    }
