"""A process finds the app again, as a module or as the script that runs; if not, it says why."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.errors import BadAddress, HandlerDied, NoSuchTask, RemoteError
from holdfast.runners.process.app_loader import app_reference
from tests.runners.worlds import failure, world

ROOT = Path(__file__).parents[2]

BAD_APPS = {
    "no_such_module:app": "No module named 'no_such_module'",
    "tests.runners.handlers:nothing": "has no attribute 'nothing'",
    "tests.runners.handlers:kept": "has no attribute 'tasks'",
    "tests.runners.bad_imports.raising:app": "out of order",
    "tests.runners.bad_imports.exiting:app": "7",
}


@pytest.mark.parametrize("app", BAD_APPS)
async def test_an_app_that_cannot_be_loaded_is_told_with_its_reason(app: str) -> None:
    async with world(app) as given:
        error = await failure(given, "add", a=1, b=2)

    assert isinstance(error, RemoteError)
    assert f"{app} could not be loaded" in str(error)
    assert BAD_APPS[app] in str(error)


async def test_an_import_that_never_ends_is_given_up() -> None:
    async with world("tests.runners.endless_import:app", start_seconds=0.5) as given:
        error = await failure(given, "pid")
    assert isinstance(error, HandlerDied)
    assert "did not load tests.runners.endless_import:app in time" in str(error)


async def test_an_import_that_kills_the_process_is_told() -> None:
    async with world("tests.runners.bad_imports.dying:app") as given:
        error = await failure(given, "pid")
    assert isinstance(error, HandlerDied)
    assert error.exit_code == 9


async def test_a_task_that_the_process_does_not_find_is_named() -> None:
    async with world() as given:
        error = await failure(given, "no_such_task")
    assert isinstance(error, NoSuchTask)
    assert "no task 'no_such_task'" in str(error)


@pytest.mark.parametrize("reference", ["myapp", "myapp:", ":app", ""])
def test_what_names_no_app_is_refused(reference: str) -> None:
    with pytest.raises(BadAddress, match="module:attribute"):
        app_reference(reference)


SCRIPT = """
import asyncio
from dataclasses import dataclass
from tests.runners.handlers import App
from tests.runners.worlds import world

app = App()

@dataclass
class Answer:
    name: str

@app.task
def name(ctx):
    return Answer(__name__).name

async def main():
    async with world("__main__:app") as given:
        print(await given.run("name"))

{start}
"""


GUARDED = 'if __name__ == "__main__":\n    asyncio.run(main())'


def run(directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=directory,
        env={"PYTHONPATH": str(ROOT)},
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )


@pytest.mark.parametrize(
    ("arguments", "name"),
    [(["script.py"], "__mp_main__"), (["-m", "script"], "script")],
    ids=["script", "module"],
)
def test_the_tasks_of_what_is_run_are_found_again(
    tmp_path: Path, arguments: list[str], name: str
) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(start=GUARDED))
    done = run(tmp_path, *arguments)
    assert (done.stdout, done.stderr) == (f"{name}\n", "")


def test_a_script_that_starts_a_worker_when_imported_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT.format(start="asyncio.run(main())"))
    done = run(tmp_path, "script.py")
    assert done.returncode == 1
    assert "the app starts a worker when it is imported" in done.stderr.splitlines()[-1]


def test_tasks_that_were_typed_in_are_refused_before_anything_runs(tmp_path: Path) -> None:
    load = "from holdfast.runners.process.app_loader import app_reference"
    code = f"{load}; app_reference('__main__:app')"
    done = run(tmp_path, "-c", code)
    assert "put tasks with isolate='process' into a module" in done.stderr
