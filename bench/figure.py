"""A figure: one number under a stable name, with the spread of its samples."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log
from statistics import mean, median, quantiles
from typing import Any


@dataclass(frozen=True, slots=True)
class Figure:
    """`low` and `high` are the quartiles of the samples whose median `value` is."""

    name: str
    value: float
    unit: str
    low: float
    high: float
    samples: int

    @classmethod
    def of(cls, name: str, unit: str, samples: Iterable[float]) -> "Figure":
        taken = list(samples)
        low, _, high = quantiles(taken, method="inclusive") if len(taken) > 1 else taken * 3
        return cls(name, median(taken), unit, low, high, len(taken))

    def record(self) -> dict[str, Any]:
        return {
            "value": round(self.value, 4),
            "unit": self.unit,
            "low": round(self.low, 4),
            "high": round(self.high, 4),
            "samples": self.samples,
        }


def fit_exponent(taken: Mapping[int, float]) -> float:
    """The slope of the times over the sizes, on logarithmic scales, by least squares."""
    sizes = [log(size) for size in taken]
    times = [log(seconds) for seconds in taken.values()]
    middle, height = mean(sizes), mean(times)
    across = sum((size - middle) ** 2 for size in sizes)
    return sum((x - middle) * (y - height) for x, y in zip(sizes, times, strict=True)) / across
