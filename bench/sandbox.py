"""Work of Lua programs, in the sandbox and in a plain state of the Lua library.

The plain state counts instructions, as algocline's does, because else nothing stops a program; the
bare one does not. JSON and random numbers are not in Lua itself. Beside them are what a user of the
library would write: functions of Python that the state calls.
"""

import json
import random
import time
from dataclasses import dataclass
from typing import Any, Final

from everhold.programs.lua.values import encode_lua_ctx
from everhold.programs.lua.vm import LuaVm, create_lua_state, make_vm_opening

_MEMORY: Final = 2**28
_SECONDS: Final = 120.0
#: Instructions between two calls of the hook of a plain state.
_COUNT: Final = 1000
_LIST: Final = "local t = {} for i = 1, %d do t[i] = i end"
_NAMES: Final = "local t = {} for i = 1, %d do t['name' .. i] = i end"
_SUM: Final = "local s = 0 for _, v in pairs(t) do s = s + v end"
_UNSORTED: Final = "local u = {} for i = 1, 1000 do u[i] = i * 7919 % 1009 end"
_COPY: Final = "local t = {} for i = 1, 1000 do t[i] = u[i] end"
_DRAW: Final = "local s = 0 for _ = 1, 1000 do s = s + draw(rng) end"

#: What an agent's program reads and writes: records with names, numbers, and texts of a model.
RECORDS: Final = json.dumps(
    {
        "records": [
            {
                "id": number,
                "name": f"agent {number}",
                "score": number * 0.37,
                "tags": ["first", "second", "a longer tag of some words"],
                "ok": number % 2 == 0,
                "text": f'Agent {number} said: "yes", and went on.\nThen it was quiet.',
            }
            for number in range(200)
        ]
    }
)


@dataclass(frozen=True, slots=True)
class Work:
    """`before` runs once, `work` `times` times. `plain` and `plain_before` are what a plain state
    does instead.
    """

    work: str
    times: int
    before: str = ""
    plain: str = ""
    plain_before: str = ""


WORKS: Final = {
    "loop": Work("for i = 1, 1000 do s = s + i % 7 end", 2000, "local s = 0"),
    "list": Work(_SUM, 1000, _LIST % 1000),
    "short_list": Work(_SUM, 60_000, _LIST % 6),
    "ipairs": Work("local s = 0 for _, v in ipairs(t) do s = s + v end", 1000, _LIST % 1000),
    "names": Work(_SUM, 1000, _NAMES % 1000),
    "few_names": Work(_SUM, 60_000, _NAMES % 6),
    "sort": Work(f"{_COPY} table.sort(t)", 200, _UNSORTED),
    "sort_by": Work(f"{_COPY} table.sort(t, function(a, b) return a > b end)", 100, _UNSORTED),
    "json_read": Work(
        "alc.json_decode(text)", 40, "local text = ctx.text", "read(text)", "local text = text"
    ),
    "json_write": Work(
        "alc.json_encode(value)",
        40,
        "local value = alc.json_decode(ctx.text)",
        "write(value)",
        "local value = read(text)",
    ),
    "random": Work(
        _DRAW,
        200,
        "local rng, draw = alc.math.rng_create(1), alc.math.rng_float",
        plain_before="local draw = math.random math.randomseed(1) local rng = nil",
        plain="local s = 0 for _ = 1, 1000 do s = s + draw() end",
    ),
    # as algocline has it: the generator is a value of the host, which is given to a function of it
    "host_random": Work(
        _DRAW,
        200,
        "local rng, draw = alc.math.rng_create(1), alc.math.rng_float",
        plain_before="local draw, rng = host_draw, host_rng",
    ),
}


def measure_sandbox(work: Work) -> float:
    """Seconds of CPU time."""
    code = f"{work.before} for _ = 1, {work.times} do {work.work} end return 1"
    opening = make_vm_opening(
        0.0, b"text", b"bench", code.encode(), b"=bench", *encode_lua_ctx({"text": RECORDS})
    )
    state = LuaVm(memory=_MEMORY)
    begin = time.process_time()
    came = state.go(0.0, _SECONDS, *opening)
    taken = time.process_time() - begin
    if came[1] != b"done":
        raise RuntimeError(f"the sandbox returned {came!r}")
    return taken


def measure_plain(work: Work, *, is_bare: bool = False) -> float:
    """Seconds of CPU time."""
    code = (
        f"{work.plain_before or work.before} for _ = 1, {work.times} do"
        f" {work.plain or work.work} end"
    )
    state = _make_host_state() if work.plain or work.plain_before else create_lua_state(_MEMORY)
    if not is_bare:
        state.execute(f'debug.sethook(function() end, "", {_COUNT})'.encode())
    begin = time.process_time()
    state.execute(code.encode())
    return time.process_time() - begin


def _make_host_state() -> Any:
    """A state with functions of Python, as the library has it when nothing is forbidden."""
    from lupa.lua54 import LuaRuntime, lua_type

    state = LuaRuntime()

    def to_python(value: Any) -> Any:
        if lua_type(value) != "table":
            return value
        if len(value):
            return [to_python(item) for item in value.values()]
        return {name: to_python(item) for name, item in value.items()}

    def draw(rng: random.Random) -> float:
        return rng.random()

    names = state.globals()
    names.text = RECORDS
    names.read = lambda text: state.table_from(json.loads(text), recursive=True)
    names.write = lambda value: json.dumps(to_python(value))
    names.host_draw, names.host_rng = draw, random.Random(1)
    return state
