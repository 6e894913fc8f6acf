"""Our MCP server, with the tools, prompts and resources beside it that the official conformance
suite calls by name.

The suite describes each of them; none of them is in everhold. Whatever is not one of these names
goes to our own handlers, so that the protocol around both (transport, versions, headers, errors) is
the one we ship.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import PromptsListChanged, ToolsListChanged

#: A PNG of one red pixel, and a WAV of no sound.
PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=="  # noqa: E501
SILENCE = "UklGRiQAAABXQVZFZm10IBAAAAABAAEAQB8AAEAfAAABAAgAZGF0YQAAAAA="

Ctx = ServerRequestContext[Any, Any]
Reply = types.CallToolResult | types.InputRequiredResult
Work = Callable[[Ctx, types.CallToolRequestParams], Awaitable[Reply]]

BUS = InMemorySubscriptionBus()
TOOLS: dict[str, tuple[types.Tool, Work]] = {}


def tool(name: str, schema: dict[str, Any] | None = None) -> Callable[[Work], Work]:
    shape = schema or {"type": "object", "properties": {}}

    def keep(work: Work) -> Work:
        TOOLS[name] = (
            types.Tool(
                name=name, description=f"For the conformance suite: {name}", input_schema=shape
            ),
            work,
        )
        return work

    return keep


def text(words: str) -> types.TextContent:
    return types.TextContent(type="text", text=words)


def said(*content: Any) -> types.CallToolResult:
    return types.CallToolResult(content=list(content))


def image() -> types.ImageContent:
    return types.ImageContent(type="image", data=PIXEL, mime_type="image/png")


def embedded(uri: str, mime_type: str, words: str) -> types.EmbeddedResource:
    contents = types.TextResourceContents(uri=uri, mime_type=mime_type, text=words)
    return types.EmbeddedResource(type="resource", resource=contents)


# ---- tools that return


@tool("test_simple_text")
async def simple(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    return said(text("This is a simple text response for testing."))


@tool("test_image_content")
async def picture(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    return said(image())


@tool("test_audio_content")
async def sound(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    return said(types.AudioContent(type="audio", data=SILENCE, mime_type="audio/wav"))


@tool("test_embedded_resource")
async def resource(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    return said(
        embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    )


@tool("test_multiple_content_types")
async def mixed(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    data = embedded(
        "test://mixed-content-resource",
        "application/json",
        json.dumps({"test": "data", "value": 123}),
    )
    return said(text("Multiple content types test:"), image(), data)


@tool("test_error_handling")
async def failing(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    words = "This tool intentionally returns an error for testing"
    return types.CallToolResult(content=[text(words)], is_error=True)


@tool(
    "json_schema_2020_12_tool",
    {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "type": "object",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "properties": {
            "name": {"type": "string"},
            "address": {"$ref": "#/$defs/address"},
            "contactMethod": {"type": "string", "enum": ["phone", "email"]},
            "phone": {"type": "string"},
            "email": {"type": "string"},
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
)
async def schemed(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    return said(text(json.dumps(params.arguments)))


@tool(
    "test_headers",
    {"type": "object", "properties": {"region": {"type": "string", "x-mcp-header": "Region"}}},
)
async def headed(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    return said(text(json.dumps(params.arguments)))


# ---- tools that speak while they work


@tool("test_tool_with_logging")
async def logging(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    for words in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await log(ctx, words)
        await asyncio.sleep(0.05)
    return said(text("done"))


@tool("test_logging_tool")
async def quiet(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    await log(ctx, "heard only by those who asked for it")
    return said(text("done"))


async def log(ctx: Ctx, words: str) -> None:
    await ctx.session.send_log_message(level="info", data=words, related_request_id=ctx.request_id)


@tool("test_tool_with_progress")
async def progress(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    for done in (0, 50, 100):
        await ctx.session.report_progress(done, 100)
        await asyncio.sleep(0.05)
    return said(text("done"))


@tool("test_reconnection")
async def reconnection(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    if ctx.close_sse_stream is not None:
        await ctx.close_sse_stream()
    await asyncio.sleep(0.1)
    return said(text("done"))


@tool("test_trigger_tool_change")
async def tools_changed(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    await BUS.publish(ToolsListChanged())
    return said(text("told"))


@tool("test_trigger_prompt_change")
async def prompts_changed(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    await BUS.publish(PromptsListChanged())
    return said(text("told"))


# ---- tools that ask the client, as it was done until 2025-11-25


@tool(
    "test_sampling",
    {"type": "object", "properties": {"prompt": {"type": "string"}}, "required": ["prompt"]},
)
async def sampling(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    asked = types.SamplingMessage(role="user", content=text((params.arguments or {})["prompt"]))
    got = await ctx.session.create_message(
        messages=[asked], max_tokens=100, related_request_id=ctx.request_id
    )
    return said(text(f"LLM response: {got.content.text}"))


@tool(
    "test_elicitation",
    {"type": "object", "properties": {"message": {"type": "string"}}, "required": ["message"]},
)
async def elicitation(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    words = {"type": "string", "description": "User's response"}
    fields = {"username": words, "email": words}
    return await elicited(
        ctx, (params.arguments or {})["message"], fields, ["username", "email"], "User response"
    )


@tool("test_elicitation_sep1034_defaults")
async def defaults(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    fields = {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    }
    return await elicited(ctx, "Please look at the defaults", fields, [], "Elicitation completed")


@tool("test_elicitation_sep1330_enums")
async def enums(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    plain = ["option1", "option2", "option3"]
    titled = [
        {"const": f"value{n}", "title": f"{word} Option"}
        for n, word in ((1, "First"), (2, "Second"), (3, "Third"))
    ]
    names = ["Option One", "Option Two", "Option Three"]
    fields = {
        "untitledSingle": {"type": "string", "enum": plain},
        "titledSingle": {"type": "string", "oneOf": titled},
        "legacyEnum": {"type": "string", "enum": ["opt1", "opt2", "opt3"], "enumNames": names},
        "untitledMulti": {"type": "array", "items": {"type": "string", "enum": plain}},
        "titledMulti": {"type": "array", "items": {"anyOf": titled}},
    }
    return await elicited(ctx, "Please choose", fields, [], "Elicitation completed")


async def elicited(
    ctx: Ctx, message: str, fields: dict[str, Any], required: list[str], lead: str
) -> Reply:
    shape = {"type": "object", "properties": fields, "required": required}
    got = await ctx.session.elicit_form(message, shape, related_request_id=ctx.request_id)
    return said(text(f"{lead}: action={got.action}, content={json.dumps(got.content)}"))


# ---- tools that ask the client by returning, as it is done from 2026-07-28


def form(message: str, **fields: str) -> types.ElicitRequest:
    shape = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in fields.items()},
        "required": list(fields),
    }
    return types.ElicitRequest(
        params=types.ElicitRequestFormParams(message=message, requested_schema=shape)
    )


def sample(words: str, most: int = 100) -> types.CreateMessageRequest:
    asked = types.SamplingMessage(role="user", content=text(words))
    return types.CreateMessageRequest(
        params=types.CreateMessageRequestParams(messages=[asked], max_tokens=most)
    )


def roots() -> types.ListRootsRequest:
    return types.ListRootsRequest()


def asking(state: str | None = None, **requests: Any) -> types.InputRequiredResult:
    return types.InputRequiredResult(input_requests=requests, request_state=state)


def answers(params: Any, *names: str) -> list[Any] | None:
    """What the client said to these requests; None if it did not answer all of them with something
    of use.
    """
    given = params.input_responses or {}
    if any(name not in given for name in names):
        return None
    if any(
        isinstance(given[name], types.ElicitResult) and not given[name].content for name in names
    ):
        return None
    return [given[name] for name in names]


@tool("test_input_required_result_elicitation")
async def ask_name(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    got = answers(params, "user_name")
    if got is None or not isinstance(got[0], types.ElicitResult) or "name" not in got[0].content:
        return asking(user_name=form("What is your name?", name="string"))
    return said(text(f"Hello, {got[0].content['name']}!"))


@tool("test_streaming_elicitation")
async def ask_streaming(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    return await ask_name(ctx, params)


@tool("test_input_required_result_sampling")
async def ask_capital(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    got = answers(params, "capital_question")
    if got is None:
        return asking(capital_question=sample("What is the capital of France?"))
    return said(text(got[0].content.text))


@tool("test_input_required_result_list_roots")
async def ask_roots(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    got = answers(params, "client_roots")
    if got is None:
        return asking(client_roots=roots())
    return said(text(", ".join(str(root.uri) for root in got[0].roots)))


@tool("test_input_required_result_request_state")
async def ask_with_state(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    if answers(params, "confirm") is None or params.request_state != "asked":
        return asking("asked", confirm=form("Please confirm", ok="boolean"))
    return said(text("state-ok"))


@tool("test_input_required_result_tampered_state")
async def ask_sealed(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    return await ask_with_state(ctx, params)


@tool("test_input_required_result_multiple_inputs")
async def ask_much(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    if answers(params, "user_name", "greeting", "client_roots") is None:
        return asking(
            "asked",
            user_name=form("What is your name?", name="string"),
            greeting=sample("Generate a greeting", 50),
            client_roots=roots(),
        )
    return said(text("done"))


@tool("test_input_required_result_multi_round")
async def ask_twice(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    if params.request_state == "two" and answers(params, "step2"):
        return said(text("done"))
    if params.request_state == "one" and answers(params, "step1"):
        return asking("two", step2=form("Step 2: What is your favorite color?", color="string"))
    return asking("one", step1=form("Step 1: What is your name?", name="string"))


@tool("test_input_required_result_capabilities")
async def ask_what_is_offered(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    offered = ctx.session.client_capabilities or types.ClientCapabilities()
    requests: dict[str, Any] = {}
    if offered.sampling is not None:
        requests["words"] = sample("Say something")
    if offered.elicitation is not None:
        requests["name"] = form("What is your name?", name="string")
    return asking(None, **requests) if requests else said(text("nothing to ask with"))


@tool("test_missing_capability")
async def needs_sampling(ctx: Ctx, params: types.CallToolRequestParams) -> Reply:
    offered = ctx.session.client_capabilities
    if offered is None or offered.sampling is None:
        needed = {"requiredCapabilities": {"sampling": {}}}
        raise MCPError(
            types.MISSING_REQUIRED_CLIENT_CAPABILITY, "the client does not offer sampling", needed
        )
    return said(text("done"))


# ---- prompts and resources

ONE_ARGUMENT = [
    types.PromptArgument(name="resourceUri", description="What to embed", required=True)
]
TWO_ARGUMENTS = [
    types.PromptArgument(name=name, description=name, required=True) for name in ("arg1", "arg2")
]
PROMPTS = {
    name: types.Prompt(
        name=name, description=f"For the conformance suite: {name}", arguments=arguments
    )
    for name, arguments in {
        "test_simple_prompt": None,
        "test_prompt_with_arguments": TWO_ARGUMENTS,
        "test_prompt_with_embedded_resource": ONE_ARGUMENT,
        "test_prompt_with_image": None,
        "test_input_required_result_prompt": None,
    }.items()
}
RESOURCES = {
    "test://static-text": types.TextResourceContents(
        uri="test://static-text",
        mime_type="text/plain",
        text="This is the content of the static text resource.",
    ),
    "test://static-binary": types.BlobResourceContents(
        uri="test://static-binary", mime_type="image/png", blob=PIXEL
    ),
    "test://watched-resource": types.TextResourceContents(
        uri="test://watched-resource", mime_type="text/plain", text="It stays as it is."
    ),
}
TEMPLATE = types.ResourceTemplate(
    uri_template="test://template/{id}/data",
    name="data",
    description="Data by id",
    mime_type="application/json",
)


def prompted(*content: Any) -> types.GetPromptResult:
    return types.GetPromptResult(
        messages=[types.PromptMessage(role="user", content=one) for one in content]
    )


def prompt(
    params: types.GetPromptRequestParams,
) -> types.GetPromptResult | types.InputRequiredResult:
    given = params.arguments or {}
    match params.name:
        case "test_prompt_with_arguments":
            return prompted(
                text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")
            )
        case "test_prompt_with_embedded_resource":
            there = embedded(
                given["resourceUri"], "text/plain", "Embedded resource content for testing."
            )
            return prompted(there, text("Please process the embedded resource above."))
        case "test_prompt_with_image":
            return prompted(image(), text("Please analyze the image above."))
        case "test_input_required_result_prompt":
            if answers(params, "user_context") is None:
                return asking(
                    user_context=form("What context should the prompt use?", context="string")
                )
            return prompted(text("With that context."))
    return prompted(text("This is a simple prompt for testing."))


def contents(uri: str) -> Any:
    if uri.startswith("test://template/") and uri.endswith("/data"):
        name = uri.split("/")[3]
        data = {"id": name, "templateTest": True, "data": f"Data for ID: {name}"}
        return types.TextResourceContents(
            uri=uri, mime_type="application/json", text=json.dumps(data)
        )
    return RESOURCES.get(uri)


# ---- mounting

OURS = (
    "tools/list",
    "tools/call",
    "prompts/list",
    "prompts/get",
    "resources/list",
    "resources/templates/list",
    "resources/read",
)


def mount(server: Server[Any]) -> None:
    """Put all of this beside what the server has."""
    ours = {method: _handler(server, method) for method in OURS}

    async def list_tools(ctx: Ctx, params: Any) -> Any:
        found = await ours["tools/list"](ctx, params)
        return found.model_copy(
            update={"tools": [*found.tools, *(kept for kept, _ in TOOLS.values())]}
        )

    async def call_tool(ctx: Ctx, params: Any) -> Any:
        return await (TOOLS[params.name][1] if params.name in TOOLS else ours["tools/call"])(
            ctx, params
        )

    async def list_prompts(ctx: Ctx, params: Any) -> Any:
        found = await ours["prompts/list"](ctx, params)
        return found.model_copy(update={"prompts": [*found.prompts, *PROMPTS.values()]})

    async def get_prompt(ctx: Ctx, params: Any) -> Any:
        return prompt(params) if params.name in PROMPTS else await ours["prompts/get"](ctx, params)

    async def list_resources(ctx: Ctx, params: Any) -> Any:
        found = await ours["resources/list"](ctx, params)
        more = [
            types.Resource(uri=uri, name=uri, description="For the conformance suite")
            for uri in RESOURCES
        ]
        return found.model_copy(update={"resources": [*found.resources, *more]})

    async def list_templates(ctx: Ctx, params: Any) -> Any:
        found = await ours["resources/templates/list"](ctx, params)
        return found.model_copy(
            update={"resource_templates": [*found.resource_templates, TEMPLATE]}
        )

    async def read_resource(ctx: Ctx, params: Any) -> Any:
        there = contents(str(params.uri))
        if there is None:
            return await ours["resources/read"](ctx, params)
        return types.ReadResourceResult(contents=[there])

    async def nothing(ctx: Ctx, params: Any) -> Any:
        return types.EmptyResult()

    async def complete(ctx: Ctx, params: Any) -> Any:
        return types.CompleteResult(
            completion=types.Completion(values=["paris", "park", "party"], total=3)
        )

    add = server.add_request_handler
    add("tools/list", types.PaginatedRequestParams, list_tools)
    add("tools/call", types.CallToolRequestParams, call_tool)
    add("prompts/list", types.PaginatedRequestParams, list_prompts)
    add("prompts/get", types.GetPromptRequestParams, get_prompt)
    add("resources/list", types.PaginatedRequestParams, list_resources)
    add("resources/templates/list", types.PaginatedRequestParams, list_templates)
    add("resources/read", types.ReadResourceRequestParams, read_resource)
    add("resources/subscribe", types.SubscribeRequestParams, nothing)
    add("resources/unsubscribe", types.UnsubscribeRequestParams, nothing)
    add("completion/complete", types.CompleteRequestParams, complete)
    add("subscriptions/listen", types.SubscriptionsListenRequestParams, ListenHandler(BUS))
    server.get_tool_input_schema = lambda name: (
        TOOLS[name][0].input_schema if name in TOOLS else None
    )


def _handler(server: Server[Any], method: str) -> Callable[[Ctx, Any], Awaitable[Any]]:
    entry = server.get_request_handler(method)
    assert entry is not None, f"our server has no {method}"
    return entry.handler
