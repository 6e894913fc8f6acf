"""`export --as-test`: a session becomes a test that passes, fails when the program asks otherwise,
and is accepted.
"""

from pathlib import Path

import pytest

from everhold.cli.app import main

pytest_plugins = ["pytester"]

QUIZ = """
import everhold

@everhold.program
async def quiz(ctx: everhold.Context) -> str:
    answer = await ctx.llm("How old is the sea?")
    return answer.upper()
"""
RUN = ("-p", "everhold.testing.plugin", "-p", "no:cacheprovider", "tests")


@pytest.fixture
def exported(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the program, and a test made of one of its sessions."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    folder = pytester.path
    (folder / "quiz.py").write_text(QUIZ)
    (folder / "answers.json").write_text('["very"]')
    words = ["--key", "sea", "-d", str(folder / "q.db")]
    assert (
        main(["run", f"{folder}/quiz.py:quiz", *words, "--answers", str(folder / "answers.json")])
        == 0
    )
    assert (
        main(["export", "sea", "--as-test", str(folder / "tests"), "-d", str(folder / "q.db")]) == 0
    )
    return folder


def test_it_passes_as_it_is_also_where_it_was_moved_to(
    pytester: pytest.Pytester, exported: Path
) -> None:
    """The JSON names the program from its own folder, and says nothing of this machine."""
    text = (exported / "tests" / "test_quiz_sea.json").read_text()
    assert '"program": "../quiz.py:quiz"' in text
    assert str(exported) not in text
    pytester.runpytest_subprocess(*RUN).assert_outcomes(passed=1)


def test_it_fails_with_a_diff_and_is_accepted(pytester: pytest.Pytester, exported: Path) -> None:
    """Also a program that asks more than it did: what it asks now is written down, and from then on
    it passes.
    """
    changed = QUIZ.replace("How old", "How deep").replace(
        "    return", '    await ctx.approval("Sure?")\n    return'
    )
    (exported / "quiz.py").write_text(changed)
    failed = pytester.runpytest_subprocess(*RUN)
    failed.assert_outcomes(failed=1)
    failed.stdout.fnmatch_lines(
        [
            "*-*prompt: How old is the sea?",
            "*+*prompt: How deep is the sea?",
            "*+*prompt: Sure?",
            "*--everhold-update*",
        ]
    )
    # the test's own line is shown, not ours
    failed.stdout.no_fnmatch_line("*raise AssertionError*")
    accepted = pytester.runpytest_subprocess(*RUN, "--everhold-update")
    accepted.assert_outcomes(passed=1)
    accepted.stdout.fnmatch_lines(["everhold: accepted the changes in *test_quiz_sea.json"])
    pytester.runpytest_subprocess(*RUN).assert_outcomes(passed=1)
