"""Prepared answers and stand-ins for tests.

    {"*the reason*": "It broke."}         by pattern, as in `everhold.ScriptModel`
    ["first", "second"]                   in the order of the questions
    lambda query: query.prompt.upper()    by a function, async or not
    Path("recorded.jsonl")                from a recorded session: an exported file, or one written by --as-test

A real model is refused: a test must not cost money, and must give the same result tomorrow.
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Final

import msgspec

from everhold.core.journal import Delivery, describe_query
from everhold.core.query import Query, QueryAnswer
from everhold.core.session import Birth
from everhold.engine.journal_reader import index_queries
from everhold.errors import AnswerFailed, BadSetting
from everhold.models import CommandModel, ScriptModel
from everhold.models.script import compile_prompt_pattern
from everhold.ports.answerer import Answer, Answerer

Answers = Mapping[Any, Any] | Sequence[Any] | Callable[[Query], Any] | PathLike[str] | str

_TAKES: Final = "a dict of patterns, a list, a function, or the path of a recorded session"


class RecordedSession(msgspec.Struct):
    """The questions and answers of one recorded session, by the key of the question."""

    program: str
    queries: dict[str, Query]
    answers: dict[str, QueryAnswer]

    @classmethod
    def read(cls, birth: Birth, deliveries: Sequence[Delivery]) -> RecordedSession:
        queries = index_queries(deliveries)
        answers = {
            queries[answer.q].key: answer for delivery in deliveries for answer in delivery.answers
        }
        return cls(_bare(birth.program), {query.key: query for query in queries.values()}, answers)


class RecordedAnswers(Answerer):
    """Recorded answers: the n-th session of a program gets those of the n-th recorded session."""

    def __init__(self, tapes: Sequence[RecordedSession], name: str) -> None:
        self._left = list(tapes)
        self._taken: dict[str, RecordedSession] = {}
        self._name = name

    def claim(self, session_id: str, program: str) -> None:
        """Assign a recording to a new session, if one of its program is left."""
        if session_id not in self._taken:
            for tape in self._left:
                if tape.program == _bare(program):
                    self._left.remove(tape)
                    self._taken[session_id] = tape
                    return

    def find(self, query: Query, session_id: str) -> QueryAnswer | None:
        """The recorded answer to a question of the same kind at the same place, or None."""
        tape = self._taken.get(session_id)
        if (
            tape is None
            or query.key not in tape.answers
            or tape.queries[query.key].kind is not query.kind
        ):
            return None
        return tape.answers[query.key]

    async def answer(self, query: Query, session_id: str) -> Any:
        found = self.find(query, session_id)
        if found is None:
            raise AnswerFailed(
                f"{self._name} has no answer for {query.id}, {describe_query(query)}", "script"
            )
        return give_recorded_answer(found)


def give_recorded_answer(found: QueryAnswer) -> Any:
    """Return a recorded answer as an answerer does; raises a recorded error."""
    if found.error is not None:
        raise AnswerFailed(found.error.get("message", ""), found.error.get("code", ""))
    return Answer(found.value, usage=found.usage)


def make_test_answerer(spec: Any, folder: Path | None = None) -> Answerer:
    """Make the answerer that a test specifies. Raises `BadSetting` for a real model."""
    if isinstance(spec, str | PathLike):
        path = (folder or Path()) / spec
        if path.is_file():
            return load_recorded_answers(path)
        if isinstance(spec, PathLike) or spec.endswith((".json", ".jsonl")):
            raise BadSetting("answers", f"there is no file {path}")
        raise BadSetting("answers", f"{spec!r} is a real model; a test takes {_TAKES}")
    if isinstance(spec, CommandModel):
        raise BadSetting("answers", f"{spec!r} asks a real model; a test takes {_TAKES}")
    if isinstance(spec, ScriptModel | RecordedAnswers):
        return spec
    if isinstance(spec, type) or not (isinstance(spec, Mapping | Sequence) or callable(spec)):
        raise BadSetting("answers", f"a test takes {_TAKES}, not {type(spec).__name__}")
    return ScriptModel(spec, people=True)


def load_recorded_answers(path: Path) -> RecordedAnswers:
    """Load answers from an exported file, or from one that `export --as-test` wrote."""
    from everhold.archive.export_format import ExportReader, SessionExport
    from everhold.archive.recording import Recording

    if path.suffix == ".json":
        found = Recording.read(path)
        return RecordedAnswers([RecordedSession.read(found.birth, found.deliveries)], path.name)
    with path.open("rb") as file:
        reader = ExportReader(file, path.name)
        carried = [one for one in reader if isinstance(one, SessionExport)]
    return RecordedAnswers(
        [RecordedSession.read(one.birth, one.deliveries) for one in carried], path.name
    )


class StandIns:
    """Stand-ins for the functions that programs call, by their name or a pattern of it."""

    def __init__(self) -> None:
        self._table: list[tuple[Callable[[str], object], Any]] = []

    def add(self, given: Mapping[str, Any]) -> None:
        for pattern, value in given.items():
            self._table.insert(
                0, (compile_prompt_pattern(pattern) if "*" in pattern else _named(pattern), value)
            )

    def find(self, query: Query) -> list[Any]:
        """The stand-in for a call, as a list of one; an empty list if there is none."""
        return next(([value] for matches, value in self._table if matches(query.name)), [])


def make_stand_in(value: Any) -> Callable[..., Any]:
    """Make a function that replaces another: it returns this value, raises this error, or is the
    given function.
    """
    if callable(value) and not isinstance(value, type):
        return value  # type: ignore[no-any-return]

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        if isinstance(value, BaseException):
            raise value
        return value

    return stand_in


def _named(name: str) -> Callable[[str], object]:
    return lambda called: called == name or _bare(called) == name


def _bare(ref: str) -> str:
    return ref.rpartition(":")[2]
