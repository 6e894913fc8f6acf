"""`runtime.notifications`: which notifiers there are, and what they sent."""

from __future__ import annotations

import builtins
import functools
import os
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from everhold.engine.engine import Engine
from everhold.engine.session_lookup import SessionRef, resolve_session_id
from everhold.engine.session_view import load_full_query
from everhold.errors import BadSetting
from everhold.notify import outbox
from everhold.notify.command import ByCommand
from everhold.notify.outbox import Notifier, Outbox, OutboxEntry
from everhold.notify.webhook import ByWebhook
from everhold.packages.settings import Settings, parse_duration
from everhold.ports.store import Duty, Store
from everhold.stores.address import strip_password

#: Changes entries; called with the current time, returns the changed ones.
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
    """`runtime.notifications`: the outbox, and the notifiers of this process.

    Without `tell`, the settings name the notifiers.
    """

    def __init__(
        self, engine: Engine, settings: Settings | None, tell: Iterable[Notifier] | None
    ) -> None:
        self._engine = engine
        self._settings = settings
        self._notifiers = None if tell is None else _checked(builtins.list(tell))
        self._outbox: Outbox | None = None

    async def list(
        self, session: SessionRef | None = None, *, notifier: str | None = None
    ) -> builtins.list[OutboxEntry]:
        """Notifications of all sessions or of one, in the order of their questions.

        A notification that was sent or given up is listed until its question is closed, and at most
        a day longer.
        """
        return [entry for entry, _ in await self._load(session, notifier)]

    async def retry(
        self, session: SessionRef | None = None, *, notifier: str | None = None
    ) -> builtins.list[OutboxEntry]:
        """Send notifications again, also those that were given up; returns them."""
        return await self._engine.complete(self._change(outbox.retry_entries, session, notifier))

    async def drop(
        self, session: SessionRef | None = None, *, notifier: str | None = None
    ) -> builtins.list[OutboxEntry]:
        """Drop notifications; returns them. Their questions stay open."""
        return await self._engine.complete(self._change(outbox.drop_entries, session, notifier))

    async def _change(
        self, change: EntryChange, session: SessionRef | None, notifier: str | None
    ) -> builtins.list[OutboxEntry]:
        chosen = await self._load(session, notifier)
        return await change(self._engine.store, chosen, self._engine.clock.now())

    async def _load(
        self, session: SessionRef | None, notifier: str | None
    ) -> builtins.list[tuple[OutboxEntry, Duty]]:
        store = self._engine.store
        session_id = "" if session is None else await resolve_session_id(store, session)
        return await outbox.list_entries(store, session_id=session_id, notifier=notifier)

    def start(self) -> None:
        """Start sending, if there are notifiers."""
        engine = self._engine
        notifiers = load_notifiers(self._settings) if self._notifiers is None else self._notifiers
        if not notifiers:
            return
        sessions = engine.sessions
        found = self._settings
        # no other process can reach a database in memory
        database = (
            "" if found is None or found.scheme == "memory" else strip_password(found.database)
        )
        self._outbox = Outbox(
            engine.store,
            engine.clock,
            notifiers,
            in_full=functools.partial(load_full_query, engine.store),
            poke=lambda: sessions.poke(),
            database=database,
        )
        sessions.wake_for_people()
        engine.reconciler.add_chore(self._outbox.see_to)

    async def flush(self, grace: float) -> int:
        """Send what is due for at most `grace` seconds, then stop; returns how many were not
        sent.
        """
        last = self._outbox
        self._outbox = None
        if last is None:
            return 0
        await last.close(grace)
        return await last.left()

    async def close(self, grace: float) -> None:
        """Send what is due for at most `grace` seconds; the next process sends the rest."""
        if self._outbox is not None:
            await self._outbox.close(grace)


def _checked(notifiers: Sequence[Any]) -> Sequence[Notifier]:
    for one in notifiers:
        if not isinstance(one, Notifier):
            raise BadSetting(
                "tell", f"{one!r} is not a notifier; use ByCommand or ByWebhook of everhold.notify"
            )
    names = [one.name for one in notifiers]
    for name in names:
        if names.count(name) > 1:
            raise BadSetting("tell", f"two notifiers have the name {name!r}; give them names")
    return notifiers


def load_notifiers(found: Settings | None) -> Sequence[Notifier]:
    """The notifiers of the settings; raises `BadSetting`."""
    if found is None:
        return []
    file = found.source.get("tell", "")
    return _checked([_build_notifier(table, f"tell in {file}") for table in found.tell])


def _build_notifier(table: Mapping[str, Any], where: str) -> Notifier:
    for key, value in table.items():
        if key not in NOTIFIER_KEYS:
            raise BadSetting(where, f"unknown key {key!r}; there are {', '.join(NOTIFIER_KEYS)}")
        if not _fits(key, value):
            raise BadSetting(where, f"{key} cannot be {value!r}")
    options: dict[str, Any] = {key: table[key] for key in ("name", "kinds", "to") if key in table}
    options |= {
        key: parse_duration(table[key], f"{key} of {where}")
        for key in ("timeout", "max_age")
        if key in table
    }
    if sum(key in table for key in ("command", "url", "url_env")) != 1:
        raise BadSetting(where, "give exactly one of command, url and url_env")
    if "command" in table:
        if "secret_env" in table:
            raise BadSetting(where, "secret_env is only for a webhook")
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
        raise BadSetting(where, f"the environment variable {name} is not set")
    return found
