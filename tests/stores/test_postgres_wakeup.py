"""Wake-ups over LISTEN: a dead line is found out, and hints arrive again after an outage."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from typing import Any, NoReturn

import pytest

from holdfast.ports.store import Store
from holdfast.stores.claim_ranges import Range
from holdfast.stores.postgres import submit as postgres_submit
from holdfast.stores.postgres import wakeup
from holdfast.stores.postgres.session import PostgresSession
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.postgres.submit import alike_sql, submit_with_keys
from holdfast.testing.factories import new_job
from holdfast.testing.store_actions import claimed_ids, submit_one
from tests.stores.ledgers import postgres_store
from tests.support.postgres import PostgresCluster
from tests.support.proxy import FaultProxy

LONG = 60.0
"""Longer than a test may take: whoever waits so long and wakes was woken."""


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ask a silent line often, and do not wait long for its answer."""
    monkeypatch.setattr(wakeup, "PING_SECONDS", 0.2)
    monkeypatch.setattr(wakeup, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(wakeup, "ASK_SECONDS", 0.1)
    monkeypatch.setattr(wakeup, "POLL_SECONDS", 0.05)


@pytest.fixture
def proxy(postgres_cluster: PostgresCluster) -> Iterator[FaultProxy]:
    with FaultProxy("127.0.0.1", postgres_cluster.port) as proxy:
        yield proxy


@pytest.fixture
async def store(proxy: FaultProxy, postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with postgres_store(proxy.url(postgres_url)) as store:
        await listens(store)
        yield store


@pytest.fixture
async def other(postgres_url: str) -> AsyncIterator[PostgresStore]:
    async with postgres_store(postgres_url) as store:
        yield store


async def listens(store: Store) -> None:
    """Return once the store is sure that it would hear: a silence is then told as no work."""
    async with asyncio.timeout(20):
        while await store.wake_up(["nowhere"], limit_seconds=0.01):
            # Whoever is woken looks, as a worker does: a hint counts until then.
            assert await claimed_ids(store, "nowhere") == []


async def waiting(store: Store) -> asyncio.Task[bool]:
    task = asyncio.create_task(store.wake_up(["default"], limit_seconds=LONG))
    await asyncio.sleep(0)
    return task


async def woken(task: asyncio.Task[bool]) -> bool:
    async with asyncio.timeout(10):
        return await task


async def test_a_submit_elsewhere_wakes_who_waits(store: Store, other: Store) -> None:
    task = await waiting(store)
    await submit_one(other, queue="another")
    assert not task.done()
    await submit_one(other)
    assert await woken(task)


async def test_who_submits_and_leaves_at_once_wakes_who_waits(
    store: Store, postgres_url: str
) -> None:
    task = await waiting(store)
    async with postgres_store(postgres_url) as brief:
        await submit_one(brief)
    assert await woken(task)


async def test_nobody_waits_long_to_leave_when_a_hint_cannot_be_sent(
    proxy: FaultProxy, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wakeup, "ANSWER_SECONDS", LONG)
    monkeypatch.setattr(wakeup, "FAREWELL_SECONDS", 0.1)
    hints = wakeup.WakeUp(proxy.url(postgres_url))
    frozen = proxy.freeze()
    hints.hint(["default"])
    async with asyncio.timeout(10):
        await hints.close()
    assert frozen.bitten


async def test_a_queue_whose_name_needs_quoting_is_told(store: Store, other: Store) -> None:
    queue = "it's \\ a 'queue'; --"
    task = asyncio.create_task(store.wake_up([queue], limit_seconds=LONG))
    await asyncio.sleep(0)
    await submit_one(other, queue=queue)
    assert await woken(task)


async def test_who_was_found_to_listen_is_told_for_long_and_nobody_else_looked_for(
    store: Store, other: PostgresStore
) -> None:
    task = await waiting(store)
    await submit_one(other)
    assert await woken(task)
    asked = other._wake._asked_at
    await asyncio.sleep(2 * wakeup.ASK_SECONDS)
    task = await waiting(store)
    await submit_one(other)
    assert await woken(task)
    assert other._wake._asked_at == asked


async def knows_listener(store: PostgresStore, other: PostgresStore) -> asyncio.Task[bool]:
    """Let the other store find out that this one listens; returns the next wait of this one."""
    task = await waiting(store)
    await submit_one(other)
    assert await woken(task)
    await claimed_ids(store)
    other._wake._drop_sender()
    other._wake._carries_at = 0.0
    return await waiting(store)


@pytest.mark.parametrize("options", [{}, {"job_id": "once"}], ids=["plain", "with a key"])
async def test_the_hint_of_a_submit_that_comes_alone_goes_with_its_transaction(
    store: PostgresStore, other: PostgresStore, options: dict[str, str]
) -> None:
    task = await knows_listener(store, other)
    sent = other._wake._sending
    await submit_one(other, **options)
    assert await woken(task)
    assert other._wake._sending is sent


async def test_a_submit_that_comes_alone_is_one_statement_with_its_hint(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (await knows_listener(store, other)).cancel()
    sent: list[str] = []
    fetch = PostgresSession.fetch

    async def note(self: PostgresSession, text: str, *parameters: Any) -> Any:
        sent.append(text)
        return await fetch(self, text, *parameters)

    monkeypatch.setattr(PostgresSession, "fetch", note)
    await submit_one(other)
    assert sent == [alike_sql(hint=True)]


async def test_a_carried_hint_arrives_at_the_commit_and_not_before(
    store: PostgresStore, other: PostgresStore
) -> None:
    task = await knows_listener(store, other)
    session = other._session
    hint = other._wake.carry(["default"])

    async def submit_and_look(session: PostgresSession) -> None:
        await submit_with_keys(session, [new_job()], hint)
        seen = asyncio.create_task(store.wake_up(["meanwhile"], limit_seconds=LONG))
        other._wake.hint(["meanwhile"])
        assert await woken(seen)
        assert not task.done()

    await session.transact(submit_and_look)
    assert await woken(task)


async def test_a_transaction_that_is_rolled_back_sends_no_hint(
    store: PostgresStore, other: PostgresStore
) -> None:
    task = await knows_listener(store, other)
    hint = other._wake.carry(["default"])

    async def submit_and_fail(session: PostgresSession) -> None:
        await submit_with_keys(session, [new_job()], hint)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await other._session.transact(submit_and_fail)
    seen = asyncio.create_task(store.wake_up(["afterwards"], limit_seconds=LONG))
    other._wake.hint(["afterwards"])
    assert await woken(seen)
    assert not task.done()
    task.cancel()


async def test_a_submit_whose_hint_is_refused_is_made_without_it(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = await knows_listener(store, other)
    carry = other._wake.carry

    def carry_to_nowhere(queues: Iterable[str], only: Range | None) -> wakeup.CarriedHint | None:
        hint = carry(queues, only)
        assert hint is not None
        # As a queue of notices that is full, the server refuses a channel without a name.
        hint.channel = ""
        return hint

    monkeypatch.setattr(other._wake, "carry", carry_to_nowhere)
    assert await submit_one(other)
    assert await woken(task)


async def test_hints_that_follow_soon_go_by_themselves(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (await knows_listener(store, other)).cancel()
    wake = other._wake
    clock = [wakeup._now()]
    monkeypatch.setattr(wakeup, "_now", lambda: clock[0])
    hint = wake.carry(["default"])
    assert hint is not None
    assert wake.carry(["default"]) is None, "another is under way"
    clock[0] += 0.01
    hint.is_sent = True
    wake.note_carried(hint)
    clock[0] += 0.01 * wakeup.CARRY_REST * 0.9
    assert wake.carry(["default"]) is None
    clock[0] += 0.01 * wakeup.CARRY_REST * 0.2
    assert wake.carry(["default"]) is not None
    clock[0] += wakeup.TRUST_SECONDS
    assert wake.carry(["default"]) is None, "it is not known whether anyone still listens"


async def test_while_a_transaction_with_a_hint_stalls_no_other_carries_one(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (await knows_listener(store, other)).cancel()
    wake = other._wake
    clock = [wakeup._now()]
    monkeypatch.setattr(wakeup, "_now", lambda: clock[0])
    hint = wake.carry(["default"])
    assert hint is not None
    stall = wakeup.TRUST_SECONDS / 2
    clock[0] += stall
    assert wake.carry(["default"]) is None, "it holds the lock, or waits for it"
    # However it ended.
    wake.note_carried(hint)
    wake._asked_at = clock[0] + stall * wakeup.CARRY_REST
    clock[0] += stall * wakeup.CARRY_REST * 0.9
    assert wake.carry(["default"]) is None
    clock[0] += stall * wakeup.CARRY_REST * 0.2
    assert wake.carry(["default"]) is not None


async def test_a_submit_that_fails_lets_later_ones_carry_their_hints(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (await knows_listener(store, other)).cancel()
    wake = other._wake
    carried: list[object] = []

    async def fail(*_: object, hint: object, **__: object) -> NoReturn:
        carried.append(hint)
        raise ZeroDivisionError

    monkeypatch.setattr(postgres_submit, "_submit_by_halves", fail)
    monkeypatch.setattr(wakeup, "CARRY_REST", 0)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            await other.submit([new_job()])
    assert None not in carried
    assert wake.carry(["default"]) is not None


async def test_silence_on_a_sound_line_is_no_hint(store: Store) -> None:
    assert not await store.wake_up(["default"], limit_seconds=0.5)


async def test_a_half_open_line_is_found_out_and_its_waiters_look_for_themselves(
    proxy: FaultProxy, store: Store, other: Store
) -> None:
    task = await waiting(store)
    frozen = proxy.freeze()
    await submit_one(other)
    assert await woken(task)
    assert frozen.bitten

    # Until the line is back, a wait is short and says "look".
    assert await store.wake_up(["default"], limit_seconds=LONG)
    proxy.thaw()
    await listens(store)
    task = await waiting(store)
    await submit_one(other)
    assert await woken(task)


async def test_wake_ups_work_again_after_a_restart(
    postgres_cluster: PostgresCluster, store: Store, other: Store
) -> None:
    task = await waiting(store)
    await asyncio.to_thread(postgres_cluster.restart, "immediate")
    assert await woken(task)

    await listens(store)
    task = await waiting(store)
    await submit_one(other)
    assert await woken(task)


async def test_a_hint_that_could_not_be_sent_costs_no_submit(
    postgres_cluster: PostgresCluster, postgres_url: str, other: Store
) -> None:
    await submit_one(other)
    await asyncio.to_thread(postgres_cluster.kill_backends, postgres_url)
    await submit_one(other)
    async with postgres_store(postgres_url) as store:
        await listens(store)
        task = await waiting(store)
        await submit_one(other)
        assert await woken(task)


async def test_without_a_direct_line_a_wait_is_a_poll(postgres_url: str) -> None:
    async with postgres_store(postgres_url, pooled=True) as store:
        assert await woken(await waiting(store))


@pytest.mark.parametrize("queue", ["default", "a\x1fb", "1\x1f2", "\x1f", "é\x1f"])
def test_a_notice_names_its_queue_whatever_characters_that_has(queue: str) -> None:
    assert wakeup._read_notice(*wakeup._write_notices([queue], None)) == (queue, None)
    arm = Range(queue, f"task@{queue}", 8)
    assert wakeup._read_notice(*wakeup._write_notices([queue], arm)) == (queue, arm)


def test_a_notice_of_somebody_else_is_no_range_that_the_store_cannot_have() -> None:
    huge = f"{2**63}\x1f7\x1fdefaulttask"
    assert wakeup._read_notice(huge)[1] is None
    assert wakeup._read_notice("plain") == ("plain", None)
