"""Has a fork of the server (server.py) run the command, and ends as it does. Imports next to
nothing: see start.py.
"""

import _signal as signal
import _socket as socket
import marshal
import posix
import sys

EACH = 4
STREAMS = (0, 1, 2)


def main() -> int:
    wire = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    wire.connect(sys.argv[1])
    asked = marshal.dumps((sys.argv[2:], posix.getcwd(), dict(posix.environ)))
    streams = b"".join(stream.to_bytes(EACH, sys.byteorder) for stream in STREAMS)
    wire.sendmsg([asked], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
    fork = int.from_bytes(wire.recv(EACH), sys.byteorder)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, lambda number, _frame: posix.kill(fork, number))
    for stream in STREAMS:
        posix.close(stream)
    return int.from_bytes(wire.recv(EACH), sys.byteorder, signed=True)


code = main()
if code < 0:
    signal.signal(-code, signal.SIG_DFL) if -code != signal.SIGKILL else None
    posix.kill(posix.getpid(), -code)
posix._exit(code)
