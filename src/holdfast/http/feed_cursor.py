"""Cursors of the feed of all events, encrypted before a client sees them.

A plain cursor counts the events of all tenants, and so would show one tenant how busy the others
are. The same place never looks the same twice.
"""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64

try:
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV
except ModuleNotFoundError as error:
    raise ModuleNotFoundError(
        "the server needs cryptography: pip install 'holdfast[server]'", name=error.name
    ) from error

from holdfast.errors import BadData
from holdfast.ids import mint_secret
from holdfast.ports.store import Store

_NONCE = 16
_LONGEST = 400


class FeedCursors:
    """The cursors of one store's feed."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._key: bytes | None = None

    async def current(self) -> EpochCursors:
        """Return the cursors of the current epoch: one from before a restore is refused."""
        if self._key is None:
            self._key = await self._store.secret("feed_cursors")
        return EpochCursors(self._key, (await self._store.clock()).epoch)


class EpochCursors:
    """The cursors of one epoch."""

    def __init__(self, key: bytes, epoch: int) -> None:
        self._cipher = AESSIV(key)
        self.epoch = epoch

    def encrypt(self, cursor: str) -> str:
        """Return a cursor as a client sees it."""
        nonce = mint_secret(_NONCE)
        text = f"{self.epoch}:{cursor}".encode()
        return urlsafe_b64encode(nonce + self._cipher.encrypt(text, [nonce])).decode()

    def decrypt(self, text: str) -> str:
        """Return the cursor that a client sent back; BadData if it is invalid or too old."""
        try:
            if len(text) > _LONGEST:
                raise ValueError
            whole = urlsafe_b64decode(text.encode("ascii"))
            found = self._cipher.decrypt(whole[_NONCE:], [whole[:_NONCE]]).decode()
        except (NotBase64, InvalidTag, ValueError) as error:
            raise BadData("this cursor is not from this server; start without one") from error
        epoch, _, cursor = found.partition(":")
        if int(epoch) != self.epoch:
            raise BadData("the database was restored since this cursor; start without one")
        return cursor
