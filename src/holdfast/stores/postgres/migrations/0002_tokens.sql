-- Who may ask a server for what. A secret is not kept, only its SHA-256; `queues` is a JSON list,
-- and null, like a tenant that is null, means all. A token is revoked, never removed: it is
-- the name behind what it did. Ids are in the order of time, in every locale.
CREATE TABLE tokens (
    id text COLLATE "C" PRIMARY KEY,
    name text NOT NULL,
    digest bytea NOT NULL,
    role text NOT NULL,
    tenant text,
    queues text,
    created_at bigint NOT NULL,
    created_by text NOT NULL,
    expires_at bigint,
    revoked_at bigint,
    revoked_by text,
    CONSTRAINT digest_is_sha256 CHECK (octet_length(digest) = 32),
    CONSTRAINT revoked_by_somebody CHECK ((revoked_at IS NULL) = (revoked_by IS NULL))
);
