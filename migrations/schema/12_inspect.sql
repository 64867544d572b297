-- What people look at. These are for everybody who may use locks; nobody reads a grant ID. A lock with several
-- holders has a row for each. Nothing here locks anything, except a watch.

-- What is shown of a lock. channel is where its changes are announced while somebody watches it.
CREATE VIEW described AS
  SELECT l.name, is_running(l.expires_at, l.ended_at) AS held, l.holder, l.session_id, l.token,
         (extract(epoch FROM l.ttl) * 1000000)::bigint AS ttl_us, l.acquired_at, l.renewed_at,
         nullif(l.expires_at, '-infinity') AS expires_at,
         CASE WHEN l.expires_at = '-infinity' THEN l.ended_at END AS ended_at,
         microseconds_until(l.expires_at) AS remaining_us, l.metadata, l.slot, l.mode, l.capacity,
         (SELECT count(*) FROM (SELECT FROM waiters q WHERE q.name = l.name AND q.ticket > h.served
                                ORDER BY q.ticket LIMIT 1000000) w) AS waiting,
         watch_channel(l.name) AS channel, l.grants, (extract(epoch FROM l.slowest) * 1000000)::bigint AS slowest_us,
         (SELECT GREATEST(0, extract(epoch FROM clock_timestamp() - q.enqueued_at) * 1000000)::bigint FROM waiters q
          WHERE q.name = l.name AND q.ticket > h.served ORDER BY q.ticket LIMIT 1) AS longest_wait_us, l.ticket,
         l.subtree
  FROM locks l CROSS JOIN LATERAL (
    SELECT CASE WHEN l.slot = 0 THEN l.served
                ELSE (SELECT o.served FROM locks o WHERE o.name = l.name AND o.slot = 0) END AS served) h
  ORDER BY l.name, l.slot;                 -- the index's order: whoever reads a page stops after it

-- get_lock returns one lock: its holders, or its last one.
CREATE FUNCTION get_lock(p_name text) RETURNS SETOF described
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT * FROM described d WHERE d.name = p_name
    AND (d.held OR NOT EXISTS (
      SELECT FROM locks o WHERE o.name = p_name AND (is_running(o.expires_at, o.ended_at) OR o.token > d.token)))
  ORDER BY d.slot;
END $$;

-- watch asks for announcements of every change of a lock on its channel, for so long, and returns its present state,
-- with every slot that there ever was. It writes the head, and makes one if there is none; it waits for others who have
-- locked the head at most a second: 55P03. Asked again in the first half of p_for, it locks and writes nothing.
CREATE FUNCTION watch(p_name text, p_for interval) RETURNS SETOF described
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '1s'
SET enable_seqscan = off SET jit = off
AS $$
DECLARE
  ok boolean := require_primary() AND require_read_committed() AND has_bytes('name', p_name, 512)
    AND is_ttl('for', p_for);
BEGIN
  PERFORM FROM locks l WHERE l.name = p_name AND l.slot = 0 AND l.watched_until >= clock_timestamp() + p_for / 2;
  IF NOT FOUND THEN
    LOOP
      UPDATE locks l SET watched_until = GREATEST(l.watched_until, clock_timestamp() + p_for)
        WHERE l.name = p_name AND l.slot = 0;
      EXIT WHEN FOUND;
      PERFORM make_head(p_name);
    END LOOP;
    ok := bound_rest(false);
  END IF;
  RETURN QUERY SELECT * FROM described d WHERE d.name = p_name ORDER BY d.slot;
END $$;

CREATE INDEX fences_lock ON fences (lock_name, resource);
