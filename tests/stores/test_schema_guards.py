"""The database is the law's second line: whatever row raw SQL tries to make, move or remove.

Each family tries hundreds of statements on real jobs of every kind and says which were NOT
refused, or refused by another rule than the one they break; legal neighbours must pass.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import product
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from holdfast.lifecycle.invariants import RULES, broken_rules
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import (
    CLAIMABLE,
    KNOWN,
    OWNED,
    TERMINAL,
    CancelMode,
    Letter,
    Retention,
    State,
)
from holdfast.lifecycle.transitions import SUBMIT_TARGETS, moves, paths
from holdfast.stores.columns import JOB_COLUMNS
from holdfast.stores.schema_sql import FIXED, FROZEN
from holdfast.testing.factories import job_ids
from holdfast.testing.store_actions import all_jobs
from tests.stores.ledgers import Ledger, make_ledger
from tests.stores.raw import ENGINES, SQLITE, Case, Raw, inserted, row_of, updated
from tests.stores.samples import populate

MOVE = "an illegal move"
BIRTH = "a job that was not submitted"
FINAL = "a change of an outcome"
FIXING = "a change of what a submit fixes"
TERMS = "a change of terms"
KEPT = "the removal of a job that is not cleaned"


@pytest.fixture(scope="module", params=ENGINES)
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    made = make_ledger(request, tmp_path_factory)
    asyncio.run(_populate(made))
    return made


async def _populate(ledger: Ledger) -> None:
    async with ledger.store() as store:
        await populate(store)


@pytest.fixture
async def raw(ledger: Ledger) -> AsyncIterator[Raw]:
    async with ledger.raw() as raw:
        await raw.derive_columns()
        yield raw


@pytest.fixture
async def jobs(ledger: Ledger) -> list[Job]:
    async with ledger.store() as store:
        return await all_jobs(store)


# What each column is tried with, beside what it has.
TRIED: dict[str, tuple[Any, ...]] = {
    "state": tuple(sorted(KNOWN, key=lambda state: state.code)),
    "owner": (None, "somebody"),
    "lease_expires_at": (None, 1),
    "epoch": (None, 1),
    "timeout_at": (None, 1),
    "result_digest": (None, b"x" * 16),
    "error_code": (None, "boom"),
    "finished_at": (None, 1),
    "started_at": (None, 1),
    "wait_for": (None, "go"),
    "run_at": (None, 1),
    "held_by": ((), ("ann",)),
    "cancel_requested": (None, CancelMode.SOFT),
    "letter": (None, Letter.OPEN),
    "exit_code": (None, 0),
    "result_ptr": (None, "s3://x"),
    "late_results": ((), ("1:late",)),
    "lost_owner": (None, "somebody"),
    "retention": (Retention.LIVE, Retention.CLEANING, Retention.CLEANED),
    "attempt": (-1, 0, 1, 2),
    "failures": (-1, 0, 1, 3),
    "releases": (-1, 0, 1),
    "beats": (-1, 0, 1),
    "rev": (-1, 0, 1),
}


def neighbours(job: Job) -> Iterator[tuple[str, Job]]:
    """Every record that differs from this one in a single column."""
    for column, values in TRIED.items():
        for value in values:
            if value != getattr(job, column):
                yield f"{job.state} with {column} {value!r}", replace(job, **{column: value})


@pytest.mark.req("C1")
async def test_each_invariant_is_enforced_and_nothing_else(raw: Raw, jobs: list[Job]) -> None:
    await raw.set_triggers_aside()
    cases, alone = [], set()
    for job in jobs:
        for name, tried in neighbours(replace(job, id=job_ids.mint())):
            broken = broken_rules(tried)
            cases.append(inserted(name, row_of(tried), *broken))
            alone |= set(broken) if len(broken) == 1 else set()
    # Ended or not, it lacks nothing but a state that the law knows.
    for state, code in ((State.QUEUED, 0), (State.DENIED, 14)):
        like = next(job for job in jobs if job.state is state)
        unknown = row_of(replace(like, id=job_ids.mint())) | {"state": code}
        cases.append(inserted("a state of nobody's law", unknown, "state_known"))

    assert await raw.complaints(cases) == []
    assert alone >= {rule.name for rule in RULES} - {"state_known"}


@pytest.mark.req("C1")
async def test_what_follows_from_other_columns_is_stored_as_it_follows(
    ledger: Ledger, jobs: list[Job]
) -> None:
    if ledger.engine == SQLITE:
        # Computed there: no statement can write them.
        async with ledger.raw() as raw:
            for column in ("claim_order", "wake_at", "live_parent_id"):
                case = updated(column, jobs[0], {column: None})
                with pytest.raises(apsw.SQLError, match=f'generated column "{column}"'):
                    await raw.complaints([case])
        return
    held = [job for job in jobs if job.held_by and job.state in CLAIMABLE]
    cases = [
        updated(f"{column} of a {job.state} job", job, {column: value}, f"{column}_derived")
        for job in jobs
        for column, value in (
            *(("claim_order", value) for value in (1, 2**62)),
            *(("wake_at", value) for value in (1, 2**62)),
            ("live_parent_id", job.id),
        )
    ]
    cases += [
        updated("a release from holds", job, {"held_by": None}, "claim_order_derived")
        for job in held
    ]
    cases += [
        updated("an order of a quarantined job", job, {"quarantined_at": 1}, "claim_order_derived")
        for job in jobs
        if job.state in CLAIMABLE and not job.held_by
    ]
    async with ledger.raw() as raw:
        await raw.set_triggers_aside()
        assert await raw.complaints(cases) == []
    assert {case.name.split()[0] for case in cases} >= {"claim_order", "a", "an"}


CARRIED = (
    "rev",
    "attempt",
    "failures",
    "releases",
    "updated_at",
    "late_results",
    "retention",
    "version",
    "policy",
)
"""What a row keeps when it moves: all else is taken from a job that has arrived there."""


def moved(job: Job, there: Job, *, revs: int = 1, **changes: Any) -> Job:
    """What `job` would be if it moved to where `there` stands."""
    if job.terminal and there.state is job.state:
        there = job
    claims = there.state is State.CLAIMED and job.state is not State.CLAIMED
    carried = {name: getattr(job, name) for name in (*FIXED, *CARRIED)}
    kept = carried | {"rev": job.rev + revs, "attempt": job.attempt + claims} | changes
    return replace(there, **kept)


def move_of(name: str, job: Job, target: Job, *rules: str) -> Case:
    before, after = row_of(job), row_of(target)
    changes = {column: after[column] for column in JOB_COLUMNS if after[column] != before[column]}
    return updated(name, job, changes or {"rev": job.rev}, *rules)


def landings(jobs: list[Job]) -> list[Job]:
    """One job per state and number of tries, to move others to."""
    return list(
        {(job.state, job.attempt > 0, job.started_at is None): job for job in jobs}.values()
    )


def sound(job: Job) -> bool:
    return not broken_rules(job)


@pytest.mark.req("B1", "B3", "C2", "C13")
@pytest.mark.parametrize("revs", [1, 2, 3])
async def test_each_move_outside_the_table_is_refused(raw: Raw, jobs: list[Job], revs: int) -> None:
    legal = moves() if revs == 1 else paths()
    cases, passing = [], set()
    for job, there in product(live_first(jobs), landings(jobs)):
        pair = (job.state, there.state)
        target = moved(job, there, revs=revs)
        name = f"{job.state} to {there.state} in {revs}"
        if pair not in legal:
            cases.append(move_of(name, job, target, MOVE, FINAL, *broken_rules(target)))
        elif sound(target):
            passing.add(pair)
            cases.append(move_of(name, job, target))

    assert await raw.complaints(cases) == []
    assert passing == legal


def live_first(jobs: list[Job]) -> list[Job]:
    """All but what is cleaned: nothing follows there."""
    return [job for job in jobs if job.retention is not Retention.CLEANED]


@pytest.mark.req("C8")
async def test_a_revision_that_stays_or_falls_is_refused(raw: Raw, jobs: list[Job]) -> None:
    cases = [
        move_of(f"{job.state} with rev {revs:+}", job, moved(job, job, revs=revs), MOVE, "counters")
        for job in live_first(jobs)
        for revs in (0, -1, -2)
    ]
    assert await raw.complaints(cases) == []


@pytest.mark.req("C7")
async def test_an_attempt_rises_by_a_claim_alone_and_by_one(raw: Raw, jobs: list[Job]) -> None:
    cases = []
    for job, there in product(live_first(jobs), landings(jobs)):
        if (job.state, there.state) not in moves():
            continue
        right = moved(job, there)
        for wrong in (-1, 1, 2):
            target = replace(right, attempt=right.attempt + wrong)
            name = f"{job.state} to {there.state} with attempt {wrong:+}"
            cases.append(move_of(name, job, target, MOVE, *broken_rules(target)))
    assert await raw.complaints(cases) == []


@pytest.mark.req("B3")
async def test_time_that_goes_back_is_refused(raw: Raw, jobs: list[Job]) -> None:
    cases = []
    for job in live_first(jobs):
        back = moved(job, job, updated_at=job.updated_at - 1)
        cases.append(move_of(f"{job.state} a moment earlier", job, back, MOVE))
        same = moved(job, job, updated_at=job.updated_at)
        cases.append(move_of(f"{job.state} at the same time", job, same))
    assert await raw.complaints(cases) == []


def other_value(column: str, row: dict[str, Any]) -> Any:
    """Another value of the same kind."""
    value = row[column]
    match value:
        case int():
            return value + 1
        case str():
            return value + "x"
        case bytes():
            return value[:-1] + bytes([value[-1] ^ 1])
        case None if column.endswith("_id") and column.startswith("parent"):
            return job_ids.mint()
        case None if column == "result_digest":
            return b"x" * 16
        case None if column in _TEXTS:
            return "x"
        case None:
            return 1
        case _:
            return job_ids.mint()


_TEXTS = (
    "task_version",
    "job_id",
    "workflow_id",
    "error_code",
    "result_ptr",
    "owner",
    "wait_for",
    "held_by",
    "late_results",
    "lost_owner",
)
_BORN_WITHOUT = ("started_at", "pending_signals")
OPEN_AT_THE_END = ("rev", "updated_at", "late_results", "letter", "retention", "version")
"""What annotations, the janitor and a newer version still change on a job that has ended."""


@pytest.mark.req("C13", "A15")
async def test_what_is_final_never_changes(raw: Raw, jobs: list[Job]) -> None:
    frozen = [column for column in JOB_COLUMNS if column not in (*FIXED, *OPEN_AT_THE_END)]
    assert set(FROZEN) <= set(frozen)
    cases = []
    for job, column in product((job for job in jobs if job.terminal), frozen):
        row = row_of(job)
        changes = {"rev": job.rev + 1, column: other_value(column, row)}
        rules = (MOVE, FINAL, TERMS, *(rule.name for rule in RULES))
        cases.append(updated(f"{column} of a {job.state} job", job, changes, *rules))
    assert await raw.complaints(cases) == []


@pytest.mark.req("C13")
async def test_retention_only_goes_on_and_nothing_follows_it(raw: Raw, jobs: list[Job]) -> None:
    cases = []
    for job, retention in product((job for job in jobs if job.terminal), Retention):
        legal = retention.code - job.retention.code in (0, 1)
        legal = legal and job.retention is not Retention.CLEANED and retention.code > 0
        changes = {"rev": job.rev + 1, "retention": retention.code}
        name = f"{job.state} from {job.retention} to {retention}"
        cases.append(updated(name, job, changes, *(() if legal else (MOVE,))))
    for job in jobs:
        if job.state in OWNED:
            there = next(one for one in jobs if one.state is State.FAILED)
            target = replace(moved(job, there), retention=Retention.CLEANING)
            cases.append(move_of(f"{job.state} to failed and cleaning", job, target, MOVE))
    assert await raw.complaints(cases) == []


@pytest.mark.req("A1")
async def test_what_a_submit_fixes_is_fixed(raw: Raw, jobs: list[Job]) -> None:
    cases = []
    for job, column in product(jobs, FIXED):
        row = row_of(job)
        changes = {"rev": job.rev + 1, column: other_value(column, row)}
        cases.append(updated(f"{column} of a {job.state} job", job, changes, FIXING, MOVE))
    assert await raw.complaints(cases) == []


async def test_terms_change_only_while_a_job_is_claimed(raw: Raw, jobs: list[Job]) -> None:
    cases = []
    for job in jobs:
        if not job.terminal:
            changes = {"rev": job.rev + 1, "policy": other_value("policy", row_of(job))}
            rules = () if job.state is State.CLAIMED else (TERMS, MOVE)
            cases.append(updated(f"policy of a {job.state} job", job, changes, *rules))
    assert any(not case.rules for case in cases)
    assert await raw.complaints(cases) == []


@pytest.mark.req("C2", "C7")
async def test_a_job_is_born_as_a_submit_bears_it(raw: Raw, jobs: list[Job]) -> None:
    born = [job for job in jobs if job.rev == 1]
    assert {job.state for job in born} == set(SUBMIT_TARGETS)
    cases = []
    for job in born:
        child = replace(job, id=job_ids.mint())
        row = row_of(child)
        cases.append(inserted(f"a {job.state} job", row))
        for column in (*_BORN_WITHOUT, "rev", "attempt", "failures", "releases", "beats"):
            wrong = row | {column: other_value(column, row)}
            rules = (BIRTH, *(rule.name for rule in RULES))
            cases.append(inserted(f"a {job.state} job with {column}", wrong, *rules))
        later = row | {"updated_at": job.updated_at + 1}
        cases.append(inserted(f"a {job.state} job with a past", later, BIRTH))
    for job in jobs:
        if job.state not in SUBMIT_TARGETS:
            for rev in (1, job.rev):
                child = replace(job, id=job_ids.mint(), rev=rev)
                rules = (BIRTH, *broken_rules(child))
                cases.append(inserted(f"a {job.state} job at rev {rev}", row_of(child), *rules))
    assert await raw.complaints(cases) == []


async def test_only_a_cleaned_job_may_be_removed(raw: Raw, jobs: list[Job]) -> None:
    cases = [
        Case(
            name=f"the removal of a {job.state}, {job.retention} job",
            sql="DELETE FROM jobs WHERE id = $1",
            values=[job.id],
            rules=() if job.retention is Retention.CLEANED else (KEPT,),
        )
        for job in jobs
    ]
    assert any(not case.rules for case in cases)
    assert await raw.complaints(cases) == []


@pytest.mark.req("A1")
async def test_a_job_is_there_once(raw: Raw, jobs: list[Job]) -> None:
    case = inserted("the same job again", row_of(jobs[0]), "jobs_pkey", "UNIQUE", "jobs.id")
    assert await raw.complaints([case]) == []


def test_every_state_is_among_the_samples(ledger: Ledger, jobs: list[Job]) -> None:
    assert {job.state for job in jobs} == KNOWN
    assert {job.retention for job in jobs} == set(Retention) - {Retention.UNKNOWN}
    assert {job.state for job in jobs if job.terminal} == TERMINAL
