"""`everhold outbox` shows what people were told, and has them told again."""

import json
import shlex

import pytest

TOLD = """
[[tell]]
name = "desk"
command = ["sh", "-c", "cat >> told"]
"""
BROKEN = """
[[tell]]
name = "broken"
command = ["sh", "-c", "echo nobody home >&2; exit 7"]
max_age = 1000
"""


def settle(folder, text):
    (folder / "everhold.toml").write_text(text)


@pytest.mark.process
def test_a_run_that_waits_for_a_person_has_told_one(cli, tmp_path):
    """Though the command ends at once; who answers hears no more of it."""
    settle(tmp_path, TOLD)
    cli("run", "shop.py:chat", "--key", "c")
    assert json.loads((tmp_path / "told").read_text())["prompt"] == "Your name?"

    listed = cli("outbox").out
    assert "c        q-0       desk      told   1" in listed
    assert "database: sqlite:///" in listed
    (entry,) = cli("outbox", "list", "c", "--json").json["entries"]
    assert (entry["teller"], entry["state"], entry["tries"], entry["query_id"]) == (
        "desk",
        "told",
        1,
        "q-0",
    )
    assert entry["id"].endswith(f"/q-0/{entry['asked_at']}")


@pytest.mark.process
def test_the_command_that_is_told_works_in_another_folder(cli, tmp_path, monkeypatch):
    """It names the database by its whole address."""
    settle(tmp_path, TOLD)
    cli("run", "shop.py:chat", "--key", "c", "-d", "here.db")
    everhold, *words = shlex.split(json.loads((tmp_path / "told").read_text())["answer"])
    assert everhold == "everhold"
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    monkeypatch.setenv("EVERHOLD_DATABASE_URL", "sqlite:///other.db")
    assert cli(*words, "Ana", "--as", "ana").code == 10
    answers = cli("show", "c", "--json", "-d", str(tmp_path / "here.db")).json["steps"][1]
    assert answers["answers"][0]["value"] == "Ana"


@pytest.mark.process
def test_what_could_not_be_told_says_why_and_is_tried_again(cli, tmp_path):
    settle(tmp_path, BROKEN)
    cli("run", "shop.py:chat", "--key", "c")
    listed = cli("outbox").out
    assert "waiting" in listed
    assert "the command exited with 7: nobody home" in listed

    dropped = cli("outbox", "drop", "c", "--json").json["entries"]
    assert [entry["state"] for entry in dropped] == ["dropped"]
    assert "no notifications to drop" in cli("outbox", "drop", "--all").out
    again = cli("outbox", "retry", "--all", "--notifier", "broken").out
    assert "waiting" in again
    assert (
        "no notifications to send again"
        in cli("outbox", "retry", "--all", "--notifier", "desk").out
    )


@pytest.mark.process
def test_an_entry_of_a_session_that_is_gone_is_shown(cli, tmp_path):
    settle(tmp_path, TOLD)
    cli("run", "shop.py:chat", "--key", "c")
    cli("delete", "c", "--yes")
    assert "told" in cli("outbox").out


def test_nothing_was_told(cli):
    cli("run", "shop.py:chat", "--key", "c")
    assert "no notifications" in cli("outbox").out
    assert cli("outbox", "--json").json["entries"] == []


def test_one_says_which(cli):
    """Neither nothing nor both; and options after the verb."""
    cli("run", "shop.py:chat", "--key", "c")
    for verb in ("retry", "drop"):
        assert "name a SESSION, or use --all" in cli("outbox", verb).err
        assert "name a SESSION, or use --all" in cli("outbox", verb, "c", "--all").err
        assert cli("outbox", verb, "nobody").code == 2
    assert (
        "options belong after the subcommand: everhold outbox list"
        in cli("outbox", "--json", "list").out
    )
