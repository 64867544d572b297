-- Acquire. Locks are taken in one order everywhere: a session, then a lock's head, then its slots, then its tickets, then
-- the record of the installation; several locks in the byte order of their names. Renewals and the check inside COMMIT
-- lock the row of their lease alone.

-- What an acquire answers: the grant, or who holds the lock and the place in its queue.
CREATE TYPE lease_answer AS (
  granted      boolean,
  token        bigint,       -- of the grant, of a block the last; else of who holds the lock
  first_token  bigint,       -- of the grant
  slot         int,          -- of the grant
  remaining_us bigint,       -- of the grant; else until it makes sense to ask again for whose turn is next
  holder       text,         -- who holds the lock; NULL while it is being granted or committed
  expires_at   timestamptz,
  ticket       bigint,       -- the place in the queue, when there is one
  place        int,          -- counted up to 100
  is_first     boolean,
  hints        text[],       -- to waiters of this session, what was granted to them on the way
  handed       int[],        -- slots that were granted to waiters of other sessions on the way: give them to announce
  watched      boolean       -- somebody watches the lock: announce it
);

-- check_request refuses a request that breaks a rule.
CREATE FUNCTION check_request(w waiters, p_session_ttl interval) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  ok boolean := has_bytes('name', w.name, 512) AND has_bytes('holder', w.holder, 256) AND is_ttl('ttl', w.ttl)
                AND is_ttl('session ttl', p_session_ttl);
BEGIN
  IF w.metadata IS NOT NULL AND octet_length(w.metadata::text) > 16384 THEN
    RAISE EXCEPTION 'metadata is % bytes long as jsonb: it must have at most 16384', octet_length(w.metadata::text)
      USING ERRCODE = 'invalid_parameter_value';
  END IF;
  IF w.grant_id IS NULL OR w.session_id IS NULL THEN
    RETURN refuse(CASE WHEN w.grant_id IS NULL THEN 'grant_id' ELSE 'session_key' END, NULL, 'be a UUID');
  END IF;
  IF w.mode IS NULL OR w.mode NOT IN ('exclusive', 'shared', 'limit') THEN
    RETURN refuse('mode', quote_literal(left(w.mode, 40)), 'be exclusive, shared or limit');
  END IF;
  IF (w.mode = 'limit') <> (w.capacity IS NOT NULL) OR w.capacity NOT BETWEEN 1 AND 1000 THEN
    RETURN refuse('limit', coalesce(w.capacity::text, 'NULL') || ' with mode ' || w.mode,
                  'be from 1 to 1000 with mode limit, else NULL');
  END IF;
  IF w.turns IS NULL OR w.turns NOT BETWEEN 1 AND 1000 OR w.turns > 1 AND w.mode <> 'exclusive' THEN
    RETURN refuse('turns', w.turns::text, 'be from 1 to 1000, and 1 unless the mode is exclusive');
  END IF;
  RETURN true;
END $$;

-- acquire_lease grants p_name to p_grant_id if it is free and nobody queues for it. granted false: who holds it, and with
-- p_wait a ticket. The same grant ID again yields the same grant or ticket; p_retry says that an earlier attempt may still
-- be on its way, and waits for it. Without p_wait and p_retry it waits for nobody, and a refused one locks no row, writes
-- nothing and draws no token. With them, whoever decides about the lock at the moment is waited for, a second at most: 55P03. With p_turns above 1 the grant carries up to so many tokens, from first_token to token.
CREATE FUNCTION acquire_lease(
  p_name text, p_grant_id uuid, p_session_key uuid, p_holder text, p_ttl interval,
  p_metadata jsonb DEFAULT NULL, p_retry boolean DEFAULT false,
  p_mode text DEFAULT 'exclusive', p_capacity int DEFAULT NULL, p_wait boolean DEFAULT false,
  p_session_ttl interval DEFAULT '10 s', p_owner_id uuid DEFAULT NULL, p_nested boolean DEFAULT false,
  p_turns int DEFAULT 1) RETURNS lease_answer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '1s'
AS $$
DECLARE
  w  waiters := ROW(p_name, 0, p_mode, p_capacity, p_grant_id, session_of(p_session_key), p_owner_id, p_nested,
                    p_holder, p_ttl, p_metadata, p_turns, NULL);
  ok boolean := require_read_committed() AND check_request(w, p_session_ttl);
BEGIN
  RETURN acquire_one(w, p_retry, p_wait, p_session_ttl);
END $$;

-- acquire_leases is acquire_lease for many requests of a session, in the byte order of their names. n counts from 1. When
-- one is refused, or would have to wait for longer than a moment, all are, and nothing was done.
CREATE FUNCTION acquire_leases(
  p_names text[], p_grant_ids uuid[], p_session_key uuid, p_holders text[], p_ttls interval[], p_metadata jsonb[],
  p_retries boolean[], p_modes text[], p_capacities int[], p_waits boolean[], p_session_ttl interval, p_owner_ids uuid[],
  p_nested boolean[], p_turns int[])
RETURNS TABLE (n bigint, answer lease_answer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '50ms'
AS $$
#variable_conflict use_column
DECLARE
  me uuid := session_of(p_session_key);
  ok boolean := require_read_committed()
    AND is_batch(cardinality(p_names), cardinality(p_grant_ids), cardinality(p_holders), cardinality(p_ttls),
                 cardinality(p_metadata), cardinality(p_retries), cardinality(p_modes), cardinality(p_capacities),
                 cardinality(p_waits), cardinality(p_owner_ids), cardinality(p_nested), cardinality(p_turns));
  a  record;
BEGIN
  IF true = ANY (p_waits) THEN
    ok := (me IS NOT NULL OR refuse('session_key', NULL, 'be a UUID')) AND has_bytes('holder', p_holders[1], 256)
      AND is_ttl('session ttl', p_session_ttl) AND touch_session(me, p_holders[1], p_session_ttl);
  END IF;
  FOR a IN
    SELECT g.n, ROW(g.name, 0, g.mode, g.capacity, g.grant_id, me, g.owner_id, g.nested, g.holder, g.ttl, g.metadata,
                    g.turns, NULL)::waiters AS w, g.retry, g.wait
    FROM unnest(p_names, p_grant_ids, p_holders, p_ttls, p_metadata, p_retries, p_modes, p_capacities, p_waits, p_owner_ids,
                p_nested, p_turns)
      WITH ORDINALITY AS g (name, grant_id, holder, ttl, metadata, retry, mode, capacity, wait, owner_id, nested, turns, n)
    ORDER BY g.name COLLATE "C", g.n
  LOOP
    ok := check_request(a.w, p_session_ttl);
    acquire_leases.n := a.n;
    acquire_leases.answer := acquire_one(a.w, a.retry, a.wait, p_session_ttl);
    RETURN NEXT;
  END LOOP;
END $$;

-- acquire_one looks at the head once, from the end of the index: the newest version of a row lies there, however many old
-- ones an open transaction keeps. In the same look it locks a head that was released, that nobody queues for, that has no
-- slots, and of which no grant ID was given up lately; all of that is asked of the version that is locked. Such a lock is
-- granted here, a lock that was never used likewise. Everything else is decided under the head's lock, in turn.
CREATE FUNCTION acquire_one(w waiters, p_retry boolean, p_wait boolean, p_session_ttl interval) RETURNS lease_answer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  a lease_answer;
  r record;
BEGIN
  SELECT h.*, f.at AS free_at, f.token AS above INTO r
    FROM (SELECT o.ctid AS at, o.token, o.holder, o.expires_at, o.grant_id, o.limit_named FROM locks o
          WHERE (o.name, o.slot) >= (w.name, 0) AND (o.name, o.slot) <= (w.name, 0)
          ORDER BY o.name DESC, o.slot DESC LIMIT 1) h
      LEFT JOIN LATERAL (
        SELECT l.ctid AS at, l.token FROM locks l
        WHERE l.ctid = h.at AND l.name = w.name AND l.slot = 0 AND l.expires_at = '-infinity' AND NOT l.queued
          AND l.top_slot = 0 AND w.mode = 'exclusive' AND l.grant_id <> w.grant_id
          AND (l.spent_until IS NULL OR l.spent_until <= clock_timestamp())
        FOR UPDATE SKIP LOCKED) f ON true;
  IF r.above IS NOT NULL THEN
    RETURN grant_head(w, r.free_at, r.above, NULL, false);
  ELSIF NOT FOUND AND w.mode = 'exclusive' THEN
    a := grant_new(w);
    IF a.granted THEN
      RETURN a;
    END IF;
  ELSIF NOT p_wait AND NOT p_retry THEN
    -- Whether it is worth while to lock anything: without a lock, so that a try that is refused writes nothing.
    IF w.nested AND r.expires_at > clock_timestamp() THEN
      PERFORM refuse_own(w.name, w.owner_id);
    END IF;
    IF r.expires_at > clock_timestamp() AND r.grant_id <> w.grant_id THEN
      RETURN ROW(false, r.token, NULL, NULL, microseconds_until(r.expires_at), r.holder, r.expires_at,
                 NULL, NULL, NULL, NULL, NULL, NULL)::lease_answer;
    ELSIF (w.mode <> 'limit' OR r.limit_named = w.capacity OR refuse_limit(w.name, w.capacity)) AND is_taken(w) THEN
      RETURN refusal(w);
    END IF;
  END IF;
  RETURN acquire_in_turn(w, p_retry, p_wait, p_session_ttl);
END $$;

-- grant_new grants a lock that was never used. A name without a row has no queue, and none of its grant IDs was given up.
-- INSERT takes its lock of the table before it draws the token, so that none was drawn before a row was pruned and used
-- after. Whoever else inserts the name is waited for; then it is no new one.
CREATE FUNCTION grant_new(w waiters) RETURNS lease_answer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  a  lease_answer;
  ok boolean := require_durable_commit();
BEGIN
  INSERT INTO locks AS l (name, token, first_token, grant_id, session_id, owner_id, holder, ttl, acquired_at, renewed_at,
                          expires_at, metadata)
    SELECT w.name, t.token, t.token, w.grant_id, w.session_id, w.owner_id, w.holder, w.ttl, clock_timestamp(),
           clock_timestamp(), clock_timestamp() + w.ttl, w.metadata
    FROM (SELECT next_token(0) AS token OFFSET 0) t
    ON CONFLICT (name, slot) DO NOTHING
    RETURNING true, l.token, l.token, 0, microseconds_until(l.expires_at), l.holder, l.expires_at
    INTO a.granted, a.token, a.first_token, a.slot, a.remaining_us, a.holder, a.expires_at;
  IF w.turns > 1 AND a.granted THEN
    a.token := last_of_block(a.first_token, w.turns);
    UPDATE locks l SET token = a.token WHERE l.name = w.name AND l.slot = 0;
  END IF;
  RETURN a;
END $$;

-- grant_head gives the head at that place to the request. p_above is the greatest token of the lock, p_ended_at the moment
-- when its holder's release ends the lease before, p_queued whether others queue. The caller has the head locked FOR
-- UPDATE, which makes this an update of the key whatever it changes: a fenced transaction whose snapshot does not show it
-- gets 40001 from the check in its COMMIT. And it has seen that the lease before is over or ends with this, that nothing
-- else is in the way, and whose turn it is.
CREATE FUNCTION grant_head(w waiters, p_at tid, p_above bigint, p_ended_at timestamptz, p_queued boolean)
RETURNS lease_answer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  a     lease_answer;
  ok    boolean := require_durable_commit();
  first bigint := next_token(p_above);
  last  bigint := CASE WHEN w.turns > 1 THEN last_of_block(first, w.turns) ELSE first END;
BEGIN
  IF p_ended_at IS NULL THEN
    PERFORM note_takeover(l, last, w.holder) FROM locks l WHERE l.ctid = p_at AND l.expires_at > '-infinity';
  END IF;
  UPDATE locks l SET
    token = last, first_token = first, grant_id = w.grant_id, session_id = w.session_id, owner_id = w.owner_id,
    holder = w.holder, mode = 'exclusive', capacity = NULL, ticket = GREATEST(l.ticket, w.ticket), ttl = w.ttl,
    acquired_at = clock_timestamp(), renewed_at = clock_timestamp(), expires_at = clock_timestamp() + w.ttl,
    ended_at = p_ended_at, metadata = w.metadata, queued = p_queued
    WHERE l.ctid = p_at
    RETURNING true, l.token, l.first_token, 0, microseconds_until(l.expires_at), l.holder, l.expires_at,
              l.watched_until > clock_timestamp()
    INTO a.granted, a.token, a.first_token, a.slot, a.remaining_us, a.holder, a.expires_at, a.watched;
  RETURN a;
END $$;

CREATE FUNCTION note_takeover(r locks, p_token bigint, p_actor text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  INSERT INTO events (kind, lock_name, token, first_token, new_token, holder, actor)
    VALUES ('takeover', r.name, r.token, nullif(r.first_token, r.token), p_token, r.holder, p_actor);
  RETURN true;
END $$;
