"""Secrets are not written down: inputs, results of tools and models' words are kept without them.

    Agent(…, plugins=[Redaction(values=[os.environ["DATABASE_PASSWORD"]])])

What is not written down nobody sees: not the model, not people, and not the tool that the model calls with it. What
people and hosts answer is kept without secrets, too; where the agent is not, it waits as it was given until it is.
What waits in the intake stays there as it was given, also when it has entered: until it is vacuumed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import ClassVar, Final

from everhold.core.codec import JSON
from everhold.core.errors import BadSetting
from everhold.hooks import Plugin

REDACTED: Final = "[redacted]"
#: What looks like a secret, whatever is around it. Each part has an end, so that no text is looked at again and again.
PATTERNS: Final = (
    r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[^-]|-(?!----))*+"
    r"(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|(?=-----BEGIN ))",
    r"\b(?:sk|pk|rk)[-_](?:[A-Za-z0-9]+[-_]){0,40}[A-Za-z0-9]{16,}\b",
    r"\bgh[pousr]_[A-Za-z0-9]{20,}\b",
    r"\bgithub_pat_[A-Za-z0-9_]{20,}\b",
    r"\bxox[abeprs]-[A-Za-z0-9-]{10,}",
    r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
    r"\bAIza[A-Za-z0-9_-]{35}\b",
    r"\beyJ[A-Za-z0-9_-]{8,4000}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}",
    r"(?<=://)[^/\s:@]+:[^/\s:@]+(?=@)",
    r"(?i)(?<=bearer )[A-Za-z0-9._~+/-]{16,}=*",
)
#: Names under which a value is one, whatever it looks like.
NAMES: Final = re.compile(r"(?i)^(?:.*[-_])?(?:password|passwd|secret|api[-_]?key|access[-_]?token|private[-_]?key)$")


class Redaction(Plugin):
    """Replaces what looks like a secret, what is one of `values`, and what stands under a name like `password`."""

    name: ClassVar[str] = "redaction"

    def __init__(self, *, patterns: Iterable[str] = (), values: Iterable[str] = ()) -> None:
        literal = [re.escape(value) for value in sorted(values, key=len, reverse=True)]
        if "" in literal:
            raise BadSetting("values", "a secret is not empty")
        try:
            self._secret = [re.compile(one) for one in (*literal, *patterns, *PATTERNS)]
        except re.error as error:
            raise BadSetting("patterns", f"{error.pattern!r} is no pattern: {error}") from None

    def before_store(self, value: JSON) -> JSON:
        if isinstance(value, str):
            for secret in self._secret:
                value = secret.sub(REDACTED, value)
            return value
        if isinstance(value, list):
            return [self.before_store(one) for one in value]
        if isinstance(value, dict):
            return {name: self._named(name, one) for name, one in value.items()}
        return value

    def _named(self, name: str, value: JSON) -> JSON:
        return REDACTED if isinstance(value, str) and value and NAMES.match(name) else self.before_store(value)
