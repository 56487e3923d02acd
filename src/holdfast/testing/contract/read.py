"""Reading: events of a job, lists with a stable cursor, look-ups across jobs, and the tail."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.errors import BadData
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.derive import derive
from holdfast.lifecycle.record import Actor, JobId, LoggedEvent
from holdfast.lifecycle.states import LIVE, TERMINAL, EventType, Letter, Link, Role, State
from holdfast.lifecycle.times import After
from holdfast.lifecycle.transitions import REQUESTED
from holdfast.ports.models import EventQuery, Query
from holdfast.ports.store import Store
from holdfast.testing.factories import CONTROL, RECONCILER, job_ids, new_job, owner_of
from holdfast.testing.store_actions import (
    WAYS_OUT,
    all_jobs,
    chain,
    do,
    job_in,
    passed,
    read_tail,
    running_job,
    submit_one,
)


async def found(store: Store, **filters: Any) -> list[JobId]:
    """List jobs by a filter."""
    return [job.id for job in (await store.find(Query(**filters))).jobs]


class ReadContract:
    """What can be read of the ledger."""

    @pytest.mark.req("B4", "E1", "E6")
    async def test_events_come_in_order_and_derive_the_record(self, store: Store) -> None:
        job = await _long_life(store)
        events = await store.events(job)

        assert [event.rev for event in events] == list(range(1, len(events) + 1))
        assert [derive(events)] == await store.get([job])

    async def test_events_are_read_on_from_any_revision(self, store: Store) -> None:
        job = await _long_life(store)
        events = await store.events(job)

        for after in range(len(events) + 1):
            assert await store.events(job, after=after) == events[after:]
            assert await store.events(job, after=after, limit=2) == events[after : after + 2]

    async def test_a_page_holds_as_many_events_as_were_asked_for(self, store: Store) -> None:
        job = await running_job(store)
        reports = [c.Progress(actor=owner_of(job), body=b"%d" % n) for n in range(1_002)]
        await store.commit(chain(job, *reports))

        # Fewer than were asked for are all there are, and a reader of a history relies on it.
        page = await store.events(job.id, limit=1_000)
        assert [event.rev for event in page] == list(range(1, 1_001))
        rest = await store.events(job.id, after=1_000, limit=1_000)
        assert [event.rev for event in rest] == list(range(1_001, 1_006))

    async def test_a_page_ends_with_the_body_that_reaches_the_bytes(self, store: Store) -> None:
        job = await running_job(store)
        reports = [c.Progress(actor=owner_of(job), body=b'"%s"' % (b"x" * 98)) for _ in range(9)]
        beat = c.Heartbeat(actor=owner_of(job))
        await store.commit(chain(job, *reports[:5]))
        [record] = await store.get([job.id])
        assert record is not None
        record = await do(store, record, beat)
        await store.commit(chain(record, *reports[5:]))
        started = job.rev

        whole = await store.events(job.id, after=started)
        assert len(whole) == 10
        for size, count in ((1, 1), (100, 1), (101, 2), (500, 5), (501, 7), (10_000, 10)):
            page = await store.events(job.id, after=started, max_bytes=size)
            assert page == whole[:count]
        assert await store.events(job.id, after=started, limit=3, max_bytes=10_000) == whole[:3]

    async def test_the_event_of_a_request_is_found_by_it(self, store: Store) -> None:
        job = await running_job(store, request_id="born")
        started = job.rev
        for n in range(3):
            signal = c.SignalJob(actor=CONTROL, name="go", body=b'"%d"' % n, request_id=f"r{n}")
            job = await do(store, job, signal)
        other = await running_job(store)

        found = await store.request_event(job.id, "r1")
        assert found == (await store.events(job.id, after=started + 1, limit=1))[0]
        assert await store.request_event(job.id, "r7") is None
        assert await store.request_event(other.id, "r1") is None
        first = await store.request_event(job.id, "born")
        assert first is not None
        assert first.rev == 1

    @pytest.mark.parametrize("type_", sorted(REQUESTED))
    async def test_every_event_of_a_request_from_outside_is_found_by_it(
        self, store: Store, type_: EventType
    ) -> None:
        actor, away = CONTROL, State.QUEUED
        asked: dict[EventType, tuple[State, c.Command]] = {
            EventType.HELD: (away, c.Hold(actor=actor, hold="h", request_id="r")),
            EventType.UNHELD: (away, c.Unhold(actor=actor, hold="held", request_id="r")),
            EventType.RESCHEDULED: (
                away,
                c.Reschedule(actor=actor, run_at=After(1), request_id="r"),
            ),
            EventType.REQUEUED: (State.STALLED, c.Requeue(actor=actor, request_id="r")),
            EventType.CANCEL_REQUESTED: (
                State.RUNNING,
                c.RequestCancel(actor=actor, request_id="r"),
            ),
            EventType.APPROVED: (
                State.PENDING,
                c.Approve(actor=actor, hold="approval:r/1/0", request_id="r"),
            ),
            EventType.CANCELLED: (away, c.Cancel(actor=actor, request_id="r")),
            EventType.SIGNAL_RECEIVED: (away, c.SignalJob(actor=actor, name="go", request_id="r")),
            EventType.REDRIVEN: (State.DEAD_LETTERED, c.Redriven(actor=actor, request_id="r")),
            EventType.DISCARDED: (State.DEAD_LETTERED, c.Discarded(actor=actor, request_id="r")),
            EventType.COMPENSATED: (
                State.FAILED,
                c.Compensated(actor=RECONCILER, request_id="r"),
            ),
        }
        state, command = asked[type_]
        job = await job_in(store, state)
        if type_ is EventType.UNHELD:
            job = await do(store, job, c.Hold(actor=actor, hold="held"))
        if type_ is EventType.APPROVED:
            scheduler = Actor(Role.SCHEDULER, "s")
            job = await do(store, job, c.Hold(actor=scheduler, hold="approval:r/1/0"))
        job = await do(store, job, command)
        found = await store.request_event(job.id, "r")
        assert found is not None
        assert (found.type, found.rev) == (type_, job.rev)

    async def test_events_of_other_jobs_stay_out(self, store: Store) -> None:
        first, second = await _long_life(store), await _long_life(store)

        assert {event.id for event in await store.events(first)} == {first}
        assert {event.id for event in await store.events(second)} == {second}

    async def test_histories_of_several_jobs_are_read_together(self, store: Store) -> None:
        first, second, none = await _long_life(store), await _long_life(store), job_ids.mint()
        long, other = await store.events(first), await store.events(second)

        assert len(long) > 3
        last = long[-1].rev
        assert await store.histories([second, none, first], last=last) == [other, [], long]
        short = [event for event in long if event.rev <= 3]
        assert await store.histories([first], last=3) == [short]
        assert await store.histories([], last=last) == []

    async def test_the_newest_events_of_some_types_come_newest_first(self, store: Store) -> None:
        first, second = await _long_life(store), await _long_life(store)
        events = await store.events(first)
        types = (EventType.CREATED, EventType.CLAIMED, EventType.SIGNAL_RECEIVED)
        wanted = [event for event in events[::-1] if event.type in types]

        assert len(wanted) > 2
        assert await store.latest_events(first, types) == wanted
        assert await store.latest_events(first, types, limit=2) == wanted[:2]
        assert await store.latest_events(first, (EventType.DENIED,)) == []
        assert {event.id for event in await store.latest_events(second, types)} == {second}
        assert await store.latest_events(job_ids.mint(), types) == []

    async def test_a_step_is_found_however_many_came_after_it(self, store: Store) -> None:
        job, other = await running_job(store), await running_job(store)
        for name, use in (("ship it", 1), ("pay", 1), ("pay", 2), ("pay", 3)):
            step = c.Step(actor=owner_of(job), name=name, use=use, body=b"1")
            job = await do(store, job, step)
        started = c.Step(actor=owner_of(job), name="pay", use=4, started=True)
        job = await do(store, job, started)
        await do(store, other, c.Step(actor=owner_of(other), name="pay", body=b"2"))

        async def found(*steps: tuple[str, int]) -> list[tuple[str | None, int | None]]:
            events = await store.step_events(job.id, steps)
            assert {event.id for event in events} <= {job.id}
            return [(event.facts.step, event.facts.step_use) for event in events]

        assert await found(("pay", 1), ("ship it", 1)) == [("pay", 1), ("ship it", 1)]
        assert await found(("pay", 4), ("pay", 3)) == [("pay", 4), ("pay", 3)]
        assert await found(("ship it", 2), ("it's", 1)) == []
        assert await found() == []

    async def test_reports_of_progress_do_not_bury_facts(self, store: Store) -> None:
        job = await running_job(store)
        actor = owner_of(job)
        job = await do(store, job, c.Progress(actor=actor, unkillable=True))
        for body in (b"1", b"2", b"3"):
            job = await do(store, job, c.Progress(actor=actor, body=body))
        types = (EventType.PROGRESSED, EventType.STARTED)
        found = await store.latest_events(job.id, types, limit=2)

        assert [(event.rev, event.facts.kill) for event in found] == [(4, "unkillable"), (3, None)]

    async def test_the_newest_report_of_progress_is_found(self, store: Store) -> None:
        job, other = await running_job(store), await running_job(store)
        assert await store.last_progress(job.id) is None
        actor = owner_of(job)
        for body in (b"1", b"2"):
            job = await do(store, job, c.Progress(actor=actor, body=body))
        job = await do(store, job, c.Step(actor=actor, name="next", body=b"4"))
        job = await do(store, job, c.Progress(actor=actor, unkillable=True))
        await do(store, other, c.Progress(actor=owner_of(other), body=b"3"))
        found = await store.last_progress(job.id)

        assert found is not None
        assert (found.id, found.rev, found.body) == (job.id, 5, b"2")

    async def test_jobs_are_listed_newest_first(self, store: Store) -> None:
        ids = [(await submit_one(store)).id for _ in range(5)]
        page = await store.find(Query())

        assert [job.id for job in page.jobs] == ids[::-1]
        assert page.jobs == await store.get(ids[::-1])
        assert page.next is None

    @pytest.mark.req("E6")
    async def test_each_filter_keeps_what_it_names(self, store: Store) -> None:
        options: dict[str, Any] = {
            "tenant": "acme",
            "queue": "mail",
            "task": "send",
            "workflow_id": "flow-1",
            "correlation_id": "correlation-1",
            "parent_id": job_ids.mint(),
        }
        await submit_one(store)
        for name, value in options.items():
            job = await submit_one(store, **{name: value})

            assert await found(store, **{name: value}) == [job.id], name
        assert len(await found(store)) == len(options) + 1

    @pytest.mark.req("A7")
    async def test_children_and_steps_of_a_workflow_can_be_looked_up(self, store: Store) -> None:
        parent = await submit_one(store, workflow_id="flow-1", step_index=0)
        children = [
            await submit_one(
                store, parent_id=parent.id, link_kind=link, workflow_id="flow-1", step_index=index
            )
            for index, link in enumerate((Link.CHILD, Link.RETRY, Link.COMPENSATION), start=1)
        ]
        await submit_one(store, workflow_id="flow-2")
        newest_first = [child.id for child in children[::-1]]

        assert await found(store, parent_id=parent.id) == newest_first
        assert await found(store, workflow_id="flow-1") == [*newest_first, parent.id]
        assert await found(store, parent_id=parent.id, states=(State.SUCCEEDED,)) == []
        page = await store.find(Query(workflow_id="flow-1"))
        assert [job.step_index for job in page.jobs] == [3, 2, 1, 0]

    @pytest.mark.req("E6")
    async def test_jobs_are_listed_by_state(self, store: Store) -> None:
        jobs = {state: (await job_in(store, state)).id for state in LIVE | TERMINAL}

        for state, id_ in jobs.items():
            assert await found(store, states=(state,)) == [id_]
        both = (State.QUEUED, State.RUNNING)
        assert set(await found(store, states=both)) == {jobs[state] for state in both}

    async def test_jobs_are_listed_by_error_and_dead_letter(self, store: Store) -> None:
        failed = await job_in(store, State.FAILED)
        dead = await job_in(store, State.DEAD_LETTERED)
        looked_at = await job_in(store, State.DEAD_LETTERED)
        await do(store, looked_at, c.Discarded(actor=CONTROL))

        assert await found(store, error_code="boom") == [failed.id]
        assert await found(store, error_code="exhausted_retries") == [looked_at.id, dead.id]
        assert await found(store, letter=Letter.OPEN) == [dead.id]
        assert await found(store, letter=Letter.DISCARDED) == [looked_at.id]

    async def test_jobs_are_listed_by_their_labels(self, store: Store) -> None:
        await submit_one(store)
        red = await submit_one(store, labels={"colour": "red", "'size": 'x"l'})
        await submit_one(store, labels={"colour": "blue"})

        assert await found(store, labels=(("colour", "red"),)) == [red.id]
        assert await found(store, labels=(("colour", "red"), ("'size", 'x"l'))) == [red.id]
        assert await found(store, labels=(("colour", "red"), ("'size", "s"))) == []
        assert await found(store, labels=(("red", "colour"),)) == []

    async def test_jobs_are_listed_by_when_they_came(self, store: Store) -> None:
        before = (await store.clock()).now
        first = await submit_one(store)
        between = await passed(store, first.created_at + 1)
        await passed(store, between)
        second = await submit_one(store)
        after = await passed(store, second.created_at + 1)

        assert await found(store, created_from=before) == [second.id, first.id]
        assert await found(store, created_from=between) == [second.id]
        assert await found(store, created_until=between) == [first.id]
        assert await found(store, created_from=after) == []
        assert await found(store, created_from=before, created_until=between) == [first.id]

    async def test_filters_narrow_each_other(self, store: Store) -> None:
        wanted = await submit_one(store, tenant="acme", queue="mail", task="send")
        await submit_one(store, tenant="acme", queue="mail", task="read")
        await submit_one(store, tenant="acme", queue="post", task="send")
        await submit_one(store, tenant="else", queue="mail", task="send")

        assert await found(store, tenant="acme", queue="mail", task="send") == [wanted.id]

    async def test_pages_neither_skip_nor_repeat_while_jobs_come(self, store: Store) -> None:
        ids = [(await submit_one(store, queue="work")).id for _ in range(7)]
        read: list[JobId] = []
        before = None
        while True:
            page = await store.find(Query(queue="work", before=before, limit=3))
            read += [job.id for job in page.jobs]
            if page.next is None:
                break
            before = page.next
            await submit_one(store, queue="work")

        assert read == ids[::-1]

    @pytest.mark.parametrize(
        "filters",
        [
            {"task": "rare"},
            {"task": "rare", "tenant": "acme"},
            {"task": "rare", "queue": "mail"},
            {"task": "rare", "workflow_id": "flow"},
            {"task": "rare", "states": (State.QUEUED,), "tenant": "acme", "queue": "mail"},
        ],
        ids=" ".join,
    )
    async def test_a_bounded_look_goes_on_until_all_are_found(
        self, store: Store, filters: dict[str, Any]
    ) -> None:
        terms = {"tenant": "acme", "queue": "mail", "workflow_id": "flow"}
        tasks = ["rare", "rare", *["common"] * 9, "rare", "common"]
        jobs = [await submit_one(store, task=task, **terms) for task in tasks]
        rare = [job.id for job in jobs if job.task == "rare"][::-1]
        assert await found(store, **filters) == rare

        read: list[list[JobId]] = []
        query = Query(**filters, limit=2, look=4)
        while len(read) < len(tasks):
            part = await store.find(query)
            read.append([job.id for job in part.jobs])
            if part.next is None:
                break
            query = replace(query, before=part.next)
        assert [id_ for page in read for id_ in page] == rare
        # It looks no further than it may, and has a next page.
        assert (read[0], read[1]) == (rare[:1], [])

    async def test_what_an_index_covers_needs_no_look(self, store: Store) -> None:
        for _ in range(5):
            await submit_one(store, tenant="acme")
            await submit_one(store)
        page = await store.find(Query(tenant="acme", limit=5, look=2))
        assert ([job.tenant for job in page.jobs], page.next) == (["acme"] * 5, None)

    async def test_a_full_last_page_ends_the_list(self, store: Store) -> None:
        ids = [(await submit_one(store)).id for _ in range(4)]
        first = await store.find(Query(limit=2))
        second = await store.find(Query(limit=2, before=first.next))
        assert [job.id for job in (*first.jobs, *second.jobs)] == ids[::-1]

        if second.next is not None:
            assert (await store.find(Query(limit=2, before=second.next))).jobs == []

    @pytest.mark.req("B19")
    async def test_events_are_looked_up_by_type_and_time(self, store: Store) -> None:
        first = await job_in(store, State.FAILED)
        between = await passed(store, first.updated_at + 1)
        await passed(store, between)
        second = await job_in(store, State.FAILED)
        await job_in(store, State.SUCCEEDED)
        code = EventType.FAILED.code

        assert await _looked_up(store, type=code) == [(first.id, 4), (second.id, 4)]
        assert await _looked_up(store, type=code, limit=1) == [(first.id, 4)]
        assert await _looked_up(store, type=code, since=between) == [(second.id, 4)]
        assert await _looked_up(store, type=code, until=between) == [(first.id, 4)]
        assert await _looked_up(store, type=EventType.STALLED.code) == []

    @pytest.mark.req("B19")
    async def test_events_of_an_ordinary_life_are_looked_up_too(self, store: Store) -> None:
        job = await job_in(store, State.SUCCEEDED)

        for number, kind in enumerate(
            (EventType.CREATED, EventType.CLAIMED, EventType.STARTED, EventType.SUCCEEDED), start=1
        ):
            assert await _looked_up(store, type=kind.code) == [(job.id, number)]

    @pytest.mark.req("B19")
    async def test_events_are_looked_up_by_correlation(self, store: Store) -> None:
        first = await job_in(store, State.SUCCEEDED, correlation_id="order-1")
        second = await submit_one(store, correlation_id="order-1")
        await job_in(store, State.SUCCEEDED, correlation_id="order-2")

        events = await store.find_events(EventQuery(correlation_id="order-1"))
        assert {event.id for event in events} == {first.id, second.id}
        assert [event.at for event in events] == sorted(event.at for event in events)

    @pytest.mark.req("B19")
    async def test_a_limit_counts_only_events_of_the_type_that_was_asked_for(
        self, store: Store
    ) -> None:
        for _ in range(4):
            await submit_one(store, correlation_id="order-1")
        done = await job_in(store, State.SUCCEEDED, correlation_id="order-1")

        kind = EventType.SUCCEEDED.code
        found = await _looked_up(store, correlation_id="order-1", type=kind, limit=2)
        assert found == [(done.id, done.rev)]

    @pytest.mark.req("B4")
    async def test_the_tail_brings_every_event_once(self, store: Store) -> None:
        await asyncio.gather(*(_long_life(store) for _ in range(5)))
        logged = await _logged(store)
        read, _ = await read_tail(store, events=len(logged))

        assert _places(read) == sorted(logged)
        for id_ in {event.id for event in read}:
            revs = [event.rev for event in read if event.id == id_]
            assert revs == sorted(revs)

    async def test_the_tail_brings_whole_events(self, store: Store) -> None:
        id_ = await _long_life(store)
        logged = {event.rev: event for event in await store.events(id_)}
        read, _ = await read_tail(store, events=len(await _logged(store)))

        assert read == [logged[event.rev] for event in read]

    async def test_the_tail_starts_again_at_any_cursor(self, store: Store) -> None:
        for _ in range(2):
            await _long_life(store)
        total = len(await _logged(store))
        whole, _ = await read_tail(store, events=total)
        in_steps, cursors = await read_tail(store, events=total, limit=3)
        assert in_steps == whole

        for number, cursor in enumerate(cursors, start=1):
            left = total - len(whole[: 3 * number])
            rest, _ = await read_tail(store, events=left, cursor=cursor, limit=4)
            assert rest == whole[3 * number :]

    async def test_the_tail_goes_on_where_it_ended(self, store: Store) -> None:
        await _long_life(store)
        first, cursors = await read_tail(store, events=len(await _logged(store)))
        again = await store.tail(cursors[-1])
        assert again.events == []
        job = await submit_one(store)
        more, _ = await read_tail(store, events=1, cursor=again.cursor)

        assert _places(more) == [(job.id, 1)]
        assert len(first) + 1 == len(await _logged(store))

    async def test_the_tail_goes_on_behind_any_event(self, store: Store) -> None:
        for _ in range(2):
            await _long_life(store)
        whole, _ = await read_tail(store, events=len(await _logged(store)))
        tail = await store.tail(None)
        assert tail.events == whole
        assert [*tail.cursors, tail.cursor] == sorted([*tail.cursors, tail.cursor])
        assert len(set(tail.cursors)) == len(whole)
        for number, cursor in enumerate(tail.cursors, start=1):
            assert (await store.tail(cursor)).events == whole[number:]

    async def test_behind_the_end_of_the_tail_comes_what_is_new(self, store: Store) -> None:
        await _long_life(store)
        _, cursors = await read_tail(store, events=len(await _logged(store)))
        end = await store.tail_end()
        assert end >= cursors[-1]
        job = await submit_one(store)
        more, _ = await read_tail(store, events=1, cursor=end)
        assert _places(more) == [(job.id, 1)]

    @pytest.mark.parametrize("cursor", ["", "x", "7", "-1", "9" * 19, "0/0/0", "9" * 40])
    async def test_a_text_that_is_not_a_cursor_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(BadData, match="cursor"):
            await store.tail(cursor)

    async def test_a_tail_followed_under_load_misses_nothing(self, store: Store) -> None:
        done = asyncio.Event()

        async def write() -> None:
            for _ in range(10):
                await asyncio.gather(*(store.submit([new_job(), new_job()]) for _ in range(4)))
            done.set()

        async def follow() -> tuple[list[LoggedEvent], str | None]:
            read: list[LoggedEvent] = []
            cursor = None
            while not done.is_set():
                tail = await store.tail(cursor, limit=7)
                read, cursor = read + tail.events, tail.cursor
            return read, cursor

        _, (read, cursor) = await asyncio.gather(write(), follow())
        rest, _ = await read_tail(store, events=80 - len(read), cursor=cursor)
        assert _places([*read, *rest]) == sorted(await _logged(store))


async def _looked_up(store: Store, **options: Any) -> list[tuple[JobId, int]]:
    return [(event.id, event.rev) for event in await store.find_events(EventQuery(**options))]


async def _long_life(store: Store) -> JobId:
    """Live through claims, heartbeats, steps, a retry and an ending."""
    job = await running_job(store)
    job = await do(store, job, c.Heartbeat(actor=owner_of(job)))
    job = await do(store, job, c.Step(actor=owner_of(job), name="charge", body=b'{"paid":true}'))
    job = await do(store, job, c.SignalJob(actor=CONTROL, name="go", request_id=f"s-{job.id}"))
    job = await do(store, job, WAYS_OUT[State.RETRYING](job))
    return job.id


async def _logged(store: Store) -> list[tuple[JobId, int]]:
    """Name every event that is not a heartbeat."""
    return [
        (event.id, event.rev)
        for job in await all_jobs(store)
        for event in await store.events(job.id)
        if event.type not in (EventType.HEARTBEAT, EventType.LEASE_RENEWED)
    ]


def _places(events: list[LoggedEvent]) -> list[tuple[JobId, int]]:
    return sorted((event.id, event.rev) for event in events)
