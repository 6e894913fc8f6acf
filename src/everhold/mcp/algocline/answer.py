"""Which questions the answers of a call are for, by the names of `names.py`."""

from __future__ import annotations

from everhold.core.codec import same
from everhold.core.query import Usage
from everhold.mcp.algocline.query_ids import Names
from everhold.mcp.algocline.render import Refused
from everhold.mcp.algocline.tools import Response
from everhold.ports.answer import Said


def is_repeated(known: Names, said: list[Response]) -> bool:
    """Whether this is what was answered last, word for word."""
    if not known.latest:
        return False
    if len(said) == 1 and not said[0].query_id:
        return len(known.latest) == 1 and same(
            known.answered[known.latest[0]].value, said[0].response
        )
    return all(
        one.query_id in known.latest and same(known.answered[one.query_id].value, one.response)
        for one in said
    )


def answers(known: Names, said: list[Response], heard: Names | None = None) -> dict[str, Said]:
    """The answers by our ids, without those that were given before.

    `heard` are the names as those who answer know them, if that was at an earlier step.
    """
    found: dict[str, Said] = {}
    meanings = known if heard is None else heard
    for one in said:
        q = meanings.meant(one.query_id) if one.query_id else _sole(meanings)
        before = known.answered.get(one.query_id)
        if q is not None and q not in known.open.values():
            if q not in known.said or not same(known.said[q].value, one.response):
                raise Refused(
                    f"Continue failed: already responded to query_id: {meanings.all[q]}",
                    "answer_conflict",
                )
            continue
        if q is None:
            is_same = (
                before is not None
                and one.query_id in known.latest
                and same(before.value, one.response)
            )
            if before is None or not (is_same or known.is_of_now(before)):
                raise Refused(f"Continue failed: unknown query_id: {one.query_id}", "unknown_query")
            if not same(before.value, one.response):
                raise Refused(
                    f"Continue failed: already responded to query_id: {one.query_id}",
                    "answer_conflict",
                )
            continue
        usage = (
            None
            if one.usage is None
            else Usage(one.usage.prompt_tokens, one.usage.completion_tokens)
        )
        there = found.setdefault(f"q-{q}", Said(one.response, usage))
        if there.value != one.response:
            raise Refused(
                f"Continue failed: already responded to query_id: {one.query_id}", "answer_conflict"
            )
    return found


def _sole(known: Names) -> int:
    if len(known.open) == 1:
        return next(iter(known.open.values()))
    if known.open:
        words = f"{len(known.open)} queries pending; specify query_id explicitly"
        raise Refused(f"Continue failed: invalid transition: {words}", "many_open_queries")
    raise Refused("Continue failed: invalid transition: no pending queries", "no_open_query")
