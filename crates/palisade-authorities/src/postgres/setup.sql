-- Palisade's lock table. Run once by the first client that connects with the right to create a schema,
-- or by an administrator before. Running it again replaces the functions and changes nothing else.
--
-- Every function is one statement for its caller and one transaction for itself, and leaves nothing in
-- the session, so that a transaction pooler may stand in between. What touches one lock is serial: it
-- takes that lock's advisory transaction lock first and reads the clock after that. A grant draws its
-- token from the one row that counts them, and holds that row until it is durable: grants become
-- visible in the order of their tokens.

CREATE SCHEMA IF NOT EXISTS palisade;

CREATE TABLE IF NOT EXISTS palisade.authority (
    one boolean PRIMARY KEY DEFAULT true CHECK (one),
    id text NOT NULL,
    version integer NOT NULL,
    last_token bigint NOT NULL DEFAULT 0
);
INSERT INTO palisade.authority (id, version)
    VALUES (replace(gen_random_uuid()::text, '-', ''), 1) ON CONFLICT DO NOTHING;

CREATE TABLE IF NOT EXISTS palisade.holds (
    lock text COLLATE "C" PRIMARY KEY,
    request uuid NOT NULL UNIQUE,
    client text NOT NULL,
    token bigint NOT NULL,
    ttl_ms bigint NOT NULL,
    acquired timestamptz NOT NULL,
    expires timestamptz NOT NULL,
    metadata text
);

CREATE TABLE IF NOT EXISTS palisade.waits (
    place bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    lock text COLLATE "C" NOT NULL,
    request uuid NOT NULL UNIQUE,
    client text NOT NULL,
    ttl_ms bigint NOT NULL,
    metadata text,
    channel text NOT NULL,
    alive_until timestamptz NOT NULL
);
CREATE INDEX IF NOT EXISTS waits_in_order ON palisade.waits (lock, place);

-- How requests ended, for those that are repeated; an hour of them.
CREATE TABLE IF NOT EXISTS palisade.ended (
    request uuid PRIMARY KEY,
    token bigint,
    how text NOT NULL,
    at timestamptz NOT NULL DEFAULT clock_timestamp()
);
CREATE INDEX IF NOT EXISTS ended_by_age ON palisade.ended (at);

CREATE OR REPLACE FUNCTION palisade.span(ms bigint) RETURNS interval
LANGUAGE sql IMMUTABLE AS $$ SELECT ms * interval '1 millisecond' $$;

CREATE OR REPLACE FUNCTION palisade.micros(until timestamptz) RETURNS bigint
LANGUAGE sql VOLATILE AS $$
    SELECT greatest(0, floor(date_part('epoch', until - clock_timestamp()) * 1000000))::bigint
$$;

CREATE OR REPLACE FUNCTION palisade.wall_ms(moment timestamptz) RETURNS bigint
LANGUAGE sql STABLE AS $$ SELECT floor(date_part('epoch', moment) * 1000)::bigint $$;

-- From here on this transaction is alone with the lock, and sees everything before.
CREATE OR REPLACE FUNCTION palisade.enter(p_lock text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    IF current_setting('transaction_isolation') <> 'read committed' THEN
        RAISE EXCEPTION 'palisade needs the isolation level read committed, not %',
            current_setting('transaction_isolation') USING ERRCODE = 'feature_not_supported';
    END IF;
    -- What is acknowledged must be on stable storage.
    IF current_setting('synchronous_commit') = 'off' THEN
        PERFORM set_config('synchronous_commit', 'local', true);
    END IF;
    PERFORM pg_advisory_xact_lock(1347309641, hashtext(p_lock));
END $$;

CREATE OR REPLACE FUNCTION palisade.enter_request(p_request uuid) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(1347309642, hashtext(p_request::text));
END $$;

CREATE OR REPLACE FUNCTION palisade.note(p_request uuid, p_token bigint, p_how text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO palisade.ended (request, token, how) VALUES (p_request, p_token, p_how)
        ON CONFLICT DO NOTHING;
    IF random() < 0.01 THEN
        DELETE FROM palisade.ended WHERE at < clock_timestamp() - interval '1 hour';
    END IF;
END $$;

-- Draws a token and grants; NULL when the last token is out. As late as can be: from here on this
-- transaction keeps all others from the counter.
CREATE OR REPLACE FUNCTION palisade.open(
    p_lock text, p_request uuid, p_client text, p_ttl_ms bigint, p_metadata text, p_from timestamptz
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE drawn bigint;
BEGIN
    UPDATE palisade.authority SET last_token = last_token + 1
        WHERE last_token < 9007199254740991 RETURNING last_token INTO drawn;
    IF drawn IS NULL THEN RETURN NULL; END IF;
    INSERT INTO palisade.holds (lock, request, client, token, ttl_ms, acquired, expires, metadata)
        VALUES (p_lock, p_request, p_client, drawn, p_ttl_ms, p_from,
                p_from + palisade.span(p_ttl_ms), p_metadata);
    RETURN drawn;
END $$;

-- Ends a grant that holds.
CREATE OR REPLACE FUNCTION palisade.close(held palisade.holds, p_how text) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
    DELETE FROM palisade.holds WHERE lock = held.lock;
    PERFORM palisade.note(held.request, held.token, p_how);
END $$;

-- Grants a lock that nobody holds to the first waiter that lives: the message is its grant. Whether
-- there was one.
CREATE OR REPLACE FUNCTION palisade.next(p_lock text) RETURNS boolean
LANGUAGE plpgsql AS $$
DECLARE first palisade.waits; drawn bigint; now timestamptz := clock_timestamp();
BEGIN
    FOR first IN SELECT * FROM palisade.waits WHERE lock = p_lock ORDER BY place LOOP
        IF first.alive_until > now THEN
            drawn := palisade.open(p_lock, first.request, first.client, first.ttl_ms,
                first.metadata, now);
            IF drawn IS NULL THEN RETURN false; END IF;
        END IF;
        DELETE FROM palisade.waits WHERE place = first.place;
        IF drawn IS NOT NULL THEN
            PERFORM pg_notify(first.channel, format('%s %s %s',
                replace(first.request::text, '-', ''), drawn, palisade.wall_ms(now)));
            RETURN true;
        END IF;
    END LOOP;
    RETURN false;
END $$;

-- Ends what is over, and says who holds the lock then; NULL if nobody does.
CREATE OR REPLACE FUNCTION palisade.holder(p_lock text) RETURNS palisade.holds
LANGUAGE plpgsql AS $$
DECLARE held palisade.holds;
BEGIN
    SELECT * INTO held FROM palisade.holds WHERE lock = p_lock;
    IF held.expires > clock_timestamp() THEN RETURN held; END IF;
    IF FOUND THEN
        PERFORM palisade.close(held, 'expired');
    END IF;
    IF NOT palisade.next(p_lock) THEN RETURN NULL; END IF;
    SELECT * INTO held FROM palisade.holds WHERE lock = p_lock;
    RETURN held;
END $$;

CREATE OR REPLACE FUNCTION palisade.acquire(
    p_request uuid, p_lock text, p_client text, p_ttl_ms bigint, p_metadata text,
    p_wait boolean, p_channel text
) RETURNS TABLE (outcome text, o_token bigint, o_client text, o_micros bigint, o_wall_ms bigint,
                 o_first boolean)
LANGUAGE plpgsql AS $$
DECLARE held palisade.holds; now timestamptz;
BEGIN
    PERFORM palisade.enter_request(p_request);
    PERFORM palisade.enter(p_lock);
    now := clock_timestamp();
    SELECT how, token INTO outcome, o_token FROM palisade.ended WHERE request = p_request;
    IF FOUND THEN RETURN NEXT; RETURN; END IF;
    held := palisade.holder(p_lock);
    IF held.client = p_client AND held.request <> p_request THEN
        PERFORM palisade.close(held, 'superseded');
        DELETE FROM palisade.waits WHERE request = p_request;
        held := NULL;
    END IF;
    IF held.lock IS NULL THEN
        o_client := p_client;
        o_micros := p_ttl_ms * 1000;
        o_wall_ms := palisade.wall_ms(now);
        o_token := palisade.open(p_lock, p_request, p_client, p_ttl_ms, p_metadata, now);
        outcome := CASE WHEN o_token IS NULL THEN 'tokens_exhausted' ELSE 'granted' END;
        RETURN NEXT; RETURN;
    END IF;
    o_token := held.token;
    o_client := held.client;
    o_micros := palisade.micros(held.expires);
    o_wall_ms := palisade.wall_ms(held.acquired);
    IF held.request = p_request THEN
        outcome := 'granted'; RETURN NEXT; RETURN;
    END IF;
    IF NOT p_wait THEN
        DELETE FROM palisade.waits WHERE request = p_request;
        outcome := 'held'; RETURN NEXT; RETURN;
    END IF;
    UPDATE palisade.waits SET alive_until = now + palisade.span(p_ttl_ms), channel = p_channel
        WHERE request = p_request;
    IF NOT FOUND THEN
        DELETE FROM palisade.waits WHERE lock = p_lock AND alive_until <= now;
        IF (SELECT count(*) FROM palisade.waits WHERE lock = p_lock) >= 1024 THEN
            outcome := 'queue_full'; RETURN NEXT; RETURN;
        END IF;
        INSERT INTO palisade.waits (lock, request, client, ttl_ms, metadata, channel, alive_until)
            VALUES (p_lock, p_request, p_client, p_ttl_ms, p_metadata, p_channel,
                now + palisade.span(p_ttl_ms));
    END IF;
    o_first := (SELECT request = p_request FROM palisade.waits WHERE lock = p_lock
                ORDER BY place LIMIT 1);
    outcome := 'queued';
    RETURN NEXT;
END $$;

CREATE OR REPLACE FUNCTION palisade.renew(
    p_lock text, p_request uuid, p_token bigint, p_ttl_ms bigint
) RETURNS TABLE (outcome text, o_token bigint, o_ttl_ms bigint)
LANGUAGE plpgsql AS $$
DECLARE held palisade.holds; now timestamptz;
BEGIN
    PERFORM palisade.enter(p_lock);
    now := clock_timestamp();
    UPDATE palisade.holds SET ttl_ms = coalesce(p_ttl_ms, ttl_ms),
            expires = now + palisade.span(coalesce(p_ttl_ms, ttl_ms))
        WHERE lock = p_lock AND request = p_request AND token = coalesce(p_token, token)
            AND expires > now
        RETURNING token, ttl_ms INTO o_token, o_ttl_ms;
    IF FOUND THEN
        outcome := 'renewed';
    ELSE
        held := palisade.holder(p_lock);
        o_token := held.token;
        outcome := palisade.over(held, p_request, p_token);
    END IF;
    RETURN NEXT;
END $$;

-- What became of a grant that is not the one that holds.
CREATE OR REPLACE FUNCTION palisade.over(held palisade.holds, p_request uuid, p_token bigint)
RETURNS text LANGUAGE sql AS $$
    SELECT coalesce(
        (SELECT how FROM palisade.ended
            WHERE request = p_request AND token = coalesce(p_token, token)),
        CASE WHEN held.request = p_request THEN 'stale' ELSE 'not_held' END)
$$;

CREATE OR REPLACE FUNCTION palisade.release(p_lock text, p_request uuid, p_token bigint)
RETURNS TABLE (outcome text, o_token bigint) LANGUAGE plpgsql AS $$
DECLARE held palisade.holds;
BEGIN
    PERFORM palisade.enter(p_lock);
    DELETE FROM palisade.holds WHERE lock = p_lock AND request = p_request
        AND token = coalesce(p_token, token) AND expires > clock_timestamp()
        RETURNING token INTO o_token;
    IF FOUND THEN
        PERFORM palisade.note(p_request, o_token, 'released');
        PERFORM palisade.next(p_lock);
        outcome := 'done';
    ELSE
        held := palisade.holder(p_lock);
        o_token := held.token;
        outcome := palisade.over(held, p_request, p_token);
    END IF;
    RETURN NEXT;
END $$;

CREATE OR REPLACE FUNCTION palisade.revoke(p_lock text, p_token bigint)
RETURNS TABLE (outcome text, o_token bigint) LANGUAGE plpgsql AS $$
DECLARE held palisade.holds;
BEGIN
    PERFORM palisade.enter(p_lock);
    held := palisade.holder(p_lock);
    o_token := held.token;
    IF held.token = p_token THEN
        PERFORM palisade.close(held, 'revoked');
        PERFORM palisade.next(p_lock);
        outcome := 'done';
    ELSE
        SELECT how INTO outcome FROM palisade.ended WHERE token = p_token;
        outcome := coalesce(outcome, CASE WHEN held.lock IS NULL THEN 'not_held' ELSE 'stale' END);
    END IF;
    RETURN NEXT;
END $$;

CREATE OR REPLACE FUNCTION palisade.abandon(p_request uuid) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE its_lock text; its_token bigint;
BEGIN
    PERFORM palisade.enter_request(p_request);
    SELECT lock INTO its_lock FROM palisade.waits WHERE request = p_request
        UNION SELECT lock FROM palisade.holds WHERE request = p_request;
    IF its_lock IS NOT NULL THEN
        PERFORM palisade.enter(its_lock);
        -- Its turn may have come in between.
        DELETE FROM palisade.waits WHERE request = p_request;
        DELETE FROM palisade.holds WHERE request = p_request RETURNING token INTO its_token;
    END IF;
    PERFORM palisade.note(p_request, its_token, 'abandoned');
    IF its_lock IS NOT NULL THEN
        PERFORM palisade.holder(its_lock);
    END IF;
END $$;

CREATE OR REPLACE FUNCTION palisade.shown(p_lock text)
RETURNS TABLE (o_lock text, o_client text, o_token bigint, o_micros bigint,
               o_wall_ms bigint, o_metadata text, o_waiters bigint)
LANGUAGE sql AS $$
    SELECT p_lock, held.client, held.token, palisade.micros(held.expires),
        palisade.wall_ms(held.acquired), held.metadata,
        (SELECT count(*) FROM palisade.waits
            WHERE waits.lock = p_lock AND alive_until > clock_timestamp())
    FROM (SELECT 1) AS one
    LEFT JOIN palisade.holds AS held ON held.lock = p_lock AND held.expires > clock_timestamp()
$$;

CREATE OR REPLACE FUNCTION palisade.listed(p_prefix text, p_after text, p_limit bigint)
RETURNS TABLE (o_lock text) LANGUAGE sql AS $$
    SELECT lock FROM palisade.holds
    WHERE starts_with(lock, p_prefix) AND lock > p_after COLLATE "C" AND expires > clock_timestamp()
    ORDER BY lock COLLATE "C" LIMIT p_limit
$$;
