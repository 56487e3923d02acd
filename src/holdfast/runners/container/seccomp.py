"""The filter of system calls in a container: the profile of the host, less what is denied.

The profiles that Podman comes with allow what containers in containers need: namespaces and mounts,
keys of the kernel, any kind of socket. A command needs none of that, and has it in no other box.
"""

from __future__ import annotations

import errno
from functools import cache
from pathlib import Path
from socket import AF_INET, AF_INET6, AF_NETLINK, AF_UNIX
from typing import Any

from msgspec import DecodeError, json

from holdfast.errors import RuntimeTrouble
from holdfast.runners.container.host_files import ensure_file
from holdfast.runners.denied_calls import DENIED

PROFILE_FILE = "seccomp.json"
HOST_PROFILES = (Path("/etc/containers/seccomp.json"), Path("/usr/share/containers/seccomp.json"))
"""Where a host keeps the profile of its containers: the administrator's, then the package's."""
FAMILIES = (AF_UNIX, AF_INET, AF_INET6, AF_NETLINK)
"""The sockets that are allowed. A network namespace does not separate all of the others."""
NEW_NAMESPACES = 0x7E020000
"""All flags of the kernel's sched.h by which `clone` makes a namespace."""
_INT = 0xFFFFFFFF


def find_profile() -> Path | None:
    """Return the host's profile; None if Podman has only the one that is built in."""
    return next((path for path in HOST_PROFILES if path.exists()), None)


def write_profile(host_profile: Path, directory: Path) -> None:
    """Write the profile of boxes. Raise `RuntimeTrouble` if the host's cannot be used."""
    ensure_file(directory / PROFILE_FILE, _stricter_text(host_profile), 0o644)


@cache
def _stricter_text(host_profile: Path) -> str:
    try:
        profile = json.decode(host_profile.read_bytes())
        return json.encode(stricter(profile)).decode()
    except (OSError, DecodeError, KeyError, TypeError, AttributeError) as error:
        text = f"the profile of system calls {host_profile} cannot be used: {error}"
        raise RuntimeTrouble(text) from error


def stricter(profile: dict[str, Any]) -> dict[str, Any]:
    """Return a profile without the calls of `denied_calls`, new namespaces and rare sockets."""
    ours = {*DENIED, "clone", "clone3", "socket"}
    kept = [{**rule, "names": _without(rule["names"], ours)} for rule in profile["syscalls"]]
    return {
        **profile,
        # Calls of 32 bits have other ways to the same things.
        "archMap": [{**each, "subArchitectures": []} for each in profile["archMap"]],
        "syscalls": [*(rule for rule in kept if rule["names"]), *_own_rules()],
    }


def _without(names: list[str], ours: set[str]) -> list[str]:
    return [name for name in names if name not in ours]


def _own_rules() -> list[dict[str, Any]]:
    return [
        _refuse(sorted(DENIED), errno.EPERM),
        # Its flags are in memory, where no filter sees them; libraries then call `clone`.
        _refuse(["clone3"], errno.ENOSYS),
        _allow("clone", mask=NEW_NAMESPACES, value=0),
        # Compared as the kernel does, by 32 bits: the upper ones would hide a family.
        *(_allow("socket", mask=_INT, value=family) for family in FAMILIES),
    ]


def _refuse(names: list[str], error: int) -> dict[str, Any]:
    return {"names": names, "action": "SCMP_ACT_ERRNO", "errnoRet": error}


def _allow(name: str, *, mask: int, value: int) -> dict[str, Any]:
    """Allow a call whose first argument has this value under a mask."""
    first = {"index": 0, "value": mask, "valueTwo": value, "op": "SCMP_CMP_MASKED_EQ"}
    return {"names": [name], "action": "SCMP_ACT_ALLOW", "args": [first]}
