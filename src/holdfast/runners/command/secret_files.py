"""Secrets on their way into a box: files in memory, for as long as the box exists.

They are read from where the host keeps them when a box is made, and removed with the box. What a
worker that was killed left behind is listed like a box without a job, and removed by the sweep.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from holdfast.errors import RuntimeTrouble
from holdfast.lifecycle.record import JobId
from holdfast.ports.box import Box, BoxLabel, box_name
from holdfast.runners.command.files import make_passable
from holdfast.runners.command.host_lock import filesystem_of
from holdfast.runners.command.profiles import Secret

log = logging.getLogger(__name__)

MEMORY_PLACES = (Path("/run"), Path("/dev/shm"))
"""Where files in memory are, the better place first."""
MEMORY_FILESYSTEMS = frozenset({"tmpfs", "ramfs"})
SECRET_BYTES = 64 * 1024
SECRETS_MARK = "secrets"
"""Exists in the directory of an attempt that was given secrets: these are gone before it."""
_TRIES = 5


def find_memory_place() -> Path | None:
    """Return a directory in memory that is this user's own; None where the host has none."""
    for place in MEMORY_PLACES:
        if filesystem_of(place) in MEMORY_FILESYSTEMS and os.access(place, os.W_OK | os.X_OK):
            return place / f"holdfast-{os.geteuid()}"
    return None


def attempt_secrets(directory: Path, job: JobId, attempt: int) -> Path:
    """Return the directory of the secrets of one attempt."""
    return directory / f"{job}.{attempt}"


def write_secrets(directory: Path, secrets: Mapping[str, Secret]) -> None:
    """Write secrets as files that only their owner can read; a runtime gives them to its user.

    Raise `RuntimeTrouble` for one that this host does not have now.
    """
    values = {name: _read(name, secret) for name, secret in secrets.items()}
    _make_private(directory)
    for name, value in values.items():
        path = directory / name
        # A worker that died may have written it, and given it to the box's user.
        path.unlink(missing_ok=True)
        written = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o400)
        with os.fdopen(written, "wb") as file:
            file.write(value)


def _read(name: str, secret: Secret) -> bytes:
    """Return the value of a secret, without the newline that an editor puts at its end."""
    try:
        if secret.env is not None:
            value = os.environ[secret.env].encode(errors="surrogateescape")
        else:
            with Path(secret.file or "").open("rb") as file:
                value = file.read(SECRET_BYTES + 1)
    except KeyError:
        raise _trouble(name, secret, "there is no such variable") from None
    except OSError as error:
        raise _trouble(name, secret, error.strerror or "it cannot be read") from None
    value = value.removesuffix(b"\n").removesuffix(b"\r")
    if not value or len(value) > SECRET_BYTES:
        raise _trouble(name, secret, f"it must have 1 to {SECRET_BYTES:,} bytes")
    return value


def _trouble(name: str, secret: Secret, text: str) -> RuntimeTrouble:
    """Return an error for the record of a job; where the secret is, is only in the worker's log."""
    log.warning("secret %s: %s: %s", name, secret.place, text)
    field = "file" if secret.env is None else "env"
    return RuntimeTrouble(f"secret {name}: {field}: {text}")


def _make_private(directory: Path) -> None:
    """Make the directory of an attempt. Its parents can be passed, and only their owner lists them.

    Again and again: another worker that ends may remove a parent that is empty.
    """
    for left in reversed(range(_TRIES)):
        try:
            for parent in (directory.parents[1], directory.parent):
                _make_own(parent)
            directory.mkdir(mode=0o700, exist_ok=True)
        except (FileNotFoundError, FileExistsError):
            # The second: it was there for mkdir, and gone when Python looked what it is.
            if not left:
                raise
        else:
            return


def _make_own(directory: Path) -> None:
    """Make a directory, and see that it is this user's: others may write beside it."""
    make_passable(directory)
    found = directory.lstat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022 or directory.is_symlink():
        raise RuntimeTrouble(f"secrets cannot be kept in {directory}: it is another user's")


def read_secret_values(box: Box) -> list[bytes] | None:
    """Return the values of the secrets that a box has, for their redaction; blocks for a moment.

    None if it had some and they are gone, such as after a reboot, or cannot be read: what to mask
    is not known then.
    """
    if box.secrets is None or not (box.directory / SECRETS_MARK).exists():
        return []
    try:
        values = [path.read_bytes() for path in sorted(box.secrets.iterdir())]
    except OSError:
        return None
    return [value for value in values if value]


def remove_secrets(directory: Path, job: JobId, attempt: int) -> None:
    """Remove the secrets of one attempt; there may be none."""
    with suppress(FileNotFoundError):
        shutil.rmtree(attempt_secrets(directory, job, attempt))


def list_secrets(directory: Path) -> list[BoxLabel]:
    """Return the attempts that secrets are kept for, as labels of their boxes."""
    labels = []
    with suppress(FileNotFoundError, NotADirectoryError):
        for path in directory.iterdir():
            job, _, attempt = path.name.rpartition(".")
            with suppress(ValueError):
                id_, number = JobId(UUID(job)), int(attempt)
                name = box_name(id_, number)
                labels.append(BoxLabel(name=name, job=id_, attempt=number, epoch=0))
    return labels


def remove_empty_places(directory: Path) -> None:
    """Remove the directories that secrets were kept in, if none is left."""
    for place in (directory, directory.parent):
        with suppress(OSError):
            place.rmdir()
