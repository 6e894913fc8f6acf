"""Recorded sessions as tests: a JSON file with the deliveries and queries of a session.

A test replays the program against the file; no function is called and no query is sent. The file is
readable for review. `difference` shows where the program now behaves differently. `updated` accepts
the new behaviour, with the recorded answers wherever they still match a question.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final, cast

import msgspec

from everhold.core.budget import Budget
from everhold.core.codec import JSON
from everhold.core.journal import (
    AskedQuery,
    Delivery,
    DeliveryNotes,
    ProgramReply,
    fold_delivery,
    pair_replies,
)
from everhold.core.metrics import Metrics
from everhold.core.query import Query, QueryAnswer
from everhold.core.session import Birth, Head, SessionState
from everhold.core.status import Outcome, Raised, Returned
from everhold.engine.journal_reader import index_queries
from everhold.engine.live_session import count_delivered_answers
from everhold.engine.replay import replay_session
from everhold.engine.step import MAX_RESTARTS
from everhold.errors import BadExport, Diverged, Spinning
from everhold.ports.program import ProgramHost, RestartableExecution
from everhold.ports.store import SessionRecord

#: Increased with every change that an older reader would misread.
RECORDING_FORMAT: Final = 1
_MARK: Final = "session for a test"


class Recording(msgspec.Struct):
    """The birth and the deliveries of a session, without the parts that a test does not need."""

    birth: Birth
    deliveries: list[Delivery]
    everhold: str = _MARK
    format: int = RECORDING_FORMAT

    @classmethod
    def of(cls, record: SessionRecord) -> Recording:
        birth = record.birth
        plain = Birth(
            id=birth.id,
            program=birth.program,
            version=birth.version,
            args=birth.args,
            created_at=birth.created_at,
            seeds=birth.seeds,
            budget=birth.budget,
            variables=birth.variables,
        )
        return cls(plain, [_strip_delivery(delivery) for delivery in record.deliveries])

    @classmethod
    def read(cls, file: Path) -> Recording:
        """Raises `BadExport`."""
        try:
            found = msgspec.json.decode(file.read_bytes(), type=cls)
        except OSError as error:
            raise BadExport(str(file), str(error.strerror)) from None
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise BadExport(str(file), str(error)) from None
        if found.everhold != _MARK or found.format > RECORDING_FORMAT or not found.deliveries:
            raise BadExport(
                str(file), f"it is not a session for a test of format {RECORDING_FORMAT}"
            )
        program = _resolve_ref(found.birth.program, file)
        return cls(msgspec.structs.replace(found.birth, program=program), found.deliveries)

    def write(self, file: Path) -> None:
        """Write indented JSON, with the program's path relative to the file."""
        birth = msgspec.structs.replace(
            self.birth, program=_make_ref_relative(self.birth.program, file)
        )
        text = msgspec.json.format(msgspec.json.encode(Recording(birth, self.deliveries)), indent=1)
        file.write_bytes(text + b"\n")

    def record(self) -> SessionRecord:
        """The recording as a stored session."""
        last = self.deliveries[-1]
        head = Head(0, 0, SessionState.PAUSED, last.n, 0, None, last.at, Metrics())
        return SessionRecord(self.birth, head, self.deliveries, [], [])

    def difference(self, host: ProgramHost) -> str:
        """A diff between the recorded and the current behaviour; empty if they are the same."""
        replies, parted = _replies(self.record(), host)
        was: list[str] = []
        now: list[str] = []
        for step, reply in zip(pair_replies(self.deliveries), replies, strict=False):
            given = list(_format_delivery(step.given))
            known = {query.q for query in reply.asked}
            retried = step.given is not step.reply  # a retry lists all open queries
            asked = [query for query in step.reply.asked if not retried or query.q in known]
            notes = step.reply.notes
            was += [
                *given,
                *_format_reply(asked, notes.outcome if notes is not None else None, notes),
            ]
            now += [*given, *_format_reply(reply.asked, reply.outcome, reply.notes)]
        if was == now:
            return parted
        lines = difflib.unified_diff(was, now, "recorded", "now", n=6, lineterm="")
        return "\n".join([*([parted] if parted else []), *lines])

    def updated(self, host: ProgramHost) -> Recording:
        """The recording with the current behaviour. Each recorded answer is given to the question
        that matches its own.
        """
        return Recording(self.birth, _Rerecorder(self, host).deliveries())


def _strip_delivery(delivery: Delivery) -> Delivery:
    """A delivery without logs, progress and tracebacks, which change with every edit."""
    answers = [
        msgspec.structs.replace(answer, by=None, exception=None) for answer in delivery.answers
    ]
    notes = delivery.notes
    if notes is not None:
        outcome = notes.outcome
        if isinstance(outcome, Raised):
            outcome = msgspec.structs.replace(outcome, traceback_text="", exception=None)
        notes = msgspec.structs.replace(notes, log=[], progress=None, record={}, outcome=outcome)
    return Delivery(
        delivery.n,
        delivery.at,
        answers,
        delivery.asked,
        None if notes == DeliveryNotes() else notes,
    )


def _make_ref_relative(ref: str, file: Path) -> str:
    place, colon, name = ref.rpartition(":")
    if not place.endswith(".py"):
        return ref
    return f"{Path(os.path.relpath(place, file.resolve().parent)).as_posix()}{colon}{name}"


def _resolve_ref(ref: str, file: Path) -> str:
    place, colon, name = ref.rpartition(":")
    return (
        f"{(file.resolve().parent / place).resolve()}{colon}{name}"
        if place.endswith(".py")
        else ref
    )


# ---- the difference


class RecordingHost:
    """A host whose executions record every reply, also the one that diverges."""

    def __init__(self, host: ProgramHost) -> None:
        self._host = host
        self.replies: list[ProgramReply] = []

    def begin(self, birth: Birth, meter: Metrics) -> Any:
        return self._record_replies(self._host.begin(birth, meter))

    def _record_replies(self, execution: Any) -> Any:
        advance = execution.advance

        def record_reply(*args: Any) -> ProgramReply:
            self.replies.append(self.hear(advance, args))
            return self.replies[-1]

        execution.advance = record_reply
        if isinstance(execution, RestartableExecution):
            again = execution.again
            execution.again = lambda *args: self._record_replies(again(*args))  # type: ignore[method-assign]
        return execution

    def hear(self, advance: Any, args: tuple[Any, ...]) -> ProgramReply:
        return advance(*args)  # type: ignore[no-any-return]


def _replies(record: SessionRecord, host: ProgramHost) -> tuple[list[ProgramReply], str]:
    """The reply of the program at each step, and where it diverges."""
    recording = RecordingHost(host)
    try:
        for _ in replay_session(record, recording):
            pass
    except Diverged as error:
        return (
            recording.replies,
            f"step {error.step}: it asked {error.recorded}, and now asks {error.asked}",
        )
    return recording.replies, ""


def _format_delivery(delivery: Delivery) -> Iterator[str]:
    yield f"step {delivery.n}"
    for answer in delivery.answers:
        said = (
            _text(answer.value)
            if answer.error is None
            else f"error: {answer.error.get('message', '')}"
        )
        yield from _format_value(f"  {answer.id} ← ", said)
    notes = delivery.notes
    if notes is not None and notes.fired:
        yield "  timers fire"
    if notes is not None and notes.cancel is not None:
        yield f"  cancelled: {notes.cancel}"
    if notes is not None and notes.budget is not None:
        yield from _format_value("  budget: ", notes.budget.json())


def _format_reply(
    asked: Iterable[Query], outcome: Outcome | None, notes: DeliveryNotes | None
) -> Iterator[str]:
    """A reply of the program, one fact per line."""
    if notes is not None and notes.restart is not None:
        yield from _format_value("  restarts with ", notes.restart.args)
    for query in asked if outcome is None else ():
        yield f"  {query.id} {query.kind} at {query.key}"
        for field in _WORDS:
            value = getattr(query, field)
            if value != _USUAL[field]:
                yield from _format_value(f"    {field}: ", value)
    match outcome:
        case Returned(value=value):
            yield from _format_value("  returns ", value)
        case Raised(error=error):
            yield from _format_value("  fails: ", error)
        case None:
            pass
        case _:
            yield "  is cancelled"


_USUAL: Final = dict(zip(Query.__struct_fields__[2:], Query.__struct_defaults__, strict=True))
_WORDS: Final = (
    "prompt",
    "name",
    "args",
    "messages",
    "system",
    "options",
    "schema",
    "max_tokens",
    "to",
    "default",
)


def _format_value(label: str, value: JSON) -> Iterator[str]:
    first, *rest = _text(value).split("\n")
    yield label + first
    yield from (" " * len(label) + line for line in rest)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()


# ---- the update


class _Rerecorder:
    """Runs the program again with the recorded answers, and records what it does now."""

    def __init__(self, recording: Recording, host: ProgramHost) -> None:
        self._steps = list(pair_replies(recording.deliveries))
        self._queries = index_queries(recording.deliveries)
        self._meter = Metrics()  # for a budget
        self._execution = host.begin(recording.birth, self._meter)
        self._opened: dict[int, AskedQuery] = {}
        self._left: list[QueryAnswer] = []
        self._done: list[Delivery] = []
        self._unbegun = True  # the first delivery, and the one after a restart, are empty
        self._restarts = 0  # in a row
        self._ended = False

    def deliveries(self) -> list[Delivery]:
        try:
            for step in self._steps:
                self._left += step.given.answers
                self._deliver(step.given.at, step.given.notes or DeliveryNotes(), step.budget)
            while self._deliver(self._steps[-1].given.at, DeliveryNotes()):
                pass
            return self._done
        finally:
            self._execution.drop()

    def _deliver(self, at: float, notes: DeliveryNotes, budget: Budget | None = None) -> bool:
        """Deliver the answers that match now. Returns False if there was nothing to deliver."""
        answers = self._fitting()
        fired = notes.fired
        cancel = notes.cancel
        if self._ended or not (
            self._unbegun or answers or fired or cancel is not None or budget is not None
        ):
            return False
        n = len(self._done)
        self._unbegun = False
        count_delivered_answers(self._meter, self._opened, answers, fired=fired)
        self._meter.budget = budget or self._meter.budget
        with self._execution.entered():
            reply: ProgramReply = self._execution.advance(n, at, answers, fired, cancel, budget)
        self._meter.paused(reply.asked)
        noted = reply.notes or DeliveryNotes()
        said = DeliveryNotes(
            fired=fired,
            cancel=cancel,
            withdrawn=reply.withdrawn,
            versions=noted.versions,
            outcome=reply.outcome,
            restart=noted.restart,
            budget=budget,
        )
        delivery = _strip_delivery(
            Delivery(n, at, answers, [] if reply.outcome is not None else reply.asked, said)
        )
        fold_delivery(self._opened, delivery)
        self._done.append(delivery)
        self._ended = reply.outcome is not None
        self._restarts = 0 if noted.restart is None else self._restarts + 1
        if noted.restart is not None:
            if self._restarts > MAX_RESTARTS:
                raise Spinning(f"{MAX_RESTARTS} restarts")
            restartable = cast(RestartableExecution, self._execution)
            self._meter = noted.restart.metrics.copy()
            self._execution = restartable.again(noted.restart, self._meter)
            self._unbegun = True
        return True

    def _fitting(self) -> list[QueryAnswer]:
        """The recorded answers whose questions are open now, with the new query numbers."""
        fitting: list[QueryAnswer] = []
        kept: list[QueryAnswer] = []
        for answer in self._left:
            query = self._match(self._queries[answer.q], {one.q for one in fitting})
            if query is None:
                kept.append(answer)
            else:
                fitting.append(msgspec.structs.replace(answer, q=query.q))
        self._left = kept
        return fitting

    def _match(self, old: Query, taken: set[int]) -> Query | None:
        """The open query that matches a recorded one: with the same wording, else with the same
        key.
        """
        alike = [
            one.query
            for q, one in self._opened.items()
            if q not in taken and one.query.kind is old.kind
        ]
        worded = [
            new
            for new in alike
            if (new.prompt, new.name, new.messages) == (old.prompt, old.name, old.messages)
        ]
        placed = [new for new in alike if new.key == old.key]
        return next(iter(worded + placed), None)
