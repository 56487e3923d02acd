"""What these tests do: have workers, let them fall silent, ask why."""

from __future__ import annotations

from typing import Any, TypeVar

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import Job
from holdfast.ports.models import WORKER_SILENCE
from holdfast.ports.store import Store
from holdfast.queries.why import reasons as r
from holdfast.queries.why.why import Why, why
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.testing.factories import CONTROL, HOUR, announcement, fresh, owner_of
from holdfast.testing.store_actions import do, running_job
from holdfast.testing.store_actions import submit_one as submit

B = TypeVar("B", bound=r.ReasonBase)
ERROR = b'{"type":"ValueError","message":"boom","traceback":"..."}'


async def worker(store: Store, **wishes: Any) -> str:
    """Have a worker say that it lives."""
    said = announcement(**{"name": fresh("worker"), "concurrency": 4} | wishes)
    await store.announce(said)
    return said.name


async def silence(store: Any, name: str) -> None:
    """Let a worker have been seen too long ago."""
    if isinstance(store, SqliteStore):
        sql = "UPDATE workers SET seen_at = seen_at - ? WHERE name = ?"
        await store._session.perform(
            lambda turn: turn.connection.execute(sql, (WORKER_SILENCE, name))
        )
    else:
        sql = "UPDATE workers SET seen_at = seen_at - $1 WHERE name = $2"
        await store._session.fetch(sql, WORKER_SILENCE, name)


async def served(store: Store, **wishes: Any) -> tuple[Job, str]:
    """A queued job of a queue that a worker serves."""
    queue = fresh("queue")
    name = await worker(store, queues=(queue,))
    return await submit(store, queue=queue, **wishes), name


async def ask(store: Store, job: Job, kind: type[B]) -> tuple[Why, B]:
    """Ask why; the first reason must be of this kind, and be told."""
    answer = await why(store, job.id)
    assert isinstance(answer.reason, kind), answer.text
    assert answer.state is job.state
    assert answer.text.startswith(answer.reason.sentence(answer.now))
    return answer, answer.reason


def codes(answer: Why) -> list[str]:
    return [one.code for one in answer.also]


async def retrying(store: Store, **wishes: Any) -> Job:
    queue = fresh("queue")
    await worker(store, queues=(queue,))
    job = await running_job(store, queue=queue, **wishes)
    given: dict[str, Any] = {"error_code": "handler_error", "body": ERROR, "retry_in": HOUR}
    return await do(store, job, c.Retry(actor=owner_of(job), **given))


async def unkillable(store: Store) -> Job:
    job = await running_job(store)
    job = await do(store, job, c.RequestCancel(actor=CONTROL))
    said = c.Progress(actor=owner_of(job), unkillable=True, reason="a thread")
    return await do(store, job, said)
