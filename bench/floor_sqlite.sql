-- The floor on SQLite: the rows that the store writes, by statements made for this one workload.
-- Its tables are the store's own, without CHECKs, triggers and computed columns (see floor.py).

-- name: submit_job
INSERT INTO jobs (id, created_at, updated_at, run_at, needs, policy, rev, state, kind, priority,
    tenant, task, queue, route, lane, claim_order)
VALUES (?1, ?2, ?2, ?2, 0, ?3, 1, {{state.queued}}, 1, 2, 'default', ?4, ?5, ?4 || '@', 2,
    ?2 + 300000000)

-- name: submit_event
INSERT INTO events (id, rev, type, to_state, at, attempt, run_at, actor, data, body, digest)
VALUES (?1, 1, {{event.job_created}}, {{state.queued}}, ?2, 0, ?2, ?3, ?4, ?5, ?6)

-- name: claim
SELECT j.id, e.body FROM jobs AS j
JOIN events AS e ON e.id = j.id AND e.rev = 1
WHERE j.queue = ?1 AND j.route = ?4 || '@' AND j.lane = 2 AND j.claim_order <= ?2 + 300000000
ORDER BY j.claim_order, j.id LIMIT ?3

-- name: claim_job
UPDATE jobs SET state = {{state.claimed}}, rev = 2, attempt = 1, owner = ?2, epoch = 1,
    lease_expires_at = ?3 + 60000000, updated_at = ?3, claim_order = NULL
WHERE id = ?1

-- name: claim_event
INSERT INTO events (id, rev, type, from_state, to_state, at, attempt, lease_expires_at, actor,
    request_id)
VALUES (?1, 2, {{event.job_claimed}}, {{state.queued}}, {{state.claimed}}, ?3, 1, ?3 + 60000000,
    ?2, ?4)

-- name: complete_job
UPDATE jobs SET state = {{state.succeeded}}, rev = 4, owner = NULL, epoch = NULL,
    lease_expires_at = NULL, started_at = ?2 - ?5, finished_at = ?2, updated_at = ?2,
    result_digest = ?3
WHERE id = ?1 AND rev = 2 AND owner = ?4 AND lease_expires_at > ?2

-- name: complete_event
INSERT INTO events (id, rev, type, from_state, to_state, at, attempt, lease_expires_at, actor,
    request_id, body, digest)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, 1, ?7, ?8, ?9, ?10, ?11)
