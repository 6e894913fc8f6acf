"""A command and a webhook tell, or say why not; secrets are in no word of theirs."""

import asyncio
import json
import os
import signal
import socket
import ssl
import sys
from pathlib import Path

import pytest

from everhold.core.query import Kind
from everhold.errors import BadSetting
from everhold.notify import ByCommand, ByWebhook, NotificationFailed, new_secret, verify, webhook

MESSAGE = json.dumps({"type": "question", "prompt": "Ja oder nein? ✓"}).encode()
ID = "s-1/q-0/1700000000000"
# and its key; for tests, and good for a hundred years
CERTIFICATE = Path(__file__).parent / "localhost.pem"


async def complaint(teller):
    with pytest.raises(NotificationFailed) as caught:
        await teller.tell(ID, MESSAGE, 1700000000.5)
    return caught.value


# Commands


@pytest.mark.process
async def test_a_command_reads_the_message(tmp_path):
    """On its standard input, byte by byte; what it prints is nobody's business."""
    await ByCommand(["sh", "-c", f"cat > {tmp_path}/got; echo hello"]).tell(ID, MESSAGE, 0.0)

    assert (tmp_path / "got").read_bytes() == MESSAGE


@pytest.mark.process
async def test_a_command_has_no_shell():
    """What would be several commands for one are words for the first."""
    await ByCommand("true ; false").tell(ID, MESSAGE, 0.0)
    assert "cannot be run" in str(await complaint(ByCommand("true;false")))


@pytest.mark.process
async def test_a_command_that_does_not_read_has_told(tmp_path):
    """A long message to one that closes its input is no failure."""
    await ByCommand("true").tell(ID, b"x" * 1_000_000, 0.0)


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "why"),
    [
        ("sh -c 'echo first; echo oh no >&2; exit 3'", "the command exited with 3: oh no"),
        ("sh -c 'exit 1'", "the command exited with 1"),
        ("sh -c 'kill -9 $$'", "the command was killed by SIGKILL"),
        ("/no/such/command --token=hush", "command cannot be run: No such file or directory"),
    ],
)
async def test_a_command_that_fails_says_why(words, why):
    assert str(await complaint(ByCommand(words))) == why


@pytest.mark.process
async def test_a_command_has_told_when_it_exits_though_what_it_started_goes_on(tmp_path):
    """Else it would be told again and again, by ever more processes."""
    script = f"sleep 600 & echo $! > {tmp_path}/pid; exit 0"
    try:
        await asyncio.wait_for(ByCommand(["sh", "-c", script]).tell(ID, b"x" * 1_000_000, 0.0), 60)
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)


@pytest.mark.process
async def test_of_a_command_that_complains_without_end_the_last_words_are_kept():
    flood = (
        "import sys; [sys.stderr.write('oh ' * 10000) for _ in range(1000)]; print('x' *"
        " 10**7); sys.exit('no')"
    )
    why = str(await complaint(ByCommand([sys.executable, "-c", flood])))
    assert (
        why.startswith("the command exited with 1: ") and why.endswith("oh no") and len(why) < 300
    )


@pytest.mark.process
async def test_a_command_that_is_stopped_leaves_nobody_behind(tmp_path):
    """Neither it nor what it started."""
    script = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
    telling = asyncio.create_task(ByCommand(["sh", "-c", script]).tell(ID, MESSAGE, 0.0))
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        await asyncio.sleep(0.01)
    telling.cancel()
    await asyncio.gather(telling, return_exceptions=True)

    alive = f"import os; os.kill({(tmp_path / 'pid').read_text()}, 0)"
    for _ in range(500):
        if (
            await (
                await asyncio.create_subprocess_exec(sys.executable, "-c", alive, stderr=-3)
            ).wait()
        ) != 0:
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it still runs")


# Webhooks


async def test_a_webhook_posts_the_message_signed(receiver):
    """With its id, to the address as it stands; whoever has the secret can tell that it is ours."""
    secret = new_secret()
    async with receiver.opened():
        await ByWebhook(f"{receiver.url}/in%20here/ä?for=you#part", secret=secret).tell(
            ID, MESSAGE, 1700000000.9
        )

    first, headers, body = receiver.got[0]
    assert first == "POST /in%20here/%C3%A4?for=you HTTP/1.1"
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == (ID, "1700000000")
    assert (headers["Content-Type"], headers["Host"]) == (
        "application/json",
        receiver.url.removeprefix("http://"),
    )
    assert body == MESSAGE
    assert verify(headers, body, secret, now=1700000000)["type"] == "question"


async def test_while_one_secret_replaces_another_both_sign(receiver):
    old, new = new_secret(), new_secret()
    async with receiver.opened():
        await ByWebhook(receiver.url, secret=[old, new]).tell(ID, MESSAGE, 1700000000.0)

    _, headers, body = receiver.got[0]
    for secret in (old, new):
        assert verify(headers, body, secret, now=1700000000)["type"] == "question"


async def test_a_webhook_without_a_secret_is_not_signed(receiver):
    async with receiver.opened():
        await ByWebhook(receiver.url).tell(ID, MESSAGE, 1.0)

    assert "webhook-signature" not in receiver.got[0][1]


@pytest.mark.parametrize(
    ("said", "why", "final", "after"),
    [
        (b"HTTP/1.1 500 Oh\r\n\r\n", "the response was 500", False, 0),
        (b"HTTP/1.0 503 Later\r\nRetry-After: 7\r\n\r\n", "the response was 503", False, 7),
        (
            b"HTTP/1.1 429 Slow\r\nretry-after: Tue, 1 Jan 2030\r\n\r\n",
            "the response was 429",
            False,
            0,
        ),
        (b"HTTP/1.1 410 Gone\r\n\r\n", "the response was 410", True, 0),
        (
            b"HTTP/1.1 302 There\r\nLocation: http://127.0.0.1:1/\r\n\r\n",
            "the response was 302; redirects are not followed",
            False,
            0,
        ),
        (b"220 smtp here\r\n\r\n", "the response is not HTTP", False, 0),
        (b"HTTP/1.1 no\r\n\r\n", "the response is not HTTP", False, 0),
        (b"", "the response is not HTTP", False, 0),
        (
            b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70000 + b"\r\n\r\n",
            "the response is not HTTP",
            False,
            0,
        ),
    ],
)
async def test_a_webhook_that_fails_says_why(receiver, said, why, final, after):
    receiver.says = [said]
    async with receiver.opened():
        found = await complaint(ByWebhook(f"{receiver.url}/hush"))

    assert (str(found), found.final, found.after) == (why, final, after)
    assert len(receiver.got) == 1


async def test_an_answer_may_come_after_a_word_that_it_comes(receiver):
    receiver.says = [
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 201 Created\r\nContent-Length: 9\r\n\r\nnot read"
    ]
    async with receiver.opened():
        await ByWebhook(receiver.url).tell(ID, MESSAGE, 1.0)
    assert len(receiver.got) == 1


async def test_nobody_there():
    """Nor is the address told: it may be a secret."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        teller = ByWebhook(f"http://127.0.0.1:{taken.getsockname()[1]}/hush")
        assert str(await complaint(teller)) == "the webhook is unreachable: Connection refused"


async def test_tls_to_one_that_has_none():
    async def serve(reader, writer):
        await reader.read(100)
        writer.write(b"no such thing here\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    found = str(
        await complaint(ByWebhook(f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/hush"))
    )
    server.close()
    assert found.startswith(("TLS failed: ", "the webhook is unreachable: "))


async def test_tls_to_one_whom_nobody_knows_and_to_one_whom_this_machine_trusts(
    receiver, monkeypatch
):
    """A certificate that nobody vouches for is refused, and nothing was sent."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    webhook._load_tls_context.cache_clear()
    async with receiver.opened(ssl=context):
        teller = ByWebhook(receiver.url.replace("http:", "https:"))
        assert str(await complaint(teller)) == "TLS failed: CERTIFICATE_VERIFY_FAILED"
        assert receiver.got == []

        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        webhook._load_tls_context.cache_clear()
        await teller.tell(ID, MESSAGE, 1.0)
        assert len(receiver.got) == 1
    webhook._load_tls_context.cache_clear()


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://host/hush", "http:// or https://"),
        ("file:///etc/hush", "http:// or https://"),
        ("hush", "http:// or https://"),
        ("http://", "http:// or https://"),
        ("http:///hush", "http:// or https://"),
        ("http://host:0/hush", "http:// or https://"),
        ("http://host:99999/hush", "http:// or https://"),
        ("http://host/hush now", "http:// or https://"),
        ("http://host/hush\r\nX-Evil: 1", "http:// or https://"),
        ("http://host/\x00hush", "http:// or https://"),
        ("http://[::1/hush", "http:// or https://"),
        ("https://ana:hush@host/", "should not contain a user or a password"),
    ],
)
def test_an_address_that_is_none_is_refused_and_not_repeated(url, why):
    with pytest.raises(BadSetting, match=why) as caught:
        ByWebhook(url)
    assert "hush" not in str(caught.value)


def test_a_secret_that_is_none_is_refused():
    with pytest.raises(BadSetting, match="24 to 64 bytes"):
        ByWebhook("http://host/", secret="hush")


# Names and filters


def test_a_name_is_the_same_for_the_same_and_tells_no_secret():
    one = ByWebhook("https://hooks.example.com/T0/hush")
    assert one.name == ByWebhook("https://hooks.example.com/T0/hush").name
    assert one.name != ByWebhook("https://hooks.example.com/T1/hush").name
    assert one.name.startswith("hooks-example-com-")
    assert "hush" not in repr(one) + one.name
    assert ByCommand("/usr/bin/notify-send hush").name.startswith("notify-send-")
    assert "hush" not in repr(ByCommand("notify-send hush"))


def test_what_a_teller_tells_of():
    teller = ByCommand("true", name="desk", kinds=["approval"], to="boss", timeout=3, max_age=60)
    assert (teller.name, teller.kinds, teller.to) == ("desk", (Kind.APPROVAL,), ("boss",))
    assert (teller.timeout, teller.max_age) == (3.0, 60.0)
    assert (ByCommand("true").kinds, ByCommand("true").to, ByCommand("true").max_age) == (
        (),
        (),
        86400.0,
    )


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"name": "two words"}, "letters, digits"),
        ({"name": ""}, "letters, digits"),
        ({"name": "a/b"}, "letters, digits"),
        ({"kinds": ["approval", "timer"]}, "'timer' is not one of"),
        ({"kinds": "everything"}, "'everything' is not one of"),
        ({"timeout": 0}, "must be a number > 0, got 0"),
        ({"max_age": -1}, "must be a number > 0, got -1"),
    ],
)
def test_a_teller_that_cannot_be_is_refused(wrong, why):
    with pytest.raises(BadSetting, match=why):
        ByCommand("true", **wrong)


@pytest.mark.parametrize("command", ["", [], [""], "'"])
def test_a_command_without_words_is_refused(command):
    with pytest.raises(BadSetting):
        ByCommand(command)
