"""Plugins of agents, on one page: subclass `Plugin`, override the hooks you need, pass it to
`Agent(plugins=[…])`.

    class Calm(Plugin):
        name = "calm"

        def before_turn(self, moment):
            return Contribute("guidance", "Stay calm.")

Rules
  1. A `before_*` hook decides: it returns directives (one, several or none), which are data in the
     journal. It runs before the thing it decides about, and not on replay. After a crash it may run
     again.
  2. An `after_*` hook observes. It runs after the commit. Its exceptions are logged and change
     nothing.
  3. A directive that a hook does not allow raises `BadDirective`, and an exception in a `before_*`
     hook raises `PluginFailed`: the turn fails. No turn continues without one of its plugins.
  4. Each conversation has its own copy of a plugin (`copy.copy`), which starts with
     `restore(None)`.
  5. A hook is a function or a coroutine function. Plugins are called in order, and each sees the
     input, result or options as changed by those before it. Plugins receive copies: only a
     directive changes something.
  6. A plugin that saw another input of a tool than the tool will get is called again. Abort
     overrides everything, then Deny or Finish, then Confirm (every one is asked), then Reply.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final, overload

import msgspec

from everhold.core.codec import JSON
from everhold.core.graph import Frame
from everhold.core.message import ToolUse
from everhold.core.query import Query, Usage
from everhold.core.schema import decode_value_as, encode_value_as, parse_answer
from everhold.core.tool import Confirm, Deny
from everhold.core.turn import SettledTurn
from everhold.errors import AnswerRefused, BadArguments, BadValue, PluginFailed, UnknownPlugin
from everhold.ports.entry_points import PLUGINS, list_entry_point_names, load_entry_point
from everhold.ports.signature import (
    build_parameter_schema,
    get_parameters,
    resolve_hints,
    split_docstring,
)
from everhold.ports.tool_services import INJECTED_ROLES, Moment

__all__ = [
    "SLOTS",
    "Abort",
    "AddMessages",
    "Ask",
    "Compact",
    "Confirm",
    "ContinueAs",
    "Contribute",
    "Deny",
    "Directive",
    "Finish",
    "HookResult",
    "Moment",
    "NewFrame",
    "Operation",
    "Plugin",
    "ReplaceInput",
    "ReplaceResult",
    "Reply",
    "SetOptions",
    "Show",
    "operation",
]

#: The slots of the prompt, in order.
SLOTS: Final = ("intro", "execution", "guidance", "project", "context", "environment")


# ---- directives


class Directive(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="do"):
    """A decision of a plugin, as data."""


class Abort(Directive, frozen=True, tag="abort"):
    """End the turn. Its messages stay, and its outcome names the plugin."""

    reason: str = ""


class AddMessages(Directive, frozen=True, tag="add_messages"):
    """Add messages to the conversation: texts, or `{"role", "content"}` with one of the plugin's
    `roles`.
    """

    messages: list[JSON]


class SetOptions(Directive, frozen=True, tag="set_options"):
    """Set options. In `before_session` and `before_config` they last; in other hooks they hold for
    the turn or call.
    """

    options: dict[str, JSON]


class Contribute(Directive, frozen=True, tag="contribute"):
    """Add text to the prompt of this turn, in one of `SLOTS`; with `tools`, only if one of them is
    offered.
    """

    slot: str
    content: str
    title: str = ""
    priority: int = 0
    tools: list[str] = []


class Show(Directive, frozen=True, tag="show"):
    """Change what the model sees in this call: skip the first `skip` messages, append `extra`."""

    skip: int = 0
    extra: list[JSON] = []


class Reply(Directive, frozen=True, tag="reply"):
    """Use this content in place of a model call or tool call."""

    content: JSON


class ReplaceInput(Directive, frozen=True, tag="replace_input"):
    """Call the tool with this input."""

    input: dict[str, JSON]


class ReplaceResult(Directive, frozen=True, tag="replace_result"):
    """Show the model this content in place of the tool's result. The journal keeps the result."""

    content: JSON


class Ask(Directive, frozen=True, tag="ask"):
    """Ask a model beside the conversation, then call the hook again: `moment.said` has the answers
    so far, and None for a failed model call.

    It is an ordinary question (recorded, replayed, answerable by people). Its tokens are counted
    under `source`.
    """

    prompt: str
    source: str
    system: str | None = None
    max_tokens: int = 1024
    # number of messages of the frame to show before the prompt, by reference
    shown: int | None = None


class Compact(Directive, frozen=True, tag="compact"):
    """Open a new frame with the messages that `before_compact` returns."""


class NewFrame(Directive, frozen=True, tag="new_frame"):
    """The beginning of a new frame: messages, then the last `keep` messages of the old frame,
    unchanged.
    """

    messages: list[JSON]
    keep: int = 0


class ContinueAs(Directive, frozen=True, tag="continue_as"):
    """Continue in a new frame that begins with `task`. Without a name, or with that of the current
    frame, it does nothing.
    """

    frame: str
    task: str
    messages: list[JSON] = []


class Finish(Directive, frozen=True, tag="finish"):
    """End the turn with this value."""

    value: JSON


#: What a `before_*` hook may return.
HookResult = Directive | Deny | Confirm | Sequence[Directive | Deny | Confirm] | None

#: The directives that each hook allows.
ALLOWED_DIRECTIVES: Final[Mapping[str, tuple[type, ...]]] = {
    "before_session": (SetOptions,),
    "before_config": (SetOptions,),
    "before_turn": (Abort, AddMessages, SetOptions, Contribute, Compact, Finish, Ask),
    "before_checkpoint": (Abort, AddMessages, Compact, ContinueAs, Finish, Ask),
    "before_model_call": (Abort, SetOptions, Show, Reply, Ask),
    "before_tool_call": (Abort, Deny, Confirm, ReplaceInput, Reply),
    "before_result": (Abort, ReplaceResult),
    "before_compact": (NewFrame, Ask),
}

#: Hooks that call plugins by `priority`; plugins of one priority, and those of all other hooks, are
#: called in order.
BY_PRIORITY: Final = ("before_result", "before_compact")


class Plugin:
    """The base class: every hook does nothing."""

    name: ClassVar[str] = ""  #: its name in outcomes, errors and snapshots
    version: str = "1"
    priority: int = 0  #: the order in the hooks `BY_PRIORITY`: higher first
    tools: Sequence[Any] = ()  #: tools that it adds to the agent
    #: objects for tools and other plugins, which find them by type: `context.extension(Type)`
    extensions: Sequence[Any] = ()
    #: roles of the messages that it adds; "assistant" has to be named here to be allowed
    roles: Sequence[str] = ("user", "system")
    revision: int = 0  #: increment it whenever `snapshot` would return another value

    # ---- state

    def snapshot(self) -> JSON:
        """The plugin's state for this conversation; recorded with the turn if `revision` has
        changed.
        """
        return None

    def restore(self, state: JSON) -> None:
        """Take over the state of an earlier `snapshot`, and drop any other; None resets the
        plugin.
        """

    # ---- hooks that decide

    def before_session(self, moment: Moment) -> Any:
        """Called once, when a session starts: set options. `moment.root` is false in a child
        session.
        """

    def before_config(self, moment: Moment, options: dict[str, JSON]) -> Any:
        """Called before options are set: return other options. Each plugin sees the previous one's;
        a plugin that raises is skipped.
        """

    def before_turn(self, moment: Moment) -> Any:
        """Called after an input was taken, before the first model call: add to the prompt, add
        messages, set options, or abort.
        """

    def before_checkpoint(self, moment: Moment) -> Any:
        """Called after the tools of a round, and before the turn ends (`moment.completing`)."""

    def before_model_call(self, moment: Moment) -> Any:
        """Called before each model call: change what the model sees, set options for this call,
        reply in its place, or abort.
        """

    def before_tool_call(self, moment: Moment, call: ToolUse) -> Any:
        """Called before each tool call: deny, require a confirmation, change the input, reply in
        its place, or abort.

        It is called again for the same `call.id` if another plugin changes the input; the last
        directives count.
        """

    def before_result(self, moment: Moment, call: ToolUse, content: JSON) -> Any:
        """Called with the result of a tool, as changed by the plugins before: show other content,
        or abort.
        """

    def before_compact(self, moment: Moment) -> Any:
        """Called when the frame should become smaller: return the beginning of a new one. The first
        plugin that returns one wins.
        """

    def before_store(self, value: JSON) -> JSON:
        """Called before an input, a tool result or a model reply is stored: the returned value is
        stored.

        Also called for answers of people and hosts. An answer that arrives in a process without the
        program is stored unchanged until the program gets it.
        """
        return value

    # ---- hooks that observe

    def after_turn(self, moment: Moment, settled: SettledTurn) -> Any:
        """Called after a turn has settled."""

    def after_model_call(self, moment: Moment, usage: Usage | None) -> Any:
        """Called after a model's answer was stored."""

    def after_tool_call(self, moment: Moment, call: ToolUse, content: JSON) -> Any:
        """Called after a tool's result was stored."""

    def after_query(self, moment: Moment, query: Query) -> Any:
        """Called when a question waits for a person: notify them here."""

    def after_frame(self, moment: Moment, frame: Frame) -> Any:
        """Called after a new frame was opened."""

    def after_config(self, moment: Moment, before: dict[str, JSON], now: dict[str, JSON]) -> Any:
        """Called after options have changed."""

    def after_restore(self, moment: Moment) -> Any:
        """Called when a conversation from another process, or from earlier, first moves here."""


# ---- operations for the host


class Operation:
    """A method of a plugin that the host may call: `session.plugin("name").call("operation")`."""

    def __init__(self, function: Callable[..., Any], *, read_only: bool) -> None:
        parameters = get_parameters(function)
        if not parameters:
            raise BadArguments("operation", f"{function.__qualname__} has no parameter for moment")
        self.function = function
        self.name = function.__name__
        self.read_only = read_only
        self.description = split_docstring(inspect.getdoc(function) or "")[0].strip()
        self.schema = build_parameter_schema(function, parameters[0].name)
        self._hints = resolve_hints(function)

    def __get__(self, instance: object, owner: type | None = None) -> Any:
        return self if instance is None else self.function.__get__(instance, owner)

    def encode_input(self, arguments: Mapping[str, Any]) -> dict[str, JSON]:
        """The arguments as plain JSON; raises `BadArguments` if they do not fit."""
        given: dict[str, JSON] = {}
        try:
            for name, value in arguments.items():
                hint = self._hints.get(name) if name in self.schema["properties"] else None
                given[name] = encode_value_as(value, hint, name)
            found: dict[str, JSON] = parse_answer(given, self.schema)
        except (AnswerRefused, BadValue) as error:
            raise BadArguments(self.name, str(error)) from None
        return found

    def decode_input(self, given: Mapping[str, JSON]) -> dict[str, Any]:
        """The input as the method's types."""
        return {
            name: decode_value_as(value, self._hints.get(name, Any), name)
            for name, value in given.items()
        }

    def encode_value(self, value: Any) -> JSON:
        """The return value as plain JSON; raises `BadValue`."""
        return encode_value_as(value, self._hints.get("return"), f"the value of {self.name}")

    def decode_value(self, value: JSON) -> Any:
        """The value as the method's return type."""
        hint = self._hints.get("return")
        return value if hint in (None, Any, type(None)) else decode_value_as(value, hint)


@overload
def operation(function: Callable[..., Any], /) -> Any: ...
@overload
def operation(*, read_only: bool = False) -> Callable[[Callable[..., Any]], Any]: ...
def operation(function: Any = None, /, *, read_only: bool = False) -> Any:
    """Let the host call a method of a plugin, whose first parameter is the moment.

    It runs as a turn of its own, and may write values, emit events and add messages. With
    `read_only=True` it runs at once in the host's process, and can change nothing.
    """
    if function is None:
        return lambda given: Operation(given, read_only=read_only)
    return Operation(function, read_only=read_only)


def get_operations(plugin: Plugin) -> dict[str, Operation]:
    """The operations that a plugin declares, by name."""
    return {
        name: member
        for name, member in inspect.getmembers_static(type(plugin))
        if isinstance(member, Operation)
    }


#: All hooks, in the order of this module.
HOOKS: Final = tuple(name for name in vars(Plugin) if name.startswith(("before_", "after_")))


def overrides_hook(plugin: Plugin, hook: str) -> bool:
    """Whether a plugin overrides a hook."""
    return getattr(type(plugin), hook) is not getattr(Plugin, hook) or hook in vars(plugin)


# ---- plugins of an agent


def collect_plugins(given: Sequence[Any]) -> tuple[Plugin, ...]:
    """Plugins from objects, classes, or names of installed ones. Raises `BadArguments` for two of
    one name.
    """
    found: list[Plugin] = []
    for one in given:
        plugin = _made(one)
        if not plugin.name:
            raise BadArguments(
                "plugins", f"{type(plugin).__name__} has no name; set the class attribute `name`"
            )
        if plugin.name in (other.name for other in found):
            raise BadArguments("plugins", f"two plugins have the name {plugin.name!r}")
        if unknown := set(plugin.roles) - set(INJECTED_ROLES):
            raise BadArguments(
                "plugins", f"{plugin.name!r} cannot add messages with the role {min(unknown)!r}"
            )
        found.append(plugin)
    return tuple(found)


def _made(one: Any) -> Plugin:
    if isinstance(one, str):
        found = load_entry_point(PLUGINS, one)
        if found is None:
            raise UnknownPlugin(one, list_entry_point_names(PLUGINS))
        one = found.value
    made = one() if isinstance(one, type) and issubclass(one, Plugin) else one
    if not isinstance(made, Plugin):
        raise BadArguments("plugins", f"{one!r} is not a Plugin")
    return made


def apply_before_store(plugins: Sequence[Plugin], value: JSON) -> JSON:
    """A value as it is stored: each plugin's `before_store` gets the value that the one before it
    returned.

    Raises `PluginFailed` if one raises; then nothing is stored.
    """
    for plugin in plugins:
        if overrides_hook(plugin, "before_store"):
            try:
                value = plugin.before_store(value)
            except Exception as error:
                raise PluginFailed(
                    plugin.name, "before_store", f"{type(error).__name__}: {error}"
                ) from error
    return value
