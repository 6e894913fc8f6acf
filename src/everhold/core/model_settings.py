"""The settings of a question that every provider knows by the same name, and `extra` for all
others.

`ctx.llm`, `ctx.llm_batch`, `Agent` and `Model` take them as keywords, and refuse every other name
where it is written. They are recorded with the question, as part of its wording.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import reduce
from operator import or_
from types import NoneType
from typing import Annotated, Any, Final, Literal, TypedDict, get_args, get_type_hints

from msgspec import Meta

from everhold.core.codec import JSON, to_plain
from everhold.core.query import ON_UNAVAILABLE
from everhold.core.schema import describe_misfit
from everhold.core.unknown_names import refuse_unknown_names
from everhold.errors import BadArguments

#: The name of the setting that holds the options of single providers and of other answerers.
EXTRA: Final = "extra"


class ModelSettings(TypedDict, total=False):
    """Settings of a question to a model. A provider ignores those that it does not have; None means
    the provider's default.
    """

    temperature: Annotated[float, Meta(ge=0)] | None
    """randomness of the answer"""
    top_p: Annotated[float, Meta(ge=0, le=1)] | None
    """sample from the most likely tokens with this total probability"""
    top_k: Annotated[int, Meta(ge=1)] | None
    """sample from the k most likely tokens"""
    seed: int | None
    """similar answers to equal requests, if the provider supports it"""
    stop_sequences: list[str] | None
    """texts that end the answer"""
    presence_penalty: float | None
    """avoid tokens that were used"""
    frequency_penalty: float | None
    """avoid tokens by how often they were used"""
    logit_bias: dict[str, float] | None
    """make single tokens more or less likely"""
    thinking: bool | Literal["minimal", "low", "medium", "high", "xhigh", "max"] | None
    """`True`, `False`, or an effort: `"minimal"`, `"low"`, `"medium"`, `"high"`, `"xhigh"` or
    `"max"`
    """
    cache: bool | None
    """prompt caching: mark the repeated beginning of the conversation; on by default for agents"""
    tool_choice: Literal["auto", "none", "required"] | list[str] | None
    """`"auto"`, `"none"`, `"required"`, or a list of names"""
    parallel_tool_calls: bool | None
    """whether the model may call several tools at once"""
    service_tier: Literal["auto", "default", "flex", "priority"] | None
    """the provider's service level"""
    extra: Mapping[str, Any] | None
    """options of one provider, such as `anthropic_metadata`, and fields of the request by the
    provider's own names; other answerers define their own
    """


#: The types of the settings, without None.
_TYPES: Final[dict[str, Any]] = {
    name: reduce(or_, (one for one in get_args(type_) if one is not NoneType))
    for name, type_ in get_type_hints(ModelSettings, include_extras=True).items()
}
#: The names of all settings.
SETTING_NAMES: Final = tuple(_TYPES)
#: Options of a question that are not settings of the model.
_OF_QUESTION: Final = ("model", ON_UNAVAILABLE)
_OTHERWISE: Final = "options of a single provider go into extra={…}"


def parse_model_settings(
    where: str, given: Mapping[str, Any], *, also: Iterable[str] = ()
) -> dict[str, JSON]:
    """Settings as plain JSON, without those that are None. Raises `BadArguments` for an unknown
    name or an unfit value.

    `also` are the names of the other keywords of `where`, for the name that was probably meant.
    """
    if not _TYPES.keys() >= given.keys():
        refuse_unknown_names(where, given, [*SETTING_NAMES, *also], _OTHERWISE)
    found: dict[str, JSON] = {}
    for name, value in given.items():
        if value is None:
            continue
        if misfit := describe_misfit(value, _TYPES[name]):
            raise BadArguments(where, f"{name} {misfit}")
        found[name] = to_plain(dict(value) if name == EXTRA else value, name)
    _refuse_settings_in_extra(where, found.get(EXTRA) or {})
    return found


def _refuse_settings_in_extra(where: str, extra: Mapping[str, JSON]) -> None:
    for name in (*SETTING_NAMES, *_OF_QUESTION, "max_tokens"):
        if name in extra:
            raise BadArguments(
                where, f"{name!r} is an option of its own; take it out of extra={{…}}"
            )
