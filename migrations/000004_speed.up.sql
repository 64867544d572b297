-- pglock, schema version 4: short ways for what is done most, many calls in one statement, and grants that carry a block of
-- tokens.
--
-- The short ways decide nothing new. Each tries the commonest case in a few statements under the same locks as before, and
-- leaves everything else to the function of the version before.

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

CREATE OR REPLACE FUNCTION schema_version() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path FROM CURRENT
AS 'SELECT 4';

-- A block of tokens belongs to one grant: the calls of one session take them in turn, without asking the server. token is
-- the greatest of them. A block that does not end with token is of an earlier grant and means nothing.
ALTER TABLE locks ADD COLUMN block int8range;
ALTER TABLE waiters ADD COLUMN turns int NOT NULL DEFAULT 1;   -- how many tokens its grant is to carry

-- Every grant locks its row FOR UPDATE before it changes the token, and that keeps it apart from a committing fenced
-- transaction, which holds it FOR KEY SHARE. The unique key (name, token) was to do that; without it grants are HOT.
ALTER TABLE locks DROP CONSTRAINT locks_name_token_key;

-- Half of a page or more stays free, so that renewals find room in it also when all leases of a page are renewed while
-- something keeps their old versions. Vacuum comes through without pauses, and leaves the file as long as it is: to make it
-- shorter it would lock out everybody.
ALTER TABLE locks SET (fillfactor = 25, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);
ALTER TABLE waiters SET (autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);
ALTER TABLE sessions SET (vacuum_truncate = false);

ALTER FUNCTION release_lease(text, bigint, uuid, int) RENAME TO release_carefully;

-- The timeline that the server writes, for who may see it: that is checked before the body is set up.
CREATE FUNCTION wal_timeline() RETURNS int
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;
END $$;

-- What a number of the sequence is added to, to make a token: NULL when the server is on another timeline than the one on
-- record, or when that is not visible any more. next_token looks after both; it puts NULL on record where it is not visible.
CREATE VIEW token_base AS
  SELECT CASE WHEN pg_is_in_recovery() THEN NULL
              WHEN i.timeline IS NULL THEN i.epoch << 44
              WHEN NOT has_function_privilege('pg_catalog.pg_walfile_name(pg_lsn)'::regprocedure, 'EXECUTE')
                OR NOT has_function_privilege('pg_catalog.pg_current_wal_lsn()'::regprocedure, 'EXECUTE') THEN NULL
              WHEN i.timeline = wal_timeline() THEN i.epoch << 44 END AS base
  FROM installation i;

-- next_token as in version 2. It also puts on record that the timeline is not visible any more.
CREATE OR REPLACE FUNCTION next_token(p_above bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  line int := current_timeline();
  was  record;
BEGIN
  SELECT i.timeline, i.epoch INTO was FROM installation i;
  IF line IS DISTINCT FROM was.timeline THEN
    IF line IS NOT NULL THEN
      was.epoch := LEAST(was.epoch + line - CASE WHEN line > was.timeline THEN was.timeline ELSE 0 END, 524287);
    END IF;
    UPDATE installation i SET timeline = line, epoch = was.epoch, timeline_since = CASE WHEN line IS NULL THEN i.timeline_since ELSE clock_timestamp() END
      FROM (SELECT o.one FROM installation o FOR UPDATE SKIP LOCKED) mine
      WHERE i.one = mine.one AND i.timeline IS DISTINCT FROM line;
  END IF;
  RETURN GREATEST((was.epoch << 44) + nextval('fencing_token_seq'), p_above + 1);
END $$;

-- last_of_block draws as many more tokens as follow p_first without a gap, p_turns in all at most. What others draw in
-- between ends the block: no number is ever in two grants.
CREATE FUNCTION last_of_block(p_first bigint, p_turns int) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN (
    SELECT coalesce(max(d.token) FILTER (WHERE d.token = p_first + d.n), p_first)
    FROM (SELECT (i.epoch << 44) + nextval('fencing_token_seq') AS token, n FROM installation i, generate_series(1, p_turns - 1) n) d);
END $$;

-- widen makes the grant of the head with this one token a block. It answers with the token that is the row's then. The caller
-- has the row locked and has just granted it.
CREATE FUNCTION widen(p_name text, p_token bigint, p_turns int) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  last bigint := last_of_block(p_token, p_turns);
BEGIN
  UPDATE locks l SET block = int8range(p_token, last, '[]'), token = last WHERE l.name = p_name AND l.slot = 0 AND l.token = p_token;
  RETURN last;
END $$;

-- row_token is the token of the row in whose block p_token is; p_token itself where there is none.
CREATE FUNCTION row_token(p_name text, p_token bigint, p_grant_id uuid) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN coalesce((SELECT l.token FROM locks l WHERE l.name = p_name AND l.slot = 0 AND l.grant_id = p_grant_id
                     AND l.block @> p_token AND upper(l.block) = l.token + 1), p_token);
END $$;

-- grant_head as in version 2, with a block of tokens for who asked for one. It answers with the token that is the row's.
CREATE OR REPLACE FUNCTION grant_head(w waiters, p_ended_at timestamptz) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  was   record;
  first bigint;
  got   bigint;
BEGIN
  IF p_ended_at IS NULL THEN
    SELECT l.token, l.holder, l.expires_at INTO was FROM locks l WHERE l.name = w.name AND l.slot = 0;
  END IF;
  first := next_token((SELECT max(o.token) FROM locks o WHERE o.name = w.name));
  got := CASE WHEN w.turns > 1 THEN last_of_block(first, w.turns) ELSE first END;
  UPDATE locks l SET
    holder = w.holder, session_id = w.session_id, grant_id = w.grant_id, owner_id = w.owner_id, mode = 'exclusive', capacity = NULL,
    token = got, block = CASE WHEN w.turns > 1 THEN int8range(first, got, '[]') ELSE l.block END, ticket = GREATEST(l.ticket, w.ticket), ttl = w.ttl, acquired_at = clock_timestamp(), renewed_at = clock_timestamp(),
    expires_at = clock_timestamp() + w.ttl, ended_at = p_ended_at, metadata = w.metadata
    WHERE l.name = w.name AND l.slot = 0;
  IF p_ended_at IS NULL THEN
    IF was.expires_at > '-infinity' THEN
      INSERT INTO events (kind, lock_name, token, new_token, holder, actor) VALUES ('takeover', w.name, was.token, got, was.holder, w.holder);
    END IF;
  END IF;
  RETURN got;
END $$;

-- take_over grants a lock whose lease has run out to the head of its queue, who asks for it: token is NULL, and nothing has
-- changed, where that is not so. It is short because the lock is nobody's until it is done.
CREATE FUNCTION take_over(
  p_name text, p_grant_id uuid, OUT token bigint, OUT first_token bigint, OUT holder text, OUT expires_at timestamptz, OUT watched boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
  w waiters%ROWTYPE;
BEGIN
  PERFORM FROM locks l
    WHERE l.name = p_name AND l.slot = 0 AND l.top_slot = 0 AND l.expires_at > '-infinity' AND l.expires_at <= clock_timestamp()
      AND l.grant_id <> p_grant_id
    FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  DELETE FROM waiters q
    WHERE q.grant_id = p_grant_id AND q.name = p_name AND q.mode = 'exclusive'
      AND q.ticket = (SELECT min(o.ticket) FROM waiters o WHERE o.name = p_name)
    RETURNING q.* INTO w;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  PERFORM grant_head(w, NULL);
  SELECT l.token, l.holder, l.expires_at, l.watched_until > clock_timestamp(), CASE WHEN w.turns > 1 THEN lower(l.block) END
    INTO take_over.token, take_over.holder, take_over.expires_at, take_over.watched, take_over.first_token
    FROM locks l WHERE l.name = p_name AND l.slot = 0;
END $$;

-- acquire_lease grants p_name to p_grant_id if it is free and nobody is queued. granted=false: who holds it (holder is NULL in
-- the instant in which it is being granted to somebody), and with p_wait a ticket: its place in the queue, and whether it
-- is first, so that it should ask again when remaining_us has passed. No holder and no ticket with p_wait: ask again.
-- The same grant ID again yields the same grant or ticket; p_retry says that an earlier attempt may still be on its way,
-- and waits for it. A refused try without p_wait locks no row, writes nothing, draws no token. handed are tokens that
-- were granted to waiters on the way: give them to announce, in a later transaction. With p_turns above 1 the grant carries
-- up to so many tokens, from first_token to token.
CREATE FUNCTION acquire_lease(
  p_name text, p_grant_id uuid, p_session_id uuid, p_holder text, p_ttl interval,
  p_metadata jsonb DEFAULT NULL, p_retry boolean DEFAULT false,
  p_mode text DEFAULT 'exclusive', p_capacity int DEFAULT NULL, p_wait boolean DEFAULT false,
  p_session_ttl interval DEFAULT '10 s', p_owner_id uuid DEFAULT NULL, p_nested boolean DEFAULT false, p_turns int DEFAULT 1,
  OUT granted boolean, OUT token bigint, OUT holder text, OUT expires_at timestamptz, OUT remaining_us bigint, OUT slot int,
  OUT ticket bigint, OUT place int, OUT is_first boolean, OUT hints text[], OUT handed bigint[], OUT watched boolean, OUT first_token bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  -- Arguments that are not plain, or not right, are not looked at here.
  plain boolean := p_mode = 'exclusive' AND p_capacity IS NULL AND p_turns BETWEEN 1 AND 1000 AND p_session_id IS NOT NULL
                   AND octet_length(p_name) BETWEEN 1 AND 512 AND octet_length(p_holder) BETWEEN 1 AND 256
                   AND p_ttl BETWEEN '100 ms' AND '24 hours' AND p_session_ttl BETWEEN '100 ms' AND '24 hours'
                   AND (p_metadata IS NULL OR octet_length(p_metadata::text) <= 16384) AND p_grant_id IS NOT NULL
                   AND current_setting('transaction_isolation') = 'read committed' AND current_setting('synchronous_commit') NOT IN ('off', 'local');
  r     record;
BEGIN
  IF plain AND p_retry AND p_wait AND NOT p_nested THEN
    SELECT true, t.token, t.holder, t.expires_at, microseconds_until(t.expires_at), 0, t.watched, t.first_token
      INTO acquire_lease.granted, acquire_lease.token, acquire_lease.holder, acquire_lease.expires_at, acquire_lease.remaining_us, acquire_lease.slot,
           acquire_lease.watched, acquire_lease.first_token
      FROM take_over(p_name, p_grant_id) t WHERE t.token IS NOT NULL;
    IF FOUND THEN
      RETURN;
    END IF;
  ELSIF plain AND NOT p_retry THEN
    -- One look into the index, from its end: there is the newest version of the row, however many old ones a transaction that
    -- is open for long keeps. The row is locked there if the lock was released.
    SELECT h.token, h.holder, h.expires_at, h.grant_id, h.top_slot, f.at, f.above, f.base INTO r
      FROM (SELECT o.ctid AS at, o.* FROM locks o
            WHERE (o.name, o.slot) >= (p_name, 0) AND (o.name, o.slot) <= (p_name, 0) ORDER BY o.name DESC, o.slot DESC LIMIT 1) h
        LEFT JOIN LATERAL (
          SELECT l.ctid AS at, l.token AS above, (SELECT b.base FROM token_base b) AS base FROM locks l
          WHERE l.ctid = h.at AND h.expires_at = '-infinity' AND l.name = p_name AND l.slot = 0 AND l.top_slot = 0
            AND l.expires_at = '-infinity' AND l.grant_id <> p_grant_id
          FOR UPDATE SKIP LOCKED) f ON true;
    IF r.base IS NOT NULL THEN
      IF p_turns > 1 THEN
        acquire_lease.first_token := GREATEST(r.base + nextval('fencing_token_seq'::regclass), r.above + 1);
        r.above := last_of_block(acquire_lease.first_token, p_turns);
      END IF;
      UPDATE locks l SET
        holder = p_holder, session_id = p_session_id, grant_id = p_grant_id, owner_id = p_owner_id,
        token = CASE WHEN p_turns = 1 THEN GREATEST(r.base + nextval('fencing_token_seq'::regclass), r.above + 1) ELSE r.above END,
        block = CASE WHEN p_turns = 1 THEN l.block ELSE int8range(acquire_lease.first_token, r.above, '[]') END,
        ttl = p_ttl, acquired_at = clock_timestamp(), renewed_at = clock_timestamp(), expires_at = clock_timestamp() + p_ttl,
        ended_at = NULL, metadata = p_metadata
        WHERE l.ctid = r.at
          AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = p_name) AND NOT EXISTS (SELECT FROM spent_grants s WHERE s.grant_id = p_grant_id)
        RETURNING true, l.token, p_holder, l.expires_at, microseconds_until(l.expires_at), 0, l.watched_until > clock_timestamp()
        INTO acquire_lease.granted, acquire_lease.token, acquire_lease.holder, acquire_lease.expires_at, acquire_lease.remaining_us, acquire_lease.slot, acquire_lease.watched;
      IF FOUND THEN
        RETURN;
      END IF;
      acquire_lease.first_token := NULL;
    ELSIF NOT p_wait AND NOT p_nested AND r.top_slot = 0 AND r.expires_at > clock_timestamp() AND r.grant_id <> p_grant_id THEN
      acquire_lease.granted := false;
      acquire_lease.token := r.token;
      acquire_lease.holder := r.holder;
      acquire_lease.expires_at := r.expires_at;
      acquire_lease.remaining_us := microseconds_until(r.expires_at);
      RETURN;
    END IF;
  END IF;

  -- A ticket for a lock that is held, by a session that has been heard of lately. It is written under the row's lock, so that a
  -- release comes after it and sees it, or before it and is seen.
  IF plain AND p_wait AND NOT p_nested AND NOT p_retry THEN
    SELECT l.ticket, l.token, l.holder, l.expires_at INTO r FROM locks l
      WHERE l.name = p_name AND l.slot = 0 AND l.top_slot = 0 AND l.expires_at > clock_timestamp() AND l.grant_id <> p_grant_id
        AND EXISTS (SELECT FROM sessions s WHERE s.session_id = p_session_id AND s.alive_until > clock_timestamp() + p_session_ttl * 0.7)
      FOR SHARE OF l;
    IF FOUND THEN
      INSERT INTO waiters AS q (name, ticket, mode, grant_id, session_id, owner_id, nested, holder, ttl, metadata, enqueued_at, turns)
        SELECT p_name, CASE WHEN n.t > r.ticket THEN n.t ELSE r.ticket + n.t END, p_mode, p_grant_id, p_session_id, p_owner_id, false,
               p_holder, p_ttl, p_metadata, clock_timestamp(), p_turns
        FROM (SELECT nextval('ticket_seq') AS t) n
        WHERE r.expires_at > clock_timestamp()
        ON CONFLICT (grant_id) DO NOTHING RETURNING q.ticket,
          (SELECT count(*) + 1 FROM (SELECT FROM waiters o WHERE o.name = p_name AND o.ticket > r.ticket AND o.ticket < q.ticket LIMIT 99) ahead)
        INTO acquire_lease.ticket, acquire_lease.place;
      IF FOUND THEN
        IF EXISTS (SELECT FROM spent_grants s WHERE s.grant_id = p_grant_id) THEN   -- by whom the ticket may have waited for
          RAISE EXCEPTION 'grant ID of lock % was given up', quote_literal(p_name) USING ERRCODE = 'LK008', HINT = 'Choose a new grant ID.';
        END IF;
        acquire_lease.granted := false;
        acquire_lease.token := r.token;
        acquire_lease.holder := r.holder;
        acquire_lease.expires_at := r.expires_at;
        acquire_lease.remaining_us := microseconds_until(r.expires_at);
        acquire_lease.is_first := acquire_lease.place = 1;
        RETURN;
      END IF;
    END IF;
  END IF;

  IF p_turns IS NULL OR p_turns NOT BETWEEN 1 AND 1000 OR p_turns > 1 AND p_mode <> 'exclusive' THEN
    RAISE EXCEPTION 'turns is %: it must be from 1 to 1000, and 1 unless the mode is exclusive', coalesce(p_turns::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT * INTO acquire_lease.granted, acquire_lease.token, acquire_lease.holder, acquire_lease.expires_at, acquire_lease.remaining_us, acquire_lease.slot,
                acquire_lease.ticket, acquire_lease.place, acquire_lease.is_first, acquire_lease.hints, acquire_lease.handed, acquire_lease.watched
    FROM acquire(p_name, p_grant_id, p_session_id, p_holder, p_ttl, p_metadata, p_retry, p_mode, p_capacity, p_wait,
                           p_session_ttl, p_owner_id, p_nested);
  IF p_turns > 1 AND acquire_lease.granted THEN
    SELECT lower(l.block) INTO acquire_lease.first_token FROM locks l
      WHERE l.name = p_name AND l.slot = 0 AND l.token = acquire_lease.token AND upper(l.block) = l.token + 1;
    IF NOT FOUND THEN
      acquire_lease.first_token := acquire_lease.token;
      acquire_lease.token := widen(p_name, acquire_lease.token, p_turns);
    END IF;
  ELSIF p_turns > 1 AND acquire_lease.ticket IS NOT NULL THEN
    UPDATE waiters q SET turns = p_turns WHERE q.grant_id = p_grant_id;
  END IF;
END $$;

CREATE FUNCTION check_batch(p_length int, p_second int, p_third int) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
  IF p_length IS NULL OR p_length NOT BETWEEN 1 AND 1000 OR p_second IS DISTINCT FROM p_length OR p_third IS DISTINCT FROM p_length THEN
    RAISE EXCEPTION 'the arrays have %, % and % elements: they must have the same number, from 1 to 1000',
        coalesce(p_length, 0), coalesce(p_second, 0), coalesce(p_third, 0) USING ERRCODE = 'invalid_parameter_value';
  END IF;
  RETURN true;
END $$;

-- acquire_new grants locks that are used for the first time, in the order of their names: whoever else uses one of them for the
-- first time is waited for, but for a moment only, as all of the statement wait with it.
CREATE FUNCTION acquire_new(
  p_names text[], p_grant_ids uuid[], p_owner_ids uuid[], p_known text[], p_session_id uuid, p_holder text, p_ttl interval, p_base bigint)
RETURNS TABLE (n bigint, granted boolean, token bigint, holder text, expires_at timestamptz, remaining_us bigint, watched boolean)
LANGUAGE plpgsql VOLATILE SET lock_timeout = '50ms'
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
    INSERT INTO locks AS l (name, holder, session_id, grant_id, owner_id, token, ttl, acquired_at, renewed_at, expires_at)
      SELECT a.name, p_holder, p_session_id, a.grant_id, a.owner_id, p_base + nextval('fencing_token_seq'::regclass), p_ttl,
             clock_timestamp(), clock_timestamp(), clock_timestamp() + p_ttl
      FROM (SELECT * FROM unnest(p_names, p_grant_ids, p_owner_ids) AS a (name, grant_id, owner_id)
            WHERE p_known IS NULL OR NOT a.name = ANY (p_known) ORDER BY a.name COLLATE "C") a
      WHERE octet_length(a.name) BETWEEN 1 AND 512 AND a.grant_id IS NOT NULL
        AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = a.name OFFSET 0) AND NOT EXISTS (SELECT FROM spent_grants s WHERE s.grant_id = a.grant_id OFFSET 0)
      ON CONFLICT (name, slot) DO NOTHING
      RETURNING array_position(p_names, l.name)::bigint, true, l.token, p_holder, l.expires_at, microseconds_until(l.expires_at), false;
END $$;

-- acquire_many is acquire_lease for many locks at once, for requests that are plain: exclusive, without metadata, asked for the
-- first time. It waits for no row lock and grants what is free and not queued for. What it does not answer for is to be
-- asked for with acquire_lease. OFFSET 0 keeps look-ups on the indexes, however small the tables were when the plan was made.
-- A name may be there once. n counts from 1.
CREATE FUNCTION acquire_many(
  p_names text[], p_grant_ids uuid[], p_owner_ids uuid[], p_session_id uuid, p_holder text, p_ttl interval)
RETURNS TABLE (n bigint, granted boolean, token bigint, holder text, expires_at timestamptz, remaining_us bigint, watched boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  known text[];
  held  locks[];
  mine  tid[];
  base  bigint;
  ok    boolean := p_session_id IS NOT NULL AND octet_length(p_holder) BETWEEN 1 AND 256 AND p_ttl BETWEEN '100 ms' AND '24 hours'
                   AND cardinality(p_names) BETWEEN 1 AND 1000 AND cardinality(p_grant_ids) = cardinality(p_names)
                   AND cardinality(p_owner_ids) = cardinality(p_names)
                   AND current_setting('transaction_isolation') = 'read committed' AND current_setting('synchronous_commit') NOT IN ('off', 'local');
BEGIN
  IF ok IS NOT TRUE THEN
    ok := require_read_committed() AND require_durable_commit() AND check_arguments('-', p_holder, p_ttl, NULL)
          AND check_batch(cardinality(p_names), cardinality(p_grant_ids), cardinality(p_owner_ids));
    IF p_session_id IS NULL THEN
      RAISE EXCEPTION 'session_id is NULL: it must not be' USING ERRCODE = 'invalid_parameter_value';
    END IF;
  END IF;
  -- Each name is looked up once. Rows of locks that were released are locked on the way.
  SELECT array_agg(h.name), array_agg(h.row) FILTER (WHERE h.top_slot = 0 AND h.expires_at > '-infinity'),
         array_agg(f.at) FILTER (WHERE f.at IS NOT NULL), (SELECT b.base FROM token_base b) INTO known, held, mine, base
    FROM (SELECT l.ctid AS at, l AS row, l.name, l.top_slot, l.expires_at FROM locks l WHERE l.name = ANY (p_names) AND l.slot = 0 OFFSET 0) h
      LEFT JOIN LATERAL (
        SELECT l.ctid AS at FROM locks l
        WHERE l.ctid = h.at AND h.expires_at = '-infinity' AND l.name = h.name AND l.slot = 0 AND l.top_slot = 0 AND l.expires_at = '-infinity'
        FOR UPDATE SKIP LOCKED) f ON true;
  IF base IS NULL THEN
    RETURN;                                     -- the first grant on a new timeline is made with care
  END IF;
  IF mine IS NOT NULL THEN
    RETURN QUERY
      UPDATE locks l SET
        holder = p_holder, session_id = p_session_id, grant_id = a.grant_id, owner_id = a.owner_id,
        token = GREATEST(base + nextval('fencing_token_seq'::regclass), l.token + 1),
        ttl = p_ttl, acquired_at = clock_timestamp(), renewed_at = clock_timestamp(), expires_at = clock_timestamp() + p_ttl,
        ended_at = NULL, metadata = NULL
      FROM unnest(p_names, p_grant_ids, p_owner_ids) WITH ORDINALITY AS a (name, grant_id, owner_id, n)
      WHERE l.ctid = ANY (mine) AND l.name = a.name AND l.grant_id <> a.grant_id
        AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = a.name OFFSET 0) AND NOT EXISTS (SELECT FROM spent_grants s WHERE s.grant_id = a.grant_id OFFSET 0)
      RETURNING a.n, true, l.token, p_holder, l.expires_at, microseconds_until(l.expires_at), l.watched_until > clock_timestamp();
  END IF;
  IF held IS NOT NULL THEN                      -- who holds the others, for those who do not wait
    RETURN QUERY
      SELECT a.n, false, l.token, l.holder, l.expires_at, microseconds_until(l.expires_at), false
      FROM unnest(held) l JOIN unnest(p_names, p_grant_ids) WITH ORDINALITY AS a (name, grant_id, n) ON a.name = l.name
      WHERE l.expires_at > clock_timestamp() AND l.grant_id <> a.grant_id;
  END IF;
  IF known IS NULL OR cardinality(known) < cardinality(p_names) THEN
    RETURN QUERY SELECT * FROM acquire_new(p_names, p_grant_ids, p_owner_ids, known, p_session_id, p_holder, p_ttl, base);
  END IF;
END $$;

-- hint as in version 2, and where the grant carries a block of tokens the first of them; p_token is the last.
CREATE FUNCTION hint(p_grant_id uuid, p_token bigint, p_slot int, p_left interval, p_block int8range) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT hint(p_grant_id, p_token, p_slot, p_left) || CASE WHEN upper(p_block) = p_token + 1 THEN ' ' || lower(p_block) ELSE '' END $$;

-- hand_over, announce and announce_next as in version 2, with blocks.
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
      hints := hints || hint(w.grant_id, g.token, g.slot, w.ttl, (SELECT l.block FROM locks l WHERE l.name = p_name AND l.slot = g.slot));
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
      SELECT 'pglock_' || replace(l.session_id::text, '-', '') AS channel, hint(l.grant_id, l.token, l.slot, l.expires_at - clock_timestamp(), l.block) AS payload
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
    PERFORM pg_notify('pglock_' || replace(l.session_id::text, '-', ''), hint(l.grant_id, l.token, 0, l.expires_at - clock_timestamp(), l.block));
    n := 1;
  END IF;
  IF l.watched_until > clock_timestamp() THEN
    PERFORM pg_notify(watch_channel(p_name), '');
  END IF;
  RETURN n;
END $$;

-- release_lease ends the caller's own lease and hands the lock over to the next in the queue, in one transaction. The row
-- stays. It is locked FOR UPDATE first: an update under that lock counts as a change of the key, so that fence_commit sees
-- the release under REPEATABLE READ too, and it stays HOT, as a changed key would not; and the queue is looked at by a later
-- statement, so that a ticket that was written before is seen. synchronous_commit is left alone unless something is granted.
-- released is false, and nothing changed, when the lease was not held any more.
CREATE FUNCTION release_lease(
  p_name text, p_token bigint, p_grant_id uuid, p_slot int DEFAULT 0,
  OUT released boolean, OUT hints text[], OUT handed bigint[], OUT watched boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  r     record;
  w     waiters%ROWTYPE;
  first bigint;
  last  bigint;
  ended timestamptz;
BEGIN
  SELECT f.* INTO r
    FROM (SELECT o.ctid AS at FROM locks o
          WHERE (o.name, o.slot) >= (p_name, 0) AND (o.name, o.slot) <= (p_name, 0) ORDER BY o.name DESC, o.slot DESC LIMIT 1) h,
      LATERAL (
        SELECT l.ctid AS at, l.ticket, l.token, l.session_id FROM locks l
        WHERE l.ctid = h.at AND l.name = p_name AND l.token = p_token AND l.grant_id = p_grant_id AND p_slot = 0 AND l.slot = 0 AND l.top_slot = 0
          AND current_setting('transaction_isolation') = 'read committed'
        FOR UPDATE) f;
  IF FOUND THEN
    UPDATE locks l SET expires_at = '-infinity', ended_at = clock_timestamp()
      WHERE l.ctid = r.at AND l.expires_at > clock_timestamp() AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = p_name)
      RETURNING true, l.watched_until > clock_timestamp() INTO released, watched;
    IF FOUND THEN
      RETURN;
    END IF;
    -- The commonest queue: one writer after another.
    IF current_setting('synchronous_commit') NOT IN ('off', 'local') THEN
      DELETE FROM waiters q
        WHERE q.name = p_name AND q.ticket = (SELECT min(o.ticket) FROM waiters o WHERE o.name = p_name AND o.ticket > r.ticket)
          AND q.mode = 'exclusive' AND EXISTS (SELECT FROM sessions s WHERE s.session_id = q.session_id AND s.alive_until > clock_timestamp())
          AND EXISTS (SELECT FROM locks l WHERE l.name = p_name AND l.slot = 0 AND l.expires_at > clock_timestamp())
          AND (SELECT b.base FROM token_base b) IS NOT NULL
        RETURNING q.* INTO w;
      IF FOUND THEN
        ended := clock_timestamp();
        first := GREATEST((SELECT b.base FROM token_base b) + nextval('fencing_token_seq'::regclass), r.token + 1);
        last := CASE WHEN w.turns > 1 THEN last_of_block(first, w.turns) ELSE first END;
        UPDATE locks l SET
          holder = w.holder, session_id = w.session_id, grant_id = w.grant_id, owner_id = w.owner_id, mode = 'exclusive', capacity = NULL,
          token = last, block = CASE WHEN w.turns > 1 THEN int8range(first, last, '[]') ELSE l.block END,
          ticket = w.ticket, ttl = w.ttl, acquired_at = clock_timestamp(), renewed_at = clock_timestamp(),
          expires_at = clock_timestamp() + w.ttl, ended_at = ended, metadata = w.metadata
          WHERE l.name = p_name AND l.slot = 0 RETURNING true, l.watched_until > clock_timestamp() INTO released, watched;
        IF w.session_id = r.session_id THEN
          hints := ARRAY[hint(w.grant_id, last, 0, w.ttl, CASE WHEN w.turns > 1 THEN int8range(first, last, '[]') END)];
        ELSE
          handed := ARRAY[last];
        END IF;
        RETURN;
      END IF;
    END IF;
  END IF;
  SELECT e.released, e.hints, e.handed, e.watched INTO release_lease.released, release_lease.hints, release_lease.handed, release_lease.watched
    FROM release_carefully(p_name, row_token(p_name, p_token, p_grant_id), p_grant_id, p_slot) e;
  IF release_lease.hints IS NOT NULL THEN   -- one that does not tell of its block yet
    SELECT array_agg(CASE WHEN array_length(string_to_array(x, ' '), 1) = 4 AND split_part(x, ' ', 2) = l.token::text AND upper(l.block) = l.token + 1
                          THEN x || ' ' || lower(l.block) ELSE x END) INTO release_lease.hints
      FROM unnest(release_lease.hints) x LEFT JOIN locks l ON l.name = p_name AND l.slot = 0;
  END IF;
END $$;

-- release_many is release_lease for many exclusive leases at once. It waits for no row lock, and releases those whose locks
-- nobody waits for. Those that it does not name are to be released with release_lease. n counts from 1.
CREATE FUNCTION release_many(p_names text[], p_tokens bigint[], p_grant_ids uuid[])
RETURNS TABLE (n bigint, watched boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  mine tid[];
  ok   boolean := cardinality(p_names) BETWEEN 1 AND 1000 AND cardinality(p_tokens) = cardinality(p_names)
                  AND cardinality(p_grant_ids) = cardinality(p_names) AND current_setting('transaction_isolation') = 'read committed';
BEGIN
  IF ok IS NOT TRUE THEN
    ok := require_read_committed() AND check_batch(cardinality(p_names), cardinality(p_tokens), cardinality(p_grant_ids));
  END IF;
  SELECT array_agg(l.at) INTO mine FROM (
    SELECT l.ctid AS at FROM locks l WHERE l.name = ANY (p_names) AND l.slot = 0 AND l.top_slot = 0 AND l.grant_id = ANY (p_grant_ids)
    FOR UPDATE SKIP LOCKED) l;
  IF mine IS NOT NULL THEN
    RETURN QUERY
      UPDATE locks l SET expires_at = '-infinity', ended_at = clock_timestamp()
      FROM unnest(p_names, p_tokens, p_grant_ids) WITH ORDINALITY AS a (name, token, grant_id, n)
      WHERE l.ctid = ANY (mine) AND l.name = a.name AND l.token = a.token AND l.grant_id = a.grant_id
        AND l.expires_at > clock_timestamp() AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = a.name OFFSET 0)
      RETURNING a.n, coalesce(l.watched_until > clock_timestamp(), false);
  END IF;
END $$;

-- acquire_each is acquire_lease for many requests, one after another in the order of their names, so that no two calls wait for
-- each other in a circle. It answers for each; n counts from 1. When one is refused, or must wait for longer
-- than a moment, all are.
CREATE FUNCTION acquire_each(
  p_names text[], p_grant_ids uuid[], p_session_id uuid, p_holders text[], p_ttls interval[], p_metadata jsonb[], p_modes text[],
  p_capacities int[], p_waits boolean[], p_session_ttl interval, p_owner_ids uuid[], p_nested boolean[], p_turns int[])
RETURNS TABLE (n bigint, granted boolean, token bigint, holder text, expires_at timestamptz, remaining_us bigint, slot int,
               ticket bigint, place int, is_first boolean, hints text[], handed bigint[], watched boolean, first_token bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '50ms'
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND check_batch(cardinality(p_names), cardinality(p_grant_ids), cardinality(p_owner_ids))
                AND check_arguments('-', p_holders[1], interval '1 s', NULL) AND check_mode('exclusive', NULL, p_session_ttl);
  a  record;
BEGIN
  IF p_session_id IS NULL THEN
    RAISE EXCEPTION 'session_id is NULL: it must not be' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF true = ANY (p_waits) THEN
    ok := touch_session(p_session_id, p_holders[1], p_session_ttl);   -- before any lock
  END IF;
  FOR a IN
    SELECT * FROM unnest(p_names, p_grant_ids, p_holders, p_ttls, p_metadata, p_modes, p_capacities, p_waits, p_owner_ids, p_nested, p_turns)
      WITH ORDINALITY AS g (name, grant_id, holder, ttl, metadata, mode, capacity, wait, owner_id, nested, turns, n)
    ORDER BY g.name COLLATE "C", g.n
  LOOP
    RETURN QUERY SELECT a.n, e.* FROM acquire_lease(a.name, a.grant_id, p_session_id, a.holder, a.ttl, a.metadata, false, a.mode, a.capacity,
                                              a.wait, p_session_ttl, a.owner_id, a.nested, a.turns) e;
  END LOOP;
END $$;

-- own_lease says whose a lease is, of which the server knew the session alone: for circles of waiters.
CREATE FUNCTION own_lease(p_name text, p_token bigint, p_grant_id uuid, p_owner_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
BEGIN
  UPDATE locks l SET owner_id = p_owner_id WHERE l.name = p_name AND l.slot = 0 AND l.token = p_token AND l.grant_id = p_grant_id;
  RETURN FOUND;
END $$;

-- renew_leases is renew_all for who knows the slots: a lock with many holders is not read for each of them. It is planned
-- for as many leases as there are. A row that moves while it is being locked is 'busy', like one that somebody has locked.
CREATE FUNCTION renew_leases(p_names text[], p_tokens bigint[], p_grant_ids uuid[], p_slots int[])
RETURNS TABLE (name text, token bigint, outcome text, expires_at timestamptz, remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND require_durable_commit();
BEGIN
  RETURN QUERY
    WITH asked AS MATERIALIZED (
      SELECT * FROM unnest(p_names, p_tokens, p_grant_ids, p_slots) AS a (name, token, grant_id, slot)),
    held AS MATERIALIZED (
      SELECT l.ctid AS at FROM asked a JOIN locks l ON l.name = a.name AND l.slot = a.slot
      WHERE l.token = a.token AND l.grant_id = a.grant_id AND l.expires_at > clock_timestamp()
      ORDER BY l.name, l.slot FOR NO KEY UPDATE OF l SKIP LOCKED),
    renewed AS MATERIALIZED (
      UPDATE locks l SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + l.ttl
      FROM held h WHERE l.ctid = h.at AND l.expires_at > clock_timestamp()
      RETURNING l.name, l.token, l.expires_at)
    SELECT r.name, r.token, 'renewed', r.expires_at, microseconds_until(r.expires_at) FROM renewed r
    UNION ALL
    SELECT a.name, a.token, coalesce(lost_reason(a.name, a.token, a.grant_id), 'busy'), NULL::timestamptz, 0::bigint
    FROM asked a WHERE (SELECT count(*) FROM renewed) < cardinality(p_names) AND NOT EXISTS (SELECT FROM renewed r WHERE r.name = a.name AND r.token = a.token);
END $$;

-- check_leases tells how long each of these leases still runs. Those that it does not name are to be asked for with
-- check_lease, which says why. n counts from 1.
CREATE FUNCTION check_leases(p_names text[], p_tokens bigint[], p_grant_ids uuid[])
RETURNS TABLE (n bigint, remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := check_batch(cardinality(p_names), cardinality(p_tokens), cardinality(p_grant_ids));
BEGIN
  IF NOT pg_is_in_recovery() THEN
    RETURN QUERY
      SELECT a.n, microseconds_until(l.expires_at) FROM unnest(p_names, p_tokens, p_grant_ids) WITH ORDINALITY AS a (name, token, grant_id, n)
        JOIN locks l ON l.name = a.name AND l.token = a.token AND l.grant_id = a.grant_id
      WHERE l.expires_at > clock_timestamp();
  END IF;
END $$;

-- check_lease and renew as before, also by a token of a block.
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
  IF NOT FOUND THEN
    SELECT l.expires_at, microseconds_until(l.expires_at) INTO check_lease.expires_at, check_lease.remaining_us
      FROM locks l WHERE l.name = p_name AND l.token = row_token(p_name, p_token, p_grant_id) AND l.grant_id = p_grant_id;
  END IF;
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
  t  bigint := row_token(p_name, p_token, p_grant_id);
BEGIN
  PERFORM FROM locks l WHERE l.name = p_name AND l.token = t AND l.grant_id = p_grant_id FOR NO KEY UPDATE;
  UPDATE locks l SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + l.ttl
    WHERE l.name = p_name AND l.token = t AND l.grant_id = p_grant_id AND l.expires_at > clock_timestamp()
    RETURNING l.expires_at, microseconds_until(l.expires_at) INTO renew.expires_at, renew.remaining_us;
  IF NOT FOUND THEN
    PERFORM raise_lost(p_name, p_token, coalesce(lost_reason(p_name, p_token, p_grant_id), 'expired'));
  END IF;
END $$;

-- Why the lease (p_name, p_token, p_grant_id) is no longer held; NULL while it is. p_token may be any of a block.
CREATE OR REPLACE FUNCTION lost_reason(p_name text, p_token bigint, p_grant_id uuid) RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  r locks%ROWTYPE;
BEGIN
  SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.token = p_token;
  IF NOT FOUND THEN
    SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.slot = 0 AND l.grant_id = p_grant_id
      AND l.block @> p_token AND upper(l.block) = l.token + 1;
    IF FOUND THEN
      r.token := p_token;
    END IF;
  END IF;
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

-- fence as in version 2, with any token of a block.
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
  t     bigint := p_token;   -- the row's
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
  SELECT l.expires_at, l.slot INTO ends, slot FROM locks l WHERE l.name = p_name AND l.token = t AND l.grant_id = p_grant_id;
  IF NOT FOUND THEN
    t := row_token(p_name, p_token, p_grant_id);
    SELECT l.expires_at, l.slot INTO ends, slot FROM locks l WHERE l.name = p_name AND l.token = t AND l.grant_id = p_grant_id;
  END IF;
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
    SELECT l.expires_at INTO ends FROM locks l WHERE l.name = p_name AND l.token = t AND l.grant_id = p_grant_id;
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

-- fence_commit as in version 2, with any token of a block.
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
      JOIN locks l ON l.name = f.lock_name AND l.grant_id = f.grant_id
        AND (l.token = f.last_token OR l.slot = 0 AND l.block @> f.last_token AND upper(l.block) = l.token + 1) ORDER BY l.name, l.slot FOR KEY SHARE OF l;
    noted := set_config('pglock.together', '', true);
  END IF;
  SELECT l.token, l.grant_id, l.expires_at INTO r FROM locks l WHERE l.name = NEW.lock_name AND l.token = NEW.last_token FOR KEY SHARE;
  IF NOT FOUND THEN
    SELECT NEW.last_token AS token, l.grant_id, l.expires_at INTO r FROM locks l
      WHERE l.name = NEW.lock_name AND l.slot = 0 AND l.grant_id = NEW.grant_id AND l.block @> NEW.last_token AND upper(l.block) = l.token + 1
      FOR KEY SHARE;
  END IF;
  IF r.token IS DISTINCT FROM NEW.last_token OR r.grant_id IS DISTINCT FROM NEW.grant_id OR r.expires_at <= clock_timestamp() THEN
    PERFORM raise_lost(NEW.lock_name, NEW.last_token,
                       coalesce(lost_reason(NEW.lock_name, NEW.last_token, NEW.grant_id), 'expired'));
  END IF;
  noted := set_config('pglock.checked', NEW.fenced_xact::text, true);
  RETURN NULL;
END $$;

-- break_lock as in version 2; p_token may be any of a block.
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
  t bigint;                                              -- the row's
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
  t := coalesce((SELECT l.token FROM locks l WHERE l.name = p_name AND l.slot = 0 AND l.block @> p_token AND upper(l.block) = l.token + 1), p_token);
  SELECT array_agg(l.token ORDER BY l.token) INTO tokens FROM locks l WHERE l.name = p_name AND l.expires_at > clock_timestamp();
  IF tokens IS NULL THEN
    RAISE EXCEPTION 'lock % is not held: there is nothing to break', quote_literal(p_name) USING ERRCODE = 'LK006';
  END IF;
  IF NOT t = ANY (tokens) THEN
    RAISE EXCEPTION 'lock % is held with token %, not %: nothing was broken', quote_literal(p_name),
        array_to_string(tokens, ', '), p_token
      USING ERRCODE = 'LK006';
  END IF;
  IF p_token IS NULL AND cardinality(tokens) > 1 THEN
    RAISE EXCEPTION 'token is NULL: lock % has % holders, it must be one of their tokens %', quote_literal(p_name),
        cardinality(tokens), array_to_string(tokens, ', ')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.token = coalesce(t, tokens[1]) FOR UPDATE;
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

-- diagnose as in version 3. It also sees transactions that keep row versions because they have written.
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
        coalesce((SELECT min(a.xact_start) > clock_timestamp() - interval '10 minutes' FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL AND a.datname = current_database()), true) END,
     CASE WHEN NOT pg_has_role('pg_read_all_stats', 'USAGE') THEN 'not visible without pg_read_all_stats' ELSE coalesce((SELECT date_trunc('second', clock_timestamp() - min(a.xact_start))::text FROM pg_stat_activity a WHERE a.backend_xid IS NOT NULL OR a.backend_xmin IS NOT NULL AND a.datname = current_database()), 'none') END,
     'One that is open for long makes each renewal a little slower than the one before: one that has read here, or has written in any database.'),
    ('notification queue', pg_notification_queue_usage() < 0.5, round(pg_notification_queue_usage()::numeric * 100, 1) || ' % full',
     'When it is full, hints are lost and waiting calls go by looks alone: end the session that does not read.');
  RETURN QUERY
    SELECT 'guard of ' || g.table_name, g.problem IS NULL, g.resource || coalesce('/<' || g.key_column || '>', ''),
           coalesce(g.problem || '. Guard the table again.', 'Every write needs the fence of this resource.') FROM list_guards() g;
END $$;

-- prune_locks with a limit is one step of it: at most p_limit names after p_after, in the order of names. It looks for them
-- without a lock, and takes the table's only to remove them: for as long as that takes. Give it next until that is NULL,
-- each time in a transaction of its own.
CREATE FUNCTION prune_locks(p_idle interval, p_limit int, p_after text DEFAULT '', OUT removed bigint, OUT next text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT SET lock_timeout = '100ms' SET enable_seqscan = off SET enable_bitmapscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
DECLARE
  ok    boolean := require_read_committed();
  since timestamptz;
  names text[];
BEGIN
  IF p_idle IS NULL OR p_idle < interval '0' THEN
    RAISE EXCEPTION 'idle is %: it must not be negative', coalesce(p_idle::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_limit IS NULL OR p_limit NOT BETWEEN 1 AND 100000 THEN
    RAISE EXCEPTION 'limit is %: it must be from 1 to 100000', coalesce(p_limit::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
  END IF;
  since := clock_timestamp() - p_idle;
  removed := 0;
  SELECT array_agg(c.name ORDER BY c.name) INTO names FROM (
    SELECT i.name FROM locks i
    WHERE i.name > coalesce(p_after, '') AND i.slot = 0 AND i.expires_at <= since AND GREATEST(i.ended_at, i.expires_at) <= since
    ORDER BY i.name LIMIT p_limit) c;
  IF names IS NULL THEN
    RETURN;
  END IF;
  LOCK TABLE locks IN SHARE ROW EXCLUSIVE MODE;
  DELETE FROM locks l USING (
      SELECT i.name FROM unnest(names) AS c (name) JOIN locks i ON i.name = c.name
      WHERE i.slot = 0 AND i.expires_at <= clock_timestamp() AND GREATEST(i.ended_at, i.expires_at) <= since
        AND NOT EXISTS (SELECT FROM locks o WHERE o.name = i.name AND o.slot > 0
                        AND (o.expires_at > clock_timestamp() OR GREATEST(o.ended_at, o.expires_at) > since))
        AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = i.name)
      FOR UPDATE OF i SKIP LOCKED) idle   -- whoever has locked a head waits for our table lock: never wait for them
    WHERE l.name = idle.name;
  GET DIAGNOSTICS removed = ROW_COUNT;
  IF cardinality(names) = p_limit THEN
    next := names[p_limit];
  END IF;
END $$;

-- release_lease alone calls it now: with its rights, and its path.
ALTER FUNCTION release_carefully(text, bigint, uuid, int) SECURITY INVOKER RESET search_path;

-- Rights, as in version 1.
DO $do$
DECLARE
  f text;
BEGIN
  FOR f IN SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
           WHERE n.nspname = current_schema() AND NOT p.oid = ANY (current_setting('pglock.before')::oid[]) LOOP
    EXECUTE 'REVOKE ALL ON FUNCTION ' || f || ' FROM PUBLIC';
  END LOOP;
  GRANT EXECUTE ON FUNCTION prune_locks(interval, int, text) TO pglock_admin;
  REVOKE ALL ON token_base FROM PUBLIC;
  REVOKE ALL ON FUNCTION release_carefully(text, bigint, uuid, int) FROM pglock_user, pglock_admin;
  GRANT EXECUTE ON FUNCTION
    acquire_lease(text, uuid, uuid, text, interval, jsonb, boolean, text, int, boolean, interval, uuid, boolean, int),
    acquire_many(text[], uuid[], uuid[], uuid, text, interval),
    acquire_each(text[], uuid[], uuid, text[], interval[], jsonb[], text[], int[], boolean[], interval, uuid[], boolean[], int[]),
    release_lease(text, bigint, uuid, int), release_many(text[], bigint[], uuid[]), check_leases(text[], bigint[], uuid[]),
    renew_leases(text[], bigint[], uuid[], int[]), own_lease(text, bigint, uuid, uuid)
    TO pglock_user, pglock_admin;
END $do$;
