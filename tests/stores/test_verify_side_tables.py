"""What verify finds beside the ledger: queues, marks, tokens, webhooks, uploads and cursors."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.ports.models import NewToken, NewWebhook
from holdfast.ports.store import Store
from holdfast.ports.uploads import NewUpload
from holdfast.testing.factories import job_ids
from holdfast.testing.store_actions import submit_one
from tests.stores.damage import vandal
from tests.stores.ledgers import Ledger, assert_proven, make_ledger, problems_of
from tests.stores.raw import ENGINES


@pytest.fixture(params=ENGINES)
def ledger(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Ledger:
    return make_ledger(request, tmp_path_factory)


async def _fill(store: Store) -> None:
    """Something in each of the tables."""
    await submit_one(store)
    await submit_one(store, holds=("upload",), admitted=False)
    for queue in ("paused", "resumed"):
        await store.pause(queue, actor="ann", reason="upgrade")
    await store.resume("resumed", actor="bob")
    token = NewToken(
        id="t1", name="n", digest=b"d" * 32, role="admin", queues=("a",), created_by="ann"
    )
    await store.add_token(token)
    hook = NewWebhook(
        id="w1", tenant="default", url="https://x.example/", secret="s", created_by="ann"
    )
    await store.add_webhook(hook)
    await store.add_upload(NewUpload(id="u1", tenant="default", created_by="ann", lifetime=1))
    await store.move_cursor("feed", before=None, to=await store.tail_end())


STRANGER = job_ids.mint()
DAMAGE: dict[str, tuple[str, tuple[Any, ...], str]] = {
    "a pause nobody made": (
        "UPDATE queues SET paused_at = 1, paused_by = 'x' WHERE name = 'resumed'", (), "'resumed'",
    ),
    "a pause that was lifted": (
        "UPDATE queues SET paused_at = NULL WHERE name = 'paused'", (), "'paused'",
    ),
    "another reason": ("UPDATE queues SET reason = 'x' WHERE name = 'paused'", (), "'paused'"),
    "a queue without entries": ("DELETE FROM queue_events WHERE queue = 'paused'", (), "'paused'"),
    "entries without a queue": ("DELETE FROM queues WHERE name = 'paused'", (), "'paused'"),
    "a mark of no job": ("INSERT INTO marks (id) VALUES ($1)", (job_ids.mint(),), "mark"),
    "a hold of no job": (
        "INSERT INTO holds (hold, id) VALUES ('x', $1)", (STRANGER,), str(STRANGER),
    ),
    "a hold that the job does not have": (
        "INSERT INTO holds (hold, id) SELECT 'x', id FROM jobs", (), "under the hold 'x'",
    ),
    "a pending job that is not listed": (
        "DELETE FROM holds WHERE hold = ''", (), "not listed under its hold ''",
    ),
    "a held job that is not listed": (
        "DELETE FROM holds WHERE hold = 'upload'", (), "not listed under its hold 'upload'",
    ),
    "signals of no job": (
        "INSERT INTO signals (id, rev, name) VALUES ($1, 2, 'x')", (STRANGER,), str(STRANGER),
    ),
    "signals of a job that counts none": (
        "INSERT INTO signals (id, rev, name) SELECT id, 2, 'x' FROM jobs", (), "counts none",
    ),
    "a token's queues": ("UPDATE tokens SET queues = '[\"a'", (), "token 't1'"),
    "a token's digest": ("UPDATE tokens SET digest = $1", (b"short",), "token 't1'"),
    "a token half revoked": ("UPDATE tokens SET revoked_at = 5", (), "token 't1'"),
    "a token that expired before it was made": (
        "UPDATE tokens SET expires_at = created_at - 1", (), "token 't1'",
    ),
    "a webhook half removed": ("UPDATE webhooks SET removed_by = 'ann'", (), "webhook 'w1'"),
    "a webhook's states": ("UPDATE webhooks SET states = '[1'", (), "webhook 'w1'"),
    "a webhook's secret": ("UPDATE webhooks SET secret = NULL", (), "webhook 'w1'"),
    "an upload in an unknown state": ("UPDATE uploads SET state = 'x'", (), "upload 'u1'"),
    "an upload half finalized": ("UPDATE uploads SET digest = 'x'", (), "upload 'u1'"),
    "an upload that was removed and has bytes": (
        "UPDATE uploads SET removed_at = 1, bytes = 7", (), "upload 'u1'",
    ),
    "an upload that was moved before it was made": (
        "UPDATE uploads SET moved_at = created_at - 1", (), "upload 'u1'",
    ),
    "files of no upload": (
        "INSERT INTO upload_files (upload, path, bytes) VALUES ('u2', '', 1)", (), "upload 'u2'",
    ),
    "a job of no upload": (
        "INSERT INTO upload_jobs (upload, id) VALUES ('u3', $1)", (STRANGER,), "upload 'u3'",
    ),
    "a cursor that is none": ("UPDATE cursors SET cursor = 'x'", (), "cursor 'feed'"),
    "a cursor ahead of the tail": (
        "UPDATE cursors SET cursor = '9' || substr(cursor, 2)", (), "cursor 'feed'",
    ),
}  # fmt: skip


async def test_tables_as_the_store_writes_them_are_no_problem(ledger: Ledger) -> None:
    async with ledger.store() as store:
        await _fill(store)
        await store.remove_webhook("w1", tenant="default", actor="ann")
        await store.revoke_token("t1", actor="ann")
        await assert_proven(store)


@pytest.mark.parametrize("what", DAMAGE)
async def test_damage_beside_the_ledger_is_named(ledger: Ledger, what: str) -> None:
    sql, values, named = DAMAGE[what]
    async with ledger.store() as store, vandal(ledger) as hand:
        await _fill(store)
        await hand.rows(sql, *values)
        texts = [one.text for one in await problems_of(store)]
        assert [text for text in texts if named in text], texts
