"""The process that has imported what the command `everhold` needs, and forks: see start.py."""

import array
import atexit
import fcntl
import gc
import marshal
import os
import runpy
import selectors
import shutil
import signal
import socket
import sys
import threading
import time
from dataclasses import dataclass
from importlib import import_module

from everhold.cli.app import GROUPS

LOADED = (
    *sorted({f"everhold.cli.{name}" for names in GROUPS.values() for name in names.values()}),
    "everhold.blocking",
    "everhold.mcp.stdio",
    "everhold.stores.postgres",
    "everhold.stores.sqlite",
    "rich.table",
)
EACH = 4


@dataclass(frozen=True)
class Asked:
    """What a fork is to be."""

    words: list[str]
    folder: str
    variables: dict[bytes, bytes]
    streams: list[int]
    wire: socket.socket


def serve(listening: socket.socket) -> Asked | None:
    """Fork for everybody who asks until standard input ends, and then return None; in a fork,
    return what was asked.
    """
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    signal.set_wakeup_fd(theirs.fileno())
    signal.signal(signal.SIGCHLD, lambda number, frame: None)
    running: dict[int, socket.socket] = {}
    with selectors.DefaultSelector() as selector:
        for source in (sys.stdin, ours, listening):
            selector.register(source, selectors.EVENT_READ)
        while True:
            ready = [key.fileobj for key, _ in selector.select()]
            if sys.stdin in ready:
                return None
            if ours in ready:
                ours.recv(4096)
                _tell(running)
            if listening in ready and (asked := _heard(listening)):
                if (fork := os.fork()) == 0:
                    return asked
                for stream in asked.streams:
                    os.close(stream)
                running[fork] = asked.wire
                _say(asked.wire, fork)


def _heard(listening: socket.socket) -> Asked | None:
    wire, _ = listening.accept()
    data, held, _, _ = wire.recvmsg(1 << 20, socket.CMSG_SPACE(3 * EACH))
    if not data:
        return None
    streams = array.array("i")
    streams.frombytes(held[0][2])
    return Asked(*marshal.loads(data), streams.tolist(), wire)


def _tell(running: dict[int, socket.socket]) -> None:
    """Say to those whose forks have ended how they have."""
    while running:
        fork, status = os.waitpid(-1, os.WNOHANG)
        if fork == 0:
            return
        with running.pop(fork) as wire:
            _say(wire, os.waitstatus_to_exitcode(status))


def _say(wire: socket.socket, number: int) -> None:
    try:
        wire.send(number.to_bytes(EACH, sys.byteorder, signed=True))
    except OSError:
        pass  # whoever asked was killed, and the fork knows


def become(asked: Asked) -> None:
    """Be the process that was asked for, in a group of its own: what it sends to its group is not
    for the tests.
    """
    os.setsid()
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    fcntl.fcntl(asked.wire, fcntl.F_SETOWN, os.getpid())
    # whoever asked is gone, and was so by force
    fcntl.fcntl(asked.wire, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(asked.wire, fcntl.F_SETFL, os.O_ASYNC)
    for stream, given in enumerate(asked.streams):
        os.dup2(given, stream)
        os.close(given)
    os.chdir(asked.folder)
    os.environ.clear()
    os.environ.update(
        {os.fsdecode(name): os.fsdecode(value) for name, value in asked.variables.items()}
    )
    time.tzset()
    for stream, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        lines = stream == 2 or (stream == 1 and os.isatty(stream))
        errors = "backslashreplace" if stream == 2 else "strict"
        made = open(  # noqa: SIM115
            stream, mode, 1 if lines else -1, encoding="utf-8", errors=errors, closefd=False
        )
        setattr(sys, name, made)
        setattr(sys, f"__{name}__", made)


def run(words: list[str]) -> None:
    """Do what Python does with these arguments."""
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:] = ["", *filter(None, added), *sys.path[1:]]
    match words:
        case "-m", module, *rest:
            sys.path[0] = os.getcwd()
            sys.argv[:] = [module, *rest]
            runpy.run_module(module, run_name="__main__", alter_sys=True)
        case "-c", code, *rest:
            sys.argv[:] = ["-c", *rest]
            exec(code, {"__name__": "__main__"})
        case script, *rest:
            sys.path[0] = os.path.dirname(os.path.abspath(script))
            sys.argv[:] = [script, *rest]
            runpy.run_path(script, run_name="__main__")


def main() -> None:
    _, listens, folder, *more = sys.argv
    for name in (*LOADED, *more):
        import_module(name)
    gc.collect()
    gc.freeze()
    with socket.socket(fileno=int(listens)) as listening:
        asked = serve(listening)
    if asked is None:
        shutil.rmtree(folder)
        return
    become(asked)
    try:
        run(asked.words)
    except SystemExit as end:
        code = end.code
    except BaseException:
        sys.excepthook(*sys.exc_info())
        code = 1
    else:
        code = 0
    if isinstance(code, str):
        print(code, file=sys.stderr)
    # what an end of Python does; what is left of it takes longer than most commands
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


if __name__ == "__main__":
    main()
