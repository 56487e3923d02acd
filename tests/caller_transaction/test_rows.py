"""The SQL function writes what the store's own submit writes, and settles keys as it does."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from typing import Any

import asyncpg
import pytest
from msgspec.structs import replace

from holdfast.admission.book import book_digest
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import NewJob
from holdfast.lifecycle.states import Kind, Link, Priority
from holdfast.lifecycle.times import SECOND, After
from holdfast.ports.models import SubmitOutcome, SubmitRefused
from holdfast.stores.outcomes import Enlisted
from holdfast.stores.postgres.caller_transaction import enlist_sql, enlist_text, read_outcomes
from holdfast.stores.postgres.connections import SETTINGS
from holdfast.stores.postgres.store import PostgresStore
from holdfast.testing.factories import job_ids, new_job
from tests.stores.ledgers import assert_proven, postgres_store
from tests.support.postgres import PostgresCluster

TABLES = {
    "jobs": "SELECT * FROM jobs ORDER BY id",
    # All but the transaction.
    "events": "SELECT to_jsonb(e) - 'xid' FROM events AS e ORDER BY id, rev",
    "beats": "SELECT * FROM beats",
    "keys": "SELECT * FROM keys ORDER BY tenant, kind, key",
    "policies": "SELECT * FROM policies ORDER BY id",
    "needs": "SELECT * FROM needs ORDER BY id",
    "marks": "SELECT DISTINCT id FROM marks ORDER BY id",
    "counts": "SELECT tenant, queue, state, sum(delta) FROM counts GROUP BY 1, 2, 3 ORDER BY 1, 2",
    "claims": "SELECT * FROM claims",
    "policy_books": "SELECT * FROM policy_books",
    "policy_events": "SELECT * FROM policy_events",
    "queues": "SELECT * FROM queues",
    "queue_events": "SELECT * FROM queue_events",
    "workers": "SELECT * FROM workers",
    "task_terms": "SELECT * FROM task_terms",
    "store_clock": "SELECT * FROM store_clock",
    "clock_steps": "SELECT * FROM clock_steps",
    "purges": "SELECT * FROM purges",
    "purged": "SELECT * FROM purged",
    "signals": "SELECT * FROM signals",
    "holds": "SELECT * FROM holds ORDER BY 1, 2",
    "logs": "SELECT * FROM logs",
    "tokens": "SELECT * FROM tokens",
    "webhooks": "SELECT * FROM webhooks",
    "cursors": "SELECT * FROM cursors",
    # Only what submits commands fills them, after the upload's own checks.
    "uploads": "SELECT * FROM uploads",
    "upload_files": "SELECT * FROM upload_files",
    "upload_jobs": "SELECT * FROM upload_jobs",
    "meta": "SELECT * FROM meta WHERE key <> 'sealing_log' ORDER BY key",
}
RULES = 'version = 1\ndefault = "allow"\n'
STILL = (
    "CREATE OR REPLACE FUNCTION holdfast_now() RETURNS bigint LANGUAGE sql VOLATILE AS "
    "$$ SELECT 1800000000000000 $$"
)


class Pair:
    """Two ledgers whose clocks stand still: one is written by the store, one by the function."""

    def __init__(self, store: PostgresStore, mirror: PostgresStore, caller: Any) -> None:
        """Take both, and a caller's connection to the second."""
        self.store = store
        self.mirror = mirror
        self.caller = caller

    async def submit(
        self, jobs: Sequence[NewJob]
    ) -> tuple[list[SubmitOutcome], list[Enlisted | SubmitRefused]]:
        """Submit the same to both."""
        plain = await self.store.submit(jobs)
        async with self.caller.transaction():
            text = await self.caller.fetchval(enlist_sql("$1"), enlist_text(jobs))
        return plain, read_outcomes(jobs, text)


@pytest.fixture
async def pair(postgres_cluster: PostgresCluster, postgres_template: str) -> AsyncIterator[Pair]:
    """Two ledgers."""
    urls = [postgres_cluster.create_database(template=postgres_template) for _ in range(2)]
    for url in urls:
        postgres_cluster.sql(STILL, url.rpartition("/")[2])
    async with postgres_store(urls[0]) as store, postgres_store(urls[1]) as mirror:
        caller = await asyncpg.connect(urls[1])
        yield Pair(store, mirror, caller)
        await caller.close()
        await assert_proven(store)
        await assert_proven(mirror)
    for url in urls:
        postgres_cluster.drop_database(url)


async def rows(store: PostgresStore) -> dict[str, Any]:
    """Everything that is in a ledger."""
    connection = await asyncpg.connect(store._connections.url)
    found = {
        name: [tuple(row) for row in await connection.fetch(sql)] for name, sql in TABLES.items()
    }
    listed = await connection.fetch(
        "SELECT tablename FROM pg_tables WHERE schemaname = 'holdfast'"
        " AND tablename NOT IN ('orders', 'migrations')"
    )
    await connection.close()
    assert {row[0] for row in listed} == set(TABLES), "a table that is not compared"
    return found


def all_kinds() -> list[NewJob]:
    """Jobs that together fill every column that a submit can fill."""
    parent, theirs = new_job(), new_job(tenant="acme")
    return [
        parent,
        theirs,
        new_job(body=b'{"text":"\\u00e9 \\"%s\\" \\\\u0000"}', reason="so", trace_id="ab" * 16),
        new_job(
            tenant="acme", queue="slow", kind=Kind.COMMAND, priority=Priority.BATCH,
            needs=frozenset({"gpu", "net"}), policy=Policy(max_attempts=2, start_timeout=SECOND),
            cpus=2, memory_mb=512, run_at=After(60 * SECOND), deadline_at=1_900_000_000_000_000,
            parent_id=theirs.record.id, link_kind=Link.CHILD, workflow_id="flow", step_index=3,
            correlation_id="c", labels={"a": "b"}, env={"HOME": "/"}, context_ptr="s3://x",
            adapter_id="a", files_id="f",
        ),
        new_job(admitted=False, deadline_at=After(SECOND)),
        new_job(holds=("ann",), run_at=1_700_000_000_000_000),
        judged(new_job(holds=("zoe", "ann"), admitted=False)),
        new_job(
            job_id="Zebra", request_id="r", dedupe_key="d", unique_live=True,
            client_job_id="6B1D1E5C-0F0B-4C62-8F1E-6A1C3C1B7D11",
        ),
        new_job(job_id="\u00e9tude", parent_id=parent.record.id, link_kind=Link.CHILD),
    ]  # fmt: skip


@pytest.mark.parametrize("sealing", [False, True])
async def test_the_rows_are_those_of_a_plain_submit_column_by_column(
    pair: Pair, sealing: bool
) -> None:
    for store in (pair.store, pair.mirror):
        await store.set_sealing(sealing)
        # The rules that a birth names have to be there; applied, they would judge it again.
        await store.apply_policy(RULES, actor="test")
        await store.apply_policy(None, actor="test")
    plain, enlisted = await pair.submit(all_kinds())

    assert plainly(plain) == plainly(enlisted)
    assert await rows(pair.store) == await rows(pair.mirror)


def judged(new: NewJob) -> NewJob:
    """Return the birth with all facts that a verdict leaves in it."""
    facts = replace(
        new.event.facts, verdict="approve", rule="two", rules=book_digest(RULES),
        asked={"cpus": None, "timeout_seconds": 1.5}, decided_by="kernel",
    )  # fmt: skip
    return replace(new, event=replace(new.event, facts=facts))


def plainly(outcomes: Sequence[Any]) -> list[Any]:
    """What a caller is told, by either way."""
    return [
        one
        if isinstance(one, SubmitRefused)
        else (one.id, one.job_id, one.created)
        if isinstance(one, Enlisted)
        else (one.job.id, one.job.public_id, one.created)
        for one in outcomes
    ]


@pytest.mark.parametrize("seed", range(3))
async def test_keys_are_settled_as_by_a_plain_submit(pair: Pair, seed: int) -> None:
    chance = random.Random(seed)
    known: list[str] = ["none"]
    for _ in range(12):
        jobs = [any_job(chance, known) for _ in range(chance.choice((1, 2, 5, 9)))]
        plain, enlisted = await pair.submit(jobs)
        assert plainly(plain) == plainly(enlisted)
        known += [str(one.id) for one in enlisted if isinstance(one, Enlisted)]
    assert await rows(pair.store) == await rows(pair.mirror)


def any_job(chance: random.Random, known: Sequence[str]) -> NewJob:
    """A job that wants some of a few keys, or names another by its internal id."""
    wishes: dict[str, Any] = {"id": job_ids.mint(), "body": chance.choice((b"1", b"2"))}
    for name in ("job_id", "request_id", "dedupe_key"):
        if chance.random() < 0.4:
            wishes[name] = chance.choice("abc")
    if chance.random() < 0.1:
        wishes["job_id"] = chance.choice(known)
    return new_job(**wishes)


async def test_the_function_plans_as_the_stores_own_connections_do(pair: Pair) -> None:
    rows = await pair.caller.fetchval(
        "SELECT proconfig FROM pg_proc WHERE oid = 'holdfast_submit(jsonb)'::regprocedure"
    )
    told = dict(row.split("=", 1) for row in rows)
    assert told.pop("search_path") == "holdfast, pg_temp"
    assert told | {"default_transaction_isolation": "read committed"} == SETTINGS
