"""Bytes of database per step: the whole file, schema and sessions included, after its WAL is folded
in.
"""

from collections.abc import Iterator

from bench.contender import CONTENDERS
from bench.figure import Figure
from bench.stage import Stage, bytes_of, remove
from bench.work import PAUSES, Level


def measure(stage: Stage) -> Iterator[Figure]:
    for contender in stage.contenders(Level.NORMAL):
        sessions = stage.scale.peer_sized if CONTENDERS[contender.name].peer else stage.scale.sized
        verbs = {"sequence": "in_sequence", "crowd": "in_crowd"}
        if contender.peer:
            del verbs["crowd"]
        for verb, way in verbs.items():
            path = stage.file(f"size-{contender.name}")
            with stage.worker(contender.name, Level.NORMAL, path) as worker:
                worker.ask(verb, sessions=sessions, pauses=PAUSES)
            yield Figure.of(
                f"size.{contender.name}.{way}.bytes_per_step",
                "B",
                [bytes_of(path) / (sessions * PAUSES)],
            )
            remove(path)
