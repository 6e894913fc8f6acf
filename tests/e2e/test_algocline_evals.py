"""The tools for scenarios and evals through a real server. The client answers as a host does."""

import json
import shutil
from collections import Counter

import pytest

from tests.e2e.algocline_harness import House, ProtocolError
from tests.failures import collect_failures

#: Six cases on which `twice` answers what its client says last.
SUMS = """
local ef = require("evalframe")
local cases = {}
for n = 1, 6 do
  cases[n] = ef.case("n" .. n) { input = n .. "+" .. n, expected = tostring(2 * n), tags = {"sum"} }
end
return { ef.bind { ef.graders.exact_match }, cases = cases }
"""
OLD = "twice_1775124900"


@pytest.fixture
def house(tmp_path):
    made = House(tmp_path)
    (made.home / "scenarios" / "sums.lua").write_text(SUMS)
    yield made
    made.close()


def answer(wire, told, say, asked=None):
    """Answer the questions of a session until it ends; `say` gives the answer to a prompt."""
    session = told.get("session_id")
    while told["status"] == "needs_response":
        if asked is not None:
            asked[told["prompt"]] += 1
        told = wire.json("alc_continue", session_id=session, response=say(told["prompt"]))
    return told


def knows(prompt):
    """Drafts with the question, improves with the sum."""
    kind, _, task = prompt.partition(": ")
    return task if kind == "Draft" else str(sum(map(int, task.split("+"))))


def wrong(prompt):
    return "no idea"


def test_evals_from_the_first_question_to_the_comparison(house):
    """They pause as sessions do. Their results are listed, shown, compared and read by address;
    so are the files that algocline left, as they lie there.
    """
    wire = house.serve()
    listed = wire.json("alc_eval_history")["evals"]
    assert [row["eval_id"] for row in listed] == ["careful_1775212800", OLD]
    assert (listed[0]["summary"], listed[1]["pass_rate"]) == ("2 of 4 passed", 0.75)
    file = house.home / "evals" / f"{OLD}.json"
    assert wire.call("alc_eval_detail", eval_id=OLD) == (False, file.read_text())
    old = wire.json("alc_eval_compare", eval_id_a=OLD, eval_id_b="careful_1775212800")
    assert old["result"]["comparison"]["winner"] == "none"

    told = wire.json("alc_eval", strategy="twice", scenario_name="sums")
    assert told.keys() == {*("status", "session_id", "query_id", "prompt", "system", "max_tokens")}
    assert (told["status"], told["query_id"], told["prompt"]) == (
        "needs_response",
        "q-0",
        "Draft: 1+1",
    )
    good = told["session_id"]
    bad = wire.json("alc_eval", strategy="twice", scenario_name="sums")["session_id"]
    assert good != bad  # although they began in the same second
    refused = wire.call("alc_eval_detail", eval_id=good)
    assert refused == (True, f"Eval '{good}' has not ended: 0 of 6 cases are done")
    shown = wire.json("alc_status", session_id=good)
    assert shown["strategy"] == "twice"
    assert shown["metrics"]["progress"] == {"step": 0, "total": 6, "message": "0 passed"}

    done = answer(wire, told, knows)
    assert done.keys() == {"status", "result", "stats", "eval_id"}
    assert (done["eval_id"], done["stats"]["auto"]["llm_calls"]) == (good, 12)
    figures = done["result"]["aggregated"]
    assert (figures["total"], figures["passed"], figures["pass_rate"]) == (6, 6, 1)
    assert done["result"]["name"] == "twice:sums"
    other = wire.json("alc_continue", session_id=bad, response="no idea")
    assert answer(wire, other, wrong)["result"]["aggregated"]["passed"] == 0

    rows = wire.json("alc_eval_history", strategy="twice")["evals"]
    assert [row["eval_id"] for row in rows] == [bad, good, OLD]
    assert {key: rows[1][key] for key in ("strategy", "pass_rate", "total_cases", "passed")} == {
        "strategy": "twice",
        "pass_rate": 1,
        "total_cases": 6,
        "passed": 6,
    }
    assert rows[1].keys() >= {"timestamp", "mean_score", "llm_calls", "elapsed_ms", "summary"}
    assert len(wire.json("alc_eval_history", limit=1)["evals"]) == 1
    assert wire.json("alc_eval_history", strategy="none") == {"evals": []}
    assert wire.json("alc_eval_detail", eval_id=good) == done
    (page,) = wire.ask("resources/read", {"uri": f"alc://eval/{good}"})["result"]["contents"]
    assert json.loads(page["text"]) == done

    found = wire.json("alc_eval_compare", eval_id_a=bad, eval_id_b=good)
    assert found["status"] == "completed"
    assert found["result"]["a"].keys() >= {
        *("eval_id", "strategy", "scores", "pass_rate", "pass_at_1", "ci_95")
    }
    verdict = found["result"]["comparison"]
    assert verdict.keys() >= {"delta_mean", "welch_t", "winner", "summary"}
    assert (verdict["winner"], verdict["delta_mean"]) == ("b", 1)
    assert verdict["summary"].startswith("B is better by 100 points")
    assert verdict["welch_t"].keys() >= {"t_stat", "df", "significant", "direction"}
    # the same evals through another front
    cli = house.everhold("eval", "compare", bad, good)
    assert (cli["better"], cli["summary"]) == ("b", verdict["summary"])
    names = [row["session_id"] for row in house.everhold("eval", "list")["evals"]]
    assert names == [bad, good, "careful_1775212800", OLD]
    assert house.everhold("hub", "info", "twice", "--offline")["stats"]["eval_count"] == 3
    wire.close()


def test_killed_in_the_middle(house):
    """kill -9 of the server: the next one asks only what has no answer, although the file of the
    scenario is gone. The result is complete, and a card records it.
    """
    asked: Counter[str] = Counter()
    wire = house.serve()
    told = wire.json("alc_eval", strategy="twice", scenario_name="sums", auto_card=True)
    session = told["session_id"]
    for _ in range(5):
        asked[told["prompt"]] += 1
        told = wire.json("alc_continue", session_id=session, response=knows(told["prompt"]))
    wire.kill()
    (house.home / "scenarios" / "sums.lua").unlink()
    wire = house.serve()
    (open_one,) = wire.json("alc_status", pending_filter="full")["sessions"]
    assert open_one["metrics"]["progress"]["step"] == 2
    (pending,) = open_one["pending"]
    assert pending["prompt"] == told["prompt"] == "Improve: 3+3"
    done = answer(wire, {**told, "session_id": open_one["session_id"]}, knows, asked)
    assert done["result"]["aggregated"]["passed"] == 6
    assert len(asked) == 12 and set(asked.values()) == {1}
    card = wire.json("alc_card_get", card_id=done["result"]["card_id"])
    assert card["pkg"] == {"name": "twice"} and card["scenario"] == {"name": "sums"}
    assert card["stats"] == {"pass_rate": 1, "mean_score": 1, "n": 6, "passed": 6}
    assert len(wire.json("alc_card_samples", card_id=card["card_id"])) == 6
    wire.close()


def test_scenarios(house):
    """They are listed, shown and installed; inline code, an expression and JSON work, too. A
    package of the project can be measured.
    """
    (house.project / "own").mkdir()
    (house.project / "own" / "init.lua").write_text(
        "return { run = function(ctx) return { result = 'own ' .. ctx.task } end }\n"
    )
    (house.project / "alc.toml").write_text("[packages]\n")
    (house.project / "alc.local.toml").write_text('[packages.own]\npath = "own"\n')
    wire = house.serve()
    code = "{ cases = { { input = 'a', expected = 'own a' } } }"
    told = wire.json("alc_eval", strategy="own", scenario=code)
    assert (told["status"], told["result"]["aggregated"]["passed"]) == ("completed", 1)
    listed = wire.json("alc_scenario_list")
    assert listed["failures"] == []
    assert [(one["name"], one["size_bytes"]) for one in listed["scenarios"]] == [
        ("riddles", 57),
        ("sums", len(SUMS)),
    ]
    assert wire.json("alc_scenario_show", name="sums")["content"] == SUMS
    shop = house.base / "shop"
    shop.mkdir()
    (shop / "names.lua").write_text("return {}")
    (shop / "sums.lua").write_text("return { other = 1 }")
    made = wire.json("alc_scenario_install", url=str(shop))
    assert made == {"installed": ["names"], "skipped": ["sums"], "failures": []}
    assert wire.json("alc_scenario_show", name="sums")["content"] == SUMS
    shutil.copy(house.home / "scenarios" / "sums.lua", house.project / "mine.lua")
    forms = [
        {"scenario": "return { cases = { { input = '1+1', expected = '2' } } }"},
        {"scenario": "{ cases = { { input = '1+1', expected = '2' } } }"},
        {"scenario": '{"cases": [{"input": "1+1", "expected": "2", "tags": []}]}'},
        {"scenario_file": "mine.lua"},
        {"scenario_file": str(house.home / "scenarios" / "riddles.lua")},
        {"scenario_name": "riddles", "strategy_opts": {"tone": "dry"}},
        {"scenario_name": "riddles", "strategy_opts": '{"tone": "dry"}'},
    ]
    with collect_failures() as row:
        for form in forms:
            with row(str(form)):
                told = wire.json("alc_eval", strategy="twice", **form)
                assert told["prompt"] == "Draft: 1+1"
    wire.close()


NO_CASES = "its 'cases' must be a list with at least one"
RAISES = """
return { cases = { { input = "1+1" } }, graders = { function() error("the grader broke") end } }
"""
JUDGED = """
local ef = require("evalframe")
return { ef.bind { ef.llm_graders.yes_no("Is it right?") }, cases = { { input = "1+1" } } }
"""


def test_mistakes_are_told(house):
    """A wrong call begins nothing; an error of the scenario is the error of its session."""
    wire = house.serve()
    refusals = [
        ("alc_eval", {"strategy": "twice"}, "Give one of `scenario`"),
        (
            "alc_eval",
            {"strategy": "twice", "scenario": "x", "scenario_name": "y"},
            "Give one of `scenario`",
        ),
        ("alc_eval", {"strategy": "twice", "scenario": "sums"}, "use scenario_name"),
        ("alc_eval", {"strategy": "twice", "scenario_name": "none"}, "'none' not found"),
        ("alc_eval", {"strategy": "none", "scenario_name": "sums"}, "Package 'none' not found"),
        ("alc_eval", {"strategy": "twice", "scenario_file": "/etc/passwd"}, "outside the project"),
        ("alc_eval_detail", {"eval_id": "none"}, "Eval result not found: none"),
        ("alc_eval_compare", {"eval_id_a": "none", "eval_id_b": OLD}, "result not found: none"),
        ("alc_scenario_show", {"name": "../cards/x"}, "not found"),
        ("alc_scenario_install", {"url": "{base}/none"}, "does not exist"),
        ("alc_scenario_install", {"url": "{user}"}, "No scenarios found"),
    ]
    with collect_failures() as row:
        for tool, given, words in refusals:
            with row(f"{tool} {given}"):
                filled = {
                    key: value.format(base=house.base, user=house.user) if key == "url" else value
                    for key, value in given.items()
                }
                refused, text = wire.call(tool, **filled)
                assert refused and words in text, text
    assert wire.json("alc_status")["active_sessions"] == 0
    with pytest.raises(ProtocolError, match="missing field `strategy`"):
        wire.call("alc_eval", scenario_name="sums")

    errors = [
        ("return {", "it is not Lua: scenario:1"),
        ("return nil", "it is nil, not a table"),
        ("error('broken')", "scenario:1: broken"),
        ("return { cases = {} }", NO_CASES),
        ("return {}", NO_CASES),
        ("{ cases = {{ expected = 'x' }} }", "case #1 has no 'input'"),
        (
            "{ cases = {{ name = 'a', input = '1' }, { name = 'a', input = '2' }} }",
            "both named 'a'",
        ),
        ("{ cases = {{ input = '1' }}, graders = { 'exakt' } }", "unknown grader 'exakt'"),
    ]
    with collect_failures() as row:
        for code, words in errors:
            with row(code):
                told = wire.json("alc_eval", strategy="twice", scenario=code)
                assert told["status"] == "error" and words in told["error"], told
    rows = wire.json("alc_eval_history", strategy="twice")["evals"]
    assert sum(row["summary"].startswith("failed: ") for row in rows) == len(errors)
    wire.close()


def test_what_cannot_be_graded_is_told(house):
    """A grader that raises, and a judge that answers nonsense, fail their case with the reason.
    Evals of different scenarios are not compared; files that cannot be read are named.
    """
    (house.home / "evals" / "broken_1.json").write_text("{")
    wire = house.serve()
    raised = answer(wire, wire.json("alc_eval", strategy="twice", scenario=RAISES), knows)
    (grade,) = raised["result"]["results"][0]["grades"]
    assert grade["score"] == 0 and grade["error"].endswith("the grader broke")
    assert "the grader broke (1+1)" in raised["result"]["summary"]

    told = wire.json("alc_eval", strategy="twice", scenario=JUDGED)
    judged = answer(wire, told, lambda prompt: "Perhaps." if "Judge" in prompt else "2")
    (grade,) = judged["result"]["failures"][0]["grades"]
    assert grade["error"] == "the judge said neither yes nor no: 'Perhaps.'"

    ids = {"eval_id_a": raised["eval_id"], "eval_id_b": judged["eval_id"]}
    assert wire.json("alc_eval_compare", **ids)["result"]["comparison"]["pairs"] == 1
    refused, text = wire.call("alc_eval_compare", **{**ids, "eval_id_b": OLD})
    assert refused and "different scenarios, 'inline' and 'riddles'" in text
    other = "return { cases = { { input = '9+9', expected = '18' } } }"
    elsewhere = answer(wire, wire.json("alc_eval", strategy="twice", scenario=other), knows)
    refused, text = wire.call("alc_eval_compare", **{**ids, "eval_id_b": elsewhere["eval_id"]})
    assert refused and "no case in common" in text
    (warning,) = wire.json("alc_eval_history")["warnings"]
    assert warning.startswith("broken_1.json: it is not JSON")
    refused, text = wire.call("alc_eval_detail", eval_id="broken_1")
    assert refused and "it is not JSON" in text
    plain = wire.json("alc_run", code="return alc.llm('q')")["session_id"]
    refused, text = wire.call("alc_eval_detail", eval_id=plain)
    assert refused and "is a session of lua:code, not an eval" in text
    wire.close()
