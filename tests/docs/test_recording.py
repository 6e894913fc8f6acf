"""The picture in the README is a terminal that ran `everhold demo`, and stands on its own."""

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from everhold.cli.demo import MODEL_ANSWERS, TOPIC
from tests.warm import start
from tools.recording import PICTURE, draw, read_picture

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def test_the_readme_shows_the_picture_first() -> None:
    """Before any block of code."""
    readme = (ROOT / "README.md").read_text()
    assert f"]({PICTURE.relative_to(ROOT)})" in readme.partition("```")[0]


def test_the_picture_shows_the_whole_demo() -> None:
    """The question, the kill, the second process, the person, and that every claim held."""
    shown = "\n".join(read_picture(PICTURE.read_text()))
    assert shown.startswith(f"$ everhold demo\nA panel of experts: {TOPIC}")
    for words in ("kill -9 ", "4 answers recorded", "resumes from the same file"):
        assert words in shown
    assert f"waiting for a person: Publish it? {MODEL_ANSWERS['verdict']}" in shown
    assert "✓ 4 answers were recorded before the kill, and none of their questions" in shown
    assert shown.count("✓") == 6 and "✗" not in shown


def test_the_picture_shows_the_demo_as_it_is_now(tmp_path: Path) -> None:
    """All that it prints but questions and claims, without what changes from run to run."""
    done = subprocess.run(
        [*start.everhold(), "demo"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=250,
        check=True,
    )
    shown = read_picture(PICTURE.read_text())
    assert shown[0] == "$ everhold demo"
    assert list(forms(done.stdout.splitlines())) == list(forms(shown[1:]))


def forms(lines: list[str]) -> Iterator[str]:
    for line in filter(str.strip, lines):
        if not line.startswith(("  q-", "  ✓")):
            line = re.sub(r"\S*/everhold-demo-\w+", "FOLDER", line)
            line = re.sub(r"^  .* show demo", "  everhold show demo", line)
            yield re.sub(r"\d+(\.\d)?", "N", line)


def test_the_picture_loads_and_runs_nothing() -> None:
    """It is small, has only shapes and text, and names no address but that of its format."""
    text = PICTURE.read_text()
    assert len(text) < 10_000
    names = {element.tag.removeprefix(SVG) for element in ElementTree.fromstring(text).iter()}
    assert names <= {"svg", "style", "rect", "circle", "text", "tspan"}
    assert text.count("http") == 1 and "url(" not in text and "@import" not in text


def test_a_line_appears_when_it_was_printed_in_its_colours() -> None:
    lines = [(0.5, "\x1b[31;1mkill -9 7\x1b[0m"), (1.25, "  <a & b>"), (2.0, "x" * 25)]
    picture = draw(lines, "demo", 20)
    assert read_picture(picture) == [
        "$ demo",
        "kill -9 7",
        "  <a & b>",
        "x" * 20,
        "x" * 5,
    ]
    rows = picture.split("<text ")[1:]
    delays = [row.partition("animation-delay:")[2].partition("s")[0] for row in rows]
    assert delays == ["0.00", "0.50", "1.25", "2.00", "2.00"]
    assert 'font-weight="bold">kill' in rows[1] and 'fill="#' in rows[1]
