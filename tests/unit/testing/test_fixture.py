"""The fixture `everhold`: tests of programs that need no model, no file and no waiting."""

import random
import sys
import time
from collections.abc import Iterator

import pytest

import everhold as eh
from everhold.programs.python import determinism_guard
from everhold.testing.fixture import Kit

pytest_plugins = ["pytester"]


@pytest.fixture
def kit() -> Iterator[Kit]:
    with Kit() as made:
        yield made
        made.checks = False


@eh.program
async def refund(ctx: eh.Context, order: str) -> str:
    reason = await ctx.llm(f"Why did {order} come back?")
    return f"refunded: {reason}" if await ctx.approval(f"Refund {order}?") else "declined"


@eh.program
async def patient(ctx: eh.Context) -> list[str]:
    days = []
    for _ in range(3):
        await ctx.sleep(86400)
        days.append(ctx.now().strftime("%d"))
    return days


@eh.program
async def polite(ctx: eh.Context) -> bool:
    return await ctx.approval("Sure?", timeout=3600, default=False)


@eh.program
async def hears(ctx: eh.Context) -> str:
    return str(await ctx.receive("go"))


@eh.program
async def dice(ctx: eh.Context) -> str:
    return await ctx.llm(f"A number near {random.random()}?")


@eh.program
async def stopwatch(ctx: eh.Context) -> float:
    await ctx.llm("Ready?")
    return time.perf_counter()


def test_answers_are_given_by_pattern_and_approvals_by_one_call(kit: Kit) -> None:
    kit.answers({"Why*": "it broke"})
    kit.start(refund(order="7"))
    assert [query.prompt for query in kit.open] == ["Refund 7?"]
    assert kit.approve().result == "refunded: it broke"
    assert kit.asked == ["Why did 7 come back?"]


def test_without_answers_a_question_stays_open(kit: Kit) -> None:
    with pytest.raises(eh.Waiting):
        kit.run(refund(order="7"))
    assert kit.answer("by hand").queries[0].prompt == "Refund 7?"


def test_skipping_three_days_fires_each_timer_at_its_moment(kit: Kit) -> None:
    kit.start(patient())
    status = kit.skip(days=3, seconds=1)
    assert len(set(status.result)) == 3


def test_skipping_fires_expiries(kit: Kit) -> None:
    kit.start(polite())
    assert kit.skip(minutes=59).state == "paused"
    assert kit.skip(minutes=2).result is False


def test_a_signal_is_one_call(kit: Kit) -> None:
    kit.start(hears())
    assert kit.signal("go", "now").result == "now"


def test_a_sound_program_is_the_same_when_it_is_replayed(kit: Kit) -> None:
    kit.answers(["it broke"])
    kit.start(refund(order="7"))
    kit.check_replays()


@pytest.mark.parametrize(
    ("call", "step"),
    [
        (dice(), "step 0 (q-0, llm 'A number near"),
        (dice(), "it draws random numbers at test_fixture.py:"),
        (dice(), "q-0 has another prompt: recorded 'A number near"),
        (stopwatch(), "step 1 (after the answer to q-0): it reads the clock at test_fixture.py:"),
        (stopwatch(), "(time.perf_counter); use ctx.now()"),
        (stopwatch(), "step 1 (after the answer to q-0): it returned "),
    ],
)
def test_dice_and_clocks_in_a_program_are_found_with_their_step(
    kit: Kit, call: eh.Call[object], step: str
) -> None:
    """The report names the step, the line, and what was recorded and asked."""
    kit.answers(["7"])
    kit.run(call)
    with pytest.raises(AssertionError, match="changes on replay") as failed:
        kit.check_replays()
    assert step in str(failed.value)


TEST = """
import everhold as eh
from datetime import date

@eh.program
async def careless(ctx: eh.Context) -> str:
    return open(__file__).read()[:1] + await ctx.llm("?")

@eh.program
async def dated(ctx: eh.Context) -> str:
    return await ctx.llm(f"Today is {date.today()}.")

@eh.program
async def fine(ctx: eh.Context) -> str:
    return await ctx.llm("?")

def test_io(everhold):
    everhold.run(careless(), answers=["x"])

def test_dated(everhold):
    assert everhold.run(dated(), answers=["x"]) == "x"

async def test_fine(everhold):
    assert everhold.run(fine(), answers=["x"]) == "x"

def test_wrong(everhold):
    assert everhold.run(dated(), answers=["x"]) == "y"
"""


@pytest.fixture
def bare(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """Runs pytest without the plugins that happen to be here."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    return pytester


@pytest.mark.process
def test_the_fixture_fails_what_does_not_replay(bare: pytest.Pytester) -> None:
    """The test itself fails, with the step and the line; one that failed already is not told
    twice.
    """
    bare.makepyfile(TEST)
    done = bare.runpytest_subprocess("-p", "everhold.testing.plugin", "-p", "no:cacheprovider")
    done.assert_outcomes(passed=1, failed=3)
    done.stdout.fnmatch_lines(
        [
            "*open*cannot be used inside a program*",
            "*dated changes on replay:",
            "*step 0 (q-0, llm 'Today is*): it reads the clock at *:10 (date.today); use ctx.now()",
        ]
    )


SETS = """
import everhold as eh

@eh.program
async def jumbled(ctx: eh.Context) -> str:
    return await ctx.llm(f"Which of {set('abcdefgh')}?")

def test_jumbled(everhold):
    assert everhold.run(jumbled(), answers=["x"]) == "x"
"""


@pytest.mark.process
def test_what_depends_on_the_hash_seed_is_found_in_a_fresh_process(bare: pytest.Pytester) -> None:
    bare.makepyfile(test_sets=SETS)
    failed = bare.runpytest_subprocess(
        "-p", "everhold.testing.plugin", "-p", "no:cacheprovider", "--everhold-fresh"
    )
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(
        [
            "*jumbled changes in a process with another hash seed:",
            "*step 0, q-0: recorded *Which of {*",
        ]
    )


@pytest.mark.process
def test_the_plugin_imports_nothing_of_everhold(pytester: pytest.Pytester) -> None:
    """So that every run of pytest stays quick, and coverage sees modules being imported."""
    code = (
        "import sys; import everhold.testing.plugin; print([name for name in sys.modules if"
        " 'everhold' in name])"
    )
    done = pytester.run(sys.executable, "-c", code)
    done.stdout.fnmatch_lines(
        ["['everhold', 'everhold.lazy_exports', 'everhold.testing', 'everhold.testing.plugin']"]
    )


def test_the_watch_over_io_is_as_before_after_a_test() -> None:
    assert determinism_guard._settings.mode in determinism_guard.MODES
