"""Stores that are subtly wrong: a wrapper per defect around a good one.

Each names the tests of the contract that must fail on it. Where the database itself would refuse
the damage, the wrapper switches its guards off first, or answers something else than is stored.
"""

from tests.stores.defects import (
    alike,
    claims,
    clock,
    events,
    families,
    holds,
    keys,
    logs,
    planned,
    policies,
    reading,
    revisions,
    task_terms,
    tokens,
    upkeep,
    uploads,
    webhooks,
    workers,
)

DEFECTS = (
    *alike.DEFECTS,
    *revisions.DEFECTS,
    *events.DEFECTS,
    *planned.DEFECTS,
    *claims.DEFECTS,
    *keys.DEFECTS,
    *holds.DEFECTS,
    *policies.DEFECTS,
    *clock.DEFECTS,
    *reading.DEFECTS,
    *upkeep.DEFECTS,
    *workers.DEFECTS,
    *task_terms.DEFECTS,
    *webhooks.DEFECTS,
    *uploads.DEFECTS,
    *logs.DEFECTS,
    *tokens.DEFECTS,
    *families.DEFECTS,
)
