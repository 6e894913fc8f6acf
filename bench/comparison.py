"""Which figures moved by more than noise since the recorded run.

A figure moved if its median changed by more than the spread of either run, and by more than a few
per cent. Counts (bytes, statements, calls) have no noise. Absolute times and rates move with the
machine, so they are listed apart.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from bench.figure import Figure

#: Changes that are too small to matter, whatever the spread.
SMALL: Final = 0.03
#: The same for counts, and for a figure of one sample, whose spread is not known.
SMALL_COUNT: Final = 0.01
SMALL_SINGLE: Final = 0.25
COUNTS: Final = frozenset({"B", "KB", "rows", "calls", "statements", "commits", "instructions"})
ABSOLUTE: Final = frozenset({"µs", "ms", "s", "/s"})


@dataclass(frozen=True, slots=True)
class Movement:
    before: Figure
    now: Figure

    @property
    def change(self) -> float:
        """The relative change."""
        return (self.now.value - self.before.value) / (abs(self.before.value) or 1.0)

    @property
    def is_absolute(self) -> bool:
        return self.now.unit in ABSOLUTE

    def __str__(self) -> str:
        return (
            f"{self.now.name:55} {self.before.value:14,.2f} → {self.now.value:14,.2f}"
            f" {self.now.unit:2} {self.change:+8.0%}"
        )


def list_moved(before: Mapping[str, Figure], now: Mapping[str, Figure]) -> Iterator[Movement]:
    """The figures of both runs that moved, in the order of their names."""
    for name in sorted(before.keys() & now.keys()):
        if has_moved(before[name], now[name]):
            yield Movement(before[name], now[name])


def has_moved(before: Figure, now: Figure) -> bool:
    difference = abs(now.value - before.value)
    single = min(before.samples, now.samples) == 1
    if now.unit in COUNTS and single:
        return difference > SMALL_COUNT * abs(before.value)
    if single:
        return difference > SMALL_SINGLE * abs(before.value)
    noise = max(before.high - before.low, now.high - now.low)
    return difference > noise and difference > SMALL * abs(before.value)
