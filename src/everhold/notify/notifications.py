"""The part of `Runtime` that tells people, and shows what was told."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, cast

from everhold.core.query import Query
from everhold.errors import BadSetting
from everhold.notify import outbox
from everhold.notify.command import ByCommand
from everhold.notify.outbox import Notifier, Outbox, OutboxEntry
from everhold.notify.webhook import ByWebhook
from everhold.packages.settings import Settings, parse_duration
from everhold.ports.program import Clock
from everhold.ports.store import Duty, Store

if TYPE_CHECKING:
    from everhold.runtime import Runtime

#: Changes entries at a moment; returns those that it has changed.
EntryChange = Callable[
    [Store, Sequence[tuple[OutboxEntry, Duty]], float], Awaitable[list[OutboxEntry]]
]

#: What a table `[[tell]]` of the settings may hold.
NOTIFIER_KEYS: Final = (
    "command",
    "url",
    "url_env",
    "secret_env",
    "name",
    "kinds",
    "to",
    "timeout",
    "max_age",
)


class Notifications:
    """The verbs of `Runtime` that look after the outbox."""

    store: Store
    clock: Clock
    _outbox: Outbox | None = None
    _tellers: Sequence[Notifier] | None = None
    _at_chores = False

    async def outbox(self, session_id: str = "", *, teller: str | None = None) -> list[OutboxEntry]:
        """What people were told, or are going to be, in the order asked; of all sessions, or of
        one.

        What was told, or given up, is listed until its question is not open any more, and at most a
        day longer.
        """
        return [
            entry
            for entry, _ in await outbox.list_entries(
                self.store, session_id=session_id, teller=teller
            )
        ]

    async def outbox_retry(
        self, session_id: str = "", *, teller: str | None = None
    ) -> list[OutboxEntry]:
        """Have people told again, also of what was given up; returns what is tried again."""
        return await self._change_outbox(outbox.retry_entries, session_id, teller)

    async def outbox_drop(
        self, session_id: str = "", *, teller: str | None = None
    ) -> list[OutboxEntry]:
        """Have people not told any more; returns what was dropped. The questions stay open."""
        return await self._change_outbox(outbox.drop_entries, session_id, teller)

    async def _change_outbox(
        self, change: EntryChange, session_id: str, teller: str | None
    ) -> list[OutboxEntry]:
        """Change all entries that are chosen, also if the caller is cancelled."""
        runtime = cast("Runtime", self)

        async def changed() -> list[OutboxEntry]:
            chosen = await outbox.list_entries(self.store, session_id=session_id, teller=teller)
            found = await change(self.store, chosen, self.clock.now())
            runtime.engine.sessions.poke()
            return found

        return await runtime.engine.shielded.run(changed())

    def _tell_by(self: Any, tell: Iterable[Notifier] | None) -> None:
        """Have people told by these, or as the settings say, as soon as this process moves
        sessions.
        """
        self._tellers = None if tell is None else _checked(list(tell))
        if self._recover:
            self._take_up_chores()

    def _take_up_chores(self: Any) -> None:
        """From now on this process moves sessions: people are told, and what is old is swept, if it
        was asked for.

        Who only looks does neither, and needs nothing of what it takes.
        """
        if self._at_chores:
            return
        self._at_chores = True
        self._sweep_by_itself()
        tellers = load_notifiers(self._settings) if self._tellers is None else self._tellers
        if tellers:
            sessions = self.engine.sessions
            self._outbox = Outbox(
                self.store, self.clock, tellers, in_full=self._shown, poke=lambda: sessions.poke()
            )
            sessions.asks_people = True
            self.engine.reconciler.chores.append(self._outbox.see_to)

    async def _tell_the_rest(self, grace: float) -> None:
        """Before this process goes, what it knows of is told."""
        if self._outbox is not None:
            await self._outbox.close(grace)

    async def _untold(self, grace: float) -> int:
        """Tell what is due, and nobody after that; how much of it could not be told within the
        grace.
        """
        outbox = self._outbox
        self._outbox = None
        if outbox is None:
            return 0
        await outbox.close(grace)
        return await outbox.left()

    async def _shown(self: Any, session_id: str, query: Query) -> Query:
        shown: Query = await self._in_full(session_id, query)
        return shown


def _checked(tellers: Sequence[Any]) -> Sequence[Notifier]:
    for one in tellers:
        if not all(
            hasattr(one, name) for name in ("name", "kinds", "to", "timeout", "max_age", "tell")
        ):
            raise BadSetting(
                "tell", f"{one!r} tells nobody; everhold.notify has ByCommand and ByWebhook"
            )
    names = [one.name for one in tellers]
    for name in names:
        if names.count(name) > 1:
            raise BadSetting("tell", f"there are two of the name {name!r}; give them names")
    return tellers


def load_notifiers(found: Settings | None) -> Sequence[Notifier]:
    """The tellers of the settings; raises `BadSetting`."""
    if found is None:
        return []
    file = found.source.get("tell", "")
    return _checked([_teller(table, f"tell in {file}") for table in found.tell])


def _teller(table: Mapping[str, Any], where: str) -> Notifier:
    for key, value in table.items():
        if key not in NOTIFIER_KEYS:
            raise BadSetting(where, f"there is no {key!r}; there are {', '.join(NOTIFIER_KEYS)}")
        if not _fits(key, value):
            raise BadSetting(where, f"{key} cannot be {value!r}")
    options: dict[str, Any] = {key: table[key] for key in ("name", "kinds", "to") if key in table}
    options |= {
        key: parse_duration(table[key], f"{key} of {where}")
        for key in ("timeout", "max_age")
        if key in table
    }
    if sum(key in table for key in ("command", "url", "url_env")) != 1:
        raise BadSetting(where, "give one of command, url and url_env")
    if "command" in table:
        if "secret_env" in table:
            raise BadSetting(where, "secret_env is for a webhook")
        return ByCommand(table["command"], **options)
    if "secret_env" in table:
        options["secret"] = _variable(table["secret_env"], where)
    return ByWebhook(
        table["url"] if "url" in table else _variable(table["url_env"], where), **options
    )


def _fits(key: str, value: Any) -> bool:
    if key in ("timeout", "max_age"):
        return isinstance(value, str | int | float) and not isinstance(value, bool)
    if key in ("kinds", "to"):
        return isinstance(value, list) and all(isinstance(one, str) for one in value)
    if key == "command":
        return isinstance(value, str) or (
            isinstance(value, list) and all(isinstance(one, str) for one in value)
        )
    return isinstance(value, str)


def _variable(name: str, where: str) -> str:
    found = os.environ.get(name)
    if not found:
        raise BadSetting(where, f"the variable {name} is not set")
    return found
