"""A policy is named by its content, says what is wrong with it, and survives a newer version."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.lifecycle.execution_policy import (
    DEFAULT_POLICY,
    Policy,
    content_key,
    needs_key,
    needs_text,
    policy_faults,
    policy_key,
    policy_text,
    read_policy,
)
from holdfast.lifecycle.times import SECOND

POLICIES = st.builds(
    Policy,
    max_attempts=st.integers(1, 10),
    idempotent=st.booleans(),
    on_exhausted=st.sampled_from(["dead_letter", "fail"]),
    backoff_factor=st.floats(1, 10),
    timeout=st.none() | st.integers(1, 10**12),
)


@settings(max_examples=100, derandomize=True, deadline=None)
@given(one=POLICIES, other=POLICIES)
def test_a_policy_is_named_by_its_content(one: Policy, other: Policy) -> None:
    assert policy_key(one) == content_key(policy_text(one))
    assert (policy_key(one) == policy_key(other)) is (one == other)
    assert 0 <= policy_key(one) < 2**63
    assert read_policy(policy_text(one)) == one


def test_the_names_of_policies_and_needs_never_change() -> None:
    """Rows of older versions hold these numbers."""
    assert policy_key(DEFAULT_POLICY) == content_key(b"{}") == 2452693583222387653
    assert policy_key(Policy(max_attempts=1, idempotent=False)) == 6435333078919023845
    assert needs_key(frozenset({"gpu"})) == 8551943056934209648


def test_equal_policies_have_one_text_and_one_key() -> None:
    odd = Policy(max_attempts=True, backoff_factor=3)
    plain = Policy(max_attempts=1, backoff_factor=3.0)
    assert odd == plain
    assert policy_text(odd) == policy_text(plain)
    assert content_key(policy_text(odd)) == policy_key(plain)


def test_the_defaults_never_change_because_stored_policies_leave_them_out() -> None:
    """A changed default would change the terms of every job that was submitted under the old."""
    assert msgspec.structs.asdict(read_policy(b"{}")) == {
        "max_attempts": 4,
        "idempotent": True,
        "on_exhausted": "dead_letter",
        "letter_on_fail": False,
        "on_silence": "stall",
        "backoff_first": 500_000,
        "backoff_factor": 2.0,
        "backoff_max": 60_000_000,
        "lease": 60_000_000,
        "heartbeat": 15_000_000,
        "start_timeout": None,
        "timeout": None,
        "host_recovery": 300_000_000,
        "compensates": False,
    }


def test_needs_are_named_by_content_whatever_their_order() -> None:
    assert needs_key(frozenset()) == 0
    assert needs_text(frozenset(["gpu", "arm"])) == b'["arm","gpu"]'
    assert needs_key(frozenset(["gpu", "arm"])) == needs_key(frozenset(["arm", "gpu"]))
    assert needs_key(frozenset(["gpu"])) != needs_key(frozenset(["gpu", "arm"]))


@pytest.mark.req("B27")
def test_fields_of_a_newer_version_are_passed_over() -> None:
    text = msgspec.json.encode({"max_attempts": 7, "colour": "red", "nested": {"a": [1]}})

    assert read_policy(text) == Policy(max_attempts=7)


WRONG: list[Any] = [
    ({"max_attempts": 0}, "max_attempts must be at least 1"),
    ({"max_attempts": -1}, "max_attempts must be at least 1"),
    ({"max_attempts": 1_000_001}, "max_attempts must be at most"),
    ({"max_attempts": True}, "max_attempts must not be a bool"),
    ({"max_attempts": "3"}, "max_attempts must not be a str"),
    ({"timeout": 10 * 365 * 24 * 3600 * SECOND}, "timeout must be under ten years"),
    ({"host_recovery": 2**70}, "host_recovery must be under ten years"),
    ({"backoff_max": 0.5}, "backoff_max must not be a float"),
    ({"idempotent": 1}, "idempotent must not be a int"),
    ({"backoff_first": -1}, "backoff needs"),
    ({"backoff_factor": 0.9}, "backoff needs"),
    ({"backoff_factor": math.nan}, "backoff needs"),
    ({"backoff_factor": math.inf}, "backoff needs"),
    ({"backoff_max": -1}, "backoff needs"),
    ({"on_exhausted": "explode"}, "on_exhausted must be"),
    ({"on_silence": "shout"}, "on_silence must be"),
    ({"start_timeout": 0}, "start_timeout must be positive"),
    ({"timeout": -5}, "timeout must be positive"),
    ({"host_recovery": -1}, "host_recovery must not be negative"),
    ({"lease": 29 * SECOND}, "lease must be between 30 and 120 seconds"),
    ({"lease": 121 * SECOND}, "lease must be between 30 and 120 seconds"),
    ({"heartbeat": 9 * SECOND}, "heartbeat must be between 10 and 30 seconds"),
    ({"heartbeat": 31 * SECOND}, "heartbeat must be between 10 and 30 seconds"),
]


@pytest.mark.parametrize(("fields", "problem"), WRONG)
def test_a_wrong_policy_says_what_is_wrong(fields: dict[str, Any], problem: str) -> None:
    faults = policy_faults(Policy(**fields))

    assert len(faults) == 1
    assert problem in faults[0].text
    assert faults[0].term in fields


@pytest.mark.parametrize(
    "policy",
    [
        DEFAULT_POLICY,
        Policy(lease=30 * SECOND, heartbeat=10 * SECOND),
        Policy(lease=120 * SECOND, heartbeat=30 * SECOND),
        Policy(max_attempts=1, idempotent=False, on_silence="lose", timeout=1, start_timeout=1),
        Policy(backoff_first=0, backoff_factor=1, backoff_max=0),
    ],
)
def test_a_policy_at_the_edge_is_right(policy: Policy) -> None:
    assert policy_faults(policy) == []


def test_tests_may_lower_the_bounds_of_lease_and_heartbeat_but_not_below_zero() -> None:
    quick = Policy(lease=SECOND, heartbeat=SECOND // 10)
    assert policy_faults(quick, bounded=False) == []

    for name, policy in (("lease", Policy(lease=0)), ("heartbeat", Policy(heartbeat=-1))):
        assert policy_faults(policy, bounded=False) == [(name, f"{name} must be positive")]


def test_two_missed_heartbeats_are_the_expiry() -> None:
    assert Policy(heartbeat=10 * SECOND).running_lease == 20 * SECOND
