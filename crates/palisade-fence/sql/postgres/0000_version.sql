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
