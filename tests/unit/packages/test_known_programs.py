"""The programs that a runtime knows."""

import pytest

import everhold
from everhold.errors import EverholdError
from everhold.packages.known_programs import KnownPrograms


async def _one(ctx):
    return 1


def test_a_program_that_was_given_is_found_in_its_version():
    """Another version of it is looked for elsewhere, and is not there."""
    given = everhold.program(version=2)(_one)
    programs = KnownPrograms(None)
    programs.add(given)
    assert programs.find(given.ref, 2) is given
    assert programs.find_newest(given.ref) is given
    with pytest.raises(EverholdError):
        programs.find("absent.py:absent", 1)
    with pytest.raises(EverholdError):
        programs.find_newest("absent.py:absent")
