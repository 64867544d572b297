-- What people look at. These are for everybody who may use locks; nobody reads a grant ID. A lock with several
-- holders has a row for each. Nothing here locks anything, except a watch.

-- What is shown of a lock. channel is where its changes are announced while somebody watches it.
CREATE VIEW described AS
  SELECT l.name, l.expires_at > clock_timestamp() AS held, l.holder, l.session_id, l.token,
         (extract(epoch FROM l.ttl) * 1000000)::bigint AS ttl_us, l.acquired_at, l.renewed_at,
         nullif(l.expires_at, '-infinity') AS expires_at,
         CASE WHEN l.expires_at = '-infinity' THEN l.ended_at END AS ended_at,
         microseconds_until(l.expires_at) AS remaining_us, l.metadata, l.slot, l.mode, l.capacity,
         CASE WHEN l.queued OR l.slot > 0 THEN (
           SELECT count(*) FROM (SELECT FROM waiters q WHERE q.name = l.name ORDER BY q.ticket LIMIT 1000000) w)
           ELSE 0 END AS waiting, watch_channel(l.name) AS channel, l.grants,
         (extract(epoch FROM l.slowest) * 1000000)::bigint AS slowest_us
  FROM locks l
  ORDER BY l.name, l.slot;                 -- the index's order: whoever reads a page stops after it

-- list_locks lists locks in the byte order of their names, p_limit holders after p_after, and never only half of a
-- lock's holders; with p_free also free locks, by their last holder. It walks the index: a plan for a page of unknown
-- size would read and sort the whole table.
CREATE FUNCTION list_locks(
  p_prefix text DEFAULT '', p_free boolean DEFAULT false, p_after text DEFAULT '', p_limit int DEFAULT 1000)
RETURNS SETOF described
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off
AS $$
  SELECT * FROM (
    SELECT d.* FROM described d
    WHERE d.name > p_after AND d.name >= p_prefix AND starts_with(d.name, p_prefix)
      AND (d.held OR p_free AND NOT EXISTS (
        SELECT FROM locks o WHERE o.name = d.name AND (o.expires_at > clock_timestamp() OR o.token > d.token)))
    ORDER BY d.name FETCH FIRST p_limit ROWS WITH TIES) page
  ORDER BY page.name, page.slot
$$;

-- get_lock returns one lock: its holders, or its last one. It is the first of all locks whose names begin like this,
-- if any.
CREATE FUNCTION get_lock(p_name text) RETURNS SETOF described
LANGUAGE sql VOLATILE SET search_path FROM CURRENT
AS $$ SELECT l.* FROM list_locks(p_name, true, '', 1) l WHERE l.name = p_name ORDER BY l.slot $$;

-- watch asks for announcements of every change of a lock on its channel, for so long, and returns its present state,
-- with every slot that there ever was. It locks the head, and makes one if there is none. Asked again in the first
-- half of p_for, it locks and writes nothing.
CREATE FUNCTION watch(p_name text, p_for interval) RETURNS SETOF described
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok   boolean := require_read_committed() AND has_bytes('name', p_name, 512) AND is_ttl('for', p_for);
  head locks;
BEGIN
  PERFORM FROM locks l WHERE l.name = p_name AND l.slot = 0 AND l.watched_until >= clock_timestamp() + p_for / 2;
  IF NOT FOUND THEN
    head := lock_head(p_name, true, true);
    UPDATE locks l SET watched_until = clock_timestamp() + p_for WHERE l.name = p_name AND l.slot = 0;
  END IF;
  RETURN QUERY SELECT * FROM described d WHERE d.name = p_name ORDER BY d.slot;
END $$;

-- list_waiters lists the queue in order, of one lock or of all, p_limit waiters after the one of lock p_after with
-- the ticket p_after_ticket. The first one whose session is alive waits for the holder, the others for the waiter
-- before them.
CREATE FUNCTION list_waiters(
  p_name text DEFAULT '', p_limit int DEFAULT 1000, p_after text DEFAULT '', p_after_ticket bigint DEFAULT 0)
RETURNS TABLE (name text, ticket bigint, place bigint, mode text, capacity int, holder text, session_id uuid,
               alive boolean, ttl_us bigint, enqueued_at timestamptz, waiting_us bigint, behind_ticket bigint,
               behind_holder text, metadata jsonb)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
  SELECT q.name, q.ticket, row_number() OVER (PARTITION BY q.name ORDER BY q.ticket) + CASE WHEN q.name = p_after
           THEN (SELECT count(*) FROM waiters e WHERE e.name = p_after AND e.ticket > 0 AND e.ticket <= p_after_ticket)
           ELSE 0 END,
         q.mode, q.capacity, q.holder, q.session_id,
         (SELECT s.alive_until > clock_timestamp() FROM sessions s WHERE s.session_id = q.session_id) IS TRUE,
         (extract(epoch FROM q.ttl) * 1000000)::bigint, q.enqueued_at,
         GREATEST(0, extract(epoch FROM clock_timestamp() - q.enqueued_at) * 1000000)::bigint,
         b.ticket, coalesce(b.holder, (
           SELECT l.holder FROM locks l WHERE l.name = q.name AND l.expires_at > clock_timestamp()
           ORDER BY l.expires_at DESC LIMIT 1)), q.metadata
  FROM (SELECT * FROM waiters w WHERE (p_name = '' OR w.name = p_name) AND w.ticket > 0
          AND (w.name, w.ticket) > (p_after, p_after_ticket)
        ORDER BY w.name, w.ticket LIMIT p_limit) q
  LEFT JOIN LATERAL (
    SELECT p.ticket, p.holder FROM waiters p WHERE p.name = q.name AND p.ticket < q.ticket
      AND (SELECT s.alive_until > clock_timestamp() FROM sessions s WHERE s.session_id = p.session_id)
    ORDER BY p.ticket DESC LIMIT 1) b ON true
  ORDER BY q.name, q.ticket
$$;

CREATE INDEX fences_lock ON fences (lock_name, resource);

-- list_fences lists the fences that a lock's tokens have passed, and that of the resource with its name; '' lists
-- every fence. They come in byte order of the resources, p_limit of them after p_after. It uses indexes, as
-- list_locks does.
CREATE FUNCTION list_fences(p_lock_name text DEFAULT '', p_limit int DEFAULT 1000, p_after text DEFAULT '')
RETURNS TABLE (resource text, last_token bigint, lock_name text, advanced_at timestamptz)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
  SELECT f.resource, f.last_token, f.lock_name, f.advanced_at FROM (
    (SELECT * FROM fences o WHERE o.lock_name = p_lock_name AND o.resource > p_after ORDER BY o.resource LIMIT p_limit)
    UNION
    SELECT * FROM fences o WHERE o.resource = p_lock_name AND o.resource > p_after
    UNION
    (SELECT * FROM fences o WHERE p_lock_name = '' AND o.resource > p_after ORDER BY o.resource LIMIT p_limit)) f
  ORDER BY f.resource LIMIT p_limit
$$;
