"""What each guard costs: the store with one of them taken away, batch by batch in turn.

Scratch copies of the schema only: nothing of this can be switched off in a real database.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

import apsw
from msgspec import Struct

from bench.contenders import StoreContender
from bench.measure import Sample, batches, drain, submit_all, timed
from holdfast.stores.postgres import claim, commit, submit

BATCH = 500
ROUNDS = 30
WARM_UP = 3


class Variant(Struct, frozen=True, kw_only=True):
    """The store without one guard, or with another choice."""

    name: str
    schema: tuple[str, ...] = ()
    """What is done to a fresh database."""
    without: str | None = None
    """The table that the statements do not write."""
    sealed: bool = False


class Cost(Struct, frozen=True, kw_only=True):
    """CPU microseconds per job, client and server, of a variant: lower quartiles."""

    engine: str
    variant: str
    submit: float
    cycle: float


def _dropped(table: str, kind: str) -> str:
    source = {
        "CONSTRAINT": "SELECT conname AS name FROM pg_constraint WHERE contype = 'c' AND conrelid",
        "TRIGGER": "SELECT tgname AS name FROM pg_trigger WHERE NOT tgisinternal AND tgrelid",
    }[kind]
    verb = (
        f"ALTER TABLE {table} DROP CONSTRAINT %I" if kind == "CONSTRAINT"
        else f"DROP TRIGGER %I ON {table}"
    )  # fmt: skip
    return (
        f"DO $$ DECLARE r record; BEGIN FOR r IN {source} = '{table}'::regclass "
        f"LOOP EXECUTE format('{verb}', r.name); END LOOP; END $$"
    )


POSTGRES = (
    Variant(name="as it is"),
    Variant(name="no CHECKs on jobs", schema=(_dropped("jobs", "CONSTRAINT"),)),
    Variant(name="no triggers on jobs", schema=(_dropped("jobs", "TRIGGER"),)),
    Variant(name="no CHECKs on events", schema=(_dropped("events", "CONSTRAINT"),)),
    Variant(
        name="none of these",
        schema=(
            _dropped("jobs", "CONSTRAINT"),
            _dropped("jobs", "TRIGGER"),
            _dropped("events", "CONSTRAINT"),
        ),
    ),
    Variant(name="no summaries", without="counts"),
    Variant(name="no row per claim", without="claims"),
    Variant(name="fillfactor 100", schema=("ALTER TABLE jobs SET (fillfactor = 100)",)),
    Variant(name="sealing on", sealed=True),
)
SQLITE = (
    Variant(name="as it is"),
    Variant(name="no CHECKs on jobs", schema=("CHECK jobs",)),
    Variant(name="no triggers on jobs", schema=("TRIGGER jobs",)),
    Variant(name="no CHECKs on events", schema=("CHECK events",)),
    Variant(name="none of these", schema=("CHECK jobs", "TRIGGER jobs", "CHECK events")),
    Variant(name="sealing on", sealed=True),
)


async def measure_guards(engine: Any, *, rounds: int = ROUNDS) -> list[Cost]:
    """Let all variants take turns, a batch of submits and a cycle each, and compare."""
    variants = POSTGRES if engine.name == "postgres" else SQLITE
    async with AsyncExitStack() as stack:
        contenders = [
            await stack.enter_async_context(_variant(engine, variant)) for variant in variants
        ]
        for number in range(WARM_UP + rounds):
            for one in contenders if number % 2 else reversed(contenders):
                await one.turn(counted=number >= WARM_UP)
        return [one.cost(engine.name) for one in contenders]


@asynccontextmanager
async def _variant(engine: Any, variant: Variant) -> Any:
    with engine.place("store") as place:
        for statement in variant.schema:
            _change(engine.name, place, statement)
        contender = StoreContender(engine.store(place))
        await contender.open()
        try:
            if variant.sealed:
                await contender.store.set_sealing(True)
            yield _Turns(variant, place, contender)
        finally:
            await contender.close()


class _Turns:
    """One variant's samples."""

    def __init__(self, variant: Variant, place: Any, contender: StoreContender) -> None:
        self._variant = variant
        self._place = place
        self._contender = contender
        self._submits: list[Sample] = []
        self._cycles: list[Sample] = []

    async def turn(self, *, counted: bool) -> None:
        prepared = list(batches(BATCH, BATCH))
        with _left_out(self._variant.without):
            submitted = await timed(
                self._place, BATCH, lambda: submit_all(self._contender, prepared), rested=True
            )
            cycled = await timed(
                self._place, BATCH, lambda: drain(self._contender, BATCH, BATCH), rested=True
            )
        if counted:
            self._submits.append(submitted)
            self._cycles.append(cycled)

    def cost(self, engine: str) -> Cost:
        return Cost(
            engine=engine,
            variant=self._variant.name,
            submit=_quartile(self._submits),
            cycle=_quartile(self._cycles),
        )


def _quartile(samples: list[Sample]) -> float:
    """The lower one: what others do on the machine only ever adds."""
    micros = [(one.client_seconds + one.server_seconds) / one.jobs * 1e6 for one in samples]
    return quantiles(micros, n=4)[0] if len(micros) > 1 else median(micros)


@contextmanager
def _left_out(table: str | None) -> Iterator[None]:
    """Send statements that do not write one table meanwhile."""
    if table is None:
        yield
        return
    with ExitStack() as stack:
        for module, name in ((submit, "submit_sql"), (claim, "claim_sql"), (commit, "commit_sql")):
            write: Any = getattr(module, name)
            less = _writes_less(write, table)
            stack.enter_context(patch.object(module, name, less))
        yield


def _writes_less(write: Callable[..., str], table: str) -> Callable[..., str]:
    return lambda **parts: without(write(**parts), table)


def without(sql: str, table: str) -> str:
    """Let a statement not write a table: what is only selected there is not even looked up."""
    return re.sub(rf"INSERT INTO {table}( \([^)]*\))?\s*", "", sql)


def _change(engine: str, place: Any, statement: str) -> None:
    if engine == "postgres":
        place.sql(statement)
        return
    kind, table = statement.split()
    connection = apsw.Connection(place.path)
    if kind == "TRIGGER":
        asked = "SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?"
        for (name,) in list(connection.execute(asked, (table,))):
            connection.execute(f"DROP TRIGGER {name}")
    else:
        _uncheck(connection, table)
    connection.close()


def _uncheck(connection: apsw.Connection, table: str) -> None:
    """Write a table's definition anew without its CHECKs; its rows stay as they are."""
    asked = "SELECT sql FROM sqlite_master WHERE type = 'table' AND name = ?"
    [(sql,)] = connection.execute(asked, (table,))
    text = str(sql)
    while (found := re.search(r",\s*CONSTRAINT \w+ CHECK \(", text)) is not None:
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        text = text[: found.start()] + text[end:]
    connection.config(apsw.SQLITE_DBCONFIG_DEFENSIVE, 0)
    connection.execute("PRAGMA writable_schema = ON")
    update = "UPDATE sqlite_master SET sql = ? WHERE type = 'table' AND name = ?"
    connection.execute(update, (text, table))
    connection.execute("PRAGMA writable_schema = RESET")
