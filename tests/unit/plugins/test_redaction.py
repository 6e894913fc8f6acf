"""What looks like a secret is found in any text, and in a moment."""

from time import process_time

import pytest

from everhold.plugins.redaction import REDACTED, Redaction

KEY = "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIabc+/=\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"a {KEY} b {KEY} c", f"a {REDACTED} b {REDACTED} c"),
        (f"-----BEGIN PRIVATE KEY-----\ncut off {KEY} z", f"{REDACTED}{REDACTED} z"),
        ("it begins with -----BEGIN PRIVATE KEY-----", "it begins with -----BEGIN PRIVATE KEY-----"),
        ("my-sk-proj-abcDEF0123456789xyz-x y", f"my-{REDACTED}-x y"),
        ("a eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM b", f"a {REDACTED} b"),
    ],
)
def test_what_looks_like_a_secret_is_replaced(text, kept):
    assert Redaction().before_store(text) == kept


@pytest.mark.parametrize(
    "unit", ["-----BEGIN PRIVATE KEY-----", "-----BEGIN A", "sk-", "sk-a_", "eyJ-", "bearer ", "://a:"]
)
def test_a_text_that_only_begins_like_secrets_is_read_in_a_moment(unit):
    """However long it is."""
    began = process_time()
    Redaction().before_store(unit * (300_000 // len(unit)))
    assert process_time() - began < 10
