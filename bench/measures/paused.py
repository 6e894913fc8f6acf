"""A file full of paused sessions: the cost of opening the runtime and answering one of them."""

from collections.abc import Iterator
from pathlib import Path

from bench.contender import OURS
from bench.figure import Figure
from bench.speak import Reply
from bench.stage import Stage, bytes_of, say
from bench.work import Level

PROCESSES = 5
WAKES = 10


def measure(stage: Stage) -> Iterator[Figure]:
    if not stage.has_ours:
        return
    sizes = (stage.scale.few_parked, stage.scale.parked)
    (few, few_ids), (many, many_ids) = [_park(stage, sessions) for sessions in sizes]
    yield Figure.of("paused.everhold.bytes_per_session", "B", [bytes_of(many) / stage.scale.parked])
    small = []
    large = []
    for number in range(PROCESSES):
        turn = slice(number * WAKES, (number + 1) * WAKES)
        small.append(_wake(stage, few, few_ids[turn]))
        large.append(_wake(stage, many, many_ids[turn]))
    for name, woken in (("few", small), ("many", large)):
        times = [
            (reply["open"] + reply["answer"]) * 1e3 for wake in woken for reply in wake["wakes"]
        ]
        yield Figure.of(f"paused.everhold.{name}.open_and_answer_ms", "ms", times)
        yield Figure.of(
            f"paused.everhold.{name}.resident_mb", "MB", [wake["megabytes"] for wake in woken]
        )
    growth = [
        most["megabytes"] - least["megabytes"] for most, least in zip(large, small, strict=True)
    ]
    yield Figure.of("paused.everhold.growth_mb", "MB", growth)


def _park(stage: Stage, sessions: int) -> tuple[Path, list[str]]:
    say(f"  parking {sessions} sessions")
    path = stage.file("paused")
    with stage.worker(OURS, Level.NORMAL, path) as worker:
        return path, worker.ask("park", sessions=sessions)["sessions"]


def _wake(stage: Stage, path: Path, sessions: list[str]) -> Reply:
    """In a fresh process, wake these sessions, each in a runtime opened for it; then ask what it
    holds.
    """
    with stage.worker(OURS, Level.NORMAL, path) as worker:
        worker.ask("wake", session=sessions[0])
        wakes = [worker.ask("wake", session=session) for session in sessions[1:]]
        return {"wakes": wakes, **worker.ask("memory")}
