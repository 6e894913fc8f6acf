"""everhold with a Lua program: in this process, as a file that the user trusts, or as text in a
worker process.
"""

import asyncio
import gc
import os
from pathlib import Path
from typing import Any

from bench import speak
from bench.ours import VERBS, Ours, resident  # first: it notes SQLite's connections
from bench.sandbox import WORKS, measure_plain, measure_sandbox
from everhold.packages.lua.trust import trust_package
from everhold.programs.lua.program import LuaProgram

CHAIN = Path(__file__).with_name("chain.lua")
TEXT = f"local M = (function() {CHAIN.read_text()} end)() return M.run(ctx)"


class Lua(Ours):
    """The verbs of everhold, `hold` and `beside`. `form` is "here" or "worker"."""

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

    async def beside(self, work: str) -> speak.Reply:
        """CPU seconds of a work in the sandbox, and in a plain and a bare Lua state."""
        chosen = WORKS[work]
        return {
            "ours": measure_sandbox(chosen),
            "plain": measure_plain(chosen),
            "bare": measure_plain(chosen, is_bare=True),
        }


def main() -> None:
    lua = Lua()
    asyncio.run(
        speak.serve_async({name: getattr(lua, name) for name in (*VERBS, "hold", "beside")})
    )


if __name__ == "__main__":
    main()
