"""The command line as people meet it: real processes, real terminals, real kills."""

import codecs
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

PROGRAM = """
import everhold

@everhold.program
async def refund(ctx: everhold.Context, order: str) -> str:
    reason = await ctx.llm(f"Why did {order} come back?")
    if not await ctx.approval(f"Refund {order}? {reason}"):
        return "declined"
    return "refunded"
"""


def everhold(*words: str, cwd: Path, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "everhold", *words],
        cwd=cwd,
        env={**os.environ, "EVERHOLD_DATABASE_URL": "sqlite:///app.db", **env},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=250,
    )


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(PROGRAM)
    return tmp_path


def test_the_demo_holds_what_it_claims(tmp_path: Path) -> None:
    done = everhold("demo", cwd=tmp_path, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("✓") == 6
    assert "kill -9" in done.stdout
    assert "none of their questions was asked twice" in done.stdout


def test_the_demo_ends_with_a_command_that_the_shell_finds(tmp_path: Path) -> None:
    """In a clone after `make demo`, `everhold` is not on the path."""
    done = everhold("demo", cwd=tmp_path, TMPDIR=str(tmp_path), PATH="/usr/bin:/bin")
    typed = done.stdout.splitlines()[-1].strip()
    looked = subprocess.run(
        typed, shell=True, capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}
    )
    assert looked.returncode == 0, typed + looked.stderr
    assert "completed · demo" in looked.stdout


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="only Linux has a device that is always full"
)
def test_a_full_disk_under_standard_output_is_told_in_a_line(tmp_path: Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "everhold", "info"],
            cwd=tmp_path,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (
        2,
        "error: the output cannot be written: No space left on device [usage]\n",
    )


def test_the_demo_needs_no_network_and_no_settings(tmp_path: Path) -> None:
    """Neither a model in the settings that is not installed nor a proxy that leads nowhere matters
    to it.
    """
    (tmp_path / "everhold.toml").write_text('llm = "anthropic:claude-sonnet-4-6"\n')
    done = everhold("demo", cwd=tmp_path, TMPDIR=str(tmp_path), HTTPS_PROXY="http://127.0.0.1:9")
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_init_makes_passes_its_test_and_runs(tmp_path: Path) -> None:
    done = everhold("init", "post", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "post" / "README.md").read_text().splitlines()) <= 12
    tested = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "post",
        capture_output=True,
        text=True,
    )
    assert "2 passed" in tested.stdout, tested.stdout
    env = {**os.environ}
    env.pop("EVERHOLD_DATABASE_URL", None)
    ran = subprocess.run(
        [sys.executable, "-m", "everhold", "run", "post", "topic=trains", "--answer-with", "cat"],
        cwd=tmp_path / "post",
        env=env,
        capture_output=True,
        text=True,
    )
    assert ran.returncode == 10, ran.stderr
    assert json.loads(ran.stdout)["kind"] == "approval"
    assert (tmp_path / "post" / "post.db").exists()


def test_a_killed_run_goes_on_where_it_was(shop: Path) -> None:
    """The command that answers is slow; the process is killed while it runs, and nothing recorded
    is lost.
    """
    slow = f"{sys.executable} -c 'import time; time.sleep(60)'"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "everhold",
            "run",
            "shop.py:refund",
            "order=7",
            "--key",
            "k",
            "--answer-with",
            slow,
        ],
        cwd=shop,
        env={**os.environ, "EVERHOLD_DATABASE_URL": "sqlite:///app.db"},
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )
    wait_for(lambda: "works on llm" in everhold("explain", "k", cwd=shop).stdout)
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    assert "is dead" in everhold("explain", "k", cwd=shop).stdout
    done = everhold(
        "run", "shop.py:refund", "order=7", "--key", "k", "--answer-with", "cat", cwd=shop
    )
    assert json.loads(done.stdout)["prompt"] == "Refund 7? Why did 7 come back?"


def test_ctrl_c_while_a_command_answers_keeps_the_session(shop: Path) -> None:
    slow = f"{sys.executable} -c 'import time; time.sleep(60)'"
    process = subprocess.Popen(
        [
            sys.executable,
            "-m",
            "everhold",
            "run",
            "shop.py:refund",
            "order=7",
            "--key",
            "k",
            "--answer-with",
            slow,
        ],
        cwd=shop,
        env={**os.environ, "EVERHOLD_DATABASE_URL": "sqlite:///app.db"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for(lambda: "works on llm" in everhold("explain", "k", cwd=shop).stdout)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=250)
    assert (process.returncode, out) == (130, "")
    assert err.split("\n") == [
        "",
        "interrupted; the session is kept. To resume it: run this again, or: everhold run -c k",
        "Running calls have 5 s to end; Ctrl-C again leaves them at once.",
        "",
        "",
    ]
    done = everhold("run", "-c", "k", "--answer-with", "cat", cwd=shop)
    assert json.loads(done.stdout)["prompt"] == "Refund 7? Why did 7 come back?"


def test_a_process_without_the_program_can_answer(shop: Path, tmp_path: Path) -> None:
    everhold("run", "shop.py:refund", "order=7", "--key", "k", cwd=shop)
    (shop / "shop.py").rename(shop / "elsewhere.txt")
    done = everhold("answer", "k", "it broke", cwd=shop)
    assert done.returncode == 0
    assert done.stderr.startswith("accepted · k · another process has its program and resumes it")
    (shop / "elsewhere.txt").rename(shop / "shop.py")
    done = everhold("run", "-c", "k", "--wait", "10", cwd=shop)
    assert json.loads(done.stdout)["prompt"] == "Refund 7? it broke"


def wait_for(holds: object, timeout: float = 90.0) -> None:
    deadline = time.monotonic() + timeout
    while not holds():  # type: ignore[operator]
        assert time.monotonic() < deadline
        time.sleep(0.1)


# ---- a real terminal


class Terminal:
    """A command with a terminal of its own."""

    def __init__(self, cwd: Path, *words: str, **env: str) -> None:
        self.pid, self._fd = pty.fork()
        if self.pid == 0:
            os.chdir(cwd)
            os.environ.update({"EVERHOLD_DATABASE_URL": "sqlite:///app.db", "TERM": "xterm"} | env)
            os.execv(sys.executable, [sys.executable, "-m", "everhold", *words])
        self.text = ""
        # what is read may end within a letter
        self._letters = codecs.getincrementaldecoder("utf-8")()

    def until(self, words: str) -> None:
        deadline = time.monotonic() + 90
        while words not in self.text:
            assert time.monotonic() < deadline, self.text
            self._read()

    def _read(self) -> bool:
        try:
            some = os.read(self._fd, 4096)
        except OSError:
            return False
        self.text += self._letters.decode(some)
        return bool(some)

    def type(self, text: str) -> None:
        os.write(self._fd, text.encode())

    def interrupt(self) -> int:
        """Press Ctrl-C until it has ended: one that comes just before somebody reads is not heard
        at once.
        """
        while True:
            self.type("\x03")
            # clock: a pause before the key is pressed again; it may be pressed any number of times.
            if select.select([self._fd], [], [], 3)[0]:
                return self.end()

    def end(self) -> int:
        while self._read():
            pass
        os.close(self._fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.mark.filterwarnings("ignore:.*use of forkpty.*:DeprecationWarning")
def test_at_a_terminal_a_person_answers_everything(shop: Path) -> None:
    terminal = Terminal(shop, "run", "shop.py:refund", "order=7", "--key", "k")
    terminal.until("Why did 7 come back?")
    terminal.until("> ")
    terminal.type("it broke\n\n")
    terminal.until("yes or no>")
    terminal.type("yes\n")
    assert terminal.end() == 0
    assert "refunded" in terminal.text


@pytest.mark.filterwarnings("ignore:.*use of forkpty.*:DeprecationWarning")
def test_ctrl_c_at_a_terminal_keeps_the_session(shop: Path) -> None:
    terminal = Terminal(shop, "run", "shop.py:refund", "order=7", "--key", "k")
    terminal.until("> ")
    assert terminal.interrupt() == 130
    assert (
        "the session is kept. To resume it: run this again, or: everhold run -c k" in terminal.text
    )
    assert (
        json.loads(everhold("show", "k", "--json", cwd=shop).stdout)["session"]["state"] == "paused"
    )


@pytest.mark.filterwarnings("ignore:.*use of forkpty.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("env", "styled"),
    [({"NO_COLOR": ""}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)],
)
def test_a_terminal_is_styled_unless_it_should_not_be(
    shop: Path, env: dict[str, str], styled: bool
) -> None:
    everhold("run", "shop.py:refund", "order=7", "--key", "k", cwd=shop)
    for words in ("show k", "sessions", "show nobody"):
        terminal = Terminal(shop, *words.split(), **env)
        terminal.end()
        assert ("\x1b[" in terminal.text) is styled, (words, terminal.text)


@pytest.mark.filterwarnings("ignore:.*use of forkpty.*:DeprecationWarning")
def test_work_that_takes_long_shows_a_bar_at_a_terminal(shop: Path) -> None:
    everhold("run", "shop.py:refund", "order=7", "--key", "k", cwd=shop)
    (shop / "shop.py").write_text("import time\n\ntime.sleep(2)\n" + PROGRAM)
    terminal = Terminal(shop, "check")
    terminal.until("checking ")
    terminal.until("%")
    assert terminal.end() == 0
    assert "1 session checked: 1 ok" in terminal.text
    assert "━" in terminal.text
