"""A thousand documents. The process is killed in the middle and started again: only the answers
that are missing are asked for, and paid for.

python examples/documents.py
"""

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import everhold

DATABASE, BILL = "sqlite:///documents.db", Path("bill.txt")
DOCUMENTS = [f"Document {number}, as long as you like" for number in range(1000)]
AT_ONCE, COUNT = asyncio.Semaphore(20), itertools.count(1)


@everhold.program
async def sort(ctx: everhold.Context, documents: list[str]) -> dict[str, int]:
    kinds = await ctx.llm_batch([f"Is it a letter or an invoice? {text}" for text in documents])
    return dict(Counter(kinds))


async def model(query: everhold.Query) -> str:
    """Stands for a model and its bill; llm="anthropic:claude-sonnet-4-6" is a real one."""
    async with AT_ONCE:
        with BILL.open("a") as bill:
            bill.write(f"{query.id}\n")
        await asyncio.sleep(0.01)
        if next(COUNT) == 600:
            os.kill(os.getpid(), signal.SIGKILL)
        return "letter" if "7" in query.prompt else "invoice"


def start() -> int:
    return subprocess.run([sys.executable, __file__, "work"]).returncode


if __name__ == "__main__":
    if sys.argv[1:]:
        limit = {"max_tokens": 50_000}
        print(everhold.run(sort(DOCUMENTS), key="post", llm=model, database=DATABASE, budget=limit))
    else:
        os.chdir(tempfile.mkdtemp(prefix="documents-"))
        assert start() == -signal.SIGKILL
        with everhold.open_blocking(DATABASE, recover=False) as runtime:
            missing = len(runtime.status("post").waiting_for)
        before = len(BILL.read_text().splitlines())
        print(f"killed after {before} calls; {1000 - missing} answers are recorded", flush=True)
        assert start() == 0
        after = len(BILL.read_text().splitlines()) - before
        print(f"{after} calls by the second process, one for each answer that was missing")
        assert 0 < after == missing
