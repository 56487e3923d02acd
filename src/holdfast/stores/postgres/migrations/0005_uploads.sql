-- What was sent to become the files of jobs: its state, its size, and when it goes. The bytes are in
-- the place of blobs. `bytes` are written, `reserved` are promised to the one writer that there may
-- be at a time, and whatever moves `rev` was seen by nobody who compares with an older one. Ids are
-- in the order of time, in every locale.
CREATE TABLE uploads (
    id text COLLATE "C" PRIMARY KEY,
    tenant text COLLATE "C" NOT NULL,
    state text NOT NULL,
    rev integer NOT NULL DEFAULT 1,
    bytes bigint NOT NULL DEFAULT 0,
    reserved bigint NOT NULL DEFAULT 0,
    files integer,
    digest text,
    request_id text,
    writer text,
    created_at bigint NOT NULL,
    created_by text NOT NULL,
    written_at bigint,
    finalized_at bigint,
    moved_at bigint NOT NULL,
    moved_by text NOT NULL,
    expires_at bigint NOT NULL,
    removed_at bigint,
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
);
CREATE INDEX uploads_tenant ON uploads (tenant, id);
CREATE INDEX uploads_expires ON uploads (expires_at);
CREATE INDEX uploads_finalized ON uploads (id) WHERE state = 'finalized';

-- Which jobs name an upload. Written before the job is: a row without its job is of a submit that
-- was refused.
CREATE TABLE upload_jobs (
    upload text COLLATE "C" NOT NULL,
    id uuid NOT NULL,
    PRIMARY KEY (upload, id)
);

-- The parts of an upload and their sizes: single files by path, or '' for one archive of all.
CREATE TABLE upload_files (
    upload text COLLATE "C" NOT NULL,
    path text COLLATE "C" NOT NULL,
    bytes bigint NOT NULL,
    PRIMARY KEY (upload, path)
);

-- The bytes of a tenant's uploads, written and reserved. Two who reserve at once must not both see
-- what was free before either did: the second waits for the first to commit, and then, in a
-- statement of its own, sees its row.
CREATE FUNCTION holdfast_upload_bytes(whose text) RETURNS bigint LANGUAGE plpgsql VOLATILE AS
$$ BEGIN
    PERFORM pg_advisory_xact_lock(hashtextextended(current_schema() || ' uploads ' || whose, 0));
    RETURN (SELECT coalesce(sum(bytes + reserved), 0) FROM uploads WHERE tenant = whose);
END $$;
-- It finds its table in this schema, whatever the search_path of the caller.
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION holdfast_upload_bytes(text) SET search_path = %I, pg_temp',
        current_schema());
END $$;
