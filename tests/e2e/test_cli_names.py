"""A program is the same whether its file runs as a script or was loaded by the command line."""

import os
import subprocess
from pathlib import Path

from tests.warm import start

SCRIPT = """
import everhold

def send(order: str) -> str:
    return f"sent {order}"

@everhold.program(strict=True)
async def ship(ctx: everhold.Context, order: str) -> str:
    sent = await ctx.call(send, order)
    return sent if await ctx.approval(sent) else "kept"

if __name__ == "__main__":
    everhold.run(ship(order="7"), key="k", database="app.db")
"""


def test_a_session_of_a_script_goes_on_in_the_command_line_even_if_strict(tmp_path: Path) -> None:
    """The name of a call is part of its wording, and a strict program counts its words."""
    (tmp_path / "ship.py").write_text(SCRIPT)
    subprocess.run([*start.python(), "ship.py"], cwd=tmp_path, capture_output=True)
    done = subprocess.run(
        [*start.everhold(), "answer", "k", "--as", "ana", "--yes", "-d", "app.db"],
        cwd=tmp_path,
        env={**os.environ},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "sent 7\n", done.stderr
