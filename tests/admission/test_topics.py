"""Topics: which pattern counts, and what a table may say."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from holdfast.admission.topics import Route, Topics, check_topic, is_topic, read_topics
from holdfast.config import read_file
from holdfast.errors import BadConfig, BadData, NoPoolForTopic

CHAT = {"queue": "chat"}


def topics_of(*patterns: str) -> Topics:
    """Return topics in which each pattern leads to a queue of its own name."""
    return Topics(routes={pattern: Route(queue=pattern) for pattern in patterns})


def chosen(topics: Topics, topic: str) -> str | None:
    """Return the pattern that a topic is routed by."""
    route = topics.route(topic)
    return None if route is None else route.queue


@pytest.mark.req("A2")
@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        ("job.chat.simple", ["job.chat.simple"], ["job.chat", "job.chat.simple.x", "job.chat.S"]),
        ("job.chat.*", ["job.chat.a", "job.chat.b-2"], ["job.chat", "job.chat.a.b", "job.x.a"]),
        ("job.*.fast", ["job.chat.fast"], ["job.fast", "job.chat.slow", "job.a.b.fast"]),
        ("job.chat.>", ["job.chat.a", "job.chat.a.b.c"], ["job.chat", "job.chats.a"]),
        ("job.*.>", ["job.a.b", "job.a.b.c"], ["job.a"]),
        ("job.>", ["job.a", "job.a.b"], ["job", "jobs.a"]),
    ],
)
def test_a_pattern_matches_as_in_nats(pattern: str, matching: list[str], others: list[str]) -> None:
    topics = topics_of(pattern)
    assert [chosen(topics, topic) for topic in matching] == [pattern] * len(matching)
    assert [chosen(topics, topic) for topic in others] == [None] * len(others)


@pytest.mark.req("A2")
@pytest.mark.parametrize(
    "patterns",
    [
        ("job.chat.simple", "job.chat.*", "job.chat.>", "job.*.simple", "job.>"),
        ("job.chat.simple", "job.*.simple", "job.*.*", "job.*.>", "job.>"),
    ],
)
def test_the_most_specific_pattern_counts_in_whatever_order_they_are_written(
    patterns: tuple[str, ...],
) -> None:
    for order in permutations(patterns):
        left = list(order)
        for expected in patterns:
            assert chosen(topics_of(*left), "job.chat.simple") == expected
            left.remove(expected)


@pytest.mark.req("A2")
@pytest.mark.parametrize(
    "topic",
    [
        *("sys.job.submit", "job", "job.", "jobs.a", "JOB.a", "worker.x.jobs", ""),
        *("job.a..b", "job.a.", "job.a b", "job.*", "job.a.>", "job.é", "job.a\n", "job.a@1"),
        *("job." + "x" * 197, None, 7, b"job.a"),
    ],
)
def test_what_is_not_a_topic_is_refused_with_its_field(topic: Any) -> None:
    with pytest.raises(BadData) as refused:
        topics_of("job.>").route_or_refuse(topic)
    assert (refused.value.code, refused.value.field) == ("bad_data", "topic")


def test_only_names_under_job_are_topics() -> None:
    names = ["job.a", "job.a.b-2", "job", "jobs.a", "sys.job.a", "job.", "job.a b", "resize"]
    assert [name for name in names if is_topic(name)] == ["job.a", "job.a.b-2"]


def test_a_topic_is_as_long_as_the_name_of_a_queue() -> None:
    longest = "job." + "x" * 196
    assert check_topic(longest) == longest


@pytest.mark.req("A2")
def test_a_topic_without_a_pool_is_refused_with_what_is_known_and_what_to_add() -> None:
    with pytest.raises(NoPoolForTopic) as refused:
        topics_of("job.chat.*", "job.code").route_or_refuse("job.mail.send")
    assert (refused.value.code, refused.value.field) == ("no_pool_for_topic", "topic")
    for part in ("'job.mail.send'", "job.chat.*", "job.code", 'Add [topics."job.mail.send"]'):
        assert part in str(refused.value)
    with pytest.raises(NoPoolForTopic, match="there are none"):
        Topics().route_or_refuse("job.mail.send")


def test_a_refusal_names_a_bounded_number_of_patterns() -> None:
    many = topics_of(*(f"job.a{number}" for number in range(1000)))
    with pytest.raises(NoPoolForTopic, match="and 980 more") as refused:
        many.route_or_refuse("job.b")
    assert len(str(refused.value)) < 1000


def test_a_table_is_read_with_all_its_fields() -> None:
    bus: dict[str, Any] = {
        "bus": "main",
        "idempotent": True,
        "retries": 2,
        "start_timeout_seconds": 30,
        "timeout_seconds": 600.5,
        "max_in_flight": 10,
        "adapter": "prefer",
    }
    topics = read_topics({"job.chat.*": CHAT, "job.bus.>": bus}, "here")
    assert topics.route("job.chat.x") == Route(queue="chat")
    assert topics.route("job.bus.x") == Route(**bus)


@pytest.mark.parametrize(
    ("table", "text"),
    [
        ([], r"here: \[topics\] must be a table"),
        ({"job.a": "chat"}, r'here: \[topics."job.a"\] must be a table with queue, bus'),
        ({"job.a": {}}, r'\[topics."job.a"\] queue or `bus` must name where'),
        ({"job.a": {"queue": "a", "bus": "b"}}, "one of them, not both"),
        ({"job.a": {"pool": "a"}}, r"\[topics.\"job.a\"\] has no field 'pool'; there are queue"),
        ({"job.a": {"queue": 1}}, r"\[topics.\"job.a\"\] queue: expected"),
        ({"job.a": {"queue": ""}}, r"\[topics.\"job.a\"\] queue must not be empty"),
        ({"job.a": {"queue": "holdfast.x"}}, "is reserved"),
        ({"job.a": {"queue": "a", "retries": 1}}, "retries is for a bus"),
        ({"job.a": {"queue": "a", "timeout_seconds": 1}}, "timeout_seconds is for a bus"),
        ({"job.a": {"bus": "b", "retries": 1}}, "needs idempotent = true"),
        ({"job.a": {"bus": "b", "retries": -1}}, "retries must be between 0"),
        ({"job.a": {"bus": "b", "retries": True}}, "retries: expected"),
        ({"job.a": {"bus": "b", "timeout_seconds": 0}}, "timeout_seconds must be more than 0"),
        ({"job.a": {"bus": "b", "start_timeout_seconds": float("nan")}}, "must be more than 0"),
        ({"job.a": {"bus": "b", "max_in_flight": 0}}, "max_in_flight must be from 1"),
        ({"job.a": {"bus": "b", "adapter": "maybe"}}, "adapter: invalid enum value 'maybe'"),
        ({"sys.a": CHAT}, "'sys.a' must start with 'job.'"),
        ({"*": CHAT}, "must start with 'job.'"),
        ({"job": CHAT}, "must start with 'job.'"),
        ({"job.>.x": CHAT}, "has '>' before its end"),
        ({"job.a*": CHAT}, "must consist of tokens"),
        ({"job..a": CHAT}, "must consist of tokens"),
        ({"job." + "x" * 197: CHAT}, "at most 200 characters"),
        ({"job": {"chat": {"queue": "a"}}}, "needs quotes around the whole pattern"),
    ],
)
def test_a_mistake_in_the_table_is_named_with_its_place(table: Any, text: str) -> None:
    with pytest.raises(BadConfig, match=text) as refused:
        read_topics(table, "here")
    assert str(refused.value).startswith("here: ")


def test_the_settings_file_has_topics(tmp_path: Path) -> None:
    path = tmp_path / "holdfast.toml"
    path.write_text('port = 1\n[topics]\n"job.chat.*" = { queue = "chat" }\n')
    config = read_file(path)
    assert config.topics == Topics(routes={"job.chat.*": Route(queue="chat")})
    assert config.values == {"port": "1"}
    path.write_text('[topics."job.chat.*"]\nqueue = "chat"\nbus = "main"\n')
    with pytest.raises(BadConfig, match=r"holdfast\.toml: \[topics"):
        read_file(path)
