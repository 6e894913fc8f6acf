"""The suite itself: every promise of the port has its tests, and a stranger can run them."""

import inspect
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from everhold.ports import store as port
from everhold.stores.memory import MemoryIntake, MemoryStore
from everhold.testing.conformance import DurableStoreContract, MaintenanceContract, StoreContract

# A promise of the port, by its first words: the tests that would fail without it.
KEPT = {
    "still be the version at the commit": [
        "test_another_version_is_overtaken",
        "test_a_deleted_value_is_remembered",
    ],
    "survive power loss": ["test_a_durable_change_survives"],
    "raise `Overtaken`, and change nothing, if the stored revision": [
        "test_another_fence_is_overtaken",
        "test_an_unknown_session_is_overtaken",
        "test_a_forgotten_session_is_overtaken",
        "test_one_of_many_wins",
        "test_a_fence_holds_between_two",
    ],
    "raise `KeyConflict` if a new session's key is taken": [
        "test_a_key_is_used_once",
        "test_an_id_is_used_once",
        "test_a_child_that_cannot_be_refuses_the_step",
        "test_a_key_holds_between_two",
    ],
    "raise `Overtaken` if a written value": [
        "test_another_version_is_overtaken",
        "test_increments_are_not_lost",
    ],
    "store the change before it returns": [
        "test_what_was_committed_survives",
        "test_what_was_committed_survives_a_death",
        "test_closing_loses_nothing",
        "test_nobody_waits_for_a_closed_store",
        "test_a_durable_change_survives",
    ],
    "not let a refused change harm another": [
        "test_one_refusal_harms_nobody",
        "test_one_bad_number_harms_nobody",
        "test_one_taken_key_harms_nobody",
        "test_one_bad_text_harms_nobody",
        "test_one_who_gives_up_harms_nobody",
    ],
    "set `change.head.ref`": ["test_a_new_session_gets_its_number"],
    "have called `wake`, or return True from": ["test_who_listens_hears_in_time"],
    "raise `UnknownSession` if there is none": [
        "test_only_the_exact_id_is_known",
        "test_nothing_is_attached_to_nobody",
    ],
    "run one act at a time per session": [
        "test_one_of_many_gets_it",
        "test_one_of_many_claims",
        "test_all_who_come_at_once_come_in",
        "test_a_refusal_among_cancels_changes_nothing",
        "test_a_lease_holds_between_two",
        "test_a_claim_holds_between_two",
        "test_what_is_sent_through_two",
    ],
    "write nothing if nothing was changed": ["test_a_look_changes_nothing", "test_looking_at_it"],
    "use the time of one clock for all processes. MUST run": [
        "test_time_is_the_stores",
        "test_a_store_has_a_clock_of_its_own",
        "test_one_clock_for_both",
    ],
    "run `Change.intake` in the same way": [
        "test_all_lands_together",
        "test_a_lost_claim_undoes_all",
        "test_a_refused_commit_leaves_the_intake_alone",
        "test_one_refused_act_harms_nobody",
        "test_a_session_that_is_not_born_has_no_intake",
    ],
    "include ended sessions with queued items": ["test_who_has_to_be_seen_to"],
    "find nothing in a sound store, except warnings": [
        "test_a_whole_life_in_one_change",
        "test_acts_and_commits_at_once",
        "test_both_write_at_once",
    ],
    "raise and promise what `commit` does": [
        "test_a_change_lands_without_waiting_or_not_at_all",
        "test_a_late_change_does_not_land_without_waiting",
    ],
    "raise `Overtaken`, and change nothing, if one has another version": [
        "test_another_version_of_a_duty_is_overtaken",
        "test_a_duty_that_is_gone_is_overtaken",
        "test_one_of_many_does_it",
        "test_one_of_two_does_it",
    ],
    "store them before it returns.": [
        "test_a_duty_is_read_as_it_was_written",
        "test_what_was_committed_survives_a_death",
    ],
    "store them before it returns, even if another": [
        "test_what_is_kept_is_read_again",
        "test_what_was_committed_survives",
    ],
    "raise `UnknownAttachment` for all others": [
        "test_another_session_cannot_read_it",
        "test_a_fork_reads_what_was_kept_before_it_differed",
    ],
    "use the time of one clock for all processes, not the worker": [
        "test_a_worker_ages_until_its_next_beat",
        "test_workers_live_by_the_clock_of_the_store",
    ],
    "refuse bytes that do not match": ["test_bytes_that_are_not_what_they_are_called"],
    "leave everything that a session may read": ["test_what_is_kept_meanwhile_stays"],
    "find nothing more when called again": ["test_there_is_nothing_to_reclaim"],
    "delete bytes with the last session": [
        "test_what_is_kept_goes_with_its_session",
        "test_a_fork_outlives_what_it_shares",
    ],
    "include the deliveries that a fork shares": [
        "test_a_fork_reads_what_it_shares",
        "test_a_fork_of_a_fork",
        "test_since_inside_what_is_shared",
    ],
    "keep what a fork shares, and hide the rest": [
        "test_what_a_fork_shares_is_kept",
        "test_a_deleted_session_is_gone",
        "test_a_chain_without_its_middle",
    ],
    "free its key at once, and store the session's id": ["test_a_deleted_key_is_remembered"],
    "store `by`, if it is given": ["test_who_deleted_a_session_is_remembered"],
}
SOURCE = Path(port.__file__).resolve().parents[2]
PROMISES = re.findall(
    r"\bMUST (?!is a test)(?=(.{1,200}))", " ".join(inspect.getsource(port).split())
)


class Everything(DurableStoreContract, MaintenanceContract):
    """All contracts together."""


TESTS = {name: test for name, test in inspect.getmembers(Everything) if name.startswith("test_")}


def test_every_promise_has_its_tests():
    """A MUST of the port without tests is only a wish."""
    for promise in PROMISES:
        found = [tests for words, tests in KEPT.items() if promise.startswith(words)]
        assert len(found) == 1, promise
        assert set(found[0]) <= set(TESTS), promise


def test_no_test_is_kept_for_a_promise_that_is_gone():
    """The table above holds nothing that the port does not say."""
    assert [
        words for words in KEPT if not any(promise.startswith(words) for promise in PROMISES)
    ] == []


def test_every_test_is_a_claim():
    """A test says in a sentence what it claims."""
    assert [
        name for name, test in TESTS.items() if not (test.__doc__ or "").rstrip().endswith(".")
    ] == []


def test_no_test_hides_another():
    """Two rooms never use the same name: one of the tests would silently not run."""
    rooms = [room for room in Everything.__mro__ if room is not object]
    names = [name for room in rooms for name in vars(room) if name.startswith("test_")]

    assert sorted(names) == sorted(set(names))


def run_as_a_stranger(tmp_path, body, *options):
    """Run a test file with nothing but pytest: no plugins, no settings of ours."""
    (tmp_path / "test_mine.py").write_text(textwrap.dedent(body))
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-c",
            os.devnull,
            "--rootdir",
            ".",
            "-p",
            "no:cacheprovider",
            "-W",
            "error",
            *options,
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
    )


@pytest.mark.process
def test_a_stranger_can_run_it(tmp_path):
    """A third party's store is proven with one class and no plugin."""
    done = run_as_a_stranger(
        tmp_path,
        """
        import pytest
        from everhold.stores.memory import MemoryStore
        from everhold.testing.conformance import StoreContract

        class TestMine(StoreContract):
            @pytest.fixture
            def open_store(self):
                return MemoryStore

            async def test_of_my_own(self, store):
                assert store.where == "memory"
        """,
    )

    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d{3} passed", done.stdout, re.MULTILINE)


@pytest.mark.process
def test_a_stranger_is_told_what_is_wrong(tmp_path):
    """A broken store fails with the values that differ; a forgotten fixture with what to do."""
    done = run_as_a_stranger(
        tmp_path,
        """
        import pytest
        from everhold.stores.memory import MemoryStore
        from everhold.testing.conformance import StoreContract

        class Silent(MemoryStore):
            async def next_due(self):
                return 7.0

        class TestBroken(StoreContract):
            @pytest.fixture
            def open_store(self):
                return Silent

        class TestForgotten(StoreContract):
            pass
        """,
        "-k",
        "due",
    )

    assert "assert 7.0 is None" in done.stdout
    assert "define the fixture open_store" in done.stdout


def broken(name, **members):
    return pytest.param(type(name, (MemoryStore,), members), id=name)


async def _twice(self, change, fence):
    await MemoryStore.commit(self, change, fence)
    self._sessions[change.id].rows += self._sessions[change.id].rows[-1:]


async def _late(self, change, fence):
    held = self._sessions.get(change.id)
    await MemoryStore.commit(self, change, fence if held is None else held.head.revision)


async def _forgetful(self, session_id, fence):
    kept = await MemoryStore.delete(self, session_id, fence)
    self._buried.clear()
    return kept


async def _stateless(self, change, fence):
    change.writes = [
        port.ValueWrite(
            one.namespace, one.key, one.value, (await self.value(one.namespace, one.key))[1]
        )
        for one in change.writes
    ]
    await MemoryStore.commit(self, change, fence)


async def _eager(self, change, fence):
    self._values.update(
        {(one.namespace, one.key): ("[0]", one.version + 1) for one in change.writes}
    )
    await MemoryStore.commit(self, change, fence)


async def _deaf(self, **wanted):
    return (await MemoryStore.inbox(self, **wanted))[::-1]


async def _carefree(self, session_id, act, *, named=(), **more):
    held = self._intakes.setdefault(session_id, MemoryIntake())
    given = held.read(session_id, self._known(session_id).head, self.now(), named, **more)
    try:
        return act(given)
    finally:
        held.write(given)


async def _sleepy(self, session_id, act, **more):
    return await MemoryStore.intake(
        self, session_id, lambda intake: _at(intake, 1000.0, act), **more
    )


def _at(intake, now, act):
    intake.now = now
    return act(intake)


async def _short(self, session_id, act, **more):
    return await MemoryStore.intake(self, session_id, act)


async def _apart(self, change, fence):
    act, change.intake = change.intake, None
    await MemoryStore.commit(self, change, fence)
    if act is not None:
        await self.intake(change.id, act, named=change.named)


async def _before(self, change, fence):
    act, change.intake = change.intake, None
    if act is not None and fence:
        await self.intake(change.id, act, named=change.named)
    await MemoryStore.commit(self, change, fence)


async def _greedy(self, owner, ttl):
    owners = {door.lease.owner for door in self._intakes.values() if door.lease is not None}
    return [id for each in owners for id in await MemoryStore.keep(self, each, ttl)]


async def _blind(self, now, living, *, parked=False, limit=100):
    found = await MemoryStore.unmoved(self, now, living, parked=parked, limit=limit)
    return [one for one in found if not self._known(one.id).head.ended]


async def _hasty(self, duties):
    for one in duties:
        await MemoryStore.undertake(self, [one])


async def _lenient(self, duties):
    now = [await self.duty(one.kind, one.id) for one in duties]
    fresh = [
        port.Duty(one.kind, one.id, one.body, one.due_at, 0 if was is None else was.version)
        for one, was in zip(duties, now, strict=True)
    ]
    await MemoryStore.undertake(self, fresh)


@pytest.mark.parametrize(
    "store",
    [
        broken("keeps_what_was_refused", intake=_carefree),
        broken("has_no_clock", intake=_sleepy),
        broken("does_not_look_for_what_has_ended", intake=_short),
        broken("acts_after_the_commit", commit=_apart),
        broken("acts_before_the_commit", commit=_before),
        broken("renews_what_is_not_his", keep=_greedy),
        broken("does_not_see_the_ended", unmoved=_blind),
        broken("undertakes_one_by_one", undertake=_hasty),
        broken("has_no_versions_of_duties", undertake=_lenient),
        broken("delivers_twice", commit=_twice),
        broken("has_no_fence", commit=_late),
        broken("forgets_what_is_shared", delete=_forgetful),
        broken("has_no_versions", commit=_stateless),
        broken("writes_before_it_checks", commit=_eager),
        broken("shows_the_newest_first", inbox=_deaf),
    ],
)
def test_a_broken_store_is_found(store, tmp_path):
    """A store that breaks a promise fails at least one test."""
    room = StoreContract()
    failed = []
    for name in TESTS.keys() & {name for name, _ in inspect.getmembers(StoreContract)}:
        if inspect.signature(TESTS[name]).parameters.keys() == {"self", "store"}:
            try:
                getattr(room, name)(store=store())
            except AttributeError:  # a mistake in the broken store itself would prove nothing
                raise
            except (Exception, pytest.fail.Exception):
                failed.append(name)

    assert failed
