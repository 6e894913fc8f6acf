"""One question to one model, once."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from pydantic_ai.direct import model_request, model_request_stream
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models import Model

from everhold.core.query import Query, QueryAnswer
from everhold.errors import AnswerFailed
from everhold.models.provider.model_name import ModelName
from everhold.models.provider.request import (
    has_system_message,
    make_model_messages,
    make_model_settings,
    make_request_parameters,
)
from everhold.models.provider.response import (
    parse_stream_event,
    read_answer_value,
    read_response_usage,
)
from everhold.ports.answerer import Answer
from everhold.ports.stream import Delta

#: Reasons to end that are no answer: asking again would end the same way.
FINAL_FINISH_REASONS: Final = {
    "length": ("output_limit", "its answer was cut at max_tokens={}; allow more, or ask for less"),
    "content_filter": ("content_filter", "it will not answer this"),
}


async def ask_model(
    model: Model,
    name: ModelName,
    query: Query,
    defaults: Mapping[str, Any],
    *,
    hear: Callable[[Delta], None] | None,
) -> Answer | QueryAnswer:
    """What the model says; an answer with an error if it ended for a reason that stays. Raises all
    other trouble.
    """
    settings = make_model_settings(query, defaults)
    native = bool(model.profile.get("supports_json_schema_output", False))
    parameters = make_request_parameters(query, native=native)
    messages = make_model_messages(query)
    # not every provider has a place for it in the middle of a conversation
    if has_system_message(messages):
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
                delta = parse_stream_event(event)
                if delta is not None:
                    hear(delta)
            response = stream.get()
    return _answer(name, query, response)


def _answer(name: ModelName, query: Query, response: ModelResponse) -> Answer | QueryAnswer:
    usage = read_response_usage(response, name.model)
    reason = response.finish_reason
    if reason in FINAL_FINISH_REASONS:
        code, words = FINAL_FINISH_REASONS[reason]
        return QueryAnswer(
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
    return Answer(read_answer_value(query, response), usage)
