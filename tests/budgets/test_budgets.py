"""What a job costs, against a budget each: counted by the server, the disk and the interpreter.

Nothing is timed, so a loaded machine changes little, and a cost that would drown in the noise of
a benchmark shows at once. A budget is what was measured (in the comment; the highest of eight runs
beside other work) and a margin: small where runs agree, larger where gathering depends on who of
client and server is slower. Who lowers a cost lowers its budget; who raises one says why.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec import Struct

from tests.budgets.measured import Measured, in_python, on_postgres, on_sqlite
from tests.budgets.server import SETTINGS
from tests.support.postgres import PostgresCluster

pytestmark = pytest.mark.xdist_group("budgets")


class Budget(Struct, frozen=True):
    """How much something may cost, or how much of something good there must be."""

    limit: float
    look_at: str
    at_least: bool = False

    def holds(self, value: float) -> bool:
        """Whether a cost is within it."""
        return value >= self.limit if self.at_least else value <= self.limit


GATHER = "how submits gather: operations/batches.py"
FETCH = "how much a worker asks for: worker/claimer.py, _room; worker/prefetch.py"
FLUSH = "how commits gather and fold: worker/committer.py; stores/fold.py, fold"
ASKED = "what a worker asks beside its work: worker/ownership_check.py, lease_keeper.py; reconciler"
ROWS = "what a statement writes beside the job and its events: queries.sql; heartbeats; folding"
INDEXES = "indexes, columns and fillfactor of jobs and events: schema.in.sql"
PLANS = "EXPLAIN of what is run most: tests/stores/test_plans.py"
CODE = "what the busiest functions are called for"

# Statements, transactions and syncs are per 1,000 jobs; all else is per job.
POSTGRES = {
    # 4.8: one is a batch of 1,000, the rest is what two connections ask when they are made.
    "submit: statements": Budget(6, GATHER),
    "submit: writing transactions": Budget(1.8, GATHER),  # 1.2
    "submit: rows": Budget(2.1, ROWS),  # 2.002: the job and its first event
    "submit: bytes of WAL": Budget(745, INDEXES),  # 733.2, batch by batch: the same in each run
    "submit: bytes on disk": Budget(795, INDEXES),  # 783.2, batch by batch: the same in each run
    "1,000 callers: submits": Budget(3, GATHER),  # 2
    "drain: claims": Budget(4, FETCH),  # 0.55; a pause of the machine makes small ones
    "drain: commits": Budget(
        15, FLUSH
    ),  # 0.55: batches of 2,000; the slower the client, the more there are
    "drain: other statements": Budget(6, ASKED),  # 0.8; some are asked each second
    "drain: writing transactions": Budget(20, FLUSH),  # 1.4
    "drain: rows": Budget(5.2, ROWS),  # 5.03: two updates of the job, three events
    "drain: share of HOT updates": Budget(0.36, INDEXES, at_least=True),  # 0.415 to 0.458
    "drain: bytes of WAL": Budget(1_760, INDEXES),  # 1,665 to 1,680
    "drain: bytes on disk": Budget(
        1_620, INDEXES
    ),  # 1,451 to 1,506, with what the submit had taken
}
SQLITE = {
    "submit: writing transactions": Budget(1.2, GATHER),  # 0.6
    "submit: syncs": Budget(1.8, GATHER),  # 1.2
    "submit: rows": Budget(2.1, ROWS),  # 2.002
    "submit: steps": Budget(
        450, PLANS
    ),  # 424.1 instructions of SQLite's machine; the claim index holds the task
    "submit: rows scanned": Budget(0.1, PLANS),  # 0.002
    "submit: bytes written": Budget(960, INDEXES),  # 887, file and WAL
    "submit: bytes on disk": Budget(485, INDEXES),  # 462.8
    "1,000 callers: transactions": Budget(3, GATHER),  # 2
    "drain: writing transactions": Budget(10, FLUSH),  # 0.95, of which some are rounds
    "drain: syncs": Budget(12, FLUSH),  # 1.45
    "drain: rows": Budget(5.2, ROWS),  # 5.01
    "drain: steps": Budget(775, PLANS),  # 732.9
    "drain: rows scanned": Budget(1.2, PLANS),  # 0.99: each job once, in the batch itself
    "drain: bytes written": Budget(2_300, INDEXES),  # 1,777, file and WAL
    "drain: bytes on disk": Budget(920, INDEXES),  # 863, with what the submit had taken
}
PYTHON = {
    "decide start and complete": Budget(
        60, CODE
    ),  # 54.0: jobs whose end is not plain; the others have a plan
    "fold": Budget(12, CODE),  # 10.0
    "arrays of a commit": Budget(9, CODE),  # 7.0
    "arrays of a submit": Budget(8, CODE),  # 6.0
    "postgres: submit": Budget(30, CODE),  # 24.7, of which 11 are the driver's
    "postgres: drain": Budget(175, CODE),  # 137 to 139
    "sqlite: submit": Budget(18, CODE),  # 14.1
    "sqlite: drain": Budget(250, CODE),  # 206
}
BUDGETS = {"postgres": POSTGRES, "sqlite": SQLITE, "python": PYTHON}


@pytest.fixture(scope="module")
def counting_cluster() -> Iterator[PostgresCluster]:
    """A server that counts, and writes at no moment of its own."""
    with PostgresCluster(SETTINGS) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def postgres(counting_cluster: PostgresCluster) -> Measured:
    """What jobs cost PostgreSQL."""
    return on_postgres(counting_cluster)


@pytest.fixture(scope="module")
def sqlite(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """What jobs cost SQLite."""
    return on_sqlite(tmp_path_factory.mktemp("budgets"))


@pytest.fixture(scope="module")
def python(counting_cluster: PostgresCluster, tmp_path_factory: pytest.TempPathFactory) -> Measured:
    """How many functions are called for a job."""
    directory: Path = tmp_path_factory.mktemp("calls")
    return in_python(counting_cluster, directory)


@pytest.mark.parametrize(
    ("source", "name"), [(source, name) for source, names in BUDGETS.items() for name in names]
)
def test_a_job_costs_no_more_than_its_budget(
    request: pytest.FixtureRequest, source: str, name: str
) -> None:
    measured: Measured = request.getfixturevalue(source)
    budget, cost = BUDGETS[source][name], measured[name]
    assert budget.holds(cost.value), (
        f"{source}, {name}: {cost.value:,.2f} measured, "
        f"{'at least' if budget.at_least else 'at most'} {budget.limit:,.2f} budgeted. "
        f"Look at {budget.look_at}. It was made of: {cost.detail}"
    )


@pytest.mark.parametrize("source", BUDGETS)
def test_everything_that_is_measured_has_a_budget(
    request: pytest.FixtureRequest, source: str
) -> None:
    measured: Measured = request.getfixturevalue(source)
    assert measured.keys() == BUDGETS[source].keys()
