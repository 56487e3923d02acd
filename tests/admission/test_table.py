"""The table: one rule, one job, and whether the rule matches it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast.durations import micros
from tests.admission.factories import book_of, decide

WORDS = {
    "kind": ("command", "agent"),
    "priority": ("critical", "batch"),
    "parent": ("child", "retry"),
    "submitter_role": ("gateway", "control"),
    "network": ("none", "host"),
}
NAMES = ("task", "topic", "queue", "tenant", "adapter", "image", "submitter")
TEXTS: list[Any] = [
    (f'{name} = "deploy-{end}"', {name: value}, hit)
    for name in NAMES
    for end, value, hit in (
        ("web", "deploy-web", True),
        ("web", "deploy-api", False),
        ("web", "", False),
        ("*", "deploy-web", True),
        ("*", "undeploy-web", False),
        ("w?b", "deploy-web", True),
        ("[ab]*", "deploy-api", True),
        ("[ab]*", "deploy-web", False),
    )
]
TEXTS += [
    (f'{name} = ["{one}", "{two}"]', {name: value}, hit)
    for name, (one, two) in WORDS.items()
    for value, hit in ((one, True), (two, True), ("", False), (one + "x", False))
]
TEXTS += [
    ('task = ["a*", "b"]', {"task": "b"}, True),
    ('task = ["a*", "b"]', {"task": "abc"}, True),
    ('task = ["a*", "b"]', {"task": "bc"}, False),
    ('task = "Deploy"', {"task": "deploy"}, False),
    ('task = "a.b"', {"task": "aXb"}, False),
    ('task = "*"', {"task": ""}, True),
    ('task = "a\\nb*"', {"task": "a\nb\nc"}, True),
    ('task = "a*", queue = "b*"', {"task": "a", "queue": "b"}, True),
    ('task = "a*", queue = "b*"', {"task": "a", "queue": "c"}, False),
]
LISTS = [
    (f"{name} = {globs}", {name: value}, hit)
    for name in ("needs", "command", "risk_tags")
    for globs, value, hit in (
        ('"gpu"', ["gpu"], True),
        ('"gpu"', ["cpu", "gpu"], True),
        ('"gpu"', [], False),
        ('"gp*"', ["gpu"], True),
        ('["gpu", "tpu"]', ["tpu"], True),
        ('"*curl*"', ["sh -c curl x"], True),
        ('"curl"', ["sh -c curl x"], False),
    )
]
MAPS = [
    (f"{name} = {{ {entry} }}", {name: value}, hit)
    for name in ("labels", "env")
    for entry, value, hit in (
        ('team = "a"', {"team": "a"}, True),
        ('team = "a"', {"team": "b"}, False),
        ('team = "a"', {}, False),
        ('team = "*"', {}, False),
        ('team = ["a", "b*"]', {"team": "bc"}, True),
        ('team = "a", tier = "1"', {"team": "a", "tier": "1"}, True),
        ('team = "a", tier = "1"', {"team": "a"}, False),
        ('"risk:money" = "*"', {"risk:money": ""}, True),
    )
]
NUMBERS = [
    (f"{name} = {bound}", {name: value}, hit)
    for name in ("cpus", "memory_mb", "timeout_seconds", "retries", "body_bytes")
    for bound, value, hit in (
        ("4", 4, True),
        ("4", 5, False),
        ("{ min = 4 }", 4, True),
        ("{ min = 4 }", 3, False),
        ("{ max = 4 }", 4, True),
        ("{ max = 4 }", 5, False),
        ("{ min = 2, max = 4 }", 3, True),
        ("{ min = 2, max = 4 }", 5, False),
    )
]
NUMBERS += [
    ('timeout_seconds = { min = "1h" }', {"timeout_seconds": 3600}, True),
    ('timeout_seconds = { min = "1h" }', {"timeout_seconds": 3599}, False),
    ('timeout_seconds = { min = "1h" }', {}, True),  # without a timeout it is longer than any
    ('timeout_seconds = { max = "1h" }', {}, False),
]
WHENS = [
    ("cpus > 4", {"cpus": 5}, True),
    ("cpus > 4", {"cpus": 4}, False),
    ("cpus > 4 || memory_mb > 100", {"memory_mb": 101}, True),
    ("cpus > 4 && memory_mb > 100", {"memory_mb": 101}, False),
    ('command.exists(a, a.contains("curl"))', {"command": ["sh", "curl x"]}, True),
    ('command.exists(a, a.contains("curl"))', {"command": []}, False),
    ('command.all(a, a != "rm")', {"command": ["ls"]}, True),
    ('command.size() > 1 && command[0] == "git"', {"command": ["git", "push"]}, True),
    ('"gpu" in needs', {"needs": ["gpu"]}, True),
    ('"gpu" in needs', {}, False),
    ('"team" in labels && labels["team"] == "a"', {"labels": {"team": "a"}}, True),
    ('"team" in labels && labels["team"] == "a"', {}, False),
    ("has(labels.team)", {"labels": {"team": ""}}, True),
    ('env.exists(name, name.startsWith("AWS_"))', {"env": {"AWS_KEY": "x"}}, True),
    ('env.exists(name, name.startsWith("AWS_"))', {"env": {"HOME": "x"}}, False),
    ('task.matches("^deploy-(web|api)$")', {"task": "deploy-api"}, True),
    ('task.matches("^deploy-(web|api)$")', {"task": "deploy-db"}, False),
    ('task.startsWith("a") != queue.endsWith("b")', {"task": "a"}, True),
    ('tenant == "acme"', {"tenant": "acme"}, True),
    ('!(tenant in ["acme", "blue"])', {"tenant": "red"}, True),
    ("timeout_seconds > 3600", {}, True),
    ("timeout_seconds > 3600", {"timeout_seconds": 60}, False),
    ("retries == 0 ? cpus > 1 : cpus > 8", {"retries": 0, "cpus": 2}, True),
    ("size(risk_tags) > 0", {"risk_tags": ["money"]}, True),
    ("body_bytes > 100000", {"body_bytes": 100_001}, True),
    ('kind == "agent" && image == ""', {"kind": "agent"}, True),
    ('submitter == "ann" && submitter_role == "gateway"', {"submitter": "ann"}, True),
    ('parent == "child"', {"parent": "child"}, True),
    ("true", {}, True),
    ("false", {}, False),
    ("dyn(cpus) == 2", {"cpus": 2}, True),
    ("cpus > 1 // and no more", {"cpus": 2}, True),
]
STRUCTURED = [*TEXTS, *LISTS, *MAPS, *NUMBERS]


def test_the_table_is_long() -> None:
    assert len(STRUCTURED) + len(WHENS) + len(WINDOWS) >= 200


@pytest.mark.req("A13")
@pytest.mark.parametrize(("match", "job", "hit"), STRUCTURED)
def test_a_structured_match(match: str, job: dict[str, Any], hit: bool) -> None:
    book = book_of(f'id = "it"\nmatch = {{ {match} }}\nthen = "deny"')

    assert decide(book, **job).rule == ("it" if hit else None)
    # Again: which rules match is remembered.
    assert decide(book, **job).rule == ("it" if hit else None)


@pytest.mark.req("A13")
@pytest.mark.parametrize(("when", "job", "hit"), WHENS)
@pytest.mark.parametrize("others", [0, 2])
def test_an_expression(when: str, job: dict[str, Any], hit: bool, others: int) -> None:
    never = [
        f'id = "never-{n}"\nwhen = \'body_bytes > 900000{n}\'\nthen = "hold"' for n in range(others)
    ]
    book = book_of(*never, f"id = \"it\"\nwhen = '''{when}'''\nthen = \"deny\"")

    found = decide(book, **job)

    assert (found.rule, found.reason) == ("it" if hit else None, None)


def at(text: str) -> int:
    return micros(datetime.fromisoformat(text).replace(tzinfo=UTC))


# 2026-01-05 is a Monday; Berlin is an hour ahead in winter, two in summer.
WINDOWS = [
    ('hours = "08:00-18:00"', "2026-01-05T08:00", True),
    ('hours = "08:00-18:00"', "2026-01-05T07:59", False),
    ('hours = "08:00-18:00"', "2026-01-05T17:59", True),
    ('hours = "08:00-18:00"', "2026-01-05T18:00", False),
    ('hours = "00:00-24:00"', "2026-01-05T23:59", True),
    ('hours = "22:00-06:00"', "2026-01-05T23:00", True),
    ('hours = "22:00-06:00"', "2026-01-05T05:59", True),
    ('hours = "22:00-06:00"', "2026-01-05T06:00", False),
    ('hours = "22:00-06:00"', "2026-01-05T12:00", False),
    ('weekdays = ["mon"]', "2026-01-05T00:00", True),
    ('weekdays = ["mon"]', "2026-01-06T00:00", False),
    ('weekdays = ["sat", "sun"]', "2026-01-10T12:00", True),
    ('hours = "22:00-06:00"\nweekdays = ["mon"]', "2026-01-06T03:00", True),
    ('hours = "22:00-06:00"\nweekdays = ["mon"]', "2026-01-05T03:00", False),
    ("when = 'hour >= 8 && hour < 18'", "2026-01-05T08:00", True),
    ("when = 'hour >= 8 && hour < 18'", "2026-01-05T18:00", False),
    ("when = 'weekday == 1'", "2026-01-05T12:00", True),
    ("when = 'weekday == 7'", "2026-01-11T12:00", True),
    ("hours = \"08:00-18:00\"\nwhen = 'cpus == 0'", "2026-01-05T09:00", True),
    ("hours = \"08:00-18:00\"\nwhen = 'cpus > 0'", "2026-01-05T09:00", False),
]


@pytest.mark.req("A13")
@pytest.mark.parametrize(("window", "time", "hit"), WINDOWS)
def test_a_time_window_in_utc(window: str, time: str, hit: bool) -> None:
    book = book_of(f'id = "it"\n{window}\nthen = "deny"')

    assert decide(book, now=at(time)).rule == ("it" if hit else None)


@pytest.mark.parametrize(
    ("time", "hit"),
    [
        ("2026-01-05T06:59", False),
        ("2026-01-05T07:00", True),
        ("2026-07-06T05:59", False),
        ("2026-07-06T06:00", True),
    ],
)
@pytest.mark.parametrize("rule", ['hours = "08:00-18:00"', "when = 'hour >= 8'"])
def test_a_time_window_in_the_zone_of_the_book(time: str, hit: bool, rule: str) -> None:
    book = book_of(f'id = "it"\n{rule}\nthen = "deny"', head='zone = "Europe/Berlin"')

    assert decide(book, now=at(time)).rule == ("it" if hit else None)
