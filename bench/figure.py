"""A figure: one number under a stable name, with the spread of its samples."""

from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median, quantiles
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
