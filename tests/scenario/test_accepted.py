"""What was accepted arrives: signals one by one, verbs whose caller left, outcomes that have to
wait for their program.

And who answers questions to models: workers, or a host or person outside. The tests are named in
docs/promises.md and docs/explanation/failures.md.
"""

import asyncio

import pytest

import everhold
from everhold.core.session import OUTSIDE, WORKERS
from everhold.engine.accept import Signal
from everhold.errors import AnswerRefused, SessionEnded
from everhold.mcp.runtime_holder import RuntimeHolder
from everhold.ports.program import REGISTRY
from everhold.stores.memory import MemoryStore
from tests.scenario.harness import opened


@everhold.program
async def collector(ctx, count):
    await ctx.llm("Ready?")
    return [await ctx.receive("news") for _ in range(count)]


@everhold.program
async def asks(ctx):
    return await ctx.llm("What?")


async def test_each_signal_is_received_once_and_in_order():
    """Equal values are different signals, and those of before and after the program asks keep their
    order.
    """
    sent = ["a", "a", "b", "a", "b", "b"]
    async with opened() as runtime:
        status = await runtime.start(collector(count=len(sent)))
        for value in sent[:3]:
            await runtime.signal(status.session_id, "news", value)
        await runtime.answer(status.session_id, "yes")
        for value in sent[3:]:
            await runtime.signal(status.session_id, "news", value)
        assert (await runtime.wait(status.session_id, 60)).result == sent


async def test_signals_of_senders_without_the_program_keep_their_order(tmp_path):
    """Each of two senders sends the same values; each finds its own in the order in which they were
    acknowledged.
    """
    async with opened(tmp_path) as runtime:
        status = await runtime.start(collector(count=20))
        session_id = (await runtime.answer(status.session_id, "yes")).session_id
    home = REGISTRY.pop((collector.ref, 1))
    try:
        async with (
            opened(tmp_path, replay=False, recover=False) as one,
            opened(tmp_path, replay=False, recover=False) as two,
        ):

            async def send(runtime, name):
                for number in range(10):
                    await runtime.signal(session_id, "news", [name, number // 2])

            await asyncio.gather(send(one, "one"), send(two, "two"))
    finally:
        REGISTRY[(collector.ref, 1)] = home
    async with opened(tmp_path) as runtime:
        found = (await runtime.wait(session_id, 60)).result
    for name in ("one", "two"):
        assert [number for who, number in found if who == name] == [
            number // 2 for number in range(10)
        ]


async def test_a_fork_does_not_get_signals_that_its_origin_has_not_received():
    """They were sent to the origin."""
    async with opened() as runtime:
        status = await runtime.start(collector(count=1))
        await runtime.signal(status.session_id, "news", "for the origin")
        fork = await runtime.fork(status.session_id)
        await runtime.answer(fork.session_id, "yes")
        assert (await runtime.status(fork.session_id)).state == "paused"
        assert (await runtime.answer(status.session_id, "yes")).result == ["for the origin"]
        assert (await runtime.signal(fork.session_id, "news", "for the fork")).result == [
            "for the fork"
        ]


class Slow(MemoryStore):
    """Takes its time for each commit, and says when one has begun."""

    def __init__(self):
        super().__init__()
        self.committing = asyncio.Event()
        self.slow = False

    async def commit(self, change, fence):
        if self.slow:
            self.committing.set()
            await asyncio.sleep(0.01)
        await super().commit(change, fence)


async def test_a_verb_completes_although_its_caller_is_cancelled():
    """The answer lands, the call that it leads to is started, and the session ends without another
    verb.
    """

    def pay():
        return "paid"

    @everhold.program
    async def pays(ctx):
        await ctx.llm("Sure?")
        return await ctx.call(pay, rerun="never")

    store = Slow()
    async with opened(on=store) as runtime:
        status = await runtime.start(pays())
        store.slow = True
        caller = asyncio.create_task(runtime.answer(status.session_id, "yes"))
        await store.committing.wait()
        caller.cancel()
        with pytest.raises(asyncio.CancelledError):
            await caller
        async with asyncio.timeout(60):
            while (found := await runtime.wait(status.session_id, 1)).state != "completed":
                await asyncio.sleep(0)
        assert found.result == "paid"


async def test_the_outcome_of_a_call_whose_program_diverged_meanwhile_is_kept():
    """It is an accepted answer: the call is not made again when the program is as it was."""
    store = MemoryStore()
    calls, paying, paid = [], asyncio.Event(), asyncio.Event()

    async def pay():
        calls.append(1)
        paying.set()
        await paid.wait()
        return "paid"

    def edition(first):
        @everhold.program
        async def shop(ctx):
            await first(ctx)
            return await ctx.call(pay, rerun="never")

        return shop

    old = edition(lambda ctx: ctx.llm("Sure?"))
    async with opened(on=store, replay=False) as runtime:
        status = await runtime.start(old())
        asyncio.get_running_loop().create_task(runtime.answer(status.session_id, "yes"))
        await paying.wait()
        edition(lambda ctx: ctx.approval("Sure?"))
        runtime.programs._given.clear()
        runtime.engine.sessions.drop(runtime.engine.sessions.cached(status.session_id))
        paid.set()
        async with asyncio.timeout(60):
            while not (letters := (await runtime.store.load(status.session_id)).letters):
                await asyncio.sleep(0.01)
        assert [(letter.kind, letter.body["value"]) for letter in letters] == [("answer", "paid")]
    REGISTRY[(old.ref, 1)] = old
    async with opened(on=store) as runtime:
        assert (await runtime.wait(status.session_id, 60)).result == "paid"
    assert calls == [1]


class Failing(MemoryStore):
    """Refuses so many commits, with an error that nobody expects, once `fails` says how many."""

    fails = 0

    async def commit(self, change, fence):
        if self.fails:
            self.fails -= 1
            raise RuntimeError("out of order")
        await super().commit(change, fence)


@pytest.mark.parametrize(("fails", "result"), [(1, "paid"), (2, "unknown")])
async def test_a_call_whose_outcome_could_not_be_recorded_is_not_made_again(fails, result):
    """Where it cannot be kept as an accepted answer either, it is unknown, as after a death of the
    process.
    """
    calls, store = [], Failing()

    async def pay():
        calls.append(1)
        store.fails = fails
        return "paid"

    @everhold.program
    async def shop(ctx):
        try:
            return await ctx.call(pay, rerun="never")
        except everhold.OutcomeUnknown:
            return "unknown"

    async with opened(on=store) as runtime:
        status = await runtime.start(shop(), wait=60)
        runtime.engine.reconciler.poke()
        assert (await runtime.wait(status.session_id, 60)).result == result
    assert calls == [1]


async def test_a_call_that_cancels_itself_has_an_unknown_outcome():
    """No task works on it any more, so nothing says that one does."""
    calls = []

    async def pay():
        calls.append(1)
        asyncio.current_task().cancel()
        await asyncio.sleep(60)

    @everhold.program
    async def shop(ctx):
        return await ctx.call(pay, rerun="ask")

    async with opened(recover=False) as runtime:
        status = await runtime.start(shop(), wait=60)
        assert "works on" not in (await runtime.explain(status.session_id)).because[0]
        await runtime.engine.move(status.session_id)
        (question,) = await runtime.inbox()
        assert (
            question.kind == "call" and (await runtime.status(status.session_id)).state == "paused"
        )
        assert (await runtime.answer(question, {"result": "paid"})).result == "paid"
    assert calls == [1]


@pytest.mark.parametrize("verb", ["signal", "cancel"])
async def test_a_session_that_failed_elsewhere_has_ended_also_for_code_that_was_mended_since(verb):
    """A process that still has it in memory says so; it does not compare the mended code with the
    failure.
    """
    broken = [True]

    @everhold.program
    async def flaky(ctx):
        await ctx.receive("news")
        if broken:
            raise ValueError("broken")
        return await ctx.llm("More?")

    store = MemoryStore()
    async with (
        opened(on=store, replay=False, recover=False) as here,
        opened(on=store, replay=False, recover=False) as there,
    ):
        session_id = (await here.start(flaky())).session_id
        assert (await there.signal(session_id, "news", 1)).state == "failed"
        broken.clear()
        with pytest.raises(SessionEnded):
            if verb == "signal":
                await here.signal(session_id, "news", 2)
            else:
                await here.cancel(session_id)


class Meanwhile(MemoryStore):
    """Something happens just after it was read that a session has ended."""

    then = None

    async def load(self, session_id, *, since=0):
        found = await super().load(session_id, since=since)
        if found.head.ended and self.then is not None:
            then, self.then = self.then, None
            await then(session_id)
        return found


async def test_a_signal_that_comes_as_a_session_is_retried_is_received():
    broken = [True]

    @everhold.program
    async def flaky(ctx):
        await ctx.llm("Ready?")
        if broken:
            raise ValueError("broken")
        return await ctx.receive("news")

    store = Meanwhile()
    async with opened(on=store, recover=False) as here, opened(on=store, recover=False) as there:
        session_id = (await here.start(flaky())).session_id
        assert (await here.answer(session_id, "yes")).state == "failed"
        broken.clear()
        store.then = there.retry
        assert (await here.signal(session_id, "news", 1)).result == 1


async def test_an_answer_is_checked_against_what_is_open_now():
    """Not against what was open when the session came into the memory of this process."""

    @everhold.program
    async def number_then_word(ctx):
        return [await ctx.input("How many?", returns=int), await ctx.input("Of what?", returns=str)]

    store = MemoryStore()
    async with opened(on=store, recover=False) as here, opened(on=store, recover=False) as there:
        session_id = (await here.start(number_then_word())).session_id
        await there.answer(session_id, 3)
        assert (await here.answer(session_id, "eggs")).result == [3, "eggs"]

        session_id = (await here.start(number_then_word())).session_id
        with pytest.raises(AnswerRefused):
            await here.answer(session_id, "eggs")


# Who answers questions to models


async def worked(path, **options):
    """Let a worker with a model do what is due; returns how many sessions are left, and what it
    said.
    """
    said = []
    async with opened(path, recover=False, llm={"What": "by the worker"}) as runtime:
        left = await runtime.workers.worker(tell=said.append, **options).once(within=60)
    return left, [one.text for one in said if one.event == "leaves"]


async def test_a_worker_with_a_model_answers_what_a_process_without_one_left_open(tmp_path):
    """The layout of a web process that has no model, and workers that have one."""
    async with opened(tmp_path, recover=False) as web:
        status = await web.start(asks())
        assert (await web.store.load(status.session_id)).birth.llm == WORKERS
    assert await worked(tmp_path) == (0, [])
    async with opened(tmp_path) as runtime:
        assert (await runtime.status(status.session_id)).result == "by the worker"


@pytest.mark.parametrize("who", ["mcp", "llm=None"])
async def test_a_worker_leaves_alone_what_is_answered_outside(tmp_path, who):
    """By the model of an MCP host, or by the process that opened the database with `llm=None`."""
    if who == "mcp":
        house = RuntimeHolder(f"sqlite:///{tmp_path / 'app.db'}")
        status = await (await house.runtime()).start(asks())
        await house.close()
    else:
        async with opened(tmp_path, llm=None) as runtime:
            status = await runtime.start(asks())
    left, said = await worked(tmp_path, adopt_parked=True)
    assert left == 0
    assert said == [
        "1 session whose model questions are answered outside (by an MCP host, or by hand)"
    ]
    async with opened(tmp_path, llm=None) as runtime:
        assert (await runtime.store.load(status.session_id)).birth.llm == OUTSIDE
        assert [query.prompt for query in (await runtime.status(status.session_id)).queries] == [
            "What?"
        ]
        assert (await runtime.answer(status.session_id, "by the host")).result == "by the host"


async def test_a_runtime_that_is_merely_open_leaves_open_questions_alone(tmp_path):
    """It has a model, and answers only sessions that it is asked to move."""
    async with opened(tmp_path, recover=False) as web:
        status = await web.start(asks(), key="k")
    async with opened(tmp_path, llm={"What": "by the runtime"}) as runtime:
        await runtime.engine.reconciler.move()
        assert (await runtime.status(status.session_id)).state == "paused"
        assert await runtime.run(asks(), key="k") == "by the runtime"


@everhold.program
async def hears_once(ctx):
    return await ctx.receive("paid")


async def test_a_signal_that_ended_its_session_is_known_when_it_is_sent_again():
    """The key says that it arrived, so the sender is not told that the session has ended."""
    async with everhold.open("memory://") as runtime:
        session_id = (await runtime.start(hears_once())).session_id
        signal = Signal("paid", 7, "key-1")

        assert await runtime.engine.send(session_id, signal)
        assert (await runtime.wait(session_id)).result == 7
        assert not await runtime.engine.send(session_id, signal)
        with pytest.raises(SessionEnded):
            await runtime.engine.send(session_id, Signal("paid", 7, "key-2"))
