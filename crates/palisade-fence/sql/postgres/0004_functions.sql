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
--     22023                    an argument is out of range
--
-- The resource is in the error's CONSTRAINT field. 40001 and 40P01: begin the same transaction again.
-- A holder claims several resources in the order of their names.

-- Judges one operation of a holder, writes the guard row, and marks the transaction as the token's bearer, so that the
-- triggers of fenced tables let it write. Only the functions below call this. The decision is that of
-- FenceRecord::decide in palisade-core; vectors/fence.json has it as data.
CREATE OR REPLACE FUNCTION palisade_judge(
    p_resource text, p_token bigint, p_authority text, p_lock text, p_write boolean, p_sequence bigint, p_digest bigint,
    p_strict boolean, p_max_jump bigint, OUT repeated boolean, OUT result bytea)
LANGUAGE plpgsql AS $$
DECLARE
    g palisade_fence;
BEGIN
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

    -- The lock waits for the transaction that has the row, and fails if this one sees an older state.
    SELECT * INTO g FROM palisade_fence f WHERE f.resource = p_resource FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO palisade_fence (resource) VALUES (p_resource) ON CONFLICT (resource) DO NOTHING;
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
        RAISE EXCEPTION 'fencing token % is stale at resource %: the highest is %', p_token, p_resource, g.token
            USING ERRCODE = 'PF001', DETAIL = g.token::text, CONSTRAINT = p_resource,
                  HINT = 'a newer holder has claimed this resource: give up, roll back, and write nothing more';
    END IF;
    repeated := false;
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
        g.token := p_token;
        g.written := false;
        g.sequence := NULL;
        g.digest := NULL;
        g.result := NULL;
    END IF;
    IF p_write AND NOT repeated THEN
        g.written := true;
        IF p_sequence IS NOT NULL THEN
            g.sequence := p_sequence;
            g.digest := p_digest;
            g.result := NULL;
        END IF;
    END IF;

    -- The row is written even when nothing in it changes. With a lock alone, a transaction at REPEATABLE READ that
    -- waited would go on with an outdated view.
    UPDATE palisade_fence f SET authority = coalesce(g.authority, p_authority), lock = coalesce(g.lock, p_lock),
        token = g.token, written = g.written, sequence = g.sequence, digest = g.digest, result = g.result,
        updated_at = clock_timestamp()
    WHERE f.resource = p_resource;
    PERFORM set_config('palisade.tokens',
        (coalesce(nullif(current_setting('palisade.tokens', true), ''), '{}')::jsonb
            || jsonb_build_object(p_resource, p_token::text))::text, true);
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
BEGIN
    PERFORM palisade_judge(resource, token, authority, lock, false, NULL, NULL, strict, max_jump);
    RETURN token;
END $$;

-- Checks a token before a read that feeds a write, in a transaction that began with another claim. It decides as
-- palisade_claim does.
CREATE OR REPLACE FUNCTION palisade_check(
    resource text, token bigint, authority text DEFAULT NULL, lock text DEFAULT NULL,
    strict boolean DEFAULT false, max_jump bigint DEFAULT 70368744177664) RETURNS bigint
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM palisade_judge(resource, token, authority, lock, false, NULL, NULL, strict, max_jump);
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
BEGIN
    SELECT j.repeated, j.result INTO repeated, result FROM palisade_judge(
        resource, token, authority, lock, true, sequence, CASE WHEN sequence IS NULL THEN NULL ELSE digest END, strict,
        max_jump) j;
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

-- Every function works in the schema that it is installed in, whatever search_path its caller has.
DO $$
DECLARE
    ours regprocedure;
BEGIN
    FOR ours IN SELECT p.oid::regprocedure FROM pg_catalog.pg_proc p
        WHERE p.pronamespace = current_schema()::regnamespace AND p.proname LIKE 'palisade\_%'
            -- Called by others of them only, and called often.
            AND p.proname NOT IN ('palisade_judge', 'palisade_version')
    LOOP
        EXECUTE format('ALTER FUNCTION %s SET search_path = %I, pg_temp', ours, current_schema());
    END LOOP;
END $$;
