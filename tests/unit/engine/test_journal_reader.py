"""The one reader of stored journals."""

from everhold.core.journal import Delivery, DeliveryNotes
from everhold.core.query import Query, QueryAnswer
from everhold.core.status import Raised, Returned
from everhold.engine.journal_reader import (
    JournalReader,
    find_last_handed,
    index_queries,
    read_outcome,
    read_steps,
)

ASKS = Delivery(0, 10.0, [], [Query(0, "0:0", "red?"), Query(1, "0:1", "blue?")])
FAILS = Delivery(
    1, 11.0, [QueryAnswer(0, "yes")], [], DeliveryNotes(outcome=Raised("no", "ValueError"))
)
RETRIES = Delivery(2, 12.0, [], [Query(1, "0:1", "really blue?")], DeliveryNotes(retry=True))
ENDS = Delivery(3, 13.0, [QueryAnswer(1, "no")], [], DeliveryNotes(outcome=Returned("green")))
JOURNAL = [ASKS, FAILS, RETRIES, ENDS]


def prompts(step):
    return [(one.query and one.query.prompt, one.answer.value) for one in step.answered]


def test_an_answer_stands_beside_its_query():
    steps = list(read_steps([ASKS, FAILS]))
    assert [prompts(step) for step in steps] == [[], [("red?", "yes")]]
    asked = steps[1].answered[0].asked
    assert (asked.n, asked.at) == (0, 10.0)


def test_an_answer_after_a_retry_stands_beside_the_query_as_it_was_asked_again():
    last = list(read_steps(JOURNAL))[-1]
    assert prompts(last) == [("really blue?", "no")]
    assert last.answered[0].asked.n == 2


def test_a_step_without_notes_has_empty_ones():
    assert next(read_steps([ASKS])).notes == DeliveryNotes()


def test_a_reader_continues_where_it_stopped():
    reader = JournalReader()
    assert [step.n for step in reader.read(JOURNAL[:2])] == [0, 1]
    assert [step.n for step in reader.read(JOURNAL)] == [2, 3]
    assert reader.next_n == 4


def test_a_reader_knows_the_open_queries_after_the_last_step_it_read():
    reader = JournalReader()
    opened = [list(reader.opened) for _ in reader.read(JOURNAL)]
    assert opened == [[0, 1], [], [1], []]


def test_an_answer_to_a_query_asked_before_the_reader_began_has_no_query():
    steps = list(JournalReader(next_n=1).read(JOURNAL))
    assert [prompts(step) for step in steps] == [[(None, "yes")], [], [("really blue?", "no")]]


def test_the_index_has_every_query_as_it_was_asked_last():
    assert {q: query.prompt for q, query in index_queries(JOURNAL).items()} == {
        0: "red?",
        1: "really blue?",
    }


def test_the_outcome_is_that_of_the_last_delivery():
    assert read_outcome(JOURNAL) == Returned("green")
    assert read_outcome(JOURNAL[:3]) is None
    assert read_outcome([]) is None


def test_a_retry_is_not_the_delivery_that_was_handed_over_last():
    assert find_last_handed(JOURNAL[:3]) == 1
    assert find_last_handed(JOURNAL) == 3
    assert find_last_handed([RETRIES]) == 0
