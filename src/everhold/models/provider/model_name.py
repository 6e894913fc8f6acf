"""How models are named.

    anthropic:claude-sonnet-4-6                     a provider and what it calls the model
    openai:gpt-5-mini | google:gemini-2.5-flash     the first that can answer
    openai:qwen3@http://127.0.0.1:8000/v1           at another address

`openai` speaks OpenAI's Responses API, and at another address the chat API, which is what others
offer; to choose, say `openai-responses` or `openai-chat`.

What a question may ask of a model beside its words.

Options are part of the question and are kept with it. Headers may hold secrets, so they are none:
whoever opens the runtime gives them, with `Model(…, extra_headers={…})`.
"""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from everhold.errors import AnswerFailed, BadSetting

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


#: What every provider is told, as far as it knows it.
MODEL_OPTIONS: Final = {
    "cache": (
        "mark what repeats, for providers that charge less for it; on by default in conversations"
    ),
    "extra_body": "more fields of the request, as the provider calls them",
    "frequency_penalty": "avoid words the more often they were used",
    "logit_bias": "make single tokens more or less likely",
    "parallel_tool_calls": "whether several tools may be called at once",
    "presence_penalty": "avoid words that were used",
    "seed": "answer alike, where the provider can",
    "service_tier": "`auto`, `default`, `flex` or `priority`",
    "stop_sequences": "texts that end the answer",
    "temperature": "how freely words are chosen",
    "thinking": "`true`, `false`, or how much: `minimal`, `low`, `medium`, `high`",
    "tool_choice": "`auto`, `none`, `required`, or a list of names",
    "top_k": "how many words are considered",
    "top_p": "how likely the words together are that are considered",
}
#: How the options begin that only one provider has.
PROVIDER_PREFIXES: Final = ("anthropic_", "google_", "openai_")
#: Options that are for this side.
LOCAL_OPTIONS: Final = ("model", "tools")


def refuse_unknown_option(name: str) -> None:
    """Raise `AnswerFailed` for an option that no provider knows."""
    if name in MODEL_OPTIONS or name.startswith(PROVIDER_PREFIXES):
        return
    from difflib import get_close_matches

    close = get_close_matches(name, MODEL_OPTIONS, 1)
    meant = (
        f"did you mean {close[0]}?" if close else "what only your server knows goes into extra_body"
    )
    raise AnswerFailed(f"there is no option {name!r} for a model; {meant}", "bad_option")
