"""`holdfast artifacts`: list or save the files that a command left in /artifacts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from holdfast.cli.options import JobCommand, JobName, find_job
from holdfast.cli.output import align_table, plain, print_note, progress_bar
from holdfast.cli.settings import CommandFileOptions
from holdfast.errors import BadData
from holdfast.lifecycle.record import JobId
from holdfast.operations.json_format import json_of
from holdfast.operations.request import Operations
from holdfast.operations.requests import ListArtifacts
from holdfast.operations.save_artifacts import choose_artifacts, save_artifacts
from holdfast.operations.views import ArtifactList
from holdfast.queries.artifacts import Artifact


def show_artifacts(
    command: JobCommand,
    job: JobName,
    paths: Annotated[
        list[str] | None,
        Argument(metavar="[PATH]...", help="Only these files, or what is in these directories."),
    ] = None,
    *,
    to: Annotated[
        Path | None, Option(metavar="DIR", help="Save them below DIR, instead of listing them.")
    ] = None,
    force: Annotated[bool, Option("--force", help="Overwrite files that exist.")] = False,
    files: CommandFileOptions,
) -> None:
    """List the files that a command left in /artifacts, or save them with --to.

    They are collected when the command ends, whatever its outcome. What is saved is checked by its
    SHA-256; a file that exists is not overwritten without --force.
    """
    if force and to is None:
        raise BadData("--force is for --to DIR")

    async def work(operations: Operations) -> tuple[ArtifactList, list[Artifact]]:
        listed = await operations.do(ListArtifacts(job=await find_job(operations, job)))
        chosen = choose_artifacts(listed, paths or ())
        if to is not None:
            await save_with_progress(
                operations, listed, chosen, to, overwrite=force, quiet=command.as_json
            )
        return listed, chosen

    listed, chosen = command.ask(work, files=files)
    data = json_of(listed) | {
        "artifacts": [json_of(one) for one in chosen],
        "saved_to": None if to is None else str(to),
    }
    lines = _as_table(chosen) if to is None else []
    command.show(data, *lines, notes=_notes(listed))


async def save_with_progress(
    operations: Operations,
    listed: ArtifactList,
    files: Sequence[Artifact],
    directory: Path,
    *,
    overwrite: bool,
    quiet: bool = False,
) -> None:
    """Save artifacts below a directory, with a bar of the bytes on a terminal."""
    total = sum(one.bytes for one in files)
    with progress_bar("artifacts", total, quiet=quiet) as advance:
        await save_artifacts(
            operations,
            JobId(listed.internal_id),
            files,
            directory,
            overwrite=overwrite,
            on_bytes=advance,
        )
    if not quiet:
        print_note(plain(f"{_count(len(files))}, {total:,} bytes, saved below {directory}"))


def _count(files: int) -> str:
    return "1 artifact" if files == 1 else f"{files:,} artifacts"


def _as_table(files: Sequence[Artifact]) -> list[str]:
    rows = [(plain(one.path), f"{one.bytes:,}", one.sha256) for one in files]
    return align_table(("PATH", "BYTES", "SHA256"), rows) if rows else []


def _notes(listed: ArtifactList) -> list[str]:
    notes = [] if listed.artifacts else [f"job {plain(listed.job_id)} left no artifacts"]
    skipped = [f"{count:,} {reason}" for reason, count in listed.skipped_counts.items()]
    return [*notes, f"not kept: {', '.join(skipped)}"] if skipped else notes
