-- pglock, schema version 1: locks, fences, events, and the functions that are the protocol.
--
-- Names are unqualified. Run it in one transaction, with search_path set to exactly "<schema>, pg_temp": the functions
-- keep that path for ever, and pg_temp must come last, or a caller's temporary table would shadow ours.
--
-- SQLSTATEs of our own, class LK; every function and the Go code use only these:
--   LK001  the lease has expired                         DETAIL reason=expired
--   LK002  stale token: a greater token passed the fence DETAIL last_token=N
--   LK003  not the holder: released, broken, taken over, or unknown here
--                                                        DETAIL reason=released|broken|taken over|unknown
--   LK004  reserved for a circle of waiters
--   LK005  the transaction is not READ COMMITTED
--   LK006  the lock is not held, or not with the token that was named
--   LK007  the lease belongs to another database
--   LK008  the grant ID was used before and its lease has ended
--   LK009  the transaction is not under the fence
-- Arguments out of range are 22023 (invalid_parameter_value): the message names the argument, the value and the rule.

DO $do$
BEGIN
  IF current_setting('server_version_num')::int < 140000 THEN
    RAISE EXCEPTION 'pglock needs PostgreSQL 14 or newer; this server is %', current_setting('server_version')
      USING ERRCODE = 'feature_not_supported';
  END IF;
  IF current_schema() IS NULL
     OR regexp_replace(current_setting('search_path'), '[" ]', '', 'g')
        <> regexp_replace(current_schema(), '[" ]', '', 'g') || ',pg_temp' THEN
    RAISE EXCEPTION 'search_path is "%": it must be an existing schema followed by pg_temp', current_setting('search_path')
      USING ERRCODE = 'invalid_schema_name',
            HINT = 'CREATE SCHEMA pglock; SET search_path = pglock, pg_temp;';
  END IF;
END $do$;

-- CACHE 1: a greater cache hands tokens out of order.
CREATE SEQUENCE fencing_token_seq AS bigint MINVALUE 1 NO CYCLE CACHE 1;

-- A lock is free when expires_at is in the past; release and break set it to -infinity and keep the row, because the
-- next token must be drawn under this row's lock. (name, token) is unique so that a grant changes a key: it must wait
-- for the FOR KEY SHARE of a committing fenced transaction, while a renewal passes. No index on what a renewal changes.
CREATE TABLE locks (
  name        text COLLATE "C" PRIMARY KEY CONSTRAINT locks_name_length CHECK (octet_length(name) BETWEEN 1 AND 512),
  holder      text        NOT NULL,
  session_id  uuid        NOT NULL,
  grant_id    uuid        NOT NULL,
  token       bigint      NOT NULL CONSTRAINT locks_token_positive CHECK (token > 0),
  ttl         interval    NOT NULL,
  acquired_at timestamptz NOT NULL,
  renewed_at  timestamptz NOT NULL,
  expires_at  timestamptz NOT NULL,
  ended_at    timestamptz,             -- when a release or a break ended the lease
  metadata    jsonb,
  CONSTRAINT locks_name_token_key UNIQUE (name, token)
) WITH (fillfactor = 50);

-- The highest token that wrote to a resource. Never pruned: a fence that forgets lets a stale token in.
CREATE TABLE fences (
  resource    text COLLATE "C" PRIMARY KEY CONSTRAINT fences_resource_length CHECK (octet_length(resource) BETWEEN 1 AND 512),
  last_token  bigint      NOT NULL,
  lock_name   text COLLATE "C" NOT NULL,
  grant_id    uuid        NOT NULL,
  fenced_xact xid8        NOT NULL,    -- the transaction that passed last
  advanced_at timestamptz NOT NULL
) WITH (fillfactor = 50);

CREATE TABLE events (
  id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  kind      text        NOT NULL CONSTRAINT events_kind CHECK (kind IN ('break', 'takeover', 'stale write')),
  lock_name text COLLATE "C" NOT NULL,
  token     bigint      NOT NULL,      -- of the lease that was ended, or that was refused
  new_token bigint,                    -- the token that ended it, or that stands at the fence
  holder    text,                      -- of the lease named by token
  actor     text,                      -- who did it, by their own words
  db_user   text        NOT NULL DEFAULT session_user,
  reason    text,
  resource  text
);
CREATE INDEX events_lock_token ON events (lock_name, token);
CREATE INDEX events_at ON events (at);

-- Grant IDs that were given up while their request may still be under way: acquire refuses them. Kept for an hour, far
-- longer than a request can be late.
CREATE TABLE spent_grants (
  grant_id uuid        PRIMARY KEY,
  at       timestamptz NOT NULL
);
CREATE INDEX spent_grants_at ON spent_grants (at);

-- Tells this installation from every other, also from a copy of it in another database of the same server.
CREATE TABLE installation (
  id  uuid NOT NULL DEFAULT gen_random_uuid(),
  one boolean PRIMARY KEY DEFAULT true CONSTRAINT installation_one_row CHECK (one)
);
INSERT INTO installation DEFAULT VALUES;

CREATE FUNCTION schema_version() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path FROM CURRENT
AS 'SELECT 1';

CREATE FUNCTION database_id() RETURNS uuid
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
AS $$ SELECT md5(i.id::text || d.oid::text)::uuid FROM installation i, pg_database d WHERE d.datname = current_database() $$;

-- What a client asks once, when it starts.
CREATE FUNCTION start_client(
  OUT schema_version int, OUT database_id uuid, OUT isolation text, OUT read_only boolean, OUT sequence_ok boolean)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
  SELECT schema_version(), database_id(), current_setting('default_transaction_isolation'),
         pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
         (SELECT s.seqcache = 1 AND NOT s.seqcycle AND s.seqincrement = 1
          FROM pg_sequence s WHERE s.seqrelid = 'fencing_token_seq'::regclass)
$$;

-- The helpers up to microseconds_until are called by functions below alone, which have fixed the search_path; setting it
-- again for each would cost more than the work. They answer true or raise, so that a caller can evaluate them without a
-- query.

-- Refuses arguments that the rules forbid, naming argument, value and rule.
CREATE FUNCTION check_arguments(p_name text, p_holder text, p_ttl interval, p_metadata jsonb) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
  IF p_name IS NULL OR octet_length(p_name) NOT BETWEEN 1 AND 512 THEN
    RAISE EXCEPTION 'name is % bytes long: it must have 1 to 512', coalesce(octet_length(p_name)::text, 'NULL, not some number of')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_holder IS NULL OR octet_length(p_holder) NOT BETWEEN 1 AND 256 THEN
    RAISE EXCEPTION 'holder is % bytes long: it must have 1 to 256', coalesce(octet_length(p_holder)::text, 'NULL, not some number of')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_ttl IS NULL OR p_ttl < interval '100 ms' OR p_ttl > interval '24 hours' THEN
    RAISE EXCEPTION 'ttl is %: it must be from 100 ms to 24 hours', coalesce(p_ttl::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF octet_length(p_metadata::text) > 16384 THEN
    RAISE EXCEPTION 'metadata is % bytes long as jsonb: it must have at most 16384', octet_length(p_metadata::text)
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  RETURN true;
END $$;

-- Every statement of a function must see what was committed before it began; a frozen snapshot never sees a takeover.
CREATE FUNCTION require_read_committed() RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
BEGIN
  IF current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted') THEN
    RAISE EXCEPTION 'the transaction is %: this function needs READ COMMITTED', upper(current_setting('transaction_isolation'))
      USING ERRCODE = 'LK005', HINT = 'BEGIN ISOLATION LEVEL READ COMMITTED';
  END IF;
  RETURN true;
END $$;

-- A grant and a renewal are answered only when they are on disk (and on a standby, where one is waited for), whatever
-- the session's default: the token or the expiry would otherwise be given out twice after a crash.
CREATE FUNCTION require_durable_commit() RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  ignored text;
BEGIN
  IF current_setting('synchronous_commit') IN ('off', 'local') THEN
    ignored := set_config('synchronous_commit', 'on', true);
  END IF;
  RETURN true;
END $$;

CREATE FUNCTION microseconds_until(p_at timestamptz) RETURNS bigint
LANGUAGE sql VOLATILE
AS $$ SELECT CASE WHEN p_at > '-infinity' THEN GREATEST(0, extract(epoch FROM p_at - clock_timestamp()) * 1000000)::bigint ELSE 0 END $$;

-- Why the lease (p_name, p_token, p_grant_id) is no longer held; NULL while it is.
CREATE FUNCTION lost_reason(p_name text, p_token bigint, p_grant_id uuid) RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  r locks%ROWTYPE;
BEGIN
  SELECT * INTO r FROM locks l WHERE l.name = p_name;
  IF NOT FOUND OR r.token < p_token THEN
    RETURN 'unknown';                                  -- pruned, or never granted here
  ELSIF r.token = p_token THEN
    IF r.grant_id IS DISTINCT FROM p_grant_id THEN RETURN CASE WHEN r.expires_at <= clock_timestamp() THEN 'expired' ELSE 'unknown' END; END IF;
    IF r.expires_at = '-infinity' THEN RETURN 'released'; END IF;
    IF r.expires_at <= clock_timestamp() THEN RETURN 'expired'; END IF;
    RETURN NULL;
  ELSIF r.grant_id = p_grant_id OR EXISTS (
      SELECT FROM events e WHERE e.lock_name = p_name AND e.token = p_token AND e.kind = 'break') THEN
    RETURN 'broken';
  END IF;
  RETURN 'taken over';
END $$;

CREATE FUNCTION raise_lost(p_name text, p_token bigint, p_reason text) RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
  RAISE EXCEPTION 'the lease of lock % with token % is lost: %', quote_literal(p_name), p_token,
      CASE p_reason WHEN 'unknown' THEN format('schema %I of database %I has no such grant', current_schema(), current_database())
                    ELSE p_reason END
    USING ERRCODE = CASE p_reason WHEN 'expired' THEN 'LK001' ELSE 'LK003' END,
          DETAIL = 'reason=' || p_reason,
          HINT = 'Stop the work that this lock protects; acquire it again to go on.';
END $$;

-- acquire grants p_name to p_grant_id if it is free. granted=false: who holds it (holder is NULL in the instant in
-- which it is being granted to somebody). The same grant ID again yields the same grant; p_retry says that an earlier
-- attempt may still be on its way, and waits for it. A refused try locks no row, writes nothing, draws no token.
CREATE FUNCTION acquire(
  p_name text, p_grant_id uuid, p_session_id uuid, p_holder text, p_ttl interval,
  p_metadata jsonb DEFAULT NULL, p_retry boolean DEFAULT false,
  OUT granted boolean, OUT token bigint, OUT holder text, OUT expires_at timestamptz, OUT remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  r     locks%ROWTYPE;
  ended timestamptz;     -- when the lease before us ran out, if it was neither released nor broken
  ok    boolean := require_read_committed() AND check_arguments(p_name, p_holder, p_ttl, p_metadata);
BEGIN
  IF p_grant_id IS NULL OR p_session_id IS NULL THEN
    RAISE EXCEPTION 'grant_id and session_id are % and %: they must not be NULL', p_grant_id, p_session_id
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  LOOP
    -- Lock the free row first and wait for nobody; token and times are drawn while it is ours. A retry waits for the
    -- attempt before it. Nobody locks a row that somebody else holds.
    IF p_retry THEN
      SELECT * INTO r FROM locks l
        WHERE l.name = p_name AND (l.expires_at <= clock_timestamp() OR l.grant_id = p_grant_id) FOR UPDATE;
    ELSE
      SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED;
    END IF;
    IF r.expires_at <= clock_timestamp() THEN
      IF r.grant_id = p_grant_id THEN
        RAISE EXCEPTION 'grant ID of lock % was used before and its lease has ended', quote_literal(p_name)
          USING ERRCODE = 'LK008', HINT = 'Choose a new grant ID.';
      END IF;
      ended := r.expires_at;
    ELSE
      SELECT * INTO r FROM locks l WHERE l.name = p_name;
      IF r.grant_id = p_grant_id THEN
        -- Our own earlier attempt was granted. Renewed rather than only read: this commit then waits for the disk and
        -- the standby that the lost answer may not have waited for.
        ok := require_durable_commit();
        SELECT * INTO r FROM locks l WHERE l.name = p_name FOR NO KEY UPDATE;
        UPDATE locks l SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + l.ttl
          WHERE l.name = p_name AND l.grant_id = p_grant_id AND l.token = r.token AND l.expires_at > clock_timestamp()
          RETURNING true, l.token, l.holder, l.expires_at, microseconds_until(l.expires_at)
          INTO acquire.granted, acquire.token, acquire.holder, acquire.expires_at, acquire.remaining_us;
        IF NOT FOUND THEN
          RAISE EXCEPTION 'grant ID of lock % was used before and its lease has ended', quote_literal(p_name)
            USING ERRCODE = 'LK008', HINT = 'Choose a new grant ID.';
        END IF;
        RETURN;
      ELSIF r.name IS NOT NULL THEN
        acquire.granted := false;
        acquire.remaining_us := 0;
        IF r.expires_at > clock_timestamp() THEN          -- else somebody has locked it, to be granted it
          acquire.token := r.token;
          acquire.holder := r.holder;
          acquire.expires_at := r.expires_at;
          acquire.remaining_us := microseconds_until(r.expires_at);
        END IF;
        RETURN;
      END IF;
    END IF;

    IF EXISTS (SELECT FROM spent_grants s WHERE s.grant_id = p_grant_id) THEN
      RAISE EXCEPTION 'grant ID of lock % was given up', quote_literal(p_name) USING ERRCODE = 'LK008', HINT = 'Choose a new grant ID.';
    END IF;
    ok := require_durable_commit();
    INSERT INTO locks AS l (name, holder, session_id, grant_id, token, ttl, acquired_at, renewed_at, expires_at, metadata)
      VALUES (p_name, p_holder, p_session_id, p_grant_id,
              coalesce(r.token, nextval('fencing_token_seq')),   -- of the row that is there: not used, DO UPDATE draws
              p_ttl, clock_timestamp(), clock_timestamp(), clock_timestamp() + p_ttl, p_metadata)
      ON CONFLICT (name) DO UPDATE SET
        holder = p_holder, session_id = p_session_id, grant_id = p_grant_id,
        token = GREATEST(nextval('fencing_token_seq'), l.token + 1),
        ttl = p_ttl, acquired_at = clock_timestamp(), renewed_at = clock_timestamp(),
        expires_at = clock_timestamp() + p_ttl, ended_at = NULL, metadata = p_metadata
        WHERE l.expires_at <= clock_timestamp()
      RETURNING true, l.token, l.holder, l.expires_at, microseconds_until(l.expires_at)
      INTO acquire.granted, acquire.token, acquire.holder, acquire.expires_at, acquire.remaining_us;
    IF FOUND THEN
      IF ended > '-infinity' THEN
        INSERT INTO events (kind, lock_name, token, new_token, holder, actor)
          VALUES ('takeover', p_name, r.token, acquire.token, r.holder, p_holder);
      END IF;
      RETURN;
    END IF;
    -- Somebody else was the first ever to use this name: look again.
  END LOOP;
END $$;

-- renew_all extends every lease named by the three arrays that is still held, each by its own TTL. One verdict a lease:
-- renewed, busy (another transaction has locked the row: ask again with renew), or the reason for which it is lost.
-- Rows are locked in name order and values computed after; one stuck row never costs the other leases.
CREATE FUNCTION renew_all(p_names text[], p_tokens bigint[], p_grant_ids uuid[])
RETURNS TABLE (name text, token bigint, outcome text, expires_at timestamptz, remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND require_durable_commit();
BEGIN
  RETURN QUERY
    WITH asked AS MATERIALIZED (
      SELECT * FROM unnest(p_names, p_tokens, p_grant_ids) AS a (name, token, grant_id)),
    held AS MATERIALIZED (
      SELECT l.name FROM locks l JOIN asked a ON l.name = a.name AND l.token = a.token AND l.grant_id = a.grant_id
      WHERE l.expires_at > clock_timestamp()
      ORDER BY l.name FOR NO KEY UPDATE OF l SKIP LOCKED),
    renewed AS (
      UPDATE locks l SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + l.ttl
      FROM held h WHERE l.name = h.name AND l.expires_at > clock_timestamp()
      RETURNING l.name, l.expires_at)
    SELECT a.name, a.token,
           CASE WHEN r.name IS NULL THEN coalesce(lost_reason(a.name, a.token, a.grant_id), 'busy') ELSE 'renewed' END,
           r.expires_at, microseconds_until(r.expires_at)
    FROM asked a LEFT JOIN renewed r ON r.name = a.name;
END $$;

-- renew extends one lease by its TTL, waiting for the row where it must; LK001 or LK003 when the lease is lost.
CREATE FUNCTION renew(p_name text, p_token bigint, p_grant_id uuid, OUT expires_at timestamptz, OUT remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND require_durable_commit();
BEGIN
  PERFORM FROM locks l WHERE l.name = p_name AND l.token = p_token AND l.grant_id = p_grant_id FOR NO KEY UPDATE;
  UPDATE locks l SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + l.ttl
    WHERE l.name = p_name AND l.token = p_token AND l.grant_id = p_grant_id AND l.expires_at > clock_timestamp()
    RETURNING l.expires_at, microseconds_until(l.expires_at) INTO renew.expires_at, renew.remaining_us;
  IF NOT FOUND THEN
    PERFORM raise_lost(p_name, p_token, coalesce(lost_reason(p_name, p_token, p_grant_id), 'expired'));
  END IF;
END $$;

-- check_lease answers how long the lease still runs; LK001 or LK003 when it is lost.
CREATE FUNCTION check_lease(p_name text, p_token bigint, p_grant_id uuid, OUT expires_at timestamptz, OUT remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
  SELECT l.expires_at, microseconds_until(l.expires_at) INTO check_lease.expires_at, check_lease.remaining_us
    FROM locks l WHERE l.name = p_name AND l.token = p_token AND l.grant_id = p_grant_id;
  IF check_lease.remaining_us IS NULL OR check_lease.remaining_us = 0 THEN
    PERFORM raise_lost(p_name, p_token, coalesce(lost_reason(p_name, p_token, p_grant_id), 'expired'));
  END IF;
END $$;

-- release ends the caller's own lease; false, and nothing changed, when it was not held any more. The row stays. It is
-- locked FOR UPDATE first: an update under that lock counts as a change of the key, so that fence_commit sees the release
-- under REPEATABLE READ too, and it stays HOT, as a changed key would not. synchronous_commit is left alone: only a
-- statement that is its own transaction may turn that off.
CREATE FUNCTION release(p_name text, p_token bigint, p_grant_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := require_read_committed();
BEGIN
  PERFORM FROM locks l WHERE l.name = p_name AND l.token = p_token AND l.grant_id = p_grant_id FOR UPDATE;
  UPDATE locks l SET expires_at = '-infinity', ended_at = clock_timestamp()
    WHERE l.name = p_name AND l.token = p_token AND l.grant_id = p_grant_id AND l.expires_at > clock_timestamp();
  RETURN FOUND;
END $$;

-- release_all is release for many leases, rows locked in name order; it answers with the names that it released.
CREATE FUNCTION release_all(p_names text[], p_tokens bigint[], p_grant_ids uuid[]) RETURNS SETOF text
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := require_read_committed();
BEGIN
  RETURN QUERY
    WITH asked AS MATERIALIZED (
      SELECT * FROM unnest(p_names, p_tokens, p_grant_ids) AS a (name, token, grant_id)),
    held AS MATERIALIZED (
      SELECT l.name FROM locks l JOIN asked a ON l.name = a.name AND l.token = a.token AND l.grant_id = a.grant_id
      WHERE l.expires_at > clock_timestamp()
      ORDER BY l.name FOR UPDATE OF l)
    UPDATE locks l SET expires_at = '-infinity', ended_at = clock_timestamp() FROM held h WHERE l.name = h.name
    RETURNING l.name;
END $$;

-- abandon gives up a grant whose answer nobody waits for any more. It spends the grant ID, so that a request still under
-- way is refused, and ends the lease if it was granted; true when it did. An acquire that had looked before may commit
-- after: it holds the free row or is the first insert of the name, and is waited for by the NEXT call. So call it until
-- it has answered twice. A row that somebody else holds is not locked.
CREATE FUNCTION abandon(p_name text, p_grant_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := require_read_committed() AND check_arguments(p_name, '-', interval '1 s', NULL);
  r  locks%ROWTYPE;
BEGIN
  IF p_grant_id IS NULL THEN
    RAISE EXCEPTION 'grant_id is NULL: it must not be' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  INSERT INTO spent_grants (grant_id, at) VALUES (p_grant_id, clock_timestamp()) ON CONFLICT (grant_id) DO NOTHING;
  DELETE FROM spent_grants s USING (
      SELECT o.grant_id FROM spent_grants o WHERE o.at < clock_timestamp() - interval '1 hour'
      ORDER BY o.at LIMIT 10 FOR UPDATE SKIP LOCKED) old
    WHERE s.grant_id = old.grant_id;
  IF NOT EXISTS (SELECT FROM locks l WHERE l.name = p_name) THEN
    INSERT INTO locks (name, holder, session_id, grant_id, token, ttl, acquired_at, renewed_at, expires_at, ended_at)
      VALUES (p_name, '-', gen_random_uuid(), gen_random_uuid(), nextval('fencing_token_seq'), interval '1 s',
              clock_timestamp(), clock_timestamp(), '-infinity', clock_timestamp())
      ON CONFLICT (name) DO NOTHING;                  -- waits for a first grant that is about to commit
  END IF;
  SELECT * INTO r FROM locks l
    WHERE l.name = p_name AND (l.expires_at <= clock_timestamp() OR l.grant_id = p_grant_id) FOR UPDATE;
  IF r.grant_id = p_grant_id AND r.expires_at > clock_timestamp() THEN
    UPDATE locks l SET expires_at = '-infinity', ended_at = clock_timestamp() WHERE l.name = p_name;
    RETURN true;
  END IF;
  RETURN false;
END $$;

-- break_lock ends somebody else's lease and draws a new token: without a new token (a key change), a REPEATABLE READ
-- fenced transaction of the old holder would not notice and would commit. p_token, when given, must be the holder's.
CREATE FUNCTION break_lock(
  p_name text, p_reason text, p_actor text, p_token bigint DEFAULT NULL,
  OUT holder text, OUT token bigint, OUT new_token bigint, OUT expires_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND require_durable_commit() AND check_arguments(p_name, '-', interval '1 s', NULL);
  r locks%ROWTYPE;
BEGIN
  IF p_reason IS NULL OR p_reason !~ '[^[:space:]]' OR octet_length(p_reason) > 1024 THEN
    RAISE EXCEPTION 'reason is %: it must have 1 to 1024 bytes, not all of them blank', coalesce(quote_literal(left(p_reason, 40)), 'NULL')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_actor IS NULL OR octet_length(p_actor) NOT BETWEEN 1 AND 256 THEN
    RAISE EXCEPTION 'actor is %: it must have 1 to 256 bytes', coalesce(quote_literal(left(p_actor, 40)), 'NULL')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT * INTO r FROM locks l WHERE l.name = p_name FOR UPDATE;
  IF NOT FOUND OR r.expires_at <= clock_timestamp() THEN
    RAISE EXCEPTION 'lock % is not held: there is nothing to break', quote_literal(p_name) USING ERRCODE = 'LK006';
  END IF;
  IF p_token <> r.token THEN
    RAISE EXCEPTION 'lock % is held with token %, not %: nothing was broken', quote_literal(p_name), r.token, p_token
      USING ERRCODE = 'LK006';
  END IF;
  UPDATE locks l SET token = GREATEST(nextval('fencing_token_seq'), l.token + 1), expires_at = '-infinity',
                     ended_at = clock_timestamp()
    WHERE l.name = p_name RETURNING l.token INTO break_lock.new_token;
  break_lock.holder := r.holder;
  break_lock.token := r.token;
  break_lock.expires_at := r.expires_at;
  INSERT INTO events (kind, lock_name, token, new_token, holder, actor, reason)
    VALUES ('break', p_name, r.token, break_lock.new_token, r.holder, p_actor, p_reason);
END $$;

-- bound_timeout lowers a timeout of this transaction to p_ms; a lower one that the user has set stays. 0 is no bound.
CREATE FUNCTION bound_timeout(p_setting text, p_ms bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  current text := current_setting(p_setting);
BEGIN
  IF current = '0' OR extract(epoch FROM current::interval) * 1000 > p_ms THEN
    current := set_config(p_setting, GREATEST(1, LEAST(p_ms, 2147483647))::text, true);
  END IF;
  RETURN true;
END $$;

CREATE FUNCTION raise_stale(p_resource text, p_token bigint, p_last bigint) RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
  RAISE EXCEPTION 'token % is stale: token % has passed the fence of %', p_token, p_last, quote_literal(p_resource)
    USING ERRCODE = 'LK002', DETAIL = 'last_token=' || p_last,
          HINT = CASE WHEN p_last = p_token THEN 'This grant has already written to the resource; let it write again only with allow_same_token.'
                      ELSE 'A later holder has written: stop this work.' END;
END $$;

-- Not every system lets a server notice that its client is gone.
DO $do$
DECLARE
  can boolean := true;
BEGIN
  BEGIN
    PERFORM set_config('client_connection_check_interval', '1000', true);
  EXCEPTION WHEN invalid_parameter_value THEN
    can := false;
  END;
  EXECUTE format('CREATE FUNCTION can_check_connection() RETURNS boolean LANGUAGE sql IMMUTABLE AS %L', 'SELECT ' || can);
END $do$;

-- fence puts the caller's transaction under the fence of p_resource (by default the lock's own name). It takes the fence
-- row, which may wait for a predecessor's open transaction; then refuses a token that is not greater than every token
-- that passed (or, with p_allow_same_token, not this very grant's); then checks the lease by the server's clock. At
-- COMMIT the trigger fence_commit checks the lease again. It bounds the transaction by the lease's remaining time, so
-- that a holder that hangs cannot block the next one for longer.
CREATE FUNCTION fence(
  p_name text, p_token bigint, p_grant_id uuid, p_resource text DEFAULT NULL,
  p_allow_same_token boolean DEFAULT false, p_database_id uuid DEFAULT NULL,
  OUT xact xid8, OUT expires_at timestamptz, OUT remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  res   text := coalesce(p_resource, p_name);
  ends  timestamptz;
  ms    bigint;
  last  bigint;
  ok    boolean;
  noted text;
BEGIN
  IF res IS NULL OR octet_length(res) NOT BETWEEN 1 AND 512 THEN
    RAISE EXCEPTION 'resource is % bytes long: it must have 1 to 512', coalesce(octet_length(res)::text, 'NULL, not some number of')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT l.expires_at INTO ends FROM locks l WHERE l.name = p_name AND l.token = p_token AND l.grant_id = p_grant_id;
  IF ends IS NULL OR ends <= clock_timestamp() THEN
    -- Refused in any case; a holder that was overtaken hears of the token first, and waits for nobody to hear it.
    IF p_database_id <> database_id() THEN
      RAISE EXCEPTION 'the lease of lock % belongs to another database: not to schema % of database %',
          quote_literal(p_name), current_schema(), current_database()
        USING ERRCODE = 'LK007', HINT = 'Write through the database that granted the lock.';
    END IF;
    SELECT f.last_token INTO last FROM fences f WHERE f.resource = res AND f.last_token > p_token;
    IF FOUND THEN
      PERFORM raise_stale(res, p_token, last);
    END IF;
    PERFORM raise_lost(p_name, p_token, coalesce(lost_reason(p_name, p_token, p_grant_id), 'expired'));
  END IF;
  ms := microseconds_until(ends) / 1000 + 1;
  ok := bound_timeout('lock_timeout', ms) AND bound_timeout('statement_timeout', ms)
    AND bound_timeout('idle_in_transaction_session_timeout', ms) AND bound_timeout('tcp_user_timeout', ms)
    AND (NOT can_check_connection() OR bound_timeout('client_connection_check_interval', 1000))
    AND (current_setting('server_version_num')::int < 170000 OR bound_timeout('transaction_timeout', ms + 100));

  INSERT INTO fences AS f (resource, last_token, lock_name, grant_id, fenced_xact, advanced_at)
    VALUES (res, p_token, p_name, p_grant_id, pg_current_xact_id(), clock_timestamp())
    ON CONFLICT (resource) DO UPDATE SET
      last_token = p_token, lock_name = p_name, grant_id = p_grant_id,
      fenced_xact = pg_current_xact_id(), advanced_at = clock_timestamp()
      WHERE f.last_token < p_token
         OR p_allow_same_token AND f.last_token = p_token AND f.grant_id = p_grant_id
    RETURNING f.fenced_xact INTO fence.xact;
  IF NOT FOUND THEN
    SELECT f.last_token INTO last FROM fences f WHERE f.resource = res;
    PERFORM raise_stale(res, p_token, last);
  END IF;

  -- After the wait: a fresh look, by the clock of now.
  SELECT l.expires_at INTO ends FROM locks l WHERE l.name = p_name AND l.token = p_token AND l.grant_id = p_grant_id;
  IF ends IS NULL OR ends <= clock_timestamp() THEN
    PERFORM raise_lost(p_name, p_token, coalesce(lost_reason(p_name, p_token, p_grant_id), 'expired'));
  END IF;
  fence.expires_at := ends;
  fence.remaining_us := microseconds_until(ends);
  noted := set_config('pglock.fenced', fence.xact::text, true);   -- for seal(); a rollback to before takes it back
END $$;

-- The check inside COMMIT. FOR KEY SHARE orders a takeover or a break, which change the key (name, token), after this
-- commit, lets renewals pass, and fails with 40001 where an older snapshot hides a takeover. The clock is read after
-- the lock. A row that a restore or a replica brings carries another transaction's ID and is left alone.
CREATE FUNCTION fence_commit() RETURNS trigger
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  r     record;
  noted text;
BEGIN
  IF NEW.fenced_xact <> pg_current_xact_id() THEN
    RETURN NULL;
  END IF;
  SELECT l.token, l.grant_id, l.expires_at INTO r FROM locks l WHERE l.name = NEW.lock_name FOR KEY SHARE;
  IF r.token IS DISTINCT FROM NEW.last_token OR r.grant_id IS DISTINCT FROM NEW.grant_id OR r.expires_at <= clock_timestamp() THEN
    PERFORM raise_lost(NEW.lock_name, NEW.last_token,
                       coalesce(lost_reason(NEW.lock_name, NEW.last_token, NEW.grant_id), 'expired'));
  END IF;
  noted := set_config('pglock.checked', NEW.fenced_xact::text, true);
  RETURN NULL;
END $$;

CREATE CONSTRAINT TRIGGER fence_commit AFTER INSERT OR UPDATE ON fences
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION fence_commit();
ALTER TABLE fences ENABLE ALWAYS TRIGGER fence_commit;   -- session_replication_role = replica opens no hole

-- seal is the last statement before COMMIT. It refuses a transaction that has left the fence (raw COMMIT, ROLLBACK TO).
-- Where SET CONSTRAINTS ALL IMMEDIATE has used up the check already, it queues it again for every fence of the
-- transaction. It goes by two settings of this transaction: they keep a program from leaving the fence by mistake; the
-- check inside COMMIT does not depend on them.
CREATE FUNCTION seal() RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  xact text := pg_current_xact_id_if_assigned()::text;
BEGIN
  IF xact IS NULL OR current_setting('pglock.fenced', true) IS DISTINCT FROM xact THEN
    RAISE EXCEPTION 'the transaction is not under the fence: it was left by COMMIT, ROLLBACK or ROLLBACK TO inside the write'
      USING ERRCODE = 'LK009';
  END IF;
  IF current_setting('pglock.checked', true) = xact THEN
    SET CONSTRAINTS fence_commit DEFERRED;
    UPDATE fences f SET advanced_at = clock_timestamp() WHERE f.fenced_xact = xact::xid8;
  END IF;
END $$;

-- record_refusal keeps a refused stale write for the audit (the refused transaction's own writes are gone). One event a
-- resource and token; false when nothing was refused as far as the fence shows.
CREATE FUNCTION record_refusal(p_resource text, p_name text, p_token bigint, p_holder text) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
BEGIN
  INSERT INTO events (kind, lock_name, token, new_token, holder, resource)
    SELECT 'stale write', p_name, p_token, f.last_token, left(p_holder, 256), f.resource
    FROM fences f WHERE f.resource = p_resource AND f.last_token > p_token AND p_token > 0 AND EXISTS (SELECT FROM locks l WHERE l.name = p_name)
      AND NOT EXISTS (SELECT FROM events e WHERE e.lock_name = p_name AND e.token = p_token
                      AND e.kind = 'stale write' AND e.resource = p_resource);
  RETURN FOUND;
END $$;

-- Read-only views of locks, for everybody who may use them. Nobody reads a grant ID.
CREATE FUNCTION list_locks(
  p_prefix text DEFAULT '', p_free boolean DEFAULT false, p_after text DEFAULT '', p_limit int DEFAULT 1000)
RETURNS TABLE (name text, held boolean, holder text, session_id uuid, token bigint, ttl_us bigint, acquired_at timestamptz,
               renewed_at timestamptz, expires_at timestamptz, ended_at timestamptz, remaining_us bigint, metadata jsonb)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
  SELECT l.name, l.expires_at > clock_timestamp(), l.holder, l.session_id, l.token, (extract(epoch FROM l.ttl) * 1000000)::bigint,
         l.acquired_at, l.renewed_at, nullif(l.expires_at, '-infinity'), l.ended_at, microseconds_until(l.expires_at), l.metadata
  FROM locks l
  WHERE starts_with(l.name, p_prefix) AND l.name > p_after AND (p_free OR l.expires_at > clock_timestamp())
  ORDER BY l.name LIMIT p_limit
$$;

CREATE FUNCTION get_lock(p_name text)
RETURNS TABLE (name text, held boolean, holder text, session_id uuid, token bigint, ttl_us bigint, acquired_at timestamptz,
               renewed_at timestamptz, expires_at timestamptz, ended_at timestamptz, remaining_us bigint, metadata jsonb)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
  SELECT l.name, l.expires_at > clock_timestamp(), l.holder, l.session_id, l.token, (extract(epoch FROM l.ttl) * 1000000)::bigint,
         l.acquired_at, l.renewed_at, nullif(l.expires_at, '-infinity'), l.ended_at, microseconds_until(l.expires_at), l.metadata
  FROM locks l WHERE l.name = p_name
$$;

CREATE FUNCTION list_fences(p_lock_name text)
RETURNS TABLE (resource text, last_token bigint, lock_name text, advanced_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
  SELECT f.resource, f.last_token, f.lock_name, f.advanced_at FROM fences f
  WHERE f.resource = p_lock_name OR f.lock_name = p_lock_name ORDER BY f.resource LIMIT 1000
$$;

-- For operators: the audit, newest first; '' lists every lock's.
CREATE FUNCTION list_events(p_lock_name text DEFAULT '', p_limit int DEFAULT 100)
RETURNS TABLE (id bigint, at timestamptz, kind text, lock_name text, token bigint, new_token bigint, holder text,
               actor text, db_user text, reason text, resource text)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
  SELECT e.id, e.at, e.kind, e.lock_name, e.token, e.new_token, e.holder, e.actor, e.db_user, e.reason, e.resource
  FROM events e WHERE p_lock_name = '' OR e.lock_name = p_lock_name ORDER BY e.id DESC LIMIT p_limit
$$;

-- For operators: removes lock rows that have been free for longer than p_idle. The table lock keeps tokens in order: an
-- INSERT takes its own table lock before it draws a token, so none was drawn before the row went and used after.
CREATE FUNCTION prune_locks(p_idle interval DEFAULT '1 day') RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '500ms'
AS $$
DECLARE
  ok boolean := require_read_committed();
  n bigint;
BEGIN
  IF p_idle IS NULL OR p_idle < interval '0' THEN
    RAISE EXCEPTION 'idle is %: it must not be negative', coalesce(p_idle::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
  END IF;
  LOCK TABLE locks IN SHARE ROW EXCLUSIVE MODE;
  DELETE FROM locks l USING (
      SELECT i.name FROM locks i
      WHERE i.expires_at <= clock_timestamp() AND coalesce(i.ended_at, i.expires_at) <= clock_timestamp() - p_idle
      FOR UPDATE SKIP LOCKED) idle   -- whoever has locked a row waits for our table lock: never wait for them
    WHERE l.name = idle.name;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;

CREATE FUNCTION prune_events(p_older interval DEFAULT '90 days') RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  n bigint;
BEGIN
  IF p_older IS NULL OR p_older < interval '0' THEN
    RAISE EXCEPTION 'older is %: it must not be negative', coalesce(p_older::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
  END IF;
  DELETE FROM events e WHERE e.at < clock_timestamp() - p_older;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;

-- Rights. Users call functions and own nothing; operators are users who may also break, prune and read the audit. Roles
-- belong to the whole cluster, so another database may create or drop them at this very moment: try again then.
DO $do$
DECLARE
  f text;
BEGIN
  FOREACH f IN ARRAY ARRAY['locks', 'fences', 'events', 'spent_grants', 'installation'] LOOP
    EXECUTE format('REVOKE ALL ON %I FROM PUBLIC', f);
  END LOOP;
  FOREACH f IN ARRAY ARRAY[
      'schema_version()', 'database_id()', 'start_client()', 'check_arguments(text, text, interval, jsonb)',
      'require_read_committed()', 'require_durable_commit()', 'lost_reason(text, bigint, uuid)',
      'raise_lost(text, bigint, text)', 'raise_stale(text, bigint, bigint)', 'microseconds_until(timestamptz)', 'can_check_connection()', 'bound_timeout(text, bigint)', 'fence_commit()',
      'acquire(text, uuid, uuid, text, interval, jsonb, boolean)', 'renew_all(text[], bigint[], uuid[])',
      'renew(text, bigint, uuid)', 'check_lease(text, bigint, uuid)', 'release(text, bigint, uuid)',
      'release_all(text[], bigint[], uuid[])', 'abandon(text, uuid)',
      'break_lock(text, text, text, bigint)', 'fence(text, bigint, uuid, text, boolean, uuid)', 'seal()',
      'record_refusal(text, text, bigint, text)', 'list_locks(text, boolean, text, int)', 'get_lock(text)',
      'list_fences(text)', 'list_events(text, int)', 'prune_locks(interval)', 'prune_events(interval)'] LOOP
    EXECUTE 'REVOKE ALL ON FUNCTION ' || f || ' FROM PUBLIC';
  END LOOP;
  FOR attempt IN 1..100 LOOP
    BEGIN
      IF to_regrole('pglock_user') IS NULL THEN CREATE ROLE pglock_user NOLOGIN; END IF;
      IF to_regrole('pglock_admin') IS NULL THEN CREATE ROLE pglock_admin NOLOGIN IN ROLE pglock_user; END IF;
      EXECUTE format('GRANT USAGE ON SCHEMA %I TO pglock_user, pglock_admin', current_schema());
      GRANT EXECUTE ON FUNCTION
        schema_version(), database_id(), start_client(),
        acquire(text, uuid, uuid, text, interval, jsonb, boolean), renew_all(text[], bigint[], uuid[]),
        renew(text, bigint, uuid), check_lease(text, bigint, uuid), release(text, bigint, uuid),
        release_all(text[], bigint[], uuid[]), abandon(text, uuid),
        fence(text, bigint, uuid, text, boolean, uuid), seal(), record_refusal(text, text, bigint, text),
        list_locks(text, boolean, text, int), get_lock(text), list_fences(text)
        TO pglock_user, pglock_admin;
      GRANT EXECUTE ON FUNCTION
        break_lock(text, text, text, bigint), list_events(text, int), prune_locks(interval), prune_events(interval)
        TO pglock_admin;
      EXIT;
    EXCEPTION
      WHEN duplicate_object OR unique_violation OR undefined_object OR deadlock_detected OR internal_error THEN
        IF attempt = 100 THEN RAISE; END IF;
        PERFORM pg_sleep(0.02 * random());
      WHEN insufficient_privilege THEN
        RAISE EXCEPTION 'user % cannot create the roles pglock_user and pglock_admin', current_user
          USING ERRCODE = 'insufficient_privilege', DETAIL = SQLERRM,
                HINT = 'Let an administrator run: CREATE ROLE pglock_user NOLOGIN; CREATE ROLE pglock_admin NOLOGIN IN ROLE pglock_user;';
    END;
  END LOOP;
END $do$;
