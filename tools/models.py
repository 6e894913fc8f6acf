"""The tables of docs/reference/models.md, from the code."""

from __future__ import annotations

from everhold.models.provider_access import MODEL_OPTIONS, PROVIDER_KEYS
from everhold.models.provider_errors import ANSWER_ERROR_CODES
from everhold.models.retry import Patience

_PATIENCE = {
    "attempts": "how often a model is asked, if its failures may pass",
    "base": "seconds before the second attempt; each next wait is twice as long",
    "longest": "seconds between two attempts, at most",
    "jitter": (
        "the part of a wait that is random, from 0 to 1; it comes on top of what a"
        " provider asks for"
    ),
    "retry_after": "seconds that a provider may ask for at once",
    "throttle": "seconds in all to wait for a provider that says “slow down”",
    "throttles": "how often it may say so; this costs no attempt",
    "timeout": "seconds for one attempt",
    "chunk_timeout": "seconds without anything from the provider",
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
