"""What `check` says of one session, and how it replays it."""

import msgspec
import pytest

import everhold
from everhold.archive import redact
from everhold.archive.check import CheckReport, SessionCheck, check_session
from everhold.core.query import Usage
from everhold.engine.replay import replay_session
from everhold.errors import UnknownProgram, VersionMissing
from everhold.programs.python.execution import PythonHost
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from everhold.testing.clock import ManualClock

EFFECTS: list[str] = []


def effect() -> str:
    EFFECTS.append("done")
    return "done"


def host(program):
    """A house where this program is what everybody asks for."""
    return PythonHost(lambda ref, version: program)


@everhold.program
async def first(ctx: everhold.Context, topic: str = "tea") -> str:
    draft = await ctx.llm(f"Draft about {topic}")
    note = await ctx.call(effect)
    return str(await ctx.llm(f"Mend {draft} ({note})", max_tokens=99))


def changed(body, **options):
    return everhold.program(**options)(body)


async def _same(ctx: everhold.Context, topic: str = "tea") -> str:
    draft = await ctx.llm(f"Draft about {topic}")
    note = await ctx.call(effect)
    return str(await ctx.llm(f"Mend {draft} ({note})", max_tokens=99))


async def _reworded(ctx: everhold.Context, topic: str = "tea") -> str:
    draft = await ctx.llm(f"Please draft about {topic}", system="Be kind.")
    note = await ctx.call(effect)
    return str(await ctx.llm(f"Mend {draft} ({note})", max_tokens=98))


async def _other(ctx: everhold.Context, topic: str = "tea") -> str:
    draft = await ctx.llm(f"Draft about {topic}")
    return str(await ctx.approval(f"Send {draft}?"))


async def _shorter(ctx: everhold.Context, topic: str = "tea") -> str:
    return str(await ctx.llm(f"Draft about {topic}"))


async def _other_arguments(ctx: everhold.Context, subject: str) -> str:
    return str(await ctx.llm(subject))


async def _exits(ctx: everhold.Context, topic: str = "tea") -> str:
    raise SystemExit(3)


async def recorded(call=None, answers=("a draft",)):
    """The record of a session that waits at its second question to a model."""
    EFFECTS.clear()
    async with Runtime(MemoryStore(), clock=ManualClock(), recover=False) as runtime:
        status = await runtime.start(call or first())
        for answer in answers:
            status = await runtime.answer(status.queries[0], answer)
        return await runtime.store.load(status.session_id)


async def test_a_program_that_asks_the_same_is_ok():
    """Every delivery matches, and nothing was done again."""
    record = await recorded()
    found = check_session(record, host(changed(_same)))

    assert (found.verdict, found.steps, found.goes_on) == ("ok", len(record.deliveries), True)
    assert EFFECTS == ["done"]


async def test_other_words_are_listed_with_step_and_question():
    """Each question that is put in other words, with what changed about it."""
    found = check_session(await recorded(), host(changed(_reworded)))

    assert (found.verdict, found.goes_on) == ("reworded", True)
    assert [(one.step, one.query_id, one.changed) for one in found.reworded] == [
        (0, "q-0", ["prompt", "system"]),
        (2, "q-2", ["max_tokens"]),
    ]
    assert "Please draft" in found.reworded[0].asked and "Please" not in found.reworded[0].recorded


async def test_a_strict_program_diverges_where_it_is_reworded():
    """`strict=True` means the very words."""
    found = check_session(await recorded(), host(changed(_reworded, strict=True)))

    assert (found.verdict, found.step) == ("diverged", 0)
    assert "strict" in found.asked


async def test_a_program_that_asks_something_else_diverges():
    """With the step, what is recorded and what is asked, and what can be done about it."""
    found = check_session(await recorded(), host(changed(_other)))

    assert (found.verdict, found.step, found.steps, found.code) == ("diverged", 1, 1, "diverged")
    assert "call" in found.recorded and "approval" in found.asked
    assert found.hint.endswith(f": everhold fork {found.session_id} --at 0")
    assert not found.goes_on


@everhold.program
async def restarting(ctx: everhold.Context, round: int = 0) -> str:
    await ctx.llm("before" if round == 0 else "after")
    await ctx.restart(round=round + 1)


async def _restarting(ctx: everhold.Context, round: int = 0) -> str:
    if round == 0:
        await ctx.approval("something else by now")
    await ctx.llm("after")
    await ctx.restart(round=round + 1)


async def _ended(ctx: everhold.Context, round: int = 0) -> str:
    await ctx.llm("before" if round == 0 else "after")
    return "done"


async def test_what_was_before_a_restart_is_not_checked():
    """A session goes on from its last restart: what code it began with does not matter any more."""
    record = await recorded(restarting(), answers=("x", "y"))
    found = check_session(record, host(changed(_restarting)))

    assert (found.verdict, found.steps, found.goes_on) == ("ok", 1, True)


async def test_to_begin_again_or_not_is_a_difference():
    """Played as a whole, a program that ends where it began again, or the other way round,
    diverges.
    """
    for call, body in ((restarting(), _ended), (changed(_ended)(), restarting.body)):
        record = await recorded(call, answers=("x",))
        with pytest.raises(everhold.EverholdError, match="a restart"):
            list(replay_session(record, host(changed(body))))


async def test_replay_goes_on_across_a_restart():
    """All steps are played; with `to`, those after the last restart before it."""
    record = await recorded(restarting(), answers=("x", "y"))
    there = host(restarting)

    assert [played.given.n for played in replay_session(record, there)] == [0, 1, 2, 3, 4]
    assert [played.given.n for played in replay_session(record, there, to=4)] == [4]
    assert [played.given.n for played in replay_session(record, there, to=3)] == [2, 3, 4]
    assert [played.given.n for played in replay_session(record, there, to=1)] == [0, 1, 2, 3, 4]


async def test_a_program_that_ends_early_diverges():
    """An end where a question is recorded is something else too."""
    found = check_session(await recorded(), host(changed(_shorter)))

    assert (found.verdict, found.step, found.asked) == ("diverged", 1, "the end, with a value")


@pytest.mark.parametrize(
    "error", [UnknownProgram("x:y"), VersionMissing("y", 1, 2)], ids=lambda e: e.code
)
async def test_a_program_that_is_not_here_is_missing(error):
    """Neither it nor another version is taken in its place."""

    def nothing(ref, version):
        raise error

    found = check_session(await recorded(), PythonHost(nothing))
    assert (found.verdict, found.code, found.steps) == ("missing", error.code, 0)


async def test_arguments_that_do_not_fit_any_more_are_an_error():
    """The program is there, and cannot be started with what the session was started with."""
    found = check_session(await recorded(), host(changed(_other_arguments)))

    assert (found.verdict, found.code) == ("error", "bad_arguments")


async def test_a_program_that_exits_diverges():
    """A check of many sessions survives what one program does."""
    found = check_session(await recorded(), host(changed(_exits)))

    assert found.verdict == "diverged"


async def test_loading_that_fails_is_an_error():
    """Whatever is raised while a program is found is told, not raised."""

    def broken(ref, version):
        raise ZeroDivisionError("at import")

    found = check_session(await recorded(), PythonHost(broken))
    assert (found.verdict, found.code, found.reason) == (
        "error",
        "ZeroDivisionError",
        "ZeroDivisionError: at import",
    )


async def test_a_session_that_has_not_begun_only_needs_its_program():
    """A child that waits to be started has no journal yet."""
    record = await recorded()
    record.deliveries = []

    assert check_session(record, host(changed(_other))).verdict == "ok"


@everhold.program
async def failing(ctx: everhold.Context) -> str:
    word = await ctx.llm("A word?")
    if BROKEN:
        raise ValueError("not yet")
    return str(await ctx.llm(f"More on {word}?"))


BROKEN: list[int] = []


async def test_a_retried_session_is_replayed_as_it_stands():
    """The failure that a retry replaced is not asked for again."""
    BROKEN.append(1)
    async with Runtime(MemoryStore(), clock=ManualClock(), recover=False) as runtime:
        status = await runtime.start(failing())
        await runtime.answer(status.queries[0], "tea")
        BROKEN.clear()
        await runtime.retry(status.session_id)
        record = await runtime.store.load(status.session_id)

    assert check_session(record, host(failing)).verdict == "ok"
    assert [played.given.n for played in replay_session(record, host(failing))] == [0, 1]


async def test_replay_stops_where_its_reader_stops():
    """It goes delivery by delivery, and lets go of the program when it is closed."""
    record = await recorded()
    tape = replay_session(record, host(first))
    played = next(tape)
    tape.close()

    assert [query.prompt for query in played.reply.asked] == ["Draft about tea"]
    assert EFFECTS == ["done"]


# ---- redacted


@everhold.program
async def deciding(ctx: everhold.Context) -> str:
    if "yes" in await ctx.llm("Shall I?"):
        return str(await ctx.llm("How?"))
    return str(await ctx.approval("Really not?"))


def hidden(record):
    """A record as a redacted file has it."""
    asked = {query.q: query for one in record.deliveries for query in one.asked}
    record.deliveries = [
        redact.redact_delivery(one, asked, redact.REDACTABLE_PARTS) for one in record.deliveries
    ]
    return record


async def test_redacted_words_are_compared_by_their_length():
    """What was only hidden is not reworded; another length is."""
    assert (
        check_session(
            hidden(await recorded()), host(changed(_same)), redacted=redact.REDACTABLE_PARTS
        ).verdict
        == "ok"
    )

    found = check_session(
        hidden(await recorded()), host(changed(_reworded)), redacted=redact.REDACTABLE_PARTS
    )
    assert [one.query_id for one in found.reworded] == ["q-0", "q-2"]


async def test_a_program_that_decides_by_hidden_words_seems_to_diverge():
    """So a report on a redacted file says what was hidden."""
    record = await recorded(deciding(), ["yes, please"])

    assert check_session(record, host(deciding)).verdict == "ok"
    assert (
        check_session(hidden(record), host(deciding), redacted=redact.REDACTABLE_PARTS).verdict
        == "diverged"
    )


# ---- the report


def test_a_report_is_plain_json_and_counts():
    """It can be written by one process and read by another."""
    ok = SessionCheck("s-1", "shop:refund", 1, "paused", "ok", 3)
    lost = SessionCheck("s-2", "shop:refund", 1, "running", "missing", code="unknown_program")
    report = CheckReport("app.db", [ok, lost, ok], [], "3.11", 7)

    assert msgspec.json.decode(msgspec.json.encode(report), type=CheckReport) == report
    assert (report.ok, report.counts) == (False, {"ok": 2, "missing": 1})
    assert msgspec.json.decode(msgspec.json.encode(ok)) == {
        "session_id": "s-1",
        "program": "shop:refund",
        "version": 1,
        "state": "paused",
        "verdict": "ok",
        "steps": 3,
    }


async def test_usage_and_budgets_are_counted_as_they_were():
    """A program that spends by its budget sees the same budget again."""
    async with Runtime(MemoryStore(), clock=ManualClock(), recover=False) as runtime:
        status = await runtime.start(thrifty(), budget={"max_tokens": 1000})
        await runtime.answer(status.queries[0], "short", usage=Usage(70, 7))
        record = await runtime.store.load(status.session_id)

    assert check_session(record, host(thrifty)).verdict == "ok"


@everhold.program
async def thrifty(ctx: everhold.Context) -> str:
    await ctx.llm("One")
    left = ctx.budget_remaining()
    return str(await ctx.llm(f"Two, with {left} left"))
