"""Cards of a database and of files, seen together: through `runtime.cards` and by Lua programs."""

import asyncio
import shutil
from pathlib import Path

import pytest

import everhold
from everhold.errors import (
    BadCard,
    CardImmutable,
    UnknownCard,
    UnknownCardAlias,
    UnknownCardSink,
)
from everhold.packages.lua.card_files import read_aliases
from everhold.ports.store import SessionFilter
from everhold.programs.lua.program import LuaProgram
from tests.scenario.harness import opened

DATA = Path(__file__).resolve().parents[1] / "data" / "algocline-home" / "cards"
TWICE = "twice_sonnet_20260402T101500_0a1b2c"
CAREFUL = "careful_model_20260405T080000_ffeedd"
CARD = {"card_id": "c", "pkg": {"name": "p"}}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A home of algocline with two cards."""
    root = tmp_path / "home"
    shutil.copytree(DATA, root / "cards")
    monkeypatch.setenv("ALC_HOME", str(root))
    monkeypatch.delenv("ALC_CARD_SINKS", raising=False)
    return root


def database(tmp_path):
    return everhold.open(f"sqlite:///{tmp_path / 'app.db'}")


async def test_both_places_are_one(home, tmp_path):
    """A created card is beside those of files; its id cannot be used again in either place."""
    async with database(tmp_path) as runtime:
        assert await runtime.cards.create({**CARD, "created_at": "2026-04-03"}) == "c"
        assert [row["card_id"] for row in await runtime.cards.list()] == [CAREFUL, "c", TWICE]
        for card_id in ("c", TWICE):
            with pytest.raises(CardImmutable, match="already exists"):
                await runtime.cards.create({**CARD, "card_id": card_id})
        child = {"pkg": {"name": "p"}, "metadata": {"prior_card_id": CAREFUL}}
        made = await runtime.cards.create(child)
        found = await runtime.cards.lineage(TWICE, direction="down")
    assert [node["card_id"] for node in found["nodes"]] == [TWICE, CAREFUL, made]


async def test_keys_added_to_a_card_in_a_file_stay_when_the_file_goes(home, tmp_path):
    """The file is not changed; its samples are those of the file while it is there."""
    file = home / "cards" / "twice" / f"{TWICE}.toml"
    before = file.read_bytes()
    async with database(tmp_path) as runtime:
        merged = await runtime.cards.append(TWICE, {"note": "n"})
        assert len(await runtime.cards.samples(TWICE)) == 3
        assert file.read_bytes() == before
        shutil.rmtree(home / "cards" / "twice")
        assert await runtime.cards.get(TWICE) == merged
        assert [row["card_id"] for row in await runtime.cards.list()] == [CAREFUL, TWICE]
        assert await runtime.cards.samples(TWICE) == []


async def test_adding_no_keys_writes_nothing(home, tmp_path):
    """The card of a file is still that of the file."""
    async with database(tmp_path) as runtime:
        card = await runtime.cards.append(TWICE, {})
        assert card == await runtime.cards.append(TWICE, {"x": None})
        assert await runtime.sessions() == []
        shutil.rmtree(home / "cards" / "twice")
        with pytest.raises(UnknownCard):
            await runtime.cards.get(TWICE)


@pytest.mark.process
async def test_a_replay_sees_the_cards_that_the_program_saw(home, tmp_path):
    """Files may change or go while a session waits: what it has read is in its journal."""
    code = f"""
    local seen = {{#alc.card.list(), alc.card.get('{TWICE}').stats.pass_rate,
      #alc.card.read_samples('{TWICE}'), alc.card.get_by_alias('best').card_id,
      #alc.card.lineage({{card_id = '{CAREFUL}'}}).nodes}}
    alc.llm('go on?')
    seen[#seen + 1] = #alc.card.list()
    return seen"""
    async with database(tmp_path) as runtime:
        paused = await runtime.start(LuaProgram.text(code))
    shutil.rmtree(home / "cards")
    async with database(tmp_path) as runtime:
        ended = await runtime.answer(paused.session_id, "yes")
    assert ended.result == [2, 0.75, 3, CAREFUL, 2, 0]


async def test_two_writers_lose_nothing(tmp_path):
    """Of many that create one card one succeeds; keys that are added at once are all there."""
    async with opened(tmp_path, replay=False) as one, opened(tmp_path, replay=False) as two:
        runtimes = [one, two] * 4
        made = await asyncio.gather(
            *(runtime.cards.create(CARD) for runtime in runtimes), return_exceptions=True
        )
        assert sorted(map(str, made)) == sorted(
            ["c"] + ["card 'c' already exists, and cards are immutable"] * 7
        )
        await asyncio.gather(
            *(runtime.cards.append("c", {f"k{n}": n}) for n, runtime in enumerate(runtimes))
        )
        assert len(await one.cards.get("c")) == 8 + len(
            {"card_id", "pkg", "created_at", "created_by", "schema_version"}
        )


async def test_each_write_is_a_session_that_has_ended():
    """So it is known who wrote what; a refused write leaves nothing."""
    async with opened(replay=False) as runtime:
        await runtime.cards.create(CARD)
        with pytest.raises(CardImmutable):
            await runtime.cards.create(CARD)
        with pytest.raises(BadCard):
            await runtime.cards.create({"pkg": {}})
        (row,) = await runtime.store.list(SessionFilter())
    assert (row.birth.program, row.birth.title) == ("everhold:card", "card create c")
    assert row.head.state == "completed"


async def test_what_is_not_there_is_named():
    async with opened() as runtime:
        cards = runtime.cards
        for asked in (
            cards.get("x"),
            cards.samples("x"),
            cards.lineage("x"),
            cards.append("x", {}),
        ):
            with pytest.raises(UnknownCard, match="card 'x' not found"):
                await asked
        with pytest.raises(UnknownCard):
            await cards.set_alias("a", "x")
        with pytest.raises(UnknownCardAlias, match="alias 'a' not found"):
            await cards.get_by_alias("a")
        with pytest.raises(UnknownCardSink, match="unknown sink: file:///x") as caught:
            await cards.backfill("file:///x")
        assert caught.value.hint.endswith("It is not set.")
        with pytest.raises(BadCard, match="reads no files of cards"):
            await cards.install("/x")


@pytest.mark.parametrize("given", [[1], "text", 5, None, {"pkg": "p"}])
async def test_a_value_of_another_type_is_refused(given):
    """By a typed error, and nothing is written."""
    async with opened(replay=False) as runtime:
        with pytest.raises(BadCard):
            await runtime.cards.create(given)
        await runtime.cards.create(CARD)
        before = await runtime.cards.get("c")
        if not isinstance(given, dict):
            with pytest.raises(BadCard):
                await runtime.cards.append("c", given)
        if not isinstance(given, list):
            with pytest.raises(BadCard):
                await runtime.cards.write_samples("c", given)
        assert await runtime.cards.get("c") == before
        assert await runtime.cards.samples("c") == []


async def test_samples_are_written_once(home, tmp_path):
    async with database(tmp_path) as runtime:
        assert await runtime.cards.write_samples(CAREFUL, [{"n": 1}, {"n": 2}]) == 2
        assert await runtime.cards.samples(CAREFUL, where={"n": {"gt": 1}}) == [{"n": 2}]
        for card_id in (CAREFUL, TWICE):
            with pytest.raises(CardImmutable, match="write-once"):
                await runtime.cards.write_samples(card_id, [])


async def test_a_runtime_for_tests_sees_no_files(home):
    """Tests do not depend on what the user has."""
    async with opened() as runtime:
        assert await runtime.cards.list() == []


def test_the_blocking_runtime_has_the_same_verbs(home, tmp_path):
    with everhold.open_blocking(f"sqlite:///{tmp_path / 'app.db'}") as runtime:
        assert runtime.cards.get_by_alias("best")["card_id"] == CAREFUL
        assert runtime.cards.problems() == [] == runtime.cards.sinks()


async def test_a_refused_commit_copies_nothing_to_a_sink(tmp_path, monkeypatch):
    """Of many that create one card, the sink gets one."""
    monkeypatch.setenv("ALC_CARD_SINKS", f"file://{tmp_path / 'sink'}")
    async with opened(tmp_path, replay=False) as one, opened(tmp_path, replay=False) as two:
        await asyncio.gather(
            *(runtime.cards.create(CARD) for runtime in [one, two] * 3), return_exceptions=True
        )
        copied = [runtime.cards.sinks()[0]["ok"]["created"] for runtime in (one, two)]
    assert sum(copied) == 1
    assert [file.name for file in (tmp_path / "sink").rglob("*.toml")] == ["c.toml"]


async def test_a_backfill_adds_what_was_not_copied(tmp_path, monkeypatch):
    """After a process died between commits and copies: keys of a card, and aliases. What another
    user of the sink has stays.
    """
    sink = tmp_path / "sink"
    monkeypatch.setenv("ALC_CARD_SINKS", f"file://{sink}")
    async with database(tmp_path) as runtime:
        await runtime.cards.create({"card_id": "c", "pkg": {"name": "p"}, "n": 1.5})
        old = (sink / "p" / "c.toml").read_text()
        await runtime.cards.append("c", {"note": "x"})
        await runtime.cards.set_alias("mine", "c")
        new = (sink / "p" / "c.toml").read_text()
        (sink / "p" / "c.toml").write_text(old)
        (sink / "_aliases.toml").write_text('[[alias]]\nname = "theirs"\ncard_id = "d"\n')
        dry = await runtime.cards.backfill(f"file://{sink}", dry_run=True)
        assert (sink / "p" / "c.toml").read_text() == old
        report = await runtime.cards.backfill(f"file://{sink}")
        assert report == dry
        assert (report.pushed, report.pushed_aliases, report.failed) == (["c"], ["mine"], [])
        assert (sink / "p" / "c.toml").read_text() == new
        again = await runtime.cards.backfill(f"file://{sink}")
        assert (again.pushed, again.skipped, again.pushed_aliases) == ([], ["c"], [])
        assert [row["name"] for row in read_aliases(sink / "_aliases.toml")[0]] == [
            "theirs",
            "mine",
        ]
        (sink / "p" / "c.toml").write_text("other = true\n")
        changed = await runtime.cards.backfill(f"file://{sink}")
        assert (changed.pushed, changed.skipped) == ([], ["c"])  # it never changes what is there


@pytest.mark.parametrize("by_program", [True, False])
@pytest.mark.process
async def test_an_export_with_values_has_the_cards(by_program, tmp_path):
    """Of programs that used cards, and of what was written from outside."""
    code = "alc.card.create({card_id = 'c', pkg = {name = 'p'}}) return 1"
    async with opened(tmp_path, replay=False) as runtime:
        if by_program:
            await runtime.start(LuaProgram.text(code))
        else:
            await runtime.cards.create(CARD)
        await runtime.archive.export(tmp_path / "file", values=True)
    async with opened(replay=False) as other:
        await other.archive.import_(tmp_path / "file")
        assert [row["card_id"] for row in await other.cards.list()] == ["c"]
