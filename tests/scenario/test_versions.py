"""Code that changes under its sessions: wording, shape, versions, and code that is gone."""

import pytest

import everhold
from everhold.errors import VersionMissing
from everhold.ports.program import REGISTRY
from tests.scenario.harness import opened, prompts, rows


def edition(body, **options):
    """A program whose code can be changed: each edition has the same name."""
    body.__name__, body.__qualname__ = "edited", "edition.<locals>.edited"
    return everhold.program(**options)(body)


def asks(*questions, **options):
    async def body(ctx):
        return [await ctx.llm(question) for question in questions]

    return edition(body, **options)


def deployed(runtime):
    """Another process on the same store, with the code as it is now."""
    return opened(on=runtime.store, clock=runtime.clock, replay=False)


async def test_other_words_are_no_divergence():
    """The recorded answer stands, and the session goes on under the new wording."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(asks("first?", "second?")())
        await runtime.answer(status.queries[0], "1")
        asks("First, please.", "second?")
        async with deployed(runtime) as new:
            assert (await new.answer(status.session_id, "2")).result == ["1", "2"]


async def test_strict_makes_other_words_a_divergence():
    """@program(strict=True): even the wording must be the same."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(asks("first?", "second?", strict=True)())
        await runtime.answer(status.queries[0], "1")
        asks("First, please.", "second?", strict=True)
        async with deployed(runtime) as new:
            with pytest.raises(everhold.Diverged):
                await new.answer(status.session_id, "2")


async def test_what_was_reworded_is_known():
    """A rebuilt session knows the queries whose wording changed."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(asks("first?", "second?")())
        await runtime.answer(status.queries[0], "1")
        asks("First, please.", "second?")
        async with deployed(runtime) as new:
            live = await new.engine.sessions.live(status.session_id)
            assert live.reworded == [0]


def approves(**options):
    async def body(ctx):
        return [await ctx.approval("first?"), await ctx.llm("second?")]

    return edition(body, **options)


async def test_another_shape_is_a_divergence():
    """The call is refused, nothing is committed, and rolling the code back heals it."""
    async with opened(replay=False) as runtime:
        old = asks("first?", "second?")
        status = await runtime.start(old())
        await runtime.answer(status.queries[0], "1")
        before = await rows(runtime, status.session_id)
        approves()
        async with deployed(runtime) as new:
            with pytest.raises(everhold.Diverged) as refused:
                await new.answer(status.session_id, "2")
            assert refused.value.step == 0
            assert (
                "llm 'first?' at 0:0" in refused.value.recorded
                and "approval" in refused.value.asked
            )
            for remedy in ("back", "fork", "ctx.version", "cancel"):
                assert remedy in refused.value.hint
            assert await rows(new, status.session_id) == before
        asks("first?", "second?")
        async with deployed(runtime) as back:
            assert (await back.answer(status.session_id, "2")).result == ["1", "2"]


@pytest.mark.parametrize(
    "after",
    [("first?",), ("first?", "second?", "third?"), ()],
    ids=["one fewer", "one more", "none"],
)
async def test_more_or_fewer_questions(after):
    """One fewer ends too early; one more is found when it comes to it."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(asks("first?", "second?")())
        await runtime.answer(status.queries[0], "1")
        asks(*after)
        async with deployed(runtime) as new:
            if len(after) == 3:
                assert prompts(await new.answer(status.session_id, "2")) == ["third?"]
            else:
                with pytest.raises(everhold.Diverged):
                    await new.answer(status.session_id, "2")


async def test_a_timer_of_a_session_that_diverged_changes_nothing(caplog):
    """The log says it once, and other sessions are moved."""
    from everhold.testing.clock import ManualClock

    def sleeps(question):
        async def body(ctx):
            if question:
                await ctx.llm(question)
            await ctx.sleep(10)
            return "woke"

        return edition(body)

    clock = ManualClock()
    async with opened(clock=clock, replay=False, recover=False) as runtime:
        status = await runtime.start(sleeps("")())
        sleeps("new?")
        clock.advance(11)
        async with opened(on=runtime.store, clock=clock, replay=False, recover=False) as new:
            for _ in range(3):
                await new.engine.reconciler.move()
            assert (await new.status(status.session_id)).state == "paused"
    assert len([line for line in caplog.messages if "cannot be moved here" in line]) == 1


def versioned(body_version):
    async def body(ctx):
        first = await ctx.llm("first?")
        if body_version > 1 and ctx.version("polite", body_version) > 1:
            first = await ctx.llm("And please?")
        return [first, await ctx.llm("last?")]

    return edition(body)


async def test_ctx_version_keeps_old_sessions_on_the_old_way():
    """A session that was past the change goes the old way; a new one goes the new way."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(versioned(1)())
        await runtime.answer(status.queries[0], "1")
        new_way = versioned(2)
        async with opened(on=runtime.store, clock=runtime.clock) as new:
            assert (await new.answer(status.session_id, "2")).result == ["1", "2"]
            fresh = await new.start(new_way())
            fresh = await new.answer(fresh.queries[0], "1")
            assert prompts(fresh) == ["And please?"]
            assert (await rows(new, fresh.session_id))[1].notes.versions == {"polite": 2}


async def test_ctx_version_before_the_change_is_reached():
    """A session that had not come so far takes the new way, and keeps to it after a rebuild."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(versioned(1)())
        versioned(2)
        async with opened(on=runtime.store, clock=runtime.clock, cache=1) as new:
            status = await new.answer(status.queries[0], "1")
            assert prompts(status) == ["And please?"]
            await new.start(versioned(2)())
            status = await new.answer(status.queries[0], "2")
            assert prompts(status) == ["last?"]


async def test_two_versions_beside_each_other():
    """@program(version=2): sessions go on with the version they were started with."""
    async with opened(replay=False) as runtime:
        first = await runtime.start(asks("old?", "old two?")())
        second = await runtime.start(asks("new?", version=2)())
        assert (prompts(first), prompts(second)) == (["old?"], ["new?"])
        async with opened(on=runtime.store, clock=runtime.clock) as other:
            assert prompts(await other.answer(first.session_id, "x")) == ["old two?"]
            assert (await other.answer(second.session_id, "y")).result == ["y"]
    del REGISTRY[("tests.scenario.test_versions:edition.<locals>.edited", 2)]


async def test_a_version_that_is_missing():
    """The answer is accepted and kept; the session waits for a process that has its version."""
    ref = "tests.scenario.test_versions:edition.<locals>.edited"
    async with opened(replay=False) as runtime:
        status = await runtime.start(asks("old?")())
        old = REGISTRY.pop((ref, 1))
        asks("new?", version=2)
        async with opened(on=runtime.store, clock=runtime.clock, replay=False) as other:
            assert await other.answer(status.session_id, "kept") == everhold.Accepted(
                status.session_id, 0
            )
            with pytest.raises(VersionMissing):
                await other.engine.sessions.live(status.session_id)
        REGISTRY[(ref, 1)] = old
        del REGISTRY[(ref, 2)]
        async with deployed(runtime) as home:
            assert (await home.wait(status.session_id, 60)).result == ["kept"]


async def test_a_described_schema_is_wording():
    """A better description of a field is no other shape; another type is."""
    from dataclasses import make_dataclass

    def returns(type_, doc):
        point = make_dataclass("Point", [("x", type_)], namespace={"__doc__": doc})

        async def body(ctx):
            return [(await ctx.llm("where?", returns=point)).x, await ctx.llm("and?")]

        return edition(body)

    async with opened(replay=False) as runtime:
        status = await runtime.start(returns(int, "A point.")())
        status = await runtime.answer(status.queries[0], {"x": 1})
        returns(int, "A point, better described.")
        async with deployed(runtime) as new:
            assert prompts(await new.fork(status.session_id)) == ["and?"]
        returns(str, "A point.")
        async with deployed(runtime) as new:
            with pytest.raises(everhold.Diverged):
                await new.answer(status.session_id, "x")
