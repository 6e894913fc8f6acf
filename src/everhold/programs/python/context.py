"""`ctx` of Python programs: each verb makes a query, or returns a value that replay repeats.

`PythonChild` is a child session that its parent awaits, `PythonProcess` one in the background.

Rule: arguments are checked before they are recorded. A query is encoded without checks and decoded
by its types, so a wrong type would be written and could never be read again. The error is raised in
the program, and replay repeats it.
"""

from __future__ import annotations

import asyncio
import datetime
import functools
import random
import re
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from hashlib import sha256
from pathlib import Path
from threading import get_ident
from typing import TYPE_CHECKING, Any, Final, NoReturn

import msgspec

from everhold.core.codec import JSON, to_plain
from everhold.core.graph import Node
from everhold.core.journal import DeliveryNotes
from everhold.core.model_settings import parse_model_settings
from everhold.core.progress import LOGGED, LogEntry, Progress
from everhold.core.query import MAX_TOKENS, METERED, ON_UNAVAILABLE, Kind, Query, Rerun, Usage
from everhold.core.retry import MAX_SECONDS, Retry, parse_retry
from everhold.core.schema import describe_misfit, encode_value_as, schema_of
from everhold.core.turn import SettledTurn
from everhold.core.unknown_names import checks_keywords, list_keyword_names
from everhold.errors import (
    AfterCancel,
    BadArguments,
    BadSetting,
    BadValue,
    CannotRestart,
    ForeignCall,
)
from everhold.ports.answerer import check_on_unavailable
from everhold.ports.program import Call, Program, ProgramEffect
from everhold.ports.signature import get_return_type
from everhold.programs.python.event_loop import (
    DeterministicFuture,
    DeterministicLoop,
    DeterministicTask,
    current_task,
)

if TYPE_CHECKING:
    from everhold.programs.python.execution import PythonExecution


_LIMIT: Final = 2**63
_NEVER: Final = float("inf")


def check_ctx_string(value: Any, what: str) -> str:
    if type(value) is not str:
        raise BadValue(what, f"{type(value).__name__} is not text")
    to_plain(value, what)
    return value


def check_ctx_name(value: Any, what: str) -> str:
    """A name; a subclass of str, such as a StrEnum member, becomes a plain str."""
    if not isinstance(value, str):
        raise _misfit(what, "text", value)
    return check_ctx_string(str.__str__(value), what)


def check_ctx_integer(value: Any, what: str) -> int:
    """An integer of 64 bits: larger ones cannot be stored."""
    if isinstance(value, bool) or not isinstance(value, int) or not -_LIMIT <= value < _LIMIT:
        raise _misfit(what, "a whole number of 64 bits", value)
    return int(value)


def check_ctx_flag(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise _misfit(what, "True or False", value)
    return value


def check_ctx_seconds(value: Any, what: str) -> float | None:
    """Seconds to wait; None and infinity mean no limit."""
    if value is None or value == _NEVER:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < _LIMIT:
        raise _misfit(what, "a number of seconds", value)
    return value


def check_ctx_timeout(value: Any) -> float:
    """The seconds of one attempt, as they are stored. Infinity is a limit, too: it lifts the
    default.
    """
    seconds = check_ctx_seconds(value, "timeout")
    return MAX_SECONDS if seconds is None else min(seconds, MAX_SECONDS)


def check_ctx_retry(value: Any) -> Retry | None:
    try:
        return parse_retry(value)
    except BadSetting as error:
        raise BadArguments("ctx", f"{error.name}: {error.reason}") from None


def parse_ctx_rerun(value: Any) -> Rerun:
    try:
        return Rerun(value)
    except ValueError:
        raise _misfit("rerun", ", ".join(Rerun), value) from None


def _misfit(what: str, expected: str, value: object) -> BadArguments:
    shown = (
        repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
    )
    return BadArguments("ctx", f"{what} must be {expected}, not {shown[:80]}")


_ENDED: Final = ("completed", "failed", "cancelled")


class PythonChild:
    """A child session that can be awaited."""

    def __init__(self, session_id: str, pending: asyncio.Future[Any]) -> None:
        self.session_id = session_id
        self._pending = pending

    @property
    def usage(self) -> Usage | None:
        """Usage of the child when it has ended; None before, or if none was reported."""
        return getattr(self._pending, "usage", None)

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield from self._pending.__await__())


class PythonProcess:
    """A child session in the background."""

    def __init__(self, context: PythonContext, session_id: str) -> None:
        self.session_id = session_id
        self._context = context

    async def wait(self, timeout: float | None = None) -> dict[str, Any]:
        found = await self.look()
        if found["state"] not in _ENDED:
            _, found = await self._context.put(
                Kind.SIGNAL, name=f"process:{self.session_id}", timeout=timeout
            )
        return found

    async def look(self) -> dict[str, Any]:
        return dict(await self._do("look"))

    async def signal(self, name: str, value: JSON = None) -> bool:
        return bool(await self._do("signal", name=str(name), args=to_plain(value, "the signal")))

    async def cancel(self, reason: str = "") -> bool:
        return bool(await self._do("stop", args=str(reason)))

    async def _do(self, verb: str, **more: Any) -> Any:
        options: dict[str, JSON] = {"do": verb, "process": self.session_id}
        return (await self._context.put(Kind.SESSION, options=options, **more))[1]


_NONE: Any = msgspec.UNSET
_BOOLEAN = {"type": "boolean"}


class PythonContext:
    def __init__(self, execution: PythonExecution) -> None:
        self._execution = execution
        self._state = PythonState(self, "default")
        self.cost: Usage | None = None

    @property
    def session_id(self) -> str:
        return self._execution.birth.id

    @property
    def state(self) -> PythonState:
        return self._state

    # ---- queries

    async def llm(self, prompt: str = "", **options: Any) -> Any:
        # The fast path of a plain prompt: one query per step makes this the hottest call here.
        execution = self._execution
        if (
            options
            or type(prompt) is not str
            or not prompt.isascii()
            or execution.budget is not None
        ):
            return await self._ask_llm(prompt, **options)
        task = self._task()
        key = f"{task.path}:{task.asked}"
        task.asked += 1
        execution.llm_asked += 1
        return await execution.ask(Query(execution.next_q(), key, prompt), None)

    def _ask_llm(
        self,
        prompt: str = "",
        *,
        returns: Any = None,
        messages: Sequence[Mapping[str, Any]] | None = None,
        system: str | None = None,
        max_tokens: int = MAX_TOKENS,
        grounded: bool = False,
        underspecified: bool = False,
        to: str | None = None,
        retry: Retry | None = None,
        timeout: float | None = None,
        total_timeout: float | None = None,
        default: Any = _NONE,
        model: str | Sequence[str] | None = None,
        on_unavailable: str | None = None,
        **settings: Any,
    ) -> DeterministicFuture:
        execution = self._execution
        task = self._task()
        options = self._parse_settings(settings) if settings else {}
        if model is not None:
            options["model"] = _check_model(model)
        if on_unavailable is not None:
            options[ON_UNAVAILABLE] = check_on_unavailable(on_unavailable)
        if total_timeout is not None:
            total_timeout = check_ctx_seconds(total_timeout, "total_timeout")
        if retry is not None:
            retry = check_ctx_retry(retry)
        if timeout is not None:
            timeout = check_ctx_timeout(timeout)
            policy = retry or execution.retry
            is_only = to is not None or policy is None or policy.attempts == 1
            if total_timeout is None and is_only and timeout < MAX_SECONDS:
                total_timeout = timeout  # the only attempt begins now, also one made elsewhere
                timeout = None
        if execution.budget is not None:
            self._within_budget(1)
        if type(prompt) is not str or not prompt.isascii():
            check_ctx_string(prompt, "the prompt")
        if system is not None:
            check_ctx_string(system, "system")
        if max_tokens is not MAX_TOKENS or grounded is not False or underspecified is not False:
            max_tokens = check_ctx_integer(max_tokens, "max_tokens")
            check_ctx_flag(grounded, "grounded")
            check_ctx_flag(underspecified, "underspecified")
        query = Query(
            execution.next_q(),
            f"{task.path}:{task.asked}",
            prompt,
            Kind.LLM,
            None
            if messages is None
            else to_plain([dict(message) for message in messages], "messages"),
            system,
            max_tokens,
            grounded,
            underspecified,
            options or None,
            to=None if to is None else check_ctx_name(to, "to"),
            schema=None if returns is None else _schema(returns),
            expires_at=None if total_timeout is None else self._after(total_timeout),
            default=_NONE if default is _NONE else encode_value_as(default, returns, "default"),
            retry=retry,
            timeout=timeout,
        )
        task.asked += 1
        execution.llm_asked += 1
        return execution.ask(query, returns)

    def _parse_settings(self, given: dict[str, Any]) -> dict[str, JSON]:
        """The settings of a model question; raises `BadArguments`."""
        try:
            return parse_model_settings("ctx.llm", given, also=_LLM_KEYWORDS)
        except BadArguments:
            # Earlier versions recorded any option; such a question is replayed as it was asked.
            recorded = self._execution.get_recorded_query()
            known = {} if recorded is None else recorded.options or {}
            if any(name not in known or known[name] != given[name] for name in given):
                raise
            return dict(given)

    async def llm_batch(
        self, items: Sequence[str | Mapping[str, Any]], **options: Any
    ) -> list[Any]:
        if not items or isinstance(items, str):
            raise BadArguments("ctx.llm_batch", "items must be a list with at least one prompt")
        if self._execution.budget is not None:
            self._within_budget(len(items))
        asked: list[DeterministicFuture] = []
        try:
            for item in items:
                own = {"prompt": item} if isinstance(item, str) else dict(item)
                asked.append(self._ask_llm(**{**options, **own}))
            return [await future for future in asked]
        except BaseException:
            for future in asked:
                future.cancel()
            raise

    @checks_keywords("ctx.approval")
    async def approval(
        self,
        prompt: str,
        *,
        to: str | None = None,
        timeout: float | None = None,
        default: Any = _NONE,
    ) -> bool:
        query = self._query(
            Kind.APPROVAL,
            prompt=check_ctx_string(prompt, "prompt"),
            to=to,
            schema=_BOOLEAN,
            timeout=timeout,
            default=default,
        )
        return bool(await self._execution.ask(query, bool))

    @checks_keywords("ctx.input")
    async def input(
        self,
        prompt: str,
        *,
        returns: Any = None,
        to: str | None = None,
        timeout: float | None = None,
        default: Any = _NONE,
    ) -> Any:
        schema = None if returns is None else _schema(returns)
        query = self._query(
            Kind.INPUT,
            prompt=check_ctx_string(prompt, "prompt"),
            to=to,
            schema=schema,
            timeout=timeout,
            default=default,
        )
        return await self._execution.ask(query, returns)

    @checks_keywords("ctx.receive")
    async def receive(
        self, name: str, *, returns: Any = None, timeout: float | None = None, default: Any = _NONE
    ) -> Any:
        schema = None if returns is None else _schema(returns)
        named = check_ctx_string(name, "name")
        query = self._query(
            Kind.SIGNAL, name=named, schema=schema, timeout=timeout, default=default
        )
        return await self._execution.ask(query, returns)

    async def call(
        self,
        function: Callable[..., Any],
        *args: Any,
        rerun: str = "safe",
        retry: Retry | None = None,
        timeout: float | None = None,
        total_timeout: float | None = None,
        **kwargs: Any,
    ) -> Any:
        if not callable(function):
            raise BadArguments("ctx.call", f"{function!r} is not a function")
        if isinstance(function, Program):
            raise BadArguments(
                "ctx.call",
                f"{function.name} is a program; run it with ctx.run({function.name}(…))",
            )
        if asyncio.iscoroutine(function):
            raise BadArguments(
                "ctx.call",
                "pass the function and its arguments, as in ctx.call(f, x), not the coroutine f(x)",
            )
        query = self._query(
            Kind.CALL,
            name=_get_call_name(function),
            args=_show_arguments(args, kwargs),
            rerun=parse_ctx_rerun(rerun),
            timeout=(
                None if total_timeout is None else check_ctx_seconds(total_timeout, "total_timeout")
            ),
            retry=None if retry is None else check_ctx_retry(retry),
            attempt_timeout=None if timeout is None else check_ctx_timeout(timeout),
        )
        effect = ProgramEffect(function, *args, **kwargs)
        return await self._execution.ask(query, _get_result_type(function), effect)

    async def sleep(self, seconds: float) -> None:
        if self._execution.cancelled and not self._execution.loop.dropped:
            raise AfterCancel("sleep")
        await asyncio.sleep(seconds)

    # ---- the verbs of agents (ports.context.AgentContext)

    async def put(
        self,
        kind: Kind,
        effect: Callable[[], Any] | None = None,
        *,
        name: str = "",
        args: JSON = None,
        prompt: str = "",
        schema: dict[str, JSON] | None = None,
        options: dict[str, JSON] | None = None,
        rerun: Rerun = Rerun.SAFE,
        timeout: float | None = None,
        to: str | None = None,
        retry: Retry | None = None,
        attempt_timeout: float | None = None,
    ) -> tuple[int, Any]:
        if kind in METERED:
            if self._execution.budget is not None:
                self._within_budget(1)
            self._execution.llm_asked += 1
        query = self._query(
            kind,
            prompt=prompt,
            name=name,
            args=args,
            schema=schema,
            options=options,
            rerun=rerun,
            timeout=timeout,
            to=to,
            retry=retry,
            attempt_timeout=attempt_timeout,
        )
        pending: Any = self._execution.ask(query, None, effect)
        try:
            return query.q, await pending
        finally:
            self.cost = getattr(pending, "usage", None)

    def keep_with(self, keep: Callable[[JSON], JSON]) -> None:
        self._execution.keep = keep

    def note(
        self,
        *nodes: Node,
        leaf: str | msgspec.UnsetType | None = msgspec.UNSET,
        settled: SettledTurn | None = None,
    ) -> None:
        execution = self._execution
        if execution.silent:
            return
        notes = execution.notes
        notes.nodes = [*notes.nodes, *nodes]
        if leaf is not msgspec.UNSET:
            notes.leaf = leaf
        if settled is not None:
            notes.settled = settled

    def recorded(self) -> DeliveryNotes | None:
        execution = self._execution
        if not execution.replaying:
            return None
        recorded = execution.recorded
        return (None if recorded is None else recorded.notes) or DeliveryNotes()

    def fact(self, name: str, value: JSON, default: JSON = None) -> JSON:
        execution = self._execution
        recorded = self.recorded()
        if recorded is not None:
            execution.facts.update(recorded.facts)
        elif execution.facts.get(name, default) != value and not execution.silent:
            execution.facts[name] = execution.notes.facts[name] = value
        return execution.facts.get(name, default)

    def after(self, effect: Callable[[], Any]) -> None:
        if not self._execution.silent:
            self._execution.after.append(effect)

    @property
    def parent(self) -> str | None:
        return self._execution.birth.parent

    # ---- other programs

    async def run(self, call: Call[Any]) -> Any:
        # The program runs in the same task, so its queries get a path of their own for that time.
        task = self._task()
        outer = task.path
        ordinal = task.asked
        task.asked += 1
        counters = task.made, task.asked, task.drawn
        task.path = f"{outer}/{ordinal}"
        task.made = 0
        task.asked = 0
        task.drawn = 0
        body: Any = _check_call(call).program.body
        try:
            return await body(self, **call.program.arguments(call.args))
        finally:
            task.path = outer
            task.made, task.asked, task.drawn = counters

    async def restart(self, /, **args: Any) -> NoReturn:
        execution = self._execution
        task = self._task()
        if not execution.loop.dropped:
            if execution.cancelled:
                raise AfterCancel("restart")
            if "/" in task.path:
                raise CannotRestart(
                    "the program was run by another one with ctx.run, and shares its session"
                )
            execution.begin_again(execution.program.bind((), args))
        # A future that never completes: the program runs no further.
        await DeterministicFuture(execution.loop)
        raise AssertionError("unreachable")

    def spawn(self, call: Call[Any], *, title: str = "") -> PythonChild:
        return self._spawn(call, title=check_ctx_name(title, "title"))[1]

    async def delegate(
        self, call: Call[Any], *, title: str = "", source: str = ""
    ) -> tuple[int, Any]:
        q, child = self._spawn(call, title=title, source=source, bound=True)
        try:
            return q, await child
        finally:
            self.cost = child.usage

    def _spawn(self, call: Call[Any], **more: Any) -> tuple[int, PythonChild]:
        execution = self._execution
        program = _check_call(call).program
        query = self._query(Kind.SESSION, name=program.ref, args=call.args)
        child = self.child_id(query)
        options = {"version": program.version, "id": child, **more}
        query = msgspec.structs.replace(query, options={k: v for k, v in options.items() if v})
        return query.q, PythonChild(child, execution.ask(query, Any, child=call))

    async def background(self, call: Call[Any], *, title: str = "") -> PythonProcess:
        program = _check_call(call).program
        options = {
            "do": "begin",
            "wakes": "signal",
            "version": program.version,
            "title": _text(title),
        }
        _, found = await self.put(Kind.SESSION, name=program.ref, args=call.args, options=options)
        return PythonProcess(self, found)

    async def processes(self) -> list[dict[str, Any]]:
        return list((await self.put(Kind.SESSION, options={"do": "list"}))[1])

    async def tell(self, value: JSON) -> bool:
        return bool(
            (await self.put(Kind.SESSION, args=to_plain(value, "tell"), options={"do": "tell"}))[1]
        )

    def child_id(self, query: Query) -> str:
        drawn = sha256(f"{self._execution.seed()}/{query.key}".encode()).hexdigest()
        return f"s-{int(self._execution.loop.now * 1e9):016x}-{drawn[:24]}"

    # ---- values that replay repeats

    def now(self) -> datetime.datetime:
        return datetime.datetime.fromtimestamp(self._execution.loop.now, datetime.UTC)

    def rng(self) -> random.Random:
        return random.Random(self._draw_bytes())

    def random(self) -> float:
        return random.Random(self._draw_bytes()).random()

    def uuid(self) -> uuid.UUID:
        return uuid.UUID(bytes=self._draw_bytes()[:16], version=4)

    def _draw_bytes(self) -> bytes:
        # Derived from the session's seed and the position in the task: no state to record.
        task = self._task()
        key = f"{self._execution.seed()}/{task.path}~{task.drawn}"
        task.drawn += 1
        return sha256(key.encode()).digest()

    def version(self, name: str, number: int) -> int:
        execution = self._execution
        name = check_ctx_name(name, "name")
        number = check_ctx_integer(number, "number")
        known = execution.versions.get(name)
        if known is None:
            known = execution.recorded_versions.get(name, 1) if execution.replaying else number
            execution.versions[name] = known
            if not execution.silent:
                execution.notes.versions[name] = known
        return known

    # ---- verbs that do nothing on replay

    def log(self, message: str, level: str = "info") -> None:
        execution = self._execution
        if not execution.silent:
            entry = LogEntry(
                int(execution.loop.now * 1000), _text(level), "ctx.log", _text(message)
            )
            kept = execution.notes.log
            kept.append(entry)
            if len(kept) > LOGGED:
                del kept[0]

    def progress(self, step: int, total: int = 0, message: str | None = None) -> None:
        execution = self._execution
        step = check_ctx_integer(step, "step")
        total = check_ctx_integer(total, "total")
        if not execution.silent:
            execution.notes.progress = Progress(
                step, total, None if message is None else _text(message)
            )

    def record(self, name: str, value: JSON) -> None:
        execution = self._execution
        name, kept = check_ctx_name(name, "name"), to_plain(value, f"record {name!r}")
        execution.record[name] = kept
        if not execution.silent:
            execution.notes.record[name] = kept

    def budget_remaining(self) -> dict[str, int | None] | None:
        budget = self._execution.budget
        return None if budget is None else budget.remaining(**self._used())

    # ---- making a query

    def _query(
        self,
        kind: Kind,
        *,
        prompt: str = "",
        name: str = "",
        args: JSON = None,
        rerun: Rerun = Rerun.SAFE,
        to: str | None = None,
        schema: dict[str, JSON] | None = None,
        options: dict[str, JSON] | None = None,
        timeout: float | None = None,
        default: Any = _NONE,
        retry: Retry | None = None,
        attempt_timeout: float | None = None,
    ) -> Query:
        execution = self._execution
        task = self._task()
        if execution.cancelled and not execution.loop.dropped:
            raise AfterCancel(kind)
        key = f"{task.path}:{task.asked}"
        task.asked += 1
        return Query(
            execution.next_q(),
            key,
            prompt,
            kind,
            options=options,
            name=name,
            args=args,
            rerun=rerun,
            to=None if to is None else check_ctx_name(to, "to"),
            schema=schema,
            expires_at=None if timeout is None else self._after(timeout),
            default=_NONE if default is _NONE else to_plain(default, "default"),
            retry=retry,
            timeout=attempt_timeout,
        )

    def _task(self) -> DeterministicTask:
        loop = self._execution.loop
        task = current_task(loop) if loop.thread == get_ident() else None
        if type(task) is not DeterministicTask:
            # `finally` blocks of a dropped program run outside their task and may still use ctx.
            if loop.dropped and isinstance(asyncio._get_running_loop(), DeterministicLoop):
                dropped: DeterministicTask = _DROPPED_TASK
                return dropped
            raise ForeignCall("ctx", "cannot be used outside its own program")
        return task

    def _after(self, timeout: float) -> float | None:
        seconds = check_ctx_seconds(timeout, "timeout")
        return None if seconds is None else self._execution.loop.now + seconds

    def _within_budget(self, asking: int) -> None:
        budget = self._execution.budget
        assert budget is not None
        budget.check(asking, **self._used())

    def _used(self) -> dict[str, int]:
        execution = self._execution
        meter = self._execution.meter
        elapsed = max(0, int((execution.loop.now - execution.birth.created_at) * 1000))
        return {
            "llm_calls": meter.llm_calls + execution.llm_asked,
            "elapsed_ms": elapsed,
            "tokens": meter.tokens,
        }


#: The keywords of `ctx.llm` besides the settings of the model.
_LLM_KEYWORDS: Final = list_keyword_names(PythonContext._ask_llm)


class _DroppedTask:
    """Stands in for the task of a program that is being dropped; its counters are not used."""

    path = "-"
    made = asked = drawn = 0


_DROPPED_TASK: Any = _DroppedTask()


class PythonState:
    """Durable values of one namespace."""

    def __init__(self, context: PythonContext, namespace: str) -> None:
        if not check_ctx_name(namespace, "ctx.state") or any(
            part in namespace for part in ("/", "\\", "..", "\0")
        ):
            raise BadArguments("ctx.state", f"Invalid namespace: '{namespace}'")
        self._context = context
        self._namespace = namespace

    def __call__(self, namespace: str) -> PythonState:
        return PythonState(self._context, namespace)

    async def _do(self, verb: str, key: str = "", value: JSON = None) -> Any:
        args = {"in": self._namespace, "do": verb}
        if value is not None:
            args["value"] = to_plain(value, f"state {key!r}")
        query = self._context._query(Kind.STATE, name=check_ctx_string(key, "key"), args=args)
        return await self._context._execution.ask(query, None)

    async def get(self, key: str, default: JSON = None) -> JSON:
        found = await self._do("get", key)
        return default if found is None else found[0]

    async def has(self, key: str) -> bool:
        return await self._do("get", key) is not None

    async def set(self, key: str, value: JSON) -> None:
        await self._do("set", key, [value])

    async def delete(self, key: str) -> bool:
        return bool(await self._do("delete", key))

    async def keys(self) -> list[str]:
        return list(await self._do("keys"))

    async def set_nx(self, key: str, value: JSON) -> bool:
        return bool(await self._do("set_nx", key, [value]))

    async def incr(self, key: str, delta: float = 1, default: float = 0) -> float:
        found: float = await self._do("incr", key, [delta, default])
        return found

    async def update(self, key: str, change: Callable[[Any], JSON], default: JSON = None) -> JSON:
        found = await self._do("get", key)
        value = to_plain(change(default if found is None else found[0]), f"state {key!r}")
        await self._do("swap", key, [value])
        return value


def _check_call(call: Any) -> Call[Any]:
    if not isinstance(call, Call):
        raise BadArguments(
            "ctx", f"{call!r} is not a call; call the program, as in ctx.run(my_program(x=1))"
        )
    return call


def _check_model(model: Any) -> JSON:
    plain = list(model) if isinstance(model, Sequence) and not isinstance(model, str) else model
    if misfit := describe_misfit(plain, str | list[str]):
        raise BadArguments("ctx.llm", f"model {misfit}")
    return to_plain(plain, "model")


def _schema(returns: Any) -> dict[str, JSON]:
    schema: dict[str, JSON] = schema_of(returns)
    return schema


def _text(value: object) -> str:
    return str(value).encode("utf-8", "backslashreplace").decode()


#: The end of the names of modules that `packages.load` loaded from a file.
_FROM_FILE = re.compile(r"_[0-9a-f]{12}$")


def _get_call_name(function: Any) -> str:
    """The recorded name of a called function: equal whether its file is a script or a module."""
    inner = function.func if isinstance(function, functools.partial) else function
    module = getattr(inner, "__module__", None) or "?"
    code = getattr(inner, "__code__", None)
    if code is not None and (module == "__main__" or _FROM_FILE.search(module)):
        module = Path(code.co_filename).stem
    return f"{module}:{getattr(inner, '__qualname__', type(inner).__name__)}"


def _get_result_type(function: Any) -> Any:
    """The type in which a call's result is decoded: its return annotation, if it resolves."""
    inner = function.func if isinstance(function, functools.partial) else function
    found = get_return_type(inner)
    return None if found in (Any, type(None), str, int, float, bool, None) else found


def _show_arguments(args: tuple[Any, ...], kwargs: dict[str, Any]) -> JSON:
    """A call's arguments for people to read; a value that JSON cannot represent becomes text."""

    def one(value: Any) -> JSON:
        try:
            return to_plain(value)
        except BadValue:
            return _text(repr(value))[:200]

    shown: dict[str, JSON] = {}
    if args:
        shown["args"] = [one(value) for value in args]
    if kwargs:
        shown["kwargs"] = {name: one(value) for name, value in kwargs.items()}
    return shown or None
