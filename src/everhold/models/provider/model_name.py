"""How models are named.

    anthropic:claude-sonnet-4-6                     a provider and what it calls the model
    openai:gpt-5-mini | google:gemini-2.5-flash     the first that can answer
    openai:qwen3@http://127.0.0.1:8000/v1           at another address

`openai` speaks OpenAI's Responses API, and at another address the chat API, which is what others
offer; to choose, say `openai-responses` or `openai-chat`.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from everhold.errors import BadSetting

_ONE: Final = re.compile(
    r"(?P<provider>[a-z][a-z0-9-]*):(?P<model>[^\s|]+?)(?:@(?P<url>https?://[^\s|@]+))?"
)
_SHAPE: Final = "a model is named provider:name, as anthropic:claude-sonnet-4-6"


class ModelName(msgspec.Struct, frozen=True):
    """One model: who offers it, what it is called there, and where that is if not at the usual
    address.
    """

    provider: str
    model: str
    url: str | None = None

    def __str__(self) -> str:
        return f"{self.provider}:{self.model}" + (f"@{self.url}" if self.url else "")


def parse_model_names(given: Any, where: str = "llm") -> tuple[ModelName, ...]:
    """The models that are meant, in the order in which they are asked; raises `BadSetting`."""
    parts = (
        given.split("|")
        if isinstance(given, str)
        else given
        if isinstance(given, list)
        else [given]
    )
    found = tuple(_name(part, where) for part in parts)
    if not found:
        raise BadSetting(where, f"it names no model; {_SHAPE}")
    return found


def is_model_name(text: str) -> bool:
    """Whether this could be meant as the name of a model, or of several."""
    return all(_ONE.fullmatch(part.strip()) for part in text.split("|"))


def _name(part: Any, where: str) -> ModelName:
    if not isinstance(part, str):
        raise BadSetting(where, f"{part!r} is not text; {_SHAPE}")
    found = _ONE.fullmatch(part.strip())
    if found is None:
        raise BadSetting(where, f"{part!r} names no model; {_SHAPE}")
    return ModelName(found["provider"], found["model"], found["url"])
