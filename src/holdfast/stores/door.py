"""The door: what a store does to new jobs while a policy is applied.

Both engines lead every birth through here, so that no caller can forget it. Rules are compiled once
for each digest.
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.admission.book import Book
from holdfast.admission.door import judge_birth
from holdfast.errors import BadPolicy
from holdfast.lifecycle.record import Change, NewJob
from holdfast.lifecycle.reserved import is_reserved

CURRENT = "policy"
"""The key in `meta` under which the digest of the applied rules is."""
UNJUDGED_TEXT = "the policy has not judged"
"""What the errors of both databases contain that refuse a job for the lack of a judgement."""


def judge_births(jobs: Sequence[NewJob], book: Book) -> list[NewJob]:
    """Return new jobs as the rules let them be born; Holdfast's own are not judged."""
    return [job if is_reserved(job.record.task) else judge_birth(job, book) for job in jobs]


def judge_submits(changes: Sequence[Change], book: Book) -> list[Change]:
    """Return changes whose new jobs are judged."""
    return [
        replace(change, submits=tuple(judge_births(change.submits, book)))
        if change.submits
        else change
        for change in changes
    ]


def explain_unreadable(error: BadPolicy) -> BadPolicy:
    """Return why a process submits nothing that it would have to judge."""
    return BadPolicy(
        f"this process cannot read the policy that is applied, so it submits no jobs: {error}; run "
        "it with the version of Holdfast, and the extras, that the policy was written for"
    )
