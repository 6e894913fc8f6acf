"""Options that several commands share: the database, sessions, durations, `name=value` pairs, who
answers `llm` questions, and what a schedule or trigger does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from types import NoneType, UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
)

import click
from click.core import ParameterSource

from everhold.cli.candidates import (
    complete_files,
    complete_labels,
    complete_programs,
    complete_recorded_programs,
    complete_sessions,
    complete_states,
)
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
from everhold.shell_command import quote_word

if TYPE_CHECKING:
    from inspect import Parameter

    from everhold.ports.answerer import Answerer
    from everhold.ports.program import Program
    from everhold.schedules import Start

F = TypeVar("F", bound=Callable[..., Any])

#: The largest limit of a budget that can be stored.
MAX_LIMIT: Final = 2**63 - 1
_UNITS: Final = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


json_option = click.option(
    "--json", "as_json", is_flag=True, help="Print JSON, for other programs."
)
database_option = click.option(
    "-d",
    "--database",
    metavar="ADDRESS",
    shell_complete=complete_files,
    help="The database: a file such as app.db, or an address. Default: from the settings.",
)
session_argument = click.argument("session", metavar="SESSION", shell_complete=complete_sessions)
optional_session_argument = click.argument(
    "session", metavar="[SESSION]", required=False, shell_complete=complete_sessions
)
sessions_argument = click.argument(
    "sessions", nargs=-1, metavar="[SESSION]...", shell_complete=complete_sessions
)
program_option = click.option(
    "--program",
    metavar="NAME",
    shell_complete=complete_recorded_programs,
    help="Only sessions of this program.",
)
label_option = click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    shell_complete=complete_labels,
    help="Only sessions with this label. May be repeated.",
)
new_label_option = click.option(
    "--label",
    "labels",
    multiple=True,
    metavar="NAME=VALUE",
    shell_complete=complete_labels,
    help="A label of the session, to find it again. May be repeated.",
)


as_option = click.option(
    "--as", "name", metavar="NAME", help="Who does it; recorded. Default: the user of the system."
)


def add_common_options(command: F) -> F:
    """Adds `--database` and `--json`, which every command that reads a database has."""
    return database_option(json_option(command))


def state_option(help: str) -> Callable[[F], F]:
    """The option `--state`, which may be repeated."""
    return click.option(
        "--state",
        "states",
        multiple=True,
        metavar="STATE",
        shell_complete=complete_states,
        help=f"{help} May be repeated.",
    )


def wait_option(help: str) -> Callable[[F], F]:
    """The option `--wait`, a duration."""
    return click.option("--wait", type=Duration(), metavar="TIME", help=help)


def gather_options(
    command: Callable[..., Any], name: str, kind: Any, options: Sequence[Callable[..., Any]]
) -> Callable[..., Any]:
    """Adds these options to a command, and passes them as one argument, a named tuple of this
    kind.
    """

    @wraps(command)
    def gathered(**values: Any) -> Any:
        whole = kind(**{field: values.pop(field) for field in kind._fields})
        return command(**{name: whole}, **values)

    found: Callable[..., Any] = gathered
    for option in reversed(options):
        found = option(found)
    return found


class Duration(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.4
    """Seconds, or a number with a unit: 90s, 15m, 12h, 30d, 2w."""

    name = "time"

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
        if not found >= 0:  # also for nan
            self.fail(f"{value!r} is not a duration; write 90s, 15m, 12h, 30d or 2w", param, ctx)
        return found


class BudgetOptions(NamedTuple):
    """Limits of a session's budget, as the options of a command say: a number, or `none`."""

    max_llm_calls: int | str | None
    max_tokens: int | str | None
    max_elapsed: float | str | None

    @property
    def change(self) -> dict[str, int | None]:
        """The limits that are named; None means no limit."""
        elapsed = self.max_elapsed
        named = {
            "max_llm_calls": self.max_llm_calls,
            "max_tokens": self.max_tokens,
            "max_elapsed_ms": int(elapsed * 1000) if isinstance(elapsed, float) else elapsed,
        }
        return {
            name: limit if isinstance(limit, int) else None
            for name, limit in named.items()
            if limit is not None
        }

    @property
    def budget(self) -> dict[str, int] | None:
        """The budget of a new session; None without limits."""
        return {name: limit for name, limit in self.change.items() if limit is not None} or None


class _Limit(click.ParamType):  # type: ignore[type-arg]  # generic only since click 8.4
    """A number of a certain type, or `none`."""

    name = "limit"

    def __init__(self, of: click.ParamType) -> None:  # type: ignore[type-arg]
        self._of = of

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "none" else self._of.convert(value, param, ctx)


def add_budget_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of a budget; the command gets them as one argument, `limits`."""
    kinds: tuple[tuple[str, click.ParamType, str, str], ...] = (  # type: ignore[type-arg]
        ("--max-llm-calls", click.IntRange(0, MAX_LIMIT), "N", "how many model questions it asks"),
        ("--max-tokens", click.IntRange(0, MAX_LIMIT), "N", "how many tokens it uses"),
        ("--max-elapsed", Duration(), "TIME", "how long it takes, from its start"),
    )
    options = [
        click.option(
            name, type=_Limit(kind), metavar=shown, help=f"Limit {what}; `none` lifts the limit."
        )
        for name, kind, shown, what in kinds
    ]
    return gather_options(command, "limits", BudgetOptions, options)


def parse_pairs(words: Sequence[str], what: str) -> dict[str, str]:
    """`name=value` words as a dict."""
    found = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals or not name:
            raise BadSetting(what, f"{word!r} must look like name=value")
        if name in found:
            raise BadSetting(what, f"{name!r} is given twice")
        found[name] = value
    return found


def invoke_default_command(default: click.Command, **options: Any) -> None:
    """Runs the default command of a group that has no subcommand. Options of the group are refused
    if there is one: they belong after it.
    """
    context = click.get_current_context()
    if context.invoked_subcommand is None:
        context.invoke(default, **options)
    elif any(options.values()):
        command = f"everhold {context.info_name} {context.invoked_subcommand}"
        raise make_usage_error(f"options belong after the subcommand: {command} …")


def make_usage_error(text: str) -> click.UsageError:
    """A mistake in how this command was typed."""
    return click.UsageError(text, click.get_current_context(silent=True))


# ---- who answers `llm` questions


class AnswerOptions(NamedTuple):
    """Who answers `llm` questions, as the options of a command say."""

    model: str | None = None
    answers: str | None = None
    answer_with: str | None = None
    on_unavailable: str | None = None
    at_once: int = 4
    timeout: float = 600.0

    @property
    def given(self) -> bool:
        """Whether an option names an answerer; else the settings do."""
        return not (self.model is self.answers is self.answer_with is None)

    def llm(self, database: str | None) -> Answerer | None:
        """The answerer of the options, else of the settings; None leaves the questions open."""
        from everhold.models import Model

        found = self._find_answerer(database)
        if self.on_unavailable is not None:
            found = found or Model()
            found.on_unavailable = self.on_unavailable
        return found

    def _find_answerer(self, database: str | None) -> Answerer | None:
        from everhold.models import CommandModel, ScriptModel
        from everhold.models.registry import make_answerer

        if self.answers is not None and self.answer_with is not None:
            raise BadSetting("--answers", "give it or --answer-with, not both")
        if self.model is not None:
            if self.answers is not None or self.answer_with is not None:
                raise BadSetting("--model", "give it without --answers and --answer-with")
            from everhold.models import create_model

            # this model answers even if an agent or a question names another one
            try:
                return create_model(self.model, always=True, setting="--model")
            except BadSetting as error:
                raise BadSetting("--model", error.reason) from None
        if self.answers is not None:
            return ScriptModel.read(self.answers)
        found = load_settings(database)
        words = self.answer_with if self.answer_with is not None else found.answer_with
        if words is None or (found.llm is not None and self.answer_with is None):
            return make_answerer(found.llm)
        command = CommandModel(words, at_once=self.at_once, timeout=self.timeout)
        command.check()
        return command


_ANSWER_OPTIONS: Final = (
    click.option(
        "--model",
        metavar="NAME",
        help="Answer llm questions with this model, such as anthropic:claude-sonnet-4-6. It"
        " replaces the model that an agent names.",
    ),
    click.option(
        "--answers",
        metavar="FILE",
        shell_complete=complete_files,
        help="Answer llm questions from a JSON file: a list of answers, or an object of patterns"
        " and answers.",
    ),
    click.option(
        "--answer-with",
        metavar="COMMAND",
        help="Answer llm questions with a command, such as 'claude -p': the question is on its"
        " standard input.",
    ),
    click.option(
        "--on-unavailable",
        type=click.Choice(["wait", "fail"]),
        help="What to do with an llm question that no model here can answer: let it wait for"
        " another process or a person (the default), or fail with the reason.",
    ),
    click.option(
        "--at-once",
        default=4,
        show_default=True,
        metavar="N",
        help="With --answer-with: how many commands may run at the same time.",
    ),
    click.option(
        "--timeout",
        type=Duration(),
        default=600.0,
        show_default="10m",
        metavar="TIME",
        help="With --answer-with: how long one command may run.",
    ),
)


def add_answer_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options that say who answers; the command gets them as one argument, `answerer`."""
    return gather_options(command, "answerer", AnswerOptions, _ANSWER_OPTIONS)


@contextmanager
def open_moving_runtime(
    database: str | None,
    answerer: AnswerOptions | None = None,
    *,
    creates: bool = False,
    shows: bool = False,
) -> Iterator[CommandRuntime]:
    """Opens a runtime in which sessions move while the command runs."""
    with open_command_runtime(
        database,
        llm=(answerer or AnswerOptions()).llm(database),
        moves=True,
        creates=creates,
        shows=shows,
    ) as opened:
        yield opened


# ---- what a schedule or trigger does


class ActionOptions(NamedTuple):
    """What a schedule or trigger does: start a program with arguments, or send something to a
    session.
    """

    program: str | None
    arguments: tuple[str, ...]
    feed: str | None
    signal: str | None
    value: str | None
    title: str
    labels: tuple[str, ...]

    def parse(self, database: str | None, *, whole: bool) -> tuple[Any, dict[str, Any]]:
        """The action and its arguments. With `whole`, the arguments are complete and the action is
        a call that holds them.
        """
        from everhold.schedules import Feed

        if (self.program is None) == (self.feed is None):
            raise make_usage_error("name what to start or feed: a PROGRAM, or --feed SESSION")
        if self.feed is not None:
            value = {} if self.value is None else {"value": parse_json_or_text(self.value)}
            return Feed(self.feed, self.signal or "", **value), {}
        if self.signal is not None or self.value is not None:
            raise make_usage_error("--signal and --value need --feed")
        found = resolve_program(database, self.program or "")
        if whole:
            return build_call(found, self.arguments, None), {}
        return found, parse_arguments(found, self.arguments)

    def describe(self) -> dict[str, Any]:
        """The title and the labels of the sessions that are started."""
        return {"title": self.title, "labels": parse_pairs(self.labels, "--label")}


_ACTION_OPTIONS: Final = (
    click.argument("program", required=False, shell_complete=complete_programs),
    click.argument("arguments", nargs=-1, metavar="[NAME=VALUE]..."),
    click.option(
        "--feed",
        metavar="SESSION",
        shell_complete=complete_sessions,
        help="Send something to this session instead of starting a program.",
    ),
    click.option(
        "--signal",
        metavar="NAME",
        help="With --feed: send this signal. Without it, the session gets a message, as with"
        " `everhold send`.",
    ),
    click.option(
        "--value",
        metavar="JSON",
        help="With --feed: what to send. Default: the time of the schedule, or the payload of the"
        " event.",
    ),
    click.option("--title", metavar="TEXT", default="", help="The title of the sessions."),
    new_label_option,
)


def add_action_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Adds the options of an action; the command gets them as one argument, `action`."""
    return gather_options(command, "action", ActionOptions, _ACTION_OPTIONS)


def describe_action(action: Any) -> str:
    """What a schedule or trigger does, in a few words."""
    from everhold.schedules import Feed

    if isinstance(action, Feed):
        what = f"signal {action.signal}" if action.signal else "a message"
        return f"send {what} to {action.session}"
    start: Start = action
    args = f" with {format_count(len(start.args), 'argument')}" if start.args else ""
    return f"start {start.program.rpartition('/')[2]}{args}"


# ---- arguments of programs


def parse_json_or_text(value: str) -> JSON:
    try:
        return loads(value)
    except BadValue:
        return value


def build_call(program: Program[Any, Any], words: tuple[str, ...], file: str | None) -> Any:
    """A call of the program with the arguments of the command line."""
    given = {} if file is None else _read_json_object(file)
    with hint_parameters(program, given):
        given |= parse_arguments(program, words)
        call = program(**given)
        program.arguments(call.args)
    return call


@contextmanager
def hint_parameters(program: Program[Any, Any], given: Mapping[str, Any]) -> Iterator[None]:
    """Adds the parameters of the program to errors about its arguments."""
    try:
        yield
    except (BadArguments, BadSetting) as error:
        unknown = [repr(name) for name in given if name not in program.signature.parameters]
        error.hint = format_parameters(program, unknown) + "".join(_hint_options(program, given))
        raise


def _hint_options(program: Program[Any, Any], given: Mapping[str, Any]) -> Iterator[str]:
    """A sentence for each option of the command that may be meant as an argument."""
    context = click.get_current_context(silent=True)
    for option in () if context is None else context.command.params:
        name = option.name or ""
        if (
            context is not None
            and f"--{name}" in option.opts
            and name in set(_list_parameters(program)) - set(given)
            and context.get_parameter_source(name) is ParameterSource.COMMANDLINE
        ):
            word = quote_word(f"{name}={context.params.get(name)}")
            yield f" --{name} is an option of the command itself; for the argument, write {word}"


def format_parameters(program: Program[Any, Any], unknown: Sequence[str] = ()) -> str:
    """A sentence about the parameters of a program, and about names that are not among them."""
    parameters = program.signature.parameters.values()
    shown = [
        _format_parameter(one, program.types) for one in parameters if one.kind != one.VAR_KEYWORD
    ]
    others = [str(one) for one in parameters if one.kind == one.VAR_KEYWORD and not shown]
    takes = ", ".join(shown or others) or "no arguments"
    return f"It takes {takes}{', not ' if unknown else ''}{', '.join(unknown)}."


class UnknownOption(click.NoSuchOption):
    """An option that is neither one of the command nor an argument of its program."""

    def __init__(self, name: str, program: Program[Any, Any] | None = None) -> None:
        from difflib import get_close_matches

        context = click.get_current_context(silent=True)
        known = [] if context is None else [one for p in context.command.params for one in p.opts]
        arguments = [] if program is None else _list_parameters(program)
        options = [one for one in known if one.startswith("--")] + [f"--{one}" for one in arguments]
        super().__init__(name, possibilities=get_close_matches(name, options, 1), ctx=context)
        takes = "" if program is None else f" {format_parameters(program)}"
        command = "everhold" if context is None else context.command_path
        self.hint = f"For the options: {command} --help.{takes}"


def parse_named_arguments(program: Program[Any, Any], words: Sequence[str]) -> dict[str, Any]:
    """`name=value` words as arguments of the program."""
    return {
        name: _parse_argument(program, name, text)
        for name, text in parse_pairs(words, "argument").items()
    }


def parse_arguments(program: Program[Any, Any], words: Sequence[str]) -> dict[str, Any]:
    """The words of a command line as arguments of the program.

    They are NAME=VALUE, --NAME VALUE, --NAME=VALUE, --NAME and --no-NAME for truth values, or
    values in the order of the parameters that have no other value.
    """
    parameters = _list_parameters(program)
    pairs: list[str] = []
    values: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if not word.startswith("-") or word == "-" or _is_number(word):
            is_pair = word.partition("=")[0].isidentifier() and "=" in word
            (pairs if is_pair else values).append(word)
            continue
        option, equals, value = word.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if name not in parameters and name.removeprefix("no_") in parameters and not equals:
            name, equals, value = name.removeprefix("no_"), "=", "false"
        if not word.startswith("--") or name not in parameters:
            raise UnknownOption(option, program)
        if not equals and program.types.get(name) is bool:
            value = "true"
        elif not equals:
            if not left:
                raise BadArguments(program.name, f"{option} needs a value")
            value = left.pop(0)
        pairs.append(f"{name}={value}")
    given = parse_named_arguments(program, pairs)
    free = [name for name in parameters if name not in given]
    if len(values) > len(free):
        raise BadSetting("argument", f"{values[len(free)]!r} must look like name=value")
    for name, text in zip(free, values, strict=False):
        given[name] = _parse_argument(program, name, text)
    return given


def _list_parameters(program: Program[Any, Any]) -> list[str]:
    """The parameters that an argument can name, in order."""
    return [
        name
        for name, one in program.signature.parameters.items()
        if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)
    ]


def _is_number(word: str) -> bool:
    try:
        float(word)
    except ValueError:
        return False
    return True


def _parse_argument(program: Program[Any, Any], name: str, text: str) -> Any:
    """The text itself if the parameter takes text, else its value as JSON, if it is JSON."""
    wanted = program.types.get(name, Any)
    if str in (wanted, getattr(wanted, "__origin__", None)):  # `Annotated[str, …]` has an origin
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


def _format_parameter(one: Parameter, types: dict[str, Any]) -> str:
    """A parameter as in source code; `Annotated` types are shown without their metadata."""
    wanted = types.get(one.name, one.annotation)
    if wanted is one.empty:
        return str(one)
    shown = _format_type(wanted)
    return str(one.replace(annotation=shown)).replace(f": {shown!r}", f": {shown}")


def _format_type(wanted: Any) -> str:
    from inspect import formatannotation

    if hasattr(wanted, "__metadata__"):
        return _format_type(wanted.__origin__)
    origin, parts = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return " | ".join(map(_format_type, parts))
    if parts and isinstance(origin, type):
        return f"{origin.__name__}[{', '.join(map(_format_type, parts))}]"
    if wanted in (NoneType, ...):
        return "None" if wanted is NoneType else "..."
    return wanted if isinstance(wanted, str) else formatannotation(wanted)


def _read_json_object(file: str) -> dict[str, Any]:
    try:
        given = loads(read_text_argument(file, "--json-args"))
    except BadValue as error:
        raise BadSetting("--json-args", f"{file}: {error.reason}") from None
    if not isinstance(given, dict):
        raise BadSetting("--json-args", f"{file} must hold a JSON object")
    return given
