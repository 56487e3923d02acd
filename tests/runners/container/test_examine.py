"""What `holdfast doctor` finds about Podman, and whether it is chosen."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.runners.container.examine import examine, is_usable
from holdfast.stores.findings import FindingSeverity
from tests.support.podman import PrivatePodman


async def test_a_host_that_has_everything_is_usable(private_podman: PrivatePodman) -> None:
    findings = await examine(private_podman.settings)
    assert {each.verdict for each in findings} == {FindingSeverity.OK}
    assert await is_usable(private_podman.settings)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"program": "no-podman"}, "no-podman is not installed"),
        ({"conmon": "no-conmon"}, "no-conmon is not installed"),
        ({"conmon": "false"}, "conmon cannot limit logs"),
        ({"init": "no-init"}, "no-init is not installed"),
        ({"image": "localhost/none:1"}, "the default image localhost/none:1 is not here"),
        ({"storage": ("--root", "/dev/null/storage")}, "storage cannot be used"),
    ],
    ids=str,
)
async def test_what_is_missing_makes_it_unusable_and_is_named(
    private_podman: PrivatePodman, change: dict[str, object], text: str
) -> None:
    settings = replace(private_podman.settings, **change)
    problems = [each for each in await examine(settings) if each.verdict is FindingSeverity.PROBLEM]
    assert any(text in each.text for each in problems)
    assert all(each.mend for each in problems)
    assert not await is_usable(settings)


async def test_an_old_podman_is_refused(private_podman: PrivatePodman, tmp_path: Path) -> None:
    old = tmp_path / "podman"
    old.write_text("#!/bin/sh\necho podman version 3.4.4\n")
    old.chmod(0o755)
    findings = await examine(replace(private_podman.settings, program=str(old)))
    assert any("3.4.4' is too old" in each.text for each in findings)


async def test_no_default_image_is_only_a_warning(private_podman: PrivatePodman) -> None:
    settings = replace(private_podman.settings, image=None)
    findings = await examine(settings)
    assert [each.verdict for each in findings].count(FindingSeverity.WARNING) == 1
    assert await is_usable(settings)
