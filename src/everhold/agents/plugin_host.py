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
from everhold.core.message import Role, ToolUse
from everhold.core.query import Kind
from everhold.core.tool import Confirm, Deny
from everhold.core.turn import merge_options
from everhold.errors import (
    BadDirective,
    EverholdError,
    PluginFailed,
    UnknownOperation,
    UnsettledInput,
)
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
    Operation,
    Plugin,
    ReplaceInput,
    ReplaceResult,
    Reply,
    SetOptions,
    apply_before_store,
    get_operations,
    overrides_hook,
)
from everhold.ports.context import AgentContext
from everhold.ports.program import KeptEffect
from everhold.ports.tool_services import INJECTED_ROLES, StateWrite

#: Extra rounds over the plugins for one call, beyond one per plugin.
MAX_EXTRA_ROUNDS: Final = 8
#: Directives that end a turn or call, in order of precedence.
ENDING_DIRECTIVES: Final = (Abort, Finish, Reply)

#: Verdicts of policies are directives too; their names in the journal.
_VERDICTS: dict[str, type] = {"deny": Deny, "confirm": Confirm}
_TAGS: dict[str, type] = {str(one.__struct_config__.tag): one for one in Directive.__subclasses__()}

#: Plugin, call id (or ""), and directive.
Decision = tuple[str, str, Any]


class DirectiveFold:
    """Asks plugins about one hook, and combines their directives.

    If plugins asked a model, `earlier` is the decision before, and `said` has the answers by
    plugin.
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
        # written values by plugin and call, of the last directives only
        self._writes: dict[tuple[str, str], list[StateWrite]] = {}

    @property
    def writes(self) -> list[StateWrite]:
        """Values written by the plugins, as far as their directives count."""
        return [write for writes in self._writes.values() for write in writes]

    async def about(self, given: Iterable[tuple[str, tuple[Any, ...]]]) -> list[Decision]:
        """The decisions about each item."""
        folds = {
            "before_tool_call": self._call,
            "before_result": self._result,
            "before_compact": self._compact,
        }
        fold: Any = folds.get(self._hook, self._moved)
        return [one for about, arguments in given for one in await fold(about, *arguments)]

    async def _call(self, about: str, call: ToolUse) -> list[Decision]:
        """Decide about a call. At the end each plugin has seen the final input, or has denied the
        call.
        """
        words: dict[str, list[Any]] = {}
        known: dict[str, JSON] = {}  # the last input that each plugin saw or returned
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
        """Pass a result through all plugins; each sees the changes of those before it."""
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
        """Use the first plugin with a new beginning. A plugin that asked a model is called
        first.
        """
        names = [plugin.name for plugin in self._plugins]
        first = min((names.index(name) for name in self._asking if name in names), default=0)
        for plugin in self._plugins[first:]:
            if said := await self._ask(plugin, about):
                return [(plugin.name, about, one) for one in said]
        return []

    async def _moved(self, about: str) -> list[Decision]:
        """Merge options; each plugin sees those of the plugins before it."""
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
        answers = self._said.get(plugin.name, ())
        own = self._moment.of_plugin(plugin.name)
        moment = own.apart(before, answers, options, plugin.roles)
        said = await call_hook(plugin, self._hook, moment, arguments)
        self._writes[plugin.name, about] = (moment.writes or [])[len(before) :]
        return [decode_directive(encode_directive(one)) for one in said]


def _has(said: Iterable[Any], kind: type) -> bool:
    return any(isinstance(one, kind) for one in said)


def _ended(said: list[Decision]) -> list[Decision]:
    """The directives that take effect: one that ends the turn or call, and the messages; otherwise
    all.

    A question to a model comes before everything but an abort.
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
    """The directives that a plugin returns, checked; raises `PluginFailed` and `BadDirective`."""
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
        if isinstance(one, AddMessages):
            _check_roles(plugin, hook, one)
    return found


def _check_roles(plugin: Plugin, hook: str, directive: AddMessages) -> None:
    """Raise `BadDirective` for a message with a role that the plugin does not name."""
    for message in directive.messages:
        role = message.get("role") if isinstance(message, dict) else Role.USER
        if role in INJECTED_ROLES and role not in plugin.roles:
            allowed = [f"a message with the role {one}" for one in plugin.roles]
            raise BadDirective(plugin.name, hook, f"a message with the role {role}", allowed)


# ---- as data


def encode_directive(directive: Any) -> JSON:
    """A directive as the journal stores it."""
    data: dict[str, JSON] = msgspec.to_builtins(directive)
    for name, kind in _VERDICTS.items():
        if type(directive) is kind:
            data = {"do": name, **data}
    return to_plain(data, "a directive")


def decode_directive(data: dict[str, JSON]) -> Any:
    """A directive from the journal."""
    tag = str(data["do"])
    if tag in _VERDICTS:
        return msgspec.convert(
            {name: value for name, value in data.items() if name != "do"}, _VERDICTS[tag]
        )
    return msgspec.convert(data, _TAGS[tag])


def decode_decisions(answer: JSON) -> list[Decision]:
    """Decisions from the journal."""
    said = [
        (str(plugin), str(about), decode_directive(data))
        for plugin, about, data in answer.get("said", [])
    ]
    return said if "folded" in answer else _unfolded(said)


def _unfolded(said: list[Decision]) -> list[Decision]:
    """Decisions from journals written before directives were combined: the first denial or reply,
    without confirmations.
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

    def find(self, name: str) -> Plugin:
        """The plugin of this name; raises `UnknownOperation`."""
        for plugin in self.plugins:
            if plugin.name == name:
                return plugin
        raise UnknownOperation(name, "", sorted(plugin.name for plugin in self.plugins))

    @property
    def extensions(self) -> list[Any]:
        """The objects that the plugins offer, in order."""
        return [one for plugin in self.plugins for one in plugin.extensions]

    def those(self, hook: str) -> list[Plugin]:
        found = [plugin for plugin in self.plugins if overrides_hook(plugin, hook)]
        return sorted(found, key=lambda plugin: -plugin.priority) if hook in BY_PRIORITY else found

    # ---- hooks that decide

    async def decide(
        self,
        hook: str,
        moment: Moment,
        given: Sequence[tuple[str, tuple[Any, ...]]],
        earlier: Sequence[Decision] = (),
        said: dict[str, tuple[JSON, ...]] | None = None,
    ) -> JSON:
        """Call a hook for each item. Returns the decisions and the state of the plugins, as
        data.
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
        """A directive with content, as `before_store` changes it."""
        if "before_store" not in self.hooks or not isinstance(
            directive, Reply | ReplaceResult | Finish
        ):
            return directive
        (content,) = msgspec.structs.astuple(directive)
        return type(directive)(apply_before_store(self.plugins, content))

    async def mutate(self, moment: Moment, options: dict[str, JSON]) -> JSON:
        """Let each plugin change options that are about to be set; a plugin that fails is
        skipped.
        """
        for plugin in self.those("before_config"):
            try:
                for one in await call_hook(
                    plugin, "before_config", moment, (to_plain(options, "options"),)
                ):
                    options = to_plain(one.options, "options")
            except EverholdError as error:
                log.warning("%s; the options are unchanged", error)
        found: dict[str, JSON] = {
            "options": options,
            **({"writes": moment.writes} if moment.writes else {}),
        }
        state = self.capture()
        return found if state is None else {**found, "state": state}

    # ---- hooks that observe

    def told(self, hook: str, *arguments: Any) -> Callable[[], Any]:
        """A function that notifies the plugins, for after the commit."""
        return functools.partial(self._tell, hook, arguments)

    async def _tell(self, hook: str, arguments: tuple[Any, ...]) -> None:
        moment, *rest = arguments
        for plugin in self.those(hook):
            try:
                done = getattr(plugin, hook)(moment.of_plugin(plugin.name), *rest)
                if inspect.isawaitable(done):
                    await done
            except Exception:
                log.exception("plugin %r failed in %s", plugin.name, hook)

    # ---- state

    def capture(self) -> JSON:
        """The state of the plugins, if a revision has changed; otherwise None."""
        now = fingerprint_plugins(self.plugins)
        if now == self.fingerprint:
            return None
        try:
            kept = {plugin.name: self._kept(plugin) for plugin in self.plugins}
        except Exception:
            log.exception("a plugin snapshot failed; the last one is kept")
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
        """The state of the plugins, if the conversation does not have it; otherwise None."""
        self.capture()
        return (
            None
            if self.fingerprint == self._noted
            else {"fingerprint": self.fingerprint, "plugins": self.kept}
        )

    def noted(self, state: JSON) -> None:
        """Mark a state as recorded in the conversation."""
        self.adopt(state)
        self._noted = state["fingerprint"]

    def reset(self) -> None:
        """Reset all plugins; the turn records it."""
        self.adopt(None, whole=True)
        self._noted = "" if self.plugins else self.fingerprint

    def adopt_if(self, answer: JSON) -> None:
        """Take over the state in a decision, if it has one."""
        if "state" in answer:
            self.adopt(answer["state"])

    def adopt(self, state: JSON, *, whole: bool = False) -> None:
        """Take over a recorded state. Without `whole`, a plugin with a later revision keeps its
        own.
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
            # the fingerprint of the recorded state, not of the current one
            self.kept, self.fingerprint = dict(entries), str(state["fingerprint"])
        if whole:
            self._noted = self.fingerprint


def _is_later(one: Any, other: Any) -> bool:
    """Whether one plugin state has a later revision; concurrent decisions may arrive in any
    order.
    """
    return other is not None and bool(one["revision"] > other["revision"])


def fingerprint_plugins(plugins: Sequence[Plugin]) -> str:
    """64 bits as hex. They change if and only if a plugin's name, version or revision changes, or
    their order.
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


async def run_operation(
    host: PluginHost, moment: Moment, plugin: str, operation: str, given: dict[str, JSON]
) -> JSON:
    """Run an operation inside the effect of its turn. Returns its value, what it asked for, and the
    state of the plugins.
    """
    found = host.find(plugin)
    known = get_operations(found).get(operation)
    if known is None:
        raise UnknownOperation(plugin, operation, sorted(get_operations(found)))
    own = moment.apart((), roles=found.roles)
    told: dict[str, JSON] = {"value": await call_operation(found, known, own, given)}
    if own.writes:
        told["writes"] = own.writes
    state = host.capture()
    return told if state is None else {**told, "state": state}


async def call_operation(
    plugin: Plugin, operation: Operation, moment: Moment, given: dict[str, JSON]
) -> JSON:
    """The value of an operation, as JSON; raises `PluginFailed`."""
    arguments = operation.decode_input(given)
    try:
        value = operation.function(plugin, moment, **arguments)
        if inspect.isawaitable(value):
            value = await value
    except Exception as error:
        what = f"{type(error).__name__}: {error}"
        raise PluginFailed(plugin.name, operation.name, what) from error
    return operation.encode_value(value)


class GuardedContext:
    """`ctx` for tools: applies `before_store` to what they store, and notifies plugins of
    queries.
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
