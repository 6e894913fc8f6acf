"""Workers as real processes: who is served by which, what happens when one is busy, too slow,
killed or dead.

The programs are real Lua. Times are limits, never expectations: the machine may be busy.
"""

from __future__ import annotations

import asyncio
import copy
import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import everhold
from everhold import Context, Finished, Runtime, program
from everhold.core.journal import Delivery, ProgramReply
from everhold.core.metrics import Metrics
from everhold.core.query import QueryAnswer
from everhold.core.session import Birth, Seed, SessionId
from everhold.core.status import Raised
from everhold.errors import MissingExtra, Overtaken, StoreUnavailable, UnknownProgram, WorkerFailed
from everhold.programs.lua import worker_process
from everhold.programs.lua.host import LuaHost
from everhold.programs.lua.pool import LuaWorker, LuaWorkerPool
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.protocol import LuaLimits
from everhold.programs.lua.worker_process import ProtocolBreach

pytestmark = pytest.mark.process

PROGRAM = LuaProgram("lua:code")
TALK = (
    "local n = 0 while true do n = n + 1 local said = alc.llm('question ' .. n) if said =="
    " 'end' then return n end end"
)
#: Asks once, then does what no hook can stop.
BOMB = 'alc.llm("ready?") local t = ("a"):rep(3000) return t:find((".-"):rep(10) .. "b")'


def birth(code: str, name: str = "s-1") -> Birth:
    args = {"code": code, "ctx": {}}
    return Birth(
        id=SessionId(name), program="lua:code", args=args, created_at=0.0, seeds=[Seed(0, "00")]
    )


@asynccontextmanager
async def hosted(limits: LuaLimits | None = None, **settings: Any) -> AsyncIterator[LuaHost]:
    host = LuaHost(lambda ref, version: PROGRAM, lambda *package: False, limits=limits, **settings)
    try:
        yield host
    finally:
        await host.close()


def begin(host: LuaHost, code: str = TALK, name: str = "s-1") -> Any:
    return host.begin(birth(code, name), Metrics())


async def told(execution: Any, n: int, said: str | None = None) -> ProgramReply:
    return await execution.advance_there(
        n, 0.0, [] if said is None else [QueryAnswer(n - 1, said)], False, None
    )  # type: ignore[no-any-return]


def pool_of(host: LuaHost) -> LuaWorkerPool:
    return host._home.pool()


def prompt(reply: ProgramReply) -> str:
    return reply.asked[0].prompt


def kind(reply: ProgramReply) -> str:
    outcome: Any = reply.outcome
    return str(outcome.kind)


def is_alive(pid: int) -> bool:
    try:
        return "State:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


async def until(done: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not done():
        assert time.monotonic() < end, "it did not happen within a minute"
        await asyncio.sleep(0.01)


# ---- going well


async def test_a_program_goes_on_in_its_worker() -> None:
    async with hosted() as host:
        one = begin(host)
        assert [prompt(await told(one, 0)), prompt(await told(one, 1, "a"))] == [
            "question 1",
            "question 2",
        ]
        end = await told(one, 2, "end")
        assert end.outcome is not None and end.outcome.value == 2  # type: ignore[union-attr]


async def test_a_replay_brings_a_program_back_and_asks_the_same() -> None:
    async with hosted() as host:
        one = begin(host)
        steps: list[Any] = [
            (n, 0.0, [QueryAnswer(n - 1, "a")] if n else [], False, None, None) for n in range(200)
        ]
        replies = await one.replay_there(steps)
        assert [prompt(reply) for reply in replies] == [f"question {n + 1}" for n in range(200)]
        assert prompt(await told(one, 200, "a")) == "question 201"


async def test_a_long_journal_comes_back_whole() -> None:
    async with hosted() as host:
        one = begin(host)
        steps: list[Any] = [
            (n, 0.0, [QueryAnswer(n - 1, "a" * 300_000)] if n else [], False, None, None)
            for n in range(20)
        ]
        assert len(await one.replay_there(steps)) == 20
        assert prompt(await told(one, 20, "a")) == "question 21"


async def test_many_programs_share_a_worker() -> None:
    async with hosted(most=1, patience=60.0) as host:
        several = [begin(host, name=f"s-{number}") for number in range(20)]
        await asyncio.gather(*(told(one, 0) for one in several))
        replies = await asyncio.gather(*(told(one, 1, "a") for one in several))
        assert {prompt(reply) for reply in replies} == {"question 2"}
        assert len(pool_of(host).workers) == 1


async def test_the_walls_stand() -> None:
    async with hosted() as host:
        await told(begin(host), 0)
        walls = pool_of(host).workers[0].walls
        wanted = (
            ["limits", "parent", "calls"]
            if sys.platform == "linux" and os.uname().machine == "x86_64"
            else ["limits"]
        )
        assert walls[: len(wanted)] == wanted


async def test_a_worker_has_no_environment_and_no_files_of_ours(tmp_path: Path) -> None:
    with (tmp_path / "ours").open("w"):
        async with hosted() as host:
            await told(begin(host), 0)
            home = Path(f"/proc/{pool_of(host).workers[0].process.pid}")
            links = sorted(os.readlink(link) for link in (home / "fd").iterdir())
            assert (home / "environ").read_bytes().strip(b"\0") == b""
            assert [
                link for link in links if link != "/dev/null" and not link.startswith("socket:")
            ] == []
            assert sum(link.startswith("socket:") for link in links) == 1


def test_an_execution_can_be_advanced_by_those_who_block() -> None:
    host = LuaHost(lambda ref, version: PROGRAM, lambda package: False)
    one = begin(host)
    replies = [
        one.advance(n, 0.0, [QueryAnswer(n - 1, "a")] if n else [], False, None) for n in range(3)
    ]
    one.drop()
    assert [prompt(reply) for reply in replies] == ["question 1", "question 2", "question 3"]


def test_an_execution_follows_what_was_recorded_one_by_one() -> None:
    """In another process, one delivery is handed over at a time."""
    host = LuaHost(lambda ref, version: PROGRAM, lambda package: False)
    one = begin(host)
    one.advance(0, 0.0, [], False, None)
    recorded = [Delivery(n, 0.0, [QueryAnswer(n - 1, "a")]) for n in (1, 2)]
    place, reply = one.follow(recorded, 0, 1)
    one.drop()
    assert (place, prompt(reply)) == (0, "question 2")


def test_those_who_block_are_told_what_is_not_held_any_more() -> None:
    host = LuaHost(lambda ref, version: PROGRAM, lambda package: False, limits=LuaLimits(held=1))
    one, other = begin(host), begin(host, name="s-2")
    for execution in (one, other):
        assert prompt(execution.advance(0, 0.0, [], False, None)) == "question 1"
    with pytest.raises(Overtaken):
        one.advance(1, 0.0, [QueryAnswer(0, "a")], False, None)
    assert prompt(other.advance(1, 0.0, [QueryAnswer(0, "a")], False, None)) == "question 2"


def test_those_who_block_are_not_held_up_for_ever() -> None:
    host = LuaHost(lambda ref, version: PROGRAM, lambda package: False, limits=LuaLimits(wall=2.0))
    one = begin(host, BOMB)
    one.advance(0, 0.0, [], False, None)
    assert kind(one.advance(1, 0.0, [QueryAnswer(0, "a")], False, None)) == "spinning"
    one.drop()
    other = begin(host)
    assert prompt(other.advance(0, 0.0, [], False, None)) == "question 1"


LONE = """
import os, signal, sys, threading
from everhold.core.query import QueryAnswer
from everhold.programs.lua.protocol import LuaLimits
from everhold.programs.lua.host import LuaHost
from tests.unit.programs.lua.test_pool import PROGRAM, begin

host = LuaHost(lambda ref, version: PROGRAM, lambda package: False, limits=LuaLimits(wall=0.3))
one = begin(host)
one.advance(0, 0.0, [], False, None)
worker = host._home.lone._process.pid
os.kill(worker, signal.SIGSTOP)
print(worker, flush=True)
threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGSTOP)).start()
reply = one.advance(1, 0.0, [QueryAnswer(0, "a")], False, None)
print(reply.asked[0].prompt if reply.asked else reply.outcome, flush=True)
"""


def test_those_who_block_may_stand_still_with_their_worker() -> None:
    """A suspended machine stops both. More time than the limit has passed by the clock, and the
    program is asked on.
    """
    path = os.pathsep.join(["src", "."])
    process = subprocess.Popen(
        [sys.executable, "-c", LONE],
        cwd=Path(__file__).parents[4],
        env={**os.environ, "PYTHONPATH": path},
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        worker = int(process.stdout.readline())
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)
        time.sleep(2)  # more than five times the limit
        for pid in (worker, process.pid):
            os.kill(pid, signal.SIGCONT)
        assert process.stdout.read() == "question 2\n"


def test_those_who_block_share_a_worker_which_ends_when_nobody_has_it() -> None:
    host = LuaHost(lambda ref, version: PROGRAM, lambda package: False)
    pids = set()
    for number in range(3):
        one = begin(host, name=f"s-{number}")
        one.advance(0, 0.0, [], False, None)
        pids.add(host._home.lone._process.pid)  # type: ignore[union-attr]
        one.drop()
    assert len(pids) == 1
    del host, one
    gc.collect()
    assert not is_alive(pids.pop())


# ---- going wrong


async def test_who_takes_too_long_fails_and_the_worker_is_killed() -> None:
    async with hosted(LuaLimits(wall=2.0)) as host:
        bad = begin(host, BOMB)
        await told(bad, 0)
        pid = pool_of(host).workers[0].process.pid
        assert kind(await told(bad, 1, "go")) == "spinning"
        await until(lambda: not is_alive(pid))


async def test_who_shared_the_killed_worker_is_made_again_elsewhere() -> None:
    async with hosted(LuaLimits(wall=2.0), most=1) as host:
        good, bad = begin(host, name="s-good"), begin(host, BOMB, "s-bad")
        await told(good, 0)
        await told(bad, 0)
        assert kind(await told(bad, 1, "go")) == "spinning"
        with pytest.raises(Overtaken):
            await told(good, 1, "a")
        again = begin(host, name="s-good")
        await again.replay_there([(0, 0.0, [], False, None, None)])
        assert prompt(await told(again, 1, "a")) == "question 2"


async def test_who_finds_its_worker_busy_is_told_to_begin_elsewhere() -> None:
    async with hosted(LuaLimits(wall=60.0), most=1) as host:
        good, bad = begin(host, name="s-good"), begin(host, BOMB, "s-bad")
        await told(good, 0)
        await told(bad, 0)
        pool_of(host)._most = 2
        spinning = asyncio.create_task(told(bad, 1, "go"))
        await until(lambda: pool_of(host).workers[0].busy)
        with pytest.raises(Overtaken):
            await told(good, 1, "a")
        again = begin(host, name="s-good")
        await again.replay_there([(0, 0.0, [], False, None, None)])
        assert prompt(await told(again, 1, "a")) == "question 2"
        assert not spinning.done()
        spinning.cancel()


async def test_who_computes_for_long_takes_no_place_from_others() -> None:
    """Twice as many as there are places compute for ever; who was there before, and who comes now,
    is answered.
    """
    async with hosted(LuaLimits(cpu=900.0, wall=900.0)) as host:
        good = begin(host, name="s-good")
        await told(good, 0)
        bomb = BOMB.removeprefix('alc.llm("ready?") ')
        spinning = [asyncio.create_task(told(begin(host, bomb, f"s-{n}"), 0)) for n in range(16)]
        async with asyncio.timeout(120):
            assert prompt(await told(begin(host, name="s-new"), 0)) == "question 1"
            while (reply := await _gone_on(host, good)) is None:
                good = begin(host, name="s-good")
        assert prompt(reply) == "question 2"
        assert not any(task.done() for task in spinning)
        for task in spinning:
            task.cancel()


async def _gone_on(host: LuaHost, one: Any) -> ProgramReply | None:
    """Its second step, where its worker is, or in another."""
    try:
        if not one._begun:
            await one.replay_there([(0, 0.0, [], False, None, None)])
        return await told(one, 1, "a")
    except Overtaken:
        return None


async def test_a_worker_that_stands_still_is_replaced_and_no_program_fails() -> None:
    """SIGSTOP: a worker that uses no CPU time is stopped by something else than the program in
    it.
    """
    async with hosted(LuaLimits(wall=0.2), most=1) as host:
        pool = pool_of(host)
        stopped = pool._start()
        await until(lambda: stopped.ready)
        os.kill(stopped.process.pid, signal.SIGSTOP)
        assert prompt(await told(begin(host), 0)) == "question 1"
        assert stopped.dead


async def test_time_in_which_this_process_stood_still_does_not_count() -> None:
    """A suspended machine stops us and our workers: afterwards each goes on where it was."""
    async with hosted(LuaLimits(wall=0.5), most=1) as host:
        one = begin(host)
        await told(one, 0)
        worker = pool_of(host).workers[0]
        os.kill(worker.process.pid, signal.SIGSTOP)
        going = asyncio.create_task(told(one, 1, "a"))
        await until(lambda: worker.busy)
        time.sleep(3)  # on purpose: the loop stands still for more than five times the limit
        os.kill(worker.process.pid, signal.SIGCONT)
        assert prompt(await going) == "question 2"
        assert not worker.dead


async def test_there_are_never_more_workers_than_four_times_the_places() -> None:
    async with hosted(LuaLimits(cpu=900.0, wall=900.0), most=1) as host:
        bomb = BOMB.removeprefix('alc.llm("ready?") ')
        spinning = [asyncio.create_task(told(begin(host, bomb, f"s-{n}"), 0)) for n in range(6)]
        pool = pool_of(host)
        await until(
            lambda: (
                len(pool.workers) == 4
                and all(worker.is_long(time.monotonic()) for worker in pool.workers)
            )
        )
        await asyncio.sleep(0.1)  # in which others would be started
        assert len(pool.workers) == 4
        for task in spinning:
            task.cancel()


async def test_a_worker_that_dies_is_nobodys_fault_at_first() -> None:
    async with hosted(most=1) as host:
        one = begin(host, BOMB)
        await told(one, 0)
        dying = asyncio.create_task(told(one, 1, "go"))
        await until(lambda: pool_of(host).workers[0].busy)
        os.kill(pool_of(host).workers[0].process.pid, signal.SIGKILL)
        with pytest.raises(Overtaken):
            await dying


async def test_a_delivery_of_which_two_workers_die_is_poison() -> None:
    async with hosted(most=1) as host:
        for _ in range(2):
            one = begin(host, BOMB)
            await one.replay_there([(0, 0.0, [], False, None, None)])
            dying = asyncio.create_task(told(one, 1, "go"))
            await until(lambda: pool_of(host).workers[0].busy)
            os.kill(pool_of(host).workers[0].process.pid, signal.SIGKILL)
            await asyncio.wait([dying])
        assert kind(dying.result()) == "poison"


async def test_a_first_step_is_tried_twice_and_then_is_poison() -> None:
    async with hosted(LuaLimits(wall=60.0), most=1) as host:
        starting = asyncio.create_task(
            told(begin(host, BOMB.removeprefix('alc.llm("ready?") ')), 0)
        )
        killed: set[int] = set()
        while not starting.done():
            for worker in list(pool_of(host).workers):
                if worker.ready and worker.busy and worker.process.pid not in killed:
                    killed.add(worker.process.pid)
                    os.kill(worker.process.pid, signal.SIGKILL)
            await asyncio.sleep(0.01)
        assert kind(starting.result()) == "poison"
        assert len(killed) == 2


async def test_what_a_worker_lets_go_of_is_gone() -> None:
    async with hosted(LuaLimits(held=2), most=1) as host:
        several = [begin(host, name=f"s-{number}") for number in range(3)]
        for one in several:
            await told(one, 0)
        with pytest.raises(Overtaken):
            await told(several[0], 1, "a")
        assert prompt(await told(several[2], 1, "a")) == "question 2"


async def test_what_is_dropped_while_it_is_under_way_is_dropped_there_too() -> None:
    async with hosted(most=1) as host:
        one = begin(host)
        starting = asyncio.create_task(told(one, 0))
        await asyncio.sleep(0)
        one.drop()
        with pytest.raises(Overtaken):
            await starting
        assert pool_of(host).workers[0].held == set()


async def test_what_was_begun_for_a_caller_that_left_is_not_held() -> None:
    async with hosted(most=1) as host:
        starting = asyncio.create_task(told(begin(host), 0))
        await until(lambda: bool(pool_of(host).workers) and bool(pool_of(host).workers[0].held))
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        (worker,) = pool_of(host).workers
        assert worker.held == set()
        assert prompt(await told(begin(host, name="s-2"), 0)) == "question 1"
        assert len(worker.held) == 1


async def test_what_could_not_begin_is_not_held() -> None:
    async with hosted() as host:
        execution = begin(host)
        execution.program = copy.copy(execution.program)
        execution.program.ref = "/nowhere/init.lua:nowhere"
        with pytest.raises(UnknownProgram):
            await told(execution, 0)
        assert pool_of(host).workers[0].held == set()


async def test_a_caller_that_leaves_does_not_confuse_the_next() -> None:
    async with hosted(LuaLimits(wall=60.0), most=1) as host:
        one, other = begin(host, name="s-1"), begin(host, name="s-2")
        await told(one, 0)
        leaving = asyncio.create_task(told(one, 1, "a"))
        await asyncio.sleep(0)
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
        assert prompt(await told(other, 0)) == "question 1"
        assert prompt(await told(other, 1, "a")) == "question 2"


async def test_callers_that_leave_the_queue_leave_it_in_order() -> None:
    async with hosted(LuaLimits(wall=60.0), most=1) as host:
        waiting = [asyncio.create_task(told(begin(host, name=f"s-{n}"), 0)) for n in range(6)]
        await asyncio.sleep(0)
        for task in waiting[1::2]:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert [task.cancelled() for task in waiting] == [False, True] * 3
        assert {prompt(task.result()) for task in waiting[::2]} == {"question 1"}
        assert prompt(await told(begin(host, name="s-new"), 0)) == "question 1"


async def test_a_frame_that_is_too_large_ends_the_worker() -> None:
    """A worker that was taken over may send anything: it is not read."""
    async with hosted() as host:
        one = begin(host)
        await told(one, 0)
        worker = pool_of(host).workers[0]
        await worker.turn()
        answer = asyncio.ensure_future(worker.work([]))
        await asyncio.sleep(0)
        _say(worker, b"\x7f\xff\xff\xff")
        with pytest.raises(ProtocolBreach):
            await answer
        with pytest.raises(Overtaken):
            await told(one, 1, "a")


@pytest.mark.parametrize(
    "body",
    [b"nonsense", b"{}}", b'{"replies": [1]}', b"\xff\xfe", b"[" * 100_000],
    ids=["nonsense", "trailing", "shape", "bytes", "deep"],
)
async def test_a_frame_that_is_no_reply_ends_the_worker(body: bytes) -> None:
    async with hosted() as host:
        await told(begin(host), 0)
        worker = pool_of(host).workers[0]
        _say(worker, len(body).to_bytes(4, "big") + body)
        assert worker.dead


async def test_a_worker_cannot_ask_what_no_lua_program_asks() -> None:
    """An approval that a worker makes up reaches nobody."""
    async with hosted() as host:
        await told(begin(host), 0)
        worker = pool_of(host).workers[0]
        query = b'{"q":0,"key":"0:0","kind":"call","name":"rm"}'
        rest = b'"withdrawn":[],"due":null,"outcome":null,"notes":null'
        forged = b'{"replies":[{"asked":[' + query + b"]," + rest + b"}]}"
        _say(worker, len(forged).to_bytes(4, "big") + forged)
        assert worker.dead


@pytest.mark.parametrize(
    "args", [b'{"in":"default","do":"get"}', b'{"do":"get"}', b"[]", b'{"in":["lua/default"]}']
)
async def test_a_worker_cannot_ask_for_durable_values_of_others(args: bytes) -> None:
    """A worker that was taken over names a namespace of Python programs: it is ended, and nothing
    is read.
    """
    async with hosted() as host:
        one = begin(host)
        await told(one, 0)
        worker = pool_of(host).workers[0]
        query = b'{"q":1,"key":"0:1","kind":"state","name":"k","args":' + args + b"}"
        rest = b'"withdrawn":[],"due":null,"outcome":null,"notes":null'
        forged = b'{"replies":[{"asked":[' + query + b"]," + rest + b"}]}"
        worker._send = lambda data: _say(worker, len(forged).to_bytes(4, "big") + forged)  # type: ignore[method-assign]
        reply = await told(one, 1, "a")
        assert isinstance(reply.outcome, Raised) and reply.outcome.kind == "poison"
        assert worker.dead


def _say(worker: LuaWorker, data: bytes) -> None:
    """Have the reader find these bytes, as if the worker had sent them."""
    worker._inbox += data
    worker._parse()


# ---- beginning and ending


async def test_workers_end_with_their_pool() -> None:
    async with hosted() as host:
        await told(begin(host), 0)
        pids = [worker.process.pid for worker in pool_of(host).workers]
    assert pids
    assert [pid for pid in pids if is_alive(pid)] == []


async def test_idle_workers_end_by_themselves() -> None:
    async with hosted(idle=0.3) as host:
        one = begin(host)
        await told(one, 0)
        one.drop()
        await until(lambda: not pool_of(host).workers)


def test_each_loop_has_its_own_workers() -> None:
    host = LuaHost(lambda ref, version: PROGRAM, lambda package: False)

    async def life(*, last: bool) -> list[int]:
        assert prompt(await told(begin(host), 0)) == "question 1"
        # nothing is under way that would hide a mistake
        await until(lambda: pool_of(host)._watching is None)
        pids = [worker.process.pid for worker in pool_of(host).workers]
        if last:
            await host.close()
        return pids

    first = asyncio.run(life(last=False))
    second = asyncio.run(life(last=True))
    assert not set(first) & set(second)
    assert [pid for pid in (*first, *second) if is_alive(pid)] == []


def children() -> set[int]:
    return {
        int(pid)
        for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        if is_alive(int(pid))
    }


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells the children of a process")
@pytest.mark.parametrize("database", ["memory://", "sqlite://"])
async def test_nothing_begins_in_a_runtime_that_is_closed(database: str, tmp_path: Path) -> None:
    """Who is under way when it closes, and who comes later, is refused: no worker is left that
    nobody would end.
    """
    before = children()
    spins = LuaProgram.text("while true do end")
    where = database if database.startswith("memory") else f"sqlite:///{tmp_path}/it.db"
    async with everhold.open(where) as runtime:
        asked = await runtime.start(LuaProgram.text("alc.llm('x') while true do end"))
        calls = [asyncio.create_task(runtime.answer(asked.session_id, "y"))]
        calls += [asyncio.create_task(runtime.start(spins)) for _ in range(2)]
        assert runtime.engine.host._lua is not None
        pool = pool_of(runtime.engine.host._lua)
        await until(lambda: sum(worker.ready and worker.busy for worker in pool.workers) >= 2)
        await runtime.close(grace=0)
    for told in await asyncio.gather(*calls, return_exceptions=True):
        assert isinstance(told, WorkerFailed | StoreUnavailable)
    with pytest.raises(WorkerFailed, match="the runtime was closed"):
        await runtime.start(spins)
    assert children() - before == set()
    async with runtime:
        assert isinstance(await runtime.start(LuaProgram.text("return 1")), Finished)


async def test_who_waits_for_a_worker_of_a_pool_that_closes_is_told() -> None:
    async with hosted(most=1) as host:
        calls = [asyncio.create_task(told(begin(host, name=f"s-{n}"), 0)) for n in range(3)]
        await asyncio.sleep(0)
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [str(error).endswith("the runtime was closed meanwhile") for error in answers] == [
        True
    ] * 3


ORPHANS = """
import asyncio, sys
import everhold
from everhold.programs.lua.program import LuaProgram

async def main():
    async with everhold.open("memory://") as runtime:
        await runtime.start(LuaProgram.text("alc.llm('x')"))
        bomb = 'return (("a"):rep(3000)):find((".-"):rep(10) .. "b")'
        busy = asyncio.create_task(runtime.start(LuaProgram.text(bomb)))
        pool = runtime.engine.host._lua._home.pool()
        while not any(worker.ready and worker.busy for worker in pool.workers):
            await asyncio.sleep(0.01)
        print(*[worker.process.pid for worker in pool.workers], flush=True)
        await busy

asyncio.run(main())
"""


def test_no_worker_outlives_a_killed_parent() -> None:
    """Neither one that waits nor one that computes."""
    with subprocess.Popen(
        [sys.executable, "-c", ORPHANS], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        parent.kill()
    assert pids
    asyncio.run(until(lambda: not any(is_alive(pid) for pid in pids)))


async def test_without_lupa_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        worker_process, "find_spec", lambda name: None if name == "lupa" else find_spec(name)
    )
    async with hosted() as host:
        with pytest.raises(MissingExtra) as caught:
            await told(begin(host), 0)
        assert caught.value.hint == "pip install 'everhold[lua]'"


async def test_who_waits_for_a_worker_is_told_if_no_other_can_be_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with hosted(most=1) as host:
        await told(begin(host), 0)
        worker = pool_of(host).workers[0]
        await worker.turn()
        waiting = [asyncio.create_task(told(begin(host, name=f"s-{n}"), 0)) for n in (2, 3)]
        await asyncio.sleep(0)
        monkeypatch.setattr(worker_process.subprocess, "Popen", _no_process)
        os.kill(worker.process.pid, signal.SIGKILL)
        answers = await asyncio.wait_for(asyncio.gather(*waiting, return_exceptions=True), 60)
    assert [isinstance(answer, WorkerFailed) for answer in answers] == [True, True]


def _no_process(*command: Any, **how: Any) -> None:
    raise OSError("too many processes")


async def test_a_worker_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_process, "_BOOT", "raise SystemExit('there is no room here')")
    async with hosted() as host:
        with pytest.raises(WorkerFailed, match="there is no room here"):
            await told(begin(host), 0)


# ---- through the runtime


@program
async def python(ctx: Context) -> str:
    return str(await ctx.llm("python?"))


def lua(runtime: Runtime, **limits: Any) -> None:
    runtime.engine.host._lua = LuaHost(
        runtime.programs.find, lambda package: False, limits=LuaLimits(**limits), most=2
    )


async def test_a_session_whose_worker_was_killed_goes_on_and_nobody_notices() -> None:
    async with everhold.open("memory://") as runtime:
        lua(runtime)
        status = await runtime.start(LuaProgram.text(TALK))
        for _ in range(3):
            status = await runtime.answer(status.session_id, "a")
            for worker in list(runtime.engine.host._lua._home.pool().workers):  # type: ignore[union-attr]
                os.kill(worker.process.pid, signal.SIGKILL)
        status = await runtime.answer(status.session_id, "end")
        assert isinstance(status, Finished)
        assert status.outcome.value == 4  # type: ignore[union-attr]


async def test_who_took_too_long_can_be_retried_with_all_its_answers() -> None:
    code = "local said = alc.llm('how far?') for i = 1, tonumber(said) do end return said"
    async with everhold.open("memory://") as runtime:
        lua(runtime, cpu=0.02, wall=60.0)
        status = await runtime.start(LuaProgram.text(code))
        failed: Any = await runtime.answer(status.session_id, "3e7")
        assert failed.outcome.kind == "spinning"
        await runtime.engine.host.close()
        lua(runtime, cpu=60.0, wall=60.0)
        done: Any = await runtime.retry(status.session_id)
        assert done.outcome.value == "3e7"


async def test_a_failed_session_is_explained_checked_and_forked() -> None:
    async with everhold.open("memory://") as runtime:
        lua(runtime, cpu=0.2, wall=0.4)
        status = await runtime.start(LuaProgram.text(BOMB))
        failed: Any = await runtime.answer(status.session_id, "go")
        assert failed.outcome.kind == "spinning"
        assert "did not pause within" in " ".join(
            (await runtime.explain(status.session_id)).because
        )
        fork = await runtime.fork(status.session_id, at=0)
        assert [query.prompt for query in fork.queries] == ["ready?"]  # type: ignore[union-attr]


async def test_sessions_in_workers_are_checked_and_replayed(tmp_path: Path) -> None:
    """Before a deploy, in a process of its own."""
    async with everhold.open(tmp_path / "app.db") as runtime:
        lua(runtime, cpu=0.2, wall=0.4)
        talking = await runtime.start(LuaProgram.text(TALK))
        await runtime.answer(talking.session_id, "a")
        bomb = await runtime.start(LuaProgram.text(BOMB))
        await runtime.answer(bomb.session_id, "go")
        report = await runtime.archive.check(state=["paused", "failed"])
    assert {one.session_id: (one.verdict, one.steps) for one in report.checked} == {
        talking.session_id: ("ok", 2),
        bomb.session_id: ("ok", 2),
    }


async def test_a_budget_counts_in_the_worker_as_it_does_here() -> None:
    async with everhold.open("memory://") as runtime:
        lua(runtime)
        status = await runtime.start(LuaProgram.text(TALK), budget={"max_llm_calls": 2})
        await runtime.answer(status.session_id, "a")
        for worker in list(runtime.engine.host._lua._home.pool().workers):  # type: ignore[union-attr]
            os.kill(worker.process.pid, signal.SIGKILL)
        failed: Any = await runtime.answer(status.session_id, "a")
        assert "budget_exceeded: max_llm_calls (2) reached: 2 used" in failed.outcome.error
