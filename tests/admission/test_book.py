"""A rules file is read strictly: what is wrong is named by line, rule and what to write."""

from __future__ import annotations

from hashlib import sha256

import pytest

from holdfast.admission.book import APPROVER_ROLES, Kernel, Verdict, read_book
from holdfast.auth.authorization import SCOPES, Scope
from holdfast.errors import BadPolicy

HEAD = 'version = 1\ndefault = "allow"\n'
WHOLE = """\
version = 1
default = "deny"
zone = "Europe/Berlin"

[kernel]
url = "https://kernel.example:8443/decide"
deadline = "250ms"
on_failure = "open"
secret_env = "KERNEL_SECRET"

[[rule]]
id = "prod"
match = { kind = ["command", "agent"], labels = { env = "prod" }, cpus = { min = 4 } }
when = 'command.exists(a, a.contains("curl"))'
hours = "08:00-18:00"
weekdays = ["mon", "fri"]
then = "approve"
reason = "two people"
approve = { count = 2, roles = ["operator"], expires = "24h", on_expiry = "deny" }

[[rule]]
id = "agents"
then = "allow"
[rule.match]
kind = "agent"
[rule.constrain]
timeout = "30m"
image = ["ci/*"]
priority = "batch"
"""


def test_the_roles_that_may_approve_are_those_of_tokens() -> None:
    may = {role.value for role, scopes in SCOPES.items() if Scope.APPROVE in scopes}

    assert set(APPROVER_ROLES) == may


@pytest.mark.req("A13")
def test_a_whole_book_is_read() -> None:
    book = read_book(WHOLE)

    assert (book.version, book.default, book.zone) == (1, Verdict.DENY, "Europe/Berlin")
    assert book.kernel == Kernel(
        url="https://kernel.example:8443/decide",
        deadline_seconds=0.25,
        on_failure="open",
        secret_env="KERNEL_SECRET",
    )
    assert [(rule.id, rule.then) for rule in book.rules] == [
        ("prod", Verdict.APPROVE),
        ("agents", Verdict.ALLOW),
    ]
    assert (book.text, book.digest) == (WHOLE, sha256(WHOLE.encode()).hexdigest())


def test_a_book_may_have_no_rules() -> None:
    assert read_book(HEAD).rules == ()
    assert read_book(HEAD).zone == "UTC"


def ruled(*lines: str) -> str:
    """Return a book whose rule starts in line 4."""
    return HEAD + "\n[[rule]]\n" + "\n".join(lines)


IT = 'id = "it"'
DENY = 'then = "deny"'
ALLOW = 'then = "allow"'
APPROVE = 'then = "approve"'
BAD = {
    "no TOML": (HEAD + "rule = [", 3, "not TOML"),
    "no version": ('default = "deny"\n', 1, "version is missing; write version = 1"),
    "no default": ("version = 1\n", 1, 'default is missing; write default = "deny"'),
    "another version": ('version = 2\ndefault = "deny"\n', 1, "version must be 1, not 2"),
    "another default": ('version = 1\ndefault = "hold"\n', 2, "default: invalid enum value 'hold'"),
    "an unknown field": (HEAD + 'zome = "UTC"\n', 3, "unknown field 'zome', did you mean 'zone'?"),
    "an unknown zone": (HEAD + 'zone = "Mars/Phobos"\n', 3, "zone 'Mars/Phobos' is unknown"),
    "a path as zone": (HEAD + 'zone = "../../etc/passwd"\n', 3, "is unknown"),
    "a field of a rule": (ruled(IT, "thn = 1"), 6, "rule it: unknown field 'thn', did you mean"),
    "a field of match": (
        ruled(IT, DENY, 'match = { tsak = "a" }'),
        7,
        "rule it: unknown field 'tsak' in match, did you mean 'task'?",
    ),
    "a field of a range": (
        ruled(IT, DENY, "match = { cpus = { mim = 1 } }"), 7, "did you mean 'min'?",
    ),
    "a field of approve": (ruled(IT, APPROVE, "approve = { cout = 1 }"), 7, "mean 'count'?"),
    "a field of constrain": (ruled(IT, ALLOW, "constrain = { cpu = 1 }"), 7, "mean 'cpus'?"),
    "a field of the kernel": (HEAD + '[kernel]\nurl = "https://a"\ntimeout = 1', 5, "'timeout' in"),
    "no id": (ruled(DENY), 4, "rule number 1: id is missing"),
    "no verdict": (ruled(IT), 4, "rule it: then is missing"),
    "another verdict": (ruled(IT, 'then = "block"'), 6, "it: then: invalid enum value 'block'"),
    "an id with a slash": (ruled('id = "a/b"', DENY), 5, "id must be of letters"),
    "an id twice": (
        ruled(IT, DENY, "", "[[rule]]", IT, DENY), 9, "is used twice, first in line 5",
    ),
    "a text for a number": (ruled(IT, DENY, 'match = { cpus = "4" }'), 7, "match.cpus: expected"),
    "a number for a text": (ruled(IT, DENY, "match = { task = 4 }"), 7, "match.task: expected"),
    "an unknown kind": (
        ruled(IT, DENY, 'match = { kind = "comand" }'), 7, "did you mean 'command'?",
    ),
    "an unknown role": (ruled(IT, DENY, 'match = { submitter_role = "x" }'), 7, "are gateway"),
    "an empty range": (ruled(IT, DENY, "match = { cpus = {} }"), 7, "needs min, max or both"),
    "a range upside down": (
        ruled(IT, DENY, "match = { cpus = { min = 4, max = 2 } }"), 7, "no job would match",
    ),
    "a span of CPUs": (ruled(IT, DENY, 'match = { cpus = { min = "1h" } }'), 7, "be a number"),
    "an unknown variable": (
        ruled(IT, DENY, "when = 'cpu > 1'"), 7, "when: undeclared reference to 'cpu' (column 1)",
    ),
    "an expression in two lines": (
        ruled(IT, DENY, "when = '''\ncpus > 1 ||", "cpu > 2'''"), 7, "'cpu' (line 2, column 1)",
    ),
    "a wrong type": (ruled(IT, DENY, "when = 'cpus > task'"), 7, "no matching overload"),
    "no boolean": (ruled(IT, DENY, "when = 'cpus + 1'"), 7, "true or false, but is of type int"),
    "no expression": (ruled(IT, DENY, "when = 'cpus >'"), 7, "Syntax error"),
    "an expression without end": (ruled(IT, DENY, f"when = '{'x' * 10_001}'"), 7, "the limit is"),
    "hours": (ruled(IT, DENY, 'hours = "8-18"'), 7, 'must be written as "08:00-18:00"'),
    "hours after the day": (ruled(IT, DENY, 'hours = "08:00-24:30"'), 7, "must be written"),
    "no hours": (ruled(IT, DENY, 'hours = "08:00-08:00"'), 7, "must be written"),
    "a weekday": (ruled(IT, DENY, 'weekdays = ["mo"]'), 7, "did you mean 'mon'?"),
    "approve without effect": (ruled(IT, DENY, "approve = { count = 2 }"), 7, "has no effect"),
    "constrain without effect": (ruled(IT, DENY, "constrain = { cpus = 2 }"), 7, "has no effect"),
    "ask without a kernel": (ruled(IT, 'then = "ask"'), 6, "needs a [kernel]"),
    "an empty reason": (ruled(IT, DENY, 'reason = ""'), 7, "1 to 500 characters"),
    "no approval": (ruled(IT, APPROVE, "approve = { count = 0 }"), 7, "between 1 and 20"),
    "a role that is none": (
        ruled(IT, APPROVE, 'approve = { roles = ["operater"] }'),
        7,
        "did you mean 'operator'?",
    ),
    "a role that may not": (
        ruled(IT, APPROVE, 'approve = { roles = ["viewer"] }'),
        7,
        "role 'viewer' cannot approve",
    ),
    "no weekdays": (ruled(IT, DENY, "weekdays = []"), 7, "would never match"),
    "no tasks": (ruled(IT, DENY, "match = { task = [] }"), 7, "leave it out"),
    "no labels": (ruled(IT, DENY, "match = { labels = { env = [] } }"), 7, "leave it out"),
    **{
        f"a late limit of {name}": (
            ruled(IT, 'then = "allow"', 'hours = "08:00-18:00"', f"constrain = {{ {limit} }}"),
            8,
            f"{name} cannot be limited by a rule that reads the clock",
        )
        for name, limit in (
            ("network", 'network = "none"'),
            ("cpus", "cpus = 1"),
            ("memory_gb", "memory_gb = 1"),
            ("priority", 'priority = "batch"'),
        )
    },
    "a late limit by an expression": (
        ruled(IT, 'then = "allow"', "when = 'hour > 8'", "constrain = { cpus = 1 }"),
        8,
        "reads the clock",
    ),
    "nobody who approves": (ruled(IT, APPROVE, "approve = { roles = [] }"), 7, "roles must name"),
    "an expiry": (ruled(IT, APPROVE, 'approve = { expires = "soon" }'), 7, "must be a span"),
    "a short expiry": (ruled(IT, APPROVE, "approve = { expires = 0 }"), 7, "leave it out"),
    "no CPU": (ruled(IT, ALLOW, "constrain = { cpus = 0 }"), 7, "cpus must be between 1"),
    "a timeout": (ruled(IT, ALLOW, 'constrain = { timeout = "0s" }'), 7, "timeout must be"),
    "a network": (ruled(IT, ALLOW, 'constrain = { network = "lan" }'), 7, "constrain.network"),
    "in a table of its own": (
        ruled(IT, ALLOW, "[rule.constrain]", "cpus = 1", "cpuz = 2"), 9, "did you mean 'cpus'?",
    ),
    "a url": (HEAD + '[kernel]\nurl = "ftp://a"', 4, "must start with https://"),
    "a deadline": (HEAD + '[kernel]\nurl = "https://a"\ndeadline = "1h"', 5, "at most 30s"),
    "no span": (HEAD + '[kernel]\nurl = "https://a"\ndeadline = "soon"', 5, "must be a span"),
}  # fmt: skip


@pytest.mark.req("A13")
@pytest.mark.parametrize("name", BAD)
def test_a_bad_book_is_refused_by_line_rule_and_what_to_write(name: str) -> None:
    text, line, what = BAD[name]

    with pytest.raises(BadPolicy) as caught:
        read_book(text, "rules.toml")

    assert caught.value.code == "bad_policy"
    assert str(caught.value).startswith(f"rules.toml:{line}: ")
    assert what in str(caught.value)
    assert caught.value.__cause__ is None


def test_a_book_has_a_limit() -> None:
    with pytest.raises(BadPolicy, match="the limit is 1,000,000"):
        read_book(HEAD + "#" * 1_000_000)
    rules = "\n".join(f'[[rule]]\nid = "r{n}"\nthen = "deny"' for n in range(5001))
    with pytest.raises(BadPolicy, match="there are 5,001 rules"):
        read_book(HEAD + rules)
