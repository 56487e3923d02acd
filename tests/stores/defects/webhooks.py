"""Defects of what is kept of webhooks and their follower."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from holdfast.ports.models import NewWebhook, Webhook
from tests.stores.defects.wrapped import Wrapped


class AddsAWebhookAgain(Wrapped):
    caught_by = ("test_adding_a_webhook_again_changes_nothing",)

    async def add_webhook(self, hook: NewWebhook) -> Webhook:
        kept = await self.inner.add_webhook(hook)
        await self.raw("UPDATE webhooks SET url = ? WHERE id = ?", hook.url, hook.id)
        return replace(kept, url=hook.url)


class ForgetsAWebhooksFilter(Wrapped):
    caught_by = ("test_a_webhook_is_kept_as_it_was_given",)

    async def add_webhook(self, hook: NewWebhook) -> Webhook:
        return await self.inner.add_webhook(replace(hook, states=None))


class RemovesNoWebhook(Wrapped):
    caught_by = ("test_a_removed_webhook_is_listed_no_more_and_its_secret_is_gone",)

    async def remove_webhook(self, id: str, *, tenant: str, actor: str) -> Webhook | None:
        return next(iter(await self.inner.look_up_webhooks(id, tenant=tenant)), None)


class TakesAWebhooksIdForEverybodys(Wrapped):
    caught_by = ("test_an_id_is_a_tenants_own",)

    async def look_up_webhooks(self, id: str, *, tenant: str | None = None) -> list[Webhook]:
        return await self.inner.look_up_webhooks(id)


class RemovesAWebhookOfTheSameId(Wrapped):
    caught_by = ("test_an_id_is_a_tenants_own",)

    async def remove_webhook(self, id: str, *, tenant: str, actor: str) -> Webhook | None:
        for hook in await self.inner.look_up_webhooks(id):
            await self.inner.remove_webhook(id, tenant=hook.tenant, actor=actor)
        return next(iter(await self.inner.look_up_webhooks(id, tenant=tenant)), None)


class ListsWebhooksOfAllTenants(Wrapped):
    caught_by = ("test_webhooks_are_listed_by_tenant_newest_first_in_pages",)

    async def webhooks(self, *, tenant: str | None = None, **wishes: Any) -> list[Webhook]:
        return await self.inner.webhooks(**wishes)


class MovesAnyCursor(Wrapped):
    caught_by = ("test_a_cursor_moves_from_where_it_was_and_from_nowhere_else",)

    async def move_cursor(self, name: str, *, before: str | None, to: str) -> bool:
        return await self.inner.move_cursor(name, before=await self.inner.cursor(name), to=to)


class ChangesAnyNote(Wrapped):
    caught_by = (
        "test_a_note_is_changed_from_what_it_was_and_from_nothing_else",
        "test_of_many_who_set_a_note_at_once_one_does",
    )

    async def move_note(self, name: str, *, before: str | None, to: str) -> bool:
        while not await self.inner.move_note(name, before=await self.inner.note(name), to=to):
            pass
        return True


DEFECTS: tuple[type[Wrapped], ...] = (
    AddsAWebhookAgain,
    ForgetsAWebhooksFilter,
    RemovesNoWebhook,
    TakesAWebhooksIdForEverybodys,
    RemovesAWebhookOfTheSameId,
    ListsWebhooksOfAllTenants,
    MovesAnyCursor,
    ChangesAnyNote,
)
