"""How the directives of several plugins become one decision, which is what the journal keeps.

Rules
  1. Plugins are asked in their order. Each sees what the plugins before it made of the input,
     result or options.
  2. A plugin that saw another input than the tool will get is asked again, and its new directives
     replace its old ones; a denial stands. Inputs that do not settle are refused
     (`UnsettledInput`).
  3. Abort stands over everything, then Deny or Finish, then Confirm (each one is asked), then
     Reply.
  4. What plugins are given is a copy: only a directive changes something.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON, is_same_json, to_plain
from everhold.core.message import ToolUse
from everhold.core.tool import Confirm, Deny
from everhold.core.turn import merge_options
from everhold.errors import BadDirective, PluginFailed, UnsettledInput
from everhold.hooks import (
    ALLOWED_DIRECTIVES,
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
)
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
