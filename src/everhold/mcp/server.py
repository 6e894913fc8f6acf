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
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeVar

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
from everhold.mcp.protocol import (
    INVALID_PARAMS,
    Handler,
    KeptRequest,
    ProtocolError,
    RequestContext,
    make_text_content,
)
from everhold.mcp.runtime_holder import RuntimeHolder
from everhold.mcp.tasks import EXTENSION, TASK_TOOLS, TaskHandlers, is_task_request
from everhold.mcp.tool_call import (
    LOG_LEVEL_KEY,
    ProgressObserver,
    StatusResult,
    ToolCall,
    find_asking_child,
    find_session_name,
)
from everhold.mcp.tool_schema import ServerTool, build_input_schema, parse_tool_arguments
from everhold.mcp.tools import BY_NAME, STATUS_SCHEMA, TOOLS

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

log = logging.getLogger("everhold")

T = TypeVar("T")
#: Tools whose call may ask the person at the client.
ASKING_TOOLS: Final = frozenset({"run", "answer", "fork", "retry", "ask_person"})


class McpFront:
    """Handles the requests of the clients of one server."""

    title: ClassVar[str] = "everhold"
    instructions: ClassVar[str] = instructions.INSTRUCTIONS
    #: The extensions that the server offers to clients of protocol 2026-07-28.
    extensions: ClassVar[tuple[str, ...]] = (EXTENSION,)

    def __init__(self, holder: RuntimeHolder, observer: ProgressObserver) -> None:
        self.holder = holder
        self.observer = observer
        self.forms = elicitation.OpenForms()
        self._working: set[asyncio.Future[Any]] = set()
        self.tasks = TaskHandlers(holder, render=self._render_result, finish=self._finish)

    @property
    def handlers(self) -> dict[str, Handler]:
        """The handler of each method."""
        return {
            "tools/list": self.tools,
            "tools/call": self.call,
            "prompts/list": self.prompts,
            "prompts/get": self.prompt,
            "resources/list": self.resources,
            "resources/templates/list": self.templates,
            "resources/read": self.resource,
            "logging/setLevel": self.log_level,
        }

    def server(self, *, web: bool = True) -> Server[Any]:
        """The server object of the library. Without `web`, it serves pipes only."""
        server = sdk.build_server(
            self.handlers,
            version=get_everhold_version(),
            title=self.title,
            instructions=self.instructions,
            web=web,
        )
        if self.extensions:
            server.middleware.append(multi_round.StateBoundary(lambda: self.holder.database))
            self.tasks.mount(server)
        server.middleware.append(sdk.raise_protocol_errors)
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

    async def tools(self, context: RequestContext, params: Any) -> dict[str, Any]:
        return {"tools": [_describe_tool(tool) for tool in TOOLS]}

    async def call(self, context: RequestContext, params: Any) -> Any:
        """The result of a tool, or the library's object that asks the client for input."""
        tool = BY_NAME.get(params.name)
        if tool is None:
            names = ", ".join(BY_NAME)
            raise ProtocolError(
                INVALID_PARAMS, f"Unknown tool: {params.name!r}; the tools are {names}"
            )
        try:
            return await self._finish(self._run_tool(context, tool, params), context)
        except EverholdError as error:
            return _make_result(render.render_error(error, self.holder.option), failed=True)
        except Exception as error:
            log.exception("the tool %s failed", tool.name)
            return _make_result(render.render_unforeseen_error(error), failed=True)

    async def _finish(
        self, work: Coroutine[Any, Any, T], context: RequestContext | None = None
    ) -> T:
        """Run `work` to its end, even if the caller is cancelled."""
        if isinstance(context, KeptRequest):
            caller = asyncio.current_task()
            assert caller is not None
            self._working.add(caller)
            try:
                result = await work
            finally:
                self._working.discard(caller)
            if context.cancelled:
                raise asyncio.CancelledError
            return result
        task = asyncio.ensure_future(work)
        self._working.add(task)
        task.add_done_callback(self._ended)
        return await asyncio.shield(task)

    def _ended(self, task: asyncio.Future[Any]) -> None:
        self._working.discard(task)
        if not task.cancelled():
            task.exception()  # marks it as retrieved: the caller has it already, or has left

    async def _run_tool(self, context: RequestContext, tool: ServerTool, params: Any) -> Any:
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
        return self._render_status(
            result,
            await find_asking_child(runtime, result.status),
            await find_session_name(runtime, result.status),
        )

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

    def _render_status(
        self, result: StatusResult, child: str = "", name: str = ""
    ) -> dict[str, Any]:
        shown = render.render_status(
            result.status,
            title=result.title,
            option=self.holder.option,
            extra=result.extra,
            asked=result.asked,
            name=name,
        )
        shown["next"] = render.describe_related_step(
            str(shown["next"]), result.status, result.parent, child
        )
        return _make_result(shown)

    def _render_result(self, status: Status, title: str) -> dict[str, Any]:
        return self._render_status(StatusResult(status, title))

    # ---- prompts

    async def prompts(self, context: RequestContext, params: Any) -> dict[str, Any]:
        listed = []
        for name, (
            title,
            description,
            (argument, words, required),
        ) in instructions.list_prompts().items():
            arguments = [{"description": words, "name": argument, "required": required}]
            listed.append(
                {"arguments": arguments, "description": description, "name": name, "title": title}
            )
        return {"prompts": listed}

    async def prompt(self, context: RequestContext, params: Any) -> dict[str, Any]:
        found = instructions.list_prompts().get(params.name)
        if found is None:
            raise ProtocolError(INVALID_PARAMS, f"Unknown prompt: {params.name!r}")
        given = params.arguments or {}
        argument, _, required = found[2]
        if required and not given.get(argument):
            raise ProtocolError(INVALID_PARAMS, f"The prompt {params.name!r} needs {argument!r}")
        content = make_text_content(instructions.render_prompt(params.name, given))
        return {"description": found[1], "messages": [{"content": content, "role": "user"}]}

    # ---- resources

    async def resources(self, context: RequestContext, params: Any) -> dict[str, Any]:
        guide = {
            "description": "One page: read it before you give code to the tool `run`.",
            "mimeType": "text/markdown",
            "name": "guide",
            "title": "How to write a program in Lua",
            "uri": instructions.GUIDE,
        }
        return {"resources": [guide]}

    async def templates(self, context: RequestContext, params: Any) -> dict[str, Any]:
        return {"resourceTemplates": []}

    async def resource(self, context: RequestContext, params: Any) -> dict[str, Any]:
        uri = str(params.uri)
        if uri != instructions.GUIDE:
            raise ProtocolError(INVALID_PARAMS, f"Resource not found: {uri}", {"uri": uri})
        page = {"mimeType": "text/markdown", "text": instructions.load_guide(), "uri": uri}
        return {"contents": [page]}

    # ---- logs

    async def log_level(self, context: RequestContext, params: Any) -> dict[str, Any]:
        context.session._connection.state[LOG_LEVEL_KEY] = params.level
        return {}


def _describe_tool(tool: ServerTool) -> dict[str, Any]:
    return {
        "annotations": {
            "destructiveHint": tool.destroys,
            "idempotentHint": tool.repeats,
            "openWorldHint": tool.world,
            "readOnlyHint": tool.reads,
            "title": tool.title,
        },
        "description": tool.description,
        "inputSchema": build_input_schema(tool.takes),
        "name": tool.name,
        "outputSchema": STATUS_SCHEMA if tool.status else {"type": "object"},
        "title": tool.title,
    }


def _make_result(shown: dict[str, JSON], *, failed: bool = False) -> dict[str, Any]:
    return {
        "content": [make_text_content(render.render_text(shown))],
        "isError": failed,
        "structuredContent": shown,
    }
