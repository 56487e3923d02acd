"""Save artifacts below a directory of this machine.

What their names and contents are is what a command chose, or a server claims. No file is written
outside the directory, none through a link, and none that exists is replaced unasked. A file
appears under its name once all of it has arrived and its digest is right.
"""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path

from holdfast.errors import ArtifactsDamaged, FileNotSaved, NoSuchArtifact
from holdfast.ids import mint_id
from holdfast.operations.request import Operations
from holdfast.operations.requests import GetArtifact, ListArtifacts, Which
from holdfast.operations.views import ArtifactList
from holdfast.queries.artifacts import Artifact, is_artifact_name

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What a file system answers that has no hard links."""


async def download_artifacts(
    operations: Operations,
    job: Which,
    directory: str | Path,
    paths: Collection[str] = (),
    *,
    overwrite: bool = False,
) -> list[Path]:
    """Save artifacts of a job, by default all; return the files that were written."""
    listed = await operations.do(ListArtifacts(job=job))
    files = choose_artifacts(listed, paths)
    return await save_artifacts(operations, job, files, Path(directory), overwrite=overwrite)


def choose_artifacts(listed: ArtifactList, paths: Collection[str]) -> list[Artifact]:
    """Return the files with these paths, or below them; without paths all.

    NoSuchArtifact if there is none for one of them.
    """
    wanted = [path.removesuffix("/") for path in paths]
    chosen = {
        path: [one for one in listed.artifacts if f"{one.path}/".startswith(f"{path}/")]
        for path in wanted
    }
    for path, found in chosen.items():
        if not found:
            text = f"job {listed.job_id} has no artifact {path!r}"
            raise NoSuchArtifact(text, job_id=listed.job_id)
    if not wanted:
        return listed.artifacts
    names = {one.path for found in chosen.values() for one in found}
    return [one for one in listed.artifacts if one.path in names]


async def save_artifacts(
    operations: Operations,
    job: Which,
    files: Sequence[Artifact],
    directory: Path,
    *,
    overwrite: bool = False,
    on_bytes: Callable[[int], None] | None = None,
) -> list[Path]:
    """Save files below a directory, which is made if it is not there; return where they are.

    `on_bytes` is called with the number of bytes that have arrived of all of them. FileNotSaved
    if one cannot be written; if one exists, nothing is read at all, unless `overwrite`.
    """
    targets = [_Target(directory, file, overwrite) for file in files]
    await asyncio.to_thread(_check_targets, directory, targets)
    arrived = 0
    for target in targets:
        opened = await operations.do(GetArtifact(job=job, name=target.file.path))
        with target.writing() as write:
            async for piece in opened.read():
                await asyncio.to_thread(write, piece)
                arrived += len(piece)
                if on_bytes is not None:
                    on_bytes(arrived)
    return [target.path for target in targets]


def _check_targets(directory: Path, targets: Sequence[_Target]) -> None:
    with _translate_os_errors(directory):
        directory.mkdir(parents=True, exist_ok=True)
    for target in targets:
        target.check()


class _Target:
    """One file that is to be written."""

    def __init__(self, directory: Path, file: Artifact, overwrite: bool) -> None:
        self.file = file
        *self._above, self._name = file.path.split("/")
        self.path = directory / file.path
        self._directory = directory
        self._overwrite = overwrite

    def check(self) -> None:
        """Refuse a name that leads elsewhere, and one that is taken."""
        if not all(is_artifact_name(name) for name in (*self._above, self._name)):
            raise FileNotSaved(f"unsafe name of an artifact: {self.file.path!r}")
        if not self._overwrite and os.path.lexists(self.path):
            raise self._exists_error()

    @contextmanager
    def writing(self) -> Iterator[Callable[[bytes], None]]:
        """Write the file in a block: it appears at the end of it, if it is what was promised."""
        with _translate_os_errors(self.path), self._open_parent() as parent:
            temporary = f".holdfast-{mint_id().hex}.part"
            try:
                digest, length = sha256(), 0
                with os.fdopen(os.open(temporary, _NEW_FILE, 0o666, dir_fd=parent), "wb") as file:

                    def write(piece: bytes) -> None:
                        nonlocal length
                        length += len(piece)
                        if length > self.file.bytes:
                            raise self._other_error()
                        digest.update(piece)
                        file.write(piece)

                    yield write
                if (digest.hexdigest(), length) != (self.file.sha256, self.file.bytes):
                    raise self._other_error()
                self._publish(temporary, parent)
            finally:
                with suppress(FileNotFoundError):
                    os.unlink(temporary, dir_fd=parent)

    def _publish(self, temporary: str, parent: int) -> None:
        """Give a complete file its name; one that exists is replaced only if that was asked for."""
        if not self._overwrite:
            try:
                os.link(temporary, self._name, src_dir_fd=parent, dst_dir_fd=parent)
            except FileExistsError:
                raise self._exists_error() from None
            except OSError as error:
                if error.errno not in _NO_LINKS:
                    raise
            else:
                return
        os.replace(temporary, self._name, src_dir_fd=parent, dst_dir_fd=parent)

    @contextmanager
    def _open_parent(self) -> Iterator[int]:
        """Open the directory of the file, name by name: a link is not followed but refused."""
        # The directory itself is the caller's choice, and may be a link.
        current = os.open(self._directory, _DIRECTORY & ~os.O_NOFOLLOW)
        try:
            for name in self._above:
                with suppress(FileExistsError):
                    os.mkdir(name, dir_fd=current)
                inner = os.open(name, _DIRECTORY, dir_fd=current)
                os.close(current)
                current = inner
            yield current
        finally:
            os.close(current)

    def _other_error(self) -> ArtifactsDamaged:
        return ArtifactsDamaged(f"{self.file.path!r} is not the file that was listed")

    def _exists_error(self) -> FileNotSaved:
        return FileNotSaved(f"{self.path} exists, and is not overwritten unless asked to")


@contextmanager
def _translate_os_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileNotSaved(f"{path} cannot be written: {error.strerror or error}") from error
