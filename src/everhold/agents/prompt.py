"""What a model is told beside the messages: contributions in slots, and layers that change them.

Rules
  1. The core's layer is the agent's instructions; over it lies that of the session, then that of
     the turn. A layer may add to a slot, replace it or clear it, or put other slots in another
     order (`template`).
  2. Contributions that say the same in the same slot with the same priority are said once. Slots
     come in the order of the template, and in a slot lower priorities come first.
  3. One prompt is remembered: the same inputs are not put together twice, and anything else is put
     together anew.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from everhold.core.codec import JSON
from everhold.errors import BadArguments
from everhold.hooks import SLOTS, Contribute


class PromptLayer(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """Changes to a prompt, as options say them: `{"prompt": {"add": {"guidance": "…"}}}`."""

    add: dict[str, str] = {}
    replace: dict[str, str] = {}
    clear: list[str] = []
    template: list[str] | None = None


def parse_prompt_layer(given: JSON) -> PromptLayer | None:
    """A layer as options hold it; raises `BadArguments` for what is none."""
    if given is None:
        return None
    try:
        found = msgspec.convert(
            {"add": {"guidance": given}} if isinstance(given, str) else given, PromptLayer
        )
    except msgspec.ValidationError as error:
        raise BadArguments("prompt", str(error)) from None
    for slot in (*found.add, *found.replace, *found.clear, *(found.template or ())):
        check_slot(slot)
    return found


def check_slot(slot: str) -> str:
    """The slot, if there is one of the name; raises `BadArguments`."""
    if slot not in SLOTS:
        raise BadArguments("prompt", f"there is no slot {slot!r}; the slots are {', '.join(SLOTS)}")
    return slot


class PromptBuilder:
    """Puts the system text together, and remembers the last one."""

    def __init__(self) -> None:
        self._key: Any = None
        self._text = ""
        self.built = 0  # how often one was put together

    def text(
        self,
        layers: Sequence[PromptLayer | None],
        contributions: Sequence[Contribute],
        tools: Collection[str] = (),
    ) -> str:
        key = (
            tuple(map(msgspec.json.encode, layers)),
            msgspec.json.encode(contributions),
            tuple(tools),
        )
        if key != self._key:
            self._text = _written(layers, contributions, tools)
            self._key = key
            self.built += 1
        return self._text

    def forget(self) -> None:
        """Put the next one together anew, whatever it is."""
        self._key = None


def _written(
    layers: Sequence[PromptLayer | None],
    contributions: Sequence[Contribute],
    tools: Collection[str],
) -> str:
    slots: dict[str, list[Contribute]] = {slot: [] for slot in SLOTS}
    for one in contributions:
        if not one.tools or any(tool in tools for tool in one.tools):
            slots[check_slot(one.slot)].append(one)
    order: Sequence[str] = SLOTS
    for layer in layers:
        if layer is not None:
            order = layer.template if layer.template is not None else order
            _change(slots, layer)
    parts = [_said(one) for slot in order for one in _distinct(slots[slot])]
    return "\n\n".join(part for part in parts if part)


def _change(slots: dict[str, list[Contribute]], layer: PromptLayer) -> None:
    for slot in layer.clear:
        slots[slot] = []
    for slot, words in layer.replace.items():
        slots[slot] = [Contribute(slot, words)]
    for slot, words in layer.add.items():
        slots[slot].append(Contribute(slot, words))


def _distinct(given: list[Contribute]) -> list[Contribute]:
    found = {(one.priority, one.content.strip()): one for one in reversed(given)}
    kept = [one for one in given if found.get((one.priority, one.content.strip())) is one]
    return sorted(kept, key=lambda one: one.priority)


def _said(one: Contribute) -> str:
    words = one.content.strip()
    return f"## {one.title}\n\n{words}" if one.title and words else words
