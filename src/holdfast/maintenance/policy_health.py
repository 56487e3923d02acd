"""Whether the policy can be enforced from here: its text, its file, its external kernel."""

from __future__ import annotations

from holdfast.admission.book import Book
from holdfast.errors import HoldfastError
from holdfast.flow.policy_book import compile_book
from holdfast.lifecycle.times import SECOND
from holdfast.ports.kernel import STATE_NOTE, read_trouble_of
from holdfast.ports.store import Store
from holdfast.queries.why.phrases import describe_span
from holdfast.services.policy_watch import TROUBLE_NOTE, read_policy_trouble
from holdfast.stores.findings import Finding, fine, problem, warning

CHECK = "policy"


async def examine_policy(store: Store) -> list[Finding]:
    """Examine the policy that is applied, the file that is watched, and the external kernel."""
    now = (await store.clock()).now
    finding, book = await _examine_book(store)
    found = [finding]
    broken = read_policy_trouble(await store.note(TROUBLE_NOTE))
    if broken is not None:
        text = (
            f"the policy file on {broken.host} is broken for {_ago(now, broken.since)}, and the "
            f"policy before it stays: {broken.message}"
        )
        found.append(warning(CHECK, text, f"fix {broken.path}; try `holdfast policy check`"))
    url = None if book is None or book.kernel is None else book.kernel.url
    trouble = read_trouble_of(url, await store.note(STATE_NOTE))
    if trouble is not None:
        text = (
            f"the kernel at {trouble.url} does not answer for {_ago(now, trouble.since)}, "
            f"{trouble.tries} tries: {trouble.message}"
        )
        found.append(warning(CHECK, text, "start it, or apply a policy without it"))
    return found


async def _examine_book(store: Store) -> tuple[Finding, Book | None]:
    applied = await store.policy()
    if applied is None:
        return fine(CHECK, "none is applied: nothing is judged"), None
    try:
        book = compile_book(applied.body)
    except HoldfastError as error:
        text = f"policy {applied.digest[:12]} cannot be read here: {error}"
        fix = "install what the message names, or apply another policy"
        return problem(CHECK, text, fix), None
    text = f"policy {applied.digest[:12]} is applied, by {applied.applied_by}"
    return fine(CHECK, text), book


def _ago(now: int, since: int) -> str:
    return describe_span(max(now - since, SECOND))
