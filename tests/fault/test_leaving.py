"""A worker that is told to leave while a call is in a thread, which nobody can stop."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import everhold

PATIENCE = 60
PROGRAM = """
import time
from pathlib import Path

import everhold


def hold(folder: str) -> str:
    with open(f"{folder}/began", "a") as file:
        file.write("x")
    while not Path(folder, "over").exists():
        time.sleep(0.05)
    return "held"


@everhold.program
async def holds(ctx, folder: str):
    return await ctx.call(hold, folder, rerun="safe")
"""
BEGIN = """
import asyncio, os, sys
import everhold
from stubborn import holds

async def main():
    async with everhold.open(sys.argv[1]) as runtime:
        await runtime.start(holds(folder=sys.argv[2]), key="k", wait=0)
        os._exit(0)

asyncio.run(main())
"""


def began(folder: Path) -> int:
    file = folder / "began"
    return len(file.read_text()) if file.exists() else 0


def until(what) -> None:
    end = time.monotonic() + PATIENCE
    while not what():
        assert time.monotonic() < end
        time.sleep(0.02)


@pytest.mark.timeout(300)
def test_a_worker_leaves_though_a_thread_goes_on(tmp_path: Path) -> None:
    """After its grace it exits, and does not wait for what it has handed over: others run it again,
    as was declared.
    """
    (tmp_path / "stubborn.py").write_text(PROGRAM)
    url = f"sqlite:///{tmp_path / 'leaving.db'}"
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run(
        [sys.executable, "-c", BEGIN, url, str(tmp_path)], env=env, check=True, timeout=PATIENCE
    )
    before = began(tmp_path)
    command = [sys.executable, "-m", "everhold", "worker", "-d", url, "--grace", "0.1s", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=env) as worker:
        try:
            until(lambda: began(tmp_path) > before)
            worker.send_signal(signal.SIGTERM)
            assert worker.wait(PATIENCE) == 0
            told = worker.stdout.read().decode()
        finally:
            (tmp_path / "over").touch()
            worker.kill()
    assert [event for event in ("gave_up", "stopped") if f'"event":"{event}"' not in told] == []
    done = subprocess.run([*command, "--once"], env=env, capture_output=True, timeout=PATIENCE)
    assert done.returncode == 0
    with everhold.open_blocking(url) as runtime:
        assert [row.state for row in runtime.sessions()] == ["completed"]
