"""Tools, prompts and resources of one MCP server.

Rules
  1. A refusal is a result with `isError`, a code and a hint. Only what the protocol itself forbids
     is an error of the protocol.
  2. A call that has begun is finished even if the client cancels it, so that no commit is
     interrupted.
  3. The state of a call that is to be repeated is sealed (`multi_round.py`): the client can neither
     read nor forge it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, TypeVar

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.shared.exceptions import MCPError

from everhold.archive.archive import get_everhold_version
from everhold.core.codec import JSON
from everhold.core.status import Finished, Status
from everhold.errors import EverholdError
from everhold.mcp import (
    elicitation,
    instructions,
    multi_round,
    render,
    sdk,
)
from everhold.mcp.runtime_holder import RuntimeHolder
from everhold.mcp.tasks import TASK_TOOLS, TaskHandlers, is_task_request
from everhold.mcp.tool_call import (
    LOG_LEVEL_KEY,
    ProgressObserver,
    StatusResult,
    ToolCall,
    find_asking_child,
)
from everhold.mcp.tool_schema import ServerTool, build_input_schema, parse_tool_arguments
from everhold.mcp.tools import BY_NAME, STATUS_SCHEMA, TOOLS

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

log = logging.getLogger("everhold")

T = TypeVar("T")
RequestContext = ServerRequestContext[Any, Any]
ToolResult = types.CallToolResult | types.InputRequiredResult | dict[str, Any]

#: Tools whose call may ask the person at the client.
ASKING_TOOLS: Final = frozenset({"run", "answer", "fork", "retry", "ask_person"})


class McpFront:
    """Handles the requests of the clients of one server."""

    def __init__(self, holder: RuntimeHolder, observer: ProgressObserver) -> None:
        self.holder = holder
        self.observer = observer
        self.forms = elicitation.OpenForms()
        self._working: set[asyncio.Future[Any]] = set()
        self.tasks = TaskHandlers(holder, render=self._render_result, finish=self._finish)

    def server(self, *, web: bool = True) -> Server[Any]:
        """The server object of the library. Without `web`, it serves pipes only."""
        server = sdk.load_server_class(web=web)(
            "everhold",
            version=get_everhold_version(),
            title="everhold",
            instructions=instructions.INSTRUCTIONS,
            on_list_tools=self.tools,
            on_list_prompts=self.prompts,
            on_get_prompt=self.prompt,
            on_list_resources=self.resources,
            on_list_resource_templates=self.templates,
            on_read_resource=self.resource,
        )
        server.add_request_handler("tools/call", types.CallToolRequestParams, self.call)
        server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, self.log_level)
        server.middleware.append(multi_round.StateBoundary(lambda: self.holder.database))
        self.tasks.mount(server)
        return server

    async def open(self) -> None:
        """Open the runtime, so that due sessions move. If it fails, each call reports the error."""
        try:
            await self.holder.runtime()
        except EverholdError as error:
            log.warning("%s [%s]", error, error.code)

    async def close(self) -> None:
        """Cancel the calls that still wait, and close the runtime."""
        for task in self._working:
            task.cancel()
        await asyncio.gather(*self._working, return_exceptions=True)
        await self.holder.close()

    # ---- tools

    async def tools(self, context: RequestContext, params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_describe_tool(tool) for tool in TOOLS])

    async def call(
        self, context: RequestContext, params: types.CallToolRequestParams
    ) -> ToolResult:
        tool = BY_NAME.get(params.name)
        if tool is None:
            names = ", ".join(BY_NAME)
            raise MCPError(
                code=types.INVALID_PARAMS,
                message=f"Unknown tool: {params.name!r}; the tools are {names}",
            )
        try:
            return await self._finish(self._run_tool(context, tool, params))
        except EverholdError as error:
            return _make_result(render.render_error(error, self.holder.option), failed=True)
        except Exception as error:
            log.exception("the tool %s failed", tool.name)
            return _make_result(render.render_unforeseen_error(error), failed=True)

    async def _finish(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end, even if the caller is cancelled."""
        task = asyncio.ensure_future(work)
        self._working.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._working.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the caller has it already, or has left

    async def _run_tool(
        self, context: RequestContext, tool: ServerTool, params: types.CallToolRequestParams
    ) -> ToolResult:
        reply = multi_round.read_round_reply(context, params)
        given = parse_tool_arguments(tool, params.arguments)
        runtime = await self.holder.runtime()
        call = ToolCall(self.holder, self.observer, runtime, context)
        if not tool.status:
            return _make_result(await tool.handle(call, given))
        is_task = (
            tool.name in TASK_TOOLS and reply is None and is_task_request(context, self.holder)
        )
        if is_task and given.wait is None:
            given.wait = 0.0  # a client that knows tasks polls the task
        result: StatusResult = await (
            tool.handle(call, given) if reply is None else call.record_round_reply(reply)
        )
        if is_task and not isinstance(result.status, Finished):
            return await self.tasks.created(result.status.session_id)
        if tool.name in ASKING_TOOLS and elicitation.has_multi_round(context):
            asked = multi_round.select_next_round(context, result.status, reply, result.notes)
            if asked:
                number = 1 if reply is None else reply.state.round + 1
                return multi_round.build_input_required(
                    asked, result.title, number=number, notes=result.notes
                )
        elif tool.name in ASKING_TOOLS and elicitation.has_elicitation(context):
            await self._ask_person(call, context, result)
        return self._render_status(result, await find_asking_child(runtime, result.status))

    async def _ask_person(
        self, call: ToolCall, context: RequestContext, result: StatusResult
    ) -> None:
        """Ask the person at the client one question after the other, until one is not answered."""
        while asked := elicitation.select_person_questions(result.status):
            query = next(iter(asked.values()))
            if not await call.record_answer(
                result, query, await self.forms.ask(context, query, result.title)
            ):
                return
            result.status = (await call.settle(result.status, result.title)).status

    def _render_status(self, result: StatusResult, child: str = "") -> types.CallToolResult:
        shown = render.render_status(
            result.status,
            title=result.title,
            option=self.holder.option,
            extra=result.extra,
            asked=result.asked,
        )
        shown["next"] = render.describe_related_step(
            str(shown["next"]), result.status, result.parent, child
        )
        return _make_result(shown)

    def _render_result(self, status: Status, title: str) -> types.CallToolResult:
        return self._render_status(StatusResult(status, title))

    # ---- prompts

    async def prompts(self, context: RequestContext, params: Any) -> types.ListPromptsResult:
        listed = []
        for name, (
            title,
            description,
            (argument, words, required),
        ) in instructions.list_prompts().items():
            arguments = [types.PromptArgument(name=argument, description=words, required=required)]
            listed.append(
                types.Prompt(name=name, title=title, description=description, arguments=arguments)
            )
        return types.ListPromptsResult(prompts=listed)

    async def prompt(
        self, context: RequestContext, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        found = instructions.list_prompts().get(params.name)
        if found is None:
            raise MCPError(code=types.INVALID_PARAMS, message=f"Unknown prompt: {params.name!r}")
        given = params.arguments or {}
        argument, _, required = found[2]
        if required and not given.get(argument):
            raise MCPError(
                code=types.INVALID_PARAMS, message=f"The prompt {params.name!r} needs {argument!r}"
            )
        words = types.TextContent(type="text", text=instructions.render_prompt(params.name, given))
        message = types.PromptMessage(role="user", content=words)
        return types.GetPromptResult(description=found[1], messages=[message])

    # ---- resources

    async def resources(self, context: RequestContext, params: Any) -> types.ListResourcesResult:
        guide = types.Resource(
            uri=instructions.GUIDE,
            name="guide",
            title="How to write a program in Lua",
            description="One page: read it before you give code to the tool `run`.",
            mime_type="text/markdown",
        )
        return types.ListResourcesResult(resources=[guide])

    async def templates(
        self, context: RequestContext, params: Any
    ) -> types.ListResourceTemplatesResult:
        return types.ListResourceTemplatesResult(resource_templates=[])

    async def resource(
        self, context: RequestContext, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        if str(params.uri) != instructions.GUIDE:
            raise MCPError(
                code=types.INVALID_PARAMS,
                message=f"Resource not found: {params.uri}",
                data={"uri": str(params.uri)},
            )
        page = types.TextResourceContents(
            uri=instructions.GUIDE, mime_type="text/markdown", text=instructions.load_guide()
        )
        return types.ReadResourceResult(contents=[page])

    # ---- logs

    async def log_level(
        self, context: RequestContext, params: types.SetLevelRequestParams
    ) -> types.EmptyResult:
        context.session._connection.state[LOG_LEVEL_KEY] = params.level
        return types.EmptyResult()


def _describe_tool(tool: ServerTool) -> types.Tool:
    hints = types.ToolAnnotations(
        title=tool.title,
        read_only_hint=tool.reads,
        destructive_hint=tool.destroys,
        idempotent_hint=tool.repeats,
        open_world_hint=tool.world,
    )
    return types.Tool(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=build_input_schema(tool.takes),
        output_schema=STATUS_SCHEMA if tool.status else {"type": "object"},
        annotations=hints,
    )


def _make_result(shown: dict[str, JSON], *, failed: bool = False) -> types.CallToolResult:
    words = types.TextContent(type="text", text=render.render_text(shown))
    return types.CallToolResult(content=[words], structured_content=shown, is_error=failed)
