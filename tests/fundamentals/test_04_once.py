"""A submit that is repeated makes one job: say by which key it is the same."""

from __future__ import annotations

import pytest

from holdfast import Holdfast, HoldfastError
from holdfast.testing import Kit


async def test_a_request_that_is_sent_twice_is_one_job(app: Holdfast, kit: Kit) -> None:
    """`request_id`: your caller's idempotency key. The second submit returns the first's job."""

    @app.task
    async def bill(order: int) -> int:
        return order

    first = await bill.options(request_id="req-1").submit(7)
    again = await bill.options(request_id="req-1").submit(7)
    assert again.id == first.id
    assert (first.created, again.created) == (True, False)


async def test_a_key_stands_for_one_body(app: Holdfast, kit: Kit) -> None:
    """The same `request_id` with other arguments is a mistake, and is refused."""

    @app.task
    async def bill(order: int) -> int:
        return order

    await bill.options(request_id="req-1").submit(7)
    with pytest.raises(HoldfastError, match="req-1"):
        await bill.options(request_id="req-1").submit(8)


async def test_at_most_one_at_a_time(app: Holdfast, kit: Kit) -> None:
    """`dedupe_key` with `unique="live"`: while one has not ended, others are that one."""

    @app.task
    async def sync_account(account: str) -> str:
        return account

    syncing = sync_account.options(dedupe_key="account-1", unique="live")
    first, second = await syncing.submit("1"), await syncing.submit("1")
    assert second.id == first.id
    await kit.drain()
    assert (await syncing.submit("1")).id != first.id
