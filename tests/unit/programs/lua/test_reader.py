"""What `require` reads: what is on the disk now, and no more often than it changes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from everhold.programs.lua import look, reader


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered yet, and every file counts as settled."""
    monkeypatch.setattr(reader, "_known", {})
    monkeypatch.setattr(look, "TICK", -(10**12))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "a.lua"
    found.write_text("return 1")
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The files that were opened."""
    opened: list[Path] = []
    native = reader._bytes

    def noting(path: Path) -> bytes:
        opened.append(path)
        return native(path)

    monkeypatch.setattr(reader, "_bytes", noting)
    return opened


def test_a_file_that_is_as_it_was_is_read_once(file: Path, reads: list[Path]) -> None:
    assert [reader.source(file), reader.source(file)] == [b"return 1"] * 2
    assert reads == [file]


def test_a_file_that_was_changed_is_read_again_whatever_it_pretends(file: Path) -> None:
    reader.source(file)
    before = os.stat(file)
    while os.stat(file).st_ctime_ns == before.st_ctime_ns:
        time.sleep(0.005)  # the file system's clock has ticks
        file.write_text("return 2")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(file).st_mtime_ns == before.st_mtime_ns
    assert reader.source(file) == b"return 2"


def test_another_file_in_its_place_is_read(file: Path, tmp_path: Path) -> None:
    reader.source(file)
    other = tmp_path / "b.lua"
    other.write_text("return 3")
    other.replace(file)
    assert reader.source(file) == b"return 3"


def test_a_file_that_is_gone_is_not_remembered(file: Path) -> None:
    reader.source(file)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        reader.source(file)


def test_a_fresh_file_could_change_unseen_and_is_not_remembered(
    file: Path, reads: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "TICK", 10**15)
    reader.source(file)
    reader.source(file)
    assert reads == [file, file]


def test_a_long_text_is_not_remembered(file: Path, reads: list[Path]) -> None:
    file.write_text("-" * (64 * 1024 + 1))
    reader.source(file)
    reader.source(file)
    assert reads == [file, file]


def test_only_so_many_texts_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader, "_MANY", 2)
    for number in range(5):
        file = tmp_path / f"{number}.lua"
        file.write_text(f"return {number}")
        assert reader.source(file) == b"return %d" % number
        assert len(reader._known) <= 2
