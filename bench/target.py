"""The targets. Figures are compared only here.

A target names its figure. A figure that was not measured is reported as such. Ratios are in the
unit of their figure; absolute limits are only those that a person waits for, or that fill a disk.
"""

from dataclasses import dataclass
from typing import Final

from bench.figure import Figure


@dataclass(frozen=True, slots=True)
class Target:
    """`what` is the sentence in the table, and `stretch` what would be better still. `why` is the
    reason that is printed as long as the limit is missed.
    """

    figure: str
    what: str
    limit: float
    stretch: float | None = None
    at_least: bool = False
    why: str = ""

    def is_met(self, figure: Figure) -> bool:
        return figure.value >= self.limit if self.at_least else figure.value <= self.limit

    @property
    def sign(self) -> str:
        return "≥" if self.at_least else "≤"


def _least(figure: str, what: str, limit: float, stretch: float | None = None) -> Target:
    return Target(figure, what, limit, stretch, at_least=True)


TARGETS: Final = (
    # a step
    Target("step.normal.everhold.over_floor", "durable step over the floor's, `NORMAL`", 2.4, 2),
    Target(
        "step.full.everhold.over_floor", "… `FULL`, in a file with thousands of commits", 1.65, 1.5
    ),
    Target("fresh.full.everhold.over_floor", "… `FULL`, the first 1000 commits of a file", 1.9),
    Target("step.memory.everhold.over_floor", "… in the memory store", 0.5),
    Target("start.normal.everhold.over_floor", "start to the first pause over the floor's", 6, 5),
    Target("cold.normal.everhold.over_floor", "cold step (20 answers) over the floor's step", 7, 5),
    Target(
        "resume.everhold.cold_over_floor",
        "cold resume of 1000 answers over select, decode and send",
        1.8,
    ),
    Target("call.normal.everhold.over_floor", "a step that calls a function", 7, 6),
    Target("approval.normal.everhold.over_floor", "an approval answered", 5, 4),
    Target("length.normal.everhold.late_over_early", "step 1000 over step 10", 1.2),
    Target("size.everhold.in_sequence.bytes_per_step", "bytes of database per step", 620),
    # many
    Target(
        "crowd.normal.everhold.ten.cpu_over_alone",
        "10 sessions at once, CPU of a step: over alone",
        1.5,
    ),
    Target(
        "crowd.normal.everhold.thousand.cpu_over_floor",
        "1000 at once: over the floor alone",
        2.2,
        1.8,
    ),
    Target(
        "crowd.normal.everhold.busy_over_quiet",
        "… while the loop is busy for 30 % of the time",
        1.5,
    ),
    _least("processes.two_over_one", "two processes on one file over one", 1.3),
    # peers
    _least(
        "step.normal.langgraph-visit.over_everhold",
        "LangGraph, a visit per question, over our warm step, `NORMAL`",
        34,
        40,
    ),
    _least(
        "step.full.langgraph-visit.over_everhold",
        "… `FULL`",
        10,
    ),
    # agents
    Target("turn.everhold.statements", "an agent turn: SQL statements", 12),
    Target(
        "instructions.turn",
        "… instructions: half of those of format 5",
        1_073_000,
    ),
    Target("turn.everhold.late_over_early", "turn 1000 of a conversation over turn 10", 1.2),
    Target("turn.everhold.bytes", "bytes of a turn of 2 KB, over a conversation", 3000),
    # many sessions in one file
    Target(
        "paused.everhold.many_over_few",
        "100,000 paused sessions: open the runtime and answer one, over the same with 1000",
        1.2,
    ),
    Target("paused.everhold.growth_mb", "… memory beyond that with 1000", 1),
    Target(
        "lists.inbox.many_over_few",
        "the inbox, 10 questions: among a million sessions over among a thousand",
        1.5,
    ),
    Target("lists.approvals.many_over_few", "… approvals only", 1.5),
    Target("lists.newest.many_over_few", "the newest 100 sessions", 1.5),
    Target("lists.state.many_over_few", "… those that failed", 1.5),
    Target("lists.program.many_over_few", "… of a program", 1.5),
    Target("lists.label.many_over_few", "… with a label", 1.5),
    Target("lists.prefix.many_over_few", "… by the beginning of the id", 1.5),
    Target("lists.retention.many_over_few", "… longest ended, as retention reads them", 1.5),
    Target("lists.due.many_over_few", "sessions that need a move, and due timers", 1.5),
    Target("lists.open.many_over_few", "opening the file", 1.5),
    Target("lists.answer.many_over_few", "answering a session that is not in memory", 1.5),
    Target("lists.delete.many_over_few", "retention deletes five sessions", 1.5),
    # one session that grows: the exponent of its cost
    Target("growth.deliveries.exponent", "10,000 answers in one session: the exponent", 1.2),
    Target("growth.replay.exponent", "… read and replayed", 1.2),
    Target("growth.reading.exponent", "… listed as steps and transcript", 1.2),
    Target("growth.children.exponent", "10,000 children of one session", 1.2),
    Target("growth.questions.exponent", "10,000 open questions, answered one by one", 1.2),
    Target("growth.answers.exponent", "… answered by one call", 1.2),
    Target("growth.inputs.exponent", "10,000 inputs queued during a turn", 1.2),
    Target("growth.conversation.exponent", "10,000 turns of a conversation", 1.2),
    Target("growth.reopening.exponent", "… read again, and one more turn", 1.2),
    # Lua
    Target("lua.memory.step_over_floor", "Lua: step in the memory store over the floor's", 0.75),
    Target("lua.memory.start_over_floor", "… start to the first pause", 10),
    Target(
        "lua.normal.step_over_python", "… durable step over the Python program's, `NORMAL`", 1.5
    ),
    Target("lua.resume.cold_over_python", "… cold resume of 1000 answers, over Python's", 1.5),
    Target("lua.paused.kb_per_session", "… memory of a live paused session, 10,000 at once", 80),
    Target("lua.worker.step_over_floor", "… step in a worker process, memory store", 4),
    Target(
        "lua.sandbox.list_over_plain",
        "… `pairs` over 1000 numbers, over the same in a plain Lua state that counts",
        2,
    ),
    Target("lua.sandbox.ipairs_over_plain", "… `ipairs`", 2),
    Target("lua.sandbox.names_over_plain", "… `pairs` over 1000 names", 5),
    Target("lua.sandbox.few_names_over_plain", "… `pairs` over six names", 5),
    Target(
        "lua.sandbox.json_read_over_plain",
        "… reading JSON, over Python's `json` and tables of it",
        2,
    ),
    Target("lua.sandbox.json_write_over_plain", "… writing JSON", 2),
    Target(
        "lua.sandbox.host_random_over_plain",
        "… a number of `alc.math`, over one of a generator in Python",
        3,
    ),
    # processes and fronts
    Target("startup.import_over_python", "`import everhold`, over bare Python", 2.1),
    Target("startup.help_over_python", "`everhold --help`, over bare Python", 4.8),
    Target("startup.sessions_over_help", "`everhold sessions` with 20 sessions, over `--help`", 3),
    Target(
        "mcp.everhold.first_answer_over_bare",
        "`everhold mcp`, from its start to the answer to `run`, over a bare server of the protocol"
        " library",
        0.6,
    ),
    Target("mcp.algocline.first_answer_over_bare", "… `--profile algocline`, to `alc_run`", 0.6),
    Target(
        "mcp.everhold.round_over_bare",
        "`run` and `answer` over standard input and output, over the bare server's",
        1.1,
    ),
    Target(
        "mcp.algocline.round_over_bare", "… `alc_run` and `alc_continue`, in the Lua sandbox", 1.1
    ),
    Target("mcp.everhold.memory_mb", "megabytes of the server before its first session", 60),
    Target("mcp.algocline.memory_mb", "… `--profile algocline`", 60),
    # PostgreSQL
    Target("postgres.turn.statements", "a turn through a Postgres worker: SQL statements", 15, 12),
    Target("postgres.turn.commits", "… commits", 4),
    Target("postgres.1.turn_over_dbos", "… over DBOS's workflow of one step, one worker", 1),
    Target("postgres.2.turn_over_dbos", "… two workers", 1),
    Target("postgres.4.turn_over_dbos", "… four workers", 1),
    _least("postgres.1.over_dbos", "steps per second over DBOS's, one worker", 5),
    _least("postgres.2.over_dbos", "… two workers", 5),
    _least("postgres.4.over_dbos", "… four workers", 5),
    _least("postgres.everhold.four_over_two", "… four workers over two", 0.9),
    Target(
        "fleet.takeover.elsewhere_s",
        "a worker dies on another machine (lease of 10 s): its session resumes after",
        12,
    ),
    Target("fleet.takeover.here_s", "… on this machine", 2),
    Target(
        "fleet.hand_over_s", "a worker is stopped: its session resumes in another worker after", 0.5
    ),
    Target("fleet.wait.beside_over_alone", "99 sessions beside one without end: they wait", 2),
    Target("fleet.idle.growth_mb", "memory of a worker for 20,000 paused sessions, beyond 1000", 1),
)
