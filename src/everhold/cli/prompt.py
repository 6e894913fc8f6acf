"""Asking a person at the terminal, and understanding what they type.

:e            write the answer in an editor          :f FILE       take it from a file
:error TEXT   answer with an error                   :quit         leave; the session stays as it is
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

import click

from everhold.cli.context import read_text_argument
from everhold.cli.output import format_moment, strip_controls
from everhold.core.codec import JSON
from everhold.core.query import KINDS, Kind, Query
from everhold.core.status import OpenQuery
from everhold.errors import AnswerRefused

_YES = frozenset({"yes", "y", "true"})
_NO = frozenset({"no", "n", "false"})
_HELP = ":e editor  :f FILE  :error TEXT  :quit"


class PromptQuit(Exception):
    """The person leaves; the session stays as it is."""


@dataclass(frozen=True, slots=True)
class TypedAnswer:
    """What the person said: a value, or an error instead of one."""

    value: JSON = None
    error: str | None = None


def prompt_for_answer(query: OpenQuery, name: str) -> TypedAnswer:
    """Show a question and read its answer; raises `PromptQuit`."""
    _editable()
    _show(query, name)
    while True:
        text = _line("yes or no> ") if KINDS[query.kind].verdict else _lines()
        try:
            spoken = _command(text) if text.startswith(":") else text
            if spoken is not None:
                return (
                    spoken
                    if isinstance(spoken, TypedAnswer)
                    else TypedAnswer(parse_typed_answer(query.query, spoken))
                )
        except AnswerRefused as refused:
            click.secho(str(refused), fg="red", err=True)


def parse_typed_answer(query: Query, text: str) -> JSON:
    """Words as the value that the question wants: yes and no for a boolean, JSON where there is a
    schema.
    """
    if query.schema is None or query.schema.get("type") == "string":
        return text
    if query.schema.get("type") == "boolean":
        word = text.strip().lower()
        if word not in _YES | _NO:
            raise AnswerRefused("answer", "yes or no", repr(text))
        return word in _YES
    return text  # the door reads it as JSON


def _show(query: OpenQuery, name: str) -> None:
    facts = [str(query.kind), query.id, name]
    if query.kind is Kind.LLM:
        facts.append(f"at most {query.max_tokens} tokens")
    if query.to:
        facts.append(f"to {query.to}")
    if query.expires_at is not None:
        facts.append(f"until {format_moment(query.expires_at)}")
    click.secho("\n" + " · ".join(facts), fg="cyan")
    if query.system:
        click.secho(f"system: {strip_controls(query.system)}", dim=True)
    for message in () if query.prompt else query.messages or ():
        click.echo(strip_controls(f"{message.get('role')}: {message.get('content')}"))
    click.echo(strip_controls(query.prompt or query.name))
    if query.schema is not None and not KINDS[query.kind].verdict:
        from everhold.wire import dump_wire_json

        click.secho(f"it should fit {dump_wire_json(query.schema)}", dim=True)
    click.secho(
        _HELP if KINDS[query.kind].verdict else f"an empty line ends the answer  {_HELP}",
        dim=True,
    )


def _editable() -> None:
    """Let the arrow keys work in what is typed, where Python was built with that."""
    with suppress(ImportError):
        import readline  # noqa: F401  (loading it is enough)


def _lines() -> str:
    """Several lines, up to an empty one."""
    first = _line("> ")
    if first.startswith(":"):
        return first
    lines = [first]
    while lines[-1]:
        try:
            lines.append(input("… "))
        except EOFError:
            break
    return "\n".join(lines).rstrip("\n")


def _line(prompt: str) -> str:
    while True:
        try:
            text = input(prompt)
        except EOFError:
            click.echo()
            raise PromptQuit from None
        if text.strip():
            return text


def _command(text: str) -> TypedAnswer | str | None:
    """Do what a line that begins with a colon says: an error, or the words of the answer. None asks
    again.
    """
    word, _, rest = text.strip().partition(" ")
    match word:
        case ":quit" | ":q":
            raise PromptQuit
        case ":error" if rest.strip():
            return TypedAnswer(error=rest.strip())
        case ":f" if rest:
            return _file(rest)
        case ":e":
            return _edited()
    wrong = "needs more" if word in (":f", ":error") else "is not known here"
    click.secho(f"{word} {wrong}; there are {_HELP}", fg="red", err=True)
    return None


def _edited() -> str | None:
    try:
        text = click.edit("", require_save=False)
    except click.ClickException as error:
        click.secho(error.format_message(), fg="red", err=True)
        return None
    return text.rstrip("\n") if text and text.strip() else None


def _file(path: str) -> str | None:
    from everhold.errors import BadSetting

    try:
        return read_text_argument(path.strip(), ":f").rstrip("\n")
    except BadSetting as error:
        click.secho(str(error), fg="red", err=True)
        return None
