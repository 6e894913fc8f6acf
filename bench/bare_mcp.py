"""The protocol library alone: a server whose tools return fixed results at once."""

from typing import Any

from mcp.server import MCPServer

SESSION = "s-0000000000000000-000000000000000000000000"
server = MCPServer("bare")


@server.tool()
def run(program: str, args: dict[str, Any]) -> dict[str, Any]:
    """Start something."""
    question = {"id": "q-0", "prompt": f"One sentence about {args['topic']}.", "max_tokens": 1024}
    return {
        "status": "needs_response",
        "session_id": SESSION,
        "title": program,
        "next": "Answer it.",
        "questions": [question],
    }


@server.tool()
def answer(session_id: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Answer it."""
    return {
        "status": "completed",
        "session_id": session_id,
        "result": answers[0]["response"],
        "stats": {},
    }


if __name__ == "__main__":
    server.run("stdio")
