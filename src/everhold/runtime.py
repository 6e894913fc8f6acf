"""The composition root and the Python front.

    async with everhold.open("sqlite:///app.db", llm=my_model) as runtime:
        result = await runtime.run(refund(order="7"), key="refund-7")

`open` reads the settings and builds a `Runtime` from store, programs, answerers, engine and mover.
Its verbs run sessions. It owns `runtime.evals`, `.schedules`, `.triggers`, `.notifications`,
`.archive`, `.envelopes`, `.cards` and `.workers`. Every verb takes a session by its id, its key or
a handle. The blocking façade is in `blocking.py`.
"""

from __future__ import annotations

import asyncio
import functools
import secrets
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from os import PathLike
from types import TracebackType
from typing import Any, Concatenate, Final, ParamSpec, Self, TypeVar

import msgspec

from everhold.agents.agent import Agent
from everhold.agents.conversation_handle import ConversationHandle
from everhold.agents.conversations import Conversations, RuntimeSessionServices, find_later_call
from everhold.agents.envelopes import Envelopes
from everhold.agents.session import AgentSession
from everhold.agents.session_provider import check_agent_models
from everhold.archive.archive import Archive, get_everhold_version
from everhold.cards import CARD_SPACE, Cards, CardSource
from everhold.core.budget import Budget
from everhold.core.codec import JSON, to_plain
from everhold.core.intake import MAX_INPUT_BYTES, require_input_fits
from everhold.core.lease import TTL
from everhold.core.observer import Observer
from everhold.core.progress import Progress
from everhold.core.query import Kind, Query, Usage
from everhold.core.retry import Retry, parse_retry, parse_timeout
from everhold.core.schema import decode_value_as
from everhold.core.session import (
    OUTSIDE,
    WORKERS,
    Birth,
    Seed,
    SessionId,
    SessionState,
    format_session_name,
    mint,
)
from everhold.core.status import (
    Finished,
    OpenQuery,
    Paused,
    PendingFilter,
    Running,
    Status,
    describe_signals,
    snapshot_session,
    snapshot_sessions,
)
from everhold.core.unknown_names import checks_keywords
from everhold.core.usage import parse_usage
from everhold.engine import session_view
from everhold.engine.answer_check import GivenAnswer
from everhold.engine.arguments import (
    MAX_METADATA_CHARS,
    UNSET,
    check_labels_arg,
    check_limit_arg,
    check_mapping_arg,
    check_seconds_arg,
    check_session_key,
    check_text_arg,
    check_text_map_arg,
    check_title_arg,
    make_given_answer,
    parse_answer_args,
    parse_budget_arg,
    parse_budget_change_arg,
    parse_by_arg,
    parse_kind_arg,
    parse_states_arg,
)
from everhold.engine.effects import CallSubstitute
from everhold.engine.engine import Engine, EngineOptions
from everhold.engine.explain import Explanation, explain_session
from everhold.engine.journal_reader import read_steps
from everhold.engine.session_lookup import SessionRef, find_session_id, resolve_session_id
from everhold.engine.session_view import Step, load_open_question
from everhold.engine.shielded import ShieldedCalls
from everhold.engine.usage_report import UsageRow, sum_usage
from everhold.errors import (
    AnswerRefused,
    BadArguments,
    Diverged,
    EverholdError,
    Failed,
    KeyConflict,
    NotAProgram,
    Waiting,
    name_session,
)
from everhold.evals.evals import Evals
from everhold.models import AnswererSpec, Model
from everhold.models.registry import make_answerer
from everhold.movers import Workers
from everhold.movers.local import LocalMover
from everhold.notify import Notifications, Notifier
from everhold.packages.catalog import KnownPrograms
from everhold.packages.find import make_ref_absolute, refuse_while_loading
from everhold.packages.program_hosts import ProgramHosts
from everhold.packages.settings import Settings, prepare_data_folder, read_lua_options, settings
from everhold.ports.answerer import WAIT, check_on_unavailable
from everhold.ports.attachment import Attachment
from everhold.ports.program import Call, Clock, read_program_variables, refuse_local_program
from everhold.ports.program_identity import find_source_file, list_filter_programs
from everhold.ports.script_end import (
    abandon_threads,
    is_interrupted,
    let_interrupts_kill,
    show_errors_plainly,
    tell_interrupted,
)
from everhold.ports.store import FROM_OPEN, InboxPlace, SessionFilter, Store
from everhold.ports.tool_services import (
    release_resources,
    retain_resources,
)
from everhold.programs.python.event_loop import refuse_runtime
from everhold.schedules import Schedules, SessionActionRunner, Triggers
from everhold.shell_command import add_database_option, format_command, format_database_option
from everhold.stores.registry import create_store as store_at

R = TypeVar("R")

#: Seconds after which an idle session leaves memory.
IDLE_SECONDS: Final = 3 * 3600.0
#: Seconds that running calls may take while a runtime closes.
CLOSE_SECONDS: Final = 5.0
NOT_STARTED: Final = "interrupted before the session was started"
_LIVE: Final = (SessionState.RUNNING, SessionState.PAUSED)


class AbsentProgram:
    """A program of which only the reference is known."""

    digest = ""

    def __init__(self, ref: str, version: int) -> None:
        self.ref = self.name = ref
        self.version = version


class SystemClock:
    """The wall clock."""

    def now(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


P = ParamSpec("P")
T = TypeVar("T")


def _names_session(
    verb: Callable[Concatenate[Runtime, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Runtime, P], Coroutine[Any, Any, T]]:
    """The errors of a verb name the session as its caller did: see `Runtime._tell`. A session whose
    verb is cancelled is remembered.
    """

    @functools.wraps(verb)
    async def named(self: Runtime, /, *args: P.args, **options: P.kwargs) -> T:
        try:
            return await verb(self, *args, **options)
        except EverholdError as error:
            await self._tell(error, args[0] if args else options.get("session"))
            raise
        except asyncio.CancelledError:  # perhaps Ctrl-C
            self._left = args[0] if args else options.get("session")
            raise

    return named


class Info(msgspec.Struct, frozen=True):
    """One session in a listing."""

    session_id: SessionId
    state: SessionState
    program: str
    version: int
    key: str | None
    title: str
    labels: dict[str, str]
    steps: int
    created_at: float
    updated_at: float
    due_at: float | None
    parent: SessionId | None
    origin: SessionId | None
    forked_by: dict[str, JSON] | None = None
    progress: Progress | None = None  # what its program reported last


class Runtime:
    """Runs and answers sessions of one store. Made by `everhold.open`; use it with `async with`.

    Verbs take a session by its id, its key, or a handle: any object with a `session_id`, such as a
    status, an open query, an `Info`, or the handle of a conversation.
    """

    def __init__(
        self,
        store: Store,
        *,
        found: Settings | None = None,
        programs: KnownPrograms | None = None,
        llm: AnswererSpec = UNSET,
        clock: Clock | None = None,
        observers: Iterable[Observer] = (),
        cache: int = 1000,
        idle: float = IDLE_SECONDS,
        ttl: float = TTL,
        recover: bool = True,
        dice: Callable[[int], int] = secrets.randbits,
        tell: Iterable[Notifier] | None = None,
        on_unavailable: str | None = None,
        retry: Retry | None = None,
        timeout: float | None = None,
        substitute: CallSubstitute | None = None,
    ) -> None:
        check_seconds_arg("idle", idle)
        check_seconds_arg("ttl", ttl)
        self.store = store
        if clock is not None:
            store.use_clock(clock.now)  # by default, leases and workers use the store's clock
        self.clock: Clock = clock or SystemClock()
        self._settings = found
        self._database_option: str | None = None
        self._recover = recover
        self._dice = dice
        self.programs = programs or KnownPrograms(found)
        # the default answers only questions that name a model
        inline = make_answerer(None if llm is UNSET else llm) or Model()
        # reports a misconfigured answerer before any question is asked
        self._check = inline.check
        self._leave = inline.close
        answerers = dict.fromkeys(inline.kinds, inline)
        retry = parse_retry(retry)
        self._host = ProgramHosts(self.programs.find, read_lua_options(found), retry)
        # who answers the model questions of sessions started here
        self._llm = OUTSIDE if llm is None or Kind.LLM not in answerers else WORKERS
        self.mover = LocalMover(self.clock)
        # a runtime without settings, as in tests, does not see the files of this user
        sees_home = found is not None
        cards = CardSource(self.clock, files=sees_home)
        self.engine = Engine(
            store,
            self._host,
            self.clock,
            answerers,
            self.mover,
            EngineOptions(
                llm=self._llm,
                on_unavailable=self._on_unavailable(found, on_unavailable),
                observers=tuple(observers),
                cache=cache,
                idle=idle,
                ttl=ttl,
                max_input=MAX_INPUT_BYTES if found is None else found.max_input,
                retry=retry,
                timeout=parse_timeout(timeout),
            ),
            services=self._make_services,
            substitute=substitute,
            verbs={CARD_SPACE: cards},
            refuse=refuse_runtime,
        )
        self._serving: asyncio.Task[None] | None = None
        self._actions = SessionActionRunner(self.engine, self.programs, self.start)
        self._conversations = Conversations(self.engine, self.programs, self.start, self.fork)
        #: schedules, which start programs at a time
        self.schedules = Schedules(self.engine, self._actions, dice)
        #: triggers, which start programs when an event is emitted
        self.triggers = Triggers(self.engine, self._actions, dice)
        #: evals: a program run on the cases of a scenario
        self.evals = Evals(self.engine, self.programs, self.start, files=sees_home)
        #: the notifications that wait to be delivered, or could not be
        self.notifications = Notifications(self.engine, found, tell)
        #: export, import, checks and clean-up
        self.archive = Archive(self.engine, found)
        #: cards: records of runs and their scores
        self.cards = Cards(self.engine, cards)
        #: sessions of fluers
        self.envelopes = Envelopes(self.engine, self.programs, self._birth)
        #: workers, in this process and in others
        self.workers = Workers(self.engine, found, self._take_up_programs)
        self._does_chores = False
        if recover:
            self._take_up_chores(frozenset())
        self._opened = False
        self._closing = ShieldedCalls()
        self.newest: SessionId | None = None  # that a verb or command named last
        self._keyed: SessionId | None = None  # one that the same call resumes
        self._left: Any = None  # one whose verb was cancelled

    def _on_unavailable(self, found: Settings | None, given: str | None) -> str:
        """What to do with questions that no model here can answer: the argument, else the
        settings.
        """
        if found is not None and given is None:
            where = f"on_unavailable in {found.source.get('on_unavailable', '')}"
            return check_on_unavailable(found.on_unavailable, where) or WAIT
        return check_on_unavailable(given) or WAIT

    def _make_services(self, session_id: str, query: Query) -> RuntimeSessionServices:
        return RuntimeSessionServices(
            self.engine, self.start, self.triggers.emit, self.triggers.list, session_id, query
        )

    def _take_up_programs(self, programs: Iterable[str]) -> frozenset[str]:
        """Load the programs that a worker is given, and start its chores. Returns their
        references.
        """
        given = [self.programs.find_newest(ref) for ref in programs]
        for program in given:
            self.programs.add(program)
        refs = frozenset(program.ref for program in given)
        self._take_up_chores(refs)
        return refs

    def _take_up_chores(self, programs: frozenset[str]) -> None:
        """Start the chores of a process that moves sessions: schedules, triggers, notifications and
        retention, as the settings ask for.

        Schedules and triggers start sessions of these programs only; of all, if none are named. A
        process that only reads runs no chores and needs no settings for them.
        """
        self._actions.restrict(programs)
        if not self._does_chores:
            self._does_chores = True
            self.archive.start()
            self.notifications.start()

    @property
    def database(self) -> str:
        """The address of the store, without a password."""
        return self._settings.shown if self._settings is not None else self.store.where

    @property
    def database_option(self) -> str:
        """The option that commands in hints need to use this database, such as ` -d
        sqlite:////app.db`; empty if they find it by default.
        """
        if self._database_option is None:
            found = self._settings
            self._database_option = format_database_option(
                "" if found is None else found.command_database
            )
        return self._database_option

    @database_option.setter
    def database_option(self, option: str) -> None:
        self._database_option = option

    async def _tell(self, error: EverholdError, named: object) -> None:
        """Make an error name its session as the caller did, and the database in its commands."""
        session_id = getattr(error, "session_id", "")
        if isinstance(error, Diverged):
            error.tell_fork(named if isinstance(named, str) else getattr(named, "session_id", ""))
        if isinstance(named, str) and session_id != named and self._opened:
            with suppress(EverholdError):
                if await resolve_session_id(self.store, named) == session_id:
                    name_session(error, format_session_name(session_id, named))
        if isinstance(error, Failed) and self.database.startswith("memory:"):
            error.hint = Failed.hint  # no command reaches it
        elif error.hint:
            error.hint = add_database_option(error.hint, self.database_option)

    async def __aenter__(self) -> Self:
        if not self._opened:
            self._check()
            if self._settings is not None:
                prepare_data_folder(self._settings)
            await self.store.open()
            self._host.open()
            self._opened = True
            retain_resources()
            if self._recover:
                self._serving = asyncio.get_running_loop().create_task(
                    self.mover.serve(self.engine.moves.move)
                )
            self.engine.reconciler.start(self.mover if self._recover else None)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if is_interrupted(error):
            with let_interrupts_kill():
                abandon_threads()
                await self._tell_interrupted(error, CLOSE_SECONDS)
                await self.close()
            return
        if isinstance(error, EverholdError):
            show_errors_plainly()
        await self.close()

    async def _tell_interrupted(self, error: BaseException | None, grace: float) -> None:
        """Tell people at the terminal of a script what Ctrl-C leaves, and how to resume it."""
        if told := await self._describe_interrupted():
            if self.engine.effects.tasks:
                told += (
                    f"\nRunning calls have {grace:g} s to end; Ctrl-C again leaves them at once."
                )
            tell_interrupted(told, error)

    async def _describe_interrupted(self) -> str:
        """The sessions that a runtime leaves unfinished; empty if there are none."""
        left = {live.id: live.birth for live in self.engine.sessions.all() if not live.head.ended}
        if self._left is not None:
            with suppress(EverholdError):
                self.newest = await resolve_session_id(self.store, self._left)
        if self.newest is not None and self.newest not in left:
            try:
                record = await self.store.load(self.newest, since=FROM_OPEN)
            except EverholdError:
                return NOT_STARTED
            if not record.head.ended:
                left[self.newest] = record.birth
        if not left:
            return ""
        if self.database.startswith("memory:"):
            return "interrupted; the session is not kept: its database was in memory"
        birth = left[self.newest if self.newest in left else next(iter(left))]
        name = format_session_name(birth.id, birth.key)
        command = format_command("run", "-c", name) + self.database_option
        again = "run this again, or: " if birth.id == self._keyed else ""
        told = f"interrupted; the session is kept. To resume it: {again}{command}"
        if others := len(left) - 1:
            count = f"{others} other session{'' if others == 1 else 's'}"
            listing = format_command("sessions") + self.database_option
            told += (
                f"\n{count} of this process {'is' if others == 1 else 'are'} kept, too: {listing}"
            )
        return told

    async def close(self, grace: float = CLOSE_SECONDS) -> None:
        """Close the runtime. Running calls may finish within `grace` seconds; then all is released.

        Closing completes even if its caller is cancelled. A second call waits for the first.
        """
        check_seconds_arg("grace", grace)
        if not self._opened:
            await self._closing.rest()
            return
        self._opened = False
        await self._closing.run(self._close(grace))

    async def _close(self, grace: float) -> None:
        try:
            await self._stop(grace)
        finally:  # also if a part failed, or the event loop cancelled this task
            await self.store.close()

    async def _stop(self, grace: float) -> None:
        await self.engine.reconciler.stop()
        self.engine.leave()
        await self.engine.shielded.rest(grace)
        await self.mover.leave(grace)
        if self._serving is not None:
            await self._serving
        await self.notifications.close(grace)
        self.engine.effects.stop_waits()
        tasks = self.engine.effects.tasks
        if tasks and grace > 0:
            await asyncio.wait(set(tasks), timeout=grace)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await release_resources()
        self._conversations.close()
        await self.engine.release()
        if self._leave is not None:
            await self._leave()
        for live in self.engine.sessions.all():
            self.engine.sessions.drop(live)
        await self._host.close()

    # ---- run

    async def run(
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
        """Run a program to its end and return its result.

        With a `key`, resumes the session that was started with it. If that session was deleted,
        raises `KeyDeleted`; with `again`, starts a new one instead. Limits of `budget` that are
        larger than those of the session are raised: see `set_budget`. Raises `Waiting` if the
        session needs an answer from outside (or after `wait` seconds), `Failed`, or `Cancelled`.
        """
        try:
            status = await self.start(
                call,
                key=key,
                title=title,
                labels=labels,
                metadata=metadata,
                budget=budget,
                wait=wait,
                again=again,
            )
            if not isinstance(status, Finished) and not (
                isinstance(status, Paused) and status.needs_outside
            ):
                status = await self.engine.wait(status.session_id, wait)
            if isinstance(status, Finished):
                return convert_result(call, status)
            raise _waiting(status, key)
        except EverholdError as error:
            await self._tell(error, key)
            raise

    async def start(
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
        """Start a session, move it as far as this process can now, and return its status.

        `call` is a call of a program, or the reference of one (`"shop.py:refund"`) with its `args`.
        Raises if the program is not here or its arguments do not fit. With `unchecked`, a reference
        is accepted without loading it: a process that has the program in this `version` starts the
        session, and wrong arguments end it with that error. The `key` of a deleted session raises
        `KeyDeleted`; with `again`, a new session is started instead.
        """
        refuse_while_loading()
        check_seconds_arg("wait", wait)
        resolved = self._resolve_call(call, args, version, unchecked)
        birth = self._birth(resolved, key, title, labels, metadata, budget)
        self.newest = birth.id
        self._keyed = None if key is None else birth.id
        if isinstance(resolved.program, Agent):
            require_input_fits(resolved.args.get("task"), self.engine.max_input)
            check_agent_models(resolved.program, self.engine.policy.check_model)
        if unchecked:
            birth = msgspec.structs.replace(birth, digest="", python="")
        else:
            if not isinstance(resolved.program, Agent):  # its conversations are opened with it
                refuse_local_program(birth.program, self.store.durability)
            self.programs.add(resolved.program)
        if key is not None:
            found = await self.engine.again(key, birth, renew=again)
            if found is not None:
                self.newest = self._keyed = found
                if birth.budget is not None:
                    await self.engine.raise_budget(found, birth.budget)
                return await self.move(found, wait=wait)
        try:
            status = await (self.engine.accept(birth) if unchecked else self.engine.start(birth))
        except KeyConflict:
            if key is None:
                raise
            same = {
                "args": args,
                "version": version,
                "key": key,
                "budget": birth.budget,
                "unchecked": unchecked,
                "wait": wait,
                "again": again,
            }
            return await self.start(call, **same)  # type: ignore[arg-type]  # another process used the key
        return await self._after(birth.id, status, wait)

    def _resolve_call(
        self, call: Call[Any] | str, args: Mapping[str, JSON] | None, version: int, unchecked: bool
    ) -> Any:
        """The call itself, or the one of a reference with its arguments."""
        if not isinstance(call, str):
            if args is not None or unchecked:
                raise BadArguments(
                    "start", "a call has its own arguments; args= and unchecked= need a reference"
                )
            return call
        given = to_plain(dict(args or {}), "args")
        if unchecked:
            known = make_ref_absolute(call)
            is_here = find_source_file(known.rpartition(":")[0] or known) is not None
            ref = known if is_here else call
            return Call(AbsentProgram(ref, version), given)  # type: ignore[arg-type]
        return self.programs.find_newest(call)(**given)

    # ---- answer

    async def answer(
        self,
        question: OpenQuery | SessionRef,
        value: Any = UNSET,
        *,
        query_id: str | None = None,
        error: str | None = None,
        usage: Usage | Mapping[str, int] | None = None,
        by: Mapping[str, JSON] | None = None,
        wait: float | None = None,
    ) -> Status:
        """Answer a question with a value or an error. `question` is an open query or a session.

        A session without a `query_id` must have exactly one open question. If the answer does not
        fit, nothing changes.
        """
        if wait is not None:
            check_seconds_arg("wait", wait)
        counted = None if usage is None else parse_usage(usage)
        named = question
        try:
            if type(question) is OpenQuery and error is None and by is None and value is not UNSET:
                status = await self.engine.answer_open(question, value, counted)
            else:
                if not isinstance(question, OpenQuery):
                    question = await resolve_session_id(self.store, question)
                session_id, given = parse_answer_args(question, query_id, value, error, counted)
                status = await self.engine.answer(session_id, [given], parse_by_arg(by))
        except EverholdError as refused:
            await self._tell(refused, named)
            raise
        if type(status) is Paused and not status.waiting_for and not self.engine.sessions.jobs:
            return status
        return await self._after(status.session_id, status, wait)

    @_names_session
    async def answer_many(
        self,
        session: SessionRef,
        answers: Mapping[str, Any],
        *,
        by: Mapping[str, JSON] | None = None,
        wait: float | None = None,
    ) -> Status:
        """Answer several questions, by query id: all are accepted, or none.

        A value may be `everhold.Answer(value, usage=…)`, or an exception to answer with an error.
        """
        check_seconds_arg("wait", wait)
        given = [
            make_given_answer(query_id, value)
            for query_id, value in check_mapping_arg("answers", answers).items()
        ]
        session_id = await resolve_session_id(self.store, session)
        status = await self.engine.answer(session_id, given, parse_by_arg(by))
        return await self._after(session_id, status, wait)

    @_names_session
    async def signal(
        self,
        session: SessionRef,
        name: str,
        value: JSON = None,
        *,
        key: str | None = None,
        wait: float | None = None,
    ) -> Status:
        """Send a signal to a program. It is stored until the program receives it.

        With a `key`, it is sent once, however often the call is repeated. Another signal under the
        same key raises `InputConflict`.
        """
        check_seconds_arg("wait", wait)
        session_id = await resolve_session_id(self.store, session)
        status = await self.engine.signal(
            session_id, check_text_arg("name", name), value, check_session_key(key)
        )
        return await self._after(session_id, status, wait)

    @_names_session
    async def complete(
        self,
        session: SessionRef,
        key: str,
        value: JSON = None,
        *,
        error: str | None = None,
        by: Mapping[str, JSON] | None = None,
    ) -> Status:
        """Give the result of a call that finishes later, by its idempotency key; see `Later`.

        If the call is still running, waits until it has returned `Later`.
        """
        session_id = await resolve_session_id(self.store, session)
        query_id = await find_later_call(self.engine, session_id, key)
        given = value if error is None else UNSET
        return await self.answer(session_id, given, query_id=query_id, error=error, by=by)

    # ---- converse

    async def session(
        self,
        agent: Agent,
        id: str,
        *,
        options: Mapping[str, JSON] | None = None,
        plugin_options: Mapping[str, JSON] | None = None,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        budget: Budget | Mapping[str, int] | None = None,
        residency: str = "all",
        again: bool = False,
    ) -> AgentSession:
        """The conversation with this id. Starts one with `agent` if it does not exist.

        It starts with these `options` over those of the agent. `plugin_options` are by the name of
        a plugin, whose hooks get them as `moment.plugin_options`. A conversation that was started
        with other ones raises `KeyConflict`; `configure` changes options later. Title, labels,
        metadata and budget are those of a new conversation, too.

        The id of a deleted conversation raises `KeyDeleted`; with `again`, a new one is started.
        `residency="path"` keeps only the nodes on the path to the leaf in memory; others are read
        on demand.
        """
        found = await self._conversations.open(
            agent,
            id,
            residency,
            options=options,
            plugin_options=plugin_options,
            title=title,
            labels=labels,
            metadata=metadata,
            budget=budget,
            again=again,
        )
        self.newest, self._keyed = SessionId(found.id), None
        return found

    @_names_session
    async def conversation(
        self, session: SessionRef, *, residency: str = "all"
    ) -> ConversationHandle:
        """The conversation of a session, without its agent: read it, and manage its queued input.

        Begins nothing: raises `UnknownSession` for an unknown name, and `NotAnAgent` for a session
        of another program.
        """
        session_id = await resolve_session_id(self.store, session)
        return await self._conversations.read(session_id, residency)

    # ---- look

    @_names_session
    async def status(self, session: SessionRef) -> Status:
        """The status of a session: `Running`, `Paused` or `Finished`."""
        return await self.engine.status(await resolve_session_id(self.store, session))

    @_names_session
    async def wait(
        self, session: SessionRef, timeout: float | None = None, *, settled: bool = False
    ) -> Status:
        """Wait until a session has ended or needs an answer from outside; at most `timeout`
        seconds.

        With `settled`, wait only for the work of this process, not for timers, children or other
        processes.
        """
        check_seconds_arg("timeout", timeout)
        session_id = await resolve_session_id(self.store, session)
        return await self.engine.wait(session_id, timeout, settled=settled)

    async def find(self, name: str) -> SessionId:
        """Find a session by its id, a prefix of it, its key, or "@last" for the newest."""
        return await find_session_id(self.store, name, self.database)

    @_names_session
    async def explain(self, session: SessionRef) -> Explanation:
        """Explain in sentences why a session is in its state and what moves it. Changes nothing."""
        session_id = await resolve_session_id(self.store, session)
        record = await self.store.load(session_id)
        workers = {worker.id: worker for worker in await self.store.workers()}
        living = (await self.engine.presence.census()).living
        waits = await self.store.intake(session_id, lambda intake: intake)
        found = await explain_session(
            record,
            self._host,
            workers,
            set(living),
            self.clock.now(),
            waits,
            talks=self._conversations.is_agent(record),
            idle=self.engine.effects.idle(record),
        )
        moves = [add_database_option(one, self.database_option) for one in found.moves]
        return msgspec.structs.replace(found, moves=moves)

    @_names_session
    async def steps(self, session: SessionRef) -> list[Step]:
        """The journal of a session: for each step, the answers delivered and the queries asked."""
        record = await self.store.load(await resolve_session_id(self.store, session))
        return [session_view.make_view_step(step) for step in read_steps(record.deliveries)]

    @_names_session
    async def transcript(self, session: SessionRef) -> list[dict[str, JSON]]:
        """The model questions and answers of a session: `query_id`, `prompt`, `system`, `response`
        (null without an answer).
        """
        record = await self.store.load(await resolve_session_id(self.store, session))
        return session_view.make_transcript(record.deliveries)

    async def snapshot(
        self,
        session: SessionRef | None = None,
        *,
        pending_filter: Any = UNSET,
        include_history: bool = False,
        limit: int = 100,
    ) -> dict[str, JSON]:
        """The current state of a session as plain JSON; without one, of all sessions, unfinished
        ones first.

        `pending_filter` adds the open questions: "meta", "preview", "full", or an object that
        selects their fields.
        """
        pending = PendingFilter.read(pending_filter)
        now = self.clock.now()
        if session is not None:
            record = await self.store.load(await resolve_session_id(self.store, session))
            return snapshot_session(
                session_view.collect_session_facts(record, now, history=include_history), pending
            )
        rows = await self.store.list(SessionFilter(state=_LIVE, limit=limit))
        if len(rows) < limit:
            ended = tuple(state for state in SessionState if state not in _LIVE)
            rows += await self.store.list(SessionFilter(state=ended, limit=limit - len(rows)))
        records = [await self.store.load(row.birth.id) for row in rows]
        return snapshot_sessions(
            [
                session_view.collect_session_facts(record, now, history=include_history)
                for record in records
            ],
            pending,
        )

    @_names_session
    async def attachments(self, session: SessionRef) -> list[Attachment]:
        """The attachments of a session."""
        return await self.store.attachments(await resolve_session_id(self.store, session))

    @_names_session
    async def attachment(self, session: SessionRef, id: str) -> bytes:
        """The bytes of an attachment. Raises `UnknownAttachment`."""
        session_id = await resolve_session_id(self.store, session)
        return (await self.store.attachment(session_id, id))[1]

    async def usage(
        self,
        by: str = "program",
        *,
        program: str | None = None,
        labels: Mapping[str, str] | None = None,
        newer_than: float | None = None,
    ) -> list[UsageRow]:
        """Sum model calls and tokens by "program", "session", "model" or "label:NAME".

        Counts matching sessions only; `newer_than` is seconds since they last moved. By model, only
        answered questions count, and all journals are read.
        """
        newer = check_seconds_arg("newer_than", newer_than)
        wanted = SessionFilter(
            programs=list_filter_programs(program),
            labels=check_labels_arg(labels),
            newer_than=None if newer is None else self.clock.now() - newer,
        )
        return await sum_usage(self.store, by, wanted)

    async def inbox(
        self,
        *,
        kind: str | None = None,
        to: str | None = None,
        limit: int = 100,
        after: OpenQuery | None = None,
    ) -> list[OpenQuery]:
        """Open questions: the oldest session first, and within a session in the order asked.

        `after` is the last question seen. Waits for signals are listed only if `kind` or `to` names
        them; so an agent that merely waits for input is not.
        """
        place = None
        if after is not None:
            birth = (await self.store.load(after.session_id, since=FROM_OPEN)).birth
            place = InboxPlace(birth.created_at, birth.id, after.query.q)
        rows = await self.store.inbox(
            kind=parse_kind_arg(kind), to=to, limit=check_limit_arg(limit), after=place
        )
        return [await load_open_question(self.store, birth, query, at) for birth, query, at in rows]

    async def sessions(
        self,
        *,
        state: str | Sequence[str] | None = None,
        program: str | None = None,
        labels: Mapping[str, str] | None = None,
        parent: SessionRef | None = None,
        older_than: float | None = None,
        newer_than: float | None = None,
        prefix: str = "",
        limit: int = 100,
        after: SessionRef | None = None,
    ) -> list[Info]:
        """Sessions, newest first. Ages are seconds since a session last moved; `after` is the last
        session seen.
        """
        now = self.clock.now()
        older = check_seconds_arg("older_than", older_than)
        newer = check_seconds_arg("newer_than", newer_than)
        wanted = SessionFilter(
            state=parse_states_arg(state),
            programs=list_filter_programs(program),
            labels=check_labels_arg(labels),
            parent=None if parent is None else await resolve_session_id(self.store, parent),
            older_than=None if older is None else now - older,
            newer_than=None if newer is None else now - newer,
            prefix=check_text_arg("prefix", prefix),
            limit=check_limit_arg(limit),
            after=None if after is None else await resolve_session_id(self.store, after),
        )
        return [_info(row.birth, row.head) for row in await self.store.list(wanted)]

    # ---- change

    @_names_session
    async def move(self, session: SessionRef, *, wait: float | None = None) -> Status:
        """Move a session as far as this process can. Its models may answer open questions."""
        check_seconds_arg("wait", wait)
        session_id = await resolve_session_id(self.store, session)
        await self.engine.move(session_id)
        return await self.engine.wait(session_id, wait, settled=True)

    @_names_session
    async def cancel(
        self, session: SessionRef, reason: str = "", *, by: Mapping[str, JSON] | None = None
    ) -> Status:
        """Cancel a session and its children. The program gets one `CancelledError`. The step
        records who cancelled (`by`).
        """
        check_text_arg("reason", reason)
        session_id = await resolve_session_id(self.store, session)
        return await self.engine.cancel(session_id, reason, parse_by_arg(by))

    @_names_session
    async def set_budget(
        self,
        session: SessionRef,
        budget: Budget | Mapping[str, int | None],
        *,
        by: Mapping[str, JSON] | None = None,
        wait: float | None = None,
    ) -> Status:
        """Change limits of a session's budget. It resumes from where it was; if it has failed, it
        is retried.

        Limits that `budget` does not name stay; None in a mapping means no limit. The step records
        who changed it (`by`). What the program saw before stays as it was.
        """
        check_seconds_arg("wait", wait)
        change = parse_budget_change_arg(budget)
        session_id = await resolve_session_id(self.store, session)
        status = await self.engine.set_budget(session_id, change, parse_by_arg(by))
        return await self._after(session_id, status, wait)

    @_names_session
    async def retry(
        self,
        session: SessionRef,
        *,
        budget: Budget | Mapping[str, int | None] | None = None,
        by: Mapping[str, JSON] | None = None,
        wait: float | None = None,
    ) -> Status:
        """Resume a failed session from its last answer, with the current code. The step records who
        retried (`by`). `budget` changes limits, as `set_budget` does.
        """
        check_seconds_arg("wait", wait)
        change = None if budget is None else parse_budget_change_arg(budget)
        session_id = await resolve_session_id(self.store, session)
        status = await self.engine.retry(session_id, parse_by_arg(by), change)
        return await self._after(session_id, status, wait)

    @_names_session
    async def fork(
        self,
        session: SessionRef,
        *,
        at: int | None = None,
        answer: Any = UNSET,
        query_id: str | None = None,
        key: str | None = None,
        title: str = "",
        budget: Budget | Mapping[str, int | None] | None = None,
        by: Mapping[str, JSON] | None = None,
        wait: float | None = None,
        again: bool = False,
    ) -> Status:
        """Start a new session that shares this one's steps up to `at` (by default all). It records
        who forked (`by`).

        With `answer`, the new session resumes with this answer instead of the one at that step. The
        new session has the budget of this one, with the changes of `budget`; the shared steps count
        in it. The `key` of a deleted session raises `KeyDeleted`; with `again`, it is used anyway.
        """
        check_seconds_arg("wait", wait)
        change = None if budget is None else parse_budget_change_arg(budget)
        session_id = await resolve_session_id(self.store, session)
        origin = (await self.store.load(session_id, since=-1)).birth
        now = self.clock.now()
        birth = msgspec.structs.replace(
            origin,
            id=mint(now, self._dice(96)),
            created_at=now,
            key=check_session_key(key),
            title=check_title_arg(title) or origin.title,
            parent=None,
            parent_query=0,
            seeds=[Seed(0, f"{self._dice(96):024x}")],
            forked_by=parse_by_arg(by),
        )
        if birth.key is not None and not again:
            await self.engine.refuse_deleted(birth.key)
        given = None if answer is UNSET else GivenAnswer(query_id, answer)
        self.newest = birth.id
        status = await self.engine.fork(session_id, birth, at, given, change)
        return await self._after(birth.id, status, wait)

    @_names_session
    async def delete(self, session: SessionRef, *, by: Mapping[str, JSON] | None = None) -> int:
        """Delete a session. Returns how many steps remain because forks share them.

        Who deleted it (`by`) is kept: `runtime.archive.deleted_by(session_id)`.
        """
        session_id = await resolve_session_id(self.store, session)
        return await self.engine.delete(session_id, parse_by_arg(by))

    # ---- helpers

    def _birth(
        self,
        call: Call[Any],
        key: str | None,
        title: str,
        labels: Mapping[str, str] | None,
        metadata: Mapping[str, str] | None,
        budget: Budget | Mapping[str, int] | None,
    ) -> Birth:
        if not isinstance(call, Call):
            raise NotAProgram(
                repr(call),
                "pass a call of a program to run and start: runtime.run(my_program(x=1))",
            )
        program = call.program
        now = self.clock.now()
        return Birth(
            id=mint(now, self._dice(96)),
            program=program.ref,
            version=program.version,
            args=call.args,
            created_at=now,
            seeds=[Seed(0, f"{self._dice(96):024x}")],
            key=check_session_key(key),
            title=check_title_arg(title),
            labels=check_labels_arg(labels),
            metadata=check_text_map_arg("metadata", metadata, MAX_METADATA_CHARS),
            budget=parse_budget_arg(budget),
            digest=program.digest,
            python=f"{sys.version_info[0]}.{sys.version_info[1]}",
            everhold=get_everhold_version(),
            llm=self._llm,
            variables=read_program_variables(),
        )

    async def _after(self, session_id: str, status: Status, wait: float | None) -> Status:
        """The status after the running work of this process has ended."""
        busy = isinstance(status, Running) or (isinstance(status, Paused) and status.waiting_for)
        if not isinstance(status, Finished) and (busy or self.engine.sessions.jobs.get(session_id)):
            return await self.engine.wait(session_id, wait, settled=True)
        return status


@checks_keywords("open")
def open(
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
    on_unavailable: str | None = None,
    retry: Retry | None = None,
    timeout: float | None = None,
) -> Runtime:
    """Open a runtime on `sqlite:///app.db`, `memory://` or `postgresql://…`; by default on the
    database of the settings.

    `llm` answers model questions in this process: a model as `"provider:name"`, an async function
    of a query, `CommandModel("claude -p")`, a list or dict of answers. Without it they stay open
    for a worker with a model, or for an answer from outside. With `llm=None`, no worker ever
    answers them. A question that no model here can answer stays open with the reason ("wait"), or
    fails (`on_unavailable="fail"`). `tell` are the notifiers for open questions: see
    `everhold.notify`. With `recover=False`, only the sessions that callers use are moved. `retry`
    and `timeout` (seconds of one attempt) are the defaults of model questions, and of calls with
    `rerun="safe"`, in programs that have none.
    """
    refuse_while_loading()
    found = settings(database)
    return Runtime(
        store_at(found.database, durability=durability),
        found=found,
        llm=_configured(found) if llm is UNSET else llm,
        clock=clock,
        observers=observers,
        cache=cache,
        idle=idle,
        recover=recover,
        tell=tell,
        on_unavailable=on_unavailable,
        retry=retry,
        timeout=timeout,
    )


def _configured(found: Settings) -> Any:
    if found.llm is None:
        return UNSET
    made = make_answerer(found.llm)  # raises for a wrong name, and for a real model in a test
    return _Configured(found.llm) if isinstance(made, Model) else made


class _Configured(Model):
    """The model of the settings. If it is misconfigured, it raises at its first question."""

    def check(self) -> None:
        """Check the names only, so that commands that need no model work without a key."""
        self.check_providers()


def convert_result(call: Call[R], status: Finished) -> R:
    """The result of a call, converted to its return annotation."""
    value = status.result
    wanted = call.program.types.get("return", Any)
    try:
        found: R = value if wanted in (Any, None, type(None)) else decode_value_as(value, wanted)
    except AnswerRefused:
        return value  # type: ignore[no-any-return]
    return found


def _waiting(status: Status, key: str | None) -> Waiting:
    queries = status.queries if isinstance(status, Paused) else ()
    until = status.until if isinstance(status, Paused) else None
    waits = list(status.waiting_for) if isinstance(status, Paused | Running) else []
    if isinstance(status, Paused):
        waits += describe_signals(status.signals)
    return Waiting(status.session_id, queries, until, "; ".join(waits), key)


def _info(birth: Birth, head: Any) -> Info:
    return Info(
        birth.id,
        head.state,
        birth.program,
        birth.version,
        birth.key,
        birth.title,
        birth.labels,
        head.n,
        birth.created_at,
        head.updated_at,
        head.due_at,
        birth.parent,
        birth.origin,
        birth.forked_by,
        head.metrics.progress,
    )


__all__ = ["Info", "Runtime", "SystemClock", "open"]
