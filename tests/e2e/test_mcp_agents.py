"""An agent over MCP: the host is its model, a person approves, and the tools run here."""

import json

import pytest

from tests.e2e.mcp_harness import opened, prompt_of

SHOP = '''
import everhold
from everhold.core.tool import Confirm


@everhold.tool(read_only=True)
def find_order(number: str) -> dict:
    """Find an order.

    Args:
        number: what the customer calls it
    """
    return {"number": number, "cents": 1200}


@everhold.tool
def refund(number: str) -> str:
    """Give the money of an order back."""
    return f"refunded {number}"


def careful(wanted):
    return Confirm("it moves money") if wanted.tool == "refund" else everhold.core.tool.Allow()


support = everhold.Agent(instructions="Help.", tools=[find_order, refund], policy=careful)
'''


@pytest.fixture(autouse=True)
def shop(tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "everhold.toml").write_text('database = "app.db"\nprograms = ["shop.py"]\n')
    monkeypatch.chdir(tmp_path)


async def test_a_host_is_the_model_of_an_agent_from_task_to_result():
    """Each question suffices alone: it has the conversation, the tools, and how to answer;
    approvals are a person's.
    """
    async with opened() as host:
        told = await host.call("run", program="support", args={"task": "Order 7 broke."})
        assert told["status"] == "needs_response"
        assert told["questions"][0]["system"].startswith("Help.")
        assert [tool["name"] for tool in told["questions"][0]["options"]["tools"]] == [
            "find_order",
            "refund",
        ]
        assert "[user]\nOrder 7 broke." in prompt_of(told)
        assert "tool_calls" in prompt_of(told)
        # the title, and the prompt; not once more as JSON
        assert host.text.count("Order 7 broke.") == 2
        session = told["session_id"]

        async def answer(response):
            shown = await host.call("status", session_id=session)
            query_id = shown["questions"][0]["id"]
            return await host.call(
                "answer", session_id=session, answers=[{"id": query_id, "response": response}]
            )

        told = await answer(
            json.dumps({"tool_calls": [{"name": "find_order", "input": {"number": "7"}}]})
        )
        assert '(result: {"number":"7","cents":1200})' in prompt_of(told)
        told = await answer(
            json.dumps({"tool_calls": [{"name": "refund", "input": {"number": "7"}}]})
        )
        assert told["status"] == "waiting"
        assert [one["kind"] for one in told["for_people"]] == ["approval"]
        approval = told["for_people"][0]["id"]
        assert (
            await host.refused(
                "answer", session_id=session, answers=[{"id": approval, "response": True}]
            )
            == "not_allowed"
        )
        runtime = await host.front.holder.runtime()
        await runtime.answer(session, True, query_id=approval)
        told = await host.call("status", session_id=session, wait=60)
        assert "(result: refunded 7)" in prompt_of(told)
        told = await answer("Your money is on its way.")
        assert (told["status"], told["result"]) == ("completed", "Your money is on its way.")


async def test_a_task_above_the_limit_is_refused(tmp_path):
    """Before a session is started."""
    (tmp_path / "everhold.toml").write_text(
        'database = "app.db"\nprograms = ["shop.py"]\nmax_input = "1kB"\n'
    )
    async with opened() as host:
        told = await host.call("run", program="support", args={"task": "x" * 1001})
        assert "the input has 1,001 bytes; the limit is 1,000" in json.dumps(told)
