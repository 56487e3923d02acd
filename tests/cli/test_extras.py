"""A package that an extra would have brought is missing: the error names the extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

COMMAND = "from holdfast.cli.main import app; app({words!r})"
MISSING: dict[str, tuple[str, str, str]] = {
    "serve": ("starlette", COMMAND.format(words=["serve", "--port", "0"]), "server"),
    "up": ("uvicorn", COMMAND.format(words=["up", "--port", "0"]), "server"),
    "make_server": ("starlette", "import holdfast.http.app", "server"),
    "Client": ("httpx", "from holdfast import Client", "client"),
    "a server's address": (
        "httpx",
        COMMAND.format(words=["ls", "--url", "http://127.0.0.1:1"]),
        "client",
    ),
    "PostgreSQL": (
        "asyncpg",
        COMMAND.format(words=["ls", "--url", "postgresql://a/b"]),
        "postgres",
    ),
    "StoreContract": ("pytest", "from holdfast.testing import StoreContract", "testing"),
}


@pytest.mark.parametrize(("package", "code", "extra"), MISSING.values(), ids=MISSING)
def test_a_missing_package_is_named_with_the_extra_that_brings_it(
    tmp_path: Path, package: str, code: str, extra: str
) -> None:
    absent = f"import sys; sys.modules[{package!r}] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", absent + code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    answer = done.stderr.strip().splitlines()[-1]
    assert f"pip install 'holdfast[{extra}]'" in answer, done.stderr
