# The blocking façade as type checkers see it.
# [[[cog
# from tools.blocking import stub
# print(stub())
# ]]]
from collections.abc import Callable
from collections.abc import Collection
from collections.abc import Coroutine
from collections.abc import Iterable
from collections.abc import Iterator
from collections.abc import Mapping
from collections.abc import Sequence
from everhold.agents.agent import Agent
from everhold.agents.conversation_reader import ReadView
from everhold.agents.conversation_reader import Snapshot
from everhold.agents.conversation_reader import Stored
from everhold.agents.envelopes import EnvelopeExport
from everhold.agents.envelopes import EnvelopeImport
from everhold.agents.envelopes import EnvelopeSource
from everhold.agents.events import Event
from everhold.agents.inputs import InputStatus
from everhold.agents.plugin_operations import OperationInfo
from everhold.agents.session import InputContent
from everhold.agents.session import ToolLike
from everhold.agents.session import Turn
from everhold.agents.tool_view import ToolsView
from everhold.archive.check import CheckReport
from everhold.archive.retention import SweepReport
from everhold.archive.transfer import ExportFile
from everhold.archive.transfer import ExportResult
from everhold.archive.transfer import ImportResult
from everhold.cards.cards import Card
from everhold.cards.sinks import SinkReport
from everhold.core.budget import Budget
from everhold.core.codec import JSON
from everhold.core.conversation import Conversation
from everhold.core.graph import Frame
from everhold.core.graph import Node
from everhold.core.intake import IntakeItem
from everhold.core.intake import ItemCancellation
from everhold.core.intake import Receipt
from everhold.core.ledger import Ledger
from everhold.core.observer import Observer
from everhold.core.query import Usage
from everhold.core.retry import Retry
from everhold.core.session import SessionId
from everhold.core.status import OpenQuery
from everhold.core.status import Status
from everhold.core.turn import FrameOpened
from everhold.core.turn import SettledTurn
from everhold.engine.explain import Explanation
from everhold.engine.limits import Limits
from everhold.engine.session_lookup import SessionRef
from everhold.engine.session_view import Step
from everhold.engine.usage_report import UsageRow
from everhold.evals.eval_files import EvalFile
from everhold.evals.evals import EvalProgress
from everhold.evals.evals import ScenarioRef
from everhold.evals.report import Comparison
from everhold.evals.report import EvalReport
from everhold.evals.totals import EvalInfo
from everhold.models import AnswererSpec
from everhold.movers.workers import WorkerEvent
from everhold.notify import Notifier
from everhold.notify.outbox import OutboxEntry
from everhold.packages.lua.card_files import CardProblem
from everhold.ports.attachment import Attachment
from everhold.ports.program import Call
from everhold.ports.program import Clock
from everhold.ports.program import Program
from everhold.ports.store import ProgressCallback
from everhold.ports.store import ReclaimResult
from everhold.ports.store import StoreProblem
from everhold.ports.store import WorkerRecord
from everhold.ports.tool import Tool
from everhold.runtime import Info
from everhold.runtime import Runtime
from everhold.schedules.recurrence import RecurrenceSpec
from everhold.schedules.schedule import CatchUp
from everhold.schedules.schedule import Overlap
from everhold.schedules.schedule import Schedule
from everhold.schedules.trigger import Emitted
from everhold.schedules.trigger import Handover
from everhold.schedules.trigger import Trigger
from everhold.stores.envelope import EnvelopeAdapter
from everhold.stores.envelope import EnvelopeSession
from os import PathLike
from types import TracebackType
from typing import Any
from typing import Literal
from typing import Self
from typing import TypeVar
import builtins
import os

R = TypeVar("R")
T = TypeVar("T")

class BlockingConversation:
    """`ConversationHandle` for code that is not async. Made by
    `BlockingRuntime.conversation`.
    """
    @property
    def id(self) -> str:
        """The id of the session."""
    @property
    def session_id(self) -> str:
        """The same as `id`; runtime verbs accept a conversation in place of its session."""
    def options(self, frame: str | None = None) -> dict[str, JSON]:
        """The options of the current frame, or of another one by its name or id, merged over the
        agent's.
        """
    def frames(self) -> list[Frame]:
        """All frames on the path to the leaf, oldest first."""
    def messages(self, frame: str | None = None) -> list[JSON]:
        """The messages of the current frame, or of another one by its name or id."""
    def tools(self) -> ToolsView:
        """The tools of the conversation, for user interfaces: each with its source, and whether
        a model is offered it; and the generation for `change_tools`.
        """
    def command(self, do: str, *, key: str, reason: str = "") -> Receipt:
        """Queue a command that runs between turns: refresh_tools, reset or compact."""
    def intake(self, *, all: bool = False) -> list[IntakeItem]:
        """Queued items that are not claimed, in order; with `all`, also claimed and ended ones."""
    def cancel(self, *names: str, reason: str = "") -> list[ItemCancellation]:
        """Cancel queued items by id or key. Returns the outcomes in that order; items that have
        entered stay.
        """
    def cancel_from(self, anchor: str, *, reason: str = "") -> list[ItemCancellation]:
        """Cancel an item and all items queued after it in its lane; raises `UnknownInput`."""
    def input(self, id: str) -> InputStatus:
        """The status of an input; raises `UnknownInput`."""
    def revision(self) -> int:
        """The revision of the session. It grows with every change, also during a turn; `send`
        takes it as `after`.
        """
    def history(self) -> list[Node]:
        """The messages of settled turns, on the path to the leaf."""
    def nodes(self, type: str | None = None) -> list[Node]:
        """The nodes that tools and plugins have added (`context.append`), oldest first: all, or
        those of one type.
        """
    def node(self, node_id: str) -> Node:
        """Any node, also of another branch."""
    def usage(self) -> Ledger:
        """The usage of the conversation, including a running turn and the child sessions that it
        waits for.
        """
    def turns(self) -> list[SettledTurn]:
        """The receipts of all settled turns."""
    def conversation(self) -> Conversation:
        """The whole conversation, read from the store."""
    def refresh(self) -> bool:
        """Read what other handles and processes have written; returns whether there was anything
        new.
        """
    def events(self, cursor: str | None = None) -> Iterator[Event]:
        """The events of the conversation, from the beginning or after a cursor, until the
        session ends.
        """
    def view(self) -> ReadView:
        """The conversation for plugins, hosts and people: messages and position."""
    def snapshot(self) -> Snapshot:
        """The conversation for inspection: all nodes by reference and the ledger, without texts."""
    def stored(self, *, fresh: bool = False) -> Stored:
        """The whole conversation, to apply it to another session. `fresh` reads everything from
        the store again.
        """

class BlockingSession(BlockingConversation):
    """`AgentSession` for code that is not async. Made by `BlockingRuntime.session`."""
    @property
    def agent(self) -> Agent:
        """The agent of the conversation."""
    def plugin(self, name: str) -> BlockingPlugin:
        """One plugin of the conversation, for the operations that it declares."""
    def send(
        self,
        content: InputContent,
        *,
        id: str | None = None,
        wait: float | None = None,
        options: Mapping[str, JSON] | None = None,
        busy: str = ...,
        after: str | int | None = ...,
    ) -> Turn:
        """Send an input, and return when its turn settles or waits for an answer from outside."""
    def stream(self, content: InputContent, *, id: str | None = None) -> Iterator[Event]:
        """Send an input, and yield events until its turn settles or waits for an answer."""
    def follow(self, input_id: str, cursor: str | None = None) -> Iterator[Event]:
        """Yield events of an input's turn, after a cursor, until it settles or waits for an
        answer.
        """
    def turn(self, input_id: str, *, wait: float | None = None) -> Turn:
        """Wait until an input's turn settles or waits for an answer from outside."""
    def steer(self, content: InputContent, *, id: str | None = None) -> str:
        """Add an input to the running turn; the model gets it in its next round. Returns the id
        of the input.
        """
    def cancel_turn(self, reason: str = "") -> Turn | None:
        """Cancel the running turn, if there is one. Its messages stay, and the conversation
        continues.
        """
    def branch(self, to: str | None) -> None:
        """Continue from an earlier node, or (None) from an empty conversation. Nothing is
        deleted. Refused during a turn.
        """
    def fork(
        self, at: int | None = None, *, key: str | None = None, again: bool = False
    ) -> BlockingSession:
        """A new conversation that shares this one up to turn `at` (by default, the last turn)."""
    def execute(
        self,
        language: str,
        code: str,
        *,
        accept_finish: bool = False,
        variables: bool = True,
        id: str | None = None,
        wait: float | None = None,
    ) -> Turn:
        """Run a program in this conversation, with the agent's executor and tools, in a turn of
        its own. The model does not see it.
        """
    def stream_execution(
        self, language: str, code: str, *, accept_finish: bool = False, variables: bool = True
    ) -> Iterator[Event]:
        """Run a program like `execute`, and yield events until its turn settles or waits for an
        answer. What it prints comes as `output` events.
        """
    def compact(self, instructions: str = "", *, id: str | None = None) -> FrameOpened:
        """Ask the plugins for a smaller context. The result is true if one was made; else its
        `why` says why not. Earlier frames stay readable.
        """
    def reset(self, *, id: str | None = None) -> Turn:
        """Start a new, empty frame. History, usage and options stay; the state of plugins is
        reset.
        """
    def continue_as(
        self,
        frame: str,
        messages: str | Mapping[str, JSON] | Sequence[JSON] = ...,
        *,
        id: str | None = None,
    ) -> Turn:
        """Continue in a new frame of this name that begins with these messages: a text, a
        message or several of them. The current frame is unchanged.
        """
    def configure(
        self, options: Mapping[str, JSON], *, everywhere: bool = False, id: str | None = None
    ) -> dict[str, JSON]:
        """Set options of the current frame, or of all frames, by name; None removes an option.
        Returns all options.
        """
    def change_tools(
        self,
        *,
        add: Sequence[ToolLike] = ...,
        replace: Sequence[ToolLike] = ...,
        remove: Sequence[str] = ...,
        hide: Sequence[str] = ...,
        restore: Sequence[str] = ...,
        generation: int | None = None,
        id: str | None = None,
    ) -> ToolsView:
        """Change the tools of this conversation, between turns and until they are changed again:
        all of it or nothing. Returns the tools.
        """
    def provide_tools(self, *tools: Tool | Callable[..., Any]) -> None:
        """Provide the code of tools that were added by another process without a reference, for
        as long as this process lives. The next turn offers them.
        """
    def enqueue(
        self,
        content: InputContent,
        *,
        key: str | None = None,
        at: str = ...,
        alone: bool = False,
        options: Mapping[str, JSON] | None = None,
        available_at: float = 0.0,
    ) -> Receipt:
        """Queue an input for the next turn, or for a checkpoint of the running one. Returns when
        it is stored.
        """
    def envelope(self) -> EnvelopeSession:
        """The conversation as a session of fluers: `everhold.stores.pack` encodes it, and
        `runtime.envelopes.export` writes it. Its `left_out` says what an envelope cannot carry.
        """
    def apply(
        self, state: Stored, *, id: str | None = None, by: Mapping[str, JSON] | None = None
    ) -> Turn | None:
        """Move to the state of a stored conversation, with its options. The shared beginning
        stays; the rest is added as a branch.
        """

class BlockingPlugin:
    """`PluginHandle` for code that is not async. Made by `BlockingSession.plugin`."""
    @property
    def name(self) -> str:
        """The name of the plugin."""
    @property
    def operations(self) -> list[OperationInfo]:
        """The operations that the plugin declares."""
    def call(self, operation: str, *, id: str | None = None, **arguments: Any) -> Any:
        """Run an operation, and return its value. With an `id`, the same call again is the same
        turn.
        """

class BlockingSchedules:
    """`Schedules` for code that is not async."""
    def add(
        self,
        name: str,
        when: RecurrenceSpec,
        do: Any,
        *,
        timezone: str = "UTC",
        args: Mapping[str, Any] | None = None,
        give: str = "",
        overlap: Overlap = "allow",
        catch_up: CatchUp = "one",
        title: str = "",
        labels: Mapping[str, str] | None = None,
        revision: int | None = None,
    ) -> Schedule:
        """Start a session, or send something to one, at each time of a schedule. Idempotent."""
    def pause(self, name: str) -> Schedule:
        """Pause a schedule until it is resumed."""
    def resume(self, name: str) -> Schedule:
        """Resume a schedule with its next time after now. Runs during the pause are not missed
        runs.
        """
    def remove(self, name: str) -> None:
        """Remove a schedule; sessions that it has started are not affected."""
    def list(self, prefix: str = "") -> builtins.list[Schedule]:
        """All schedules, or those whose names begin with `prefix`."""
    def next_runs(self, name: str, count: int = 5) -> builtins.list[float]:
        """The next times of a schedule, in seconds since 1970, as if it were not paused."""

class BlockingTriggers:
    """`Triggers` for code that is not async."""
    def add(
        self,
        event: str,
        do: Any,
        *,
        name: str | None = None,
        where: Mapping[str, JSON] | None = None,
        args: Mapping[str, Any] | None = None,
        give: str = ...,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        revision: int | None = None,
    ) -> Trigger:
        """Start a session, or send something to one, for each event of a name. Idempotent."""
    def enable(self, event: str, name: str) -> Trigger:
        """Enable a trigger: events fire it again."""
    def disable(self, event: str, name: str) -> Trigger:
        """Disable a trigger: events do not fire it until it is enabled."""
    def remove(self, event: str, name: str) -> None:
        """Remove a trigger. Started sessions and earlier events are not affected."""
    def list(self, event: str | None = None) -> builtins.list[Trigger]:
        """All triggers, or those of one event."""
    def emit(self, event: str, payload: JSON = None, *, key: str | None = None) -> Emitted:
        """Emit an event: store it, then hand it over once to each matching trigger."""
    def handovers(
        self, event: str | None = None, *, state: str | None = None
    ) -> builtins.list[Handover]:
        """Handovers, of all events or of one, in one state or in all."""
    def retry(self, id: str) -> Handover:
        """Retry a failed or waiting handover now."""
    def drop(self, id: str) -> None:
        """Drop a handover: its action is not run any more."""

class BlockingEvals:
    """`Evals` for code that is not async."""
    def run(
        self,
        scenario: ScenarioRef,
        program: Program[..., Any] | str,
        *,
        key: str | None = None,
        args: Mapping[str, JSON] | None = None,
        parameter: str = "",
        output: str = "",
        concurrency: int = ...,
        budget: Budget | Mapping[str, int] | None = None,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        again: bool = False,
        progress: EvalProgress | None = None,
    ) -> EvalReport:
        """Run a program on every case of a scenario, and return the report."""
    def resume(self, eval: SessionRef, *, progress: EvalProgress | None = None) -> EvalReport:
        """Resume an eval, and return its report as `run` does. Models of this process are asked
        the questions that are open.
        """
    def start(
        self,
        scenario: ScenarioRef,
        program: Program[..., Any] | str,
        *,
        key: str | None = None,
        args: Mapping[str, JSON] | None = None,
        parameter: str = "",
        output: str = "",
        concurrency: int = ...,
        budget: Budget | Mapping[str, int] | None = None,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        again: bool = False,
    ) -> Status:
        """Start an eval as `run` does, and return the status of its session without waiting."""
    def wait(self, eval: SessionRef, *, progress: EvalProgress | None = None) -> EvalReport:
        """Wait until an eval has ended, and return its report."""
    def info(self, eval: SessionRef) -> EvalInfo:
        """One eval as `list` shows it: also one that has not ended."""
    def show(self, eval: SessionRef) -> EvalReport:
        """The report of an eval; raises `NotAnEval` if it has not ended."""
    def compare(self, a: SessionRef, b: SessionRef) -> Comparison:
        """Compare two evals of one scenario; raises `EvalsDiffer` for others."""
    def questions(self, eval: SessionRef) -> list[OpenQuery]:
        """The open questions of an eval and of its cases, oldest first."""
    def list(
        self,
        *,
        scenario: str | None = None,
        program: str | None = None,
        state: str | Iterable[str] | None = None,
        limit: int = 100,
    ) -> list[EvalInfo]:
        """Evals, newest first: of one scenario, one program or some states, if these are given."""
    def problems(self) -> builtins.list[str]:
        """Why files in algocline's folder of evals cannot be read."""
    def find_file(self, eval: SessionRef) -> EvalFile | None:
        """The eval of this name in algocline's folder; None if there is none."""

class BlockingNotifications:
    """`Notifications` for code that is not async."""
    def list(
        self, session: SessionRef | None = None, *, notifier: str | None = None
    ) -> builtins.list[OutboxEntry]:
        """Notifications of all sessions or of one, in the order of their questions."""
    def retry(
        self, session: SessionRef | None = None, *, notifier: str | None = None
    ) -> builtins.list[OutboxEntry]:
        """Send notifications again, also those that were given up; returns them."""
    def drop(
        self, session: SessionRef | None = None, *, notifier: str | None = None
    ) -> builtins.list[OutboxEntry]:
        """Drop notifications; returns them. Their questions stay open."""
    def flush(self, grace: float) -> int:
        """Send what is due for at most `grace` seconds, then stop; returns how many were not
        sent.
        """
    def close(self, grace: float) -> None:
        """Send what is due for at most `grace` seconds; the next process sends the rest."""

class BlockingArchive:
    """`Archive` for code that is not async."""
    def export(
        self,
        file: ExportFile,
        sessions: SessionRef | Iterable[SessionRef] | None = None,
        *,
        state: str | Sequence[str] | None = None,
        program: str | None = None,
        labels: Mapping[str, str] | None = None,
        values: bool = False,
        redact: bool | Collection[str] = False,
        progress: ProgressCallback | None = None,
    ) -> ExportResult:
        """Write sessions and their children to a file: a path, or one opened in binary mode."""
    def import_(
        self,
        file: ExportFile,
        *,
        existing: str = "refuse",
        progress: ProgressCallback | None = None,
    ) -> ImportResult:
        """Import the sessions of an exported file; they resume here."""
    def check(
        self,
        sessions: SessionRef | Iterable[SessionRef] | None = None,
        *,
        file: str | PathLike[str] | None = None,
        state: str | Sequence[str] | None = ...,
        program: str | None = None,
        labels: Mapping[str, str] | None = None,
        progress: ProgressCallback | None = None,
    ) -> CheckReport:
        """Replay sessions with the code on disk, in a new process, without effects or changes."""
    def gc(
        self,
        states: str | Iterable[str] = ...,
        *,
        older_than: float | Mapping[str, float] | None = None,
        keep_last: int | None = None,
        per_program: bool = False,
        program: str | None = None,
        labels: Mapping[str, str] | None = None,
        intake: float | None = None,
        dry_run: bool = False,
        progress: ProgressCallback | None = None,
    ) -> SweepReport:
        """Delete ended sessions; by default completed and cancelled ones, else those in
        `states`.
        """
    def reclaim(self) -> ReclaimResult:
        """Delete data that no session can read, such as remains of a crash. `gc` does this, too."""
    def deleted_by(self, session_id: str) -> dict[str, JSON] | None:
        """Who deleted a session, as told to `runtime.delete(by=…)`; None if nobody said so."""
    def vacuum(self, session: SessionRef | None = None, *, older_than: float = 0.0) -> int:
        """Remove completed items older than `older_than` seconds from the intake of one session,
        or of all. Returns how many.
        """
    def verify(self, progress: ProgressCallback | None = None) -> list[StoreProblem]:
        """Look for gaps, dangling references and damage. An empty list means that none was
        found.
        """

class BlockingEnvelopes:
    """`Envelopes` for code that is not async."""
    def import_(
        self,
        source: EnvelopeSource,
        *,
        agent: Agent | None = None,
        models: Mapping[str, str] | None = None,
        existing: str = "refuse",
        invalid: str = "refuse",
        progress: ProgressCallback | None = None,
    ) -> EnvelopeImport:
        """Import sessions of fluers; their conversations resume here."""
    def export(
        self,
        target: str | os.PathLike[str] | EnvelopeAdapter,
        sessions: SessionRef | Iterable[SessionRef],
    ) -> EnvelopeExport:
        """Write conversations as sessions of fluers."""
    def read(self, session: SessionRef) -> EnvelopeSession:
        """A conversation as a session of fluers. `left_out` says what an envelope cannot carry."""

class BlockingCards:
    """`Cards` for code that is not async."""
    def sinks(self) -> list[dict[str, Any]]:
        """What this process has copied to each folder of ALC_CARD_SINKS, and what failed."""
    def list(self, pkg: str | None = None) -> builtins.list[Card]:
        """Summaries of all cards, or of one package, newest first."""
    def get(self, card_id: str) -> Card:
        """A card; raises `UnknownCard`."""
    def find(
        self,
        *,
        pkg: str | None = None,
        where: Mapping[str, JSON] | None = None,
        order_by: str | Sequence[str] | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> builtins.list[Card]:
        """Summaries of the cards that satisfy `where`; by default newest first."""
    def samples(
        self,
        card_id: str,
        *,
        where: Mapping[str, JSON] | None = None,
        limit: int | None = None,
        offset: int | None = None,
    ) -> builtins.list[JSON]:
        """The samples of a card that satisfy `where`; raises `UnknownCard`."""
    def lineage(
        self,
        card_id: str,
        *,
        direction: Literal["up", "down", "both"] = "up",
        depth: int | None = None,
        include_stats: bool = True,
        relations: Sequence[str] | None = None,
    ) -> dict[str, Any]:
        """The cards that a card comes from, or that come from it: `root`, `nodes`, `edges`, and
        whether `depth` (10) has `truncated` them. Raises `UnknownCard`.
        """
    def aliases(self, pkg: str | None = None) -> builtins.list[dict[str, Any]]:
        """The aliases by name, all or those of one package."""
    def get_by_alias(self, name: str) -> Card:
        """The card that an alias names; raises `UnknownCardAlias`."""
    def problems(self, pkg: str | None = None) -> builtins.list[CardProblem]:
        """The files among the cards that cannot be read, with the reasons."""
    def create(self, card: Mapping[str, JSON]) -> str:
        """Create a card with at least `pkg.name`, and return its id. Raises `CardImmutable` if
        there is a card of its id.
        """
    def append(self, card_id: str, fields: Mapping[str, JSON]) -> Card:
        """Add keys to a card, and return it. Raises `CardImmutable` for a key that it has."""
    def write_samples(self, card_id: str, rows: Sequence[JSON]) -> int:
        """Write the samples of a card, once; returns how many there are."""
    def set_alias(
        self, name: str, card_id: str, *, pkg: str | None = None, note: str | None = None
    ) -> dict[str, Any]:
        """Name a card. A name that is used already then names this card."""
    def install(self, url: str) -> dict[str, JSON]:
        """Install the cards of a collection: a folder or a git repository with an
        `alc_cards.toml`. They become files of algocline's home.
        """
    def copy_installed(self, card_ids: Sequence[str]) -> None:
        """Copy cards to the sinks that a package has brought as files."""
    def backfill(self, sink: str, *, dry_run: bool = False) -> SinkReport:
        """Copy the cards that a sink lacks to it; raises `UnknownCardSink`. What is there stays."""

class BlockingWorkers:
    """`Workers` for code that is not async."""
    def run(
        self,
        *,
        concurrency: int | None = None,
        limits: Limits | None = None,
        programs: Iterable[str] = ...,
        ttl: float | None = None,
        grace: float | None = None,
        poll: float | None = None,
        adopt_parked: bool | None = None,
        tell: Callable[[WorkerEvent], object] | None = None,
    ) -> None:
        """Run a worker until this task is cancelled. For the options, see `worker`."""
    def list(self) -> builtins.list[WorkerRecord]:
        """The living worker processes of this store."""

class BlockingRuntime:
    """`Runtime` for code that is not async. Made by `open_blocking`; use it with `with`."""
    def __init__(self, runtime: Runtime) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...
    def close(self, grace: float = ...) -> None:
        """Close the runtime and its event loop. Running calls may finish within `grace` seconds."""
    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the loop of this runtime, and wait for its result."""
    def call(self, act: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        """Call an async function with the async runtime, and wait for its result."""
    schedules: BlockingSchedules
    triggers: BlockingTriggers
    evals: BlockingEvals
    notifications: BlockingNotifications
    archive: BlockingArchive
    envelopes: BlockingEnvelopes
    cards: BlockingCards
    workers: BlockingWorkers
    @property
    def database(self) -> str:
        """The address of the store, without a password."""
    @property
    def database_option(self) -> str:
        """The option that commands in hints need to use this database, such as ` -d
        sqlite:////app.db`; empty if they find it by default.
        """
    def run(
        self,
        call: Call[R],
        *,
        key: str | None = None,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        budget: Budget | Mapping[str, int] | None = None,
        wait: float | None = None,
        again: bool = False,
    ) -> R:
        """Run a program to its end and return its result."""
    def start(
        self,
        call: Call[Any] | str,
        *,
        args: Mapping[str, JSON] | None = None,
        version: int = 1,
        key: str | None = None,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        budget: Budget | Mapping[str, int] | None = None,
        unchecked: bool = False,
        wait: float | None = None,
        again: bool = False,
    ) -> Status:
        """Start a session, move it as far as this process can now, and return its status."""
    def answer(
        self,
        question: OpenQuery | SessionRef,
        value: Any = ...,
        *,
        query_id: str | None = None,
        error: str | None = None,
        usage: Usage | Mapping[str, int] | None = None,
        by: Mapping[str, JSON] | None = None,
        wait: float | None = None,
    ) -> Status:
        """Answer a question with a value or an error. `question` is an open query or a session."""
    def answer_many(
        self,
        session: SessionRef,
        answers: Mapping[str, Any],
        *,
        by: Mapping[str, JSON] | None = None,
        wait: float | None = None,
    ) -> Status:
        """Answer several questions, by query id: all are accepted, or none."""
    def signal(
        self,
        session: SessionRef,
        name: str,
        value: JSON = None,
        *,
        key: str | None = None,
        wait: float | None = None,
    ) -> Status:
        """Send a signal to a program. It is stored until the program receives it."""
    def complete(
        self,
        session: SessionRef,
        key: str,
        value: JSON = None,
        *,
        error: str | None = None,
        by: Mapping[str, JSON] | None = None,
    ) -> Status:
        """Give the result of a call that finishes later, by its idempotency key; see `Later`."""
    def session(
        self,
        agent: Agent,
        id: str,
        *,
        options: Mapping[str, JSON] | None = None,
        plugin_options: Mapping[str, JSON] | None = None,
        title: str = "",
        labels: Mapping[str, str] | None = None,
        metadata: Mapping[str, str] | None = None,
        budget: Budget | Mapping[str, int] | None = None,
        residency: str = "all",
        again: bool = False,
    ) -> BlockingSession:
        """The conversation with this id. Starts one with `agent` if it does not exist."""
    def conversation(self, session: SessionRef, *, residency: str = "all") -> BlockingConversation:
        """The conversation of a session, without its agent: read it, and manage its queued
        input.
        """
    def status(self, session: SessionRef) -> Status:
        """The status of a session: `Running`, `Paused` or `Finished`."""
    def wait(
        self, session: SessionRef, timeout: float | None = None, *, settled: bool = False
    ) -> Status:
        """Wait until a session has ended or needs an answer from outside; at most `timeout`
        seconds.
        """
    def find(self, name: str) -> SessionId:
        """Find a session by its id, a prefix of it, its key, or "@last" for the newest."""
    def explain(self, session: SessionRef) -> Explanation:
        """Explain in sentences why a session is in its state and what moves it. Changes nothing."""
    def steps(self, session: SessionRef) -> list[Step]:
        """The journal of a session: for each step, the answers delivered and the queries asked."""
    def transcript(self, session: SessionRef) -> list[dict[str, JSON]]:
        """The model questions and answers of a session: `query_id`, `prompt`, `system`,
        `response` (null without an answer).
        """
    def snapshot(
        self,
        session: SessionRef | None = None,
        *,
        pending_filter: Any = ...,
        include_history: bool = False,
        limit: int = 100,
    ) -> dict[str, JSON]:
        """The current state of a session as plain JSON; without one, of all sessions, unfinished
        ones first.
        """
    def attachments(self, session: SessionRef) -> list[Attachment]:
        """The attachments of a session."""
    def attachment(self, session: SessionRef, id: str) -> bytes:
        """The bytes of an attachment. Raises `UnknownAttachment`."""
    def usage(
        self,
        by: str = "program",
        *,
        program: str | None = None,
        labels: Mapping[str, str] | None = None,
        newer_than: float | None = None,
    ) -> list[UsageRow]:
        """Sum model calls and tokens by "program", "session", "model" or "label:NAME"."""
    def inbox(
        self,
        *,
        kind: str | None = None,
        to: str | None = None,
        limit: int = 100,
        after: OpenQuery | None = None,
    ) -> list[OpenQuery]:
        """Open questions: the oldest session first, and within a session in the order asked."""
    def sessions(
        self,
        *,
        state: str | Sequence[str] | None = None,
        program: str | None = None,
        labels: Mapping[str, str] | None = None,
        parent: SessionRef | None = None,
        older_than: float | None = None,
        newer_than: float | None = None,
        prefix: str = "",
        limit: int = 100,
        after: SessionRef | None = None,
    ) -> list[Info]:
        """Sessions, newest first. Ages are seconds since a session last moved; `after` is the
        last session seen.
        """
    def move(self, session: SessionRef, *, wait: float | None = None) -> Status:
        """Move a session as far as this process can. Its models may answer open questions."""
    def cancel(
        self, session: SessionRef, reason: str = "", *, by: Mapping[str, JSON] | None = None
    ) -> Status:
        """Cancel a session and its children. The program gets one `CancelledError`. The step
        records who cancelled (`by`).
        """
    def set_budget(
        self,
        session: SessionRef,
        budget: Budget | Mapping[str, int | None],
        *,
        by: Mapping[str, JSON] | None = None,
        wait: float | None = None,
    ) -> Status:
        """Change limits of a session's budget. It resumes from where it was; if it has failed,
        it is retried.
        """
    def retry(
        self,
        session: SessionRef,
        *,
        budget: Budget | Mapping[str, int | None] | None = None,
        by: Mapping[str, JSON] | None = None,
        wait: float | None = None,
    ) -> Status:
        """Resume a failed session from its last answer, with the current code. The step records
        who retried (`by`). `budget` changes limits, as `set_budget` does.
        """
    def fork(
        self,
        session: SessionRef,
        *,
        at: int | None = None,
        answer: Any = ...,
        query_id: str | None = None,
        key: str | None = None,
        title: str = "",
        budget: Budget | Mapping[str, int | None] | None = None,
        by: Mapping[str, JSON] | None = None,
        wait: float | None = None,
        again: bool = False,
    ) -> Status:
        """Start a new session that shares this one's steps up to `at` (by default all). It
        records who forked (`by`).
        """
    def delete(self, session: SessionRef, *, by: Mapping[str, JSON] | None = None) -> int:
        """Delete a session. Returns how many steps remain because forks share them."""

def open_blocking(
    database: str | PathLike[str] | None = None,
    *,
    llm: AnswererSpec = ...,
    durability: str = "mixed",
    clock: Clock | None = None,
    observers: Iterable[Observer] = ...,
    cache: int = 1000,
    idle: float = ...,
    recover: bool = True,
    tell: Iterable[Notifier] | None = None,
    on_unavailable: str | None = None,
    retry: Retry | None = None,
    timeout: float | None = None,
) -> BlockingRuntime:
    """`everhold.open` for code that is not async."""

def run(
    call: Call[R],
    *,
    key: str | None = None,
    llm: AnswererSpec = ...,
    database: str | PathLike[str] | None = None,
    title: str = "",
    labels: Mapping[str, str] | None = None,
    metadata: Mapping[str, str] | None = None,
    budget: Budget | Mapping[str, int] | None = None,
    wait: float | None = None,
    again: bool = False,
    durability: str = "mixed",
) -> R:
    """Run a program to its end and return its result. The same `key` resumes the same
    session.
    """

# [[[end]]]
