"""An eval in a real process that is killed: the next one runs only what is missing."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

SCENARIO = {
    "name": "numbers",
    "cases": [{"id": f"n{n}", "input": f"question {n}", "expected": f"{n}"} for n in range(6)],
}
PROGRAM = """
import everhold

@everhold.program
async def ask(ctx: everhold.Context, question: str) -> str:
    return await ctx.llm(question)
"""
#: Answers with the number in the question, notes each question, and hangs at one of them.
MODEL = """
import os, sys, time
number = sys.stdin.read().split()[-1]
with open("asked.txt", "a") as file:
    file.write(number + "\\n")
while number == os.environ.get("HANGS"):
    time.sleep(1)
print(number)
"""


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "everhold", "eval", *words, "-d", "app.db"]


def asked(folder: Path) -> list[str]:
    file = folder / "asked.txt"
    return file.read_text().split() if file.exists() else []


def test_killed_in_the_middle(tmp_path: Path) -> None:
    """`kill -9` while the fourth case runs: no case that has ended is asked again."""
    (tmp_path / "numbers.json").write_text(json.dumps(SCENARIO))
    (tmp_path / "geo.py").write_text(PROGRAM)
    (tmp_path / "model.py").write_text(MODEL)
    run = command(
        *("run", "numbers.json", "geo.py:ask", "--key", "k", "--concurrency", "1"),
        *("--answer-with", f"{sys.executable} model.py", "--json"),
    )
    first = subprocess.Popen(
        run,
        cwd=tmp_path,
        env={**os.environ, "HANGS": "3"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        guard = time.monotonic() + 120
        while asked(tmp_path)[-1:] != ["3"]:
            assert first.poll() is None
            assert time.monotonic() < guard
            time.sleep(0.05)
    finally:
        os.killpg(first.pid, signal.SIGKILL)
        first.wait()
    between = subprocess.run(
        command("list", "--json"), cwd=tmp_path, capture_output=True, check=True
    )
    assert json.loads(between.stdout)["evals"][0]["done"] == 3
    again = subprocess.run(run, cwd=tmp_path, capture_output=True, timeout=240)
    assert again.returncode == 0, again.stderr
    report = json.loads(again.stdout)
    assert report["aggregated"]["passed"] == 6
    assert Counter(asked(tmp_path)) == {"0": 1, "1": 1, "2": 1, "3": 2, "4": 1, "5": 1}
