"""Reads an exception into an `ExceptionInfo`, without the frames of everhold.

Only failures come here: a session that does not fail pays nothing for it.

Rules
  1. Frames of everhold, asyncio and the import system are left out, because they are the same in
     every failure. EVERHOLD_TRACEBACK=full keeps them.
  2. An exception that everhold raised because of another one (`raise … from error`) is left out, if
     only the other one has frames of its own.
  3. Reading never fails, whatever the exception's class does.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import importlib
import os
import re
import threading
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Final

from everhold.errors import EverholdError, read_message
from everhold.exception_info import (
    MAX_FRAMES,
    MAX_LINE_CHARS,
    MAX_MESSAGE_CHARS,
    MAX_NAME_CHARS,
    MAX_NOTE_CHARS,
    MAX_NOTES,
    MAX_RELATED,
    MAX_RELATED_FRAMES,
    ExceptionInfo,
    FrameInfo,
    format_exception,
    keep_frames,
    limit_size,
)

#: The environment variable that keeps all frames.
TRACEBACK_VARIABLE: Final = "EVERHOLD_TRACEBACK"
#: Folders and files whose frames are left out.
_OWN: Final = (
    os.path.dirname(os.path.dirname(__file__)) + os.sep,
    os.path.dirname(asyncio.__file__) + os.sep,
    os.path.dirname(concurrent.futures.__file__) + os.sep,
    threading.__file__,
    os.path.join(os.path.dirname(threading.__file__), "ast.py"),
    os.path.dirname(importlib.__file__) + os.sep,
    "<frozen importlib",
)
#: What `packages/load.py` adds to the name of a module that it loads from a file.
_LOADED: Final = re.compile(r"_[0-9a-f]{12}$")


def describe_exception(error: BaseException) -> ExceptionInfo | None:
    """What is kept of an exception; None if no frame of a user's code is known."""
    try:
        info = _describe(error, MAX_FRAMES, MAX_RELATED, {id(error)})
        while not info.frames and info.cause is not None and not info.handled:
            info = info.cause
        return limit_size(keep_frames(info, MAX_FRAMES)) if _has_frames(info) else None
    except Exception:  # an exception class may do anything
        return None


def _has_frames(info: ExceptionInfo) -> bool:
    return bool(info.frames) or any(
        _has_frames(one) for one in (*info.group, *([info.cause] if info.cause else []))
    )


def _describe(error: BaseException, most: int, depth: int, seen: set[int]) -> ExceptionInfo:
    frames, left_out = _read_frames(error, most)
    message = read_message(error)
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        frames = [*frames, _read_syntax_place(error)]
        message = str(error.msg)
    cause, handled = _read_cause(error, depth, seen)
    group: list[ExceptionInfo] = []
    parts: tuple[BaseException, ...] = ()
    if isinstance(error, BaseExceptionGroup) and depth:
        parts = error.exceptions
        group = [
            _describe(one, MAX_RELATED_FRAMES, depth - 1, seen | {id(one)})
            for one in parts[:MAX_RELATED]
        ]
    return ExceptionInfo(
        type=_read_type(error),
        message=_cut(message, MAX_MESSAGE_CHARS),
        frames=frames,
        left_out=left_out,
        notes=_read_notes(error),
        cause=cause,
        handled=handled,
        group=group,
        more=len(parts) - len(group),
    )


def _read_cause(
    error: BaseException, depth: int, seen: set[int]
) -> tuple[ExceptionInfo | None, bool]:
    """The exception behind this one, and whether it was only being handled."""
    if isinstance(error, EverholdError) and error.exception is not None:
        return error.exception, False  # recorded earlier, perhaps in another process
    found = error.__cause__
    handled = found is None and not error.__suppress_context__
    if handled and not isinstance(error, EverholdError):
        found = error.__context__
    if found is None or id(found) in seen or not depth:
        return None, False
    # the exception that everhold raised for another one says nothing about the code
    most = MAX_FRAMES if isinstance(error, EverholdError) else MAX_RELATED_FRAMES
    return _describe(found, most, depth - 1, seen | {id(found)}), handled


def _read_type(error: BaseException) -> str:
    """The name of the class, as a traceback shows it."""
    kind = type(error)
    module = _LOADED.sub("", str(kind.__module__))
    name = str(kind.__qualname__)
    if module not in ("builtins", "__main__") and not isinstance(error, EverholdError):
        name = f"{module}.{name}"
    return _cut(name, MAX_NAME_CHARS)


def _read_notes(error: BaseException) -> list[str]:
    found: Any = getattr(error, "__notes__", None)
    notes = [note for note in found if type(note) is str] if isinstance(found, list) else []
    if isinstance(error, EverholdError) and error.exception is not None:
        own = format_exception(error.exception)
        notes = [note for note in notes if note != own]
    return [_cut(note, MAX_NOTE_CHARS) for note in notes[:MAX_NOTES]]


def _cut(text: str, most: int) -> str:
    """At most so many characters, which JSON accepts: lone surrogates are escaped."""
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= most else f"{text[:most]}… ({len(text) - most:,} more characters)"


# ---- frames


def _read_frames(error: BaseException, most: int) -> tuple[list[FrameInfo], int]:
    """The first and last frames, and how many between them are left out."""
    found = list(_walk_own(error.__traceback__))
    gone = max(len(found) - most, 0)
    if gone:
        half = (most + 1) // 2
        found = found[:half] + found[half + gone :]
    try:
        listed = traceback.extract_tb(_chain(found))
        return [_read_frame(listed, each) for each in listed], gone
    except Exception:  # the source of a module may come from any loader
        return [
            FrameInfo(_cut(each.tb_frame.f_code.co_filename, MAX_NAME_CHARS), each.tb_lineno)
            for each in found
        ], gone


def _walk_own(trace: TracebackType | None) -> Iterator[TracebackType]:
    full = os.environ.get(TRACEBACK_VARIABLE) == "full"
    while trace is not None:
        if full or not trace.tb_frame.f_code.co_filename.startswith(_OWN):
            yield trace
        trace = trace.tb_next


def _chain(found: list[TracebackType]) -> TracebackType | None:
    """A traceback of these entries alone."""
    trace: TracebackType | None = None
    for one in reversed(found):
        trace = TracebackType(trace, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return trace


def _read_frame(listed: traceback.StackSummary, one: traceback.FrameSummary) -> FrameInfo:
    """A frame, with its line and the mark below it as this Python prints them."""
    lines = listed.format_frame_summary(one).splitlines()[1:3]
    code = _cut(lines[0].strip(), MAX_LINE_CHARS) if lines else ""
    mark = lines[1][4:].rstrip() if len(lines) > 1 else ""
    if set(mark) - set(" ~^") or len(mark) > len(code):
        mark = ""
    return FrameInfo(
        _cut(one.filename, MAX_NAME_CHARS),
        one.lineno or 0,
        _cut(one.name, MAX_NAME_CHARS),
        code,
        mark,
    )


def _read_syntax_place(error: SyntaxError) -> FrameInfo:
    """The place of a syntax error, with a mark below it."""
    text = str(error.text or "").rstrip("\n")
    code = text.lstrip()
    first = (error.offset or 0) - 1 - (len(text) - len(code))
    last = (error.end_offset or 0) - 1 - (len(text) - len(code))
    mark = ""
    if code and 0 <= first <= len(code) <= MAX_LINE_CHARS:
        width = last - first if error.end_lineno == error.lineno else 1
        mark = " " * first + "^" * max(min(width, len(code) - first), 1)
    return FrameInfo(str(error.filename), error.lineno or 0, "", _cut(code, MAX_LINE_CHARS), mark)


def strip_own_frames(error: BaseException) -> None:
    """Leave frames of everhold out of a live exception and those behind it, and release the values
    of all frames.
    """
    seen: set[int] = set()
    found = [error]
    while found:
        one = found.pop()
        if id(one) in seen:
            continue
        seen.add(id(one))
        kept = list(_walk_own(one.__traceback__))
        traceback.clear_frames(one.__traceback__)
        one.__traceback__ = _chain(kept)
        found += [each for each in (one.__cause__, one.__context__) if each is not None]
        if isinstance(one, BaseExceptionGroup):
            found += one.exceptions
