"""Chain of thought: one answer for each step, then a conclusion."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from everhold.packages.strategies.metadata import Estimate, Paper, Strategy, TaskText
from everhold.packages.strategies.parse import extract_answer, is_only
from everhold.packages.strategies.prompt import (
    LONG_ANSWER_TOKENS,
    build_prompt,
    number_lines,
    shorten_text,
    wrap_in_tags,
)
from everhold.ports.context import Context
from everhold.ports.program import program

_STEP = """
Solve the task below one step at a time. Write the next step only: work it out, check it, and build on the steps that
are there. Do not repeat them. If every step is there and only the answer remains to be told, write the one word DONE.
"""  # noqa: E501
_CONCLUSION = """
The steps below were worked out for the task. Go through them once more; correct what is wrong. Then give the answer.
"""  # noqa: E501

Steps = Annotated[
    int, Meta(ge=1, le=20, description="How many steps it may take before it has to conclude.")
]


@dataclass(frozen=True, slots=True)
class ThoughtChain:
    """The result of `cot`."""

    answer: str
    steps: list[str]


@program
async def cot(ctx: Context, task: TaskText, steps: Steps = 3) -> ThoughtChain:
    """Think one step at a time, then conclude."""
    taken: list[str] = []
    for number in range(steps):
        ctx.progress(number, steps + 1, f"step {number + 1}")
        step = await ctx.llm(build_prompt(_STEP, *_so_far(taken), task=task))
        if is_only(step, "done"):
            break
        if step.strip():
            taken.append(shorten_text(step.strip()))
    ctx.progress(steps, steps + 1, "conclusion")
    reply = await ctx.llm(
        build_prompt(_CONCLUSION, *_so_far(taken), task=task, whole=True),
        max_tokens=LONG_ANSWER_TOKENS,
    )
    return ThoughtChain(extract_answer(reply), taken)


def _so_far(steps: list[str]) -> list[str]:
    return [wrap_in_tags("steps", number_lines(steps))] if steps else []


def _cost(steps: int, **_: Any) -> Estimate:
    return Estimate.between((2, steps + 1), (2, steps + 1))


STRATEGY = Strategy(
    program=cot,
    summary="Thinks one step at a time, each step in an answer of its own, then concludes.",
    use_when="The task has several dependent steps (arithmetic, planning, diagnosis) and one"
    " straight way.",
    not_when="The task is a matter of recall or taste, or the model reasons at length by itself.",
    papers=(
        Paper(
            "Chain-of-Thought Prompting Elicits Reasoning in Large Language Models",
            "Jason Wei, Xuezhi Wang, Dale Schuurmans et al.",
            2022,
        ),
    ),
    formula="2 to steps + 1 answers, one a round; it ends early when the model says that it is"
    " done",
    cost=_cost,
)
