"""Lua programs: what a step, a start, a cold resume and a paused session cost, here and in a worker
process; and how fast Lua itself is in the sandbox, beside a plain state.
"""

from collections.abc import Iterator
from contextlib import ExitStack

from bench.contender import CONTENDERS, FLOOR, OURS, Contender
from bench.figure import Figure
from bench.sandbox import WORKS
from bench.speak import Reply
from bench.stage import Stage, alternate, ratios
from bench.work import PAUSES, Level
from bench.worker import Worker

SLICE = {Level.NORMAL: 100, Level.MEMORY: 100}
HERE = Contender("lua", "bench.lua", SLICE, options={"form": "here"})
THERE = Contender("lua-worker", "bench.lua", SLICE, options={"form": "worker"})


def measure(stage: Stage) -> Iterator[Figure]:
    if not stage.has_ours:
        return
    yield from _steps(stage)
    yield from _resume(stage)
    with stage.worker(HERE, Level.NORMAL) as worker:
        held = worker.ask("hold", sessions=stage.scale.live)
        yield Figure.of("lua.paused.kb_per_session", "KB", [held["kilobytes"]])
        yield from _beside(stage, worker)


def _beside(stage: Stage, worker: Worker) -> Iterator[Figure]:
    """Each work in the sandbox and in plain Lua states, one after the other, in CPU time."""
    for name, work in WORKS.items():
        taken = [worker.ask("beside", work=name) for _ in range(stage.scale.rounds)]
        each = [reply["ours"] * 1e6 / work.times for reply in taken]
        yield Figure.of(f"lua.sandbox.{name}_us", "µs", each)
        for state in ("plain", "bare"):
            ratios = [reply["ours"] / reply[state] for reply in taken]
            yield Figure.of(f"lua.sandbox.{name}_over_{state}", "×", ratios)


def _steps(stage: Stage) -> Iterator[Figure]:
    """Slices beside those of the Python program; the worker process in memory only, where nothing
    hides its cost.
    """
    for level, who in (
        (Level.MEMORY, (CONTENDERS[OURS], HERE, THERE)),
        (Level.NORMAL, (CONTENDERS[OURS], HERE)),
    ):
        with ExitStack() as stack:
            workers = {one.name: stack.enter_context(stage.worker(one, level)) for one in who}
            if FLOOR in stage.taking_part:
                workers[FLOOR] = stack.enter_context(stage.worker(FLOOR, Level.NORMAL))
            replies = alternate(workers, stage.scale.rounds, _slice)
        at = level.lower()
        here = replies[HERE.name]
        if FLOOR in replies:
            floor = replies[FLOOR]
            yield Figure.of(f"lua.{at}.step_over_floor", "×", ratios(here, floor))
            yield Figure.of(f"lua.{at}.start_over_floor", "×", ratios(here, floor, "start"))
            if THERE.name in replies:
                over = ratios(replies[THERE.name], floor)
                yield Figure.of("lua.worker.step_over_floor", "×", over)
        yield Figure.of(f"lua.{at}.step_us", "µs", [reply["step"] * 1e6 for reply in here])
        yield Figure.of(f"lua.{at}.start_ms", "ms", [reply["start"] * 1e3 for reply in here])
        yield Figure.of(f"lua.{at}.step_over_python", "×", ratios(here, replies[OURS]))
        if THERE.name in replies:
            there = replies[THERE.name]
            yield Figure.of("lua.worker.step_us", "µs", [reply["step"] * 1e6 for reply in there])
            yield Figure.of("lua.worker.start_ms", "ms", [reply["start"] * 1e3 for reply in there])


def _slice(name: str, worker: Worker) -> Reply:
    return worker.ask("sequence", sessions=SLICE[Level.MEMORY], pauses=PAUSES)


def _resume(stage: Stage) -> Iterator[Figure]:
    """The Lua program and the Python program in turn, each in a file of its own."""
    taken: dict[str, list[float]] = {}
    with ExitStack() as stack:
        sessions = {}
        workers = {}
        for one in (HERE, CONTENDERS[OURS]):
            path = stage.file(f"resume-{one.name}")
            with stage.worker(one, Level.NORMAL, path) as worker:
                sessions[one.name] = worker.ask("lengthen", answers=stage.scale.long)["session"]
            workers[one.name] = stack.enter_context(stage.worker(one, Level.NORMAL, path))
        for number in range(stage.scale.rounds + 1):
            for name, worker in workers.items():
                woken = worker.ask("wake", session=sessions[name])
                if number:
                    taken.setdefault(name, []).append(woken["answer"])
    here, python = taken[HERE.name], taken[OURS]
    yield Figure.of("lua.resume.cold_1000_ms", "ms", [seconds * 1e3 for seconds in here])
    over = [lua / plain for lua, plain in zip(here, python, strict=True)]
    yield Figure.of("lua.resume.cold_over_python", "×", over)
