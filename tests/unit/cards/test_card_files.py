"""Cards in files: what is read, what is named as unreadable, and that what is written is read back."""  # noqa: E501

import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everhold.cards.card import drop_nulls
from everhold.errors import BadCard
from everhold.packages.lua.card_files import (
    CardFolder,
    dump_aliases,
    dump_card,
    dump_samples,
    read_samples,
)

CARD = 'schema_version = "card/v0"\n'
_KEYS = st.text(st.characters(codec="utf-8"), max_size=6)
_VALUES = st.recursive(
    st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(codec="utf-8"), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS, inner, max_size=3),
    max_leaves=8,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for pkg, card in (("a", "one"), ("b", "two")):
        (tmp_path / pkg).mkdir()
        (tmp_path / pkg / f"{card}.toml").write_text(CARD)
    return tmp_path


@given(st.dictionaries(_KEYS, _VALUES, max_size=5))
def test_what_is_written_is_read_back(card: dict[str, object]) -> None:
    """Any plain JSON, as it was."""
    assert tomllib.loads(dump_card(card)) == card


def test_aliases_and_samples_are_read_back(tmp_path: Path) -> None:
    rows = [{"name": "a", "card_id": "x"}, {"name": 'q"', "card_id": "y", "note": "n\nn"}]
    assert tomllib.loads(dump_aliases(rows)) == {"alias": rows}
    (tmp_path / "s").write_text(dump_samples([{"a": None}, [1], "x"]))
    assert read_samples(tmp_path / "s") == [{"a": None}, [1], "x"]


def test_nulls_are_dropped_at_every_depth() -> None:
    assert drop_nulls({"a": None, "b": [1, None, {"c": None}]}) == {"b": [1, {}]}


def test_the_folder_is_the_package(root: Path) -> None:
    """Files that are no cards, and folders that are no packages, are left alone."""
    (root / "_hidden").mkdir()
    (root / "_hidden" / "x.toml").write_text("= 1")
    (root / "a" / ".one.toml.tmp").write_text("= 1")
    (root / "a" / "readme.md").write_text("")
    found = CardFolder(root).load()
    assert {card: file.pkg for card, file in found.cards.items()} == {"one": "a", "two": "b"}
    assert found.cards["one"].body["pkg"] == {"name": "a"}
    assert found.problems == []


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("= 1", "Invalid statement"),
        ('card_id = "other"', "does not fit its file name"),
        ('pkg = "x"', "pkg should be a table"),
        ("[pkg]\nname = 5", "does not fit its file name"),
        ("n = nan", "is not a JSON number"),
        ("\xff", "it is not UTF-8 text"),
    ],
)
def test_a_file_that_is_no_card_is_a_problem(root: Path, text: str, words: str) -> None:
    """The others are read."""
    (root / "a" / "bad.toml").write_bytes(text.encode("latin-1"))
    found = CardFolder(root).load()
    assert sorted(found.cards) == ["one", "two"]
    (problem,) = found.problems
    assert words in problem.reason and problem.card_id == "bad"


def test_an_id_means_one_card(root: Path) -> None:
    (root / "b" / "one.toml").write_text(CARD)
    found = CardFolder(root).load()
    assert found.cards["one"].pkg == "a"
    assert found.problems[0].reason == "package 'a' has a card of this id already"


@pytest.mark.parametrize("text", ["= 1", "alias = 5", '[[alias]]\nname = "x"', "[[alias]]\nname=1"])
def test_aliases_that_cannot_be_read_are_a_problem(root: Path, text: str) -> None:
    (root / "_aliases.toml").write_text(text)
    found = CardFolder(root).load()
    assert found.aliases == {} and len(found.cards) == 2
    assert found.problems[0].path.endswith("_aliases.toml")


def test_one_bad_alias_among_good_ones_is_a_problem(root: Path) -> None:
    """It is named by its place, and the others are there."""
    good = '[[alias]]\nname = "x"\ncard_id = "one"\n'
    (root / "_aliases.toml").write_text(f'{good}[[alias]]\nname = "y"\n{good.replace("x", "z")}')
    found = CardFolder(root).load()
    assert sorted(found.aliases) == ["x", "z"]
    assert [one.reason for one in found.problems] == ["alias 2 needs a name and a card_id"]


def test_what_is_not_a_regular_file_is_a_problem(root: Path) -> None:
    """A pipe would not end."""
    os.mkfifo(root / "a" / "pipe.toml")
    assert [one.reason for one in CardFolder(root).load().problems] == ["it is not a regular file"]


def test_a_changed_file_is_read_again(root: Path) -> None:
    """And an unchanged one is not: what was read is the same object."""
    folder = CardFolder(root)
    before = folder.load().cards
    file = root / "a" / "one.toml"
    file.write_text(CARD + "n = 1\n")
    os.utime(file, ns=(1, 1))
    (root / "b" / "two.toml").unlink()
    after = folder.load().cards
    assert after["one"].body["n"] == 1 and "two" not in after
    assert folder.load().cards["one"].body is after["one"].body is not before["one"].body


def test_a_folder_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    assert CardFolder(tmp_path / "none").load().cards == {}
    assert read_samples(tmp_path / "none") is None


def test_a_bad_line_of_samples_is_named(tmp_path: Path) -> None:
    (tmp_path / "s.samples.jsonl").write_bytes(b'{"a":1}\n\n\xff\n{}\n')
    with pytest.raises(BadCard, match=r"s\.samples\.jsonl, line 3: not JSON"):
        read_samples(tmp_path / "s.samples.jsonl")
