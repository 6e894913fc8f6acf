"""What conversations start with, and inputs refused once they have moved on. All through
the public API.
"""

import asyncio

import pytest

import everhold
from everhold.errors import BadArguments, KeyConflict, Outdated
from everhold.hooks import Plugin, SetOptions

heard = []


class Style(Plugin):
    name = "style"

    def before_session(self, moment):
        heard.append(("before_session", moment.plugin_options, dict(moment.options)))
        return SetOptions({"style": moment.plugin_options.get("style", "plain")})

    def after_turn(self, moment, settled):
        heard.append(("after_turn", moment.plugin_options))


class Other(Plugin):
    name = "other"

    def before_turn(self, moment):
        heard.append(("other", moment.plugin_options))


bot = everhold.Agent(name="begun_bot", top_p=0.5, plugins=[Style(), Other()])
plain = everhold.Agent(name="begun_plain", top_p=0.5)


async def model(query):
    return f"answer {len(query.messages)}"


@pytest.fixture(params=["memory", "sqlite"])
def where(request, tmp_path):
    heard.clear()
    return "memory://" if request.param == "memory" else f"sqlite:///{tmp_path}/begin.db"


async def test_a_session_begins_with_its_options(where):
    """They lie over the agent's and under what plugins and callers set; a fork inherits them."""
    asked = []

    async def asks(query):
        asked.append({name: query.options[name] for name in ("top_p", "temperature", "model")})
        return "ok"

    async with everhold.open(where, llm=asks) as runtime:
        session = await runtime.session(
            plain,
            "one",
            options={"temperature": 0.2, "model": "m:x"},
            title="One",
            labels={"team": "red"},
            metadata={"ticket": "7"},
            budget={"max_llm_calls": 9},
        )
        wanted = {"top_p": 0.5, "temperature": 0.2, "model": "m:x"}
        assert await session.options() == (await session.view()).options == wanted
        await session.send("x")
        assert asked == [wanted]
        info = (await runtime.sessions(labels={"team": "red"}))[0]
        assert (info.session_id, info.title) == (session.id, "One")
        fork = await session.fork()
        assert await fork.options() == wanted
        seen = await runtime.conversation("one")
        assert await seen.options() == {"temperature": 0.2, "model": "m:x"}
        await session.configure({"temperature": None})
        assert (await session.options()) == {"top_p": 0.5, "model": "m:x"}


async def test_plugin_options_reach_the_hooks_of_their_plugin(where):
    """Each plugin sees its own, in hooks that decide and in hooks that observe; once per session,
    also for another process.
    """
    async with everhold.open(where, llm=model) as runtime:
        session = await runtime.session(
            bot,
            "one",
            options={"temperature": 0.2},
            plugin_options={"style": {"style": "terse"}},
        )
        await session.send("x")
        await asyncio.sleep(0)
        assert heard[0] == ("before_session", {"style": "terse"}, {"temperature": 0.2})
        assert ("other", {}) in heard
        assert await session.options() == {"top_p": 0.5, "temperature": 0.2, "style": "terse"}
    assert ("after_turn", {"style": "terse"}) in heard
    if where != "memory://":
        heard.clear()
        async with everhold.open(where, llm=model) as runtime:
            session = await runtime.session(bot, "one")
            await session.send("y")
            assert (await session.options())["style"] == "terse"
        assert "before_session" not in [name for name, *_ in heard]
        assert ("after_turn", {"style": "terse"}) in heard


async def test_a_session_is_opened_again_with_or_without_its_options(where):
    """Not naming them is no conflict, the same is none; others are, and so are unknown plugins."""
    async with everhold.open(where, llm=model) as runtime:
        first = await runtime.session(bot, "one", options={"seed": 1}, plugin_options={"style": {}})
        for given in ({}, {"options": {"seed": 1}}, {"plugin_options": {"style": {}}}):
            assert (await runtime.session(bot, "one", **given)).id == first.id
        for given in ({"options": {"seed": 2}}, {"plugin_options": {"style": {"x": 1}}}):
            for name in ("one", first.id):
                with pytest.raises(KeyConflict):
                    await runtime.session(bot, name, **given)
        with pytest.raises(BadArguments, match="no plugin 'nobody'"):
            await runtime.session(bot, "two", plugin_options={"nobody": {}})
        with pytest.raises(BadArguments, match="must be an object"):
            await runtime.session(bot, "two", plugin_options={"style": 1})
        assert len(await runtime.sessions()) == 1


async def test_an_input_is_refused_when_the_conversation_has_moved_on(where):
    """`after` a node, a revision, or nothing; the refused input never enters."""
    async with everhold.open(where, llm=model) as runtime:
        session = await runtime.session(plain, "one")
        first = await session.send("x", after=None, id="i-1")
        leaf, revision = first.settled.leaf, await session.revision()
        second = await session.send("y", after=leaf)
        assert second.text == "answer 3"
        for after in (leaf, revision, None, "9.9"):
            with pytest.raises(Outdated, match="conversation") as refused:
                await session.send("z", after=after)
            assert refused.value.code == "outdated"
        assert len(await session.history()) == 4
        third = await session.send("z", after=await session.revision())
        assert third.text == "answer 5"
        await session.branch(leaf)
        assert (await session.send("again", after=leaf)).text == "answer 3"
        # an input that was accepted stays accepted
        assert (await session.send("x", after=None, id="i-1")).settled == first.settled
        for bad in (1.5, True):
            with pytest.raises(BadArguments):
                await session.send("z", after=bad)
        with pytest.raises(BadArguments):
            await session.send("z", after=leaf, busy="fork")


async def test_of_two_inputs_after_one_node_one_is_accepted(where):
    """Two handles, at the same time; also during the turn the other is refused."""
    gate = asyncio.Event()

    async def slow(query):
        await gate.wait()
        return "ok"

    async with everhold.open(where, llm=slow) as runtime:
        one, two = [await runtime.session(plain, "one") for _ in range(2)]
        sends = [asyncio.ensure_future(each.send("x", after=None)) for each in (one, two)]
        done, _ = await asyncio.wait(sends, return_when=asyncio.FIRST_COMPLETED)
        assert [type(each.exception()) for each in done] == [Outdated]
        gate.set()
        found = await asyncio.gather(*sends, return_exceptions=True)
        assert sorted(type(each).__name__ for each in found) == ["Outdated", "Turn"]
        assert len(await one.turns()) == 1
