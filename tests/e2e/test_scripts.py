"""Scripts that call `everhold.run`: how they end if code fails, and with Ctrl-C."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.warm import start

SCRIPT = """
import sys
import everhold

def parse(answer):
    return answer["choices"]

def answer(query):
    return parse({})

@everhold.program
async def direct(ctx: everhold.Context) -> str:
    await ctx.sleep(0)
    return parse({})

@everhold.program
async def called(ctx: everhold.Context) -> str:
    return await ctx.call(parse, {})

@everhold.program
async def asked(ctx: everhold.Context) -> str:
    return await ctx.llm("hello?")

@everhold.program
async def waits(ctx: everhold.Context) -> str:
    return await ctx.approval("Hire Ana?")

@everhold.program
async def naps(ctx: everhold.Context) -> str:
    await ctx.sleep(3600)

if __name__ == "__main__":
    program, *key = sys.argv[1:]
    everhold.run(
        globals()[program](), key=key[0] if key else None, database="sqlite:///a.db", llm=answer
    )
"""
FRAME = 'line 6, in parse\n    return answer["choices"]\n'


@pytest.fixture
def script(tmp_path: Path) -> Path:
    (tmp_path / "script.py").write_text(SCRIPT)
    return tmp_path


def run(script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*start.python(), "script.py", *words], cwd=script, capture_output=True, text=True
    )


@pytest.mark.parametrize("program", ["direct", "called", "asked"])
def test_a_script_that_fails_shows_where_and_what_to_do(script: Path, program: str) -> None:
    """The frames of the script's own code, the same when it is run again, and a command that works
    in any folder.
    """
    first, again = run(script, program, "k"), run(script, program, "k")
    assert first.returncode == again.returncode == 1
    assert first.stderr == again.stderr
    *frames, error, hint = first.stderr.splitlines()
    assert frames[0] == "Traceback (most recent call last):"
    assert FRAME in first.stderr
    assert "everhold/" not in "\n".join(frames)
    assert error.startswith("error: session 'k' failed: ")
    assert error.endswith("KeyError: 'choices' [failed]")
    verb = "retry" if program == "direct" else "explain"
    assert hint.endswith(f": everhold {verb} k -d sqlite:///{script}/a.db")
    command = hint.rpartition(": everhold ")[2].split()
    done = subprocess.run([*start.everhold(), *command], cwd="/", capture_output=True, text=True)
    assert FRAME.split("\n")[0] in done.stdout + done.stderr


def test_a_script_that_waits_tells_the_command_that_answers(script: Path) -> None:
    """With its key; without one, the command that resumes it, too."""
    keyed = run(script, "waits", "k").stderr
    assert keyed.startswith("waiting · k · 1 question open: Hire Ana?\n")
    assert (
        f"`everhold answer k --query q-0 -d sqlite:///{script}/a.db`, then repeat the call" in keyed
    )
    assert ", then resume the session: everhold run -c s-" in run(script, "waits").stderr


@pytest.mark.parametrize("key", [["k"], []], ids=["key", "no key"])
def test_ctrl_c_tells_that_the_session_is_kept(script: Path, key: list[str]) -> None:
    """With the command that resumes it, and without a traceback."""
    process = subprocess.Popen(
        [sys.executable, "-u", "script.py", "naps", *key],
        cwd=script,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    while not waits(script):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate()
    assert process.returncode == -signal.SIGINT
    assert "Traceback" not in told
    name = "k" if key else waits(script)
    again = "run this again, or: " if key else ""
    assert told == (
        "\ninterrupted; the session is kept. To resume it:"
        f" {again}everhold run -c {name} -d sqlite:///{script}/a.db\n"
    )


def waits(script: Path) -> str:
    """The session that waits for its timer; empty if there is none yet."""
    import everhold

    if not (script / "a.db").exists():
        return ""
    with everhold.open_blocking(f"sqlite:///{script}/a.db", recover=False) as runtime:
        found = runtime.sessions(state="paused")
        return str(found[0].session_id) if found else ""
