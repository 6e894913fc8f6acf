"""DBOS on a SQLite or PostgreSQL system database, with its synchronous API, in two forms
(bench/peers/dbos_async_worker.py has the same with the asynchronous one).

`step` a workflow that calls a step per question; DBOS commits what the step returned (the answer,
not the
        question), nothing waits and nobody answers from outside: this is less work than everybody else's,
        and kept because it is DBOS at its fastest.
`recv`  a workflow that receives its answers with `DBOS.recv`, sent from outside with `DBOS.send`; a question
        is not stored. This is the pause.
"""  # noqa: E501

import queue
from collections.abc import Callable
from itertools import pairwise
from time import perf_counter, process_time
from typing import Any

from dbos import DBOS

from bench import speak, work
from bench.peers.dbos_database import TOPIC, WAIT, configure, fetched, opened

asked: "queue.SimpleQueue[int]" = queue.SimpleQueue()


@DBOS.step()
def ask(prompt: str) -> str:
    fetched.append(perf_counter())
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


def calls(sessions: int, steps: int) -> speak.Reply:
    """Workflows whose steps call a function; a step lasts from one call to the next."""
    taken = 0.0
    for _ in range(sessions):
        fetched.clear()
        work.expect(stepping(steps + 1)["total"], steps + 1)
        taken += fetched[-1] - fetched[0]
    return {"step": taken / (sessions * steps)}


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
    spent = process_time()
    before = perf_counter()
    handles = [DBOS.start_workflow(stepping, pauses) for _ in range(sessions)]
    for handle in handles:
        work.expect(handle.get_result()["total"], pauses)
    steps = sessions * pauses
    return {
        "start": 0.0,
        "step": (perf_counter() - before) / steps,
        "cpu": (process_time() - spent) / steps,
    }


def main() -> None:
    forms: list[Callable[[int], tuple[float, list[float]]]] = []

    def open(level: str, path: str, form: str) -> speak.Reply:
        configure(level, path)
        forms.append(FORMS[form])
        DBOS.launch()
        forms[0](1)
        return opened()

    def sequence(sessions: int, pauses: int) -> speak.Reply:
        spent = process_time()
        lives = [forms[0](pauses) for _ in range(sessions)]
        spent = process_time() - spent  # of the starts, too: threads cannot be told apart
        stepped = sum(sum(times) for _, times in lives)
        return {
            "start": sum(start for start, _ in lives) / sessions,
            "step": stepped / (sessions * pauses),
            "cpu": spent / (sessions * pauses),
        }

    def length(pauses: int) -> speak.Reply:
        return work.early_and_late(forms[0](pauses)[1])

    def close() -> speak.Reply:
        DBOS.destroy()
        return {}

    verbs = {"open": open, "sequence": sequence, "calls": calls, "length": length}
    speak.serve({**verbs, "crowd": crowd, "close": close})


if __name__ == "__main__":
    main()
