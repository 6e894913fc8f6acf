"""Commands in which sessions go on: who answers `llm` questions meanwhile, and the runtime they go
on in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from everhold.cli.context import (
    CommandRuntime,
    Duration,
    gather_options,
    load_settings,
    open_command_runtime,
)
from everhold.errors import BadSetting

if TYPE_CHECKING:
    from everhold.ports.answerer import Answerer


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


_OPTIONS: Final = (
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
    return gather_options(command, "who", AnswerOptions, _OPTIONS)


@contextmanager
def open_moving_runtime(
    database: str | None, who: AnswerOptions | None = None, *, makes: bool = False
) -> Iterator[CommandRuntime]:
    """A runtime in which sessions go on while a command works; `makes` may make the database."""
    with open_command_runtime(
        database, llm=(who or AnswerOptions()).llm(database), moves=True, makes=makes
    ) as house:
        yield house
