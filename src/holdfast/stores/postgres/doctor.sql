-- What is asked of a PostgreSQL server that is examined. Nothing here is for superusers only.

-- name: server
-- What it is, how it keeps its word, and how full it is.
SELECT current_setting('server_version_num')::int / 10000 AS version,
    pg_is_in_recovery() AS standby,
    current_setting('fsync') AS fsync,
    current_setting('full_page_writes') AS full_page_writes,
    current_setting('synchronous_commit') AS synchronous_commit,
    current_setting('max_connections')::int AS max_connections,
    (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend') AS connections,
    pg_database_size(current_database()) AS size

-- name: schema
-- Whether migrations were ever applied.
SELECT to_regclass('migrations') IS NOT NULL

-- name: newest
-- The last one applied, and what a version must know that does not know all after $1.
SELECT max(number), coalesce(max(min_reader) FILTER (WHERE number > $1), 0) FROM migrations

-- name: lineage
-- In which lineage events are followed, and whether the database has moved since its start.
SELECT cardinality(value::bigint[]) + 1 AS number, holdfast_moved() AS moved
FROM meta WHERE key = 'tail_ends'

-- name: oldest
-- The transaction that has kept dead rows from being removed for longest.
SELECT pid, extract(epoch FROM clock_timestamp() - xact_start)::int AS seconds
FROM pg_stat_activity
WHERE backend_xmin IS NOT NULL AND pid <> pg_backend_pid()
    AND datname = current_database() AND xact_start < clock_timestamp() - make_interval(secs => $1)
ORDER BY xact_start LIMIT 1

-- name: slots
-- Replication slots that nobody reads: the server keeps all it writes for them.
SELECT slot_name FROM pg_replication_slots WHERE NOT active ORDER BY slot_name LIMIT 10
