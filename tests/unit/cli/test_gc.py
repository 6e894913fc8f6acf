"""`everhold db gc` deletes what it is told, or what the settings say, and says how much."""

import json
from pathlib import Path

import pytest

from everhold.errors import StoreFull
from everhold.stores.sqlite import SQLiteStore

from .conftest import Cli

pytestmark = pytest.mark.process


def fill(cli: Cli) -> None:
    """Two that completed, one that failed, one that was cancelled, one that waits."""
    for key in ("one", "two"):
        cli("run", "shop.py:grades", "--key", key)
        cli("answer", key, "7")
    cli("run", "shop.py:fails", "--key", "failed", "--answer-with", "cat")
    cli("run", "shop.py:chat", "--key", "stopped")
    cli("cancel", "stopped")
    cli("run", "shop.py:chat", "--key", "waiting")


def keys(cli: Cli) -> set[str]:
    return {one["key"] for one in cli("sessions", "--json").json["sessions"]}


def test_each_state_has_an_age_of_its_own(cli: Cli) -> None:
    fill(cli)
    asked = (
        "db",
        "gc",
        "--older-than",
        "failed=0s",
        "--older-than",
        "cancelled=1d",
        "--older-than",
        "completed=0s",
    )
    dry = cli(*asked, "--dry-run")
    assert dry.out.startswith("3 sessions (2 completed, 1 failed), ")
    assert " bytes would be deleted" in dry.out
    assert keys(cli) == {"one", "two", "failed", "stopped", "waiting"}

    told = cli(*asked, "--yes", "--json").json
    assert (told["counts"], told["result"], len(told["deleted"])) == (
        {"completed": 2, "failed": 1},
        "swept",
        3,
    )
    assert told["bytes"] > 0
    assert keys(cli) == {"stopped", "waiting"}


def test_the_settings_say_what_goes(cli: Cli, tmp_path: Path) -> None:
    fill(cli)
    (tmp_path / "everhold.toml").write_text("[retention]\ncancelled = '0s'\ncompleted = '1d'\n")
    assert cli("db", "gc", "--yes").out.startswith("1 session (1 cancelled), ")
    assert keys(cli) == {"one", "two", "failed", "waiting"}
    assert cli("db", "gc", "--keep-last", "1", "--per-program", "--yes").out.startswith(
        "1 session (1 completed), "
    )


def test_what_is_left_over_goes_alone(cli: Cli) -> None:
    fill(cli)
    assert "nothing is left over" in cli("db", "gc", "--left-over").out
    assert cli("db", "gc", "--left-over", "--json").json["reclaimed"] == {
        "blobs": 0,
        "bytes": 0,
        "rows": 0,
    }
    assert len(keys(cli)) == 5


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("--older-than 1d --older-than 2d", "once for all states, or once for each"),
        ("--older-than 1d --older-than failed=2d", "once for all states, or once for each"),
        ("--older-than failed=soon", "not a duration"),
        ("--older-than asleep=1d", "'asleep' is not an ended state"),
        ("--left-over --keep-last 1", "use it alone"),
    ],
)
def test_what_cannot_be_meant_is_refused(cli: Cli, words: str, why: str) -> None:
    fill(cli)
    said = cli("db", "gc", *words.split())
    assert (said.code, why in said.err) == (2, True)
    assert len(keys(cli)) == 5


def test_one_that_fails_says_what_it_did(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """And exits as what the operator has to see to."""
    fill(cli)
    delete, gone = SQLiteStore.delete, []

    async def full(store: SQLiteStore, session_id: str, fence: int) -> int:
        if gone:
            raise StoreFull("here")
        gone.append(session_id)
        return await delete(store, session_id, fence)

    monkeypatch.setattr(SQLiteStore, "delete", full)
    said = cli("db", "gc", "--older-than", "0s", "--yes", "--json")
    told = json.loads(said.out)
    assert (said.code, told["result"], told["code"], told["deleted"]) == (
        4,
        "failed",
        "sweep_failed",
        gone,
    )

    gone.clear()
    said = cli("db", "gc", "--older-than", "0s", "--yes")
    assert (said.code, said.out.startswith("1 session (1 completed), ")) == (4, True)
    assert "the sweep stopped after 1 deleted" in said.err
