"""The envelope: one session as one JSON object, as fluers 0.5 writes it.

Rules
  1. The version is checked before the shape, so that a newer envelope is reported as newer, not as
     broken.
  2. The id is not inside: it is the name under which an adapter stores the envelope.
  3. Unknown keys are ignored. `system_message` is also written when it is null.
"""

from __future__ import annotations

import re
from typing import Annotated, Final
from uuid import UUID, uuid4

import msgspec

from everhold.core import codec, message
from everhold.core.codec import JSON
from everhold.core.message import Message
from everhold.errors import BadValue
from everhold.stores.envelope.errors import (
    DeserializeFailed,
    InvalidSessionId,
    SerializeFailed,
    UnsupportedVersion,
)

SCHEMA_VERSION: Final = 1

_U32: Final = 2**32
_U64: Final = 2**64
_CANONICAL: Final = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")


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


def parse_session_id(raw: object) -> UUID:
    """The id in its one accepted form (lower case, with hyphens); raises `InvalidSessionId`."""
    text = str(raw)
    if not _CANONICAL.fullmatch(text):
        raise InvalidSessionId(text, "not a UUID in lower case with hyphens")
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
