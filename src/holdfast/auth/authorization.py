"""Who may do what over HTTP: six roles, and the scopes of each."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from holdfast.auth.tokens import TokenRole
from holdfast.errors import Forbidden

__all__ = ["LOCAL", "OF_ALL_TENANTS", "SCOPES", "Caller", "Scope", "TokenRole"]


LOCAL = "local"
"""In the place of a token's id: a program on this machine, where there are no tokens."""


class Scope(StrEnum):
    """What an operation demands."""

    SUBMIT = "submit"
    """Submit jobs, and upload their files."""
    READ = "read"
    """See jobs, events, queues, workers, dead letters."""
    CONTROL = "control"
    """Cancel, signal, resolve, redrive, discard."""
    APPROVE = "approve"
    """Approve or deny jobs that await it, and lift what a rule holds."""
    QUEUES = "queues"
    """Pause and resume queues: for every tenant at once."""
    METRICS = "metrics"
    """See the server's metrics: of every tenant at once."""
    WEBHOOKS = "webhooks"
    """Make, see and remove webhooks."""
    POLICY = "policy"
    """See the rules that jobs are judged by: those of every tenant at once."""
    APPLY = "apply"
    """Apply rules, or remove them."""
    WORK = "work"
    """Claim jobs and report on them."""
    TOKENS = "tokens"
    """Make and revoke tokens."""


SCOPES: dict[TokenRole, frozenset[Scope]] = {
    # A submitter may see, signal and cancel what it submitted: its tenant's jobs.
    TokenRole.SUBMITTER: frozenset({Scope.SUBMIT, Scope.READ, Scope.CONTROL}),
    TokenRole.WORKER: frozenset({Scope.WORK}),
    TokenRole.VIEWER: frozenset({Scope.READ, Scope.METRICS, Scope.POLICY}),
    TokenRole.APPROVER: frozenset({Scope.READ, Scope.APPROVE, Scope.POLICY}),
    TokenRole.OPERATOR: frozenset(Scope) - {Scope.WORK, Scope.TOKENS, Scope.APPLY},
    TokenRole.ADMIN: frozenset(Scope),
}


OF_ALL_TENANTS = {
    Scope.QUEUES: "a queue is paused for all tenants",
    Scope.METRICS: "metrics are of all tenants",
    Scope.POLICY: "the policy is of all tenants",
    Scope.APPLY: "the policy is of all tenants",
}
"""Scopes that need a token bound to no tenant, and why."""


class Caller(Struct, frozen=True, kw_only=True):
    """Where a request comes from."""

    name: str
    """How the ledger names it."""
    token: str
    """The id of its token, which the names of its workers start with."""
    role: TokenRole
    tenant: str | None
    """None: all of them."""
    queues: frozenset[str] | None = None
    """None: all of them."""

    def demand(self, scope: Scope) -> None:
        """Raise Forbidden for what its role does not cover."""
        if scope not in SCOPES[self.role]:
            raise Forbidden(
                f"role {self.role.value!r} lacks scope {scope.value!r}; "
                f"use a token with role {' or '.join(_roles_with(scope))}"
            )
        if self.tenant is not None and scope in OF_ALL_TENANTS:
            raise Forbidden(f"{OF_ALL_TENANTS[scope]}; use a token that is bound to no tenant")

    def tenant_for(self, asked: str | None) -> str | None:
        """Return the tenant that it acts for, if it asks for one; Forbidden for any but its own."""
        if asked is None or asked == self.tenant:
            return self.tenant
        if self.tenant is not None:
            raise Forbidden("this token belongs to another tenant")
        return asked

    def demand_queue(self, queue: str) -> None:
        """Raise Forbidden for a queue that it does not cover."""
        if self.queues is not None and queue not in self.queues:
            raise Forbidden(
                f"this token does not cover queue {queue!r}; it covers "
                f"{', '.join(sorted(self.queues))}"
            )


def _roles_with(scope: Scope) -> list[str]:
    return [role.value for role, scopes in SCOPES.items() if scope in scopes]
