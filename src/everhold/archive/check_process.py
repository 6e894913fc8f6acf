"""The process that checks sessions: reads a request and writes the result of each session.

`runtime.archive.check` starts it as `python -m everhold.archive.check_process`, with another hash
seed than its own. The request is one JSON object on standard input (`CheckRequest` in
`archive/archive.py`). The reply is JSON Lines on standard output: an object for the source, then
for each session an array of the amount done and the total, and an object. The output of programs
goes to standard error.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from everhold.archive.archive import CheckRequest
from everhold.archive.check import check_session
from everhold.archive.export_format import ExportReader, SessionExport
from everhold.archive.transfer import iterate_sessions, open_export
from everhold.core.journal import Delivery
from everhold.core.session import Head
from everhold.errors import EverholdError, UnknownSession
from everhold.packages.find import find_program
from everhold.packages.lua.folder import PackageFolders
from everhold.packages.program_hosts import ProgramHosts
from everhold.ports.program import set_signals_handled
from everhold.ports.store import Effect, SessionFilter, SessionRecord
from everhold.stores.sqlite import SQLiteStore


async def run_check(wanted: CheckRequest, write: Callable[[Any], None]) -> None:
    """Check the requested sessions: `write` gets a line for the source, then lines for each
    session.
    """
    root = Path(wanted.root) if wanted.root else None
    folders = PackageFolders.read(wanted.packages)
    host = ProgramHosts(
        lambda ref, version: find_program(
            ref, version, programs=wanted.programs, root=root, folders=folders
        )
    )
    if wanted.file:
        with open_export(wanted.file) as (source, name):
            reader = ExportReader(source, name)
            redacted = reader.header.redacted
            write({"redacted": redacted})
            size = Path(wanted.file).stat().st_size
            for record in _exported(reader, wanted):
                write([reader.bytes, size])
                write(check_session(record, host, redacted=redacted))
        return
    store = SQLiteStore(wanted.database)
    await store.open()
    try:
        write({"redacted": []})
        ids = (
            wanted.sessions if wanted.sessions is not None else await _find_matching(store, wanted)
        )
        for done, session_id in enumerate(ids):
            write([done, len(ids)])
            try:
                write(check_session(await store.load(session_id), host))
            except UnknownSession:
                if wanted.sessions is not None:
                    raise
    finally:
        await store.close()


async def _find_matching(store: SQLiteStore, wanted: CheckRequest) -> Sequence[str]:
    """The ids of the matching sessions. Some may be deleted before they are checked."""
    fits = SessionFilter(
        state=tuple(wanted.state), programs=tuple(wanted.program), labels=wanted.labels
    )
    return [row.birth.id async for row in iterate_sessions(store, fits)]


def _exported(reader: ExportReader, wanted: CheckRequest) -> Iterator[SessionRecord]:
    """The requested sessions of a file, each with all its deliveries."""
    known: dict[str, list[Delivery]] = {}
    left = None if wanted.sessions is None else set(wanted.sessions)
    for item in reader:
        if not isinstance(item, SessionExport):
            continue
        record = _record(item, known)
        if item.opening.forked:
            known[item.birth.id] = record.deliveries
        if left is None:
            if (
                (not wanted.state or item.head.state in wanted.state)
                and (
                    not wanted.program
                    or not {item.birth.program, item.birth.program.rpartition(":")[2]}.isdisjoint(
                        wanted.program
                    )
                )
                and wanted.labels.items() <= item.birth.labels.items()
            ):
                yield record
        elif named := {
            name
            for name in left
            if name == item.birth.key or (name != "" and item.birth.id.startswith(name))
        }:
            left -= named
            yield record
    for session_id in sorted(left or ()):
        raise UnknownSession(session_id, wanted.file)


def _record(item: SessionExport, known: dict[str, list[Delivery]]) -> SessionRecord:
    birth = item.birth
    line = item.head
    deliveries = item.deliveries
    if birth.origin is not None:
        if birth.origin not in known:
            raise UnknownSession(birth.origin, item.where)
        deliveries = [*known[birth.origin][: birth.origin_n + 1], *deliveries]
    head = Head(0, line.revision, line.state, line.n, 0, line.due_at, line.updated_at, line.metrics)
    effects = [Effect(effect.q, "", effect.since) for effect in item.effects]
    return SessionRecord(birth, head, deliveries, item.letters, effects)


def main() -> int:
    signal.signal(
        signal.SIGINT, signal.SIG_DFL
    )  # Ctrl-C ends this process; KeyboardInterrupt then comes from programs only
    set_signals_handled()
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=CheckRequest)
    with _redirect_stdout() as out:
        sys.path += [entry for entry in wanted.path if entry not in sys.path]
        logging.getLogger("everhold").addHandler(logging.NullHandler())
        try:
            asyncio.run(run_check(wanted, lambda line: _write(out, line)))
        except EverholdError as error:
            _write(
                out,
                {
                    "error": error.code,
                    "facts": {
                        k: v for k, v in vars(error).items() if isinstance(v, str | int | float)
                    },
                },
            )
            sys.stderr.write(f"{error}\n")
            return 1
    return 0


def _redirect_stdout() -> BinaryIO:
    """Duplicate standard output for the reply, and redirect it to standard error for programs."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    return out


def _write(out: BinaryIO, line: Any) -> None:
    out.write(msgspec.json.encode(line) + b"\n")
    out.flush()


if __name__ == "__main__":
    sys.exit(main())
