"""The journal: deliveries, what is open after them, and how a replay is compared with them."""

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from everhold.core.budget import Budget
from everhold.core.journal import (
    AskedQuery,
    Delivery,
    DeliveryNotes,
    ExpectedReply,
    ProgramReply,
    Restart,
    checksum_delivery,
    compare_reply,
    decode_deliveries,
    decode_delivery,
    describe_outcome,
    describe_query,
    encode_delivery,
    find_first_open_delivery,
    find_next_noted,
    find_open_queries,
    fold_delivery,
    get_new_budget,
    get_restart,
    is_asking,
    pair_replies,
    split_at_last_restart,
)
from everhold.core.metrics import Metrics
from everhold.core.progress import LogEntry, Progress
from everhold.core.query import Kind, Query, QueryAnswer, Rerun, Usage
from everhold.core.status import Raised, Returned, Stopped
from everhold.errors import Diverged

TEXT = st.text(st.characters(codec="utf-8"), max_size=5)


def ask(q, **facts):
    return Query(q, f"0:{q}", f"question {q}", **facts)


def given(n, answers=(), asked=(), **notes):
    return Delivery(
        n,
        float(n),
        [QueryAnswer(q, "a") for q in answers],
        [ask(q) for q in asked],
        DeliveryNotes(**notes) if notes else None,
    )


def reply(*asked, outcome=None):
    return ProgramReply(list(asked), [], None, outcome, None)


def expected(*asked, outcome=None, n=4):
    notes = None if outcome is None else DeliveryNotes(outcome=outcome)
    delivery = Delivery(n, 1.0, [], list(asked), notes)
    return ExpectedReply(delivery, delivery)


def divergence(recorded, said, known=0, strict=False):
    with pytest.raises(Diverged) as refused:
        compare_reply(recorded, said, known, strict)
    return refused.value


# ---- records


WHOLE = Delivery(
    7,
    1234.5,
    [
        QueryAnswer(1, {"a": [1, None]}, usage=Usage(3, 4), by={"front": "cli"}),
        QueryAnswer(2, error={"code": "c", "message": "m"}),
    ],
    [
        ask(3, kind=Kind.TOOL, args={"x": 1.5}, rerun=Rerun.NEVER, schema={"type": "string"}),
        ask(4, default=None),
    ],
    DeliveryNotes(
        fired=True,
        cancel="enough",
        retry=True,
        withdrawn=[0],
        log=[LogEntry(1, "info", "ctx.log", "hello")],
        progress=Progress(1, 2, "half"),
        record={"score": 1},
        versions={"prompt": 2},
        outcome=Raised("no", "ValueError", "Trace", 7),
    ),
)


@pytest.mark.parametrize(
    "delivery", [WHOLE, Delivery(0, 0.0), given(1, [0]), given(2, asked=[1]), given(3, fired=True)]
)
def test_a_delivery_is_read_back_as_it_was_written(delivery):
    """Three texts hold all of a delivery but its number and time, as bytes or as text."""
    texts = encode_delivery(delivery)

    assert decode_delivery(delivery.n, delivery.at, *texts) == delivery
    assert (
        decode_delivery(delivery.n, delivery.at, *(text and text.decode() for text in texts))
        == delivery
    )


@pytest.mark.parametrize("outcome", [Returned([1]), Raised("no"), Stopped("enough")])
def test_an_outcome_is_read_back_as_what_it_was(outcome):
    """An end is stored with its tag."""
    delivery = given(1, outcome=outcome)

    assert decode_delivery(1, 1.0, *encode_delivery(delivery)).notes.outcome == outcome


def test_an_empty_delivery_is_short():
    """Nothing said is nearly nothing stored."""
    assert encode_delivery(Delivery(0, 0.0)) == (b"[]", b"[]", None)


def test_a_seal_sees_every_part():
    """A change in any part of a stored delivery breaks its seal."""
    row = (1, 2.0, b"[1]", b"[2]", b"{}")
    others = [
        (2, *row[1:]),
        (1, 2.5, *row[2:]),
        (1, 2.0, b"[3]", *row[3:]),
        (*row[:3], b"[3]", b"{}"),
        (*row[:4], None),
    ]

    assert checksum_delivery(*row) == checksum_delivery(1, 2, b"[1]", b"[2]", b"{}")
    assert len({checksum_delivery(*one) for one in [row, *others]}) == 6


# ---- what is open


def test_asked_and_answered():
    """What was asked is open until it is answered, in any order."""
    journal = [given(0, asked=[0, 1, 2]), given(1, [1], [3])]

    assert list(find_open_queries(journal)) == [0, 2, 3]
    assert find_open_queries(journal)[3] == AskedQuery(ask(3), 1, 1.0)


def test_withdrawn():
    """What was withdrawn is no longer open, also if it was asked in the delivery before."""
    assert list(
        find_open_queries([given(0, asked=[0, 1]), given(1, [0], [2], withdrawn=[1, 9])])
    ) == [2]


@pytest.mark.parametrize("outcome", [Returned(), Raised("no"), Stopped()])
def test_an_end_closes_everything(outcome):
    """Nothing is open after the end."""
    assert find_open_queries([given(0, asked=[0, 1]), given(1, [0], outcome=outcome)]) == {}


def test_a_retry_opens_what_it_lists():
    """After a retry exactly what it lists is open, asked anew."""
    journal = [
        given(0, asked=[0, 1]),
        given(1, [0], outcome=Raised("no")),
        given(2, asked=[1, 2], retry=True),
    ]

    assert {q: entry.n for q, entry in find_open_queries(journal).items()} == {1: 2, 2: 2}


def test_where_reading_begins():
    """One reads from the delivery that asked the oldest open query; from nowhere if none is
    open.
    """
    journal = [given(0, asked=[0]), given(1, [0], [1, 2]), given(2, [1], [3])]

    assert find_first_open_delivery(find_open_queries(journal), 2) == 1
    assert find_first_open_delivery({}, 2) == 3


# ---- replay


def test_each_delivery_replies_for_itself():
    """Without retries a delivery is compared with its own reply."""
    journal = [given(0, asked=[0]), given(1, [0], fired=True)]

    assert list(pair_replies(journal)) == [ExpectedReply(one, one) for one in journal]
    assert list(pair_replies([])) == []


def test_the_last_retry_stands():
    """A delivery that failed is handed over once; the reply of its last retry counts."""
    journal = [
        given(0, asked=[0]),
        given(1, [0], outcome=Raised("no")),
        given(2, outcome=Raised("again"), retry=True),
        given(3, asked=[1], retry=True),
        given(4, [1], [2]),
    ]

    assert [(one.given.n, one.reply.n) for one in pair_replies(journal)] == [(0, 0), (1, 3), (4, 4)]


def test_bare_deliveries_end_where_there_is_more():
    """A stretch of nothing but answers and queries ends before notes, and before what a retry
    replaced.
    """
    plain, noted, retried = (
        given(0, asked=[0]),
        given(1, [0], fired=True),
        given(2, asked=[0], retry=True),
    )

    assert find_next_noted([], 0) == 0
    assert find_next_noted([plain, plain, noted, plain], 0) == 2
    assert find_next_noted([plain, plain, noted, plain], 2) == 2
    assert find_next_noted([plain, plain, noted, plain], 3) == 4
    assert find_next_noted([plain, plain, retried, plain], 0) == 1
    assert find_next_noted([retried, plain], 0) == 0


def test_a_journal_is_decoded_as_its_deliveries_are():
    """All rows at once come to the same as one by one, whatever follows in a row."""
    journal = [given(0, asked=[0, 1]), given(1, [0], fired=True), given(2, [1], [2])]
    rows = [(one.n, one.at, *encode_delivery(one), "more") for one in journal]

    assert decode_deliveries(rows) == journal == [decode_delivery(*row[:5]) for row in rows]
    assert decode_deliveries([]) == []


def test_the_same_again():
    """A program that asks what it asked before has changed nothing."""
    assert compare_reply(expected(ask(0), ask(1)), reply(ask(0), ask(1)), 0, True) == []
    assert compare_reply(expected(), reply(), 0, True) == []


def test_other_words_are_noted():
    """Where only the wording changed the recorded answer stands, and the query is named."""
    reworded = msgspec.structs.replace(ask(1), prompt="other words")

    assert compare_reply(expected(ask(0), ask(1)), reply(ask(0), reworded), 0, False) == [1]


def test_other_words_are_refused_when_strict():
    """A strict program may not change its words."""
    error = divergence(
        expected(ask(0)), reply(msgspec.structs.replace(ask(0), prompt="new")), strict=True
    )

    assert (error.step, error.asked) == (4, "llm 'new' at 0:0 with another wording (strict)")


def test_what_is_neither_shape_nor_wording_may_change():
    """Another addressee or expiry is not noted, even when strict."""
    assert compare_reply(expected(ask(0)), reply(ask(0, to="ada", expires_at=9.0)), 0, True) == []


@pytest.mark.parametrize(
    "change",
    [
        {"key": "0:9"},
        {"kind": Kind.INPUT},
        {"schema": {"type": "string"}},
        {"schema": {"type": "integer", "a": [1]}},
    ],
)
def test_another_shape_diverges(change):
    """Another key, kind or schema is another question."""
    recorded = ask(0, schema={"type": "integer"})

    error = divergence(expected(recorded), reply(msgspec.structs.replace(recorded, **change)))

    assert (error.step, error.recorded) == (4, describe_query(recorded))


def schema(**said):
    return {
        "type": "object",
        "properties": {"title": {"type": "string", "description": said["inner"]}},
        "anyOf": [{"description": said["inner"]}, True],
        "title": said["title"],
        "examples": [said["title"]],
    }


def test_what_a_schema_tells_people_is_wording():
    """Another title or description does not diverge; it is noted."""
    old, new = (
        ask(0, schema=schema(title="A", inner="a")),
        ask(0, schema=schema(title="B", inner="b")),
    )

    assert compare_reply(expected(old), reply(new), 0, False) == [0]


def test_a_property_may_be_called_title():
    """Names of properties are shape, whatever they are."""
    old, new = ({"properties": {name: {"type": "string"}}} for name in ("title", "description"))

    divergence(expected(ask(0, schema=old)), reply(ask(0, schema=new)))


@pytest.mark.parametrize(
    ("recorded", "asked", "was", "now"),
    [
        ([0, 1], [0], "llm 'question 1' at 0:1", "no question here"),
        ([0], [0, 1, 2], "no question here", "llm 'question 1' at 0:1 and 1 more"),
        ([0, 2], [1], "llm 'question 0' at 0:0", "llm 'question 1' at 0:1"),
    ],
)
def test_more_or_fewer_questions_diverge(recorded, asked, was, now):
    """The error names the first place where the two part."""
    error = divergence(expected(*map(ask, recorded)), reply(*map(ask, asked)))

    assert (error.recorded, error.asked) == (was, now)


def test_a_retry_lists_what_was_open_before():
    """What a retry repeats is not expected to be asked again by the program."""
    retried = ExpectedReply(given(1, [0], outcome=Raised("no")), given(2, asked=[1, 3], retry=True))

    assert compare_reply(retried, reply(ask(3)), 3, True) == []
    assert divergence(retried, reply(ask(1), ask(3)), 3).recorded == describe_query(ask(3))


@pytest.mark.parametrize("outcome", [Returned(1), Raised("no"), Stopped()])
def test_the_same_end(outcome):
    """An end of the same sort is the same end, whatever its value or words."""
    other = {Returned: Returned(2), Raised: Raised("other"), Stopped: Stopped("x")}[type(outcome)]

    assert compare_reply(expected(outcome=outcome), reply(outcome=other), 0, True) == []


@pytest.mark.parametrize(
    ("recorded", "said", "was", "now"),
    [
        (
            expected(ask(0)),
            reply(outcome=Returned(1)),
            "llm 'question 0' at 0:0",
            "the end, with a value",
        ),
        (
            expected(outcome=Raised("no")),
            reply(ask(0)),
            "the end, with an error: no",
            "llm 'question 0' at 0:0",
        ),
        (expected(outcome=Stopped()), reply(), "a cancel", "no question here"),
        (
            expected(outcome=Returned(1)),
            reply(outcome=Raised("no")),
            "the end, with a value",
            "the end, with an error: no",
        ),
    ],
)
def test_another_end_diverges(recorded, said, was, now):
    """Ending instead of asking, asking instead of ending, and ending otherwise are divergences."""
    error = divergence(recorded, said)

    assert (error.recorded, error.asked) == (was, now)


def test_no_end_in_words():
    """Nothing is not an end."""
    assert describe_outcome(None) == "no end"


@pytest.mark.parametrize(
    ("query", "line"),
    [
        (Query(0, "0:0", "Why?"), "llm 'Why?' at 0:0"),
        (Query(0, "0:1", kind=Kind.CALL, name="save"), "call 'save' at 0:1"),
        (Query(0, "0:0", messages=[{}, {}]), "llm '2 messages' at 0:0"),
        (Query(0, "0:0", kind=Kind.TIMER), "timer '' at 0:0"),
        (Query(0, "0:0", "x" * 60), f"llm '{'x' * 60}' at 0:0"),
        (Query(0, "0:0", "x" * 61), f"llm '{'x' * 57}…' at 0:0"),
        (
            Query(0, "0:0", "Why?", schema={"title": "Plan", "type": "object"}),
            "llm 'Why?' at 0:0 returning Plan",
        ),
        (
            Query(0, "0:0", "Why?", schema={"type": "integer"}),
            "llm 'Why?' at 0:0 returning integer",
        ),
        (Query(0, "0:0", "Why?", schema={"enum": [1]}), "llm 'Why?' at 0:0 returning a value"),
    ],
)
def test_a_query_in_one_line(query, line):
    """Kind, the first words, the place, and what it should return."""
    assert describe_query(query) == line


# ---- any life


class AnyLife(RuleBasedStateMachine):
    """A program that asks, is answered, withdraws, fails and is retried; the model keeps what is
    open by hand.
    """

    def __init__(self):
        super().__init__()
        self.begin()

    def begin(self):
        self.deliveries = []
        self.folded = {}
        self.open = {}  # q: the delivery it was last asked in
        self.asked = 0
        self.failed = None  # what was open when the program failed
        self.alive = True
        self.append([], 2)

    def append(self, answers, count, **notes):
        n = len(self.deliveries)
        fresh = [ask(self.asked + index) for index in range(count)]
        self.asked += count
        again = [ask(q) for q in notes.pop("again", [])]
        delivery = Delivery(
            n, float(n), answers, again + fresh, DeliveryNotes(**notes) if notes else None
        )
        self.deliveries.append(decode_delivery(n, float(n), *encode_delivery(delivery)))
        fold_delivery(self.folded, delivery)
        for answer in answers:
            del self.open[answer.q]
        for q in notes.get("withdrawn", []):
            del self.open[q]
        self.open |= {query.q: n for query in delivery.asked}

    def some(self, data, at_most):
        return (
            data.draw(st.lists(st.sampled_from(sorted(self.open)), max_size=at_most, unique=True))
            if self.open
            else []
        )

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), count=st.integers(0, 3), value=TEXT, fired=st.booleans())
    def go_on(self, data, count, value, fired):
        """Some answers and withdrawals, in any order, and new questions."""
        chosen = self.some(data, 4)
        cut = data.draw(st.integers(0, len(chosen)))
        notes = ({"withdrawn": chosen[cut:]} if chosen[cut:] else {}) | (
            {"fired": True} if fired else {}
        )
        self.append([QueryAnswer(q, value) for q in chosen[:cut]], count, **notes)

    @precondition(lambda self: self.alive)
    @rule(data=st.data(), outcome=st.sampled_from([Returned(1), Raised("no"), Stopped()]))
    def end(self, data, outcome):
        """What is asked in the breath of an end is not recorded."""
        self.append([QueryAnswer(q, "last") for q in self.some(data, 1)], 0, outcome=outcome)
        self.failed = dict(self.open) if isinstance(outcome, Raised) else None
        self.open, self.alive = {}, False

    @precondition(lambda self: not self.alive and self.failed is not None)
    @rule(count=st.integers(0, 2), fails_again=st.booleans())
    def retry(self, count, fails_again):
        if fails_again:
            self.append([], 0, retry=True, outcome=Raised("still no"))
        else:
            self.append([], count, retry=True, again=list(self.failed))
            self.alive = True

    @precondition(lambda self: not self.alive and self.failed is None)
    @rule()
    def another(self):
        """A session that is over stays over; look at another one."""
        self.teardown()
        self.begin()

    @invariant()
    def what_is_open(self):
        opened = find_open_queries(self.deliveries)
        assert {q: entry.n for q, entry in opened.items()} == self.open
        assert opened == self.folded

    @invariant()
    def the_rest_need_not_be_read(self):
        start = find_first_open_delivery(self.folded, len(self.deliveries) - 1)
        assert start == min(self.open.values(), default=len(self.deliveries))
        assert find_open_queries(self.deliveries[start:]) == self.folded

    def teardown(self):
        """The program that says the same again diverges nowhere; one that says more does, at the
        first step.
        """
        known = 0
        for one in pair_replies(self.deliveries):
            notes = one.reply.notes or DeliveryNotes()
            fresh = [query for query in one.reply.asked if query.q >= known]
            assert compare_reply(one, reply(*fresh, outcome=notes.outcome), known, True) == []
            with pytest.raises(Diverged):
                compare_reply(one, reply(*fresh, ask(10_000)), known, False)
            known += len(fresh)
        assert known == self.asked


TestAnyLife = AnyLife.TestCase
TestAnyLife.settings = settings(max_examples=50, stateful_step_count=25)


def test_what_a_schema_says_to_people_is_wording_and_its_values_are_shape():
    """A better description does not diverge; another constant does, whatever its keys are
    called.
    """
    told = Query(0, "0:0", schema={"properties": {"a": {"type": "string", "description": "old"}}})
    better = Query(0, "0:0", schema={"properties": {"a": {"type": "string", "description": "new"}}})
    other = Query(0, "0:0", schema={"const": {"title": "a"}})
    another = Query(0, "0:0", schema={"const": {"title": "b"}})
    step = Delivery(0, 0.0, asked=[told])

    assert compare_reply(
        ExpectedReply(step, step), ProgramReply([better], [], None, None, None), 0, False
    ) == [0]
    with pytest.raises(Diverged):
        step = Delivery(0, 0.0, asked=[other])
        compare_reply(
            ExpectedReply(step, step), ProgramReply([another], [], None, None, None), 0, False
        )


# Beginning again


def restarts(n):
    return given(n, [n - 1], restart=Restart(args={"day": n}, count=n, q=n, metrics=Metrics()))


def test_a_program_that_never_began_again_is_replayed_whole():
    journal = [given(0, asked=[0]), given(1, [0], cancel="enough")]
    assert [get_restart(one) for one in journal] == [None, None]
    assert split_at_last_restart(journal) == (None, journal)


def test_what_came_after_the_last_restart_is_replayed():
    journal = [
        given(0, asked=[0]),
        restarts(1),
        given(2, asked=[1]),
        restarts(3),
        given(4, asked=[3]),
    ]
    assert split_at_last_restart(journal) == (journal[3], journal[4:])
    assert split_at_last_restart(journal[:4]) == (journal[3], [])


AGAIN = ProgramReply(
    [],
    [],
    None,
    None,
    DeliveryNotes(restart=Restart(args={"day": 7}, count=1, q=1, metrics=Metrics())),
)


@pytest.mark.parametrize(
    "recorded", [restarts(1), given(1, [0], outcome=Raised("Spinning", "spinning"))]
)
def test_a_program_that_begins_again_as_it_did_has_not_diverged(recorded):
    """Whatever with; and one that never paused in between was ended for it, where replay goes on
    from the last time.
    """
    assert compare_reply(ExpectedReply(recorded, recorded), AGAIN, 0, True) == []


@pytest.mark.parametrize(
    ("recorded", "said", "words"),
    [
        (restarts(1), reply(ask(1)), ("a restart", "llm 'question 1' at 0:1")),
        (restarts(1), reply(outcome=Returned(5)), ("a restart", "the end, with a value")),
        (given(1, [0], [1]), AGAIN, ("llm 'question 1' at 0:1", "a restart")),
        (given(1, [0], outcome=Returned(5)), AGAIN, ("the end, with a value", "a restart")),
        (
            given(1, [0], outcome=Raised("no", "ValueError")),
            AGAIN,
            ("the end, with an error: no", "a restart"),
        ),
    ],
)
def test_beginning_again_and_anything_else_differ(recorded, said, words):
    told = divergence(ExpectedReply(recorded, recorded), said)
    assert (told.recorded, told.asked) == words


@pytest.mark.parametrize(
    ("kind", "to", "working", "asking"),
    [
        (Kind.LLM, None, (), True),
        (Kind.TOOL, None, (), True),
        (Kind.LLM, None, (0,), False),
        (Kind.LLM, None, (9,), False),  # as many marks as questions: one of them is its mark
        (Kind.LLM, "ada", (), False),
        (Kind.APPROVAL, None, (), False),
        (Kind.CALL, None, (), False),
    ],
)
def test_what_the_inbox_has_to_look_for(kind, to, working, asking):
    """Questions to the outside without a row in the inbox and without a mark."""
    opened = {0: AskedQuery(Query(0, "0:0", kind=kind, to=to), 0, 1.0)}

    assert is_asking(opened, working) is asking
    assert is_asking({**opened, 1: AskedQuery(Query(1, "0:1"), 0, 2.0)}, [0]) is True


def test_a_retried_delivery_gets_the_budget_of_its_last_retry():
    """So replay repeats it with the limits that let it pass."""
    raised = Budget(max_llm_calls=9)
    failed = Delivery(1, 0.0)
    retry = Delivery(2, 0.0, notes=DeliveryNotes(retry=True, budget=raised))
    changed = Delivery(3, 0.0, notes=DeliveryNotes(budget=Budget()))

    found = [step.budget for step in pair_replies([Delivery(0, 0.0), failed, retry, changed])]

    assert found == [None, raised, Budget()]
    assert get_new_budget(decode_delivery(2, 0.0, *encode_delivery(retry))) == raised
