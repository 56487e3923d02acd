"""Under which keys the blobs of a store are."""

from __future__ import annotations

from hashlib import sha256

from holdfast.lifecycle.record import JobId

LOGS = "logs"
ARTIFACTS = "artifacts"
UPLOADS = "uploads"


def logs_prefix(job: JobId, attempt: int | None = None) -> str:
    """Return the prefix of what a command printed, in all attempts or in one."""
    return _below(LOGS, job, attempt)


def artifacts_prefix(job: JobId, attempt: int | None = None) -> str:
    """Return the prefix of what a command left in /artifacts."""
    return _below(ARTIFACTS, job, attempt)


def upload_prefix(upload: str) -> str:
    """Return the prefix of the files of an upload."""
    return f"{UPLOADS}/{upload}"


def upload_archive_key(upload: str) -> str:
    """Return the key of the archive of an upload."""
    return f"{upload_prefix(upload)}/archive"


def upload_file_key(upload: str, path: str) -> str:
    """Return the key of a single file of an upload: a path may have letters that no key has."""
    return f"{upload_prefix(upload)}/files/{sha256(path.encode()).hexdigest()}"


def upload_manifest_key(upload: str) -> str:
    """Return the key of the list of all that an upload contains."""
    return f"{upload_prefix(upload)}/manifest"


def _below(top: str, job: JobId, attempt: int | None) -> str:
    return f"{top}/{job}" if attempt is None else f"{top}/{job}/{attempt}"
