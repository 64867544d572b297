-- The queue, and who is granted what. Whoever grants in turn, ends a lease or takes a request back locks the head FOR
-- UPDATE: it takes the head. Whoever queues locks it FOR KEY SHARE: it joins. So while somebody has taken the head,
-- nobody queues, and only the lock's holders change anything: they renew, and commit fenced writes. Those who join are
-- in nobody's way but of those who take: many join at once, and the holder renews beside them.
--
-- Whoever reads a head selects the row as one column. Otherwise each node of the plan describes every column anew, in
-- each call: with FOR UPDATE that is half of what the statement costs.
--
-- A plan for the values at hand has them, and every user may have the server print its plans. So whatever has somebody
-- else's row of locks or waiters in a variable, or calls what has, sets plan_cache_mode = force_generic_plan, or its
-- callers do: nobody reads a grant ID or an owner (I5).

-- bound_rest bounds the rest of this transaction, which has locked what others need: it is ended if it is idle for a
-- second, or if another statement of it lasts so long, or from PostgreSQL 17 on all of them together. With p_idle only
-- if it is idle: no other statement comes, or only the row of the caller's own lease is locked. A lower limit that the
-- user has set stays.
CREATE FUNCTION bound_rest(p_idle boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
BEGIN
  RETURN bound_timeout('idle_in_transaction_session_timeout', 1000)
    AND (p_idle OR bound_timeout('statement_timeout', 1000) AND bound_transaction_timeout(1000));
END $$;

-- PostgreSQL lets those who join pass whoever waits to take: as long as others have joined, one more may. So with many
-- who queue nobody would ever take the head. Therefore whoever has to wait for it knocks first, which is heard
-- until the end of the transaction, and those who join let it go first.

-- knock says that somebody takes a row of the lock, or waits for it: any, or the lease with a grant ID. While somebody
-- listens it tries again, for some milliseconds. A row that nobody has locked it takes at once, and does not knock: the
-- server has room for some thousands of knocks, and one statement may take more rows.
CREATE FUNCTION knock(p_name text, p_slot int, p_grant_id uuid DEFAULT NULL) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  PERFORM FROM locks l WHERE l.name = p_name AND l.slot = p_slot
    AND (p_grant_id IS NULL OR l.grant_id = p_grant_id AND is_running(l.expires_at, l.ended_at)) FOR UPDATE SKIP LOCKED;
  IF FOUND OR NOT EXISTS (SELECT FROM locks l WHERE l.name = p_name AND l.slot = p_slot
      AND (p_grant_id IS NULL OR l.grant_id = p_grant_id AND is_running(l.expires_at, l.ended_at))) THEN
    RETURN;
  END IF;
  FOR attempt IN 1..20 LOOP
    EXIT WHEN pg_try_advisory_xact_lock_shared(knock_key(p_name)) OR pg_sleep(0.001) IS NULL;
  END LOOP;
END $$;

-- knock_key is the key of the advisory lock by which a knock is heard. Whoever else locks it delays those who queue, by
-- no more than give_way says.
CREATE FUNCTION knock_key(p_name text) RETURNS bigint
LANGUAGE sql STABLE
AS $$ SELECT hashtextextended(p_name, 'locks'::regclass::oid::bigint) $$;

-- give_way waits while somebody knocks, until the caller's statement has lasted a second: by then whoever had joined
-- before is done. A statement for many waits for a moment only: it may have joined the heads of other locks. Whoever
-- has locked a row of the lock does not call it: they would wait for each other.
CREATE FUNCTION give_way(p_name text, p_many boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT
AS $$
DECLARE
  key  bigint := knock_key(p_name);
  wait float8 := 0.001;
  till timestamptz := LEAST(statement_timestamp() + interval '1 s',
    clock_timestamp() + CASE WHEN p_many THEN interval '50 ms' END);
BEGIN
  LOOP   -- locked and unlocked in one expression, which nothing interrupts
    EXIT WHEN CASE WHEN pg_try_advisory_lock(key) THEN pg_advisory_unlock(key) END OR clock_timestamp() > till;
    PERFORM pg_sleep(wait);
    wait := LEAST(2 * wait, 0.016);
  END LOOP;
  RETURN true;
END $$;

-- take_head locks the head of a lock FOR UPDATE. If there is none, p_make makes it create one. NULL: there is no head,
-- or it is locked and p_wait is false.
CREATE FUNCTION take_head(p_name text, p_wait boolean, p_make boolean) RETURNS locks
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  head locks;
BEGIN
  IF p_wait THEN
    PERFORM knock(p_name, 0);
  END IF;
  LOOP
    IF p_wait THEN
      head := (SELECT l FROM locks l WHERE l.name = p_name AND l.slot <= 0 ORDER BY l.slot DESC LIMIT 1 FOR UPDATE);
    ELSE
      head := (SELECT l FROM locks l WHERE l.name = p_name AND l.slot <= 0 ORDER BY l.slot DESC LIMIT 1
        FOR UPDATE SKIP LOCKED);
    END IF;
    EXIT WHEN head.name IS NOT NULL OR NOT p_make
      OR NOT p_wait AND EXISTS (SELECT FROM locks l WHERE l.name = p_name AND l.slot = 0);
    PERFORM make_head(p_name);
  END LOOP;
  RETURN head;
END $$;

-- join_head locks the head of a lock FOR KEY SHARE, and creates it if there is none. It waits for whoever has taken it.
CREATE FUNCTION join_head(p_name text) RETURNS locks
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  head locks;
BEGIN
  LOOP
    head := (SELECT l FROM locks l WHERE l.name = p_name AND l.slot <= 0 ORDER BY l.slot DESC LIMIT 1 FOR KEY SHARE);
    EXIT WHEN head.name IS NOT NULL;
    PERFORM make_head(p_name);
  END LOOP;
  RETURN head;
END $$;

-- await_head waits until the head of a lock can be joined. It locks nothing.
CREATE FUNCTION await_head(p_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  PERFORM FROM locks l WHERE l.name = p_name AND l.slot = 0 FOR KEY SHARE;
  RAISE SQLSTATE 'LK000';
EXCEPTION
  WHEN SQLSTATE 'LK000' THEN RETURN true;
END $$;

-- make_head creates the head of a lock that nobody holds, unless there is one.
CREATE FUNCTION make_head(p_name text) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  INSERT INTO locks (name, token, grant_id, session_id, holder, ttl, acquired_at, renewed_at, expires_at)
    SELECT p_name, draw_token(0), gen_random_uuid(), gen_random_uuid(), '-', interval '1 s', clock_timestamp(),
      clock_timestamp(), '-infinity'
    ON CONFLICT (name, slot) DO NOTHING;
END $$;

-- next_waiter returns the lowest ticket above p_served whose session is alive; those between are dead. All tickets up
-- to the last one served are gone, and that part of the index may be full of their remains.
CREATE FUNCTION next_waiter(p_name text, p_served bigint) RETURNS waiters
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  r record;
BEGIN
  LOOP   -- one by one, so that no plan reads the whole queue
    SELECT q AS w, q.ticket, (SELECT s.alive_until > clock_timestamp() FROM sessions s
      WHERE s.session_id = q.session_id) AS alive
      INTO r FROM waiters q WHERE q.name = p_name AND q.ticket > p_served ORDER BY q.ticket LIMIT 1;
    EXIT WHEN r.ticket IS NULL OR r.alive;
    p_served := r.ticket;
  END LOOP;
  RETURN r.w;
END $$;

-- free_at says when a request could be granted, by the present leases, and by what is in its way above and below; NULL
-- if it could be now. It ignores the queue and locks nothing: it is an estimate.
CREATE FUNCTION free_at(w waiters) RETURNS timestamptz
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN GREATEST((
    SELECT CASE w.mode
             WHEN 'exclusive' THEN max(l.expires_at)
             WHEN 'shared' THEN max(l.expires_at) FILTER (WHERE l.mode <> 'shared')
             ELSE coalesce(max(l.expires_at) FILTER (WHERE l.mode <> 'limit'),
                           CASE WHEN count(*) >= w.capacity THEN min(l.expires_at) END)
           END
    FROM locks l WHERE l.name = w.name AND is_running(l.expires_at, l.ended_at)),
    CASE WHEN in_tree(w) THEN (SELECT max(o.until) FROM obstacles(w) o) END);
END $$;

-- is_held says, without locking, that a lease is in the way of the next in the queue, or of w if nobody queues.
CREATE FUNCTION is_held(w waiters, p_head locks) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  nxt waiters;
BEGIN
  IF is_running(p_head.expires_at, p_head.ended_at) THEN
    RETURN true;
  END IF;
  IF p_head.top_slot > 0 THEN
    nxt := next_waiter(w.name, p_head.served);
    nxt := CASE WHEN nxt.ticket IS NULL THEN w ELSE nxt END;
    RETURN free_at(nxt) IS NOT NULL;
  END IF;
  RETURN false;
END $$;

-- is_taken says, without locking, that a request would have to wait: for somebody else's lease, or for somebody who
-- queues. It raises if the request would be refused in any case.
CREATE FUNCTION is_taken(w waiters, p_head locks) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  held boolean := is_running(p_head.expires_at, p_head.ended_at);
  ok   boolean := NOT w.nested OR refuse_own(w);                        -- whose lease may be in any slot
BEGIN
  IF held AND p_head.grant_id <> w.grant_id THEN
    RETURN true;
  END IF;
  ok := w.mode <> 'limit' OR p_head.limit_named = w.capacity OR refuse_limit(w.name, w.capacity, false);
  RETURN ((next_waiter(w.name, p_head.served)).ticket IS NOT NULL AND NOT is_own(w)
    OR free_at(w) IS NOT NULL)
    AND NOT EXISTS (SELECT FROM locks l WHERE l.name = w.name AND l.grant_id = w.grant_id);
END $$;

-- refusal is the answer that says who holds the lock; of several holders, the one whose lease ends last, and where a
-- subtree is in the way or below it somebody's lease, by names that lock. If the request fits beside all holders, as a
-- reader beside readers, the next in the queue is in its way: holder names that one, without a token. The place
-- counts dead tickets. Where the lock is free, the first is who has none but dead ones before it: nobody else will ask.
-- Whoever waits around a subtree is told of grants and ends alone: told of refusals, they would ask and tell for ever.
CREATE FUNCTION refusal(
  w waiters, p_head locks, p_ticket bigint, p_place int, p_handed json) RETURNS acquired
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
  token  bigint := p_head.token;
  holder text := p_head.holder;
  until  timestamptz := p_head.expires_at;
  free   timestamptz := p_head.expires_at;
  other  text;
  left_  bigint;
  fits   boolean;                                        -- beside those who hold this very lock
  nxt    waiters;
BEGIN
  IF NOT is_running(p_head.expires_at, p_head.ended_at) THEN                            -- else it is exclusive
    w.ticket := coalesce(p_ticket, 0);
    SELECT l.token, l.holder, l.expires_at, l.mode = w.mode AND l.mode <> 'exclusive'
        AND (count(*) OVER () < w.capacity) IS NOT FALSE INTO token, holder, until, fits
      FROM locks l WHERE l.name = w.name AND is_running(l.expires_at, l.ended_at) ORDER BY l.expires_at DESC LIMIT 1;
    free := free_at(w);
    IF (until IS NULL OR fits) AND free IS NOT NULL THEN                                -- another lock is in the way
      SELECT o.token, o.holder, CASE WHEN NOT o.queued THEN o.until END, o.name
        INTO token, holder, until, other FROM obstacles(w) o ORDER BY o.queued, o.until DESC, o.name LIMIT 1;
    ELSIF fits THEN
      nxt := next_waiter(w.name, p_head.served);
      IF nxt.grant_id <> w.grant_id THEN
        token := NULL; holder := nxt.holder; until := NULL;
      END IF;
    END IF;
  END IF;
  left_ := microseconds_until(free);
  RETURN ROW(false, token, json_strip_nulls(json_build_object(
    'holder', holder, 'expires_at', json_time(until), 'by', other, 'remaining_us', left_, 'ticket', p_ticket,
    'place', p_place,
    'first', nullif(p_place = 1 OR left_ = 0 AND (next_waiter(w.name, p_head.served)).ticket >= p_ticket, false),
    'handed', p_handed, 'watched', nullif(p_head.watched_until > clock_timestamp()
      AND (p_handed IS NOT NULL OR p_head.watched_until < 'infinity'), false))));
END $$;

-- refuse_own raises when the owner of a request holds the lock itself, but for the very grant that is asked for: an
-- answer may have been lost.
CREATE FUNCTION refuse_own(w waiters) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  t bigint;
BEGIN
  SELECT l.token INTO t FROM locks l
    WHERE l.name = w.name AND l.owner_id = w.owner_id AND l.grant_id <> w.grant_id
      AND is_running(l.expires_at, l.ended_at) LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'lock % is held by the one who asks for it, with token %', quote_literal(w.name), t
      USING ERRCODE = 'LK004', DETAIL = 'circle=self', HINT = 'Use the lease that is held, or release it first.';
  END IF;
  RETURN true;
END $$;

-- name_limit notes in the head which limit a request names, so that the next need not look, unless it is refused. The
-- caller has taken the head or joined. Of those who have joined with another limit, one after the other names it: who
-- comes later sees the ticket of who came before.
CREATE FUNCTION name_limit(w waiters) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  PERFORM FROM locks l WHERE l.name = w.name AND l.slot = 0 FOR NO KEY UPDATE;
  IF refuse_limit(w.name, w.capacity, true) THEN
    UPDATE locks l SET limit_named = w.capacity WHERE l.name = w.name AND l.slot = 0;
  END IF;
END $$;

-- refuse_limit raises when the lock is in use with another limit: by a lease that is not over, or by a live waiter.
-- Only under the head's lock (p_locked) can it find out whether a lease that has run out is over.
CREATE FUNCTION refuse_limit(p_name text, p_capacity int, p_locked boolean) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  other int;
BEGIN
  IF p_locked THEN
    PERFORM settle(p_name);
  END IF;
  SELECT u.capacity INTO other FROM (
      SELECT l.capacity FROM locks l
      WHERE l.name = p_name AND l.mode = 'limit' AND (is_running(l.expires_at, l.ended_at)
        OR p_locked AND NOT is_over(l.expires_at, l.ended_at))
      UNION ALL
      SELECT q.capacity FROM waiters q
      WHERE q.name = p_name AND q.mode = 'limit' AND session_alive(q.session_id) AND q.ticket > (
        SELECT h.served FROM locks h WHERE h.name = p_name AND h.slot = 0)) u
    WHERE u.capacity <> p_capacity LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'limit of lock % is %: it is in use with limit %', quote_literal(p_name), p_capacity, other
      USING ERRCODE = 'LK010', HINT = 'Every user of a lock must name the same limit.';
  END IF;
  RETURN true;
END $$;

-- settle finds the leases that have run out and have nothing under way, and notes that they are over. It waits for
-- nobody: a row that it cannot lock at once, because of a renewal or a COMMIT, counts as held. It locks rows FOR
-- UPDATE, so a prepared transaction that has passed the lease's check also keeps it held (I4). In a transaction that
-- has renewed leases, those count as held that had not run out when it began: see require_unrenewed.
CREATE FUNCTION settle(p_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  seen boolean;
BEGIN
  WITH over AS (
    UPDATE locks l SET ended_at = l.expires_at
    WHERE l.name = p_name AND l.slot = ANY (ARRAY(       -- a join may look for them once for each slot
      SELECT o.slot FROM locks o
      WHERE o.name = p_name AND o.expires_at <= clock_timestamp() AND NOT is_over(o.expires_at, o.ended_at)
        AND (current_setting('pglock.renewed', true) IS DISTINCT FROM 'true'
             OR o.expires_at < transaction_timestamp())
      ORDER BY o.slot FOR UPDATE SKIP LOCKED)) RETURNING l.xmin = l.xmax AS seen)
  SELECT bool_and(o.seen) INTO seen FROM over o;
  RETURN seen IS NOT NULL AND (seen OR refuse_unseen_end('55P03'));
END $$;

-- standing counts the leases that are not over, by mode, and returns their limit and the greatest token of the lock.
CREATE FUNCTION standing(
  p_name text, OUT exclusive int, OUT shared int, OUT limited int, OUT capacity int, OUT above bigint)
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  PERFORM settle(p_name);
  SELECT count(*) FILTER (WHERE held AND mode = 'exclusive'),
         count(*) FILTER (WHERE held AND mode = 'shared'), count(*) FILTER (WHERE held AND mode = 'limit'),
         max(s.capacity) FILTER (WHERE held), max(token)
    INTO exclusive, shared, limited, standing.capacity, above
    FROM (SELECT l.slot, l.mode, l.capacity, l.token, NOT is_over(l.expires_at, l.ended_at) AS held FROM locks l
      WHERE l.name = p_name) s;
END $$;

-- What a statement has granted. token and slot belong to the request that it answers; hints and handed to others, as
-- described for acquire_lease. slots and tokens: of the latest batch.
CREATE TYPE grants AS (token bigint, slot int, hints text[], handed int[], slots int[], tokens bigint[]);

-- serve grants the lock to the next in the queue, for as long as the modes allow: one writer, or readers, or as many
-- as a limit leaves room for (I9). After the queue comes w, which has no ticket yet and may be NULL. The caller has
-- taken the head; p_at is its place, if it knows it. The answer itself informs the waiters of p_session_id; p_grant_id
-- is the request that is being answered. p_own: w is_own, and so comes before the queue, which waits for its owner.
-- NULL as p_grant_id: it follows an end, which must not fail because the history is locked. Then a grant over a lease
-- that ran out is left to the first in the queue, who asks, as after an expiry.
--
-- Every ticket up to the last one that was served counts no more: it was granted, its session is dead, or somebody is
-- taking it back, or it names another limit than the leases that stand: of two that join at once with two limits
-- neither sees the other, so the later one is refused when it asks again. serve never waits for a ticket's row.
--
-- One call grants to a thousand who queue, or for a moment, so that it ends whoever waits. Then slot 0, which nobody
-- has, is among what it has handed: announce tells the next to ask. Whoever asks has the next thousand granted it.
CREATE FUNCTION serve(
  p_head locks, p_at tid, w waiters, p_session_id uuid, p_grant_id uuid, p_own boolean DEFAULT false) RETURNS grants
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  g         grants;  nxt waiters;  batch waiters[];  slots int[];
  room      int := 1000;  till timestamptz := clock_timestamp() + interval '250 ms';   -- for how many, and how long
  upto      bigint := p_head.served;  above bigint := p_head.token;   -- tickets that count no more; the greatest token
  exclusive int := 0;  shared int := 0;  limited int := 0;  in_use int;   -- leases that are not over; their limit
BEGIN
  IF is_running(p_head.expires_at, p_head.ended_at) THEN RETURN g;   -- an exclusive lease is in everybody's way
  ELSIF p_head.top_slot > 0 OR NOT is_over(p_head.expires_at, p_head.ended_at) THEN
    SELECT s.* INTO exclusive, shared, limited, in_use, above FROM standing(p_head.name) s;
  END IF;
  WHILE exclusive = 0 LOOP
    nxt := next_waiter(p_head.name, upto);
    IF p_own THEN nxt := w; w := NULL;
    ELSIF g.token IS NOT NULL AND nxt.grant_id = p_grant_id THEN   -- it had queued before it was own: once
      upto := nxt.ticket;  CONTINUE;
    ELSIF nxt.ticket IS NULL THEN
      upto := GREATEST(upto, (SELECT s.last_value FROM ticket_seq s WHERE (            -- nobody is drawing one
        SELECT q.ticket FROM waiters q WHERE q.name = p_head.name AND q.ticket > upto ORDER BY 1 LIMIT 1) > 0));
      EXIT WHEN w.ticket IS NULL;  nxt := w; w := NULL;
    END IF;
    EXIT WHEN in_tree(nxt) AND NOT fits_tree(nxt, p_own)
      AND (p_head.queued OR nxt.ticket = 0 OR keep_queue(nxt.name));
    p_own := false;  batch := NULL;
    IF nxt.mode = 'exclusive' THEN
      EXIT WHEN shared > 0 OR limited > 0
        OR p_grant_id IS NULL AND p_head.expires_at > '-infinity' AND NOT history_open();
      batch := claim(ARRAY[nxt], upto);
      IF batch IS NOT NULL THEN
        g := grant_head(g, nxt, coalesce(p_at, place_of(p_head.name)), above, p_head.expires_at > '-infinity',
          GREATEST(upto, nxt.ticket));  exclusive := 1;
      END IF;
    ELSE
      EXIT WHEN CASE nxt.mode WHEN 'shared' THEN limited ELSE shared END > 0 OR room = 0 AND nxt.ticket > 0;
      IF (nxt.capacity <> in_use) IS NOT TRUE THEN
        slots := free_slots(p_head.name, nxt.capacity, LEAST(nxt.capacity - limited,
          CASE WHEN nxt.ticket = 0 OR in_tree(nxt) THEN 1 ELSE room END), p_grant_id IS NULL);
        EXIT WHEN slots IS NULL;
        batch := claim(CASE WHEN nxt.ticket > 0 THEN next_batch(nxt, cardinality(slots)) ELSE ARRAY[nxt] END, upto);
      END IF;
      IF batch IS NOT NULL THEN
        g := grant_slots(g, batch, slots[1:cardinality(batch)], above);
        in_use := nxt.capacity;  above := g.tokens[cardinality(batch)];
        room := CASE WHEN clock_timestamp() < till THEN room - cardinality(batch) ELSE 0 END;
        shared := shared + CASE nxt.mode WHEN 'shared' THEN cardinality(batch) ELSE 0 END;
        limited := limited + CASE nxt.mode WHEN 'limit' THEN cardinality(batch) ELSE 0 END;
      END IF;
    END IF;
    upto := GREATEST(upto, nxt.ticket, batch[cardinality(batch)].ticket);
    g := tell(g, batch, p_session_id, p_grant_id);
  END LOOP;
  IF exclusive = 0 AND upto > p_head.served THEN       -- else grant_head has done it
    UPDATE locks l SET served = upto WHERE l.name = p_head.name AND l.slot = 0;
  END IF;
  g.handed := CASE WHEN room = 0 THEN g.handed || 0 ELSE g.handed END;
  RETURN g;
END $$;

-- claim takes requests out of the queue that are to be granted, with the dead ones before them above p_served, and
-- returns those that it got; NULL: none. A request whose ticket somebody has locked is being taken back. A request
-- without a ticket is got.
CREATE FUNCTION claim(p_batch waiters[], p_served bigint) RETURNS waiters[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  top bigint := p_batch[cardinality(p_batch)].ticket;
  got bigint[];
BEGIN
  IF top IS NULL OR top = 0 THEN
    RETURN p_batch;
  END IF;
  WITH gone AS (
    DELETE FROM waiters q WHERE q.ctid = ANY (ARRAY(
      SELECT o.ctid FROM waiters o WHERE o.name = p_batch[1].name AND o.ticket > p_served AND o.ticket <= top
      ORDER BY o.ticket DESC LIMIT cardinality(p_batch) + 1000 FOR UPDATE SKIP LOCKED)) RETURNING q.ticket)
    SELECT array_agg(n.ticket) INTO got FROM gone n;
  IF cardinality(p_batch) = 1 THEN
    RETURN CASE WHEN top = ANY (got) THEN p_batch END;
  END IF;
  RETURN (SELECT array_agg(b ORDER BY b.ticket) FROM unnest(p_batch) b WHERE b.ticket = ANY (got));
END $$;

-- place_of is where the present version of a head lies, for whoever has taken it.
CREATE FUNCTION place_of(p_name text) RETURNS tid
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN (SELECT l.ctid FROM locks l WHERE l.name = p_name AND l.slot <= 0 ORDER BY l.slot DESC LIMIT 1);
END $$;

-- grant_head gives the head to a request. The caller has taken it, and it lies at that place; this is an update of the
-- key whatever it changes, as in acquire_lease. It moves when somebody marks the head, also this transaction, as to
-- watch it for a subtree above. The caller has also checked that the previous lease is over, that nothing else is in
-- the way, and whose turn it is. p_ran_out: the previous lease ran out, which the history has as a takeover. p_served
-- is the last ticket that counts no more; 0 if one is granted before its turn. p_handed: the holder of the present
-- lease ends it by this grant. Only then does ended_at change, by which note_tenure tells it from a grant over
-- somebody's lease.
CREATE FUNCTION grant_head(
  g grants, w waiters, p_at tid, p_above bigint, p_ran_out boolean, p_served bigint, p_handed boolean DEFAULT false)
RETURNS grants
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  ok   boolean := require_durable_commit();
  t    bigint := draw_token(p_above);
  seen boolean;
BEGIN
  IF p_ran_out THEN
    INSERT INTO events (kind, lock_name, token, new_token, holder, actor, session_id, slot, mode, granted_at, ended_at,
        number, subtree)
      SELECT 'takeover', l.name, l.token, t, l.holder, w.holder, l.session_id, l.slot, l.mode, l.acquired_at,
        l.expires_at, l.grants, l.subtree
      FROM locks l WHERE l.ctid = p_at;
  END IF;
  UPDATE locks l SET
    token = t, grant_id = w.grant_id, session_id = w.session_id, owner_id = w.owner_id, holder = w.holder,
    ticket = coalesce(nullif(w.ticket, 0), l.ticket), served = GREATEST(l.served, p_served), ttl = w.ttl,
    acquired_at = clock_timestamp(), renewed_at = clock_timestamp(), expires_at = clock_timestamp() + w.ttl,
    ended_at = CASE WHEN p_handed THEN clock_timestamp() ELSE l.ended_at END,
    metadata = w.metadata, grants = l.grants + 1, slowest = NULL, queued = false, extended = false,
    subtree = w.subtree,
    watched_until = CASE WHEN w.subtree THEN 'infinity' ELSE l.watched_until END
    WHERE l.ctid = p_at RETURNING l.xmin = l.xmax INTO seen;
  IF NOT FOUND THEN                                      -- nobody is told of a grant that is not there
    RAISE EXCEPTION 'the row of lock % has moved: nothing was done', quote_literal(w.name)
      USING ERRCODE = 'serialization_failure', HINT = 'Try again.';
  END IF;
  ok := seen OR NOT p_handed OR refuse_unseen_end('55000');
  g.slots := ARRAY[0];
  g.tokens := ARRAY[t];
  RETURN g;
END $$;

-- next_batch returns the live waiters from w on that can be granted together with it: of its mode and limit, at most
-- p_most, and only one where each has to be compared with a tree.
CREATE FUNCTION next_batch(w waiters, p_most int) RETURNS waiters[]
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN (
    SELECT array_agg(b.q ORDER BY b.ticket) FROM (
      SELECT n.q, n.ticket, bool_and((n.q).mode = w.mode AND (n.q).capacity IS NOT DISTINCT FROM w.capacity
                                     AND (n.ticket = w.ticket OR NOT in_tree(n.q))) OVER (ORDER BY n.ticket) AS fits
      FROM (SELECT o AS q, o.ticket FROM waiters o WHERE o.name = w.name AND o.ticket >= w.ticket
            ORDER BY o.ticket LIMIT p_most) n) b
    WHERE b.fits AND ((b.q).ticket = w.ticket OR session_alive((b.q).session_id)));
END $$;

-- free_slots locks slots whose leases are over, the lowest first, and adds new ones: at most p_most, none above the
-- limit. NULL if there is none. With p_ended it leaves out what ran out while the history is locked: see serve.
CREATE FUNCTION free_slots(p_name text, p_capacity int, p_most int, p_ended boolean) RETURNS int[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  slots int[];
  top   int;
BEGIN
  SELECT array_agg(f.slot ORDER BY f.slot) INTO slots FROM (
    SELECT l.slot FROM locks l
    WHERE l.name = p_name AND l.slot > 0 AND l.slot <= coalesce(p_capacity, l.slot)
      AND CASE WHEN l.expires_at = '-infinity' THEN true WHEN is_over(l.expires_at, l.ended_at)
        THEN (SELECT NOT p_ended OR history_open()) ELSE false END         -- asked once, and for what ran out alone
    ORDER BY l.slot LIMIT GREATEST(p_most, 0) FOR UPDATE SKIP LOCKED) f;
  SELECT l.top_slot INTO top FROM locks l WHERE l.name = p_name AND l.slot = 0;
  slots := slots || ARRAY(SELECT generate_series(top + 1, LEAST(top + p_most - coalesce(cardinality(slots), 0),
    p_capacity)));
  RETURN nullif(slots, '{}');
END $$;

-- grant_slots gives each request of the batch a slot, the oldest the lowest, and notes its limit in the head: while
-- a lease stands, no other is noted. The head of a subtree is watched, as in grant_head. The caller has locked the
-- slots with a row FOR UPDATE. It needs the history only for leases that ran out: an INSERT of no rows waits for a
-- table that is locked, too.
CREATE FUNCTION grant_slots(g grants, p_batch waiters[], p_slots int[], p_above bigint) RETURNS grants
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  lock text := p_batch[1].name;
  ok   boolean := require_durable_commit();
BEGIN
  g.slots := p_slots;
  g.tokens := ARRAY(SELECT draw_token(p_above) FROM generate_subscripts(p_slots, 1));
  IF EXISTS (SELECT FROM locks l WHERE l.name = lock AND l.slot = ANY (p_slots) AND l.expires_at > '-infinity') THEN
    INSERT INTO events (kind, lock_name, token, new_token, holder, actor, session_id, slot, mode, capacity, granted_at,
        ended_at, number, subtree)
      SELECT 'takeover', lock, l.token, g.tokens[i], l.holder, p_batch[i].holder, l.session_id, l.slot, l.mode,
        l.capacity, l.acquired_at, l.expires_at, l.grants, l.subtree
      FROM generate_subscripts(p_slots, 1) i JOIN locks l ON l.name = lock AND l.slot = p_slots[i]
      WHERE l.expires_at > '-infinity';
  END IF;
  INSERT INTO locks AS l (name, slot, token, grant_id, session_id, owner_id, holder, mode, capacity, ticket, ttl,
    acquired_at, renewed_at, expires_at, metadata, grants, subtree)
    SELECT w.name, p_slots[w.i], g.tokens[w.i], w.grant_id, w.session_id, w.owner_id, w.holder, w.mode, w.capacity,
      w.ticket, w.ttl, clock_timestamp(), clock_timestamp(), clock_timestamp() + w.ttl, w.metadata, 1, w.subtree
    FROM unnest(p_batch) WITH ORDINALITY AS w (name, ticket, mode, capacity, grant_id, session_id, owner_id, nested,
      holder, ttl, metadata, enqueued_at, subtree, i)
    ON CONFLICT (name, slot) DO UPDATE SET
      token = EXCLUDED.token, grant_id = EXCLUDED.grant_id, session_id = EXCLUDED.session_id,
        owner_id = EXCLUDED.owner_id,
      holder = EXCLUDED.holder, mode = EXCLUDED.mode, capacity = EXCLUDED.capacity, ticket = EXCLUDED.ticket,
      ttl = EXCLUDED.ttl, acquired_at = EXCLUDED.acquired_at, renewed_at = EXCLUDED.renewed_at,
      expires_at = EXCLUDED.expires_at, ended_at = NULL, metadata = EXCLUDED.metadata, grants = l.grants + 1,
      slowest = NULL, extended = false, subtree = EXCLUDED.subtree;
  UPDATE locks l SET top_slot = GREATEST(l.top_slot, p_slots[cardinality(p_slots)]),
    limit_named = coalesce(p_batch[1].capacity, l.limit_named),
    watched_until = CASE WHEN p_batch[1].subtree THEN 'infinity' ELSE l.watched_until END
    WHERE l.name = lock AND l.slot = 0
      AND (l.top_slot < p_slots[cardinality(p_slots)] OR l.limit_named <> p_batch[1].capacity
           OR p_batch[1].subtree AND l.watched_until IS DISTINCT FROM 'infinity');
  RETURN g;
END $$;

-- tell notes whom the latest batch concerns; NULL: nobody.
CREATE FUNCTION tell(g grants, p_batch waiters[], p_session_id uuid, p_grant_id uuid) RETURNS grants
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  w      waiters;
  hints  text[] := g.hints;                              -- a field would be copied whole with each that is added
  handed int[] := g.handed;
BEGIN
  FOR i IN 1..coalesce(cardinality(p_batch), 0) LOOP
    w := p_batch[i];
    IF w.grant_id = p_grant_id THEN
      g.token := g.tokens[i];
      g.slot := nullif(g.slots[i], 0);
    ELSIF w.session_id = p_session_id THEN
      hints := hints || hint(w.ticket, g.tokens[i], g.slots[i], (extract(epoch FROM w.ttl) * 1000000)::bigint,
                             w.grant_id);
    ELSE
      handed := handed || g.slots[i];
    END IF;
  END LOOP;
  g.hints := hints;  g.handed := handed;
  RETURN g;
END $$;

-- handed_by returns the part of an answer that is for waiters; NULL if there is none.
CREATE FUNCTION handed_by(g grants) RETURNS json
LANGUAGE sql VOLATILE
AS $$
  SELECT CASE WHEN g.hints IS NOT NULL OR g.handed IS NOT NULL
    THEN json_strip_nulls(json_build_object('hints', g.hints, 'slots', g.handed)) END
$$;

-- decide decides about a request and answers as acquire_lease does, under the head that its caller has taken, or with
-- p_taken false joined: then it grants nothing anew, and if the lock is free the request has to ask again at once.
-- Without a head it answers nothing.
CREATE FUNCTION decide(w waiters, p_head locks, p_wait boolean, p_taken boolean) RETURNS acquired
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  mine   locks;
  g      grants;
  r      record;
  ticket bigint;
  place  int;
  ok     boolean;
  own    boolean;
BEGIN
  IF p_head.name IS NULL THEN
    RETURN NULL;
  ELSIF p_head.grant_id = w.grant_id OR p_head.top_slot > 0 THEN
    mine := lease_of(p_head, w.grant_id);
  END IF;
  IF mine.name IS NOT NULL THEN
    PERFORM grant_again(mine);
    g := ROW(mine.token, nullif(mine.slot, 0), NULL, NULL, NULL, NULL);
  ELSE
    IF p_head.spent_until > clock_timestamp() AND EXISTS (SELECT FROM spent_grants s WHERE s.grant_id = w.grant_id) THEN
      RAISE EXCEPTION 'grant ID of lock % was given up', quote_literal(w.name) USING
        ERRCODE = 'LK008', HINT = 'Choose a new grant ID.';
    END IF;
    ok := NOT w.nested OR refuse_own(w);
    IF w.mode = 'limit' AND p_head.limit_named IS DISTINCT FROM w.capacity THEN
      PERFORM name_limit(w);
    END IF;
    own := is_own(w);                                    -- once: that may end meanwhile
    IF p_taken AND NOT is_running(p_head.expires_at, p_head.ended_at) THEN
      g := serve(p_head, NULL, CASE WHEN NOT own AND (
        SELECT q.ticket FROM waiters q WHERE q.grant_id = w.grant_id) > p_head.served THEN NULL ELSE w END,
        w.session_id, w.grant_id, own);                   -- who has a ticket is served by it, and once
      IF g.token IS NOT NULL AND own THEN                -- it may have queued before its owner held the subtree
        DELETE FROM waiters q WHERE q.grant_id = w.grant_id;
      END IF;
      ok := NOT w.subtree OR g.token IS NULL OR note_granted(w, p_head.served);
      p_head := (SELECT l FROM locks l WHERE l.name = w.name AND l.slot = 0);
    END IF;
  END IF;
  IF g.token IS NULL THEN
    IF own AND (p_wait OR NOT p_taken) THEN
      RAISE EXCEPTION '% lock % is locked by another transaction',
          CASE WHEN p_taken THEN 'the subtree above' ELSE 'the row of' END, quote_literal(w.name)
        USING ERRCODE = 'lock_not_available', HINT = 'Try again.';
    END IF;
    IF p_wait AND (p_taken OR p_head.expires_at > '-infinity' OR p_head.top_slot > 0 OR p_head.queued) THEN
      ok := NOT w.subtree OR watch_subtree(w.name);      -- it locks the table before a ticket is drawn: see wait_out
      r := enqueue(w, p_head);
      ticket := r.ticket; place := r.place;
    END IF;
    RETURN refusal(w, p_head, ticket, place, handed_by(g));
  END IF;
  RETURN ROW(true, g.token, CASE
    WHEN g.slot IS NOT NULL OR g.hints IS NOT NULL OR g.handed IS NOT NULL OR p_head.watched_until > clock_timestamp()
    THEN json_strip_nulls(json_build_object('slot', g.slot, 'handed', handed_by(g),
                                            'watched', nullif(p_head.watched_until > clock_timestamp(), false))) END);
END $$;

-- lease_of finds the row of a lock with this grant ID, held or not.
CREATE FUNCTION lease_of(p_head locks, p_grant_id uuid) RETURNS locks
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  r locks;
BEGIN
  IF p_head.grant_id = p_grant_id THEN
    RETURN p_head;
  ELSIF p_head.top_slot > 0 THEN
    r := (SELECT l FROM locks l WHERE l.name = p_head.name AND l.slot > 0 AND l.grant_id = p_grant_id
      ORDER BY l.expires_at DESC LIMIT 1);
  END IF;
  RETURN r;
END $$;

-- grant_again answers a request whose earlier attempt was granted (I6). It renews the lease instead of only reading
-- it, so that this commit waits for the disk and the standby, as the lost answer's commit may not have done. It waits
-- for the lease's row for as long as its caller does for rows.
CREATE FUNCTION grant_again(p_row locks) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  PERFORM FROM renew_leases(ARRAY[p_row.name], ARRAY[p_row.token], ARRAY[p_row.grant_id], ARRAY[p_row.slot],
    current_setting('lock_timeout')::interval) r WHERE r.outcome = 'renewed';
  IF NOT FOUND THEN
    RAISE EXCEPTION 'grant ID of lock % was used before and its lease has ended', quote_literal(p_row.name)
      USING ERRCODE = 'LK008', HINT = 'Choose a new grant ID.';
  END IF;
END $$;

-- draw_ticket draws a number above every ticket that was served. If the sequence was set back, as by a restore, it is
-- set past all tickets, once; and past what others may draw before that is done.
CREATE FUNCTION draw_ticket(p_served bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  t bigint := nextval('ticket_seq');
BEGIN
  IF t <= p_served THEN
    PERFORM FROM installation FOR UPDATE;                -- one after the other
    IF (SELECT s.last_value FROM ticket_seq s) <= p_served THEN
      PERFORM setval('ticket_seq', 1000000 + GREATEST((SELECT max(l.served) FROM locks l),
                                                      (SELECT max(q.ticket) FROM waiters q)));
    END IF;
    t := nextval('ticket_seq');
  END IF;
  RETURN t;
END $$;

-- enqueue writes the ticket of a request, once; a ticket that was passed over is written anew. The caller has taken
-- the head or joined, so whoever takes the head later sees every ticket that is lower than any later one. place is
-- counted up to 100, and includes tickets of dead sessions until a look corrects it.
CREATE FUNCTION enqueue(w waiters, p_head locks, OUT ticket bigint, OUT place int)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
  r  record;
  ok boolean := p_head.expires_at > '-infinity' OR p_head.top_slot > 0 OR p_head.queued OR keep_queue(p_head.name);
BEGIN
  w.ticket := draw_ticket(p_head.served);
  w.enqueued_at := clock_timestamp();
  LOOP
    INSERT INTO waiters AS q VALUES (w.*) ON CONFLICT (grant_id) DO NOTHING RETURNING q.ticket INTO enqueue.ticket;
    EXIT WHEN FOUND AND (NOT w.subtree OR note_subtree(w));
    SELECT q.ticket, q.name, q.subtree INTO r FROM waiters q WHERE q.grant_id = w.grant_id;
    IF r.name <> w.name OR r.subtree <> w.subtree THEN
      PERFORM refuse('grant_id', 'in use for another request', 'be chosen anew for each request');
    ELSIF r.ticket > p_head.served THEN
      enqueue.ticket := r.ticket;
      EXIT;
    END IF;
    DELETE FROM waiters q WHERE q.grant_id = w.grant_id;
  END LOOP;
  SELECT count(*) + 1 INTO enqueue.place FROM (
    SELECT FROM waiters q WHERE q.name = w.name AND q.ticket > p_head.served AND q.ticket < enqueue.ticket
    ORDER BY q.ticket LIMIT 99) ahead;
END $$;

-- only_queue says that all which these requests for one lock can do is queue: they are plain, a lease is in the way of
-- all of them that is none of theirs, and no grant ID of this lock was given up lately.
CREATE FUNCTION only_queue(p_requests waiters[], p_head locks) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN is_running(p_head.expires_at, p_head.ended_at) AND (p_head.spent_until > clock_timestamp()) IS NOT TRUE
    AND (SELECT bool_and((NOT w.nested AND w.grant_id <> p_head.grant_id
           AND is_plain(w.name, w.grant_id, w.holder, w.ttl, w.metadata, w.mode, w.capacity, w.nested)) IS TRUE)
         FROM unnest(p_requests) w);
END $$;

-- queue_all queues requests of a session for one lock if they can only_queue, in their order and in one statement: see
-- enqueue. NULL: the lease has ended meanwhile, or one of them had a ticket. Then acquire_one decides about each, under
-- the head that this has joined.
CREATE FUNCTION queue_all(p_requests waiters[], p_session_id uuid) RETURNS acquired[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  answers acquired[];
  head    locks;
  tickets bigint[];
  ahead   bigint[];
  place   int;
  ok      boolean := give_way(p_requests[1].name, true);
BEGIN
  head := join_head(p_requests[1].name);
  IF NOT only_queue(p_requests, head) THEN
    RETURN NULL;
  END IF;
  WITH queued AS (
    INSERT INTO waiters AS q
      SELECT w.name, draw_ticket(head.served), w.mode, w.capacity, w.grant_id, p_session_id, w.owner_id, w.nested,
        w.holder, w.ttl, w.metadata, clock_timestamp(), w.subtree FROM unnest(p_requests) w
      ON CONFLICT (grant_id) DO NOTHING RETURNING q.ticket)
    SELECT array_agg(q.ticket) INTO tickets FROM queued q;
  IF coalesce(cardinality(tickets), 0) < cardinality(p_requests) THEN
    RETURN NULL;
  END IF;
  ahead := ARRAY(SELECT q.ticket FROM waiters q WHERE q.name = head.name AND q.ticket > head.served
    ORDER BY q.ticket LIMIT 99);
  head := (SELECT l FROM locks l WHERE l.name = head.name AND l.slot = 0);             -- who watches it now
  FOR i IN 1..cardinality(tickets) LOOP
    place := CASE WHEN place = 100 THEN 100 ELSE coalesce(array_position(ahead, tickets[i]), 100) END;
    answers[i] := refusal(p_requests[i], head, tickets[i], place, NULL);
  END LOOP;
  RETURN answers;
END $$;

-- Telling.

-- hint is the text that informs a waiter of its grant: ticket, token, slot, the lease's remaining microseconds. Before
-- these comes their digest with the grant ID, so that nobody else can make a client believe in a grant.
CREATE FUNCTION hint(p_ticket bigint, p_token bigint, p_slot int, p_left_us bigint, p_grant_id uuid) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
DECLARE
  said text := concat_ws(' ', p_ticket, p_token, p_slot, p_left_us);
BEGIN
  RETURN encode(sha256(convert_to(said, 'UTF8') || uuid_send(p_grant_id)), 'hex') || ' ' || said;
END $$;

-- watch_channel is the channel on which a lock's changes are announced. It digests the name's bytes as they are stored:
-- a name need not be UTF-8 where the database has no encoding, or there may be no such character.
CREATE FUNCTION watch_channel(p_name text) RETURNS text
LANGUAGE sql STABLE
AS $$ SELECT 'pglock_w' || left(encode(sha256(convert_to(p_name, getdatabaseencoding())), 'hex'), 40) $$;

-- announce notifies the new holders of these slots, and the watchers of the locks; a NULL in p_slots means only the
-- watchers. Where nobody has slot 0 it tells the next in the queue to ask, if that one could be granted the lock: see
-- serve. That one may be dead, so it tells the next of two other sessions, too, that could be granted it as well. It
-- returns how many sessions it told of a grant. NOTIFY takes a lock of the whole cluster until its transaction ends. So
-- call announce after the grant, in a separate transaction that does not wait for the disk.
CREATE FUNCTION announce(p_names text[], p_slots int[]) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
  ok boolean := is_batch(ARRAY[cardinality(p_names), cardinality(p_slots)]);
  a  record;
  r  record;
  n  bigint := 0;
BEGIN
  FOR a IN SELECT u.name, u.slot FROM unnest(p_names, p_slots) AS u (name, slot) LOOP
    SELECT l.name, l.slot, l.ticket, l.token, l.grant_id, l.session_id, l.expires_at, l.served,
           l.watched_until > clock_timestamp() AS watched, is_running(l.expires_at, l.ended_at) AS runs INTO r
      FROM locks l WHERE l.name = a.name AND l.slot = coalesce(a.slot, 0);
    IF a.slot >= 0 AND r.ticket > 0 AND r.runs THEN
      n := n + 1;
      ok := pg_notify('pglock_' || replace(r.session_id::text, '-', ''), hint(r.ticket, r.token, r.slot,
                      microseconds_until(r.expires_at), r.grant_id))::text IS NOT NULL;
    ELSIF a.slot = 0 AND NOT r.runs THEN
      PERFORM ask_again((array_agg(b ORDER BY b.ticket))[1])
        FROM next_waiter(a.name, r.served) w CROSS JOIN unnest(next_batch(w, 1000)) b
        WHERE w.ticket > 0 AND free_at(w) IS NULL GROUP BY b.session_id ORDER BY min(b.ticket) LIMIT 3;
    END IF;
    IF r.slot > 0 THEN
      SELECT l.name, l.watched_until > clock_timestamp() AS watched INTO r FROM locks l WHERE l.name = a.name
        AND l.slot = 0;
    END IF;
    IF r.watched THEN
      PERFORM pg_notify(watch_channel(r.name), '');      -- the server tells the same once
      PERFORM wake_tree(r.name);
    END IF;
  END LOOP;
  RETURN n;
END $$;
