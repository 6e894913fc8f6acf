"""Child sessions: their ids, their births, and the letters that report their outcome to the parent.

A *process* is a child session in the background: the parent does not wait for it and gets its news
as input.

Rules
  1. Queries about processes (begin, signal, stop, look) are answered within their step, like
     durable values, and committed with it. So each is done once, and replayed from the journal.
  2. A process reports its outcome, and any other news, in letters that are part of the commit that
     caused them. A letter answers the query that waits for it. Else it reaches an agent through its
     intake, and any other program as the signal `PROCESS_SIGNAL`. A crash neither loses nor repeats
     a letter.
  3. A process continues after its parent's turn, and after its parent returned or failed. It is
     cancelled by its parent, or with it.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256
from typing import Any, Final

import msgspec

from everhold.core.codec import JSON, dumps
from everhold.core.intake import IntakeItem, ItemKind, MergePolicy
from everhold.core.journal import AskedQuery, Delivery
from everhold.core.ledger import Ledger
from everhold.core.metrics import Metrics
from everhold.core.query import Kind, Query, QueryAnswer, Usage
from everhold.core.session import ENDED, Birth, Head, Seed, SessionId, SessionState
from everhold.core.status import Outcome, Raised, Returned, Stopped
from everhold.engine.journal_reader import read_outcome, read_steps
from everhold.engine.live_session import LiveSession
from everhold.errors import ChildFailed, UnknownSession
from everhold.ports.store import Change, Letter, SessionFilter, Store


def child_id(parent: Birth, entry: AskedQuery) -> SessionId:
    """The id of the child of a `session` query. A fork gets another child for the same query."""
    query = entry.query
    named: str = (query.options or {})["id"]
    if entry.n >= parent.seeds[-1].since:  # asked after the fork, or never forked
        return SessionId(named)
    drawn = sha256(f"{parent.id}/{query.key}".encode()).hexdigest()
    return SessionId(f"{named.rpartition('-')[0]}-{drawn[:24]}")


def make_awaited_child_birth(parent: Birth, entry: AskedQuery, at: float) -> tuple[Birth, Head]:
    """The birth of the child of a `session` query."""
    return make_child_birth(parent, entry.query, child_id(parent, entry), at)


def make_child_birth(
    parent: Birth, query: Query, session_id: SessionId, at: float, wakes: str = ""
) -> tuple[Birth, Head]:
    """The birth of a child. The last part of its id is its random seed."""
    options = query.options or {}
    birth = Birth(
        id=session_id,
        program=query.name,
        version=options.get("version", 1),
        args=query.args or {},
        created_at=at,
        seeds=[Seed(0, session_id.rpartition("-")[2])],
        title=options.get("title", ""),
        labels=parent.labels,
        python=parent.python,
        everhold=parent.everhold,
        parent=parent.id,
        parent_query=query.q,
        wakes=wakes,
        llm=parent.llm,
        variables=parent.variables,
    )
    return birth, Head(0, 1, SessionState.RUNNING, -1, 0, None, at, Metrics())


def sum_answer_usage(deliveries: Iterable[Delivery]) -> Usage | None:
    """The total usage of the answers of a session."""
    found = Ledger()
    for step in read_steps(deliveries):
        for one in step.answered:
            found.add("", one.answer.usage)
    return found.usage


def make_child_answer(birth: Birth, outcome: Outcome, cost: Usage | None = None) -> dict[str, JSON]:
    """A child's outcome as the answer of its parent's query, with the child's usage."""
    q = birth.parent_query
    if cost is not None:
        return {**make_child_answer(birth, outcome), "usage": msgspec.to_builtins(cost)}
    if isinstance(outcome, Returned):
        return {"q": q, "value": outcome.value}
    state = "failed" if isinstance(outcome, Raised) else "was cancelled"
    words = outcome.error if isinstance(outcome, Raised) else outcome.reason
    answer: dict[str, JSON] = {
        "q": q,
        "error": {"code": "child_failed", "message": words, "session_id": birth.id, "state": state},
    }
    if isinstance(outcome, Raised) and outcome.exception is not None:
        answer["exception"] = msgspec.to_builtins(outcome.exception)
    return answer


async def load_child_answer(store: Store, parent: Birth, entry: AskedQuery) -> QueryAnswer | None:
    """The answer to a `session` query, if its child has ended. The answer for a deleted child is an
    error.
    """
    session_id = child_id(parent, entry)
    try:
        child = await store.load(session_id)
    except UnknownSession:
        gone = {
            "message": "its outcome is unknown",
            "session_id": session_id,
            "state": "was deleted",
        }
        return QueryAnswer(entry.query.q, error={"code": ChildFailed.code, **gone})
    if not child.head.ended:
        return None
    outcome = read_outcome(child.deliveries) or Stopped("")
    return msgspec.convert(
        make_child_answer(child.birth, outcome, sum_answer_usage(child.deliveries)), QueryAnswer
    )


#: The signal that carries news of processes to their parent.
PROCESS_SIGNAL: Final = "process"
#: How a parent gets the news of its processes: an agent by its intake, others by the signal.
WAKE_BY_INTAKE: Final = "intake"
WAKE_BY_SIGNAL: Final = "signal"
#: Characters of a process's result that an agent gets as input.
MAX_NEWS_CHARS: Final = 8000


class ProcessActions:
    """Answers the queries about processes within one step."""

    def __init__(self, store: Store, live: LiveSession, at: float) -> None:
        self._store = store
        self._live = live
        self._at = at
        self.births: list[tuple[Birth, Head]] = []
        self.letters: list[Letter] = []

    async def answer(self, query: Query) -> QueryAnswer:
        """Answer a query. `births` and `letters` collect what the commit of the step must write."""
        options: dict[str, Any] = query.options or {}
        match options["do"]:
            case "begin":
                return QueryAnswer(query.q, self._begin(query, options))
            case "tell":
                return QueryAnswer(query.q, self._tell(query))
            case "list":
                return QueryAnswer(
                    query.q, [_shown(birth, state) for birth, state in await self._all()]
                )
        return await self._about(query, options)

    def _begin(self, query: Query, options: dict[str, Any]) -> JSON:
        parent = self._live.birth
        drawn = sha256(f"{parent.id}/{query.key}/{query.q}".encode()).hexdigest()[:24]
        session_id = SessionId(f"s-{int(self._at * 1e9):016x}-{drawn}")
        self.births.append(make_child_birth(parent, query, session_id, self._at, options["wakes"]))
        self.letters.append(Letter("start", None, self._at, to=session_id))
        return session_id

    def _tell(self, query: Query) -> bool:
        birth = self._live.birth
        if birth.parent is None:
            return False
        self.letters.append(_letter(birth, query.q, {"said": query.args}, self._at))
        return True

    async def _about(self, query: Query, options: dict[str, Any]) -> QueryAnswer:
        """Look at, signal or stop one process."""
        known = {str(birth.id): (birth, state) for birth, state in await self._all()}
        found = known.get(options["process"])
        if found is None:
            words = f"{options['process']!r} is not a process of this session"
            return QueryAnswer(query.q, error={"code": "unknown_process", "message": words})
        birth, state = found
        if options["do"] == "look":
            return QueryAnswer(
                query.q, {**_shown(birth, state), **await self._came_to(birth, state)}
            )
        if state in ENDED:
            return QueryAnswer(query.q, False)
        if options["do"] == "signal":
            letter = Letter(
                "signal", {"name": query.name, "value": query.args}, self._at, to=birth.id
            )
        else:
            letter = Letter(
                "cancel", str(query.args or f"{self._live.id} stopped it"), self._at, to=birth.id
            )
        self.letters.append(letter)
        return QueryAnswer(query.q, True)

    async def _all(self) -> list[tuple[Birth, SessionState]]:
        """The processes of a session, oldest first, including those that this step begins."""
        found = await list_child_processes(self._store, self._live.id)
        return [*found, *((birth, head.state) for birth, head in self.births)]

    async def _came_to(self, birth: Birth, state: SessionState) -> dict[str, JSON]:
        if state not in ENDED:
            return {}
        outcome = read_outcome((await self._store.load(birth.id)).deliveries)
        return {} if outcome is None else _end(outcome)


async def list_child_processes(
    store: Store, session_id: SessionId, states: tuple[SessionState, ...] = ()
) -> list[tuple[Birth, SessionState]]:
    """The processes of a session, oldest first."""
    return [found for found in await _children(store, session_id, states) if found[0].wakes]


async def _children(
    store: Store, session_id: SessionId, states: tuple[SessionState, ...]
) -> list[tuple[Birth, SessionState]]:
    found: list[tuple[Birth, SessionState]] = []
    last: SessionId | None = None
    while page := await store.list(
        SessionFilter(parent=session_id, state=states, limit=500, after=last)
    ):
        found += [(row.birth, row.head.state) for row in page]
        last = page[-1].birth.id
    return sorted(found, key=lambda each: (each[0].created_at, each[0].parent_query))


async def make_cancel_letters(store: Store, session_id: SessionId, at: float) -> list[Letter]:
    """Cancel letters to all running children of a session."""
    alive = await _children(store, session_id, (SessionState.RUNNING, SessionState.PAUSED))
    return [
        Letter("cancel", f"its parent {session_id} was cancelled", at, to=birth.id)
        for birth, _ in alive
    ]


def is_process_query(query: Query) -> bool:
    """Whether a query is about processes. Such a query is answered within its step."""
    return query.kind is Kind.SESSION and query.options is not None and "do" in query.options


# ---- letters to the parent


def make_end_letter(live: LiveSession, outcome: Outcome, at: float) -> Letter:
    """The letter that reports a child's outcome to its parent."""
    if not live.birth.wakes:
        cost = live.execution.spent
        told = make_child_answer(live.birth, outcome, None if cost is None else cost.usage)
        return Letter("answer", told, at, to=live.birth.parent)
    return _letter(live.birth, "end", _end(outcome), at)


def _letter(birth: Birth, event: str | int, news: dict[str, JSON], at: float) -> Letter:
    told: JSON = {"process": birth.id, "title": birth.title or _name(birth), "event": event, **news}
    if birth.wakes == WAKE_BY_INTAKE:
        return Letter("wake", told, at, to=birth.parent)
    return Letter("signal", {"name": PROCESS_SIGNAL, "value": told}, at, to=birth.parent)


def _end(outcome: Outcome) -> dict[str, JSON]:
    if isinstance(outcome, Returned):
        return {"state": "completed", "value": outcome.value}
    if isinstance(outcome, Raised):
        return {"state": "failed", "error": outcome.error}
    return {"state": "cancelled", "error": outcome.reason}


def _shown(birth: Birth, state: SessionState) -> dict[str, JSON]:
    return {
        "process": birth.id,
        "title": birth.title or _name(birth),
        "program": birth.program,
        "state": state.value,
    }


def _name(birth: Birth) -> str:
    return birth.program.rpartition(":")[2]


# ---- delivery in the parent


def make_end_signal_name(process: str) -> str:
    """The name of the signal that waits for the end of one process."""
    return f"{PROCESS_SIGNAL}:{process}"


def read_signal_values(letter: Letter, name: str) -> list[JSON]:
    """The value of a letter for a signal of this name, as a list of one, or an empty list."""
    body: Any = letter.body
    if letter.kind == "signal" and body["name"] == name:
        return [body["value"]]
    news = (
        body
        if letter.kind == "wake"
        else body["value"]
        if letter.kind == "signal" and body["name"] == PROCESS_SIGNAL
        else None
    )
    if (
        isinstance(news, dict)
        and news.get("event") == "end"
        and name == make_end_signal_name(str(news.get("process")))
    ):
        return [news]
    return []


def has_relevant_letters(live: LiveSession) -> bool:
    """Whether any letter can be delivered now. Signals that the program does not wait for
    cannot.
    """
    if live.head.state is SessionState.RUNNING and not live.working:
        return True
    return any(
        letter.kind != "signal" or _match_signal(live, letter) is not None
        for letter in live.letters
    )


def _match_signal(live: LiveSession, letter: Letter) -> QueryAnswer | None:
    for q, entry in live.opened.items():
        if entry.query.kind is Kind.SIGNAL and (
            found := read_signal_values(letter, entry.query.name)
        ):
            return QueryAnswer(q, found[0])
    return None


async def deliver_signal_letter(sessions: Any, live: LiveSession, letter: Letter) -> None:
    """Deliver a signal or news to the query that waits for it. News for an agent goes into its
    intake.
    """
    if letter not in live.letters:
        return  # an earlier step has delivered it
    answer = _match_signal(live, letter)
    if answer is not None:
        answers = live.kept([answer])
        live.letters.remove(letter)  # first, because the program may ask for the next one
        await sessions.step(live, answers, read=[letter.id])
    elif letter.kind == "wake":
        item = make_wake_item(letter.body)
        await _commit_silently(
            sessions.store, live, [letter.id], lambda intake: intake.enqueue(item)
        )


async def pause_if_idle(sessions: Any, live: LiveSession) -> None:
    """Set a session back to paused if its only letters are signals that it does not wait for
    yet.
    """
    head = live.head
    idle = head.state is SessionState.RUNNING and not (live.stale or live.working)
    if idle and all(letter.kind == "signal" for letter in live.letters):
        await _commit_silently(sessions.store, live, [], None)


async def _commit_silently(store: Store, live: LiveSession, read: list[int], intake: Any) -> None:
    """Commit a change that the program does not see."""
    head = live.head
    fence = live.head.revision
    live.letters = [letter for letter in live.letters if letter.id not in read]
    head.revision, head.mail = fence + 1, head.mail - len(read)
    busy = live.working or any(letter.kind != "signal" for letter in live.letters)
    head.state = SessionState.RUNNING if busy else SessionState.PAUSED
    try:
        await store.commit(Change(live.id, head, read=read, intake=intake), fence)
    except BaseException:
        live.drop()
        raise


def make_wake_item(news: Any) -> IntakeItem:
    """News of a process as an item for the intake of its parent."""
    said = news.get("said") if "said" in news else news.get("value", news.get("error"))
    text = said if isinstance(said, str) else dumps(said)
    shown = (
        text
        if len(text) <= MAX_NEWS_CHARS
        else f"{text[:MAX_NEWS_CHARS]} … (cut: it has {len(text)} characters)"
    )
    verb = "says" if "said" in news else news["state"]
    body: JSON = {
        "origin": f"process {news['process']}",
        "content": f"{news['title']} {verb}: {shown}",
        "news": news,
    }
    id = f"{PROCESS_SIGNAL}:{news['process']}:event:{news['event']}"
    return IntakeItem(id, ItemKind.WAKE, body, slot=MergePolicy.JOIN, merge=PROCESS_SIGNAL)
