"""A new book on recorded jobs, and a book's own table of tests."""

from __future__ import annotations

import pytest

from holdfast.admission.cases import CaseFailure, read_cases, run_cases
from holdfast.admission.simulate import Changed, RecordedBirth, simulate
from holdfast.errors import BadPolicy
from tests.admission.factories import book_of, variables

BOOK = book_of(
    'id = "big"\nmatch = { cpus = { min = 4 } }\nthen = "deny"\nreason = "too big"',
    'id = "night"\nmatch = { task = "b" }\nhours = "22:00-06:00"\nthen = "hold"',
)


@pytest.mark.req("A13")
def test_a_simulation_groups_what_would_change_by_rule() -> None:
    births = [
        RecordedBirth(job=f"j{n}", variables=variables(cpus=n), verdict="allow", at=0)
        for n in range(12)
    ]
    births += [RecordedBirth(job="b", variables=variables(task="b"), verdict="allow", at=0)]
    births += [RecordedBirth(job="d", variables=variables(), verdict="deny", rule="old")]
    births += [RecordedBirth(job="same", variables=variables(cpus=4), verdict="deny", rule="old")]

    found = simulate(BOOK, births)

    assert found.changed == (
        Changed(
            rule="big", before="allow", after="deny", count=8,
            examples=("j4", "j5", "j6", "j7", "j8"),
        ),
        Changed(rule="night", before="allow", after="hold", count=1, examples=("b",)),
        Changed(rule=None, before="deny", after="allow", count=1, examples=("d",)),
    )  # fmt: skip
    assert (found.rules, found.judged) == (BOOK.digest, 15)
    assert found.verdicts == {"allow": 5, "deny": 9, "hold": 1}


CASES = """\
[[case]]
name = "big jobs are denied"
job = { cpus = 8, labels = { a = "b" }, needs = ["gpu"] }
expect = "deny"
rule = "big"

[[case]]
name = "nights"
job = { task = "b" }
at = 2026-01-05T23:00:00Z
expect = "hold"

[[case]]
name = "days"
job = { task = "b" }
at = 2026-01-05T12:00:00
expect = "allow"
rule = "default"

[[case]]
name = "no clock"
job = { task = "b" }
expect = "undecided"
"""


@pytest.mark.req("A13")
def test_a_table_of_cases_is_judged() -> None:
    assert run_cases(BOOK, read_cases(CASES)) == []

    wrong = CASES.replace('rule = "big"', 'rule = "small"').replace('"hold"', '"deny"')
    assert run_cases(BOOK, read_cases(wrong)) == [
        CaseFailure(
            name="big jobs are denied",
            expected="deny by small",
            found="deny by big",
            reason="too big",
        ),
        CaseFailure(name="nights", expected="deny", found="hold by night"),
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("[[case]\n", "cases.toml: "),
        ('[[case]]\nname = "x"\n', "missing required field `expect`"),
        (
            '[[case]]\nname = "x"\nexpect = "deny"\njob = { cpu = 1 }',
            "cases.toml:1: case x: there is no variable 'cpu', did you mean 'cpus'?",
        ),
        ('[[case]]\nname = "x"\nexpect = "deny"\njob = { cpus = "1" }', "cpus must be of type int"),
        ('[[case]]\nname = "x"\nexpect = "deny"\njob = { needs = [1] }', "must be of type list"),
    ],
)
def test_a_bad_case_is_refused(text: str, what: str) -> None:
    with pytest.raises(BadPolicy) as caught:
        read_cases(text, "cases.toml")

    assert what in str(caught.value)
