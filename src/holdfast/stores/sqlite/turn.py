"""Inside a transaction, on a thread of the database: a snapshot that reads, a turn that writes.

Own to SQLite: its statements are plain calls on a thread, so what belongs together runs there in
one piece, and only its result goes back to the event loop.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache, cached_property, partial
from itertools import chain
from typing import Any

import apsw

from holdfast.admission.book import Book
from holdfast.errors import BadPolicy, JobUnreadable
from holdfast.flow.policy_book import BOOKS, compile_book
from holdfast.lifecycle.execution_policy import needs_key, needs_text, policy_key, policy_text
from holdfast.lifecycle.record import Job, JobId, LoggedEvent
from holdfast.lifecycle.transitions import SUBMIT_EVENT
from holdfast.stores.columns import DATA, NEEDS, POLICY, TYPE, Dictionary, created_keys
from holdfast.stores.door import CURRENT, explain_unreadable
from holdfast.stores.quarantine import read_all, read_undamaged, report_refused, report_set_aside
from holdfast.stores.side_tables import POLICY_BOOKS
from holdfast.stores.sqlite.rows import SQL, Row, event_of, job_id, job_of

CHUNKS = (64, 8, 1)
"""Rows that one run of a statement writes. Other threads get to run only while SQLite is at
work, and have to be waited for each time it is done: so few long runs instead of many short ones,
which also spares a third of SQLite's own work."""
_VALUES = re.compile(r"VALUES (\([?, 0-9]+\))")


@cache
def is_set_based(sql: str) -> bool:
    """Return whether a statement can write several rows in one run: it names them by VALUES."""
    return _VALUES.search(sql) is not None


@cache
def repeat_values(sql: str, rows: int) -> str:
    """Write a statement for a number of rows: its VALUES repeated."""
    match = _VALUES.search(sql)
    if match is None or rows == 1:
        return sql
    return sql[: match.start(1)] + ", ".join([match[1]] * rows) + sql[match.end(1) :]


class ReadSnapshot:
    """A connection inside a transaction, and the dictionary of this process."""

    def __init__(self, connection: apsw.Connection, seen: Dictionary) -> None:
        self.connection = connection
        self.seen = seen

    def rows(self, name: str, *parameters: Any) -> list[Row]:
        """Run a named statement and read all it returns."""
        return self.connection.execute(SQL[name], parameters).fetchall()

    def row(self, name: str, *parameters: Any) -> Row | None:
        """Run a named statement and read its first row."""
        return self.connection.execute(SQL[name], parameters).fetchone()

    def get(self, id: JobId) -> Job | None:
        """Read one job; raise JobUnreadable if it is damaged."""
        rows = self.rows("get", [id])
        return self.jobs(rows)[0] if rows else None

    def jobs(self, rows: Sequence[Row]) -> list[Job]:
        """Read job rows; raise JobUnreadable if one is damaged."""
        self.learn((row[POLICY], row[NEEDS]) for row in rows)
        return read_all(rows, self._job, _id_of)

    def readable_jobs(self, rows: Sequence[Row]) -> tuple[list[Job], dict[JobId, str]]:
        """Read job rows, and why some cannot be read: row by row only where one is damaged."""
        try:
            return self.jobs(rows), {}
        except JobUnreadable:
            return read_undamaged(rows, self._job, _id_of)

    def events(self, rows: Sequence[Row]) -> list[LoggedEvent]:
        """Read event rows; raise JobUnreadable if one is damaged."""
        return read_all(rows, self._event, _id_of)

    def readable_events(self, rows: Sequence[Row]) -> list[LoggedEvent]:
        """Read the event rows that can be read."""
        return read_undamaged(rows, self._event, _id_of)[0]

    def _job(self, row: Row) -> Job:
        return job_of(row, self.seen)

    def _event(self, row: Row) -> LoggedEvent:
        if row[TYPE] == SUBMIT_EVENT.code:
            self.learn_created(row[DATA])
        return event_of(row, self.seen)

    def learn_created(self, text: str) -> None:
        """Look up what a first event names."""
        self.learn([created_keys(text)])

    def learn(self, named: Iterable[tuple[int, int]]) -> None:
        """Look up the policies and needs that this process has not seen."""
        policies, needs = self.seen.find_unknown(named)
        if policies:
            self.seen.learn_policies(self.rows("policies", policies))
        if needs:
            self.seen.learn_needs(self.rows("needs", needs))


class Turn(ReadSnapshot):
    """A caller's turn in a write transaction: the time of it, and what follows from its writes."""

    def __init__(
        self, connection: apsw.Connection, seen: Dictionary, now: int, news: int = 0
    ) -> None:
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
        """Return whether new events are sealed."""
        return self._meta["sealing"] == "on"

    @cached_property
    def book(self) -> Book | BadPolicy | None:
        """The rules that judge new jobs, or why they cannot be read; None if none are applied."""
        digest = self._meta.get(CURRENT)
        if digest is None:
            return None
        if digest not in self.seen.books:
            if len(self.seen.books) >= BOOKS:
                self.seen.books.clear()
            [row] = self.rows("policy_book", digest)
            try:
                self.seen.books[digest] = compile_book(POLICY_BOOKS.read(row).body)
            except BadPolicy as error:
                # What this process lacks, it lacks as long as it runs.
                self.seen.books[digest] = explain_unreadable(error)
        return self.seen.books[digest]

    @cached_property
    def _meta(self) -> dict[str, str]:
        return {key: value for key, value in self.rows("meta")}  # noqa: C416  rows of two

    def last_seal(self, id: bytes) -> bytes | None:
        """Read the seal that a job's next one continues."""
        row = self.row("last_seal", id)
        return None if row is None else row[0]

    def write(self, name: str, rows: Sequence[Sequence[Any]], after: Sequence[Any] = ()) -> int:
        """Run a named statement for each row; return the number of rows that it changed.

        `after` are parameters that follow those of the rows, the same for all.
        """
        return self.write_text(SQL[name], rows, after)

    def write_text(self, sql: str, rows: Sequence[Sequence[Any]], after: Sequence[Any] = ()) -> int:
        """Run a statement for each row; return the number of rows that it changed."""
        before = self.connection.total_changes()
        done = 0
        for size in CHUNKS if is_set_based(sql) else (1,):
            whole = len(rows) - (len(rows) - done) % size
            if whole > done:
                self.connection.executemany(
                    repeat_values(sql, size),
                    [[*chain(*rows[i : i + size]), *after] for i in range(done, whole, size)],
                )
                done = whole
        return self.connection.total_changes() - before

    @contextmanager
    def in_savepoint(self) -> Iterator[None]:
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
                with self.in_savepoint():
                    marked = self.rows("quarantine", id_, reason)
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
        if job.is_ready(self.now):
            self.woken.add(job.queue)


def settle_counts(connection: apsw.Connection, turns: Iterable[Turn]) -> None:
    """Write what all turns of a transaction did to the summaries, once per state."""
    total: Counter[tuple[str, str, int]] = Counter()
    for turn in turns:
        total.update(turn.counts)
    changed = [(*key, jobs) for key, jobs in total.items() if jobs]
    if changed:
        connection.executemany(SQL["count"], changed)


def _id_of(row: Row) -> JobId:
    """The id of a job or event row: the first column of both."""
    return job_id(row[0])
