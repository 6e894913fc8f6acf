"""What is redacted: secrets in inputs, tool results and models' words are removed before they are
stored.

    Agent(…, plugins=[Redaction(values=[os.environ["DATABASE_PASSWORD"]])])

What is not written down nobody sees: not the model, not people, and not the tool that the model
calls with it. What people and hosts answer is kept without secrets, too; where the agent is not, it
waits as it was given until it is. What waits in the intake stays there as it was given, also when
it has entered: until it is vacuumed.

Rules
  1. `SECRETS` is the table of what looks like a secret. Each row is found in time that is linear in
     the text.
  2. What stands under a name like `password` or `clientSecret` is replaced whatever it looks like,
     in lists and objects too; `true`, `false`, `null` and empty text stay.
  3. A result or reply that another plugin puts in the place of one is kept without secrets, too.
"""

from __future__ import annotations

import binascii
import functools
import re
from collections.abc import Callable, Iterable
from typing import ClassVar, Final, NamedTuple

from everhold.core.codec import JSON
from everhold.errors import BadSetting
from everhold.hooks import Plugin

REDACTED: Final = "[redacted]"


class SecretPattern(NamedTuple):
    """One row of the table: the kind of secret, its pattern, and an optional further check."""

    what: str
    pattern: str
    check: Callable[[str], bool] | None = None


def _is_user_and_password(encoded: str) -> bool:
    """Whether text is base64 of `user:password`. Ordinary words ("basic training") can look like
    base64 too.
    """
    try:
        plain = binascii.a2b_base64(encoded + "=" * (-len(encoded) % 4)).decode()
    except (binascii.Error, UnicodeDecodeError):
        return False
    return ":" in plain and plain.isprintable()


#: A user in a URL, and a password up to the last `@` before the next URL begins. A quote ends it
#: too.
_USER: Final = r"[^\s:/?#@\"'<>`\\]*+"
_PASSWORD: Final = r"(?:[^\s:\"'<>`\\]|:(?!//))+"
#: The same without characters that end the host of a web URL: paths may contain `@`.
_WEB_PASSWORD: Final = r"(?:[^\s:/?#\"'<>`\\]|:(?!//))+"
_WEB: Final = r"(?<=://)(?:(?<=http://)|(?<=https://)|(?<=ws://)|(?<=wss://))"
_NO_WEB: Final = r"(?<=://)(?<!http://)(?<!https://)(?<!ws://)(?<!wss://)"

#: Patterns of secrets. Each part has a definite end, so that no text is scanned again and again.
SECRETS: Final = (
    SecretPattern(
        "private key",
        r"-----BEGIN [A-Z ]{0,40}PRIVATE KEY-----(?:[^-]|-(?!----))*+"
        r"(?:-----END [A-Z ]{0,40}PRIVATE KEY-----|(?=-----BEGIN ))",
    ),
    SecretPattern(
        "key of OpenAI, Anthropic or Stripe",
        r"\b(?:sk|pk|rk)[-_](?:[A-Za-z0-9]+[-_]){0,40}[A-Za-z0-9]{16,}\b",
    ),
    SecretPattern("token of GitHub", r"\bgh[pousr]_[A-Za-z0-9]{20,}\b"),
    SecretPattern("fine-grained token of GitHub", r"\bgithub_pat_[A-Za-z0-9_]{20,}\b"),
    SecretPattern("token of GitLab", r"\bgl(?:pat|dt|rt|ptt|soat|agent|cbt)-[A-Za-z0-9_-]{20,}"),
    SecretPattern("token of Hugging Face", r"\bhf_[A-Za-z0-9]{20,}\b"),
    SecretPattern("token of npm", r"\bnpm_[A-Za-z0-9]{20,}\b"),
    SecretPattern("token of Slack", r"\bxox[abeprs]-[A-Za-z0-9-]{10,}"),
    SecretPattern("key id of AWS", r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"),
    SecretPattern("key of Google", r"\bAIza[A-Za-z0-9_-]{35}\b"),
    SecretPattern(
        "JSON web token", r"\beyJ[A-Za-z0-9_-]{8,4000}+\.[A-Za-z0-9_-]{8,}+\.[A-Za-z0-9_-]{8,}"
    ),
    SecretPattern("password in an address", rf"{_NO_WEB}{_USER}:{_PASSWORD}(?=@)"),
    SecretPattern("password in a web address", rf"{_WEB}{_USER}:{_WEB_PASSWORD}(?=@)"),
    SecretPattern(
        "password with a slash in a web address",
        rf"{_WEB}{_USER}:(?!\d{{0,5}}[/?#]){_PASSWORD}(?=@)",
    ),
    SecretPattern("password with a quote in an address", r"(?<=://)[^/\s:@]*+:[^/\s:@]++(?=@)"),
    SecretPattern("bearer token", r"(?i)(?<=bearer )[A-Za-z0-9._~+/-]{16,}=*"),
    SecretPattern(
        "basic credentials", r"(?i)(?<=\bbasic )[A-Za-z0-9+/]{4,}+={0,2}", _is_user_and_password
    ),
)
#: Names whose values are secrets; matched in snake case and lower case.
SECRET_NAMES: Final = re.compile(
    r"(?:password|passwd|passphrase|secret"
    r"|(?:^|_)(?:authorization|(?:api|access|private|secret|encryption|signing)_?key"
    r"|(?:api|access|auth|bearer|id|refresh|secret|security|session)_?token))s?$"
)
_HUMP: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_DASH: Final = re.compile(r"[-. ]")


@functools.lru_cache(1024)
def is_secret_name(name: str) -> bool:
    """Whether a value under this name is a secret: `password`, `api-key`, `clientSecret`,
    `AUTH_TOKEN`.
    """
    return SECRET_NAMES.search(_DASH.sub("_", _HUMP.sub("_", name)).lower()) is not None


class Redaction(Plugin):
    """Replaces secrets: values that match a pattern, the given `values`, and values under a name
    like `password`.
    """

    name: ClassVar[str] = "redaction"

    def __init__(self, *, patterns: Iterable[str] = (), values: Iterable[str] = ()) -> None:
        literal = [re.escape(value) for value in sorted(values, key=len, reverse=True)]
        if "" in literal:
            raise BadSetting("values", "a secret must not be empty")
        own = (SecretPattern("your own", pattern) for pattern in (*literal, *patterns))
        try:
            self._secrets = [(re.compile(one.pattern), one.check) for one in (*own, *SECRETS)]
        except re.error as error:
            raise BadSetting(
                "patterns", f"{error.pattern!r} is not a regular expression: {error}"
            ) from None

    def before_store(self, value: JSON) -> JSON:
        if isinstance(value, str):
            return self._without(value)
        if isinstance(value, list):
            return [self.before_store(one) for one in value]
        if isinstance(value, dict):
            return {
                name: _hidden(one) if is_secret_name(name) else self.before_store(one)
                for name, one in value.items()
            }
        return value

    def _without(self, text: str) -> str:
        for pattern, check in self._secrets:
            text = pattern.sub(REDACTED if check is None else _checked(check), text)
        return text


def _checked(check: Callable[[str], bool]) -> Callable[[re.Match[str]], str]:
    return lambda found: REDACTED if check(found[0]) else found[0]


def _hidden(value: JSON) -> JSON:
    """A value with every text and number in it replaced."""
    if isinstance(value, list):
        return [_hidden(one) for one in value]
    if isinstance(value, dict):
        return {name: _hidden(one) for name, one in value.items()}
    return value if value is None or value == "" or isinstance(value, bool) else REDACTED
