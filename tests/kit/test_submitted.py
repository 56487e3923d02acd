"""What was submitted is told by arguments, and what differs is shown."""

from __future__ import annotations

from datetime import date

import pytest

from holdfast import Context, Holdfast
from holdfast.testing import Kit, assert_not_submitted, assert_submitted, submitted


@pytest.fixture
def app() -> Holdfast:
    return Holdfast()


async def test_by_any_of_its_arguments_defaults_included(app: Holdfast) -> None:
    @app.task
    async def bill(
        ctx: Context, order: int, day: date, *tags: str, currency: str = "EUR"
    ) -> list[object]:
        return [order, day, tags, currency]

    async with Kit(app):
        job = await bill.submit(7, date(2026, 2, 3), "a", "b")
        found = await assert_submitted(app, bill, order=7, currency="EUR", tags=("a", "b"))
        assert found.id == job.id
        await assert_submitted(app, "bill", day=date(2026, 2, 3))
        await assert_submitted(app, bill)
        [one] = await submitted(app, bill)
        assert one.arguments == {
            "order": 7, "day": date(2026, 2, 3), "tags": ("a", "b"), "currency": "EUR",
        }  # fmt: skip


async def test_what_differs_is_shown_the_closest_first(app: Holdfast) -> None:
    @app.task
    async def bill(order: int, amount: int) -> None: ...

    async with Kit(app):
        await bill.submit(1, 1)
        near = await bill.submit(7, 13)
        with pytest.raises(AssertionError) as told:
            await assert_submitted(app, bill, order=7, amount=12)
    assert str(told.value).splitlines()[:3] == [
        "no job bill(order=7, amount=12) was submitted. There are 2 jobs of 'bill':",
        f"  bill(order=7, amount=13)  [{near.id}, queued]",
        "      amount: is 13, not 12",
    ]


async def test_an_argument_that_there_is_not_and_a_task_that_nobody_submitted(
    app: Holdfast,
) -> None:
    @app.task
    async def bill(order: int) -> None: ...

    @app.task
    async def mail() -> None: ...

    async with Kit(app):
        await bill.submit(1)
        with pytest.raises(AssertionError, match="odrer: there is no such argument"):
            await assert_submitted(app, bill, odrer=1)
        with pytest.raises(AssertionError, match=r"nor any of 'mail'\. There are jobs of: bill"):
            await assert_submitted(app, mail)


async def test_what_must_not_have_been_submitted(app: Holdfast) -> None:
    @app.task
    async def bill(order: int) -> None: ...

    async with Kit(app):
        await bill.submit(1)
        await assert_not_submitted(app, bill, order=2)
        with pytest.raises(AssertionError, match=r"was submitted:\n  bill\(order=1\)"):
            await assert_not_submitted(app, bill)


async def test_in_the_order_of_submission_and_for_foreign_tasks_too(app: Holdfast) -> None:
    async with Kit(app):
        for number in range(3):
            await app.submit("resize", number=number)
        await assert_submitted(app, "resize", number=1)
        numbers = [one.arguments["number"] for one in await submitted(app)]
        assert numbers == [0, 1, 2]
