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
    -- A checksum of the last numbered write, and its answer.
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
