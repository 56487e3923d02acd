"""A server killed between commit and answer: the client asks again, and there is one job."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Client, Holdfast
from holdfast.maintenance.verify import LedgerProblem, verify
from holdfast.ports.models import Query
from holdfast.wiring import migrate, opened, read_address
from tests.support.serving import Served

AT_THE_SECOND_ANSWER = {"HOLDFAST_DIE_AT": "http.answering:2"}
"""The first answer tells that it lives, the second is to the request under test."""


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store."""
    if request.param == "sqlite":
        url = str(tmp_path / "jobs.db")
    else:
        url = request.getfixturevalue("postgres_url")
    asyncio.run(migrate(read_address(url)))
    return url


@pytest.fixture
def served(store: str, tmp_path: Path) -> Iterator[Served]:
    """A server of it, not started."""
    with Served(store, tmp_path) as server:
        yield server


def jobs_in(store: str) -> list[str]:
    """List what is really there, and see that it is sound."""

    async def read() -> list[str]:
        async with opened(read_address(store)) as open_store:
            problems: list[LedgerProblem] = []
            await verify(open_store, on_problem=problems.append)
            assert problems == []
            return [job.public_id for job in (await open_store.find(Query())).jobs]

    return asyncio.run(read())


def restarted(served: Served) -> threading.Thread:
    """Start the server again as soon as it has died."""

    def again() -> None:
        assert served.died() == -signal.SIGKILL
        served.start()

    thread = threading.Thread(target=again)
    thread.start()
    return thread


def test_a_submit_committed_and_not_answered_is_one_job(served: Served, store: str) -> None:
    served.start(AT_THE_SECOND_ANSWER)
    client = Client(served.url, patience="60s")
    after = restarted(served)
    job = client.submit_sync("other", a=1)
    after.join()
    assert job.created
    assert [one.id for one in client.jobs_sync(limit=5, task="other")] == [job.id]
    assert client.why_sync(job).reason.code == "no_worker"
    assert [one.queue for one in client.queues_sync()] == ["default"]
    assert client.workers_sync().workers == []
    assert jobs_in(store) == [job.id]
    client.close_sync()


def test_many_submits_committed_and_not_answered_are_made_once(served: Served, store: str) -> None:
    served.start(AT_THE_SECOND_ANSWER)
    client = Client(served.url, patience="60s")
    after = restarted(served)
    task = client.named("other")
    jobs = client.submit_many_sync([task.prepare(number=number) for number in range(20)])
    after.join()
    assert all(job.created for job in jobs)
    assert sorted(jobs_in(store)) == sorted(job.id for job in jobs)
    client.close_sync()


def test_a_signal_committed_and_not_answered_is_sent_once(served: Served, store: str) -> None:
    app = Holdfast(store)
    job_id = app.submit_sync("other").id
    served.start({"HOLDFAST_DIE_AT": "http.answering:3"})
    client = Client(served.url, patience="60s")
    job = client.get_sync(job_id)
    after = restarted(served)
    job.signal_sync("go")
    after.join()
    assert [signal.name for signal in job.record.signals] == ["go"]
    events = app.run_sync(app.get_sync(job_id).events(), "it")
    assert [event.type for event in events] == ["job_created", "signal_received"]
    client.close_sync()
    app.close_sync()


def test_whoever_waits_outlives_the_server(served: Served, store: str) -> None:
    app = Holdfast(store)
    served.start()
    client = Client(served.url, patience="60s")
    job = client.submit_sync("other")
    results: list[str] = []
    waiting = threading.Thread(target=lambda: results.append(job.wait_sync("60s").value))
    waiting.start()
    served.kill()
    app.get_sync(job.id).cancel_sync()
    served.start()
    waiting.join()
    assert results == ["cancelled"]
    client.close_sync()
    app.close_sync()
