"""The journal as a tape, and sessions that travel."""

import json
import sys
from pathlib import Path

import pytest

from .conftest import Cli, forget_programs

pytestmark = pytest.mark.process


def refund(cli: Cli) -> None:
    cli("run", "shop.py:refund", "order=7", "--key", "seven", "--answer-with", "cat")


def test_replay_asks_what_was_asked_and_calls_nothing(cli: Cli) -> None:
    refund(cli)
    cli("answer", "seven", "--as", "ana", "--yes")
    said = cli("replay", "seven")
    assert "seven replays as recorded: 4 steps, 0 calls" in said.out
    assert cli("replay", "seven", "--at", "1", "--json").json["steps"] == 2


def test_replay_shows_what_is_worded_otherwise_now(cli: Cli) -> None:
    refund(cli)
    Path("shop.py").write_text(
        Path("shop.py").read_text().replace("Why did", "For what reason did")
    )
    forget_programs()
    said = cli("replay", "seven")
    assert "q-0 llm: For what reason did 7 come back?" in said.out
    assert "q-0 was recorded as: Why did 7 come back?" in said.out


def test_replay_of_another_program_says_where_it_parts(cli: Cli) -> None:
    refund(cli)
    Path("shop.py").write_text(Path("shop.py").read_text().replace("ctx.approval", "ctx.input"))
    forget_programs()
    said = cli("replay", "seven")
    assert said.code == 5
    assert "[diverged]" in said.err
    assert ": everhold fork seven --at 0\n" in said.err


def test_the_debugger_stops_in_the_program_at_the_step(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    refund(cli)
    said = cli("replay", "seven", "--at", "1", "--pdb", typed="n\np reason\nq\n")
    assert "-> reason = await ctx.llm(" in said.out
    assert "'Why did 7 come back?'" in said.out
    assert said.code == 0


def test_two_sessions_differ_first_where_they_part(cli: Cli) -> None:
    refund(cli)
    cli("fork", "seven", "--at", "1", "--answer", "too large", "--key", "other")
    said = cli("diff", "seven", "other")
    assert said.code == 1
    assert said.out.splitlines()[:3] == [
        "step 1 · answer to q-0",
        "  seven  Why did 7 come back?",
        "  other  too large",
    ]
    assert [one["what"] for one in cli("diff", "seven", "other", "--json").json["differences"]] == [
        "answer to q-0",
        "question q-1",
    ]


def test_a_session_does_not_differ_from_itself(cli: Cli) -> None:
    refund(cli)
    assert cli("diff", "seven", "@last").code == 0


def test_check_exits_with_5_when_a_session_would_not_go_on(cli: Cli) -> None:
    refund(cli)
    assert "1 session checked: 1 ok" in cli("check").out
    Path("shop.py").write_text(Path("shop.py").read_text().replace("ctx.approval", "ctx.input"))
    said = cli("check")
    assert said.code == 5
    assert "diverged · seven · " in said.out
    assert cli("check", "--json").json["counts"] == {"diverged": 1}


def test_a_session_goes_on_in_another_database(cli: Cli) -> None:
    refund(cli)
    assert cli("export", "seven", "-o", "out.jsonl").out.startswith("wrote 1 session to out.jsonl")
    assert cli("import", "out.jsonl", "-d", "there.db").code == 0
    assert cli("answer", "seven", "--as", "ana", "--yes", "-d", "there.db").out == "receipt for 7\n"
    assert len(cli("inbox", "--json").json["queries"]) == 1


def test_import_skips_what_is_here_when_told_so(cli: Cli) -> None:
    refund(cli)
    cli("export", "seven", "-o", "out.jsonl")
    assert "imported 0 sessions; here already: 1" in cli("import", "out.jsonl", "--skip").out


def test_an_export_without_texts_can_be_checked_elsewhere(cli: Cli) -> None:
    refund(cli)
    cli("export", "--state", "paused", "--redact", "-o", "out.jsonl")
    assert "come back" not in Path("out.jsonl").read_text()
    Path("shop.db").unlink()
    assert "1 session checked: 1 ok" in cli("check", "--file", "out.jsonl").out


def test_a_redacted_export_has_no_arguments_unless_they_are_kept(cli: Cli) -> None:
    """It says how to keep them."""
    cli("run", "shop.py:refund", "order=Bob", "--key", "bob")
    said = cli("export", "bob", "--redact", "-o", "out.jsonl").out
    assert "Bob" not in Path("out.jsonl").read_text()
    assert "the arguments of programs are left out, too; to keep them: --keep-arguments" in said
    told = cli("export", "bob", "--redact", "--keep-arguments", "-o", "out.jsonl", "--json").json
    assert told["redacted"] == ["prompts", "answers", "notes"]
    assert Path("out.jsonl").read_text().count("Bob") == 1
    for wrong in ([], ["--redact-part", "notes"]):
        assert (
            "needs --redact"
            in cli("export", "bob", "--keep-arguments", *wrong, "-o", "x.jsonl").err
        )


def test_a_check_of_a_redacted_file_that_fails_says_that_it_is_redacted(cli: Cli) -> None:
    refund(cli)
    cli("export", "seven", "--redact", "-o", "out.jsonl")
    Path("shop.py").write_text(Path("shop.py").read_text().replace("ctx.llm(", "ctx.input("))
    found = cli("check", "--file", "out.jsonl")
    assert found.code == 5 and "hint: The file is redacted" in found.out
    assert "everhold export --redact --keep-arguments" in found.out


def test_the_demo_needs_only_what_the_base_install_brings() -> None:
    import subprocess

    code = (
        "import json, sys; import everhold.cli.app, everhold.cli.demo, everhold.blocking;"
        "from everhold.stores import sqlite;"
        "print(json.dumps(sorted({m.partition('.')[0] for m in sys.modules} -"
        " sys.stdlib_module_names)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = {
        name for name in json.loads(done.stdout) if not name.startswith(("_", "sitecustomize"))
    }
    assert names <= {"click", "everhold", "msgspec", "platformdirs", "rich", "typing_extensions"}


@pytest.mark.process
def test_check_names_the_session_and_a_command_for_its_database(cli: Cli) -> None:
    """By its key; what it proposes works as it stands."""
    cli("run", "shop.py:refund", "order=7", "--key", "seven", "-d", "b.db", piped="")
    cli("answer", "seven", "It broke.", "-d", "b.db")
    shop = Path("shop.py").read_text()
    Path("shop.py").write_text(shop.replace("await ctx.approval(", "not await ctx.llm("))
    said = cli("check", "-d", "b.db")
    assert said.code == 5
    assert "diverged · seven · " in said.out
    assert said.out.splitlines()[-3].endswith(" everhold fork seven --at 0 -d b.db")
