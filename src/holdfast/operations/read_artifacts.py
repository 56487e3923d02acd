"""Handlers that read what a command left in /artifacts."""

from __future__ import annotations

from holdfast.operations import requests as q
from holdfast.operations.scope import CallerScope
from holdfast.operations.views import ArtifactList
from holdfast.queries.artifacts import ReadableArtifact, open_artifact, read_manifest


async def list_artifacts(scope: CallerScope, request: q.ListArtifacts) -> ArtifactList:
    """List what was kept; none for a job that left nothing, or is not a command."""
    job = await scope.get(request.job)
    return ArtifactList.of(job, await read_manifest(scope.store, scope.session.blobs, job))


async def get_artifact(scope: CallerScope, request: q.GetArtifact) -> ReadableArtifact:
    """Find one file; its bytes are read as they are asked for."""
    job = await scope.get(request.job)
    return await open_artifact(scope.store, scope.session.blobs, job, request.name)
