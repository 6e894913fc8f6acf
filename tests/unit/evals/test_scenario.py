"""Scenarios: what they are made of, where they are loaded from, and what is wrong with them."""

import pytest

from everhold.core.codec import dumps
from everhold.errors import BadGrader, BadScenario, UnknownGrader
from everhold.evals import Case, Contains, Scenario, load_scenario, read_scenario

TOML = """
name = "capitals"
graders = ["contains", {type = "judge", criterion = "Is it polite?", weight = 2}]

[[cases]]
id = "france"
input = "What is the capital of France?"
expected = "Paris"
tags = ["europe"]

[[cases]]
input = "And of Japan?"
expected = ["Tokyo", "東京"]
"""


def test_from_toml(tmp_path):
    """A file has the cases in order; one without an id gets its position."""
    (tmp_path / "a.toml").write_text(TOML)
    found = load_scenario(tmp_path / "a.toml")
    assert [case.id for case in found.cases] == ["france", "case-2"]
    assert [grader.name for grader in found.graders] == ["contains", "judge"]
    assert found.cases[0].tags == ("europe",) and found.cases[1].expected == ["Tokyo", "東京"]


def test_from_json(tmp_path):
    """A file without a name has that of the file."""
    (tmp_path / "sums.json").write_text(dumps({"cases": [{"input": "1+1", "expected": "2"}]}))
    found = load_scenario(str(tmp_path / "sums.json"))
    assert found.name == "sums" and found.graders[0].name == "exact"


def test_from_python(tmp_path):
    """A Python file with one scenario needs no name; of several, one is named."""
    source = 'from everhold.evals import Scenario\none = Scenario("o", [("a", "b")])\n'
    (tmp_path / "one_scenario.py").write_text(source)
    assert load_scenario(tmp_path / "one_scenario.py").name == "o"
    (tmp_path / "two_scenarios.py").write_text(source + 'two = Scenario("t", [("a", "b")])\n')
    assert load_scenario(f"{tmp_path}/two_scenarios.py:two").name == "t"
    with pytest.raises(BadScenario, match="holds 2 scenarios"):
        load_scenario(tmp_path / "two_scenarios.py")
    with pytest.raises(BadScenario, match="no scenario 'twoo'") as caught:
        load_scenario(f"{tmp_path}/two_scenarios.py:twoo")
    assert caught.value.hint == "Did you mean 'two'?"


def test_plain_data_and_back():
    """A scenario as JSON is the same scenario again."""
    case = Case("q", {"any": [1]}, tags=["t"], graders=["not_empty"])
    found = Scenario("s", [case, ("p", "x")], graders=[Contains(weight=3)], pass_score=0.5)
    assert read_scenario(found.to_plain()) == found
    assert read_scenario(found.to_plain()).cases[0].graders[0].name == "not_empty"


def test_names_of_algocline():
    """A case may be named with `name`."""
    assert (
        read_scenario({"cases": [{"name": "n", "input": "i", "expected": "e"}]}).cases[0].id == "n"
    )


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({}, "it has no cases"),
        ({"cases": []}, "it has no cases"),
        ({"cases": "a"}, "its cases are not a list"),
        ({"name": " ", "cases": [["a", "b"]]}, "its name is empty"),
        ({"name": 5, "cases": [["a", "b"]]}, "scenario '5': its name is not a text"),
        ({"name": "n" * 501, "cases": [["a", "b"]]}, "its name has 501 characters"),
        ({"cases": [["a", "b"]], "graders": []}, "it has no graders"),
        ({"cases": [["a", "b"]], "pass_score": 0}, "pass_score must be"),
        ({"cases": [["a", "b"]], "graderz": []}, "unknown field 'graderz'"),
        ({"cases": [{"expected": "b"}]}, "case 1 has no input"),
        ({"cases": [["a", "b"], {"input": "", "expected": "b"}]}, "case 2 has no input"),
        ({"cases": [{"input": "a", "expect": "b"}]}, "unknown field 'expect'"),
        ({"cases": ["a"]}, "neither a table nor a pair"),
        ({"cases": [{"input": "a", "expected": "b", "tags": "t"}]}, "tags are not a list"),
        ({"cases": [["a", "b"]] * 2 + [{"id": "case-1", "input": "c", "expected": "d"}]}, "case-1"),
        ({"cases": [{"input": "a"}]}, "says nothing about what is expected"),
        ({"cases": [["a", "("]], "graders": ["regex"]}, "not a regular expression"),
        ({"cases": [["a", "none"]], "graders": ["number"]}, "which is not a number"),
        ({"cases": [["a", object()]]}, "cannot be stored"),
        (["a"], "it is a list"),
    ],
)
def test_scenarios_that_cannot_work(data, words):
    """Each is refused with the place of the mistake."""
    with pytest.raises(BadScenario, match=words):
        read_scenario(data)


@pytest.mark.parametrize(
    ("grader", "error", "words"),
    [
        ("exakt", UnknownGrader, "no grader 'exakt'"),
        ({"type": "regex", "pattern": "("}, BadGrader, "grader regex: '(' is not a regular"),
    ],
)
def test_a_wrong_grader_is_told_with_its_place(grader, error, words):
    """That is the scenario, or one of its cases."""
    case = {"input": "a", "expected": "b"}
    for data, place in (
        ({"name": "s", "cases": [case], "graders": [grader]}, "scenario 's': "),
        ({"name": "s", "cases": [case, {**case, "graders": grader}]}, "scenario 's', case 2: "),
    ):
        with pytest.raises(error) as caught:
            read_scenario(data)
        assert str(caught.value).startswith(place + words)


def test_files_that_cannot_be_read(tmp_path):
    """Each is told with its path, and a near name is offered."""
    (tmp_path / "capitals.toml").write_text("cases = [")
    with pytest.raises(BadScenario, match="it is not TOML"):
        load_scenario(tmp_path / "capitals.toml")
    with pytest.raises(BadScenario, match="there is no such file") as caught:
        load_scenario(tmp_path / "capital.toml")
    assert "capitals.toml" in caught.value.hint
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(BadScenario, match="it is not JSON"):
        load_scenario(tmp_path / "a.json")
    with pytest.raises(BadScenario, match="there is no such file"):
        load_scenario("capitals")
    (tmp_path / "a.csv").write_text("")
    with pytest.raises(BadScenario, match="not a scenario file"):
        load_scenario(tmp_path / "a.csv")
