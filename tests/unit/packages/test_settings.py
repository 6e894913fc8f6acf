"""One rule says where data and programs are, for every front."""

import json
import stat
import textwrap
from pathlib import Path

import pytest

from everhold.errors import BadSetting, StoreUnavailable
from everhold.packages.settings import (
    DATABASE_VARIABLE,
    DEFAULT_SOURCE,
    SETTING_KEYS,
    SETTINGS_FILE,
    SUFFIXES,
    WatchedSettings,
    get_data_folder,
    prepare_data_folder,
    settings,
)
from everhold.stores.address import hide_password
from everhold.stores.registry import list_store_schemes
from tests.failures import collect_failures


@pytest.fixture(autouse=True)
def away_from_home(tmp_path_factory, monkeypatch):
    """No test reads or makes anything in the home of whoever runs it."""
    folder = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("XDG_DATA_HOME", str(folder / "share"))
    monkeypatch.delenv(DATABASE_VARIABLE, raising=False)
    return folder


@pytest.fixture
def toml(write):
    return lambda text, name="everhold.toml": write(name, textwrap.dedent(text))


# The order


def test_the_argument_comes_first(toml, here):
    """An argument wins over the variable and the file."""
    toml("database = 'memory://'")

    found = settings("sqlite:///given.db", env={DATABASE_VARIABLE: "postgresql://host/db"})

    assert (found.database, found.source["database"]) == (f"sqlite:///{here}/given.db", "argument")


def test_the_variable_comes_second(toml):
    """The variable wins over the file."""
    toml("database = 'sqlite:///in-the-file.db'")

    found = settings(env={DATABASE_VARIABLE: "memory://"})

    assert (found.database, found.source["database"]) == ("memory://", DATABASE_VARIABLE)


def test_the_variable_is_that_of_the_process(here, monkeypatch):
    """Without `env` the real environment counts."""
    monkeypatch.setenv(DATABASE_VARIABLE, "memory://")

    assert settings().database == "memory://"


def test_the_file_comes_third(toml, here):
    """The file is used where nobody says anything else; an empty variable says nothing."""
    file = toml("database = 'app.db'")

    found = settings(env={DATABASE_VARIABLE: ""})

    assert (found.database, found.source["database"]) == (f"sqlite:///{here}/app.db", str(file))


def test_the_data_folder_comes_last(here, away_from_home):
    """With nothing said at all, the database is in the user's data folder."""
    found = settings()

    assert found.path == away_from_home / "share" / "everhold" / "everhold.db"
    assert (found.source, found.root) == ({"database": DEFAULT_SOURCE}, here)


# The file


def test_all_settings_of_a_file(toml, here):
    """A file may hold four settings; its folder is the root, and paths start there."""
    file = toml("""
        database = "sqlite:///data/app.db"
        programs = ["myapp.programs", "jobs/refund.py", "~/own.py:remind"]
        llm = "anthropic:claude-sonnet-4-6"
        answer_with = "claude -p"
    """)
    (here / "deep" / "down").mkdir(parents=True)

    found = settings(start=here / "deep" / "down")

    assert found.path == here / "data" / "app.db"
    assert found.programs == (
        "myapp.programs",
        f"{here}/jobs/refund.py",
        f"{Path.home()}/own.py:remind",
    )
    assert (found.llm, found.answer_with, found.root) == (
        "anthropic:claude-sonnet-4-6",
        "claude -p",
        here,
    )
    assert found.source == dict.fromkeys(["database", "programs", "llm", "answer_with"], str(file))


def test_a_table_in_pyproject(toml, here):
    """`[tool.everhold]` in pyproject.toml is a settings file."""
    file = toml("[tool.everhold]\nprograms = ['shop']", "pyproject.toml")

    found = settings()

    assert (found.programs, found.source["programs"]) == (("shop",), str(file))


def test_a_file_that_says_something_else_is_read_again(toml, here):
    """However quickly it changed, and back again."""
    for program in ("shop", "mill", "shop"):
        toml(f"[tool.everhold]\nprograms = ['{program}']", "pyproject.toml")
        assert settings().programs == (program,)


def test_a_pyproject_of_somebody_else_is_passed_over(toml, here):
    """The search goes on upwards past a pyproject.toml without our table."""
    toml("llm = 'far:away'")
    toml("[project]\nname = 'x'", "inner/pyproject.toml")

    assert settings(start=here / "inner").llm == "far:away"


def test_the_nearest_file_wins_and_is_not_mixed(toml, here):
    """A nearer file hides a farther one whole."""
    toml("llm = 'far:away'\nanswer_with = 'far'")
    toml("[tool.everhold]\nllm = 'near:by'", "inner/pyproject.toml")

    found = settings(start=here / "inner")

    assert (found.llm, found.answer_with) == ("near:by", None)


def test_our_own_file_comes_before_pyproject(toml):
    """In one folder everhold.toml is the one that counts."""
    toml("llm = 'own:file'")
    toml("[tool.everhold]\nllm = 'py:project'", "pyproject.toml")

    assert settings().llm == "own:file"


WRONG = {
    "databse = 'x.db'": "databse in {file}: unknown setting; did you mean 'database'?",
    "zzz = 1": "zzz in {file}: unknown setting",
    "[tool.everhold]": (
        "tool in {file}: unknown setting; in this file, settings are at the top level"
    ),
    "llm = 7": "llm in {file}: it should be a string, got 7",
    "programs = 'shop'": "programs in {file}: it should be a list of strings, got 'shop'",
    "packages_path = 'lua'": "packages_path in {file}: it should be a list of strings, got 'lua'",
    "packages_path = [7]": "packages_path in {file}: it should be a list of strings, got [7]",
    "programs = ['shop', 7]": "programs in {file}: it should be a list of strings, got ['shop', 7]",
    "database = 'app.data'": "database in {file}: 'app.data' is not an address; "
    "use sqlite:///file, postgresql://host/name, memory://, or a path that ends in .db",
    "llm = 'a'\nanswer_with =": "{file}: it is not TOML: Invalid value (at end of document)",
    "llm = 'a'\nanswer_with = ?": "{file}: it is not TOML: Invalid value (at line 2, column 15)",
}


@pytest.mark.parametrize(("text", "told"), WRONG.items(), ids=[text.split()[0] for text in WRONG])
def test_a_wrong_setting_is_named_with_its_place(text, told, toml):
    """What is wrong in a file is refused with the name of the setting and of the file."""
    file = toml(text)

    with pytest.raises(BadSetting) as caught:
        settings()

    assert str(caught.value) == f"setting {told.format(file=file)}"


def test_the_table_must_be_a_table(toml):
    """`everhold = true` under `[tool]` is refused."""
    toml("[tool]\neverhold = true", "pyproject.toml")

    with pytest.raises(BadSetting, match="should be a table"):
        settings()


def test_a_file_that_is_not_text(here):
    """Bytes that are not UTF-8 are refused with the name of the file."""
    (here / "everhold.toml").write_bytes(b"llm = '\xff'")

    with pytest.raises(BadSetting, match=r"everhold.toml: it is not UTF-8 text"):
        settings()


def test_a_file_that_cannot_be_read(here):
    """A file that is there and cannot be read is not silently passed over."""
    # nobody can read its beginning, not even root
    (here / "everhold.toml").symlink_to("/proc/self/mem")

    with pytest.raises(BadSetting, match="cannot be read: Input/output error"):
        settings()


# Addresses


ADDRESSES = {
    "sqlite:///app.db": "sqlite:///{here}/app.db",
    "sqlite:///../app.db": "sqlite:///{up}/app.db",
    "sqlite:////var/data/app": "sqlite:////var/data/app",
    "sqlite:///~/app.db": "sqlite:///{home}/app.db",
    "app.db": "sqlite:///{here}/app.db",
    "data/app.sqlite": "sqlite:///{here}/data/app.sqlite",
    "/var/data/app.sqlite3": "sqlite:////var/data/app.sqlite3",
    "~/app.db": "sqlite:///{home}/app.db",
    "memory://": "memory://",
    "postgresql://user:word@host:5432/db?sslmode=require": "postgresql://user:word@host:5432/db?sslmode=require",
    "postgres://host/db": "postgresql://host/db",
}


@pytest.mark.parametrize(("given", "full"), ADDRESSES.items(), ids=ADDRESSES)
def test_an_address_is_made_full(given, full, here):
    """Every form of address becomes one that means the same in every folder."""
    assert settings(given).database == full.format(here=here, up=here.parent, home=Path.home())


def test_a_path_object_is_an_sqlite_file(here):
    """A Path needs no suffix to be understood."""
    assert settings(Path("data")).path == here / "data"


NO_ADDRESSES = {
    "": "'' is not an address",
    "app": "'app' is not an address",
    ":memory:": "use memory:// for a database in memory",
    "sqlite:///:memory:": "use memory:// for a database in memory",
    "sqlite:///": "it names no file",
    "sqlite://": "did you mean memory://, or sqlite:///file.db?",
    "sqlite://app.db": "did you mean sqlite:///app.db?",
    "sqlite:///app.db?mode=ro": "takes no options",
    "memory://x": "memory:// takes nothing after it",
    "sqllite:///app.db": "did you mean 'sqlite'?",
    "mysql://host": "mysql:// is not known; known: sqlite://, memory://, postgresql://",
}


@pytest.mark.parametrize(("given", "told"), NO_ADDRESSES.items(), ids=NO_ADDRESSES)
def test_what_is_no_address_is_refused(given, told, here):
    """An address that cannot be meant is refused with what to say instead."""
    with pytest.raises(BadSetting) as caught:
        settings(given)

    assert told in str(caught.value)


def test_what_is_neither_text_nor_a_path_is_no_address(here):
    with pytest.raises(BadSetting, match="it should be a string or a path, got int"):
        settings(7)


def test_a_bad_variable_is_named(here):
    """A mistake in the variable is told with the variable's name."""
    with pytest.raises(BadSetting, match="setting EVERHOLD_DATABASE_URL: 'here' is not an address"):
        settings(env={DATABASE_VARIABLE: "here"})


def test_what_kind_of_database_it_is(here):
    """The scheme says which store; only SQLite has a path."""
    found = [settings(given) for given in ("a.db", "memory://", "postgres://h/d")]

    assert [one.scheme for one in found] == ["sqlite", "memory", "postgresql"]
    assert [one.path for one in found] == [here / "a.db", None, None]


SHOWN = {
    "postgresql://ada:secret@host/db": "postgresql://ada:***@host/db",
    "postgresql://ada:se%40cr%2Fet@host/db": "postgresql://ada:***@host/db",
    "postgresql://ada:a:b c'\"$*&=+;é℀@host/db": "postgresql://ada:***@host/db",
    "postgresql://ada:***@[::1]:5432,other:5433/db?user=a@b": "postgresql://ada:***@[::1]:5432,other:5433/db?user=a@b",
    "postgresql:///db?host=/var/run&sslpassword=secret": "postgresql:///db?host=/var/run&sslpassword=***",
    "postgresql:///db?pass%77ord=secret": "postgresql:///db?pass%77ord=***",
    "postgresql://:secret@host": "postgresql://:***@host",
    "postgresql://host/db?user=ada&password=secret&x=1": "postgresql://host/db?user=ada&password=***&x=1",
    "postgresql://ada@host:5432/db": "postgresql://ada@host:5432/db",
    "memory://": "memory://",
}


@pytest.mark.parametrize(("given", "shown"), SHOWN.items())
def test_a_password_is_not_shown(given, shown, here):
    """What people see of an address has no password in it."""
    assert settings(given).shown == shown


MALFORMED = [
    *(f"postgresql://ada:12{sign}hush{sign}@host:5432/db" for sign in "@/?#[]%\n\t\0"),
    *(
        f"postgresql://ada:hush{sign}12@host:5432/db"
        for sign in ("@", "/", "?", "#", "[", "]", "%zz", "%00", "\n")
    ),
    "postgresql://ada:12?hush=1@host/db",
    "postgresql://ada:hush",
    "postgresql://ada:hush/db",
    "postgresql://host:hush/db",
    "postgresql://[hush@host/db",
    "postgresql://host/db?hush",
    "postgresql://host/hush@db",
    "postgresql:/ada:hush@host/db",
    "postgresql:ada:hush@host/db",
    "postgres:/ada:hush@host/x.db",
    "ada:hush@host/db",
    "host=h user=ada password=hush",
    "ada:hush@postgresql://host/db",
    "sqlite://ada:hush@host/db",
    "sqlite:///ada:hush@host/db?x=1",
    "memory://ada:hush@host",
    "mysql://ada:hush@host/db",
]


@pytest.mark.parametrize("way", ["argument", "variable", "file"])
def test_an_address_that_is_refused_is_not_quoted(way, here):
    """No part of a password is in the error, wherever the address stands, nor in what a hint says
    of it.
    """
    with collect_failures() as row:
        for given in MALFORMED:
            if way == "file":
                (here / SETTINGS_FILE).write_text(f"database = {json.dumps(given)}\n")
            with row(repr(given)):
                with pytest.raises(BadSetting) as caught:
                    settings(
                        given if way == "argument" else None,
                        env={DATABASE_VARIABLE: given} if way == "variable" else {},
                    )
                assert "hush" not in f"{caught.value!r} {caught.value.hint}"
    assert "hush" not in hide_password(given) or given.startswith("sqlite:///")


def test_a_database_of_the_wrong_type_is_not_quoted(here):
    (here / SETTINGS_FILE).write_text('database = ["postgresql://ada:hush@host/db"]\n')
    with pytest.raises(BadSetting) as caught:
        settings(env={})

    assert "hush" not in str(caught.value)


# The data folder


def test_nothing_is_made_by_looking(away_from_home, here):
    """Reading the settings makes no folder."""
    settings()

    assert list(away_from_home.iterdir()) == []


def test_the_data_folder_is_private(here):
    """When it is used the data folder is made, for its owner only; a second time changes
    nothing.
    """
    prepare_data_folder(settings())
    prepare_data_folder(settings())

    assert stat.S_IMODE(get_data_folder().stat().st_mode) == 0o700


def test_a_data_folder_that_cannot_be_made_is_told(here, away_from_home, monkeypatch):
    (away_from_home / "file").write_text("")
    monkeypatch.setenv("XDG_DATA_HOME", str(away_from_home / "file"))
    with pytest.raises(StoreUnavailable, match="file/everhold cannot be opened: Not a directory"):
        prepare_data_folder(settings())


def test_a_current_folder_that_was_deleted_is_told(tmp_path, monkeypatch):
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    with pytest.raises(BadSetting, match="current folder: it was deleted"):
        settings()


def test_no_data_folder_for_a_database_elsewhere(here):
    """A database with its own address needs no data folder."""
    prepare_data_folder(settings("app.db"))

    assert not get_data_folder().exists()


# The reference


def test_folders_of_packages_start_from_the_file(toml, here, monkeypatch, away_from_home):
    """Those of the setting come first, then packages/ beside the file, then the user's, then the
    scenarios; none of them need exist.
    """
    toml("packages_path = ['lua', '~/more', '/opt/lua']")
    (here / "deep").mkdir()
    monkeypatch.chdir(here / "deep")

    folders = settings().folders

    own, installed = folders.plain
    assert own == [f"{here}/lua", f"{away_from_home}/more", "/opt/lua", f"{here}/packages"]
    ours = get_data_folder()
    assert installed == [f"{ours}/packages", f"scenarios={ours}/scenarios"]


def test_every_setting_is_in_the_reference():
    """The page on settings names every key, the variable and every scheme."""
    page = (Path(__file__).parents[3] / "docs" / "reference" / "settings.md").read_text()

    for name in (
        *SETTING_KEYS,
        DATABASE_VARIABLE,
        SETTINGS_FILE,
        *SUFFIXES,
        *(f"{scheme}://" for scheme in list_store_schemes()),
    ):
        assert f"`{name}" in page


def test_settings_that_are_watched_are_read_again_when_a_file_changes(toml, tmp_path):
    """Also when a nearer one comes; what cannot be read is told until it can."""
    toml("programs = ['one']")
    (tmp_path / "inner").mkdir()
    watched = WatchedSettings(settings(start=tmp_path / "inner"), None)
    first = watched.settings()
    assert first.programs == ("one",) and watched.settings() is first
    toml("programs = ['one', 'two']")
    assert watched.settings().programs == ("one", "two")
    toml("programs = [", name="inner/everhold.toml")
    for _ in range(2):
        with pytest.raises(BadSetting):
            watched.settings()
    toml("programs = ['three']", name="inner/everhold.toml")
    assert watched.settings().programs == ("three",)
