-- The statements that read the same on both engines. What an engine needs another way is in its own
-- queries.sql. See sql_files.py for the words in braces; `$1` is `?1` on SQLite, where
-- `holdfast_now()` is a function of the writer's connection.

-- name: set_clock
-- Keep the mark and the shift, unless another process has done so since they were read.
UPDATE store_clock SET mark = $1, shift = $2, since = $3
WHERE mark = $4 AND shift = $5 AND since = $6
RETURNING mark

-- name: add_clock_step
-- Note that a machine's clock was set back.
INSERT INTO clock_steps (at, by) VALUES ($1, $2)

-- name: meta
-- What holds for the whole ledger: the epoch, whether events are sealed, limits, secrets.
SELECT key, value FROM meta

-- name: set_meta
-- Set one of these.
INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO UPDATE SET value = excluded.value

-- name: keep_meta
-- Set one of these unless it is there.
INSERT INTO meta (key, value) VALUES ($1, $2) ON CONFLICT (key) DO NOTHING RETURNING key

-- name: move_meta
-- Change a value, unless another process has changed it.
UPDATE meta SET value = $3 WHERE key = $1 AND value = $2 RETURNING key

-- name: sealing_log
-- The time, and when sealing was turned on and off.
SELECT holdfast_now(), (SELECT value FROM meta WHERE key = 'sealing_log')

-- name: current_policy
-- The rules that are applied.
SELECT {{columns.policy_books}} FROM policy_books
WHERE digest = (SELECT value FROM meta WHERE key = 'policy')

-- name: policy_book
-- Rules by their digest.
SELECT {{columns.policy_books}} FROM policy_books WHERE digest = $1

-- name: policy_books
-- All rules that were ever applied, the newest first.
SELECT {{columns.policy_books}} FROM policy_books ORDER BY applied_at DESC, digest LIMIT $1

-- name: add_policy_book
-- Keep rules that are applied, or applied again.
INSERT INTO policy_books (digest, body, applied_at, applied_by, reason)
VALUES ($1, $2, holdfast_now(), $3, $4)
ON CONFLICT (digest) DO UPDATE SET applied_at = excluded.applied_at,
    applied_by = excluded.applied_by, reason = excluded.reason

-- name: forget_meta
-- Forget one of what holds for the whole ledger.
DELETE FROM meta WHERE key = $1 RETURNING value

-- name: policy_event
-- Enter that rules were applied or removed.
INSERT INTO policy_events (type, digest, at, actor, reason)
VALUES ($1, $2, holdfast_now(), $3, $4)

-- name: policy_events
-- When rules were applied or removed, the newest first.
SELECT {{columns.policy_events}} FROM policy_events ORDER BY position DESC LIMIT $1

-- name: hold_names
-- The names of holds in a range, by looking up one after the other: the jobs under each are not read.
WITH RECURSIVE names(hold) AS (
    SELECT min(h.hold) FROM holds AS h WHERE h.hold >= $1 AND h.hold > $2 AND h.hold < $3
    UNION ALL
    SELECT (SELECT min(h.hold) FROM holds AS h WHERE h.hold > n.hold AND h.hold < $3)
    FROM names AS n WHERE n.hold IS NOT NULL)
SELECT n.hold FROM names AS n WHERE n.hold IS NOT NULL LIMIT $4

-- name: policies
-- Policies by key.
SELECT id, body FROM policies WHERE id {{any.bigint.1}}

-- name: needs
-- Sets of needs by key.
SELECT id, body FROM needs WHERE id {{any.bigint.1}}

-- name: forget_needs
-- Forget sets of needs that no job has, and that nobody named within the last hour.
DELETE FROM needs WHERE id <> 0 AND used_at < holdfast_now() - 3600000000
    AND NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.needs = needs.id AND j.needs <> 0 {{apart}})
RETURNING 1

-- name: get
-- Job rows by id.
SELECT {{columns.jobs.j}} FROM jobs AS j WHERE id {{any.uuid.1}}

-- name: get_unread
-- The same, with the number of pending signals instead of their names.
SELECT {{columns.row.j}} FROM jobs AS j WHERE id {{any.uuid.1}}

-- name: look_up
-- Who holds a key.
SELECT id FROM keys WHERE tenant = $1 AND kind = $2 AND key = $3

-- name: look_up_id
-- A job by the text of its internal id, which is its job_id unless one was given: its id, the digest
-- of its body, and whether it was purged. The id of a purged job is never given again.
SELECT j.id, (SELECT digest FROM events AS e WHERE e.id = j.id AND e.rev = 1), false
FROM jobs AS j WHERE j.id = $1 AND j.tenant = $2
UNION ALL SELECT id, NULL, true FROM purged WHERE id = $1 AND tenant = $2

-- name: remove_keys
-- Remove all keys of some jobs: what a losing submit took in this transaction, or a rebuild.
DELETE FROM keys WHERE id {{any.uuid.1}}

-- name: events
-- One job's events after a revision, heartbeats among them.
SELECT {{columns.events}} FROM events WHERE id = $1 AND rev > $2 AND rev <= $4
UNION ALL
SELECT {{columns.beats}} FROM beats WHERE id = $1 AND rev > $2 AND rev <= $4
ORDER BY rev LIMIT $3

-- name: histories
-- The events of several jobs up to a revision, heartbeats among them.
SELECT {{columns.events}} FROM events WHERE id {{any.uuid.1}} AND rev <= $2
UNION ALL
SELECT {{columns.beats}} FROM beats WHERE id {{any.uuid.1}} AND rev <= $2
ORDER BY rev

-- name: bytes_reached
-- The revision at which the bodies of one job's events reach a number of bytes; lengths alone.
SELECT min(rev) FROM (
    SELECT rev, sum(size) OVER (ORDER BY rev) AS total
    FROM (SELECT rev, octet_length(body) AS size FROM events
        WHERE id = $1 AND rev > $2 ORDER BY rev LIMIT $3) AS sizes) AS totals
WHERE total >= $4

-- name: request_event
-- The first event of one job that a submit or a request from outside led to, by its request_id.
SELECT {{columns.events}} FROM events
WHERE id = $1 AND request_id = $2 AND {{law.requested}}
UNION ALL
SELECT {{columns.events}} FROM events WHERE id = $1 AND rev = 1 AND request_id = $2
ORDER BY rev LIMIT 1

-- name: latest_events
-- One job's newest events of some types; progress only where it carries facts.
SELECT {{columns.events}} FROM events
WHERE id = $1 AND type {{any.smallint.2}}
    AND (type <> {{event.job_progressed}} OR data IS NOT NULL)
ORDER BY rev DESC LIMIT $3

-- name: last_progress
-- The newest report of how far one job is. A note that it cannot be killed is not a report.
SELECT {{columns.events}} FROM events
WHERE id = $1 AND type = {{event.job_progressed}} AND digest IS NOT NULL
ORDER BY rev DESC LIMIT 1

-- name: events_by_type
-- B19: (type, ts). On PostgreSQL rare types by their index, the four common ones by the block range
-- of time: planned again for each type, because a plan for any type could not use an index of the rare.
SELECT {{columns.events}} FROM events
WHERE type = $1 AND at >= $2 AND at < $3 ORDER BY at, id, rev LIMIT $4

-- name: due_wakes
-- Jobs whose deadline, time to start or wait is over.
SELECT {{columns.jobs}} FROM jobs WHERE wake_at <= $1 ORDER BY wake_at LIMIT $2

-- name: due_leases
-- Those of some jobs that are still held: what has passed, and when the rest will.
SELECT {{columns.jobs}} FROM jobs
WHERE id {{any.uuid.1}} AND owner IS NOT NULL AND quarantined_at IS NULL

-- name: drop_claims
-- Forget claims of which nothing is held any more.
DELETE FROM claims WHERE request_id {{any.text.1}}

-- name: quarantined
-- Jobs that are set aside, by id.
SELECT id, quarantined_at, quarantine FROM jobs
WHERE quarantined_at IS NOT NULL AND id > $1 ORDER BY id LIMIT $2

-- name: count_quarantined
-- How many there are.
SELECT count(*) FROM jobs WHERE quarantined_at IS NOT NULL

-- name: marked
-- Families to look at, the oldest mark first.
SELECT number, id FROM marks ORDER BY number LIMIT $1

-- name: narrow_none
-- A page of jobs is narrowed by nothing, but read from the newest on.
true

-- name: narrow_parent_id
-- A page of jobs is read by the index of parents,
j.parent_id = $5

-- name: narrow_workflow_id
-- of workflows,
j.workflow_id = $6

-- name: narrow_error_code
-- of errors,
j.error_code = $8

-- name: narrow_letter
-- of dead letters.
j.letter = $9

-- name: narrow_nothing
-- A bounded look that is narrowed by nothing has no value to narrow by.
CAST($1 AS text) IS NULL

-- name: look_bound
-- Where a bounded look for jobs that fit ends: $1 is what it is narrowed by.
SELECT j.id FROM jobs AS j
WHERE :narrow AND j.id < $2 ORDER BY :order j.id DESC LIMIT 1 OFFSET $3

-- name: queues
-- Queues that were ever paused.
SELECT {{columns.queues}} FROM queues ORDER BY name

-- name: pause
-- Pause a queue; one that is paused keeps who did it first.
INSERT INTO queues (name, paused_at, paused_by, reason) VALUES ($1, holdfast_now(), $2, $3)
ON CONFLICT (name) DO UPDATE
SET paused_at = excluded.paused_at, paused_by = excluded.paused_by, reason = excluded.reason
WHERE queues.paused_at IS NULL
RETURNING name

-- name: resume
-- Resume a queue.
UPDATE queues SET paused_at = NULL, paused_by = NULL, reason = NULL
WHERE name = $1 AND paused_at IS NOT NULL
RETURNING name

-- name: queue_event
-- Add an entry to the queues' ledger; a repeated request_id adds none.
INSERT INTO queue_events (queue, type, at, actor, reason, request_id)
VALUES ($1, $2, holdfast_now(), $3, $4, $5) ON CONFLICT DO NOTHING

-- name: queue_request
-- What a request_id stood for.
SELECT queue, type, actor FROM queue_events WHERE request_id = $1

-- name: queue_events
-- The queues' ledger.
SELECT {{columns.queue_events}} FROM queue_events
WHERE CAST($1 AS text) IS NULL OR queue = $1 ORDER BY position

-- name: announce
-- Record that a worker is alive; one that had ended starts again.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS now)
INSERT INTO workers AS w (name, started_at, seen_at, pid, concurrency, host, queues, capabilities,
    tasks, cpus, memory_mb, free_cpus, free_memory_mb)
VALUES ($1, (SELECT now FROM clock), (SELECT now FROM clock), $2, $3, $4, $5, $6, $7, $8, $9, $10,
    $11)
ON CONFLICT (name) DO UPDATE SET
    started_at = CASE WHEN w.stopped_at IS NULL THEN w.started_at ELSE excluded.started_at END,
    seen_at = excluded.seen_at, stopped_at = NULL, pid = excluded.pid,
    concurrency = excluded.concurrency, host = excluded.host, queues = excluded.queues,
    capabilities = excluded.capabilities, tasks = excluded.tasks, cpus = excluded.cpus,
    memory_mb = excluded.memory_mb, free_cpus = excluded.free_cpus,
    free_memory_mb = excluded.free_memory_mb

-- name: seen
-- A worker still lives.
UPDATE workers SET seen_at = holdfast_now() WHERE name = $1 AND stopped_at IS NULL

-- name: retire
-- A worker ended in order.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS now)
UPDATE workers SET seen_at = (SELECT now FROM clock), stopped_at = (SELECT now FROM clock)
WHERE name = $1 AND stopped_at IS NULL

-- name: workers
-- Workers, the most recently seen first.
SELECT {{columns.workers}} FROM workers WHERE seen_at >= $1 ORDER BY seen_at DESC, name LIMIT $2

-- name: worker
-- One worker.
SELECT {{columns.workers}} FROM workers WHERE name = $1

-- name: task_terms
-- Terms of tasks: a tenant's own, and those for all.
SELECT tenant, task, body FROM task_terms WHERE tenant IN ($1, '') AND task {{any.text.2}}

-- name: logs
-- One job's log after a position.
SELECT position, attempt, at, level, message FROM logs
WHERE id = $1 AND position > $2 ORDER BY position LIMIT $3

-- name: add_token
-- Keep a token, created by the store's clock. One that is there already stays as it is.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS now)
INSERT INTO tokens (id, name, digest, role, tenant, queues, created_by, created_at, expires_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, (SELECT now FROM clock), (SELECT now FROM clock) + $8)
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: revoke_token
-- Revoke a token; the first who does is remembered.
UPDATE tokens SET revoked_at = holdfast_now(), revoked_by = $2
WHERE id = $1 AND revoked_at IS NULL
RETURNING id

-- name: look_up_tokens
-- Tokens by id.
SELECT {{columns.tokens}} FROM tokens WHERE id {{any.text.1}}

-- name: tokens
-- A page of tokens, newest first: ids are in the order of time.
SELECT {{columns.tokens}} FROM tokens
WHERE id < $1 AND (CAST($2 AS text) IS NULL OR tenant = $2) ORDER BY id DESC LIMIT $3

-- name: add_webhook
-- Keep a webhook, created by the store's clock. One that is there already stays as it is.
INSERT INTO webhooks (id, tenant, url, secret, states, queue, task, created_by, created_at)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8, holdfast_now())
ON CONFLICT (id, tenant) DO NOTHING
RETURNING id

-- name: remove_webhook
-- Remove a webhook; the first who does is remembered, the secret is not.
UPDATE webhooks SET removed_at = holdfast_now(), removed_by = $3, secret = NULL
WHERE id = $1 AND tenant = $2 AND removed_at IS NULL
RETURNING id

-- name: look_up_webhooks
-- Webhooks by id: a tenant's, or each tenant's.
SELECT {{columns.webhooks}} FROM webhooks
WHERE id = $1 AND (CAST($2 AS text) IS NULL OR tenant = $2) ORDER BY tenant

-- name: webhooks
-- A page of webhooks that are not removed, newest first: ids are in the order of time.
SELECT {{columns.webhooks}} FROM webhooks
WHERE removed_at IS NULL AND (id, tenant) < ($1, $2)
    AND (CAST($3 AS text) IS NULL OR tenant = $3)
ORDER BY id DESC, tenant DESC LIMIT $4

-- name: add_upload
-- Keep an upload, created by the store's clock. One that is there already stays as it is.
WITH clock AS MATERIALIZED (SELECT holdfast_now() AS now)
INSERT INTO uploads (id, tenant, state, created_at, created_by, moved_at, moved_by, expires_at)
VALUES ($1, $2, 'uploading', (SELECT now FROM clock), $3, (SELECT now FROM clock), $3,
    (SELECT now FROM clock) + $4)
ON CONFLICT (id) DO NOTHING
RETURNING id

-- name: look_up_uploads
-- Uploads by id: of one tenant, or of any.
SELECT {{columns.uploads}} FROM uploads
WHERE id {{any.text.1}} AND (CAST($2 AS text) IS NULL OR tenant = $2)

-- name: uploads
-- A page of uploads, newest first: ids are in the order of time.
SELECT {{columns.uploads}} FROM uploads
WHERE id < $1 AND (CAST($2 AS text) IS NULL OR tenant = $2) ORDER BY id DESC LIMIT $3

-- name: upload_bytes
-- What the uploads of a tenant have, written and reserved.
SELECT coalesce(sum(bytes + reserved), 0) FROM uploads WHERE tenant = $1

-- name: open_uploads
-- How many uploads of a tenant are not finalized, up to a number.
SELECT count(*) FROM (
    SELECT 1 FROM uploads WHERE tenant = $1 AND state = 'uploading' LIMIT $2) AS open

-- name: reserve_upload
-- Reserve bytes for the one writer of an upload, if they fit; none always do. The cheap conditions come
-- first: the last one makes the writers of a tenant wait for each other.
UPDATE uploads SET rev = CASE WHEN writer = $3 THEN rev ELSE rev + 1 END,
    writer = $3, reserved = $4, written_at = holdfast_now(), expires_at = holdfast_now() + $6
WHERE id = $1 AND tenant = $2 AND state = 'uploading'
    AND (writer = $3
        OR CAST($9 AS boolean) AND (writer IS NULL OR written_at < holdfast_now() - $5))
    AND ($4 = 0 OR bytes + $4 <= coalesce(
            (SELECT CAST(value AS bigint) FROM meta WHERE key = 'bytes_per_upload'), $7)
        AND {{law.upload_bytes}} - reserved + $4 <= coalesce(
            (SELECT CAST(value AS bigint) FROM meta WHERE key = 'upload_bytes_per_tenant'), $8))
RETURNING id

-- name: keep_upload_file
-- The writer of an upload has written one of its parts.
INSERT INTO upload_files (upload, path, bytes)
SELECT id, $3, $4 FROM uploads WHERE id = $1 AND writer = $2
ON CONFLICT (upload, path) DO UPDATE SET bytes = excluded.bytes
RETURNING upload

-- name: end_write
-- A writer has ended; what it had reserved is free. Single files count as $4 bytes or more.
UPDATE uploads SET rev = rev + 1, writer = NULL, reserved = 0,
    bytes = (SELECT coalesce(sum(CASE WHEN f.path <> '' AND f.bytes < CAST($4 AS bigint)
            THEN CAST($4 AS bigint) ELSE f.bytes END), 0)
        FROM upload_files AS f WHERE f.upload = uploads.id),
    files = (SELECT count(*) FROM upload_files AS f WHERE f.upload = uploads.id),
    written_at = holdfast_now(), expires_at = holdfast_now() + $3
WHERE id = $1 AND writer = $2
RETURNING id

-- name: upload_files
-- The parts of an upload: all, or one.
SELECT path, bytes FROM upload_files
WHERE upload = $1 AND (CAST($2 AS text) IS NULL OR path = $2) ORDER BY path

-- name: finalize_upload
-- Finalize an upload that nobody else wrote to since it was read. A silent writer loses it.
UPDATE uploads SET state = 'finalized', rev = rev + 1, writer = NULL, reserved = 0, files = $4,
    digest = $5, request_id = $7, finalized_at = holdfast_now(), moved_at = holdfast_now(),
    moved_by = $6, expires_at = holdfast_now() + $9
WHERE id = $1 AND tenant = $2 AND rev = $3 AND state = 'uploading'
    AND (writer IS NULL OR writer = CAST($10 AS text) OR written_at < holdfast_now() - $8)
RETURNING id

-- name: use_upload
-- A job will name an upload: one that is finalized lives on.
UPDATE uploads SET
    expires_at = CASE state WHEN 'uploading' THEN expires_at ELSE holdfast_now() + $4 END
WHERE id = $1 AND tenant = $2 AND state {{any.text.3}}
RETURNING id

-- name: link_upload
-- The job that does.
INSERT INTO upload_jobs (upload, id) VALUES ($1, $2) ON CONFLICT (upload, id) DO NOTHING

-- name: consume_uploads
-- Finalized uploads that started jobs, and that no job will start with which is there already.
UPDATE uploads SET state = 'consumed', rev = rev + 1, moved_at = holdfast_now(), moved_by = $1
WHERE state = 'finalized' AND id IN (
    SELECT u.id FROM uploads AS u
    WHERE u.state = 'finalized'
        AND EXISTS (SELECT 1 FROM upload_jobs AS l WHERE l.upload = u.id AND EXISTS (
            SELECT 1 FROM jobs AS j
            WHERE j.id = l.id AND j.started_at IS NOT NULL {{apart}}) {{apart}})
        AND NOT EXISTS (SELECT 1 FROM upload_jobs AS l WHERE l.upload = u.id AND EXISTS (
            SELECT 1 FROM jobs AS j WHERE j.id = l.id AND j.started_at IS NULL
                AND j.finished_at IS NULL {{apart}}) {{apart}})
    ORDER BY u.id LIMIT $2)
RETURNING id

-- name: due_uploads
-- Uploads whose time is over; not those that jobs may need, or needed until lately.
SELECT {{columns.uploads.u}} FROM uploads AS u
WHERE u.expires_at <= $1 AND (u.state IN ('uploading', 'expired', 'deleted') OR NOT EXISTS (
    SELECT 1 FROM upload_jobs AS l WHERE l.upload = u.id AND EXISTS (
        SELECT 1 FROM jobs AS j WHERE j.id = l.id
            AND (j.finished_at IS NULL OR j.finished_at > $2) {{apart}}) {{apart}}))
ORDER BY u.expires_at LIMIT $3

-- name: upload_in_use
-- A job that has not ended and names an upload.
SELECT 1 FROM upload_jobs AS l WHERE l.upload = $1 AND EXISTS (
    SELECT 1 FROM jobs AS j WHERE j.id = l.id AND j.finished_at IS NULL {{apart}}) LIMIT 1

-- name: end_upload
-- Expire or delete an upload; its files go next.
UPDATE uploads SET state = $3, rev = rev + 1, writer = NULL, reserved = 0,
    moved_at = holdfast_now(), moved_by = $4, expires_at = holdfast_now()
WHERE id = $1 AND rev = $2 AND state NOT IN ('expired', 'deleted')
    AND (NOT CAST($5 AS boolean) OR expires_at <= holdfast_now())
RETURNING id

-- name: clear_upload
-- The files of an upload that is over are gone.
UPDATE uploads SET bytes = 0, removed_at = holdfast_now(), expires_at = holdfast_now() + $2
WHERE id = $1 AND state IN ('expired', 'deleted') AND removed_at IS NULL
RETURNING id

-- name: drop_upload
-- Forget an upload whose files are gone,
DELETE FROM uploads WHERE id = $1 AND removed_at IS NOT NULL RETURNING id

-- name: drop_upload_files
-- what it consisted of,
DELETE FROM upload_files
WHERE upload = $1 AND NOT EXISTS (SELECT 1 FROM uploads AS u WHERE u.id = upload {{apart}})

-- name: drop_upload_jobs
-- and which jobs named it.
DELETE FROM upload_jobs
WHERE upload = $1 AND NOT EXISTS (SELECT 1 FROM uploads AS u WHERE u.id = upload {{apart}})

-- name: cursor
-- How far a follower of the tail has come.
SELECT cursor FROM cursors WHERE name = $1

-- name: add_cursor
-- A follower starts.
INSERT INTO cursors (name, cursor) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING RETURNING name

-- name: move_cursor
-- Move a follower's cursor, unless another process has moved it.
UPDATE cursors SET cursor = $3 WHERE name = $1 AND cursor = $2 RETURNING name

-- name: aged_bound
-- Where a look for aged jobs ends: a number of them after an id.
SELECT id FROM jobs WHERE id > $1 ORDER BY id LIMIT 1 OFFSET CAST($2 AS bigint) - 1

-- name: aged
-- Jobs between two ids that ended long ago, are not cleaned, and to which no live job is linked, nor
-- one that undoes it and may be redriven: that asks for the whole story. The + keeps SQLite's
-- planner from looking for them by anything but their parent.
SELECT {{columns.jobs.j}} FROM jobs AS j
WHERE j.id > $1 AND j.id <= $2 AND j.finished_at <= $3 AND j.retention <> {{retention.cleaned}}
    AND j.quarantined_at IS NULL
    AND NOT EXISTS (
        SELECT 1 FROM jobs AS c WHERE c.parent_id = j.id AND (+c.finished_at IS NULL
            OR +c.link_kind = {{link.compensation}} AND +c.letter = {{letter.open}}) {{apart}})
ORDER BY j.id

-- name: erase_bodies
-- Erase what retention no longer keeps; digests stay.
UPDATE events SET body = NULL
WHERE id {{any.uuid.1}} AND body IS NOT NULL AND EXISTS (
    SELECT 1 FROM jobs AS j
    WHERE j.id = events.id AND j.retention <> {{retention.live}} {{apart}})
RETURNING rev

-- name: erase_logs
-- Erase the logs that retention no longer keeps.
DELETE FROM logs
WHERE id {{any.uuid.1}} AND EXISTS (
    SELECT 1 FROM jobs AS j WHERE j.id = logs.id AND j.retention <> {{retention.live}} {{apart}})

-- name: purgeable
-- Jobs between two ids that ended long ago, each with whether another job is linked to it.
SELECT EXISTS (SELECT 1 FROM jobs AS c WHERE c.parent_id = j.id), {{columns.jobs.j}}
FROM jobs AS j
WHERE j.id > $1 AND j.id <= $2 AND j.finished_at <= $3 AND j.quarantined_at IS NULL
ORDER BY j.id

-- name: purge_jobs
-- Remove the rows of cleaned jobs to which none is linked.
DELETE FROM jobs AS j
WHERE j.id {{any.uuid.1}} AND j.retention = {{retention.cleaned}} AND j.quarantined_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM jobs AS c WHERE c.parent_id = j.id {{apart}})
RETURNING id, tenant, queue, state

-- name: purge_beats
-- Then their heartbeats,
DELETE FROM beats WHERE id {{any.uuid.1}}

-- name: purge_logs
-- logs,
DELETE FROM logs WHERE id {{any.uuid.1}}

-- name: purge_keys
-- and keys, but for those that are never given again.
DELETE FROM keys WHERE id {{any.uuid.1}} AND kind NOT IN ({{key.job_id}}, {{key.request_id}})

-- name: purge_entry
-- The entry of a batch.
INSERT INTO purges (at, actor, reason, jobs, events) VALUES (holdfast_now(), $1, $2, $3, $4)
RETURNING number

-- name: purged
-- Jobs that were purged, by id.
SELECT id, tenant, (SELECT at FROM purges WHERE number = purge),
    (SELECT actor FROM purges WHERE number = purge)
FROM purged WHERE id {{any.uuid.1}}

-- name: purges
-- Entries of purges, newest first.
SELECT {{columns.purges}} FROM purges
WHERE number < $1 ORDER BY number DESC LIMIT $2

-- name: ledger_jobs
-- Job rows between two ids.
SELECT {{columns.jobs}} FROM jobs WHERE id > $1 AND id <= $2 ORDER BY id

-- name: ledger_events
-- All events between two ids, heartbeats among them.
SELECT {{columns.events}} FROM events WHERE id > $1 AND id <= $2
UNION ALL
SELECT {{columns.beats}} FROM beats WHERE id > $1 AND id <= $2
ORDER BY id, rev

-- name: ledger_keys
-- Keys of the jobs between two ids.
SELECT id, tenant, kind, key, digest FROM keys WHERE id > $1 AND id <= $2

-- name: ledger_holds
-- Under which holds the jobs between two ids are listed.
SELECT id, hold FROM holds WHERE id > $1 AND id <= $2

-- name: ledger_purged
-- Ids between two of which something is left although they were purged.
SELECT k.id FROM (
    SELECT id FROM keys WHERE id > $1 AND id <= $2
    UNION SELECT id FROM jobs WHERE id > $1 AND id <= $2
    UNION SELECT id FROM events WHERE id > $1 AND id <= $2) AS k
WHERE EXISTS (SELECT 1 FROM purged AS p WHERE p.id = k.id {{apart}})

-- name: ledger_quarantined
-- Jobs between two ids that are set aside.
SELECT id, quarantine FROM jobs WHERE id > $1 AND id <= $2 AND quarantined_at IS NOT NULL

-- name: all_tokens
-- Every token, for verify.
SELECT {{columns.tokens}} FROM tokens ORDER BY id

-- name: all_uploads
-- Every upload, for verify.
SELECT {{columns.uploads}} FROM uploads ORDER BY id

-- name: stray_uploads
-- Uploads that jobs name, or that have files, and that are not there.
SELECT l.upload FROM upload_jobs AS l
WHERE NOT EXISTS (SELECT 1 FROM uploads AS u WHERE u.id = l.upload {{apart}})
UNION SELECT f.upload FROM upload_files AS f
WHERE NOT EXISTS (SELECT 1 FROM uploads AS u WHERE u.id = f.upload {{apart}})

-- name: all_webhooks
-- Every webhook, for verify, removed ones too.
SELECT {{columns.webhooks}} FROM webhooks ORDER BY id, tenant

-- name: all_cursors
-- How far every follower has come, for verify.
SELECT name, cursor FROM cursors ORDER BY name

-- name: stray_marks
-- Marks of jobs that are not there, and were not purged.
SELECT m.number, m.id FROM marks AS m
WHERE NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = m.id {{apart}})
    AND NOT EXISTS (SELECT 1 FROM purged AS p WHERE p.id = m.id {{apart}})
ORDER BY m.number LIMIT 1000

-- name: stray_signals
-- Jobs that have pending signals and count none, or are not there.
SELECT DISTINCT s.id FROM signals AS s
WHERE NOT EXISTS (
    SELECT 1 FROM jobs AS j WHERE j.id = s.id AND j.pending_signals IS NOT NULL {{apart}})
LIMIT 1000

-- name: stray_holds
-- Holds of jobs that are not there.
SELECT h.id, h.hold FROM holds AS h
WHERE NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = h.id {{apart}}) LIMIT 1000

-- name: drop_stray_holds
-- Remove the holds of jobs that are not there, while nobody writes.
DELETE FROM holds WHERE NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = holds.id {{apart}})

-- name: drop_stray_signals
-- Remove the pending signals of jobs of which nothing else is left, while nobody writes.
DELETE FROM signals
WHERE NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = signals.id {{apart}})
    AND NOT EXISTS (SELECT 1 FROM events AS e WHERE e.id = signals.id {{apart}})

-- name: stray_keys_bound
-- Where the next $2 keys after an id end; nothing if there are fewer.
SELECT id FROM keys WHERE id > $1 ORDER BY id LIMIT 1 OFFSET CAST($2 AS bigint) - 1

-- name: free_stray_keys
-- Free the keys of ids between two of which nothing else is left, while nobody writes.
DELETE FROM keys WHERE id >= $1 AND id <= $2
    AND NOT EXISTS (SELECT 1 FROM jobs AS j WHERE j.id = keys.id {{apart}})
    AND NOT EXISTS (SELECT 1 FROM events AS e WHERE e.id = keys.id {{apart}})
    AND NOT EXISTS (SELECT 1 FROM beats AS b WHERE b.id = keys.id {{apart}})
    AND NOT EXISTS (SELECT 1 FROM purged AS p WHERE p.id = keys.id {{apart}})
RETURNING 1

-- name: remove_jobs
-- Remove projections that are about to be rebuilt; the events are the truth.
DELETE FROM jobs WHERE id {{any.uuid.1}}

-- name: remove_holds
-- Remove the holds of jobs that are about to be rebuilt.
DELETE FROM holds WHERE id {{any.uuid.1}}

-- name: remove_signals
-- Remove the pending signals of jobs that are purged, or about to be rebuilt.
DELETE FROM signals WHERE id {{any.uuid.1}}
