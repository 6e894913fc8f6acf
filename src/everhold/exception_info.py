"""What is kept of an exception that the code of a user raised: type, message and frames.

An `ExceptionInfo` is stored with the failed session or answer, so that other processes and later
days see it, too. `ports/exception_reader.py` makes it; everything that people read is formatted
here, as Python does it.

Rules
  1. It has no values of local variables.
  2. It has at most `MAX_FRAMES` frames, the first and the last ones, and at most `MAX_BYTES` bytes
     as JSON.
  3. Of exceptions that belong together (causes, groups), only the newest `MAX_RELATED` are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Final

import msgspec

MAX_FRAMES: Final = 20
#: Frames of an exception that is a cause, or a part of a group.
MAX_RELATED_FRAMES: Final = 6
#: Causes in a chain, and exceptions of one group.
MAX_RELATED: Final = 3
#: How often a frame that is repeated, as by a recursion, is shown.
MAX_REPEATED: Final = 3
MAX_BYTES: Final = 8192
MAX_MESSAGE_CHARS: Final = 1000
MAX_NOTES: Final = 5
MAX_NOTE_CHARS: Final = 500
MAX_LINE_CHARS: Final = 200
MAX_NAME_CHARS: Final = 300

_CAUSED: Final = "The above exception was the direct cause of the following exception:"
_HANDLED: Final = "During handling of the above exception, another exception occurred:"


class FrameInfo(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """One frame: a place in the code, and its line if the file could be read."""

    file: str
    line: int
    function: str = ""  # empty: the place of a syntax error
    code: str = ""
    mark: str = ""  # the line below the code, which marks a part of it


class ExceptionInfo(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """An exception, with the frames from the caller to the line that raised it."""

    type: str
    message: str = ""
    frames: list[FrameInfo] = []
    left_out: int = 0  # frames between the first and the second half of `frames`
    notes: list[str] = []
    cause: ExceptionInfo | None = None
    handled: bool = False  # the cause was being handled, and not named with `from`
    group: list[ExceptionInfo] = []
    more: int = 0  # exceptions of the group that are not in it

    @property
    def summary(self) -> str:
        """The last line of a traceback: type and message."""
        return f"{self.type}: {self.message}" if self.message else self.type

    @property
    def place(self) -> str:
        """Where it was raised: `shop.py, line 7, in charge`; empty if no frame is known."""
        if not self.frames:
            return ""
        last = self.frames[-1]
        file = last.file.replace("\\", "/").rpartition("/")[2]
        return f"{file}, line {last.line}" + (f", in {last.function}" if last.function else "")


def format_exception(info: ExceptionInfo) -> str:
    """A traceback as Python prints it, without a line break at its end."""
    return "\n".join(_chain(info))


def _chain(info: ExceptionInfo) -> list[str]:
    lines = []
    if info.cause is not None:
        lines += [*_chain(info.cause), "", _HANDLED if info.handled else _CAUSED, ""]
    return lines + _one(info)


def _one(info: ExceptionInfo) -> list[str]:
    lines = []
    if any(frame.function for frame in info.frames):
        lines.append("Traceback (most recent call last):")
    half = (len(info.frames) + 1) // 2 if info.left_out else 0
    lines += _list_frames(info.frames[:half])
    if half:
        lines.append(f"  [{info.left_out} frames left out]")
    lines += _list_frames(info.frames[half:])
    lines += [
        *info.summary.split("\n"),
        *(line for note in info.notes for line in note.split("\n")),
    ]
    for number, part in enumerate(info.group, 1):
        lines.append(f"  +---------------- {number} ----------------")
        lines += [f"  | {line}".rstrip() for line in _chain(part)]
    if info.more:
        lines.append(f"  +---------------- {info.more} more ----------------")
    return lines


def _list_frames(frames: list[FrameInfo]) -> list[str]:
    """Frames as Python lists them: of a frame that is repeated, only the first few."""
    lines = []
    for frame, alike in groupby(frames):
        count = len(list(alike))
        where = f", in {frame.function}" if frame.function else ""
        one = [f'  File "{frame.file}", line {frame.line}{where}']
        one += [f"    {line}" for line in (frame.code, frame.mark) if line]
        lines += one * min(count, MAX_REPEATED)
        more = count - MAX_REPEATED
        if more > 0:
            times = f"{more} more time{'' if more == 1 else 's'}"
            lines.append(f"  [Previous line repeated {times}]")
    return lines


def limit_size(info: ExceptionInfo) -> ExceptionInfo:
    """The exception with at most `MAX_BYTES`: notes, lines of code and frames are dropped, in this
    order, then causes and groups.
    """
    for shrink in (_without_notes, _without_code, _with_few_frames, _alone, _without_frames):
        if len(msgspec.json.encode(info)) <= MAX_BYTES:
            break
        info = shrink(info)
    return info


def _without_notes(info: ExceptionInfo) -> ExceptionInfo:
    return _map(info, lambda one: msgspec.structs.replace(one, notes=[]))


def _without_code(info: ExceptionInfo) -> ExceptionInfo:
    """Only the last frame of each exception keeps its line."""

    def bare(one: ExceptionInfo) -> ExceptionInfo:
        frames = [msgspec.structs.replace(frame, code="", mark="") for frame in one.frames[:-1]]
        return msgspec.structs.replace(one, frames=frames + one.frames[-1:])

    return _map(info, bare)


def _with_few_frames(info: ExceptionInfo) -> ExceptionInfo:
    return _map(info, lambda one: keep_frames(one, 2))


def _alone(info: ExceptionInfo) -> ExceptionInfo:
    return msgspec.structs.replace(info, cause=None, group=[], more=info.more + len(info.group))


def _without_frames(info: ExceptionInfo) -> ExceptionInfo:
    """Little enough, however many bytes each character takes."""
    few = MAX_NAME_CHARS
    return ExceptionInfo(
        info.type[:few], info.message[:few], left_out=info.left_out, more=info.more
    )


def keep_frames(info: ExceptionInfo, most: int) -> ExceptionInfo:
    """The exception with its first and last frames, `most` of them in all."""
    gone = len(info.frames) - most
    if gone <= 0:
        return info
    half = (most + 1) // 2
    frames = info.frames[:half] + info.frames[half + gone :]
    return msgspec.structs.replace(info, frames=frames, left_out=info.left_out + gone)


def map_texts(info: ExceptionInfo, change: Callable[[str], str]) -> ExceptionInfo:
    """The exception with its messages, notes and lines of code changed, as by a redaction."""

    def changed(one: ExceptionInfo) -> ExceptionInfo:
        return msgspec.structs.replace(
            one,
            message=change(one.message),
            notes=[change(note) for note in one.notes],
            frames=[_with_code(frame, change(frame.code)) for frame in one.frames],
        )

    return _map(info, changed)


def _with_code(frame: FrameInfo, code: str) -> FrameInfo:
    """A frame with another line; a mark fits only the line that it was made for."""
    if code == frame.code:
        return frame
    return msgspec.structs.replace(frame, code=code, mark="")


def _map(info: ExceptionInfo, change: Callable[[ExceptionInfo], ExceptionInfo]) -> ExceptionInfo:
    """Changes an exception, and all that belong to it."""
    info = change(info)
    return msgspec.structs.replace(
        info,
        cause=None if info.cause is None else _map(info.cause, change),
        group=[_map(one, change) for one in info.group],
    )


# ---- exceptions of this process

#: The newest exceptions that ended sessions here, by session, with what was recorded of each.
_recent: dict[str, tuple[object, BaseException]] = {}
MAX_RECENT: Final = 8


def remember_exception(session_id: str, recorded: object, error: BaseException) -> None:
    """Keep an exception for `recall_exception`; `recorded` is the outcome that is stored of it."""
    _recent.pop(session_id, None)
    _recent[session_id] = (recorded, error)
    while len(_recent) > MAX_RECENT:
        del _recent[next(iter(_recent))]


def recall_exception(session_id: str, recorded: object) -> BaseException | None:
    """The exception that ended a session with this outcome; None if another process ran it, or
    long ago.
    """
    known, error = _recent.get(session_id, (None, None))
    return error if known == recorded else None
