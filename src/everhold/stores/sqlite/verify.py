"""The checks of `verify` on a file: damage that SQLite reports, broken seals, gaps, dangling
references.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec

from everhold.core.codec import checksum_row, loads
from everhold.core.journal import (
    AskedQuery,
    Delivery,
    find_first_open_delivery,
    find_open_queries,
    is_asking,
)
from everhold.core.query import EFFECTS, Query
from everhold.core.session import Head
from everhold.errors import EverholdError
from everhold.ports.store import ProgressCallback, StoreProblem
from everhold.stores.row_codec import (
    UNREADABLE,
    StoredBirth,
    checksum_mark,
    read_delivery,
    read_head,
)
from everhold.stores.sqlite import intake_rows, lineage
from everhold.stores.sqlite.database import load_migrations
from everhold.stores.sqlite.write import HEAD_COLUMNS


class _Labels(msgspec.Struct):
    """The labels of a birth."""

    labels: dict[str, str] = {}


def find_problems(
    connection: sqlite3.Connection, progress: ProgressCallback | None = None
) -> list[StoreProblem]:
    """Yields every problem in the order found."""
    found = []
    for (line,) in connection.execute("PRAGMA integrity_check"):
        if line != "ok":
            found.append(StoreProblem("", "damaged_file", line))
    try:
        found.extend(_schema(connection))
        found.extend(_partial_indexes(connection))
        found.extend(_sessions(connection, progress))
        found.extend(_labels(connection))
        found.extend(_loose_rows(connection))
        found.extend(lineage.find_attachment_problems(connection))
        found.extend(intake_rows.find_intake_problems(connection.execute))
    except sqlite3.Error as error:
        found.append(StoreProblem("", "damaged_file", str(error)))
    return found


def warn_copied_alone(path: Path) -> StoreProblem:
    """The warning about a copy that was made without its write-ahead log."""
    detail = (
        f"{path.name} was copied without {path.name}-wal: what the original had only there may"
        " be missing."
        " Copy with `everhold db copy`, which also works while the database is in use"
    )
    return StoreProblem("", "copied_without_log", detail, warning=True)


def _schema(connection: sqlite3.Connection) -> Iterator[StoreProblem]:
    """Tables and views must be as everhold created them; additional ones are ignored."""
    known = dict(connection.execute("SELECT name, sql FROM sqlite_master").fetchall())
    with closing(sqlite3.connect(":memory:")) as fresh:
        for step in load_migrations():
            fresh.executescript(step)
        for name, sql in fresh.execute("SELECT name, sql FROM sqlite_master"):
            if known.get(name, "") != sql:
                yield StoreProblem(
                    "", "damaged_schema", f"{name} differs from what everhold created"
                )


def _partial_indexes(connection: sqlite3.Connection) -> Iterator[StoreProblem]:
    """A partial index must find the rows that a scan finds.

    `integrity_check` does not read the header of each index entry, so it misses some damage that
    a query meets.
    """
    partial = (
        "SELECT name, tbl_name, sql FROM sqlite_master WHERE type = 'index' AND sql LIKE"
        " '% WHERE %'"
    )
    for name, table, sql in connection.execute(partial).fetchall():
        columns = connection.execute(
            f"SELECT name FROM pragma_table_info('{table}') WHERE pk ORDER BY pk"
        )
        key = ", ".join(column for (column,) in columns) or "rowid"
        rows = f"SELECT {key} FROM {table} {{}} WHERE {sql.partition(' WHERE ')[2]} ORDER BY {key}"
        by_index = connection.execute(rows.format(f"INDEXED BY {name}")).fetchall()
        if by_index != connection.execute(rows.format("NOT INDEXED")).fetchall():
            yield StoreProblem("", "damaged_file", f"index {name} does not match its table")


def _sessions(
    connection: sqlite3.Connection, progress: ProgressCallback | None
) -> Iterator[StoreProblem]:
    rows = connection.execute(
        "SELECT ref, id, key, program, birth, seal, deleted, origin, origin_n, parent,"
        " created_at FROM session"
    ).fetchall()
    known = {row[0]: row for row in rows}
    for done, row in enumerate(rows, 1):
        yield from _row(connection, row, known)
        if progress is not None:
            progress(done, len(rows))


def _row(
    connection: sqlite3.Connection, row: tuple[Any, ...], known: dict[int, Any]
) -> Iterator[StoreProblem]:
    ref, session_id, key, program, birth, sealed, deleted, origin, origin_n, parent, created_at = (
        row
    )
    if checksum_row(birth) != sealed:
        yield StoreProblem(str(session_id), "broken_seal", "its birth")
        return
    try:
        born = msgspec.json.decode(birth, type=StoredBirth)
    except (msgspec.MsgspecError, UnicodeError) as error:
        yield StoreProblem(str(session_id), "unreadable", str(error))
        return
    said = (
        born.id,
        born.program,
        None if deleted else born.key,
        born.origin_n,
        born.parent,
        born.created_at,
    )
    if said != (session_id, program, key, origin_n, parent, created_at) or deleted not in (0, 1):
        yield StoreProblem(str(session_id), "mismatch", "its row contradicts its birth")
        return
    source = born.source or born.origin
    if origin in known and known[origin][1] != source:
        yield StoreProblem(
            session_id, "mismatch", f"it shares the steps of {source}, not of {known[origin][1]}"
        )
        return
    if (origin is None) != (source is None) or (origin is not None and origin not in known):
        yield StoreProblem(
            session_id, "dangling_origin", f"it shares the steps of {source}, which does not exist"
        )
        return
    if deleted and connection.execute("SELECT 1 FROM head_2 WHERE ref = ?", (ref,)).fetchone():
        yield StoreProblem(
            session_id, "mismatch", "the session is marked as deleted but has a head"
        )
    if deleted:
        return
    listed = connection.execute(
        "SELECT created_at FROM head_2 WHERE ref = ? UNION ALL"
        " SELECT created_at FROM notice WHERE session = ?",
        (ref, ref),
    )
    if any(at != created_at for (at,) in listed.fetchall()):
        yield StoreProblem(
            session_id, "mismatch", "its head or a notice has another time of creation"
        )
        return
    yield from _session(connection, ref, session_id, known, origin_n)


def _session(
    connection: sqlite3.Connection, ref: int, session_id: str, known: dict[int, Any], origin_n: int
) -> Iterator[StoreProblem]:
    row = connection.execute(
        f"SELECT {HEAD_COLUMNS} FROM head_2 h WHERE ref = ?", (ref,)
    ).fetchone()
    if row is None:
        yield StoreProblem(session_id, "no_head", "the session has no head")
        return
    try:
        head = read_head(row)
    except UNREADABLE as error:
        yield StoreProblem(session_id, "broken_seal", str(error))
        return
    deliveries: list[Delivery] = []
    for delivery in _chain(connection, ref, known):
        if isinstance(delivery, StoreProblem):
            yield delivery
            return
        deliveries.append(delivery)
    numbers = [delivery.n for delivery in deliveries]
    if numbers != list(range(head.n + 1)):
        missing = sorted(set(range(head.n + 1)) - set(numbers))
        yield StoreProblem(
            session_id, "gap", f"{len(numbers)} deliveries for step {head.n}; missing {missing[:5]}"
        )
        return
    yield from _open(connection, session_id, head, deliveries)


def _open(
    connection: sqlite3.Connection, session_id: str, head: Head, deliveries: list[Delivery]
) -> Iterator[StoreProblem]:
    opened = find_open_queries(deliveries)
    if not head.ended and find_first_open_delivery(opened, head.n) < head.open_from:
        yield StoreProblem(
            session_id,
            "open_from",
            f"open queries from {find_first_open_delivery(opened, head.n)} on, not"
            f" {head.open_from}",
        )
    last = deliveries[-1].notes.outcome if deliveries and deliveries[-1].notes is not None else None
    if head.ended != (last is not None):
        yield StoreProblem(
            session_id,
            "end",
            f"it is {head.state}, but its journal {'ends' if last else 'does not end'}",
        )
    yield from _marks(connection, session_id, head)
    working = {
        q for (q,) in connection.execute("SELECT q FROM effect WHERE session = ?", (head.ref,))
    }
    if not head.ended and not head.asking and _is_missing(connection, head.ref, opened, working):
        yield StoreProblem(session_id, "asking", "an open question is missing in the inbox")
    for table in ("notice", "effect"):
        for (q,) in connection.execute(f"SELECT q FROM {table} WHERE session = ?", (head.ref,)):
            if q not in opened:
                yield StoreProblem(session_id, f"dangling_{table}", f"q-{q} is not open")
    for q, text in connection.execute("SELECT q, query FROM notice WHERE session = ?", (head.ref,)):
        try:
            shown = msgspec.json.decode(text, type=Query)
            if q in opened and shown.kind not in EFFECTS and shown != opened[q].query:
                yield StoreProblem(
                    session_id, "mismatch", f"the notice of q-{q} differs from the question"
                )
        except (msgspec.MsgspecError, UnicodeError) as error:
            yield StoreProblem(session_id, "unreadable", f"the notice of q-{q}: {error}")
    count = connection.execute(
        "SELECT count(*) FROM letter WHERE session = ?", (head.ref,)
    ).fetchone()[0]
    if count != head.mail and not head.ended:
        yield StoreProblem(session_id, "mail", f"{count} letters, but its head counts {head.mail}")


def _is_missing(
    connection: sqlite3.Connection, ref: int, opened: dict[int, AskedQuery], working: set[int]
) -> bool:
    """Whether a question belongs in the inbox, and has neither a row there nor a mark."""
    rows = connection.execute("SELECT q FROM notice WHERE session = ?", (ref,))
    return is_asking(opened, working | {q for (q,) in rows})


def _marks(connection: sqlite3.Connection, session_id: str, head: Head) -> Iterator[StoreProblem]:
    for table, columns, checksum in (
        ("notice", "q, kind, addressee, asked_at, query", checksum_row),
        ("effect", "q, worker, since, failed", checksum_mark),
    ):
        rows = connection.execute(
            f"SELECT seal, session, {columns} FROM {table} WHERE session = ?", (head.ref,)
        )
        for sealed, *row in rows.fetchall():
            if checksum(*row) != sealed:
                yield StoreProblem(session_id, "broken_seal", f"the {table} of q-{row[1]}")


def _chain(
    connection: sqlite3.Connection, ref: int, known: dict[int, Any]
) -> Iterator[Delivery | StoreProblem]:
    """Every delivery of a session; those of its sources come first."""
    for source, last in lineage.list_fork_spans(connection.execute, ref, 0):
        rows = connection.execute(
            "SELECT n, at, answers, asked, notes, seal FROM journal WHERE session = ? AND n <= ?"
            " ORDER BY n",
            (source, last),
        )
        for row in rows.fetchall():
            try:
                yield read_delivery(source, row)
            except UNREADABLE as error:
                yield StoreProblem(known[source][1], "broken_seal", str(error))
                return


def _labels(connection: sqlite3.Connection) -> Iterator[StoreProblem]:
    """Labels that contradict the births of their sessions."""
    stored: dict[int, dict[str, str]] = {}
    for name, value, at, ref in connection.execute("SELECT * FROM label"):
        stored.setdefault(ref, {"": str(at)})[name] = value
    rows = connection.execute("SELECT ref, id, created_at, birth FROM session WHERE deleted = 0")
    for ref, session_id, at, birth in rows:
        labels = msgspec.json.decode(birth, type=_Labels).labels
        if stored.pop(ref, {}) != ({"": str(at), **labels} if labels else {}):
            yield StoreProblem(session_id, "mismatch", "its labels contradict its birth")
    for ref in stored:
        yield StoreProblem("", "dangling_label", f"labels of session number {ref}")


def _loose_rows(connection: sqlite3.Connection) -> Iterator[StoreProblem]:
    for table in ("journal", "notice", "effect", "letter"):
        rows = connection.execute(
            f"SELECT DISTINCT session FROM {table} WHERE session NOT IN (SELECT ref FROM session)"
        )
        for (ref,) in rows.fetchall():
            yield StoreProblem(
                "", f"dangling_{table}", f"rows of session number {ref}, which does not exist"
            )
    for (ref,) in connection.execute(
        "SELECT ref FROM head_2 WHERE ref NOT IN (SELECT ref FROM session)"
    ).fetchall():
        yield StoreProblem(
            "", "dangling_head", f"the head of session number {ref}, which does not exist"
        )
    for letter_id, kind, body, at, sealed in connection.execute(
        "SELECT id, kind, body, at, seal FROM letter"
    ):
        if checksum_row(kind, body, at) != sealed:
            yield StoreProblem("", "broken_seal", f"letter {letter_id}")
    for namespace, key, value, version, sealed in connection.execute("SELECT * FROM value"):
        if checksum_row(namespace, key, value, version) != sealed:
            yield StoreProblem("", "broken_seal", f"the value {namespace}/{key}")
        elif value is not None:
            try:
                loads(value)
            except EverholdError as error:
                yield StoreProblem("", "unreadable", f"the value {namespace}/{key}: {error}")
