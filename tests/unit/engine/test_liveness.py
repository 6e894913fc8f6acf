"""Who is alive: what a process id says, and where it says nothing."""

import asyncio
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from everhold.core.lease import LeaseTimings
from everhold.engine import liveness
from everhold.ports.store import WorkerRecord
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock
from tests.scenario.harness import TTL, opened


@pytest.fixture
def dead():
    """The id of a process that is not there any more."""
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    return ended.pid


@pytest.mark.process
def test_a_process_that_ended_is_gone(dead):
    assert liveness.has_process_ended(dead)
    assert not liveness.has_process_ended(os.getpid())


def test_people_are_told_the_name_only():
    assert liveness.get_machine_name("shop-1/6d1b6dea-4026531836") == "shop-1"
    assert liveness.get_machine_name("written-before") == "written-before"


def test_where_nothing_is_known_beside_the_name(monkeypatch):
    """Not every system says when it was started."""
    liveness.get_machine_id.cache_clear()
    monkeypatch.setattr(liveness, "Path", lambda text: Path("/nowhere"))
    try:
        assert liveness.get_machine_id() == f"{socket.gethostname()}/"
    finally:
        liveness.get_machine_id.cache_clear()


@pytest.mark.process
@pytest.mark.parametrize("elsewhere", ["{name}/6d1b6dea-1", "{name}/", "{name}", "other"])
async def test_a_process_of_another_container_lives_until_its_time_is_over(dead, elsewhere):
    """D18: a machine or container of the same name has process ids of its own; there only the clock
    decides.
    """
    clock, store = ManualClock(), MemoryStore()
    async with opened(on=store, clock=clock) as runtime:
        name = liveness.get_machine_name(liveness.get_machine_id())
        await store.beat(WorkerRecord("near", liveness.get_machine_id(), dead, TTL))
        await store.beat(WorkerRecord("far", elsewhere.format(name=name), dead, TTL))
        assert (await runtime.engine.presence.census()).living >= {"far"}
        assert "near" not in (await runtime.engine.presence.census()).living
        clock.advance(TTL)
        assert "far" not in (await runtime.engine.presence.census()).living


@pytest.mark.process
def test_a_census(dead):
    """The living and the dead, who of them is near, and when the next one is taken for dead."""
    here = liveness.get_machine_id()
    rows = [
        WorkerRecord("me", here, os.getpid(), 10.0, 99.0),
        WorkerRecord("near", here, os.getppid(), 10.0, 4.0),
        WorkerRecord("far", "elsewhere/", dead, 30.0, 27.5),
        WorkerRecord("gone", here, dead, 10.0, 0.0),
        WorkerRecord("late", "elsewhere/", 1, 10.0, 10.0),
    ]
    found = liveness.classify_workers(rows, "me")
    assert found.living == {"me", "near", "far"}
    assert [row.id for row in found.dead] == ["gone", "late"]
    assert found.near == {os.getppid()}
    assert found.next == 2.5
    assert liveness.classify_workers([], "me") == liveness.WorkerLiveness(
        frozenset({"me"}), (), frozenset(), None
    )


@pytest.mark.process
async def test_the_end_of_a_process_is_heard():
    """Of one that is watched, at once; of one that is not watched any more, nothing."""
    ended = asyncio.Event()
    vigil = liveness.ProcessWatcher(ended.set)
    one, two = (
        subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) for _ in range(2)
    )
    vigil.watch([one.pid, two.pid, os.getpid()])
    assert not vigil.ended()
    vigil.watch([one.pid])
    two.communicate(b"\n")
    assert not ended.is_set()
    one.communicate(b"\n")
    if not vigil.blind:
        await asyncio.wait_for(ended.wait(), 60)
    vigil.close()


@pytest.mark.process
async def test_where_the_system_does_not_tell(monkeypatch):
    """Without such a thing reconciliation has to ask."""
    monkeypatch.delattr(os, "pidfd_open", raising=False)
    vigil = liveness.ProcessWatcher(lambda: None)
    one = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    vigil.watch([one.pid])
    assert vigil.blind and not vigil.ended()
    one.communicate(b"\n")
    assert vigil.ended()
    vigil.close()
    assert not vigil.blind


class Times:
    """A clock of the wall and a steady one, which stands still while the machine sleeps."""

    def __init__(self):
        self.wall, self.steady = 1000.0, 50.0

    def pulse(self):
        return liveness.SuspendDetector(lambda: self.wall, lambda: self.steady)

    def go(self, seconds, *, asleep=False):
        self.wall += seconds
        self.steady += 0 if asleep else seconds


@pytest.mark.parametrize("asleep", [True, False], ids=["suspended", "stopped"])
def test_who_was_away_gives_others_time_to_be_heard(asleep, caplog):
    """Half of their time; those of whom it hears nothing then are as old as they are."""
    times, timings = Times(), LeaseTimings(9.0)
    pulse = times.pulse()

    def ages(*given):
        return [
            row.age
            for row in pulse.heard([WorkerRecord("w", "h", 1, 9.0, age) for age in given], timings)
        ]

    assert ages(0.5, 12.0) == [0.5, 12.0]
    times.go(5)
    assert ages(5.5, 17.0) == [5.5, 17.0]
    times.go(60, asleep=asleep)
    assert ages(0.5, 65.5) == [0.5, 4.5]
    times.go(4)
    assert ages(4.5, 69.5) == [4.5, 8.5]
    times.go(0.5)
    assert ages(70.0) == [9.0]
    assert caplog.text.count("or its clock was set, for 60 s") == 1


def test_who_was_not_there_was_not_away(caplog):
    """Between the end of one life of a runtime and the next nobody looks."""
    times, timings = Times(), LeaseTimings(9.0)
    pulse = times.pulse()
    pulse.feel(timings)
    times.go(3600)
    pulse.begin()
    pulse.feel(timings)

    assert pulse.heard([WorkerRecord("w", "h", 1, 9.0, 10.0)], timings)[0].age == 10.0
    assert caplog.text == ""
