"""Who may do what over HTTP: five roles, and what each of them covers."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from holdfast.errors import Forbidden
from holdfast.tokens import TokenRole

__all__ = ["LOCAL", "OF_ALL_TENANTS", "SCOPES", "Caller", "Scope", "TokenRole"]


LOCAL = "local"
"""In the place of a token's id: somebody on this machine, where nobody has tokens."""


class Scope(StrEnum):
    """What a route demands."""

    SUBMIT = "submit"
    """Submit jobs."""
    READ = "read"
    """See jobs, events, queues, workers, dead letters."""
    CONTROL = "control"
    """Cancel, signal, resolve, redrive, discard."""
    QUEUES = "queues"
    """Pause and resume queues: for every tenant at once."""
    METRICS = "metrics"
    """See the server's numbers: of every tenant at once."""
    WEBHOOKS = "webhooks"
    """Make, see and remove webhooks."""
    WORK = "work"
    """Claim jobs and report on them."""
    TOKENS = "tokens"
    """Make and revoke tokens."""


SCOPES: dict[TokenRole, frozenset[Scope]] = {
    # A submitter may see, signal and cancel what it submitted: its tenant's jobs.
    TokenRole.SUBMITTER: frozenset({Scope.SUBMIT, Scope.READ, Scope.CONTROL}),
    TokenRole.WORKER: frozenset({Scope.WORK}),
    TokenRole.VIEWER: frozenset({Scope.READ, Scope.METRICS}),
    TokenRole.OPERATOR: frozenset(Scope) - {Scope.WORK, Scope.TOKENS},
    TokenRole.ADMIN: frozenset(Scope),
}


OF_ALL_TENANTS = {
    Scope.QUEUES: "a queue is paused for all tenants",
    Scope.METRICS: "metrics tell of all tenants",
}
"""What takes a token that is bound to no tenant, and why."""


class Caller(Struct, frozen=True, kw_only=True):
    """Whoever a request comes from."""

    name: str
    """How the ledger names it."""
    token: str
    """The id of the token that it showed, and what names of its workers begin with."""
    role: TokenRole
    tenant: str | None
    """None: all of them."""
    queues: frozenset[str] | None = None
    """None: all of them."""

    def demand(self, scope: Scope) -> None:
        """Refuse what its role does not cover."""
        if scope not in SCOPES[self.role]:
            raise Forbidden(
                f"this takes the scope {scope.value!r}, and role {self.role.value!r} has it not; "
                f"ask for a token of role {' or '.join(_roles_with(scope))}"
            )
        if self.tenant is not None and scope in OF_ALL_TENANTS:
            raise Forbidden(f"{OF_ALL_TENANTS[scope]}; that takes a token that is bound to none")

    def tenant_for(self, asked: str | None) -> str | None:
        """Tell for which tenant it acts, if it asks for one; refuse any but its own."""
        if asked is None or asked == self.tenant:
            return self.tenant
        if self.tenant is not None:
            raise Forbidden("this token is of another tenant")
        return asked

    def demand_queue(self, queue: str) -> None:
        """Refuse a queue that it is not for."""
        if self.queues is not None and queue not in self.queues:
            raise Forbidden(
                f"this token is for {', '.join(sorted(self.queues))}, not for queue {queue!r}"
            )


def _roles_with(scope: Scope) -> list[str]:
    return [role.value for role, scopes in SCOPES.items() if scope in scopes]
