"""Is it flat? The last third of a soak against its first; pure, so that a test can check it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median

from msgspec import Struct


class Window(Struct, frozen=True, kw_only=True):
    """What was seen in one stretch of the soak."""

    seconds: float
    """Since the load started, at the window's end."""
    pinned: bool
    """Whether another session held an old snapshot for all of it or a part."""
    throughput: float
    """Jobs that ended, per second."""
    waiting: int
    """Jobs that were submitted and had not ended, at its end."""
    p50_ms: float
    p99_ms: float
    """From submit to start, as the ledger has them."""
    bytes_per_job: float
    """By which all tables and indexes grew, for each job that was submitted."""
    index_bytes_per_job: float
    wal_bytes_per_job: float
    dead_jobs: int
    dead_claims: int
    """Dead rows of these tables, at its end: every job leaves some until a vacuum comes."""
    server_micros_per_job: float
    worker_micros_per_job: float
    """Processor time for each job that ended."""
    rss_bytes: int
    """Of the worker."""


class Verdict(Struct, frozen=True, kw_only=True):
    """One measure, judged."""

    measure: str
    first: float
    last: float
    tolerance: str
    flat: bool


class Rule(Struct, frozen=True, kw_only=True):
    """A measure and how far it may drift: by a share of its first value, or by a fixed slack.

    `plus` is added to the share instead, for a measure that may start near zero.
    """

    measure: str
    of: Callable[[Window], float]
    share: float
    slack: float = 0.0
    plus: float = 0.0
    falling: bool = False
    """Whether less is worse; else more is."""

    def judge(self, first: Sequence[Window], last: Sequence[Window]) -> Verdict:
        """Compare the medians of two stretches."""
        before, after = median(map(self.of, first)), median(map(self.of, last))
        drift = before - after if self.falling else after - before
        return Verdict(
            measure=self.measure,
            first=before,
            last=after,
            tolerance=f"{'−' if self.falling else '+'}{self.share:.0%}"
            + (f" or {self.slack:g}" if self.slack else "")
            + (f" + {self.plus:,g}" if self.plus else ""),
            flat=drift <= max(before * self.share + self.plus, self.slack),
        )


THROUGHPUT = Rule(measure="throughput/s", of=lambda w: w.throughput, share=0.05, falling=True)
DEAD_ROWS = 10_000
"""By which dead rows may grow beside doubling: a window ends anywhere between two vacuums."""
RULES = (
    THROUGHPUT,
    Rule(measure="submit→start p50 ms", of=lambda w: w.p50_ms, share=0.5, slack=5),
    Rule(measure="submit→start p99 ms", of=lambda w: w.p99_ms, share=0.5, slack=25),
    Rule(measure="table and index bytes/job", of=lambda w: w.bytes_per_job, share=0.15),
    Rule(measure="index bytes/job", of=lambda w: w.index_bytes_per_job, share=0.15),
    Rule(measure="WAL bytes/job", of=lambda w: w.wal_bytes_per_job, share=0.25),
    Rule(measure="dead rows of jobs", of=lambda w: w.dead_jobs, share=1.0, plus=DEAD_ROWS),
    Rule(measure="dead rows of claims", of=lambda w: w.dead_claims, share=1.0, plus=DEAD_ROWS),
    Rule(measure="server CPU µs/job", of=lambda w: w.server_micros_per_job, share=0.25, slack=20),
    Rule(measure="worker CPU µs/job", of=lambda w: w.worker_micros_per_job, share=0.25, slack=20),
    Rule(measure="worker RSS MB", of=lambda w: w.rss_bytes / 1e6, share=0.15, slack=10),
)
"""Finished jobs are kept, so tables grow by design: judged is what each job adds to them.

Dead rows are judged as they are: against live ones, of which there are ever more, none would show.
"""

PINNED = Rule(measure="throughput/s, xmin pinned", of=THROUGHPUT.of, share=0.1, falling=True)
"""While a snapshot is held nothing dead can be removed; only the work must go on."""


def judge(windows: Sequence[Window]) -> list[Verdict]:
    """Compare the last third with the first, and the pinned stretch by its throughput alone.

    The first window is left out: the worker learns how much to claim in it.
    """
    settled = windows[1:]
    third = max(len(settled) // 3, 1)
    first = [window for window in settled[:third] if not window.pinned]
    last = [window for window in settled[-third:] if not window.pinned]
    pinned = [window for window in settled if window.pinned]
    if len(settled) < 3 or not first or not last:
        raise ValueError(f"{len(windows)} windows are too few to compare thirds of them")
    verdicts = [rule.judge(first, last) for rule in RULES]
    return [*verdicts, PINNED.judge(first, pinned)] if pinned else verdicts


def kept_up(windows: Sequence[Window], rate: float) -> Verdict:
    """Return whether at most two seconds of arrivals wait at the end."""
    return Verdict(
        measure="jobs waiting",
        first=windows[0].waiting,
        last=windows[-1].waiting,
        tolerance="2 s of load",
        flat=windows[-1].waiting <= max(2 * rate, 10),
    )
