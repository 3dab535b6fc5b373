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
