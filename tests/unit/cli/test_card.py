"""`everhold card`: what it prints, its JSON, and what it says of mistakes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from .conftest import Cli

DATA = Path(__file__).resolve().parents[2] / "data" / "algocline-home" / "cards"
TWICE = "twice_sonnet_20260402T101500_0a1b2c"
CAREFUL = "careful_model_20260405T080000_ffeedd"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "alc"
    shutil.copytree(DATA, root / "cards")
    monkeypatch.setenv("ALC_HOME", str(root))
    monkeypatch.delenv("ALC_CARD_SINKS", raising=False)
    return root


def test_cards_are_listed(cli: Cli, home: Path) -> None:
    """Newest first; a file that cannot be read is named on standard error."""
    (home / "cards" / "twice" / "bad.toml").write_text("= 1")
    said = cli("card")
    assert said.code == 0
    assert said.out.index("careful_") < said.out.index("twice_")
    assert "bad.toml: Invalid statement" in said.err
    found = cli("card", "list", "--pkg", "twice", "--json").json
    assert [row["card_id"] for row in found["cards"]] == [TWICE]
    assert [row["card_id"] for row in found["problems"]] == ["bad"]


def test_a_card_is_found_by_its_name(cli: Cli, home: Path) -> None:
    assert f"card_id: {CAREFUL}\n" in cli("card", "show", "best").out
    assert cli("card", "show", TWICE, "--json").json["card_id"] == TWICE
    assert cli("card", "alias", "set", "also", "best", "--note", "why").out == f"also: {CAREFUL}\n"
    rows = cli("card", "alias", "--json").json["aliases"]
    assert {row["name"]: row["card_id"] for row in rows} == {"best": CAREFUL, "also": CAREFUL}


def test_a_search(cli: Cli, home: Path) -> None:
    where = '{"stats": {"pass_rate": {"lt": 1}}}'
    assert [
        row["card_id"] for row in cli("card", "find", "--where", where, "--json").json["cards"]
    ] == [TWICE]
    ordered = cli("card", "find", "--order-by=-stats.pass_rate", "-n", "1", "--json").json["cards"]
    assert [row["card_id"] for row in ordered] == [CAREFUL]
    assert cli("card", "find", "--where", '{"ok": true}').out.startswith("no card fits\n")


def test_keys_are_added(cli: Cli, home: Path) -> None:
    """A value is JSON, else text."""
    found = cli("card", "append", "best", "n=3", "note=a b", 'x={"y": [1]}', "--json").json
    assert (found["n"], found["note"], found["x"]) == (3, "a b", {"y": [1]})
    assert "n: 3\n" in cli("card", "show", "best").out


def test_samples_and_lineage(cli: Cli, home: Path) -> None:
    lines = cli("card", "samples", TWICE, "--offset", "1").out.splitlines()
    assert [json.loads(line)["case"] for line in lines] == ["b", "c"]
    said = cli("card", "lineage", "best")
    assert [line.split()[:2] for line in said.out.splitlines()[1:]] == [
        ["-1", TWICE],
        ["0", CAREFUL],
    ]
    assert "cut at depth 0" in cli("card", "lineage", "best", "--depth", "0").err


def test_a_collection_is_installed(cli: Cli, home: Path, tmp_path: Path) -> None:
    """What cannot be read is named, and makes the exit code 1."""
    source = tmp_path / "some"
    (source / "new").mkdir(parents=True)
    (source / "alc_cards.toml").touch()
    (source / "new" / "n1.toml").write_text('schema_version = "card/v0"\n')
    said = cli("card", "install", str(source))
    assert (said.code, said.out) == (0, "installed 1 card\n")
    (source / "new" / "odd.toml").write_text("= 1")
    said = cli("card", "install", str(source))
    assert (said.code, said.out) == (1, "installed 0 cards; here already: 1\n")
    assert "not installed: new/odd: Invalid statement" in said.err


def test_a_backfill(cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("card", "backfill").out.startswith("no sinks; ")
    sink = f"file://{tmp_path / 'sink'}"
    monkeypatch.setenv("ALC_CARD_SINKS", sink)
    assert cli("card", "backfill").out == f"{sink}\n"
    dry = cli("card", "backfill", sink, "--dry-run")
    assert dry.out == ("would copy 2 cards and the samples of 1; there already: 0\naliases: best\n")
    assert not (tmp_path / "sink").exists()
    assert cli("card", "backfill", sink, "--json").json["pushed"] == [CAREFUL, TWICE]


def test_cards_of_an_installed_package_are_copied_too(
    cli: Cli, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALC_CARD_SINKS", f"file://{tmp_path / 'sink'}")
    package = tmp_path / "brings"
    (package / "cards").mkdir(parents=True)
    (package / "init.lua").write_text("return {}")
    (package / "cards" / "b1.toml").write_text('schema_version = "card/v0"\n')
    assert "cards: b1\n" in cli("pkg", "install", str(package)).out
    assert (tmp_path / "sink" / "brings" / "b1.toml").is_file()
    assert cli("card", "show", "b1", "--json").json["pkg"] == {"name": "brings"}


@pytest.mark.parametrize(
    ("typed", "code", "hint"),
    [
        (["show", "none"], "unknown_card", "everhold card list"),
        (["append", "best", "stats=1"], "card_immutable", "Nothing was written."),
        (["find", "--where", "{"], "bad_card_query", "Write it as"),
        (["find", "--where", '{"a": {"$gt": 1}}'], "bad_card_query", "The operators are"),
        (["alias", "set", "a/b", "best"], "bad_card", "A name is not empty"),
        (["alias", "set", "a", "none"], "unknown_card", "everhold card list"),
        (["backfill", "file:///x"], "unknown_card_sink", "ALC_CARD_SINKS"),
        (["install", "/nowhere"], "bad_package", "Give an existing folder"),
    ],
)
def test_mistakes(cli: Cli, home: Path, typed: list[str], code: str, hint: str) -> None:
    """Each has a code and a hint, and nothing is written."""
    said = cli("card", *typed, "--json")
    assert said.code == 2 and said.json["code"] == code
    assert hint in said.json["hint"]
