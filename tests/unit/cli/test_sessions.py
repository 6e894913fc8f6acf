"""Looking at sessions and looking after them from the command line."""

import json
import shutil
import stat
import time
from pathlib import Path

import click
import pytest

from everhold.cli.output import format_ago, format_headline, format_line, strip_controls
from everhold.core.session import SessionId
from everhold.core.status import Running
from tests.failures import collect_failures

from .conftest import Cli


def two(cli: Cli) -> None:
    cli("run", "shop.py:refund", "order=7", "--key", "seven", "--answer-with", "cat")
    cli("run", "shop.py:waits", "--key", "later")


@pytest.mark.process
def test_every_listing_names_the_database(cli: Cli, tmp_path: Path) -> None:
    two(cli)
    for words in (
        ["sessions"],
        ["inbox"],
        ["usage"],
        ["show", "seven"],
        ["explain", "seven"],
        ["db", "verify"],
        ["doctor"],
    ):
        assert f"database: sqlite:///{tmp_path}/shop.db" in cli(*words).out, words
        assert cli(*words, "--json").json["database"].endswith("shop.db"), words


@pytest.mark.process
def test_a_copy_without_its_log_is_warned_of_and_no_failure(cli: Cli) -> None:
    """`db verify` and `doctor` print the warning, and exit with 0; JSON has it among the
    problems.
    """
    two(cli)
    shutil.copy("shop.db", "other.db")
    said = cli("db", "verify", "-d", "other.db")
    assert (said.code, "no problems" in said.out) == (0, True)
    assert "warning: other.db was copied without other.db-wal" in said.out
    (found,) = cli("db", "verify", "-d", "other.db", "--json").json["problems"]
    assert (found["code"], found["warning"]) == ("copied_without_log", True)
    said = cli("doctor", "-d", "other.db")
    assert (said.code, "; warning: other.db was copied" in said.out) == (0, True)
    assert cli("db", "verify", "--json").json["problems"] == []


@pytest.mark.process
def test_sessions_are_listed_newest_first(cli: Cli) -> None:
    two(cli)
    lines = cli("sessions").out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["later", "seven"]


@pytest.mark.process
def test_sessions_are_filtered_and_paged(cli: Cli) -> None:
    two(cli)
    cli("cancel", "later")
    paused = cli("sessions", "--state", "paused", "--json").json["sessions"]
    assert [one["key"] for one in paused] == ["seven"]
    assert [
        one["key"] for one in cli("sessions", "--after", "later", "--json").json["sessions"]
    ] == ["seven"]
    assert cli("sessions", "--older-than", "1h").out.startswith("no sessions")


@pytest.mark.process
def test_the_inbox_lists_what_is_open_with_its_age(cli: Cli) -> None:
    two(cli)
    assert "seven    q-1  approval" in cli("inbox").out
    assert [one["kind"] for one in cli("inbox", "--json").json["queries"]] == ["approval"]
    assert [one["name"] for one in cli("inbox", "--kind", "signal", "--json").json["queries"]] == [
        "go"
    ]
    assert cli("inbox", "--kind", "llm").out.startswith("no open questions")


@pytest.mark.parametrize("name", ["seven", "@last", "id", "prefix"])
def test_a_session_is_meant_by_key_last_id_or_a_prefix(cli: Cli, name: str) -> None:
    session_id = cli("run", "shop.py:refund", "order=7", "--key", "seven").json["session_id"]
    meant = {"id": session_id, "prefix": session_id[:20]}.get(name, name)
    assert cli("show", meant, "--json").json["session"]["session_id"] == session_id


@pytest.mark.process
def test_a_prefix_of_several_is_refused(cli: Cli) -> None:
    two(cli)
    said = cli("show", "s-")
    assert said.code == 2
    assert "several sessions begin with it" in said.err


@pytest.mark.process
def test_show_lists_steps_with_who_answered(cli: Cli) -> None:
    two(cli)
    cli("answer", "seven", "--as", "ana", "--yes")
    shown = cli("show", "seven").out
    assert "2     q-1       approval" in shown
    assert "true (by ana)" in shown
    assert "Why did 7 come back?" in cli("show", "seven", "--full").out


@pytest.mark.process
def test_show_of_a_failed_session_has_the_frames_the_step_and_the_last_question(cli: Cli) -> None:
    cli("run", "shop.py:fails", "--key", "f", "--answer-with", "cat")
    shown = cli("show", "f").out
    assert "at step 1, after q-0: Anything?" in shown
    assert "in fails" in shown


@pytest.mark.process
def test_explain_says_who_is_asked_what_since_when(cli: Cli) -> None:
    two(cli)
    told = cli("explain", "seven").out
    assert "q-1 asks a person for an approval" in told
    assert "everhold answer seven --query q-1" in told
    assert "waits for the signal 'go'" in cli("explain", "later").out
    cli("signal", "later", "og")
    assert "The signal 'og' is stored until the program receives it." in cli("explain", "later").out


@pytest.mark.process
def test_explain_says_that_the_program_is_gone_or_asks_otherwise(cli: Cli) -> None:
    two(cli)
    shop = Path("shop.py").read_text()
    Path("shop.py").unlink()
    import sys

    for name in [name for name in sys.modules if name.startswith("shop_")]:
        del sys.modules[name]
    from everhold.ports.program import REGISTRY

    for key in [key for key in REGISTRY if "shop.py:" in key[0]]:
        del REGISTRY[key]
    assert "It cannot resume here: no program" in cli("explain", "seven").out
    Path("shop.py").write_text(
        shop.replace('await ctx.approval(f"Refund', 'await ctx.input(f"Refund')
    )
    assert "It cannot resume here: step 1: the program asks" in cli("explain", "seven").out


@pytest.mark.process
def test_explain_of_an_end_says_what_one_can_still_do(cli: Cli) -> None:
    cli("run", "shop.py:fails", "--key", "f", "--answer-with", "cat")
    assert "everhold retry f" in cli("explain", "f").out
    cli("run", "shop.py:naps", "--key", "n", "--wait", "0")
    said = cli("explain", "n").out
    assert "It waits for a timer, for" in said
    assert "It is due at" in said


@pytest.mark.process
def test_watch_follows_to_the_end(cli: Cli) -> None:
    two(cli)
    cli("answer", "seven", "--as", "ana", "--no")
    said = cli("watch", "seven")
    assert said.code == 0
    assert "q-0 llm: Why did 7 come back?" in said.out
    assert "completed · seven" in said.out


def test_info_says_which_database_and_why(cli: Cli) -> None:
    Path("everhold.toml").write_text('programs = ["shop.py"]\n')
    said = cli("info")
    assert "from EVERHOLD_DATABASE_URL; the first session creates it" in said.out
    assert "refund version 1" in said.out


@pytest.mark.process
def test_doctor_finds_what_is_wrong(cli: Cli) -> None:
    two(cli)
    assert cli("doctor").code == 0
    Path("shop.db").chmod(0o644)
    Path("everhold.toml").write_text('programs = ["gone.py"]\nanswer_with = "no-such-command"\n')
    said = cli("doctor")
    assert said.code == 1
    assert "hint: chmod 600" in said.out
    assert "there is no file" in said.out
    assert "no-such-command" in said.out


def test_doctor_says_when_a_database_cannot_be_made(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said = cli("doctor", "-d", "file/there.db")
    assert said.code == 1
    assert f"cannot be opened: no file can be created in {tmp_path / 'file'}" in said.out
    assert (
        "✓ database: it does not exist yet; the first session creates it"
        in cli("doctor", "-d", "new/there.db").out
    )


def test_doctor_names_variables_that_do_nothing(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALC_CARD_SINKS", "here")
    said = cli("doctor")
    assert (said.code, "variables: ALC_CARD_SINKS: 'here' is not a sink" in said.out) == (0, True)


@pytest.mark.process
def test_the_database_is_private_from_its_first_moment(cli: Cli) -> None:
    two(cli)
    assert stat.S_IMODE(Path("shop.db").stat().st_mode) == 0o600


@pytest.mark.process
def test_a_cancel_without_a_reason_is_told_without_one(cli: Cli) -> None:
    two(cli)
    cli("cancel", "seven", "--as", "maria")
    cli("cancel", "later", "--reason", "too late", "--as", "maria")
    assert "  cancelled (by maria)\n" in cli("show", "seven").out
    assert "  cancelled: too late (by maria)\n" in cli("show", "later").out


@pytest.mark.process
def test_usage_of_nothing_is_no_table(cli: Cli) -> None:
    two(cli)
    assert cli("usage", "--newer-than", "0s").out.startswith("no sessions\n")


# ---- keeping


@pytest.mark.process
def test_delete_forgets_a_session_that_has_ended_and_asks_before(cli: Cli) -> None:
    two(cli)
    cli("cancel", "seven")
    assert "[not_allowed]" in cli("delete", "seven").err
    assert cli("delete", "seven", typed="n\n").code == 130
    assert cli("delete", "seven", "--yes").out == "deleted seven\n"
    assert "[unknown_session]" in cli("show", "seven").err


@pytest.mark.process
def test_gc_deletes_only_what_ended_long_ago(cli: Cli) -> None:
    two(cli)
    cli("cancel", "seven")
    assert cli("db", "gc", "--older-than", "1d", "--yes").out.startswith("0 sessions deleted")
    assert "would be deleted" in cli("db", "gc", "--older-than", "0s", "--dry-run").out
    assert cli("db", "gc", "--older-than", "0s", "--yes", "--json").json["deleted"]
    assert [one["key"] for one in cli("sessions", "--json").json["sessions"]] == ["later"]


@pytest.mark.process
def test_a_copy_is_whole_private_and_opens(cli: Cli) -> None:
    two(cli)
    assert cli("db", "copy", "copy.db").code == 0
    assert stat.S_IMODE(Path("copy.db").stat().st_mode) == 0o600
    assert len(cli("sessions", "-d", "copy.db", "--json").json["sessions"]) == 2
    assert "already exists" in cli("db", "copy", "copy.db").err


def test_bare_db_says_where_the_database_is(cli: Cli, tmp_path: Path) -> None:
    assert cli("db").out == f"{tmp_path}/shop.db\n"


# ---- paper


def test_text_of_models_cannot_steer_the_terminal() -> None:
    assert strip_controls("a\x1b[31mred\x07\nb\tc") == "a�[31mred�\nb\tc"


@pytest.mark.process
@pytest.mark.parametrize("columns", [40, 70, 80])
def test_a_table_is_never_wider_than_the_terminal(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, columns: int
) -> None:
    two(cli)
    cli("run", "shop.py:refund", f"order={'x' * 300}", "--title", "long " * 30)
    monkeypatch.setenv("COLUMNS", str(columns))
    for words in (["inbox"], ["sessions"], ["usage"], ["show", "@last"]):
        rows = [
            row
            for row in cli(*words).out.splitlines()
            if not row.startswith(("database", "arguments", "title", "  q-", "program", "waiting"))
        ]
        table = rows[rows.index("") :] if words[0] == "show" else rows
        assert max(map(len, table)) <= columns, words


def test_in_a_narrow_terminal_each_row_has_lines_of_its_own(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    cli("run", "shop.py:refund", "order=7", "--key", "seven")
    monkeypatch.setenv("COLUMNS", "34")
    assert cli("inbox").out.splitlines()[:5] == [
        "session seven",
        "  id        q-0",
        "  kind      llm",
        "  asked     just now",
        "  question  Why did 7 come back?",
    ]


def test_ages_are_in_the_largest_unit_that_fits() -> None:
    assert [format_ago(0, now) for now in (0, 1, 61, 7200, 200_000)] == [
        "just now",
        "1 second ago",
        "1 minute ago",
        "2 hours ago",
        "2 days ago",
    ]
    assert format_line("a\n  b" * 3, 6) == "a ba …"


def test_a_timer_that_no_calendar_can_show_is_shown_all_the_same(cli: Cli) -> None:
    """A program may sleep for longer than there are years."""
    Path("far.py").write_text(
        "import everhold\n\n@everhold.program\nasync def far(ctx):\n    await ctx.sleep(1e300)\n"
    )
    said = cli("run", "far.py:far", "--key", "far", "--wait", "0.1")
    assert "9999" in said.out + said.err
    assert "9999" in cli("explain", "far").out


LONG = """
import everhold

def rate(number: int) -> str:
    if number % 100 == 7:
        raise ValueError(f"no document {number}")
    return "good"

@everhold.program
async def rates(ctx: everhold.Context) -> str:
    bad = 0
    for number in range(300):
        await ctx.llm(f"Rate {number}")
        try:
            await ctx.call(rate, number)
        except Exception:
            bad += 1
    return f"{bad} bad"
"""


@pytest.fixture
def long(cli: Cli, tmp_path: Path) -> Cli:
    """A session `long` of 600 steps, three of them with an error."""
    (tmp_path / "long.py").write_text(LONG)
    (tmp_path / "good.json").write_text('{"Rate*": "good"}')
    ran = cli("run", "long.py:rates", "--key", "long", "--answers", "good.json")
    assert ran.out == "3 bad\n", ran
    return cli


def test_a_long_session_begins_with_a_summary_and_is_cut_by_options(
    long: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps are chosen by their number, their errors and their age, in text and in JSON."""
    lines = long("show", "long").out.splitlines()
    summary = "\n".join(lines[:10])
    assert "answers      300 llm, 300 call · 3 with an error" in summary
    assert "completed · long" in summary and "3 bad" in summary
    assert len(lines) > 600

    tail = long("show", "long", "--tail", "4").out
    assert "Rate 299" in tail and "Rate 298" in tail and "Rate 297" not in tail
    assert "4 of its 601 steps" in tail
    failed = long("show", "long", "--failed").out
    assert [f"no document {number}" in failed for number in (7, 107, 207, 8)] == [
        *(True, True, True),
        False,
    ]
    assert "Rate" not in failed
    last = long("show", "long", "--failed", "--tail", "1", "--json").json["steps"]
    assert [one["answers"][0]["error"]["message"] for one in last] == ["no document 207"]
    assert len(long("show", "long", "--since", "1h", "--json").json["steps"]) == 601
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now + 7200)
    assert "none of its 601 steps" in long("show", "long", "--since", "1h").out
    assert long("show", "long", "--tail", "0").code == 2


def test_a_long_session_is_paged_at_a_terminal_only(
    long: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    paged: list[str] = []
    monkeypatch.setattr(click, "echo_via_pager", paged.append)
    monkeypatch.setenv("LINES", "30")
    assert "Rate 299" in long("show", "long").out and paged == []
    assert long("show", "long", typed="").out == ""
    assert len(paged) == 1 and "Rate 299" in paged[0]
    assert "Rate 299" in long("show", "long", "--tail", "3", typed="").out and len(paged) == 1


HOOKED = """
import everhold
from everhold.plugins import Approval

@everhold.tool
def refund(order: str) -> str:
    "Give money back."
    return f"receipt for {order}"

desk = everhold.Agent(instructions="Help.", tools=[refund], plugins=[Approval("refund")])
"""


def test_calls_of_hooks_are_shown_only_in_full(cli: Cli, tmp_path: Path) -> None:
    """A tool that needs an approval is no error."""
    (tmp_path / "desk.py").write_text(HOOKED)
    pay = {"tool_calls": [{"name": "refund", "input": {"order": "7"}}]}
    (tmp_path / "pay.json").write_text(json.dumps([pay, "Done."]))
    cli("chat", "desk.py:desk", "--session", "c", "--answers", "pay.json", piped="Refund 7.\n")
    shown = cli("show", "c").out
    assert "hook:" not in shown and "1 call of hooks not shown; to see them: --full" in shown
    assert "(needs an approval)" in shown and "error" not in shown
    assert "hook:before_tool_call" in cli("show", "c", "--full").out
    assert "none of its 5 steps" in cli("show", "c", "--failed").out


FAILS = """
import everhold

def pay() -> str:
    raise ConnectionError("the bank is closed")

@everhold.program
async def buys(ctx: everhold.Context) -> str:
    return await ctx.call(pay, retry=everhold.Retry(4, backoff=3600))
"""


@pytest.mark.process
def test_a_failed_attempt_that_is_followed_by_another_is_shown(cli: Cli) -> None:
    """`run` says until when it waits, `show` and `explain` why, and a worker has nothing to do."""
    Path("buying.py").write_text(FAILS)
    said = cli("run", "buying.py:buys", "--key", "k", "--wait", "0")
    while "attempt 2 of 4" not in said.err:
        said = cli("run", "-c", "k", "--wait", "0")
    assert said.code == 10
    assert "waiting · k · for attempt 2 of 4 of call buying:pay · until " in said.err
    failed = ": ConnectionError: the bank is closed (buying.py, line 5, in pay)"
    with collect_failures() as row:
        for name in ("show", "explain"):
            with row(name):
                out = cli(name, "k").out
                assert "attempt 1 of 4 failed" in out
                assert failed in out
        with row("worker --once"):
            assert cli("worker", "--once").code == 0
        with row("inbox"):
            assert "no open questions" in cli("inbox").out


MANY = """
import everhold

@everhold.program
async def many(ctx: everhold.Context, n: int) -> int:
    return len(await ctx.llm_batch([f"Rate {i}" for i in range(n)]))
"""


def test_a_line_about_a_session_names_each_thing_that_it_waits_for_once() -> None:
    """A batch that runs may wait for thousands of answers."""
    waits = Running(SessionId("s-1"), ("llm",) * 419 + ("call shop:pay",))
    assert format_headline(waits, "post") == "running · post · 419 × llm, call shop:pay"
    calls = Running(SessionId("s-1"), (*(f"call f{n}" for n in range(20)), "llm", "call f0"))
    assert format_headline(calls, "post") == (
        "running · post · 2 × call f0, call f1, call f2, call f3, call f4, and 16 more"
    )


def test_after_a_command_a_few_of_many_questions_are_shown(cli: Cli) -> None:
    """At a terminal; `show` lists all of them."""
    Path("many.py").write_text(MANY)
    left = cli("run", "many.py:many", "n=40", "--key", "m", typed=":quit\n")
    assert "40 questions open" in left.err
    after = left.out[left.out.index("  q-0 llm: Rate 0") :]
    assert after.splitlines() == [*(f"  q-{n} llm: Rate {n}" for n in range(5)), "  and 35 more"]
    assert all(f"q-{n} llm: Rate {n} " in cli("show", "m").out for n in range(40))
