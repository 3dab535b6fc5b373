-- Removes the fence from a database: procedures, and the guard rows with every token that was ever seen. The data stays,
-- unprotected. First, the triggers on the fenced tables must be dropped, else every write to these tables fails.
-- resource_records is data, and stays.
DROP TRIGGER IF EXISTS palisade_ratchet_update;
DROP TRIGGER IF EXISTS palisade_ratchet_delete;
DROP TABLE IF EXISTS palisade_fence;
DROP PROCEDURE IF EXISTS palisade_install;
DROP PROCEDURE IF EXISTS palisade_ratchet;
DROP PROCEDURE IF EXISTS palisade_compare;
DROP PROCEDURE IF EXISTS palisade_check_token;
DROP PROCEDURE IF EXISTS palisade_check_column;
DROP PROCEDURE IF EXISTS palisade_forget;
DROP PROCEDURE IF EXISTS palisade_judge;
DROP PROCEDURE IF EXISTS palisade_end;
DROP PROCEDURE IF EXISTS palisade_claim;
DROP PROCEDURE IF EXISTS palisade_check;
DROP PROCEDURE IF EXISTS palisade_write;
DROP PROCEDURE IF EXISTS palisade_record;
DROP PROCEDURE IF EXISTS palisade_record_for;
DROP PROCEDURE IF EXISTS palisade_version;
