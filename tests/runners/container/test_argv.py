"""The arguments of a container: the whole list as it must be, and what is refused."""

from __future__ import annotations

from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from holdfast.errors import BadConfig, BoxRefused
from holdfast.lifecycle.record import JobId
from holdfast.ports.box import Box
from holdfast.runners.container.argv import create_arguments
from holdfast.runners.container.settings import PodmanSettings

GOLDEN = Path(__file__).parent / "create_arguments.txt"
SETTINGS = PodmanSettings(
    directory=Path("/state"),
    host="h1",
    store="s1",
    image="localhost/default:1",
    runtime="runc",
    ulimits=("core=0:0", "nofile=1024:4096", "nproc=4096:4096"),
    host_profile=Path("/host/seccomp.json"),
)
BOX = Box(
    job=JobId(UUID("01890a5d-ac96-774b-bcce-b302099a8057")),
    attempt=2,
    epoch=7,
    host="h1",
    store="s1",
    type="worker",
    argv=("/bin/sh", "-c", "echo $HOME; --privileged"),
    image="registry.example/team/tool:1.2",
    cpus=2,
    memory_mb=4096,
    env={"HOLDFAST_TOKEN": "a=b c"},
    work=Path("/jobs/j/work"),
    work_writable=False,
    artifacts=Path("/jobs/j/artifacts"),
    directory=Path("/jobs/j/2"),
)


def arguments(box: Box) -> list[str]:
    return create_arguments(box, SETTINGS, "/usr/bin/tini-static")


@pytest.mark.req("D15")
def test_the_whole_argument_list_is_the_golden_one() -> None:
    assert "\n".join(arguments(BOX)) + "\n" == GOLDEN.read_text()


def test_only_an_agent_writes_to_its_work() -> None:
    agent = replace(BOX, type="agent", work_writable=True)
    changed = set(arguments(agent)) - set(arguments(BOX))
    assert changed == {"/jobs/j/work:/work:rw,nosuid,nodev", "--label=holdfast.type=agent"}


def test_an_agent_has_its_files_by_mounts_and_a_network_only_where_it_is_allowed() -> None:
    places = {name: Path("/jobs/j") / name for name in ("inputs", "secrets", "exchange")}
    agent = replace(BOX, type="agent", network="host", **places)
    changed = set(arguments(agent)) - set(arguments(BOX))
    assert changed == {
        "--label=holdfast.type=agent",
        "host",
        "--volume=/jobs/j/inputs:/run/holdfast:ro,nosuid,nodev",
        "--volume=/jobs/j/secrets:/run/secrets:ro,nosuid,nodev",
        "--volume=/jobs/j/exchange:/run/exchange:rw,nosuid,nodev",
        "--env=HOLDFAST_INPUTS=/run/holdfast",
        "--env=HOLDFAST_SECRETS=/run/secrets",
        "--env=HOLDFAST_EXCHANGE=/run/exchange",
    }
    with pytest.raises(BoxRefused, match="absolute paths"):
        arguments(replace(BOX, secrets=Path("/jobs/a:b")))


def test_a_box_without_an_image_has_the_hosts() -> None:
    assert "localhost/default:1" in arguments(replace(BOX, image=None))
    with pytest.raises(BoxRefused, match="no default image"):
        create_arguments(replace(BOX, image=None), replace(SETTINGS, image=None), "/init")


def test_text_of_the_submitter_follows_the_end_of_options() -> None:
    box = replace(BOX, argv=("--privileged", "-v", "/:/host"))
    assert arguments(box)[-5:] == ["--", BOX.image, "--privileged", "-v", "/:/host"]


@pytest.mark.parametrize(
    "image",
    [
        "--privileged",
        "-v=/:/host",
        " busybox",
        "busybox --privileged",
        "busybox\n--privileged",
        "Busybox",
        "docker://busybox",
        "oci-archive:/etc/passwd",
        "/etc/passwd",
        "../x",
        "a" * 600,
        "a:" + "b" * 200,
    ],
)
def test_an_image_that_is_not_a_name_is_refused(image: str) -> None:
    with pytest.raises(BoxRefused, match="image"):
        arguments(replace(BOX, image=image))


@pytest.mark.parametrize(
    "image",
    [
        "busybox",
        "localhost/hf:bb",
        "registry.example:5000/a/b-c__d.e:V1.0",
        "python@sha256:" + "0" * 64,
        "8aecab0489ea",
    ],
)
def test_an_image_may_have_a_host_a_tag_and_a_digest(image: str) -> None:
    assert image in arguments(replace(BOX, image=image))


@pytest.mark.parametrize(
    "change",
    [
        {"argv": ()},
        {"argv": ("a\0b",)},
        {"env": {"A": "\0"}},
        {"env": {"A=B": "c"}},
        {"env": {"": "c"}},
        {"env": {"SECRET*": "c"}},
        {"work": Path("/jobs/a:b")},
        {"artifacts": Path("/jobs/a,b")},
        {"directory": Path("jobs/a")},
    ],
    ids=str,
)
def test_what_would_mean_something_else_to_podman_is_refused(change: dict[str, object]) -> None:
    with pytest.raises(BoxRefused):
        arguments(replace(BOX, **change))


@pytest.mark.parametrize("name", ["", "a/b", "..", "a=b", "a\n", "a b"])
def test_names_of_hosts_and_stores_stay_one_part_of_a_path(name: str) -> None:
    with pytest.raises(BadConfig):
        replace(SETTINGS, host=name)
    with pytest.raises(BadConfig):
        replace(SETTINGS, store=name)
