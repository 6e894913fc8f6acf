"""The session envelope of fluers, version 1: read, written, and kept in files as fluers keeps it.

format    the JSON object and the session in it
store     sessions in memory, with save, load, list and delete
adapter   the seam: where envelopes are kept
files     one JSON file a session
errors    what can go wrong, in fluers' own sentences
"""

from everhold.stores.envelope.adapter import EnvelopeAdapter, MemoryAdapter
from everhold.stores.envelope.errors import (
    DeserializeFailed,
    FileFailed,
    InvalidSessionId,
    SerializeFailed,
    SessionNotFound,
    UnsupportedVersion,
)
from everhold.stores.envelope.files import JsonFiles
from everhold.stores.envelope.format import (
    SCHEMA_VERSION,
    Envelope,
    EnvelopeSession,
    pack,
    read_envelope,
    unpack,
)
from everhold.stores.envelope.store import SessionStore

__all__ = [
    "SCHEMA_VERSION",
    "DeserializeFailed",
    "Envelope",
    "EnvelopeAdapter",
    "EnvelopeSession",
    "FileFailed",
    "InvalidSessionId",
    "JsonFiles",
    "MemoryAdapter",
    "SerializeFailed",
    "SessionNotFound",
    "SessionStore",
    "UnsupportedVersion",
    "pack",
    "read_envelope",
    "unpack",
]
