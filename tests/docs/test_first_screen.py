"""The README's first screen and docs/why.md: their order, what they admit, and figures of our
benchmark as it was last run.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BENCHMARKS = (ROOT / "docs" / "benchmarks.md").read_text()
WHY = (ROOT / "docs" / "why.md").read_text()
FIGURE = re.compile(r"(\d[\d,.]*)(?: to (\d[\d,.]*))? (µs|ms|steps per second|times)\b")


def rows(page: str, heading: str) -> dict[str, list[str]]:
    """The rows of the first table below a heading, by their first cell."""
    table = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    return {first.strip("*"): rest for first, *rest in cells if rest}


def test_the_readme_says_first_what_a_visitor_asks_first() -> None:
    """What it is, how it looks, three uses, what is beside it, how to get it, what it cannot do."""
    readme = (ROOT / "README.md").read_text()
    first, _, rest = readme.partition("![")
    assert "Durable execution for LLM programs and agents in plain async Python" in first
    assert re.findall(r"^## (.*)$", rest, re.MULTILINE)[:4] == [
        "Three uses",
        "Beside others",
        "Install",
        "Limits",
    ]
    uses = rest.partition("## Three uses\n")[2].partition("\n## ")[0]
    assert len(re.findall(r"^\*\*.*?\*\*", uses, re.MULTILINE)) == 3
    limits = rest.partition("## Limits\n")[2].partition("\n## ")[0]
    assert len(re.findall(r"^- ", limits, re.MULTILINE)) == 3


def test_why_says_first_what_the_other_does_better() -> None:
    """Of each tool in the table of the README, too."""
    sections = re.split(r"^## Why not (.*)\?$", WHY, flags=re.MULTILINE)
    told = dict(zip(sections[1::2], sections[2::2], strict=True))
    columns = rows((ROOT / "README.md").read_text(), "Beside others")[""]
    assert set(columns) - {"everhold"} <= set(told)
    assert [
        name
        for name, text in told.items()
        if not -1 < text.find("**Better there:**") < text.find("**Better here:**")
    ] == []


def test_the_table_beside_others_has_the_figures_of_the_benchmark() -> None:
    readme = rows((ROOT / "README.md").read_text(), "Beside others")
    columns = readme[""]
    step = {name: row[0] for name, row in rows(BENCHMARKS, "20 pauses, one session alone").items()}
    graphs = sorted(
        (value for name, value in step.items() if name.startswith("LangGraph")),
        key=lambda value: float(value.replace(",", "")),
    )
    assert dict(zip(columns, readme["a durable step"], strict=True)) == {
        "everhold": f"**{step['everhold']} µs**",
        "LangGraph": f"{graphs[0]} to {graphs[-1]} µs",
        "DBOS": f"{step['DBOS, a step (no pause)']} µs; {step['DBOS, `recv`']} µs for a message",
        "Temporal": "not measured",
        "Pydantic AI": "has none of its own",
    }


def test_why_says_no_figure_that_was_not_measured() -> None:
    """A ratio is rounded to a whole number."""
    measured = set(re.findall(r"\d[\d,]*(?:\.\d+)?", BENCHMARKS.partition("\n## The machine")[0]))
    ratios = {str(round(float(one))) for one in re.findall(r"([\d.]+) ×", BENCHMARKS)}
    said = [
        (figure, unit)
        for low, high, unit in FIGURE.findall(WHY)
        for figure in filter(None, (low, high))
    ]
    assert len(said) > 8
    unknown = [one for one in said if one[0] not in (ratios if one[1] == "times" else measured)]
    assert unknown == []
