-- The rules that were ever applied, by the digest of their text: jobs name those that judged them.
-- Which of them are applied now is in meta, under 'policy'.
CREATE TABLE policy_books (
    digest TEXT PRIMARY KEY,
    body TEXT NOT NULL,
    applied_at INTEGER NOT NULL,
    applied_by TEXT NOT NULL,
    reason TEXT
) STRICT, WITHOUT ROWID;
CREATE TRIGGER policy_books_fixed AFTER UPDATE OF digest, body ON policy_books
BEGIN SELECT RAISE(ABORT, 'holdfast: a change of rules refused on policy_books'); END;
CREATE TRIGGER policy_books_kept AFTER DELETE ON policy_books
BEGIN SELECT RAISE(ABORT, 'holdfast: the removal of rules refused on policy_books'); END;
-- When rules were applied or removed, and by whom.
CREATE TABLE policy_events (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    type TEXT NOT NULL,
    digest TEXT,
    at INTEGER NOT NULL,
    actor TEXT NOT NULL,
    reason TEXT
) STRICT;
CREATE TRIGGER policy_events_fixed AFTER UPDATE ON policy_events
BEGIN SELECT RAISE(ABORT, 'holdfast: a change of an entry refused on policy_events'); END;
CREATE TRIGGER policy_events_kept AFTER DELETE ON policy_events
BEGIN SELECT RAISE(ABORT, 'holdfast: the removal of an entry refused on policy_events'); END;
