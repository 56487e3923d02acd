"""The filter of system calls is the host's own, and stricter. `test_escapes` tries it out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from msgspec import json
from msgspec.structs import replace

from holdfast.errors import RuntimeTrouble
from holdfast.runners.container.argv import create_arguments
from holdfast.runners.container.examine import examine, is_usable
from holdfast.runners.container.seccomp import (
    FAMILIES,
    PROFILE_FILE,
    find_profile,
    stricter,
    write_profile,
)
from holdfast.runners.denied_calls import DENIED, DENIED_FAMILIES
from holdfast.stores.findings import FindingSeverity
from tests.support.podman import PrivatePodman


@pytest.fixture
def host_profile() -> dict[str, Any]:
    found = find_profile()
    assert found is not None
    profile: dict[str, Any] = json.decode(found.read_bytes())
    return profile


def allowed(profile: dict[str, Any]) -> set[str]:
    """Return the calls that a profile allows without a condition."""
    rules = [each for each in profile["syscalls"] if each["action"] == "SCMP_ACT_ALLOW"]
    return {name for rule in rules if not rule.get("args") for name in rule["names"]}


def test_a_denied_call_is_allowed_by_no_rule(host_profile: dict[str, Any]) -> None:
    rules = stricter(host_profile)["syscalls"]
    named = {name for each in rules if "ALLOW" in each["action"] for name in each["names"]}
    assert {"mount", "unshare", "keyctl"} <= allowed(host_profile), "or the host is strict enough"
    assert not named & set(DENIED)


def test_nothing_else_of_the_hosts_profile_is_changed(host_profile: dict[str, Any]) -> None:
    ours = {*DENIED, "clone", "clone3", "socket"}
    profile = stricter(host_profile)
    assert allowed(profile) == allowed(host_profile) - ours
    assert profile["defaultAction"] == host_profile["defaultAction"] == "SCMP_ACT_ERRNO"


def test_sockets_that_are_denied_elsewhere_are_not_allowed() -> None:
    assert not set(DENIED_FAMILIES.values()) & set(FAMILIES)


def test_calls_of_other_sizes_are_not_allowed(host_profile: dict[str, Any]) -> None:
    assert not any(each["subArchitectures"] for each in stricter(host_profile)["archMap"])


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"syscalls": [1], "archMap": []}'])
def test_a_profile_that_cannot_be_read_is_trouble(text: str, tmp_path: Path) -> None:
    broken = tmp_path / "broken.json"
    broken.write_text(text)
    with pytest.raises(RuntimeTrouble, match=r"broken\.json cannot be used"):
        write_profile(broken, tmp_path)
    assert not (tmp_path / PROFILE_FILE).exists()


async def test_a_host_without_a_profile_is_usable_and_warned_about(
    private_podman: PrivatePodman,
) -> None:
    settings = replace(private_podman.settings, host_profile=None)
    assert "seccomp=" not in " ".join(create_arguments(private_podman.shell(""), settings, "/init"))
    warnings = [e for e in await examine(settings) if e.verdict is FindingSeverity.WARNING]
    assert ["make namespaces" in each.text for each in warnings] == [True]
    assert await is_usable(settings)
