-- Sticky enforcement (rule F9): one of three triggers that guard the table {table} by the guard row of the
-- resource {resource}.
--
-- Every {event} of a row must come over a connection that has claimed the resource, by a token that is
-- still the highest. A claim by palisade-fence tells the connection its token. A program that knows
-- nothing of the fence lacks the function: SQLite refuses to prepare its statement.
--
-- What it does not stop: writes of the connection that holds the highest token, although this transaction
-- did not claim; INSERT OR REPLACE is judged as the INSERT it is; DROP TRIGGER, DROP TABLE and PRAGMA
-- writable_schema; a program that registers a function of its own by that name, or writes the file itself.
DROP TRIGGER IF EXISTS {trigger};
CREATE TRIGGER {trigger} BEFORE {event} ON {table} BEGIN
    SELECT CASE
        WHEN palisade_token({resource}) IS NULL THEN RAISE(ABORT, 'palisade tokenless: claim the resource first')
        WHEN palisade_token({resource}) < (SELECT token FROM palisade_fence WHERE resource = {resource})
            THEN RAISE(ABORT, 'palisade stale: a newer token has been here')
        WHEN palisade_token({resource}) IS NOT (SELECT token FROM palisade_fence WHERE resource = {resource})
            THEN RAISE(ABORT, 'palisade unclaimed: claim the resource first, in the same transaction')
    END;
END;
