"""Webhooks as rows: what may be kept of one, how it is written, and how it is read back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast.errors import BadData, about
from holdfast.lifecycle.payload import check_text
from holdfast.lifecycle.states import TERMINAL, State
from holdfast.ports import NewWebhook, Webhook

URL_LIMIT = 2000
NEWEST = ("~", "")
"""Higher than any key."""


def webhook_row(hook: NewWebhook) -> tuple[Any, ...]:
    """Write id, tenant, url, secret, states, queue, task and maker; refuse what is unfit."""
    with about("id"):
        check_webhook_id(hook.id)
    with about("tenant"):
        check_text(hook.tenant, "tenant", limit=200)
    with about("url"):
        check_text(hook.url, "url", limit=URL_LIMIT)
    check_text(hook.secret, "a webhook's secret", limit=200)
    check_text(hook.created_by, "actor", limit=200)
    for name, value in (("queue", hook.queue), ("task", hook.task)):
        if value is not None:
            with about(name):
                check_text(value, name, limit=200)
    with about("states"):
        states = None if hook.states is None else _states_text(hook.states)
    return (
        *(hook.id, hook.tenant, hook.url, hook.secret),
        *(states, hook.queue, hook.task, hook.created_by),
    )


def check_webhook_id(id: str) -> str:
    """Check a webhook's id: ASCII, so that its order is the same everywhere."""
    check_text(id, "the webhook's id", limit=40)
    if not (id.isascii() and id.isalnum()):
        raise BadData(f"a webhook's id must be ASCII letters and digits, not {id!r}")
    return id


def check_webhook_key(key: tuple[str, str]) -> tuple[str, str]:
    """Check a webhook's id and tenant."""
    id, tenant = key
    return check_webhook_id(id), check_text(tenant, "tenant", limit=200)


def _states_text(states: frozenset[State]) -> str:
    if not states or not TERMINAL.issuperset(states):
        ends = ", ".join(sorted(TERMINAL))
        raise BadData(f"a webhook tells ends of jobs: its states must be some of {ends}")
    return msgspec.json.encode(sorted(state.code for state in states)).decode()


def read_webhook(row: Sequence[Any]) -> Webhook:
    """Read a row of the statements `webhooks` and `look_up_webhooks`."""
    id, tenant, url, secret, states, queue, task, *rest = row
    created_at, created_by, removed_at, removed_by = rest
    return Webhook(
        id=id,
        tenant=tenant,
        url=url,
        secret=secret,
        states=None if states is None else frozenset(map(State.of, msgspec.json.decode(states))),
        queue=queue,
        task=task,
        created_at=created_at,
        created_by=created_by,
        removed_at=removed_at,
        removed_by=removed_by,
    )
