"""Token counts: provided by the answerer, or estimated from the text.

Rules
  1. A count from the answerer is *provided*; without one, the count is *estimated*.
  2. A sum has the weakest source of its parts: estimated < provided < definite. The empty sum is 0,
     definite.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Final

import msgspec

from everhold.core import codec
from everhold.core.codec import JSON
from everhold.core.query import Query, QueryAnswer, Usage
from everhold.errors import BadArguments


class TokenSource(StrEnum):
    """The source of a token count."""

    ESTIMATED = "estimated"
    PROVIDED = "provided"
    DEFINITE = "definite"

    def merge(self, other: TokenSource) -> TokenSource:
        """The weaker of the two."""
        return other if self is DEFINITE or other is ESTIMATED else self


# Looking a member up on its class costs more than adding two numbers.
ESTIMATED: Final = TokenSource.ESTIMATED
PROVIDED: Final = TokenSource.PROVIDED
DEFINITE: Final = TokenSource.DEFINITE
#: From the weakest to the strongest.
_SOURCES: Final = (ESTIMATED, PROVIDED, DEFINITE)


class TokenCount(msgspec.Struct, frozen=True, gc=False):
    """A number of tokens and its source."""

    tokens: int = 0
    source: TokenSource = DEFINITE

    def plus(self, other: TokenCount) -> TokenCount:
        return TokenCount(self.tokens + other.tokens, self.source.merge(other.source))

    def json(self) -> dict[str, JSON]:
        return {"tokens": self.tokens, "source": self.source.value}


class TokenCost(msgspec.Struct, frozen=True, gc=False):
    """The tokens of one exchange with a model."""

    prompt: int
    prompt_source: TokenSource
    response: int
    response_source: TokenSource


def measure_text(text: str) -> tuple[int, int]:
    """Bytes of `text` in UTF-8, and its tokens: ASCII by four, two thirds of the rest, each rounded
    up.
    """
    length = len(text)
    if text.isascii():
        return length, (length + 3) // 4
    plain = len(text.encode("ascii", "ignore"))
    tokens = (plain + 3) // 4 + (2 * (length - plain) + 2) // 3
    return len(text.encode("utf-8", "surrogatepass")), tokens


def estimate_tokens(text: str) -> int:
    """The estimated tokens of `text`."""
    return measure_text(text)[1]


def measure_query(query: Query) -> tuple[int, int]:
    """Bytes and estimated tokens of everything a model reads for this query, its system text
    included.
    """
    prompt = query.prompt
    if prompt.isascii():
        length = len(prompt)
        tokens = (length + 3) // 4
    else:
        length, tokens = measure_text(prompt)
    if query.system or query.messages:
        for text in _texts([query.system, *(query.messages or ())]):
            more_length, more_tokens = measure_text(text)
            length += more_length
            tokens += more_tokens
    return length, tokens


def measure_answer(answer: QueryAnswer) -> tuple[int, int]:
    """Bytes and estimated tokens of an answer: its text, or its JSON; none for an error."""
    value = answer.value
    if type(value) is str:
        length = len(value)
        return (length, (length + 3) // 4) if value.isascii() else measure_text(value)
    return (0, 0) if answer.error is not None else measure_text(codec.dumps(value))


def price_exchange(usage: Usage | None, prompt: int, response: int) -> TokenCost:
    """The cost of an exchange: the provided counts, or these estimates of prompt and response."""
    if usage is None:
        return TokenCost(prompt, ESTIMATED, response, ESTIMATED)
    told = usage.prompt_tokens
    said = usage.completion_tokens
    told_source = said_source = PROVIDED
    if told is None or told < 0:  # less than nothing is not a count
        if usage.parts:
            return _price_parts(usage.parts, prompt, response)
        told = prompt
        told_source = ESTIMATED
    if said is None or said < 0:
        said = response
        said_source = ESTIMATED
    return TokenCost(told, told_source, said, said_source)


def _price_parts(parts: Sequence[Usage], prompt: int, response: int) -> TokenCost:
    """The cost of an answer for which several models were asked."""
    costs = [price_exchange(part, prompt, response) for part in parts]
    return TokenCost(
        sum(cost.prompt for cost in costs),
        min((cost.prompt_source for cost in costs), key=_SOURCES.index),
        sum(cost.response for cost in costs),
        min((cost.response_source for cost in costs), key=_SOURCES.index),
    )


def _texts(messages: list[JSON]) -> Iterator[str]:
    """The texts in a list of messages; images and tool payloads are not text."""
    for message in messages:
        content = message.get("content") if isinstance(message, dict) else message
        if isinstance(content, str):
            yield content
        elif isinstance(content, list):
            for block in content:
                text = block.get("text") if isinstance(block, dict) else block
                if isinstance(text, str):
                    yield text


def parse_usage(given: Usage | Mapping[str, int]) -> Usage:
    """The usage that a caller passes with an answer; raises `BadArguments` if it is not valid."""
    try:
        counts = msgspec.to_builtins(given) if isinstance(given, Usage) else dict(given)
        usage = msgspec.convert(counts, Usage)
    except (msgspec.ValidationError, TypeError, ValueError) as error:
        raise BadArguments("answer", f"usage: {error}") from None
    if min(usage.prompt_tokens or 0, usage.completion_tokens or 0) < 0:
        raise BadArguments("answer", "usage: a token count must be 0 or more")
    return usage
