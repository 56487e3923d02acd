"""One damaged row in the store: workers that meet it go on with all the others."""

from __future__ import annotations

import apsw
import asyncpg

from holdfast.app.app import Holdfast
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.states import State
from tests.crashes.waiting import all_ended

CUT = "UPDATE events SET data = '{\"policy\":1' WHERE rev = 1 AND id = "


async def test_a_worker_that_meets_an_unreadable_job_goes_on(app: Holdfast, url: str) -> None:
    bad = await app.tasks["isolated"].submit()
    good = await app.submit_many([app.tasks["isolated"].prepare() for _ in range(3)])
    await _cut_first_event(url, bad.record.id)
    for job in (*good, await app.tasks["isolated"].submit()):
        async with app.worker(concurrency=1, tick="100ms", poll="50ms") as worker:
            assert await all_ended([job]) == [State.SUCCEEDED]
        assert worker.failed is None


async def _cut_first_event(url: str, id: JobId) -> None:
    if not url.startswith("postgres"):
        connection = apsw.Connection(url)
        connection.execute("DROP TRIGGER events_fixed")
        connection.execute(CUT + "?", (id.bytes,))
        connection.close()
        return
    connection = await asyncpg.connect(url)
    await connection.execute("SET session_replication_role = replica")
    await connection.execute(CUT + "$1", id)
    await connection.close()
