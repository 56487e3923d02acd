"""The terms a job runs under: tries, backoff, lease, time limits. Fixed at submit, shared by many.

A policy is stored once and named by a key made from its content, so that a job row holds one number
and two processes never have to agree on it.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from hashlib import sha256
from math import inf
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from holdfast.lifecycle.times import SECOND

RELEASES_FREE = 19
"""Releases that cost nothing; from the 20th on each costs a failure (resolution 2)."""


# Its key is looked up for every job that is written.
class Policy(Struct, frozen=True, kw_only=True, cache_hash=True):
    """Terms of a job type. Spans are microseconds."""

    max_attempts: int = 4
    idempotent: bool = True
    on_exhausted: str = "dead_letter"
    """`dead_letter` or `fail`: what ends a job whose tries are used up by errors."""
    letter_on_fail: bool = False
    """Whether `fail` still writes a dead letter (B31)."""
    on_silence: str = "stall"
    """What a lost lease means: `stall`, `time_out` (bus without retries) or `lose` (commands)."""
    backoff_first: int = SECOND // 2
    backoff_factor: float = 2.0
    backoff_max: int = 60 * SECOND
    lease: int = 60 * SECOND
    heartbeat: int = 15 * SECOND
    start_timeout: int | None = None
    timeout: int | None = None
    host_recovery: int = 300 * SECOND
    """Recovery grace: how long after a lost lease a job that would end is left to its host or
    bus."""
    compensates: bool = False
    """Whether an end without success is followed by a job that undoes what was done (B28)."""

    @property
    def running_lease(self) -> int:
        """What start and a heartbeat grant: two missed heartbeats are the expiry (resolution 8)."""
        return 2 * self.heartbeat


DEFAULT_POLICY = Policy()
POLICY_SPANS = (
    *("backoff_first", "backoff_max", "lease", "heartbeat"),
    *("start_timeout", "timeout", "host_recovery"),
)
"""The fields that are spans."""
ATTEMPTS_LIMIT = 1_000_000
SPAN_LIMIT = 10 * 365 * 24 * 3600 * SECOND
LEASE_BOUNDS = (30 * SECOND, 120 * SECOND)
HEARTBEAT_BOUNDS = (10 * SECOND, 30 * SECOND)
_POLICY_KEYS: dict[Policy, int] = {}
_KEYS_LIMIT = 4096
"""How many keys are remembered: submitters choose the terms."""


def policy_key(policy: Policy) -> int:
    """Return the key of a policy, made from its content."""
    key = _POLICY_KEYS.get(policy)
    if key is None:
        if len(_POLICY_KEYS) >= _KEYS_LIMIT:
            _POLICY_KEYS.clear()
        key = _POLICY_KEYS[policy] = content_key(policy_text(policy))
    return key


def policy_text(policy: Policy) -> bytes:
    """Return a policy as canonical JSON, without what has its default.

    Equal policies have equal texts: Python takes `True` for 1 and 2 for 2.0, JSON does not, and
    `omit_defaults` would leave out a float only if it is the very same object.
    """
    values = msgspec.structs.asdict(policy).items()
    return msgspec.json.encode(
        {
            name: _plain(name, value)
            for name, value in values
            if value != getattr(DEFAULT_POLICY, name)
        }
    )


def _plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if name in ("idempotent", "letter_on_fail", "compensates"):
        return bool(value)
    return float(value) if name == "backoff_factor" else int(value)


def read_policy(text: bytes | str) -> Policy:
    """Read a stored policy; fields of a newer version are ignored (B27)."""
    return msgspec.json.decode(text, type=Policy)


def needs_key(needs: frozenset[str]) -> int:
    """Return the key of a set of needed capabilities, made from its content; 0 if it is empty."""
    return _needs_key(needs) if needs else 0


@lru_cache(maxsize=4096)
def _needs_key(needs: frozenset[str]) -> int:
    return needs_key_of(needs_text(needs))


def needs_text(needs: frozenset[str]) -> bytes:
    """Return a set of needs as canonical JSON."""
    return msgspec.json.encode(sorted(needs))


def needs_key_of(text: bytes) -> int:
    """Return the key of a set of needs by its text: a multiple of eight, so that a lane of the
    claim index can hold it beside a priority class."""
    return content_key(text) & ~7


def content_key(text: bytes) -> int:
    """Return a positive 63-bit number made from content, by a hash that PostgreSQL has, too."""
    return int.from_bytes(sha256(text).digest()[:8], "big") >> 1


class Fault(NamedTuple):
    """What is wrong with one term of a policy."""

    term: str
    text: str


def policy_faults(policy: Policy, *, bounded: bool = True) -> list[Fault]:
    """Return what is wrong with a policy; tests may lower the bounds of lease and heartbeat."""
    if faults := _type_faults(policy):
        return faults
    if policy.max_attempts < 1:
        faults.append(Fault("max_attempts", "max_attempts must be at least 1"))
    if policy.max_attempts > ATTEMPTS_LIMIT:
        faults.append(Fault("max_attempts", f"max_attempts must be at most {ATTEMPTS_LIMIT:,}"))
    faults += _backoff_faults(policy)
    if policy.host_recovery < 0:
        faults.append(Fault("host_recovery", "host_recovery must not be negative"))
    if policy.on_exhausted not in ("dead_letter", "fail"):
        faults.append(Fault("on_exhausted", "on_exhausted must be dead_letter or fail"))
    if policy.on_silence not in ("stall", "time_out", "lose"):
        faults.append(Fault("on_silence", "on_silence must be stall, time_out or lose"))
    faults += [
        Fault(name, f"{name} must be positive")
        for name in ("lease", "heartbeat", "start_timeout", "timeout")
        if (value := getattr(policy, name)) is not None and value <= 0
    ]
    faults += [
        Fault(name, f"{name} must be under ten years")
        for name in POLICY_SPANS
        if (value := getattr(policy, name)) is not None and value >= SPAN_LIMIT
    ]
    if bounded:
        faults += _bound_faults(policy)
    return faults


def faults_text(faults: Iterable[Fault]) -> str:
    """Return faults as one line."""
    return "; ".join(fault.text for fault in faults)


def _backoff_faults(policy: Policy) -> list[Fault]:
    wrong = [name for name in ("backoff_first", "backoff_max") if getattr(policy, name) < 0]
    # Not `factor < 1`: that is false of NaN, which JSON could not even keep.
    if not 1 <= policy.backoff_factor < inf:
        wrong.append("backoff_factor")
    text = "backoff needs a first delay >= 0, a factor >= 1 and a maximum >= 0"
    return [Fault(name, text) for name in wrong[:1]]


_TYPES: dict[str, tuple[type, ...]] = {
    "max_attempts": (int,),
    "idempotent": (bool,),
    "on_exhausted": (str,),
    "letter_on_fail": (bool,),
    "compensates": (bool,),
    "on_silence": (str,),
    "backoff_factor": (float, int),
    **dict.fromkeys(POLICY_SPANS, (int,)),
    "start_timeout": (int, type(None)),
    "timeout": (int, type(None)),
}


def _type_faults(policy: Policy) -> list[Fault]:
    # By the exact type: to isinstance True is an int, but it is not read back as one.
    return [
        Fault(name, f"{name} must not be a {type(value).__name__}")
        for name, types in _TYPES.items()
        if type(value := getattr(policy, name)) not in types
    ]


def _bound_faults(policy: Policy) -> list[Fault]:
    bounds = (("lease", LEASE_BOUNDS), ("heartbeat", HEARTBEAT_BOUNDS))
    return [
        Fault(name, f"{name} must be between {low // SECOND} and {high // SECOND} seconds")
        for name, (low, high) in bounds
        if not low <= getattr(policy, name) <= high
    ]
