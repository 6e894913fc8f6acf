"""Writes the table of query kinds from `KINDS`; run through cog by `make fix`."""

from __future__ import annotations

from everhold.core.query import KINDS, LISTED, SENT_BY_NAME, AnsweredBy, Kind

_WHO = {
    AnsweredBy.MODEL: "a model, or a person in its place",
    AnsweredBy.PERSON: "a person, never a model",
    AnsweredBy.OUTSIDE: "a person or a system outside, never a model",
    AnsweredBy.PROCESS: "the process that runs it; a person if its outcome is unknown",
    AnsweredBy.ENGINE: "everhold",
}


def table() -> str:
    """The table: kind, answer, who answers, the inbox, notifications, effects."""
    lines = [
        "| kind | its answer is | who answers | in the inbox | notified | effect |",
        "|---|---|---|---|---|---|",
    ]
    for kind, facts in KINDS.items():
        cells = (
            f"`{kind}`",
            facts.answer,
            _WHO[facts.answered_by],
            _inbox(kind),
            "yes" if facts.notified else "if addressed" if kind in LISTED else "no",
            "yes" if facts.effect else "no",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _inbox(kind: Kind) -> str:
    if kind not in LISTED:
        return "no"
    if kind in SENT_BY_NAME:
        return f"with `--kind {kind}`"
    process = KINDS[kind].answered_by is AnsweredBy.PROCESS
    return "if its outcome is unknown" if process else "yes"
