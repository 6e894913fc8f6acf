"""The blocking face: the verbs of `Runtime` for code that is not async, also inside a running loop
(a notebook).

A loop of our own runs in a thread; each verb is handed to it and waited for. The class is written
from `Runtime` by tools/blocking.py, and a test compares their verbs.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Collection, Coroutine, Iterable, Mapping, Sequence
from os import PathLike
from types import TracebackType
from typing import Any, Self, TypeVar

from everhold import runtime as _async
from everhold.agents import BlockingSession
from everhold.agents.agent import Agent
from everhold.archive.archive import (
    CheckReport,
    ExportFile,
    ExportResult,
    ImportResult,
    Step,
    SweepReport,
)
from everhold.core.budget import Budget
from everhold.core.codec import JSON
from everhold.core.observer import Observer
from everhold.core.query import Usage
from everhold.core.session import SessionId
from everhold.core.status import OpenQuery, Status
from everhold.engine.arguments import UNSET
from everhold.engine.explain import Explanation
from everhold.errors import EverholdError, Waiting
from everhold.models import AnswererSpec
from everhold.notify import Notifier, OutboxEntry
from everhold.packages.find import refuse_while_loading
from everhold.ports.attachment import Attachment
from everhold.ports.program import Call, Clock
from everhold.ports.store import ProgressCallback, ReclaimResult, StoreProblem
from everhold.runtime import IDLE_SECONDS, Info, Runtime
from everhold.schedules import BlockingTimetable

R = TypeVar("R")
T = TypeVar("T")


class _Thread:
    """A loop in a thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="everhold", daemon=True)
        self._thread.start()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def stop(self) -> None:
        self.wait(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


class BlockingRuntime(BlockingTimetable):
    """`Runtime` for code that is not async. Made by `open_blocking`; use it with `with`."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime: Runtime = runtime
        self._thread: _Thread | None = None

    def __enter__(self) -> Self:
        self._thread = _Thread()
        try:
            self._wait(self._runtime.__aenter__())
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self, grace: float = 5.0) -> None:
        if self._thread is not None:
            try:
                self._wait(self._runtime.close(grace))
            finally:
                self._stop()

    def _stop(self) -> None:
        if self._thread is not None:
            self._thread.stop()
            self._thread = None

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            work.close()
            raise RuntimeError(
                "this runtime is not open; use `with everhold.open_blocking(…) as runtime:`"
            )
        return self._thread.wait(work)

    @property
    def database(self) -> str:
        return self._runtime.database

    def session(
        self, agent: Agent, id: str, *, residency: str = "all", again: bool = False
    ) -> BlockingSession:
        """The conversation of this id with an agent; one that was not begun yet begins."""
        session = self._wait(self._runtime.session(agent, id, residency=residency, again=again))
        return BlockingSession(session, self._wait)

    # [[[cog
    # from tools.blocking import methods
    # print(methods())
    # ]]]
    def run(
        self,
        call: Call[R],
        *,
        key: str | None = None,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        budget: Budget | Mapping[str, int] | None = None,
        wait: float | None = None,
        again: bool = False,
    ) -> R:
        """Run a program to its end and return what it returns."""
        return self._wait(
            self._runtime.run(
                call,
                key=key,
                title=title,
                labels=labels,
                metadata=metadata,
                budget=budget,
                wait=wait,
                again=again,
            )
        )

    def start(
        self,
        call: Call[Any] | str,
        *,
        args: Mapping[str, JSON] | None = None,
        version: int = 1,
        key: str | None = None,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        budget: Budget | Mapping[str, int] | None = None,
        unchecked: bool = False,
        wait: float | None = None,
        again: bool = False,
    ) -> Status:
        """Begin a session and say where it stands once this process can do no more for it now."""
        return self._wait(
            self._runtime.start(
                call,
                args=args,
                version=version,
                key=key,
                title=title,
                labels=labels,
                metadata=metadata,
                budget=budget,
                unchecked=unchecked,
                wait=wait,
                again=again,
            )
        )

    def answer(
        self,
        question: OpenQuery | str,
        value: Any = UNSET,
        *,
        query_id: str | None = None,
        error: str | None = None,
        usage: Usage | Mapping[str, int] | None = None,
        by: Mapping[str, JSON] | None = None,
        wait: float | None = None,
    ) -> Status:
        """Answer a question, with a value or with an error; `question` is an open query, or a
        session's id.
        """
        return self._wait(
            self._runtime.answer(
                question, value, query_id=query_id, error=error, usage=usage, by=by, wait=wait
            )
        )

    def answer_many(
        self,
        session_id: str,
        answers: Mapping[str, Any],
        *,
        by: Mapping[str, JSON] | None = None,
        wait: float | None = None,
    ) -> Status:
        """Answer several questions at once, by query id: all are taken, or none."""
        return self._wait(self._runtime.answer_many(session_id, answers, by=by, wait=wait))

    def signal(
        self, session_id: str, name: str, value: JSON = None, *, wait: float | None = None
    ) -> Status:
        """Send a message to a program; it is kept until the program receives it."""
        return self._wait(self._runtime.signal(session_id, name, value, wait=wait))

    def status(self, session_id: str) -> Status:
        """Where a session stands: `Running`, `Paused` or `Finished`."""
        return self._wait(self._runtime.status(session_id))

    def wait(self, session_id: str, timeout: float | None = None) -> Status:
        """Wait until a session has ended or needs somebody outside; at most `timeout` seconds."""
        return self._wait(self._runtime.wait(session_id, timeout))

    def inbox(
        self, *, kind: str | None = None, to: str | None = None, limit: int = 100
    ) -> list[OpenQuery]:
        """The open questions of all sessions, oldest first; that a conversation can be told
        something is none.
        """
        return self._wait(self._runtime.inbox(kind=kind, to=to, limit=limit))

    def sessions(
        self,
        *,
        state: str | Sequence[str] | None = None,
        program: str | None = None,
        labels: Mapping[str, str] | None = None,
        parent: str | None = None,
        older_than: float | None = None,
        newer_than: float | None = None,
        prefix: str = "",
        limit: int = 100,
        after: str | None = None,
    ) -> list[Info]:
        """Sessions, newest first. Ages are seconds since a session last moved; `after` is the
        last id seen.
        """
        return self._wait(
            self._runtime.sessions(
                state=state,
                program=program,
                labels=labels,
                parent=parent,
                older_than=older_than,
                newer_than=newer_than,
                prefix=prefix,
                limit=limit,
                after=after,
            )
        )

    def cancel(self, session_id: str, reason: str = "") -> Status:
        """Stop a session and its children. The program sees CancelledError once."""
        return self._wait(self._runtime.cancel(session_id, reason))

    def retry(self, session_id: str, *, wait: float | None = None) -> Status:
        """Go on from a failed session's last answer, under the code as it is now."""
        return self._wait(self._runtime.retry(session_id, wait=wait))

    def fork(
        self,
        session_id: str,
        *,
        at: int | None = None,
        answer: Any = UNSET,
        query_id: str | None = None,
        key: str | None = None,
        title: str = "",
        wait: float | None = None,
        again: bool = False,
    ) -> Status:
        """A new session that shares this one's steps up to `at` (its last one, by default)."""
        return self._wait(
            self._runtime.fork(
                session_id,
                at=at,
                answer=answer,
                query_id=query_id,
                key=key,
                title=title,
                wait=wait,
                again=again,
            )
        )

    def delete(self, session_id: str) -> int:
        """Forget a session; returns how many steps are kept because a fork shares them."""
        return self._wait(self._runtime.delete(session_id))

    def attachments(self, session_id: str) -> list[Attachment]:
        """What a session keeps beside its journal, and may read."""
        return self._wait(self._runtime.attachments(session_id))

    def attachment(self, session_id: str, id: str) -> bytes:
        """What a session keeps under this name; raises `UnknownAttachment`."""
        return self._wait(self._runtime.attachment(session_id, id))

    def complete(
        self,
        session_id: str,
        key: str,
        value: JSON = None,
        *,
        error: str | None = None,
        by: Mapping[str, JSON] | None = None,
    ) -> Status:
        """Give the result of a call that finishes later, by its idempotency key; see `Later`."""
        return self._wait(self._runtime.complete(session_id, key, value, error=error, by=by))

    def explain(self, session_id: str) -> Explanation:
        """Say in sentences why a session is where it is, and what moves it. Reads, and replays
        without effects.
        """
        return self._wait(self._runtime.explain(session_id))

    def vacuum(self, session_id: str | None = None, *, older_than: float = 0.0) -> int:
        """Forget what has ended in the intake of a session, or of all, and is so many seconds
        old; returns how much.
        """
        return self._wait(self._runtime.vacuum(session_id, older_than=older_than))

    def find(self, name: str) -> SessionId:
        """The session that is meant by its id, by the beginning of it, by its key, or by
        "@last", the newest.
        """
        return self._wait(self._runtime.find(name))

    def steps(self, session_id: str) -> list[Step]:
        """The journal of a session: each step with what was handed to the program and what it
        asked in return.
        """
        return self._wait(self._runtime.steps(session_id))

    def transcript(self, session_id: str) -> list[dict[str, JSON]]:
        """What models were asked and said: `query_id`, `prompt`, `system`, `response` (null
        where there is none).
        """
        return self._wait(self._runtime.transcript(session_id))

    def snapshot(
        self,
        session_id: str | None = None,
        *,
        pending_filter: Any = UNSET,
        include_history: bool = False,
        limit: int = 100,
    ) -> dict[str, JSON]:
        """A session at this moment as plain JSON; without an id, those that live and then those
        that have ended.
        """
        return self._wait(
            self._runtime.snapshot(
                session_id,
                pending_filter=pending_filter,
                include_history=include_history,
                limit=limit,
            )
        )

    def export(
        self,
        file: ExportFile,
        sessions: str | Iterable[str] | None = None,
        *,
        state: str | Sequence[str] | None = None,
        program: str | None = None,
        labels: Mapping[str, str] | None = None,
        values: bool = False,
        redact: bool | Collection[str] = False,
        progress: ProgressCallback | None = None,
    ) -> ExportResult:
        """Write sessions and their children to a file: a path, or one opened in binary mode."""
        return self._wait(
            self._runtime.export(
                file,
                sessions,
                state=state,
                program=program,
                labels=labels,
                values=values,
                redact=redact,
                progress=progress,
            )
        )

    def import_(
        self,
        file: ExportFile,
        *,
        existing: str = "refuse",
        progress: ProgressCallback | None = None,
    ) -> ImportResult:
        """Take in the sessions of an exported file; they go on here."""
        return self._wait(self._runtime.import_(file, existing=existing, progress=progress))

    def check(
        self,
        sessions: str | Iterable[str] | None = None,
        *,
        file: str | PathLike[str] | None = None,
        state: str | Sequence[str] | None = ("running", "paused"),
        program: str | None = None,
        labels: Mapping[str, str] | None = None,
        progress: ProgressCallback | None = None,
    ) -> CheckReport:
        """Replay sessions under the code on disk, in a fresh process, without effects; nothing
        is changed.
        """
        return self._wait(
            self._runtime.check(
                sessions, file=file, state=state, program=program, labels=labels, progress=progress
            )
        )

    def sweep(
        self,
        states: str | Iterable[str] = (),
        *,
        older_than: float | Mapping[str, float] | None = None,
        keep_last: int | None = None,
        per_program: bool = False,
        program: str | None = None,
        labels: Mapping[str, str] | None = None,
        intake: float | None = None,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
    ) -> SweepReport:
        """Delete sessions that have ended (completed or cancelled, unless `states` says
        otherwise).
        """
        return self._wait(
            self._runtime.sweep(
                states,
                older_than=older_than,
                keep_last=keep_last,
                per_program=per_program,
                program=program,
                labels=labels,
                intake=intake,
                dry_run=dry_run,
                progress=progress,
            )
        )

    def reclaim(self) -> ReclaimResult:
        """Remove what no session can read any more, such as bytes that a crash left behind; says
        what was removed.
        """
        return self._wait(self._runtime.reclaim())

    def verify(self, progress: ProgressCallback | None = None) -> list[StoreProblem]:
        """Look for gaps, dangling references and damage; an empty list means that all is well."""
        return self._wait(self._runtime.verify(progress))

    def outbox(self, session_id: str = "", *, teller: str | None = None) -> list[OutboxEntry]:
        """What people were told, or are going to be, in the order asked; of all sessions, or of
        one.
        """
        return self._wait(self._runtime.outbox(session_id, teller=teller))

    def outbox_retry(self, session_id: str = "", *, teller: str | None = None) -> list[OutboxEntry]:
        """Have people told again, also of what was given up; returns what is tried again."""
        return self._wait(self._runtime.outbox_retry(session_id, teller=teller))

    def outbox_drop(self, session_id: str = "", *, teller: str | None = None) -> list[OutboxEntry]:
        """Have people not told any more; returns what was dropped. The questions stay open."""
        return self._wait(self._runtime.outbox_drop(session_id, teller=teller))

    # [[[end]]]


def open_blocking(
    database: str | PathLike[str] | None = None,
    *,
    llm: AnswererSpec = UNSET,
    durability: str = "mixed",
    clock: Clock | None = None,
    observers: Iterable[Observer] = (),
    cache: int = 1000,
    idle: float = IDLE_SECONDS,
    recover: bool = True,
    tell: Iterable[Notifier] | None = None,
) -> BlockingRuntime:
    """`everhold.open` for code that is not async."""
    runtime = _async.open(
        database,
        llm=llm,
        durability=durability,
        clock=clock,
        observers=observers,
        cache=cache,
        idle=idle,
        recover=recover,
        tell=tell,
    )
    return BlockingRuntime(runtime)


def run(
    call: Call[R],
    *,
    key: str | None = None,
    llm: AnswererSpec = UNSET,
    database: str | PathLike[str] | None = None,
    title: str = "",
    labels: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
    budget: Budget | Mapping[str, int] | None = None,
    wait: float | None = None,
    again: bool = False,
    durability: str = "mixed",
) -> R:
    """Run a program to its end and return what it returns; run it again with the same `key` and it
    goes on.

    If the session with this `key` was deleted, it raises `KeyDeleted`; with `again`, a new session
    begins.

    Raises `Waiting` when somebody outside has to answer, `Failed`, or `Cancelled`.
    """
    refuse_while_loading()
    try:
        with open_blocking(database, llm=llm, durability=durability) as runtime:
            return runtime.run(
                call,
                key=key,
                title=title,
                labels=labels,
                metadata=metadata,
                budget=budget,
                wait=wait,
                again=again,
            )
    except EverholdError as error:
        _show_plainly()
        if isinstance(error, Waiting) and key is not None:
            error.name = key
        raise


def _show_plainly() -> None:
    """Let an error of ours that nobody catches end a script with its sentence instead of a
    traceback.
    """
    if sys.excepthook is sys.__excepthook__ and not hasattr(sys, "ps1"):
        sys.excepthook = _excepthook


def _excepthook(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    if isinstance(error, Waiting):
        count = f"{len(error.queries)} question{'' if len(error.queries) == 1 else 's'} open"
        shown = "; ".join((query.prompt or query.name) for query in error.queries[:3])
        lines = [f"waiting · {error.name} · {count}" + (f": {shown}" if shown else "")]
    elif isinstance(error, EverholdError):
        lines = [f"error: {error} [{error.code}]"]
    else:
        sys.__excepthook__(kind, error, trace)
        return
    if getattr(error, "hint", ""):
        lines.append(f"hint: {error.hint}")
    sys.stderr.write("\n".join(lines) + "\n")
