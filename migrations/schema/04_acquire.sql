-- Acquire. Locks are always taken in this order: a session, a lock's head, its slots, its tickets, the record of the
-- installation; several locks in the byte order of their names. Renewals and the check inside COMMIT lock only the
-- row of their lease.
--
-- acquire_lease answers granted with the token, or not granted with the holder's token. more
-- has what the caller cannot know otherwise, and only if there is something to say:
--   slot                   of a grant of mode shared or limit
--   holder, expires_at     who holds the lock, and until when; missing while it is being granted or committed
--   remaining_us           how long until it makes sense for the first in the queue to ask again
--   ticket, place, first   the place in the queue, counted up to 100; first: nobody is before it
--   handed                 grants to waiters that this statement made besides: {"hints": [...]} to this session's,
--                          {"slots": [...]} to other sessions': give them to announce
--   watched                somebody watches the lock: announce it
-- A grant is as long as the TTL says.

-- acquire_lease grants p_name to p_grant_id if it is free and nobody queues for it. Otherwise granted is false, with
-- the holder, and with p_wait also a ticket. The same grant ID again yields the same grant or ticket; p_retry says
-- that an earlier attempt may still be under way, and waits for it.
--
-- Without p_wait and p_retry it waits for nobody, but to begin a step (draw_token), and if it is refused it locks no
-- row but that of a grant that came in between, writes nothing and draws no token. With either it waits for those who
-- knock until the statement has lasted a second, then at most a second for whoever has taken the head: 55P03. p_alone
-- says that the caller's statement is the whole transaction: if it grants nothing, it then does not wait for the disk.
--
-- I1, I2. This statement grants a free lock (is_free) to a plain request (is_plain). It checks that on the version of
-- the row that it locks. acquire_otherwise handles all other cases. The statement searches from the end of the index,
-- where the newest version of a row lies, however many old ones an open transaction keeps. FOR UPDATE makes this an
-- update of the key whatever it changes: a fenced transaction whose snapshot does not show it gets 40001 from the check
-- in its COMMIT. It runs for every request: whoever prunes the name meanwhile is waited for before acquire_otherwise
-- looks. A request that is not plain asks for a slot that no lock has: a plan that finds nothing to do would look
-- cheaper than the one for all values.
--
-- acquired has a name because the server works out the columns of OUT parameters anew in each call.
CREATE TYPE acquired AS (granted boolean, token bigint, more json);

CREATE FUNCTION acquire_lease(
  p_name text, p_grant_id uuid, p_session_key uuid, p_holder text, p_ttl interval, p_metadata jsonb DEFAULT NULL,
  p_retry boolean DEFAULT false, p_mode text DEFAULT 'exclusive', p_capacity int DEFAULT NULL,
    p_wait boolean DEFAULT false,
  p_session_ttl interval DEFAULT '10 s', p_owner_id uuid DEFAULT NULL, p_nested boolean DEFAULT false,
  p_alone boolean DEFAULT false)
RETURNS acquired
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
  plain boolean := {{schema}}.is_plain(p_name, p_grant_id, p_holder, p_ttl, p_metadata, p_mode, p_capacity, p_nested)
    AND {{schema}}.is_plain_session(p_session_key, p_session_ttl) AND p_retry IS NOT NULL AND p_wait IS NOT NULL;
  clean boolean := pg_catalog.pg_current_xact_id_if_assigned() IS NULL;    -- so this transaction has locked no row yet
  late  boolean := false;
  a     {{schema}}.acquired;
  ok    boolean;
BEGIN
  LOOP
    UPDATE {{schema}}.locks l SET
      token = (SELECT i.epoch OPERATOR(pg_catalog.<<) 36 FROM {{schema}}.installation i
               WHERE i.started OPERATOR(pg_catalog.=) pg_catalog.pg_postmaster_start_time())
              OPERATOR(pg_catalog.+) pg_catalog.nextval({{sequence}}),
      grant_id = p_grant_id, owner_id = p_owner_id, holder = p_holder, ttl = p_ttl, metadata = p_metadata,
      grants = l.grants OPERATOR(pg_catalog.+) 1, slowest = NULL, subtree = false, extended = false,
      session_id = pg_catalog.encode(pg_catalog.substr(pg_catalog.sha256(pg_catalog.uuid_send(p_session_key)), 1, 16),
                                     'hex')::pg_catalog.uuid,                            -- session_of, written out
      acquired_at = pg_catalog.clock_timestamp(), renewed_at = pg_catalog.clock_timestamp(),
      expires_at = pg_catalog.clock_timestamp() OPERATOR(pg_catalog.+) p_ttl
    WHERE l.ctid OPERATOR(pg_catalog.=) (
      SELECT h.ctid FROM {{schema}}.locks h
      WHERE h.name OPERATOR(pg_catalog.=) p_name AND h.slot OPERATOR(pg_catalog.<=) CASE WHEN plain THEN 0 ELSE '-1' END
        AND {{schema}}.is_free(h.expires_at, h.top_slot, h.queued, h.grant_id, h.spent_until, h.token, p_grant_id, (
          SELECT (i.epoch OPERATOR(pg_catalog.<<) 36)
                 OPERATOR(pg_catalog.+) pg_catalog.pg_sequence_last_value({{sequence}})
          FROM {{schema}}.installation i WHERE i.started OPERATOR(pg_catalog.=) pg_catalog.pg_postmaster_start_time()
            AND (NOT i.subtrees OR NOT {{schema}}.is_below(p_name))))
      ORDER BY h.slot DESC LIMIT 1 FOR UPDATE SKIP LOCKED)
    RETURNING true, l.token, CASE WHEN l.watched_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()
      THEN '{"watched": true}'::pg_catalog.json END INTO a;
    -- A transaction that is no longer clean has locked a version of the row that its snapshot does not show. The next
    -- one does: if the lock is still free, it is granted, and nothing else is locked after a head (I25). If not,
    -- another's row stays locked, for a second at most.
    EXIT WHEN FOUND OR late OR NOT clean OR pg_catalog.pg_current_xact_id_if_assigned() IS NULL;
    late := true;
  END LOOP;
  IF NOT FOUND THEN
    a := {{schema}}.acquire_otherwise(
      ROW(p_name, 0, p_mode, p_capacity, p_grant_id, NULL, p_owner_id, p_nested, p_holder, p_ttl, p_metadata,
        NULL, false), plain, p_session_key, p_session_ttl, p_retry, p_wait, p_alone, late);
  END IF;
  IF p_alone IS NOT TRUE AND (a.granted OR late) THEN
    ok := {{schema}}.bound_rest(a.granted);
  END IF;
  RETURN a;
END $$;

-- acquire_leases is acquire_lease for many requests of a session. n counts from 1. If one request is refused, or would
-- have to wait for longer than a moment, all fail, and nothing was done.
--
-- First grant_set grants free locks to plain requests together. If that cannot be all of them, it grants none, and
-- those that are not free go first, one by one in the byte order of their names. If somebody disturbs it again, those
-- that were free follow. So whoever waits here has locked no name after the one that it waits for: see in_order.
CREATE FUNCTION acquire_leases(
  p_names text[], p_grant_ids uuid[], p_session_key uuid, p_holders text[], p_ttls interval[], p_metadata jsonb[],
  p_retries boolean[], p_modes text[], p_capacities int[], p_waits boolean[], p_session_ttl interval,
    p_owner_ids uuid[], p_nested boolean[], p_alone boolean DEFAULT false)
RETURNS TABLE (n bigint, granted boolean, token bigint, more json)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  ok    boolean := require_read_committed()
    AND is_batch(ARRAY[cardinality(p_names), cardinality(p_grant_ids), cardinality(p_holders),
      cardinality(p_ttls), cardinality(p_metadata), cardinality(p_retries), cardinality(p_modes),
      cardinality(p_capacities), cardinality(p_waits), cardinality(p_owner_ids), cardinality(p_nested)])
    AND ((SELECT bool_and(g.retry IS NOT NULL AND g.wait IS NOT NULL) FROM unnest(p_retries, p_waits) g (retry, wait))
         OR refuse('retry or wait', NULL, 'be true or false'));
  free  boolean[] := array_fill(true, ARRAY[cardinality(p_names)]);
  a     record;  given record;  answers acquired[];
  label text := (SELECT h FROM unnest(p_holders) h LIMIT 1);  most text;    -- the last name that it may have locked
  limit_ text := current_setting('lock_timeout');
BEGIN
  IF true = ANY (p_waits) THEN                           -- a session before any lock
    ok := keep_session(p_session_key, label, p_session_ttl)
      OR outlive_session(session_of(p_session_key), label, p_session_ttl);
  END IF;
  FOR round IN 1..2 LOOP
    given := grant_set(p_names, p_grant_ids, p_session_key, p_holders, p_ttls, p_metadata, p_modes, p_capacities,
      p_session_ttl, p_owner_ids, p_nested, free);
    RETURN QUERY SELECT g.n, true, g.token, CASE WHEN g.watched THEN '{"watched": true}'::json END
      FROM unnest(given.ns, given.tokens, given.watched) AS g (n, token, watched);
    ok := ok AND NOT FOUND;
    EXIT WHEN given.ns IS NOT NULL;
    LOCK TABLE locks IN ROW EXCLUSIVE MODE;              -- grant_set has undone its own. Before a ticket: see wait_out
    free := CASE WHEN round = 1 THEN given.free ELSE free END;
    ok := set_config('lock_timeout', '50ms', true) IS NOT NULL AND ok;
    FOR a IN
      SELECT g.name, array_agg(g.n ORDER BY g.n) AS ns, array_agg(g.retry ORDER BY g.n) AS retries,
        array_agg(g.wait ORDER BY g.n) AS waits,
        array_agg(ROW(g.name, 0, g.mode, g.capacity, g.grant_id, NULL, g.owner_id, g.nested, g.holder, g.ttl,
          g.metadata, NULL, false)::waiters ORDER BY g.n) AS requests
      FROM unnest(p_names, p_grant_ids, p_holders, p_ttls, p_metadata, p_retries, p_modes, p_capacities, p_waits,
          p_owner_ids, p_nested, free) WITH ORDINALITY
        AS g (name, grant_id, holder, ttl, metadata, retry, mode, capacity, wait, owner_id, nested, free, n)
      WHERE g.free = (round = 2)                         -- first those that are not
      GROUP BY g.name ORDER BY g.name COLLATE "C"
    LOOP
      ok := (NOT true = ANY (a.waits || a.retries) OR in_order(a.name, most)) AND ok;  -- a try waits for no row there
      answers := acquire_each(a.requests, a.retries, a.waits, p_session_key, p_session_ttl);
      most := GREATEST(most COLLATE "C", a.name);
      FOR i IN 1..cardinality(answers) LOOP
        given := answers[i];  n := a.ns[i];  granted := given.granted;  token := given.token;  more := given.more;
        RETURN NEXT;
        ok := ok AND NOT granted AND (more -> 'handed') IS NULL;
      END LOOP;
    END LOOP;
    ok := set_config('lock_timeout', limit_, true) IS NOT NULL AND ok;
    EXIT WHEN NOT true = ANY (free);                     -- nothing is left
  END LOOP;
  ok := (p_alone AND ok) IS NOT TRUE OR set_config('synchronous_commit', 'off', true) IS NOT NULL;
  ok := bound_rest(p_alone);
END $$;

-- check_request refuses a request that breaks a rule.
CREATE FUNCTION check_request(w waiters, p_session_ttl interval, p_retry boolean, p_wait boolean) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT has_bytes('name', w.name, 512) AND has_bytes('holder', w.holder, 256) AND is_ttl('ttl', w.ttl)
    AND is_ttl('session ttl', p_session_ttl)
    AND CASE WHEN w.metadata IS NULL OR octet_length(w.metadata::text) <= 16384 THEN true
             ELSE refuse('metadata', octet_length(w.metadata::text) || ' bytes long as jsonb', 'have at most 16384') END
    AND (w.grant_id IS NOT NULL OR refuse('grant_id', NULL, 'be a UUID'))
    AND (w.nested IS NOT NULL OR refuse('nested', NULL, 'be true or false'))
    AND (p_retry IS NOT NULL AND p_wait IS NOT NULL OR refuse('retry or wait', NULL, 'be true or false'))
    AND (w.session_id IS NOT NULL OR refuse('session_key', NULL, 'be a UUID'))
    AND CASE WHEN w.mode IN ('exclusive', 'shared', 'limit') THEN true
             ELSE refuse('mode', quote_literal(left(w.mode, 40)), 'be exclusive, shared or limit') END
    AND CASE WHEN w.mode = 'limit' AND w.capacity BETWEEN 1 AND 1000 OR w.mode <> 'limit' AND w.capacity IS NULL
      THEN true
             ELSE refuse('limit', coalesce(w.capacity::text, 'NULL') || ' with mode ' || w.mode,
                         'be from 1 to 1000 with mode limit, else NULL') END
$$;

-- acquire_new grants a lock that was never used, and returns the token: a name without a row has no queue, and none of
-- its grant IDs was given up. INSERT locks the table before it draws the token, so the token cannot be older than a
-- concurrent prune of the row (I21). If somebody else inserts the name, it waits for them, and then the name is no
-- longer new: NULL.
CREATE FUNCTION acquire_new(w waiters) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  ok    boolean := require_durable_commit();
  t     bigint;
  since timestamptz;
BEGIN
  INSERT INTO locks AS l (name, token, grant_id, session_id, owner_id, holder, ttl, acquired_at, renewed_at,
    expires_at, metadata, grants)
    SELECT w.name, draw_token(0), w.grant_id, w.session_id, w.owner_id, w.holder, w.ttl, clock_timestamp(),
      clock_timestamp(), clock_timestamp() + w.ttl, w.metadata, 1
    WHERE NOT (SELECT i.subtrees FROM installation i) OR NOT is_below(w.name)
    ON CONFLICT (name, slot) DO NOTHING
    RETURNING l.token, l.acquired_at INTO t, since;
  IF since < clock_timestamp() - w.ttl / 20 THEN         -- it has waited for who inserted the name, and undid it
    UPDATE locks l SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + w.ttl WHERE l.name = w.name;
  END IF;
  RETURN t;
END $$;

-- acquire_one first looks, without locking, unless the lock was never used. A try that is refused ends there, and
-- has written nothing (I13). If it cannot take the head of a lock that looks free, it looks again for some
-- milliseconds: whoever joins, or has taken it, is soon done.
-- If the look finds that nobody's lease is in the way, it takes the head and decides. Otherwise, or if somebody has
-- locked the head, a request that waits joins the queue. It never takes a head that it has joined: two that did would
-- wait for each other, and what it ended then would be no change of the key for a COMMIT that follows the row's
-- versions (I4). Only one that is_own takes it, without waiting: refuse_unseen_end refuses such an end. If the lock has
-- become free meanwhile, the answer says that the first asks again at once.
-- A plain request has been checked. p_many says that the request is part of a statement for many, which waits only for
-- a moment; p_locked that the statement has locked something of this lock already, as far as it knows: then it waits
-- for nobody who may wait for that. p_joined says that it has joined. It waits for rows as long as lock_timeout says.
CREATE FUNCTION acquire_one(
  w waiters, p_plain boolean, p_session_key uuid, p_session_ttl interval, p_retry boolean, p_wait boolean,
    p_alone boolean, p_many boolean, p_locked boolean, p_joined boolean) RETURNS acquired
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  head  locks;
  a     acquired;
  stays boolean := p_wait OR p_retry;
  own   boolean := is_own(w);                            -- nobody has it, and those who queue wait for its owner
  ok    boolean;
BEGIN
  w.session_id := session_of(p_session_key);
  IF p_plain IS NOT TRUE THEN
    ok := require_read_committed() AND check_request(w, p_session_ttl, p_retry, p_wait);
  END IF;
  head := (SELECT l FROM locks l WHERE l.name = w.name AND l.slot <= 0 ORDER BY l.slot DESC LIMIT 1);
  IF head.name IS NULL AND w.mode = 'exclusive' AND NOT w.subtree THEN
    a.token := acquire_new(w);
    IF a.token IS NOT NULL THEN
      a.granted := true;
      RETURN a;
    END IF;
  END IF;
  ok := NOT p_wait OR p_many                             -- a session before any lock
    OR touch_session(w.session_id, w.holder, p_session_ttl, w.name, p_locked)
    OR outlive_session(w.session_id, w.holder, p_session_ttl, p_locked);
  IF p_wait AND NOT p_many OR head.name IS NULL THEN
    head := (SELECT l FROM locks l WHERE l.name = w.name AND l.slot <= 0 ORDER BY l.slot DESC LIMIT 1);
  END IF;
  IF NOT stays AND is_taken(w, head) THEN
    a := refusal(w, head, NULL, NULL, NULL);
  ELSE
    FOR look IN 1..20 LOOP
      a := decide(w, CASE WHEN own OR NOT p_joined AND NOT (stays AND is_held(w, head))
        THEN take_head(w.name, own AND stays AND NOT p_joined, true) END, p_wait, true);
      EXIT WHEN a.granted IS NOT NULL OR stays;
      ok := pg_sleep(0.002) IS NOT NULL;                 -- a newcomer may have joined, or somebody is granted it
      head := (SELECT l FROM locks l WHERE l.name = w.name AND l.slot <= 0 ORDER BY l.slot DESC LIMIT 1);
      EXIT WHEN is_taken(w, head);
    END LOOP;
    IF a.granted IS NULL AND stays THEN
      ok := p_locked OR give_way(w.name, p_many);
      a := decide(w, join_head(w.name), p_wait, false);
    ELSIF a.granted IS NULL THEN
      a := refusal(w, head, NULL, NULL, NULL);
    END IF;
    ok := p_many OR bound_rest(p_alone);                 -- after all waiting
  END IF;
  IF p_alone AND NOT a.granted AND (a.more -> 'handed') IS NULL THEN
    ok := set_config('synchronous_commit', 'off', true) IS NOT NULL;
  END IF;
  RETURN a;
END $$;

-- acquire_each is acquire_one for requests of a session for one lock, in their order. Where they only queue, queue_all
-- answers them.
CREATE FUNCTION acquire_each(
  p_requests waiters[], p_retries boolean[], p_waits boolean[], p_session_key uuid, p_session_ttl interval)
RETURNS acquired[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  answers acquired[];
  joined  boolean := false;
  locked  boolean := false;
BEGIN
  IF cardinality(p_requests) > 1 AND true = ALL (p_waits) AND only_queue(p_requests, (SELECT l FROM locks l
      WHERE l.name = p_requests[1].name AND l.slot <= 0 ORDER BY l.slot DESC LIMIT 1)) THEN
    answers := queue_all(p_requests, session_of(p_session_key));
    joined := true;
  END IF;
  FOR i IN coalesce(cardinality(answers), 0) + 1..cardinality(p_requests) LOOP
    answers[i] := acquire_one(p_requests[i], false, p_session_key, p_session_ttl, p_retries[i], p_waits[i], false, true,
      locked OR joined, joined);
    locked := locked OR answers[i].granted;
    joined := joined OR NOT answers[i].granted AND (p_waits[i] OR p_retries[i]);
  END LOOP;
  RETURN answers;
END $$;

-- acquire_otherwise is acquire_one for a request alone.
CREATE FUNCTION acquire_otherwise(
  w waiters, p_plain boolean, p_session_key uuid, p_session_ttl interval, p_retry boolean, p_wait boolean,
    p_alone boolean, p_locked boolean) RETURNS acquired
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET lock_timeout = '1s' SET plan_cache_mode = force_generic_plan
AS $$
BEGIN
  RETURN acquire_one(w, p_plain, p_session_key, p_session_ttl, p_retry, p_wait, p_alone, false, p_locked,
    false);
END $$;
