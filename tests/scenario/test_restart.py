"""restart: a program begins again in its session, and nothing of before is replayed."""

import asyncio

import pytest

import everhold
from everhold.agents.agent import Agent
from everhold.core.journal import get_restart
from everhold.errors import BadStep, Diverged
from everhold.ports.program import REGISTRY
from everhold.ports.store import FROM_RESTART, Change
from everhold.ports.tool import tool
from everhold.testing.clock import ManualClock
from tests.scenario.harness import at_top, moved, opened, prompts, store
from tests.scenario.talk import Scripted, use

seen = []


async def children_of(runtime, session_id):
    """Wait until all children have asked."""
    while True:
        infos = await runtime.sessions(parent=session_id)
        states = [(await runtime.status(info.session_id)).state for info in infos]
        if infos and set(states) == {"paused"}:
            return
        await asyncio.sleep(0.001)


@pytest.fixture(autouse=True)
def nothing_seen():
    seen.clear()


@everhold.program
async def rounds(ctx, done: int = 0, words: list[str] | None = None):
    """Three answers, then begin again; the third time it ends."""
    said = []
    for number in range(3):
        said.append(await ctx.llm(f"round {done}, question {number}"))
    if done == 2:
        return [*(words or []), *said]
    await ctx.restart(done=done + 1, words=[*(words or []), *said])


async def answered(runtime, status, times, word="a"):
    for number in range(times):
        status = await runtime.answer(status.queries[0], f"{word}{number}")
    return status


async def journal(runtime, status):
    return (await runtime.store.load(status.session_id)).deliveries


# ---- the same session, from the first line


async def test_the_program_begins_again_in_its_session():
    """The same id, key, title and labels; other arguments; and it comes to its end."""
    async with opened() as runtime:
        status = await runtime.start(rounds(), key="k", title="t", labels={"a": "b"})
        after = await answered(runtime, status, 3)
        assert (after.session_id, prompts(after)) == (status.session_id, ["round 1, question 0"])
        end = await answered(runtime, after, 6)
        assert end.result == ["a0", "a1", "a2", "a0", "a1", "a2", "a3", "a4", "a5"]
        (info,) = await runtime.sessions()
        assert (info.key, info.title, info.labels, info.steps) == ("k", "t", {"a": "b"}, 11)


async def test_the_key_still_means_the_session_as_it_was_started():
    """Whoever starts it again under its key, with the arguments of then, finds it."""
    async with opened() as runtime:
        status = await answered(runtime, await runtime.start(rounds(done=1), key="k"), 3)
        assert (
            prompts(await runtime.start(rounds(done=1), key="k"))
            == prompts(status)
            == ["round 2, question 0"]
        )


async def test_a_restart_and_the_next_pause_are_one_commit():
    """One revision for the last answer, the restart and the first question after it."""
    async with opened() as runtime:
        status = await answered(runtime, await runtime.start(rounds()), 2)
        before = (await runtime.store.load(status.session_id)).head
        await answered(runtime, status, 1)
        after = (await runtime.store.load(status.session_id)).head
        assert (after.revision - before.revision, after.n - before.n) == (1, 2)


async def test_numbers_and_keys_of_questions_are_never_used_twice():
    async with opened() as runtime:
        status = await answered(runtime, await runtime.start(rounds()), 9)
        asked = [query for one in await journal(runtime, status) for query in one.asked]
        assert [query.q for query in asked] == list(range(9))
        assert len({query.key for query in asked}) == 9


@everhold.program
async def dice(ctx, left: int = 2):
    seen.append((ctx.random(), ctx.uuid(), ctx.rng().random(), ctx.now()))
    await ctx.llm(f"{seen[-1]}")
    if left:
        await ctx.restart(left=left - 1)


async def test_dice_and_time_are_others_after_a_restart_and_the_same_on_replay():
    async with opened(clock=(clock := ManualClock())) as runtime:
        status = await runtime.start(dice())
        for _ in range(2):
            clock.advance(60)
            status = await runtime.answer(status.queries[0], "on")
        for part in zip(*seen, strict=True):
            assert len(set(part)) == 3
        last = seen[-1]
        async with opened(on=runtime.store, clock=clock) as other:
            await other.answer(status.queries[0], "end")
        assert seen[-1] == last


async def test_what_it_cost_and_recorded_counts_on():
    """Calls and tokens of before are in the end's numbers, as are recorded values, also after a
    cold resume.
    """

    async with opened() as runtime:
        status = await runtime.start(recorder())
        usage = everhold.Usage(prompt_tokens=10, completion_tokens=5, model="m")
        for _ in range(2):
            async with opened(on=runtime.store, clock=runtime.clock) as other:
                status = await other.answer(status.queries[0], "x", usage=usage)
        auto, custom = status.metrics["auto"], status.metrics["custom"]
        assert (auto["llm_calls"], auto["prompt_tokens"]["tokens"], auto["pauses"]) == (2, 20, 2)
        assert custom == {"first": True, "last": 1}


@everhold.program
async def recorder(ctx, last: int = 0):
    if not last:
        ctx.record("first", True)
    ctx.record("last", last)
    await ctx.llm("go on?")
    if last == 0:
        await ctx.restart(last=1)


@everhold.program
async def thrifty(ctx, times: int = 0):
    await ctx.llm(f"{ctx.budget_remaining()}")
    await ctx.restart(times=times + 1)


async def test_a_budget_is_the_sessions():
    """It is not filled up by a restart, live or rebuilt."""
    async with opened() as runtime:
        status = await runtime.start(thrifty(), budget=everhold.Budget(max_llm_calls=3))
        for _ in range(3):
            async with opened(on=runtime.store, clock=runtime.clock) as other:
                status = await other.answer(status.queries[0], "x")
        assert (status.outcome.kind, "3" in status.error) == ("budget_exceeded", True)


async def test_log_stays():
    async with opened() as runtime:
        status = await runtime.start(talker())
        status = await runtime.answer(status.queries[0], "x")
        logged = [
            entry.message for one in await runtime.steps(status.session_id) for entry in one.log
        ]
        assert logged == ["round 0", "leaving 0", "round 1"]


@everhold.program
async def talker(ctx, number: int = 0):
    ctx.log(f"round {number}")
    await ctx.llm("go on?")
    ctx.log(f"leaving {number}")
    await ctx.restart(number=number + 1)


# ---- what stays and what goes


@everhold.program
async def listener(ctx, heard: list[str] | None = None):
    said = await ctx.receive("word")
    if said == "stop":
        return heard
    await ctx.restart(heard=[*(heard or []), said])


async def test_signals_that_were_not_received_yet_stay():
    """Each life takes one; all that wait are received, also more than there may be restarts in a
    row.
    """
    async with opened() as runtime:
        status = await runtime.start(waiting_listener())
        for number in range(250):
            await runtime.signal(status.session_id, "word", f"w{number}")
        await runtime.signal(status.session_id, "word", "stop")
        end = await runtime.answer(status.queries[0], "now")
        assert end.result == [f"w{number}" for number in range(250)]


@everhold.program
async def waiting_listener(ctx, heard: list[str] | None = None):
    if heard is None:
        await ctx.llm("when?")
        await ctx.restart(heard=[])
    said = await ctx.receive("word")
    if said == "stop":
        return heard
    await ctx.restart(heard=[*heard, said])


async def test_a_signal_that_is_sent_later_is_received_by_the_new_life():
    async with opened() as runtime:
        status = await runtime.start(listener())
        await runtime.signal(status.session_id, "word", "one")
        assert (await runtime.signal(status.session_id, "word", "stop")).result == ["one"]


@everhold.program
async def ticking(ctx, ticks: int = 0):
    await ctx.sleep(60)
    if ticks == 2:
        return ctx.now().timestamp()
    await ctx.restart(ticks=ticks + 1)


async def test_a_timer_leads_to_a_restart_and_the_next_timer():
    async with opened(clock=(clock := ManualClock())) as runtime:
        status, dawn = await runtime.start(ticking()), clock.now()
        for _ in range(3):
            clock.advance(61)
            await moved(runtime, status.session_id)
        assert (await runtime.status(status.session_id)).result == dawn + 183


@everhold.program
async def busy(ctx, again: bool = False):
    """Leaves questions, a timer and children behind."""
    if again:
        return await ctx.llm("after")
    others = [
        asyncio.create_task(ctx.llm("another")),
        asyncio.create_task(ctx.approval("may I?", timeout=30)),
        asyncio.create_task(ctx.sleep(10)),
    ]
    child = ctx.spawn(slow())
    others.append(asyncio.create_task(bound(ctx)))
    await asyncio.sleep(0)
    await ctx.llm("the last")
    seen.append((child, others))
    try:
        await ctx.restart(again=True)
    finally:
        await ctx.call(seen.append, "never")


async def bound(ctx):
    await ctx.delegate(slow(), title="bound")


@everhold.program
async def slow(ctx):
    return await ctx.llm("child?")


async def test_what_is_open_is_withdrawn():
    """Questions leave the inbox, timers never fire, a bound child is cancelled, another goes on."""
    async with opened(clock=(clock := ManualClock())) as runtime:
        status = await runtime.start(busy())
        await children_of(runtime, status.session_id)
        last = next(query for query in status.queries if query.prompt == "the last")
        status = await runtime.answer(last, "x")
        assert prompts(status) == ["after"]
        clock.advance(100)
        while not any(info.state == "cancelled" for info in await runtime.sessions()):
            await asyncio.sleep(0.001)
        assert {query.prompt for query in await runtime.inbox()} == {"after", "child?"}
        assert (await runtime.store.load(status.session_id)).head.due_at is None
        states = {info.title: info.state for info in await runtime.sessions() if info.parent}
        assert states == {"": "paused", "bound": "cancelled"}
        assert not [one for one in seen if one == "never"]


async def test_a_child_that_ends_after_the_restart_disturbs_nobody():
    async with opened() as runtime:
        status = await runtime.start(busy())
        await children_of(runtime, status.session_id)
        last = next(query for query in status.queries if query.prompt == "the last")
        status = await runtime.answer(last, "x")
        (child,) = [
            info.session_id
            for info in await runtime.sessions(parent=status.session_id)
            if not info.title
        ]
        await runtime.answer(child, "late")
        await runtime.wait(status.session_id, 0)
        assert (await runtime.answer(status.queries[0], "done")).result == "done"


@everhold.program
async def worker(ctx, number: int = 0):
    await ctx.call(seen.append, number)
    if number < 2:
        await ctx.restart(number=number + 1)
    return number


async def test_a_call_of_the_new_life_is_not_taken_for_one_of_the_old():
    async with opened() as runtime:
        status = await runtime.start(worker())
        assert (await runtime.wait(status.session_id, 5)).result == 2
        assert seen == [0, 1, 2]


@everhold.program
async def forgetful(ctx, again: bool = False):
    """Restarts while a call is under way."""
    if again:
        return await ctx.call(seen.append, "new")
    task = asyncio.create_task(ctx.call(for_ever))
    await asyncio.sleep(0)
    await ctx.llm("go on?")
    seen.append(task)
    await ctx.restart(again=True)


async def for_ever():
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        seen.append("stopped")
        raise


async def test_a_call_under_way_is_stopped():
    async with opened() as runtime:
        status = await runtime.start(forgetful(), wait=0)
        await asyncio.sleep(0)
        status = await runtime.answer(status.queries[0], "x")
        await runtime.wait(status.session_id, 5)
        assert {"stopped", "new"} <= {one for one in seen if isinstance(one, str)}


@everhold.program
async def counting(ctx, left: int = 3):
    await ctx.state("shop").incr("n")
    if left:
        await ctx.restart(left=left - 1)
    await ctx.llm("enough?")


async def test_durable_values_land_with_the_restarts_of_their_step():
    async with opened() as runtime:
        await runtime.start(counting())
        assert (await runtime.store.value("shop", "n"))[0] == [4]


@everhold.program
async def parent(ctx):
    return await ctx.spawn(rounds(done=1))


async def test_the_parent_of_a_child_that_restarts_gets_its_end():
    """It is the same child, with what it cost in all its time."""
    async with opened() as runtime:
        status = await runtime.start(parent())
        await children_of(runtime, status.session_id)
        usage = everhold.Usage(prompt_tokens=1, completion_tokens=1, model="m")
        for _ in range(6):
            (query,) = await runtime.inbox()
            await runtime.answer(query, "x", usage=usage)
            if (live := runtime.engine.sessions.cached(query.session_id)) is not None:
                runtime.engine.sessions.drop(live)  # it is rebuilt for the next answer
        end = await runtime.wait(status.session_id, 1)
        assert end.result == ["x"] * 6
        (answer,) = [given for one in await journal(runtime, status) for given in one.answers]
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (6, 6)


@everhold.program
async def oven(ctx, begun: bool = False):
    if not begun:
        await ctx.background(slow(), title="bread")
        await ctx.restart(begun=True)
    listed = [one["title"] for one in await ctx.processes()]
    return [*listed, (await ctx.receive("process"))["value"]]


async def test_processes_in_the_background_are_known_after_a_restart():
    """They go on, and the program hears of their end."""
    async with opened() as runtime:
        status = await runtime.start(oven(), wait=0)
        await children_of(runtime, status.session_id)
        (child,) = [query for query in await runtime.inbox() if query.kind == "llm"]
        await runtime.answer(child, "baked")
        assert (await runtime.wait(status.session_id, 5)).result == ["bread", "baked"]


@tool
def hand_on(start: int):
    """Have somebody else do it."""
    return rounds(done=start)


hander = Agent("local:hander", tools=[hand_on])


async def test_a_program_that_a_tool_hands_on_to_may_restart():
    """Inside the turn of an agent the tool's program has a session of its own: the turn waits for
    its end.
    """
    cast = Scripted(use("hand_on", start=1), *["yes"] * 6, "Done.")
    async with opened(llm=cast, replay=False) as runtime:
        session = await runtime.session(hander, "s")
        assert (await session.send("Go.")).text == "Done."
        (child,) = await runtime.sessions(parent=session.id)
        assert (child.state, (await runtime.status(child.session_id)).result) == (
            "completed",
            ["yes"] * 6,
        )


async def test_an_answer_that_is_taken_where_the_program_is_not_leads_to_a_restart(tmp_path):
    """It waits in the intake; whoever has the program goes on with it."""

    @at_top
    async def traveller(ctx, said: str = ""):
        await ctx.restart(said=await ctx.llm(f"after {said}"))

    async with opened(tmp_path) as runtime:
        status = await runtime.start(traveller())
    place = (traveller.ref, traveller.version)
    del REGISTRY[place]
    async with opened(tmp_path, replay=False) as blind:
        assert await blind.answer(status.queries[0], "kept") == everhold.Accepted(
            status.session_id, 0
        )
    REGISTRY[place] = traveller
    async with opened(tmp_path) as runtime:
        assert prompts(await runtime.wait(status.session_id, 60)) == ["after kept"]


# ---- misuse


@everhold.program
async def wrongly(ctx, number: int):
    try:
        await ctx.restart(**{"number": "many", **({"other": 1} if number == 2 else {})})
    except everhold.EverholdError as error:
        seen.append(error.code)
    return await ctx.llm(f"still here {number}")


@pytest.mark.parametrize("number", [1, 2])
async def test_arguments_that_do_not_fit_are_refused_at_the_call(number):
    """The program goes on as if nothing had been."""
    async with opened() as runtime:
        status = await runtime.start(wrongly(number=number))
        assert (prompts(status), seen[0]) == ([f"still here {number}"], "bad_arguments")
        assert (await runtime.answer(status.queries[0], "x")).result == "x"


@everhold.program
async def outer(ctx):
    try:
        await ctx.run(inner())
    except everhold.EverholdError as error:
        return error.code


@everhold.program
async def inner(ctx):
    await asyncio.gather(ctx.restart(), ctx.llm("never asked"))


async def test_a_program_that_is_run_inline_cannot_restart():
    async with opened() as runtime:
        assert (await runtime.start(outer())).result == "cannot_restart"


@everhold.program
async def cancelled(ctx):
    try:
        await ctx.llm("?")
    except asyncio.CancelledError:
        try:
            await ctx.restart()
        except everhold.EverholdError as error:
            seen.append(error.code)
        raise


async def test_after_a_cancel_it_is_refused():
    async with opened() as runtime:
        status = await runtime.start(cancelled())
        assert (await runtime.cancel(status.session_id, "no")).state == "cancelled"
        assert seen[0] == "after_cancel"


@everhold.program
async def reaching(ctx):
    async def effect():
        await ctx.restart()

    try:
        await ctx.call(effect)
    except everhold.EverholdError as error:
        return error.kind


async def test_an_effect_cannot_restart_its_program():
    async with opened() as runtime:
        status = await runtime.start(reaching())
        assert (await runtime.wait(status.session_id, 5)).result == "foreign_call"


@everhold.program
async def restless(ctx, number: int = 0, touching: bool = False):
    if number == 0:
        await ctx.llm("begin?")
    if touching:
        await ctx.state.incr("touched")
    await ctx.restart(number=number + 1, touching=touching)


@pytest.mark.parametrize("touching", [False, True])
async def test_one_that_never_pauses_is_spinning(touching):
    """Its session has failed; what it has written until then is there."""
    async with opened() as runtime:
        status = await runtime.start(restless(touching=touching))
        end = await runtime.answer(status.queries[0], "yes")
        assert (end.state, end.outcome.kind, "100 restarts" in end.error) == (
            "failed",
            "spinning",
            True,
        )


def restless_until(mended):
    async def body(ctx, number: int = 0):
        if number == 0:
            await ctx.llm("begin?")
        elif mended:
            return await ctx.llm(f"mended, at {number}")
        await ctx.restart(number=number + 1)

    return edition(body)


async def test_one_that_was_spinning_can_be_mended():
    async with opened(replay=False) as runtime:
        status = await runtime.start(restless_until(False)())
        end = await runtime.answer(status.queries[0], "yes")
        assert end.outcome.kind == "spinning"
        restless_until(True)
        async with opened(on=runtime.store, clock=runtime.clock, replay=False) as mended:
            status = await mended.retry(end.session_id)
            assert prompts(status) == ["mended, at 100"]
            assert (await mended.answer(status.queries[0], "x")).result == "x"


@everhold.program
async def at_once(ctx, left: int = 90):
    if left:
        await ctx.restart(left=left - 1)
    return await ctx.llm("at last")


async def test_one_that_restarts_before_its_first_question():
    async with opened() as runtime:
        status = await runtime.start(at_once())
        assert prompts(status) == ["at last"]
        assert (await runtime.answer(status.queries[0], "x")).result == "x"


@everhold.program
async def in_a_task(ctx, again: bool = False):
    if again:
        return await ctx.llm("again")
    async with asyncio.TaskGroup() as group:
        group.create_task(ctx.restart(again=True))
        await ctx.llm("never asked")


async def test_any_task_may_restart():
    async with opened() as runtime:
        status = await runtime.start(in_a_task())
        assert prompts(status) == ["again"]


@everhold.program
async def too_late(ctx):
    seen.append(asyncio.get_running_loop().create_task(ctx.restart()))
    return "done"


async def test_a_task_that_restarts_after_the_end_is_too_late():
    async with opened() as runtime:
        assert (await runtime.start(too_late())).result == "done"


# ---- the journal across a restart


async def test_a_fork_at_any_step_across_restarts():
    """Before, at and after a restart: it goes on from there, and the origin is as it was."""
    async with opened() as runtime:
        origin = await answered(runtime, await runtime.start(rounds()), 7, "old")
        steps = await journal(runtime, origin)
        restarts = [one.n for one in steps if get_restart(one) is not None]
        assert restarts == [3, 7]
        for at in range(len(steps)):
            fork = await runtime.fork(origin.session_id, at=at)
            given = sum(len(one.answers) for one in steps[: at + 1])
            assert prompts(fork) == [f"round {given // 3}, question {given % 3}"]
            async with opened(on=runtime.store, clock=runtime.clock, replay=False) as other:
                end = await answered(other, fork, 9 - given, "new")
            assert (end.result[:given], len(end.result)) == (
                [one.answers[0].value for one in steps[: at + 1] if one.answers],
                9,
            )
        assert prompts(await runtime.status(origin.session_id)) == prompts(origin)


async def test_a_fork_with_another_answer_across_a_restart():
    async with opened() as runtime:
        origin = await answered(runtime, await runtime.start(rounds()), 5, "old")
        fork = await runtime.fork(origin.session_id, at=3, answer="other")
        assert prompts(fork) == ["round 1, question 0"]
        assert (await answered(runtime, fork, 6, "new")).result[:4] == [
            "old0",
            "old1",
            "other",
            "new0",
        ]
        with pytest.raises(BadStep):
            await runtime.fork(origin.session_id, at=4, answer="nothing was answered there")


def edition(body):
    """A program whose code can be changed: each edition has the same name."""
    body.__name__, body.__qualname__ = "edited", "edition.<locals>.edited"
    return everhold.program(body)


def dividing(by, first="before"):
    async def body(ctx, number: int = 0):
        if number == 0:
            await ctx.llm(first)
            await ctx.restart(number=1)
        return number / by if by else [1 / by, await ctx.llm("never")]

    return edition(body)


async def test_a_retry_of_what_failed_after_a_restart():
    """The new life begins again under the mended code; nothing of the old one is replayed."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(dividing(0)())
        end = await runtime.answer(status.queries[0], "x")
        assert (end.state, "ZeroDivisionError" in end.error) == ("failed", True)
        dividing(2, "worded otherwise")
        async with opened(on=runtime.store, clock=runtime.clock, replay=False) as mended:
            assert (await mended.retry(end.session_id)).result == 0.5


def failing(broken):
    async def body(ctx, number: int = 0):
        if number:
            return await ctx.llm(f"number {number}")
        await ctx.llm("before")
        if broken:
            raise ValueError("broken")
        await ctx.restart(number=7)

    return edition(body)


async def test_a_retry_that_leads_to_a_restart():
    async with opened() as runtime:
        status = await runtime.start(failing(True)())
        end = await runtime.answer(status.queries[0], "x")
        failing(False)
        async with opened(on=runtime.store, clock=runtime.clock) as mended:
            status = await mended.retry(end.session_id)
        assert prompts(status) == ["number 7"]
        async with opened(on=runtime.store, clock=runtime.clock) as other:
            assert (await other.answer(status.queries[0], "y")).result == "y"


async def test_code_may_change_where_the_program_began_again():
    """What was asked before the restart does not have to be asked by the code of today."""
    old, new = dividing_words("old"), None
    async with opened(replay=False) as runtime:
        status = await answered(runtime, await runtime.start(old()), 2)
        new = dividing_words("new")
        async with opened(on=runtime.store, clock=runtime.clock, replay=False) as other:
            with pytest.raises(Diverged):
                await other.answer(status.queries[0], "x")
        new = dividing_words("new", same_after=True)
        async with opened(on=runtime.store, clock=runtime.clock, replay=False) as other:
            assert (await other.answer(status.queries[0], "x")).result == "x"
        assert new is not None


def dividing_words(edition_of, same_after=False):
    async def body(ctx, number: int = 0):
        if number == 0:
            await ctx.llm("one")
            if edition_of == "new":
                await ctx.approval("another shape")
            await ctx.llm("two")
            await ctx.restart(number=1)
        if edition_of == "new" and not same_after:
            return await ctx.approval("another shape")
        return await ctx.llm("three")

    return edition(body)


async def test_where_it_began_again_is_found_though_the_head_has_forgotten_it():
    """An everhold that knows nothing of restarts may have written the head since then, to leave a
    letter.
    """
    async with opened(replay=False) as runtime:
        status = await answered(runtime, await runtime.start(dividing_words("old")()), 2)
        record = await runtime.store.load(status.session_id)
        assert record.head.metrics.begun == 2
        record.head.metrics.begun, fence = 0, record.head.revision
        record.head.revision += 1
        await runtime.store.commit(Change(record.birth.id, record.head), fence)
        dividing_words("new", same_after=True)
        async with opened(on=runtime.store, clock=runtime.clock, replay=False) as other:
            assert (await other.answer(status.queries[0], "x")).result == "x"


async def test_explain_names_the_restart():
    async with opened() as runtime:
        status = await answered(runtime, await runtime.start(rounds()), 4)
        told = await runtime.explain(status.session_id)
        assert "Its program restarted at step 3; earlier steps are not replayed." in told.because
        assert not [words for words in told.because if "cannot" in words]


async def test_steps_say_where_the_program_began_again():
    async with opened() as runtime:
        status = await answered(runtime, await runtime.start(rounds()), 4)
        steps = await runtime.steps(status.session_id)
        assert [(one.n, one.restart) for one in steps if one.restart is not None] == [
            (3, {"done": 1, "words": ["a0", "a1", "a2"]})
        ]


async def test_an_answer_to_a_question_of_before_is_known():
    """The same again changes nothing; another is a conflict."""
    async with opened() as runtime:
        first = await runtime.start(rounds())
        status = await answered(runtime, first, 4)
        assert prompts(await runtime.answer(first.queries[0], "a0")) == prompts(status)
        with pytest.raises(everhold.EverholdError, match="q-0"):
            await runtime.answer(first.queries[0], "other")


async def test_export_and_import_across_a_restart(tmp_path):
    """What is taken in goes on, and reads no more than it did where it came from."""
    async with opened() as runtime:
        status = await answered(runtime, await runtime.start(rounds()), 4)
        fork = await runtime.fork(status.session_id, at=5)
        await runtime.archive.export(tmp_path / "out.jsonl")
    async with opened(tmp_path) as other:
        await other.archive.import_(tmp_path / "out.jsonl")
        for session in (status, fork):
            found = await other.store.load(session.session_id, since=FROM_RESTART)
            assert [one.n for one in found.deliveries] == [3, 4, 5]
            assert (
                len((await answered(other, await other.status(session.session_id), 5)).result) == 9
            )


@pytest.mark.process
async def test_the_arguments_of_a_restart_are_redacted_like_the_answers_that_they_are_made_from(
    tmp_path,
):
    """Such a file can be checked."""
    async with opened() as runtime:
        await answered(runtime, await runtime.start(rounds()), 3, "secret")
        file = tmp_path / "out.jsonl"
        await runtime.archive.export(file, redact=["prompts", "notes"])
        assert "secret" in file.read_text()
        await runtime.archive.export(file, redact=True)
        assert "secret" not in file.read_text()
        assert (await runtime.archive.check(file=file)).counts == {"ok": 1}


# ---- what a cold resume costs


@everhold.program
async def long(ctx, times: int, again: bool = False):
    for number in range(times):
        await ctx.llm(f"question {number}")
    await ctx.restart(times=3, again=True)


class Counted:
    """Counts the deliveries that are read from a store."""

    def __init__(self, there):
        self.read, load = 0, there.load

        async def counted(*args, **more):
            record = await load(*args, **more)
            self.read += len(record.deliveries)
            return record

        there.load = counted


@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_a_cold_resume_after_a_restart_reads_what_a_young_session_reads(tmp_path, where):
    """A thousand answers before it cost nothing."""
    there = store(None if where == "memory" else tmp_path)
    read = [await resumed(there, times) for times in (2, 1000)]
    assert read[0] == read[1] < 12


async def resumed(there, times):
    """How many deliveries a process reads that takes a session up after a restart and answers one
    question.
    """
    async with opened(on=there, replay=False) as runtime:
        status = await answered(runtime, await runtime.start(long(times=times)), times)
    async with opened(on=there, replay=False) as other:
        counted = Counted(there)
        status = await other.answer(status.queries[0], "x")
        await other.status(status.session_id)
        del there.load
    return counted.read
