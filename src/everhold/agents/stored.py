"""A conversation as a value. There are three shapes, and a fourth which is the third read anew;
they are not mixed up.

| shape | for | has | has not |
|---|---|---|---|
| `ReadView` | plugins, hosts, people | what was said, where it stands, what it cost | references, the ledger's rows |
| `Snapshot` | inspection | every node by reference, frames, receipts, the ledger | words, the revision |
| `Stored` | keeping, applying elsewhere | all that was read, tools and plugins too | the revision: it is the store's |
| `Stored`, fresh | the same, to be sure | everything, read anew from the store; damage is an error | |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from everhold.agents.agent import Agent
from everhold.agents.conversation_reader import ConversationReader
from everhold.core.codec import JSON
from everhold.core.conversation import Conversation
from everhold.core.graph import Node, NodeKind
from everhold.core.tool_registry import ToolManifest, ToolRegistry, ToolRegistryState
from everhold.core.turn import SettledTurn
from everhold.errors import DamagedGraph


class ReadView(msgspec.Struct, frozen=True):
    """What was said, and where the conversation stands."""

    session_id: str
    agent: str
    model: str | None
    options: dict[str, JSON]
    messages: list[JSON]  # of settled turns, on the way to the leaf, oldest first
    pending: list[JSON]  # of the turn under way
    turns: int
    last: SettledTurn | None
    leaf: str | None
    frame: str
    usage: dict[str, JSON]  # tokens, a turn under way included


class NodeRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node without its words."""

    id: str
    parent: str | None
    kind: NodeKind
    role: str | None = None
    q: int | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """The shape of a conversation: nodes by reference, frames, receipts, and the whole ledger."""

    session_id: str
    agent: str
    model: str | None
    options: dict[str, JSON]
    nodes: list[NodeRef]
    leaf: str | None
    frames: list[dict[str, JSON]]
    turns: list[SettledTurn]
    ledger: list[JSON]


class Stored(msgspec.Struct, frozen=True):
    """A whole conversation, as it can be kept in a file and applied to another session."""

    session_id: str
    agent: str
    model: str | None
    options: dict[str, JSON]
    nodes: list[Node]
    leaf: str | None
    turns: list[SettledTurn]
    ledger: list[JSON]
    tools: ToolRegistryState = ToolRegistryState(
        0, ()
    )  # what the model was offered, on the way to the leaf
    plugins: JSON = None  # what the plugins keep there: their fingerprint, and the state of each

    def path(self) -> list[Node]:
        """The nodes from the root to the leaf; raises `DamagedGraph` if one is missing, doubled or
        its own ancestor.
        """
        known = dict[str, Node]()
        found = dict[str, Node]()
        at = self.leaf
        for node in self.nodes:
            if known.setdefault(node.id, node) is not node:
                raise DamagedGraph(node.id, "it is in the stored conversation twice")
        while at is not None:
            if at not in known:
                raise DamagedGraph(at, "it is no node of the stored conversation")
            if at in found:
                raise DamagedGraph(at, "it is its own ancestor")
            found[at] = known[at]
            at = known[at].parent
        return [*found.values()][::-1]

    def json(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def read(cls, text: bytes | str) -> Stored:
        return msgspec.json.decode(text, type=cls)


def build_read_view(session_id: str, agent: Agent, reading: ConversationReader) -> ReadView:
    told = reading.told
    graph = told.graph
    settled = [node for node in graph.path(graph.leaf) if node.kind is NodeKind.MESSAGE]
    known = {node.id for node in settled}
    under_way = [
        n for n in graph.path(graph.tip) if n.kind is NodeKind.MESSAGE and n.id not in known
    ]
    return ReadView(
        **_told(session_id, agent),
        messages=[_message(node) for node in settled],
        pending=[_message(node) for node in under_way],
        turns=len(told.turns),
        last=told.turns[-1] if told.turns else None,
        leaf=graph.leaf,
        frame=graph.frame.id,
        usage=told.spent.total.json(),
    )


def build_snapshot(session_id: str, agent: Agent, reading: ConversationReader) -> Snapshot:
    told = reading.told
    return Snapshot(
        **_told(session_id, agent),
        nodes=[
            NodeRef(node.id, node.parent, node.kind, node.role, node.q)
            for node in told.graph.nodes.values()
        ],
        leaf=told.graph.leaf,
        frames=[msgspec.to_builtins(frame) for frame in told.graph.frames],
        turns=list(told.turns),
        ledger=told.spent.report()["rows"],
    )


def build_stored(session_id: str, agent: Agent, told: Conversation) -> Stored:
    """Nodes of settled turns; what a turn under way has said so far is not part of the conversation
    yet.
    """
    path = told.graph.path(told.graph.leaf)
    pending = {node.id for node in told.graph.path(told.graph.tip)} - {node.id for node in path}
    kept = [node.content for node in path if node.kind is NodeKind.PLUGIN]
    return Stored(
        **_told(session_id, agent),
        nodes=[
            msgspec.structs.replace(node, q=None)
            for node in told.graph.nodes.values()
            if node.id not in pending
        ],
        leaf=told.graph.leaf,
        turns=list(told.turns),
        ledger=told.spent.report()["rows"],
        tools=_offered(path),
        plugins=kept[-1] if kept else None,
    )


def _offered(path: Sequence[Node]) -> ToolRegistryState:
    """The tools that the model was told of: a generation for each change, and those that are gone
    as orphans.
    """
    known = ToolRegistry()
    for node in path:
        if node.kind is NodeKind.PROMPT:
            content: Any = node.content
            known.refresh({"offered": [_manifest(one) for one in content.get("tools", [])]})
    return known.state()


def _manifest(told: Any) -> ToolManifest:
    return ToolManifest(
        told["name"], told["name"], told.get("description", ""), told.get("input_schema", {})
    )


def plan_apply(path: Sequence[Node], state: Stored) -> tuple[str | None, list[Node]]:
    """Where a conversation has to go back to, and what is said from there, to stand where `state`
    stands.
    """
    wanted = state.path()
    shared = 0
    # ids are of their sessions: what was said counts
    for mine, theirs in zip(path, wanted, strict=False):
        if (mine.kind, mine.role, mine.content) != (theirs.kind, theirs.role, theirs.content):
            break
        shared += 1
    return (path[shared - 1].id if shared else None), wanted[shared:]


def _told(session_id: str, agent: Agent) -> dict[str, Any]:
    return {
        "session_id": session_id,
        "agent": agent.ref,
        "model": agent.model,
        "options": dict(agent.options),
    }


def _message(node: Node) -> JSON:
    return {"id": node.id, "role": node.role, "content": node.content}
