-- The statements of the SQLite store. Blocks of the same name in ../postgres/queries.sql do the
-- same there. differs from postgres, everywhere: what is written has its times and codes filled in
-- by the writer, because whoever holds the write lock is alone: what it read is what it changes. A
-- statement with VALUES is run for many rows at once, by repeating them (see turn.py).

-- name: clock
-- What is kept about the store's clock, and the last step back of a machine's. differs from postgres: the
-- clock itself is this process's, and the epoch comes with the meta.
SELECT c.mark, c.shift, c.since, s.at, s.by FROM store_clock AS c
LEFT JOIN (SELECT at, by FROM clock_steps ORDER BY position DESC LIMIT 1) AS s

-- name: set_clock
-- Keep the mark and the shift. differs from postgres: nobody else can have done so since they were
-- read.
UPDATE store_clock SET mark = ?, shift = ?, since = ?

-- name: add_clock_step
-- Note that a machine's clock was set back.
INSERT INTO clock_steps (at, by) VALUES (?, ?)

-- name: meta
-- The epoch under which claims are made, and whether events are sealed.
SELECT key, value FROM meta

-- name: set_meta
-- Change one of them.
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value

-- name: keep_meta
-- Remember something of the whole ledger, unless it is there.
INSERT INTO meta (key, value) VALUES (?, ?) ON CONFLICT (key) DO NOTHING

-- name: pending
-- How a job's pending signals are read: their number, and each with its name and revision.
CASE WHEN :job.pending_signals IS NOT NULL THEN json_array(:job.pending_signals, json((
    SELECT json_group_array(json_array(s.name, s.rev) ORDER BY s.rev) FROM signals AS s
    WHERE s.id = :job.id))) END

-- name: submit
-- Insert a decided job. Its first event follows by the statement `event`.
INSERT INTO jobs (id, created_at, updated_at, run_at, deadline_at, needs, policy, rev, cpus,
    memory_mb, step_index, state, kind, priority, key_kinds, link_kind, parent_id, tenant, task,
    task_version, queue, job_id, workflow_id, held_by)
VALUES (?, ?, ?, ?, ?, ?, ?, 1, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: event
-- Append an event.
INSERT INTO events ({{columns.events}})
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: beat
-- Append a heartbeat.
INSERT INTO beats (id, rev, type, state, at, attempt, lease_expires_at, actor, request_id, reason,
    seal)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)

-- name: count
-- Change a summary.
INSERT INTO counts (tenant, queue, state, jobs) VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET jobs = jobs + excluded.jobs

-- name: submit_keys
-- Take a key that nobody holds.
INSERT INTO keys (tenant, kind, key, id, digest) VALUES (?, ?, ?, ?, ?)

-- name: restore_keys
-- Give a job its key back, whoever holds it: only a rebuild knows better.
INSERT OR REPLACE INTO keys (tenant, kind, key, id, digest) VALUES (?, ?, ?, ?, ?)

-- name: held_keys
-- Who holds a key.
SELECT id, digest FROM keys WHERE tenant = ? AND kind = ? AND key = ?

-- name: drop_keys
-- Give back what a losing submit took in this transaction.
DELETE FROM keys WHERE tenant = ? AND kind = ? AND key = ?

-- name: first_event
-- What a job was submitted with.
SELECT {{columns.events}} FROM events WHERE id = ? AND rev = 1

-- name: last_seal
-- The seal that the next one hangs on.
SELECT seal FROM events WHERE id = ? ORDER BY rev DESC LIMIT 1

-- name: next_range
-- The next range in a queue that has jobs, and where its first is: by jumping from lane to lane.
-- differs from postgres: one jump, so that the caller can go past the routes that it does not serve;
-- and in two parts, for SQLite would look for the first column of a pair only.
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
SELECT claim_order, id FROM jobs INDEXED BY jobs_claim
WHERE queue = ? AND route = ? AND lane = ? AND claim_order <= ?

-- name: claim_arm_of
-- The same, of one tenant, not the default one.
SELECT claim_order, id FROM jobs INDEXED BY jobs_claim_tenant
WHERE queue = ? AND route = ? AND lane = ? AND claim_order <= ? AND tenant = ?
    AND tenant <> 'default'

-- name: claim_heads
-- The first due jobs of one range, up to a place in the order of all.
:arm ORDER BY claim_order, id LIMIT ?

-- name: claim_ranges
-- What is due, merged from ranges. differs from postgres: SQLite merges them lazily, and reads few
-- rows beyond the limit; what a submit fixed comes along from the first event.
:claimable
FROM (:arms ORDER BY claim_order, id LIMIT ?) AS p
CROSS JOIN jobs AS j ON j.id = p.id
LEFT JOIN events AS e ON e.id = p.id AND e.rev = 1

-- name: claim_ids
-- The same of jobs that are known already.
WITH p(claim_order, id) AS (VALUES (?, ?))
:claimable
FROM p
CROSS JOIN jobs AS j ON j.id = p.id
LEFT JOIN events AS e ON e.id = p.id AND e.rev = 1

-- name: claimable
-- What is read of a job that is to be claimed.
SELECT j.id, e.data, e.body, e.correlation_id, j.rev, j.attempt, j.failures, j.releases, j.state,
    j.policy, j.run_at, j.deadline_at, j.created_at, j.updated_at,
    {{columns.pending.j}}, j.tenant, j.queue, p.claim_order, j.cpus, j.memory_mb

-- name: claim
-- The one place where SQL restates an edge of the law: queued, retrying, stalled -> claimed.
WITH d(id, rev, attempt, lease, timeout_at, at) AS (VALUES (?, ?, ?, ?, ?, ?))
UPDATE jobs SET state = {{state.claimed}}, rev = d.rev, attempt = d.attempt, owner = ?, epoch = ?,
    lease_expires_at = d.lease, timeout_at = d.timeout_at, started_at = NULL, lost_owner = NULL,
    updated_at = d.at
FROM d WHERE jobs.id = d.id

-- name: claim_event
-- Its event; the other columns are NULL or stand for nothing.
WITH d(id, rev, from_state, at, attempt, lease, seal) AS (VALUES (?, ?, ?, ?, ?, ?, ?))
INSERT INTO events (id, rev, type, from_state, to_state, at, attempt, lease_expires_at, actor,
    request_id, data, seal)
SELECT id, rev, {{event.job_claimed}}, from_state, {{state.claimed}}, at, attempt, lease, ?, ?, ?,
    seal
FROM d

-- name: claimed
-- One row per claim that took something.
INSERT INTO claims (request_id, at, expires_at, epoch, owner, ids) VALUES (?, ?, ?, ?, ?, ?)

-- name: add_claims
-- An adopted or rebuilt job gets a claim of its own, for those who look for what is held. One
-- that is rebuilt again at the same revision has it already, and it may have been closed meanwhile.
INSERT INTO claims (request_id, at, expires_at, epoch, owner, ids)
SELECT 'job:' || lower(hex(id)) || ':' || rev, updated_at, lease_expires_at, epoch, owner, id
FROM jobs WHERE id = ? AND owner IS NOT NULL
ON CONFLICT (request_id) DO UPDATE SET held = 1, expires_at = excluded.expires_at

-- name: claim_of
-- What a claim request took.
SELECT owner, ids FROM claims WHERE request_id = ?

-- name: claimed_under
-- One job of it as it stands now, with the attempt that the request began.
SELECT c.attempt, e.data, e.body, e.correlation_id, {{columns.jobs.j}}
FROM jobs AS j
CROSS JOIN events AS e ON e.id = j.id AND e.rev = 1
CROSS JOIN events AS c ON c.id = j.id AND c.type = {{event.job_claimed}} AND c.request_id = ?2
WHERE j.id = ?1

-- name: paused
-- Queues of which nothing may be claimed.
SELECT name FROM queues WHERE paused_at IS NOT NULL

-- name: commit
-- Compare-and-set writes. differs from postgres: it names the columns that the changes touch and
-- no other, so that only their checks and indexes are looked at. The + keeps the planner from
-- looking for jobs by anything but their id.
WITH d(id, expected, :names) AS (VALUES (?, ?, :marks))
UPDATE jobs SET :columns FROM d WHERE jobs.id = d.id AND +jobs.rev = d.expected

-- name: commit_fenced
-- An owner's write also needs a live lease of the present epoch.
WITH d(id, expected, :names) AS (VALUES (?, ?, :marks))
UPDATE jobs SET :columns FROM d WHERE jobs.id = d.id AND +jobs.rev = d.expected
    AND +jobs.lease_expires_at > ? AND +jobs.epoch = ?

-- name: add_signals
-- Signals that no wait has consumed yet: a row of its own each, so that one more costs the same
-- however many there are. The event at this revision is the truth, whatever was there.
INSERT OR REPLACE INTO signals (id, rev, name) VALUES (?, ?, ?)

-- name: drop_signals
-- A signal that was consumed.
DELETE FROM signals WHERE id = ? AND rev = ?

-- name: mark
-- A family that has to be looked at.
INSERT INTO marks (id) VALUES (?)

-- name: mark_parent
-- The same, if the job has children at all.
INSERT INTO marks (id)
SELECT ?1 WHERE EXISTS (
    SELECT 1 FROM jobs WHERE parent_id = ?1 AND link_kind = {{link.child}})

-- name: free_keys
-- Free keys whose term ended with this write: kinds are a bit mask.
DELETE FROM keys WHERE id = ? AND kind & ? <> 0

-- name: event_at
-- The event at a revision, for settling a write whose reply was lost.
SELECT {{columns.events}} FROM events WHERE id = ?1 AND rev = ?2
UNION ALL
SELECT id, rev, type, state, state, at, attempt, 0, lease_expires_at, NULL, NULL, 1, actor,
    request_id, reason, NULL, NULL, NULL, NULL, seal
FROM beats WHERE id = ?1 AND rev = ?2

-- name: get
-- A job row by id.
SELECT {{columns.jobs}} FROM jobs WHERE id = ?

-- name: get_unread
-- The same, with the number of pending signals instead of their names.
SELECT {{columns.row}} FROM jobs WHERE id = ?

-- name: policy
-- A policy by key.
SELECT id, body FROM policies WHERE id = ?

-- name: need
-- A set of needs by key.
SELECT id, body FROM needs WHERE id = ?

-- name: add_policies
-- Remember a policy: content-addressed, so the first writer's row is everyone's.
INSERT INTO policies (id, body, lease, start_timeout) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING

-- name: add_needs
-- Remember a set of needs, or that it was named again.
INSERT INTO needs (id, body, used_at) VALUES (?, ?, ?)
ON CONFLICT (id) DO UPDATE SET used_at = excluded.used_at
WHERE used_at < excluded.used_at - 600000000

-- name: forget_needs
-- Forget sets of needs that no job has, and that nobody named within the last hour.
DELETE FROM needs WHERE id <> 0 AND used_at < ? - 3600000000
    AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.needs = needs.id AND jobs.needs <> 0)

-- name: forget_counts
-- Forget queues of the summaries that have no jobs. differs from postgres: there a fold does so.
DELETE FROM counts WHERE jobs = 0

-- name: tenant_queues
-- The queues that a tenant has jobs in.
SELECT DISTINCT queue FROM counts WHERE tenant = ? AND jobs <> 0

-- name: tenant_needs
-- The sets of needs that jobs of a tenant have.
SELECT id FROM needs WHERE EXISTS (
    SELECT 1 FROM jobs WHERE jobs.needs = needs.id AND jobs.needs <> 0 AND jobs.tenant = ?)

-- name: look_up
-- Who holds a key.
SELECT id FROM keys WHERE tenant = ? AND kind = ? AND key = ?

-- name: look_up_id
-- A job by the text of its internal id, which is its job_id unless one was given; also one that was
-- purged: its id is never given again.
SELECT id FROM jobs WHERE id = ?1 AND tenant = ?2
UNION ALL SELECT id FROM purged WHERE id = ?1 AND tenant = ?2

-- name: find
-- Jobs, newest first, narrowed by some of the blocks below.
SELECT {{columns.jobs}} FROM jobs WHERE 1 :filters ORDER BY id DESC LIMIT :limit

-- name: find_tenant
-- A filter of find.
AND tenant = :tenant

-- name: find_states
-- A filter of find: states as a JSON list of codes.
AND state IN (SELECT value FROM json_each(:states))

-- name: find_queue
-- A filter of find.
AND queue = :queue

-- name: find_task
-- A filter of find.
AND task = :task

-- name: find_parent_id
-- A filter of find.
AND parent_id = :parent_id

-- name: find_workflow_id
-- A filter of find.
AND workflow_id = :workflow_id

-- name: find_correlation_id
-- A filter of find: through the event that carries it.
AND id IN (SELECT id FROM events WHERE correlation_id = :correlation_id)

-- name: find_error_code
-- A filter of find.
AND error_code = :error_code

-- name: find_letter
-- A filter of find.
AND letter = :letter

-- name: find_labels
-- A filter of find: labels as a JSON object, in the first event's data.
-- differs from postgres: there a jsonb operator compares both objects at once.
AND NOT EXISTS (SELECT 1 FROM json_each(:labels) AS wanted WHERE NOT EXISTS (
    SELECT 1 FROM events AS born, json_each(born.data, '$.labels') AS has
    WHERE born.id = jobs.id AND born.rev = 1 AND has.key = wanted.key
        AND has.value = wanted.value))

-- name: find_created_from
-- A filter of find.
AND created_at >= :created_from

-- name: find_created_until
-- A filter of find.
AND created_at < :created_until

-- name: find_before
-- A filter of find: the cursor.
AND id < :before

-- name: find_bound
-- A filter of find: the last job that is looked at.
AND id >= :bound

-- name: narrow_tenant
-- Read by the index, which does not have the tenant that most are of.
AND tenant <> 'default'

-- name: narrow_queue
-- Read by the index, which does not have the queue that most are in.
AND queue <> 'default'

-- name: look_bound
-- Where a bounded look for jobs that fit ends.
SELECT id FROM jobs WHERE 1 :filters ORDER BY id DESC LIMIT 1 OFFSET :look

-- name: events
-- One job's events after a revision, heartbeats among them.
SELECT {{columns.events}} FROM events WHERE id = ?1 AND rev > ?2 AND rev <= ?4
UNION ALL
SELECT id, rev, type, state, state, at, attempt, 0, lease_expires_at, NULL, NULL, 1, actor,
    request_id, reason, NULL, NULL, NULL, NULL, seal
FROM beats WHERE id = ?1 AND rev > ?2 AND rev <= ?4
ORDER BY rev LIMIT ?3

-- name: bytes_reached
-- The revision at which the bodies of one job's events reach a number of bytes; lengths alone.
SELECT min(rev) FROM (
    SELECT rev, sum(size) OVER (ORDER BY rev) AS total
    FROM (SELECT rev, octet_length(body) AS size FROM events
        WHERE id = ?1 AND rev > ?2 ORDER BY rev LIMIT ?3))
WHERE total >= ?4

-- name: request_event
-- The first event of one job that a submit or a request from outside led to, by its request_id.
SELECT {{columns.events}} FROM events
WHERE id = ?1 AND request_id = ?2 AND {{law.sqlite.requested}}
UNION ALL
SELECT {{columns.events}} FROM events WHERE id = ?1 AND rev = 1 AND request_id = ?2
ORDER BY rev LIMIT 1

-- name: latest_events
-- One job's newest events of some types; of progress only what carries facts.
SELECT {{columns.events}} FROM events
WHERE id = ?1 AND type IN (SELECT value FROM json_each(?2))
    AND (type <> {{event.job_progressed}} OR data IS NOT NULL)
ORDER BY rev DESC LIMIT ?3

-- name: last_progress
-- The newest report of how far one job is; what only says that it cannot be killed is none.
SELECT {{columns.events}} FROM events
WHERE id = ?1 AND type = {{event.job_progressed}} AND digest IS NOT NULL
ORDER BY rev DESC LIMIT 1

-- name: step_events
-- What one job recorded of some steps, each by its name and its use.
-- differs from postgres: the steps come as one JSON text.
SELECT {{columns.events}} FROM events
WHERE id = ?1
    AND type IN ({{event.step_started}}, {{event.step_completed}}, {{event.step_failed}})
    AND (data ->> '$.step', data ->> '$.step_use') IN (
        SELECT value ->> '$[0]', value ->> '$[1]' FROM json_each(?2)
    )
ORDER BY rev DESC

-- name: events_by_type
-- B19: (type, ts).
SELECT {{columns.events}} FROM events
WHERE type = ? AND at >= ? AND at < ? ORDER BY at, id, rev LIMIT ?

-- name: events_by_correlation
-- B19: (correlation_id), through the first event that carries it.
SELECT {{columns.events.e}}
FROM (SELECT DISTINCT id FROM events WHERE correlation_id = ?1) AS f
CROSS JOIN events AS e ON e.id = f.id
WHERE e.at >= ?2 AND e.at < ?3 AND (?5 IS NULL OR e.type = ?5)
ORDER BY e.at, e.id, e.rev LIMIT ?4

-- name: tail
-- All events after a position: commits come one after the other, so none appears behind it.
SELECT position, {{columns.events}} FROM events WHERE position > ? ORDER BY position LIMIT ?

-- name: tail_end
-- The last position that was given.
SELECT max(position) FROM events

-- name: due_wakes
-- Jobs whose deadline, time to start or wait has run out.
SELECT {{columns.jobs}} FROM jobs WHERE wake_at <= ? ORDER BY wake_at LIMIT ?

-- name: due_claims
-- Claims of which a lease may have passed, or which were made before a restore.
SELECT request_id, CASE held WHEN 1 THEN ids ELSE x'' END, at FROM (
    SELECT * FROM (SELECT request_id, ids, at, expires_at, held FROM claims
        WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?3)
    UNION
    SELECT * FROM (SELECT request_id, ids, at, expires_at, held FROM claims
        WHERE epoch < ?2 AND held = 1 ORDER BY epoch LIMIT ?3)) AS c
ORDER BY expires_at LIMIT ?3

-- name: due_leases
-- A job of those, if it is still held.
SELECT {{columns.jobs}} FROM jobs WHERE id = ? AND owner IS NOT NULL AND quarantined_at IS NULL

-- name: push_claims
-- Look at a claim again when its next lease may have passed. One of which nothing is held is
-- closed: an owner that has died never does so.
UPDATE claims SET expires_at = ?, held = held AND ? WHERE request_id = ?

-- name: drop_claims
-- Forget a claim of which nothing is held any more.
DELETE FROM claims WHERE request_id = ?

-- name: quarantine
-- Set a job aside; one that is keeps its first reason.
UPDATE jobs SET quarantined_at = ?2, quarantine = ?3 WHERE id = ?1 AND quarantined_at IS NULL

-- name: quarantined
-- Jobs that are set aside, by id.
SELECT id, quarantined_at, quarantine FROM jobs
WHERE quarantined_at IS NOT NULL AND id > ? ORDER BY id LIMIT ?

-- name: count_quarantined
-- How many there are.
SELECT count(*) FROM jobs WHERE quarantined_at IS NOT NULL

-- name: release_quarantined
-- Let a job be claimed and swept again.
UPDATE jobs SET quarantined_at = NULL, quarantine = NULL
WHERE id = ? AND quarantined_at IS NOT NULL

-- name: marked
-- Families to look at, the oldest mark first.
SELECT number, id FROM marks ORDER BY number LIMIT ?

-- name: unmark
-- Remove a mark that was seen.
DELETE FROM marks WHERE number = ?

-- name: children
-- Children of a parent, oldest first, after an id.
SELECT {{columns.jobs}} FROM jobs
WHERE parent_id = ? AND id > ? AND link_kind = {{link.child}} ORDER BY id LIMIT ?

-- name: live_children
-- The same, those that have not ended.
SELECT {{columns.jobs}} FROM jobs WHERE live_parent_id = ? AND id > ? ORDER BY id LIMIT ?

-- name: families
-- Parents of live children, and jobs that wait for children, by id.
SELECT id FROM (
    SELECT * FROM (SELECT DISTINCT live_parent_id AS id FROM jobs WHERE live_parent_id > ?1
        ORDER BY live_parent_id LIMIT ?2)
    UNION
    SELECT * FROM (SELECT id FROM jobs
        WHERE substr(wait_for, 1, 17) = 'holdfast:children' AND id > ?1 ORDER BY id LIMIT ?2)) AS f
ORDER BY id LIMIT ?2

-- name: owned
-- The claims of an owner of which it may hold something.
SELECT request_id, ids FROM claims WHERE owner = ? AND held = 1

-- name: owned_job
-- A job, if that owner holds it.
SELECT {{columns.jobs}} FROM jobs WHERE id = ? AND owner = ? AND quarantined_at IS NULL

-- name: close_claims
-- Look at a claim no more of which its owner holds nothing: it is remembered only.
-- differs from postgres: there the look itself closes it.
UPDATE claims SET held = 0 WHERE request_id = ?

-- name: counts
-- Summaries.
SELECT tenant, queue, state, jobs FROM counts
WHERE (?1 IS NULL OR tenant = ?1) AND jobs <> 0 ORDER BY 1, 2, 3

-- name: clear_counts
-- Begin the summaries anew.
DELETE FROM counts

-- name: recount
-- Count all jobs.
INSERT INTO counts (tenant, queue, state, jobs)
SELECT tenant, queue, state, count(*) FROM jobs GROUP BY 1, 2, 3

-- name: queue
-- How a queue stands.
SELECT name, paused_at, paused_by, reason FROM queues WHERE name = ?

-- name: pause
-- Pause a queue; one that is paused keeps who did it first.
INSERT INTO queues (name, paused_at, paused_by, reason) VALUES (?, ?, ?, ?)
ON CONFLICT (name) DO UPDATE
SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, reason = excluded.reason
WHERE queues.paused_at IS NULL

-- name: resume
-- Resume a queue.
UPDATE queues SET paused_at = NULL, paused_by = NULL, reason = NULL
WHERE name = ? AND paused_at IS NOT NULL

-- name: queue_event
-- An entry of the queues' ledger.
INSERT INTO queue_events (queue, type, at, actor, reason, request_id) VALUES (?, ?, ?, ?, ?, ?)

-- name: queue_request
-- What a request_id stood for.
SELECT queue, type, actor FROM queue_events WHERE request_id = ?

-- name: queues
-- Queues that were ever paused.
SELECT name, paused_at, paused_by, reason FROM queues ORDER BY name

-- name: queue_events
-- The queues' ledger.
SELECT queue, type, at, actor, reason, request_id FROM queue_events
WHERE ?1 IS NULL OR queue = ?1 ORDER BY position

-- name: announce
-- A worker lives. One that had ended begins anew.
INSERT INTO workers (name, started_at, seen_at, stopped_at, pid, concurrency, host, queues,
    capabilities, tasks)
VALUES (?1, ?2, ?2, NULL, ?3, ?4, ?5, ?6, ?7, ?8)
ON CONFLICT (name) DO UPDATE SET
    started_at = iif(stopped_at IS NULL, started_at, excluded.started_at),
    seen_at = excluded.seen_at, stopped_at = NULL, pid = excluded.pid,
    concurrency = excluded.concurrency, host = excluded.host, queues = excluded.queues,
    capabilities = excluded.capabilities, tasks = excluded.tasks

-- name: forget_workers
-- Forget some of those not seen since.
DELETE FROM workers WHERE name IN (
    SELECT name FROM workers WHERE seen_at < ? ORDER BY seen_at LIMIT ?)

-- name: seen
-- A worker still lives.
UPDATE workers SET seen_at = ?1 WHERE name = ?2 AND stopped_at IS NULL

-- name: retire
-- A worker ended in order.
UPDATE workers SET seen_at = ?1, stopped_at = ?1 WHERE name = ?2 AND stopped_at IS NULL

-- name: workers
-- Workers, the most recently seen first.
SELECT name, started_at, seen_at, stopped_at, pid, concurrency, host, queues, capabilities, tasks
FROM workers WHERE seen_at >= ? ORDER BY seen_at DESC, name LIMIT ?

-- name: worker
-- One worker.
SELECT name, started_at, seen_at, stopped_at, pid, concurrency, host, queues, capabilities, tasks
FROM workers WHERE name = ?

-- name: publish_terms
-- Terms of a task; the last publisher's hold.
INSERT INTO task_terms (tenant, task, published_at, body) VALUES (?, ?, ?, ?)
ON CONFLICT (tenant, task) DO UPDATE SET published_at = excluded.published_at, body = excluded.body

-- name: forget_terms
-- Forget the terms of a tenant that were published longest ago, beyond a number.
DELETE FROM task_terms WHERE tenant = ?1 AND task IN (
    SELECT task FROM task_terms WHERE tenant = ?1
    ORDER BY published_at DESC LIMIT -1 OFFSET ?2)

-- name: task_terms
-- Terms of a task: a tenant's own, and those for all.
SELECT tenant, task, body FROM task_terms WHERE tenant IN (?, '') AND task = ?

-- name: add_webhook
-- A webhook begins, by the store's clock. One that is there already stays as it is.
INSERT INTO webhooks (id, tenant, url, secret, states, queue, task, created_by, created_at)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (id, tenant) DO NOTHING

-- name: remove_webhook
-- A webhook ends; the first who says so is remembered, the secret is not.
UPDATE webhooks SET removed_at = ?4, removed_by = ?3, secret = NULL
WHERE id = ?1 AND tenant = ?2 AND removed_at IS NULL

-- name: look_up_webhooks
-- Webhooks by id: a tenant's, or each tenant's.
SELECT id, tenant, url, secret, states, queue, task, created_at, created_by, removed_at,
    removed_by
FROM webhooks WHERE id = ?1 AND (?2 IS NULL OR tenant = ?2) ORDER BY tenant

-- name: webhooks
-- A page of webhooks that live, newest first: ids are in the order of time.
SELECT id, tenant, url, secret, states, queue, task, created_at, created_by, removed_at,
    removed_by
FROM webhooks
WHERE removed_at IS NULL AND (id, tenant) < (?1, ?2) AND (?3 IS NULL OR tenant = ?3)
ORDER BY id DESC, tenant DESC LIMIT ?4

-- name: cursor
-- How far somebody has come.
SELECT cursor FROM cursors WHERE name = ?

-- name: begin_cursor
-- Somebody begins to follow.
INSERT INTO cursors (name, cursor) VALUES (?, ?) ON CONFLICT (name) DO NOTHING

-- name: move_cursor
-- Somebody goes on, from where it was.
UPDATE cursors SET cursor = ?3 WHERE name = ?1 AND cursor = ?2

-- name: aged_bound
-- Where a look for aged jobs ends: so many after an id.
SELECT id FROM jobs WHERE id > ? ORDER BY id LIMIT 1 OFFSET ? - 1

-- name: aged
-- Jobs between two ids that ended long ago, are not cleaned, and to which no live job is linked, nor
-- one that undoes it and may be redriven: that asks for the whole story.
-- The + keeps the planner from looking for them by anything but their id.
SELECT {{columns.jobs.j}} FROM jobs AS j
WHERE j.id > ? AND j.id <= ? AND j.finished_at <= ? AND j.retention <> {{retention.cleaned}}
    AND j.quarantined_at IS NULL
    AND NOT EXISTS (
        SELECT 1 FROM jobs AS c WHERE c.parent_id = j.id AND (+c.finished_at IS NULL
            OR +c.link_kind = {{link.compensation}} AND +c.letter = {{letter.open}}))
ORDER BY j.id

-- name: continued
-- Whether another job may still read the records of one: a retry, redrive or compensation, at any
-- remove, that has not ended or whose dead letter is open.
-- differs from postgres: one job at a time.
WITH RECURSIVE line (id, finished_at, letter) AS (
    SELECT id, finished_at, letter FROM jobs
    WHERE parent_id = ?1 AND +link_kind <> {{link.child}}
    UNION
    SELECT c.id, c.finished_at, c.letter FROM line CROSS JOIN jobs AS c
    WHERE c.parent_id = line.id AND +c.link_kind <> {{link.child}})
SELECT 1 FROM line WHERE finished_at IS NULL OR letter = {{letter.open}} LIMIT 1

-- name: purgeable
-- Jobs between two ids that ended long ago, each with whether another job is linked to it.
SELECT EXISTS (SELECT 1 FROM jobs AS c WHERE c.parent_id = j.id), {{columns.jobs.j}}
FROM jobs AS j
WHERE j.id > ? AND j.id <= ? AND j.finished_at <= ? AND j.quarantined_at IS NULL
ORDER BY j.id

-- name: newest_event
-- Whose event is the newest: it is not removed, so that no position is given twice.
SELECT id FROM events WHERE position = (SELECT max(position) FROM events)

-- name: purge_job
-- Remove the row of a cleaned job to which none is linked.
DELETE FROM jobs WHERE id = ?1 AND retention = {{retention.cleaned}} AND quarantined_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM jobs AS c WHERE c.parent_id = ?1)
RETURNING tenant, queue, state

-- name: purge_events
-- Then its events,
DELETE FROM events WHERE id = ?

-- name: purge_beats
-- heartbeats,
DELETE FROM beats WHERE id = ?

-- name: purge_logs
-- log,
DELETE FROM logs WHERE id = ?

-- name: purge_signals
-- pending signals,
DELETE FROM signals WHERE id = ?

-- name: purge_keys
-- and keys, but for those that are never given again.
DELETE FROM keys WHERE id = ? AND kind NOT IN ({{key.job_id}}, {{key.request_id}})

-- name: purge_entry
-- The entry of a batch.
INSERT INTO purges (at, actor, reason, jobs, events) VALUES (?, ?, ?, ?, ?) RETURNING number

-- name: purge_id
-- What is left of a job.
INSERT INTO purged (id, tenant, purge) VALUES (?, ?, ?)

-- name: purged
-- A job that was purged, by id.
SELECT p.id, p.tenant, e.at, e.actor FROM purged AS p JOIN purges AS e ON e.number = p.purge
WHERE p.id = ?

-- name: purges
-- Entries of purges, newest first.
SELECT number, at, actor, reason, jobs, events FROM purges
WHERE number < ? ORDER BY number DESC LIMIT ?

-- name: keep_logs
-- Lines of jobs' logs, in their order.
INSERT INTO logs (id, attempt, at, level, message) VALUES (?, ?, ?, ?, ?)

-- name: trim_logs
-- Of a job's log the newest lines stay.
DELETE FROM logs WHERE id = ?1 AND position <= (
    SELECT position FROM logs WHERE id = ?1 ORDER BY position DESC LIMIT 1 OFFSET ?2)

-- name: logs
-- One job's log after a position.
SELECT position, attempt, at, level, message FROM logs
WHERE id = ? AND position > ? ORDER BY position LIMIT ?

-- name: erase_logs
-- What retention no longer keeps of a log.
DELETE FROM logs
WHERE id = ?1 AND EXISTS (SELECT 1 FROM jobs WHERE id = ?1 AND retention <> {{retention.live}})

-- name: add_token
-- A token begins, by the store's clock. One that is there already stays as it is.
INSERT INTO tokens (id, name, digest, role, tenant, queues, created_by, created_at, expires_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?9, ?9 + ?8)
ON CONFLICT (id) DO NOTHING

-- name: revoke_token
-- A token ends; the first who says so is remembered.
UPDATE tokens SET revoked_at = ?3, revoked_by = ?2 WHERE id = ?1 AND revoked_at IS NULL

-- name: look_up_tokens
-- A token by id.
SELECT id, name, digest, role, tenant, queues, created_at, created_by, expires_at, revoked_at,
    revoked_by
FROM tokens WHERE id = ?

-- name: tokens
-- A page of tokens, newest first: ids are in the order of time.
SELECT id, name, digest, role, tenant, queues, created_at, created_by, expires_at, revoked_at,
    revoked_by
FROM tokens WHERE id < ?1 AND (?2 IS NULL OR tenant = ?2) ORDER BY id DESC LIMIT ?3

-- name: erase_bodies
-- Erase what retention no longer keeps; digests stay.
UPDATE events SET body = NULL
WHERE id = ?1 AND body IS NOT NULL
    AND EXISTS (SELECT 1 FROM jobs WHERE id = ?1 AND retention <> {{retention.live}})

-- name: drop_beats
-- Drop old heartbeats, but never the one that a present lease rests on.
DELETE FROM beats WHERE (id, rev) IN (
    SELECT b.id, b.rev FROM beats AS b
    WHERE b.at < ? AND NOT EXISTS (
        SELECT 1 FROM jobs AS j WHERE j.id = b.id AND j.rev = b.rev)
    LIMIT ?)

-- name: all_tokens
-- Every token, for verify.
SELECT id, name, digest, role, tenant, queues, created_at, created_by, expires_at, revoked_at,
    revoked_by
FROM tokens ORDER BY id

-- name: all_webhooks
-- Every webhook, for verify, removed ones too.
SELECT id, tenant, url, secret, states, queue, task, created_at, created_by, removed_at,
    removed_by
FROM webhooks ORDER BY id, tenant

-- name: all_cursors
-- How far everybody has come, for verify.
SELECT name, cursor FROM cursors ORDER BY name

-- name: stray_marks
-- Marks of jobs that are not there, and were not purged.
SELECT m.number, m.id FROM marks AS m
WHERE NOT EXISTS (SELECT 1 FROM jobs WHERE id = m.id)
    AND NOT EXISTS (SELECT 1 FROM purged WHERE id = m.id)
ORDER BY m.number LIMIT 1000

-- name: stray_signals
-- Jobs that have pending signals and count none, or are not there.
SELECT DISTINCT s.id FROM signals AS s
WHERE NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = s.id AND j.pending_signals IS NOT NULL)
LIMIT 1000

-- name: ledger_end
-- The highest id there is, of whatever is left of it.
SELECT max(id) FROM (
    SELECT max(id) AS id FROM jobs UNION ALL SELECT max(id) FROM events
    UNION ALL SELECT max(id) FROM beats UNION ALL SELECT max(id) FROM keys)

-- name: ledger_bound
-- Where the next batch of the ledger ends: after ?2 jobs, or ?3 events, heartbeats or keys, so that
-- it is bounded also where rows are missing; at ?4 at the latest.
SELECT min(id) FROM (
    SELECT ?4 AS id
    UNION ALL SELECT (SELECT id FROM jobs WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?2 - 1)
    UNION ALL SELECT (SELECT id FROM events WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?3 - 1)
    UNION ALL SELECT (SELECT id FROM beats WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?3 - 1)
    UNION ALL SELECT (SELECT id FROM keys WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?3 - 1))

-- name: ledger_jobs
-- Job rows between two ids.
SELECT {{columns.jobs}} FROM jobs WHERE id > ? AND id <= ? ORDER BY id

-- name: ledger_events
-- All events between two ids, heartbeats among them.
SELECT {{columns.events}} FROM events WHERE id > ?1 AND id <= ?2
UNION ALL
SELECT id, rev, type, state, state, at, attempt, 0, lease_expires_at, NULL, NULL, 1, actor,
    request_id, reason, NULL, NULL, NULL, NULL, seal
FROM beats WHERE id > ?1 AND id <= ?2
ORDER BY id, rev

-- name: ledger_keys
-- Keys of the jobs between two ids.
SELECT id, tenant, kind, key, digest FROM keys WHERE id > ? AND id <= ?

-- name: ledger_unclaimed
-- Jobs between two ids that are held though no claim of their owner names them.
SELECT id FROM jobs AS j WHERE id > ? AND id <= ? AND owner IS NOT NULL AND NOT EXISTS (
    SELECT 1 FROM claims AS c WHERE c.owner = j.owner AND c.held = 1 AND instr(c.ids, j.id) > 0)

-- name: ledger_purged
-- Ids between two of which something is left although they were purged.
SELECT p.id FROM (
    SELECT id FROM keys WHERE id > ?1 AND id <= ?2
    UNION SELECT id FROM jobs WHERE id > ?1 AND id <= ?2
    UNION SELECT id FROM events WHERE id > ?1 AND id <= ?2) AS k
CROSS JOIN purged AS p ON p.id = k.id

-- name: ledger_quarantined
-- Jobs between two ids that are set aside.
SELECT id, quarantine FROM jobs WHERE id > ? AND id <= ? AND quarantined_at IS NOT NULL

-- name: dictionary
-- All policies and needs, with what of them stands in columns.
SELECT 'policy', id, body, lease, start_timeout FROM policies
UNION ALL SELECT 'needs', id, body, NULL, NULL FROM needs

-- name: size
-- How many jobs there are.
SELECT coalesce(sum(jobs), 0) FROM counts

-- name: last_revs
-- The revision of a job's last event or heartbeat.
SELECT max(rev) FROM (
    SELECT max(rev) AS rev FROM events WHERE id = ?1
    UNION ALL SELECT max(rev) FROM beats WHERE id = ?1)

-- name: guards
-- The triggers on job rows: a rebuild lays them down and puts them up again.
SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 'jobs'

-- name: drop_guard
-- Lay one of them down.
DROP TRIGGER :guard

-- name: remove_job
-- Remove a projection that is about to be rebuilt.
DELETE FROM jobs WHERE id = ?

-- name: remove_signals
-- Remove the pending signals of a job that is about to be rebuilt.
DELETE FROM signals WHERE id = ?

-- name: drop_stray_signals
-- Remove the pending signals of jobs of which nothing else is left, while nobody writes.
DELETE FROM signals WHERE NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = signals.id)
AND NOT EXISTS (SELECT 1 FROM events AS e WHERE e.id = signals.id)

-- name: remove_keys
-- Remove the keys of a job that is about to be rebuilt.
DELETE FROM keys WHERE id = ?

-- name: stray_keys_bound
-- Where the next ?2 keys after an id end; nothing if there are fewer.
SELECT id FROM keys WHERE id > ?1 ORDER BY id LIMIT 1 OFFSET ?2 - 1

-- name: free_stray_keys
-- Free the keys of ids of which nothing else is left, while nobody writes: from id ?1 up to ?2, or
-- to the last one. Differs from postgres: the bound is read before.
DELETE FROM keys WHERE id >= ?1 AND id <= coalesce(?2, (SELECT max(id) FROM keys))
AND NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = keys.id)
AND NOT EXISTS (SELECT 1 FROM events AS e WHERE e.id = keys.id)
AND NOT EXISTS (SELECT 1 FROM beats AS b WHERE b.id = keys.id)
AND NOT EXISTS (SELECT 1 FROM purged AS p WHERE p.id = keys.id)

-- name: restore_job
-- Insert a projection as its events say it is.
INSERT INTO jobs ({{columns.row}}) VALUES (:marks)
