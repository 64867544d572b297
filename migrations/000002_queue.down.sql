-- Back to version 1. Waiters lose their tickets and look again; readers and holders of semaphores lose their leases, as
-- version 1 knows exclusive ones alone. The functions below are those of version 1, word for word.

DO $do$
BEGIN
  IF current_schema() IS NULL OR regexp_replace(current_setting('search_path'), '[" ]', '', 'g')
     <> regexp_replace(current_schema(), '[" ]', '', 'g') || ',pg_temp' THEN
    RAISE EXCEPTION 'search_path is "%": it must be the schema of pglock followed by pg_temp', current_setting('search_path')
      USING ERRCODE = 'invalid_schema_name', HINT = 'SET search_path = pglock, pg_temp;';
  END IF;
  -- The rights of functions that are there already, ours or an application's, are left alone.
  PERFORM set_config('pglock.before', coalesce((SELECT array_agg(p.oid) FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
                                                WHERE n.nspname = current_schema()), '{}')::text, true);
END $do$;
-- In the order in which everybody locks them.
LOCK TABLE locks, fences, waiters, sessions IN ACCESS EXCLUSIVE MODE;

CREATE OR REPLACE FUNCTION release(p_name text, p_token bigint, p_grant_id uuid) RETURNS boolean
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

DROP FUNCTION release_lease(text, bigint, uuid, int);
DROP FUNCTION acquire(text, uuid, uuid, text, interval, jsonb, boolean, text, int, boolean, interval, uuid, boolean);
DROP FUNCTION acquire_in_turn(text, uuid, uuid, text, interval, jsonb, text, int, boolean, interval, uuid, boolean, boolean);
DROP FUNCTION announce(text[], bigint[]);
DROP FUNCTION announce_next(text, bigint, uuid);
DROP FUNCTION watch(text, interval);
DROP FUNCTION watch_channel(text);
DROP FUNCTION look(uuid, text, interval, bigint[]);
DROP FUNCTION find_circle(text, bigint);
DROP FUNCTION kept_waiting_by(text, bigint, text);
DROP FUNCTION leave(text, uuid);
DROP FUNCTION leave_all(uuid, text[], uuid[]);
DROP FUNCTION give_back(text, uuid);
DROP FUNCTION leave_queue(text, uuid);
DROP FUNCTION break_lock(text, text, text, bigint);
DROP FUNCTION release_all(text[], bigint[], uuid[]);
DROP FUNCTION sweep_waiters();
DROP FUNCTION list_waiters(text, int);
DROP FUNCTION list_locks(text, boolean, text, int);
DROP FUNCTION get_lock(text);
DROP FUNCTION describe_locks(text, text, boolean, text, int);
DROP FUNCTION refuse_own(text, uuid);
DROP FUNCTION write_ticket(bigint, text, text, int, uuid, uuid, uuid, boolean, text, interval, jsonb, interval);
DROP FUNCTION hint(uuid, bigint, int, interval);
DROP FUNCTION touch_session(uuid, text, interval);
DROP FUNCTION session_alive(uuid);
DROP FUNCTION check_mode(text, int, interval);
DROP FUNCTION free_at(text, text, int);
DROP FUNCTION next_waiter(text);
DROP FUNCTION bound_transaction(bigint);
DROP FUNCTION hand_over(text, uuid);
DROP FUNCTION grant_head(waiters, timestamptz);
DROP FUNCTION grant_slot(waiters);

DROP FUNCTION timeline();
DROP FUNCTION next_token(bigint);
DROP FUNCTION current_timeline();
-- Version 1 knows no epochs: the sequence goes on above every token that was granted in one.
SELECT setval('fencing_token_seq', GREATEST(s.last_value, (i.epoch << 44) + s.last_value), s.is_called) FROM fencing_token_seq s, installation i;
ALTER TABLE installation DROP COLUMN timeline, DROP COLUMN epoch, DROP COLUMN timeline_since;

DROP TABLE waiters, sessions;
DROP SEQUENCE ticket_seq;

-- The head keeps the greatest token that any slot had.
WITH gone AS (DELETE FROM locks WHERE slot > 0 RETURNING name, token),
  greatest_of AS (SELECT name, max(token) AS token FROM gone GROUP BY name)
UPDATE locks l SET token = g.token + 1 FROM greatest_of g WHERE l.name = g.name AND l.slot = 0 AND l.token < g.token;
DELETE FROM fences WHERE octet_length(resource) > 512;   -- of slots that version 1 cannot name
ALTER TABLE locks ADD CONSTRAINT locks_name_length CHECK (octet_length(name) BETWEEN 1 AND 512),
  ADD CONSTRAINT locks_token_positive CHECK (token > 0);
ALTER TABLE fences ADD CONSTRAINT fences_resource_length CHECK (octet_length(resource) BETWEEN 1 AND 512);
ALTER TABLE locks DROP CONSTRAINT locks_pkey;
ALTER TABLE locks DROP COLUMN slot, DROP COLUMN top_slot, DROP COLUMN mode, DROP COLUMN capacity, DROP COLUMN ticket,
  DROP COLUMN owner_id, DROP COLUMN watched_until, ADD CONSTRAINT locks_pkey PRIMARY KEY (name);

CREATE OR REPLACE FUNCTION schema_version() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path FROM CURRENT
AS 'SELECT 1';

CREATE OR REPLACE FUNCTION lost_reason(p_name text, p_token bigint, p_grant_id uuid) RETURNS text
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

CREATE OR REPLACE FUNCTION renew_all(p_names text[], p_tokens bigint[], p_grant_ids uuid[])
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

CREATE OR REPLACE FUNCTION abandon(p_name text, p_grant_id uuid) RETURNS boolean
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

CREATE OR REPLACE FUNCTION fence(
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

CREATE OR REPLACE FUNCTION fence_commit() RETURNS trigger
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

CREATE OR REPLACE FUNCTION prune_locks(p_idle interval DEFAULT '1 day') RETURNS bigint
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

DO $do$
DECLARE
  f text;
BEGIN
  FOR f IN SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
           WHERE n.nspname = current_schema() AND NOT p.oid = ANY (current_setting('pglock.before')::oid[]) LOOP
    EXECUTE 'REVOKE ALL ON FUNCTION ' || f || ' FROM PUBLIC';
  END LOOP;
  GRANT EXECUTE ON FUNCTION acquire(text, uuid, uuid, text, interval, jsonb, boolean), release_all(text[], bigint[], uuid[]), list_locks(text, boolean, text, int), get_lock(text) TO pglock_user, pglock_admin;
  GRANT EXECUTE ON FUNCTION break_lock(text, text, text, bigint) TO pglock_admin;
END $do$;
