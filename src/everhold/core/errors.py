"""Every error everhold raises on purpose, on one page.

    EverholdError
    ├── UsageError            the caller asked for what does not exist or does not fit: change the call
    │   ├── UnknownSession    UnknownQuery        NoOpenQuery         ManyOpenQueries
    │   ├── AnswerRefused     BadValue            BadSchema           BadArguments
    │   ├── UnknownNode       ProviderMismatch    ProviderUnconfigured
    │   ├── BadSetting        KeyConflict         BadId               BadStep
    │   ├── NotAllowed        SessionExists       BadRequest          BadHostFile
    │   ├── BadPackage        BadPackageFile      UnknownPlugin       BadSkill
    │   ├── UnknownAttachment ToolClash           InputConflict
    │   ├── BadSchedule       UnknownTimezone     UnknownSchedule     UnknownTrigger
    │   ├── EventConflict     UnknownHandover     UnknownInput
    │   ├── CodeExecutionUnavailable                  BadSignature        NotAnAgent
    │   └── UnknownProgram    NotAProgram         MissingExtra        BadExport
    ├── StateError            a fair request at the wrong moment: look at the status, then decide
    │   ├── IllegalMove       AnswerConflict      QueryClosed         SessionEnded
    │   ├── StillNeeded       Waiting             Cancelled           Failed
    │   ├── TurnWaiting       StaleTools          SessionBusy         InputEnded
    │   └── LeaseLost         ClaimLost           Outdated
    ├── StoreError            the store could not keep its promise: the operator's move
    │   ├── Overtaken         StoreBusy           StoreFull           StoreDamaged
    │   ├── StoreNewer        StoreUnavailable    ReadOnlyStore       WorkerFailed
    │   ├── DamagedGraph      ToolServerFailed    SweepFailed
    │   └── CodeExecutionStopped
    └── ProgramError          the program broke a rule of being replayable: its author's move
        ├── Diverged          VersionMissing      ForeignCall         ForeignWake
        ├── Stuck             Spinning            Poison              RunsOnImport
        └── BudgetExceeded    AnswerFailed        OutcomeUnknown      Expired
            ChildFailed       AfterCancel         TurnStopped         TooLarge
            BadDirective      PluginFailed        CannotRestart

Rules
  1. Only leaves are raised. A leaf has a `code`; a branch has none.
  2. A leaf's constructor takes facts and writes the sentence itself, so that the same failure reads the same
     everywhere.
  3. `code` is part of the wire contract and never changes; the sentence may.
  4. Nothing here knows of HTTP, MCP or exit codes: `fronts/wire.py` does.
"""

from __future__ import annotations

from typing import Any

from everhold.core.agent_errors import BadSkill as BadSkill
from everhold.core.agent_errors import CodeExecutionStopped as CodeExecutionStopped
from everhold.core.agent_errors import CodeExecutionUnavailable as CodeExecutionUnavailable
from everhold.core.agent_errors import NotAnAgent as NotAnAgent
from everhold.core.agent_errors import ToolServerFailed as ToolServerFailed
from everhold.core.branches import EverholdError as EverholdError
from everhold.core.branches import ProgramError as ProgramError
from everhold.core.branches import StateError as StateError
from everhold.core.branches import StoreError as StoreError
from everhold.core.branches import UsageError as UsageError
from everhold.core.duty_errors import BadSchedule as BadSchedule
from everhold.core.duty_errors import EventConflict as EventConflict
from everhold.core.duty_errors import Outdated as Outdated
from everhold.core.duty_errors import UnknownHandover as UnknownHandover
from everhold.core.duty_errors import UnknownSchedule as UnknownSchedule
from everhold.core.duty_errors import UnknownTimezone as UnknownTimezone
from everhold.core.duty_errors import UnknownTrigger as UnknownTrigger
from everhold.core.intake_errors import ClaimLost as ClaimLost
from everhold.core.intake_errors import InputConflict as InputConflict
from everhold.core.intake_errors import InputEnded as InputEnded
from everhold.core.intake_errors import LeaseLost as LeaseLost
from everhold.core.intake_errors import SessionBusy as SessionBusy
from everhold.core.intake_errors import UnknownInput as UnknownInput
from everhold.core.program_errors import AfterCancel as AfterCancel
from everhold.core.program_errors import AnswerFailed as AnswerFailed
from everhold.core.program_errors import BadDirective as BadDirective
from everhold.core.program_errors import BudgetExceeded as BudgetExceeded
from everhold.core.program_errors import CannotRestart as CannotRestart
from everhold.core.program_errors import ChildFailed as ChildFailed
from everhold.core.program_errors import Diverged as Diverged
from everhold.core.program_errors import Expired as Expired
from everhold.core.program_errors import ForeignCall as ForeignCall
from everhold.core.program_errors import ForeignWake as ForeignWake
from everhold.core.program_errors import OutcomeUnknown as OutcomeUnknown
from everhold.core.program_errors import PluginFailed as PluginFailed
from everhold.core.program_errors import Poison as Poison
from everhold.core.program_errors import RunsOnImport as RunsOnImport
from everhold.core.program_errors import Spinning as Spinning
from everhold.core.program_errors import Stuck as Stuck
from everhold.core.program_errors import TooLarge as TooLarge
from everhold.core.program_errors import TurnStopped as TurnStopped
from everhold.core.program_errors import VersionMissing as VersionMissing
from everhold.core.upkeep_errors import BadSignature as BadSignature
from everhold.core.upkeep_errors import SweepFailed as SweepFailed

# ---- the caller's move


class UnknownSession(UsageError):
    code = "unknown_session"
    hint = "List the sessions this database knows: everhold sessions"

    def __init__(self, session_id: str, where: str = "") -> None:
        super().__init__(f"no session {session_id!r}" + (f" in {where}" if where else ""))
        self.session_id = session_id


class UnknownQuery(UsageError):
    code = "unknown_query"
    hint = "List the open questions: everhold inbox"

    def __init__(self, session_id: str, query_id: str) -> None:
        super().__init__(f"session {session_id!r} never asked {query_id!r}")
        self.session_id, self.query_id = session_id, query_id


class NoOpenQuery(UsageError):
    code = "no_open_query"
    hint = "Ask for the session's status to see what it waits for."

    def __init__(self, session_id: str, state: str) -> None:
        super().__init__(f"session {session_id!r} is {state} and has no open question")
        self.session_id, self.state = session_id, state


class ManyOpenQueries(UsageError):
    code = "many_open_queries"
    hint = "Name the question with query_id."

    def __init__(self, session_id: str, query_ids: list[str]) -> None:
        shown = ", ".join(query_ids[:5]) + ("…" if len(query_ids) > 5 else "")
        super().__init__(f"session {session_id!r} has {len(query_ids)} open questions ({shown}); say which")
        self.session_id, self.query_ids = session_id, query_ids


class AnswerRefused(UsageError):
    code = "answer_refused"
    hint = "Nothing was changed; send an answer that fits."

    def __init__(self, path: str, expected: str, got: str, query_id: str = "") -> None:
        to = f" to {query_id}" if query_id else ""
        super().__init__(f"the answer{to} does not fit: {path} should be {expected}, got {got}")
        self.path, self.expected, self.got = path, expected, got


class BadValue(UsageError):
    code = "bad_value"
    hint = "Use plain JSON values: None, bool, int, float, str, list, and dict with str keys."

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be stored as JSON: {reason}")
        self.path, self.reason = path, reason


class BadSchema(UsageError):
    code = "bad_schema"
    hint = "Use a type that JSON Schema can describe, or a schema of the keywords that ADR 0002 lists."

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be checked: {reason}")
        self.path, self.reason = path, reason


class BadArguments(UsageError):
    code = "bad_arguments"

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(f"{program!r} cannot be called like this: {reason}")
        self.program, self.reason = program, reason


class BadRequest(UsageError):
    code = "bad_request"
    hint = "Nothing was done. Look at the tool's parameters and call it again."

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"the tool {tool!r} cannot be used like this: {reason}")
        self.tool, self.reason = tool, reason


class BadSetting(UsageError):
    code = "bad_setting"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"setting {name}: {reason}")
        self.name, self.reason = name, reason


class KeyConflict(UsageError):
    code = "key_conflict"
    hint = "Use another key, or the arguments the session was started with."

    def __init__(self, key: str, session_id: str, what: str = "") -> None:
        started = f", which was started with other {what}" if what else ""
        super().__init__(f"key {key!r} belongs to session {session_id!r}{started}")
        self.key, self.session_id, self.what = key, session_id, what
        self.hint = self.hint if what else "Use another key."


class SessionExists(UsageError):
    code = "session_exists"
    hint = "It is left as it is. Skip those that are here already: import_(file, existing='skip')."

    def __init__(self, session_id: str, where: str) -> None:
        super().__init__(f"session {session_id!r} is in {where} already")
        self.session_id, self.where = session_id, where


class BadId(UsageError):
    code = "bad_id"

    def __init__(self, given: str, reason: str) -> None:
        super().__init__(f"{given!r} is not an id: {reason}")
        self.given, self.reason = given, reason


class BadStep(UsageError):
    code = "bad_step"
    hint = "Steps are numbered from 0, the start; `everhold show ID` lists them."

    def __init__(self, session_id: str, step: int, reason: str) -> None:
        super().__init__(f"step {step} of session {session_id!r}: {reason}")
        self.session_id, self.step, self.reason = session_id, step, reason


class NotAllowed(UsageError):
    code = "not_allowed"

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


class UnknownAttachment(UsageError):
    code = "unknown_attachment"
    hint = "List what the session keeps: runtime.attachments(session_id)"

    def __init__(self, session_id: str, attachment_id: str) -> None:
        super().__init__(f"session {session_id!r} keeps no attachment {attachment_id!r}")
        self.session_id, self.attachment_id = session_id, attachment_id


class ToolClash(UsageError):
    code = "tool_clash"
    hint = "Rename one of them, or lay one over the other."

    def __init__(self, what: str, one: str, other: str) -> None:
        super().__init__(f"the tool {what!r} is brought by {one!r} and by {other!r}")
        self.what = what


class UnknownNode(UsageError):
    code = "unknown_node"
    hint = "List the nodes of a conversation: session.history()"

    def __init__(self, node_id: str) -> None:
        super().__init__(f"no node {node_id!r} in this conversation")
        self.node_id = node_id


class UnknownProgram(UsageError):
    code = "unknown_program"

    def __init__(self, name: str, reason: str = "", hint: str = "") -> None:
        super().__init__(f"no program {name!r} here" + (f": {reason}" if reason else ""))
        self.name, self.reason = name, reason
        self.hint = hint or "Name it as module:function, path/file.py:function, or list its module in everhold.toml."


class UnknownPlugin(UsageError):
    code = "unknown_plugin"

    def __init__(self, name: str, names: list[str]) -> None:
        super().__init__(f"no plugin {name!r} is installed")
        self.name = name
        self.hint = f"Installed are: {', '.join(names) or 'none'}. Install its package, or give the plugin itself."


class NotAProgram(UsageError):
    code = "not_a_program"
    hint = "Put @everhold.program on an `async def` whose first parameter is ctx."

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name!r} is not a program: {reason}")
        self.name, self.reason = name, reason


class MissingExtra(UsageError):
    code = "missing_extra"

    def __init__(self, extra: str, for_what: str) -> None:
        super().__init__(f"{for_what} needs the extra {extra!r}")
        self.extra = extra
        self.hint = f"pip install 'everhold[{extra}]'"


class ProviderMismatch(UsageError):
    code = "provider_mismatch"
    hint = "Name a model of a provider that may be asked here, or let whoever opens the runtime allow this one."

    def __init__(self, session_id: str, expected: str, actual: str) -> None:
        super().__init__(f"session {session_id!r} asks for a model of {actual}; here only {expected} may be asked")
        self.session_id, self.expected, self.actual = session_id, expected, actual


class ProviderUnconfigured(UsageError):
    code = "provider_unconfigured"

    def __init__(self, provider: str, reason: str, hint: str) -> None:
        super().__init__(f"{provider} cannot be asked: {reason}")
        self.provider, self.reason, self.hint = provider, reason, hint


class BadExport(UsageError):
    code = "bad_export"

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} cannot be read as exported sessions: {reason}")
        self.where, self.reason = where, reason


class BadHostFile(UsageError):
    code = "bad_host_file"

    def __init__(self, where: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{where} cannot be edited: {reason}")
        self.where, self.reason = where, reason
        self.hint = (
            hint or "Nothing was changed. Mend the file, or write it yourself: --print shows what belongs there."
        )


class BadPackage(UsageError):
    code = "bad_package"

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint or "Nothing was changed. `everhold pkg list` says what is there."


class BadPackageFile(UsageError):
    code = "bad_package_file"
    hint = "Nothing was changed. Mend the file by hand, then try again."

    def __init__(self, where: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{where}: {reason}")
        self.where, self.reason = where, reason
        self.hint = hint or self.hint


# ---- a fair request at the wrong moment


class IllegalMove(StateError):
    code = "illegal_move"
    hint = "Ask for the session's status; only the moves in docs/reference/states.md are possible."

    def __init__(self, state: str, event: str) -> None:
        super().__init__(f"a {state} session cannot be {event}")
        self.state, self.event = state, event


class AnswerConflict(StateError):
    code = "answer_conflict"
    hint = "The first answer stands. To go on from another one, fork the session at that step."

    def __init__(self, session_id: str, query_id: str, *, at_once: bool = False) -> None:
        has = "was given two answers at once" if at_once else "has another answer already"
        super().__init__(f"{query_id!r} of session {session_id!r} {has}")
        self.session_id, self.query_id = session_id, query_id
        self.hint = "Nothing was changed; give one answer to each question." if at_once else self.hint


class QueryClosed(StateError):
    code = "query_closed"
    hint = "The program no longer waits for it; look at what is open now."

    def __init__(self, session_id: str, query_id: str, state: str) -> None:
        super().__init__(f"{query_id!r} of session {session_id!r} was {state} and takes no answer")
        self.session_id, self.query_id, self.state = session_id, query_id, state


class StaleTools(StateError):
    code = "stale_tools"
    hint = "Read the tools again, and decide anew."

    def __init__(self, seen: int, present: int) -> None:
        super().__init__(f"the tools are of generation {present}, and generation {seen} was seen")
        self.seen, self.present = seen, present


class TurnWaiting(StateError):
    code = "turn_waiting"
    hint = "Answer it (everhold inbox), or stop the turn with session.cancel_turn(); then send again."

    def __init__(self, session_id: str, query_id: str, kind: str) -> None:
        super().__init__(f"session {session_id!r} waits for the {kind} {query_id}, and takes no input before")
        self.session_id, self.query_id = session_id, query_id


class SessionEnded(StateError):
    code = "session_ended"
    hint = "Start another session, retry a failed one, or fork this one at an earlier step."

    def __init__(self, session_id: str, state: str, verb: str) -> None:
        super().__init__(f"session {session_id!r} is {state}; it cannot be {verb}")
        self.session_id, self.state = session_id, state


class StillNeeded(StateError):
    code = "still_needed"

    def __init__(self, session_id: str, reason: str, hint: str) -> None:
        super().__init__(f"session {session_id!r} is still needed: {reason}")
        self.session_id, self.hint = session_id, hint


class Waiting(StateError):
    """The session waits for somebody outside; answer its queries and go on."""

    code = "waiting"
    hint = "Answer the open questions, then run the same call with the same key, or wait for the session."

    def __init__(self, session_id: str, queries: tuple[Any, ...], until: float | None = None, more: str = "") -> None:
        count = f"{len(queries)} question{'s' if len(queries) != 1 else ''} open"
        super().__init__(f"session {session_id!r} is waiting: {count}" + (f"; {more}" if more else ""))
        self.session_id, self.queries, self.until = session_id, queries, until
        self.name = session_id  # what people call it: its key, where there is one


class Cancelled(StateError):
    code = "cancelled"

    def __init__(self, session_id: str, reason: str) -> None:
        super().__init__(f"session {session_id!r} was cancelled" + (f": {reason}" if reason else ""))
        self.session_id, self.reason = session_id, reason


class Failed(StateError):
    code = "failed"
    hint = "Mend the program and retry the session: every answer it has is kept."

    def __init__(self, session_id: str, error: str, hint: str = hint) -> None:
        super().__init__(f"session {session_id!r} failed: {error}")
        self.session_id, self.error = session_id, error
        self.hint = hint


# ---- the operator's move


class Overtaken(StoreError):
    code = "overtaken"
    hint = "Another process moved this session first; read it again."

    def __init__(self, session_id: str, revision: int) -> None:
        super().__init__(f"session {session_id!r} has moved past revision {revision}")
        self.session_id, self.revision = session_id, revision


class StoreBusy(StoreError):
    code = "store_busy"
    hint = "Another process holds the write lock; nothing was changed, try again."

    def __init__(self, where: str, seconds: float) -> None:
        super().__init__(f"{where} was locked by another process for {seconds:.1f} s")
        self.where, self.seconds = where, seconds


class StoreFull(StoreError):
    code = "store_full"
    hint = "Free some space and send it again: nothing of this call was written."

    def __init__(self, where: str) -> None:
        super().__init__(f"no space left to write {where}")
        self.where = where


class DamagedGraph(StoreError):
    code = "damaged_graph"
    hint = "Nothing was changed. Check the file: everhold db verify"

    def __init__(self, node_id: str, why: str) -> None:
        super().__init__(f"the conversation is damaged at node {node_id!r}: {why}")
        self.node_id = node_id


class StoreDamaged(StoreError):
    code = "store_damaged"
    hint = "Run `everhold db verify`; restore the file from a copy, or export what can still be read."

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} is damaged: {reason}")
        self.where, self.reason = where, reason


class StoreNewer(StoreError):
    code = "store_newer"
    hint = "Upgrade everhold here: pip install --upgrade everhold"

    def __init__(self, where: str, found: int, known: int) -> None:
        super().__init__(f"{where} has format {found}; this everhold knows formats up to {known}")
        self.where, self.found, self.known = where, found, known


class StoreUnavailable(StoreError):
    code = "store_unavailable"

    def __init__(self, where: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{where} cannot be opened: {reason}")
        self.where, self.reason = where, reason
        self.hint = hint or "Check the address with `everhold info`."


class ReadOnlyStore(StoreError):
    code = "read_only_store"
    hint = "Give this user the right to write the file and its folder, or name another database."

    def __init__(self, where: str) -> None:
        super().__init__(f"{where} cannot be written")
        self.where = where


class WorkerFailed(StoreError):
    code = "worker_failed"
    hint = "Nothing was changed. Look for what is short on this machine (memory, processes), then try again."

    def __init__(self, reason: str) -> None:
        super().__init__(f"the process that should run the program failed: {reason}")
        self.reason = reason


def leaves(branch: type[EverholdError] = EverholdError) -> list[type[EverholdError]]:
    """Every error that can be raised, in the order of this page."""
    below = branch.__subclasses__()
    return [leaf for child in below for leaf in leaves(child)] if below else [branch]


def words_of(error: BaseException) -> str:
    """What an error says, as text that can be stored: of a group also what is in it."""
    try:
        said = str(error)
    except Exception as other:
        said = f"what it says cannot be had ({type(other).__name__})"
    if isinstance(error, BaseExceptionGroup):
        inner = (f"{type(one).__name__}: {words_of(one)}".removesuffix(": ") for one in error.exceptions)
        said = f"{said}: {'; '.join(inner)}"
    return said.encode("utf-8", "backslashreplace").decode()
