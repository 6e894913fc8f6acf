"""Clients of protocol 2026-07-28 that answer what calls and tasks need: with a model, a person, in
rounds, by tasks.
"""

from typing import Any, ClassVar, Literal

import mcp_types as types
from mcp.client.extension import ClientExtension, ResultClaim
from pydantic import TypeAdapter

from everhold.mcp.tasks import EXTENSION

ANYTHING = TypeAdapter(dict[str, Any])

#: More programs beside those of the shop.
MORE = """
import asyncio

import everhold
from everhold.errors import Poison


@everhold.program
async def long(ctx: everhold.Context, steps: int = 12) -> list:
    return [await ctx.llm(f"Step {step}?") for step in range(steps)]


@everhold.program
async def count(ctx: everhold.Context) -> list:
    return list(await asyncio.gather(*(ctx.llm(f"Number {n}?", returns=int) for n in range(2))))


@everhold.program
async def chat(ctx: everhold.Context, odd: bool = False) -> str:
    role = "tool" if odd else "assistant"
    said = [{"role": "user", "content": "Hi."}, {"role": role, "content": "Hello."}]
    return await ctx.llm("And now?", messages=said, system="Be brief.", max_tokens=7, temperature=0.5, grounded=True)


@everhold.program
async def dies(ctx: everhold.Context) -> str:
    await ctx.sleep(0.01)
    raise Poison(3)
"""  # noqa: E501


def furnish(folder):
    """Put the further programs into a shop."""
    (folder / "more.py").write_text(MORE)
    (folder / "everhold.toml").write_text(
        'database = "app.db"\nprograms = ["shop.py", "more.py"]\n'
    )
    return folder


def text_of(asked):
    """The words of a sampling request that the model is to answer."""
    return asked.messages[-1].content.text


def sampled(words):
    return types.CreateMessageResult(
        role="assistant", content=types.TextContent(type="text", text=words), model="m-1"
    )


def accepted(**content):
    return types.ElicitResult(action="accept", content=content)


def model(*said, seen=None):
    """A client's model: says these in turn, or repeats the question if there are none."""
    left = list(said)

    async def sample(context, params):
        if seen is not None:
            seen.append(params)
        return sampled(left.pop(0) if said else f"answer to {text_of(params)}")

    return sample


def person(**content):
    async def fill(context, params):
        return accepted(**content)

    return fill


async def call(host, tool, arguments, **more):
    """One call, as the protocol has it: what it needs is returned, and nobody is asked."""
    return await host.client.session.call_tool(
        tool, arguments, allow_input_required=True, allow_claimed=True, **more
    )


# ---- tasks


class Handle(types.Result):
    result_type: Literal["task"] = "task"
    task_id: str
    status: str
    created_at: str
    last_updated_at: str


class TaskRequest(types.Request[dict[str, Any], str]):
    name_param: ClassVar[str | None] = "taskId"


async def ask(host_or_session, method, task_id, **params):
    """One request about a task; the result as it is on the wire."""
    session = getattr(host_or_session, "client", None)
    session = host_or_session if session is None else session.session
    request = TaskRequest(method=method, params={"taskId": task_id, **params})
    found = await session.send_request(request, ANYTHING)
    found.pop("_meta", None)
    return found


async def update(host, task_id, **responses):
    dumped = {
        key.replace("_", "-"): said
        if isinstance(said, dict)
        else said.model_dump(by_alias=True, exclude_none=True)
        for key, said in responses.items()
    }
    return await ask(host, "tasks/update", task_id, inputResponses=dumped)


class Knows(ClientExtension):
    """A client that knows tasks: it polls, has its model answer, and brings back the result."""

    identifier = EXTENSION

    def __init__(self):
        self.polls = 0

    def claims(self):
        return [ResultClaim(result_type="task", model=Handle, resolve=self.resolve)]

    async def resolve(self, handle, context):
        while True:
            self.polls += 1
            found = await ask(context.session, "tasks/get", handle.task_id)
            match found["status"]:
                case "completed":
                    return types.CallToolResult.model_validate(found["result"])
                case "input_required":
                    key, request = next(iter(found["inputRequests"].items()))
                    words = request["params"]["messages"][-1]["content"]["text"]
                    await update(
                        _Session(context.session),
                        handle.task_id,
                        **{key: sampled(f"answer to {words}")},
                    )
                case "working":
                    pass
                case other:
                    raise AssertionError(other)


class _Session:
    def __init__(self, session):
        self.client = self
        self.session = session
