"""The figures of an eval so far, which its session records after each case."""

from __future__ import annotations

from typing import Final

import msgspec

#: The program of an eval.
EVAL_REF: Final = "everhold.evals.evaluation:evaluate"
#: The name under which an eval records its figures.
TOTALS: Final = "eval"


class Totals(msgspec.Struct):
    """Cases done and passed, and what they cost."""

    done: int = 0
    passed: int = 0
    total: int = 0
    score: float = 0.0  # the sum of the scores
    llm_calls: int = 0
    total_tokens: int = 0
