"""Scripts that call `everhold.run`: how they end if code fails, and with Ctrl-C."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
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
    with begin(script, "script.py", "naps", *key) as process:
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


WAYS = """
import asyncio
import sys
import time
from pathlib import Path
import everhold

def hold() -> None:
    Path("began").touch()
    while not Path("over").exists():
        time.sleep(0.05)

async def hold_here() -> None:
    Path("began").touch()
    await asyncio.Event().wait()

async def answer(query):
    await hold_here()

@everhold.tool
async def weather(city: str) -> str:
    "The weather."
    await hold_here()

@everhold.program
async def called(ctx: everhold.Context) -> None:
    await ctx.call(hold_here)

@everhold.program
async def threaded(ctx: everhold.Context) -> None:
    await ctx.call(hold)

@everhold.program
async def asked(ctx: everhold.Context) -> str:
    return await ctx.llm("hello?")

agent = everhold.Agent(name="agent", tools=[weather])
CALL = ['{"text": "", "tool_calls": [{"name": "weather", "input": {"city": "Rome"}}]}']
ADDRESS = "sqlite:///a.db"

def in_run(program, llm):
    everhold.run(program(), key="k", database=ADDRESS, llm=llm)

def in_a_block(program, llm):
    with everhold.open_blocking(ADDRESS, llm=llm) as runtime:
        if program is agent:
            runtime.session(agent, "k").send("hello")
        else:
            runtime.run(program(), key="k")

def in_a_loop(program, llm):
    async def main():
        async with everhold.open(ADDRESS, llm=llm) as runtime:
            if program is agent:
                session = await runtime.session(agent, "k")
                async for _ in session.stream("hello"):
                    pass
            else:
                await runtime.run(program(), key="k")
    asyncio.run(main())

if __name__ == "__main__":
    way, name = sys.argv[1:]
    globals()[way](globals()[name], CALL if name == "agent" else answer)
"""


@pytest.mark.parametrize(
    ("way", "name"),
    [
        ("in_run", "called"),
        ("in_run", "threaded"),
        ("in_run", "asked"),
        ("in_a_block", "agent"),
        ("in_a_loop", "agent"),
        ("in_a_loop", "threaded"),
    ],
)
def test_ctrl_c_during_work_tells_it_at_once_and_again_leaves_it(
    tmp_path: Path, way: str, name: str
) -> None:
    """During a call, also one in a thread that does not end, a model question, and an agent's turn:
    the second Ctrl-C does not wait for them. Nothing else is printed.
    """
    (tmp_path / "ways.py").write_text(WAYS)
    again = "" if name == "agent" else "run this again, or: "
    command = f"everhold run -c k -d sqlite:///{tmp_path}/a.db"
    with begin(tmp_path, "ways.py", way, name) as process:
        while not (tmp_path / "began").exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        assert [process.stderr.readline() for _ in range(3)] == [
            "\n",
            f"interrupted; the session is kept. To resume it: {again}{command}\n",
            "Running calls have 5 s to end; Ctrl-C again leaves them at once.\n",
        ]
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=60)
    assert (process.returncode, rest) == (-signal.SIGINT, "")
    words = command.split()[1:]
    done = subprocess.run(
        [*start.everhold(), "explain", words[2], *words[3:]],
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith("k is ")


def test_ctrl_c_in_a_command_leaves_a_call_in_a_thread(tmp_path: Path) -> None:
    """The second one ends it, whatever the thread does."""
    (tmp_path / "ways.py").write_text(WAYS)
    words = ["run", "ways.py:threaded", "--key", "k", "-d", "sqlite:///a.db"]
    with begin(tmp_path, "-m", "everhold", *words) as process:
        while not (tmp_path / "began").exists():
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while "Running calls" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        _, rest = process.communicate(timeout=60)
    assert (process.returncode, rest) == (-signal.SIGINT, "")


@contextmanager
def begin(folder: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """A process that Ctrl-C interrupts, as in a terminal."""
    process = subprocess.Popen(
        [sys.executable, "-u", *words],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    with process:
        try:
            yield process
        finally:
            process.kill()


ERRORS = """
import asyncio
import sys
import everhold

@everhold.program
async def fails(ctx: everhold.Context) -> None:
    {}["choices"]

def block(use):
    with everhold.open_blocking("sqlite:///a.db") as runtime:
        use(runtime)

async def loop(use):
    async with everhold.open("sqlite:///a.db") as runtime:
        await use(runtime)

if __name__ == "__main__":
    match sys.argv[1]:
        case "block":
            block(lambda runtime: runtime.run(fails(), key="k"))
        case "loop":
            asyncio.run(loop(lambda runtime: runtime.run(fails(), key="k")))
        case "unknown":
            block(lambda runtime: runtime.answer("nobody", 1))
        case "own":
            block(lambda runtime: {}["mine"])
        case "twice":
            @everhold.program(name="fails")
            async def other(ctx: everhold.Context) -> None: ...
"""


@pytest.mark.parametrize(
    ("which", "frames", "error", "hint"),
    [
        (
            "block",
            ["fails", "<module>", "block", "<lambda>"],
            "session 'k' failed: KeyErr",
            "retry k",
        ),
        ("loop", ["fails", "<module>", "loop"], "session 'k' failed: KeyErr", "retry k"),
        ("unknown", ["<module>", "block", "<lambda>"], "no session 'nobody'", "everhold sessions"),
        ("twice", ["<module>"], "two programs 'fails'", "Rename one"),
    ],
)
def test_an_error_of_everhold_has_the_frames_of_the_script_and_a_hint(
    tmp_path: Path, which: str, frames: list[str], error: str, hint: str
) -> None:
    """In a runtime that the script opens itself, and while it is loaded; none of everhold's."""
    (tmp_path / "errors.py").write_text(ERRORS)
    done = subprocess.run(
        [*start.python(), "errors.py", which], cwd=tmp_path, capture_output=True, text=True
    )
    *trace, last, hinted = done.stderr.splitlines()
    assert done.returncode == 1
    places = [line.rpartition(", in ")[2] for line in trace if 'errors.py", line' in line]
    assert places == frames
    assert "/everhold/" not in "".join(trace)
    assert last.startswith("error: ") and error in last
    assert hinted.startswith("hint: ") and hint in hinted


def test_other_errors_of_a_script_are_shown_as_python_shows_them(tmp_path: Path) -> None:
    (tmp_path / "errors.py").write_text(ERRORS)
    done = subprocess.run(
        [*start.python(), "errors.py", "own"], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.stderr.endswith("KeyError: 'mine'\n")
    assert "hint: " not in done.stderr


def waits(script: Path) -> str:
    """The session that waits for its timer; empty if there is none yet."""
    import everhold

    if not (script / "a.db").exists():
        return ""
    with everhold.open_blocking(f"sqlite:///{script}/a.db", recover=False) as runtime:
        found = runtime.sessions(state="paused")
        return str(found[0].session_id) if found else ""
