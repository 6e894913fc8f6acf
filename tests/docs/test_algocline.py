"""The reference of the algocline profile names everything it has, and what it has in common."""

import re
from collections.abc import Iterator
from pathlib import Path

from everhold.mcp.algocline.resource import RESOURCES, TEMPLATES
from everhold.mcp.algocline.server import INSTRUCTIONS, TOOLS
from tests.failures import collect_failures
from tools.sentences import find_known, find_literals, read_clauses

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/algocline.md").read_text()
#: Clauses that are not error texts of the profile.
NO_ERRORS = {
    "must be got": "the frame of a sentence",
    "expected table got": "the frame of a sentence",
    "completed failed or cancelled": "names of states",
    "none stderr only": "a value of alc_info",
    "key type required description": "the head of a table in a generated document",
    "function m.run ctx": "Lua code of a new package",
    "input must be table": "of the tool that runs code for agents",
}


def test_every_tool_is_in_the_reference_and_in_what_the_server_says():
    names = [tool.name for tool in TOOLS]
    assert [name for name in names if f"`{name}`" not in PAGE] == []
    assert [name for name in names if name not in INSTRUCTIONS] == []


def test_every_address_is_in_the_reference():
    addresses = [uri for uri, *_ in TEMPLATES] + [f"alc://types/{name}" for name, _ in RESOURCES]
    assert [address for address in addresses if f"`{address}" not in PAGE] == []


def read_kept_parts() -> list[tuple[str, ...]]:
    """The parts of error texts that the reference promises, as words; 'none' is any name."""
    section = PAGE.split("## Error texts")[1].split("\n## ")[0]
    rows = [line for line in section.splitlines() if line.startswith("| ")]
    parts = [part for row in rows for part in re.findall(r"`([^`]+)`", row)]
    return [words for part in parts for words in read_clauses(re.sub(r"'[\w-]+'", " ", part))]


def find_shared() -> Iterator[tuple[str, tuple[str, ...]]]:
    """The clauses in our sources that algocline 0.29.1 has, too, and where."""
    known = set((ROOT / "tests/data/algocline-sentences.txt").read_text().split())
    assert len(known) > 1000
    for file in sorted((ROOT / "src/everhold").rglob("*")):
        if file.suffix in (".py", ".lua"):
            for literal, line in find_literals(file):
                for words in find_known(literal, known):
                    yield f"{file.relative_to(ROOT)}:{line}", words


def test_no_sentence_is_that_of_algocline_apart_from_the_parts_that_stay():
    """`tests/data/algocline-sentences.txt` has fingerprints of all its clauses of three words. A
    clause of ours may share a part that the reference lists, and one word more.
    """
    kept = read_kept_parts()
    shared = list(find_shared())
    assert len(shared) > 20  # the parts that stay are found, so others would be
    with collect_failures() as row:
        for place, words in shared:
            with row(place):
                left = min(
                    (len(words) - len(part) for part in kept if contains(words, part)),
                    default=len(words),
                )
                inside = any(contains(part, words) for part in kept)
                assert left < 2 or inside or " ".join(words) in NO_ERRORS


def contains(words: tuple[str, ...], part: tuple[str, ...]) -> bool:
    return any(words[n : n + len(part)] == part for n in range(len(words) - len(part) + 1))
