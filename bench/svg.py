"""Charts as SVG: bars and lines, readable on light and dark pages.

Colours follow the reader's theme by a media query inside the file. Values stand beside what they
describe, so that no chart needs its colours to be understood.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10
from typing import Final

WIDTH: Final = 720
_LETTER: Final = 7.2  # the width of an average letter, in wide fonts
_ROW: Final = 24
_GAP: Final = 10
_TOP: Final = 62
#: Series: the colour on light pages, and on dark ones. The first is ours.
COLOURS: Final = (
    ("#0b6bcb", "#5aa9ff"),
    ("#c2570c", "#ff9d4d"),
    ("#8a3ffc", "#c19bff"),
    ("#0a7d55", "#3ecf97"),
    ("#6b7280", "#9aa3af"),
)
_STYLE: Final = (
    "text{font:13px system-ui,-apple-system,'Segoe UI',sans-serif;fill:#1f2328}"
    ".t{font-weight:600;font-size:15px}.s{fill:#59636e;font-size:12px}.v{font-weight:600}"
    ".a{stroke:#59636e;stroke-width:1}.g{stroke:#d1d9e0;stroke-width:1}"
)
_DARK: Final = "text{fill:#f0f6fc}.s{fill:#9198a1}.a{stroke:#9198a1}.g{stroke:#3d444d}"


@dataclass(frozen=True, slots=True)
class Bar:
    label: str
    value: float
    text: str
    colour: int = 4  # the number of a series
    apart: bool = False  # stands apart from the bar above


@dataclass(frozen=True, slots=True)
class Panel:
    """A chart of lines: series by name, each with points (x, y). `log_x` and `log_y` say which
    scale an axis has.
    """

    title: str
    series: Mapping[str, Sequence[tuple[float, float]]]
    x_label: str
    log_x: bool = True
    log_y: bool = True


def draw_bars(title: str, subtitle: str, bars: Sequence[Bar]) -> str:
    """Horizontal bars from zero, one below the other."""
    left = max(len(bar.label) for bar in bars) * _LETTER + 16
    right = max(len(bar.text) for bar in bars) * _LETTER + 20
    most = max(bar.value for bar in bars)
    scale = (WIDTH - left - right) / most
    parts = []
    y = _TOP - _ROW
    for bar in bars:
        y += _ROW + (_GAP if bar.apart else 0)
        width = max(bar.value * scale, 1)
        parts += [
            _text(left - 8, y + 15, bar.label, anchor="end"),
            f'<rect class="f{bar.colour}" x="{left:.0f}" y="{y + 3}" width="{width:.1f}"'
            f' height="{_ROW - 7}" rx="2"/>',
            _text(left + width + 6, y + 15, bar.text, "v"),
        ]
    return _svg(title, subtitle, y + _ROW + 8, parts)


def draw_lines(title: str, subtitle: str, panels: Sequence[Panel]) -> str:
    """Panels of lines, side by side, with a legend above them."""
    names = list(dict.fromkeys(name for panel in panels for name in panel.series))
    parts = []
    x = 16.0
    y = _TOP + 4
    for name in names:
        width = len(name) * _LETTER + 40
        if x + width > WIDTH:
            x, y = 16.0, y + 20
        colour = names.index(name) % len(COLOURS)
        parts += [
            f'<line class="l{colour}" x1="{x:.0f}" y1="{y}" x2="{x + 20:.0f}" y2="{y}"/>',
            _text(x + 26, y + 4, name),
        ]
        x += width
    top = y + 46
    wide = WIDTH / len(panels)
    for number, panel in enumerate(panels):
        parts += _panel(panel, names, number * wide, top, wide, 210)
    return _svg(title, subtitle, top + 258, parts)


def _panel(
    panel: Panel, names: Sequence[str], left: float, top: float, width: float, height: float
) -> Iterator[str]:
    points = [point for series in panel.series.values() for point in series]
    x_ticks = _ticks([x for x, _ in points], panel.log_x)
    y_ticks = _ticks([y for _, y in points], panel.log_y)
    x_at = _scale(x_ticks, left + 58, left + width - 22, panel.log_x)
    y_at = _scale(y_ticks, top + height, top, panel.log_y)
    yield _text(left + 16, top - 14, panel.title, "s")
    for tick in y_ticks:
        y = y_at(tick)
        yield (
            f'<line class="g" x1="{left + 58:.0f}" y1="{y:.1f}" x2="{left + width - 22:.0f}"'
            f' y2="{y:.1f}"/>'
        )
        yield _text(left + 52, y + 4, format_number(tick), "s", "end")
    for tick in x_ticks:
        yield _text(x_at(tick), top + height + 18, format_number(tick), "s", "middle")
    yield _text(left + width / 2 + 18, top + height + 36, panel.x_label, "s", "middle")
    for name, series in panel.series.items():
        colour = names.index(name) % len(COLOURS)
        places = [(x_at(x), y_at(y)) for x, y in series]
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        yield f'<polyline class="l{colour}" points="{path}" fill="none"/>'
        for x, y in places:
            yield f'<circle class="f{colour}" cx="{x:.1f}" cy="{y:.1f}" r="3.5"/>'


def _ticks(values: Sequence[float], logarithmic: bool) -> list[float]:
    """Round numbers around the values: powers of ten, or steps from zero."""
    if logarithmic:
        low, high = floor(log10(min(values)) + 1e-9), ceil(log10(max(values)) - 1e-9)
        return [10.0**power for power in range(low, max(high, low + 1) + 1)]
    most = max(values) * 1.05
    step = next(
        step
        for power in range(-3, 12)
        for step in (10.0**power, 2 * 10.0**power, 5 * 10.0**power)
        if most / step <= 5
    )
    return [number * step for number in range(ceil(most / step) + 1)]


def _scale(ticks: Sequence[float], begin: float, end: float, logarithmic: bool):  # type: ignore[no-untyped-def]
    low, high = (log10(ticks[0]), log10(ticks[-1])) if logarithmic else (ticks[0], ticks[-1])

    def at(value: float) -> float:
        place = log10(value) if logarithmic else value
        return begin + (place - low) / (high - low) * (end - begin)

    return at


def format_number(value: float) -> str:
    """A number of an axis: 0.1, 20, 1,000, 1 M."""
    if value >= 1e6:
        return f"{value / 1e6:g} M"
    return f"{value:,.0f}" if value >= 10 else f"{value:g}"


def _text(x: float, y: float, text: str, style: str = "", anchor: str = "start") -> str:
    marks = f' class="{style}"' if style else ""
    place = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{marks}{place}>{escape(text)}</text>'


def _svg(title: str, subtitle: str, height: float, parts: Sequence[str]) -> str:
    def paint(dark: int) -> str:
        return "".join(
            f".f{number}{{fill:{pair[dark]}}}.l{number}{{stroke:{pair[dark]};stroke-width:2}}"
            for number, pair in enumerate(COLOURS)
        )

    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}"'
            f' width="{WIDTH}" height="{height:.0f}" role="img" aria-label="{escape(title)}">',
            f"<style>{_STYLE}{paint(0)}@media (prefers-color-scheme: dark){{{_DARK}{paint(1)}}}"
            "</style>",
            _text(16, 24, title, "t"),
            _text(16, 43, subtitle, "s"),
            *parts,
            "</svg>\n",
        ]
    )
