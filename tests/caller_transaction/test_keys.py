"""Two transactions and one key: who waits, who is told of the other's job, and who begins anew."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import pytest

from holdfast import Holdfast
from tests.caller_transaction.callers import DRIVERS, Asyncpg, Caller
from tests.stores.ledgers import assert_proven, somebody_waits_for
from tests.support.postgres import PostgresCluster
from tests.support.waiting import wait_until

STRICTER = ("REPEATABLE READ", "SERIALIZABLE")


@pytest.fixture(params=DRIVERS, ids=lambda made: made.__name__)
def kind(request: pytest.FixtureRequest) -> type[Caller]:
    """The driver of the second of two callers."""
    made: type[Caller] = request.param
    return made


@pytest.fixture
async def first(url: str) -> AsyncIterator[Asyncpg]:
    """The caller that comes first, in a transaction."""
    made = Asyncpg(url)
    await made.open()
    await made.begin()
    yield made
    await made.close()


async def opened(kind: type[Caller], url: str, isolation: str) -> Caller:
    """A caller in a transaction of which the snapshot is taken."""
    made = kind(url)
    made.isolation = isolation
    await made.open()
    await made.begin()
    await made.run("SELECT 1 FROM orders")
    return made


def sqlstate(error: BaseException) -> str | None:
    """What the database said, by whichever driver."""
    return getattr(error, "sqlstate", None) or getattr(
        getattr(error, "orig", None), "sqlstate", None
    )


@pytest.mark.parametrize("end", ["commit", "rollback"])
async def test_a_key_that_another_transaction_takes_is_waited_for(
    app: Holdfast, first: Asyncpg, postgres_cluster: PostgresCluster, end: str
) -> None:
    held = await first.submit(app.tasks["ship"], 1, dedupe_key="order-1")
    second = await opened(Asyncpg, app.url, "READ COMMITTED")
    waiting = asyncio.create_task(second.submit(app.tasks["ship"], 1, dedupe_key="order-1"))
    await somebody_waits_for(first.connection, postgres_cluster)
    assert not waiting.done()

    await (first.commit() if end == "commit" else first.rollback())
    handle = await waiting
    await second.commit()

    assert handle.created is (end == "rollback")
    assert (handle.id == held.id) is (end == "commit")
    assert [job.id async for job in app.jobs()] == [handle.id]
    await second.close()


async def test_a_plain_submit_waits_for_a_transaction_that_has_its_key(
    app: Holdfast, first: Asyncpg, postgres_cluster: PostgresCluster
) -> None:
    held = await first.submit(app.tasks["ship"], 1, dedupe_key="order-1")
    plain = asyncio.create_task(app.tasks["ship"].options(dedupe_key="order-1").submit(1))
    await somebody_waits_for(first.connection, postgres_cluster)
    await first.commit()

    assert ((await plain).id, (await plain).created) == (held.id, False)


@pytest.mark.parametrize("isolation", STRICTER)
async def test_a_key_taken_after_the_snapshot_is_a_conflict_that_is_tried_again(
    app: Holdfast, kind: type[Caller], isolation: str
) -> None:
    task = app.tasks["ship"]
    second = await opened(kind, app.url, isolation)
    there = await task.options(dedupe_key="order-1").submit(1)

    with pytest.raises(Exception, match="serialize") as conflict:
        await second.submit(task, 1, dedupe_key="order-1")
    assert sqlstate(conflict.value) == "40001"
    await second.rollback()

    await second.begin()
    again = await second.submit(task, 1, dedupe_key="order-1")
    await second.commit()
    assert (again.id, again.created) == (there.id, False)
    await second.close()


@pytest.mark.parametrize("isolation", STRICTER)
async def test_who_waited_for_a_key_under_a_stricter_isolation_begins_anew(
    app: Holdfast, first: Asyncpg, postgres_cluster: PostgresCluster, isolation: str
) -> None:
    await first.submit(app.tasks["ship"], 1, dedupe_key="order-1")
    second = await opened(Asyncpg, app.url, isolation)
    waiting = asyncio.create_task(second.submit(app.tasks["ship"], 1, dedupe_key="order-1"))
    await somebody_waits_for(first.connection, postgres_cluster)
    await first.commit()

    with pytest.raises(Exception, match="serialize") as conflict:
        await waiting
    assert sqlstate(conflict.value) == "40001"
    await second.rollback()
    await second.close()


@pytest.mark.parametrize("isolation", STRICTER)
async def test_without_a_conflict_a_stricter_isolation_submits_as_any(
    app: Holdfast, kind: type[Caller], isolation: str
) -> None:
    there = await app.tasks["ship"].options(dedupe_key="order-1").submit(1)
    caller = await opened(kind, app.url, isolation)
    same = await caller.submit(app.tasks["ship"], 1, dedupe_key="order-1")
    mine = await caller.submit(app.tasks["ship"], 2, dedupe_key="order-2")
    twice = await caller.submit(app.tasks["ship"], 2, dedupe_key="order-2")
    await caller.commit()

    assert (same.id, same.created) == (there.id, False)
    assert (mine.created, twice.created, twice.id) == (True, False, mine.id)
    await caller.close()


async def test_a_policy_nobody_has_used_before_makes_nobody_wait(
    app: Holdfast, first: Asyncpg
) -> None:
    task = app.task(retries=17, needs={"a-new-one"}, name="new")(_new)
    handle = await first.submit(task, 1)
    plain = await task.submit(2)
    assert plain.created, "while the first transaction is open"
    await first.commit()
    assert (await handle.refresh()).record.policy == plain.record.policy


def _new(number: int) -> int:
    return number


@pytest.mark.parametrize("isolation", STRICTER)
async def test_a_policy_written_after_the_snapshot_is_no_conflict(
    app: Holdfast, kind: type[Caller], isolation: str
) -> None:
    caller = await opened(kind, app.url, isolation)
    task = app.task(retries=18, needs={"another-new-one"}, name="new")(_new)
    handle = await caller.submit(task, 1)
    await caller.commit()
    assert (await handle.refresh()).created
    await caller.close()


async def test_a_policy_that_could_not_be_written_ahead_comes_with_the_job(
    app: Holdfast, first: Asyncpg
) -> None:
    nowhere = Holdfast("postgresql://nobody@127.0.0.1:1/none", deadline_seconds=0.1)
    task = nowhere.task(retries=19, needs={"a-third-one"}, name="new")(_new)
    handle = await first.submit(task, 1)
    await first.commit()
    record = (await app.get(handle.id)).record
    assert (record.policy.max_attempts, record.needs) == (20, frozenset({"a-third-one"}))


async def test_who_waits_for_a_key_holds_none_that_comes_after_it(
    app: Holdfast, first: Asyncpg, postgres_cluster: PostgresCluster
) -> None:
    """So nobody waits in a circle: all take keys in one order, whatever the order of the calls."""
    task: Any = app.tasks["ship"]
    await first.submit(task, 1, dedupe_key="a")
    second = await opened(Asyncpg, app.url, "READ COMMITTED")
    calls = [task.options(dedupe_key=key).prepare(2) for key in "cba"]
    waiting = asyncio.create_task(app.submit_many_in(second.connection, calls))
    await somebody_waits_for(first.connection, postgres_cluster)

    async with asyncio.timeout(5):
        between = await task.options(dedupe_key="b").submit(3)
    await first.commit()
    handles = await waiting
    await second.commit()

    assert [handle.created for handle in handles] == [True, False, False]
    assert handles[1].id == between.id
    await second.close()


PAUSE = """
CREATE FUNCTION pause() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN PERFORM pg_advisory_xact_lock_shared(1); RETURN NULL; END $$;
CREATE TRIGGER pause AFTER INSERT ON keys FOR EACH STATEMENT EXECUTE FUNCTION pause()
"""


async def test_a_key_that_is_freed_while_its_holder_is_looked_up_is_had(
    postgres_url: str, postgres_cluster: PostgresCluster
) -> None:
    async with Holdfast(postgres_url) as app:
        task = app.task(_new).options(dedupe_key="order-1", unique="live")
        there = await task.submit(1)
        gate = await asyncpg.connect(postgres_url)
        await gate.execute(PAUSE)
        await gate.execute("SELECT pg_advisory_lock(1)")
        caller = await opened(Asyncpg, postgres_url, "READ COMMITTED")
        waiting = asyncio.create_task(task.submit_in(caller.connection, 1))
        # It has been refused the key, and has not asked yet who holds it.
        await somebody_waits_for(gate, postgres_cluster)
        await there.cancel()
        await gate.execute("SELECT pg_advisory_unlock(1)")
        handle = await waiting
        await caller.commit()

        assert handle.created
        await assert_proven(await app.store())
        await caller.close()
        await gate.close()


DIES = """
import asyncio, sys, asyncpg
from holdfast import Holdfast
app = Holdfast(sys.argv[1])
async def main():
    connection = await asyncpg.connect(sys.argv[1])
    await connection.execute("SET application_name = 'dies'")
    await connection.execute("BEGIN; INSERT INTO orders VALUES (1)")
    await app.named("ship").options(dedupe_key="order-1").submit_in(connection, number=1)
    print("submitted", flush=True)
    await asyncio.sleep(60)
asyncio.run(main())
"""


async def test_a_client_that_dies_before_its_commit_leaves_nothing(
    app: Holdfast, postgres_cluster: PostgresCluster
) -> None:
    client = await asyncio.create_subprocess_exec(
        sys.executable, "-c", DIES, app.url, stdout=asyncio.subprocess.PIPE
    )
    assert client.stdout is not None
    assert await client.stdout.readline() == b"submitted\n"
    client.send_signal(signal.SIGKILL)
    await client.wait()
    question = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'dies'"
    wait_until(lambda: postgres_cluster.sql(question) == "0", "the backend to notice")

    assert [job.id async for job in app.jobs()] == []
    again = await app.tasks["ship"].options(dedupe_key="order-1").submit(1)
    assert again.created


async def test_many_callers_of_few_keys_make_each_job_once(app: Holdfast) -> None:
    """Batches ask for keys in any order; none of them waits for another in a circle."""
    task: Any = app.tasks["ship"]

    async def call(number: int) -> list[tuple[str, bool]]:
        caller = Asyncpg(app.url)
        await caller.open()
        keys = [(number + n * (-1) ** number) % 6 for n in range(4)]
        async with caller.connection.transaction():
            calls = [task.options(dedupe_key=f"key-{key}").prepare(key) for key in keys]
            handles = await app.submit_many_in(caller.connection, calls)
        await caller.close()
        return [(handle.id, handle.created) for handle in handles]

    answers = [one for called in await asyncio.gather(*map(call, range(12))) for one in called]
    jobs = [job.id async for job in app.jobs()]
    assert len(jobs) == 6
    assert {id_ for id_, _ in answers} == set(jobs)
    assert sum(created for _, created in answers) == 6
