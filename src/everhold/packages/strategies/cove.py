"""Chain of verification: questions, answered without the draft, check a draft and correct it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from everhold.packages.strategies.metadata import Estimate, Paper, Strategy, TaskText
from everhold.packages.strategies.parse import extract_answer, is_only, parse_list
from everhold.packages.strategies.prompt import LONG_ANSWER_TOKENS, build_prompt, wrap_in_tags
from everhold.ports.context import Context
from everhold.ports.program import program

_DRAFT = """
Do the task below. Be concrete: names, numbers and dates where the task asks for them.
"""
_PLAN = """
Below is a draft of an answer. Write questions that check its facts: one fact a question, each understandable without
the draft, and none that tells the draft's own claim (ask "When was X founded?", not "Was X founded in 1901?").
Write at most {most} questions, the most doubtful facts first, as a numbered list and nothing else. If the draft states
nothing that could be checked, write the one word NONE.
"""  # noqa: E501
_CHECK = """
Answer the question below in one or two sentences, from what you know for certain. If you do not know, say so.
"""  # noqa: E501
_REVISION = """
Below are a draft of an answer and checks of its facts, which were made without looking at the draft. Write the answer
anew: keep what the checks confirm, correct what they contradict, and leave out, or mark as uncertain, what they could
not settle.
"""  # noqa: E501

Checks = Annotated[
    int, Meta(ge=1, le=20, description="How many questions may be asked to check the draft.")
]


@dataclass(frozen=True, slots=True)
class FactCheck:
    """A question about the draft, and what was found."""

    question: str
    finding: str


@dataclass(frozen=True, slots=True)
class VerifiedAnswer:
    """The result of `cove`."""

    answer: str
    draft: str
    checks: list[FactCheck]


@program
async def cove(ctx: Context, task: TaskText, checks: Checks = 4) -> VerifiedAnswer:
    """Draft an answer, check its facts independently, and correct it."""
    ctx.progress(0, 4, "draft")
    draft = extract_answer(
        await ctx.llm(build_prompt(_DRAFT, task=task, whole=True), max_tokens=LONG_ANSWER_TOKENS)
    )
    ctx.progress(1, 4, "questions")
    plan = await ctx.llm(
        build_prompt(_PLAN.format(most=checks), wrap_in_tags("draft", draft), task=task)
    )
    questions = [] if is_only(plan, "none") else parse_list(plan, checks)
    if not questions:
        return VerifiedAnswer(draft, draft, [])
    ctx.progress(2, 4, f"{len(questions)} checks")
    findings = await ctx.llm_batch(
        [f"{_CHECK.strip()}\n\n{wrap_in_tags('question', one)}" for one in questions]
    )
    checked = [
        FactCheck(one, finding.strip()) for one, finding in zip(questions, findings, strict=True)
    ]
    ctx.progress(3, 4, "revision")
    shown = [
        wrap_in_tags("check", f"{one.question}\n{one.finding}", label)
        for label, one in enumerate(checked, 1)
    ]
    reply = await ctx.llm(
        build_prompt(_REVISION, wrap_in_tags("draft", draft), *shown, task=task, whole=True),
        max_tokens=LONG_ANSWER_TOKENS,
    )
    return VerifiedAnswer(extract_answer(reply) or draft, draft, checked)


def _cost(checks: int, **_: Any) -> Estimate:
    return Estimate.between((2, checks + 3), (2, 4))


STRATEGY = Strategy(
    program=cove,
    summary="Checks the facts of a draft by questions that are answered without seeing it, then"
    " corrects it.",
    use_when="The answer states facts that the model may invent: lists, biographies, dates,"
    " references.",
    not_when="The answer is an opinion or a derivation: there is nothing that can be asked apart"
    " from it.",
    papers=(
        Paper(
            "Chain-of-Verification Reduces Hallucination in Large Language Models",
            "Shehzaad Dhuliawala, Mojtaba Komeili, Jing Xu et al.",
            2023,
        ),
    ),
    formula="checks + 3 answers in 4 rounds; fewer if fewer questions are needed, 2 answers if"
    " nothing can be checked",
    cost=_cost,
)
