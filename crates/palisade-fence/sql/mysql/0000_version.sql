-- Refuses to replace a newer version of these files. They are run in this order; in the shell, run
-- `mariadb --delimiter=// DATABASE < FILE` for each. Running them again changes nothing, and newer files upgrade an older
-- database. The version that is installed is the comment of the procedure palisade_version, which is created last.
DROP PROCEDURE IF EXISTS palisade_install;
CREATE PROCEDURE palisade_install(mine INT) READS SQL DATA
BEGIN
    DECLARE words VARCHAR(128);
    DECLARE there INT DEFAULT (SELECT CAST(MAX(r.ROUTINE_COMMENT) AS SIGNED) FROM information_schema.ROUTINES r
        WHERE r.ROUTINE_SCHEMA = DATABASE() AND r.ROUTINE_NAME = 'palisade_version');
    IF there > mine THEN
        SET words = CONCAT('this database has version ', there, ' of the fence; these files are version ', mine);
        SIGNAL SQLSTATE 'PF011' SET MESSAGE_TEXT = words;
    END IF;
END;
CALL palisade_install(3);
DROP PROCEDURE palisade_install;
