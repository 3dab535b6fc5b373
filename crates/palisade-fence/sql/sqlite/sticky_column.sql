-- Sticky enforcement for the table {table}, whose rows carry their own token: an UPDATE must name {token} and
-- must not lower it, and a row cannot be deleted or get another {key}, because it contains its fence.
--
-- It does not stop OR REPLACE where a row differs in {key} and is equal in another UNIQUE column: SQLite deletes the old row
-- and fires no trigger, unless PRAGMA recursive_triggers is on.
--
-- Only an UPDATE that names the column fires the first trigger, which leaves a note for the last trigger. The
-- note does not outlive the statement.
CREATE TABLE IF NOT EXISTS palisade_named (note INTEGER PRIMARY KEY CHECK (note = 1));
DROP TRIGGER IF EXISTS {named};
CREATE TRIGGER {named} BEFORE UPDATE OF {token} ON {table} BEGIN
    SELECT RAISE(ABORT, 'palisade stale: the row has a newer token')
    WHERE typeof(NEW.{token}) <> 'integer' OR NEW.{token} < OLD.{token};
    INSERT OR REPLACE INTO palisade_named VALUES (1);
END;
DROP TRIGGER IF EXISTS {update};
CREATE TRIGGER {update} AFTER UPDATE ON {table} BEGIN
    SELECT RAISE(ABORT, 'palisade tokenless: the row is fenced, and this write carries no token')
    WHERE OLD.{token} <> 0 AND NOT EXISTS (SELECT 1 FROM palisade_named);
    DELETE FROM palisade_named;
END;
-- A key that changes takes the fence along, and OR REPLACE deletes the row that had it before.
DROP TRIGGER IF EXISTS {moved};
CREATE TRIGGER {moved} BEFORE UPDATE OF {key} ON {table}
WHEN NEW.{key} IS NOT OLD.{key}
    AND (OLD.{token} <> 0 OR EXISTS (SELECT 1 FROM {table} WHERE {key} = NEW.{key} AND {token} <> 0)) BEGIN
    SELECT RAISE(ABORT, 'palisade tokenless: the row is fenced, and its fence lives in it');
END;
DROP TRIGGER IF EXISTS {delete};
CREATE TRIGGER {delete} BEFORE DELETE ON {table} WHEN OLD.{token} <> 0 BEGIN
    SELECT RAISE(ABORT, 'palisade tokenless: the row is fenced, and its fence lives in it');
END;
-- INSERT OR REPLACE deletes a row without firing the trigger above.
DROP TRIGGER IF EXISTS {insert};
CREATE TRIGGER {insert} BEFORE INSERT ON {table}
WHEN EXISTS (SELECT 1 FROM {table} WHERE {key} = NEW.{key}
    AND ({token} > NEW.{token} OR typeof(NEW.{token}) <> 'integer')) BEGIN
    SELECT RAISE(ABORT, 'palisade tokenless: the row is fenced, and its fence lives in it');
END;
