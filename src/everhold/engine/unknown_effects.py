"""Effects that were started and whose outcome nobody recorded.

What happens to one was declared with its call: `rerun="safe"` runs it again, `"never"` tells the
program that the outcome is unknown, and `"ask"` makes a question of it: a person says whether to
run it again, its result, or its error.
"""

from __future__ import annotations

from typing import Final

import msgspec

from everhold.core.query import Kind, Query, QueryAnswer, Rerun
from everhold.errors import OutcomeUnknown

#: What a person may answer: one of the three.
RERUN_ANSWER_SCHEMA: Final = {
    "type": "object",
    "properties": {"rerun": {"const": True}, "result": True, "error": {"type": "string"}},
    "additionalProperties": False,
    "minProperties": 1,
    "maxProperties": 1,
}


def is_unsafe_to_rerun(query: Query) -> bool:
    """Whether this is an effect that may not simply be run again."""
    return query.kind is Kind.CALL and query.rerun is not Rerun.SAFE


def make_rerun_question(query: Query) -> Query:
    """The question that is put to a person."""
    prompt = (
        f"{query.name} was started and its outcome was not recorded. Run it again, or give"
        " its result?"
    )
    return msgspec.structs.replace(query, prompt=prompt, schema=RERUN_ANSWER_SCHEMA)


def make_unknown_answer(query: Query) -> QueryAnswer:
    """What a program is told instead of a result."""
    return QueryAnswer(query.q, error={"code": OutcomeUnknown.code, "message": query.name})


def apply_rerun_decision(answer: QueryAnswer) -> QueryAnswer:
    """What a person said, as the outcome of the effect."""
    said = answer.value
    if isinstance(said, dict) and "error" in said:
        return msgspec.structs.replace(
            answer, value=None, error={"code": "error", "message": said["error"]}
        )
    if isinstance(said, dict) and "result" in said:
        return msgspec.structs.replace(answer, value=said["result"])
    return answer
