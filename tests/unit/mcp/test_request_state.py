"""The key outlives the process and is nobody else's; without one that can be kept, the process has
its own.
"""

import logging
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from mcp.server.request_state import InvalidRequestState

from everhold.mcp import request_state


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The data folder, which is not there yet."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "everhold"


def codec(database="sqlite:////a.db"):
    return request_state.StateCodec(lambda: database)


def test_a_key_is_made_once_and_readable_by_its_owner_alone(folder):
    first = request_state.load_state_key(folder)
    assert len(first) == request_state.KEY_BYTES
    assert request_state.load_state_key(folder) == first
    assert [file.name for file in folder.iterdir()] == [request_state.KEY_FILE]
    assert (folder / request_state.KEY_FILE).stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700


def test_many_that_make_a_key_at_once_get_the_same(folder):
    with ThreadPoolExecutor(16) as pool:
        assert len(set(pool.map(lambda _: request_state.load_state_key(folder), range(64)))) == 1
    assert [file.name for file in folder.iterdir()] == [request_state.KEY_FILE]


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_could_read_is_replaced(folder, mode, caplog):
    first = request_state.load_state_key(folder)
    (folder / request_state.KEY_FILE).chmod(mode)
    with caplog.at_level(logging.WARNING, "everhold"):
        second = request_state.load_state_key(folder)
    assert second != first
    assert request_state.load_state_key(folder) == second
    assert "open to others" in caplog.text


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33, b"x" * 4096])
def test_a_damaged_key_is_replaced(folder, content, caplog):
    request_state.load_state_key(folder)
    (folder / request_state.KEY_FILE).write_bytes(content)
    with caplog.at_level(logging.WARNING, "everhold"):
        fresh = request_state.load_state_key(folder)
    assert len(fresh) == request_state.KEY_BYTES
    assert fresh != content
    assert "damaged" in caplog.text


def test_where_no_key_can_be_kept_the_process_has_its_own(tmp_path, caplog):
    (tmp_path / "file").write_text("in the way")
    with caplog.at_level(logging.WARNING, "everhold"):
        assert len(request_state.load_state_key(tmp_path / "file")) == request_state.KEY_BYTES
    assert "forgotten on a restart" in caplog.text


@pytest.mark.skipif(os.name != "posix", reason="links to folders")
def test_a_key_that_is_a_folder_is_no_key(folder):
    (folder / request_state.KEY_FILE).mkdir(parents=True)
    assert request_state.load_state_key(folder) != request_state.load_state_key(folder)


def test_what_one_process_seals_another_unseals_and_reads_nothing_else(folder):
    token = codec().seal(b"a state")
    assert codec().unseal(token) == b"a state"
    assert "state" not in token


def test_a_seal_is_good_for_one_database_only(folder):
    token = codec().seal(b"a state")
    with pytest.raises(InvalidRequestState):
        codec("sqlite:////b.db").unseal(token)


def test_nothing_is_written_before_it_is_needed_nor_for_what_does_not_outlive_the_process(folder):
    codec()
    one, other = codec("memory://"), codec("memory://")
    token = one.seal(b"a state")
    assert one.unseal(token) == b"a state"
    with pytest.raises(InvalidRequestState):
        other.unseal(token)
    assert not folder.exists()
