"""Every verb takes a session by its id, by its key, or by a handle."""

import pytest

import everhold
from everhold.core.tool import Later
from everhold.errors import BadArguments, UnknownSession
from everhold.ports.tool import tool
from tests.scenario.harness import opened

KEY = "batch-1"


@everhold.program
async def asks(ctx):
    return await ctx.input("Well?")


@everhold.program
async def fails(ctx):
    await ctx.input("Well?")
    raise ValueError("no")


@everhold.program
async def listens(ctx):
    return await ctx.receive("news")


@tool
async def post(place: str) -> str:
    """Post something."""
    return Later("Is it there?")  # type: ignore[return-value]


VERBS = {
    "answer": (asks, lambda runtime, session: runtime.answer(session, "x")),
    "answer_many": (asks, lambda runtime, session: runtime.answer_many(session, {"q-0": "x"})),
    "signal": (listens, lambda runtime, session: runtime.signal(session, "news", 1)),
    "status": (asks, lambda runtime, session: runtime.status(session)),
    "wait": (asks, lambda runtime, session: runtime.wait(session)),
    "move": (asks, lambda runtime, session: runtime.move(session)),
    "cancel": (asks, lambda runtime, session: runtime.cancel(session)),
    "fork": (asks, lambda runtime, session: runtime.fork(session)),
    "delete": (asks, lambda runtime, session: runtime.delete(session)),
    "explain": (asks, lambda runtime, session: runtime.explain(session)),
    "steps": (asks, lambda runtime, session: runtime.steps(session)),
    "transcript": (asks, lambda runtime, session: runtime.transcript(session)),
    "snapshot": (asks, lambda runtime, session: runtime.snapshot(session)),
    "attachments": (asks, lambda runtime, session: runtime.attachments(session)),
    "vacuum": (asks, lambda runtime, session: runtime.archive.vacuum(session)),
}
NAMES = {
    "id": lambda status: status.session_id,
    "key": lambda status: KEY,
    "handle": lambda status: status,
}


@pytest.mark.parametrize("named", NAMES)
@pytest.mark.parametrize("verb", VERBS)
async def test_a_verb_takes_an_id_a_key_or_a_handle(verb, named):
    program, act = VERBS[verb]
    async with opened(replay=False) as runtime:
        status = await runtime.start(program(), key=KEY)
        found = await act(runtime, NAMES[named](status))
        assert found is not None
        if verb == "delete":
            assert await runtime.sessions() == []
        elif verb == "cancel":
            assert (await runtime.status(KEY)).state == "cancelled"
        elif verb in ("answer", "answer_many", "signal"):
            assert found.session_id == status.session_id and found.state == "completed"


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("name", ["nobody", f"s-{'0' * 16}-{'0' * 24}"])
async def test_a_name_that_nothing_has_is_refused(verb, name):
    """With the typed error, and a hint what to do."""
    async with opened(replay=False) as runtime:
        with pytest.raises(UnknownSession) as refused:
            await VERBS[verb][1](runtime, name)
        assert refused.value.hint


@pytest.mark.parametrize("verb", VERBS)
async def test_what_is_not_a_session_is_refused(verb):
    async with opened(replay=False) as runtime:
        with pytest.raises(BadArguments):
            await VERBS[verb][1](runtime, 7)


@pytest.mark.parametrize("named", NAMES)
async def test_a_failed_session_is_retried_by_its_name(named):
    async with opened(replay=False) as runtime:
        status = await runtime.start(fails(), key=KEY)
        await runtime.answer(status, "x")
        assert (await runtime.retry(NAMES[named](status))).state == "failed"
    async with opened(replay=False) as runtime:
        with pytest.raises(UnknownSession):
            await runtime.retry("nobody")


async def test_everything_that_belongs_to_a_session_is_a_handle():
    """An open query, a line of a listing, a conversation and a turn."""
    async with opened(llm=["Hello."], replay=False) as runtime:
        status = await runtime.start(asks(), key=KEY)
        (query,) = status.queries
        (info,) = await runtime.sessions()
        (noted,) = await runtime.inbox()
        for one in (query, info, noted):
            assert await runtime.status(one) == status
        talk = await runtime.session(everhold.Agent(name="session_names_bot"), "talk")
        turn = await talk.send("Hi.")
        assert talk.session_id == talk.id
        for one in (talk, turn):
            assert (await runtime.status(one)).session_id == talk.id


async def test_a_call_that_finishes_later_is_completed_by_the_key_of_its_session():
    calls = {"tool_calls": [{"name": "post", "input": {"place": "Rome"}}]}
    agent = everhold.Agent(tools=[post], name="session_names_poster")
    async with opened(llm=[calls, "Done."], replay=False) as runtime:
        talk = await runtime.session(agent, "talk")
        turn = await talk.send("Post it.")
        key = turn.queries[0].query.options["key"]
        await runtime.complete("talk", key, "yes")
        assert (await talk.turn(turn.input_id)).text == "Done."
        with pytest.raises(UnknownSession):
            await runtime.complete("nobody", key, "yes")


async def test_listings_take_names_too():
    """`parent` and `after` of sessions, and sessions that are exported."""
    async with opened(replay=False) as runtime:
        first = await runtime.start(asks(), key="first")
        runtime.clock.advance(1)
        await runtime.start(asks(), key="second")
        assert [one.key for one in await runtime.sessions(after="second")] == ["first"]
        assert [one.key for one in await runtime.sessions(after=first)] == []
        assert await runtime.sessions(parent="first") == []


async def test_sessions_are_exported_by_key_and_handle(tmp_path):
    async with opened(replay=False) as runtime:
        first = await runtime.start(asks(), key="first")
        await runtime.start(asks(), key="second")
        for chosen in ("first", first, ["first"], [first, "second"]):
            done = await runtime.archive.export(tmp_path / "out.jsonl", chosen)
            assert len(done.sessions) == (2 if isinstance(chosen, list) and len(chosen) == 2 else 1)
        with pytest.raises(UnknownSession):
            await runtime.archive.export(tmp_path / "out.jsonl", "nobody")


async def test_what_looks_like_an_id_is_never_a_key():
    """A session that a model keyed with the id of another is not taken for that one."""
    async with opened(replay=False) as runtime:
        first = await runtime.start(asks())
        second = await runtime.start(asks(), key=first.session_id)
        assert (await runtime.status(first.session_id)).session_id == first.session_id
        assert second.session_id != first.session_id


async def test_an_id_is_not_looked_up():
    """No read of the store goes before the verb's own."""
    async with opened(replay=False) as runtime:
        status = await runtime.start(asks(), key=KEY)
        looked = []
        find = runtime.store.find

        async def counted(key):
            looked.append(key)
            return await find(key)

        runtime.store.find = counted
        await runtime.status(status.session_id)
        await runtime.status(status)
        assert looked == []
        await runtime.status(KEY)
        assert looked == [KEY]
        await runtime.answer(status.queries[0], "x")
        assert looked == [KEY]
        assert (await runtime.status(status)).state == "completed"
