"""Hostile Lua, one test an attack: nothing hangs, nothing crashes, nothing leaks. Each attack is
shown to be real.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import everhold
from everhold import BlockingRuntime, Context, EverholdError, Finished, Paused, program
from everhold.core.status import Raised, Returned, Status
from everhold.programs.lua.host import LuaHost
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.protocol import LuaLimits
from tests.fault.attacks import COMPLETED, PACKAGE, PAUSED, TABLE, Attack, Bite

ROOT = Path(__file__).parents[2]
FILES = {"secret.txt": "the secret", "evil.lua": 'return "the secret"'}
MUCH = 150  # megabytes that no program should take
FLOOD = 8 * 2**20  # bytes that nobody wants to keep
every_attack = pytest.mark.parametrize(
    "attack", TABLE, ids=lambda attack: attack.name.replace(" ", "-")
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    for name, text in FILES.items():
        (home / name).write_text(text)
    (tmp_path / "bomb").mkdir()
    (tmp_path / "bomb" / "init.lua").write_text(PACKAGE)
    return home


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


# ---- the protected


@program
async def innocent(ctx: Context, name: str) -> str:
    return f"{name} says {await ctx.llm('anything to say?')}"


#: It asks for ever, and counts.
PATIENT = LuaProgram.text(
    "local n = 0 while true do n = n + #alc.llm('more than ' .. n .. '?') end"
)
INNOCENT = LuaProgram.text(
    "return ctx.name .. ' says ' .. alc.llm('anything to say?')", {"name": "lua"}
)


class House:
    """A runtime whose Lua programs have little time and nobody's trust, and a session that was
    there before them.
    """

    def __init__(self, runtime: BlockingRuntime) -> None:
        self.runtime = runtime
        target = runtime._target
        self.lua = LuaHost(
            target.programs.find, lambda *package: False, limits=LuaLimits(cpu=0.15, wall=0.3)
        )
        target.engine.host._lua = self.lua
        self.patient = runtime.start(PATIENT).session_id
        self.told = 0

    @property
    def workers(self) -> list[int]:
        pool = self.lua._home._pool
        return [] if pool is None else [worker.process.pid for worker in pool.workers]

    def is_well(self) -> bool:
        """Whether everybody else goes on: who was there before, and who comes now."""
        answer = self.runtime.answer
        self.told += 1
        patient = answer(self.patient, "x")
        new = [
            answer(self.runtime.start(call).session_id, "yes")
            for call in (INNOCENT, innocent("python"))
        ]
        assert [one.outcome.value for one in new] == ["lua says yes", "python says yes"]
        return [query.prompt for query in patient.queries] == [f"more than {self.told}?"]


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    before = _megabytes(os.getpid(), "VmRSS")
    with everhold.open_blocking("memory://") as runtime:
        built = House(runtime)
        yield built
        workers = built.workers
    assert _megabytes(os.getpid(), "VmRSS") - before < 300
    assert [pid for pid in workers if _megabytes(pid)] == []


@every_attack
def test_the_attack_does_no_harm_here(
    attack: Attack, house: House, folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It ends in its time, in a known way, with nothing gained; and everybody else goes on."""
    code = attack.code.replace("FOLDER", str(folder))
    try:
        status = house.runtime.start(LuaProgram.text(code, roots=[folder.parent]))
    except EverholdError as error:
        assert any(state == "refused" and words in str(error) for state, _, words in attack.ends), (
            error
        )
    else:
        assert ended(status, attack), status
        assert "the secret" not in shown(status)
    assert house.is_well()
    assert max(map(_megabytes, house.workers)) < 3 * MUCH
    assert contents(folder) == FILES
    assert tuple(capfd.readouterr()) == ("", "")


def ended(status: Status, attack: Attack) -> bool:
    """Whether it ended in one of the ways that the table allows."""
    if isinstance(status, Paused):
        return PAUSED in attack.ends
    assert isinstance(status, Finished)
    outcome = status.outcome
    if isinstance(outcome, Returned):
        return COMPLETED in attack.ends
    assert isinstance(outcome, Raised)
    return any(
        (kind, words) != ("", "") and outcome.kind == kind and words in outcome.error
        for _, kind, words in attack.ends
    )


def shown(status: Status) -> str:
    """Everything that the world sees of it, except what the program said itself."""
    return (
        repr(status.outcome.value)
        if isinstance(status, Finished) and isinstance(status.outcome, Returned)
        else ""
    )


# ---- those beside it


@program
async def talk(ctx: Context) -> None:
    while True:
        await ctx.llm("and then?")


async def test_other_calls_do_not_wait_for_hostile_programs() -> None:
    """A hundred calls of each kind are answered before any of five hostile programs has ended, and
    cost us little.

    Counted, and measured in CPU time: how long a call takes by the clock is the machine's affair,
    as soon as hostile programs outnumber its processors. These compute for ten seconds of CPU time
    each unless they are stopped, a hundred times what the calls need: a call that waited for one of
    them would be answered after its end.
    """
    cost = await beside_hostile_programs()
    for name, times in cost.items():
        assert sorted(times)[len(times) * 99 // 100] < 0.05, name


async def beside_hostile_programs() -> dict[str, list[float]]:
    """The CPU time of this process for each call of others, all made while hostile programs
    compute.
    """
    cost: dict[str, list[float]] = {"status": [], "python": [], "lua": []}
    async with everhold.open("memory://") as runtime:
        limits = LuaLimits(cpu=10.0, wall=15.0)
        # as many places as hostile programs: others are served because a place that computes for
        # long is not counted
        runtime.engine.host._lua = LuaHost(
            runtime.programs.find, lambda *package: False, limits=limits, most=5
        )
        lua, python = await runtime.start(PATIENT), await runtime.start(talk())
        calls: dict[str, Callable[[], Any]] = {
            "status": lambda: runtime.status(lua.session_id),
            "python": lambda: runtime.answer(python.session_id, "x"),
            "lua": lambda: runtime.answer(lua.session_id, "x"),
        }
        wanted = ("while", "pcall swallows", "find", "swallowed pattern", "recursion of pcall")
        codes = [attack.code for attack in TABLE if attack.name in wanted]
        hostile = [asyncio.create_task(runtime.start(LuaProgram.text(code))) for code in codes]
        pool = runtime.engine.host._lua._home.pool()
        try:
            async with asyncio.timeout(250):  # until each has a worker and computes
                while sum(worker.busy and worker.ready for worker in pool.workers) < len(wanted):
                    await asyncio.sleep(0.01)
            for _ in range(100):
                for name, call in calls.items():
                    began = time.process_time()
                    await call()
                    cost[name].append(time.process_time() - began)
                    await asyncio.sleep(0)
            assert [task.done() for task in hostile] == [False] * len(wanted)
        finally:
            for task in hostile:
                task.cancel()
            await asyncio.gather(*hostile, return_exceptions=True)
    return cost


# ---- the control


@pytest.fixture(scope="module")
def bare() -> Iterator[subprocess.Popen[str]]:
    """Runs programs that nobody protects, each in a process of its own."""
    command = [sys.executable, "-m", "tests.fault.bare"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        yield process
        process.kill()


@every_attack
def test_the_attack_bites_where_nobody_protects(
    attack: Attack, bare: subprocess.Popen[str], folder: Path, tmp_path: Path
) -> None:
    """On a bare Lua it does what the table says, so that its failure elsewhere means something."""
    report, out = tmp_path / "report", tmp_path / "out"
    job = {
        "report": str(report),
        "out": str(out),
        "code": attack.code.replace("FOLDER", str(folder)),
    }
    assert bare.stdin is not None and bare.stdout is not None
    bare.stdin.write(json.dumps(job) + "\n")
    bare.stdin.flush()
    peak, hung = _watched(
        int(bare.stdout.readline()), report, 0.25 if attack.bite is Bite.HANGS else 60.0
    )
    facts = _facts(report)
    eaten = peak > MUCH or "memory" in facts
    bitten = {
        Bite.HANGS: hung,
        Bite.EATS: eaten,
        Bite.DIES: not hung and "over" not in facts and not eaten,
        Bite.GETS: "the secret" in str(facts.get("value")),
        Bite.WRITES: contents(folder) != FILES,
        Bite.PRINTS: "the secret" in out.read_text(),
        Bite.FLOODS: facts.get("taken", 0) > FLOOD or eaten,
        Bite.CONFUSES: "host" in facts,
    }
    assert bitten[attack.bite], (facts, peak, hung)


def _watched(pid: int, report: Path, patience: float) -> tuple[int, bool]:
    """Wait for the end, but not for ever and not for all memory; returns megabytes, and whether it
    was ended by us.
    """
    _until(lambda: "ready" in _facts(report), 60)
    peak = 0

    def over() -> bool:
        nonlocal peak
        now = _megabytes(pid)
        peak = max(peak, now)
        return now == 0 or peak > MUCH

    _until(over, patience)
    hung = _megabytes(pid) > 0
    if hung:
        os.kill(pid, signal.SIGKILL)
    return peak, hung


def _until(done: Callable[[], bool], seconds: float) -> None:
    end = time.monotonic() + seconds
    # clock: a guard of 60 s; a quarter of a second for what must still be running then, as it is on
    # a slow machine.
    while not done() and time.monotonic() < end:
        time.sleep(0.01)


def _megabytes(pid: int, which: str = "VmHWM") -> int:
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    return next(
        (int(line.split()[1]) // 1024 for line in status.splitlines() if line.startswith(which)), 0
    )


def _printed(out: Path) -> bool:
    """Whether the secret is in what was printed: at the latest when the process is gone, which
    takes its moment.
    """
    for _ in range(1000):
        if "the secret" in out.read_text():
            return True
        time.sleep(0.05)
    return False


def _facts(report: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if not report.exists():
        return facts
    for line in report.read_text().splitlines():
        facts |= json.loads(line)
    return facts
