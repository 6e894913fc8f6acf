"""Reads TOML files that people wrote, and edits one entry while every other line stays.

The standard library reads TOML. `tomlkit` edits it; this module is its only door.

Rules
  1. An edit keeps comments, order, blank lines and line ends.
  2. The result of an edit is parsed again and compared with what it should say. If they differ, the
     edit raises `BadToml`, and the caller writes nothing.
  3. Reading needs no extra. An edit without `tomlkit` raises `MissingExtra`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from everhold.errors import MissingExtra

if TYPE_CHECKING:
    from tomlkit import TOMLDocument
    from tomlkit.items import InlineTable, Item, Key

    Body = list[tuple[Key | None, Item]]

KeyPath = tuple[str, ...]

_BOM: Final = "\ufeff"
_NOT_EDITABLE: Final = "the entry has a form that cannot be edited; edit the file by hand"
#: Stands for a removed entry until the blank lines around it are tidied. TOML has no NUL, and
#: tomlkit adds a line end before a table that does not begin a line.
_REMOVED: Final = "\0\n"


class BadToml(ValueError):
    """The text is not TOML, or an entry of it cannot be edited."""


def check_toml_editor(extra: str, for_what: str) -> None:
    """Raise `MissingExtra` if this environment cannot edit TOML."""
    try:
        import tomlkit  # noqa: F401
    except ImportError:
        raise MissingExtra(extra, for_what) from None


def parse_toml(text: str) -> dict[str, Any]:
    """The content of a text; raises `BadToml`."""
    try:
        return tomllib.loads(text.removeprefix(_BOM))
    except tomllib.TOMLDecodeError as error:
        raise BadToml(str(error)) from None
    except RecursionError:
        raise BadToml("it is nested too deeply") from None


def put_toml_value(text: str, path: KeyPath, value: Any) -> str:
    """Set the value at a path of two or more keys; returns the new text.

    A mapping sets its keys in the table at the path, and the other keys of that table stay. A table
    that does not exist is added at the end of the text, with a header.
    """
    check_toml_editor("lua", "editing a TOML file")
    wanted = parse_toml(text)
    parent = _get_table(wanted, path[:-1])
    if isinstance(value, Mapping) and path[-1] in parent:
        present = _get_table(wanted, path)
        for key, one in value.items():
            if key not in present or present[key] != one:
                text = put_toml_value(text, (*path, key), one)
        return text
    parent[path[-1]] = value
    newline = "\r\n" if "\r\n" in text else "\n"
    whole = text if text.endswith("\n") or not text else text + newline
    edited = _put_in_place(whole, path, value, newline)
    if edited is None:
        is_table = isinstance(value, Mapping)
        added = format_toml_table(path, value) if is_table else ""
        added = added or format_toml_table(path[:-1], {path[-1]: value})
        edited = whole + (newline if text.strip() else "") + added.replace("\n", newline)
    return _checked(edited, wanted)


def drop_toml_value(text: str, path: KeyPath) -> str:
    """Remove the value or the table at a path; returns the new text.

    Comments inside a removed table go with it. Comments after its last entry stay.
    """
    check_toml_editor("lua", "editing a TOML file")
    from tomlkit.items import Whitespace

    wanted = parse_toml(text)
    del _get_table(wanted, path[:-1])[path[-1]]
    document = _parse_document(text)
    inline = _find_inline_table(document.body, path)
    if inline is not None:
        table, name = inline
        del table[name]
    # dotted keys, and tables out of order: several entries of the document may make up one path
    for body, at in [] if inline is not None else list(_find_entries(document.body, path)):
        body[at] = None, Whitespace(_REMOVED + _render_trailing_comments(body[at][1]))
    edited, *parts = document.as_string().split(_REMOVED)
    for part in parts:
        if not part or part.startswith(("\n", "\r\n")):  # of two blank lines, one stays
            if edited.endswith(("\n\n", "\n\r\n")):
                edited = edited.removesuffix("\n").removesuffix("\r")
            elif not edited:
                part = part.removeprefix("\r").removeprefix("\n")
        edited += part
    return _checked(_BOM + edited if text.startswith(_BOM) else edited, wanted)


def format_toml_table(path: KeyPath, pairs: Mapping[str, Any]) -> str:
    """A table as text: its header, then a line for each key."""
    return f"[{'.'.join(map(_format_key, path))}]\n{format_toml_pairs(pairs)}"


def format_toml_pairs(pairs: Mapping[str, Any]) -> str:
    """A line for each key. A mapping among the values becomes an inline table."""
    return "".join(
        f"{_format_key(key)} = {_make_item(value).as_string()}\n" for key, value in pairs.items()
    )


def _put_in_place(text: str, path: KeyPath, value: Any, newline: str) -> str | None:
    """Set a value where the text has a place for it; None if it needs a header of its own."""
    from tomlkit.items import AoT, Table

    document = _parse_document(text)
    prefix = _BOM if text.startswith(_BOM) else ""
    new = _make_item(value)
    new.trivia.trail = newline
    inline = _find_inline_table(document.body, path)
    if inline is not None:
        table, name = inline
        table[name] = new
        return f"{prefix}{document.as_string()}"
    for body, at in _find_entries(document.body, path):
        key, old = body[at]
        # as `old`, with its comment
        for part in ("indent", "comment_ws", "comment", "trail"):
            setattr(new.trivia, part, getattr(old.trivia, part))
        body[at] = key, new
        return f"{prefix}{document.as_string()}"
    if isinstance(value, Mapping):
        return None
    for body, at in _find_entries(document.body, path[:-1]):
        parent = body[at][1]
        if not isinstance(parent, Table) or parent.is_super_table():
            continue
        entries = parent.value.body
        values = [
            number
            for number, (key, item) in enumerate(entries)
            if key is not None and (key.is_dotted() or not isinstance(item, Table | AoT))
        ]
        entries.insert(values[-1] + 1 if values else 0, (_make_key(path[-1]), new))
        return f"{prefix}{document.as_string()}"
    return None


def _parse_document(text: str) -> TOMLDocument:
    """The text as `tomlkit` holds it; raises `BadToml` if that is not the same text."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    bare = text.removeprefix(_BOM)
    try:
        document = tomlkit.parse(bare)
    except (TOMLKitError, RecursionError) as error:
        raise BadToml(str(error)) from None
    # tomlkit moves the tables of an array together, if others stand between them
    if document.as_string() != bare:
        raise BadToml(_NOT_EDITABLE)
    return document


def _find_entries(body: Body, path: KeyPath) -> Iterator[tuple[Body, int]]:
    """The entries of a document that make up a path: each with the list it is in, and its place."""
    from tomlkit.items import Table

    for at, (key, item) in enumerate(body):
        if key is None or key.key != path[0]:
            continue
        if len(path) == 1:
            yield body, at
        elif isinstance(item, Table):
            yield from _find_entries(item.value.body, path[1:])


def _find_inline_table(body: Body, path: KeyPath) -> tuple[InlineTable, str] | None:
    """The inline table that holds the last key of a path; None if it is not in an inline table."""
    from tomlkit.items import InlineTable

    for length in range(1, len(path)):
        for found, at in _find_entries(body, path[:length]):
            table: Any = found[at][1]
            if isinstance(table, InlineTable):
                for name in path[length:-1]:
                    table = table[name]
                return table, path[-1]
    return None


def _render_trailing_comments(item: Item) -> str:
    """The blank lines and comments after the last entry of a table; they are not about it."""
    from tomlkit.items import AoT, Table

    if isinstance(item, AoT):
        item = item.body[-1]
    if not isinstance(item, Table):
        return ""
    tail = ""
    for key, one in reversed(item.value.body):
        if key is not None:
            return _render_trailing_comments(one) + tail
        tail = one.as_string() + tail
    return tail


def _make_item(value: Any) -> Item:
    import tomlkit

    if isinstance(value, Mapping):
        pairs = ", ".join(format_toml_pairs(value).splitlines())
        return tomlkit.value(f"{{ {pairs} }}")
    item: Item = tomlkit.item(value)
    return item


def _make_key(name: str) -> Key:
    import tomlkit

    return tomlkit.key(name)


def _format_key(name: str) -> str:
    check_toml_editor("lua", "writing a TOML file")
    return str(_make_key(name).as_string())


def _get_table(table: dict[str, Any], path: KeyPath) -> dict[str, Any]:
    """The table at a path, made where it does not exist; raises `BadToml` for another value."""
    for name in path:
        table = table.setdefault(name, {})
        if not isinstance(table, dict):
            raise BadToml(f"{'.'.join(path)} should be a table")
    return table


def _checked(text: str, wanted: Mapping[str, Any]) -> str:
    """The text, if its content is `wanted`; empty tables are ignored. Raises `BadToml`."""
    try:
        found = parse_toml(text)
    except BadToml:
        raise BadToml(_NOT_EDITABLE) from None
    full = [{name: one for name, one in table.items() if one != {}} for table in (found, wanted)]
    if full[0] != full[1]:
        raise BadToml(_NOT_EDITABLE)
    return text
