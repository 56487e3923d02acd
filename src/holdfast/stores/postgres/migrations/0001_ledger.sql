-- Holdfast on PostgreSQL: a ledger of events, and one narrow row per job that is their projection.
-- Times are microseconds since 1970 UTC. Codes are listed in docs/lifecycle.md; the views
-- jobs_readable and events_readable spell them out.

CREATE TABLE meta (
    key text PRIMARY KEY,
    value text NOT NULL
);
INSERT INTO meta VALUES ('epoch', '1'), ('sealing', 'off'), ('tail_ends', '{}');

-- Which cluster this is; numbers of transactions can be compared only within one. Where a service
-- does not let it be read, all are taken for one.
CREATE FUNCTION holdfast_cluster() RETURNS text LANGUAGE plpgsql STABLE AS
$$ BEGIN
    RETURN (SELECT system_identifier::text FROM pg_control_system());
EXCEPTION WHEN insufficient_privilege OR undefined_function OR feature_not_supported THEN
    RETURN 'unknown';
END $$;
INSERT INTO meta SELECT 'cluster', holdfast_cluster();
-- Whether the database was restored, replicated or upgraded into another cluster.
CREATE FUNCTION holdfast_moved() RETURNS boolean LANGUAGE sql STABLE AS
$$ SELECT holdfast_cluster() NOT IN ('unknown', value) AND value <> 'unknown'
    FROM meta WHERE key = 'cluster' $$;

-- What keeps the clock from going back: see holdfast/lifecycle/clock.py. Read with every look at
-- the clock, so written rarely: a look reads past versions that a long transaction keeps.
CREATE TABLE store_clock (
    one boolean PRIMARY KEY DEFAULT true,
    mark bigint NOT NULL DEFAULT 0,
    shift bigint NOT NULL DEFAULT 0,
    since bigint NOT NULL DEFAULT 0,
    CONSTRAINT one_row CHECK (one)
) WITH (fillfactor = 10);
INSERT INTO store_clock DEFAULT VALUES;
-- When the machine's clock was found to be set back.
CREATE TABLE clock_steps (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    by bigint NOT NULL
);

-- The server's clock. Volatile, not now(): a lock wait must not turn time back.
CREATE FUNCTION holdfast_machine_now() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint $$;

-- The only clock that judges: the server's, which may be set; it continues from the mark. The one
-- place where SQL restates ClockState.now. Tests replace it.
CREATE FUNCTION holdfast_now() RETURNS bigint LANGUAGE plpgsql VOLATILE AS
$$ DECLARE
    c store_clock;
    machine bigint;
    now bigint;
BEGIN
    -- The machine's clock comes second: read first, it would be behind a mark that is written now.
    SELECT * INTO c FROM store_clock WHERE one;
    machine := holdfast_machine_now();
    now := machine + greatest(c.shift - greatest(machine - c.since, 0) / 10, 0);
    -- A clock at the mark by itself was set right again: with the shift it would be far ahead.
    IF machine >= c.mark AND now > c.mark + 60000000 THEN
        now := machine;
    END IF;
    RETURN CASE WHEN now >= c.mark THEN now WHEN now >= c.mark - 1000000 THEN c.mark
        ELSE c.mark + 5000000 END;
END $$;

-- A span (below the horizon) counts from the base; an instant is used as it is.
CREATE FUNCTION holdfast_time(value bigint, base bigint) RETURNS bigint
LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE WHEN value < 500000000000000 THEN base + value ELSE value END $$;

CREATE FUNCTION holdfast_refuse() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
    RAISE EXCEPTION 'holdfast: % refused on %', TG_ARGV[0], TG_TABLE_NAME
        USING ERRCODE = 'integrity_constraint_violation',
              DETAIL = to_jsonb(CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END)::text;
END $$;

-- Content-addressed and append-only: a job row names its policy and needs by one number.
CREATE TABLE policies (
    id bigint PRIMARY KEY,
    body text NOT NULL,
    lease bigint NOT NULL,
    running_lease bigint NOT NULL,
    start_timeout bigint
);
-- A set of needs that no job has is forgotten some time after it was last named.
CREATE TABLE needs (
    id bigint PRIMARY KEY,
    body text NOT NULL,
    used_at bigint NOT NULL DEFAULT 0
);
INSERT INTO needs (id, body) VALUES (0, '[]');

-- What follows from other columns of a job row: the order in which it is claimed, when a sweep has
-- to look at it, whose live child it is. PostgreSQL puts their text into the statement that calls
-- them, where a state that is a constant leaves little of it.
CREATE FUNCTION holdfast_claim_order(state smallint, held_by text, quarantined_at bigint,
    run_at bigint, priority smallint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE WHEN (state) = ANY ('{2,6,7}'::smallint[]) AND held_by IS NULL AND quarantined_at IS NULL THEN run_at + CASE priority WHEN 1 THEN 0 WHEN 2 THEN 300000000 WHEN 3 THEN 1800000000 END END $$;
CREATE FUNCTION holdfast_wake_at(state smallint, quarantined_at bigint, deadline_at bigint,
    timeout_at bigint, run_at bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE WHEN state < 8 AND quarantined_at IS NULL THEN least(deadline_at, CASE state WHEN 3 THEN timeout_at WHEN 5 THEN run_at END) END $$;
CREATE FUNCTION holdfast_live_parent_id(state smallint, link_kind smallint, parent_id uuid)
RETURNS uuid LANGUAGE sql IMMUTABLE PARALLEL SAFE AS
$$ SELECT CASE WHEN state < 8 AND link_kind = 1 THEN parent_id END $$;

-- Columns that every row has come first, the widest first; then those that most rows have at some
-- time, then the others: what PostgreSQL has to read of a row, and the row itself, is short.
CREATE TABLE jobs (
    -- Half-empty: a claim adds an entry beside the one that a submit made.
    id uuid PRIMARY KEY WITH (fillfactor = 50),
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL,
    needs bigint NOT NULL,
    policy bigint NOT NULL,
    rev integer NOT NULL,
    beats integer NOT NULL DEFAULT 0,
    attempt integer NOT NULL DEFAULT 0,
    failures integer NOT NULL DEFAULT 0,
    releases integer NOT NULL DEFAULT 0,
    state smallint NOT NULL,
    kind smallint NOT NULL,
    priority smallint NOT NULL,
    key_kinds smallint NOT NULL DEFAULT 0,
    retention smallint NOT NULL DEFAULT 1,
    version smallint NOT NULL DEFAULT 1,
    run_at bigint,
    tenant text NOT NULL,
    task text NOT NULL,
    queue text NOT NULL,
    task_version text,
    -- What follows from other columns. Written by whatever changes those, with the functions above:
    -- for a GENERATED column PostgreSQL copies the row once more, at each write of it.
    claim_order bigint,
    wake_at bigint,
    -- NULL before and after the finish of a job that is nobody's child, which stays a HOT update.
    live_parent_id uuid,
    lease_expires_at bigint,
    started_at bigint,
    finished_at bigint,
    owner text,
    epoch integer,
    result_digest bytea,
    timeout_at bigint,
    deadline_at bigint,
    cpus integer,
    memory_mb integer,
    step_index integer,
    exit_code integer,
    pending_signals integer,
    link_kind smallint,
    cancel_requested smallint,
    letter smallint,
    parent_id uuid,
    job_id text,
    workflow_id text,
    held_by text,
    wait_for text,
    late_results text,
    lost_owner text,
    error_code text,
    result_ptr text,
    -- A row that could not be read or moved: kept out of claims and sweeps until it is repaired. No
    -- part of the projection: no event records it.
    quarantined_at bigint,
    quarantine text
-- A claim reads past the dead. So a vacuum comes by their number, which is bounded, and not by their
-- share of a table that keeps what is finished.
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 20000);

-- A row that is not plain, tested by each rule; the answer to one that breaks some names them.
CREATE FUNCTION holdfast_lawful(j jobs) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN
    IF (j.state BETWEEN 1 AND 13)
        AND ((j.owner IS NOT NULL) = (j.state BETWEEN 3 AND 4))
        AND ((j.lease_expires_at IS NOT NULL) = (j.state BETWEEN 3 AND 4))
        AND ((j.epoch IS NOT NULL) = (j.state BETWEEN 3 AND 4))
        AND (j.timeout_at IS NULL OR j.state BETWEEN 3 AND 4)
        AND ((j.result_digest IS NOT NULL) = (j.state = 8))
        AND ((j.error_code IS NOT NULL) = (j.state >= 9))
        AND ((j.finished_at IS NOT NULL) = (j.state >= 8))
        AND (j.started_at IS NOT NULL OR j.state <> 4)
        AND (j.started_at IS NULL OR (j.state) = ANY ('{2,4,5,6,7,8,9,10,11,12,13}'::smallint[]))
        AND ((j.wait_for IS NOT NULL) = (j.state = 5))
        AND (j.run_at IS NOT NULL OR (j.state) <> ALL ('{1,2,6,7}'::smallint[]))
        AND (j.held_by IS NULL OR (j.state) = ANY ('{1,2,6,7}'::smallint[]))
        AND (j.cancel_requested IS NULL OR (j.state) = ANY ('{3,4,8,9,10,11,12,13}'::smallint[]))
        AND (j.letter IS NOT NULL OR j.state <> 13)
        AND (j.letter IS NULL OR (j.state) = ANY ('{9,13}'::smallint[]))
        AND (j.exit_code IS NULL OR j.state >= 8)
        AND (j.result_ptr IS NULL OR j.state >= 8)
        AND (j.late_results IS NULL OR j.state >= 8)
        AND (j.lost_owner IS NULL OR (j.state) = ANY ('{2,7,9,10,11,13}'::smallint[]))
        AND (j.retention = 1 OR j.state >= 8)
        AND (CASE WHEN (j.state) = ANY ('{1,12}'::smallint[]) THEN j.attempt = 0 WHEN j.state BETWEEN 3 AND 8 THEN j.attempt > 0 ELSE j.attempt >= 0 END)
        AND (j.rev >= 1 AND j.failures BETWEEN 0 AND j.attempt AND j.releases >= 0 AND j.beats >= 0)
        AND (j.beats = 0 OR j.state BETWEEN 3 AND 4)
        AND (j.claim_order IS NOT DISTINCT FROM CASE WHEN (j.state) = ANY ('{2,6,7}'::smallint[]) AND j.held_by IS NULL AND j.quarantined_at IS NULL THEN j.run_at + CASE j.priority WHEN 1 THEN 0 WHEN 2 THEN 300000000 WHEN 3 THEN 1800000000 END END)
        AND (j.wake_at IS NOT DISTINCT FROM CASE WHEN j.state < 8 AND j.quarantined_at IS NULL THEN least(j.deadline_at, CASE j.state WHEN 3 THEN j.timeout_at WHEN 5 THEN j.run_at END) END)
        AND (j.live_parent_id IS NOT DISTINCT FROM CASE WHEN j.state < 8 AND j.link_kind = 1 THEN j.parent_id END) THEN
        RETURN true;
    END IF;
    RAISE EXCEPTION 'holdfast: a job row that breaks % refused on jobs', concat_ws(', ',
        CASE WHEN NOT (j.state BETWEEN 1 AND 13) THEN 'state_known' END,
        CASE WHEN NOT ((j.owner IS NOT NULL) = (j.state BETWEEN 3 AND 4)) THEN 'owner_by_state' END,
        CASE WHEN NOT ((j.lease_expires_at IS NOT NULL) = (j.state BETWEEN 3 AND 4)) THEN 'lease_expires_at_by_state' END,
        CASE WHEN NOT ((j.epoch IS NOT NULL) = (j.state BETWEEN 3 AND 4)) THEN 'epoch_by_state' END,
        CASE WHEN NOT (j.timeout_at IS NULL OR j.state BETWEEN 3 AND 4) THEN 'timeout_at_only' END,
        CASE WHEN NOT ((j.result_digest IS NOT NULL) = (j.state = 8)) THEN 'result_digest_by_state' END,
        CASE WHEN NOT ((j.error_code IS NOT NULL) = (j.state >= 9)) THEN 'error_code_by_state' END,
        CASE WHEN NOT ((j.finished_at IS NOT NULL) = (j.state >= 8)) THEN 'finished_at_by_state' END,
        CASE WHEN NOT (j.started_at IS NOT NULL OR j.state <> 4) THEN 'started_at_always' END,
        CASE WHEN NOT (j.started_at IS NULL OR (j.state) = ANY ('{2,4,5,6,7,8,9,10,11,12,13}'::smallint[])) THEN 'started_at_only' END,
        CASE WHEN NOT ((j.wait_for IS NOT NULL) = (j.state = 5)) THEN 'wait_for_by_state' END,
        CASE WHEN NOT (j.run_at IS NOT NULL OR (j.state) <> ALL ('{1,2,6,7}'::smallint[])) THEN 'run_at_always' END,
        CASE WHEN NOT (j.held_by IS NULL OR (j.state) = ANY ('{1,2,6,7}'::smallint[])) THEN 'held_by_only' END,
        CASE WHEN NOT (j.cancel_requested IS NULL OR (j.state) = ANY ('{3,4,8,9,10,11,12,13}'::smallint[])) THEN 'cancel_requested_only' END,
        CASE WHEN NOT (j.letter IS NOT NULL OR j.state <> 13) THEN 'letter_always' END,
        CASE WHEN NOT (j.letter IS NULL OR (j.state) = ANY ('{9,13}'::smallint[])) THEN 'letter_only' END,
        CASE WHEN NOT (j.exit_code IS NULL OR j.state >= 8) THEN 'exit_code_only' END,
        CASE WHEN NOT (j.result_ptr IS NULL OR j.state >= 8) THEN 'result_ptr_only' END,
        CASE WHEN NOT (j.late_results IS NULL OR j.state >= 8) THEN 'late_results_only' END,
        CASE WHEN NOT (j.lost_owner IS NULL OR (j.state) = ANY ('{2,7,9,10,11,13}'::smallint[])) THEN 'lost_owner_only' END,
        CASE WHEN NOT (j.retention = 1 OR j.state >= 8) THEN 'retention_terminal' END,
        CASE WHEN NOT (CASE WHEN (j.state) = ANY ('{1,12}'::smallint[]) THEN j.attempt = 0 WHEN j.state BETWEEN 3 AND 8 THEN j.attempt > 0 ELSE j.attempt >= 0 END) THEN 'attempt_by_state' END,
        CASE WHEN NOT (j.rev >= 1 AND j.failures BETWEEN 0 AND j.attempt AND j.releases >= 0 AND j.beats >= 0) THEN 'counters' END,
        CASE WHEN NOT (j.beats = 0 OR j.state BETWEEN 3 AND 4) THEN 'beats_owned' END,
        CASE WHEN NOT (j.claim_order IS NOT DISTINCT FROM CASE WHEN (j.state) = ANY ('{2,6,7}'::smallint[]) AND j.held_by IS NULL AND j.quarantined_at IS NULL THEN j.run_at + CASE j.priority WHEN 1 THEN 0 WHEN 2 THEN 300000000 WHEN 3 THEN 1800000000 END END) THEN 'claim_order_derived' END,
        CASE WHEN NOT (j.wake_at IS NOT DISTINCT FROM CASE WHEN j.state < 8 AND j.quarantined_at IS NULL THEN least(j.deadline_at, CASE j.state WHEN 3 THEN j.timeout_at WHEN 5 THEN j.run_at END) END) THEN 'wake_at_derived' END,
        CASE WHEN NOT (j.live_parent_id IS NOT DISTINCT FROM CASE WHEN j.state < 8 AND j.link_kind = 1 THEN j.parent_id END) THEN 'live_parent_id_derived' END)
        USING ERRCODE = 'check_violation', DETAIL = to_jsonb(j)::text;
END $$;
-- Most rows are plain. The text of a CHECK is read again for every statement, a function's is not.
ALTER TABLE jobs ADD CONSTRAINT lawful CHECK (CASE
    WHEN num_nonnulls(timeout_at, error_code, wait_for, held_by, letter, lost_owner, quarantined_at, deadline_at, link_kind, cancel_requested, exit_code, result_ptr, late_results, wake_at, live_parent_id) = 0 AND retention = 1 AND rev >= 1 AND failures | releases | beats = 0
        AND CASE state WHEN 8 THEN num_nonnulls(owner, lease_expires_at, epoch, claim_order) + num_nulls(result_digest, finished_at) = 0 AND attempt > 0
            WHEN 3 THEN num_nonnulls(result_digest, finished_at, started_at, claim_order) + num_nulls(owner, lease_expires_at, epoch) = 0 AND attempt > 0
            WHEN 2 THEN num_nonnulls(owner, lease_expires_at, epoch, result_digest, finished_at) + num_nulls(run_at) = 0 AND attempt >= 0 AND claim_order = run_at + CASE priority WHEN 1 THEN 0 WHEN 2 THEN 300000000 WHEN 3 THEN 1800000000 END
            WHEN 4 THEN num_nonnulls(result_digest, finished_at, claim_order) + num_nulls(owner, lease_expires_at, epoch, started_at) = 0 AND attempt > 0 ELSE false END
    THEN true ELSE holdfast_lawful(jobs) END);

-- Half-empty pages and no index on what a finish changes: so a finish is a HOT update.
-- A claim finds a job by its route, the task with its version, and its lane: needs, class and
-- whether the tenant is the default one. As expressions they cost the row nothing. No two entries
-- are equal: to look for some on every full page costs 3 % of a submit.
CREATE INDEX jobs_claim ON jobs
    (queue, (task || '@' || coalesce(task_version, '') COLLATE "C"), (needs | priority | CASE WHEN tenant = 'default' THEN 0 ELSE 4 END), claim_order, id)
    WITH (deduplicate_items = off) WHERE claim_order IS NOT NULL;
-- For workers of one tenant. The default tenant's jobs have lanes of their own in the other index.
CREATE INDEX jobs_claim_tenant ON jobs
    (tenant, queue, (task || '@' || coalesce(task_version, '') COLLATE "C"), (needs | priority | CASE WHEN tenant = 'default' THEN 0 ELSE 4 END), claim_order, id)
    WITH (deduplicate_items = off) WHERE claim_order IS NOT NULL AND tenant <> 'default';
-- Which tenants have jobs with which needs, for limits and to forget what nobody needs.
CREATE INDEX jobs_needs ON jobs (needs, tenant) WHERE needs <> 0;
CREATE INDEX jobs_wake ON jobs (wake_at) WHERE wake_at IS NOT NULL;
CREATE INDEX jobs_parent ON jobs (parent_id, id) WHERE parent_id IS NOT NULL;
CREATE INDEX jobs_live_children ON jobs (live_parent_id, id) WHERE live_parent_id IS NOT NULL;
CREATE INDEX jobs_gathering ON jobs (id) WHERE left(wait_for, 17) = 'holdfast:children';
CREATE INDEX jobs_workflow ON jobs (workflow_id, id) WHERE workflow_id IS NOT NULL;
CREATE INDEX jobs_error ON jobs (error_code, id) WHERE error_code IS NOT NULL;
CREATE INDEX jobs_quarantined ON jobs (id) WHERE quarantined_at IS NOT NULL;
CREATE INDEX jobs_letter ON jobs (letter, id) WHERE letter IS NOT NULL;
-- For lists. The tenant and the queue of most jobs are left out: a look at the newest jobs meets
-- them, and an installation that uses no others pays for neither index.
CREATE INDEX jobs_tenant ON jobs (tenant, id) WHERE tenant <> 'default';
CREATE INDEX jobs_queue ON jobs (queue, id) WHERE queue <> 'default';

-- AFTER, not BEFORE: a BEFORE trigger locks every row once more (and logs that) to look at it.
CREATE TRIGGER jobs_birth AFTER INSERT ON jobs FOR EACH ROW
    WHEN (NEW.rev <> 1 OR NEW.attempt <> 0 OR NEW.releases <> 0 OR NEW.state NOT IN (1, 2)
    OR NEW.updated_at <> NEW.created_at OR NEW.started_at IS NOT NULL
    OR NEW.pending_signals IS NOT NULL)
    EXECUTE FUNCTION holdfast_refuse('a job that was not submitted');
CREATE TRIGGER jobs_move AFTER UPDATE OF rev, state, attempt, failures, releases, epoch, owner, lease_expires_at, timeout_at, run_at, held_by, cancel_requested, wait_for, pending_signals, late_results, lost_owner, updated_at, started_at, finished_at, result_digest, error_code, exit_code, result_ptr, letter, retention, beats, version ON jobs FOR EACH ROW
    WHEN (NOT CASE NEW.rev - OLD.rev
        WHEN 1 THEN (OLD.state * 16 + NEW.state) = ANY ('{17,18,26,27,28,29,34,35,42,43,44,45,51,52,54,55,57,58,59,61,68,69,70,71,72,73,74,75,77,82,85,90,91,99,102,106,107,109,114,115,119,121,122,123,125,136,153,170,187,204,221}'::smallint[])
        ELSE NEW.rev > OLD.rev AND (OLD.state * 16 + NEW.state) = ANY ('{18,52,53,54,55,56,57,58,59,61,68,69,70,71,72,73,74,75,77,82}'::smallint[]) END
    OR NEW.attempt <> OLD.attempt + CASE WHEN NEW.state = 3 AND OLD.state <> 3 THEN 1 ELSE 0 END
    OR NEW.updated_at < OLD.updated_at
    OR OLD.retention = 3)
    EXECUTE FUNCTION holdfast_refuse('an illegal move');
-- A function compares, not WHEN: that would be read again for every statement, and few rows are.
CREATE FUNCTION holdfast_keep_outcome() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
    IF NEW.state IS DISTINCT FROM OLD.state
        OR NEW.attempt IS DISTINCT FROM OLD.attempt
        OR NEW.failures IS DISTINCT FROM OLD.failures
        OR NEW.releases IS DISTINCT FROM OLD.releases
        OR NEW.started_at IS DISTINCT FROM OLD.started_at
        OR NEW.finished_at IS DISTINCT FROM OLD.finished_at
        OR NEW.run_at IS DISTINCT FROM OLD.run_at
        OR NEW.cancel_requested IS DISTINCT FROM OLD.cancel_requested
        OR NEW.pending_signals IS DISTINCT FROM OLD.pending_signals
        OR NEW.lost_owner IS DISTINCT FROM OLD.lost_owner
        OR NEW.result_digest IS DISTINCT FROM OLD.result_digest
        OR NEW.error_code IS DISTINCT FROM OLD.error_code
        OR NEW.exit_code IS DISTINCT FROM OLD.exit_code
        OR NEW.result_ptr IS DISTINCT FROM OLD.result_ptr THEN
        RAISE EXCEPTION 'holdfast: a change of an outcome refused on jobs'
            USING ERRCODE = 'integrity_constraint_violation', DETAIL = to_jsonb(NEW)::text;
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER jobs_frozen AFTER UPDATE OF failures, releases, started_at, finished_at, run_at, cancel_requested, pending_signals, lost_owner, result_digest, error_code, exit_code, result_ptr ON jobs FOR EACH ROW
    WHEN (OLD.finished_at IS NOT NULL)
    EXECUTE FUNCTION holdfast_keep_outcome();
CREATE TRIGGER jobs_retention AFTER UPDATE OF retention ON jobs FOR EACH ROW
    WHEN ((NEW.retention <> OLD.retention AND NOT (OLD.finished_at IS NOT NULL AND NEW.retention = OLD.retention + 1)))
    EXECUTE FUNCTION holdfast_refuse('an illegal move');
CREATE TRIGGER jobs_terms AFTER UPDATE OF policy ON jobs FOR EACH ROW
    WHEN (NEW.policy <> OLD.policy AND NOT (OLD.state = 3 OR OLD.state = 1 AND NEW.state = 2))
    EXECUTE FUNCTION holdfast_refuse('a change of terms');
CREATE TRIGGER jobs_fixed AFTER UPDATE OF id, tenant, job_id, kind, task, task_version, queue, priority, needs, cpus, memory_mb, parent_id, link_kind, workflow_id, step_index, key_kinds, deadline_at, created_at ON jobs FOR EACH ROW
    EXECUTE FUNCTION holdfast_refuse('a change of what a submit fixes');
CREATE TRIGGER jobs_kept AFTER DELETE ON jobs FOR EACH ROW
    WHEN (OLD.retention <> 3)
    EXECUTE FUNCTION holdfast_refuse('the removal of a job that is not cleaned');

-- Whether an event may lead from one state to another; see holdfast_lawful for why a function.
CREATE FUNCTION holdfast_legal_event(type smallint, from_state smallint, to_state smallint)
RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN
    RETURN (type * 256 + coalesce(from_state, 0) * 16 + to_state) = ANY ('{257,258,547,611,627,820,1096,1810,2076,2092,2321,2338,2406,2423,2577,2594,2662,2679,2833,2850,2918,2935,3124,3140,3396,3652,3908,4165,4434,4665,4681,4729,4918,4934,5175,5191,5431,5447,5746,5939,5956,6170,6186,6202,6218,6234,6250,6266,6427,6443,6459,6475,6491,6507,6523,6685,6701,6717,6733,6765,6781,6929,6946,6963,6980,6997,7014,7031,7304,7321,7338,7355,7372,7389,7560,7577,7594,7611,7628,7645,7833,7901,8089,8157,8328,8345,8362,8379,8396,8413,8584,8601,8618,8635,8652,8669,8772,9011,9233}'::smallint[]) AND from_state BETWEEN 1 AND 15 AND to_state BETWEEN 1 AND 15;
END $$;
CREATE TABLE events (
    id uuid NOT NULL,
    at bigint NOT NULL,
    xid bigint NOT NULL DEFAULT txid_current(),
    rev integer NOT NULL,
    attempt integer NOT NULL,
    beats integer NOT NULL DEFAULT 0,
    type smallint NOT NULL,
    to_state smallint NOT NULL,
    version smallint NOT NULL DEFAULT 1,
    from_state smallint,
    actor text NOT NULL,
    lease_expires_at bigint,
    request_id text,
    run_at bigint,
    data text,
    body text,
    digest bytea,
    deadline_at bigint,
    reason text,
    correlation_id text,
    seal bytea,
    PRIMARY KEY (id, rev),
    CONSTRAINT legal_event CHECK (CASE WHEN (type * 8589934592 + coalesce(from_state * 65536, 2147483648) + to_state) = ANY ('{10737418242,17180000259,25770000388,34360000520}'::bigint[]) THEN true
        ELSE holdfast_legal_event(type, from_state, to_state) END),
    CONSTRAINT first_event CHECK ((rev = 1) = (from_state IS NULL)),
    CONSTRAINT body_has_digest CHECK (body IS NULL OR digest IS NOT NULL)
-- Only a vacuum enters new events into their block ranges; until then each read of the tail reads
-- them all. So it comes by their number, which is bounded, and not by their share of the table.
) WITH (autovacuum_vacuum_insert_scale_factor = 0, autovacuum_vacuum_insert_threshold = 50000);
-- One for both: each search may use either column, and every event pays for one index only.
CREATE INDEX events_ranges ON events USING brin (at, xid) WITH (pages_per_range = 32);
CREATE INDEX events_type ON events (type, at) WHERE type > 4;
-- What a request from outside led to: a repetition is found without reading the job's history.
CREATE INDEX events_request ON events (id, request_id)
    WHERE (type) = ANY ('{9,10,11,22,23,24,27,29,30,31,36}'::smallint[]) AND request_id IS NOT NULL;
CREATE INDEX events_correlation ON events (correlation_id, id) WHERE correlation_id IS NOT NULL;

CREATE TRIGGER events_fixed AFTER UPDATE OF xid, id, rev, type, from_state, to_state, at, attempt, beats, lease_expires_at, run_at, deadline_at, version, actor, request_id, reason, correlation_id, data, digest ON events FOR EACH ROW
    EXECUTE FUNCTION holdfast_refuse('a change of an event');
CREATE TRIGGER events_erase AFTER UPDATE OF body ON events FOR EACH ROW
    WHEN (NEW.body IS NOT NULL)
    EXECUTE FUNCTION holdfast_refuse('a change of a body other than its erasure');
CREATE TRIGGER events_sealed AFTER UPDATE OF seal ON events FOR EACH ROW
    EXECUTE FUNCTION holdfast_refuse('a change of a seal');
-- A whole old job may be purged, its row first; an event alone may not.
CREATE FUNCTION holdfast_keep_events() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
    IF EXISTS (SELECT 1 FROM jobs WHERE id = OLD.id) THEN
        RAISE EXCEPTION 'holdfast: the removal of an event of a job refused'
            USING ERRCODE = 'integrity_constraint_violation';
    END IF;
    RETURN OLD;
END $$;
CREATE TRIGGER events_kept AFTER DELETE ON events FOR EACH ROW
    EXECUTE FUNCTION holdfast_keep_events();

-- Start a new lineage of positions, above all that were given before (`events.xid`).
CREATE FUNCTION holdfast_begin_lineage(only_if_moved boolean) RETURNS void LANGUAGE plpgsql AS
$$ DECLARE
    ends bigint[];
    moved boolean;
    old_base bigint;
    new_base bigint;
    ended bigint;
    place record;
BEGIN
    -- A writer of events gets its position from the column's default: all writers must have ended.
    LOCK TABLE events IN ACCESS EXCLUSIVE MODE;
    moved := holdfast_moved();
    IF only_if_moved AND NOT moved THEN RETURN; END IF;
    SELECT value::bigint[] INTO ends FROM meta WHERE key = 'tail_ends';
    old_base := cardinality(ends) * 281474976710656;
    new_base := old_base + 281474976710656;
    IF moved THEN
        -- What was written here before the move was noticed has a number of a transaction of this
        -- cluster, the one that made the row; what came with the move has not.
        ALTER TABLE events DISABLE TRIGGER events_fixed;
        UPDATE events SET xid = xid + 281474976710656
        WHERE xid >= old_base AND xid - old_base < txid_current()
            AND (xid - old_base) % 4294967296 = xmin::text::bigint;
        ALTER TABLE events ENABLE TRIGGER events_fixed;
        SELECT max(xid) INTO ended FROM events WHERE xid < new_base;
        -- Replication does not carry where sequences are.
        FOR place IN SELECT attrelid::regclass::text AS table_name, attname AS column_name
            FROM pg_attribute JOIN pg_class AS c ON c.oid = attrelid
            WHERE relnamespace = quote_ident(current_schema())::regnamespace AND attidentity <> ''
        LOOP
            EXECUTE format('SELECT setval(pg_get_serial_sequence(%1$L, %2$L), greatest('
                '(SELECT max(%2$I) FROM %1$s), nextval(pg_get_serial_sequence(%1$L, %2$L))))',
                place.table_name, place.column_name);
        END LOOP;
        UPDATE meta SET value = holdfast_cluster() WHERE key = 'cluster';
    ELSE
        ended := old_base + txid_current();
    END IF;
    UPDATE meta SET value = (ends || coalesce(ended, old_base))::text WHERE key = 'tail_ends';
    EXECUTE format('ALTER TABLE events ALTER xid SET DEFAULT txid_current() + %s', new_base);
END $$;

-- Heartbeats, kept apart so that they can be dropped by age.
CREATE TABLE beats (
    id uuid NOT NULL,
    at bigint NOT NULL,
    lease_expires_at bigint NOT NULL,
    rev integer NOT NULL,
    attempt integer NOT NULL,
    type smallint NOT NULL,
    state smallint NOT NULL,
    actor text NOT NULL,
    request_id text,
    reason text,
    seal bytea,
    PRIMARY KEY (id, rev),
    CONSTRAINT legal_beat CHECK (type IN (5, 6) AND state IN (3, 4))
);
CREATE INDEX beats_at ON beats (at);
CREATE TRIGGER beats_fixed AFTER UPDATE ON beats FOR EACH ROW
    EXECUTE FUNCTION holdfast_refuse('a change of a heartbeat');

-- Optional sealing: a hash chain over each job's events; off until `holdfast seal on`.
-- The bytes are those of holdfast/lifecycle/seal.py: each column with its length, NULL as "-".
CREATE FUNCTION holdfast_netstring(value text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT coalesce(length(value) || ':' || value, '-') $$;
-- Not LANGUAGE sql: that would be planned again for every event, which costs 50 times as much.
CREATE FUNCTION holdfast_seal(previous bytea, e events) RETURNS bytea LANGUAGE plpgsql IMMUTABLE AS
$$ BEGIN RETURN sha256(coalesce(previous, ''::bytea) || convert_to(
    holdfast_netstring(replace(e.id::text, '-', '')) || holdfast_netstring(e.rev::text)
    || holdfast_netstring(e.type::text) || holdfast_netstring(e.from_state::text)
    || holdfast_netstring(e.to_state::text) || holdfast_netstring(e.at::text)
    || holdfast_netstring(e.attempt::text) || holdfast_netstring(e.beats::text)
    || holdfast_netstring(e.lease_expires_at::text) || holdfast_netstring(e.run_at::text)
    || holdfast_netstring(e.deadline_at::text) || holdfast_netstring(e.version::text)
    || holdfast_netstring(e.actor) || holdfast_netstring(e.request_id)
    || holdfast_netstring(e.reason) || holdfast_netstring(e.correlation_id)
    || holdfast_netstring(e.data) || holdfast_netstring(encode(e.digest, 'hex')), 'UTF8')); END $$;
CREATE FUNCTION holdfast_seal_event() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
    -- Volatile, so that it sees the events that this very statement has inserted before.
    NEW.seal := holdfast_seal(
        (SELECT seal FROM events WHERE id = NEW.id AND rev < NEW.rev ORDER BY rev DESC LIMIT 1),
        NEW);
    RETURN NEW;
END $$;
CREATE FUNCTION holdfast_seal_beat() RETURNS trigger LANGUAGE plpgsql AS
$$ DECLARE e events;
BEGIN
    e.id := NEW.id; e.rev := NEW.rev; e.type := NEW.type; e.from_state := NEW.state;
    e.to_state := NEW.state; e.at := NEW.at; e.attempt := NEW.attempt; e.beats := 0;
    e.lease_expires_at := NEW.lease_expires_at; e.version := 1; e.actor := NEW.actor;
    e.request_id := NEW.request_id; e.reason := NEW.reason;
    NEW.seal := holdfast_seal(
        (SELECT seal FROM events WHERE id = NEW.id AND rev < NEW.rev ORDER BY rev DESC LIMIT 1), e);
    RETURN NEW;
END $$;
CREATE TRIGGER events_seal BEFORE INSERT ON events FOR EACH ROW
    EXECUTE FUNCTION holdfast_seal_event();
ALTER TABLE events DISABLE TRIGGER events_seal;
CREATE TRIGGER beats_seal BEFORE INSERT ON beats FOR EACH ROW
    EXECUTE FUNCTION holdfast_seal_beat();
ALTER TABLE beats DISABLE TRIGGER beats_seal;

-- Signals that no wait has consumed, by the revision of the event that brought each. The job row
-- counts them: jobs without any are read without a look in here.
CREATE TABLE signals (
    id uuid NOT NULL,
    rev integer NOT NULL,
    name text NOT NULL,
    PRIMARY KEY (id, rev)
);

-- One row per claim that took something: it finds leases that may have passed, settles a claim
-- whose reply was lost, and lists what an owner holds, without an index that every finish changes.
CREATE TABLE claims (
    request_id text PRIMARY KEY,
    at bigint NOT NULL,
    expires_at bigint NOT NULL,
    epoch integer NOT NULL,
    owner text NOT NULL,
    ids uuid[] NOT NULL,
    -- False once nothing of it is held, as its owner or a sweep has seen: it is remembered only.
    held boolean NOT NULL DEFAULT true
);
-- Long but random: to try to compress them costs 4 % of a claim.
ALTER TABLE claims ALTER ids SET STORAGE EXTERNAL;
CREATE INDEX claims_expires ON claims (expires_at);
CREATE INDEX claims_owner ON claims (owner) WHERE held;
CREATE INDEX claims_epoch ON claims (epoch);

CREATE TABLE keys (
    tenant text NOT NULL,
    kind smallint NOT NULL,
    key text NOT NULL,
    id uuid NOT NULL,
    digest bytea NOT NULL,
    PRIMARY KEY (tenant, kind, key)
);
CREATE INDEX keys_id ON keys (id);

-- Old jobs that were removed whole: an entry for each batch, and each job's id and tenant, so that
-- a request for it gets an answer, and its job_id or request_id never makes another job.
CREATE TABLE purges (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    at bigint NOT NULL,
    actor text NOT NULL,
    reason text,
    jobs bigint NOT NULL,
    events bigint NOT NULL
);
CREATE TABLE purged (
    id uuid PRIMARY KEY,
    purge bigint NOT NULL,
    tenant text NOT NULL
);
CREATE TRIGGER purges_fixed AFTER UPDATE ON purges FOR EACH ROW
    EXECUTE FUNCTION holdfast_refuse('a change of an entry');
CREATE TRIGGER purges_kept AFTER DELETE ON purges FOR EACH ROW
    EXECUTE FUNCTION holdfast_refuse('the removal of an entry');
CREATE TRIGGER purged_fixed AFTER UPDATE ON purged FOR EACH ROW
    EXECUTE FUNCTION holdfast_refuse('a change of an entry');
CREATE TRIGGER purged_kept AFTER DELETE ON purged FOR EACH ROW
    EXECUTE FUNCTION holdfast_refuse('the removal of an entry');

-- Parents whose family has to be looked at: written with whatever gives reason to, by the same
-- transaction. A row each time and never a shared one: children that end at once do not wait for
-- each other. No part of the ledger: a slow pass finds what is lost here.
CREATE TABLE marks (
    number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id uuid NOT NULL
);

CREATE TABLE queues (
    name text PRIMARY KEY,
    paused_at bigint,
    paused_by text,
    reason text
);
CREATE TABLE queue_events (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    queue text NOT NULL,
    type text NOT NULL,
    at bigint NOT NULL,
    actor text NOT NULL,
    reason text,
    request_id text UNIQUE
);

-- Who serves which queues, for people who ask why a job does not run; no claim or sweep reads it,
-- and it does not belong to the ledger. Lists are JSON.
CREATE TABLE workers (
    name text PRIMARY KEY,
    started_at bigint NOT NULL,
    seen_at bigint NOT NULL,
    stopped_at bigint,
    pid bigint NOT NULL,
    concurrency integer NOT NULL,
    host text NOT NULL,
    queues text NOT NULL,
    capabilities text NOT NULL,
    tasks text NOT NULL
);
CREATE INDEX workers_seen ON workers (seen_at);

-- The terms that workers publish of their tasks, for those who submit by name; not in the ledger.
-- A tenant of '' means all. `body` is JSON.
CREATE TABLE task_terms (
    tenant text NOT NULL,
    task text NOT NULL,
    published_at bigint NOT NULL,
    body text NOT NULL,
    PRIMARY KEY (tenant, task)
);

-- What handlers wrote by ctx.log, the newest lines of each job; not part of the ledger, and no worker
-- or sweep reads it. `at` is the clock of the worker.
CREATE TABLE logs (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    id uuid NOT NULL,
    attempt integer NOT NULL,
    at bigint NOT NULL,
    level integer NOT NULL,
    message text NOT NULL
);
CREATE INDEX logs_id ON logs (id, position);

-- Summaries: one delta per commit and (queue, state), folded by a sweep; never a shared row.
CREATE TABLE counts (
    tenant text NOT NULL,
    queue text NOT NULL,
    state smallint NOT NULL,
    delta bigint NOT NULL
);
-- It has no key: without this, a database that is published for replication could not fold them.
ALTER TABLE counts REPLICA IDENTITY FULL;

-- What follows guards holdfast_submit, which roles may call that may do nothing else here: it takes
-- only what the law would have written. Names by content, as holdfast/lifecycle makes them.
CREATE FUNCTION holdfast_content_key(content text) RETURNS bigint LANGUAGE sql IMMUTABLE AS
$$ SELECT (('x' || encode(substr(sha256(convert_to(content, 'UTF8')), 1, 8), 'hex'))::bit(64)
    >> 1)::bigint $$;
CREATE FUNCTION holdfast_digest(body text) RETURNS text LANGUAGE sql IMMUTABLE AS
$$ SELECT encode(substr(sha256(convert_to(body, 'UTF8')), 1, 16), 'hex') $$;

CREATE FUNCTION holdfast_refuse_submit(what text, code text) RETURNS void LANGUAGE plpgsql AS
$$ BEGIN
    RAISE EXCEPTION 'holdfast: %', what USING ERRCODE = code,
        HINT = 'holdfast_submit takes what task.submit_in(...) writes, and nothing else';
END $$;

CREATE FUNCTION holdfast_check_policy(p policies) RETURNS void LANGUAGE plpgsql AS
$$ DECLARE
    b json := p.body;
BEGIN
    IF (p.id = holdfast_content_key(p.body) AND json_typeof(b) = 'object'
        AND CASE WHEN (b -> 'max_attempts')::text ~ '^(0|[1-9][0-9]{0,17})$' THEN (b -> 'max_attempts')::text::bigint BETWEEN 1 AND 1000000 ELSE (b -> 'max_attempts')::text IS NULL END
        AND coalesce((b -> 'idempotent')::text IN ('true', 'false'), true)
        AND coalesce((b -> 'on_exhausted')::text IN ('"dead_letter"', '"fail"'), true)
        AND coalesce((b -> 'letter_on_fail')::text IN ('true', 'false'), true)
        AND coalesce((b -> 'on_silence')::text IN ('"stall"', '"time_out"', '"lose"'), true)
        AND CASE WHEN (b -> 'backoff_first')::text ~ '^(0|[1-9][0-9]{0,17})$' THEN (b -> 'backoff_first')::text::bigint BETWEEN 0 AND 315359999999999 ELSE (b -> 'backoff_first')::text IS NULL END
        AND coalesce((b -> 'backoff_factor')::text ~ '^[1-9][0-9]{0,17}(\.[0-9]{1,20})?(e[+]?[0-9]{1,2})?$', true)
        AND CASE WHEN (b -> 'backoff_max')::text ~ '^(0|[1-9][0-9]{0,17})$' THEN (b -> 'backoff_max')::text::bigint BETWEEN 0 AND 315359999999999 ELSE (b -> 'backoff_max')::text IS NULL END
        AND CASE WHEN (b -> 'lease')::text ~ '^(0|[1-9][0-9]{0,17})$' THEN (b -> 'lease')::text::bigint BETWEEN 1 AND 315359999999999 ELSE (b -> 'lease')::text IS NULL END
        AND CASE WHEN (b -> 'heartbeat')::text ~ '^(0|[1-9][0-9]{0,17})$' THEN (b -> 'heartbeat')::text::bigint BETWEEN 1 AND 315359999999999 ELSE (b -> 'heartbeat')::text IS NULL END
        AND CASE WHEN (b -> 'start_timeout')::text ~ '^(0|[1-9][0-9]{0,17})$' THEN (b -> 'start_timeout')::text::bigint BETWEEN 1 AND 315359999999999 ELSE (b -> 'start_timeout')::text IS NULL END
        AND CASE WHEN (b -> 'timeout')::text ~ '^(0|[1-9][0-9]{0,17})$' THEN (b -> 'timeout')::text::bigint BETWEEN 1 AND 315359999999999 ELSE (b -> 'timeout')::text IS NULL END
        AND CASE WHEN (b -> 'host_recovery')::text ~ '^(0|[1-9][0-9]{0,17})$' THEN (b -> 'host_recovery')::text::bigint BETWEEN 0 AND 315359999999999 ELSE (b -> 'host_recovery')::text IS NULL END
        AND coalesce((b -> 'compensates')::text IN ('true', 'false'), true)
        AND p.lease = coalesce(b ->> 'lease', '60000000')::bigint
        AND p.running_lease = 2 * coalesce(b ->> 'heartbeat', '15000000')::bigint
        AND p.start_timeout IS NOT DISTINCT FROM (b ->> 'start_timeout')::bigint) IS NOT TRUE THEN
        PERFORM holdfast_refuse_submit(format('policy %s is not what its id stands for', p.id),
            'check_violation');
    END IF;
END $$;

CREATE FUNCTION holdfast_check_needs(n needs) RETURNS void LANGUAGE plpgsql AS
$$ DECLARE
    b jsonb := n.body;
BEGIN
    IF (n.id = holdfast_content_key(n.body) & -8 AND jsonb_typeof(b) = 'array'
        AND jsonb_array_length(b) BETWEEN 1 AND 100
        AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements(b) AS need WHERE
            jsonb_typeof(need) <> 'string' OR length(need #>> '{}') NOT BETWEEN 1 AND 200))
        IS NOT TRUE THEN
        PERFORM holdfast_refuse_submit(format('needs %s are not what their id stands for', n.id),
            'check_violation');
    END IF;
END $$;

CREATE FUNCTION holdfast_limit(name text, usual integer) RETURNS integer LANGUAGE sql STABLE AS
$$ SELECT coalesce((SELECT value::integer FROM meta WHERE key = name), usual) $$;

-- What is wrong with the data of a first event, which repeats the columns and holds some more.
CREATE FUNCTION holdfast_check_data(data text, expected jsonb, held_by text) RETURNS text
LANGUAGE plpgsql AS
$$ DECLARE
    b jsonb := data;
BEGIN
    RETURN CASE
        -- Python reads neither 60.0 nor 6e7 as a whole number, and there are no others.
        WHEN jsonb_typeof(b) <> 'object' OR EXISTS (
            SELECT 1 FROM json_each(data::json) WHERE json_typeof(value) = 'number'
            AND value::text !~ '^(0|[1-9][0-9]{0,18})$') THEN 'data'
        WHEN (SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(b)
            WHERE key = ANY (ARRAY['policy', 'tenant', 'job_id', 'kind', 'task',
                'task_version', 'queue', 'priority', 'needs', 'cpus', 'memory_mb', 'parent_id',
                'link_kind', 'workflow_id', 'step_index', 'key_kinds'])) <> expected THEN 'data'
        WHEN EXISTS (
            SELECT 1 FROM jsonb_each(b) WHERE key = ANY (ARRAY['client_job_id', 'dedupe_key',
                'content', 'context_ptr', 'trace_id', 'held'])
            AND (jsonb_typeof(value) <> 'string'
                OR length(value #>> '{}') NOT BETWEEN 1 AND 1000)) THEN 'data'
        WHEN b ? 'stated' AND (jsonb_typeof(b -> 'stated') = 'array'
            AND jsonb_array_length(b -> 'stated') <= 100
            AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements(b -> 'stated') AS term
                WHERE jsonb_typeof(term) <> 'string')) IS NOT TRUE THEN 'data'
        WHEN EXISTS (
            SELECT 1 FROM jsonb_each(b) AS map WHERE map.key = ANY (ARRAY['labels', 'env'])
            AND (jsonb_typeof(map.value) <> 'object'
                OR EXISTS (
                    SELECT 1 FROM jsonb_each(map.value) AS one
                    WHERE jsonb_typeof(one.value) <> 'string' OR length(one.key) > 200
                        OR length(one.value #>> '{}') > 1000)
                OR (SELECT sum(length(one.key) + length(one.value))
                    FROM jsonb_each_text(map.value) AS one) > 16384)) THEN 'data'
        WHEN held_by::jsonb IS DISTINCT FROM
            CASE WHEN b ? 'held' THEN jsonb_build_array(b -> 'held') END THEN 'held_by'
    END;
END $$;

-- What is wrong with one job that holdfast_submit is asked for: the name of a field, or NULL.
CREATE FUNCTION holdfast_check_job(j jsonb) RETURNS text LANGUAGE plpgsql AS
$$ DECLARE
    name text;
    kind smallint := j ->> 'kind';
    priority smallint := j ->> 'priority';
    link_kind smallint := j ->> 'link_kind';
    key_kinds smallint := j ->> 'key_kinds';
    data jsonb := j ->> 'data';
    body text := j ->> 'body';
    given jsonb;
BEGIN
    FOREACH name IN ARRAY ARRAY['tenant', 'task', 'queue'] LOOP
        IF (length(j ->> name) BETWEEN 1 AND 200) IS NOT TRUE THEN RETURN name; END IF;
        IF name <> 'tenant' AND starts_with(j ->> name, 'holdfast.') THEN
            RETURN name || ', which is reserved,';
        END IF;
    END LOOP;
    FOREACH name IN ARRAY ARRAY['job_id', 'request_id', 'workflow_id', 'correlation_id', 'reason']
    LOOP
        IF length(j ->> name) NOT BETWEEN 1 AND 1000 THEN RETURN name; END IF;
    END LOOP;
    IF j ->> 'task' LIKE '%@%' THEN RETURN 'task'; END IF;
    IF j ->> 'task_version' !~ '^[A-Za-z0-9._+-]{1,64}$' THEN RETURN 'task_version'; END IF;
    -- Who may do more than submit is not known here.
    IF (j ->> 'actor' LIKE 'gateway:_%' AND length(j ->> 'actor') <= 1000)
        IS NOT TRUE THEN RETURN 'actor'; END IF;
    FOREACH name IN ARRAY ARRAY['run_at', 'deadline_at'] LOOP
        IF NOT coalesce((j ->> name)::bigint > -500000000000000
            AND (j ->> name)::bigint <= 253402300800000000, name <> 'run_at') THEN
            RETURN name;
        END IF;
    END LOOP;
    FOREACH name IN ARRAY ARRAY['cpus', 'memory_mb', 'step_index'] LOOP
        IF (j ->> name)::integer < (CASE name WHEN 'step_index' THEN 0 ELSE 1 END) THEN
            RETURN name;
        END IF;
    END LOOP;
    IF (CASE kind WHEN 1 THEN 'function' WHEN 2 THEN 'command' WHEN 3 THEN 'agent' WHEN 4 THEN 'bus' END) IS NULL THEN RETURN 'kind'; END IF;
    IF (CASE priority WHEN 1 THEN 'critical' WHEN 2 THEN 'interactive' WHEN 3 THEN 'batch' END) IS NULL THEN RETURN 'priority'; END IF;
    -- The other links are made with the end of the job that they lead to.
    IF link_kind IS DISTINCT FROM 1 AND (link_kind IS NOT NULL OR j ->> 'parent_id'
        IS NOT NULL) OR link_kind IS NOT NULL AND j ->> 'parent_id' IS NULL THEN
        RETURN 'link_kind';
    END IF;
    IF (octet_length(body) <= 1048576 AND json_typeof(body::json) IS NOT NULL)
        IS NOT TRUE THEN RETURN 'body'; END IF;
    IF j ->> 'digest' IS DISTINCT FROM holdfast_digest(body) THEN RETURN 'digest'; END IF;
    given := jsonb_strip_nulls(jsonb_build_object('1', j ->> 'job_id',
        '2', j ->> 'request_id', '4', data ->> 'client_job_id',
        '8', data ->> 'dedupe_key'));
    IF key_kinds & ~16 <> coalesce(
            (SELECT sum(key::integer) FROM jsonb_object_keys(given) AS key), 0)
        OR key_kinds & 16 <> 0 AND NOT given ? '8'
        OR (data ? 'content') <> (given <> '{}') THEN
        RETURN 'key_kinds';
    END IF;
    -- A job_id that is the text of an internal id names that job.
    name := replace(translate(regexp_replace(lower(j ->> 'job_id'), '^urn:uuid:', ''), '{}', ''),
        '-', '');
    IF name ~ '^[0-9a-f]{32}$' AND (j ->> 'refers_to')::uuid IS DISTINCT FROM name::uuid THEN
        RETURN 'refers_to';
    END IF;
    RETURN holdfast_check_data(j ->> 'data', jsonb_strip_nulls(jsonb_build_object(
        'policy', j -> 'policy', 'tenant', nullif(j ->> 'tenant', 'default'),
        'job_id', j -> 'job_id', 'kind', nullif(CASE kind WHEN 1 THEN 'function' WHEN 2 THEN 'command' WHEN 3 THEN 'agent' WHEN 4 THEN 'bus' END, 'function'),
        'task', j -> 'task', 'task_version', j -> 'task_version',
        'queue', nullif(j ->> 'queue', 'default'),
        'priority', nullif(CASE priority WHEN 1 THEN 'critical' WHEN 2 THEN 'interactive' WHEN 3 THEN 'batch' END, 'interactive'),
        'needs', nullif((j ->> 'needs')::bigint, 0), 'cpus', j -> 'cpus',
        'memory_mb', j -> 'memory_mb', 'parent_id', j -> 'parent_id',
        'link_kind', CASE link_kind WHEN 1 THEN 'child' WHEN 2 THEN 'retry' WHEN 3 THEN 'redrive' WHEN 4 THEN 'compensation' END, 'workflow_id', j -> 'workflow_id',
        'step_index', j -> 'step_index', 'key_kinds', nullif(key_kinds, 0))), j ->> 'held_by');
END $$;

-- Refuse a submit that the law would not have written, that takes keys of no job of its own, or
-- that names what is not there. A parent or a policy that is newer than the snapshot of a
-- transaction looks the same as none: such a transaction is to be tried again.
CREATE FUNCTION holdfast_check_submit(asked jsonb) RETURNS void LANGUAGE plpgsql AS
$$ DECLARE
    wrong record;
    missing text := CASE current_setting('transaction_isolation') WHEN 'read committed'
        THEN 'foreign_key_violation' ELSE 'serialization_failure' END;
BEGIN
    SELECT j ->> 'id' AS id, holdfast_check_job(j) AS fault INTO wrong
    FROM jsonb_array_elements(asked -> 'jobs') AS j WHERE holdfast_check_job(j) IS NOT NULL LIMIT 1;
    IF FOUND THEN
        PERFORM holdfast_refuse_submit(format('the %s of job %s is none that a submit may have',
            wrong.fault, wrong.id), 'check_violation');
    END IF;
    WITH mine AS (
        SELECT j ->> 'tenant' AS tenant, k.kind::text, k.key, j ->> 'id' AS id,
            j ->> 'data' AS data
        FROM jsonb_array_elements(asked -> 'jobs') AS j
        CROSS JOIN LATERAL (VALUES
            (1, j ->> 'job_id'), (2, j ->> 'request_id'),
            (4, (j ->> 'data')::jsonb ->> 'client_job_id'),
            (8, (j ->> 'data')::jsonb ->> 'dedupe_key')) AS k(kind, key)
        WHERE k.key IS NOT NULL
    ),
    allowed AS (
        SELECT tenant, kind, key, id,
            encode(decode(data::jsonb ->> 'content', 'base64'), 'hex') AS digest,
            encode(decode(data::jsonb ->> 'content', 'base64'), 'base64') = data::jsonb ->> 'content'
                AND octet_length(decode(data::jsonb ->> 'content', 'base64')) = 16
                AS sound
        FROM mine
    ),
    taken AS (
        SELECT k ->> 'tenant', k ->> 'kind', k ->> 'key', k ->> 'id', k ->> 'digest', true
        FROM jsonb_array_elements(asked -> 'keys') AS k
    )
    SELECT 1 INTO wrong FROM (
        (SELECT * FROM allowed EXCEPT ALL SELECT * FROM taken)
        UNION ALL (SELECT * FROM taken EXCEPT ALL SELECT * FROM allowed)) AS d LIMIT 1;
    IF FOUND THEN
        PERFORM holdfast_refuse_submit('the keys are not those of the jobs', 'check_violation');
    END IF;
    SELECT d.id INTO wrong FROM jsonb_to_recordset(asked -> 'jobs') AS d(id uuid)
    WHERE EXISTS (SELECT 1 FROM purged AS p WHERE p.id = d.id OFFSET 0) LIMIT 1;
    IF FOUND THEN
        PERFORM holdfast_refuse_submit(format('the id %s was that of a job that was purged; mint a '
            'new one', wrong.id), 'unique_violation');
    END IF;
    SELECT d.id, d.policy, d.needs, d.parent_id INTO wrong
    FROM jsonb_to_recordset(asked -> 'jobs')
        AS d(id uuid, tenant text, policy bigint, needs bigint, parent_id uuid)
    WHERE NOT EXISTS (SELECT 1 FROM policies AS p WHERE p.id = d.policy OFFSET 0)
        AND NOT asked -> 'policies' @> jsonb_build_array(jsonb_build_object('id', d.policy))
        OR NOT EXISTS (SELECT 1 FROM needs AS n WHERE n.id = d.needs OFFSET 0)
        AND NOT asked -> 'needs' @> jsonb_build_array(jsonb_build_object('id', d.needs))
        OR d.parent_id IS NOT NULL
        AND NOT EXISTS (
            SELECT 1 FROM jobs AS j WHERE j.id = d.parent_id AND j.tenant = d.tenant OFFSET 0)
        AND NOT asked -> 'jobs' @> jsonb_build_array(
            jsonb_build_object('id', d.parent_id, 'tenant', d.tenant))
    LIMIT 1;
    IF FOUND THEN
        PERFORM holdfast_refuse_submit(format('job %s names a policy (%s), needs (%s) or a parent '
            '(%s) that its tenant does not have', wrong.id, wrong.policy, wrong.needs,
            wrong.parent_id), missing);
    END IF;
END $$;

-- Refuse new jobs that give their tenant more queues or sets of needs than it may have. Called when
-- it is known which jobs are new: a repeated submit brings no name.
CREATE FUNCTION holdfast_check_limits(made jsonb) RETURNS void LANGUAGE plpgsql AS
$$ DECLARE
    wrong record;
BEGIN
    SELECT d.tenant, d.queue INTO wrong
    FROM jsonb_to_recordset(made) AS d(tenant text, queue text)
    WHERE NOT EXISTS (
            SELECT 1 FROM counts AS c WHERE c.tenant = d.tenant AND c.queue = d.queue)
        AND (SELECT count(DISTINCT queue) FROM counts AS c WHERE c.tenant = d.tenant)
            >= holdfast_limit('queues_per_tenant', 1000)
    LIMIT 1;
    IF FOUND THEN
        PERFORM holdfast_refuse_submit(format('too_many_names: tenant %s may have no queue %s '
            'beside those that it has', wrong.tenant, wrong.queue), 'configuration_limit_exceeded');
    END IF;
    SELECT d.tenant, d.needs INTO wrong
    FROM jsonb_to_recordset(made) AS d(tenant text, needs bigint)
    WHERE d.needs <> 0
        AND NOT EXISTS (
            SELECT 1 FROM jobs AS j WHERE j.needs = d.needs AND j.needs <> 0
                AND j.tenant = d.tenant OFFSET 0)
        AND (SELECT count(*) FROM needs AS n WHERE EXISTS (
                SELECT 1 FROM jobs AS j WHERE j.needs = n.id AND j.needs <> 0
                    AND j.tenant = d.tenant OFFSET 0))
            >= holdfast_limit('needs_per_tenant', 100)
    LIMIT 1;
    IF FOUND THEN
        PERFORM holdfast_refuse_submit(format('too_many_names: tenant %s may have no needs %s '
            'beside those that it has', wrong.tenant, wrong.needs), 'configuration_limit_exceeded');
    END IF;
END $$;

-- Remember policies and needs one by one, each unless it is there already: also where it is there
-- for all but the caller's snapshot, to which ON CONFLICT would answer with an error.
CREATE FUNCTION holdfast_remember(asked jsonb) RETURNS void LANGUAGE plpgsql AS
$$ DECLARE
    p policies;
    n needs;
BEGIN
    FOR p IN SELECT * FROM jsonb_populate_recordset(NULL::policies, asked -> 'policies') ORDER BY id
    LOOP
        PERFORM holdfast_check_policy(p);
        BEGIN
            INSERT INTO policies SELECT p.*;
        EXCEPTION WHEN unique_violation THEN NULL;
        END;
    END LOOP;
    FOR n IN SELECT * FROM jsonb_populate_recordset(NULL::needs, asked -> 'needs') ORDER BY id
    LOOP
        PERFORM holdfast_check_needs(n);
        BEGIN
            INSERT INTO needs (id, body, used_at) VALUES (n.id, n.body, holdfast_now());
        EXCEPTION WHEN unique_violation THEN NULL;
        END;
    END LOOP;
END $$;

-- Submit inside a transaction of the caller's: the job is there exactly if the caller's rows are.
-- Takes what holdfast/stores/postgres/caller_transaction.py writes: jobs that the law has decided on, their
-- keys, and the policies and needs that they name; anything else is refused. Every job gets all its keys or is not made;
-- the answer names who holds them, and the caller decides what follows from that. The settings are those
-- of the store's own connections; the caller's may be any.
CREATE FUNCTION holdfast_submit(asked jsonb) RETURNS jsonb LANGUAGE plpgsql SECURITY DEFINER
SET plan_cache_mode = force_generic_plan SET jit = off SET enable_seqscan = off
SET enable_hashjoin = off SET enable_mergejoin = off SET enable_bitmapscan = off AS
$$ DECLARE
    refers jsonb;
    held jsonb := '{}';
    lost jsonb;
    made jsonb;
    undecided uuid[];
    won uuid[];
    tries_left integer := 2 * jsonb_array_length(asked -> 'jobs') + 8;
    stamp bigint;
    told integer;
BEGIN
    -- A job of Holdfast's own services acts with the server's rights: no caller may submit one.
    IF EXISTS (
        SELECT 1 FROM jsonb_to_recordset(asked -> 'jobs') AS d(task text, queue text)
        WHERE starts_with(d.task, 'holdfast.') OR starts_with(d.queue, 'holdfast.')) THEN
        RAISE EXCEPTION 'holdfast: tasks and queues named holdfast.* are reserved'
            USING ERRCODE = 'check_violation';
    END IF;
    -- Apps write these ahead, outside the caller's transaction: others that want the same would have
    -- to wait for its end. One committed after the caller's snapshot is not a conflict.
    IF EXISTS (
        SELECT 1 FROM jsonb_to_recordset(asked -> 'policies') AS p(id bigint)
        WHERE NOT EXISTS (SELECT 1 FROM policies AS q WHERE q.id = p.id OFFSET 0)
        UNION ALL
        SELECT 1 FROM jsonb_to_recordset(asked -> 'needs') AS p(id bigint)
        WHERE NOT EXISTS (SELECT 1 FROM needs AS q WHERE q.id = p.id OFFSET 0)) THEN
        PERFORM holdfast_remember(asked);
    END IF;
    PERFORM holdfast_check_submit(asked);

    -- A given job_id that is the text of an internal id names that job, also one that was purged:
    -- its body is unknown, so that another body is not recognised, and it has no name.
    SELECT coalesce(jsonb_object_agg(d.id, jsonb_build_object('id', r.id, 'job_id', r.job_id,
        'digest', r.digest)), '{}')
    INTO refers
    FROM jsonb_to_recordset(asked -> 'jobs')
        AS d(id uuid, tenant text, refers_to uuid, digest text)
    CROSS JOIN LATERAL (
        SELECT j.id, coalesce(j.job_id, j.id::text) AS job_id, (
            SELECT encode(e.digest, 'hex') FROM events AS e WHERE e.id = j.id AND e.rev = 1) AS digest
        FROM jobs AS j WHERE j.id = d.refers_to AND j.tenant = d.tenant
        UNION ALL
        SELECT p.id, NULL, d.digest FROM purged AS p
        WHERE p.id = d.refers_to AND p.tenant = d.tenant OFFSET 0) AS r
    WHERE d.refers_to IS NOT NULL;

    undecided := ARRAY(
        SELECT DISTINCT k.id FROM jsonb_to_recordset(asked -> 'keys') AS k(id uuid)
        WHERE NOT refers ? k.id::text);
    WHILE cardinality(undecided) > 0 LOOP
        IF tries_left = 0 THEN
            RAISE EXCEPTION 'holdfast: a key changed hands again and again'
                USING ERRCODE = 'serialization_failure';
        END IF;
        tries_left := tries_left - 1;
        -- In the store's order. A key that another transaction is just inserting makes this one
        -- wait for its end. If two jobs of one call have the same key, the first gets it.
        INSERT INTO keys (tenant, kind, key, id, digest)
        SELECT k.tenant, k.kind, k.key, k.id, decode(k.digest, 'hex')
        FROM ROWS FROM (jsonb_to_recordset(asked -> 'keys')
            AS (tenant text, kind smallint, key text, id uuid, digest text)) WITH ORDINALITY
            AS k(tenant, kind, key, id, digest, number)
        WHERE k.id = ANY (undecided)
        ORDER BY k.tenant COLLATE "C", k.kind, k.key COLLATE "C", k.number
        ON CONFLICT DO NOTHING;
        -- A statement of its own, so that it sees what the transaction waited for has committed. A
        -- holder that has ended in between leaves a key that nobody has: then it is tried again.
        -- A job that is undecided itself may yet give its keys back.
        WITH holders AS (
            SELECT k.id, k.kind, h.id AS holder, h.digest
            FROM jsonb_to_recordset(asked -> 'keys')
                AS k(tenant text, kind smallint, key text, id uuid)
            LEFT JOIN LATERAL (
                SELECT h.id, h.digest FROM keys AS h
                WHERE h.tenant = k.tenant AND h.kind = k.kind AND h.key = k.key OFFSET 0) AS h
                ON true
            WHERE k.id = ANY (undecided)
        ),
        verdicts AS (
            SELECT id, bool_and(coalesce(holder = id, false)) AS won,
                bool_and(coalesce(holder = id OR holder <> ALL (undecided), false)) AS decided,
                jsonb_agg(jsonb_build_object('kind', kind, 'id', holder, 'digest',
                    encode(digest, 'hex'), 'job_id', (
                        SELECT coalesce(j.job_id, j.id::text) FROM jobs AS j
                        WHERE j.id = holder OFFSET 0))) FILTER (WHERE holder <> id) AS held
            FROM holders GROUP BY id
        )
        SELECT coalesce(array_agg(id) FILTER (WHERE v.won), '{}'),
            coalesce(jsonb_object_agg(id, v.held) FILTER (WHERE v.decided AND NOT v.won), '{}')
        INTO won, lost FROM verdicts AS v;
        DELETE FROM keys WHERE id = ANY (ARRAY(SELECT jsonb_object_keys(lost)::uuid));
        undecided := ARRAY(
            SELECT id FROM unnest(undecided) AS u(id)
            WHERE id <> ALL (won) AND NOT lost ? id::text);
        held := held || lost;
    END LOOP;

    SELECT coalesce(jsonb_agg(j), '[]') INTO made FROM jsonb_array_elements(asked -> 'jobs') AS j
    WHERE NOT refers ? (j ->> 'id') AND NOT held ? (j ->> 'id');
    PERFORM holdfast_check_limits(made);

    stamp := holdfast_now();
    WITH d AS MATERIALIZED (
        SELECT * FROM jsonb_to_recordset(made) AS d(id uuid, tenant text, task text,
            task_version text, queue text, state smallint, kind smallint, priority smallint,
            needs bigint, policy bigint, cpus integer, memory_mb integer, job_id text,
            parent_id uuid, link_kind smallint, workflow_id text, step_index integer, key_kinds smallint,
            held_by text, run_at bigint, deadline_at bigint, actor text, request_id text,
            reason text, correlation_id text, data text, body text, digest text)
    ),
    j AS (
        INSERT INTO jobs (id, created_at, updated_at, run_at, deadline_at, needs, policy, rev, cpus,
            memory_mb, step_index, state, kind, priority, key_kinds, link_kind, parent_id, tenant,
            task, task_version, queue, job_id, workflow_id, held_by, claim_order, wake_at,
            live_parent_id)
        SELECT id, stamp, stamp, holdfast_time(run_at, stamp), holdfast_time(deadline_at, stamp),
            needs, policy, 1, cpus, memory_mb, step_index, state, kind, priority, key_kinds,
            link_kind, parent_id, tenant, task, task_version, queue, job_id, workflow_id, held_by,
            holdfast_claim_order(state, held_by, NULL, holdfast_time(run_at, stamp), priority),
            holdfast_wake_at(state, NULL, holdfast_time(deadline_at, stamp), NULL, NULL),
            holdfast_live_parent_id(state, link_kind, parent_id)
        FROM d
    ),
    e AS (
        INSERT INTO events (id, rev, type, to_state, at, attempt, run_at, deadline_at, actor,
            request_id, reason, correlation_id, data, body, digest)
        SELECT id, 1, 1, state, stamp, 0, holdfast_time(run_at, stamp),
            holdfast_time(deadline_at, stamp), actor, request_id, reason, correlation_id, data,
            body, decode(digest, 'hex')
        FROM d
    ),
    m AS (
        INSERT INTO marks (id) SELECT DISTINCT parent_id FROM d WHERE link_kind = 1
    ),
    n AS (
        INSERT INTO counts
        SELECT tenant, queue, state, count(*) FROM d GROUP BY tenant, queue, state
    )
    -- Sent by the commit, and not at all without one.
    SELECT count(pg_notify('holdfast.' || current_schema(), queue)) INTO told
    FROM (SELECT DISTINCT queue FROM d) AS queues;
    IF told = 0 THEN
        -- The answer rests on what was found. See await_standby in queries.sql: the caller's commit
        -- has to wait for that, whatever else it writes.
        PERFORM pg_logical_emit_message(true, 'holdfast', 'settled')
        WHERE current_setting('synchronous_standby_names') <> '';
    END IF;
    RETURN jsonb_build_object('now', stamp, 'held', held, 'refers', refers);
END $$;
-- It runs with its owner's rights: a role that may submit needs EXECUTE on it, and USAGE of its schema.
REVOKE ALL ON FUNCTION holdfast_submit(jsonb) FROM PUBLIC;
-- Functions that name tables find them in this schema, whatever the search_path of the caller.
DO $$ DECLARE
    name text;
BEGIN
    FOREACH name IN ARRAY ARRAY['holdfast_submit(jsonb)', 'holdfast_keep_events()',
        'holdfast_seal_event()', 'holdfast_seal_beat()', 'holdfast_moved()',
        'holdfast_begin_lineage(boolean)']
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', name, current_schema());
    END LOOP;
END $$;

-- For people: codes as words, times as timestamps.
CREATE VIEW jobs_readable AS
SELECT coalesce(job_id, id::text) AS job_id, tenant, queue, task,
    CASE state WHEN 1 THEN 'pending' WHEN 2 THEN 'queued' WHEN 3 THEN 'claimed' WHEN 4 THEN 'running' WHEN 5 THEN 'waiting' WHEN 6 THEN 'retrying' WHEN 7 THEN 'stalled' WHEN 8 THEN 'succeeded' WHEN 9 THEN 'failed' WHEN 10 THEN 'cancelled' WHEN 11 THEN 'timed_out' WHEN 12 THEN 'denied' WHEN 13 THEN 'dead_lettered' END AS state, rev, attempt, failures, owner,
    to_timestamp(created_at / 1e6) AS created_at, to_timestamp(run_at / 1e6) AS run_at,
    to_timestamp(started_at / 1e6) AS started_at, to_timestamp(finished_at / 1e6) AS finished_at,
    to_timestamp(lease_expires_at / 1e6) AS lease_expires_at, held_by, wait_for, error_code
FROM jobs;
CREATE VIEW events_readable AS
SELECT id, rev, to_timestamp(at / 1e6) AS at, CASE type WHEN 1 THEN 'job_created' WHEN 2 THEN 'job_claimed' WHEN 3 THEN 'job_started' WHEN 4 THEN 'job_succeeded' WHEN 5 THEN 'job_heartbeat' WHEN 6 THEN 'job_lease_renewed' WHEN 7 THEN 'job_admitted' WHEN 8 THEN 'job_denied' WHEN 9 THEN 'job_held' WHEN 10 THEN 'job_unheld' WHEN 11 THEN 'job_rescheduled' WHEN 12 THEN 'job_adopted' WHEN 13 THEN 'step_started' WHEN 14 THEN 'step_completed' WHEN 15 THEN 'job_progressed' WHEN 16 THEN 'job_waiting' WHEN 17 THEN 'wait_completed' WHEN 18 THEN 'job_failed' WHEN 19 THEN 'job_retrying' WHEN 20 THEN 'job_released' WHEN 21 THEN 'job_stalled' WHEN 22 THEN 'job_requeued' WHEN 23 THEN 'job_cancel_requested' WHEN 24 THEN 'job_cancelled' WHEN 25 THEN 'job_timed_out' WHEN 26 THEN 'job_dead_lettered' WHEN 27 THEN 'signal_received' WHEN 28 THEN 'result_ignored' WHEN 29 THEN 'job_compensated' WHEN 30 THEN 'dead_letter_redriven' WHEN 31 THEN 'dead_letter_discarded' WHEN 32 THEN 'job_cleaning' WHEN 33 THEN 'job_cleaned' WHEN 34 THEN 'step_failed' WHEN 35 THEN 'job_terms_corrected' WHEN 36 THEN 'job_approved' END AS type,
    CASE from_state WHEN 1 THEN 'pending' WHEN 2 THEN 'queued' WHEN 3 THEN 'claimed' WHEN 4 THEN 'running' WHEN 5 THEN 'waiting' WHEN 6 THEN 'retrying' WHEN 7 THEN 'stalled' WHEN 8 THEN 'succeeded' WHEN 9 THEN 'failed' WHEN 10 THEN 'cancelled' WHEN 11 THEN 'timed_out' WHEN 12 THEN 'denied' WHEN 13 THEN 'dead_lettered' END AS from_state, CASE to_state WHEN 1 THEN 'pending' WHEN 2 THEN 'queued' WHEN 3 THEN 'claimed' WHEN 4 THEN 'running' WHEN 5 THEN 'waiting' WHEN 6 THEN 'retrying' WHEN 7 THEN 'stalled' WHEN 8 THEN 'succeeded' WHEN 9 THEN 'failed' WHEN 10 THEN 'cancelled' WHEN 11 THEN 'timed_out' WHEN 12 THEN 'denied' WHEN 13 THEN 'dead_lettered' END AS to_state, attempt,
    actor, request_id, reason, data, body
FROM events;
