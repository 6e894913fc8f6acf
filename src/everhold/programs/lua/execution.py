"""The execution of a Lua program in this process.

An execution has coroutines: the program, and each child of an `alc.fork`. Each has a Lua state of
its own and runs until it makes a query or ends; a coroutine with its answer resumes, whatever the
others wait for. The key of a query is made of the path of its coroutine: the program has path 0,
and the k-th child that coroutine t forks has path t.k.

Rules
  1. Answers are delivered in their order, and coroutines resume in the order in which their
     answers arrived.
  2. A batch resumes when all its answers have arrived, or with the first error; then its other
     queries are withdrawn.
  3. A fork resumes when all its children have ended. With `on_error` "abort", the first failure
     withdraws the queries of the other children.
  4. Values that a child records are stored under `<strategy>#<place>/<name>`, and are in the
     result of the fork as `stats`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from pathlib import Path
from time import process_time
from types import TracebackType
from typing import Any, Final

from everhold.core.budget import Budget
from everhold.core.codec import JSON
from everhold.core.journal import Delivery, DeliveryNotes, ProgramReply
from everhold.core.metrics import Metrics
from everhold.core.progress import LOGGED, LogEntry, Progress
from everhold.core.query import (
    MAX_TOKENS,
    Kind,
    Query,
    QueryAnswer,
    make_lua_namespace,
    make_own_namespace,
)
from everhold.core.session import Birth, get_budget
from everhold.core.status import Outcome, Raised, Returned, Stopped
from everhold.errors import AfterCancel, BudgetExceeded, Overtaken, Spinning, UnknownProgram
from everhold.ports.program import SHAPE_CHECK, Call
from everhold.programs.lua.error_frames import LUA_ERROR, read_lua_exception
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.protocol import LuaLimits, format_memory
from everhold.programs.lua.search_path import (
    clean_lua_source,
    find_lua_module,
    load_lua_source,
)
from everhold.programs.lua.values import (
    CARD_NAMESPACE,
    decode_lua_json,
    decode_lua_text,
    derive_lua_seed,
    encode_lua_ctx,
    encode_lua_json,
    encode_model_answer,
    format_answer_error,
    get_namespace_name,
)
from everhold.programs.lua.vm import (
    DEFAULT_CPU_SECONDS,
    DEFAULT_MEMORY_BYTES,
    OUT_OF_MEMORY,
    REPLAY_CPU_SECONDS,
    LuaVm,
    make_vm_opening,
)

#: Coroutines that an execution may have at once, and the memory of the smallest of them.
MAX_COROUTINES: Final = 64
_LEAST: Final = 8 * 2**20
_CARDS: Final = CARD_NAMESPACE.encode()
#: Characters of an error, and of its traceback, that are stored.
_LONGEST: Final = 20_000
#: Answers that are delivered together on replay.
_AT_ONCE: Final = 32

VmInput = tuple[Any, ...]


class LuaExecution:
    remote = False
    bare = True
    keep = None
    spent = None
    after = ()

    def __init__(
        self,
        program: LuaProgram,
        birth: Birth,
        meter: Metrics,
        *,
        memory: int = DEFAULT_MEMORY_BYTES,
        cpu: float = DEFAULT_CPU_SECONDS,
        again: float = REPLAY_CPU_SECONDS,
        limits: LuaLimits | None = None,
        allowed: Callable[[Path], object] | None = None,
        space: str = "",
    ) -> None:
        self.program = program
        self.birth = birth
        self.meter = meter
        self.replaying = False
        self.recorded: Delivery | None = None  # on replay: the recorded delivery
        self.recorded_versions: dict[str, int] = {}
        self.asked_count = 0
        self.n = -1
        self._limits = limits or LuaLimits(memory=memory, cpu=cpu)
        self._memory, self._cpu = self._limits.memory, self._limits.cpu
        self._again = max(self._cpu, again)
        # which packages may be required, if that is restricted
        self._allowed = allowed
        self._seen: tuple[int, dict[Path, bool]] = (-1, {})  # the results, and in which advance
        self._ctx = program.ctx(birth.args)
        # the namespace of the program; each child has its own
        self._space = space or make_lua_namespace(get_namespace_name(self._ctx))
        self.budget = get_budget(birth, meter)
        checks = birth.variables.get(SHAPE_CHECK)
        self._shape_check = None if checks is None else checks.encode()
        # counts here, for a budget that only the ctx has
        self._own: Metrics | None = None
        if birth.budget is None and "budget" in self._ctx:
            own = Budget.read(self._ctx["budget"])
            self._own = None if own is None else Metrics()
            self.budget = self.budget or own
        self._at = birth.created_at
        self._since = 0.0  # CPU time when this advance began, if it is measured
        self._seed = ""
        self._until: float = 0  # the delivery from which on another seed is used
        self._cancelled = self._dropped = False
        self._llm_asked = 0
        self._strands: list[LuaCoroutine] = []
        self._pending: dict[int, tuple[QueryWait, int]] = {}
        self._ready: list[tuple[LuaCoroutine, VmInput]] = []
        # the only open query, if there is no budget; it is not in `_pending`
        self._only: Query | None = None
        self._asked: list[Query] = []
        self._withdrawn: list[int] = []
        self._notes: DeliveryNotes | None = None
        self._outcome: Outcome | None = None

    # ---- the port

    def entered(self) -> LuaExecution:
        return self

    def __enter__(self) -> LuaExecution:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        pass

    def take_after(self) -> list[Callable[[], Any]]:
        return []

    def advance(
        self,
        n: int,
        at: float,
        answers: list[QueryAnswer],
        fired: bool,
        cancel: str | None,
        budget: Budget | None = None,
    ) -> ProgramReply:
        if self._dropped:
            raise Overtaken(self.birth.id, n)
        if budget is not None:
            self.budget = budget
        self.n = n
        self._at = at
        self._asked = []
        self._withdrawn = []
        self._notes = None
        self._llm_asked = 0
        self._since = 0.0
        only = self._only
        self._only = None
        try:
            if (
                only is not None
                and cancel is None
                and budget is None
                and len(answers) == 1
                and n < self._until
            ):
                answer = answers[0]
                if answer.q == only.q and answer.error is None:
                    strand = self._strands[0]
                    allowed = self._seconds if self.replaying else self._cpu
                    return self._next(
                        strand,
                        strand.vm.run(at, allowed, (True, encode_model_answer(answer.value))),
                    )
            if only is not None:
                self._await(self._strands[0], [only])
            self._move(answers, cancel)
        except BaseException:
            self.drop()
            raise
        return self._reply()

    def follow(
        self, recorded: Sequence[Delivery], place: int, last: int
    ) -> tuple[int, ProgramReply]:
        given = self._plain_answers(recorded[place : min(place + _AT_ONCE, last + 1)])
        try:
            taken, came = (
                self._strands[0].vm.go_along(self._seconds, given) if len(given) > 3 else (0, ())
            )
            if taken:
                strand = self._strands[0]
                place = place + taken - 1
                self.n = recorded[place].n
                self._at = recorded[place].at
                self._asked = []
                self._withdrawn = []
                self._since = 0.0
                self._only = None
                self.asked_count = self.asked_count + taken - 1
                strand.asked = strand.asked + taken - 1
                return place, self._next(strand, came)
        except BaseException:
            self.drop()
            raise
        one = recorded[place]
        return place, self.advance(one.n, one.at, one.answers, False, None)

    def _plain_answers(self, recorded: Sequence[Delivery]) -> list[Any]:
        """The arguments of `LuaVm.go_along` for the first deliveries that answer a plain prompt
        with plain text.
        """
        given: list[Any] = []
        if self._only is None:
            return given
        strand = self._strands[0]
        open_q = self._only.q
        for ahead, one in enumerate(recorded):
            answers = one.answers
            asked = one.asked
            if (
                len(answers) != 1
                or answers[0].q != open_q
                or answers[0].error is not None
                or one.n >= self._until
            ):
                break
            open_q = self.asked_count + ahead
            prompt = asked[0].prompt if asked else ""
            given += (one.at, encode_model_answer(answers[0].value), prompt.encode())
            if asked != [Query(open_q, f"{strand.path}:{strand.asked + ahead}", prompt)]:
                break
        return given

    def _next(self, strand: LuaCoroutine, came: VmInput) -> ProgramReply:
        """The common step: the only open query was answered, and the next one is mostly a plain
        prompt, too.
        """
        if came[1] == b"llm" and len(came) == 3 and not came[0]:
            q = self.asked_count
            asked = strand.asked
            self._only = Query(q, f"{strand.path}:{asked}", came[2].decode())
            self.asked_count = q + 1
            strand.asked = asked + 1
            return ProgramReply([self._only], [], None, None, None)
        self._listen(strand, strand.vm.supplied(came))
        self._drain()
        return self._reply()

    def _move(self, answers: list[QueryAnswer], cancel: str | None) -> None:
        self._since = process_time() if len(self._strands) > 1 else 0.0
        # A fork uses its own seed from its fork point on.
        seeds = self.birth.seeds
        seed = seeds[0].seed
        self._until = inf
        if len(seeds) > 1:
            seed = next(entry.seed for entry in reversed(seeds) if self.n >= entry.since)
            self._until = min((entry.since for entry in seeds if entry.since > self.n), default=inf)
        if seed != self._seed:
            self._seed = seed
            for strand in self._strands:
                strand.vm.seed(derive_lua_seed(seed, strand.path))
        if not self._strands and cancel is None:
            self._begin()
        for answer in answers:
            self._hand_over(answer)
        if cancel is not None:
            self._cancel(cancel)
        self._drain()
        if cancel is not None:
            self._outcome = Stopped(cancel)

    def _reply(self) -> ProgramReply:
        if self._outcome is not None:
            self.drop()
            return ProgramReply([], [], None, self._outcome, self._notes)
        if (
            self.budget is None
            and len(self._pending) == len(self._strands) == 1
            and not self._cancelled
        ):
            ((wait, place),) = self._pending.values()
            if len(wait.queries) == 1 and wait.queries[place].kind is Kind.LLM:
                self._only = wait.queries[place]
                wait.strand.waits = None
                self._pending.clear()
        elif self._own is not None:
            self._own.paused(self._asked)
        return ProgramReply(self._asked, self._withdrawn, None, None, self._notes)

    def effect(self, q: int) -> Callable[[], Any] | None:
        return None

    def child(self, q: int) -> Call[Any] | None:
        return None

    def drop(self) -> None:
        self._dropped = True
        self._only = None
        self._strands.clear()
        self._pending.clear()
        self._ready.clear()

    @property
    def _seconds(self) -> float:
        """Seconds of CPU time that an advance may take. On replay more, because the recorded run
        paused in time, maybe on a faster machine.
        """
        notes = None if self.recorded is None else self.recorded.notes
        if not self.replaying or (notes is not None and notes.outcome is not None):
            return self._cpu
        return self._again

    @property
    def memory(self) -> int:
        """The bytes of its Lua states."""
        return sum(strand.vm.memory for strand in self._strands)

    # ---- start, resume, end

    def _begin(self) -> None:
        program = self.program
        given: tuple[bytes, bytes, bytes | None, bytes | None]
        mode = b"t"
        if program.is_text:
            code: str = self.birth.args["code"]
            given = (b"text", b"code", clean_lua_source(code.encode()), b"=code")
        elif program.is_package:
            given = (b"package", program.name.encode(), None, None)
        else:
            assert self.program.main is not None
            try:
                main = load_lua_source(self.program.main, f"{self.program.name}.lua")
            except OSError as error:
                raise UnknownProgram(
                    self.program.ref, f"{self.program.main} cannot be read: {error.strerror}"
                ) from None
            given = (b"file", program.name.encode(), main.code, f"@{main.title}".encode())
            mode = main.mode or b"t"
        root = self._start_coroutine(
            "0",
            self._space,
            self._memory,
            None,
            program.name,
            0,
            called=get_namespace_name(self._ctx),
        )
        self._ready.append(
            (
                root,
                make_vm_opening(
                    self.birth.created_at, *given, *encode_lua_ctx(self._ctx), mode=mode
                ),
            )
        )

    def _start_coroutine(
        self,
        path: str,
        space: str,
        memory: int,
        fork: ForkWait | None,
        name: str,
        place: int,
        *,
        called: str | None = None,
    ) -> LuaCoroutine:
        """A coroutine with its Lua state, in which its namespace is named `called`."""
        vm = LuaVm(
            memory=memory,
            namespace=(space if called is None else called).encode(),
            dice=derive_lua_seed(self._seed, path),
            shape_check=self._shape_check,
        )
        strand = LuaCoroutine(vm, path, space, memory, fork, name, place)
        self._strands.append(strand)
        return strand

    def _hand_over(self, answer: QueryAnswer) -> None:
        found = self._pending.pop(answer.q, None)
        if found is None:
            return
        wait, place = found
        query = wait.queries[place]
        if self._own is not None:
            self._own.answered(query, answer)
        if answer.error is not None:
            said = format_answer_error(answer)
            if query.kind is Kind.STATE:  # the wording of algocline
                said = said.replace(b" cannot be stored as JSON: is ", b" is ")
                if query.args["in"] == CARD_NAMESPACE:
                    said = f"alc.card.{query.args['do']}: ".encode() + said
            self._withdraw(wait)
            self._resume(wait.strand, False, said)
            return
        wait.answers[place] = (
            encode_lua_json(answer.value)
            if query.kind is Kind.STATE
            else encode_model_answer(answer.value)
        )
        wait.left -= 1
        if not wait.left:
            self._resume(wait.strand, True, *wait.answers)

    def _resume(self, strand: LuaCoroutine, *given: Any) -> None:
        strand.waits = None
        self._ready.append((strand, given))

    def _cancel(self, reason: str) -> None:
        """Each open query raises an error once; later queries are refused."""
        self._cancelled = True
        said = f"cancelled: {reason}".encode("utf-8", "backslashreplace")
        for strand in list(self._strands):
            if isinstance(strand.waits, QueryWait):
                self._withdraw(strand.waits)
                self._resume(strand, False, said)

    def _drain(self) -> None:
        while self._ready and self._outcome is None:
            strand, given = self._ready.pop(0)
            self._run(strand, given)

    def _run(self, strand: LuaCoroutine, given: VmInput) -> None:
        """Resume a coroutine until it waits or ends."""
        allowed = (
            self._seconds if not self._since else self._seconds - (process_time() - self._since)
        )
        if allowed > 0:
            self._listen(strand, strand.vm.go(self._at, allowed, *given))
        else:
            self._overtime(strand, b"", b"")

    def _listen(self, strand: LuaCoroutine, came: VmInput) -> None:
        """Handle requests of a coroutine while they can be answered at once."""
        while True:
            if came[0]:
                self._hear(strand)
            answer = _ASKED[came[1]](self, strand, *came[2:])
            if answer is None:
                return
            came = strand.vm.go(None, 0.0, *answer)

    # ---- requests of coroutines

    def _llm(
        self,
        strand: LuaCoroutine,
        prompt: bytes,
        system: bytes | None = None,
        max_tokens: int | None = None,
        grounded: bool = False,
        underspecified: bool = False,
        options: bytes | None = None,
    ) -> VmInput | None:
        refused = self._refused("alc.llm", 1)
        if refused is not None:
            return refused
        self._wait(
            strand,
            [self._question(strand, prompt, system, max_tokens, grounded, underspecified, options)],
        )
        return None

    def _batch(self, strand: LuaCoroutine, count: int, *asked: Any) -> VmInput | None:
        refused = self._refused("alc.llm_batch", count)
        if refused is not None:
            return refused
        self._wait(
            strand, [self._question(strand, *asked[at : at + 6]) for at in range(0, count * 6, 6)]
        )
        return None

    def _question(
        self,
        strand: LuaCoroutine,
        prompt: bytes,
        system: bytes | None,
        max_tokens: int | None,
        grounded: bool,
        underspecified: bool,
        options: bytes | None,
    ) -> Query:
        self._llm_asked += 1
        return Query(
            *self._place(strand),
            prompt.decode(),
            Kind.LLM,
            None,
            None if system is None else system.decode(),
            MAX_TOKENS if max_tokens is None else max_tokens,
            grounded,
            underspecified,
            None if options is None else decode_lua_json(options),
        )

    def _state(
        self,
        strand: LuaCoroutine,
        verb: bytes,
        namespace: bytes,
        key: bytes,
        value: bytes | None = None,
    ) -> VmInput | None:
        if self._cancelled:
            return False, str(AfterCancel("state")).encode()
        args: dict[str, JSON] = {
            "in": CARD_NAMESPACE if namespace == _CARDS else strand.space,
            "do": verb.decode(),
        }
        if value is not None:
            args["value"] = decode_lua_json(value)
        self._wait(
            strand, [Query(*self._place(strand), "", Kind.STATE, name=key.decode(), args=args)]
        )
        return None

    def _budget_left(self, strand: LuaCoroutine) -> VmInput:
        return True, None if self.budget is None else encode_lua_json(
            self.budget.remaining(**self._used())
        )

    def _require(self, strand: LuaCoroutine, name: bytes) -> VmInput:
        try:
            found = find_lua_module(
                name.decode(), self.program.roots, self._allowed and self._may_require
            )
        except OSError as error:
            return False, f"module '{name.decode()}' cannot be read: {error.strerror}".encode()
        if found is None:
            place = name.replace(b".", b"/")
            return (
                True,
                None,
                b"\n\tno file '%s.lua' or '%s/init.lua' in the package folders" % (place, place),
            )
        where = found.title.encode()
        return True, found.code, where, b"@" + where, found.mode or b"t"

    def _may_require(self, package: Path) -> bool:
        """Whether a package may be required; checked once per advance."""
        if self._seen[0] != self.n:
            self._seen = (self.n, {})
        known = self._seen[1]
        if package not in known:
            assert self._allowed is not None
            known[package] = bool(self._allowed(package))
        return known[package]

    def _fork(
        self, strand: LuaCoroutine, aborts: bool, ctx: bytes, *names: bytes
    ) -> VmInput | None:
        if self._cancelled:
            return False, str(AfterCancel("fork")).encode()
        if len(self._strands) + len(names) > MAX_COROUTINES:
            return False, f"alc.fork: more than {MAX_COROUTINES} programs at once".encode()
        self._since = self._since or process_time()
        fork = strand.waits = ForkWait(strand, aborts)
        memory = max(_LEAST, strand.memory // len(names))
        for place, name in enumerate(names):
            path = f"{strand.path}.{strand.made}"
            strand.made += 1
            child = self._start_coroutine(
                path, make_own_namespace(self.birth.id, path), memory, fork, name.decode(), place
            )
            fork.children.append(child)
            fork.results.append(b"")
            self._ready.append(
                (child, make_vm_opening(self.birth.created_at, b"package", name, None, None, ctx))
            )
        fork.left = len(names)
        return None

    def _done(self, strand: LuaCoroutine, result: bytes) -> None:
        self._strands.remove(strand)
        if strand.fork is None:
            self._outcome = Returned(decode_lua_json(result))
        else:
            self._ended(strand.fork, strand, b'"ok":true,"result":' + result)

    def _failed(self, strand: LuaCoroutine, said: bytes, lines: bytes) -> None:
        self._strands.remove(strand)
        fork = strand.fork
        # a character has four bytes at most
        words = decode_lua_text(said if fork is not None else said[: 4 * _LONGEST])
        if words == OUT_OF_MEMORY and self._limits.setting:
            size = format_memory(strand.memory)
            words += f": the limit is {size}; the setting is memory in [{self._limits.setting}]"
        if fork is None:
            told = decode_lua_text(lines)[:_LONGEST]
            self._outcome = Raised(
                words[:_LONGEST], LUA_ERROR, told, self.n, read_lua_exception(words, told)
            )
        elif fork.aborts:
            for child in fork.children:
                self._abandon(child)
            self._resume(fork.parent, False, f"alc.fork: '{strand.name}' failed: {words}".encode())
        else:
            self._ended(fork, strand, b'"error":' + encode_lua_json(words) + b',"ok":false')

    def _overtime(self, strand: LuaCoroutine, said: bytes, lines: bytes) -> None:
        seconds = self._seconds
        key = "cpu" if seconds == self._cpu else "replay"
        error = Spinning(self._limits.describe_cpu(seconds, key))
        told = decode_lua_text(lines)[:_LONGEST]
        words = f"Spinning: {error}"
        self._outcome = Raised(words, error.code, told, self.n, read_lua_exception(words, told))

    def _ended(self, fork: ForkWait, child: LuaCoroutine, how: bytes) -> None:
        stats = b',"stats":' + encode_lua_json(child.stats) if child.stats else b""
        fork.results[child.place] = (
            b"{" + how + stats + b',"strategy":' + encode_lua_json(child.name) + b"}"
        )
        fork.left -= 1
        if not fork.left:
            self._resume(fork.parent, True, b"[" + b",".join(fork.results) + b"]")

    def _abandon(self, strand: LuaCoroutine) -> None:
        """Remove a coroutine with its children, and withdraw their queries."""
        if strand not in self._strands:
            return
        self._strands.remove(strand)
        self._ready = [entry for entry in self._ready if entry[0] is not strand]
        if isinstance(strand.waits, ForkWait):
            for child in strand.waits.children:
                self._abandon(child)
        elif strand.waits is not None:
            self._withdraw(strand.waits)

    # ---- queries

    def _place(self, strand: LuaCoroutine) -> tuple[int, str]:
        """The number and the key of the next query of a coroutine."""
        q = self.asked_count
        key = f"{strand.path}:{strand.asked}"
        self.asked_count = q + 1
        strand.asked = strand.asked + 1
        return q, key

    def _wait(self, strand: LuaCoroutine, queries: list[Query]) -> None:
        self._await(strand, queries)
        self._asked += queries

    def _await(self, strand: LuaCoroutine, queries: list[Query]) -> None:
        wait = strand.waits = QueryWait(strand, queries)
        for place, query in enumerate(queries):
            self._pending[query.q] = (wait, place)

    def _withdraw(self, wait: QueryWait) -> None:
        first = self._asked[0].q if self._asked else self.asked_count
        for query in wait.queries:
            if self._pending.pop(query.q, None) is None:
                continue
            if query.q >= first:  # asked and withdrawn in one advance: not recorded
                self._asked.remove(query)
            else:
                self._withdrawn.append(query.q)

    def _refused(self, verb: str, asking: int) -> VmInput | None:
        if self._cancelled:
            return False, f"{verb} after the session was cancelled".encode()
        if self.budget is not None:
            try:
                self.budget.check(asking, **self._used())
            except BudgetExceeded as error:
                return False, str(error).encode()
        return None

    def _used(self) -> dict[str, int]:
        meter = self._own or self.meter
        elapsed = max(0, int((self._at - self.birth.created_at) * 1000))
        return {
            "llm_calls": meter.llm_calls + self._llm_asked,
            "elapsed_ms": elapsed,
            "tokens": meter.tokens,
        }

    # ---- output of coroutines

    def _hear(self, strand: LuaCoroutine) -> None:
        more = True
        while more:
            more, step, total, message, records, *rest = strand.vm.take()
            for place in range(0, records * 2, 2):
                name = decode_lua_text(rest[place])
                value = decode_lua_json(rest[place + 1])
                strand.stats[name] = value
                if not self.replaying:
                    self._noted.record[strand.label + name] = value
        if self.replaying:
            return
        if step is not None:
            said = None if message is None else decode_lua_text(message)
            self._noted.progress = Progress(
                step, total, said if not strand.label else f"{strand.label} {said or ''}"
            )
        for place in range(records * 2, len(rest), 3):
            self._log(strand, *rest[place : place + 3])

    def _log(self, strand: LuaCoroutine, level: bytes, source: bytes, words: bytes) -> None:
        where = f"{decode_lua_text(source)} {strand.label}".rstrip(" /")
        kept = self._noted.log
        kept.append(
            LogEntry(int(self._at * 1000), decode_lua_text(level), where, decode_lua_text(words))
        )
        if len(kept) > LOGGED:
            del kept[0]

    @property
    def _noted(self) -> DeliveryNotes:
        if self._notes is None:
            self._notes = DeliveryNotes(withdrawn=[], log=[], record={}, versions={})
        return self._notes


#: The requests of a Lua state. A handler that returns a value answers at once.
_ASKED: Final[dict[bytes, Callable[..., VmInput | None]]] = {
    b"llm": LuaExecution._llm,
    b"batch": LuaExecution._batch,
    b"state": LuaExecution._state,
    b"budget": LuaExecution._budget_left,
    b"require": LuaExecution._require,
    b"fork": LuaExecution._fork,
    b"done": LuaExecution._done,
    b"failed": LuaExecution._failed,
    b"overtime": LuaExecution._overtime,
}


class LuaCoroutine:
    """The program, or a child that it forked, with its Lua state."""

    __slots__ = (
        "asked",
        "fork",
        "label",
        "made",
        "memory",
        "name",
        "path",
        "place",
        "space",
        "stats",
        "vm",
        "waits",
    )

    def __init__(
        self,
        vm: LuaVm,
        path: str,
        space: str,
        memory: int,
        fork: ForkWait | None,
        name: str,
        place: int,
    ) -> None:
        self.vm = vm
        self.path = path
        self.space = space  # the namespace of its durable values
        self.memory = memory
        self.fork = fork  # the fork that started it
        self.name = name
        self.place = place
        outer = fork.parent.label if fork is not None else ""
        self.label: str = "" if fork is None else f"{outer}{name}#{place + 1}/"
        self.asked = 0  # queries asked so far
        self.made = 0  # children forked so far
        self.stats: dict[str, JSON] = {}
        self.waits: QueryWait | ForkWait | None = None


class QueryWait:
    """Open queries of a coroutine, which resumes when all of them are answered."""

    __slots__ = ("answers", "left", "queries", "strand")

    def __init__(self, strand: LuaCoroutine, queries: list[Query]) -> None:
        self.strand = strand
        self.queries = queries
        self.answers: list[Any] = [None] * len(queries)
        self.left = len(queries)


class ForkWait:
    """A coroutine that waits for its children, and resumes when all of them have ended."""

    __slots__ = ("aborts", "children", "left", "parent", "results")

    def __init__(self, parent: LuaCoroutine, aborts: bool) -> None:
        self.parent = parent
        self.aborts = aborts
        self.children: list[LuaCoroutine] = []
        self.results: list[bytes] = []
        self.left = 0
