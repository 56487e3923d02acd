"""`holdfast upload`: send a directory, to become the files of jobs."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from holdfast.cli.options import JobCommand
from holdfast.cli.output import plain, print_note, progress_bar
from holdfast.cli.runtime import handle_signals
from holdfast.cli.settings import CommandFileOptions
from holdfast.operations.pack_directory import PackedDirectory, SkippedFile, pack_directory
from holdfast.operations.request import Operations
from holdfast.operations.upload_directory import upload_directory
from holdfast.operations.upload_view import UploadView

INTERRUPTED = 130
"""The exit code after Ctrl-C."""
SHOWN_SKIPPED = 20
"""How many files that were left out are named one by one."""

Exclude = Annotated[
    list[str] | None,
    Option(
        "--exclude",
        metavar="GLOB",
        help="Leave out files and directories of this name or path; may be repeated.",
    ),
]


def upload(
    command: JobCommand,
    directory: Annotated[Path, Argument(metavar="DIR", help="The directory to send.")],
    *,
    exclude: Exclude = None,
    files: CommandFileOptions,
) -> None:
    """Upload a directory and print its id, for `files_id` of jobs; Ctrl-C removes it.

    Sockets, pipes, devices and links that leave the directory are left out, and named.
    """
    archive = pack_directory(directory, exclude=exclude or ())

    async def work(operations: Operations) -> UploadView:
        return await send_directory(operations, archive, quiet=command.as_json)

    command.show(sent := command.ask(work, files=files), sent.id)


async def send_directory(
    operations: Operations, archive: PackedDirectory, *, quiet: bool
) -> UploadView:
    """Upload an archive with a progress bar; Ctrl-C removes the upload, and ends the command."""
    _name_skipped(archive.skipped)
    task = asyncio.current_task()
    assert task is not None
    handle_signals(lambda: _cancel(task))
    with progress_bar("uploading", archive.bytes, quiet=quiet, in_bytes=True) as show:
        try:
            return await upload_directory(operations, archive, show)
        except asyncio.CancelledError:
            print_note("interrupted; the upload was removed")
            raise typer.Exit(INTERRUPTED) from None


def _cancel(task: asyncio.Task[object]) -> None:
    task.cancel()


def _name_skipped(skipped: Iterable[SkippedFile]) -> None:
    for number, one in enumerate(found := list(skipped)):
        if number == SHOWN_SKIPPED:
            print_note(f"and {len(found) - number:,} more left out")
            return
        print_note(plain(f"left out: {one.path} is {one.reason}"))
