"""Workers: they claim what can go on, drive it under leases, in turn and within limits, and hand it
over.
"""

import asyncio

import pytest

import everhold
from everhold.core.intake import Intake
from everhold.core.lease import LeaseOwner
from everhold.errors import BadSetting
from everhold.movers import Limits
from everhold.packages.catalog import KnownPrograms
from everhold.ports.store import NO_WORKER, WorkerRecord
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock
from tests.scenario.harness import TTL, opened, replayed

ELSEWHERE = LeaseOwner("elsewhere:1", "w-elsewhere")


class World:
    """What is done outside."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.running: list[str] = []
        self.most: dict[str, int] = {}
        self.gates: dict[str, asyncio.Event] = {}


world = World()


@pytest.fixture(autouse=True)
def fresh_world():
    global world
    world = World()


async def work(name: str) -> str:
    world.running.append(name)
    kind = name.partition("-")[0]
    world.most[kind] = max(
        world.most.get(kind, 0), sum(each.startswith(kind) for each in world.running)
    )
    try:
        gate = world.gates.get(name)
        await (asyncio.sleep(0) if gate is None else gate.wait())
    finally:
        world.running.remove(name)
    world.done.append(name)
    return name


async def other(name: str) -> str:
    return await work(name)


@everhold.program
async def chain(ctx, name: str, length: int = 3, rerun: str = "safe"):
    return [await ctx.call(work, f"{name}-{number}", rerun=rerun) for number in range(length)]


@everhold.program
async def wide(ctx, name: str, width: int):
    return await asyncio.gather(*(ctx.call(work, f"{name}-{number}") for number in range(width)))


@everhold.program
async def mixed(ctx, name: str):
    return await asyncio.gather(
        *(ctx.call(tool, f"{name}-{n}") for n in range(4) for tool in (work, other))
    )


@everhold.program
async def sleeps(ctx, seconds: float = 50):
    await ctx.sleep(seconds)
    return "awake"


@everhold.program
async def restless(ctx):
    while True:
        await ctx.sleep(0.0001)
        await ctx.call(work, "restless")


async def begun(store, clock, *calls):
    """Sessions whose calls have not begun: a worker left them."""
    runtime = Runtime(store, clock=clock, ttl=TTL, recover=False)
    ids = []
    async with runtime:
        runtime.engine.serving.leaving = True
        for call in calls:
            ids.append((await runtime.start(call, wait=0)).session_id)
    return ids


async def lease(store, session_id):
    return await store.intake(session_id, lambda intake: intake.lease)


async def until(what, tries=2000):
    for _ in range(tries):
        found = what()
        if asyncio.iscoroutine(found):
            found = await found
        if found:
            return found
        await asyncio.sleep(0.001)
    raise AssertionError("it did not come to pass")


# ---- claiming and driving


async def test_a_worker_begins_what_was_left():
    """What a worker had not begun when it left is begun by another, without doubt about its
    outcome.
    """
    clock, store = ManualClock(), MemoryStore()
    (id,) = await begun(store, clock, chain(name="a", rerun="never"))
    assert [effect.worker for effect in (await store.load(id)).effects] == [NO_WORKER]
    async with opened(on=store, clock=clock, recover=False) as runtime:
        assert await runtime.workers.worker().once() == 0
        assert (await runtime.status(id)).result == ["a-0", "a-1", "a-2"]
    assert world.done == ["a-0", "a-1", "a-2"]


async def test_a_session_in_work_is_leased_and_then_free():
    """The lease is held while this process works on it, and released when it has ended; so is the
    worker's row.
    """
    clock, store = ManualClock(), MemoryStore()
    (id,) = await begun(store, clock, chain(name="a", length=1))
    world.gates["a-0"] = asyncio.Event()
    async with opened(on=store, clock=clock, recover=False) as runtime:
        async with runtime.workers.worker():
            await until(lambda: world.running)
            held = await lease(store, id)
            assert held.live(clock.now()) and held.owner == runtime.engine.leases.owner
            clock.advance(TTL * 0.4)
            await until(lambda: _lives_until(store, id, clock.now() + TTL))
            world.gates["a-0"].set()
            await runtime.wait(id, 60)
            await until(lambda: _released(store, id))
        assert await store.workers() == []


async def _lives_until(store, id, moment):
    return (await lease(store, id)).expires_at == moment


async def _released(store, id):
    return (await lease(store, id)).released


async def test_workers_leave_alone_what_another_works_on():
    """A live lease of somebody else is respected, by workers and by plain runtimes; an ended one is
    not.
    """
    for as_worker in (True, False):
        clock, store = ManualClock(), MemoryStore()
        (id,) = await begun(store, clock, chain(name="a", length=1))
        taken = await store.intake(id, lambda intake: intake.take(ELSEWHERE, "t", TTL))
        async with opened(on=store, clock=clock, recover=False) as runtime:
            if as_worker:
                assert await runtime.workers.worker().once(within=0.1) == 1
            else:
                assert not await runtime.engine.reconciler.move()
            assert world.done == []
            clock.advance(TTL)
            if as_worker:
                runtime = await _another(runtime)
                assert await runtime.workers.worker().once() == 0
            else:
                assert await runtime.engine.reconciler.move()
                await runtime.wait(id, 60)
            assert world.done.pop() == "a-0"
        assert taken.lease.generation + as_worker == (await lease(store, id)).generation


async def _another(runtime):
    """Another process on the same store."""
    other = Runtime(runtime.store, clock=runtime.clock, ttl=TTL, recover=False)
    return await other.__aenter__()


async def test_a_timer_is_fired_and_a_query_expires():
    """What comes due is moved, under a lease that is released afterwards."""
    clock, store = ManualClock(), MemoryStore()
    async with opened(on=store, clock=clock, recover=False) as runtime:
        status = await runtime.start(sleeps())
        async with runtime.workers.worker():
            clock.advance(51)
            assert (await runtime.wait(status.session_id, 60)).result == "awake"
            await until(lambda: _released(store, status.session_id))


async def test_only_the_programs_it_was_given():
    """Sessions of other programs are left to others, and are no work that is left."""
    clock, store = ManualClock(), MemoryStore()
    one, two = await begun(store, clock, chain(name="a", length=1), wide(name="b", width=1))
    async with opened(on=store, clock=clock, recover=False) as runtime:
        assert await runtime.workers.worker(programs=[wide.ref]).once() == 0
        assert world.done == ["b-0"]
        assert (await runtime.status(one)).state == "running"
        assert (await runtime.status(two)).state == "completed"


async def test_a_newer_version_is_left_to_others():
    """An older process refuses the session, releases it, says so once, and does not spin."""
    clock, store = ManualClock(), MemoryStore()

    @everhold.program(version=2)
    async def deployed(ctx):
        return await ctx.call(work, "new-0")

    (id,) = await begun(store, clock, deployed())

    class Older(KnownPrograms):
        def find(self, ref, version):
            @everhold.program(version=1)
            async def deployed(ctx):
                """As it was before the deploy."""

            return deployed

    told, looks = [], []
    older = Runtime(store, programs=Older(None), clock=clock, ttl=TTL, recover=False)
    async with older:
        move = older.engine.reconciler.move
        older.engine.reconciler.move = lambda: looks.append(1) or move()
        async with older.workers.worker(tell=told.append):
            await until(lambda: [one for one in told if one.event == "cannot"])
            before = len(looks)
            await asyncio.sleep(0.5)
            assert len(looks) <= before + 5
            assert [one.session_id for one in told if one.event == "cannot"] == [id]
            assert (await lease(store, id)).released
    assert world.done == []
    newer = Runtime(store, clock=clock, ttl=TTL, recover=False)
    newer.programs.add(deployed)
    async with newer:
        assert await newer.workers.worker().once() == 0
        assert (await newer.status(id)).result == "new-0"


# ---- limits and fairness


async def test_so_many_sessions_at_once():
    """Sessions beyond the concurrency wait, and all end."""
    clock, store = ManualClock(), MemoryStore()
    ids = await begun(store, clock, *(chain(name=f"a{n}", length=2) for n in range(12)))
    world.gates |= {f"a{n}-0": asyncio.Event() for n in range(12)}
    async with (
        opened(on=store, clock=clock, recover=False) as runtime,
        runtime.workers.worker(concurrency=3),
    ):
        await until(lambda: len(world.running) == 3)
        await asyncio.sleep(0.05)
        assert sorted(world.running) == ["a0-0", "a1-0", "a2-0"]
        assert len(runtime.engine.leases) == 3
        for gate in world.gates.values():
            gate.set()
        for id in ids:
            assert (await runtime.wait(id, 60)).state == "completed"


@pytest.mark.parametrize(
    ("limits", "most"),
    [
        (Limits(session=2), 2),
        (Limits(program={"wide": 3}), 3),
        (Limits(program={wide.ref: 1}), 1),
        (Limits(tool={"work": 4}), 4),
        (Limits(tool={f"{__name__}:work": 5, "other": 1}), 5),
        (Limits(), 10),
    ],
)
async def test_limits(limits, most):
    """No more than so many jobs of a session, a program or a tool run at once, and all are done."""
    clock, store = ManualClock(), MemoryStore()
    ids = await begun(store, clock, wide(name="w", width=10))
    async with opened(on=store, clock=clock, recover=False) as runtime:
        await runtime.workers.worker(limits=limits).once()
        assert (await runtime.status(ids[0])).result == [f"w-{n}" for n in range(10)]
    assert world.most["w"] == most


async def test_a_limit_of_one_tool_does_not_hold_up_another():
    """What waits for its tool lets pass what needs another one."""
    clock, store = ManualClock(), MemoryStore()
    (id,) = await begun(store, clock, mixed(name="m"))
    world.gates |= {"m-0": asyncio.Event()}
    limits = Limits(tool={"work": 1})
    async with (
        opened(on=store, clock=clock, recover=False) as runtime,
        runtime.workers.worker(limits=limits),
    ):
        await until(lambda: len(world.done) == 3)
        assert world.running == ["m-0", "m-0"]
        world.gates["m-0"].set()
        await runtime.wait(id, 60)
    assert sorted(world.done) == sorted(f"m-{n}" for n in range(4) for _ in range(2))


async def served(endless: int) -> int:
    """How many jobs were done until 99 sessions had ended, beside so many that never do."""
    global world
    world = World()
    clock, store = ManualClock(), MemoryStore()
    await begun(store, clock, *(chain(name="endless", length=10**6) for _ in range(endless)))
    ids = await begun(store, clock, *(chain(name=f"a{n}", length=5) for n in range(99)))
    async with opened(on=store, clock=clock, recover=False, replay=False) as runtime:
        async with runtime.workers.worker(concurrency=4, grace=0.1):
            for id in ids:
                assert (await runtime.wait(id, 60)).state == "completed"
            jobs = len(world.done)
        await replayed_some(runtime, ids)
    return jobs


async def replayed_some(runtime, ids):
    assert [(await runtime.status(id)).state for id in ids] == ["completed"] * len(ids)


async def test_one_session_without_end_keeps_nobody_waiting():
    """Beside one that always has more to do, 99 others wait at most twice as long; also beside
    four, which fill it.
    """
    alone = await served(0)
    assert alone == 99 * 5
    assert await served(1) <= 2 * alone
    assert await served(4) <= 3 * alone


async def test_a_timer_without_end_keeps_nobody_waiting():
    """A session whose timer is always due is served in turn: a hundred others end beside it."""
    store = MemoryStore()
    async with Runtime(store, ttl=TTL, recover=False) as runtime:
        await runtime.start(restless(), wait=0)
        async with runtime.workers.worker(concurrency=2, grace=0.1):
            ids = [
                (await runtime.start(sleeps(seconds=0.01), wait=0)).session_id for _ in range(100)
            ]
            for id in ids:
                assert (await runtime.wait(id, 60)).state == "completed"
            await until(lambda: world.done.count("restless") > 2)


async def test_a_timer_that_is_always_due_lets_an_answer_in():
    """Timers that were due before the answer came are fired before it, and only those."""

    @everhold.program
    async def spins(ctx):
        question = asyncio.ensure_future(ctx.llm("enough?"))
        while not question.done():
            # clock: a timer that is due at every look, however late
            await asyncio.wait([question], timeout=0.000001)
        return question.result()

    async with Runtime(MemoryStore(), recover=False) as runtime:
        status = await runtime.start(spins())
        assert (await runtime.answer(status.queries[0], "yes")).result == "yes"


# ---- leaving


async def test_leaving_gets_running_work_to_its_commit():
    """What runs is finished and kept; what follows, and what had not begun, is nobody's; nothing is
    done twice.
    """
    clock, store = ManualClock(), MemoryStore()
    ids = await begun(store, clock, *(chain(name=f"a{n}", rerun="never") for n in range(5)))
    world.gates |= {f"a{n}-0": asyncio.Event() for n in range(5)}
    told = []
    async with opened(on=store, clock=clock, recover=False) as runtime:
        worker = runtime.workers.worker(concurrency=2, tell=told.append)
        running = asyncio.create_task(worker.run())
        await until(lambda: len(world.running) == 2)
        begun_here = list(world.running)
        worker.stop()
        await until(lambda: [one for one in told if one.event == "stopping"])
        for gate in world.gates.values():
            gate.set()
        await running
        assert world.done == begun_here
        assert {effect.worker for id in ids for effect in (await store.load(id)).effects} == {
            NO_WORKER
        }
        assert await store.workers() == []
        assert [(await lease(store, id)).released for id in ids[:2]] == [True, True]
    async with opened(on=store, clock=clock, recover=False) as runtime:
        assert await runtime.workers.worker().once() == 0
        assert [(await runtime.status(id)).result for id in ids] == [
            [f"a{n}-{k}" for k in range(3)] for n in range(5)
        ]
    assert sorted(world.done) == sorted(f"a{n}-{k}" for n in range(5) for k in range(3))
    assert [one.event for one in told] == ["started", "stopping", "stopped"]


async def test_leaving_waits_no_longer_than_its_grace():
    """What does not end in time is unknown to whoever comes next, and he is told so."""
    clock, store = ManualClock(), MemoryStore()
    (id,) = await begun(store, clock, chain(name="a", length=1, rerun="never"))
    world.gates["a-0"] = asyncio.Event()
    told = []
    async with opened(on=store, clock=clock, recover=False) as runtime:
        worker = runtime.workers.worker(grace=0.05, tell=told.append)
        running = asyncio.create_task(worker.run())
        await until(lambda: world.running)
        worker.stop()
        await running
    assert [one.event for one in told] == ["started", "stopping", "gave_up", "stopped"]
    async with opened(on=store, clock=clock, recover=False) as runtime:
        await runtime.workers.worker().once()
        assert "OutcomeUnknown" in (await runtime.status(id)).outcome.error
    assert world.done == []


async def test_a_handed_over_session_is_explained():
    """explain says that it has not begun, and who begins it."""
    clock, store = ManualClock(), MemoryStore()
    (id,) = await begun(store, clock, chain(name="a"))
    async with opened(on=store, clock=clock, recover=False, replay=False) as runtime:
        told = await runtime.explain(id)
        assert "has not started" in told.because[0]
        assert "starts it" in told.moves[0]


async def test_workers_do_not_all_reach_for_the_same():
    """Of two workers each begins with every second session in line, and goes on with the rest."""
    clock, store = ManualClock(), MemoryStore()
    ids = await begun(store, clock, *(chain(name=f"n{n}", length=1) for n in range(4)))
    async with opened(on=store, clock=clock, recover=False) as runtime:
        me = runtime.engine.presence.worker
        for other, share in ((f"{me}-after", ids[::2]), ("before", ids[1::2])):
            await store.beat(WorkerRecord(other, "elsewhere", 1, 1000.0))
            worker = runtime.workers.worker(concurrency=2)
            runtime.engine.reconciler.living = (await runtime.engine.presence.census()).living
            assert sorted(worker._in_turn(ids)[:2]) == sorted(share)
            assert sorted(worker._in_turn(ids)) == sorted(ids)
            await store.release(other)
        assert await runtime.workers.worker().once() == 0
        assert {(await runtime.status(id)).state for id in ids} == {"completed"}


# ---- taking over


async def test_what_was_taken_over_is_not_kept_twice():
    """A worker that comes back after another took its call over: what came of it there is refused,
    and nothing else.
    """
    clock, store = ManualClock(), MemoryStore()
    slow = Runtime(store, clock=clock, ttl=TTL, recover=False)
    await slow.__aenter__()
    world.gates["a-0"] = asyncio.Event()
    id = (await slow.start(chain(name="a", length=2), wait=0)).session_id
    await until(lambda: world.running)
    await slow.engine.reconciler.stop()
    clock.advance(TTL + 1)  # it was not heard of for too long
    async with opened(on=store, clock=clock, recover=False) as runtime, runtime.workers.worker():
        await until(lambda: len(world.running) == 2)
        mark = (await store.load(id)).effects
        assert [effect.worker for effect in mark] == [runtime.engine.presence.worker]
        before = (await store.load(id)).head.revision
        task = next(iter(slow.engine.effects.tasks))
        await slow.engine.effects.deliver(
            id, everhold.core.query.QueryAnswer(mark[0].q, "of the slow one")
        )
        assert (await store.load(id)).head.revision == before
        task.cancel()
        world.gates["a-0"].set()
        assert (await runtime.wait(id, 60)).result == ["a-0", "a-1"]
    await slow.close(grace=0)


@pytest.mark.process
async def test_leases_of_the_dead_are_released_at_once(tmp_path):
    """Whose process on this machine is gone holds nothing, however long its lease would live."""
    import os
    import subprocess
    import sys

    from everhold.engine import liveness

    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    clock, store = ManualClock(), MemoryStore()
    (id,) = await begun(store, clock, chain(name="a", length=1))
    dead = WorkerRecord("w-dead", liveness.get_machine_id(), ended.pid, 1000.0)
    await store.beat(dead)
    await store.intake(id, lambda intake: intake.take(liveness.make_lease_owner(dead), "t", 1000.0))
    assert liveness.make_lease_owner(dead).name == f"{os.uname().nodename}:{ended.pid}"
    async with opened(on=store, clock=clock, recover=False) as runtime:
        assert await runtime.workers.worker().once() == 0
        assert (await runtime.status(id)).result == ["a-0"]


async def test_the_long_dead_are_forgotten():
    """The row of a worker that died stays for a day, to tell a death from a clean end; then it
    goes.
    """
    clock, store = ManualClock(), MemoryStore()
    await store.open()
    store.use_clock(clock.now)
    await store.beat(WorkerRecord("w-dead", "elsewhere/", 1))
    async with opened(on=store, clock=clock, recover=False) as runtime:
        clock.advance(3600)
        await runtime.engine.reconciler.move()
        assert [worker.id for worker in await store.workers()] == ["w-dead"]
        clock.advance(86400)
        await runtime.engine.reconciler.move()
        assert await store.workers() == []


async def test_a_lost_lease_is_noticed():
    """A lease that somebody else has by now is not renewed: the worker lets go, and goes on with
    others.
    """
    clock, store = ManualClock(), MemoryStore()
    one, two = await begun(store, clock, chain(name="a", length=1), chain(name="b", length=1))
    world.gates |= {"a-0": asyncio.Event(), "b-0": asyncio.Event()}
    told = []

    def stolen(intake: Intake):
        intake.lease = None
        return intake.take(ELSEWHERE, "t", 1000.0)

    async with opened(on=store, clock=clock, recover=False) as runtime:
        async with runtime.workers.worker(tell=told.append):
            await until(lambda: len(world.running) == 2)
            await store.intake(one, stolen)
            clock.advance(TTL / 3)
            await until(lambda: [each for each in told if each.event == "lost"])
            assert [(each.session_id, each.name) for each in told if each.event == "lost"] == [
                (one, "")
            ]
            assert not runtime.engine.leases.holds(one)
            assert runtime.engine.leases.holds(two)
            for gate in world.gates.values():
                gate.set()
            # its work was not lost: nobody else had begun it
            assert (await runtime.wait(one, 60)).result == ["a-0"]
            assert (await runtime.wait(two, 60)).result == ["b-0"]
        assert (await lease(store, one)).owner == ELSEWHERE


# ---- once, and what is refused


async def test_once_says_what_is_left():
    """It returns when nothing can move; sessions that wait for a moment yet to come are not
    left.
    """
    clock, store = ManualClock(), MemoryStore()
    async with opened(on=store, clock=clock, recover=False) as runtime:
        await runtime.start(sleeps())
        assert await runtime.workers.worker().once() == 0


async def test_a_signal_that_is_not_asked_for_yet_leaves_nothing_to_do():
    """It is kept until the program receives it. What is due is left all the same if there is no
    time for it.
    """
    clock, store = ManualClock(), MemoryStore()
    async with opened(on=store, clock=clock, recover=False) as runtime:
        status = await runtime.start(sleeps(seconds=50))
        await runtime.signal(status.session_id, "early")
        assert await runtime.workers.worker().once() == 0
        assert (await runtime.status(status.session_id)).state == "paused"
        clock.advance(60)
        assert await runtime.workers.worker().once(within=0) == 1
        assert await runtime.workers.worker().once() == 0
        assert (await runtime.status(status.session_id)).result == "awake"


async def test_once_stops_when_its_time_is_over():
    """A session without end is left when the time is over, and the number says so."""
    clock, store = ManualClock(), MemoryStore()
    await begun(store, clock, chain(name="endless", length=10**6))
    async with opened(on=store, clock=clock, recover=False, replay=False) as runtime:
        for within in (0.3, 3, 30):  # a busy machine may need more for two steps
            assert await runtime.workers.worker().once(within=within) == 1
            if len(world.done) > 1:
                break
    assert len(world.done) > 1


@pytest.mark.parametrize(
    "wrong",
    [
        lambda runtime: runtime.workers.worker(concurrency=0),
        lambda runtime: runtime.workers.worker(concurrency=True),
        lambda runtime: runtime.workers.worker(grace=-1),
        lambda runtime: runtime.workers.worker(ttl=0),
        lambda runtime: Limits(session=0),
        lambda runtime: Limits(tool={"search": "many"}),
        lambda runtime: Limits(program={"p": -1}),
    ],
)
async def test_what_makes_no_sense_is_refused(wrong):
    async with opened() as runtime:
        with pytest.raises(BadSetting):
            wrong(runtime)


async def test_a_runtime_is_one_worker():
    """A second one beside the first is refused; the first goes on."""
    async with opened(recover=False) as runtime:
        async with runtime.workers.worker():
            with pytest.raises(BadSetting, match="worker"):
                await runtime.workers.worker().run()
            assert (await runtime.run(chain(name="a"))) == ["a-0", "a-1", "a-2"]
        await replayed(runtime)


async def test_sessions_that_a_worker_does_not_want_hide_no_other(monkeypatch):
    """However many others are due before it, a session of the named program is found."""
    monkeypatch.setattr("everhold.engine.reconcile.AT_ONCE", 2)
    clock, store = ManualClock(), MemoryStore()
    async with opened(on=store, clock=clock, recover=False, replay=False) as runtime:
        for _ in range(7):
            await runtime.start(restless())
        clock.advance(1)
        wanted = (await runtime.start(sleeps(seconds=1))).session_id
        clock.advance(2)
        assert await runtime.workers.worker(programs=[sleeps.ref]).once(60) == 0
        assert (await runtime.status(wanted)).result == "awake"


async def test_a_store_that_is_away_keeps_no_worker_from_leaving(monkeypatch, caplog):
    """What it could not give back is free when its time is over."""
    for module in ("engine.engine", "movers.workers"):
        monkeypatch.setattr(f"everhold.{module}.CLOSE_TIMEOUT", 0.01)
    clock, store = ManualClock(), MemoryStore()
    (id,) = await begun(store, clock, chain(name="a", length=1))
    world.gates["a-0"] = asyncio.Event()
    for_ever = asyncio.Event()

    async def away(*given, **more):
        await for_ever.wait()

    async with Runtime(store, clock=clock, ttl=TTL, recover=False) as runtime:
        async with runtime.workers.worker(grace=0.01) as worker:
            await until(lambda: world.running)
            with monkeypatch.context() as patched:
                for verb in ("intake", "leave", "release", "commit"):
                    patched.setattr(store, verb, away)
                await asyncio.wait_for(worker.leave(), 60)
        assert "they will expire: the store is unavailable" in caplog.text
    assert (await lease(store, id)).live(clock.now())
    clock.advance(TTL)
    assert not (await lease(store, id)).live(clock.now())
