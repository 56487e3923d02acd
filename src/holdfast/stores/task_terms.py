"""Published terms of tasks as rows: what may be kept, and how it is written and read back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec

from holdfast.errors import BadData
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.policy import policy_faults, told_faults
from holdfast.lifecycle.submit import NEEDS_LIMIT
from holdfast.lifecycle.terms import TaskTerms

ALL_TENANTS = ""
"""The tenant under which terms are kept that hold for all of them."""
TERMS_LIMIT = 10_000
"""Tasks per tenant whose terms are kept; those published longest ago are forgotten first."""
_read = msgspec.json.Decoder(TaskTerms).decode


def terms_row(terms: TaskTerms) -> tuple[str, str]:
    """Write the name of a task and its terms; refuse what no job could run under."""
    check_text(terms.task, "the task's name", limit=200)
    check_text(terms.queue, "queue", limit=200)
    if faults := policy_faults(terms.policy, bounded=False):
        raise BadData(f"task {terms.task!r}: {told_faults(faults)}")
    if len(terms.needs) > NEEDS_LIMIT:
        raise BadData(f"task {terms.task!r} needs {len(terms.needs):,} capabilities; "
                      f"the limit is {NEEDS_LIMIT}")  # fmt: skip
    for need in terms.needs:
        check_text(need, "a capability in needs", limit=200)
    return terms.task, msgspec.json.encode(terms).decode()


def choose_terms(
    tasks: Sequence[str], found: Iterable[tuple[str, str, str]]
) -> list[TaskTerms | None]:
    """Return the terms of each task out of rows (tenant, task, body): a tenant's own come first."""
    texts: dict[str, str] = {}
    for tenant, task, body in found:
        if tenant != ALL_TENANTS or task not in texts:
            texts[task] = body
    return [_read(texts[task]) if task in texts else None for task in tasks]
