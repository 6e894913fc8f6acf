"""What a strategy costs is what it said it would cost: answers, and rounds of answering everything
that is open.
"""

import itertools
import re
from math import ceil, log2

import pytest

from everhold.errors import BadArguments
from everhold.packages.strategies import NAMES, strategies, strategy
from everhold.packages.strategies.metadata import CostSpan, Estimate
from tests.unit.packages.simulated import play

NUMBER = itertools.count()


def diligent(prompt: str) -> str:
    """A model that never ends early and never repeats itself."""
    number = next(NUMBER)
    if "numbered list" in prompt:
        return "\n".join(f"{at}. What about {number}-{at}?" for at in range(1, 40))
    for word, said in {"VERDICT": "REVISE", "SCORE": "6", "BETTER": "2", "CHOICE": "1"}.items():
        if f"line {word}:" in prompt:
            return f"Reason {number}.\n{word}: {said}"
    return f"Reason {number}.\nANSWER: {number}" if "ANSWER:" in prompt else f"Step {number}"


def hasty(prompt: str) -> str:
    """A model that ends wherever it may."""
    if "DONE" in prompt:
        return "DONE"
    if "NONE" in prompt:
        return "NONE"
    if "numbered list" in prompt:
        return ""
    return "VERDICT: KEEP" if "line VERDICT:" in prompt else "ANSWER: 4"


#: The cost with all that may be asked, counted by hand: arguments, answers, rounds.
MOST = [
    ("cot", {}, 4, 4),
    ("cot", {"steps": 1}, 2, 2),
    ("cot", {"steps": 7}, 8, 8),
    ("reflect", {}, 5, 5),
    ("reflect", {"revisions": 1}, 3, 3),
    ("reflect", {"revisions": 4}, 9, 9),
    ("self_consistency", {}, 6, 2),
    ("self_consistency", {"samples": 1}, 1, 1),
    ("self_consistency", {"samples": 20}, 21, 2),
    ("cove", {}, 7, 4),
    ("cove", {"checks": 1}, 4, 4),
    ("panel", {}, 7, 3),
    ("panel", {"debates": 0}, 4, 2),
    ("panel", {"roles": ["a", "b", "c", "d"], "debates": 2}, 13, 4),
    ("panel", {"roles": ["alone"], "debates": 2}, 2, 2),
    ("rank", {}, 10, 3),
    ("rank", {"n": 1}, 1, 1),
    ("rank", {"n": 2}, 4, 2),
    ("rank", {"n": 7}, 19, 4),
    ("rank", {"candidates": ["only"]}, 0, 0),
    ("rank", {"candidates": ["a", "b", "c", "d", "e"]}, 8, 3),
    ("tree_of_thoughts", {}, 13, 5),
    ("tree_of_thoughts", {"depth": 1, "branches": 1, "beam": 1}, 3, 3),
    ("tree_of_thoughts", {"depth": 3, "branches": 2, "beam": 5}, 22, 7),
    ("ucb", {}, 13, 7),
    ("ucb", {"pulls": 1}, 3, 3),
    ("ucb", {"approaches": ["a", "b"], "pulls": 7, "at_once": 3}, 14, 6),
    ("ucb", {"arms": 4, "pulls": 4, "at_once": 8}, 9, 3),
]
LEAST = [
    ("cot", {}, 2, 2),
    ("reflect", {}, 2, 2),
    ("self_consistency", {}, 5, 1),
    ("cove", {}, 2, 2),
    ("panel", {}, 4, 2),
    ("rank", {}, 4, 1),
    ("rank", {"candidates": ["same", "same"]}, 0, 0),
    ("tree_of_thoughts", {}, 2, 2),
    ("ucb", {}, 13, 7),
]


@pytest.mark.parametrize(("name", "args", "answers", "rounds"), MOST)
def test_the_most_it_can_cost(name, args, answers, rounds):
    chosen = strategy(name)
    (played,) = play([chosen.program(task="Do it.", **args)], diligent)
    assert (played.answers, played.rounds) == (answers, rounds)
    told = chosen.estimate(args)
    assert (told.answers.most, told.rounds.most) == (answers, rounds)


@pytest.mark.parametrize(("name", "args", "answers", "rounds"), LEAST)
def test_the_least_it_can_cost(name, args, answers, rounds):
    chosen = strategy(name)
    (played,) = play([chosen.program(task="Do it.", **args)], hasty)
    assert (played.answers, played.rounds) == (answers, rounds)
    told = chosen.estimate(args)
    assert (told.answers.least, told.rounds.least) == (answers, rounds)


FORMULAS = [
    ("self_consistency", {"samples": 1}),
    ("self_consistency", {"samples": 50}),
    ("cove", {"checks": 1}),
    ("cove", {"checks": 20}),
    ("panel", {"debates": 0}),
    ("panel", {"debates": 5}),
    ("rank", {"n": 1}),
    ("rank", {"n": 9}),
    ("ucb", {"pulls": 1}),
    ("ucb", {"arms": 8, "pulls": 3, "at_once": 1}),
    ("ucb", {"arms": 2, "pulls": 9, "at_once": 4}),
]


@pytest.mark.parametrize(("name", "args"), FORMULAS)
def test_the_formula_that_people_read_is_the_cost(name, args):
    """The vote of self-consistency that needs one more is told beside its formula."""
    told = strategy(name)
    given = {one.name: one.default for one in told.parameters} | {"roles": 3} | args
    answers, rounds = re.match(r"(.+?) answers in (.+?) rounds?\b", told.formula).groups()
    more = 1 if name == "self_consistency" and args["samples"] > 1 else 0
    cost = told.estimate(args)
    assert (reckoned(answers, given) + more, reckoned(rounds, given) + more) == (
        cost.answers.most,
        cost.rounds.most,
    )


def reckoned(formula, given):
    """A formula as people write it, with these numbers."""
    formula = formula.replace("log₂ n", "log2(n)").replace("×", "*").replace("−", "-")
    formula = formula.replace("⌈", "ceil(").replace("⌉", ")")
    return eval(formula, {"ceil": ceil, "log2": log2, "max": max}, given)


def test_what_is_independent_is_asked_at_once():
    """Seven candidates in one round, then six judgements, four and two."""
    (played,) = play([strategy("rank").program("Do it.", n=7)], diligent)
    assert played.widths == [7, 6, 4, 2]


# What it says of itself


@pytest.mark.parametrize("name", NAMES)
def test_a_strategy_says_what_one_has_to_know(name):
    told = strategy(name)
    assert told.program.ref == f"everhold.packages.strategies.{name}:{name}"
    assert all(text.endswith(".") for text in (told.summary, told.use_when, told.not_when))
    assert all(paper.year > 1950 and paper.authors for paper in told.papers) and told.papers
    assert [one.required for one in told.parameters] == [True] + [False] * (
        len(told.parameters) - 1
    )
    assert told.parameters[0].name == "task" and all(one.description for one in told.parameters)
    numbers = [one.name for one in told.parameters if isinstance(one.default, int)]
    assert any(name in told.formula for name in numbers), "the formula names what it depends on"


def test_the_listing_has_them_all_in_order():
    assert tuple(one.name for one in strategies()) == NAMES


def test_an_estimate_reads_well():
    assert str(Estimate.exactly(1, 1)) == "1 answer in 1 round"
    assert str(Estimate.between((5, 6), (1, 2))) == "5–6 answers in 1–2 rounds"
    assert Estimate(CostSpan(5, 6), CostSpan(2, 2)).plain == {
        "answers": {"min": 5, "max": 6},
        "rounds": 2,
    }


BAD = [
    ("cot", {"steps": 0}, "steps should be"),
    ("cot", {"steps": "many"}, "steps should be"),
    ("cot", {"step": 3}, "no argument 'step'"),
    ("cot", {"task": ""}, "task should be"),
    ("cot", {"task": 7}, "task should be"),
    ("reflect", {"revisions": 11}, "revisions should be"),
    ("self_consistency", {"samples": -1}, "samples should be"),
    ("cove", {"checks": 0}, "checks should be"),
    ("panel", {"roles": []}, "roles should be"),
    ("panel", {"roles": [""]}, "roles[0] should be"),
    ("panel", {"debates": 1.5}, "debates should be"),
    ("rank", {"n": 0}, "n should be"),
    ("rank", {"candidates": [1]}, "candidates[0] should be"),
    ("tree_of_thoughts", {"beam": 0}, "beam should be"),
    ("ucb", {"explore": -0.5}, "explore should be"),
    ("ucb", {"pulls": 0}, "pulls should be"),
]


@pytest.mark.parametrize(("name", "args", "words"), BAD)
def test_arguments_that_do_not_fit_are_refused_before_anything_begins(name, args, words):
    chosen = strategy(name)
    with pytest.raises(BadArguments) as refused:
        chosen.program(**{"task": "Do it.", **args})
    assert words in str(refused.value)
    with pytest.raises(BadArguments):
        chosen.estimate(args)


def test_a_strategy_needs_a_task():
    with pytest.raises(BadArguments, match="task"):
        strategy("cot").program()
