"""The page of benchmarks, its pictures and what other pages quote are those of bench/results.json;
and the bench judges its own runs rightly.
"""

import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from bench import page, quote, report
from bench.comparison import list_moved
from bench.figure import Figure, fit_exponent
from bench.plot import PLOTS, list_plots
from bench.record import CannotMerge, Part, Record, load
from bench.svg import Bar, Panel, draw_bars, draw_lines
from bench.target import TARGETS
from tests.failures import collect_failures

ROOT = Path(__file__).resolve().parents[2]
RECORD = load()
REDRAW = "write it again: python -m bench --redraw"


# ---- what is written agrees with what was measured


def test_the_page_shows_the_recorded_figures():
    assert page.PAGE.read_text(encoding="utf-8") == page.render(RECORD), REDRAW


def test_the_pictures_show_the_recorded_figures():
    drawn = {f"{plot.name}.svg": svg for plot, svg in list_plots(RECORD.figures)}
    kept = {path.name: path.read_text(encoding="utf-8") for path in page.IMAGES.glob("bench-*.svg")}
    assert kept == drawn, REDRAW


def test_other_pages_quote_the_recorded_figures():
    assert list(quote.list_wrong(RECORD.figures)) == [], REDRAW


def test_a_wrong_figure_in_another_page_is_found():
    figures = dict(RECORD.figures)
    name = "step.normal.everhold.over_floor"
    figures[name] = Figure.of(name, "×", [figures[name].value * 2])
    assert {wrong.partition(" ")[0] for wrong in quote.list_wrong(figures)} == {
        "README.md",
        "docs/why.md",
    }


def test_the_record_is_of_a_whole_run():
    """A quick run says nothing about speed."""
    assert not RECORD.quick


def test_the_page_has_times_only_among_the_orders_of_magnitude():
    text = page.render(RECORD).partition("## How to read this")[0]
    head, _, rest = text.partition("## Orders of magnitude")
    _, _, tail = rest.partition("\n## ")
    assert re.findall(r"\d (?:µs|ms)\b", rest.partition("\n## ")[0])
    assert re.findall(r"\d (?:µs|ms)\b", head + tail) == []


def test_every_target_is_in_the_table_or_named_as_not_measured():
    text = page.render(RECORD)
    with collect_failures() as row:
        for target in TARGETS:
            with row(target.figure):
                if target.figure in RECORD.figures:
                    assert f"| {target.what} |" in text
                else:
                    assert f"`{target.figure}`" in text


def test_what_is_missed_is_listed_below_the_table():
    missed = page.render(RECORD).partition("## What is missed")[2].partition("\n## ")[0]
    names = {target.figure for target, _ in report.list_missed(RECORD.figures)}
    assert set(re.findall(r"\(`([^`]+)`\)", missed)) == names


# ---- pictures


def test_a_chart_is_xml_with_colours_for_dark_pages():
    charts = {
        "bars": draw_bars("A & b", "of <c>", [Bar("d", 1, "1"), Bar("e", 200.5, "200")]),
        "lines": draw_lines("f", "g", [Panel("h", {"i": [(10, 0.5), (1000, 30)]}, "j")]),
        "flat": draw_lines("f", "g", [Panel("h", {"i": [(1, 1), (9, 1)]}, "j", log_y=False)]),
    }
    with collect_failures() as row:
        for name, chart in charts.items():
            with row(name):
                assert ElementTree.fromstring(chart).tag == "{http://www.w3.org/2000/svg}svg"
                assert "prefers-color-scheme: dark" in chart


def test_a_bar_is_as_long_as_its_value():
    chart = draw_bars("title", "subtitle", [Bar("one", 10, "10"), Bar("two", 40, "40")])
    one, two = (float(width) for width in re.findall(r'<rect .*? width="([\d.]+)"', chart))
    assert two / one == pytest.approx(4, rel=0.01)


def test_a_picture_without_figures_is_not_drawn():
    assert [plot.draw({}) for plot in PLOTS] == [""] * 4


# ---- what moved


def figure(value: float, *, unit: str = "×", spread: float = 0.1, samples: int = 25) -> Figure:
    return Figure("a", value, unit, value - spread / 2, value + spread / 2, samples)


def test_a_figure_moves_if_it_changes_by_more_than_its_spread():
    """Before, now, and whether it moved."""
    cases = {
        "within the spread of the first run": (figure(2, spread=1), figure(2.5), False),
        "within the spread of the second run": (figure(2), figure(2.5, spread=1), False),
        "beyond both": (figure(2), figure(2.5), True),
        "beyond both, but small": (figure(2, spread=0), figure(2.02, spread=0), False),
        "one sample": (figure(2, samples=1), figure(2.2, samples=1), False),
        "one sample, and far": (figure(2, samples=1), figure(2.8, samples=1), True),
        "a count": (
            figure(500, unit="B", samples=1),
            figure(510, unit="B", samples=1),
            True,
        ),
        "nothing": (figure(0), figure(0), False),
    }
    with collect_failures() as row:
        for name, (before, now, moved) in cases.items():
            with row(name):
                assert bool(list(list_moved({"a": before}, {"a": now}))) is moved


def test_figures_of_one_run_only_did_not_move():
    assert list(list_moved({"a": figure(1)}, {"b": figure(9)})) == []


# ---- parts


def part(value: float) -> Part:
    return Part("c0de", 0.5, 1.0, {"a": figure(value)})


def test_a_part_that_is_measured_again_loses_its_old_figures():
    old = Record({"processor": "x"}, {"dbos": "1"}, {"one": part(1), "two": part(2)})
    old.parts["one"].figures["gone"] = figure(7)
    old.merge(Record({"processor": "x"}, {"dbos": "1"}, {"one": part(3)}))
    assert old.parts["one"].figures == {"a": figure(3)}
    assert set(old.parts) == {"one", "two"}


def test_parts_of_other_machines_or_versions_are_refused():
    record = Record({"processor": "x"}, {"dbos": "1"}, {"one": part(1)})
    for other in (Record({"processor": "y"}), Record(versions={"dbos": "2"})):
        with pytest.raises(CannotMerge, match=r"was .* and is"):
            record.merge(other)


def test_a_record_is_read_as_it_was_written(tmp_path):
    record = Record({"processor": "x"}, {"dbos": "1"}, {"one": part(1)})
    path = tmp_path / "results.json"
    path.write_text(record.dump({}), encoding="utf-8")
    assert load(path) == Record(
        record.machine,
        record.versions,
        {"one": Part("c0de", 0.5, 1.0, {"a": figure(1)})},
    )


# ---- growth


def test_the_exponent_of_a_cost_is_that_of_its_power():
    assert fit_exponent({n: 3e-5 * n for n in (10, 100, 1000)}) == pytest.approx(1)
    assert fit_exponent({n: 3e-5 * n**2 for n in (10, 20, 40)}) == pytest.approx(2)


# ---- a run


@pytest.mark.soak
@pytest.mark.timeout(0)
def test_a_quick_run_measures_every_target(tmp_path):
    """It makes the peers' environments, which takes the network and minutes."""
    out = tmp_path / "quick.json"
    command = [sys.executable, "-m", "bench", "--quick", "--json", str(out)]
    subprocess.run([*command, "--preview", str(tmp_path)], cwd=ROOT, check=True)
    figures = load(out).figures
    assert [target.figure for target in report.list_unmeasured(figures)] == []
    assert len(list((tmp_path / "images").glob("bench-*.svg"))) == 4
