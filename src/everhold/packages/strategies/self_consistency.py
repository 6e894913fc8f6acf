"""Self-consistency: several independent attempts, and the answer that most of them agree on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Annotated, Any

from msgspec import Meta

from everhold.packages.strategies.metadata import Estimate, Paper, Strategy, TaskText
from everhold.packages.strategies.parse import extract_short_answer, normalize_answer, parse_choice
from everhold.packages.strategies.prompt import build_prompt, get_approach, wrap_in_tags
from everhold.ports.context import Context
from everhold.ports.program import program

_ATTEMPT = """
Solve the task below on your own, as if nobody had tried before. {approach}
Reason first. Then end with one line that begins with ANSWER: and holds only the answer, as short as the task allows.
"""  # noqa: E501
_CHOICE = """
Several attempts at the task below ended with different answers, and none has a majority. Work out which one is right,
or agrees best with what the others have in common. End with the line CHOICE: and the number of that answer.
"""  # noqa: E501

Samples = Annotated[
    int, Meta(ge=1, le=50, description="How many independent attempts are made, all in one round.")
]


@dataclass(frozen=True, slots=True)
class AnswerCount:
    """An answer, and how many attempts gave it."""

    answer: str
    votes: int


@dataclass(frozen=True, slots=True)
class Vote:
    """The result of `self_consistency`."""

    answer: str
    confidence: float  # the share of attempts with this answer
    tally: list[AnswerCount]
    attempts: list[str]


@program
async def self_consistency(ctx: Context, task: TaskText, samples: Samples = 5) -> Vote:
    """Make several independent attempts and take the answer on which most agree."""
    ctx.progress(0, 2, f"{samples} attempts")
    prompts = [
        build_prompt(_ATTEMPT.format(approach=get_approach(number)), task=task)
        for number in range(samples)
    ]
    attempts = await ctx.llm_batch(prompts)
    answers = [
        short
        for attempt in attempts
        if (short := extract_short_answer(attempt)) and normalize_answer(short)
    ]
    counts = Counter(normalize_answer(answer) for answer in answers)
    words = {normalize_answer(answer): answer for answer in reversed(answers)}
    tally = [AnswerCount(words[key], count) for key, count in counts.most_common()]
    tied = [one for one in tally if one.votes == tally[0].votes]
    answer = tied[0].answer if tied else ""
    if len(tied) > 1:
        ctx.progress(1, 2, f"{len(tied)} answers are even")
        shown = [wrap_in_tags("answer", one.answer, label) for label, one in enumerate(tied, 1)]
        reply = await ctx.llm(build_prompt(_CHOICE, *shown, task=task))
        answer = tied[(parse_choice(reply, len(tied), "choice") or 1) - 1].answer
    votes = next((one.votes for one in tally if one.answer == answer), 0)
    return Vote(answer, votes / samples, tally, [attempt.strip() for attempt in attempts])


def _cost(samples: int, **_: Any) -> Estimate:
    if samples == 1:
        return Estimate.exactly(1, 1)
    return Estimate.between((samples, samples + 1), (1, 2))


STRATEGY = Strategy(
    program=self_consistency,
    summary="Makes several independent attempts at once and takes the answer on which most agree.",
    use_when="The answer is short and can be compared (a number, a name, a choice), and the"
    " model is right more often "
    "than it is wrong in any one way.",
    not_when="The answer is a text: no two attempts will be equal. Use rank or panel.",
    papers=(
        Paper(
            "Self-Consistency Improves Chain of Thought Reasoning in Language Models",
            "Xuezhi Wang, Jason Wei, Dale Schuurmans et al.",
            2022,
        ),
    ),
    formula="samples answers in 1 round; 1 answer and 1 round more if the vote has no single"
    " winner",
    cost=_cost,
)
