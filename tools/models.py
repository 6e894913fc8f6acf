"""The tables of docs/reference/models.md, from the code."""

from __future__ import annotations

from everhold.models.provider_access import MODEL_OPTIONS, PROVIDER_KEYS
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


def options() -> str:
    lines = ["| option | what it asks for |", "|---|---|"]
    return "\n".join(
        [*lines, *(f"| `{name}` | {words} |" for name, words in MODEL_OPTIONS.items())]
    )


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
