-- The statements of the SQLite store that cannot stand in ../queries.sql. Blocks of the same name in
-- ../postgres/queries.sql do the same there. What is written has its times and codes filled in by the
-- writer: it holds the write lock, so what it has read is what it changes. A statement with VALUES is
-- run for many rows at once, by repeating them (see turn.py).

-- name: clock
-- What is kept about the store's clock, and the last step back of a machine's.
-- differs from postgres: the clock itself is this process's, and the epoch comes with the meta.
SELECT c.mark, c.shift, c.since, s.at, s.by FROM store_clock AS c
LEFT JOIN (SELECT at, by FROM clock_steps ORDER BY position DESC LIMIT 1) AS s

-- name: pending
-- How a job's pending signals are read: their number, and each with its name and revision.
-- differs from postgres: its functions for JSON have other names.
CASE WHEN :job.pending_signals IS NOT NULL THEN json_array(:job.pending_signals, json((
    SELECT json_group_array(json_array(s.name, s.rev) ORDER BY s.rev) FROM signals AS s
    WHERE s.id = :job.id))) END

-- name: submit
-- Insert a decided job. Its first event follows by the statement `event`.
-- differs from postgres: the writer has filled in times and codes, and appends the first event
-- by `event`.
INSERT INTO jobs (id, created_at, updated_at, run_at, deadline_at, needs, policy, rev, cpus,
    memory_mb, step_index, state, kind, priority, key_kinds, link_kind, parent_id, tenant, task,
    task_version, queue, job_id, workflow_id, held_by)
VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: submit_alike
-- Insert decided jobs that differ in id and body alone: what they share comes once. Their first
-- events follow by the statement `alike_event`.
-- differs from postgres: the writer has filled in times, and appends the first events by a
-- statement of their own.
WITH d(id) AS (VALUES (?))
INSERT INTO jobs (id, created_at, updated_at, run_at, deadline_at, needs, policy, rev, cpus,
    memory_mb, step_index, state, kind, priority, tenant, task, task_version, queue, workflow_id)
SELECT id, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ? FROM d

-- name: alike_event
-- Append the first events of jobs that differ in id and body alone.
-- Own to SQLite: the writer appends events row by row.
WITH d(id, body, digest) AS (VALUES (?, ?, ?))
INSERT INTO events (id, rev, type, to_state, at, attempt, run_at, deadline_at, actor, reason,
    correlation_id, data, body, digest)
SELECT id, 1, {{event.job_created}}, ?, ?, 0, ?, ?, ?, ?, ?, ?, body, digest FROM d

-- name: event
-- Append an event.
-- Own to SQLite: the writer appends events row by row.
INSERT INTO events ({{columns.events}})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: commit_beats
-- Append a heartbeat.
-- differs from postgres: a statement of its own, there a part of the commit.
INSERT INTO beats (id, rev, type, state, at, attempt, lease_expires_at, actor, request_id, reason,
    seal)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: count
-- Change a summary.
-- Own to SQLite: the writer sums up a transaction's changes and applies them once.
INSERT INTO counts (tenant, queue, state, jobs) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs

-- name: submit_keys
-- Take a key that nobody holds.
-- differs from postgres: nobody else can be inserting it.
INSERT INTO keys (tenant, kind, key, id, digest) VALUES (?, ?, ?, ?, ?)

-- name: restore_keys
-- Give a job its key back, also from another holder: a rebuild knows whose it is.
-- Own to SQLite: a rebuild replaces keys; PostgreSQL frees and then copies them.
INSERT OR REPLACE INTO keys (tenant, kind, key, id, digest) VALUES (?, ?, ?, ?, ?)

-- name: held_keys
-- Who holds a key.
-- differs from postgres: one key at a time, before it is taken and not after.
SELECT id, digest FROM keys WHERE tenant = ? AND kind = ? AND key = ?

-- name: last_seal
-- The seal that the next one continues.
-- Own to SQLite: the writer computes seals; on PostgreSQL a trigger does.
SELECT seal FROM events WHERE id = ? ORDER BY rev DESC LIMIT 1

-- name: next_range
-- The next range in a queue that has jobs, and where its first is.
-- Own to SQLite: the caller jumps from range to range, past the routes that it does not serve;
-- in two parts, because SQLite would look for the first column of a pair only.
SELECT * FROM (
    SELECT route, lane, claim_order, id FROM jobs INDEXED BY jobs_claim
    WHERE queue = ?1 AND route = ?2 AND lane > ?3 AND claim_order IS NOT NULL
    ORDER BY lane, claim_order, id LIMIT 1)
UNION ALL
SELECT * FROM (
    SELECT route, lane, claim_order, id FROM jobs INDEXED BY jobs_claim
    WHERE queue = ?1 AND route > ?2 AND claim_order IS NOT NULL
    ORDER BY route, lane, claim_order, id LIMIT 1)
LIMIT 1

-- name: next_range_of
-- The same, of one tenant, not the default one.
-- Own to SQLite: as above.
SELECT * FROM (
    SELECT route, lane, claim_order, id FROM jobs INDEXED BY jobs_claim_tenant
    WHERE tenant = ?4 AND tenant <> 'default' AND queue = ?1 AND route = ?2 AND lane > ?3
        AND claim_order IS NOT NULL
    ORDER BY lane, claim_order, id LIMIT 1)
UNION ALL
SELECT * FROM (
    SELECT route, lane, claim_order, id FROM jobs INDEXED BY jobs_claim_tenant
    WHERE tenant = ?4 AND tenant <> 'default' AND queue = ?1 AND route > ?2
        AND claim_order IS NOT NULL
    ORDER BY route, lane, claim_order, id LIMIT 1)
LIMIT 1

-- name: claim_arm
-- One range (a lane of a queue and route) in its order.
-- Own to SQLite: ranges are merged as they are; nothing has to be locked.
SELECT claim_order, id FROM jobs INDEXED BY jobs_claim
WHERE queue = ? AND route = ? AND lane = ? AND claim_order <= ?

-- name: claim_arm_of
-- The same, of one tenant, not the default one.
-- Own to SQLite: as above.
SELECT claim_order, id FROM jobs INDEXED BY jobs_claim_tenant
WHERE queue = ? AND route = ? AND lane = ? AND claim_order <= ? AND tenant = ?
    AND tenant <> 'default'

-- name: claim_heads
-- The first due jobs of one range, up to a place in the order of all.
-- Own to SQLite: many ranges are merged by the caller.
:arm ORDER BY claim_order, id LIMIT ?

-- name: claim_ranges
-- What is due, merged from ranges.
-- differs from postgres: it merges them lazily and reads few rows beyond the limit; what a
-- submit fixed comes along from the first event.
:claimable
FROM (:arms ORDER BY claim_order, id LIMIT ?) AS p
CROSS JOIN jobs AS j ON j.id = p.id
LEFT JOIN events AS e ON e.id = p.id AND e.rev = 1

-- name: claim_ids
-- The same of jobs that are known already.
-- differs from postgres: they are read, and not claimed yet.
WITH p(claim_order, id) AS (VALUES (?, ?))
:claimable
FROM p
CROSS JOIN jobs AS j ON j.id = p.id
LEFT JOIN events AS e ON e.id = p.id AND e.rev = 1

-- name: claimable
-- What is read of a job that is to be claimed.
-- Own to SQLite: what a claim reads it reads before it writes.
SELECT j.id, e.data, e.body, e.correlation_id, j.rev, j.attempt, j.failures, j.releases, j.state,
    j.policy, j.run_at, j.deadline_at, j.created_at, j.updated_at,
    {{columns.pending.j}}, j.tenant, j.queue, p.claim_order, j.cpus, j.memory_mb

-- name: claim
-- The one place where SQL restates an edge of the law: queued, retrying, stalled -> claimed.
-- differs from postgres: the writer has read what it changes, and computed the values, which are
-- bound once for all rows alike.
WITH d(id) AS (VALUES (?))
UPDATE jobs SET state = {{state.claimed}}, rev = ?, attempt = ?, owner = ?, epoch = ?,
    lease_expires_at = ?, timeout_at = ?, started_at = NULL, lost_owner = NULL, updated_at = ?
FROM d WHERE jobs.id = d.id

-- name: claim_event
-- Its event; the other columns are NULL or empty.
-- Own to SQLite: the writer appends events row by row.
WITH d(id, seal) AS (VALUES (?, ?))
INSERT INTO events (id, rev, type, from_state, to_state, at, attempt, lease_expires_at, actor,
    request_id, data, seal)
SELECT id, ?, {{event.job_claimed}}, ?, {{state.claimed}}, ?, ?, ?, ?, ?, ?, seal FROM d

-- name: add_claim
-- One row per claim that took something.
-- Own to SQLite: the claim itself is not one statement.
INSERT INTO claims (request_id, at, expires_at, epoch, owner, ids) VALUES (?, ?, ?, ?, ?, ?)

-- name: add_claims
-- An adopted or rebuilt job gets a claim of its own, for those who look for what is held. One
-- that is rebuilt again at the same revision has it already, and it may have been closed meanwhile.
-- differs from postgres: ids are bytes, and the lease is known.
INSERT INTO claims (request_id, at, expires_at, epoch, owner, ids)
SELECT 'job:' || lower(hex(id)) || ':' || rev, updated_at, lease_expires_at, epoch, owner, id
FROM jobs WHERE id {{any.uuid.1}} AND owner IS NOT NULL
ON CONFLICT (request_id) DO UPDATE SET held = 1, expires_at = excluded.expires_at

-- name: claim_of
-- What a claim request took.
-- differs from postgres: its jobs are read one by one, by `claimed_under`.
SELECT owner, ids FROM claims WHERE request_id = ?

-- name: claimed_under
-- One job of it as it stands now, with the attempt that the request started.
-- Own to SQLite: `claim_of` has no ids to join by, only their bytes.
SELECT c.attempt, e.data, e.body, e.correlation_id, {{columns.jobs.j}}
FROM jobs AS j
CROSS JOIN events AS e ON e.id = j.id AND e.rev = 1
CROSS JOIN events AS c ON c.id = j.id AND c.type = {{event.job_claimed}} AND c.request_id = ?2
WHERE j.id = ?1

-- name: paused
-- Queues of which nothing may be claimed.
-- Own to SQLite: the caller leaves them out before it looks for ranges.
SELECT name FROM queues WHERE paused_at IS NOT NULL

-- name: commit
-- Compare-and-set writes.
-- differs from postgres: it names the columns that the changes touch and no other, so that only
-- their checks and indexes are looked at. The + keeps the planner from looking for jobs by
-- anything but their id.
WITH d(id, expected, :names) AS (VALUES (?, ?, :marks))
UPDATE jobs SET :columns FROM d WHERE jobs.id = d.id AND +jobs.rev = d.expected

-- name: commit_fenced
-- An owner's write also needs a live lease of the present epoch.
-- Own to SQLite: a statement of its own, so that a commit without a fence looks at no lease.
WITH d(id, expected, :names) AS (VALUES (?, ?, :marks))
UPDATE jobs SET :columns FROM d WHERE jobs.id = d.id AND +jobs.rev = d.expected
    AND +jobs.lease_expires_at > ? AND +jobs.epoch = ?

-- name: commit_planned
-- Compare-and-set writes of jobs alike: what they have in common is bound once.
-- Own to SQLite: the commit is not one statement.
WITH d(id, :own) AS (VALUES (?, :marks))
UPDATE jobs SET :columns FROM d WHERE jobs.id = d.id AND +jobs.rev = ?
    AND +jobs.lease_expires_at > ? AND +jobs.epoch = ?

-- name: still_claimed
-- Those of some jobs alike that an owner may end: at a revision, under a live lease of the epoch.
-- Own to SQLite: on PostgreSQL the commit itself returns them.
SELECT id FROM jobs
WHERE id {{any.uuid.1}} AND rev = ?2 AND lease_expires_at > ?3 AND epoch = ?4

-- name: planned_event
-- One event of each of them, likewise.
-- Own to SQLite: as above.
WITH d(:own) AS (VALUES (:marks))
INSERT INTO events ({{columns.events}}) SELECT :values FROM d

-- name: add_signals
-- Signals that no wait has consumed yet: a row of its own each, so that one more costs the same
-- however many there are. The event at this revision is the truth, whatever was there.
-- Own to SQLite: the commit is not one statement.
INSERT OR REPLACE INTO signals (id, rev, name) VALUES (?, ?, ?)

-- name: drop_signals
-- A signal that was consumed.
-- Own to SQLite: as above.
DELETE FROM signals WHERE id = ? AND rev = ?

-- name: add_holds
-- List a job under a hold.
-- Own to SQLite: on PostgreSQL a trigger does.
INSERT OR IGNORE INTO holds (hold, id) VALUES (?, ?)

-- name: drop_holds
-- List it there no more.
-- Own to SQLite: as above.
DELETE FROM holds WHERE hold = ? AND id = ?

-- name: mark
-- A family that has to be looked at.
-- Own to SQLite: as above.
INSERT INTO marks (id) VALUES (?)

-- name: mark_parent
-- The same, if the job has children at all.
-- Own to SQLite: as above.
INSERT INTO marks (id)
SELECT ?1 WHERE EXISTS (
    SELECT 1 FROM jobs WHERE parent_id = ?1 AND link_kind = {{link.child}})

-- name: free_keys
-- Free keys whose term ended with this write: kinds are a bit mask.
-- differs from postgres: the writer runs it for each row.
DELETE FROM keys WHERE id = ? AND kind & ? <> 0

-- name: event_at
-- The event at a revision, for settling a write whose reply was lost.
-- differs from postgres: one event at a time.
SELECT {{columns.events}} FROM events WHERE id = ?1 AND rev = ?2
UNION ALL
SELECT {{columns.beats}} FROM beats WHERE id = ?1 AND rev = ?2

-- name: add_policies
-- Remember a policy: content-addressed, so the first writer's row is everyone's.
-- differs from postgres: the writer runs it for each row, and no running lease stands beside
-- the text.
INSERT INTO policies (id, body, lease, start_timeout) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: add_needs
-- Remember a set of needs, or that it was named again.
-- differs from postgres: the writer runs it for each row.
INSERT INTO needs (id, body, used_at) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET used_at = excluded.used_at
WHERE used_at < excluded.used_at - 600000000

-- name: forget_counts
-- Forget queues of the summaries that have no jobs.
-- Own to SQLite: on PostgreSQL a fold does so.
DELETE FROM counts WHERE jobs = 0

-- name: tenant_names
-- The queues and the sets of needs that a tenant's jobs have, and what was set of the limits.
-- differs from postgres: the summaries are kept as they stand.
SELECT 'queue', queue FROM (SELECT DISTINCT queue FROM counts WHERE tenant = ?1 AND jobs <> 0)
UNION ALL
SELECT 'needs', id FROM needs WHERE EXISTS (
    SELECT 1 FROM jobs WHERE jobs.needs = needs.id AND jobs.needs <> 0 AND jobs.tenant = ?1)
UNION ALL
SELECT key, value FROM meta WHERE key {{any.text.2}}

-- name: find
-- A page of jobs, newest first, narrowed by one of the blocks `narrow_…`: the index to read by.
-- differs from postgres: lists are JSON.
SELECT {{columns.jobs.j}} FROM jobs AS j
WHERE :narrow
    AND (?1 IS NULL OR j.tenant = ?1)
    AND (?2 IS NULL OR j.state IN (SELECT value FROM json_each(?2)))
    AND (?3 IS NULL OR j.queue = ?3)
    AND (?4 IS NULL OR j.task = ?4)
    AND (?5 IS NULL OR j.parent_id = ?5)
    AND (?6 IS NULL OR j.workflow_id = ?6)
    AND (?7 IS NULL OR j.id IN (SELECT id FROM events WHERE correlation_id = ?7))
    AND (?8 IS NULL OR j.error_code = ?8)
    AND (?9 IS NULL OR j.letter = ?9)
    AND j.created_at >= ?10 AND j.created_at < ?11
    AND j.id < ?12 AND j.id >= ?14
    AND (?15 IS NULL OR NOT EXISTS (SELECT 1 FROM json_each(?15) AS wanted WHERE NOT EXISTS (
        SELECT 1 FROM events AS born, json_each(born.data, '$.labels') AS has
        WHERE born.id = j.id AND born.rev = 1 AND has.key = wanted.key
            AND has.value = wanted.value)))
ORDER BY :order j.id DESC LIMIT ?13

-- name: narrow_tenant
-- A page of jobs is read by the index of tenants, which leaves out the tenant of most jobs,
-- differs from postgres: its planner takes the index without a range to persuade it.
j.tenant = ?1 AND j.tenant <> 'default'

-- name: narrow_queue
-- of queues, which leaves out the queue of most jobs,
-- differs from postgres: as for tenants.
j.queue = ?3 AND j.queue <> 'default'

-- name: narrow_correlation_id
-- or through the events that carry a correlation id.
-- differs from postgres: its planner looks each id up by itself.
j.id IN (SELECT id FROM events WHERE correlation_id = ?7)

-- name: step_events
-- What one job recorded of some steps, each by its name and its use.
-- differs from postgres: lists are JSON.
SELECT {{columns.events}} FROM events
WHERE id = ?1
    AND type IN ({{event.step_started}}, {{event.step_completed}}, {{event.step_failed}})
    AND (data ->> '$.step', data ->> '$.step_use') IN (
        SELECT names.value, uses.value FROM json_each(?2) AS names
        JOIN json_each(?3) AS uses ON uses.key = names.key)
ORDER BY rev DESC

-- name: events_by_correlation
-- B19: (correlation_id), through the first event that carries it.
-- differs from postgres: there is no LATERAL; a CROSS JOIN keeps the order of the tables.
SELECT {{columns.events.e}}
FROM (SELECT DISTINCT id FROM events WHERE correlation_id = ?1) AS f
CROSS JOIN events AS e ON e.id = f.id
WHERE e.at >= ?2 AND e.at < ?3 AND (?5 IS NULL OR e.type = ?5)
ORDER BY e.at, e.id, e.rev LIMIT ?4

-- name: tail
-- All events after a position: commits come one after the other, so none appears behind it.
-- differs from postgres: commits come one after the other, so a position is enough.
SELECT position, {{columns.events}} FROM events WHERE position > ? ORDER BY position LIMIT ?

-- name: tail_end
-- The last position that was given.
-- Own to SQLite: the tail ends with the last event.
SELECT max(position) FROM events

-- name: due_claims
-- Claims of which a lease may have passed, or which were made before a restore.
-- differs from postgres: ids are bytes.
SELECT request_id, CASE held WHEN 1 THEN ids ELSE x'' END, at FROM (
    SELECT * FROM (SELECT request_id, ids, at, expires_at, held FROM claims
        WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?3)
    UNION
    SELECT * FROM (SELECT request_id, ids, at, expires_at, held FROM claims
        WHERE epoch < ?2 AND held = 1 ORDER BY epoch LIMIT ?3)) AS c
ORDER BY expires_at LIMIT ?3

-- name: push_claims
-- Look at a claim again when its next lease may have passed. One of which nothing is held is
-- closed: an owner that has died never does so.
-- differs from postgres: the writer runs it for each row.
WITH d(request_id, expires_at, held) AS (VALUES (?, ?, ?))
UPDATE claims SET expires_at = d.expires_at, held = claims.held AND d.held
FROM d WHERE claims.request_id = d.request_id

-- name: quarantine
-- Set a job aside; one that is keeps its first reason.
-- differs from postgres: what follows from the columns is computed, not stored.
UPDATE jobs SET quarantined_at = holdfast_now(), quarantine = ?2
WHERE id = ?1 AND quarantined_at IS NULL
RETURNING id

-- name: release_quarantined
-- Let jobs be claimed and swept again: their ids, their queues, and whether each has an owner.
-- differs from postgres: what follows from the columns is computed, not stored.
UPDATE jobs SET quarantined_at = NULL, quarantine = NULL
WHERE id {{any.uuid.1}} AND quarantined_at IS NOT NULL
RETURNING id, queue, owner IS NOT NULL

-- name: unmark
-- Remove marks that were seen.
-- differs from postgres: nobody else can be removing one.
DELETE FROM marks WHERE number {{any.bigint.1}}

-- name: children
-- Children of a parent, oldest first, after an id.
-- differs from postgres: one parent at a time, because there is no LATERAL.
SELECT {{columns.jobs}} FROM jobs
WHERE parent_id = ? AND id > ? AND link_kind = {{link.child}} ORDER BY id LIMIT ?

-- name: live_children
-- The same, those that have not ended.
-- differs from postgres: one parent at a time, as above.
SELECT {{columns.jobs}} FROM jobs WHERE live_parent_id = ? AND id > ? ORDER BY id LIMIT ?

-- name: families
-- Parents of live children, and jobs that wait for children, by id.
-- differs from postgres: a function has another name, and a part with a LIMIT has to be a
-- table.
SELECT id FROM (
    SELECT * FROM (SELECT DISTINCT live_parent_id AS id FROM jobs WHERE live_parent_id > ?1
        ORDER BY live_parent_id LIMIT ?2)
    UNION
    SELECT * FROM (SELECT id FROM jobs
        WHERE substr(wait_for, 1, 17) = 'holdfast:children' AND id > ?1 ORDER BY id LIMIT ?2)) AS f
ORDER BY id LIMIT ?2

-- name: owned
-- The claims of an owner of which it may hold something, up to those of the time ?3; those that it
-- knows to have ended (?2), too.
-- differs from postgres: the look does not close claims; `close_claims` does.
SELECT request_id, ids FROM claims WHERE owner = ?1 AND held = 1
    AND (at <= ?3 OR request_id {{any.text.2}})

-- name: owned_jobs
-- Those of some jobs that an owner holds.
-- Own to SQLite: `owned` has no ids to join by, only their bytes.
SELECT {{columns.jobs}} FROM jobs WHERE id {{any.uuid.1}} AND owner = ?2 AND quarantined_at IS NULL

-- name: held
-- Jobs under a hold, by id.
-- differs from postgres: CROSS JOIN keeps the order in which the tables are looked at.
SELECT {{columns.jobs.j}} FROM holds AS h CROSS JOIN jobs AS j ON j.id = h.id
WHERE h.hold = ?1 AND h.id > ?2 AND j.quarantined_at IS NULL ORDER BY h.id LIMIT ?3

-- name: owned_on
-- What the workers of a range of names hold, but for one of them. Its claims are not closed here:
-- they are other workers', who may just be claiming.
-- differs from postgres: the ids of a claim are bytes, and cut out one by one.
WITH RECURSIVE held(id, rest) AS (
    SELECT substr(ids, 1, 16), substr(ids, 17) FROM claims
    WHERE owner >= ?1 AND owner < ?2 AND owner <> ?3 AND held = 1
    UNION ALL
    SELECT substr(rest, 1, 16), substr(rest, 17) FROM held WHERE length(rest) > 0)
SELECT {{columns.jobs.j}} FROM jobs AS j
WHERE j.id IN (SELECT id FROM held)
    AND j.owner >= ?1 AND j.owner < ?2 AND j.owner <> ?3 AND j.quarantined_at IS NULL
    AND (?4 >> j.kind) & 1 = 1
ORDER BY j.id LIMIT ?5

-- name: close_claims
-- Look no more at claims of which their owner holds nothing: they are remembered only.
-- Own to SQLite: on PostgreSQL the look itself closes them.
UPDATE claims SET held = 0 WHERE request_id {{any.text.1}}

-- name: counts
-- Summaries.
-- differs from postgres: the summaries are kept as they stand.
SELECT tenant, queue, state, jobs FROM counts
WHERE (?1 IS NULL OR tenant = ?1) AND jobs <> 0 ORDER BY 1, 2, 3

-- name: clear_counts
-- Remove the summaries, before they are counted again.
-- Own to SQLite: a statement does one thing.
DELETE FROM counts

-- name: recount
-- Count all jobs.
-- differs from postgres: `clear_counts` has removed the old ones.
INSERT INTO counts (tenant, queue, state, jobs)
SELECT tenant, queue, state, count(*) FROM jobs GROUP BY 1, 2, 3

-- name: forget_workers
-- Forget some workers that were not seen for long.
-- differs from postgres: nobody else can be removing one.
DELETE FROM workers WHERE name IN (
    SELECT name FROM workers WHERE name <> ?1 AND seen_at < holdfast_now() - ?2
    ORDER BY seen_at LIMIT ?3)

-- name: publish_terms
-- Keep terms of tasks; the last publisher's hold.
-- differs from postgres: the writer runs it for each row.
WITH d(task, body) AS (VALUES (?, ?))
INSERT INTO task_terms (tenant, task, published_at, body)
SELECT ?, d.task, holdfast_now(), d.body FROM d WHERE true
ON CONFLICT (tenant, task) DO UPDATE SET published_at = excluded.published_at, body = excluded.body

-- name: forget_terms
-- Forget the terms of a tenant that were published longest ago, beyond a number.
-- differs from postgres: nobody else can be removing one.
DELETE FROM task_terms WHERE tenant = ?1 AND task IN (
    SELECT task FROM task_terms WHERE tenant = ?1
    ORDER BY published_at DESC LIMIT -1 OFFSET ?2)

-- name: continued
-- Those of some jobs whose records another may still read: a retry, redrive or compensation, at any
-- remove, that has not ended or whose dead letter is open.
-- differs from postgres: there is no LATERAL; the + keeps the planner from looking for them by
-- anything but their parent.
SELECT unhex(g.value) FROM json_each(?1) AS g
WHERE EXISTS (
    WITH RECURSIVE line (id, finished_at, letter) AS (
        SELECT id, finished_at, letter FROM jobs
        WHERE parent_id = unhex(g.value) AND +link_kind <> {{link.child}}
        UNION
        SELECT c.id, c.finished_at, c.letter FROM line CROSS JOIN jobs AS c
        WHERE c.parent_id = line.id AND +c.link_kind <> {{link.child}})
    SELECT 1 FROM line WHERE finished_at IS NULL OR letter = {{letter.open}})

-- name: newest_event
-- Whose event is the newest: it is not removed, so that no position is given twice.
-- Own to SQLite: a position must not be given twice.
SELECT id FROM events WHERE position = (SELECT max(position) FROM events)

-- name: purge_events
-- Then their events,
-- differs from postgres: the driver counts what was removed.
DELETE FROM events WHERE id {{any.uuid.1}}

-- name: purge_ids
-- What is left of a purged job, under its entry.
-- differs from postgres: the writer runs it for each row.
WITH d(id, tenant) AS (VALUES (?, ?))
INSERT INTO purged (id, tenant, purge) SELECT d.id, d.tenant, ? FROM d

-- name: keep_logs
-- Lines of jobs' logs, in their order.
-- differs from postgres: the writer runs it for each row.
INSERT INTO logs (id, attempt, at, level, message) VALUES (?, ?, ?, ?, ?)

-- name: trim_logs
-- The newest lines of each job's log stay.
-- differs from postgres: DELETE takes no second table.
DELETE FROM logs WHERE position IN (
    SELECT l.position FROM json_each(?1) AS given CROSS JOIN logs AS l ON l.id = unhex(given.value)
    WHERE l.position <= (
        SELECT position FROM logs WHERE id = unhex(given.value)
        ORDER BY position DESC LIMIT 1 OFFSET ?2))

-- name: drop_beats
-- Drop old heartbeats, but never the one that a present lease rests on.
-- differs from postgres: there is no ctid.
DELETE FROM beats WHERE (id, rev) IN (
    SELECT b.id, b.rev FROM beats AS b
    WHERE b.at < ?1 AND NOT EXISTS (
        SELECT 1 FROM jobs AS j WHERE j.id = b.id AND j.rev = b.rev)
    LIMIT ?2)
RETURNING rev

-- name: ledger_end
-- The highest id there is after ?1, of whatever is left of it.
-- differs from postgres: `max` takes ids.
SELECT max(id) FROM (
    SELECT max(id) AS id FROM jobs WHERE id > ?1 UNION ALL SELECT max(id) FROM events WHERE id > ?1
    UNION ALL SELECT max(id) FROM beats WHERE id > ?1
    UNION ALL SELECT max(id) FROM keys WHERE id > ?1)

-- name: ledger_bound
-- Where the next batch of the ledger ends: after ?2 jobs, or ?3 events, heartbeats or keys, so that
-- it is bounded also where rows are missing; at ?4 at the latest.
-- differs from postgres: `min` takes ids, and its scalar form no NULL.
SELECT min(id) FROM (
    SELECT ?4 AS id
    UNION ALL SELECT (SELECT id FROM jobs WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?2 - 1)
    UNION ALL SELECT (SELECT id FROM events WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?3 - 1)
    UNION ALL SELECT (SELECT id FROM beats WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?3 - 1)
    UNION ALL SELECT (SELECT id FROM keys WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?3 - 1))

-- name: ledger_unclaimed
-- Jobs between two ids that are held though no claim of their owner names them.
-- differs from postgres: ids are bytes.
SELECT id FROM jobs AS j WHERE id > ?1 AND id <= ?2 AND owner IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM claims AS c WHERE c.owner = j.owner AND c.held = 1 AND instr(c.ids, j.id) > 0)

-- name: dictionary
-- All policies and needs, with what of them stands in columns.
-- differs from postgres: no running lease stands beside the text of a policy.
SELECT 'policy', id, body, lease, start_timeout FROM policies
UNION ALL SELECT 'needs', id, body, NULL, NULL FROM needs

-- name: size
-- How many jobs there are.
-- differs from postgres: the summaries count exactly.
SELECT coalesce(sum(jobs), 0) FROM counts

-- name: last_revs
-- The revisions of jobs' last events or heartbeats.
-- differs from postgres: lists are JSON.
SELECT unhex(d.value), max(
    coalesce((SELECT max(rev) FROM events WHERE id = unhex(d.value)), 0),
    coalesce((SELECT max(rev) FROM beats WHERE id = unhex(d.value)), 0))
FROM json_each(?1) AS d

-- name: guards
-- The triggers on job rows: a rebuild lays them down and puts them up again.
-- Own to SQLite: triggers cannot be disabled, so a rebuild drops and makes them again.
SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'jobs'

-- name: drop_guards
-- Lay one of them down.
-- differs from postgres: triggers cannot be disabled.
DROP TRIGGER :guard

-- name: restore_holds
-- List jobs under their holds again.
-- differs from postgres: another function reads the list.
INSERT INTO holds (hold, id)
SELECT value, j.id FROM jobs AS j, json_each(j.held_by) WHERE j.id {{any.uuid.1}}
UNION SELECT '', j.id FROM jobs AS j WHERE j.id {{any.uuid.1}} AND j.state = {{state.pending}}

-- name: restore_jobs
-- Insert a projection as its events have it.
-- differs from postgres: a row at a time, and what follows from its columns is computed.
INSERT INTO jobs ({{columns.row}}) VALUES (:marks)

-- name: policy_on
-- Refuse jobs that the rules have not judged: at their birth the present ones must have, at their
-- admission any. A birth that waits may come unjudged, and not with the verdict of older rules.
-- Made when rules are applied, so that it costs nothing while none are.
-- differs from postgres: a trigger cannot be disabled.
CREATE TRIGGER IF NOT EXISTS events_judged AFTER INSERT ON events
WHEN (NEW.rev = 1
        AND ({{law.into_queue}} OR json_extract(NEW.data, '$.rules') IS NOT NULL)
        AND json_extract(NEW.data, '$.rules') IS NOT (SELECT value FROM meta WHERE key = 'policy')
    OR {{law.admission}} AND NOT EXISTS (
        SELECT 1 FROM policy_books AS b WHERE b.digest = json_extract(NEW.data, '$.rules')
            OR b.digest = (SELECT json_extract(data, '$.rules') FROM events
                WHERE id = NEW.id AND rev = 1)))
    AND substr((SELECT json_extract(data, '$.task') FROM events WHERE id = NEW.id AND rev = 1), 1,
        length('{{law.reserved}}')) IS NOT '{{law.reserved}}'
BEGIN SELECT RAISE(ABORT, 'holdfast: a job that the policy has not judged refused on events'); END

-- name: policy_off
-- Refuse none any more.
-- differs from postgres: as above.
DROP TRIGGER IF EXISTS events_judged
