"""What looks like a secret is found in any text, and in a moment."""

from time import process_time

import pytest

from everhold.plugins.redaction import REDACTED, SECRETS, Redaction, is_secret_name
from tests.failures import collect_failures

KEY = (
    "-----BEGIN RSA PRIVATE KEY-----\nProc-Type: 4,ENCRYPTED\n\nMIIabc+/=\n-----END RSA"
    " PRIVATE KEY-----"
)


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        (f"a {KEY} b {KEY} c", f"a {REDACTED} b {REDACTED} c"),
        (f"-----BEGIN PRIVATE KEY-----\ncut off {KEY} z", f"{REDACTED}{REDACTED} z"),
        (
            "it begins with -----BEGIN PRIVATE KEY-----",
            "it begins with -----BEGIN PRIVATE KEY-----",
        ),
        ("my-sk-proj-abcDEF0123456789xyz-x y", f"my-{REDACTED}-x y"),
        ("a eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM b", f"a {REDACTED} b"),
    ],
)
def test_what_looks_like_a_secret_is_replaced(text, kept):
    assert Redaction().before_store(text) == kept


R = REDACTED
RANDOM = "aB3dE5gH7jK9mN1pQ3sT5vW7yZ9bC1dE3fG"
#: For each row of the table: texts, and what is kept of them.
ROWS = {
    "private key": [(KEY, R)],
    "key of OpenAI, Anthropic or Stripe": [(f"sk-ant-api03-{RANDOM}", R), (f"rk_live_{RANDOM}", R)],
    "token of GitHub": [(f"ghp_{RANDOM}", R), (f"gho_{RANDOM}.", f"{R}.")],
    "fine-grained token of GitHub": [(f"github_pat_{RANDOM}_{RANDOM}", R)],
    "token of GitLab": [
        (f"glpat-{RANDOM[:20]}", R),
        (f"glrt-{RANDOM[:10]}-{RANDOM[:10]},", f"{R},"),
    ],
    "token of Hugging Face": [(f"hf_{RANDOM}", R), (f"HF_TOKEN=hf_{RANDOM}", f"HF_TOKEN={R}")],
    "token of npm": [
        (f"npm_{RANDOM}", R),
        (f"//registry.npmjs.org/:_authToken=npm_{RANDOM}\n", None),
    ],
    "token of Slack": [(f"xoxb-1234-{RANDOM}", R)],
    "key id of AWS": [("AKIAIOSFODNN7EXAMPLE", R)],
    "key of Google": [(f"AIza{RANDOM}", R)],
    "JSON web token": [("eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSM", R)],
    "password in an address": [
        ("redis://:hunter2secret@host/0", f"redis://{R}@host/0"),
        ("postgres://u:pa:ssword9@host/x", f"postgres://{R}@host/x"),
        ("postgres://user:p@ssword9@host/x", f"postgres://{R}@host/x"),
        ("amqp://guest:gu/estword@host", f"amqp://{R}@host"),
        ("mysql://u:1/2:3@4@host:3306/x?y=1", f"mysql://{R}@host:3306/x?y=1"),
        ("mongodb://u:p@one:1,two:2/x", f"mongodb://{R}@one:1,two:2/x"),
        ("a redis://u:one@h, b redis://:two@h", f"a redis://{R}@h, b redis://{R}@h"),
        (
            '{"url":"redis://:pw@h/0","mail":"ann@example.com"}',
            f'{{"url":"redis://{R}@h/0","mail":"ann@example.com"}}',
        ),
    ],
    "password in a web address": [
        ("https://ann:pw@host/@scope/x?to=a@b", f"https://{R}@host/@scope/x?to=a@b"),
        ("wss://ann:p:w@s@host", f"wss://{R}@host"),
    ],
    "password with a slash in a web address": [("https://ann:pa/ss@host/x", f"https://{R}@host/x")],
    "password with a quote in an address": [("redis://ann:o'clock@host", f"redis://{R}@host")],
    "bearer token": [(f"Authorization: Bearer {RANDOM}==", f"Authorization: Bearer {R}")],
    "basic credentials": [
        ("Authorization: Basic dXNlcjpodW50ZXIyc2VjcmV0", f"Authorization: Basic {R}"),
        ("basic dTpw", f"basic {R}"),
        ("basic dTpwYXNzd2Q=", f"basic {R}"),
    ],
}


def test_every_row_of_the_table_has_its_test():
    assert list(ROWS) == [one.what for one in SECRETS]


def test_each_row_finds_what_it_is_for():
    """None: all but the token stays."""
    with collect_failures() as row:
        for what, text, kept in [(what, *one) for what, rows in ROWS.items() for one in rows]:
            kept = text.replace(f"npm_{RANDOM}", R) if kept is None else kept
            with row(what, text):
                assert Redaction().before_store(text) == kept
                assert Redaction().before_store({"deep": [{"er": text}]}) == {
                    "deep": [{"er": kept}]
                }


def test_no_row_of_the_table_is_idle(monkeypatch):
    """Without it, one of its texts is stored as it is."""
    idle = []
    for secret in SECRETS:
        others = tuple(one for one in SECRETS if one is not secret)
        monkeypatch.setattr("everhold.plugins.redaction.SECRETS", others)
        if all(Redaction().before_store(text) == (kept or R) for text, kept in ROWS[secret.what]):
            idle.append(secret.what)
    assert idle == []


@pytest.mark.parametrize(
    "text",
    [
        "http://localhost:3000/@vite/client",
        "https://host:8080/?to=ann@example.com",
        "https://host/a:b@c",
        "ssh://git@host:22/x",
        "file:///a/b",
        "12:30 ann@example.com",
        "basic training, Basic information and a basic need",
        "the bearer of news",
        "sk-ip, hf_hub, npm_config_cache, glpat-",
    ],
)
def test_what_only_reminds_of_a_secret_stays(text):
    assert Redaction().before_store(text) == text


@pytest.mark.parametrize(
    "name", ["password", "Password", "DB_PASSWORD", "dbPassword", "DBPassword", "passwords"]
)
@pytest.mark.parametrize(
    ("value", "kept"),
    [
        ("hunter2secret", R),
        (12345678, R),
        (1.5, R),
        (["hunter2secret", 7], [R, R]),
        ({"value": "hunter2secret", "set": True}, {"value": R, "set": True}),
        ("", ""),
        (None, None),
        (False, False),
    ],
)
def test_what_stands_under_the_name_of_a_secret_is_replaced(name, value, kept):
    """Whatever it is; that there is one, or none, may be known."""
    assert Redaction().before_store({name: value}) == {name: kept}


SECRET_NAMES = [
    "passwd",
    "passphrase",
    "secret",
    "clientSecret",
    "client-secret",
    "client_secret",
    "clientsecret",
    "api_key",
    "apiKey",
    "APIKey",
    "x-api-key",
    "accessKey",
    "aws_secret_access_key",
    "secretKey",
    "privateKey",
    "private.key",
    "auth_token",
    "authToken",
    "_authToken",
    "access_token",
    "accessToken",
    "refreshToken",
    "idToken",
    "sessionToken",
    "apiToken",
    "Authorization",
]


def test_names_of_secrets():
    assert [name for name in SECRET_NAMES if not is_secret_name(name)] == []


OTHER_NAMES = [
    "token_count",
    "max_tokens",
    "tokens",
    "user",
    "key",
    "keyword",
    "secretary",
    "pwd",
    "next_token",
    "author",
]


def test_names_that_are_not_those_of_secrets():
    assert [name for name in OTHER_NAMES if is_secret_name(name)] == []


UNITS = [
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN A",
    "sk-",
    "sk-a_",
    "eyJ-",
    "bearer ",
    "://a:",
    "://",
    "://:",
    "a:",
]
UNITS += [
    "http://a:1/",
    "http://a:b/",
    "redis://:",
    "x://a@:",
    "redis://u:p@",
    "basic ",
    "basic a",
    "glpat-",
    "hf_",
]


@pytest.mark.parametrize("before", ["", "redis://u:", "http://u:p/"])
@pytest.mark.parametrize("unit", UNITS)
def test_a_text_that_only_begins_like_secrets_is_read_in_a_moment(before, unit):
    """However long it is."""
    began = process_time()
    Redaction().before_store(before + unit * (100_000 // len(unit)))
    assert process_time() - began < 1
