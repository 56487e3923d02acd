"""Ways out of a box that must be closed, as a table, and what they are tried on.

A probe is a shell command that exits with 0 where it gets out. It proves something only because
the same command, or a variant that does no harm, succeeds without isolation: the control. None of
them does harm even where it succeeds: files of the kernel are opened for writing and not
written, and calls get arguments that fail right after the check of permissions.

None of them contacts an address beyond the host's loopback, wherever it is run.

Programs: those of busybox or coreutils and util-linux, and perl with its `Socket`.
"""

from __future__ import annotations

import os
import platform
import secrets
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from itertools import chain
from pathlib import Path

from msgspec import Struct

from holdfast.runners.denied_calls import DENIED
from holdfast.testing.box_contract import ARTIFACTS, WORK

SAME = "the same command"
NOT_RUN = (126, 127)
"""Exit codes of a probe whose program is missing: that denies nothing."""
_COLUMN = {"x86_64": 0, "aarch64": 1}.get(platform.machine(), 0)
_CALLS = {
    **DENIED,
    "clone": (56, 220),
    "ptrace": (101, 117),
    "pidfd_open": (434, 434),
    "sethostname": (170, 161),
    "socket": (41, 198),
}


class Probe(Struct, frozen=True, kw_only=True):
    """One way out; `@NAME@` in a command is a fact of `HostCanaries`."""

    name: str
    command: str
    control: str | None = SAME
    """What succeeds without isolation. None: no runner allows it, or it would do harm there."""
    optional: bool = False
    """Whether a host may lack it: then there is no control."""


def call(name: str, *arguments: int | str) -> str:
    """Return a command that makes a system call, and fails if that is refused.

    Refused is EPERM, EACCES, ENOSYS, ESRCH, and ENOSPC of namespaces; with another error the call
    came further.
    """
    given = ", ".join(
        str(int(each)) if isinstance(each, int) else f'(my $text = "{each}")' for each in arguments
    )
    made = f"syscall({_CALLS[name][_COLUMN]}, {given}) != -1"
    refused = "grep { $_ == $!+0 } 1, 13, 38, 3, 28"
    return f"perl -e 'exit 0 if {made}; print \"$!\\n\"; exit(({refused}) ? 1 : 0)'"


def connect(family: str, address: str) -> str:
    """Return a command that connects to a socket of the host."""
    return (
        f"perl -MSocket -e 'socket(S, {family}, SOCK_STREAM, 0) or exit 1; "
        f"alarm 5; exit(connect(S, {address}) ? 0 : 1)'"
    )


def open_socket(family: int, kind: int, protocol: int = 0) -> str:
    """Return a command that opens a socket, and closes it."""
    return f"perl -e 'exit(socket(S, {family}, {kind}, {protocol}) ? 0 : 1)'"


def writable(pattern: str) -> str:
    """Return a command that opens the files of a pattern for writing, and writes nothing."""
    return f"for f in {pattern}; do (exec 3>>$f) 2>/dev/null && exit 0; done; exit 1"


def program_of_32_bits() -> str:
    """Return a command that makes and runs the smallest one: its only call ends it with 0."""
    code = bytes.fromhex("31c0 40 31db cd80")
    start, size = 0x08048000, 52 + 32 + len(code)
    head = struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, start + 52 + 32, 52, 0, 0, 52, 32, 1, 0, 0, 0)
    segment = struct.pack("<IIIIIIII", 1, 0, start, start, size, size, 5, 0x1000)
    whole = b"\x7fELF\1\1\1".ljust(16, b"\0") + head + segment + code
    octal = "".join(f"\\{byte:03o}" for byte in whole)
    file = f"{ARTIFACTS}/small"
    return f"printf '{octal}' > {file}; chmod +x {file}; {file}"


_MOUNT_POINT = f"mkdir -p {ARTIFACTS}/m; "

FILES = (
    Probe(name="read a file of the host", command="cat @CANARY@"),
    Probe(name="write a file of the host", command="echo changed >> @CANARY@"),
    Probe(name="read a file of another job", command="cat @OTHER@"),
    Probe(name="read through the root of PID 1", command="cat /proc/1/root@CANARY@"),
    Probe(name="read through a link", command=f"ln -s @CANARY@ {ARTIFACTS}/l; cat {ARTIFACTS}/l"),
    Probe(name="link a file of the host", command=f"ln @CANARY@ {ARTIFACTS}/h"),
    Probe(name="climb from the artifacts", command=f"cat {ARTIFACTS}/../log"),
    Probe(name="read the passwords", command="cat /etc/shadow"),
    Probe(name="read root's home", command="ls /root"),
    Probe(name="see shared memory of the host", command="cat @SHARED@"),
    Probe(name="write the users", command=writable("/etc/passwd")),
    Probe(name="write programs", command="touch /usr/probe", control="test -w /usr"),
    Probe(name="write the root", command="touch /probe", control="test -w /"),
    Probe(name="write the work", command=f"touch {WORK}/probe"),
    Probe(
        name="make the work writable",
        command=f"mount -o remount,rw,bind {WORK} && touch {WORK}/probe",
        control=None,
    ),
    Probe(
        name="use a leaked descriptor",
        command="for n in $(seq 3 63); do test -e /proc/$$/fd/$n && exit 0; done; exit 1",
        control=None,
    ),
)
PROCESSES = (
    Probe(name="see a process of the host", command="test -d /proc/@PID@", control=None),
    Probe(name="signal a process of the host", command="kill -0 @PID@", control=None),
    Probe(
        name="trace a process of the host",
        command=call("ptrace", 0x4206, 0, 0, 0).replace(", 0, 0, 0)", ", @PID@, 0, 0)"),
        control=None,
    ),
    Probe(
        name="open a process of the host",
        command=call("pidfd_open", 0, 0).replace(", 0, 0)", ", @PID@, 0)"),
        control=None,
    ),
    Probe(
        name="read memory of processes",
        command=call("process_vm_readv", 1, 0, 0, 0, 0, 0),
    ),
    Probe(
        name="read the environment of the worker",
        command="cat /proc/[0-9]*/environ | tr '\\0' '\\n' | grep @SECRET@",
        control=None,
    ),
    Probe(
        name="see many processes",
        command="test $(ls -d /proc/[0-9]* | wc -l) -gt 15",
        control=None,
    ),
)
PRIVILEGES = (
    Probe(name="be root", command="test $(id -u) = 0"),
    Probe(name="become root", command="perl -e '$> = 0; exit($> == 0 ? 0 : 1)'"),
    Probe(name="have a capability", command="grep -q 'CapEff:.*[1-9a-f]' /proc/self/status"),
    Probe(
        name="have a capability to give",
        command="grep -q 'CapBnd:.*[1-9a-f]' /proc/self/status",
    ),
    Probe(
        name="gain privileges by a program",
        command="grep -q 'NoNewPrivs:.0' /proc/self/status",
        control=None,
    ),
    Probe(name="call without a filter", command="grep -q 'Seccomp:.0' /proc/self/status"),
    Probe(name="make a user namespace", command="unshare -U true"),
    Probe(
        name="make a user namespace by a fork",
        command=call("clone", 0x10000000 | signal.SIGCHLD, 0, 0, 0, 0),
    ),
    Probe(name="make a network namespace", command="unshare -n true"),
    Probe(name="make a mount namespace", command="unshare -m true"),
    Probe(name="make all in a user namespace", command="unshare -Urmn true"),
    Probe(name="enter a namespace", command="nsenter -t 1 -m true"),
    Probe(name="change the root", command="chroot / true"),
    Probe(name="mount a file system", command=f"{_MOUNT_POINT}mount -t tmpfs x {ARTIFACTS}/m"),
    Probe(name="mount the processes", command=f"{_MOUNT_POINT}mount -t proc x {ARTIFACTS}/m"),
    Probe(name="mount a directory", command=f"{_MOUNT_POINT}mount --bind / {ARTIFACTS}/m"),
    Probe(name="mount by new calls", command=call("fsopen", "tmpfs", 0)),
    Probe(name="make a device", command=f"mknod {ARTIFACTS}/d b 8 0"),
    Probe(name="open a file by its handle", command=call("open_by_handle_at", -100, 0, 0)),
)
KERNEL = (
    Probe(name="trigger a system request", optional=True, command=writable("/proc/sysrq-trigger")),
    Probe(name="set the core pattern", command=writable("/proc/sys/kernel/core_pattern")),
    Probe(name="drop the caches", command=writable("/proc/sys/vm/drop_caches")),
    Probe(
        name="set a release agent",
        optional=True,
        command=writable("/sys/fs/cgroup/release_agent /sys/fs/cgroup/*/release_agent"),
    ),
    Probe(
        name="move to another control group",
        command=writable("/sys/fs/cgroup/cgroup.procs /sys/fs/cgroup/*/cgroup.procs"),
    ),
    Probe(name="set a value of the kernel", command=writable("/sys/kernel/* /sys/kernel/mm/*/*")),
    Probe(
        name="read the kernel's messages",
        optional=True,
        command=call("syslog", 10, 0, 0),
    ),
    Probe(name="open the log of the kernel", optional=True, command="(exec 3</dev/kmsg)"),
    Probe(
        name="see addresses of the kernel",
        optional=True,
        command="head -n 1 /proc/kallsyms | grep -v '^0000000000000000'",
    ),
    Probe(
        name="open a disk",
        optional=True,
        command="ls /dev/vd[a-z] || ls /dev/sd[a-z] || ls /dev/nvme0n1",
    ),
    Probe(name="load a module", optional=True, command=call("init_module", 0, 0, 0)),
    Probe(name="load a kernel", optional=True, command=call("kexec_load", 0, 17, 0, 0)),
    Probe(name="restart the host", command=call("reboot", 0, 0, 0, 0)),
    Probe(name="set the clock", command=call("clock_settime", 0, 0)),
    Probe(name="swap", optional=True, command=call("swapon", "/nonexistent", 0)),
    Probe(name="set the host's name", command=call("sethostname", 0, -1)),
    Probe(name="load a packet filter", command=call("bpf", 5, 0, 0)),
    Probe(name="count events", command=call("perf_event_open", 0, 0, -1, -1, 0)),
    Probe(name="use rings", optional=True, command=call("io_uring_setup", 1, 0)),
    Probe(name="call by 32 bits", optional=True, command=program_of_32_bits()),
    Probe(name="handle page faults", command=call("userfaultfd", 0)),
    Probe(name="use keys", optional=True, command=call("keyctl", 0, -3, 0)),
    Probe(name="add a key", optional=True, command=call("add_key", 0, 0, 0, 0, 0)),
)
NETWORK = (
    Probe(
        name="connect to a server of the host",
        command=connect("PF_INET", 'pack_sockaddr_in(@PORT@, inet_aton("127.0.0.1"))'),
    ),
    Probe(
        name="connect to an abstract socket",
        command=connect("PF_UNIX", 'pack_sockaddr_un("\\0@ABSTRACT@")'),
    ),
    Probe(
        name="connect to a socket in a directory",
        command=connect("PF_UNIX", 'pack_sockaddr_un("@SOCKET@")'),
    ),
    Probe(
        name="have a route",
        optional=True,
        command="tail -n +2 /proc/net/route | grep -q .",
    ),
    Probe(name="have a network", command="tail -n +3 /proc/net/dev | grep -v ' *lo:'"),
    Probe(name="open a raw socket", command=open_socket(2, 3, 1)),
    Probe(name="listen to packets", command=open_socket(17, 3)),
    Probe(
        name="reach the host of the machine",
        optional=True,
        command=open_socket(40, 1),
    ),
    Probe(
        name="reach it by a number that only the kernel cuts",
        optional=True,
        command=call("socket", 1 << 32 | 40, 1, 0),
    ),
    Probe(name="use the kernel's ciphers", optional=True, command=open_socket(38, 5)),
    Probe(name="learn the host's name", command="test $(uname -n) = @HOST@"),
)
GROUPS: Mapping[str, tuple[Probe, ...]] = {
    "files": FILES,
    "processes": PROCESSES,
    "privileges": PRIVILEGES,
    "kernel": KERNEL,
    "network": NETWORK,
}
PROBES = tuple(chain.from_iterable(GROUPS.values()))


def named(probe: Probe) -> str:
    """Return the name of a probe as a part of a test's."""
    return probe.name.replace(" ", "-")


def is_denied(code: int) -> bool:
    """Return whether a probe that ended with a code ran, and did not get out."""
    return code not in (0, *NOT_RUN)


def is_there(probe: Probe) -> bool:
    """Return whether this host has what a probe is about, as far as a host may lack it."""
    if not probe.optional:
        return True
    with tempfile.TemporaryDirectory() as artifacts:
        line = ["/bin/sh", "-c", probe.command]
        env = {**os.environ, "HOLDFAST_ARTIFACTS": artifacts}
        return subprocess.run(line, env=env, capture_output=True, check=False).returncode == 0


class HostCanaries:
    """What a command must not reach on the host: files, sockets, a process with a secret."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        """Place them; the stack removes them."""
        self.canary = _place(directory / "canary")
        self._other = _place(directory / "other-job" / "artifacts" / "result")
        shared = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        shared.chmod(0o711)
        self._facts = {
            "CANARY": str(self.canary),
            "OTHER": str(self._other),
            "SHARED": str(_place(shared / "canary")),
            "PID": str(os.getpid()),
            "SECRET": f"secret-{secrets.token_hex(8)}",
            "ABSTRACT": f"holdfast-{secrets.token_hex(8)}",
            "SOCKET": str(directory / "socket"),
            "HOST": socket.gethostname(),
        }
        self._listen(stack)

    def fill(self, command: str) -> str:
        """Return a command with the facts in it."""
        for name, value in self._facts.items():
            command = command.replace(f"@{name}@", value)
        return command

    @property
    def secret(self) -> str:
        """Return what must be in the environment of the worker."""
        return self._facts["SECRET"]

    def are_intact(self) -> bool:
        """Return whether the files are as they were placed."""
        return {self.canary.read_text(), self._other.read_text()} == {"canary\n"}

    def _listen(self, stack: ExitStack) -> None:
        server = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        self._facts["PORT"] = str(server.getsockname()[1])
        for address in (f"\0{self._facts['ABSTRACT']}", self._facts["SOCKET"]):
            listener = stack.enter_context(socket.socket(socket.AF_UNIX))
            listener.bind(address)
            listener.listen()
        Path(self._facts["SOCKET"]).chmod(0o777)


@contextmanager
def host_canaries(directory: Path) -> Iterator[HostCanaries]:
    """Place canaries that any user of the host could reach."""
    with ExitStack() as stack:
        yield HostCanaries(directory, stack)


def _place(file: Path) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("canary\n")
    file.chmod(0o666)
    return file
