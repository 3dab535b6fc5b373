-- Sticky enforcement (rule F9): code that forgot the fence cannot write a table.
--
--     SELECT palisade_sticky('orders', 'orders');    -- the table, the resource whose guard row counts
--     SELECT palisade_unstick('orders');
--
-- From then on, a transaction that runs INSERT, UPDATE, DELETE, MERGE, COPY or TRUNCATE on that table must
-- carry the resource's current token. palisade_claim sets it. To set it by hand:
--
--     SET LOCAL palisade.token = '34';               -- and, if the transaction has several resources,
--     SET LOCAL palisade.resource = 'orders';
--
-- Partitions and child tables are fenced with their table. A partition that is created or attached later is fenced too,
-- except against TRUNCATE by its own name: call palisade_sticky again.
--
-- It does not stop:
-- * a superuser or the table's owner, who may disable or drop the trigger;
-- * session_replication_role = replica, which logical replication and pg_restore --disable-triggers use, and
--   which only a superuser, or a role with that privilege, can set;
-- * the loading of a full dump, which creates its triggers after its data;
-- * writes to child tables (INHERITS) that were created later;
-- * a program that sets palisade.token, palisade.tokens or palisade.checked by hand: a token is a number, not a secret.
-- The view palisade_doors lists what is open in this database.
CREATE OR REPLACE FUNCTION palisade_check_token() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    resource_of_table CONSTANT text := TG_ARGV[0];
    named text := nullif(current_setting('palisade.resource', true), '');
    shown text := nullif(current_setting('palisade.tokens', true), '')::jsonb ->> resource_of_table;
    highest bigint;
BEGIN
    -- A statement with many rows is checked at its first one, which has locked the guard row for this transaction.
    IF TG_LEVEL = 'ROW' AND current_setting('palisade.checked', true) = resource_of_table THEN
        RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    END IF;
    IF shown IS NULL AND (named IS NULL OR named = resource_of_table) THEN
        shown := nullif(current_setting('palisade.token', true), '');
    END IF;
    -- With the lock, a concurrent claim waits for this transaction, or this transaction for the claim.
    SELECT g.token INTO highest FROM palisade_fence g WHERE g.resource = resource_of_table FOR SHARE;
    IF shown IS NULL THEN
        RAISE EXCEPTION '% is fenced by resource %: the transaction carries no fencing token',
            TG_TABLE_NAME, resource_of_table
            USING ERRCODE = 'PF002', DETAIL = coalesce(highest::text, ''), CONSTRAINT = resource_of_table,
                  HINT = 'claim the resource first, in the same transaction';
    ELSIF shown !~ '^[1-9][0-9]{0,15}$' THEN
        RAISE EXCEPTION 'palisade.token is %, not an integer in 1 ..= 9007199254740991', quote_literal(shown)
            USING ERRCODE = 'PF004';
    ELSIF highest IS NULL OR shown::bigint > highest THEN
        RAISE EXCEPTION 'fencing token % was not claimed at resource %', shown, resource_of_table
            USING ERRCODE = 'PF004', CONSTRAINT = resource_of_table,
                  HINT = 'claim the resource first, in the same transaction';
    ELSIF shown::bigint < highest THEN
        RAISE EXCEPTION 'token % is stale: % < % at resource %', shown, shown, highest, resource_of_table
            USING ERRCODE = 'PF001', DETAIL = highest::text, CONSTRAINT = resource_of_table,
                  HINT = 'a newer holder has claimed this resource: give up, roll back, and write nothing more';
    END IF;
    IF TG_LEVEL = 'ROW' THEN
        PERFORM set_config('palisade.checked', resource_of_table, true);
        RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
    END IF;
    RETURN NULL;
END $$;

-- A table, its partitions and its child tables, at every depth.
CREATE OR REPLACE FUNCTION palisade_family(target regclass) RETURNS TABLE (member regclass, kind "char")
LANGUAGE sql STABLE AS $$
    WITH RECURSIVE family AS (
        SELECT target::oid AS oid
        UNION SELECT i.inhrelid FROM pg_catalog.pg_inherits i JOIN family f ON i.inhparent = f.oid)
    SELECT c.oid::regclass, c.relkind FROM family f JOIN pg_catalog.pg_class c ON c.oid = f.oid
$$;

-- Removes the triggers of palisade_sticky and of palisade_sticky_column, also from partitions and child tables.
CREATE OR REPLACE FUNCTION palisade_unstick(target regclass) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ours record;
BEGIN
    FOR ours IN SELECT t.tgname, m.member FROM palisade_family(target) m JOIN pg_catalog.pg_trigger t ON t.tgrelid = m.member
        -- Those that a partition has from its table go with the table's.
        WHERE t.tgparentid = 0 AND t.tgname IN ('palisade_sticky', 'palisade_sticky_row', 'palisade_column_named',
            'palisade_column_row', 'palisade_column_done', 'palisade_column_truncate')
    LOOP
        EXECUTE format('DROP TRIGGER %I ON %s', ours.tgname, ours.member);
    END LOOP;
END $$;

CREATE OR REPLACE FUNCTION palisade_sticky(target regclass, resource text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    each regclass;
BEGIN
    IF resource !~ '^[ -~]{1,255}$' THEN
        RAISE EXCEPTION 'a resource is 1 to 255 bytes of printable ASCII, not %', quote_nullable(resource)
            USING ERRCODE = '22023';
    END IF;
    -- A statement fires the triggers of the table that it names.
    FOR each IN SELECT m.member FROM palisade_family(target) m
        WHERE m.member = target OR m.kind IN ('r', 'p')
    LOOP
        EXECUTE format(
            'CREATE OR REPLACE TRIGGER palisade_sticky BEFORE INSERT OR UPDATE OR DELETE OR TRUNCATE ON %s '
            'FOR EACH STATEMENT EXECUTE FUNCTION palisade_check_token(%L)', each, resource);
    END LOOP;
    -- A partition that comes later gets the triggers for rows from its table.
    IF (SELECT c.relkind = 'p' FROM pg_catalog.pg_class c WHERE c.oid = target) THEN
        EXECUTE format('DROP TRIGGER IF EXISTS palisade_sticky_row ON %s', target);
        EXECUTE format('CREATE TRIGGER palisade_sticky_row BEFORE INSERT OR UPDATE OR DELETE ON %s '
                       'FOR EACH ROW EXECUTE FUNCTION palisade_check_token(%L)', target, resource);
    END IF;
END $$;

-- Sticky enforcement for a table whose rows carry their own token: an UPDATE must name the token column and
-- must not lower it, and a row cannot be deleted or get another primary key, because it contains its fence.
--
--     SELECT palisade_sticky_column('orders', 'last_fencing_token');
CREATE OR REPLACE FUNCTION palisade_check_column() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    before bigint;
    after bigint;
    key text;
BEGIN
    IF TG_LEVEL = 'STATEMENT' THEN
        IF TG_OP = 'TRUNCATE' THEN
            RAISE EXCEPTION '% is fenced row by row: it cannot be truncated', TG_TABLE_NAME
                USING ERRCODE = 'PF002', DETAIL = '';
        END IF;
        -- Only an UPDATE whose SET list names the column comes here before its rows.
        PERFORM set_config('palisade.names_column', CASE TG_WHEN WHEN 'BEFORE' THEN 'on' ELSE '' END, true);
        RETURN NULL;
    END IF;
    before := coalesce((to_jsonb(OLD) ->> TG_ARGV[0])::bigint, 0);
    after := CASE TG_OP WHEN 'DELETE' THEN 0 ELSE coalesce((to_jsonb(NEW) ->> TG_ARGV[0])::bigint, 0) END;
    IF after < 1 OR current_setting('palisade.names_column', true) IS DISTINCT FROM 'on' THEN
        IF before = 0 THEN
            RETURN CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
        END IF;
        RAISE EXCEPTION 'this row of % is fenced: % without its token is rejected', TG_TABLE_NAME, TG_OP
            USING ERRCODE = 'PF002', DETAIL = before::text;
    END IF;
    IF after < before THEN
        RAISE EXCEPTION 'token % is stale: % < % in a row of %', after, after, before, TG_TABLE_NAME
            USING ERRCODE = 'PF001', DETAIL = before::text,
                  HINT = 'a newer holder has written this row: give up, roll back, and write nothing more';
    END IF;
    FOREACH key IN ARRAY TG_ARGV[1]::text[] LOOP
        IF before > 0 AND to_jsonb(OLD) -> key IS DISTINCT FROM to_jsonb(NEW) -> key THEN
            RAISE EXCEPTION 'this row of % is fenced: another % would take its fence away', TG_TABLE_NAME, key
                USING ERRCODE = 'PF003';
        END IF;
    END LOOP;
    RETURN NEW;
END $$;

CREATE OR REPLACE FUNCTION palisade_sticky_column(target regclass, token_column name) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
    run CONSTANT text := format('EXECUTE FUNCTION palisade_check_column(%L, %L)', token_column, ARRAY(
        SELECT a.attname FROM pg_catalog.pg_index i
        JOIN pg_catalog.pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = ANY (i.indkey)
        WHERE i.indrelid = target AND i.indisprimary));
    each record;
BEGIN
    FOR each IN SELECT m.member, c.relispartition FROM palisade_family(target) m
        JOIN pg_catalog.pg_class c ON c.oid = m.member WHERE m.member = target OR m.kind IN ('r', 'p')
    LOOP
        EXECUTE format('CREATE OR REPLACE TRIGGER palisade_column_named BEFORE UPDATE OF %I ON %s '
                       'FOR EACH STATEMENT %s', token_column, each.member, run);
        EXECUTE format('CREATE OR REPLACE TRIGGER palisade_column_done AFTER UPDATE ON %s '
                       'FOR EACH STATEMENT %s', each.member, run);
        EXECUTE format('CREATE OR REPLACE TRIGGER palisade_column_truncate BEFORE TRUNCATE ON %s '
                       'FOR EACH STATEMENT %s', each.member, run);
        -- Partitions have the trigger for rows from their table.
        IF each.member = target OR NOT each.relispartition THEN
            EXECUTE format('DROP TRIGGER IF EXISTS palisade_column_row ON %s', each.member);
            EXECUTE format('CREATE TRIGGER palisade_column_row BEFORE UPDATE OR DELETE ON %s '
                           'FOR EACH ROW %s', each.member, run);
        END IF;
    END LOOP;
END $$;
