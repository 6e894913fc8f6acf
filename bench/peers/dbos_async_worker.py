"""DBOS with its asynchronous API, in the two forms of bench/peers/dbos_worker.py.

Workflows and steps are coroutines on one event loop. DBOS's database calls run in threads of its
own, as it does by itself.
"""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise
from time import perf_counter, process_time
from typing import Any

from dbos import DBOS

from bench import speak, work
from bench.peers.dbos_database import TOPIC, WAIT, configure, fetched, opened


@DBOS.step()
async def ask(prompt: str) -> str:
    fetched.append(perf_counter())
    return work.ANSWER


@DBOS.workflow()
async def stepping(pauses: int) -> dict[str, Any]:
    total = 0
    times = []
    for n in range(pauses):
        before = perf_counter()
        total += len(await ask(work.PROMPTS[n % 1000]))
        times.append(perf_counter() - before)
    return {"total": total, "times": times}


#: Where each receiving workflow says that it asks.
asked: dict[str, "asyncio.Queue[int]"] = {}


@DBOS.workflow()
async def receiving(name: str, pauses: int) -> int:
    total = 0
    for n in range(pauses):
        asked[name].put_nowait(n)
        total += len(await DBOS.recv_async(TOPIC, timeout_seconds=WAIT))
    return total


async def step_session(pauses: int) -> tuple[float, list[float]]:
    before = perf_counter()
    outcome = await stepping(pauses)
    whole = perf_counter() - before
    work.expect(outcome["total"], pauses)
    return whole - sum(outcome["times"]), outcome["times"]


async def recv_session(pauses: int) -> tuple[float, list[float]]:
    """A pause lasts from one question to the next, or to the end."""
    name = f"s{len(asked)}"
    questions = asked[name] = asyncio.Queue()
    before = perf_counter()
    handle = await DBOS.start_workflow_async(receiving, name, pauses)
    await asyncio.wait_for(questions.get(), WAIT)
    marks = [perf_counter()]
    for n in range(pauses):
        await DBOS.send_async(handle.get_workflow_id(), work.ANSWER, TOPIC)
        if n < pauses - 1:
            await asyncio.wait_for(questions.get(), WAIT)
            marks.append(perf_counter())
    total = await handle.get_result()
    marks.append(perf_counter())
    work.expect(total, pauses)
    return marks[0] - before, [later - sooner for sooner, later in pairwise(marks)]


Form = Callable[[int], Awaitable[tuple[float, list[float]]]]
FORMS: dict[str, Form] = {"step": step_session, "recv": recv_session}


class Worker:
    """The verbs; `open` says which form is played."""

    def __init__(self) -> None:
        self.form: Form = step_session

    async def open(self, level: str, path: str, form: str) -> speak.Reply:
        configure(level, path)
        self.form = FORMS[form]
        DBOS.launch()
        await self.form(1)
        return opened()

    async def sequence(self, sessions: int, pauses: int) -> speak.Reply:
        spent = process_time()
        lives = [await self.form(pauses) for _ in range(sessions)]
        spent = process_time() - spent  # of the starts, too
        stepped = sum(sum(times) for _, times in lives)
        return {
            "start": sum(start for start, _ in lives) / sessions,
            "step": stepped / (sessions * pauses),
            "cpu": spent / (sessions * pauses),
        }

    async def calls(self, sessions: int, steps: int) -> speak.Reply:
        taken = 0.0
        for _ in range(sessions):
            fetched.clear()
            work.expect((await stepping(steps + 1))["total"], steps + 1)
            taken += fetched[-1] - fetched[0]
        return {"step": taken / (sessions * steps)}

    async def length(self, pauses: int) -> speak.Reply:
        return work.early_and_late((await self.form(pauses))[1])

    async def crowd(self, sessions: int, pauses: int) -> speak.Reply:
        """All at once on the loop; their starts cannot be told from their steps."""
        spent = process_time()
        before = perf_counter()
        await asyncio.gather(*(self.form(pauses) for _ in range(sessions)))
        steps = sessions * pauses
        return {
            "start": 0.0,
            "step": (perf_counter() - before) / steps,
            "cpu": (process_time() - spent) / steps,
        }

    async def close(self) -> speak.Reply:
        DBOS.destroy()
        return {}


VERBS = ("open", "sequence", "calls", "length", "crowd", "close")


def main() -> None:
    worker = Worker()
    asyncio.run(speak.serve_async({name: getattr(worker, name) for name in VERBS}))


if __name__ == "__main__":
    main()
