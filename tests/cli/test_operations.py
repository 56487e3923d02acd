"""The commands against the one list of operations: each has a command, or a reason why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.runtime import FOUND_PROBLEMS
from holdfast.errors import NoSuchJob
from holdfast.operations import requests as q
from holdfast.operations.local import OPERATIONS, LocalOperations
from holdfast.operations.request import Request
from holdfast.testing.store_actions import running_job
from tests.cli.commands import on, run

COMMANDS: dict[type[Request[Any]], str] = {
    q.SubmitJob: "submit mail",
    q.ListJobs: "ls",
    q.GetJob: "show runs",
    q.GetHistory: "show runs",
    q.GetProgress: "watch runs",
    q.GetLogs: "logs runs",
    q.ListArtifacts: "artifacts runs",
    q.GetResult: "submit mail --wait 1s",
    q.CancelJob: "cancel runs",
    q.SendSignal: "signal runs go",
    q.ResolveStep: "resolve runs charge --happened",
    q.HoldJob: "hold runs",
    q.UnholdJob: "unhold runs",
    q.RescheduleJob: "reschedule runs --in 5m",
    q.ExplainJob: "why runs",
    q.GetLineage: "show runs --tree",
    q.ListLetters: "dlq list",
    q.GetLetter: "dlq show runs",
    q.CountLetters: "dlq redrive --all --dry-run",
    q.RedriveLetter: "dlq redrive runs",
    q.RedriveLetters: "dlq redrive --all --yes",
    q.DiscardLetter: "dlq discard runs",
    q.DiscardLetters: "dlq discard --all --yes",
    q.ListQueues: "queues list",
    q.PauseQueue: "queues pause mail",
    q.ResumeQueue: "queues resume mail",
    q.ListWorkers: "workers",
    q.GetClock: "ls --since 1h",
    q.AddWebhook: "webhook add https://hooks.example/",
    q.ListWebhooks: "webhook ls",
    q.RemoveWebhook: "webhook rm 1",
    q.CreateUpload: "upload sent",
    q.WriteUpload: "upload sent",
    q.FinalizeUpload: "upload sent",
    q.ListUploads: "uploads list",
    q.GetUpload: "uploads show u1",
    q.DeleteUpload: "uploads remove u1",
    q.CreateToken: "token create ci --role viewer",
    q.ListTokens: "token ls",
    q.RevokeToken: "token revoke 1",
    q.ListApprovals: "approvals",
    q.ApproveJob: "approve runs",
    q.DenyJob: "deny runs",
    q.ExplainPolicy: "policy explain runs",
    q.GetPolicy: "policy show",
    q.ListPolicies: "policy history",
    q.ApplyPolicy: "policy apply --remove",
}
WITHOUT_COMMAND: dict[type[Request[Any]], str] = {
    q.SubmitJobs: "for programs: a shell submits one job after another",
    q.GetJobInDialect: "for programs that were written for one of the five seeds",
    q.GetHistoryInDialect: "for programs that were written for one of the five seeds",
    q.GetJobEvents: "for clients that follow a job over HTTP: `watch` shows the same",
    q.AwaitEvents: "for handles and clients that wait for a job: `watch` polls",
    q.GetEvents: "for clients that follow all jobs over HTTP",
    q.GetStats: "for dashboards: `queues list` and `workers` show the same",
    q.GetWebhook: "`webhook ls` shows the same",
    q.KillJob: "for programs that were written for the document of commands: `cancel` does it",
    q.WriteUploadFile: "for programs that write single files: `upload` sends one archive",
    q.GetArtifact: "`artifacts --to` reads each file of the list, which a job has at its end",
    q.GetOutput: "for programs that were written for the document of commands: see `logs --tail`",
}


class Reached(NoSuchJob):
    """Ends a command at the operation that is looked for."""


def test_every_operation_has_a_command_or_a_reason_why_not() -> None:
    assert COMMANDS.keys() & WITHOUT_COMMAND.keys() == set()
    assert COMMANDS.keys() | WITHOUT_COMMAND.keys() == set(OPERATIONS)


@pytest.mark.parametrize("operation", COMMANDS, ids=lambda operation: operation.__name__)
def test_the_command_of_an_operation_carries_it_out(
    operation: type[Request[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = str(tmp_path / "jobs.db")
    on(place, lambda store: running_job(store, job_id="runs"))
    carry_out = LocalOperations.do

    async def do(self: LocalOperations, request: Request[Any]) -> Any:
        if isinstance(request, operation):
            raise Reached(operation.__name__)
        return await carry_out(self, request)

    monkeypatch.setattr(LocalOperations, "do", do)
    monkeypatch.setenv("HOLDFAST_BLOBS", str(tmp_path / "blobs"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sent").mkdir()
    outcome = run(place, *COMMANDS[operation].split())
    assert outcome.exit_code == FOUND_PROBLEMS, outcome.output
    assert operation.__name__ in outcome.stderr
