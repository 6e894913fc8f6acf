"""Codes of what a program sees when a model has not answered: `AnswerFailed.kind`. They never
change.
"""

from __future__ import annotations

from typing import Final

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
