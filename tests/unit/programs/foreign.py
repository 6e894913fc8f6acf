"""Calls that a program is refused: what one writes, and what is done with it.
docs/reference/asyncio.md lists them.
"""

import _thread
import asyncio
import concurrent.futures
import multiprocessing
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any, NamedTuple

import everhold

RAN: list[str] = []
WARM = concurrent.futures.ThreadPoolExecutor(1)


class Foreign(NamedTuple):
    part: str
    name: str
    call: Callable[[Any], Any]


def effect(*_: object) -> None:
    RAN.append("ran")


async def later(*_: object) -> None:
    RAN.append("ran")


@everhold.program
async def other(ctx: everhold.Context) -> None:
    RAN.append("ran")


async def _runtime() -> None:
    async with everhold.open("memory://", recover=False) as runtime:
        await runtime.run(other())


def _runner() -> None:
    with asyncio.Runner() as runner:
        runner.run(later())


def _touch() -> list[str]:
    return [sys.executable, "-c", "pass"]


def _loop(name: str, *args: Any) -> Foreign:
    return Foreign("methods of the loop", f"loop.{name}", lambda loop: getattr(loop, name)(*args))


FOREIGN: list[Foreign] = [
    Foreign("asyncio", "asyncio.to_thread", lambda loop: asyncio.to_thread(effect)),
    Foreign(
        "asyncio", "asyncio.open_connection", lambda loop: asyncio.open_connection("localhost", 1)
    ),
    Foreign(
        "asyncio", "asyncio.open_unix_connection", lambda loop: asyncio.open_unix_connection("x")
    ),
    Foreign("asyncio", "asyncio.start_server", lambda loop: asyncio.start_server(later, port=0)),
    Foreign(
        "asyncio", "asyncio.start_unix_server", lambda loop: asyncio.start_unix_server(later, "x")
    ),
    Foreign(
        "asyncio",
        "asyncio.create_subprocess_exec",
        lambda loop: asyncio.create_subprocess_exec(*_touch()),
    ),
    Foreign(
        "asyncio",
        "asyncio.create_subprocess_shell",
        lambda loop: asyncio.create_subprocess_shell("true"),
    ),
    Foreign("asyncio", "asyncio.run", lambda loop: asyncio.run(later())),
    Foreign("asyncio", "asyncio.Runner", lambda loop: _runner()),
    Foreign("asyncio", "asyncio.Runner.run", lambda loop: asyncio.Runner().run(later())),
    Foreign("asyncio", "asyncio.new_event_loop", lambda loop: asyncio.new_event_loop()),
    Foreign(
        "asyncio",
        "asyncio.run_coroutine_threadsafe",
        lambda loop: asyncio.run_coroutine_threadsafe(later(), loop),
    ),
    _loop("run_in_executor", None, effect),
    _loop("set_default_executor", WARM),
    _loop("shutdown_default_executor"),
    _loop("call_soon_threadsafe", effect),
    _loop("create_connection", asyncio.Protocol, "localhost", 1),
    _loop("create_server", asyncio.Protocol, "localhost", 1),
    _loop("create_unix_connection", asyncio.Protocol, "x"),
    _loop("create_unix_server", asyncio.Protocol, "x"),
    _loop("create_datagram_endpoint", asyncio.DatagramProtocol),
    _loop("connect_accepted_socket", asyncio.Protocol, None),
    _loop("connect_read_pipe", asyncio.Protocol, None),
    _loop("connect_write_pipe", asyncio.Protocol, None),
    _loop("subprocess_exec", asyncio.SubprocessProtocol, "true"),
    _loop("subprocess_shell", asyncio.SubprocessProtocol, "true"),
    _loop("add_reader", 0, effect),
    _loop("remove_reader", 0),
    _loop("add_writer", 1, effect),
    _loop("remove_writer", 1),
    _loop("add_signal_handler", 15, effect),
    _loop("remove_signal_handler", 15),
    _loop("sock_recv", None, 1),
    _loop("sock_recv_into", None, bytearray(1)),
    _loop("sock_recvfrom", None, 1),
    _loop("sock_recvfrom_into", None, bytearray(1)),
    _loop("sock_sendall", None, b"x"),
    _loop("sock_sendto", None, b"x", "x"),
    _loop("sock_connect", None, ("localhost", 1)),
    _loop("sock_accept", None),
    _loop("sock_sendfile", None, None),
    _loop("sendfile", None, None),
    _loop("start_tls", None, None, None),
    _loop("getaddrinfo", "localhost", 1),
    _loop("getnameinfo", ("127.0.0.1", 1)),
    _loop("run_forever"),
    Foreign(
        "methods of the loop",
        "loop.run_until_complete",
        lambda loop: loop.run_until_complete(later()),
    ),
    _loop("stop"),
    _loop("close"),
    _loop("shutdown_asyncgens"),
    _loop("set_task_factory", None),
    _loop("set_exception_handler", None),
    Foreign(
        "threads", "threading.Thread.start", lambda loop: threading.Thread(target=effect).start()
    ),
    Foreign("threads", "threading.Timer.start", lambda loop: threading.Timer(0, effect).start()),
    Foreign(
        "threads", "_thread.start_new_thread", lambda loop: _thread.start_new_thread(effect, ())
    ),
    Foreign(
        "threads",
        "concurrent.futures.ThreadPoolExecutor.submit",
        lambda loop: concurrent.futures.ThreadPoolExecutor(1).submit(effect),
    ),
    Foreign(
        "threads", "concurrent.futures.ThreadPoolExecutor.map", lambda loop: WARM.map(effect, [1])
    ),
    Foreign(
        "processes",
        "concurrent.futures.ProcessPoolExecutor.submit",
        lambda loop: concurrent.futures.ProcessPoolExecutor(1).submit(effect),
    ),
    Foreign(
        "processes",
        "multiprocessing.Process.start",
        lambda loop: multiprocessing.Process(target=effect).start(),
    ),
    Foreign("processes", "multiprocessing.Pool", lambda loop: multiprocessing.Pool(1)),
    Foreign("processes", "multiprocessing.Manager", lambda loop: multiprocessing.Manager()),
    Foreign("processes", "subprocess.run", lambda loop: subprocess.run(_touch())),
    Foreign("processes", "subprocess.Popen", lambda loop: subprocess.Popen(_touch())),
    Foreign("processes", "subprocess.call", lambda loop: subprocess.call(_touch())),
    Foreign("processes", "subprocess.check_output", lambda loop: subprocess.check_output(_touch())),
    Foreign("processes", "subprocess.getoutput", lambda loop: subprocess.getoutput("true")),
    Foreign("processes", "os.system", lambda loop: os.system("true")),
    Foreign("processes", "os.popen", lambda loop: os.popen("true")),
    Foreign("processes", "os.fork", lambda loop: os.fork()),
    Foreign("processes", "os.forkpty", lambda loop: os.forkpty()),
    Foreign(
        "processes", "os.posix_spawn", lambda loop: os.posix_spawn(sys.executable, _touch(), {})
    ),
    Foreign("processes", "os.spawnv", lambda loop: os.spawnv(os.P_WAIT, sys.executable, _touch())),
    Foreign("processes", "os.execv", lambda loop: os.execv(sys.executable, _touch())),
    Foreign("processes", "pty.spawn", lambda loop: pty.spawn(_touch())),
    Foreign(
        "everhold",
        "everhold.BlockingRuntime",
        lambda loop: everhold.open_blocking("memory://").__enter__(),
    ),
    Foreign("everhold", "everhold.run", lambda loop: everhold.run(other())),
    Foreign("everhold", "everhold.Runtime.run", lambda loop: _runtime()),
]
