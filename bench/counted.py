"""Work whose instructions are counted: `python -m bench.counted WHAT PATH`, under callgrind.

`os.getloadavg` marks where counting begins and ends: callgrind writes a dump each time it is
called. What came before the first mark (imports, files, the first steps) is not counted.
"""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable

from bench import work
from bench.floor import Floor, Session
from bench.ours import Ours  # before everhold: it notes SQLite's connections
from bench.talk import Talk

#: Steps, or turns, before the mark and after it.
WARM = 40
STEPS = {"turn": 10, "start": 10, "cold": 10}
MANY = 60


def steps(what: str) -> int:
    return STEPS.get(what, MANY)


def mark() -> None:
    os.getloadavg()


def count_floor(path: str) -> None:
    floor = Floor(path, work.Level.NORMAL)
    session = floor.start(WARM + MANY + 1)
    _answer(floor, session, WARM)
    mark()
    _answer(floor, session, MANY)
    mark()


def _answer(floor: Floor, session: Session, times: int) -> None:
    for _ in range(times):
        floor.answer(session, work.ANSWER)


async def _ours(path: str, level: work.Level, form: str = "chain") -> None:
    ours = Ours()
    await ours.open(level, path, form=form)
    status = await ours.runtime.start(ours.call(WARM + MANY + 1))
    status = await ours._play(status, WARM)
    mark()
    await ours._play(status, MANY)
    mark()
    await ours.close()


async def count_step(path: str) -> None:
    await _ours(path, work.Level.NORMAL)


async def count_memory(path: str) -> None:
    await _ours(path, work.Level.MEMORY)


async def count_approval(path: str) -> None:
    await _ours(path, work.Level.NORMAL, "approvals")


async def count_call(path: str) -> None:
    """Two sessions: one to warm up. Its start and its end are among what is counted."""
    ours = Ours()
    await ours.open(work.Level.NORMAL, path)
    await ours.calls(1, WARM - 1)
    mark()
    await ours.calls(1, MANY - 1)
    mark()
    await ours.close()


async def count_start(path: str) -> None:
    ours = Ours()
    await ours.open(work.Level.NORMAL, path)
    for number in range(2 * STEPS["start"]):
        if number == STEPS["start"]:
            mark()
        await ours.runtime.start(ours.call(2))
    mark()
    await ours.close()


async def count_cold(path: str) -> None:
    """Answers to sessions of 20 answers that are not in memory."""
    ours = Ours()
    await ours.open(work.Level.NORMAL, path)
    paused = []
    for _ in range(2 * STEPS["cold"]):
        status = await ours.runtime.start(ours.call(40))
        paused.append((await ours._play(status, work.PAUSES)).session_id)
    await ours._reopen()
    for number, session in enumerate(paused):
        if number == STEPS["cold"]:
            mark()
        await ours.runtime.answer(session, work.ANSWER)
    mark()
    await ours.close()


async def count_turn(path: str) -> None:
    talk = Talk()
    await talk.open(path, "u" * 1024, "a" * 1024)
    await talk.turns(STEPS["turn"])
    mark()
    await talk.turns(STEPS["turn"])
    mark()
    await talk.close()


WORKS: dict[str, Callable[[str], Awaitable[None] | None]] = {
    "floor": count_floor,
    "step": count_step,
    "memory": count_memory,
    "approval": count_approval,
    "call": count_call,
    "start": count_start,
    "cold": count_cold,
    "turn": count_turn,
}


async def main(what: str, path: str) -> None:
    done = WORKS[what](path)
    if done is not None:
        await done


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
