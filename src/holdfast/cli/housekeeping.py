"""The loops that keep a store in order, wherever they run: alone, or beside the API."""

from __future__ import annotations

import os
import socket
from functools import partial
from typing import Protocol, TypeAlias

from msgspec import Struct

from holdfast.cli.settings import words
from holdfast.flow.clean import Cleaned, Terms, read_term
from holdfast.flow.purge import Purged, PurgeTerms
from holdfast.flow.recover import Swept
from holdfast.identity import jitter
from holdfast.lifecycle.job import JobId
from holdfast.outside import Outside, read_networks
from holdfast.ports import Store
from holdfast.services.janitor import Janitor
from holdfast.services.postman import Postman
from holdfast.services.reconciler import Reconciler
from holdfast.telemetry import Meters
from holdfast.wiring import Address, make_store

Loop: TypeAlias = Reconciler | Janitor | Postman


class Listener(Protocol):
    """Who hears what was done."""

    def swept(self, report: Swept) -> None:
        """Hear of a sweep."""

    def cleaned(self, report: Cleaned) -> None:
        """Hear of a look of the janitor."""

    def purged(self, report: Purged) -> None:
        """Hear of a look that removed jobs whole."""


class Mail(Struct, frozen=True, kw_only=True):
    """How webhooks are told: of which store's jobs, and where they may lead."""

    address: Address
    outside: Outside


class Housekeeping(Struct, frozen=True, kw_only=True):
    """What is swept and cleaned, and how often."""

    tick_seconds: float
    terms: Terms
    clean: bool
    purge_terms: PurgeTerms = PurgeTerms()
    mail: Mail | None = None
    """How webhooks are told; None: not from here."""

    def loops(
        self, store: Store, listener: Listener | None = None, meters: Meters | None = None
    ) -> list[Loop]:
        """Make the loops of one process on one store."""
        made: list[Loop] = [self._reconciler(store, listener, meters)]
        if self.clean:
            made.append(self._janitor(store, listener, meters))
        if self.mail is not None:
            made.append(self._postman(store, self.mail, meters))
        return made

    async def once(self, store: Store, listener: Listener) -> dict[JobId, str]:
        """Do all that is due, once; tells which jobs could not be judged, and why."""
        reconciler = self._reconciler(store, listener, None)
        while (report := await reconciler.sweep()).written:
            pass
        failed = dict(report.failed)
        if self.clean:
            janitor = self._janitor(store, listener, None)
            failed |= (await janitor.clean_all()).failed
            failed |= (await janitor.purge_all()).failed
        return failed

    def _reconciler(
        self, store: Store, listener: Listener | None, meters: Meters | None
    ) -> Reconciler:
        return Reconciler(
            store,
            caretaker(),
            jitter=jitter,
            tick_seconds=self.tick_seconds,
            on_sweep=None if listener is None else listener.swept,
            meters=meters,
        )

    def _janitor(self, store: Store, listener: Listener | None, meters: Meters | None) -> Janitor:
        return Janitor(
            store,
            caretaker(),
            self.terms,
            purge_terms=self.purge_terms,
            on_look=None if listener is None else listener.cleaned,
            on_purge=None if listener is None else listener.purged,
            meters=meters,
        )

    def _postman(self, store: Store, mail: Mail, meters: Meters | None) -> Postman:
        return Postman(
            store,
            partial(make_store, mail.address),
            caretaker(),
            outside=mail.outside,
            meters=meters,
        )


def read_outside(allow: str) -> Outside:
    """Read where webhooks may lead, as settings say it."""
    return Outside(allow=read_networks(words(allow)))


def read_purge_terms(succeeded: str, unsuccessful: str) -> PurgeTerms:
    """Read how long records are kept, as settings say it."""
    return PurgeTerms(
        succeeded=read_term(succeeded, "--purge"),
        unsuccessful=read_term(unsuccessful, "--purge-unsuccessful"),
    )


def read_terms(keep: str, keep_unsuccessful: str, keep_letters: str) -> Terms:
    """Read how long things are kept, as settings say it."""
    return Terms(
        succeeded=read_term(keep, "--keep"),
        unsuccessful=read_term(keep_unsuccessful, "--keep-unsuccessful"),
        open_letters=read_term(keep_letters, "--keep-letters"),
    )


def caretaker() -> str:
    """Name this process, as the actor of what it does to keep a store in order."""
    return f"{socket.gethostname()}-{os.getpid()}"
