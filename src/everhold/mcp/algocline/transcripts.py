"""Transcripts in files, as algocline writes them. Those that algocline wrote are read too.

    <session>.json       session_id, strategy, task_hint, stats, transcript, and added notes
    <session>.meta.json  the row of a list

Rules
  1. A transcript is written when its session has ended, if a model was asked anything. Sessions
     that ended without this server (through another front, or after a crash) get theirs when logs
     are read. A deleted log is not written again, and a session that started with logs switched off
     never gets one.
  2. A file is written whole, readable by its owner only. Unknown keys are kept.
  3. A file that cannot be read is left out of lists, and is not changed.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from everhold.archive.transfer import iterate_sessions
from everhold.core.codec import JSON
from everhold.core.session import ENDED
from everhold.engine import session_view
from everhold.engine.session_view import make_finished_status
from everhold.errors import BadPackageFile, EverholdError
from everhold.mcp.algocline.alc_wire import AlcRefused, dump_pretty, render_alc_stats
from everhold.mcp.algocline.query_ids import read_query_names
from everhold.packages.lua.atomic_file import (
    hold_file_lock,
    parse_json_file,
    read_text_file,
    write_atomically,
    write_together,
)
from everhold.packages.lua.paths import is_log_enabled, log_dir
from everhold.ports.store import SessionFilter, SessionRecord, Store
from everhold.wire import dump_wire_json

#: The label of sessions that this profile started.
LABELS: Final = {"profile": "algocline"}
#: In the metadata of sessions that started with logs switched off.
UNLOGGED_LABELS: Final = {"log": "off"}
#: The file with the time up to which every ended session has its log.
LOGGED_MARK_FILE: Final = ".everhold-logged"
NOTES_LOCK_FILE: Final = ".everhold-notes.lock"
HINT_LENGTH: Final = 100  # bytes of the first prompt in a list
DEFAULT_LISTED: Final = 50
DEFAULT_MAX_CHARS: Final = 100_000

#: Seconds after which the system has written a file to the disk without being told to. Until then a
#: power failure can leave a log empty, so the logs of these sessions are checked again.
UNSYNCED_SECONDS: Final = 60.0

_SUMS: Final = ("elapsed_ms", "llm_calls", "rounds")
_CHARS: Final = ("total_prompt_chars", "total_response_chars")
_TOKENS: Final = ("prompt_tokens", "response_tokens", "total_tokens")


def find_log_folder() -> Path:
    """The folder of logs; raises `AlcRefused` if no folder can be written."""
    found = log_dir()[0]
    if found is None:
        raise AlcRefused("No folder for logs can be written", "bad_setting")
    return found


# ---- writing


def write_transcript(record: SessionRecord) -> str:
    """Write the transcript of an ended session. Return a warning if that failed, or empty text."""
    birth = record.birth
    if (
        not is_log_enabled()
        or not birth.labels.items() >= LABELS.items()
        or birth.metadata.items() >= UNLOGGED_LABELS.items()
    ):
        return ""
    try:
        _write_files(find_log_folder(), record)
    except (EverholdError, AlcRefused) as error:
        return str(error)
    return ""


def _write_files(into: Path, record: SessionRecord) -> None:
    session_id = record.birth.id
    known = read_query_names(record)
    transcript = [
        {**said, "query_id": known[said["query_id"]]}
        for said in session_view.make_transcript(record.deliveries)
    ]
    if not transcript or _find_size(into / f"{session_id}.json"):
        return
    prompt = transcript[0]["prompt"]
    words = prompt.encode()
    doc = {
        "session_id": session_id,
        "strategy": record.birth.metadata.get("strategy"),
        "task_hint": (
            prompt
            if len(words) <= HINT_LENGTH
            else words[:HINT_LENGTH].decode(errors="ignore") + "..."
        ),
        "stats": render_alc_stats(make_finished_status(record))["auto"],
        "transcript": transcript,
    }
    # the host waits for this: two syncs take longer than the rest of its call
    meta, log = into / f"{session_id}.meta.json", into / f"{session_id}.json"
    write_together({meta: dump_wire_json(_meta(doc)), log: dump_pretty(doc)}, sync=False)


def _find_size(log: Path) -> int | None:
    """The bytes of a log; None if there is no such file."""
    try:
        return log.stat().st_size
    except OSError:
        return None


def _meta(doc: dict[str, Any]) -> dict[str, JSON]:
    stats = doc["stats"] if isinstance(doc.get("stats"), dict) else {}
    return {
        "session_id": doc.get("session_id", "unknown"),
        "strategy": doc.get("strategy"),
        "task_hint": doc.get("task_hint"),
        **{key: stats.get(key) for key in (*_SUMS, *_CHARS, *_TOKENS)},
        "notes_count": len(doc["notes"]) if isinstance(doc.get("notes"), list) else 0,
    }


async def write_missing_transcripts(store: Store, now: float) -> None:
    """Write the missing transcripts of sessions that ended since the last call."""
    into = log_dir()[0]
    if into is None or not is_log_enabled():
        return
    mark = into / LOGGED_MARK_FILE
    try:
        since = float(mark.read_text())
    except (OSError, ValueError):
        since = 0.0
    wanted = SessionFilter(
        state=tuple(sorted(ENDED)), labels=LABELS, newer_than=since - UNSYNCED_SECONDS
    )
    async for row in iterate_sessions(store, wanted):
        size = _find_size(into / f"{row.birth.id}.json")
        if size == 0 or (size is None and row.head.updated_at >= since):
            write_transcript(await store.load(row.birth.id))
    if into.is_dir():
        write_atomically(mark, repr(now))


# ---- notes


def add_log_note(session_id: str, content: str, title: str | None) -> dict[str, JSON]:
    """Add a note to a log."""
    into = find_log_folder()
    file = _file(into, session_id)
    with hold_file_lock(into / NOTES_LOCK_FILE):
        doc = _doc(file)
        notes = doc.setdefault("notes", [])
        if not isinstance(notes, list):
            raise AlcRefused(f"{file} has notes that are not a list", "bad_package_file")
        notes.append({"timestamp": int(time.time()), "title": title, "content": content})
        write_atomically(file, dump_pretty(doc))
        meta = file.with_suffix(".meta.json")
        kept = _read(meta)
        write_atomically(
            meta,
            dump_wire_json(_meta(doc) if kept is None else {**kept, "notes_count": len(notes)}),
        )
    return {"session_id": session_id, "notes_count": len(notes)}


# ---- reading


def list_logs(limit: int | None) -> dict[str, JSON]:
    """The newest logs."""
    found = sorted(_logs(), key=lambda one: (-one[0], one[1].name))
    metas = (_summary(file) for _, file in found)
    shown = [meta for meta in metas if meta is not None]
    return {"sessions": [*shown[: DEFAULT_LISTED if limit is None else limit]]}


def read_log(session_id: str, most: int | None) -> str:
    """One log as its file has it. If it is too long, the oldest rounds are left out."""
    file = _file(find_log_folder(), session_id)
    most = DEFAULT_MAX_CHARS if most is None else most
    doc = _doc(file)
    raw = file.read_text(encoding="utf-8")
    rounds = doc.get("transcript")
    if not most or len(raw.encode()) <= most or not isinstance(rounds, list) or not rounds:
        return raw
    # binary search for the number of the newest rounds that fit
    few = 0
    many = len(rounds)
    while few < many:
        middle = (few + many + 1) // 2
        few, many = (
            (middle, many) if len(_cut(doc, rounds, middle).encode()) <= most else (few, middle - 1)
        )
    return _cut(doc, rounds, few)


def _cut(doc: dict[str, Any], rounds: list[Any], kept: int) -> str:
    newest = rounds[len(rounds) - kept :]
    facts = {"truncated": True, "original_rounds": len(rounds), "returned_rounds": kept}
    return dump_pretty({**doc, "transcript": newest, **facts})


def compute_log_stats(strategy: str | None, days: int | None) -> dict[str, JSON]:
    """The costs of the logged sessions, by strategy."""
    begin = 0.0 if days is None else time.time() - days * 86_400
    found: dict[str, list[dict[str, Any]]] = {}
    for at, file in _logs():
        meta = _summary(file) if at >= begin else None
        if meta is not None:
            name = meta.get("strategy")
            found.setdefault(name if isinstance(name, str) else "unknown", []).append(meta)
    if strategy is not None:
        found = {name: metas for name, metas in found.items() if name == strategy}
    return {
        "total_sessions": sum(map(len, found.values())),
        "strategies": {name: _sum_metas(metas) for name, metas in sorted(found.items())},
    }


def _sum_metas(metas: list[dict[str, Any]]) -> dict[str, JSON]:
    many = len(metas)
    totals: dict[str, JSON] = {"count": many}
    for key in _SUMS:
        totals[f"avg_{key}"] = (sum(_whole(meta.get(key)) for meta in metas) + many // 2) // many
    for key in _CHARS:
        totals[key] = sum(_whole(meta.get(key)) for meta in metas)
    for key in _TOKENS:
        totals[f"total_{key}".replace("total_total", "total")] = sum(
            _tokens(meta.get(key)) for meta in metas
        )
    return totals


def _whole(value: Any) -> int:
    return value if type(value) is int and value >= 0 else 0


def _tokens(value: Any) -> int:
    return _whole(value.get("tokens") if isinstance(value, dict) else value)


# ---- files


def _logs() -> Iterator[tuple[float, Path]]:
    """Every log with the time of its last write."""
    into = log_dir()[0]
    for file in into.glob("*.json") if into is not None else ():
        if not file.name.endswith(".meta.json") and not file.name.startswith("."):
            try:
                yield file.stat().st_mtime, file
            except OSError:  # deleted meanwhile
                continue


def _file(into: Path, session_id: str) -> Path:
    file = into / f"{session_id}.json"
    if set(session_id) & set("/\\\0") or ".." in session_id or not os.path.isfile(file):
        raise AlcRefused(f"Log of session '{session_id}' not found", "unknown_session")
    return file


def _doc(file: Path) -> dict[str, Any]:
    try:
        doc = parse_json_file(file, read_text_file(file) or "")
        if not isinstance(doc, dict):
            raise BadPackageFile(str(file), "it should be an object")
    except BadPackageFile as error:
        raise AlcRefused.of(error) from None
    return doc


def _read(file: Path) -> dict[str, Any] | None:
    try:
        return _doc(file)
    except AlcRefused:
        return None


def _summary(file: Path) -> dict[str, Any] | None:
    meta = _read(file.with_suffix(".meta.json"))
    if meta is not None:
        return meta
    doc = _read(file)
    return None if doc is None else _meta(doc)
