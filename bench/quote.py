"""The figures that other pages quote, and where: written when the record is, compared by a test.

A quotation is a sentence of a page with a name in braces where a figure stands. `least:` and
`most:` take the least and the greatest of the figures that fit a pattern.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

from bench.figure import Figure
from bench.report import format_value
from bench.worker import ROOT

Figures = Mapping[str, Figure]
_NAME: Final = re.compile(r"\{([^}]+)\}")
_NUMBER: Final = r"(\d[\d,.]*\d|\d)"


@dataclass(frozen=True, slots=True)
class Quotation:
    page: str
    text: str

    @property
    def names(self) -> list[str]:
        return _NAME.findall(self.text)

    def pattern(self) -> re.Pattern[str]:
        """Finds the sentence with any numbers, and with lines broken anywhere."""
        words = _NAME.split(self.text)
        parts = [re.sub(r"(\\\s|\s)+", r"\\s+", re.escape(word)) for word in words[::2]]
        return re.compile(_NUMBER.join(parts))


_LANGGRAPH: Final = "{least:step.normal.langgraph-*.over_floor}"
_TO: Final = "{most:step.normal.langgraph-*.over_floor}"

QUOTATIONS: Final = (
    Quotation(
        "README.md",
        "| a durable step, over a bare SQLite commit | **{step.normal.everhold.over_floor} ×** |"
        f" {_LANGGRAPH} to {_TO} × |"
        " {step.normal.dbos-step.over_floor} ×; {step.normal.dbos-recv.over_floor} × for a"
        " message |",
    ),
    Quotation(
        "docs/why.md",
        "A durable step costs {step.normal.everhold.over_floor} bare SQLite commits against"
        f" {_LANGGRAPH} to {_TO}",
    ),
    Quotation(
        "docs/why.md",
        "A durable step costs {step.normal.everhold.over_floor} bare SQLite commits against"
        " {step.normal.dbos-step.over_floor}; with one worker on PostgreSQL everhold made"
        " {postgres.1.over_dbos} times as many steps",
    ),
    Quotation(
        "docs/why.md",
        "Turn 1000 of a conversation took {turn.pydantic-ai.1000.over_everhold} times as long"
        " there",
    ),
    Quotation(
        "docs/why.md",
        "are {postgres.2.everhold.steps_per_s} steps per second with two workers",
    ),
)


def find_value(name: str, figures: Figures) -> str:
    """The figure of a name, or of `least:` or `most:` and a pattern, as pages show it. Raises
    `KeyError` if it was not measured.
    """
    which, _, pattern = name.rpartition(":")
    if not which:
        return format_value(figures[name].value)
    found = [figure.value for key, figure in figures.items() if fnmatchcase(key, pattern)]
    if not found:
        raise KeyError(name)
    return format_value({"least": min, "most": max}[which](found))


def list_wrong(figures: Figures) -> Iterator[str]:
    """What pages quote wrongly, one sentence for each quotation."""
    for quotation in QUOTATIONS:
        text = (ROOT / quotation.page).read_text(encoding="utf-8")
        found = quotation.pattern().findall(text)
        if len(found) != 1:
            yield f"{quotation.page} has {len(found)} times: {quotation.text}"
            continue
        stated = found[0] if isinstance(found[0], tuple) else (found[0],)
        wanted = tuple(find_value(name, figures) for name in quotation.names)
        if stated != wanted:
            yield f"{quotation.page} says {stated}, measured are {wanted}: {quotation.text}"


def write(figures: Figures) -> None:
    """Replace the numbers of all quotations whose figures were measured."""
    for quotation in QUOTATIONS:
        path = ROOT / quotation.page
        text = path.read_text(encoding="utf-8")
        try:
            values = [find_value(name, figures) for name in quotation.names]
        except KeyError:
            continue
        match = quotation.pattern().search(text)
        if match is None:
            raise ValueError(f"{quotation.page} does not have: {quotation.text}")
        for number in range(len(values), 0, -1):
            begin, end = match.span(number)
            text = text[:begin] + values[number - 1] + text[end:]
        path.write_text(text, encoding="utf-8")
