"""Names, patience and refusals: what a model answerer decides before it asks anybody."""

import asyncio
import sys
from typing import Any

import pytest
from msgspec.structs import replace
from pydantic_ai.exceptions import ModelQuotaExceededError, ModelRateLimitError

from everhold.core.model_settings import SETTING_NAMES
from everhold.core.query import Kind, Query
from everhold.core.retry import Retry
from everhold.errors import (
    AnswerFailed,
    BadArguments,
    BadSetting,
    MissingExtra,
    NotAllowed,
    ProviderMismatch,
    ProviderUnavailable,
    ProviderUnconfigured,
)
from everhold.models import Model
from everhold.models import provider as home
from everhold.models.provider_access import ModelName, parse_model_names
from everhold.models.provider_errors import ModelFailure, classify_model_error
from everhold.models.retry import MODEL_RETRY, RetryBackoff

VARIABLES = (
    "OPENAI_API_KEY",
    "OPENAI_BASE_URL",
    "ANTHROPIC_API_KEY",
    "GOOGLE_API_KEY",
    "GEMINI_API_KEY",
)


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in VARIABLES:
        monkeypatch.delenv(variable, raising=False)


def never() -> float:
    """Dice that take nothing off a wait."""
    return 0.0


def question(**more: Any) -> Query:
    return Query(0, "0:0", "Well?", **more)


def agents(model: Any) -> Query:
    """A question of an agent that names its model."""
    return Query(0, "0:0", args={"leaf": "1.0"}, options={"model": model})


# ---- names

NAMED = {
    "anthropic:claude-sonnet-4-6": ModelName("anthropic", "claude-sonnet-4-6"),
    "openai:ft:gpt-4o:org::id": ModelName("openai", "ft:gpt-4o:org::id"),
    "openai:qwen3@http://127.0.0.1:8000/v1": ModelName(
        "openai", "qwen3", "http://127.0.0.1:8000/v1"
    ),
    "google:gemini@001": ModelName("google", "gemini@001"),
    "openai-chat:a/b@https://host/v1": ModelName("openai-chat", "a/b", "https://host/v1"),
}


@pytest.mark.parametrize(("text", "expected"), NAMED.items(), ids=NAMED)
def test_a_model_is_a_provider_a_name_and_maybe_an_address(text: str, expected: ModelName) -> None:
    assert parse_model_names(text) == (expected,)
    assert str(expected) == text


@pytest.mark.parametrize("given", ["a:b|c:d", "a:b | c:d", ["a:b", "c:d"]])
def test_several_models_are_asked_in_order(given: Any) -> None:
    assert parse_model_names(given) == (ModelName("a", "b"), ModelName("c", "d"))


@pytest.mark.parametrize(
    "given", ["", "gpt-5", "openai:", ":x", "a:b|", "OpenAI:x", "a:b c", [], [7], "a:b||c:d"]
)
def test_what_names_no_model_is_refused(given: Any) -> None:
    """With how a model is named."""
    with pytest.raises(BadSetting) as caught:
        parse_model_names(given)

    assert "provider:name" in str(caught.value)


# ---- the retry policy of a model


def test_waits_double_up_to_the_longest() -> None:
    pace = RetryBackoff(replace(MODEL_RETRY, attempts=6), never)

    assert [pace.failed() for _ in range(6)] == [2.0, 4.0, 8.0, 10.0, 10.0, None]


def test_a_part_of_each_wait_is_random() -> None:
    """Half of it, unless somebody says otherwise; each wait draws for itself."""
    drawn = iter([0.0, 0.5, 0.75, 0.99])
    pace = RetryBackoff(replace(MODEL_RETRY, attempts=5), lambda: next(drawn))
    assert [pace.failed() for _ in range(4)] == [2.0, 3.0, 5.0, pytest.approx(5.05)]
    for jitter, wait in ((0, 2.0), (0.25, 1.75), (1, 1.0)):
        assert RetryBackoff(replace(MODEL_RETRY, jitter=jitter), lambda: 0.5).failed() == wait
    drawn = iter([0.0, 0.5, 0.75])
    pace = RetryBackoff(MODEL_RETRY, lambda: next(drawn))
    assert [pace.throttled() for _ in range(3)] == [2.0, 3.0, 5.0]


def test_a_random_part_makes_no_wait_shorter_than_a_provider_asks() -> None:
    """It comes on top of it, up to half of `backoff`, also on top of the longest."""
    for draw, more in ((0.0, 0.0), (0.5, 0.5), (0.9, 0.9)):
        pace = RetryBackoff(MODEL_RETRY, lambda draw=draw: draw)
        assert [pace.failed(5.0), pace.failed(600.0)] == [5.0 + more, 60.0 + more]
        pace = RetryBackoff(MODEL_RETRY, lambda draw=draw: draw)
        assert [pace.throttled(7.0), pace.throttled(60.0)] == [7.0 + more, 60.0 + more]


def test_models_that_fail_together_do_not_come_back_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without a source of randomness of its own, a model has a real one."""
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def fails(*given: Any, **more: Any) -> None:
        raise TimeoutError

    monkeypatch.setattr(home, "_loaded", lambda name, key: (fails, classify_model_error))
    monkeypatch.setattr(home, "refuse_in_tests", lambda what: None)

    async def asked() -> None:
        model = Model("openai:x", api_key="k", sleep=sleep)
        with pytest.raises(AnswerFailed):
            await model.answer(Query(0, "0:0", "Where?"), "s-1")
        await model.close()

    for _ in range(8):
        asyncio.run(asked())
    rounds = [slept[at : at + 3] for at in range(0, 24, 3)]
    assert all(1.0 <= a <= 2.0 <= b <= 4.0 <= c <= 8.0 for a, b, c in rounds)
    assert len({first for first, *_ in rounds}) > 1


def test_a_used_up_quota_is_not_asked_again() -> None:
    """Waiting does not fill an account, whatever the provider says of when to come back."""
    error = ModelQuotaExceededError("x", "You exceeded your current quota.", retry_after=1.0)
    trouble = classify_model_error(ModelName("openai", "x"), error)
    pace = RetryBackoff(MODEL_RETRY, never)
    assert (trouble.code, trouble.retry, trouble.wait(pace)) == ("quota_exceeded", "stays", None)
    assert (pace.attempts, pace.throttles) == (0, 0)


def test_a_provider_may_ask_for_a_longer_wait_within_limits() -> None:
    pace = RetryBackoff(MODEL_RETRY, never)

    assert [pace.failed(5.0), pace.failed(1.0), pace.failed(600.0)] == [5.0, 4.0, 60.0]


def test_slowing_down_is_counted_by_itself() -> None:
    """At most eight times, at most ninety seconds, and a wait of nothing counts as a second."""
    assert [RetryBackoff(MODEL_RETRY, never).throttled(wait) for wait in (0.0, 30.0, 90.0)] == [
        0.0,
        30.0,
        60.0,
    ]
    pace = RetryBackoff(MODEL_RETRY, never)
    assert [pace.throttled(0.0) for _ in range(9)] == [0.0] * 8 + [None]
    pace = RetryBackoff(MODEL_RETRY, never)
    assert [pace.throttled(40.0) for _ in range(3)] == [40.0, 40.0, None]
    pace = RetryBackoff(MODEL_RETRY, never)
    assert [pace.throttled() for _ in range(4)] == [2.0, 4.0, 8.0, 10.0]
    assert pace.attempts == 0


def test_a_policy_that_names_errors_retries_only_these() -> None:
    """Also those that are not retried by default."""
    pace = RetryBackoff(Retry(3, on="content_filter", jitter=0), never)
    overloaded = ModelFailure("provider_unavailable", "busy", "passes")
    filtered = ModelFailure("content_filter", "no", "stays")
    assert (overloaded.wait(pace), filtered.wait(pace)) == (None, 1.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"timeout": 0},
        {"chunk_timeout": -1},
        {"rate_limit_wait": -1},
        {"rate_limit_wait": True},
        {"retry": 3},
        {"retry": Retry(on="rate_limit")},
    ],
)
def test_limits_that_make_no_sense_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(BadSetting) as caught:
        Model("openai:x", **wrong)

    assert next(iter(wrong)) in str(caught.value)


async def test_a_question_with_a_policy_of_its_own_is_asked_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The engine asks again. It is told how long the provider wants to be left alone."""
    asked: list[str] = []

    async def fails(model: Any, name: Any, *given: Any, **more: Any) -> None:
        asked.append(str(name))
        raise ModelRateLimitError("x", "Slow down.", retry_after=7.0 if "one" in str(name) else 9.0)

    monkeypatch.setattr(home, "_loaded", lambda name, key: (fails, classify_model_error))
    monkeypatch.setattr(home, "refuse_in_tests", lambda what: None)
    model = Model("openai:one", "openai:two", api_key="k", sleep=refuse_to_sleep)
    with pytest.raises(AnswerFailed) as caught:
        await model.answer(Query(0, "0:0", "Where?", retry=Retry(5)), "s-1")
    await model.close()
    assert (asked, caught.value.retry_after) == (["openai:one", "openai:two"], 7.0)


async def refuse_to_sleep(seconds: float) -> None:
    raise AssertionError("the model waits by itself")


# ---- before anything is asked

KEYS = {
    "anthropic:x": "ANTHROPIC_API_KEY",
    "google:x": "GOOGLE_API_KEY",
    "openai:x": "OPENAI_API_KEY",
    "openai-chat:x": "OPENAI_API_KEY",
    "openai-responses:x": "OPENAI_API_KEY",
}


@pytest.mark.parametrize(("model", "variable"), KEYS.items(), ids=KEYS)
def test_a_missing_key_is_said_with_its_variable(
    model: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ProviderUnconfigured) as caught:
        Model(model).check()
    assert caught.value.hint == f"Set the variable {variable}."

    monkeypatch.setenv(variable, "k")
    assert Model(model).check() is None


def test_a_key_may_be_given_or_not_be_needed() -> None:
    assert Model("anthropic:x", api_key="k").check() is None
    assert Model("openai:x@http://127.0.0.1:1/v1").check() is None


def test_a_server_of_ones_own_may_want_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:1/v1")
    assert Model("openai:x").check() is None


def test_every_model_of_several_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(ProviderUnconfigured, match="google cannot be used: there is no key"):
        Model("openai:x", "google:y").check()


@pytest.mark.parametrize(
    ("provider", "told"),
    [("antropic", "Did you mean anthropic?"), ("zzz", "Some that exist: anthropic")],
)
def test_an_unknown_provider_is_refused(provider: str, told: str) -> None:
    with pytest.raises(ProviderUnavailable, match=f"no provider '{provider}'") as caught:
        Model(f"{provider}:x").check()

    assert told in caught.value.hint
    assert caught.value.provider == provider


def test_an_unknown_provider_in_only_is_refused_too() -> None:
    with pytest.raises(ProviderUnavailable, match="antropic"):
        Model(only=["antropic"]).check()


@pytest.mark.parametrize("library", ["pydantic_ai", "anthropic"])
def test_a_missing_extra_is_said_in_one_line(library: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(MissingExtra) as caught:
        Model("anthropic:x", api_key="k").check()

    assert caught.value.hint == "pip install 'everhold[models]'"
    assert "\n" not in str(caught.value)


def test_options_are_looked_at_when_they_are_given() -> None:
    """An unknown one is refused with the name that was probably meant."""
    extra = {"openai_store": False}
    model = Model("a:b", temperature=0, extra=extra, extra_headers={"x": "y"})
    assert model.names == (ModelName("a", "b"),)
    with pytest.raises(BadArguments, match=r"'temprature' .did you mean 'temperature'"):
        Model("a:b", temprature=0)  # type: ignore[call-arg]


def test_every_option_is_one_that_the_library_knows() -> None:
    from pydantic_ai.settings import ModelSettings

    assert set(SETTING_NAMES) - set(ModelSettings.__annotations__) == {"extra"}


async def test_a_question_cannot_set_headers() -> None:
    """They would be stored with it, and may hold a secret."""
    local = Model("openai:x@http://127.0.0.1:1/v1")
    with pytest.raises(AnswerFailed, match=r"everhold.Model\(extra_headers=") as caught:
        await local.answer(question(options={"extra": {"extra_headers": {"x": "y"}}}), "s-1")

    assert caught.value.kind == "bad_option"
    await local.close()


# ---- what may be asked of it


async def test_it_answers_models_questions_only() -> None:
    with pytest.raises(NotAllowed):
        await Model("openai:x").answer(question(kind=Kind.APPROVAL), "s-1")


def test_without_a_model_it_takes_what_agents_ask_of_theirs() -> None:
    nobody = Model()

    assert nobody.takes(agents("openai:x"))
    assert not nobody.takes(question())
    assert not nobody.takes(question(options={"model": "openai:x"}))
    assert not nobody.takes(agents(None))
    assert Model("openai:x").takes(question())
    assert nobody.check() is None


async def test_without_any_model_a_question_stays_open() -> None:
    with pytest.raises(NotAllowed, match="names no model"):
        await Model().answer(question(), "s-1")


async def test_the_model_a_question_names_goes_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its key, nothing is asked, and the question stays open."""
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    with pytest.raises(ProviderUnconfigured, match="anthropic"):
        await Model("openai:x").answer(question(options={"model": "anthropic:y"}), "s-1")


async def test_providers_may_be_limited() -> None:
    """Row 24: a provider that may not be asked is another error than one that cannot."""
    with pytest.raises(ProviderMismatch) as caught:
        await Model("anthropic:x", only=["anthropic"]).answer(
            question(options={"model": "openai:y"}), "s-1"
        )

    assert (caught.value.session_id, caught.value.expected, caught.value.actual) == (
        "s-1",
        "anthropic",
        "openai",
    )


async def test_its_own_models_may_be_asked_always() -> None:
    """Whatever a question names; with none of its own, that is refused when it is made."""
    with pytest.raises(ProviderUnconfigured, match="openai"):
        await Model("openai:x", always=True).answer(
            question(options={"model": "anthropic:y"}), "s-1"
        )
    with pytest.raises(BadSetting, match="needs at least one model"):
        Model(always=True)


async def test_a_plain_question_does_not_choose_where_words_go() -> None:
    """A sandboxed program can ask, and must not reach the network by asking."""
    away = "openai:x@http://127.0.0.1:1/v1"
    with pytest.raises(NotAllowed, match="which a query may not choose"):
        await Model("openai:x").answer(question(options={"model": away}), "s-1")


@pytest.mark.parametrize("model", ["nonsense", 7, ["openai:x", 7]])
async def test_a_question_that_names_no_model_properly_stays_open(model: Any) -> None:
    with pytest.raises(BadSetting, match=r"is not a model name|is not text"):
        await Model("openai:x").answer(question(options={"model": model}), "s-1")


async def test_an_unknown_option_is_an_error_that_the_program_sees() -> None:
    local = Model("openai:x@http://127.0.0.1:1/v1")
    with pytest.raises(AnswerFailed) as caught:
        await local.answer(question(options={"temprature": 1}), "s-1")

    assert caught.value.kind == "bad_option"
    assert "temperature" in str(caught.value)
    await local.close()


UNSENDABLE = {
    "picture": [{"type": "image", "image": {"media_type": "image/png", "data": "%%%"}}],
    "sound": [{"type": "audio", "data": "…"}],
    "call": [{"type": "tool_use", "id": "1", "name": "x", "input": {}}],
    "words": ["just words"],
}


@pytest.mark.parametrize("message", ["words", {"content": "words"}])
async def test_what_is_no_message_is_an_error_that_the_program_sees(message: Any) -> None:
    local = Model("openai:x@http://127.0.0.1:1/v1")
    with pytest.raises(AnswerFailed, match="a message needs a role") as caught:
        await local.answer(question(messages=[message]), "s-1")

    assert caught.value.kind == "not_supported"
    await local.close()


@pytest.mark.parametrize("tool", ["search", {"name": "search"}, {"name": 7, "input_schema": {}}])
async def test_what_is_no_tool_is_an_error_that_the_program_sees(tool: Any) -> None:
    local = Model("openai:x@http://127.0.0.1:1/v1")
    with pytest.raises(AnswerFailed, match="a tool needs a name") as caught:
        await local.answer(question(options={"tools": [tool]}), "s-1")

    assert caught.value.kind == "bad_option"
    await local.close()


@pytest.mark.parametrize("content", UNSENDABLE.values(), ids=UNSENDABLE)
async def test_what_cannot_be_sent_is_an_error_that_the_program_sees(content: Any) -> None:
    local = Model("openai:x@http://127.0.0.1:1/v1")
    with pytest.raises(AnswerFailed) as caught:
        await local.answer(question(messages=[{"role": "user", "content": content}]), "s-1")

    assert caught.value.kind == "not_supported"
    await local.close()


async def test_nobody_there_is_said_after_all_attempts() -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    local = Model("openai:x@http://127.0.0.1:9/v1", sleep=sleep, random=never)
    with pytest.raises(AnswerFailed) as caught:
        await local.answer(question(), "s-1")

    assert caught.value.kind == "provider_unavailable"
    assert slept == [2.0, 4.0, 8.0]
    await local.close()


def test_it_shows_its_models_and_no_key() -> None:
    assert repr(Model("openai:x", "google:y", api_key="secret")) == "Model('openai:x', 'google:y')"
    assert home.Model is Model


def test_every_code_is_on_the_list_that_the_docs_are_written_from() -> None:
    from everhold.models.model_request import FINAL_FINISH_REASONS
    from everhold.models.provider_errors import ANSWER_ERROR_CODES, ERROR_KINDS

    raised = {code for _, code, _ in ERROR_KINDS} | {
        code for code, _ in FINAL_FINISH_REASONS.values()
    }
    assert set(ANSWER_ERROR_CODES) == raised | {"empty_response", "bad_option", "not_supported"}
