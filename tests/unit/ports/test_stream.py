"""Deltas reach whoever listens, and nobody waits for those who do not read."""

import asyncio
import threading

from everhold.ports.stream import Delta, DeltaKind, has_listeners, publish_delta, subscribe


def text(words: str) -> Delta:
    return Delta(DeltaKind.TEXT, words)


async def test_a_listener_hears_its_session_in_order_and_no_other():
    with subscribe("s-1") as one, subscribe("s-2") as other:
        publish_delta("s-1", "q-0", text("a"))
        publish_delta("s-1", "q-1", text("b"))
        publish_delta("s-2", "q-0", text("c"))
        assert [await anext(one), await anext(one)] == [("q-0", text("a")), ("q-1", text("b"))]
        assert one.take() is None
        assert await anext(other) == ("q-0", text("c"))


async def test_two_listeners_hear_the_same():
    with subscribe("s") as one, subscribe("s") as other:
        publish_delta("s", "q-0", text("a"))
        assert await anext(one) == await anext(other) == ("q-0", text("a"))


def test_nobody_listens_once_all_have_left():
    with subscribe("s"):
        with subscribe("s"):
            pass
        assert has_listeners("s")
    assert not has_listeners("s")
    publish_delta("s", "q-0", text("lost"))


def test_who_falls_behind_loses_the_oldest_and_is_told():
    with subscribe("s", limit=2) as slow:
        for words in "abcde":
            publish_delta("s", "q-0", text(words))
        read = [slow.take() for _ in range(4)]
    assert read == [
        ("", Delta(DeltaKind.MISSED, "3")),
        ("q-0", text("d")),
        ("q-0", text("e")),
        None,
    ]


async def test_a_listener_that_waits_is_woken_also_from_another_thread():
    with subscribe("s") as one:
        reading = asyncio.ensure_future(anext(one))
        await asyncio.sleep(0)
        thread = threading.Thread(target=publish_delta, args=("s", "q-0", text("far")))
        thread.start()
        assert await asyncio.wait_for(reading, 30) == ("q-0", text("far"))
        thread.join()


async def test_closing_ends_the_iteration_after_what_was_heard():
    one = subscribe("s").__enter__()
    publish_delta("s", "q-0", text("a"))
    one.close()
    one.close()
    assert [delta async for _, delta in one] == [text("a")]


async def test_closing_wakes_who_waits():
    one = subscribe("s").__enter__()

    async def read() -> list[Delta]:
        return [delta async for _, delta in one]

    reading = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    one.close()
    assert await asyncio.wait_for(reading, 30) == []


async def test_a_cancelled_reader_leaves_the_listener_usable():
    with subscribe("s") as one:
        reading = asyncio.ensure_future(anext(one))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        publish_delta("s", "q-0", text("a"))
        assert await anext(one) == ("q-0", text("a"))


def test_a_loop_that_is_gone_disturbs_no_publisher():
    one = subscribe("s").__enter__()

    async def wait_for_ever() -> None:
        asyncio.ensure_future(anext(one)).add_done_callback(lambda _: None)
        await asyncio.sleep(0)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(wait_for_ever())
    waiter = one._waiter
    for task in asyncio.all_tasks(loop):
        task.cancel()
    loop.run_until_complete(asyncio.sleep(0))
    one._waiter = loop.create_future()
    loop.close()
    assert waiter is not None
    publish_delta("s", "q-0", text("a"))
    assert one.take() == ("q-0", text("a"))
    one.close()
