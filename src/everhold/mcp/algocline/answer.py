"""Which questions the answers of a call are for, by the names of `query_ids.py`."""

from __future__ import annotations

from everhold.core.codec import is_same_json
from everhold.core.query import Usage
from everhold.mcp.algocline.query_ids import QueryNames
from everhold.mcp.algocline.render import AlcRefused
from everhold.mcp.algocline.tools import AlcResponse
from everhold.ports.answerer import Answer


def is_repeated(known: QueryNames, said: list[AlcResponse]) -> bool:
    """Whether this is what was answered last, word for word."""
    if not known.latest:
        return False
    if len(said) == 1 and not said[0].query_id:
        return len(known.latest) == 1 and is_same_json(
            known.answered[known.latest[0]].value, said[0].response
        )
    return all(
        one.query_id in known.latest
        and is_same_json(known.answered[one.query_id].value, one.response)
        for one in said
    )


def match_answers(
    known: QueryNames, said: list[AlcResponse], heard: QueryNames | None = None
) -> dict[str, Answer]:
    """The answers by our ids, without those that were given before.

    `heard` are the names as those who answer know them, if that was at an earlier step.
    """
    found: dict[str, Answer] = {}
    meanings = known if heard is None else heard
    for one in said:
        q = meanings.meant(one.query_id) if one.query_id else _sole(meanings)
        before = known.answered.get(one.query_id)
        if q is not None and q not in known.open.values():
            if q not in known.said or not is_same_json(known.said[q].value, one.response):
                raise AlcRefused(
                    f"Continue failed: already responded to query_id: {meanings.all[q]}",
                    "answer_conflict",
                )
            continue
        if q is None:
            is_same = (
                before is not None
                and one.query_id in known.latest
                and is_same_json(before.value, one.response)
            )
            if before is None or not (is_same or known.is_of_now(before)):
                raise AlcRefused(
                    f"Continue failed: unknown query_id: {one.query_id}", "unknown_query"
                )
            if not is_same_json(before.value, one.response):
                raise AlcRefused(
                    f"Continue failed: already responded to query_id: {one.query_id}",
                    "answer_conflict",
                )
            continue
        usage = (
            None
            if one.usage is None
            else Usage(one.usage.prompt_tokens, one.usage.completion_tokens)
        )
        there = found.setdefault(f"q-{q}", Answer(one.response, usage))
        if there.value != one.response:
            raise AlcRefused(
                f"Continue failed: already responded to query_id: {one.query_id}", "answer_conflict"
            )
    return found


def _sole(known: QueryNames) -> int:
    if len(known.open) == 1:
        return next(iter(known.open.values()))
    if known.open:
        words = f"{len(known.open)} queries pending; specify query_id explicitly"
        raise AlcRefused(f"Continue failed: invalid transition: {words}", "many_open_queries")
    raise AlcRefused("Continue failed: invalid transition: no pending queries", "no_open_query")
