"""`import --fluers` and `export --fluers`: from a terminal, in processes of their own."""

import json
import signal
import sqlite3
import subprocess
import sys
import time

import pytest

NAME = "6f1c1f0e-8a53-4f0b-9a3e-5a7d0c1b2e3f"
AGENT = """
import everhold

support = everhold.Agent(instructions="You are support.", name="support")

@everhold.program
async def plain(ctx) -> str:
    return "done"
"""
FIRST = {
    "schema_version": 1,
    "model": "gpt-4o",
    "max_turns": 12,
    "system_message": "Be brief.",
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "Be brief."}]},
        {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Hi"}]},
    ],
    "metadata": {"channel": "cli"},
}


@pytest.fixture
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop.py").write_text(AGENT)
    (tmp_path / "answers.json").write_text('["Sure."]')
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"{NAME}.json").write_text(json.dumps(FIRST))
    return tmp_path


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "everhold", *words, "-d", "app.db"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def run(*words, given="", code=0):
    child = start(*words)
    out, err = child.communicate(given, timeout=60)
    assert child.returncode == code, out + err
    return out + err


def test_sessions_go_to_everhold_and_back(home):
    """FL20: import, talk, export; fluers gets its session with what was said since."""
    said = run("import", "--fluers", "in", "--agent", "shop.py:support")
    assert "imported 1 session of fluers" in said
    assert f"everhold chat shop.py:support --session {NAME} -d app.db" in said
    assert "model 'gpt-4o' is not a provider:name" in said
    assert "here already: 1" in run("import", "--fluers", f"in/{NAME}.json")

    chat = ("chat", "shop.py:support", "--session", NAME, "--answers", "answers.json")
    assert "Sure." in run(*chat, given="And now?\n")
    said = run("export", NAME, "--fluers", "-o", "out")
    assert "wrote 1 session of fluers to out" in said
    written = json.loads((home / "out" / f"{NAME}.json").read_text())
    new = [
        {"role": "user", "content": [{"type": "text", "text": "And now?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "Sure."}]},
    ]
    assert written == {**FIRST, "messages": [*FIRST["messages"], *new]}
    assert json.loads(run("export", NAME, "--fluers").partition("\n}\n")[0] + "}") == written
    assert "key_conflict" in run("import", "--fluers", "out", code=2)
    assert "skipped: 1" in run("import", "--fluers", "out", "--skip")


def test_an_export_of_what_was_imported_is_equal(home):
    """FL21: byte for byte, once normalised; as a file, a directory and a database."""
    run("import", "--fluers", "in")
    run("export", NAME, "--fluers", "-o", "one.json")
    run("export", NAME, "--fluers", "-o", "fluers.db")
    (home / "app.db").unlink()
    run("import", "--fluers", "fluers.db")
    run("export", NAME, "--fluers", "-o", "out")

    one = (home / "one.json").read_bytes()
    assert json.loads(one) == FIRST
    assert (home / "out" / f"{NAME}.json").read_bytes() == one


def test_a_bad_file_is_named_and_nothing_is_imported(home):
    """FL22: all bad files at once, with a hint; the good ones only on demand."""
    (home / "in" / "notes.json").write_text("{}")
    (home / "in" / "0d9f7a52-3c1e-4a5e-8a57-2f1f8f0b7c11.json").write_text("{")

    said = run("import", "--fluers", "in", code=2)

    assert "2 of 3 envelopes cannot be imported" in said and "--skip-invalid" in said
    assert "notes" in said and "0d9f7a52-3c1e-4a5e-8a57-2f1f8f0b7c11" in said
    assert json.loads(run("sessions", "--json"))["sessions"] == []
    said = json.loads(run("import", "--fluers", "in", "--skip-invalid", "--json"))
    assert list(said["sessions"]) == [NAME]
    assert [one["code"] for one in said["invalid"]] == [
        "envelope_file_failed",
        "envelope_invalid_id",
    ]


def test_wrong_calls_are_refused(home):
    """FL23: options that do not belong together, paths and agents that are not there."""
    run("import", "--fluers", "in")
    for words, told in (
        ("import", "name what to import"),
        ("import in --fluers in", "name what to import"),
        ("import x --agent shop.py:support", "need --fluers"),
        ("import --fluers in --dry-run", "--dry-run needs --algocline"),
        ("import --fluers nowhere", "there is no file or directory"),
        ("import --fluers in --agent shop.py:plain", "not_an_agent"),
        ("import --fluers in --agent shop.py:support", "key_conflict"),
        (f"export {NAME} --fluers --redact", "--fluers can only be combined"),
        ("export --fluers", "--fluers needs SESSION"),
        (f"export {NAME} {NAME} --fluers", "need a directory"),
    ):
        assert told in run(*words.split(), code=2), words


@pytest.mark.timeout(300)
def test_an_import_that_is_killed_leaves_whole_sessions(home):
    """FL24: killed at some moment of each of several imports, every session that is there is whole
    and goes on; the import can simply be repeated.
    """
    many = 300
    for n in range(many):
        name = f"{n:08d}{NAME[8:]}"
        words = [
            {"role": "user", "content": [{"type": "text", "text": f"say {n} {i}"}]}
            for i in range(20)
        ]
        (home / "in" / f"{name}.json").write_text(json.dumps({**FIRST, "messages": words}))
    (home / "in" / f"{NAME}.json").unlink()
    before = 0
    for _ in range(4):
        child = start("import", "--fluers", "in", "--agent", "shop.py:support")
        deadline = time.monotonic() + 60
        while count(home) < before + 15 and child.poll() is None and time.monotonic() < deadline:
            time.sleep(0.002)
        child.send_signal(signal.SIGKILL)
        child.communicate()
        assert child.returncode == -signal.SIGKILL
        assert before < count(home) < many
        before = count(home)

    said = run("import", "--fluers", "in", "--agent", "shop.py:support")

    assert f"imported {many - before} sessions of fluers; here already: {before}" in said
    names = [f"{n:08d}{NAME[8:]}" for n in range(many)]
    rows = json.loads(run("sessions", "--json", "--limit", "1000"))["sessions"]
    assert sorted(row["key"] for row in rows) == names
    assert {row["state"] for row in rows} <= {"paused", "running"}
    run("export", *names, "--fluers", "-o", "out")
    for n, name in enumerate(names):
        written = json.loads((home / "out" / f"{name}.json").read_text())
        assert [one["content"][0]["text"] for one in written["messages"]] == [
            f"say {n} {i}" for i in range(20)
        ]
    assert run("db", "verify")


def count(home):
    """The sessions in the database, as another process sees them."""
    try:
        with sqlite3.connect(f"file:{home / 'app.db'}?mode=ro", uri=True) as connection:
            return connection.execute("SELECT count(*) FROM session").fetchone()[0]
    except sqlite3.OperationalError:
        return 0
