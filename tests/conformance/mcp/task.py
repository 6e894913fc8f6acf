"""The tools of the conformance suite that make tasks, on the tasks that everhold ships.

Each starts a session of a program; what is told of it afterwards, over `tasks/get`, `tasks/update`
and `tasks/cancel`, is what our server tells of any session.
"""

from typing import Any

import mcp_types as types
from mcp.server.lowlevel import Server

from everhold.core.status import Finished
from everhold.mcp.server import McpFront
from everhold.mcp.tasks import has_task_support, make_missing_error
from tests.conformance.mcp import fixture, programs

#: For each tool: its program, and whether it does without tasks for clients that do not know them.
TOOLS = {
    "slow_compute": (programs.slow_compute, True),
    "failing_job": (programs.failing_job, False),
    "protocol_error_job": (programs.protocol_error_job, False),
    "confirm_delete": (programs.confirm_delete, False),
    "multi_input": (programs.multi_input, False),
}
COMPOSED = "test_tool_with_task"


@fixture.tool(
    "greet", {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
)
async def greet(ctx: fixture.Ctx, params: types.CallToolRequestParams) -> fixture.Reply:
    return fixture.said(fixture.text(f"Hello, {(params.arguments or {})['name']}!"))


def mount(server: Server[Any], front: McpFront) -> None:
    """Put these tools beside those of the fixture."""
    for name, (program, plain) in TOOLS.items():
        fixture.tool(name)(_worker(front, program, plain=plain))
    fixture.tool(COMPOSED)(_composed(front))


def _worker(front: McpFront, program: Any, *, plain: bool) -> fixture.Work:
    async def work(ctx: fixture.Ctx, params: types.CallToolRequestParams) -> Any:
        if not plain and not has_task_support(ctx):
            raise make_missing_error()
        return await _started(front, ctx, program(**(params.arguments or {})))

    return work


def _composed(front: McpFront) -> fixture.Work:
    async def work(ctx: fixture.Ctx, params: types.CallToolRequestParams) -> Any:
        got = fixture.answers(params, "user_name")
        if got is None:
            return fixture.asking(
                "asked", user_name=fixture.form("What is your name?", name="string")
            )
        return await _started(front, ctx, programs.welcome(user_name=got[0].content["name"]))

    return work


async def _started(front: McpFront, ctx: fixture.Ctx, call: Any) -> Any:
    runtime = await front.holder.runtime()
    status = await runtime.start(call, wait=0 if has_task_support(ctx) else None)
    if not has_task_support(ctx):
        status = await runtime.wait(status.session_id)
        assert isinstance(status, Finished)
        return fixture.said(fixture.text(str(status.result)))
    return await front.tasks.created(status.session_id)
