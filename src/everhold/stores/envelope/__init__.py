"""The session envelope of fluers, version 1, read and written as fluers does.

format    the JSON object and the session in it
store     sessions in memory, with save, load, list and delete
adapter   the port: where envelopes are stored
files     one JSON file per session
errors    the errors, with fluers' own messages
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
