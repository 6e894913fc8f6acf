"""Retry and timeout: a failed attempt is tried again after a wait that survives the process."""

import asyncio
import re
import threading

import msgspec
import pytest

import everhold
from everhold import Retry
from everhold.agents.added_tools import ReferencedTool
from everhold.core.query import Kind, Query, has_new_wording
from everhold.core.tool_registry import AddedTool, ToolManifest
from everhold.engine.effects import read_older_limits
from everhold.errors import AnswerFailed, BadSetting
from everhold.testing import crash_everywhere
from everhold.testing.clock import ManualClock
from tests.failures import collect_failures
from tests.scenario.harness import at_top, die, dying, opened, rows

#: A policy without random waits.
STEADY = Retry(5, backoff=12, factor=2, jitter=0)


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


def fetch(what="stock"):
    return world.act()


async def ask(query):
    return world.act()


async def until(condition, clock=None):
    """Let the runtime work until the condition holds; a guard against a hang is the only limit."""
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.001)


async def tried(count):
    await until(lambda: world.tried == count)


@everhold.program
async def fetches(ctx, rerun: str = "safe", attempts: int = 5):
    retry = Retry(attempts, backoff=12, factor=2, jitter=0)
    try:
        return await ctx.call(fetch, rerun=rerun, retry=retry)
    except everhold.AnswerFailed as error:
        return f"{error.kind}: {error.message}"


@everhold.program
async def asks(ctx):
    try:
        return await ctx.llm("go?", retry=STEADY)
    except everhold.AnswerFailed as error:
        return f"{error.kind}: {error.message}"


# ---- the wait


async def test_a_waiting_attempt_is_said_in_every_view():
    clock = ManualClock()
    world.script = [ConnectionError("no route"), "ok"]
    async with opened(clock=clock) as runtime:
        status = await runtime.start(fetches(), key="k", wait=0)
        await tried(1)
        while status.state == "running":
            await asyncio.sleep(0)
            status = await runtime.status("k")
        assert (status.state, status.until) == ("paused", clock.now() + 12)
        assert status.waiting_for == ("attempt 2 of 5 of call tests.scenario.test_attempts:fetch",)
        explained = await runtime.explain("k")
        (sentence,) = explained.because
        assert re.sub(r"line \d+", "line N", sentence) == (
            "tests.scenario.test_attempts:fetch (q-0): attempt 1 of 5 failed 0 s ago:"
            " ConnectionError: no route (test_attempts.py, line N, in act); next attempt in 12 s."
        )
        assert explained.moves[0].startswith("It is due at ")
        assert await runtime.inbox() == []
        clock.advance(12.01)
        status = await runtime.wait("k")
        assert status.result == "ok"


async def test_the_journal_has_one_answer_that_says_how_many_attempts_it_took():
    clock = ManualClock()
    world.script = [OSError("1"), OSError("2"), "ok"]
    async with opened(clock=clock) as runtime:
        status = await runtime.start(fetches(), wait=0)
        for count, seconds in ((1, 12.01), (2, 24.01)):
            await tried(count)
            await until(lambda: runtime.engine.effects.waits)
            clock.advance(seconds)
        await runtime.wait(status)
        assert world.tried == 3
        answers = [one for row in await rows(runtime, status.session_id) for one in row.answers]
        assert [(one.value, one.attempts) for one in answers] == [("ok", 3)]


async def test_each_wait_grows_up_to_the_longest_and_a_part_of_it_is_random():
    retry = Retry(9, backoff=1, factor=3, max_backoff=20, jitter=0.5)
    assert [retry.compute_wait(n, lambda: 0.0) for n in (1, 2, 3, 4)] == [1, 3, 9, 20]
    assert [retry.compute_wait(n, lambda: 0.5) for n in (1, 4)] == [0.75, 15]
    assert Retry(2, factor=1000).compute_wait(10**9, lambda: 0.0) == 60


async def test_a_wait_survives_the_process_and_the_count_goes_on(tmp_path):
    """Another process tries at the stored time, not before, and counts on."""
    clock = ManualClock()
    world.script = [OSError("1"), OSError("2"), OSError("3")]
    first = await dying(tmp_path, clock)
    status = await first.start(at_top_fetches(attempts=3), key="k", wait=0)
    await tried(1)
    await until(lambda: first.engine.effects.waits)
    await die(first, clock)  # the clock is 11 s further
    async with opened(tmp_path, clock=clock) as later:
        assert "attempt 1 of 3 failed 11 s ago" in (await later.explain("k")).because[0]
        for _ in range(50):
            await asyncio.sleep(0.001)  # time to try too early
        assert world.tried == 1
        clock.advance(1.01)
        await tried(2)
        await until(lambda: later.engine.effects.waits)
        clock.advance(24.01)
        status = await later.wait(status)
        assert (world.tried, status.result) == (3, "OSError: 3")


@at_top
async def at_top_fetches(ctx, rerun: str = "safe", attempts: int = 3):
    retry = Retry(attempts, backoff=12, factor=2, jitter=0)
    try:
        return await ctx.call(fetch, rerun=rerun, retry=retry)
    except everhold.AnswerFailed as error:
        return f"{error.kind}: {error.message}"


async def test_a_process_that_closes_leaves_the_next_attempt_to_others(tmp_path):
    """Closing does not wait for it."""
    clock = ManualClock()
    world.script = [OSError("1"), "ok"]
    async with opened(tmp_path, clock=clock, replay=False) as first:
        await first.start(at_top_fetches(rerun="never"), key="k", wait=0)
        await until(lambda: first.engine.effects.waits)
    clock.advance(12.01)
    async with opened(tmp_path, clock=clock) as later:
        assert (await later.wait("k")).result == "ok"


async def test_a_waiting_session_takes_no_place_in_a_worker():
    """With places for one session, others run while it waits."""
    clock = ManualClock()
    world.script = [OSError("1"), "other", "ok"]
    async with (
        opened(clock=clock, recover=False) as runtime,
        runtime.workers.worker(concurrency=1),
    ):
        await runtime.start(fetches(), key="k", wait=0)
        await tried(1)
        other = await runtime.start(fetches(), wait=0)
        assert (await runtime.wait(other, 60)).result == "other"
        clock.advance(12.01)
        assert (await runtime.wait("k", 60)).result == "ok"


# ---- which failures


@everhold.program
async def tells(ctx, kind: str):
    retry = {
        "default": Retry(2, 0),
        "class": Retry(2, 0, on=OSError),
        "code": Retry(2, 0, on=("rate_limited", "my_code")),
    }[kind]
    try:
        return await ctx.call(fetch, retry=retry)
    except everhold.AnswerFailed as error:
        return error.kind


async def test_which_errors_are_tried_again():
    """By default all that a retry can help; else those that are named, with their subclasses."""
    cases = [
        ("default", ConnectionError(), True),
        ("default", KeyError("x"), True),
        ("default", AnswerFailed("busy", "rate_limited"), True),
        ("default", AnswerFailed("too long", "context_overflow"), False),
        ("default", AnswerFailed("mine", "my_code"), False),
        ("class", ConnectionError(), True),
        ("class", KeyError("x"), False),
        ("class", AnswerFailed("busy", "rate_limited"), False),
        ("code", AnswerFailed("mine", "my_code"), True),
        ("code", ConnectionError(), False),
    ]
    async with opened() as runtime:
        with collect_failures() as row:
            for kind, error, again in cases:
                with row(f"{kind}: {error!r}"):
                    world.__init__()
                    world.script = [error, "ok"]
                    result = await runtime.run(tells(kind))
                    assert (result == "ok", world.tried) == (again, 2 if again else 1)


async def test_a_failure_may_say_how_long_to_wait():
    clock = ManualClock()
    world.script = [AnswerFailed("busy", "rate_limited", retry_after=90), "ok"]
    async with opened(clock=clock) as runtime:
        status = await runtime.start(fetches(), wait=0)
        await until(lambda: runtime.engine.effects.waits)
        assert (await runtime.status(status)).until == clock.now() + 90
        clock.advance(90.01)
        assert (await runtime.wait(status)).result == "ok"


async def test_an_answer_that_does_not_fit_is_asked_for_again():
    @everhold.program
    async def counts(ctx):
        return await ctx.llm("how many?", returns=int, retry=Retry(2, 0))

    world.script = ["many", 7]
    async with opened(llm=ask) as runtime:
        assert await runtime.run(counts()) == 7


async def test_policies_that_make_no_sense_are_refused():
    wrong = [
        {"attempts": 0},
        {"attempts": 2.5},
        {"backoff": -1},
        {"backoff": float("inf")},
        {"max_backoff": float("nan")},
        {"factor": 0.5},
        {"jitter": 1.5},
        {"on": 3},
        {"on": (object,)},
    ]
    with collect_failures() as row:
        for given in wrong:
            with row(repr(given)), pytest.raises(BadSetting, match=next(iter(given))):
                Retry(**given)
        with row("a misspelled code"), pytest.raises(BadSetting, match="mean 'rate_limited'"):
            everhold.program(retry=Retry(on="rate_limit"))(asks.body)
        with row("a number"), pytest.raises(BadSetting, match="Retry"):
            everhold.open("memory://", retry=3)


# ---- models


async def test_a_question_to_a_model_is_asked_again_and_each_attempt_counts():
    clock = ManualClock()
    world.script = [AnswerFailed("busy", "provider_unavailable"), OSError("x"), "yes"]
    async with opened(llm=ask, clock=clock) as runtime:
        status = await runtime.start(asks(), budget={"max_llm_calls": 3}, wait=0)
        for count, seconds in ((1, 12.01), (2, 24.01)):
            await tried(count)
            await until(lambda: runtime.engine.effects.waits)
            clock.advance(seconds)
        status = await runtime.wait(status)
        assert (status.result, status.metrics["auto"]["llm_calls"]) == ("yes", 3)


async def test_a_budget_ends_the_attempts():
    """The last failure is the answer; the budget is not exceeded by trying."""
    world.script = [OSError("1"), OSError("2")]

    @everhold.program
    async def tries(ctx):
        with pytest.raises(everhold.AnswerFailed, match="2"):
            await ctx.llm("go?", retry=Retry(9, 0))
        return ctx.budget_remaining()["llm_calls"]

    async with opened(llm=ask) as runtime:
        assert await runtime.run(tries(), budget={"max_llm_calls": 2}) == 0
    assert world.tried == 2


async def test_the_usage_of_failed_attempts_is_in_the_answer():
    class Fails(everhold.models.Answerer):
        tried = 0

        async def answer(self, query, session_id):
            self.tried += 1
            usage = everhold.Usage(prompt_tokens=10, completion_tokens=1, model="m")
            if self.tried < 3:
                return everhold.core.query.QueryAnswer(
                    query.q, error={"code": "bad_response", "message": "cut"}, usage=usage
                )
            return everhold.Answer("yes", usage)

    @everhold.program
    async def tries(ctx):
        return await ctx.llm("go?", retry=Retry(3, 0))

    async with opened(llm=Fails()) as runtime:
        end = await runtime.wait(await runtime.start(tries()))
        assert end.metrics["auto"]["prompt_tokens"]["tokens"] == 30


async def test_questions_of_a_batch_are_tried_again_each_by_itself():
    world.script = [OSError("1"), "b", "c", "a"]

    @everhold.program
    async def batch(ctx):
        return await ctx.llm_batch(["a?", "b?", "c?"], retry=Retry(2, 0))

    async with opened(llm=ask) as runtime:
        assert sorted(await runtime.run(batch())) == ["a", "b", "c"]
    assert world.tried == 4


# ---- what happens to calls that must not be repeated


@pytest.mark.parametrize("rerun", ["never", "ask"])
async def test_an_unsafe_call_that_raised_is_tried_again_because_it_was_asked_for(rerun, tmp_path):
    """Also by another process: a wait is not an unknown outcome."""
    clock = ManualClock()
    world.script = [OSError("refused"), "paid"]
    first = await dying(tmp_path, clock)
    await first.start(at_top_fetches(rerun=rerun), key="k", wait=0)
    await until(lambda: first.engine.effects.waits)
    await die(first, clock)
    clock.advance(10)
    async with opened(tmp_path, clock=clock) as later:
        assert (await later.wait("k")).result == "paid"


@at_top
async def pays(ctx):
    try:
        return await ctx.call(hangs_later, rerun="never", retry=STEADY)
    except everhold.OutcomeUnknown:
        return "unknown"


async def hangs_later():
    if world.tried:
        world.tried += 1
        await asyncio.Event().wait()
    return world.act()


async def test_a_never_call_that_died_in_a_later_attempt_is_not_tried_again(tmp_path):
    clock = ManualClock()
    world.script = [OSError("refused")]
    first = await dying(tmp_path, clock)
    await first.start(pays(), key="k", wait=0)
    await until(lambda: first.engine.effects.waits)
    clock.advance(12.01)
    await tried(2)
    await die(first, clock)
    async with opened(tmp_path, clock=clock) as later:
        assert (await later.wait("k")).result == "unknown"
    assert world.tried == 2


async def test_an_unsafe_call_is_not_tried_again_after_a_timeout():
    """Nobody knows whether it acted. A safe one is."""
    calls = []

    async def acts():
        calls.append(1)
        await asyncio.Event().wait()

    @everhold.program
    async def program(ctx, rerun: str):
        try:
            await ctx.call(acts, rerun=rerun, retry=Retry(3, 0), timeout=0.001)
        except everhold.AnswerFailed as error:
            return error.kind

    async with opened() as runtime:
        assert await runtime.run(program("never")) == "TimeoutError"
        assert len(calls) == 1
        assert await runtime.run(program("safe")) == "TimeoutError"
        assert len(calls) == 4


# ---- time limits


async def test_a_function_in_a_thread_runs_on_after_its_timeout_and_its_result_is_ignored():
    ends, ended = threading.Event(), threading.Event()

    def works():
        ends.wait()
        ended.set()
        return "late"

    @everhold.program
    async def program(ctx):
        try:
            await ctx.call(works, timeout=0.001)
        except everhold.AnswerFailed as error:
            return error.message.partition(": ")[2] or error.message.rpartition(" took ")[2]

    async with opened() as runtime:
        end = await runtime.start(program())
        ends.set()
        assert (await runtime.wait(end)).result == "longer than 0.001 s"
        await until(ended.is_set)
        answers = [one for row in await rows(runtime, end.session_id) for one in row.answers]
        assert [one.error["code"] for one in answers] == ["TimeoutError"]


async def hangs_first(query):
    world.tried += 1
    if world.tried == 1:
        await asyncio.Event().wait()
    return "yes"


async def test_an_attempt_of_a_model_that_hangs_is_cut_off_and_tried_again():
    @everhold.program
    async def program(ctx):
        return await ctx.llm("go?", retry=Retry(2, 0), timeout=0.001)

    async with opened(llm=hangs_first) as runtime:
        assert await runtime.run(program()) == "yes"
    assert world.tried == 2


async def test_total_timeout_ends_a_wait_and_the_program_gets_expired():
    """Also for a call. An attempt that could start only after it is not waited for."""
    clock = ManualClock()

    @everhold.program
    async def program(ctx, total: float):
        try:
            return await ctx.call(hangs_later, retry=STEADY, total_timeout=total)
        except everhold.Expired:
            return "expired"
        except everhold.AnswerFailed as error:
            return error.message

    async with opened(clock=clock) as runtime:
        world.script = [OSError("first")]
        status = await runtime.start(program(30.0), wait=0)
        await until(lambda: runtime.engine.effects.waits)
        clock.advance(12.01)
        await tried(2)  # hangs
        clock.advance(18)
        assert (await runtime.wait(status)).result == "expired"
        assert runtime.engine.effects.tasks == set() or not runtime.engine.sessions.jobs
        world.__init__()
        world.script = [OSError("first")]
        assert await runtime.run(program(11.0)) == "first"


async def test_timeout_without_a_policy_is_the_time_of_the_question():
    """There is one attempt, wherever it is made: here nobody answers."""
    clock = ManualClock()

    @everhold.program
    async def program(ctx):
        return await ctx.llm("go?", timeout=5, default="nobody")

    async with opened(clock=clock) as runtime:
        status = await runtime.start(program())
        assert status.queries[0].expires_at == clock.now() + 5
        clock.advance(5.01)
        assert (await runtime.wait(status)).result == "nobody"


async def test_asyncio_timeout_in_the_program_withdraws_a_waiting_attempt():
    clock = ManualClock()
    world.script = [OSError("1")]

    @everhold.program
    async def program(ctx):
        try:
            async with asyncio.timeout(30):
                return await ctx.call(fetch, retry=Retry(5, backoff=60))
        except TimeoutError:
            return "gave up"

    async with opened(clock=clock) as runtime:
        status = await runtime.start(program(), wait=0)
        await until(lambda: runtime.engine.effects.waits)
        clock.advance(30.01)
        assert (await runtime.wait(status)).result == "gave up"
        record = await runtime.store.load(status.session_id)
        assert (record.effects, record.head.due_at) == ([], None)
        clock.advance(60)
        await until(lambda: not runtime.engine.effects.waits)
    assert world.tried == 1


# ---- defaults


async def test_the_defaults_of_a_program_come_before_those_of_its_runtime():
    """And what is written at a call before both. Unsafe calls have no defaults."""
    once, twice, thrice = Retry(1), Retry(2, 0), Retry(3, 0)

    @everhold.program
    async def plain(ctx, rerun: str = "safe", retry: int = 0):
        own = {"retry": Retry(retry, 0)} if retry else {}
        with pytest.raises(everhold.AnswerFailed):
            await ctx.call(fetch, rerun=rerun, **own)

    own = everhold.program(retry=thrice)(plain.body)

    @everhold.program(retry=once)
    async def off(ctx):
        with pytest.raises(everhold.AnswerFailed):
            await ctx.llm("go?")

    async with opened(llm=ask, retry=twice) as runtime:
        with collect_failures() as row:
            for call, attempts in (
                (plain(), 2),
                (own(), 3),
                (own(retry=4), 4),
                (own(rerun="never"), 1),
                (own(rerun="never", retry=2), 2),
                (off(), 1),
            ):
                with row(f"{call!r}"):
                    world.__init__()
                    world.script = [OSError(str(n)) for n in range(9)]
                    await runtime.run(call)
                    assert world.tried == attempts


async def test_the_default_timeout_of_a_runtime_is_that_of_each_attempt():
    @everhold.program
    async def program(ctx):
        return await ctx.llm("go?")

    async with opened(llm=hangs_first, timeout=0.001, retry=Retry(2, 0)) as runtime:
        assert await runtime.run(program()) == "yes"


async def test_an_agent_has_defaults_too():
    agent = everhold.Agent(retry=Retry(2, 0), name="<locals>.tries")
    world.script = [OSError("1"), "hello"]
    async with opened(llm=ask) as runtime:
        session = await runtime.session(agent, "c")
        assert (await session.send("hi")).text == "hello"
    assert world.tried == 2


# ---- crashes


def begin():
    """Each session has a world of its own; after a crash it is the same as before."""
    world.__init__()


def fails_once():
    world.tried += 1
    if world.tried == 1:
        raise OSError("away")
    return "ok"


@everhold.program
async def unsteady(ctx):
    await ctx.call(begin)
    first = await ctx.call(fails_once, retry=Retry(3, backoff=30))
    second = await ctx.llm("go?", retry=Retry(3, backoff=30))
    return [first, second]


def busy_once(query):
    world.tried += 1
    if world.tried == 3:
        raise AnswerFailed("busy", "rate_limited")
    return "yes"


def test_a_crash_at_any_commit_changes_nothing():
    """Neither while an attempt runs nor while the next one waits."""
    report = crash_everywhere(unsteady(), answers=busy_once)
    assert report.result == ["ok", "yes"]
    # the start, three outcomes, and for each of the two that fail once: the failure, the next start
    assert report.commits == 4 + 2 * 2
    assert report.unknown == []


@everhold.program
async def paid(ctx):
    await ctx.call(begin)
    return await ctx.call(fails_once, rerun="never", retry=Retry(3, backoff=30))


def test_a_crash_while_a_never_call_waits_does_not_make_its_outcome_unknown():
    """Only one while an attempt runs does: after its start, or before its outcome is stored."""
    report = crash_everywhere(paid())
    assert [str(point) for point in report.points if point.unknown] == [
        "after commit 2",  # the first attempt runs
        "before commit 3",
        "after commit 4",  # the second one
        "before commit 5",
    ]
    assert "fails_once" not in report.repeated


# ---- stored data


async def test_calls_and_tools_of_older_databases_keep_their_retries_and_timeouts():
    """They were among the options of a call, and a field of an added tool."""
    call = Query(0, "0:0", kind=Kind.CALL, options={"retries": 2, "timeout": 7.5, "call": "c-1"})
    retry, timeout = read_older_limits(call)
    assert (retry.attempts, retry.backoff, retry.max_backoff, timeout) == (3, 0.1, 10.0, 7.5)
    assert read_older_limits(Query(0, "0:0", kind=Kind.CALL, options={"call": "c-1"})) == (
        None,
        None,
    )
    now = Query(0, "0:0", kind=Kind.CALL, options={"call": "c-1"}, retry=Retry(3))
    assert not has_new_wording(call, now)
    added = AddedTool(ToolManifest("t", "t"), retries=1, timeout=5.0)
    tool = ReferencedTool(msgspec.json.decode(msgspec.json.encode(added), type=AddedTool), tuple)
    assert (tool.retry.attempts, tool.timeout) == (2, 5.0)
