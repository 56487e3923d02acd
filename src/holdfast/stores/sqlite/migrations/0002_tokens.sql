-- Who may ask a server for what. A secret is not kept, only its SHA-256; `queues` is a JSON list,
-- and null, like a tenant that is null, means all. A token is revoked, never removed: it is
-- the name behind what it did. Ids are in the order of time.
CREATE TABLE tokens (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL,
    digest BLOB NOT NULL,
    role TEXT NOT NULL,
    tenant TEXT,
    queues TEXT,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    expires_at INTEGER,
    revoked_at INTEGER,
    revoked_by TEXT,
    CONSTRAINT digest_is_sha256 CHECK (length(digest) = 32),
    CONSTRAINT revoked_by_somebody CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
) STRICT, WITHOUT ROWID;
