"""`everhold eval`: run, list, show, compare."""

import json
from pathlib import Path

import pytest

SCENARIO = """
name = "mood"
graders = ["contains"]
[[cases]]
id = "sun"
input = "sun"
expected = "happy"
[[cases]]
id = "rain"
input = "rain"
expected = "sad"
"""
PROGRAM = """
import everhold

@everhold.program
async def mood(ctx: everhold.Context, weather: str, loud: bool = False) -> str:
    return await ctx.llm(f"Mood in {weather}?" + ("!" if loud else ""))
"""
RUN = ("eval", "run", "mood.toml", "mood.py:mood")


@pytest.fixture
def mood(cli, tmp_path: Path):
    (tmp_path / "mood.toml").write_text(SCENARIO)
    (tmp_path / "mood.py").write_text(PROGRAM)
    (tmp_path / "a.json").write_text(json.dumps({"*sun*": "happy", "*rain?!": "sad", "*": "wet"}))
    return cli


def test_run_and_list(mood):
    """Failed cases are listed with the reason, then the summary; the list has the cost."""
    said = mood(*RUN, "--answers", "a.json", "--key", "one")
    assert said.code == 0
    assert "rain    0.00   expected a text with 'sad', got 'wet'" in said.out
    assert "1 of 2 cases passed (50%)" in said.out and "2 model calls" in said.out
    listed = mood("eval").out
    assert "one   mood      mood     completed  1 of 2  0.50" in listed
    shown = mood("eval", "list", "--json").json["evals"][0]
    assert (shown["passed"], shown["done"], shown["total"], shown["key"]) == (1, 2, 2, "one")


def test_show(mood):
    """All cases, or the failed ones; as JSON it is the whole report."""
    mood(*RUN, "--answers", "a.json", "--key", "one")
    assert "sun   yes" in mood("eval", "show", "one").out
    assert "sun" not in mood("eval", "show", "@last", "--failed").out
    report = mood("eval", "show", "one", "--json").json
    assert report["aggregated"]["passed"] == 1 and len(report["results"]) == 2


def test_compare(mood):
    """Two rows and one sentence; arguments tell the programs apart."""
    mood(*RUN, "--answers", "a.json", "--key", "one")
    mood(*RUN, "loud=true", "--answers", "a.json", "--key", "two")
    said = mood("eval", "compare", "one", "two").out
    assert "mood loud=true" in said and "no difference can be shown" in said
    assert mood("eval", "compare", "one", "two", "--json").json["better"] == "none"


def test_a_threshold(mood):
    """With --fail-under, too few passes are exit code 1."""
    assert mood(*RUN, "--answers", "a.json", "--fail-under", "0.5").code == 0
    assert mood(*RUN, "--answers", "a.json", "--fail-under", "0.6").code == 1


def test_an_eval_that_waits(mood):
    """Without a model the questions are printed, and the command that resumes."""
    said = mood(*RUN, "--key", "w")
    assert said.code == 10
    assert [one["prompt"] for one in json.loads(said.out)] == ["Mood in sun?", "Mood in rain?"]
    assert "everhold eval run -c w" in said.err and "0 of 2 cases done" in said.err
    assert mood("eval", "show", "w").code == 10
    shown = mood("eval", "show", "w", "--json").json
    assert (shown["state"], shown["done"]) == ("paused", 0)
    again = mood("eval", "run", "-c", "w", "--answers", "a.json")
    assert again.code == 0 and "1 of 2 cases passed" in again.out


def test_questions_as_json(mood):
    """With --json, the state of the eval and its questions are one document."""
    said = mood(*RUN, "--key", "w", "--json")
    assert said.code == 10 and said.json["done"] == 0
    assert all(one["session_id"].startswith("s-") for one in said.json["questions"])


def test_a_person_answers(mood):
    """At a terminal, the person is asked what no model answers."""
    said = mood(*RUN, typed="happy\n\nsad\n\n")
    assert said.code == 0 and "2 of 2 cases passed" in said.out


def test_a_person_leaves(mood):
    """With :quit the eval is kept."""
    said = mood(*RUN, "--key", "w", typed="happy\n\n:quit\n")
    assert said.code == 10 and "everhold eval run -c w" in said.err
    assert mood("eval", "run", "-c", "w", typed="sad\n\n").code == 0


def test_limits(mood):
    """When the budget is spent, the cases that did not run are named."""
    said = mood(*RUN, "--answers", "a.json", "--max-calls", "1", "--concurrency", "1")
    assert "not run: rain" in said.out and "stopped early: max_llm_calls (1) reached" in said.out
    assert mood("eval", "list", "--json").json["evals"][0]["done"] == 1


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (("run", "moood.toml", "mood.py:mood"), 2, "Did you mean 'mood.toml'?"),
        (("run", "mood.toml", "mood.py:moood"), 2, "unknown_program"),
        (("run", "mood.toml", "mood.py:mood", "laud=1"), 2, "not 'laud'"),
        (("run", "mood.toml", "mood.py:mood", "--input", "wether"), 2, "does not fit mood"),
        (("run", "mood.toml"), 2, "PROGRAM is missing"),
        (("run",), 2, "SCENARIO is missing"),
        (("run", "-c"), 2, "unknown_session"),
        (("run", "-c", "a", "b"), 2, "has its program already"),
        (("run", "mood.toml", "mood.py:mood", "--concurrency", "0"), 2, "concurrency"),
        (("show", "nothing"), 2, "unknown_session"),
        (("compare", "a"), 2, "'B'"),
    ],
)
def test_mistakes(mood, words, code, told):
    """Each is one line with a hint, and nothing has begun."""
    mood("run", "mood.py:mood", "weather=sun")  # makes the database
    said = mood("eval", *words)
    assert (said.code, told in said.err) == (code, True), said.err
    assert "Traceback" not in said.err
    assert "no evals" in mood("eval").out


def test_a_session_that_is_no_eval(mood):
    """Other sessions have no report."""
    mood("run", "mood.py:mood", "weather=sun", "--key", "plain", "--answers", "a.json")
    said = mood("eval", "show", "plain")
    assert said.code == 2 and "not_an_eval" in said.err
