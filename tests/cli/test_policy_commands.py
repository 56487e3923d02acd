"""`holdfast policy`, `approvals`, `approve` and `deny`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from holdfast.cli.main import app
from holdfast.cli.runtime import BAD_INPUT, FOUND_PROBLEMS, REFUSED
from holdfast.ports.store import Store
from holdfast.services.policy_watch import TROUBLE_NOTE, PolicyWatch
from holdfast.testing.factories import CONTROL, GATEWAY
from holdfast.testing.store_actions import submit_one
from tests.cli.commands import answered, on, run
from tests.support.policies import ALLOW, DENY_MAILS, TWO_PEOPLE


@pytest.fixture
def rules(tmp_path: Path) -> str:
    """A file of rules."""
    file = tmp_path / "policy.toml"
    file.write_text(TWO_PEOPLE, "utf-8")
    return str(file)


@pytest.fixture
def place(tmp_path: Path, rules: str) -> str:
    """A store with the rules applied, and a job that awaits approvals."""
    place = str(tmp_path / "jobs.db")
    on(place, lambda store: store.clock())
    assert run(place, "policy", "apply", rules, "--reason", "first").exit_code == 0
    on(place, lambda store: submit_one(store, job_id="web", task="deploy.web"))
    return place


def by(name: str, place: str, *words: str) -> Result:
    """Call the command as another person of this machine."""
    line = [*words, "--url", place]
    return CliRunner().invoke(app, line, env={"COLUMNS": "80", "LOGNAME": name})


def test_a_file_is_checked_without_a_store(tmp_path: Path, rules: str) -> None:
    good = CliRunner().invoke(app, ["policy", "check", rules])
    assert good.exit_code == 0
    assert "is valid: 4 rules, then allow" in good.stdout
    bad = tmp_path / "bad.toml"
    bad.write_text(ALLOW + '[[rule]]\nid = "x"\nthen = "denny"\n', "utf-8")
    outcome = CliRunner().invoke(app, ["policy", "check", str(bad)])
    assert (outcome.exit_code, outcome.stdout) == (BAD_INPUT, "")
    assert f"{bad}:5: rule x:" in outcome.stderr
    missing = CliRunner().invoke(app, ["policy", "check", str(tmp_path / "none.toml")])
    assert (missing.exit_code, "cannot be read" in missing.stderr) == (BAD_INPUT, True)


def test_cases_that_fail_are_listed(tmp_path: Path, rules: str) -> None:
    cases = tmp_path / "cases.toml"
    text = '[[case]]\nname = "rm"\njob = { task = "rm.x" }\nexpect = "deny"\n'
    cases.write_text(text, "utf-8")
    good = CliRunner().invoke(app, ["policy", "test", rules, str(cases)])
    assert (good.exit_code, good.stdout) == (0, "1 of 1 cases pass\n")
    cases.write_text(text.replace('"deny"', '"allow"'), "utf-8")
    bad = CliRunner().invoke(app, ["policy", "test", rules, str(cases), "--json"])
    assert bad.exit_code == FOUND_PROBLEMS
    [failure] = json.loads(bad.stdout)["failures"]
    assert (failure["name"], failure["found"]) == ("rm", "deny by no-rm")


def test_what_is_applied_is_shown_and_removed(place: str, rules: str) -> None:
    shown = run(place, "policy", "show")
    assert shown.stdout.splitlines() == TWO_PEOPLE.splitlines()
    digest = answered(place, "policy", "show")["digest"]
    assert run(place, "policy", "apply").exit_code == BAD_INPUT
    assert run(place, "policy", "apply", rules, "--remove").exit_code == BAD_INPUT
    gone = run(place, "policy", "apply", "--remove", "--reason", "off")
    assert gone.stdout == "no policy is applied: nothing is judged\n"
    events = answered(place, "policy", "history")["events"]
    assert [(one["type"], one["reason"]) for one in events] == [
        ("removed", "off"),
        ("applied", "first"),
    ]
    old = answered(place, "policy", "show", "--book", digest)
    assert (old["text"], old["is_current"]) == (TWO_PEOPLE, False)


def test_a_job_is_explained_rule_by_rule(place: str, tmp_path: Path) -> None:
    explained = answered(place, "policy", "explain", "web")
    assert [(one["rule"], one["matched"]) for one in explained["looks"]] == [
        ("no-rm", False),
        ("prod", True),
    ]
    assert explained["looks"][0]["why"] == "task is 'deploy.web', not rm*"
    assert explained["missing"] == 2
    other = tmp_path / "other.toml"
    other.write_text(ALLOW, "utf-8")
    again = answered(place, "policy", "explain", "web", "--policy", str(other))
    assert again["looks"] == [{"rule": None, "matched": True, "why": "no rule matches: allow"}]
    assert again["decisions"] == explained["decisions"]
    text = run(place, "policy", "explain", "web").stdout
    assert "approve by rule prod" in text
    shown = run(place, "show", "web").stdout
    assert "verdict        approve by rule prod of policy" in shown
    assert "approved by    nobody (2 more needed)" in shown


@pytest.mark.req("A13")
def test_people_of_this_machine_approve_by_their_names(place: str) -> None:
    [waiting] = answered(place, "approvals")["approvals"]
    assert (waiting["job_id"], waiting["rule"], waiting["needs"]) == ("web", "prod", 2)
    assert "0 of 2" in run(place, "approvals").stdout
    own = by(GATEWAY.name, place, "approve", "web")
    assert (own.exit_code, "approver_is_submitter" in own.stderr) == (REFUSED, True)
    first = by("ben", place, "approve", "web", "--reason", "good")
    assert first.stdout == "job web is approved; 1 more must approve it\n"
    again = by("ben", place, "approve", "web")
    assert (again.exit_code, "already_approved" in again.stderr) == (REFUSED, True)
    assert by("cleo", place, "approve", "web", "--rev", "1").exit_code != 0
    second = by("cleo", place, "approve", "web", "--rev", "2")
    assert second.stdout == "job web is approved; it is queued\n"
    assert run(place, "approvals").stdout == "no job awaits an approval\n"


def test_a_person_denies(place: str) -> None:
    denied = by("ben", place, "deny", "web", "--reason", "not today")
    assert denied.stdout == "job web is denied\n"
    assert "not today" in run(place, "show", "web").stdout


def test_a_submit_shows_what_the_rules_made_of_it(place: str) -> None:
    assert "is denied; `holdfast policy explain no` shows why" in (
        run(place, "submit", "rm.x", "--job-id", "no").stdout
    )
    assert "awaits the approval of 2 people, by rule prod" in (
        run(place, "submit", "deploy.x", "--job-id", "ask").stdout
    )


def test_simulate_lists_what_would_change_and_writes_nothing(place: str, tmp_path: Path) -> None:
    async def some(store: Store) -> None:
        for number in range(7):
            await submit_one(store, job_id=f"mail-{number}", task="mail.send", tenant="acme")
        await submit_one(store, job_id="other", task="mail.send", tenant="globex")

    on(place, some)
    new = tmp_path / "new.toml"
    new.write_text(DENY_MAILS, "utf-8")
    found = answered(place, "policy", "simulate", str(new), "--last", "100", code=3)
    assert found["judged"] == 9
    assert [
        (one["rule"], one["before"], one["after"], one["count"]) for one in found["changed"]
    ] == [
        ("no-mails", "allow", "deny", 8),
        (None, "approve", "allow", 1),
    ]
    assert found["changed"][0]["examples"][0] == "other"
    few = answered(place, "policy", "simulate", str(new), "--tenant", "globex", code=3)
    assert few["judged"] == 1
    assert answered(place, "policy", "simulate", str(new), "--last", "3", code=3)["judged"] == 3
    none = answered(place, "policy", "simulate", str(new), "--since", "2100-01-01T00:00")
    assert (none["judged"], none["changed"]) == (0, [])
    same = tmp_path / "policy.toml"
    assert run(place, "policy", "simulate", str(same)).exit_code == 0
    assert "no-mails" in run(place, "policy", "simulate", str(new)).stdout
    events = answered(place, "policy", "history")["events"]
    assert len(events) == 1


def test_a_simulation_over_recorded_jobs_repeats_what_was_decided_live(
    place: str, tmp_path: Path
) -> None:
    async def some(store: Store) -> None:
        for task in ("rm.x", "deploy.x", "odd.x", "long.x", "mail.x"):
            await submit_one(store, job_id=task, task=task)

    on(place, some)
    run(place, "policy", "apply", "--remove")
    found = answered(place, "policy", "simulate", str(tmp_path / "policy.toml"), code=3)
    live = {"allow": 2, "approve": 2, "deny": 1, "hold": 1}
    assert found["verdicts"] == live
    for task in ("rm.x", "deploy.x", "odd.x"):
        [decided] = answered(place, "policy", "explain", task)["decisions"][:1]
        named = {one["after"] for one in found["changed"] if task in one["examples"]}
        assert named == {decided["verdict"]}


def test_doctor_reports_a_broken_policy_file(place: str, tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"

    async def broken(store: Store) -> str | None:
        watch = PolicyWatch(store, file, CONTROL, settle_seconds=0)
        file.write_text("version = 2", "utf-8")
        await watch.look()
        await watch.look()
        return await store.note(TROUBLE_NOTE)

    assert on(place, broken)
    findings = answered(place, "doctor")["findings"]
    texts = [one["text"] for one in findings if one["check"] == "policy"]
    assert "is applied, by control:" in texts[0]
    assert "policy.toml:1: " in texts[1]


def test_a_server_does_not_start_with_a_broken_policy_file(tmp_path: Path) -> None:
    file = tmp_path / "policy.toml"
    file.write_text("version = 2", "utf-8")
    for command in ("up", "reconcile"):
        outcome = run(str(tmp_path / "jobs.db"), command, "--policy", str(file))
        assert (outcome.exit_code, "error bad_policy" in outcome.stderr) == (BAD_INPUT, True)


def test_reconcile_once_applies_the_file(tmp_path: Path, rules: str) -> None:
    place = str(tmp_path / "jobs.db")
    on(place, lambda store: store.clock())
    assert run(place, "reconcile", "--once", "--policy", rules).exit_code == 0
    shown = answered(place, "policy", "show")
    assert (shown["text"], shown["reason"]) == (TWO_PEOPLE, f"file {rules}")
