"""Statuses and errors as JSON, HTTP statuses and exit codes: what every front shows.

Rules
  1. The keys of a status never change and are never dropped. Added since: `session_id` on every
     status; `code`, `hint`, `stats` and `exception` on an error; `progress`, if the program
     reported any; `signals`, the names of those that a session waits for; on a query, its other
     fields.
  2. A flag is present only when it is true; `system` is always present, and null when unset.
  3. Only queries that can be answered from outside are listed: one in the single form, several in
     the batch form.
  4. Times are whole milliseconds since the epoch.
  5. Every error of `errors.py` has a row in `ERROR_ROWS`: its own, or that of its branch.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, Final

import msgspec

from everhold import errors
from everhold.core.codec import JSON
from everhold.core.query import QUESTIONS, Blocked, Kind
from everhold.core.session import format_session_name
from everhold.core.status import (
    Accepted,
    Finished,
    OpenQuery,
    Paused,
    Raised,
    Returned,
    Running,
    Status,
    describe_signals,
    hint_after_failure,
)
from everhold.errors import EverholdError
from everhold.exception_info import ExceptionInfo
from everhold.shell_command import add_database_option

_encode = msgspec.json.Encoder(order="sorted").encode


class ExitCode(IntEnum):
    """The exit code of a command. Part of the contract with scripts: numbers are added, never
    changed.
    """

    OK = 0
    FAILED = 1  # the session failed or was cancelled, or an unexpected error occurred
    USAGE = 2  # change the call
    STATE = 3  # a valid call in the wrong state
    STORE = 4  # a database, process or server failed
    PROGRAM = 5  # the program, agent or plugin failed
    WAITING = 10  # no error: the session waits for an answer or a timer
    LEFT = 11  # no error: there is more to do
    CANNOT = 12  # no error: there is more to do, but not for this process
    INTERRUPTED = 130  # Ctrl-C


#: Error -> HTTP status and exit code. The four branches cover all leaves; a leaf that differs has
#: its own row.
ERROR_ROWS: Final[dict[type[EverholdError], tuple[int, ExitCode]]] = {
    errors.UsageError: (400, ExitCode.USAGE),
    errors.StateError: (409, ExitCode.STATE),
    errors.StoreError: (503, ExitCode.STORE),
    errors.ProgramError: (500, ExitCode.PROGRAM),
    errors.UnknownSession: (404, ExitCode.USAGE),
    errors.UnknownQuery: (404, ExitCode.USAGE),
    errors.UnknownAttachment: (404, ExitCode.USAGE),
    errors.UnknownInput: (404, ExitCode.USAGE),
    errors.UnknownProgram: (404, ExitCode.USAGE),
    errors.NoOpenQuery: (409, ExitCode.USAGE),
    errors.ManyOpenQueries: (409, ExitCode.USAGE),
    errors.KeyConflict: (409, ExitCode.USAGE),
    errors.KeyDeleted: (409, ExitCode.USAGE),
    errors.InputConflict: (409, ExitCode.USAGE),
    errors.InputTooLarge: (413, ExitCode.USAGE),
    errors.SessionExists: (409, ExitCode.USAGE),
    errors.AnswerRefused: (422, ExitCode.USAGE),
    errors.BadArguments: (422, ExitCode.USAGE),
    errors.BadRequest: (422, ExitCode.USAGE),
    errors.NotAllowed: (403, ExitCode.USAGE),
    errors.MissingExtra: (501, ExitCode.USAGE),
    errors.UnsupportedSystem: (501, ExitCode.USAGE),
    errors.NoMaintenance: (501, ExitCode.USAGE),
    errors.BrokenEntryPoint: (501, ExitCode.USAGE),
    errors.EntryPointConflict: (501, ExitCode.USAGE),
    errors.Waiting: (202, ExitCode.WAITING),
    errors.Cancelled: (409, ExitCode.FAILED),
    errors.Failed: (409, ExitCode.FAILED),
    errors.Overtaken: (409, ExitCode.STORE),
    errors.StoreFull: (507, ExitCode.STORE),
    errors.StoreDamaged: (500, ExitCode.STORE),
    errors.StoreNewer: (500, ExitCode.STORE),
    errors.ReadOnlyStore: (500, ExitCode.STORE),
}


def dump_wire_json(value: JSON) -> str:
    """Compact JSON with keys in ascending byte order and minimal escapes."""
    return _encode(value).decode()


def status_json(status: Status, option: str = "") -> dict[str, JSON]:
    """A status as JSON. `option` is what commands in its hint need to find the database."""
    told: dict[str, JSON]
    match status:
        case Accepted(session_id, remaining):
            return {"status": "accepted", "session_id": session_id, "remaining": remaining}
        case Running(session_id, waiting_for):
            told = (
                _waiting(session_id, waiting_for)
                if waiting_for
                else {"status": "running", "session_id": session_id}
            )
        case Paused():
            told = _paused(status)
        case _:
            return _finished(status, option)
    if status.progress is not None:
        told["progress"] = status.progress.json()
    return told


def status_exit_code(status: Status) -> ExitCode:
    """The exit code of a command that got this status."""
    if not isinstance(status, Finished):
        return ExitCode.OK if isinstance(status, Accepted) else ExitCode.WAITING
    return ExitCode.OK if isinstance(status.outcome, Returned) else ExitCode.FAILED


def error_json(error: EverholdError) -> dict[str, JSON]:
    """An error as JSON; `hint` is left out if there is none."""
    told: dict[str, JSON] = {"error": str(error), "code": error.code}
    if error.hint:
        told["hint"] = error.hint
    return told | exception_json(error.exception)


def exception_json(exception: ExceptionInfo | None) -> dict[str, JSON]:
    """The exception behind an error, under its key; empty if there is none."""
    return {} if exception is None else {"exception": msgspec.to_builtins(exception)}


def http_status(error: BaseException) -> int:
    """The HTTP status of an error; 500 for other exceptions."""
    return _row(error)[0]


def exit_code(error: BaseException) -> ExitCode:
    """The exit code of an error; `FAILED` for other exceptions."""
    return _row(error)[1]


def _row(error: BaseException) -> tuple[int, ExitCode]:
    if isinstance(error, KeyboardInterrupt):
        return 500, ExitCode.INTERRUPTED
    for kind in type(error).__mro__:
        if kind in ERROR_ROWS:
            return ERROR_ROWS[kind]
    return 500, ExitCode.FAILED


def _paused(status: Paused) -> dict[str, JSON]:
    listed = [query for query in status.queries if query.kind in QUESTIONS]
    signals: dict[str, JSON] = {"signals": list(status.signals)} if status.signals else {}
    if not listed:
        unknown = [query for query in status.queries if query.kind is Kind.CALL]
        waits = (
            *status.waiting_for,
            *(f"the outcome of {query.name} ({query.id})" for query in unknown),
            *describe_signals(status.signals),
        )
        return _waiting(status.session_id, waits, status.until) | signals
    told: dict[str, JSON] = {"status": "needs_response", "session_id": status.session_id}
    if len(listed) == 1:
        told["query_id"] = listed[0].id
        told.update(query_json(listed[0]))
    else:
        told["queries"] = [{"id": query.id, **query_json(query)} for query in listed]
    return told | signals


def _waiting(
    session_id: str, waiting_for: tuple[str, ...], until: float | None = None
) -> dict[str, JSON]:
    told: dict[str, JSON] = {
        "status": "waiting",
        "session_id": session_id,
        "waiting_for": list(waiting_for),
    }
    if until is not None:
        told["until"] = _ms(until)
    return told


def query_json(query: OpenQuery) -> dict[str, JSON]:
    """An open query as JSON."""
    told: dict[str, JSON] = {
        "prompt": query.prompt,
        "system": query.system,
        "max_tokens": query.max_tokens,
    }
    if query.grounded:
        told["grounded"] = True
    if query.underspecified:
        told["underspecified"] = True
    if query.kind is not Kind.LLM:
        told["kind"] = query.kind.value
    for name in ("messages", "options", "name", "args", "schema", "to"):
        value: Any = getattr(query, name)
        if value is not None and value != "":
            told[name] = value
    if query.expires_at is not None:
        told["expires_at"] = _ms(query.expires_at)
    if query.blocked is not None:
        told["blocked"] = blocked_json(query.blocked)
    return told


def blocked_json(blocked: Blocked) -> dict[str, JSON]:
    """Why a query could not be answered, with the keys of an error."""
    told: dict[str, JSON] = {"error": blocked.message, "code": blocked.code}
    if blocked.hint:
        told["hint"] = blocked.hint
    return {**told, "at": _ms(blocked.at)} | exception_json(blocked.exception)


def _finished(status: Finished, option: str) -> dict[str, JSON]:
    outcome = status.outcome
    told = {"session_id": status.session_id}
    match outcome:
        case Returned(value):
            return {"status": "completed", "result": value, "stats": status.metrics, **told}
        case Raised(error, kind, exception=exception):
            return {
                "status": "error",
                "error": error,
                **_code(kind, format_session_name(status.session_id, status.key), option),
                **exception_json(exception),
                "stats": status.metrics,
                **told,
            }
        case _:
            return {"status": "cancelled", "stats": status.metrics, **told}


def _code(kind: str, name: str, option: str) -> dict[str, JSON]:
    """Code and hint of a failed session: the code of the everhold error that ended it, or of
    `Failed`.
    """
    code = kind if kind in _CODES else errors.Failed.code
    return {"code": code, "hint": add_database_option(hint_after_failure(kind, name), option)}


_CODES: Final = frozenset(leaf.code for leaf in errors.leaves())


def _ms(seconds: float) -> int:
    return int(seconds * 1000)
