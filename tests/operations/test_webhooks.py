"""Webhooks by operations: the same at hand and through a server."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from holdfast.errors import BadData, KeyConflict, NoSuchWebhook
from holdfast.lifecycle.states import State
from holdfast.operations.request import Operations
from holdfast.operations.requests import AddWebhook, ListWebhooks, RemoveWebhook
from holdfast.webhooks.registry import WantedWebhook

HOOK = WantedWebhook(url="https://hooks.example/", states=[State.FAILED], task="t")


async def test_a_webhook_is_made_listed_and_removed(mine: Operations, theirs: Operations) -> None:
    made = await mine.do(AddWebhook(webhook=HOOK))
    assert (made.secret or "").startswith("whsec_")
    assert (made.about.tenant, made.about.states, made.about.task) == ("mine", ["failed"], "t")
    assert made.about.created_by == "control:ann"
    assert (await mine.do(ListWebhooks())).webhooks == [made.about]
    assert (await theirs.do(ListWebhooks())).webhooks == []
    with pytest.raises(NoSuchWebhook, match="no webhook"):
        await theirs.do(RemoveWebhook(webhook=made.about.id))
    removed = await mine.do(RemoveWebhook(webhook=made.about.id))
    assert removed.removed_by == "control:ann"
    assert (await mine.do(ListWebhooks())).webhooks == []


async def test_webhooks_come_in_pages(mine: Operations) -> None:
    ids = [(await mine.do(AddWebhook(webhook=HOOK))).about.id for _ in range(3)]
    page = await mine.do(ListWebhooks(limit=2))
    assert [hook.id for hook in page.webhooks] == ids[:0:-1]
    rest = await mine.do(ListWebhooks(before=page.next))
    assert ([hook.id for hook in rest.webhooks], rest.next) == (ids[:1], None)


async def test_an_unfit_webhook_is_refused(mine: Operations) -> None:
    with pytest.raises(BadData, match="http:// or https://"):
        await mine.do(AddWebhook(webhook=WantedWebhook(url="gopher://a/")))


async def test_the_secret_of_a_webhook_is_shown_once(mine: Operations) -> None:
    wanted = WantedWebhook(url="https://hooks.example/", id="one", queue="a")
    made = await mine.do(AddWebhook(webhook=wanted))
    again = await mine.do(AddWebhook(webhook=wanted))
    assert (made.created, again.created, again.secret) == (True, False, None)
    assert again.about == made.about
    for other in (replace(wanted, queue="b"), replace(wanted, states=[State.FAILED])):
        with pytest.raises(KeyConflict):
            await mine.do(AddWebhook(webhook=other))


async def test_an_id_that_another_tenant_has_is_free(
    mine: Operations, theirs: Operations, everybody: Operations
) -> None:
    wanted = WantedWebhook(url="https://hooks.example/", id="one")
    made = [await who.do(AddWebhook(webhook=wanted)) for who in (mine, theirs)]
    assert [one.about.tenant for one in made] == ["mine", "theirs"]
    with pytest.raises(BadData, match="name the tenant"):
        await everybody.do(RemoveWebhook(webhook="one"))
    assert (await theirs.do(RemoveWebhook(webhook="one"))).tenant == "theirs"
    assert (await mine.do(ListWebhooks())).webhooks == [made[0].about]
