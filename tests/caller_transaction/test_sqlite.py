"""On SQLite a caller's rows and jobs go through the store's own connection, all or nothing."""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.app.sqlite_transaction import Hosted, Transaction
from holdfast.errors import (
    BadConnection,
    BadData,
    BadTransaction,
    KeyConflict,
    NotCommitted,
    StatementFailed,
)
from holdfast.lifecycle.states import State
from holdfast.stores.sqlite import caller_transaction
from tests.support.waiting import wait_until


def order(tx: Transaction, number: int) -> None:
    """Write a row of the caller's."""
    tx.execute("INSERT INTO orders VALUES (?)", (number,))


async def run(app: Holdfast, *statements: str, submit: Any = None) -> None:
    """Order 1 in a transaction, submit what is told, and run some statements."""
    async with app.transaction() as tx:
        order(tx, 1)
        if submit is not None:
            await submit.submit_in(tx, 2)
        for statement in statements:
            tx.execute(statement)


async def orders(app: Holdfast) -> list[int]:
    """What the caller has."""
    async with app.transaction() as tx:
        found = tx.run(lambda db: db.execute("SELECT number FROM orders ORDER BY number"))
    return [row[0] for row in found.value]


async def jobs(app: Holdfast) -> list[str]:
    """What Holdfast has."""
    return [job.id async for job in app.jobs()]


async def test_the_block_writes_the_row_and_the_job(small_app: Holdfast) -> None:
    async with small_app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (?)", (1,))
        handle = await small_app.tasks["ship"].submit_in(tx, 1)
        assert not handle.committed
        with pytest.raises(NotCommitted):
            await handle.result()

    assert (handle.committed, handle.created) == (True, True)
    assert (await orders(small_app), await jobs(small_app)) == ([1], [handle.id])
    assert (await handle.refresh()).state is State.QUEUED


async def test_a_block_that_raises_writes_neither(small_app: Holdfast) -> None:
    tx = small_app.transaction()
    await tx.__aenter__()
    order(tx, 1)
    handle = await small_app.tasks["ship"].submit_in(tx, 1)
    await tx.__aexit__(ZeroDivisionError, ZeroDivisionError(), None)

    assert (await orders(small_app), await jobs(small_app)) == ([], [])
    with pytest.raises(NotCommitted, match=handle.id):
        await handle.refresh()
    with pytest.raises(BadTransaction, match="is over"):
        order(tx, 2)


async def test_a_statement_that_fails_undoes_the_whole(small_app: Holdfast) -> None:
    with pytest.raises(StatementFailed, match=r"UNIQUE.*orders") as failed:
        await run(small_app, "INSERT INTO orders VALUES (1)", submit=small_app.tasks["ship"])

    assert failed.value.code == "constraint"
    assert (await orders(small_app), await jobs(small_app)) == ([], [])


async def test_a_caller_that_fails_undoes_only_itself(small_app: Holdfast) -> None:
    """All are in one transaction: the writer was held up while they came."""
    store: Any = await small_app.store()
    held, go = threading.Event(), threading.Event()

    def hold(db: Hosted) -> None:
        held.set()
        go.wait(20)

    async def ask(number: int, sql: str) -> str:
        async with small_app.transaction() as tx:
            order(tx, number)
            handle = await small_app.tasks["ship"].submit_in(tx, number)
            tx.execute(sql)
        return handle.id

    async def plainly(number: int) -> str:
        return (await small_app.tasks["ship"].submit(number)).id

    holding = asyncio.create_task(store.transact(hold))
    await asyncio.to_thread(held.wait, 20)
    asked = [
        asyncio.create_task(ask(1, "SELECT 1")),
        asyncio.create_task(ask(2, "INSERT INTO nowhere VALUES (1)")),
        # It rolls back what the others have done so far, who are then done again.
        asyncio.create_task(ask(3, "INSERT OR ROLLBACK INTO orders VALUES (3)")),
        asyncio.create_task(plainly(4)),
        asyncio.create_task(ask(5, "SELECT 1")),
    ]
    waiting = store._session.database.writer._waiting
    await asyncio.to_thread(wait_until, lambda: len(waiting) == len(asked), "all to be asked for")
    go.set()
    await holding
    first, second, third, plain, last = await asyncio.gather(*asked, return_exceptions=True)

    assert isinstance(second, StatementFailed)
    assert isinstance(third, StatementFailed)
    assert await orders(small_app) == [1, 5]
    assert set(await jobs(small_app)) == {first, plain, last}


async def test_work_may_read_and_submit_what_it_has_read(small_app: Holdfast) -> None:
    task = small_app.tasks["ship"]

    def next_order(db: Hosted) -> tuple[int, str]:
        [[number]] = db.execute(
            "INSERT INTO orders SELECT coalesce(max(number), 0) + 1 FROM orders RETURNING number"
        )
        handle = task.options(dedupe_key=f"order-{number}").submit_in_sync(db, number)
        assert handle.created
        try:
            task.options(job_id="taken").submit_in_sync(db, 2)
        except KeyConflict:
            db.execute("UPDATE orders SET number = -number WHERE number > 10")
        return number, handle.id

    await task.options(job_id="taken").submit(1)
    made = []
    for _ in range(2):
        async with small_app.transaction() as tx:
            answer = tx.run(next_order)
            with pytest.raises(BadTransaction, match="has not yet"):
                _ = answer.value
        made.append(answer.value)

    assert [number for number, _ in made] == [1, 2]
    assert await orders(small_app) == [1, 2]
    assert set(await jobs(small_app)) == {"taken", *(id_ for _, id_ in made)}


async def test_keys_are_looked_up_when_the_transaction_runs(small_app: Holdfast) -> None:
    task = small_app.tasks["ship"].options(dedupe_key="order-1")
    async with small_app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1)")
        handle = await task.submit_in(tx, 1)
        with pytest.raises(NotCommitted, match="known only then"):
            _ = handle.id
        there = await task.submit(1)

    assert (handle.id, handle.created, handle.committed) == (there.id, False, True)
    assert await orders(small_app) == [1]


async def test_a_refused_job_undoes_the_whole(small_app: Holdfast) -> None:
    task = small_app.tasks["ship"].options(job_id="order-1")
    there = await task.submit(1)
    with pytest.raises(KeyConflict, match="another body") as refused:
        await run(small_app, submit=task)

    assert refused.value.job_id == str(there.record.id)
    assert (await orders(small_app), await jobs(small_app)) == ([], ["order-1"])


async def test_bad_data_is_refused_in_the_block(small_app: Holdfast) -> None:
    task: Any = small_app.tasks["ship"]
    async with small_app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(BadData):
            await task.submit_in(tx, "not a number")
    assert (await orders(small_app), await jobs(small_app)) == ([1], [])


@pytest.mark.parametrize(
    ("statement", "why"),
    [
        ("DELETE FROM jobs", "touch jobs, which is Holdfast's"),
        ("delete from JOBS", "touch jobs"),
        ("UPDATE meta SET value = '2'", "touch meta"),
        ("SELECT * FROM events", "touch events"),
        ("INSERT INTO counts VALUES ('a', 'b', 1, 1)", "touch counts"),
        ("DROP TABLE keys", "Holdfast's"),
        ("ALTER TABLE jobs RENAME TO mine", "touch jobs"),
        ("CREATE INDEX mine ON jobs (task)", "touch jobs"),
        ("CREATE TRIGGER mine AFTER INSERT ON jobs BEGIN SELECT 1; END", "touch jobs"),
        ("DROP TRIGGER jobs_birth", "Holdfast's"),
        ("DELETE FROM migrations", "touch migrations"),
        ("SELECT 1; COMMIT", "end a transaction"),
        ("ROLLBACK", "end a transaction"),
        ("BEGIN IMMEDIATE", "start or end"),
        ("RELEASE caller", "savepoints"),
        ("ATTACH ':memory:' AS other", "attach"),
        ("PRAGMA synchronous = OFF", "pragmas"),
        ("ANALYZE", "analyse"),
        ("DETACH main", "detach"),
        ("CREATE TEMP TABLE mine (number)", "do that"),
        ("CREATE TEMP TRIGGER mine AFTER INSERT ON orders BEGIN SELECT 1; END", "do that"),
    ],
)
async def test_a_callers_statement_keeps_to_its_own_tables(
    small_app: Holdfast, statement: str, why: str
) -> None:
    # Prepared and kept by the store itself, as the caller's must not be.
    await small_app.tasks["ship"].submit(1)
    with pytest.raises(StatementFailed, match="may not") as refused:
        await run(small_app, statement)

    assert why in str(refused.value)
    assert refused.value.code == "not_allowed"
    assert await orders(small_app) == []


async def test_a_trigger_of_the_callers_does_not_reach_holdfasts_tables(
    small_app: Holdfast,
) -> None:
    async with small_app.transaction() as tx:
        tx.execute("CREATE TRIGGER sneaky AFTER INSERT ON orders BEGIN DELETE FROM keys; END;")
    with pytest.raises(StatementFailed, match="touch keys"):
        async with small_app.transaction() as tx:
            tx.execute("INSERT INTO orders VALUES (1)")


async def test_nothing_goes_on_after_a_transaction_was_rolled_back(small_app: Holdfast) -> None:
    def stubborn(db: Hosted) -> None:
        db.execute("INSERT INTO orders VALUES (1)")
        with pytest.raises(StatementFailed, match="UNIQUE"):
            db.execute("INSERT OR ROLLBACK INTO orders VALUES (1)")
        with pytest.raises(StatementFailed, match="rolled the transaction back"):
            db.execute("INSERT INTO orders VALUES (2)")
        with pytest.raises(StatementFailed, match="rolled the transaction back"):
            small_app.tasks["ship"].submit_in_sync(db, 2)

    with pytest.raises(Exception, match="no transaction"):
        async with small_app.transaction() as tx:
            tx.run(stubborn)
    assert (await orders(small_app), await jobs(small_app)) == ([], [])


async def test_nobody_keeps_the_others_waiting_for_long(
    small_app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_transaction, "LONGEST_SECONDS", 0.05)
    for_long = (
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n LIMIT 20000000) "
        "SELECT max(i) FROM n"
    )
    with pytest.raises(StatementFailed, match="all others wait") as late:
        await run(small_app, for_long)
    assert late.value.code == "too_long"

    def dawdle(db: Hosted) -> None:
        threading.Event().wait(0.1)
        db.execute("INSERT INTO orders VALUES (1)")

    with pytest.raises(StatementFailed, match="all others wait"):
        async with small_app.transaction() as tx:
            tx.run(dawdle)
    monkeypatch.undo()
    assert await orders(small_app) == []


async def test_work_that_leaves_by_an_exit_does_not_end_the_store(small_app: Holdfast) -> None:
    with pytest.raises(StatementFailed, match="SystemExit"):
        async with small_app.transaction() as tx:
            tx.run(lambda db: sys.exit(3))
    with pytest.raises(BadData, match="plain function"):
        async with small_app.transaction() as tx:
            tx.run(lambda db: small_app.tasks["ship"].submit(1))
    assert (await small_app.tasks["ship"].submit(1)).created


async def test_a_transaction_of_another_app_is_refused(small_app: Holdfast) -> None:
    other = Holdfast(":memory:")
    other.task(_ship)
    async with small_app.transaction() as tx:
        with pytest.raises(BadConnection, match="another app"):
            await other.tasks["_ship"].submit_in(tx, 1)


def _ship(number: int) -> int:
    return number


async def test_an_idle_worker_runs_the_job(small_app: Holdfast) -> None:
    async with small_app.worker(poll="10m"):
        async with small_app.transaction() as tx:
            handle = await small_app.tasks["ship"].submit_in(tx, 7)
        assert await handle.result("20s") == 7


def test_a_thread_without_a_loop_has_the_same_block(tmp_path: Any) -> None:
    app = Holdfast(str(tmp_path / "jobs.db"))
    task = app.task(_ship)
    with app.transaction() as tx:
        tx.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY)")
        tx.execute("INSERT INTO orders VALUES (1)")
        handle = task.submit_in_sync(tx, 1)
    with pytest.raises(StatementFailed), app.transaction() as tx:
        tx.execute("INSERT INTO orders VALUES (1)")

    assert handle.refresh_sync().state is State.QUEUED
    app.close_sync()


async def test_it_works_in_memory_too() -> None:
    async with Holdfast(":memory:") as app:
        task = app.task(_ship)
        async with app.transaction() as tx:
            tx.execute("CREATE TABLE orders (number INTEGER PRIMARY KEY)")
            handle = await task.submit_in(tx, 1)
        assert (await handle.refresh()).created
