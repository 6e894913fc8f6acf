"""The reference of the algocline profile names everything it has."""

from pathlib import Path

import pytest

from everhold.mcp.algocline.resource import RESOURCES, TEMPLATES
from everhold.mcp.algocline.server import INSTRUCTIONS
from everhold.mcp.algocline.tools import TOOLS

PAGE = (Path(__file__).parents[2] / "docs/reference/algocline.md").read_text()


@pytest.mark.parametrize("name", [tool.name for tool in TOOLS])
def test_every_tool_is_in_the_reference_and_in_what_the_server_says(name):
    assert f"`{name}`" in PAGE
    assert name in INSTRUCTIONS


@pytest.mark.parametrize(
    "address", [uri for uri, *_ in TEMPLATES] + [f"alc://types/{name}" for name, _ in RESOURCES]
)
def test_every_address_is_in_the_reference(address):
    assert f"`{address}" in PAGE
