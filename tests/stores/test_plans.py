"""No statement of a store reads a large table from end to end, whatever the planner thinks of it.

A prepared statement keeps the plan that was made for it, and an empty table makes strange plans. So
what a store really sends is planned at every stage of a ledger's life.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import asyncpg
import pytest
from msgspec.structs import replace

from holdfast.stores.sqlite.connections import SqlitePlace, connect
from holdfast.stores.sqlite.store import SqliteStore
from tests.stores.everything import use_everything
from tests.stores.ledgers import postgres_store
from tests.stores.plans import (
    Access,
    Node,
    Statement,
    accesses,
    connected,
    explain,
    explain_sqlite,
    recorded_postgres,
    recorded_sqlite,
    walk,
)
from tests.support.postgres import PostgresCluster

Plans = dict[str, Node]
"""The plan of each statement, by its text."""

FILL = """
SET session_replication_role = replica;
ALTER TABLE jobs SET (autovacuum_enabled = off);
ALTER TABLE events SET (autovacuum_enabled = off);
INSERT INTO jobs (id, created_at, updated_at, run_at, needs, policy, rev, attempt, state, kind,
    priority, tenant, task, queue, parent_id, workflow_id, started_at, finished_at, result_digest,
    error_code, letter, claim_order)
SELECT ('0190a000-0000-7000-8000-' || lpad(to_hex(n), 12, '0'))::uuid, 1700000000000000 + n,
    1700000000000000 + n, 1700000000000000 + n, 0, 1, 1 + s.rev, s.attempt, s.state, 1, 1 + n % 3,
    'default', 'task', 'queue-' || n % 5, CASE WHEN n % 50 = 0 THEN gen_random_uuid() END,
    'flow-' || n / 20, s.ended, s.ended, CASE WHEN s.state = 8 THEN '\\x00'::bytea END,
    CASE WHEN s.state = 13 THEN 'timeout' END, CASE WHEN s.state = 13 THEN 1 END,
    holdfast_claim_order(s.state::smallint, NULL, NULL, 1700000000000000 + n, (1 + n % 3)::smallint)
FROM generate_series(1, 20000) AS n
JOIN (VALUES (0, 2, 0, 0, NULL), (1, 8, 3, 1, 1700000000000000), (2, 8, 3, 1, 1700000000000000),
    (3, 13, 3, 1, 1700000000000000)) AS s(k, state, rev, attempt, ended)
    ON s.k = CASE WHEN n % 100 = 3 THEN 3 ELSE n % 3 END;
INSERT INTO events (id, rev, type, from_state, to_state, at, attempt, actor, correlation_id)
SELECT id, r.rev, r.type, r.source, r.target, created_at + r.rev, 0, 'nobody',
    CASE WHEN r.rev = 1 THEN 'correlation-' || created_at / 10 END
FROM jobs JOIN (VALUES (1, 1, NULL, 2), (2, 2, 2, 3), (3, 3, 3, 4), (4, 4, 4, 8))
    AS r(rev, type, source, target) ON r.rev <= jobs.rev
"""
STAGES = {
    "new": "SELECT 1",
    # As after a restore, or vacuumdb on the first evening.
    "analysed-while-empty": "ANALYZE",
    "burst": FILL,
    "analysed": "ANALYZE",
}


@pytest.fixture(scope="module")
def sent(postgres_cluster: PostgresCluster, postgres_template: str) -> list[Statement]:
    """What the store on PostgreSQL sends."""
    url = postgres_cluster.create_database(template=postgres_template)
    with recorded_postgres() as found:
        asyncio.run(_use(url))
    postgres_cluster.drop_database(url)
    return [statement for statement in found.values() if plannable(statement)]


async def _use(url: str) -> None:
    async with postgres_store(url) as store:
        await use_everything(store)


@pytest.fixture(scope="module")
def plans(
    postgres_cluster: PostgresCluster, postgres_template: str, sent: list[Statement]
) -> dict[str, Plans]:
    """How PostgreSQL would run it, at each stage."""
    url = postgres_cluster.create_database(template=postgres_template)
    made = {stage: asyncio.run(_plans(url, change, sent)) for stage, change in STAGES.items()}
    postgres_cluster.drop_database(url)
    return made


async def _plans(url: str, change: str, sent: list[Statement]) -> Plans:
    connection = await asyncpg.connect(url)
    await connection.execute(change)
    await connection.close()
    connection = await connected(url)
    made = {statement.text: await explain(connection, statement) for statement in sent}
    await connection.close()
    return made


def plannable(statement: Statement) -> bool:
    code = [line for line in statement.text.splitlines() if not line.startswith("--")]
    first = " ".join(code).split()[:1]
    return first in (["SELECT"], ["INSERT"], ["UPDATE"], ["DELETE"], ["WITH"])


def that(plans: Plans, *words: str) -> list[Node]:
    """The plans of the statements that contain all these words; there must be some."""
    found = [plan for text, plan in plans.items() if all(word in text for word in words)]
    assert found, words
    return found


MEANT = (
    "SELECT count(*) FROM jobs",
    "INSERT INTO counts SELECT tenant, queue, state, count(*)",
)
"""What is meant to read all: the size of a ledger without statistics, and a recount."""


@pytest.mark.parametrize("stage", STAGES)
def test_no_statement_reads_a_large_table_whole(plans: dict[str, Plans], stage: str) -> None:
    whole = [
        f"{access.table} by {access.by} in: {' '.join(text.split())[:200]}"
        for text, plan in plans[stage].items()
        if not any(words in text for words in MEANT)
        for access in accesses(plan)
        if not access.condition and access.by != "Tid Scan"
    ]
    assert whole == []


@pytest.mark.parametrize("stage", STAGES)
def test_a_repeated_request_is_found_without_reading_the_history(
    plans: dict[str, Plans], stage: str
) -> None:
    [plan] = that(plans[stage], "request_id = $2", "rev = 1")
    found = {access.by: access.condition for access in accesses(plan, "events")}
    assert found.keys() == {"events_request", "events_pkey"}
    assert "request_id" in found["events_request"]
    assert "rev = 1" in found["events_pkey"]


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.req("B20")
def test_a_claim_reads_ranges_of_its_index_up_to_the_limit(
    plans: dict[str, Plans], stage: str
) -> None:
    for plan in that(plans[stage], "claim_order", "UPDATE jobs", "due AS MATERIALIZED"):
        found = accesses(plan, "jobs")
        by = {access.by for access in found} - {"Tid Scan"}
        assert by in ({"jobs_claim"}, {"jobs_claim_tenant"})
        reads = [one for one in found if one.by != "Tid Scan"]
        # The first job, the sample, the merge, the rows to lock.
        searches, ranges = reads[:-4], reads[-4:]
        assert len(searches) in (2, 6), "of one route, or in, between and behind two"
        for access in searches:
            assert up_to_a_limit(access), access
            assert "queue = " in access.condition
            assert "task_version" in access.condition
            # PostgreSQL reads on where the second column of a row decides that nothing follows.
            assert "ROW(" not in access.condition
        for access in ranges:
            for column in ("queue = ", "task_version", "priority", "claim_order"):
                assert column in access.condition
            assert up_to_a_limit(access), access
        assert all("tenant = $" in access.condition for access in ranges) == (
            by == {"jobs_claim_tenant"}
        )


@pytest.mark.parametrize("stage", STAGES)
def test_a_claim_for_one_tenant_reads_that_tenants_index(
    plans: dict[str, Plans], stage: str
) -> None:
    for plan in that(plans[stage], "UPDATE jobs", "due AS MATERIALIZED", "j.tenant = $"):
        found = [one for one in accesses(plan, "jobs") if one.by != "Tid Scan"]
        assert {one.by for one in found} == {"jobs_claim_tenant"}
        assert all("tenant = $" in one.condition for one in found)


def up_to_a_limit(access: Access) -> bool:
    """Whether rows are read one by one until there are enough: nothing gathers them before."""
    lazy = ("LockRows", "Result", "Merge Append", "Subquery Scan", "Append")
    return next(name for name in access.above if name not in lazy) == "Limit"


@pytest.mark.parametrize("stage", STAGES)
def test_a_claim_by_resources_looks_ahead_up_to_its_limit(
    plans: dict[str, Plans], stage: str
) -> None:
    for plan in that(plans[stage], "j.claim_order, j.id, j.cpus"):
        for access in accesses(plan, "jobs"):
            assert access.by in ("jobs_claim", "jobs_claim_tenant")
            assert up_to_a_limit(access)


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.req("C3")
def test_a_commit_takes_its_rows_one_by_one_in_the_order_given(
    plans: dict[str, Plans], stage: str
) -> None:
    for plan in that(plans[stage], "UPDATE jobs", "j.rev = d.expected"):
        access, *family = accesses(plan, "jobs")
        assert {one.by for one in family} <= {"jobs_parent"}
        assert access.by == "jobs_pkey"
        assert "d.id" in access.condition
        up_to_the_update = access.above[: access.above.index("ModifyTable")]
        # Neither sorted nor hashed: the batch comes sorted, and so two batches lock alike.
        assert set(up_to_the_update) == {"Nested Loop"}
        assert batch_leads(plan)


def batch_leads(plan: Node) -> bool:
    """Whether the jobs are on the inner side of every loop that joins them to the batch."""
    for node, above in walk(plan):
        if node.get("Index Name") == "jobs_pkey":
            loops = [one for one in (node, *above) if "Parent Relationship" in one]
            return str(loops[0]["Parent Relationship"]) == "Inner"
    return False


LOOK_UPS: dict[str, tuple[tuple[str, ...], dict[str, str]]] = {
    "by job and time": (("FROM events WHERE id = $1 AND rev > $2",), {"events": "events_pkey"}),
    "of a job's newest events": (
        ("type = ANY ($2::smallint[])", "ORDER BY rev DESC"),
        {"events": "events_pkey"},
    ),
    "by correlation": (
        ("FROM events AS f", "f.correlation_id = $1"),
        {"events": "events_correlation events_pkey"},
    ),
    "of a key": (("FROM keys WHERE tenant = $1",), {"keys": "keys_pkey"}),
    "of what is due": (("wake_at <= $1",), {"jobs": "jobs_wake"}),
    "of leases": (("WHERE expires_at <= $1",), {"claims": "claims_expires claims_epoch"}),
    "of what is held": (
        ("WHERE c.owner = $1",),
        {"claims": "claims_owner claims_pkey", "jobs": "jobs_pkey"},
    ),
    "of what a host holds": (
        ("c.owner ~>=~ $1",),
        {"claims": "claims_owner", "jobs": "jobs_pkey"},
    ),
    "of what a hold keeps": (("h.hold = $1",), {"holds": "holds_pkey", "jobs": "jobs_pkey"}),
    "of the holds of jobs": (("SELECT id, hold FROM holds",), {"holds": "holds_id"}),
    "of a claim": (("WHERE c.request_id = $1",), {"claims": "claims_pkey"}),
    "of the tail": (("SELECT xid,", "ORDER BY xid"), {"events": "events_ranges"}),
    "of old heartbeats": (("b.at < $1",), {"beats": "beats_at Tid Scan"}),
    "of the ledger": (("FROM events WHERE id > $1 AND id <= $2",), {"events": "events_pkey"}),
    "by parent": (("WHERE j.parent_id = $5",), {"jobs": "jobs_parent"}),
    "of children": (("WHERE parent_id = p.id",), {"jobs": "jobs_parent"}),
    "of live children": (("WHERE live_parent_id = p.id",), {"jobs": "jobs_live_children"}),
    "of families": (
        ("DISTINCT live_parent_id",),
        {"jobs": "jobs_live_children jobs_gathering"},
    ),
    "of stray keys": (
        ("DELETE FROM keys WHERE id >= $1",),
        {"keys": "keys_id", "jobs": "jobs_pkey", "events": "events_pkey", "beats": "beats_pkey"},
    ),
    "of marks": (("FROM marks ORDER BY number",), {"marks": "marks_pkey"}),
    "of marks that were seen": (("DELETE FROM marks",), {"marks": "marks_pkey"}),
    "by workflow": (("WHERE j.workflow_id = $6",), {"jobs": "jobs_workflow"}),
    "by error": (("WHERE j.error_code = $8",), {"jobs": "jobs_error"}),
    "by dead letter": (("WHERE j.letter = $9",), {"jobs": "jobs_letter"}),
    "by tenant": (("j.tenant >= $1 AND j.tenant <=", "LIMIT $13"), {"jobs": "jobs_tenant"}),
    "by queue": (("j.queue >= $3 AND j.queue <=",), {"jobs": "jobs_queue"}),
    "of how far to look": (("WHERE CAST($1 AS text) IS NULL", "OFFSET $3"), {"jobs": "jobs_pkey"}),
    "of how far to look at a tenant": (
        ("j.tenant >= $1", "OFFSET $3"),
        {"jobs": "jobs_tenant"},
    ),
    "of how far to look at a queue": (("j.queue >= $1", "OFFSET $3"), {"jobs": "jobs_queue"}),
    "of how far to look at an error": (
        ("WHERE j.error_code = $1", "OFFSET $3"),
        {"jobs": "jobs_error"},
    ),
    "of a job's correlation": (("WHERE j.id = ANY (ARRAY(",), {"jobs": "jobs_pkey"}),
}


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("look_up", LOOK_UPS)
@pytest.mark.req("A7", "B19", "E6")
def test_a_look_up_goes_through_its_index(
    plans: dict[str, Plans], stage: str, look_up: str
) -> None:
    words, expected = LOOK_UPS[look_up]
    for plan in that(plans[stage], *words):
        for table, indexes in expected.items():
            found = {access.by for access in accesses(plan, table)}
            assert found
            assert found <= set(indexes.split()) | ({"Tid Scan"} if "Tid" in indexes else set())


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.req("E6")
def test_a_page_of_jobs_is_read_from_the_newest_until_it_is_full(
    plans: dict[str, Plans], stage: str
) -> None:
    for plan in that(plans[stage], "ORDER BY j.id DESC", "WHERE true"):
        for access in accesses(plan, "jobs"):
            assert access.by == "jobs_pkey"
            assert up_to_a_limit(access)


@pytest.mark.req("B19")
async def test_events_of_a_type_are_found_by_an_index_whether_rare_or_common(
    postgres_url: str, sent: list[Statement]
) -> None:
    [asked] = [s for s in sent if "WHERE type = $1 AND at >= $2" in s.text]
    assert asked.planned_each_time
    connection = await connected(postgres_url)
    await connection.execute(FILL)
    for kind, index in ((1, "events_ranges"), (4, "events_ranges"), (24, "events_type")):
        values = (kind, 1700000000000000, 1700000000001000, 100)
        for _ in range(2):
            [access] = accesses(await explain(connection, replace(asked, values=values)))
            assert access.by == index
            await connection.execute("ANALYZE events")
    await connection.close()


@pytest.mark.parametrize(
    ("table", "of", "most"),
    [
        # A read of the tail reads so many that are in no block range yet: 8 MB of them.
        ("events", "vacuum_insert", 50_000),
        # So many dead entries may lie before what a claim looks for.
        ("jobs", "vacuum", 20_000),
    ],
)
async def test_a_vacuum_comes_by_number_and_not_by_share(
    postgres_url: str, table: str, of: str, most: int
) -> None:
    connection = await connected(postgres_url)
    asked = "SELECT unnest(reloptions) FROM pg_class WHERE relname = $1"
    options = dict(row[0].split("=") for row in await connection.fetch(asked, table))
    await connection.close()
    assert float(options[f"autovacuum_{of}_scale_factor"]) == 0
    assert int(options[f"autovacuum_{of}_threshold"]) <= most


@pytest.fixture(scope="module")
def sqlite_plans(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """How SQLite would run what the store sends."""
    return asyncio.run(_sqlite_plans(tmp_path_factory.mktemp("plans") / "ledger.db"))


async def _sqlite_plans(path: Path) -> dict[str, list[str]]:
    with recorded_sqlite() as found:
        store = SqliteStore(path)
        await store.open()
        await use_everything(store)
        await store.close()
    connection = connect(SqlitePlace.of(path))
    connection.create_scalar_function("holdfast_now", lambda *_: 0, 0)
    made = {s.text: explain_sqlite(connection, s) for s in found.values() if plannable(s)}
    connection.close()
    return made


MIGRATING = "INSERT INTO holds (hold, id)\nSELECT value, jobs.id FROM jobs"


def test_no_statement_on_sqlite_reads_a_large_table_whole(
    sqlite_plans: dict[str, list[str]],
) -> None:
    whole = [
        f"{line} in: {' '.join(text.split())[:200]}"
        for text, lines in sqlite_plans.items()
        for line in lines
        # All jobs are counted for the size of a ledger, and by a recount; a migration reads them.
        if line.startswith("SCAN") and "count(*)" not in text and not text.startswith(MIGRATING)
    ]
    assert whole == []


SQLITE_LOOK_UPS = {
    "FROM events WHERE id = ?1 AND rev > ?2": "SEARCH events USING INDEX sqlite_autoindex_events_1",
    "ORDER BY rev DESC LIMIT ?3": "SEARCH events USING INDEX sqlite_autoindex_events_1 (id=?)",
    "WHERE type = ?1 AND at >= ?2": "SEARCH events USING INDEX events_type (type=? AND at>?",
    "FROM events WHERE correlation_id = ?": "SEARCH events USING COVERING INDEX events_correlation",
    "FROM keys WHERE tenant = ?": "SEARCH keys USING PRIMARY KEY (tenant=? AND kind=? AND key=?)",
    "DELETE FROM keys WHERE id >= ?1": "SEARCH keys USING INDEX keys_id (id>? AND id<?)",
    "wake_at <= ?": "SEARCH jobs USING INDEX jobs_wake (wake_at<?)",
    "WHERE expires_at <= ?": "SEARCH claims USING INDEX claims_expires",
    "WHERE epoch < ?": "SEARCH claims USING INDEX claims_epoch",
    "FROM claims WHERE owner = ?": "SEARCH claims USING INDEX claims_owner",
    "FROM events WHERE position > ?": "SEARCH events USING INTEGER PRIMARY KEY (rowid>?)",
    "WHERE j.parent_id = ?": "INDEX jobs_parent (parent_id=?",
    "FROM jobs\nWHERE parent_id = ?": "SEARCH jobs USING INDEX jobs_parent (parent_id=? AND id>?)",
    "FROM jobs WHERE live_parent_id = ?": "USING INDEX jobs_live_children (live_parent_id=?",
    "DISTINCT live_parent_id": "USING INDEX jobs_live_children (live_parent_id>?)",
    "substr(wait_for, 1, 17) = 'holdfast:children'": "USING INDEX jobs_gathering (id>?)",
    "WHERE j.workflow_id = ?": "INDEX jobs_workflow (workflow_id=?",
    "WHERE j.error_code = ?": "INDEX jobs_error (error_code=?",
    "WHERE j.letter = ?": "INDEX jobs_letter (letter=?",
    "WHERE j.tenant = ?": "INDEX jobs_tenant (tenant=?",
    "WHERE j.queue = ?": "INDEX jobs_queue (queue=?",
    "INDEXED BY jobs_claim\nWHERE queue = ?": (
        "jobs_claim (queue=? AND route=? AND lane=? AND claim_order<?)"
    ),
    "INDEXED BY jobs_claim_tenant\nWHERE queue = ?": (
        "jobs_claim_tenant (tenant=? AND queue=? AND route=? AND lane=? AND claim_order<?)"
    ),
    "INDEXED BY jobs_claim\n    WHERE queue = ?1": "jobs_claim (queue=? AND route=? AND lane>?)",
    "+jobs.rev = d.expected": "SEARCH jobs USING PRIMARY KEY (id=?)",
}


@pytest.mark.parametrize("words", SQLITE_LOOK_UPS)
@pytest.mark.req("A7", "B19", "B20", "E6")
def test_a_look_up_on_sqlite_goes_through_its_index(
    sqlite_plans: dict[str, list[str]], words: str
) -> None:
    found = [lines for text, lines in sqlite_plans.items() if words in text]
    assert found
    for lines in found:
        assert any(SQLITE_LOOK_UPS[words] in line for line in lines), lines
