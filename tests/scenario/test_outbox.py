"""People are told that they are asked while programs go on: by a runtime that has tellers, or by
the settings.
"""

import asyncio
import json

import pytest

import everhold
from everhold import open_blocking
from everhold.errors import BadSetting
from everhold.models import CommandModel
from everhold.notify import ByCommand, new_secret
from everhold.packages.settings import settings as read_settings
from everhold.runtime import Runtime
from everhold.stores.memory import MemoryStore
from tests.scenario.harness import opened

PATIENCE = 60


@everhold.program
async def asking(ctx: everhold.Context) -> bool:
    await ctx.llm("What?")
    return await ctx.approval("Really?", to="boss")


class Told:
    """A teller that remembers what it was given, and hangs if it is told to."""

    name, kinds, to, timeout, max_age = "desk", (), (), 600.0, 600.0

    def __init__(self, hangs=False):
        self.heard, self.hangs = [], hangs

    async def tell(self, id, message, now):
        self.heard.append(json.loads(message))
        if self.hangs:
            await asyncio.Event().wait()


async def until(true):
    async with asyncio.timeout(PATIENCE):
        while not true():
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("where", ["memory", "sqlite"])
async def test_a_question_is_told_as_soon_as_it_is_asked(tmp_path, where):
    """Without waiting for the next look: its time does not pass here."""
    told = Told()
    async with opened(None if where == "memory" else tmp_path, tell=[told]) as runtime:
        status = await runtime.start(asking())
        assert await runtime.notifications.list() == []
        status = await runtime.answer(status.queries[0], "this")
        await until(lambda: told.heard)
        assert [(one["prompt"], one["to"]) for one in told.heard] == [("Really?", "boss")]
        await until_told(runtime)

        assert (await runtime.answer(status.queries[0], True)).result is True


async def test_the_command_in_a_notification_names_the_database_without_its_password():
    """It is quoted for a shell. A database in memory is not named: no other process can reach
    it.
    """
    options = {
        "postgresql://ana:hush@host/db?sslmode=require&sslpassword=hush": " -d"
        " 'postgresql://ana@host/db?sslmode=require'",
        "memory://": "",
    }
    for address, option in options.items():
        told = Told()
        async with Runtime(MemoryStore(), found=read_settings(address), tell=[told]) as runtime:
            status = await runtime.start(asking())
            await runtime.answer(status.queries[0], "this")
            await until(lambda told=told: told.heard)
            name = status.session_id
            assert told.heard[0]["answer"] == f"everhold answer {name} --query q-1{option}"


async def until_told(runtime):
    async with asyncio.timeout(PATIENCE):
        while not all(entry.state == "told" for entry in await runtime.notifications.list()):
            await asyncio.sleep(0.01)


async def test_a_receiver_that_hangs_holds_up_nobody():
    """Sessions go on, and are answered, while it does; closing does not wait for it longer than it
    is asked to.
    """
    told = Told(hangs=True)
    store = MemoryStore()
    async with opened(on=store, tell=[told]) as runtime:
        for _ in range(3):
            status = await runtime.start(asking())
            status = await runtime.answer(status.queries[0], "this")
            await until(lambda: told.heard)
            assert (await runtime.answer(status.queries[0], False)).result is False
        await asyncio.wait_for(runtime.close(grace=0.05), PATIENCE)


async def test_an_outcome_that_nobody_knows_is_told():
    """A person has to say what became of it."""
    told, store = Told(), MemoryStore()
    gate = asyncio.Event()

    async def stuck():
        await gate.wait()

    @everhold.program
    async def stopping(ctx):
        return await ctx.call(stuck, rerun="ask")

    first = Runtime(store, recover=False)
    async with first:
        session_id = (await first.start(stopping(), wait=0)).session_id
        for task in first.engine.effects.tasks:
            task.cancel()
        await asyncio.gather(*first.engine.effects.tasks, return_exceptions=True)
    second = Runtime(store, tell=[told])
    second.programs.add(stopping)
    async with second:
        await until(lambda: told.heard)
        assert "outcome was not recorded" in told.heard[0]["prompt"]
        assert (await second.answer(session_id, {"result": "so be it"})).result == "so be it"


async def test_who_only_looks_tells_nobody():
    """A command that lists sessions does not send what waits, nor needs what it takes."""
    told = Told()
    async with opened(tell=[told], recover=False) as runtime:
        status = await runtime.start(asking())
        await runtime.answer(status.queries[0], "this")
        await asyncio.sleep(0.05)
    assert told.heard == []


async def test_what_one_process_asks_another_may_tell(tmp_path):
    """The first has no tellers, or has died; the outbox is where the questions are."""
    async with opened(tmp_path) as runtime:
        status = await runtime.start(asking())
        await runtime.answer(status.queries[0], "this")
    told = Told()
    async with opened(tmp_path, tell=[told]) as runtime:
        await until(lambda: told.heard)
    again = Told()
    async with opened(tmp_path, tell=[again]):
        pass
    assert (len(told.heard), again.heard) == (1, [])


async def test_a_process_that_goes_at_once_has_told(tmp_path):
    """A script that ends with its question."""
    told = Told()
    async with opened(tmp_path, tell=[told]) as runtime:
        status = await runtime.start(asking())
        await runtime.answer(status.queries[0], "this")
    assert len(told.heard) == 1


async def test_a_person_has_it_told_again():
    """Also through the blocking face."""
    told = Told()
    async with opened(tell=[told]) as runtime:
        status = await runtime.start(asking())
        await runtime.answer(status.queries[0], "this")
        await until(lambda: told.heard)
        await until_told(runtime)
        (entry,) = await runtime.notifications.retry(status.session_id, notifier="desk")
        assert entry.state == "waiting"
        runtime.engine.sessions.poke()
        await until(lambda: len(told.heard) == 2)
        assert told.heard[0] == told.heard[1]
        assert await runtime.notifications.retry("s-nobody") == []


def test_the_blocking_face_has_the_outbox():
    told = Told()
    with open_blocking("memory://", tell=[told]) as runtime:
        status = runtime.start(asking())
        runtime.answer(status.queries[0], "this")
        while not runtime.notifications.list():
            pass
        (dropped,) = runtime.notifications.drop() or runtime.notifications.list()
        assert dropped.query_id == "q-1"


# From the settings


def settings(tmp_path, text):
    (tmp_path / "everhold.toml").write_text(text)


@pytest.mark.process
async def test_tellers_stand_in_the_settings_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    settings(
        tmp_path,
        f"""
        [[tell]]
        name = "desk"
        command = ["sh", "-c", "cat > {tmp_path}/told"]
        kinds = ["approval"]
        to = ["boss"]
        timeout = 30
        max_age = "2d"
        """,
    )
    async with everhold.open("memory://") as runtime:
        status = await runtime.start(asking())
        await runtime.answer(status.queries[0], "this")
        await until((tmp_path / "told").exists)
        await until_told(runtime)
        assert [entry.teller for entry in await runtime.notifications.list()] == ["desk"]
    assert json.loads((tmp_path / "told").read_text())["prompt"] == "Really?"


async def test_a_secret_comes_from_the_environment(tmp_path, monkeypatch):
    """One that is not there is missed when somebody is to be told, and not by who only looks."""
    monkeypatch.chdir(tmp_path)
    settings(tmp_path, "[[tell]]\nurl_env = 'HOOK_URL'\nsecret_env = 'HOOK_SECRET'\n")
    with pytest.raises(BadSetting, match="variable HOOK_SECRET is not set"):
        everhold.open("memory://")
    async with everhold.open("memory://", recover=False) as runtime:
        assert await runtime.notifications.list() == []
    async with everhold.open("memory://", tell=[]) as runtime:
        assert await runtime.notifications.list() == []
    monkeypatch.setenv("HOOK_SECRET", new_secret())
    monkeypatch.setenv("HOOK_URL", "http://127.0.0.1:1/")
    async with everhold.open("memory://"):
        pass


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("tell = 'desk'", "list of tables"),
        ("tell = ['desk']", "list of tables"),
        ("[[tell]]\nname = 'desk'", "one of command, url and url_env"),
        ("[[tell]]\ncommand = 'true'\nurl = 'http://host/'", "one of command, url and url_env"),
        ("[[tell]]\ncommand = 'true'\nsecret_env = 'X'", "secret_env is only for a webhook"),
        ("[[tell]]\ncommand = 'true'\nsecret = 'hush'", "unknown key 'secret'"),
        ("[[tell]]\ncommand = 7", "command cannot be 7"),
        ("[[tell]]\ncommand = 'true'\nkinds = 'approval'", "kinds cannot be"),
        ("[[tell]]\ncommand = 'true'\nkinds = ['timer']", "'timer' is not one of"),
        ("[[tell]]\ncommand = 'true'\nmax_age = 'soon'", "'soon' is not a duration"),
        ("[[tell]]\ncommand = 'true'\ntimeout = true", "timeout cannot be True"),
        ("[[tell]]\ncommand = 'true'\ntimeout = 0", "must be a number > 0"),
        ("[[tell]]\nurl = 'ftp://host/'", "http:// or https://"),
        (
            "[[tell]]\ncommand = 'true'\n[[tell]]\ncommand = 'true'",
            "two notifiers have the name 'true-",
        ),
    ],
)
def test_a_teller_that_cannot_be_is_refused_before_anything_runs(tmp_path, monkeypatch, text, why):
    monkeypatch.chdir(tmp_path)
    settings(tmp_path, text)
    with pytest.raises(BadSetting, match=why):
        everhold.open("memory://")


def test_what_tells_nobody_is_refused():
    """An answerer is not a teller, though both may be commands."""
    with pytest.raises(BadSetting, match="use ByCommand or ByWebhook"):
        Runtime(MemoryStore(), tell=[CommandModel("claude -p")])
    with pytest.raises(BadSetting, match="two notifiers have the name"):
        Runtime(MemoryStore(), tell=[ByCommand("true", name="x"), ByCommand("false", name="x")])


# Workers


@pytest.mark.process
@pytest.mark.parametrize("way", ["once", "run"])
async def test_a_worker_tells_and_sweeps(tmp_path, monkeypatch, way):
    """As the settings say, though its runtime was opened to move nothing by itself."""
    monkeypatch.chdir(tmp_path)
    command = f'["sh", "-c", "cat > {tmp_path}/told"]'
    settings(
        tmp_path, f"[retention]\ncompleted = '0s'\nevery = '1d'\n[[tell]]\ncommand = {command}\n"
    )
    database = tmp_path / "app.db"
    async with everhold.open(database, recover=False) as runtime:
        done = await runtime.start(asking())
        for said in ("this", True):
            done = await runtime.answer(done.queries[0], said)
        asked = await runtime.start(asking())
        await runtime.answer(asked.queries[0], "this")
    async with everhold.open(database, recover=False) as runtime:
        worker = runtime.workers.worker()
        if way == "once":
            await worker.once()
        else:
            async with worker:
                await until((tmp_path / "told").exists)
    async with everhold.open(database, recover=False) as runtime:
        assert [one.session_id for one in await runtime.sessions()] == [asked.session_id]
        assert [entry.state for entry in await runtime.notifications.list()] == ["told"]
    assert json.loads((tmp_path / "told").read_text())["session_id"] == asked.session_id
