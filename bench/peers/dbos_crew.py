"""DBOS's workers on one Postgres: workflows wait in a queue, processes take them from there and run
their steps.

Given what DBOS does not do by itself: queues that are polled every 5 ms instead of every second,
and results that are looked for every 5 ms instead of every second.
"""

from importlib.metadata import version
from time import perf_counter, sleep

import psycopg
from dbos import DBOS, DBOSClient

from bench import speak, work

QUEUE = "bench"
AT_ONCE = 32
POLL = 0.005
LOOK = 0.05
LEFT = "SELECT 1 FROM dbos.workflow_status WHERE status IN ('ENQUEUED', 'PENDING') LIMIT 1"
began: list[float] = []


@DBOS.step()
def ask(prompt: str) -> str:
    if not began:
        began.append(perf_counter())
    return work.ANSWER


@DBOS.workflow()
def calls(steps: int) -> int:
    return sum(len(ask(work.PROMPTS[n % 1000])) for n in range(steps))


class Fleet:
    """One process of a fleet."""

    def __init__(self) -> None:
        self.url = ""

    def _launch(self) -> None:
        DBOS(
            config={
                "name": "bench",
                "system_database_url": self.url,
                "application_version": "1",
                "notification_listener_polling_interval_sec": POLL,
                "sys_db_pool_size": AT_ONCE + 4,
                "log_level": "ERROR",
            }
        )
        DBOS.launch()
        DBOS.register_queue(QUEUE, worker_concurrency=AT_ONCE, polling_interval_sec=POLL)

    def open(self, url: str) -> speak.Reply:
        self.url = url
        self._launch()
        work.expect(calls(2), 2)
        DBOS.destroy()
        return {"versions": {"dbos": version("dbos")}}

    def enqueue(self, sessions: int, steps: int) -> speak.Reply:
        """Leave so many workflows for the workers."""
        client = self._client()
        for _ in range(sessions):
            client.enqueue({"queue_name": QUEUE, "workflow_name": calls.__qualname__}, steps)
        client.destroy()
        return {}

    def _client(self) -> DBOSClient:
        return DBOSClient(system_database_url=self.url, application_name="bench")

    def work(self) -> speak.Reply:
        """Be a worker until all workflows have ended; when the first step was made here, and when
        all were over.
        """
        began.clear()
        self._launch()
        with psycopg.connect(self.url, autocommit=True) as connection:
            while connection.execute(LEFT).fetchone() is not None:
                sleep(LOOK)
        ended = perf_counter()
        DBOS.destroy()
        return {"began": began[0] if began else ended, "ended": ended}

    def serve(self) -> speak.Reply:
        """Be a worker until this process is killed."""
        self._launch()
        while True:
            sleep(3600)

    def turns(self, count: int) -> speak.Reply:
        """Leave one workflow of one step at a time, and wait for its result; seconds of each."""
        client = self._client()
        taken = []
        for _ in range(count):
            before = perf_counter()
            handle = client.enqueue({"queue_name": QUEUE, "workflow_name": calls.__qualname__}, 1)
            work.expect(handle.get_result(polling_interval_sec=POLL), 1)
            taken.append(perf_counter() - before)
        client.destroy()
        return {"seconds": taken}

    def close(self) -> speak.Reply:
        return {}


def main() -> None:
    fleet = Fleet()
    verbs = ("open", "enqueue", "work", "serve", "turns", "close")
    speak.serve({name: getattr(fleet, name) for name in verbs})


if __name__ == "__main__":
    main()
