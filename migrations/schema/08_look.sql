-- Looks: the state of a session's waits, and circles of owners that wait for each other.

-- look keeps the session alive and returns every ticket that still counts. ahead: live tickets before it, counted up
-- to eight; of a session's tickets for one lock all but the first say eight. For tickets with nobody ahead it adds the
-- time until they should ask again; for tickets in p_nested the circle that they close, if there is one and they are
-- its newest. served: tickets up to this one count no more; while it stays the same the queue does not move. kept is
-- false if somebody else has locked the session, and for a second if it lives for less than half of p_session_ttl, so
-- that it may not live as long as that. It locks the session and no lock: it decides nothing (I14).
CREATE FUNCTION look(p_session_key uuid, p_holder text, p_session_ttl interval, p_nested bigint[] DEFAULT '{}')
RETURNS TABLE (ticket bigint, ahead int, remaining_us bigint, circle text, served bigint, kept boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET jit = off
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
#variable_conflict use_column
DECLARE
  me    uuid := session_of(p_session_key);
  alive boolean := require_read_committed() AND keep_session(p_session_key, p_holder, p_session_ttl);
BEGIN
  IF NOT alive THEN
    BEGIN
      alive := outlive_session(me, p_holder, p_session_ttl) AND touch_session(me, p_holder, p_session_ttl);
    EXCEPTION WHEN lock_not_available THEN
      alive := false;
    END;
  END IF;
  RETURN QUERY
    WITH every AS MATERIALIZED (          -- grouped apart from this, or a plan may read all queues for their order
      SELECT q AS w, q.name FROM waiters q WHERE q.session_id = me),
    mine AS MATERIALIZED (                -- queue by queue: a join may compare each ticket with each
      SELECT m AS w, m.ticket IN (SELECT n FROM unnest(p_nested) n) AS nests, s.upto,
             CASE WHEN is_own(m) THEN 0   -- those before it wait for its owner, who holds a subtree above
               WHEN m.ticket = f.ticket THEN f.ahead ELSE 8 END AS ahead
      FROM (SELECT e.name, array_agg(e.w) AS ws FROM every e GROUP BY e.name OFFSET 0) n
        CROSS JOIN LATERAL (SELECT coalesce((
          SELECT l.served FROM locks l WHERE l.name = n.name AND l.slot = 0), 0) AS upto OFFSET 0) s
        CROSS JOIN LATERAL (              -- the first, and who is before it, as serve sees it
          SELECT o.ticket, (SELECT count(*) FROM (
              SELECT FROM waiters q WHERE q.name = n.name AND q.ticket > s.upto AND q.ticket < o.ticket AND EXISTS (
                SELECT FROM sessions s WHERE s.session_id = q.session_id AND s.alive_until > clock_timestamp())
              ORDER BY q.ticket LIMIT 8) b) AS ahead
          FROM (SELECT min(u.ticket) AS ticket FROM unnest(n.ws) u WHERE u.ticket > s.upto) o) f
        CROSS JOIN LATERAL unnest(n.ws) m
      WHERE m.ticket > s.upto)
    SELECT (m.w).ticket, m.ahead::int, CASE WHEN m.ahead = 0 THEN microseconds_until(l.free_at) END,
           CASE WHEN m.nests THEN find_circle(m.w, (
             SELECT stuck_waits(array_agg(DISTINCT (n.w).owner_id)) FROM mine n WHERE n.nests)) END, m.upto, alive
    FROM mine m CROSS JOIN LATERAL (      -- once, and so apart from the rule, which the server inlines
        SELECT CASE WHEN m.ahead = 0 THEN free_at(m.w) END OFFSET 0) l (free_at);
END $$;

-- own_tickets returns the locks and grant IDs of tickets of the session, for give_up: of tickets in a look for which
-- no call waits, as after a failover that has lost a give_up. It locks nothing.
CREATE FUNCTION own_tickets(p_session_key uuid, p_tickets bigint[]) RETURNS TABLE (name text, grant_id uuid)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
  SELECT q.name, q.grant_id FROM waiters q
  WHERE q.session_id = session_of(p_session_key) AND q.ticket = ANY (p_tickets)
$$;

-- The tickets that count: a ticket up to the last one that was served is a remnant.
CREATE VIEW queue AS
  SELECT q.*, h.served FROM waiters q JOIN locks h ON h.name = q.name AND h.slot = 0 AND q.ticket > h.served;

-- The same, for whoever reads a few by a key: OFFSET 0 keeps the planner to the order from a ticket to its lock. In the
-- other one it would read all locks.
CREATE VIEW few_tickets AS
  SELECT q.*, h.served, q AS w FROM waiters q
    CROSS JOIN LATERAL (SELECT l.served FROM locks l WHERE l.name = q.name AND l.slot = 0 OFFSET 0) h
  WHERE q.ticket > h.served;

-- Who keeps a waiter waiting, and how: the holders of the lock, waiters before it that hold locks themselves, want a
-- subtree or wait for one above, and what is in its way above and below. Outside trees the nearest such waiter that is
-- not shared waits for all before it, and stands for them. A waiter before it that waits for the same owner's ticket
-- above is not: that ticket comes first. Nor is one that holds locks or wants a subtree, where that ticket will let the
-- owner pass: see is_own.
-- any_of says that it can continue when one of several does, as with a semaphore. A waiter behind one of another mode
-- waits for all holders, because that one does.
CREATE VIEW waits AS
  SELECT q.owner_id, q.ticket, q.name AS lock, q.holder AS waiter, k.for_owner, k.holder, k.any_of, k.queued
  FROM few_tickets q CROSS JOIN LATERAL (
    SELECT l.owner_id AS for_owner, l.holder, q.mode = 'limit' AND l.mode = 'limit' AND NOT b.behind AS any_of,
           false AS queued
    FROM locks l, (SELECT q.mode <> 'exclusive' AND EXISTS (
        SELECT FROM waiters o
        WHERE o.name = q.name AND o.ticket > q.served AND o.ticket < q.ticket AND o.mode <> q.mode
          AND (SELECT s.alive_until > clock_timestamp() FROM sessions s WHERE s.session_id = o.session_id)) AS behind) b
    WHERE l.name = q.name AND is_running(l.expires_at, l.ended_at)
      AND NOT (q.mode = 'shared' AND l.mode = 'shared' AND NOT b.behind)
    UNION ALL
    SELECT o.owner_id, o.holder, false, o.queued FROM obstacles(q.w) o WHERE in_tree(q.w)
    UNION ALL
    SELECT e.owner_id, e.holder, false, true FROM waiters e
    WHERE e.name = q.name AND e.ticket > q.served AND e.ticket < q.ticket AND NOT is_own(q.w)
      AND e.ticket >= CASE WHEN strpos(q.name, '/') > 0 AND (SELECT i.subtrees FROM installation i) THEN 0
        ELSE coalesce((
        SELECT o.ticket FROM waiters o
        WHERE o.name = q.name AND o.ticket > q.served AND o.ticket < q.ticket AND o.mode <> 'shared'
          AND o.nested AND o.owner_id IS NOT NULL
          AND (SELECT s.alive_until > clock_timestamp() FROM sessions s WHERE s.session_id = o.session_id)
        ORDER BY o.ticket DESC LIMIT 1), 0) END
      AND (e.nested OR e.subtree OR in_tree(e) AND (SELECT i.subtrees FROM installation i) AND EXISTS (
        SELECT FROM above(e) a WHERE a.alive AND (a.token IS NOT NULL OR a.owner_id IS DISTINCT FROM q.owner_id)))
      AND NOT (q.mode = 'shared' AND e.mode = 'shared')
      AND NOT (q.nested AND in_tree(e) AND (SELECT i.subtrees FROM installation i) AND EXISTS (
        SELECT FROM subtrees o WHERE o.owner_id = q.owner_id AND o.name = ANY (ancestors(q.name))) AND EXISTS (
        SELECT FROM above(e) a WHERE a.alive AND a.token IS NULL AND a.owner_id = q.owner_id AND (
          q.mode = 'shared' OR (SELECT s.mode FROM subtrees s WHERE s.ticket = a.ticket) = 'exclusive')))
      AND (SELECT s.alive_until > clock_timestamp() FROM sessions s WHERE s.session_id = e.session_id)) k
  WHERE (SELECT s.alive_until > clock_timestamp() FROM sessions s WHERE s.session_id = q.session_id);

-- stuck_waits returns the waits of all who are stuck, among these owners and all that they wait for; NULL if none of
-- these owners can be the newest in a circle. It locks nothing. It is STABLE, so that it reads everything in its
-- caller's one snapshot: steps from different moments could close a circle that never existed. A session lives only as
-- long as its looks come to an end: after a second it finds nothing.
CREATE FUNCTION stuck_waits(p_owners uuid[]) RETURNS waits[]
LANGUAGE plpgsql STABLE
AS $$
DECLARE
  till    timestamptz := clock_timestamp() + interval '1 s';
  edges   waits[];
  more    waits[];
  reached uuid[] := array_remove(p_owners, NULL);
  front   uuid[] := reached;
BEGIN
  -- Every wait that can be reached from here, owner by owner: OFFSET 0 keeps the planner to that order.
  WHILE front IS NOT NULL LOOP
    SELECT array_agg(k.w), array_agg(DISTINCT (k.w).for_owner) FILTER (WHERE NOT (k.w).for_owner = ANY (reached))
      INTO more, front FROM unnest(front) f (owner_id)
        CROSS JOIN LATERAL (SELECT w FROM waits w WHERE w.owner_id = f.owner_id OFFSET 0) k;
    edges := edges || more;
    reached := reached || front;
    IF cardinality(reached) > 10000 OR clock_timestamp() > till THEN
      RETURN NULL;
    END IF;
  END LOOP;
  -- The newest ticket in a circle has an older one before it, which waits for its owner.
  IF NOT EXISTS (SELECT FROM unnest(edges) e JOIN unnest(edges) o ON o.owner_id = e.for_owner
      WHERE o.ticket >= e.ticket AND o.owner_id = ANY (p_owners)) THEN
    RETURN NULL;
  END IF;
  -- Who is stuck: everybody, until all that they wait for proves able to continue.
  LOOP
    SELECT array_agg(s.e) FILTER (WHERE CASE WHEN (s.e).any_of THEN s.every ELSE s.stuck END) INTO more FROM (
      SELECT k.e, k.stuck, bool_and(k.stuck) OVER (PARTITION BY (k.e).owner_id, (k.e).ticket, (k.e).any_of) AS every
      FROM (SELECT e, coalesce(e.for_owner IN (SELECT o.owner_id FROM unnest(edges) o), false) AS stuck
            FROM unnest(edges) e) k) s;
    IF more IS NULL OR cardinality(more) = cardinality(edges) OR clock_timestamp() > till THEN
      RETURN CASE WHEN cardinality(more) = cardinality(edges) THEN more END;
    END IF;
    edges := more;
  END LOOP;
END $$;

-- find_circle returns the circle of owners that wait for each other in which this ticket is the newest, as JSON: its
-- waits, one after the other, without the IDs of the owners, which are secrets; NULL if there is none. It looks for it
-- among stuck_waits.
CREATE FUNCTION find_circle(q waiters, p_stuck waits[]) RETURNS text
LANGUAGE plpgsql STABLE
AS $$
DECLARE
  way    jsonb := jsonb_build_array(jsonb_build_object('at', q.owner_id, 'path', '[]'::jsonb));
  seen   uuid[] := '{}';
  circle text;
BEGIN
  IF p_stuck IS NULL THEN
    RETURN NULL;
  END IF;
  -- The shortest way from the ticket back to its owner over older tickets, breadth first.
  p_stuck := ARRAY(SELECT e FROM unnest(p_stuck) e
    WHERE e.ticket < q.ticket AND e.owner_id <> q.owner_id OR e.ticket = q.ticket AND e.owner_id = q.owner_id);
  WHILE q.owner_id IN (SELECT e.for_owner FROM unnest(p_stuck) e) AND way IS NOT NULL AND circle IS NULL LOOP
    SELECT jsonb_agg(jsonb_build_object('at', n.at, 'path', n.path)), seen || array_agg(n.at),
           max(n.path::text) FILTER (WHERE n.at = q.owner_id)
      INTO way, seen, circle FROM (
        SELECT DISTINCT ON (e.for_owner) e.for_owner AS at, w -> 'path' || jsonb_build_object('lock', e.lock, 'waiter',
                 e.waiter, 'holder', e.holder, 'queued', e.queued, 'ticket', e.ticket) AS path
        FROM jsonb_array_elements(way) w JOIN unnest(p_stuck) e ON e.owner_id = (w ->> 'at')::uuid
        WHERE NOT e.for_owner = ANY (seen)
        ORDER BY e.for_owner, e.queued) n;
  END LOOP;
  RETURN circle;
END $$;
