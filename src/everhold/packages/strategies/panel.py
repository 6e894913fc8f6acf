"""A panel: several roles take positions, debate, and a moderator concludes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Final

from msgspec import Meta

from everhold.packages.strategies.metadata import Estimate, Paper, Strategy, TaskText
from everhold.packages.strategies.parse import extract_answer, find_marked_text, normalize_answer
from everhold.packages.strategies.prompt import LONG_ANSWER_TOKENS, build_prompt, wrap_in_tags
from everhold.ports.context import Context
from everhold.ports.program import program

ROLES: Final = (
    "the expert, who knows how it is done and why",
    "the sceptic, who looks for what is wrong or missing",
    "the practitioner, who has to live with the result",
)
_POSITION = """
You are one member of a panel: {role}. Answer the task below from your own judgement; the others answer apart from you.
Give your reasons in a few sentences, then your answer.
"""  # noqa: E501
_REPLY = """
You are one member of a panel: {role}. Below are your own position (the draft) and those of the others. Where they are
right and you are not, change your mind; where they are wrong, say why. Do not agree for the sake of agreement.
Give your reasons in a few sentences, then your answer.
"""  # noqa: E501
_CONCLUSION = """
You moderate a panel. Below are the last positions of its members. Weigh their reasons, not their number or tone; where
reasons are even, the majority counts. If an objection remains that the reader should know, put it into the answer.
"""  # noqa: E501

Role = Annotated[str, Meta(min_length=1)]
Roles = Annotated[list[Role], Meta(min_length=1, max_length=12)]
Seats = Annotated[
    Roles | None,
    Meta(description="The roles on the panel; by default an expert, a sceptic and a practitioner."),
]
Debates = Annotated[
    int,
    Meta(
        ge=0,
        le=5,
        description="Rounds in which each role sees the other positions and answers again.",
    ),
]


@dataclass(frozen=True, slots=True)
class Position:
    """The last position of one role."""

    role: str
    answer: str
    reasons: str


@dataclass(frozen=True, slots=True)
class Conclusion:
    """The result of `panel`."""

    answer: str
    agreed: bool  # whether all roles ended with the same answer
    positions: list[Position]
    debates: int  # rounds of debate


@program
async def panel(
    ctx: Context, task: TaskText, roles: Seats = None, debates: Debates = 1
) -> Conclusion:
    """Let several roles take positions and debate; a moderator concludes."""
    seats = list(roles or ROLES)
    ctx.progress(0, debates + 2, f"{len(seats)} positions")
    texts = await ctx.llm_batch(
        [build_prompt(_POSITION.format(role=role), task=task, whole=True) for role in seats]
    )
    held = 0
    while held < debates and len(seats) > 1 and not _agree(texts):
        held += 1
        ctx.progress(held, debates + 2, f"debate {held}")
        heard = [
            _build_reply_prompt(role, number, texts, task) for number, role in enumerate(seats)
        ]
        replies = await ctx.llm_batch(heard)
        texts = [
            reply if reply.strip() else before for reply, before in zip(replies, texts, strict=True)
        ]
    ctx.progress(debates + 1, debates + 2, "conclusion")
    shown = [wrap_in_tags("position", text, label) for label, text in enumerate(texts, 1)]
    concluded = extract_answer(
        await ctx.llm(
            build_prompt(_CONCLUSION, *shown, task=task, whole=True), max_tokens=LONG_ANSWER_TOKENS
        )
    )
    positions = [
        Position(role, extract_answer(text), text.strip())
        for role, text in zip(seats, texts, strict=True)
    ]
    return Conclusion(concluded or positions[0].answer, _agree(texts), positions, held)


def _build_reply_prompt(role: str, own: int, texts: list[str], task: str) -> str:
    """The prompt of one role in a debate, with the positions of the other roles and without
    names.
    """
    others = [text for number, text in enumerate(texts) if number != own]
    shown = [wrap_in_tags("position", text, label) for label, text in enumerate(others, 1)]
    return build_prompt(
        _REPLY.format(role=role), wrap_in_tags("draft", texts[own]), *shown, task=task, whole=True
    )


def _agree(texts: list[str]) -> bool:
    """Whether all roles gave the same answer, as far as it can be compared."""
    answers = [find_marked_text(text, "answer") for text in texts]
    return None not in answers and len({normalize_answer(answer or "") for answer in answers}) == 1


def _cost(roles: list[str] | None, debates: int, **_: Any) -> Estimate:
    seats = len(roles or ROLES)
    if seats == 1:
        return Estimate.exactly(2, 2)
    return Estimate.between((seats + 1, seats * (debates + 1) + 1), (2, debates + 2))


STRATEGY = Strategy(
    program=panel,
    summary="Several roles answer independently and debate, then a moderator concludes.",
    use_when="The task has sides: decisions, reviews, designs, risks. Also for short answers"
    " that a debate can settle.",
    not_when="There is one known way to the answer; a panel only makes it longer.",
    papers=(
        Paper(
            "Improving Factuality and Reasoning in Language Models through Multiagent Debate",
            "Yilun Du, Shuang Li, Antonio Torralba, Joshua B. Tenenbaum, Igor Mordatch",
            2023,
        ),
    ),
    formula="roles × (debates + 1) + 1 answers in debates + 2 rounds; no further debate once all"
    " agree",
    cost=_cost,
)
