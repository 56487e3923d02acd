"""A watched file of rules: a change is applied, a broken file changes nothing and is reported."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.admission.book import book_digest
from holdfast.app.app import Holdfast
from holdfast.errors import BadPolicy
from holdfast.lifecycle.record import Actor
from holdfast.lifecycle.states import Role, State
from holdfast.ports.models import Query
from holdfast.ports.store import Store
from holdfast.services.policy_watch import TROUBLE_NOTE, PolicyWatch, read_policy_trouble
from holdfast.telemetry import Meters
from holdfast.testing.store_actions import submit_one
from tests.crashes.waiting import until
from tests.support.policies import ALLOW, DENY_MAILS, TWO_PEOPLE

ACTOR = Actor(Role.CONTROL, "watch")


def write(file: Path, text: str) -> None:
    """Write rules, as an editor does."""
    file.write_text(text, "utf-8")


def remove(file: Path) -> None:
    """Remove the file."""
    file.unlink()


@pytest.fixture
async def store(app: Holdfast) -> Store:
    return await app.store()


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file of rules."""
    file = tmp_path / "policy.toml"
    write(file, ALLOW)
    return file


@asynccontextmanager
async def watched(store: Store, file: Path, meters: Meters) -> AsyncIterator[PolicyWatch]:
    """Watch a file, impatiently."""
    watch = PolicyWatch(store, file, ACTOR, look_seconds=0.02, settle_seconds=0.01, meters=meters)
    running = asyncio.create_task(watch.run())
    yield watch
    watch.stop()
    await asyncio.wait_for(running, 30)


async def applied(store: Store, text: str) -> None:
    """Wait until rules are applied."""

    async def is_applied() -> bool:
        found = await store.policy()
        return found is not None and found.digest == book_digest(text)

    await until(is_applied, "the rules to be applied")


@pytest.mark.req("A13")
async def test_a_changed_file_is_applied(store: Store, file: Path) -> None:
    async with watched(store, file, Meters()):
        await applied(store, ALLOW)
        write(file, DENY_MAILS)
        await applied(store, DENY_MAILS)
    [last, first] = await store.policy_events()
    assert (last.actor, last.reason) == ("control:watch", f"file {file}")
    assert first.digest == book_digest(ALLOW)


async def test_a_broken_file_keeps_the_policy_and_is_reported_once_per_change(
    store: Store, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    meters = Meters()
    async with watched(store, file, meters):
        await applied(store, ALLOW)
        write(file, DENY_MAILS + "[[rule]]\n")
        await until(lambda: meters.policy_stale == 1, "the file to be found broken")
        noted = read_policy_trouble(await store.note(TROUBLE_NOTE))
        assert noted is not None
        assert (noted.path, f"{file}:" in noted.message) == (str(file), True)
        current = await store.policy()
        assert current is not None
        assert current.digest == book_digest(ALLOW)
        remove(file)
        await until(lambda: meters.policy_failures == 2, "the file to be missed")
        write(file, TWO_PEOPLE)
        await applied(store, TWO_PEOPLE)
        await until(lambda: meters.policy_stale == 0, "the file to be good again")
    assert read_policy_trouble(await store.note(TROUBLE_NOTE)) is None
    errors = [one for one in caplog.records if one.levelno >= logging.ERROR]
    assert len(errors) == 2


async def test_a_file_that_is_still_being_written_is_not_applied(store: Store, file: Path) -> None:
    watch = PolicyWatch(store, file, ACTOR, settle_seconds=0.5, look_seconds=9)
    await watch.apply_now()
    # The first part of what is being written is a book in itself.
    write(file, DENY_MAILS.partition("[[rule]]")[0] + "# half\n")
    assert await watch.look() == 0.5
    write(file, DENY_MAILS)
    assert await watch.look() == 0.5
    assert await watch.look() == 9
    assert [one.digest for one in await store.policy_events()] == [
        book_digest(DENY_MAILS),
        book_digest(ALLOW),
    ]


async def test_what_a_person_applies_stays_until_the_file_changes(store: Store, file: Path) -> None:
    watch = PolicyWatch(store, file, ACTOR, settle_seconds=0)
    await watch.apply_now()
    await store.apply_policy(DENY_MAILS, actor="control:ann")
    for _ in range(3):
        await watch.look()
    current = await store.policy()
    assert current is not None
    assert current.applied_by == "control:ann"


@pytest.mark.req("A13")
async def test_files_swapped_under_load_leave_no_job_undecided(store: Store, file: Path) -> None:
    books = {book_digest(text): text for text in (ALLOW, DENY_MAILS)}
    async with watched(store, file, Meters()):
        await applied(store, ALLOW)
        swapped = asyncio.Event()

        async def swap() -> None:
            for text in (DENY_MAILS, "broken", ALLOW, DENY_MAILS):
                write(file, text)
                if text in books.values():
                    await applied(store, text)
            swapped.set()

        async def load(name: str) -> None:
            number = 0
            while not swapped.is_set():
                await submit_one(store, job_id=f"{name}-{number}", task="mail.send")
                number += 1

        await asyncio.gather(swap(), load("a"), load("b"))
    page = await store.find(Query(limit=1000))
    assert page.jobs
    for job in page.jobs:
        [first] = await store.events(job.id, limit=1)
        assert first.facts.rules in books
        denies = books[first.facts.rules or ""] == DENY_MAILS
        assert first.facts.verdict == ("deny" if denies else "allow")
        assert (job.state is State.QUEUED) is not denies


async def test_an_app_applies_its_file_before_it_is_used(url: str, file: Path) -> None:
    write(file, DENY_MAILS)
    app = Holdfast(url, policy=file)

    @app.task(name="mail.send")
    async def send() -> None: ...

    async with app:
        job = await app.submit("mail.send")
        assert job.state is State.DENIED
    write(file, "broken")
    broken = Holdfast(url, policy=file)
    with pytest.raises(BadPolicy, match=r"policy\.toml:1"):
        await broken.store()
    write(file, ALLOW)
    # The next use tries again.
    await (await broken.store()).clock()
    await broken.close()
