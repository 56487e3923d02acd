-- Holdfast on SQLite: a ledger of events, and one narrow row per job that is their projection.
-- The tables of ../postgres/schema.in.sql, with the differences stated where they are. Times are
-- microseconds since 1970 UTC. Codes are listed in docs/lifecycle.md. STRICT: a wrong type is
-- refused, not kept.

CREATE TABLE meta (
    key TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO meta VALUES ('epoch', '1'), ('sealing', 'off');

-- What keeps the clock from going back: see holdfast/lifecycle/clock.py. differs from postgres:
-- each process has a clock of its own, and so its own shift; others' count where the mark shows that
-- their clocks agree.
CREATE TABLE store_clock (
    one INTEGER PRIMARY KEY DEFAULT 1,
    mark INTEGER NOT NULL DEFAULT 0,
    shift INTEGER NOT NULL DEFAULT 0,
    since INTEGER NOT NULL DEFAULT 0,
    CONSTRAINT one_row CHECK (one = 1)
) STRICT;
INSERT INTO store_clock DEFAULT VALUES;
-- When the machine's clock was found to be set back.
CREATE TABLE clock_steps (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    by INTEGER NOT NULL
) STRICT;

-- Content-addressed and append-only: a job row names its policy and needs by one number.
CREATE TABLE policies (
    id INTEGER PRIMARY KEY,
    body TEXT NOT NULL,
    lease INTEGER NOT NULL,
    start_timeout INTEGER
) STRICT;
-- A set of needs that no job has is forgotten some time after it was last named.
CREATE TABLE needs (
    id INTEGER PRIMARY KEY,
    body TEXT NOT NULL,
    used_at INTEGER NOT NULL DEFAULT 0
) STRICT;
INSERT INTO needs (id, body) VALUES (0, '[]');

CREATE TABLE jobs (
    id BLOB PRIMARY KEY,
    created_at INTEGER NOT NULL,
    updated_at INTEGER NOT NULL,
    run_at INTEGER,
    lease_expires_at INTEGER,
    started_at INTEGER,
    finished_at INTEGER,
    timeout_at INTEGER,
    deadline_at INTEGER,
    needs INTEGER NOT NULL,
    policy INTEGER NOT NULL,
    rev INTEGER NOT NULL,
    beats INTEGER NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL DEFAULT 0,
    failures INTEGER NOT NULL DEFAULT 0,
    releases INTEGER NOT NULL DEFAULT 0,
    epoch INTEGER,
    cpus INTEGER,
    memory_mb INTEGER,
    step_index INTEGER,
    exit_code INTEGER,
    state INTEGER NOT NULL,
    kind INTEGER NOT NULL,
    priority INTEGER NOT NULL,
    key_kinds INTEGER NOT NULL DEFAULT 0,
    link_kind INTEGER,
    pending_signals INTEGER,
    cancel_requested INTEGER,
    letter INTEGER,
    retention INTEGER NOT NULL DEFAULT 1,
    version INTEGER NOT NULL DEFAULT 1,
    parent_id BLOB,
    tenant TEXT NOT NULL,
    task TEXT NOT NULL,
    task_version TEXT,
    queue TEXT NOT NULL,
    job_id TEXT,
    workflow_id TEXT,
    owner TEXT,
    held_by TEXT,
    wait_for TEXT,
    late_results TEXT,
    lost_owner TEXT,
    result_digest BLOB,
    error_code TEXT,
    result_ptr TEXT,
    -- A row that could not be read or moved: kept out of claims and sweeps until it is repaired. Not
    -- part of the projection: no event records it.
    quarantined_at INTEGER,
    quarantine TEXT,
    -- What a claim finds a job by: the task with its version; needs, class and whose tenant's.
    route TEXT AS (task || '@' || coalesce(task_version, '')) VIRTUAL,
    lane INTEGER AS (needs | priority | CASE WHEN tenant = 'default' THEN 0 ELSE 4 END) VIRTUAL,
    claim_order INTEGER AS (CASE WHEN (196 >> state & 1) AND held_by IS NULL AND quarantined_at IS NULL THEN run_at + CASE priority WHEN 1 THEN 0 WHEN 2 THEN 300000000 WHEN 3 THEN 1800000000 END END) VIRTUAL,
    -- A running job past its timeout is its owner's to kill; if that fell silent, a lease passes.
    -- min() of a NULL is NULL here, so what is not there counts as the end of time.
    wake_at INTEGER AS (
        CASE WHEN finished_at IS NULL AND quarantined_at IS NULL THEN nullif(min(
            coalesce(deadline_at, 9223372036854775807),
            coalesce(CASE state WHEN 3 THEN timeout_at
                WHEN 5 THEN run_at END, 9223372036854775807)
        ), 9223372036854775807) END) VIRTUAL,
    live_parent_id BLOB AS (
        CASE WHEN finished_at IS NULL AND link_kind = 1 THEN parent_id END) VIRTUAL,
    CONSTRAINT id_is_uuid CHECK (length(id) = 16),
    CONSTRAINT state_known CHECK ((16382 >> state & 1)),
    CONSTRAINT owner_by_state CHECK ((owner IS NOT NULL) = ((24 >> state & 1))),
    CONSTRAINT lease_expires_at_by_state CHECK ((lease_expires_at IS NOT NULL) = ((24 >> state & 1))),
    CONSTRAINT epoch_by_state CHECK ((epoch IS NOT NULL) = ((24 >> state & 1))),
    CONSTRAINT timeout_at_only CHECK (timeout_at IS NULL OR (24 >> state & 1)),
    CONSTRAINT result_digest_by_state CHECK ((result_digest IS NOT NULL) = ((256 >> state & 1))),
    CONSTRAINT error_code_by_state CHECK ((error_code IS NOT NULL) = ((15872 >> state & 1))),
    CONSTRAINT finished_at_by_state CHECK ((finished_at IS NOT NULL) = ((16128 >> state & 1))),
    CONSTRAINT started_at_always CHECK (started_at IS NOT NULL OR NOT (16 >> state & 1)),
    CONSTRAINT started_at_only CHECK (started_at IS NULL OR (16372 >> state & 1)),
    CONSTRAINT wait_for_by_state CHECK ((wait_for IS NOT NULL) = ((32 >> state & 1))),
    CONSTRAINT run_at_always CHECK (run_at IS NOT NULL OR NOT (198 >> state & 1)),
    CONSTRAINT held_by_only CHECK (held_by IS NULL OR (198 >> state & 1)),
    CONSTRAINT cancel_requested_only CHECK (cancel_requested IS NULL OR (16152 >> state & 1)),
    CONSTRAINT letter_always CHECK (letter IS NOT NULL OR NOT (8192 >> state & 1)),
    CONSTRAINT letter_only CHECK (letter IS NULL OR (8704 >> state & 1)),
    CONSTRAINT exit_code_only CHECK (exit_code IS NULL OR (16128 >> state & 1)),
    CONSTRAINT result_ptr_only CHECK (result_ptr IS NULL OR (16128 >> state & 1)),
    CONSTRAINT late_results_only CHECK (late_results IS NULL OR (16128 >> state & 1)),
    CONSTRAINT lost_owner_only CHECK (lost_owner IS NULL OR (11908 >> state & 1)),
    CONSTRAINT retention_terminal CHECK (retention = 1 OR (16128 >> state & 1)),
    CONSTRAINT attempt_by_state CHECK (CASE WHEN (4098 >> state & 1) THEN attempt = 0 WHEN (504 >> state & 1) THEN attempt > 0 ELSE attempt >= 0 END),
    CONSTRAINT counters CHECK (rev >= 1 AND failures BETWEEN 0 AND attempt AND releases >= 0 AND beats >= 0),
    CONSTRAINT beats_owned CHECK (beats = 0 OR (24 >> state & 1))
) STRICT, WITHOUT ROWID;

CREATE INDEX jobs_claim ON jobs (queue, route, lane, claim_order, id)
    WHERE claim_order IS NOT NULL;
-- For workers of one tenant. The default tenant's jobs have lanes of their own in the other index.
CREATE INDEX jobs_claim_tenant ON jobs (tenant, queue, route, lane, claim_order, id)
    WHERE tenant <> 'default' AND claim_order IS NOT NULL;
-- Which tenants have jobs with which needs, for limits and to forget what nobody needs.
CREATE INDEX jobs_needs ON jobs (needs, tenant) WHERE needs <> 0;
CREATE INDEX jobs_wake ON jobs (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX jobs_parent ON jobs (parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX jobs_live_children ON jobs (live_parent_id, id) WHERE live_parent_id IS NOT NULL;
CREATE INDEX jobs_gathering ON jobs (id) WHERE substr(wait_for, 1, 17) = 'holdfast:children';
CREATE INDEX jobs_workflow ON jobs (workflow_id, id) WHERE workflow_id IS NOT NULL;
CREATE INDEX jobs_error ON jobs (error_code, id) WHERE error_code IS NOT NULL;
CREATE INDEX jobs_quarantined ON jobs (id) WHERE quarantined_at IS NOT NULL;
CREATE INDEX jobs_letter ON jobs (letter, id) WHERE letter IS NOT NULL;
-- For lists. The tenant and the queue of most jobs are left out: a look at the newest jobs meets
-- them, and an installation that uses no others pays for neither index.
CREATE INDEX jobs_tenant ON jobs (tenant, id) WHERE tenant <> 'default';
CREATE INDEX jobs_queue ON jobs (queue, id) WHERE queue <> 'default';

-- What the guards cost of 35 µs that a life (submit, claim, start and finish) takes in here, in
-- batches of 500: the moves 4, the CHECKs on jobs 2, the CHECKs on events 2, the birth 1. An AFTER
-- trigger is cheaper than a BEFORE one, and a trigger that names columns costs only those who set
-- them. Columns STORED or VIRTUAL, and a table with or without rowid, made no difference.
CREATE TRIGGER jobs_birth AFTER INSERT ON jobs WHEN NEW.rev <> 1 OR NEW.attempt <> 0 OR NEW.releases <> 0 OR NEW.state NOT IN (1, 2)
    OR NEW.updated_at <> NEW.created_at OR NEW.started_at IS NOT NULL
    OR NEW.pending_signals IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'holdfast: a job that was not submitted refused on jobs'); END;
CREATE TRIGGER jobs_move AFTER UPDATE OF rev, state, attempt, failures, releases, epoch, owner, lease_expires_at, timeout_at, run_at, held_by, cancel_requested, wait_for, pending_signals, late_results, lost_owner, updated_at, started_at, finished_at, result_digest, error_code, exit_code, result_ptr, letter, retention, beats, version ON jobs WHEN NOT CASE NEW.rev - OLD.rev
        WHEN 1 THEN (CASE OLD.state WHEN 1 THEN 15366 WHEN 2 THEN 15372 WHEN 3 THEN 11992 WHEN 4 THEN 12272 WHEN 5 THEN 3108 WHEN 6 THEN 11336 WHEN 7 THEN 11916 WHEN 8 THEN 256 WHEN 9 THEN 512 WHEN 10 THEN 1024 WHEN 11 THEN 2048 WHEN 12 THEN 4096 WHEN 13 THEN 8192 ELSE 0 END >> NEW.state & 1)
        ELSE NEW.rev > OLD.rev AND (CASE OLD.state WHEN 1 THEN 4 WHEN 3 THEN 12272 WHEN 4 THEN 12272 WHEN 5 THEN 4 ELSE 0 END >> NEW.state & 1) END
    OR NEW.attempt <> OLD.attempt + (NEW.state = 3 AND OLD.state <> 3)
    OR NEW.updated_at < OLD.updated_at
    OR OLD.retention = 3
BEGIN SELECT RAISE(ABORT, 'holdfast: an illegal move refused on jobs'); END;
CREATE TRIGGER jobs_frozen AFTER UPDATE OF failures, releases, started_at, finished_at, run_at, cancel_requested, pending_signals, lost_owner, result_digest, error_code, exit_code, result_ptr ON jobs
WHEN OLD.finished_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'holdfast: a change of an outcome refused on jobs'); END;
CREATE TRIGGER jobs_retention AFTER UPDATE OF retention ON jobs
WHEN (NEW.retention <> OLD.retention AND NOT (OLD.finished_at IS NOT NULL AND NEW.retention = OLD.retention + 1))
BEGIN SELECT RAISE(ABORT, 'holdfast: an illegal move refused on jobs'); END;
CREATE TRIGGER jobs_terms AFTER UPDATE OF policy ON jobs
WHEN NEW.policy <> OLD.policy AND NOT (OLD.state = 3 OR OLD.state = 1 AND NEW.state = 2)
BEGIN SELECT RAISE(ABORT, 'holdfast: a change of terms refused on jobs'); END;
CREATE TRIGGER jobs_fixed AFTER UPDATE OF id, tenant, job_id, kind, task, task_version, queue, priority, needs, cpus, memory_mb, parent_id, link_kind, workflow_id, step_index, key_kinds, deadline_at, created_at ON jobs
BEGIN SELECT RAISE(ABORT, 'holdfast: a change of what a submit fixes refused on jobs'); END;
CREATE TRIGGER jobs_kept AFTER DELETE ON jobs WHEN OLD.retention <> 3
BEGIN SELECT RAISE(ABORT, 'holdfast: the removal of a job that is not cleaned refused on jobs'); END;

-- differs from postgres: one writer at a time, so `position` alone is the order of the tail. It is
-- not AUTOINCREMENT, which costs 5 % of a cycle: the newest event cannot be removed instead, so
-- that no position is given twice.
CREATE TABLE events (
    position INTEGER PRIMARY KEY,
    id BLOB NOT NULL,
    rev INTEGER NOT NULL,
    type INTEGER NOT NULL,
    from_state INTEGER,
    to_state INTEGER NOT NULL,
    at INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    beats INTEGER NOT NULL DEFAULT 0,
    lease_expires_at INTEGER,
    run_at INTEGER,
    deadline_at INTEGER,
    version INTEGER NOT NULL DEFAULT 1,
    actor TEXT NOT NULL,
    request_id TEXT,
    reason TEXT,
    correlation_id TEXT,
    data TEXT,
    body TEXT,
    digest BLOB,
    seal BLOB,
    UNIQUE (id, rev),
    CONSTRAINT legal_event CHECK (CASE type
        WHEN 1 THEN from_state IS NULL AND (6 >> to_state & 1)
        WHEN 2 THEN to_state = 3 AND (196 >> coalesce(from_state, 0) & 1)
        WHEN 3 THEN to_state = 4 AND (8 >> coalesce(from_state, 0) & 1)
        WHEN 4 THEN to_state = 8 AND (16 >> coalesce(from_state, 0) & 1)
        WHEN 7 THEN to_state = 2 AND (2 >> coalesce(from_state, 0) & 1)
        WHEN 8 THEN to_state = 12 AND (6 >> coalesce(from_state, 0) & 1)
        WHEN 9 THEN from_state IS to_state AND (198 >> to_state & 1)
        WHEN 10 THEN from_state IS to_state AND (198 >> to_state & 1)
        WHEN 11 THEN from_state IS to_state AND (198 >> to_state & 1)
        WHEN 12 THEN to_state = 4 AND (24 >> coalesce(from_state, 0) & 1)
        WHEN 13 THEN from_state IS to_state AND (16 >> to_state & 1)
        WHEN 14 THEN from_state IS to_state AND (16 >> to_state & 1)
        WHEN 15 THEN from_state IS to_state AND (16 >> to_state & 1)
        WHEN 16 THEN to_state = 5 AND (16 >> coalesce(from_state, 0) & 1)
        WHEN 17 THEN to_state = 2 AND (32 >> coalesce(from_state, 0) & 1)
        WHEN 18 THEN to_state = 9 AND (152 >> coalesce(from_state, 0) & 1)
        WHEN 19 THEN to_state = 6 AND (24 >> coalesce(from_state, 0) & 1)
        WHEN 20 THEN to_state = 7 AND (24 >> coalesce(from_state, 0) & 1)
        WHEN 21 THEN to_state = 7 AND (24 >> coalesce(from_state, 0) & 1)
        WHEN 22 THEN to_state = 2 AND (128 >> coalesce(from_state, 0) & 1)
        WHEN 23 THEN from_state IS to_state AND (24 >> to_state & 1)
        WHEN 24 THEN to_state = 10 AND (254 >> coalesce(from_state, 0) & 1)
        WHEN 25 THEN to_state = 11 AND (254 >> coalesce(from_state, 0) & 1)
        WHEN 26 THEN to_state = 13 AND (222 >> coalesce(from_state, 0) & 1)
        WHEN 27 THEN from_state IS to_state AND (254 >> to_state & 1)
        WHEN 28 THEN from_state IS to_state AND (16128 >> to_state & 1)
        WHEN 29 THEN from_state IS to_state AND (16128 >> to_state & 1)
        WHEN 30 THEN from_state IS to_state AND (8704 >> to_state & 1)
        WHEN 31 THEN from_state IS to_state AND (8704 >> to_state & 1)
        WHEN 32 THEN from_state IS to_state AND (16128 >> to_state & 1)
        WHEN 33 THEN from_state IS to_state AND (16128 >> to_state & 1)
        WHEN 34 THEN from_state IS to_state AND (16 >> to_state & 1)
        WHEN 35 THEN from_state IS to_state AND (8 >> to_state & 1)
        WHEN 36 THEN from_state IS to_state AND (2 >> to_state & 1)
        ELSE 0 END),
    CONSTRAINT first_event CHECK ((rev = 1) = (from_state IS NULL)),
    CONSTRAINT body_has_digest CHECK (body IS NULL OR digest IS NOT NULL)
) STRICT;
-- differs from postgres: there are no block ranges here by which the four common types could be
-- found, so that they are in this index too; it costs 2 of 35 µs a life.
CREATE INDEX events_type ON events (type, at);
-- What a request from outside led to: a repetition is found without reading the job's history.
CREATE INDEX events_request ON events (id, request_id)
    WHERE (72641154560 >> type & 1) AND request_id IS NOT NULL;
CREATE INDEX events_correlation ON events (correlation_id, id) WHERE correlation_id IS NOT NULL;

CREATE TRIGGER events_fixed AFTER UPDATE OF position, id, rev, type, from_state, to_state, at, attempt, beats, lease_expires_at, run_at, deadline_at, version, actor, request_id, reason, correlation_id, data, digest ON events
BEGIN SELECT RAISE(ABORT, 'holdfast: a change of an event refused on events'); END;
CREATE TRIGGER events_erase AFTER UPDATE OF body ON events WHEN NEW.body IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'holdfast: a change of a body other than its erasure refused on events'); END;
CREATE TRIGGER events_sealed AFTER UPDATE OF seal ON events
BEGIN SELECT RAISE(ABORT, 'holdfast: a change of a seal refused on events'); END;
-- A whole old job may be purged, its row first; an event alone may not, nor the newest of all.
CREATE TRIGGER events_kept AFTER DELETE ON events
WHEN EXISTS (SELECT 1 FROM jobs WHERE id = OLD.id)
    OR OLD.position > coalesce((SELECT max(position) FROM events), 0)
BEGIN SELECT RAISE(ABORT, 'holdfast: the removal of an event of a job refused on events'); END;

-- Heartbeats, kept apart so that they can be dropped by age.
CREATE TABLE beats (
    id BLOB NOT NULL,
    rev INTEGER NOT NULL,
    at INTEGER NOT NULL,
    lease_expires_at INTEGER NOT NULL,
    attempt INTEGER NOT NULL,
    type INTEGER NOT NULL,
    state INTEGER NOT NULL,
    actor TEXT NOT NULL,
    request_id TEXT,
    reason TEXT,
    seal BLOB,
    PRIMARY KEY (id, rev),
    CONSTRAINT legal_beat CHECK (type IN (5, 6) AND state IN (3, 4))
) STRICT, WITHOUT ROWID;
CREATE INDEX beats_at ON beats (at);
CREATE TRIGGER beats_fixed AFTER UPDATE ON beats
BEGIN SELECT RAISE(ABORT, 'holdfast: a change of a heartbeat refused on beats'); END;

-- Signals that no wait has consumed, by the revision of the event that brought each. The job row
-- counts them: jobs without any are read without a look in here.
CREATE TABLE signals (
    id BLOB NOT NULL,
    rev INTEGER NOT NULL,
    name TEXT NOT NULL,
    PRIMARY KEY (id, rev)
) STRICT, WITHOUT ROWID;

-- One row per claim that took something: it finds leases that may have passed, settles a claim
-- whose reply was lost, and lists what an owner holds, without an index that every finish changes.
-- differs from postgres: `ids` are the 16 bytes of each id, one after the other.
CREATE TABLE claims (
    request_id TEXT PRIMARY KEY,
    at INTEGER NOT NULL,
    expires_at INTEGER NOT NULL,
    epoch INTEGER NOT NULL,
    owner TEXT NOT NULL,
    ids BLOB NOT NULL,
    -- 0 once nothing of it is held, as its owner or a sweep has seen: it is remembered only.
    held INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE INDEX claims_expires ON claims (expires_at);
CREATE INDEX claims_owner ON claims (owner) WHERE held = 1;
CREATE INDEX claims_epoch ON claims (epoch);

CREATE TABLE keys (
    tenant TEXT NOT NULL,
    kind INTEGER NOT NULL,
    key TEXT NOT NULL,
    id BLOB NOT NULL,
    digest BLOB NOT NULL,
    PRIMARY KEY (tenant, kind, key)
) STRICT, WITHOUT ROWID;
CREATE INDEX keys_id ON keys (id);

-- Old jobs that were removed whole: an entry for each batch, and each job's id and tenant, so that
-- a request for it gets an answer, and its job_id or request_id never makes another job.
CREATE TABLE purges (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT,
    jobs INTEGER NOT NULL,
    events INTEGER NOT NULL
) STRICT;
CREATE TABLE purged (
    id BLOB PRIMARY KEY,
    tenant TEXT NOT NULL,
    purge INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
CREATE TRIGGER purges_fixed AFTER UPDATE ON purges
BEGIN SELECT RAISE(ABORT, 'holdfast: a change of an entry refused on purges'); END;
CREATE TRIGGER purges_kept AFTER DELETE ON purges
BEGIN SELECT RAISE(ABORT, 'holdfast: the removal of an entry refused on purges'); END;
CREATE TRIGGER purged_fixed AFTER UPDATE ON purged
BEGIN SELECT RAISE(ABORT, 'holdfast: a change of an entry refused on purged'); END;
CREATE TRIGGER purged_kept AFTER DELETE ON purged
BEGIN SELECT RAISE(ABORT, 'holdfast: the removal of an entry refused on purged'); END;

-- Parents whose family has to be looked at: written with whatever gives reason to, by the same
-- transaction. No part of the ledger: a slow pass finds what is lost here. AUTOINCREMENT: a number
-- that was given again could be taken for a mark that a sweep has seen, and be removed unseen.
CREATE TABLE marks (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL
) STRICT;

CREATE TABLE queues (
    name TEXT PRIMARY KEY,
    paused_at INTEGER,
    paused_by TEXT,
    reason TEXT
) STRICT, WITHOUT ROWID;
CREATE TABLE queue_events (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    queue TEXT NOT NULL,
    type TEXT NOT NULL,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT,
    request_id TEXT UNIQUE
) STRICT;

-- Who serves which queues, for people who ask why a job does not run; no claim or sweep reads it,
-- and it does not belong to the ledger. Lists are JSON.
CREATE TABLE workers (
    name TEXT PRIMARY KEY,
    started_at INTEGER NOT NULL,
    seen_at INTEGER NOT NULL,
    stopped_at INTEGER,
    pid INTEGER NOT NULL,
    concurrency INTEGER NOT NULL,
    host TEXT NOT NULL,
    queues TEXT NOT NULL,
    capabilities TEXT NOT NULL,
    tasks TEXT NOT NULL
) STRICT, WITHOUT ROWID;
CREATE INDEX workers_seen ON workers (seen_at);

-- The terms that workers publish of their tasks, for those who submit by name; not in the ledger.
-- A tenant of '' means all. `body` is JSON.
CREATE TABLE task_terms (
    tenant TEXT NOT NULL,
    task TEXT NOT NULL,
    published_at INTEGER NOT NULL,
    body TEXT NOT NULL,
    PRIMARY KEY (tenant, task)
) STRICT, WITHOUT ROWID;

-- What handlers wrote by ctx.log, the newest lines of each job; not part of the ledger, and no worker
-- or sweep reads it. `at` is the clock of the worker.
CREATE TABLE logs (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    id BLOB NOT NULL,
    attempt INTEGER NOT NULL,
    at INTEGER NOT NULL,
    level INTEGER NOT NULL,
    message TEXT NOT NULL
) STRICT;
CREATE INDEX logs_id ON logs (id, position);

-- Summaries. differs from postgres: nobody else can be writing, so a row per state is kept as it
-- stands, and there are no deltas to fold.
CREATE TABLE counts (
    tenant TEXT NOT NULL,
    queue TEXT NOT NULL,
    state INTEGER NOT NULL,
    jobs INTEGER NOT NULL,
    PRIMARY KEY (tenant, queue, state)
) STRICT, WITHOUT ROWID;
