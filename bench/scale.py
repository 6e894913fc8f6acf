"""How much of everything: a run that counts, and a quick one that only shows that the bench works."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Scale:
    rounds: int  # slices of each contender
    long: int  # pauses of a long session
    peer_long: int
    crowd: int  # sessions open at once
    peer_crowd: int
    crowd_rounds: int
    sized: int  # sessions in a database whose bytes are counted
    peer_sized: int
    parked: int  # paused sessions in one file
    few_parked: int
    live: int  # paused Lua sessions in memory at once
    starts: int  # fresh processes per command
    turns: tuple[int, ...]  # of a conversation, around which turns are timed
    shared_pauses: int  # pauses of each of the 50 sessions a process has


COUNTS: Final = Scale(
    rounds=25,
    long=1000,
    peer_long=300,
    crowd=1000,
    peer_crowd=50,
    crowd_rounds=5,
    sized=1000,
    peer_sized=30,
    parked=100_000,
    few_parked=1000,
    live=10_000,
    starts=25,
    turns=(10, 100, 1000),
    shared_pauses=200,
)
QUICK: Final = Scale(
    rounds=3,
    long=1000,
    peer_long=100,
    crowd=200,
    peer_crowd=5,
    crowd_rounds=2,
    sized=200,
    peer_sized=5,
    parked=3000,
    few_parked=300,
    live=300,
    starts=3,
    turns=(10, 100),
    shared_pauses=40,
)
