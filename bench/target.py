"""The targets. Figures are compared only here.

A target names its figure. A figure that was not measured is reported as such.
"""

from dataclasses import dataclass
from typing import Final

from bench.figure import Figure


@dataclass(frozen=True, slots=True)
class Target:
    """`what` is the sentence in the table."""

    figure: str
    what: str
    limit: float
    at_least: bool = False

    def is_met(self, figure: Figure) -> bool:
        return figure.value >= self.limit if self.at_least else figure.value <= self.limit

    @property
    def sign(self) -> str:
        return "≥" if self.at_least else "≤"


TARGETS: Final = (
    Target("step.normal.everhold.over_floor", "durable step over the floor's, `NORMAL`", 2.8),
    Target("step.full.everhold.over_floor", "durable step over the floor's, `FULL`", 1.6),
    Target(
        "step.normal.langgraph-visit.over_everhold",
        "LangGraph, a visit per question, over ours, `NORMAL`",
        40,
        at_least=True,
    ),
    Target(
        "step.normal.langgraph-fastest.over_everhold",
        "LangGraph, its fastest form here, over ours, `NORMAL`",
        40,
        at_least=True,
    ),
    Target(
        "step.full.langgraph-visit.over_everhold",
        "LangGraph, a visit per question, over ours, `FULL`",
        10,
        at_least=True,
    ),
    Target(
        "step.full.langgraph-fastest.over_everhold",
        "LangGraph, its fastest form here, over ours, `FULL`",
        10,
        at_least=True,
    ),
    Target("step.memory.everhold.us", "step in the memory store", 18),
    Target("postgres.turn.statements", "SQL statements of a turn through a Postgres worker", 15),
    Target(
        "crowd.normal.everhold.steps_per_s",
        "1000 sessions at once, `NORMAL`",
        20_000,
        at_least=True,
    ),
    Target("crowd.normal.everhold.busy_steps_per_s", "… with a busy loop", 20_000, at_least=True),
    Target(
        "crowd.full.everhold.steps_per_s", "1000 sessions at once, `FULL`", 15_000, at_least=True
    ),
    Target("crowd.full.everhold.busy_steps_per_s", "… with a busy loop", 15_000, at_least=True),
    Target("size.everhold.in_sequence.bytes_per_step", "bytes of database per step", 620),
    Target("length.normal.everhold.late_over_early", "step 1000 over step 10", 1.2),
    Target("resume.everhold.cold_1000_ms", "cold resume of a session with 1000 answers", 12),
    Target(
        "paused.everhold.many.open_and_answer_ms",
        "100,000 paused sessions: open the runtime, answer one of them",
        5,
    ),
    Target("paused.everhold.growth_mb", "… memory beyond that with 1000 paused sessions", 1),
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
    Target("lists.due.many_over_few", "sessions that need a move", 1.5),
    Target("lua.memory.step_us", "Lua: step in the memory store", 40),
    Target("lua.memory.start_ms", "… start to the first pause", 0.5),
    Target(
        "lua.normal.step_over_python", "… durable step over the Python program's, `NORMAL`", 1.5
    ),
    Target("lua.resume.cold_1000_ms", "… cold resume of a session with 1000 answers", 25),
    Target("lua.paused.kb_per_session", "… memory of a live paused session, 10,000 at once", 80),
    Target("lua.worker.step_us", "… step in a worker process, memory store", 200),
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
    Target("startup.import_ms", "`import everhold`, beyond bare Python", 45),
    Target("startup.help_ms", "`everhold --help`, beyond bare Python", 200),
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
    Target("turn.everhold.late_over_early", "turn 1000 of a conversation over turn 10", 1.2),
    Target("turn.everhold.megabytes_per_1000", "1000 turns of 2 KB in the file", 3),
    Target("processes.two_over_one", "two processes on one file over one", 1.3, at_least=True),
    Target(
        "postgres.1.over_dbos", "Postgres, one worker: durable steps over DBOS's", 5, at_least=True
    ),
    Target("postgres.2.over_dbos", "… two workers", 5, at_least=True),
    Target("postgres.4.over_dbos", "… four workers", 5, at_least=True),
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
