"""From a call to a decided job: what the task says, what the caller asks, what is inherited."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from holdfast.arguments import SHOWN_PROBLEMS
from holdfast.context import TRACEPARENT, current_context
from holdfast.errors import BadData, HoldfastError, PartlySubmitted
from holdfast.identity import mint_id
from holdfast.jobs import JobHandle
from holdfast.lifecycle.job import Actor, JobId, NewJob
from holdfast.lifecycle.states import Link
from holdfast.lifecycle.submit import Submission, submit, submit_alike
from holdfast.lifecycle.terms import TaskTerms, by_name
from holdfast.tasks import Call, numbered
from holdfast.telemetry.tracing import trace_id_of

log = logging.getLogger(__name__)


PublishedTerms: TypeAlias = Callable[[str, str], TaskTerms | None]
"""Returns the terms of a task by tenant and name, as far as they are known."""


class Rehearsal(Protocol):
    """A test that stands in for workers: told of what is submitted, and of whoever waits."""

    async def submitted(self, jobs: Sequence[JobHandle[Any]]) -> None:
        """Run jobs at once, where that is wanted."""

    async def awaited(self, id: JobId) -> None:
        """Do what is needed for a job to end."""


class Asker(Struct, frozen=True, kw_only=True):
    """Who submits: in whose name, for which tenant, and as part of which trace."""

    actor: Actor
    tenant: str
    propagate: Callable[[], str | None] | None = None

    def decide(
        self,
        call: Call,
        parent_id: JobId | None,
        traceparent: str | None,
        terms: PublishedTerms | None = None,
    ) -> NewJob:
        """Decide one call; bad data raises before anything is written."""
        task = call.task
        wanted: dict[str, Any] = {
            "tenant": self.tenant,
            "task_version": task.version,
            "queue": task.queue,
            "priority": task.priority,
            "needs": task.needs,
            "policy": task.policy,
            **call.fields,
        }
        if parent_id is not None:
            wanted |= {"parent_id": parent_id, "link_kind": Link.CHILD}
        _inherit(wanted, traceparent)
        submission = Submission(id=mint_id(), task=task.name, body=call.body, **wanted)
        if task.elsewhere:
            submission = by_name(
                submission,
                None if terms is None else terms(submission.tenant, task.name),
                given=call.fields,
                stated=call.stated,
            )
        return submit(submission, self.actor)

    def named_in(self, calls: Sequence[Call]) -> set[tuple[str, str]]:
        """Return tenant and name of the tasks that calls know by name alone."""
        return {
            (call.fields.get("tenant", self.tenant), call.task.name)
            for call in calls
            if call.task.elsewhere
        }

    def decide_all(
        self,
        calls: Sequence[Call],
        parents: Sequence[JobId | None],
        traceparent: str | None,
        terms: PublishedTerms | None = None,
    ) -> list[NewJob]:
        """Decide calls; of many, the bad one is named.

        `terms` returns what is known of the terms of a task that is registered elsewhere.
        """
        jobs: list[NewJob] = []
        series = _Series(self, traceparent, terms)
        for call, parent_id in zip(calls, parents, strict=True):
            try:
                jobs.append(series.decide(call, parent_id))
            except BadData as error:
                if len(calls) == 1:
                    raise
                raise numbered(len(jobs), error) from error
        return jobs

    def trace(self, active: str | None) -> str | None:
        """Tell the traceparent to hand on: the hook's, the active span's, or the running job's."""
        told = self._told()
        if trace_id_of(told):
            return told
        context = current_context.get(None)
        return active or (None if context is None else context.job.traceparent)

    def _told(self) -> str | None:
        try:
            return None if self.propagate is None else self.propagate()
        except Exception:
            # A trace is no reason to lose a job.
            log.exception("the hook that tells the trace failed")
            return None


class _Series:
    """Decides calls that are submitted together: of many alike, only the first in full."""

    def __init__(self, asker: Asker, traceparent: str | None, terms: PublishedTerms | None) -> None:
        self._asker = asker
        self._traceparent = traceparent
        self._terms = terms
        self._firsts: dict[Any, NewJob] = {}

    def decide(self, call: Call, parent_id: JobId | None) -> NewJob:
        if call.fields or parent_id is not None:
            return self._asker.decide(call, parent_id, self._traceparent, self._terms)
        # Without terms of their own, calls of one task differ in nothing but their arguments.
        first = self._firsts.get(call.task)
        if first is not None:
            return submit_alike(first, mint_id(), call.body)
        first = self._asker.decide(call, None, self._traceparent, self._terms)
        self._firsts[call.task] = first
        return first


def _inherit(wanted: dict[str, Any], traceparent: str | None) -> None:
    """Carry correlation and trace on (B23); what the caller said itself stands."""
    context = current_context.get(None)
    if context is not None and context.job.correlation_id is not None:
        wanted.setdefault("correlation_id", context.job.correlation_id)
    env = wanted.get("env", {})
    handed = env.get(TRACEPARENT, traceparent)
    if handed is not None:
        wanted["env"] = {**env, TRACEPARENT: handed}
        wanted["trace_id"] = trace_id_of(handed)


def all_accepted(answers: list[Any]) -> list[Any]:
    """Give the handles; a refusal is raised, with all answers where others were accepted."""
    refused = {
        number: answer for number, answer in enumerate(answers) if isinstance(answer, HoldfastError)
    }
    if len(answers) == 1 and refused:
        raise refused[0]
    if refused:
        told = [f"call {number}: {error}" for number, error in refused.items()]
        raise PartlySubmitted(
            f"{len(told)} of {len(answers)} were refused: {'; '.join(told[:SHOWN_PROBLEMS])}",
            answers,
        )
    return answers
