"""The tables of docs/reference/models.md, from the code."""

from __future__ import annotations

import ast
import inspect

from everhold.core import model_settings
from everhold.core.retry import TEMPORARY_CODES, Retry
from everhold.models.provider_access import PROVIDER_KEYS
from everhold.models.provider_errors import ANSWER_ERROR_CODES
from everhold.models.retry import MODEL_RETRY

_RETRY = {
    "attempts": "attempts in all; 1 means that nothing is tried again",
    "backoff": "seconds before the second attempt",
    "factor": "by which each further wait grows",
    "max_backoff": "seconds between two attempts, at most",
    "jitter": "the part of a wait that is random, from 0 to 1, so that clients that failed together"
    " do not retry together",
    "on": "the errors that are tried again: classes, with their subclasses, and codes; empty: all"
    " that a retry can help",
}


def providers() -> str:
    lines = ["| provider | key |", "|---|---|"]
    for name, (variables, _) in PROVIDER_KEYS.items():
        keys = " or ".join(f"`{variable}`" for variable in variables if variable.endswith("_KEY"))
        lines.append(f"| `{name}` | {keys} |")
    return "\n".join(lines)


def settings() -> str:
    """The settings of a question, with the text below each in the source."""
    tree = ast.parse(inspect.getsource(model_settings.ModelSettings))
    assert isinstance(tree.body[0], ast.ClassDef)
    lines = ["| setting | what it asks for |", "|---|---|"]
    for one, text in zip(tree.body[0].body, tree.body[0].body[1:], strict=False):
        if isinstance(one, ast.AnnAssign) and isinstance(text, ast.Expr):
            words = " ".join(str(ast.literal_eval(text.value)).split())
            lines.append(f"| `{ast.unparse(one.target)}` | {words} |")
    return "\n".join(lines)


def retry() -> str:
    """The fields of a retry policy, with the defaults for questions and calls, and of a model."""
    lines = ["| field | default | of a `Model` | meaning |", "|---|---|---|---|"]
    for name in Retry.__struct_fields__:
        both = [getattr(one, name) for one in (Retry(), MODEL_RETRY)]
        shown = " | ".join(f"{one:g}" if isinstance(one, int | float) else "`()`" for one in both)
        lines.append(f"| `{name}` | {shown} | {_RETRY[name]} |")
    return "\n".join(lines)


def temporary() -> str:
    """The codes that are tried again by default."""
    return ", ".join(f"`{code}`" for code in sorted(TEMPORARY_CODES))


def codes() -> str:
    lines = ["| `kind` | what happened | before that |", "|---|---|---|"]
    return "\n".join(
        [
            *lines,
            *(
                f"| `{code}` | {what} | {done} |"
                for code, (what, done) in ANSWER_ERROR_CODES.items()
            ),
        ]
    )
