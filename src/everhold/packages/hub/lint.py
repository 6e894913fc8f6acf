"""Rules for the metadata of a package and the comment at the top of its init.lua.

    E_META_MISSING_…        meta has no name, version, description or category
    E_NAME_MISMATCH         meta.name is not the name of the folder
    E_H1_IN_DOCSTRING       a heading of level 1: the title of the page is the first line
    E_PARAMETERS_CONFLICT   a section Parameters beside spec.entries.run.input, which makes one
    E_RESULT_CONFLICT       a section Result beside spec.entries.run.result
    W_DESCRIPTION_MULTILINE meta.description has several lines
    W_FAKE_LABEL            a line such as `Usage:`, which should be a heading
    W_EMPTY_NARRATIVE       the comment has neither a summary nor sections

Codes that begin with E are errors, the others are warnings.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from everhold.packages.hub.document import DocumentedPackage

_LABELS: Final = frozenset(
    {
        *("Usage", "Args", "Arguments", "Parameters", "Params", "Returns", "Return"),
        *("Example", "Examples", "Notes", "Note", "See", "See also"),
    }
)
_LABEL: Final = re.compile(r"(\w[\w ]*):\s*")


class Violation(msgspec.Struct, frozen=True):
    code: str
    message: str
    line: int | None = None  # of the comment, from 1

    @property
    def is_error(self) -> bool:
        return self.code.startswith("E_")


def check_package(one: DocumentedPackage, meta_name: str) -> list[Violation]:
    """The violations of a package; `meta_name` is the name in its meta, which may be missing."""
    return [*_check_meta(one, meta_name), *_check_comment(one), *_check_sections(one)]


def format_violations(name: str, found: list[Violation]) -> str:
    lines = [
        f"  {'ERROR' if one.is_error else 'warn '} {one.code}"
        f"{'' if one.line is None else f' (line {one.line})'}: {one.message}"
        for one in found
    ]
    return "\n".join([f"# {name}", *lines])


def _check_meta(one: DocumentedPackage, meta_name: str) -> Iterator[Violation]:
    values = {
        "name": meta_name,
        "version": one.version,
        "description": one.description,
        "category": one.category,
    }
    for key, value in values.items():
        if not value:
            yield Violation(f"E_META_MISSING_{key.upper()}", f"meta.{key} is missing")
    if meta_name and meta_name != one.folder:
        words = f"meta.name is '{meta_name}', but the folder is '{one.folder}'"
        yield Violation("E_NAME_MISMATCH", words)
    if "\n" in one.description:
        yield Violation("W_DESCRIPTION_MULTILINE", "meta.description has several lines")


def _check_comment(one: DocumentedPackage) -> Iterator[Violation]:
    is_code = False
    for number, line in enumerate(one.narrative.docstring.split("\n"), start=1):
        if line.startswith("```"):
            is_code = not is_code
        elif is_code:
            continue
        elif line.startswith("# "):
            yield Violation(
                "E_H1_IN_DOCSTRING", "the title is the first line; use ## for sections", number
            )
        elif (label := _LABEL.fullmatch(line)) and label[1] in _LABELS:
            yield Violation("W_FAKE_LABEL", f"make it a heading: ## {label[1]}", number)


def _check_sections(one: DocumentedPackage) -> Iterator[Violation]:
    narrative = one.narrative
    if not narrative.summary and not narrative.sections:
        yield Violation("W_EMPTY_NARRATIVE", "the comment has neither a summary nor sections")
    headings = {section.heading for section in narrative.sections}
    if one.input is not None and "Parameters" in headings:
        words = "remove the section Parameters: spec.entries.run.input makes it"
        yield Violation("E_PARAMETERS_CONFLICT", words)
    if one.result is not None and "Result" in headings:
        words = "remove the section Result: spec.entries.run.result makes it"
        yield Violation("E_RESULT_CONFLICT", words)
