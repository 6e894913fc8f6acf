"""UCB: approaches to a task are arms of a bandit, and marks of a judge decide what is tried next.

The rule is UCB1: try every arm once, then always the one with the highest mean plus a bonus that
shrinks with each attempt. The attempts of a round are chosen together; a running attempt counts as
made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log, sqrt
from typing import Annotated, Any, Final

from msgspec import Meta

from everhold.packages.strategies.metadata import Estimate, Paper, Strategy, TaskText
from everhold.packages.strategies.parse import extract_answer, parse_list, parse_score
from everhold.packages.strategies.prompt import (
    APPROACHES,
    LONG_ANSWER_TOKENS,
    build_prompt,
    wrap_in_tags,
)
from everhold.ports.context import Context
from everhold.ports.program import program

UNREADABLE_MARK: Final = 0.5  # the mark of an attempt if the answer is unreadable

_LIST = """
Name {arms} approaches to the task below that really differ: in method, not in wording. One sentence each, as an
instruction to whoever will follow it. Write a numbered list and nothing else. Do not do the task yet.
"""  # noqa: E501
_ATTEMPT = """
Do the task below. Follow the given approach as far as it serves the task, and in nothing that leads away from it.
"""  # noqa: E501
_MARK = """
Give marks to the answer to the task below. Check it before you judge it: do the calculation, look for the case that it
forgets. 10 means right and complete, 5 half right, 0 wrong. Be strict: most answers are not a 10.
Give your reason in one sentence. Then end with the line SCORE: and one number from 0 to 10.
"""  # noqa: E501

Text = Annotated[str, Meta(min_length=1)]
Given = Annotated[list[Text], Meta(min_length=1, max_length=8)]
Ways = Annotated[
    Given | None, Meta(description="Approaches to try; without them, the model names some.")
]
Arms = Annotated[
    int, Meta(ge=1, le=8, description="How many approaches the model names if none are given.")
]
Pulls = Annotated[int, Meta(ge=1, le=64, description="How many attempts are made in all.")]
Explore = Annotated[
    float,
    Meta(
        ge=0,
        le=10,
        description="The weight of rarely tried approaches against good marks; UCB1 has 1.",
    ),
]
Width = Annotated[int, Meta(ge=1, le=8, description="How many attempts are made at the same time.")]


@dataclass(slots=True)
class Arm:
    approach: str
    marks: list[float] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return sum(self.marks) / len(self.marks) if self.marks else 0.0


@dataclass(frozen=True, slots=True)
class Solution:
    """One attempt with an approach."""

    answer: str
    approach: str
    mark: float  # between 0 and 1


@dataclass(frozen=True, slots=True)
class TriedArm:
    """An approach, and how it did."""

    approach: str
    attempts: int
    mean: float


@dataclass(frozen=True, slots=True)
class BanditResult:
    """The result of `ucb`."""

    answer: str
    approach: str
    mark: float
    arms: list[TriedArm]
    attempts: list[Solution]


@program
async def ucb(
    ctx: Context,
    task: TaskText,
    approaches: Ways = None,
    arms: Arms = 3,
    pulls: Pulls = 6,
    explore: Explore = 0.5,
    at_once: Width = 2,
) -> BanditResult:
    """Spend attempts on the approaches with the best marks; returns the best answer."""
    tried = [Arm(words) for words in approaches or await _named(ctx, task, arms)]
    attempts: list[tuple[Solution, Arm]] = []
    chosen = tried[:pulls]
    while chosen:
        ctx.progress(len(attempts), pulls, f"{len(chosen)} attempts")
        attempts += await _made(ctx, task, chosen)
        chosen = _next(tried, min(at_once, pulls - len(attempts)), explore)
    best, arm = max(attempts, key=lambda made: (bool(made[0].answer), made[0].mark, made[1].mean))
    tried_arms = [TriedArm(one.approach, len(one.marks), one.mean) for one in tried]
    return BanditResult(
        best.answer, arm.approach, best.mark, tried_arms, [attempt for attempt, _ in attempts]
    )


async def _named(ctx: Context, task: str, arms: int) -> list[str]:
    """The approaches that the model names, filled up with built-in ones."""
    found = parse_list(await ctx.llm(build_prompt(_LIST.format(arms=arms), task=task)), arms)
    return [*found, *(words for words in APPROACHES if words not in found)][:arms]


async def _made(ctx: Context, task: str, chosen: list[Arm]) -> list[tuple[Solution, Arm]]:
    """Make one attempt with each arm, all at once, then mark them, all at once."""
    prompts = [
        build_prompt(_ATTEMPT, wrap_in_tags("approach", arm.approach), task=task, whole=True)
        for arm in chosen
    ]
    replies = await ctx.llm_batch(prompts, max_tokens=LONG_ANSWER_TOKENS)
    answers = [extract_answer(text) for text in replies]
    judged = await ctx.llm_batch(
        [build_prompt(_MARK, wrap_in_tags("answer", answer), task=task) for answer in answers]
    )
    made = []
    for arm, answer, text in zip(chosen, answers, judged, strict=True):
        value = parse_score(text)
        mark = UNREADABLE_MARK if value is None else value / 10
        arm.marks.append(mark)
        made.append((Solution(answer, arm.approach, mark), arm))
    return made


def _next(arms: list[Arm], count: int, explore: float) -> list[Arm]:
    """The arms of the next attempts. Each choice counts as an attempt before it is marked."""
    pulled = [len(arm.marks) for arm in arms]
    chosen = []
    for _ in range(count):
        total = sum(pulled)
        index = [
            arm.mean + explore * sqrt(2 * log(total) / pulled[at]) for at, arm in enumerate(arms)
        ]
        best = index.index(max(index))
        pulled[best] += 1
        chosen.append(arms[best])
    return chosen


def _cost(approaches: list[str] | None, arms: int, pulls: int, at_once: int, **_: Any) -> Estimate:
    first = min(pulls, len(approaches) if approaches else arms)
    turns = 1 + -(-(pulls - first) // at_once)
    named = 0 if approaches else 1
    return Estimate.exactly(named + 2 * pulls, named + 2 * turns)


STRATEGY = Strategy(
    program=ucb,
    summary="Tries several approaches, has every attempt marked, and spends the rest on those"
    " that do best.",
    use_when="It is not known which method suits the task, attempts vary, and a judge can mark"
    " them.",
    not_when="Marks say little (taste, unverifiable facts), or there is only one sensible method.",
    papers=(
        Paper(
            "Finite-time Analysis of the Multiarmed Bandit Problem",
            "Peter Auer, Nicolò Cesa-Bianchi, Paul Fischer",
            2002,
        ),
    ),
    formula="1 + 2 × pulls answers in 1 + 2 × (1 + ⌈max(pulls − arms, 0) / at_once⌉) rounds;"
    " where approaches are "
    "given, they are the arms, and the first 1 is left out",
    cost=_cost,
)
