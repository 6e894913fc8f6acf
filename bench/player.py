"""Runs the work on a contender step by step, and times it.

Only the standard library may be imported here: the peers' environments load this file too.
"""

from collections.abc import Callable
from time import perf_counter, process_time
from typing import Any, Protocol

from bench import work
from bench.speak import Reply, Verb


class Player(Protocol):
    """A contender: one session is whatever `start` returns."""

    def start(self, pauses: int) -> Any:
        """Start a session; MUST return when its first question is durable."""

    def answer(self, session: Any, value: str) -> None:
        """Give one answer; MUST return when it, and the next question or the end, are durable."""

    def result(self, session: Any) -> object:
        """The result of the finished program."""


def sequence(player: Player, *, sessions: int, pauses: int) -> Reply:
    """One session after the other, each alone."""
    started = stepped = worked = 0.0
    for _ in range(sessions):
        before = perf_counter()
        session = player.start(pauses)
        between = perf_counter()
        spent = process_time()
        for _ in range(pauses):
            player.answer(session, work.ANSWER)
        worked += process_time() - spent
        after = perf_counter()
        started += between - before
        stepped += after - between
        work.expect(player.result(session), pauses)
    steps = sessions * pauses
    return {"start": started / sessions, "step": stepped / steps, "cpu": worked / steps}


def cold(player: Player, *, sessions: int, answers: int) -> Reply:
    """The step after this many answers. A player that holds nothing in memory is always cold."""
    taken = 0.0
    for _ in range(sessions):
        session = player.start(2 * answers)
        for _ in range(answers):
            player.answer(session, work.ANSWER)
        before = perf_counter()
        player.answer(session, work.ANSWER)
        taken += perf_counter() - before
    return {"step": taken / sessions}


def length(player: Player, *, pauses: int) -> Reply:
    """One long session, each step timed."""
    session = player.start(pauses)
    times = []
    for _ in range(pauses):
        before = perf_counter()
        player.answer(session, work.ANSWER)
        times.append(perf_counter() - before)
    work.expect(player.result(session), pauses)
    return work.early_and_late(times)


def crowd(player: Player, *, sessions: int, pauses: int) -> Reply:
    """Many sessions open at once, answered in turn."""
    before = perf_counter()
    crowded = [player.start(pauses) for _ in range(sessions)]
    between = perf_counter()
    spent = process_time()
    for _ in range(pauses):
        for session in crowded:
            player.answer(session, work.ANSWER)
    spent = process_time() - spent
    after = perf_counter()
    for session in crowded:
        work.expect(player.result(session), pauses)
    steps = sessions * pauses
    return {
        "start": (between - before) / sessions,
        "step": (after - between) / steps,
        "cpu": spent / steps,
    }


def verbs(player: Callable[[], Player]) -> dict[str, Verb]:
    """The verbs of a worker for a player; `player` is called at each of them."""
    return {
        "sequence": lambda **args: sequence(player(), **args),
        "cold": lambda **args: cold(player(), **args),
        "length": lambda **args: length(player(), **args),
        "crowd": lambda **args: crowd(player(), **args),
    }
