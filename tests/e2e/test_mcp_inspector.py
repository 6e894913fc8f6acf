"""The official inspector, as a client that we did not write, against the server over standard input
and output.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.mcp.node import INSPECTOR, program
from tests.e2e.test_mcp_http import serving

PROGRAM = """
import everhold

@everhold.program
async def advice(ctx: everhold.Context, topic: str) -> str:
    return "You asked. " + await ctx.llm(f"One sentence about {topic}.")
"""

#: Milliseconds until the server has started: the inspector's own limit is too short for a busy
#: machine.
CONNECT = "170000"

pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "advice.py").write_text(PROGRAM)
    (tmp_path / "everhold.toml").write_text(
        'database = "sqlite:///app.db"\nprograms = ["advice.py"]\n'
    )
    return tmp_path


def inspect(project: Path, *words: str) -> dict[str, Any]:
    """What the inspector prints; each call starts a server of its own, and ends it."""
    done = inspected(project, sys.executable, "-m", "everhold", "mcp", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def inspected(project: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*program(*INSPECTOR), "--cli", "--connect-timeout", CONNECT, *words],
        cwd=project,
        env={**os.environ, "HOME": str(project)},
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        timeout=190,
    )


def test_the_inspector_lists_the_tools_and_runs_a_program_to_its_end(project: Path) -> None:
    """Three servers, one after the other: what the first began, the last ends."""
    tools = inspect(project, "--method", "tools/list", "--strict")["tools"]
    assert {"run", "answer", "status"} <= {tool["name"] for tool in tools}
    assert len(tools) <= 12

    call = ("--method", "tools/call", "--tool-name")
    began = inspect(project, *call, "run", "--tool-arg", "program=advice", 'args={"topic": "tea"}')[
        "structuredContent"
    ]
    assert (began["status"], began["questions"][0]["prompt"]) == (
        "needs_response",
        "One sentence about tea.",
    )

    answers = json.dumps([{"id": began["questions"][0]["id"], "response": "Warm the pot."}])
    given = (f"session_id={began['session_id']}", f"answers={answers}")
    ended = inspect(project, *call, "answer", "--tool-arg", *given)["structuredContent"]
    assert (ended["status"], ended["result"]) == ("completed", "You asked. Warm the pot.")


def test_the_inspector_needs_the_token_over_http_and_understands_the_refusal(project: Path) -> None:
    """Without the token it says that the server wants one, and does not take it for broken."""
    with serving(project) as (url, _):
        over = (url, "--transport", "http", "--method", "tools/list")
        refused = inspected(project, "--stored-auth-only", *over)
        assert refused.returncode != 0
        assert "auth_required" in refused.stdout + refused.stderr
        token = (project / "everhold" / "mcp-token").read_text().strip()
        listed = inspected(project, *over, "--header", f"Authorization: Bearer {token}")
        assert listed.returncode == 0, listed.stdout + listed.stderr
        assert "run" in {tool["name"] for tool in json.loads(listed.stdout)["tools"]}
