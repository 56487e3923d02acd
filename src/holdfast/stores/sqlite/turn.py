"""One caller's turn inside a write transaction: what it may use, and what it leaves to be done."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property, partial
from itertools import chain
from typing import Any

import apsw

from holdfast.lifecycle.job import Job, JobId
from holdfast.lifecycle.policy import needs_key, needs_text, policy_key, policy_text
from holdfast.lifecycle.states import CLAIMABLE
from holdfast.stores.columns import Dictionary
from holdfast.stores.quarantine import report_refused, report_set_aside
from holdfast.stores.sqlite.session import SQL, Session, for_rows, is_set_based

CHUNKS = (64, 8, 1)
"""How many rows one run of a statement writes. Other threads get to run only while SQLite is at
work, and have to be waited for each time it is done: so few long runs instead of many short ones,
which also spares a third of SQLite's own work."""


class Turn(Session):
    """A session that writes: the clock as it reads it, and what follows from its writes."""

    def __init__(
        self, connection: apsw.Connection, seen: Dictionary, now: int, news: int = 0
    ) -> None:
        """Begin an operation at a time of the store's clock."""
        super().__init__(connection, seen)
        self.now = now
        self.news = news
        """The number of the last news of work: all that came before it can be seen here."""
        self.counts: Counter[tuple[str, str, int]] = Counter()
        self.woken: set[str] = set()
        """Queues that may have got work."""
        self.after_commit: list[Callable[[], None]] = []
        """What may be remembered only once this is durable."""

    @cached_property
    def epoch(self) -> int:
        """The epoch under which claims are made and fenced."""
        return int(self._meta["epoch"])

    @cached_property
    def sealing(self) -> bool:
        """Whether new events are sealed."""
        return self._meta["sealing"] == "on"

    @cached_property
    def _meta(self) -> dict[str, str]:
        return self.meta()

    def last_seal(self, id: bytes) -> bytes | None:
        """Read the seal that a job's next one hangs on."""
        row = self.row("last_seal", (id,))
        return None if row is None else row[0]

    def write(self, name: str, rows: Sequence[Sequence[Any]], after: Sequence[Any] = ()) -> int:
        """Run a named statement for each row; tell how many rows it changed.

        `after` are parameters that follow those of the rows, the same for all.
        """
        return self.write_text(SQL[name], rows, after)

    def write_text(self, sql: str, rows: Sequence[Sequence[Any]], after: Sequence[Any] = ()) -> int:
        """Run a statement for each row; tell how many rows it changed."""
        before = self.connection.total_changes()
        done = 0
        for size in CHUNKS if is_set_based(sql) else (1,):
            whole = len(rows) - (len(rows) - done) % size
            if whole > done:
                self.connection.executemany(
                    for_rows(sql, size),
                    [[*chain(*rows[i : i + size]), *after] for i in range(done, whole, size)],
                )
                done = whole
        return self.connection.total_changes() - before

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Undo what is done inside if it raises, and nothing else."""
        counts, woken = self.counts.copy(), self.woken.copy()
        self.connection.execute("SAVEPOINT alone")
        try:
            yield
        except BaseException:
            if self.connection.in_transaction:
                self.connection.execute("ROLLBACK TO alone")
                self.connection.execute("RELEASE alone")
            self.counts, self.woken = counts, woken
            raise
        self.connection.execute("RELEASE alone")

    def set_aside(self, bad: Mapping[JobId, str]) -> None:
        """Keep damaged jobs out of claims and sweeps; log it once that is durable."""
        for id_, reason in bad.items():
            try:
                with self.alone():
                    marked = self.write("quarantine", [(id_.bytes, self.now, reason)])
            except apsw.ConstraintError as error:
                report_refused([id_], error)
            else:
                if marked:
                    self.after_commit.append(partial(report_set_aside, {id_: reason}))

    def remember(self, jobs: Sequence[Job]) -> None:
        """Write the policies and needs that these jobs name, where they are new."""
        # By identity first: the jobs of a batch mostly share one policy object.
        policies = {policy_key(p): p for p in {id(job.policy): job.policy for job in jobs}.values()}
        self.seen.policies.update(policies)
        rows = [
            (key, policy_text(p).decode(), p.lease, p.start_timeout) for key, p in policies.items()
        ]
        self.write("add_policies", rows)
        for needs in {job.needs for job in jobs if job.needs}:
            self.seen.needs[needs_key(needs)] = needs
            self.write("add_needs", [(needs_key(needs), needs_text(needs).decode(), self.now)])

    def count(self, tenant: str, queue: str, state: int, jobs: int = 1) -> None:
        """Note a change of the summaries."""
        self.counts[tenant, queue, state] += jobs

    def wake(self, job: Job) -> None:
        """Note that a job may be there to be claimed."""
        if (
            job.state in CLAIMABLE
            and not job.held_by
            and job.run_at is not None
            and job.run_at <= self.now
        ):
            self.woken.add(job.queue)


def settle_counts(connection: apsw.Connection, turns: Iterable[Turn]) -> None:
    """Write what all turns of a transaction did to the summaries, once per state."""
    total: Counter[tuple[str, str, int]] = Counter()
    for turn in turns:
        total.update(turn.counts)
    changed = [(*key, jobs) for key, jobs in total.items() if jobs]
    if changed:
        connection.executemany(SQL["count"], changed)
