"""Both engines have the same files, statements and functions, or the reason why they do not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from holdfast import stores
from holdfast.ports.directory import Directory
from holdfast.ports.maintenance import Maintenance
from holdfast.ports.store import Ledger, Store
from holdfast.ports.uploads import Uploads
from holdfast.stores.directory import SharedDirectory
from holdfast.stores.ledger import SharedLedger
from holdfast.stores.maintenance import SharedMaintenance
from holdfast.stores.postgres.store import PostgresStore
from holdfast.stores.sql_files import SHARED, raw_blocks
from holdfast.stores.sqlite.store import SqliteStore
from holdfast.stores.uploads import SharedUploads

ROOT = Path(stores.__file__).parent
ENGINES = ("sqlite", "postgres")
OWN = {"sqlite": "Own to SQLite: ", "postgres": "Own to PostgreSQL: "}
DIFFERS = "differs from postgres: "
OWN_FILES = {
    "sqlite": """
        clock.py database.py migrations.sql notices.py turn.py write_queue.py writer.py
    """,
    "postgres": """
        claim_start.py doctor.sql enlist.sql hosts.py lineage.py policy.py pool.py schema.py
    """,
}
"""Files that one engine alone has; the docstring of each module gives the reason."""
OWN_STATEMENTS = {
    "sqlite": """
        claim_arm claim_arm_of claim_event claim_heads claimable claimed_under next_range
        next_range_of paused add_claim close_claims owned_jobs
        event alike_event commit_fenced commit_planned planned_event still_claimed add_signals
        drop_signals add_holds drop_holds mark mark_parent count last_seal
        clear_counts forget_counts guards restore_keys newest_event tail_end
    """,
    "postgres": """
        claim_due claim_firsts claim_known claim_next claim_next_of_all claim_open claim_range
        claim_served claim_whose
        claimed_signals lock_due lock_job lock_some lock_unlocked
        submit_hint submit_marks key_holders await_standby commit_counts commit_events
        commit_held_by commit_marks commit_rest commit_returned commit_rows commit_run_at
        commit_signals commit_terms planned_counts planned_events planned_returned planned_rows
        fold_counts purge_counts size_exactly bump_epoch sealing_off sealing_on
        restore_guards free_held_keys start_lineage tail_bounds
    """,
}
"""Statements that one engine alone has; the comment of each gives the reason."""


def reason_after(text: str, words: str) -> str:
    """What follows on these words, without line breaks and comment marks."""
    joined = " ".join(line.removeprefix("--").strip() for line in text.splitlines())
    return joined.partition(words)[2].partition(".")[0]


def described(block: str) -> str:
    """The comment that a block starts with."""
    lines = block.splitlines()
    code = [number for number, line in enumerate(lines) if not line.startswith("--")]
    return "\n".join(lines[: code[0]])


def modules(engine: str) -> dict[str, str]:
    """The docstrings of an engine's modules."""
    return {
        path.stem: ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
        for path in (ROOT / engine).glob("*.py")
        if path.stem != "__init__"
    }


def functions(engine: str, module: str) -> set[str]:
    """The public functions of a module."""
    tree = ast.parse((ROOT / engine / f"{module}.py").read_text("utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_"
    }


BLOCKS = {engine: raw_blocks(f"{SHARED}.{engine}") for engine in ENGINES}
MODULES = {engine: modules(engine) for engine in ENGINES}


@pytest.mark.parametrize("engine", ENGINES)
def test_only_the_files_and_statements_listed_are_of_one_engine_alone(engine: str) -> None:
    [other] = set(ENGINES) - {engine}
    files = {
        name: {path.name for path in (ROOT / name).iterdir() if path.suffix in (".py", ".sql")}
        for name in ENGINES
    }
    assert files[engine] - files[other] == set(OWN_FILES[engine].split())
    assert BLOCKS[engine].keys() - BLOCKS[other].keys() == set(OWN_STATEMENTS[engine].split())


def test_a_shared_statement_has_no_second_text() -> None:
    shared = raw_blocks(SHARED)
    assert len(shared) > 70
    for engine in ENGINES:
        assert not shared.keys() & BLOCKS[engine].keys()


@pytest.mark.parametrize("name", sorted(BLOCKS["sqlite"].keys() & BLOCKS["postgres"].keys()))
def test_a_statement_that_both_engines_have_says_why_it_differs(name: str) -> None:
    assert len(reason_after(described(BLOCKS["sqlite"][name]), DIFFERS)) > 5


@pytest.mark.parametrize("engine", ENGINES)
def test_a_statement_of_one_engine_says_why_the_other_has_none(engine: str) -> None:
    [other] = set(ENGINES) - {engine}
    unexplained = [
        name
        for name, block in BLOCKS[engine].items()
        if (name in BLOCKS[other]) == bool(reason_after(described(block), OWN[engine]))
    ]
    assert unexplained == []


def test_a_module_that_both_engines_have_says_why_it_differs() -> None:
    shared = MODULES["sqlite"].keys() & MODULES["postgres"].keys()
    expected = "store connections session submit claim commit read upkeep rows wakeup"
    assert shared == {*expected.split(), "caller_transaction", "health", "migrate", "planned"}
    unexplained = [
        name for name in shared if len(reason_after(MODULES["sqlite"][name], DIFFERS)) < 20
    ]
    assert unexplained == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_module_of_one_engine_says_why_the_other_has_none(engine: str) -> None:
    [other] = set(ENGINES) - {engine}
    own = MODULES[engine].keys() - MODULES[other].keys()
    unexplained = [
        name for name in own if len(reason_after(MODULES[engine][name], OWN[engine])) < 5
    ]
    assert unexplained == []


OWN_FUNCTIONS: dict[tuple[str, str], dict[str, str]] = {
    ("postgres", "submit"): {
        "submit_sql": "a statement that is put together",
        "alike_sql": "likewise",
        "submit_with_keys": "a commit submits in its own transaction; on SQLite every submit does",
    },
    ("postgres", "claim"): {
        "claim_sql": "a statement that is put together",
        "claim_known_sql": "a statement that is put together",
        "claim_locked": "rows are locked before they are claimed",
    },
    ("sqlite", "claim"): {
        "claim_carefully": "a second turn of the writer; on PostgreSQL it is the same call",
    },
    ("postgres", "commit"): {"commit_sql": "a statement that is put together"},
    ("postgres", "upkeep"): {
        "read_clock": "the clock is the server's",
        "tend_clock": "the clock is the server's",
        "fold_counts": "summaries are kept as deltas",
    },
    ("sqlite", "upkeep"): {
        "epoch": "it does not come with the clock",
        "forget_unused": "summaries without jobs are forgotten too",
        "give_back_space": "a server keeps its space for other rows",
    },
}


@pytest.mark.parametrize("module", ["submit", "claim", "commit", "planned", "read", "upkeep"])
def test_an_operation_has_the_same_name_on_both_engines(module: str) -> None:
    found = {
        engine: functions(engine, module) - OWN_FUNCTIONS.get((engine, module), {}).keys()
        for engine in ENGINES
    }
    assert found["sqlite"] == found["postgres"]
    for engine in ENGINES:
        assert OWN_FUNCTIONS.get((engine, module), {}).keys() <= functions(engine, module)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("module", ["submit", "claim", "commit", "planned", "read", "upkeep"])
def test_an_operation_is_a_function_over_a_session(engine: str, module: str) -> None:
    tree = ast.parse((ROOT / engine / f"{module}.py").read_text("utf-8"))
    first = {
        node.name: node.args.args[0].arg if node.args.args else None
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[0] != "_"
    }
    texts = {name for name in first if name.endswith("_sql")}
    # On SQLite a session hands them a snapshot or a turn, on a thread of the database.
    within = {"session"} if engine == "postgres" else {"session", "snapshot", "turn"}
    assert {first[name] for name in first.keys() - texts} <= within


@pytest.mark.parametrize("store", [SqliteStore, PostgresStore])
def test_the_directory_is_written_once_for_both_engines(store: type) -> None:
    shared = (SharedLedger, SharedDirectory, SharedUploads, SharedMaintenance)
    assert store.__mro__[1:5] == shared
    for port, part in ((Directory, SharedDirectory), (Uploads, SharedUploads)):
        assert duties(port) <= vars(part).keys()
        assert not duties(port) & vars(store).keys()


def test_the_port_is_a_ledger_what_lies_beside_it_and_maintenance_and_nothing_else() -> None:
    parts = [duties(part) for part in (Ledger, Directory, Uploads, Maintenance)]
    assert duties(Store) == set().union(*parts)
    assert len(duties(Store)) == sum(map(len, parts))
    assert not [name for name in vars(Store) if name in duties(Store)]


def duties(port: type) -> set[str]:
    """The methods that a protocol asks for."""
    return {name for name in dir(port) if name[0] != "_" and callable(getattr(port, name))}
