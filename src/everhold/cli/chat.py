"""`everhold chat`: a conversation with an agent.

At a terminal, answers are streamed, questions for a person are asked in place, and Ctrl-C stops the
turn. Without one, each line of standard input is a message, and each answer is a line of standard
output.
"""

from __future__ import annotations

import secrets
import shlex
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, Final

import click

from everhold.cli.candidates import complete_agents, complete_sessions
from everhold.cli.context import CommandRuntime, at_terminal, describe_user, resolve_agent
from everhold.cli.options import (
    AnswerOptions,
    add_answer_options,
    add_common_options,
    open_moving_runtime,
)
from everhold.cli.output import (
    describe_unanswered,
    format_count,
    format_line,
    format_plain_value,
    format_turn,
    get_outcome_tag,
    get_turn_exception,
    print_exception,
    print_json,
    print_waiting,
    queries_to_json,
    strip_controls,
    turn_to_json,
)
from everhold.core.query import MODEL_KINDS
from everhold.wire import ExitCode

if TYPE_CHECKING:
    from everhold.agents import Turn
    from everhold.agents.events import Event
    from everhold.blocking import BlockingSession
    from everhold.core.codec import JSON
    from everhold.core.ledger import TokenCounts
    from everhold.core.status import OpenQuery

_HELP: Final = "/usage tokens so far   /quit leave; the conversation is kept   Ctrl-C stop the turn"


@click.command("chat")
@click.argument("agent", shell_complete=complete_agents)
@click.option(
    "--session",
    "name",
    metavar="NAME",
    shell_complete=complete_sessions,
    help="The conversation. An existing one resumes. Default: a new one.",
)
@click.option(
    "--again",
    is_flag=True,
    help="With --session: start a new conversation if the one of this name was deleted.",
)
@add_answer_options
@add_common_options
def chat_(
    agent: str,
    name: str | None,
    again: bool,
    answerer: AnswerOptions,
    database: str | None,
    as_json: bool,
) -> int:
    """Talk to an agent, or resume a conversation.

    AGENT is a name (`everhold programs` lists them), module:variable or path/file.py:variable.
    Without a terminal, each line of standard input is a message; at a question for a person, the
    command stops with exit code 10.

    \b
    everhold chat support.py:support --session ana --model anthropic:claude-sonnet-4-6
    """
    found = resolve_agent(database, agent)
    name = name or f"chat-{secrets.token_hex(4)}"
    with open_moving_runtime(database, answerer, creates=True) as opened:
        session = opened.runtime.session(found, name, again=again)
        if at_terminal() and not as_json:
            options = f"{opened.database_option}{_format_options(answerer)}"
            command = f"everhold chat {shlex.quote(agent)} --session {shlex.quote(name)}{options}"
            return ChatTerminal(opened, session, name, command).run(agent)
        return _read_messages(opened, session, name, as_json=as_json)


def _format_options(answerer: AnswerOptions) -> str:
    """The options that say who answers, as they were typed."""
    given = {"--model": answerer.model, "--answer-with": answerer.answer_with}
    return "".join(
        f" {option} {shlex.quote(value)}" for option, value in given.items() if value is not None
    )


# ---- without a terminal


def _read_messages(
    opened: CommandRuntime, session: BlockingSession, name: str, *, as_json: bool
) -> int:
    rows: list[JSON] = []
    waiting: tuple[OpenQuery, ...] = ()
    for message in _list_messages(sys.stdin):
        turn = session.send(message)
        rows.append({"input": message, **turn_to_json(turn)})
        if not as_json:
            click.echo(format_turn(turn))
            print_exception(get_turn_exception(turn), err=True)
        if turn.waiting:
            waiting = turn.queries
            break
    if as_json:
        print_json(
            {
                "session": name,
                "session_id": session.id,
                "turns": rows,
                "waiting": queries_to_json(waiting),
            }
        )
    else:
        print_waiting(waiting, name, opened.database_option)
    return ExitCode.WAITING if waiting else ExitCode.OK


def _list_messages(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if line.strip() == "/quit":
            return
        if line.strip():
            yield line.rstrip("\n")


# ---- at a terminal


def _format_usage(spent: TokenCounts) -> str:
    """Tokens in words; tokens that a provider does not report are not counted."""
    cached = f", {spent.cache_read} of them from its cache" if spent.cache_read else ""
    return (
        f"{format_count(spent.total, 'token')}: {spent.context} read{cached}, {spent.output}"
        " written"
    )


class ChatTerminal:
    """A conversation with the person at the terminal."""

    def __init__(
        self, opened: CommandRuntime, session: BlockingSession, name: str, command: str
    ) -> None:
        self._opened = opened
        self._session = session
        self._name = name
        self._command = command  # that resumes it
        self._since = 0  # the first turn to print
        self._streamed: set[str] = set()  # questions whose answers were streamed
        self._called: set[str] = set()  # tool calls that were printed
        self._cursor: str | None = None
        self._reported = False  # whether it was printed that no model answers

    def run(self, agent: str) -> int:
        """Sends what the person types, until `/quit`."""
        click.secho(f"{agent} · {self._name} · {_HELP}", dim=True)
        try:
            self._resume_turn()
            while True:
                message = input("> ").strip()
                if message == "/quit":
                    break
                if message == "/usage":
                    click.echo(_format_usage(self._session.usage().total))
                elif message.startswith("/"):
                    click.secho(_HELP, dim=True)
                elif message:
                    input_id = f"i-{secrets.token_hex(8)}"
                    self._follow(input_id, self._session.stream(message, id=input_id))
        except (EOFError, KeyboardInterrupt):
            click.echo()
        click.secho(f"the conversation is kept; to resume it: {self._command}", dim=True)
        return ExitCode.OK

    def _resume_turn(self) -> None:
        """Finishes a turn that was interrupted."""
        conversation = self._session.conversation()
        left = [
            input_id for input_id in conversation.inputs if conversation.settled(input_id) is None
        ]
        if left and conversation.graph.tip != conversation.graph.leaf:
            click.secho("(resuming the interrupted turn)", dim=True)
            self._since = len(conversation.turns) + 1
            self._follow(left[0], self._session.follow(left[0]))

    def _follow(self, input_id: str, events: Iterable[Event]) -> None:
        """Prints a turn as it runs, and asks the person its questions in place."""
        try:
            self._show_all(events)
            turn = self._session.turn(input_id, wait=0)
            while turn.waiting:
                if turn.queries:
                    self._ask(turn)
                self._show_all(self._session.follow(input_id, self._cursor))
                turn = self._session.turn(input_id, wait=0)
        except KeyboardInterrupt:
            self._session.cancel_turn("Ctrl-C")
            click.secho("\n(the turn was stopped)", fg="yellow")
            return
        if get_outcome_tag(turn) != "answered":
            click.secho(format_turn(turn), fg="red")
            print_exception(get_turn_exception(turn))

    def _ask(self, turn: Turn) -> None:
        from everhold.cli.terminal import PromptQuit, prompt_for_answer

        for query in turn.queries:
            if query.kind in MODEL_KINDS and not self._reported:
                self._reported = True
                click.secho(
                    f"({describe_unanswered(query)}; until then, you answer for it)", dim=True
                )
            try:
                typed = prompt_for_answer(query, self._name)
            except PromptQuit:
                raise EOFError from None
            given: dict[str, Any] = (
                {"error": typed.error} if typed.error is not None else {"value": typed.value}
            )
            by = describe_user() if query.kind not in MODEL_KINDS else None
            self._opened.runtime.answer(query, by=by, wait=0, **given)

    def _show_all(self, events: Iterable[Event]) -> None:
        for event in events:
            self._cursor = event.cursor
            if event.turn >= self._since:
                self._show(event)

    def _show(self, event: Event) -> None:
        match event.kind:
            case "text":
                self._streamed.add(event.query)
                click.echo(strip_controls(event.text), nl=False)
            case "model_answered" if event.query in self._streamed:
                click.echo()
            case "message" if event.node is not None and event.node.role == "assistant":
                from everhold.core.graph import extract_text

                text = extract_text(event.node.content)
                if text and f"q-{event.node.q}" not in self._streamed:
                    click.echo(strip_controls(text))
            case "tool_started" if event.call not in self._called:
                self._called.add(event.call)
                click.secho(
                    f"· {event.name} {format_line(format_plain_value(event.value), 100)}", dim=True
                )
            case "tool_finished" if event.error:
                place = "" if event.exception is None else f" ({event.exception.place})"
                words = format_line(event.error, 100)
                click.secho(f"· {event.name} failed: {words}{place}", fg="red")
            case "output":
                click.secho(strip_controls(event.text), dim=True, nl=False)
            case "progress":
                click.secho(f"· {event.name}: {format_line(event.text, 100)}", dim=True)
            case "reset":
                self._streamed.discard(event.query)
                click.secho("\n(the model is asked again)", dim=True)
