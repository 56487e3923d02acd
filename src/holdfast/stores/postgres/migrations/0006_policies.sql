-- The rules that were ever applied, by the digest of their text: jobs name those that judged them.
-- Which of them are applied now is in meta, under 'policy'.
CREATE TABLE policy_books (
    digest text COLLATE "C" PRIMARY KEY,
    body text NOT NULL,
    applied_at bigint NOT NULL,
    applied_by text NOT NULL,
    reason text
);
CREATE TRIGGER policy_books_fixed AFTER UPDATE OF digest, body ON policy_books FOR EACH ROW
    EXECUTE FUNCTION holdfast_refuse('a change of rules');
CREATE TRIGGER policy_books_kept AFTER DELETE ON policy_books FOR EACH ROW
    EXECUTE FUNCTION holdfast_refuse('the removal of rules');
-- When rules were applied or removed, and by whom.
CREATE TABLE policy_events (
    position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    type text NOT NULL,
    digest text,
    at bigint NOT NULL,
    actor text NOT NULL,
    reason text
);
CREATE TRIGGER policy_events_fixed AFTER UPDATE ON policy_events FOR EACH ROW
    EXECUTE FUNCTION holdfast_refuse('a change of an entry');
CREATE TRIGGER policy_events_kept AFTER DELETE ON policy_events FOR EACH ROW
    EXECUTE FUNCTION holdfast_refuse('the removal of an entry');

-- While rules are applied, no job enters a queue that they have not judged: at its birth the present
-- ones must have, at its admission any. A birth that waits may come unjudged, and not with the
-- verdict of older rules. Disabled while none are applied, so that it costs nothing.
CREATE FUNCTION holdfast_judged() RETURNS trigger LANGUAGE plpgsql AS
$$ DECLARE
    first jsonb := CASE WHEN NEW.rev = 1 THEN NEW.data
        ELSE (SELECT data FROM events WHERE id = NEW.id AND rev = 1) END;
BEGIN
    IF starts_with(first ->> 'task', 'holdfast.') THEN
        RETURN NULL;
    END IF;
    IF NEW.rev = 1 AND (first ->> 'rules' = (SELECT value FROM meta WHERE key = 'policy')
            OR first ->> 'rules' IS NULL AND NOT NEW.to_state = 2)
        OR NEW.rev > 1 AND EXISTS (SELECT 1 FROM policy_books
            WHERE digest IN (NEW.data::jsonb ->> 'rules', first ->> 'rules')) THEN
        RETURN NULL;
    END IF;
    RAISE EXCEPTION 'holdfast: a job that the policy has not judged refused on events'
        USING ERRCODE = 'HFP01';
END $$;
CREATE TRIGGER events_judged AFTER INSERT ON events FOR EACH ROW
    WHEN (NEW.rev = 1 OR NEW.type = 7)
    EXECUTE FUNCTION holdfast_judged();
ALTER TABLE events DISABLE TRIGGER events_judged;
