"""The agent of support.py on Postgres: six customers, two workers, and one worker is killed.

createdb support && python examples/two_workers.py        (or set EVERHOLD_DATABASE_URL)
"""

import asyncio
import os
import signal
import subprocess
import sys

from support import scripted, support

import everhold

DATABASE = os.environ.get("EVERHOLD_DATABASE_URL") or "postgresql://localhost/support"
CUSTOMERS = [f"customer-{number}" for number in range(6)]


async def work() -> None:
    """A worker, which has the model. So is `everhold worker support:support --model NAME`."""
    async with everhold.open(DATABASE, llm=scripted, recover=False) as runtime:
        worker = runtime.workers.worker(programs=["support:support"])
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.stop)
        await worker.run()


async def serve(workers: list[subprocess.Popen[bytes]]) -> None:
    """The process in front, such as a web server: it has no model and does no work."""
    async with everhold.open(DATABASE, recover=False) as runtime:
        sessions = [await runtime.session(support, customer) for customer in CUSTOMERS]
        for session in sessions:
            await session.enqueue("My lamp from order 7 arrived broken.", key="mail-1")
        for customer, session in zip(CUSTOMERS, sessions, strict=True):
            while (turn := await session.turn("mail-1")).settled is None:
                for question in turn.queries:
                    if question.kind == "approval":  # the others are for the workers' model
                        if workers[0].poll() is None:
                            workers[0].kill()
                            print("one worker was killed; the other one takes over")
                        await runtime.answer(question, True, by={"user": "maria"})
                await asyncio.sleep(0.1)
            print(f"{customer}: {turn.text}")


def main() -> None:
    command = [sys.executable, __file__, "work"]
    workers = [subprocess.Popen(command), subprocess.Popen(command)]
    try:
        asyncio.run(serve(workers))
    finally:
        for worker in workers:
            worker.terminate()
            worker.wait()


if __name__ == "__main__":
    asyncio.run(work()) if sys.argv[1:] else main()
