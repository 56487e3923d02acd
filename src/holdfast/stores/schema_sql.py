"""The law as SQL: constraints and triggers of both schemas, written from the one table.

`tools.generate` puts these into the schema files; a change of the law is a new migration.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

import msgspec

from holdfast.lifecycle.claim_order import AGEING, CLASS, DEFAULT_TENANT, FOREIGN
from holdfast.lifecycle.execution_policy import ATTEMPTS_LIMIT, DEFAULT_POLICY, SPAN_LIMIT
from holdfast.lifecycle.invariants import RULES
from holdfast.lifecycle.payload import BODY_LIMIT, DIGEST_SIZE, LABELS_LIMIT, TEXT_LIMIT
from holdfast.lifecycle.reserved import PREFIX
from holdfast.lifecycle.routes import VERSION_PATTERN
from holdfast.lifecycle.seal import SEALED
from holdfast.lifecycle.states import (
    BEATS,
    OWNED,
    Coded,
    EventType,
    Kind,
    Link,
    Priority,
    Retention,
    State,
)
from holdfast.lifecycle.submission import HOLDS_LIMIT, NEEDS_LIMIT
from holdfast.lifecycle.times import HORIZON, LAST_INSTANT
from holdfast.lifecycle.transitions import REQUESTED, SUBMIT_TARGETS, legal_events, moves, paths
from holdfast.ports.models import Limits
from holdfast.stores import row_checks
from holdfast.stores.columns import JOB_COLUMNS
from holdfast.stores.row_checks import claim_order, codes, live_parent_id, wake_at

LINEAGE = 2**48
"""Positions of a lineage in PostgreSQL's tail (`stores/postgres/lineage.py`): more than a cluster
has transactions in its life."""
UNJUDGED = "HFP01"
"""The SQLSTATE with which PostgreSQL refuses a job that the policy has not judged."""
FROZEN = (
    "state",
    "attempt",
    "failures",
    "releases",
    "started_at",
    "finished_at",
    "run_at",
    "cancel_requested",
    "pending_signals",
    "lost_owner",
    "result_digest",
    "error_code",
    "exit_code",
    "result_ptr",
)
"""What never changes once a job is terminal (resolution 10): all but the annotations."""

PLAIN_EVENTS = (
    (EventType.CREATED, None, State.QUEUED),
    (EventType.CLAIMED, State.QUEUED, State.CLAIMED),
    (EventType.STARTED, State.CLAIMED, State.RUNNING),
    (EventType.SUCCEEDED, State.RUNNING, State.SUCCEEDED),
)
"""What most jobs go through. They are tested first, so that the text of the others, which is read
again each time a statement runs, can be a function's."""
FIXED = tuple(name for name in JOB_COLUMNS[: JOB_COLUMNS.index("state")] if name != "policy")
"""What never changes after the submit. An owner may correct the policy."""
MOVING = ("rev", "state", *JOB_COLUMNS[JOB_COLUMNS.index("attempt") : -1], "beats", "version")
"""What only a move with its event changes: all but what a submit fixes, and the quarantine.

`rev` comes first, because PostgreSQL looks for a column that was set in this order.
"""


def job_checks() -> str:
    """Write the per-state invariants as CHECKs on the job row."""
    return ",\n".join(f"    CONSTRAINT {rule.name} CHECK ({rule.sql})" for rule in RULES)


def route(alias: str = "") -> str:
    """Write the task and version that a claim finds a job by; see `lifecycle.routes.route`."""
    return f"{alias}task || '@' || coalesce({alias}task_version, '')"


def postgres_route(alias: str = "") -> str:
    """Write the route in an order that is the same in every locale."""
    return f'({route(alias)} COLLATE "C")'


def lane(alias: str = "") -> str:
    """Write the number of a job's lane, as `lifecycle.claim_order.lane_of` computes it."""
    foreign = f"CASE WHEN {alias}tenant = '{DEFAULT_TENANT}' THEN 0 ELSE {FOREIGN} END"
    return f"({alias}needs | {alias}priority | {foreign})"


def ageing_of_lane() -> str:
    """Write the ageing of a lane, as `claim_order` has it."""
    offsets = " ".join(f"WHEN {klass.code} THEN {offset}" for klass, offset in AGEING.items())
    return f"CASE lane & {CLASS} {offsets} END"


def kept_events() -> list[tuple[EventType, State | None, State]]:
    """List every legal (event, from, to) but the heartbeats, which have a table of their own."""
    return [triple for triple in legal_events() if triple[0] not in BEATS]


def event_codes() -> list[int]:
    """Number every legal (event, from, to)."""
    return sorted(
        kind.code * 256 + (source.code if source else 0) * 16 + target.code
        for kind, source, target in kept_events()
    )


def postgres_event_check() -> str:
    """Compare one small number with a list, for events that are not among `plain_events`.

    The bounds keep a state that is too large from passing for another by arithmetic. For a NULL,
    the first event's, they are NULL, and a CHECK that is NULL passes.
    """
    code = "type * 256 + coalesce(from_state, 0) * 16 + to_state"
    bounds = "from_state BETWEEN 1 AND 15 AND to_state BETWEEN 1 AND 15"
    return f"{_write_membership_test(code, event_codes())} AND {bounds}"


def plain_events() -> str:
    """Compare the events that most jobs have with a list of few.

    Each of the three numbers has its own digits, whatever it is, and NULL is like none of them.
    """
    wide = [
        kind.code * 2**33 + (source.code * 2**16 if source else 2**31) + target.code
        for kind, source, target in PLAIN_EVENTS
    ]
    code = f"type * {2**33} + coalesce(from_state * {2**16}, {2**31}) + to_state"
    return f"({code}) = ANY ('{{{','.join(map(str, wide))}}}'::bigint[])"


def sqlite_event_check() -> str:
    """Branch on the type, then look at one bit."""
    branches = []
    for kind in EventType:
        pairs = [(source, target) for event, source, target in kept_events() if event is kind]
        if pairs:
            branches.append(f"WHEN {kind.code} THEN {_sqlite_pairs(pairs)}")
    return "CASE type\n        " + "\n        ".join(branches) + "\n        ELSE 0 END"


def _sqlite_pairs(pairs: Iterable[tuple[State | None, State]]) -> str:
    sources: dict[State, set[State | None]] = {}
    for source, target in pairs:
        sources.setdefault(target, set()).add(source)
    if all(found == {None} for found in sources.values()):
        return f"from_state IS NULL AND {_write_bit_test(sources, 'to_state')}"
    if all(found == {target} for target, found in sources.items()):
        # IS, not =: a NULL would make the whole CHECK NULL, which passes.
        return f"from_state IS to_state AND {_write_bit_test(sources, 'to_state')}"
    return " OR ".join(
        f"to_state = {target.code} AND {_write_bit_test(found, 'coalesce(from_state, 0)')}"
        for target, found in sorted(sources.items(), key=lambda item: item[0].code)
    )


def _write_bit_test(states: Iterable[State | None], column: str) -> str:
    """Write for SQLite whether a state is one of these.

    It builds a little table for every IN list of three or more each time a statement runs; a bit
    of a constant costs nothing that can be measured.
    """
    return f"({_mask(states)} >> {column} & 1)"


def _mask(states: Iterable[State | None]) -> int:
    return sum(1 << (state.code if state else 0) for state in set(states))


def _write_membership_test(number: str, numbers: Iterable[int], *, negated: bool = False) -> str:
    """Write for PostgreSQL whether a small number is one of these.

    It reads the text of every CHECK and WHEN again each time a statement runs, and a list is stored
    as one node per number, an array as one.
    """
    array = f"('{{{','.join(map(str, numbers))}}}'::smallint[])"
    return f"({number}) {'<> ALL' if negated else '= ANY'} {array}"


def for_postgres(sql: str) -> str:
    """Write `state IN (...)` as a comparison, or as a look into an array where none will do."""
    return _STATE_IN.sub(_write_range_test, sql)


def _write_range_test(match: re.Match[str]) -> str:
    """Compare the state with the first and the last of a set of neighbouring codes.

    That costs a third of a look into an array, and neighbours the sets mostly are.
    """
    wanted, negated = sorted(map(int, match[2].split(","))), bool(match[1])
    first, last, end = wanted[0], wanted[-1], max(state.code for state in State)
    if wanted != list(range(first, last + 1)):
        return _write_membership_test("state", wanted, negated=negated)
    if first == last:
        return f"state {'<>' if negated else '='} {first}"
    if last == end and first > 1:
        return f"state {'<' if negated else '>='} {first}"
    return f"state {'NOT ' if negated else ''}BETWEEN {first} AND {last}"


def for_sqlite(sql: str) -> str:
    """Write `state IN (...)` as a look at one bit, for the reason that `_write_bit_test` gives."""
    return _STATE_IN.sub(_as_bit, sql)


_STATE_IN = re.compile(r"\bstate (NOT )?IN \(([0-9, ]+)\)")


def _as_bit(match: re.Match[str]) -> str:
    states = [State.of(int(code)) for code in match[2].split(",")]
    return f"{match[1] or ''}{_write_bit_test(states, 'state')}"


def _pair_codes(pairs: Iterable[tuple[State, State]]) -> list[int]:
    return sorted(source.code * 16 + target.code for source, target in pairs)


def postgres_illegal_move() -> str:
    """Write when an update of a job row breaks the law; the trigger fires on nothing else."""
    pair = "OLD.state * 16 + NEW.state"
    return f"""NOT CASE NEW.rev - OLD.rev
        WHEN 1 THEN {_write_membership_test(pair, _pair_codes(moves()))}
        ELSE NEW.rev > OLD.rev AND {_write_membership_test(pair, _pair_codes(paths()))} END
    OR NEW.attempt <> OLD.attempt + CASE WHEN {_entered_claimed()} THEN 1 ELSE 0 END
    OR NEW.updated_at < OLD.updated_at
    OR OLD.retention = {Retention.CLEANED.code}"""


def postgres_thawed() -> str:
    """Write when a terminal row lost its outcome."""
    return "\n        OR ".join(f"NEW.{name} IS DISTINCT FROM OLD.{name}" for name in FROZEN)


def sqlite_illegal_move() -> str:
    """The same on SQLite, as short as it can be: from the old state to a mask of new ones.

    That a terminal state and its attempt stay follows; retention and the other frozen columns have
    triggers that only a statement which sets them pays for.
    """
    return f"""NOT CASE NEW.rev - OLD.rev
        WHEN 1 THEN {_sqlite_moves(moves())}
        ELSE NEW.rev > OLD.rev AND {_sqlite_moves(paths())} END
    OR NEW.attempt <> OLD.attempt + ({_entered_claimed()})
    OR NEW.updated_at < OLD.updated_at
    OR OLD.retention = {Retention.CLEANED.code}"""


def frozen() -> str:
    """List the columns of a terminal row that are fixed; its state and attempt are by other rules.

    On SQLite no statement may set them, even to what they are.
    """
    return ", ".join(name for name in FROZEN if name not in ("state", "attempt"))


def _sqlite_moves(pairs: Iterable[tuple[State, State]]) -> str:
    targets: dict[State, set[State]] = {}
    for source, target in pairs:
        targets.setdefault(source, set()).add(target)
    masks = " ".join(
        f"WHEN {source.code} THEN {_mask(found)}"
        for source, found in sorted(targets.items(), key=lambda item: item[0].code)
    )
    return f"(CASE OLD.state {masks} ELSE 0 END >> NEW.state & 1)"


def _entered_claimed() -> str:
    claimed = State.CLAIMED.code
    return f"NEW.state = {claimed} AND OLD.state <> {claimed}"


def illegal_retention() -> str:
    """Write when retention moves otherwise than one step on, or before the job has ended."""
    one_step = "OLD.finished_at IS NOT NULL AND NEW.retention = OLD.retention + 1"
    return f"(NEW.retention <> OLD.retention AND NOT ({one_step}))"


def postgres_requested() -> str:
    """Name the types of events that are looked up by the request_id of a request from outside."""
    return _write_membership_test("type", sorted(event.code for event in REQUESTED))


def sqlite_requested() -> str:
    """The same on SQLite, for the reason that `_write_bit_test` gives."""
    return f"({sum(1 << event.code for event in REQUESTED)} >> type & 1)"


def illegal_terms() -> str:
    """Write when a job gets other terms although no owner corrects them, nor its admission."""
    admitted = f"OLD.state = {State.PENDING.code} AND NEW.state = {State.QUEUED.code}"
    corrected = f"OLD.state = {State.CLAIMED.code}"
    return f"NEW.policy <> OLD.policy AND NOT ({corrected} OR {admitted})"


def into_queue() -> str:
    """Write when a new event leads into a queue."""
    return f"NEW.to_state = {State.QUEUED.code}"


def admission() -> str:
    """Write when a new event is an admission."""
    return f"NEW.type = {EventType.ADMITTED.code}"


def illegal_birth() -> str:
    """Write when a new job row is not the row of a submit; the CHECKs forbid the rest."""
    born = codes(SUBMIT_TARGETS)
    return f"""NEW.rev <> 1 OR NEW.attempt <> 0 OR NEW.releases <> 0 OR NEW.state NOT IN ({born})
    OR NEW.updated_at <> NEW.created_at OR NEW.started_at IS NOT NULL
    OR NEW.pending_signals IS NOT NULL"""


def beat_check() -> str:
    """A heartbeat leaves the state as it is, and that state has an owner."""
    kinds = f"{EventType.HEARTBEAT.code}, {EventType.LEASE_RENEWED.code}"
    return f"type IN ({kinds}) AND state IN ({codes(OWNED)})"


def words(column: str, kinds: type[Coded]) -> str:
    """Spell the codes of a column out, for the views that people read."""
    spelled = " ".join(f"WHEN {kind.code} THEN '{kind.value}'" for kind in kinds if kind.code)
    return f"CASE {column} {spelled} END"


_FLAG = "IN ('true', 'false')"
_POLICY_TERMS: dict[str, tuple[int, int] | str] = {
    "max_attempts": (1, ATTEMPTS_LIMIT),
    "idempotent": _FLAG,
    "on_exhausted": """IN ('"dead_letter"', '"fail"')""",
    "letter_on_fail": _FLAG,
    "on_silence": """IN ('"stall"', '"time_out"', '"lose"')""",
    "backoff_first": (0, SPAN_LIMIT - 1),
    "backoff_factor": r"~ '^[1-9][0-9]{0,17}(\.[0-9]{1,20})?(e[+]?[0-9]{1,2})?$'",
    "backoff_max": (0, SPAN_LIMIT - 1),
    "lease": (1, SPAN_LIMIT - 1),
    "heartbeat": (1, SPAN_LIMIT - 1),
    "start_timeout": (1, SPAN_LIMIT - 1),
    "timeout": (1, SPAN_LIMIT - 1),
    "host_recovery": (0, SPAN_LIMIT - 1),
    "compensates": _FLAG,
}
"""What a term may be, as JSON text: a range of whole numbers, or a condition."""


def policy_terms() -> str:
    """Write what `policy_faults` checks, for a JSON text `b`; a missing term is its default."""
    names = msgspec.structs.asdict(DEFAULT_POLICY)
    return "\n        AND ".join(_policy_term(name, _POLICY_TERMS[name]) for name in names)


def _policy_term(name: str, rule: tuple[int, int] | str) -> str:
    term = f"(b -> '{name}')::text"
    if isinstance(rule, str):
        return f"coalesce({term} {rule}, true)"
    # The digits as they were written: Python reads neither 60.0 nor 6e7 as a whole number.
    whole = rf"{term} ~ '^(0|[1-9][0-9]{{0,17}})$'"
    ranged = f"CASE WHEN {whole} THEN {term}::bigint BETWEEN {rule[0]} AND {rule[1]}"
    return f"{ranged} ELSE {term} IS NULL END"


FRAGMENTS: dict[str, Callable[[], str]] = {
    "postgres.state_words": lambda: words("state", State),
    "postgres.from_words": lambda: words("from_state", State),
    "postgres.to_words": lambda: words("to_state", State),
    "postgres.event_words": lambda: words("type", EventType),
    "postgres.kind_words": lambda: words("kind", Kind),
    "postgres.priority_words": lambda: words("priority", Priority),
    "postgres.link_words": lambda: words("link_kind", Link),
    "postgres.policy_terms": policy_terms,
    "default_lease": lambda: str(DEFAULT_POLICY.lease),
    "default_heartbeat": lambda: str(DEFAULT_POLICY.heartbeat),
    "body_limit": lambda: str(BODY_LIMIT),
    "digest_size": lambda: str(DIGEST_SIZE),
    "labels_limit": lambda: str(LABELS_LIMIT),
    "holds_limit": lambda: str(HOLDS_LIMIT),
    "needs_limit": lambda: str(NEEDS_LIMIT),
    "text_limit": lambda: str(TEXT_LIMIT),
    "horizon": lambda: str(HORIZON),
    "last_instant": lambda: str(LAST_INSTANT),
    "reserved": lambda: PREFIX,
    "lineage": lambda: str(LINEAGE),
    "postgres.plain": row_checks.plain,
    "postgres.lawful": lambda: row_checks.of_row(for_postgres(row_checks.lawful())),
    "postgres.broken": lambda: row_checks.of_row(for_postgres(row_checks.broken())),
    "postgres.claim_order": lambda: for_postgres(claim_order()),
    "postgres.wake_at": lambda: for_postgres(wake_at()),
    "postgres.live_parent_id": lambda: for_postgres(live_parent_id()),
    "postgres.route": postgres_route,
    "postgres.route.j": lambda: postgres_route("j."),
    "postgres.lane.j": lambda: lane("j."),
    # A plain sum would be what was there when the statement started.
    "postgres.upload_bytes": lambda: "holdfast_upload_bytes($2)",
    "sqlite.upload_bytes": lambda: (
        "(SELECT coalesce(sum(u.bytes + u.reserved), 0) FROM uploads AS u WHERE u.tenant = ?2)"
    ),
    "sqlite.route": route,
    "lane": lane,
    "ageing_of_lane": ageing_of_lane,
    "queues_per_tenant": lambda: str(Limits().queues),
    "needs_per_tenant": lambda: str(Limits().needs),
    "version_pattern": lambda: VERSION_PATTERN,
    "illegal_birth": illegal_birth,
    "illegal_retention": illegal_retention,
    "illegal_terms": illegal_terms,
    "into_queue": into_queue,
    "unjudged": lambda: UNJUDGED,
    "admission": admission,
    "postgres.requested": postgres_requested,
    "sqlite.requested": sqlite_requested,
    "beat_check": beat_check,
    "fixed": lambda: ", ".join(FIXED),
    "moving": lambda: ", ".join(MOVING),
    "event_fixed": lambda: ", ".join(SEALED),
    "postgres.event_check": postgres_event_check,
    "postgres.plain_events": plain_events,
    "sqlite.job_checks": lambda: for_sqlite(job_checks()),
    "sqlite.claim_order": lambda: for_sqlite(claim_order()),
    "sqlite.event_check": sqlite_event_check,
    "postgres.illegal_move": postgres_illegal_move,
    "postgres.thawed": postgres_thawed,
    "sqlite.illegal_move": sqlite_illegal_move,
    "frozen": frozen,
}
"""What replaces `{{law.NAME}}` in a schema template."""
