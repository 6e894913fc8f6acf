"""The plugins of one conversation: copies of the agent's, asked and told in their order, with what
they keep.

Rules
  1. What a plugin keeps is written down with what it decided, and with the turn, but only if its
     revision has changed.
  2. A snapshot that could not be taken changes nothing: the old one stays, and so does the old
     fingerprint.
  3. A plugin of which a snapshot knows nothing begins anew.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Any

import msgspec

from everhold.agents.directives import Decision, DirectiveFold, call_hook, encode_directive
from everhold.core.codec import JSON, to_plain
from everhold.core.query import Kind
from everhold.errors import EverholdError
from everhold.hooks import (
    BY_PRIORITY,
    HOOKS,
    Finish,
    Moment,
    Plugin,
    ReplaceResult,
    Reply,
    apply_before_store,
    overrides_hook,
)
from everhold.ports.agent import AgentContext
from everhold.ports.program import KeptEffect

log = logging.getLogger("everhold")


class PluginHost:
    """The plugins of one conversation."""

    def __init__(self, plugins: Sequence[Plugin]) -> None:
        self.plugins = tuple(copy.copy(plugin) for plugin in plugins)
        for plugin in self.plugins:
            plugin.restore(None)
        self.hooks = [
            hook for hook in HOOKS if any(overrides_hook(plugin, hook) for plugin in self.plugins)
        ]
        self.fingerprint = self._noted = fingerprint_plugins(self.plugins)
        self.kept: dict[str, JSON] = {}

    def those(self, hook: str) -> list[Plugin]:
        found = [plugin for plugin in self.plugins if overrides_hook(plugin, hook)]
        return sorted(found, key=lambda plugin: -plugin.priority) if hook in BY_PRIORITY else found

    # ---- before

    async def decide(
        self,
        hook: str,
        moment: Moment,
        given: Sequence[tuple[str, tuple[Any, ...]]],
        earlier: Sequence[Decision] = (),
        said: dict[str, tuple[JSON, ...]] | None = None,
    ) -> JSON:
        """Ask all plugins, for each of what is given, and return what they decided with what they
        keep, as data.
        """
        fold = DirectiveFold(hook, self.those(hook), moment, earlier, said)
        decided = [
            [plugin, about, encode_directive(self._stored(one))]
            for plugin, about, one in await fold.about(given)
        ]
        found: dict[str, JSON] = {"writes": fold.writes} if fold.writes else {}
        if decided:
            found["said"] = decided
            found["folded"] = True
        state = self.capture()
        if state is not None:
            found["state"] = state
        return found

    def _stored(self, directive: Any) -> Any:
        """A directive that has a result, a model's words or the value of a turn is written down as
        those are.
        """
        if "before_store" not in self.hooks or not isinstance(
            directive, Reply | ReplaceResult | Finish
        ):
            return directive
        (content,) = msgspec.structs.astuple(directive)
        return type(directive)(apply_before_store(self.plugins, content))

    async def mutate(self, moment: Moment, options: dict[str, JSON]) -> JSON:
        """Let each plugin change the options that are about to be set; one that fails is
        skipped.
        """
        for plugin in self.those("before_config"):
            try:
                for one in await call_hook(
                    plugin, "before_config", moment, (to_plain(options, "options"),)
                ):
                    options = to_plain(one.options, "options")
            except EverholdError as error:
                log.warning("%s; the options stay as they were", error)
        found: dict[str, JSON] = {
            "options": options,
            **({"writes": moment.writes} if moment.writes else {}),
        }
        state = self.capture()
        return found if state is None else {**found, "state": state}

    # ---- after

    def told(self, hook: str, *arguments: Any) -> Callable[[], Any]:
        """Tell all plugins that listen; for after the commit."""
        return functools.partial(self._tell, hook, arguments)

    async def _tell(self, hook: str, arguments: tuple[Any, ...]) -> None:
        for plugin in self.those(hook):
            try:
                done = getattr(plugin, hook)(*arguments)
                if inspect.isawaitable(done):
                    await done
            except Exception:
                log.exception("the plugin %r failed in %s", plugin.name, hook)

    # ---- what they keep

    def capture(self) -> JSON:
        """What the plugins keep, if any revision has changed since; else None."""
        now = fingerprint_plugins(self.plugins)
        if now == self.fingerprint:
            return None
        try:
            kept = {plugin.name: self._kept(plugin) for plugin in self.plugins}
        except Exception:
            log.exception("what the plugins keep could not be captured; the last one stands")
            return None
        self.fingerprint = now
        self.kept = kept
        return {"fingerprint": now, "plugins": kept}

    def _kept(self, plugin: Plugin) -> JSON:
        return {
            "version": plugin.version,
            "revision": plugin.revision,
            "state": to_plain(plugin.snapshot(), plugin.name),
        }

    def unkept(self) -> JSON:
        """What the plugins keep, if it is not what the conversation has of them; else None."""
        self.capture()
        return (
            None
            if self.fingerprint == self._noted
            else {"fingerprint": self.fingerprint, "plugins": self.kept}
        )

    def noted(self, state: JSON) -> None:
        """The conversation has this of them."""
        self.adopt(state)
        self._noted = state["fingerprint"]

    def reset(self) -> None:
        """Begin anew; the conversation is told of it with the turn."""
        self.adopt(None, whole=True)
        self._noted = "" if self.plugins else self.fingerprint

    def adopt_if(self, answer: JSON) -> None:
        """Know what was kept with a decision, if anything was."""
        if "state" in answer:
            self.adopt(answer["state"])

    def adopt(self, state: JSON, *, whole: bool = False) -> None:
        """Know what was kept; without `whole`, a plugin that already knows more is left as it
        is.
        """
        entries: dict[str, Any] = {} if state is None else state["plugins"]
        for plugin in self.plugins:
            entry = entries.get(plugin.name)
            if entry is not None and (whole or plugin.revision < entry["revision"]):
                plugin.restore(entry["state"])
                plugin.revision = entry["revision"]
            elif entry is None and whole:
                plugin.restore(None)
                plugin.revision = 0
        if whole or state is None:
            self.kept, self.fingerprint = dict(entries), fingerprint_plugins(self.plugins)
        elif not any(_is_later(old, entries.get(name)) for name, old in self.kept.items()):
            # of what is kept, not of what is
            self.kept, self.fingerprint = dict(entries), str(state["fingerprint"])
        if whole:
            self._noted = self.fingerprint


def _is_later(one: Any, other: Any) -> bool:
    """Whether what was kept of a plugin is of a later revision: decisions beside each other may
    come in any order.
    """
    return other is not None and bool(one["revision"] > other["revision"])


def fingerprint_plugins(plugins: Sequence[Plugin]) -> str:
    """It changes if and only if the name, version or revision of a plugin does, or their order: 64
    bits, as text.
    """
    told = b"".join(
        plugin.name.encode()
        + b"\0"
        + plugin.version.encode()
        + b"\0"
        + plugin.revision.to_bytes(8, "little")
        + b"\xff"
        for plugin in plugins
    )
    return f"{int.from_bytes(sha256(told).digest()[:8], 'little'):016x}"


class GuardedContext:
    """`ctx` for the tools of an agent with plugins: what comes of a call is written down as the
    plugins want it.
    """

    def __init__(self, ctx: AgentContext, plugged: PluginHost, asking: Callable[..., None]) -> None:
        self._ctx = ctx
        self._plugged = plugged
        self._asking = asking
        self._keeps = "before_store" in plugged.hooks

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    async def put(
        self, kind: Kind, effect: Callable[[], Any] | None = None, **more: Any
    ) -> tuple[int, Any]:
        if effect is not None and kind is Kind.CALL and self._keeps:
            keep = functools.partial(apply_before_store, self._plugged.plugins)
            effect = KeptEffect(effect, keep)
        self._asking(kind, more)
        return await self._ctx.put(kind, effect, **more)
