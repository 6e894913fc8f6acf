"""Every fenced block of the README and the docs runs, and every console block is what was
printed.
"""

import os
import shutil
from pathlib import Path

import pytest

from .blocks import LANGUAGES, Reader, alike, blocks, recorded

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    page
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    if blocks(page.read_text()) and not {"adr", "api"} & set(page.parts)
]
ON_POSTGRES = "run-on-postgres.md"
RECORDS = bool(os.environ.get("EVERHOLD_RECORD"))


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.xdist_group("postgres"))
        if page.name == ON_POSTGRES
        else page
        for page in PAGES
    ],
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
@pytest.mark.filterwarnings("ignore:.*use of forkpty.*:DeprecationWarning")
def test_every_block_of_a_page_runs_and_prints_what_it_shows(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    text = page.read_text()
    reader = Reader(tmp_path)
    if page.name == ON_POSTGRES:
        reader.env |= request.getfixturevalue("postgres").home("shop")
    if page.name == "switch-from-algocline.md":
        shutil.copytree(ROOT / "tests" / "data" / "algocline-home", tmp_path / ".algocline")
    now = reader.read(blocks(text))
    if RECORDS:
        page.write_text(recorded(text, now))
        return
    for block, said in zip(blocks(text), now, strict=True):
        assert alike(said) == alike(block.text)


def test_a_block_says_its_language() -> None:
    found = {page: {block.language for block in blocks(page.read_text())} for page in PAGES}
    assert {
        page.name: languages
        for page, languages in found.items()
        if not languages <= LANGUAGES - {"py"}
    } == {}
