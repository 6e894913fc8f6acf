"""Checks the arguments of callers. Each function raises before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from everhold.core.budget import Budget, BudgetChange
from everhold.core.codec import JSON, to_plain
from everhold.core.query import Kind, Usage
from everhold.core.schema import NonNegativeInt, Seconds, describe_misfit, fits_type
from everhold.core.session import SessionState
from everhold.core.status import OpenQuery
from everhold.core.usage import parse_usage
from everhold.engine.answer_check import GivenAnswer
from everhold.engine.effects import encode_stored_error
from everhold.errors import BadArguments, BadSetting
from everhold.ports.answerer import Answer

#: The default of an argument that was not given.
UNSET: Final[Any] = msgspec.UNSET
#: Bytes of a key. It is indexed, and an index entry of PostgreSQL holds at most 2,700 bytes.
MAX_SESSION_KEY_BYTES: Final = 2_500
#: Characters of a title, of all labels and of all metadata, with names. They are read with every
#: session.
MAX_TITLE_CHARS: Final = 1_000
MAX_LABELS_CHARS: Final = 10_000
MAX_METADATA_CHARS: Final = 100_000


def parse_answer_args(
    question: OpenQuery | str,
    query_id: str | None,
    value: Any,
    error: str | None,
    usage: Usage | None,
) -> tuple[str, GivenAnswer]:
    """The session id and the answer from the arguments of `answer`."""
    if (value is UNSET) == (error is None):
        raise BadArguments("answer", "give a value or an error, not both")
    if error is not None:
        check_text_arg("error", error)
    if isinstance(question, OpenQuery):
        session_id: str = question.session_id
        query_id = question.id
    elif isinstance(question, str):
        session_id = question
    else:
        raise BadArguments("answer", f"{question!r} is neither an open query nor a session id")
    return session_id, GivenAnswer(query_id, None if value is UNSET else value, error, usage)


def make_given_answer(query_id: str, value: Any) -> GivenAnswer:
    """The answer from one item of `answer_many`."""
    if isinstance(value, Answer):
        return GivenAnswer(
            query_id, value.value, None, None if value.usage is None else parse_usage(value.usage)
        )
    if isinstance(value, BaseException):
        return GivenAnswer(query_id, None, encode_stored_error(value)["message"])
    return GivenAnswer(query_id, value)


def parse_budget_arg(given: Budget | Mapping[str, int | None] | None) -> Budget | None:
    if given is None or isinstance(given, Budget):
        return given
    try:
        return Budget(**given)
    except TypeError as error:
        raise BadSetting("budget", str(error)) from None


def parse_budget_change_arg(given: Budget | Mapping[str, int | None]) -> BudgetChange:
    """The limits that a budget names; None in a mapping means no limit."""
    budget = parse_budget_arg(given)  # raises for unknown names and wrong limits
    change: BudgetChange = {}
    if budget is not None:
        change = {**budget.json()} if isinstance(given, Budget) else {**given}
    if not change:
        raise BadSetting("budget", f"name a limit: {', '.join(Budget.__struct_fields__)}")
    return change


def check_session_key(given: str | None) -> str | None:
    if given is None:
        return None
    if not check_text_arg("key", given):
        raise BadArguments("start", "a key must be non-empty text")
    return check_key_length(given)


def check_key_length(given: str, most: int = MAX_SESSION_KEY_BYTES) -> str:
    """The key, if it is short enough for an index; else raises `BadSetting`."""
    if len(given) * 4 > most and (size := len(given.encode("utf-8", "surrogatepass"))) > most:
        raise BadSetting("key", f"it has {size} bytes; at most {most} are allowed")
    return given


def check_title_arg(given: str) -> str:
    if given == "":
        return given
    if len(check_text_arg("title", given)) > MAX_TITLE_CHARS:
        raise BadSetting(
            "title", f"it has {len(given)} characters; at most {MAX_TITLE_CHARS} are allowed"
        )
    return given


def check_labels_arg(given: Mapping[str, str] | None) -> dict[str, str]:
    return check_text_map_arg("labels", given, MAX_LABELS_CHARS)


def check_text_arg(name: str, given: str) -> str:
    if not isinstance(given, str):
        raise BadArguments(name, f"{given!r} is not text")
    to_plain(given, name)
    return given


def check_text_map_arg(name: str, given: Mapping[str, str] | None, most: int) -> dict[str, str]:
    if not given:
        return {}
    texts = dict(given) if isinstance(given, Mapping) else given
    if not fits_type(texts, dict[str, str]):
        raise BadArguments(name, f"must be a mapping of text to text, got {given!r:.100}")
    to_plain(texts, name)
    if (size := sum(len(key) + len(value) for key, value in texts.items())) > most:
        raise BadSetting(name, f"they have {size} characters; at most {most} are allowed")
    return texts


def parse_kind_arg(name: str | None) -> Kind | None:
    """The kind to list."""
    try:
        return None if name is None else Kind(name)
    except ValueError:
        raise BadSetting("kind", f"{name!r} is not one of {', '.join(Kind)}") from None


def check_seconds_arg(name: str, given: float | None) -> float | None:
    """The seconds, if they are a number from 0. Checked first, although the wait happens last."""
    if given is not None and (misfit := describe_misfit(given, Seconds)):
        raise BadSetting(name, f"{misfit} (in seconds)")
    return given


def check_mapping_arg(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise BadArguments(name, f"a value of type {type(given).__name__} is not a mapping")
    return dict(given)


def parse_by_arg(given: Mapping[str, JSON] | None) -> dict[str, JSON] | None:
    """Who acts, as plain JSON."""
    return None if given is None else dict(to_plain(check_mapping_arg("by", given), "by"))


def check_limit_arg(given: int) -> int:
    """The limit, if it is an integer from 0. Stores treat negative limits differently."""
    if misfit := describe_misfit(given, NonNegativeInt):
        raise BadSetting("limit", misfit)
    return given


def parse_states_arg(given: str | Iterable[str] | None) -> tuple[SessionState, ...]:
    if given is None or isinstance(given, str):
        return () if given is None else (parse_state_arg(given),)
    if not isinstance(given, Iterable):
        raise BadSetting("state", f"{given!r} is not one of {', '.join(SessionState)}")
    return tuple(map(parse_state_arg, given))


def parse_state_arg(name: str) -> SessionState:
    try:
        return SessionState(name)
    except ValueError:
        raise BadSetting("state", f"{name!r} is not one of {', '.join(SessionState)}") from None
