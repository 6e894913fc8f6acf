"""MCP elicitation: questions for people are put to the person at the client.

Rules
  1. A person is asked through elicitation, and only where the client has declared that it shows
     forms. What a tool call brings in its arguments is never a person's answer.
  2. A person is asked when nothing is left for the model; a question addressed to somebody is not
     shown to whoever sits here.
  3. Only an accepted form is an answer. Declined, dismissed, too late or unreadable: the question
     stays open.
  4. A reply that cannot be read ends the form it is of at once; one that does not say which, all of
     its connection.
  5. Up to protocol 2025-11-25 the form is a request of ours while the call waits. Since 2026-07-28
     it goes out in a round (`multi_round`), or as what a task needs (`tasks`).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import mcp_types as types
import msgspec
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from everhold.core.codec import JSON
from everhold.core.query import FOR_PEOPLE, KINDS
from everhold.core.status import OpenQuery, Status
from everhold.mcp.render import list_model_questions, list_other_questions

log = logging.getLogger("everhold")

RequestContext = ServerRequestContext[Any, Any]

#: Seconds a call waits for a person before it says where else to answer.
PATIENCE: Final = 300.0
#: The header that names a connection over HTTP; a pipe is one connection.
CONNECTION_HEADER: Final = "mcp-session-id"
#: What a property of a form may be.
_PRIMITIVE: Final = frozenset({"string", "boolean", "integer", "number"})


class ElicitationForm(NamedTuple):
    """What a person is shown, and how to read what comes back."""

    schema: dict[str, Any]
    read: Callable[[Mapping[str, Any]], JSON]


def has_elicitation(context: RequestContext) -> bool:
    """Whether the client has said that it shows forms to a person."""
    capabilities = context.session.client_capabilities
    found = None if capabilities is None else capabilities.elicitation
    return found is not None and (found.form is not None or found.url is None)


def has_multi_round(context: RequestContext) -> bool:
    """Whether the client repeats its call with what it was asked for."""
    return context.session.protocol_version in MODERN_PROTOCOL_VERSIONS


def describe_client(context: RequestContext) -> dict[str, JSON]:
    """Who answers through this client, as far as it says: kept with the answer."""
    params = context.session.client_params
    info = None if params is None else params.client_info
    user = "an unnamed client" if info is None else f"{info.name} {info.version}".strip()
    return {"front": "mcp", "user": user, "at": round(time.time(), 3)}


def select_person_questions(status: Status) -> dict[str, OpenQuery]:
    """What can be put to the person here now, by query id."""
    if list_model_questions(status):
        return {}
    return {
        query.id: query
        for query in list_other_questions(status)
        if query.to is None and build_form(query) is not None
    }


def build_form(query: OpenQuery) -> ElicitationForm | None:
    """The form of a question; None for what no form can ask."""
    if KINDS[query.kind].verdict:
        approve = {
            "type": "boolean",
            "title": "Approve",
            "description": "Yes approves it; no refuses it.",
        }
        return ElicitationForm(_object({"approve": approve}), lambda content: content["approve"])
    if query.kind not in FOR_PEOPLE:
        return None
    schema = query.schema or {"type": "string"}
    if alone := _property(schema, schema):
        return ElicitationForm(
            _object({"answer": {"title": "Answer", **alone}}), lambda content: content["answer"]
        )
    wanted = _meant(schema, schema)
    parts = wanted.get("properties")
    if wanted.get("type") != "object" or not isinstance(parts, dict) or not parts:
        return None
    properties = {name: shown for name, part in parts.items() if (shown := _property(part, schema))}
    if len(properties) < len(parts):
        return None
    needed = [name for name in wanted.get("required", ()) if name in properties]
    return ElicitationForm({"type": "object", "properties": properties, "required": needed}, dict)


def _property(part: object, schema: dict[str, Any]) -> dict[str, Any] | None:
    """A part of a schema as a form can ask for it; None if no form can."""
    found = _meant(part, schema)
    words = found.get("enum")
    if "type" not in found and words and all(isinstance(word, str) for word in words):
        found = {"type": "string", **found}
    kind = found.get("type")
    return found if isinstance(kind, str) and kind in _PRIMITIVE else None


def _meant(part: object, schema: dict[str, Any]) -> dict[str, Any]:
    """A part itself, where it only names one of the schema's own parts; empty for what is none."""
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
    """What a person reads above the form: whose question it is, then the question.

    A model may have chosen the title, so it is one short line in quotes, and cannot pass for the
    question.
    """
    line = " ".join(title.replace('"', "'").split())[:60]
    session = f'{query.session_id[:18]} "{line}"' if line else query.session_id
    return f"everhold session {session} asks:\n\n{query.prompt}"


def read_form_result(query: OpenQuery, result: object) -> JSON | msgspec.UnsetType:
    """What a person said; `UNSET` if it is no answer."""
    found = build_form(query)
    if found is None or not isinstance(result, types.ElicitResult) or result.action != "accept":
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
    """The forms that clients are showing now, by connection."""

    def __init__(self) -> None:
        self._open: dict[str, set[asyncio.Future[Any]]] = {}

    async def ask(
        self, context: RequestContext, query: OpenQuery, title: str
    ) -> JSON | msgspec.UnsetType:
        """Show one question and wait for the person; `UNSET` if there is no answer."""
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
        # too late, refused, or not what a form brings back
        except (TimeoutError, MCPError, ValueError) as error:
            log.warning("the client did not show %s of %s: %s", query.id, query.session_id, error)
            return msgspec.UNSET
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            log.warning(
                "a reply of the client, perhaps to %s of %s, could not be read",
                query.id,
                query.session_id,
            )
            return msgspec.UNSET
        finally:
            beside.discard(showing)
            if not beside:
                self._open.pop(connection, None)

    def lost(self, connection: str = "") -> None:
        """End the forms of a connection: a reply came that cannot be read, and does not say which
        form it is of.
        """
        for showing in self._open.get(connection, ()):
            showing.cancel()
