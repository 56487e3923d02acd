"""Who is measured: a store through its public protocol, and the floor, on the same workload."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import count
from typing import Any, Protocol

import apsw
import asyncpg

from holdfast.ids import mint_id, mint_request
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.decide import decide
from holdfast.lifecycle.execution_policy import DEFAULT_POLICY, policy_key
from holdfast.lifecycle.payload import DIGEST_SIZE, encode_body
from holdfast.lifecycle.record import Actor, Change, Job, NewJob
from holdfast.lifecycle.states import EventType, Role, State
from holdfast.lifecycle.submission import Submission
from holdfast.lifecycle.submit import submit
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import ClaimRequest, Committed, Submitted
from holdfast.ports.store import Store
from holdfast.stores.columns import created_text
from holdfast.stores.sql_files import blocks

QUEUE, TASK, OWNER = "mail", "send_welcome", "worker-7f3a"
GATEWAY = Actor(Role.GATEWAY, "bench")
_numbers = count(1)


def new_job(**fields: Any) -> NewJob:
    """Decide a submit: a small payload that is not the same twice, nothing else special."""
    body = encode_body({"to": f"user-{next(_numbers)}@example.org", "template": "welcome"})
    given: dict[str, Any] = {"id": mint_id(), "task": TASK, "queue": QUEUE, "body": body} | fields
    return submit(Submission(**given), GATEWAY)


def result_of(body: bytes | str) -> bytes:
    """Do the job: a result that is not the same twice."""
    return encode_body({"sent": len(body)}, "result")


def started_ago(number: int) -> int:
    """Return how many microseconds before its commit a job started: not the same for all."""
    return 1 + number % 7


class Contender(Protocol):
    """Something that takes jobs and brings them to their end, batch by batch."""

    name: str

    async def open(self) -> None:
        """Connect."""

    async def close(self) -> None:
        """Let go."""

    def prepare(self, jobs: Sequence[NewJob]) -> Any:
        """Lay a batch out before the clock runs."""

    async def submit(self, prepared: Any) -> None:
        """Write a batch of new jobs."""

    async def cycle(self, limit: int) -> int:
        """Claim, start and complete up to a number of jobs; return how many there were."""


class StoreContender:
    """A store, used as a worker that folds start and completion would."""

    name = "store"

    def __init__(self, store: Store) -> None:
        """Measure this one."""
        self.store = store

    async def open(self) -> None:
        """Connect."""
        await self.store.open()

    async def close(self) -> None:
        """Let go."""
        await self.store.close()

    def prepare(self, jobs: Sequence[NewJob]) -> Any:
        """A store takes decided jobs as they are."""
        return jobs

    async def submit(self, prepared: Any) -> None:
        """Submit a batch, and look at every answer."""
        for outcome in await self.store.submit(prepared):
            if not isinstance(outcome, Submitted) or not outcome.created:
                raise AssertionError(f"a submit was not accepted: {outcome}")

    async def cycle(self, limit: int) -> int:
        """Claim, decide start and complete, commit them folded, and look at every answer."""
        request = ClaimRequest(
            request_id=mint_request(), owner=OWNER, queues=(QUEUE,), tasks=(TASK,), limit=limit
        )
        claimed = await self.store.claim(request)
        changes: list[Change] = []
        for number, one in enumerate(claimed):
            changes += start_and_complete(one.job, result_of(one.body or b""), started_ago(number))
        for outcome in await self.store.commit(changes):
            if not isinstance(outcome, Committed):
                raise AssertionError(f"a commit was not accepted: {outcome}")
        return len(claimed)


def start_and_complete(job: Job, result: bytes, ago: int) -> tuple[Change, Change]:
    """Decide what a worker decides about a short job."""
    actor = Actor(Role.OWNER, OWNER, job.attempt)
    started = decide(job, c.Start(actor=actor, ago=ago))
    assert isinstance(started, Change), started
    completed = decide(started.next, c.Complete(actor=actor, body=result))
    assert isinstance(completed, Change), completed
    return started, completed


_POLICY = policy_key(DEFAULT_POLICY)
_SHARED = new_job()
_DATA = created_text(_SHARED.event)
_ACTOR = _SHARED.event.actor


def _digest(text: bytes) -> bytes:
    return blake2b(text, digest_size=DIGEST_SIZE).digest()


class PostgresFloor:
    """The same rows on PostgreSQL, by three hand-written statements on one connection."""

    name = "floor"

    def __init__(self, url: str) -> None:
        """Measure what this database can do."""
        self._url = url
        self._sql = blocks("bench", "floor_postgres.sql")
        self._connection: Any = None

    async def open(self) -> None:
        """Connect: prepared statements, one plan for each that does not start with a scan."""
        settings = {"plan_cache_mode": "force_generic_plan", "jit": "off", "enable_seqscan": "off"}
        self._connection = await asyncpg.connect(
            self._url, server_settings=settings, max_cacheable_statement_size=0
        )

    async def close(self) -> None:
        """Let go."""
        await self._connection.close()

    def prepare(self, jobs: Sequence[NewJob]) -> Any:
        """Lay out the columns."""
        return (
            [job.record.id for job in jobs],
            [(job.event.body or b"").decode() for job in jobs],
            [job.event.digest for job in jobs],
        )

    async def submit(self, prepared: Any) -> None:
        """Write a batch of new jobs."""
        shared = (_POLICY, TASK, QUEUE, _ACTOR, _DATA)
        await self._connection.execute(self._sql["submit"], *prepared, *shared)

    async def cycle(self, limit: int) -> int:
        """Claim, then start and complete."""
        rows = await self._connection.fetch(
            self._sql["claim"], QUEUE, limit, OWNER, mint_request(), TASK
        )
        if not rows:
            return 0
        results = [result_of(row[1]) for row in rows]
        done = await self._connection.fetchval(
            self._sql["complete"],
            [row[0] for row in rows],
            [result.decode() for result in results],
            [_digest(result) for result in results],
            [started_ago(number) for number in range(len(rows))],
            OWNER,
            mint_request(),
        )
        if done != len(rows):
            raise AssertionError(f"the floor completed {done} of {len(rows)} jobs")
        return len(rows)


class SqliteFloor:
    """The same rows on SQLite, by hand-written statements on one connection, in this thread."""

    name = "floor"

    def __init__(self, path: str, clock: Any) -> None:
        """Measure what this file can do; `clock` reads microseconds."""
        self._path = path
        self._clock = clock
        self._sql = blocks("bench", "floor_sqlite.sql")
        self._connection: Any = None

    async def open(self) -> None:
        """Connect with the store's durability."""
        self._connection = apsw.Connection(self._path)
        self._connection.pragma("journal_mode", "wal")
        self._connection.pragma("synchronous", "full")

    async def close(self) -> None:
        """Let go."""
        self._connection.close()

    def prepare(self, jobs: Sequence[NewJob]) -> Any:
        """Lay out the rows, but for their time."""
        return [
            (job.record.id.bytes, (job.event.body or b"").decode(), job.event.digest)
            for job in jobs
        ]

    async def submit(self, prepared: Any) -> None:
        """Write a batch of new jobs."""
        run, sql = self._connection, self._sql
        run.execute("BEGIN IMMEDIATE")
        now = self._clock()
        run.executemany(
            sql["submit_job"], [(id_, now, _POLICY, TASK, QUEUE) for id_, _, _ in prepared]
        )
        run.executemany(
            sql["submit_event"],
            [(id_, now, _ACTOR, _DATA, body, digest) for id_, body, digest in prepared],
        )
        run.execute("COMMIT")

    async def cycle(self, limit: int) -> int:
        """Claim, then start and complete."""
        rows = self._claim(limit)
        if rows:
            self._complete(rows)
        return len(rows)

    def _claim(self, limit: int) -> list[Any]:
        run, sql, request = self._connection, self._sql, mint_request()
        run.execute("BEGIN IMMEDIATE")
        now = self._clock()
        rows = run.execute(sql["claim"], (QUEUE, now, limit, TASK)).fetchall()
        run.executemany(sql["claim_job"], [(id_, OWNER, now) for id_, _ in rows])
        run.executemany(sql["claim_event"], [(id_, OWNER, now, request) for id_, _ in rows])
        run.execute("COMMIT")
        return list(rows)

    def _complete(self, rows: Sequence[Any]) -> None:
        # No request_id, as the store writes none: in one process no reply is ever lost.
        run, sql, request = self._connection, self._sql, None
        results = [result_of(body) for _, body in rows]
        digests = [_digest(result) for result in results]
        run.execute("BEGIN IMMEDIATE")
        now, before = self._clock(), run.total_changes()
        jobs: list[Any] = []
        events: list[Any] = []
        for number, (id_, _) in enumerate(rows):
            ago = started_ago(number)
            lease = now + 30 * SECOND - ago
            jobs.append((id_, now, digests[number], OWNER, ago))
            events.append((id_, 3, *_STARTED, now - ago, lease, OWNER, request, None, None))
            text = results[number].decode()
            events.append((id_, 4, *_DONE, now, lease, OWNER, request, text, digests[number]))
        run.executemany(sql["complete_job"], jobs)
        if run.total_changes() - before != len(rows):
            raise AssertionError(f"the floor did not complete all of {len(rows)} jobs")
        run.executemany(sql["complete_event"], events)
        run.execute("COMMIT")


_STARTED = (EventType.STARTED.code, State.CLAIMED.code, State.RUNNING.code)
_DONE = (EventType.SUCCEEDED.code, State.RUNNING.code, State.SUCCEEDED.code)
