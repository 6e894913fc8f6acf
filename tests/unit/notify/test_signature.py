"""Signatures are those of the Standard Webhooks specification, and nothing else is believed."""

import base64
from datetime import UTC, datetime

import pytest
from standardwebhooks.webhooks import Webhook, WebhookVerificationError

from everhold.errors import BadSetting, BadSignature
from everhold.notify import new_secret, sign, signature, verify

#: The vector that the specification's own libraries are tested with.
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
ID, AT, BODY = "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}'
SIGNATURE = "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def headers(**changed):
    named = {"id": ID, "timestamp": str(AT), "signature": SIGNATURE, **changed}
    return {f"Webhook-{name.title()}": value for name, value in named.items() if value is not None}


def test_a_signature_is_that_of_the_specification():
    assert sign(SECRET, ID, AT, BODY) == SIGNATURE


def test_a_signed_message_is_read():
    """Whatever the case of the headers, and among signatures with other secrets."""
    assert verify(headers(), BODY, SECRET, now=AT + 299) == {"test": 2432232314}
    assert (
        verify(headers(signature=f"v1,AAAA v2,x {SIGNATURE}"), BODY, SECRET, now=AT - 299)["test"]
        == 2432232314
    )


def test_the_public_library_believes_what_we_sign_and_we_what_it_signs():
    """`standardwebhooks` of PyPI, as receivers use it; while one secret replaces another, either is
    enough.
    """
    new, old, body = new_secret(), new_secret(), '{"kind": "asked", "prompt": "Büro?"}'
    now = datetime.now(UTC)
    sent = signature.build_headers([new, old], "msg_1", int(now.timestamp()), body.encode())
    for secret in (new, old):
        # clock: a time stamp, judged with a tolerance of five minutes
        assert Webhook(secret).verify(body, sent) == {"kind": "asked", "prompt": "Büro?"}
    with pytest.raises(WebhookVerificationError):
        Webhook(new_secret()).verify(body, sent)
    with pytest.raises(WebhookVerificationError):
        Webhook(new).verify(body + " ", sent)
    theirs = {"webhook-id": "msg_2", "webhook-timestamp": str(int(now.timestamp()))}
    theirs["webhook-signature"] = Webhook(new).sign("msg_2", now, body)
    # clock: a time stamp, judged with a tolerance of five minutes
    assert verify(theirs, body.encode(), new) == {"kind": "asked", "prompt": "Büro?"}


@pytest.mark.parametrize(
    ("changed", "body", "now", "why"),
    [
        ({}, BODY + b" ", AT, "no signature matches"),
        ({"id": "msg_other"}, BODY, AT, "no signature matches"),
        ({"signature": ""}, BODY, AT, "no signature matches"),
        ({"signature": SIGNATURE.removeprefix("v1,")}, BODY, AT, "no signature matches"),
        ({"signature": "v1,é"}, BODY, AT, "no signature matches"),
        ({"timestamp": str(AT + 1)}, BODY, AT, "no signature matches"),
        ({}, BODY, AT + 301, "timestamp differs"),
        ({}, BODY, AT - 301, "timestamp differs"),
        ({"timestamp": "soon"}, BODY, AT, "timestamp differs"),
        ({"timestamp": "-5"}, BODY, AT, "timestamp differs"),
        ({"signature": None}, BODY, AT, "no header 'webhook-signature'"),
        ({"id": None}, BODY, AT, "no header 'webhook-id'"),
    ],
)
def test_anything_else_is_not_believed(changed, body, now, why):
    with pytest.raises(BadSignature, match=why):
        verify(headers(**changed), body, SECRET, now=now)


def test_what_is_signed_and_no_message_is_refused():
    body = b"[1]"
    given = headers(signature=sign(SECRET, ID, AT, body))
    with pytest.raises(BadSignature, match="not a JSON object"):
        verify(given, body, SECRET, now=AT)


def test_an_old_message_is_old_by_the_clock_of_this_machine():
    with pytest.raises(BadSignature, match="timestamp differs"):
        verify(headers(), BODY, SECRET)


def test_a_new_secret_is_one_and_another_each_time():
    one, other = new_secret(), new_secret()
    assert one != other
    assert one.startswith("whsec_")
    assert len(base64.b64decode(one.removeprefix("whsec_"))) == 32
    assert sign(one, ID, AT, BODY) != sign(other, ID, AT, BODY)


@pytest.mark.parametrize(
    "wrong",
    ["", "whsec_", "short", "whsec_c2hvcnQ=", "not base64 at all, but long enough", "ü" * 40],
)
def test_a_secret_that_is_none_is_refused_and_not_repeated(wrong):
    with pytest.raises(BadSetting, match="24 to 64 bytes") as caught:
        sign(wrong, ID, AT, BODY)
    assert not wrong or wrong == "whsec_" or wrong not in str(caught.value)
