"""Frames: the context of a conversation begins anew, and what came before stays readable.

Rules
  1. A frame is a node, so its id says where it was opened: the turn and the ordinal. Never dice.
  2. It inherits the options of the frame before, and nothing else: what the model sees is what it
     begins with.
  3. A frame of no name, or of the name of the current one, is not opened.
  4. Compaction asks plugins for a new beginning; where none has one, nothing changes.

The options that hold in a frame of a conversation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from everhold.agents.loop_state import LoopState
from everhold.core.codec import JSON
from everhold.core.graph import Frame, Graph, Node, NodeKind
from everhold.core.message import Role
from everhold.core.turn import FrameOpened, TurnFailed, TurnOutcome
from everhold.errors import BadArguments, UnknownNode
from everhold.hooks import ContinueAs, NewFrame

#: Frames that `ContinueAs` may open in one turn.
MAX_FRAMES_PER_TURN: Final = 16
#: Roles of messages that do not come from the model or its tools.
_SPEAKERS: Final = frozenset({Role.USER, Role.SYSTEM, Role.ASSISTANT})


def normalize_message(given: JSON, speakers: frozenset[Role] = _SPEAKERS) -> dict[str, JSON]:
    """A message as a dict, from text or `{"role", "content"}`; raises `BadArguments`."""
    match given:
        case str():
            return {"role": Role.USER.value, "content": [{"type": "text", "text": given}]}
        case {"role": role, "content": str() | list() as content} if role in speakers:
            blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
            return {"role": Role(role).value, "content": blocks}
    raise BadArguments(
        "messages", f"{given!r:.100} is not a message with a role of {', '.join(sorted(speakers))}"
    )


def add_messages(loop: LoopState, messages: list[JSON]) -> None:
    """Add messages to the conversation; `call_hook` has checked that the plugin may add them."""
    for one in [normalize_message(each) for each in messages]:
        loop.say(Role(one["role"]), None, one["content"])


def normalize_messages(given: JSON) -> list[dict[str, JSON]]:
    """Messages from one text, one message, or a list of them; raises `BadArguments`."""
    one = isinstance(given, str | Mapping)
    return [normalize_message(each) for each in ([given] if one else given)]


def open_frame(loop: LoopState, name: str, reason: str, messages: list[JSON]) -> str | None:
    """Open a frame that begins with these messages. Returns its id, or None if `why_not_opened`
    has a reason.
    """
    current = loop.graph.frame
    if why_not_opened(current, name):
        return None
    node = loop.add(Node("", None, NodeKind.FRAME, content={"reason": reason, "name": name}))
    for one in messages:
        loop.say(Role(one["role"]), None, one["content"])
    loop.models.context = 0
    loop.tell("after_frame", Frame(node.id, reason, current.id, name))
    return node.id


def why_not_opened(current: Frame, name: str) -> str:
    """Why no frame of this name can be opened; empty if it can."""
    if not name.strip():
        return "the name of a frame must not be blank"
    if name in (current.id, current.name):
        return f"{current.name!r} is the current frame"
    return ""


async def compact_frame(loop: LoopState, instructions: str = "") -> str | None:
    """Open a frame with the shorter beginning that a plugin returns; None if no plugin has one."""
    before = loop.graph.messages()
    loop.instructions = instructions
    for _, _, one in await loop.decide("before_compact"):
        if isinstance(one, NewFrame) and (one.messages or one.keep):
            kept = before[len(before) - one.keep :] if one.keep else []
            seed = [normalize_message(each) for each in one.messages] + kept
            return open_frame(loop, f"compaction-{loop.turn}.{loop.ordinal}", "compaction", seed)
    return None


def continue_in_frame(loop: LoopState, directive: ContinueAs) -> bool:
    """Continue in a new frame; returns whether one was opened."""
    if loop.switched == MAX_FRAMES_PER_TURN:
        raise BadArguments("continue_as", f"a turn may open at most {MAX_FRAMES_PER_TURN} frames")
    seed = [normalize_message(each) for each in (*directive.messages, directive.task)]
    opened = open_frame(loop, directive.frame, "continue_as", seed)
    loop.switched += opened is not None
    return opened is not None


async def run_frame_command(loop: LoopState, given: dict[str, JSON]) -> TurnOutcome:
    """Run a frame command that a caller sent: `compact`, `reset` or `continue_as`."""
    reason = str(given["do"])
    if reason == "compact":
        opened = await compact_frame(loop, str(given.get("instructions") or ""))
        return FrameOpened("compaction", opened, "" if opened else _why_not_compacted(loop))
    try:
        seed = normalize_messages(given.get("messages") or [])
    except BadArguments as error:
        return TurnFailed(str(error), error.code)
    name = (
        str(given.get("frame") or "")
        if reason == "continue_as"
        else f"reset-{loop.turn}.{loop.ordinal}"
    )
    why = why_not_opened(loop.graph.frame, name)
    opened = open_frame(loop, name, reason, seed)
    if reason == "reset":
        loop.plugged.reset()
        loop.toolbox.variables.reset()
    return FrameOpened(reason, opened, why)


def _why_not_compacted(loop: LoopState) -> str:
    if "before_compact" not in loop.hooks:
        return "the agent has no plugin that compacts, such as Compaction"
    if not loop.graph.messages():
        return "the current frame has no messages"
    return "no plugin has a shorter beginning for the current frame"


def find_nth_message(graph: Graph, count: int) -> str:
    """The node of the n-th message of the current frame."""
    found = 0
    path = graph.path(graph.tip)
    begins = max(
        (index for index, node in enumerate(path) if node.kind is NodeKind.FRAME), default=-1
    )
    for node in path[begins + 1 :]:
        found += node.kind is NodeKind.MESSAGE
        if found == count:
            return node.id
    raise UnknownNode(f"message {count} of {found}")
