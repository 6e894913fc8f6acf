"""The verbs of sessions, whatever front they come through: start, answer, signal, cancel, retry, fork, delete.

A verb finds the session in memory or rebuilds it, makes one step, and says where the session stands now. Where the
program is not here, what can be accepted without it is accepted: it is kept, and the session is ready to go on
wherever the program is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

import msgspec

from everhold.core.codec import JSON, plain, same
from everhold.core.errors import (
    BadStep,
    KeyConflict,
    NoOpenQuery,
    NotAProgram,
    Overtaken,
    SessionEnded,
    StillNeeded,
    UnknownProgram,
    UnknownQuery,
    VersionMissing,
)
from everhold.core.journal import Delivery, Opened, open_queries
from everhold.core.metrics import Metrics
from everhold.core.query import Answer, Kind, Query, Usage, number
from everhold.core.session import Birth, Event, Head, Seed, SessionId, State, moved
from everhold.core.status import Accepted, Finished, OpenQuery, Outcome, Paused, Running, Status, Stopped
from everhold.drive import processes
from everhold.drive.agent import inquiry
from everhold.drive.child import child_id, end_of
from everhold.drive.dispatch import Dispatch, fitted
from everhold.drive.doubt import decided
from everhold.drive.ingress import Door, Given, answerable, same_answer, settle
from everhold.drive.live import Live, rebuild
from everhold.drive.sessions import Sessions
from everhold.drive.step import Said
from everhold.ports.program import Clock
from everhold.ports.store import BEGUN, Change, Letter, Record

T = TypeVar("T")

#: What it means that a program is not here.
ABSENT = (UnknownProgram, NotAProgram, VersionMissing)


class Runner:
    def __init__(self, sessions: Sessions, dispatch: Dispatch, clock: Clock) -> None:
        self._sessions = sessions
        self._dispatch = dispatch
        self._clock = clock
        self._store = sessions.store

    # ---- start

    async def start(self, birth: Birth) -> Status:
        """Begin a session: its birth and its first pause land in one commit."""

        async def attempt() -> Status:
            head = Head(0, 0, State.RUNNING, -1, 0, None, birth.created_at, Metrics())
            live = Live(birth, head, self._sessions.host.begin(birth, head.metrics))
            live.lock.take()  # nobody else knows of it yet
            self._sessions.keep(live)
            try:
                return self._after(live, await self._sessions.step(live, [], birth=birth))
            except BaseException:
                self._sessions.drop(live)
                raise
            finally:
                live.lock.release()

        return await self._sessions.insisting(attempt)

    async def again(self, key: str, birth: Birth) -> SessionId | None:
        """The session that has this key already; raises `KeyConflict` if it was started otherwise."""
        found = await self._store.find(key)
        if found is None:
            return None
        old = (await self._store.load(found, since=-1)).birth
        if old.program != birth.program:
            raise KeyConflict(key, found, "program")
        if not same(old.args, birth.args):
            raise KeyConflict(key, found, "arguments")
        return found

    # ---- answer

    async def answer_open(self, asked: OpenQuery, value: Any, usage: Usage | None) -> Status:
        """Take one answer. The common case, a model's words for a session in memory, goes the shortest way."""
        live = self._sessions.cached(asked.session_id)
        if live is not None:
            entry = live.opened.get(asked.query.q)
            if entry is not None and self._is_free(live, entry.query):
                answer = Answer(entry.query.q, fitted(entry.query, value), None, usage)
                if live.lock.take():
                    try:
                        done = await self._sessions.plain_step(live, entry.query, answer)
                        if type(done) is Query:
                            return Paused(live.id, (OpenQuery(live.id, done, live.head.updated_at),))
                        return self._after(live, done)  # type: ignore[arg-type]
                    except Overtaken:
                        self._sessions.drop(live)
                    finally:
                        live.lock.release()
        return await self.answer(asked.session_id, [Given(asked.id, value, None, usage)])

    def _is_free(self, live: Live, query: Query) -> bool:
        """Whether nothing but the answer to this query concerns the session now."""
        head = live.head
        return (
            query.kind is Kind.LLM
            and len(live.opened) == 1
            and head.due_at is None
            and head.state is State.PAUSED
            and not live.letters
            and not live.stale
            and getattr(live.execution, "keep", None) is None
        )

    async def answer(self, session_id: str, given: Sequence[Given], by: dict[str, JSON] | None = None) -> Status:
        """Take answers, hand them to the program, and say where the session stands."""

        async def act(live: Live) -> Status:
            await self._on_time(live)
            answers, late = map(live.kept, Door(live.id, live.head, live.opened, live.working).check(given, by))
            if late:
                record = await self._store.load(session_id)
                if record.head.revision != live.head.revision:
                    raise Overtaken(session_id, live.head.revision)
                for answer in late:
                    settle(session_id, record.head, answer, record.deliveries)
                if not answers:
                    return self._standing(live)
            rerun = [a for a in answers if live.opened[a.q].query.kind is Kind.CALL]
            if rerun:
                return await self._decided(live, answers)
            return self._after(live, await self._sessions.step(live, answers))

        try:
            return await self._moving(session_id, act)
        except ABSENT:
            return await self._post(session_id, given, by)
        except _Ended as ended:
            for answer in self._all_late(ended.record, given, by):
                settle(session_id, ended.record.head, answer, ended.record.deliveries)
            return finished(ended.record)

    async def _moving(self, session_id: str, act: Callable[[Live], Awaitable[T]], record: Record | None = None) -> T:
        """Act on a live session; raises `_Ended` if it has ended."""
        if self._sessions.cached(session_id) is None:
            record = record or await self._store.load(session_id, since=BEGUN)
            if record.head.ended:
                raise _Ended(await self._store.load(session_id))

        async def guarded(live: Live) -> T:
            if live.head.ended:
                raise _Ended(await self._store.load(session_id))
            if live.head.mail and processes.has_news(live):
                await self._read_mail(live)
            if live.head.ended:
                raise _Ended(await self._store.load(session_id))
            return await act(live)

        return await self._sessions.on(session_id, guarded, record)

    async def _decided(self, live: Live, answers: list[Answer]) -> Status:
        """A person said what to do about effects whose outcome is unknown."""
        plain_ones: list[Answer] = []
        for answer in answers:
            if live.opened[answer.q].query.kind is not Kind.CALL or answer.error is not None:
                plain_ones.append(answer)
            elif "rerun" in answer.value:
                await self._dispatch.again(live, answer.q)
            else:
                plain_ones.append(decided(answer))
        if plain_ones:
            return self._after(live, await self._sessions.step(live, plain_ones))
        return self._standing(live)

    def _all_late(self, record: Record, given: Sequence[Given], by: dict[str, JSON] | None) -> list[Answer]:
        late = []
        for one in given:
            if one.query_id is None:
                raise NoOpenQuery(record.birth.id, record.head.state)
            q = number(one.query_id)
            if q is None:
                raise UnknownQuery(record.birth.id, one.query_id)
            error = None if one.error is None else {"code": "error", "message": one.error}
            late.append(Answer(q, one.value, error, one.usage, by))
        return late

    async def _post(self, session_id: str, given: Sequence[Given], by: dict[str, JSON] | None) -> Status:
        """Take answers where the program is not: kept in the intake, and the session is ready."""
        while True:
            record = await self._store.load(session_id)
            head, opened = record.head, open_queries(record.deliveries)
            if head.ended:
                raise SessionEnded(session_id, head.state, "answered")
            kept = {letter.body["q"]: letter.body for letter in record.letters if letter.kind == "answer"}
            waiting = {q: entry for q, entry in opened.items() if q not in kept}
            working = {effect.q: effect.worker for effect in record.effects}
            answers, late = Door(session_id, head, waiting, working).check(given, by)
            for answer in late:
                if answer.q in kept:
                    old = msgspec.convert(kept[answer.q], Answer)
                    if not same_answer(old, answer):
                        settle(session_id, head, answer, [Delivery(0, 0, [old], [opened[answer.q].query])])
                else:
                    settle(session_id, head, answer, record.deliveries)
            remaining = len(answerable(waiting, working)) - len(answers)
            if not answers:
                return Accepted(SessionId(session_id), remaining)
            at = max(self._clock.now(), head.updated_at)
            change = Change(SessionId(session_id), head, closed=[answer.q for answer in answers], durable=True)
            change.letters = [Letter("answer", msgspec.to_builtins(answer), at) for answer in answers]
            if await self._landed(head, change, at, len(answers), State.RUNNING):
                return Accepted(SessionId(session_id), remaining)

    async def _landed(self, head: Head, change: Change, at: float, letters: int, state: State) -> bool:
        fence = head.revision
        head.revision, head.mail, head.updated_at, head.state = fence + 1, head.mail + letters, at, state
        try:
            await self._store.commit(change, fence)
        except Overtaken:
            return False
        live = self._sessions.cached(change.id)
        if live is not None:
            self._sessions.drop(live)
        self._sessions.poke()
        self._sessions.changed(change.id)
        return True

    # ---- what moves by itself

    async def pump(self, session_id: str, record: Record | None = None) -> bool:
        """Hand over whatever has come due or waits in the intake; returns whether the session lives on."""

        async def act(live: Live) -> Status:
            await self._on_time(live)
            return self._standing(live)

        try:
            status = await self._moving(session_id, act, record)
        except _Ended:
            return False
        return not isinstance(status, Finished)

    async def pump_quietly(self, session_id: str) -> None:
        """Let a session go on if it can; what keeps it from going on is not the caller's concern."""
        try:
            if await self.pump(session_id):
                await self._dispatch.adopt(session_id)
        except ABSENT:
            pass

    async def _on_time(self, live: Live) -> None:
        """Fire the timers and expire the queries whose time was before now; others have turns of their own."""
        due, now = live.head.due_at, self._clock.now()
        while due is not None and due < now and not live.head.ended:
            answers = []
            for q, entry in live.expiring.items():
                expires = entry.query.expires_at
                if expires is not None and expires <= now:
                    answers.append(_expired(q, entry))
            fired = live.timer is not None and live.timer <= now
            await self._sessions.step(live, answers, fired=fired)
            if live.head.ended:
                raise _Ended(await self._store.load(live.id))
            due = live.head.due_at

    async def _read_mail(self, live: Live) -> None:
        for letter in list(live.letters):
            if live.head.ended or live.stale:
                return
            if letter.kind == "start":
                if live.head.n < 0:
                    await self._sessions.step(live, [], read=[letter.id])
            elif letter.kind == "cancel":
                await self._sessions.step(live, [], cancel=str(letter.body), read=[letter.id])
            elif letter.kind == "answer":
                answer = msgspec.convert(letter.body, Answer)
                if live.head.due_at is not None and live.head.due_at < letter.at:
                    await self._on_time(live)
                answers = live.kept([answer]) if answer.q in live.opened else []
                await self._sessions.step(live, answers, read=[letter.id])
            else:
                await processes.hear(self._sessions, live, letter)
        await processes.rest(self._sessions, live)

    # ---- signal, cancel

    async def signal(self, session_id: str, name: str, value: JSON) -> Status:
        """Send a message; kept until the program receives it."""
        value = plain(value, "the signal")

        async def act(live: Live) -> Status:
            await self._on_time(live)
            for q, entry in live.opened.items():
                if entry.query.kind is Kind.SIGNAL and entry.query.name == name:
                    door = Door(live.id, live.head, live.opened, live.working)
                    answers, _ = map(live.kept, door.check([Given(f"q-{q}", value)], None))
                    return self._after(live, await self._sessions.step(live, answers))
            raise _Keep

        try:
            return await self._moving(session_id, act)
        except _Ended as ended:
            raise SessionEnded(session_id, ended.record.head.state, "sent a signal") from None
        except (_Keep, *ABSENT):
            return await self._keep_signal(session_id, name, value)

    async def enter(self, session_id: str, act: Callable[[Live], Awaitable[T]]) -> T:
        """Act, alone, on a session whose time and mail are seen to; raises `SessionEnded`, and what `ABSENT` names."""

        async def on_time(live: Live) -> T:
            await self._on_time(live)
            return await act(live)

        try:
            return await self._moving(session_id, on_time)
        except _Ended as ended:
            raise SessionEnded(session_id, ended.record.head.state, "sent anything") from None

    async def _keep_signal(self, session_id: str, name: str, value: JSON) -> Status:
        while True:
            record = await self._store.load(session_id, since=-1)
            head = record.head
            if head.ended:
                raise SessionEnded(session_id, head.state, "sent a signal")
            opened = open_queries(record.deliveries)
            at = max(self._clock.now(), head.updated_at)
            letter = Letter("signal", {"name": name, "value": value}, at)
            for q, entry in opened.items():
                if entry.query.kind is Kind.SIGNAL and entry.query.name == name:
                    return await self._post(session_id, [Given(f"q-{q}", value)], None)
            change = Change(SessionId(session_id), head, letters=[letter], durable=True)
            if await self._landed(head, change, at, 1, head.state):
                return await self.status(session_id)

    async def cancel(self, session_id: str, reason: str) -> Status:
        """Stop a session. The program sees CancelledError once; its children are cancelled too."""

        async def act(live: Live) -> Status:
            return self._after(live, await self._sessions.step(live, [], cancel=reason))

        try:
            return await self._moving(session_id, act)
        except _Ended as ended:
            if ended.record.head.state is State.CANCELLED:
                return finished(ended.record)
            raise SessionEnded(session_id, ended.record.head.state, "cancelled") from None
        except ABSENT:
            return await self._cancel_unseen(session_id, reason)

    async def _cancel_unseen(self, session_id: str, reason: str) -> Status:
        """Cancel where the program is not: it never hears of it."""
        while True:
            record = await self._store.load(session_id, since=-1)
            if record.head.ended:
                return finished(await self._store.load(session_id))
            live = Live(record.birth, record.head, _Nothing())
            live.opened = open_queries(record.deliveries)
            live.letters = record.letters
            try:
                await self._sessions.end(live, Stopped(reason), cancel=reason)
            except Overtaken:
                continue
            return finished(await self._store.load(session_id))

    # ---- the journal as a tape

    async def retry(self, session_id: str) -> Status:
        """Go on from a failed session's last answer, under the code as it is now."""

        async def attempt() -> Status:
            record = await self._store.load(session_id, since=BEGUN)
            moved(record.head.state, Event.RETRIED)
            last = len(record.deliveries) - 1
            while last > 0 and (notes := record.deliveries[last].notes) is not None and notes.retry:
                last -= 1
            before = Record(record.birth, record.head, record.deliveries[:last], record.letters, [])
            live = await rebuild(before, self._sessions.host, recount=True)
            async with live.lock:
                said = await self._sessions.retry(live, record.deliveries[last], await self._ended_children(live))
                if said.outcome is None:
                    self._sessions.keep(live)
                    ended = await self._ended_children(live)  # one may have ended just now
                    if ended:
                        said = await self._sessions.step(live, ended)
                return self._after(live, said)

        return await self._sessions.insisting(attempt)

    async def _ended_children(self, live: Live) -> list[Answer]:
        """The ends of children that came while their parent was failed."""
        children = [
            entry
            for entry in live.opened.values()
            if entry.query.kind is Kind.SESSION and not processes.is_deed(entry.query)
        ]
        ends = [await end_of(self._store, live.birth, entry) for entry in children]
        return [end for end in ends if end is not None]

    async def fork(self, session_id: str, birth: Birth, at: int | None, given: Given | None) -> Status:
        """A new session that shares this one's journal up to step `at`; with an answer, that step's is replaced."""
        record = await self._store.load(session_id)
        deliveries = record.deliveries
        before = [one.n for one in deliveries[:-1] if given is not None or not _ends(one)]  # each retry ended, too
        last = max(before, default=-1) if _ends(deliveries[-1]) else record.head.n
        cut = last if at is None else at
        if type(cut) is not int or not 0 <= cut <= record.head.n:
            raise BadStep(session_id, cut, f"it has steps 0 to {record.head.n}")
        if given is not None:
            given = msgspec.structs.replace(
                given, query_id=_answered_there(session_id, deliveries[cut], given.query_id)
            )
            cut -= 1
        elif _ends(deliveries[cut]):
            raise BadStep(session_id, cut, "it is the session's end; fork before it, or replace its answer")
        birth = msgspec.structs.replace(
            birth,
            origin=record.birth.id,
            origin_n=cut,
            seeds=[*record.birth.seeds, Seed(cut + 1, birth.seeds[0].seed)],
        )
        return await self._sessions.insisting(lambda: self._branch(birth, deliveries[: cut + 1], given))

    async def _branch(self, birth: Birth, shared: list[Delivery], given: Given | None) -> Status:
        head = Head(0, 0, State.RUNNING, birth.origin_n, 0, None, max(self._clock.now(), shared[-1].at), Metrics())
        live = await rebuild(Record(birth, head, shared, [], []), self._sessions.host, recount=True)
        answers = [] if given is None else [_instead(live, given)]
        async with live.lock:
            said = await self._sessions.branch(live, shared, answers)
            if said.outcome is None:
                self._sessions.keep(live)
            return self._after(live, said)

    async def delete(self, session_id: str) -> int:
        """Forget a session; returns how many steps are kept because a fork shares them."""
        while True:
            record = await self._store.load(session_id, since=-1)
            if record.birth.parent is not None and not record.head.ended:
                raise StillNeeded(session_id, f"its parent {record.birth.parent} waits for it", "Cancel it first.")
            try:
                kept = await self._store.delete(session_id, record.head.revision)
            except Overtaken:
                continue
            live = self._sessions.cached(session_id)
            if live is not None:
                self._sessions.drop(live)
            return kept

    # ---- where it stands

    async def status(self, session_id: str) -> Status:
        record = await self._store.load(session_id, since=-1)
        if record.head.ended:
            return finished(await self._store.load(session_id, since=record.head.n))
        opened = open_queries(record.deliveries)
        kept = {letter.body["q"] for letter in record.letters if letter.kind == "answer"}
        working = {effect.q: effect.worker for effect in record.effects}
        waiting = {q: entry for q, entry in opened.items() if q not in kept}
        referring = [entry.query for entry in waiting.values() if inquiry.by_reference(entry.query)]
        if referring and not all(query.q in working for query in referring):
            for query in await self._in_full(session_id, record.head.revision, referring):
                waiting[query.q] = msgspec.structs.replace(waiting[query.q], query=query)
        return standing(record.birth, record.head, waiting, working)

    async def _in_full(self, session_id: str, revision: int, queries: list[Query]) -> list[Query]:
        """Questions that the journal has by reference; the program knows them best, if it is here."""
        live = self._sessions.cached(session_id)
        if live is not None and not live.stale and live.head.revision == revision:
            return [inquiry.live(query, live.execution.effect(query.q)) for query in queries]
        return list(inquiry.read(queries, (await self._store.load(session_id)).deliveries).values())

    def _standing(self, live: Live) -> Status:
        effect, opened = live.execution.effect, live.opened
        for q, entry in live.opened.items():
            if inquiry.by_reference(entry.query) and q not in live.working:
                opened = {**opened, q: msgspec.structs.replace(entry, query=inquiry.live(entry.query, effect(q)))}
        return standing(live.birth, live.head, opened, live.working)

    def _after(self, live: Live, said: Said) -> Status:
        """Where a session stands after a step."""
        if said.outcome is not None:
            return Finished(live.id, said.outcome, stats(live.birth, live.head, live.record))
        if not said.asked and said.answered and live.opened:
            remaining = live.remaining()
            if remaining:
                return Accepted(live.id, remaining)
        return self._standing(live)

    async def wait(self, session_id: str, timeout: float | None, *, settled: bool = False) -> Status:
        """Wait until the session has ended or needs somebody outside.

        With `settled`, timers, children and other processes are not waited for: only this process's own work.
        """
        loop = asyncio.get_running_loop()
        deadline = None if timeout is None else loop.time() + timeout
        while True:
            with self._sessions.watched(session_id) as changed:  # from before it is looked at
                if not (settled and self._sessions.jobs.get(session_id)):
                    status = await self.status(session_id)
                    if settled or isinstance(status, Finished) or (isinstance(status, Paused) and status.queries):
                        return status
                left = None if deadline is None else deadline - loop.time()
                if left is not None and left <= 0:
                    return await self.status(session_id)
                await asyncio.wait([changed], timeout=left)


def standing(birth: Birth, head: Head, opened: dict[int, Opened], working: dict[int, str]) -> Status:
    """The status of a session that has not ended."""
    queries = tuple(OpenQuery(birth.id, entry.query, entry.at) for entry in answerable(opened, working))
    if head.state is State.RUNNING:
        if queries and not head.mail:
            return Paused(birth.id, queries, head.due_at, _busy(birth, opened, working))
        return Running(birth.id, _busy(birth, opened, working) or ("its program, to take an accepted answer",))
    return Paused(birth.id, queries, head.due_at, () if queries else _busy(birth, opened, working) or ("a timer",))


def _busy(birth: Birth, opened: dict[int, Opened], working: dict[int, str]) -> tuple[str, ...]:
    words = [f"{opened[q].query.kind} {opened[q].query.name}".strip() for q in working if q in opened]
    words += [
        f"child session {child_id(birth, entry)}" for entry in opened.values() if entry.query.kind is Kind.SESSION
    ]
    return tuple(words)


def finished(record: Record) -> Finished:
    """The status of a session that has ended, from its last delivery."""
    last = record.deliveries[-1].notes
    outcome: Outcome = last.outcome if last is not None and last.outcome is not None else Stopped("")
    recorded = dict(last.record) if last is not None else {}
    return Finished(record.birth.id, outcome, stats(record.birth, record.head, recorded))


def stats(birth: Birth, head: Head, recorded: dict[str, JSON]) -> dict[str, JSON]:
    elapsed = max(0, int((head.updated_at - birth.created_at) * 1000))
    return head.metrics.stats(elapsed, recorded, budget=birth.budget)


def _expired(q: int, entry: Opened) -> Answer:
    default = entry.query.default
    if default is msgspec.UNSET:
        return Answer(q, error={"code": "expired", "message": "nobody answered in time"}, expired=True)
    return Answer(q, default, expired=True)


def _instead(live: Live, given: Given) -> Answer:
    """An answer to put in the place of the recorded one; also a call's or a child's result can be replaced."""
    q = number(given.query_id or "")
    assert q is not None
    return Answer(q, fitted(live.opened[q].query, given.value))


def _ends(delivery: Delivery) -> bool:
    return delivery.notes is not None and delivery.notes.outcome is not None


def _answered_there(session_id: str, delivery: Delivery, query_id: str | None) -> str:
    """The query whose answer a fork replaces."""
    ids = [answer.id for answer in delivery.answers]
    if query_id is not None:
        if query_id in ids:
            return query_id
        raise BadStep(session_id, delivery.n, f"{query_id} was not answered there")
    if len(ids) == 1:
        return ids[0]
    if ids:
        raise BadStep(session_id, delivery.n, f"it has {len(ids)} answers; say which with query_id")
    raise BadStep(session_id, delivery.n, "nothing was answered there")


class _Ended(Exception):
    """The session has ended; carries what is known of it."""

    def __init__(self, record: Record) -> None:
        self.record = record


class _Keep(Exception):
    """Nobody waits for this signal yet."""


class _Nothing:
    """Stands in for the execution of a program that is not here."""

    def __getattr__(self, name: str) -> Any:
        return lambda *args: None
