"""Stores: the built-in ones, the port that a store implements, and fluers' session envelopes.

    MemoryStore, SQLiteStore, PostgresStore     what `everhold.open(database)` opens
    Store, Change, SessionRecord, …             the port, for a store of your own; its tests are in
                                                `everhold.testing.conformance`
    JsonFiles, SessionStore, Envelope, …        fluers' session envelopes, read and written

Names are loaded on first use: `PostgresStore` and `PostgresEnvelopes` need the extra `postgres`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from everhold.lazy_exports import make_lazy_exports

if TYPE_CHECKING:
    from everhold.ports.attachment import Attachment as Attachment
    from everhold.ports.store import Change as Change
    from everhold.ports.store import Duty as Duty
    from everhold.ports.store import Effect as Effect
    from everhold.ports.store import Letter as Letter
    from everhold.ports.store import Maintenance as Maintenance
    from everhold.ports.store import Notice as Notice
    from everhold.ports.store import ProgressCallback as ProgressCallback
    from everhold.ports.store import QuestionFilter as QuestionFilter
    from everhold.ports.store import ReclaimResult as ReclaimResult
    from everhold.ports.store import RemoteChange as RemoteChange
    from everhold.ports.store import SessionFilter as SessionFilter
    from everhold.ports.store import SessionFingerprint as SessionFingerprint
    from everhold.ports.store import SessionRecord as SessionRecord
    from everhold.ports.store import SessionSummary as SessionSummary
    from everhold.ports.store import Store as Store
    from everhold.ports.store import StoreProblem as StoreProblem
    from everhold.ports.store import UnmovedSession as UnmovedSession
    from everhold.ports.store import ValueWrite as ValueWrite
    from everhold.ports.store import WorkerRecord as WorkerRecord
    from everhold.stores.envelope import SCHEMA_VERSION as SCHEMA_VERSION
    from everhold.stores.envelope import BadEnvelopes as BadEnvelopes
    from everhold.stores.envelope import DeserializeFailed as DeserializeFailed
    from everhold.stores.envelope import Envelope as Envelope
    from everhold.stores.envelope import EnvelopeAdapter as EnvelopeAdapter
    from everhold.stores.envelope import EnvelopeSession as EnvelopeSession
    from everhold.stores.envelope import FileFailed as FileFailed
    from everhold.stores.envelope import InvalidSessionId as InvalidSessionId
    from everhold.stores.envelope import JsonFiles as JsonFiles
    from everhold.stores.envelope import MemoryAdapter as MemoryAdapter
    from everhold.stores.envelope import SerializeFailed as SerializeFailed
    from everhold.stores.envelope import SessionNotFound as SessionNotFound
    from everhold.stores.envelope import SessionStore as SessionStore
    from everhold.stores.envelope import UnsupportedVersion as UnsupportedVersion
    from everhold.stores.envelope import pack as pack
    from everhold.stores.envelope import parse_session_id as parse_session_id
    from everhold.stores.envelope import read_envelope as read_envelope
    from everhold.stores.envelope import unpack as unpack
    from everhold.stores.envelope_postgres import PostgresEnvelopes as PostgresEnvelopes
    from everhold.stores.envelope_sqlite import SQLiteEnvelopes as SQLiteEnvelopes
    from everhold.stores.memory import MemoryStore as MemoryStore
    from everhold.stores.postgres import PostgresStore as PostgresStore
    from everhold.stores.sqlite import SQLiteStore as SQLiteStore

_HOMES = {
    "Attachment": "ports.attachment",
    "BadEnvelopes": "stores.envelope",
    "Change": "ports.store",
    "DeserializeFailed": "stores.envelope",
    "Duty": "ports.store",
    "Effect": "ports.store",
    "Envelope": "stores.envelope",
    "EnvelopeAdapter": "stores.envelope",
    "EnvelopeSession": "stores.envelope",
    "FileFailed": "stores.envelope",
    "InvalidSessionId": "stores.envelope",
    "JsonFiles": "stores.envelope",
    "Letter": "ports.store",
    "Maintenance": "ports.store",
    "MemoryAdapter": "stores.envelope",
    "MemoryStore": "stores.memory",
    "Notice": "ports.store",
    "PostgresEnvelopes": "stores.envelope_postgres",
    "PostgresStore": "stores.postgres",
    "ProgressCallback": "ports.store",
    "QuestionFilter": "ports.store",
    "ReclaimResult": "ports.store",
    "RemoteChange": "ports.store",
    "SCHEMA_VERSION": "stores.envelope",
    "SQLiteEnvelopes": "stores.envelope_sqlite",
    "SQLiteStore": "stores.sqlite",
    "SerializeFailed": "stores.envelope",
    "SessionFilter": "ports.store",
    "SessionFingerprint": "ports.store",
    "SessionNotFound": "stores.envelope",
    "SessionRecord": "ports.store",
    "SessionStore": "stores.envelope",
    "SessionSummary": "ports.store",
    "Store": "ports.store",
    "StoreProblem": "ports.store",
    "UnmovedSession": "ports.store",
    "UnsupportedVersion": "stores.envelope",
    "ValueWrite": "ports.store",
    "WorkerRecord": "ports.store",
    "pack": "stores.envelope",
    "parse_session_id": "stores.envelope",
    "read_envelope": "stores.envelope",
    "unpack": "stores.envelope",
}

__all__ = sorted(_HOMES)

if not TYPE_CHECKING:
    __getattr__, __dir__ = make_lazy_exports(__name__, _HOMES)
