"""What Prometheus gets: the catalogue, rendered from the meters, over real HTTP."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import cast

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from holdfast.errors import CannotServe
from holdfast.flow.recover import Swept
from holdfast.lifecycle.states import EventType, State
from holdfast.ports.models import Count, Quarantine
from holdfast.ports.store import Store
from holdfast.services.depth_refresh import refresh_depths
from holdfast.telemetry import Meters
from holdfast.telemetry.counters import MOST_LANES
from holdfast.telemetry.liveness import measure_lag
from holdfast.telemetry.metrics import CATALOGUE, MetricKind, MetricScope
from holdfast.telemetry.metrics_server import MetricsServer, serve_metrics
from holdfast.telemetry.queue_depths import Depths
from holdfast.telemetry.summary import summary
from holdfast.wiring import opened, read_address
from tests.flow.test_command import submitted
from tests.support.waiting import wait_until
from tests.telemetry.test_counters import HandClock

B22 = {
    "claims": "holdfast_claims_total",
    "claim_conflicts": "holdfast_claim_conflicts_total",
    "lease_renewals": "holdfast_lease_renewals_total",
    "lease_expiries": "holdfast_lease_expiries_total",
    "retries": "holdfast_retries_total",
    "failures": "holdfast_failures_total",
    "dlq_count": "holdfast_dlq_count",
    "queue wait": "holdfast_queue_wait_seconds_bucket",
    "run time": "holdfast_run_seconds_bucket",
}
EVENTS = {
    "started": EventType.STARTED,
    "completed": EventType.SUCCEEDED,
    "retries": EventType.RETRYING,
    "failures": EventType.FAILED,
    "cancelled": EventType.CANCELLED,
    "timed_out": EventType.TIMED_OUT,
    "dlq": EventType.DEAD_LETTERED,
    "released": EventType.RELEASED,
    "stalled": EventType.STALLED,
}
OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def get(url: str, accept: str = "") -> tuple[int, str]:
    """Ask by HTTP; a refusal is an answer."""
    request = urllib.request.Request(url, headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        with refused:
            return refused.code, refused.read().decode()


def scraped(server: MetricsServer) -> list[Sample]:
    """Scrape, and read with Prometheus' own parser."""
    status, text = get(f"{server.url}/metrics")
    assert status == 200
    return [one for family in text_string_to_metric_families(text) for one in family.samples]


def value(samples: list[Sample], name: str, **labels: str) -> float:
    """Find the one sample of a name and labels."""
    (found,) = [one.value for one in samples if (one.name, one.labels) == (name, labels)]
    return found


@pytest.fixture
def meters() -> Meters:
    """Meters of a process that has worked."""
    meters = Meters(HandClock())
    meters.claimed(7)
    meters.conflict()
    meters.fenced()
    meters.keeper.renewed(3)
    meters.keeper.failed()
    meters.door.answered("/v1/jobs", 201, 0.004)
    meters.submitted("mail", "default", 4)
    for number, event in enumerate(EVENTS.values()):
        for _ in range(number + 1):
            meters.written("mail", "default", event)
    meters.written("mail", "default", EventType.HEARTBEAT)
    meters.written("mail", "default", EventType.LEASE_RENEWED)
    meters.ran("mail", "default", 0.3, 1.5)
    meters.ran("mail", "default", 0.02, 9999.0)
    meters.committed(20)
    meters.store_error("store_unavailable")
    meters.swept(Swept(expired=2, lost=1))
    meters.sweep_failed()
    meters.lagged(0.25)
    meters.bus.receive("results", 2)
    meters.bus.refuse("results", "unknown")
    meters.bus.send("delivered", 2)
    meters.in_flight, meters.prefetched, meters.unkillable = 11, 12, 13
    meters.pulse("loop", limit_seconds=5)
    return meters


@pytest.fixture
def depths(meters: Meters) -> Depths:
    """Counts as they were ten seconds ago."""
    depths = Depths(meters)
    depths.jobs = {("default", State.QUEUED): 40, ("default", State.DEAD_LETTERED): 2}
    depths.jobs["mail", State.RUNNING] = 1
    depths.read_at = meters.clock() - 10
    return depths


@pytest.fixture
def server(meters: Meters, depths: Depths) -> Iterator[MetricsServer]:
    """A server that a scraper can reach."""
    with serve_metrics(meters, port=0, depths=depths) as server:
        yield server


@pytest.mark.req("B22")
def test_every_name_of_the_requirement_is_scraped(server: MetricsServer) -> None:
    names = {sample.name for sample in scraped(server)}
    assert {asked: name for asked, name in B22.items() if name not in names} == {}


@pytest.mark.req("B22")
def test_every_metric_of_the_catalogue_is_scraped_under_its_name(server: MetricsServer) -> None:
    names = {sample.name for sample in scraped(server)}
    for metric in CATALOGUE:
        behind = "_bucket" if metric.kind is MetricKind.HISTOGRAM else ""
        assert metric.exported_name + behind in names
    assert len({metric.name for metric in CATALOGUE}) == len(CATALOGUE)


@pytest.mark.req("B22")
def test_the_scraped_numbers_are_those_that_were_counted(server: MetricsServer) -> None:
    samples = scraped(server)
    plain = {
        "claims_total": 7,
        "claim_conflicts_total": 1,
        "fenced_total": 1,
        "lease_renewals_total": 5,
        "heartbeat_failures_total": 1,
        "lease_expiries_total": 2,
        "reconciler_sweeps_total": 1,
        "reconciler_sweep_failures_total": 1,
        "reconciler_conflicts_total": 1,
        "reconciler_last_sweep_age_seconds": 0,
        "loop_lag_seconds": 0.25,
        "in_flight": 11,
        "prefetched": 12,
        "unkillable": 13,
        "queue_jobs_age_seconds": 10,
        "commit_batch_size_sum": 20,
    }
    assert {name: value(samples, f"holdfast_{name}") for name in plain} == plain
    lane = {"task": "mail", "queue": "default"}
    assert value(samples, "holdfast_submitted_total", **lane) == 4
    for number, name in enumerate(EVENTS):
        assert value(samples, f"holdfast_{name}_total", **lane) == number + 1
    assert value(samples, "holdfast_store_errors_total", code="store_unavailable") == 1
    assert value(samples, "holdfast_alive", part="loop") == 1


@pytest.mark.req("B22")
def test_histograms_add_up_to_their_count(server: MetricsServer) -> None:
    samples = scraped(server)
    lane = {"task": "mail", "queue": "default"}
    wait, run = "holdfast_queue_wait_seconds", "holdfast_run_seconds"
    assert value(samples, f"{wait}_bucket", le="0.01", **lane) == 0
    assert value(samples, f"{wait}_bucket", le="0.025", **lane) == 1
    assert value(samples, f"{wait}_bucket", le="0.5", **lane) == 2
    assert value(samples, f"{run}_bucket", le="3600.0", **lane) == 1
    assert value(samples, f"{run}_bucket", le="+Inf", **lane) == 2
    assert value(samples, f"{run}_count", **lane) == 2
    assert value(samples, f"{run}_sum", **lane) == 10_000.5


def test_the_stores_counts_come_from_the_snapshot(server: MetricsServer) -> None:
    samples = scraped(server)
    assert value(samples, "holdfast_queue_jobs", queue="default", state="queued") == 40
    assert value(samples, "holdfast_dlq_count", queue="default") == 2
    assert value(samples, "holdfast_dlq_count", queue="mail") == 0


def test_help_says_whose_number_it_is() -> None:
    for metric in CATALOGUE:
        whose = "whole store" if metric.scope is MetricScope.STORE else "this process"
        assert whose in metric.help
    store = {metric.name for metric in CATALOGUE if metric.scope is MetricScope.STORE}
    assert store == {"holdfast_queue_jobs", "holdfast_dlq_count", "holdfast_quarantined_jobs"}


def test_openmetrics_is_given_to_who_asks_for_it(server: MetricsServer) -> None:
    status, text = get(f"{server.url}/metrics", OPENMETRICS)
    assert status == 200
    families = {family.name for family in read_openmetrics(text)}  # type: ignore[no-untyped-call]
    assert {metric.name for metric in CATALOGUE} <= families


def test_hostile_names_do_not_break_a_scrape(meters: Meters, server: MetricsServer) -> None:
    hostile = ['a"} 1\nholdfast_claims_total 666', "\udcff", "\x00\x1b[2J", "\\", "ü\u2028"]
    for name in hostile:
        meters.written(name, name, EventType.FAILED)
    for number in range(MOST_LANES * 2):
        meters.ran(f"task-{number}", "default", 0.1, 0.1)
    samples = scraped(server)
    failed = [one for one in samples if one.name == "holdfast_failures_total"]
    assert len(failed) <= MOST_LANES + 1
    assert value(samples, "holdfast_claims_total") == 7
    assert value(samples, "holdfast_failures_total", task=hostile[0], queue=hostile[0]) == 1
    every = [(one.name, tuple(sorted(one.labels.items()))) for one in samples]
    assert len(every) == len(set(every)), "a duplicate makes Prometheus drop the whole scrape"


def test_health_names_the_part_that_is_silent(meters: Meters, server: MetricsServer) -> None:
    clock = meters.clock
    assert isinstance(clock, HandClock)
    meters.pulse("keeper", limit_seconds=30)
    meters.pulse("reconciler", limit_seconds=60)
    assert get(f"{server.url}/healthz")[0] == 200
    clock.now += 31
    meters.pulses["loop"].beat()
    status, text = get(f"{server.url}/healthz")
    assert (status, json.loads(text)["silent"]) == (503, {"keeper": 31.0})
    assert value(scraped(server), "holdfast_alive", part="keeper") == 0
    meters.pulses["keeper"].stop()
    assert get(f"{server.url}/healthz")[0] == 200
    clock.now += 30
    status, text = get(f"{server.url}/healthz?full=1")
    assert (status, set(json.loads(text)["silent"])) == (503, {"loop", "reconciler"})


def test_a_silent_loop_shows_as_lag(meters: Meters, server: MetricsServer) -> None:
    clock = meters.clock
    assert isinstance(clock, HandClock)
    clock.now += 40
    assert value(scraped(server), "holdfast_loop_lag_seconds") == 40


async def test_a_blocked_loop_is_answered_for() -> None:
    """The loop stands still, and does not go on before a probe has been told so."""
    meters = Meters()
    pulse = meters.pulse("loop", limit_seconds=0.2)
    answers: list[tuple[int, str]] = []
    with serve_metrics(meters, port=0) as server:
        measuring = asyncio.create_task(measure_lag(meters.lagged, pulse, every_seconds=0.01))
        await asyncio.sleep(0)

        def probe() -> None:
            while not answers or answers[-1][0] == 200:
                answers.append(get(f"{server.url}/healthz"))
            answers.append(get(f"{server.url}/metrics"))

        prober = threading.Thread(target=probe)
        prober.start()
        prober.join(30)
        measuring.cancel()
    assert json.loads(answers[-2][1])["silent"].keys() == {"loop"}
    assert answers[-1][0] == 200


def test_other_paths_and_methods_are_refused(server: MetricsServer) -> None:
    assert get(f"{server.url}/")[0] == 404
    posted = urllib.request.Request(f"{server.url}/metrics", data=b"x", method="POST")
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(posted, timeout=10)
    refused.value.close()
    assert refused.value.code == 501


def test_a_scrape_that_failed_is_told_in_the_log(
    meters: Meters, server: MetricsServer, caplog: pytest.LogCaptureFixture
) -> None:
    lane = meters.lane("mail", "default")
    counts, lane.runs = lane.runs, [1]
    with pytest.raises(http.client.RemoteDisconnected):
        get(f"{server.url}/metrics")
    wait_until(lambda: "a scrape failed" in caplog.text, "the log line")
    lane.runs = counts
    assert get(f"{server.url}/metrics")[0] == 200


def test_a_port_that_is_taken_is_told_as_such(server: MetricsServer) -> None:
    port = server.server_port
    with (
        pytest.raises(CannotServe, match=f"127.0.0.1:{port}"),
        serve_metrics(Meters(), port=port),
    ):
        pytest.fail("served on a port that is taken")


WITHOUT_PROMETHEUS = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "prometheus_client":
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Missing())
from holdfast.errors import CannotServe
from holdfast.telemetry import Meters
from holdfast.telemetry.metrics_server import serve_metrics
from holdfast.telemetry.summary import summary

summary(Meters())
try:
    with serve_metrics(Meters(), port=0):
        pass
except CannotServe as error:
    assert "holdfast[metrics]" in str(error)
else:
    raise AssertionError("served")
"""


def test_without_prometheus_client_it_is_said_what_to_install() -> None:
    subprocess.run([sys.executable, "-c", WITHOUT_PROMETHEUS], check=True, timeout=60)


def test_an_idle_connection_does_not_hold_up_the_end(meters: Meters) -> None:
    with serve_metrics(meters, port=0) as server:
        idle = socket.create_connection(("127.0.0.1", server.server_port))
        # Connections are taken in order: once this is answered, the idle one was taken too.
        assert get(f"{server.url}/healthz")[0] == 200
    idle.setblocking(False)
    with idle, pytest.raises(BlockingIOError):
        assert idle.recv(1) != b"", "the server waited until it lost patience with the client"


async def refreshed(depths: Depths, store: Store) -> None:
    """Watch until the counts were read twice."""
    reads = asyncio.Semaphore(0)

    class Counted:
        async def counts(self) -> list[Count]:
            reads.release()
            return await store.counts()

        async def quarantined(self, *, limit: int) -> Quarantine:
            return await store.quarantined(limit=limit)

    watching = asyncio.create_task(
        refresh_depths(depths, cast(Store, Counted()), every_seconds=0.001)
    )
    async with asyncio.timeout(10):
        await reads.acquire()
        await reads.acquire()
    watching.cancel()


async def test_depths_are_read_from_the_store_and_outlive_its_trouble(meters: Meters) -> None:
    depths = Depths(meters)
    async with opened(read_address(":memory:")) as store:
        await submitted(store)
        await submitted(store, tenant="another")
        await submitted(store, queue="mail")
        await refreshed(depths, store)
    expected = {("default", State.QUEUED): 2, ("mail", State.QUEUED): 1}
    assert {key: jobs for key, jobs in depths.jobs.items() if jobs} == expected
    errors = sum(meters.store_errors.values())
    await depths.refresh(store)
    assert sum(meters.store_errors.values()) == errors + 1, "the store is closed"
    assert depths.jobs["default", State.QUEUED] == 2


@pytest.mark.req("B22")
def test_a_summary_gives_quantiles_without_any_exporter(meters: Meters) -> None:
    meters.ran("mail", "another", 0.3, 1.5)
    told = summary(meters)
    assert json.loads(json.dumps(told)) == told
    assert (told["claims"], told["lease_renewals"], told["lease_expiries"]) == (7, 5, 2)
    mail = told["tasks"]["mail"]
    assert mail["retries"] == 3
    assert 0.25 <= mail["queue_wait_seconds"]["p50"] <= 0.5
    assert 1.0 <= mail["run_seconds"]["p50"] <= 2.5
    assert mail["run_seconds"]["p95"] == 3600.0
