"""What went wrong with a model, and whether asking again can help.

Codes of what a program sees when a model has not answered: `AnswerFailed.kind`. They never
change.
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

from everhold.errors import AnswerFailed, BadSetting, MissingExtra, NotAllowed, ProviderUnconfigured
from everhold.models.provider_access import ModelName
from everhold.models.retry import RetryBackoff

_SHOWN: Final = 500  # characters of what a provider says

#: The first that fits: the code a program sees, and whether it may pass by itself.
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
    (ValueError, "bad_response", "passes"),  # what a provider wrote is not what it should be
)


class ModelFailure(msgspec.Struct, frozen=True):
    """A failure to answer: what a program sees of it, and what can be done."""

    code: str
    words: str
    way: str = "stays"  # or "passes", or "throttled"
    retry_after: float | None = None
    cannot: Any = None  # the error that says that this process cannot ask such a model at all

    def wait(self, pace: RetryBackoff) -> float | None:
        """Seconds until the model is asked again, or None."""
        match self.way:
            case "throttled":
                return pace.throttled(self.retry_after)
            case "passes":
                return pace.failed(self.retry_after)
        return None


def classify_model_error(name: ModelName, error: Exception) -> ModelFailure:
    """What an error means; raises it again if it is none of a model's."""
    if isinstance(error, ProviderUnconfigured | BadSetting | MissingExtra | NotAllowed):
        return ModelFailure(error.code, str(error), cannot=error)
    if isinstance(error, ModelAuthenticationError):
        refused = ProviderUnconfigured(
            name.provider,
            f"it refuses the key: {_said(error)}",
            "Check the key and what it may be used for.",
        )
        return ModelFailure(refused.code, str(refused), cannot=refused)
    if isinstance(error, AnswerFailed):
        return ModelFailure(
            error.kind,
            str(error),
            "passes" if error.kind in ("bad_response", "empty_response") else "stays",
        )
    for kind, code, way in ERROR_KINDS:
        if isinstance(error, kind):
            return ModelFailure(
                code, f"{name}: {_said(error)}", way, getattr(error, "retry_after", None)
            )
    raise error


def _said(error: BaseException) -> str:
    """The words of a provider, without what surrounds them."""
    body: Any = getattr(error, "body", None)
    inner = body.get("error", body) if isinstance(body, dict) else None
    words = inner.get("message") if isinstance(inner, dict) else None
    if not isinstance(words, str):
        words = str(error) or type(error).__name__
    status = getattr(error, "status_code", None)
    return (f"{status} " if status else "") + " ".join(words.split())[:_SHOWN]


#: What each code means, and what was done about it before the program saw it.
ANSWER_ERROR_CODES: Final = {
    "provider_unavailable": (
        "the provider cannot be reached, is overloaded or broken",
        "asked again",
    ),
    "timeout": ("the answer took too long, or nothing came for too long", "asked again"),
    "rate_limited": (
        "the provider said “slow down” for longer than it is waited for",
        "waited for",
    ),
    "bad_response": (
        "the answer broke off, or is not what the provider should send",
        "asked again",
    ),
    "empty_response": ("the model said nothing", "asked again"),
    "context_overflow": ("the conversation is longer than the model can read", "next model"),
    "quota_exceeded": ("the account is used up", "next model"),
    "model_not_found": ("the provider does not have this model", "next model"),
    "model_rejected": ("the provider does not take the request as it is", "next model"),
    "output_limit": ("the answer was cut at `max_tokens`", "nothing"),
    "content_filter": ("the model, or a filter before it, will not answer this", "nothing"),
    "bad_option": ("the question has an option that does not exist", "nothing is sent"),
    "not_supported": ("a message holds what cannot be sent to a model", "nothing is sent"),
}
