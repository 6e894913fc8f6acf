"""Explains why a session is in its state and what moves it, in sentences.

Nothing is changed. To find out whether the program here can resume the session, its journal is
replayed in memory, without effects.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from everhold.core.budget import find_reached_limit
from everhold.core.intake import INPUT, Intake, IntakeItem
from everhold.core.journal import AskedQuery, find_open_queries, split_at_last_restart
from everhold.core.progress import Progress
from everhold.core.query import (
    ASKED,
    KINDS,
    MODEL_KINDS,
    SCRIPTED_KINDS,
    SENT_BY_NAME,
    Blocked,
    FailedAttempt,
    Kind,
    Query,
    Rerun,
)
from everhold.core.session import OUTSIDE, WORKERS, SessionState, format_session_name
from everhold.core.status import LATEST, Raised, Returned, Stopped
from everhold.core.turn import TurnFailed
from everhold.engine.accept import BUDGET_LETTER
from everhold.engine.children import child_id
from everhold.engine.intake_messages import is_for_running_turn
from everhold.engine.journal_reader import find_last_handed, read_outcome
from everhold.engine.live_session import rebuild_session
from everhold.engine.liveness import get_machine_name
from everhold.errors import Diverged, EverholdError
from everhold.exception_info import ExceptionInfo
from everhold.ports.program import ProgramHost
from everhold.ports.store import NO_WORKER, Effect, SessionRecord, WorkerRecord
from everhold.shell_command import format_command, quote_word

_RERUN = {
    Rerun.SAFE: "it runs again",
    Rerun.NEVER: "the program gets the error `outcome_unknown`",
    Rerun.ASK: "a person decides whether it runs again",
}


#: Queued items that are listed one by one.
MAX_LISTED_ITEMS: Final = 5
#: Questions of the same kind that are listed one by one; more are counted.
MAX_ALIKE: Final = 3


class Explanation(msgspec.Struct, frozen=True):
    """Sentences: why a session is in its state (`because`), and what can move it (`moves`)."""

    session_id: str
    state: SessionState
    because: list[str]
    moves: list[str]
    blocked: dict[str, Blocked] = {}  # open queries that no process could answer, and why
    progress: Progress | None = None  # what the program reported last
    exception: ExceptionInfo | None = None  # behind a failure, if code of a user raised it


async def explain_session(
    record: SessionRecord,
    host: ProgramHost,
    workers: Mapping[str, WorkerRecord],
    living: set[str],
    now: float,
    intake: Intake | None = None,
    *,
    talks: bool = False,
    idle: Collection[str] = (),
) -> Explanation:
    """Explain one stored session, with the program of this process.

    `talks` says that the session is an agent. `idle` are living workers that do not work on the
    session, even if it has marks of theirs.
    """
    explainer = _Explainer(record, workers, living, now, talks, idle)
    if record.head.ended:
        explainer.end()
    else:
        explainer.life()
        await explainer.program(host)
    if record.head.metrics.progress is not None:
        explainer.because.append(f"Its last progress: {record.head.metrics.progress}")
    if intake is not None:
        explainer.intake(intake)
    return Explanation(
        record.birth.id,
        record.head.state,
        explainer.because,
        explainer.moves,
        explainer.blocked,
        record.head.metrics.progress,
        explainer.exception,
    )


_ANY_PROCESS: Final = (
    "Any process that has the program and opens this database resumes it, such as: everhold worker"
)


class _Explainer:
    def __init__(
        self,
        record: SessionRecord,
        workers: Mapping[str, WorkerRecord],
        living: set[str],
        now: float,
        talks: bool,
        idle: Collection[str],
    ) -> None:
        self._record = record
        self._workers = workers
        self._living = living
        self._now = now
        self._talks = talks
        self._idle = idle
        self._named = format_session_name(record.birth.id, record.birth.key)
        self._name = quote_word(self._named)
        self.because: list[str] = []
        self.moves: list[str] = []
        self.blocked: dict[str, Blocked] = {}
        self.exception: ExceptionInfo | None = None

    def end(self) -> None:
        ago = _span(self._now - self._record.head.updated_at)
        match read_outcome(self._record.deliveries):
            case Returned():
                self.because.append(f"It completed {ago} ago.")
            case Raised(error=error, step=step, exception=exception):
                self.because.append(f"It failed {ago} ago, at step {step}: {error}")
                self.exception = exception
                self._ask_again()
                if not self._raise_budget(error):
                    self.moves.append(f"Fix the program, then: everhold retry {self._name}")
            case Stopped(reason=reason):
                self.because.append(
                    f"It was cancelled {ago} ago" + (f": {reason}" if reason else ".")
                )
        if self._record.head.n > 0:
            command = format_command("fork", self._named, "--at", str(self._record.head.n - 1))
            if not any(move.endswith(f": {command}") for move in self.moves):
                self.moves.append(f"To resume from an earlier step, such as this one: {command}")

    def _ask_again(self) -> None:
        """Suggest a fork before the last answers if one is an error: a retry would deliver it
        again.
        """
        deliveries = self._record.deliveries
        last = find_last_handed(deliveries)
        failed = deliveries[last]
        before = find_open_queries(deliveries[:last])
        wrong = [
            before[one.q].query
            for one in failed.answers
            if one.error is not None and one.q in before
        ]
        again = [query.id for query in wrong if _repeatable(query)]
        if again:
            words = f"Ask {' and '.join(again)} again (the recorded answer is an error)"
            self.moves.append(f"{words}: everhold fork {self._name} --at {failed.n - 1}")

    def _raise_budget(self, error: str) -> bool:
        """Suggest a larger budget. False if the session has not used up its own."""
        found = find_reached_limit(error)
        if found is None:
            return False
        limit, needed = found
        if limit == "max_elapsed_ms":
            passed = int(self._now - self._record.birth.created_at)
            option = f"--max-elapsed {2 * passed + 60}s"
        else:
            option = f"--{limit.replace('_', '-')} {2 * needed or 1}"
        self.moves.append(f"Give it a larger budget: everhold budget {self._name} {option}")
        return True

    def life(self) -> None:
        record = self._record
        working = {effect.q: effect for effect in record.effects}
        kept = [letter for letter in record.letters if letter.kind == "answer"]
        answered = {letter.body["q"] for letter in kept}
        opened = find_open_queries(record.deliveries)
        if record.head.n < 0:
            self.because.append(
                f"It has not started: no process that has its program {record.birth.program} has"
                " moved it."
            )
            self.moves.append(_ANY_PROCESS)
        self._last_turn()
        restarted, _ = split_at_last_restart(record.deliveries)
        if restarted is not None:
            self.because.append(
                f"Its program restarted at step {restarted.n}; earlier steps are not replayed."
            )
        groups: dict[tuple[Any, ...], list[AskedQuery]] = {}
        in_turn = any(entry.query.kind in ASKED for entry in opened.values())
        for q, entry in opened.items():
            if in_turn and self._awaits_input(entry):
                continue
            if q in working:
                effect = working[q]
                alike: tuple[Any, ...] = (
                    True,
                    effect.worker,
                    entry.query.kind,
                    entry.query.name,
                    entry.query.rerun,
                    _describe_attempt(effect.failed),
                )
            elif q not in answered:
                alike = (False, *self._describe_open(entry))
            else:
                continue
            groups.setdefault(alike, []).append(entry)
        for (works, *_), entries in groups.items():
            if works:
                self._worked_on(entries, [working[entry.query.q] for entry in entries])
            else:
                self._open(entries)
        if kept:
            wait = "answer waits" if len(kept) == 1 else "answers wait"
            self.because.append(f"{len(kept)} accepted {wait} for a process that has its program.")
            self.moves.append(_ANY_PROCESS)
        if any(letter.kind == BUDGET_LETTER for letter in record.letters):
            self.because.append("A new budget waits for a process that has its program.")
            self.moves.append(_ANY_PROCESS)
        for name in dict.fromkeys(
            letter.body["name"] for letter in record.letters if letter.kind == "signal"
        ):
            self.because.append(f"The signal {name!r} is stored until the program receives it.")
        if record.head.due_at is not None:
            if not opened and record.head.due_at > self._now:
                self.because.append(
                    f"It waits for a timer, for {_span(self._now - record.head.updated_at)} so far."
                )
            self._due(record.head.due_at)

    def _describe_open(self, entry: AskedQuery) -> tuple[str, ...]:
        """What open questions have in common that are explained together."""
        query = entry.query
        blocked = self._record.head.blocked(query.q)
        why = () if blocked is None else (blocked.code, blocked.message)
        return (query.kind, query.name, query.to or "", *why)

    def _last_turn(self) -> None:
        """Say that the last turn of a conversation failed."""
        settled = next(
            (
                one.notes.settled
                for one in reversed(self._record.deliveries)
                if one.notes is not None and one.notes.settled is not None
            ),
            None,
        )
        if settled is not None and isinstance(settled.outcome, TurnFailed):
            self.because.append(f"Its last turn ({settled.turn}) failed: {settled.outcome.error}")
            self.exception = settled.outcome.exception

    def _awaits_input(self, entry: AskedQuery) -> bool:
        """Whether a query of a conversation is that for its next input."""
        query = entry.query
        return self._talks and query.kind in SENT_BY_NAME and query.name == INPUT

    def _open(self, entries: Sequence[AskedQuery]) -> None:
        """Explain open questions of the same kind, by the first few of them."""
        first = entries[0]
        query = first.query
        facts = KINDS[query.kind]
        span = _span(self._now - first.at)
        if self._awaits_input(first):
            self.because.append(f"It has waited {span} for an input.")
            program = self._record.birth.program
            command = format_command("chat", program, "--session", self._named)
            self.moves.append(f"Send it an input: {command}")
            return
        shown = entries if len(entries) <= MAX_ALIKE + 1 else entries[:MAX_ALIKE]
        if facts.because:
            self.because += [facts.because.format_map(self._words(entry)) for entry in shown]
            if rest := entries[len(shown) :]:
                self.because.append(f"The same goes for {len(rest)} more: {_ids(rest)}.")
        for entry in entries:
            blocked = self._record.head.blocked(entry.query.q)
            if blocked is not None:
                self.blocked[entry.query.id] = blocked
        if query.id in self.blocked:
            blocked = self.blocked[query.id]
            self.because.append(
                f"{_ids(entries)} could not be answered ({_span(self._now - blocked.at)} ago):"
                f" {blocked.message} [{blocked.code}]"
            )
            if blocked.hint:
                self._add_move(f"{blocked.hint} Then move it: everhold run -c {self._name}")
        if query.kind in MODEL_KINDS and query.to is None:
            self._for_models()
        if facts.move:
            self._add_move(facts.move.format_map(self._words(first)))
            if others := entries[1:]:
                self.moves.append(f"The same way for {_ids(others)}.")

    def _words(self, entry: AskedQuery) -> dict[str, str]:
        """What the sentences of a kind may name."""
        query = entry.query
        words = {
            "id": query.id,
            "kind": query.kind,
            "name": query.name,
            "prompt": _words(query),
            "whom": query.to or KINDS[query.kind].whom.format(name=query.name),
            "span": _span(self._now - entry.at),
            "session": self._name,
            "signal": quote_word(query.name),
        }
        if query.kind is Kind.SESSION:
            words["child"] = child_id(self._record.birth, entry)
        return words

    def _add_move(self, sentence: str) -> None:
        if sentence not in self.moves:
            self.moves.append(sentence)

    def _for_models(self) -> None:
        """Say whether workers may answer its model questions."""
        answered_by = self._record.birth.llm
        if answered_by == WORKERS:
            words = (
                "A worker that has a model and its program answers it. Name the model in"
                " everhold.toml, then: everhold worker"
            )
            self._add_move(words)
        elif answered_by == OUTSIDE:
            self.because.append(
                "Its model questions are answered outside (by an MCP host, or by hand), never by"
                " a worker."
            )
        else:
            self.because.append(
                "An older everhold started it, so workers do not answer its model questions by"
                " default."
            )
            self._add_move(
                "Let a worker answer them. Name the model in everhold.toml, then: everhold worker"
                " --adopt-parked"
            )

    def _worked_on(self, entries: Sequence[AskedQuery], effects: Sequence[Effect]) -> None:
        """Explain queries of the same name that one process works on, or that wait for one."""
        query = entries[0].query
        ids = _ids(entries)
        worker = effects[0].worker
        since = min(effect.since for effect in effects)
        row = self._workers.get(worker)
        failures = [effect.failed for effect in effects if effect.failed is not None]
        if failures:
            self._failed_attempts(f"{query.name or query.kind} ({ids})", failures)
            if worker == NO_WORKER and since > self._now:
                return
        if worker == NO_WORKER or worker in self._idle:
            self.because.append(
                f"{query.name or query.kind} ({ids}) has not started yet, after"
                f" {_span(self._now - since)}."
            )
            self._add_move("The next process that has its program starts it.")
            return
        where = (
            f"process {row.pid} on {get_machine_name(row.host)}" if row is not None else "a process"
        )
        what = query.name or query.kind
        if worker in self._living:
            self.because.append(
                f"{where} works on {what} ({ids}), for {_span(self._now - since)} so far."
            )
            return
        self.because.append(f"{where} worked on {what} ({ids}) and is dead.")
        then = _RERUN[query.rerun] if query.kind is Kind.CALL else "it is asked again"
        self._add_move(f"The next process that has its program claims it: {then}.")

    def _failed_attempts(self, what: str, failures: Sequence[FailedAttempt]) -> None:
        """Explain failed attempts of the same number and error."""
        one = failures[0]
        ago = _span(self._now - max(failed.at for failed in failures))
        left = min(failed.next_at for failed in failures) - self._now
        then = f"; next attempt in {_span(math.ceil(left))}" if left > 0 else ""
        self.because.append(
            f"{what}: attempt {one.number} of {one.of} failed {ago} ago:"
            f" {_shorten(' '.join(one.error.split()))}{then}."
        )

    def _due(self, due: float) -> None:
        if due > self._now:
            self.moves.append(
                f"It is due at {_moment(due)}, in {_span(due - self._now)}; a process that has its"
                " program resumes it."
            )
        else:
            self.because.append(
                f"It was due {_span(self._now - due)} ago, and no process that has its program"
                " was running."
            )
            self.moves.append(_ANY_PROCESS)

    def intake(self, intake: Intake) -> None:
        """List queued input, and why it is not delivered yet."""
        waiting = [item for item in intake.items.values() if item.waits]
        if not waiting:
            return
        for item in waiting[:MAX_LISTED_ITEMS]:
            span = _span(intake.now - item.at)
            self.because.append(
                f"The {item.kind} {item.id!r} is queued, for {span} so far:"
                f" {self._why_queued(intake, item)}"
            )
        if len(waiting) > MAX_LISTED_ITEMS:
            self.because.append(f"{len(waiting) - MAX_LISTED_ITEMS} more are queued behind it.")
        self.moves.append(f"List or cancel queued input: everhold intake {self._name}")

    def _why_queued(self, intake: Intake, item: IntakeItem) -> str:
        lease = intake.lease
        opened = find_open_queries(self._record.deliveries)
        if self._record.head.ended:
            return "the session has ended; the next move fails it."
        if item.available_at > intake.now:
            return f"it becomes available at {_moment(item.available_at)}."
        if lease is not None and lease.live(intake.now):
            return f"{lease.owner.name} works on the session and delivers it."
        if len(opened) > 1 and not is_for_running_turn(item):
            return "a turn is running and must settle first."
        return "the next process that has its program delivers it."

    async def program(self, host: ProgramHost) -> None:
        """Replay the journal to say whether the program here can resume the session."""
        record = msgspec.structs.replace(
            self._record, head=msgspec.structs.replace(self._record.head)
        )
        try:
            live = await rebuild_session(record, host)
        except EverholdError as error:
            self.because.append(f"It cannot resume here: {error}")
            self.exception = error.exception
            if isinstance(error, Diverged):
                error.tell_fork(self._named)
            if error.hint:
                self.moves.append(error.hint)
            return
        if live.reworded:
            self.because.append(
                f"{len(live.reworded)} of its questions have new wording; their recorded answers"
                " are used."
            )
        live.drop()


def _repeatable(query: Query) -> bool:
    """Whether a query may be asked again without an effect that must not happen twice."""
    return query.kind in SCRIPTED_KINDS or (query.kind is Kind.CALL and query.rerun is Rerun.SAFE)


def _ids(entries: Sequence[AskedQuery]) -> str:
    """The ids of queries, the first of them if they are many: `q-1 to q-8, q-11 and 4 more`."""
    runs: list[list[int]] = []
    for q in sorted(entry.query.q for entry in entries):
        if runs and q == runs[-1][-1] + 1:
            runs[-1].append(q)
        else:
            runs.append([q])
    words: list[str] = []
    for run in runs:
        if len(run) > 2:
            words.append(f"q-{run[0]} to q-{run[-1]}")
        else:
            words += [f"q-{q}" for q in run]
    more = len(words) - MAX_LISTED_ITEMS
    return ", ".join(words[:MAX_LISTED_ITEMS]) + (f" and {more} more" if more > 0 else "")


def _describe_attempt(failed: FailedAttempt | None) -> tuple[int, int, str] | None:
    """What failed attempts must have in common to be explained together."""
    return None if failed is None else (failed.number, failed.of, failed.error)


def _words(query: Query) -> str:
    return _shorten(" ".join((query.prompt or query.name or "a conversation").split()))


def _shorten(text: str) -> str:
    return text if len(text) <= 160 else text[:159] + "…"


def _span(seconds: float) -> str:
    for size, unit in ((86400, "day"), (3600, "hour"), (60, "minute")):
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'' if count == 1 else 's'}"
    return f"{max(int(seconds), 0)} s"


def _moment(at: float) -> str:
    return datetime.datetime.fromtimestamp(min(at, LATEST), datetime.UTC).strftime(
        "%Y-%m-%d %H:%M:%S UTC"
    )
