"""What each tool does, in verbs of the runtime.

Rules
  1. A tool answers `llm` questions only. Which kind a question has is looked up before anything is
     handed on; an id means the same question for ever, so nobody can slip another under it.
  2. A fork through a tool shares nothing that a person decided: what was approved once is not
     approved twice.
  3. A call waits at most its `wait` seconds for what it cannot hurry.
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final

import msgspec
from mcp.server.context import ServerRequestContext

from everhold.core.codec import JSON, is_same_json
from everhold.core.journal import Delivery, find_open_queries
from everhold.core.query import MODEL_KINDS, Kind, Query, Usage, parse_query_number
from everhold.core.status import Accepted, OpenQuery, Paused, Running, Status
from everhold.engine.journal_reader import index_queries, read_steps
from everhold.errors import (
    AnswerConflict,
    AnswerFailed,
    BadRequest,
    ManyOpenQueries,
    NoOpenQuery,
    NotAllowed,
    StateError,
    UsageError,
)
from everhold.mcp import child_sessions, elicitation, instructions, multi_round, render
from everhold.mcp.progress_notes import ProgressNotifier, ProgressObserver
from everhold.mcp.runtime_holder import RuntimeHolder
from everhold.mcp.tools import (
    AnswerArgs,
    CancelArgs,
    ForkArgs,
    ListSessionsArgs,
    RetryArgs,
    RunArgs,
    SessionArgs,
    StatusArgs,
    StrategiesArgs,
    ToolAnswer,
)
from everhold.ports.answerer import Answer as Counted
from everhold.ports.store import SessionRecord
from everhold.runtime import Runtime
from everhold.wire import dump_wire_json

#: Seconds a call waits unless it says otherwise.
DEFAULT_WAIT_SECONDS: Final = 30.0
#: Seconds between two looks at a session that waits for a person, or for a child.
POLL_SECONDS: Final = 0.25
#: Steps in a list of steps, the newest.
MAX_STEPS: Final = 50
#: Characters of a prompt or an answer in a list of steps.
PREVIEW_LENGTH: Final = 200
_ID: Final = re.compile(r"s-[0-9a-f]{16}-[0-9a-f]{24}")

RequestContext = ServerRequestContext[Any, Any]


class StatusResult(msgspec.Struct):
    """Where a session stands, and what else the result says of it."""

    status: Status
    title: str = ""
    extra: dict[str, JSON] = {}
    notes: dict[str, str] = {}  # why an answer of the client's model was refused, by query id
    parent: str | None = None  # the session that waits for its end
    asked: bool = False  # whether the person here was asked, and did not answer


class ToolHandlers:
    """One call's way to the runtime."""

    def __init__(
        self,
        house: RuntimeHolder,
        pulse: ProgressObserver,
        runtime: Runtime,
        context: RequestContext,
    ) -> None:
        self._house = house
        self._pulse = pulse
        self._runtime = runtime
        self._context = context

    # ---- run and answer

    async def run(self, given: RunArgs) -> StatusResult:
        call, title = self._called(given)
        budget = (
            None
            if given.budget is None
            else {k: v for k, v in msgspec.structs.asdict(given.budget).items() if v is not None}
        )
        title = given.title or title
        status = await self._runtime.start(
            call, key=given.key, title=title, budget=budget or None, wait=0, again=given.again
        )
        title = (
            (await self._runtime.store.load(status.session_id, since=-1)).birth.title
            if given.key
            else title
        )
        extra: dict[str, JSON] = {}
        estimate = instructions.render_estimate(call.program, call.args)
        if estimate is not None:
            extra["estimate"] = estimate
        return await self.settled(status, title, wait=given.wait, extra=extra, ref=call.program.ref)

    def _called(self, given: RunArgs) -> tuple[Any, str]:
        """The call that is meant, and a title for it."""
        if sum(one is not None for one in (given.program, given.code, given.code_file)) != 1:
            raise BadRequest("run", "give exactly one of program, code and code_file")
        args = given.args or {}
        if given.program is None:
            call = self._house.code(given.code, given.code_file, args)
        else:
            call = self._house.program(given.program)(**args)
        return call, instructions.make_session_title(
            given.program or given.code_file or "code", args
        )

    async def answer(self, given: AnswerArgs) -> StatusResult:
        session_id = await self._meant(given.session_id)
        record = await self._runtime.store.load(session_id, since=-1)
        answers = await self._allowed(record, given.answers)
        by = elicitation.describe_client(self._context)
        status = await self._runtime.answer_many(session_id, answers, by=by, wait=0)
        return await self._gone_on(record, status, given.wait)

    async def _gone_on(
        self, record: SessionRecord, status: Status, wait: float | None
    ) -> StatusResult:
        birth = record.birth
        standing = await self.settled(
            status, birth.title, seen=record.head.n, wait=wait, ref=birth.program
        )
        standing.parent = birth.parent
        return standing

    async def _allowed(self, record: SessionRecord, said: list[ToolAnswer]) -> dict[str, Any]:
        """The answers by query id; raises `NotAllowed` for what a model may not answer."""
        session_id = record.birth.id
        asked = {q: entry.query for q, entry in find_open_queries(record.deliveries).items()}
        if not said:
            raise BadRequest("answer", "answers is empty")
        found: dict[str, Any] = {}
        for one in said:
            query_id = one.query_id or self._sole(record, asked)
            q = parse_query_number(query_id)
            if q is not None and q not in asked:
                asked |= index_queries((await self._runtime.store.load(session_id)).deliveries)
            if q in asked:
                self._refuse_other(session_id, asked[q])
            value = _value(one)
            if query_id in found and not _same(found[query_id], value):
                raise AnswerConflict(session_id, query_id, at_once=True)
            found[query_id] = value
        return found

    def _sole(self, record: SessionRecord, asked: dict[int, Query]) -> str:
        """The one open question for a model."""
        ids = [query.id for query in asked.values() if query.kind in MODEL_KINDS]
        if len(ids) == 1:
            return ids[0]
        if ids:
            raise ManyOpenQueries(record.birth.id, [*ids])
        for query in asked.values():
            self._refuse_other(record.birth.id, query)
        raise NoOpenQuery(record.birth.id, record.head.state)

    def _refuse_other(self, session_id: str, query: Query) -> None:
        if query.kind not in MODEL_KINDS:
            command = render.format_answer_command(
                OpenQuery(session_id, query, 0), self._house.option
            )
            raise NotAllowed(
                f"{query.id} of session {session_id} is of the kind {query.kind}: a tool cannot"
                " answer it",
                f"A person answers it: `{command}`, or at this client with the tool `ask_person`.",
            )

    # ---- look

    async def status(self, given: StatusArgs) -> StatusResult:
        session_id = await self._meant(given.session_id)
        status = await self._runtime.status(session_id)
        record = await self._runtime.store.load(session_id, since=-1)
        if given.wait:
            # a model of this process takes what another left open
            status = await self._runtime.wait(session_id, 0)
            status = await self._patient(status, given.wait)
            status = (await self.settled(status, "", seen=record.head.n, wait=given.wait)).status
        ref = record.birth.program
        extra: dict[str, JSON] = {
            "program": ref,
            "steps": record.head.n + 1,
            **render.render_code_hint(ref, status),
        }
        shown = await self._runtime.snapshot(session_id)
        extra["metrics"] = shown["metrics"]
        if given.steps:
            extra["journal"] = _steps((await self._runtime.store.load(session_id)).deliveries)
        return StatusResult(status, record.birth.title, extra, parent=record.birth.parent)

    async def sessions(self, given: ListSessionsArgs) -> dict[str, JSON]:
        after = None if given.after is None else await self._meant(given.after)
        listed = await self._runtime.sessions(state=given.state, limit=given.limit, after=after)
        rows: list[JSON] = [
            {
                "session_id": one.session_id,
                "title": one.title,
                "state": str(one.state),
                "program": one.program.replace("\\", "/").rpartition("/")[2],
                "key": one.key,
                "steps": one.steps + 1,
                "updated_at": int(one.updated_at * 1000),
            }
            | ({"parent": one.parent} if one.parent else {})
            for one in listed
        ]
        told: dict[str, JSON] = {"database": self._runtime.database, "sessions": rows}
        if len(rows) == given.limit:
            only = f"state {given.state!r} and " if given.state else ""
            told["next"] = (
                f"For more, call the everhold tool `sessions` with {only}after"
                f" {listed[-1].session_id!r}."
            )
        return told

    async def explain(self, given: SessionArgs) -> dict[str, JSON]:
        told = await self._runtime.explain(await self._meant(given.session_id))
        return {
            "session_id": told.session_id,
            "state": str(told.state),
            "because": [*told.because],
            "moves": [render.translate_move(words, self._house.option) for words in told.moves],
        }

    async def strategies(self, given: StrategiesArgs) -> dict[str, JSON]:
        if given.name is not None:
            return instructions.render_program(self._house.program(given.name))
        return instructions.render_catalog(self._house.catalog())

    # ---- change

    async def cancel(self, given: CancelArgs) -> StatusResult:
        session_id = await self._meant(given.session_id)
        title = (await self._runtime.store.load(session_id, since=-1)).birth.title
        return StatusResult(await self._runtime.cancel(session_id, given.reason or ""), title)

    async def retry(self, given: RetryArgs) -> StatusResult:
        session_id = await self._meant(given.session_id)
        record = await self._runtime.store.load(session_id, since=-1)
        return await self._gone_on(
            record, await self._runtime.retry(session_id, wait=0), given.wait
        )

    async def fork(self, given: ForkArgs) -> StatusResult:
        session_id = await self._meant(given.session_id)
        record = await self._runtime.store.load(session_id)
        if (given.answer is not msgspec.UNSET or given.query_id is not None) and given.at is None:
            raise BadRequest("fork", "to replace an answer, say at which step it was given: at")
        await self._refuse_decided(record, given)
        more: dict[str, Any] = {} if given.answer is msgspec.UNSET else {"answer": given.answer}
        status = await self._runtime.fork(
            session_id,
            at=given.at,
            query_id=given.query_id,
            title=given.title or "",
            wait=0,
            **more,
        )
        return await self.settled(
            status, given.title or record.birth.title, seen=record.head.n, wait=given.wait
        )

    async def _refuse_decided(self, record: SessionRecord, given: ForkArgs) -> None:
        """Refuse to carry, or to replace, what somebody else than a model said."""
        last = record.head.n if given.at is None else given.at
        answered = (
            (step, one.asked)
            for step in read_steps(record.deliveries)
            for one in step.answered
            if step.n <= last and one.asked is not None
        )
        for step, entry in answered:
            query = entry.query
            replaced = step.n == last and given.answer is not msgspec.UNSET
            is_other = replaced and query.kind not in MODEL_KINDS
            if is_other or await child_sessions.is_decided(
                self._runtime.store, record.birth, entry
            ):
                inside = (
                    " in which a person decided"
                    if query.kind is Kind.SESSION and not is_other
                    else ""
                )
                raise NotAllowed(
                    f"step {step.n} holds an answer to {query.id}, a question of the kind"
                    f" {query.kind}{inside}:"
                    " a tool cannot carry it into another session",
                    f"Fork before it (at: {step.n - 1}, without an answer), or a person types:"
                    f" `everhold fork {record.birth.id} --at {last}{self._house.option}`.",
                )

    async def ask_person(self, given: SessionArgs) -> StatusResult:
        session_id = await self._meant(given.session_id)
        title = (await self._runtime.store.load(session_id, since=-1)).birth.title
        return StatusResult(await self._runtime.status(session_id), title, asked=True)

    # ---- what was asked for

    async def heard(self, back: multi_round.RoundReply) -> StatusResult:
        """Take what came back to what was asked, and say where the session stands."""
        put = back.put
        record = await self._runtime.store.load(put.session_id, since=-1)
        standing = StatusResult(await self._runtime.status(put.session_id), record.birth.title)
        for query in (
            *render.list_model_questions(standing.status),
            *render.list_other_questions(standing.status),
        ):
            if query.id in put.query_ids:
                await self.said(
                    standing,
                    query,
                    multi_round.read_round_answer(query, back.responses.get(query.id)),
                )
        if isinstance(standing.status, Accepted):  # what is left to ask is told, too
            standing.status = await self._runtime.status(put.session_id)
        settled = await self.settled(standing.status, standing.title, seen=record.head.n)
        return msgspec.structs.replace(
            settled,
            extra=standing.extra,
            notes=standing.notes,
            parent=record.birth.parent,
            asked=standing.asked,
        )

    async def said(self, standing: StatusResult, query: OpenQuery, value: Any) -> bool:
        """Hand on what a person, or the client's model, said, and whether it was an answer that
        counts.
        """
        sampled = query.kind in MODEL_KINDS
        if value is msgspec.UNSET:
            if not sampled:
                standing.extra["person"] = f"{query.id} was not answered here; it stays open"
                standing.asked = True
            return False
        by = elicitation.describe_client(self._context) | {
            "through": "sampling" if sampled else "elicitation"
        }
        try:
            standing.status = await self._runtime.answer_many(
                query.session_id, {query.id: value}, by=by, wait=0
            )
        except (UsageError, StateError) as error:  # it does not fit, or somebody else was quicker
            if sampled:
                standing.notes[query.id] = str(error)
            else:
                standing.extra["person"] = f"{query.id}: {error}"
            standing.status = await self._runtime.status(query.session_id)
            return False
        return True

    # ---- shared

    async def _meant(self, name: str) -> str:
        return name if _ID.fullmatch(name) else await self._runtime.find(name)

    async def settled(
        self,
        status: Status,
        title: str,
        *,
        seen: int = -1,
        wait: float | None = None,
        extra: dict[str, JSON] | None = None,
        ref: str = "",
    ) -> StatusResult:
        """Wait for what moves by itself, and tell the client meanwhile what is new after delivery
        `seen`.
        """
        runtime = self._runtime
        seconds = DEFAULT_WAIT_SECONDS if wait is None else wait
        teller = ProgressNotifier(self._context, runtime.store, status.session_id, seen)
        if _moves(status) and seconds and not self._far(status, seconds):
            status = await self._pulse.during(self._waited(status, seconds), teller)
        await teller.rest()
        return StatusResult(
            status, title, {**(extra or {}), **render.render_code_hint(ref, status)}
        )

    async def _waited(self, status: Status, seconds: float) -> Status:
        """Wait for what moves by itself, which a child that asks somebody does not; one may be born
        meanwhile.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        while (
            _moves(status)
            and (left := end - clock()) > 0
            and not await child_sessions.find_asking_child(self._runtime, status)
        ):
            status = await self._runtime.wait(status.session_id, min(left, POLL_SECONDS))
        return status

    async def _patient(self, status: Status, seconds: float) -> Status:
        """Wait for a person, who answers somewhere else, as long as there is nothing for the
        model.
        """
        clock = asyncio.get_running_loop().time
        end = clock() + seconds
        while (
            render.list_other_questions(status)
            and not render.list_model_questions(status)
            and clock() < end
        ):
            await asyncio.sleep(POLL_SECONDS)
            status = await self._runtime.status(status.session_id)
        return status

    def _far(self, status: Status, seconds: float) -> bool:
        """Whether only a timer is waited for that goes off later."""
        return (
            isinstance(status, Paused)
            and status.waiting_for == ("a timer",)
            and status.until is not None
            and status.until > self._runtime.clock.now() + seconds
        )


def _moves(status: Status) -> bool:
    return isinstance(status, Running) or (isinstance(status, Paused) and not status.queries)


def _value(one: ToolAnswer) -> Any:
    if one.error is not None:
        if one.response is not msgspec.UNSET and one.response is not None:
            raise BadRequest("answer", "give a response or an error, one of the two")
        return AnswerFailed(one.error)
    if one.response is msgspec.UNSET:
        raise BadRequest("answer", "each answer needs a response, or an error")
    if one.usage is None:
        return one.response
    return Counted(one.response, Usage(one.usage.prompt_tokens, one.usage.completion_tokens))


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, AnswerFailed) or isinstance(other, AnswerFailed):
        return (
            isinstance(one, AnswerFailed)
            and isinstance(other, AnswerFailed)
            and one.message == other.message
        )
    first, second = (value.value if isinstance(value, Counted) else value for value in (one, other))
    return is_same_json(first, second)


def _steps(deliveries: list[Delivery]) -> list[JSON]:
    rows: list[JSON] = []
    for step in list(read_steps(deliveries))[-MAX_STEPS:]:
        answers: list[JSON] = [
            {
                "query_id": one.answer.id,
                "kind": str(one.query.kind),
                "prompt": _brief(one.query.prompt or one.query.name),
                "answer": _brief(
                    one.answer.value
                    if one.answer.error is None
                    else f"error: {one.answer.error.get('message')}"
                ),
            }
            for one in step.answered
            if one.query is not None
        ]
        row: dict[str, JSON] = {
            "step": step.n,
            "answers": answers,
            "asked": [query.id for query in step.asked],
        }
        rows.append(row if step.notes.restart is None else {**row, "restarted": True})
    return rows


def _brief(value: JSON) -> str:
    words = value if isinstance(value, str) else dump_wire_json(value)
    return words if len(words) <= PREVIEW_LENGTH else words[:PREVIEW_LENGTH] + "…"
