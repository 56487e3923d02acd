"""Every module and test that a page names exists; what was moved is named by its new path."""

from __future__ import annotations

import re
from pkgutil import resolve_name

import pytest

from tests.docs.pages import ROOT, Page, pages

PACKAGE = ROOT / "src" / "holdfast"
ROOMS = sorted(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
CODE = re.compile(r"`([^`\n]+)`")
IN_PACKAGE = re.compile(rf"(?:{'|'.join(ROOMS)})(?:/[a-z_*]+)+(?:\.py)?")
IN_PROJECT = re.compile(r"(?:src|tests|tools|deploy|examples)/[\w/.-]+?(?:::\w+)?")
DOTTED = re.compile(rf"holdfast\.(?:{'|'.join(ROOMS)})(?:\.\w+)*")


def missing(text: str) -> list[str]:
    """Return what a text names in code and the project does not have."""
    codes = CODE.findall(re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE))
    return [code for code in codes if not _exists(code)]


def _exists(code: str) -> bool:
    if IN_PROJECT.fullmatch(code):
        path, _, function = code.partition("::")
        file = ROOT / path
        return file.exists() and (not function or f"def {function}(" in file.read_text("utf-8"))
    if IN_PACKAGE.fullmatch(code):
        stem = code.removesuffix(".py")
        return any(PACKAGE.glob(f"{stem}.py")) or any(PACKAGE.glob(stem))
    if dotted := DOTTED.match(code):
        return _resolves(dotted[0])
    return True


def _resolves(name: str) -> bool:
    try:
        resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


@pytest.mark.parametrize(
    "page", [page for page in pages() if page.name != "CHANGELOG.md"], ids=lambda page: page.name
)
def test_the_modules_that_a_page_names_exist(page: Page) -> None:
    assert missing(page.text) == []


@pytest.mark.parametrize(
    "text",
    [
        "`flow/submit`, `stores/*/claim`, `stores/sqlite/writer.py` and `runners/process`",
        "`holdfast.queries.why.why.why(store, id)` and `holdfast.webhooks.check_signature`",
        "`tests/docs`, `tools/tree.py::rooms` and `stores/fold` but\n```\n`flow/nothing`\n```\n",
    ],
)
def test_modules_that_exist_are_found(text: str) -> None:
    assert missing(text) == []


@pytest.mark.parametrize(
    "code",
    [
        "flow/desk",
        "stores/*/asking.py",
        "holdfast.flow.letters.show",
        "tests/api",
        "tests/docs/pages.py::test_none",
    ],
)
def test_a_module_that_was_moved_is_noticed(code: str) -> None:
    assert missing(f"see `{code}`") == [code]
