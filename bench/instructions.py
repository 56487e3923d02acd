"""Instructions of a PostgreSQL backend per job, statement by statement, counted by callgrind.

`python -m bench.instructions` prints the table of docs/performance.md. Counts are the same each
time, on however busy a machine; a time is not. SQLite's measure is the steps of its machine.
"""

from __future__ import annotations

import argparse
import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from bench.contenders import OWNER, QUEUE, TASK, new_job, result_of, start_and_complete, started_ago
from bench.engines import SETTINGS
from holdfast.ids import mint_request
from holdfast.lifecycle.record import Change
from holdfast.ports.models import ClaimRequest, Committed
from holdfast.ports.store import Store
from holdfast.stores.postgres.migrate import migrate
from holdfast.stores.postgres.store import PostgresStore
from tests.support.postgres import PostgresCluster

BATCHES = (1, 250, 1000)
LARGE, SMALL = (3, 1), (5, 5)
"""How many batches come before those that are counted, and how many are: connections, plans and
caches are made by the first. A small one may meet a connection that has not planned its statement
yet, so the median is shown."""
STEPS = ("submit", "claim", "commit")
_TOTALS = re.compile(r"^totals: (\d+)", re.MULTILINE)


class CountedCluster(PostgresCluster):
    """A server under callgrind, which writes one file for each statement that was answered."""

    def __init__(self) -> None:
        """Take the settings of the benchmark; entering starts it, which takes a minute."""
        super().__init__({**SETTINGS, "fsync": "off", "autovacuum": "off"})

    @property
    def under(self) -> Sequence[str]:
        """Dump before the answer is sent: then the file is there when the client goes on."""
        return (
            *("valgrind", "--tool=callgrind", "--dump-before=ReadyForQuery", "-q"),
            f"--callgrind-out-file={self.directory}/callgrind.%p",
        )

    def take_counts(self) -> list[int]:
        """Return the instructions of each statement since the last call that wrote rows.

        Others are of services that work beside: they look at what is due, or who listens.
        """
        found = []
        for file in self.directory.glob("callgrind.*.*"):
            text = file.read_text(encoding="latin-1")
            if "ExecConstraints" in text:
                found += [int(number) for number in _TOTALS.findall(text)]
            file.unlink()
        return found


async def count_batch(cluster: CountedCluster, store: Store, batch: int) -> dict[str, int]:
    """Count the statements of one batch: its submit, its claim, its starts and successes."""
    counted = {}

    async def count(step: str, work: Callable[[], Awaitable[Any]]) -> Any:
        cluster.take_counts()
        answer = await work()
        counted[step] = sum(cluster.take_counts())
        return answer

    jobs = [new_job() for _ in range(batch)]
    await count("submit", lambda: store.submit(jobs))
    request = ClaimRequest(
        request_id=mint_request(), owner=OWNER, queues=(QUEUE,), tasks=(TASK,), limit=batch
    )
    claimed = await count("claim", lambda: store.claim(request))
    changes: list[Change] = []
    for number, one in enumerate(claimed):
        changes += start_and_complete(one.job, result_of(one.body or b""), started_ago(number))
    outcomes = await count("commit", lambda: store.commit(changes))
    if len(claimed) != batch or not all(isinstance(one, Committed) for one in outcomes):
        raise AssertionError(f"{len(claimed)} of {batch} jobs were claimed: {outcomes[:3]}")
    return counted


@contextmanager
def changed_database(cluster: CountedCluster, schema: Sequence[str]) -> Iterator[str]:
    """Make a migrated database, changed by some statements."""
    url = cluster.create_database()
    asyncio.run(migrate(url))
    for statement in schema:
        cluster.sql(statement, url.rpartition("/")[2])
    try:
        yield url
    finally:
        cluster.drop_database(url)


async def count(cluster: CountedCluster, url: str, batch: int) -> dict[str, float]:
    """Count a batch after some others in an empty database, in thousands per job."""
    store = PostgresStore(url)
    await store.open()
    try:
        warm_up, rounds = SMALL if batch < 100 else LARGE
        for _ in range(warm_up):
            await count_batch(cluster, store, batch)
        counted = [await count_batch(cluster, store, batch) for _ in range(rounds)]
    finally:
        await store.close()
    return {step: median(one[step] for one in counted) / batch / 1000 for step in STEPS}


def main() -> None:
    """Count and print."""
    parser = argparse.ArgumentParser(prog="bench.instructions", description=__doc__)
    parser.add_argument("--batches", default=",".join(map(str, BATCHES)))
    parser.add_argument("--schema", type=Path, help="SQL to run in the new database: a trial")
    given = parser.parse_args()
    schema = [given.schema.read_text()] if given.schema else []
    print(f"| batch | {' | '.join(STEPS)} |\n| --- | --- | --- | --- |")
    with CountedCluster() as cluster:
        for batch in map(int, given.batches.split(",")):
            with changed_database(cluster, schema) as url:
                counted = asyncio.run(count(cluster, url, batch))
            print(f"| {batch} | {' | '.join(f'{counted[s]:,.1f}' for s in STEPS)} |", flush=True)


if __name__ == "__main__":
    main()
