"""Telling what became of a turn: how it ended, or what it waits for and how that is answered."""

from __future__ import annotations

import shlex
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

import click

from everhold.cli.output import format_line, strip_controls
from everhold.core.query import MODEL_KINDS

if TYPE_CHECKING:
    from everhold.agents import Turn
    from everhold.cli.context import CommandRuntime
    from everhold.core.codec import JSON
    from everhold.core.status import OpenQuery


NO_MODEL: Final = "no model answers here; give --model provider:name, or --answer-with a command"


def get_outcome_tag(turn: Turn) -> str:
    return "waiting" if turn.outcome is None else str(type(turn.outcome).__struct_config__.tag)


def format_turn(turn: Turn) -> str:
    """What a turn that has ended says: its words, or how else it ended."""
    return (
        strip_controls(turn.text)
        if get_outcome_tag(turn) == "answered"
        else f"({get_outcome_tag(turn)})"
    )


def queries_to_json(queries: Iterable[OpenQuery]) -> list[JSON]:
    from everhold.wire import query_json

    return [{"id": query.id, **query_json(query)} for query in queries]


def print_waiting(house: CommandRuntime, name: str, queries: Iterable[OpenQuery]) -> None:
    """Say what is asked, and which command answers it."""
    for query in queries:
        asked = f"{query.kind} {query.id}: {format_line(query.prompt or query.name, 200)}"
        words = NO_MODEL if query.kind in MODEL_KINDS else asked
        click.echo(f"waiting: {words}", err=True)
        click.echo(
            f"answer it with: everhold answer {shlex.quote(name)} --query {query.id}{house.place}",
            err=True,
        )
