-- Back to version 3. A block of tokens that is in use stays one grant, with its last token.

DO $do$
BEGIN
  IF current_schema() IS NULL OR regexp_replace(current_setting('search_path'), '[" ]', '', 'g')
     <> regexp_replace(current_schema(), '[" ]', '', 'g') || ',pg_temp' THEN
    RAISE EXCEPTION 'search_path is "%": it must be the schema of pglock followed by pg_temp', current_setting('search_path')
      USING ERRCODE = 'invalid_schema_name', HINT = 'SET search_path = pglock, pg_temp;';
  END IF;
END $do$;

-- Programs are running, and take these tables in different orders: all of them at once, or none, so that nobody waits for us
-- while we wait for them.
DO $do$
DECLARE
  before text := current_setting('lock_timeout');
BEGIN
  PERFORM set_config('lock_timeout', '100ms', true);
  FOR attempt IN 1..600 LOOP
    BEGIN
      LOCK TABLE locks, fences, waiters, sessions, events IN ACCESS EXCLUSIVE MODE;
      EXIT;
    EXCEPTION WHEN lock_not_available THEN
      IF attempt = 600 THEN
        RAISE;
      END IF;
      PERFORM pg_sleep(0.05 * random());
    END;
  END LOOP;
  PERFORM set_config('lock_timeout', before, true);
END $do$;

DROP FUNCTION acquire_lease(text, uuid, uuid, text, interval, jsonb, boolean, text, int, boolean, interval, uuid, boolean, int);
DROP FUNCTION acquire_many(text[], uuid[], uuid[], uuid, text, interval);
DROP FUNCTION take_over(text, uuid);
DROP FUNCTION acquire_new(text[], uuid[], uuid[], text[], uuid, text, interval, bigint);
DROP FUNCTION acquire_each(text[], uuid[], uuid, text[], interval[], jsonb[], text[], int[], boolean[], interval, uuid[], boolean[], int[]);
DROP FUNCTION release_lease(text, bigint, uuid, int);
DROP FUNCTION release_many(text[], bigint[], uuid[]);
DROP FUNCTION check_leases(text[], bigint[], uuid[]);
DROP FUNCTION renew_leases(text[], bigint[], uuid[], int[]);
DROP FUNCTION own_lease(text, bigint, uuid, uuid);
DROP FUNCTION prune_locks(interval, int, text);
DROP FUNCTION check_batch(int, int, int);
DROP FUNCTION last_of_block(bigint, int);
DROP FUNCTION widen(text, bigint, int);
DROP FUNCTION row_token(text, bigint, uuid);
DROP FUNCTION hint(uuid, bigint, int, interval, int8range);
DROP VIEW token_base;
DROP FUNCTION wal_timeline();

ALTER FUNCTION release_carefully(text, bigint, uuid, int) RENAME TO release_lease;
ALTER FUNCTION release_lease(text, bigint, uuid, int) SECURITY DEFINER SET search_path FROM CURRENT;
GRANT EXECUTE ON FUNCTION release_lease(text, bigint, uuid, int) TO pglock_user, pglock_admin;

CREATE OR REPLACE FUNCTION next_token(p_above bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  line int := current_timeline();
  was  record;
BEGIN
  SELECT i.timeline, i.epoch INTO was FROM installation i;
  IF line <> coalesce(was.timeline, 0) THEN
    was.epoch := LEAST(was.epoch + line - CASE WHEN line > was.timeline THEN was.timeline ELSE 0 END, 524287);
    UPDATE installation i SET timeline = line, epoch = was.epoch, timeline_since = clock_timestamp()
      FROM (SELECT o.one FROM installation o FOR UPDATE SKIP LOCKED) mine
      WHERE i.one = mine.one AND i.timeline IS DISTINCT FROM line;
  END IF;
  RETURN GREATEST((was.epoch << 44) + nextval('fencing_token_seq'), p_above + 1);
END $$;

CREATE OR REPLACE FUNCTION grant_head(w waiters, p_ended_at timestamptz) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  was record;
  got bigint;
BEGIN
  IF p_ended_at IS NULL THEN
    SELECT l.token, l.holder, l.expires_at INTO was FROM locks l WHERE l.name = w.name AND l.slot = 0;
  END IF;
  UPDATE locks l SET
    holder = w.holder, session_id = w.session_id, grant_id = w.grant_id, owner_id = w.owner_id, mode = 'exclusive', capacity = NULL,
    token = next_token(CASE WHEN l.top_slot > 0 THEN (SELECT max(o.token) FROM locks o WHERE o.name = w.name) ELSE l.token END),
    ticket = GREATEST(l.ticket, w.ticket), ttl = w.ttl, acquired_at = clock_timestamp(), renewed_at = clock_timestamp(),
    expires_at = clock_timestamp() + w.ttl, ended_at = p_ended_at, metadata = w.metadata
    WHERE l.name = w.name AND l.slot = 0 RETURNING l.token INTO got;
  IF p_ended_at IS NULL THEN
    IF was.expires_at > '-infinity' THEN
      INSERT INTO events (kind, lock_name, token, new_token, holder, actor) VALUES ('takeover', w.name, was.token, got, was.holder, w.holder);
    END IF;
  END IF;
  RETURN got;
END $$;

CREATE OR REPLACE FUNCTION hand_over(p_name text, p_session_id uuid, OUT hints text[], OUT handed bigint[])
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  ok boolean;
  w  waiters%ROWTYPE;
  g  record;
BEGIN
  LOOP
    SELECT * INTO w FROM waiters q WHERE q.name = p_name ORDER BY q.ticket LIMIT 1;
    EXIT WHEN NOT FOUND;
    ok := session_alive(w.session_id);
    EXIT WHEN ok AND free_at(p_name, w.mode, w.capacity) IS NOT NULL;
    DELETE FROM waiters q WHERE q.name = p_name AND q.ticket = w.ticket;
    CONTINUE WHEN NOT FOUND OR NOT ok;                     -- it left the queue by itself, or is dead
    ok := require_durable_commit();
    SELECT NULL::bigint AS token, 0 AS slot INTO g;
    WHILE g.token IS NULL AND free_at(p_name, w.mode, w.capacity) IS NULL LOOP
      IF w.mode = 'exclusive' THEN
        SELECT grant_head(w, NULL) AS token, 0 AS slot INTO g;
      ELSE
        SELECT * INTO g FROM grant_slot(w);
      END IF;
    END LOOP;
    IF g.token IS NULL THEN                                -- a renewal under way has kept the last free slot
      INSERT INTO waiters VALUES (w.*);
      EXIT;
    END IF;
    IF w.session_id = p_session_id THEN
      hints := hints || hint(w.grant_id, g.token, g.slot, w.ttl);
    ELSE
      handed := handed || g.token;
    END IF;
    EXIT WHEN w.mode = 'exclusive';
  END LOOP;
END $$;

CREATE OR REPLACE FUNCTION announce(p_names text[], p_tokens bigint[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
BEGIN
  RETURN (
    SELECT count(pg_notify(channel, payload)) FROM (
      SELECT 'pglock_' || replace(l.session_id::text, '-', '') AS channel, hint(l.grant_id, l.token, l.slot, l.expires_at - clock_timestamp()) AS payload
      FROM unnest(p_names, p_tokens) AS a (name, token) JOIN locks l ON l.name = a.name AND l.token = a.token
      WHERE l.expires_at > clock_timestamp()
      UNION ALL
      SELECT DISTINCT watch_channel(l.name), '' FROM locks l
      WHERE l.name = ANY (p_names) AND l.slot = 0 AND l.watched_until > clock_timestamp()) told);
END $$;

CREATE OR REPLACE FUNCTION announce_next(p_name text, p_token bigint, p_session_id uuid) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  l locks%ROWTYPE;
  n bigint := 0;
BEGIN
  SELECT * INTO l FROM locks h WHERE h.name = p_name AND h.slot = 0;
  IF l.token > p_token AND l.session_id <> p_session_id AND l.expires_at > clock_timestamp() THEN
    PERFORM pg_notify('pglock_' || replace(l.session_id::text, '-', ''), hint(l.grant_id, l.token, 0, l.expires_at - clock_timestamp()));
    n := 1;
  END IF;
  IF l.watched_until > clock_timestamp() THEN
    PERFORM pg_notify(watch_channel(p_name), '');
  END IF;
  RETURN n;
END $$;

CREATE OR REPLACE FUNCTION lost_reason(p_name text, p_token bigint, p_grant_id uuid) RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  r locks%ROWTYPE;
BEGIN
  SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.token = p_token;
  IF NOT FOUND THEN
    SELECT * INTO r FROM locks l WHERE l.name = p_name ORDER BY (l.grant_id = p_grant_id) DESC, l.token DESC LIMIT 1;
  END IF;
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
  slot  int;
  began timestamptz;
  last  bigint;
  ok    boolean;
  noted text;
BEGIN
  IF res IS NULL OR octet_length(res) NOT BETWEEN 1 AND 512 THEN
    RAISE EXCEPTION 'resource is % bytes long: it must have 1 to 512', coalesce(octet_length(res)::text, 'NULL, not some number of')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_name IS NULL OR p_token IS NULL OR p_token <= 0 OR p_grant_id IS NULL THEN
    RAISE EXCEPTION 'name, token and grant_id are %, % and %: none of them may be NULL, and the token must be positive',
        coalesce(quote_literal(p_name), 'NULL'), coalesce(p_token::text, 'NULL'), CASE WHEN p_grant_id IS NULL THEN 'NULL' ELSE 'given' END
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT l.expires_at, l.slot INTO ends, slot FROM locks l WHERE l.name = p_name AND l.token = p_token AND l.grant_id = p_grant_id;
  IF slot > 0 AND p_resource IS NULL THEN
    res := p_name || '#' || slot;
  END IF;
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
  ok := bound_transaction(microseconds_until(ends) / 1000 + 1);

  began := clock_timestamp();
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

  -- After a wait: a fresh look, by the clock of now. What happens in a moment without one is found inside COMMIT.
  IF clock_timestamp() > began + interval '2 ms' THEN
    SELECT l.expires_at INTO ends FROM locks l WHERE l.name = p_name AND l.token = p_token AND l.grant_id = p_grant_id;
  END IF;
  IF ends IS NULL OR ends <= clock_timestamp() THEN
    PERFORM raise_lost(p_name, p_token, coalesce(lost_reason(p_name, p_token, p_grant_id), 'expired'));
  END IF;
  fence.expires_at := ends;
  fence.remaining_us := microseconds_until(ends);
  noted := set_config('pglock.fenced', fence.xact::text, true);   -- for seal(); a rollback to before takes it back
  IF current_setting('pglock.checked', true) = noted THEN         -- SET CONSTRAINTS ALL IMMEDIATE came before us
    PERFORM seal();
  END IF;
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
  IF current_setting('pglock.together', true) <> '' THEN   -- several leases: all of them, in the order of release_all
    PERFORM FROM jsonb_array_elements_text(current_setting('pglock.together')::jsonb) AS j (resource)
      JOIN fences f ON f.resource = j.resource AND f.fenced_xact = NEW.fenced_xact
      JOIN locks l ON l.name = f.lock_name AND l.token = f.last_token ORDER BY l.name, l.slot FOR KEY SHARE OF l;
    noted := set_config('pglock.together', '', true);
  END IF;
  SELECT l.token, l.grant_id, l.expires_at INTO r FROM locks l WHERE l.name = NEW.lock_name AND l.token = NEW.last_token FOR KEY SHARE;
  IF r.token IS DISTINCT FROM NEW.last_token OR r.grant_id IS DISTINCT FROM NEW.grant_id OR r.expires_at <= clock_timestamp() THEN
    PERFORM raise_lost(NEW.lock_name, NEW.last_token,
                       coalesce(lost_reason(NEW.lock_name, NEW.last_token, NEW.grant_id), 'expired'));
  END IF;
  noted := set_config('pglock.checked', NEW.fenced_xact::text, true);
  RETURN NULL;
END $$;

CREATE OR REPLACE FUNCTION break_lock(
  p_name text, p_reason text, p_actor text, p_token bigint DEFAULT NULL,
  OUT holder text, OUT token bigint, OUT new_token bigint, OUT expires_at timestamptz,
  OUT handed bigint[], OUT watched boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND require_durable_commit() AND check_arguments(p_name, '-', interval '1 s', NULL);
  r locks%ROWTYPE;
  tokens bigint[];
BEGIN
  IF p_reason IS NULL OR p_reason !~ '[^[:space:]]' OR octet_length(p_reason) > 1024 THEN
    RAISE EXCEPTION 'reason is %: it must have 1 to 1024 bytes, not all of them blank', coalesce(quote_literal(left(p_reason, 40)), 'NULL')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_actor IS NULL OR octet_length(p_actor) NOT BETWEEN 1 AND 256 THEN
    RAISE EXCEPTION 'actor is %: it must have 1 to 256 bytes', coalesce(quote_literal(left(p_actor, 40)), 'NULL')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.slot = 0 FOR UPDATE;
  break_lock.watched := r.watched_until > clock_timestamp();
  SELECT array_agg(l.token ORDER BY l.token) INTO tokens FROM locks l WHERE l.name = p_name AND l.expires_at > clock_timestamp();
  IF tokens IS NULL THEN
    RAISE EXCEPTION 'lock % is not held: there is nothing to break', quote_literal(p_name) USING ERRCODE = 'LK006';
  END IF;
  IF NOT p_token = ANY (tokens) THEN
    RAISE EXCEPTION 'lock % is held with token %, not %: nothing was broken', quote_literal(p_name),
        array_to_string(tokens, ', '), p_token
      USING ERRCODE = 'LK006';
  END IF;
  IF p_token IS NULL AND cardinality(tokens) > 1 THEN
    RAISE EXCEPTION 'token is NULL: lock % has % holders, it must be one of their tokens %', quote_literal(p_name),
        cardinality(tokens), array_to_string(tokens, ', ')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.token = coalesce(p_token, tokens[1]) FOR UPDATE;
  IF r.expires_at <= clock_timestamp() THEN
    RAISE EXCEPTION 'lock % is not held: there is nothing to break', quote_literal(p_name) USING ERRCODE = 'LK006';
  END IF;
  UPDATE locks l SET token = next_token((SELECT max(o.token) FROM locks o WHERE o.name = p_name)),
                     expires_at = '-infinity', ended_at = clock_timestamp()
    WHERE l.name = p_name AND l.slot = r.slot RETURNING l.token INTO break_lock.new_token;
  break_lock.holder := r.holder;
  break_lock.token := r.token;
  break_lock.expires_at := r.expires_at;
  INSERT INTO events (kind, lock_name, token, new_token, holder, actor, reason)
    VALUES ('break', p_name, r.token, break_lock.new_token, r.holder, p_actor, p_reason);
  SELECT h.handed INTO break_lock.handed FROM hand_over(p_name, NULL) h;
END $$;

CREATE OR REPLACE FUNCTION check_lease(p_name text, p_token bigint, p_grant_id uuid, OUT expires_at timestamptz, OUT remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION 'a standby cannot tell whether lock % is held', quote_literal(p_name) USING ERRCODE = 'read_only_sql_transaction';
  END IF;
  SELECT l.expires_at, microseconds_until(l.expires_at) INTO check_lease.expires_at, check_lease.remaining_us
    FROM locks l WHERE l.name = p_name AND l.token = p_token AND l.grant_id = p_grant_id;
  IF check_lease.remaining_us IS NULL OR check_lease.remaining_us = 0 THEN
    PERFORM raise_lost(p_name, p_token, coalesce(lost_reason(p_name, p_token, p_grant_id), 'expired'));
  END IF;
END $$;

CREATE OR REPLACE FUNCTION renew(p_name text, p_token bigint, p_grant_id uuid, OUT expires_at timestamptz, OUT remaining_us bigint)
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

CREATE OR REPLACE FUNCTION diagnose() RETURNS TABLE (item text, ok boolean, value text, meaning text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  i    record;
  line int := current_timeline();
BEGIN
  SELECT * INTO i FROM installation;
  RETURN QUERY VALUES
    ('timeline', CASE WHEN NOT pg_is_in_recovery() THEN line IS NOT NULL END,
     CASE WHEN pg_is_in_recovery() THEN 'standby' ELSE coalesce(line::text, 'not visible') END,
     CASE WHEN pg_is_in_recovery() THEN 'Ask the primary.' WHEN line IS NULL THEN 'Lost: a failover that loses commits is not noticed, its tokens may be handed out again, and a grace after it does nothing. '
       || 'Let the owner of the schema execute pg_current_wal_lsn() and pg_walfile_name(pg_lsn).'
     ELSE 'Tokens ascend over a failover that loses commits.' END),
    ('epoch', NULL, i.epoch::text || coalesce(', since ' || to_char(i.timeline_since AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS') || ' UTC', ''),
     'The high bits of new tokens (2^44 and up); it grows with each change of the timeline.'),
    ('token sequence', (SELECT s.seqcache = 1 AND NOT s.seqcycle AND s.seqincrement = 1 FROM pg_sequence s WHERE s.seqrelid = 'fencing_token_seq'::regclass),
     (SELECT format('cache %s, increment %s, %s', s.seqcache, s.seqincrement, CASE WHEN s.seqcycle THEN 'cycles' ELSE 'no cycle' END)
      FROM pg_sequence s WHERE s.seqrelid = 'fencing_token_seq'::regclass),
     'Anything but cache 1, increment 1 and no cycle hands tokens out of order.'),
    ('fsync', current_setting('fsync')::boolean AND current_setting('full_page_writes')::boolean,
     'fsync ' || current_setting('fsync') || ', full_page_writes ' || current_setting('full_page_writes'),
     'With either off, a crash of the machine can lose grants that were answered.'),
    ('synchronous standby', NULL, coalesce(nullif(current_setting('synchronous_standby_names'), ''), 'none'),
     'Without one, a failover may lose the last grants and writes; tokens ascend all the same.'),
    ('client_connection_check_interval', can_check_connection(), CASE WHEN can_check_connection() THEN 'available' ELSE 'not available' END,
     'Without it, a holder that was killed while its statement runs blocks the next at the fence until the statement ends.'),
    ('transaction_timeout', current_setting('server_version_num')::int >= 170000,
     CASE WHEN current_setting('server_version_num')::int >= 170000 THEN 'available' ELSE 'not available before PostgreSQL 17' END,
     'Without it, a fenced transaction that sends one short statement after the other may outlast its lease. It cannot commit.'),
    ('prepared transactions', NOT EXISTS (SELECT FROM pg_prepared_xacts p WHERE p.database = current_database() AND p.prepared < clock_timestamp() - interval '1 minute'),
     (SELECT count(*)::text FROM pg_prepared_xacts p WHERE p.database = current_database() AND p.prepared < clock_timestamp() - interval '1 minute') || ' older than a minute',
     'One that was fenced keeps its lock and its fence for ever, until it is committed or rolled back.'),
    ('oldest transaction', CASE WHEN pg_has_role('pg_read_all_stats', 'USAGE') THEN
        coalesce((SELECT min(a.xact_start) > clock_timestamp() - interval '10 minutes' FROM pg_stat_activity a WHERE a.backend_xmin IS NOT NULL), true) END,
     CASE WHEN NOT pg_has_role('pg_read_all_stats', 'USAGE') THEN 'not visible without pg_read_all_stats' ELSE coalesce((SELECT date_trunc('second', clock_timestamp() - min(a.xact_start))::text FROM pg_stat_activity a WHERE a.backend_xmin IS NOT NULL), 'none') END,
     'One that is open for long makes each renewal a little slower than the one before.'),
    ('notification queue', pg_notification_queue_usage() < 0.5, round(pg_notification_queue_usage()::numeric * 100, 1) || ' % full',
     'When it is full, hints are lost and waiting calls go by looks alone: end the session that does not read.');
  RETURN QUERY
    SELECT 'guard of ' || g.table_name, g.problem IS NULL, g.resource || coalesce('/<' || g.key_column || '>', ''),
           coalesce(g.problem || '. Guard the table again.', 'Every write needs the fence of this resource.') FROM list_guards() g;
END $$;

ALTER TABLE locks SET (fillfactor = 50);
ALTER TABLE locks RESET (autovacuum_vacuum_cost_delay, vacuum_truncate);
ALTER TABLE waiters RESET (autovacuum_vacuum_cost_delay, vacuum_truncate);
ALTER TABLE sessions RESET (vacuum_truncate);
ALTER TABLE waiters DROP COLUMN turns;
ALTER TABLE locks DROP COLUMN block, ADD CONSTRAINT locks_name_token_key UNIQUE (name, token);

CREATE OR REPLACE FUNCTION schema_version() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path FROM CURRENT
AS 'SELECT 3';
