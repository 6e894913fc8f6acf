"""key=: the same work again goes on; other work under the same key is refused."""

import asyncio

import pytest

import everhold
from everhold.errors import BadArguments, BadSetting, BadValue, KeyConflict, KeyDeleted
from everhold.schedules.action import ActionResult, Start
from tests.scenario.harness import ids, opened


@everhold.program
async def refund(ctx, order: str, note: str = ""):
    reason = await ctx.llm(f"Why did {order} come back?")
    return reason if await ctx.approval(f"Refund {order}?") else "declined"


@everhold.program
async def other(ctx, order: str):
    return await ctx.llm("Why?")


async def test_the_same_key_is_the_same_session():
    """Started again, it goes on where it was."""
    async with opened() as runtime:
        first = await runtime.start(refund(order="7"), key="refund-7")
        await runtime.answer(first.queries[0], "late")
        again = await runtime.start(refund(order="7"), key="refund-7")
        assert (again.session_id, ids(again)) == (first.session_id, ["q-1"])
        assert len(await runtime.sessions()) == 1


async def test_running_a_finished_session_again_gives_its_result():
    """Nothing is asked twice."""
    async with opened(llm=["broken"]) as runtime:
        with pytest.raises(everhold.Waiting) as waiting:
            await runtime.run(refund(order="7"), key="k")
        await runtime.answer(waiting.value.queries[0], True)
        assert await runtime.run(refund(order="7"), key="k") == "broken"
        assert await runtime.run(refund(order="7"), key="k") == "broken"


async def test_other_arguments_are_a_conflict():
    """The error names the key and the session that has it."""
    async with opened() as runtime:
        first = await runtime.start(refund(order="7"), key="k")
        with pytest.raises(KeyConflict) as refused:
            await runtime.start(refund(order="8"), key="k")
        assert (refused.value.key, refused.value.session_id) == ("k", first.session_id)
        with pytest.raises(KeyConflict):
            await runtime.start(other(order="7"), key="k")
        assert len(await runtime.sessions()) == 1


async def test_the_order_of_arguments_does_not_matter():
    """The same arguments are the same, however they were written."""
    async with opened() as runtime:
        first = await runtime.start(refund(order="7", note="x"), key="k")
        again = await runtime.start(refund(note="x", order="7"), key="k")
        assert again.session_id == first.session_id


@pytest.mark.parametrize("file", [False, True])
async def test_starting_at_the_same_time_makes_one_session(file, tmp_path):
    """Whoever comes second gets the first one's session."""
    async with opened(tmp_path if file else None) as runtime:
        started = await asyncio.gather(
            *(runtime.start(refund(order="7"), key="k") for _ in range(20))
        )
        assert len({status.session_id for status in started}) == 1
        assert len(await runtime.sessions()) == 1


async def test_two_processes_starting_at_the_same_time(tmp_path):
    """The file decides; both see the same session."""
    async with opened(tmp_path) as one, opened(tmp_path) as two:
        started = await asyncio.gather(
            *(
                runtime.start(refund(order="7"), key=f"k{n % 10}")
                for n in range(40)
                for runtime in (one, two)
            )
        )
        assert len({status.session_id for status in started}) == 10


async def test_a_key_after_a_restart(tmp_path):
    """run again after a crash goes on."""
    async with opened(tmp_path, llm=["broken"]) as runtime:
        with pytest.raises(everhold.Waiting):
            await runtime.run(refund(order="7"), key="k")
    async with opened(tmp_path) as runtime:
        with pytest.raises(everhold.Waiting) as waiting:
            await runtime.run(refund(order="7"), key="k")
        assert [query.kind for query in waiting.value.queries] == ["approval"]


async def test_a_deleted_session_gives_its_key_back():
    """The key may be used for other work."""
    async with opened() as runtime:
        first = await runtime.start(refund(order="7"), key="k")
        await runtime.delete(first.session_id)
        second = await runtime.start(refund(order="8"), key="k", again=True)
        assert second.session_id != first.session_id


@pytest.mark.parametrize("key", ["", 7, "\ud800"])
async def test_what_is_no_key(key):
    """A key is text, and not empty."""
    async with opened() as runtime:
        with pytest.raises((BadArguments, BadValue)):
            await runtime.start(refund(order="7"), key=key)


@pytest.mark.parametrize(
    "given",
    [
        {"key": "k" * 2501},
        {"key": "é" * 1251},
        {"title": "t" * 1001},
        {"labels": {"a": "b" * 10_000}},
        {"labels": {str(number): "" for number in range(10_000)}},
        {"metadata": {"a": "b" * 100_000}},
    ],
)
async def test_what_is_too_long_to_be_read_with_every_session_is_refused(given):
    async with opened() as runtime:
        with pytest.raises(BadSetting, match="at most"):
            await runtime.start(refund(order="7"), **given)
        assert await runtime.sessions() == []


async def test_what_is_as_long_as_may_be_is_kept():
    given = {
        "key": "é" * 1250,
        "title": "é" * 1000,
        "labels": {"a": "é" * 9_999},
        "metadata": {"a": "é" * 99_999},
    }
    async with opened() as runtime:
        first = await runtime.start(refund(order="7"), **given)
        assert (
            await runtime.start(refund(order="7"), key=given["key"])
        ).session_id == first.session_id
        with pytest.raises(BadSetting, match="at most"):
            await runtime.fork(first.session_id, title="t" * 1001)
        with pytest.raises(BadSetting, match="at most"):
            await runtime.fork(first.session_id, key="k" * 2501)


async def test_without_a_key_every_start_is_a_session_of_its_own():
    """Ids are unguessable, begin with s-, and do not repeat."""
    async with opened() as runtime:
        found = [(await runtime.start(refund(order="7"))).session_id for _ in range(50)]
        assert len(set(found)) == 50
        assert all(name.startswith("s-") and len(name.rpartition("-")[2]) == 24 for name in found)


async def test_title_labels_and_metadata():
    """They are kept, and sessions are found by them, newest first, page by page."""
    async with opened() as runtime:
        for number in range(5):
            await runtime.start(
                refund(order=str(number)), title=f"t{number}", labels={"odd": str(number % 2)}
            )
        odd = await runtime.sessions(labels={"odd": "1"})
        assert [info.title for info in odd] == ["t3", "t1"] or {info.title for info in odd} == {
            "t3",
            "t1",
        }
        page = await runtime.sessions(limit=2)
        rest = await runtime.sessions(after=page[-1].session_id)
        assert len(page) == 2 and len(rest) == 3
        assert {info.session_id for info in page}.isdisjoint(info.session_id for info in rest)


async def test_listing_by_state_program_and_age():
    """Each filter alone and together."""
    from everhold.testing.clock import ManualClock

    clock = ManualClock()
    async with opened(clock=clock) as runtime:
        old = await runtime.start(refund(order="1"))
        clock.advance(100)
        new = await runtime.start(other(order="2"))
        await runtime.cancel(new.session_id)
        assert [info.session_id for info in await runtime.sessions(state="cancelled")] == [
            new.session_id
        ]
        assert [info.session_id for info in await runtime.sessions(program=refund.ref)] == [
            old.session_id
        ]
        assert [info.session_id for info in await runtime.sessions(older_than=50)] == [
            old.session_id
        ]
        assert [info.session_id for info in await runtime.sessions(newer_than=50)] == [
            new.session_id
        ]
        assert await runtime.sessions(state=["completed", "failed"]) == []
        with pytest.raises(everhold.EverholdError, match="asleep"):
            await runtime.sessions(state="asleep")


# ---- keys of deleted sessions

AGENT = everhold.Agent(name="keeper", instructions="Answer.")


async def _ended(runtime, key):
    one = await runtime.start(other(order="7"), key=key)
    await runtime.answer(one.session_id, "late")
    return one.session_id


WAYS = {
    "start": lambda runtime, key, **more: runtime.start(other(order="7"), key=key, **more),
    "start, other arguments": lambda runtime, key, **more: runtime.start(
        other(order="8"), key=key, **more
    ),
    "start, by name": lambda runtime, key, **more: runtime.start(
        "shop:gone", args={}, unchecked=True, key=key, wait=0, **more
    ),
    "run": lambda runtime, key, **more: _run(runtime, key, **more),
    "fork": lambda runtime, key, **more: _fork(runtime, key, **more),
    "conversation, fork": lambda runtime, key, **more: _fork_talk(runtime, key, **more),
    "conversation": lambda runtime, key, **more: runtime.session(AGENT, key, **more),
}


async def _run(runtime, key, **more):
    with pytest.raises(everhold.Waiting):
        await runtime.run(other(order="7"), key=key, **more)


async def _fork_talk(runtime, key, **more):
    await (await runtime.session(AGENT, "talk")).fork(key=key, **more)


async def _fork(runtime, key, **more):
    origin = await runtime.start(other(order="9"), key="origin")
    await runtime.fork(origin.session_id, key=key, **more)


@pytest.mark.parametrize("removed", ["delete", "sweep"])
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
async def test_the_key_of_a_deleted_session_begins_a_new_one_only_where_that_is_said(
    way, removed, tmp_path
):
    """Also after a restart; the error names the key and the session that had it, and nothing is
    begun.
    """
    async with opened(tmp_path, replay=False) as runtime:
        old = await _ended(runtime, "k")
        await (runtime.delete(old) if removed == "delete" else runtime.archive.gc(older_than=0))
    async with opened(tmp_path, replay=False) as runtime:
        for _ in range(2):
            with pytest.raises(KeyDeleted) as refused:
                await way(runtime, "k")
            assert (refused.value.code, refused.value.key, refused.value.session_id) == (
                "key_deleted",
                "k",
                old,
            )
            assert "again=True" in refused.value.hint and "--again" in refused.value.hint
            assert await runtime.store.find("k") is None
        await way(runtime, "k", again=True)
        new = await runtime.store.find("k")
        assert new not in (None, old)


async def test_a_key_that_is_used_anew_is_the_key_of_the_new_session():
    """Starting once more goes on with it, whether `again` is said or not; deleted, it is refused as
    before.
    """
    async with opened() as runtime:
        await runtime.delete(await _ended(runtime, "k"))
        new = await runtime.start(other(order="7"), key="k", again=True)
        for again in (False, True):
            assert (
                await runtime.start(other(order="7"), key="k", again=again)
            ).session_id == new.session_id
            with pytest.raises(KeyConflict):
                await runtime.start(other(order="8"), key="k", again=again)
            with pytest.raises(KeyConflict):
                await runtime.fork(new.session_id, key="k", again=again)
        await runtime.answer(new.session_id, "late")
        await runtime.delete(new.session_id)
        with pytest.raises(KeyDeleted) as refused:
            await runtime.start(other(order="7"), key="k")
        assert refused.value.session_id == new.session_id


async def test_again_without_a_deleted_session_is_an_ordinary_start():
    async with opened() as runtime:
        one = await runtime.start(other(order="7"), key="k", again=True)
        assert (await runtime.start(other(order="7"), key="k")).session_id == one.session_id


async def test_processes_that_use_a_deleted_key_at_once_have_one_session(tmp_path):
    async with opened(tmp_path, replay=False) as one, opened(tmp_path, replay=False) as two:
        await one.delete(await _ended(one, "k"))
        starts = [
            runtime.start(other(order="7"), key="k", again=True) for runtime in (one, two) * 3
        ]
        assert len({status.session_id for status in await asyncio.gather(*starts)}) == 1


async def test_an_event_whose_session_was_deleted_starts_nothing_again():
    """A handover that is tried again after its session has ended and is gone was done."""
    async with opened() as runtime:
        deed = Start(other.ref, args={"order": "7"})
        house = runtime._actions
        first = await house.do(deed, "event-7", {}, {})
        await runtime.answer(first.session_id, "late")
        await runtime.delete(first.session_id)
        assert await house.do(deed, "event-7", {}, {}) == ActionResult(first.session_id, False)
        assert await runtime.sessions() == []


def test_scripts_say_it_too(tmp_path):
    place = tmp_path / "app.db"
    assert everhold.run(other(order="7"), key="k", llm=["late"], database=place) == "late"
    with everhold.open_blocking(place) as runtime:
        runtime.delete(runtime.sessions()[0].session_id)
        with pytest.raises(KeyDeleted):
            runtime.start(other(order="7"), key="k")
        with pytest.raises(KeyDeleted):
            runtime.session(AGENT, "k")
    with pytest.raises(KeyDeleted):
        everhold.run(other(order="7"), key="k", llm=["late"], database=place)
    assert (
        everhold.run(other(order="7"), key="k", llm=["soon"], database=place, again=True) == "soon"
    )
