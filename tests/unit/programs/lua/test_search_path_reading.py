"""What `require` reads: what is on the disk now, and no more often than it changes."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from everhold.programs.lua import search_path
from everhold.programs.lua.vm import compile_lua


@pytest.fixture(autouse=True)
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered yet, and every file counts as settled."""
    monkeypatch.setattr(search_path, "_sources", {})
    monkeypatch.setattr(search_path, "TICK", -(10**12))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    found = tmp_path / "a.lua"
    found.write_text("return 1")
    return found


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that were opened."""
    opened: list[str] = []
    native = search_path._read_bytes

    def noting(path: str) -> bytes:
        opened.append(path)
        return native(path)

    monkeypatch.setattr(search_path, "_read_bytes", noting)
    return opened


def source(file: Path) -> bytes:
    """The text of a file that was not compiled."""
    found = search_path.load_lua_source(file, file.name)
    assert found.mode != b"b"
    return found.code


def test_a_file_that_is_as_it_was_is_read_once_and_compiled_when_it_is_wanted_again(
    file: Path, reads: list[str]
) -> None:
    text = source(file)
    again = [search_path.load_lua_source(file, "a.lua") for _ in range(2)]
    assert text == b"return 1"
    assert [(one.mode, one.code) for one in again] == [(b"b", compile_lua(text, b"@a.lua"))] * 2
    assert reads == [str(file)]


@pytest.mark.parametrize(
    "text", [b"return (", compile_lua(b"return 1", b"@a.lua")], ids=["broken", "binary"]
)
def test_what_does_not_compile_stays_text(file: Path, text: bytes) -> None:
    """So what is wrong with it is told where it is loaded, and bytes of Lua's own are never taken
    from a file.
    """
    file.write_bytes(text)
    assert [source(file) for _ in range(3)] == [text] * 3


def test_each_name_of_a_file_is_told_by_errors_in_it(file: Path) -> None:
    found = {
        title: [search_path.load_lua_source(file, title) for _ in range(2)][1].code
        for title in ("a.lua", "b/init.lua")
    }
    assert found == {title: compile_lua(b"return 1", f"@{title}".encode()) for title in found}


def test_a_file_that_was_changed_is_read_again_whatever_it_pretends(file: Path) -> None:
    source(file)
    before = os.stat(file)
    while os.stat(file).st_ctime_ns == before.st_ctime_ns:
        time.sleep(0.005)  # the file system's clock has ticks
        file.write_text("return 2")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert os.stat(file).st_mtime_ns == before.st_mtime_ns
    assert source(file) == b"return 2"


def test_another_file_in_its_place_is_read(file: Path, tmp_path: Path) -> None:
    source(file)
    other = tmp_path / "b.lua"
    other.write_text("return 3")
    other.replace(file)
    assert source(file) == b"return 3"


def test_a_file_that_is_gone_is_not_remembered(file: Path) -> None:
    source(file)
    file.unlink()
    with pytest.raises(FileNotFoundError):
        source(file)


def test_a_fresh_file_could_change_unseen_and_is_not_remembered(
    file: Path, reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_path, "TICK", 10**15)
    source(file)
    source(file)
    assert reads == [str(file)] * 2


def test_a_long_text_is_not_remembered(file: Path, reads: list[str]) -> None:
    file.write_text("-" * (64 * 1024 + 1))
    source(file)
    source(file)
    assert reads == [str(file)] * 2


def test_only_so_many_texts_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search_path, "_MAX_CACHED_SOURCES", 2)
    for number in range(5):
        file = tmp_path / f"{number}.lua"
        file.write_text(f"return {number}")
        assert source(file) == b"return %d" % number
        assert len(search_path._sources) <= 2
