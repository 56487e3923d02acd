"""Where a listener stands in the tail of all events, as it is told to the listener.

Sealed: a bare cursor counts the events of everybody, and so would tell one tenant how busy the
others are. The same place never looks the same twice.
"""

from __future__ import annotations

import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from binascii import Error as NotBase64
from hashlib import blake2b, shake_256

from holdfast.errors import BadData
from holdfast.identity import mint_secret
from holdfast.ports import Store

_NONCE, _TAG = 8, 12
_LONGEST = 400


class Bookmarks:
    """Seals and opens cursors of one store."""

    def __init__(self, store: Store) -> None:
        """Take the store; its secret and epoch are read when first needed."""
        self._store = store
        self._key: bytes | None = None

    async def epoch(self) -> Epoch:
        """Begin with the present epoch: a bookmark of before a restore leads nowhere."""
        if self._key is None:
            self._key = await self._store.secret("bookmarks")
        return Epoch(self._key, (await self._store.clock()).epoch)


class Epoch:
    """The bookmarks of one epoch."""

    def __init__(self, key: bytes, number: int) -> None:
        """Take the key and the number of the epoch."""
        self._key = key
        self.number = number

    def seal(self, cursor: str) -> str:
        """Make a bookmark of a cursor."""
        nonce = mint_secret(_NONCE)
        hidden = self._mixed(nonce, f"{self.number}:{cursor}".encode())
        return urlsafe_b64encode(nonce + self._tag(nonce + hidden) + hidden).decode()

    def open(self, bookmark: str) -> str:
        """Read a cursor back; BadData if it is none of this database, or of before a restore."""
        nonce, tag, hidden = _parts(bookmark)
        if not hmac.compare_digest(tag, self._tag(nonce + hidden)):
            raise _foreign()
        number, _, cursor = self._mixed(nonce, hidden).decode().partition(":")
        if int(number) != self.number:
            raise BadData("the database was restored since this bookmark; begin without one")
        return cursor

    def _mixed(self, nonce: bytes, text: bytes) -> bytes:
        stream = shake_256(self._key + nonce).digest(len(text))
        mixed = int.from_bytes(text) ^ int.from_bytes(stream)
        return mixed.to_bytes(len(text))

    def _tag(self, text: bytes) -> bytes:
        return blake2b(text, key=self._key, digest_size=_TAG).digest()


def _parts(bookmark: str) -> tuple[bytes, bytes, bytes]:
    if len(bookmark) > _LONGEST:
        raise _foreign()
    try:
        whole = urlsafe_b64decode(bookmark.encode("ascii"))
    except (NotBase64, UnicodeError) as error:
        raise _foreign() from error
    return whole[:_NONCE], whole[_NONCE : _NONCE + _TAG], whole[_NONCE + _TAG :]


def _foreign() -> BadData:
    return BadData("this is no bookmark that this server gave; begin without one")
