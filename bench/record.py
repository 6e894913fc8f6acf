"""What was measured, as bench/results.json holds it: parts, each measured in one run.

A part is all figures of one measure. Measuring a part again replaces all of its figures, so that
no ratio compares two runs. Parts are only put together if machine and versions are the same.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.figure import Figure
from bench.worker import ROOT

RESULTS = ROOT / "bench" / "results.json"


class CannotMerge(Exception):
    """Two records are of different machines or versions."""


@dataclass(slots=True)
class Part:
    """The figures of one measure. `source` tells which state of everhold's code it was."""

    source: str
    load: float
    minutes: float
    figures: dict[str, Figure] = field(default_factory=dict)


@dataclass(slots=True)
class Record:
    machine: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    parts: dict[str, Part] = field(default_factory=dict)
    quick: bool = False

    @property
    def figures(self) -> dict[str, Figure]:
        return {
            name: figure for part in self.parts.values() for name, figure in part.figures.items()
        }

    def merge(self, other: "Record") -> None:
        """Take the parts of `other`; raises `CannotMerge` if machine or versions are others."""
        for mine, theirs in ((self.machine, other.machine), (self.versions, other.versions)):
            for name in sorted(mine.keys() & theirs.keys()):
                if mine[name] != theirs[name]:
                    raise CannotMerge(
                        f"{name} was {mine[name]!r} and is {theirs[name]!r}: measure all parts"
                        " again, with `make bench`"
                    )
        self.machine |= other.machine
        self.versions |= other.versions
        self.parts |= other.parts
        self.quick = self.quick or other.quick

    def dump(self, targets: Mapping[str, Any]) -> str:
        """As JSON text, under stable names."""
        parts = {
            name: {
                "source": part.source,
                "load": round(part.load, 1),
                "minutes": round(part.minutes, 1),
                "figures": {name: part.figures[name].record() for name in sorted(part.figures)},
            }
            for name, part in sorted(self.parts.items())
        }
        whole = {
            "quick": self.quick,
            "machine": self.machine,
            "versions": dict(sorted(self.versions.items())),
            "parts": parts,
            "targets": targets,
        }
        return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


def load(path: Path = RESULTS) -> Record:
    """Read a record; an empty one if there is no file."""
    if not path.exists():
        return Record()
    read = json.loads(path.read_text(encoding="utf-8"))
    parts = {
        name: Part(
            part["source"],
            part["load"],
            part["minutes"],
            {name: Figure(name, **figure) for name, figure in part["figures"].items()},
        )
        for name, part in read["parts"].items()
    }
    return Record(read["machine"], read["versions"], parts, read["quick"])


def source() -> str:
    """A short digest of everhold's code: equal digests, equal code."""
    digest = hashlib.sha256()
    for path in _code():
        digest.update(path.read_bytes())
    return digest.hexdigest()[:8]


def _code() -> Iterator[Path]:
    for suffix in (".py", ".lua", ".sql"):
        yield from sorted((ROOT / "src" / "everhold").rglob(f"*{suffix}"))
