"""Tools that tests add to a session at run time, found by their reference."""

from everhold.agents import tool


@tool(read_only=True)
def paint(colour: str) -> str:
    """Paint the house."""
    return f"painted {colour}"


@tool(read_only=True, name="look")
def look_closely() -> str:
    """Look closely."""
    return "looked closely"


def plain() -> str:
    """Not made with @tool."""
    return "plain"
