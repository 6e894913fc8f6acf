"""Encodes changes for the server, completely before anything is sent: a bad value harms no other.

A light change is one statement, and so are any number of steps. Every other change is a call of
`land_1` (see migrations/0001.sql) with three JSON texts: the head, the deliveries, and the rest.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec

from everhold.core.codec import checksum_row, dumps
from everhold.core.journal import Delivery, encode_delivery
from everhold.core.journal import checksum_delivery as delivery_seal
from everhold.core.session import Birth, Head, SessionEvent, SessionId, SessionState, apply_event
from everhold.errors import EverholdError, KeyConflict, Overtaken, UnknownSession
from everhold.ports.store import Change, RemoteChange
from everhold.stores.postgres.address import escape_nul, unescape_nul
from everhold.stores.row_codec import (
    checksum_head,
    checksum_mark,
    encode_birth,
    encode_failed_attempt,
)

LIGHT: Final = (
    "WITH moved AS (UPDATE everhold.head_1 SET revision = %s, n = %s, open_from = %s, updated_at"
    " = %s, metrics = %s,"
    " seal = %s WHERE ref = %s AND revision = %s RETURNING ref)"
    " INSERT INTO everhold.journal (session, n, at, answers, asked, notes, seal)"
    " SELECT ref, %s, %s, %s, %s, %s, %s FROM moved"
)
LAND: Final = "SELECT everhold.land_1(%s, %s, %s, %s, %s, %s)"
#: Applies the steps of many sessions: the head, one delivery, and the effect marks. Returns the
#: sessions that moved. All parts of the statement see the tables as they were before it and run in
#: any order, so no two of them may write the same row: see `_is_step`.
STEPS: Final = (
    "WITH moved AS (UPDATE everhold.head_1 h SET revision = g.revision, state = g.state, n ="
    " g.head_n,"
    " open_from = g.open_from, due_at = g.due_at, updated_at = g.updated_at, metrics ="
    " g.metrics, mail = g.mail,"
    " attempts = g.attempts, parked = g.parked, asking = g.asking, seal = g.head_seal FROM"
    " json_to_recordset(%s::json) AS g"
    " (revision int8, state text, head_n int8, open_from int8, due_at float8, updated_at float8,"
    " metrics text,"
    " mail int8, attempts int8, parked int8, asking int8, head_seal int8, ref int8, fence int8,"
    " n int8, at float8, answers text, asked text, notes text, seal int8, ended bool,"
    " closed int8[], effects json)"
    " WHERE h.ref = g.ref AND h.revision = g.fence RETURNING g.*), landed AS"
    " (INSERT INTO everhold.journal (session, n, at, answers, asked, notes, seal)"
    " SELECT ref, n, at, answers, asked, notes, seal FROM moved), unnoticed AS (DELETE FROM"
    " everhold.notice o"
    " USING moved m WHERE o.session = m.ref AND (m.ended OR o.q = ANY(m.closed))), done AS"
    " (DELETE FROM everhold.effect"
    " e USING moved m WHERE e.session = m.ref AND (m.ended OR e.q = ANY(m.closed))), begun AS"
    " (INSERT INTO"
    " everhold.effect (session, q, worker, since, seal, failed) SELECT e.session, e.q,"
    " e.worker, e.since, e.seal, e.failed FROM moved m,"
    " json_populate_recordset(NULL::everhold.effect, m.effects) e ON CONFLICT (session, q)"
    " DO UPDATE SET worker = excluded.worker, since = excluded.since, seal = excluded.seal,"
    " failed = excluded.failed)"
    " SELECT ref FROM moved"
)
#: Applies many other changes in order; returns the outcome of each.
LAND_MANY: Final = (
    "SELECT g.receipt, everhold.land_1(g.receipt, g.ref, g.fence, g.head, g.deliveries, g.rest)"
    " FROM json_to_recordset(%s::json) AS g (receipt int8, ref int8, fence int8, head json,"
    " deliveries json, rest json)"
)
#: Sets the source of forks, after `land_1` has set and checked their origin. Repeating it is
#: harmless.
LINK: Final = (
    "UPDATE everhold.session s SET origin = o.ref FROM unnest(%s::int8[], %s::text[]) AS g (ref,"
    " source)"
    " JOIN everhold.session o ON o.id = g.source WHERE s.ref = g.ref"
)
#: Whether a step was committed although its acknowledgement was lost.
LANDED: Final = (
    "SELECT 1 FROM everhold.journal WHERE session = %s AND n = %s AND at = %s AND seal = %s"
)

_text = msgspec.json.Encoder().encode
_LIGHT: Final = (
    *("revision", "head_n", "open_from", "updated_at", "metrics", "head_seal", "ref", "fence"),
    *("n", "at", "answers", "asked", "notes", "seal"),
)
_FULL: Final = ("receipt", "ref", "fence", "head", "deliveries", "rest")


class PendingChange:
    """One change on its way to the server."""

    __slots__ = (
        "births",
        "change_id",
        "done",
        "durable",
        "fence",
        "full",
        "is_light",
        "links",
        "news",
        "posts",
        "since",
        "soon",
        "step",
        "tried",
    )

    def __init__(
        self,
        change: Change,
        fence: int,
        births: list[tuple[Birth, Head]],
        receipt: int,
        sources: Sequence[SessionId | None],
    ) -> None:
        self.change_id = change.id
        self.births = births
        #: Forks, by number, whose source is another session than their origin.
        self.links = [
            (tip.ref, source)
            for (birth, tip), source in zip(births, sources, strict=True)
            if source is not None and source != birth.origin
        ]
        self.fence = fence
        self.durable = change.durable
        #: Whether other processes may wait for it; false if only this process continues the
        #: session.
        self.soon = change.head.state is not SessionState.RUNNING or bool(
            births or change.letters or change.notices
        )
        told = [letter.to for letter in change.letters if letter.to is not None]
        #: What other processes must know of it: a delivery, or a question that a worker may take.
        self.news = RemoteChange(
            (change.id, *told, *(birth.id for birth, _ in births)),
            bool(births or change.letters or change.head.parked),
        )
        self.tried = False  # sent before, on a connection that broke
        self.since = 0.0
        self.done: asyncio.Future[None] | None = None
        self.is_light = False
        self.step: dict[str, Any] | None = None  # true for most changes; the others are `full`
        self.full: tuple[Any, ...] = ()
        self.posts: dict[str, list[dict[str, Any]]] = {}  # letters to other sessions, by id
        if len(change.deliveries) == 1 and not births and (change.light or _is_step(change)):
            self.is_light, self.step = change.light, _step_row(change, fence)
        else:
            self.full = (receipt, change.head.ref, fence, *self._texts(change))

    @property
    def light(self) -> tuple[Any, ...]:
        """The parameters of `LIGHT`."""
        assert self.step is not None
        return tuple([self.step[name] for name in _LIGHT])

    @property
    def landed(self) -> tuple[Any, ...]:
        """The parameters of `LANDED`."""
        assert self.step is not None
        return tuple([self.step[name] for name in ("ref", "n", "at", "seal")])

    def _texts(self, change: Change) -> tuple[str, str | None, str | None]:
        ref = change.head.ref
        given = [_named_delivery(ref, one) for one in change.deliveries]
        rest = None if change.light else self._rest(change)
        return (
            _json(make_head_row(change.head)),
            _json(given) if given else None,
            _json(rest) if rest else None,
        )

    def _rest(self, change: Change) -> dict[str, Any]:
        head = change.head
        ref = change.head.ref
        heads = {birth.id: copy.copy(tip) for birth, tip in self.births}
        sources = dict(self.links)
        letters = list(self._letters(change, ref, heads))
        parts: dict[str, Any] = {
            "births": [
                _birth_row(i, birth, tip.ref, sources.get(tip.ref, birth.origin))
                for i, (birth, tip) in enumerate(self.births)
            ],
            "heads": [make_head_row(tip) for tip in heads.values()],
            "ended": head.ended or None,
            "closed": list(change.closed),
            "notices": [] if head.ended else [_notice_row(ref, one) for one in change.notices],
            "effects": [] if head.ended else [_effect_row(ref, one) for one in change.effects],
            "read": list(change.read),
            "letters": letters,
            "writes": _writes(change),
        }
        return {name: part for name, part in parts.items() if part}

    def _letters(
        self, change: Change, ref: int, heads: dict[Any, Head]
    ) -> Iterator[dict[str, Any]]:
        """The letters whose reader is known; the others stay in `posts`."""
        for i, letter in enumerate(change.letters):
            body = dumps(letter.body)
            at = float(letter.at)
            row = {
                "i": i,
                "kind": escape_nul(letter.kind),
                "body": body,
                "at": at,
                "seal": checksum_row(letter.kind, body, at),
            }
            if letter.to is None or letter.to == change.id:
                yield {**row, "session": ref}
            elif letter.to in heads:
                receive_letter(heads[letter.to])
                yield {**row, "session": heads[letter.to].ref}
            else:
                self.posts.setdefault(escape_nul(letter.to), []).append(row)

    def addressed(self, heads: dict[str, Head]) -> tuple[Any, ...]:
        """The parameters of `LAND`, with the letters to others, whose `heads` are locked."""
        if not self.posts:
            return self.full
        rest = {} if self.full[5] is None else msgspec.json.decode(self.full[5])
        letters = rest.setdefault("letters", [])
        others = rest.setdefault("others", [])
        for id, posts in self.posts.items():
            head = heads.get(id)
            if head is None or head.ended:
                continue  # they have no reader
            for post in posts:
                receive_letter(head)
                letters.append({**post, "session": head.ref})
            others.append(make_head_row(head))
        return (*self.full[:5], _json({name: part for name, part in rest.items() if part}))

    def refusal(self, said: list[str]) -> EverholdError:
        """The error for a refusal of `land_1`."""
        why = said[0]
        which = int(said[1])
        if why == "overtaken" and (self.fence or which):
            return Overtaken(self.births[which][0].id if which else self.change_id, self.fence)
        birth = self.births[which][0]
        if why == "taken":
            return KeyConflict(birth.key or "", unescape_nul(said[2]))
        return UnknownSession(birth.origin or "") if why == "unknown" else Overtaken(birth.id, 0)

    @property
    def ref(self) -> int:
        """The number of the session."""
        ref: int = self.full[1] if self.step is None else self.step["ref"]
        return ref

    def answer(self, refused: BaseException | None) -> None:
        """Resolves the future of the change, if its caller still waits."""
        if self.done is not None and not self.done.done():
            if refused is None:
                self.done.set_result(None)
            else:
                self.done.set_exception(refused)


def merge_news(news: Sequence[RemoteChange]) -> RemoteChange:
    """Combines what other processes must know of several changes."""
    return RemoteChange(
        tuple({each for one in news for each in one.sessions}), any(one.moves for one in news)
    )


def encode_steps(batch: list[PendingChange]) -> str:
    """The parameter of `STEPS`."""
    return _json([one.step for one in batch])


def encode_full_changes(batch: list[PendingChange]) -> str:
    """The parameter of `LAND_MANY`; JSON text is passed as it is."""
    rows = []
    for one in batch:
        row = dict(zip(_FULL, one.full, strict=True))
        for name in _FULL[3:]:
            row[name] = None if row[name] is None else msgspec.Raw(row[name].encode())
        rows.append(row)
    return _json(rows)


def build_link_statement(batch: list[PendingChange]) -> list[tuple[str, tuple[Any, ...]]]:
    """`LINK` and its parameters, to run after these changes; nothing if no fork needs it."""
    found = [link for one in batch for link in one.links]
    return (
        [(LINK, ([ref for ref, _ in found], [escape_nul(source) for _, source in found]))]
        if found
        else []
    )


def collect_births(change: Change) -> list[tuple[Birth, Head]]:
    """The sessions that a change creates; raises if two of them conflict."""
    births = [*([(change.birth, change.head)] if change.birth is not None else []), *change.births]
    ids: set[str] = set()
    keys: dict[str, str] = {}
    for birth, _ in births:
        if birth.id in ids:
            raise Overtaken(birth.id, 0)
        ids.add(birth.id)
        if birth.key is not None and keys.setdefault(birth.key, birth.id) != birth.id:
            raise KeyConflict(birth.key, keys[birth.key])
    return births


def receive_letter(head: Head) -> None:
    """Applies a letter from another session to a head."""
    head.mail += 1
    head.revision += 1
    head.state = apply_event(head.state, SessionEvent.ANSWERED)


# ---- rows


def _json(value: Any) -> str:
    return _text(value).decode()


def _is_step(change: Change) -> bool:
    """Whether a change only contains the head, a delivery and effect marks, and no mark that it
    both deletes and writes.
    """
    rest = change.intake or change.notices or change.read or change.letters or change.writes
    return not rest and not any(effect.q in change.closed for effect in change.effects)


def _step_row(change: Change, fence: int) -> dict[str, Any]:
    row = make_head_row(change.head)
    row["head_n"] = row["n"]
    row["head_seal"] = row["seal"]
    row["fence"] = fence
    row["n"], row["at"], row["answers"], row["asked"], row["notes"], row["seal"] = _delivery(
        change.deliveries[0]
    )
    if not change.light:
        if change.head.ended:
            row["ended"] = True
        else:
            row["closed"] = change.closed
            row["effects"] = [_effect_row(change.head.ref, one) for one in change.effects]
    return row


def _delivery(delivery: Delivery) -> tuple[Any, ...]:
    answers, asked, notes = encode_delivery(delivery)
    n = delivery.n
    at = float(delivery.at)
    sealed = delivery_seal(n, at, answers, asked, notes)
    return (
        n,
        at,
        answers.decode(),
        asked.decode(),
        None if notes is None else notes.decode(),
        sealed,
    )


def _named_delivery(ref: int, delivery: Delivery) -> dict[str, Any]:
    names = ("n", "at", "answers", "asked", "notes", "seal")
    return {"session": ref, **dict(zip(names, _delivery(delivery), strict=True))}


def make_head_row(head: Head) -> dict[str, Any]:
    """A head, column by column."""
    metrics = _text(head.metrics)
    return {
        "ref": head.ref,
        "revision": head.revision,
        "state": head.state.value,
        "n": head.n,
        "open_from": head.open_from,
        "due_at": head.due_at,
        "updated_at": head.updated_at,
        "metrics": metrics.decode(),
        "mail": head.mail,
        "attempts": head.attempts,
        "parked": int(head.parked),
        "asking": int(head.asking),
        "seal": checksum_head(head, metrics),
    }


def _birth_row(i: int, birth: Birth, ref: int, source: SessionId | None) -> dict[str, Any]:
    text = encode_birth(birth, source)
    return {
        "i": i,
        "ref": ref,
        "id": escape_nul(birth.id),
        "key": None if birth.key is None else escape_nul(birth.key),
        "program": escape_nul(birth.program),
        "created_at": birth.created_at,
        "parent": None if birth.parent is None else escape_nul(birth.parent),
        "origin": None if birth.origin is None else escape_nul(birth.origin),
        "origin_n": birth.origin_n,
        "labels": make_label_row(birth.labels),
        "birth": text,
        "seal": checksum_row(text),
    }


def make_label_row(labels: dict[str, str]) -> dict[str, str]:
    """Labels in the form that searches use."""
    return {escape_nul(name): escape_nul(value) for name, value in labels.items()}


def _notice_row(ref: int, notice: Any) -> dict[str, Any]:
    row = (ref, notice.q, notice.kind.value, notice.to, float(notice.asked_at), dumps(notice.query))
    names = ("session", "q", "kind", "addressee", "asked_at", "query")
    to = None if notice.to is None else escape_nul(notice.to)
    return {**dict(zip(names, row, strict=True)), "addressee": to, "seal": checksum_row(*row)}


def _effect_row(ref: int, effect: Any) -> dict[str, Any]:
    failed = encode_failed_attempt(effect.failed)
    return {
        "session": ref,
        "q": effect.q,
        "worker": escape_nul(effect.worker),
        "since": float(effect.since),
        "failed": failed,
        "seal": checksum_mark(ref, effect.q, effect.worker, float(effect.since), failed),
    }


def _writes(change: Change) -> list[dict[str, Any]]:
    """The values after a change, each with the version it was computed from."""
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for write in change.writes:
        before = rows.get((write.namespace, write.key))
        if before is not None and before["version"] != write.version:
            raise Overtaken(change.id, change.head.revision - 1)
        value = None if write.value is None else dumps(write.value)
        version = write.version + 1
        rows[write.namespace, write.key] = {
            "namespace": escape_nul(write.namespace),
            "key": escape_nul(write.key),
            "value": value,
            "version": version,
            "seal": checksum_row(write.namespace, write.key, value, version),
            "fence": write.version if before is None else before["fence"],
        }
    return list(rows.values())
