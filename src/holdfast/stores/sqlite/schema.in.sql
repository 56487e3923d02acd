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
    route TEXT AS ({{law.sqlite.route}}) VIRTUAL,
    lane INTEGER AS {{law.lane}} VIRTUAL,
    claim_order INTEGER AS ({{law.sqlite.claim_order}}) VIRTUAL,
    -- A running job past its timeout is its owner's to kill; if that fell silent, a lease passes.
    -- min() of a NULL is NULL here, so what is not there counts as the end of time.
    wake_at INTEGER AS (
        CASE WHEN finished_at IS NULL AND quarantined_at IS NULL THEN nullif(min(
            coalesce(deadline_at, 9223372036854775807),
            coalesce(CASE state WHEN {{state.claimed}} THEN timeout_at
                WHEN {{state.waiting}} THEN run_at END, 9223372036854775807)
        ), 9223372036854775807) END) VIRTUAL,
    live_parent_id BLOB AS (
        CASE WHEN finished_at IS NULL AND link_kind = {{link.child}} THEN parent_id END) VIRTUAL,
    CONSTRAINT id_is_uuid CHECK (length(id) = 16),
{{law.sqlite.job_checks}}
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
CREATE TRIGGER jobs_birth AFTER INSERT ON jobs WHEN {{law.illegal_birth}}
BEGIN SELECT RAISE(ABORT, 'holdfast: a job that was not submitted refused on jobs'); END;
CREATE TRIGGER jobs_move AFTER UPDATE OF {{law.moving}} ON jobs WHEN {{law.sqlite.illegal_move}}
BEGIN SELECT RAISE(ABORT, 'holdfast: an illegal move refused on jobs'); END;
CREATE TRIGGER jobs_frozen AFTER UPDATE OF {{law.frozen}} ON jobs
WHEN OLD.finished_at IS NOT NULL
BEGIN SELECT RAISE(ABORT, 'holdfast: a change of an outcome refused on jobs'); END;
CREATE TRIGGER jobs_retention AFTER UPDATE OF retention ON jobs
WHEN {{law.illegal_retention}}
BEGIN SELECT RAISE(ABORT, 'holdfast: an illegal move refused on jobs'); END;
CREATE TRIGGER jobs_terms AFTER UPDATE OF policy ON jobs
WHEN {{law.illegal_terms}}
BEGIN SELECT RAISE(ABORT, 'holdfast: a change of terms refused on jobs'); END;
CREATE TRIGGER jobs_fixed AFTER UPDATE OF {{law.fixed}} ON jobs
BEGIN SELECT RAISE(ABORT, 'holdfast: a change of what a submit fixes refused on jobs'); END;
CREATE TRIGGER jobs_kept AFTER DELETE ON jobs WHEN OLD.retention <> {{retention.cleaned}}
BEGIN SELECT RAISE(ABORT, 'holdfast: the removal of a job that is not cleaned refused on jobs'); END;

-- Which jobs a hold keeps from being claimed, so that they are found to lift it. A job that is not
-- admitted yet has the hold ''. differs from postgres: the one writer keeps it, not triggers.
CREATE TABLE holds (
    hold TEXT NOT NULL,
    id BLOB NOT NULL,
    PRIMARY KEY (hold, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX holds_id ON holds (id);

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
    CONSTRAINT legal_event CHECK ({{law.sqlite.event_check}}),
    CONSTRAINT first_event CHECK ((rev = 1) = (from_state IS NULL)),
    CONSTRAINT body_has_digest CHECK (body IS NULL OR digest IS NOT NULL)
) STRICT;
-- differs from postgres: there are no block ranges here by which the four common types could be
-- found, so that they are in this index too; it costs 2 of 35 µs a life.
CREATE INDEX events_type ON events (type, at);
-- What a request from outside led to: a repetition is found without reading the job's history.
CREATE INDEX events_request ON events (id, request_id)
    WHERE {{law.sqlite.requested}} AND request_id IS NOT NULL;
CREATE INDEX events_correlation ON events (correlation_id, id) WHERE correlation_id IS NOT NULL;

CREATE TRIGGER events_fixed AFTER UPDATE OF position, {{law.event_fixed}} ON events
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
    CONSTRAINT legal_beat CHECK ({{law.beat_check}})
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
    tasks TEXT NOT NULL,
    -- What its host has for commands, in all and now.
    cpus INTEGER,
    memory_mb INTEGER,
    free_cpus INTEGER,
    free_memory_mb INTEGER
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

-- Who may ask a server for what. A secret is not kept, only its SHA-256; `queues` is a JSON list,
-- and null, like a tenant that is null, means all. A token is revoked, never removed: it is
-- the name behind what it did. Ids are in the order of time.
CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    digest BLOB NOT NULL,
    role TEXT NOT NULL,
    tenant TEXT,
    queues TEXT,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    revoked_by TEXT,
    CONSTRAINT digest_is_sha256 CHECK (length(digest) = 32),
    CONSTRAINT revoked_by_somebody CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
) STRICT, WITHOUT ROWID;

-- Where to report the ends of jobs. A secret must be kept as it is, for messages are signed with
-- it; it is forgotten when the webhook is removed. `states` is a JSON list of codes; null, as of
-- the queue and the task, means all. Ids are in the order of time, and a tenant's own.
CREATE TABLE webhooks (
    id TEXT NOT NULL,
    tenant TEXT NOT NULL,
    url TEXT NOT NULL,
    secret TEXT,
    states TEXT,
    queue TEXT,
    task TEXT,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    removed_at INTEGER,
    removed_by TEXT,
    PRIMARY KEY (id, tenant),
    CONSTRAINT removed_by_somebody CHECK ((removed_at IS NULL) = (removed_by IS NULL)),
    CONSTRAINT secret_while_it_lives CHECK ((removed_at IS NULL) = (secret IS NOT NULL))
) STRICT, WITHOUT ROWID;
CREATE INDEX webhooks_live ON webhooks (id, tenant) WHERE removed_at IS NULL;

-- What was sent to become the files of jobs: its state, its size, and when it goes. The bytes are in
-- the place of blobs. `bytes` are written, `reserved` are promised to the one writer that there may
-- be at a time, and whatever moves `rev` was seen by nobody who compares with an older one. Ids are
-- in the order of time.
CREATE TABLE uploads (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    state TEXT NOT NULL,
    rev INTEGER NOT NULL DEFAULT 1,
    bytes INTEGER NOT NULL DEFAULT 0,
    reserved INTEGER NOT NULL DEFAULT 0,
    files INTEGER,
    digest TEXT,
    request_id TEXT,
    writer TEXT,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    written_at INTEGER,
    finalized_at INTEGER,
    moved_at INTEGER NOT NULL,
    moved_by TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    removed_at INTEGER,
    CONSTRAINT state_is_known CHECK (
        state IN ('uploading', 'finalized', 'consumed', 'expired', 'deleted')),
    CONSTRAINT bytes_are_counted CHECK (bytes >= 0 AND reserved >= 0),
    CONSTRAINT written_while_uploading CHECK (
        state = 'uploading' OR writer IS NULL AND reserved = 0),
    CONSTRAINT finalized_with_digest CHECK ((finalized_at IS NULL) = (digest IS NULL)),
    CONSTRAINT finalized_before_use CHECK (
        state NOT IN ('finalized', 'consumed') OR finalized_at IS NOT NULL),
    CONSTRAINT removed_after_the_end CHECK (
        removed_at IS NULL OR state IN ('expired', 'deleted') AND bytes = 0)
) STRICT, WITHOUT ROWID;
CREATE INDEX uploads_tenant ON uploads (tenant, id);
CREATE INDEX uploads_expires ON uploads (expires_at);
CREATE INDEX uploads_finalized ON uploads (id) WHERE state = 'finalized';

-- Which jobs name an upload. Written before the job is: a row without its job is of a submit that
-- was refused.
CREATE TABLE upload_jobs (
    upload TEXT NOT NULL,
    id BLOB NOT NULL,
    PRIMARY KEY (upload, id)
) STRICT, WITHOUT ROWID;

-- The parts of an upload and their sizes: single files by path, or '' for one archive of all.
CREATE TABLE upload_files (
    upload TEXT NOT NULL,
    path TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (upload, path)
) STRICT, WITHOUT ROWID;

-- The rules that were ever applied, by the digest of their text: jobs name those that judged them.
-- Which of them are applied now is in meta, under 'policy'.
CREATE TABLE policy_books (
    digest TEXT PRIMARY KEY,
    body TEXT NOT NULL,
    applied_at INTEGER NOT NULL,
    applied_by TEXT NOT NULL,
    reason TEXT
) STRICT, WITHOUT ROWID;
CREATE TRIGGER policy_books_fixed AFTER UPDATE OF digest, body ON policy_books
BEGIN SELECT RAISE(ABORT, 'holdfast: a change of rules refused on policy_books'); END;
CREATE TRIGGER policy_books_kept AFTER DELETE ON policy_books
BEGIN SELECT RAISE(ABORT, 'holdfast: the removal of rules refused on policy_books'); END;
-- When rules were applied or removed, and by whom.
CREATE TABLE policy_events (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    type TEXT NOT NULL,
    digest TEXT,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT
) STRICT;
CREATE TRIGGER policy_events_fixed AFTER UPDATE ON policy_events
BEGIN SELECT RAISE(ABORT, 'holdfast: a change of an entry refused on policy_events'); END;
CREATE TRIGGER policy_events_kept AFTER DELETE ON policy_events
BEGIN SELECT RAISE(ABORT, 'holdfast: the removal of an entry refused on policy_events'); END;

-- How far those have come who follow the tail of all events.
CREATE TABLE cursors (
    name TEXT PRIMARY KEY,
    cursor TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- Summaries. differs from postgres: nobody else can be writing, so a row per state is kept as it
-- stands, and there are no deltas to fold.
CREATE TABLE counts (
    tenant TEXT NOT NULL,
    queue TEXT NOT NULL,
    state INTEGER NOT NULL,
    jobs INTEGER NOT NULL,
    PRIMARY KEY (tenant, queue, state)
) STRICT, WITHOUT ROWID;
