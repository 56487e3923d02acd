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

-- How far those have come who follow the tail of all events.
CREATE TABLE cursors (
    name TEXT PRIMARY KEY,
    cursor TEXT NOT NULL
) STRICT, WITHOUT ROWID;
