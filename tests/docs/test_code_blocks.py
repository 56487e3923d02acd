"""The Python code of every page runs, from top to bottom."""

from __future__ import annotations

import ast
import inspect
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast import Holdfast
from holdfast.testing import Kit
from tests.docs.pages import ROOT, Page, pages

pytest_plugins = ["pytester"]
WITH_CODE = [page for page in pages() if any(page.blocks()) and page.run_by is None]
INI = """
    [pytest]
    asyncio_mode = auto
    asyncio_default_fixture_loop_scope = function
    addopts = --strict-markers -p no:cacheprovider
"""


@pytest.fixture
async def under_kits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[None]:
    """Use a kit for every app that a page makes, unless the page does so itself."""
    monkeypatch.chdir(tmp_path)
    make, enter = Holdfast.__init__, Kit.__aenter__
    kits: dict[Holdfast, Kit] = {}

    def make_under_a_kit(app: Holdfast, *args: Any, **settings: Any) -> None:
        make(app, *args, **settings)
        kits[app] = Kit(app)
        kits[app].install()

    async def enter_instead(kit: Kit) -> Kit:
        if kit.app in kits:
            kits.pop(kit.app).uninstall()
        return await enter(kit)

    monkeypatch.setattr(Holdfast, "__init__", make_under_a_kit)
    monkeypatch.setattr(Kit, "__aenter__", enter_instead)
    yield
    async with AsyncExitStack() as stack:
        for kit in kits.values():
            stack.push_async_exit(kit)


@pytest.mark.usefixtures("under_kits")
@pytest.mark.parametrize(
    "page", [page for page in WITH_CODE if not page.is_test], ids=lambda page: page.name
)
async def test_the_code_of_a_page_runs(page: Page) -> None:
    names: dict[str, Any] = {"__name__": "__page__"}
    for block in page.blocks():
        flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
        code = compile(block.placed, page.name, "exec", flags=flags, dont_inherit=True)
        if not block.is_fragment:
            ran = eval(code, names)
            if inspect.iscoroutine(ran):
                await ran


@pytest.mark.parametrize(
    "page", [page for page in WITH_CODE if page.is_test], ids=lambda page: page.name
)
def test_the_tests_of_a_page_pass(page: Page, pytester: pytest.Pytester) -> None:
    blocks = [block for block in page.blocks() if not block.is_fragment]
    pytester.makeini(INI)
    pytester.makepyfile(test_page="\n\n".join(block.source for block in blocks))
    tests = sum("def test_" in block.source for block in blocks)
    outcomes = pytester.runpytest_inprocess().parseoutcomes()
    assert set(outcomes) == {"passed"}, outcomes
    assert outcomes["passed"] >= tests > 0


@pytest.mark.parametrize(
    "page", [page for page in pages() if page.run_by], ids=lambda one: one.name
)
def test_another_test_really_runs_the_code_of_a_page(page: Page) -> None:
    assert page.run_by is not None
    assert page.path.name in (ROOT / page.run_by).read_text("utf-8")


def test_most_of_the_code_is_run() -> None:
    blocks = [block for page in WITH_CODE for block in page.blocks()]
    fragments = [block for block in blocks if block.is_fragment]
    assert len(blocks) > 30
    assert len(fragments) <= 3
