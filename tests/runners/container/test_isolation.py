"""What a command sees and may do in its container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from holdfast.ports.box import BoxExit
from holdfast.runners.container.argv import cgroup_of
from holdfast.runners.container.box_cgroup import hierarchies
from holdfast.runners.container.cli import PodmanCli
from holdfast.runners.container.podman import Podman
from tests.runners.container.runs import log_of, run, start
from tests.support.podman import PrivatePodman


async def output(podman: Podman, private: PrivatePodman, script: str, **more: object) -> list[str]:
    """Return what a script writes, line by line."""
    box = private.shell(f"{{ {script}\n}} 2>&1", **more)
    await run(podman, box)
    return [line.split(" ", 2)[2] for line in log_of(box)]


async def test_a_command_has_no_privileges(podman: Podman, private_podman: PrivatePodman) -> None:
    shown = await output(
        podman,
        private_podman,
        "id -u; id -g; id -G; grep -E '^(CapEff|CapPrm|CapBnd|NoNewPrivs|Seccomp):'"
        " /proc/self/status; cat /proc/self/uid_map",
    )
    none = "0" * 16
    assert shown[:3] == ["1000", "1000", "1000"]
    assert shown[3:8] == [
        f"CapPrm:\t{none}",
        f"CapEff:\t{none}",
        f"CapBnd:\t{none}",
        "NoNewPrivs:\t1",
        "Seccomp:\t2",
    ]
    assert shown[8].split() == ["0", "200000", "65536"]


@pytest.mark.req("D1")
@pytest.mark.parametrize(("writable", "expected"), [(False, "no work"), (True, "work")])
async def test_only_tmp_artifacts_and_an_agents_work_can_be_written(
    podman: Podman, private_podman: PrivatePodman, writable: bool, expected: str
) -> None:
    script = (
        "for place in / /bin /etc /run /dev/shm /tmp /artifacts; do"
        " touch $place/x 2>/dev/null && echo $place; done;"
        " touch /work/x 2>/dev/null && echo work || echo no work"
    )
    shown = await output(podman, private_podman, script, work_writable=writable)
    assert shown == ["/dev/shm", "/tmp", "/artifacts", expected]


async def test_files_of_a_command_belong_to_a_user_that_the_host_has_not(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("echo made > /artifacts/file")
    assert await run(podman, box) == BoxExit(code=0)
    made = box.artifacts / "file"
    assert made.read_text() == "made\n"
    assert (made.stat().st_uid, made.stat().st_gid) == (201_000, 201_000)
    assert box.artifacts.stat().st_mode & 0o777 == 0o700


@pytest.mark.req("B32")
async def test_a_command_has_only_the_environment_that_it_is_given(
    podman: Podman, private_podman: PrivatePodman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://user:secret@proxy")
    monkeypatch.setenv("HOLDFAST_STORE", "postgresql://user:secret@host/db")
    shown = await output(
        podman, private_podman, "env", env={"HOLDFAST_TOKEN": "job 1 * $HOME\n2", "EMPTY": ""}
    )
    assert {"HOLDFAST_TOKEN=job 1 * $HOME", "2", "EMPTY="} <= set(shown)
    names = {line.partition("=")[0] for line in shown} - {"2"}
    own = {"HOLDFAST_TOKEN", "EMPTY", "PATH"}
    assert names - own <= {"HOME", "HOSTNAME", "PWD", "SHLVL", "container", "TERM"}
    assert not any("secret" in line for line in shown)


async def test_a_monitor_has_no_credentials_of_the_worker(
    podman: Podman, private_podman: PrivatePodman, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", "postgresql://user:secret@host/db")
    box = private_podman.shell("sleep 1000")
    await podman.prepare(box)
    await podman.start(box)
    environments = [Path(f"/proc/{pid}/environ") for pid in private_podman.monitors()]
    assert environments
    assert not any(b"secret" in each.read_bytes() for each in environments)
    await podman.kill(box)


async def test_podman_is_called_with_the_settings_of_the_worker_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator's image would else be in one storage, and looked for in another."""
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", "/elsewhere/storage.conf")
    answer = await PodmanCli("printenv", (), tmp_path).look("CONTAINERS_STORAGE_CONF", limit=30.0)
    assert answer.output == b"/elsewhere/storage.conf\n"


async def test_a_command_sees_neither_the_network_nor_processes_of_the_host(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    shown = await output(
        podman,
        private_podman,
        "ls /sys/class/net; hostname; ls /proc | grep -c '^[0-9]'; kill -0 "
        f"{os.getpid()} || echo unseen",
    )
    assert shown[:2] == ["lo", "job"]
    assert int(shown[2]) < 10
    assert shown[-1] == "unseen"


async def test_limits_are_enforced(podman: Podman, private_podman: PrivatePodman) -> None:
    shown = await output(
        podman,
        private_podman,
        "for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do sleep 5 & done;"
        " ulimit -n; ulimit -Hn",
        pids=10,
    )
    assert any("fork" in line for line in shown)


async def test_no_core_is_written(podman: Podman, private_podman: PrivatePodman) -> None:
    assert await output(podman, private_podman, "ulimit -c; ulimit -Hc") == ["0", "0"]


async def test_a_box_gets_the_processors_it_was_given(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    box = private_podman.shell("sleep 1000", cpus=3)
    await start(podman, box)
    parents = [mount / cgroup_of(box, private_podman.settings)[1:] for mount in hierarchies()]
    names = ("cpu.cfs_quota_us", "cpu.max")
    files = [file for each in parents for name in names for file in each.glob(f"libpod-*/{name}")]
    assert {file.read_text().split()[0] for file in files} == {"300000"}
    await podman.kill(box)


async def test_tmp_is_limited_and_counts_as_memory(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    shown = await output(
        podman, private_podman, "head -c 50000000 /dev/zero > /tmp/x || echo full", memory_mb=64
    )
    assert shown[-1] == "full"


async def test_an_image_decides_neither_the_program_nor_volumes(
    podman: Podman, private_podman: PrivatePodman
) -> None:
    image = "localhost/opinionated:test"
    private_podman.build_image(
        image, 'ENTRYPOINT ["/bin/false"]', "VOLUME /volume", "ENV LEAKED=1", "USER 0"
    )
    shown = await output(
        podman,
        private_podman,
        "id -u; pwd; echo ${LEAKED-none}; touch /volume/x 2>/dev/null || echo read-only",
        image=image,
    )
    assert shown == ["1000", "/work", "none", "read-only"]
