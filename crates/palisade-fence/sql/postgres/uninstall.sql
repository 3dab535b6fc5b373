-- Removes the fence from a database: triggers, functions, and the guard rows with every token that was ever seen. The
-- data stays, unprotected. A fence that is installed again does not know whom it refused before: re-arm it first.
-- resource_records has data, so it is removed only if it is empty.
DO $$
DECLARE
    found record;
    rows bigint;
BEGIN
    FOR found IN SELECT t.tgname, t.tgrelid::regclass AS target FROM pg_catalog.pg_trigger t
        JOIN pg_catalog.pg_proc p ON p.oid = t.tgfoid
        WHERE p.pronamespace = current_schema()::regnamespace
            AND p.proname IN ('palisade_check_token', 'palisade_check_column') AND NOT t.tgisinternal AND t.tgparentid = 0
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', found.tgname, found.target);
    END LOOP;
    IF to_regclass('resource_records') IS NOT NULL THEN
        EXECUTE 'SELECT count(*) FROM resource_records' INTO rows;
        IF rows = 0 THEN
            EXECUTE 'DROP TABLE resource_records';
        END IF;
    END IF;
    DROP VIEW IF EXISTS palisade_doors;
    DROP VIEW IF EXISTS palisade_tables;
    DROP TABLE IF EXISTS palisade_fence CASCADE;
    FOR found IN SELECT p.oid::regprocedure AS function FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = current_schema()::regnamespace AND p.proname = ANY(ARRAY[
            'palisade_version', 'palisade_ratchet', 'palisade_check_token', 'palisade_check_column', 'palisade_sticky',
            'palisade_sticky_column', 'palisade_unstick', 'palisade_judge', 'palisade_claim', 'palisade_check',
            'palisade_write', 'palisade_record', 'palisade_bounded', 'palisade_blockers', 'palisade_unblock',
            'palisade_lock', 'palisade_family', 'palisade_grant'])
    LOOP
        EXECUTE format('DROP FUNCTION %s CASCADE', found.function);
    END LOOP;
END $$;
