CREATE TABLE orders (total INTEGER);
-- 0000_version.sql
-- Which version of these files a database has. They are for PostgreSQL 14 and later, and are run in this order, in one
-- transaction (psql -1 -v ON_ERROR_STOP=1), in the schema that comes first in search_path. Running them again changes
-- nothing, and newer files upgrade an older database.
DO $$
DECLARE
    mine CONSTANT integer := 2;
    there integer;
BEGIN
    IF current_setting('server_version_num')::integer < 140000 THEN
        RAISE EXCEPTION 'the fence needs PostgreSQL 14 or later, and this server is %', current_setting('server_version')
            USING ERRCODE = '0A000', HINT = 'nothing has changed';
    END IF;
    IF to_regprocedure('palisade_version()') IS NOT NULL THEN
        EXECUTE 'SELECT palisade_version()' INTO there;
        IF there > mine THEN
            RAISE EXCEPTION 'this database has version % of the fence; these files are version %', there, mine
                USING ERRCODE = 'PF011', HINT = 'install with the newer palisade; nothing has changed';
        END IF;
    END IF;
    EXECUTE format('CREATE OR REPLACE FUNCTION palisade_version() RETURNS integer LANGUAGE sql IMMUTABLE AS $f$SELECT %s$f$',
                   mine);
END $$;

-- 0001_guard_row.sql
-- The guard row: one for each fenced resource, in the same database as the data it guards (rule F4).
-- A transaction that claims locks it, so check and effect commit together (rule F1).
CREATE TABLE IF NOT EXISTS palisade_fence (
    resource   varchar(255) COLLATE "C" PRIMARY KEY CHECK (resource <> ''),
    authority  varchar(255),
    lock       varchar(255),
    -- The highest token admitted; NULL until the first one.
    token      bigint CHECK (token BETWEEN 1 AND 9007199254740991),
    -- Whether something was written under that token, and the highest number of such a write.
    written    boolean NOT NULL DEFAULT false,
    sequence   bigint CHECK (sequence BETWEEN 0 AND 9007199254740991),
    -- What the last numbered write was (a checksum) and what it answered.
    digest     bigint,
    result     bytea,
    -- The floor an operator re-armed it with, if ever.
    floor      bigint CHECK (floor BETWEEN 1 AND 9007199254740991),
    updated_at timestamptz NOT NULL DEFAULT now()
);

-- The mark never goes down and is never deleted, regardless of the client that writes the row. Only a
-- re-arming may lower it, after SET LOCAL palisade.rearm = 'on'.
CREATE OR REPLACE FUNCTION palisade_ratchet() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('palisade.rearm', true) = 'on' THEN
        RETURN COALESCE(NEW, OLD);
    END IF;
    IF TG_OP = 'UPDATE' AND NEW.resource = OLD.resource AND NEW.token >= OLD.token THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'a fence never goes down and is never removed'
        USING ERRCODE = 'PF003', HINT = 'a holder whose token is lower must give up, and write nothing more';
END $$;

CREATE OR REPLACE TRIGGER palisade_ratchet_update BEFORE UPDATE ON palisade_fence
    FOR EACH ROW WHEN (OLD.resource IS DISTINCT FROM NEW.resource
                       OR OLD.token IS NOT NULL AND (NEW.token IS NULL OR NEW.token < OLD.token))
    EXECUTE FUNCTION palisade_ratchet();
CREATE OR REPLACE TRIGGER palisade_ratchet_delete BEFORE DELETE ON palisade_fence
    FOR EACH ROW EXECUTE FUNCTION palisade_ratchet();
CREATE OR REPLACE TRIGGER palisade_ratchet_truncate BEFORE TRUNCATE ON palisade_fence
    FOR EACH STATEMENT EXECUTE FUNCTION palisade_ratchet();

-- 0002_resource_records.sql
-- A ready-made store. Each row carries its own token.
CREATE TABLE IF NOT EXISTS resource_records (
    resource_id        varchar(100) PRIMARY KEY,
    resource_data      text,
    last_fencing_token bigint NOT NULL DEFAULT 0
        CHECK (last_fencing_token BETWEEN 0 AND 9007199254740991),
    updated_at         timestamptz NOT NULL DEFAULT now()
);

-- 0003_sticky.sql
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

-- 0004_functions.sql
-- The fence's functions: the decision for every language, in the database.
--
--     BEGIN;
--     SELECT palisade_claim('orders', 34);        -- first: raises the fence, or fails
--     SELECT total FROM orders;                   -- then read
--     UPDATE orders SET total = 42;               -- then write
--     COMMIT;                                     -- fence and data together
--
-- Call them in a transaction. A rejection is an error, so the transaction can only roll back:
--
--     PF001 stale              give up: a newer holder has claimed the resource     DETAIL: the highest token
--     PF002 tokenless          a fenced table, and the transaction claimed nothing  DETAIL: the highest token, or ''
--     PF003 never goes down    a statement would lower or remove a fence
--     PF004 not claimed        a token set by hand is not the fence's; palisade_record without its write
--     PF005 wrong authority    the resource belongs to another authority            DETAIL: that authority
--     PF006 wrong lock         the resource belongs to another lock                 DETAIL: that lock
--     PF007 jump               the token is too far above the highest one           DETAIL: highest, or 0, and the bound
--     PF008 sequence stale     a later write of this grant was carried out          DETAIL: its number
--     PF009 sequence reused    the number was used for another write                DETAIL: the number
--     PF010 already written    strict: there was a write under this token
--     PF011 newer version      these files are older than what is installed
--     PF012 read before claim  begin again, and claim first: the transaction has read the fenced table
--     55P03                    another transaction has the resource: begin again       DETAIL: its processes
--     22023                    an argument is out of range
--
-- The resource is in the error's CONSTRAINT field. 40001, 40P01 and 55P03: begin the same transaction again.
-- A holder claims several resources in the order of their names.
--
-- The functions run with the rights of the role that installed them, so another role needs EXECUTE and nothing more:
--
--     SELECT palisade_grant('app');
--
-- A holder that stops inside its transaction has the resource until the transaction ends. So a claim bounds the time for
-- which its transaction may be idle, or may not take what the server sends: 10 seconds, or what is left of the lease if the
-- holder says so before it claims, and never more than the connection's own settings:
--
--     SET LOCAL palisade.lease_left_ms = 25000;
--
-- A claim waits for another transaction for 20 seconds (or a shorter lock_timeout), and then names the processes.

-- The milliseconds of a setting of the server, or of the bound if that is tighter.
CREATE OR REPLACE FUNCTION palisade_bounded(setting text, bound_ms integer) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT CASE current_setting(setting) WHEN '0' THEN bound_ms
        ELSE least(extract(epoch FROM current_setting(setting)::interval) * 1000, bound_ms)::bigint END::text
$$;

-- The processes whose transactions have the guard row of a resource, for an operator. The row names its transaction, or a
-- list of them. Nobody sees a row before its commit, so then all processes that have written to the table are listed.
CREATE OR REPLACE FUNCTION palisade_blockers(resource text)
RETURNS TABLE (pid integer, started timestamptz, state text, since timestamptz, application text)
LANGUAGE plpgsql AS $$
DECLARE
    holder xid;
    holders text[];
BEGIN
    SELECT f.xmax INTO holder FROM palisade_fence f WHERE f.resource = palisade_blockers.resource;
    IF FOUND THEN
        holders := ARRAY[holder::text];
        BEGIN
            SELECT holders || array_agg(m.xid::text) INTO holders FROM pg_get_multixact_members(holder) m;
        EXCEPTION WHEN OTHERS THEN
            NULL; -- It is one transaction.
        END;
    END IF;
    RETURN QUERY SELECT a.pid, a.backend_start, a.state, a.state_change, a.application_name
    FROM pg_stat_activity a WHERE a.pid <> pg_backend_pid() AND EXISTS (
        SELECT FROM pg_locks l WHERE l.pid = a.pid AND l.granted AND CASE WHEN holders IS NOT NULL
            THEN l.locktype = 'transactionid' AND l.transactionid::text = ANY (holders)
            ELSE l.relation = 'palisade_fence'::regclass AND l.mode = 'RowExclusiveLock'
                AND NOT EXISTS (SELECT FROM pg_locks w WHERE w.pid = a.pid AND NOT w.granted) END);
END $$;

-- Ends the transactions that have the guard row, with their connections. A process that has ended meanwhile, or that is
-- another one under the same number, or that has let go of the row, is left alone. Returns the processes that were ended.
CREATE OR REPLACE FUNCTION palisade_unblock(resource text, process integer, started timestamptz) RETURNS boolean
LANGUAGE sql AS $$
    SELECT coalesce(bool_or(pg_terminate_backend(b.pid)), false) FROM palisade_blockers(resource) b
    WHERE b.pid = process AND b.started = palisade_unblock.started
$$;

-- Waits for the guard row within the bound, and creates a missing one.
CREATE OR REPLACE FUNCTION palisade_lock(p_resource text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    own CONSTANT text := current_setting('lock_timeout');
    bound CONSTANT text := palisade_bounded('lock_timeout', 20000);
    blockers text;
    pids text;
BEGIN
    PERFORM set_config('lock_timeout', bound, true);
    BEGIN
        PERFORM FROM palisade_fence f WHERE f.resource = p_resource FOR UPDATE;
        IF NOT FOUND THEN
            INSERT INTO palisade_fence (resource) VALUES (p_resource) ON CONFLICT (resource) DO NOTHING;
        END IF;
    EXCEPTION WHEN lock_not_available THEN
        SELECT string_agg(b.pid::text, ' '), string_agg(concat('process ', b.pid, ' (', b.state, ' for ',
                floor(extract(epoch FROM clock_timestamp() - b.since)), ' s, ', b.application, ')'), ', ')
            INTO pids, blockers FROM palisade_blockers(p_resource) b;
        RAISE EXCEPTION 'another transaction has resource %, and did not end within % ms: %', p_resource, bound,
            coalesce(blockers, 'its process has ended meanwhile')
            USING ERRCODE = '55P03', DETAIL = coalesce(pids, ''), CONSTRAINT = p_resource,
                  HINT = 'begin again; if that process does not go on, an operator ends it with `palisade fence unblock`';
    END;
    PERFORM set_config('lock_timeout', own, true);
END $$;

-- Judges one operation of a holder, writes the guard row, and marks the transaction as the token's bearer, so that the
-- triggers of fenced tables let it write. Only the functions below call this. The decision is that of
-- FenceRecord::decide in palisade-core; vectors/fence.json has it as data.
CREATE OR REPLACE FUNCTION palisade_judge(
    p_resource text, p_token bigint, p_authority text, p_lock text, p_write boolean, p_sequence bigint, p_digest bigint,
    p_strict boolean, p_max_jump bigint, OUT repeated boolean, OUT result bytea)
LANGUAGE plpgsql AS $$
DECLARE
    g palisade_fence;
    has_read text;
    left_ms integer := 10000;
    ignored text;
BEGIN
    repeated := false;
    -- The lock fails if this transaction sees an older state. Usually nobody has the row.
    SELECT * INTO g FROM palisade_fence f WHERE f.resource = p_resource FOR UPDATE SKIP LOCKED;
    -- Usually the row is this holder's, and one condition says that nothing below would refuse: each expression that a
    -- transaction comes to is prepared for it, which takes longer than its value.
    IF (g.token = p_token AND g.authority IS NOT DISTINCT FROM p_authority AND g.lock IS NOT DISTINCT FROM p_lock
        AND p_sequence IS NULL AND NOT (p_strict AND p_write AND g.written)) IS NOT TRUE
    THEN
        IF p_resource IS NULL OR p_resource !~ '^[ -~]{1,255}$' THEN
            RAISE EXCEPTION 'a resource is 1 to 255 bytes of printable ASCII, not %', quote_nullable(p_resource)
                USING ERRCODE = '22023';
        ELSIF p_token IS NULL OR p_token NOT BETWEEN 1 AND 9007199254740991 THEN
            RAISE EXCEPTION 'a fencing token is in 1 ..= 9007199254740991, not %', coalesce(p_token::text, 'NULL')
                USING ERRCODE = '22023';
        ELSIF p_authority !~ '^[ -~]{1,255}$' OR p_lock !~ '^[ -~]{1,255}$' THEN
            RAISE EXCEPTION 'an authority and a lock are 1 to 255 bytes of printable ASCII, or NULL'
                USING ERRCODE = '22023';
        ELSIF p_sequence NOT BETWEEN 0 AND 9007199254740991 THEN
            RAISE EXCEPTION 'a sequence number is in 0 ..= 9007199254740991, or NULL, not %', p_sequence
                USING ERRCODE = '22023';
        END IF;
        IF g.resource IS NULL THEN
            PERFORM palisade_lock(p_resource);
            SELECT * INTO g FROM palisade_fence f WHERE f.resource = p_resource FOR UPDATE;
            IF NOT FOUND THEN
                RAISE EXCEPTION 'the guard row of % vanished: is row level security hiding it?', p_resource
                    USING ERRCODE = '42501';
            END IF;
        END IF;

        -- The decision.
        IF g.authority IS NOT NULL AND p_authority IS DISTINCT FROM g.authority THEN
            RAISE EXCEPTION 'resource % belongs to authority %', p_resource, g.authority
                USING ERRCODE = 'PF005', DETAIL = g.authority, CONSTRAINT = p_resource,
                      HINT = 'tokens of two authorities are never compared: use the authority that the resource belongs to';
        ELSIF g.lock IS NOT NULL AND p_lock IS DISTINCT FROM g.lock THEN
            RAISE EXCEPTION 'resource % belongs to lock %', p_resource, g.lock
                USING ERRCODE = 'PF006', DETAIL = g.lock, CONSTRAINT = p_resource,
                      HINT = 'acquire the lock that the resource belongs to';
        ELSIF p_token < g.token THEN
            RAISE EXCEPTION 'token % is stale: % < % at resource %', p_token, p_token, g.token, p_resource
                USING ERRCODE = 'PF001', DETAIL = g.token::text, CONSTRAINT = p_resource,
                      HINT = 'a newer holder has claimed this resource: give up, roll back, and write nothing more';
        END IF;
        IF p_token = g.token THEN
            -- The same holder again: only its own writes count.
            IF p_write AND g.written THEN
                IF p_sequence = g.sequence THEN
                    IF p_digest IS DISTINCT FROM g.digest THEN
                        RAISE EXCEPTION 'sequence number % was used for another write at resource %', p_sequence, p_resource
                            USING ERRCODE = 'PF009', DETAIL = p_sequence::text, CONSTRAINT = p_resource,
                                  HINT = 'number the writes of a grant upwards, each with a number of its own';
                    END IF;
                    repeated := true;
                    result := g.result;
                    -- Nothing changes, so it binds nothing either.
                    p_authority := NULL;
                    p_lock := NULL;
                ELSIF p_strict THEN
                    RAISE EXCEPTION 'there was already a write under token % at resource %', p_token, p_resource
                        USING ERRCODE = 'PF010', DETAIL = '', CONSTRAINT = p_resource,
                              HINT = 'this resource takes one write for each grant; it may have been yours';
                ELSIF p_sequence < g.sequence THEN
                    RAISE EXCEPTION 'sequence number % is late at resource %: the last is %', p_sequence, p_resource, g.sequence
                        USING ERRCODE = 'PF008', DETAIL = g.sequence::text, CONSTRAINT = p_resource,
                              HINT = 'a later write of this grant was already carried out: drop this one';
                END IF;
            END IF;
        ELSIF p_token - coalesce(g.token, 0) > p_max_jump THEN
            RAISE EXCEPTION 'fencing token % is more than % above the highest at resource %', p_token, p_max_jump, p_resource
                USING ERRCODE = 'PF007', DETAIL = format('%s %s', coalesce(g.token, 0), p_max_jump), CONSTRAINT = p_resource,
                      HINT = 'no token is believed that far; if the authority was restored, its operator looks at this resource';
        ELSE
            -- What the transaction has read is older than the wait for the last holder (rule F2). A read leaves a lock. The
            -- look-up takes about 25 us, once for each grant.
            SELECT l.relation::regclass::text INTO has_read FROM pg_locks l JOIN pg_trigger t ON t.tgrelid = l.relation
            WHERE l.pid = pg_backend_pid() AND l.locktype = 'relation' AND l.mode IN ('AccessShareLock', 'RowShareLock')
                AND t.tgname IN ('palisade_sticky', 'palisade_sticky_row')
                AND t.tgargs = convert_to(p_resource, 'UTF8') || '\x00'::bytea LIMIT 1;
            IF FOUND THEN
                RAISE EXCEPTION 'the transaction has read % before it claimed resource %', has_read, p_resource
                    USING ERRCODE = 'PF012', CONSTRAINT = p_resource,
                          HINT = 'roll back, begin again, and claim first: what was read may be older than the last write';
            END IF;
            g.token := p_token;
            g.written := false;
            g.sequence := NULL;
            g.digest := NULL;
            g.result := NULL;
        END IF;
        IF p_write AND NOT repeated AND p_sequence IS NOT NULL THEN
            g.sequence := p_sequence;
            g.digest := p_digest;
            g.result := NULL;
        END IF;
    END IF;

    -- The row is written even when nothing in it changes. With a lock alone, a transaction at REPEATABLE READ that
    -- waited would go on with an outdated view.
    UPDATE palisade_fence f SET authority = coalesce(g.authority, p_authority), lock = coalesce(g.lock, p_lock),
        token = g.token, written = g.written OR p_write, sequence = g.sequence, digest = g.digest, result = g.result,
        updated_at = clock_timestamp()
    WHERE f.resource = p_resource;
    IF current_setting('palisade.lease_left_ms', true) <> '' THEN
        IF current_setting('palisade.lease_left_ms') !~ '^[1-9][0-9]{0,8}$' THEN
            RAISE EXCEPTION 'palisade.lease_left_ms is %, not an integer in 1 ..= 999999999',
                quote_literal(current_setting('palisade.lease_left_ms')) USING ERRCODE = '22023';
        END IF;
        left_ms := current_setting('palisade.lease_left_ms');
    END IF;
    -- The transaction is the token's bearer. Then the time for which it may have the guard row while its client does nothing is
    -- bounded. Without the last, a client that was stopped while the server sends it a large result has the row for ever.
    ignored := set_config('palisade.tokens',
            (coalesce(nullif(current_setting('palisade.tokens', true), ''), '{}')::jsonb
                || jsonb_build_object(p_resource, p_token::text))::text, true)
        || set_config('idle_in_transaction_session_timeout',
            palisade_bounded('idle_in_transaction_session_timeout', left_ms), true)
        || set_config('tcp_user_timeout', palisade_bounded('tcp_user_timeout', left_ms), true);
END $$;

-- Raises the fence: from the commit on, no older token is admitted. It comes first in its transaction, before the first
-- read. Returns the token, which is now the highest.
--
-- authority and lock bind the resource to them, once they are given. strict admits one write for each grant. A token
-- more than max_jump above the highest is not believed (NULL: any is).
CREATE OR REPLACE FUNCTION palisade_claim(
    resource text, token bigint, authority text DEFAULT NULL, lock text DEFAULT NULL,
    strict boolean DEFAULT false, max_jump bigint DEFAULT 70368744177664) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    judged record;
BEGIN
    judged := palisade_judge(resource, token, authority, lock, false, NULL, NULL, strict, max_jump);
    RETURN token;
END $$;

-- Checks a token before a read that feeds a write, in a transaction that began with another claim. It decides as
-- palisade_claim does.
CREATE OR REPLACE FUNCTION palisade_check(
    resource text, token bigint, authority text DEFAULT NULL, lock text DEFAULT NULL,
    strict boolean DEFAULT false, max_jump bigint DEFAULT 70368744177664) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE
    judged record;
BEGIN
    judged := palisade_judge(resource, token, authority, lock, false, NULL, NULL, strict, max_jump);
    RETURN token;
END $$;

-- Checks a write. With a sequence number (0 ..= 2^53 - 1, rising within a grant) and a digest of its content (any
-- 64 bits), a repeat is recognised: `repeated` is then true, the write must not be carried out again, and `result` is
-- what was recorded the first time.
CREATE OR REPLACE FUNCTION palisade_write(
    resource text, token bigint, sequence bigint DEFAULT NULL, digest bigint DEFAULT NULL,
    authority text DEFAULT NULL, lock text DEFAULT NULL, strict boolean DEFAULT false,
    max_jump bigint DEFAULT 70368744177664, OUT repeated boolean, OUT result bytea)
LANGUAGE plpgsql AS $$
DECLARE
    judged record;
BEGIN
    judged := palisade_judge(resource, token, authority, lock, true, sequence, CASE WHEN sequence IS NULL THEN NULL ELSE digest END,
        strict, max_jump);
    repeated := judged.repeated;
    result := judged.result;
END $$;

-- Records the result of the numbered write that this transaction carries out: at most 65,536 bytes. A token is compared
-- with that of the write.
CREATE OR REPLACE FUNCTION palisade_record(resource text, sequence bigint, result bytea, token bigint DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
    bearer CONSTANT bigint :=
        nullif(current_setting('palisade.tokens', true), '')::jsonb ->> palisade_record.resource;
BEGIN
    IF octet_length(palisade_record.result) > 65536 THEN
        RAISE EXCEPTION 'the result has % bytes; 0 ..= 65536 are allowed', octet_length(palisade_record.result)
            USING ERRCODE = '22023';
    END IF;
    UPDATE palisade_fence f SET result = palisade_record.result, updated_at = clock_timestamp()
    WHERE f.resource = palisade_record.resource AND f.token = bearer AND f.sequence = palisade_record.sequence
        AND f.token = coalesce(palisade_record.token, bearer);
    IF NOT FOUND THEN
        RAISE EXCEPTION 'the last write of this transaction at resource % is not number %',
            palisade_record.resource, palisade_record.sequence
            USING ERRCODE = 'PF004', CONSTRAINT = palisade_record.resource,
                  HINT = 'call palisade_write first, in the same transaction';
    END IF;
END $$;

-- The fenced tables of this database, and the resource whose guard row counts for each.
CREATE OR REPLACE VIEW palisade_tables AS
SELECT t.tgrelid::regclass::text AS "table",
    convert_from(substring(t.tgargs FROM 1 FOR length(t.tgargs) - 1), 'UTF8') AS resource
FROM pg_catalog.pg_trigger t WHERE t.tgname = 'palisade_sticky' AND NOT t.tgisinternal;

-- What is open beside the fence in this database, for `palisade fence ls`. "table" is empty if it concerns all.
CREATE OR REPLACE VIEW palisade_doors AS
SELECT m.member::text AS "table",
    CASE WHEN EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = 'palisade_sticky_row')
        THEN 'a partition that came later: TRUNCATE by its own name needs no token; install the fence again'
        ELSE 'a partition or child table of ' || p."table" || ': writes by its own name need no token; install the fence again'
    END AS door
FROM palisade_tables p, palisade_family(p."table"::regclass) m
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_trigger t WHERE t.tgrelid = m.member AND t.tgname = 'palisade_sticky')
UNION SELECT t.tgrelid::regclass::text, 'the trigger is disabled: no write needs a token'
FROM pg_catalog.pg_trigger t WHERE t.tgname LIKE 'palisade\_%' AND t.tgenabled IN ('D', 'R')
UNION SELECT s.srrelid::regclass::text, 'a logical subscription writes to it: its changes need no token'
FROM pg_catalog.pg_subscription_rel s JOIN palisade_tables p ON s.srrelid = p."table"::regclass
UNION SELECT p."table", 'publication ' || r.pubname || ' has the table and not palisade_fence: a replica has the rows without their fence'
FROM pg_catalog.pg_publication_tables r JOIN palisade_tables p ON format('%I.%I', r.schemaname, r.tablename)::regclass = p."table"::regclass
WHERE NOT EXISTS (SELECT FROM pg_catalog.pg_publication_tables f WHERE f.pubname = r.pubname AND f.tablename = 'palisade_fence')
UNION SELECT '', 'role ' || coalesce(g.rolname, 'PUBLIC') || ' may ' || a.privilege_type || ' palisade_fence, and so lower or spoil every fence'
FROM pg_catalog.pg_class c CROSS JOIN aclexplode(c.relacl) a LEFT JOIN pg_catalog.pg_roles g ON g.oid = a.grantee
WHERE c.oid = 'palisade_fence'::regclass AND a.grantee <> c.relowner AND a.privilege_type NOT IN ('SELECT', 'MAINTAIN');

-- Lets a role claim and write, and nothing else: it cannot lower a fence.
CREATE OR REPLACE FUNCTION palisade_grant(role name) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    ours regprocedure;
BEGIN
    FOR ours IN SELECT p.oid::regprocedure FROM pg_catalog.pg_proc p WHERE p.pronamespace = current_schema()::regnamespace
        AND p.proname IN ('palisade_claim', 'palisade_check', 'palisade_write', 'palisade_record', 'palisade_version')
    LOOP
        EXECUTE format('GRANT EXECUTE ON FUNCTION %s TO %I', ours, role);
    END LOOP;
    EXECUTE format('GRANT SELECT, INSERT, UPDATE ON resource_records TO %I', role);
END $$;

-- The functions that holders call, and the trigger's, run with the rights of the role that installed them. So they find
-- nothing by a search_path in which somebody else could put an operator or a function: what is ours is named with its
-- schema. The others work in the schema that they are installed in. Nobody else may call any of them, unless it is granted.
DO $$
DECLARE
    ours record;
    schema CONSTANT text := format('%I', current_schema());
BEGIN
    FOR ours IN SELECT p.oid, p.oid::regprocedure AS function, p.proname FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = current_schema()::regnamespace AND p.proname LIKE 'palisade\_%'
    LOOP
        IF ours.proname IN ('palisade_claim', 'palisade_check', 'palisade_write', 'palisade_record', 'palisade_check_token',
                            'palisade_judge', 'palisade_lock', 'palisade_bounded', 'palisade_blockers')
        THEN
            EXECUTE regexp_replace(pg_get_functiondef(ours.oid),
                '(?<![.\w])palisade_(fence|judge|lock|bounded|blockers)(?=[ (;''])', schema || '.palisade_\1', 'g');
            -- The others are called by these alone, and often.
            IF ours.proname IN ('palisade_claim', 'palisade_check', 'palisade_write', 'palisade_record', 'palisade_check_token')
            THEN
                EXECUTE format('ALTER FUNCTION %s SECURITY DEFINER SET search_path = pg_catalog, pg_temp', ours.function);
            END IF;
        ELSIF ours.proname <> 'palisade_version' THEN
            EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', ours.function, current_schema());
        END IF;
        EXECUTE format('REVOKE ALL ON FUNCTION %s FROM PUBLIC', ours.function);
    END LOOP;
    -- Older versions granted the table, and with it the right to lower a fence.
    FOR ours IN SELECT DISTINCT g.rolname FROM pg_catalog.pg_class c CROSS JOIN aclexplode(c.relacl) a
        JOIN pg_catalog.pg_roles g ON g.oid = a.grantee
        WHERE c.oid = 'palisade_fence'::regclass AND a.grantee <> c.relowner AND a.privilege_type = 'UPDATE'
    LOOP
        EXECUTE format('REVOKE ALL ON palisade_fence FROM %I', ours.rolname);
        PERFORM palisade_grant(ours.rolname);
    END LOOP;
END $$;

-- fenced table orders
SELECT palisade_sticky('orders', 'orders');


BEGIN;
SELECT palisade_claim('orders', 33, 'golden', 'orders');
INSERT INTO orders VALUES (40);
COMMIT;
BEGIN;
SELECT palisade_write('orders', 34, 1, 77, 'golden', 'orders');
UPDATE orders SET total = 41;
SELECT palisade_record('orders', 1, 'done'::bytea);
COMMIT;
