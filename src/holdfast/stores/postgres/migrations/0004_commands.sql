-- By bytes: the workers of one host are a range of names, in every locale.
DROP INDEX claims_owner;
CREATE INDEX claims_owner ON claims (owner text_pattern_ops) WHERE held;

-- What a worker's host has for commands, in all and now.
ALTER TABLE workers ADD COLUMN cpus integer;
ALTER TABLE workers ADD COLUMN memory_mb integer;
ALTER TABLE workers ADD COLUMN free_cpus integer;
ALTER TABLE workers ADD COLUMN free_memory_mb integer;

-- What is wrong with the data of a first event: it may name an adapter and an upload now.
CREATE OR REPLACE FUNCTION holdfast_check_data(data text, expected jsonb, held_by text) RETURNS text
LANGUAGE plpgsql AS
$$ DECLARE
    b jsonb := data;
BEGIN
    RETURN CASE
        -- Python reads neither 60.0 nor 6e7 as a whole number, and there are no others.
        WHEN jsonb_typeof(b) <> 'object' OR EXISTS (
            SELECT 1 FROM json_each(data::json) WHERE json_typeof(value) = 'number'
            AND value::text !~ '^(0|[1-9][0-9]{0,18})$') THEN 'data'
        WHEN (SELECT coalesce(jsonb_object_agg(key, value), '{}') FROM jsonb_each(b)
            WHERE key = ANY (ARRAY['policy', 'tenant', 'job_id', 'kind', 'task',
                'task_version', 'queue', 'priority', 'needs', 'cpus', 'memory_mb', 'parent_id',
                'link_kind', 'workflow_id', 'step_index', 'key_kinds'])) <> expected THEN 'data'
        WHEN EXISTS (
            SELECT 1 FROM jsonb_each(b) WHERE key = ANY (ARRAY['client_job_id', 'dedupe_key',
                'content', 'context_ptr', 'adapter_id', 'files_id', 'trace_id', 'verdict', 'rule',
                'rules', 'decided_by'])
            AND (jsonb_typeof(value) <> 'string'
                OR length(value #>> '{}') NOT BETWEEN 1 AND 1000)) THEN 'data'
        WHEN b ? 'stated' AND (jsonb_typeof(b -> 'stated') = 'array'
            AND jsonb_array_length(b -> 'stated') <= 100
            AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements(b -> 'stated') AS term
                WHERE jsonb_typeof(term) <> 'string')) IS NOT TRUE THEN 'data'
        WHEN EXISTS (
            SELECT 1 FROM jsonb_each(b) AS map WHERE map.key = ANY (ARRAY['labels', 'env'])
            AND (jsonb_typeof(map.value) <> 'object'
                OR EXISTS (
                    SELECT 1 FROM jsonb_each(map.value) AS one
                    WHERE jsonb_typeof(one.value) <> 'string' OR length(one.key) > 200
                        OR length(one.value #>> '{}') > 1000)
                OR (SELECT sum(length(one.key) + length(one.value))
                    FROM jsonb_each_text(map.value) AS one) > 16384)) THEN 'data'
        WHEN b ? 'asked' AND (jsonb_typeof(b -> 'asked') = 'object'
            AND length(b ->> 'asked') <= 1000
            AND NOT EXISTS (SELECT 1 FROM jsonb_each(b -> 'asked')
                WHERE jsonb_typeof(value) NOT IN ('string', 'number', 'null'))) IS NOT TRUE
            THEN 'data'
        WHEN b ? 'holds' AND (jsonb_typeof(b -> 'holds') = 'array'
            AND jsonb_array_length(b -> 'holds') BETWEEN 1 AND 100
            AND NOT EXISTS (SELECT 1 FROM jsonb_array_elements(b -> 'holds') AS hold
                WHERE jsonb_typeof(hold) <> 'string'
                    OR length(hold #>> '{}') NOT BETWEEN 1 AND 1000)) IS NOT TRUE THEN 'data'
        WHEN held_by::jsonb IS DISTINCT FROM b -> 'holds' THEN 'held_by'
    END;
END $$;

-- Which jobs a hold keeps from being claimed, so that they are found to lift it. A job that is not
-- admitted yet has the hold ''. An index on the state would cost every move of every job: changed
-- columns of an index cannot be updated in place. Kept by triggers: holdfast_submit writes jobs, too.
CREATE TABLE holds (
    hold text COLLATE "C" NOT NULL,
    id uuid NOT NULL,
    PRIMARY KEY (hold, id)
);
CREATE INDEX holds_id ON holds (id);
CREATE FUNCTION holdfast_keep_holds() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN
    DELETE FROM holds WHERE id = NEW.id;
    INSERT INTO holds (hold, id)
    SELECT hold, NEW.id FROM jsonb_array_elements_text(NEW.held_by::jsonb) AS hold
    UNION SELECT '', NEW.id WHERE NEW.state = 1;
    RETURN NULL;
END $$;
CREATE TRIGGER jobs_held AFTER INSERT ON jobs FOR EACH ROW
    WHEN (NEW.held_by IS NOT NULL OR NEW.state = 1)
    EXECUTE FUNCTION holdfast_keep_holds();
CREATE TRIGGER jobs_unheld AFTER UPDATE OF state, held_by ON jobs FOR EACH ROW
    WHEN (NEW.held_by IS DISTINCT FROM OLD.held_by
        OR (NEW.state = 1) <> (OLD.state = 1))
    EXECUTE FUNCTION holdfast_keep_holds();
INSERT INTO holds (hold, id)
SELECT hold, id FROM jobs CROSS JOIN LATERAL jsonb_array_elements_text(held_by::jsonb) AS hold
UNION SELECT '', id FROM jobs WHERE state = 1;
-- It finds its table in this schema, whatever the search_path of the caller.
DO $$ BEGIN
    EXECUTE format('ALTER FUNCTION holdfast_keep_holds() SET search_path = %I, pg_temp',
        current_schema());
END $$;
