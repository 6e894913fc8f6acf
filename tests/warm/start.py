"""Python for tests, as real processes that find what they import already there.

Most of what a short command takes is imports, and tests start more than a thousand. So each process
of tests has one that has imported everhold and forks (server.py). `python()` is a command line that
has a fork made (client.py), which runs a script, `-c CODE` or `-m MODULE` with the folder, the
variables and the streams of whoever started it. To them it looks like Python itself: it hands on
signals, ends as its fork ends, and takes it along when it is killed.

What Python does when it starts is not shown by such a process, nor what is set for a process from
outside (its limits, SIGSTOP, the terminal it belongs to). Tests that are about these start
`sys.executable`.
"""

import atexit
import functools
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent


@functools.cache
def python(*loaded: str) -> list[str]:
    """How to start Python, before its arguments; `loaded` are modules that are there too."""
    if sys.platform != "linux":
        return [sys.executable]
    folder = tempfile.mkdtemp(prefix="warm-")
    address = f"{folder}/s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        server = subprocess.Popen(
            [sys.executable, "-m", "tests.warm.server", str(listening.fileno()), folder, *loaded],
            cwd=HERE.parents[1],
            stdin=subprocess.PIPE,  # it ends when this is closed: when we end, however that is
            pass_fds=[listening.fileno()],
        )
    atexit.register(server.communicate)
    return [sys.executable, "-I", "-S", str(HERE / "client.py"), address]


def everhold(*loaded: str) -> list[str]:
    """How to start the command, before its words."""
    return [*python(*loaded), "-m", "everhold"]
