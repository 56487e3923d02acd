"""The operations on an open store: the table of handlers by kind of request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from holdfast.operations import (
    change_jobs,
    list_jobs,
    manage,
    policies,
    read_artifacts,
    read_jobs,
    read_logs,
    settle_letters,
    submit_jobs,
    uploads,
    write_uploads,
)
from holdfast.operations import requests as q
from holdfast.operations.request import R, Request
from holdfast.operations.scope import CallerScope

HANDLERS: dict[type[Request[Any]], Callable[[CallerScope, Any], Awaitable[Any]]] = {
    q.SubmitJob: submit_jobs.submit_job,
    q.SubmitJobs: submit_jobs.submit_jobs,
    q.ListJobs: list_jobs.list_jobs,
    q.GetJob: read_jobs.get_job,
    q.GetJobInDialect: read_jobs.get_job_in_dialect,
    q.GetHistory: read_jobs.get_history,
    q.GetHistoryInDialect: read_jobs.get_history_in_dialect,
    q.GetJobEvents: read_jobs.get_history,
    q.AwaitEvents: read_jobs.await_events,
    q.GetProgress: read_jobs.get_progress,
    q.GetLogs: read_logs.get_logs,
    q.GetOutput: read_logs.get_output,
    q.ListArtifacts: read_artifacts.list_artifacts,
    q.GetArtifact: read_artifacts.get_artifact,
    q.GetResult: read_jobs.get_result,
    q.ExplainJob: read_jobs.explain_job,
    q.GetLineage: read_jobs.get_lineage,
    q.CancelJob: change_jobs.cancel_job,
    q.KillJob: change_jobs.kill_job,
    q.SendSignal: change_jobs.send_signal,
    q.ResolveStep: change_jobs.resolve_step,
    q.HoldJob: change_jobs.hold_job,
    q.UnholdJob: change_jobs.hold_job,
    q.RescheduleJob: change_jobs.reschedule_job,
    q.ListApprovals: policies.list_approvals,
    q.ApproveJob: policies.decide_approval,
    q.DenyJob: policies.decide_approval,
    q.ExplainPolicy: policies.explain_policy,
    q.ListLetters: settle_letters.list_letters,
    q.CountLetters: settle_letters.count_letters,
    q.GetLetter: read_jobs.get_letter,
    q.RedriveLetter: settle_letters.redrive_letter,
    q.DiscardLetter: settle_letters.discard_letter,
    q.RedriveLetters: settle_letters.redrive_letters,
    q.DiscardLetters: settle_letters.discard_letters,
    q.GetPolicy: policies.get_policy,
    q.ListPolicies: policies.list_policies,
    q.ApplyPolicy: policies.apply_policy,
    q.ListQueues: manage.list_queues,
    q.PauseQueue: manage.change_queue,
    q.ResumeQueue: manage.change_queue,
    q.ListWorkers: manage.list_workers,
    q.GetClock: manage.get_clock,
    q.GetStats: manage.get_stats,
    q.AddWebhook: manage.add_webhook,
    q.ListWebhooks: manage.list_webhooks,
    q.GetWebhook: manage.get_webhook,
    q.RemoveWebhook: manage.remove_webhook,
    q.CreateUpload: uploads.create_upload,
    q.ListUploads: uploads.list_uploads,
    q.GetUpload: uploads.get_upload,
    q.WriteUpload: write_uploads.write_archive,
    q.WriteUploadFile: write_uploads.write_file,
    q.FinalizeUpload: uploads.finalize_upload,
    q.DeleteUpload: uploads.delete_upload,
    q.CreateToken: manage.create_token,
    q.ListTokens: manage.list_tokens,
    q.RevokeToken: manage.revoke_token,
}
OPERATIONS: tuple[type[Request[Any]], ...] = (*HANDLERS, q.GetEvents)
"""All operations; only a server can answer the last."""


class LocalOperations(CallerScope):
    """Carries out requests over an open session, in one caller's name."""

    async def do(self, request: Request[R]) -> R:
        """Carry out a request, and return its result."""
        result: R = await HANDLERS[type(request)](self, request)
        return result
