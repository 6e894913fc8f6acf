"""What a worker does with orders, in this process: it holds, advances, lets go, and measures what
is said.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from typing import Any

import msgspec
import pytest

from everhold.core.budget import Budget
from everhold.core.journal import ProgramReply
from everhold.core.metrics import Metrics
from everhold.core.query import Kind, Query, QueryAnswer
from everhold.core.session import Birth, Seed, SessionId
from everhold.core.status import Returned
from everhold.errors import BadArguments
from everhold.programs.lua.protocol import (
    MAX_SLICE_BYTES,
    LuaLimits,
    OrderResult,
    WorkerOrder,
    WorkerStep,
    decode_order,
    decode_order_result,
    encode_frame,
    encode_step,
    encode_worker_json,
    slice_steps,
)
from everhold.programs.lua.worker import CpuAlarm, LuaWorkerServer
from everhold.programs.lua.worker_process import LuaWorkerProcess


def birth(name: str = "s-1", **args: Any) -> Birth:
    return Birth(
        id=SessionId(name),
        program="lua:code",
        args=args,
        created_at=0.0,
        seeds=[Seed(0, "00")],
        budget=Budget(),
    )


class Echo:
    """Asks what it was told; ends when it is told `end`. It weighs what its arguments say."""

    def __init__(self, birth: Birth, meter: Metrics) -> None:
        if "refuse" in birth.args:
            raise BadArguments("echo", "it does not want to")
        self.memory = birth.args.get("memory", 1)
        self.kind = Kind(birth.args.get("kind", "llm"))
        self.spins = birth.args.get("spins", 0.0)
        self.meter = meter
        self.replaying = False
        self.asked = 0
        self.dropped = False

    def entered(self) -> Any:
        return nullcontext()

    def advance(
        self,
        n: int,
        at: float,
        answers: list[QueryAnswer],
        fired: bool,
        cancel: str | None,
        budget: Budget | None,
    ) -> ProgramReply:
        until = time.process_time() + self.spins
        while time.process_time() < until:
            pass
        said = answers[0].value if answers else "begin"
        if said == "fail":
            raise ValueError("no good")
        if said == "end":
            return ProgramReply(
                [],
                [],
                None,
                Returned({"calls": self.meter.llm_calls, "rounds": self.meter.rounds}),
                None,
            )
        prompt = "x" * said if isinstance(said, int) else f"{said} {self.replaying}"
        self.asked += 1
        return ProgramReply(
            [Query(self.asked - 1, f"0:{self.asked - 1}", prompt, self.kind)], [], None, None, None
        )

    def drop(self) -> None:
        self.dropped = True


class Desk:
    """A server, and what it has told."""

    def __init__(self, **limits: Any) -> None:
        self.frames: list[OrderResult] = []
        self.made: list[Echo] = []
        self.server = LuaWorkerServer(
            lambda body: self.frames.append(decode_order_result(body)),
            self._begin,
            LuaLimits(**limits),
        )

    def _begin(
        self, born: Birth, meter: Metrics, roots: list[str], limits: LuaLimits, space: str
    ) -> Echo:
        self.made.append(Echo(born, meter))
        return self.made[-1]

    def do(
        self, number: int, *steps: WorkerStep, born: Birth | None = None, **more: Any
    ) -> list[OrderResult]:
        """What it tells of one order, as it would come over the socket."""
        self.frames.clear()
        order = WorkerOrder(number, [encode_step(step) for step in steps], born, **more)
        self.server.do(decode_order(encode_worker_json(order)))
        return list(self.frames)

    def prompts(self, told: list[OrderResult]) -> list[str]:
        return [query.prompt for frame in told for reply in frame.replies for query in reply.asked]


def step(n: int, said: Any = None) -> WorkerStep:
    return (n, 0.0, [] if said is None else [QueryAnswer(n - 1, said)], False, None, None)


def test_an_execution_goes_on_under_its_number() -> None:
    desk = Desk()
    first = desk.do(7, step(0), born=birth())
    second = desk.do(7, step(1, "hello"))
    assert desk.prompts([*first, *second]) == ["begin False", "hello False"]
    assert len(desk.made) == 1


def test_two_executions_do_not_meet() -> None:
    desk = Desk()
    desk.do(1, step(0), born=birth())
    desk.do(2, step(0), born=birth("s-2"))
    told = desk.do(1, step(1, "one"))
    assert [reply.asked[0].q for frame in told for reply in frame.replies] == [1]


def test_a_number_that_is_not_held_is_gone() -> None:
    assert [told.gone for told in Desk().do(3, step(1, "hello"))] == [True]


def test_a_dropped_execution_is_let_go_without_a_word() -> None:
    desk = Desk()
    desk.do(1, step(0), born=birth())
    assert desk.do(1) == []
    assert desk.made[0].dropped
    assert desk.do(1, step(1, "hello"))[0].gone


def test_what_ended_is_not_held_any_more() -> None:
    desk = Desk()
    desk.do(1, step(0), born=birth())
    desk.do(1, step(1, "end"))
    assert desk.do(1, step(2, "hello"))[0].gone


def test_the_least_recently_used_goes_when_there_are_too_many() -> None:
    desk = Desk(held=2)
    desk.do(1, step(0), born=birth("s-1"))
    desk.do(2, step(0), born=birth("s-2"))
    desk.do(1, step(1, "used"))
    desk.do(3, step(0), born=birth("s-3"))
    assert [desk.do(number, step(2, "x"))[0].gone for number in (1, 2, 3)] == [False, True, False]


def test_the_least_recently_used_goes_when_all_weigh_too_much() -> None:
    desk = Desk(kept=100)
    desk.do(1, step(0), born=birth("s-1", memory=60))
    desk.do(2, step(0), born=birth("s-2", memory=30))
    desk.do(3, step(0), born=birth("s-3", memory=30))
    assert [made.dropped for made in desk.made] == [True, False, False]


def test_a_single_heavy_one_is_kept() -> None:
    desk = Desk(kept=100)
    desk.do(1, step(0), born=birth(memory=1000))
    assert not desk.do(1, step(1, "x"))[0].gone


def test_a_reply_that_is_too_large_ends_the_program() -> None:
    desk = Desk(largest=1000)
    desk.do(1, step(0), born=birth())
    (told,) = desk.do(1, step(1, 2000))
    outcome: Any = told.replies[0].outcome
    assert (outcome.kind, outcome.step) == ("too_large", 1)
    assert desk.do(1, step(2, "x"))[0].gone


@pytest.mark.parametrize("said", [1000, "x" * 1000], ids=["written", "read and written"])
def test_a_program_that_reads_and_writes_more_than_a_state_holds_is_ended(said: Any) -> None:
    """All of that lands in one commit; what is asked of others lands one by one."""
    desk = Desk(memory=20_000)
    desk.do(1, step(0), born=birth(kind="state"))
    desk.do(2, step(0), born=birth("s-2", kind="llm"))
    ends = [desk.do(1, step(n, said))[0].replies[0].outcome for n in range(1, 8)]
    assert ends == [None] * 7
    outcome: Any = desk.do(1, *(step(n, said) for n in range(8, 30)))[-1].replies[-1].outcome
    assert outcome.kind == "too_large"
    assert all(desk.do(2, step(n, said))[0].replies[0].outcome is None for n in range(1, 30))


def test_a_program_that_computes_on_and_on_between_its_durable_values_is_ended() -> None:
    """A limit on each advance alone would be none: there can be thousands of them until somebody
    else is asked.
    """
    desk = Desk(cpu=0.001)
    desk.do(1, step(0), born=birth(kind="state", spins=0.002))
    desk.do(2, step(0), born=birth("s-2", kind="llm", spins=0.002))
    outcome: Any = desk.do(1, *(step(n, "x") for n in range(1, 30)))[-1].replies[-1].outcome
    assert outcome.kind == "spinning"
    assert all(desk.do(2, step(n, "x"))[0].replies[0].outcome is None for n in range(1, 10))


def test_an_error_of_ours_is_told_with_its_code() -> None:
    (told,) = Desk().do(1, step(0), born=birth(refuse=True))
    assert told.trouble is not None
    assert (told.trouble.code, told.trouble.message) == (
        "bad_arguments",
        "invalid arguments for 'echo': it does not want to",
    )


def test_what_nobody_foresaw_is_told_too_and_the_worker_goes_on() -> None:
    desk = Desk()
    desk.do(1, step(0), born=birth())
    (told,) = desk.do(1, step(1, "fail"))
    assert told.trouble is not None
    assert told.trouble.message == "ValueError: no good"
    assert desk.do(1, step(2, "x"))[0].gone
    assert desk.prompts(desk.do(2, step(0), born=birth())) == ["begin False"]


def test_the_alarm_is_set_again_when_time_has_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    rung: list[tuple[int, float]] = []
    monkeypatch.setattr(signal, "setitimer", lambda which, seconds: rung.append((which, seconds)))
    alarm = CpuAlarm(30.0)
    for now in (100.0, 100.5, 101.0, 101.1, 101.2, 500.0):
        alarm(now, 3.0)
    assert rung == [(signal.ITIMER_PROF, 31.0)] * 3


@pytest.mark.process
def test_an_advance_that_never_ends_ends_the_process_though_nobody_watches() -> None:
    process = LuaWorkerProcess(LuaLimits(wall=0.1, cpu=600.0))
    try:
        args = {"code": "while true do end", "ctx": {}}
        born = Birth(
            id=SessionId("s"), program="lua:code", args=args, created_at=0.0, seeds=[Seed(0, "00")]
        )
        process.socket.sendall(
            encode_frame(WorkerOrder(1, [encode_step((0, 0.0, [], False, None, None))], born))
        )
        assert process.popen.wait(timeout=120) == -signal.SIGPROF
    finally:
        process.kill()
        process.wait()


def test_a_replay_tells_all_but_the_last_before_it_begins_the_last() -> None:
    """Whoever is killed in a replay is thereby known: it is the last."""
    desk = Desk()
    told = desk.do(1, step(0), step(1, "a"), step(2, "b"), born=birth(), replaying=True)
    assert [frame.more for frame in told] == [True, False]
    assert desk.prompts(told) == ["begin True", "a True", "b True"]
    assert desk.prompts(desk.do(1, step(3, "c"))) == ["c False"]


def test_a_replay_ends_with_the_program() -> None:
    desk = Desk()
    told = desk.do(1, step(0), step(1, "end"), step(2, "b"), born=birth(), replaying=True)
    assert sum(len(frame.replies) for frame in told) == 2


def test_a_replay_may_come_in_several_frames() -> None:
    desk = Desk()
    first = desk.do(1, step(0), step(1, "a"), born=birth(), replaying=True)
    second = desk.do(1, step(2, "b"), replaying=True)
    assert [frame.more for frame in (*first, *second)] == [True, False, False]
    assert desk.prompts([*first, *second]) == ["begin True", "a True", "b True"]


def test_it_counts_for_itself_what_a_session_has_cost() -> None:
    desk = Desk()
    desk.do(1, step(0), step(1, "a"), step(2, "b"), born=birth(), replaying=True)
    (told,) = desk.do(1, step(3, "end"))
    outcome: Any = told.replies[0].outcome
    assert outcome.value == {"calls": 3, "rounds": 3}


def test_long_journals_are_cut_into_frames() -> None:
    steps = [msgspec.Raw(b"x" * (MAX_SLICE_BYTES // 3)) for _ in range(7)]
    assert [len(group) for group in slice_steps(steps)] == [3, 3, 1]
    assert [
        len(group) for group in slice_steps([msgspec.Raw(b"x" * (2 * MAX_SLICE_BYTES))] * 2)
    ] == [1, 1]
    assert slice_steps([]) == [[]]


# ---- the walls

TRIES = """
import ctypes, os, resource, socket, subprocess, sys, threading
from everhold.programs.lua import confinement as jail
print(",".join(jail.confine_process(2**30, os.getppid())))
def tried(name, act):
    try:
        act()
        print(name, "did it")
    except (OSError, RuntimeError, MemoryError, subprocess.SubprocessError) as error:
        print(name, "could not")
tried("write", lambda: open(sys.argv[1], "w"))
tried("append", lambda: open(sys.argv[2], "a"))
tried("remove", lambda: os.remove(sys.argv[2]))
tried("socket", socket.socket)
tried("process", lambda: subprocess.run(["true"]))
tried("fork", os.fork)
tried("thread", lambda: threading.Thread(target=print).start())
tried("signal", lambda: os.kill(os.getppid(), 0))
tried("memory", lambda: bytearray(2**31))
tried("limits of others", lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CORE))
tried("read", lambda: open(sys.argv[2]).read())
"""


@pytest.mark.process
@pytest.mark.skipif(
    sys.platform != "linux" or os.uname().machine != "x86_64",
    reason="these walls are of Linux on x86-64",
)
def test_the_kernel_refuses_what_a_worker_does_not_need(tmp_path) -> None:
    (tmp_path / "old").write_text("old")
    command = [sys.executable, "-c", TRIES, str(tmp_path / "new"), str(tmp_path / "old")]
    walls, *lines = subprocess.run(
        command, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert walls == "limits,parent,calls"
    assert [line for line in lines if not line.endswith("could not")] == ["read did it"]
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"old": "old"}
