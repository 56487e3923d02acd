"""What a command leaves in /artifacts, from its box to a directory of its caller (case 25)."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.lifecycle.states import State
from tests.commands.support import CommandPlace

TREE = """
cd ${HOLDFAST_ARTIFACTS:-/artifacts} || exit 9
mkdir -p out/shut && printf made > out/shut/file && ln out/shut/file hard
chmod 000 out/shut/file out/shut
ln -s /etc/passwd link; ln -s ../../../../etc up; ln -s / root; mkfifo fifo
printf x > "$(printf 'not\\377text')"; printf x > "$(printf 'two\\nlines')"
printf '%s' "$HOLDFAST_ATTEMPT" > ..attempt
exit 4
"""


@pytest.mark.req("D13", "B29")
@pytest.mark.parametrize("runner", ["sandbox", "podman"], indirect=True)
async def test_only_files_of_a_hostile_tree_are_kept_and_saved(
    place: CommandPlace, tmp_path: Path
) -> None:
    async with place.worker():
        job = await place.submit(TREE)
        assert (await place.ended(job)).state is State.FAILED
    listed = await job.artifacts()
    assert [one.path for one in listed.artifacts] == ["..attempt", "hard", "out/shut/file"]
    assert listed.skipped_counts == {"link": 3, "fifo": 1, "name_not_text": 2}
    await job.download_artifacts(tmp_path / "to")
    assert (tmp_path / "to" / "out" / "shut" / "file").read_bytes() == b"made"
    assert (tmp_path / "to" / "..attempt").read_bytes() == b"1"
    end = next(event for event in await place.events(job) if event.ends)
    assert end.facts.exit_code == 4
    assert end.facts.artifacts is not None
    assert end.facts.artifacts.bytes == 9
