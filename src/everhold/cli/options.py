"""Options and arguments that several commands share, and what they mean: the database, durations,
`name=value` pairs, who answers `llm` questions, and the action of a schedule or trigger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from everhold.cli.context import (
    CommandRuntime,
    load_settings,
    open_command_runtime,
    read_text_argument,
    resolve_program,
)
from everhold.cli.output import format_count
from everhold.core.codec import JSON, loads
from everhold.errors import AnswerRefused, BadArguments, BadSetting, BadValue

if TYPE_CHECKING:
    from inspect import Parameter

    from everhold.ports.answerer import Answerer
    from everhold.ports.program import Program
    from everhold.schedules import Start

F = TypeVar("F", bound=Callable[..., Any])

_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, for other programs."
)


def add_common_options(command: F) -> F:
    """`--database` and `--json`, which every command that reads a database has."""
    command = json_option(command)
    return click.option(
        "-d",
        "--database",
        metavar="ADDRESS",
        help="Which database; without it, the settings say which.",
    )(command)


session_argument = click.argument("session", metavar="SESSION")


def gather_options(
    command: Callable[..., Any], name: str, kind: Any, options: Sequence[Callable[..., Any]]
) -> Callable[..., Any]:
    """A command that has these options, and is given them as one argument: a named tuple of this
    kind.
    """

    @wraps(command)
    def given(**words: Any) -> Any:
        whole = kind(**{field: words.pop(field) for field in kind._fields})
        return command(**{name: whole}, **words)

    found: Callable[..., Any] = given
    for option in reversed(options):
        found = option(found)
    return found


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.4
    """Seconds, or a number with a unit: 90s, 15m, 12h, 30d, 2w."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        if isinstance(value, float):
            return value
        number, unit = (value[:-1], value[-1]) if value[-1:] in _UNITS else (value, "s")
        try:
            found = float(number) * _UNITS[unit]
        except ValueError:
            found = -1.0
        if not found >= 0:
            self.fail(f"{value!r} is not a duration; say 90s, 15m, 12h, 30d or 2w", param, ctx)
        return found


def parse_pairs(given: tuple[str, ...], what: str) -> dict[str, str]:
    """`k=v` words as a dict."""
    found = {}
    for word in given:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadSetting(what, f"{word!r} should look like name=value")
        if name in found:
            raise BadSetting(what, f"{name!r} is given twice")
        found[name] = value
    return found


def invoke_default_command(usual: click.Command, **given: Any) -> None:
    """A group without a subcommand does the `usual`, with the options it was `given`; else they
    belong after it.
    """
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        context.invoke(usual, **given)
    elif any(given.values()):
        group = context.info_name
        verb = context.invoked_subcommand
        raise make_usage_error(f"say it after {verb}: everhold {group} {verb} …")


def make_usage_error(words: str) -> click.UsageError:
    """What is wrong with how this command was called."""
    return click.UsageError(words, click.get_current_context(silent=True))


# ---- who answers


class AnswerOptions(NamedTuple):
    """Who answers `llm` questions, as the options of a command say."""

    model: str | None = None
    answers: str | None = None
    answer_with: str | None = None
    at_once: int = 4
    timeout: float = 600.0

    @property
    def said(self) -> bool:
        """Whether an option says who; else the settings do."""
        return not (self.model is self.answers is self.answer_with is None)

    def llm(self, database: str | None) -> Answerer | None:
        """Who it is: the options, else the settings; None leaves the questions open."""
        from everhold.models import CommandModel, ScriptModel
        from everhold.models.registry import make_answerer

        if self.answers is not None and self.answer_with is not None:
            raise BadSetting("--answers", "give it or --answer-with, not both")
        if self.model is not None:
            if self.answers is not None or self.answer_with is not None:
                raise BadSetting(
                    "--model", "give it alone: --answers and --answer-with say who answers, too"
                )
            return _model(self.model)
        if self.answers is not None:
            return ScriptModel.read(self.answers)
        found = load_settings(database)
        words = self.answer_with if self.answer_with is not None else found.answer_with
        if words is None or (found.llm is not None and self.answer_with is None):
            return make_answerer(found.llm)
        command = CommandModel(words, at_once=self.at_once, timeout=self.timeout)
        command.check()
        return command


def _model(name: str) -> Answerer:
    """The model of `--model`: who types it means it, whatever an agent or a question names."""
    from everhold.models import create_model

    try:
        return create_model(name, always=True, setting="--model")
    except BadSetting as error:
        raise BadSetting("--model", error.reason) from None


_ANSWER_OPTIONS: Final = (
    click.option(
        "--model",
        metavar="NAME",
        help="Answer llm questions with this model, provider:name; it goes before an agent's own.",
    ),
    click.option(
        "--answers",
        metavar="FILE",
        help="Answer llm questions from a JSON file: a list, or patterns.",
    ),
    click.option(
        "--answer-with",
        metavar="CMD",
        help="Answer llm questions with a command, such as 'claude -p'.",
    ),
    click.option(
        "--at-once",
        default=4,
        show_default=True,
        metavar="N",
        help="How many commands run at a time.",
    ),
    click.option(
        "--timeout",
        type=Duration(),
        default=600.0,
        show_default=True,
        metavar="S",
        help="Seconds for one command.",
    ),
)


def add_answer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """The options that say who answers; the command is given them as one, `who`."""
    return gather_options(command, "who", AnswerOptions, _ANSWER_OPTIONS)


@contextmanager
def open_moving_runtime(
    database: str | None, who: AnswerOptions | None = None, *, makes: bool = False
) -> Iterator[CommandRuntime]:
    """A runtime in which sessions go on while a command works; `makes` may make the database."""
    with open_command_runtime(
        database, llm=(who or AnswerOptions()).llm(database), moves=True, makes=makes
    ) as opened:
        yield opened


# ---- programs with arguments, and actions


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


_ACTION_OPTIONS: Final = (
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
    """The options that say what is to be done; the command is given them as one, `action`."""
    return gather_options(command, "action", ActionOptions, _ACTION_OPTIONS)


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


def describe_action(action: Any) -> str:
    """What is done, in a few words."""
    from everhold.schedules import Feed

    if isinstance(action, Feed):
        return (
            f"signal {action.signal} to {action.session}"
            if action.signal
            else f"tell {action.session}"
        )
    start: Start = action
    args = f" with {format_count(len(start.args), 'argument')}" if start.args else ""
    return f"{start.program.rpartition('/')[2]}{args}"
