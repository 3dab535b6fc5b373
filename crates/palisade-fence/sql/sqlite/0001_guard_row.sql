-- The guard row: one for each fenced resource, in the same file as the data it guards (rule F4).
-- A claim writes it, which takes the file's one write lock: check and effect commit together (rule F1).
CREATE TABLE IF NOT EXISTS palisade_fence (
    -- Printable ASCII, for programs that check nothing themselves.
    resource   TEXT NOT NULL PRIMARY KEY
        CHECK (length(resource) BETWEEN 1 AND 255 AND resource NOT GLOB '*[^ -~]*' AND hex(resource) NOT GLOB '*00*'),
    authority  TEXT,
    lock       TEXT,
    -- The highest token admitted; NULL until the first one.
    token      INTEGER CHECK (token BETWEEN 1 AND 9007199254740991),
    -- Whether something was written under that token, and the highest number of such a write.
    written    INTEGER NOT NULL DEFAULT 0 CHECK (written IN (0, 1)),
    sequence   INTEGER CHECK (sequence BETWEEN 0 AND 9007199254740991),
    -- A checksum of the last numbered write, and its answer.
    digest     INTEGER,
    result     BLOB,
    -- The floor an operator re-armed it with, if ever, and how often that was.
    floor      INTEGER CHECK (floor BETWEEN 1 AND 9007199254740991),
    rearmed    INTEGER NOT NULL DEFAULT 0,
    updated_at TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ', 'now'))
) STRICT;

-- The mark never goes down and is never deleted, regardless of the program that writes the row. Only a
-- re-arming may lower it, which counts itself in the same statement.
CREATE TRIGGER IF NOT EXISTS palisade_ratchet_update BEFORE UPDATE ON palisade_fence
WHEN OLD.resource <> NEW.resource
    OR OLD.token IS NOT NULL AND (NEW.token IS NULL OR NEW.token < OLD.token) AND NEW.rearmed <> OLD.rearmed + 1
BEGIN
    SELECT RAISE(ABORT, 'palisade: a fence never goes down and is never removed: re-arm it instead');
END;
CREATE TRIGGER IF NOT EXISTS palisade_ratchet_delete BEFORE DELETE ON palisade_fence
BEGIN
    SELECT RAISE(ABORT, 'palisade: a fence never goes down and is never removed: re-arm it instead');
END;
-- INSERT OR REPLACE deletes a row without firing the trigger above.
CREATE TRIGGER IF NOT EXISTS palisade_ratchet_replace BEFORE INSERT ON palisade_fence
WHEN EXISTS (SELECT 1 FROM palisade_fence WHERE resource = NEW.resource)
BEGIN
    SELECT RAISE(ABORT, 'palisade: a fence never goes down and is never removed: re-arm it instead');
END;
