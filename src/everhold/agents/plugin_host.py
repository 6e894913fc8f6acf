"""The plugins of one conversation: calls their hooks, combines their directives, keeps their state.

Directives of several plugins become one decision, and the journal records the decision.

Rules for decisions
  1. Plugins are called in order. Each sees the input, result or options as changed by the plugins
     before it.
  2. A plugin that saw another input than the tool will get is called again, and its new directives
     replace its old ones; a denial stands. Inputs that do not settle are refused
     (`UnsettledInput`).
  3. Abort overrides everything, then Deny or Finish, then Confirm (every one is asked), then Reply.
  4. Plugins receive copies: only a directive changes something.

Rules for state
  1. A plugin's state is recorded with its decision, and with the turn, if its revision has changed.
  2. A failed snapshot changes nothing: the old one stays, and so does the old fingerprint.
  3. A plugin that is missing from a snapshot starts without state.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON, is_same_json, to_plain
from everhold.core.message import ToolUse
from everhold.core.query import Kind
from everhold.core.tool import Confirm, Deny
from everhold.core.turn import merge_options
from everhold.errors import BadDirective, EverholdError, PluginFailed, UnsettledInput
from everhold.hooks import (
    ALLOWED_DIRECTIVES,
    BY_PRIORITY,
    HOOKS,
    Abort,
    AddMessages,
    Ask,
    Compact,
    Directive,
    Finish,
    Moment,
    Plugin,
    ReplaceInput,
    ReplaceResult,
    Reply,
    SetOptions,
    apply_before_store,
    overrides_hook,
)
from everhold.ports.context import AgentContext
from everhold.ports.program import KeptEffect
from everhold.ports.tool_services import StateWrite

#: Times that plugins are asked again about one call, beyond one time for each plugin.
MAX_EXTRA_ROUNDS: Final = 8
#: Directives that end what they are said about, in the order of their precedence.
ENDING_DIRECTIVES: Final = (Abort, Finish, Reply)

#: Verdicts of policies are directives too; what they are called in the journal.
_VERDICTS: dict[str, type] = {"deny": Deny, "confirm": Confirm}
_TAGS: dict[str, type] = {str(one.__struct_config__.tag): one for one in Directive.__subclasses__()}

#: Which plugin decided, about which call (or ""), and what.
Decision = tuple[str, str, Any]


class DirectiveFold:
    """Asks plugins about one hook, and folds what they say.

    Where plugins have asked a model, `earlier` is what was decided before, and `said` has the
    answers by plugin.
    """

    def __init__(
        self,
        hook: str,
        plugins: Sequence[Plugin],
        moment: Moment,
        earlier: Sequence[Decision] = (),
        said: dict[str, tuple[JSON, ...]] | None = None,
    ) -> None:
        self._hook = hook
        self._plugins = plugins
        self._moment = moment
        self._earlier = earlier
        self._said = said or {}
        self._asking = {plugin for plugin, _, one in earlier if isinstance(one, Ask)}
        # by plugin and call: those of its last directives
        self._writes: dict[tuple[str, str], list[StateWrite]] = {}

    @property
    def writes(self) -> list[StateWrite]:
        """What the plugins wrote with the directives that count."""
        return [write for writes in self._writes.values() for write in writes]

    async def about(self, given: Iterable[tuple[str, tuple[Any, ...]]]) -> list[Decision]:
        """The decision about each of what is given."""
        folds = {
            "before_tool_call": self._call,
            "before_result": self._result,
            "before_compact": self._compact,
        }
        fold: Any = folds.get(self._hook, self._moved)
        return [one for about, arguments in given for one in await fold(about, *arguments)]

    async def _call(self, about: str, call: ToolUse) -> list[Decision]:
        """Each plugin has seen the input that the tool gets, or has denied the call."""
        words: dict[str, list[Any]] = {}
        known: dict[str, JSON] = {}  # the input that each plugin saw last, or replaced it with
        now = call.input
        replaced_by = ""
        for _ in range(MAX_EXTRA_ROUNDS + len(self._plugins)):
            settled = True
            for plugin in self._plugins:
                name = plugin.name
                if name in known and (is_same_json(known[name], now) or _has(words[name], Deny)):
                    continue
                settled = False
                words[name] = await self._ask(
                    plugin, about, ToolUse(call.id, call.name, to_plain(now))
                )
                for one in words[name]:
                    if isinstance(one, ReplaceInput) and not is_same_json(one.input, now):
                        now = one.input
                        replaced_by = name
                known[name] = now
            if settled or any(_has(said, Abort) for said in words.values()):
                break
        else:
            raise UnsettledInput(
                call.name, [name for name, said in words.items() if _has(said, ReplaceInput)]
            )
        said = [(name, about, one) for name in words for one in words[name]]
        for kind in (Abort, Deny):
            if ended := [one for one in said if isinstance(one[2], kind)]:
                return ended[:1]
        changed = [] if is_same_json(now, call.input) else [(replaced_by, about, ReplaceInput(now))]
        confirms, replies = (
            [one for one in said if isinstance(one[2], kind)] for kind in (Confirm, Reply)
        )
        return [*changed, *confirms, *replies[:1]]

    async def _result(self, about: str, call: ToolUse, content: JSON) -> list[Decision]:
        """A result passes through all plugins, each of which sees what the one before it made of
        it.
        """
        found: list[Decision] = []
        aborts: list[Decision] = []
        for plugin in self._plugins:
            use = ToolUse(call.id, call.name, to_plain(call.input))
            for one in await self._ask(plugin, about, use, to_plain(content)):
                if isinstance(one, ReplaceResult):
                    content = one.content
                    found = [(plugin.name, about, one)]
                else:
                    aborts.append((plugin.name, about, one))
        return aborts[:1] or found

    async def _compact(self, about: str) -> list[Decision]:
        """The first plugin that has a new beginning is heard; one that asked a model is asked again
        first.
        """
        names = [plugin.name for plugin in self._plugins]
        first = min((names.index(name) for name in self._asking if name in names), default=0)
        for plugin in self._plugins[first:]:
            if said := await self._ask(plugin, about):
                return [(plugin.name, about, one) for one in said]
        return []

    async def _moved(self, about: str) -> list[Decision]:
        """Options are laid over each other; a plugin sees those that the plugins before it set."""
        found: list[Decision] = []
        options = self._moment.options
        for plugin in self._plugins:
            if self._earlier and plugin.name not in self._asking:
                said = [one for name, _, one in self._earlier if name == plugin.name]
            else:
                said = await self._ask(plugin, about, options=options)
            for one in said:
                options = (
                    merge_options(options, one.options) if isinstance(one, SetOptions) else options
                )
                found.append((plugin.name, about, one))
        return _ended(found)

    async def _ask(
        self, plugin: Plugin, about: str, *arguments: Any, options: dict[str, JSON] | None = None
    ) -> list[Any]:
        self._writes.pop((plugin.name, about), None)
        before = self.writes
        moment = self._moment.apart(before, self._said.get(plugin.name, ()), options)
        said = await call_hook(plugin, self._hook, moment, arguments)
        self._writes[plugin.name, about] = (moment.writes or [])[len(before) :]
        return [decode_directive(encode_directive(one)) for one in said]


def _has(said: Iterable[Any], kind: type) -> bool:
    return any(isinstance(one, kind) for one in said)


def _ended(said: list[Decision]) -> list[Decision]:
    """What is done of all that was said: what ends the turn or the call, with the messages; else
    everything.

    Something to ask a model comes before anything but an abort.
    """
    for kind in ENDING_DIRECTIVES:
        if kind is not Abort and any(isinstance(one, Ask) for _, _, one in said):
            return said
        if ended := [one for one in said if isinstance(one[2], kind)]:
            return [*(one for one in said if isinstance(one[2], AddMessages)), ended[0]]
    compacts = [one for one in said if isinstance(one[2], Compact)]
    return [one for one in said if one not in compacts[1:]] if len(compacts) > 1 else said


async def call_hook(
    plugin: Plugin, hook: str, moment: Moment, arguments: tuple[Any, ...]
) -> list[Any]:
    """The directives that a plugin returns, checked."""
    try:
        given = getattr(plugin, hook)(moment, *arguments)
        if inspect.isawaitable(given):
            given = await given
    except Exception as error:
        raise PluginFailed(plugin.name, hook, f"{type(error).__name__}: {error}") from error
    found = [] if given is None else list(given) if isinstance(given, list | tuple) else [given]
    for one in found:
        if type(one) not in ALLOWED_DIRECTIVES[hook]:
            shown = (
                type(one).__name__
                if isinstance(one, Directive | Deny | Confirm)
                else repr(one)[:100]
            )
            raise BadDirective(
                plugin.name, hook, shown, [kind.__name__ for kind in ALLOWED_DIRECTIVES[hook]]
            )
    return found


# ---- as data


def encode_directive(directive: Any) -> JSON:
    """A directive as the journal has it."""
    data: dict[str, JSON] = msgspec.to_builtins(directive)
    for name, kind in _VERDICTS.items():
        if type(directive) is kind:
            data = {"do": name, **data}
    return to_plain(data, "a directive")


def decode_directive(data: dict[str, JSON]) -> Any:
    """A directive as the journal has it, read back."""
    tag = str(data["do"])
    if tag in _VERDICTS:
        return msgspec.convert(
            {name: value for name, value in data.items() if name != "do"}, _VERDICTS[tag]
        )
    return msgspec.convert(data, _TAGS[tag])


def decode_decisions(answer: JSON) -> list[Decision]:
    """What was decided, read back from the journal."""
    said = [
        (str(plugin), str(about), decode_directive(data))
        for plugin, about, data in answer.get("said", [])
    ]
    return said if "folded" in answer else _unfolded(said)


def _unfolded(said: list[Decision]) -> list[Decision]:
    """What stood before directives were folded: the first denial or reply, and no confirmation
    beside it.
    """
    ends: dict[str, Any] = {}
    for _, about, one in said:
        if isinstance(one, Deny | Reply):
            ends.setdefault(about, one)
    verdicts = (Deny, Reply, Confirm)
    return [
        one
        for one in said
        if not isinstance(one[2], verdicts) or ends.get(one[1], one[2]) is one[2]
    ]


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
