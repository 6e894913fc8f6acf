"""The amount of work: of a real run, and of a quick one that only shows that the bench works."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Scale:
    rounds: int  # slices of each contender
    settled: int  # sessions in a file before slices at FULL are taken from it
    fresh_rounds: int  # new files whose first commits are timed
    cold: int  # sessions of a slice that are not in memory
    long: int  # pauses of a long session
    peer_long: int
    crowd: int  # sessions open at once
    peer_crowd: int
    crowd_rounds: int
    sized: int  # sessions in a database whose bytes are counted
    peer_sized: int
    parked: int  # paused sessions in one file
    few_parked: int
    listed: tuple[int, ...]  # sessions in files whose lists are read
    grown: tuple[int, ...]  # deliveries, children or turns of one session
    live: int  # paused Lua sessions in memory at once
    starts: int  # fresh processes per command
    turns: tuple[int, ...]  # of a conversation, around which turns are timed
    shared_pauses: int  # pauses of each of the 50 sessions a process has
    fleet_sessions: int  # sessions that workers on Postgres share
    peer_fleet_sessions: int
    fleet_rounds: int
    fleet_turns: int  # turns whose latency is taken
    fleet_parked: int  # paused sessions on Postgres
    takeovers: int  # workers that die, and that leave


COUNTS: Final = Scale(
    rounds=25,
    settled=100,
    fresh_rounds=15,
    cold=50,
    long=1000,
    peer_long=300,
    crowd=1000,
    peer_crowd=30,
    crowd_rounds=5,
    sized=1000,
    peer_sized=30,
    parked=100_000,
    few_parked=1000,
    listed=(1000, 10_000, 100_000, 1_000_000),
    grown=(1250, 2500, 5000, 10_000),
    live=10_000,
    starts=25,
    turns=(10, 100, 1000),
    shared_pauses=200,
    fleet_sessions=240,
    peer_fleet_sessions=40,
    fleet_rounds=5,
    fleet_turns=60,
    fleet_parked=20_000,
    takeovers=5,
)
QUICK: Final = Scale(
    rounds=3,
    settled=5,
    fresh_rounds=2,
    cold=10,
    long=1000,
    peer_long=100,
    crowd=200,
    peer_crowd=5,
    crowd_rounds=2,
    sized=200,
    peer_sized=5,
    parked=3000,
    few_parked=300,
    listed=(1000, 3000),
    grown=(100, 200, 400),
    live=300,
    starts=3,
    turns=(10, 100),
    shared_pauses=40,
    fleet_sessions=60,
    peer_fleet_sessions=10,
    fleet_rounds=2,
    fleet_turns=20,
    fleet_parked=1000,
    takeovers=1,
)
