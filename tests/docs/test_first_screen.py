"""The README's first screen and docs/why.md: their order, and what they admit."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHY = (ROOT / "docs" / "why.md").read_text()


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
