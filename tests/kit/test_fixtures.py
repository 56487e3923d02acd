"""The plugin: its fixtures are there without an import, and tell no second error."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = ["pytester"]

INI = """
    [pytest]
    asyncio_default_fixture_loop_scope = function
    addopts = --strict-markers -p no:cacheprovider
"""

CONFTEST = """
    import pytest
    from holdfast import Holdfast

    app = Holdfast("nowhere/else.db")

    @app.task
    async def double(number: int) -> int:
        return number * 2

    @pytest.fixture
    def holdfast_app():
        return app
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> pytest.Pytester:
    """Somebody's own test suite."""
    pytester.makeconftest(CONFTEST)
    pytester.makeini(INI)
    return pytester


def test_an_app_of_ones_own_and_how_its_kit_is_set_up(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest
        from conftest import double
        from holdfast.testing import assert_submitted

        @pytest.mark.asyncio
        async def test_it_drains(holdfast_kit):
            job = await double.submit(2)
            assert len((await holdfast_kit.drain()).runs) == 1
            assert await job.result() == 4

        @pytest.mark.asyncio
        @pytest.mark.holdfast(inline=True)
        async def test_it_is_inline_and_has_forgotten_the_other_test(holdfast_kit):
            assert (await double.submit(3)).state == "succeeded"
            with pytest.raises(AssertionError):
                await assert_submitted(holdfast_kit.app, double, number=2)

        def test_without_a_loop(holdfast_kit):
            job = double.submit_sync(4)
            holdfast_kit.run(holdfast_kit.drain())
            assert job.result_sync() == 8
        """
    )
    suite.runpytest_inprocess().assert_outcomes(passed=3)


def test_a_failed_test_is_told_once_and_an_unmet_plan_by_itself(suite: pytest.Pytester) -> None:
    suite.makepyfile(
        """
        import pytest
        from conftest import double

        @pytest.mark.asyncio
        async def test_fails(holdfast_kit):
            holdfast_kit.crash_after("nowhere")
            assert False

        @pytest.mark.asyncio
        async def test_passes_and_its_plan_was_never_met(holdfast_kit):
            holdfast_kit.crash_after("nowhere")
        """
    )
    suite.runpytest_inprocess().assert_outcomes(failed=1, passed=1, errors=1)


def test_the_plugin_costs_nothing_where_it_is_not_used() -> None:
    heavy = "{'pydantic', 'apsw', 'msgspec', 'holdfast.app'}"
    code = f"import sys, holdfast.testing.fixtures; assert not {heavy} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
