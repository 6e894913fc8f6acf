"""What is done when a schedule comes round or an event happens: a session is started, or one is
fed.

Each deed is done under a key of its own, and once: whoever does it again under the same key changes
nothing.

Runs the actions of schedules and triggers in this process: starts sessions, and feeds them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import Parameter, Signature
from typing import Any, Final, Protocol

import msgspec

from everhold.core.codec import JSON, to_plain
from everhold.engine.accept import Signal
from everhold.engine.arguments import check_labels_arg, check_title_arg
from everhold.engine.engine import Engine
from everhold.engine.session_lookup import resolve_session_id
from everhold.errors import (
    BadArguments,
    DamagedGraph,
    EverholdError,
    KeyConflict,
    KeyDeleted,
    NotAProgram,
    StoreDamaged,
    StoreError,
)
from everhold.packages.catalog import KnownPrograms
from everhold.ports.program import Call, Program, StartVerb
from everhold.ports.store import Duty

#: Gives the fields of what happened as arguments of their names.
ALL_FIELDS: Final = "*"


class Start(msgspec.Struct, frozen=True, omit_defaults=True, tag="start", tag_field="do"):
    """Begin a session of a program, in its newest version."""

    program: str
    args: dict[str, JSON] = {}
    # the argument that is given what happened; `ALL_FIELDS`: its fields are arguments; empty: none
    # is
    give: str = ""
    title: str = ""
    labels: dict[str, str] = {}


class Feed(msgspec.Struct, frozen=True, omit_defaults=True, tag="feed", tag_field="do"):
    """Send something to a session that is there already, by its id or its key.

    `signal` names what the program receives; without it, something is said to a conversation.
    `value` is what is sent; without it, what happened.
    """

    session: str
    signal: str = ""
    value: JSON = msgspec.UNSET


Action = Start | Feed


class ActionResult(msgspec.Struct, frozen=True):
    """What a deed came to: which session, and whether this try was the one that did it."""

    session_id: str
    new: bool


class ActionRunner(Protocol):
    """Whoever does deeds in this process."""

    def able(self, deed: Action) -> bool:
        """Whether it can be done here; else it is for a process that has the program."""
        ...

    async def do(
        self, deed: Action, key: str, happened: JSON, labels: Mapping[str, str]
    ) -> ActionResult:
        """Do it, unless it was done under this key. Raises what keeps it from being done."""
        ...


def make_action(
    do: Any,
    *,
    give: str = "",
    args: Mapping[str, Any] | None = None,
    title: str = "",
    labels: Mapping[str, str] | None = None,
) -> Action:
    """What was given as a call, as a program with arguments, or as a `Feed`; raises `NotAProgram`,
    `BadArguments`.
    """
    if isinstance(do, Feed):
        return _feed(do, give or args or title or labels)
    fixed = dict(to_plain(dict(args or {}), "args"))
    title = check_title_arg(title)
    told = check_labels_arg(labels)
    if isinstance(do, Call):
        if fixed or give not in ("", ALL_FIELDS):
            raise BadArguments("do", "a call has its arguments; give the program itself, and args=")
        return Start(do.program.ref, dict(do.args), "", title, told)
    if not isinstance(do, Program):
        raise NotAProgram(repr(do), "give a program, a call of one, or Feed(session, …)")
    if not isinstance(give, str):
        raise BadArguments("give", f"{give!r} is not the name of an argument")
    return Start(do.ref, fixed, give, title, told)


def _feed(given: Feed, more: object) -> Feed:
    if more:
        raise BadArguments("do", "what is fed to a session takes no arguments, title or labels")
    if not isinstance(given.session, str) or not given.session.strip():
        raise BadArguments("Feed", "say which session, by its id or its key")
    if not isinstance(given.signal, str):
        raise BadArguments("Feed", f"{given.signal!r} is not the name of a signal")
    if given.value is not msgspec.UNSET:
        to_plain(given.value, "value")
    return given


def read_action(duty: Duty) -> Action:
    """What a stored schedule, trigger or handover does."""
    body: Any = duty.body
    found: Action = msgspec.convert(body.get("terms", body)["do"], Action)
    return found


def build_arguments(start: Start, happened: JSON, signature: Signature) -> dict[str, JSON]:
    """The arguments of a session that is begun now; of the fields of what happened, those that the
    program takes.
    """
    if not start.give:
        return dict(start.args)
    if start.give != ALL_FIELDS:
        return {**start.args, start.give: happened}
    if happened is None:
        return dict(start.args)
    if not isinstance(happened, dict):
        raise BadArguments(
            start.program, "its arguments are the fields of the payload, which is no object"
        )
    taken = signature.parameters
    takes_all = any(one.kind is Parameter.VAR_KEYWORD for one in taken.values())
    return {
        **start.args,
        **{name: value for name, value in happened.items() if takes_all or name in taken},
    }


def describe_failure(error: Exception) -> str:
    """What kept a deed from being done, in a line; trouble with the store is raised again: it is
    nobody's fault.
    """
    # these are a session's
    if isinstance(error, StoreError) and not isinstance(error, StoreDamaged | DamagedGraph):
        raise error
    code = getattr(error, "code", "") or type(error).__name__
    return f"{error} [{code}]"


def action_retry_delay(tries: int) -> float:
    """Seconds until something that failed so often is tried again: longer and longer, up to five
    minutes.
    """
    return float(min(2 ** max(tries - 1, 0), 300))


#: Seconds after which a program that was not found is looked for again.
PROGRAM_RETRY_SECONDS: Final = 5.0


class SessionActionRunner:
    """Starts sessions with the verb that it is given, and feeds them through the engine."""

    def __init__(self, engine: Engine, programs: KnownPrograms, start: StartVerb) -> None:
        self._engine = engine
        self._programs = programs
        self._start = start
        self._only: frozenset[str] = frozenset()  # whose sessions are started here; empty: all
        self._absent: dict[str, float] = {}  # programs that were not found here, and when

    def restrict(self, programs: Iterable[str]) -> None:
        """Start sessions of these programs only; without any, of all."""
        self._only = frozenset(programs)

    def able(self, deed: Action) -> bool:
        if isinstance(deed, Feed):
            return True
        if self._only and deed.program not in self._only:
            return False
        now = self._engine.clock.now()
        since = now - self._absent.get(deed.program, now - PROGRAM_RETRY_SECONDS)
        if since < PROGRAM_RETRY_SECONDS:
            return False
        try:
            self._programs.find_newest(deed.program)
        except EverholdError:  # there is none, or it cannot be loaded here
            self._absent[deed.program] = now
            return False
        self._absent.pop(deed.program, None)
        return True

    async def do(
        self, deed: Action, key: str, happened: JSON, labels: Mapping[str, str]
    ) -> ActionResult:
        if isinstance(deed, Feed):
            return await self._feed(deed, key, happened)
        found = await self._engine.store.find(key)
        if found is not None:
            return ActionResult(found, False)
        program = self._programs.find_newest(deed.program)
        call = program(**build_arguments(deed, happened, program.signature))
        told = {**labels, **deed.labels}
        try:
            status = await self._start(call, key=key, title=deed.title, labels=told, wait=0)
        # another process was quicker, or it has ended and was deleted
        except (KeyConflict, KeyDeleted) as known:
            return ActionResult(known.session_id, False)
        return ActionResult(status.session_id, True)

    async def _feed(self, deed: Feed, key: str, happened: JSON) -> ActionResult:
        engine = self._engine
        session_id = await resolve_session_id(engine.store, deed.session)
        value = happened if deed.value is msgspec.UNSET else deed.value
        if deed.signal:
            new = await engine.send(session_id, Signal(deed.signal, value, key))
        else:
            new = await engine.shielded.run(engine.acceptance.words(session_id, value, key))
        return ActionResult(session_id, new)
