"""What commands start or feed: a program with arguments as they are typed, or a session that is
sent something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from everhold.cli.context import (
    gather_options,
    make_usage_error,
    parse_pairs,
    read_text_argument,
    resolve_program,
)
from everhold.cli.output import format_count
from everhold.core.codec import JSON, loads
from everhold.errors import AnswerRefused, BadArguments, BadSetting, BadValue

if TYPE_CHECKING:
    from inspect import Parameter

    from everhold.ports.program import Program
    from everhold.schedules import Start


class ActionOptions(NamedTuple):
    """What is to be done, as it was typed: a program with arguments, or a session that is fed."""

    program: str | None
    arguments: tuple[str, ...]
    feed: str | None
    signal: str | None
    value: str | None
    title: str
    labels: tuple[str, ...]

    def read(self, database: str | None, *, whole: bool) -> tuple[Any, dict[str, Any]]:
        """What to do, and the arguments; as a call where they are the `whole` of them."""
        from everhold.schedules import Feed

        if (self.program is None) == (self.feed is None):
            raise make_usage_error("say what to do: a PROGRAM, or --feed SESSION")
        if self.feed is not None:
            given = {} if self.value is None else {"value": parse_json_or_text(self.value)}
            return Feed(self.feed, self.signal or "", **given), {}
        if self.signal is not None or self.value is not None:
            raise make_usage_error("--signal and --value are for --feed")
        found = resolve_program(database, self.program or "")
        if whole:
            return build_call(found, self.arguments, None), {}
        return found, parse_arguments(found, self.arguments)

    def told(self) -> dict[str, Any]:
        """What people are told of the sessions."""
        return {"title": self.title, "labels": parse_pairs(self.labels, "--label")}


_OPTIONS: Final = (
    click.argument("program", required=False),
    click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]..."),
    click.option(
        "--feed", metavar="SESSION", help="Instead of a program: send something to this session."
    ),
    click.option(
        "--signal", metavar="NAME", help="What it receives; without it, a conversation is told."
    ),
    click.option(
        "--value",
        metavar="JSON",
        help="What is sent; without it, the moment or the event's payload.",
    ),
    click.option("--title", default="", help="What people call the sessions."),
    click.option(
        "--label", "labels", multiple=True, metavar="NAME=VALUE", help="To find them again."
    ),
)


def add_action_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say what is to be done; the command is given them as one, `deed`."""
    return gather_options(command, "deed", ActionOptions, _OPTIONS)


def parse_json_or_text(value: str) -> JSON:
    try:
        return loads(value)
    except BadValue:
        return value


def build_call(program: Program[Any, Any], words: tuple[str, ...], file: str | None) -> Any:
    """A call of the program with the arguments of the command line."""
    given = {} if file is None else _object(file)
    with hint_parameters(program, given):
        given |= parse_arguments(program, words)
        call = program(**given)
        program.arguments(call.args)
    return call


@contextmanager
def hint_parameters(program: Program[Any, Any], given: Mapping[str, Any]) -> Iterator[None]:
    """Arguments that a program does not take are told with those that it does."""
    try:
        yield
    except (BadArguments, BadSetting) as error:
        strange = [repr(name) for name in given if name not in program.signature.parameters]
        error.hint = (
            f"It takes {_parameters(program)}{', not ' if strange else ''}{', '.join(strange)}."
        )
        raise


def parse_arguments(program: Program[Any, Any], words: tuple[str, ...]) -> dict[str, Any]:
    """`name=value` words as the program's arguments."""
    return {
        name: _valued(program, name, text) for name, text in parse_pairs(words, "argument").items()
    }


def _valued(program: Program[Any, Any], name: str, text: str) -> Any:
    """A word as the parameter wants it: text where it takes text, else JSON if it is some."""
    wanted = program.types.get(name, Any)
    if str in (wanted, getattr(wanted, "__origin__", None)):  # also an annotated one
        return text
    try:
        value = loads(text)
    except BadValue:
        return text
    return text if not _fits(value, wanted) and _fits(text, wanted) else value


def _fits(value: Any, wanted: Any) -> bool:
    from everhold.core.schema import decode_value_as

    try:
        decode_value_as(value, wanted)
    except AnswerRefused:
        return False
    return True


def _parameters(program: Program[Any, Any]) -> str:
    shown = [_parameter(one, program.types) for one in program.signature.parameters.values()]
    return ", ".join(shown) or "no arguments"


def _parameter(one: Parameter, types: dict[str, Any]) -> str:
    """A parameter as one writes it, with its plain type where it is annotated with more."""
    wanted = types.get(one.name, one.annotation)
    plain = wanted.__origin__ if hasattr(wanted, "__metadata__") else wanted
    return str(one.replace(annotation=plain)).replace(f": {plain!r}", f": {plain}")


def _object(file: str) -> dict[str, Any]:
    try:
        given = loads(read_text_argument(file, "--json-args"))
    except BadValue as error:
        raise BadSetting("--json-args", f"{file}: {error.reason}") from None
    if not isinstance(given, dict):
        raise BadSetting("--json-args", f"{file} should hold a JSON object")
    return given


def describe_action(deed: Any) -> str:
    """What is done, in a few words."""
    from everhold.schedules import Feed

    if isinstance(deed, Feed):
        return f"signal {deed.signal} to {deed.session}" if deed.signal else f"tell {deed.session}"
    start: Start = deed
    args = f" with {format_count(len(start.args), 'argument')}" if start.args else ""
    return f"{start.program.rpartition('/')[2]}{args}"
