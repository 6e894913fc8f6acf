"""Sorts the errors of model providers: the code a program sees, and whether a retry can help.

The codes are `AnswerFailed.kind`. Programs compare them, so they never change.
"""

from __future__ import annotations

from typing import Any, Final

import httpx2
import msgspec
from pydantic_ai.exceptions import (
    ContentFilterError,
    ModelAPIError,
    ModelAuthenticationError,
    ModelConnectionError,
    ModelContextWindowExceededError,
    ModelHTTPError,
    ModelNotFoundError,
    ModelQuotaExceededError,
    ModelRateLimitError,
    ModelRequestRejectedError,
    ModelRequestTimeout,
    ModelServerError,
    ModelTimeoutError,
    ModelUnavailableError,
    UnexpectedModelBehavior,
    UserError,
)

from everhold.errors import (
    AnswerFailed,
    BadSetting,
    MissingExtra,
    NotAllowed,
    ProviderUnavailable,
    ProviderUnconfigured,
)
from everhold.models.provider_access import ModelName
from everhold.models.retry import RetryBackoff

_SHOWN: Final = 500  # characters of a provider's message

#: The first class that matches decides: the code a program sees, and whether to retry
#: ("throttled" and "passes" are retried, "stays" is not).
ERROR_KINDS: Final[tuple[tuple[type[BaseException], str, str], ...]] = (
    (ModelRateLimitError, "rate_limited", "throttled"),
    (ModelQuotaExceededError, "quota_exceeded", "stays"),
    (ModelContextWindowExceededError, "context_overflow", "stays"),
    (ModelNotFoundError, "model_not_found", "stays"),
    (ModelRequestRejectedError, "model_rejected", "stays"),
    (ModelTimeoutError, "timeout", "passes"),
    (ModelRequestTimeout, "timeout", "passes"),
    (TimeoutError, "timeout", "passes"),
    (ModelConnectionError, "provider_unavailable", "passes"),
    (ModelUnavailableError, "provider_unavailable", "passes"),
    (ModelServerError, "provider_unavailable", "passes"),
    (httpx2.HTTPError, "provider_unavailable", "passes"),
    (ModelHTTPError, "model_rejected", "stays"),
    (ModelAPIError, "bad_response", "passes"),
    (ContentFilterError, "content_filter", "stays"),
    (UnexpectedModelBehavior, "bad_response", "passes"),
    (UserError, "model_rejected", "stays"),
    (ValueError, "bad_response", "passes"),  # the provider sent something malformed
)


class ModelFailure(msgspec.Struct, frozen=True):
    """A failed attempt: the code and message a program sees, and whether to retry."""

    code: str
    words: str
    retry: str = "stays"  # or "passes", or "throttled"
    retry_after: float | None = None
    cannot: Any = None  # the error if this process cannot ask such a model at all

    def wait(self, pace: RetryBackoff) -> float | None:
        """Seconds until the next attempt, or None if there is none."""
        if not pace.retries(self.code, self.retry != "stays"):
            return None
        if self.retry == "throttled":
            return pace.throttled(self.retry_after)
        return pace.failed(self.retry_after)


def classify_model_error(name: ModelName, error: Exception) -> ModelFailure:
    """Classify an error; an error that does not come from a model is raised again."""
    if isinstance(
        error, ProviderUnconfigured | ProviderUnavailable | BadSetting | MissingExtra | NotAllowed
    ):
        return ModelFailure(error.code, str(error), cannot=error)
    if isinstance(error, ModelAuthenticationError):
        refused = ProviderUnconfigured(
            name.provider,
            f"it refuses the key: {_provider_message(error)}",
            "Check the key and its permissions.",
        )
        return ModelFailure(refused.code, str(refused), cannot=refused)
    if isinstance(error, AnswerFailed):
        return ModelFailure(
            error.kind,
            str(error),
            "passes" if error.kind in ("bad_response", "empty_response") else "stays",
        )
    for kind, code, retry in ERROR_KINDS:
        if isinstance(error, kind):
            return ModelFailure(
                code,
                f"{name}: {_provider_message(error)}",
                retry,
                getattr(error, "retry_after", None),
            )
    raise error


def _provider_message(error: BaseException) -> str:
    """The provider's own message, without the library's text around it."""
    body: Any = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    words = inner.get("message") if isinstance(inner, dict) else None
    if not isinstance(words, str):
        words = str(error) or type(error).__name__
    status = getattr(error, "status_code", None)
    return (f"{status} " if status else "") + " ".join(words.split())[:_SHOWN]


#: What each code means, and what everhold does before the program sees it.
ANSWER_ERROR_CODES: Final = {
    "provider_unavailable": (
        "the provider cannot be reached, is overloaded, or fails",
        "retry",
    ),
    "timeout": ("the answer took too long, or no data arrived for too long", "retry"),
    "rate_limited": (
        "the provider's rate limit lasted longer than the policy waits",
        "wait and retry",
    ),
    "bad_response": (
        "the answer is incomplete, or malformed",
        "retry",
    ),
    "empty_response": ("the answer is empty", "retry"),
    "context_overflow": ("the conversation is longer than the model's context", "next model"),
    "quota_exceeded": ("the account has no quota left", "next model"),
    "model_not_found": ("the provider does not have this model", "next model"),
    "model_rejected": ("the provider rejects the request", "next model"),
    "output_limit": ("the answer was cut at `max_tokens`", "nothing"),
    "content_filter": ("the model, or a content filter, refuses to answer", "nothing"),
    "bad_option": ("the query has an option that does not exist", "nothing is sent"),
    "not_supported": ("a message has content that cannot be sent to a model", "nothing is sent"),
}
