-- What was sent to become the files of jobs: its state, its size, and when it goes. The bytes are in
-- the place of blobs. `bytes` are written, `reserved` are promised to the one writer that there may
-- be at a time, and whatever moves `rev` was seen by nobody who compares with an older one. Ids are
-- in the order of time.
CREATE TABLE uploads (
    id TEXT PRIMARY KEY,
    tenant TEXT NOT NULL,
    state TEXT NOT NULL,
    rev INTEGER NOT NULL DEFAULT 1,
    bytes INTEGER NOT NULL DEFAULT 0,
    reserved INTEGER NOT NULL DEFAULT 0,
    files INTEGER,
    digest TEXT,
    request_id TEXT,
    writer TEXT,
    created_at INTEGER NOT NULL,
    created_by TEXT NOT NULL,
    written_at INTEGER,
    finalized_at INTEGER,
    moved_at INTEGER NOT NULL,
    moved_by TEXT NOT NULL,
    expires_at INTEGER NOT NULL,
    removed_at INTEGER,
    CONSTRAINT state_is_known CHECK (
        state IN ('uploading', 'finalized', 'consumed', 'expired', 'deleted')),
    CONSTRAINT bytes_are_counted CHECK (bytes >= 0 AND reserved >= 0),
    CONSTRAINT written_while_uploading CHECK (
        state = 'uploading' OR writer IS NULL AND reserved = 0),
    CONSTRAINT finalized_with_digest CHECK ((finalized_at IS NULL) = (digest IS NULL)),
    CONSTRAINT finalized_before_use CHECK (
        state NOT IN ('finalized', 'consumed') OR finalized_at IS NOT NULL),
    CONSTRAINT removed_after_the_end CHECK (
        removed_at IS NULL OR state IN ('expired', 'deleted') AND bytes = 0)
) STRICT, WITHOUT ROWID;
CREATE INDEX uploads_tenant ON uploads (tenant, id);
CREATE INDEX uploads_expires ON uploads (expires_at);
CREATE INDEX uploads_finalized ON uploads (id) WHERE state = 'finalized';

-- Which jobs name an upload. Written before the job is: a row without its job is of a submit that
-- was refused.
CREATE TABLE upload_jobs (
    upload TEXT NOT NULL,
    id BLOB NOT NULL,
    PRIMARY KEY (upload, id)
) STRICT, WITHOUT ROWID;

-- The parts of an upload and their sizes: single files by path, or '' for one archive of all.
CREATE TABLE upload_files (
    upload TEXT NOT NULL,
    path TEXT NOT NULL,
    bytes INTEGER NOT NULL,
    PRIMARY KEY (upload, path)
) STRICT, WITHOUT ROWID;
