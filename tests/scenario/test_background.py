"""Processes: child sessions in the background, begun, looked at, told, stopped; and their parent
hears of them once.
"""

import asyncio

import pytest

import everhold
from everhold.core.session import SessionState
from everhold.errors import AnswerFailed, Expired, UnknownProgram
from everhold.stores.memory import MemoryStore
from everhold.testing.answers import StandIns
from everhold.testing.clock import ManualClock
from everhold.testing.crash import crash_everywhere
from everhold.testing.runtime import RuntimeForTests, StillClock
from tests.postgres import fresh
from tests.scenario.harness import die, dying, opened


@everhold.program
async def bake(ctx, what: str, minutes: float = 0):
    if minutes:
        await ctx.sleep(minutes * 60)
    return f"{what} is done"


@everhold.program
async def burn(ctx):
    raise ValueError("too hot")


@everhold.program
async def listener(ctx):
    return await ctx.receive("word")


@everhold.program
async def talker(ctx, words: int = 3):
    for number in range(words):
        assert await ctx.tell(number)
    return "told"


@everhold.program
async def kitchen(ctx):
    """Two in the oven; whoever is done first is heard first."""
    await ctx.background(bake(what="bread", minutes=60), title="the bread")
    await ctx.background(bake(what="cake", minutes=40))
    return [(await ctx.receive("process"))["value"] for _ in range(2)]


@everhold.program
async def begins(ctx, times: int = 1):
    """Begins, and does something else."""
    made = [await ctx.background(bake(what=str(number))) for number in range(times)]
    await ctx.approval("Go on?")
    return [process.session_id for process in made]


@everhold.program
async def waits(ctx, timeout: float = 0):
    process = await ctx.background(bake(what="bread", minutes=60))
    if not timeout:
        return await process.wait()
    try:
        await process.wait(timeout)
    except Expired:
        return (await process.look())["state"]


@everhold.program
async def waits_late(ctx):
    process = await ctx.background(bake(what="bread"))
    await ctx.approval("Now?")
    return await process.wait()


@everhold.program
async def manager(ctx):
    process = await ctx.background(listener(), title="the listener")
    failed = await ctx.background(burn())
    heard = [await ctx.receive("process")]
    listed = [[one["title"], one["state"]] for one in await ctx.processes()]
    assert await process.signal("word", {"say": "hello"})
    heard.append(await ctx.receive("process"))
    return {
        "listed": listed,
        "heard": [
            [one["event"], one["state"], one.get("value", one.get("error"))] for one in heard
        ],
        "late": [
            await process.signal("word", 1),
            await process.cancel(),
            (await failed.look())["state"],
        ],
    }


@everhold.program
async def stops(ctx):
    process = await ctx.background(bake(what="bread", minutes=60))
    assert await process.cancel("not hungry")
    return await ctx.receive("process")


@everhold.program
async def hears(ctx, words: int = 4):
    await ctx.background(talker())
    return [
        one.get("said", one.get("value"))
        for one in [await ctx.receive("process") for _ in range(words)]
    ]


@everhold.program
async def parent_of_a_child(ctx):
    child = ctx.spawn(talker(words=1))
    heard = await ctx.receive("process")
    return [heard["said"], await child]


@everhold.program
async def stranger(ctx, process: str):
    from everhold.programs.python.context import PythonProcess

    try:
        return await PythonProcess(ctx, process).look()
    except AnswerFailed as error:
        return error.kind


@everhold.program
async def lonely(ctx):
    return await ctx.tell("hello?")


async def house_of(store=None, clock=None):
    house = RuntimeForTests(store or MemoryStore(), clock or StillClock(), StandIns())
    await house.__aenter__()
    return house


async def result(house, call):
    status = await house.start(call, wait=0)
    await house.skip(2 * 3600)
    return (await house.status(status.session_id)).result


async def ended(runtime, session_id):
    """A session once it has ended: one that waits for a signal counts as needing somebody
    outside.
    """
    for _ in range(6000):
        status = await runtime.status(session_id)
        if status.state not in ("running", "paused"):
            return status
        await asyncio.sleep(0.01)
    raise AssertionError(status)


async def test_a_parent_goes_on_and_hears_who_is_done_first():
    house = await house_of()
    assert await result(house, kitchen()) == ["cake is done", "bread is done"]
    assert sorted(info.title for info in await house.sessions()) == ["", "", "the bread"]


async def test_a_process_lives_on_when_its_parent_has_ended():
    house = await house_of()
    status = await house.start(begins())
    await house.answer(status.session_id, True)
    await house.settle()
    (child,) = (await house.status(status.session_id)).result
    assert (await house.status(child)).result == "0 is done"
    assert (await house.sessions(parent=status.session_id))[0].session_id == child


async def test_a_parent_waits_for_a_process():
    house = await house_of()
    ended = await result(house, waits())
    assert (ended["state"], ended["value"], ended["event"]) == ("completed", "bread is done", "end")


async def test_a_parent_waits_for_a_while():
    house = await house_of()
    assert await result(house, waits(timeout=60)) == "paused"


async def test_a_process_that_has_ended_is_not_waited_for():
    house = await house_of()
    status = await house.start(waits_late())
    await house.settle()
    await house.answer(status.session_id, True)
    assert (await house.status(status.session_id)).result["value"] == "bread is done"


async def test_processes_are_listed_signalled_and_their_failures_told():
    house = await house_of()
    assert await result(house, manager()) == {
        "listed": [["the listener", "paused"], ["burn", "failed"]],
        "heard": [["end", "failed", "ValueError: too hot"], ["end", "completed", {"say": "hello"}]],
        "late": [False, False, "failed"],
    }


async def test_a_process_is_stopped():
    house = await house_of()
    ended = await result(house, stops())
    assert (ended["state"], ended["error"]) == ("cancelled", "not hungry")


async def test_a_process_tells_its_parent_while_it_goes_on():
    house = await house_of()
    assert await result(house, hears()) == [0, 1, 2, "told"]


async def test_a_child_that_is_waited_for_may_tell_something_too():
    house = await house_of()
    assert await result(house, parent_of_a_child()) == [0, "told"]


async def test_a_session_without_a_parent_has_nobody_to_tell():
    house = await house_of()
    assert await result(house, lonely()) is False


async def test_somebody_elses_process_is_none_of_ones_own():
    house = await house_of()
    await house.start(begins())
    (child,) = [info for info in await house.sessions() if info.parent]
    assert await result(house, stranger(process=child.session_id)) == "unknown_process"


async def test_whoever_cancels_a_parent_cancels_its_processes():
    house = await house_of()
    status = await house.start(kitchen(), wait=0)
    await house.settle()
    await house.cancel(status.session_id, "closing")
    await house.settle()
    assert {info.state for info in await house.sessions()} == {SessionState.CANCELLED}


async def test_a_parent_that_is_cancelled_where_its_program_is_not_takes_its_processes_along():
    house = await house_of()
    status = await house.start(kitchen(), wait=0)
    await house.settle()
    house.forget()
    begin = house.engine.host.begin

    def absent(birth, meter):
        raise UnknownProgram(birth.program)

    house.engine.host.begin = absent
    await house.cancel(status.session_id)
    house.engine.host.begin = begin
    await house.settle()
    assert {info.state for info in await house.sessions()} == {SessionState.CANCELLED}


async def test_a_signal_that_is_not_waited_for_leaves_a_process_paused():
    """It is kept; and its status is what it was."""
    house = await house_of()
    status = await house.start(early(), wait=0)
    await house.settle()
    (child,) = await house.sessions(parent=status.session_id)
    assert child.state == "paused"
    assert [query.prompt for query in (await house.status(child.session_id)).queries] == ["Ready?"]
    await house.answer(child.session_id, True)
    assert (await house.status(child.session_id)).result == "early"


@everhold.program
async def early(ctx):
    process = await ctx.background(asks_first())
    await process.signal("word", "early")
    await ctx.receive("never")


@everhold.program
async def asks_first(ctx):
    await ctx.approval("Ready?")
    return await ctx.receive("word")


async def test_the_end_is_heard_once_although_every_process_dies(tmp_path):
    """Each of many processes drives a little and is killed; the parent hears each child once, in
    one order.
    """
    clock = ManualClock()
    first = await dying(tmp_path, clock)
    session_id = (await first.start(kitchen(), wait=0)).session_id
    await die(first, clock)
    for _ in range(6):
        clock.advance(15 * 60)
        other = await dying(tmp_path, clock)
        await asyncio.sleep(0.1)
        await die(other, clock)
    async with opened(tmp_path, clock=clock) as runtime:
        assert (await ended(runtime, session_id)).result == ["cake is done", "bread is done"]
        assert await runtime.archive.verify() == []
        assert len(await runtime.sessions()) == 3


async def test_two_processes_drive_parents_and_children_together(tmp_path):
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as one, opened(tmp_path, clock=clock) as two:
        ids = [
            (await each.start(hears(), wait=0)).session_id for each in (one, two) for _ in range(10)
        ]
        for session_id in ids:
            assert (await ended(two, session_id)).result == [0, 1, 2, "told"]


async def test_a_fork_has_processes_of_its_own():
    """A fork from before a process was begun begins another; the first one's end is told to its own
    parent.
    """
    house = await house_of()
    status = await house.start(begins())
    fork = await house.fork(status.session_id, at=0)
    await house.settle()
    children = {info.parent: info.session_id for info in await house.sessions() if info.parent}
    assert set(children) == {status.session_id, fork.session_id}
    assert len(set(children.values())) == 2


@pytest.mark.parametrize("count", [120])
async def test_many_processes(count):
    house = await house_of()
    status = await house.start(begins(times=count))
    await house.settle()
    await house.answer(status.session_id, True)
    ids = (await house.status(status.session_id)).result
    assert len(set(ids)) == count
    assert {info.state for info in await house.sessions(parent=status.session_id, limit=1000)} == {
        SessionState.COMPLETED
    }


@everhold.program
async def errand(ctx):
    """Begins two, tells one something, stops the other, and hears of both."""
    one = await ctx.background(listener(), title="one")
    two = await ctx.background(bake(what="bread", minutes=60), title="two")
    await one.signal("word", "hello")
    first = await ctx.receive("process")
    await two.cancel("enough")
    second = await ctx.receive("process")
    return [[news["title"], news["state"]] for news in (first, second)]


@pytest.mark.parametrize("call", [errand(), hears(), waits()], ids=["errand", "hears", "waits"])
def test_a_program_with_processes_is_crashed_at_every_commit(call):
    """Whatever dies, each process is begun once, and what it says is heard once."""
    report = crash_everywhere(call)
    assert report.commits >= 3


async def test_a_session_is_carried_elsewhere_with_its_processes(tmp_path):
    """It goes on there, and its process with it."""
    clock = ManualClock()
    async with opened(tmp_path, clock=clock) as runtime:
        session_id = (await runtime.start(kitchen(), wait=0)).session_id
        for _ in range(6000):
            if all(info.due_at for info in await runtime.sessions(parent=session_id)):
                break
            await asyncio.sleep(0.01)
        await runtime.archive.export(tmp_path / "kitchen.jsonl", session_id)
    async with opened(clock=clock) as elsewhere:
        await elsewhere.archive.import_(tmp_path / "kitchen.jsonl")
        assert len(await elsewhere.sessions()) == 3
        clock.advance(3 * 3600)
        assert sorted((await ended(elsewhere, session_id)).result) == [
            "bread is done",
            "cake is done",
        ]


@pytest.mark.xdist_group("postgres")
async def test_two_processes_drive_parents_and_children_on_postgres(postgres):
    url = fresh(postgres)
    async with everhold.open(url) as one, everhold.open(url) as two:
        ids = [
            (await each.start(hears(), wait=0)).session_id for each in (one, two) for _ in range(5)
        ]
        for session_id in ids:
            assert (await ended(two, session_id)).result == [0, 1, 2, "told"]
        assert await one.archive.verify() == []
