"""everhold without what only POSIX systems have: see tests/portable/sitecustomize.py."""

import json
import os
import subprocess
import sys
from pathlib import Path

from tools import portable

ROOT = Path(__file__).resolve().parents[2]

EVERY_MODULE = """
import importlib, pkgutil, everhold
for found in pkgutil.walk_packages(everhold.__path__, "everhold."):
    importlib.import_module(found.name)
print("imported")
"""

A_SESSION = """
import sys
import everhold

def pay(order: str) -> str:
    return f"receipt-{order}"

@everhold.program
async def refund(ctx: everhold.Context, order: str) -> str:
    reason = await ctx.llm("Why?")
    if not await ctx.approval(f"Refund {order}? {reason}"):
        return "declined"
    return await ctx.call(pay, order, rerun="never")

if __name__ == "__main__":
    try:
        print(everhold.run(refund(order="7"), key="refund-7", llm=["It broke."]))
    except everhold.Waiting as waiting:
        print(waiting)
"""

LUA = """
import everhold
from everhold.programs.lua.program import LuaProgram

try:
    everhold.run(LuaProgram.text("return alc.llm('hello')"), llm=["hi"])
except everhold.errors.EverholdError as error:
    print(f"{error.code}: {error}. {error.hint}")
"""


def start(*words: str, home: Path) -> subprocess.CompletedProcess[str]:
    kept = ("PATH", "LANG", "TMPDIR")
    env = {name: os.environ[name] for name in kept if name in os.environ}
    env |= {"HOME": str(home), "PYTHONPATH": str(portable.REDUCED), "PYTHONWARNINGS": "error"}
    return subprocess.run(
        [sys.executable, *words], cwd=home, env=env, capture_output=True, text=True
    )


def test_no_module_needs_posix_to_be_imported(tmp_path: Path) -> None:
    done = start("-c", EVERY_MODULE, home=tmp_path)
    assert (done.stdout, done.stderr) == ("imported\n", "")


def test_a_session_is_started_answered_and_resumed_without_posix(tmp_path: Path) -> None:
    (tmp_path / "refund.py").write_text(A_SESSION)
    waiting = start("refund.py", home=tmp_path)
    assert "1 question open" in waiting.stdout, waiting.stderr
    inbox = start("-m", "everhold", "inbox", "--json", home=tmp_path)
    [question] = json.loads(inbox.stdout)["queries"]
    assert (question["kind"], question["prompt"]) == ("approval", "Refund 7? It broke.")
    answered = start("-m", "everhold", "answer", "refund-7", "--yes", "--as", "ann", home=tmp_path)
    assert "receipt-7" in answered.stdout, answered.stderr
    worked = start("-m", "everhold", "worker", "--once", home=tmp_path)
    assert worked.returncode == 0, worked.stderr
    assert start("refund.py", home=tmp_path).stdout == "receipt-7\n"


def test_a_lua_program_in_the_sandbox_is_refused_in_a_sentence(tmp_path: Path) -> None:
    done = start("-c", LUA, home=tmp_path)
    assert done.stdout == (
        "unsupported_system: a Lua program in the sandbox needs a POSIX system; this one is"
        f" {sys.platform!r}. Run it on Linux or macOS. On Windows, the Windows Subsystem for Linux"
        " is enough.\n"
    ), done.stderr
