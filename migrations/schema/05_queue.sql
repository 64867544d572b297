-- The queue, and who is granted what. Whoever grants, ends or queues has the head locked; so between two of these
-- functions nothing about a lock changes but what its holders do: they renew, and commit what they have fenced.

-- lock_head locks the head of a lock for its queue, and makes one where there is none. FOR NO KEY UPDATE leaves a COMMIT
-- that checks the lease alone. NULL: it is locked, and p_wait is false. The holder cannot renew meanwhile, so a transaction
-- that has locked the head and then forgets to end does not stay for longer than a second.
CREATE FUNCTION lock_head(p_name text, p_wait boolean) RETURNS locks
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  head locks;
  ok   boolean := bound_timeout('idle_in_transaction_session_timeout', 1000);
BEGIN
  LOOP
    IF p_wait THEN
      SELECT * INTO head FROM locks l WHERE (l.name, l.slot) >= (p_name, 0) AND (l.name, l.slot) <= (p_name, 0)
        ORDER BY l.name DESC, l.slot DESC LIMIT 1 FOR NO KEY UPDATE;
    ELSE
      SELECT * INTO head FROM locks l WHERE (l.name, l.slot) >= (p_name, 0) AND (l.name, l.slot) <= (p_name, 0)
        ORDER BY l.name DESC, l.slot DESC LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED;
    END IF;
    EXIT WHEN FOUND OR NOT p_wait AND EXISTS (SELECT FROM locks l WHERE l.name = p_name AND l.slot = 0);
    INSERT INTO locks (name, token, first_token, grant_id, session_id, holder, ttl, acquired_at, renewed_at, expires_at)
      SELECT p_name, t.token, t.token, gen_random_uuid(), gen_random_uuid(), '-', interval '1 s', clock_timestamp(),
             clock_timestamp(), '-infinity'
      FROM (SELECT next_token(0) AS token OFFSET 0) t
      ON CONFLICT (name, slot) DO NOTHING;
  END LOOP;
  RETURN head;
END $$;

-- next_waiter is the lowest ticket of a session that is alive, after p_after; those before it are dead.
CREATE FUNCTION next_waiter(p_name text, p_after bigint DEFAULT 0) RETURNS waiters
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  w waiters;
BEGIN
  w.ticket := p_after;
  LOOP   -- one by one, so that no plan reads the whole queue
    SELECT * INTO w FROM waiters q WHERE q.name = p_name AND q.ticket > w.ticket ORDER BY q.ticket LIMIT 1;
    EXIT WHEN NOT FOUND OR session_alive(w.session_id);
  END LOOP;
  RETURN w;
END $$;

-- free_at tells when, by the leases of now, a request of this mode could be granted; NULL when it could be now. The queue
-- is not looked at, and nothing is locked: it is an estimate.
CREATE FUNCTION free_at(p_name text, p_mode text, p_capacity int) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN (
    SELECT CASE p_mode
             WHEN 'exclusive' THEN max(l.expires_at)
             WHEN 'shared' THEN max(l.expires_at) FILTER (WHERE l.mode <> 'shared')
             ELSE coalesce(max(l.expires_at) FILTER (WHERE l.mode <> 'limit'),
                           CASE WHEN count(*) >= p_capacity THEN min(l.expires_at) END)
           END
    FROM locks l WHERE l.name = p_name AND l.expires_at > clock_timestamp());
END $$;

-- is_taken tells, without a lock, that a request would have to wait: for a lease that is not its own, or for somebody who
-- queues.
CREATE FUNCTION is_taken(w waiters) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN ((next_waiter(w.name)).ticket IS NOT NULL OR free_at(w.name, w.mode, w.capacity) IS NOT NULL)
    AND NOT EXISTS (SELECT FROM locks l WHERE l.name = w.name AND l.grant_id = w.grant_id);
END $$;

-- refusal says who holds the lock: of several the one whose lease ends last.
CREATE FUNCTION refusal(w waiters) RETURNS lease_answer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  a lease_answer;
BEGIN
  a.granted := false;
  SELECT l.token, l.holder, l.expires_at INTO a.token, a.holder, a.expires_at FROM locks l
    WHERE l.name = w.name AND l.expires_at > clock_timestamp() ORDER BY l.expires_at DESC LIMIT 1;
  a.remaining_us := coalesce(microseconds_until(free_at(w.name, w.mode, w.capacity)), 0);
  RETURN a;
END $$;

-- refuse_own raises when the owner of a request holds the lock itself.
CREATE FUNCTION refuse_own(p_name text, p_owner_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  t bigint;
BEGIN
  SELECT l.token INTO t FROM locks l
    WHERE l.name = p_name AND l.owner_id = p_owner_id AND l.expires_at > clock_timestamp() LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'lock % is held by the one who asks for it, with token %', quote_literal(p_name), t
      USING ERRCODE = 'LK004', DETAIL = 'circle=self', HINT = 'Use the lease that is held, or release it first.';
  END IF;
  RETURN true;
END $$;

-- refuse_limit raises when the lock is in use with another limit: by a lease that is not over, or by a live waiter.
CREATE FUNCTION refuse_limit(p_name text, p_capacity int) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  other int;
BEGIN
  SELECT u.capacity INTO other FROM (
      SELECT l.capacity FROM locks l
      WHERE l.name = p_name AND l.mode = 'limit' AND (l.expires_at > clock_timestamp() OR NOT is_over(l.expires_at, l.ended_at))
      UNION ALL
      SELECT q.capacity FROM waiters q WHERE q.name = p_name AND q.mode = 'limit' AND session_alive(q.session_id)) u
    WHERE u.capacity <> p_capacity LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'limit of lock % is %: it is in use with limit %', quote_literal(p_name), p_capacity, other
      USING ERRCODE = 'LK010', HINT = 'Every user of a lock must name the same limit.';
  END IF;
  RETURN true;
END $$;

-- name_limit is refuse_limit under the head's lock. The head names the limit of the latest request, so that the queue is
-- read only where the two differ.
CREATE FUNCTION name_limit(p_head locks, p_capacity int) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  IF p_head.limit_named IS DISTINCT FROM p_capacity AND refuse_limit(p_head.name, p_capacity) THEN
    UPDATE locks l SET limit_named = p_capacity WHERE l.name = p_head.name AND l.slot = 0;
  END IF;
  RETURN true;
END $$;

-- settle finds the leases that have run out and of which nothing is under way, and notes that they are over. It waits for
-- nobody: a row that cannot be locked at once, for a renewal or a COMMIT, counts as held. Rows are locked FOR UPDATE, so
-- a prepared transaction that has passed the lease's check keeps it held as well.
CREATE FUNCTION settle(p_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  UPDATE locks l SET ended_at = l.expires_at
    FROM (SELECT o.slot FROM locks o
          WHERE o.name = p_name AND o.expires_at <= clock_timestamp() AND NOT is_over(o.expires_at, o.ended_at)
          ORDER BY o.slot FOR UPDATE SKIP LOCKED) e
    WHERE l.name = p_name AND l.slot = e.slot;
  RETURN FOUND;
END $$;

-- standing counts the leases that are not over, by their modes, and tells the greatest token of the lock. p_ending: the
-- head's own lease ends with this statement.
CREATE FUNCTION standing(p_head locks, p_ending boolean, OUT exclusive int, OUT shared int, OUT limited int, OUT above bigint)
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  ok boolean;
BEGIN
  IF p_head.top_slot > 0 OR NOT p_ending AND NOT is_over(p_head.expires_at, p_head.ended_at) THEN
    ok := settle(p_head.name);
  ELSE
    exclusive := 0; shared := 0; limited := 0; above := p_head.token;
    RETURN;
  END IF;
  SELECT count(*) FILTER (WHERE held AND mode = 'exclusive' AND NOT (p_ending AND slot = 0)),
         count(*) FILTER (WHERE held AND mode = 'shared'), count(*) FILTER (WHERE held AND mode = 'limit'), max(token)
    INTO exclusive, shared, limited, above
    FROM (SELECT l.slot, l.mode, l.token, NOT is_over(l.expires_at, l.ended_at) AS held FROM locks l WHERE l.name = p_head.name) s;
END $$;

-- serve grants the lock to whoever is next, for as long as the modes allow: one writer, or readers, or as many as a limit
-- leaves room for. After the queue comes w, who has no ticket yet and may be NULL. Tickets of dead sessions go on the way.
-- The caller has the head locked. p_ended_at: it is locked FOR UPDATE, and its own lease ends with this statement, at that
-- moment. Answers the slots that were granted.
CREATE FUNCTION serve(p_head locks, w waiters, p_ended_at timestamptz) RETURNS int[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  queued  boolean := p_head.queued;
  stored  boolean := p_head.queued;
  granted int[] := '{}';
  s       record;
  nxt     waiters;
  slots   int[];
  batch   waiters[];
  place   tid;
BEGIN
  IF p_head.expires_at > clock_timestamp() AND p_ended_at IS NULL THEN
    RETURN granted;                                      -- an exclusive lease is in everybody's way
  END IF;
  s := standing(p_head, p_ended_at IS NOT NULL);
  WHILE s.exclusive = 0 LOOP
    nxt := CASE WHEN queued THEN next_waiter(p_head.name) END;
    IF nxt.ticket IS NULL THEN
      queued := false;                                   -- all that is left of it is dead
      EXIT WHEN w.ticket IS NULL;
      nxt := w;
      w := NULL;
    END IF;
    IF nxt.mode = 'exclusive' THEN
      EXIT WHEN s.shared > 0 OR s.limited > 0;
      place := lock_to_grant(p_head.name);
      EXIT WHEN place IS NULL;
      slots := ARRAY[0];
      batch := ARRAY[nxt];
    ELSE
      EXIT WHEN CASE nxt.mode WHEN 'shared' THEN s.limited ELSE s.shared END > 0;
      slots := free_slots(p_head.name, nxt.capacity, CASE nxt.mode WHEN 'shared' THEN 1000 ELSE nxt.capacity - s.limited END);
      EXIT WHEN slots IS NULL;
      batch := CASE WHEN nxt.ticket > 0 THEN next_batch(nxt, cardinality(slots)) ELSE ARRAY[nxt] END;
    END IF;
    IF nxt.ticket > 0 THEN
      queued := take_tickets(batch);
    END IF;
    IF nxt.mode = 'exclusive' THEN
      PERFORM grant_head(nxt, place, s.above, p_ended_at, queued);
      s.exclusive := 1;
      stored := queued;
    ELSE
      s.above := grant_slots(batch, slots, s.above);
      s.shared := s.shared + CASE nxt.mode WHEN 'shared' THEN cardinality(batch) ELSE 0 END;
      s.limited := s.limited + CASE nxt.mode WHEN 'limit' THEN cardinality(batch) ELSE 0 END;
    END IF;
    granted := granted || slots[1:cardinality(batch)];
  END LOOP;
  IF stored AND NOT queued THEN
    DELETE FROM waiters q WHERE q.name = p_head.name;
    UPDATE locks l SET queued = false WHERE l.name = p_head.name AND l.slot = 0;
  END IF;
  RETURN granted;
END $$;

-- lock_to_grant locks the head FOR UPDATE and tells its place; NULL when somebody checks its lease, which is over, in a
-- COMMIT that is about to fail.
CREATE FUNCTION lock_to_grant(p_name text) RETURNS tid
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  place tid;
BEGIN
  SELECT l.ctid INTO place FROM locks l WHERE (l.name, l.slot) >= (p_name, 0) AND (l.name, l.slot) <= (p_name, 0)
    ORDER BY l.name DESC, l.slot DESC LIMIT 1 FOR UPDATE SKIP LOCKED;
  RETURN place;
END $$;

-- next_batch is the waiters from w on that can be granted with it: of its mode and limit, at most p_most, none of them dead.
CREATE FUNCTION next_batch(w waiters, p_most int) RETURNS waiters[]
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN (
    SELECT array_agg(b.q ORDER BY b.ticket) FROM (
      SELECT n.q, n.ticket, bool_and((n.q).mode = w.mode AND (n.q).capacity IS NOT DISTINCT FROM w.capacity)
                              OVER (ORDER BY n.ticket) AS fits
      FROM (SELECT o AS q, o.ticket FROM waiters o WHERE o.name = w.name AND o.ticket >= w.ticket
            ORDER BY o.ticket LIMIT p_most) n) b
    WHERE b.fits AND ((b.q).ticket = w.ticket OR session_alive((b.q).session_id)));
END $$;

-- take_tickets takes the tickets of a batch, and those before them, which are dead. It tells whether there are more.
CREATE FUNCTION take_tickets(p_batch waiters[]) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  DELETE FROM waiters q WHERE q.name = p_batch[1].name AND q.ticket <= p_batch[cardinality(p_batch)].ticket;
  PERFORM FROM waiters q WHERE q.name = p_batch[1].name AND q.ticket > p_batch[cardinality(p_batch)].ticket
    ORDER BY q.ticket LIMIT 1;
  RETURN FOUND;
END $$;

-- free_slots locks slots whose leases are over, the lowest first, and adds new ones: at most p_most, none above the limit.
-- NULL when there is none.
CREATE FUNCTION free_slots(p_name text, p_capacity int, p_most int) RETURNS int[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  slots int[];
  top   int;
BEGIN
  SELECT array_agg(f.slot ORDER BY f.slot) INTO slots FROM (
    SELECT l.slot FROM locks l
    WHERE l.name = p_name AND l.slot > 0 AND l.slot <= coalesce(p_capacity, l.slot) AND is_over(l.expires_at, l.ended_at)
    ORDER BY l.slot LIMIT GREATEST(p_most, 0) FOR UPDATE SKIP LOCKED) f;
  SELECT l.top_slot INTO top FROM locks l WHERE l.name = p_name AND l.slot = 0;
  slots := slots || ARRAY(SELECT generate_series(top + 1, LEAST(top + p_most - coalesce(cardinality(slots), 0), p_capacity)));
  RETURN nullif(slots, '{}');
END $$;

-- grant_slots gives each request of the batch a slot of its own, the oldest the lowest. The caller has locked those that
-- have a row FOR UPDATE. Answers the greatest token.
CREATE FUNCTION grant_slots(p_batch waiters[], p_slots int[], p_above bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  lock   text := p_batch[1].name;
  n      int := cardinality(p_batch);
  ok     boolean := require_durable_commit();
  tokens bigint[] := ARRAY(SELECT next_token(p_above) FROM generate_series(1, n));
BEGIN
  PERFORM note_takeover(l, tokens[i], p_batch[i].holder)
    FROM generate_series(1, n) i JOIN locks l ON l.name = lock AND l.slot = p_slots[i]
    WHERE l.expires_at > '-infinity';
  INSERT INTO locks AS l (name, slot, token, first_token, grant_id, session_id, owner_id, holder, mode, capacity, ticket, ttl,
                          acquired_at, renewed_at, expires_at, metadata)
    SELECT w.name, p_slots[w.i], tokens[w.i], tokens[w.i], w.grant_id, w.session_id, w.owner_id, w.holder, w.mode, w.capacity,
           w.ticket, w.ttl, clock_timestamp(), clock_timestamp(), clock_timestamp() + w.ttl, w.metadata
    FROM unnest(p_batch) WITH ORDINALITY AS w (name, ticket, mode, capacity, grant_id, session_id, owner_id, nested, holder,
                                               ttl, metadata, turns, enqueued_at, i)
    ON CONFLICT (name, slot) DO UPDATE SET
      token = EXCLUDED.token, first_token = EXCLUDED.first_token, grant_id = EXCLUDED.grant_id,
      session_id = EXCLUDED.session_id, owner_id = EXCLUDED.owner_id, holder = EXCLUDED.holder, mode = EXCLUDED.mode,
      capacity = EXCLUDED.capacity, ticket = EXCLUDED.ticket, ttl = EXCLUDED.ttl, acquired_at = EXCLUDED.acquired_at,
      renewed_at = EXCLUDED.renewed_at, expires_at = EXCLUDED.expires_at, ended_at = NULL, metadata = EXCLUDED.metadata;
  UPDATE locks l SET top_slot = p_slots[n] WHERE l.name = lock AND l.slot = 0 AND l.top_slot < p_slots[n];
  RETURN tokens[n];
END $$;

-- told is what a statement has to tell of the slots that it granted: hints are for waiters of p_session_id, handed are the
-- slots of others, for announce. p_but is the request that is answered itself.
CREATE FUNCTION told(p_name text, p_granted int[], p_session_id uuid, p_but uuid, OUT hints text[], OUT handed int[])
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  IF cardinality(p_granted) > 0 THEN
    SELECT array_agg(hint(l)) FILTER (WHERE l.session_id = p_session_id),
           array_agg(l.slot) FILTER (WHERE l.session_id <> p_session_id)
      INTO hints, handed
      FROM locks l WHERE l.name = p_name AND l.slot = ANY (p_granted) AND l.grant_id IS DISTINCT FROM p_but;
  END IF;
END $$;

-- acquire_in_turn decides under the head's lock. Somebody else is granted, ends or queues for this lock before it or after
-- it, never meanwhile.
CREATE FUNCTION acquire_in_turn(w waiters, p_retry boolean, p_wait boolean, p_session_ttl interval) RETURNS lease_answer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  a       lease_answer;
  head    locks;
  r       locks;
  granted int[];
  ok      boolean := NOT p_wait OR touch_session(w.session_id, w.holder, p_session_ttl);
BEGIN
  head := lock_head(w.name, p_wait OR p_retry);
  IF head.name IS NULL THEN                              -- it is being granted to somebody
    a.granted := false;
    a.remaining_us := 0;
    RETURN a;
  END IF;
  r := lease_of(head, w.grant_id);
  IF r.name IS NOT NULL THEN
    RETURN granted_before(r);
  END IF;
  IF head.spent_until > clock_timestamp() AND EXISTS (SELECT FROM spent_grants g WHERE g.grant_id = w.grant_id) THEN
    RAISE EXCEPTION 'grant ID of lock % was given up', quote_literal(w.name) USING ERRCODE = 'LK008', HINT = 'Choose a new grant ID.';
  END IF;
  ok := (NOT w.nested OR refuse_own(w.name, w.owner_id)) AND (w.mode <> 'limit' OR name_limit(head, w.capacity));
  granted := serve(head, CASE WHEN NOT head.queued OR NOT EXISTS (SELECT FROM waiters q WHERE q.grant_id = w.grant_id) THEN w END,
                   NULL);                                -- who has a ticket is served by it, and once
  IF cardinality(granted) > 0 THEN
    SELECT * INTO head FROM locks l WHERE l.name = w.name AND l.slot = 0;
    r := lease_of(head, w.grant_id);
  END IF;
  IF r.name IS NOT NULL THEN
    a := answer_of(r);
  ELSE
    a := refusal(w);
    IF p_wait THEN
      SELECT * INTO a.ticket, a.place, a.is_first FROM enqueue(head, w);
    END IF;
  END IF;
  SELECT * INTO a.hints, a.handed FROM told(w.name, granted, w.session_id, w.grant_id);
  a.watched := head.watched_until > clock_timestamp();
  RETURN a;
END $$;

-- lease_of finds the row of a lock whose grant ID this is, held or not.
CREATE FUNCTION lease_of(p_head locks, p_grant_id uuid) RETURNS locks
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  r locks;
BEGIN
  IF p_head.grant_id = p_grant_id THEN
    RETURN p_head;
  ELSIF p_head.top_slot > 0 THEN
    SELECT * INTO r FROM locks l WHERE l.name = p_head.name AND l.slot > 0 AND l.grant_id = p_grant_id
      ORDER BY l.expires_at DESC LIMIT 1;
  END IF;
  RETURN r;
END $$;

CREATE FUNCTION answer_of(r locks) RETURNS lease_answer
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN ROW(true, r.token, r.first_token, r.slot, microseconds_until(r.expires_at), r.holder, r.expires_at,
             NULL, NULL, NULL, NULL, NULL, NULL)::lease_answer;
END $$;

-- granted_before answers a request whose earlier attempt was granted. The lease is renewed rather than only read: this
-- commit then waits for the disk and the standby that the lost answer may not have waited for.
CREATE FUNCTION granted_before(p_row locks) RETURNS lease_answer
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  ok boolean := require_durable_commit();
  r  locks;
BEGIN
  PERFORM FROM locks l WHERE l.name = p_row.name AND l.slot = p_row.slot FOR NO KEY UPDATE;
  UPDATE locks l SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + l.ttl
    WHERE l.name = p_row.name AND l.slot = p_row.slot AND l.grant_id = p_row.grant_id AND l.expires_at > clock_timestamp()
    RETURNING l.* INTO r;
  IF NOT FOUND THEN
    RAISE EXCEPTION 'grant ID of lock % was used before and its lease has ended', quote_literal(p_row.name)
      USING ERRCODE = 'LK008', HINT = 'Choose a new grant ID.';
  END IF;
  RETURN answer_of(r);
END $$;

-- enqueue writes the ticket of a request, once. Tickets are greater than every ticket that was served, also after a
-- failover that set the sequence back.
CREATE FUNCTION enqueue(p_head locks, w waiters, OUT ticket bigint, OUT place int, OUT is_first boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
BEGIN
  w.ticket := nextval('ticket_seq');
  w.ticket := CASE WHEN w.ticket > p_head.ticket THEN w.ticket ELSE p_head.ticket + w.ticket END;
  w.enqueued_at := clock_timestamp();
  INSERT INTO waiters AS q VALUES (w.*) ON CONFLICT (grant_id) DO NOTHING RETURNING q.ticket INTO enqueue.ticket;
  IF NOT FOUND THEN
    SELECT q.ticket INTO enqueue.ticket FROM waiters q WHERE q.grant_id = w.grant_id AND q.name = w.name;
    IF NOT FOUND THEN
      PERFORM refuse('grant_id', 'in use for another lock', 'be chosen anew for each request');
    END IF;
  END IF;
  IF NOT p_head.queued OR p_head.expires_at <= clock_timestamp() THEN   -- serve may have found that all of the queue is dead
    UPDATE locks l SET queued = true WHERE l.name = w.name AND l.slot = 0 AND NOT l.queued;
  END IF;
  SELECT count(*) + 1 INTO enqueue.place FROM (
    SELECT FROM waiters q WHERE q.name = w.name AND q.ticket < enqueue.ticket ORDER BY q.ticket LIMIT 99) ahead;
  enqueue.is_first := place = 1 OR (next_waiter(w.name)).ticket = enqueue.ticket;
END $$;

-- Telling.

-- hint is what tells a waiter of its grant: ticket, token, slot, the microseconds that are left of the lease, the first token
-- of its block; and before these their digest with the grant ID, so that nobody else can make a client believe in a grant.
CREATE FUNCTION hint(r locks) RETURNS text
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  said text := concat_ws(' ', r.ticket, r.token, r.slot, microseconds_until(r.expires_at), r.first_token);
BEGIN
  RETURN encode(sha256(convert_to(said, 'UTF8') || uuid_send(r.grant_id)), 'hex') || ' ' || said;
END $$;

CREATE FUNCTION watch_channel(p_name text) RETURNS text
LANGUAGE sql IMMUTABLE
AS $$ SELECT 'pglock_w' || left(encode(sha256(convert_to(p_name, 'UTF8')), 'hex'), 40) $$;

-- announce tells whoever holds these slots that they were granted to them, and whoever watches the locks. p_slots has NULL
-- for watchers alone. NOTIFY takes a lock of the whole cluster until its transaction ends: so this is called after the
-- grant, in a transaction of its own that does not wait for the disk. Answers how many sessions it told.
CREATE FUNCTION announce(p_names text[], p_slots int[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  n bigint;
BEGIN
  SELECT count(pg_notify('pglock_' || replace(l.session_id::text, '-', ''), hint(l))) INTO n
    FROM unnest(p_names, p_slots) AS a (name, slot) JOIN locks l ON l.name = a.name AND l.slot = a.slot
    WHERE l.ticket > 0 AND l.expires_at > clock_timestamp();
  PERFORM pg_notify(watch_channel(l.name), '') FROM (SELECT DISTINCT a.name FROM unnest(p_names) AS a (name)) a
    JOIN locks l ON l.name = a.name AND l.slot = 0 WHERE l.watched_until > clock_timestamp();
  RETURN n;
END $$;
