"""What is for a person is answered by a person: forms where the client shows them, else a command,
never a tool.
"""

import asyncio
import itertools
import json
import shlex
import subprocess

import pytest
from mcp import MCPError
from mcp.types import ElicitResult, Implementation

import everhold
from everhold.mcp.tool_schema import build_input_schema
from everhold.mcp.tools import BY_NAME, TOOLS
from tests.e2e.mcp_harness import build, opened
from tests.warm import start

MODES = ["auto", "legacy"]


@pytest.fixture(autouse=True)
def shop(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.chdir(build(tmp_path))
    return tmp_path


def person(*said, seen=None):
    """Somebody who fills in forms: each answer is a content, or an action without one."""
    left = list(said)

    async def fill(context, params):
        if seen is not None:
            seen.append(params)
        word = left.pop(0)
        return (
            ElicitResult(action=word)
            if isinstance(word, str)
            else ElicitResult(action="accept", content=word)
        )

    return fill


async def decided(host, order="7"):
    """A refund that has its reason and now needs a person."""
    session = await host.paused("refund", order=order)
    return await host.call("answer", session_id=session, answers=[{"response": "broken"}])


async def answer_of(session_id, query_id):
    """An answer as it is stored."""
    async with everhold.open() as runtime:
        for step in await runtime.steps(session_id):
            for answer in step.answers:
                if answer.id == query_id:
                    return answer
    return None


# Where the client shows no forms


@pytest.mark.parametrize("mode", MODES)
async def test_without_forms_the_result_says_what_a_person_types(shop, mode):
    async with opened(mode=mode) as host:
        told = await decided(host)
        assert told["status"] == "waiting"
        assert "questions" not in told
        (one,) = told["for_people"]
        assert one["kind"] == "approval"
        assert one["prompt"] == "Refund 7? broken"
        assert (
            one["command"]
            == f"everhold answer {told['session_id']} --query q-1 -d {shop / 'app.db'}"
        )
        assert one["command"] in told["next"]
        assert one["command"] in host.text


async def test_the_command_it_names_is_the_one_that_works(shop, monkeypatch):
    """Also where a folder has a name that a shell would take for several words."""
    from everhold.cli.app import main

    folder = shop / "Ada's shop; really ☃"
    folder.mkdir()
    monkeypatch.chdir(build(folder))
    async with opened() as host:
        told = await decided(host)
    words = shlex.split(told["for_people"][0]["command"])[1:]
    monkeypatch.chdir(shop)
    done = await asyncio.to_thread(main, [*words, "--yes", "--as", "ann"])
    assert done == 0
    monkeypatch.chdir(folder)
    async with opened() as host:
        assert (await host.call("status", session_id=told["session_id"], wait=20))[
            "result"
        ] == "sent"


async def test_next_does_not_lead_in_a_circle_where_the_person_was_asked_in_vain():
    async with opened(elicitation_callback=person("decline", "decline")) as host:
        told = await decided(host)
        assert "`ask_person`" not in told["next"] and "everhold answer" in told["next"]
        assert "`ask_person`" in (await host.call("status", session_id=told["session_id"]))["next"]
        assert (
            "`ask_person`"
            not in (await host.call("ask_person", session_id=told["session_id"]))["next"]
        )
    async with opened() as host:
        told = await decided(host)
        assert "`ask_person`" in told["next"]
        assert (
            "`ask_person`"
            not in (await host.call("ask_person", session_id=told["session_id"]))["next"]
        )


async def test_ask_person_without_forms_says_the_same():
    async with opened() as host:
        told = await decided(host)
        again = await host.call("ask_person", session_id=told["session_id"])
        assert again["for_people"] == told["for_people"]


async def test_a_signal_and_an_addressed_question_are_for_others():
    async with opened(elicitation_callback=person()) as host:
        told = await host.call("run", program="hears", wait=0)
        assert told["for_people"][0]["command"].startswith(
            f"everhold signal {told['session_id']} go"
        )
        told = await host.call("run", program="elsewhere")
        assert told["for_people"][0]["to"] == "alice"  # and whoever sits here was not asked


# Where it does


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("said", "result"), [({"approve": True}, "sent"), ({"approve": False}, "declined")]
)
async def test_a_person_decides_in_a_form_and_the_answer_says_who(shop, mode, said, result):
    seen = []
    info = Implementation(name="testhost", version="9")
    async with opened(
        mode=mode, elicitation_callback=person(said, seen=seen), client_info=info
    ) as host:
        told = await decided(host)
        assert (told["status"], told["result"]) == ("completed", result)
    (asked,) = seen
    assert "Refund 7? broken" in asked.message
    assert asked.requested_schema["required"] == ["approve"]
    kept = await answer_of(told["session_id"], "q-1")
    assert kept.value is said["approve"]
    assert (kept.by["front"], kept.by["user"], kept.by["through"]) == (
        "mcp",
        "testhost 9",
        "elicitation",
    )
    assert (shop / "paid").exists() == (result == "sent")


@pytest.mark.parametrize("mode", MODES)
async def test_several_questions_are_asked_one_after_the_other(mode):
    said = [{"answer": "Ann"}, {"answer": 41}]
    async with opened(mode=mode, elicitation_callback=person(*said)) as host:
        told = await host.call("run", program="survey")
        assert told["result"] == ["Ann", 41]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    "said", ["decline", "cancel", {}, {"approve": "yes"}, {"approve": 1}, {"answer": True}]
)
async def test_what_is_no_clear_yes_or_no_leaves_the_question_open(shop, mode, said):
    async with opened(mode=mode, elicitation_callback=person(said)) as host:
        told = await decided(host)
        assert told["status"] == "waiting"
        assert told["for_people"][0]["id"] == "q-1"
    assert await answer_of(told["session_id"], "q-1") is None
    assert not (shop / "paid").exists()


@pytest.mark.parametrize("mode", MODES)
async def test_ask_person_asks_again(mode):
    async with opened(mode=mode, elicitation_callback=person("decline", {"approve": True})) as host:
        told = await decided(host)
        assert told["status"] == "waiting"
        assert (await host.call("ask_person", session_id=told["session_id"]))["result"] == "sent"


@pytest.mark.parametrize("mode", MODES)
async def test_an_answer_that_does_not_fit_or_comes_too_late_changes_nothing(mode):
    """The person is told nothing of schemas: the result says it, and the question stays as it
    is.
    """
    async with opened(
        mode=mode, elicitation_callback=person({"answer": "Ann"}, {"answer": "forty"})
    ) as host:
        told = await host.call("run", program="survey")
        assert told["status"] == "waiting"
        assert "q-1" in told["person"]
        session = told["session_id"]

    async def slow(context, params):
        async with everhold.open() as runtime:
            await runtime.answer(session, 41, query_id="q-1")
        return ElicitResult(action="accept", content={"answer": 42})

    async with opened(mode=mode, elicitation_callback=slow) as host:
        told = await host.call("ask_person", session_id=session)
        assert told["result"] == ["Ann", 41]


async def test_status_waits_for_a_person_who_answers_elsewhere():
    async with opened() as host:
        told = await decided(host)

        async def somebody():
            async with everhold.open() as runtime:
                await runtime.answer(
                    told["session_id"], True, query_id="q-1", by={"front": "cli", "user": "ann"}
                )

        looking = asyncio.ensure_future(host.call("status", session_id=told["session_id"], wait=60))
        await asyncio.sleep(0.1)
        await somebody()
        assert (await looking)["result"] == "sent"


@pytest.mark.parametrize("mode", MODES)
async def test_looking_asks_nobody(mode):
    seen = []
    async with opened(mode=mode) as host:
        told = await decided(host)
    async with opened(mode=mode, elicitation_callback=person(seen=seen)) as host:
        assert (await host.call("status", session_id=told["session_id"]))["status"] == "waiting"
        await host.call("explain", session_id=told["session_id"])
        await host.call("sessions")
    assert seen == []


# Attacks


def everything(session, queries):
    """Every tool with every argument that could mean an answer, and a few that it does not have."""
    words = [True, "true", "yes", "approve", {"approve": True}, 1, None]
    for word, query in itertools.product(words, [*queries, None]):
        said = {"response": word} if query is None else {"id": query, "response": word}
        yield "answer", {"session_id": session, "answers": [said]}
        yield (
            "answer",
            {"session_id": session, "answers": [{**said, "kind": "llm", "by": {"front": "cli"}}]},
        )
        yield (
            "answer",
            {"session_id": session, "answers": [{**said, "error": "refused", "response": None}]},
        )
        yield "fork", {"session_id": session, "answer": word, "id": query}
        for at in range(4):
            yield "fork", {"session_id": session, "at": at, "answer": word, "id": query}
    for at in range(4):
        yield "fork", {"session_id": session, "at": at}
    yield "fork", {"session_id": session}
    yield "retry", {"session_id": session}
    yield "ask_person", {"session_id": session}
    yield "ask_person", {"session_id": session, "approve": True, "answers": [{"response": True}]}
    yield "status", {"session_id": session, "steps": True, "approve": True}
    for name in ("refund", "shop:refund", "shop.py:refund", "everhold.testing:house"):
        yield "run", {"program": name, "args": {"order": "7"}, "key": "the-key"}
        yield "run", {"program": name, "args": {"order": "7", "approved": True}, "key": "the-key"}
        yield "run", {"program": name, "args": {"order": "7"}, "key": session}
    for tool in TOOLS:
        names = build_input_schema(tool.takes)["properties"]
        yield tool.name, dict.fromkeys(names, True)
        yield tool.name, {**dict.fromkeys(names, session), "elicitation": {"action": "accept"}}


@pytest.mark.parametrize("mode", MODES)
async def test_a_host_that_tries_every_tool_approves_nothing(shop, mode):
    """Neither the session's approval nor anybody else's: no money moves, and no approval has an
    answer.
    """
    async with opened(mode=mode) as host:
        told = await host.call("run", program="refund", args={"order": "7"}, key="the-key")
        session = told["session_id"]
        await host.call("answer", session_id=session, answers=[{"response": "broken"}])
        for tool, arguments in everything(session, ["q-1", "q-0", "q-2", "q-01", "Q-1"]):
            assert tool in BY_NAME
            if tool != "cancel":
                await host.client.call_tool(tool, arguments)
        assert (await host.call("status", session_id=session))["for_people"][0]["id"] == "q-1"
    assert not (shop / "paid").exists()
    await nobody_decided()


async def nobody_decided():
    """No question for a person has an answer, in any session."""
    async with everhold.open() as runtime:
        for info in await runtime.sessions(limit=1000):
            kinds = {}
            for step in await runtime.steps(info.session_id):
                kinds |= {query.id: query.kind for query in step.asked}
                assert not [
                    answer.id
                    for answer in step.answers
                    if kinds[answer.id] in ("approval", "input")
                ]


async def test_a_key_that_a_model_chose_does_not_lead_a_person_to_another_session(shop):
    """The name that a list shows for one session means that session, whatever others are called."""
    async with opened() as host:
        meant = await host.paused("boss", order="7")
        other = (await host.call("run", program="boss", args={"order": "all"}, key=meant[:18]))[
            "session_id"
        ]
        assert other[:18] in (await host.call("explain", session_id=other))["moves"][0]
    async with everhold.open() as runtime:
        assert await runtime.find(meant[:18]) == meant
    done = subprocess.run(
        [*start.everhold(), "inbox"], cwd=shop, capture_output=True, text=True, check=True
    )
    assert done.stdout.count(meant[:18]) == done.stdout.count(other[:18]) == 1


async def test_what_a_person_approved_once_is_not_carried_into_a_fork(shop):
    """Else a model could have one approval pay many times."""
    async with opened(elicitation_callback=person({"approve": True})) as host:
        told = await decided(host)
        assert told["result"] == "sent"
        session = told["session_id"]
        for arguments in (
            {},
            {"at": 2},
            {"at": 3},
            {"at": 2, "answer": "true"},
            {"at": 3, "answer": "sent"},
        ):
            assert await host.refused("fork", session_id=session, **arguments) == "not_allowed"
        assert "everhold fork" in host.last["hint"]
    async with opened() as host:
        earlier = await host.call("fork", session_id=session, at=1)
        assert earlier["for_people"][0]["kind"] == "approval"
    assert (shop / "paid").read_text() == "7\n"


async def test_nor_is_what_was_approved_in_a_child(shop):
    """A child's end is its parent's answer; the approval in it is as much a person's, two children
    deep too.
    """
    async with opened(llm=lambda query: "7") as host:
        told = await host.call("run", program="manager", args={"order": "7"}, wait=0)
        session = told["session_id"]
        async with everhold.open() as runtime:
            asked = await waited_for(lambda: runtime.inbox(kind="approval"))
            await runtime.answer(asked[0], True, by={"user": "boss"})
        told = await host.call("status", session_id=session, wait=60)
        assert told["result"] == "sent7"
        middle = asked[0].session_id
        async with everhold.open() as runtime:
            parent = (await runtime.store.load(middle, since=-1)).birth.parent
        for one in (session, parent, middle):
            assert await host.refused("fork", session_id=one) == "not_allowed"
        assert await host.refused("fork", session_id=parent, at=2, answer="8") == "not_allowed"
        assert "that contains a person's decision" in host.last["error"]
    assert (shop / "paid").read_text() == "7\n"


async def waited_for(look):
    while not (found := await look()):
        await asyncio.sleep(0.05)
    return found


async def test_a_child_in_which_only_models_spoke_is_carried(shop):
    async with opened(llm=lambda query: "yes") as host:
        told = await host.call("run", program="asks_a_child", args={}, wait=60)
        assert told["result"] == "yes and yes"
        other = await host.call("fork", session_id=told["session_id"], at=2, answer="no", wait=60)
        assert other["result"] == "yes and no"
        again = await host.call(
            "fork", session_id=other["session_id"], at=2, answer="perhaps", wait=60
        )
        assert again["result"] == "yes and perhaps"


async def test_what_a_call_returned_is_not_replaced_by_a_model(shop):
    """A fork may change what a model said, not what happened."""
    async with opened() as host:
        session = await host.paused("pays")
        assert (
            await host.refused("fork", session_id=session, at=1, answer="nothing happened")
            == "not_allowed"
        )
        assert "kind call" in host.last["error"]


async def test_a_python_file_cannot_be_started_by_a_model(shop, tmp_path):
    """Trusted code is what a person has listed, not what a model wrote down somewhere."""
    evil = tmp_path / "evil.py"
    evil.write_text(
        "open('touched', 'w')\nimport everhold\n@everhold.program\nasync def go(ctx): return 1\n"
    )
    async with opened() as host:
        for name in (
            f"{evil}:go",
            "evil.py:go",
            "evil:go",
            "./evil.py:go",
            "~/evil.py:go",
            str(evil),
        ):
            assert await host.refused("run", program=name) in ("not_allowed", "unknown_program")
    assert not (shop / "touched").exists()


# Attacks on the protocol: a client that claims a person's answers


async def raw(host, tool, arguments, **params):
    return await host.client.session.call_tool(tool, arguments, allow_input_required=True, **params)


async def test_answers_that_were_never_asked_for_are_refused(shop):
    async with opened() as host:
        told = await decided(host)
        claim = {"q-1": ElicitResult(action="accept", content={"approve": True})}
        result = await raw(
            host, "ask_person", {"session_id": told["session_id"]}, input_responses=claim
        )
        assert result.structured_content["code"] == "not_allowed"
        with pytest.raises(MCPError, match="requestState"):
            state = json.dumps({"session_id": told["session_id"], "query_ids": ["q-1"]})
            await raw(
                host,
                "ask_person",
                {"session_id": told["session_id"]},
                input_responses=claim,
                request_state=state,
            )
    assert not (shop / "paid").exists()
    await nobody_decided()


async def test_a_client_without_forms_cannot_use_the_state_of_one_that_has_them(shop):
    """The seal is the server's; the declaration is looked at again when the call comes back."""
    made = None
    from mcp import Client

    from everhold.mcp import make_front

    made = make_front(None, None)
    server = made.server()
    try:
        async with (
            Client(server, elicitation_callback=person()) as with_forms,
            Client(server) as without,
        ):
            run = await with_forms.call_tool("run", {"program": "refund", "args": {"order": "7"}})
            session = run.structured_content["session_id"]
            asked = await with_forms.session.call_tool(
                "answer",
                {"session_id": session, "answers": [{"response": "broken"}]},
                allow_input_required=True,
            )
            assert list(asked.input_requests) == ["q-1"]
            claim = {"q-1": ElicitResult(action="accept", content={"approve": True})}
            arguments = {"session_id": session, "answers": [{"response": "broken"}]}
            more = {
                "input_responses": claim,
                "request_state": asked.request_state,
                "allow_input_required": True,
            }
            refused = await without.session.call_tool("answer", arguments, **more)
            assert refused.structured_content["code"] == "not_allowed"
            # nor for another call than the one it was made for
            with pytest.raises(MCPError, match="requestState"):
                await with_forms.session.call_tool("ask_person", {"session_id": session}, **more)
            done = await with_forms.session.call_tool("answer", arguments, **more)
            assert done.structured_content["result"] == "sent"
            # A replay finds nothing open.
            again = await with_forms.session.call_tool("answer", arguments, **more)
            assert again.structured_content["result"] == "sent"
    finally:
        await made.close()
    assert (shop / "paid").read_text() == "7\n"


async def test_the_command_names_a_session_by_its_key(shop):
    """As the person who chose the key does."""
    async with opened() as host:
        told = await host.call("run", program="refund", args={"order": "7"}, key="order 7")
        answers = [{"response": "broken"}]
        told = await host.call("answer", session_id=told["session_id"], answers=answers)
    (one,) = told["for_people"]
    assert one["command"] == f"everhold answer 'order 7' --query q-1 -d {shop / 'app.db'}"
