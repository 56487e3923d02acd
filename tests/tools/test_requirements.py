"""The list of requirements and what proves them."""

from pathlib import Path

import pytest

from tools import requirements

LIST = (requirements.ROOT / requirements.LIST).read_text("utf-8")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with the real list and no tests."""
    (tmp_path / "docs").mkdir()
    (tmp_path / requirements.LIST).write_text(LIST, "utf-8")
    for directory in requirements.SEARCHED:
        (tmp_path / directory).mkdir(parents=True)
    return tmp_path


def proven(repository: Path) -> set[tuple[str, str]]:
    findings = requirements.find_proofs(repository, set(requirements.read_list(LIST)))
    assert findings.mistakes == []
    return {(proof.id, proof.test) for proof in findings.proofs}


def test_the_list_has_93_requirements() -> None:
    assert len(requirements.read_list(LIST)) == 93


@pytest.mark.parametrize(
    ("before", "after"),
    [("\n- B7 ", "\n- "), ("\n- B7 ", "\n- B8 "), ("\n- E8 ", "\n- E9 ")],
    ids=["lost", "double", "renumbered"],
)
def test_a_damaged_list_is_refused(before: str, after: str) -> None:
    with pytest.raises(requirements.ListError):
        requirements.read_list(LIST.replace(before, after))


def test_marks_are_found_on_functions_classes_modules_and_parameters(repository: Path) -> None:
    (repository / "tests/test_sample.py").write_text(
        """
import pytest
pytestmark = [pytest.mark.req("A1"), pytest.mark.slow]

@pytest.mark.req("A2", "A3")
async def test_one(): ...

@pytest.mark.parametrize("x", [pytest.param(1, marks=pytest.mark.req("A4"))])
def test_two(x): ...

@pytest.mark.req("A5")
class TestThree:
    pytestmark = pytest.mark.req("A6")

    @pytest.mark.req("A7")
    def test_four(self): ...
"""
    )
    (repository / "src/holdfast/testing/contract.py").write_text(
        'class Contract:\n    @pytest.mark.req("C1")\n    def test_five(self): ...\n'
    )

    assert proven(repository) == {
        ("A1", "tests/test_sample.py"),
        ("A2", "tests/test_sample.py::test_one"),
        ("A3", "tests/test_sample.py::test_one"),
        ("A4", "tests/test_sample.py::test_two"),
        ("A5", "tests/test_sample.py::TestThree"),
        ("A6", "tests/test_sample.py::TestThree"),
        ("A7", "tests/test_sample.py::TestThree::test_four"),
        ("C1", "src/holdfast/testing/contract.py::Contract::test_five"),
    }


@pytest.mark.parametrize(
    ("mark", "name", "message"),
    [
        ('pytest.mark.req("B99")', "test_one", "unknown requirement 'B99'"),
        ("pytest.mark.req(7)", "test_one", "unknown requirement 7"),
        ("pytest.mark.req(B21)", "test_one", "must be named by a literal string"),
        ("pytest.mark.req()", "test_one", "takes one or more ids"),
        ('pytest.mark.req("B21")', "helper", "a mark on helper proves nothing"),
    ],
)
def test_a_wrong_mark_fails_and_is_named_by_file_and_line(
    repository: Path, capsys: pytest.CaptureFixture[str], mark: str, name: str, message: str
) -> None:
    (repository / "tests/test_sample.py").write_text(f"\n@{mark}\ndef {name}(): ...\n")

    assert requirements.main(["--check"], repository) == 1

    printed = capsys.readouterr()
    assert printed.err.startswith("tests/test_sample.py:2: ")
    assert message in printed.err
    assert printed.out == ""


def test_the_report_lists_tests_then_open_ids_and_last_the_count(
    repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "tests/test_sample.py").write_text(
        """
@pytest.mark.req("B21")
def test_one(): ...

@pytest.mark.req("B21")
def test_two(): ...
"""
    )

    assert requirements.main([], repository) == 0

    lines = capsys.readouterr().out.splitlines()
    assert lines[:4] == [
        "proven",
        "  B21  tests/test_sample.py::test_one",
        "       tests/test_sample.py::test_two",
        "open",
    ]
    assert len(lines) == 4 + 92 + 1
    assert lines[-1] == "proven 1 of 93"
