"""How many instructions of the Lua machine the sandbox adds to what programs do most.

Time depends on the machine, and on what else runs there. These counts do not.
"""

from typing import Any

import pytest

from everhold.programs.lua import vm
from tests.failures import collect_failures

#: Counts the instructions of every coroutine, also of those that the sandbox leaves without a hook.
COUNTING = b"""
local sethook, n = debug.sethook, 0
local function count() n = n + 1 end
debug.sethook = function(co) sethook(co, count, "", 1) end
return function() return n end
"""

#: What comes before, what is counted, for how many items, and the limit of instructions for each.
WORK: dict[str, tuple[str, str, int, float]] = {
    "a number of a list, by pairs": (
        "local t = {} for i = 1, N do t[i] = i end for _ in pairs(t) do end",
        "for _, v in pairs(t) do end",
        1000,
        8,
    ),
    "a number of a list, by ipairs": (
        "local t = {} for i = 1, N do t[i] = i end",
        "for _, v in ipairs(t) do end",
        1000,
        2,
    ),
    "a name of many, by pairs": (
        "local t = {} for i = 1, N do t['k' .. i] = i end for _ in pairs(t) do end",
        "for _, v in pairs(t) do end",
        1000,
        13,
    ),
    "a name of a few, by pairs": (
        "local t = {a = 1, b = 2, c = 3, d = 4, e = 5} for _ in pairs(t) do end",
        "for _, v in pairs(t) do end",
        5,
        25,
    ),
    "a number of a short list, by pairs": (
        "local t = {1, 2, 3, 4, 5} for _ in pairs(t) do end",
        "for _, v in pairs(t) do end",
        5,
        21,
    ),
    "a number of a list that begins with 0, by pairs": (
        "local t = {} for i = 0, N - 1 do t[i] = i end",
        "for _, v in pairs(t) do end",
        1000,
        17,
    ),
    "a float of a generator": (
        "local rng, draw = alc.math.rng_create(1), alc.math.rng_float draw(rng)",
        "for _ = 1, N do draw(rng) end",
        4096,
        142,
    ),
    "a whole number of a generator": (
        "local rng, draw = alc.math.rng_create(1), alc.math.rng_int draw(rng, 1, 9)",
        "for _ = 1, N do draw(rng, 1, 9) end",
        4096,
        156,
    ),
    "a record that is read as JSON": (
        'local s = \'[\' .. (\'{"id": 1, "name": "x", "score": 0.5, "ok": true}, \'):rep(N)'
        " .. '0]' alc.json_decode(s)",
        "alc.json_decode(s)",
        1000,
        235,
    ),
    "a record that is written as JSON": (
        "local t = {} for i = 1, N do t[i] = {id = i, name = 'x', ok = true} end"
        " alc.json_encode(t)",
        "alc.json_encode(t)",
        1000,
        210,
    ),
}


@pytest.fixture
def count(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the instructions of a program."""
    create = vm.create_lua_state
    readers: list[Any] = []

    def create_counting(memory: int) -> Any:
        state = create(memory)
        readers[:] = [state.execute(COUNTING)]
        return state

    for name in ("sandbox", "launch", "pairs", "json", "json_decode", "layer0", "alc_math"):
        vm._code(name)  # compiled in a state that counts nothing
    vm._places()
    vm._places(True)

    def instructions(code: str) -> int:
        with monkeypatch.context() as patch:
            patch.setattr(vm, "create_lua_state", create_counting)
            machine = vm.LuaVm(memory=2**29)
        opening = vm.make_vm_opening(0.0, b"text", b"code", code.encode(), b"=code")
        came = machine.go(0.0, 60.0, *opening)
        assert came[1] == b"done", came
        found: int = readers[0]()
        return found

    return instructions


def test_common_work_takes_few_instructions(count: Any) -> None:
    with collect_failures() as row:
        for what, (before, work, times, limit) in WORK.items():
            with row(what):
                code = f"local N = {times} {before} "
                one, many = count(f"{code} {work}"), count(f"{code} {work} {work} {work}")
                each = (many - one) / 2 / times
                assert each <= limit, f"{each:.1f} instructions"
