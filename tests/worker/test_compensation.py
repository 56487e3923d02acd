"""Compensation: what a job did is undone by a linked job, the last step first (B28)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel

from holdfast import Context, PermanentError
from holdfast.app.app import Holdfast
from holdfast.errors import BadTask
from holdfast.flow.redrive import redrive
from holdfast.lifecycle.linked import compensation_id
from holdfast.lifecycle.states import Letter, Link, State
from holdfast.ports.store import Store
from holdfast.tasks.handles import JobHandle
from holdfast.worker.compensation import note_compensated
from tests.worker.test_worker import LIMIT, types, until

BRISK: dict[str, Any] = {"poll": "20ms", "tick": "50ms"}


class Receipt(BaseModel):
    """What a charge returns."""

    number: int


async def undoing(app: Holdfast, job: JobHandle[Any]) -> JobHandle[Any]:
    """Find the job that undoes another."""
    return await app.get(compensation_id(job.record.id))


class Shop:
    """A task of three steps, of which two can be undone, and all that happened to it."""

    def __init__(self, app: Holdfast, **options: Any) -> None:
        """Register the task."""
        self.done: list[Any] = []
        self.contexts: list[Context] = []
        self.fail_at = "end"
        self.error: BaseException = PermanentError("out of stock")
        self.refusals = 0
        """How often the first charge cannot be undone."""
        terms: Any = {"compensate": self.undo, "compensate_steps": self.steps, "backoff": "1ms"}
        self.order = app.task(**terms | options)(self.handler)

    @property
    def steps(self) -> dict[str, Any]:
        """What undoes which step."""
        return {"charge": self.refund, "ship": self.call_back}

    async def handler(self, ctx: Context, item: str, count: int = 1) -> None:
        """Charge twice, note, ship, and fail."""
        for number in range(2):
            await ctx.step("charge", self.charge, number)
        await ctx.step("note", self.note)
        self.stop("shipping")
        await ctx.step("ship", self.ship, item)
        self.stop("end")

    def stop(self, where: str) -> None:
        """Raise, if it is here."""
        if self.fail_at == where:
            raise self.error

    async def charge(self, number: int) -> Receipt:
        """Charge."""
        self.done.append(f"charge {number}")
        return Receipt(number=number)

    async def note(self) -> None:
        """Do what needs no undoing."""

    def ship(self, item: str) -> str:
        """Ship, in a thread."""
        self.done.append(f"ship {item}")
        return item

    async def refund(self, ctx: Context, receipt: Receipt) -> object:
        """Undo a charge; what it returns is no JSON."""
        self.contexts.append(ctx)
        if receipt.number == 0 and self.refusals:
            self.refusals -= 1
            raise OSError("the bank sleeps")
        self.done.append(f"refund {receipt.number}")
        return object()

    def call_back(self, item: str) -> None:
        """Undo the shipping, in a thread and without a context."""
        self.done.append(f"call back {item}")

    async def undo(self, ctx: Context, item: str, count: int = 1) -> None:
        """Undo the rest."""
        self.contexts.append(ctx)
        self.done.append(f"undo {item} {count}")


DID = ["charge 0", "charge 1", "ship lamp"]
UNDID = ["call back lamp", "refund 1", "refund 0", "undo lamp 3"]


@pytest.mark.req("B28", "B32")
async def test_completed_steps_are_undone_in_reverse_and_then_the_whole(app: Holdfast) -> None:
    shop = Shop(app)
    options: Any = {"labels": {"of": "shop"}, "correlation_id": "c-1", "job_id": "order-7"}
    async with app.worker(**BRISK):
        job = await shop.order.options(**options).submit("lamp", count=3)
        assert await job.wait(LIMIT) is State.FAILED
        undo = await undoing(app, job)
        assert await undo.result(LIMIT) is None
    assert shop.done == DID + UNDID
    record = undo.record
    assert (record.parent_id, record.link_kind) == (job.record.id, Link.COMPENSATION)
    assert await types(undo) == [
        *("created", "claimed", "started"),
        *(["step_completed"] * 3),
        "succeeded",
    ]
    assert [event.facts.get("step") for event in await undo.events()][3:6] == [
        *("compensate:ship:1", "compensate:charge:2", "compensate:charge:1"),
    ]
    # The parent knows, and nothing else of it has changed.
    assert (await job.events())[-1].type == "job_compensated"
    assert (await job.events())[-1].facts["link"] == undo.id
    assert (await job.refresh()).state is State.FAILED
    # Everyone who acts for a job is given the token, and knows whose traces it removes (B32).
    assert {str(ctx.token) for ctx in shop.contexts} == {f"{undo.id}/1/1"}
    assert {ctx.job.compensates for ctx in shop.contexts} == {str(job.record.id)}
    assert shop.contexts[0].job.labels == {"of": "shop"}
    assert shop.contexts[0].job.correlation_id == "c-1"
    assert {one.id async for one in app.jobs(correlation_id="c-1")} == {job.id, undo.id}


@pytest.mark.req("B28")
async def test_only_what_was_completed_is_undone(app: Holdfast) -> None:
    shop = Shop(app)
    shop.fail_at = "shipping"
    async with app.worker(**BRISK):
        job = await shop.order.submit("lamp", count=3)
        await job.wait(LIMIT)
        await (await undoing(app, job)).result(LIMIT)
    assert shop.done == [*DID[:2], *UNDID[1:]]


@pytest.mark.req("B28")
async def test_a_success_is_left_alone(app: Holdfast) -> None:
    shop = Shop(app)
    shop.fail_at = "nowhere"
    async with app.worker(**BRISK):
        job = await shop.order.submit("lamp")
        await job.result(LIMIT)
    assert [one.id async for one in app.jobs()] == [job.id]


@pytest.mark.req("B28")
async def test_a_job_that_runs_out_of_tries_is_undone_once(app: Holdfast) -> None:
    shop = Shop(app, retries=2)
    shop.error = OSError("try again")
    async with app.worker(**BRISK):
        job = await shop.order.submit("lamp", count=3)
        assert await job.wait(LIMIT) is State.DEAD_LETTERED
        await (await undoing(app, job)).result(LIMIT)
    assert job.record.attempt == 3
    assert shop.done == DID + UNDID


@pytest.mark.req("B28")
@pytest.mark.parametrize("ends", ["cancelled", "cancelled while parked", "timed_out", "deadline"])
async def test_however_a_job_ends_by_others_it_is_undone(app: Holdfast, ends: str) -> None:
    undone: list[str] = []

    async def undo(name: str) -> None:
        undone.append(name)

    terms: dict[str, Any] = {"timeout": "1s"} if ends == "timed_out" else {}

    @app.task(retries=0, compensate=undo, cancel_grace="0s", **terms)
    async def stays(ctx: Context, name: str) -> None:
        if "parked" in ends:
            await ctx.wait_for("never")
        await asyncio.Event().wait()

    wishes: Any = {"deadline": "300ms"} if ends == "deadline" else {}
    async with app.worker(**BRISK):
        job = await stays.options(**wishes).submit("it")
        if "cancelled" in ends:
            await until(job, State.WAITING if "parked" in ends else State.RUNNING)
            await job.cancel()
        assert await job.wait(LIMIT) in (State.CANCELLED, State.TIMED_OUT)
        await (await undoing(app, job)).result(LIMIT)
    assert undone == ["it"]


@pytest.mark.req("B28")
async def test_a_compensation_is_tried_again_and_does_no_step_twice(app: Holdfast) -> None:
    shop = Shop(app)
    shop.refusals = 2
    async with app.worker(**BRISK):
        job = await shop.order.submit("lamp", count=3)
        await job.wait(LIMIT)
        undo = await undoing(app, job)
        await undo.result(LIMIT)
    assert (undo.record.attempt, undo.record.failures) == (3, 2)
    assert shop.done == DID + UNDID
    assert (await types(job)).count("compensated") == 1


@pytest.mark.req("B14", "B28")
@pytest.mark.parametrize("error", [OSError("the bank is gone"), PermanentError("no such account")])
async def test_a_compensation_that_fails_is_a_dead_letter_of_its_own(
    app: Holdfast, error: BaseException
) -> None:
    async def undo() -> None:
        raise error

    @app.task(retries=1, backoff="1ms", on_exhausted="fail", compensate=undo)
    async def order() -> None:
        raise PermanentError("out of stock")

    async with app.worker(**BRISK):
        job = await order.submit()
        await job.wait(LIMIT)
        undone = await undoing(app, job)
        assert await undone.wait(LIMIT) is State.DEAD_LETTERED
    assert (undone.record.error_code, undone.record.letter) == (
        "compensation_failed",
        Letter.OPEN,
    )
    assert undone.record.attempt == (1 if isinstance(error, PermanentError) else 2)
    assert (await types(job))[-1] == "failed"
    jobs = {one.id async for one in app.jobs()}
    assert jobs == {job.id, undone.id}, "a compensation is not undone in its turn"


@pytest.mark.req("B14", "B28")
async def test_a_compensation_killed_at_its_time_limit_is_a_dead_letter_too(app: Holdfast) -> None:
    async def undo() -> None:
        await asyncio.Event().wait()

    @app.task(retries=0, timeout="50ms", compensate=undo)
    async def order() -> None:
        raise PermanentError("out of stock")

    async with app.worker(**BRISK):
        job = await order.submit()
        await job.wait(LIMIT)
        undone = await undoing(app, job)
        assert await undone.wait(LIMIT) is State.DEAD_LETTERED
    assert undone.record.error_code == "compensation_failed"


@pytest.mark.req("B28")
async def test_a_redriven_compensation_undoes_the_rest_and_does_not_run_the_handler(
    app: Holdfast,
) -> None:
    shop = Shop(app, retries=0)
    shop.refusals = 1
    async with app.worker(**BRISK):
        job = await shop.order.options(correlation_id="c-1").submit("lamp", count=3)
        await job.wait(LIMIT)
        dead = await undoing(app, job)
        assert await dead.wait(LIMIT) is State.DEAD_LETTERED
        record = await redrive(await app.store(), dead.record.id, app.control)
        again = await app.get(record.id)
        await again.result(LIMIT)
    assert shop.done == DID + UNDID
    assert (again.record.link_kind, again.record.parent_id) == (Link.COMPENSATION, dead.record.id)
    assert {one.id async for one in app.jobs(correlation_id="c-1")} == {job.id, dead.id, again.id}
    assert (await job.events())[-1].facts["link"] == again.id
    assert shop.contexts[-1].job.compensates == str(job.record.id)


@pytest.mark.req("B28")
async def test_what_dies_between_the_note_and_its_end_is_healed_by_the_next_attempt(
    app: Holdfast, monkeypatch: pytest.MonkeyPatch
) -> None:
    noted: list[str] = []

    async def note_and_die(store: Store, claimed: Any, worker: str) -> None:
        # Each attempt speaks under the name of another worker.
        await note_compensated(store, claimed, f"worker {len(noted)}")
        noted.append(claimed.job.public_id)
        if len(noted) < 3:
            raise OSError("dies here")

    monkeypatch.setattr("holdfast.worker.durable_calls.note_compensated", note_and_die)
    shop = Shop(app)
    async with app.worker(**BRISK):
        job = await shop.order.submit("lamp", count=3)
        await job.wait(LIMIT)
        await (await undoing(app, job)).result(LIMIT)
    assert len(noted) == 3
    assert (await types(job)).count("compensated") == 1
    # The steps are remembered; the last part, which is none, must bear to be repeated.
    assert shop.done == [*DID, *UNDID[:3], *(UNDID[3:] * 3)]


@pytest.mark.req("B28")
async def test_a_compensation_may_wait_and_have_steps(app: Holdfast) -> None:
    done: list[str] = []

    async def undo(ctx: Context, item: str) -> None:
        await ctx.step("take back", done.append, f"take back {item}")
        done.append(await ctx.wait_for("came"))

    @app.task(compensate=undo)
    async def order(item: str) -> None:
        raise PermanentError("out of stock")

    async with app.worker(**BRISK):
        job = await order.submit("lamp")
        await job.wait(LIMIT)
        undone = await undoing(app, job)
        await until(undone, State.WAITING)
        await undone.signal("came", "yes")
        await undone.result(LIMIT)
    assert done == ["take back lamp", "yes"]


@pytest.mark.req("A16", "B28")
async def test_each_try_of_what_is_not_idempotent_is_undone_by_itself(app: Holdfast) -> None:
    shop = Shop(app, idempotent=False, retries=1)
    shop.error = OSError("no answer")
    async with app.worker(**BRISK):
        job = await shop.order.submit("lamp", count=3)
        await job.wait(LIMIT)
        again = await job.retried_as()
        assert again is not None
        await again.wait(LIMIT)
        for one in (job, again):
            await (await undoing(app, one)).result(LIMIT)
    assert sorted(shop.done) == sorted([*DID, *UNDID] * 2)


async def test_code_without_the_compensation_says_so(app: Holdfast, url: str) -> None:
    async def undo() -> None: ...

    @app.task(name="order", compensate=undo, retries=0)
    async def order() -> None:
        raise PermanentError("out of stock")

    job = await order.submit()
    newer = Holdfast(url, unbounded_leases=True)
    newer.task(name="order", retries=0)(order.fn)
    async with newer, newer.worker(**BRISK):
        await job.wait(LIMIT)
        undone = await undoing(newer, job)
        assert await undone.wait(LIMIT) is State.DEAD_LETTERED
    assert "no compensation here" in str((await undone.events())[-1].payload)


def _wrong_name(_thing: str) -> None: ...


def _two(result: str, more: str) -> None: ...


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compensate": _wrong_name}, r"must take the arguments of the task \(item\), not _thing"),
        ({"compensate": "undo"}, "must be a function"),
        ({"compensate_steps": {"charge": _two}}, "takes one argument, the step's result"),
        ({"compensate_steps": {"charge": None}}, "must be a function"),
        ({"compensate_steps": [_two]}, "must map names of steps"),
    ],
)
def test_a_compensation_that_does_not_fit_is_refused_at_registration(
    options: Any, message: str
) -> None:
    app = Holdfast(":memory:")
    with pytest.raises(BadTask, match=message):

        @app.task(**options)
        async def order(item: str) -> None: ...
