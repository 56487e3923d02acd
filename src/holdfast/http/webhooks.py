"""Routes about webhooks: make, list, read, remove."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query
from starlette.responses import Response

from holdfast.http.asking import Ask, asking
from holdfast.http.bodies import answer
from holdfast.http.documents import documented
from holdfast.http.scopes import Scope
from holdfast.webhooks import (
    MadeWebhook,
    WantedWebhook,
    WebhookDesk,
    WebhookList,
    WebhookView,
)

router = APIRouter(prefix="/v1/webhooks", tags=["webhooks"])
PLACE = r"^[0-9a-zA-Z]{1,40}([.][0-9a-zA-Z_-]{1,1100})?$"
"""An id, and whose it is."""


@router.post(
    "", status_code=201, **documented(takes=WantedWebhook, _200=MadeWebhook, _201=MadeWebhook)
)
async def add_webhook(ask: Annotated[Ask, asking(Scope.WEBHOOKS)]) -> Response:
    """Make a webhook: from now on it is told of the ends of jobs. Its secret is in this answer.

    200, `created: false` and no secret if it existed before: to have another, remove it first.
    """
    wanted = await ask.body(WantedWebhook)
    made = await _desk(ask).add(wanted)
    return answer(made, 201 if made.created else 200)


@router.get("", **documented(_200=WebhookList))
async def list_webhooks(
    ask: Annotated[Ask, asking(Scope.WEBHOOKS)],
    before: Annotated[str | None, Query(pattern=PLACE)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """List webhooks, newest first."""
    return answer(await _desk(ask).page(before=before, limit=limit))


@router.get("/{webhook}", **documented(_200=WebhookView))
async def get_webhook(ask: Annotated[Ask, asking(Scope.WEBHOOKS)], webhook: str) -> Response:
    """Read a webhook, also one that was removed."""
    return answer(await _desk(ask).get(webhook))


@router.delete("/{webhook}", **documented(_200=WebhookView))
async def remove_webhook(ask: Annotated[Ask, asking(Scope.WEBHOOKS)], webhook: str) -> Response:
    """End a webhook; what was not delivered yet is not."""
    return answer(await _desk(ask).remove(webhook))


def _desk(ask: Ask) -> WebhookDesk:
    return WebhookDesk(
        ask.house.session.store,
        actor=f"control:{ask.caller.name}",
        tenant=ask.tenant,
        queues=ask.caller.queues,
        outside=ask.house.outside,
    )
