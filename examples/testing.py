"""Testing a program: prepared answers, a person, three days in a moment, and crashes.

python examples/testing.py        (in pytest, the fixture `everhold` is the same as `Kit()`)
"""

import everhold
from everhold.testing import Kit, crash_everywhere


def book(city: str) -> str:
    raise OSError("this asks an airline")


@everhold.program
async def trip(ctx: everhold.Context, month: str) -> str:
    city = await ctx.llm(f"Where to go in {month}? One word.")
    if not await ctx.approval(f"Book {city}?", timeout=3 * 86400, default=False):
        return "stayed at home"
    return await ctx.call(book, city, rerun="never")


ANSWERS = {"Where to go*": "Rome", "Book*": True}


def test_it_is_booked_once_a_person_approved(kit: Kit) -> None:
    session = kit.start(trip(month="May"), answers=ANSWERS)
    session.assert_waits_for("Book Rome?")
    session.approve().assert_returned("booked Rome")


def test_nobody_answers(kit: Kit) -> None:
    session = kit.start(trip(month="May"), answers=ANSWERS)
    kit.skip(days=3, seconds=1)
    session.assert_returned("stayed at home")


for test in (test_it_is_booked_once_a_person_approved, test_nobody_answers):
    with Kit() as kit:  # when it ends, all that ran is replayed
        kit.calls(book=lambda city: f"booked {city}")
        test(kit)
    print(test.__name__.replace("_", " "), "· passed")

print(crash_everywhere(trip(month="May"), answers=ANSWERS, calls={"book": "booked Rome"}))
