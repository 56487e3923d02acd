"""The commands of a page work as shown, typed in an empty directory."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import answered
from tests.cli.test_serving import running
from tests.docs.pages import ROOT, Page

pytestmark = pytest.mark.live

QUICKSTART = Page(ROOT / "docs" / "quickstart.md")
HTTP = Page(ROOT / "docs" / "http.md")
LIMIT_SECONDS = 120
FIRST_REQUEST = re.compile(r"^(curl .*)$", re.MULTILINE)


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """The directory of the quickstart, with its shop.py."""
    shown = [block.source for block in QUICKSTART.blocks() if "test_a_" not in block.source]
    # The block after the second is hidden: a reader does not see it.
    (tmp_path / "shop.py").write_text("\n\n".join(shown[:2]))
    return tmp_path


def typed(here: Path, *words: str) -> str:
    """Run a command; return its output."""
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    done = subprocess.run(
        words,
        cwd=here,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=LIMIT_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_quickstart_does_what_it_says(here: Path) -> None:
    worker = subprocess.Popen(
        [sys.executable, "-m", "holdfast.cli", "worker", "shop:app"],
        cwd=here,
        stderr=subprocess.DEVNULL,
    )
    try:
        id_, result = typed(here, sys.executable, "shop.py").splitlines()
    finally:
        worker.terminate()
        worker.wait(LIMIT_SECONDS)
    assert result == "order 7 confirmed"
    asked = re.search(r"What happened\?\n\n```sh\n(.*?)```", QUICKSTART.text, re.DOTALL)
    assert asked is not None
    lines = [line.partition("#")[0].replace("JOB", id_) for line in asked[1].splitlines()]
    shown = [typed(here, *shlex.split(line)) for line in lines]
    assert len(shown) == 4
    assert id_ in shown[0]
    assert "order 7 confirmed" in shown[1]
    assert "succeeded" in shown[2]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_first_request_of_the_http_page_makes_a_job(here: Path) -> None:
    found = FIRST_REQUEST.search(HTTP.text)
    assert found is not None
    with running(here, "up", "shop:app") as served:
        base = served.http.base_url
        line = found[1].replace("127.0.0.1:8080", f"{base.host}:{base.port}")
        made = json.loads(typed(here, *shlex.split(line)))
        assert (made["created"], made["job"]["task"]) == (True, "confirm")
        ended = served.http.get(f"/v1/jobs/{made['job_id']}/result?wait=50").json()
        assert ended["result"] == "order 7 confirmed"
    assert (
        answered(str(here / "holdfast.db"), "show", made["job_id"])["job"]["state"] == "succeeded"
    )
