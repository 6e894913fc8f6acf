"""What context7.json and .devin/wiki.json say of a collection, from alc.toml or another TOML file.

    [hub]            name, description
    [hub.context7]   name, description; rules_override or rules_file; extra_rules
    [hub.devin]      repo_notes_override or repo_notes_file; extra_repo_notes

A file given by itself has the tables [context7] and [devin], with the fields of the two JSON files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import msgspec
from msgspec import Meta

from everhold.errors import BadPackage, BadPackageFile
from everhold.packages.hub.document import dump_sorted
from everhold.packages.lua.atomic_file import read_text_file
from everhold.packages.lua.paths import PROJECT_FILE, expand_path
from everhold.packages.toml import BadToml, parse_toml

DEFAULT_NAME: Final = "algocline-hub"
DEFAULT_DESCRIPTION: Final = "Reasoning strategies in Lua, for algocline and everhold."
DEFAULT_RULES: Final = (
    "Read the page of a package before you use it: docs/narrative/<package>.md.",
    "Take the parameters of a package from its table Parameters, and make up no others.",
    "Name packages as hub_index.json names them, with the version that it has.",
)
DEFAULT_NOTES: Final = (
    "Each folder with an init.lua is one package. Its metadata is in M.meta, its types in M.spec.",
    "docs/narrative has a page for each package. It is generated: change init.lua instead.",
    "alc.toml names the packages that this project needs.",
)
#: Where the rules of Context7 and of DeepWiki are.
CONTEXT7_SCHEMA: Final = "https://context7.com/schema/context7.json"
CONTEXT7_FOLDERS: Final = ("docs/narrative",)
#: Limits of DeepWiki.
MAX_PAGES: Final = 30
MAX_NOTES: Final = 100

Text = Annotated[str, Meta(min_length=1)]
NoteText = Annotated[str, Meta(min_length=1, max_length=10_000)]
_T = TypeVar("_T")


class _Context7Options(msgspec.Struct):
    name: str | None = None
    description: str | None = None
    rules_override: list[str] | None = None
    rules_file: str | None = None
    extra_rules: list[str] = []


class _DevinOptions(msgspec.Struct):
    repo_notes_override: list[str] | None = None
    repo_notes_file: str | None = None
    extra_repo_notes: list[str] = []


class HubOptions(msgspec.Struct):
    """The table [hub] of alc.toml."""

    name: str | None = None
    description: str | None = None
    context7: _Context7Options = msgspec.field(default_factory=_Context7Options)
    devin: _DevinOptions = msgspec.field(default_factory=_DevinOptions)
    dist: dict[str, Any] = {}


class _Tag(msgspec.Struct):
    tag: Text


class _Branch(msgspec.Struct):
    branch: Text


class Context7(msgspec.Struct, omit_defaults=True):
    """context7.json, without the fields that are always the same."""

    projectTitle: str = ""
    description: str = ""
    branch: str = ""
    excludeFolders: list[str] = []
    excludeFiles: list[str] = []
    rules: list[str] = []
    previousVersions: list[_Tag] = []
    branchVersions: list[_Branch] = []


class _Note(msgspec.Struct, omit_defaults=True):
    content: NoteText
    author: str = ""


class _Page(msgspec.Struct, omit_defaults=True):
    title: Text
    purpose: Text
    parent: str = ""
    page_notes: list[_Note] = []


class DevinWiki(msgspec.Struct, omit_defaults=True):
    """.devin/wiki.json."""

    repo_notes: list[_Note] = []
    pages: list[_Page] = []


class Projections(msgspec.Struct):
    """What both files say; None if the options have no table for one."""

    title: str
    context7: Context7 | None
    devin: DevinWiki | None


def load_hub_options(root: Path | None) -> HubOptions:
    """[hub] of a project's alc.toml; raises `BadPackageFile`."""
    if root is None:
        return HubOptions()
    file = root / PROJECT_FILE
    return _convert(_load_toml(file).get("hub", {}), HubOptions, file, "hub")


def load_projections(root: Path | None) -> Projections:
    """From a project's alc.toml, with defaults."""
    options = load_hub_options(root)
    file = (root or Path()) / PROJECT_FILE
    rules = _choose_lines(
        file, "rules", options.context7.rules_override, options.context7.rules_file
    )
    notes = _choose_lines(
        file, "repo_notes", options.devin.repo_notes_override, options.devin.repo_notes_file
    )
    rules = [*DEFAULT_RULES, *options.context7.extra_rules] if rules is None else rules
    notes = [*DEFAULT_NOTES, *options.devin.extra_repo_notes] if notes is None else notes
    title = options.context7.name or options.name or DEFAULT_NAME
    wiki = _convert(
        {"repo_notes": [{"content": note} for note in notes]}, DevinWiki, file, "hub.devin"
    )
    _check_wiki(wiki, file)
    return Projections(
        options.name or title,
        Context7(
            projectTitle=title,
            description=options.context7.description or options.description or DEFAULT_DESCRIPTION,
            rules=rules,
        ),
        wiki,
    )


def load_projection_file(file: Path) -> Projections:
    """From a file of its own, with the tables [context7] and [devin]."""
    if file.suffix.lower() != ".toml":
        kind = file.suffix.lower()
        raise BadPackage(
            "gendoc: a config_path of the kind '.lua' is no longer supported"
            if kind == ".lua"
            else f"gendoc: config_path {file} is not a .toml file",
            "Give a TOML file with the tables [context7] and [devin].",
        )
    if not file.is_file():
        raise BadPackage(f"gendoc: config_path {file} does not exist")
    read = _load_toml(file)
    context7 = devin = None
    if "context7" in read:
        context7 = _convert(read["context7"], Context7, file, "context7")
    if "devin" in read:
        devin = _convert(read["devin"], DevinWiki, file, "devin")
        _check_wiki(devin, file)
    title = context7.projectTitle if context7 is not None else ""
    return Projections(title or DEFAULT_NAME, context7, devin)


def dump_context7(found: Context7) -> str:
    fixed = {"$schema": CONTEXT7_SCHEMA, "folders": list(CONTEXT7_FOLDERS)}
    return dump_sorted({**msgspec.to_builtins(found), **fixed})


def dump_wiki(found: DevinWiki) -> str:
    return dump_sorted(msgspec.to_builtins(found))


def _load_toml(file: Path) -> dict[str, Any]:
    text = read_text_file(file)
    try:
        return {} if text is None else parse_toml(text)
    except BadToml as error:
        raise BadPackageFile(str(file), f"it is not TOML: {error}") from None


def _convert(value: Any, kind: type[_T], file: Path, table: str) -> _T:
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise BadPackageFile(str(file), f"[{table}] cannot be read: {error}") from None


def _choose_lines(
    file: Path, what: str, override: list[str] | None, named: str | None
) -> list[str] | None:
    """The lines that replace the default ones: a list, or the lines of a file."""
    if named is None:
        return override
    if override is not None:
        raise BadPackageFile(
            str(file), f"mutually exclusive keys: {what}_override, {what}_file", "Remove one."
        )
    text = read_text_file(expand_path(named, file.parent))
    if text is None:
        raise BadPackageFile(str(file), f"{what}_file {named} does not exist")
    lines = (line.strip() for line in text.splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def _check_wiki(wiki: DevinWiki, file: Path) -> None:
    if len(wiki.pages) > MAX_PAGES:
        raise BadPackageFile(str(file), f"more than {MAX_PAGES} pages for the wiki")
    notes = len(wiki.repo_notes) + sum(len(page.page_notes) for page in wiki.pages)
    if notes > MAX_NOTES:
        raise BadPackageFile(str(file), f"{notes} notes for the wiki, more than {MAX_NOTES}")
    titles = [page.title for page in wiki.pages]
    for title in titles:
        if titles.count(title) > 1:
            raise BadPackageFile(str(file), f"two pages of the wiki have the title '{title}'")
