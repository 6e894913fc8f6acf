"""Actions of schedules and triggers: start a session, or send something to one.

Each action has a key. Running it again under the same key changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from inspect import Parameter, Signature
from typing import Any, Final, Protocol

import msgspec

from everhold.core.codec import JSON, to_plain
from everhold.core.intake import require_input_fits
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
from everhold.ports.program import Call, Program, StartVerb, refuse_local_program
from everhold.ports.program_identity import find_same_program
from everhold.ports.store import Duty

#: As `give`: the fields of the payload become the arguments of their names.
ALL_FIELDS: Final = "*"


class Start(msgspec.Struct, frozen=True, omit_defaults=True, tag="start", tag_field="do"):
    """Start a session of a program, in its newest version."""

    program: str
    args: dict[str, JSON] = {}
    # the argument that receives the payload or the time; `ALL_FIELDS`: each field of the payload is
    # an argument; empty: no argument receives it
    give: str = ""
    title: str = ""
    labels: dict[str, str] = {}


class Feed(msgspec.Struct, frozen=True, omit_defaults=True, tag="feed", tag_field="do"):
    """Send something to an existing session, by its id or key.

    `signal` is the name of a signal; without it, an input is sent to a conversation. `value` is the
    value sent; by default the payload of the event, or the time.
    """

    session: str
    signal: str = ""
    value: JSON = msgspec.UNSET


Action = Start | Feed


class ActionResult(msgspec.Struct, frozen=True):
    """The session of an action, and whether this try did it."""

    session_id: str
    new: bool


class ActionRunner(Protocol):
    """Runs actions in this process."""

    def able(self, action: Action) -> bool:
        """Whether this process can run the action; otherwise one with the program does."""
        ...

    async def do(
        self, action: Action, key: str, happened: JSON, labels: Mapping[str, str]
    ) -> ActionResult:
        """Run the action once per key. Raises the error that prevents it."""
        ...


def make_action(
    do: Any,
    durability: str,
    *,
    give: str = "",
    args: Mapping[str, Any] | None = None,
    title: str = "",
    labels: Mapping[str, str] | None = None,
) -> Action:
    """An action from a call, a program with arguments, or a `Feed`, for a store of this durability.

    Raises `NotAProgram`, `LocalProgram` and `BadArguments`.
    """
    if isinstance(do, Feed):
        if give or args or title or labels:
            raise BadArguments("do", "a Feed takes no args, give, title or labels")
        if not isinstance(do.session, str) or not do.session.strip():
            raise BadArguments("Feed", "give a session, by its id or key")
        if not isinstance(do.signal, str):
            raise BadArguments("Feed", f"{do.signal!r} is not the name of a signal")
        if do.value is not msgspec.UNSET:
            to_plain(do.value, "value")
        return do
    fixed = dict(to_plain(dict(args or {}), "args"))
    title = check_title_arg(title)
    checked = check_labels_arg(labels)
    if isinstance(do, Call):
        if fixed or give not in ("", ALL_FIELDS):
            raise BadArguments("do", "a call has its arguments; give the program and args= instead")
        refuse_local_program(do.program.ref, durability)
        return Start(do.program.ref, dict(do.args), "", title, checked)
    if not isinstance(do, Program):
        raise NotAProgram(repr(do), "give a program, a call of one, or Feed(session, …)")
    if not isinstance(give, str):
        raise BadArguments("give", f"{give!r} is not the name of an argument")
    refuse_local_program(do.ref, durability)
    return Start(do.ref, fixed, give, title, checked)


def read_action(duty: Duty) -> Action:
    """The action of a stored schedule, trigger or handover."""
    body: Any = duty.body
    found: Action = msgspec.convert(body.get("terms", body)["do"], Action)
    return found


def build_arguments(start: Start, happened: JSON, signature: Signature) -> dict[str, JSON]:
    """The arguments of a new session. Fields of the payload that the program does not take are left
    out.
    """
    if not start.give:
        return dict(start.args)
    if start.give != ALL_FIELDS:
        return {**start.args, start.give: happened}
    if happened is None:
        return dict(start.args)
    if not isinstance(happened, dict):
        raise BadArguments(
            start.program,
            "its arguments are fields of the payload, but the payload is not an object",
        )
    taken = signature.parameters
    takes_all = any(one.kind is Parameter.VAR_KEYWORD for one in taken.values())
    return {
        **start.args,
        **{name: value for name, value in happened.items() if takes_all or name in taken},
    }


def describe_failure(error: Exception) -> str:
    """The reason of a failed action, in one line. Errors of the store are raised again."""
    # damage concerns one session, not the store
    if isinstance(error, StoreError) and not isinstance(error, StoreDamaged | DamagedGraph):
        raise error
    code = getattr(error, "code", "") or type(error).__name__
    return f"{error} [{code}]"


def action_retry_delay(tries: int) -> float:
    """Seconds until the next try: doubling, up to five minutes."""
    return float(min(2 ** max(tries - 1, 0), 300))


#: Seconds after which a missing program is searched for again.
PROGRAM_RETRY_SECONDS: Final = 5.0


class SessionActionRunner:
    """Runs actions: starts sessions with `start`, and sends to sessions through the engine."""

    def __init__(self, engine: Engine, programs: KnownPrograms, start: StartVerb) -> None:
        self._engine = engine
        self._programs = programs
        self._start = start
        self._only: frozenset[str] = frozenset()  # the programs started here; empty: all
        self._absent: dict[str, float] = {}  # missing programs, and when they were searched for

    def restrict(self, programs: Iterable[str]) -> None:
        """Start sessions of these programs only; of all programs, if there are none."""
        self._only = frozenset(programs)

    def able(self, action: Action) -> bool:
        """Whether this process can run an action: it has the program, and may start it. A program
        that is missing is searched for again after a while.
        """
        if isinstance(action, Feed):
            return True
        if self._only and find_same_program(action.program, self._only) is None:
            return False
        now = self._engine.clock.now()
        since = now - self._absent.get(action.program, now - PROGRAM_RETRY_SECONDS)
        if since < PROGRAM_RETRY_SECONDS:
            return False
        try:
            self._programs.find_newest(action.program)
        except EverholdError:  # it does not exist here, or does not load
            self._absent[action.program] = now
            return False
        self._absent.pop(action.program, None)
        return True

    async def do(
        self, action: Action, key: str, happened: JSON, labels: Mapping[str, str]
    ) -> ActionResult:
        """Run an action once per `key`: start a session, or send to one. `happened` is what fired
        it.
        """
        if isinstance(action, Feed):
            engine = self._engine
            session_id = await resolve_session_id(engine.store, action.session)
            value = happened if action.value is msgspec.UNSET else action.value
            if action.signal:
                new = await engine.send(session_id, Signal(action.signal, value, key))
            else:
                require_input_fits(value, engine.max_input)
                new = await engine.shielded.run(engine.acceptance.words(session_id, value, key))
            return ActionResult(session_id, new)
        found = await self._engine.store.find(key)
        if found is not None:
            return ActionResult(found, False)
        program = self._programs.find_newest(action.program)
        call = program(**build_arguments(action, happened, program.signature))
        labels = {**labels, **action.labels}
        try:
            status = await self._start(call, key=key, title=action.title, labels=labels, wait=0)
        # another process started it, or the session has ended and was deleted
        except (KeyConflict, KeyDeleted) as known:
            return ActionResult(known.session_id, False)
        return ActionResult(status.session_id, True)
