"""A file full of paused sessions: the cost of opening the runtime and answering one of them."""

from collections.abc import Iterator
from pathlib import Path

from bench.contender import OURS
from bench.figure import Figure
from bench.speak import Reply
from bench.stage import Stage, bytes_of, say
from bench.work import Level
from bench.worker import Worker

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
        with (
            stage.worker(OURS, Level.NORMAL, few) as one,
            stage.worker(OURS, Level.NORMAL, many) as other,
        ):
            pairs = [
                (_wake(one, here), _wake(other, there))
                for here, there in zip(few_ids[turn], many_ids[turn], strict=True)
            ][1:]
            small.append({"wakes": [pair[0] for pair in pairs], **one.ask("memory")})
            large.append({"wakes": [pair[1] for pair in pairs], **other.ask("memory")})
    taken = {}
    for name, woken in (("few", small), ("many", large)):
        taken[name] = [
            (reply["open"] + reply["answer"]) * 1e3 for wake in woken for reply in wake["wakes"]
        ]
        yield Figure.of(f"paused.everhold.{name}.open_and_answer_ms", "ms", taken[name])
        yield Figure.of(
            f"paused.everhold.{name}.resident_mb", "MB", [wake["megabytes"] for wake in woken]
        )
    over = [late / early for early, late in zip(taken["few"], taken["many"], strict=True)]
    yield Figure.of("paused.everhold.many_over_few", "×", over)
    growth = [
        most["megabytes"] - least["megabytes"] for most, least in zip(large, small, strict=True)
    ]
    yield Figure.of("paused.everhold.growth_mb", "MB", growth)


def _park(stage: Stage, sessions: int) -> tuple[Path, list[str]]:
    say(f"  parking {sessions} sessions")
    path = stage.file("paused")
    with stage.worker(OURS, Level.NORMAL, path) as worker:
        return path, worker.ask("park", sessions=sessions)["sessions"]


def _wake(worker: Worker, session: str) -> Reply:
    """Open the runtime for this session, and answer it."""
    return worker.ask("wake", session=session)
