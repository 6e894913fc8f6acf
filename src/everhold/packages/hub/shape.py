"""Schemas of `evaluate.lua` as text for people, and as JSON for programs.

text    array of string · map of string to number · shape { a: string, b?: number } · "x" or "y"
JSON    {"kind": "primitive", "name": "string"} · array_of · map_of · one_of · shape · discriminated ·
        {"kind": "label", "name": …} for the name of a shape
"""  # noqa: E501

from __future__ import annotations

import json
from typing import Any

from everhold.packages.hub.evaluate import Schema


def list_fields(schema: Schema) -> list[dict[str, Any]]:
    """The fields of a shape: name, type, optional, doc."""
    return list(schema.get("fields") or [])


def format_type(schema: Schema) -> str:
    """A schema on one line, as the pages show it."""
    match schema["kind"]:
        case "prim":
            return str(schema["prim"])
        case "any":
            return "any"
        case "ref":
            return str(schema["name"])
        case "array_of":
            return f"array of {format_type(schema['elem'])}"
        case "map_of":
            return f"map of {format_type(schema['key'])} to {format_type(schema['val'])}"
        case "one_of":
            return f"one_of({', '.join(_literal(value) for value in schema['values'])})"
        case "discriminated":
            return f'discriminated by "{schema["tag"]}"'
    parts = [
        f"{one['name']}{'?' * one['optional']}: {format_type(one['type'])}"
        for one in list_fields(schema)
    ]
    return f"shape {{ {', '.join(parts)} }}" if parts else "shape { }"


def _literal(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def dump_type(schema: Schema) -> dict[str, Any]:
    """A schema as JSON, as hub/<package>.json has it."""
    match schema["kind"]:
        case "prim":
            return {"kind": "primitive", "name": schema["prim"]}
        case "any":
            return {"kind": "primitive", "name": "any"}
        case "ref":
            return {"kind": "label", "name": schema["name"]}
        case "array_of":
            return {"kind": "array_of", "of": dump_type(schema["elem"])}
        case "map_of":
            return {
                "kind": "map_of",
                "key": dump_type(schema["key"]),
                "val": dump_type(schema["val"]),
            }
        case "one_of":
            return {"kind": "one_of", "values": schema["values"]}
        case "discriminated":
            variants = {one["name"]: dump_shape(one["shape"]) for one in schema["variants"]}
            return {"kind": "discriminated", "tag": schema["tag"], "variants": variants}
    return {"kind": "shape", "shape": dump_shape(schema)}


def dump_shape(schema: Schema) -> dict[str, Any]:
    fields = [
        {
            "name": one["name"],
            "type": dump_type(one["type"]),
            "optional": one["optional"],
            "doc": one["doc"],
        }
        for one in list_fields(schema)
    ]
    return {"fields": fields, "open": schema["open"]}
