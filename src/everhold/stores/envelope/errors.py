"""Errors of envelopes, with the messages of fluers, in our error tree.

UsageError
├── SessionNotFound      the store in memory has no such session
├── InvalidSessionId     not a UUID, so not a file name either
└── SerializeFailed      the session holds a value that JSON cannot represent
StoreError
├── DeserializeFailed    the stored value is not an envelope
├── UnsupportedVersion   the envelope has another version
└── FileFailed           a file operation failed, or a file holds no JSON
"""

from __future__ import annotations

from everhold.errors import StoreError, UsageError


class SessionNotFound(UsageError):
    """The store in memory has no such session."""

    code = "envelope_session_not_found"
    hint = "Create it, or load it from an adapter and adopt it."

    def __init__(self, session_id: object) -> None:
        super().__init__(f"session not found: {session_id}")
        self.session_id = str(session_id)


class InvalidSessionId(UsageError):
    """An id is not a UUID in lower case with hyphens."""

    code = "envelope_invalid_id"
    hint = "Session ids are UUIDs, such as 6f1c1f0e-8a53-4f0b-9a3e-5a7d0c1b2e3f."

    def __init__(self, raw: str, cause: str) -> None:
        super().__init__(f"invalid persisted session id `{raw}`: {cause}")
        self.raw = raw
        self.cause = cause


class SerializeFailed(UsageError):
    """A session holds a value that JSON or fluers cannot represent; nothing was written."""

    code = "envelope_serialize_failed"
    hint = "Nothing was written; the place that is named needs another value."

    def __init__(self, session_id: object, cause: str) -> None:
        super().__init__(f"failed to serialize session `{session_id}`: {cause}")
        self.session_id = str(session_id)
        self.cause = cause


class DeserializeFailed(StoreError):
    """The stored value is not an envelope."""

    code = "envelope_deserialize_failed"
    hint = "What was kept under this id is not an envelope; restore it from a copy."

    def __init__(self, session_id: object, cause: str) -> None:
        super().__init__(f"failed to deserialize session `{session_id}`: {cause}")
        self.session_id = str(session_id)
        self.cause = cause


class UnsupportedVersion(StoreError):
    """The envelope has another version."""

    code = "envelope_unsupported_version"
    hint = "Another program wrote this envelope; read it with that one, or upgrade everhold."

    def __init__(self, found: int, session_id: object, expected: int) -> None:
        super().__init__(
            f"unsupported session schema version {found} for `{session_id}` (expected {expected})"
        )
        self.found, self.session_id, self.expected = found, str(session_id), expected


class FileFailed(StoreError):
    """A file operation failed, or a file holds no JSON."""

    code = "envelope_file_failed"
    hint = "The file as it was before is still in place."

    def __init__(self, action: str, path: object, cause: str) -> None:
        super().__init__(f"failed to {action} `{path}`: {cause}")
        self.action, self.path, self.cause = action, str(path), cause
