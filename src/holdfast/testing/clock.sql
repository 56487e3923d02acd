-- What a test does to the clock of a PostgreSQL database of its own. SQLite takes its clock from
-- the program, and needs none of this.

-- name: read_clock
-- The function as it is, to be put back afterwards.
SELECT pg_get_functiondef('holdfast_now'::regproc);

-- name: make_clock
CREATE TABLE holdfast_test_clock (now bigint NOT NULL);

-- name: set_clock
INSERT INTO holdfast_test_clock VALUES ($1);

-- name: stop_clock
-- Volatile like the original: each statement sees the time that was last set.
CREATE OR REPLACE FUNCTION holdfast_now() RETURNS bigint LANGUAGE sql VOLATILE AS
$$ SELECT now FROM holdfast_test_clock $$;

-- name: move_clock
UPDATE holdfast_test_clock SET now = $1;

-- name: drop_clock
DROP TABLE holdfast_test_clock;
