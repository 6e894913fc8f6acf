"""What can happen to a session while it waits for its next attempt, and around the attempts."""

import asyncio
import math

import pytest

import everhold
from everhold import Retry
from everhold.core.query import Usage
from everhold.engine.effects import WRITE_RETRY_DELAY
from everhold.errors import AnswerFailed, StoreUnavailable
from everhold.models import Answer, Answerer
from everhold.ports.program import REGISTRY
from everhold.programs.lua.program import LuaProgram
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock
from tests.failures import collect_failures
from tests.scenario.harness import at_top, die, dying, moved, opened, rows
from tests.scenario.talk import Scripted, use

#: Five attempts, 12 s apart.
STEADY = Retry(5, backoff=12, factor=1, jitter=0)


class World:
    """What happens outside: each item is raised or returned by one attempt."""

    def __init__(self):
        self.script = []
        self.tried = 0

    def act(self):
        self.tried += 1
        said = self.script.pop(0)
        if isinstance(said, BaseException):
            raise said
        return said


world = World()


@pytest.fixture(autouse=True)
def fresh_world():
    world.__init__()


def fetch():
    return world.act()


async def ask(query):
    return world.act()


async def until(condition):
    """Let the runtime work until the condition holds; a guard against a hang is the only limit."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def waiting(runtime, call, **options):
    """Start a session; returns when its first attempt has failed."""
    status = await runtime.start(call, key="k", wait=0, **options)
    await until(lambda: runtime.engine.effects.waits)
    return status


@at_top
async def fetches(ctx, rerun: str = "safe"):
    return await ctx.call(fetch, rerun=rerun, retry=STEADY)


@at_top
async def asks(ctx):
    return await ctx.llm("go?", retry=STEADY)


# ---- from outside


async def test_a_person_may_answer_a_question_that_waits_for_its_next_attempt():
    """Nothing is tried any more."""
    clock = ManualClock()
    world.script = [OSError("1")]
    async with opened(llm=ask, clock=clock) as runtime:
        await waiting(runtime, asks())
        assert (await runtime.answer("k", "from ana", query_id="q-0")).result == "from ana"
        clock.advance(100)
        await until(lambda: not runtime.engine.effects.waits)
    assert world.tried == 1


async def test_a_waiting_session_can_be_cancelled():
    clock = ManualClock()
    world.script = [OSError("1")]
    async with opened(clock=clock) as runtime:
        status = await waiting(runtime, fetches(rerun="never"))
        assert (await runtime.cancel("k", "enough")).state == "cancelled"
        clock.advance(100)
        await until(lambda: not runtime.engine.effects.waits)
        record = await runtime.store.load(status.session_id)
        assert (record.effects, record.head.due_at) == ([], None)
    assert world.tried == 1


async def test_a_fork_of_a_waiting_session_begins_with_its_first_attempt():
    clock = ManualClock()
    world.script = [OSError("1"), "in the fork"]
    async with opened(clock=clock) as runtime:
        await waiting(runtime, fetches())
        fork = await runtime.fork("k")
        assert (await runtime.wait(fork)).result == "in the fork"
        answers = [one for row in await rows(runtime, fork.session_id) for one in row.answers]
        assert [one.attempts for one in answers] == [1]
        assert (await runtime.status("k")).state == "paused"


async def test_an_exported_session_waits_for_the_same_attempt_where_it_is_imported(tmp_path):
    """Also if its call may not be repeated: a wait is not an unknown outcome."""
    clock = ManualClock()
    world.script = [OSError("no route"), "ok"]
    async with opened(clock=clock, replay=False) as there:
        await waiting(there, fetches(rerun="never"))
        await there.archive.export(tmp_path / "out.jsonl")
    async with opened(clock=clock) as here:
        await here.archive.import_(tmp_path / "out.jsonl")
        (sentence,) = (await here.explain("k")).because
        assert "attempt 1 of 5 failed" in sentence and "next attempt in 12 s" in sentence
        clock.advance(12.01)
        assert (await here.wait("k")).result == "ok"


# ---- other processes


async def test_of_two_processes_one_makes_the_next_attempt(tmp_path):
    """Both wait for it, and begin at the same moment."""
    clock = ManualClock()
    world.script = [OSError("1"), "ok", "again"]
    async with opened(tmp_path, clock=clock) as first, opened(tmp_path, clock=clock) as second:
        await waiting(first, fetches(rerun="never"))
        waits = asyncio.ensure_future(second.wait("k"))
        await asyncio.sleep(0)
        clock.advance(12.01)
        assert (await waits).result == (await first.wait("k")).result == "ok"
    assert world.tried == 2


async def test_a_session_that_waits_goes_on_under_another_deploy(tmp_path):
    """What was written at the call counts as it was asked; a default counts as it is now. The
    replay does not diverge.
    """

    def deploy(own, default, calls=fetch):
        options = {} if own is None else {"retry": own}

        async def deployed(ctx):
            try:
                return await ctx.call(calls, **options)
            except everhold.AnswerFailed:
                return "failed"

        deployed.__qualname__ = deployed.__name__
        for place in [place for place in REGISTRY if place[0].endswith(":deployed")]:
            del REGISTRY[place]
        return everhold.program(retry=default)(deployed)

    five, two = STEADY, Retry(2, backoff=12, jitter=0)
    cases = [
        ("a smaller policy at the call", (five, None), (two, None), 5),
        ("no policy at the call", (five, None), (None, None), 5),
        ("a larger default", (None, two), (None, five), 5),
        ("a default that is taken away", (None, five), (None, None), 2),
        ("a default that is switched off", (None, five), (None, Retry(1)), 2),
        ("a policy where there was a default", (None, two), (five, None), 2),
    ]
    with collect_failures() as row:
        for name, before, after, attempts in cases:
            with row(name):
                world.__init__()
                world.script = [OSError(str(n)) for n in range(9)]
                folder = tmp_path / name
                folder.mkdir()
                clock = ManualClock()
                first = await dying(folder, clock)
                await waiting(first, deploy(*before)())
                await die(first, clock)
                deploy(*after)
                async with opened(folder, clock=clock, replay=False) as later:
                    status = asyncio.ensure_future(later.wait("k"))
                    while not status.done():
                        clock.advance(1)
                        await asyncio.sleep(0.001)
                    assert (status.result().result, world.tried) == ("failed", attempts)
    for place in [place for place in REGISTRY if place[0].endswith(":deployed")]:
        del REGISTRY[place]


# ---- this process


async def test_closing_while_an_attempt_fails_begins_no_wait(caplog, monkeypatch):
    """The attempt fails within the grace. Its failure is stored, and the next process goes on."""
    ends = asyncio.Event()

    async def fails_late():
        world.tried += 1
        await ends.wait()
        raise OSError("late")

    @everhold.program
    async def program(ctx):
        return await ctx.call(fails_late, retry=STEADY)

    runtime = everhold.Runtime(MemoryStore(), clock=ManualClock())
    async with runtime:
        await runtime.start(program(), key="k", wait=0)
        await until(lambda: world.tried)
        effects = runtime.engine.effects
        stop_waits = effects.stop_waits
        monkeypatch.setattr(effects, "stop_waits", lambda: (stop_waits(), ends.set()))
    assert not runtime.engine.effects.waits and not runtime.engine.effects.tasks
    record = await runtime.store.load((await runtime.store.find("k")) or "")
    assert [one.failed.number for one in record.effects] == [1]
    assert "retrying" not in caplog.text


class Away(MemoryStore):
    """Cannot be written while `away`."""

    away = False
    refused = 0

    async def commit(self, change, fence):
        if self.away:
            self.refused += 1
            raise StoreUnavailable("here", "the server is gone")
        await super().commit(change, fence)


async def test_a_failure_that_cannot_be_stored_yet_is_not_taken_for_lost_work():
    """A move in between, as any verb or look may cause, tries nothing."""
    clock, store = ManualClock(), Away()

    def fails():
        world.tried += 1
        store.away = world.tried == 1
        raise OSError(f"number {world.tried}")

    @everhold.program
    async def program(ctx):
        try:
            return await ctx.call(fails, rerun="never", retry=Retry(2, backoff=12, jitter=0))
        except everhold.OutcomeUnknown:
            return "unknown"
        except everhold.AnswerFailed as error:
            return error.message

    async with opened(on=store, clock=clock) as runtime:
        status = await runtime.start(program(), key="k", wait=0)
        await until(lambda: store.refused)
        store.away = False
        await runtime.engine.moves.move(status.session_id, asked=True)
        assert (world.tried, (await runtime.status("k")).state) == (1, "running")
        clock.advance(WRITE_RETRY_DELAY + 0.01)
        await until(lambda: runtime.engine.effects.waits)
        clock.advance(12.01)
        assert (await runtime.wait("k")).result == "number 2"


# ---- values that others gave


async def test_a_time_to_wait_that_is_none_is_ignored():
    """It comes from code of others, and what is stored must be readable."""
    clock = ManualClock()
    with collect_failures() as row:
        for given, wait in (
            (-5, 12),
            (math.nan, 12),
            ("soon", 12),
            (True, 12),
            (13, 13),
            (math.inf, 1e9),
            (1e300, 1e9),
        ):
            with row(repr(given)):
                world.__init__()
                world.script = [AnswerFailed("busy", "rate_limited", retry_after=given)]
                async with opened(clock=clock) as runtime:
                    await waiting(runtime, fetches())
                    assert (await runtime.status("k")).until == clock.now() + wait


# ---- what attempts cost


class Spends(Answerer):
    """Each attempt costs 11 tokens; from the third on, the answer is a number."""

    def __init__(self, *models):
        self.models = models
        self.asked = 0

    async def answer(self, query, session_id):
        self.asked += 1
        model = self.models[self.asked % len(self.models)]
        usage = Usage(prompt_tokens=10, completion_tokens=1, model=model)
        return Answer("many" if self.asked < 3 else 7, usage)


@everhold.program
async def counts(ctx, attempts: int = 5):
    return await ctx.llm("how many?", returns=int, retry=Retry(attempts, 0))


async def test_an_answer_that_does_not_fit_costs_what_it_cost():
    """Whichever models gave them, and also if no answer fits."""
    with collect_failures() as row:
        for models, attempts in ((("m",), 5), (("m", "n"), 5), (("m",), 2), (("m",), 1)):
            with row(f"{models} {attempts}"):
                async with opened(llm=Spends(*models)) as runtime:
                    end = await runtime.wait(await runtime.start(counts(attempts)))
                    spent = end.metrics["auto"]["total_tokens"]
                    assert spent == {"tokens": 11 * min(attempts, 3), "source": "provided"}


async def test_tokens_of_failed_attempts_count_in_the_budget():
    """A limit that they have reached ends the attempts. The failure is the answer."""
    model = Spends("m")
    async with opened(llm=model) as runtime:
        status = await runtime.wait(await runtime.start(counts(), budget={"max_tokens": 15}))
        assert (status.state, model.asked) == ("failed", 2)
        assert "does not fit" in status.outcome.error


async def test_the_error_of_attempts_that_end_early_has_no_error_of_ours_behind_it():
    """The traceback that a user sees begins in the program."""
    world.script = [OSError("1")]

    @everhold.program
    async def program(ctx):
        try:
            await ctx.call(fetch, retry=STEADY, total_timeout=11)
        except everhold.AnswerFailed as error:
            behind.append(error.__context__)

    behind = []
    async with opened() as runtime:
        await runtime.run(program())
    assert behind[0] is None  # when it ran; the replay adds another


# ---- defaults


async def hangs_once(query):
    world.tried += 1
    if world.tried == 1:
        await asyncio.Event().wait()
    return "yes"


async def test_timeout_at_a_question_limits_each_attempt_of_the_runtimes_policy():
    @everhold.program
    async def program(ctx):
        return await ctx.llm("go?", timeout=0.001)

    async with opened(llm=hangs_once, retry=Retry(2, 0)) as runtime:
        assert await runtime.run(program()) == "yes"
    assert world.tried == 2


async def test_timeout_limits_a_question_for_a_person_whatever_the_policy():
    """Nobody makes attempts at it."""
    clock = ManualClock()

    @everhold.program(retry=STEADY)
    async def program(ctx):
        return await ctx.llm("go?", to="ana", timeout=5, default="nobody")

    async with opened(llm=ask, clock=clock) as runtime:
        status = await runtime.start(program())
        clock.advance(5.01)
        assert (await moved(runtime, status.session_id)).result == "nobody"
    assert world.tried == 0


async def test_an_infinite_timeout_lifts_the_default():
    """It is stored as a number, which JSON has."""

    @everhold.program
    async def program(ctx, lifted: bool):
        lift = {"timeout": math.inf} if lifted else {}
        try:
            return [await ctx.llm("go?", **lift), await ctx.call(slow, **lift)]
        except everhold.AnswerFailed as error:
            return error.kind

    async def slow():
        await asyncio.sleep(0.01)
        return "slow"

    async def answers(query):
        return await slow()

    async with opened(llm=answers, timeout=0.001) as runtime:
        assert await runtime.run(program(False)) == "timeout"
        assert await runtime.run(program(True)) == ["slow", "slow"]


@pytest.mark.process
async def test_programs_in_lua_have_the_defaults_of_their_runtime():
    world.script = [OSError("1"), "yes"]
    async with opened(llm=ask, retry=Retry(2, 0), replay=False) as runtime:
        assert await runtime.run(LuaProgram.text("return alc.llm('go?')")) == "yes"


async def test_a_tool_that_may_run_again_has_the_defaults_of_its_agent():
    @everhold.tool(read_only=True)
    def looks() -> str:
        """Looks."""
        return world.act()

    @everhold.tool
    def pays() -> str:
        """Pays."""
        return world.act()

    model = Scripted(use("looks"), "Seen.", use("pays"))
    agent = everhold.Agent(tools=[looks, pays], retry=Retry(2, 0), name="<locals>.tries")
    world.script = [OSError("1"), "seen", OSError("refused")]
    async with opened(llm=model) as runtime:
        session = await runtime.session(agent, "chat")
        await session.send("Look.")
        assert (model.results, world.tried) == (["seen"], 2)
        await session.send("Pay.")
    assert (len(model.results), world.tried) == (1, 3)
