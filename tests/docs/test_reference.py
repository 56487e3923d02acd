"""The generated reference names every error, and every public member of what users hold."""

from __future__ import annotations

import pytest

from holdfast import Context, JobHandle
from holdfast.errors import HoldfastError
from tests.docs.pages import ROOT
from tests.test_errors import tree
from tools.reference_page import INTERNAL


def test_every_error_is_listed_with_its_code() -> None:
    text = (ROOT / "docs/reference.md").read_text()
    for kind in tree(HoldfastError):
        if kind.__module__ == "holdfast.errors":
            assert f"`{kind.__name__}` | `{kind.code}` |" in text


@pytest.mark.parametrize("kind", [Context, JobHandle])
def test_every_member_is_listed_and_explained(kind: type) -> None:
    text = (ROOT / "docs/reference.md").read_text()
    for name, member in vars(kind).items():
        if name.startswith("_") or name in INTERNAL.get(kind, ()):
            continue
        if callable(member) or isinstance(member, property):
            assert member.__doc__, f"{kind.__name__}.{name} has no docstring"
            assert f"`{name}" in text or f"`await {name}(" in text
