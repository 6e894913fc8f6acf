"""The documents of a collection: a page per package, its entry for programs, and lists for models.

    narrative/<package>.md   front matter, the comment at the top of init.lua as Markdown, its spec
    hub/<package>.json       the same for programs: name, version, category, description,
                             narrative_md, input_shape, result_shape
    llms.txt                 one line per package, by category
    llms-full.txt            all pages

Their structure is that of algocline's documents, so that readers of those can read them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from everhold.packages.hub.evaluate import EvaluatedPackage, Schema
from everhold.packages.hub.shape import dump_shape, dump_type, format_type, list_fields

#: Characters of a description in llms.txt.
MAX_LIST_CHARS: Final = 200
#: The mark of a generated page. Readers of algocline's pages look for it.
GENERATED: Final = "gen_docs (V0)"

_HEADING: Final = re.compile(r"(##|###) (.+)")
_FENCE: Final = re.compile(r"(`{3,}|~{3,})")


class Section(msgspec.Struct):
    """A part of a comment under a heading of level 2 or 3."""

    level: int
    heading: str
    anchor: str
    lines: list[str]


class Narrative(msgspec.Struct):
    """The comment at the top of an init.lua."""

    docstring: str
    title: str
    summary: str
    sections: list[Section]


class DocumentedPackage(msgspec.Struct):
    """All that is said of one package."""

    folder: str
    name: str
    version: str
    category: str
    description: str
    narrative: Narrative
    input: Schema | None = None
    result: Schema | None = None
    named: Schema | None = None  # the shape that `result` names

    @classmethod
    def of(cls, folder: str, name: str, said: EvaluatedPackage, text: str) -> DocumentedPackage:
        """A package of an index: its `name` there, not a computed one, names its files."""
        words = {key: str(said.meta.get(key, "")) for key in ("version", "category", "description")}
        return cls(
            folder,
            name,
            **words,
            narrative=parse_narrative(extract_docstring(text)),
            input=said.input,
            result=said.result,
            named=said.named,
        )

    @property
    def parameters(self) -> Schema | None:
        """The shape of the ctx, if it is one."""
        return self.input if self.input is not None and self.input["kind"] == "shape" else None

    @property
    def returned(self) -> tuple[Schema, str] | None:
        """The shape of the result and its name, if it is a shape."""
        if self.result is None:
            return None
        if self.result["kind"] == "ref":
            known = self.named is not None and self.named["kind"] == "shape"
            return (self.named, self.result["name"]) if known and self.named else None
        return (self.result, "") if self.result["kind"] == "shape" else None


def extract_docstring(text: str) -> str:
    """The `---` comment at the top of a file, as Markdown; it ends at the first other line."""
    lines = []
    for line in text.removeprefix("\ufeff").splitlines():
        if not line.startswith("---") or line.startswith("---@"):
            break
        lines.append(line[3:].removeprefix(" ").rstrip())
    return "\n".join(lines).strip("\n")


def parse_narrative(docstring: str) -> Narrative:
    """Title, summary and sections: the first line, the first paragraph after it, and the rest."""
    lines = docstring.split("\n")
    title = lines[0] if docstring else ""
    at = _skip_blank(lines, 1)
    summary = []
    while at < len(lines) and lines[at].strip() and not _HEADING.fullmatch(lines[at]):
        summary.append(lines[at])
        at += 1
    sections: list[Section] = []
    taken: set[str] = set()
    fence = ""
    for line in lines[at:]:
        if found := _FENCE.match(line):
            fence = "" if fence and found[1].startswith(fence) else fence or found[1]
        heading = None if fence else _HEADING.fullmatch(line)
        if heading is not None:
            anchor = _make_anchor(heading[2], taken)
            sections.append(Section(len(heading[1]), heading[2], anchor, []))
        elif sections:
            sections[-1].lines.append(line)
    return Narrative(docstring, title, " ".join(summary), sections)


def _skip_blank(lines: list[str], at: int) -> int:
    while at < len(lines) and not lines[at].strip():
        at += 1
    return at


def _make_anchor(heading: str, taken: set[str]) -> str:
    """A name for a link to the heading; a second one of the name ends with -2."""
    base = re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")
    anchor = base
    count = 1
    while anchor in taken:
        count += 1
        anchor = f"{base}-{count}"
    taken.add(anchor)
    return anchor


# ---- the page of a package


def format_page(one: DocumentedPackage) -> str:
    parts = [_front_matter(one), f"# {one.narrative.title or one.name}"]
    if one.narrative.summary:
        parts.append(f"> {one.narrative.summary}")
    if contents := _contents(one):
        parts.append(contents)
    for section in one.narrative.sections:
        parts.append(f"{'#' * section.level} {section.heading} {{#{section.anchor}}}")
        if body := "\n".join(section.lines).strip("\n"):
            parts.append(body)
    if not one.narrative.sections and not one.narrative.summary:
        parts.append("_(init.lua says no more about this package)_")
    if one.parameters is not None:
        parts.append(_parameters(one.parameters))
    if one.returned is not None:
        parts.append(_result(*one.returned))
    return "\n\n".join(parts) + "\n"


def _front_matter(one: DocumentedPackage) -> str:
    lines = [f"name: {_yaml(one.name)}"]
    if one.version:
        lines.append(f"version: {_yaml(one.version)}")
    if one.category:
        lines.append(f"category: {_yaml(one.category)}")
    if one.result is not None:
        lines.append(f"result_shape: {_yaml(format_type(one.result))}")
    if one.description:
        lines.append(f"description: {_quote(one.description)}")
    lines += [f"source: {_yaml(one.folder + '/init.lua')}", f"generated: {GENERATED}"]
    return "\n".join(["---", *lines, "---"])


def _yaml(text: str) -> str:
    """A value of YAML, quoted if it would not be read as this text."""
    is_plain = (
        text != ""
        and text[0] not in "-?:,[]{}#&*!|>'\"%@`"
        and ": " not in text
        and " #" not in text
        and text.isprintable()
    )
    return text if is_plain else _quote(text)


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _contents(one: DocumentedPackage) -> str:
    lines = [
        f"{'  ' * (section.level - 2)}- [{section.heading}](#{section.anchor})"
        for section in one.narrative.sections
    ]
    if one.parameters is not None:
        lines.append("- [Parameters](#parameters)")
    if one.returned is not None:
        lines.append("- [Result](#result)")
    return "\n".join(["## Contents", "", *lines]) if lines else ""


def _parameters(shape: Schema) -> str:
    rows = [
        (
            f"`ctx.{field['name']}`",
            format_type(field["type"]),
            "optional" if field["optional"] else "**required**",
            field["doc"],
        )
        for field in list_fields(shape)
    ]
    columns = "| key | type | required | description |\n|---|---|---|---|"
    return "\n".join(["## Parameters {#parameters}", "", columns, *map(_table_row, rows)])


def _result(shape: Schema, name: str) -> str:
    rows = [
        (
            f"`{field['name']}`",
            format_type(field["type"]),
            "optional" if field["optional"] else "—",
            field["doc"],
        )
        for field in list_fields(shape)
    ]
    head = f"Returns `{name}` shape:" if name else "Returns:"
    columns = "| key | type | optional | description |\n|---|---|---|---|"
    return "\n".join(["## Result {#result}", "", head, "", columns, *map(_table_row, rows)])


def _table_row(cells: Iterable[str]) -> str:
    """A row of a table: a | or a line end in a cell would end it."""
    escaped = (" ".join(cell.splitlines()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(escaped)} |"


# ---- for programs and models


def dump_entry(one: DocumentedPackage) -> str:
    """hub/<package>.json; the same package always gives the same bytes."""
    entry: dict[str, Any] = {
        "name": one.name,
        "version": one.version,
        "category": one.category,
        "description": one.description,
        "narrative_md": format_page(one),
    }
    if one.parameters is not None:
        entry["input_shape"] = dump_shape(one.parameters)
    if one.result is not None:
        entry["result_shape"] = dump_type(one.result)
    return dump_sorted(entry)


def dump_sorted(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def format_list(title: str, packages: Iterable[DocumentedPackage]) -> str:
    """llms.txt."""
    by_category: dict[str, list[DocumentedPackage]] = {}
    for one in packages:
        by_category.setdefault(one.category or "uncategorized", []).append(one)
    parts = [f"# {title}", "> The packages of this collection, with what each is for."]
    for category, ones in sorted(by_category.items()):
        lines = [_list_line(one) for one in sorted(ones, key=lambda one: one.name)]
        parts.append("\n".join([f"## {category}", "", *lines]))
    return "\n\n".join(parts) + "\n"


def _list_line(one: DocumentedPackage) -> str:
    words = " ".join(one.description.split())
    if len(words) > MAX_LIST_CHARS:
        words = words[: MAX_LIST_CHARS - 3] + "..."
    return f"- [{one.name}](narrative/{one.name}.md): {words}"


def format_all_pages(title: str, packages: Iterable[DocumentedPackage]) -> str:
    """llms-full.txt."""
    parts = [f"# {title}: all pages", "> Every page of this collection; llms.txt has a list."]
    for one in sorted(packages, key=lambda one: one.name):
        page = format_page(one).partition("\n---\n")[2].strip("\n")
        parts += [f"<!-- ── {one.name}.md ── -->", page, "---"]
    return "\n\n".join(parts) + "\n"
