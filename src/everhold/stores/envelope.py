"""The session envelope of fluers, version 1: one session as one JSON object, read and written as
fluers 0.5 does.

It exists for programs that come from fluers. Sessions of everhold are committed step by step and
need no saving; they only use envelopes for import and export (`runtime.envelopes`).

Rules
  1. The version is checked before the shape, so that a newer envelope is reported as newer, not as
     broken.
  2. The id is not inside: it is the name under which an adapter stores the envelope.
  3. Unknown keys are ignored. `system_message` is also written when it is null.
  4. Each kind of error of fluers has an error here.

UsageError
├── SessionNotFound      the store in memory has no such session
├── InvalidSessionId     not a UUID, so not a file name either
├── BadEnvelopes         some of the envelopes to import are invalid, and which
└── SerializeFailed      the session holds a value that JSON cannot represent
StoreError
├── DeserializeFailed    the stored value is not an envelope
├── UnsupportedVersion   the envelope has another version
└── FileFailed           a file operation failed, or a file holds no JSON
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import tempfile
import threading
from pathlib import Path
from typing import Annotated, Final, Protocol
from uuid import UUID, uuid4

import msgspec

from everhold.core import codec, message
from everhold.core.codec import JSON
from everhold.core.message import Message
from everhold.errors import BadValue, StoreError, UsageError
from everhold.portability import sync_folder

__all__ = [
    "SCHEMA_VERSION",
    "BadEnvelopes",
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
    "encode_file",
    "load_file",
    "pack",
    "parse_session_id",
    "read_envelope",
    "replace_file",
    "unpack",
]

# ---- errors


class SessionNotFound(UsageError):
    """The store in memory has no such session."""

    code = "envelope_session_not_found"
    hint = "Create it with `create`, or load it with `load` and add it with `adopt`."

    def __init__(self, session_id: object) -> None:
        super().__init__(f"there is no session {session_id}")
        self.session_id = str(session_id)


class InvalidSessionId(UsageError):
    """An id is not a UUID."""

    code = "envelope_invalid_id"
    hint = "Session ids are UUIDs, such as 6f1c1f0e-8a53-4f0b-9a3e-5a7d0c1b2e3f."

    def __init__(self, raw: str, cause: str) -> None:
        super().__init__(f"{raw!r} is not the id of a session: {cause}")
        self.raw = raw
        self.cause = cause


class SerializeFailed(UsageError):
    """A session holds a value that JSON or fluers cannot represent; nothing was written."""

    code = "envelope_serialize_failed"
    hint = "Nothing was written. Change the value at the named path."

    def __init__(self, session_id: object, cause: str) -> None:
        super().__init__(f"session {session_id} cannot be written as an envelope: {cause}")
        self.session_id = str(session_id)
        self.cause = cause


class DeserializeFailed(StoreError):
    """The stored value is not an envelope."""

    code = "envelope_deserialize_failed"
    hint = "Restore the envelope from a backup."

    def __init__(self, session_id: object, cause: str) -> None:
        super().__init__(f"the envelope of session {session_id} cannot be read: {cause}")
        self.session_id = str(session_id)
        self.cause = cause


class UnsupportedVersion(StoreError):
    """The envelope has another version."""

    code = "envelope_unsupported_version"
    hint = "Another program wrote this envelope. Read it with that program, or upgrade everhold."

    def __init__(self, found: int, session_id: object, expected: int) -> None:
        super().__init__(
            f"the envelope of session {session_id} has version {found}; only {expected} is read"
        )
        self.found, self.session_id, self.expected = found, str(session_id), expected


class FileFailed(StoreError):
    """A file operation failed, or a file holds no JSON."""

    code = "envelope_file_failed"
    hint = "The previous file is unchanged."

    def __init__(self, action: str, path: object, cause: str) -> None:
        super().__init__(f"cannot {action} {path}: {cause}")
        self.action, self.path, self.cause = action, str(path), cause


class BadEnvelopes(UsageError):
    """Some of the envelopes of an import cannot be imported; nothing was imported."""

    code = "envelope_bad_source"
    hint = "Nothing was imported. Repair or remove them, or skip them: invalid='skip'."

    def __init__(self, which: str, reason: str) -> None:
        super().__init__(f"{which} cannot be imported: {reason}")
        self.which = which
        self.reason = reason


# ---- the JSON object, and the session in it

#: The version of envelopes that is read and written.
SCHEMA_VERSION: Final = 1

# fluers' integer types. A bound of msgspec.Meta ends at 2**63 - 1, so these are checked by hand.
_U32: Final = 2**32
_U64: Final = 2**64
_HYPHENATED: Final = "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}"
#: The forms that Rust's `Uuid::parse_str` takes: simple, hyphenated, braced and urn.
_UUID: Final = re.compile(
    rf"[0-9a-fA-F]{{32}}|{_HYPHENATED}|\{{{_HYPHENATED}\}}|urn:uuid:{_HYPHENATED}"
)


class Envelope(msgspec.Struct, frozen=True, kw_only=True):
    """A session as fluers stores it: one JSON object."""

    schema_version: int = SCHEMA_VERSION
    model: str
    max_turns: Annotated[int, msgspec.Meta(ge=0)]
    system_message: str | None = None
    messages: tuple[Message, ...]
    metadata: dict[str, str]


class EnvelopeSession(msgspec.Struct, frozen=True, kw_only=True):
    """An envelope with its id and without its version. Immutable: use `msgspec.structs.replace`."""

    id: UUID = msgspec.field(default_factory=uuid4)
    model: str = ""
    max_turns: int = 0
    system_message: str | None = None
    messages: tuple[Message, ...] = ()
    metadata: dict[str, str] = {}
    #: What a session of everhold has and an envelope cannot carry, in words. Never stored.
    left_out: tuple[str, ...] = ()


def parse_session_id(raw: object) -> UUID:
    """The id in any form that fluers reads; raises `InvalidSessionId`.

    The forms are simple (32 digits), hyphenated, braced (`{…}`) and urn (`urn:uuid:…`), in upper or
    lower case. `str()` of the result is the one form that is written.
    """
    text = str(raw)
    if not _UUID.fullmatch(text):
        raise InvalidSessionId(text, "it is not a UUID")
    return UUID(text)


def pack(session: EnvelopeSession) -> JSON:
    """Encodes a session as an envelope that can be read back; raises `SerializeFailed`."""
    try:
        data = {
            "schema_version": SCHEMA_VERSION,
            "model": codec.to_plain(session.model, "model"),
            "max_turns": session.max_turns,
            "system_message": codec.to_plain(session.system_message, "system_message"),
            "messages": [
                message.encode_message(one, f"messages[{index}]")
                for index, one in enumerate(session.messages)
            ],
            "metadata": codec.to_plain(session.metadata, "metadata"),
        }
        read_envelope(data, session.id)
    except BadValue as error:
        raise SerializeFailed(session.id, f"{error.path}: {error.reason}") from None
    except DeserializeFailed as error:
        raise SerializeFailed(session.id, error.cause) from None
    return data


def unpack(data: JSON, of: UUID) -> EnvelopeSession:
    """Decodes the session in an envelope; raises `UnsupportedVersion` or `DeserializeFailed`."""
    envelope = read_envelope(data, of)
    return EnvelopeSession(
        id=of,
        model=envelope.model,
        max_turns=envelope.max_turns,
        system_message=envelope.system_message,
        messages=envelope.messages,
        metadata=envelope.metadata,
    )


def read_envelope(data: JSON, of: object) -> Envelope:
    """Decodes the envelope in a JSON object; `of` names it in errors."""
    if not isinstance(data, dict):
        raise DeserializeFailed(of, "an envelope is an object")
    version = data.get("schema_version")
    if type(version) is not int or not 0 <= version < _U32:
        raise DeserializeFailed(of, "missing or malformed field `schema_version`")
    if version != SCHEMA_VERSION:
        raise UnsupportedVersion(version, of, SCHEMA_VERSION)
    try:
        envelope = msgspec.convert(data, Envelope)
    except msgspec.ValidationError as error:
        raise DeserializeFailed(of, str(error)) from None
    if envelope.max_turns >= _U64:
        raise DeserializeFailed(of, "Expected `int` < 2**64 - at `$.max_turns`")
    return envelope


# ---- adapters


class EnvelopeAdapter(Protocol):
    """Stores one JSON value per id. Saving again replaces it; there is no history and no
    merging.

    An id is a UUID in any spelling (`parse_session_id`); another text raises `InvalidSessionId`.
    `EnvelopeAdapterContract` in `everhold.testing.conformance` tests an adapter.
    """

    async def save_session(self, session_id: str, data: JSON) -> None:
        """Stores `data`. After a crash it MUST be there completely or not at all."""
        ...

    async def load_session(self, session_id: str) -> JSON | None:
        """Returns the stored value, or None."""
        ...

    async def list_sessions(self) -> list[str]:
        """Returns all stored ids, in any order."""
        ...

    async def delete_session(self, session_id: str) -> bool:
        """Deletes the value; returns whether it existed."""
        ...


class MemoryAdapter:
    """An adapter in memory, for tests and for programs that store nothing."""

    def __init__(self) -> None:
        self._texts: dict[str, str] = {}  # text, so that callers cannot change the stored value

    async def save_session(self, session_id: str, data: JSON) -> None:
        named = str(parse_session_id(session_id))
        self._texts[named] = encode_file(session_id, data).decode()

    async def load_session(self, session_id: str) -> JSON | None:
        text = self._texts.get(str(parse_session_id(session_id)))
        return None if text is None else codec.loads(text)

    async def list_sessions(self) -> list[str]:
        return sorted(self._texts)

    async def delete_session(self, session_id: str) -> bool:
        return self._texts.pop(str(parse_session_id(session_id)), None) is not None


class JsonFiles:
    """One pretty-printed `<uuid>.json` per session, in one directory, for any number of processes.

    The last save of a session wins. Rules:
      1. Only a UUID becomes a file name. No other text is used in a path. A file whose name spells
         the UUID in another way is found too, and is replaced in place.
      2. A file is written under a temporary name, synced, then renamed over the old one; then the
         directory is synced. A reader sees the old session or the new one, also after a power cut.
      3. A crash leaves only files that do not end in `.json`, so they are never listed.
      4. Directories that it creates are 0700, files 0600.
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self.directory = Path(directory)

    async def save_session(self, session_id: str, data: JSON) -> None:
        named = parse_session_id(session_id)
        text = encode_file(session_id, data)
        await asyncio.to_thread(lambda: replace_file(self._path(named), text))

    async def load_session(self, session_id: str) -> JSON | None:
        named = parse_session_id(session_id)
        return await asyncio.to_thread(lambda: load_file(self._path(named)))

    async def list_sessions(self) -> list[str]:
        return await asyncio.to_thread(_names, self.directory)

    async def delete_session(self, session_id: str) -> bool:
        named = parse_session_id(session_id)
        return await asyncio.to_thread(lambda: _delete(self._path(named)))

    def _path(self, named: UUID) -> Path:
        path = self.directory / f"{named}.json"
        if not path.exists() and self.directory.is_dir():
            for name in _names(self.directory):
                if _UUID.fullmatch(name) and UUID(name) == named:
                    return self.directory / f"{name}.json"
        return path


def encode_file(session_id: str, data: JSON) -> bytes:
    """The text of a session file; raises `SerializeFailed`."""
    try:
        text = json.dumps(data, allow_nan=False, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise SerializeFailed(session_id, str(error)) from None
    return msgspec.json.format(text, indent=2)


def replace_file(path: Path, text: bytes) -> None:
    """Write a session file whole, or leave the old one; raises `FileFailed`."""
    try:
        _make(path.parent)
    except OSError as error:
        raise FileFailed("create session directory", path.parent, str(error)) from None
    try:
        handle, temporary = tempfile.mkstemp(
            prefix=f".{path.name}.", suffix=".tmp", dir=path.parent
        )
    except OSError as error:
        raise FileFailed("write session temp file in", path.parent, str(error)) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        Path(temporary).unlink(missing_ok=True)
        raise FileFailed("replace session file", path, str(error)) from None


def load_file(path: Path) -> JSON | None:
    """The value in a session file, or None if there is no file; raises `FileFailed`."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise FileFailed("read session file", path, str(error)) from None
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FileFailed("parse session file", path, str(error)) from None


def _names(directory: Path) -> list[str]:
    try:
        with os.scandir(directory) as entries:
            found = [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise FileFailed("read session directory", directory, str(error)) from None
    return sorted(
        name.removesuffix(".json") for name in found if name.endswith(".json") and _is_text(name)
    )


def _is_text(name: str) -> bool:
    return name.encode(errors="ignore").decode() == name


def _delete(path: Path) -> bool:
    try:
        path.unlink()
        sync_folder(path.parent)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise FileFailed("delete session file", path, str(error)) from None
    return True


def _make(directory: Path) -> None:
    if not directory.is_dir():
        _make(directory.parent)
        directory.mkdir(0o700, exist_ok=True)
        sync_folder(directory.parent)


# ---- sessions in memory


class SessionStore:
    """Sessions in memory, by id. Safe to use from several threads."""

    def __init__(self) -> None:
        self._sessions: dict[UUID, EnvelopeSession] = {}
        self._lock = threading.Lock()

    def create(self) -> UUID:
        """Add an empty session; returns its id."""
        return self.create_with_config("", 0)

    def create_with_config(
        self, model: str, max_turns: int, system_message: str | None = None
    ) -> UUID:
        """Add an empty session with these settings; returns its id."""
        return self.adopt(
            EnvelopeSession(model=model, max_turns=max_turns, system_message=system_message)
        )

    def adopt(self, session: EnvelopeSession) -> UUID:
        """Adds a session that was loaded or changed; it replaces one with the same id."""
        with self._lock:
            self._sessions[session.id] = session
        return session.id

    def append(self, id: UUID, message: Message) -> None:
        """Add a message to a session."""
        with self._lock:
            session = self._session(id)
            said = (*session.messages, message)
            self._sessions[session.id] = msgspec.structs.replace(session, messages=said)

    def session(self, id: UUID) -> EnvelopeSession:
        """A session; raises `SessionNotFound`."""
        with self._lock:
            return self._session(id)

    def messages(self, id: UUID) -> list[Message]:
        """The messages of a session; raises `SessionNotFound`."""
        return list(self.session(id).messages)

    async def save(self, adapter: EnvelopeAdapter, id: UUID) -> None:
        """Saves the current session with the adapter."""
        data = pack(self.session(id))
        await adapter.save_session(str(id), data)

    @staticmethod
    async def load(adapter: EnvelopeAdapter, id: UUID | str) -> EnvelopeSession | None:
        """Loads a session, or None. It is not added to the store: see `adopt`."""
        name = parse_session_id(id)
        data = await adapter.load_session(str(name))
        return None if data is None else unpack(data, name)

    @staticmethod
    async def list(adapter: EnvelopeAdapter) -> list[UUID]:
        """The ids of everything in the adapter; raises `InvalidSessionId` if one is not a UUID."""
        return [parse_session_id(raw) for raw in await adapter.list_sessions()]

    async def delete(self, adapter: EnvelopeAdapter, id: UUID | str) -> bool:
        """Deletes the session here and in the adapter; returns whether either had it."""
        name = parse_session_id(id)
        kept = await adapter.delete_session(str(name))
        with self._lock:
            return self._sessions.pop(name, None) is not None or kept

    def _session(self, id: UUID) -> EnvelopeSession:
        try:
            return self._sessions[id]
        except KeyError:
            raise SessionNotFound(id) from None
