-- The statements of the PostgreSQL store. Blocks of the same name in ../sqlite/queries.sql do the
-- same there. Batches arrive as arrays; a column that is NULL for a whole batch as an empty one.

-- name: clock
-- The store's clock and the epoch under which claims are made.
SELECT holdfast_now(), value::integer FROM meta WHERE key = 'epoch'

-- name: submit
-- Insert decided jobs with their first events. What many share (tenant, queue, task, ...) comes
-- once, as a group that each job names by number.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS now),
d AS (
    SELECT * FROM unnest($1::uuid[], $2::int[], $3::text[], $4::text[], $5::bytea[], $6::bigint[],
        $7::bigint[], $8::text[], $9::text[], $10::uuid[], $11::int[], $12::text[], $13::int[],
        $14::int[], $15::text[], $16::text[])
    AS d(id, g, data, body, digest, run_at, deadline_at, correlation_id, job_id, parent_id,
        link_kind, workflow_id, step_index, key_kinds, held_by, request_id)
),
j AS (
    INSERT INTO jobs (id, created_at, updated_at, run_at, deadline_at, needs, policy, rev, cpus,
        memory_mb, step_index, state, kind, priority, key_kinds, link_kind, parent_id, tenant,
        task, queue, job_id, workflow_id, held_by)
    SELECT d.id, now, now, holdfast_time(coalesce(d.run_at, 0), now),
        holdfast_time(d.deadline_at, now), ($17::bigint[])[g], ($18::bigint[])[g], 1,
        ($19::int[])[g], ($20::int[])[g], d.step_index, ($21::smallint[])[g],
        ($22::smallint[])[g], ($23::smallint[])[g], coalesce(d.key_kinds, 0), d.link_kind,
        d.parent_id, ($24::text[])[g], ($25::text[])[g], ($26::text[])[g], d.job_id,
        d.workflow_id, d.held_by
    FROM d, clock
),
e AS (
    INSERT INTO events (id, rev, type, to_state, at, attempt, run_at, deadline_at, actor,
        request_id, reason, correlation_id, data, body, digest)
    SELECT d.id, 1, {{event.job_created}}, ($21::smallint[])[g], now, 0,
        holdfast_time(coalesce(d.run_at, 0), now), holdfast_time(d.deadline_at, now),
        ($27::text[])[g], d.request_id, ($28::text[])[g], d.correlation_id, d.data, d.body,
        d.digest
    FROM d, clock
),
n AS (
    INSERT INTO counts
    SELECT ($24::text[])[g], ($26::text[])[g], ($21::smallint[])[g], count(*) FROM d GROUP BY g
)
SELECT now FROM clock

-- name: submit_keys
-- Take keys in a fixed order, so that two submitters never wait for each other in a circle.
INSERT INTO keys (tenant, kind, key, id, digest)
SELECT * FROM unnest($1::text[], $2::smallint[], $3::text[], $4::uuid[], $5::bytea[])
ON CONFLICT DO NOTHING
RETURNING kind, id

-- name: held_keys
-- Who holds these keys: read after the insert above, so that a winner that has just committed shows.
SELECT d.i, k.id, k.digest
FROM unnest($1::text[], $2::smallint[], $3::text[]) WITH ORDINALITY AS d(tenant, kind, key, i)
CROSS JOIN LATERAL (
    SELECT id, digest FROM keys
    WHERE tenant = d.tenant AND kind = d.kind AND key = d.key OFFSET 0) AS k

-- name: drop_keys
-- Give back what a losing submit took in this transaction.
DELETE FROM keys WHERE id = ANY ($1::uuid[])

-- name: known_ids
-- Which of these ids exist: settles a submit whose reply was lost.
SELECT id FROM jobs WHERE id = ANY ($1::uuid[])

-- name: claim_first
-- The head of one range (a queue, a set of needs, a class); a paused queue's ranges are empty.
SELECT :arm AS arm FROM (
    SELECT 1 FROM jobs
    WHERE queue = ($4::text[])[:arm] AND needs = ($5::bigint[])[:arm]
        AND priority = ($6::smallint[])[:arm]
        AND claim_order <= (SELECT now FROM clock) + ($7::bigint[])[:arm]
        AND claim_order >= ($8::bigint[])[:arm]
        AND NOT EXISTS (
            SELECT 1 FROM queues WHERE name = ($4::text[])[:arm] AND paused_at IS NOT NULL)
    ORDER BY claim_order, id LIMIT 1) AS first_:arm

-- name: claim_head
-- The same range in its order, read without locks.
SELECT * FROM (
    SELECT :arm AS arm, claim_order, id FROM jobs
    WHERE queue = ($4::text[])[:arm] AND needs = ($5::bigint[])[:arm]
        AND priority = ($6::smallint[])[:arm]
        AND claim_order <= (SELECT now FROM clock) + ($7::bigint[])[:arm]
        AND claim_order >= ($8::bigint[])[:arm]
        AND :arm IN (SELECT arm FROM firsts)
    ORDER BY claim_order, id) AS head_:arm

-- name: claim_arm
-- The same range, locked, as many rows of it as the merge wants.
SELECT * FROM (
    SELECT id, state FROM jobs
    WHERE queue = ($4::text[])[:arm] AND needs = ($5::bigint[])[:arm]
        AND priority = ($6::smallint[])[:arm]
        AND claim_order <= (SELECT now FROM clock) + ($7::bigint[])[:arm]
        AND claim_order >= ($8::bigint[])[:arm]
    ORDER BY claim_order, id
    LIMIT coalesce((SELECT n FROM wanted WHERE arm = :arm), 0)
    FOR UPDATE SKIP LOCKED) AS arm_:arm

-- name: claim
-- The one place where SQL restates an edge of the law: queued, retrying, stalled -> claimed.
-- Where several ranges have due jobs, a merge read without locks says how many rows of each to
-- lock: PostgreSQL cannot merge locking scans lazily, and would lock every due row.
-- $1 request, $2 limit, $3 owner, $4 to $8 ranges: queue, needs, class, its ageing, its cursor.
WITH clock AS MATERIALIZED (
    SELECT holdfast_now() AS now, value::integer AS epoch FROM meta WHERE key = 'epoch'
),
firsts AS MATERIALIZED (:firsts),
merged AS (
    SELECT arm, count(*) AS n
    FROM (SELECT * FROM (:heads) AS h ORDER BY claim_order, id LIMIT $2) AS top
    GROUP BY arm
),
wanted AS MATERIALIZED (
    SELECT arm, CASE WHEN (SELECT count(*) FROM firsts) = 1 THEN $2
        ELSE (SELECT n FROM merged WHERE merged.arm = firsts.arm) END AS n
    FROM firsts
),
picked AS MATERIALIZED (:arms),
u AS (
    UPDATE jobs AS j SET
        state = {{state.claimed}}, rev = j.rev + 1, attempt = j.attempt + 1, owner = $3,
        epoch = clock.epoch, lease_expires_at = greatest(now, j.updated_at) + p.lease,
        timeout_at = greatest(now, j.updated_at) + p.start_timeout, started_at = NULL,
        updated_at = greatest(now, j.updated_at)
    FROM unnest(ARRAY(SELECT id FROM picked), ARRAY(SELECT state FROM picked)) AS k(id, state),
        clock, policies AS p
    WHERE j.id = k.id AND p.id = j.policy
    RETURNING j.id, j.rev, j.attempt, j.failures, j.releases, j.epoch, j.lease_expires_at,
        j.timeout_at, j.run_at, j.deadline_at, j.created_at, j.updated_at, j.signals, j.tenant,
        j.queue, k.state AS from_state
),
e AS (
    INSERT INTO events (id, rev, type, from_state, to_state, at, attempt, lease_expires_at, actor,
        request_id, data)
    SELECT id, rev, {{event.job_claimed}}, from_state, {{state.claimed}}, updated_at, attempt,
        lease_expires_at, $3, $1, CASE WHEN epoch <> 1 THEN '{"epoch":' || epoch || '}' END
    FROM u
),
n AS (
    INSERT INTO counts
    SELECT tenant, queue, x.state, x.delta
    FROM (SELECT tenant, queue, from_state, count(*) AS n FROM u GROUP BY 1, 2, 3) AS m
    CROSS JOIN LATERAL (
        VALUES (from_state, -m.n), ({{state.claimed}}::smallint, m.n)) AS x(state, delta)
),
l AS (
    INSERT INTO claims (request_id, at, expires_at, epoch, owner, ids)
    SELECT $1, min(updated_at), min(lease_expires_at), min(epoch), $3, array_agg(id) FROM u
    HAVING count(*) > 0
)
SELECT u.id, r.data, r.body, r.correlation_id, u.rev, u.attempt, u.failures, u.releases, u.epoch,
    u.lease_expires_at, u.timeout_at, u.run_at, u.deadline_at, u.created_at, u.updated_at,
    u.signals
FROM u CROSS JOIN LATERAL (
    SELECT data, body, correlation_id FROM events WHERE id = u.id AND rev = 1 OFFSET 0) AS r

-- name: commit
-- A batch of compare-and-set writes. d: a row per job; x: a row per event, naming its job by
-- number. NULL keeps a column: a matching rev proves that the row is the one decided on. `rest`
-- holds what most changes leave alone. An owner's write (flag 1) also needs a live lease of the
-- present epoch, by this clock; a heartbeat (flag 2) is counted and kept apart.
WITH clock AS MATERIALIZED (
    SELECT holdfast_now() AS now, value::integer AS epoch FROM meta WHERE key = 'epoch'
),
u AS (
    UPDATE jobs AS j SET
        state = d.state,
        rev = d.rev,
        beats = CASE WHEN d.flags & 2 = 2 THEN j.beats + 1 ELSE 0 END,
        updated_at = greatest(now, j.updated_at),
        owner = CASE WHEN d.owned THEN coalesce(rest->>'owner', j.owner) END,
        epoch = CASE WHEN d.owned THEN coalesce((rest->>'epoch')::int, j.epoch) END,
        lease_expires_at = CASE WHEN d.owned THEN
            coalesce(holdfast_time(d.lease, greatest(now, j.updated_at)), j.lease_expires_at) END,
        timeout_at = CASE WHEN d.owned THEN
            CASE WHEN d.started IS NULL THEN j.timeout_at
            ELSE holdfast_time((rest->>'timeout_at')::bigint, greatest(now, j.updated_at)) END END,
        run_at = CASE WHEN d.rest IS NULL THEN j.run_at
            WHEN d.state = {{state.waiting}} AND j.state <> {{state.waiting}}
            THEN holdfast_time((rest->>'run_at')::bigint, greatest(now, j.updated_at))
            ELSE coalesce(holdfast_time((rest->>'run_at')::bigint, greatest(now, j.updated_at)),
                j.run_at) END,
        wait_for = CASE d.state WHEN {{state.waiting}}
            THEN coalesce(rest->>'wait_for', j.wait_for) END,
        started_at = CASE WHEN d.started IS NULL THEN j.started_at
            ELSE greatest(greatest(now, j.updated_at) + d.started, j.updated_at) END,
        finished_at = CASE WHEN d.ended
            THEN coalesce(j.finished_at, greatest(now, j.updated_at)) END,
        failures = coalesce((rest->>'failures')::int, j.failures),
        releases = coalesce((rest->>'releases')::int, j.releases),
        held_by = nullif(coalesce(rest->>'held_by', j.held_by), '[]'),
        cancel_requested = coalesce((rest->>'cancel_requested')::smallint, j.cancel_requested),
        signals = nullif(coalesce(rest->>'signals', j.signals), '[]'),
        late_results = coalesce(rest->>'late_results', j.late_results),
        result_digest = coalesce(d.result_digest, j.result_digest),
        error_code = coalesce(rest->>'error_code', j.error_code),
        exit_code = coalesce((rest->>'exit_code')::int, j.exit_code),
        result_ptr = coalesce(rest->>'result_ptr', j.result_ptr),
        letter = coalesce((rest->>'letter')::smallint, j.letter),
        retention = coalesce((rest->>'retention')::smallint, j.retention)
    FROM clock, (
        SELECT *, state IN ({{state.claimed}}, {{state.running}}) AS owned,
            state >= {{state.succeeded}} AS ended
        FROM unnest($1::uuid[], $2::int[], $3::int[], $4::smallint[], $5::smallint[], $6::int[],
            $7::bigint[], $8::bigint[], $9::bytea[], $10::jsonb[]) WITH ORDINALITY
        AS d(id, expected, rev, state, flags, g, lease, started, result_digest, rest, i)) AS d
    WHERE j.id = d.id AND j.rev = d.expected
        AND (d.flags & 1 = 0 OR (j.lease_expires_at > now AND j.epoch = clock.epoch))
    RETURNING d.i, d.g
),
x AS (
    SELECT * FROM unnest($11::int[], $12::int[], $13::int[], $14::bigint[], $15::bigint[],
        $16::bigint[], $17::int[], $18::int[], $19::text[], $20::text[], $21::text[],
        $22::text[], $23::text[], $24::bytea[])
    AS x(i, rev, code, at, lease, run_at, attempt, beats, actor, request_id, reason, data, body,
        digest)
    WHERE (x.i IN (SELECT i FROM u)) IS TRUE
),
e AS (
    INSERT INTO events (id, rev, type, from_state, to_state, at, attempt, beats, lease_expires_at,
        run_at, actor, request_id, reason, data, body, digest)
    SELECT ($1::uuid[])[x.i], x.rev, x.code / 256, x.code / 16 % 16, x.code % 16,
        greatest(greatest(now, floor) + coalesce(x.at, 0), floor), x.attempt, coalesce(x.beats, 0),
        holdfast_time(x.lease, greatest(now, floor)),
        holdfast_time(x.run_at, greatest(now, floor)),
        coalesce(x.actor, $26), coalesce(x.request_id, $27), x.reason, x.data, x.body, x.digest
    FROM (SELECT *, ($25::bigint[])[i] AS floor FROM x) AS x, clock
    WHERE x.code / 256 NOT IN ({{event.job_heartbeat}}, {{event.job_lease_renewed}})
),
b AS (
    INSERT INTO beats (id, at, lease_expires_at, rev, attempt, type, state, actor, request_id,
        reason)
    SELECT ($1::uuid[])[x.i], greatest(now, floor), holdfast_time(x.lease, greatest(now, floor)),
        x.rev, x.attempt, x.code / 256, x.code % 16, coalesce(x.actor, $26),
        coalesce(x.request_id, $27), x.reason
    FROM (SELECT *, ($25::bigint[])[i] AS floor FROM x) AS x, clock
    WHERE x.code / 256 IN ({{event.job_heartbeat}}, {{event.job_lease_renewed}})
),
n AS (
    INSERT INTO counts
    SELECT ($28::text[])[g], ($29::text[])[g], y.state, y.delta
    FROM (SELECT g, count(*) AS n FROM u WHERE g IS NOT NULL GROUP BY g) AS m
    CROSS JOIN LATERAL (
        VALUES (($30::smallint[])[g], -m.n), (($31::smallint[])[g], m.n)) AS y(state, delta)
)
SELECT (SELECT now FROM clock), (SELECT array_agg(i) FROM u)
