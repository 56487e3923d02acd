"""What an app and a client offer alike: each method builds a request and carries it out.

Each method that is awaited has a twin for threads without an event loop, named `…_sync`.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Collection, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from typing_extensions import Unpack

from holdfast.app.sync import LoopSessions
from holdfast.flow.options import read_states
from holdfast.flow.submit import Inherited
from holdfast.flow.submit_command import CommandOptions
from holdfast.flow.submit_topic import TopicOptions
from holdfast.lifecycle.payload import decode_body
from holdfast.lifecycle.record import Job
from holdfast.lifecycle.states import State
from holdfast.operations.pack_directory import pack_directory
from holdfast.operations.policy_view import RequestedApproval
from holdfast.operations.request import Operations
from holdfast.operations.requests import (
    CancelJob,
    ExplainJob,
    ListApprovals,
    ListArtifacts,
    ListJobs,
    PauseQueue,
    ResumeQueue,
    SubmitJob,
    Which,
)
from holdfast.operations.save_artifacts import download_artifacts
from holdfast.operations.sequences import list_all_approvals
from holdfast.operations.upload_directory import upload_directory
from holdfast.operations.views import ArtifactList
from holdfast.ports.models import QueueStatus
from holdfast.queries.why.why import Why
from holdfast.tasks.call_request import (
    build_wanted_command,
    build_wanted_topic,
    read_correlation,
)
from holdfast.tasks.handles import JobHandle
from holdfast.tasks.tasks import Call
from holdfast.telemetry.tracing import submit_span

T = TypeVar("T")


class JobMethods(ABC):
    """Methods on jobs and queues, over the operations of an app or client."""

    _variable: ClassVar[str]
    """What users' code calls it; messages name it."""
    _sessions: LoopSessions[Any]

    @abstractmethod
    async def operations(self) -> Operations:
        """Return the operations on jobs, for the running loop."""

    @abstractmethod
    async def submit_many(self, calls: Sequence[Call]) -> list[JobHandle[Any]]:
        """Submit calls of any tasks together."""

    def inherited(self, active: str | None) -> Inherited:
        """Return what a job takes over that is submitted here: correlation and trace (B23)."""
        return Inherited(read_correlation(), active)

    @abstractmethod
    async def _operations_for(self, tenant: str | None) -> Operations:
        """Return the operations for a tenant; None: for its own."""

    @abstractmethod
    async def _on_submitted(self, job: JobHandle[Any]) -> None:
        """Do what follows a submit that was accepted."""

    @abstractmethod
    def _handle(self, record: Job) -> JobHandle[Any]:
        """Return the handle of a job."""

    @abstractmethod
    async def _which(self, job: str | UUID | JobHandle[Any]) -> Which:
        """Return what its operations know a job by."""

    def run_sync(self, work: Coroutine[Any, Any, T], instead: str) -> T:
        """Run a coroutine for a thread without an event loop, on a background loop."""
        return self._sessions.bridge.run(work, instead)

    async def close(self) -> None:
        """Send what was submitted, and close the connections; a later use opens them again."""
        await self._sessions.close()

    def close_sync(self) -> None:
        """Close what the `…_sync` methods opened; a later use opens it again."""
        self._sessions.bridge.close()

    def submit_many_sync(self, calls: Sequence[Call]) -> list[JobHandle[Any]]:
        """Submit calls together, in a thread without an event loop."""
        return self.run_sync(self.submit_many(calls), f"{self._variable}.submit_many(…)")

    async def submit_command(
        self, command: str | Sequence[str] | None = None, /, **options: Unpack[CommandOptions]
    ) -> JobHandle[dict[str, Any]]:
        """Submit a command: a text for `/bin/sh -c`, or a list of a program and its arguments.

        `type="agent"` submits an agent instead, with a `task` and a `git_branch`. The result of a
        command that succeeds is `{"exit_code": 0}`; JobFailed and the other errors of a job have
        the `exit_code` of one that does not.
        """
        type_ = str(options.get("type", "worker"))
        with submit_span(type_, str(options.get("queue", ""))) as active:
            wanted = build_wanted_command(command, options, self.inherited(active))
            operations = await self._operations_for(options.get("tenant"))
            made = await operations.do(SubmitJob(job=wanted))
        job = JobHandle[dict[str, Any]](made.job, self, decode_body, created=made.created)
        await self._on_submitted(job)
        return job

    def submit_command_sync(
        self, command: str | Sequence[str] | None = None, /, **options: Unpack[CommandOptions]
    ) -> JobHandle[dict[str, Any]]:
        """Submit a command, in a thread without an event loop."""
        work = self.submit_command(command, **options)
        return self.run_sync(work, f"{self._variable}.submit_command(…)")

    async def submit_topic(
        self, topic: str, args: Mapping[str, Any] | None = None, /, **options: Unpack[TopicOptions]
    ) -> JobHandle[Any]:
        """Submit a job to the pool of a topic: `submit_topic("job.chat.simple", {"text": "hi"})`.

        `[topics]` has the pool of each topic: the app's, or the server's for a client.
        """
        with submit_span(topic, topic) as active:
            wanted = build_wanted_topic(topic, args or {}, options, self.inherited(active))
            operations = await self._operations_for(options.get("tenant"))
            made = await operations.do(SubmitJob(job=wanted))
        job = JobHandle[Any](made.job, self, decode_body, created=made.created)
        await self._on_submitted(job)
        return job

    def submit_topic_sync(
        self, topic: str, args: Mapping[str, Any] | None = None, /, **options: Unpack[TopicOptions]
    ) -> JobHandle[Any]:
        """Submit a job to the pool of a topic, in a thread without an event loop."""
        work = self.submit_topic(topic, args, **options)
        return self.run_sync(work, f"{self._variable}.submit_topic(…)")

    async def upload(
        self,
        directory: str | Path,
        *,
        exclude: Sequence[str] = (),
        tenant: str | None = None,
    ) -> str:
        """Upload a directory and return its id, for the `files_id` of commands and agents.

        `exclude` has patterns of names or paths, such as `.git` or `*.pyc`. If it fails on the way,
        nothing is left of it.
        """
        archive = await asyncio.to_thread(pack_directory, Path(directory), exclude=exclude)
        operations = await self._operations_for(tenant)
        return (await upload_directory(operations, archive)).id

    def upload_sync(
        self,
        directory: str | Path,
        *,
        exclude: Sequence[str] = (),
        tenant: str | None = None,
    ) -> str:
        """Upload a directory, in a thread without an event loop."""
        work = self.upload(directory, exclude=exclude, tenant=tenant)
        return self.run_sync(work, f"{self._variable}.upload(…)")

    async def cancel(
        self, job: str | UUID | JobHandle[Any], *, hard: bool = False, reason: str | None = None
    ) -> JobHandle[Any]:
        """Cancel a job; see `JobHandle.cancel`."""
        if isinstance(job, JobHandle):
            await job.cancel(hard=hard, reason=reason)
            return job
        request = CancelJob(job=await self._which(job), hard=hard, reason=reason)
        return self._handle(await (await self.operations()).do(request))

    def cancel_sync(
        self, job: str | UUID | JobHandle[Any], *, hard: bool = False, reason: str | None = None
    ) -> JobHandle[Any]:
        """Cancel a job, in a thread without an event loop."""
        work = self.cancel(job, hard=hard, reason=reason)
        return self.run_sync(work, f"{self._variable}.cancel(…)")

    async def why(self, job: str | UUID | JobHandle[Any]) -> Why:
        """Return why a job is in its state: a reason with its facts."""
        request = ExplainJob(job=await self._which(job))
        return await (await self.operations()).do(request)

    def why_sync(self, job: str | UUID | JobHandle[Any]) -> Why:
        """Return why a job is in its state, in a thread without an event loop."""
        return self.run_sync(self.why(job), f"{self._variable}.why(…)")

    async def approvals(self, *, limit: int | None = None) -> list[RequestedApproval]:
        """List the jobs that await the approval of people, by rule, the oldest first."""
        found = list_all_approvals(await self.operations(), ListApprovals(), limit)
        return [one async for one in found]

    def approvals_sync(self, *, limit: int | None = None) -> list[RequestedApproval]:
        """List the jobs that await approvals, in a thread without an event loop."""
        return self.run_sync(self.approvals(limit=limit), f"{self._variable}.approvals(…)")

    async def artifacts(self, job: str | UUID | JobHandle[Any]) -> ArtifactList:
        """List the files that an ended command left in /artifacts."""
        return await (await self.operations()).do(ListArtifacts(job=await self._which(job)))

    def artifacts_sync(self, job: str | UUID | JobHandle[Any]) -> ArtifactList:
        """List the artifacts of a command, in a thread without an event loop."""
        return self.run_sync(self.artifacts(job), f"{self._variable}.artifacts(…)")

    async def download_artifacts(
        self,
        job: str | UUID | JobHandle[Any],
        directory: str | Path,
        paths: Collection[str] = (),
        *,
        overwrite: bool = False,
    ) -> list[Path]:
        """Save artifacts below a directory; see `JobHandle.download_artifacts`."""
        operations, which = await self.operations(), await self._which(job)
        return await download_artifacts(operations, which, directory, paths, overwrite=overwrite)

    def download_artifacts_sync(
        self,
        job: str | UUID | JobHandle[Any],
        directory: str | Path,
        paths: Collection[str] = (),
        *,
        overwrite: bool = False,
    ) -> list[Path]:
        """Save artifacts below a directory, in a thread without an event loop."""
        work = self.download_artifacts(job, directory, paths, overwrite=overwrite)
        return self.run_sync(work, f"{self._variable}.download_artifacts(…)")

    async def pause(self, queue: str, *, reason: str | None = None) -> QueueStatus:
        """Stop claims from a queue, for all tenants."""
        return await (await self.operations()).do(PauseQueue(queue=queue, reason=reason))

    def pause_sync(self, queue: str, *, reason: str | None = None) -> QueueStatus:
        """Stop claims from a queue, in a thread without an event loop."""
        return self.run_sync(self.pause(queue, reason=reason), f"{self._variable}.pause(…)")

    async def resume(self, queue: str, *, reason: str | None = None) -> QueueStatus:
        """Allow claims from a queue again."""
        return await (await self.operations()).do(ResumeQueue(queue=queue, reason=reason))

    def resume_sync(self, queue: str, *, reason: str | None = None) -> QueueStatus:
        """Allow claims from a queue again, in a thread without an event loop."""
        return self.run_sync(self.resume(queue, reason=reason), f"{self._variable}.resume(…)")


def read_filters(
    *,
    state: State | str | Sequence[State | str],
    parent: Which | None,
    labels: Mapping[str, str] | None,
    **others: Any,
) -> ListJobs:
    """Return the request for a list of jobs as `jobs(…)` is called."""
    return ListJobs(
        state=read_states(state),
        parent=None if parent is None else str(parent),
        label=tuple(f"{name}={text}" for name, text in (labels or {}).items()),
        **others,
    )
