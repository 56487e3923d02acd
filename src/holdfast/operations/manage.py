"""Handlers for queues, workers, webhooks and tokens, and the numbers of them all."""

from __future__ import annotations

from collections import Counter

from msgspec.structs import replace

from holdfast import __version__
from holdfast.auth.tokens import MadeToken, TokenList, TokenRegistry, TokenView
from holdfast.durations import instant
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.states import State
from holdfast.operations import requests as q
from holdfast.operations.filters import read_time
from holdfast.operations.scope import CallerScope
from holdfast.operations.views import ClockView, Depth, Queues, Roll, Stats, WorkerCounts
from holdfast.ports.models import QueueStatus, WorkerStatus
from holdfast.webhooks.registry import MadeWebhook, WebhookList, WebhookRegistry, WebhookView


async def get_clock(scope: CallerScope, request: q.GetClock) -> ClockView:
    del request
    return ClockView(now=(await scope.store.clock()).now)


async def list_queues(scope: CallerScope, request: q.ListQueues) -> Queues:
    del request
    return Queues(queues=await _read_depths(scope))


async def _read_depths(scope: CallerScope) -> list[Depth]:
    depth: dict[str, dict[State, int]] = {}
    for one in await scope.store.counts(scope.tenant):
        states = depth.setdefault(one.queue, {})
        states[one.state] = states.get(one.state, 0) + one.jobs
    paused = {one.name: one for one in await scope.store.queues()}
    # A tenant does not see a queue that it has no jobs in.
    names = depth.keys() if scope.tenant is not None else depth.keys() | paused.keys()
    return [
        _make_depth(name, depth.get(name, {}), paused.get(name))
        for name in sorted(names)
        if scope.serves(name)
    ]


def _make_depth(queue: str, jobs: dict[State, int], status: QueueStatus | None) -> Depth:
    jobs = {state: number for state, number in jobs.items() if number}
    if status is None or status.paused_at is None:
        return Depth(queue=queue, jobs=jobs)
    return Depth(
        queue=queue,
        jobs=jobs,
        paused_at=status.paused_at,
        paused_by=status.paused_by,
        reason=status.reason,
    )


async def change_queue(scope: CallerScope, request: q.PauseQueue | q.ResumeQueue) -> QueueStatus:
    scope.check_queue(request.queue)
    store = scope.store
    act = store.pause if isinstance(request, q.PauseQueue) else store.resume
    return await act(
        check_text(request.queue, "queue", limit=200),
        actor=scope.control.label,
        reason=_text(request.reason, "reason"),
        request_id=_text(request.request_id, "request_id"),
    )


def _text(value: str | None, what: str) -> str | None:
    return None if value is None else check_text(value, what)


async def list_workers(scope: CallerScope, request: q.ListWorkers) -> Roll:
    now = (await scope.store.clock()).now
    since = read_time(request.seen_since, "seen_since")
    workers = await scope.store.workers(seen_since=since, limit=request.limit)
    if (own := await _list_own_queues(scope)) is not None:
        workers = [_narrowed(one, own) for one in workers if own.intersection(one.queues)]
    return Roll(now=now, workers=workers)


async def _list_own_queues(scope: CallerScope) -> frozenset[str] | None:
    """Return the queues that the caller may know of, those where its tenant has jobs; None: all."""
    if scope.tenant is None:
        return scope.queues
    counts = await scope.store.counts(scope.tenant)
    return frozenset(one.queue for one in counts if scope.serves(one.queue))


def _narrowed(worker: WorkerStatus, own: frozenset[str]) -> WorkerStatus:
    """Return of a worker what the caller may see: its own queues, not what others run there."""
    queues = tuple(queue for queue in worker.queues if queue in own)
    return replace(worker, queues=queues, tasks=())


async def get_stats(scope: CallerScope, request: q.GetStats) -> Stats:
    """Count jobs by state, queues and workers: from the summaries, never by a scan."""
    del request
    depths = await _read_depths(scope)
    roll = await list_workers(scope, q.ListWorkers(limit=1000))
    jobs: Counter[State] = Counter()
    for depth in depths:
        jobs.update(depth.jobs)
    live = [one for one in roll.workers if one.is_live(roll.now)]
    ended = sum(one.stopped_at is not None for one in roll.workers)
    return Stats(
        version=__version__,
        now=instant(roll.now),
        total=jobs.total(),
        jobs=dict(jobs),
        queues=len(depths),
        paused=[depth.queue for depth in depths if depth.paused_at is not None],
        workers=WorkerCounts(
            live=len(live),
            silent=len(roll.workers) - len(live) - ended,
            ended=ended,
            slots=sum(one.concurrency for one in live),
        ),
    )


def _make_registry(scope: CallerScope) -> WebhookRegistry:
    return WebhookRegistry(
        scope.store,
        actor=scope.control.label,
        tenant=scope.tenant,
        queues=scope.queues,
        outside=scope.outside,
    )


async def add_webhook(scope: CallerScope, request: q.AddWebhook) -> MadeWebhook:
    return await _make_registry(scope).add(request.webhook)


async def list_webhooks(scope: CallerScope, request: q.ListWebhooks) -> WebhookList:
    return await _make_registry(scope).page(before=request.before, limit=request.limit)


async def get_webhook(scope: CallerScope, request: q.GetWebhook) -> WebhookView:
    return await _make_registry(scope).get(request.webhook)


async def remove_webhook(scope: CallerScope, request: q.RemoveWebhook) -> WebhookView:
    return await _make_registry(scope).remove(request.webhook)


def _tokens(scope: CallerScope) -> TokenRegistry:
    return TokenRegistry(
        scope.store, actor=scope.control.label, tenant=scope.tenant, queues=scope.queues
    )


async def create_token(scope: CallerScope, request: q.CreateToken) -> MadeToken:
    return await _tokens(scope).create(request.token)


async def list_tokens(scope: CallerScope, request: q.ListTokens) -> TokenList:
    # One more than asked for shows whether there is a next page.
    found = await _tokens(scope).tokens(before=request.before, limit=request.limit + 1)
    shown = found[: request.limit]
    following = shown[-1].id if len(found) > request.limit else None
    return TokenList(tokens=shown, next=following)


async def revoke_token(scope: CallerScope, request: q.RevokeToken) -> TokenView:
    return await _tokens(scope).revoke(request.token)
