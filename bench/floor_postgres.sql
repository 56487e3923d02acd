-- The floor on PostgreSQL: the rows that the store writes, by statements made for this one workload.
-- Its tables are the store's own, without CHECKs, triggers and computed columns (see floor.py).

-- name: submit
-- $1 ids, $2 bodies, $3 digests; all else is the same for every job.
WITH clock AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
),
d AS (SELECT * FROM unnest($1::uuid[], $2::text[], $3::bytea[]) AS d(id, body, digest)),
j AS (
    INSERT INTO jobs (id, created_at, updated_at, run_at, needs, policy, rev, state, kind,
        priority, tenant, task, queue, claim_order)
    SELECT id, now, now, now, 0, $4::bigint, 1, {{state.queued}}, 1, 2, 'default', $5::text,
        $6::text, now + 300000000
    FROM d, clock
)
INSERT INTO events (id, rev, type, to_state, at, attempt, run_at, actor, data, body, digest)
SELECT id, 1, {{event.job_created}}, {{state.queued}}, now, 0, now, $7::text, $8::text, body,
    digest
FROM d, clock

-- name: claim
-- $1 queue, $2 limit, $3 owner, $4 request, $5 task.
WITH clock AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
),
u AS (
    UPDATE jobs SET state = {{state.claimed}}, rev = 2, attempt = 1, owner = $3::text, epoch = 1,
        lease_expires_at = now + 60000000, updated_at = now, claim_order = NULL
    FROM clock
    WHERE id = ANY (ARRAY(
        SELECT id FROM jobs
        WHERE queue = $1::text AND {{law.postgres.route}} = $5::text || '@' AND {{law.lane}} = 2
            AND claim_order <= (SELECT now FROM clock) + 300000000
        ORDER BY claim_order, id LIMIT $2::int FOR UPDATE SKIP LOCKED))
    RETURNING id, lease_expires_at, updated_at
),
e AS (
    INSERT INTO events (id, rev, type, from_state, to_state, at, attempt, lease_expires_at, actor,
        request_id)
    SELECT id, 2, {{event.job_claimed}}, {{state.queued}}, {{state.claimed}}, updated_at, 1,
        lease_expires_at, $3::text, $4::text
    FROM u
)
SELECT u.id, r.body
FROM u CROSS JOIN LATERAL (SELECT body FROM events WHERE id = u.id AND rev = 1 OFFSET 0) AS r

-- name: complete
-- $1 ids, $2 results, $3 their digests, $4 how long ago each began, $5 owner, $6 request. A start
-- and a success in one update.
WITH clock AS MATERIALIZED (
    SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
),
u AS (
    UPDATE jobs AS j SET state = {{state.succeeded}}, rev = 4, owner = NULL, epoch = NULL,
        lease_expires_at = NULL, started_at = greatest(now - d.ago, j.updated_at),
        finished_at = now, updated_at = now, result_digest = d.digest
    FROM clock, unnest($1::uuid[], $2::text[], $3::bytea[], $4::bigint[])
        AS d(id, body, digest, ago)
    WHERE j.id = d.id AND j.rev = 2 AND j.owner = $5::text AND j.lease_expires_at > now
    RETURNING j.id, j.updated_at, j.started_at, d.body, d.digest, d.ago
),
e AS (
    INSERT INTO events (id, rev, type, from_state, to_state, at, attempt, lease_expires_at, actor,
        request_id, body, digest)
    SELECT u.id, v.rev, v.type, v.from_state, v.to_state,
        CASE v.rev WHEN 3 THEN u.started_at ELSE u.updated_at END, 1,
        u.updated_at + 30000000 - u.ago, $5::text, $6::text,
        CASE v.rev WHEN 4 THEN u.body END, CASE v.rev WHEN 4 THEN u.digest END
    FROM u CROSS JOIN (VALUES
        (3, {{event.job_started}}, {{state.claimed}}, {{state.running}}),
        (4, {{event.job_succeeded}}, {{state.running}}, {{state.succeeded}})
    ) AS v(rev, type, from_state, to_state)
)
SELECT count(*) FROM u
