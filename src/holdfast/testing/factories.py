"""Arranges jobs for tests: ids, names, actors, terms and submissions with plain values."""

from __future__ import annotations

import secrets
import time
from hashlib import sha256
from itertools import count
from typing import Any
from uuid import UUID

from holdfast.ids import mint_token_id, mint_upload_id
from holdfast.lifecycle.execution_policy import Policy
from holdfast.lifecycle.record import Actor, Draft, JobId, NewJob
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.submission import Submission
from holdfast.lifecycle.submit import submit
from holdfast.lifecycle.times import SECOND
from holdfast.ports.models import Announcement, NewToken, NewWebhook
from holdfast.ports.uploads import NewUpload

GATEWAY = Actor(Role.GATEWAY, "api")
SCHEDULER = Actor(Role.SCHEDULER, "one")
RECONCILER = Actor(Role.RECONCILER, "one")
CONTROL = Actor(Role.CONTROL, "ann")
JANITOR = Actor(Role.JANITOR, "one")

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

PATIENT = Policy(max_attempts=6, timeout=HOUR)
"""Ordinary leases, tries to spare, and a time limit that an owner may report as passed."""
SHORT_CLAIM = Policy(max_attempts=6, lease=1, timeout=HOUR)
"""A claim's lease that has passed by the next statement: no test has to sleep or move a clock."""
SHORT_RUN = Policy(max_attempts=6, heartbeat=1, timeout=HOUR)
"""A live lease until the start, and one that has passed right after it."""


class JobIds:
    """Generates version 7 UUIDs that rise within a process, as `holdfast.ids` does."""

    def __init__(self) -> None:
        """Start below every time."""
        self._last = 0

    def mint(self) -> JobId:
        """Make the next id: milliseconds, then chance, and never lower than the one before."""
        bits = (time.time_ns() // 1_000_000) << 74 | secrets.randbits(74)
        self._last = max(bits, self._last + 1)
        high, low = self._last >> 62, self._last & (1 << 62) - 1
        millis, chance = high >> 12, high & 0xFFF
        return JobId(UUID(int=millis << 80 | 7 << 76 | chance << 64 | 2 << 62 | low))


job_ids = JobIds()
_numbers = count(1)


def fresh(prefix: str) -> str:
    """Make a name that no other call has made in this process."""
    return f"{prefix}-{next(_numbers)}"


def submission(**fields: Any) -> Submission:
    """Make a request for a job; fields that are not given have plain values."""
    plain: dict[str, Any] = {"id": job_ids.mint(), "task": "greet", "policy": PATIENT}
    return Submission(**plain | fields)


def new_job(**fields: Any) -> NewJob:
    """Decide a submit."""
    return submit(submission(**fields), GATEWAY)


def worker(name: str = "worker-1") -> Actor:
    """Return the actor that claims."""
    return Actor(Role.WORKER, name)


def announcement(**fields: Any) -> Announcement:
    """Make what a worker announces; fields that are not given have plain values."""
    plain: dict[str, Any] = {
        "name": "worker-1",
        "queues": ("default",),
        "tasks": ("greet",),
        "host": "here",
        "pid": 42,
        "concurrency": 8,
    }
    return Announcement(**plain | fields)


def new_token(**fields: Any) -> NewToken:
    """Make a token that never expires and is for everything, unless fields state otherwise."""
    plain: dict[str, Any] = {
        "id": mint_token_id(),
        "name": "deploy",
        "digest": sha256(b"secret").digest(),
        "role": "admin",
        "created_by": "control:ann",
    }
    return NewToken(**plain | fields)


def owner_of(job: Draft) -> Actor:
    """Return the actor that owns a job, or "nobody" if it has no owner."""
    return Actor(Role.OWNER, job.owner or "nobody", job.attempt)


def new_upload(**fields: Any) -> NewUpload:
    """Make an upload that lives for an hour, unless fields state otherwise."""
    plain: dict[str, Any] = {
        "id": mint_upload_id(),
        "tenant": "default",
        "created_by": "control:ann",
        "lifetime": HOUR,
    }
    return NewUpload(**plain | fields)


def new_webhook(**fields: Any) -> NewWebhook:
    """Make a webhook; fields that are not given have plain values."""
    plain: dict[str, Any] = {
        "id": job_ids.mint().hex,
        "tenant": "default",
        "url": "https://hooks.example/one",
        "secret": "whsec_c2VjcmV0",
        "created_by": "control:ann",
    }
    return NewWebhook(**plain | fields)
