"""The list of operations: each is carried out, here and through a server, and says how."""

from __future__ import annotations

import re
from typing import Any, get_type_hints

import pytest
from msgspec import Raw

from holdfast.lifecycle import commands as c
from holdfast.lifecycle.states import Letter, State
from holdfast.operations import requests as q
from holdfast.operations.http_format import layout_of, replies_of, result_type
from holdfast.operations.local import HANDLERS, OPERATIONS
from holdfast.operations.request import Operations, Request
from holdfast.operations.requests import WantedJob
from holdfast.operations.views import JobOutcome
from holdfast.ports.models import Submitted
from holdfast.ports.store import Store
from holdfast.testing.factories import owner_of
from holdfast.testing.store_actions import do, job_in

SERVED_BY_HTTP = {q.GetEvents}
"""What a server answers by itself."""
NOT_MODIFIED = 304
"""No failure: what the client has is still right."""


def all_kinds(kind: type[Request[Any]] = Request) -> set[type[Request[Any]]]:
    """Find every concrete request of the module."""
    below = kind.__subclasses__()
    found = set() if below or kind.__module__ != q.__name__ else {kind}
    return found.union(*map(all_kinds, below))


def test_the_list_has_every_operation_once() -> None:
    assert len(OPERATIONS) == len(set(OPERATIONS))
    assert set(OPERATIONS) == all_kinds()


def test_every_operation_is_carried_out() -> None:
    assert set(HANDLERS) == set(OPERATIONS) - SERVED_BY_HTTP


@pytest.mark.parametrize("kind", OPERATIONS, ids=lambda kind: kind.__name__)
def test_an_operation_says_how_it_goes_over_http(kind: type[Request[Any]]) -> None:
    assert kind.__doc__
    assert result_type(kind) is not None
    if kind.path is None:
        return
    layout = layout_of(kind)
    assert kind.scope is not None
    assert kind.group
    assert kind.method in ("GET", "POST", "PUT", "DELETE")
    assert set(re.findall(r"{(\w+)}", kind.path)) == set(layout.path)
    assert set(layout.path) <= set(kind.__struct_fields__)
    assert all(status < 300 or status == NOT_MODIFIED for status in replies_of(kind))
    # A PUT has bytes: JSON is sent by a POST.
    assert (kind.method == "PUT") is (layout.stream is not None)
    if kind.method == "POST":
        assert (layout.body is None) is (layout.whole_body is not None)


@pytest.mark.parametrize("kind", HANDLERS, ids=lambda kind: kind.__name__)
def test_a_handler_returns_what_its_request_promises(kind: type[Request[Any]]) -> None:
    assert get_type_hints(HANDLERS[kind])["return"] == result_type(kind)


async def test_a_job_goes_through_its_requests(mine: Operations, store: Store) -> None:
    sent = await mine.do(q.SubmitJob(job=WantedJob(task="other", job_id="j", labels={"a": "b"})))
    assert isinstance(sent, Submitted)
    assert sent.created
    again = await mine.do(q.SubmitJob(job=WantedJob(task="other", job_id="j", labels={"a": "b"})))
    assert (again.created, again.job.id) == (False, sent.job.id)
    [one] = await mine.do(q.SubmitJobs(jobs=[WantedJob(task="other", job_id="k")], request_id="r"))
    assert isinstance(one, Submitted)
    page = await mine.do(q.ListJobs(state=(State.QUEUED,), label=("a=b",)))
    assert [job.job_id for job in page.jobs] == ["j"]
    held = await mine.do(q.HoldJob(job="j", reason="wait"))
    assert held.held_by == ("operator",)
    free = await mine.do(q.UnholdJob(job="j", expected_rev=held.rev))
    assert free.held_by == ()
    later = await mine.do(q.RescheduleJob(job="j", delay="1h"))
    assert later.run_at is not None
    told = await mine.do(q.SendSignal(job="j", name="go", payload=Raw(b"7"), request_id="s"))
    assert [one.name for one in told.signals] == ["go"]
    why = await mine.do(q.ExplainJob(job="j"))
    assert why.job_id == "j"
    open_result = await mine.do(q.GetResult(job="j"))
    assert not isinstance(open_result, JobOutcome)
    ended = await mine.do(q.CancelJob(job="j", reason="enough"))
    assert ended == await mine.do(q.GetJob(job="j", wait=1.0))
    outcome = await mine.do(q.GetResult(job="j"))
    assert isinstance(outcome, JobOutcome)
    assert (outcome.outcome.state, outcome.job) == (State.CANCELLED, ended)
    history = await mine.do(q.GetHistory(job="j", after=1, limit=2))
    assert [event.rev for event in history.events] == [2, 3]
    assert history.next == 3
    events = await mine.do(q.AwaitEvents(job="j", after=ended.rev - 1))
    assert [event.type for event in events] == ["job_cancelled"]
    rendered = await mine.do(q.GetJobInDialect(job="j", dialect="A"))
    assert rendered.document
    assert (await mine.do(q.GetLineage(job="j"))).tree.id == ended.id
    assert (await mine.do(q.GetLogs(job="j"))).lines == []
    assert (await mine.do(q.GetProgress(job="j"))).at is None


async def test_letters_go_through_their_requests(mine: Operations, store: Store) -> None:
    job = await job_in(store, State.DEAD_LETTERED, tenant="mine")
    assert (await mine.do(q.CountLetters())).letters == 1
    [letter] = (await mine.do(q.ListLetters())).letters
    assert letter == await mine.do(q.GetLetter(job=job.id))
    new = await mine.do(q.RedriveLetter(job=job.id, queue="elsewhere", delay_seconds=1.5))
    assert (new.queue, new.parent_id) == ("elsewhere", job.id)
    await job_in(store, State.DEAD_LETTERED, tenant="mine")
    settled = await mine.do(q.RedriveLetters(limit=1))
    assert (settled.done, settled.seen) == (1, 1)
    last = await job_in(store, State.DEAD_LETTERED, tenant="mine")
    assert (await mine.do(q.DiscardLetter(job=last.id))).letter is Letter.DISCARDED
    assert (await mine.do(q.DiscardLetters(task="nothing"))).seen == 0


async def test_queues_workers_and_times_go_through_their_requests(
    everybody: Operations, store: Store
) -> None:
    job = await job_in(store, State.RUNNING, queue="q")
    await do(store, job, c.Progress(actor=owner_of(job), body=b'{"done":7}'))
    assert (await everybody.do(q.GetProgress(job=job.id))).value == {"done": 7}
    paused = await everybody.do(q.PauseQueue(queue="q", reason="repairs"))
    assert paused.paused_at is not None
    [depth] = (await everybody.do(q.ListQueues())).queues
    assert (depth.queue, depth.reason) == ("q", "repairs")
    assert (await everybody.do(q.ResumeQueue(queue="q"))).paused_at is None
    now = (await everybody.do(q.GetClock())).now
    assert now >= job.updated_at
    assert (await everybody.do(q.ListWorkers())).now >= now
    stats = await everybody.do(q.GetStats())
    assert (stats.total, stats.jobs) == (1, {State.RUNNING: 1})
