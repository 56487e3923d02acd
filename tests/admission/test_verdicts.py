"""The first rule that matches decides; a rule that fails denies; nothing raises."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.admission.book import Approval, Book, Constraints, Verdict, read_book
from holdfast.admission.expressions import HINT, _library
from holdfast.admission.variables import TYPES
from holdfast.admission.verdicts import Decision, Unknown, explain, judge, verdict_name
from holdfast.errors import BadPolicy
from tests.admission.factories import book_of, decide, undecided, variables

KERNEL = '[kernel]\nurl = "https://kernel.example/decide"'
MINUTE = 60_000_000


@pytest.mark.req("A13")
def test_the_first_rule_that_matches_decides() -> None:
    book = book_of(
        'id = "one"\nmatch = { task = "a*" }\nthen = "hold"\nreason = "later"',
        'id = "two"\nmatch = { task = "ab*" }\nthen = "deny"',
        'id = "three"\nwhen = \'cpus > 1\'\nthen = "deny"',
        default="deny",
    )

    assert decide(book, task="abc") == Decision(
        verdict=Verdict.HOLD, rule="one", reason="later", rules=book.digest
    )
    assert decide(book, task="b", cpus=2).rule == "three"
    assert (decide(book, task="b").rule, decide(book, task="b").verdict) == (None, Verdict.DENY)


@pytest.mark.req("A13")
def test_an_expression_does_not_go_before_a_structured_rule_above_it() -> None:
    book = book_of(
        'id = "never"\nwhen = \'cpus > 10\'\nthen = "deny"',
        'id = "plain"\nmatch = { body_bytes = 1 }\nthen = "hold"',
        'id = "broken"\nwhen = \'labels.team == "a"\'\nthen = "deny"',
    )

    assert decide(book, body_bytes=1).rule == "plain"
    assert decide(book, body_bytes=2).rule == "broken"
    assert decide(book, body_bytes=2, labels={"team": "b"}).rule is None


def test_a_decision_has_the_terms_of_its_rule() -> None:
    book = book_of(
        'id = "two"\nmatch = { task = "a" }\nthen = "approve"\n'
        'approve = { count = 2, roles = ["admin"], expires = "1d", on_expiry = "cancel" }\n'
        'constrain = { timeout = "30m", cpus = 2, memory_gb = 0.5, retries = 0 }',
        'id = "one"\nthen = "approve"',
    )

    found = decide(book, task="a")
    assert found.approval == Approval(
        count=2, roles=("admin",), expires_seconds=86_400, on_expiry="cancel"
    )
    assert found.constraints == Constraints(timeout_seconds=1800, cpus=2, memory_mb=512, retries=0)
    assert decide(book, task="b").approval == Approval()


FAILURES: dict[str, tuple[str, dict[str, Any], str]] = {
    "a missing key": ("labels.team == 'a'", {}, "Key not found"),
    "a division by zero": ("4 / cpus > 1", {}, "divide by zero"),
    "a text that is no number": ("int(task) > 1", {"task": "x"}, "cannot convert"),
    "an invalid pattern": ("task.matches(queue)", {"queue": "("}, "invalid regular expression"),
    "another type at last": ("cpus > 0 ? dyn(1) : dyn(true)", {"cpus": 1}, "is of type int"),
    "a text at last": ("dyn(task)", {}, "is of type string"),
    "an index that is not there": ("command[3] == 'x'", {"command": ["a"]}, "Index error"),
    "a variable of another type": ("cpus > 1", {"cpus": "many"}, "Unexpected value type"),
    "no value at all": ("cpus > 1", {"cpus": None}, "Unexpected value type"),
    "text that is none": ("task == 'x'", {"task": "\ud800"}, ""),
    "a runaway": (
        "[1,2,3,4,5,6,7,8,9].all(a, [1,2,3,4,5,6,7,8,9].all(b, [1,2,3,4,5,6,7,8,9].all(c, "
        "[1,2,3,4,5,6,7,8,9].all(d, [1,2,3,4,5,6,7,8,9].all(e, [1,2,3,4,5,6,7,8,9].all(f, "
        "[1,2,3,4,5,6,7,8,9].all(g, [1,2,3,4,5,6,7,8,9].all(h, cpus == 0))))))))",
        {},
        "budget exceeded",
    ),
}


@pytest.mark.req("A13")
@pytest.mark.parametrize("name", FAILURES)
@pytest.mark.parametrize("others", [0, 1])
def test_a_rule_whose_expression_fails_denies(name: str, others: int) -> None:
    when, job, why = FAILURES[name]
    # Two expressions are evaluated as one.
    never = ['id = "never"\nwhen = "body_bytes > 9000"\nthen = "hold"']
    book = book_of(*never[:others], f'id = "it"\nwhen = "{when}"\nthen = "allow"')

    found = decide(book, **job)

    assert (found.verdict, found.rule, found.rules) == (Verdict.DENY, "it", book.digest)
    assert found.reason is not None
    assert found.reason.startswith("rule it failed and denies: ")
    assert why in found.reason
    assert found.constraints is None


def test_a_missing_variable_fails_closed() -> None:
    book = book_of('id = "it"\nwhen = \'cpus > 1\'\nthen = "allow"')

    found = judge(book, {"task": "x"})

    assert isinstance(found, Decision)
    assert (found.verdict, found.rule) == (Verdict.DENY, "it")


@pytest.mark.req("A13")
def test_a_rule_that_reads_the_clock_waits_for_it() -> None:
    book = book_of(
        'id = "early"\nmatch = { task = "a" }\nhours = "08:00-18:00"\nthen = "deny"',
        'id = "late"\nmatch = { task = "b" }\nwhen = \'hour > 20\'\nthen = "deny"',
        "id = \"both\"\nmatch = { task = \"c\" }\nwhen = 'cpus > 1'\nweekdays = ['mon']\n"
        'then = "deny"',
    )

    assert undecided(book, task="a") == Unknown(needs="clock", rule="early", rules=book.digest)
    assert undecided(book, task="b").rule == "late"
    assert undecided(book, task="c", cpus=2).rule == "both"
    assert decide(book, task="c", cpus=1).rule is None
    assert decide(book, task="d").rule is None
    assert decide(book, task="a", now=9 * 60 * MINUTE).rule == "early"


def test_the_names_of_the_clock_inside_a_text_or_a_macro_do_not_read_it() -> None:
    book = book_of(
        'id = "text"\nwhen = \'task == "hour"\'\nthen = "deny"',
        'id = "macro"\nwhen = \'needs.exists(hour, hour == "x")\'\nthen = "deny"',
    )

    assert decide(book, task="hour").rule == "text"
    assert decide(book, needs=["x"]).rule == "macro"


@pytest.mark.req("A13")
def test_a_rule_that_asks_waits_for_the_kernel() -> None:
    book = book_of('id = "it"\nmatch = { task = "a" }\nthen = "ask"', head=KERNEL)

    assert undecided(book, task="a", now=1) == Unknown(needs="kernel", rule="it", rules=book.digest)
    assert verdict_name(undecided(book, task="a")) == "ask"


@pytest.mark.req("A13")
@pytest.mark.parametrize(
    ("constraint", "job", "denied"),
    [
        ('image = "ci/*"', {"image": "ci/build"}, False),
        ('image = "ci/*"', {"image": "docker.io/miner"}, True),
        ('image = "ci/*"', {}, False),
        ('image = ["ci/*", "ops/*"]', {"image": "ops/x"}, False),
        ('network = "none"', {"network": "host"}, True),
        ('network = "none"', {"network": "none"}, False),
        ('network = "none"', {}, False),
        ('network = "host"', {"network": "host"}, False),
    ],
)
def test_what_no_limit_could_allow_is_denied(
    constraint: str, job: dict[str, Any], denied: bool
) -> None:
    book = book_of(f'id = "it"\nthen = "allow"\nconstrain = {{ {constraint} }}')

    found = decide(book, **job)

    assert (found.verdict, found.rule) == (Verdict.DENY if denied else Verdict.ALLOW, "it")


@pytest.mark.req("A13")
def test_explain_tells_how_each_rule_saw_the_job_up_to_the_one_that_decides() -> None:
    book = book_of(
        'id = "task"\nmatch = { task = "a*" }\nthen = "deny"',
        'id = "when"\nwhen = \'cpus > 4\'\nthen = "deny"',
        'id = "hours"\nhours = "08:00-09:00"\nthen = "deny"',
        'id = "it"\nmatch = { labels = { team = "x" } }\nthen = "hold"\nreason = "wait"',
        'id = "never"\nthen = "deny"',
    )

    looks = explain(book, variables(task="b", labels={"team": "x"}), now=0)

    assert [(look.rule, look.matched, look.why) for look in looks] == [
        ("task", False, "task is 'b', not a*"),
        ("when", False, "when is false: cpus > 4"),
        ("hours", False, "outside its hours at Thu 00:00"),
        ("it", True, "hold: wait"),
    ]
    none = explain(book_of(), variables())
    assert [(look.rule, look.why) for look in none] == [(None, "no rule matches: allow")]
    assert "needs the clock" in explain(book, variables())[-1].why


def test_without_the_library_a_book_with_an_expression_is_refused_with_the_way_to_get_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cel_expr_python", None)
    _library.cache_clear()
    try:
        with pytest.raises(BadPolicy) as caught:
            book_of('id = "it"\nwhen = \'cpus > 1\'\nthen = "deny"')
        assert HINT in str(caught.value)
        assert decide(book_of('id = "it"\nthen = "deny"')).rule == "it"
    finally:
        _library.cache_clear()


ANYTHING = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.lists(st.one_of(st.text(max_size=4), st.integers()), max_size=3),
    st.dictionaries(st.text(max_size=4), st.one_of(st.text(max_size=4), st.none()), max_size=3),
)  # fmt: skip
MIXED = book_of(
    'id = "names"\nmatch = { task = "a*", labels = { t = "*" } }\nthen = "hold"',
    'id = "numbers"\nmatch = { cpus = { min = 3, max = 9 }, retries = 2 }\nthen = "approve"',
    'id = "labels"\nwhen = \'labels.t == task && cpus > 1\'\nthen = "deny"',
    'id = "lists"\nwhen = \'needs.exists(n, n.size() > cpus)\'\nthen = "deny"',
    "id = \"clock\"\nmatch = { queue = 'q' }\nwhen = 'hour > cpus'\nthen = \"deny\"",
    'id = "images"\nmatch = { kind = "a*" }\nthen = "allow"\n'
    'constrain = { image = "ci/*", network = "none" }',
    'id = "ask"\nmatch = { submitter = "?" }\nthen = "ask"',
    head=KERNEL,
)


@pytest.mark.req("A13")
@settings(max_examples=300, deadline=None)
@given(
    job=st.dictionaries(st.sampled_from([*TYPES, "strange"]), ANYTHING),
    now=st.one_of(st.none(), st.integers(-(2**40), 2**53)),
)
def test_an_evaluation_never_raises_and_names_its_book(job: dict[str, Any], now: Any) -> None:
    found = judge(MIXED, job, now=now)

    assert found.rules == MIXED.digest
    looks = explain(MIXED, job, now=now)
    assert looks[-1].matched
    assert (looks[-1].rule, [look.matched for look in looks[:-1]].count(True)) == (found.rule, 0)


RULES = {
    "task": 'match = { task = "a*" }',
    "cpus": "match = { cpus = { min = 2 } }",
    "label": 'match = { labels = { t = "x" } }',
    "when": "when = 'cpus > 1 && task == \"a\"'",
    "list": "when = '\"gpu\" in needs'",
    "size": "match = { body_bytes = { max = 1 } }",
}
JOBS = st.fixed_dictionaries(
    {
        "task": st.sampled_from(["a", "ab", "b"]),
        "cpus": st.integers(0, 3),
        "labels": st.sampled_from([{}, {"t": "x"}, {"t": "y"}]),
        "needs": st.sampled_from([[], ["gpu"], ["cpu"]]),
        "body_bytes": st.integers(0, 2),
    }
)
_BOOKS: dict[tuple[str, ...], Book] = {}


def book_named(names: tuple[str, ...]) -> Book:
    """Return the book of these rules in this order."""
    if names not in _BOOKS:
        _BOOKS[names] = book_of(*(f'id = "{name}"\n{RULES[name]}\nthen = "deny"' for name in names))
    return _BOOKS[names]


@pytest.mark.req("A13")
@settings(max_examples=200, deadline=None)
@given(names=st.lists(st.sampled_from(sorted(RULES)), unique=True), job=JOBS)
def test_a_book_decides_as_its_first_rule_that_matches_alone(
    names: list[str], job: dict[str, Any]
) -> None:
    alone = [name for name in names if decide(book_named((name,)), **job).rule == name]

    assert decide(book_named(tuple(names)), **job).rule == (alone[0] if alone else None)


def test_a_book_forgets_what_submitters_make_it_remember() -> None:
    book = book_of('id = "it"\nmatch = { task = "x*" }\nthen = "deny"')

    for number in range(5000):
        assert decide(book, task=f"t{number}").rule is None
    assert decide(book, task="x1").rule == "it"


def test_two_equal_texts_have_one_digest() -> None:
    text = 'version = 1\ndefault = "deny"\n'

    assert read_book(text).digest == read_book(text, "other").digest
    assert read_book(text + "\n").digest != read_book(text).digest
