"""One tree of errors, each with a code of its own that never changes."""

from __future__ import annotations

import pytest

from holdfast import errors
from holdfast.errors import HoldfastError


def tree(root: type[HoldfastError]) -> list[type[HoldfastError]]:
    return [root, *(found for child in root.__subclasses__() for found in tree(child))]


CODES = {
    "HoldfastError": "error",
    "BadData": "bad_data",
    "ValidationError": "validation_failed",
    "ReservedName": "reserved_name",
    "NoPoolForTopic": "no_pool_for_topic",
    "BusUnavailable": "bus_unavailable",
    "TransientError": "transient",
    "PermanentError": "permanent",
    "RemoteError": "handler_error",
    "HandlerDied": "handler_died",
    "Refused": "refused",
    "LeaseConflictError": "lease_lost",
    "StaleRevision": "stale_revision",
    "KeyConflict": "key_conflict",
    "RequestIdReused": "request_id_reused",
    "NoSuchJob": "no_such_job",
    "NoSuchWebhook": "no_such_webhook",
    "AddressBlocked": "address_blocked",
    "Undelivered": "undelivered",
    "NoSuchToken": "no_such_token",
    "NoTokens": "no_tokens",
    "Unauthorized": "unauthorized",
    "Forbidden": "forbidden",
    "RateLimited": "rate_limited",
    "Overloaded": "overloaded",
    "StoreError": "store_error",
    "StoreUnavailable": "store_unavailable",
    "KeyBusy": "key_busy",
    "JobBusy": "job_busy",
    "ServerUnavailable": "server_unavailable",
    "StoreFull": "store_full",
    "StoreBroken": "store_broken",
    "LawBroken": "law_broken",
    "SchemaMismatch": "schema_mismatch",
    "CannotServe": "cannot_serve",
    "BadTask": "bad_task",
    "NoSuchTask": "no_such_task",
    "TooManyNames": "too_many_names",
    "BadConnection": "bad_connection",
    "BadTransaction": "bad_transaction",
    "NotCommitted": "not_committed",
    "StatementFailed": "statement_failed",
    "PartlySubmitted": "partly_submitted",
    "ResultTimeout": "result_timeout",
    "ResultErased": "result_erased",
    "JobError": "job_error",
    "JobFailed": "job_failed",
    "JobCancelled": "job_cancelled",
    "JobTimedOut": "job_timed_out",
    "JobDenied": "job_denied",
    "JobDeadLettered": "job_dead_lettered",
}


@pytest.mark.req("B26")
def test_the_error_classes_of_the_seed_are_there_and_tell_retry_from_end() -> None:
    assert issubclass(errors.TransientError, HoldfastError)
    assert issubclass(errors.PermanentError, HoldfastError)
    assert not issubclass(errors.PermanentError, errors.TransientError)
    assert issubclass(errors.ValidationError, errors.BadData)
    assert issubclass(errors.LeaseConflictError, errors.Refused)


def test_each_error_has_its_own_code_and_keeps_it() -> None:
    # Other tests define errors of a user, which may have the code of their base.
    ours = [kind for kind in tree(HoldfastError) if kind.__module__.startswith("holdfast.")]
    found = {kind.__name__: kind.code for kind in ours}

    assert {name: found.get(name) for name in CODES} == CODES
    assert len(set(found.values())) == len(found)


def test_an_error_may_say_a_finer_code_and_which_job() -> None:
    error = errors.Refused("job j is held", code="held", job_id="j")

    assert (error.code, error.job_id, str(error)) == ("held", "j", "job j is held")
    assert errors.Refused("no").code == "refused"


def test_an_error_has_one_code_its_own_or_a_finer_one() -> None:
    assert errors.Refused("no").code == "refused"
    assert errors.Refused("no", code="terminal").code == "terminal"
    assert errors.Refused.code == "refused"
    assert not hasattr(errors.Refused("no"), "reason_code")
