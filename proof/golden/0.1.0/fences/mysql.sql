CREATE TABLE orders (total INTEGER);
-- 0000_version.sql
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

-- 0001_guard_row.sql
-- The guard row: one for each fenced resource, in the same database as the data it guards (rule F4).
-- A transaction that claims locks it, so check and effect commit together (rule F1).
--
-- Names are compared byte by byte: with a text collation, 'A' and 'a ' would be equal to 'a'.
CREATE TABLE IF NOT EXISTS palisade_fence (
    resource   VARBINARY(255) NOT NULL PRIMARY KEY CHECK (resource <> ''),
    authority  VARBINARY(255),
    `lock`     VARBINARY(255),
    -- The highest token admitted; NULL until the first one.
    token      BIGINT CHECK (token BETWEEN 1 AND 9007199254740991),
    -- Whether something was written under that token, and the highest number of such a write.
    written    BIGINT NOT NULL DEFAULT 0,
    sequence   BIGINT CHECK (sequence BETWEEN 0 AND 9007199254740991),
    -- What the last numbered write was (a checksum) and what it answered.
    digest     BIGINT,
    result     MEDIUMBLOB,
    -- The floor an operator re-armed it with, if ever, and how often that was.
    floor      BIGINT CHECK (floor BETWEEN 1 AND 9007199254740991),
    rearmed    BIGINT NOT NULL DEFAULT 0,
    -- Counts every operation: a transaction that sees an older number sees older data.
    version    BIGINT NOT NULL DEFAULT 0,
    updated_at DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB;

-- 0002_resource_records.sql
-- A ready-made store. Each row carries its own token. The key has 1 to 100 characters of UTF-8 and is compared
-- byte by byte: with a text collation, 'A' and 'a ' would be equal to 'a'.
CREATE TABLE IF NOT EXISTS resource_records (
    resource_id        VARBINARY(400) NOT NULL PRIMARY KEY,
    resource_data      LONGTEXT CHARACTER SET utf8mb4 COLLATE utf8mb4_bin,
    last_fencing_token BIGINT NOT NULL DEFAULT 0
        CHECK (last_fencing_token BETWEEN 0 AND 9007199254740991),
    updated_at         DATETIME(6) NOT NULL DEFAULT CURRENT_TIMESTAMP(6) ON UPDATE CURRENT_TIMESTAMP(6)
) ENGINE = InnoDB;

-- 0003_sticky.sql
-- The ratchet, and sticky enforcement (rule F9): code that forgot the fence cannot write a table.
--
-- A driver runs this file as one query of several statements. In the shell, run
-- `mariadb --delimiter=// DATABASE < 0003_sticky.sql`. If binary logging is on, SUPER or
-- log_bin_trust_function_creators is necessary to create triggers and procedures. Then, for each table:
--
--     CREATE TRIGGER orders_insert BEFORE INSERT ON orders FOR EACH ROW CALL palisade_check_token('orders');
--     CREATE TRIGGER orders_update BEFORE UPDATE ON orders FOR EACH ROW CALL palisade_check_token('orders');
--     CREATE TRIGGER orders_delete BEFORE DELETE ON orders FOR EACH ROW CALL palisade_check_token('orders');
--
-- From then on, a connection that writes a row of that table must have claimed the resource with a token that is
-- still the highest. palisade_claim sets the token. To set it by hand:
--
--     SET @palisade_token = 34;          -- and, if it counts for one resource only,
--     SET @palisade_resource = 'orders';
--
-- It does not stop:
-- * TRUNCATE, DROP and ALTER, which fire no trigger;
-- * changes of rows by the cascade of a foreign key, and statements that hit no row;
-- * a transaction that did not claim, on a connection whose earlier claim still has the highest token: variables
--   outlive transactions, unless a pool resets its connections;
-- * row-based replication;
-- * a program that sets a token that it was not granted.
--
-- For a table whose rows carry their own token:
--
--     CREATE TRIGGER orders_update BEFORE UPDATE ON orders FOR EACH ROW
--         CALL palisade_check_column(OLD.last_fencing_token, IF(NEW.id <=> OLD.id, NEW.last_fencing_token, NULL));
--     CREATE TRIGGER orders_delete BEFORE DELETE ON orders FOR EACH ROW
--         CALL palisade_check_column(OLD.last_fencing_token, NULL);
--
-- A row with another key is another resource: without the IF, a change of the key would take the fence away.
--
-- A trigger of MySQL cannot see which columns an UPDATE names. So the connection first sets the token that it
-- will write: SET @palisade_column_token = 34, which palisade_fence::mysql::show_token does.
--
-- A routine keeps the sql_mode in which it was made; some modes read these texts in another way.
SET @palisade_sql_mode = @@SESSION.sql_mode, SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION';
DROP PROCEDURE IF EXISTS palisade_ratchet;
CREATE PROCEDURE palisade_ratchet(
    was_named VARBINARY(255), is_named VARBINARY(255), was BIGINT, stands BIGINT, is_rearmed BOOLEAN)
    NO SQL
BEGIN
    IF NOT (was_named <=> is_named) OR was IS NOT NULL AND (stands IS NULL OR stands < was) AND NOT is_rearmed THEN
        SIGNAL SQLSTATE 'PF003'
            SET MESSAGE_TEXT = 'a fence never goes down and is never removed: a holder with a lower token gives up';
    END IF;
END;
CREATE TRIGGER IF NOT EXISTS palisade_ratchet_update BEFORE UPDATE ON palisade_fence FOR EACH ROW
    CALL palisade_ratchet(OLD.resource, NEW.resource, OLD.token, NEW.token, NEW.rearmed = OLD.rearmed + 1);
CREATE TRIGGER IF NOT EXISTS palisade_ratchet_delete BEFORE DELETE ON palisade_fence FOR EACH ROW
    CALL palisade_ratchet(OLD.resource, NULL, OLD.token, NULL, FALSE);

-- Compares the connection's token with the highest one, which is the number at the end of the message.
DROP PROCEDURE IF EXISTS palisade_compare;
CREATE PROCEDURE palisade_compare(shown VARBINARY(255), highest BIGINT)
    NO SQL
BEGIN
    DECLARE words VARCHAR(128);
    IF shown IS NULL THEN
        SET words = CONCAT('fenced, and this write carries no fencing token; the highest is ', IFNULL(highest, 'none'));
        SIGNAL SQLSTATE 'PF002' SET MESSAGE_TEXT = words;
    ELSEIF NOT HEX(shown) REGEXP '^3[1-9](3[0-9]){0,15}$' THEN
        SIGNAL SQLSTATE 'PF004' SET MESSAGE_TEXT = 'the fencing token is not an integer in 1 ..= 9007199254740991';
    ELSEIF highest IS NULL OR CAST(shown AS SIGNED) > highest THEN
        SIGNAL SQLSTATE 'PF004' SET MESSAGE_TEXT = 'this fencing token was not claimed: claim the resource first';
    ELSEIF CAST(shown AS SIGNED) < highest THEN
        SET words = CONCAT('give up, roll back, write nothing more: token ', shown, ' is stale: ', shown, ' < ', highest);
        SIGNAL SQLSTATE 'PF001' SET MESSAGE_TEXT = words;
    END IF;
END;

DROP PROCEDURE IF EXISTS palisade_check_token;
CREATE PROCEDURE palisade_check_token(resource_of_table VARBINARY(255))
    READS SQL DATA
BEGIN
    DECLARE highest BIGINT DEFAULT NULL;
    DECLARE shown VARBINARY(255) DEFAULT NULL;
    -- @palisade_tokens has lines of a name, a tab and a token.
    DECLARE mine VARBINARY(300) DEFAULT CONCAT(CHAR(10), resource_of_table, CHAR(9));
    DECLARE place INT DEFAULT LOCATE(mine, @palisade_tokens);
    IF place > 0 THEN
        SET shown = SUBSTRING_INDEX(SUBSTRING(@palisade_tokens, place + LENGTH(mine)), CHAR(10), 1);
    ELSEIF @palisade_resource IS NULL OR CAST(@palisade_resource AS BINARY) = resource_of_table THEN
        -- As text whatever it was before: MySQL keeps the type that a variable had when a routine first ran, and would read
        -- '36; --' as 36.
        SET shown = CAST(@palisade_token AS BINARY);
    END IF;
    -- With the lock, a concurrent claim waits for this transaction, or this transaction for the claim.
    SELECT MAX(g.token) INTO highest FROM palisade_fence g WHERE g.resource = resource_of_table LOCK IN SHARE MODE;
    CALL palisade_compare(shown, highest);
END;

DROP PROCEDURE IF EXISTS palisade_check_column;
CREATE PROCEDURE palisade_check_column(was BIGINT, becomes BIGINT)
    NO SQL
BEGIN
    -- A row that was never fenced may be written by anyone.
    IF was > 0 THEN
        CALL palisade_compare(IF(becomes IS NULL, NULL, CAST(@palisade_column_token AS BINARY)), GREATEST(was, IFNULL(becomes, was)));
        IF becomes < was THEN
            CALL palisade_compare(becomes, was);
        END IF;
    END IF;
END;
SET SESSION sql_mode = @palisade_sql_mode;

-- 0004_procedures.sql
-- The fence's procedures, for every language. In the shell: `mariadb --delimiter=// DATABASE < 0004_procedures.sql`.
--
--     START TRANSACTION;
--     CALL palisade_claim('orders', 34, NULL, NULL);   -- first: raises the fence, or fails
--     SELECT total FROM orders;                        -- then read
--     UPDATE orders SET total = 42;                    -- then write
--     COMMIT;                                          -- fence and data together; in MariaDB: CALL palisade_end(TRUE)
--
-- Call them in a transaction. A rejection is an error. MySQL does not end a transaction after an error: ROLLBACK, and
-- write nothing more. Triggers of fenced tables then refuse the connection's writes.
--
--     PF001 stale              give up: a newer holder has claimed the resource; its token ends the message
--     PF002 tokenless          a fenced table, and the connection claimed nothing; the highest token ends the message
--     PF003 never goes down    a statement would lower or remove a fence
--     PF004 not claimed        a token set by hand is not the fence's; palisade_record without its write
--     PF005 wrong authority    the resource belongs to another authority, which is in @palisade_bound
--     PF006 wrong lock         the resource belongs to another lock, which is in @palisade_bound
--     PF007 jump               the token is too far above the highest one, which ends the message (0: none)
--     PF008 sequence stale     a later write of this grant was carried out; its number ends the message
--     PF009 sequence reused    the number, which ends the message, was used for another write
--     PF010 already written    strict: there was a write under this token
--     PF011 newer version      these files are older than what is installed
--     PF012 read before claim  begin again, and claim first: this transaction sees an older state
--     PF013 no transaction     begin one: the call would be committed alone
--     22023                    an argument is out of range
--
-- Deadlocks (1213), lock time-outs (1205: the message names the resource that another transaction has), and statements to
-- be prepared again (1615; while somebody replaces routines on this server): roll back and begin again. Claim several
-- resources in the order of their names. The procedures run with the rights of the user who installed them, so a user needs
-- EXECUTE and nothing more.
--
-- Names and numbers come in as bytes, longer than they may be, and are checked as hexadecimal digits. A typed parameter
-- would first turn 1.5 into 2 and cut a long name off, and a pattern would take a name with a line feed at its end.
SET @palisade_sql_mode = @@SESSION.sql_mode, SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION';
-- Takes the token of a resource from what the connection shows to the triggers: lines of a name, a tab and a token.
DROP PROCEDURE IF EXISTS palisade_forget;
CREATE PROCEDURE palisade_forget(p_resource VARBINARY(255)) NO SQL
BEGIN
    DECLARE mine VARBINARY(300) DEFAULT CONCAT(CHAR(10), p_resource, CHAR(9));
    DECLARE place INT;
    DECLARE rest LONGBLOB;
    SET @palisade_tokens = IFNULL(@palisade_tokens, CHAR(10));
    SET place = LOCATE(mine, @palisade_tokens);
    IF place > 0 THEN
        SET rest = SUBSTRING(@palisade_tokens, place + LENGTH(mine));
        SET @palisade_tokens = CONCAT(LEFT(@palisade_tokens, place - 1), SUBSTRING(rest, LOCATE(CHAR(10), rest)));
    END IF;
END;

-- Judges one operation of a holder, writes the guard row, and lets the connection write the resource's tables. The
-- decision is that of FenceRecord::decide in palisade-core; vectors/fence.json has it as data. After a write it returns
-- one row: repeated, result.
DROP PROCEDURE IF EXISTS palisade_judge;
CREATE PROCEDURE palisade_judge(
    p_resource VARBINARY(256), given_token VARBINARY(64), p_authority VARBINARY(256), p_lock VARBINARY(256), p_write BOOLEAN,
    given_sequence VARBINARY(64), p_digest BIGINT, p_strict BOOLEAN, p_max_jump BIGINT)
    MODIFIES SQL DATA
BEGIN
    DECLARE words VARCHAR(128);
    DECLARE p_token, p_sequence, seconds BIGINT;
    DECLARE stands, last, kept, version_now, version_seen BIGINT;
    DECLARE was_written BOOLEAN;
    DECLARE bound_authority, bound_lock VARBINARY(255);
    DECLARE answer MEDIUMBLOB;
    DECLARE repeated BOOLEAN DEFAULT FALSE;
    -- MariaDB from 11.6 on finds an old view by itself (innodb_snapshot_isolation).
    DECLARE EXIT HANDLER FOR 1020 SIGNAL SQLSTATE 'PF012'
        SET MESSAGE_TEXT = 'the transaction has read before it claimed, and sees an older state: begin again, claim first';
    IF p_resource IS NULL OR NOT HEX(p_resource) REGEXP '^([2-6][0-9A-F]|7[0-9A-E]){1,255}$' THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'a resource is 1 to 255 bytes of printable ASCII';
    ELSEIF given_token IS NULL OR NOT HEX(given_token) REGEXP '^3[1-9](3[0-9]){0,15}$'
        OR CAST(given_token AS SIGNED) > 9007199254740991 THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'a fencing token is an integer in 1 ..= 9007199254740991';
    ELSEIF NOT HEX(p_authority) REGEXP '^([2-6][0-9A-F]|7[0-9A-E]){1,255}$'
        OR NOT HEX(p_lock) REGEXP '^([2-6][0-9A-F]|7[0-9A-E]){1,255}$' THEN
        SIGNAL SQLSTATE '22023'
            SET MESSAGE_TEXT = 'an authority and a lock are 1 to 255 bytes of printable ASCII, or NULL';
    ELSEIF NOT HEX(given_sequence) REGEXP '^(30|3[1-9](3[0-9]){0,15})$'
        OR CAST(given_sequence AS SIGNED) > 9007199254740991 THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'a sequence number is an integer in 0 ..= 9007199254740991, or NULL';
    END IF;
    SET p_token = CAST(given_token AS SIGNED), p_sequence = CAST(given_sequence AS SIGNED);
    -- A savepoint lasts in a transaction only. Without one the judgement would be committed alone, and later a write that
    -- was never carried out would be answered as a repeat.
    BEGIN
        DECLARE EXIT HANDLER FOR 1305
            SIGNAL SQLSTATE 'PF013' SET MESSAGE_TEXT = 'a fence needs a transaction: begin one, and write in it';
        SAVEPOINT palisade_judge;
        RELEASE SAVEPOINT palisade_judge;
    END;

    CALL palisade_forget(p_resource);
    BEGIN
        -- The server's own message names neither the resource nor a next step.
        DECLARE EXIT HANDLER FOR 1205
        BEGIN
            SET words = CONCAT('another transaction has resource ', LEFT(p_resource, 40),
                ': begin again, or end it with `palisade fence unblock`');
            RESIGNAL SET MESSAGE_TEXT = words;
        END;
        -- Locks the row, creates a missing one, and changes nothing else: the snapshot must still show the previous holder.
        INSERT INTO palisade_fence (resource) VALUES (p_resource)
            ON DUPLICATE KEY UPDATE rearmed = palisade_fence.rearmed;
        SELECT g.authority, g.`lock`, g.token, g.written, g.sequence, g.digest, g.result, g.version
            INTO bound_authority, bound_lock, stands, was_written, last, kept, answer, version_now
            FROM palisade_fence g WHERE g.resource = p_resource FOR UPDATE;
    END;
    -- A plain read, which sees what the transaction's other plain reads see.
    SELECT MAX(s.version) INTO version_seen FROM palisade_fence s WHERE s.resource = p_resource;
    IF NOT version_seen <=> version_now THEN
        SIGNAL SQLSTATE 'PF012'
            SET MESSAGE_TEXT = 'the transaction has read before it claimed, and sees an older state: begin again, claim first';
    END IF;

    -- The decision.
    IF bound_authority IS NOT NULL AND NOT p_authority <=> bound_authority THEN
        SET @palisade_bound = bound_authority;
        SET words = CONCAT('the resource belongs to another authority: ', LEFT(bound_authority, 80));
        SIGNAL SQLSTATE 'PF005' SET MESSAGE_TEXT = words;
    ELSEIF bound_lock IS NOT NULL AND NOT p_lock <=> bound_lock THEN
        SET @palisade_bound = bound_lock;
        SET words = CONCAT('the resource belongs to another lock: ', LEFT(bound_lock, 80));
        SIGNAL SQLSTATE 'PF006' SET MESSAGE_TEXT = words;
    ELSEIF p_token < stands THEN
        SET words = CONCAT('give up, roll back, write nothing more: token ', p_token, ' is stale: ', p_token, ' < ', stands);
        SIGNAL SQLSTATE 'PF001' SET MESSAGE_TEXT = words;
    ELSEIF p_token = stands THEN
        IF p_write AND was_written THEN
            IF p_sequence = last THEN
                IF NOT p_digest <=> kept THEN
                    SET words = CONCAT('another write of this grant has the sequence number ', last);
                    SIGNAL SQLSTATE 'PF009' SET MESSAGE_TEXT = words;
                END IF;
                SET repeated = TRUE;
            ELSEIF p_strict THEN
                SIGNAL SQLSTATE 'PF010' SET MESSAGE_TEXT = 'there was already a write under this token; it may have been yours';
            ELSEIF p_sequence < last THEN
                SET words = CONCAT('a later write of this grant was carried out: drop this one; the last is ', last);
                SIGNAL SQLSTATE 'PF008' SET MESSAGE_TEXT = words;
            END IF;
        END IF;
    ELSEIF CAST(p_token AS SIGNED) - IFNULL(stands, 0) > p_max_jump THEN
        SET words = CONCAT('no token is believed more than ', p_max_jump, ' above the highest, which is ', IFNULL(stands, 0));
        SIGNAL SQLSTATE 'PF007' SET MESSAGE_TEXT = words;
    ELSE
        SET was_written = FALSE, last = NULL, kept = NULL, answer = NULL;
    END IF;
    IF NOT repeated THEN
        SET bound_authority = IFNULL(bound_authority, p_authority), bound_lock = IFNULL(bound_lock, p_lock);
        IF p_write THEN
            SET was_written = TRUE;
            IF p_sequence IS NOT NULL THEN
                SET last = p_sequence, kept = p_digest, answer = NULL;
            END IF;
        END IF;
    END IF;

    -- The version rises in any case, so that a transaction with an older snapshot notices the claim.
    UPDATE palisade_fence g SET g.authority = bound_authority, g.`lock` = bound_lock, g.token = p_token,
        g.written = was_written, g.sequence = last, g.digest = kept, g.result = answer, g.version = g.version + 1
    WHERE g.resource = p_resource;
    SET @palisade_tokens = CONCAT(@palisade_tokens, p_resource, CHAR(9), p_token, CHAR(10));
    -- A holder that stops inside its transaction has the row until the transaction ends. MariaDB ends it after 10 seconds, or
    -- what is left of the lease (@palisade_lease_left_ms), and never later than the connection's own setting. That comes back
    -- with palisade_end. MySQL has no such setting, and takes this for a comment.
    /*M!100300
    SET @palisade_own_idle = IFNULL(@palisade_own_idle, @@SESSION.idle_write_transaction_timeout),
        seconds = CEIL(IFNULL(@palisade_lease_left_ms, 10000) / 1000);
    SET seconds = IF(@palisade_own_idle > 0 AND @palisade_own_idle < seconds, @palisade_own_idle, seconds);
    SET SESSION idle_write_transaction_timeout = seconds;
    */
    IF p_write THEN
        SELECT repeated AS repeated, IF(repeated, answer, NULL) AS result;
    END IF;
END;

-- Raises the fence: from the commit on, no older token is admitted. It comes first in its transaction, before the first
-- read. authority and lock may be NULL; once given, they bind the resource.
DROP PROCEDURE IF EXISTS palisade_claim;
CREATE PROCEDURE palisade_claim(
    resource VARBINARY(256), token VARBINARY(64), authority VARBINARY(256), in_lock VARBINARY(256))
    MODIFIES SQL DATA
    CALL palisade_judge(resource, token, authority, in_lock, FALSE, NULL, NULL, FALSE, 70368744177664);

-- Ends the transaction of a claim, and gives the connection its own bound for idle transactions back (MariaDB): else the next
-- transaction, perhaps without a claim, would have the bound of this one. COMMIT alone leaves that bound.
DROP PROCEDURE IF EXISTS palisade_end;
CREATE PROCEDURE palisade_end(p_commit BOOLEAN)
    MODIFIES SQL DATA
BEGIN
    DECLARE own BIGINT;
    IF p_commit THEN
        COMMIT;
    ELSE
        ROLLBACK;
    END IF;
    /*M!100300
    SET own = IFNULL(@palisade_own_idle, @@SESSION.idle_write_transaction_timeout);
    SET SESSION idle_write_transaction_timeout = own;
    */
    SET @palisade_own_idle = NULL, @palisade_lease_left_ms = NULL;
END;

-- Checks a token before a read that feeds a write, in a transaction that began with another claim. It decides as
-- palisade_claim does.
DROP PROCEDURE IF EXISTS palisade_check;
CREATE PROCEDURE palisade_check(
    resource VARBINARY(256), token VARBINARY(64), authority VARBINARY(256), in_lock VARBINARY(256))
    MODIFIES SQL DATA
    CALL palisade_judge(resource, token, authority, in_lock, FALSE, NULL, NULL, FALSE, 70368744177664);

-- Checks a write. With a sequence number (rising within a grant) and a digest of its content (any 64 bits), a repeat is
-- recognised. Returns one row: repeated, and the recorded result of a repeat, which must not be carried out again.
DROP PROCEDURE IF EXISTS palisade_write;
CREATE PROCEDURE palisade_write(
    resource VARBINARY(256), token VARBINARY(64), sequence VARBINARY(64), digest BIGINT, authority VARBINARY(256),
    in_lock VARBINARY(256))
    MODIFIES SQL DATA
    CALL palisade_judge(resource, token, authority, in_lock, TRUE, sequence, IF(sequence IS NULL, NULL, digest), FALSE,
        70368744177664);

-- Records the result of the numbered write that this transaction carries out: at most 65,536 bytes. With the token of the
-- write, whatever the connection has claimed since.
DROP PROCEDURE IF EXISTS palisade_record_for;
CREATE PROCEDURE palisade_record_for(
    p_resource VARBINARY(256), p_token VARBINARY(64), p_sequence VARBINARY(64), p_result LONGBLOB)
    MODIFIES SQL DATA
BEGIN
    IF LENGTH(p_result) > 65536 THEN
        SIGNAL SQLSTATE '22023' SET MESSAGE_TEXT = 'a result has at most 65536 bytes';
    END IF;
    UPDATE palisade_fence g SET g.result = p_result, g.version = g.version + 1
    WHERE g.resource = p_resource AND CAST(g.token AS BINARY) = p_token AND CAST(g.sequence AS BINARY) = p_sequence;
    IF ROW_COUNT() <> 1 THEN
        SIGNAL SQLSTATE 'PF004'
            SET MESSAGE_TEXT = 'this is not the number of the last write: call palisade_write first, in the same transaction';
    END IF;
END;

-- Records it with the token with which the connection has claimed the resource.
DROP PROCEDURE IF EXISTS palisade_record;
CREATE PROCEDURE palisade_record(p_resource VARBINARY(256), p_sequence VARBINARY(64), p_result LONGBLOB)
    MODIFIES SQL DATA
BEGIN
    DECLARE mine VARBINARY(300) DEFAULT CONCAT(CHAR(10), p_resource, CHAR(9));
    DECLARE place INT DEFAULT LOCATE(mine, IFNULL(@palisade_tokens, ''));
    DECLARE bearer VARBINARY(64);
    IF place > 0 THEN
        SET bearer = SUBSTRING_INDEX(SUBSTRING(@palisade_tokens, place + LENGTH(mine)), CHAR(10), 1);
    END IF;
    CALL palisade_record_for(p_resource, bearer, p_sequence, p_result);
END;

DROP PROCEDURE IF EXISTS palisade_version;
CREATE PROCEDURE palisade_version() NO SQL COMMENT '3'
    SELECT 3 AS version;
SET SESSION sql_mode = @palisade_sql_mode;

-- fenced table orders
DROP TRIGGER IF EXISTS `palisade_insert_orders`;
DROP TRIGGER IF EXISTS `palisade_update_orders`;
DROP TRIGGER IF EXISTS `palisade_delete_orders`;
CREATE TRIGGER `palisade_insert_orders` BEFORE INSERT ON `orders` FOR EACH ROW CALL palisade_check_token(X'6F7264657273');
CREATE TRIGGER `palisade_update_orders` BEFORE UPDATE ON `orders` FOR EACH ROW CALL palisade_check_token(X'6F7264657273');
CREATE TRIGGER `palisade_delete_orders` BEFORE DELETE ON `orders` FOR EACH ROW CALL palisade_check_token(X'6F7264657273');


BEGIN;
CALL palisade_claim('orders', '33', 'golden', 'orders');
INSERT INTO orders VALUES (40);
CALL palisade_end(TRUE);
BEGIN;
CALL palisade_write('orders', '34', '1', 77, 'golden', 'orders');
UPDATE orders SET total = 41;
CALL palisade_record('orders', '1', 'done');
CALL palisade_end(TRUE);
