-- The one statement that runs on connections which are not the store's: whatever the driver, its
-- types and its codecs, text goes in and text comes out.

-- name: enlist
-- Submit in the caller's transaction. CAST, not ::, which some take for the name of a parameter.
SELECT CAST(:schema.holdfast_submit(CAST(CAST($1 AS text) AS jsonb)) AS text)
