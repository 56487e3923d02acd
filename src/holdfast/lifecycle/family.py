"""Parents and children: whose family a change concerns, and which children a parent waits for.

A mark means no more than "look at this job's family"; the rows show what is to be done then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from holdfast.lifecycle.record import Draft, JobId
from holdfast.lifecycle.states import TERMINAL, UNSUCCESSFUL, Link

CHILDREN = "holdfast:children"
"""What a parent waits for that waits for all its children; some of them are named by number.

Names with this prefix are Holdfast's own; the schemas' `jobs_gathering` finds them."""
KIN = (Link.CHILD, Link.RETRY)
"""Jobs whose end concerns the family of another one."""
NAME_LIMIT = 500
"""Characters that the name of a wait for some children may have."""


def marks(before: Draft, after: Draft) -> list[tuple[JobId, bool]]:
    """Return the jobs whose families a change concerns; False: only if the job has children.

    A child's end, because its parent may wait for it; also the end of a try of it that is a job of
    its own, which marks the try before. A wait for children, because the last of
    them may have ended while it was written. A cancel, and every end but success, because it
    reaches the children. (A child's submit also marks its parent, which may have been cancelled.)
    """
    found: list[tuple[JobId, bool]] = []
    ended = after.state in TERMINAL and before.state not in TERMINAL
    if ended and after.link_kind in KIN and after.parent_id is not None:
        found.append((after.parent_id, True))
    starts_to_wait = after.waiting and not before.waiting
    if starts_to_wait and awaits_children(after.wait_for):
        found.append((after.id, True))
    cancelled = after.cancel_requested is not before.cancel_requested
    if cancelled or (ended and not after.succeeded):
        found.append((after.id, False))
    return found


def may_go_on(record: Draft) -> bool:
    """Return whether a job that has ended may live on in a linked retry (A16)."""
    return record.state in UNSUCCESSFUL and not record.policy.idempotent


def forsakes(parent: Draft) -> bool:
    """Return whether a job's live children have to end: it was cancelled, or it did not succeed."""
    if parent.terminal:
        return not parent.succeeded
    return parent.cancel_requested is not None


def awaits_children(wait_for: str | None) -> bool:
    """Return whether a wait ends with the end of children."""
    return wait_for is not None and (wait_for == CHILDREN or _read_numbers(wait_for) is not None)


def awaits(wait_for: str | None, child: Draft) -> bool:
    """Return whether a wait is, among others, for this child."""
    numbers = _read_numbers(wait_for)
    if numbers is None:
        return wait_for == CHILDREN
    return any(child.step_index in span for span in numbers)


def wait_name(numbers: Iterable[int]) -> str:
    """Return the name of a wait for the children with these numbers, their `step_index`."""
    return f"{CHILDREN}:{','.join(_span(low, high) for low, high in _merge_spans(numbers))}"


def named_children(name: str) -> Iterator[int]:
    """Return the numbers of the children that a wait is named after; none for another name."""
    for span in _read_numbers(name) or ():
        yield from span


def groups(numbers: Iterable[int]) -> list[list[int]]:
    """Divide children so that the wait for each group has a name that is not too long."""
    found: list[list[int]] = []
    left = 0
    for low, high in _merge_spans(numbers):
        left -= len(_span(low, high)) + 1
        if left < 0 or not found:
            found.append([])
            left = NAME_LIMIT - len(CHILDREN) - 1 - len(_span(low, high))
        found[-1] += range(low, high + 1)
    return found


def _merge_spans(numbers: Iterable[int]) -> list[tuple[int, int]]:
    spans: list[tuple[int, int]] = []
    for number in sorted(set(numbers)):
        if spans and number == spans[-1][1] + 1:
            spans[-1] = spans[-1][0], number
        else:
            spans.append((number, number))
    return spans


def _span(low: int, high: int) -> str:
    return str(low) if low == high else f"{low}-{high}"


def _read_numbers(wait_for: str | None) -> list[range] | None:
    """Return the numbers of a wait for some children; None for another wait."""
    if wait_for is None or not wait_for.startswith(f"{CHILDREN}:"):
        return None
    spans = [part.partition("-") for part in wait_for[len(CHILDREN) + 1 :].split(",")]
    if not all(low.isdecimal() and (high.isdecimal() or not dash) for low, dash, high in spans):
        return None
    return [range(int(low), int(high or low) + 1) for low, _, high in spans]
