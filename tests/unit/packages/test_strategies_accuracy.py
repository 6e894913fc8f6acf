"""Each strategy makes a model of known accuracy right more often than it is by itself, by more than
chance explains.
"""

import random
import re
from typing import ClassVar

from everhold.packages.strategies.cot import cot
from everhold.packages.strategies.cove import cove
from everhold.packages.strategies.panel import panel
from everhold.packages.strategies.rank import rank
from everhold.packages.strategies.reflect import reflect
from everhold.packages.strategies.self_consistency import self_consistency
from everhold.packages.strategies.tree_of_thoughts import tree_of_thoughts
from everhold.packages.strategies.ucb import ucb
from tests.unit.packages.simulated import Model, better, count, parts, play, task_of, tasks, truth

TRIALS = 200


# Self-consistency


def test_a_vote_is_right_more_often_than_a_single_attempt():
    """Wrong attempts differ from each other and right ones do not."""
    model = Model(right=0.5)

    def answer(prompt):
        if "CHOICE:" in prompt:
            return "I would say 1."
        return f"Let me see.\nANSWER: {model.attempt(task_of(prompt))}."

    played = play([self_consistency(task, samples=7) for task in tasks(TRIALS)], answer)
    assert better(sum(normal_answer(one) == truth(task) for task, one in zip(tasks(TRIALS), played, strict=True)),  # noqa: E501
                  model.single(TRIALS), TRIALS)  # fmt: skip


def normal_answer(played):
    return int(played.result["answer"].strip(". "))


def test_an_even_vote_is_decided_by_a_further_question():
    """Two answers of equal weight are shown, and the one that is chosen is taken."""
    said = iter(
        ["ANSWER: 4", "ANSWER: 5", "ANSWER: 5", "ANSWER: 4", "It must be the other. CHOICE: 2"]
    )
    asked = []

    def answer(prompt):
        asked.append(prompt)
        return next(said)

    (played,) = play([self_consistency("2 + 3?", samples=4)], answer)
    assert (played.result["answer"], played.result["confidence"], played.widths) == (
        "5",
        0.5,
        [4, 1],
    )
    assert parts(asked[-1], "answer") == ["4", "5"]


def test_answers_that_mean_the_same_are_counted_together():
    said = iter(
        [
            "ANSWER: $1,200",
            "**Answer:** 1200.",
            "The answer is 1200.00",
            "ANSWER: 900",
            "ANSWER: 900",
        ]
    )
    (played,) = play([self_consistency("How much?", samples=5)], lambda prompt: next(said))
    assert [(one["answer"], one["votes"]) for one in played.result["tally"]] == [
        ("$1,200", 3),
        ("900", 2),
    ]


# Chain of thought


class OneStep:
    """A model that does one operation an answer: it can follow the steps it is shown, and guesses
    what is left over.
    """

    def __init__(self, *, right: float, seed: int = 1) -> None:
        self.model = Model(right=right, seed=seed)

    def __call__(self, prompt: str) -> str:
        operations = [int(number) for number in re.findall(r"add (\d+)", task_of(prompt))]
        shown = parts(prompt, "steps")
        steps = [int(number) for number in re.findall(r"= (\d+)", shown[0])] if shown else []
        if "ANSWER:" not in prompt:
            return self._next(operations, steps)
        if len(steps) < len(operations):
            return f"ANSWER: {self.model.dice.randrange(100, 1000)}"
        return f"ANSWER: {steps[-1]}"

    def _next(self, operations, steps):
        if len(steps) == len(operations):
            return "DONE"
        total = (steps[-1] if steps else 0) + operations[len(steps)]
        return f"I add. That makes = {total if self.model.chance(self.model.right) else total + 1}"


def test_steps_are_carried_from_answer_to_answer():
    """What no single answer can do, a chain of answers does; it ends when nothing is left to do."""
    dice = random.Random(3)
    sums = [[dice.randrange(10, 99) for _ in range(4)] for _ in range(TRIALS)]
    problems = [
        "Begin at 0, " + ", ".join(f"add {number}" for number in numbers) for numbers in sums
    ]
    model = OneStep(right=0.95)
    played = play([cot(problem, steps=8) for problem in problems], model)
    alone = [model(f"ANSWER:\n<task>\n{problem}\n</task>") for problem in problems]
    right = sum(
        one.result["answer"] == str(sum(numbers)) for one, numbers in zip(played, sums, strict=True)
    )
    single = sum(one == f"ANSWER: {sum(numbers)}" for one, numbers in zip(alone, sums, strict=True))
    assert better(right, single, TRIALS)
    assert right > 0.7 * TRIALS  # 0.95 to the fourth is 0.81
    # four steps, DONE, and the conclusion
    assert {(one.answers, one.rounds) for one in played} == {(6, 6)}


# Reflection


def test_a_draft_is_mended_where_the_critic_sees_that_it_is_wrong():
    model = Model(right=0.5, judge=0.85)

    def answer(prompt):
        task = task_of(prompt)
        if "End with the line VERDICT:" in prompt:
            well = model.sees(parts(prompt, "draft") == [str(truth(task))])
            return "VERDICT: KEEP" if well else "The sum is wrong.\n\n**VERDICT: REVISE**"
        if shown := parts(prompt, "draft"):
            assert parts(prompt, "critique")[0].startswith("The sum is wrong.")
            return (
                f"ANSWER: {model.attempt(task, 0.6)}"
                if model.chance(0.9)
                else f"ANSWER: {shown[0]}"
            )
        return f"ANSWER: {model.attempt(task)}"

    played = play([reflect(task, revisions=3) for task in tasks(TRIALS)], answer)
    assert better(count(played, TRIALS), model.single(TRIALS), TRIALS)


def test_a_content_critic_ends_it():
    said = iter(["ANSWER: 12", "Nothing to add.\nVERDICT: keep"])
    (played,) = play([reflect("3 * 4?")], lambda prompt: next(said))
    assert (played.result["answer"], played.result["settled"], played.answers) == ("12", True, 2)


def test_praise_that_begins_with_keep_is_not_a_verdict():
    said = iter(
        ["ANSWER: 13", "Keep the form, but the product is wrong.", "ANSWER: 12", "VERDICT: KEEP"]
    )
    (played,) = play([reflect("3 * 4?")], lambda prompt: next(said))
    assert (played.result["answer"], played.answers) == ("12", 4)


# Chain of verification


class Encyclopedia(Model):
    """Knows each fact of a list with probability `right`, and a fact that is asked for alone with
    `judge`.
    """

    def answer(self, prompt: str) -> str:
        if "NONE" in prompt:
            names = re.findall(r"(\w+) = ", parts(prompt, "draft")[0])
            return "\n".join(f"{at}. When was {name} founded?" for at, name in enumerate(names, 1))
        if alone := parts(prompt, "question"):
            assert "<draft>" not in prompt and "<task>" not in prompt  # it must not see the draft
            (name,) = re.findall(r"was (\w+) founded", alone[0])
            return f"{name} was founded in {self.year(name, self.judge)}."
        names = re.findall(r"city\d+", task_of(prompt))
        years = {name: str(self.year(name, self.right)) for name in names}
        if drafted := parts(prompt, "draft"):
            years = dict(re.findall(r"(\w+) = (\d+)", drafted[0]))
            for check in parts(prompt, "check"):
                years |= dict(re.findall(r"(\w+) was founded in (\d+)", check))
        return "ANSWER:\n" + "\n".join(f"{name} = {year}" for name, year in years.items())

    def year(self, name: str, right: float) -> int:
        return founded(name) if self.chance(right) else 3000


def founded(name: str) -> int:
    return 1000 + int(name.removeprefix("city"))


def test_facts_that_are_checked_alone_are_corrected():
    """A model that knows a fact better when it is asked for it alone corrects its list; the checks
    see no draft.
    """
    model = Encyclopedia(right=0.5, judge=0.85)
    lists = [[f"city{4 * trial + at}" for at in range(4)] for trial in range(60)]
    played = play([cove(f"When were {', '.join(names)} founded?") for names in lists], model.answer)
    names = [name for listed in lists for name in listed]
    told = dict(
        pair for one in played for pair in re.findall(r"(\w+) = (\d+)", one.result["answer"])
    )
    drafted = dict(
        pair for one in played for pair in re.findall(r"(\w+) = (\d+)", one.result["draft"])
    )
    right = sum(told[name] == str(founded(name)) for name in names)
    before = sum(drafted[name] == str(founded(name)) for name in names)
    assert better(right, before, len(names))
    assert {tuple(one.widths) for one in played} == {(1, 1, 4, 1)}


# Panel


def test_a_panel_is_right_more_often_than_one_of_its_members():
    """Who is wrong and hears the same answer twice often gives in; the moderator weighs what is
    left.
    """
    model = Model(right=0.55, judge=0.85)

    def answer(prompt):
        task, heard = task_of(prompt), parts(prompt, "position")
        answers = [text.rpartition("ANSWER: ")[2] for text in heard]
        if "You moderate" in prompt:
            return f"ANSWER: {max(answers, key=answers.count)}"
        if heard:
            own = parts(prompt, "draft")[0].rpartition("ANSWER: ")[2]
            agreed = [one for one in answers if answers.count(one) > 1 or one == own]
            right = next((one for one in answers if one == str(truth(task))), own)
            return f"ANSWER: {agreed[0] if agreed else right if model.chance(0.6) else own}"
        return f"Because.\nANSWER: {model.attempt(task)}"

    roles = ["a clerk", "a judge", "a poet", "a nurse", "a cook"]
    played = play([panel(task, roles=roles) for task in tasks(TRIALS)], answer)
    assert better(count(played, TRIALS), model.single(TRIALS), TRIALS)


def test_a_panel_that_agrees_does_not_debate():
    (played,) = play([panel("2 + 2?", debates=3)], lambda prompt: "Clearly.\nANSWER: 4")
    assert (played.widths, played.result["agreed"], played.result["debates"]) == ([3, 1], True, 0)


# Rank


def judged(model: Model, prompt: str) -> str:
    """Compares two candidates; without a difference it favours the first place."""
    target = truth(task_of(prompt))
    right = [candidate == f"{target}" for candidate in parts(prompt, "candidate")]
    if right[0] == right[1]:
        return "BETTER: 1"
    first = model.sees(right[0])
    return f"The numbers decide.\nBETTER: {1 if first else 2}"


def test_the_winner_of_a_tournament_is_right_more_often_than_any_candidate():
    model = Model(right=0.4, judge=0.8)

    def answer(prompt):
        if "BETTER:" in prompt:
            return judged(model, prompt)
        return f"ANSWER: {model.attempt(task_of(prompt))}"

    played = play([rank(task, n=8) for task in tasks(TRIALS)], answer)
    assert better(count(played, TRIALS), model.single(TRIALS), TRIALS)


def test_a_judge_that_only_sees_the_place_decides_nothing():
    """The same judgement in both orders contradicts itself: dice decide, and every candidate wins
    sometimes.
    """
    given = ["one", "two", "three", "four"]
    played = play([rank("Which?", candidates=given) for _ in range(40)], lambda prompt: "BETTER: 1")
    assert {one.result["answer"] for one in played} == set(given)
    assert {match["by"] for one in played for match in one.result["matches"]} == {"dice"}


def test_candidates_are_ranked_by_the_pairs_they_won():
    """A judge who knows the order finds the best one, whatever the pairs were."""
    order = ["best", "good", "fair", "poor", "worst"]

    def answer(prompt):
        one, other = parts(prompt, "candidate")
        return f"BETTER: {1 if order.index(one) < order.index(other) else 2}"

    (played,) = play([rank("Which?", candidates=order[::-1])], answer)
    assert played.result["answer"] == played.result["ranking"][0]["answer"] == "best"
    assert sum(place["wins"] for place in played.result["ranking"]) == 4
    assert {match["by"] for match in played.result["matches"]} == {"both orders"}


# Tree of thoughts


class Maze(Model):
    """Knows which way goes on with probability `judge`; by itself it takes any of three."""

    def answer(self, prompt: str) -> str:
        way = task_of(prompt).rpartition(" ")[2]
        shown = parts(prompt, "steps")
        taken = "".join(re.findall(r"go (\w)", shown[0])) if shown else ""
        if "Propose" in prompt:
            letters = self.dice.sample("abc", 3)
            return "\n".join(f"{at}) go {letter}" for at, letter in enumerate(letters, 1))
        if "SCORE:" in prompt:
            return f"SCORE: {8 if self.sees(way.startswith(taken)) else 2}/10"
        return f"ANSWER: {taken}"


def test_the_right_way_is_found_among_many():
    """A way of three turns is guessed once in 27 times; a search that sees dead ends finds most."""
    model = Maze(right=0.0, judge=0.85)
    ways = ["".join(model.dice.choice("abc") for _ in range(3)) for _ in range(TRIALS)]
    played = play(
        [tree_of_thoughts(f"The way is {way}", depth=3, beam=3) for way in ways], model.answer
    )
    right = sum(one.result["answer"] == way for one, way in zip(played, ways, strict=True))
    guessed = sum("".join(model.dice.choice("abc") for _ in range(3)) == way for way in ways)
    assert better(right, guessed, TRIALS)
    assert right > TRIALS / 3


def test_a_wider_beam_survives_a_wrong_value():
    """With a judge that errs, keeping three paths finds the way more often than keeping one."""
    ways = ["".join(random.Random(at).choice("abc") for _ in range(3)) for at in range(TRIALS)]
    found = {}
    for beam in (1, 3):
        model = Maze(right=0.0, judge=0.8)
        played = play(
            [tree_of_thoughts(f"The way is {way}", depth=3, beam=beam) for way in ways],
            model.answer,
        )
        found[beam] = sum(
            one.result["answer"] == way for one, way in zip(played, ways, strict=True)
        )
    assert better(found[3], found[1], TRIALS, sigmas=2)


# UCB


class Methods(Model):
    """Three methods, of which one works well; a judge whose marks are right with probability
    `judge`.
    """

    chances: ClassVar = {"guess": 0.1, "measure": 0.3, "derive": 0.8}

    def answer(self, prompt: str) -> str:
        task = task_of(prompt)
        if "SCORE:" in prompt:
            return f"SCORE: {9 if self.sees(parts(prompt, 'answer') == [str(truth(task))]) else 1}"
        if way := parts(prompt, "approach"):
            return f"ANSWER: {self.attempt(task, self.chances[way[0]])}"
        return "- guess\n- measure\n- derive"

    def alone(self, trials: int) -> int:
        """How often it is right when it takes any method, once."""
        chances = list(self.chances.values())
        return sum(
            self.attempt(task, self.dice.choice(chances)) == truth(task) for task in tasks(trials)
        )


def test_the_bandit_is_right_more_often_than_an_attempt():
    model = Methods(right=0.0, judge=0.8)
    played = play([ucb(task, pulls=9) for task in tasks(TRIALS)], model.answer)
    assert better(count(played, TRIALS), model.alone(TRIALS), TRIALS)


def test_the_bandit_spends_more_on_the_method_that_works():
    model = Methods(right=0.0, judge=0.85)
    played = play([ucb(task, pulls=15, at_once=1) for task in tasks(60)], model.answer)
    spent = dict.fromkeys(model.chances, 0)
    for one in played:
        for arm in one.result["arms"]:
            spent[arm["approach"]] += arm["attempts"]
    assert spent["derive"] > 1.5 * spent["measure"] > 1.5 * spent["guess"]
    assert sum(spent.values()) == 60 * 15
