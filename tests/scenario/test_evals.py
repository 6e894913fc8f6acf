"""Evals: sessions that run a program on each case of a scenario, and grade what it returns."""

import asyncio
from collections import Counter

import pytest

import everhold
from everhold.errors import (
    BadScenario,
    EvalsDiffer,
    KeyConflict,
    NotAnEval,
    UnknownProgram,
    UnknownSession,
)
from everhold.evals import Case, Custom, Judge, Scenario
from everhold.evals.evaluation import evaluate
from everhold.evals.scenario import read_scenario
from everhold.testing import crash_everywhere
from everhold.testing.clock import ManualClock
from tests.failures import collect_failures
from tests.scenario.harness import opened

CAPITALS = Scenario(
    "capitals",
    [
        Case("France?", "Paris", id="france", tags=["europe"]),
        Case("Italy?", "Rome", id="italy", tags=["europe"]),
        Case("Japan?", "Tokyo", id="japan", tags=["asia"]),
    ],
    graders=["contains"],
)


@everhold.program
async def ask(ctx, question: str, polite: bool = False) -> str:
    reply = await ctx.llm(f"Please: {question}" if polite else question)
    if reply == "crash":
        raise ValueError("the program failed")
    return reply


@everhold.program
async def ask_in_depth(ctx, question: str):
    return {"verdict": {"text": await ctx.llm(question)}, "answer": "see verdict"}


@everhold.program
async def divide(ctx, dividend: int, divisor: int) -> float:
    return dividend / divisor


def shout(text, case):
    if case["id"] == "japan":
        raise RuntimeError("the grader broke")
    return (text.isupper(), f"{case['input']} was asked")


async def whisper(text, case):
    return 7 if case["id"] == "france" else text.islower()


class Known:
    """A model that knows some capitals, and counts its questions."""

    def __init__(self, **more):
        self.asked = Counter()
        self.answers = {"France?": "Paris.", "Italy?": "It is Rome", "Japan?": "Kyoto"} | more

    async def __call__(self, query):
        self.asked[query.prompt] += 1
        return self.answers[query.prompt]


async def test_a_report():
    """Each case is graded; the report has counts, scores, tags, failures and cost."""
    async with opened(llm=Known()) as runtime:
        report = await runtime.evals.run(CAPITALS, ask)
        found = report.aggregated
        assert (found.total, found.passed, report.program) == (3, 2, "ask")
        assert found.scores.mean == pytest.approx(2 / 3) and found.pass_at_1 == pytest.approx(2 / 3)
        assert found.by_tag["europe"].rate == 1 and found.by_tag["asia"].fail == 1
        assert [one.case.name for one in report.failures] == ["japan"]
        assert report.failures[0].grades[0].reason == "expected a text with 'Tokyo', got 'Kyoto'"
        assert report.usage.llm_calls == 3 and report.usage.total_tokens > 3
        assert "2 of 3 cases passed (67%)" in report.summary


async def test_each_case_is_a_session():
    """Cases are child sessions of the eval, titled with their ids."""
    async with opened(llm=Known()) as runtime:
        report = await runtime.evals.run(CAPITALS, ask)
        cases = await runtime.sessions(parent=report.eval_id)
        assert {info.title for info in cases} == {"france", "italy", "japan"}
        assert {one.response.session_id for one in report.results} == {c.session_id for c in cases}


async def test_the_result_has_the_form_of_algocline():
    """The session returns the report as JSON with upstream's keys."""
    async with opened(llm=Known()) as runtime:
        report = await runtime.evals.run(CAPITALS, ask)
        plain = (await runtime.status(report.eval_id)).result
        assert {"name", "aggregated", "failures", "results", "summary"} <= plain.keys()
        figures = {"total", "passed", "pass_rate", "pass_at_1", "scores", "ci_95", "by_tag"}
        assert figures <= plain["aggregated"].keys()
        assert plain["aggregated"]["scores"].keys() == {
            *("n", "mean", "std_dev", "min", "max", "median")
        }
        assert plain["aggregated"]["by_tag"]["asia"].keys() == {"pass", "fail", "rate", "stats"}
        assert plain["results"][0].keys() >= {"case", "response", "grades", "score", "passed"}


async def test_a_program_that_fails_on_a_case():
    """The case failed, with the program's error; the others are evaluated."""
    async with opened(llm=Known(**{"Italy?": "crash"})) as runtime:
        report = await runtime.evals.run(CAPITALS, ask)
        assert report.aggregated.passed == 1 and report.aggregated.total == 3
        italy = next(one for one in report.results if one.case.name == "italy")
        assert italy.response.error == "failed: ValueError: the program failed"
        assert italy.score == 0 and italy.grades == []


async def test_custom_graders():
    """A function decides, async or not. One that raises or returns nonsense fails its case only."""
    async with opened(llm=Known(**{"France?": "PARIS", "Italy?": "rome"})) as runtime:
        scenario = Scenario("s", CAPITALS.cases, graders=[Custom(shout), Custom(whisper, weight=3)])
        report = await runtime.evals.run(scenario, ask)
        france, italy, japan = report.results
        assert (france.grades[0].score, france.grades[0].reason) == (1, "France? was asked")
        assert "must return a score from 0 to 1" in france.grades[1].error
        assert (italy.grades[1].score, italy.score) == (1, 0.75)
        assert "the grader broke" in japan.grades[0].error and japan.grades[1].score == 0


async def test_a_judge():
    """The judge's question has criterion, input and answer; its verdict is the grade."""
    asked = []

    async def model(query):
        if "VERDICT" not in query.prompt:
            return "Rome, my friend"
        asked.append(query)
        return "It is friendly.\nVERDICT: PASS"

    async with opened(llm=model) as runtime:
        scenario = Scenario("s", [("Italy?", "Rome")], graders=[Judge("Is it friendly?")])
        report = await runtime.evals.run(scenario, ask)
        assert report.results[0].grades[0].score == 1
        assert report.results[0].grades[0].reason == "It is friendly."
        assert all(
            word in asked[0].prompt for word in ("friendly?", "Italy?", "Rome, my friend", "Rome")
        )
        assert report.usage.llm_calls == 2


async def test_a_judge_without_a_verdict():
    """It is asked once more; then the case has failed, and the report quotes the judge."""
    asked = []

    async def model(query):
        asked.append(query.prompt)
        return "Who knows?"

    async with opened(llm=model) as runtime:
        scenario = Scenario("s", [("Italy?", "Rome")], graders=[Judge("Is it friendly?")])
        report = await runtime.evals.run(scenario, ask)
        assert report.failures[0].grades[0].error == "the judge gave no verdict: 'Who knows?'"
        assert len(asked) == 3 and "could not be read" in asked[2]


async def test_arguments_and_outputs():
    """`args` go to every case, and `output` names the answer in the result."""
    async with opened(llm=Known(**{f"Please: {q}": "Paris" for q in ("France?",)})) as runtime:
        scenario = Scenario("s", [("France?", "Paris")])
        assert (
            await runtime.evals.run(scenario, ask, args={"polite": True})
        ).aggregated.passed == 1
        deep = await runtime.evals.run(
            Scenario("s", [("France?", "Paris.")]), ask_in_depth, output="verdict.text"
        )
        assert deep.aggregated.passed == 1
        missing = await runtime.evals.run(scenario, ask_in_depth, output="verdict.words")
        assert "has no 'verdict.words'" in missing.failures[0].response.error


async def test_inputs_with_arguments_by_name():
    """An input that is an object with the program's arguments is passed by name."""
    cases = [({"dividend": 1, "divisor": 8}, 0.125), ({"dividend": 1, "divisor": 0}, 0)]
    async with opened() as runtime:
        report = await runtime.evals.run(Scenario("s", cases, graders=["number"]), divide)
        assert [one.passed for one in report.results] == [True, False]
        assert "ZeroDivisionError" in report.failures[0].response.error


async def test_a_strategy():
    """A built-in strategy is evaluated by its name; its answer is graded."""
    async with opened(llm=lambda query: _said("ANSWER: Paris")) as runtime:
        report = await runtime.evals.run(
            Scenario("s", [("France?", "Paris")]), "self_consistency", args={"samples": 2}
        )
        assert report.aggregated.passed == 1 and report.program == "self_consistency"


async def _said(words):
    return words


async def test_concurrency():
    """At most so many cases run at once."""
    running = Counter()

    async def model(query):
        running["now"] += 1
        running["most"] = max(running["most"], running["now"])
        await asyncio.sleep(0)
        running["now"] -= 1
        return "x"

    scenario = Scenario("s", [(f"{n}?", "x") for n in range(9)])
    async with opened(llm=model) as runtime:
        await runtime.evals.run(scenario, ask, concurrency=2)
        assert running["most"] <= 2
        with pytest.raises(everhold.errors.BadArguments, match="concurrency"):
            await runtime.evals.run(scenario, ask, concurrency=0)


async def test_a_budget():
    """No case begins when the budget is spent; the report names those that did not run."""
    scenario = Scenario("s", [(f"{n}?", "x") for n in range(6)])
    async with opened(llm=lambda query: _said("x")) as runtime:
        report = await runtime.evals.run(scenario, ask, concurrency=1, budget={"max_llm_calls": 2})
        assert report.aggregated.total == 2
        assert report.not_run == ["case-3", "case-4", "case-5", "case-6"]
        assert report.stopped.startswith("max_llm_calls (2) reached")
        assert "stopped early" in report.summary


# ---- waiting, and running again


async def test_a_paused_eval():
    """Without a model the eval waits; its questions are answered like any other, then it ends."""
    async with opened() as runtime:
        with pytest.raises(everhold.Waiting) as waiting:
            await runtime.evals.run(CAPITALS, ask, key="e")
        assert sorted(query.prompt for query in waiting.value.queries) == [
            *("France?", "Italy?", "Japan?")
        ]
        assert (await runtime.status("e")).state == "paused"
        with pytest.raises(NotAnEval, match="0 of 3 cases are done"):
            await runtime.evals.show("e")
        for query in await runtime.evals.questions("e"):
            await runtime.answer(query, "Paris Rome Tokyo")
        report = await runtime.evals.run(CAPITALS, ask, key="e")
        assert report.aggregated.passed == 3


async def test_run_again_with_a_model():
    """Questions left open by a process without a model are asked by the next one, once."""
    model = Known()
    async with opened(replay=False) as first:
        with pytest.raises(everhold.Waiting) as waiting:
            await first.evals.run(CAPITALS, ask, key="e")
        question = next(one for one in waiting.value.queries if one.prompt == "France?")
        await first.answer(question, "Paris")
        async with opened(on=first.store, llm=model) as second:
            assert (await second.evals.run(CAPITALS, ask, key="e")).aggregated.passed == 2
    assert model.asked == {"Italy?": 1, "Japan?": 1}


async def test_an_eval_that_has_ended_is_not_run_again():
    """The same key gives the same report; another scenario under it is a conflict."""
    model = Known()
    async with opened(llm=model) as runtime:
        first = await runtime.evals.run(CAPITALS, ask, key="e")
        assert await runtime.evals.run(CAPITALS, ask, key="e") == first
        assert max(model.asked.values()) == 1
        with pytest.raises(KeyConflict):
            await runtime.evals.run(Scenario("other", [("France?", "Paris")]), ask, key="e")


async def test_two_evals_of_one_second():
    """Evals without a key are two, also if they begin at the same moment."""
    async with opened(llm=Known()) as runtime:
        one, two = await asyncio.gather(
            runtime.evals.run(CAPITALS, ask), runtime.evals.run(CAPITALS, ask)
        )
        assert one.eval_id != two.eval_id
        assert len(await runtime.evals.list()) == 2


@pytest.mark.timeout(240)
def test_killed_at_every_commit():
    """Wherever the process dies, the next one runs only what is missing, and reports the same."""
    scenario = read_scenario({"name": "s", "cases": [["a?", "A"], ["b?", "B"]]})
    report = crash_everywhere(
        evaluate(
            scenario=scenario.to_plain(),
            subject={"ref": ask.ref, "name": "ask", "parameter": "question"},
            concurrency=2,
        ),
        answers={"a?": "A", "b?": "C"},
    )
    assert report.commits > 5
    assert report.result["aggregated"]["passed"] == 1
    assert {name.rpartition(":")[2] for name in report.repeated} <= {"measure_session"}


async def test_killed_in_the_middle_on_sqlite(tmp_path):
    """After a process that stops in the middle, no case runs twice."""
    gate = asyncio.Event()
    counted = Counter()

    async def stops(query):
        counted[query.prompt] += 1
        if query.prompt == "Japan?":
            gate.set()
            await asyncio.Event().wait()
        return "Paris Rome"

    async with opened(tmp_path, llm=stops, replay=False) as runtime:
        task = asyncio.create_task(runtime.evals.run(CAPITALS, ask, key="e", concurrency=1))
        await gate.wait()
        task.cancel()
        await runtime.close(0)
    async with opened(tmp_path, llm=Known()) as runtime:
        report = await runtime.evals.run(CAPITALS, ask, key="e", concurrency=1)
        assert report.aggregated.passed == 2
    assert counted == {"France?": 1, "Italy?": 1, "Japan?": 1}


async def test_progress():
    """The callback sees each case that has ended, with the cost so far."""
    seen = []
    async with opened(llm=Known()) as runtime:
        await runtime.evals.run(CAPITALS, ask, concurrency=1, progress=seen.append)
    assert (seen[0].total, seen[-1].done, seen[-1].passed) == (3, 3, 2)
    assert seen[-1].llm_calls == 3 and seen[-1].total_tokens > 0


# ---- listing and comparing


async def test_list():
    """Newest first, by scenario, program and state."""
    clock = ManualClock()
    async with opened(llm=Known(), clock=clock) as runtime:
        first = await runtime.evals.run(CAPITALS, ask)
        clock.advance(1)
        second = await runtime.evals.run(CAPITALS, ask_in_depth)
        listed = await runtime.evals.list()
        assert [info.session_id for info in listed] == [second.eval_id, first.eval_id]
        assert (listed[1].passed, listed[1].total, listed[1].state) == (2, 3, "completed")
        assert [info.program for info in await runtime.evals.list(program="ask")] == ["ask"]
        assert await runtime.evals.list(scenario="others") == []
        assert len(await runtime.evals.list(limit=1, state="completed")) == 1


async def test_compare():
    """Evals with the same cases are compared in pairs; the sentence says who is better."""
    cases = [Case(f"{n}?", "x", id=f"c{n}") for n in range(12)]
    scenario = Scenario("s", cases)

    async def model(query):
        return "x" if query.prompt.startswith("Please") or query.prompt == "1?" else "y"

    async with opened(llm=model) as runtime:
        rude = await runtime.evals.run(scenario, ask)
        kind = await runtime.evals.run(scenario, ask, args={"polite": True})
        found = await runtime.evals.compare(rude.eval_id, kind.eval_id)
        assert (found.better, found.method, found.pairs) == ("b", "paired bootstrap", 12)
        assert found.summary.startswith("B is better by 91.7 points (95 % CI ")
        back = await runtime.evals.compare(kind.eval_id, rude.eval_id)
        assert back.better == "a" and back.summary.startswith("A is better by 91.7 points")
        same = await runtime.evals.compare(rude.eval_id, rude.eval_id)
        assert same.better == "none"
        assert same.summary.startswith("no difference can be shown: ")


async def test_cases_that_changed_are_no_pairs():
    """If most cases differ, the groups are compared by Welch's t."""
    async with opened(llm=lambda query: _said("x")) as runtime:
        one = await runtime.evals.run(Scenario("s", [(f"{n}?", "x") for n in range(9)]), ask)
        two = await runtime.evals.run(Scenario("s", [(f"{n}!", "y") for n in range(9)]), ask)
        found = await runtime.evals.compare(one.eval_id, two.eval_id)
        assert (found.method, found.pairs, found.better) == ("welch", 0, "a")


async def test_evals_of_different_scenarios():
    """They measured different things."""
    async with opened(llm=Known()) as runtime:
        one = await runtime.evals.run(CAPITALS, ask)
        two = await runtime.evals.run(Scenario("other", CAPITALS.cases), ask)
        with pytest.raises(EvalsDiffer, match="'capitals' and 'other'"):
            await runtime.evals.compare(one.eval_id, two.eval_id)


async def test_sessions_that_are_no_evals():
    """Other sessions, and unknown ones, are told apart."""
    async with opened(llm=Known()) as runtime:
        await runtime.run(ask(question="France?"), key="mine")
        with pytest.raises(NotAnEval, match="not an eval"):
            await runtime.evals.show("mine")
        with pytest.raises(UnknownSession):
            await runtime.evals.show("nothing")


async def test_nothing_begins_with_wrong_arguments():
    """Each mistake is told before anything is stored."""
    wrong = [
        ({"scenario": {"cases": []}}, BadScenario, "no cases"),
        ({"scenario": "missing.toml"}, BadScenario, "no such file"),
        ({"program": "asc"}, UnknownProgram, "asc"),
        ({"program": 7}, everhold.errors.BadArguments, "not a program"),
        ({"args": {"rude": 1}}, everhold.errors.BadArguments, "no parameter 'rude'"),
        ({"parameter": "questions"}, BadScenario, "does not fit ask"),
        ({"budget": {"max_calls": 1}}, everhold.errors.BadSetting, "budget"),
        (
            {"scenario": {"cases": [["a", "b"]], "graders": [f"{__name__}:gone"]}},
            everhold.errors.UnknownGrader,
            "gone",
        ),
        (
            {
                "scenario": {
                    "cases": [["a", "b"]],
                    "graders": [{"type": "custom", "function": f"{__name__}:gone"}],
                }
            },
            BadScenario,
            "gone",
        ),
    ]
    async with opened(llm=Known()) as runtime:
        with collect_failures() as row:
            for changed, error, words in wrong:
                with row(str(changed)):
                    given = {"scenario": CAPITALS, "program": ask, **changed}
                    with pytest.raises(error, match=words):
                        await runtime.evals.run(**given)
        assert await runtime.sessions() == []
