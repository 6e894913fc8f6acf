"""Reflection: draft, critique and revision, until the critic accepts the draft or none are left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from everhold.packages.strategies.metadata import Estimate, Paper, Strategy, TaskText
from everhold.packages.strategies.parse import extract_answer, is_verdict
from everhold.packages.strategies.prompt import LONG_ANSWER_TOKENS, build_prompt, wrap_in_tags
from everhold.ports.context import Context
from everhold.ports.program import program

_DRAFT = """
Do the task below as well as you can.
"""
_CRITIQUE = """
Somebody answered the task below. Look for what is wrong with the answer: errors of fact or logic, parts of the task
that it misses, claims without support. Check calculations by doing them again. Name each problem in one line and say
how to fix it; leave out matters of taste.
End with the line VERDICT: KEEP if the answer can stand as it is, or VERDICT: REVISE if it has to change.
"""  # noqa: E501
_REVISION = """
An answer to the task below was criticised. Write it anew: fix every problem that is real, keep what is right,
and ignore criticism that is mistaken.
"""  # noqa: E501

Revisions = Annotated[int, Meta(ge=1, le=10, description="How often the draft may be revised.")]


@dataclass(frozen=True, slots=True)
class Reflection:
    """The result of `reflect`."""

    answer: str
    settled: bool  # whether the critic accepted the last draft
    drafts: list[str]
    critiques: list[str]


@program
async def reflect(ctx: Context, task: TaskText, revisions: Revisions = 2) -> Reflection:
    """Draft, criticise and revise, until the critic accepts the draft."""
    ctx.progress(0, 2 * revisions + 1, "draft")
    drafts = [
        extract_answer(
            await ctx.llm(
                build_prompt(_DRAFT, task=task, whole=True), max_tokens=LONG_ANSWER_TOKENS
            )
        )
    ]
    critiques: list[str] = []
    for turn in range(revisions):
        draft = wrap_in_tags("draft", drafts[-1])
        ctx.progress(2 * turn + 1, 2 * revisions + 1, "critique")
        critique = await ctx.llm(build_prompt(_CRITIQUE, draft, task=task))
        critiques.append(critique.strip())
        # an empty critique gives no reason to change the draft
        if is_verdict(critique, "keep") or not critique.strip():
            return Reflection(drafts[-1], bool(critique.strip()), drafts, critiques)
        ctx.progress(2 * turn + 2, 2 * revisions + 1, "revision")
        revised = await ctx.llm(
            build_prompt(
                _REVISION, draft, wrap_in_tags("critique", critique), task=task, whole=True
            ),
            max_tokens=LONG_ANSWER_TOKENS,
        )
        drafts.append(extract_answer(revised) or drafts[-1])
    return Reflection(drafts[-1], False, drafts, critiques)


def _cost(revisions: int, **_: Any) -> Estimate:
    most = 2 * revisions + 1
    return Estimate.between((2, most), (2, most))


STRATEGY = Strategy(
    program=reflect,
    summary="Writes a draft, criticises it, and revises it until the critic accepts it.",
    use_when="A good answer is easier to recognise than to write: code, prose, plans, anything"
    " with requirements.",
    not_when="The model cannot tell right from wrong in this field: it may talk itself out of a"
    " right answer.",
    papers=(
        Paper(
            "Self-Refine: Iterative Refinement with Self-Feedback",
            "Aman Madaan, Niket Tandon et al.",
            2023,
        ),
        Paper(
            "Reflexion: Language Agents with Verbal Reinforcement Learning",
            "Noah Shinn, Federico Cassano et al.",
            2023,
        ),
    ),
    formula="2 to 2 × revisions + 1 answers, one a round; it ends when the critic accepts",
    cost=_cost,
)
