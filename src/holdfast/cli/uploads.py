"""`holdfast uploads`: what was sent to become the files of jobs."""

from __future__ import annotations

from typing import Annotated

from typer import Argument, Option

from holdfast.cli.options import JobCommand, Limit, check_texts
from holdfast.cli.output import align_table, short
from holdfast.operations.requests import DeleteUpload, GetUpload, ListUploads
from holdfast.operations.upload_view import UploadView

UploadId = Annotated[str, Argument(metavar="ID", help="The upload's id.")]


def list_uploads(
    command: JobCommand,
    before: Annotated[
        str | None, Option(help="The next page: the `next` of the last page.")
    ] = None,
    limit: Limit = 100,
) -> None:
    """List uploads, newest first."""
    check_texts(before=before)
    page = command.do(ListUploads(before=before, limit=limit))
    rows = [
        (one.id, short(one.tenant, 40), one.state.value, f"{one.bytes:,}", str(one.expires_at))
        for one in page.uploads
    ]
    head = ("ID", "TENANT", "STATE", "BYTES", "EXPIRES")
    lines = align_table(head, rows) if rows else ["no uploads"]
    if page.next is not None:
        lines.append(f"more: --before {page.next}")
    command.show(page, *lines)


def show_upload(command: JobCommand, id: UploadId) -> None:
    """Show an upload."""
    check_texts(id=id)
    upload = command.do(GetUpload(upload=id))
    command.show(upload, _describe(upload), f"expires at {upload.expires_at}")


def remove_upload(command: JobCommand, id: UploadId) -> None:
    """Delete an upload and its files; jobs that wait for it end."""
    check_texts(id=id)
    upload = command.do(DeleteUpload(upload=id))
    command.show(upload, _describe(upload))


def _describe(upload: UploadView) -> str:
    return f"upload {upload.id} is {upload.state.value}, {upload.bytes:,} bytes"
