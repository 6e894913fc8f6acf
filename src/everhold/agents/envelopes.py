"""Sessions of fluers as conversations, and back: what `runtime.envelopes` does.

    made = await runtime.envelopes.import_("~/.fluers/sessions", agent=support)
    session = await runtime.session(support, "6f1c1f0e-8a53-4f0b-9a3e-5a7d0c1b2e3f")
    await runtime.envelopes.export("out", session)

Rules
  1. Everything is read and checked before anything is imported. An invalid envelope is named, and
     nothing was changed; with `invalid="skip"` the valid ones are imported.
  2. A session is imported in one commit: its birth, its options and its messages. A crash leaves
     the session whole or not at all.
  3. The UUID of the envelope is the key of the session. The same envelope again is the same
     session, also after its conversation went on; another envelope of that UUID is a conflict.
  4. What was imported is exported unchanged. What everhold has added is written as fluers would.

| envelope | session |
|---|---|
| the id | the key |
| `model`, `max_turns` | the options of these names; not set if empty or 0 |
| `system_message` | the slot `intro` of the prompt, instead of the agent's instructions |
| a first message that repeats it | no message: the model gets the prompt once |
| `messages` | messages of the graph; a tool call without a result gets one that says so |
| `metadata` | the metadata |
"""

from __future__ import annotations

import functools
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Any, Final
from uuid import NAMESPACE_URL, UUID, uuid5

import msgspec

from everhold.agents.agent import Agent
from everhold.agents.tool_view import read_registry
from everhold.core import codec
from everhold.core.codec import JSON
from everhold.core.conversation import Conversation
from everhold.core.graph import INITIAL_FRAME, Frame, Node, NodeKind, to_blocks
from everhold.core.intake import INPUT
from everhold.core.message import (
    Block,
    Message,
    Role,
    Text,
    ToolResult,
    ToolUse,
    decode_message,
    encode_message,
    system,
)
from everhold.core.session import Birth, SessionId
from everhold.core.turn import TurnFailed, compute_frame_options
from everhold.engine.accept import Signal
from everhold.engine.arguments import MAX_METADATA_CHARS, check_text_map_arg
from everhold.engine.engine import Engine
from everhold.engine.session_lookup import SessionHandle, SessionRef, resolve_session_id
from everhold.errors import (
    BadArguments,
    BadSetting,
    BadValue,
    EverholdError,
    KeyConflict,
    KeyDeleted,
    NotAnAgent,
)
from everhold.hooks import apply_before_store
from everhold.packages.catalog import KnownPrograms
from everhold.ports.program_identity import is_same_program
from everhold.ports.store import ProgressCallback, SessionRecord
from everhold.stores.envelope import (
    BadEnvelopes,
    EnvelopeAdapter,
    EnvelopeSession,
    InvalidSessionId,
    JsonFiles,
    encode_file,
    load_file,
    pack,
    parse_session_id,
    replace_file,
    unpack,
)

#: The agent of imported sessions for which the caller names none. It has no tools and no
#: instructions, and says nothing about the model: the envelope does.
fluers = Agent(name="fluers")

#: The label with the digest of the envelope that a session was imported from.
LABEL: Final = "fluers"
#: The ids of the commands that import: options, and messages. Without their first message, if that
#: only repeated the system message.
OPTIONS_INPUT: Final = "fluers-options"
MESSAGES_INPUT: Final = "fluers-messages"
MESSAGES_AFTER_SYSTEM_INPUT: Final = "fluers-messages-after-system"
IMPORT_INPUTS: Final = (OPTIONS_INPUT, MESSAGES_INPUT, MESSAGES_AFTER_SYSTEM_INPUT)
#: The result of a call for which an envelope has none. Models refuse a call without a result.
NO_RESULT: Final = "no result: the call was under way when fluers stopped"
#: The largest integer of an option. fluers counts turns in 64 bits without a sign; a larger number
#: is stored as this one less one, and written as the largest of fluers.
_LARGEST: Final = 2**63 - 1
_NO_LIMIT: Final = 2**64 - 1
#: Options that an envelope carries.
CARRIED_OPTIONS: Final = frozenset({"model", "max_turns", "prompt"})


class InvalidEnvelope(msgspec.Struct, frozen=True):
    """An envelope that cannot be imported: the name of its file or row, and why."""

    name: str
    reason: str
    code: str


class EnvelopeImport(msgspec.Struct, frozen=True):
    """What an import of envelopes did: session ids by UUID."""

    sessions: dict[str, SessionId]
    existing: dict[str, SessionId]  # were imported before, and were not changed
    skipped: list[str]  # exist here with other content, or were deleted
    invalid: list[InvalidEnvelope]
    models: list[str] = []  # that the imported sessions will ask
    # the agent did not take in the options or messages of these, and why; their sessions are there
    failed: dict[str, str] = {}


class EnvelopeExport(msgspec.Struct, frozen=True):
    """What an export wrote: the UUID of each session, and what its envelope cannot carry."""

    sessions: dict[SessionId, str]
    left_out: dict[SessionId, list[str]]


# ---- from an envelope


def digest_envelope(session: EnvelopeSession) -> str:
    """A digest of the content of an envelope."""
    return sha256(codec.dumps(pack(session)).encode()).hexdigest()[:32]


def plan_signals(
    session: EnvelopeSession, models: Mapping[str, str], keep: Callable[[list[JSON]], list[JSON]]
) -> list[Signal]:
    """The commands that bring a new conversation to the state of an envelope. `models` renames
    models; `keep` rewrites content for the journal.
    """
    options: dict[str, JSON] = {}
    if session.model:
        options["model"] = models.get(session.model, session.model)
    if session.max_turns:
        fits = session.max_turns <= _LARGEST
        options["max_turns"] = session.max_turns if fits else _LARGEST - 1
    if session.system_message is not None:
        options["prompt"] = {"replace": {"intro": session.system_message}}
    commands: list[dict[str, JSON]] = []
    if options:
        commands.append({"do": "configure", "id": OPTIONS_INPUT, "options": options})
    repeats = repeats_system(session)
    nodes: list[Any] = make_nodes(session.messages[1:] if repeats else session.messages)
    kept = [{**node, "content": list(keep(node["content"]))} for node in nodes]
    if session.messages:
        input_id = MESSAGES_AFTER_SYSTEM_INPUT if repeats else MESSAGES_INPUT
        commands.append({"do": "apply", "id": input_id, "to": None, "nodes": kept})
    return [Signal(INPUT, command) for command in commands]


def repeats_system(session: EnvelopeSession) -> bool:
    """Whether the first message is the system message: fluers sends only messages to a model."""
    words = session.system_message
    return words is not None and session.messages[:1] == (system(words),)


def make_nodes(messages: Sequence[Message]) -> list[JSON]:
    """The messages as nodes. Calls without a result get one before the next other message."""
    nodes: list[JSON] = []
    open_calls: dict[str, None] = {}

    def add(role: Role, content: list[JSON]) -> None:
        nodes.append({"id": f"m{len(nodes)}", "role": str(role), "content": content})

    def close() -> None:
        if open_calls:
            add(Role.TOOL, [_make_missing_result(call) for call in open_calls])
            open_calls.clear()

    for message in messages:
        if message.role is not Role.TOOL:
            close()
        add(message.role, encode_message(message).get("content", []))
        for block in message.content:
            if isinstance(block, ToolUse) and message.role is Role.ASSISTANT:
                open_calls[block.id] = None
            elif isinstance(block, ToolResult):
                open_calls.pop(block.tool_use_id, None)
    close()
    return nodes


def _make_missing_result(call: str) -> JSON:
    return {"type": "tool_result", "tool_use_id": call, "content": NO_RESULT, "is_error": True}


# ---- to an envelope


def make_envelope(birth: Birth, agent: Agent, told: Conversation, queued: int) -> EnvelopeSession:
    """The conversation as fluers would have it; `left_out` says what that cannot be. `queued` is
    the number of inputs that wait.
    """
    writer = _EnvelopeWriter(birth, agent, told)
    return writer.write(queued)


class _EnvelopeWriter:
    """Writes one conversation as an envelope, and notes what is left out."""

    def __init__(self, birth: Birth, agent: Agent, told: Conversation) -> None:
        graph = told.graph
        self._birth = birth
        self._agent = agent
        self._told = told
        self._path = graph.path(graph.leaf)
        frames = list_frames(self._path)
        self._options = compute_frame_options(told.options, told.turns, frames).of(frames[-1].id)
        imported = [
            one for one in told.turns if one.input in (MESSAGES_INPUT, MESSAGES_AFTER_SYSTEM_INPUT)
        ]
        self._imported = f"{imported[0].turn}." if imported else None
        self._says_system = not imported or imported[0].input == MESSAGES_AFTER_SYSTEM_INPUT
        # nothing was asked since the import: what the envelope left unset is not the agent's yet
        self._untouched = LABEL in birth.labels and all(
            node.id.startswith(self._imported or "-") for node in self._path
        )
        self._blocks: Counter[str] = Counter()  # that were left out, by type
        self._provider_data = 0

    def write(self, queued: int) -> EnvelopeSession:
        begins = max(
            (n + 1 for n, node in enumerate(self._path) if node.kind is NodeKind.FRAME), default=0
        )
        words = self._system()
        messages: list[Message] = []
        for node in self._path[begins:]:
            if node.kind is NodeKind.MESSAGE:
                messages += self._messages(node)
        is_new_frame = begins > 0
        if words is not None and (self._says_system or is_new_frame):
            messages.insert(0, system(words))
        unset = self._untouched or self._agent.ref == fluers.ref
        max_turns: Any = self._options.get("max_turns")
        if max_turns == _LARGEST - 1:
            max_turns = _NO_LIMIT
        return EnvelopeSession(
            id=choose_uuid(self._birth),
            model=str(self._options.get("model") or ("" if unset else self._agent.model) or ""),
            max_turns=max_turns or (0 if unset else self._agent.max_turns),
            system_message=words,
            messages=tuple(messages),
            metadata=dict(self._birth.metadata),
            left_out=tuple(self._left_out(begins, queued)),
        )

    def _system(self) -> str | None:
        """The system text that the model was last given; else the one that it would get."""
        layer: Any = self._options.get("prompt")
        intro: str | None = None
        if isinstance(layer, dict):
            intro = layer.get("replace", {}).get("intro")
        known = [node for node in self._path if node.kind is NodeKind.PROMPT]
        given: Any = known[-1].content if known else {}
        if intro is not None and (not known or given.get("system", "") == intro.strip()):
            return intro
        if self._untouched:
            return None
        return (given.get("system") if known else self._agent.instructions) or None

    def _messages(self, node: Node) -> list[Message]:
        """A node as messages. fluers reads one result of a message, so each gets its own."""
        blocks: list[Any] = to_blocks(node.content)
        assert node.role is not None
        if self._imported is not None and node.id.startswith(self._imported):
            is_added = any(block.get("is_error") for block in blocks)
            if is_added and self._untouched:
                return []
            with suppress(BadValue):  # a plugin may have changed it
                if not is_added:
                    return [decode_message({"role": node.role, "content": blocks})]
        kept: list[Block] = []
        for block in blocks:
            kept += self._block(block)
        if not kept:
            return []
        if node.role is Role.TOOL:
            return [Message(node.role, (one,)) for one in kept]
        return [Message(node.role, tuple(kept))]

    def _block(self, block: dict[str, Any]) -> list[Block]:
        self._provider_data += "provider" in block
        match block:
            case {"type": "text", "text": str(words)}:
                return [Text(words)]
            case {"type": "tool_use", "id": str(call), "name": str(name)}:
                return [ToolUse(call, name, block.get("input"))]
            case {"type": "tool_result", "tool_use_id": str(call)}:
                return [ToolResult(call, make_tool_result(block))]
            case {"type": "image"}:
                try:
                    return [*decode_message({"role": "user", "content": [block]}).content]
                except BadValue:
                    pass
        self._blocks[str(block.get("type"))] += 1
        return []

    def _left_out(self, begins: int, queued: int) -> list[str]:
        """What the session has and an envelope cannot carry."""
        told = self._told
        kinds = [node.kind for node in self._path]
        earlier = kinds[:begins].count(NodeKind.MESSAGE)
        mine = {node.id for node in self._path}
        going = {node.id for node in told.graph.path(told.graph.tip)} - mine
        elsewhere = len(told.graph.nodes) - len(mine) - len(going)
        options = sorted({*self._agent.options, *self._options} - CARRIED_OPTIONS)
        layer: Any = self._options.get("prompt")
        tools = sorted(tool.name for tool in self._agent.tools)
        added = sorted(one.name for one in read_registry(told.tools, None).added)
        custom = kinds.count(NodeKind.CUSTOM)
        spent = told.spent.total
        found = {
            "the running turn": bool(going),
            f"{queued} queued inputs": queued,
            f"{earlier} messages before the current frame": earlier,
            f"{elsewhere} nodes of other branches": elsewhere,
            "the state of plugins": NodeKind.PLUGIN in kinds,
            f"options: {', '.join(options)}": options,
            "changes of the prompt other than its text": (
                isinstance(layer, str) or (isinstance(layer, dict) and layer.keys() - {"replace"})
            ),
            f"the tools of the agent: {', '.join(tools)}": tools,
            f"the tools added to the session: {', '.join(added)}": added,
            f"{custom} nodes of tools and plugins": custom,
            "programs of the host": NodeKind.CODE in kinds,
            "the variables of programs": NodeKind.VARIABLES in kinds,
            "provider data of blocks": self._provider_data,
            "the usage": any(spent.json().values()),
        }
        dropped = [f"{count} blocks of type {kind}" for kind, count in sorted(self._blocks.items())]
        return [words for words, is_there in found.items() if is_there] + dropped


def list_frames(path: Iterable[Node]) -> list[Frame]:
    """All frames on a path, oldest first."""
    found = [Frame(INITIAL_FRAME, INITIAL_FRAME, None)]
    for node in path:
        if node.kind is NodeKind.FRAME:
            content: Any = node.content
            found.append(Frame(node.id, content["reason"], found[-1].id))
    return found


def make_tool_result(block: Mapping[str, Any]) -> JSON:
    """The content of a result as the `ToolResult` of fluers: blocks, and the value as `details`."""
    content: JSON = block.get("content")
    failed = bool(block.get("is_error"))
    match content:
        case {"content": [*inner], **more} if more.keys() <= {"details"} and _are_shown(inner):
            return content
        case str():
            words = f"Error: {content}" if failed and not _says_error(content) else content
            return {"content": [{"type": "text", "text": words}]}
        case [_, *_] if _are_shown(content):
            return {"content": content}
    shown = [{"type": "text", "text": ("Error: " if failed else "") + codec.dumps(content)}]
    return {"content": shown, "details": content}


def _are_shown(blocks: Sequence[Any]) -> bool:
    return all(isinstance(one, dict) and one.get("type") in ("text", "image") for one in blocks)


def _says_error(words: str) -> bool:
    return words.startswith("Error:")


def choose_uuid(birth: Birth) -> UUID:
    """The UUID of a session: its key, if that is one, else always the same one for its id."""
    try:
        return parse_session_id(birth.key or "")
    except InvalidSessionId:
        return uuid5(NAMESPACE_URL, f"everhold:{birth.id}")


# ---- the verbs

#: Where envelopes come from: a directory, a file, an adapter, or sessions that were read.
EnvelopeSource = str | os.PathLike[str] | EnvelopeAdapter | EnvelopeSession
#: Makes the birth of a session; raises for what a session may not have.
MakeBirth = Callable[..., Birth]


class Envelopes:
    """fluers' sessions of a runtime: import, export."""

    def __init__(self, engine: Engine, programs: KnownPrograms, make_birth: MakeBirth) -> None:
        self._engine = engine
        self._store = engine.store
        self._programs = programs
        self._make_birth = make_birth

    async def import_(
        self,
        source: EnvelopeSource,
        *,
        agent: Agent | None = None,
        models: Mapping[str, str] | None = None,
        existing: str = "refuse",
        invalid: str = "refuse",
        progress: ProgressCallback | None = None,
    ) -> EnvelopeImport:
        """Import sessions of fluers; their conversations resume here.

        `source` is a directory of `<uuid>.json` files, one such file, an adapter, or an
        `EnvelopeSession`. `agent` holds the conversations; by default one without tools, which is
        `everhold.agents.envelopes:fluers`. `models` renames models, as in `{"gpt-4o":
        "openai:gpt-4o"}`. Raises before anything changes: the error of a single
        envelope, `BadEnvelopes` for several, and `KeyConflict` or `KeyDeleted` for a UUID that was
        used for something else. `invalid="skip"` and `existing="skip"` leave those out instead.
        """
        _check_choice("existing", existing)
        _check_choice("invalid", invalid)
        if agent is not None and not isinstance(agent, Agent):
            raise NotAnAgent(repr(agent), "Give an everhold.Agent.")
        reader = await _EnvelopeReader.open(source)
        checked = await self._check(reader, agent, existing)
        if checked.invalid and invalid == "refuse":
            raise _make_refusal(checked, len(reader.names))
        holder = fluers if agent is None else agent
        self._programs.add(holder)
        for known in checked.existing.values():
            record = await self._store.load(known, since=-1)
            if is_same_program(record.birth.program, holder.ref) and is_import_unfinished(record):
                await self._engine.move(known)
        renamed = check_text_map_arg("models", models, MAX_METADATA_CHARS)
        made: dict[str, SessionId] = {}
        asked: set[str] = set()
        failed: dict[str, str] = {}
        for count, (name, digest) in enumerate(checked.digests.items()):
            if progress is not None:
                progress(count, len(checked.digests))
            session = await reader.read(name)
            if digest_envelope(session) != digest:
                raise BadEnvelopes(name, "it was changed during the import")
            made[str(session.id)] = await self._engine.complete(
                self._import_one(session, holder, digest, renamed)
            )
            if (reason := await self._find_failure(made[str(session.id)])) is not None:
                failed[str(session.id)] = reason
            asked.add(renamed.get(session.model, session.model))
        if progress is not None:
            progress(len(checked.digests), len(checked.digests))
        return EnvelopeImport(
            made,
            checked.existing,
            checked.skipped,
            [InvalidEnvelope(name, str(one), one.code) for name, one in checked.invalid.items()],
            sorted(asked - {""}),
            failed,
        )

    async def export(
        self,
        target: str | os.PathLike[str] | EnvelopeAdapter,
        sessions: SessionRef | Iterable[SessionRef],
    ) -> EnvelopeExport:
        """Write conversations as sessions of fluers.

        `target` is an adapter, a directory, or for one session a file that ends in `.json`. An
        envelope there with the same UUID is replaced. All conversations are read before anything is
        written.
        """
        named = [sessions] if isinstance(sessions, str | SessionHandle) else list(sessions)
        found = {await resolve_session_id(self._store, one): await self.read(one) for one in named}
        if isinstance(target, str | os.PathLike) and Path(target).suffix == ".json":
            if len(found) != 1:
                raise BadArguments(
                    "export", f"{len(found)} sessions need a directory, not the file {target}"
                )
            (session,) = found.values()
            replace_file(Path(target), encode_file(str(session.id), pack(session)))
        else:
            adapter = JsonFiles(target) if isinstance(target, str | os.PathLike) else target
            packed = {str(session.id): pack(session) for session in found.values()}
            for uuid, data in packed.items():
                await adapter.save_session(uuid, data)
        return EnvelopeExport(
            {session_id: str(one.id) for session_id, one in found.items()},
            {session_id: list(one.left_out) for session_id, one in found.items()},
        )

    async def read(self, session: SessionRef) -> EnvelopeSession:
        """A conversation as a session of fluers. `left_out` says what an envelope cannot carry."""
        session_id = await resolve_session_id(self._store, session)
        record = await self._store.load(session_id)
        birth = record.birth
        agent = self._programs.find(birth.program, birth.version)
        if not isinstance(agent, Agent):
            raise NotAnAgent(birth.program, "Only conversations of agents can be envelopes.")
        return await read_conversation(self._engine, record, agent)

    async def _check(
        self, reader: _EnvelopeReader, agent: Agent | None, existing: str
    ) -> _CheckedEnvelopes:
        """Read all envelopes, and find out what to do with each. Changes nothing."""
        found = _CheckedEnvelopes()
        names: dict[UUID, str] = {}
        for name in reader.names:
            try:
                session = await reader.read(name)
                digest = digest_envelope(session)
                self._plan_birth(session, agent or fluers, digest)
            except EverholdError as error:
                found.invalid[name] = error
                continue
            if session.id in names:
                same = f"it is the same session as {names[session.id]}"
                found.invalid[name] = BadEnvelopes(name, same)
                continue
            names[session.id] = name
            try:
                known = await self._find(session, agent, digest)
            except (KeyConflict, KeyDeleted):
                if existing == "refuse":
                    raise
                found.skipped.append(str(session.id))
                continue
            if known is None:
                found.digests[name] = digest
            else:
                found.existing[str(session.id)] = known
        return found

    def _plan_birth(self, session: EnvelopeSession, agent: Agent, digest: str) -> Birth:
        return self._make_birth(
            agent(), str(session.id), "", {LABEL: digest}, session.metadata, None
        )

    async def _find(
        self, session: EnvelopeSession, agent: Agent | None, digest: str
    ) -> SessionId | None:
        """The session that this envelope was imported as; raises `KeyConflict` or `KeyDeleted`."""
        key = str(session.id)
        found = await self._store.find(key)
        if found is None:
            await self._engine.refuse_deleted(key)
            return None
        birth = (await self._store.load(found, since=-1)).birth
        other = (
            "content"
            if birth.labels.get(LABEL) != digest
            else "program"
            if agent is not None and not is_same_program(birth.program, agent.ref)
            else None
        )
        if other is not None:
            conflict = KeyConflict(key, found, other)
            conflict.hint = "It was not changed. To skip such envelopes: existing='skip'."
            raise conflict
        return SessionId(found)

    async def _import_one(
        self, session: EnvelopeSession, agent: Agent, digest: str, models: Mapping[str, str]
    ) -> SessionId:
        birth = self._plan_birth(session, agent, digest)
        try:
            keep = functools.partial(apply_before_store, agent.plugins)
            await self._engine.accept(birth, plan_signals(session, models, keep))
        except KeyConflict:  # another process has imported it since it was checked
            known = await self._find(session, agent, digest)
            if known is None:
                raise
            return known
        await self._engine.move(birth.id)
        return birth.id

    async def _find_failure(self, session_id: SessionId) -> str | None:
        """Why the agent did not take in what was imported, such as the error of a plugin."""
        told = Conversation((await self._store.load(session_id)).deliveries)
        for input_id in IMPORT_INPUTS:
            settled = told.settled(input_id)
            if settled is not None and isinstance(settled.outcome, TurnFailed):
                return settled.outcome.error
        return None


async def read_conversation(engine: Engine, record: SessionRecord, agent: Agent) -> EnvelopeSession:
    """The conversation of a session as a session of fluers."""
    if is_import_unfinished(record):
        await engine.move(record.birth.id)
        record = await engine.store.load(record.birth.id)
    queued = await engine.store.intake(record.birth.id, lambda intake: len(intake.waiting()))
    return make_envelope(record.birth, agent, Conversation(record.deliveries), queued)


def is_import_unfinished(record: SessionRecord) -> bool:
    """Whether the process that imported a session died before the conversation took in what the
    commit holds.
    """
    return any(
        letter.kind == "signal"
        and isinstance(letter.body["value"], dict)
        and letter.body["value"].get("id") in IMPORT_INPUTS
        for letter in record.letters
    )


class _CheckedEnvelopes:
    """What the first pass over a source has found."""

    def __init__(self) -> None:
        self.digests: dict[str, str] = {}  # of those to import, by name
        self.existing: dict[str, SessionId] = {}
        self.skipped: list[str] = []
        self.invalid: dict[str, EverholdError] = {}


class _EnvelopeReader:
    """The envelopes of a source by name: each is read when it is needed, so that all need not fit
    in memory at once.
    """

    def __init__(self, names: list[str], read: Callable[[str], Any]) -> None:
        self.names = names
        self._read = read

    @classmethod
    async def open(cls, source: EnvelopeSource) -> _EnvelopeReader:
        if isinstance(source, EnvelopeSession):
            session = source
            return cls([str(session.id)], lambda _: _resolved(pack(session)))
        if not isinstance(source, str | os.PathLike):
            return cls(await source.list_sessions(), source.load_session)
        path = Path(source).expanduser()
        if path.is_dir():
            names = await JsonFiles(path).list_sessions()
            return cls(names, lambda name: _resolved(load_file(path / f"{name}.json")))
        if not path.exists():
            raise BadSetting("source", f"there is no file or directory {path}")
        return cls([path.stem], lambda _: _resolved(load_file(path)))

    async def read(self, name: str) -> EnvelopeSession:
        """Read one envelope; raises one of the errors of envelopes."""
        named = parse_session_id(name)
        data = await self._read(name)
        if data is None:
            raise BadEnvelopes(name, "it was deleted during the import")
        return unpack(data, named)


async def _resolved(data: JSON) -> JSON:
    return data


def _check_choice(name: str, given: str) -> None:
    if given not in ("refuse", "skip"):
        raise BadSetting(name, f"{given!r} is not 'refuse' or 'skip'")


def _make_refusal(checked: _CheckedEnvelopes, count: int) -> EverholdError:
    if count == 1:
        (error,) = checked.invalid.values()
        return error
    return BadEnvelopes(
        f"{len(checked.invalid)} of {count} envelopes",
        "; ".join(f"{name}: {error}" for name, error in checked.invalid.items()),
    )


__all__ = [
    "EnvelopeExport",
    "EnvelopeImport",
    "Envelopes",
    "InvalidEnvelope",
    "choose_uuid",
    "digest_envelope",
    "fluers",
    "make_envelope",
    "make_nodes",
    "make_tool_result",
    "plan_signals",
    "read_conversation",
]
