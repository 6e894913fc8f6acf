"""Writes the reference page of the strategies from their metadata; cog runs it (`make fix`)."""

from __future__ import annotations

from everhold.core.codec import dumps
from everhold.packages.strategies import strategies
from everhold.packages.strategies.metadata import Strategy, StrategyParameter


def overview() -> str:
    rows = ["| strategy | what it does | usual cost |", "|---|---|---|"]
    rows += [
        f"| [`{one.name}`](#{one.name}) | {one.summary} | {one.estimate()} |"
        for one in strategies()
    ]
    return "\n".join(rows)


def pages() -> str:
    """Every strategy in full."""
    return "\n".join(_page(one) for one in strategies())


def _page(one: Strategy) -> str:
    papers = "; ".join(f"{paper.authors}: *{paper.title}* ({paper.year})" for paper in one.papers)
    lines = [
        f"## {one.name}",
        "",
        one.summary,
        "",
        f"- **Use it when:** {one.use_when}",
        f"- **Not when:** {one.not_when}",
        f"- **Cost:** {one.formula}. With the usual arguments: {one.estimate()}.",
        f"- **From:** {papers}.",
        f"- **Stored as:** `{one.program.ref}`",
        "",
        "| argument | usually | takes | meaning |",
        "|---|---|---|---|",
        *(_row(parameter) for parameter in one.parameters),
        "",
    ]
    return "\n".join(lines)


def _row(one: StrategyParameter) -> str:
    usual = "*required*" if one.required else f"`{dumps(one.default)}`"
    return f"| `{one.name}` | {usual} | {_takes(one)} | {one.description} |"


def _takes(one: StrategyParameter) -> str:
    """The values that fit, in words."""
    schema = one.schema
    if "anyOf" in schema:
        schema = next(part for part in schema["anyOf"] if part.get("type") != "null")
    match schema["type"]:
        case "string":
            return "text"
        case "array":
            return f"{schema['minItems']} to {schema['maxItems']} texts"
        case kind:
            noun = "a whole number" if kind == "integer" else "a number"
            return f"{noun} from {schema['minimum']} to {schema['maximum']}"
