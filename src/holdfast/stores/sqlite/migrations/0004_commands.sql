-- differs from postgres: claims_owner is by bytes here already.

-- What a worker's host has for commands, in all and now.
ALTER TABLE workers ADD COLUMN cpus INTEGER;
ALTER TABLE workers ADD COLUMN memory_mb INTEGER;
ALTER TABLE workers ADD COLUMN free_cpus INTEGER;
ALTER TABLE workers ADD COLUMN free_memory_mb INTEGER;

-- Which jobs a hold keeps from being claimed, so that they are found to lift it. A job that is not
-- admitted yet has the hold ''. differs from postgres: the one writer keeps it, not triggers.
CREATE TABLE holds (
    hold TEXT NOT NULL,
    id BLOB NOT NULL,
    PRIMARY KEY (hold, id)
) STRICT, WITHOUT ROWID;
CREATE INDEX holds_id ON holds (id);
INSERT INTO holds (hold, id)
SELECT value, jobs.id FROM jobs, json_each(jobs.held_by)
UNION SELECT '', id FROM jobs WHERE state = 1;
