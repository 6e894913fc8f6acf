"""The figures of an eval so far, which its session records after each case."""

from __future__ import annotations

from typing import Final

import msgspec

from everhold.core.codec import JSON

#: The program of an eval.
EVAL_REF: Final = "everhold.evals.evaluation:evaluate"
#: The name under which an eval records its figures.
TOTALS: Final = "eval"


class Totals(msgspec.Struct):
    """Cases done and passed, and what they cost. The session of a Lua eval knows the cost itself,
    and only here the name of the scenario.
    """

    done: int = 0
    passed: int = 0
    total: int = 0
    score: float = 0.0  # the sum of the scores
    llm_calls: int = 0
    total_tokens: int = 0
    scenario: str = ""


class EvalInfo(msgspec.Struct, frozen=True):
    """One eval in a listing. `mean_score` is that of the cases done so far.

    An eval in a file of algocline has the name of the file as its `session_id`.
    """

    session_id: str
    key: str | None
    scenario: str
    program: str
    args: dict[str, JSON]
    state: str
    total: int
    done: int
    passed: int
    mean_score: float
    llm_calls: int
    total_tokens: int
    created_at: float
    updated_at: float
