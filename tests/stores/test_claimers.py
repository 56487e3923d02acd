"""64 processes at once on one store: no key makes two jobs, and nobody gets a job twice."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from holdfast.lifecycle.states import State
from holdfast.testing import assert_invariants
from tests.stores.claimers import make_store, submit_then_claim
from tests.support.postgres import PostgresCluster
from tests.support.processes import run_together

PROCESSES = 64
JOBS = 10_000
CONTESTED = 976
"""Keys that all 64 submit, half of them backwards; the others are one process's each."""
OWN = (JOBS - CONTESTED) // PROCESSES
LIMIT_SECONDS = 600.0

# In one place: starting 64 interpreters is most of the work, and is done once per store.
pytestmark = [pytest.mark.crowd, pytest.mark.timeout(700)]


class Crowd(NamedTuple):
    """What 64 processes said, and where they left it."""

    engine: str
    place: str
    answers: list[dict[str, list[Any]]]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def crowd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Crowd:
    place = _place(request, tmp_path_factory)
    arguments = [
        {
            "engine": request.param,
            "place": place,
            "owner": f"worker-{number}",
            "keys": _keys(number),
            "jobs": JOBS,
        }
        for number in range(PROCESSES)
    ]
    answers = run_together(submit_then_claim, arguments, limit_seconds=LIMIT_SECONDS)
    return Crowd(request.param, place, answers)


def _place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    if request.param == "sqlite":
        directory: Path = tmp_path_factory.mktemp("claimers")
        return str(directory / "holdfast.db")
    cluster: PostgresCluster = request.getfixturevalue("postgres_cluster")
    return cluster.create_database(template=request.getfixturevalue("postgres_template"))


def _keys(number: int) -> list[int]:
    contested = range(CONTESTED)[:: -1 if number % 2 else 1]
    first = CONTESTED + number * OWN
    return [*contested, *range(first, first + OWN)]


@pytest.mark.req("A1", "B5", "C11")
def test_64_submitters_of_the_same_keys_make_one_job_of_each(crowd: Crowd) -> None:
    submitted = [one for answer in crowd.answers for one in answer["submitted"]]
    holders = {(key, id_) for key, id_, _ in submitted}
    created = Counter(key for key, _, new in submitted if new)

    assert len(submitted) == PROCESSES * (CONTESTED + OWN)
    assert PROCESSES * OWN + CONTESTED == JOBS
    assert len(holders) == len({key for key, _ in holders}) == JOBS
    assert len(created) == JOBS
    assert set(created.values()) == {1}


@pytest.mark.req("B2", "B21")
def test_64_claimers_never_claim_a_job_twice(crowd: Crowd) -> None:
    claimed = [one for answer in crowd.answers for one in answer["claimed"]]

    assert len(claimed) == len({id_ for id_, _, _ in claimed}) == JOBS
    assert {(attempt, end) for _, attempt, end in claimed} == {(1, "finished")}
    # A few did not do it all while the others were still waking up.
    assert sum(1 for answer in crowd.answers if answer["claimed"]) >= PROCESSES // 4


@pytest.mark.req("B4", "B24")
async def test_what_64_processes_left_is_one_row_per_key_and_one_event_per_transition(
    crowd: Crowd,
) -> None:
    """Count rows and events, not replies."""
    store = make_store(crowd.engine, crowd.place)
    await store.open()
    await assert_invariants(store)
    seen = Counter[tuple[State, int]]()
    async for batch in store.ledger():
        seen.update((entry.row.state, len(entry.events)) for entry in batch if entry.row)
    counts = {count.state: count.jobs for count in await store.counts() if count.jobs}
    await store.close()

    assert seen == {(State.SUCCEEDED, 4): JOBS}
    assert counts == {State.SUCCEEDED: JOBS}
