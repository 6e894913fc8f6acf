"""What a program says on the side."""

import msgspec

from everhold.core.progress import MAX_HEAD_CHARS, LogEntry, LogRing, Progress


def test_an_entry_has_four_fields():
    """An entry is its time in milliseconds, level, source and message."""
    entry = LogRing().write(12.3456, "hello", level="warn", source="alc.log")

    assert entry.json() == {"ts": 12345, "level": "warn", "source": "alc.log", "message": "hello"}
    assert msgspec.json.decode(msgspec.json.encode(entry), type=LogEntry) == entry


def test_the_ring_keeps_the_newest_twenty():
    """The oldest entry leaves when the twenty-first comes."""
    ring = LogRing()

    for number in range(21):
        ring.write(number, f"line {number}")

    assert len(ring) == 20
    assert [entry.message for entry in ring] == [f"line {number}" for number in range(1, 21)]


def test_a_ring_goes_on_from_what_was_stored():
    """A ring made from stored entries keeps their order and its bound."""
    stored = [LogEntry(number, "info", "ctx.log", "x") for number in range(25)]

    ring = LogRing(stored)
    ring.add(LogEntry(99, "info", "ctx.log", "y"))

    assert [entry["ts"] for entry in ring.json()] == [*range(6, 25), 99]


def test_progress_without_words_says_null():
    """The message of a progress is null when there is none."""
    assert Progress(1, 3).json() == {"step": 1, "total": 3, "message": None}
    assert Progress(2, 3, "half").json() == {"step": 2, "total": 3, "message": "half"}


def test_progress_in_words() -> None:
    """The total and the message are left out if they are not known."""
    assert str(Progress(1, 3, "one")) == "1 of 3: one"
    assert [str(Progress(1, 3)), str(Progress(1, 0))] == ["1 of 3", "1"]


def test_a_long_message_is_short_in_the_head() -> None:
    """What fits is the same object."""
    short = Progress(1, 3, "x" * MAX_HEAD_CHARS)
    assert short.shorten() is short
    assert Progress(1, 3).shorten() == Progress(1, 3)
    assert Progress(1, 3, "x" * 999).shorten().message == "x" * (MAX_HEAD_CHARS - 1) + "…"
