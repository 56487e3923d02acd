"""Topics on the command line: `submit --topic`, the settings file, `up` and its worker."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.main import app
from holdfast.cli.runtime import BAD_INPUT
from holdfast.wiring import migrate, read_address
from tests.cli.test_serving import running

TOPICS = """
[topics]
"job.chat.*" = {queue = "chat"}
"job.bus.>" = {bus = "main"}
"""
APP = """
from holdfast import Context, Holdfast

app = Holdfast("jobs.db", topics={"job.app.*": {"queue": "of-app"}})

@app.task(name="job.chat.simple")
async def simple(ctx: Context, text: str) -> list[str]:
    return [text, ctx.job.context_ptr, ctx.job.adapter_id, ctx.job.env["locale"]]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a store, an app and a settings file, where commands are typed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "topics_app.py").write_text(APP)
    (tmp_path / "holdfast.toml").write_text(f"url = 'jobs.db'\n{TOPICS}")
    asyncio.run(migrate(read_address("jobs.db")))
    return tmp_path


def call(*words: str) -> Result:
    """Type a command."""
    return CliRunner().invoke(app, words, env={"COLUMNS": "200"})


@pytest.mark.req("A2", "A4", "A5", "A6")
def test_a_topic_is_submitted_with_its_arguments(here: Path) -> None:
    line = (
        "submit --topic job.chat.simple text=hello n:=1 --job-id j --env locale=de --env x="
        " --context-ptr s3://b/%00?a --adapter llama"
    )
    done = call(*line.split())
    assert done.stdout == "job j submitted to queue chat\n", done.output
    shown = json.loads(call("show", "j", "--json").stdout)
    assert (shown["job"]["task"], shown["job"]["queue"]) == ("job.chat.simple", "chat")
    assert shown["job"]["needs"] == ["adapter:llama"]
    first = shown["events"][0]
    assert first["payload"] == {"text": "hello", "n": 1}
    facts = first["facts"]
    assert (facts["env"], facts["adapter_id"]) == ({"locale": "de", "x": ""}, "llama")
    assert facts["context_ptr"] == "s3://b/%00?a"
    text = call("show", "j").stdout
    for part in ("env            locale=de, x=", "s3://b/%00?a", "adapter        llama"):
        assert part.split()[0] in text
        assert part.split()[-1] in text


@pytest.mark.req("A2")
def test_a_task_may_have_them_too_and_a_bus_is_a_pool(here: Path) -> None:
    assert call("submit", "t", "--job-id", "t", "--context-ptr", "x:1").exit_code == 0
    assert call("submit", "--topic", "job.bus.a", "--job-id", "b").exit_code == 0
    shown = json.loads(call("show", "b", "--json").stdout)["job"]
    assert (shown["kind"], shown["queue"]) == ("bus", "job.bus.a")
    why = call("why", "b")
    assert "no worker serves topic 'job.bus.a'" in why.stdout


@pytest.mark.req("A2")
@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("submit --topic job.mail.send", "no_pool_for_topic"),
        ("submit --topic sys.job.submit", "must start with 'job.'"),
        ("submit --topic job.chat.simple --queue q", "--queue is not for a topic"),
        ("submit --topic job.chat.simple --retries 1", "--retries is not for a topic"),
        ("submit --topic job.chat.simple task", "NAME=TEXT"),
        ("submit", "name the TASK, or give --topic"),
    ],
)
def test_what_cannot_be_submitted_is_named(here: Path, line: str, text: str) -> None:
    done = call(*line.split())
    assert (done.exit_code, text in done.stderr) == (BAD_INPUT, True), done.output
    assert json.loads(call("ls", "--json").stdout)["jobs"] == []


def test_the_topics_of_an_app_are_used_where_the_file_has_none(here: Path) -> None:
    line = "submit --topic job.app.a --app topics_app:app --job-id j"
    assert "no_pool_for_topic" in call(*line.split()).stderr
    (here / "holdfast.toml").write_text("url = 'jobs.db'")
    assert call(*line.split()).stdout == "job j submitted to queue of-app\n"


def test_config_shows_the_topics_and_names_a_mistake(here: Path) -> None:
    shown = json.loads(call("config", "--json").stdout)
    assert shown["topics"]["job.chat.*"]["queue"] == "chat"
    text = call("config").stdout
    assert "topics.job.chat.*" in text
    assert "bus main" in text
    (here / "holdfast.toml").write_text('[topics."job.a"]\nqueue = "a"\nbus = "b"\n')
    done = call("config")
    assert done.exit_code == BAD_INPUT
    assert 'holdfast.toml: [topics."job.a"] queue or `bus` must name' in done.stderr


@pytest.mark.req("A2", "A4", "A5", "A6")
def test_up_routes_topics_by_the_file_to_its_worker_with_an_adapter(here: Path) -> None:
    arguments = ("up", "topics_app:app", "--queues", "chat", "--adapter", "llama,other")
    body = {
        "topic": "job.chat.simple",
        "args": {"text": "hi"},
        "context_ptr": "redis://x/é",
        "adapter_id": "llama",
        "env": {"locale": "de"},
    }
    with running(here, *arguments) as served:
        made = served.http.post("/v1/jobs", json=body)
        assert made.status_code == 201, made.text
        result = served.http.get(f"/v1/jobs/{made.json()['job_id']}/result?wait=30")
        assert result.json()["result"] == ["hi", "redis://x/é", "llama", "de"], result.text
        assert "of-app" not in served.http.post("/v1/jobs", json={"topic": "job.app.a"}).text
        assert served.end() == 0
