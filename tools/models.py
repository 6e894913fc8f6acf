"""The tables of docs/reference/models.md, from the code."""

from __future__ import annotations

import ast
import inspect

from everhold.core import model_settings
from everhold.models.provider_access import PROVIDER_KEYS
from everhold.models.provider_errors import ANSWER_ERROR_CODES
from everhold.models.retry import Patience

_PATIENCE = {
    "attempts": "attempts for one model, if its failures are temporary",
    "base": "seconds before the second attempt; each further wait doubles",
    "longest": "seconds between two attempts, at most",
    "jitter": (
        "the part of a wait that is random, from 0 to 1; it is added to a wait that a"
        " provider asks for"
    ),
    "retry_after": "the longest wait that a provider may ask for",
    "throttle": "seconds to wait for rate limits, all together",
    "throttles": "rate limits before giving up; they cost no attempt",
    "timeout": "seconds for one attempt",
    "chunk_timeout": "seconds without data from the provider",
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


def patience() -> str:
    known = Patience()
    lines = ["| name | default | meaning |", "|---|---|---|"]
    for name in known.__struct_fields__:
        lines.append(f"| `{name}` | {getattr(known, name):g} | {_PATIENCE[name]} |")
    return "\n".join(lines)


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
