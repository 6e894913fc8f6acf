"""Prepared answers, for tests and for `--answers FILE`.

    ScriptModel(["first", "second"])                     in the order asked
    ScriptModel({"capital of *": "Paris"})               by pattern; the first that matches
    ScriptModel({"Which?": ["this", "then that"]})       by pattern, each answer once, in order
    ScriptModel(lambda query: query.prompt.upper())      by a function

A pattern with `*` must match the whole prompt, `re:` begins a regular expression, and any other
pattern must occur in the prompt. Of a conversation, the text of its messages is matched. An
exception among the answers is raised. A list starts again in a new process.

Rules
  1. A query without a prepared answer fails, and the error names the query.
  2. Queries for people are answered only with `ScriptModel(…, people=True)`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from everhold.core.codec import JSON, loads
from everhold.core.query import MODEL_KINDS, SCRIPTED_KINDS, Query, refuse_other_kinds
from everhold.core.unknown_names import checks_keywords
from everhold.errors import AnswerFailed, BadSetting, BadValue
from everhold.ports.answerer import Answerer

PromptPattern = str | re.Pattern[str]
ScriptAnswers = Sequence[Any] | Mapping[Any, Any] | Callable[[Query], Any]

_SHOWN: Final = 200  # characters of a prompt in an error message


class ScriptModel(Answerer):
    """Gives prepared answers: a list in order, a dict of patterns, or a function of the query."""

    @checks_keywords("ScriptModel")
    def __init__(self, answers: ScriptAnswers, *, people: bool = False) -> None:
        self.kinds = SCRIPTED_KINDS if people else MODEL_KINDS
        self.asked: list[Query] = []
        self._next_answer = _make_source(answers)

    @classmethod
    def read(cls, path: str | Path, *, people: bool = False) -> ScriptModel:
        """Read a script from a JSON file: a list of answers, or patterns and their answers."""
        try:
            answers: JSON = loads(Path(path).read_bytes())
        except OSError as error:
            raise BadSetting("answers", f"{path} cannot be read: {error.strerror}") from None
        except BadValue as error:
            raise BadSetting("answers", f"{path}: {error.reason}") from None
        if not isinstance(answers, list | dict):
            raise BadSetting(
                "answers", f"{path} must contain a list, or an object of patterns and answers"
            )
        return cls(answers, people=people)

    async def answer(self, query: Query, session_id: str) -> Any:
        refuse_other_kinds(self.kinds, query)
        self.asked.append(query)
        # Taken before the first await, so that a list is used in the order of the queries.
        answer = self._next_answer(query)
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, BaseException):
            raise answer
        return answer


def _make_source(answers: ScriptAnswers) -> Callable[[Query], Any]:
    if isinstance(answers, Mapping):
        return _by_pattern(answers)
    if isinstance(answers, str) or not isinstance(answers, Sequence):
        if callable(answers):
            return answers
        raise BadSetting(
            "answers",
            f"a script must be a list, a dict or a function, not {type(answers).__name__}",
        )
    return _in_order(answers, "the script")


def _in_order(answers: Sequence[Any], where: str) -> Callable[[Query], Any]:
    left = iter(list(answers))

    def take(query: Query) -> Any:
        for answer in left:
            return answer
        count = f"{len(answers)} answer{'' if len(answers) == 1 else 's'}"
        raise AnswerFailed(
            f"{where} has {count}, and all are used; asked: {_format_query(query)}", "script"
        )

    return take


def _by_pattern(answers: Mapping[Any, Any]) -> Callable[[Query], Any]:
    table = [
        (compile_prompt_pattern(pattern), _make_pattern_source(pattern, answer))
        for pattern, answer in answers.items()
    ]

    def take(query: Query) -> Any:
        text = _get_text(query)
        for matches, answer in table:
            if matches(text):
                return answer(query)
        raise AnswerFailed(
            f"no pattern of the script matches; asked: {_format_query(query)}", "script"
        )

    return take


def _make_pattern_source(pattern: PromptPattern, answer: Any) -> Callable[[Query], Any]:
    if isinstance(answer, list):
        return _in_order(answer, f"the pattern {pattern!r}")
    return lambda query: answer


def compile_prompt_pattern(pattern: PromptPattern) -> Callable[[str], object]:
    if isinstance(pattern, re.Pattern):
        return pattern.search
    if pattern.startswith("re:"):
        try:
            return re.compile(pattern[3:], re.DOTALL).search
        except re.error as error:
            raise BadSetting(
                "answers", f"{pattern!r} is not a regular expression: {error}"
            ) from None
    if "*" in pattern:
        return re.compile(".*".join(map(re.escape, pattern.split("*"))), re.DOTALL).fullmatch
    return lambda text: pattern in text


def _get_text(query: Query) -> str:
    """What a pattern must match: the prompt, or the messages of a conversation."""
    return query.prompt or query.name or str(query.messages)


def _format_query(query: Query) -> str:
    text = _get_text(query)
    return f"{query.id} ({query.kind}) {text[:_SHOWN]!r}" + ("…" if len(text) > _SHOWN else "")
