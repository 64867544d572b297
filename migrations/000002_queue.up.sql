-- pglock, schema version 2: the queue, the modes, sessions, and watches; and tokens that ascend across failovers.
--
-- A lock is one row or more: the head, slot 0, which an exclusive lease fills, and slots 1, 2, ... for the leases of
-- readers and of a semaphore's holders. Whatever grants, ends or queues locks the head first, then a slot, then a
-- ticket, then a session; renewals and the check inside COMMIT lock their own row alone.
--
-- More SQLSTATEs of class LK:
--   LK004  the owner of the request holds the lock itself   DETAIL circle=self   (longer circles are told by look)
--   LK010  the lock is in use with another limit

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

ALTER TABLE locks
  ADD COLUMN slot          int  NOT NULL DEFAULT 0,
  ADD COLUMN top_slot      int  NOT NULL DEFAULT 0,     -- of the head: the greatest slot that has a row
  ADD COLUMN mode          text NOT NULL DEFAULT 'exclusive',   -- or shared, limit
  ADD COLUMN capacity      int,                         -- the limit of mode limit
  ADD COLUMN ticket        bigint NOT NULL DEFAULT 0,   -- of the head: the last ticket that was served from it
  ADD COLUMN owner_id      uuid,                        -- who asked, across several locks: for circles of waiters
  ADD COLUMN watched_until timestamptz;                 -- of the head: somebody wants to hear of changes
ALTER TABLE locks DROP CONSTRAINT locks_pkey, ADD CONSTRAINT locks_pkey PRIMARY KEY (name, slot);
-- A CHECK is parsed anew by each statement that writes the table: four of them cost as much as a look-up. The functions,
-- which alone can write, check their arguments.
ALTER TABLE locks DROP CONSTRAINT locks_name_length, DROP CONSTRAINT locks_token_positive;
ALTER TABLE fences DROP CONSTRAINT fences_resource_length;

-- A session is one client: what it waits for counts as long as it says that it is alive.
CREATE TABLE sessions (
  session_id  uuid        PRIMARY KEY,
  holder      text        NOT NULL,
  alive_until timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The queue. A ticket is drawn and written under the head's lock (FOR SHARE is enough), so that whoever holds the head
-- FOR UPDATE sees every ticket that is lower than any to come.
CREATE SEQUENCE ticket_seq AS bigint CACHE 1;
CREATE TABLE waiters (
  name        text COLLATE "C" NOT NULL,
  ticket      bigint      NOT NULL,
  mode        text        NOT NULL,
  capacity    int,
  grant_id    uuid        NOT NULL CONSTRAINT waiters_grant_id_key UNIQUE,
  session_id  uuid        NOT NULL,
  owner_id    uuid,
  nested      boolean     NOT NULL,    -- its owner holds locks already
  holder      text        NOT NULL,
  ttl         interval    NOT NULL,
  metadata    jsonb,
  enqueued_at timestamptz NOT NULL,
  PRIMARY KEY (name, ticket)
);
CREATE INDEX waiters_session ON waiters (session_id, ticket);
CREATE INDEX waiters_owner ON waiters (owner_id);

CREATE OR REPLACE FUNCTION schema_version() RETURNS int
LANGUAGE sql IMMUTABLE PARALLEL SAFE SET search_path FROM CURRENT
AS 'SELECT 2';

-- Helpers, called by functions below alone. They are PL/pgSQL where they have a query: the plan of an SQL function is made
-- anew for each statement that calls it.

-- The timeline that the server writes, which every promotion of a standby changes at once; NULL where the owner of the
-- schema may not see it.
CREATE FUNCTION current_timeline() RETURNS int
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function OR object_not_in_prerequisite_state THEN
  RETURN NULL;
END $$;

ALTER TABLE installation
  ADD COLUMN timeline int,                                -- that the last grant was written on; NULL where it is not visible
  ADD COLUMN epoch    bigint NOT NULL DEFAULT 0,          -- the high bits of tokens
  ADD COLUMN timeline_since timestamptz;                  -- when a grant first noticed this timeline; NULL for the first
UPDATE installation SET timeline = current_timeline();

-- next_token draws the token of a grant, greater than p_above. A standby that is promoted may have lost the sequence's last
-- values along with grants. So the bits from 2^44 up are an epoch, which grows by as much as the timeline does; where a
-- restore or an upgrade has set the timeline back, by all of it. So it is greater on a later timeline, also when the record
-- of the one between was lost. Whoever notices first puts it on record; until that is committed, everybody else reckons the
-- same from the record before, and waits for nobody. Tokens ascend for names that the standby has never heard of, too.
CREATE FUNCTION next_token(p_above bigint) RETURNS bigint
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

-- timeline tells which timeline the server is on and the microseconds since it changed, as far as grants have noticed; 0
-- when none has yet. Both are NULL where it is not visible, and the second where it has never changed.
CREATE FUNCTION timeline(OUT timeline int, OUT since_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  was record;
BEGIN
  SELECT i.timeline, i.timeline_since INTO was FROM installation i;
  timeline.timeline := current_timeline();
  IF timeline.timeline <> was.timeline THEN
    since_us := 0;
  ELSIF timeline.timeline IS NOT NULL AND was.timeline_since IS NOT NULL THEN
    since_us := GREATEST(0, extract(epoch FROM clock_timestamp() - was.timeline_since) * 1000000)::bigint;
  END IF;
END $$;

CREATE FUNCTION check_mode(p_mode text, p_capacity int, p_session_ttl interval) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
  IF p_mode IS NULL OR p_mode NOT IN ('exclusive', 'shared', 'limit') THEN
    RAISE EXCEPTION 'mode is %: it must be exclusive, shared or limit', coalesce(quote_literal(left(p_mode, 40)), 'NULL')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_mode = 'limit' AND (p_capacity IS NULL OR p_capacity NOT BETWEEN 1 AND 1000) THEN
    RAISE EXCEPTION 'limit is %: it must be from 1 to 1000', coalesce(p_capacity::text, 'NULL') USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_mode <> 'limit' AND p_capacity IS NOT NULL THEN
    RAISE EXCEPTION 'limit is % with mode %: it must be NULL', p_capacity, p_mode USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF p_session_ttl IS NULL OR p_session_ttl < interval '100 ms' OR p_session_ttl > interval '24 hours' THEN
    RAISE EXCEPTION 'session ttl is %: it must be from 100 ms to 24 hours', coalesce(p_session_ttl::text, 'NULL')
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  RETURN true;
END $$;

-- When, by the leases of now, a request of this mode could be granted; NULL when it could be now. The queue is not
-- looked at.
CREATE FUNCTION free_at(p_name text, p_mode text, p_capacity int) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN (
    SELECT CASE p_mode
             WHEN 'exclusive' THEN max(l.expires_at)
             WHEN 'shared' THEN max(l.expires_at) FILTER (WHERE l.mode <> 'shared')
             ELSE coalesce(max(l.expires_at) FILTER (WHERE l.mode <> 'limit'), CASE WHEN count(*) >= p_capacity THEN min(l.expires_at) END)
           END
    FROM locks l WHERE l.name = p_name AND l.expires_at > clock_timestamp());
END $$;

CREATE FUNCTION session_alive(p_session_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN EXISTS (SELECT FROM sessions s WHERE s.session_id = p_session_id AND s.alive_until > clock_timestamp());
END $$;

-- The waiter whose turn is next: the lowest ticket of a session that is alive.
CREATE FUNCTION next_waiter(p_name text) RETURNS waiters
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  w waiters%ROWTYPE;
BEGIN
  w.ticket := 0;
  LOOP   -- one by one, so that no plan reads the whole queue
    SELECT * INTO w FROM waiters q WHERE q.name = p_name AND q.ticket > w.ticket ORDER BY q.ticket LIMIT 1;
    EXIT WHEN NOT FOUND OR EXISTS (SELECT FROM sessions s WHERE s.session_id = w.session_id AND s.alive_until > clock_timestamp());
  END LOOP;
  RETURN w;
END $$;

-- What tells a waiter of its grant: digest of the grant ID, token, slot, and the microseconds that are left of the lease.
-- Only who knows the ID can know the digest, so that nobody else can make a client believe that it was granted a lock.
CREATE FUNCTION hint(p_grant_id uuid, p_token bigint, p_slot int, p_left interval) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT encode(sha256(uuid_send(p_grant_id)), 'hex') || ' ' || p_token || ' ' || p_slot || ' ' || (extract(epoch FROM p_left) * 1000000)::bigint $$;

-- touch_session says that the session is alive. It waits for nobody who has locked its row: they say the same.
CREATE FUNCTION touch_session(p_session_id uuid, p_holder text, p_session_ttl interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  until timestamptz;
BEGIN
  SELECT s.alive_until INTO until FROM sessions s WHERE s.session_id = p_session_id;
  IF until IS NULL THEN
    INSERT INTO sessions (session_id, holder, alive_until) VALUES (p_session_id, p_holder, clock_timestamp() + p_session_ttl)
      ON CONFLICT (session_id) DO NOTHING;
  ELSIF until < clock_timestamp() + p_session_ttl * 0.7 THEN
    UPDATE sessions s SET alive_until = clock_timestamp() + p_session_ttl FROM (
        SELECT o.session_id FROM sessions o WHERE o.session_id = p_session_id FOR NO KEY UPDATE SKIP LOCKED) mine
      WHERE s.session_id = mine.session_id;
    -- Now and then, what dead sessions have left behind. A hand-over passes them over anyway.
    WITH dead AS (DELETE FROM sessions s USING (
        SELECT o.session_id FROM sessions o WHERE o.alive_until < clock_timestamp() - interval '1 minute'
        LIMIT 10 FOR UPDATE SKIP LOCKED) o WHERE s.session_id = o.session_id RETURNING s.session_id)
    DELETE FROM waiters q USING (
        SELECT o.grant_id FROM waiters o JOIN dead d ON d.session_id = o.session_id FOR UPDATE OF o SKIP LOCKED) gone
      WHERE q.grant_id = gone.grant_id;
  END IF;
  RETURN true;
END $$;

-- Grants. The caller holds the head FOR UPDATE, has seen that the mode allows it, and whose turn it is.

-- grant_head gives the head to the waiter. p_ended_at is when its holder released it, NULL when it ran out.
CREATE FUNCTION grant_head(w waiters, p_ended_at timestamptz) RETURNS bigint
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

-- grant_slot gives the lowest free slot to the waiter; NULL when the only free one was taken back meanwhile: look again.
CREATE FUNCTION grant_slot(w waiters, OUT token bigint, OUT slot int)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
  was locks%ROWTYPE;
  top int;
BEGIN
  -- A slot whose last transaction is just committing is passed over, unless it is the only one: then it is waited for.
  SELECT * INTO was FROM locks l
    WHERE l.name = w.name AND l.slot > 0 AND (w.capacity IS NULL OR l.slot <= w.capacity) AND l.expires_at <= clock_timestamp()
    ORDER BY l.slot LIMIT 1 FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    SELECT l.top_slot INTO top FROM locks l WHERE l.name = w.name AND l.slot = 0;
    IF top < coalesce(w.capacity, top + 1) THEN
      grant_slot.slot := top + 1;
      UPDATE locks l SET top_slot = top + 1 WHERE l.name = w.name AND l.slot = 0;
      INSERT INTO locks AS l (name, slot, mode, capacity, holder, session_id, grant_id, owner_id, token, ticket, ttl,
                              acquired_at, renewed_at, expires_at, metadata)
        VALUES (w.name, top + 1, w.mode, w.capacity, w.holder, w.session_id, w.grant_id, w.owner_id,
                next_token((SELECT max(o.token) FROM locks o WHERE o.name = w.name)), w.ticket, w.ttl,
                clock_timestamp(), clock_timestamp(), clock_timestamp() + w.ttl, w.metadata)
        RETURNING l.token INTO grant_slot.token;
      RETURN;
    END IF;
    SELECT * INTO was FROM locks l
      WHERE l.name = w.name AND l.slot BETWEEN 1 AND w.capacity AND l.expires_at <= clock_timestamp()
      ORDER BY l.slot LIMIT 1 FOR UPDATE;
    IF NOT FOUND THEN
      RETURN;
    END IF;
  END IF;
  UPDATE locks l SET
    mode = w.mode, capacity = w.capacity, holder = w.holder, session_id = w.session_id, grant_id = w.grant_id, owner_id = w.owner_id,
    token = next_token((SELECT max(o.token) FROM locks o WHERE o.name = w.name)), ticket = w.ticket,
    ttl = w.ttl, acquired_at = clock_timestamp(), renewed_at = clock_timestamp(), expires_at = clock_timestamp() + w.ttl,
    ended_at = NULL, metadata = w.metadata
    WHERE l.name = w.name AND l.slot = was.slot AND l.expires_at <= clock_timestamp()
    RETURNING l.token, l.slot INTO grant_slot.token, grant_slot.slot;
  IF was.expires_at > '-infinity' THEN
    INSERT INTO events (kind, lock_name, token, new_token, holder, actor)
      VALUES ('takeover', w.name, was.token, grant_slot.token, was.holder, w.holder);
  END IF;
END $$;

-- hand_over grants the lock to whom the queue says, for as long as the modes allow: one writer, or many readers. The
-- caller holds the head FOR UPDATE. Waiters of dead sessions lose their tickets. hints are for waiters of p_session_id,
-- handed are the tokens of others, for announce.
CREATE FUNCTION hand_over(p_name text, p_session_id uuid, OUT hints text[], OUT handed bigint[])
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

-- Why the lease (p_name, p_token, p_grant_id) is no longer held; NULL while it is.
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

-- write_ticket queues a request, once. The caller has the head locked; p_served is the head's ticket. Tickets are greater
-- than every ticket that was served, also after a failover that set the sequence back.
CREATE FUNCTION write_ticket(
  p_served bigint, p_name text, p_mode text, p_capacity int, p_grant_id uuid, p_session_id uuid, p_owner_id uuid, p_nested boolean,
  p_holder text, p_ttl interval, p_metadata jsonb, p_session_ttl interval) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  t  bigint := nextval('ticket_seq');
  ok boolean;
BEGIN
  INSERT INTO waiters AS q (name, ticket, mode, capacity, grant_id, session_id, owner_id, nested, holder, ttl, metadata, enqueued_at)
    VALUES (p_name, CASE WHEN t > p_served THEN t ELSE p_served + t END, p_mode, p_capacity, p_grant_id, p_session_id,
            p_owner_id, p_nested, p_holder, p_ttl, p_metadata, clock_timestamp())
    ON CONFLICT (grant_id) DO NOTHING RETURNING q.ticket INTO t;
  IF NOT FOUND THEN
    SELECT q.ticket INTO t FROM waiters q WHERE q.grant_id = p_grant_id;
  ELSIF EXISTS (SELECT FROM spent_grants s WHERE s.grant_id = p_grant_id) THEN
    RAISE EXCEPTION 'grant ID of lock % was given up', quote_literal(p_name) USING ERRCODE = 'LK008', HINT = 'Choose a new grant ID.';
  END IF;
  ok := touch_session(p_session_id, p_holder, p_session_ttl);
  RETURN t;
END $$;

-- refuse_own raises when the owner of a request holds the lock itself.
CREATE FUNCTION refuse_own(p_name text, p_owner_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  t bigint;
BEGIN
  SELECT l.token INTO t FROM locks l WHERE l.name = p_name AND l.owner_id = p_owner_id AND l.expires_at > clock_timestamp() LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'lock % is held by the one who asks for it, with token %', quote_literal(p_name), t
      USING ERRCODE = 'LK004', DETAIL = 'circle=self', HINT = 'Use the lease that is held, or release it first.';
  END IF;
  RETURN true;
END $$;

-- acquire grants p_name to p_grant_id if it is free and nobody is queued. granted=false: who holds it (holder is NULL in
-- the instant in which it is being granted to somebody), and with p_wait a ticket: its place in the queue, and whether it
-- is first, so that it should ask again when remaining_us has passed. No holder and no ticket with p_wait: ask again.
-- The same grant ID again yields the same grant or ticket; p_retry says that an earlier attempt may still be on its way,
-- and waits for it. A refused try without p_wait locks no row, writes nothing, draws no token. handed are tokens that
-- were granted to waiters on the way: give them to announce, in a later transaction.
DROP FUNCTION acquire(text, uuid, uuid, text, interval, jsonb, boolean);
CREATE FUNCTION acquire(
  p_name text, p_grant_id uuid, p_session_id uuid, p_holder text, p_ttl interval,
  p_metadata jsonb DEFAULT NULL, p_retry boolean DEFAULT false,
  p_mode text DEFAULT 'exclusive', p_capacity int DEFAULT NULL, p_wait boolean DEFAULT false,
  p_session_ttl interval DEFAULT '10 s', p_owner_id uuid DEFAULT NULL, p_nested boolean DEFAULT false,
  OUT granted boolean, OUT token bigint, OUT holder text, OUT expires_at timestamptz, OUT remaining_us bigint, OUT slot int,
  OUT ticket bigint, OUT place int, OUT is_first boolean, OUT hints text[], OUT handed bigint[], OUT watched boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  r     locks%ROWTYPE;
  ended timestamptz;     -- when the lease before us ran out, if it was neither released nor broken
  shared boolean := false;  -- the head is locked FOR SHARE
  ok    boolean := require_read_committed() AND check_arguments(p_name, p_holder, p_ttl, p_metadata)
                   AND (p_mode = 'exclusive' AND p_capacity IS NULL AND NOT p_wait OR check_mode(p_mode, p_capacity, p_session_ttl));
BEGIN
  IF p_grant_id IS NULL OR p_session_id IS NULL THEN
    RAISE EXCEPTION 'grant_id and session_id are % and %: they must not be NULL', p_grant_id, p_session_id
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  LOOP
    ended := NULL;
    shared := false;
    -- Lock the free row first and wait for nobody; token and times are drawn while it is ours. A retry waits for the
    -- attempt before it.
    IF p_retry THEN
      SELECT * INTO r FROM locks l
        WHERE l.name = p_name AND l.slot = 0 AND (l.expires_at <= clock_timestamp() OR l.grant_id = p_grant_id) FOR UPDATE;
    ELSE
      SELECT * INTO r FROM locks l
        WHERE l.name = p_name AND l.slot = 0 AND l.top_slot = 0 AND l.expires_at <= clock_timestamp() FOR UPDATE SKIP LOCKED;
    END IF;
    IF r.expires_at <= clock_timestamp() THEN
      IF r.grant_id = p_grant_id THEN
        RAISE EXCEPTION 'grant ID of lock % was used before and its lease has ended', quote_literal(p_name)
          USING ERRCODE = 'LK008', HINT = 'Choose a new grant ID.';
      END IF;
      ended := r.expires_at;
    ELSE
      -- A ticket is written under the row's lock, so that a release comes after it and sees it, or before it and is seen.
      IF p_wait AND p_mode <> 'limit' THEN
        SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.slot = 0 AND l.top_slot = 0 FOR SHARE;
        shared := FOUND;
      END IF;
      IF NOT shared THEN
        SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.slot = 0;
      END IF;
      IF r.grant_id = p_grant_id THEN
        -- Our own earlier attempt was granted. Renewed rather than only read: this commit then waits for the disk and
        -- the standby that the lost answer may not have waited for.
        ok := require_durable_commit();
        SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.slot = 0 FOR NO KEY UPDATE;
        UPDATE locks l SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + l.ttl
          WHERE l.name = p_name AND l.grant_id = p_grant_id AND l.token = r.token AND l.expires_at > clock_timestamp()
          RETURNING true, l.token, l.holder, l.expires_at, microseconds_until(l.expires_at), 0, l.watched_until > clock_timestamp()
          INTO acquire.granted, acquire.token, acquire.holder, acquire.expires_at, acquire.remaining_us, acquire.slot, acquire.watched;
        IF NOT FOUND THEN
          RAISE EXCEPTION 'grant ID of lock % was used before and its lease has ended', quote_literal(p_name)
            USING ERRCODE = 'LK008', HINT = 'Choose a new grant ID.';
        END IF;
        RETURN;
      ELSIF r.name IS NOT NULL AND r.top_slot = 0 AND (shared OR NOT p_wait) THEN
        acquire.granted := false;
        acquire.remaining_us := 0;
        IF r.expires_at > clock_timestamp() THEN          -- else somebody has locked it to be granted it, or it was released
          ok := NOT p_nested OR refuse_own(p_name, p_owner_id);
          acquire.token := r.token;
          acquire.holder := r.holder;
          acquire.expires_at := r.expires_at;
          acquire.remaining_us := microseconds_until(r.expires_at);
          IF p_wait THEN
            acquire.ticket := write_ticket(r.ticket, p_name, p_mode, p_capacity, p_grant_id, p_session_id, p_owner_id, p_nested,
                                           p_holder, p_ttl, p_metadata, p_session_ttl);
            -- Who is far behind need not know how far. That those before it are dead, a look will tell.
            SELECT count(*) + 1 INTO acquire.place FROM (
              SELECT FROM waiters q WHERE q.name = p_name AND q.ticket > r.ticket AND q.ticket < acquire.ticket LIMIT 99) ahead;
            acquire.is_first := acquire.place = 1;
          END IF;
        END IF;
        RETURN;
      END IF;
    END IF;

    IF r.name IS NULL AND (p_mode <> 'exclusive' OR EXISTS (SELECT FROM waiters q WHERE q.name = p_name)) THEN
      INSERT INTO locks (name, holder, session_id, grant_id, token, ttl, acquired_at, renewed_at, expires_at, ended_at)
        VALUES (p_name, '-', gen_random_uuid(), gen_random_uuid(), next_token(0), interval '1 s',
                clock_timestamp(), clock_timestamp(), '-infinity', clock_timestamp())
        ON CONFLICT (name, slot) DO NOTHING;
      CONTINUE;
    END IF;
    IF r.name IS NOT NULL AND (p_mode <> 'exclusive' OR r.top_slot > 0 OR r.expires_at > clock_timestamp() OR ended IS NULL
                               OR EXISTS (SELECT FROM waiters q WHERE q.name = p_name)) THEN
      SELECT * INTO acquire.granted, acquire.token, acquire.holder, acquire.expires_at, acquire.remaining_us, acquire.slot,
                    acquire.ticket, acquire.place, acquire.is_first, acquire.hints, acquire.handed
        FROM acquire_in_turn(p_name, p_grant_id, p_session_id, p_holder, p_ttl, p_metadata, p_mode, p_capacity, p_wait,
                             p_session_ttl, p_owner_id, p_nested, r.expires_at > clock_timestamp());
      CONTINUE WHEN acquire.granted IS NULL;             -- the lock was pruned while we waited for it
      acquire.watched := r.watched_until > clock_timestamp();
      RETURN;
    END IF;

    IF EXISTS (SELECT FROM spent_grants s WHERE s.grant_id = p_grant_id) THEN
      RAISE EXCEPTION 'grant ID of lock % was given up', quote_literal(p_name) USING ERRCODE = 'LK008', HINT = 'Choose a new grant ID.';
    END IF;
    ok := require_durable_commit();
    INSERT INTO locks AS l (name, holder, session_id, grant_id, owner_id, token, ttl, acquired_at, renewed_at, expires_at, metadata)
      VALUES (p_name, p_holder, p_session_id, p_grant_id, p_owner_id,
              coalesce(r.token, next_token(0)),   -- of the row that is there: not used, DO UPDATE draws
              p_ttl, clock_timestamp(), clock_timestamp(), clock_timestamp() + p_ttl, p_metadata)
      ON CONFLICT (name, slot) DO UPDATE SET
        holder = p_holder, session_id = p_session_id, grant_id = p_grant_id, owner_id = p_owner_id,
        token = next_token(l.token),
        ttl = p_ttl, acquired_at = clock_timestamp(), renewed_at = clock_timestamp(),
        expires_at = clock_timestamp() + p_ttl, ended_at = NULL, metadata = p_metadata
        WHERE l.expires_at <= clock_timestamp() AND l.top_slot = 0 AND r.name IS NOT NULL   -- else look who queues for it
      RETURNING true, l.token, l.holder, l.expires_at, microseconds_until(l.expires_at), 0, l.watched_until > clock_timestamp()
      INTO acquire.granted, acquire.token, acquire.holder, acquire.expires_at, acquire.remaining_us, acquire.slot, acquire.watched;
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

-- acquire_in_turn is acquire where there is a queue, or more than one holder, or a wait. It looks without a lock first,
-- so that a refused try writes nothing. granted is NULL when the lock was pruned meanwhile: start over.
CREATE FUNCTION acquire_in_turn(
  p_name text, p_grant_id uuid, p_session_id uuid, p_holder text, p_ttl interval, p_metadata jsonb,
  p_mode text, p_capacity int, p_wait boolean, p_session_ttl interval, p_owner_id uuid, p_nested boolean, p_held boolean,
  OUT granted boolean, OUT token bigint, OUT holder text, OUT expires_at timestamptz, OUT remaining_us bigint, OUT slot int,
  OUT ticket bigint, OUT place int, OUT is_first boolean, OUT hints text[], OUT handed bigint[])
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
  head   locks%ROWTYPE;
  r      locks%ROWTYPE;
  me     waiters%ROWTYPE;
  nxt    waiters%ROWTYPE;
  h      record;
  ok     boolean;
  until  timestamptz;                        -- when it could be granted to whose turn it is
  locked boolean := p_wait AND p_held;       -- there is nothing to grant: look under the head's lock at once
BEGIN
  acquire_in_turn.granted := false;
  acquire_in_turn.remaining_us := 0;
  LOOP
    IF locked THEN
      SELECT * INTO head FROM locks l WHERE l.name = p_name AND l.slot = 0 FOR SHARE;
    ELSE
      SELECT * INTO head FROM locks l WHERE l.name = p_name AND l.slot = 0;
    END IF;
    IF head.name IS NULL THEN                            -- pruned
      acquire_in_turn.granted := NULL;
      RETURN;
    END IF;
    -- Our own earlier attempt may have been granted, through the queue or in a slot: renewed, so that this commit waits
    -- for the disk.
    r := head;
    IF head.top_slot > 0 THEN
      SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.grant_id = p_grant_id;
    END IF;
    IF r.grant_id = p_grant_id THEN
      ok := require_durable_commit();
      UPDATE locks l SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + l.ttl
        WHERE l.name = p_name AND l.token = r.token AND l.grant_id = p_grant_id AND l.expires_at > clock_timestamp()
        RETURNING true, l.token, l.holder, l.expires_at, microseconds_until(l.expires_at), l.slot
        INTO acquire_in_turn.granted, acquire_in_turn.token, acquire_in_turn.holder, acquire_in_turn.expires_at,
             acquire_in_turn.remaining_us, acquire_in_turn.slot;
      IF NOT FOUND THEN
        RAISE EXCEPTION 'grant ID of lock % was used before and its lease has ended', quote_literal(p_name)
          USING ERRCODE = 'LK008', HINT = 'Choose a new grant ID.';
      END IF;
      RETURN;
    END IF;
    ok := NOT p_nested OR refuse_own(p_name, p_owner_id);
    IF p_mode = 'limit' THEN
      SELECT o.capacity INTO h FROM (
          SELECT l.capacity FROM locks l WHERE l.name = p_name AND l.slot > 0 AND l.mode = 'limit' AND l.expires_at > clock_timestamp()
          UNION ALL SELECT q.capacity FROM waiters q WHERE q.name = p_name AND q.mode = 'limit' AND session_alive(q.session_id)) o
        WHERE o.capacity <> p_capacity LIMIT 1;
      IF FOUND THEN
        RAISE EXCEPTION 'limit of lock % is %: it is in use with limit %', quote_literal(p_name), p_capacity, h.capacity
          USING ERRCODE = 'LK010', HINT = 'Every user of a lock must name the same limit.';
      END IF;
    END IF;
    nxt := next_waiter(p_name);
    IF head.expires_at > clock_timestamp() THEN
      until := head.expires_at;                          -- an exclusive lease is in everybody's way
    ELSE
      until := free_at(p_name, coalesce(nxt.mode, p_mode), CASE WHEN nxt.name IS NULL THEN p_capacity ELSE nxt.capacity END);
    END IF;
    EXIT WHEN until IS NOT NULL AND (locked OR NOT p_wait);
    IF until IS NOT NULL THEN
      locked := true;                                    -- and look again
    ELSIF locked THEN
      RETURN;                                            -- released between the looks: ask again, without our lock
    ELSE
      -- It is somebody's turn: take the head, and serve the queue before ourselves.
      PERFORM FROM locks l WHERE l.name = p_name AND l.slot = 0 FOR UPDATE;
      IF NOT FOUND THEN
        acquire_in_turn.granted := NULL;
        RETURN;
      END IF;
      SELECT * INTO h FROM hand_over(p_name, p_session_id);
      hints := h.hints;
      handed := h.handed;
      SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.grant_id = p_grant_id AND l.expires_at > clock_timestamp();
      IF NOT FOUND AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = p_name) AND free_at(p_name, p_mode, p_capacity) IS NULL THEN
        IF EXISTS (SELECT FROM spent_grants s WHERE s.grant_id = p_grant_id) THEN
          RAISE EXCEPTION 'grant ID of lock % was given up', quote_literal(p_name) USING ERRCODE = 'LK008', HINT = 'Choose a new grant ID.';
        END IF;
        me.name := p_name; me.ticket := 0; me.mode := p_mode; me.capacity := p_capacity; me.grant_id := p_grant_id;
        me.session_id := p_session_id; me.owner_id := p_owner_id; me.holder := p_holder; me.ttl := p_ttl; me.metadata := p_metadata;
        ok := require_durable_commit();
        WHILE free_at(p_name, p_mode, p_capacity) IS NULL LOOP   -- a renewal under way may have kept the last free slot
          IF p_mode = 'exclusive' THEN
            PERFORM grant_head(me, NULL);
          ELSE
            PERFORM grant_slot(me);
          END IF;
          SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.grant_id = p_grant_id AND l.expires_at > clock_timestamp();
          EXIT WHEN FOUND;
        END LOOP;
      END IF;
      IF r.name IS NOT NULL THEN
        acquire_in_turn.granted := true;
        acquire_in_turn.token := r.token;
        acquire_in_turn.holder := r.holder;
        acquire_in_turn.expires_at := r.expires_at;
        acquire_in_turn.remaining_us := microseconds_until(r.expires_at);
        acquire_in_turn.slot := r.slot;
        RETURN;
      END IF;
      nxt := next_waiter(p_name);
      head.expires_at := '-infinity';
      EXIT;                                              -- refused or queued, under the head's lock
    END IF;
  END LOOP;

  IF p_wait THEN
    acquire_in_turn.ticket := write_ticket(head.ticket, p_name, p_mode, p_capacity, p_grant_id, p_session_id, p_owner_id, p_nested,
                                           p_holder, p_ttl, p_metadata, p_session_ttl);
    acquire_in_turn.is_first := nxt.ticket IS NULL OR nxt.ticket >= acquire_in_turn.ticket;
    acquire_in_turn.place := 1;
    IF nxt.ticket IS NOT NULL THEN
      SELECT count(*) + 1 INTO acquire_in_turn.place FROM (   -- who is far behind need not know how far
        SELECT FROM waiters q WHERE q.name = p_name AND q.ticket < acquire_in_turn.ticket LIMIT 99) ahead;
    END IF;
  END IF;
  IF head.expires_at > clock_timestamp() THEN
    acquire_in_turn.token := head.token;
    acquire_in_turn.holder := head.holder;
    acquire_in_turn.expires_at := head.expires_at;
    acquire_in_turn.remaining_us := microseconds_until(head.expires_at);
  ELSE
    SELECT l.token, l.holder, l.expires_at INTO acquire_in_turn.token, acquire_in_turn.holder, acquire_in_turn.expires_at
      FROM locks l WHERE l.name = p_name AND l.expires_at > clock_timestamp() ORDER BY l.expires_at DESC LIMIT 1;
    acquire_in_turn.remaining_us := coalesce(microseconds_until(free_at(p_name, p_mode, p_capacity)), 0);
  END IF;
END $$;

CREATE FUNCTION watch_channel(p_name text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT 'pglock_w' || left(encode(sha256(convert_to(p_name, 'UTF8')), 'hex'), 40) $$;

-- announce tells the sessions that were handed the grants with these tokens, and whoever watches the locks; a token of 0
-- is for watchers alone. NOTIFY takes a lock of the whole cluster until its transaction ends: so this is called after
-- the grant, in a transaction of its own that does not wait for the disk.
CREATE FUNCTION announce(p_names text[], p_tokens bigint[]) RETURNS bigint
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

-- announce_next is announce for a release whose answer has not been read yet: it follows in the same pipeline, after the
-- commit, and tells whoever has the exclusive lease that came after p_token, unless it is of the session that speaks.
CREATE FUNCTION announce_next(p_name text, p_token bigint, p_session_id uuid) RETURNS bigint
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

-- look says that the session is alive and tells how its waiters stand: every ticket that is still queued, those that are
-- first with the time until they should ask again, and for those named in p_nested the circle that they close, if there
-- is one and they are its newest.
CREATE FUNCTION look(p_session_id uuid, p_holder text, p_session_ttl interval, p_nested bigint[] DEFAULT '{}')
RETURNS TABLE (ticket bigint, is_first boolean, remaining_us bigint, circle text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND check_arguments('-', p_holder, p_session_ttl, NULL)
                AND touch_session(p_session_id, p_holder, p_session_ttl);
BEGIN
  RETURN QUERY
    WITH mine AS MATERIALIZED (
      SELECT q.ticket, q.name, q.mode, q.capacity FROM waiters q WHERE q.session_id = p_session_id),
    firsts AS MATERIALIZED (   -- next_waiter and free_at, written out: ten times as fast for ten thousand locks
      SELECT n.name, f.ticket FROM (SELECT m.name, min(m.ticket) AS ticket FROM mine m GROUP BY m.name) n
        CROSS JOIN LATERAL (SELECT min(q.ticket) AS ticket FROM waiters q WHERE q.name = n.name AND q.ticket <= n.ticket
                            AND (q.ticket = n.ticket OR EXISTS (
                              SELECT FROM sessions s WHERE s.session_id = q.session_id AND s.alive_until > clock_timestamp()))) f
      WHERE f.ticket = n.ticket)
    SELECT m.ticket, f.ticket IS NOT NULL,
           CASE WHEN f.ticket IS NULL THEN NULL
                WHEN m.mode = 'exclusive' THEN (
                  SELECT GREATEST(0, extract(epoch FROM max(l.expires_at) - clock_timestamp()) * 1000000)::bigint
                  FROM locks l WHERE l.name = m.name AND l.expires_at > clock_timestamp())
                ELSE coalesce(microseconds_until(free_at(m.name, m.mode, m.capacity)), 0) END,
           CASE WHEN m.ticket = ANY (p_nested) THEN find_circle(m.name, m.ticket) END
    FROM mine m LEFT JOIN firsts f ON f.ticket = m.ticket;
END $$;

-- The owners that keep a waiter waiting, and how: those who hold the lock, and those of waiters before it that hold
-- locks themselves. any_of says that one of several is enough to go on, as for a semaphore. Behind a waiter of another
-- mode all holders are in the way, as they are in its way.
CREATE FUNCTION kept_waiting_by(p_name text, p_ticket bigint, p_mode text)
RETURNS TABLE (owner_id uuid, holder text, any_of boolean, queued boolean)
LANGUAGE sql STABLE
AS $$
  SELECT l.owner_id, l.holder, p_mode = 'limit' AND l.mode = 'limit' AND NOT b.behind, false
  FROM locks l, (SELECT EXISTS (SELECT FROM waiters o WHERE o.name = p_name AND o.ticket < p_ticket AND o.mode <> p_mode
                                AND session_alive(o.session_id)) AS behind) b
  WHERE l.name = p_name AND l.expires_at > clock_timestamp() AND NOT (p_mode = 'shared' AND l.mode = 'shared' AND NOT b.behind)
  UNION ALL
  SELECT q.owner_id, q.holder, false, true FROM waiters q
  WHERE q.name = p_name AND q.ticket < p_ticket AND q.nested AND NOT (p_mode = 'shared' AND q.mode = 'shared') AND session_alive(q.session_id)
$$;

-- find_circle tells the circle of owners that wait for each other in which this ticket is the newest, as JSON; NULL when
-- there is none. It is STABLE, and so is what it calls, so that all of it is read in the one snapshot of its caller: steps
-- of different moments could close a circle that never was.
CREATE FUNCTION find_circle(p_name text, p_ticket bigint) RETURNS text
LANGUAGE plpgsql STABLE SET jit = off   -- the planner thinks a recursion worth compiling: 160 ms
AS $$
DECLARE
  start   uuid;
  edges   jsonb := '[]';
  more    jsonb;
  reached uuid[];
  front   uuid[];
  stuck   uuid[];
  before  uuid[];
  way     jsonb;
  seen    uuid[] := '{}';
  circle  text;
BEGIN
  SELECT q.owner_id INTO start FROM waiters q WHERE q.name = p_name AND q.ticket = p_ticket;
  IF start IS NULL THEN
    RETURN NULL;
  END IF;
  -- Every wait that can be reached from here, owner by owner: OFFSET 0 keeps the planner to that order.
  reached := ARRAY[start];
  front := reached;
  LOOP
    SELECT jsonb_agg(jsonb_build_object('from', q.owner_id, 'to', k.owner_id, 'ticket', q.ticket, 'lock', q.name,
                                        'waiter', q.holder, 'holder', k.holder, 'any_of', k.any_of, 'queued', k.queued)),
           array_agg(DISTINCT k.owner_id) FILTER (WHERE NOT k.owner_id = ANY (reached))
      INTO more, front
      FROM unnest(front) f (owner_id)
        CROSS JOIN LATERAL (SELECT w.* FROM waiters w WHERE w.owner_id = f.owner_id AND session_alive(w.session_id) OFFSET 0) q
        CROSS JOIN LATERAL (SELECT w.* FROM kept_waiting_by(q.name, q.ticket, q.mode) w OFFSET 0) k;
    edges := edges || coalesce(more, '[]');
    EXIT WHEN front IS NULL;
    reached := reached || front;
    IF cardinality(reached) > 10000 THEN
      RETURN NULL;
    END IF;
  END LOOP;
  -- Who is stuck: everybody, until it is shown that all that they wait for can go on.
  SELECT array_agg(DISTINCT (e ->> 'from')::uuid) INTO stuck FROM jsonb_array_elements(edges) e;
  LOOP
    before := stuck;
    SELECT array_agg(DISTINCT s.owner_id) INTO stuck FROM (
      SELECT (e ->> 'from')::uuid AS owner_id FROM jsonb_array_elements(edges) e
      GROUP BY e ->> 'from', e ->> 'ticket'
      HAVING bool_or((e ->> 'to')::uuid = ANY (before)) FILTER (WHERE NOT (e ->> 'any_of')::boolean)
          OR bool_and(coalesce((e ->> 'to')::uuid = ANY (before), false)) FILTER (WHERE (e ->> 'any_of')::boolean)) s;
    EXIT WHEN stuck IS NULL OR NOT start = ANY (stuck);
    EXIT WHEN cardinality(stuck) = cardinality(before);
  END LOOP;
  IF stuck IS NULL OR NOT start = ANY (stuck) THEN
    RETURN NULL;
  END IF;
  -- The shortest way from the ticket back to its owner over tickets that are older, breadth first.
  way := jsonb_build_array(jsonb_build_object('at', start, 'path', '[]'::jsonb));
  LOOP
    SELECT jsonb_agg(jsonb_build_object('at', n.b, 'path', n.path)) INTO way FROM (
      SELECT DISTINCT ON (e ->> 'to') e ->> 'to' AS b, w -> 'path' || jsonb_build_array(e) AS path
      FROM jsonb_array_elements(way) w JOIN jsonb_array_elements(edges) e ON e ->> 'from' = w ->> 'at'
      WHERE (e ->> 'to')::uuid = ANY (stuck) AND NOT (e ->> 'to')::uuid = ANY (seen)
        AND CASE WHEN w ->> 'at' = start::text THEN (e ->> 'ticket')::bigint = p_ticket ELSE (e ->> 'ticket')::bigint < p_ticket END
      ORDER BY e ->> 'to', (e ->> 'queued')::boolean) n;
    EXIT WHEN way IS NULL;
    SELECT seen || array_agg((w ->> 'at')::uuid), max((w -> 'path')::text) FILTER (WHERE w ->> 'at' = start::text)
      INTO seen, circle FROM jsonb_array_elements(way) w;
    EXIT WHEN circle IS NOT NULL;
  END LOOP;
  RETURN circle;
END $$;

-- release_lease ends the caller's own lease and hands the lock over to the next in the queue, in one transaction. The row
-- stays. It is locked FOR UPDATE first: an update under that lock counts as a change of the key, so that fence_commit
-- sees the release under REPEATABLE READ too, and it stays HOT, as a changed key would not. synchronous_commit is left
-- alone unless something is granted: only a statement that is its own transaction may turn it off. released is false,
-- and nothing changed, when the lease was not held any more.
CREATE FUNCTION release_lease(
  p_name text, p_token bigint, p_grant_id uuid, p_slot int DEFAULT 0,
  OUT released boolean, OUT hints text[], OUT handed bigint[], OUT watched boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := require_read_committed();
  r  locks%ROWTYPE;
  w  waiters%ROWTYPE;
  t  bigint;
BEGIN
  released := false;
  IF p_slot > 0 THEN
    PERFORM FROM locks l WHERE l.name = p_name AND l.slot = 0 FOR UPDATE;
  END IF;
  SELECT * INTO r FROM locks l
    WHERE l.name = p_name AND l.token = p_token AND l.grant_id = p_grant_id AND l.slot = p_slot FOR UPDATE;
  IF NOT FOUND OR r.expires_at <= clock_timestamp() THEN
    RETURN;
  END IF;
  released := true;
  watched := r.watched_until > clock_timestamp();
  IF p_slot = 0 AND r.top_slot = 0 THEN
    LOOP
      SELECT * INTO w FROM waiters q WHERE q.name = p_name AND q.ticket > r.ticket ORDER BY q.ticket LIMIT 1;
      EXIT WHEN NOT FOUND OR w.mode <> 'exclusive';
      DELETE FROM waiters q WHERE q.name = p_name AND q.ticket = w.ticket
        RETURNING (SELECT s.alive_until > clock_timestamp() FROM sessions s WHERE s.session_id = q.session_id) INTO ok;
      CONTINUE WHEN NOT FOUND OR ok IS NOT TRUE;             -- it left the queue by itself, or is dead
      -- The commonest: one writer after another, one row version.
      ok := require_durable_commit();
      t := grant_head(w, clock_timestamp());
      IF w.session_id = r.session_id THEN
        hints := ARRAY[hint(w.grant_id, t, 0, w.ttl)];
      ELSE
        handed := ARRAY[t];
      END IF;
      RETURN;
    END LOOP;
  END IF;
  UPDATE locks l SET expires_at = '-infinity', ended_at = clock_timestamp() WHERE l.name = p_name AND l.slot = p_slot;
  IF p_slot > 0 OR w.name IS NOT NULL OR r.top_slot > 0 THEN
    SELECT h.hints, h.handed INTO hints, handed FROM hand_over(p_name, r.session_id) h;
  END IF;
  IF p_slot > 0 THEN
    SELECT l.watched_until > clock_timestamp() INTO watched FROM locks l WHERE l.name = p_name AND l.slot = 0;
  END IF;
END $$;

-- release is release_lease for programs without a listener: the next in the queue finds its grant when it looks.
CREATE OR REPLACE FUNCTION release(p_name text, p_token bigint, p_grant_id uuid) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
  SELECT e.released FROM (SELECT coalesce((SELECT l.slot FROM locks l WHERE l.name = p_name AND l.token = p_token), 0) AS slot) s
    CROSS JOIN LATERAL release_lease(p_name, p_token, p_grant_id, s.slot) e
$$;

-- release_all is release_lease for many leases, heads locked in name order; one row for each that it ended.
DROP FUNCTION release_all(text[], bigint[], uuid[]);
CREATE FUNCTION release_all(p_names text[], p_tokens bigint[], p_grant_ids uuid[])
RETURNS TABLE (name text, handed bigint[], watched boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed();
  a  record;
BEGIN
  FOR a IN
    SELECT l.name, l.token, l.grant_id, l.slot FROM unnest(p_names, p_tokens, p_grant_ids) AS g (name, token, grant_id)
      JOIN locks l ON l.name = g.name AND l.token = g.token AND l.grant_id = g.grant_id
    ORDER BY l.name, l.slot
  LOOP
    RETURN QUERY SELECT a.name, e.handed, coalesce(e.watched, false)
      FROM release_lease(a.name, a.token, a.grant_id, a.slot) e WHERE e.released;
  END LOOP;
END $$;

-- renew_all as in version 1, with slots.
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
      SELECT l.name, l.token FROM locks l JOIN asked a ON l.name = a.name AND l.token = a.token AND l.grant_id = a.grant_id
      WHERE l.expires_at > clock_timestamp()
      ORDER BY l.name, l.token FOR NO KEY UPDATE OF l SKIP LOCKED),
    renewed AS (
      UPDATE locks l SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + l.ttl
      FROM held h WHERE l.name = h.name AND l.token = h.token AND l.expires_at > clock_timestamp()
      RETURNING l.name, l.token, l.expires_at)
    SELECT a.name, a.token,
           CASE WHEN r.name IS NULL THEN coalesce(lost_reason(a.name, a.token, a.grant_id), 'busy') ELSE 'renewed' END,
           r.expires_at, microseconds_until(r.expires_at)
    FROM asked a LEFT JOIN renewed r ON r.name = a.name AND r.token = a.token;
END $$;

-- give_back gives up a grant or a place in the queue whose answer nobody waits for any more. It spends the grant ID, so
-- that a request still under way is refused, and ends the lease if it was granted; ended is true when it did. An acquire
-- that had looked before may commit after: it holds the free row or is the first insert of the name, and is waited for
-- by the NEXT call. So call it until it has answered twice.
CREATE FUNCTION give_back(p_name text, p_grant_id uuid, OUT ended boolean, OUT handed bigint[], OUT watched boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := require_read_committed() AND check_arguments(p_name, '-', interval '1 s', NULL);
BEGIN
  IF p_grant_id IS NULL THEN
    RAISE EXCEPTION 'grant_id is NULL: it must not be' USING ERRCODE = 'invalid_parameter_value';
  END IF;
  INSERT INTO spent_grants (grant_id, at) VALUES (p_grant_id, clock_timestamp()) ON CONFLICT (grant_id) DO NOTHING;
  DELETE FROM spent_grants s USING (
      SELECT o.grant_id FROM spent_grants o WHERE o.at < clock_timestamp() - interval '1 hour'
      ORDER BY o.at LIMIT 10 FOR UPDATE SKIP LOCKED) old
    WHERE s.grant_id = old.grant_id;
  IF NOT EXISTS (SELECT FROM locks l WHERE l.name = p_name AND l.slot = 0) THEN
    INSERT INTO locks (name, holder, session_id, grant_id, token, ttl, acquired_at, renewed_at, expires_at, ended_at)
      VALUES (p_name, '-', gen_random_uuid(), gen_random_uuid(), next_token(0), interval '1 s',
              clock_timestamp(), clock_timestamp(), '-infinity', clock_timestamp())
      ON CONFLICT (name, slot) DO NOTHING;            -- waits for a first grant that is about to commit
  END IF;
  PERFORM FROM locks l
    WHERE l.name = p_name AND l.slot = 0 AND (l.expires_at <= clock_timestamp() OR l.grant_id = p_grant_id) FOR UPDATE;
  -- A request that is writing its ticket at this moment is waited for at the unique grant ID.
  INSERT INTO waiters (name, ticket, mode, grant_id, session_id, nested, holder, ttl, enqueued_at)
    VALUES (p_name, -nextval('ticket_seq'), 'exclusive', p_grant_id, gen_random_uuid(), false, '-', interval '1 s', clock_timestamp())
    ON CONFLICT (grant_id) DO NOTHING;
  SELECT e.ended, e.handed, e.watched INTO give_back.ended, give_back.handed, give_back.watched FROM leave_queue(p_name, p_grant_id) e;
END $$;

-- abandon is give_back for programs without a listener, as release is release_lease.
CREATE OR REPLACE FUNCTION abandon(p_name text, p_grant_id uuid) RETURNS boolean
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$ SELECT g.ended FROM give_back(p_name, p_grant_id) g $$;

-- leave_queue takes back a request: its ticket, or the lease that it was granted meanwhile, which goes to the next. The
-- place in the queue, and who holds the lock, are for the one who gives up.
CREATE FUNCTION leave_queue(
  p_name text, p_grant_id uuid,
  OUT ended boolean, OUT handed bigint[], OUT watched boolean, OUT place int, OUT token bigint, OUT holder text, OUT expires_at timestamptz)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
  w waiters%ROWTYPE;
  r locks%ROWTYPE;
  unblocks boolean;
BEGIN
  leave_queue.ended := false;
  -- Others may have been kept waiting by this one alone, readers behind a writer, say: the head comes before the ticket.
  unblocks := EXISTS (SELECT FROM waiters q JOIN waiters o ON o.name = q.name AND o.ticket > q.ticket AND o.mode <> q.mode
                      WHERE q.grant_id = p_grant_id AND q.name = p_name)
    AND EXISTS (SELECT FROM locks l WHERE l.name = p_name AND l.slot = 0 AND l.top_slot > 0 AND l.expires_at <= clock_timestamp());
  IF unblocks THEN
    PERFORM FROM locks l WHERE l.name = p_name AND l.slot = 0 FOR UPDATE;
    unblocks := FOUND;
  END IF;
  DELETE FROM waiters q WHERE q.grant_id = p_grant_id AND q.name = p_name RETURNING * INTO w;   -- waits for a grant under way
  SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.grant_id = p_grant_id AND l.expires_at > clock_timestamp();
  IF FOUND THEN
    SELECT e.released, e.handed || e.own, e.watched INTO leave_queue.ended, leave_queue.handed, leave_queue.watched
      FROM (SELECT released, handed, watched,
                   (SELECT array_agg(split_part(x, ' ', 2)::bigint) FROM unnest(hints) x) AS own
            FROM release_lease(p_name, r.token, p_grant_id, r.slot)) e;
  ELSIF w.ticket > 0 THEN
    SELECT count(*) + 1 INTO leave_queue.place FROM (
      SELECT FROM waiters q WHERE q.name = p_name AND q.ticket < w.ticket LIMIT 9999) ahead;
    IF unblocks THEN
      SELECT h.handed INTO leave_queue.handed FROM hand_over(p_name, NULL) h;
    END IF;
  END IF;
  SELECT l.token, l.holder, l.expires_at INTO leave_queue.token, leave_queue.holder, leave_queue.expires_at
    FROM locks l WHERE l.name = p_name AND l.expires_at > clock_timestamp() ORDER BY l.expires_at DESC LIMIT 1;
END $$;

-- leave ends a wait whose ticket is known.
CREATE FUNCTION leave(
  p_name text, p_grant_id uuid,
  OUT ended boolean, OUT handed bigint[], OUT watched boolean, OUT place int, OUT token bigint, OUT holder text, OUT expires_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := require_read_committed();
BEGIN
  SELECT e.* INTO ended, handed, watched, place, token, holder, expires_at FROM leave_queue(p_name, p_grant_id) e;
END $$;

-- leave_all ends many waits, in name order, and the session with them.
CREATE FUNCTION leave_all(p_session_id uuid, p_names text[], p_grant_ids uuid[])
RETURNS TABLE (name text, handed bigint[], watched boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed();
  a  record;
  known boolean := false;
BEGIN
  FOR a IN SELECT g.name, g.grant_id FROM unnest(p_names, p_grant_ids) AS g (name, grant_id) ORDER BY g.name LOOP
    known := known OR EXISTS (SELECT FROM waiters q WHERE q.grant_id = a.grant_id AND q.session_id = p_session_id);
    RETURN QUERY SELECT a.name, e.handed, coalesce(e.watched, false) FROM leave_queue(a.name, a.grant_id) e
      WHERE e.handed IS NOT NULL OR e.watched;
  END LOOP;
  DELETE FROM sessions s WHERE s.session_id = p_session_id AND known;   -- only for who knows a grant ID of it
END $$;

-- break_lock ends somebody else's lease, draws a new token (without one, a REPEATABLE READ fenced transaction of the old
-- holder would not notice and would commit), and hands the lock over to the next in the queue. p_token, when given, must
-- be the holder's; with several holders it must be given.
DROP FUNCTION break_lock(text, text, text, bigint);
CREATE FUNCTION break_lock(
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

-- bound_transaction ends this transaction in p_ms, whatever holds it up; a lower limit that the user has set stays. Few and
-- large expressions: each is set up anew in every transaction.
CREATE FUNCTION bound_transaction(p_ms bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  IF current_setting('lock_timeout') || current_setting('statement_timeout') || current_setting('idle_in_transaction_session_timeout')
     || current_setting('tcp_user_timeout') || current_setting('client_connection_check_interval')
     || coalesce(current_setting('transaction_timeout', true), '0') = '000000' THEN   -- the commonest: none is set
    RETURN set_config('lock_timeout', p_ms::text, true) || set_config('statement_timeout', p_ms::text, true)
      || set_config('idle_in_transaction_session_timeout', p_ms::text, true) || set_config('tcp_user_timeout', p_ms::text, true)
      || CASE WHEN can_check_connection() THEN set_config('client_connection_check_interval', '1000', true) ELSE '' END
      || CASE WHEN current_setting('transaction_timeout', true) IS NOT NULL THEN set_config('transaction_timeout', (p_ms + 100)::text, true) ELSE '' END
      IS NOT NULL;
  END IF;
  RETURN bound_timeout('lock_timeout', p_ms) AND bound_timeout('statement_timeout', p_ms)
    AND bound_timeout('idle_in_transaction_session_timeout', p_ms) AND bound_timeout('tcp_user_timeout', p_ms)
    AND (NOT can_check_connection() OR bound_timeout('client_connection_check_interval', 1000))
    AND (current_setting('transaction_timeout', true) IS NULL OR bound_timeout('transaction_timeout', p_ms + 100));
END $$;

-- fence as in version 1. The holder of a slot has a fence of its own by default: the lock's name, '#', and the slot.
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

-- fence_commit as in version 1, for the lease with the token, whatever its slot.
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

-- prune_locks as in version 1: a name goes with all its slots, when all of them have been idle and nobody waits.
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
      WHERE i.slot = 0 AND i.expires_at <= clock_timestamp() AND GREATEST(i.ended_at, i.expires_at) <= clock_timestamp() - p_idle
        AND NOT EXISTS (SELECT FROM locks o WHERE o.name = i.name AND o.slot > 0
                        AND (o.expires_at > clock_timestamp() OR GREATEST(o.ended_at, o.expires_at) > clock_timestamp() - p_idle))
        AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = i.name)
      FOR UPDATE SKIP LOCKED) idle   -- whoever has locked a head waits for our table lock: never wait for them
    WHERE l.name = idle.name;
  GET DIAGNOSTICS n = ROW_COUNT;
  RETURN n;
END $$;

-- Views, for everybody who may use locks. Nobody reads a grant ID. A lock with several holders has a row for each.
DROP FUNCTION list_locks(text, boolean, text, int);
DROP FUNCTION get_lock(text);
CREATE FUNCTION describe_locks(p_name text, p_prefix text, p_free boolean, p_after text, p_limit int)
RETURNS TABLE (name text, held boolean, holder text, session_id uuid, token bigint, ttl_us bigint, acquired_at timestamptz,
               renewed_at timestamptz, expires_at timestamptz, ended_at timestamptz, remaining_us bigint, metadata jsonb,
               slot int, mode text, capacity int, waiting bigint)
LANGUAGE sql VOLATILE   -- p_free NULL: ended slots too
AS $$
  SELECT * FROM (SELECT l.name, l.expires_at > clock_timestamp(), l.holder, l.session_id, l.token, (extract(epoch FROM l.ttl) * 1000000)::bigint,
         l.acquired_at, l.renewed_at, nullif(l.expires_at, '-infinity'), CASE WHEN l.expires_at <= clock_timestamp() AND l.ended_at >= l.acquired_at THEN l.ended_at END,
         microseconds_until(l.expires_at), l.metadata, l.slot, l.mode, l.capacity,
         (SELECT count(*) FROM waiters q WHERE q.name = l.name)
  FROM locks l
  WHERE (p_name IS NULL OR l.name = p_name) AND starts_with(l.name, p_prefix) AND l.name > p_after
    AND (p_free IS NULL OR l.expires_at > clock_timestamp()
         OR p_free AND NOT EXISTS (SELECT FROM locks o WHERE o.name = l.name AND (o.expires_at > clock_timestamp() OR o.token > l.token)))
  ORDER BY l.name FETCH FIRST p_limit ROWS WITH TIES) page   -- never half of a lock's holders
  ORDER BY 1, page.slot
$$;

CREATE FUNCTION list_locks(
  p_prefix text DEFAULT '', p_free boolean DEFAULT false, p_after text DEFAULT '', p_limit int DEFAULT 1000)
RETURNS TABLE (name text, held boolean, holder text, session_id uuid, token bigint, ttl_us bigint, acquired_at timestamptz,
               renewed_at timestamptz, expires_at timestamptz, ended_at timestamptz, remaining_us bigint, metadata jsonb,
               slot int, mode text, capacity int, waiting bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$ SELECT * FROM describe_locks(NULL, p_prefix, p_free, p_after, p_limit) $$;

CREATE FUNCTION get_lock(p_name text)
RETURNS TABLE (name text, held boolean, holder text, session_id uuid, token bigint, ttl_us bigint, acquired_at timestamptz,
               renewed_at timestamptz, expires_at timestamptz, ended_at timestamptz, remaining_us bigint, metadata jsonb,
               slot int, mode text, capacity int, waiting bigint)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$ SELECT * FROM describe_locks(p_name, '', true, '', 10000) $$;

-- list_waiters tells the queue in order, of one lock or of all: whom each waits for is the holder for the first whose
-- session is alive, and the waiter before it for the others.
CREATE FUNCTION list_waiters(p_name text DEFAULT '', p_limit int DEFAULT 1000)
RETURNS TABLE (name text, ticket bigint, place bigint, mode text, capacity int, holder text, session_id uuid, alive boolean,
               ttl_us bigint, enqueued_at timestamptz, waiting_us bigint, behind_ticket bigint, behind_holder text, metadata jsonb)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
  SELECT q.name, q.ticket, row_number() OVER (PARTITION BY q.name ORDER BY q.ticket), q.mode, q.capacity, q.holder, q.session_id, q.alive,
         (extract(epoch FROM q.ttl) * 1000000)::bigint, q.enqueued_at,
         GREATEST(0, extract(epoch FROM clock_timestamp() - q.enqueued_at) * 1000000)::bigint,
         b.ticket, coalesce(b.holder, (SELECT l.holder FROM locks l WHERE l.name = q.name AND l.expires_at > clock_timestamp()
                                       ORDER BY l.expires_at DESC LIMIT 1)), q.metadata
  FROM (SELECT w.*, session_alive(w.session_id) AS alive FROM waiters w WHERE (p_name = '' OR w.name = p_name) AND w.ticket > 0
        ORDER BY w.name, w.ticket LIMIT p_limit) q
  LEFT JOIN LATERAL (SELECT p.ticket, p.holder FROM waiters p
                     WHERE p.name = q.name AND p.ticket < q.ticket AND session_alive(p.session_id) ORDER BY p.ticket DESC LIMIT 1) b ON true
  ORDER BY q.name, q.ticket
$$;

-- watch asks to be told of every change of a lock on watch_channel, for so long, and tells its state now. Asking again
-- before the half of that has passed writes nothing.
CREATE FUNCTION watch(p_name text, p_for interval)
RETURNS TABLE (name text, held boolean, holder text, session_id uuid, token bigint, ttl_us bigint, acquired_at timestamptz,
               renewed_at timestamptz, expires_at timestamptz, ended_at timestamptz, remaining_us bigint, metadata jsonb,
               slot int, mode text, capacity int, waiting bigint, channel text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  ok    boolean := require_read_committed() AND check_arguments(p_name, '-', p_for, NULL);
  until timestamptz;
BEGIN
  SELECT l.watched_until INTO until FROM locks l WHERE l.name = p_name AND l.slot = 0;
  IF NOT FOUND THEN
    INSERT INTO locks (name, holder, session_id, grant_id, token, ttl, acquired_at, renewed_at, expires_at, ended_at)
      VALUES (p_name, '-', gen_random_uuid(), gen_random_uuid(), next_token(0), interval '1 s',
              clock_timestamp(), clock_timestamp(), '-infinity', clock_timestamp())
      ON CONFLICT (name, slot) DO NOTHING;
  END IF;
  IF until IS NULL OR until < clock_timestamp() + p_for / 2 THEN
    UPDATE locks l SET watched_until = clock_timestamp() + p_for WHERE l.name = p_name AND l.slot = 0;
  END IF;
  RETURN QUERY SELECT d.*, watch_channel(p_name) FROM describe_locks(p_name, '', NULL, '', 10000) d;
END $$;

-- sweep_waiters removes every ticket and session that has been dead for a minute.
CREATE FUNCTION sweep_waiters() RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  n bigint;
BEGIN
  DELETE FROM waiters q USING (
      SELECT o.grant_id FROM waiters o
      WHERE o.ticket > 0 AND o.enqueued_at < clock_timestamp() - interval '1 minute'
        AND NOT EXISTS (SELECT FROM sessions s WHERE s.session_id = o.session_id AND s.alive_until > clock_timestamp() - interval '1 minute')
      LIMIT 1000 FOR UPDATE SKIP LOCKED) dead
    WHERE q.grant_id = dead.grant_id;
  GET DIAGNOSTICS n = ROW_COUNT;
  DELETE FROM sessions s USING (
      SELECT o.session_id FROM sessions o WHERE o.alive_until < clock_timestamp() - interval '1 minute'
      LIMIT 1000 FOR UPDATE SKIP LOCKED) dead
    WHERE s.session_id = dead.session_id;
  RETURN n;
END $$;

-- Rights, as in version 1.
DO $do$
DECLARE
  f text;
BEGIN
  REVOKE ALL ON waiters, sessions FROM PUBLIC;
  FOR f IN SELECT p.oid::regprocedure::text FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
           WHERE n.nspname = current_schema() AND NOT p.oid = ANY (current_setting('pglock.before')::oid[]) LOOP
    EXECUTE 'REVOKE ALL ON FUNCTION ' || f || ' FROM PUBLIC';
  END LOOP;
  GRANT EXECUTE ON FUNCTION
    acquire(text, uuid, uuid, text, interval, jsonb, boolean, text, int, boolean, interval, uuid, boolean),
    announce(text[], bigint[]), announce_next(text, bigint, uuid), look(uuid, text, interval, bigint[]), release_lease(text, bigint, uuid, int),
    release_all(text[], bigint[], uuid[]), give_back(text, uuid), leave(text, uuid), leave_all(uuid, text[], uuid[]),
    list_locks(text, boolean, text, int), get_lock(text), list_waiters(text, int), watch(text, interval), sweep_waiters(), timeline()
    TO pglock_user, pglock_admin;
  GRANT EXECUTE ON FUNCTION break_lock(text, text, text, bigint) TO pglock_admin;
END $do$;
