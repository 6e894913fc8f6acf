"""Writes the reference of hooks and directives from `everhold.hooks`; run through cog by `make
fix`.
"""

from __future__ import annotations

import inspect
from typing import Any

from everhold.core.tool import Confirm, Deny
from everhold.hooks import ALLOWED_DIRECTIVES, HOOKS, Directive, Plugin
from everhold.plugins.redaction import SECRETS


def hooks(kind: str) -> str:
    """One row for each hook of a kind: its signature, its purpose, its allowed results."""
    decides = kind == "before"
    head = (
        "| hook | when it is called | may return |\n|---|---|---|"
        if decides
        else "| hook | when it is called |\n|---|---|"
    )
    return "\n".join([head, *(_hook(name, decides) for name in HOOKS if name.startswith(kind))])


def _hook(name: str, decides: bool) -> str:
    method = getattr(Plugin, name)
    given = ", ".join(list(inspect.signature(method).parameters)[1:])
    row = f"| `{name}({given})` | {_said(method)} |"
    if not decides:
        return row
    kinds = ALLOWED_DIRECTIVES.get(name)
    allowed = (
        "the value to store" if kinds is None else ", ".join(f"`{one.__name__}`" for one in kinds)
    )
    return f"{row} {allowed} |"


def directives() -> str:
    """One row for each directive: its fields, and what it does."""
    every: list[Any] = [*Directive.__subclasses__(), Deny, Confirm]
    kinds = sorted(every, key=lambda one: str(one.__name__))
    rows = [
        f"| `{one.__name__}({', '.join(one.__struct_fields__)})` | {_said(one)} | {_where(one)} |"
        for one in kinds
    ]
    return "\n".join(["| directive | does | in |", "|---|---|---|", *rows])


def secrets() -> str:
    """The kinds of secrets, in the order of the table."""
    return "\n".join(f"- {one.what}" for one in SECRETS)


def _where(kind: type) -> str:
    return ", ".join(f"`{hook}`" for hook, kinds in ALLOWED_DIRECTIVES.items() if kind in kinds)


def _said(documented: object) -> str:
    return " ".join((inspect.getdoc(documented) or "").split())
