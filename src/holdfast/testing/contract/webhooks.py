"""Webhooks and followers' cursors: kept as they were given, ended once; no part of the ledger."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from holdfast.errors import BadData
from holdfast.lifecycle.states import State
from holdfast.ports.models import NewWebhook, Webhook
from holdfast.ports.store import Store
from holdfast.testing.factories import new_webhook

BAD_WEBHOOKS: dict[str, Any] = {
    "no id": {"id": ""},
    "an id that sorts by locale": {"id": "ä1"},
    "no tenant": {"tenant": ""},
    "no url": {"url": ""},
    "a long url": {"url": "https://" + "x" * 2000},
    "a NUL": {"url": "https://a\0"},
    "no secret": {"secret": ""},
    "no states at all": {"states": frozenset()},
    "a state that is not an end": {"states": frozenset({State.RUNNING})},
    "an empty queue": {"queue": ""},
    "a lone surrogate": {"task": "\ud800"},
    "no maker": {"created_by": ""},
}


def given(hook: Webhook) -> NewWebhook:
    """Leave out what the store's clock added."""
    return NewWebhook(**{name: getattr(hook, name) for name in NewWebhook.__struct_fields__})


class WebhookContract:
    """What is kept of a webhook, how it ends, and how far its follower has come."""

    async def test_a_webhook_is_kept_as_it_was_given(self, store: Store) -> None:
        wanted = new_webhook(
            tenant="線",
            states=frozenset({State.FAILED, State.DEAD_LETTERED}),
            queue="a 'b' \"c\" \\",
            task="{x}",
        )
        before = (await store.clock()).now
        kept = await store.add_webhook(wanted)

        assert given(kept) == wanted
        assert before <= kept.created_at <= (await store.clock()).now
        assert (kept.removed_at, kept.removed_by) == (None, None)
        assert await store.look_up_webhooks(wanted.id) == [kept]
        assert await store.webhooks() == [kept]

    async def test_adding_a_webhook_again_changes_nothing(self, store: Store) -> None:
        wanted = new_webhook()
        kept = await store.add_webhook(wanted)

        assert await store.add_webhook(new_webhook(id=wanted.id, url="https://other")) == kept
        assert await store.webhooks() == [kept]

    async def test_a_removed_webhook_is_listed_no_more_and_its_secret_is_gone(
        self, store: Store
    ) -> None:
        kept = await store.add_webhook(new_webhook())
        removed = await store.remove_webhook(kept.id, tenant=kept.tenant, actor="control:bob")

        assert removed is not None
        assert (removed.secret, removed.removed_by) == (None, "control:bob")
        assert removed.removed_at is not None
        assert await store.webhooks() == []
        again = await store.remove_webhook(kept.id, tenant=kept.tenant, actor="control:eve")
        assert again == removed
        assert await store.look_up_webhooks(kept.id) == [removed]

    async def test_a_webhook_that_is_not_there_cannot_be_removed(self, store: Store) -> None:
        assert await store.remove_webhook("nobodys", tenant="a", actor="control:ann") is None
        assert await store.look_up_webhooks("nobodys") == []

    async def test_an_id_is_a_tenants_own(self, store: Store) -> None:
        mine, theirs, third = [
            await store.add_webhook(new_webhook(id="one", tenant=name, url=f"https://{name}/"))
            for name in ("B", "a", "c")
        ]
        assert [hook.url for hook in (mine, theirs)] == ["https://B/", "https://a/"]
        assert await store.look_up_webhooks("one", tenant="a") == [theirs]
        assert await store.look_up_webhooks("one", tenant="b") == []
        assert await store.look_up_webhooks("one") == [mine, theirs, third]
        assert await store.webhooks(limit=2) == [third, theirs]
        assert await store.webhooks(before=theirs.key) == [mine]
        assert await store.remove_webhook("one", tenant="b", actor="control:ann") is None

        removed = await store.remove_webhook("one", tenant="a", actor="control:ann")
        assert removed is not None
        assert removed.tenant == "a"
        assert await store.webhooks() == [third, mine]

    async def test_webhooks_are_listed_by_tenant_newest_first_in_pages(self, store: Store) -> None:
        kept = [await store.add_webhook(new_webhook(tenant=name)) for name in ("a", "b", "a", "a")]
        mine = [kept[3], kept[2], kept[0]]

        assert await store.webhooks() == kept[::-1]
        assert await store.webhooks(tenant="a") == mine
        assert await store.webhooks(tenant="a", limit=2) == mine[:2]
        assert await store.webhooks(tenant="a", before=mine[1].key) == mine[2:]

    @pytest.mark.parametrize("options", BAD_WEBHOOKS.values(), ids=BAD_WEBHOOKS)
    async def test_an_invalid_webhook_is_refused(self, store: Store, options: Any) -> None:
        with pytest.raises(BadData):
            await store.add_webhook(new_webhook(**options))
        assert await store.webhooks() == []

    async def test_a_cursor_moves_from_where_it_was_and_from_nowhere_else(
        self, store: Store
    ) -> None:
        assert await store.cursor("one") is None
        assert not await store.move_cursor("one", before="0", to="1")
        assert await store.move_cursor("one", before=None, to="1")
        assert not await store.move_cursor("one", before=None, to="9")
        assert await store.move_cursor("one", before="1", to="2")
        assert not await store.move_cursor("one", before="1", to="9")

        assert (await store.cursor("one"), await store.cursor("other")) == ("2", None)

    async def test_of_many_who_move_a_cursor_at_once_one_does(self, store: Store) -> None:
        await store.move_cursor("one", before=None, to="1")
        moved = await asyncio.gather(
            *(store.move_cursor("one", before="1", to=f"2-{n}") for n in range(10))
        )

        assert sorted(moved) == [False] * 9 + [True]
        assert await store.cursor("one") == f"2-{moved.index(True)}"
