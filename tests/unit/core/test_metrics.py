"""What a session has cost so far."""

import msgspec

from everhold.core.budget import Budget
from everhold.core.metrics import Metrics
from everhold.core.observer import Observer
from everhold.core.query import Kind, Query, QueryAnswer, Usage
from everhold.core.usage import TokenCost, TokenSource

HELLO = Query(0, "0:0", "hello", system="sys")  # 8 bytes, 2 + 1 tokens
WORLD = Query(1, "0:1", "world")  # 5 bytes, 2 tokens


def test_an_empty_session_has_cost_nothing_for_sure():
    """Before anything is asked all counters are 0 and all sources definite."""
    nothing = {"tokens": 0, "source": "definite"}

    assert Metrics().stats(7) == {
        "auto": {
            "elapsed_ms": 7,
            "llm_calls": 0,
            "pauses": 0,
            "rounds": 0,
            "total_prompt_chars": 0,
            "total_response_chars": 0,
            "prompt_tokens": nothing,
            "response_tokens": nothing,
            "total_tokens": nothing,
        },
        "custom": {},
    }


def test_a_pause_counts_once_and_its_queries_one_by_one():
    """A batch of two is one pause and two calls; its bytes include the system text."""
    metrics = Metrics()

    metrics.paused((HELLO, WORLD))

    assert (metrics.pauses, metrics.llm_calls, metrics.prompt_chars) == (1, 2, 13)


def test_an_open_prompt_is_estimated_at_once():
    """A budget sees the tokens of a prompt from the moment it is asked."""
    metrics = Metrics()

    metrics.paused((HELLO, WORLD))

    assert metrics.tokens == 5
    assert metrics.prompt.json() == {"tokens": 5, "source": "estimated"}


def test_usage_provided():
    """With usage for every answer nothing is estimated."""
    metrics = Metrics()
    metrics.paused((HELLO,))

    cost = metrics.answered(HELLO, QueryAnswer(0, "fine", usage=Usage(30, 12)))

    assert cost == TokenCost(30, TokenSource.PROVIDED, 12, TokenSource.PROVIDED)
    auto = metrics.stats(0)["auto"]
    assert auto["prompt_tokens"] == {"tokens": 30, "source": "provided"}
    assert auto["response_tokens"] == {"tokens": 12, "source": "provided"}
    assert auto["total_tokens"] == {"tokens": 42, "source": "provided"}


def test_usage_that_is_always_provided_stays_provided():
    """A second answer with usage adds to the first and keeps the source."""
    metrics = Metrics()
    metrics.paused((HELLO, HELLO))

    for _ in range(2):
        metrics.answered(HELLO, QueryAnswer(0, "fine", usage=Usage(30, 12)))

    assert metrics.prompt.json() == {"tokens": 60, "source": "provided"}
    assert metrics.response.json() == {"tokens": 24, "source": "provided"}


def test_usage_estimated():
    """Without usage both sides are estimated from the texts."""
    metrics = Metrics()
    metrics.paused((HELLO,))

    metrics.answered(HELLO, QueryAnswer(0, "x" * 42))

    auto = metrics.stats(0)["auto"]
    assert auto["total_response_chars"] == 42
    assert auto["prompt_tokens"] == {"tokens": 3, "source": "estimated"}
    assert auto["response_tokens"] == {"tokens": 11, "source": "estimated"}


def test_usage_mixed():
    """One estimate among provided numbers makes the sum an estimate, in either order."""
    for first, second in ((Usage(30, 12), None), (None, Usage(30, 12))):
        metrics = Metrics()
        metrics.paused((HELLO, HELLO))
        metrics.answered(HELLO, QueryAnswer(0, "fine", usage=first))
        metrics.answered(HELLO, QueryAnswer(0, "fine", usage=second))

        assert metrics.prompt.json() == {"tokens": 33, "source": "estimated"}
        assert metrics.response.json() == {"tokens": 13, "source": "estimated"}


def test_usage_for_the_prompt_only_leaves_the_response_estimated():
    """The total of a provided prompt and an estimated response is estimated."""
    metrics = Metrics()
    metrics.paused((WORLD,))
    metrics.answered(WORLD, QueryAnswer(1, "fine", usage=Usage(prompt_tokens=9)))

    auto = metrics.stats(0)["auto"]
    assert auto["prompt_tokens"]["source"] == "provided"
    assert auto["total_tokens"] == {"tokens": 10, "source": "estimated"}


def test_a_round_is_a_resume():
    """Each time the program goes on is one round."""
    metrics = Metrics()

    metrics.resumed()
    metrics.resumed()

    assert metrics.rounds == 2


def test_only_llm_queries_count():
    """A tool, an approval or a timer is neither a call nor a pause, and costs no tokens."""
    metrics = Metrics()
    tool = Query(0, "0:0", "look it up", kind=Kind.TOOL, name="search")

    metrics.paused((tool,))
    cost = metrics.answered(tool, QueryAnswer(0, "found", usage=Usage(5, 5)))

    assert (cost, metrics) == (None, Metrics())


def test_a_mixed_pause_counts_its_llm_queries():
    """A pause that asks a model and a person is one pause with one call."""
    metrics = Metrics()

    metrics.paused((Query(0, "0:0", "ok?", kind=Kind.APPROVAL), WORLD))

    assert (metrics.pauses, metrics.llm_calls, metrics.prompt_chars) == (1, 1, 5)


def test_a_default_after_expiry_costs_nothing_more():
    """Nobody answered: the prompt stays an estimate, and no response is counted."""
    metrics = Metrics()
    metrics.paused((WORLD,))

    cost = metrics.answered(WORLD, QueryAnswer(1, "never mind", expired=True))

    assert cost is None
    assert (metrics.tokens, metrics.response_chars) == (2, 0)


def test_partly_answered_counts_nothing_twice():
    """`answered` has counted the answer already when `partly_answered` follows."""
    metrics = Metrics()
    metrics.paused((HELLO, WORLD))
    metrics.answered(WORLD, QueryAnswer(1, "fine"))
    before = metrics.copy()

    metrics.partly_answered(WORLD, QueryAnswer(1, "fine"))

    assert metrics == before


def test_a_copy_stands_still():
    """What was copied does not move with the session."""
    metrics = Metrics()
    copy = metrics.copy()

    metrics.resumed()

    assert (copy.rounds, metrics.rounds) == (0, 1)


def test_stats_show_what_was_recorded_and_the_limits():
    """`custom` is what the program recorded; `budget` is there only if one was set."""
    stats = Metrics().stats(0, {"score": 0.5}, budget=Budget(max_llm_calls=3))

    assert stats["custom"] == {"score": 0.5}
    assert stats["auto"]["budget"] == {"max_llm_calls": 3}


def test_metrics_are_stored_as_a_short_array():
    """The stored form holds no names, so that every row stays small."""
    metrics = Metrics(1, 2, 3, 4, 5, 6, TokenSource.PROVIDED, 7, TokenSource.ESTIMATED, 8, 9)

    assert (
        msgspec.json.encode(metrics) == b'[1,2,3,4,5,6,"provided",7,"estimated",8,9,null,null,null]'
    )


def test_old_and_newer_rows_open():
    """A row with fewer fields gets defaults; fields from the future are skipped."""
    old = msgspec.json.decode(b"[1,2,3]", type=Metrics)
    newer = msgspec.json.decode(
        b'[1,2,3,0,0,0,"definite",0,"definite",0,0,null,null,null,"what?"]', type=Metrics
    )

    assert old == newer == Metrics(llm_calls=1, pauses=2, rounds=3)


def test_metrics_speak_the_language_of_observers():
    """Every event that Metrics takes is one that an Observer hears."""
    events = {name for name in vars(Observer) if not name.startswith("_")}

    assert {"paused", "answered", "partly_answered", "resumed"} == events & set(vars(Metrics))


def test_each_attempt_is_a_model_call():
    """A question that took three attempts asked a model three times."""
    metrics = Metrics()
    query = Query(0, "0:0", "hello")
    metrics.paused([query])
    metrics.answered(query, QueryAnswer(0, "hi", attempts=3))

    assert metrics.llm_calls == 3
