-- Sticky enforcement (rule F9): one of three triggers that guard the table {table} by the guard row of the
-- resource {resource}.
--
-- A connection that runs {event} on a row must have claimed the resource with a token that is still the
-- highest. A claim by palisade-fence sets the connection's token. A program without the fence does not have the
-- function, so SQLite refuses to prepare its statement.
--
-- It does not stop:
-- * a transaction that did not claim, on a connection whose earlier claim still has the highest token;
-- * the deletion in an INSERT OR REPLACE, which is judged as an INSERT;
-- * DROP TRIGGER, DROP TABLE and PRAGMA writable_schema;
-- * a program that registers its own function under that name, or writes the file itself.
DROP TRIGGER IF EXISTS {trigger};
CREATE TRIGGER {trigger} BEFORE {event} ON {table} BEGIN
    SELECT CASE
        WHEN palisade_token({resource}) IS NULL THEN RAISE(ABORT, 'palisade tokenless: claim the resource first')
        WHEN palisade_token({resource}) < (SELECT token FROM palisade_fence WHERE resource = {resource})
            THEN RAISE(ABORT, 'palisade stale: a newer token was claimed')
        WHEN palisade_token({resource}) IS NOT (SELECT token FROM palisade_fence WHERE resource = {resource})
            THEN RAISE(ABORT, 'palisade unclaimed: claim the resource first, in the same transaction')
    END;
END;
