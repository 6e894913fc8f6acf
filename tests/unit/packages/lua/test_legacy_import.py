"""What algocline left, as durable values of ours."""

import shutil
from pathlib import Path

import pytest

from everhold.packages.lua.legacy_import import read_legacy_data
from everhold.packages.lua.paths import AlcHome

LEFT = Path(__file__).resolve().parents[3] / "data" / "algocline-home"
CARD = "twice_sonnet_20260402T101500_0a1b2c"


@pytest.fixture
def home(tmp_path):
    shutil.copytree(LEFT, tmp_path / "home")
    return AlcHome(tmp_path / "home")


def written(found):
    return {
        (namespace, key): value for part in found.parts for namespace, key, value in part.values
    }


def test_values_keep_their_namespace_and_type(home):
    found = written(read_legacy_data(home))
    assert found["lua/default", "runs"] == 41
    assert found["lua/default", "last"] is None
    assert found["lua/default", "notes"] == {"tone": "plain", "words": ["short", "clear"]}
    assert found["lua/team-a", "visits"] == 7.5


def test_values_go_where_lua_programs_find_them(home):
    """Into what is Lua's own, and into a name that the settings share."""
    found = written(read_legacy_data(home, {"team-a"}))
    assert found["lua/default", "runs"] == 41
    assert found["team-a", "visits"] == 7.5


def test_a_card_comes_with_its_place_its_summary_and_its_samples(home):
    found = written(read_legacy_data(home))
    assert found["card/id", CARD] == "twice"
    assert found["card/body", f"twice/{CARD}"]["params"] == {"max_tokens": 256}
    assert found["card/index", f"twice/{CARD}"] == {
        "card_id": CARD,
        "pkg": "twice",
        "created_at": "2026-04-02T10:15:00Z",
        "model": "claude-sonnet",
        "scenario": "riddles",
        "pass_rate": 0.75,
    }
    assert [row["case"] for row in found["card/samples", CARD]] == ["a", "b", "c"]
    assert found["card/alias", "best"]["card_id"] == "careful_model_20260405T080000_ffeedd"


def test_dates_become_texts_and_what_is_missing_is_taken_from_the_place(home):
    (home.cards / "twice" / "bare.toml").write_text(
        "made = 2026-01-02T03:04:05Z\nday = 2026-01-02\n"
    )
    body = written(read_legacy_data(home))["card/body", "twice/bare"]
    assert body == {
        "made": "2026-01-02T03:04:05Z",
        "day": "2026-01-02",
        "card_id": "bare",
        "pkg": {"name": "twice"},
    }


def test_logs_are_counted_and_stay(home):
    assert read_legacy_data(home).logs == 2


@pytest.mark.parametrize(
    ("place", "text", "why"),
    [
        ("state/broken.json", "{", "not JSON"),
        ("state/list.json", "[1]", "it should hold an object"),
        ("state/nan.json", '{"x": NaN}', "not JSON"),
        ("state/huge.json", '{"x": 99999999999999999999}', "64 bits"),
        ("cards/twice/broken.toml", "= 1", "Invalid"),
        ("cards/twice/other.toml", 'card_id = "another"', "card 'another'"),
        ("cards/twice/flat.toml", 'pkg = "twice"', "pkg should be a table"),
        (
            "cards/twice/up.toml",
            'card_id = "up"\n[pkg]\nname = "../x"',
            "card 'up' of package '../x'",
        ),
        (f"cards/twice/{CARD}.samples.jsonl", "{}\n{", "not JSON"),
        ("cards/_aliases.toml", '[[alias]]\nname = "x"', "alias 1 needs a name and a card_id"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_and_passed_over(home, place, text, why):
    before = read_legacy_data(home)
    (home.root / place).write_text(text)
    found = read_legacy_data(home)
    (problem,) = found.problems
    assert why in problem and str(home.root) in problem
    assert len(found.parts) >= len(before.parts) - 1


def test_a_folder_without_anything_holds_nothing(tmp_path):
    found = read_legacy_data(AlcHome(tmp_path))
    assert (found.parts, found.problems, found.logs) == ([], [], 0)
