"""Agents: what reaches their boxes, what they report, what people answer, and what stays secret."""

from __future__ import annotations

import asyncio
import http.server
import json
import os
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast.config import read_file
from holdfast.operations.requests import GetLogs
from holdfast.ports.box import LOG_FILE
from holdfast.queries.why.why import why
from holdfast.runners.command.profiles import AgentProfile, Secret
from holdfast.runners.command.secret_files import find_memory_place
from holdfast.tasks.handles import JobHandle
from tests.commands.support import LIMIT_SECONDS, CommandPlace, gone, killed

INPUTS = "${HOLDFAST_INPUTS}"
ARTIFACTS = "${HOLDFAST_ARTIFACTS:-/artifacts}"
CANARY = "canary-7d1f" + "e2" * 8
PREPARED = "agent.files"
ON_SQLITE = pytest.mark.parametrize("store_url", ["sqlite"], indirect=True)
IN_PROCESS = pytest.mark.parametrize("runner", ["process"], indirect=True)
IN_SANDBOX = pytest.mark.parametrize("runner", ["sandbox"], indirect=True)
IN_PODMAN = pytest.mark.parametrize("runner", ["podman"], indirect=True)


def scripted(script: str, **more: Any) -> dict[str, AgentProfile]:
    """Return profiles with one whose agent is a shell script; `$1` is its branch."""
    kept = script.replace("{", "{{").replace("}", "}}")
    return {"scripted": AgentProfile(argv=("/bin/sh", "-c", kept, "agent", "{branch}"), **more)}


async def told(place: CommandPlace, job: JobHandle[Any], code: str, **facts: object) -> Any:
    """Wait until `why` gives a reason with these facts, and return it."""
    async with asyncio.timeout(LIMIT_SECONDS):
        while True:
            answer = await why(await place.app.store(), job.record.id)
            for reason in (answer.reason, *answer.also):
                found = {name: getattr(reason, name, None) for name in facts}
                if (reason.code, found) == (code, facts):
                    return reason
            await asyncio.sleep(0.05)


@pytest.mark.req("D1", "D17")
@ON_SQLITE
async def test_task_context_and_branch_reach_the_box_as_files(place: CommandPlace) -> None:
    task = "x" * 100_000
    script = (
        f"cd {INPUTS} && wc -c <task && cat context branch && test -x agent && echo /$1 && "
        "echo made > ${HOLDFAST_WORK:-/work}/x && ! env | grep -q xxxx"
    )
    async with place.worker(agents=scripted(script)):
        job = await place.submit_agent(task, context="carefully\n")
        ended = await place.ended(job)
        assert ended.exit_code == 0
        assert "".join(await place.output(job)) == "100000carefullymain/main"
        assert (await place.files(job) / "work/x").exists()


@ON_SQLITE
@IN_SANDBOX
async def test_a_profile_nobody_has_is_named_by_why(place: CommandPlace) -> None:
    async with place.worker(agents=scripted("true")):
        job = await place.submit_agent(profile="coder")
        reason = await told(place, job, "no_command_worker", missing=("agent:coder",))
        assert "profile 'coder'" in reason.sentence(0)
        assert "[agents.coder]" in reason.advice("j")
        await job.cancel()


@ON_SQLITE
@IN_SANDBOX
async def test_a_profile_limits_what_a_job_gets(place: CommandPlace) -> None:
    async with place.worker(agents=scripted("true", timeout_minutes=1)):
        job = await place.submit_agent(timeout_seconds=3600)
        ended = await place.ended(job)
        assert ended.policy.timeout == 60_000_000


@pytest.mark.req("D17")
@ON_SQLITE
@IN_PROCESS
async def test_a_job_sets_only_variables_that_its_profile_allows(place: CommandPlace) -> None:
    allowed = scripted("echo said $GREETING", env_allowed=("GREETING",))
    async with place.worker(agents=allowed):
        good = await place.submit_agent(env={"GREETING": "hello"})
        bad = await place.submit_agent(env={"GREETING": "hello", "LD_PRELOAD": "/work/own.so"})
        assert (await place.ended(good)).exit_code == 0
        assert "said hello" in await place.output(good)
        assert (await place.ended(bad)).error_code == "validation_failed"
        assert "env: its profile does not allow LD_PRELOAD" in await place.error(bad)


@pytest.mark.req("D17")
@ON_SQLITE
@IN_PROCESS
async def test_a_profile_is_for_its_tenants(
    place: CommandPlace, caplog: pytest.LogCaptureFixture
) -> None:
    agents = {
        "ours": scripted("true", tenants=("default",), network="host")["scripted"],
        "theirs": scripted("true", tenants=("other",))["scripted"],
        "open": scripted("true", network="host")["scripted"],
    }
    async with place.worker(agents=agents):
        ours = await place.submit_agent(profile="ours")
        theirs = await place.submit_agent(profile="theirs")
        assert (await place.ended(ours)).exit_code == 0
        assert (await place.ended(theirs)).error_code == "validation_failed"
        assert "does not allow it to tenant 'default'" in await place.error(theirs)
    assert "[agents.open] has network" in caplog.text
    assert "[agents.ours]" not in caplog.text


@ON_SQLITE
@IN_PROCESS
async def test_without_isolation_the_network_of_the_host_is_in_the_event(
    place: CommandPlace,
) -> None:
    async with place.worker(agents=scripted("true")):
        job = await place.submit_agent()
        await place.ended(job)
        [started] = [one for one in await place.events(job) if one.type == "job_started"]
        assert started.facts.network == "host"


HELPER = """agent=$HOLDFAST_INPUTS/agent
for percent in 08 007 -5 1.5 x 250; do $agent progress $percent; echo $percent $?; done
$agent ask 'Well?' ../x; echo id $?
$agent ask '' empty; echo empty $?
$agent ask "$(head -c 2000 /dev/zero | tr '\\0' x)" -x; echo dash $?
echo '{"ask": "no", "question": ""}' >> $HOLDFAST_EXCHANGE/events
$agent ask 'Refused' no; echo refused $?
$agent ask 'Merge it?'
"""


@ON_SQLITE
@IN_SANDBOX
async def test_the_helper_refuses_what_cannot_be_reported(place: CommandPlace) -> None:
    async with place.worker(agents=scripted(HELPER)):
        job = await place.submit_agent()
        asked = await told(place, job, "asks_question", question="Merge it?")
        # The checksum of the question, by POSIX.
        assert asked.signal == "answer:q3691346022"
        await job.signal(asked.signal, "yes")
        assert (await place.ended(job)).exit_code == 0
        output = await place.output(job)
        codes = ["08 0", "007 0", "-5 2", "1.5 2", "x 2", "250 0", "id 2", "empty 2", "dash 2"]
        assert [line for line in output if line in codes] == codes
        assert "refused 1" in output
        assert '"yes"' in output
        reports = [
            json.loads(one.body or b"")["percent"]
            for one in await place.events(job)
            if one.type == "job_progressed"
        ]
        assert reports[-1] == 100.0


REPORTS = """agent=$HOLDFAST_INPUTS/agent
$agent progress 40 'half "way"'
$agent step build '{"ok": true}'
$agent step build
$agent log 'so far'
answer=$($agent ask 'Merge it?' merge)
echo answered $answer
$agent progress 100
"""


@pytest.mark.req("D1")
async def test_an_agent_reports_and_people_answer_it(place: CommandPlace) -> None:
    async with place.worker(agents=scripted(REPORTS)):
        job = await place.submit_agent()
        asked = await told(place, job, "asks_question")
        assert (asked.signal, asked.question) == ("answer:merge", "Merge it?")
        assert (await place.read(job)).running
        await job.signal("answer:merge", {"merge": True})
        ended = await place.ended(job)
        output = await place.output(job)
        assert (ended.exit_code, ended.pending_signals) == (0, 0)
        assert 'answered {"merge":true}' in "".join(output)
        assert "info: so far" in output
        events = await place.events(job)
        steps = [(one.facts.step, one.facts.step_use) for one in events if one.facts.step]
        assert steps == [("build", 1), ("build", 2), ("answer:merge", 1), ("answer:merge", 1)]
        reports = [json.loads(one.body or b"") for one in events if one.type == "job_progressed"]
        assert reports[-1] == {"percent": 100.0}


@ON_SQLITE
@IN_PODMAN
async def test_a_question_survives_the_death_of_its_worker(place: CommandPlace) -> None:
    worker = place.start_worker(agents=scripted(REPORTS))
    job = await place.submit_agent()
    await told(place, job, "asks_question")
    left = await place.read(job)
    await killed(worker)
    # Without its profile: what runs already needs none.
    async with place.worker():
        await place.until(job, lambda record: record.owner != left.owner, "its adoption")
        await job.signal("answer:merge", "later")
        ended = await place.ended(job)
    assert (ended.exit_code, ended.attempt) == (0, left.attempt)
    events = await place.events(job)
    steps = [one.facts.step for one in events if one.facts.step]
    assert steps == ["build", "build", "answer:merge", "answer:merge"]
    assert (await place.output(job)).count("info: so far") == 1


@ON_SQLITE
@IN_PROCESS
async def test_after_a_redrive_an_answer_reaches_only_its_question(
    place: CommandPlace, tmp_path: Path
) -> None:
    mark = tmp_path / "mark"
    script = (
        f"agent=$HOLDFAST_INPUTS/agent; $agent ask 'Delete it?' same; "
        f"if [ -e {mark} ]; then $agent ask 'Publish it?' other; $agent ask 'Again?' next; exit 0; "
        f"fi; $agent ask 'Go on?' other; touch {mark}; exit 1"
    )
    async with place.worker(agents=scripted(script)):
        job = await place.submit_agent()
        for name in ("same", "other"):
            await told(place, job, "asks_question", signal=f"answer:{name}")
            await job.signal(f"answer:{name}", f"first {name}")
        await place.ended(job)
        again = await (await place.app.get(job.id)).redrive()
        for name, question in (("other", "Publish it?"), ("next", "Again?")):
            await told(place, again, "asks_question", question=question)
            await again.signal(f"answer:{name}", f"second {name}")
        assert (await place.ended(again)).exit_code == 0
        assert await place.output(again) == ['"first same"', '"second other"', '"second next"']


def list_writers(log: Path) -> list[int]:
    """Return the flags with which processes of the host have a log open for writing."""
    found = []
    for fd in Path("/proc").glob("[0-9]*/fd/*"):
        # Processes of others come and go meanwhile.
        with suppress(OSError):
            if fd.readlink() == log:
                shown = (fd.parents[1] / "fdinfo" / fd.name).read_text()
                flags = int(shown.partition("flags:")[2].split()[0], 8)
                found += [flags] if flags & os.O_ACCMODE else []
    return found


@ON_SQLITE
@pytest.mark.parametrize("runner", ["sandbox", "podman"], indirect=True)
async def test_a_log_that_a_worker_adds_to_is_only_appended_to(place: CommandPlace) -> None:
    script = (
        "echo before; $HOLDFAST_INPUTS/agent log said; $HOLDFAST_INPUTS/agent ask Go go; echo after"
    )
    async with place.worker(agents=scripted(script)):
        job = await place.submit_agent()
        await told(place, job, "asks_question")
        writers = await asyncio.to_thread(list_writers, await place.files(job) / LOG_FILE)
        assert writers, "what runs the box writes its log"
        assert all(flags & os.O_APPEND for flags in writers)
        await job.signal("answer:go", None)
        await place.ended(job)
        assert await place.output(job) == ["before", "info: said", "null", "after"]


@ON_SQLITE
@IN_SANDBOX
async def test_a_question_is_given_up_after_its_time(place: CommandPlace) -> None:
    script = (
        'e=${HOLDFAST_EXCHANGE:-/run/exchange}; echo \'{"ask": "q", "question": "Well?", '
        '"choices": ["a", "b"], "timeout": 0.2}\' >> $e/events; '
        "while ! cat $e/answers/q 2>/dev/null; do sleep 0.1; done"
    )
    async with place.worker(agents=scripted(script)):
        job = await place.submit_agent()
        assert (await place.ended(job)).exit_code == 0
        assert "".join(await place.output(job)) == '{"timed_out":true}'


GARBAGE = """e=/run/exchange; cd $e
ln -s /etc/passwd events; sleep 0.5; rm events
mkfifo events; sleep 0.5; rm events
rm -r answers; ln -s /work answers
head -c 200000 /dev/zero >> events; echo >> events
echo '{"progress": 7}' >> events; echo '[[[[' >> events
echo '{"ask": "../x", "question": "y"}' >> events
echo '{"step": "answer:q"}' >> events; echo '{"step": ""}' >> events; echo '{"x": 1}' >> events
echo '{"ask": "q", "question": "Well?", "timeout": 0}' >> events
echo '{"step": "last"}' >> events; sleep 1; test ! -e /work/q
"""


@ON_SQLITE
@IN_SANDBOX
async def test_garbage_from_a_box_is_counted_and_never_trusted(
    place: CommandPlace, caplog: pytest.LogCaptureFixture
) -> None:
    async with place.worker(agents=scripted(GARBAGE)):
        job = await place.submit_agent()
        assert (await place.ended(job)).exit_code == 0
        steps = [one.facts.step for one in await place.events(job) if one.facts.step]
        assert set(steps) == {"answer:q", "last"}
        assert "reports are not valid" in caplog.text
        assert "could not be handed over" in caplog.text


@pytest.fixture
def loopback() -> Iterator[str]:
    """The address of a server on the host's loopback."""

    class Greeter(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"hello from the host\n")

        def log_message(self, format: str, *args: object) -> None:
            """Stay quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Greeter) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/"
        server.shutdown()


@ON_SQLITE
@pytest.mark.parametrize("runner", ["sandbox", "podman"], indirect=True)
async def test_a_network_is_allowed_by_a_profile_and_is_in_the_event(
    place: CommandPlace, loopback: str
) -> None:
    script = (
        f"busybox wget -qO- {loopback} || wget -qO- {loopback}; $HOLDFAST_INPUTS/agent ask Go go"
    )
    agents = {
        "scripted": scripted(script, network="host")["scripted"],
        "offline": scripted(script)["scripted"],
    }
    async with place.worker(agents=agents):
        jobs = [await place.submit_agent(), await place.submit_agent(profile="offline")]
        for job, network in zip(jobs, ("host", None), strict=True):
            await told(place, job, "asks_question")
            await told(place, job, "running", network=network)
            await job.signal("answer:go", None)
            assert (await place.ended(job)).exit_code == 0
            started = [one for one in await place.events(job) if one.type == "job_started"]
            assert [one.facts.network for one in started] == [network]
            assert ("hello from the host" in await place.output(job)) == (network == "host")


SPILL = """key=$(cat $HOLDFAST_SECRETS/KEY); agent=$HOLDFAST_INPUTS/agent
echo key $key
echo $key >&2
$agent progress 10 "$key"
$agent step "try $key" '"'"$key"'"'
$agent log "$key"
$agent ask "Is $key right?" key
exit 3
"""


def find_in_processes(value: bytes, but: str | None = None) -> list[str]:
    """Return the processes of the host that show a value in their arguments or environment.

    But those of a box, by its name: an agent may pass its secret to a program.
    """
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        for name in ("cmdline", "environ"):
            # Processes of others come and go meanwhile.
            with suppress(OSError):
                if value in Path("/proc", pid, name).read_bytes():
                    groups = Path("/proc", pid, "cgroup").read_text()
                    if but is None or but not in groups:
                        found.append(f"{pid} {name}")
    return found


def find_in_files(value: bytes, *places: Path) -> list[str]:
    """Return the files below some places that contain a value."""
    files = [file for place in places for file in [place, *place.rglob("*")] if file.is_file()]
    return [str(file) for file in files if value in file.read_bytes()]


@pytest.mark.req("D17")
@ON_SQLITE
@IN_PODMAN
async def test_a_secret_shows_nowhere_but_in_its_box(
    place: CommandPlace, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    value, source = CANARY.encode(), tmp_path / "vault" / "key"
    source.parent.mkdir()
    source.write_text(f"{CANARY}\n")
    assert place.podman is not None
    agents = scripted(SPILL, secrets=("KEY",))
    async with place.worker(agents=agents, secrets={"KEY": Secret(file=str(source))}):
        job = await place.submit_agent()
        asked = await told(place, job, "asks_question")
        assert asked.question == "Is *** right?"
        [kept] = list_memory(place, job)
        assert (kept / "KEY").read_bytes() == value
        assert (kept.stat().st_mode & 0o777, (kept / "KEY").stat().st_mode & 0o777) == (
            0o700,
            0o400,
        )
        assert kept.stat().st_uid != os.geteuid()
        box = f"hf-{job.record.id}-1"
        shown = await asyncio.to_thread(place.podman.call, "inspect", box)
        assert box in shown
        assert CANARY not in shown
        assert find_in_processes(value, but=box) == []
        assert find_in_processes(value) != [], "the search finds what is there"
        await job.signal("answer:key", "no")
        assert (await place.ended(job)).exit_code == 3
    files = await place.files(job)
    # In the attempt's own directory is what the agent printed and wrote; that is not kept.
    kept_files = find_in_files(value, place.directory)
    assert [file for file in kept_files if not Path(file).is_relative_to(files)] == []
    masked = "*" * len(CANARY)
    log = await (await place.app.operations()).do(GetLogs(job=job.id))
    lines = [line.message for line in log.lines]
    assert {f"key {masked}", masked} <= set(lines)
    assert CANARY not in "".join(lines)
    assert list((place.directory / "blobs").rglob("*")), "its log is where the search looked"
    assert find_in_files(value, *Path(place.url).parent.glob("jobs.db*")) == []
    assert value not in b"".join(one.body or b"" for one in await place.events(job))
    assert CANARY not in caplog.text
    assert list_memory(place, job) == []


def list_memory(place: CommandPlace, job: JobHandle[Any]) -> list[Path]:
    """Return the directories of a job's secrets: in memory, where the host has such a place."""
    memory = find_memory_place()
    places = place.directory.glob("*/secrets") if memory is None else memory.glob("*")
    return [found for one in places for found in one.glob(f"{job.record.id}.*")]


@ON_SQLITE
@IN_SANDBOX
async def test_secrets_of_a_killed_worker_are_removed_by_the_next(
    place: CommandPlace, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(CANARY)
    more: dict[str, Any] = {
        "agents": scripted("echo ready; sleep 600", secrets=("KEY",)),
        "secrets": {"KEY": Secret(file=str(tmp_path / "key"))},
    }
    worker = place.start_worker(**more)
    job = await place.submit_agent()
    await place.running(job)
    assert len(list_memory(place, job)) == 1
    await killed(worker, signal.SIGKILL)
    async with place.worker():
        await place.ended(job)
        async with asyncio.timeout(LIMIT_SECONDS):
            while list_memory(place, job):  # noqa: ASYNC110  a directory
                await asyncio.sleep(0.05)


@ON_SQLITE
@IN_SANDBOX
async def test_a_secret_that_the_host_lacks_is_named_without_its_value(
    place: CommandPlace, caplog: pytest.LogCaptureFixture
) -> None:
    agents = scripted("true", secrets=("KEY",))
    async with place.worker(agents=agents, secrets={"KEY": Secret(env="NO_SUCH_VARIABLE")}):
        job = await place.submit_agent()
        expected = "secret KEY: env: there is no such variable"
        async with asyncio.timeout(LIMIT_SECONDS):
            while not any(  # noqa: ASYNC110  another task's
                expected in f"{one.reason}{one.body!r}" for one in await place.events(job)
            ):
                await asyncio.sleep(0.05)
        recorded = "".join(f"{one.reason}{one.body!r}" for one in await place.events(job))
        assert "NO_SUCH_VARIABLE" not in recorded
        assert "variable NO_SUCH_VARIABLE" in caplog.text
        await job.cancel()


EXAMPLE = Path(__file__).parents[2] / "examples" / "agents" / "holdfast.toml"


@pytest.mark.req("D1", "D17")
@ON_SQLITE
@pytest.mark.parametrize(("answer", "code"), [("yes", 0), ("no", 1)])
async def test_the_example_agent_asks_and_writes_an_artifact(
    place: CommandPlace, answer: str, code: int
) -> None:
    file = read_file(EXAMPLE)
    async with place.worker(agents=file.agents, secrets=file.secrets):
        job = await place.submit_agent("Write a report.")
        await told(place, job, "asks_question", question="May I write the file?")
        await job.signal("answer:write", answer)
        assert (await place.ended(job)).exit_code == code
        report = await place.files(job) / "artifacts/report.txt"
        assert report.exists() == (code == 0)
        assert "info: on branch main: Write a report." in await place.output(job)


@ON_SQLITE
@IN_PODMAN
async def test_nothing_more_is_shipped_of_a_box_whose_secrets_are_gone(
    place: CommandPlace, tmp_path: Path
) -> None:
    """After a reboot the secrets, which were in memory, are gone, and an exited box is not."""
    (tmp_path / "key").write_text(CANARY)
    more: dict[str, Any] = {
        "agents": scripted(
            "echo ready; until [ -e $HOLDFAST_EXCHANGE/go ]; do sleep 0.1; done; "
            "cat $HOLDFAST_SECRETS/KEY; $HOLDFAST_INPUTS/agent log $(cat $HOLDFAST_SECRETS/KEY)",
            secrets=("KEY",),
        ),
        "secrets": {"KEY": Secret(file=str(tmp_path / "key"))},
    }
    worker = place.start_worker(**more)
    job = await place.submit_agent()
    await place.running(job)
    await killed(worker, signal.SIGKILL)
    (await place.files(job) / "exchange" / "go").touch()
    await place.dead(job)
    [kept] = list_memory(place, job)
    shutil.rmtree(kept)
    async with place.worker(**more):
        assert (await place.ended(job)).exit_code == 0
    files = await place.files(job)
    found = find_in_files(CANARY.encode(), place.directory)
    assert [file for file in found if not Path(file).is_relative_to(files)] == []


@ON_SQLITE
@IN_SANDBOX
async def test_a_worker_that_dies_once_an_agents_files_are_written_leaves_no_secrets(
    place: CommandPlace, tmp_path: Path
) -> None:
    (tmp_path / "key").write_text(CANARY)
    more: dict[str, Any] = {
        "agents": scripted("true", secrets=("KEY",)),
        "secrets": {"KEY": Secret(file=str(tmp_path / "key"))},
    }
    job = await place.submit_agent()
    assert await gone(place.start_worker(die_at=PREPARED, **more)) == -signal.SIGKILL
    assert len(list_memory(place, job)) == 1
    async with place.worker(**more):
        record = await place.ended(job)
        assert record.error_code == "container_not_found_on_recovery"
        async with asyncio.timeout(LIMIT_SECONDS):
            while list_memory(place, job):  # noqa: ASYNC110  a directory
                await asyncio.sleep(0.05)
