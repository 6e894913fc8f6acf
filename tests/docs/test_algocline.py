"""The reference of the algocline profile names everything it has."""

from pathlib import Path

from everhold.mcp.algocline.resource import RESOURCES, TEMPLATES
from everhold.mcp.algocline.server import INSTRUCTIONS, TOOLS

PAGE = (Path(__file__).parents[2] / "docs/reference/algocline.md").read_text()


def test_every_tool_is_in_the_reference_and_in_what_the_server_says():
    names = [tool.name for tool in TOOLS]
    assert [name for name in names if f"`{name}`" not in PAGE] == []
    assert [name for name in names if name not in INSTRUCTIONS] == []


def test_every_address_is_in_the_reference():
    addresses = [uri for uri, *_ in TEMPLATES] + [f"alc://types/{name}" for name, _ in RESOURCES]
    assert [address for address in addresses if f"`{address}" not in PAGE] == []
