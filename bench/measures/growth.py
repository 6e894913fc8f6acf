"""One session that grows large: how its cost grows with 10,000 answers, children, open questions,
queued inputs or turns.

CPU time of a fresh process for each size, each twice the one before. The exponent is the slope of a
straight line through the times, both on logarithmic scales: 1 means that twice as much costs twice
as much. A kind whose time explodes is not carried on to the largest sizes.
"""

import sys
from collections.abc import Iterator

from bench.figure import Figure, fit_exponent
from bench.grow import KINDS
from bench.stage import QUIET, Stage, say
from bench.worker import Worker

#: CPU seconds after which a kind does not grow further.
LONG = 10.0


def measure(stage: Stage) -> Iterator[Figure]:
    if not stage.has_ours:
        return
    for kind in KINDS:
        taken: dict[int, float] = {}
        for size in stage.scale.grown:
            taken[size] = _grow(stage, kind, size)
            if taken[size] > LONG and size != stage.scale.grown[-1]:
                say(f"  {kind}: {size} took {taken[size]:.0f} s; larger ones are left out")
                break
        at = f"growth.{kind}"
        for size, seconds in taken.items():
            yield Figure.of(f"{at}.{size}.us", "µs", [seconds / size * 1e6])
        yield Figure.of(f"{at}.largest", "", [max(taken)])
        if len(taken) > 1:
            yield Figure.of(f"{at}.exponent", "", [fit_exponent(taken)])


def _grow(stage: Stage, kind: str, size: int) -> float:
    worker = Worker("everhold", [sys.executable, "-m", "bench.grow"], env=QUIET)
    try:
        seconds: float = worker.ask("grow", kind=kind, size=size, path=str(stage.file(kind)))["cpu"]
    finally:
        worker.end()
    return seconds
