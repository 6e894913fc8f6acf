"""The model provider of a conversation: agents name it, and a conversation remembers it.

Rules
  1. A conversation belongs to the provider of its last turn. A turn with an agent of another
     provider fails with `provider_mismatch`: its history was made for the other one, and goes to
     another company.
  2. A caller who names the model allows it: `configure(model=…)` for the conversation, or
     `send(…, options={"model": …})` for one turn.
  3. An agent that names no model leaves the choice to the runtime, and changes nothing.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from typing import Any, Final

from everhold.agents.loop_state import AgentDefinition, LoopState
from everhold.core.codec import JSON
from everhold.errors import BadSetting, ProviderMismatch
from everhold.models.provider_access import parse_model_names

#: The fact with the providers of the last turn, and that of a turn that was refused.
PROVIDER_FACT: Final = "provider"
MISMATCH_FACT: Final = "provider_mismatch"


def check_model_form(model: str | None) -> str | None:
    """The model of an agent; raises `BadSetting` if it is malformed."""
    if model is not None:
        parse_model_names(model, "model")
    return model


def check_agent_models(agent: AgentDefinition, check: Callable[[str], None]) -> None:
    """Check the models that an agent and its subagents name."""
    known: set[int] = set()
    left: list[Any] = [agent]
    while left:
        one = left.pop()
        if id(one) in known:
            continue
        known.add(id(one))
        if one.model is not None:
            check(one.model)
        left += [subagent.agent for subagent in one.subagents.values()]


def name_providers(model: JSON) -> Sequence[str]:
    """The providers of a model name, in order; the APIs of OpenAI are one. None for another kind of
    name, which a function understands.
    """
    return _parse_providers(model) if model and isinstance(model, str) else ()


@functools.lru_cache(maxsize=256)  # each turn asks for the same few
def _parse_providers(model: str) -> tuple[str, ...]:
    try:
        found = parse_model_names(model)
    except BadSetting:
        return ()
    names = ("openai" if one.provider.startswith("openai-") else one.provider for one in found)
    return tuple(dict.fromkeys(names))


def is_other_provider(known: Collection[str], named: Collection[str]) -> bool:
    """Whether a conversation of these providers cannot continue with those that are named."""
    return bool(known) and bool(named) and set(known).isdisjoint(named)


class SessionProvider:
    """The provider of one conversation, in its loop."""

    def __init__(self, loop: LoopState) -> None:
        self._loop = loop
        self._known: list[str] = []

    def check(self) -> None:
        """Raise `ProviderMismatch` if the agent names another provider than the conversation has.

        A replay follows what was recorded, whatever model the agent names now.
        """
        loop = self._loop
        if loop.turn_options.get("model"):
            return
        chosen = loop.options.of(loop.graph.frame.id).get("model")
        named = name_providers(chosen or loop.agent.model)
        if not named and loop.ctx.recorded() is None:
            return
        differs = not chosen and is_other_provider(self._known, named)
        refused: Any = loop.ctx.fact(MISMATCH_FACT, list(named) if differs else None)
        now: Any = self._known if differs or not named else named
        self._known = list(loop.ctx.fact(PROVIDER_FACT, list(now), []) or [])
        if refused:
            raise make_mismatch(loop.ctx.session_id, self._known, refused)


def make_mismatch(
    session_id: str, known: Collection[str], named: Collection[str]
) -> ProviderMismatch:
    return ProviderMismatch(session_id, ", ".join(known), ", ".join(named), remembered=True)
