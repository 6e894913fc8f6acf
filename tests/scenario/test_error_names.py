"""Errors of verbs name the session as the caller did, and commands that work as they stand."""

import pytest

import everhold
from everhold import errors
from tests.scenario.harness import at_top, opened


@everhold.program
async def asks(ctx, question: str = "Well?"):
    return await ctx.input(question)


def told(refused):
    return str(refused.value), refused.value.hint


async def test_a_verb_names_the_key_that_it_was_given():
    """In its message and its command; by a handle or an id, it names the id."""
    async with opened() as runtime:
        status = await runtime.start(asks(), key="order 7")
        await runtime.answer("order 7", "yes")
        with pytest.raises(errors.NoOpenQuery) as refused:
            await runtime.answer("order 7", "no")
        assert told(refused) == (
            "session 'order 7' is completed and has no open question",
            "See what was answered: everhold show 'order 7'",
        )
        with pytest.raises(errors.SessionEnded) as ended:
            await runtime.cancel("order 7")
        assert str(ended.value).startswith("session 'order 7' is completed;")
        with pytest.raises(errors.NoOpenQuery) as by_id:
            await runtime.answer(status, "no")
        assert str(by_id.value).startswith(f"session {status.session_id!r} is completed")
        assert by_id.value.session_id == refused.value.session_id == status.session_id


async def test_an_error_about_another_session_keeps_its_name():
    """A fork under a key that is taken: the conflict is about the session that has it."""
    async with opened() as runtime:
        await runtime.start(asks(), key="a")
        other = await runtime.start(asks(), key="b")
        with pytest.raises(errors.KeyConflict) as refused:
            await runtime.fork("a", key="b")
        assert f"for session {other.session_id!r}" in str(refused.value)
        with pytest.raises(errors.UnknownSession) as unknown:
            await runtime.status("c")
        assert str(unknown.value).startswith("no session 'c'")


async def test_what_waits_tells_the_command_that_answers():
    async with opened() as runtime:
        with pytest.raises(everhold.Waiting) as waiting:
            await runtime.run(asks(), key="k 1")
        assert waiting.value.name == "k 1"
        assert told(waiting) == (
            "session 'k 1' is waiting: 1 question open",
            "Answer it with `everhold answer 'k 1' --query q-0`, then repeat the call with the"
            " same key.",
        )


async def test_a_command_names_a_database_that_is_not_the_default(tmp_path, monkeypatch):
    """Absolute, so that it works in any folder; not if the settings name the same database."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("EVERHOLD_DATABASE_URL", raising=False)
    address = f"sqlite:///{tmp_path / 'my app.db'}"
    program = at_top(asks.body)
    for setting, option in (("", f" -d '{address}'"), ('database = "my app.db"', "")):
        (tmp_path / "everhold.toml").write_text(setting)
        async with everhold.open("my app.db") as runtime:
            assert runtime.database_option == option
            with pytest.raises(everhold.Waiting) as waiting:
                await runtime.run(program(), key="k")
            assert f"`everhold answer k --query q-0{option}`" in waiting.value.hint
            with pytest.raises(errors.BadStep) as step:
                await runtime.fork("k", at=9)
            assert step.value.hint == f"List its steps: everhold show k{option}"


@everhold.program
async def fails(ctx):
    raise KeyError("choices")


async def test_a_failure_in_memory_tells_no_command(monkeypatch):
    """No command reaches a database in memory."""
    async with everhold.open("memory://") as runtime:
        with pytest.raises(everhold.Failed) as failed:
            await runtime.run(fails(), key="k")
        assert failed.value.hint == everhold.Failed.hint
        assert "everhold " not in failed.value.hint


async def test_a_divergence_tells_the_command_that_forks():
    """At the last step that matches, with the name that the caller used."""
    async with opened(replay=False) as runtime:
        await runtime.start(at_top(_first)(), key="k")
        _first.__code__, kept = _second.__code__, _first.__code__
        try:
            async with opened(on=runtime.store, clock=runtime.clock, replay=False) as other:
                with pytest.raises(errors.Diverged) as diverged:
                    await other.answer("k", "x")
        finally:
            _first.__code__ = kept
        assert diverged.value.hint.endswith(
            " or fork it at the last step that matches: everhold fork k --at 0"
        )


async def _first(ctx):
    return await ctx.input("one")


async def _second(ctx):
    return await ctx.approval("other")
