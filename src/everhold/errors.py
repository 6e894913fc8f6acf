"""Every error everhold raises on purpose, in one tree.

    EverholdError
    ├── UsageError            the caller asked for what does not exist or does not fit: change the call
    │   ├── UnknownSession    UnknownQuery        NoOpenQuery         ManyOpenQueries
    │   ├── AnswerRefused     BadValue            BadSchema           BadArguments
    │   ├── UnknownNode       ProviderMismatch    ProviderUnconfigured
    │   ├── BadSetting        KeyConflict         BadId               BadStep
    │   ├── NotAllowed        SessionExists       BadRequest          BadHostFile
    │   ├── BadPackage        BadPackageFile      UnknownPlugin       BadSkill
    │   ├── PackageTooLarge   KeyDeleted
    │   ├── UnknownAttachment ToolClash           InputConflict
    │   ├── BadSchedule       UnknownTimezone     UnknownSchedule     UnknownTrigger
    │   ├── EventConflict     UnknownHandover     UnknownInput
    │   ├── CodeExecutionUnavailable                  BadSignature        NotAnAgent
    │   ├── NoMaintenance     BrokenEntryPoint    EntryPointConflict
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
            BadDirective      PluginFailed        CannotRestart       UnsettledInput

Rules
  1. Only leaves are raised. A leaf has a `code`; a branch has none.
  2. A leaf's constructor takes facts and writes the sentence itself, so that the same failure reads
     the same everywhere.
  3. `code` is part of the wire contract and never changes; the sentence may.
  4. Nothing here knows of HTTP, MCP or exit codes: `wire.py` does.
"""  # noqa: E501

from __future__ import annotations

from typing import Any, ClassVar


class EverholdError(Exception):
    """Root of the tree. Catch this to catch everything raised on purpose."""

    code: ClassVar[str] = ""
    hint: str = ""

    def __init__(self, message: str) -> None:
        if not self.code:
            raise TypeError(f"{type(self).__name__} is a branch; raise one of its leaves")
        super().__init__(message)


class UsageError(EverholdError):
    """The caller asked for what does not exist or does not fit."""


class StateError(EverholdError):
    """A fair request at the wrong moment."""


class StoreError(EverholdError):
    """The store could not keep its promise."""


class ProgramError(EverholdError):
    """The program broke a rule of being replayable."""


# ---- the caller's move


class UnknownSession(UsageError):
    """The database has no session of this id or key."""

    code = "unknown_session"
    hint = "List the sessions this database knows: everhold sessions"

    def __init__(self, session_id: str, where: str = "") -> None:
        super().__init__(f"no session {session_id!r}" + (f" in {where}" if where else ""))
        self.session_id = session_id


class UnknownQuery(UsageError):
    """The session never asked this question."""

    code = "unknown_query"
    hint = "List the open questions: everhold inbox"

    def __init__(self, session_id: str, query_id: str) -> None:
        super().__init__(f"session {session_id!r} never asked {query_id!r}")
        self.session_id = session_id
        self.query_id = query_id


class NoOpenQuery(UsageError):
    """An answer came for a session without an open question."""

    code = "no_open_query"
    hint = "Ask for the session's status to see what it waits for."

    def __init__(self, session_id: str, state: str) -> None:
        super().__init__(f"session {session_id!r} is {state} and has no open question")
        self.session_id = session_id
        self.state = state


class ManyOpenQueries(UsageError):
    """Several questions are open, and the answer does not name one."""

    code = "many_open_queries"
    hint = "Name the question with query_id."

    def __init__(self, session_id: str, query_ids: list[str]) -> None:
        shown = ", ".join(query_ids[:5]) + ("…" if len(query_ids) > 5 else "")
        super().__init__(
            f"session {session_id!r} has {len(query_ids)} open questions ({shown}); say which"
        )
        self.session_id = session_id
        self.query_ids = query_ids


class AnswerRefused(UsageError):
    """The answer does not fit the question's schema."""

    code = "answer_refused"
    hint = "Nothing was changed; send an answer that fits."

    def __init__(self, path: str, expected: str, got: str, query_id: str = "") -> None:
        to = f" to {query_id}" if query_id else ""
        super().__init__(f"the answer{to} does not fit: {path} should be {expected}, got {got}")
        self.path = path
        self.expected = expected
        self.got = got


class BadValue(UsageError):
    """A value cannot be stored as JSON."""

    code = "bad_value"
    hint = "Use plain JSON values: None, bool, int, float, str, list, and dict with str keys."

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be stored as JSON: {reason}")
        self.path = path
        self.reason = reason


class BadSchema(UsageError):
    """A type or schema that answers cannot be checked against."""

    code = "bad_schema"
    hint = (
        "Use a type that JSON Schema can describe, or a schema of the keywords that ADR 0002 lists."
    )

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be checked: {reason}")
        self.path = path
        self.reason = reason


class BadArguments(UsageError):
    """A function of everhold, or a program, was called with arguments that do not fit."""

    code = "bad_arguments"

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(f"{program!r} cannot be called like this: {reason}")
        self.program = program
        self.reason = reason


class BadRequest(UsageError):
    """A tool of the MCP server was called with arguments that do not fit."""

    code = "bad_request"
    hint = "Nothing was done. Look at the tool's parameters and call it again."

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"the tool {tool!r} cannot be used like this: {reason}")
        self.tool = tool
        self.reason = reason


class BadSetting(UsageError):
    """A setting has a value that cannot be used."""

    code = "bad_setting"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"setting {name}: {reason}")
        self.name = name
        self.reason = reason


class KeyConflict(UsageError):
    """The key belongs to another session, or to one with other arguments."""

    code = "key_conflict"
    hint = "Use another key, or the arguments the session was started with."

    def __init__(self, key: str, session_id: str, what: str = "") -> None:
        started = f", which was started with other {what}" if what else ""
        super().__init__(f"key {key!r} belongs to session {session_id!r}{started}")
        self.key = key
        self.session_id = session_id
        self.what = what
        self.hint = self.hint if what else "Use another key."


class KeyDeleted(UsageError):
    """The key belonged to a session that was deleted."""

    code = "key_deleted"
    hint = (
        "Nothing was started. Use another key; or, if a new session is meant: again=True, on"
        " the command line --again."
    )

    def __init__(self, key: str, session_id: str) -> None:
        super().__init__(f"key {key!r} belonged to session {session_id!r}, which was deleted")
        self.key = key
        self.session_id = session_id


class SessionExists(UsageError):
    """A session that is imported is in the database already."""

    code = "session_exists"
    hint = "It is left as it is. Skip those that are here already: import_(file, existing='skip')."

    def __init__(self, session_id: str, where: str) -> None:
        super().__init__(f"session {session_id!r} is in {where} already")
        self.session_id = session_id
        self.where = where


class BadId(UsageError):
    """The text cannot be an id."""

    code = "bad_id"

    def __init__(self, given: str, reason: str) -> None:
        super().__init__(f"{given!r} is not an id: {reason}")
        self.given = given
        self.reason = reason


class BadStep(UsageError):
    """The session has no such step, or it cannot be used for this."""

    code = "bad_step"
    hint = "Steps are numbered from 0, the start; `everhold show ID` lists them."

    def __init__(self, session_id: str, step: int, reason: str, hint: str = "") -> None:
        super().__init__(f"step {step} of session {session_id!r}: {reason}")
        self.session_id = session_id
        self.step = step
        self.reason = reason
        if hint:
            self.hint = hint


class NotAllowed(UsageError):
    """The caller may not answer this question or do this."""

    code = "not_allowed"

    def __init__(self, what: str, hint: str) -> None:
        super().__init__(what)
        self.hint = hint


class UnknownAttachment(UsageError):
    """The session has no such attachment."""

    code = "unknown_attachment"
    hint = "List what the session keeps: runtime.attachments(session_id)"

    def __init__(self, session_id: str, attachment_id: str) -> None:
        super().__init__(f"session {session_id!r} keeps no attachment {attachment_id!r}")
        self.session_id = session_id
        self.attachment_id = attachment_id


class ToolClash(UsageError):
    """Two sources of tools bring a tool of the same name."""

    code = "tool_clash"
    hint = "Rename one of them, or lay one over the other."

    def __init__(self, what: str, one: str, other: str) -> None:
        super().__init__(f"the tool {what!r} is brought by {one!r} and by {other!r}")
        self.what = what


class UnknownNode(UsageError):
    """The conversation has no such node."""

    code = "unknown_node"
    hint = "List the nodes of a conversation: session.history()"

    def __init__(self, node_id: str) -> None:
        super().__init__(f"no node {node_id!r} in this conversation")
        self.node_id = node_id


class UnknownProgram(UsageError):
    """No program of this name can be loaded here."""

    code = "unknown_program"

    def __init__(self, name: str, reason: str = "", hint: str = "") -> None:
        super().__init__(f"no program {name!r} here" + (f": {reason}" if reason else ""))
        self.name = name
        self.reason = reason
        self.hint = hint or (
            "Name it as module:function, path/file.py:function, or list its module in"
            " everhold.toml."
        )


class UnknownPlugin(UsageError):
    """No plugin of this name is installed."""

    code = "unknown_plugin"

    def __init__(self, name: str, names: list[str]) -> None:
        super().__init__(f"no plugin {name!r} is installed")
        self.name = name
        self.hint = (
            f"Installed are: {', '.join(names) or 'none'}. Install its package, or give"
            " the plugin itself."
        )


class BrokenEntryPoint(UsageError):
    """An installed package registers something that cannot be loaded or used."""

    code = "broken_entry_point"

    def __init__(self, group: str, name: str, distribution: str, reason: str) -> None:
        super().__init__(f"{name!r} of {group}, from the package {distribution!r}, {reason}")
        self.group = group
        self.name = name
        self.distribution = distribution
        self.reason = reason
        self.hint = f"Update or uninstall it: pip install --upgrade {distribution}"


class EntryPointConflict(UsageError):
    """Several installed packages register the same name."""

    code = "entry_point_conflict"

    def __init__(self, group: str, name: str, distributions: list[str]) -> None:
        super().__init__(
            f"{name!r} of {group} is offered by several packages: {', '.join(distributions)}"
        )
        self.group = group
        self.name = name
        self.distributions = distributions
        self.hint = "Uninstall all of them but one."


class NoMaintenance(UsageError):
    """The store has no maintenance, which a verb needs."""

    code = "no_maintenance"
    hint = "Use a store that has it: sqlite://, postgresql:// and memory:// do."

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"the store {where} has no maintenance, and {what} needs it")
        self.where = where
        self.what = what


class NotAProgram(UsageError):
    """What was named exists and is not a program."""

    code = "not_a_program"
    hint = "Put @everhold.program on an `async def` whose first parameter is ctx."

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name!r} is not a program: {reason}")
        self.name = name
        self.reason = reason


class MissingExtra(UsageError):
    """An extra of everhold is not installed."""

    code = "missing_extra"

    def __init__(self, extra: str, for_what: str) -> None:
        super().__init__(f"{for_what} needs the extra {extra!r}")
        self.extra = extra
        self.hint = f"pip install 'everhold[{extra}]'"


class ProviderMismatch(UsageError):
    """The session asks for a model of a provider that may not be asked here."""

    code = "provider_mismatch"
    hint = (
        "Name a model of a provider that may be asked here, or let whoever opens the runtime"
        " allow this one."
    )

    def __init__(self, session_id: str, expected: str, actual: str) -> None:
        super().__init__(
            f"session {session_id!r} asks for a model of {actual}; here only {expected} may be"
            " asked"
        )
        self.session_id = session_id
        self.expected = expected
        self.actual = actual


class ProviderUnconfigured(UsageError):
    """A provider of models cannot be asked, because its key or library is missing."""

    code = "provider_unconfigured"

    def __init__(self, provider: str, reason: str, hint: str) -> None:
        super().__init__(f"{provider} cannot be asked: {reason}")
        self.provider = provider
        self.reason = reason
        self.hint = hint


class BadExport(UsageError):
    """A file cannot be read as exported sessions."""

    code = "bad_export"

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} cannot be read as exported sessions: {reason}")
        self.where = where
        self.reason = reason


class BadHostFile(UsageError):
    """The settings file of an MCP host cannot be edited."""

    code = "bad_host_file"

    def __init__(self, where: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{where} cannot be edited: {reason}")
        self.where = where
        self.reason = reason
        self.hint = hint or (
            "Nothing was changed. Mend the file, or write it yourself: --print shows what"
            " belongs there."
        )


class BadPackage(UsageError):
    """A Lua package cannot be found, installed or used."""

    code = "bad_package"

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint or "Nothing was changed. `everhold pkg list` says what is there."


class PackageTooLarge(UsageError):
    """A package is larger than the limit of `--max-size`."""

    code = "package_too_large"

    def __init__(self, source: str, size: str, limit: str) -> None:
        super().__init__(
            f"what {source} would install takes {size}; more than {limit} is not installed unasked"
        )
        self.source = source
        self.size = size
        self.limit = limit
        self.hint = (
            "Nothing was installed. If the user wants it: everhold pkg install --max-size SIZE"
            " SOURCE,"
            " or max_package under [lua] in the settings."
        )


class BadPackageFile(UsageError):
    """A file of the package manager cannot be read."""

    code = "bad_package_file"
    hint = "Nothing was changed. Mend the file by hand, then try again."

    def __init__(self, where: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where
        self.reason = reason
        self.hint = hint or self.hint


class NotAnAgent(UsageError):
    """What was named is a program and not an agent."""

    code = "not_an_agent"

    def __init__(self, name: str, hint: str) -> None:
        super().__init__(f"{name!r} is a program, and no agent")
        self.name = name
        self.hint = hint


class BadSkill(UsageError):
    """A folder cannot be read as a skill."""

    code = "bad_skill"
    hint = (
        "A skill is a folder with a SKILL.md that begins with its name and description"
        " between two lines of ---."
    )

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} is no skill: {reason}")
        self.where = where
        self.reason = reason


class CodeExecutionUnavailable(UsageError):
    """No executor here runs code in this language."""

    code = "code_execution_unavailable"

    def __init__(self, language: str, languages: list[str]) -> None:
        super().__init__(f"nothing here runs code in {language!r}")
        self.language = language
        self.hint = (
            f"What runs here: {', '.join(languages) or 'nothing'}. Give the agent an"
            " executor: Agent(code=[…])."
        )


class BadSchedule(UsageError):
    """The time of a schedule cannot be read."""

    code = "bad_schedule"
    hint = (
        "Say when in five fields (minute hour day month weekday), such as '0 3 * * 1-5', or"
        " by a time or a pause."
    )

    def __init__(self, when: str, reason: str) -> None:
        super().__init__(f"{when!r} is no schedule: {reason}")
        self.when = when
        self.reason = reason


class UnknownTimezone(UsageError):
    """No timezone of this name is installed."""

    code = "unknown_timezone"
    hint = (
        "Name it as the tz database does: Europe/Berlin, or UTC. On Windows, `pip install"
        " tzdata` brings them."
    )

    def __init__(self, name: str) -> None:
        super().__init__(f"no timezone {name!r} here")
        self.name = name


class UnknownSchedule(UsageError):
    """No schedule has this name."""

    code = "unknown_schedule"
    hint = "List the schedules: everhold schedule"

    def __init__(self, name: str) -> None:
        super().__init__(f"no schedule {name!r}")
        self.name = name


class UnknownTrigger(UsageError):
    """The event has no trigger of this name."""

    code = "unknown_trigger"
    hint = "List the triggers: everhold trigger"

    def __init__(self, event: str, name: str) -> None:
        super().__init__(f"nothing called {name!r} is triggered by {event!r}")
        self.event = event
        self.name = name


class UnknownHandover(UsageError):
    """No handover has this id."""

    code = "unknown_handover"
    hint = "List what events have started, or could not start: everhold trigger log"

    def __init__(self, id: str) -> None:
        super().__init__(f"no handover {id!r}")
        self.id = id


class EventConflict(UsageError):
    """The key of an event was used before with another payload."""

    code = "event_conflict"
    hint = "Use another key; what was emitted first stands, and is delivered once."

    def __init__(self, event: str, key: str) -> None:
        super().__init__(f"{event!r} was emitted before with the key {key!r} and another payload")
        self.event = event
        self.key = key


class InputConflict(UsageError):
    """The key of an input was used before with other content."""

    code = "input_conflict"
    hint = "Use another key, or say the same again; what was taken first stands."

    def __init__(self, key: str, session_id: str, input_id: str) -> None:
        super().__init__(
            f"key {key!r} of session {session_id!r} belongs to {input_id!r}, which says"
            " something else"
        )
        self.key = key
        self.session_id = session_id
        self.input_id = input_id


class UnknownInput(UsageError):
    """The session was never sent such an input."""

    code = "unknown_input"
    hint = "List what waits for the session, and what did: everhold intake SESSION --all"

    def __init__(self, session_id: str, name: str) -> None:
        super().__init__(f"nothing of the name {name!r} was ever sent to session {session_id!r}")
        self.session_id = session_id
        self.name = name


class BadSignature(UsageError):
    """The signature of a webhook does not fit its message."""

    code = "bad_signature"
    hint = (
        "Drop the message: it is too old, was changed on its way, or was signed with another"
        " secret."
    )

    def __init__(self, why: str) -> None:
        super().__init__(f"the message is not believed: {why}")
        self.why = why


# ---- a fair request at the wrong moment


class IllegalMove(StateError):
    """A session in this state cannot do this."""

    code = "illegal_move"
    hint = "Ask for the session's status; only the moves in docs/reference/states.md are possible."

    def __init__(self, state: str, event: str) -> None:
        super().__init__(f"a {state} session cannot be {event}")
        self.state = state
        self.event = event


class AnswerConflict(StateError):
    """The question has another answer already."""

    code = "answer_conflict"
    hint = "The first answer stands. To go on from another one, fork the session at that step."

    def __init__(self, session_id: str, query_id: str, *, at_once: bool = False) -> None:
        has = "was given two answers at once" if at_once else "has another answer already"
        super().__init__(f"{query_id!r} of session {session_id!r} {has}")
        self.session_id = session_id
        self.query_id = query_id
        self.hint = (
            "Nothing was changed; give one answer to each question." if at_once else self.hint
        )


class QueryClosed(StateError):
    """The program no longer waits for an answer to this question."""

    code = "query_closed"
    hint = "The program no longer waits for it; look at what is open now."

    def __init__(self, session_id: str, query_id: str, state: str) -> None:
        super().__init__(f"{query_id!r} of session {session_id!r} was {state} and takes no answer")
        self.session_id = session_id
        self.query_id = query_id
        self.state = state


class StaleTools(StateError):
    """The tools changed after the caller read them."""

    code = "stale_tools"
    hint = "Read the tools again, and decide anew."

    def __init__(self, seen: int, present: int) -> None:
        super().__init__(f"the tools are of generation {present}, and generation {seen} was seen")
        self.seen = seen
        self.present = present


class TurnWaiting(StateError):
    """The turn waits for an answer and accepts no input before."""

    code = "turn_waiting"
    hint = (
        "Answer it (everhold inbox), or stop the turn with session.cancel_turn(); then send again."
    )

    def __init__(self, session_id: str, query_id: str, kind: str) -> None:
        super().__init__(
            f"session {session_id!r} waits for the {kind} {query_id}, and takes no input before"
        )
        self.session_id = session_id
        self.query_id = query_id


class SessionEnded(StateError):
    """The session has ended and accepts nothing more."""

    code = "session_ended"
    hint = "Start another session, retry a failed one, or fork this one at an earlier step."

    def __init__(self, session_id: str, state: str, verb: str) -> None:
        super().__init__(f"session {session_id!r} is {state}; it cannot be {verb}")
        self.session_id = session_id
        self.state = state


class StillNeeded(StateError):
    """The session cannot be deleted yet."""

    code = "still_needed"

    def __init__(self, session_id: str, reason: str, hint: str) -> None:
        super().__init__(f"session {session_id!r} is still needed: {reason}")
        self.session_id = session_id
        self.hint = hint


class Waiting(StateError):
    """The session waits for somebody outside; answer its queries and go on."""

    code = "waiting"
    hint = (
        "Answer the open questions, then run the same call with the same key, or wait for the"
        " session."
    )

    def __init__(
        self, session_id: str, queries: tuple[Any, ...], until: float | None = None, more: str = ""
    ) -> None:
        count = f"{len(queries)} question{'s' if len(queries) != 1 else ''} open"
        super().__init__(
            f"session {session_id!r} is waiting: {count}" + (f"; {more}" if more else "")
        )
        self.session_id = session_id
        self.queries = queries
        self.until = until
        self.name = session_id  # what people call it: its key, where there is one


class Cancelled(StateError):
    """The session was cancelled."""

    code = "cancelled"

    def __init__(self, session_id: str, reason: str) -> None:
        super().__init__(
            f"session {session_id!r} was cancelled" + (f": {reason}" if reason else "")
        )
        self.session_id = session_id
        self.reason = reason


class Failed(StateError):
    """The session's program raised an error."""

    code = "failed"
    hint = "Mend the program and retry the session: every answer it has is kept."

    def __init__(self, session_id: str, error: str, hint: str = hint) -> None:
        super().__init__(f"session {session_id!r} failed: {error}")
        self.session_id = session_id
        self.error = error
        self.hint = hint


class Outdated(StateError):
    """The record changed after the caller read it."""

    code = "outdated"
    hint = "Look at it again, then decide; nothing was changed."

    def __init__(self, what: str, wanted: int, found: int) -> None:
        super().__init__(f"{what} is at revision {found}, not {wanted}")
        self.what = what
        self.wanted = wanted
        self.found = found


class InputEnded(StateError):
    """The input was cancelled or refused, and never entered the conversation."""

    code = "input_ended"
    hint = "It never entered the conversation, and never will. Say it again under another key."

    def __init__(self, session_id: str, input_id: str, state: str, reason: str = "") -> None:
        super().__init__(
            f"input {input_id!r} of session {session_id!r} is {state}"
            + (f": {reason}" if reason else "")
        )
        self.session_id = session_id
        self.input_id = input_id
        self.state = state
        self.reason = reason


class SessionBusy(StateError):
    """The conversation is in a turn."""

    code = "session_busy"
    hint = (
        "Wait until its turn has settled, or say what to do with what you send: queue, steer"
        " or fork."
    )

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id!r} is in a turn")
        self.session_id = session_id


class LeaseLost(StateError):
    """Another worker holds the lease of the session now."""

    code = "lease_lost"
    hint = "Another worker has the session now, and goes on with it; nothing was changed."

    def __init__(self, session_id: str, generation: int, holder: str = "") -> None:
        by = f"; {holder!r} has one" if holder else ""
        super().__init__(f"lease {generation} of session {session_id!r} is not held any more{by}")
        self.session_id = session_id
        self.generation = generation
        self.holder = holder


class ClaimLost(StateError):
    """The claim of queued input has ended."""

    code = "claim_lost"
    hint = "A later holder has claimed it again, or it has ended; nothing was changed."

    def __init__(self, session_id: str, claim: str) -> None:
        super().__init__(f"claim {claim!r} of session {session_id!r} is not held any more")
        self.session_id = session_id
        self.claim = claim


# ---- the operator's move


class Overtaken(StoreError):
    """Another process committed to the session first."""

    code = "overtaken"
    hint = "Another process moved this session first; read it again."

    def __init__(self, session_id: str, revision: int) -> None:
        super().__init__(f"session {session_id!r} has moved past revision {revision}")
        self.session_id = session_id
        self.revision = revision


class StoreBusy(StoreError):
    """Another process held the write lock for too long."""

    code = "store_busy"
    hint = "Another process holds the write lock; nothing was changed, try again."

    def __init__(self, where: str, seconds: float) -> None:
        super().__init__(f"{where} was locked by another process for {seconds:.1f} s")
        self.where = where
        self.seconds = seconds


class StoreFull(StoreError):
    """The disk has no space left."""

    code = "store_full"
    hint = "Free some space and send it again: nothing of this call was written."

    def __init__(self, where: str) -> None:
        super().__init__(f"no space left to write {where}")
        self.where = where


class DamagedGraph(StoreError):
    """The tree of a conversation is damaged."""

    code = "damaged_graph"
    hint = "Nothing was changed. Check the file: everhold db verify"

    def __init__(self, node_id: str, why: str) -> None:
        super().__init__(f"the conversation is damaged at node {node_id!r}: {why}")
        self.node_id = node_id


class StoreDamaged(StoreError):
    """The database is damaged."""

    code = "store_damaged"
    hint = (
        "Run `everhold db verify`; restore the file from a copy, or export what can still be read."
    )

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} is damaged: {reason}")
        self.where = where
        self.reason = reason


class StoreNewer(StoreError):
    """A newer everhold wrote the database."""

    code = "store_newer"
    hint = "Upgrade everhold here to the version that wrote the database, or a newer one."

    def __init__(self, where: str, found: int, known: int) -> None:
        super().__init__(f"{where} has format {found}; this everhold knows formats up to {known}")
        self.where = where
        self.found = found
        self.known = known


class StoreUnavailable(StoreError):
    """The database cannot be opened or reached."""

    code = "store_unavailable"

    def __init__(self, where: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{where} cannot be opened: {reason}")
        self.where = where
        self.reason = reason
        self.hint = hint or "Check the address with `everhold info`."


class ReadOnlyStore(StoreError):
    """The database cannot be written."""

    code = "read_only_store"
    hint = "Give this user the right to write the file and its folder, or name another database."

    def __init__(self, where: str) -> None:
        super().__init__(f"{where} cannot be written")
        self.where = where


class WorkerFailed(StoreError):
    """The process that runs a program failed."""

    code = "worker_failed"
    hint = (
        "Nothing was changed. Look for what is short on this machine (memory, processes),"
        " then try again."
    )

    def __init__(self, reason: str) -> None:
        super().__init__(f"the process that should run the program failed: {reason}")
        self.reason = reason


class CodeExecutionStopped(StoreError):
    """An executor of code stopped before it gave a result."""

    code = "code_execution_stopped"
    hint = (
        "The program may or may not be at fault. Run it again; what it had called before is"
        " not called twice."
    )

    def __init__(self, language: str, reason: str) -> None:
        super().__init__(f"what runs code in {language!r} has stopped: {reason}")
        self.language = language
        self.reason = reason


class ToolServerFailed(StoreError):
    """An MCP server whose tools are used failed."""

    code = "tool_server_failed"
    hint = (
        "It is tried again with the next call. See whether its command starts, or its address"
        " answers, by hand."
    )

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the tool server {name!r} failed: {reason}")
        self.name = name
        self.reason = reason


class SweepFailed(StoreError):
    """Deleting old sessions stopped halfway."""

    code = "sweep_failed"
    hint = (
        "What was deleted until then stays deleted, and nothing else was. Mend the cause and"
        " sweep again."
    )

    def __init__(self, cause: str, deleted: int, report: Any = None) -> None:
        super().__init__(f"sweeping stopped after {deleted} deleted: {cause}")
        self.cause = cause
        self.deleted = deleted
        self.report = report


# ---- the program author's move


class Diverged(ProgramError):
    """A replay asks in another shape than the journal recorded."""

    code = "diverged"

    def __init__(self, step: int, recorded: str, asked: str) -> None:
        super().__init__(f"step {step}: the program asks {asked}, but the journal holds {recorded}")
        self.step = step
        self.recorded = recorded
        self.asked = asked
        self.hint = (
            "Nothing was changed. Roll the code back, or fork the session at the last step that"
            " matches"
            f" (fork --at {max(step - 1, 0)}), or mark the change with ctx.version, or cancel"
            " the session."
        )


class VersionMissing(ProgramError):
    """The session needs a version of the program that is not loaded."""

    code = "version_missing"
    hint = (
        "Keep the old function beside the new one under @program(name=…, version=…), or fork,"
        " or cancel."
    )

    def __init__(self, program: str, wanted: int, found: int) -> None:
        super().__init__(
            f"the session needs version {wanted} of program {program!r}; here is version {found}"
        )
        self.program = program
        self.wanted = wanted
        self.found = found


class ForeignCall(ProgramError):
    """A program called what replay would repeat."""

    code = "foreign_call"

    def __init__(self, call: str) -> None:
        super().__init__(
            f"{call} cannot be used inside a program: it reaches outside, and replay would"
            " repeat it; use ctx.call"
        )
        self.call = call
        self.hint = "Put it in a function and await ctx.call(function, …), or make it a tool."


class ForeignWake(ProgramError):
    """Something outside tried to wake a waiting program."""

    code = "foreign_wake"
    hint = "Do not share locks, events, queues or futures between programs; send a signal instead."

    def __init__(self) -> None:
        super().__init__("something outside tried to wake a program that is waiting")


class Stuck(ProgramError):
    """A program waits, and nothing can ever wake it."""

    code = "stuck"
    hint = "Something awaits an event that nothing inside the program will ever set."

    def __init__(self, tasks: list[str]) -> None:
        super().__init__(
            f"nothing is ready and nothing is open; waiting: {', '.join(tasks) or 'no task'}"
        )
        self.tasks = tasks


class Spinning(ProgramError):
    """A program did not pause within its limit."""

    code = "spinning"
    hint = (
        "A loop around sleep(0), or one that swallows cancellation, never lets the program pause."
    )

    def __init__(self, limit: str) -> None:
        super().__init__(f"the program did not pause within {limit}")
        self.limit = limit


class CannotRestart(ProgramError):
    """`ctx.restart` was called where it cannot be used."""

    code = "cannot_restart"
    hint = (
        "Return what the next round needs to the program that was started, and let that one"
        " restart."
    )

    def __init__(self, why: str) -> None:
        super().__init__(f"ctx.restart cannot be used here: {why}")
        self.why = why


class Poison(ProgramError):
    """Several processes died while they ran this session."""

    code = "poison"
    hint = "The program kills the process that runs it. Mend it, then retry the session."

    def __init__(self, deaths: int) -> None:
        super().__init__(f"{deaths} processes died while they ran this session")
        self.deaths = deaths


class TooLarge(ProgramError):
    """A program said more at once than is accepted."""

    code = "too_large"
    hint = "Ask and return less at once; keep large texts where they are and pass their names."

    def __init__(self, size: int, largest: int) -> None:
        super().__init__(f"the program said {size:,} bytes at once; at most {largest:,} are taken")
        self.size = size
        self.largest = largest


class RunsOnImport(ProgramError):
    """A file starts a session when it is imported."""

    code = "runs_on_import"
    hint = "Put the lines that start sessions under `if __name__ == '__main__':`."

    def __init__(self, path: str) -> None:
        super().__init__(f"loading {path} would run it again: it starts a session when imported")
        self.path = path


class BudgetExceeded(ProgramError):
    """The session has used up its budget."""

    code = "budget_exceeded"
    hint = "Raise the budget, or look at ctx.budget_remaining() before asking."

    def __init__(self, message: str) -> None:
        super().__init__(f"budget_exceeded: {message}")


class TurnStopped(ProgramError):
    """The turn of an agent ended without an answer."""

    code = "turn_stopped"
    hint = "Look at what was said: everhold show. A retry asks the model again."

    def __init__(self, outcome: str, why: str = "") -> None:
        super().__init__(f"the turn of the agent ended as {outcome}" + (f": {why}" if why else ""))
        self.outcome = outcome


class AnswerFailed(ProgramError):
    """The answerer gave an error instead of a value; the program may catch it."""

    code = "answer_failed"
    hint = (
        "A retry hands the error over again. To have it asked again, fork before it:"
        " `everhold explain` says where."
    )

    def __init__(self, message: str, kind: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind


class BadDirective(ProgramError):
    """A plugin returned a directive from a hook where it is not allowed."""

    code = "bad_directive"

    def __init__(self, plugin: str, hook: str, directive: str, allowed: list[str]) -> None:
        super().__init__(
            f"the plugin {plugin!r} returned {directive} from {hook}, where it makes no sense"
        )
        self.plugin = plugin
        self.hook = hook
        self.directive = directive
        self.hint = f"There it may return: {', '.join(allowed)}, or None."


class PluginFailed(ProgramError):
    """A hook of a plugin raised an error."""

    code = "plugin_failed"
    hint = (
        "Mend the plugin and send the input again: the turn was stopped, because nothing goes"
        " on without it."
    )

    def __init__(self, plugin: str, hook: str, error: str) -> None:
        super().__init__(f"the plugin {plugin!r} failed in {hook}: {error}")
        self.plugin = plugin
        self.hook = hook
        self.error = error


class UnsettledInput(ProgramError):
    """Plugins keep replacing each other's input of a tool."""

    code = "unsettled_input"
    hint = (
        "Have each plugin return ReplaceInput only while the input is not yet as it should"
        " be, or remove one of them."
    )

    def __init__(self, tool: str, plugins: list[str]) -> None:
        super().__init__(
            f"plugins keep replacing each other's input of {tool}: {', '.join(plugins)}"
        )
        self.tool = tool
        self.plugins = plugins


class OutcomeUnknown(ProgramError):
    """The process died while a call ran: it may have happened or not."""

    code = "outcome_unknown"
    hint = "Find out whether it happened before doing it again."

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was started, and the process died before its result was recorded")
        self.name = name


class Expired(ProgramError):
    """The question was not answered in time."""

    code = "expired"

    def __init__(self, query_id: str) -> None:
        super().__init__(f"nobody answered {query_id!r} in time")
        self.query_id = query_id


class ChildFailed(ProgramError):
    """A child session failed or was cancelled."""

    code = "child_failed"

    def __init__(self, session_id: str, state: str, error: str) -> None:
        super().__init__(f"child session {session_id!r} {state}: {error}")
        self.session_id = session_id
        self.state = state
        self.error = error


class AfterCancel(ProgramError):
    """A cancelled program used `ctx` to ask for something."""

    code = "after_cancel"
    hint = "A cancelled program may clean up, but it can ask nothing more."

    def __init__(self, verb: str) -> None:
        super().__init__(f"ctx.{verb} after the session was cancelled")


# ---- all of them


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
        inner = (
            f"{type(one).__name__}: {words_of(one)}".removesuffix(": ") for one in error.exceptions
        )
        said = f"{said}: {'; '.join(inner)}"
    return said.encode("utf-8", "backslashreplace").decode()


#: Every class of the tree; the functions above are private.
__all__ = sorted(
    name
    for name, value in globals().items()
    if isinstance(value, type) and issubclass(value, EverholdError)
)
