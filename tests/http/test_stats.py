"""How much there is, and who works: told to each as far as it is theirs."""

from __future__ import annotations

from collections.abc import Callable

import httpx

from holdfast.http.router import Application
from holdfast.testing.factories import announcement
from tests.http.test_jobs import submitted

Call = Callable[[str | None], httpx.AsyncClient]


async def test_stats_count_jobs_queues_and_workers(
    server: Application, http: httpx.AsyncClient
) -> None:
    store = server.state.session.store
    for name in ("live", "ended"):
        await store.announce(announcement(name=name, queues=("a",), concurrency=7))
    await store.retire("ended")
    jobs = [await submitted(http, queue=queue) for queue in ("a", "a", "b")]
    await http.post(f"/v1/jobs/{jobs[-1]['id']}/cancel", json={})
    await http.post("/v1/queues/a/pause", json={})
    stats = (await http.get("/v1/stats")).json()
    assert (stats["total"], stats["jobs"]) == (3, {"queued": 2, "cancelled": 1})
    assert (stats["queues"], stats["paused"]) == (2, ["a"])
    assert stats["workers"] == {"live": 1, "silent": 0, "ended": 1, "slots": 7}


async def test_a_tenant_counts_its_own_jobs_and_the_workers_that_serve_them(
    server: Application, call: Call
) -> None:
    store = server.state.session.store
    await store.announce(announcement(name="ours", queues=("a", "b"), tasks=("theirs",)))
    await store.announce(announcement(name="others", queues=("b",)))
    await submitted(call("submitter@mine"), queue="a")
    await submitted(call("submitter@theirs"), queue="b")
    viewer = call("viewer@mine")
    stats = (await viewer.get("/v1/stats")).json()
    assert (stats["total"], stats["queues"], stats["workers"]["live"]) == (1, 1, 1)
    [worker] = (await viewer.get("/v1/workers")).json()["workers"]
    assert (worker["name"], worker["queues"], worker["tasks"]) == ("ours", ["a"], [])
    assert len((await call("viewer").get("/v1/workers")).json()["workers"]) == 2
