"""Transcripts in files, also those that algocline left."""

import json
import os
import shutil
import threading
from pathlib import Path

import pytest

import everhold
from everhold.mcp.algocline import transcripts
from everhold.mcp.algocline.alc_wire import AlcRefused
from everhold.programs.lua.program import LuaProgram

LEFT = Path(__file__).resolve().parents[3] / "data" / "algocline-home"
OLD = "s-185f00aa11bb22cc-0123456789abcdef"
OLDEST = "s-1840000000000000-00000000000000aa"


@pytest.fixture
def logs(tmp_path, monkeypatch):
    shutil.copytree(LEFT, tmp_path / "home")
    for name in ("ALC_LOG_DIR", "ALC_LOG_LEVEL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ALC_HOME", str(tmp_path / "home"))
    folder = tmp_path / "home" / "logs"
    for age, name in enumerate((f"{OLD}.json", f"{OLD}.meta.json", f"{OLDEST}.json")):
        os.utime(folder / name, (1_775_000_000 - age * 86_400,) * 2)
    return folder


async def ended(code, *answers, **labels):
    """The record of a session of this code that was answered to its end."""
    async with everhold.open("memory://", llm=list(answers)) as runtime:
        status = await runtime.start(
            LuaProgram.text(code), labels=transcripts.LABELS, metadata=labels
        )
        return await runtime.store.load(status.session_id)


@pytest.mark.process
async def test_a_transcript_says_who_asked_what_and_was_told_what(logs):
    record = await ended("return alc.llm('é' .. ('x'):rep(200))", "fine", strategy="mine")
    assert transcripts.write_transcript(record) == ""
    doc = json.loads((logs / f"{record.birth.id}.json").read_text())
    assert doc["strategy"] == "mine"
    assert doc["task_hint"] == "é" + "x" * 98 + "..."  # a hundred bytes
    assert doc["transcript"] == [
        {"query_id": "q-0", "prompt": "é" + "x" * 200, "system": None, "response": "fine"},
    ]
    assert doc["stats"]["total_prompt_chars"] == 202
    assert (logs / f"{record.birth.id}.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.process
async def test_a_log_that_a_power_failure_left_empty_is_written_again(logs):
    """Also if the missing logs were looked for in between."""
    async with everhold.open("memory://", llm=["a"]) as runtime:
        status = await runtime.start(
            LuaProgram.text("return alc.llm('q')"), labels=transcripts.LABELS
        )
        await transcripts.write_missing_transcripts(runtime.store, runtime.clock.now())
        log = logs / f"{status.session_id}.json"
        before = log.read_text()
        log.write_text("")
        await transcripts.write_missing_transcripts(runtime.store, runtime.clock.now())
    assert log.read_text() == before


@pytest.mark.process
async def test_who_was_asked_nothing_has_no_log_and_off_means_off(logs, monkeypatch):
    assert transcripts.write_transcript(await ended("return 1")) == ""
    monkeypatch.setenv("ALC_LOG_LEVEL", "off")
    assert transcripts.write_transcript(await ended("return alc.llm('q')", "a")) == ""
    assert len(list(logs.glob("*.json"))) == 3


def test_logs_are_listed_newest_first_also_those_without_a_sidecar(logs):
    listed = transcripts.list_logs(None)["sessions"]
    assert [one["session_id"] for one in listed] == [OLD, OLDEST]
    assert listed[0]["notes_count"] == 1
    assert listed[1] == {
        "session_id": OLDEST,
        "strategy": None,
        "task_hint": "from before there were sidecars",
        "elapsed_ms": 1001,
        "rounds": 1,
        "llm_calls": 1,
        "total_prompt_chars": 10,
        "total_response_chars": 5,
        "prompt_tokens": None,
        "response_tokens": None,
        "total_tokens": None,
        "notes_count": 0,
    }
    assert len(transcripts.list_logs(1)["sessions"]) == 1


def test_what_sessions_cost_is_added_up_by_strategy(logs):
    told = transcripts.compute_log_stats(None, None)
    assert told["total_sessions"] == 2
    assert told["strategies"]["unknown"] == {
        "count": 1,
        "avg_elapsed_ms": 1001,
        "avg_llm_calls": 1,
        "avg_rounds": 1,
        "total_prompt_chars": 10,
        "total_response_chars": 5,
        "total_prompt_tokens": 0,
        "total_response_tokens": 0,
        "total_tokens": 0,
    }
    assert told["strategies"]["twice"]["total_tokens"] == 50
    assert (
        transcripts.compute_log_stats(None, 1)["total_sessions"] == 0
    )  # they are older than a day


def test_a_log_is_shown_as_it_stands_in_its_file(logs):
    assert transcripts.read_log(OLDEST, None) == (logs / f"{OLDEST}.json").read_text()


def test_of_a_log_that_is_too_long_the_newest_rounds_are_shown(logs):
    file = logs / "s-long.json"
    rounds = [
        {"query_id": "q-0", "prompt": f"p{n}", "system": None, "response": "r"} for n in range(50)
    ]
    file.write_text(json.dumps({"session_id": "s-long", "transcript": rounds}))
    shown = json.loads(transcripts.read_log("s-long", 1500))
    assert shown["truncated"] is True and shown["original_rounds"] == 50
    assert 0 < shown["returned_rounds"] == len(shown["transcript"]) < 50
    assert shown["transcript"][-1]["prompt"] == "p49"
    assert len(transcripts.read_log("s-long", 1500)) <= 1500
    assert json.loads(transcripts.read_log("s-long", 1))["returned_rounds"] == 0
    assert transcripts.read_log("s-long", 0) == file.read_text()


def test_notes_keep_what_else_is_in_the_file(logs):
    assert transcripts.add_log_note(OLD, "more", None) == {"session_id": OLD, "notes_count": 2}
    doc = json.loads((logs / f"{OLD}.json").read_text())
    assert [note["content"] for note in doc["notes"]] == ["The second draft was better.", "more"]
    assert json.loads((logs / f"{OLD}.meta.json").read_text())["notes_count"] == 2
    transcripts.add_log_note(OLDEST, "x", "t")
    assert json.loads((logs / f"{OLDEST}.meta.json").read_text())["notes_count"] == 1


def test_notes_that_come_at_once_are_all_kept(logs):
    writers = [
        threading.Thread(target=transcripts.add_log_note, args=(OLD, str(n), None))
        for n in range(8)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert len(json.loads((logs / f"{OLD}.json").read_text())["notes"]) == 9


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "is not JSON"),
        ("[]", "should be an object"),
        ('{"notes": 3}', "has notes that are not a list"),
    ],
)
def test_a_log_that_cannot_be_understood_is_left_as_it_is(logs, text, why):
    (logs / "s-bad.json").write_text(text)
    with pytest.raises(AlcRefused, match=why):
        transcripts.add_log_note("s-bad", "x", None)
    assert (logs / "s-bad.json").read_text() == text
    assert OLD in [one["session_id"] for one in transcripts.list_logs(None)["sessions"]]


@pytest.mark.parametrize("name", ["../home", "a/b", "..", "", "s\0x"])
def test_a_session_that_is_no_name_has_no_log(logs, name):
    with pytest.raises(AlcRefused, match="Log of session"):
        transcripts.read_log(name, None)


def test_where_nothing_can_be_written_there_are_no_logs(monkeypatch):
    monkeypatch.setattr(transcripts, "log_dir", lambda: (None, "none"))
    assert transcripts.list_logs(None) == {"sessions": []}
    assert transcripts.compute_log_stats(None, None) == {
        "total_sessions": 0,
        "strategies": {},
    }
    with pytest.raises(AlcRefused, match="No folder for logs"):
        transcripts.read_log("x", None)
