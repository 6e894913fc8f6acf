"""The plugin spec on one page: subclass `Plugin`, override what you need, and give it to
`Agent(plugins=[…])`.

    class Calm(Plugin):
        name = "calm"

        def before_turn(self, moment):
            return Contribute("guidance", "Stay calm.")

Rules
  1. `before_*` decides: it returns directives (one, several or none), which are data and become
     part of the journal. It runs once, before what it decides about, and not on replay; after a
     crash it may run again.
  2. `after_*` observes, once what it is told of is kept. What it raises is logged, and changes
     nothing.
  3. A directive that makes no sense where it is returned is refused (`BadDirective`), and a
     `before_*` that raises fails (`PluginFailed`): the turn ends and says so. Nothing goes on
     without a plugin that was asked for.
  4. Each conversation has a copy of a plugin of its own (`copy.copy`), which begins with
     `restore(None)`.
  5. A hook may be a function or a coroutine function. Plugins are asked in their order, and each
     sees what those before it made of the input, result or options. What it is given is a copy:
     only a directive changes something.
  6. A plugin that saw another input of a tool than the tool will get is asked again. Abort stands
     over everything, then Deny or Finish, then Confirm (each one is asked), then Reply.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.graph import Frame
from everhold.core.message import ToolUse
from everhold.core.query import Query, Usage
from everhold.core.tool import Confirm, Deny
from everhold.core.turn import SettledTurn
from everhold.errors import BadArguments, PluginFailed, UnknownPlugin
from everhold.ports.entry_points import PLUGINS, list_entry_point_names, load_entry_point
from everhold.ports.tool_services import Moment

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
    "Plugin",
    "ReplaceInput",
    "ReplaceResult",
    "Reply",
    "SetOptions",
    "Show",
]

#: Where in the prompt something may be contributed, in the order in which the model reads it.
SLOTS: Final = ("intro", "execution", "guidance", "project", "context", "environment")


# ---- directives: what a hook may decide


class Directive(msgspec.Struct, frozen=True, omit_defaults=True, tag_field="do"):
    """Something that a plugin wants done, as data."""


class Abort(Directive, frozen=True, tag="abort"):
    """Stop the turn. What was said stays, and its outcome names the plugin."""

    reason: str = ""


class AddMessages(Directive, frozen=True, tag="add_messages"):
    """Put something into the conversation: texts, or messages `{"role", "content"}` of users and
    the system.
    """

    messages: list[JSON]


class SetOptions(Directive, frozen=True, tag="set_options"):
    """Set options. In `before_session` and `before_config` they last; elsewhere they are for the
    turn or the call.
    """

    options: dict[str, JSON]


class Contribute(Directive, frozen=True, tag="contribute"):
    """Add to the prompt of this turn, in one of `SLOTS`; with `tools`, only where one of them is
    offered.
    """

    slot: str
    content: str
    title: str = ""
    priority: int = 0
    tools: list[str] = []


class Show(Directive, frozen=True, tag="show"):
    """Change what the model is shown in this call: leave out the first `skip` messages, add `extra`
    at the end.
    """

    skip: int = 0
    extra: list[JSON] = []


class Reply(Directive, frozen=True, tag="reply"):
    """Do not ask the model, or do not call the tool: this is what it said."""

    content: JSON


class ReplaceInput(Directive, frozen=True, tag="replace_input"):
    """Call the tool with this input instead."""

    input: dict[str, JSON]


class ReplaceResult(Directive, frozen=True, tag="replace_result"):
    """Show the model this instead of what the tool returned. The journal keeps what it returned."""

    content: JSON


class Ask(Directive, frozen=True, tag="ask"):
    """Ask a model something beside the conversation, then call the hook again: `moment.said` has
    the answers so far, and None where the model could not be asked.

    It is a question like any other (kept, replayed, answerable by people), and its tokens are
    entered under `source`.
    """

    prompt: str
    source: str
    system: str | None = None
    max_tokens: int = 1024
    # so many messages of the frame are shown before the prompt, by reference
    shown: int | None = None


class Compact(Directive, frozen=True, tag="compact"):
    """Open a new frame with what `before_compact` makes of this one."""


class NewFrame(Directive, frozen=True, tag="new_frame"):
    """What a new frame begins with: messages, then the last `keep` of the frame before, as they
    are.
    """

    messages: list[JSON]
    keep: int = 0


class ContinueAs(Directive, frozen=True, tag="continue_as"):
    """Go on in a new frame that begins with `task`. Without a name, or with that of the current
    frame: nothing.
    """

    frame: str
    task: str
    messages: list[JSON] = []


class Finish(Directive, frozen=True, tag="finish"):
    """The turn is done, with this value."""

    value: JSON


#: What a hook that decides may return.
HookResult = Directive | Deny | Confirm | Sequence[Directive | Deny | Confirm] | None

#: Which directives make sense where; the names are those of the hooks that decide.
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

#: Hooks in which plugins are asked by their `priority`; those of one priority, and in all other
#: hooks, in their order.
BY_PRIORITY: Final = ("before_result", "before_compact")


class Plugin:
    """Does nothing, on purpose. Subclasses override what they need."""

    name: ClassVar[str] = ""  #: what outcomes, errors and snapshots call it
    version: str = "1"
    priority: int = 0  #: which plugin is asked first in the hooks `BY_PRIORITY`: higher first
    tools: Sequence[Any] = ()  #: tools that it brings along
    revision: int = 0  #: raise it whenever `snapshot` would return something else

    # ---- what it keeps

    def snapshot(self) -> JSON:
        """What the plugin knows of this conversation; kept with the turn if `revision` has changed
        since.
        """
        return None

    def restore(self, state: JSON) -> None:
        """Know what an earlier `snapshot` said, and nothing else; None: begin anew."""

    # ---- before: decides

    def before_session(self, moment: Moment) -> Any:
        """A session begins, once in its life: set options it should have. `moment.root` tells a
        child from a root.
        """

    def before_config(self, moment: Moment, options: dict[str, JSON]) -> Any:
        """Options are about to be set: say what is set instead. Plugins see the last one's; who
        raises is skipped.
        """

    def before_turn(self, moment: Moment) -> Any:
        """An input was taken and the model is not asked yet: add to the prompt, add messages, set
        options, or abort.
        """

    def before_checkpoint(self, moment: Moment) -> Any:
        """Tools are done and the model will be asked again, or the turn is about to end
        (`moment.completing`).
        """

    def before_model_call(self, moment: Moment) -> Any:
        """The model is about to be asked: show it more or less, set options for this call, reply
        for it, or abort.
        """

    def before_tool_call(self, moment: Moment, call: ToolUse) -> Any:
        """A tool is about to be called: deny, have a person confirm it, change its input, reply for
        it, or abort.

        It is called again for the same `call.id` if another plugin changes the input; what it says
        last counts.
        """

    def before_result(self, moment: Moment, call: ToolUse, content: JSON) -> Any:
        """A tool has returned `content`, as the plugins before this one changed it: show something
        else, or abort.
        """

    def before_compact(self, moment: Moment) -> Any:
        """The frame should become smaller: say what a new one begins with. The first plugin that
        does is heard.
        """

    def before_store(self, value: JSON) -> JSON:
        """An input, a tool's result or a model's words are about to be written down: what is
        returned is written.

        So are answers of people and hosts. One that comes where the program is not waits as it was
        given until it is.
        """
        return value

    # ---- after: observes

    def after_turn(self, moment: Moment, settled: SettledTurn) -> Any:
        """A turn has settled and is kept."""

    def after_model_call(self, moment: Moment, usage: Usage | None) -> Any:
        """The model has answered, and its answer is kept."""

    def after_tool_call(self, moment: Moment, call: ToolUse, content: JSON) -> Any:
        """A tool was called, and its result is kept."""

    def after_query(self, moment: Moment, query: Query) -> Any:
        """A question waits for a person: tell them."""

    def after_frame(self, moment: Moment, frame: Frame) -> Any:
        """A new frame was opened."""

    def after_config(self, moment: Moment, before: dict[str, JSON], now: dict[str, JSON]) -> Any:
        """Options have changed."""

    def after_restore(self, moment: Moment) -> Any:
        """A conversation that was held elsewhere, or before, goes on here: the first time it is
        moved.
        """


#: All hooks, in the order of this page.
HOOKS: Final = tuple(name for name in vars(Plugin) if name.startswith(("before_", "after_")))


def overrides_hook(plugin: Plugin, hook: str) -> bool:
    """Whether a plugin does anything there."""
    return getattr(type(plugin), hook) is not getattr(Plugin, hook) or hook in vars(plugin)


# ---- finding them


def collect_plugins(given: Sequence[Any]) -> tuple[Plugin, ...]:
    """Plugins as an agent takes them: objects, classes, or names of installed ones. Two of one name
    are refused.
    """
    found: list[Plugin] = []
    for one in given:
        plugin = _made(one)
        if not plugin.name:
            raise BadArguments("plugins", f"{type(plugin).__name__} needs a name")
        if plugin.name in (other.name for other in found):
            raise BadArguments("plugins", f"there are two of the name {plugin.name!r}")
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
    """A value as it is written down: each plugin's `before_store` sees what the one before it
    returned.

    One that raises is `PluginFailed`, and nothing is written.
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
