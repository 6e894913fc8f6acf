"""MCP servers as tool sources: processes on standard streams, or URLs.

    files = McpServer("files", command=["npx", "server-files", "/data"])
    Agent("…", tools=[files, McpServer("wiki", url="https://…")])

Rules
  1. A server is not trusted: what it sends is bounded, and its process gets its own environment. A
     dead server is an error that the model sees.
  2. One connection per event loop, opened on first use. A lost connection is opened again; after a
     failure, at the earliest after 0.5 s, then 1, 2, … 30.
  3. A call whose connection is lost is sent again only if the tool is read-only or idempotent.

Of a process's standard error, only the end is kept, for error messages.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

from everhold.core.codec import JSON
from everhold.core.message import Text
from everhold.core.schema import PositiveSeconds, describe_misfit
from everhold.core.tool import Window
from everhold.core.unknown_names import checks_keywords
from everhold.errors import AnswerFailed, BadArguments, MissingExtra, ToolServerFailed
from everhold.plugins.sanitize import (
    ANY_OBJECT_SCHEMA,
    convert_content,
    limit_schema,
    make_tool_name,
    reduce_schema,
    sanitize_name,
)
from everhold.ports.tool import OfferedTool, Tool
from everhold.ports.tool_services import (
    register_closer,
)

if TYPE_CHECKING:
    from mcp import Client


#: Bytes of standard error that are kept.
MAX_TAIL_BYTES: Final = 400


class StderrTail:
    """A pipe for a process's standard error. It is read continuously, so that the process never
    blocks on it.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._reading, writing = os.pipe()
        os.set_blocking(self._reading, False)
        self.file = os.fdopen(writing, "w")
        self._kept = b""
        self._loop.add_reader(self._reading, self._read)

    @property
    def said(self) -> str:
        """The last output, after a colon; empty without output."""
        words = " ".join(self._kept.decode("utf-8", "replace").split())
        return f": {words}" if words else ""

    def _read(self) -> None:
        try:
            data = os.read(self._reading, 65_536)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(self._reading)
        self._kept = (self._kept + data)[-MAX_TAIL_BYTES:]

    def close(self) -> None:
        self._read()
        self._loop.remove_reader(self._reading)
        os.close(self._reading)
        self.file.close()


log = logging.getLogger("everhold")

#: Limits: tools of one server, pages of a list, characters of a description.
MAX_TOOLS: Final = 256
MAX_PAGES: Final = 100
_DESCRIBED: Final = 8_192
#: Seconds until a failed server is tried again: the first, and the longest wait.
MIN_RETRY_WAIT: Final = 0.5
MAX_RETRY_WAIT: Final = 30.0
#: Characters of an error that the model sees.
_WORDS: Final = 200
_SHOWN: Final = Window()


class McpServer:
    """A server that offers tools, given by command or URL."""

    @checks_keywords("McpServer")
    def __init__(
        self,
        name: str,
        *,
        command: Sequence[str] = (),
        url: str = "",
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        headers: Mapping[str, str] | None = None,
        startup: float = 10.0,
        timeout: float = 60.0,
        output: Window | None = _SHOWN,
    ) -> None:
        if not sanitize_name(name):
            raise BadArguments("McpServer", f"name must contain a letter or a digit, got {name!r}")
        if isinstance(command, str) or bool(command) == bool(url):
            raise BadArguments("McpServer", "give either command, as a list of words, or url")
        if url and (env or cwd or not url.startswith(("http://", "https://"))):
            raise BadArguments(
                "McpServer",
                "url must begin with http:// or https://, and takes neither env nor cwd",
            )
        if command and headers:
            raise BadArguments("McpServer", "headers are only for url, not for command")
        for what, given in (("startup", startup), ("timeout", timeout)):
            if misfit := describe_misfit(given, PositiveSeconds):
                raise BadArguments("McpServer", f"{what} {misfit}")
        if find_spec("mcp") is None:
            raise MissingExtra("mcp", "an MCP server as a source of tools")
        self.name = name
        self.command = tuple(command)
        self.url = url
        self.env, self.cwd, self.headers = dict(env or {}), cwd, dict(headers or {})
        self.startup = startup
        self.timeout = timeout
        self.output = output
        self._lines: WeakKeyDictionary[asyncio.AbstractEventLoop, McpConnection] = (
            WeakKeyDictionary()
        )

    def __repr__(self) -> str:
        return f"McpServer({self.name!r})"  # other fields may hold secrets

    async def offered(self) -> list[OfferedTool]:
        """The tools that the server lists now."""
        listed = await self._line().listed()
        found: dict[str, OfferedTool] = {}
        for one in listed[:MAX_TOOLS]:
            offer = self._offer(one)
            found.setdefault(offer.name, offer)
        if len(listed) > MAX_TOOLS:
            log.warning(
                "tool server %r lists more than %d tools; the others are left out",
                self.name,
                MAX_TOOLS,
            )
        return list(found.values())

    def tool(self, offer: OfferedTool) -> Tool:
        """The tool of an offer."""
        return McpTool(self, offer)

    async def call(self, offer: OfferedTool, given: dict[str, JSON]) -> Any:
        """Call a tool; raises `AnswerFailed` with the server's error text."""
        said = await self._line().called(
            offer.origin, given, again=offer.read_only or offer.idempotent
        )
        found = convert_content(said)
        if said.is_error:
            words = (
                found
                if isinstance(found, str)
                else "\n\n".join(one.text for one in found if isinstance(one, Text))
            )
            raise AnswerFailed(words or "the tool failed without a message", "mcp_error")
        return found

    async def close(self) -> None:
        """Close the connection of this event loop. The next call opens another."""
        line = self._lines.pop(asyncio.get_running_loop(), None)
        if line is not None:
            await line.end()

    def _line(self) -> McpConnection:
        loop = asyncio.get_running_loop()
        if loop not in self._lines:
            self._lines[loop] = McpConnection(self)
            register_closer(self, self.close)
        return self._lines[loop]

    def _offer(self, one: Any) -> OfferedTool:
        about = one.annotations
        return OfferedTool(
            make_tool_name(self.name, one.name),
            one.name,
            (one.description or one.title or "")[:_DESCRIBED],
            limit_schema(one.input_schema, one.name),
            bool(about and about.read_only_hint),
            bool(about and about.idempotent_hint),
        )


class McpTool(Tool):
    """A tool of a server."""

    def __init__(self, server: McpServer, offer: OfferedTool) -> None:
        async def call(given: dict[str, Any]) -> Any:
            return await server.call(offer, given)

        super().__init__(
            call,
            name=offer.name,
            description=offer.description,
            read_only=offer.read_only,
            rerun="safe" if offer.read_only or offer.idempotent else None,
            timeout=server.timeout,
            output=server.output,
        )
        self._told: dict[str, JSON] = offer.schema or dict(ANY_OBJECT_SCHEMA)
        self.schema = reduce_schema(self._told)

    def spec(self) -> dict[str, JSON]:
        return {"name": self.name, "description": self.description, "input_schema": self._told}

    def arguments(self, given: dict[str, JSON], context: Any) -> dict[str, Any]:
        return {"given": given}


class McpConnection:
    """The connection of one event loop to a server. One task owns it from open to close."""

    def __init__(self, server: McpServer) -> None:
        self._server = server
        self._client: Client | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._wait = 0.0
        self._not_before = 0.0
        self._why = ""

    async def listed(self) -> list[Any]:
        """All listed tools, page by page, until a cursor repeats or a limit is reached."""

        async def in_time(client: Client) -> list[Any]:
            try:
                async with asyncio.timeout(self._server.timeout):
                    return await pages(client)
            except TimeoutError:
                raise TimeoutError(
                    f"it did not list its tools within {self._server.timeout:g} s"
                ) from None

        async def pages(client: Client) -> list[Any]:
            found: list[Any] = []
            seen: set[str | None] = set()
            cursor: str | None = None
            while cursor not in seen and len(seen) < MAX_PAGES and len(found) <= MAX_TOOLS:
                seen.add(cursor)
                page = await client.list_tools(cursor=cursor)
                found += page.tools
                cursor = page.next_cursor or None
                if cursor is None:
                    break
            return found

        listed: list[Any] = await self._with(in_time, again=True)
        return listed

    async def called(self, name: str, given: dict[str, JSON], *, again: bool) -> Any:
        """The result of a call."""
        return await self._with(lambda client: client.call_tool(name, given), again=again)

    async def _with(self, act: Any, *, again: bool) -> Any:
        """Run `act` with the connection; if the connection is lost, open another and try once
        more.
        """
        from mcp import MCPError

        for left in (1, 0):
            client = await self._connected()
            try:
                return await act(client)
            except MCPError as error:
                if not _is_lost(error):
                    raise AnswerFailed(str(error)[:_WORDS], "mcp_error") from None
                why = str(error)
            except Exception as error:  # a transport error: the connection is unusable
                why = _reason(error)
            await self._lost(client)
            if not left or not again:
                more = "" if again else "; the call was not sent again, and may or may not have run"
                raise ToolServerFailed(self._server.name, f"{why[:_WORDS]}{more}")
        raise AssertionError

    # ---- open and close

    async def _connected(self) -> Client:
        async with self._lock:
            if self._client is not None and self._keeper is not None and not self._keeper.done():
                return self._client
            loop = asyncio.get_running_loop()
            left = self._not_before - loop.time()
            if left > 0:
                raise ToolServerFailed(
                    self._server.name, f"{self._why}; the next try is possible in {left:.1f} s"
                )
            ready: asyncio.Future[Client] = loop.create_future()
            self._keeper = loop.create_task(self._keep(ready))
            try:
                self._client = await asyncio.shield(ready)
            except asyncio.CancelledError:
                self._keeper.cancel()
                raise
            except Exception as error:
                self._why = _reason(error)[:_WORDS]
                self._wait = min(max(self._wait * 2, MIN_RETRY_WAIT), MAX_RETRY_WAIT)
                self._not_before = loop.time() + self._wait
                raise ToolServerFailed(self._server.name, self._why) from None
            self._wait = 0.0
            return self._client

    async def _keep(self, ready: asyncio.Future[Client]) -> None:
        """Hold the connection until it is closed."""
        complaint = StderrTail()
        try:
            async with AsyncExitStack() as stack:
                stack.callback(complaint.close)
                async with asyncio.timeout(self._server.startup):
                    client = await stack.enter_async_context(
                        await _client(self._server, stack, complaint)
                    )
                if not ready.done():
                    ready.set_result(client)
                await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            ready.cancel()
            raise
        except TimeoutError:
            _fail(ready, f"it was not ready within {self._server.startup:g} s{complaint.said}")
        except BaseException as error:  # also exception groups; the waiting callers get it
            _fail(ready, f"{_reason(error)}{complaint.said}")

    async def _lost(self, client: Client) -> None:
        async with self._lock:
            if self._client is client:
                await self.end()

    async def end(self) -> None:
        """Close the connection, which ends the server's process."""
        keeper = self._keeper
        self._keeper = None
        self._client = None
        if keeper is not None:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)


async def _client(server: McpServer, stack: AsyncExitStack, complaint: StderrTail) -> Client:
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    if server.command:
        program, *words = server.command
        asked = StdioServerParameters(
            command=program, args=words, env=server.env or None, cwd=server.cwd
        )
        return Client(stdio_client(asked, errlog=complaint.file), cache=None)
    if not server.headers:
        return Client(server.url, cache=None)
    import httpx2

    http = httpx2.AsyncClient(headers=server.headers, timeout=httpx2.Timeout(30.0, read=300.0))
    return Client(
        streamable_http_client(server.url, http_client=await stack.enter_async_context(http)),
        cache=None,
    )


def _fail(ready: asyncio.Future[Client], why: str) -> None:
    if not ready.done():
        ready.set_exception(ConnectionError(why))


def _is_lost(error: Any) -> bool:
    """Whether the error is of the connection, not of the server."""
    from mcp_types import CONNECTION_CLOSED

    return bool(getattr(error.error, "code", None) == CONNECTION_CLOSED)


def _reason(error: BaseException) -> str:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__
