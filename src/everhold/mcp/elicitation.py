"""MCP elicitation: questions for people are shown to the person at the client.

Rules
  1. A person is asked through elicitation, and only if the client has declared that it shows forms.
     The arguments of a tool call are never a person's answer.
  2. A person is asked once no question for a model is left. A question addressed to a named person
     is not shown to the person at the client.
  3. Only an accepted form is an answer. If the form is declined, dismissed, too late or unreadable,
     the question stays open.
  4. A reply that cannot be read ends its form at once. If the reply does not name its form, all
     forms of the connection end.
  5. Up to protocol 2025-11-25, the form is a request of the server while the call waits. Since
     2026-07-28 it is part of a round (`multi_round`) or of a task (`tasks`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from everhold.core.codec import JSON
from everhold.core.query import FOR_PEOPLE, KINDS
from everhold.core.status import OpenQuery, Status
from everhold.mcp import sdk
from everhold.mcp.protocol import MODERN_VERSIONS, ProtocolError, RequestContext
from everhold.mcp.render import list_model_questions, list_other_questions

log = logging.getLogger("everhold")

#: Seconds that a call waits for a person.
PATIENCE: Final = 300.0
#: The header that names a connection over HTTP. A pipe is one connection.
CONNECTION_HEADER: Final = "mcp-session-id"
#: The types that a property of a form may have.
_PRIMITIVE: Final = frozenset({"string", "boolean", "integer", "number"})


class ElicitationForm(NamedTuple):
    """The schema of a form, and how to read its content."""

    schema: dict[str, Any]
    read: Callable[[Mapping[str, Any]], JSON]


def has_elicitation(context: RequestContext) -> bool:
    """Whether the client has declared that it shows forms to a person."""
    capabilities = context.session.client_capabilities
    found = None if capabilities is None else capabilities.elicitation
    return found is not None and (found.form is not None or found.url is None)


def has_multi_round(context: RequestContext) -> bool:
    """Whether the client repeats a call with the answers to its questions."""
    return context.session.protocol_version in MODERN_VERSIONS


def describe_client(context: RequestContext) -> dict[str, JSON]:
    """The client, as stored with an answer: its front, its name and the time."""
    params = context.session.client_params
    info = None if params is None else params.client_info
    user = "an unnamed client" if info is None else f"{info.name} {info.version}".strip()
    return {"front": "mcp", "user": user, "at": round(time.time(), 3)}


def select_person_questions(status: Status) -> dict[str, OpenQuery]:
    """The questions that can be shown to the person at the client now, by query id."""
    if list_model_questions(status):
        return {}
    return {
        query.id: query
        for query in list_other_questions(status)
        if query.to is None and build_form(query) is not None
    }


def build_form(query: OpenQuery) -> ElicitationForm | None:
    """The form of a question, or None if no form can ask it."""
    if KINDS[query.kind].verdict:
        approve = {
            "type": "boolean",
            "title": "Approve",
            "description": "Yes approves, no refuses.",
        }
        return ElicitationForm(_object({"approve": approve}), lambda content: content["approve"])
    if query.kind not in FOR_PEOPLE:
        return None
    schema = query.schema or {"type": "string"}
    if alone := _property(schema, schema):
        return ElicitationForm(
            _object({"answer": {"title": "Answer", **alone}}), lambda content: content["answer"]
        )
    wanted = _resolve_reference(schema, schema)
    parts = wanted.get("properties")
    if wanted.get("type") != "object" or not isinstance(parts, dict) or not parts:
        return None
    properties = {name: shown for name, part in parts.items() if (shown := _property(part, schema))}
    if len(properties) < len(parts):
        return None
    needed = [name for name in wanted.get("required", ()) if name in properties]
    return ElicitationForm({"type": "object", "properties": properties, "required": needed}, dict)


def _property(part: object, schema: dict[str, Any]) -> dict[str, Any] | None:
    """A part of a schema as a property of a form, or None if a form cannot have it."""
    found = _resolve_reference(part, schema)
    words = found.get("enum")
    if "type" not in found and words and all(isinstance(word, str) for word in words):
        found = {"type": "string", **found}
    kind = found.get("type")
    return found if isinstance(kind, str) and kind in _PRIMITIVE else None


def _resolve_reference(part: object, schema: dict[str, Any]) -> dict[str, Any]:
    """A part of a schema with its reference resolved. Empty if it is not an object."""
    if not isinstance(part, dict):
        return {}
    found = schema.get("$defs", {}).get(str(part.get("$ref", "")).removeprefix("#/$defs/"), {})
    return {
        **(found if isinstance(found, dict) else {}),
        **{k: v for k, v in part.items() if k not in ("$ref", "$defs")},
    }


def _object(properties: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


def format_form_message(query: OpenQuery, title: str) -> str:
    """The text above a form: the session, then the question.

    A model may have chosen the title. It is one short line in quotes, so that it cannot pass for
    the question.
    """
    line = " ".join(title.replace('"', "'").split())[:60]
    session = f'{query.session_id[:18]} "{line}"' if line else query.session_id
    return f"everhold session {session} asks:\n\n{query.prompt}"


def read_form_result(query: OpenQuery, result: object) -> JSON | msgspec.UnsetType:
    """The answer of a person, or `UNSET` if the form was not accepted or does not fit."""
    found = build_form(query)
    if found is None or not isinstance(result, sdk.types.ElicitResult) or result.action != "accept":
        return msgspec.UNSET
    try:
        value = found.read(result.content or {})
    except KeyError:
        return msgspec.UNSET
    if KINDS[query.kind].verdict and not isinstance(value, bool):
        return msgspec.UNSET
    return value


# ---- while the call waits


class OpenForms:
    """The forms that clients show now, by connection."""

    def __init__(self) -> None:
        self._open: dict[str, set[asyncio.Future[Any]]] = {}

    async def ask(
        self, context: RequestContext, query: OpenQuery, title: str
    ) -> JSON | msgspec.UnsetType:
        """Show one question and wait for the person. Returns `UNSET` if there is no answer."""
        found = build_form(query)
        assert found is not None
        showing = asyncio.ensure_future(
            context.session.elicit_form(
                format_form_message(query, title),
                found.schema,
                related_request_id=context.request_id,
            )
        )
        connection = (
            "" if context.request is None else context.request.headers.get(CONNECTION_HEADER, "")
        )
        beside = self._open.setdefault(connection, set())
        beside.add(showing)
        try:
            async with asyncio.timeout(PATIENCE):
                return read_form_result(query, await showing)
        # too late, refused, or not the content of the form
        except (TimeoutError, ValueError, ProtocolError, sdk.get_error_class()) as error:
            log.warning(
                "the client did not show question %s of session %s: %s",
                query.id,
                query.session_id,
                error,
            )
            return msgspec.UNSET
        except asyncio.CancelledError:
            # `lost` cancels `showing` only: if this task is cancelled too, that is real
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            log.warning(
                "a reply of the client could not be read; it may have answered %s of session %s",
                query.id,
                query.session_id,
            )
            return msgspec.UNSET
        finally:
            beside.discard(showing)
            if not beside:
                self._open.pop(connection, None)

    def lost(self, connection: str = "") -> None:
        """End all forms of a connection, after a reply that cannot be read and names no form."""
        for showing in self._open.get(connection, ()):
            showing.cancel()
