"""What tests start instead of Python (tests/warm) looks like Python to whoever starts it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.warm import start

TELLS = """
import os, sys
print(sys.argv[1:], os.getcwd(), os.environ["WORD"], sys.path[0] in ("", os.getcwd()), __name__, sys.stdin.read())
print("and this", file=sys.stderr)
sys.exit(7)
"""  # noqa: E501
ENDS = {
    "a number": "import sys; sys.exit(3)",
    "words": "import sys; sys.exit('no more')",
    "nothing": "pass",
    "an error": "1 / 0",
    "a signal": "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
    "a thread that is not done": "import threading; threading.Timer(0.2, print, ['done']).start()",
    "what is to be done at the end": "import atexit; atexit.register(print, 'done')",
}
WAITS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"


def both(*arguments: str, **more: Any) -> list[tuple[int, str, list[str]]]:
    found = []
    for python in ([sys.executable], start.python()):
        done = subprocess.run(
            [*python, *arguments], capture_output=True, text=True, timeout=250, **more
        )
        found.append((done.returncode, done.stdout, done.stderr.splitlines()[-1:]))
    return found


@pytest.mark.parametrize("way", ["-c", "-m", "a script"])
def test_it_has_the_words_the_folder_the_variables_and_the_streams(
    way: str, tmp_path: Path
) -> None:
    (tmp_path / "tells.py").write_text(TELLS)
    arguments = {"-c": ["-c", TELLS], "-m": ["-m", "tells"], "a script": ["tells.py"]}[way]
    cold, warm = both(
        *arguments, "a", "b c", cwd=tmp_path, env={**os.environ, "WORD": "wörd"}, input="hello"
    )
    assert warm == cold
    assert cold[0] == 7 and "wörd True __main__ hello" in cold[1]


@pytest.mark.parametrize("code", ENDS.values(), ids=ENDS)
def test_it_ends_as_python_does(code: str) -> None:
    cold, warm = both("-c", code)
    assert warm == cold


@pytest.mark.parametrize("end", [subprocess.Popen.kill, subprocess.Popen.terminate])
def test_who_is_killed_takes_the_fork_along(end: Callable[[subprocess.Popen[str]], None]) -> None:
    process = subprocess.Popen([*start.python(), "-c", WAITS], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    fork = int(process.stdout.readline())
    end(process)
    assert process.stdout.read() == ""  # which nobody holds open any more
    assert process.wait(250) == -(
        signal.SIGKILL if end is subprocess.Popen.kill else signal.SIGTERM
    )
    process.stdout.close()
    assert not Path(f"/proc/{fork}/exe").exists()


def test_a_signal_to_its_group_reaches_nobody_else() -> None:
    """Else a command that signals those around it would end the tests."""
    command = [*start.python(), "-c", "import os; print(os.getpgrp() == os.getpid())"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=250).stdout == "True\n"
