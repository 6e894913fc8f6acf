"""The error page, its tree and its rows on the wire stay together."""

import inspect
import re

import pytest

from everhold import errors, wire
from everhold.core.query import Blocked, Query
from everhold.core.status import OpenQuery

#: Without those of other modules, which are there if another test has imported them.
LEAVES = [leaf for leaf in errors.leaves() if leaf.__module__ == "everhold.errors"]
BRANCHES = [errors.UsageError, errors.StateError, errors.StoreError, errors.ProgramError]

#: A fact for each parameter of a leaf's constructor, by its name.
FACTS = {
    "query_ids": ["q-0", "q-1", "q-2", "q-3", "q-4", "q-5"],
    "queries": ("one",),
    "tasks": ["0", "0.1"],
    "step": 3,
    "revision": 7,
    "deaths": 3,
    "size": 9_000_000,
    "largest": 8_000_000,
    "limit": 1_000_000,
    "seconds": 2.0,
    "found": 2,
    "known": 1,
    "wanted": 1,
    "until": None,
    "what": "only a person may answer this",
    "message": "the model is overloaded",
    "reason": "fields must be an object",
}


def made(leaf):
    """The leaf as it is raised, from sample facts."""
    names = inspect.signature(leaf).parameters
    return leaf(**{name: FACTS.get(name, f"<{name}>") for name in names})


def by_name(cls):
    return cls.__name__


def test_codes_are_unique():
    """No two leaves share a wire name, and none is without one."""
    codes = [leaf.code for leaf in LEAVES]

    assert len(set(codes)) == len(codes)
    assert "" not in codes


def test_a_code_is_the_name_in_snake_case():
    """Who knows the class knows the code."""
    codes = {leaf: re.sub(r"(?<!^)(?=[A-Z])", "_", leaf.__name__).lower() for leaf in LEAVES}
    assert [leaf.__name__ for leaf, code in codes.items() if leaf.code != code] == []


@pytest.mark.parametrize("branch", [errors.EverholdError, *BRANCHES], ids=by_name)
def test_branches_are_not_raised(branch):
    """A branch of the tree refuses to be an error by itself."""
    with pytest.raises(TypeError, match="raise one of its leaves"):
        branch("something")


def test_the_first_split_is_whose_move_it_is():
    """There are four branches, and every leaf hangs directly from one."""
    assert errors.EverholdError.__subclasses__() == BRANCHES
    assert all(leaf.__base__ in BRANCHES for leaf in LEAVES)


def test_the_page_lists_every_error():
    """The tree in the module docstring is complete."""
    names = [cls.__name__ for cls in (*BRANCHES, *LEAVES)]
    assert [name for name in names if not re.search(rf"\b{name}\b", errors.__doc__)] == []


def test_the_page_lists_nothing_else():
    """Every name in the tree is a class of this module."""
    tree = errors.__doc__.split("Rules")[0]
    drawn = re.findall(r"\b[A-Z][a-z]+(?:[A-Z][a-z]*)+\b", tree)

    assert [name for name in drawn if not hasattr(errors, name)] == []


def test_every_leaf_has_a_row_on_the_wire():
    """Each leaf falls under exactly one branch of the wire's table, and no error exits with 0."""
    for leaf in LEAVES:
        assert (
            sum(issubclass(leaf, branch) for branch in BRANCHES if branch in wire.ERROR_ROWS) == 1
        ), leaf
        assert 200 <= wire.http_status(made(leaf)) < 600, leaf
        assert wire.exit_code(made(leaf)) in set(wire.ExitCode) - {wire.ExitCode.OK}, leaf


def test_the_wire_knows_no_other_errors():
    """A row of the wire's table is a branch or a leaf of the page."""
    assert set(wire.ERROR_ROWS) <= {*BRANCHES, *LEAVES}


def test_every_leaf_writes_its_own_sentence():
    """A leaf takes facts and says something of them on one line."""
    for leaf in LEAVES:
        error = made(leaf)
        assert len(str(error)) > 10, leaf
        assert "\n" not in str(error), leaf
        assert wire.error_json(error)["error"] == str(error), leaf
        assert error.hint == error.hint.strip(), leaf


@pytest.mark.parametrize(
    ("short", "long"),
    [
        (errors.UnknownSession("s-1"), errors.UnknownSession("s-1", "app.db")),
        (errors.UnknownProgram("p"), errors.UnknownProgram("p", "no such file", "look again")),
        (errors.KeyConflict("k", "s-1"), errors.KeyConflict("k", "s-1", "arguments")),
        (errors.Cancelled("s-1", ""), errors.Cancelled("s-1", "enough")),
        (errors.Waiting("s-1", ("q",)), errors.Waiting("s-1", ("q", "r"), more="a timer at noon")),
        (
            errors.ManyOpenQueries("s-1", ["q-0", "q-1"]),
            errors.ManyOpenQueries("s-1", [f"q-{n}" for n in range(9)]),
        ),
        (errors.Stuck([]), errors.Stuck(["0", "0.1"])),
    ],
    ids=lambda error: error.code,
)
def test_facts_that_may_be_missing_leave_no_hole(short, long):
    """A fact left out shortens the sentence and leaves no stray punctuation."""
    assert len(str(short)) < len(str(long)) or isinstance(short, errors.Stuck)
    assert not re.search(r": $|; $| {2}|\(\)", str(short))


def test_a_hint_may_depend_on_the_facts():
    """A hint names the very command or step that helps."""
    assert errors.MissingExtra("mcp", "the MCP front").hint == "pip install 'everhold[mcp]'"
    diverged = errors.Diverged(3, "an approval", "a timer")
    assert "fork it at step 2" in diverged.hint
    diverged.tell_fork("batch 1")
    assert diverged.hint.endswith(": everhold fork 'batch 1' --at 2")
    assert errors.StoreUnavailable("x", "no such host", "Start it.").hint == "Start it."
    assert "everhold info" in errors.StoreUnavailable("x", "no such host").hint
    assert errors.BadStep("s-1", 0, "it has not begun", "Start it.").hint == "Start it."
    assert "everhold show" in errors.BadStep("s-1", 9, "it has steps 0 to 3").hint


def test_a_budget_error_has_its_prefix():
    """Hosts look for this prefix."""
    assert str(errors.BudgetExceeded("max_tokens (5) reached: 5 used")).startswith(
        "budget_exceeded: max_tokens"
    )


class Mute(Exception):
    def __str__(self):
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("as it is"), "as it is"),
        (ValueError("half \ud800"), "half \\ud800"),
        (Mute(), "its message cannot be read (RuntimeError)"),
        (
            BaseExceptionGroup("two", [KeyboardInterrupt(), ExceptionGroup("one", [Mute()])]),
            "two (2 sub-exceptions): KeyboardInterrupt;"
            " ExceptionGroup: one (1 sub-exception): Mute: its message cannot be read"
            " (RuntimeError)",
        ),
    ],
    ids=["plain", "half a character", "mute", "group"],
)
def test_whatever_an_error_is_its_words_can_be_stored(error, said):
    assert errors.words_of(error) == said


def test_the_hint_of_an_ended_session_depends_on_its_state():
    """A failed session can be retried; a completed one cannot."""
    assert "everhold retry s-1" in errors.SessionEnded("s-1", "failed", "answered").hint
    assert "fork" in errors.SessionEnded("s-1", "completed", "answered").hint


def test_the_hint_of_a_foreign_call_depends_on_its_reason():
    """Without a reason the message recommends ctx.call; with one, the hint names where it works."""
    assert "use ctx.call" in str(errors.ForeignCall("open()"))
    refused = errors.ForeignCall("open()", "is not allowed here")
    assert str(refused).startswith("open() is not allowed here")
    assert refused.hint.startswith("Use it in a tool")


def test_an_agent_of_another_provider_than_its_conversation_may_be_allowed():
    """A provider that the runtime does not allow has another sentence and another hint."""
    remembered = errors.ProviderMismatch("s-1", "openai", "anthropic", remembered=True)
    assert str(remembered) == (
        "session 's-1' was held with openai, but its agent now names anthropic"
    )
    assert "session.configure()" in remembered.hint
    limited = errors.ProviderMismatch("", "openai", "anthropic")
    assert str(limited) == "the agent uses a model of anthropic; only openai is allowed here"
    assert limited.hint == errors.ProviderMismatch.hint


@pytest.mark.parametrize(
    ("bare", "with_fix"),
    [
        (
            errors.TurnWaiting("s-1", "q-2", "llm"),
            errors.TurnWaiting("s-1", "q-2", "llm", fix="Set the key."),
        ),
        (errors.AnswerFailed("no key"), errors.AnswerFailed("no key", fix="Set the key.")),
    ],
    ids=["turn_waiting", "answer_failed"],
)
def test_a_fix_comes_before_what_helps_always(bare, with_fix):
    assert bare.hint == type(bare).hint
    assert with_fix.hint == f"Set the key. {type(bare).hint}"


def test_an_error_of_waiting_has_the_reason_of_the_first_blocked_question():
    """Its message has all the reasons, its hint the first."""
    key = Blocked("missing_key", "no key", "Set the key.")
    model = Blocked("unknown_model", "no model", "Name another.")
    asked = Query(0, "0:0")
    queries = tuple(OpenQuery("s-1", asked, 0.0, why) for why in (None, key, model))
    waiting = errors.Waiting("s-1", queries)
    assert str(waiting) == "session 's-1' is waiting: 3 questions open; no key; no model"
    assert waiting.blocked == key
    assert waiting.hint == "Set the key. Then resume the session: everhold run -c s-1"
    keyed = errors.Waiting("s-1", queries, key="k")
    assert keyed.hint == "Set the key. Then repeat the call with the same key."

    unhinted = errors.Waiting("s-1", (OpenQuery("s-1", asked, 0.0, Blocked("x", "no")),))
    assert unhinted.hint == (
        "Answer it with `everhold answer s-1 --query q-0`, then resume the session: everhold run -c"
        " s-1"
    )
    assert errors.Waiting("s-1", queries[:1]).blocked is None


def test_an_error_names_the_session_as_its_caller_did():
    """Sentence and hint say what was typed; the id can still be read."""
    failed = errors.Failed("s-1", "boom", "Then: everhold retry s-1")
    errors.name_session(failed, "batch 1")
    assert str(failed) == "session 'batch 1' failed: boom"
    assert failed.hint == "Then: everhold retry 'batch 1'"
    assert failed.session_id == "s-1"
    waiting = errors.Waiting("s-1", ("q",))
    errors.name_session(waiting, "batch 1")
    assert waiting.name == "batch 1"


@pytest.mark.parametrize(
    "error",
    [
        errors.Failed("batch-1", "boom"),
        errors.KeyConflict("batch-1", "s-1"),
        errors.BadSetting("limit", "it must be positive"),
        errors.Failed("", "boom"),
    ],
    ids=["already said", "about the key itself", "no session", "no id"],
)
def test_some_errors_keep_their_words_when_a_session_is_named(error):
    """There is no id to replace, or the error says what the key and the session have to do."""
    before = str(error)
    errors.name_session(error, "batch-1")
    assert str(error) == before


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({}, "card 'c-1' already exists, and cards are immutable"),
        ({"key": "score"}, "card 'c-1' already has a 'score', and cards are immutable"),
        ({"samples": True}, "card 'c-1' has samples already; samples are write-once"),
    ],
)
def test_a_card_that_exists_says_what_of_it_exists(facts, words):
    """The card, one of its keys, or its samples."""
    assert str(errors.CardImmutable("c-1", **facts)) == words
