"""From a question to a receiver that hangs, breaks, hangs up and at last takes it, over a real
socket.
"""

import asyncio

from standardwebhooks import Webhook

import everhold
from everhold.notify import ByWebhook, new_secret, verify
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore


@everhold.program
async def asking(ctx: everhold.Context) -> bool:
    return await ctx.approval("Really?", to="boss")


async def test_a_receiver_in_trouble_gets_it_in_the_end_and_can_tell_that_it_is_the_same(receiver):
    """A try that hangs, one that is refused, one that is cut off; each is signed, and all have one
    id.
    """
    secret = new_secret()
    receiver.says = [None, b"HTTP/1.1 500 Oh\r\n\r\n", b"", b"HTTP/1.1 200 OK\r\n\r\n"]
    async with receiver.opened():
        teller = ByWebhook(f"{receiver.url}/asked", secret=secret, name="desk", timeout=0.5)
        async with Runtime(MemoryStore(), tell=[teller]) as runtime:
            status = await runtime.start(asking())
            entry, errors = None, set()
            async with asyncio.timeout(60):
                while entry is None or entry.state != "told":
                    await asyncio.sleep(0.005)
                    for entry in await runtime.notifications.list():
                        errors.add(entry.error)
            messages = [verify(headers, body, secret) for _, headers, body in receiver.got]
            theirs = [
                Webhook(secret).verify(body, dict(headers)) for _, headers, body in receiver.got
            ]
            assert theirs == messages

            assert [headers["webhook-id"] for _, headers, _ in receiver.got] == [
                messages[0]["id"]
            ] * len(messages)
            assert messages == [messages[0]] * len(messages)
            assert len(messages) >= 4  # a machine under load may need more
            assert not [error for error in errors if receiver.url in error or secret in error]
            answered = await runtime.answer(
                messages[0]["session_id"], True, query_id=messages[0]["query_id"]
            )
            assert (answered.session_id, answered.result) == (status.session_id, True)
