"""One use of every operation of a store, so that every statement it has is sent."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.record import JobId
from holdfast.lifecycle.states import EventType, KeyKind, Letter, Link, State
from holdfast.maintenance.rebuild import rebuild
from holdfast.ports.models import Capacity, EventQuery, LogEntry, Query
from holdfast.ports.store import Store
from holdfast.ports.uploads import Finalization, Reservation, UploadPart, UploadState
from holdfast.testing.factories import (
    CONTROL,
    JANITOR,
    announcement,
    fresh,
    new_job,
    new_token,
    new_upload,
    new_webhook,
    owner_of,
)
from holdfast.testing.store_actions import (
    all_jobs,
    chain,
    claim,
    claimed_job,
    do,
    job_in,
    running_job,
    submit_one,
)
from tests.stores.ledgers import problems_of
from tests.stores.samples import populate, rich


async def use_everything(store: Store) -> None:
    """Write, read, sweep and keep house."""
    await populate(store)
    await _write(store)
    await _raise_a_family(store)
    await _read(store)
    await _find(store)
    await _keep(store)


async def _write(store: Store) -> None:
    wishes = rich()
    job = await submit_one(store, **wishes)
    await store.submit([new_job(**wishes), new_job(job_id=str(job.id)), new_job()])
    await claim(store, job.queue, capabilities=job.needs, capacity=Capacity(8, 8192))
    await submit_one(store, tenant="acme")
    for tenant in ("acme", "default", None):
        await claim(store, tenant=tenant, tasks=("greet", "charge@2"))
        await claim(store, tenant=tenant, capacity=Capacity(8, 8192))
    # From the one range that a hint names, after a look at all.
    assert await claim(store, "hinted") == []
    await submit_one(store, queue="hinted")
    assert len(await claim(store, "hinted")) == 1
    request = fresh("claim")
    await submit_one(store, queue="twice")
    for _ in range(2):
        await claim(store, "twice", request_id=request)
    held = await claimed_job(store)
    owner = owner_of(held)
    life = chain(held, c.Start(actor=owner), c.Heartbeat(actor=owner), c.Complete(actor=owner))
    await store.commit(life)
    # Once more: it misses, and what became of it is looked up.
    await store.commit(life[:1])
    await _signal(store)
    beating = await running_job(store)
    await store.commit(chain(beating, c.Heartbeat(actor=owner_of(beating))))


async def _signal(store: Store) -> None:
    job = await submit_one(store, queue="signalled")
    await store.commit(chain(job, c.SignalJob(actor=CONTROL, name="go")))
    await store.get([job.id], signals=False)
    [claimed] = await claim(store, "signalled")
    owner = owner_of(claimed.job)
    wait = c.Step(actor=owner, name="go", consumes="go")
    await store.commit(chain(claimed.job, c.Start(actor=owner), wait))


async def _raise_a_family(store: Store) -> None:
    parent = await running_job(store)
    child = await running_job(store, parent_id=parent.id, link_kind=Link.CHILD)
    await store.commit(chain(child, c.Complete(actor=owner_of(child))))
    await store.commit(chain(parent, c.RequestCancel(actor=CONTROL)))
    await store.unmark(await store.marked())
    for live_only in (False, True):
        await store.children([parent.id], live_only=live_only)
    await store.families()


async def _read(store: Store) -> None:
    jobs = await all_jobs(store)
    await store.get([job.id for job in jobs[:5]])
    await store.look_up("default", KeyKind.DEDUPE, "nobody's")
    await store.look_up("default", KeyKind.JOB_ID, str(jobs[0].id))
    await store.events(jobs[0].id)
    await store.histories([job.id for job in jobs[:5]], last=100)
    await store.request_event(jobs[0].id, "r")
    await store.latest_events(jobs[0].id, (EventType.CREATED, EventType.PROGRESSED))
    await store.step_events(jobs[0].id, [("charge", 1)])
    await store.last_progress(jobs[0].id)
    await store.owned("worker-1")
    await store.owned_on("host", but="host:1")
    await store.held("upload")
    await store.pending()
    await store.clock()
    await store.size()
    await store.due()
    await store.tail((await store.tail(None, limit=5)).cursor, limit=5)
    await store.tail_end()
    await store.secret("feed")
    await store.counts()
    await store.queues()
    await store.queue_events()


NARROWED: tuple[dict[str, Any], ...] = (
    {"tenant": "acme"},
    {"queue": "mail"},
    {"parent_id": JobId(UUID(int=1))},
    {"workflow_id": "flow"},
    {"error_code": "boom"},
    {"letter": Letter.OPEN},
)


async def _find(store: Store) -> None:
    job = (await all_jobs(store))[-1]
    for query in (
        Query(),
        Query(before=job.id),
        Query(states=(State.QUEUED,), queue="default", task="greet", tenant="default"),
        Query(created_from=1, created_until=2),
        Query(parent_id=job.id),
        Query(workflow_id="flow"),
        Query(correlation_id="one"),
        Query(error_code="boom"),
        Query(letter=Letter.OPEN),
        Query(tenant="acme"),
        Query(queue="mail"),
        Query(task="greet", look=1),
        *(Query(task="greet", look=1, **narrow) for narrow in NARROWED),
    ):
        await store.find(query)
    for common in (EventType.CREATED, EventType.SUCCEEDED):
        await store.find_events(EventQuery(type=common.code, since=1, until=2))
    await store.find_events(EventQuery(type=EventType.CANCELLED.code, since=1, until=2))
    await store.find_events(EventQuery(correlation_id="one"))


async def _keep(store: Store) -> None:
    await store.pause("default", actor="ann", request_id=fresh("pause"))
    await store.resume("default", actor="ann")
    for _ in range(2):
        await store.announce(announcement())
    await store.retire("worker-1")
    await store.workers()
    await _log(store)
    token = await store.add_token(new_token())
    await store.revoke_token(token.id, actor="ann")
    await store.tokens(tenant="default")
    await store.fold_counts()
    hook = await store.add_webhook(new_webhook())
    await store.webhooks(tenant=hook.tenant)
    await store.remove_webhook(hook.id, tenant=hook.tenant, actor="ann")
    await _upload(store)
    await store.move_cursor("one", before=None, to="1")
    await store.move_cursor("one", before=await store.cursor("one"), to="2")
    await store.move_note("one", before=None, to="1")
    await store.move_note("one", before=await store.note("one"), to="2")
    await store.aged(ended_before=(await store.clock()).now, look_at=5)
    await store.continued([job.id for job in await all_jobs(store)])
    await store.erase_bodies([job.id for job in await all_jobs(store)])
    await store.drop_beats(before=(await store.clock()).now)
    await _purge(store)
    await problems_of(store)
    await rebuild(store)
    await store.bump_epoch()
    await store.due()


async def _upload(store: Store) -> None:
    upload = await store.add_upload(new_upload())
    key: Any = {"id": upload.id, "tenant": upload.tenant}
    spans: Any = {"silent": 1, "lifetime": 1}
    await store.reserve_upload(Reservation(**key, writer="w", bytes=1, starts=True, **spans))
    await store.end_write(upload.id, writer="w", lifetime=1, part=UploadPart("a", 1))
    await store.upload_parts(upload.id)
    await store.upload_bytes(upload.tenant)
    await store.open_uploads(upload.tenant, limit=1)
    found: Any = {"rev": 3, "files": 1, "digest": "d", "actor": "ann", "request_id": None}
    await store.finalize_upload(Finalization(**key, **found, **spans))
    [job, *_] = await all_jobs(store)
    states = [UploadState.FINALIZED]
    await store.use_upload(**key, job=job.id, states=states, lifetime=1)
    await store.upload_in_use(upload.id)
    await store.consume_uploads(actor="ann")
    now = (await store.clock()).now
    for one in await store.due_uploads(now=now, ended_before=now):
        await store.end_upload(
            one.id, rev=one.rev, to=UploadState.EXPIRED, actor="ann", due_only=True
        )
    await store.uploads(tenant=upload.tenant)
    await store.clear_upload(upload.id, lifetime=1)
    await store.drop_upload(upload.id)


async def _purge(store: Store) -> None:
    job = await job_in(store, State.SUCCEEDED)
    for command in (c.Clean(actor=JANITOR), c.Cleaned(actor=JANITOR)):
        job = await do(store, job, command)
    await submit_one(store)
    await store.purgeable(ended_before=(await store.clock()).now, look_at=5)
    assert await store.purge([job.id], actor="ann") == [job.id]
    await store.purged([job.id])
    await store.purges()
    await store.give_back_space()


async def _log(store: Store) -> None:
    job = (await all_jobs(store))[0]
    await store.keep_logs([LogEntry(id=job.id, attempt=1, at=1, level=20, message="said")])
    await store.logs(job.id)
