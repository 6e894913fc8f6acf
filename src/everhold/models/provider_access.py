"""Model names, keys and clients of providers.

    anthropic:claude-sonnet-4-6                     provider:name
    openai:gpt-5-mini | google:gemini-2.5-flash     the first model that can answer
    openai:qwen3@http://127.0.0.1:8000/v1           at another address

`openai` uses OpenAI's Responses API, and at another address the chat API, which most compatible
servers offer; `openai-responses` and `openai-chat` choose one.

Rules
  1. A provider's own key is sent to the provider's own address only. Another address gets the key
     that was given with the model, or `EVERHOLD_MODEL_KEY`, or a placeholder.
  2. A missing key or extra is an error before anything is sent.
  3. Settings are part of the query and are stored with it. Headers may contain secrets, so a query
     cannot set them; `Model(…, extra_headers={…})` does.
"""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

import msgspec

from everhold.core.codec import JSON
from everhold.core.model_settings import EXTRA, SETTING_NAMES
from everhold.core.query import ON_UNAVAILABLE
from everhold.core.unknown_names import find_close_name
from everhold.errors import (
    AnswerFailed,
    BadSetting,
    MissingExtra,
    ProviderUnavailable,
    ProviderUnconfigured,
)

if TYPE_CHECKING:
    from pydantic_ai.models import Model

_MODEL_NAME: Final = re.compile(
    r"(?P<provider>[a-z][a-z0-9-]*):(?P<model>[^\s|]+?)(?:@(?P<url>https?://[^\s|@]+))?"
)
_SHAPE: Final = "a model is named provider:name, as anthropic:claude-sonnet-4-6"


class ModelName(msgspec.Struct, frozen=True):
    """One model: provider, name, and the address if it is not the provider's own."""

    provider: str
    model: str
    url: str | None = None

    def __str__(self) -> str:
        return f"{self.provider}:{self.model}" + (f"@{self.url}" if self.url else "")


def parse_model_names(given: Any, where: str = "llm") -> tuple[ModelName, ...]:
    """Parse one or more model names, in the order they are tried; raises `BadSetting`."""
    parts = (
        given.split("|")
        if isinstance(given, str)
        else given
        if isinstance(given, list)
        else [given]
    )
    found = tuple(_parse_model_name(part, where) for part in parts)
    if not found:
        raise BadSetting(where, f"it names no model; {_SHAPE}")
    return found


def is_model_name(text: str) -> bool:
    """Whether a text has the form of a model name, or of several."""
    return all(_MODEL_NAME.fullmatch(part.strip()) for part in text.split("|"))


def _parse_model_name(part: Any, where: str) -> ModelName:
    if not isinstance(part, str):
        raise BadSetting(where, f"{part!r} is not text; {_SHAPE}")
    found = _MODEL_NAME.fullmatch(part.strip())
    if found is None:
        raise BadSetting(where, f"{part!r} is not a model name; {_SHAPE}")
    return ModelName(found["provider"], found["model"], found["url"])


#: Prefixes of the options of a single provider, as pydantic-ai names them.
PROVIDER_PREFIXES: Final = ("anthropic_", "google_", "openai_")
#: The option with fields of the request's body, as pydantic-ai names it.
BODY: Final = "extra_body"
#: The option with headers of the request.
HEADERS: Final = "extra_headers"
#: Options that are not sent to the provider.
LOCAL_OPTIONS: Final = ("model", "tools", ON_UNAVAILABLE)


def merge_provider_settings(
    provider: str, defaults: Mapping[str, Any], given: Mapping[str, JSON]
) -> dict[str, Any]:
    """The settings for pydantic-ai: those of a question over the defaults. Raises `AnswerFailed`
    for an unknown one.

    In `extra`, names with the prefix of a provider stay settings; the others become fields of the
    body. Lua programs, and databases of earlier versions, have such options beside the settings.
    """
    for name in given:
        _refuse_unknown_setting(name)
    found = {**defaults, **given}
    found.pop(EXTRA, None)
    found.pop(BODY, None)
    body: dict[str, Any] = {}
    prefixes = (*PROVIDER_PREFIXES, f"{provider}_")
    for options in (defaults.get(EXTRA), given.get(BODY), _check_extra(given.get(EXTRA))):
        for name, value in (options or {}).items():
            (found if name.startswith(prefixes) else body)[name] = value
    return {**found, BODY: body} if body else found


def _check_extra(extra: Any) -> Any:
    if HEADERS in (extra or {}):
        raise AnswerFailed(
            "a question cannot set headers, because it is stored with its options; use"
            f" everhold.Model({HEADERS}={{…}})",
            "bad_option",
        )
    return extra


def _refuse_unknown_setting(name: str) -> None:
    if name not in (*SETTING_NAMES, BODY) and not name.startswith(PROVIDER_PREFIXES):
        close = find_close_name(name, SETTING_NAMES)
        meant = f"did you mean {close!r}?" if close else "options of your own server go into extra"
        raise AnswerFailed(f"unknown model option {name!r}; {meant}", "bad_option")


MODEL_KEY_VARIABLE: Final = "EVERHOLD_MODEL_KEY"
_OPENAI: Final = ("OPENAI_API_KEY", "OPENAI_BASE_URL")  # a server of your own may need no key
#: For each provider: the variables that hold its key, and the library it needs.
PROVIDER_KEYS: Final[dict[str, tuple[tuple[str, ...], str]]] = {
    "anthropic": (("ANTHROPIC_API_KEY",), "anthropic"),
    "google": (("GOOGLE_API_KEY", "GEMINI_API_KEY"), "google.genai"),
    "openai": (_OPENAI, "openai"),
    "openai-chat": (_OPENAI, "openai"),
    "openai-responses": (_OPENAI, "openai"),
}
_NO_KEY: Final = "none"


def check_model_access(name: ModelName, api_key: str | None = None) -> None:
    """Raise `MissingExtra`, `ProviderUnavailable` or `ProviderUnconfigured` if the model cannot be
    asked.
    """
    if not _is_installed("pydantic_ai"):
        raise MissingExtra("models", f"the model {str(name)!r}")
    if name.provider not in PROVIDER_KEYS:
        try:
            _import_provider(name.provider)
        except ImportError as error:
            raise MissingExtra("models", f"the model {str(name)!r} ({error})") from None
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
    """The open clients of one answerer, one per model and event loop."""

    def __init__(self, api_key: str | None = None) -> None:
        self._api_key = api_key
        # A client's connections belong to one event loop.
        self._by_loop: WeakKeyDictionary[asyncio.AbstractEventLoop, _LoopClients] = (
            WeakKeyDictionary()
        )

    async def model(self, name: ModelName) -> Model:
        """The client of a model, opened on the running loop if it is not open."""
        loop = asyncio.get_running_loop()
        clients = self._by_loop.setdefault(loop, _LoopClients())
        async with clients.lock:
            if name not in clients.models:
                check_model_access(name, self._api_key)
                # In a thread: a provider's library can take seconds to import.
                client = await asyncio.to_thread(_make_client, name, self._api_key)
                clients.models[name] = await clients.stack.enter_async_context(client)
        return clients.models[name]

    async def close(self) -> None:
        """Close the clients of the running loop."""
        clients = self._by_loop.pop(asyncio.get_running_loop(), None)
        if clients is not None:
            await clients.stack.aclose()


class _LoopClients:
    def __init__(self) -> None:
        self.models: dict[ModelName, Model] = {}
        self.stack = AsyncExitStack()
        self.lock = asyncio.Lock()


def _make_client(name: ModelName, api_key: str | None) -> Model:
    maker: Callable[[ModelName, str | None], Model] = _MAKERS.get(name.provider, _make_other)
    try:
        return maker(name, _choose_key(name, api_key))
    except ImportError as error:
        raise MissingExtra("models", f"the model {str(name)!r} ({error})") from None


def _choose_key(name: ModelName, api_key: str | None) -> str | None:
    """The key to send; None means the provider's own variable."""
    if name.url is None or api_key is not None:
        return api_key
    return os.environ.get(MODEL_KEY_VARIABLE) or _NO_KEY


def _make_openai(name: ModelName, key: str | None) -> Model:
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
    # Without a finish reason, an incomplete stream would look like a complete answer.
    whole = OpenAIModelProfile(openai_chat_streaming_requires_finish_reason=True)
    return OpenAIChatModel(name.model, provider=provider, profile=whole)


def _make_anthropic(name: ModelName, key: str | None) -> Model:
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.providers.anthropic import AnthropicProvider

    return AnthropicModel(name.model, provider=AnthropicProvider(api_key=key, base_url=name.url))


def _make_google(name: ModelName, key: str | None) -> Model:
    from pydantic_ai.models.google import GoogleModel
    from pydantic_ai.providers.google import GoogleProvider

    return GoogleModel(name.model, provider=GoogleProvider(api_key=key, base_url=name.url))


def _make_other(name: ModelName, key: str | None) -> Model:
    """Any other provider of pydantic-ai, configured by its own variables."""
    from pydantic_ai.exceptions import UserError
    from pydantic_ai.models import infer_model

    if key is not None:
        raise BadSetting(
            "llm",
            f"{name.provider} accepts no address or key here; only {', '.join(PROVIDER_KEYS)} do",
        )
    try:
        return infer_model(f"{name.provider}:{name.model}")
    except UserError as error:
        reason = str(error).partition(". ")[0]
        raise ProviderUnconfigured(
            name.provider, reason, "Set the environment variables of this provider."
        ) from None


_MAKERS: Final[dict[str, Callable[[ModelName, str | None], Any]]] = {
    "anthropic": _make_anthropic,
    "google": _make_google,
    "openai": _make_openai,
    "openai-chat": _make_openai,
    "openai-responses": _make_openai,
}


def _is_installed(library: str) -> bool:
    try:
        return find_spec(library) is not None
    except ModuleNotFoundError:  # the parent of google.genai may be missing too
        return False


def refuse_unknown_provider(provider: str) -> None:
    """Raise `ProviderUnavailable` for a provider that does not exist. Without pydantic-ai, or the
    library of the provider, nothing is refused: another process may have it.
    """
    if provider in PROVIDER_KEYS or not _is_installed("pydantic_ai"):
        return
    try:
        _import_provider(provider)
    except ImportError:
        return


def _import_provider(provider: str) -> None:
    from pydantic_ai.providers import infer_provider_class

    try:
        infer_provider_class(provider)
    except ValueError:
        close = find_close_name(provider, PROVIDER_KEYS)
        raise ProviderUnavailable(provider, list(PROVIDER_KEYS), close or "") from None
