"""Reconciliation, where timing could hide a mistake."""

import asyncio
import sqlite3
from contextlib import closing

import pytest

import everhold
from everhold.core.intake import IntakeItem, ItemKind
from everhold.core.lease import TTL
from everhold.engine.reconcile import MAX_STORE_RETRY_DELAY
from everhold.errors import StoreDamaged, StoreFull, StoreUnavailable
from everhold.ports.program import REGISTRY
from everhold.ports.store import RemoteChange, WorkerRecord
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.stores.sqlite import SQLiteStore
from everhold.testing.clock import ManualClock


async def test_a_call_between_two_rests_is_heard():
    """What happens after a rest was over, and before the next one begins, is looked at and not
    forgotten.
    """
    async with Runtime(MemoryStore(), clock=ManualClock(), recover=False) as runtime:
        reconciler = runtime.engine.reconciler
        looks = []

        async def look():
            looks.append(1)
            return True

        reconciler.look = look
        runtime.engine.sessions.poke()
        assert await asyncio.wait_for(reconciler._round(False), 60) is True
        assert looks == [1]


@everhold.program
async def dozes(ctx, seconds: float = 1):
    await ctx.sleep(seconds)
    return "awake"


async def test_a_timer_that_the_store_would_not_take_fires_when_it_does():
    """A store that is full for a while is no reason to leave a session to others, nor to hold up
    its neighbours.
    """
    clock, store = ManualClock(), MemoryStore()
    async with Runtime(store, clock=clock, recover=False) as runtime:
        ids = [(await runtime.start(dozes())).session_id for _ in range(3)]
        clock.advance(2)
        commit = store.commit

        async def full(change, fence):
            raise StoreFull("memory")

        store.commit = full
        assert await runtime.engine.reconciler.move() is False
        store.commit = commit
        assert await runtime.engine.reconciler.move() is True
        assert [(await runtime.status(id)).result for id in ids] == ["awake"] * 3


async def test_a_timer_that_the_store_would_not_take_is_tried_again_by_itself():
    """The mover tries it a little later; reconciliation has requested that move, and does so only
    once.
    """
    clock, store = ManualClock(), MemoryStore()
    async with Runtime(store, clock=clock) as runtime:
        id = (await runtime.start(dozes())).session_id
        commit, refused = store.commit, asyncio.Event()

        async def full(change, fence):
            refused.set()
            raise StoreFull("memory")

        store.commit = full
        clock.advance(2)
        await asyncio.wait_for(refused.wait(), 60)
        store.commit = commit
        await runtime.mover.rest()
        clock.advance(2)
        assert (await runtime.wait(id, 60)).result == "awake"


@pytest.mark.parametrize("works", [False, True], ids=["plain", "worker"])
async def test_a_session_that_cannot_be_read_holds_up_no_other(tmp_path, caplog, works):
    """It is left as it is, which is told once; its neighbours go on."""
    async with Runtime(SQLiteStore(tmp_path / "app.db"), recover=False) as runtime:
        broken, sound = [
            (await runtime.start(dozes(seconds=seconds))).session_id for seconds in (0.001, 0.002)
        ]
    with closing(sqlite3.connect(tmp_path / "app.db")) as file:
        file.execute(
            "UPDATE session SET birth = replace(birth, 'dozes', 'dosed') WHERE id = ?", (broken,)
        )
        file.commit()
    async with Runtime(SQLiteStore(tmp_path / "app.db"), recover=False) as runtime:
        await asyncio.sleep(0.01)
        worker = runtime.workers.worker()
        if works:
            await worker._enter(looks=False)
        for _ in range(2):
            await (runtime.engine.reconciler.look() if works else runtime.engine.reconciler.move())
            await asyncio.gather(*worker._tasks())
        assert (await runtime.status(sound)).result == "awake"
        with pytest.raises(StoreDamaged):
            await runtime.status(broken)
    assert caplog.text.count(f"session {broken} cannot be moved here") == 1


class Counting(MemoryStore):
    """Counts the sessions that are read."""

    read = 0

    async def load(self, session_id, since=0):
        self.read += 1
        return await super().load(session_id, since)

    async def intake(self, session_id, act, **more):
        self.read += 1
        return await super().intake(session_id, act, **more)


def strangers():
    """A program and an agent that nobody finds who does not know them already."""

    @everhold.program
    async def asks(ctx):
        return await ctx.approval("so?")

    return asks, everhold.Agent(instructions="Listen.", name="stranger")


@pytest.mark.parametrize("works", [False, True], ids=["plain", "worker"])
async def test_a_session_that_does_not_move_here_is_read_once(works):
    """And again when something happened to it, or when this process has learned a program; however
    often it looks.
    """
    clock, store = ManualClock(), Counting()
    program, agent = strangers()
    async with Runtime(store, clock=clock, recover=False) as runtime:
        asked = [(await runtime.start(program())).session_id for _ in range(20)]
        talks = [(await runtime.session(agent, f"{n}")).id for n in range(20)]
    away = {
        place: REGISTRY.pop(place) for place in [*REGISTRY] if REGISTRY[place] in (program, agent)
    }
    async with Runtime(store, clock=clock, recover=False) as runtime:
        worker = runtime.workers.worker(concurrency=100)
        if works:
            await worker._enter(looks=False)

        async def say(id, what):
            await store.intake(
                id,
                lambda intake: intake.enqueue(IntakeItem(what, ItemKind.INPUT, {"content": what})),
            )

        async def looked():
            store.read = 0
            look = runtime.engine.reconciler.look if works else runtime.engine.reconciler.move
            while await look() or worker._tasks():
                await asyncio.gather(*worker._tasks())
            return store.read

        for id in asked:
            await runtime.answer(id, True)
        for id in talks:
            await say(id, "Hello?")
        assert await looked() >= 40
        assert await looked() == 0
        await runtime.cancel(asked[0])
        await say(talks[0], "Is anybody there?")
        assert 0 < await looked() < 15
        assert await looked() == 0
        REGISTRY.update(away)
        await looked()
        assert (await runtime.status(asked[-1])).state == "completed"
        assert await store.intake(talks[-1], lambda intake: intake.waiting()) == []


async def test_a_chore_that_fails_keeps_no_other_from_being_done(caplog):
    """Schedules, events and the outbox do not wait for each other."""
    async with Runtime(MemoryStore(), clock=ManualClock(), recover=False) as runtime:
        done = []

        async def fails(now):
            raise RuntimeError("no")

        async def works(now):
            done.append(now)
            return False

        runtime.engine.reconciler.add_chore(fails)
        runtime.engine.reconciler.add_chore(works)
        assert await runtime.engine.reconciler.move() is False
    assert len(done) == 1
    assert "a chore failed" in caplog.text


async def test_whatever_keeps_a_process_from_saying_that_it_lives_it_says_so_again(caplog):
    """One beat that fails, in whichever way, is not the last one."""
    clock = ManualClock()
    async with Runtime(MemoryStore(), clock=clock, recover=False) as runtime:
        beats = []

        async def beat():
            beats.append(1)
            raise RuntimeError("no")

        runtime.engine.reconciler.beat = beat
        for count in (1, 2):
            while len(beats) < count:
                clock.advance(TTL)
                await asyncio.sleep(0.001)
    assert "could not renew this process's worker row" in caplog.text


async def test_the_news_of_others_can_wait_and_a_call_cannot():
    """However much others write, there is time for work between two looks; what is due or called
    for does not wait.
    """
    clock = ManualClock()
    async with Runtime(MemoryStore(), clock=clock, recover=False) as runtime:
        reconciler = runtime.engine.reconciler
        assert await reconciler.move() is False
        reconciler._rested = asyncio.get_running_loop().time() + 600
        await asyncio.wait_for(reconciler._in_peace(clock.now()), 60)
        waiting = asyncio.create_task(reconciler._in_peace(None))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        reconciler.poke()
        await asyncio.wait_for(waiting, 60)


class Requests:
    """A mover that only remembers which moves were requested."""

    def __init__(self):
        self.sent = []

    def send(self, session_id, *, at=None):
        self.sent.append(session_id)


async def test_what_another_sees_to_first_is_left_to_it():
    """Waiting callers are notified all the same; what is for no other worker is requested at
    once.
    """
    async with Runtime(MemoryStore(), clock=ManualClock(), recover=False) as runtime:
        reconciler, mover = runtime.engine.reconciler, Requests()
        reconciler._mover, reconciler.living = mover, frozenset({"w-other"})
        reconciler._rested = asyncio.get_running_loop().time() + 600
        with runtime.engine.sessions.watched("s-1") as told:
            reconciler._hear(RemoteChange(["s-1"], first="w-other"))
            assert told.done()
        with runtime.engine.sessions.watched("s-1") as told:
            resting = asyncio.create_task(reconciler._in_peace(None))
            await asyncio.wait_for(told, 60)
        with runtime.engine.sessions.watched("s-1") as told:
            reconciler._hear(RemoteChange(first="w-other"))
            await asyncio.wait_for(told, 60)
        assert mover.sent == []
        for first in ("", "w-gone", runtime.engine.presence.worker):
            reconciler._hear(RemoteChange([f"s-{first}"], first=first))
        assert mover.sent == ["s-", "s-w-gone", f"s-{runtime.engine.presence.worker}"]
        reconciler.poke()
        await asyncio.wait_for(resting, 60)


async def test_what_another_sees_to_first_is_looked_at_soon_after():
    """It has a head start, no more: it may die, or have no room."""
    async with Runtime(MemoryStore(), clock=ManualClock(), recover=False) as runtime:
        reconciler = runtime.engine.reconciler
        reconciler._mover, reconciler.living = Requests(), frozenset({"w-other"})
        reconciler._hear(RemoteChange(["s-1"], first="w-other"))
        assert await asyncio.wait_for(reconciler._rest(), 60) is True


async def test_news_that_move_nothing_only_wake_who_waits():
    """A process that took a lease or read a letter asks nothing of others."""
    async with Runtime(MemoryStore(), clock=ManualClock(), recover=False) as runtime:
        reconciler, mover = runtime.engine.reconciler, Requests()
        reconciler._mover = mover
        with runtime.engine.sessions.watched("s-1") as told:
            reconciler._hear(RemoteChange(["s-1"], moves=False))
            assert told.done()
        assert mover.sent == []
        assert not reconciler._heard.is_set()


async def test_a_process_that_dies_during_a_look_is_found_dead():
    """It has just been seen alive, and nothing else will happen: the next rest would last for
    minutes.
    """
    clock, store = ManualClock(), MemoryStore()
    async with Runtime(store, clock=clock, recover=False, ttl=600) as runtime:
        reconciler = runtime.engine.reconciler
        await store.beat(WorkerRecord("w-other", "elsewhere", 1, 3.0))
        unmoved = store.unmoved

        async def slow(*given, **more):
            clock.advance(4)
            return await unmoved(*given, **more)

        store.unmoved = slow
        assert await reconciler.move() is False
        assert await asyncio.wait_for(reconciler._rest(), 60) is True


@pytest.mark.parametrize("later", range(4))
async def test_who_is_cancelled_while_called_leaves(later):
    """Also if both happen at the same moment; a runtime that closes would wait for ever
    otherwise.
    """
    async with Runtime(MemoryStore(), clock=ManualClock(), recover=False) as runtime:
        reconciler = runtime.engine.reconciler
        reconciler._rested = asyncio.get_running_loop().time() + 600
        resting = asyncio.create_task(reconciler._in_peace(None))
        await asyncio.sleep(0.01)
        reconciler.poke()
        for _ in range(later):
            await asyncio.sleep(0)
        heeded = resting.cancel()
        await asyncio.wait([resting])
        assert resting.cancelled() is heeded


async def test_a_store_that_stays_away_is_asked_less_and_less_often(monkeypatch, caplog):
    """Each time is one line of the log; when it is back, everything goes on."""
    clock, store = ManualClock(), MemoryStore()
    async with Runtime(store, clock=clock) as runtime:
        id = (await runtime.start(dozes())).session_id
        waited, sleep = [], asyncio.sleep

        async def counted(seconds):
            waited.append(seconds)
            await sleep(0)

        async def away(*given, **more):
            raise StoreUnavailable("memory", "it is away")

        with monkeypatch.context() as patched:
            patched.setattr("everhold.engine.reconcile.asyncio.sleep", counted)
            for verb in ("workers", "unmoved", "intake", "load", "commit"):
                patched.setattr(store, verb, away)
            clock.advance(2)
            runtime.engine.reconciler.poke()
            while len(waited) < 8:
                await sleep(0.001)
        assert waited[:8] == sorted(waited[:8]) and waited[0] < waited[7] == MAX_STORE_RETRY_DELAY
        clock.advance(2)
        assert (await runtime.wait(id, 60)).result == "awake"
    assert "the store is unavailable; sessions do not move" in caplog.text
    assert "Traceback" not in caplog.text
