"""The runner of commands: an attempt is a box that is prepared, started, watched and killed.

Here is what a worker asks of any runner, and what is made ready for a box; `box_run` has the life
of one from its start to its end.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.crash_points import reach
from holdfast.errors import (
    BlobsUnavailable,
    NoSuchTask,
    ValidationError,
)
from holdfast.flow.finish import end_after_exit
from holdfast.lifecycle.command_spec import (
    CAPABILITY,
    DEFAULT_PROFILE,
    KINDS,
    profile_capability,
    runner_capability,
)
from holdfast.lifecycle.commands import Complete, EndOfRun
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor, Job, JobId, KeptOutput
from holdfast.lifecycle.routes import AGENT_PREFIX
from holdfast.lifecycle.states import Kind
from holdfast.lifecycle.terms import TaskTerms
from holdfast.lifecycle.times import SECOND
from holdfast.ports.blobs import Blobs
from holdfast.ports.box import (
    HOST_NETWORK,
    NO_NETWORK,
    Box,
    Boxes,
    BoxExit,
    BoxState,
    Sight,
)
from holdfast.ports.models import Claimed
from holdfast.ports.runner import Attempt
from holdfast.runners.command.agent_exchange import AgentExchange
from holdfast.runners.command.agent_files import AgentFiles, choose_files, make_files
from holdfast.runners.command.attempt_files import remove_tree
from holdfast.runners.command.box_of import (
    BoxPlace,
    apply_profile,
    check_network,
    check_permission,
    make_box,
    read_spec,
)
from holdfast.runners.command.box_run import (
    SHUTDOWN_GRACE_SECONDS,
    BoxRun,
    cancel_and_wait,
    finish_despite_cancel,
)
from holdfast.runners.command.collect_artifacts import DEFAULT_LIMITS, ArtifactLimits
from holdfast.runners.command.exit_note import look_at
from holdfast.runners.command.files import make_directories
from holdfast.runners.command.makers import BoxMakers
from holdfast.runners.command.options import GRACE_SECONDS, PAUSE_SECONDS
from holdfast.runners.command.outputs import OutputKeeper
from holdfast.runners.command.profiles import AgentProfile, Secret
from holdfast.runners.command.secret_files import read_secret_values, remove_secrets
from holdfast.runners.command.unpack import unpack_upload

log = logging.getLogger(__name__)

KILL_PATIENCE_SECONDS = 15.0
"""How long a killed box may take to be proven empty: a runtime may have to be waited for."""
WORKER_TYPE, AGENT_TYPE = KINDS


class CommandTerms(Struct, frozen=True):
    """What a job names: the runtime that runs it. Its terms are its own."""

    policy: Policy
    boxes: Boxes
    grace: float = GRACE_SECONDS
    profile: AgentProfile | None = None
    """How an agent is run; None for a command, and for an agent that runs already."""

    @property
    def network(self) -> str | None:
        """The network that it gets, for its record; None if it gets none."""
        if self.profile is None:
            return None
        given = self.profile.network if self.boxes.isolated else HOST_NETWORK
        return None if given == NO_NETWORK else given

    def grace_seconds(self, reason: str) -> float:
        """Return the time between SIGTERM and SIGKILL; a lost lease leaves none."""
        if reason == "lease_lost":
            return 0.0
        return min(self.grace, SHUTDOWN_GRACE_SECONDS) if reason == "shutdown" else self.grace

    @property
    def compensated_steps(self) -> frozenset[str]:
        """Raise: a command has no steps."""
        raise NoSuchTask("a command cannot be compensated")


class CommandRunner:
    """Runs commands in boxes. Implements `SurvivingRunner`."""

    kill_patience_seconds = KILL_PATIENCE_SECONDS
    observes_exits = True

    def __init__(
        self,
        boxes: Sequence[Boxes],
        place: BoxPlace,
        blobs: Blobs,
        *,
        artifacts: ArtifactLimits = DEFAULT_LIMITS,
        agents: Mapping[str, AgentProfile] = {},
        secrets: Mapping[str, Secret] = {},
        grace_seconds: float = GRACE_SECONDS,
        pause_seconds: float = PAUSE_SECONDS,
    ) -> None:
        """Run commands with one of these; the first unless a job insists on another.

        Agents are run by their profiles, with the secrets that these name.
        """
        self._profiles = agents
        self._secrets = secrets
        self._makers = BoxMakers(boxes)
        self._place = place
        self._blobs = blobs
        self._artifacts = artifacts
        self._grace = grace_seconds
        self._pause = pause_seconds
        self.made: set[tuple[JobId, int]] = set()
        """Attempts whose boxes were made or taken over here, and are not removed yet."""

    @property
    def capabilities(self) -> frozenset[str]:
        """What a worker with this runner can do."""
        profiles = map(profile_capability, self._profiles)
        return frozenset({CAPABILITY, *map(runner_capability, self._makers.names), *profiles})

    def offers(self) -> Sequence[str]:
        """Return the types that it runs: agents need a profile."""
        return (WORKER_TYPE, AGENT_TYPE) if self._profiles else (WORKER_TYPE,)

    def published(self) -> Sequence[TaskTerms]:
        """Return nothing: every command comes with its own terms."""
        return ()

    def find(self, job: Job) -> CommandTerms | None:
        """Return the runtime that a job insists on, or the default one, and an agent's profile.

        What runs already needs no profile: it continues as it was made.
        """
        boxes = self._makers.choose(job)
        if boxes is None or KINDS.get(job.task) is not job.kind:
            return None
        if job.kind is not Kind.AGENT or job.running:
            return CommandTerms(job.policy, boxes, self._grace)
        profile = self._profile_of(job)
        if profile is None:
            return None
        return CommandTerms(_limit_time(job.policy, profile), boxes, self._grace, profile)

    def _profile_of(self, job: Job) -> AgentProfile | None:
        named = [need for need in job.needs if need.startswith(AGENT_PREFIX)]
        return self._profiles.get(named[0].removeprefix(AGENT_PREFIX)) if len(named) == 1 else None

    def bind(self, terms: CommandTerms, attempt: Attempt) -> BoxRun:
        """Read the job's body."""
        claimed = attempt.claimed
        box = make_box(claimed, self._place)
        spec, profile = read_spec(claimed.body), terms.profile
        check_network(spec, profile, isolated=terms.boxes.isolated)
        if claimed.job.kind is not Kind.AGENT:
            return self._make_run(box, terms)
        if profile is not None:
            if self._profiles.get(spec.profile or DEFAULT_PROFILE) is not profile:
                raise ValidationError("profile: it is not the one that the job needs")
            check_permission(claimed, spec, profile)
            box = apply_profile(box, profile, spec, mounted=terms.boxes.isolated)
        files = choose_files(spec, profile, self._secrets)
        return self._make_run(box, terms, files=files, exchange=AgentExchange(box, attempt))

    def _make_run(
        self,
        box: Box,
        terms: CommandTerms,
        *,
        files: AgentFiles | None = None,
        exchange: AgentExchange | None = None,
    ) -> BoxRun:
        return BoxRun(
            box=box,
            boxes=terms.boxes,
            makers=self._makers,
            make_keeper=self._keeper_of,
            pause_seconds=self._pause,
            files=files,
            exchange=exchange,
        )

    def prepare(self, call: BoxRun) -> Coroutine[Any, Any, None]:
        """Make the box; its command does not run yet."""
        return self._prepare(call)

    async def _prepare(self, call: BoxRun) -> None:
        making = asyncio.create_task(self._make(call))
        try:
            await asyncio.shield(making)
        except asyncio.CancelledError:
            # Nothing runs in a box that was not started. It is waited for a while, so that it is
            # whole when it is removed; not for ever, because a runtime may hang.
            await finish_despite_cancel(self._await_or_abandon(making))
            raise
        reach("box.created")
        if call.stopped:
            raise asyncio.CancelledError

    async def _make(self, call: BoxRun) -> None:
        box = call.box
        self.made.add((box.job, box.attempt))
        await asyncio.to_thread(make_directories, box, call.boxes.name)
        try:
            await self._fill(call)
            await call.boxes.prepare(box)
        except BaseException:
            # It may be tried again every few seconds: no copy of its files is left each time.
            await asyncio.to_thread(remove_tree, box.work)
            raise

    async def _fill(self, call: BoxRun) -> None:
        """Write what the command finds in its box."""
        box = call.box
        if box.files is not None:
            await unpack_upload(self._blobs, box.files, box.work, owner=None)
            reach("files.unpacked")
        if call.files is not None:
            await asyncio.to_thread(make_files, box, call.files)
            reach("agent.files")

    async def _await_or_abandon(self, task: asyncio.Task[Any]) -> None:
        await asyncio.wait([task], timeout=self._pause)
        await cancel_and_wait(task)

    def run(self, call: BoxRun) -> Coroutine[Any, Any, BoxExit]:
        """Start the box and watch it until its command has ended."""
        return call.start_and_watch()

    def resume(self, call: BoxRun) -> Coroutine[Any, Any, BoxExit]:
        """Watch a box that another worker of this host made."""
        self.made.add((call.box.job, call.box.attempt))
        return call.find_and_watch()

    def stop(self, call: BoxRun, reason: str) -> None:
        """Send SIGTERM to the command; before its start: never start it."""
        call.stop(reason)

    def kill(self, call: BoxRun) -> None:
        """Take note that it is killed."""
        call.kill()

    def is_keeping(self, call: BoxRun) -> bool:
        """Return whether its outputs are being kept."""
        return call.is_keeping()

    def survives(self, call: BoxRun) -> bool:
        """Return whether the box outlives its worker."""
        return call.boxes.survives

    def leave(self, call: BoxRun) -> None:
        """Let the box continue."""
        call.left = True

    def add_outputs(self, call: BoxRun, end: EndOfRun) -> EndOfRun:
        """Return the end with what was kept."""
        if call.outputs is None:
            return end
        return replace(end, log=call.outputs.log, artifacts=call.outputs.artifacts)

    def collect(self, call: BoxRun, value: object, actor: Actor) -> Complete:
        """Return the success of a command whose exit code 0 was observed."""
        assert isinstance(value, BoxExit)
        end = end_after_exit(actor, value)
        assert isinstance(end, Complete)
        return end

    async def look(self, claimed: Claimed) -> Sight:
        """Look at the box of a job that another worker of this host owned.

        Raise RuntimeTrouble where nothing is known of it.
        """
        try:
            box = make_box(claimed, self._place)
        except ValidationError:
            # It was refused before anything was made for it.
            return Sight(BoxState.ABSENT)
        found = await self._makers.find_maker(box)
        if found is None:
            return Sight(BoxState.ABSENT)
        boxes, made = found
        return await look_at(boxes, made)

    async def salvage(self, claimed: Claimed) -> KeptOutput | None:
        """Kill what is left of a box that is lost, and keep its log; None if that cannot be had.

        Raise RuntimeTrouble or BoxUnkillable while something of it may run.
        """
        try:
            found = await self._makers.find_maker(make_box(claimed, self._place))
        except ValidationError:
            return None
        if found is None:
            return None
        boxes, box = found
        await boxes.kill(box)
        outputs = self._keeper_of(box)
        try:
            await outputs.keep_log(SHUTDOWN_GRACE_SECONDS)
        except (BlobsUnavailable, OSError) as error:
            log.warning("%s: the end of its log is lost: %s", box.name, error)
        return outputs.log

    def _keeper_of(self, box: Box) -> OutputKeeper:
        return OutputKeeper(
            blobs=self._blobs,
            box=box,
            secrets=read_secret_values(box),
            limits=self._artifacts,
            pause_seconds=self._pause,
        )

    async def remove(self, job: JobId, attempt: int) -> None:
        """Remove a box that has ended, whatever made it."""
        await self._makers.remove(job, attempt)
        await asyncio.to_thread(remove_secrets, self._place.secrets, job, attempt)
        self.made.discard((job, attempt))
        reach("box.removed")

    async def close(self) -> None:
        """Let go; boxes that were left to continue do."""
        await self._makers.close()


def _limit_time(policy: Policy, profile: AgentProfile) -> Policy:
    """Return the terms of an agent: its time is what its profile allows, if that is less."""
    if profile.timeout_minutes is None:
        return policy
    most = profile.timeout_minutes * 60 * SECOND
    return replace(policy, timeout=min(policy.timeout or most, most))
