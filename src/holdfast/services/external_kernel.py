"""Ask an external kernel over HTTP: signed, within its deadline, and not while it keeps failing.

What it answers is checked as strictly as a rules file: nothing but a decision counts as one.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from holdfast.admission.book import (
    APPROVALS_LIMIT,
    APPROVER_ROLES,
    EXPIRY_LIMIT,
    Approval,
    Book,
    Constraints,
    Kernel,
    Verdict,
)
from holdfast.admission.verdicts import Decision
from holdfast.errors import HoldfastError, KernelUnavailable
from holdfast.ids import unix_seconds
from holdfast.lifecycle.payload import TEXT_LIMIT, check_text
from holdfast.lifecycle.record import JobId
from holdfast.webhooks.egress import call
from holdfast.webhooks.signature import sign_headers

ANSWER_BYTES = 64 * 1024
FAILURES = 3
"""Failures in a row after which a kernel is left alone for a while."""
PAUSE_SECONDS = 5.0
"""For how long; then one request finds out whether it is back."""
_RULE = r"^([A-Za-z0-9][A-Za-z0-9._/-]{0,99})?\Z"
"""The name of a rule, as the id of one in a book; besides, it may be empty, or have a `/`."""


class _SentApproval(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    count: int = 1
    roles: tuple[str, ...] = ("operator", "admin")
    expires_seconds: int = 0
    on_expiry: Literal["deny", "cancel"] = "deny"


class _SentConstraints(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    timeout_seconds: Annotated[float, Meta(ge=0.001, le=10 * EXPIRY_LIMIT)] | None = None
    retries: Annotated[int, Meta(ge=0, le=1_000_000)] | None = None
    cpus: Annotated[int, Meta(ge=1, le=1_000_000)] | None = None
    memory_mb: Annotated[int, Meta(ge=1, le=1_000_000_000)] | None = None
    network: Literal["none", "host"] | None = None
    image: tuple[str, ...] | None = None
    priority: Literal["critical", "interactive", "batch"] | None = None


class _SentDecision(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An answer as it is sent."""

    verdict: Literal["allow", "deny", "approve", "hold"]
    rule: Annotated[str, Meta(pattern=_RULE)] | None = None
    reason: str | None = None
    constraints: _SentConstraints | None = None
    approve: _SentApproval | None = None


_read = msgspec.json.Decoder(_SentDecision, strict=True).decode
_write = msgspec.json.Encoder(enc_hook=list).encode


class Breaker:
    """Whether a service may be asked: not while it keeps failing, but for one request at times."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._closed_until = 0.0

    def may_ask(self) -> bool:
        """Return whether to ask; of several who come after a pause, only the first may."""
        if self._failures < FAILURES:
            return True
        now = self._clock()
        if now < self._closed_until:
            return False
        self._closed_until = now + PAUSE_SECONDS
        return True

    def succeed(self) -> None:
        """Take note that it answered."""
        self._failures = 0

    def fail(self) -> None:
        """Take note that it did not."""
        self._failures += 1
        self._closed_until = self._clock() + PAUSE_SECONDS


class HttpKernel:
    """Asks the kernels that books name, each behind a breaker of its own."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._breakers: dict[str, Breaker] = {}

    async def ask(self, book: Book, variables: Mapping[str, Any], job: JobId) -> Decision:
        """Return what the kernel of a book decides on a job."""
        kernel = book.kernel
        if kernel is None:
            raise KernelUnavailable("the policy names no external kernel")
        breaker = self._breakers.setdefault(kernel.url, Breaker(self._clock))
        if not breaker.may_ask():
            error = KernelUnavailable(f"{kernel.url} has failed, and is asked again soon")
            error.tries = 0
            raise error
        try:
            decision = _decide(book, await _post(kernel, variables, job))
        except (HoldfastError, TimeoutError, msgspec.MsgspecError, UnicodeError) as error:
            breaker.fail()
            raise KernelUnavailable(f"{kernel.url}: {error or 'no answer in time'}") from error
        breaker.succeed()
        return decision


async def _post(kernel: Kernel, variables: Mapping[str, Any], job: JobId) -> bytes:
    body = _write({"job": str(job), "variables": variables})
    headers = {"content-type": "application/json", "idempotency-key": str(job)}
    if kernel.secret_env is not None:
        secret = os.environ.get(kernel.secret_env)
        if not secret:
            raise KernelUnavailable(f"the environment has no {kernel.secret_env} to sign with")
        headers |= sign_headers(secret, str(job), int(unix_seconds()), body)
    async with asyncio.timeout(kernel.deadline_seconds):
        answer = await call(kernel.url, headers, body, limit_bytes=ANSWER_BYTES)
    if answer.status != 200:
        raise KernelUnavailable(f"it answered with status {answer.status}")
    return answer.body


def _decide(book: Book, body: bytes) -> Decision:
    written = _read(body)
    terms = written.approve or _SentApproval()
    _check_approval(terms)
    reason = None if written.reason is None else written.reason[:TEXT_LIMIT]
    images = () if written.constraints is None else written.constraints.image or ()
    # A denial repeats them. What the store cannot write would be refused there, and asked again.
    for text in (reason or "", *images):
        check_text(text, "a text of its answer", limit=ANSWER_BYTES, empty=True)
    return Decision(
        verdict=Verdict(written.verdict),
        # A hold names it, and `/` parts the names of holds.
        rule=None if written.rule is None else written.rule.replace("/", "-") or None,
        reason=reason,
        rules=book.digest,
        constraints=None
        if written.constraints is None
        else Constraints(**msgspec.structs.asdict(written.constraints)),
        approval=Approval(**msgspec.structs.asdict(terms))
        if Verdict(written.verdict) is Verdict.APPROVE
        else None,
    )


def _check_approval(terms: _SentApproval) -> None:
    in_bounds = 1 <= terms.count <= APPROVALS_LIMIT and 0 <= terms.expires_seconds <= EXPIRY_LIMIT
    if not in_bounds or not terms.roles:
        raise KernelUnavailable("it asks for approvals that no rule could ask for")
    # A job that only others might approve would wait for ever.
    if not set(terms.roles) <= set(APPROVER_ROLES):
        known = ", ".join(sorted(APPROVER_ROLES))
        raise KernelUnavailable(f"it names roles that may not approve; those that may are {known}")
