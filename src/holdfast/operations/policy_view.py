"""How policies, decisions and requested approvals are shown to a client."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from msgspec import Struct

from holdfast.admission.verdicts import Look
from holdfast.ports.models import PolicyEvent
from holdfast.queries.decisions import GivenApproval, RecordedDecision


class PolicyBookView(Struct, frozen=True, kw_only=True):
    """A policy that is, or was, applied; all null if there is none, and nothing is judged."""

    digest: str | None = None
    """SHA-256 of the text: what decisions name it by."""
    text: str | None = None
    """The rules, in TOML."""
    applied_at: int | None = None
    applied_by: str | None = None
    reason: str | None = None
    is_current: bool = False


class PolicyHistory(Struct, frozen=True, kw_only=True):
    """Which policy was applied or removed when, and by whom; newest first."""

    events: list[PolicyEvent]


class WantedPolicy(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rules to apply."""

    text: str | None
    """The rules, in TOML; null removes those that are applied."""
    reason: str | None = None


class JobPolicy(Struct, frozen=True, kw_only=True):
    """What was decided on a job, and how each rule of the policy sees it."""

    job_id: str
    internal_id: UUID
    decisions: list[RecordedDecision]
    """What was decided when; none if the job was submitted while no policy was applied."""
    asked: dict[str, int | float | str | None]
    """What it asked for where the rules limited it."""
    approvals: list[GivenApproval]
    """The approvals so far."""
    missing: int
    """How many people still have to approve it."""
    expires_at: int | None
    """When its approval expires."""
    rules: str | None
    """The digest of the policy that `looks` is of: the one that judged it, else the current."""
    looks: list[Look]
    """Each rule, up to the one that decides; for a token of one tenant, only that."""
    variables: dict[str, Any]
    """What rules can read of the job."""


class RequestedApproval(Struct, frozen=True, kw_only=True):
    """A job that awaits the approval of people."""

    job_id: str
    internal_id: UUID
    tenant: str
    task: str
    queue: str
    rev: int
    """`If-Match` compares it."""
    rule: str
    reason: str | None
    """The rule's."""
    submitter: str
    requested_at: int
    needs: int
    """How many people have to approve it, with those who have."""
    missing: int
    """How many still have to."""
    approvals: list[GivenApproval]
    expires_at: int | None


class RequestedApprovals(Struct, frozen=True, kw_only=True):
    """Jobs that await approvals, by rule and age; `next` is the cursor of the page after."""

    now: int
    """By the store's clock, as `expires_at` is."""
    approvals: list[RequestedApproval]
    next: str | None
