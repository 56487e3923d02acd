"""The bypass hunt (case 35), and rules that change under load (case 32)."""

from __future__ import annotations

import ast
import asyncio
from pathlib import Path
from typing import Any, NoReturn

import asyncpg
import pytest

import holdfast
from holdfast import Context, Holdfast, PermanentError
from holdfast.admission.topics import Route
from holdfast.errors import BadPolicy, JobDenied, PolicyChanged, Refused
from holdfast.flow.bus_job import build_bus_job
from holdfast.flow.notify import notify
from holdfast.flow.redrive import redrive
from holdfast.flow.submit_command import WantedCommand
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import Link, Priority, Role, State
from holdfast.operations import requests as q
from holdfast.operations.local import LocalOperations
from holdfast.operations.session import StoreSession
from holdfast.ports.bus import JobOffer
from holdfast.ports.store import Store
from holdfast.stores.postgres import policy as postgres_policy
from holdfast.tasks.tasks import make_task
from holdfast.testing import Kit
from holdfast.testing.factories import CONTROL, new_webhook
from holdfast.testing.store_actions import all_jobs
from holdfast.webhooks.registry import QUEUE, TASK
from holdfast.wiring import make_store, read_address

pytestmark = pytest.mark.req("A13")
OPEN = 'version = 1\ndefault = "allow"\n'
DENIES = OPEN + '[[rule]]\nid = "no"\nmatch = { task = "ship" }\nthen = "deny"\nreason = "no"\n'

BIRTHS = {
    ("flow/submit.py", "decide"): "test_a_submit_is_judged_and_answers_with_the_denied_job",
    ("flow/submit.py", "decide_all"): "test_many_submits_are_judged",
    ("flow/submit.py", "decide_alike"): "test_many_alike_submits_are_judged",
    ("flow/submit.py", "decide_child"): "test_a_child_is_judged",
    ("flow/bus_job.py", "build_bus_job"): "test_a_job_from_a_bus_is_judged",
    ("flow/finish.py", "_make_linked_retry"): "test_a_linked_retry_is_judged",
    ("flow/redrive.py", "_decide_successor"): "test_a_redrive_is_judged",
    ("flow/notify.py", "_build_message"): "test_the_message_of_a_webhook_is_not_judged",
    ("lifecycle/decide/change.py", "change"): "test_a_compensation_is_judged",
    # What these return is what the callers above return.
    ("lifecycle/linked.py", "linked"): "",
    ("lifecycle/linked.py", "linked_retry"): "",
    ("lifecycle/linked.py", "compensation"): "",
    ("lifecycle/submit.py", "_submit_plain"): "",
}
"""Every function that makes a new job, and the test which shows that it is judged."""
MAKERS = {"submit", "decide_like", "make_alike", "linked", "linked_retry", "compensation"}


def find_makers() -> set[tuple[str, str]]:
    """Find every function of the package that makes a new job."""
    root = Path(holdfast.__file__).parent
    return {
        (str(path.relative_to(root)), function.name)
        for path in root.rglob("*.py")
        if "testing" not in path.parts
        for function, names in list_functions(path)
        if any(
            isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names
            for node in ast.walk(function)
        )
    }


def list_functions(path: Path) -> list[tuple[Any, set[str]]]:
    """List the functions of a module, with the names that make new jobs in it."""
    module = ast.parse(path.read_text("utf-8"))
    homes = (
        "holdfast.lifecycle.submit",
        "holdfast.lifecycle.alike",
        "holdfast.lifecycle.linked",
    )
    names = {
        alias.asname or alias.name
        for node in ast.walk(module)
        if isinstance(node, ast.ImportFrom) and node.module in homes
        for alias in node.names
        if alias.name in MAKERS
    }
    if path.parent.name == "lifecycle" and path.name in ("submit.py", "linked.py"):
        names |= MAKERS
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    return [(node, names) for node in ast.walk(module) if isinstance(node, kinds)]


def test_whatever_makes_a_new_job_has_a_test_that_it_is_judged() -> None:
    assert find_makers() == set(BIRTHS)
    assert {name for name in BIRTHS.values() if name} <= set(globals())


async def ruled(app: Holdfast, book: str = OPEN) -> str:
    """Apply rules, and return their digest."""
    applied = await (await app.store()).apply_policy(book, actor="ann")
    assert applied is not None
    return applied.digest


async def rules_of(store: Store) -> dict[str, str | None]:
    """Return by which rules each job was judged, by its task and link."""
    return {
        f"{job.task}/{job.link_kind}": (await store.events(job.id, limit=1))[0].facts.rules
        for job in await all_jobs(store)
    }


def shipper(app: Holdfast) -> Any:
    @app.task
    async def ship(number: int) -> int:
        return number

    return ship


async def test_a_submit_is_judged_and_answers_with_the_denied_job(app: Holdfast) -> None:
    digest = await ruled(app, DENIES)

    job = await shipper(app).submit(1)

    assert (job.state, job.record.error_code) == (State.DENIED, "denied")
    assert await rules_of(await app.store()) == {"ship/None": digest}


async def test_many_submits_are_judged(app: Holdfast) -> None:
    digest, ship = await ruled(app, DENIES), shipper(app)

    jobs = await app.submit_many([ship.prepare(number) for number in range(5)])

    assert {job.state for job in jobs} == {State.DENIED}
    assert await rules_of(await app.store()) == {"ship/None": digest}


async def test_many_alike_submits_are_judged(app: Holdfast) -> None:
    digest, ship = await ruled(app, DENIES), shipper(app)

    jobs = await ship.submit_many([(number,) for number in range(60)])

    assert {job.state for job in jobs} == {State.DENIED}
    assert await rules_of(await app.store()) == {"ship/None": digest}


async def test_a_policy_that_was_applied_elsewhere_judges_alike_submits(app: Holdfast) -> None:
    ship = shipper(app)
    await ship.submit_many([(number,) for number in range(60)])
    other = Holdfast(app.url)
    await ruled(other, DENIES)
    await other.close()

    jobs = await ship.submit_many([(number,) for number in range(60)])

    assert {job.state for job in jobs} == {State.DENIED}


async def test_an_operation_and_a_command_are_judged(app: Holdfast) -> None:
    digest = await ruled(app)
    store = await app.store()
    mine = LocalOperations(StoreSession(store), name="ann")
    await mine.do(q.SubmitJob(job=q.WantedJob(task="ship")))
    await mine.do(q.SubmitJob(job=WantedCommand(type="worker", command="make")))

    assert set((await rules_of(store)).values()) == {digest}


async def test_a_job_from_a_bus_is_judged(app: Holdfast) -> None:
    digest, store = await ruled(app), await app.store()
    names = ("tenant", "context_ptr", "adapter_id", "idempotency_key", "deadline_ms")
    missing: dict[str, Any] = dict.fromkeys((*names, "parent_job_id", "workflow_id", "step_index"))
    asked: dict[str, Any] = {
        "sender": "ann",
        "trace_id": "one",
        "job_id": "one",
        "topic": "job.once",
        "rest": {},
    }
    maps: dict[str, Any] = {
        "env": {},
        "labels": {},
        "needs": frozenset(),
        "priority": Priority.INTERACTIVE,
    }
    offer = JobOffer(**missing, **asked, **maps)
    actor = Actor(Role.GATEWAY, "bus")
    await store.submit([build_bus_job(offer, Route(bus="main"), actor, tenant="default")])

    assert await rules_of(store) == {"job.once/None": digest}


async def test_a_child_is_judged(holdfast_app: Holdfast, holdfast_kit: Kit) -> None:
    app, ship = holdfast_app, shipper(holdfast_app)

    @app.task
    async def parent(ctx: Context) -> None:
        await ctx.spawn(ship, 1)

    digest = await ruled(app)
    await (await parent.submit()).result()

    assert (await rules_of(await app.store()))[f"ship/{Link.CHILD}"] == digest


async def test_a_denied_child_does_not_run(holdfast_app: Holdfast, holdfast_kit: Kit) -> None:
    app, ship = holdfast_app, shipper(holdfast_app)

    @app.task
    async def parent(ctx: Context) -> None:
        await ctx.spawn(ship, 1)

    await ruled(app, DENIES)
    job = await parent.submit()
    await holdfast_kit.drain()

    [child] = [child async for child in app.jobs(parent=job)]
    assert child.state is State.DENIED


async def test_a_rule_knows_what_a_worker_s_handler_spawned(
    holdfast_app: Holdfast, holdfast_kit: Kit
) -> None:
    app, ship = holdfast_app, shipper(holdfast_app)

    @app.task
    async def parent(ctx: Context) -> None:
        await ctx.spawn(ship, 1)

    await ruled(app, DENIES.replace('task = "ship"', 'submitter_role = "worker"'))
    job = await parent.submit()
    assert job.state is State.QUEUED
    await holdfast_kit.drain()

    [child] = [child async for child in app.jobs(parent=job)]
    assert child.state is State.DENIED


async def test_a_handler_does_not_approve_what_it_asked_for(
    holdfast_app: Holdfast, holdfast_kit: Kit
) -> None:
    app, ship = holdfast_app, shipper(holdfast_app)
    codes: list[str] = []

    @app.task
    async def agent(ctx: Context) -> None:
        child = await ctx.spawn(ship, 1)
        try:
            await (await app.get(child.id)).approve()
        except Refused as error:
            codes.append(error.code)

    await ruled(app, DENIES.replace('"deny"', '"approve"'))
    await agent.submit()
    await holdfast_kit.drain()

    assert codes == ["approver_is_a_job"]


async def test_a_denial_says_what_was_wrong_and_not_what_the_rule_is_for(app: Holdfast) -> None:
    when = 'when = \'labels["team"] == "a"\'\nthen'
    await ruled(app, DENIES.replace("then", when).replace('"deny"', '"approve"'))

    job = await shipper(app).submit(1)

    with pytest.raises(JobDenied, match="team"):
        await job.result()


async def test_a_linked_retry_is_judged(holdfast_app: Holdfast, holdfast_kit: Kit) -> None:
    @holdfast_app.task(idempotent=False, retries=1)
    async def charge() -> None:
        raise ValueError("boom")

    digest = await ruled(holdfast_app)
    await charge.submit()
    await holdfast_kit.drain()

    assert (await rules_of(await holdfast_app.store()))[f"charge/{Link.RETRY}"] == digest


async def test_a_redrive_is_judged(holdfast_app: Holdfast, holdfast_kit: Kit) -> None:
    @holdfast_app.task(retries=0)
    async def fall() -> None:
        raise ValueError("boom")

    job = await fall.submit()
    await holdfast_kit.drain()
    digest = await ruled(holdfast_app)
    store = await holdfast_app.store()
    await redrive(store, job.record.id, CONTROL)

    assert (await rules_of(store))[f"fall/{Link.REDRIVE}"] == digest


async def test_a_compensation_is_judged(holdfast_app: Holdfast, holdfast_kit: Kit) -> None:
    async def undo() -> None:
        pass

    @holdfast_app.task(compensate=undo)
    async def book() -> None:
        raise PermanentError("boom")

    digest = await ruled(holdfast_app)
    await book.submit()
    await holdfast_kit.drain()

    assert (await rules_of(await holdfast_app.store()))[f"book/{Link.COMPENSATION}"] == digest


async def test_the_message_of_a_webhook_is_not_judged(app: Holdfast) -> None:
    store = await app.store()
    await store.add_webhook(new_webhook())
    task = make_task(_deliver, {"name": TASK, "queue": QUEUE})
    actor = Actor(Role.GATEWAY, "webhooks")
    await notify(store, actor, task)
    await ruled(app, DENIES.replace('"ship"', '"*"'))
    await shipper(app).submit(1)
    while (await notify(store, actor, task)).events:
        pass

    [message] = [job for job in await all_jobs(store) if job.task == TASK]
    assert message.state is State.QUEUED


async def _deliver(webhook: str, internal_id: str, rev: int) -> None:
    """Stand for the delivery."""


async def test_a_job_in_a_transaction_on_sqlite_is_judged(sqlite_path: Path) -> None:
    async with Holdfast(str(sqlite_path)) as app:
        ship, digest = shipper(app), await ruled(app, DENIES)
        async with app.transaction() as tx:
            ship.submit_in_sync(tx, 1)

        assert await rules_of(await app.store()) == {"ship/None": digest}
        [job] = await all_jobs(await app.store())
        assert job.held_by == ("denied:no",)


async def test_a_job_in_a_caller_s_transaction_is_judged_or_the_transaction_refused(
    empty_postgres_url: str,
) -> None:
    url = empty_postgres_url
    async with Holdfast(url) as app:
        ship, store = shipper(app), await app.store()
        connection = await asyncpg.connect(url)
        try:
            async with connection.transaction():
                await ship.submit_in(connection, 1)
            # Applied by another process, which this one has not heard of.
            other = make_store(read_address(url))
            await other.open()
            await other.apply_policy(DENIES, actor="ann")
            await other.close()
            with pytest.raises(PolicyChanged):
                async with connection.transaction():
                    await ship.submit_in(connection, 2)
            async with connection.transaction():
                await ship.submit_in(connection, 3)
        finally:
            await connection.close()
        held = [job.held_by for job in await all_jobs(store)]
        assert sorted(held) == [(), ("denied:no",)]


async def test_a_caller_s_transaction_learns_why_the_rules_cannot_be_read_here(
    empty_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def submit_in_one(connection: Any) -> None:
        async with connection.transaction():
            await ship.submit_in(connection, 1)

    def fail(body: str) -> NoReturn:
        raise BadPolicy("expressions need the extra 'policy'")

    async with Holdfast(empty_postgres_url) as app:
        ship = shipper(app)
        connection = await asyncpg.connect(empty_postgres_url)
        await submit_in_one(connection)
        await (await app.store()).apply_policy(OPEN, actor="ann")
        monkeypatch.setattr(postgres_policy, "compile_book", fail)
        try:
            with pytest.raises(PolicyChanged):
                await submit_in_one(connection)
            with pytest.raises(BadPolicy, match=r"this process .* need the extra 'policy'"):
                await submit_in_one(connection)
        finally:
            await connection.close()


async def test_rules_that_change_under_load_judge_each_job_by_one_of_them(app: Holdfast) -> None:
    ship, store = shipper(app), await app.store()
    books = [OPEN + f"# {number}\n" for number in range(6)]
    digests = {await ruled(app, books[0])}
    done = asyncio.Event()
    submitted: list[Any] = []

    async def load() -> None:
        while not done.is_set():
            submitted.append(await ship.submit(len(submitted)))

    async with asyncio.TaskGroup() as group:
        for _ in range(4):
            group.create_task(load())
        other = make_store(read_address(str(app.url)))
        await other.open()
        for book in books[1:]:
            applied = await other.apply_policy(book, actor="ann")
            assert applied is not None
            digests.add(applied.digest)
            with pytest.raises(BadPolicy):
                await other.apply_policy("version = 1\ndefault = ", actor="ann")
            assert await other.policy() == applied
            job = await ship.submit(0)
            [first] = await store.events(job.record.id)
            assert first.facts.rules == applied.digest
        done.set()
        await other.close()

    assert submitted
    for job in submitted:
        [first] = await store.events(job.record.id)
        assert first.facts.rules in digests


async def test_a_policy_that_another_process_removed_is_forgotten_soon(app: Holdfast) -> None:
    ship = shipper(app)
    await ruled(app, DENIES)
    assert (await ship.submit(1)).state is State.DENIED
    other = make_store(read_address(str(app.url)))
    await other.open()
    await other.apply_policy(None, actor="ann")
    await other.close()

    async with asyncio.timeout(30):
        while (await ship.submit(1)).state is State.DENIED:  # noqa: ASYNC110  another process
            await asyncio.sleep(0.05)
