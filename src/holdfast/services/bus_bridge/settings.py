"""What every part of a bridge knows: which bus, whose jobs, which topics, and whom to believe."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from holdfast.admission.topics import Route, Topics
from holdfast.buses.trust import Trust
from holdfast.flow.bus_job import HEARTBEAT, LEASE, bus_policy
from holdfast.lifecycle.execution_policy import DEFAULT_POLICY, Policy
from holdfast.lifecycle.record import Actor, Job
from holdfast.lifecycle.states import Kind, Role
from holdfast.ports.bus import Bus
from holdfast.ports.store import Store
from holdfast.telemetry import Meters


class BridgeSettings(Struct, frozen=True, kw_only=True):
    """How a bridge serves a bus."""

    name: str
    """The bus; all of its bridges have this name."""
    topics: Topics
    tenant: str = "default"
    """One bus serves one tenant: a result does not name any (resolution 20)."""
    capabilities: frozenset[str] = frozenset()
    """What the workers of the bus have, beside what they announce themselves."""
    cancel_grace_seconds: float = 10.0
    """How long a worker that was asked to end a job is waited for."""
    tick_seconds: float = 1.0
    """How often leases, cancels and time limits are looked at."""
    lease: int = LEASE
    heartbeat: int = HEARTBEAT
    recovery: int = DEFAULT_POLICY.host_recovery

    @property
    def owner(self) -> str:
        """The name under which the bus owns jobs, whichever bridge writes."""
        return f"bus:{self.name}"

    @property
    def actor(self) -> Actor:
        """The bus, as the actor that adopts."""
        return Actor(Role.BUS, self.owner)

    def route(self, topic: str) -> Route | None:
        """Return the route of a topic that leads to this bus."""
        route = self.topics.route(topic)
        return route if route is not None and route.bus == self.name else None

    def policy(self, route: Route) -> Policy:
        """Return the terms of a topic's jobs."""
        return replace(
            bus_policy(route),
            lease=self.lease,
            heartbeat=self.heartbeat,
            host_recovery=self.recovery,
        )

    def is_own(self, job: Job | None) -> bool:
        """Return whether a job is one of this bus: it owns it, or no other bus has its topic."""
        if job is None or job.kind is not Kind.BUS or job.tenant != self.tenant:
            return False
        if job.owned:
            return job.owner == self.owner
        route = self.topics.route(job.queue)
        return route is None or route.bus in (None, self.name)


class BridgeParts(Struct, frozen=True, kw_only=True):
    """What the loops of a bridge share."""

    settings: BridgeSettings
    store: Store
    bus: Bus
    trust: Trust
    meters: Meters
