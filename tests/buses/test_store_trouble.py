"""A store that is locked or away for a while: what came in is neither lost nor applied twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.errors import StoreUnavailable
from holdfast.lifecycle.record import Change, Job
from holdfast.ports.models import Outcome, Rejected
from holdfast.ports.store import Store
from holdfast.services.bus_bridge import dispatch
from holdfast.services.bus_bridge.known_jobs import KnownJobs
from tests.buses.site import SHORT, Site, locked, refused, settings_of, succeed, until

Commit = Callable[[Sequence[Change]], Any]


def _watch_commits(
    store: Store, monkeypatch: pytest.MonkeyPatch, make: Callable[[Commit], Commit]
) -> None:
    monkeypatch.setattr(store, "commit", make(store.commit))


def _writes(changes: Sequence[Change], job: Job, event: str) -> bool:
    return any(one.id == job.id and one.event.type == event for one in changes)


def _count_busy(site: Site, monkeypatch: pytest.MonkeyPatch, job: Job) -> list[str]:
    """Collect the events of a job that could not be written, as its row was locked."""
    seen: list[str] = []

    def make(real: Commit) -> Commit:
        async def commit(changes: Sequence[Change]) -> list[Outcome]:
            outcomes: list[Outcome] = await real(changes)
            for change, outcome in zip(changes, outcomes, strict=True):
                if change.id == job.id and isinstance(outcome, Rejected) and outcome.busy:
                    seen.append(change.event.type)
            return outcomes

        return commit

    _watch_commits(site.store, monkeypatch, make)
    return seen


@pytest.mark.usefixtures("short_redelivery")
@pytest.mark.parametrize("engine", ["postgres"])
@pytest.mark.parametrize("terms", [{}, SHORT], ids=["within-the-lease", "beyond-the-lease"])
@pytest.mark.req("A9", "A19")
async def test_a_result_of_a_job_whose_row_is_locked_waits_and_keeps_no_other_back(
    site: Site, url: str, monkeypatch: pytest.MonkeyPatch, terms: dict[str, Any]
) -> None:
    async with site.bridge(settings_of(**terms)) as bridge:
        await site.listen("job.once")
        for name in ("held", "free"):
            await site.submit(name)
            await site.out(name)
        held = await site.job("held")
        busy = _count_busy(site, monkeypatch, held)
        async with locked(url, held):
            await site.say("held", "SUCCEEDED", result_ptr="s3://held")
            await until(lambda: busy.count("job_succeeded") >= 2, "it to be tried twice")
            await site.say("free", "SUCCEEDED")
            assert (await site.ended("free")).succeeded
            if terms:
                await until(lambda: "job_adopted" in busy, "the lease to pass")
            # The server sends again what nobody has acknowledged; it is the same result.
            await until(lambda: bridge.meters.bus.received["result"] >= 4, "it to come again")
            assert (await site.job("held")).rev == held.rev
        job = await site.ended("held")
    assert (job.succeeded, job.attempt, job.result_ptr) == (True, 1, "s3://held")
    assert (bridge.meters.bus.refused, bridge.meters.bus.applied) == ({}, {"result": 2})


@pytest.mark.req("A10", "A19")
async def test_a_failure_that_came_beside_a_locked_job_costs_one_attempt_only(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy = True

    def make(real: Commit) -> Commit:
        async def commit(changes: Sequence[Change]) -> list[Outcome]:
            if not busy or not _writes(changes, held, "job_succeeded"):
                return list(await real(changes))
            written = iter(await real([one for one in changes if one.id != held.id]))
            rejected = Rejected(code="job_busy", message="locked")
            return [rejected if one.id == held.id else next(written) for one in changes]

        return commit

    async with site.bridge() as bridge:
        sent = await site.listen("job.again")
        for name in ("held", "failing"):
            await site.submit(name, "job.again")
            await site.out(name)
        held = await site.job("held")
        _watch_commits(site.store, monkeypatch, make)
        await site.say("held", "SUCCEEDED")
        await until(lambda: bridge.meters.bus.received.get("result") == 1, "it to be taken")
        await site.say("failing", "FAILED")
        await until(lambda: len(sent) == 3, "the second attempt")
        busy = False
        assert (await site.ended("held")).succeeded
        again = await site.job("failing")
        assert (again.attempt, again.failures, again.owned) == (2, 1, True)
        assert bridge.meters.bus.applied == {"result": 2}


@pytest.mark.req("A10", "A19")
async def test_a_failure_whose_commit_lost_its_reply_does_not_fail_the_next_attempt(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = False
    find = KnownJobs.find

    async def find_if_there(known: KnownJobs, job_ids: Sequence[str]) -> list[Job | None]:
        if away:
            raise StoreUnavailable("away")
        return await find(known, job_ids)

    def make(real: Commit) -> Commit:
        async def commit(changes: Sequence[Change]) -> list[Outcome]:
            nonlocal away
            outcomes: list[Outcome] = await real(changes)
            if _writes(changes, job, "job_retrying"):
                away = True
                raise StoreUnavailable("the reply was lost")
            return outcomes

        return commit

    async with site.bridge() as bridge:
        sent = await site.listen("job.again")
        await site.submit("j", "job.again")
        job = await site.out("j")
        _watch_commits(site.store, monkeypatch, make)
        monkeypatch.setattr(KnownJobs, "find", find_if_there)
        await site.say("j", "FAILED")
        await until(lambda: len(sent) == 2, "the second attempt")
        assert away
        away = False
        await until(lambda: refused(bridge, "result", "old_attempt") == 1, "its refusal")
        again = await site.job("j")
        assert (again.attempt, again.failures, again.owned) == (2, 1, True)


def _fail_first(
    site: Site, monkeypatch: pytest.MonkeyPatch, event: str, fail: Callable[[Commit], Commit]
) -> list[Change]:
    """Let the first commit that writes an event fail; return its changes, once there are."""
    failed: list[Change] = []

    def make(real: Commit) -> Commit:
        async def commit(changes: Sequence[Change]) -> list[Outcome]:
            if failed or all(one.event.type != event for one in changes):
                return list(await real(changes))
            failed[:] = changes
            return list(await fail(real)(changes))

        return commit

    _watch_commits(site.store, monkeypatch, make)
    return failed


def _be_away(real: Commit) -> Commit:
    async def commit(changes: Sequence[Change]) -> list[Outcome]:
        raise StoreUnavailable("away for a moment")

    return commit


@pytest.mark.req("A2", "A17")
@pytest.mark.parametrize(
    ("engine", "trouble"), [("sqlite", "away"), ("postgres", "away"), ("postgres", "locked")]
)
async def test_a_job_that_reached_nobody_is_given_back_once_the_store_takes_it(
    site: Site, url: str, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    def lock_row(real: Commit) -> Commit:
        async def commit(changes: Sequence[Change]) -> list[Outcome]:
            async with locked(url, await site.job("j")):
                outcomes: list[Outcome] = await real(changes)
            assert any(isinstance(one, Rejected) and one.busy for one in outcomes)
            return outcomes

        return commit

    fail = lock_row if trouble == "locked" else _be_away
    failed = _fail_first(site, monkeypatch, "job_released", fail)
    async with site.bridge():
        await site.submit("j")
        await site.until("j", lambda job: job.releases >= 1, "to be given back")
        assert failed
        await site.worker("job.once", succeed)
        assert (await site.ended("j")).succeeded


@pytest.mark.req("A2")
async def test_a_job_that_cannot_be_sent_ends_though_the_store_was_away_and_holds_up_no_other(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "PACKET_BYTES", 2000)
    failed = _fail_first(site, monkeypatch, "job_failed", _be_away)
    gate = asyncio.Event()
    gate.set()
    claim = site.store.claim

    async def claim_through_gate(request: Any) -> Any:
        await gate.wait()
        return await claim(request)

    monkeypatch.setattr(site.store, "claim", claim_through_gate)
    async with site.bridge():
        await site.worker("job.once", succeed)
        await site.submit("first")
        assert (await site.ended("first")).succeeded
        # The topic is served: both go in one claim.
        gate.clear()
        await site.submit("large", env={str(number): "y" * 900 for number in range(4)})
        await site.submit("small")
        for name in ("large", "small"):
            await site.until(name, lambda job: True, "to be stored")
        gate.set()
        assert (await site.ended("small")).succeeded
        job = await site.ended("large")
    assert failed
    assert (job.state, job.error_code) == ("failed", "undeliverable")


@pytest.mark.req("A2")
async def test_a_bridge_that_stops_gives_back_what_the_store_did_not_take_before(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = _fail_first(site, monkeypatch, "job_released", _be_away)
    async with site.bridge():
        await site.submit("j")
        await until(lambda: bool(failed), "the release to fail")
    assert (await site.job("j")).releases == 1
