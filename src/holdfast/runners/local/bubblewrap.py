"""Lines that start bubblewrap, with the options and contents that it reads from descriptors.

The options go through a descriptor because they hold the environment of the command: other users
of the host can read the arguments of a process, and the environment of the programs that run
before bubblewrap, as root, must not be a submitter's to choose.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from msgspec import Struct, field

Option = str | bytes
"""An argument of bubblewrap; bytes are contents, in whose place it gets a descriptor's number."""
ENTER = (
    'ulimit -c 0; while [ "$1" != -- ]; do echo 0 > "$1" || exit 125; shift; done; shift; exec "$@"'
)
"""Enters control groups, by their files, and becomes the command after `--`."""
HOST_ENV = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
"""The environment of the programs that run before the command."""
LAUNCH_TRIES = 5
"""How often bubblewrap may fail before it runs the command. It fails if a mount that it has just
listed is gone: any container that ends on the host at that moment takes some away."""


class Launch(Struct, frozen=True, kw_only=True):
    """A line that starts a box, and the descriptors that it passes on by number."""

    argv: tuple[str, ...]
    descriptors: tuple[int, ...] = ()
    reports: int | None = None
    """Where bubblewrap reports the first process of the box, and its exit code; None without it."""
    env: Mapping[str, str] = field(default_factory=lambda: HOST_ENV)
    cwd: str = "/"


def enter(doors: Sequence[os.PathLike[str]], argv: Sequence[str]) -> tuple[str, ...]:
    """Return a line that enters control groups first."""
    return ("/bin/sh", "-c", ENTER, "enter", *map(os.fspath, doors), "--", *argv)


def env_options(env: Mapping[str, str]) -> Iterator[Option]:
    """Return the options that make this the whole environment."""
    yield "--clearenv"
    for name, value in env.items():
        yield from ("--setenv", name, value)


@contextmanager
def bubblewrapped(
    bwrap: str,
    options: Sequence[Option],
    command: Sequence[str],
    *,
    doors: Sequence[os.PathLike[str]] = (),
    before: Sequence[str] = (),
    cwd: str = "/",
) -> Iterator[Launch]:
    """Give a line that runs a command in bubblewrap, after `before`, in the groups of `doors`.

    Its descriptors are open within the block, except `reports`, which the block takes over.
    """
    opened: list[int] = []
    reports, theirs = os.pipe()
    try:
        opened.append(theirs)
        numbered = [_number(each, opened) for each in (*options, "--json-status-fd", str(theirs))]
        arguments = _contents("".join(f"{each}\0" for each in numbered).encode(), opened)
        line = (*before, bwrap, "--args", str(arguments), "--", *command)
        yield Launch(argv=enter(doors, line), descriptors=tuple(opened), reports=reports, cwd=cwd)
    except BaseException:
        with suppress(OSError):
            os.close(reports)
        raise
    finally:
        for each in opened:
            os.close(each)


def _number(option: Option, opened: list[int]) -> str:
    return option if isinstance(option, str) else str(_contents(option, opened))


def _contents(data: bytes, opened: list[int]) -> int:
    descriptor = os.memfd_create("holdfast")
    opened.append(descriptor)
    with os.fdopen(descriptor, "wb", closefd=False) as file:
        file.write(data)
    os.lseek(descriptor, 0, os.SEEK_SET)
    return descriptor
