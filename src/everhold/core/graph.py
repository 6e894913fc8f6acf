"""The conversation of an agent: a tree of nodes that only grows, with a leaf that may move.

Nodes are not kept in a table of their own. They are part of the journal, beside the deliveries in
which they came up, and a node whose words are an answer names the query instead of repeating them:
a conversation is stored once.

Rules
  1. A node's id is the turn it came up in, a dot, and its ordinal there. Never dice.
  2. Nodes of a turn that has not settled are pending: they count for the model, and for nobody
     else.
  3. What the model sees is a view: the messages from the last frame on. History is never rewritten.
  4. Moving the leaf hides what is not on its way to the root, and deletes nothing.
  5. A node whose parent is unknown, or a leaf that is no node, is damage, and an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.message import Role
from everhold.errors import DamagedGraph, UnknownNode

NO_ANSWERS: Final[Mapping[int, JSON]] = MappingProxyType({})
#: The frame before any node opened one.
INITIAL_FRAME: Final = "initial"


class NodeKind(StrEnum):
    """What a node of a conversation holds."""

    MESSAGE = "message"  # something said
    FRAME = "frame"  # a new context begins: {"reason", …}
    PROMPT = "prompt"  # what the model is told beside the messages: {"system", "tools"}
    PLUGIN = "plugin"  # what a plugin keeps: {"plugin", "body"}


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """One thing in a conversation. Its content is the answer to query `q`, if that is set.

    What is said is text, a list of blocks (see core.message), or an object that has one of them as
    its `content`. A block of a tool's result may name a query too.
    """

    id: str
    parent: str | None = None
    kind: NodeKind = NodeKind.MESSAGE
    role: Role | None = None
    q: int | None = None
    content: JSON = None


class ModelView(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a model is shown, by reference: how a question to a model is stored."""

    leaf: str
    prompt: str | None = None
    skip: int = 0  # messages of the frame that are left out, from its beginning
    extra: list[JSON] = []  # messages that are shown and not kept


class Frame(msgspec.Struct, frozen=True):
    """A context boundary: where it begins, why, and the frame before it."""

    id: str
    reason: str
    previous: str | None


class Graph:
    """The nodes of one conversation. `tip` includes what is pending, `leaf` does not."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.leaf: str | None = None
        self.tip: str | None = None
        self._path: list[Node] = []  # from the root to the tip
        self._messages: list[JSON] = []  # of that path
        self._begins = 0  # where the messages of the current frame begin
        self._frames: list[Frame] = []  # of that path
        self._last: dict[NodeKind, Node] = {}  # of that path, the newest of each kind

    def __len__(self) -> int:
        return len(self.nodes)

    # ---- growing

    def add(self, node: Node, answers: Mapping[int, JSON] = NO_ANSWERS) -> Node:
        """Add a node below its parent and make it the tip; `answers` has those that it names."""
        if node.parent != self.tip:
            if node.parent is not None and node.parent not in self.nodes:
                raise DamagedGraph(node.id, f"its parent {node.parent} is unknown")
            self._go(node.parent)
        if node.id in self.nodes:
            raise DamagedGraph(node.id, "there are two of it")
        node = resolve_node(node, answers)
        self.nodes[node.id] = node
        self.tip = node.id
        self._extend(node)
        return node

    def settle(self) -> None:
        """What was pending is part of the conversation now."""
        self.leaf = self.tip

    def move(self, to: str | None) -> None:
        """Move the leaf: to go on from an earlier node, or (None) from nothing."""
        if to is not None and to not in self.nodes:
            raise UnknownNode(to)
        self._go(to)
        self.leaf = to

    def trim(self) -> None:
        """Forget the nodes that are not on the way to the tip; they can be read again where they
        are kept.
        """
        if len(self.nodes) != len(self._path):
            self.nodes = {node.id: node for node in self._path}

    def _go(self, to: str | None) -> None:
        self.tip = to
        self._path = []
        self._messages = []
        self._frames = []
        self._begins = 0
        self._last = {}
        for node in self.path(to):
            self._extend(node)

    def _extend(self, node: Node) -> None:
        self._path.append(node)
        self._last[node.kind] = node
        if node.kind is NodeKind.MESSAGE:
            self._messages.append({"role": node.role, "content": to_blocks(node.content)})
        elif node.kind is NodeKind.FRAME:
            content: Any = node.content
            previous = self._frames[-1].id if self._frames else INITIAL_FRAME
            self._frames.append(Frame(node.id, content["reason"], previous))
            self._begins = len(self._messages)

    # ---- reading

    def path(self, leaf: str | None) -> list[Node]:
        """The nodes from the root to `leaf`."""
        found: list[Node] = []
        while leaf is not None:
            node = self.nodes.get(leaf)
            if node is None:
                raise DamagedGraph(leaf, "it is no node")
            found.append(node)
            leaf = node.parent
        found.reverse()
        return found

    def messages(self, frame: str | None = None) -> list[JSON]:
        """The messages of the current frame up to the tip, or of an earlier frame on its way."""
        if frame is None:
            return self._messages[self._begins :]
        kept: list[JSON] = []
        inside = frame == INITIAL_FRAME
        for node in self._path:
            if node.kind is NodeKind.FRAME:
                inside = node.id == frame
            elif inside and node.kind is NodeKind.MESSAGE:
                kept.append({"role": node.role, "content": to_blocks(node.content)})
        return kept

    def shown(self, view: ModelView) -> tuple[str | None, list[JSON], list[JSON]]:
        """What a view shows: the system text, the messages, and the tools."""
        graph = self
        if view.leaf != self.tip:
            graph = Graph()
            for node in self.path(view.leaf):
                graph.add(node)
        prompt: Any = {} if view.prompt is None else self.nodes[view.prompt].content
        messages = graph._messages[graph._begins + view.skip :]  # once: a conversation is long
        messages += view.extra
        return prompt.get("system"), messages, prompt.get("tools", [])

    @property
    def frame(self) -> Frame:
        """The frame in which the conversation is now."""
        return self._frames[-1] if self._frames else Frame(INITIAL_FRAME, INITIAL_FRAME, None)

    @property
    def frames(self) -> list[Frame]:
        """All frames on the way to the tip, oldest first."""
        return [Frame(INITIAL_FRAME, INITIAL_FRAME, None), *self._frames]

    def hidden(self) -> list[Node]:
        """The nodes that are not on the way to the leaf."""
        active = {node.id for node in self.path(self.leaf)}
        return [node for node in self.nodes.values() if node.id not in active]

    def last(self, kind: NodeKind) -> Node | None:
        """The newest node of a kind on the way to the tip."""
        return self._last.get(kind)


def count_shared_nodes(one: Sequence[Node], other: Sequence[Node]) -> int:
    """How many nodes two paths share from the root on."""
    shared = 0
    for left, right in zip(one, other, strict=False):
        if left.id != right.id or left.content != right.content:
            break
        shared += 1
    return shared


def parse_nodes(given: JSON) -> list[Node]:
    """Nodes that somebody handed in, to be added to another conversation; raises `DamagedGraph` if
    they are none.
    """
    try:
        nodes = msgspec.convert(given, list[Node])
    except msgspec.ValidationError as error:
        raise DamagedGraph("a node", str(error)) from None
    for node in nodes:
        content = node.content
        if node.kind is NodeKind.MESSAGE:
            found = to_blocks(content)
            sound = (
                node.role is not None
                and bool(found)
                and all(isinstance(block, dict) for block in found)
            )
        else:
            sound = isinstance(content, dict) and (
                node.kind is not NodeKind.FRAME or "reason" in content
            )
            sound = sound and (node.kind is not NodeKind.PROMPT or _tells_of_tools(content))
        if not sound:
            raise DamagedGraph(node.id, f"it is no {node.kind} as it stands")
    return nodes


def _tells_of_tools(content: dict[str, JSON]) -> bool:
    tools = content.get("tools", [])
    return isinstance(tools, list) and all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in tools
    )


def to_blocks(content: JSON) -> list[JSON]:
    """What was said, as a list of blocks."""
    match content:
        case str():
            return [{"type": "text", "text": content}]
        case {"content": inner}:
            return to_blocks(inner)
        case list():
            return content
    return []


def compact_blocks(said: list[JSON]) -> JSON:
    """Blocks as short as they can be kept: mere words are kept as text."""
    match said:
        case [{"type": "text", "text": str(words), **more}] if not more:
            return words
    return said


def extract_text(content: JSON) -> str:
    """The words among what was said."""
    found = [
        block
        for block in to_blocks(content)
        if isinstance(block, dict) and block.get("type") == "text"
    ]
    return "".join(str(block.get("text", "")) for block in found)


def resolve_node(node: Node, answers: Mapping[int, JSON]) -> Node:
    """The node with the answers that it names; raises `DamagedGraph` if one is not there.

    Only results of tools name answers: what others say may have a `q` in it that means nothing.
    """
    if node.q is not None and node.content is None:
        return msgspec.structs.replace(node, content=_named(node.id, node.q, answers))
    if (
        node.role is Role.TOOL
        and isinstance(node.content, list)
        and any("q" in block for block in node.content)
    ):
        return msgspec.structs.replace(
            node, content=[_result(node.id, block, answers) for block in node.content]
        )
    return node


def _result(where: str, block: dict[str, JSON], answers: Mapping[int, JSON]) -> dict[str, JSON]:
    if "q" not in block:
        return block
    whole = {name: part for name, part in block.items() if name != "q"}
    return {**whole, "content": _named(where, block["q"], answers)}


def _named(where: str, q: JSON, answers: Mapping[int, JSON]) -> JSON:
    if type(q) is not int or q not in answers:
        raise DamagedGraph(where, f"q-{q}, which it names, has no answer")
    return answers[q]
