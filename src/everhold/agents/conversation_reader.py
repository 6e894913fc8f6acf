"""Reading a conversation: from the journal as it grows, and as data.

Rules
  1. `refresh` reads only new deliveries. Without new ones it changes nothing.
  2. Turns and usage that were read never disappear from a reader.
  3. `residency` says which nodes stay in memory: `all`, or those on the `path` to the leaf. The
     store keeps every node.

`TurnReader` follows the turns of expected inputs without reading the conversation before them.

What a host is given is a copy: changing it changes no session. `msgspec.to_builtins` is the
cheapest deep copy of JSON: 5 ms for 10,000 messages, and `copy.deepcopy` takes 37 ms.

A conversation as data has three forms:

| form | for | has | has not |
|---|---|---|---|
| `ReadView` | plugins, hosts, people | messages, position, usage | node references, ledger rows |
| `Snapshot` | inspection | every node by reference, frames, receipts, ledger | texts, revision |
| `Stored` | export, apply elsewhere | everything, with tools and plugins | the revision |

`AgentSession` also builds a `Stored` directly from the store; then damage is an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET

from everhold.agents.agent import Agent
from everhold.agents.tool_view import read_registry
from everhold.core.codec import JSON, is_same_json
from everhold.core.conversation import Conversation
from everhold.core.graph import Graph, Node, NodeKind, extract_text
from everhold.core.journal import Delivery, pair_replies
from everhold.core.message import Role
from everhold.core.session import Birth, Head
from everhold.core.tool_registry import ToolRegistryState
from everhold.core.turn import (
    SettledTurn,
    StateApplied,
    TurnAnswered,
    compute_frame_options,
    merge_options,
)
from everhold.engine.journal_reader import JournalReader, JournalStep
from everhold.errors import BadSetting, DamagedGraph, UnknownNode
from everhold.ports.store import Letter, Store


class TurnReader:
    """Reads the turns of expected inputs, without the conversation before them."""

    def __init__(self, store: Store, session_id: str) -> None:
        self._store = store
        self._id = session_id
        self.revision = -1  # of the session, when it was last read
        self._reader: JournalReader | None = None  # None: no input is expected yet
        self._nodes: dict[str, Node] = {}  # of turns that have not settled
        self._answers: dict[int, JSON] = {}
        self._expected: set[str] = set()
        self._ended: dict[str, tuple[SettledTurn, str]] = {}

    async def expect(self, input_id: str) -> None:
        """Expect an input that is about to be sent."""
        self._expected.add(input_id)
        if self._reader is None:
            self._reader = JournalReader((await self._store.load(self._id, since=-1)).head.n + 1)

    async def refresh(self) -> None:
        """Read new deliveries."""
        reader = self._reader or JournalReader()
        record = await self._store.load(self._id, since=reader.next_n)
        self.revision = record.head.revision
        for step in reader.read(record.deliveries):
            self._take(step)

    def settled(self, input_id: str) -> SettledTurn | None:
        """The receipt of an input's turn, or None."""
        found = self._ended.get(input_id)
        return None if found is None else found[0]

    def words(self, input_id: str) -> str:
        """The model's last message in an input's turn. The caller has everything then, so the entry
        is dropped.
        """
        return self._ended.pop(input_id)[1]

    def _take(self, step: JournalStep) -> None:
        self._answers.update((one.answer.q, one.answer.value) for one in step.answered)
        self._nodes.update((node.id, node) for node in step.notes.nodes)
        settled = step.notes.settled
        if settled is None:
            return
        for input_id in self._expected.intersection((settled.input, *settled.taken)):
            self._expected.remove(input_id)
            self._ended[input_id] = (settled, self._words(settled))
        self._nodes = {}
        self._answers = {}

    def _words(self, settled: SettledTurn) -> str:
        node = find_last_reply(self._nodes, settled)
        return extract_text(
            None if node is None else node.content if node.q is None else self._answers.get(node.q)
        )


def find_last_reply(nodes: Mapping[str, Node], settled: SettledTurn) -> Node | None:
    """The node of the model's last reply in an answered turn, or in an applied state; nodes of
    plugins may follow it.
    """
    ended = isinstance(settled.outcome, TurnAnswered | StateApplied)
    node = nodes.get(settled.leaf or "") if ended else None
    while node is not None and node.role is not Role.ASSISTANT:
        node = nodes.get(node.parent or "")
    return node


RESIDENCY_ALL: Final = "all"
RESIDENCY_PATH: Final = "path"


class ConversationReader:
    """The cached conversation of one handle."""

    def __init__(self, store: Store, session_id: str, residency: str = RESIDENCY_ALL) -> None:
        if residency not in (RESIDENCY_ALL, RESIDENCY_PATH):
            raise BadSetting(
                "residency", f"must be {RESIDENCY_ALL!r} or {RESIDENCY_PATH!r}, got {residency!r}"
            )
        self.told = Conversation()
        self.birth: Birth | None = None
        self.head: Head | None = None
        self.steps = [-1]  # the delivery that settled each turn
        self.residency = residency
        self._store = store
        self._id = session_id
        self._next = 0  # the first delivery that was not read yet
        self._letters: list[Letter] = []

    async def refresh(self) -> bool:
        """Read new deliveries; returns whether there were any."""
        record = await self._store.load(self._id, since=self._next)
        before = self.head
        self.birth = record.birth
        self.head = record.head
        self._letters = record.letters
        fresh = [delivery for delivery in record.deliveries if delivery.n >= self._next]
        if not fresh:
            return before is None or before.revision != record.head.revision
        if self._next and any(_needs_more(delivery, self.told.graph) for delivery in fresh):
            record = await self._store.load(self._id)
            self.told = Conversation()
            self.steps = [-1]
            fresh = record.deliveries
        for expected in pair_replies(fresh):
            self.told.fold(expected.given, expected.reply)
            if expected.reply.notes is not None and expected.reply.notes.settled is not None:
                self.steps.append(expected.reply.n)
        self._next = fresh[-1].n + 1
        if self.residency == RESIDENCY_PATH:
            self.told.graph.trim()
        return True

    @property
    def revision(self) -> int:
        """The revision of the session, when it was last read."""
        return -1 if self.head is None else self.head.revision

    @property
    def begun(self) -> bool:
        """Whether anything was read yet."""
        return self._next > 0

    @property
    def under_way(self) -> int | None:
        """The number of the running turn, or None."""
        graph = self.told.graph
        return len(self.told.turns) + 1 if graph.tip != graph.leaf else None

    def settled(self, input_id: str) -> SettledTurn | None:
        return self.told.settled(input_id)

    def words(self, input_id: str) -> str:
        """The model's last message in an input's turn."""
        settled = self.settled(input_id)
        node = None if settled is None else find_last_reply(self.told.graph.nodes, settled)
        return "" if node is None else extract_text(node.content)

    def input(self, input_id: str) -> JSON:
        """The content of an input, also before its turn; None if there is no such input."""
        heard = self.told.inputs.get(input_id)
        return heard if heard is not None else self._kept(input_id)

    def _kept(self, input_id: str) -> JSON:
        """The content of a stored letter with this input id."""
        for letter in self._letters:
            body: Any = letter.body
            said = body.get("value") if letter.kind in ("signal", "answer") else None
            if isinstance(said, dict) and said.get("id") == input_id and "content" in said:
                return said["content"]
        return None

    async def node(self, node_id: str) -> Node:
        """A node of any branch; read from the store if it is not in memory."""
        known = self.told.graph.nodes.get(node_id)
        if known is None and self.residency == RESIDENCY_PATH:
            known = (await self.whole()).graph.nodes.get(node_id)
        if known is None:
            raise UnknownNode(node_id)
        return known

    async def whole(self) -> Conversation:
        """The whole conversation, read from the store."""
        return Conversation((await self._store.load(self._id)).deliveries)


def _needs_more(delivery: Delivery, graph: Graph) -> bool:
    """Whether a delivery needs those before it: it retries one, or refers to a node that is not in
    memory.
    """
    notes = delivery.notes
    if notes is None:
        return False
    moved = notes.leaf is not UNSET and notes.leaf is not None and notes.leaf not in graph.nodes
    return notes.retry or moved


class ReadView(msgspec.Struct, frozen=True):
    """The messages and the position of a conversation.

    `model` and `options` are the effective ones of the current frame: those of the session over
    those of the agent.
    """

    session_id: str
    agent: str
    model: str | None
    options: dict[str, JSON]
    messages: list[JSON]  # of settled turns, on the path to the leaf, oldest first
    pending: list[JSON]  # of the running turn
    turns: int
    last: SettledTurn | None
    leaf: str | None
    frame: str
    usage: dict[str, JSON]  # tokens, including a running turn
    frame_name: str = ""


class NodeRef(msgspec.Struct, frozen=True, omit_defaults=True):
    """A node without its content."""

    id: str
    parent: str | None
    kind: NodeKind
    role: str | None = None
    q: int | None = None


class Snapshot(msgspec.Struct, frozen=True):
    """The structure of a conversation: nodes by reference, frames, receipts, and the whole
    ledger.
    """

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
    """A whole conversation, to keep in a file and apply to another session."""

    session_id: str
    agent: str
    model: str | None
    options: dict[str, JSON]
    nodes: list[Node]
    leaf: str | None
    turns: list[SettledTurn]
    ledger: list[JSON]
    tools: ToolRegistryState = ToolRegistryState(0, ())  # the tools of the session
    plugins: JSON = None  # the plugins there: their fingerprint, and the state of each
    # what was configured in each frame on the path to the leaf, oldest first; None: unknown
    frame_options: list[dict[str, JSON]] | None = None

    def path(self) -> list[Node]:
        """The nodes from the root to the leaf; raises `DamagedGraph` for missing, duplicate or
        cyclic nodes.
        """
        known = dict[str, Node]()
        found = dict[str, Node]()
        at = self.leaf
        for node in self.nodes:
            if known.setdefault(node.id, node) is not node:
                raise DamagedGraph(node.id, "it is twice in the stored conversation")
        while at is not None:
            if at not in known:
                raise DamagedGraph(at, "it is not in the stored conversation")
            if at in found:
                raise DamagedGraph(at, "it is its own ancestor")
            found[at] = known[at]
            at = known[at].parent
        return [*found.values()][::-1]

    def json(self) -> bytes:
        """The conversation as JSON; `read` reads it."""
        return msgspec.json.encode(self)

    @classmethod
    def read(cls, text: bytes | str) -> Stored:
        """Read what `json` wrote."""
        return msgspec.json.decode(text, type=cls)


def build_read_view(session_id: str, agent: Agent | None, reading: ConversationReader) -> ReadView:
    told = reading.told
    graph = told.graph
    settled = [node for node in graph.path(graph.leaf) if node.kind is NodeKind.MESSAGE]
    known = {node.id for node in settled}
    under_way = [
        n for n in graph.path(graph.tip) if n.kind is NodeKind.MESSAGE and n.id not in known
    ]
    return ReadView(
        **_describe(session_id, agent, reading, told),
        messages=[_message(node) for node in settled],
        pending=[_message(node) for node in under_way],
        turns=len(told.turns),
        last=copy_receipt(told.turns[-1]) if told.turns else None,
        leaf=graph.leaf,
        frame=graph.frame.id,
        usage=told.spent.total.json(),
        frame_name=graph.frame.name,
    )


def build_snapshot(session_id: str, agent: Agent | None, reading: ConversationReader) -> Snapshot:
    told = reading.told
    return Snapshot(
        **_describe(session_id, agent, reading, told),
        nodes=[
            NodeRef(node.id, node.parent, node.kind, node.role, node.q)
            for node in told.graph.nodes.values()
        ],
        leaf=told.graph.leaf,
        frames=[msgspec.to_builtins(frame) for frame in told.graph.frames],
        turns=[copy_receipt(settled) for settled in told.turns],
        ledger=told.spent.report()["rows"],
    )


def build_stored(
    session_id: str, agent: Agent | None, reading: ConversationReader, told: Conversation
) -> Stored:
    """A `Stored` with the nodes of settled turns; those of a running turn are left out."""
    path = told.graph.path(told.graph.leaf)
    pending = {node.id for node in told.graph.path(told.graph.tip)} - {node.id for node in path}
    kept = [node.content for node in path if node.kind is NodeKind.PLUGIN]
    return Stored(
        **_describe(session_id, agent, reading, told),
        nodes=[
            msgspec.structs.replace(node, q=None, content=msgspec.to_builtins(node.content))
            for node in told.graph.nodes.values()
            if node.id not in pending
        ],
        leaf=told.graph.leaf,
        turns=[copy_receipt(settled) for settled in told.turns],
        ledger=told.spent.report()["rows"],
        tools=read_registry(told.tools, agent),
        plugins=msgspec.to_builtins(kept[-1]) if kept else None,
        frame_options=list_frame_options(told),
    )


def plan_apply(path: Sequence[Node], state: Stored) -> tuple[str | None, list[Node]]:
    """The node to go back to, and the nodes to add after it, to reach the state."""
    wanted = state.path()
    shared = 0
    # ids differ between sessions: compare the contents
    for mine, theirs in zip(path, wanted, strict=False):
        if (mine.kind, mine.role, mine.content) != (theirs.kind, theirs.role, theirs.content):
            break
        shared += 1
    return (path[shared - 1].id if shared else None), wanted[shared:]


def has_path(told: Conversation, path: Sequence[Node]) -> bool:
    """Whether a conversation has all these nodes, with the same content."""
    mine = told.graph.nodes
    return all(
        node.id in mine
        and (mine[node.id].kind, mine[node.id].role) == (node.kind, node.role)
        and is_same_json(mine[node.id].content, node.content)
        for node in path
    )


def read_effective_options(
    agent: Agent | None, told: Conversation, frame: str | None = None
) -> dict[str, JSON]:
    """The options of a frame, by default of the current one, over those of the agent, if it is
    known. Raises `UnknownFrame`.
    """
    graph = told.graph
    found = graph.frame if frame is None else graph.find_frame(frame)
    held = compute_frame_options(told.options, told.turns, graph.frames)
    return _copy(merge_options({} if agent is None else agent.options, held.of(found.id)))


def list_frame_options(told: Conversation) -> list[dict[str, JSON]]:
    """What was configured in each frame on the path to the leaf, oldest first."""
    graph = told.graph
    settled = {node.id for node in graph.path(graph.leaf) if node.kind is NodeKind.FRAME}
    held = compute_frame_options(told.options, told.turns, graph.frames)
    return [
        _copy(held.of(frame.id))
        for frame in graph.frames
        if frame.id in settled or frame.previous is None
    ]


def copy_node(node: Node) -> Node:
    """A node whose content is the caller's own."""
    return msgspec.structs.replace(node, content=msgspec.to_builtins(node.content))


def copy_receipt(settled: SettledTurn) -> SettledTurn:
    """A receipt whose values are the caller's own."""
    return msgspec.convert(msgspec.to_builtins(settled), SettledTurn)


def _copy(options: dict[str, JSON]) -> dict[str, JSON]:
    copied: dict[str, JSON] = msgspec.to_builtins(options)
    return copied


def _describe(
    session_id: str, agent: Agent | None, reading: ConversationReader, told: Conversation
) -> dict[str, Any]:
    """The session, its agent, and its effective model and options."""
    options = read_effective_options(agent, told)
    ref = reading.birth.program if agent is None and reading.birth is not None else ""
    return {
        "session_id": session_id,
        "agent": ref if agent is None else agent.ref,
        "model": options.get("model", None if agent is None else agent.model),
        "options": options,
    }


def _message(node: Node) -> JSON:
    return {"id": node.id, "role": node.role, "content": msgspec.to_builtins(node.content)}
