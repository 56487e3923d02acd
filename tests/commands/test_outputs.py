"""What a command prints and leaves is kept before its end is on record (B29, D13)."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterable, AsyncIterator, Callable, Collection
from pathlib import Path
from typing import Any

import pytest

from holdfast.app.app import Holdfast
from holdfast.blobs.bound import find_marker
from holdfast.errors import BlobsUnavailable, Refused, RuntimeTrouble
from holdfast.lifecycle.record import Facts
from holdfast.lifecycle.states import State
from holdfast.lifecycle.times import SECOND, After
from holdfast.operations.requests import GetLogs, ListArtifacts
from holdfast.ports.blobs import BlobEntry, Blobs, OpenBlobs, StoredBlob
from holdfast.ports.box import LOG_FILE, TRUNCATED_FILE, Box
from holdfast.ports.store import Store
from holdfast.runners.command import box_run, outputs
from holdfast.runners.command.collect_artifacts import ArtifactLimits
from holdfast.runners.command.runner import CommandRunner
from holdfast.runners.sandbox.boxes import SandboxBoxes
from holdfast.tasks.handles import JobHandle
from holdfast.wiring import plan_blobs
from tests.commands.support import LIMIT_SECONDS, RUNS, CommandPlace, gone, runs
from tests.commands.test_leases import SHORT
from tests.crashes.outages import locked
from tests.support.small_disk import fill, small_disk

LEAVES = RUNS + "echo ready; printf made > ${HOLDFAST_ARTIFACTS:-/artifacts}/file; "


PRINTED = 300_000
KEEPING = ("log.kept", "artifacts.put", "artifacts.kept")
"""The points between the end of a box and that of its job."""


class GatedBlobs:
    """A place of blobs that refuses to take anything while it is closed."""

    def __init__(self, inner: Blobs) -> None:
        self.inner = inner
        self.closed = False
        self.refused = 0

    async def put(self, key: str, data: bytes | AsyncIterable[bytes]) -> StoredBlob:
        if self.closed:
            self.refused += 1
            raise BlobsUnavailable("closed by the test")
        return await self.inner.put(key, data)

    def read(self, key: str, *, start: int = 0, end: int | None = None) -> AsyncIterator[bytes]:
        return self.inner.read(key, start=start, end=end)

    async def size(self, key: str) -> int | None:
        return await self.inner.size(key)

    def list(self, prefix: str) -> AsyncIterator[BlobEntry]:
        return self.inner.list(prefix)

    async def delete(self, keys: Collection[str]) -> None:
        await self.inner.delete(keys)

    async def room(self) -> int | None:
        return await self.inner.room()


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Callable[[], GatedBlobs]:
    """Put a gate before the blobs of workers in this process."""
    made: list[GatedBlobs] = []

    def gated(place: str | None, directory: Path | None = None, **more: Any) -> OpenBlobs:
        async def open_gated(store: Store) -> Blobs:
            made.append(GatedBlobs(await plan_blobs(place, directory, **more)(store)))
            return made[-1]

        return open_gated

    monkeypatch.setattr("holdfast.app.app.plan_blobs", gated)
    return lambda: made[-1]


async def facts_of_end(place: CommandPlace, job: JobHandle[Any]) -> Facts:
    return next(event.facts for event in await place.events(job) if event.ends)


async def read_log(place: CommandPlace, job: JobHandle[Any]) -> list[str]:
    log = await (await place.app.operations()).do(GetLogs(job=job.id))
    return [line.message for line in log.lines]


async def list_files(place: CommandPlace, job: JobHandle[Any]) -> list[str]:
    kept = await (await place.app.operations()).do(ListArtifacts(job=job.id))
    return [one.path for one in kept.artifacts]


async def keeping(gate: GatedBlobs) -> None:
    async with asyncio.timeout(LIMIT_SECONDS):
        while gate.refused < 2:  # noqa: ASYNC110  a count
            await asyncio.sleep(0.02)


@pytest.mark.req("B29", "D13")
async def test_an_end_on_record_has_its_log_and_artifacts(place: CommandPlace) -> None:
    async with place.worker():
        job = await place.submit(LEAVES + "echo done")
        assert (await place.ended(job)).state is State.SUCCEEDED
    facts = await facts_of_end(place, job)
    assert facts.log is not None
    assert facts.artifacts is not None
    assert await read_log(place, job) == ["ready", "done"]
    assert await list_files(place, job) == ["file", "runs"]


async def test_a_command_that_failed_or_was_stopped_has_its_outputs_too(
    place: CommandPlace,
) -> None:
    async with place.worker():
        failed = await place.submit(LEAVES + "exit 3")
        late = await place.submit(LEAVES + "sleep 1000", timeout_seconds=6)
        cancelled = await place.submit(LEAVES + "sleep 1000")
        await place.running(cancelled)
        await cancelled.cancel()
        states = [(await place.ended(job)).state for job in (failed, late, cancelled)]
    assert states == [State.FAILED, State.TIMED_OUT, State.CANCELLED]
    for job in (failed, late, cancelled):
        assert (await facts_of_end(place, job)).artifacts is not None
        assert await read_log(place, job) == ["ready"]
        assert await list_files(place, job) == ["file", "runs"]


@pytest.mark.parametrize("runner", ["sandbox", "podman"], indirect=True)
@pytest.mark.parametrize("point", ["box.exited", *KEEPING, "finish.posted"])
async def test_a_worker_that_dies_while_outputs_are_kept_loses_none(
    place: CommandPlace, point: str
) -> None:
    job = await place.submit(LEAVES)
    assert await gone(place.start_worker(die_at=point)) == -signal.SIGKILL
    async with place.worker():
        assert (await place.ended(job)).state is State.SUCCEEDED
    assert await runs(place, job) == 1
    assert await read_log(place, job) == ["ready"]
    assert await list_files(place, job) == ["file", "runs"]


@pytest.mark.parametrize("runner", ["sandbox"], indirect=True)
class TestWhileBlobsAreAway:
    async def test_the_end_waits_for_its_outputs(
        self, place: CommandPlace, gate: Callable[[], GatedBlobs]
    ) -> None:
        async with place.worker():
            gate().closed = True
            job = await place.submit(LEAVES)
            await keeping(gate())
            assert (await place.read(job)).state is State.RUNNING
            gate().closed = False
            assert (await place.ended(job)).state is State.SUCCEEDED
        assert await list_files(place, job) == ["file", "runs"]

    async def test_a_command_does_not_succeed_without_them(
        self,
        place: CommandPlace,
        gate: Callable[[], GatedBlobs],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(outputs.OutputKeeper.keep, "__defaults__", (0.5,))
        async with place.worker():
            gate().closed = True
            job = await place.submit(LEAVES)
            record = await place.ended(job)
        assert (record.state, record.error_code) == (State.FAILED, "outputs_not_kept")
        assert record.exit_code == 0

    async def test_neither_cancel_nor_time_limit_ends_what_has_ended(
        self, place: CommandPlace, gate: Callable[[], GatedBlobs]
    ) -> None:
        async with place.worker():
            gate().closed = True
            job = await place.submit(LEAVES, timeout_seconds=5)
            await keeping(gate())
            await job.cancel(hard=True)
            await place.passed((await place.read(job)).timeout_at)
            await asyncio.sleep(1)
            assert not any(event.facts.kill for event in await place.events(job)), (
                "it was taken for one that cannot be killed"
            )
            gate().closed = False
            assert (await place.ended(job)).state is State.SUCCEEDED

    async def test_a_cancel_is_on_record_without_them(
        self,
        place: CommandPlace,
        gate: Callable[[], GatedBlobs],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(box_run, "STOPPED_KEEP_SECONDS", 0.5)
        async with place.worker():
            job = await place.submit(LEAVES + "sleep 1000")
            await place.running(job)
            gate().closed = True
            await job.cancel(hard=True)
            assert (await place.ended(job)).state is State.CANCELLED
        assert (await facts_of_end(place, job)).artifacts is None


@pytest.mark.parametrize("runner", ["sandbox"], indirect=True)
async def test_a_command_that_leaves_far_too_much_is_killed(place: CommandPlace) -> None:
    small = ArtifactLimits(files=3, file_bytes=100, total_bytes=200)
    async with place.worker(artifacts=small):
        job = await place.submit(LEAVES + "head -c 100000 /dev/zero > /artifacts/big; sleep 1000")
        record = await place.ended(job)
    assert (record.state, record.error_code) == (State.FAILED, "artifacts_too_large")
    assert await read_log(place, job) == ["ready"]


@pytest.mark.parametrize("runner", ["sandbox"], indirect=True)
async def test_what_a_lost_box_printed_is_kept_to_its_last_line(place: CommandPlace) -> None:
    job = await place.submit(LEAVES + "echo last; sleep 1000")
    process = place.start_worker()
    await place.running(job, "last")
    process.send_signal(signal.SIGKILL)
    await gone(process)
    async with place.worker():
        assert (await place.ended(job)).error_code == "container_lost_on_recovery"
    assert await read_log(place, job) == ["ready", "last"]
    assert (await facts_of_end(place, job)).log is not None


@pytest.mark.parametrize("runner", ["sandbox"], indirect=True)
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_no_artifact_is_published_of_an_attempt_whose_lease_is_lost(
    place: CommandPlace,
) -> None:
    async with place.worker():
        job = await place.submit(LEAVES + "sleep 1000", policy=SHORT)
        await place.running(job)
        async with locked(place.url):
            await place.dead(job)
        await place.ended(job)
    assert (await facts_of_end(place, job)).artifacts is None
    with pytest.raises(Refused, match="could not be kept"):
        await list_files(place, job)


@pytest.mark.parametrize("runner", ["sandbox"], indirect=True)
class TestWhileOutputsAreKept:
    async def test_a_deadline_that_passes_does_not_end_what_has_ended(
        self, place: CommandPlace, gate: Callable[[], GatedBlobs]
    ) -> None:
        async with place.worker():
            gate().closed = True
            job = await place.submit(LEAVES, policy=SHORT, deadline_at=After(2 * SECOND))
            await keeping(gate())
            record = await place.read(job)
            await place.passed((record.deadline_at or 0) + record.policy.running_lease)
            await asyncio.sleep(1)
            gate().closed = False
            assert (await place.ended(job)).state is State.SUCCEEDED

    async def test_the_end_of_the_worker_does_not_lose_how_it_ended(
        self, place: CommandPlace, gate: Callable[[], GatedBlobs]
    ) -> None:
        async with place.worker():
            gate().closed = True
            job = await place.submit(LEAVES + "exit 3")
            await keeping(gate())
        record = await place.read(job)
        assert (record.state, record.exit_code) == (State.FAILED, 3)

    async def test_it_is_not_taken_for_one_that_cannot_be_killed(
        self,
        place: CommandPlace,
        gate: Callable[[], GatedBlobs],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        monkeypatch.setattr(CommandRunner, "kill_patience_seconds", 0.2)
        async with place.worker():
            job = await place.submit(LEAVES + "sleep 1000")
            await place.running(job)
            gate().closed = True
            await job.cancel(hard=True)
            await keeping(gate())
            await asyncio.sleep(1)
            gate().closed = False
            assert (await place.ended(job)).state is State.CANCELLED
        kills = [event.facts.kill for event in await place.events(job)]
        assert "unkillable" not in kills


@pytest.mark.parametrize("runner", ["sandbox"], indirect=True)
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
class TestFilesOfAttempts:
    async def test_artifacts_that_could_not_be_kept_stay_on_the_host(
        self, place: CommandPlace
    ) -> None:
        small = ArtifactLimits(file_bytes=3)
        async with place.worker(artifacts=small):
            job = await place.submit(LEAVES)
            record = await place.ended(job)
            await place.cleared()
        assert (record.state, record.error_code) == (State.FAILED, "artifacts_too_large")
        assert (await place.files(job) / "artifacts" / "file").read_text() == "made"
        with pytest.raises(Refused, match="could not be kept"):
            await list_files(place, job)

    async def test_a_box_that_left_nothing_needs_no_files(self, place: CommandPlace) -> None:
        async with place.worker():
            job = await place.submit("true")
            await place.ended(job)
            async with asyncio.timeout(LIMIT_SECONDS):
                while (await place.files(job)).exists():  # noqa: ASYNC110  a directory
                    await asyncio.sleep(0.02)
        assert await list_files(place, job) == []

    async def test_a_box_that_cannot_be_made_leaves_no_copy_of_its_files(
        self, place: CommandPlace, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tried: list[Path] = []

        async def fail(self: SandboxBoxes, box: Box) -> None:
            (box.work / "large").write_text("copy")
            tried.append(box.work)
            raise RuntimeTrouble("by the test")

        monkeypatch.setattr(SandboxBoxes, "prepare", fail)
        async with place.worker(pause_seconds=0.1):
            job = await place.submit("true")
            async with asyncio.timeout(LIMIT_SECONDS):
                while len(tried) < 2:  # noqa: ASYNC110  a list
                    await asyncio.sleep(0.02)
            await job.cancel()
            await place.ended(job)
        assert not any(work.exists() for work in tried)


@pytest.mark.parametrize("runner", ["sandbox"], indirect=True)
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_a_worker_starts_while_the_place_of_blobs_is_away(
    place: CommandPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    away = True

    async def find(blobs: Blobs) -> str | None:
        if away:
            raise BlobsUnavailable("by the test")
        return await find_marker(blobs)

    monkeypatch.setattr("holdfast.blobs.bound.find_marker", find)
    async with place.worker():
        job = await place.submit(LEAVES)
        await place.until(job, lambda record: record.running)
        away = False
        assert (await place.ended(job)).state is State.SUCCEEDED


@pytest.mark.parametrize("runner", ["sandbox"], indirect=True)
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_outputs_wait_for_space_where_they_are_kept(place: CommandPlace) -> None:
    with small_disk() as disk:
        place.app.blobs = str(disk / "blobs")
        async with place.worker():
            # The place is made, and then nothing more fits.
            assert (await place.ended(await place.submit("true"))).state is State.SUCCEEDED
            ballast = fill(disk)
            job = await place.submit(LEAVES + "head -c 2000000 /dev/zero > /artifacts/large")
            async with asyncio.timeout(LIMIT_SECONDS):
                while not (await place.files(job) / "exit").exists():  # noqa: ASYNC110  a file
                    await asyncio.sleep(0.02)
            await asyncio.sleep(1)
            assert (await place.read(job)).state is State.RUNNING
            ballast.unlink()
            assert (await place.ended(job)).state is State.SUCCEEDED
        async with Holdfast(place.url, blobs=place.app.blobs) as reader:
            kept = await (await reader.operations()).do(ListArtifacts(job=job.id))
        assert [one.path for one in kept.artifacts] == ["file", "large", "runs"]


@pytest.mark.parametrize("runner", ["sandbox", "process"], indirect=True)
@pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
async def test_a_full_disk_cuts_the_log_of_a_command_and_nothing_else(
    place: CommandPlace, tmp_path: Path
) -> None:
    waits = "A=${HOLDFAST_ARTIFACTS:-/artifacts}; touch $A/wait; echo before; "
    waits += "while [ -e $A/wait ]; do sleep 0.02; done; "
    with small_disk() as disk:
        for directory in (disk, disk.parent):
            # A box's own user passes through these.
            directory.chmod(0o711)
        place.app.blobs = str(tmp_path / "blobs")
        async with place.worker(directory=str(disk)):
            job = await place.submit(waits + f"head -c {PRINTED} /dev/zero | tr '\\0' x; exit 3")
            [log] = await _found(disk, LOG_FILE, holding=b"before")
            ballast = fill(disk)
            (log.parent / "artifacts" / "wait").unlink()
            await _found(disk, TRUNCATED_FILE)
            ballast.unlink()
            ended = await place.ended(job)
            assert (ended.state, ended.exit_code) == (State.FAILED, 3)
        async with Holdfast(place.url, blobs=place.app.blobs) as reader:
            kept = await (await reader.operations()).do(GetLogs(job=job.id))
        assert kept.truncated
        assert [line.message for line in kept.lines][:1] == ["before"]
        assert sum(len(line.message) for line in kept.lines) < PRINTED


async def _found(root: Path, name: str, *, holding: bytes = b"") -> list[Path]:
    """Wait until there is a file of this name that holds some bytes."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            if found := await asyncio.to_thread(_list_holding, root, name, holding):
                return found
            await asyncio.sleep(0.02)


def _list_holding(root: Path, name: str, holding: bytes) -> list[Path]:
    return [file for file in root.rglob(name) if holding in file.read_bytes()]
