"""Places for commands: each runner on each store. After each test the host is as before."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from holdfast.app.app import Holdfast
from holdfast.maintenance.verify import verify
from holdfast.wiring import migrate, read_address
from tests.commands.support import HOST, CommandPlace, commands_of, list_illegal_histories
from tests.runners.hosts import leftovers
from tests.support.podman import PrivatePodman, nothing_left, private_podman

__all__ = ["private_podman"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep these together, apart from the tests of runners: starts are not faster in a crowd."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.xdist_group("commands"))


@pytest.fixture(params=["sqlite", "postgres"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """A store that is not made yet."""
    if request.param == "postgres":
        return str(request.getfixturevalue("postgres_url"))
    return str(tmp_path / "jobs.db")


@pytest.fixture(params=["process", "sandbox", "podman"])
def runner(request: pytest.FixtureRequest) -> str:
    """What runs the commands."""
    return str(request.param)


@pytest.fixture
def command_directory() -> Iterator[Path]:
    """Where the files of commands are: a directory that a box's own user can reach."""
    directory = Path(tempfile.mkdtemp(prefix="holdfast-commands-"))
    directory.chmod(0o711)
    yield directory
    shutil.rmtree(directory)


@pytest_asyncio.fixture
async def place(
    request: pytest.FixtureRequest, runner: str, store_url: str, command_directory: Path
) -> AsyncIterator[CommandPlace]:
    """A store and a runner. Afterwards the ledger is verified, every job had a life that the
    seed's dialect allows, and nothing is left on the host."""
    podman: PrivatePodman | None = None
    if runner == "podman":
        podman = request.getfixturevalue("private_podman")
    await migrate(read_address(store_url))
    app = Holdfast(store_url, command_dir=command_directory)
    commands = commands_of(runner, command_directory, podman)
    async with app:
        yield CommandPlace(
            url=store_url,
            directory=command_directory,
            commands=commands,
            app=app,
            podman=podman,
        )
        problems: list[object] = []
        await verify(await app.store(), on_problem=problems.append)
        assert problems == []
        assert await list_illegal_histories(app) == []
    stores = [store.name for store in command_directory.iterdir()]  # noqa: ASYNC240  a few names
    names = [name for store in stores for name in (store, f"{store}.{HOST}")]
    assert [left for name in names for left in leftovers(name)] == []
    if podman is not None:
        with nothing_left(podman):
            pass
