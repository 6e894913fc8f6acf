"""`alc.eval`, and the package evalframe that comes with everhold."""

from pathlib import Path
from typing import Any

import pytest

from everhold.programs.lua.search_path import SCENARIOS_ROOT, SearchRoot
from tests.unit.programs.lua.life import Life, package, run

#: A strategy that knows three answers, one that has no `run`, and a shorthand.
KNOWN = """
local ef = require("evalframe")
package.preload.knows = function()
  local answers = {["2+2?"] = "4", ["Capital of France?"] = "Paris", ["Color of sky?"] = "blue"}
  return {run = function(ctx) return {result = answers[ctx.task] or "wrong"} end}
end
package.preload.broken = function() return {meta = {}} end
local function score(cases, ...)
  return alc.eval({cases = cases, graders = ... and {...}}, "knows")
end
"""


def evaluated(code: str, **given: Any) -> Any:
    return run(KNOWN + code, **given)


def refused(code: str, **given: Any) -> str:
    return str(
        evaluated(
            f"local ok, e = pcall(function() {code} end) assert(not ok) return tostring(e)", **given
        )
    )


# ---- the simple form


def test_all_cases_pass() -> None:
    report = evaluated("""return score({
      {input = "2+2?", expected = "4"}, {input = "Capital of France?", expected = "Paris"},
    }, "exact_match")""")
    assert report["aggregated"]["total"] == report["aggregated"]["passed"] == 2
    assert report["aggregated"]["pass_rate"] == 1
    assert report["summary"].startswith("knows:inline: 2 of 2 cases passed")


def test_some_cases_pass() -> None:
    report = evaluated("""return score({
      {input = "2+2?", expected = "4"}, {input = "Fail me", expected = "correct"},
    }, "contains")""")
    assert (report["aggregated"]["passed"], report["aggregated"]["pass_rate"]) == (1, 0.5)
    assert [one["case"]["input"] for one in report["failures"]] == ["Fail me"]


def test_the_grader_is_exact_match_if_none_is_named() -> None:
    report = evaluated('return alc.eval({cases = {{input = "2+2?", expected = "4"}}}, "knows")')
    assert report["aggregated"]["passed"] == 1
    assert report["results"][0]["grades"][0]["grader"] == "exact_match"


def test_several_graders_have_equal_weight() -> None:
    report = evaluated("""return score({
      {input = "2+2?", expected = "4"}, {input = "?", expected = "4"},
    }, "exact_match", "not_empty")""")
    assert [one["score"] for one in report["results"]] == [1, 0.5]
    assert [one["passed"] for one in report["results"]] == [True, False]


def test_a_function_is_a_grader() -> None:
    report = evaluated(
        "return score({{input = '2+2?'}}, function(r, c) return c.input .. r.text == '2+2?4' end)"
    )
    assert report["aggregated"]["passed"] == 1


# ---- the full form


def test_bindings_and_cases_of_evalframe() -> None:
    report = evaluated("""return alc.eval({
      ef.bind {ef.graders.contains, weight = 0.7}, ef.bind {ef.graders.exact_match, weight = 0.3},
      cases = {
        ef.case {input = "2+2?", expected = "4"},
        ef.case "sky" {input = "Color of sky?", expected = {"azure", "blue"}},
        {input = "Capital of France?", expected = "Par"},
      },
    }, "knows")""")
    assert [one["passed"] for one in report["results"]] == [True, True, False]
    assert report["results"][2]["score"] == pytest.approx(0.7)
    assert report["results"][1]["case"]["name"] == "sky"


def test_scores_are_counted_by_tag() -> None:
    report = evaluated("""return alc.eval({ef.bind {ef.graders.exact_match}, cases = {
      ef.case {input = "2+2?", expected = "4", tags = {"math", "easy"}},
      ef.case {input = "Who?", expected = "me", tags = {"easy"}},
    }}, "knows")""")
    tags = report["aggregated"]["by_tag"]
    assert {name: (row["pass"], row["fail"]) for name, row in tags.items()} == {
        "math": (1, 0),
        "easy": (1, 1),
    }
    assert tags["easy"]["rate"] == 0.5


# ---- the report


def test_the_report_is_named_by_strategy_and_scenario() -> None:
    assert (
        evaluated('return alc.eval({name = "n", cases = {{input = "x"}}}, "knows").name')
        == "knows:n"
    )


def test_statistics_of_the_scores() -> None:
    report = evaluated("""return score({
      {input = "2+2?", expected = "4"}, {input = "Fail me", expected = "correct"},
    })""")
    scores = report["aggregated"]["scores"]
    assert (scores["n"], scores["mean"], scores["min"], scores["max"]) == (2, 0.5, 0, 1)
    assert scores["std_dev"] == pytest.approx(0.70711, abs=1e-5)


def interval(*scores: float) -> tuple[float, float]:
    low, high = evaluated(
        'return {require("evalframe.eval.stats").score_ci(ctx.scores)}',
        ctx={"scores": list(scores)},
    )
    return round(low, 4), round(high, 4)


def test_the_interval_of_the_mean() -> None:
    """Wilson's for scores of 0 and 1, else Student's t within 0 to 1. Equal scores have one, too:
    none of n cases differed, which happens with 2.5 % if 1 - 0.025^(1/n) of all cases differ.
    """
    assert interval(1, 1, 0) == (0.2077, 0.9385)
    assert interval(1) == (0.2065, 1)
    assert interval(0.5, 0.7, 0.6) == (0.3516, 0.8484)
    assert interval(0.1, 0.9) == (0, 1)
    assert interval(0.5, 0.5, 0.5, 0.5) == (0.1988, 0.8012)
    assert interval(0.5) == (0, 1)


def test_empty_lists_of_a_report_are_arrays() -> None:
    report = evaluated('return score({{input = "2+2?", expected = "4"}})')
    assert report["failures"] == [] and report["results"][0]["case"]["tags"] == []


def test_pass_at_k_appears_with_enough_cases() -> None:
    many = """local cases = {}
      for i = 1, N do cases[i] = {input = i <= 4 and "2+2?" or "?", expected = "4"} end
      return score(cases).aggregated"""
    few = evaluated(many.replace("N", "4"))
    assert "pass_at_5" not in few and few["pass_at_1"] == 1
    ten = evaluated(many.replace("N", "10"))
    assert ten["pass_at_5"] == pytest.approx(1 - 6 / 252)  # 6 of the 252 draws of 5 have no pass
    assert ten["pass_at_10"] == 1


# ---- cards


@pytest.mark.parametrize(("option", "pkg"), [("", "knows"), (", card_pkg = 'other'", "other")])
def test_a_card_is_recorded_on_request(option: str, pkg: str) -> None:
    card, samples, id = evaluated(f"""
      local card, samples
      alc.card = {{
        create = function(given) card = given return {{card_id = "c1"}} end,
        write_samples = function(id, rows) samples = {{id, #rows}} end,
      }}
      local cases = {{{{input = "2+2?", expected = "4"}}, {{input = "y"}}}}
      local report = alc.eval({{name = "s", cases = cases}}, "knows", {{auto_card = true{option}}})
      return {{card, samples, report.card_id}}""")
    assert card == {
        "pkg": {"name": pkg},
        "scenario": {"name": "s"},
        "stats": {"pass_rate": 0.5, "mean_score": 0.5, "n": 2, "passed": 1},
    }
    assert (samples, id) == (["c1", 2], "c1")


def test_no_card_without_request() -> None:
    life = Life(KNOWN + 'return alc.eval({cases = {{input = "2+2?"}}}, "knows").card_id')
    assert life.step().asked == [] and life.outcome.value is None


# ---- where scenarios come from

SCENARIO = 'return {cases = {{input = "2+2?", expected = "4"}}}'


@pytest.fixture
def scenarios(tmp_path: Path) -> SearchRoot:
    folder = tmp_path / "scenarios"
    folder.mkdir()
    (folder / "math_basic.lua").write_text(SCENARIO)
    return SearchRoot(folder, SCENARIOS_ROOT)


def test_a_scenario_is_a_module() -> None:
    report = evaluated(f"""package.preload.mine = function() {SCENARIO} end
      return alc.eval("mine", "knows")""")
    assert (report["name"], report["aggregated"]["passed"]) == ("knows:mine", 1)


def test_a_scenario_is_a_file_in_the_folder(scenarios: SearchRoot) -> None:
    report = evaluated('return alc.eval("math_basic", "knows")', roots=[scenarios])
    assert (report["name"], report["aggregated"]["passed"]) == ("knows:math_basic", 1)


def test_a_scenario_is_named_by_its_path(scenarios: SearchRoot) -> None:
    file = scenarios.folder / "math_basic.lua"
    report = evaluated(f'return alc.eval("{file}", "knows")', roots=[scenarios])
    assert report["name"] == "knows:math_basic"


def test_a_path_outside_the_folder_is_not_read(scenarios: SearchRoot, tmp_path: Path) -> None:
    (tmp_path / "other.lua").write_text(SCENARIO)
    for path in (tmp_path / "other.lua", scenarios.folder / "../other.lua"):
        words = refused(f'alc.eval("{path}", "knows")', roots=[scenarios])
        assert "could not resolve scenario" in words


def test_an_error_in_a_scenario_is_shown(scenarios: SearchRoot) -> None:
    (scenarios.folder / "bad.lua").write_text("return {\n  cases = \n")
    words = refused('alc.eval("bad", "knows")', roots=[scenarios])
    assert "scenario 'bad' cannot be loaded" in words and "scenarios/bad.lua:3:" in words


def test_a_scenario_that_needs_a_missing_module_is_not_reported_as_missing(
    scenarios: SearchRoot,
) -> None:
    (scenarios.folder / "needs.lua").write_text('return require("absent")')
    words = refused('alc.eval("needs", "knows")', roots=[scenarios])
    assert "scenario 'needs' cannot be loaded" in words and "module 'absent' not found" in words


# ---- bad input

CASE = '{input = "x", expected = "y"}'
WRONG = [
    ('alc.eval(nil, "knows")', "alc.eval: name a scenario, or give one as a table"),
    ('alc.eval(7, "knows")', "alc.eval: a scenario is a name or a table, not a number"),
    (
        f"alc.eval({{cases = {{{CASE}}}}})",
        "alc.eval: a strategy is the name of a package, not a nil",
    ),
    (f'alc.eval({{cases = {{{CASE}}}}}, "knows", 7)', "alc.eval: opts must be a table, got number"),
    ('alc.eval("nowhere_xyz", "knows")', "could not resolve scenario 'nowhere_xyz'"),
    (
        'package.preload.seven = function() return 7 end alc.eval("seven", "knows")',
        "alc.eval: the scenario is not a table, but a value of type number",
    ),
    (
        'package.preload.text = function() return "t" end alc.eval("text", "knows")',
        "alc.eval: the scenario is not a table, but a value of type string",
    ),
    (
        f'score({{{CASE}}}, "nearly")',
        "alc.eval: unknown grader 'nearly'; there are contains, exact",
    ),
    (f"score({{{CASE}}}, 7)", "alc.eval: a grader must be a name, a function or a grader"),
    ("score({})", "alc.eval: the scenario has no cases"),
    ('alc.eval({}, "knows")', "alc.eval: the scenario has no cases"),
    (f"score({{{CASE}, {{expected = 'y'}}}})", "alc.eval: case #2 has no 'input'"),
    (f"score({{{CASE}, 'text'}})", "alc.eval: case #2 has no 'input'"),
    (
        "score({{input = 'a', name = 'n'}, {input = 'b'}, {input = 'c', name = 'n'}})",
        "the cases 1 and 3 are both named 'n'",
    ),
    ("score({{input = 7}})", "case: 'input' must be a string, got number"),
    ("ef.case 'n' {expected = 'x'}", "case 'n': 'input' is required"),
    ("ef.case {input = 'x', expected = {1}}", "case 'x': 'expected[1]' must be a string"),
    ("ef.case {input = 'x'}.input = 'y'", "a case is immutable: 'input' cannot be set"),
    ("ef.bind {}", "bind: a grader is required"),
    ("ef.bind {ef.graders.contains, weight = -1}", "'weight' must be a number, 0 or more, got -1"),
    ("ef.bind {ef.graders.contains, {}}", "bind: part 2 is neither a grader nor a scorer"),
    ("ef.suite 's' {provider = print}", "suite 's': it has no binding"),
    ("ef.suite 's' {provider = print, 7}", "suite 's': entry 1 is a number"),
    ("ef.suite 's' {ef.bind {ef.graders.contains}}", "'provider' must be a function, got nil"),
    ("ef.grader 'g' {}", "grader 'g': 'check' must be a function, got nil"),
    ("ef.scorer 's' {}", "scorer 's': give 'score', 'min' and 'max', 'pass', or 'steps'"),
    ("ef.scorer 's' {min = 1, max = 1}", "'min' and 'max' must be two different numbers"),
    ("ef.providers.algocline {}", "'strategy' must be the name of a package"),
    ("ef.providers.claude_cli {}", "programs run no commands"),
    ("require('evalframe.swarm')", "module 'evalframe.swarm' not found"),
]


@pytest.mark.parametrize(("code", "words"), WRONG)
def test_what_is_wrong_is_said(code: str, words: str) -> None:
    assert words in refused(code)


def test_a_strategy_that_fails_fails_its_case() -> None:
    report = evaluated(
        f'return alc.eval({{cases = {{{CASE}}}, graders = {{"contains"}}}}, "broken")'
    )
    assert (report["aggregated"]["total"], report["aggregated"]["passed"]) == (1, 0)
    assert "Problem: no answer: package 'broken' has no function run(ctx) (x)" in report["summary"]


def test_an_error_never_passes_a_lenient_grader() -> None:
    report = evaluated(
        'return alc.eval({cases = {{input = "x", expected = ""}}, graders = {"contains"}}, "none")'
    )
    assert report["aggregated"]["passed"] == 0 and report["results"][0]["grades"] == []
    assert "module 'none' not found" in report["results"][0]["response"]["error"]


def test_a_grader_that_raises_is_reported() -> None:
    report = evaluated(
        "return score({{input = '2+2?'}}, 'not_empty', function() error('oh', 0) end)"
    )
    assert report["results"][0]["grades"][1]["error"] == "oh"
    assert report["results"][0]["score"] == 0.5
    assert "Problem: grader 'grader_2' failed: oh (2+2?)" in report["summary"]


def test_a_scorer_outside_0_to_1_is_reported() -> None:
    report = evaluated("""return alc.eval({
      ef.bind {ef.graders.not_empty, ef.scorer "odd" {score = function() return 7 end}},
      cases = {{input = "x"}},
    }, "knows")""")
    row = report["results"][0]["grades"][0]
    assert row["score"] == 0 and row["error"] == "scorer 'odd' gave 7, not a number from 0 to 1"


# ---- graders

TEXTS = [
    ("exact_match", "expected = 'ab'", {"ab": True, "abc": False}),
    ("contains", "expected = {'x', 'b.'}", {"ab.": True, "abc": False}),
    ("starts_with", "expected = 'ab'", {"abc": True, "cab": False}),
    ("regex", "expected = '^%d+$'", {"123": True, "12a": False}),
    ("regex", "context = {pattern = 'b+'}, expected = 'zz'", {"abbc": True, "ac": False}),
    ("json_valid", "", {'{"a": [1]}': True, "{a}": False, "": False}),
    ("not_empty", "", {"a": True, "": False}),
    ("valid_json_response", "", {"[]": True, "": False}),
    ("flexible_match", "expected = 'ab'", {"ab": True, "cabc": True, "ba": False}),
]


@pytest.mark.parametrize(("name", "fields", "texts"), TEXTS)
def test_graders(name: str, fields: str, texts: dict[str, bool]) -> None:
    found = evaluated(
        f"""
      local out, case = {{}}, ef.case {{input = "x", {fields}}}
      for _, text in ipairs(ctx.texts) do
        out[#out + 1] = (ef.graders.{name}.check({{text = text}}, case))
      end
      return out""",
        ctx={"texts": list(texts)},
    )
    assert found == list(texts.values())


def test_a_case_that_expects_nothing_cannot_be_compared() -> None:
    """The score is 0, and the report says why."""
    report = evaluated('return score({{input = "2+2?"}}, "contains")')
    (grade,) = report["results"][0]["grades"]
    assert (grade["score"], grade["error"]) == (0, "the case does not say what is expected")
    assert "the case does not say what is expected (2+2?)" in report["summary"]


def test_a_function_is_called_after_each_case() -> None:
    """With the result, how many cases are done, and how many there are."""
    told = evaluated("""
      local told, cases = {}, {{input = "2+2?", expected = "4"}, {input = "?", expected = "5"}}
      alc.eval({cases = cases}, "knows", {
        on_case = function(result, done, total) told[done] = {result.passed, total} end,
      })
      return told""")
    assert told == [[True, 2], [False, 2]]
    words = refused('alc.eval({cases = {{input = "x"}}}, "knows", {on_case = 1})')
    assert "on_case must be a function, got number" in words


def test_a_pattern_that_is_not_one_is_an_error() -> None:
    found = evaluated(
        "return {ef.graders.regex.check({text = 'x'}, ef.case {input = 'x', expected = '('})}"
    )
    assert "unfinished capture" in found[1]


SCORES = [
    ("linear_1_5", [(1, 0), (3, 0.5), (9, 1), ("'x'", 0)]),
    ("linear_0_100", [(25, 0.25), (-5, 0)]),
    ("pass_80", [(0.8, 1), (0.79, 0), ("true", 1)]),
    ("band_1_5", [(2, 0), (3, 0.5), (4, 1), (5, 1)]),
    ("bool", [("true", 1), ("false", 0), ("nil", 0), (0.3, 0.3), (7, 1)]),
    ("inverse_linear", [(0, 1), (1000, 0.5)]),
]


@pytest.mark.parametrize(("name", "table"), SCORES)
def test_scorers(name: str, table: list[tuple[Any, float]]) -> None:
    calls = ", ".join(f"ef.scorers.{name}.score({grade})" for grade, _ in table)
    assert evaluated(f"return {{{calls}}}") == [score for _, score in table]


# ---- judges

JUDGED = """return alc.eval({
  ef.bind {%s}, cases = {{input = "2+2?", expected = "4"}},
}, "knows")"""
VERDICTS = [
    ("ef.llm_graders.rubric('kind?'), ef.scorers.linear_1_5", "4", 0.75),
    ("ef.llm_graders.rubric('kind?'), ef.scorers.linear_1_5", "I give it 4/5.", 0.75),
    ("ef.llm_graders.rubric('kind?'), ef.scorers.linear_1_5", "3 out of 5", 0.5),
    ("ef.llm_graders.rubric('k', {scale_max = 10}), ef.scorers.linear_1_10", "10", 1),
    ("ef.llm_graders.yes_no('polite?')", "Yes.", 1),
    ("ef.llm_graders.yes_no('polite?')", "no", 0),
    ("ef.llm_graders.factuality(), ef.scorers.linear_1_5", "5", 1),
]


@pytest.mark.parametrize(("judge", "verdict", "score"), VERDICTS)
def test_a_model_as_judge(judge: str, verdict: str, score: float) -> None:
    life = Life(KNOWN + JUDGED % judge)
    assert "<answer>\n4\n</answer>" in life.step().asked[0].prompt
    life.answer(life.prompts()[0], verdict)
    assert life.outcome.value["results"][0]["score"] == score


NONSENSE = [
    ("ef.llm_graders.rubric('kind?'), ef.scorers.linear_1_5", "lovely"),
    ("ef.llm_graders.rubric('kind?'), ef.scorers.linear_1_5", "10"),
    ("ef.llm_graders.rubric('kind?'), ef.scorers.linear_1_5", "Of 1 to 5, I say 4"),
    ("ef.llm_graders.yes_no('polite?')", "perhaps"),
]


@pytest.mark.parametrize(("judge", "verdict"), NONSENSE)
def test_a_judge_that_answers_nonsense_is_reported(judge: str, verdict: str) -> None:
    life = Life(KNOWN + JUDGED % judge)
    life.step()
    life.answer(life.prompts()[0], verdict)
    assert life.outcome.value["results"][0]["score"] == 0
    assert f": '{verdict}' (2+2?)" in life.outcome.value["summary"]


# ---- statistics

#: Two groups; the t, df and p of R: t.test(a, b).
GROUPS = [
    ([0.1, 0.5, 0.9, 0.4], [0.6, 0.8, 0.9, 1.0], (-1.88206, 4.49625, 0.12504)),
    ([1, 1, 0, 1, 1, 0, 1, 1], [0, 0, 0, 1, 0, 0, 1, 0], (2.16025, 14, 0.04857)),
    ([0.2] * 5 + [0.3] * 5, [0.25] * 9 + [0.9], None),
]


def test_welch_agrees_with_the_test_of_alc_math() -> None:
    for a, b, known in GROUPS:
        ours, other = evaluated(
            "return {require('evalframe.eval.stats').welch_t(ctx.a, ctx.b),"
            " alc.math.welch_t_test(ctx.a, ctx.b)}",
            ctx={"a": a, "b": b},
        )
        found = (ours["t_stat"], ours["df"], ours["p_value"])
        assert found == pytest.approx((other["t_stat"], other["df"], other["p_value"]), abs=1e-9)
        assert known is None or found == pytest.approx(known, abs=1e-4)
        assert ours["significant"] is (found[2] < 0.05)


def test_welch_takes_descriptions_too() -> None:
    found = evaluated("""
      local stats = require("evalframe.eval.stats")
      local a, b = {0.1, 0.2, 0.3}, {0.7, 0.8, 0.95}
      return {stats.welch_t(a, b), stats.welch_t(stats.describe(a), stats.describe(b))}""")
    assert found[0] == found[1] and found[0]["direction"] == "a<b" and found[0]["significant"]


def test_groups_without_variance() -> None:
    found = evaluated("""
      local welch = require("evalframe.eval.stats").welch_t
      return {welch({1, 1}, {1, 1, 1}), welch({1, 1}, {0, 0}), welch({0, 0, 0, 0}, {1, 1, 1, 1}),
        welch({1}, {0, 0})}""")
    assert [(one["direction"], one["significant"]) for one in found] == [
        ("equal", False),
        ("a>b", False),  # a random split looks like this once in three times
        ("a<b", True),  # and like this twice in 70 times
        ("insufficient_data", False),
    ]


def test_the_interval_uses_students_t() -> None:
    lower, upper = evaluated("""
      local stats = ef.stats
      return {stats.ci_95({n = 11, mean = 0, std_dev = math.sqrt(11)}, {unbounded = true})}""")
    assert (lower, upper) == pytest.approx((-2.228139, 2.228139), abs=1e-6)


# ---- the rest of the package


def test_a_suite_alone() -> None:
    found = evaluated("""
      local suite = ef.suite "alone" {
        provider = ef.providers.mock.map {["2+2"] = "4"}, ef.bind {ef.graders.exact_match},
        cases = {ef.case {input = "What is 2+2?", expected = "4"}},
      }
      local report = suite:run()
      return {report:summary(), report:to_table().aggregated.passed,
        report.format_result(report.results[1])}""")
    assert found[0].startswith("alone: 1 of 1 case passed (100.0 %)")
    assert found[1] == 1 and found[2].startswith("What is 2+2?: passed, score 1.000\n")


def test_variants() -> None:
    found = evaluated("""
      local given = {
        base = {tokens = 5}, ef.vary "model" {{model = "a", name = "a"}, {model = "b", name = "b"}},
        ef.vary "heat" {{heat = 0}, {heat = 1}},
      }
      local cross = ef.variants(given)
      given.mode = "zip"
      return {cross, ef.variants(given)}""")
    assert [one["name"] for one in found[0]] == ["a_heat_1", "a_heat_2", "b_heat_1", "b_heat_2"]
    assert found[1] == [
        {"heat": 0, "model": "a", "name": "a_heat_1", "tokens": 5},
        {"heat": 1, "model": "b", "name": "b_heat_2", "tokens": 5},
    ]


def test_combined_graders() -> None:
    assert (
        evaluated("""
      local both = ef.grader.all(ef.graders.not_empty, ef.graders.length)
      local either = ef.grader.any(ef.graders.exact_match, ef.graders.length)
      local case = ef.case {input = "x", expected = "ab"}
      return {both.check({text = "abc"}, case), (both.check({text = ""}, case)),
        (either.check({text = "ab"}, case)), (either.check({text = "abc"}, case)), both.name}""")
        == [
            3,
            False,
            True,
            3,
            "all(not_empty,length)",
        ]
    )


def test_the_answer_of_a_strategy_is_found_in_its_result() -> None:
    found = evaluated("""
      local text_of = ef.providers.algocline.text_of
      return {text_of("a"), text_of({result = "b"}), text_of({result = {answer = "c"}}),
        text_of({result = {n = 1}}), text_of({n = 2}), text_of(3)}""")
    assert found == ["a", "b", "c", '{"n":1}', '{"n":2}', "3"]


def test_cases_of_a_module() -> None:
    assert evaluated("""
      package.preload.list = function() return {{input = "a"}, ef.case "b" {input = "b"}} end
      local cases = ef.load_cases("list")
      return {#cases, ef.case.is_case(cases[1]), cases[2].name}""") == [2, True, "b"]


def test_a_package_evalframe_of_the_user_comes_first(tmp_path: Path) -> None:
    package(tmp_path, "evalframe", "return {mine = std.json.encode({1}), now = std.time.now()}")
    life = Life("return require('evalframe').mine", roots=[tmp_path])
    life.step()
    assert life.outcome.value == "[1]"


def test_the_program_reads_no_files_through_std() -> None:
    assert run("""require("evalframe")
      return {std.fs.is_file("/etc/passwd"), (pcall(std.fs.read, "/etc/passwd"))}""") == [
        False,
        False,
    ]
