"""The filter of system calls in a sandbox: a short program for the kernel's packet filter.

All calls but `denied_calls` are allowed: namespaces and dropped capabilities are what isolates.
"""

from __future__ import annotations

import errno
import platform
import struct
from collections.abc import Iterator

from msgspec import Struct

from holdfast.runners.denied_calls import DENIED, DENIED_FAMILIES


class _Machine(Struct, frozen=True):
    audit: int
    """AUDIT_ARCH_… of the kernel's audit.h: how a call states the machine that it is made for."""
    column: int
    """Its place in `DENIED`."""
    socket: int
    """The number of the call that opens a socket."""
    other_calls_from: int | None = None
    """From this number the calls of a second interface (x32) have other numbers: all refused."""


_MACHINES = {
    "x86_64": _Machine(0xC000003E, 0, 41, 0x40000000),
    "aarch64": _Machine(0xC00000B7, 1, 198),
}
# Operations, from the kernel's bpf_common.h.
_LOAD, _IF_EQUAL, _IF_AT_LEAST, _RETURN = 0x20, 0x15, 0x35, 0x06
# Answers, and where the parts of a call are, from its seccomp.h. Both machines put the lower half
# of an argument first.
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16


def build_filter(machine: str | None = None) -> bytes | None:
    """Return the program for a machine, or for this one; None for a machine that is not known."""
    known = _MACHINES.get(machine or platform.machine())
    return None if known is None else b"".join(_program(known))


def _program(machine: _Machine) -> Iterator[bytes]:
    yield _step(_LOAD, _ARCHITECTURE)
    yield _step(_IF_EQUAL, machine.audit, yes=1)
    yield _step(_RETURN, _KILL_PROCESS)
    yield _step(_LOAD, _NUMBER)
    if machine.other_calls_from is not None:
        yield from _deny(_IF_AT_LEAST, machine.other_calls_from)
    for numbers in DENIED.values():
        yield from _deny(_IF_EQUAL, numbers[machine.column])
    yield _step(_IF_EQUAL, machine.socket, yes=1)
    yield _step(_RETURN, _ALLOW)
    yield _step(_LOAD, _FIRST_ARGUMENT)
    for family in DENIED_FAMILIES.values():
        yield from _deny(_IF_EQUAL, family)
    yield _step(_RETURN, _ALLOW)


def _deny(comparison: int, value: int) -> Iterator[bytes]:
    """Refuse if what was loaded compares so, else continue."""
    yield _step(comparison, value, no=1)
    yield _step(_RETURN, _ERRNO | errno.EPERM)


def _step(operation: int, value: int, *, yes: int = 0, no: int = 0) -> bytes:
    """Return one instruction: `yes` and `no` are how many of the next ones are skipped."""
    return struct.pack("=HBBI", operation, yes, no, value)
