"""Effects that started and whose outcome was not recorded, because their process died.

The `rerun` of the call decides: `"safe"` runs it again, `"never"` answers the query with the error
`outcome_unknown`, and `"ask"` asks a person to run it again, or to give its result or its error.
"""

from __future__ import annotations

from typing import Final

import msgspec

from everhold.core.query import Kind, Query, QueryAnswer, Rerun
from everhold.errors import OutcomeUnknown

#: The answer of a person: one of the three.
RERUN_ANSWER_SCHEMA: Final = {
    "type": "object",
    "properties": {"rerun": {"const": True}, "result": True, "error": {"type": "string"}},
    "additionalProperties": False,
    "minProperties": 1,
    "maxProperties": 1,
}


def is_unsafe_to_rerun(query: Query) -> bool:
    """Whether an effect must not run again without a decision."""
    return query.kind is Kind.CALL and query.rerun is not Rerun.SAFE


def make_rerun_question(query: Query) -> Query:
    """The question for a person."""
    prompt = (
        f"{query.name} was started and its outcome was not recorded. Run it again, or give"
        " its result?"
    )
    return msgspec.structs.replace(query, prompt=prompt, schema=RERUN_ANSWER_SCHEMA)


def make_unknown_answer(query: Query) -> QueryAnswer:
    """The error that the program gets instead of a result."""
    return QueryAnswer(query.q, error={"code": OutcomeUnknown.code, "message": query.name})


def apply_rerun_decision(answer: QueryAnswer) -> QueryAnswer:
    """A person's decision as the answer of the effect's query."""
    said = answer.value
    if isinstance(said, dict) and "error" in said:
        return msgspec.structs.replace(
            answer, value=None, error={"code": "error", "message": said["error"]}
        )
    if isinstance(said, dict) and "result" in said:
        return msgspec.structs.replace(answer, value=said["result"])
    return answer
