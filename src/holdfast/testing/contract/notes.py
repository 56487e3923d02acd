"""Contract: what all processes of a store agree on."""

from __future__ import annotations

import asyncio

from holdfast.ports.store import Store


class NoteContract:
    """Notes: one is set by the first process, and changed only from what it was."""

    async def test_a_note_is_changed_from_what_it_was_and_from_nothing_else(
        self, store: Store
    ) -> None:
        assert await store.note("one") is None
        assert not await store.move_note("one", before="0", to="1")
        assert await store.move_note("one", before=None, to="1")
        assert not await store.move_note("one", before=None, to="9")
        assert await store.move_note("one", before="1", to="2")
        assert not await store.move_note("one", before="1", to="9")

        assert (await store.note("one"), await store.note("other")) == ("2", None)

    async def test_of_many_who_set_a_note_at_once_one_does(self, store: Store) -> None:
        texts = [f"by {number}" for number in range(10)]
        were = await asyncio.gather(
            *(store.move_note("one", before=None, to=text) for text in texts)
        )

        assert sorted(were) == [False] * 9 + [True]
        assert await store.note("one") == texts[were.index(True)]

    async def test_a_note_is_not_a_secret_or_a_limit(self, store: Store) -> None:
        limits = await store.limits()
        secret = await store.secret("one")

        await store.move_note("one", before=None, to="1")

        assert await store.secret("one") == secret
        assert await store.limits() == limits
