"""The models of providers, through pydantic-ai, which is imported with the first query.

    everhold.Model("anthropic:claude-sonnet-4-6")
    everhold.Model("openai:gpt-5-mini", "google:gemini-2.5-flash")

Rules
  1. It answers `llm` queries only. A model that the query names is preferred to its own models,
     unless `always` is set.
  2. Temporary failures are retried (`retry.py`), then the next model is asked. If all fail, the
     failure is the answer: the program sees an error with a code. If no model can be asked in this
     process, the query stays open with the reason, or fails (`on_unavailable`).
  3. The runtime's or the agent's author decides where text is sent. A plain query may name a
     provider and a model, but not an address.
  4. The request is closed at once if its query is withdrawn.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from importlib import import_module
from random import random
from typing import Any, Unpack

from everhold.core.model_settings import ModelSettings, parse_model_settings
from everhold.core.query import MODEL_KINDS, Query, QueryAnswer, refuse_other_kinds
from everhold.core.retry import Retry, parse_retry
from everhold.core.schema import PositiveSeconds, Seconds, describe_misfit
from everhold.core.unknown_names import list_keyword_names
from everhold.errors import AnswerFailed, BadSetting, NotAllowed, ProviderMismatch
from everhold.models.provider_access import (
    HEADERS,
    ModelClients,
    ModelName,
    check_model_access,
    parse_model_names,
    refuse_unknown_provider,
)
from everhold.models.retry import (
    CHUNK_TIMEOUT,
    MODEL_RETRY,
    MODEL_TIMEOUT,
    RATE_LIMIT_WAIT,
    RetryBackoff,
)
from everhold.models.test_guard import refuse_in_tests
from everhold.ports.answerer import Answer, Answerer, check_on_unavailable
from everhold.ports.stream import Delta, DeltaKind, publish_delta

log = logging.getLogger("everhold")

_ONCE = Retry(1)


class Model(Answerer):
    """A model of a provider, `provider:name`; with several, the next one if the first fails."""

    kinds = MODEL_KINDS

    def __init__(
        self,
        *models: str,
        api_key: str | None = None,
        only: Sequence[str] = (),
        always: bool = False,
        stream: bool = True,
        retry: Retry | None = None,
        timeout: float = MODEL_TIMEOUT,
        chunk_timeout: float = CHUNK_TIMEOUT,
        rate_limit_wait: float = RATE_LIMIT_WAIT,
        on_unavailable: str | None = None,
        sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep,
        random: Callable[[], float] = random,
        extra_headers: Mapping[str, str] | None = None,
        **settings: Unpack[ModelSettings],
    ) -> None:
        """`models` are tried in order; `only` lists the providers that queries may name.

        Without models, only queries of agents that name a model are answered. With `always`, the
        model that a query names is ignored. `on_unavailable` is "wait" or "fail", for queries that
        it cannot answer. `retry` is the policy for one model, for queries without one of their own;
        `timeout` limits one attempt, `chunk_timeout` the time without data in it, and
        `rate_limit_wait` all waits for rate limits. The settings hold for every query that does not
        say otherwise; `extra_headers` are sent with every request, and are not stored.
        """
        given = parse_model_settings("Model", settings, also=list_keyword_names(Model.__init__))
        self.names = tuple(name for model in models for name in parse_model_names(model))
        if always and not self.names:
            raise BadSetting("llm", "always=True needs at least one model")
        self._always = always
        self.retry = parse_retry(retry) or MODEL_RETRY
        for name, seconds in (("timeout", timeout), ("chunk_timeout", chunk_timeout)):
            if misfit := describe_misfit(seconds, PositiveSeconds):
                raise BadSetting(name, misfit)
        if misfit := describe_misfit(rate_limit_wait, Seconds):
            raise BadSetting("rate_limit_wait", misfit)
        self._timeout = timeout
        self._rate_limit_wait = rate_limit_wait
        self.on_unavailable = check_on_unavailable(on_unavailable)
        self._only = tuple(only)
        self._stream = stream
        self._sleep = sleep
        self._random = random
        self._defaults = {
            **given,
            **({HEADERS: dict(extra_headers)} if extra_headers else {}),
            "timeout": chunk_timeout,
            "max_retries": 0,
        }
        self._api_key = api_key
        self._clients = ModelClients(api_key)

    def __repr__(self) -> str:
        return f"Model({', '.join(repr(str(name)) for name in self.names)})"

    def check_model(self, name: str) -> None:
        """Raise `BadSetting`, `ProviderMismatch` or `ProviderUnavailable` for a model that queries
        may not name here. A missing key is not looked for: another process may have it.
        """
        if not self._always:
            for one in self._parse_allowed(name, ""):
                refuse_unknown_provider(one.provider)

    def check(self) -> None:
        """Raise the error if this process cannot ask these models, or a test refuses real ones."""
        if self.names:
            refuse_in_tests(repr(self))
        self.check_providers()
        for name in self.names:
            check_model_access(name, self._api_key)

    def check_providers(self) -> None:
        """Raise `ProviderUnavailable` if a provider of its models, or of `only`, does not exist."""
        for provider in (*(name.provider for name in self.names), *self._only):
            refuse_unknown_provider(provider)

    def takes(self, query: Query) -> bool:
        """Whether it answers this query. Without models of its own, the agent must name one."""
        return bool(self.names) or (
            query.args is not None and bool((query.options or {}).get("model"))
        )

    async def close(self) -> None:
        """Close the connections of this event loop."""
        await self._clients.close()

    async def answer(self, query: Query, session_id: str) -> Answer | QueryAnswer:
        refuse_other_kinds(self.kinds, query)
        names = self._choose_models(query, session_id)
        refuse_in_tests(f"Model({str(names[0])!r})")
        failures: list[Any] = []
        for name in names:
            if failures:
                publish_delta(session_id, query.id, Delta(DeltaKind.RESET, name=str(name)))
            answer = await self._ask_with_retry(name, query, session_id, failures)
            if answer is not None:
                if isinstance(answer, Answer):
                    publish_delta(session_id, query.id, Delta(DeltaKind.END))
                return answer
        raise _make_error(failures)

    def _choose_models(self, query: Query, session_id: str) -> tuple[ModelName, ...]:
        """The models to ask: those of the query if it may name them, else its own."""
        given = None if self._always else (query.options or {}).get("model")
        if not given:
            if not self.names:
                raise NotAllowed(
                    f"{query.id} names no model, and llm= names none",
                    "Name a model with llm=, as in llm='anthropic:claude-sonnet-4-6'.",
                )
            return self.names
        found = self._parse_allowed(given, session_id)
        for name in found:
            if name.url is not None and query.args is None and name not in self.names:
                raise NotAllowed(
                    f"{query.id} names the address {name.url}, which a query may not choose",
                    "Name the address with llm=, --model or everhold.toml, or in the agent.",
                )
        return found

    def _parse_allowed(self, given: Any, session_id: str) -> tuple[ModelName, ...]:
        found = parse_model_names(given, "model")
        for name in found:
            if self._only and name.provider not in self._only:
                raise ProviderMismatch(session_id, ", ".join(self._only), name.provider)
        return found

    async def _ask_with_retry(
        self, name: ModelName, query: Query, session_id: str, failures: list[Any]
    ) -> Answer | QueryAnswer | None:
        """Ask one model, with retries; None after the last, with the failure in `failures`."""
        listen = partial(publish_delta, session_id, query.id) if self._stream else None
        ask, classify = await asyncio.to_thread(_loaded, name, self._api_key)
        # with a policy of its own, the question is tried again by the engine
        retry, rate_limit_wait = (
            (self.retry, self._rate_limit_wait) if query.retry is None else (_ONCE, 0.0)
        )
        backoff = RetryBackoff(retry, self._random, rate_limit_wait)
        while True:
            try:
                model = await self._clients.model(name)
                async with asyncio.timeout(self._timeout):
                    answer: Answer | QueryAnswer = await ask(
                        model, name, query, self._defaults, listen=listen
                    )
                return answer
            except Exception as error:
                failure = classify(name, error)
            wait = failure.wait(backoff)
            if wait is None:
                failures.append(failure)
                return None
            log.info(
                "%s of session %s: retry in %g s: %s", query.id, session_id, wait, failure.words
            )
            publish_delta(session_id, query.id, Delta(DeltaKind.RESET, name=str(name)))
            await self._sleep(wait)


def _loaded(name: ModelName, api_key: str | None) -> tuple[Any, Any]:
    """Import the modules that need pydantic-ai; raises `MissingExtra` without it."""
    check_model_access(name, api_key)
    request = import_module("everhold.models.model_request")
    errors = import_module("everhold.models.provider_errors")
    return request.ask_model, errors.classify_model_error


def _make_error(failures: list[Any]) -> Exception:
    """The error when every model has failed; it is not an answer if no model could be asked."""
    answers = [failure for failure in failures if failure.cannot is None]
    if not answers:
        cannot: Exception = failures[0].cannot
        return cannot
    waits = [failure.retry_after for failure in answers if failure.retry_after is not None]
    after = min(waits, default=None)
    if len(failures) == 1:
        return AnswerFailed(answers[0].words, answers[0].code, retry_after=after)
    words = "; ".join(failure.words for failure in failures)
    return AnswerFailed(f"no model could answer: {words}", answers[-1].code, retry_after=after)
