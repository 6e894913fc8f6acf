"""`everhold eval`: run, list, show, compare."""

import json
import re
import shutil
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
    failed = mood("eval", "show", "@last", "--failed").out
    assert "sun" not in failed
    session = re.search(r"s-[0-9a-f]{16}-[0-9a-f]{24}", failed)[0]
    assert "Mood in rain?" in mood("show", session).out
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


HOME = Path(__file__).resolve().parents[2] / "data" / "algocline-home"


@pytest.fixture
def home(mood, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A home that algocline left, with two packages, a scenario and two evals."""
    shutil.copytree(HOME, tmp_path / "alc")
    monkeypatch.setenv("ALC_HOME", str(tmp_path / "alc"))
    return mood


@pytest.mark.process
def test_a_scenario_in_lua(home):
    """It measures a Lua package, resumes, and is listed, shown and compared like every other."""
    said = home("eval", "run", "riddles", "twice", "tone=dry", "--key", "one")
    assert said.code == 10 and "0 of 1 case done" in said.err
    (Path("answers.json")).write_text('{"Draft: 1+1": "two", "Improve: two": "2", "*": "3"}')
    said = home("eval", "run", "-c", "one", "--answers", "answers.json")
    assert said.code == 0 and "twice:riddles: 1 of 1 case passed (100%)" in said.out
    said = home("eval", "run", "alc/scenarios/riddles.lua", "careful", "--answers", "answers.json")
    assert said.code == 0 and "0 of 1 case passed" in said.out
    rows = home("eval", "list", "--json").json["evals"]
    assert [(row["scenario"], row["program"], row["passed"]) for row in rows[:2]] == [
        ("riddles", "careful", 0),
        ("riddles", "twice", 1),
    ]
    assert (rows[1]["args"], rows[1]["llm_calls"]) == ({"tone": "dry"}, 2)
    assert "no difference can be shown" in home("eval", "compare", "one", "@last").out
    assert "r4    no" in home("eval", "show", "twice_1775124900").out


def test_evals_of_algocline(home):
    """Files are listed and compared; those that cannot be read are named on standard error."""
    Path("alc/evals/broken_1.json").write_text("{")
    home("run", "mood.py:mood", "weather=sun")  # makes the database
    said = home("eval", "list")
    assert "twice_1775124900    riddles   twice    completed  3 of 4  0.75" in said.out
    assert "broken_1.json: it is not JSON" in said.err
    compared = home("eval", "compare", "twice_1775124900", "careful_1775212800").out
    assert "A  twice_1775124900    twice    4      75%" in compared


def test_scenarios(home, tmp_path):
    """`everhold eval scenario`: list, show and install."""
    assert "riddles   " in home("eval", "scenario").out
    shown = home("eval", "scenario", "show", "riddles")
    assert shown.out == (HOME / "scenarios" / "riddles.lua").read_text()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "sums.lua").write_text("return {}")
    said = home("eval", "scenario", "install", "more")
    assert (said.code, said.out) == (0, "installed: sums\n")
    assert home("eval", "scenario", "install", "more").out == "already there: sums\n"
    (tmp_path / "more" / "bad.lua").write_bytes(b"\xff")
    said = home("eval", "scenario", "install", "more", "--json")
    assert (said.code, said.json["failures"]) == (1, ["bad.lua: it is not UTF-8 text"])


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("run", "ridles", "twice"), "Did you mean 'riddles'?"),
        (("run", "riddles", "cot"), "measures Lua packages, and cot is not one"),
        (("run", "riddles", "mood.py:mood"), "measures Lua packages, and mood is not one"),
        (("run", "riddles", "twice", "--max-calls", "3"), "budget has no effect on it"),
        (("run", "riddles", "twice", "--output", "x"), "output has no effect on it"),
        (("run", "gone.lua", "twice"), "No such file"),
        (("run", "riddles", "away"), "everhold pkg link"),
        (("scenario", "show", "ridles"), "Did you mean 'riddles'?"),
        (("scenario", "install", "away"), "No scenarios found"),
        (("scenario", "install", "nothing"), "Not the address of a repository"),
    ],
)
def test_mistakes_with_scenarios_in_lua(home, tmp_path, words, told):
    """Each is one line with a hint, and nothing has begun."""
    package = tmp_path / "away"
    package.mkdir()
    (package / "init.lua").write_text("return { run = function() end }")
    if "away" in words and words[0] == "run":
        words = ("run", "riddles", "./away")
    elif "away" in words:
        (package / "init.lua").rename(package / "init.txt")
    said = home("eval", *words)
    assert (said.code, told in said.err) == (2, True), said.err
    assert "Traceback" not in said.err


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
