"""everhold with a Lua program: in this process, as a file that the user trusts, or as text in a
worker process.
"""

import asyncio
import gc
import os
import time
from pathlib import Path
from typing import Any

from bench import speak
from bench.ours import VERBS, Ours, resident  # first: it notes SQLite's connections
from everhold.packages.lua.trust import trust_package
from everhold.programs.lua.program import LuaProgram
from everhold.programs.lua.vm import LuaVm, create_lua_state, make_vm_opening

CHAIN = Path(__file__).with_name("chain.lua")
TEXT = f"local M = (function() {CHAIN.read_text()} end)() return M.run(ctx)"

SEEDED = b"""
local rng, sum = alc.math.rng_create(1), 0
for i = 1, %d do sum = sum + alc.math.rng_float(rng) end
return 1"""
PLAIN = b"math.randomseed(1) local sum = 0 for i = 1, %d do sum = sum + math.random() end"


class Lua(Ours):
    """The verbs of everhold, `hold` and `random`. `form` is "here" or "worker"."""

    def __init__(self) -> None:
        super().__init__()
        self.form = ""
        self.file: LuaProgram | None = None

    async def open(self, level: str, path: str, form: str = "here") -> speak.Reply:
        # The mark of trust goes beside the database, not among the user's own.
        os.environ["HOME"] = os.environ["XDG_DATA_HOME"] = str(Path(path).parent)
        trust_package(CHAIN)
        self.form, self.file = form, LuaProgram.file(CHAIN)
        return await super().open(level, path)

    def call(self, pauses: int) -> Any:
        assert self.file is not None
        return (
            self.file(pauses=pauses)
            if self.form == "here"
            else LuaProgram.text(TEXT, {"pauses": pauses})
        )

    async def hold(self, sessions: int) -> speak.Reply:
        """The memory of paused sessions that are all live in this process."""
        self.cache = sessions + 10
        await self._reopen()
        await self.park(10)
        gc.collect()
        before = resident()
        await self.park(sessions)
        gc.collect()
        return {"kilobytes": (resident() - before) * 1e3 / sessions}

    async def random(self, draws: int) -> speak.Reply:
        """CPU seconds of a number from a generator of `alc.math` in the sandbox, and of one from
        `math.random` in plain Lua.
        """
        sandbox = LuaVm()
        begin = time.process_time()
        came = sandbox.go(
            0.0, 60.0, *make_vm_opening(0.0, b"text", b"random", SEEDED % draws, b"=random")
        )
        ours = time.process_time() - begin
        assert came[1] == b"done", came
        plain = create_lua_state(2**24)
        begin = time.process_time()
        plain.execute(PLAIN % draws)
        return {"ours": ours / draws, "plain": (time.process_time() - begin) / draws}


def main() -> None:
    lua = Lua()
    asyncio.run(
        speak.serve_async({name: getattr(lua, name) for name in (*VERBS, "hold", "random")})
    )


if __name__ == "__main__":
    main()
