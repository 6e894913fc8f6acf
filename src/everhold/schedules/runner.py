"""Runs the actions of schedules and triggers in this process: starts sessions, and feeds them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from everhold.core.codec import JSON
from everhold.engine.accept import Signal
from everhold.engine.engine import Engine
from everhold.engine.session_lookup import resolve_session_id
from everhold.errors import EverholdError, KeyConflict, KeyDeleted
from everhold.packages.known_programs import KnownPrograms
from everhold.ports.verbs import StartVerb
from everhold.schedules.action import Action, ActionResult, Feed, build_arguments

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
