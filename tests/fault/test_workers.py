"""Real workers on one database: killed, stopped past their lease, told to leave, of two versions,
with wrong clocks.
"""

import asyncio
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from everhold.ports.store import WorkerRecord
from everhold.runtime import Runtime
from tests.fault.crowd import at
from tests.fault.fleet import PATIENCE, Fleet

pytestmark = [pytest.mark.timeout(600), pytest.mark.xdist_group("postgres")]


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A new database: a file, or a schema of our own server."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'fleet.db'}"
    from tests.postgres import fresh

    return fresh(request.getfixturevalue("postgres"), "fleet")


@pytest.fixture
def fleet(url: str, tmp_path: Path) -> Iterator[Fleet]:
    with Fleet(tmp_path, url) as found:
        yield found


def many(count: int, errands: int, **more: Any) -> list[dict[str, Any]]:
    return [{"key": f"k{n}", "name": f"e{n}", "count": errands, **more} for n in range(count)]


def test_killed_workers_lose_nothing(fleet: Fleet) -> None:
    """Of three workers two are killed in the middle: all sessions end, and no errand that may not
    be repeated was.
    """
    fleet.begin(*many(30, 6, seconds=0.02, rerun="never"))
    workers = [fleet.start(concurrency=4, ttl=600.0) for _ in range(3)]
    for worker, after in zip(workers, (40, 100), strict=False):
        fleet.until(lambda after=after: len(fleet.noted()) > after)
        worker.kill()
        assert worker.wait() == -9
    ended = fleet.finish([f"k{n}" for n in range(30)])

    assert [one.state for one in ended] == ["completed"] * 30
    counts = {f"e{n}-{k}": fleet.began(f"e{n}-{k}") for n in range(30) for k in range(6)}
    assert set(counts.values()) <= {0, 1}
    unknown = [name for n, one in enumerate(ended) for name in _unknown(n, one.result)]
    assert len(unknown) <= 8  # four at once in each of the two
    assert [name for name in counts if counts[name] == 0 and name not in unknown] == []


def _unknown(n: int, result: list[int]) -> list[str]:
    return [f"e{n}-{k}" for k, pid in enumerate(result) if pid == 0]


def test_killed_workers_make_each_attempt_once(fleet: Fleet) -> None:
    """Of three workers two are killed between and in attempts: the others count on where they were.
    An attempt that was running is unknown and the last; no other is lost or made twice.
    """
    keys = [f"k{n}" for n in range(16)]
    fleet.begin(*({"program": "stumbles", "key": key, "name": key, "failures": 3} for key in keys))
    workers = [fleet.start(concurrency=4, ttl=600.0) for _ in range(3)]
    for worker, after in zip(workers, (16, 40), strict=False):
        fleet.until(lambda after=after: len(fleet.noted()) > after)
        worker.kill()
        assert worker.wait() == -9
    ended = fleet.finish(keys)

    assert [one.state for one in ended] == ["completed"] * len(keys)
    made = {key: fleet.began(key) for key in keys}
    unknown = [key for key, one in zip(keys, ended, strict=True) if one.result == 0]
    assert len(unknown) <= 8  # four at once in each of the two
    assert {key: made[key] for key in keys if key not in unknown} == {
        key: 4 for key in keys if key not in unknown
    }
    assert max(made.values()) == 4


def test_a_dead_process_of_this_machine_is_replaced_at_once(fleet: Fleet) -> None:
    """Nobody waits for the lease of a process that is gone, however long it would live."""
    gate = fleet.hold("a-0")
    fleet.begin(key="a", name="a", count=2)
    one = fleet.start(ttl=600.0)
    fleet.until(lambda: fleet.began("a-0"))
    two = fleet.start(ttl=600.0)
    one.kill()
    one.wait()
    fleet.until(lambda: fleet.began("a-0") == 2)
    gate.unlink()
    assert fleet.result("a") == [two.pid, two.pid]


def test_a_dead_process_of_another_machine_is_replaced_when_its_time_is_over(fleet: Fleet) -> None:
    """Only the clock tells: soon after its time to live is over."""
    ttl = 4.0
    gate = fleet.hold("a-0")
    fleet.begin(key="a", name="a", count=1)
    one = fleet.start(ttl=ttl, host="far-away")
    fleet.until(lambda: fleet.began("a-0"))
    two = fleet.start(ttl=600.0)
    one.kill()
    one.wait()
    # the bench measures it; here the machine may be busy
    fleet.until(lambda: fleet.began("a-0") == 2, ttl + 20)
    gate.unlink()
    assert fleet.result("a") == [two.pid]


def test_told_to_leave_it_hands_over(fleet: Fleet) -> None:
    """SIGTERM: what runs gets to its commit, what has not begun is begun by another, nothing twice,
    nothing unknown.
    """
    gates = [fleet.hold(f"e{n}-0") for n in range(4)]
    fleet.begin(*many(8, 3, rerun="never"))
    one = fleet.start(concurrency=4)
    fleet.until(lambda: all(fleet.began(f"e{n}-0") for n in range(4)))
    two = fleet.start(concurrency=4)
    fleet.leave(one)
    fleet.until(lambda: fleet.told(one, "stopping"))
    for gate in gates:
        gate.unlink()
    assert one.wait() == 0
    results = [one.result for one in fleet.finish([f"k{n}" for n in range(8)])]
    assert results[:4] == [[one.pid, two.pid, two.pid]] * 4
    assert results[4:] == [[two.pid] * 3] * 4
    assert {fleet.began(f"e{n}-{k}") for n in range(8) for k in range(3)} == {1}


def test_stopped_past_its_lease_it_changes_nothing_and_goes_on(fleet: Fleet) -> None:
    """SIGSTOP, another takes over, SIGCONT: what it did is refused, the session is intact, and it
    works for others.
    """
    gate = fleet.hold("a-0")
    fleet.begin(key="a", name="a", count=2)
    one = fleet.start(ttl=3.0)  # on a busy machine it keeps this, too, until it is stopped
    fleet.until(lambda: fleet.began("a-0"))
    fleet.stop(one)
    two = fleet.start(ttl=600.0)
    fleet.until(lambda: fleet.began("a-0") == 2)  # taken over when its time was over
    three = fleet.hold("a-1")
    fleet.stop(two)
    # before it wakes: else it may hear first that somebody took over, and stop what it does
    gate.unlink()
    fleet.resume(one)
    fleet.until(lambda: fleet.ended("a-0"))
    fleet.resume(two)  # both have done it now, and both say so
    fleet.until(lambda: fleet.ended("a-0") == 2)
    fleet.until(lambda: fleet.began("a-1"))
    time.sleep(0.5)
    three.unlink()
    assert fleet.result("a") == [two.pid, two.pid]
    assert fleet.began("a-1") == 1
    fleet.leave(two)
    assert two.wait() == 0
    fleet.begin(key="b", name="b", count=2)
    assert fleet.result("b") == [one.pid, one.pid]
    fleet.leave(one)
    assert one.wait() == 0


def test_a_fleet_that_was_stopped_together_goes_on_as_if_nothing_had_been(fleet: Fleet) -> None:
    """As with a laptop that sleeps: nobody takes the others for dead by the clock, and nothing is
    done twice.
    """
    gates = [fleet.hold(f"e{n}-0") for n in range(3)]
    workers = [fleet.start(ttl=9.0, concurrency=1) for _ in range(3)]
    fleet.begin(*many(3, 2))
    fleet.until(lambda: all(fleet.began(f"e{n}-0") for n in range(3)))
    for worker in workers:
        fleet.stop(worker)
    fleet.until(lambda: all(row.expired for row in _rows(fleet.url)))
    for worker in workers:
        # one after the other, as a machine wakes up: the first has the time to judge the others
        fleet.resume(worker)
        fleet.until(
            lambda worker=worker: any(
                row.pid == worker.pid and not row.expired for row in _rows(fleet.url)
            )
        )
        time.sleep(0.5)
    for gate in gates:
        gate.unlink()
    fleet.finish([f"k{n}" for n in range(3)])
    assert [fleet.began(f"e{n}-{k}") for n in range(3) for k in range(2)] == [1] * 6
    for worker in workers:
        fleet.leave(worker)
        assert worker.wait() == 0


def _rows(url: str) -> list[WorkerRecord]:
    async def read() -> list[WorkerRecord]:
        async with Runtime(at(url), recover=False) as runtime:
            return await runtime.store.workers()

    return asyncio.run(read())


def test_an_older_version_leaves_newer_sessions_alone(
    fleet: Fleet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two versions side by side: each drives its own sessions, and the older one refuses those of
    the newer.
    """
    with monkeypatch.context() as newer_process:
        newer_process.setenv("EVERHOLD_TEST_VERSION", "2")
        newer = Fleet(tmp_path, fleet.url)
    with newer:
        newer.begin(*[{"program": "deployed", "key": f"new-{n}"} for n in range(3)])
        fleet.begin(key="old", name="o", count=2)
        older_worker = fleet.start()
        fleet.until(lambda: fleet.told(older_worker, "cannot") == 3)
        assert fleet.result("old") == [older_worker.pid] * 2
        assert fleet.began("version-2") == 0
        newer.start()
        assert [newer.result(f"new-{n}") for n in range(3)] == [2, 2, 2]
        assert (fleet.began("version-1"), fleet.began("version-2")) == (0, 3)


def test_clocks_that_are_wrong_make_nobody_dead(postgres: Any, tmp_path: Path) -> None:
    """Two machines whose clocks are an hour apart each way: nobody is taken for dead, nothing is
    done twice.
    """
    from tests.postgres import fresh

    with Fleet(tmp_path, fresh(postgres, "fleet")) as fleet:
        fleet.begin(*many(20, 4, seconds=0.05, rerun="never"))
        workers = [
            fleet.start(ttl=60.0, concurrency=4, host="early", ahead=-3600.0),
            fleet.start(ttl=60.0, concurrency=4, host="late", ahead=3600.0),
        ]
        results = [one.result for one in fleet.finish([f"k{n}" for n in range(20)])]
        assert {pid for result in results for pid in result} <= {worker.pid for worker in workers}
        assert {fleet.began(f"e{n}-{k}") for n in range(20) for k in range(4)} == {1}


def test_timers_are_fired_by_whoever_is_there(fleet: Fleet) -> None:
    """Timers of many sessions are fired once each, whoever of the workers comes first."""
    fleet.begin(
        *[{"program": "naps", "key": f"n{n}", "name": f"n{n}", "seconds": 0.5} for n in range(30)]
    )
    for _ in range(3):
        fleet.start()
    assert [one.state for one in fleet.finish([f"n{n}" for n in range(30)])] == ["completed"] * 30
    assert {fleet.began(f"n{n}") for n in range(30)} == {1}


async def test_who_only_waits_hears_the_worker(fleet: Fleet) -> None:
    """A runtime that moves nothing by itself hears that a worker of another process has ended what
    it waits for.
    """
    gate = fleet.hold("a-0")
    await asyncio.to_thread(fleet.begin, key="a", name="a", count=2)
    async with Runtime(at(fleet.url), recover=False) as runtime:
        waiting = asyncio.ensure_future(runtime.wait(str(await runtime.store.find("a"))))
        worker = await asyncio.to_thread(fleet.start)
        await asyncio.to_thread(fleet.until, lambda: fleet.began("a-0"))
        gate.unlink()
        found = await asyncio.wait_for(waiting, PATIENCE)
    assert found.result == [worker.pid, worker.pid]


def test_the_command_is_such_a_worker(fleet: Fleet, tmp_path: Path) -> None:
    """`everhold worker` works, and on SIGTERM it hands over and exits with 0."""
    import signal
    import subprocess
    import sys

    gate = fleet.hold("a-0")
    fleet.begin(key="a", name="a", count=2, rerun="never")
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "everhold", "worker", "-d", fleet.url, "--json"]
    with subprocess.Popen(
        command, cwd=root, stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(root)}
    ) as one:
        try:
            fleet.until(lambda: fleet.began("a-0"))
            one.send_signal(signal.SIGTERM)
            told = ""
            while '"event":"stopping"' not in told and (line := one.stdout.readline()):
                told += line.decode()
            # not earlier: a worker that has nothing to do need not say that it is stopping
            gate.unlink()
            told += one.stdout.read().decode()
            assert one.wait(PATIENCE) == 0
        finally:
            one.kill()
    assert [
        event for event in ("started", "stopping", "stopped") if f'"event":"{event}"' not in told
    ] == []
    assert (fleet.began("a-0"), fleet.ended("a-0"), fleet.began("a-1")) == (1, 1, 0)
    two = fleet.start()
    assert fleet.result("a")[1] == two.pid
