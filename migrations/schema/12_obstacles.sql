-- What is in the way above and below, for people: obstacles, with all that is known of each. Nothing here locks a row.

-- known_obstacles is obstacles with all that people may know: leases first, the one that would last longest first.
CREATE FUNCTION known_obstacles(w waiters) RETURNS TABLE (
  name text, token bigint, ticket bigint, mode text, subtree boolean, holder text, session_id uuid, since timestamptz,
  until timestamptz)
LANGUAGE plpgsql STABLE
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
    SELECT o.name, o.token, q.ticket, coalesce(l.mode, q.mode), coalesce(l.subtree, q.subtree, false), o.holder,
      coalesce(l.session_id, q.session_id), coalesce(l.acquired_at, q.enqueued_at), o.until
    FROM obstacles(w) o
      LEFT JOIN LATERAL (
        SELECT * FROM locks s WHERE NOT o.queued AND s.name = o.name AND s.token = o.token LIMIT 1) l ON true
      LEFT JOIN LATERAL (
        SELECT * FROM few_tickets f WHERE o.queued AND f.name = o.name AND f.holder = o.holder
          AND f.owner_id IS NOT DISTINCT FROM o.owner_id ORDER BY f.ticket LIMIT 1) q ON true
    ORDER BY o.queued, o.until DESC, o.name;
END $$;

-- clear_since says since when nothing above or below has been in the way of a waiter, as far as ended leases show it;
-- NULL: something is. Where nothing can be, that is long ago.
CREATE FUNCTION clear_since(w waiters) RETURNS timestamptz
LANGUAGE plpgsql STABLE
AS $$
BEGIN
  IF NOT in_tree(w) THEN
    RETURN to_timestamp(0);
  ELSIF EXISTS (SELECT FROM obstacles(w)) THEN
    RETURN NULL;
  END IF;
  RETURN GREATEST(w.enqueued_at, (
    SELECT max(coalesce(l.ended_at, l.expires_at)) FROM locks l
    WHERE l.name = ANY (ancestors(w.name) || (SELECT s.below FROM subtrees s WHERE s.ticket = w.ticket))
      AND NOT is_running(l.expires_at, l.ended_at)));
END $$;

-- is_left says that somebody waits for a lock that nobody has held since p_over, and that nothing has been in the way
-- of the first one for three seconds. Its caller plans for the values at hand, which must not be that one's ticket:
-- see 05_queue.
CREATE FUNCTION is_left(p_name text, p_over timestamptz) RETURNS boolean
LANGUAGE plpgsql STABLE SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
  w waiters := (SELECT f.w FROM few_tickets f WHERE f.name = p_name ORDER BY f.ticket LIMIT 1);
BEGIN
  RETURN w.ticket IS NOT NULL AND p_over < clock_timestamp() - interval '3 s'
    AND (clear_since(w) < clock_timestamp() - interval '3 s') IS TRUE;
END $$;

-- first_alive is the first ticket of a queue whose session is alive.
CREATE FUNCTION first_alive(p_name text) RETURNS waiters
LANGUAGE plpgsql STABLE
AS $$
BEGIN
  RETURN (SELECT f.w FROM few_tickets f WHERE f.name = p_name AND (
    SELECT s.alive_until > clock_timestamp() FROM sessions s WHERE s.session_id = f.session_id)
    ORDER BY f.ticket LIMIT 1);
END $$;

-- keeper tells whose lease a ticket waits for: of its own lock, or else what is in its way above and below. name is the
-- lock of that lease, or ticket.
CREATE FUNCTION keeper(p_name text, p_ticket bigint) RETURNS TABLE (name text, holder text)
LANGUAGE plpgsql STABLE STRICT ROWS 1
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT l.name, l.holder FROM locks l WHERE l.name = p_name AND is_running(l.expires_at, l.ended_at)
    ORDER BY l.expires_at DESC LIMIT 1;
  IF NOT FOUND THEN
    RETURN QUERY SELECT o.name, o.holder FROM few_tickets f CROSS JOIN LATERAL known_obstacles(f.w) o
      WHERE f.name = p_name AND f.ticket = p_ticket AND in_tree(f.w) LIMIT 1;
  END IF;
END $$;

-- leases_before lists the leases that a ticket waits for: those of its own lock, and those in its way above and below.
CREATE FUNCTION leases_before(p_name text, p_ticket bigint) RETURNS SETOF locks
LANGUAGE plpgsql STABLE ROWS 2
AS $$
BEGIN
  RETURN QUERY SELECT l.* FROM locks l WHERE l.name = p_name AND is_running(l.expires_at, l.ended_at);
  RETURN QUERY SELECT l.* FROM few_tickets f CROSS JOIN LATERAL obstacles(f.w) o
      CROSS JOIN LATERAL (SELECT s.* FROM locks s WHERE s.name = o.name AND s.token = o.token LIMIT 1) l
    WHERE f.name = p_name AND f.ticket = p_ticket AND in_tree(f.w) AND NOT o.queued;
END $$;

-- list_obstacles lists what is in the way, above and below, of the first live waiter of a lock: leases (token), and
-- requests that came before (ticket), at most p_limit. If nothing is, there is one row without a name, and since says
-- since when. Without a live waiter there is no row.
CREATE FUNCTION list_obstacles(p_name text, p_limit int DEFAULT 100)
RETURNS TABLE (name text, token bigint, ticket bigint, mode text, subtree boolean, holder text, session_id uuid,
               since timestamptz, until timestamptz)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := is_length(p_limit);
  w  waiters := first_alive(p_name);
BEGIN
  IF w.ticket IS NOT NULL THEN
    RETURN QUERY SELECT * FROM known_obstacles(w) LIMIT p_limit;
    IF NOT FOUND THEN
      RETURN QUERY SELECT NULL, NULL::bigint, NULL::bigint, NULL, NULL::boolean, NULL, NULL::uuid, clear_since(w),
        NULL::timestamptz;
    END IF;
  END IF;
END $$;

-- list_obstructed lists the live waiters for other locks in whose way this one is, by a lease or a ticket: those for
-- subtrees above it, and where it is a subtree those below. Of these it looks at the first thousand tickets.
CREATE FUNCTION list_obstructed(p_name text, p_limit int DEFAULT 100)
RETURNS TABLE (name text, ticket bigint, holder text, enqueued_at timestamptz, waiting_us bigint)
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := is_length(p_limit);
BEGIN
  IF p_name <> '' AND (SELECT i.subtrees FROM installation i) THEN
    RETURN QUERY SELECT f.name, f.ticket, f.holder, f.enqueued_at,
        GREATEST(0, extract(epoch FROM clock_timestamp() - f.enqueued_at) * 1000000)::bigint
      FROM (
          SELECT s.name, s.ticket FROM subtrees s WHERE s.name = ANY (ancestors(p_name))
          UNION ALL
          (SELECT q.name, q.ticket FROM waiters q
           WHERE q.name >= p_name || '/' AND q.name < p_name || '0'
             AND EXISTS (SELECT FROM subtrees s WHERE s.name = p_name)
           ORDER BY q.name, q.ticket LIMIT 1000)) c
        CROSS JOIN LATERAL (SELECT * FROM few_tickets t WHERE t.name = c.name AND t.ticket = c.ticket OFFSET 0) f
      WHERE EXISTS (SELECT FROM obstacles(f.w) o WHERE o.name = p_name)
        AND (SELECT s.alive_until > clock_timestamp() FROM sessions s WHERE s.session_id = f.session_id)
      ORDER BY f.ticket LIMIT p_limit;
  END IF;
END $$;
