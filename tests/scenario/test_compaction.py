"""Compaction: a long conversation goes on with a summary, and always becomes smaller. And the other
plugins of ours.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from everhold.agents.agent import Agent
from everhold.core.graph import INITIAL_FRAME, extract_text
from everhold.core.query import Kind, Usage
from everhold.core.turn import TurnAborted, TurnAnswered
from everhold.errors import AnswerFailed, BadSetting
from everhold.plugins.approval import Approval
from everhold.plugins.budget import Allowance, Price
from everhold.plugins.compaction import (
    Compaction,
    clip_text,
    estimate_size,
    find_cut_point,
    find_last_group,
    format_excerpt,
)
from everhold.plugins.output_limit import OutputLimit
from everhold.plugins.redaction import REDACTED, Redaction
from everhold.ports.answerer import Answer
from everhold.ports.tool import tool
from everhold.testing.clock import ManualClock
from everhold.testing.crash import crash_everywhere
from tests.scenario.harness import opened, rows
from tests.scenario.talk import Scripted, told, use

USED = Usage(prompt_tokens=90, completion_tokens=10, model="m-1")


@tool(read_only=True)
def read(size: int) -> str:
    """Read so many characters."""
    return "x" * size


small = Agent(
    tools=[read], plugins=[Compaction(400, at=0.5, keep=0.25, summary=50)], name="compaction_small"
)


class Talking:
    """A model that answers, and summarises where it is asked to."""

    def __init__(self, *lines):
        self.script = Scripted(*lines)
        self.summaries = []

    async def __call__(self, query):
        asked = query.prompt or extract_text(query.messages[-1]["content"])
        if "Summarise the conversation" in asked:
            self.summaries.append(query)
            return Answer("They talked.", USED)
        return Answer(await self.script(query), USED)


def words(messages):
    return [extract_text(message["content"]) for message in messages]


# ---- in a conversation


async def test_a_long_conversation_is_compacted_by_itself():
    """Row 18: the frame before stays as it was, the model sees a summary and the end, usage has its
    own source.
    """
    model = Talking(*(f"{n}: " + "y" * 150 for n in range(12)))
    async with opened(llm=model) as runtime:
        session = await runtime.session(small, "long")
        for n in range(12):
            assert (await session.send(f"{n}: " + "z" * 150)).outcome == TurnAnswered()
        frames = await session.frames()
        assert len(frames) > 1 and {frame.reason for frame in frames[1:]} == {"compaction"}
        assert max(estimate_size(shown) for shown in model.script.shown) < 400
        assert words(model.script.shown[-1])[0].endswith("They talked.")
        assert len(await session.history()) > 24
        assert words(await session.messages(INITIAL_FRAME))[0].startswith("0: zzz")
        sources = {source: cost.total for source, _, cost in await session.usage()}
        assert sources == {"turn": 1200, "compaction": 100 * len(model.summaries)}


async def test_the_summary_is_asked_by_reference():
    """What is summarised is not stored again with the question."""
    async with opened(llm=Talking(*("y" * 150 for _ in range(9)))) as runtime:
        session = await runtime.session(small, "reference")
        for _ in range(9):
            await session.send("z" * 150)
        asked = [query for delivery in await rows(runtime, session.id) for query in delivery.asked]
        summaries = [
            query for query in asked if (query.options or {}).get("source") == "compaction"
        ]
        assert summaries and all(
            "leaf" in query.args and "zzz" not in repr(query.args) for query in summaries
        )


async def test_one_message_that_is_too_large_does_not_stop_it():
    """A result larger than the whole window is cut; the turn goes on in a frame that fits."""
    model = Talking(use("read", size=5000), "Done.")
    async with opened(llm=model) as runtime:
        session = await runtime.session(small, "large")
        turn = await session.send("Read it.")
        assert turn.text == "Done."
        assert estimate_size(model.script.shown[-1]) < 400
        (asked,) = model.summaries
        assert len(asked.prompt) < 400 * 4


async def test_where_the_model_cannot_summarise_an_excerpt_takes_its_place():
    """Progress does not depend on the model."""
    lines = Scripted(*("y" * 150 for _ in range(9)))

    async def model(query):
        if "Summarise the conversation" in (
            query.prompt or extract_text(query.messages[-1]["content"])
        ):
            raise RuntimeError("overloaded")
        return await lines(query)

    async with opened(llm=model) as runtime:
        session = await runtime.session(small, "excerpt")
        for _ in range(9):
            assert (await session.send("z" * 150)).outcome == TurnAnswered()
        assert (
            len(await session.frames()) > 1
            and max(estimate_size(shown) for shown in lines.shown) < 400
        )


async def test_it_is_compacted_on_demand_with_instructions():
    """Row 18: somebody asks for it and says what matters; a conversation that is small enough
    stays.
    """
    model = Talking(*("y" * 300 for _ in range(2)))
    async with opened(llm=model) as runtime:
        session = await runtime.session(small, "demand")
        await session.send("z" * 300)
        assert await session.compact("Mind the names.") and "Mind the names." in repr(
            model.summaries[0]
        )
        assert not await session.compact()


def test_a_turn_that_is_compacted_is_crashed_at_every_commit():
    """Row 18: the summary is asked for once, wherever the process died (D1)."""
    asked = []
    lines = iter([use("read", size=900), "Done."])

    async def model(query):
        if "Summarise the conversation" in (
            query.prompt or extract_text(query.messages[-1]["content"])
        ):
            asked.append(query)
            return "They talked."
        return next(lines)

    report = crash_everywhere(small(task="Read it."), answers=model)
    assert report.result == "Done." and len(asked) == 1


# ---- where it is cut


ROLES = st.sampled_from(["user", "assistant", "call"])


def conversation(sorts, sizes):
    """Messages in which each call is followed by its result."""
    found = []
    for index, sort in enumerate(sorts):
        block = [{"type": "text", "text": "w" * sizes[index % len(sizes)]}]
        if sort == "call":
            found.append(
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": str(index), "name": "t"}],
                }
            )
            found.append(
                {
                    "role": "tool",
                    "content": [{"type": "tool_result", "tool_use_id": str(index), **block[0]}],
                }
            )
        else:
            found.append({"role": sort, "content": block})
    return found


@given(
    st.lists(ROLES, min_size=1, max_size=20),
    st.lists(st.integers(0, 4000), min_size=1),
    st.integers(0, 3000),
)
def test_the_cut_is_never_between_a_call_and_its_result(sorts, sizes, most):
    """Whatever was said: the end that stays fits, and begins with no result."""
    messages = conversation(sorts, sizes)
    cut = find_cut_point(messages, most)
    assert estimate_size(messages[cut:]) <= most
    assert cut == len(messages) or messages[cut]["role"] != "tool"
    assert messages[find_last_group(messages)]["role"] != "tool"


@given(st.text(max_size=3000), st.integers(1, 200))
def test_what_is_clipped_is_about_as_large_as_it_may_be(words_, most):
    """Progress: a clip never grows with what it clips."""
    from everhold.core.usage import estimate_tokens

    assert estimate_tokens(clip_text(words_, most)) <= most + 10


def test_an_excerpt_says_who_spoke():
    assert (
        format_excerpt(conversation(["user", "assistant"], [3]), 100) == "user: www\nassistant: www"
    )


@pytest.mark.parametrize(
    "wrong", [{"at": 0.1}, {"keep": -1}, {"window": 0}, {"summary": 0}, {"at": 1.1}]
)
def test_settings_that_cannot_work_are_refused(wrong):
    with pytest.raises(BadSetting):
        Compaction(**{"window": 1000, **wrong})


# ---- budget


async def spent(plugin, *, turns=3, clock=None, passes=0.0):
    """The outcomes of turns of an agent with an allowance; each costs 90 + 10 tokens of m-1."""
    clock = clock or ManualClock()

    async def model(query):
        clock.advance(passes)
        return Answer("ok", USED)

    agent = Agent(plugins=[plugin], name="<locals>.spending")
    async with opened(llm=model, clock=clock) as runtime:
        session = await runtime.session(agent, "c")
        return [(await session.send("Hello.")).outcome for _ in range(turns)]


def stopped(outcome):
    return outcome.reason if isinstance(outcome, TurnAborted) else None


async def test_tokens_of_a_session_are_limited():
    """The turn that would go beyond is stopped before the model is asked, and says why."""
    found = await spent(Allowance(session_tokens=200))
    assert [stopped(outcome) for outcome in found] == [
        None,
        None,
        "the session has used 200 of 200 tokens",
    ]


async def test_tokens_of_a_turn_are_limited():
    """Each turn has as many; one of several rounds is stopped between them."""
    agent = Agent(tools=[read], plugins=[Allowance(turn_tokens=150)], name="<locals>.turns")
    lines = Scripted(use("read", size=1), use("read", size=1), "Done.", "Short.")

    async def model(query):
        return Answer(await lines(query), USED)

    async with opened(llm=model) as runtime:
        session = await runtime.session(agent, "c")
        assert stopped((await session.send("Go.")).outcome) == "the turn has used 200 of 150 tokens"
        assert (await session.send("Go on.")).outcome == TurnAnswered()


async def test_money_is_limited_by_your_prices():
    """90 × 3 + 10 × 15 a million is 0.00042 a turn."""
    prices = {"m-*": Price(3, 15)}
    found = await spent(Allowance(session_money=0.0008, prices=prices))
    assert [stopped(outcome) for outcome in found] == [
        None,
        None,
        "the session has cost 0.00084 of 0.0008",
    ]


async def test_a_model_without_a_price_stops_the_turn():
    """It fails closed: nobody knows what it costs."""
    found = await spent(
        Allowance(turn_money=1, session_money=1, prices={"other": Price(1, 1)}), turns=2
    )
    assert stopped(found[1]) == "there is no price for the model 'm-1'"


async def test_time_is_limited():
    """Seconds of the session, by its own clock."""
    found = await spent(Allowance(session_seconds=10), passes=6.0)
    assert [stopped(outcome) for outcome in found] == [
        None,
        None,
        "the session has taken 12 of 10 seconds",
    ]


def test_the_cache_has_prices_of_its_own():
    from everhold.core.ledger import TokenCounts

    cost = TokenCounts(
        input=1_000_000, output=1_000_000, cache_read=1_000_000, cache_write=1_000_000
    )
    assert Price(1, 2, 0.1, 1.25).of(cost) == pytest.approx(4.35)
    assert Price(1, 2).of(cost) == pytest.approx(5)


def test_a_limit_below_nothing_is_refused():
    with pytest.raises(BadSetting, match="turn_tokens"):
        Allowance(turn_tokens=-1)


# ---- approval


async def test_only_the_tools_that_were_named_need_a_yes():
    """A pattern names them; the others run at once."""
    ran = []

    @tool
    def refund(order: str) -> str:
        ran.append(order)
        return "refunded"

    agent = Agent(
        tools=[read, refund], plugins=[Approval("ref*", reason="money")], name="<locals>.approving"
    )
    lines = {
        "tool_calls": [
            {"name": "read", "input": {"size": 1}},
            {"name": "refund", "input": {"order": "7"}},
        ]
    }
    async with opened(llm=Scripted(lines, "Done.")) as runtime:
        session = await runtime.session(agent, "c")
        turn = await session.send("Refund 7.")
        (asked,) = turn.queries
        assert asked.kind is Kind.APPROVAL and "money" in asked.prompt and ran == []
        await runtime.answer(asked, True, by={"user": "ann"})
        assert (await session.turn(turn.input_id)).text == "Done." and ran == ["7"]


async def test_an_approval_may_be_a_policy():
    """As such it holds for subagents too; the question is the same."""
    agent = Agent(tools=[read], policy=Approval("re*", reason="reading"), name="<locals>.policed")
    async with opened(llm=Scripted(use("read", size=1), "Done.")) as runtime:
        session = await runtime.session(agent, "c")
        turn = await session.send("Go.")
        assert "reading" in turn.queries[0].prompt
        await runtime.answer(turn.queries[0], False)
        assert (await session.turn(turn.input_id)).text == "Done."


# ---- output limit


@pytest.mark.parametrize(("keep", "begins"), [("head", "xxx"), ("tail", "[")])
async def test_results_are_limited(keep, begins):
    """The model is shown a part and told how much is missing."""
    agent = Agent(
        tools=[read], plugins=[OutputLimit("re*", size=100, keep=keep)], name="<locals>.limited"
    )
    async with opened(
        llm=Scripted(use("read", size=1000), use("read", size=10), "Done.")
    ) as runtime:
        session = await runtime.session(agent, "c")
        await session.send("Go.")
        first, second = told(await session.history())
        assert first.startswith(begins) and "900 of 1,000 characters are left out" in first
        assert second == "x" * 10


# ---- redaction


SECRETS = [
    "sk-proj-abcdefghijklmnop1234",
    "ghp_abcdefghijklmnopqrst1234",
    "AKIAIOSFODNN7EXAMPLE",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.c2lnbmF0dXJlMTIz",
    "my own secret",
]


@pytest.mark.parametrize("secret", SECRETS)
def test_what_looks_like_a_secret_is_replaced(secret):
    plugin = Redaction(values=["my own secret"])
    assert plugin.before_store({"a": [f"key {secret}, and more"]}) == {
        "a": [f"key {REDACTED}, and more"]
    }


def test_what_stands_under_the_name_of_a_secret_is_replaced():
    given_ = {"db_password": "x", "api_key": "y", "user": "ann", "n": 3, "token_count": "7"}
    assert Redaction().before_store(given_) == {
        **given_,
        "db_password": REDACTED,
        "api_key": REDACTED,
    }


def test_a_url_keeps_everything_but_its_password():
    assert Redaction().before_store("postgresql://ann:pw@db/x") == f"postgresql://{REDACTED}@db/x"


@pytest.mark.parametrize("wrong", [{"patterns": ["("]}, {"values": [""]}])
def test_a_pattern_that_is_none_is_refused(wrong):
    with pytest.raises(BadSetting):
        Redaction(**wrong)


async def test_a_secret_is_nowhere_in_what_is_stored():
    """Neither the input, nor the result, nor an error of a tool, nor the model's words have it."""
    secret = "sk-live-abcdefghijklmnop99"

    @tool(read_only=True)
    def fetch() -> str:
        return f"the key is {secret}"

    @tool(read_only=True)
    def broken() -> str:
        raise RuntimeError(f"cannot use {secret}")

    @tool(read_only=True)
    def refusing() -> str:
        raise AnswerFailed(f"not with {secret}", "refused")

    agent = Agent(tools=[fetch, broken, refusing], plugins=[Redaction()], name="<locals>.secretive")
    calls = [{"name": name, "input": {}} for name in ("fetch", "broken", "refusing")]
    lines = [{"tool_calls": calls}, f"It is {secret}."]
    async with opened(llm=Scripted(*lines)) as runtime:
        session = await runtime.session(agent, "c")
        turn = await session.send(f"Is it {secret}?")
        kept = repr(await runtime.store.load(session.id))
        assert (
            turn.text == f"It is {REDACTED}." and secret not in kept and kept.count(REDACTED) >= 5
        )


def test_a_frame_is_measured_once_and_another_one_anew():
    """What was measured is known by its last message; a conversation that was moved has others."""

    def said(*words):
        return [{"role": "user", "content": [{"type": "text", "text": each}]} for each in words]

    plugin, frame = Compaction(), said("one", "two " * 50)
    longer = [*frame, *said("three " * 20)]
    for messages in (frame, longer, longer[:1], said("one", "another " * 90), said("one"), []):
        assert plugin._size(messages) == estimate_size(messages)
