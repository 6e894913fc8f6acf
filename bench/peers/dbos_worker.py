"""DBOS on a SQLite system database, in two forms.

`step` a workflow that calls a step per question; DBOS commits what the step returned (the answer,
not the
        question), nothing waits and nobody answers from outside: this is less work than everybody else's,
        and kept because it is DBOS at its fastest.
`recv`  a workflow that receives its answers with `DBOS.recv`, sent from outside with `DBOS.send`; a question
        is not stored. This is the pause.

Given what DBOS does not do by itself: WAL (faster than its default, the rollback journal), and a
listener that polls every 5 ms instead of every second (1 and 20 ms made no visible difference).
"""  # noqa: E501

import queue
from collections.abc import Callable
from importlib.metadata import version
from itertools import pairwise
from time import perf_counter
from typing import Any

import sqlalchemy
from dbos import DBOS

from bench import speak, work

TOPIC = "answer"
WAIT = 60.0
said: set[int] = set()
asked: "queue.SimpleQueue[int]" = queue.SimpleQueue()


@DBOS.step()
def ask(prompt: str) -> str:
    return work.ANSWER


@DBOS.workflow()
def stepping(pauses: int) -> dict[str, Any]:
    """Say what it got and how long each step took: only the workflow itself can know."""
    total = 0
    times = []
    for n in range(pauses):
        before = perf_counter()
        total += len(ask(work.PROMPTS[n % 1000]))
        times.append(perf_counter() - before)
    return {"total": total, "times": times}


@DBOS.workflow()
def receiving(pauses: int) -> int:
    total = 0
    for n in range(pauses):
        asked.put(n)
        total += len(DBOS.recv(TOPIC, timeout_seconds=WAIT))
    return total


def step_session(pauses: int) -> tuple[float, list[float]]:
    """Run one session of steps; return the seconds around its steps, and those of each step."""
    before = perf_counter()
    outcome = stepping(pauses)
    whole = perf_counter() - before
    work.expect(outcome["total"], pauses)
    return whole - sum(outcome["times"]), outcome["times"]


def recv_session(pauses: int) -> tuple[float, list[float]]:
    """Run one session of pauses; a pause lasts from one question to the next, or to the end."""
    before = perf_counter()
    handle = DBOS.start_workflow(receiving, pauses)
    asked.get(timeout=WAIT)
    marks = [perf_counter()]
    for n in range(pauses):
        DBOS.send(handle.get_workflow_id(), work.ANSWER, TOPIC)
        if n < pauses - 1:
            asked.get(timeout=WAIT)
            marks.append(perf_counter())
    total = handle.get_result()
    marks.append(perf_counter())
    work.expect(total, pauses)
    return marks[0] - before, [later - sooner for sooner, later in pairwise(marks)]


FORMS: dict[str, Callable[[int], tuple[float, list[float]]]] = {
    "step": step_session,
    "recv": recv_session,
}


def crowd(sessions: int, pauses: int) -> speak.Reply:
    """Workflows of steps on DBOS's own threads; their starts cannot be told from their steps."""
    before = perf_counter()
    handles = [DBOS.start_workflow(stepping, pauses) for _ in range(sessions)]
    for handle in handles:
        work.expect(handle.get_result()["total"], pauses)
    return {"start": 0.0, "step": (perf_counter() - before) / (sessions * pauses)}


def keep_level(level: work.Level) -> None:
    """Set the level on every connection that DBOS opens from now on, and note what SQLite says of
    it.
    """

    @sqlalchemy.event.listens_for(sqlalchemy.Engine, "connect")
    def connected(connection: Any, _record: Any) -> None:
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute(f"PRAGMA synchronous = {level}")
        said.add(connection.execute("PRAGMA synchronous").fetchone()[0])


def main() -> None:
    forms: list[Callable[[int], tuple[float, list[float]]]] = []

    def open(level: str, path: str, form: str) -> speak.Reply:
        keep_level(work.Level(level))
        forms.append(FORMS[form])
        DBOS(
            config={
                "name": "bench",
                "system_database_url": f"sqlite:///{path}",
                "notification_listener_polling_interval_sec": 0.005,
                "log_level": "ERROR",
            }
        )
        DBOS.launch()
        forms[0](1)
        return {
            "versions": {"dbos": version("dbos")},
            "synchronous": said.pop() if len(said) == 1 else None,
        }

    def sequence(sessions: int, pauses: int) -> speak.Reply:
        lives = [forms[0](pauses) for _ in range(sessions)]
        stepped = sum(sum(times) for _, times in lives)
        return {
            "start": sum(start for start, _ in lives) / sessions,
            "step": stepped / (sessions * pauses),
        }

    def length(pauses: int) -> speak.Reply:
        return work.early_and_late(forms[0](pauses)[1])

    def close() -> speak.Reply:
        DBOS.destroy()
        return {}

    speak.serve(
        {"open": open, "sequence": sequence, "length": length, "crowd": crowd, "close": close}
    )


if __name__ == "__main__":
    main()
