"""Every error that everhold raises, in one tree.

    EverholdError
    ├── UsageError            the call names something that does not exist or does not fit: change the call
    │   ├── UnknownSession    UnknownQuery        NoOpenQuery         ManyOpenQueries
    │   ├── AnswerRefused     BadValue            BadSchema           BadArguments
    │   ├── UnknownNode       ProviderMismatch    ProviderUnconfigured  UnknownFrame
    │   ├── BadSetting        KeyConflict         BadId               BadStep
    │   ├── ProviderUnavailable
    │   ├── NotAllowed        SessionExists       BadRequest          BadHostFile
    │   ├── BadPackage        BadPackageFile      UnknownPlugin       BadSkill
    │   ├── PackageTooLarge   KeyDeleted          UnknownTool
    │   ├── UnknownAttachment ToolClash           InputConflict
    │   ├── BadSchedule       UnknownTimezone     UnknownSchedule     UnknownTrigger
    │   ├── EventConflict     UnknownHandover     UnknownInput        InputTooLarge
    │   ├── UnknownExtension  UnknownOperation
    │   ├── BadScenario       UnknownScenario     BadGrader           UnknownGrader
    │   ├── NotAnEval         EvalsDiffer
    │   ├── CodeExecutionUnavailable                  BadSignature        NotAnAgent
    │   ├── UnknownCard       UnknownCardAlias    UnknownCardSink     CardImmutable
    │   ├── BadCard           BadCardQuery
    │   ├── NoMaintenance     BrokenEntryPoint    EntryPointConflict  UnsupportedSystem
    │   ├── DuplicateProgram  LocalProgram
    │   └── UnknownProgram    NotAProgram         MissingExtra        BadExport
    ├── StateError            the call is valid, but not in this state: read the status, then decide
    │   ├── IllegalMove       AnswerConflict      QueryClosed         SessionEnded
    │   ├── StillNeeded       Waiting             Cancelled           Failed
    │   ├── TurnWaiting       StaleTools          SessionBusy         InputEnded
    │   └── LeaseLost         ClaimLost           Outdated
    ├── StoreError            a database, process or server failed: the operator fixes it
    │   ├── Overtaken         StoreBusy           StoreFull           StoreDamaged
    │   ├── StoreNewer        StoreUnavailable    ReadOnlyStore       WorkerFailed
    │   ├── DamagedGraph      ToolServerFailed    SweepFailed
    │   └── CodeExecutionStopped
    └── ProgramError          the program, agent or plugin failed: its author fixes it
        ├── Diverged          VersionMissing      ForeignCall         ForeignWake
        ├── Stuck             Spinning            Poison              RunsOnImport
        └── BudgetExceeded    AnswerFailed        OutcomeUnknown      Expired
            ChildFailed       AfterCancel         TurnStopped         TooLarge
            BadDirective      PluginFailed        CannotRestart       UnsettledInput

Rules
  1. Only leaves are raised. A leaf has a `code`; a branch has none.
  2. A leaf's constructor takes facts and writes the message, so that one failure reads the same
     everywhere. The message states the fact; the hint is an action or a command.
  3. `code` is part of the wire contract and never changes; messages may.
  4. A command in a hint stands between backticks, or at the end after a colon. Fronts add the
     option `--database` to it.
  5. HTTP statuses, MCP errors and exit codes are in `wire.py`, not here.
"""  # noqa: E501

from __future__ import annotations

from typing import Any, ClassVar, Final

from everhold.exception_info import ExceptionInfo as ExceptionInfo
from everhold.exception_info import FrameInfo as FrameInfo
from everhold.shell_command import format_command, quote_word


class EverholdError(Exception):
    """Root of the tree: catches every error of everhold."""

    code: ClassVar[str] = ""
    hint: str = ""
    #: The exception of a user's code behind it, as it was recorded; None if there is none.
    exception: ExceptionInfo | None = None

    def __init__(self, message: str) -> None:
        if not self.code:
            raise TypeError(f"{type(self).__name__} is a branch; raise one of its leaves")
        super().__init__(message)


def name_session(error: EverholdError, name: str) -> None:
    """Say `name`, as the caller did, where an error says the id of its session."""
    session_id = getattr(error, "session_id", None)
    if not isinstance(session_id, str) or not session_id or session_id == name or not error.args:
        return
    if getattr(error, "key", None) == name:
        return  # it says what the key and the session have to do with each other
    message, *rest = error.args
    error.args = (str(message).replace(repr(session_id), repr(name)), *rest)
    error.hint = error.hint.replace(session_id, quote_word(name))
    if getattr(error, "name", None) == session_id:
        error.name = name  # type: ignore[attr-defined]


class UsageError(EverholdError):
    """The call names something that does not exist or does not fit."""


class StateError(EverholdError):
    """The call is valid, but not in this state."""


class StoreError(EverholdError):
    """A database, process or server failed."""


class ProgramError(EverholdError):
    """The program, agent or plugin failed."""


# ---- UsageError: the caller changes the call


class UnknownSession(UsageError):
    """The database has no session of this id or key."""

    code = "unknown_session"
    hint = "List the sessions of this database: everhold sessions"

    def __init__(self, session_id: str, where: str = "") -> None:
        super().__init__(f"no session {session_id!r}" + (f" in {where}" if where else ""))
        self.session_id = session_id


class UnknownQuery(UsageError):
    """The session has no question of this id."""

    code = "unknown_query"
    hint = "List the open questions: everhold inbox"

    def __init__(self, session_id: str, query_id: str) -> None:
        super().__init__(f"session {session_id!r} has no question {query_id!r}")
        self.session_id = session_id
        self.query_id = query_id
        self.hint = f"List its questions: {format_command('show', session_id)}"


class NoOpenQuery(UsageError):
    """An answer was sent to a session without an open question."""

    code = "no_open_query"
    hint = "Read the session's status: it says what the session waits for."

    def __init__(self, session_id: str, state: str) -> None:
        super().__init__(f"session {session_id!r} is {state} and has no open question")
        self.session_id = session_id
        self.state = state
        explain = format_command("explain", session_id)
        self.hint = {
            "failed": f"See how it can be resumed: {explain}",
            "completed": f"See what was answered: {format_command('show', session_id)}",
        }.get(state, f"See what it waits for: {explain}")


class ManyOpenQueries(UsageError):
    """Several questions are open, and the answer does not name one."""

    code = "many_open_queries"
    hint = "Pass query_id, the id of one of these questions."

    def __init__(self, session_id: str, query_ids: list[str]) -> None:
        shown = ", ".join(query_ids[:5]) + ("…" if len(query_ids) > 5 else "")
        super().__init__(
            f"session {session_id!r} has {len(query_ids)} open questions ({shown}); name one"
        )
        self.session_id = session_id
        self.query_ids = query_ids


class AnswerRefused(UsageError):
    """The answer does not fit the question's schema."""

    code = "answer_refused"
    hint = "Nothing was changed. Send an answer that fits."

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
        "Use a type that JSON Schema can describe, or a schema with the keywords that ADR 0002"
        " lists."
    )

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path} cannot be checked: {reason}")
        self.path = path
        self.reason = reason


class BadArguments(UsageError):
    """A function of everhold, or a program, was called with arguments that do not fit."""

    code = "bad_arguments"

    def __init__(self, program: str, reason: str) -> None:
        super().__init__(f"invalid arguments for {program!r}: {reason}")
        self.program = program
        self.reason = reason


class BadRequest(UsageError):
    """A tool of the MCP server was called with arguments that do not fit."""

    code = "bad_request"
    hint = "Nothing was done. Read the tool's parameters, then call it again."

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"invalid arguments for tool {tool!r}: {reason}")
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
    """The key was already used, for something else."""

    code = "key_conflict"
    hint = "Use another key, or the arguments of the first call."

    def __init__(self, key: str, session_id: str, what: str = "") -> None:
        other = f" with other {what}" if what else ""
        super().__init__(f"key {key!r} was already used for session {session_id!r}{other}")
        self.key = key
        self.session_id = session_id
        self.what = what
        self.hint = self.hint if what else "Use another key."


class KeyDeleted(UsageError):
    """The key belonged to a session that was deleted."""

    code = "key_deleted"
    hint = (
        "Nothing was started. Use another key, or allow a new session with again=True (on the"
        " command line: --again)."
    )

    def __init__(self, key: str, session_id: str) -> None:
        super().__init__(f"key {key!r} belonged to session {session_id!r}, which was deleted")
        self.key = key
        self.session_id = session_id


class SessionExists(UsageError):
    """The database already has a session that is imported."""

    code = "session_exists"
    hint = "It was not changed. To skip existing sessions: import_(file, existing='skip')."

    def __init__(self, session_id: str, where: str) -> None:
        super().__init__(f"session {session_id!r} already exists in {where}")
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
    """The session has no such step, or the step cannot be used for this."""

    code = "bad_step"
    hint = "Steps are numbered from 0."

    def __init__(self, session_id: str, step: int, reason: str, hint: str = "") -> None:
        super().__init__(f"step {step} of session {session_id!r}: {reason}")
        self.session_id = session_id
        self.step = step
        self.reason = reason
        self.hint = hint or f"List its steps: {format_command('show', session_id)}"


class NotAllowed(UsageError):
    """The caller may not answer this question or do this."""

    code = "not_allowed"

    def __init__(self, what: str, hint: str, session_id: str = "") -> None:
        super().__init__(what)
        self.hint = hint
        self.session_id = session_id


class UnknownAttachment(UsageError):
    """The session has no such attachment."""

    code = "unknown_attachment"
    hint = "List its attachments: runtime.attachments(session_id)"

    def __init__(self, session_id: str, attachment_id: str) -> None:
        super().__init__(f"session {session_id!r} has no attachment {attachment_id!r}")
        self.session_id = session_id
        self.attachment_id = attachment_id
        self.hint = f"List its attachments: runtime.attachments({session_id!r})"


class ToolClash(UsageError):
    """Two sources of tools define a tool of the same name."""

    code = "tool_clash"
    hint = "Rename one of the tools, or give one to the agent as an extra tool: see extra_tools."

    def __init__(self, what: str, one: str, other: str) -> None:
        super().__init__(f"tool {what!r} is defined by both {one!r} and {other!r}")
        self.what = what


class UnknownNode(UsageError):
    """The conversation has no such node."""

    code = "unknown_node"
    hint = "List the nodes of the conversation: session.history()"

    def __init__(self, node_id: str) -> None:
        super().__init__(f"no node {node_id!r} in this conversation")
        self.node_id = node_id


class UnknownFrame(UsageError):
    """The conversation has no such frame."""

    code = "unknown_frame"
    hint = "List the frames of the conversation: session.frames()"

    def __init__(self, frame: str, names: list[str]) -> None:
        shown = ", ".join(repr(name) for name in names[-5:])
        super().__init__(
            f"no frame {frame!r} in this conversation" + (f"; it has {shown}" if shown else "")
        )
        self.frame = frame
        self.names = names


class UnknownProgram(UsageError):
    """No program of this name can be loaded."""

    code = "unknown_program"

    def __init__(self, name: str, reason: str = "", hint: str = "") -> None:
        super().__init__(f"no program {name!r} was found" + (f": {reason}" if reason else ""))
        self.name = name
        self.reason = reason
        self.hint = hint or (
            "Name it as module:function or path/file.py:function, or list its module in"
            " everhold.toml."
        )


class UnknownPlugin(UsageError):
    """No plugin of this name is installed."""

    code = "unknown_plugin"

    def __init__(self, name: str, names: list[str]) -> None:
        super().__init__(f"no plugin {name!r} is installed")
        self.name = name
        self.hint = (
            "Install its package, or pass a Plugin object instead of its name. Installed plugins:"
            f" {', '.join(names) or 'none'}."
        )


class UnknownTool(UsageError):
    """The code of a tool was not found."""

    code = "unknown_tool"
    hint = (
        "Define the tool with @tool at the top of a module, or provide its code in this process:"
        " session.provide_tools(my_tool)."
    )

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"the code of tool {name!r} was not found: {reason}")
        self.name = name


class UnknownExtension(UsageError):
    """No plugin of the conversation offers an object of this type."""

    code = "unknown_extension"

    def __init__(self, name: str, names: list[str]) -> None:
        super().__init__(f"no plugin offers a {name}")
        self.name = name
        self.hint = (
            "Add the plugin that has it in its `extensions`. Offered types:"
            f" {', '.join(names) or 'none'}."
        )


class UnknownOperation(UsageError):
    """The conversation has no such plugin, or the plugin no such operation."""

    code = "unknown_operation"

    def __init__(self, plugin: str, operation: str, names: list[str]) -> None:
        named = f"operation {operation!r}" if operation else "operations"
        super().__init__(f"there is no plugin {plugin!r} with {named}")
        self.plugin = plugin
        self.operation = operation
        self.hint = (
            f"{'Its operations' if operation else 'Plugins with operations'} are:"
            f" {', '.join(names) or 'none'}. Declare one with `@everhold.hooks.operation`."
        )


class BrokenEntryPoint(UsageError):
    """An installed package registers something that cannot be loaded or used."""

    code = "broken_entry_point"

    def __init__(self, group: str, name: str, distribution: str, reason: str) -> None:
        super().__init__(f"entry point {name!r} ({group}) of package {distribution!r} {reason}")
        self.group = group
        self.name = name
        self.distribution = distribution
        self.reason = reason
        self.hint = f"Update or uninstall the package: pip install --upgrade {distribution}"


class EntryPointConflict(UsageError):
    """Several installed packages register the same name."""

    code = "entry_point_conflict"

    def __init__(self, group: str, name: str, distributions: list[str]) -> None:
        super().__init__(
            f"entry point {name!r} ({group}) is registered by several packages:"
            f" {', '.join(distributions)}"
        )
        self.group = group
        self.name = name
        self.distributions = distributions
        self.hint = f"Keep one of the packages: pip uninstall {' '.join(distributions[1:])}"


class NoMaintenance(UsageError):
    """The store does not support maintenance, which the call needs."""

    code = "no_maintenance"
    hint = "Use a store with maintenance: sqlite://, postgresql:// or memory://."

    def __init__(self, where: str, what: str) -> None:
        super().__init__(f"store {where} has no maintenance, which {what} needs")
        self.where = where
        self.what = what


class NotAProgram(UsageError):
    """The named object is not a program."""

    code = "not_a_program"
    hint = "Put @everhold.program on an `async def` whose first parameter is ctx."

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"{name!r} is not a program: {reason}")
        self.name = name
        self.reason = reason


class DuplicateProgram(UsageError):
    """Two programs or agents of one module have the same name and version."""

    code = "duplicate_program"
    hint = "Rename one of them, or give the newer one another version, such as version=2."

    def __init__(self, name: str, place: str, one: str, other: str) -> None:
        super().__init__(f"{place} defines two programs {name!r}: {one} and {other}")
        self.name = name
        self.place = place


class LocalProgram(UsageError):
    """A program inside a function was started on a store that outlives the process."""

    code = "local_program"
    hint = "Move it to the top level of its module, so that other processes can load it."

    def __init__(self, ref: str) -> None:
        super().__init__(
            f"{ref!r} is defined inside a function: after a crash no process could resume it"
        )
        self.ref = ref


class MissingExtra(UsageError):
    """An extra of everhold is not installed."""

    code = "missing_extra"

    def __init__(self, extra: str, for_what: str) -> None:
        super().__init__(f"{for_what} needs the extra {extra!r}")
        self.extra = extra
        self.hint = f"pip install 'everhold[{extra}]'"


class UnsupportedSystem(UsageError):
    """This operating system cannot do it."""

    code = "unsupported_system"
    hint = "Run it on Linux or macOS. On Windows, the Windows Subsystem for Linux is enough."

    def __init__(self, what: str, system: str) -> None:
        super().__init__(f"{what} needs a POSIX system; this one is {system!r}")
        self.what = what
        self.system = system


class ProviderMismatch(UsageError):
    """A model of another provider than the runtime allows, or than the conversation has."""

    code = "provider_mismatch"
    hint = "Use a model of an allowed provider, or allow this provider where the runtime is opened."

    def __init__(
        self, session_id: str, expected: str, actual: str, *, remembered: bool = False
    ) -> None:
        who = f"session {session_id!r}" if session_id else "the agent"
        if remembered:
            super().__init__(f"{who} was held with {expected}, but its agent now names {actual}")
            self.hint = (
                "Use the agent with its earlier provider, or set the model of the conversation"
                " with session.configure()."
            )
        else:
            super().__init__(f"{who} uses a model of {actual}; only {expected} is allowed here")
        self.session_id = session_id
        self.expected = expected
        self.actual = actual


class ProviderUnavailable(UsageError):
    """There is no such model provider here."""

    code = "provider_unavailable"

    def __init__(self, provider: str, providers: list[str], close: str = "") -> None:
        super().__init__(f"there is no provider {provider!r} here")
        self.provider = provider
        self.providers = providers
        self.hint = (
            f"Did you mean {close}?" if close else f"Some that exist: {', '.join(providers)}."
        )


class ProviderUnconfigured(UsageError):
    """A model provider cannot be used, because its key or library is missing."""

    code = "provider_unconfigured"

    def __init__(self, provider: str, reason: str, hint: str) -> None:
        super().__init__(f"{provider} cannot be used: {reason}")
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
            "Nothing was changed. Fix the file, or add the entry by hand: --print shows it."
        )


class BadPackage(UsageError):
    """A Lua package cannot be found, installed or used."""

    code = "bad_package"

    def __init__(self, what: str, hint: str = "") -> None:
        super().__init__(what)
        self.hint = hint or "Nothing was changed. List the packages: everhold pkg list"


class PackageTooLarge(UsageError):
    """A package is larger than the limit of `--max-size`."""

    code = "package_too_large"

    def __init__(self, source: str, size: str, limit: str, needed: str = "") -> None:
        super().__init__(f"{source} would install {size}, more than the limit of {limit}")
        self.source = source
        self.size = size
        self.limit = limit
        command = format_command("pkg", "install", "--max-size", needed or size, source)
        self.hint = (
            "Nothing was installed. Raise max_package under [lua] in the settings; or, if the user"
            f" wants it: {command}"
        )


class BadPackageFile(UsageError):
    """A file of the package manager cannot be read."""

    code = "bad_package_file"
    hint = "Nothing was changed. Fix the file by hand, then try again."

    def __init__(self, where: str, reason: str, hint: str = "") -> None:
        super().__init__(f"{where}: {reason}")
        self.where = where
        self.reason = reason
        self.hint = hint or self.hint


class UnknownCard(UsageError):
    """There is no card of this id."""

    code = "unknown_card"
    hint = "List the cards: everhold card list"

    def __init__(self, card_id: str) -> None:
        super().__init__(f"card '{card_id}' not found")
        self.card_id = card_id


class UnknownCardAlias(UsageError):
    """No card has this alias, or the card that it names is gone."""

    code = "unknown_card_alias"
    hint = "List the aliases: everhold card alias list"

    def __init__(self, name: str, card_id: str = "") -> None:
        super().__init__(
            f"card '{card_id}', which the alias '{name}' names, is gone"
            if card_id
            else f"alias '{name}' not found"
        )
        self.name = name
        self.card_id = card_id


class UnknownCardSink(UsageError):
    """ALC_CARD_SINKS does not name this sink."""

    code = "unknown_card_sink"

    def __init__(self, sink: str, sinks: list[str]) -> None:
        super().__init__(f"unknown sink: {sink}")
        self.sink = sink
        named = f" It names {', '.join(sinks)}." if sinks else " It is not set."
        self.hint = f"Name a sink of the variable ALC_CARD_SINKS.{named}"


class CardImmutable(UsageError):
    """A card, a key of a card, or its samples exist already, and are never changed."""

    code = "card_immutable"
    hint = "Nothing was written. Use another id or another key; what is there is never changed."

    def __init__(self, card_id: str, *, key: str | None = None, samples: bool = False) -> None:
        if samples:
            words = f"card '{card_id}' has samples already; samples are write-once"
        elif key is not None:
            words = f"card '{card_id}' already has a '{key}', and cards are immutable"
        else:
            words = f"card '{card_id}' already exists, and cards are immutable"
        super().__init__(words)
        self.card_id = card_id
        self.key = key


class BadCard(UsageError):
    """A card, its samples or an alias cannot be written or read as they are."""

    code = "bad_card"

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.hint = hint or "Nothing was written. A card is an object with pkg.name."


class BadCardQuery(UsageError):
    """A search among cards, or in samples, cannot be understood."""

    code = "bad_card_query"
    hint = (
        "The operators are eq, ne, lt, lte, gt, gte, in, nin, exists, contains and starts_with;"
        " _and and _or take arrays, _not takes an object."
    )

    def __init__(self, reason: str, hint: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.hint = hint or self.hint


class NotAnAgent(UsageError):
    """The named program is not an agent."""

    code = "not_an_agent"

    def __init__(self, name: str, hint: str) -> None:
        super().__init__(f"{name!r} is a program, not an agent")
        self.name = name
        self.hint = hint


class BadSkill(UsageError):
    """A folder cannot be read as a skill."""

    code = "bad_skill"
    hint = (
        "Put a SKILL.md into the folder that begins with name and description between two"
        " lines of ---."
    )

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} is not a skill: {reason}")
        self.where = where
        self.reason = reason


class CodeExecutionUnavailable(UsageError):
    """No executor runs code in this language."""

    code = "code_execution_unavailable"

    def __init__(self, language: str, languages: list[str]) -> None:
        super().__init__(f"no executor runs code in {language!r}")
        self.language = language
        self.hint = (
            "Give the agent an executor with Agent(code=). Its executors run:"
            f" {', '.join(languages) or 'nothing'}."
        )


class BadScenario(UsageError):
    """A scenario cannot be read, or cannot be evaluated."""

    code = "bad_scenario"

    def __init__(self, name: str, reason: str, hint: str = "") -> None:
        super().__init__(f"scenario {name!r}: {reason}")
        self.name = name
        self.reason = reason
        self.hint = hint


class UnknownScenario(UsageError):
    """The folder of scenarios in Lua has none of this name."""

    code = "unknown_scenario"
    hint = "List the scenarios: everhold eval scenario list"

    def __init__(self, name: str, hint: str = "") -> None:
        super().__init__(f"Scenario '{name}' not found")
        self.name = name
        self.hint = hint or type(self).hint


class BadGrader(UsageError):
    """A grader of a scenario has settings that cannot work."""

    code = "bad_grader"

    def __init__(self, name: str, reason: str, hint: str = "", *, place: str = "") -> None:
        super().__init__(f"{place}grader {name}: {reason}")
        self.name = name
        self.reason = reason
        self.hint = hint


class UnknownGrader(UsageError):
    """No grader has this name."""

    code = "unknown_grader"

    def __init__(self, name: str, near: str, known: list[str], *, place: str = "") -> None:
        super().__init__(f"{place}no grader {name!r}")
        self.name = name
        self.near = near
        self.known = known
        self.hint = f"Did you mean {near!r}?" if near else f"Known graders: {', '.join(known)}."


class NotAnEval(UsageError):
    """The session is not an eval, or its eval has not ended yet."""

    code = "not_an_eval"
    hint = "List the evals: everhold eval list"

    def __init__(self, session_id: str, reason: str, hint: str = hint) -> None:
        super().__init__(f"session {session_id!r} {reason}")
        self.session_id = session_id
        self.reason = reason
        self.hint = hint


class EvalsDiffer(UsageError):
    """The two evals did not measure the same thing, so they cannot be compared."""

    code = "evals_differ"
    hint = "Compare evals of one scenario."

    def __init__(self, reason: str) -> None:
        super().__init__(f"the evals cannot be compared: {reason}")
        self.reason = reason


class BadSchedule(UsageError):
    """The time of a schedule cannot be read."""

    code = "bad_schedule"
    hint = (
        "Write five cron fields (minute hour day month weekday), such as '0 3 * * 1-5', a"
        " time, or an interval."
    )

    def __init__(self, when: str, reason: str) -> None:
        super().__init__(f"{when!r} is not a schedule: {reason}")
        self.when = when
        self.reason = reason


class UnknownTimezone(UsageError):
    """No timezone of this name is installed."""

    code = "unknown_timezone"
    hint = (
        "Use a name of the tz database, such as Europe/Berlin or UTC. On Windows, install the"
        " database first: pip install tzdata"
    )

    def __init__(self, name: str) -> None:
        super().__init__(f"no timezone {name!r} is installed")
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
        super().__init__(f"event {event!r} has no trigger {name!r}")
        self.event = event
        self.name = name


class UnknownHandover(UsageError):
    """No handover has this id."""

    code = "unknown_handover"
    hint = "List the handovers of events: everhold trigger log"

    def __init__(self, id: str) -> None:
        super().__init__(f"no handover {id!r}")
        self.id = id


class EventConflict(UsageError):
    """The key of an event was used before with another payload."""

    code = "event_conflict"
    hint = "Use another key. The first payload was kept, and is delivered once."

    def __init__(self, event: str, key: str) -> None:
        super().__init__(
            f"event {event!r} was already emitted with key {key!r} and another payload"
        )
        self.event = event
        self.key = key


class InputConflict(UsageError):
    """The key of an input was used before with other content."""

    code = "input_conflict"
    hint = "Use another key, or send the same content. The first input was kept."

    def __init__(self, key: str, session_id: str, input_id: str) -> None:
        super().__init__(
            f"key {key!r} of session {session_id!r} was already used for input {input_id!r} with"
            " different content"
        )
        self.key = key
        self.session_id = session_id
        self.input_id = input_id


class InputTooLarge(UsageError):
    """One input is larger than the limit `max_input`."""

    code = "input_too_large"
    hint = "Send a shorter input, let a tool read the rest, or raise max_input in everhold.toml."

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"the input has {size:,} bytes; the limit is {limit:,}")
        self.size = size
        self.limit = limit


class UnknownInput(UsageError):
    """The session has no input of this id or key."""

    code = "unknown_input"

    def __init__(self, session_id: str, name: str) -> None:
        super().__init__(f"session {session_id!r} has no input {name!r}")
        self.session_id = session_id
        self.name = name
        self.hint = f"List its inputs: {format_command('intake', session_id, '--all')}"


class BadSignature(UsageError):
    """The signature of a webhook does not fit its message."""

    code = "bad_signature"
    hint = (
        "Drop the message: it is too old, was changed in transit, or was signed with another"
        " secret."
    )

    def __init__(self, why: str) -> None:
        super().__init__(f"the webhook message is refused: {why}")
        self.why = why


# ---- StateError: the caller reads the status, then decides


class IllegalMove(StateError):
    """A session in this state cannot do this."""

    code = "illegal_move"
    hint = "Read the session's status. The possible moves are in docs/reference/states.md."

    def __init__(self, state: str, event: str) -> None:
        super().__init__(f"a {state} session cannot be {event}")
        self.state = state
        self.event = event


class AnswerConflict(StateError):
    """The question has another answer already."""

    code = "answer_conflict"
    hint = "The first answer was kept. To continue with another one, fork the session at that step."

    def __init__(self, session_id: str, query_id: str, *, at_once: bool = False) -> None:
        has = "was given two answers in one call" if at_once else "already has another answer"
        super().__init__(f"question {query_id!r} of session {session_id!r} {has}")
        self.session_id = session_id
        self.query_id = query_id
        self.hint = (
            "Nothing was changed. Give one answer to each question." if at_once else self.hint
        )


class QueryClosed(StateError):
    """The program no longer waits for this answer."""

    code = "query_closed"
    hint = "List the questions that are open now: everhold inbox"

    def __init__(self, session_id: str, query_id: str, state: str) -> None:
        super().__init__(
            f"question {query_id!r} of session {session_id!r} was {state} and accepts no answer"
        )
        self.session_id = session_id
        self.query_id = query_id
        self.state = state


class StaleTools(StateError):
    """The tools changed after the caller read them."""

    code = "stale_tools"
    hint = "Read the tools again, then repeat the call."

    def __init__(self, seen: int, present: int) -> None:
        super().__init__(f"the tools are at generation {present}, not {seen}")
        self.seen = seen
        self.present = present


class TurnWaiting(StateError):
    """The turn waits for an answer, and accepts no input until then."""

    code = "turn_waiting"
    hint = (
        "Answer it (`everhold inbox` lists it), or stop the turn with session.cancel_turn();"
        " then send the input again."
    )

    def __init__(
        self, session_id: str, query_id: str, kind: str, reason: str = "", fix: str = ""
    ) -> None:
        more = f", which could not be answered: {reason}" if reason else ""
        super().__init__(
            f"session {session_id!r} accepts no input: it waits for the {kind} {query_id!r}{more}"
        )
        self.session_id = session_id
        self.query_id = query_id
        self.reason = reason
        if fix:
            self.hint = f"{fix} {self.hint}"


class SessionEnded(StateError):
    """The session has ended."""

    code = "session_ended"
    hint = "Start a new session, or fork this one at an earlier step."

    def __init__(self, session_id: str, state: str, verb: str) -> None:
        super().__init__(f"session {session_id!r} is {state}; it cannot be {verb}")
        self.session_id = session_id
        self.state = state
        if state == "failed":
            self.hint = f"Retry it first: {format_command('retry', session_id)}"


class StillNeeded(StateError):
    """The session cannot be deleted yet."""

    code = "still_needed"

    def __init__(self, session_id: str, reason: str, hint: str) -> None:
        super().__init__(f"session {session_id!r} is still needed: {reason}")
        self.session_id = session_id
        self.hint = hint


class Waiting(StateError):
    """The session waits for an answer, a signal or a timer."""

    code = "waiting"
    hint = (
        "Answer the open questions, then repeat the call with the same key, or wait for the"
        " session."
    )

    def __init__(
        self,
        session_id: str,
        queries: tuple[Any, ...],
        until: float | None = None,
        more: str = "",
        key: str | None = None,
    ) -> None:
        count = f"{len(queries)} question{'s' if len(queries) != 1 else ''} open"
        blocked = [query.blocked for query in queries if getattr(query, "blocked", None)]
        more = "; ".join([*([more] if more else []), *(one.message for one in blocked)])
        super().__init__(
            f"session {session_id!r} is waiting: {count}" + (f"; {more}" if more else "")
        )
        self.session_id = session_id
        self.queries = queries
        self.blocked = blocked[0] if blocked else None  # why a question could not be answered
        resume = f"resume the session: {format_command('run', '-c', session_id)}"
        then = "repeat the call with the same key." if key is not None else resume
        if blocked and blocked[0].hint:
            self.hint = f"{blocked[0].hint} Then {then}"
        elif queries and getattr(queries[0], "kind", "") in _ANSWERED_BY_COMMAND:
            command = format_command("answer", session_id, "--query", queries[0].id)
            self.hint = f"Answer it with `{command}`, then {then}"
        else:
            command = format_command("explain", session_id)
            self.hint = f"See with `{command}` what it waits for; then {then}"
        self.until = until
        self.name = session_id  # what people call it: its key, where there is one


#: Kinds of questions that `everhold answer` answers.
_ANSWERED_BY_COMMAND: Final = ("llm", "tool", "approval", "input")


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
    hint = "Fix the program, then retry the session; its recorded answers are kept."

    def __init__(
        self,
        session_id: str,
        error: str,
        hint: str = hint,
        exception: ExceptionInfo | None = None,
        traceback: str = "",
    ) -> None:
        super().__init__(f"session {session_id!r} failed: {error}")
        self.session_id = session_id
        self.error = error
        self.hint = hint
        self.exception = exception
        self.traceback = traceback  # the frames of the program, as text; empty if none is known


class Outdated(StateError):
    """The record or conversation changed after the caller read it."""

    code = "outdated"
    hint = "Nothing was changed. Read it again, then repeat the change."

    def __init__(
        self, what: str, wanted: int | str | None, found: int | str | None, unit: str = "revision"
    ) -> None:
        super().__init__(f"{what} is at {unit} {found}, not {wanted}")
        self.what = what
        self.wanted = wanted
        self.found = found


class InputEnded(StateError):
    """The input was cancelled or refused, and never entered the conversation."""

    code = "input_ended"
    hint = "It never entered the conversation. Send it again under another key."

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
    """The conversation runs a turn."""

    code = "session_busy"
    hint = (
        "Wait until the turn settles, or choose what happens to the input: busy='queue',"
        " 'steer' or 'fork'."
    )

    def __init__(self, session_id: str) -> None:
        super().__init__(f"session {session_id!r} runs a turn")
        self.session_id = session_id


class LeaseLost(StateError):
    """The lease of the session has ended, or another worker holds it."""

    code = "lease_lost"
    hint = "Nothing was changed. Do not move the session: another worker may hold its lease."

    def __init__(self, session_id: str, generation: int, holder: str = "") -> None:
        by = f"; {holder!r} holds a newer one" if holder else ""
        super().__init__(f"lease {generation} of session {session_id!r} has ended{by}")
        self.session_id = session_id
        self.generation = generation
        self.holder = holder


class ClaimLost(StateError):
    """The claim of queued input has ended."""

    code = "claim_lost"
    hint = "Nothing was changed. Claim the queued input again, if it is still there."

    def __init__(self, session_id: str, claim: str) -> None:
        super().__init__(f"claim {claim!r} of session {session_id!r} has ended")
        self.session_id = session_id
        self.claim = claim


# ---- StoreError: the operator fixes the machine or its configuration


class Overtaken(StoreError):
    """Another process committed to the session first."""

    code = "overtaken"
    hint = "Another process moved this session first. Read it again."

    def __init__(self, session_id: str, revision: int) -> None:
        super().__init__(f"session {session_id!r} has moved past revision {revision}")
        self.session_id = session_id
        self.revision = revision


class StoreBusy(StoreError):
    """Another process held the write lock for too long."""

    code = "store_busy"
    hint = "Nothing was changed. Try again: another process holds the write lock."

    def __init__(self, where: str, seconds: float) -> None:
        super().__init__(f"{where} was locked by another process for {seconds:.1f} s")
        self.where = where
        self.seconds = seconds


class StoreFull(StoreError):
    """The disk has no space left."""

    code = "store_full"
    hint = "Nothing of this call was written. Free disk space, then repeat the call."

    def __init__(self, where: str) -> None:
        super().__init__(f"no space left to write {where}")
        self.where = where


class DamagedGraph(StoreError):
    """The tree of a conversation is damaged."""

    code = "damaged_graph"
    hint = "Nothing was changed. Check the database: everhold db verify"

    def __init__(self, node_id: str, why: str) -> None:
        super().__init__(f"the conversation is damaged at node {node_id!r}: {why}")
        self.node_id = node_id


class StoreDamaged(StoreError):
    """The database is damaged."""

    code = "store_damaged"
    hint = (
        "Run `everhold db verify`. Restore the database from a copy, or export what can still be"
        " read."
    )

    def __init__(self, where: str, reason: str) -> None:
        super().__init__(f"{where} is damaged: {reason}")
        self.where = where
        self.reason = reason


class StoreNewer(StoreError):
    """A newer everhold wrote the database."""

    code = "store_newer"
    hint = "Upgrade everhold to the version that wrote the database, or to a newer one."

    def __init__(self, where: str, found: int, known: int) -> None:
        super().__init__(f"{where} has format {found}; this everhold reads formats up to {known}")
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
        self.hint = hint or "Check the address: everhold info"


class ReadOnlyStore(StoreError):
    """The database cannot be written."""

    code = "read_only_store"
    hint = "Give this user write access to the file and its folder, or name another database."

    def __init__(self, where: str) -> None:
        super().__init__(f"{where} cannot be written")
        self.where = where


class WorkerFailed(StoreError):
    """The process that runs a program failed."""

    code = "worker_failed"
    hint = (
        "Nothing was changed. Check the memory and the process limit of this machine, then try"
        " again."
    )

    def __init__(self, reason: str) -> None:
        super().__init__(f"the process that runs the program failed: {reason}")
        self.reason = reason


class CodeExecutionStopped(StoreError):
    """A code executor stopped without a result."""

    code = "code_execution_stopped"
    hint = (
        "Run the program again: tools that it had called are not called twice. If the executor"
        " stops again, change the program."
    )

    def __init__(self, language: str, reason: str) -> None:
        super().__init__(f"the executor of {language!r} has stopped: {reason}")
        self.language = language
        self.reason = reason


class ToolServerFailed(StoreError):
    """An MCP server whose tools an agent uses failed."""

    code = "tool_server_failed"
    hint = (
        "The next call tries again. Check that the server's command starts, or that its address"
        " responds."
    )

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"tool server {name!r} failed: {reason}")
        self.name = name
        self.reason = reason


class SweepFailed(StoreError):
    """Deleting old sessions stopped halfway."""

    code = "sweep_failed"
    hint = (
        "Deleted sessions stay deleted; nothing else was changed. Fix the cause, then sweep"
        " again: everhold db gc"
    )

    def __init__(self, cause: str, deleted: int, report: Any = None) -> None:
        super().__init__(f"the sweep stopped after {deleted} deleted sessions: {cause}")
        self.cause = cause
        self.deleted = deleted
        self.report = report


# ---- ProgramError: the author fixes the program, agent or plugin


class Diverged(ProgramError):
    """A replay makes another query than the journal recorded."""

    code = "diverged"

    def __init__(self, step: int, recorded: str, asked: str) -> None:
        super().__init__(f"step {step}: the program asks {asked}, but the journal has {recorded}")
        self.step = step
        self.recorded = recorded
        self.asked = asked
        self.matching = max(step - 1, 0)  # the last step that matches
        self.hint = (
            "Nothing was changed. Roll the code back, mark the change with ctx.version, cancel the"
            f" session, or fork it at step {self.matching}, the last that matches."
        )

    def tell_fork(self, name: str) -> None:
        """Let the hint have the command that forks the session of this name."""
        command = format_command("fork", name, "--at", str(self.matching))
        self.hint = (
            "Nothing was changed. Roll the code back, mark the change with ctx.version, cancel the"
            f" session, or fork it at the last step that matches: {command}"
        )


class VersionMissing(ProgramError):
    """The session needs a version of the program that is not loaded."""

    code = "version_missing"

    def __init__(self, program: str, wanted: int, found: int) -> None:
        super().__init__(
            f"the session needs version {wanted} of program {program!r}; version {found} is loaded"
        )
        self.hint = (
            "Keep the old function beside the new one, as"
            f" @everhold.program(name={program.rpartition(':')[2]!r}, version={wanted}); or fork or"
            " cancel the session."
        )
        self.program = program
        self.wanted = wanted
        self.found = found


class ForeignCall(ProgramError):
    """A function was called where it cannot be used, such as I/O directly in a program."""

    code = "foreign_call"
    hint = "Put it in a function and run that with ctx.call, or make it a tool."

    def __init__(self, call: str, reason: str = "") -> None:
        super().__init__(
            f"{call} {reason}"
            if reason
            else f"{call} cannot be used inside a program: it reaches outside, and replay would"
            " repeat it; use ctx.call"
        )
        self.call = call
        if reason:
            self.hint = "Use it in a tool, in a plugin, or in a function that ctx.call runs."


class ForeignWake(ProgramError):
    """Code outside the program tried to wake it."""

    code = "foreign_wake"
    hint = "Do not share locks, events, queues or futures between programs. Send a signal instead."

    def __init__(self) -> None:
        super().__init__("code outside the program tried to wake it")


class Stuck(ProgramError):
    """A program waits for something that can never happen."""

    code = "stuck"
    hint = "Find what these tasks await: an event or future that nothing in the program sets."

    def __init__(self, tasks: list[str]) -> None:
        super().__init__(
            "the program waits, but no question or timer is open; waiting tasks:"
            f" {', '.join(tasks) or 'none'}"
        )
        self.tasks = tasks


class Spinning(ProgramError):
    """A program did not pause within its limit."""

    code = "spinning"
    hint = "Look for a loop around sleep(0), or for code that swallows cancellation."

    def __init__(self, limit: str) -> None:
        super().__init__(f"the program did not pause within {limit}")
        self.limit = limit


class CannotRestart(ProgramError):
    """`ctx.restart` was called where it cannot be used."""

    code = "cannot_restart"
    hint = (
        "Return the next round's arguments to the program that was started, and call ctx.restart"
        " there."
    )

    def __init__(self, why: str) -> None:
        super().__init__(f"ctx.restart cannot be used here: {why}")
        self.why = why


class Poison(ProgramError):
    """Several processes died while they ran this session."""

    code = "poison"
    hint = "Fix the program, which ends the process that runs it."

    def __init__(self, deaths: int) -> None:
        super().__init__(f"{deaths} processes died while they ran this session")
        self.deaths = deaths


class TooLarge(ProgramError):
    """A program sent more data at once than the limit."""

    code = "too_large"
    hint = "Ask for and return less at once. Store large texts outside and pass their names."

    def __init__(self, size: int, largest: int) -> None:
        super().__init__(f"the program sent {size:,} bytes at once; the limit is {largest:,}")
        self.size = size
        self.largest = largest


class RunsOnImport(ProgramError):
    """A file starts a session when it is imported."""

    code = "runs_on_import"
    hint = "Put the lines that start sessions under `if __name__ == '__main__':`."

    def __init__(self, path: str) -> None:
        super().__init__(
            f"{path} starts a session when it is imported, so loading it would run it again"
        )
        self.path = path


class BudgetExceeded(ProgramError):
    """The session has used up its budget."""

    code = "budget_exceeded"
    hint = "Raise the budget, or check ctx.budget_remaining() before asking."

    def __init__(self, message: str) -> None:
        super().__init__(f"budget_exceeded: {message}")


class TurnStopped(ProgramError):
    """An agent's turn ended without an answer."""

    code = "turn_stopped"
    hint = "Find out from the conversation why the turn ended; a retry asks the model again."

    def __init__(self, outcome: str, why: str = "") -> None:
        super().__init__(f"the agent's turn ended as {outcome}" + (f": {why}" if why else ""))
        self.outcome = outcome


class AnswerFailed(ProgramError):
    """The answer is an error instead of a value; the program may catch it."""

    code = "answer_failed"
    hint = "A retry replays the recorded error. To ask again, fork the session before it."

    def __init__(
        self, message: str, kind: str = "", fix: str = "", *, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.kind = kind
        self.fix = fix  # what to do about it, if the model could not be asked
        self.retry_after = retry_after  # seconds until another attempt makes sense
        if fix:
            self.hint = f"{fix} {self.hint}"


class BadDirective(ProgramError):
    """A plugin returned a directive that its hook does not allow."""

    code = "bad_directive"

    def __init__(self, plugin: str, hook: str, directive: str, allowed: list[str]) -> None:
        listed = ", ".join(allowed)
        super().__init__(
            f"plugin {plugin!r} may not return {directive} from {hook} (allowed: {listed})"
        )
        self.plugin = plugin
        self.hook = hook
        self.directive = directive
        self.hint = f"Return {listed} or None from {hook}."


class PluginFailed(ProgramError):
    """A hook of a plugin raised an error."""

    code = "plugin_failed"
    hint = "Fix the plugin, then send the input again: the turn was stopped."

    def __init__(self, plugin: str, hook: str, error: str) -> None:
        super().__init__(f"plugin {plugin!r} failed in {hook}: {error}")
        self.plugin = plugin
        self.hook = hook
        self.error = error


class UnsettledInput(ProgramError):
    """Plugins keep replacing each other's input for a tool."""

    code = "unsettled_input"
    hint = (
        "Return ReplaceInput only while the input still has to change, or remove one of the"
        " plugins."
    )

    def __init__(self, tool: str, plugins: list[str]) -> None:
        super().__init__(
            f"plugins keep replacing each other's input for {tool}: {', '.join(plugins)}"
        )
        self.tool = tool
        self.plugins = plugins


class OutcomeUnknown(ProgramError):
    """The process died during a call: the call may or may not have happened."""

    code = "outcome_unknown"
    hint = "Find out whether it happened before you do it again."

    def __init__(self, name: str) -> None:
        super().__init__(f"{name} was started, and the process died before its result was recorded")
        self.name = name


class Expired(ProgramError):
    """The question was not answered in time."""

    code = "expired"

    def __init__(self, query_id: str) -> None:
        super().__init__(f"question {query_id!r} was not answered in time")
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
    """A cancelled program made a query."""

    code = "after_cancel"
    hint = "A cancelled program may clean up, but may not make queries."

    def __init__(self, verb: str) -> None:
        super().__init__(f"ctx.{verb} was called after the session was cancelled")


# ---- all of them


def leaves(branch: type[EverholdError] = EverholdError) -> list[type[EverholdError]]:
    """All leaves below a branch, in the order of this module."""
    below = branch.__subclasses__()
    return [leaf for child in below for leaf in leaves(child)] if below else [branch]


def read_message(error: BaseException) -> str:
    """The message of any exception as storable text."""
    try:
        said = str(error)
    except Exception as other:
        said = f"its message cannot be read ({type(other).__name__})"
    return said.encode("utf-8", "backslashreplace").decode()


def words_of(error: BaseException) -> str:
    """The message of any exception as storable text; for a group, with its parts."""
    said = read_message(error)
    if isinstance(error, BaseExceptionGroup):
        inner = (
            f"{type(one).__name__}: {words_of(one)}".removesuffix(": ") for one in error.exceptions
        )
        said = f"{said}: {'; '.join(inner)}"
    return said


#: Every class of the tree, and what an error knows of a user's exception; the functions above are
#: private.
__all__ = sorted(
    name
    for name, value in globals().items()
    if isinstance(value, type) and issubclass(value, EverholdError | ExceptionInfo | FrameInfo)
)
