"""Arranges jobs for tests: ids, names, actors, terms and submissions with plain values."""

from __future__ import annotations

import secrets
import time
from hashlib import sha256
from itertools import count
from typing import Any
from uuid import UUID

from holdfast.identity import mint_token_id
from holdfast.lifecycle.job import Actor, Draft, JobId, NewJob
from holdfast.lifecycle.policy import Policy
from holdfast.lifecycle.states import Role
from holdfast.lifecycle.submit import Submission, submit
from holdfast.lifecycle.times import SECOND
from holdfast.ports import (
    Announcement,
    NewToken,
    NewWebhook,
)

GATEWAY = Actor(Role.GATEWAY, "api")
SCHEDULER = Actor(Role.SCHEDULER, "one")
RECONCILER = Actor(Role.RECONCILER, "one")
CONTROL = Actor(Role.CONTROL, "ann")
JANITOR = Actor(Role.JANITOR, "one")

MINUTE = 60 * SECOND
HOUR = 60 * MINUTE

PATIENT = Policy(max_attempts=6, timeout=HOUR)
"""Ordinary leases, tries to spare, and a time limit that an owner may say it has passed."""
SHORT_CLAIM = Policy(max_attempts=6, lease=1, timeout=HOUR)
"""A claim's lease that has passed by the next statement: no test has to sleep or move a clock."""
SHORT_RUN = Policy(max_attempts=6, heartbeat=1, timeout=HOUR)
"""A live lease until the start, and one that has passed right after it."""


class JobIds:
    """Mints version 7 UUIDs that rise within a process, as a submitter's seam would."""

    def __init__(self) -> None:
        """Begin below every time."""
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


def submission(**wishes: Any) -> Submission:
    """Ask for a job; what is not said is plain."""
    given: dict[str, Any] = {"id": job_ids.mint(), "task": "greet", "policy": PATIENT}
    return Submission(**given | wishes)


def new_job(**wishes: Any) -> NewJob:
    """Decide a submit."""
    return submit(submission(**wishes), GATEWAY)


def worker(name: str = "worker-1") -> Actor:
    """Speak as somebody who wants to claim."""
    return Actor(Role.WORKER, name)


def announcement(**wishes: Any) -> Announcement:
    """Speak as a worker that says what it serves; what is not said is plain."""
    given: dict[str, Any] = {
        "name": "worker-1",
        "queues": ("default",),
        "tasks": ("greet",),
        "host": "here",
        "pid": 42,
        "concurrency": 8,
    }
    return Announcement(**given | wishes)


def new_token(**wishes: Any) -> NewToken:
    """Ask for a token that never expires and is for everything; what is not said is plain."""
    given: dict[str, Any] = {
        "id": mint_token_id(),
        "name": "deploy",
        "digest": sha256(b"secret").digest(),
        "role": "admin",
        "created_by": "control:ann",
    }
    return NewToken(**given | wishes)


def owner_of(job: Draft) -> Actor:
    """Speak as whoever holds a job, or would if anybody did."""
    return Actor(Role.OWNER, job.owner or "nobody", job.attempt)


def new_webhook(**wishes: Any) -> NewWebhook:
    """Ask for a webhook; what is not said is plain."""
    given: dict[str, Any] = {
        "id": job_ids.mint().hex,
        "tenant": "default",
        "url": "https://hooks.example/one",
        "secret": "whsec_c2VjcmV0",
        "created_by": "control:ann",
    }
    return NewWebhook(**given | wishes)
