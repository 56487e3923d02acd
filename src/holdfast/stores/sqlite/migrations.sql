-- The statements by which migrations are applied and remembered.

-- name: tables
-- How many tables there are: none in a new file.
SELECT count(*) FROM sqlite_schema

-- name: known
-- Whether migrations were ever applied.
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'migrations'

-- name: create
-- Where they are remembered.
CREATE TABLE IF NOT EXISTS migrations (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    min_reader INTEGER NOT NULL,
    at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
) STRICT

-- name: applied
-- Whether one was applied.
SELECT 1 FROM migrations WHERE number = ?

-- name: enter
-- Remember one.
INSERT INTO migrations (number, name, min_reader) VALUES (?, ?, ?)

-- name: needed
-- What a version must know at least to work beside the migrations after its own last one.
SELECT coalesce(max(min_reader), 0) FROM migrations WHERE number > ?

-- name: newest
-- The last one applied.
SELECT max(number) FROM migrations
