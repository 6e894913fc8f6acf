"""A redacted file has no words of a conversation, and its loop can still be replayed."""

import pytest

from everhold.agents.agent import Agent
from everhold.agents.subagents import subagent
from everhold.archive import redact
from everhold.archive.check import check_session
from everhold.core.tool import Deny
from everhold.hooks import Contribute, Plugin
from everhold.ports.store import SessionFilter
from everhold.ports.tool import OfferedTool, Tool, tool
from everhold.programs.lua.code_executor import Lua
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore

SECRET = "Rosebud"


class Careful(Plugin):
    name = "careful"
    revision = 1

    def snapshot(self):
        return {"known": SECRET}

    def before_turn(self, moment):
        self.revision += 1
        return Contribute("context", f"The word is {SECRET}.")

    def before_tool_call(self, moment, call):
        return Deny(f"not {SECRET}") if call.input["order"] == 2 else None


@tool(read_only=True)
def find(order: int) -> str:
    return f"{SECRET} {order}"


agent = Agent(
    instructions=f"Guard {SECRET}.", tools=[find], plugins=[Careful()], name="redacted_agent"
)


async def test_no_words_are_left_and_the_loop_replays():
    """Inputs, results, prompts, snapshots, directives and receipts are without words; the same
    questions are asked.
    """
    calls = [
        {"type": "tool_use", "id": f"c{n}", "name": "find", "input": {"order": n}} for n in (1, 2)
    ]
    lines = [
        {"content": [{"type": "text", "text": SECRET}, *calls]},
        f"It was {SECRET}.",
        {"text": ""},
    ]

    async def model(query):
        return lines.pop(0)

    async with Runtime(MemoryStore(), llm=model) as runtime:
        session = await runtime.session(agent, "c")
        await session.send(f"What is {SECRET}?")
        await session.send(f"Why {SECRET}?")
        await session.configure({"extra": {"note": SECRET}})
        (row,) = await runtime.store.list(SessionFilter(limit=2))
        record = await runtime.store.load(row.birth.id)
        asked = {query.q: query for delivery in record.deliveries for query in delivery.asked}
        record.deliveries = [
            redact.redact_delivery(one, asked, redact.REDACTABLE_PARTS) for one in record.deliveries
        ]
        assert SECRET in repr(await runtime.store.load(row.birth.id))
        assert SECRET not in repr(record.deliveries)
        assert (
            check_session(record, runtime.engine.host, redacted=redact.REDACTABLE_PARTS).verdict
            == "ok"
        )


class Shop:
    """Offers one tool."""

    name = "shop"

    async def offered(self):
        return [OfferedTool("buy", "buy")]

    def tool(self, offer):
        async def buy(what: str) -> str:
            return f"{SECRET} {what}"

        return Tool(buy, name=offer.name)


helper = Agent(instructions=f"Help {SECRET}.")
chief = Agent(
    instructions=f"Lead {SECRET}.",
    tools=[Shop()],
    subagents=[subagent(helper, name="helper")],
    code=Lua(),
    name="redacted_chief",
)


@pytest.mark.process
async def test_subagents_sources_and_programs_replay_without_words():
    """Whose task it is, what was offered and which tools a program called stays; no words do."""
    code = f"local found = tool('buy', {{what = '{SECRET}'}}) print(found) return found"
    lines = [
        {"tool_calls": [{"name": "lua", "input": {"code": code}}]},
        {
            "tool_calls": [
                {"name": "task", "input": {"agent": "helper", "prompt": f"Find {SECRET}."}}
            ]
        },
        f"{SECRET} of the helper",
        f"{SECRET} of the chief",
    ]

    async def model(query):
        return lines.pop(0)

    async with Runtime(MemoryStore(), llm=model) as runtime:
        session = await runtime.session(chief, "c")
        assert (await session.send(f"What is {SECRET}?")).text == f"{SECRET} of the chief"
        rows = await runtime.store.list(SessionFilter(limit=3))
        assert len(rows) == 2
        for row in rows:
            record = await runtime.store.load(row.birth.id)
            asked = {query.q: query for delivery in record.deliveries for query in delivery.asked}
            record.birth = redact.redact_birth(record.birth, redact.REDACTABLE_PARTS)
            record.deliveries = [
                redact.redact_delivery(one, asked, redact.REDACTABLE_PARTS)
                for one in record.deliveries
            ]
            assert SECRET not in repr(record.deliveries) + repr(record.birth)
            assert (
                check_session(record, runtime.engine.host, redacted=redact.REDACTABLE_PARTS).verdict
                == "ok"
            )


def use(kind):
    return {"type": "tool_use", "name": "t", "input": {"type": kind}}


def decided(reason):
    return {"said": [["p", "c1", {"do": "abort", "reason": reason}]]}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("word", "xxxx"),
        ({"type": "text", "text": "a b"}, {"type": "text", "text": "x x"}),
        (use("a"), use("x")),
        ({"name": "ann", "n": 1}, {"name": "xxx", "n": 1}),
        (decided("no"), decided("xx")),
    ],
)
def test_the_form_stays_and_the_words_go(value, expected):
    assert redact.redact_conversation(value) == expected
