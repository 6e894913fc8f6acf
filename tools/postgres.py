"""A private PostgreSQL server, from Debian's packages, on a free loopback port with a temporary
data folder.

    with Server() as server:                       # fsync=True for measurements
        store = PostgresStore(server.url)

    python -m tools.postgres                       # runs one until Ctrl-C and prints its address

The server is never root: it runs as the user `postgres` if we are. It ends with the process that
started it, however that one ends. Missing binaries are installed with apt-get if we are root; else
the error says what to install.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

PLACES: Final = "/usr/lib/postgresql/*/bin"
SETTINGS: Final = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "full_page_writes": "off",
    "autovacuum_naptime": "10s",
    "log_min_messages": "fatal",
}
POOLER: Final = """\
[databases]
* = host=127.0.0.1 port={server} user=postgres
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 100
ignore_startup_parameters = extra_float_digits
"""


def installed(name: str, package: str) -> Path:
    """The path of a program of Debian's; its package is installed if it is missing and we may."""
    for _ in range(2):
        found = shutil.which(name) or next(
            map(str, sorted(Path("/").glob(f"{PLACES[1:]}/{name}"))[::-1]), None
        )
        if found:
            return Path(found)
        if os.geteuid() == 0 and shutil.which("apt-get"):
            env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
            subprocess.run(["apt-get", "update", "-qq"], env=env, capture_output=True)
            subprocess.run(
                ["apt-get", "install", "-y", "-qq", "--no-install-recommends", package],
                env=env,
                check=True,
                capture_output=True,
            )
    raise FileNotFoundError(f"{name} is not here; install it: apt-get install {package}")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Program:
    """A server program in its own folder, which ends with this process."""

    def __init__(self) -> None:
        self.port = free_port()
        self._user = "postgres" if os.geteuid() == 0 else None
        self._stack = ExitStack()
        self.folder = Path(tempfile.mkdtemp(prefix="everhold-pg-"))
        self._stack.callback(shutil.rmtree, self.folder, ignore_errors=True)
        self._process: subprocess.Popen[bytes] | None = None

    def _owned(self, *paths: Path) -> None:
        if self._user is not None:
            entry = pwd.getpwnam(self._user)
            for path in (self.folder, *paths):
                os.chown(path, entry.pw_uid, entry.pw_gid)

    def _command(self, *words: str | Path) -> list[str]:
        """The command as a user who is not root, told to end when we do."""
        setpriv = shutil.which("setpriv")
        before = [setpriv, "--pdeathsig", "QUIT"] if setpriv else []
        if self._user is not None:
            before += [
                *([] if setpriv else ["setpriv"]),
                f"--reuid={self._user}",
                f"--regid={self._user}",
            ]
            before += ["--clear-groups"]
        return [*before, *map(str, words)]

    def _launch(self, *words: str | Path) -> None:
        with open(self.folder / "log", "ab") as log:
            self._process = subprocess.Popen(
                self._command(*words),
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 60
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(
                    f"{words[0]} did not start: {(self.folder / 'log').read_text()[-2000:]}"
                )
            time.sleep(0.02)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self.port), 1):
                return True
        except OSError:
            return False

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """End the program; its data stays until `close`."""
        process = self._process
        self._process = None
        if process is not None:
            process.send_signal(how)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        self.stop(signal.SIGQUIT)
        self._stack.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Server(Program):
    """A PostgreSQL server; `url` is the address of its database."""

    def __init__(self, *, fsync: bool = False, **settings: str) -> None:
        super().__init__()
        self._data = self.folder / "data"
        self._spoken: Any = None  # the line of `run`
        self._settings = {**SETTINGS, "fsync": "on" if fsync else "off", **settings}
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    def _begin(self) -> None:
        self._postgres = installed("postgres", "postgresql")
        self._owned()
        initdb: list[str | Path] = [
            self._postgres.with_name("initdb"),
            "-D",
            self._data,
            "-U",
            "postgres",
            "-A",
            "trust",
        ]
        quick = ["--no-sync", "-E", "UTF8", "--no-locale"]
        done = subprocess.run(
            self._command(*initdb, *quick), cwd=self.folder, capture_output=True, text=True
        )
        if done.returncode:
            raise RuntimeError(done.stderr)
        self.start()

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"

    def start(self) -> None:
        given = [
            word for name, value in self._settings.items() for word in ("-c", f"{name}={value}")
        ]
        self._launch(self._postgres, "-D", self._data, "-p", str(self.port), *given)
        self._wait_until_it_lets_in()

    def restart(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop (SIGINT: in good order, SIGQUIT: as after a crash) and start again, on the same
        port.
        """
        self.stop(how)
        self.start()

    def _wait_until_it_lets_in(self) -> None:
        import psycopg

        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def home(self, name: str) -> dict[str, str]:
        """The environment of somebody at whose `localhost` this server is, with a new database of
        this name.
        """
        self.run(f"DROP DATABASE IF EXISTS {name}")
        self.run(f"CREATE DATABASE {name}")
        return {"PGPORT": str(self.port), "PGUSER": "postgres"}

    def run(self, statement: str, *values: Any) -> list[tuple[Any, ...]]:
        """One statement, as somebody else; its rows."""
        import psycopg

        if self._spoken is None:
            self._spoken = psycopg.connect(self.url, autocommit=True)
        cursor = self._spoken.execute(statement, values or None)
        return cursor.fetchall() if cursor.description else []

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        if self._spoken is not None:
            self._spoken.close()
            self._spoken = None
        super().stop(how)


class Pooler(Program):
    """A pgbouncer in transaction mode before a server."""

    def __init__(self, server: Server) -> None:
        super().__init__()
        try:
            settings = self.folder / "pgbouncer.ini"
            settings.write_text(POOLER.format(server=server.port, port=self.port))
            self._owned(settings)
            self._launch(installed("pgbouncer", "pgbouncer"), settings)
        except BaseException:
            self.close()
            raise

    @property
    def url(self) -> str:
        return f"postgresql://postgres@127.0.0.1:{self.port}/postgres"


def main() -> None:
    with Server(fsync=True) as server:
        print(server.url, flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            pass


if __name__ == "__main__":
    main()
