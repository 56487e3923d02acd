-- The statements of the PostgreSQL store that cannot stand in ../queries.sql. Blocks of the same name
-- in ../sqlite/queries.sql do the same there. Batches arrive as arrays; a column that is NULL for a whole batch as an empty one.
-- A batch is joined to a table by `id = ANY (ARRAY[d.id])`, not `id = d.id`: the plan that is kept
-- may have been made when the table was empty, and would then read all of it for each batch.

-- name: clock
-- The store's clock and the epoch under which claims are made.
SELECT holdfast_now(), value::integer, holdfast_machine_now(), c.mark, c.shift, c.since,
    s.at, s.by
FROM meta, store_clock AS c
LEFT JOIN LATERAL (SELECT at, by FROM clock_steps ORDER BY position DESC LIMIT 1) AS s ON true
WHERE key = 'epoch' AND c.one

-- name: await_standby
-- Write something without a row, so that the commit waits for the synchronous standby, and with it
-- for all that was written before. Assigning a transaction id alone would not. Nothing to do where
-- no standby is waited for.
-- Own to PostgreSQL: only a server has a standby.
SELECT pg_logical_emit_message(true, 'holdfast', 'settled')
WHERE current_setting('synchronous_standby_names') <> ''

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
        task, task_version, queue, job_id, workflow_id, held_by, claim_order, wake_at,
        live_parent_id)
    SELECT d.id, now, now, holdfast_time(coalesce(d.run_at, 0), now),
        holdfast_time(d.deadline_at, now), ($17::bigint[])[g], ($18::bigint[])[g], 1,
        ($19::int[])[g], ($20::int[])[g], d.step_index, ($21::smallint[])[g],
        ($22::smallint[])[g], ($23::smallint[])[g], coalesce(d.key_kinds, 0), d.link_kind,
        d.parent_id, ($24::text[])[g], ($25::text[])[g], ($26::text[])[g],
        ($27::text[])[g], d.job_id, d.workflow_id, d.held_by,
        holdfast_claim_order(($21::smallint[])[g], d.held_by, NULL,
            holdfast_time(coalesce(d.run_at, 0), now), ($23::smallint[])[g]),
        holdfast_wake_at(($21::smallint[])[g], NULL, holdfast_time(d.deadline_at, now), NULL, NULL),
        holdfast_live_parent_id(($21::smallint[])[g], d.link_kind::smallint, d.parent_id)
    FROM d, clock
),
e AS (
    INSERT INTO events (id, rev, type, to_state, at, attempt, run_at, deadline_at, actor,
        request_id, reason, correlation_id, data, body, digest)
    SELECT d.id, 1, {{event.job_created}}, ($21::smallint[])[g], now, 0,
        holdfast_time(coalesce(d.run_at, 0), now), holdfast_time(d.deadline_at, now),
        ($28::text[])[g], d.request_id, ($29::text[])[g], d.correlation_id,
        coalesce(d.data, ($30::text[])[g]), d.body, d.digest
    FROM d, clock
),
n AS (
    INSERT INTO counts
    SELECT ($24::text[])[g], ($27::text[])[g], ($21::smallint[])[g], count(*) FROM d GROUP BY g
):marks
SELECT now:hint FROM clock

-- name: submit_alike
-- Insert decided jobs that differ in id and body alone, with their first events: what they share
-- comes once, and what none of them has (keys, a parent, holds) not at all.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS now),
d AS (SELECT * FROM unnest($1::uuid[], $2::text[], $3::bytea[]) AS d(id, body, digest)),
j AS (
    INSERT INTO jobs (id, created_at, updated_at, run_at, deadline_at, needs, policy, rev, cpus,
        memory_mb, step_index, state, kind, priority, tenant, task, task_version, queue, workflow_id,
        claim_order, wake_at)
    SELECT d.id, now, now, holdfast_time($4::bigint, now), holdfast_time($5::bigint, now),
        $6::bigint, $7::bigint, 1, $8::int, $9::int, $10::int, $11::smallint, $12::smallint,
        $13::smallint, $14::text, $15::text, $16::text, $17::text, $18::text,
        holdfast_claim_order($11, NULL, NULL, holdfast_time($4, now), $13),
        holdfast_wake_at($11, NULL, holdfast_time($5, now), NULL, NULL)
    FROM d, clock
),
e AS (
    INSERT INTO events (id, rev, type, to_state, at, attempt, run_at, deadline_at, actor, reason,
        correlation_id, data, body, digest)
    SELECT d.id, 1, {{event.job_created}}, $11, now, 0, holdfast_time($4, now),
        holdfast_time($5, now), $19::text, $20::text, $21::text, $22::text, d.body, d.digest
    FROM d, clock
),
n AS (INSERT INTO counts VALUES ($14, $17, $11, cardinality($1)))
SELECT now:hint FROM clock

-- name: submit_marks
-- A parent that has got children: it may have been cancelled before.
-- Own to PostgreSQL: a part of the statement that most batches do not need.
,
m AS (
    INSERT INTO marks (id) SELECT DISTINCT parent_id FROM d WHERE link_kind = {{link.child}}
)

-- name: submit_hint
-- The hint that there may be work, as notices, sent by the commit and not without one.
-- Own to PostgreSQL: a part of the statement that a burst does without.
, (SELECT count(pg_notify(:channel, notice)) FROM unnest(:notices::text[]) AS notice)

-- name: submit_keys
-- Take keys in a fixed order, so that two submitters never wait for each other in a circle. $6 is
-- how long each is waited for, set before the first row is inserted: no round trip of its own.
INSERT INTO keys (tenant, kind, key, id, digest)
SELECT d.* FROM (SELECT set_config('lock_timeout', $6::text, true) AS set OFFSET 0) AS s
CROSS JOIN LATERAL unnest($1::text[], $2::smallint[], $3::text[], $4::uuid[], $5::bytea[]) AS d
WHERE s.set IS NOT NULL
ON CONFLICT DO NOTHING
RETURNING kind, id

-- name: key_holders
-- The oldest open transaction that has taken keys: most probably the one that is waited for.
-- Own to PostgreSQL: only here another transaction can hold a key that nobody sees yet.
SELECT a.pid, a.application_name, extract(epoch FROM clock_timestamp() - a.xact_start)::int
FROM pg_locks AS l CROSS JOIN LATERAL (
    SELECT * FROM pg_stat_activity WHERE pid = l.pid OFFSET 0) AS a
WHERE l.relation = 'keys'::regclass AND l.mode = 'RowExclusiveLock' AND l.granted
    AND a.datname = current_database() AND a.pid <> pg_backend_pid()
ORDER BY a.xact_start LIMIT 1

-- name: held_keys
-- Who holds these keys: read after the insert above, so that a winner that has just committed shows.
SELECT d.i, k.id, k.digest
FROM unnest($1::text[], $2::smallint[], $3::text[]) WITH ORDINALITY AS d(tenant, kind, key, i)
CROSS JOIN LATERAL (
    SELECT id, digest FROM keys
    WHERE tenant = d.tenant AND kind = d.kind AND key = d.key OFFSET 0) AS k

-- name: claim_range
-- One range (a lane of a queue and route), in its order, from a cursor up to what is due.
-- Own to PostgreSQL: rows are locked as they are claimed, so ranges are merged without locks
-- first.
FROM jobs AS j
WHERE :whose j.queue = r.queue AND {{law.postgres.route.j}} = r.route
    AND {{law.postgres.lane.j}} = r.lane
    AND j.claim_order <= (SELECT now FROM clock) + r.ageing AND j.claim_order >= r.start :within
ORDER BY j.claim_order, j.id

-- name: claim_whose
-- The jobs of one tenant; left out where any may be claimed, and for the default tenant, which has
-- lanes of its own.
-- Own to PostgreSQL: as above.
j.tenant = :tenant::text AND j.tenant <> 'default' AND

-- name: claim_next
-- The first range of a route between two lanes, and its first job. Not by a comparison of rows: where
-- the second column decides, PostgreSQL does not stop, but reads on to the end of the first one.
-- Own to PostgreSQL: as above.
SELECT w.route COLLATE "C" AS route, {{law.postgres.lane.j}} AS lane, j.claim_order AS head,
    j.id AS head_id
FROM jobs AS j
WHERE :whose j.queue = w.queue AND j.claim_order IS NOT NULL
    AND {{law.postgres.route.j}} = w.route
    AND {{law.postgres.lane.j}} > w.lane AND {{law.postgres.lane.j}} < w.last_lane
ORDER BY {{law.postgres.lane.j}}, j.claim_order, j.id LIMIT 1

-- name: claim_next_of_all
-- The first range between two, whatever its route: in the first route, between both, in the last.
-- Own to PostgreSQL: as above.
SELECT * FROM (
    (SELECT {{law.postgres.route.j}} AS route, {{law.postgres.lane.j}} AS lane,
        j.claim_order AS head, j.id AS head_id
    FROM jobs AS j
    WHERE :whose j.queue = w.queue AND j.claim_order IS NOT NULL
        AND {{law.postgres.route.j}} = w.route AND {{law.postgres.lane.j}} > w.lane
        AND {{law.postgres.lane.j}} < CASE WHEN w.route = w.last_route THEN w.last_lane
            ELSE 9223372036854775807 END
    ORDER BY {{law.postgres.lane.j}}, j.claim_order, j.id LIMIT 1)
    UNION ALL
    (SELECT {{law.postgres.route.j}}, {{law.postgres.lane.j}}, j.claim_order, j.id
    FROM jobs AS j
    WHERE :whose j.queue = w.queue AND j.claim_order IS NOT NULL
        AND {{law.postgres.route.j}} > w.route AND {{law.postgres.route.j}} < w.last_route
    ORDER BY {{law.postgres.route.j}}, {{law.postgres.lane.j}}, j.claim_order, j.id LIMIT 1)
    UNION ALL
    (SELECT {{law.postgres.route.j}}, {{law.postgres.lane.j}}, j.claim_order, j.id
    FROM jobs AS j
    WHERE :whose j.queue = w.queue AND j.claim_order IS NOT NULL
        AND w.route COLLATE "C" < w.last_route AND {{law.postgres.route.j}} = w.last_route
        AND {{law.postgres.lane.j}} < w.last_lane
    ORDER BY {{law.postgres.lane.j}}, j.claim_order, j.id LIMIT 1)
) AS n LIMIT 1

-- name: claim_served
-- Whether a worker may take jobs of a lane. $13: its capabilities; $14: whether it serves the default
-- tenant only. Checked for known ranges too: they were learned from claims of other workers.
-- Own to PostgreSQL: as above.
(lane & -8 = 0 OR EXISTS (
    SELECT 1 FROM needs AS n WHERE n.id = lane & -8 AND n.body::jsonb <@ $13::jsonb OFFSET 0))
    AND NOT ($14::boolean AND lane & 4 <> 0)

-- name: claim_open
-- Whether jobs of a range's queue may be claimed: none of a paused queue.
-- Own to PostgreSQL: as above.
NOT EXISTS (SELECT 1 FROM queues WHERE name = r.queue AND paused_at IS NOT NULL)

-- name: claim_due
-- The ranges that have a due job; a paused queue's have none. Two kinds: those found in the index by
-- jumping from lane to lane, of the queues $4 between ($5, $6) and ($7, $8), each a route and lane;
-- and those that the caller knows, entered at a cursor: queue $9, route $10, lane $11, cursor $12.
-- Own to PostgreSQL: as above.
found AS (
    SELECT w.queue, w.last_route, w.last_lane, f.*
    FROM unnest($4::text[], $5::text[], $6::bigint[], $7::text[], $8::bigint[])
        AS w(queue, route, lane, last_route, last_lane)
    CROSS JOIN LATERAL (:next) AS f
    UNION ALL
    SELECT w.queue, w.last_route, w.last_lane, f.*
    FROM found AS w CROSS JOIN LATERAL (:next) AS f
),
entered AS MATERIALIZED (
    SELECT queue, route, lane, {{law.ageing_of_lane}} AS ageing, head, head_id,
        -4611686018427387904 AS start
    FROM found WHERE :served
    UNION ALL
    SELECT r.queue, r.route, r.lane, r.ageing, first.*, r.start
    FROM (
        SELECT *, {{law.ageing_of_lane}} AS ageing
        FROM unnest($9::text[], $10::text[], $11::bigint[], $12::bigint[])
            AS r(queue, route, lane, start)
        WHERE :served OFFSET 0) AS r
    CROSS JOIN LATERAL (SELECT j.claim_order, j.id :range LIMIT 1) AS first
),
due AS MATERIALIZED (
    SELECT *, row_number() OVER (ORDER BY head, head_id) AS number FROM entered AS r
    WHERE head <= (SELECT now FROM clock) + ageing AND :open
)

-- name: claim_firsts
-- Which ranges have a due job: asked when a claim found nothing, because others held its heads.
-- Own to PostgreSQL: as above.
WITH RECURSIVE clock AS MATERIALIZED (SELECT holdfast_now() AS now),
:due
SELECT queue, route, lane FROM due ORDER BY number

-- name: claim_ranges
-- What to claim, from ranges. Where several have due jobs, a merge read without locks shows how many
-- rows of each to lock: PostgreSQL cannot merge locking scans lazily, and would lock every due row.
-- Nor does it merge the others lazily; so first it is found out where the merge ends at the latest:
-- there are $2 heads before, or of fewer ranges a sample, a few rows of each, has as many.
:due,
near AS MATERIALIZED (SELECT * FROM due ORDER BY number LIMIT $2),
cut AS MATERIALIZED (
    SELECT coalesce(CASE WHEN n >= $2 THEN (SELECT max(head) FROM near) WHEN n > 1 THEN (
        SELECT sample.claim_order FROM near AS r
        CROSS JOIN LATERAL (SELECT j.claim_order :range LIMIT 1 + 2 * $2 / n) AS sample
        ORDER BY 1 OFFSET $2 - 1 LIMIT 1) END, 9223372036854775807) AS last, n
    FROM (SELECT count(*) AS n FROM near) AS c
),
merged AS MATERIALIZED (
    SELECT number, count(*) AS n
    FROM (
        SELECT r.number FROM near AS r
        CROSS JOIN LATERAL (SELECT j.claim_order, j.id :cut_range LIMIT $2) AS head
        ORDER BY head.claim_order, head.id LIMIT $2) AS top
    GROUP BY number
),
picked AS MATERIALIZED (
    SELECT locked.* FROM near AS r
    CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.state, j.policy :range
        LIMIT CASE WHEN (SELECT n FROM cut) = 1 THEN $2
            ELSE coalesce((SELECT n FROM merged WHERE merged.number = r.number), 0) END
        FOR UPDATE SKIP LOCKED) AS locked
)

-- name: claim_known
-- What to claim, from one range that is known: of queue $4, route $5 and lane $6. Without a search
-- and a merge it takes two thirds of the time.
-- Own to PostgreSQL: as above.
picked AS MATERIALIZED (
    SELECT locked.*
    FROM (
        SELECT *, {{law.ageing_of_lane}} AS ageing, -4611686018427387904 AS start
        FROM (VALUES ($4::text, $5::text, $6::bigint)) AS r(queue, route, lane)
        WHERE :served AND :open OFFSET 0) AS r
    CROSS JOIN LATERAL (
        SELECT j.ctid AS tid, j.state, j.policy :range LIMIT $2 FOR UPDATE SKIP LOCKED) AS locked
)

-- name: claim_ids
-- What to claim, by id: rows that this transaction has locked already, $2 of them at most.
picked AS MATERIALIZED (
    SELECT ctid AS tid, state, policy FROM jobs WHERE id = ANY ($4::uuid[]) LIMIT $2
)

-- name: claim
-- The one place where SQL restates an edge of the law: queued, retrying, stalled -> claimed.
-- $1 request, $2 limit, $3 owner, the rest is what to pick. A picked row is locked, so it is where
-- it was found; one that had just moved there is not seen, and is left for the next claim.
WITH RECURSIVE clock AS MATERIALIZED (
    SELECT holdfast_now() AS now, value::integer AS epoch FROM meta WHERE key = 'epoch'
),
:picked,
u AS (
    UPDATE jobs AS j SET
        state = {{state.claimed}}, rev = j.rev + 1, attempt = j.attempt + 1, owner = $3,
        epoch = k.epoch, lease_expires_at = greatest(k.now, j.updated_at) + p.lease,
        timeout_at = greatest(k.now, j.updated_at) + p.start_timeout, started_at = NULL,
        lost_owner = NULL, updated_at = greatest(k.now, j.updated_at),
        claim_order = holdfast_claim_order({{state.claimed}}::smallint, j.held_by,
            j.quarantined_at, j.run_at, j.priority),
        wake_at = holdfast_wake_at({{state.claimed}}::smallint, j.quarantined_at, j.deadline_at,
            greatest(k.now, j.updated_at) + p.start_timeout, j.run_at)
    FROM (
        SELECT *, (SELECT now FROM clock) AS now, (SELECT epoch FROM clock) AS epoch
        FROM picked OFFSET 0) AS k
    -- LEFT: a job whose policy is missing gets no lease, and the law refuses the claim aloud.
    LEFT JOIN policies AS p ON p.id = k.policy
    WHERE j.ctid = k.tid
    RETURNING j.id, j.rev, j.attempt, j.failures, j.releases, j.epoch, j.lease_expires_at,
        j.run_at, j.deadline_at, j.created_at, j.updated_at, j.pending_signals, j.policy,
        j.tenant, j.queue, k.state AS from_state,
        j.updated_at + least(p.lease, p.running_lease) AS look_at
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
    -- A start may cut a claim's lease short: look when the shortest of them may have passed.
    SELECT $1, min(updated_at), min(look_at), min(epoch), $3, array_agg(id) FROM u
    HAVING count(*) > 0
)
SELECT u.id, r.data, r.body, r.correlation_id, u.rev, u.attempt, u.failures, u.releases, u.epoch,
    u.run_at, u.deadline_at, u.created_at, u.updated_at, u.pending_signals, u.policy
FROM u LEFT JOIN LATERAL (
    SELECT data, body, correlation_id FROM events WHERE id = u.id AND rev = 1 OFFSET 0) AS r ON true

-- name: pending
-- How a job's pending signals are read: their number, and each with its name and revision. In a
-- statement that locks nothing: after a wait for a lock the number would be newer than the names.
CASE WHEN :job.pending_signals IS NOT NULL THEN json_build_array(:job.pending_signals, (
    SELECT coalesce(json_agg(json_build_array(s.name, s.rev) ORDER BY s.rev), '[]')
    FROM signals AS s WHERE s.id = :job.id))::text END

-- name: claimed_signals
-- The pending signals of jobs that were just claimed.
-- Own to PostgreSQL: a statement that locks cannot read them: after a wait for a lock the
-- number would be newer than the names.
SELECT j.id, {{columns.pending.j}} FROM jobs AS j WHERE id = ANY ($1::uuid[])

-- name: commit
-- A batch of compare-and-set writes. d: a row per job, with what it shares with no other. All else
-- is its shape, which most jobs of a batch have in common: `:shape` is what the row of a job of that
-- shape gets. Spans count from the start that the write contains (`started`, 0 or less), else from
-- now. NULL keeps a column: a matching rev proves that the row is the one decided on. `rest` holds
-- what most changes leave alone. Flags: 1, an owner's write, which needs a live lease of the present
-- epoch by this clock; 2, it contains a start, 4, which comes last and so is the job's last time; 8,
-- the last event's digest is the result's.
WITH clock AS MATERIALIZED (
    SELECT holdfast_now() AS now, value::integer AS epoch FROM meta WHERE key = 'epoch'
),
u AS (
    UPDATE jobs AS j SET
        state = :shape.state,
        rev = :shape.expected + :shape.events,
        beats = :shape.beats,
        updated_at = CASE WHEN :shape.flags & 4 = 4
            THEN greatest(greatest(d.now, j.updated_at) + d.started, j.updated_at)
            ELSE greatest(d.now, j.updated_at) END,
        owner = CASE WHEN :shape.owned THEN coalesce(d.rest->>'owner', j.owner) END,
        epoch = CASE WHEN :shape.owned THEN coalesce((d.rest->>'epoch')::int, j.epoch) END,
        lease_expires_at = CASE WHEN :shape.owned THEN coalesce(
            greatest(d.now, j.updated_at) + d.started + :shape.lease, j.lease_expires_at) END,
        timeout_at = CASE WHEN :shape.owned THEN CASE WHEN :shape.flags & 2 = 2
            THEN greatest(d.now, j.updated_at) + d.started + :shape.timeout
            ELSE j.timeout_at END END,
        started_at = CASE WHEN :shape.flags & 2 = 2
            THEN greatest(greatest(d.now, j.updated_at) + d.started, j.updated_at)
            ELSE j.started_at END,
        finished_at = CASE WHEN :shape.state >= {{state.succeeded}}
            THEN coalesce(j.finished_at, greatest(d.now, j.updated_at)) END,
        result_digest = CASE WHEN :shape.flags & 8 = 8 THEN d.digest
            ELSE coalesce(decode(d.rest->>'result_digest', 'hex'), j.result_digest) END,
        claim_order = holdfast_claim_order(:shape.state, :held_by, j.quarantined_at, :run_at,
            j.priority),
        wake_at = holdfast_wake_at(:shape.state, j.quarantined_at, j.deadline_at, j.timeout_at,
            :run_at),
        live_parent_id = holdfast_live_parent_id(:shape.state, j.link_kind, j.parent_id):rest
    FROM (
        SELECT *, (SELECT now FROM clock) AS now, (SELECT epoch FROM clock) AS epoch
        FROM (:rows) AS d OFFSET 0) AS d
    WHERE j.id = ANY (ARRAY[d.id]) AND j.rev = :shape.expected
        AND (:shape.flags & 1 = 0 OR (j.lease_expires_at > d.now AND j.epoch = d.epoch))
    RETURNING :returned, j.started_at,
        CASE WHEN :shape.flags & 4 = 4 THEN greatest(d.now, d.floor) ELSE j.updated_at END AS base
),
:events,
:beats
:marks
:signals
n AS (
    INSERT INTO counts :counts
)
SELECT now, CASE WHEN (SELECT count(*) FROM u) < cardinality($1)
    THEN ARRAY(SELECT id FROM u) END
FROM clock

-- name: commit_rows
-- The jobs of a commit, each with its shape k: $10 to $17 hold what the jobs of a shape share.
-- Own to PostgreSQL: a part of the statement.
SELECT *, ($10::int[])[k] AS expected, ($11::smallint[])[k] AS state, ($12::smallint[])[k] AS flags,
    ($13::smallint[])[k] AS events,
    ($11::smallint[])[k] IN ({{state.claimed}}, {{state.running}}) AS owned
FROM (
    SELECT id, coalesce(k, 1) AS k, coalesce(started, 0) AS started, floor, lease, data, body,
        digest, rest
    FROM unnest($1::uuid[], $2::int[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[],
        $7::text[], $8::bytea[], $9::jsonb[])
    AS d(id, k, started, floor, lease, data, body, digest, rest)) AS d

-- name: commit_returned
-- What their events and the summaries need of each.
-- Own to PostgreSQL: as above.
d.id, d.expected, d.k, d.events, d.started, d.lease, d.data, d.body, d.digest, d.rest AS rest

-- name: commit_events
-- Their events: $18 and on hold what these contain, those of shape k from number $17[k] + 1 on.
-- Own to PostgreSQL: as above.
x AS (
    SELECT u.*, n, n = u.events AS last, ($17::int[])[k] + n AS t
    FROM u, generate_series(1, $18::int) AS n WHERE n <= u.events OFFSET 0
),
e AS (
    INSERT INTO events (id, rev, type, from_state, to_state, at, attempt, beats, lease_expires_at,
        run_at, actor, request_id, reason, data, body, digest)
    SELECT id, expected + n, ($19::smallint[])[t], ($20::smallint[])[t], ($21::smallint[])[t],
        CASE WHEN ($22::boolean[])[t] THEN started_at ELSE base END,
        ($23::int[])[t], ($24::int[])[t],
        CASE ($25::bigint[])[t] WHEN 0 THEN lease ELSE base + started + ($25::bigint[])[t] END,
        holdfast_time(($26::bigint[])[t], base), coalesce(($27::text[])[t], $31),
        coalesce(($28::text[])[t], $32), ($29::text[])[t],
        CASE WHEN last THEN data ELSE ($30::text[])[t] END,
        CASE WHEN last THEN body WHEN rest IS NOT NULL THEN rest->'bodies'->>n::text END,
        CASE WHEN last THEN digest
            WHEN rest IS NOT NULL THEN decode(rest->'digests'->>n::text, 'hex') END
    FROM x WHERE ($19::smallint[])[t] NOT IN ({{event.job_heartbeat}}, {{event.job_lease_renewed}})
)

-- name: commit_counts
-- What they add to the summaries, by the moves $33 to $37.
-- Own to PostgreSQL: as above.
SELECT ($34::text[])[g], ($35::text[])[g], y.state, y.delta
FROM (SELECT ($33::int[])[k] AS g, count(*) AS n FROM u GROUP BY 1) AS m
CROSS JOIN LATERAL (
    VALUES (($36::smallint[])[g], -m.n), (($37::smallint[])[g], m.n)) AS y(state, delta)
WHERE g > 0

-- name: planned_rows
-- The jobs of a commit that all have one shape, whose numbers stand in the statement itself: what
-- it would ask of each job, the planner then answers once.
-- Own to PostgreSQL: as above.
SELECT id, started, body, digest, NULL::bigint AS floor
FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::bytea[]) AS d(id, started, body, digest)

-- name: planned_returned
-- What their events need of each.
-- Own to PostgreSQL: as above.
d.id, d.started, d.body, d.digest

-- name: planned_events
-- Their two events. $5 the revision before, $6 the attempt, $7 the lease that the start grants.
-- Own to PostgreSQL: as above.
e AS (
    INSERT INTO events (id, rev, type, from_state, to_state, at, attempt, lease_expires_at, actor,
        request_id, body, digest)
    SELECT id, $5 + 1, :start.type, :start.from_state, :start.to_state, started_at, $6::int,
        base + started + $7::bigint, $8::text, $9::text, NULL, NULL
    FROM u
    UNION ALL
    SELECT id, $5 + 2, :success.type, :success.from_state, :success.to_state, base, $6,
        base + started + $7, $8, $9, body, digest
    FROM u
)

-- name: planned_counts
-- What they add to the summaries of tenant $10 and queue $11.
-- Own to PostgreSQL: as above.
SELECT $10::text, $11::text, y.state, y.delta
FROM (SELECT count(*) AS n FROM u) AS m
CROSS JOIN LATERAL (
    VALUES (:start.from_state, -m.n), (:success.to_state, m.n)) AS y(state, delta)
WHERE m.n > 0

-- name: commit_rest
-- The columns that most commits leave alone; NULL keeps them.
-- Own to PostgreSQL: a part of the statement that most batches do not need.
,
    run_at = :run_at,
    wait_for = CASE WHEN d.rest IS NULL OR d.state = {{state.waiting}}
        THEN coalesce(d.rest->>'wait_for', j.wait_for) END,
    failures = coalesce((d.rest->>'failures')::int, j.failures),
    releases = coalesce((d.rest->>'releases')::int, j.releases),
    held_by = :held_by,
    cancel_requested = coalesce((d.rest->>'cancel_requested')::smallint, j.cancel_requested),
    pending_signals = nullif(
        coalesce((d.rest->>'pending_signals')::int, j.pending_signals), 0),
    late_results = coalesce(d.rest->>'late_results', j.late_results),
    lost_owner = coalesce(d.rest->>'lost_owner', j.lost_owner),
    error_code = coalesce(d.rest->>'error_code', j.error_code),
    exit_code = coalesce((d.rest->>'exit_code')::int, j.exit_code),
    result_ptr = coalesce(d.rest->>'result_ptr', j.result_ptr),
    letter = coalesce((d.rest->>'letter')::smallint, j.letter),
    retention = coalesce((d.rest->>'retention')::smallint, j.retention):terms

-- name: commit_run_at
-- When a job is due after the write. Not only its own column follows from it.
-- Own to PostgreSQL: as above.
CASE WHEN d.rest IS NULL THEN j.run_at
        WHEN d.state = {{state.waiting}} AND j.state <> {{state.waiting}}
        THEN holdfast_time((d.rest->>'run_at')::bigint, greatest(d.now, j.updated_at))
        ELSE coalesce(holdfast_time((d.rest->>'run_at')::bigint, greatest(d.now, j.updated_at)),
            j.run_at) END

-- name: commit_held_by
-- What holds a job after the write.
-- Own to PostgreSQL: as above.
nullif(coalesce(d.rest->>'held_by', j.held_by), '[]')

-- name: commit_terms
-- Corrected terms; a column of its own, so that its trigger is only looked at where it is set.
-- Own to PostgreSQL: as above.
,
    policy = coalesce((d.rest->>'policy')::bigint, j.policy)

-- name: commit_beats
-- The heartbeats among the events, kept apart.
b AS (
    INSERT INTO beats (id, at, lease_expires_at, rev, attempt, type, state, actor, request_id,
        reason)
    SELECT id, base,
        CASE ($25::bigint[])[t] WHEN 0 THEN lease ELSE base + started + ($25::bigint[])[t] END,
        expected + n, ($23::int[])[t], ($19::smallint[])[t], ($21::smallint[])[t],
        coalesce(($27::text[])[t], $31), coalesce(($28::text[])[t], $32), ($29::text[])[t]
    FROM x WHERE ($19::smallint[])[t] IN ({{event.job_heartbeat}}, {{event.job_lease_renewed}})
),

-- name: commit_marks
-- Families that have to be looked at after accepted changes: for certain, or if the job has
-- children at all. $38 to $40: the changed job, the marked one, whether it is certain.
-- Own to PostgreSQL: as above.
m AS (
    INSERT INTO marks (id)
    SELECT d.marked
    FROM unnest($38::uuid[], $39::uuid[], $40::boolean[]) AS d(id, marked, certain)
    WHERE d.id IN (SELECT id FROM u) AND (d.certain OR EXISTS (
        SELECT 1 FROM jobs AS c WHERE c.parent_id = d.marked AND c.link_kind = {{link.child}}
        OFFSET 0))
),

-- name: commit_signals
-- Signals that became pending by accepted changes, and without a name those that were consumed: a
-- row of its own each, so that one more costs the same however many there are. $41 to $43: the job,
-- the revision of the event that brought it, its name. That event is the truth, whatever was there.
-- Own to PostgreSQL: as above.
s AS (
    INSERT INTO signals (id, rev, name)
    SELECT d.id, d.rev, d.name
    FROM unnest($41::uuid[], $42::int[], $43::text[]) AS d(id, rev, name)
    WHERE d.name IS NOT NULL AND d.id IN (SELECT id FROM u)
    ON CONFLICT (id, rev) DO UPDATE SET name = excluded.name
),
o AS (
    DELETE FROM signals AS s
    USING unnest($41::uuid[], $42::int[], $43::text[]) AS d(id, rev, name)
    WHERE s.id = ANY (ARRAY[d.id]) AND s.rev = d.rev AND d.name IS NULL
        AND d.id IN (SELECT id FROM u)
),

-- name: free_keys
-- Free keys whose term ended with this write: kinds are a bit mask per job.
DELETE FROM keys USING unnest($1::uuid[], $2::int[]) AS d(id, kinds)
WHERE keys.id = ANY (ARRAY[d.id]) AND keys.kind & d.kinds <> 0

-- name: event_at
-- The event at a revision, for settling a write whose reply was lost.
SELECT {{columns.events.e}}
FROM unnest($1::uuid[], $2::int[]) AS d(id, rev)
CROSS JOIN LATERAL (
    SELECT {{columns.events}} FROM events WHERE id = d.id AND rev = d.rev
    UNION ALL
    SELECT {{columns.beats}} FROM beats WHERE id = d.id AND rev = d.rev) AS e

-- name: lock_job
-- Lock a job: the next writer waits. It is read by get, once nobody can change it.
-- Own to PostgreSQL: the one writer of SQLite needs no lock.
SELECT 1 FROM jobs WHERE id = $1::uuid FOR UPDATE

-- name: lock_unlocked
-- Lock those of these jobs that nobody has locked, without waiting; returns the others.
-- Own to PostgreSQL: as above.
WITH mine AS MATERIALIZED (
    SELECT id FROM jobs WHERE id = ANY ($1::uuid[]) FOR NO KEY UPDATE SKIP LOCKED
)
SELECT id FROM jobs WHERE id = ANY ($1::uuid[]) AND id NOT IN (SELECT id FROM mine)

-- name: add_policies
-- Remember policies: content-addressed, so the first writer's row is everyone's.
INSERT INTO policies (id, body, lease, running_lease, start_timeout)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[], $5::bigint[])
ON CONFLICT DO NOTHING

-- name: add_needs
-- Remember sets of needs, or that they were named again.
INSERT INTO needs AS n (id, body, used_at)
SELECT d.id, d.body, holdfast_now() FROM unnest($1::bigint[], $2::text[]) AS d(id, body)
ON CONFLICT (id) DO UPDATE SET used_at = excluded.used_at
WHERE n.used_at < excluded.used_at - 600000000

-- name: tenant_names
-- The queues and the sets of needs that a tenant's jobs have, and what was set of the limits.
SELECT 'queue', queue FROM (SELECT DISTINCT queue FROM counts WHERE tenant = $1) AS q
UNION ALL
SELECT 'needs', n.id::text FROM needs AS n WHERE EXISTS (
    SELECT 1 FROM jobs AS j WHERE j.needs = n.id AND j.needs <> 0 AND j.tenant = $1 OFFSET 0)
UNION ALL
SELECT key, value FROM meta WHERE key = ANY ($2::text[])

-- name: claim_of
-- What a claim request took, with how it stands now.
SELECT c.owner,
    j.owner = c.owner AND j.attempt = e.attempt AND j.lease_expires_at > holdfast_now()
        AND j.epoch = (SELECT value::integer FROM meta WHERE key = 'epoch') AS current,
    j.id, r.data, r.body, r.correlation_id, {{columns.jobs.j}}
FROM claims AS c
CROSS JOIN LATERAL unnest(c.ids) AS k(id)
JOIN jobs AS j ON j.id = ANY (ARRAY[k.id])
CROSS JOIN LATERAL (
    SELECT attempt FROM events
    WHERE id = k.id AND type = {{event.job_claimed}} AND request_id = c.request_id OFFSET 0) AS e
CROSS JOIN LATERAL (
    SELECT data, body, correlation_id FROM events WHERE id = k.id AND rev = 1 OFFSET 0) AS r
WHERE c.request_id = $1

-- name: lock_due
-- Candidates for a worker with bounded resources: locked, of each range a bounded look-ahead.
-- Own to PostgreSQL: as above.
WITH RECURSIVE clock AS MATERIALIZED (SELECT holdfast_now() AS now),
:due
SELECT locked.* FROM due AS r
CROSS JOIN LATERAL (
    SELECT j.claim_order, j.id, j.cpus, j.memory_mb, (SELECT now FROM clock) - j.run_at :range
    LIMIT $12 FOR UPDATE SKIP LOCKED) AS locked

-- name: lock_some
-- Due jobs of any ranges, locked, $12 at most: what is locked and not claimed is kept from others.
-- The loop over ranges ends with the last one that is wanted.
-- Own to PostgreSQL: as above.
WITH RECURSIVE clock AS MATERIALIZED (SELECT holdfast_now() AS now),
:due
SELECT locked.id FROM due AS r
CROSS JOIN LATERAL (SELECT j.id :range LIMIT $12 FOR UPDATE SKIP LOCKED) AS locked
LIMIT $12

-- name: step_events
-- What one job recorded of some steps, each by its name and its use.
SELECT {{columns.events}} FROM events
WHERE id = $1
    AND type IN ({{event.step_started}}, {{event.step_completed}}, {{event.step_failed}})
    AND (data::jsonb ->> 'step', (data::jsonb ->> 'step_use')::integer)
        IN (SELECT * FROM unnest($2::text[], $3::integer[]))
ORDER BY rev DESC

-- name: events_by_correlation
-- B19: (correlation_id), through the first event that carries it.
SELECT {{columns.events.e}} FROM events AS f
CROSS JOIN LATERAL (SELECT * FROM events WHERE id = f.id OFFSET 0) AS e
WHERE f.correlation_id = $1 AND e.at >= $2 AND e.at < $3 AND ($5::int IS NULL OR e.type = $5)
ORDER BY e.at, e.id, e.rev LIMIT $4

-- name: tail
-- All events of a window of transactions that have ended: nothing can appear behind it.
SELECT xid, {{columns.events}} FROM events
WHERE xid >= $1 AND xid < $2 AND (xid, id, rev) > ($1, $3::uuid, $4::int)
ORDER BY xid, id, rev LIMIT $5

-- name: tail_bounds
-- Up to where the tail may read, where the next transaction will be, and who holds it back. Where
-- earlier lineages ended, and whether the database has moved since the last started: lineage.py.
-- Own to PostgreSQL: transactions are under way beside each other, and belong to a cluster.
SELECT base + txid_snapshot_xmin(txid_current_snapshot()) AS oldest,
    base + txid_snapshot_xmax(txid_current_snapshot()) AS newest,
    (SELECT pid FROM pg_stat_activity WHERE backend_xid IS NOT NULL AND pid <> pg_backend_pid()
     ORDER BY age(backend_xid) DESC LIMIT 1) AS blocker,
    ends, holdfast_moved() AS moved
FROM (
    SELECT value::bigint[] AS ends, cardinality(value::bigint[]) * {{law.lineage}} AS base
    FROM meta WHERE key = 'tail_ends') AS lineage

-- name: start_lineage
-- Let positions in the tail continue above all earlier ones; $1: only if the database has moved.
-- Own to PostgreSQL: positions in the tail belong to a cluster.
SELECT holdfast_begin_lineage($1)

-- name: due_claims
-- Claims of which a lease may have passed, or which were made before a restore.
SELECT request_id, ids, at FROM (
    (SELECT request_id, CASE WHEN held THEN ids ELSE '{}' END AS ids, at, expires_at FROM claims
     WHERE expires_at <= $1 ORDER BY expires_at LIMIT $3)
    UNION
    (SELECT request_id, ids, at, expires_at FROM claims
     WHERE epoch < $2 AND held ORDER BY epoch LIMIT $3)) AS c
ORDER BY expires_at LIMIT $3

-- name: push_claims
-- Look at these claims again when their next lease may have passed. One of which nothing is held
-- is closed: an owner that has died never does so.
UPDATE claims AS c SET expires_at = d.expires_at, held = c.held AND d.held
FROM unnest($1::text[], $2::bigint[], $3::boolean[]) AS d(request_id, expires_at, held)
WHERE c.request_id = ANY (ARRAY[d.request_id])

-- name: quarantine
-- Set a job aside; one that is keeps its first reason.
UPDATE jobs SET quarantined_at = holdfast_now(), quarantine = $2,
    claim_order = NULL, wake_at = NULL
WHERE id = $1 AND quarantined_at IS NULL
RETURNING id

-- name: release_quarantined
-- Let jobs be claimed and swept again: their ids, their queues, and whether each has an owner.
UPDATE jobs SET quarantined_at = NULL, quarantine = NULL,
    claim_order = holdfast_claim_order(state, held_by, NULL, run_at, priority),
    wake_at = holdfast_wake_at(state, NULL, deadline_at, timeout_at, run_at)
WHERE id {{any.uuid.1}} AND quarantined_at IS NOT NULL
RETURNING id, queue, owner IS NOT NULL

-- name: unmark
-- Remove marks that were seen; one that another is just removing is left to it.
DELETE FROM marks WHERE number = ANY (ARRAY(
    SELECT number FROM marks WHERE number = ANY ($1::bigint[]) FOR UPDATE SKIP LOCKED))

-- name: children
-- Children of some parents, up to $3 of each, oldest first, after an id.
SELECT {{columns.row.c}} FROM unnest($1::uuid[]) AS p(id)
CROSS JOIN LATERAL (
    SELECT {{columns.jobs}} FROM jobs
    WHERE parent_id = p.id AND id > $2 AND link_kind = {{link.child}}
    ORDER BY parent_id, id LIMIT $3) AS c
ORDER BY c.parent_id, c.id

-- name: live_children
-- The same, those that have not ended.
SELECT {{columns.row.c}} FROM unnest($1::uuid[]) AS p(id)
CROSS JOIN LATERAL (
    SELECT {{columns.jobs}} FROM jobs
    WHERE live_parent_id = p.id AND id > $2 ORDER BY live_parent_id, id LIMIT $3) AS c
ORDER BY c.parent_id, c.id

-- name: families
-- Parents of live children, and jobs that wait for children, by id.
SELECT id FROM (
    (SELECT DISTINCT live_parent_id AS id FROM jobs WHERE live_parent_id > $1
        ORDER BY live_parent_id LIMIT $2)
    UNION
    (SELECT id FROM jobs WHERE left(wait_for, 17) = 'holdfast:children' AND id > $1
        ORDER BY id LIMIT $2)) AS f
ORDER BY id LIMIT $2

-- name: owned
-- What an owner holds. A claim of which it holds nothing any more is not looked at again: else
-- each look would read all that was claimed in the minutes for which claims are remembered. The owner
-- knows it of the claims $2, if it knows of all their jobs ($3 of each); those of the last $4
-- microseconds are left for the next look.
WITH ended AS MATERIALIZED (
    SELECT d.request_id FROM unnest($2::text[], $3::int[]) AS d(request_id, jobs)
    CROSS JOIN LATERAL (
        SELECT 1 FROM claims AS c WHERE c.request_id = d.request_id AND c.owner = $1 AND c.held
            AND cardinality(c.ids) = d.jobs OFFSET 0) AS known
),
old AS MATERIALIZED (
    SELECT request_id, ids FROM claims
    WHERE owner = $1 AND held AND at <= (SELECT holdfast_now()) - $4::bigint
        AND request_id NOT IN (SELECT request_id FROM ended)
),
found AS MATERIALIZED (
    SELECT c.request_id, {{columns.jobs.j}} FROM old AS c
    CROSS JOIN LATERAL unnest(c.ids) AS k(id)
    JOIN jobs AS j ON j.id = ANY (ARRAY[k.id]) AND j.owner = $1 AND j.quarantined_at IS NULL
),
over AS (
    UPDATE claims SET held = false WHERE request_id = ANY (ARRAY(
        SELECT c.request_id FROM claims AS c
        WHERE c.owner = $1 AND c.held AND c.request_id = ANY (ARRAY(
            SELECT request_id FROM ended
            UNION ALL (SELECT request_id FROM old EXCEPT SELECT request_id FROM found)))
        -- A sweep that just looks at it may wait for us; so we wait for nobody.
        FOR UPDATE SKIP LOCKED))
)
SELECT {{columns.row}} FROM found

-- name: held
-- Jobs under a hold, by id. OFFSET 0: each is looked up by its id, and the page may end early. A
-- row is compared, for the index on ids alone has the order, too, and would read other holds.
SELECT {{columns.jobs.j}} FROM holds AS h
CROSS JOIN LATERAL (
    SELECT * FROM jobs WHERE id = h.id AND quarantined_at IS NULL OFFSET 0) AS j
WHERE h.hold = $1 AND (h.hold, h.id) > ($1, $2) ORDER BY h.id LIMIT $3

-- name: owned_on
-- What the workers of a range of names hold, but for one of them. Its claims are not closed here:
-- they are other workers', who may just be claiming.
SELECT {{columns.jobs.j}} FROM jobs AS j
WHERE j.id = ANY (ARRAY(
        SELECT k.id FROM claims AS c CROSS JOIN LATERAL unnest(c.ids) AS k(id)
        WHERE c.held AND c.owner ~>=~ $1 AND c.owner ~<~ $2 AND c.owner <> $3))
    AND j.owner ~>=~ $1 AND j.owner ~<~ $2 AND j.owner <> $3 AND j.quarantined_at IS NULL
    AND ($4::integer >> j.kind) & 1 = 1
ORDER BY j.id LIMIT $5

-- name: add_claims
-- An adopted or rebuilt job gets a claim of its own, for those who look for what is held. One
-- that is rebuilt again at the same revision has it already, and it may have been closed meanwhile.
INSERT INTO claims (request_id, at, expires_at, epoch, owner, ids)
SELECT 'job:' || j.id || ':' || j.rev, j.updated_at, 0, j.epoch, j.owner,
    ARRAY[j.id]
FROM jobs AS j WHERE j.id = ANY ($1::uuid[])
ON CONFLICT (request_id) DO UPDATE SET held = true, expires_at = excluded.expires_at

-- name: counts
-- Summaries.
SELECT tenant, queue, state, sum(delta) FROM counts
WHERE $1::text IS NULL OR tenant = $1 GROUP BY 1, 2, 3 HAVING sum(delta) <> 0 ORDER BY 1, 2, 3

-- name: fold_counts
-- Fold deltas; a second sweep takes other rows, or none. Returns how many there were, and are.
-- Own to PostgreSQL: summaries are kept as deltas, because a row for each state would be
-- written by all.
WITH gone AS (
    DELETE FROM counts WHERE ctid = ANY (
        ARRAY(SELECT ctid FROM counts LIMIT 10000 FOR UPDATE SKIP LOCKED))
    RETURNING *
),
folded AS (
    INSERT INTO counts
    SELECT tenant, queue, state, sum(delta) FROM gone GROUP BY 1, 2, 3 HAVING sum(delta) <> 0
    RETURNING 1
)
SELECT (SELECT count(*) FROM gone), (SELECT count(*) FROM folded)

-- name: forget_workers
-- Forget some workers that were not seen for long: two that do so at once take different ones, and
-- nobody takes its own.
DELETE FROM workers WHERE name = ANY (ARRAY(
    SELECT name FROM workers WHERE name <> $1 AND seen_at < holdfast_now() - $2::bigint
    ORDER BY seen_at LIMIT $3 FOR UPDATE SKIP LOCKED))

-- name: publish_terms
-- Keep terms of tasks, in the order of their names so that two publishers never wait in a circle;
-- the last publisher's hold.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS now)
INSERT INTO task_terms (tenant, task, published_at, body)
SELECT $3::text, d.task, now, d.body
FROM clock, unnest($1::text[], $2::text[]) AS d(task, body) ORDER BY d.task COLLATE "C"
ON CONFLICT (tenant, task) DO UPDATE SET published_at = excluded.published_at, body = excluded.body

-- name: forget_terms
-- Forget the terms of a tenant that were published longest ago, beyond a number.
DELETE FROM task_terms WHERE tenant = $1 AND task = ANY (ARRAY(
    SELECT task FROM task_terms WHERE tenant = $1
    ORDER BY published_at DESC OFFSET $2 FOR UPDATE SKIP LOCKED))

-- name: continued
-- Those of some jobs whose records another may still read: a retry, redrive or compensation, at any
-- remove, that has not ended or whose dead letter is open.
SELECT g.id FROM unnest($1::uuid[]) AS g(id)
WHERE EXISTS (
    WITH RECURSIVE line AS (
        SELECT c.id, c.finished_at, c.letter FROM jobs AS c
        WHERE c.parent_id = g.id AND c.link_kind <> {{link.child}}
        UNION
        SELECT c.id, c.finished_at, c.letter FROM line
        CROSS JOIN LATERAL (
            SELECT id, finished_at, letter FROM jobs
            WHERE parent_id = line.id AND link_kind <> {{link.child}} OFFSET 0) AS c)
    SELECT 1 FROM line WHERE finished_at IS NULL OR letter = {{letter.open}})

-- name: purge_events
-- Then their events,
WITH gone AS (DELETE FROM events WHERE id = ANY ($1::uuid[]) RETURNING 1)
SELECT count(*) FROM gone

-- name: purge_counts
-- The summaries no longer count them.
-- Own to PostgreSQL: summaries are kept as deltas.
INSERT INTO counts
SELECT tenant, queue, state, -count(*)
FROM unnest($1::text[], $2::text[], $3::smallint[]) AS d(tenant, queue, state) GROUP BY 1, 2, 3

-- name: purge_ids
-- What is left of purged jobs, under their entry $3.
INSERT INTO purged (id, tenant, purge)
SELECT d.id, d.tenant, $3 FROM unnest($1::uuid[], $2::text[]) AS d(id, tenant)

-- name: keep_logs
-- Lines of jobs' logs, in their order.
INSERT INTO logs (id, attempt, at, level, message)
SELECT id, attempt, at, level, message
FROM unnest($1::uuid[], $2::integer[], $3::bigint[], $4::integer[], $5::text[])
    WITH ORDINALITY AS given (id, attempt, at, level, message, number)
ORDER BY number

-- name: trim_logs
-- Keep the newest lines of each job's log.
DELETE FROM logs AS l USING unnest($1::uuid[]) AS given (id)
WHERE l.id = given.id AND l.position <= (
    SELECT position FROM logs WHERE id = given.id ORDER BY position DESC OFFSET $2 LIMIT 1)

-- name: drop_beats
-- Drop old heartbeats, but never the one that a present lease rests on.
DELETE FROM beats WHERE ctid = ANY (ARRAY(
    SELECT b.ctid FROM beats AS b
    WHERE b.at < $1 AND NOT EXISTS (
        SELECT 1 FROM jobs AS j WHERE j.id = b.id AND j.rev = b.rev OFFSET 0)
    ORDER BY b.at LIMIT $2))
RETURNING rev

-- name: bump_epoch
-- Fence all claims made so far.
-- Own to PostgreSQL: one statement, so that it waits for nobody.
UPDATE meta SET value = (value::integer + 1)::text WHERE key = 'epoch' RETURNING value::integer

-- name: ledger_end
-- The highest id there is after $1, of whatever is left of it.
SELECT greatest(
    (SELECT id FROM jobs WHERE id > $1 ORDER BY id DESC LIMIT 1),
    (SELECT id FROM events WHERE id > $1 ORDER BY id DESC LIMIT 1),
    (SELECT id FROM beats WHERE id > $1 ORDER BY id DESC LIMIT 1),
    (SELECT id FROM keys WHERE id > $1 ORDER BY id DESC LIMIT 1))

-- name: ledger_bound
-- Where the next batch of the ledger ends: after $2 jobs, or $3 events, heartbeats or keys, so that
-- it is bounded also where rows are missing; at $4 at the latest.
SELECT least($4::uuid,
    (SELECT id FROM jobs WHERE id > $1 ORDER BY id OFFSET $2 - 1 LIMIT 1),
    (SELECT id FROM events WHERE id > $1 ORDER BY id, rev OFFSET $3 - 1 LIMIT 1),
    (SELECT id FROM beats WHERE id > $1 ORDER BY id, rev OFFSET $3 - 1 LIMIT 1),
    (SELECT id FROM keys WHERE id > $1 ORDER BY id OFFSET $3 - 1 LIMIT 1))

-- name: ledger_unclaimed
-- Jobs between two ids that are held though no claim of their owner names them.
SELECT id FROM jobs AS j WHERE id > $1 AND id <= $2 AND owner IS NOT NULL AND NOT EXISTS (
    -- OFFSET 0: looked up by owner for each job, never joined as a whole.
    SELECT 1 FROM claims AS c WHERE c.owner = j.owner AND c.held AND j.id = ANY (c.ids)
    OFFSET 0)

-- name: dictionary
-- All policies and needs, with what of them stands in columns.
SELECT 'policy', id, body, lease, running_lease, start_timeout FROM policies
UNION ALL SELECT 'needs', id, body, NULL, NULL, NULL FROM needs

-- name: size
-- How many jobs there are, about.
SELECT greatest(reltuples::bigint, 0) FROM pg_class WHERE oid = 'jobs'::regclass

-- name: size_exactly
-- Counted, for a table that was never analysed.
-- Own to PostgreSQL: `size` only estimates.
SELECT count(*) FROM jobs

-- name: find
-- A page of jobs, newest first, narrowed by one of the blocks below: the index to read by. Tenant
-- and queue are ranges, and ordered by: whatever the planner expects, only their index has both.
-- Looking for them among the newest of all may mean to read all.
SELECT {{columns.jobs.j}} FROM jobs AS j
WHERE :narrow
    AND ($1::text IS NULL OR j.tenant = $1)
    AND ($2::smallint[] IS NULL OR j.state = ANY ($2))
    AND ($3::text IS NULL OR j.queue = $3)
    AND ($4::text IS NULL OR j.task = $4)
    AND ($5::uuid IS NULL OR j.parent_id = $5)
    AND ($6::text IS NULL OR j.workflow_id = $6)
    AND ($7::text IS NULL OR j.id IN (SELECT id FROM events WHERE correlation_id = $7))
    AND ($8::text IS NULL OR j.error_code = $8)
    AND ($9::smallint IS NULL OR j.letter = $9)
    AND j.created_at >= $10 AND j.created_at < $11
    AND j.id < $12 AND j.id >= $14
    AND ($15::text IS NULL OR EXISTS (SELECT 1 FROM events AS born
        WHERE born.id = j.id AND born.rev = 1
            AND born.data::jsonb -> 'labels' @> $15::jsonb))
ORDER BY :order j.id DESC LIMIT $13

-- name: narrow_tenant
j.tenant >= $1 AND j.tenant <= $1 AND j.tenant <> 'default'

-- name: narrow_queue
j.queue >= $3 AND j.queue <= $3 AND j.queue <> 'default'

-- name: narrow_correlation_id
j.id = ANY (ARRAY(SELECT id FROM events WHERE correlation_id = $7))

-- name: last_revs
-- The revisions of jobs' last events or heartbeats.
SELECT d.id, greatest(
    (SELECT rev FROM events WHERE id = d.id ORDER BY rev DESC LIMIT 1),
    (SELECT rev FROM beats WHERE id = d.id ORDER BY rev DESC LIMIT 1))
FROM unnest($1::uuid[]) AS d(id)

-- name: restore_jobs
-- Insert a projection as its events have it.
INSERT INTO jobs ({{columns.row}}, claim_order, wake_at, live_parent_id)
SELECT {{columns.row.j}},
    holdfast_claim_order(j.state, j.held_by, NULL, j.run_at, j.priority),
    holdfast_wake_at(j.state, NULL, j.deadline_at, j.timeout_at, j.run_at),
    holdfast_live_parent_id(j.state, j.link_kind, j.parent_id)
FROM unnest($1::jobs[]) AS j

-- name: drop_guards
-- Set the triggers on job rows aside: a rebuilt row is not born and does not move.
ALTER TABLE jobs DISABLE TRIGGER USER

-- name: restore_holds
-- List jobs under their holds again.
INSERT INTO holds (hold, id)
SELECT hold, j.id FROM jobs AS j
CROSS JOIN LATERAL jsonb_array_elements_text(j.held_by::jsonb) AS hold
WHERE j.id = ANY ($1::uuid[])
UNION SELECT '', j.id FROM jobs AS j
WHERE j.id = ANY ($1::uuid[]) AND j.state = {{state.pending}}

-- name: free_held_keys
-- Take these keys from their holders: a rebuild knows whose they are.
-- Own to PostgreSQL: a rebuild copies keys, having freed them.
DELETE FROM keys WHERE ctid = ANY (ARRAY(
    SELECT k.ctid
    FROM unnest($1::text[], $2::smallint[], $3::text[]) AS n(tenant, kind, key)
    CROSS JOIN LATERAL (SELECT ctid FROM keys
        WHERE tenant = n.tenant AND kind = n.kind AND key = n.key OFFSET 0) AS k))

-- name: restore_guards
-- From here on the law holds again.
-- Own to PostgreSQL: triggers can be disabled.
ALTER TABLE jobs ENABLE TRIGGER USER

-- name: recount
-- Count the summaries again, while nobody writes.
WITH gone AS (DELETE FROM counts)
INSERT INTO counts SELECT tenant, queue, state, count(*) FROM jobs GROUP BY 1, 2, 3

-- name: policy_on
-- Refuse jobs that the rules have not judged. This waits for all who write, so that no job of theirs
-- is judged by other rules than those that are current when it is committed.
ALTER TABLE events ENABLE TRIGGER events_judged

-- name: policy_off
-- Refuse none any more.
ALTER TABLE events DISABLE TRIGGER events_judged

-- name: sealing_on
-- Seal every new event: see holdfast_seal in the schema.
-- Own to PostgreSQL: a trigger seals events.
UPDATE meta SET value = 'on' WHERE key = 'sealing';
ALTER TABLE events ENABLE TRIGGER events_seal;
ALTER TABLE beats ENABLE TRIGGER beats_seal

-- name: sealing_off
-- New events are not sealed any more; sealed ones stay sealed.
-- Own to PostgreSQL: as above.
UPDATE meta SET value = 'off' WHERE key = 'sealing';
ALTER TABLE events DISABLE TRIGGER events_seal;
ALTER TABLE beats DISABLE TRIGGER beats_seal
