-- Where to report the ends of jobs. A secret must be kept as it is, for messages are signed with
-- it; it is forgotten when the webhook is removed. `states` is a JSON list of codes; null, as of
-- the queue and the task, means all. Ids are in the order of time, and a tenant's own.
CREATE TABLE webhooks (
    id text COLLATE "C" NOT NULL,
    tenant text COLLATE "C" NOT NULL,
    url text NOT NULL,
    secret text,
    states text,
    queue text,
    task text,
    created_at bigint NOT NULL,
    created_by text NOT NULL,
    removed_at bigint,
    removed_by text,
    PRIMARY KEY (id, tenant),
    CONSTRAINT removed_by_somebody CHECK ((removed_at IS NULL) = (removed_by IS NULL)),
    CONSTRAINT secret_while_it_lives CHECK ((removed_at IS NULL) = (secret IS NOT NULL))
);
CREATE INDEX webhooks_live ON webhooks (id, tenant) WHERE removed_at IS NULL;

-- How far those have come who follow the tail of all events.
CREATE TABLE cursors (
    name text PRIMARY KEY,
    cursor text NOT NULL
);
