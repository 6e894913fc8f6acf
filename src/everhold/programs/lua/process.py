"""Starting a worker process: a clean one, that has nothing of ours but one end of a socket.

A new interpreter and not a fork: whoever starts it may have threads. It gets no environment, no
working folder, no descriptors, the Python that runs here, and the folders of the three packages
that it needs.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from everhold.errors import MissingExtra, WorkerFailed
from everhold.programs.lua.protocol import LuaLimits, encode_worker_json

_BOOT: Final = (
    "import sys; sys.path[:0] = sys.argv[3:]; from everhold.programs.lua.worker import main; main()"
)


class LuaWorkerProcess:
    """A worker process and our end of its socket. Whoever has it must `kill` it and wait for its
    end.
    """

    def __init__(self, limits: LuaLimits) -> None:
        command = [
            sys.executable,
            *_FLAGS,
            "-c",
            _BOOT,
            encode_worker_json(limits).decode(),
            str(os.getpid()),
            *find_library_folders(),
        ]
        ours, its = socket.socketpair()
        try:
            self.popen = subprocess.Popen(
                command,
                stdin=its.fileno(),
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={},
                cwd="/",
                start_new_session=True,
            )
        except OSError as error:
            ours.close()
            raise WorkerFailed(f"the system did not start it: {error}") from None
        finally:
            its.close()
        self.socket = ours
        self.pid = self.popen.pid

    def complaint(self) -> str:
        """What it said on standard error before it ended."""
        assert self.popen.stderr is not None
        os.set_blocking(self.popen.stderr.fileno(), False)
        said = self.popen.stderr.read(4000) or b""
        return said.decode(errors="replace").strip()[-600:]

    def kill(self) -> None:
        """End it; it takes a moment until it `ended`."""
        self.socket.close()
        if self.popen.stderr is not None:
            self.popen.stderr.close()
        if self.popen.poll() is None:
            self.popen.kill()

    def ended(self) -> bool:
        return self.popen.poll() is not None

    def wait(self) -> None:
        """Wait until it has ended, which a killed process does soon."""
        self.popen.wait()


#: Isolated, without site-packages, UTF-8 whatever the locale, nothing written beside sources.
_FLAGS: Final = ("-I", "-S", "-B", "-X", "utf8")


def find_library_folders() -> list[str]:
    """Where everhold, msgspec and lupa are; raises `MissingExtra` without lupa."""
    found = []
    for name in ("everhold", "msgspec", "lupa"):
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise MissingExtra("lua", "a Lua program")
        found.append(str(Path(spec.origin).resolve().parent.parent))
    return list(dict.fromkeys(found))
