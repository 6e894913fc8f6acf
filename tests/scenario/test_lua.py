"""Lua programs through a runtime: in this process where their package is trusted, else in a
worker.
"""

from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import everhold
from everhold.engine.live_session import rebuild_session
from everhold.errors import Diverged, UnknownProgram
from everhold.packages.lua.trust import trust_package
from everhold.ports.store import SessionFilter
from everhold.programs.lua.execution import LuaExecution
from everhold.programs.lua.program import LuaProgram
from tests.scenario.harness import opened, prompts

pytestmark = pytest.mark.process

STORY = """local M = {}
function M.run(ctx)
  local told = {}
  for i = 1, 4 do
    told[i] = alc.llm('Line ' .. i .. ' after ' .. alc.json_encode(told) .. '? ' .. math.random(1000000))
  end
  return {told = told, at = alc.time()}
end
return M"""  # noqa: E501


class Place:
    """Where the programs of a test are, and whether they run here."""

    def __init__(self, root: Path, *, here: bool) -> None:
        self.root, self.here = root, here

    def put(self, name: str, source: str) -> LuaProgram:
        home = self.root / "packages" / name
        home.mkdir(parents=True, exist_ok=True)
        (home / "init.lua").write_text(source)
        if self.here:
            trust_package(home)
        return LuaProgram.package(home)


@pytest.fixture(params=["here", "worker"])
def place(request, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    return Place(tmp_path, here=request.param == "here")


@asynccontextmanager
async def house(place, *, forks=False, **options):
    """A runtime on SQLite that replays at its end whatever it ran. What forks by name never runs
    here.
    """
    async with opened(place.root, replay=False, **options) as runtime:
        yield runtime
        for row in await runtime.store.list(SessionFilter(limit=1000)):
            record = await runtime.store.load(row.birth.id)
            live = await rebuild_session(record, runtime.engine.host, strict=True)
            assert isinstance(live.execution, LuaExecution) == (place.here and not forks)
            live.drop()


async def to_the_end(runtime, status, word="x"):
    while status.state == "paused":
        status = await runtime.answer(status.queries[0], word)
    return status


async def test_it_goes_on_in_another_process_where_it_was(place):
    """Each answer is given to another runtime; nothing is asked twice."""
    story = place.put("story", STORY)
    async with house(place) as runtime:
        status = await runtime.start(story(), key="mine")
    asked = [prompts(status)[0]]
    for number in range(4):
        async with house(place) as runtime:
            status = await runtime.answer(status.session_id, f"a{number}")
            asked += prompts(status) if status.state == "paused" else []
    assert [words.partition("?")[0] for words in asked] == [
        "Line 1 after {}",
        'Line 2 after ["a0"]',
        'Line 3 after ["a0","a1"]',
        'Line 4 after ["a0","a1","a2"]',
    ]
    assert status.result["told"] == ["a0", "a1", "a2", "a3"]


async def test_it_is_put_away_and_comes_back_without_anybody_noticing(place):
    """More sessions than fit into memory."""
    story = place.put("story", STORY)
    async with house(place, cache=1) as runtime:
        sessions = [await runtime.start(story()) for _ in range(3)]
        for number in range(4):
            sessions = [await runtime.answer(status.session_id, f"{number}") for status in sessions]
        assert [status.result["told"] for status in sessions] == [["0", "1", "2", "3"]] * 3


async def test_a_fork_shares_its_beginning_and_has_dice_of_its_own(place):
    story = place.put("story", STORY)
    async with house(place) as runtime:
        one = await runtime.start(story())
        for _ in range(2):
            one = await runtime.answer(one.session_id, "old")
        fork = await runtime.fork(one.session_id, at=2, answer="other")
        assert prompts(fork)[0].startswith('Line 3 after ["old","other"]?')
        assert prompts(fork)[0].rpartition(" ")[2] != prompts(one)[0].rpartition(" ")[2]
        assert (await to_the_end(runtime, fork)).result["told"] == ["old", "other", "x", "x"]
        assert (await to_the_end(runtime, one)).result["told"] == ["old", "old", "x", "x"]


COLLECTOR = """return {run = function(ctx)
  alc.state.set('list', {})
  for i = 1, 3 do
    local word = alc.llm('word ' .. i)
    alc.state.update('list', function(list) list[i] = word return list end)
    alc.state.incr('count')
    pcall(alc.state.incr, 'list')
  end
  return {alc.state.get('list'), alc.state.get('count'), alc.state.keys()}
end}"""


async def test_a_fork_has_what_its_children_noted_and_leaves_the_others_notes_alone(place):
    """The values of a child of alc.fork are those of the step at which it is forked, also in a fork
    of a fork.
    """
    place.put("collector", COLLECTOR)
    both = place.put(
        "both", "return {run = function(ctx) return alc.fork({'collector'}, ctx)[1].result end}"
    )
    async with house(place, forks=True) as runtime:
        one = await runtime.start(both())
        for word in "ab":
            one = await runtime.answer(one.session_id, word)
        early = await runtime.fork(
            one.session_id, at=_step_of(await runtime.store.load(one.session_id), "b"), answer="B"
        )
        late = await runtime.fork(early.session_id)
        ends = [
            await to_the_end(runtime, status, word)
            for status, word in ((late, "z"), (early, "y"), (one, "x"))
        ]
    assert [end.result[0] for end in ends] == [["a", "B", "z"], ["a", "B", "y"], ["a", "b", "x"]]
    assert [end.result[1:] for end in ends] == [[3.0, ["count", "list"]]] * 3


def _step_of(record, word):
    return next(
        one.n for one in record.deliveries if [answer.value for answer in one.answers] == [word]
    )


async def test_children_wait_for_nobody_and_survive_a_restart(place):
    """alc.fork: partial answers, each child by itself, across processes."""
    for name in ("fast", "slow"):
        place.put(
            name,
            f"return {{run = function(c) return alc.llm('{name}') .. alc.llm('{name} again') end}}",
        )
    both = place.put("both", "return {run = function(c) return alc.fork({'fast', 'slow'}, c) end}")
    async with house(place, forks=True) as runtime:
        status = await runtime.start(both())
        assert prompts(status) == ["fast", "slow"]
        status = await runtime.answer(status.queries[0], "1")
        assert sorted(prompts(status)) == ["fast again", "slow"]
    async with house(place, forks=True) as runtime:
        for prompt, word in (("fast again", "2"), ("slow", "3"), ("slow again", "4")):
            status = await runtime.status(status.session_id)
            query = next(query for query in status.queries if query.prompt == prompt)
            status = await runtime.answer(query, word)
        assert status.result == [
            {"strategy": "fast", "ok": True, "result": "12"},
            {"strategy": "slow", "ok": True, "result": "34"},
        ]


async def test_values_are_shared_between_sessions_and_kept(place):
    """What one session writes another reads, also after a restart; a replay writes nothing."""
    counts = place.put(
        "counts",
        "return {run = function(c) local n = alc.state.incr('n') alc.llm('wait') return {n,"
        " alc.state.get('n')} end}",
    )
    async with house(place) as runtime:
        one, other = await runtime.start(counts()), await runtime.start(counts())
    async with house(place) as runtime:
        assert (await runtime.answer(one.session_id, "")).result == [1.0, 2]
        assert (await runtime.answer(other.session_id, "")).result == [2.0, 2]


@pytest.mark.parametrize("given", ["session", "ctx"])
async def test_a_budget_is_the_same_after_a_restart(place, given):
    """The third question of two is refused, whoever set the limit."""
    asks = place.put(
        "asks",
        """return {run = function(c)
             local n = 0
             while true do
               local ok, e = pcall(alc.llm, 'more?')
               if not ok then return {n, e} end
               n = n + 1
             end
           end}""",
    )
    limits = {"max_llm_calls": 2}
    async with house(place) as runtime:
        if given == "session":
            status = await runtime.start(asks(), budget=limits)
        else:
            status = await runtime.start(asks(budget=limits))
        status = await runtime.answer(status.session_id, "x")
    async with house(place) as runtime:
        status = await runtime.answer(status.session_id, "x")
        assert status.result == [2, "budget_exceeded: max_llm_calls (2) reached: 2 used"]


@pytest.mark.parametrize("given", ["session", "ctx", "none"])
async def test_a_budget_may_be_raised(place, given):
    """Also where the ctx set it, and where nothing did; replay counts as before."""
    asks = place.put(
        "asks",
        """return {run = function(c)
             local said = {}
             for n = 1, 4 do said[n] = alc.llm(n .. '?') end
             return {said, alc.budget_remaining()}
           end}""",
    )
    limits = {"max_llm_calls": 2, "max_tokens": 900}
    async with house(place) as runtime:
        status = await runtime.start(
            asks(budget=limits) if given == "ctx" else asks(),
            budget=limits if given == "session" else None,
        )
        session = status.session_id
        status = await runtime.answer(session, "x")
        if given == "none":
            await runtime.set_budget(session, limits)
        status = await runtime.answer(session, "x")
        assert "max_llm_calls (2) reached: 2 used" in status.outcome.error
        status = await runtime.set_budget(session, {"max_llm_calls": 4})
        status = await runtime.answer(session, "x")
    async with house(place) as runtime:
        said, left = (await runtime.answer(session, "x")).result
        assert said == ["x", "x", "x", "x"]
        assert (left["llm_calls"], left["tokens"] < 900) == (0, True)


async def test_what_it_says_is_in_the_status(place):
    says = place.put(
        "says",
        """return {run = function(c)
             print('hello', 1) alc.progress(1, 2, 'half') alc.stats.record('score', 0.5)
             alc.llm('?') alc.stats.record('more', {1})
           end}""",
    )
    async with house(place) as runtime:
        status = await runtime.start(says())
        status = await runtime.answer(status.session_id, "x")
        assert status.metrics["custom"] == {"score": 0.5, "more": [1]}


async def test_a_round_is_a_wait_and_values_are_not_waited_for(place):
    """As whoever answers counts: reads and writes of values, and cards, are no rounds."""
    keeps = place.put(
        "keeps",
        """return {run = function()
             alc.state.set('a', 1) alc.llm('one?')
             alc.card.create({pkg = {name = 'keeps'}}) alc.llm_batch({{prompt = 'two?'}, {prompt = 'three?'}})
             return alc.state.incr('a')
           end}""",  # noqa: E501
    )
    async with house(place) as runtime:
        status = await runtime.start(keeps())
        status = await runtime.answer(status.session_id, "x")
        status = await runtime.answer_many(status.session_id, {"q-3": "y", "q-4": "z"})
        auto = status.metrics["auto"]
        assert (status.result, auto["rounds"], auto["pauses"], auto["llm_calls"]) == (2.0, 2, 2, 3)


async def test_a_mended_package_goes_on_with_the_answers_it_had(place):
    """An error costs nothing: retry keeps what was paid for."""
    broken = (
        "return {run = function(c) local a = alc.llm('a') local b = nil .. a return"
        " alc.llm('b' .. a) end}"
    )
    async with house(place) as runtime:
        status = await runtime.start(place.put("mends", broken)())
        failed = await runtime.answer(status.session_id, "1")
        assert failed.error == "mends/init.lua:1: attempt to concatenate a nil value"
    place.put("mends", broken.replace("nil ..", "'' .."))
    async with house(place) as runtime:
        status = await runtime.retry(failed.session_id)
        assert prompts(status) == ["b1"]
        assert (await runtime.answer(status.session_id, "done")).result == "done"


async def test_a_package_that_asks_something_else_is_refused_and_nothing_changes(place):
    first = "return {run = function(c) alc.llm('a') alc.llm('b') return 1 end}"
    async with house(place) as runtime:
        status = await runtime.start(place.put("turns", first)())
        status = await runtime.answer(status.session_id, "x")
    place.put("turns", "return {run = function(c) alc.llm_batch({'a', 'a2'}) return 1 end}")
    async with opened(place.root, replay=False) as runtime:
        with pytest.raises(Diverged):
            await runtime.answer(status.session_id, "y")
    place.put("turns", first)
    async with house(place) as runtime:
        assert (await runtime.answer(status.session_id, "y")).result == 1


async def test_a_cancel_is_seen_once(place):
    tidies = place.put(
        "tidies",
        "return {run = function(c) local ok, e = pcall(alc.llm, 'a') print(e) alc.llm('b') end}",
    )
    async with house(place) as runtime:
        status = await runtime.start(tidies())
        status = await runtime.cancel(status.session_id, "enough")
        assert status.state == "cancelled"


async def test_a_program_that_does_not_pause_fails_and_can_be_retried(place):
    spins = place.put(
        "spins", "return {run = function(c) alc.llm('a') while true do pcall(error) end end}"
    )
    async with opened(place.root, replay=False) as runtime:
        status = await runtime.start(spins())
        status = await runtime.answer(status.session_id, "x")
        assert status.state == "failed"
        assert "did not pause" in status.error
    place.put("spins", "return {run = function(c) return alc.llm('a') end}")
    async with house(place) as runtime:
        assert (await runtime.retry(status.session_id)).result == "x"


async def test_text_travels_with_its_session(tmp_path):
    """Another process needs nothing but the database."""
    call = LuaProgram.text(
        "local a = alc.llm('q ' .. ctx.task) return {a, ctx.task}", {"task": "x"}
    )
    async with opened(tmp_path, replay=False) as runtime:
        status = await runtime.start(call)
        assert prompts(status) == ["q x"]
    async with opened(tmp_path, replay=False) as runtime:
        assert (await runtime.answer(status.session_id, "A")).result == ["A", "x"]


LOOKS = """local before = (pcall(require, 'story'))
local answer = alc.llm('go on?')
return {before, (pcall(require, 'story')), (pcall(require, 'beside'))}"""


@pytest.mark.parametrize("kind", ["text", "file", "package"])
@pytest.mark.parametrize("again", [False, True], ids=["live", "reopened"])
async def test_it_finds_the_packages_of_the_settings_from_its_first_life_on(
    kind, again, tmp_path, monkeypatch
):
    """Whoever hands over a program in Python says nothing of packages: each life looks where the
    settings say.
    """
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("ALC_PACKAGES_PATH", str(tmp_path / "shared"))
    for folder, source in (
        ("shared/story", STORY),
        ("here/beside", "return {}"),
        ("here/looks", ""),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / "init.lua").write_text(source)
    (tmp_path / "here" / "looks.lua").write_text(LOOKS)
    (tmp_path / "here" / "looks" / "init.lua").write_text(
        f"return {{run = function() {LOOKS} end}}"
    )
    calls = {
        "text": LuaProgram.text(LOOKS),
        "file": LuaProgram.file(tmp_path / "here" / "looks.lua")(),
        "package": LuaProgram.package(tmp_path / "here" / "looks")(),
    }
    async with everhold.open(tmp_path / "app.db") as runtime:
        status = await runtime.start(calls[kind])
        ended = None if again else await runtime.answer(status.session_id, "yes")
    if again:
        async with everhold.open(tmp_path / "app.db") as runtime:
            ended = await runtime.answer(status.session_id, "yes")
    assert ended.result == [True, True, kind != "text"]


async def test_a_package_that_is_gone_is_missed(place):
    """The answer is kept, and the session goes on when the package is back."""
    story = place.put("story", STORY)
    async with house(place) as runtime:
        status = await runtime.start(story())
    main = place.root / "packages" / "story" / "init.lua"
    main.unlink()
    with pytest.raises(UnknownProgram):
        LuaProgram.found(story.ref)
    async with opened(place.root, replay=False) as runtime:
        assert (await runtime.answer(status.session_id, "a")).state in ("running", "accepted")
    place.put("story", STORY)
    async with house(place) as runtime:
        status = await runtime.wait(status.session_id, 30)
        assert prompts(status)[0].startswith('Line 2 after ["a"]')


async def test_a_lua_program_cannot_restart(place):
    """There is no such verb: it fails as with any other name that is not there, and says which."""
    restarts = place.put(
        "restarts", "return {run = function(ctx) alc.llm('?') alc.restart({}) end}"
    )
    async with house(place) as runtime:
        status = await runtime.start(restarts())
        end = await runtime.answer(status.queries[0], "x")
        assert (end.state, "restart" in end.error) == ("failed", True)
