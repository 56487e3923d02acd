"""Where the files of commands are on this host: one directory per store, job and attempt."""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path

from holdfast.lifecycle.record import JobId
from holdfast.ports.store import Store

STORE_SECRET = "boxes"
"""The secret of the store that its identity is made from."""


def default_directory() -> Path:
    """Return where the files of commands are unless another directory is set."""
    if os.geteuid() == 0:
        return Path("/var/lib/holdfast")
    home = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(home) / "holdfast"


def choose_directory(given: str | Path | None) -> Path:
    """Return the directory that the setting `command_dir` names: the default if it is not set."""
    return default_directory() if given is None else Path(given).absolute()


async def store_identity(store: Store) -> str:
    """Return what distinguishes this store from others on the same host."""
    return sha256(await store.secret(STORE_SECRET)).hexdigest()[:16]


async def find_root(store: Store, directory: Path) -> Path:
    """Return the directory of one store's commands on this host."""
    return directory / await store_identity(store)


def attempt_directory(root: Path, job: JobId, attempt: int) -> Path:
    """Return the directory of one attempt, in that of its store."""
    return jobs_directory(root) / str(job) / str(attempt)


def jobs_directory(root: Path) -> Path:
    """Return where the directories of all attempts are, in that of their store."""
    return root / "jobs"
