-- The statements by which migrations are applied and remembered.

-- name: tables
-- How many tables there are: none in a new file.
SELECT count(*) FROM sqlite_schema

-- name: known
-- Whether migrations were ever applied.
SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'migrations'

-- name: begin
-- Where they are remembered.
CREATE TABLE IF NOT EXISTS migrations (
    number INTEGER PRIMARY KEY,
    name TEXT NOT NULL,
    at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
) STRICT

-- name: applied
-- Whether one was applied.
SELECT 1 FROM migrations WHERE number = ?

-- name: enter
-- Remember one.
INSERT INTO migrations (number, name) VALUES (?, ?)

-- name: newest
-- The last one applied.
SELECT max(number) FROM migrations
