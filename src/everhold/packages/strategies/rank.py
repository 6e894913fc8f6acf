"""Rank: candidates are compared in pairs in a knockout tournament; the winner is the answer.

Models favour one position of a pair. So each pair is judged twice, once in each order. If the two
judgements contradict each other, a random number decides.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from everhold.packages.strategies.metadata import Estimate, Paper, Strategy, TaskText
from everhold.packages.strategies.parse import extract_answer, parse_choice
from everhold.packages.strategies.prompt import (
    LONG_ANSWER_TOKENS,
    build_prompt,
    get_approach,
    wrap_in_tags,
)
from everhold.ports.context import Context
from everhold.ports.program import program

_CANDIDATE = """
Do the task below on your own, as if nobody had tried before. {approach}
"""
_MATCH = """
Two answers to the task below stand here. Which one is better? What counts is, in this order: that it is correct, that
it does all of the task, that it is clear. Neither length nor order counts.
Name the deciding difference in one sentence. Then end with the line BETTER: 1 or BETTER: 2.
"""  # noqa: E501

Text = Annotated[str, Meta(min_length=1)]
Given = Annotated[list[Text], Meta(min_length=1, max_length=64)]
Candidates = Annotated[
    Given | None, Meta(description="Answers to choose from; without them, `n` are written.")
]
Number = Annotated[
    int, Meta(ge=1, le=32, description="How many candidates are written if none are given.")
]


@dataclass(frozen=True, slots=True)
class RankedCandidate:
    """A candidate and its pairs."""

    answer: str
    wins: int  # pairs won


@dataclass(frozen=True, slots=True)
class Match:
    """One comparison of two candidates."""

    winner: str
    loser: str
    by: str  # "both orders", "one order" (the other could not be read) or "dice"


@dataclass(frozen=True, slots=True)
class Ranking:
    """The result of `rank`."""

    answer: str
    ranking: list[RankedCandidate]
    matches: list[Match]


@program
async def rank(
    ctx: Context, task: TaskText, candidates: Candidates = None, n: Number = 4
) -> Ranking:
    """Compare candidates in pairs, and return the one that wins all of its pairs."""
    entered = _drop_empty(list(candidates) if candidates else await _written(ctx, task, n))
    left = list(entered)
    ctx.rng().shuffle(left)  # so that the order of the list does not decide the pairs
    matches: list[Match] = []
    while len(left) > 1:
        ctx.progress(len(entered) - len(left), len(entered) - 1, f"{len(left)} candidates are left")
        pairs = list(zip(left[::2], left[1::2], strict=False))
        odd = left[2 * len(pairs) :]
        played = await _judged(ctx, task, [pair for pair in pairs if pair[0] != pair[1]])
        matches += played
        decided = iter(played)
        left = [one if one == other else next(decided).winner for one, other in pairs] + odd
    best = left[0]
    wins = Counter(match.winner for match in matches)
    places = [RankedCandidate(text, wins[text]) for text in dict.fromkeys(entered)]
    places.sort(key=lambda place: (place.answer != best, -place.wins))
    return Ranking(best, places, matches)


async def _written(ctx: Context, task: str, n: int) -> list[str]:
    prompts = [
        build_prompt(_CANDIDATE.format(approach=get_approach(number)), task=task, whole=True)
        for number in range(n)
    ]
    return [
        extract_answer(text) for text in await ctx.llm_batch(prompts, max_tokens=LONG_ANSWER_TOKENS)
    ]


async def _judged(ctx: Context, task: str, pairs: list[tuple[str, str]]) -> list[Match]:
    """Judge all pairs at once, each in both orders."""
    if not pairs:
        return []
    prompts = [
        _match(task, *order) for one, other in pairs for order in ((one, other), (other, one))
    ]
    choices = [parse_choice(text, 2, "better") for text in await ctx.llm_batch(prompts)]
    return [_decided(ctx, pair, choices[2 * i], choices[2 * i + 1]) for i, pair in enumerate(pairs)]


def _decided(
    ctx: Context, pair: tuple[str, str], forwards: int | None, backwards: int | None
) -> Match:
    votes = [] if forwards is None else [forwards - 1]
    votes += [] if backwards is None else [2 - backwards]
    if len(set(votes)) == 1:
        first = votes[0]
        by = "both orders" if len(votes) == 2 else "one order"
    else:
        first = int(ctx.random() < 0.5)
        by = "dice"
    return Match(pair[first], pair[1 - first], by)


def _match(task: str, one: str, other: str) -> str:
    return build_prompt(
        _MATCH, wrap_in_tags("candidate", one, 1), wrap_in_tags("candidate", other, 2), task=task
    )


def _drop_empty(texts: list[str]) -> list[str]:
    """Drop empty candidates, but keep one. Equal candidates all stay, so that agreement counts."""
    return [text.strip() for text in texts if text.strip()] or [""]


def _cost(candidates: list[str] | None, n: int, **_: Any) -> Estimate:
    entered = len(_drop_empty(candidates)) if candidates else n
    judged = 2 * (entered - 1)
    rounds = (entered - 1).bit_length()
    if candidates and len({text.strip() for text in candidates}) == len(candidates):
        return Estimate.exactly(judged, rounds)
    if candidates:
        return Estimate.between((0, judged), (0, rounds))
    return Estimate.between((n, n + judged), (1, 1 + rounds))


STRATEGY = Strategy(
    program=rank,
    summary="Writes several candidates and compares them in pairs, in both orders, until one is"
    " left.",
    use_when="Candidates are texts that cannot be voted on, and it is easier to compare two than"
    " to give marks.",
    not_when="The answer is short and comparable: self_consistency is cheaper.",
    papers=(
        Paper(
            "Large Language Models are Effective Text Rankers with Pairwise Ranking Prompting",
            "Zhen Qin, Rolf Jagerman, Kai Hui et al.",
            2023,
        ),
    ),
    formula="n + 2 × (n − 1) answers in 1 + ⌈log₂ n⌉ rounds; less where candidates are equal,"
    " and without n and 1 "
    "where candidates are given",
    cost=_cost,
)
