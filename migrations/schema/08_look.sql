-- Looks: how the waits of a session stand, and circles of owners that wait for each other.

-- look says that the session is alive and tells how its waiters stand: every ticket that is still queued, those that are
-- first with the time until they should ask again, and for those named in p_nested the circle that they close, if there
-- is one and they are its newest.
CREATE FUNCTION look(p_session_key uuid, p_holder text, p_session_ttl interval, p_nested bigint[] DEFAULT '{}')
RETURNS TABLE (ticket bigint, is_first boolean, remaining_us bigint, circle text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  me uuid := session_of(p_session_key);
  ok boolean := require_read_committed() AND has_bytes('holder', p_holder, 256) AND is_ttl('session ttl', p_session_ttl)
                AND (me IS NOT NULL OR refuse('session_key', NULL, 'be a UUID')) AND touch_session(me, p_holder, p_session_ttl);
BEGIN
  RETURN QUERY
    WITH mine AS MATERIALIZED (
      SELECT q.ticket, q.name, q.mode, q.capacity FROM waiters q WHERE q.session_id = me),
    firsts AS MATERIALIZED (   -- next_waiter, written out for many locks
      SELECT f.ticket FROM (SELECT m.name, min(m.ticket) AS ticket FROM mine m GROUP BY m.name) n
        CROSS JOIN LATERAL (
          SELECT q.ticket FROM waiters q WHERE q.name = n.name AND q.ticket <= n.ticket
            AND (q.ticket = n.ticket OR EXISTS (
              SELECT FROM sessions s WHERE s.session_id = q.session_id AND s.alive_until > clock_timestamp()))
          ORDER BY q.ticket LIMIT 1) f
      WHERE f.ticket = n.ticket)
    SELECT m.ticket, f.ticket IS NOT NULL,
           CASE WHEN f.ticket IS NULL THEN NULL ELSE coalesce(microseconds_until(free_at(m.name, m.mode, m.capacity)), 0) END,
           CASE WHEN m.ticket = ANY (p_nested) THEN find_circle(m.name, m.ticket) END
    FROM mine m LEFT JOIN firsts f ON f.ticket = m.ticket;
END $$;

-- own_tickets names the locks and grant IDs of tickets of the session, for give_up: of tickets that a look has told of and that
-- no call of the session waits for, as after a failover that has lost their giving up.
CREATE FUNCTION own_tickets(p_session_key uuid, p_tickets bigint[]) RETURNS TABLE (name text, grant_id uuid)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
  SELECT q.name, q.grant_id FROM waiters q WHERE q.session_id = session_of(p_session_key) AND q.ticket = ANY (p_tickets)
$$;

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
