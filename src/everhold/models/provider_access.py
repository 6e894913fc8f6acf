"""Reaching the providers of models: their keys, and one open client for each model and event loop.

Rules
  1. A provider's own key goes to its own address only. At another address it is the key that was
     given with the model, or `EVERHOLD_MODEL_KEY`; a server that wants none gets a placeholder.
  2. A missing key or extra is said before anything is asked.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import msgspec

from everhold.errors import AnswerFailed, BadSetting, MissingExtra, ProviderUnconfigured

if TYPE_CHECKING:
    from pydantic_ai.models import Model

MODEL_KEY_VARIABLE: Final = "EVERHOLD_MODEL_KEY"
_OPENAI: Final = ("OPENAI_API_KEY", "OPENAI_BASE_URL")  # a server of one's own may want no key
#: Where the key of a provider is looked for, and the library that speaks to it.
PROVIDER_KEYS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "anthropic": (("ANTHROPIC_API_KEY",), "anthropic"),
    "google": (("GOOGLE_API_KEY", "GEMINI_API_KEY"), "google.genai"),
    "openai": (_OPENAI, "openai"),
    "openai-chat": (_OPENAI, "openai"),
    "openai-responses": (_OPENAI, "openai"),
}
_NO_KEY: Final = "none"


def check_model_access(name: ModelName, api_key: str | None = None) -> None:
    """Raise `MissingExtra`, `BadSetting` or `ProviderUnconfigured` if this process cannot ask such
    a model.
    """
    if not _is_installed("pydantic_ai"):
        raise MissingExtra("models", f"the model {str(name)!r}")
    if name.provider not in PROVIDER_KEYS:
        _refuse_unknown(name)
        return
    variables, library = PROVIDER_KEYS[name.provider]
    if not _is_installed(library):
        raise MissingExtra("models", f"the model {str(name)!r}")
    if (
        name.url is None
        and api_key is None
        and not any(os.environ.get(variable) for variable in variables)
    ):
        raise ProviderUnconfigured(
            name.provider, "there is no key", f"Set the variable {variables[0]}."
        )


class ModelClients:
    """The open clients of one answerer."""

    def __init__(self, api_key: str | None = None) -> None:
        self._api_key = api_key
        self._rooms: WeakKeyDictionary[asyncio.AbstractEventLoop, _Room] = WeakKeyDictionary()

    async def model(self, name: ModelName) -> Model:
        """The client for a model, opened on the running loop."""
        loop = asyncio.get_running_loop()
        room = self._rooms.setdefault(loop, _Room())
        async with room.lock:
            if name not in room.models:
                check_model_access(name, self._api_key)
                # Libraries of providers take seconds to import: elsewhere, so that nothing here
                # stands still.
                made = await asyncio.to_thread(_made, name, self._api_key)
                room.models[name] = await room.stack.enter_async_context(made)
        return room.models[name]

    async def close(self) -> None:
        """Close what was opened on the running loop."""
        room = self._rooms.pop(asyncio.get_running_loop(), None)
        if room is not None:
            await room.stack.aclose()


class _Room:
    def __init__(self) -> None:
        self.models: dict[ModelName, Model] = {}
        self.stack = AsyncExitStack()
        self.lock = asyncio.Lock()


def _made(name: ModelName, api_key: str | None) -> Model:
    maker: Callable[[ModelName, str | None], Model] = _MAKERS.get(name.provider, _other)
    try:
        return maker(name, _key(name, api_key))
    except ImportError as error:
        raise MissingExtra("models", f"the model {str(name)!r} ({error})") from None


def _key(name: ModelName, api_key: str | None) -> str | None:
    """The key to send; None leaves it to the provider's own variable."""
    if name.url is None or api_key is not None:
        return api_key
    return os.environ.get(MODEL_KEY_VARIABLE) or _NO_KEY


def _openai(name: ModelName, key: str | None) -> Model:
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.profiles.openai import OpenAIModelProfile
    from pydantic_ai.providers.openai import OpenAIProvider
    from pydantic_ai.providers.openai_compatible import OpenAICompatibleProvider

    provider: Any = OpenAIProvider(api_key=key)
    if name.url is not None:
        host = urlsplit(name.url).netloc
        provider = OpenAICompatibleProvider(f"openai@{host}", base_url=name.url, api_key=key)
    if name.provider == "openai-responses" or (name.provider == "openai" and name.url is None):
        return OpenAIResponsesModel(name.model, provider=provider)
    # Without a reason to end, an answer that broke off could not be told from one that is whole.
    whole = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    return OpenAIChatModel(name.model, provider=provider, profile=whole)


def _anthropic(name: ModelName, key: str | None) -> Model:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    return AnthropicModel(name.model, provider=AnthropicProvider(api_key=key, base_url=name.url))


def _google(name: ModelName, key: str | None) -> Model:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    return GoogleModel(name.model, provider=GoogleProvider(api_key=key, base_url=name.url))


def _other(name: ModelName, key: str | None) -> Model:
    """One of the providers that need nothing but their own variables."""
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model

    if key is not None:
        raise BadSetting(
            "llm",
            f"an address or a key can be given for {', '.join(PROVIDER_KEYS)}, not for"
            f" {name.provider}",
        )
    try:
        return infer_model(f"{name.provider}:{name.model}")
    except UserError as error:
        reason = str(error).partition(". ")[0]
        raise ProviderUnconfigured(
            name.provider, reason, "Set the variables that this provider needs."
        ) from None


_MAKERS: Final[dict[str, Callable[[ModelName, str | None], Any]]] = {
    "anthropic": _anthropic,
    "google": _google,
    "openai": _openai,
    "openai-chat": _openai,
    "openai-responses": _openai,
}


def _is_installed(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # of google.genai, google may be missing too
        return False


def _refuse_unknown(name: ModelName) -> None:
    from pydantic_ai.providers import infer_provider_class

    try:
        infer_provider_class(name.provider)
    except ValueError:
        from difflib import get_close_matches

        close = get_close_matches(name.provider, PROVIDER_KEYS, 1)
        more = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(PROVIDER_KEYS)}"
        raise BadSetting("llm", f"there is no provider {name.provider!r}{more}") from None
    except ImportError as error:
        raise MissingExtra("models", f"the model {str(name)!r} ({error})") from None


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
