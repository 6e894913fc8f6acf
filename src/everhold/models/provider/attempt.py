"""One question to one model, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models import Model

from everhold.core.query import Answer, Query
from everhold.errors import AnswerFailed
from everhold.models.provider.model_name import Name
from everhold.models.provider.request import (
    messages_of,
    parameters_of,
    settings_of,
    speaks_of_system,
)
from everhold.models.provider.response import usage_of, value_of
from everhold.models.provider.stream import delta_of
from everhold.ports.answer import Said
from everhold.ports.stream import Delta

#: Reasons to end that are no answer: asking again would end the same way.
ENDS: Final = {
    "length": ("output_limit", "its answer was cut at max_tokens={}; allow more, or ask for less"),
    "content_filter": ("content_filter", "it will not answer this"),
}


async def asked(
    model: Model,
    name: Name,
    query: Query,
    defaults: Mapping[str, Any],
    *,
    hear: Callable[[Delta], None] | None,
) -> Said | Answer:
    """What the model says; an answer with an error if it ended for a reason that stays. Raises all
    other trouble.
    """
    settings = settings_of(query, defaults)
    native = bool(model.profile.get("supports_json_schema_output", False))
    parameters = parameters_of(query, native=native)
    messages = messages_of(query)
    # not every provider has a place for it in the middle of a conversation
    if speaks_of_system(messages):
        messages = model.prepare_messages(messages, parameters)
    if hear is None:
        response = await model_request(
            model,
            messages,
            model_settings=settings,
            model_request_parameters=parameters,
            instrument=False,
        )
    else:
        async with model_request_stream(
            model,
            messages,
            model_settings=settings,
            model_request_parameters=parameters,
            instrument=False,
        ) as stream:
            async for event in stream:
                delta = delta_of(event)
                if delta is not None:
                    hear(delta)
            response = stream.get()
    return _answer(name, query, response)


def _answer(name: Name, query: Query, response: ModelResponse) -> Said | Answer:
    usage = usage_of(response, name.model)
    reason = response.finish_reason
    if reason in ENDS:
        code, words = ENDS[reason]
        return Answer(
            query.q,
            error={"code": code, "message": f"{name}: {words.format(query.max_tokens)}"},
            usage=usage,
        )
    if reason is None or reason == "error":
        raise AnswerFailed(f"{name}: the answer broke off", "bad_response")
    if not response.tool_calls and not any(
        isinstance(part, TextPart) and part.content for part in response.parts
    ):
        raise AnswerFailed(f"{name}: the answer is empty", "empty_response")
    return Said(value_of(query, response), usage)
