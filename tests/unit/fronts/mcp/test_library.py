"""Loading the protocol library: less of it, and nothing of it lost."""

from __future__ import annotations

import subprocess
import sys

LOADED = "from everhold.fronts.mcp.library import load; load(); import sys; "


def says(code: str) -> str:
    """What a fresh process prints; this one has the library already."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_server_loads_no_client_and_no_second_server() -> None:
    code = LOADED + "import everhold.fronts.mcp.serve; print([n for n in sys.modules if n in {names}])"
    names = {"mcp.client", "mcp.server.mcpserver"}
    assert says(code.format(names=names)) == "[]"


def test_whoever_asks_for_the_rest_gets_it() -> None:
    code = "from mcp import Client; import mcp.server; print(Client.__name__, mcp.server.MCPServer.__name__)"
    assert says(LOADED + code) == "Client MCPServer"


def test_a_name_that_is_not_there_is_missed_as_ever() -> None:
    code = "import mcp\ntry:\n    mcp.nothing\nexcept AttributeError as error:\n    print(error)"
    assert says(LOADED + "\n" + code) == "module 'mcp' has no attribute 'nothing'"


def test_a_message_is_checked_although_its_model_was_built_late() -> None:
    code = """
import mcp_types
from pydantic import BaseModel, ValidationError
try:
    mcp_types.CallToolRequest.model_validate({"method": "tools/call", "params": {"name": 1}})
except ValidationError as error:
    print(error.errors()[0]["loc"], BaseModel.model_config)
"""
    assert says(LOADED + code) == "('params', 'name') {}"


def test_what_is_loaded_already_stays_as_it_is() -> None:
    assert says("import mcp; before = mcp.Client; " + LOADED + "print(mcp.Client is before)") == "True"
