"""Who cancelled, retried, forked and deleted a session is recorded. A keyed signal is sent once.
All through the public API.
"""

import pytest

import everhold
from everhold.errors import InputConflict, UnknownSession

MARIA = {"user": "maria"}
broken = True


@everhold.program
async def asks(ctx):
    return await ctx.input("Well?")


@everhold.program
async def breaks(ctx):
    await ctx.input("Go?")
    if broken:
        raise ValueError("broken")
    return "fine"


@everhold.program
async def counts(ctx):
    found = []
    while (said := await ctx.receive("more")) != "stop":
        found.append(said)
    return found


@pytest.fixture(params=["memory", "sqlite"])
def where(request, tmp_path):
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/who.db"


async def test_a_cancel_says_who(where):
    """The last step has the reason and who gave it; without `by`, nobody is named."""
    async with everhold.open(where) as runtime:
        for by in (MARIA, None):
            status = await runtime.start(asks())
            await runtime.cancel(status, "changed my mind", by=by)
            step = (await runtime.steps(status))[-1]
            assert (step.cancel, step.by) == ("changed my mind", by)


async def test_a_retry_says_who(where):
    """The step that retries has it; the steps before do not change."""
    global broken
    async with everhold.open(where) as runtime:
        status = await runtime.start(breaks())
        broken = True
        failed = await runtime.answer(status.queries[0], "yes")
        assert failed.state == "failed"
        broken = False
        done = await runtime.retry(failed, by=MARIA)
        assert done.result == "fine"
        assert [(step.retry, step.by) for step in await runtime.steps(status)] == [
            (False, None),
            (False, None),
            (True, MARIA),
        ]


async def test_a_fork_says_who(where):
    """A fork of a fork has its own; the origin has none. Export and import keep it."""
    async with everhold.open(where) as runtime:
        status = await runtime.start(asks())
        fork = await runtime.fork(status, by=MARIA)
        plain = await runtime.fork(fork)
        found = {info.session_id: info.forked_by for info in await runtime.sessions()}
        assert found[fork.session_id] == MARIA
        assert found[status.session_id] is found[plain.session_id] is None


async def test_a_delete_says_who(where):
    """Who deleted it is told by id after the session is gone; without `by`, nothing is kept."""
    async with everhold.open(where) as runtime:
        for by in (MARIA, None):
            status = await runtime.start(asks())
            assert await runtime.archive.deleted_by(status.session_id) is None
            await runtime.delete(status, by=by)
            assert await runtime.archive.deleted_by(status.session_id) == by
            with pytest.raises(UnknownSession):
                await runtime.status(status.session_id)


async def test_a_signal_with_a_key_is_sent_once(where):
    """The same again changes nothing; another value under the key is a conflict; also without a
    program that waits for it.
    """
    async with everhold.open(where) as runtime:
        status = await runtime.start(counts())
        for key in ("a", "a", "b"):
            await runtime.signal(status, "more", 1, key=key)
        with pytest.raises(InputConflict):
            await runtime.signal(status, "more", 2, key="a")
        done = await runtime.signal(status, "more", "stop")
        assert done.result == [1, 1]
        other = await runtime.start(asks())
        for _ in range(2):
            await runtime.signal(other, "later", 1, key="a")


async def test_who_must_be_an_object(where):
    """Text is refused, as for answers."""
    async with everhold.open(where) as runtime:
        status = await runtime.start(asks())
        for verb in (runtime.cancel, runtime.delete, runtime.fork):
            with pytest.raises(everhold.EverholdError) as refused:
                await verb(status, by="maria")
            assert refused.value.code == "bad_arguments"
