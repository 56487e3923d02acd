"""Submits from the bus: stored before they are acknowledged, one job per id (case 37)."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cap.pb.cordum.agent.v1 import job_pb2

from holdfast.lifecycle.submission import NEEDS_LIMIT
from tests.buses.site import Site, refused, settings_of, succeed, until
from tests.support.waiting import wait_until

both_engines = pytest.mark.parametrize("engine", ["sqlite", "postgres"])
ROOT = Path(__file__).parents[2]
CONFIG = """
[topics."job.once"]
bus = "main"
"""


class Program:
    """`holdfast bridge` as a process of its own."""

    def __init__(self, site: Site, url: str, directory: Path, **variables: str) -> None:
        config = directory / "bridge.toml"
        config.write_text(CONFIG)
        self._log = directory / "bridge.log"
        options = ["--config", str(config), "bridge", "--url", url, "--nats", site.server.url]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "holdfast.cli", *options],
                env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **variables},
                stdout=log,
                stderr=log,
                cwd=directory,
            )

    def log(self) -> str:
        return self._log.read_text()

    def wait(self) -> int:
        return self.process.wait(timeout=60)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


@both_engines
@pytest.mark.req("A1")
async def test_the_same_submit_again_is_the_same_job_and_another_body_is_refused(
    site: Site,
) -> None:
    alerts = await site.listen("sys.alert")
    async with site.bridge() as bridge:
        await site.worker("job.once", succeed)
        await site.submit("j", context_ptr="a", trace="first")
        job = await site.ended("j")
        await site.submit("j", context_ptr="a", trace="second")
        await until(lambda: refused(bridge, "submit", "duplicate") == 1, "it to be recognised")
        await site.submit("j", context_ptr="another")
        await until(lambda: refused(bridge, "submit", "conflict") == 1, "it to be refused")
        await until(lambda: len(alerts) == 1, "the alert")
    assert await site.job("j") == job
    assert (alerts[0].alert.code, alerts[0].sender_id) == ("submit_conflict", "holdfast-main")


@pytest.mark.req("A1")
async def test_an_idempotency_key_leads_to_one_job_whatever_the_id(site: Site) -> None:
    async with site.bridge() as bridge:
        await site.worker("job.once", succeed)
        meta = job_pb2.JobMetadata(idempotency_key="key")
        await site.submit("a", meta=meta)
        await site.ended("a")
        await site.submit("b", meta=meta)
        await until(lambda: refused(bridge, "submit", "duplicate") == 1, "it to be recognised")
        assert await site.find("b") is None


@pytest.mark.req("A2", "A6", "A12")
@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"topic": "job.unrouted"}, "topic"),
        ({"topic": "sys.job.result"}, "topic"),
        ({"tenant_id": "another"}, "tenant"),
        ({"env": {"x": "y" * 20_000}}, "bad_request"),
        ({"context_ptr": "nul\0"}, "bad_request"),
        (
            {"meta": job_pb2.JobMetadata(requires=[str(n) for n in range(NEEDS_LIMIT + 1)])},
            "bad_request",
        ),
    ],
    ids=["no-pool", "not-a-topic", "tenant", "large-env", "nul", "needs"],
)
async def test_a_submit_that_cannot_be_a_job_is_refused_with_an_alert(
    site: Site, fields: dict[str, Any], reason: str
) -> None:
    alerts = await site.listen("sys.alert")
    async with site.bridge() as bridge:
        await site.submit("j", **fields)
        await until(lambda: refused(bridge, "submit", reason) == 1, "it to be refused")
        await until(lambda: len(alerts) == 1, "the alert")
        assert await site.find("j") is None


@pytest.mark.req("A7")
async def test_a_known_parent_is_linked(site: Site) -> None:
    async with site.bridge():
        await site.listen("job.once")
        await site.submit("parent")
        parent = await site.out("parent")
        await site.submit("child", parent_job_id="parent")
        child = await site.out("child")
    assert child.parent_id == parent.id


@both_engines
async def test_a_submit_made_while_no_bridge_runs_waits_in_the_stream(site: Site) -> None:
    async with site.bridge():
        pass
    await site.submit("j")
    async with site.bridge():
        await site.worker("job.once", succeed)
        assert (await site.ended("j")).succeeded


@pytest.mark.parametrize("jetstream", [False])
async def test_without_streams_a_submit_made_while_no_bridge_runs_is_lost(site: Site) -> None:
    await site.submit("lost")
    async with site.bridge():
        await site.worker("job.once", succeed)
        await site.submit("j")
        assert (await site.ended("j")).succeeded
    assert await site.find("lost") is None


@both_engines
@pytest.mark.usefixtures("short_redelivery")
@pytest.mark.req("A1")
async def test_a_bridge_killed_between_the_commit_and_the_acknowledgement_leaves_one_job(
    site: Site, url: str, tmp_path: Path
) -> None:
    async with site.bridge():
        # From now on there is a stream.
        pass
    await site.submit("j")
    first = Program(site, url, tmp_path, HOLDFAST_DIE_AT="bus.submitted")
    try:
        assert await asyncio.to_thread(first.wait) == -signal.SIGKILL, first.log()
        assert not (await site.job("j")).terminal
    finally:
        first.kill()
    ran: list[str] = []

    async def count(request: Any) -> Any:
        ran.append(request.job_id)
        return await succeed(request)

    async with site.bridge() as bridge:
        await site.worker("job.once", count)
        assert (await site.ended("j")).succeeded
        # The stream sends it again once its patience is over.
        await until(lambda: refused(bridge, "submit", "duplicate") == 1, "the redelivery")
    assert ran == ["j"]


async def test_a_store_that_is_away_for_a_while_loses_no_submit_without_streams(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    from holdfast.errors import StoreUnavailable

    real, failures = site.store.submit, 3

    async def fail(*args: Any, **more: Any) -> Any:
        nonlocal failures
        if failures:
            failures -= 1
            raise StoreUnavailable("away")
        return await real(*args, **more)

    monkeypatch.setattr(site.store, "submit", fail)
    async with site.bridge(settings_of()):
        await site.worker("job.once", succeed)
        await site.submit("j")
        assert (await site.ended("j")).succeeded
    assert failures == 0


def test_the_program_stops_in_order_and_says_what_is_missing(
    tmp_path: Path, url: str, server: Any
) -> None:
    class Place:
        """Only where the server is."""

    place: Any = Place()
    place.server = server
    program = Program(place, url, tmp_path)
    try:
        wait_until(lambda: "bridging" in program.log(), "the bridge to start")
        wait_until(lambda: _is_connected(server), "it to connect")
        program.process.send_signal(signal.SIGTERM)
        assert program.wait() == 0, program.log()
    finally:
        program.kill()
    (tmp_path / "empty.toml").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "--config", "empty.toml", "bridge", "--url", url],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 2
    assert "no topic leads to the bus 'main'" in " ".join(done.stderr.split())


def _is_connected(server: Any) -> bool:
    """Whether the bridge has made its stream: the server has it on disk."""
    return any((server.directory / "streams").glob("jetstream/*/streams/holdfast-main"))
