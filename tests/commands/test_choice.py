"""Which runner a worker takes by itself: isolation always, containers where there is an image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast import wiring
from holdfast.errors import BadConfig
from holdfast.ports.box import Boxes
from holdfast.runners.command.box_of import BoxPlace
from holdfast.runners.command.options import Commands
from holdfast.stores.findings import Finding, fine, problem


async def choose(
    monkeypatch: pytest.MonkeyPatch, directory: Path, commands: Commands, *working: str
) -> list[str]:
    """Return the runners that are taken on a host where only some work."""

    async def examine(name: str, *_: object) -> Sequence[Finding]:
        if name in working:
            return [fine(name, "it works")]
        return [problem(name, "it is not installed", "install it")]

    monkeypatch.setattr(wiring, "_examine_runner", examine)
    place = BoxPlace(host="h", store="s", root=directory)
    boxes: list[Boxes] = await wiring.make_boxes(commands, place)
    return [one.name for one in boxes]


async def test_containers_are_the_default_where_the_host_has_an_image(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_image = Commands(image="busybox")
    both = await choose(monkeypatch, tmp_path, with_image, "podman", "sandbox")
    assert both == ["podman", "sandbox"]
    assert await choose(monkeypatch, tmp_path, with_image, "podman") == ["podman"]


async def test_without_an_image_containers_are_for_commands_that_name_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    both = await choose(monkeypatch, tmp_path, Commands(), "podman", "sandbox")
    assert both == ["sandbox", "podman"]


async def test_no_isolation_is_never_chosen_but_only_asked_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(BadConfig, match="--commands process"):
        await choose(monkeypatch, tmp_path, Commands())
    assert await choose(monkeypatch, tmp_path, Commands(runner="process")) == ["process"]


async def test_a_podman_that_does_not_answer_now_keeps_its_boxes(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It may have containers here from before, and may answer again."""
    monkeypatch.setattr(wiring, "_may_have_podman", lambda: True)
    assert await choose(monkeypatch, tmp_path, Commands(), "sandbox") == ["sandbox", "podman"]
    monkeypatch.setattr(wiring, "_may_have_podman", lambda: False)
    assert await choose(monkeypatch, tmp_path, Commands(), "sandbox") == ["sandbox"]
