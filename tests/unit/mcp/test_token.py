"""The token of the HTTP server: from a file of one owner, or from the environment."""

import stat
from concurrent.futures import ThreadPoolExecutor

import pytest

from everhold.errors import BadSetting
from everhold.mcp.token import TOKEN_FILE, TOKEN_VARIABLE, Token, load_token


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The data folder, which is not there yet."""
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "data" / "everhold"


def test_a_token_is_made_once_for_its_owner_alone(folder):
    found = load_token()
    assert found.file == folder / TOKEN_FILE
    assert found.value == found.file.read_text().strip()
    assert stat.S_IMODE(found.file.stat().st_mode) == 0o600
    assert load_token() == found
    assert found.shell == f"$(cat {found.file})"


def test_servers_that_start_together_have_the_same_token(folder):
    with ThreadPoolExecutor(8) as pool:
        assert len({found.value for found in pool.map(lambda _: load_token(), range(32))}) == 1
    assert [file.name for file in folder.iterdir()] == [TOKEN_FILE]


def test_the_environment_comes_before_the_usual_file_and_after_a_named_one(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setenv(TOKEN_VARIABLE, " s3cret\n")
    assert load_token() == Token("s3cret")
    assert not folder.exists()
    assert load_token().shell == f"${TOKEN_VARIABLE}"
    assert load_token(tmp_path / "mine").file == tmp_path / "mine"
    monkeypatch.setenv(TOKEN_VARIABLE, " \n")
    assert load_token().file == folder / TOKEN_FILE


def test_a_file_that_others_can_read_is_refused_and_stays(tmp_path):
    file = tmp_path / "mine"
    file.write_text("s3cret\n")
    file.chmod(0o640)
    with pytest.raises(BadSetting, match="can be read by others") as caught:
        load_token(file)
    assert "chmod 600" in caught.value.hint
    assert "s3cret" not in str(caught.value)
    file.chmod(0o600)
    assert load_token(file).value == "s3cret"


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"two words", b"one\ntwo", "tök".encode(), b"\x00", b"x" * 5000]
)
def test_what_no_header_can_bring_is_refused_and_not_repeated(tmp_path, content):
    file = tmp_path / "mine"
    file.write_bytes(content)
    file.chmod(0o600)
    with pytest.raises(BadSetting, match="is not a token") as caught:
        load_token(file)
    assert caught.value.hint
    assert "two" not in str(caught.value)


def test_a_file_that_cannot_be_made_is_a_refusal_with_a_way_out(tmp_path):
    (tmp_path / "file").touch()
    for place in (tmp_path, tmp_path / "file" / "below"):
        with pytest.raises(BadSetting, match="cannot be used") as caught:
            load_token(place)
        assert TOKEN_VARIABLE in caught.value.hint
