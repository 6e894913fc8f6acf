"""everhold: `runtime.start` and `runtime.answer`, as a user writes them.

Nothing here is optional: a verb, a type or a result that everhold lacks stops the bench.
"""

import asyncio
import resource
import sqlite3
import sys
from contextlib import AsyncExitStack
from importlib.metadata import version
from pathlib import Path
from random import Random
from time import perf_counter, process_time
from typing import Any

from bench import speak, work
from bench.burn import burning

# SQLite is asked for its level on everhold's own connections, so they are noted from before its
# import.
connections: list[sqlite3.Connection] = []
_connect = sqlite3.connect


def _noting_connect(*args: Any, **kwargs: Any) -> sqlite3.Connection:
    connections.append(_connect(*args, **kwargs))
    return connections[-1]


sqlite3.connect = _noting_connect  # type: ignore[assignment]

import everhold  # noqa: E402
from bench import programs  # noqa: E402

#: What is played: the program, and what each of its questions is answered with.
FORMS = {"chain": (programs.chain, work.ANSWER), "approvals": (programs.approvals, True)}
WARM = 5  # answers before those that are timed
URLS = {work.Level.MEMORY: "memory://", work.Level.POSTGRES: "{}"}
DURABILITY = {
    work.Level.NORMAL: "process",
    work.Level.FULL: "power",
    work.Level.POSTGRES: "power",
}
SAMPLE = 60


class Ours:
    """One runtime, opened and reopened on one database."""

    def __init__(self) -> None:
        self.stack = AsyncExitStack()
        self.url = ""
        self.durability = ""
        self.cache = 1000
        self.runtime: Any = None
        self.program: Any = programs.chain
        self.value: Any = work.ANSWER

    def call(self, pauses: int) -> Any:
        """The program that is played; subclasses override it."""
        return self.program(pauses)

    async def open(self, level: str, path: str, form: str = "chain") -> speak.Reply:
        wanted = work.Level(level)
        self.program, self.value = FORMS[form]
        self.url = URLS.get(wanted, "sqlite:///{}").format(path)
        self.durability = DURABILITY.get(wanted, "process")
        seconds = await self._reopen()
        return {
            "versions": {"everhold": version("everhold")},
            "synchronous": await self._read_back(wanted),
            "seconds": seconds,
        }

    async def _read_back(self, level: work.Level) -> Any:
        """What the database says about the durability of everhold's own connection."""
        if level is work.Level.MEMORY:
            return None
        if level is not work.Level.POSTGRES:
            return synchronous()
        await self.sequence(1, 1)  # the writer connects at its first commit
        line = self.runtime.store._group._line
        return (await (await line.execute("SHOW synchronous_commit")).fetchone())[0]

    async def _reopen(self) -> float:
        await self.stack.aclose()
        connections.clear()
        before = perf_counter()
        runtime = everhold.open(self.url, durability=self.durability, cache=self.cache)
        self.runtime = await self.stack.enter_async_context(runtime)
        return perf_counter() - before

    async def close(self) -> speak.Reply:
        connections.clear()
        await self.stack.aclose()
        return {}

    async def sequence(self, sessions: int, pauses: int) -> speak.Reply:
        """One session after the other, each alone."""
        runtime = self.runtime
        value = self.value
        started = 0.0
        stepped = 0.0
        worked = 0.0
        for _ in range(sessions):
            before = perf_counter()
            status = await runtime.start(self.call(pauses))
            between = perf_counter()
            spent = process_time()
            try:
                for _ in range(pauses):
                    status = await runtime.answer(status.queries[0], value)
            except AttributeError as error:
                raise AssertionError(f"it should ask on, but is {status!r}") from error
            worked += process_time() - spent
            after = perf_counter()
            started += between - before
            stepped += after - between
            work.expect(status.result, pauses)
        steps = sessions * pauses
        return {"start": started / sessions, "step": stepped / steps, "cpu": worked / steps}

    async def cold(self, sessions: int, answers: int) -> speak.Reply:
        """Answer sessions that have this many answers and are not in memory: each is read,
        replayed, and makes one step.
        """
        paused = await asyncio.gather(
            *(self.runtime.start(self.call(answers * 2)) for _ in range(sessions + WARM))
        )
        await asyncio.gather(*(self._play(status, answers) for status in paused))
        await self._reopen()
        for status in paused[:WARM]:
            await self.runtime.answer(status.session_id, self.value)
        before = perf_counter()
        for status in paused[WARM:]:
            last = await self.runtime.answer(status.session_id, self.value)
        ended = perf_counter()
        if last.queries[0].id != f"q-{answers + 1}":
            raise AssertionError(f"it should ask on after {answers + 1} answers, not {last!r}")
        return {"step": (ended - before) / sessions}

    async def fresh(self, path: str, sessions: int, pauses: int) -> speak.Reply:
        """The first steps of a new file."""
        await self.stack.aclose()
        self.url = f"sqlite:///{path}"
        await self._reopen()
        return await self.sequence(sessions, pauses)

    async def calls(self, sessions: int, steps: int) -> speak.Reply:
        """Sessions whose steps call a function; a step lasts from one call to the next."""
        taken = 0.0
        for _ in range(sessions):
            programs.fetched.clear()
            status = await self.runtime.start(programs.calls(steps + 1))
            if status.state != "completed":
                status = await self.runtime.wait(status.session_id)
            work.expect(status.result, steps + 1)
            taken += programs.fetched[-1] - programs.fetched[0]
        return {"step": taken / (sessions * steps)}

    async def length(self, pauses: int) -> speak.Reply:
        """One long session, each step timed."""
        status = await self.runtime.start(self.call(pauses))
        times = []
        for _ in range(pauses):
            before = perf_counter()
            status = await self.runtime.answer(status.queries[0], self.value)
            times.append(perf_counter() - before)
        work.expect(status.result, pauses)
        return work.early_and_late(times)

    async def crowd(self, sessions: int, pauses: int, busy: bool = False) -> speak.Reply:
        """Many sessions, each a task that answers its own questions."""
        before = perf_counter()
        paused = await asyncio.gather(
            *(self.runtime.start(self.call(pauses)) for _ in range(sessions))
        )
        async with burning(busy) as burn:
            spent = process_time()
            began = perf_counter()
            ends = await asyncio.gather(*(self._play(status, pauses) for status in paused))
            ended = perf_counter()
            spent = process_time() - spent
        for status in ends:
            work.expect(status.result, pauses)
        return {
            "start": (began - before) / sessions,
            "step": (ended - began) / (sessions * pauses),
            "cpu": spent / (sessions * pauses),
            "began": began,
            "ended": ended,
            "share": burn.share,
        }

    async def _play(self, status: Any, pauses: int) -> Any:
        for _ in range(pauses):
            status = await self.runtime.answer(status.queries[0], self.value)
        return status

    async def lengthen(self, answers: int) -> speak.Reply:
        """Start a session and give it this many answers, half of those that it takes."""
        status = await self._play(await self.runtime.start(self.call(answers * 2)), answers)
        return {"session": status.session_id}

    async def park(self, sessions: int) -> speak.Reply:
        """Start this many sessions and leave them at their first question; return some of them, by
        chance.
        """
        ids: list[str] = []
        while len(ids) < sessions:
            wave = range(min(1000, sessions - len(ids)))
            paused = await asyncio.gather(
                *(self.runtime.start(self.call(work.PAUSES)) for _ in wave)
            )
            ids += [status.session_id for status in paused]
        return {"sessions": Random(len(ids)).sample(ids, min(SAMPLE, len(ids)))}

    async def wake(self, session: str, reopen: bool = True) -> speak.Reply:
        """Answer a session that is not in memory, in a runtime opened for the purpose."""
        opened = await self._reopen() if reopen else 0.0
        before = perf_counter()
        status = await self.runtime.answer(session, self.value)
        answered = perf_counter() - before
        if len(status.queries) != 1:
            raise AssertionError(f"woken, it should ask one question, not {status!r}")
        return {"open": opened, "answer": answered}

    async def memory(self) -> speak.Reply:
        return {"megabytes": resident()}


def synchronous() -> int | None:
    """The synchronous level of everhold's own connection, as SQLite reports it (the connection of
    this thread).
    """
    said = set()
    for connection in connections:
        try:
            said.add(connection.execute("PRAGMA synchronous").fetchone()[0])
        except sqlite3.ProgrammingError:
            continue
    return said.pop() if len(said) == 1 else None


def resident() -> float:
    """The memory of this process in MB; if the system does not report it, the most it ever
    held.
    """
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return most / (1e6 if sys.platform == "darwin" else 1e3)
    return pages * resource.getpagesize() / 1e6


VERBS = (
    *("open", "close", "sequence", "cold", "fresh", "calls", "length", "crowd"),
    *("lengthen", "park", "wake", "memory"),
)


def main() -> None:
    ours = Ours()
    asyncio.run(speak.serve_async({name: getattr(ours, name) for name in VERBS}))


if __name__ == "__main__":
    main()
