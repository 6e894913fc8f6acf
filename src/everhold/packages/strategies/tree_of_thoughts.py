"""Tree of thoughts: proposes and values next steps for each path, and keeps the best paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from msgspec import Meta

from everhold.packages.strategies.metadata import Estimate, Paper, Strategy, TaskText
from everhold.packages.strategies.parse import extract_answer, parse_list, parse_score
from everhold.packages.strategies.prompt import (
    LONG_ANSWER_TOKENS,
    build_prompt,
    number_lines,
    wrap_in_tags,
)
from everhold.ports.context import Context
from everhold.ports.program import program

UNREADABLE_VALUE: Final = 5.0  # the value of a path if the answer is unreadable

_PROPOSAL = """
The task below is solved step by step. Propose {branches} next steps that differ in kind, each a continuation of the
steps so far (if there are any). One or two sentences each, concrete enough to be carried out; carry out what can be
carried out now. Write a numbered list and nothing else.
"""  # noqa: E501
_VALUE = """
Below are the first steps towards a solution of the task. Judge how likely it is that they lead to a right solution:
look for mistakes, dead ends and conditions that are already violated. 10 means surely, 5 undecided, 0 impossible.
Give your reason in one sentence. Then end with the line SCORE: and one number from 0 to 10.
"""  # noqa: E501
_CONCLUSION = """
Below are the steps that were chosen for the task. Carry them out to the end; correct a step that turns out to be wrong.
"""  # noqa: E501

Depth = Annotated[int, Meta(ge=1, le=10, description="How many steps deep the tree is.")]
Branches = Annotated[
    int, Meta(ge=1, le=10, description="How many next steps are proposed for each path.")
]
Beam = Annotated[int, Meta(ge=1, le=10, description="How many paths are kept after each level.")]


@dataclass(frozen=True, slots=True)
class Thought:
    """A path of steps, and its score."""

    steps: list[str]
    score: float
    kept: bool


@dataclass(frozen=True, slots=True)
class ThoughtTree:
    """The result of `tree_of_thoughts`."""

    answer: str
    steps: list[str]  # the chosen path
    score: float
    levels: list[list[Thought]]  # all thoughts, by level


@program
async def tree_of_thoughts(
    ctx: Context, task: TaskText, depth: Depth = 2, branches: Branches = 3, beam: Beam = 2
) -> ThoughtTree:
    """Grow a tree of next steps, keep the best paths of each level, and conclude from the best."""
    paths: list[list[str]] = [[]]
    best = 0.0
    levels = list[list[Thought]]()
    for level in range(depth):
        ctx.progress(2 * level, 2 * depth + 1, f"level {level + 1}: next steps")
        words = _PROPOSAL.format(branches=branches)
        proposals = await ctx.llm_batch(
            [build_prompt(words, *_shown(path), task=task) for path in paths]
        )
        grown = [
            [*path, step]
            for path, text in zip(paths, proposals, strict=True)
            for step in parse_list(text, branches)
        ]
        if not grown:
            break
        ctx.progress(2 * level + 1, 2 * depth + 1, f"level {level + 1}: {len(grown)} paths")
        values = await _values(ctx, task, grown)
        order = sorted(range(len(grown)), key=lambda at: -values[at])
        kept = order[:beam]
        best = values[order[0]]
        paths = [grown[at] for at in kept]
        levels.append([Thought(grown[at], values[at], at in kept) for at in order])
    ctx.progress(2 * depth, 2 * depth + 1, "conclusion")
    replies = await ctx.llm(
        build_prompt(_CONCLUSION, *_shown(paths[0]), task=task, whole=True),
        max_tokens=LONG_ANSWER_TOKENS,
    )
    return ThoughtTree(extract_answer(replies), paths[0], best, levels)


async def _values(ctx: Context, task: str, paths: list[list[str]]) -> list[float]:
    replies = await ctx.llm_batch(
        [build_prompt(_VALUE, *_shown(path), task=task) for path in paths]
    )
    return [UNREADABLE_VALUE if (value := parse_score(text)) is None else value for text in replies]


def _shown(path: list[str]) -> list[str]:
    return [wrap_in_tags("steps", number_lines(path))] if path else []


def _cost(depth: int, branches: int, beam: int, **_: Any) -> Estimate:
    answers = 1
    width = 1
    for _level in range(depth):
        answers += width + width * branches
        width = min(beam, width * branches)
    return Estimate.between((2, answers), (2, 2 * depth + 1))


STRATEGY = Strategy(
    program=tree_of_thoughts,
    summary="Searches a tree of next steps: proposes several, values each, and follows the best"
    " few.",
    use_when="A first step can lead into a dead end that shows only later: puzzles, plans,"
    " proofs, searches.",
    not_when="Most first steps lead to the goal: cot costs a fraction.",
    papers=(
        Paper(
            "Tree of Thoughts: Deliberate Problem Solving with Large Language Models",
            "Shunyu Yao, Dian Yu, Jeffrey Zhao et al.",
            2023,
        ),
    ),
    formula="at most 1 + Σ over levels of width × (1 + branches) answers in 2 × depth + 1"
    " rounds; the width is 1 at "
    "first, then beam (or as many paths as there are)",
    cost=_cost,
)
