"""Whatever fails or is cancelled, no connection to a file stays open."""

import asyncio
import sqlite3
import threading

import pytest

from everhold.errors import StoreUnavailable
from everhold.runtime import Runtime
from everhold.stores.sqlite import SQLiteStore, database
from everhold.stores.sqlite.checkpoint import LOOK_AFTER


def is_closed(connection: sqlite3.Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except sqlite3.ProgrammingError:
        return True
    return False


async def test_a_close_that_is_cancelled_closes_the_connection(tmp_path, monkeypatch):
    """Its caller may be cancelled while it waits for the thread that moves the log into the
    file.
    """
    monkeypatch.setattr("everhold.stores.sqlite.checkpoint.MOVE_AFTER", 1)
    begun, goes_on = threading.Event(), threading.Event()
    store = SQLiteStore(tmp_path / "app.db")
    await store.open()
    store._checkpoints.move = lambda: (begun.set(), goes_on.wait(60))
    connection = store._connection
    try:
        store._checkpoints.wrote(LOOK_AFTER)
        closing = asyncio.create_task(store.close())
        await asyncio.to_thread(begun.wait, 60)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
    finally:
        goes_on.set()
    assert is_closed(connection)
    with pytest.raises(StoreUnavailable):
        await store.load("s-1")
    await store.close()  # which is nothing more to do


async def test_a_runtime_that_cannot_stop_closes_its_store(tmp_path):
    """The error is raised, and the file is not held for it."""
    runtime = Runtime(SQLiteStore(tmp_path / "app.db"), recover=False)
    await runtime.__aenter__()
    connection, leave = runtime.store._connection, runtime.mover.leave

    async def fails(grace):
        await leave(grace)
        raise RuntimeError("no way out")

    runtime.mover.leave = fails
    with pytest.raises(RuntimeError, match="no way out"):
        await runtime.close()
    assert is_closed(connection)


def test_a_copy_to_a_file_that_cannot_be_opened_closes_the_original(tmp_path, monkeypatch):
    opened, connect = [], sqlite3.connect

    def second_fails(*args, **kwargs):
        if opened:
            error = sqlite3.OperationalError("unable to open database file")
            error.sqlite_errorcode = sqlite3.SQLITE_CANTOPEN
            raise error
        opened.append(connect(*args, **kwargs))
        return opened[0]

    (tmp_path / "app.db").touch()
    monkeypatch.setattr(sqlite3, "connect", second_fails)
    with pytest.raises(StoreUnavailable):
        database.copy_database(tmp_path / "app.db", tmp_path / "database.db")
    assert is_closed(opened[0])
    assert [path.name for path in tmp_path.iterdir()] == ["app.db"]
