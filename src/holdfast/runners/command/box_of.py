"""From a claimed job to the box that runs it. Pure."""

from __future__ import annotations

from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from holdfast.errors import ValidationError
from holdfast.lifecycle.command_spec import CommandSpec
from holdfast.ports.box import NO_NETWORK, Box, mounts_of
from holdfast.ports.models import Claimed
from holdfast.queries.box_files import attempt_directory
from holdfast.runners.command.agent_files import CONTEXT_FILE, TASK_FILE
from holdfast.runners.command.profiles import AgentProfile, fill_arguments
from holdfast.runners.command.secret_files import attempt_secrets

SHELL = ("/bin/sh", "-c")
SEARCH_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


class BoxPlace(Struct, frozen=True, kw_only=True):
    """Where boxes are on this host, and whose they are."""

    host: str
    store: str
    root: Path
    """The directory of this store's commands."""
    memory: Path | None = None
    """Where files in memory are for this host and store, if it has such a place."""

    @property
    def secrets(self) -> Path:
        """The directory of the secrets of all boxes."""
        return self.root / "secrets" if self.memory is None else self.memory


def read_spec(body: bytes | None) -> CommandSpec:
    """Read what a command job asks for; raise ValidationError if no host can run it."""
    try:
        spec = msgspec.json.decode(body or b"null", type=CommandSpec)
    except msgspec.MsgspecError as error:
        raise ValidationError(f"not a command: {error}") from error
    if spec.type == "worker" and spec.command is None and not spec.argv:
        raise ValidationError("a command needs `command` or `argv`")
    return spec


def make_box(claimed: Claimed, place: BoxPlace) -> Box:
    """Return the box of a claimed command; that of an agent as far as its profile does not matter.

    It has the name and the directories by which it is found, whatever its profile has become.
    """
    job, spec = claimed.job, read_spec(claimed.body)
    directory = attempt_directory(place.root, job.id, job.attempt)
    is_agent = spec.type == "agent"
    return Box(
        job=job.id,
        attempt=job.attempt,
        epoch=job.epoch or 1,
        host=place.host,
        store=place.store,
        type=spec.type,
        argv=() if is_agent else spec.argv or (*SHELL, spec.command or ""),
        image=spec.image,
        cpus=job.cpus or 1,
        memory_mb=job.memory_mb or 1024,
        env=_make_environment(claimed),
        work=directory / "work",
        files=claimed.created.files_id,
        work_writable=is_agent,
        artifacts=directory / "artifacts",
        inputs=directory / "inputs" if is_agent else None,
        secrets=attempt_secrets(place.secrets, job.id, job.attempt) if is_agent else None,
        exchange=directory / "exchange" if is_agent else None,
        directory=directory,
    )


def check_permission(claimed: Claimed, spec: CommandSpec, profile: AgentProfile) -> None:
    """Raise ValidationError for an agent that asks for what its profile does not allow."""
    tenant = claimed.job.tenant
    if profile.tenants is not None and tenant not in profile.tenants:
        raise ValidationError(f"profile: this host does not allow it to tenant {tenant!r}")
    if spec.image is not None and (profile.image is not None or profile.secrets):
        raise ValidationError("image: its profile has an image or secrets of its own; leave it out")
    refused = sorted(set(claimed.created.env) - set(profile.env_allowed))
    if refused:
        raise ValidationError(f"env: its profile does not allow {', '.join(refused)}")


def check_network(spec: CommandSpec, profile: AgentProfile | None, *, isolated: bool) -> None:
    """Raise ValidationError for a job that the rules allow no network, and that would get one."""
    given = profile is not None and profile.network != NO_NETWORK
    if spec.network == NO_NETWORK and (given or not isolated):
        whose = "its profile" if given else "a command that runs without a box"
        raise ValidationError(f"network: the rules allow it none, and {whose} has the host's")


def apply_profile(box: Box, profile: AgentProfile, spec: CommandSpec, *, mounted: bool) -> Box:
    """Return the box of an agent as its profile has it; a job gets no more than that allows.

    `mounted` is whether the box sees its directories at their own places.
    """
    box = replace(
        box,
        image=profile.image or spec.image,
        cpus=min(box.cpus, profile.cpus or box.cpus),
        memory_mb=min(box.memory_mb, 1024 * (profile.memory_gb or box.memory_mb)),
        env={**box.env, **profile.env},
        secrets=box.secrets if profile.secrets else None,
        network=profile.network,
    )
    return replace(box, argv=fill_arguments(profile.argv, _list_places(box, spec, mounted)))


def _list_places(box: Box, spec: CommandSpec, mounted: bool) -> dict[str, str]:
    """Return the values of the placeholders of a profile, as the agent sees them."""
    inputs = next(Path(one.target) if mounted else one.source for one in mounts_of(box))
    return {
        "task_file": f"{inputs / TASK_FILE}",
        "context_file": f"{inputs / CONTEXT_FILE}",
        "branch": spec.git_branch or "",
        "work": "/work" if mounted else f"{box.work}",
        "artifacts": "/artifacts" if mounted else f"{box.artifacts}",
    }


def _make_environment(claimed: Claimed) -> dict[str, str]:
    """Return a command's environment: its own variables, and the token of its attempt (B32)."""
    job, epoch = claimed.job, claimed.job.epoch or 1
    own = {
        "HOLDFAST_JOB_ID": job.public_id,
        "HOLDFAST_EPOCH": str(epoch),
        "HOLDFAST_ATTEMPT": str(job.attempt),
        "HOLDFAST_TOKEN": f"{job.id}:{epoch}:{job.attempt}",
    }
    return {"PATH": SEARCH_PATH, "HOME": "/tmp", **claimed.created.env, **own}
