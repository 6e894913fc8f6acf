"""Code that a model writes, through the public API: an executor of one's own, and Lua."""

import pytest

from everhold import Agent, tool
from everhold.agents import (
    CodeEnded,
    CodeExecuted,
    CodeExecutor,
    CodePaused,
    CodeRequest,
    CodeToolCall,
    EventKind,
    Lua,
    TurnCancelled,
)
from everhold.errors import BadArguments, CodeExecutionStopped, CodeExecutionUnavailable
from everhold.hooks import Confirm
from tests.scenario.talk import Scripted, told, use

RAN = []


@pytest.fixture(autouse=True)
def fresh():
    RAN.clear()


@tool
def price(of: str) -> int:
    """Tell what something costs."""
    RAN.append(of)
    if of == "nothing":
        raise LookupError("nothing has no price")
    return len(of) * 100


class Sums:
    """Runs programs such as `tea+milk`: each word is a call of `price`, and the sum ends it."""

    language = "sums"
    description = "Adds prices: words with + between them."
    requests = None

    def __init__(self, accept_finish=False, breaks=False):
        self.accept_finish, self.breaks, self.requests = accept_finish, breaks, []

    async def run(self, request, granted, scope):
        self.requests.append((request, scope))
        if self.breaks:
            raise CodeExecutionStopped("sums", "it died")
        words = request.code.removeprefix("finish ").split("+")
        if len(granted) < len(words):
            wanted = CodeToolCall("price", {"of": words[len(granted)]})
            return CodePaused([wanted], [f"asking for {words[len(granted)]}"])
        errors = [result.error for results in granted for result in results if result.error]
        if errors:
            return CodeEnded(error=errors[0])
        total = sum(results[0].value for results in granted)
        if request.code.startswith("finish ") and request.accept_finish:
            return CodeEnded(total, finish=[total])
        return CodeEnded(total, printed=["added"])


def talk(everhold, code, executor, *more, language="sums", **options):
    model = Scripted(use(language, code=code), *more)
    everhold.answers(model.__call__)
    agent = Agent(instructions="Count.", tools=[price], code=executor, name="<locals>.c", **options)
    session = everhold.runtime.session(agent, "chat")
    return session, session.send("Go."), model


def test_a_program_calls_tools_and_its_value_is_the_result(everhold):
    """Each call is one of its own, with the tools, policies and journal of the agent."""
    executor = Sums()
    session, turn, _ = talk(everhold, "tea+milk", executor)
    (result,) = told(session.history())
    assert result["value"] == 700 and RAN == ["tea", "milk"] and turn.text == "Done."
    assert "asking for tea" in result["printed"] and "added" in result["printed"]
    asked = [query for step in everhold.runtime.steps(session) for query in step.asked]
    calls = [query for query in asked if query.kind == "call" and query.name == "price"]
    assert len({query.key for query in calls}) == 2


def test_an_executor_is_told_language_code_and_a_scope(everhold):
    executor = Sums()
    assert isinstance(executor, CodeExecutor)
    talk(everhold, "tea", executor)
    (first, scope), (second, same) = executor.requests
    assert isinstance(first, CodeRequest) and (first.language, first.code) == ("sums", "tea")
    assert first.accept_finish is False and first.code == second.code and scope == same


def test_an_error_of_the_program_is_data(everhold):
    session, turn, _ = talk(everhold, "nothing", Sums())
    assert "LookupError" in told(session.history())[0]["error"] and turn.text == "Done."


def test_a_finish_ends_the_turn_where_it_is_accepted(everhold):
    _, turn, _ = talk(everhold, "finish tea", Sums(accept_finish=True))
    assert turn.value == 300 and turn.settled.rounds == 1


def test_a_finish_is_told_to_the_executor_where_it_is_not_accepted(everhold):
    session, turn, _ = talk(everhold, "finish tea", Sums())
    assert told(session.history())[0]["value"] == 300 and turn.text == "Done."


class Forward:
    """An executor that finishes whatever it was told."""

    language = "forward"
    description = "Runs nothing."
    accept_finish = False

    async def run(self, request, granted, scope):
        return CodeEnded("a value", finish=["over"])


def test_an_executor_that_finishes_without_being_allowed_to_is_refused(everhold):
    session, turn, _ = talk(everhold, "x", Forward(), language="forward")
    assert turn.text == "Done." and "may not finish" in str(told(session.history())[0])


def test_an_executor_that_died_is_an_error_of_its_own(everhold):
    session, turn, _ = talk(everhold, "tea", Sums(breaks=True))
    assert "it died" in str(told(session.history())[0]) and turn.text == "Done."
    assert CodeExecutionStopped.code == "code_execution_stopped"


def test_without_an_executor_there_is_nothing_to_run_code(everhold):
    model = Scripted(use("sums", code="tea"))
    everhold.answers(model.__call__)
    session = everhold.runtime.session(Agent(tools=[price], name="<locals>.no_code"), "chat")
    session.send("Go.")
    assert "there is no tool 'sums'" in told(session.history())[0]


async def test_an_executor_refuses_another_language():
    with pytest.raises(CodeExecutionUnavailable) as refused:
        await Lua().run(CodeRequest("cobol", "1"), [], "s")
    assert refused.value.code == "code_execution_unavailable" and refused.value.language == "cobol"


def test_two_executors_of_one_language_are_refused():
    with pytest.raises(BadArguments, match="two executors run 'sums'"):
        Agent(code=[Sums(), Sums()], name="<locals>.twice")


def test_policies_see_what_programs_call(everhold):
    session, turn, _ = talk(
        everhold, "tea", Sums(), policy=lambda wanted: Confirm(f"{wanted.tool}?")
    )
    everhold.restart()
    while turn.queries:
        assert turn.queries[0].kind == "approval"
        everhold.runtime.answer(turn.queries[0], True)
        turn = session.turn(turn.input_id)
    assert told(session.history())[0]["value"] == 300 and RAN == ["tea"]


def test_a_program_is_cancelled_with_its_turn(everhold):
    session, turn, _ = talk(everhold, "tea", Sums(), policy=lambda wanted: Confirm("sure?"))
    assert turn.waiting
    assert session.cancel_turn("enough").outcome == TurnCancelled("enough") and RAN == []


@pytest.mark.process
def test_a_lua_program_prints_reads_history_and_returns(everhold):
    code = "print('so', 1) return {ctx.history[1].text, tool('price', {of = 'tea'})}"
    session, turn, _ = talk(everhold, code, Lua(), language="lua")
    assert told(session.history()) == [{"printed": "so\t1", "value": ["Go.", 300]}]
    assert turn.text == "Done."


@pytest.mark.process
def test_a_lua_program_finishes_only_where_it_is_accepted(everhold):
    _, turn, _ = talk(everhold, "finish('over')", Lua(accept_finish=True), language="lua")
    assert turn.text == "over"


# ---- a host runs code


clerk = Agent(tools=[price], code=Lua(), name="outside_code_clerk")


@pytest.mark.process
def test_a_host_runs_code_with_the_tools_of_the_agent(everhold):
    """In a turn of its own that the model does not see; it finishes only if it may."""
    session = everhold.runtime.session(clerk, "chat")
    turn = session.execute("lua", "print('so') return tool('price', {of = 'tea'})")
    assert turn.outcome == CodeExecuted("lua", 300, "so") and RAN == ["tea"]
    assert session.history() == [] and session.turns()[0].rounds == 0
    assert session.execute("lua", "finish(7)", accept_finish=True).value == 7
    refused = session.execute("lua", "finish(7)").outcome
    assert refused.error == "finish is not accepted here: return the value"


def test_a_language_that_nothing_runs_is_refused(everhold):
    session = everhold.runtime.session(clerk, "chat")
    with pytest.raises(CodeExecutionUnavailable) as refused:
        session.execute("cobol", "STOP RUN.")
    assert refused.value.code == "code_execution_unavailable" and "lua" in refused.value.hint
    assert session.turns() == []


@pytest.mark.process
def test_variables_last_between_executions_of_a_session(everhold):
    """Across a restart; each session has its own, and a program may do without."""
    session = everhold.runtime.session(clerk, "chat")
    session.execute("lua", "n = 41")
    everhold.restart()
    assert session.execute("lua", "n = n + 1 return n").value == 42
    assert session.execute("lua", "return n", variables=False).value is None
    assert everhold.runtime.session(clerk, "other").execute("lua", "return n").value is None
    fork = session.fork()
    assert fork.execute("lua", "return n").value == 42


@pytest.mark.process
def test_what_a_program_prints_is_streamed_and_its_end_ends_the_readers(everhold):
    session = everhold.runtime.session(clerk, "chat")
    code = "print('one') tool('price', {of = 'tea'}) print('two')"
    events = list(session.stream_execution("lua", code))
    printed = [event.text for event in events if event.kind is EventKind.OUTPUT]
    assert printed == ["one\n", "two\n"] and events[-1].kind is EventKind.SETTLED
    kinds = [event.kind for event in events]
    assert kinds.index(EventKind.OUTPUT) < kinds.index(EventKind.TOOL_FINISHED)
