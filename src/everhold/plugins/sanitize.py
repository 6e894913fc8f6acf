"""Sanitizes names, schemas and content from untrusted MCP servers.

Everything is bounded, and nothing of it is run. Patterns and references of a schema are shown to
the model but not evaluated here; the server checks them.
"""

from __future__ import annotations

import base64
import re
from hashlib import sha256
from typing import Any, Final

from everhold.core.codec import JSON, dumps, to_plain
from everhold.core.message import Image, ImageData, Text

_LONGEST: Final = 64
_OTHER: Final = re.compile(r"[^A-Za-z0-9_-]")
ANY_OBJECT_SCHEMA: Final[dict[str, JSON]] = {"type": "object"}
_TYPES: Final = ("object", "array", "string", "number", "integer", "boolean", "null")
_SCHEMA: Final = 16 * 1024  # characters of a schema that a model gets
_DEEP: Final = 8
_PICTURE: Final = 4 * 2**20  # characters of an image in base64


def sanitize_name(name: str) -> str:
    return _OTHER.sub("_", name).strip("_")


def make_tool_name(server: str, tool: str) -> str:
    """The name of a server's tool for models; a long one is cut and gets a part of its digest."""
    name = f"mcp__{sanitize_name(server)}__{sanitize_name(tool)}"
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST - 9]}_{sha256(name.encode()).hexdigest()[:8]}"


def limit_schema(schema: Any, name: str) -> dict[str, JSON]:
    """The schema of a tool, if it is one and not too long; otherwise a schema that allows any
    object.
    """
    if isinstance(schema, dict) and schema.get("type") == "object":
        found: dict[str, JSON] = to_plain(schema, f"the schema of {name}")
        if len(dumps(found)) <= _SCHEMA:
            return found
    return dict(ANY_OBJECT_SCHEMA)


def reduce_schema(schema: JSON, depth: int = 0) -> dict[str, JSON]:
    """The part of a schema that is checked here. The server checks patterns and references."""
    if not isinstance(schema, dict) or depth > _DEEP:
        return {}
    found: dict[str, JSON] = {}
    types = schema.get("type")
    if types in _TYPES or (
        isinstance(types, list) and types and all(one in _TYPES for one in types)
    ):
        found["type"] = types
    if isinstance(schema.get("enum"), list):
        found["enum"] = schema["enum"]
    if isinstance(schema.get("properties"), dict):
        found["properties"] = {
            name: reduce_schema(part, depth + 1) for name, part in schema["properties"].items()
        }
    if isinstance(schema.get("required"), list) and all(
        isinstance(one, str) for one in schema["required"]
    ):
        found["required"] = schema["required"]
    if isinstance(schema.get("items"), dict):
        found["items"] = reduce_schema(schema["items"], depth + 1)
    if isinstance(schema.get("additionalProperties"), bool) and not _others(schema):
        found["additionalProperties"] = schema["additionalProperties"]
    return found


def _others(schema: dict[str, JSON]) -> bool:
    """Whether a schema has keywords for properties that are not checked here."""
    return not schema.keys().isdisjoint({"patternProperties", "$ref", "allOf", "anyOf", "oneOf"})


def convert_content(said: Any) -> str | list[Text | Image]:
    """The content of a result: text joined with blank lines, or blocks if there are images."""
    parts: list[Text | Image] = []
    for block in said.content:
        match block.type:
            case "text":
                parts.append(Text(block.text))
            case "image" if len(block.data) > _PICTURE:
                parts.append(Text(f"[an image of {len(block.data):,} characters is left out]"))
            case "image":
                parts.append(Image(ImageData(block.mime_type, base64.b64decode(block.data))))
            case "resource" if hasattr(block.resource, "text"):
                parts.append(Text(block.resource.text))
            case "resource_link":
                parts.append(Text(f"[{block.name}: {block.uri}]"))
            case other:
                parts.append(Text(f"[{other}]"))
    if not parts and said.structured_content is not None:
        return dumps(to_plain(said.structured_content, "the result"))
    if any(isinstance(part, Image) for part in parts):
        return parts
    return "\n\n".join(part.text for part in parts if isinstance(part, Text))
