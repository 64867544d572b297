-- Release. A row stays when its lease ends. It is locked FOR UPDATE first: an update under that lock counts as a change of
-- the key, so that the check inside COMMIT sees it under REPEATABLE READ too; and it stays HOT. synchronous_commit is left
-- alone unless something is granted: only a statement that is its own transaction may turn it off.

CREATE TYPE release_answer AS (
  released boolean,  -- false: it was not held any more, and nothing changed
  hints    text[],   -- as in lease_answer
  handed   int[],
  watched  boolean
);

-- release_lease ends the caller's own lease and serves the queue, in one transaction. p_slot NULL: whichever it is. A COMMIT
-- under way that has checked the lease is waited for, a second at most: 55P03.
CREATE FUNCTION release_lease(p_name text, p_token bigint, p_grant_id uuid, p_slot int DEFAULT NULL) RETURNS release_answer
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '1s'
AS $$
DECLARE
  ok boolean := require_read_committed();
BEGIN
  RETURN release_one(p_name, p_token, p_grant_id, p_slot);
END $$;

-- release_leases is release_lease for many leases, in the byte order of their names, and of one lock in the order of its
-- slots; one answer for each, n counts from 1. When one would have to wait for longer than a moment, nothing was done.
CREATE FUNCTION release_leases(p_names text[], p_tokens bigint[], p_grant_ids uuid[], p_slots int[])
RETURNS TABLE (n bigint, answer release_answer)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '50ms'
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed()
    AND is_batch(cardinality(p_names), cardinality(p_tokens), cardinality(p_grant_ids), cardinality(p_slots));
  a  record;
BEGIN
  FOR a IN
    SELECT * FROM unnest(p_names, p_tokens, p_grant_ids, p_slots) WITH ORDINALITY AS g (name, token, grant_id, slot, n)
    ORDER BY g.name COLLATE "C", g.slot, g.n
  LOOP
    release_leases.n := a.n;
    release_leases.answer := release_one(a.name, a.token, a.grant_id, a.slot);
    RETURN NEXT;
  END LOOP;
END $$;

-- release_one locks the row of an exclusive lease alone; of another lease the head first, so that nobody queues meanwhile.
CREATE FUNCTION release_one(p_name text, p_token bigint, p_grant_id uuid, p_slot int) RETURNS release_answer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  a release_answer;
  r record;
BEGIN
  a.released := false;
  IF coalesce(p_slot, 0) = 0 THEN
    SELECT l.ctid AS at, l AS head, l.* INTO r FROM locks l
      WHERE (l.name, l.slot) >= (p_name, 0) AND (l.name, l.slot) <= (p_name, 0)
        AND l.grant_id = p_grant_id AND p_token BETWEEN l.first_token AND l.token
      ORDER BY l.name DESC, l.slot DESC LIMIT 1 FOR UPDATE;
    IF FOUND THEN
      IF r.expires_at > clock_timestamp() THEN
        a := end_lease(r.head, r.at);
      END IF;
      RETURN a;
    ELSIF p_slot = 0 THEN
      RETURN a;
    END IF;
  END IF;
  RETURN release_slot(p_name, p_token, p_grant_id);
END $$;

-- end_lease ends the head's lease. The next in the queue has it in the same version of the row, where it is a writer.
CREATE FUNCTION end_lease(p_head locks, p_at tid) RETURNS release_answer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  a       release_answer := ROW(true, NULL, NULL, p_head.watched_until > clock_timestamp());
  now     timestamptz := clock_timestamp();
  granted int[];
BEGIN
  IF p_head.queued THEN
    granted := serve(p_head, NULL, now);
    SELECT * INTO a.hints, a.handed FROM told(p_head.name, granted, p_head.session_id, NULL);
  END IF;
  IF granted IS NULL THEN
    UPDATE locks l SET expires_at = '-infinity', ended_at = now WHERE l.ctid = p_at;
  ELSIF NOT 0 = ANY (granted) THEN
    UPDATE locks l SET expires_at = '-infinity', ended_at = now WHERE l.name = p_head.name AND l.slot = 0;
  END IF;
  RETURN a;
END $$;

CREATE FUNCTION release_slot(p_name text, p_token bigint, p_grant_id uuid) RETURNS release_answer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  a    release_answer;
  head locks;
  r    locks;
BEGIN
  a.released := false;
  SELECT * INTO head FROM locks l WHERE l.name = p_name AND l.slot = 0 AND l.top_slot > 0 FOR NO KEY UPDATE;
  IF FOUND THEN
    SELECT * INTO r FROM locks l WHERE l.name = p_name AND l.slot > 0 AND l.grant_id = p_grant_id AND l.token = p_token FOR UPDATE;
  END IF;
  IF r.expires_at > clock_timestamp() THEN
    UPDATE locks l SET expires_at = '-infinity', ended_at = clock_timestamp() WHERE l.name = p_name AND l.slot = r.slot;
    a.released := true;
    SELECT * INTO a.hints, a.handed FROM told(p_name, serve(head, NULL, NULL), r.session_id, NULL);
    a.watched := head.watched_until > clock_timestamp();
  END IF;
  RETURN a;
END $$;

-- give_up takes requests back: their tickets, or the leases that they were granted meanwhile, which go to whoever is next.
-- With p_spend it spends their grant IDs too, so that a request that is still on its way is refused: it changes the head,
-- so that a request which has looked at the head already, and does not see the note, does not find it as it was. Locks
-- are taken in the byte order of names. One answer for each: ended says that a grant had come, place is the place that
-- the ticket had. One request waits for whoever decides about its lock at the moment, a second at most; several do not wait
-- for longer than a moment: 55P03, and nothing was done.
CREATE FUNCTION give_up(p_session_key uuid, p_names text[], p_grant_ids uuid[], p_spend boolean DEFAULT false)
RETURNS TABLE (n bigint, ended boolean, place int, token bigint, holder text, expires_at timestamptz,
               hints text[], handed int[], watched boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '1s'
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND is_batch(cardinality(p_names), cardinality(p_grant_ids));
  a  record;
BEGIN
  IF cardinality(p_names) > 1 THEN
    PERFORM set_config('lock_timeout', '50ms', true);     -- until the function ends
  END IF;
  IF p_session_key IS NULL OR array_position(p_grant_ids, NULL) IS NOT NULL OR p_spend IS NULL THEN
    ok := refuse('session_key, grant_id or spend', NULL, 'not be NULL');
  END IF;
  FOR a IN
    SELECT g.name COLLATE "C" AS name, array_agg(g.grant_id ORDER BY g.n) AS grant_ids, array_agg(g.n ORDER BY g.n) AS ns
    FROM unnest(p_names, p_grant_ids) WITH ORDINALITY AS g (name, grant_id, n)
    WHERE has_bytes('name', g.name, 512) GROUP BY 1 ORDER BY 1
  LOOP
    RETURN QUERY
      SELECT a.ns[g.i], g.ended, g.place, g.token, g.holder, g.expires_at, g.hints, g.handed, g.watched
      FROM give_up_one(a.name, a.grant_ids, session_of(p_session_key), p_spend) g;
  END LOOP;
END $$;

-- give_up_one is give_up for requests of one lock. The first answer has what is to be told.
CREATE FUNCTION give_up_one(p_name text, p_grant_ids uuid[], p_session_id uuid, p_spend boolean)
RETURNS TABLE (i int, ended boolean, place int, token bigint, holder text, expires_at timestamptz,
               hints text[], handed int[], watched boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
  head locks;
  over boolean[] := array_fill(false, ARRAY[cardinality(p_grant_ids)]);
  at   int[] := array_fill(NULL::int, ARRAY[cardinality(p_grant_ids)]);
  ok   boolean := bound_timeout('idle_in_transaction_session_timeout', 1000);   -- as in lock_head
BEGIN
  IF p_spend THEN
    head := lock_head(p_name, true);
  ELSE
    SELECT * INTO head FROM locks l WHERE l.name = p_name AND l.slot = 0 FOR NO KEY UPDATE;
  END IF;
  IF p_spend THEN
    INSERT INTO spent_grants (grant_id, at) SELECT g, clock_timestamp() FROM unnest(p_grant_ids) g ON CONFLICT DO NOTHING;
    UPDATE locks l SET spent_until = clock_timestamp() + interval '1 hour' WHERE l.name = p_name AND l.slot = 0;
  END IF;
  FOR i IN 1..cardinality(p_grant_ids) LOOP
    at[i] := take_back(p_name, p_grant_ids[i]);
    over[i] := end_grant(head, p_grant_ids[i]);
  END LOOP;
  SELECT * INTO head FROM locks l WHERE l.name = p_name AND l.slot = 0;
  SELECT * INTO give_up_one.hints, give_up_one.handed
    FROM told(p_name, CASE WHEN head.name IS NOT NULL THEN serve(head, NULL, NULL) END, p_session_id, NULL);
  give_up_one.watched := head.watched_until > clock_timestamp();
  SELECT l.token, l.holder, l.expires_at INTO give_up_one.token, give_up_one.holder, give_up_one.expires_at
    FROM locks l WHERE l.name = p_name AND l.expires_at > clock_timestamp() ORDER BY l.expires_at DESC LIMIT 1;
  FOR i IN 1..cardinality(p_grant_ids) LOOP
    give_up_one.i := i;
    give_up_one.ended := over[i];
    give_up_one.place := at[i];
    RETURN NEXT;
    give_up_one.hints := NULL;
    give_up_one.handed := NULL;
    give_up_one.watched := NULL;
  END LOOP;
END $$;

-- take_back takes a ticket out of the queue; it tells the place that it had, counted up to 100, or NULL.
CREATE FUNCTION take_back(p_name text, p_grant_id uuid) RETURNS int
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  t bigint;
BEGIN
  DELETE FROM waiters q WHERE q.grant_id = p_grant_id AND q.name = p_name RETURNING q.ticket INTO t;
  IF NOT FOUND THEN
    RETURN NULL;
  END IF;
  RETURN (SELECT count(*) + 1 FROM (
            SELECT FROM waiters q WHERE q.name = p_name AND q.ticket < t ORDER BY q.ticket LIMIT 99) ahead);
END $$;

-- end_grant ends the lease of a grant ID, if there is one. The caller has the head locked, and serves the queue after it.
CREATE FUNCTION end_grant(p_head locks, p_grant_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  r locks := lease_of(p_head, p_grant_id);
BEGIN
  IF r.name IS NULL THEN
    RETURN false;
  END IF;
  PERFORM FROM locks l WHERE l.name = r.name AND l.slot = r.slot FOR UPDATE;
  UPDATE locks l SET expires_at = '-infinity', ended_at = clock_timestamp()
    WHERE l.name = r.name AND l.slot = r.slot AND l.grant_id = p_grant_id AND l.expires_at > clock_timestamp();
  RETURN FOUND;
END $$;

-- break_lock ends somebody else's lease and draws a new token: without one, a fenced transaction of the old holder at
-- REPEATABLE READ would not notice, and commit. Then it serves the queue. p_token, when given, must be of the holder; with
-- several holders it must be given. It waits for a COMMIT of the holder that is under way.
CREATE FUNCTION break_lock(
  p_name text, p_reason text, p_actor text, p_token bigint DEFAULT NULL,
  OUT holder text, OUT token bigint, OUT new_token bigint, OUT expires_at timestamptz, OUT handed int[], OUT watched boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND require_durable_commit() AND has_bytes('name', p_name, 512)
                AND is_operator(p_reason, p_actor);
  head   locks;
  r      locks;
  tokens bigint[];
BEGIN
  SELECT * INTO head FROM locks l WHERE l.name = p_name AND l.slot = 0 FOR NO KEY UPDATE;
  SELECT array_agg(l.token ORDER BY l.token) INTO tokens FROM locks l WHERE l.name = p_name AND l.expires_at > clock_timestamp();
  IF cardinality(tokens) > 1 AND p_token IS NULL THEN
    RAISE EXCEPTION 'token is NULL: lock % has % holders, it must be one of their tokens %', quote_literal(p_name),
        cardinality(tokens), array_to_string(tokens, ', ') USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT * INTO r FROM locks l
    WHERE l.name = p_name AND l.expires_at > clock_timestamp() AND coalesce(p_token BETWEEN l.first_token AND l.token, true)
    FOR UPDATE;
  IF NOT FOUND OR r.expires_at <= clock_timestamp() THEN
    IF tokens IS NULL OR r.name IS NOT NULL THEN
      RAISE EXCEPTION 'lock % is not held: there is nothing to break', quote_literal(p_name) USING ERRCODE = 'LK006';
    END IF;
    RAISE EXCEPTION 'lock % is held with token %, not %: nothing was broken', quote_literal(p_name),
        array_to_string(tokens, ', '), p_token USING ERRCODE = 'LK006';
  END IF;
  break_lock.new_token := next_token((SELECT max(l.token) FROM locks l WHERE l.name = p_name));
  UPDATE locks l SET token = break_lock.new_token, first_token = break_lock.new_token, expires_at = '-infinity',
                     ended_at = clock_timestamp()
    WHERE l.name = p_name AND l.slot = r.slot;
  break_lock.holder := r.holder;
  break_lock.token := r.token;
  break_lock.expires_at := r.expires_at;
  break_lock.watched := head.watched_until > clock_timestamp();
  INSERT INTO events (kind, lock_name, token, first_token, new_token, holder, actor, reason)
    VALUES ('break', p_name, r.token, nullif(r.first_token, r.token), break_lock.new_token, r.holder, p_actor, p_reason);
  SELECT * INTO head FROM locks l WHERE l.name = p_name AND l.slot = 0;
  SELECT t.handed INTO break_lock.handed FROM told(p_name, serve(head, NULL, NULL), gen_random_uuid(), NULL) t;
END $$;
