"""The conversation of an agent: a tree of nodes that only grows, with a leaf that may move.

Nodes have no table of their own. They are stored in the journal, with the delivery that added
them. A node whose content is an answer names the query instead of repeating the answer, so a
conversation is stored once.

Rules
  1. A node's id is the turn that added it, a dot, and its ordinal in that turn. It is never random.
  2. Nodes of a turn that has not settled are pending: only the model sees them.
  3. The model sees a view: the messages from the last frame on. History is never rewritten.
  4. Moving the leaf hides the nodes outside the path from the root to it, and deletes nothing.
  5. A node with an unknown parent, or a leaf that is not a node, is damage and raises an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import islice
from types import MappingProxyType
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON
from everhold.core.message import CopiedOnRead, Role
from everhold.errors import DamagedGraph, UnknownFrame, UnknownNode

NO_ANSWERS: Final[Mapping[int, JSON]] = MappingProxyType({})
#: The frame before any node opened one.
INITIAL_FRAME: Final = "initial"


class NodeKind(StrEnum):
    """What a node of a conversation holds."""

    MESSAGE = "message"
    FRAME = "frame"  # a new context begins: {"reason", …}
    PROMPT = "prompt"  # what the model gets beside the messages: {"system", "tools"}
    PLUGIN = "plugin"  # state of the plugins: {"fingerprint", "plugins"}
    CUSTOM = "custom"  # what a tool or plugin added: {"type", "body"}
    CODE = "code"  # a program that the host runs: {"id", "language", "code"}
    VARIABLES = "variables"  # of the programs of a session: {"language", "variables"}


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """One entry of a conversation. If `q` is set, its content is the answer to that query.

    The content of a message is text, a list of blocks (see core.message), or an object with one of
    them as its `content`. A block of a tool's result may name a query too.
    """

    id: str
    parent: str | None = None
    kind: NodeKind = NodeKind.MESSAGE
    role: Role | None = None
    q: int | None = None
    content: JSON = None


class ModelView(msgspec.Struct, frozen=True, omit_defaults=True):
    """The messages of one question to a model, stored by reference instead of in full."""

    leaf: str
    prompt: str | None = None
    skip: int = 0  # messages left out at the beginning of the frame
    extra: list[JSON] = []  # messages that are sent but not stored in the graph


class Frame(msgspec.Struct, frozen=True):
    """A context boundary: where it begins, why, the frame before it, and its name."""

    id: str
    reason: str
    previous: str | None
    name: str = ""


FIRST_FRAME: Final = Frame(INITIAL_FRAME, INITIAL_FRAME, None, INITIAL_FRAME)


class Graph:
    """The nodes of one conversation. `tip` includes pending nodes, `leaf` does not."""

    def __init__(self) -> None:
        self.nodes: dict[str, Node] = {}
        self.leaf: str | None = None
        self.tip: str | None = None
        self._path: list[Node] = []  # from the root to the tip
        self._messages: list[JSON] = []  # of that path
        self._begins = 0  # index of the first message of the current frame
        self._frames: list[Frame] = []  # of that path
        self._last: dict[NodeKind, Node] = {}  # of that path, the newest of each kind
        self._custom: list[Node] = []  # of that path

    def __len__(self) -> int:
        return len(self.nodes)

    # ---- growing

    def add(self, node: Node, answers: Mapping[int, JSON] = NO_ANSWERS) -> Node:
        """Adds a node below its parent and makes it the tip; `answers` has the answers it names."""
        if node.parent != self.tip:
            if node.parent is not None and node.parent not in self.nodes:
                raise DamagedGraph(node.id, f"its parent {node.parent} is unknown")
            self._go(node.parent)
        if node.id in self.nodes:
            raise DamagedGraph(node.id, "its id is used twice")
        node = resolve_node(node, answers)
        self.nodes[node.id] = node
        self.tip = node.id
        self._extend(node)
        return node

    def settle(self) -> None:
        """Makes the pending nodes a part of the conversation."""
        self.leaf = self.tip

    def move(self, to: str | None) -> None:
        """Moves the leaf, to continue from an earlier node or, with None, from an empty one."""
        if to is not None and to not in self.nodes:
            raise UnknownNode(to)
        self._go(to)
        self.leaf = to

    def trim(self) -> None:
        """Drops the nodes outside the path to the tip from memory; the journal still has them."""
        if len(self.nodes) != len(self._path):
            self.nodes = {node.id: node for node in self._path}

    def _go(self, to: str | None) -> None:
        self.tip = to
        self._path = []
        self._messages = []
        self._frames = []
        self._begins = 0
        self._last = {}
        self._custom = []
        for node in self.path(to):
            self._extend(node)

    def _extend(self, node: Node) -> None:
        self._path.append(node)
        self._last[node.kind] = node
        if node.kind is NodeKind.MESSAGE:
            self._messages.append({"role": node.role, "content": to_blocks(node.content)})
        elif node.kind is NodeKind.CUSTOM:
            self._custom.append(node)
        elif node.kind is NodeKind.FRAME:
            content: Any = node.content
            previous = self._frames[-1].id if self._frames else INITIAL_FRAME
            name = content.get("name")
            self._frames.append(
                Frame(
                    node.id,
                    content["reason"],
                    previous,
                    name if isinstance(name, str) else node.id,
                )
            )
            self._begins = len(self._messages)

    # ---- reading

    def path(self, leaf: str | None) -> list[Node]:
        """The nodes from the root to `leaf`."""
        found: list[Node] = []
        while leaf is not None:
            node = self.nodes.get(leaf)
            if node is None:
                raise DamagedGraph(leaf, "there is no node with this id")
            found.append(node)
            leaf = node.parent
        found.reverse()
        return found

    def messages(self, frame: str | None = None) -> list[JSON]:
        """The messages of the current frame up to the tip, or of an earlier frame of the path."""
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

    def custom(self, type: str | None = None) -> list[Node]:
        """The nodes of that path that tools and plugins added, oldest first, or those of a type."""
        return [node for node in self._custom if type in (None, get_custom_type(node))]

    def shown(self, view: ModelView) -> tuple[str | None, list[JSON], list[JSON]]:
        """The content of a view: the system text, the messages, and the tools. Messages are copied
        when they are read.
        """
        graph = self
        if view.leaf != self.tip:
            graph = Graph()
            for node in self.path(view.leaf):
                graph.add(node)
        prompt: Any = {} if view.prompt is None else self.nodes[view.prompt].content
        at = graph._begins + view.skip
        messages = CopiedOnRead(islice(graph._messages, at, None))  # one list: they may be many
        messages += view.extra
        return prompt.get("system"), messages, prompt.get("tools", [])

    @property
    def frame(self) -> Frame:
        """The current frame."""
        return self._frames[-1] if self._frames else FIRST_FRAME

    @property
    def frames(self) -> list[Frame]:
        """All frames on the path to the tip, oldest first."""
        return [FIRST_FRAME, *self._frames]

    def find_frame(self, named: str) -> Frame:
        """The frame on the path to the tip with this id or name, the newest if several have the
        name; raises `UnknownFrame`.
        """
        frames = self.frames
        for frame in frames:
            if frame.id == named:
                return frame
        for frame in reversed(frames):
            if frame.name == named:
                return frame
        raise UnknownFrame(named, [frame.name for frame in frames])

    def hidden(self) -> list[Node]:
        """The nodes outside the path to the leaf."""
        active = {node.id for node in self.path(self.leaf)}
        return [node for node in self.nodes.values() if node.id not in active]

    def last(self, kind: NodeKind) -> Node | None:
        """The newest node of a kind on the path to the tip."""
        return self._last.get(kind)


def get_custom_type(node: Node) -> str:
    """The type of a node that a tool or plugin added."""
    content: Any = node.content
    return str(content["type"])


def count_shared_nodes(one: Sequence[Node], other: Sequence[Node]) -> int:
    """The number of nodes that two paths share, counted from the root."""
    shared = 0
    for left, right in zip(one, other, strict=False):
        if left.id != right.id or left.content != right.content:
            break
        shared += 1
    return shared


def parse_nodes(given: JSON) -> list[Node]:
    """Decodes nodes that a caller passes in to be added to a conversation; raises `DamagedGraph` if
    they are not valid.
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
                and (bool(found) or content == [])  # fluers has messages without content
                and all(isinstance(block, dict) for block in found)
            )
        else:
            sound = isinstance(content, dict) and (
                node.kind is not NodeKind.FRAME or "reason" in content
            )
            sound = sound and (node.kind is not NodeKind.PROMPT or _has_valid_tools(content))
            sound = sound and (
                node.kind is not NodeKind.VARIABLES or isinstance(content.get("language"), str)
            )
            sound = sound and (
                node.kind is not NodeKind.CUSTOM or isinstance(content.get("type"), str)
            )
        if not sound:
            raise DamagedGraph(node.id, f"it is not a valid {node.kind} node")
    return nodes


def _has_valid_tools(content: dict[str, JSON]) -> bool:
    tools = content.get("tools", [])
    return isinstance(tools, list) and all(
        isinstance(one, dict) and isinstance(one.get("name"), str) for one in tools
    )


def to_blocks(content: JSON) -> list[JSON]:
    """Content as a list of blocks."""
    match content:
        case str():
            return [{"type": "text", "text": content}]
        case {"content": inner}:
            return to_blocks(inner)
        case list():
            return content
    return []


def compact_blocks(said: list[JSON]) -> JSON:
    """Blocks in their shortest form: a single text block becomes text."""
    match said:
        case [{"type": "text", "text": str(words), **more}] if not more:
            return words
    return said


def extract_text(content: JSON) -> str:
    """The text blocks of content, joined."""
    found = [
        block
        for block in to_blocks(content)
        if isinstance(block, dict) and block.get("type") == "text"
    ]
    return "".join(str(block.get("text", "")) for block in found)


def resolve_node(node: Node, answers: Mapping[int, JSON]) -> Node:
    """The node with the answers it names filled in; raises `DamagedGraph` if one is missing.

    Only blocks of tool results name answers: a `q` in other content is just data.
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
        raise DamagedGraph(where, f"it names q-{q}, which has no answer")
    return answers[q]
