"""The targets of the issue, as ratios within one run, and whether they are met. No miss is hidden.

Where a target can be measured under several conditions, the worst of them is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from enum import StrEnum
from statistics import median
from typing import TypeAlias

from msgspec import Struct

from bench.contestants import (
    HOLDFAST,
    HOLDFAST_SQLITE,
    STORE,
    STORE_SQLITE,
    before,
    is_ours,
)
from bench.figures import Measured, ratio

GRAPHILE, PGQUEUER, AWA, HUEY = "graphile-worker batched", "pgqueuer", "awa", "huey"
MEGABYTE = 1_000_000
FEWER, LARGEST = (10_000, 100_000), 1_000_000
"""Between which sizes the growth is judged; a drain of the fewest is in good part ramp-up."""


NO_IDLE_SLOT = 0.98
"""Slots in use, of all: what is missing to one is the time in which the first of them fill."""

Find: TypeAlias = Callable[[Measured], Iterator[tuple[str, float]]]
"""Gives conditions with their values."""


class Verdict(StrEnum):
    """How a target stands."""

    STRETCH = "stretch met"
    MET = "met"
    MISSED = "MISSED"
    SHORT = "stretch MISSED"
    UNKNOWN = "not measured"


class Target(Struct, frozen=True, kw_only=True):
    """What is wanted of one measure."""

    measure: str
    must: float | None
    stretch: float | None
    find: Find
    below: bool = False
    """Whether smaller is better: then the value must be below the mark, not at least the mark."""
    unit: str = "×"


class Judged(Struct, frozen=True, kw_only=True):
    """A target with what was found."""

    measure: str
    must: str
    stretch: str
    value: float | None
    shown: str
    verdict: Verdict


def judge(target: Target, measured: Measured) -> Judged:
    """Compare the worst condition with the marks."""
    found = list(target.find(measured))
    pick = max if target.below else min
    condition, value = pick(found, key=lambda one: one[1]) if found else ("", None)
    return Judged(
        measure=target.measure,
        must=_mark(target, target.must),
        stretch=_mark(target, target.stretch),
        value=value,
        shown="" if value is None else f"{_number(value, target.unit)} ({condition})",
        verdict=verdict(target, value),
    )


def verdict(target: Target, value: float | None) -> Verdict:
    """Return how a value compares with the marks."""
    if value is None:
        return Verdict.UNKNOWN
    if target.stretch is not None and _reaches(target, value, target.stretch):
        return Verdict.STRETCH
    if target.must is None:
        return Verdict.SHORT
    return Verdict.MET if _reaches(target, value, target.must) else Verdict.MISSED


def _reaches(target: Target, value: float, mark: float) -> bool:
    return value < mark if target.below else value >= mark


def _mark(target: Target, mark: float | None) -> str:
    if mark is None:
        return ""
    return f"{'<' if target.below else '≥'} {_number(mark, target.unit)}"


def _number(value: float, unit: str) -> str:
    if unit == "×":
        return f"{value:.2f}×"
    return f"{value:.1f} {unit}"


def drain_against(peer: str, *, ours: str = HOLDFAST, state: str = "") -> Find:
    """Compare drains by one process with those of a peer in any of its modes: with its best."""

    def find(measured: Measured) -> Iterator[tuple[str, float]]:
        for variant in measured.variants("drain"):
            if "processes" in variant or state not in variant:
                continue
            our_rates = measured.values("drain", variant, ours, "rate")
            ratios = [
                found.value
                for name in measured.contenders("drain", variant)
                if name.startswith(peer)
                and (found := ratio(our_rates, measured.values("drain", variant, name, "rate")))
            ]
            if ratios:
                yield variant, min(ratios)

    return find


def submit_against_peers() -> Find:
    """Compare bulk submits with those of each peer; the condition names the peer."""

    def find(measured: Measured) -> Iterator[tuple[str, float]]:
        for variant in measured.variants("submit"):
            ours = measured.values("submit", variant, HOLDFAST, "rate")
            for name in measured.contenders("submit", variant):
                theirs = measured.values("submit", variant, name, "rate")
                if not is_ours(name) and (found := ratio(ours, theirs)):
                    yield f"{variant}, {name}", found.value

    return find


def against_before(scenario: str, contestant: str) -> Find:
    """Compare with the same at another revision, measured in the same run."""

    def find(measured: Measured) -> Iterator[tuple[str, float]]:
        for variant in measured.variants(scenario):
            ours = measured.values(scenario, variant, contestant, "rate")
            for name in measured.contenders(scenario, variant):
                theirs = measured.values(scenario, variant, name, "rate")
                if before(name, contestant) and (found := ratio(ours, theirs)):
                    yield f"of {name}", found.value

    return find


def callers_gain(contestant: str) -> Find:
    """Compare submits of many callers with those one by one."""

    def find(measured: Measured) -> Iterator[tuple[str, float]]:
        many, one = (
            measured.values("single", variant, contestant, "rate")
            for variant in ("100 callers", "one by one")
        )
        if found := ratio(many, one):
            yield contestant, found.value

    return find


def latency_against_peers(contestant: str, name: str) -> Find:
    """Compare a latency with that of each durable peer; below 1 is quicker than the peer."""

    def find(measured: Measured) -> Iterator[tuple[str, float]]:
        ours = measured.values("latency", "idle", contestant, name)
        for peer in measured.contenders("latency", "idle"):
            if is_ours(peer):
                continue
            theirs = measured.values("latency", "idle", peer, name)
            if found := ratio(ours, theirs):
                yield f"of {peer}", found.value

    return find


def latency_of(contestant: str, name: str) -> Find:
    """Give a latency itself."""

    def find(measured: Measured) -> Iterator[tuple[str, float]]:
        if found := measured.figure("latency", "idle", contestant, name):
            yield contestant, found.median

    return find


def grown(contestant: str, *, on_history: bool) -> Find:
    """Compare the drain of the most jobs, or the one on history, with those of fewer."""

    def find(measured: Measured) -> Iterator[tuple[str, float]]:
        for variant in measured.variants("growth"):
            if not ("history" in variant if on_history else variant == f"{LARGEST:,} jobs"):
                continue
            many = measured.values("growth", variant, contestant, "rate")
            for size in FEWER:
                few = measured.values("growth", f"{size:,} jobs", contestant, "rate")
                if found := ratio(many, few):
                    yield f"{variant} vs {size:,}", found.value

    return find


def memory(contestant: str) -> Find:
    """Give the memory of a worker at its largest, of whatever it drained; payloads apart."""

    def find(measured: Measured) -> Iterator[tuple[str, float]]:
        for scenario in ("drain", "growth"):
            for variant in measured.variants(scenario):
                values = measured.values(scenario, variant, contestant, "rss")
                if values:
                    yield f"{scenario} {variant}", median(values.values()) / MEGABYTE

    return find


def _latency_targets(contestant: str, engine: str) -> Iterator[Target]:
    for name in ("p50", "p99"):
        yield Target(
            measure=f"idle latency {name} of the quickest durable peer's, {engine}",
            must=1.0,
            stretch=None,
            find=latency_against_peers(contestant, name),
            below=True,
        )
    yield Target(
        measure=f"idle latency p50, {engine}",
        must=None,
        stretch=2.5,
        find=latency_of(contestant, "p50"),
        below=True,
        unit="ms",
    )


def _targets() -> Iterator[Target]:
    for state, must, stretch in (("analysed", 1.1, 1.4), ("burst", 1.5, 2.5)):
        yield Target(
            measure=f"drain vs Graphile batched, {state}",
            must=must,
            stretch=stretch,
            find=drain_against(GRAPHILE, state=state),
        )
    for label, peer, must, stretch in (
        ("PGQueuer", PGQUEUER, 2.0, 3.0),
        ("pg-boss", "pg-boss", 1.5, 2.0),
        ("awa-pg", AWA, 5.0, 8.0),
        ("procrastinate", "procrastinate", 60.0, 100.0),
        ("DBOS", "dbos", 60.0, 100.0),
        ("absurd", "absurd", 25.0, 40.0),
    ):
        find = drain_against(peer)
        yield Target(measure=f"drain vs {label}", must=must, stretch=stretch, find=find)
    yield Target(
        measure="SQLite FULL drain vs huey, one process",
        must=8.0,
        stretch=12.0,
        find=drain_against(HUEY, ours=HOLDFAST_SQLITE),
    )
    yield Target(
        measure="bulk submit vs the fastest of all peers",
        must=1.1,
        stretch=1.4,
        find=submit_against_peers(),
    )
    yield from _blob_targets()
    yield Target(
        measure="more for a submit that 100 rules and 5 expressions judge, SQLite",
        must=30.0,
        stretch=None,
        find=of_scenario("policy", HOLDFAST_SQLITE, "", "more_us"),
        below=True,
        unit="µs",
    )
    yield Target(
        measure="jobs over the bus vs a bare loop with the same signatures, SQLite",
        must=0.6,
        stretch=None,
        find=of_scenario("bus", HOLDFAST_SQLITE, "", "of_bare"),
    )
    for contestant, engine in ((HOLDFAST, "PostgreSQL"), (HOLDFAST_SQLITE, "SQLite")):
        yield Target(
            measure=f"100 concurrent single submits vs one by one, {engine}",
            must=5.0,
            stretch=15.0,
            find=callers_gain(contestant),
        )
        yield from _latency_targets(contestant, engine)
        yield from _http_targets(contestant, engine)
        yield from _command_targets(contestant, engine)
        store = STORE if contestant == HOLDFAST else STORE_SQLITE
        yield Target(
            measure=f"worker vs bench-store, {engine}",
            must=0.85,
            stretch=1.0,
            find=worker_against_store(store, contestant),
        )
        yield from _flow_targets(contestant, engine)
        for measure, on_history in (
            ("growth 10⁴ or 10⁵ → 10⁶ jobs", False),
            ("growth → 5·10⁶ events of history", True),
        ):
            yield Target(
                measure=f"{measure}, {engine}",
                must=0.85,
                stretch=0.95,
                find=grown(contestant, on_history=on_history),
            )
        yield Target(
            measure=f"worker memory, {engine}",
            must=80.0,
            stretch=60.0,
            find=memory(contestant),
            below=True,
            unit="MB",
        )


def _flow_targets(contestant: str, engine: str) -> Iterator[Target]:
    """Judge jobs that wait: for time, for their steps, for signals."""
    yield Target(
        measure=f"slots in use of 10 ms sleepers while jobs are due, {engine}",
        must=NO_IDLE_SLOT,
        stretch=None,
        find=of_scenario("sleepers", contestant, "", "occupied"),
    )
    for scenario in ("steps", "signals"):
        yield Target(
            measure=f"{scenario} per second vs before, {engine}",
            must=2.0,
            stretch=None,
            find=against_before(scenario, contestant),
        )


def over_http(contestant: str, variant: str, name: str) -> Find:
    """Return what a server serves under conditions that start with this."""

    def find(measured: Measured) -> Iterator[tuple[str, float]]:
        for one in measured.variants("http"):
            found = measured.figure("http", one, contestant, name)
            if one.startswith(variant) and found:
                yield one, found.median

    return find


def _http_targets(contestant: str, engine: str) -> Iterator[Target]:
    for how, must in (("one by one", 0.75), ("batches of 100", 0.5)):
        yield Target(
            measure=f"HTTP submits {how} vs empty POSTs, {engine}",
            must=must,
            stretch=None,
            find=over_http(contestant, how, "share"),
        )
    yield Target(
        measure=f"HTTP lists p99, {engine}",
        must=20.0,
        stretch=None,
        find=over_http(contestant, "lists of", "p99"),
        below=True,
        unit="ms",
    )


def of_scenario(scenario: str, contestant: str, variant: str, name: str) -> Find:
    """Return what a scenario gave under conditions that start with this."""

    def find(measured: Measured) -> Iterator[tuple[str, float]]:
        for one in measured.variants(scenario):
            found = measured.figure(scenario, one, contestant, name)
            if one.startswith(variant) and found:
                yield one, found.median

    return find


def _blob_targets() -> Iterator[Target]:
    for measure, must, name, unit in (
        ("small blobs vs a bare loop with the same syncs", 2.0, "of_bare", "×"),
        ("more memory while a large blob is streamed", 20.0, "grown_mb", "MB"),
    ):
        yield Target(
            measure=measure,
            must=must,
            stretch=None,
            find=of_scenario("blobs", HOLDFAST_SQLITE, "", name),
            below=True,
            unit=unit,
        )


def _command_targets(contestant: str, engine: str) -> Iterator[Target]:
    for measure, must, variant, name, unit in (
        ("container job vs podman run --rm", 1.15, "podman vs", "of_bare", "×"),
        ("sandbox job vs bwrap in control groups", 1.5, "sandbox vs", "of_bare", "×"),
        ("process job beyond a plain process and two commits", 3.0, "process vs", "over_ms", "ms"),
        ("recovery of containers after SIGKILL", 5.0, "", "recovery_seconds", "s"),
    ):
        yield Target(
            measure=f"{measure}, {engine}",
            must=must,
            stretch=None,
            find=of_scenario("commands", contestant, variant, name),
            below=True,
            unit=unit,
        )


def worker_against_store(store: str, ours: str) -> Find:
    """Compare a worker with its own store, not with one whose name starts alike."""

    def find(measured: Measured) -> Iterator[tuple[str, float]]:
        for variant in measured.variants("drain"):
            mine = measured.values("drain", variant, ours, "rate")
            if found := ratio(mine, measured.values("drain", variant, store, "rate")):
                yield variant, found.value

    return find


TARGETS: tuple[Target, ...] = tuple(_targets())
