"""Answers from models of providers.

    everhold.Model("anthropic:claude-sonnet-4-6")        everhold.Model("openai:gpt-5-mini", "google:gemini-2.5-flash")

Rules
  1. It answers `llm` queries and nothing else. The model that a query names goes before its own,
     unless it is told to ask its own always.
  2. A failure that may pass is waited for, within limits; then the next model is asked. What stays
     is an answer: the program sees an error with a code. A model that cannot be asked here at all
     leaves the query open.
  3. Where words are sent is decided by who opens the runtime, or writes the agent: a plain question
     may name a provider and its model, and no address.
  4. When the query is withdrawn, the request is closed at once.
"""  # noqa: E501

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from importlib import import_module
from random import random
from typing import Any

from everhold.core.query import MODEL_KINDS, Query, QueryAnswer, refuse_other_kinds
from everhold.errors import AnswerFailed, BadSetting, NotAllowed, ProviderMismatch
from everhold.models.provider_access import (
    ModelClients,
    ModelName,
    check_model_access,
    parse_model_names,
    refuse_unknown_option,
)
from everhold.models.retry import Patience, RetryBackoff
from everhold.models.test_guard import refuse_in_tests
from everhold.ports.answerer import Answer, Answerer
from everhold.ports.stream import Delta, DeltaKind, publish_delta

log = logging.getLogger("everhold")

_HEADERS = "extra_headers"


class Model(Answerer):
    """Asks a model of a provider, `provider:name`; with several, the next if one cannot answer."""

    kinds = MODEL_KINDS

    def __init__(
        self,
        *models: str,
        api_key: str | None = None,
        only: Sequence[str] = (),
        always: bool = False,
        stream: bool = True,
        patience: Patience | None = None,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        random: Callable[[], float] = random,
        **options: Any,
    ) -> None:
        """The models to ask, the first that can answer; `only` names the providers that queries may
        ask for.

        Without any model, it answers the queries of agents that name one. With `always`, its models
        are asked whatever a query names. Other options go with every question.
        """
        self.names = tuple(name for model in models for name in parse_model_names(model))
        if always and not self.names:
            raise BadSetting("llm", "always asks the models that are named here, and there is none")
        self._always = always
        self.patience = patience or Patience()
        self._only = tuple(only)
        self._stream = stream
        self._sleep = sleep
        self._random = random
        self._defaults = {
            **_checked(options),
            "timeout": self.patience.chunk_timeout,
            "max_retries": 0,
        }
        self._api_key = api_key
        self._reach = ModelClients(api_key)

    def __repr__(self) -> str:
        return f"Model({', '.join(repr(str(name)) for name in self.names)})"

    def check(self) -> None:
        """Raise what keeps this process from asking these models, or where a test runs."""
        if self.names:
            refuse_in_tests(repr(self))
        for name in self.names:
            check_model_access(name, self._api_key)

    def takes(self, query: Query) -> bool:
        """Whether it answers this query: without a model of its own, only that of an agent with
        one.
        """
        return bool(self.names) or (
            query.args is not None and bool((query.options or {}).get("model"))
        )

    async def close(self) -> None:
        """Close the connections of this event loop."""
        await self._reach.close()

    async def answer(self, query: Query, session_id: str) -> Answer | QueryAnswer:
        refuse_other_kinds(self.kinds, query)
        wanted = self._wanted(query, session_id)
        refuse_in_tests(f"Model({str(wanted[0])!r})")
        troubles: list[Any] = []
        for name in wanted:
            if troubles:
                publish_delta(session_id, query.id, Delta(DeltaKind.RESET, name=str(name)))
            said = await self._asked(name, query, session_id, troubles)
            if said is not None:
                if isinstance(said, Answer):
                    publish_delta(session_id, query.id, Delta(DeltaKind.END))
                return said
        raise _failed(troubles)

    def _wanted(self, query: Query, session_id: str) -> tuple[ModelName, ...]:
        """The models to ask, as the query or whoever opened the runtime says."""
        given = None if self._always else (query.options or {}).get("model")
        if not given:
            if not self.names:
                raise NotAllowed(
                    f"{query.id} names no model, and there is none here", "Give llm= a model."
                )
            return self.names
        found = parse_model_names(given, "model")
        for name in found:
            if self._only and name.provider not in self._only:
                raise ProviderMismatch(session_id, ", ".join(self._only), name.provider)
            if name.url is not None and query.args is None and name not in self.names:
                raise NotAllowed(
                    f"{query.id} asks to be sent to {name.url}, and a question does not choose"
                    " where words go",
                    "Give the address to whoever opens the runtime: llm=, --model or the"
                    " settings; or to an agent.",
                )
        return found

    async def _asked(
        self, name: ModelName, query: Query, session_id: str, troubles: list[Any]
    ) -> Answer | QueryAnswer | None:
        """Ask one model until it has answered, or there is no use in it: then its trouble is
        added.
        """
        hear = partial(publish_delta, session_id, query.id) if self._stream else None
        ask, trouble_of = await asyncio.to_thread(_loaded, name, self._api_key)
        pace = RetryBackoff(self.patience, self._random)
        while True:
            try:
                model = await self._reach.model(name)
                async with asyncio.timeout(self.patience.timeout):
                    said: Answer | QueryAnswer = await ask(
                        model, name, query, self._defaults, hear=hear
                    )
                return said
            except Exception as error:
                trouble = trouble_of(name, error)
            wait = trouble.wait(pace)
            if wait is None:
                troubles.append(trouble)
                return None
            log.info(
                "%s of session %s is asked again in %g s: %s",
                query.id,
                session_id,
                wait,
                trouble.words,
            )
            publish_delta(session_id, query.id, Delta(DeltaKind.RESET, name=str(name)))
            await self._sleep(wait)


def _loaded(name: ModelName, api_key: str | None) -> tuple[Any, Any]:
    """What needs the extra; raises `MissingExtra` where it is not installed."""
    check_model_access(name, api_key)
    ask = import_module("everhold.models.model_request")
    trouble = import_module("everhold.models.provider_errors")
    return ask.ask_model, trouble.classify_model_error


def _failed(troubles: list[Any]) -> Exception:
    """What comes of it when no model has answered."""
    answers = [trouble for trouble in troubles if trouble.cannot is None]
    if not answers:
        cannot: Exception = troubles[0].cannot
        return cannot
    if len(troubles) == 1:
        return AnswerFailed(answers[0].words, answers[0].code)
    words = "; ".join(trouble.words for trouble in troubles)
    return AnswerFailed(f"no model could answer: {words}", answers[-1].code)


def _checked(options: dict[str, Any]) -> dict[str, Any]:
    for name in options:
        if name == _HEADERS:
            continue
        try:
            refuse_unknown_option(name)
        except AnswerFailed as error:
            raise BadSetting("llm", str(error)) from None
    return options
