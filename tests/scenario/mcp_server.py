"""A small MCP server for tests, which can misbehave: python -m tests.scenario.mcp_server FOLDER
[--http PORT] [--…].

FOLDER is where it writes down what it did, and where it looks for what it should do.
"""

import argparse
import asyncio
import base64
import json
import os
import sys
from pathlib import Path

import mcp_types as types
from mcp.server import Server
from mcp.server.stdio import stdio_server

EMPTY = {"type": "object", "properties": {}}
TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}


def tools(many):
    reads = types.ToolAnnotations(read_only_hint=True)
    listed = [
        types.Tool(name="echo", description="Say it again.", input_schema=TEXT, annotations=reads),
        types.Tool(name="write", description="Write it down.", input_schema=TEXT),
        types.Tool(name="fail", input_schema=EMPTY),
        types.Tool(name="picture", input_schema=EMPTY),
        types.Tool(name="env", input_schema=EMPTY),
        types.Tool(name="stall", input_schema=EMPTY),
        types.Tool(name="die", input_schema=EMPTY),
        types.Tool(name="die quietly/again", input_schema=EMPTY, annotations=reads),
    ]
    return listed + [types.Tool(name=f"more-{place}", input_schema=EMPTY) for place in range(many)]


def content(text, **more):
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], **more)


def server(folder, options):
    def note(what):
        with (folder / "done").open("a") as file:
            file.write(f"{what}\n")

    async def list_tools(context, params):
        cursor = int(params.cursor or 0) if params is not None else 0
        found = tools(options.many)
        if (folder / "extra").exists():
            found.append(types.Tool(name="extra", input_schema=EMPTY))
        if options.page:
            following = cursor + options.page
            after = str(following) if following < len(found) else "0" if options.loop else None
            return types.ListToolsResult(tools=found[cursor:following], next_cursor=after)
        return types.ListToolsResult(tools=found)

    async def call_tool(context, params):
        given = params.arguments or {}
        note(f"{params.name} {json.dumps(given)}")
        match params.name:
            case "echo":
                return content(f"you said {given['text']}")
            case "write":
                return types.CallToolResult(
                    content=[
                        types.TextContent(type="text", text="one"),
                        types.TextContent(type="text", text="two"),
                    ]
                )
            case "fail":
                return content("it went wrong", is_error=True)
            case "picture":
                data = base64.b64encode(b"\x89PNG").decode()
                picture = types.ImageContent(type="image", data=data, mime_type="image/png")
                return types.CallToolResult(
                    content=[types.TextContent(type="text", text="see"), picture]
                )
            case "env":
                return content(json.dumps(sorted(os.environ)))
            case "stall":
                try:
                    await asyncio.sleep(600)
                except BaseException:
                    note("stall was cancelled")
                    raise
            case "die":
                os._exit(3)
            case "die quietly/again":
                if not (folder / "died").exists():
                    (folder / "died").touch()
                    os._exit(3)
                return content("alive again")
        raise ValueError(f"no tool {params.name}")

    return Server("test", on_list_tools=list_tools, on_call_tool=call_tool)


async def on_pipes(made):
    async with stdio_server() as (reading, writing):
        await made.run(reading, writing, made.create_initialization_options())


def on_http(made, port):
    import uvicorn

    app = made.streamable_http_app()
    uvicorn.run(app, host="127.0.0.1", port=port, log_level="warning")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--http", type=int, default=0)
    parser.add_argument("--many", type=int, default=0)
    parser.add_argument("--page", type=int, default=0)
    parser.add_argument("--loop", action="store_true")
    options = parser.parse_args()
    with (options.folder / "done").open("a") as file:
        file.write("started\n")
    if (options.folder / "broken").exists():
        sys.exit("the server is broken")
    if (options.folder / "mute").exists():
        sys.stdin.read()
        return
    made = server(options.folder, options)
    if options.http:
        on_http(made, options.http)
    else:
        asyncio.run(on_pipes(made))


if __name__ == "__main__":
    main()
