"""Loading the protocol library: less of it, and nothing of it lost."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytestmark = pytest.mark.process

LOADED = (
    "from everhold.mcp.sdk import load_sdk, load_server_class; load_sdk(web=False); import sys\n"
)


def says(code: str) -> str:
    """What a fresh process prints; this one has the library already."""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "name",
    [
        "mcp.client",
        "mcp.server.mcpserver",
        "mcp.server.auth",
        "starlette",
        "uvicorn",
        "cryptography",
    ],
)
def test_a_server_on_pipes_loads_no_client_no_second_server_no_web_and_no_seals(name: str) -> None:
    assert says(LOADED + f"import everhold.mcp.stdio; print({name!r} in sys.modules)") == "False"


@pytest.mark.parametrize("web", [True, False])
def test_whoever_asks_for_the_rest_gets_it(web: bool) -> None:
    code = (
        "from mcp import Client; import mcp.server; print(Client.__name__,"
        " mcp.server.MCPServer.__name__)"
    )
    assert says(LOADED.replace("False", str(web)) + code) == "Client MCPServer"


def test_whoever_serves_the_web_in_the_same_process_has_all_of_it() -> None:
    code = """
from mcp.server.lowlevel import Server
app = Server("another").streamable_http_app()
loaded = [load_server_class(web=web) for web in (True, False)]
print(type(app).__module__, *(Server is one for one in loaded))
"""
    assert says(LOADED + code) == "starlette.applications True True"


def test_a_library_that_is_made_differently_is_loaded_whole() -> None:
    code = """
from everhold.mcp import sdk as library
library._WEB = ("dataclasses",)
library.load_sdk(web=False)
from mcp.server.lowlevel import Server
print(library.load_server_class(web=False) is Server)
"""
    assert says(code) == "True"


def test_a_name_that_is_not_there_is_missed_as_ever() -> None:
    code = "import mcp\ntry:\n    mcp.nothing\nexcept AttributeError as error:\n    print(error)"
    assert says(LOADED + code) == "module 'mcp' has no attribute 'nothing'"


@pytest.mark.parametrize(
    ("check", "where"),
    [
        ("CallToolRequest.model_validate", "('params', 'name')"),
        ("CallToolRequestParams.model_validate", "('name',)"),
        ("client_request_adapter.validate_python", "('CallToolRequest', 'params', 'name')"),
    ],
)
def test_a_message_is_checked_although_it_was_built_late(check: str, where: str) -> None:
    code = f"""
import mcp_types
from pydantic import ValidationError
params = {{"name": 1}}
try:
    mcp_types.{check}({{"method": "tools/call", "params": params, **params}})
except ValidationError as error:
    print({{failure["loc"] for failure in error.errors()}})
"""
    assert where in says(LOADED + code)


def test_models_of_others_are_built_at_once_as_ever() -> None:
    code = """
from pydantic import BaseModel, TypeAdapter
class Model(BaseModel):
    part: "Part"
class Part(BaseModel):
    name: str
before = Model.__pydantic_complete__
Model.model_rebuild()
print(BaseModel.model_config, before, Model.__pydantic_complete__, TypeAdapter(int | str).pydantic_complete)
"""  # noqa: E501
    assert says(LOADED + code) == "{} False True True"


def test_what_is_loaded_already_stays_as_it_is() -> None:
    assert (
        says("import mcp; before = mcp.Client\n" + LOADED + "print(mcp.Client is before)") == "True"
    )
