"""The answer itself: its reads, its form, its words."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest
from msgspec.structs import replace

from holdfast.errors import NoSuchJob
from holdfast.ids import mint_id
from holdfast.lifecycle import commands as c
from holdfast.lifecycle.states import State
from holdfast.lifecycle.times import LAST_INSTANT, SECOND, After
from holdfast.ports.store import Store
from holdfast.queries.why import reasons as r
from holdfast.queries.why.phrases import describe_time
from holdfast.queries.why.why import Why, why
from holdfast.testing.factories import CONTROL, HOUR
from holdfast.testing.store_actions import do, job_in
from holdfast.testing.store_actions import submit_one as submit
from tests.queries.why.acts import retrying, served, unkillable


class Changed:
    """A store that shows a job otherwise than it is, and counts what it is asked."""

    def __init__(self, store: Store, **columns: Any) -> None:
        self._store, self._columns = store, columns
        self.asked: list[str] = []

    def __getattr__(self, name: str) -> Any:
        self.asked.append(name)
        return getattr(self._store, name)

    async def get(self, ids: Any) -> Any:
        """Show the job with other columns."""
        self.asked.append("get")
        found = await self._store.get(ids)
        return [None if job is None else replace(job, **self._columns) for job in found]


async def test_a_state_of_a_newer_version_says_to_upgrade(store: Store) -> None:
    job = await submit(store)
    newer: Any = Changed(store, state=State.UNKNOWN)
    answer = await why(newer, job.id)

    assert isinstance(answer.reason, r.NewerVersion)
    assert "upgrade" in answer.text


async def test_a_job_that_moves_meanwhile_is_told_as_it_was_read(store: Store) -> None:
    job = await retrying(store)
    await do(store, job, c.Reschedule(actor=CONTROL, run_at=After(2 * HOUR)))
    earlier: Any = Changed(store, **{name: getattr(job, name) for name in job.__struct_fields__})
    answer = await why(earlier, job.id)

    assert isinstance(answer.reason, r.BacksOff)
    assert answer.reason.until == job.run_at


@pytest.mark.parametrize("what", ["held", "ready", "running", "ended"])
async def test_it_reads_no_more_than_it_says(store: Store, what: str) -> None:
    if what in ("held", "ready"):
        job, _ = await served(store, holds=("budget",) if what == "held" else ())
    else:
        job = await job_in(store, State.RUNNING if what == "running" else State.SUCCEEDED)
    counting: Any = Changed(store)
    await why(counting, job.id)

    assert len(counting.asked) <= 7, counting.asked


async def test_a_job_that_is_not_there_is_said(store: Store) -> None:
    with pytest.raises(NoSuchJob):
        await why(store, mint_id())


async def test_an_answer_can_be_written_as_json(store: Store) -> None:
    job = await unkillable(store)
    answer = await why(store, job.id)
    told = msgspec.json.decode(msgspec.json.encode(answer))

    assert (told["reason"]["code"], told["state"]) == ("unkillable", "running")
    assert [one["code"] for one in told["also"]] == ["cancel_requested", "running"]
    assert msgspec.json.decode(msgspec.json.encode(answer), type=Why) == answer


def test_every_reason_has_a_code_of_its_own() -> None:
    kinds = get_args(r.Reason)
    tags = [kind.__struct_config__.tag for kind in kinds]

    assert set(kinds) == set(r.ReasonBase.__subclasses__())
    assert len(set(tags)) == len(kinds)
    assert all(tag.isidentifier() and tag.islower() for tag in tags)


def test_the_page_about_it_names_every_reason() -> None:
    page = (Path(__file__).parents[3] / "docs/why.md").read_text("utf-8")
    named = [line.split("`")[1] for line in page.splitlines() if line.startswith("| `")]

    assert sorted(named) == sorted(kind.__struct_config__.tag for kind in get_args(r.Reason))


@pytest.mark.parametrize(
    ("away", "told"),
    [
        (0, "0s ago"),
        (5, "in 5s"),
        (-65, "1m 5s ago"),
        (120, "in 2m"),
        (3661, "in 1h 1m"),
        (-90_000, "1d 1h ago"),
        (86_400, "in 1d"),
    ],
)
def test_a_time_is_told_with_how_far_away_it_is(away: int, told: str) -> None:
    now = 1_700_000_000 * SECOND

    assert describe_time(now + away * SECOND, now).endswith(f"Z ({told})")


def test_the_last_of_all_times_can_be_told() -> None:
    assert describe_time(LAST_INSTANT, 0).startswith("9999-12-31 23:59:59Z")
