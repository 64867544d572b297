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

-- get_lock returns one lock: its holders, or its last one.
CREATE FUNCTION get_lock(p_name text) RETURNS SETOF described
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
  SELECT * FROM described d WHERE d.name = p_name
    AND (d.held OR NOT EXISTS (
      SELECT FROM locks o WHERE o.name = p_name AND (o.expires_at > clock_timestamp() OR o.token > d.token)))
  ORDER BY d.slot
$$;

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

CREATE INDEX fences_lock ON fences (lock_name, resource);

-- backend_pids tells the server processes that list_backends describes. Of fences it reads which transaction has locked
-- the row: the row that this one has written is visible to nobody yet. A fence that nobody has passed before has no row
-- to see. It reads fences only while somebody writes under one, and goes by indexes, as list_fences does.
CREATE FUNCTION backend_pids(p_name text)
RETURNS TABLE (slot int, token bigint, holder text, use text, resource text, pid int)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET enable_seqscan = off SET enable_bitmapscan = off
AS $$
  WITH k AS MATERIALIZED (
      SELECT * FROM pg_locks o
      WHERE o.granted AND o.pid IS NOT NULL AND o.locktype IN ('advisory', 'transactionid', 'relation')),
    here AS MATERIALIZED (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()),
    writers AS MATERIALIZED (
      SELECT t.transactionid, t.pid FROM k t
      WHERE t.locktype = 'transactionid' AND t.mode = 'ExclusiveLock' AND EXISTS (
        SELECT FROM k r WHERE r.pid = t.pid AND r.locktype = 'relation' AND r.mode = 'RowExclusiveLock'
          AND r.database = (SELECT h.oid FROM here h) AND r.relation = 'fences'::regclass))
  SELECT l.slot, l.token, l.holder, 'heartbeat', NULL, k.pid
  FROM locks l JOIN k ON k.locktype = 'advisory' AND k.objsubid = 1 AND k.database = (SELECT h.oid FROM here h)
    AND (k.classid::bigint << 32 | k.objid::bigint) = session_mark(l.session_id)
  WHERE l.name = p_name AND l.expires_at > clock_timestamp()
  UNION ALL
  SELECT NULL, NULL, NULL, 'write', f.resource, w.pid
  FROM (SELECT o.resource, o.xmax AS by FROM fences o WHERE o.lock_name = p_name AND EXISTS (SELECT FROM writers)
        UNION
        SELECT o.resource, o.xmax FROM fences o WHERE o.resource = p_name AND EXISTS (SELECT FROM writers)) f
    JOIN writers w ON w.transactionid = f.by
$$;

-- list_backends tells what pg_stat_activity knows of the server processes behind a lock: of the heartbeats of its
-- holders, and of open transactions that have passed a fence of the lock. It runs with the caller's rights: hidden says
-- that the caller sees no more than the name of the application, and may_end whether pg_terminate_backend is allowed.
-- A holder whose heartbeat has not run yet, or goes through a pooler, is not in it.
CREATE FUNCTION list_backends(p_name text)
RETURNS TABLE (slot int, token bigint, holder text, use text, resource text, pid int, db_user text,
               application_name text, hidden boolean, client_addr text, started_at timestamptz, state text,
               state_us bigint, transaction_us bigint, query_us bigint, waits_for text, may_end boolean)
LANGUAGE sql VOLATILE SET search_path FROM CURRENT
AS $$
  SELECT b.slot, b.token, b.holder, b.use, b.resource, b.pid, a.usename::text, a.application_name,
         a.backend_start IS NULL, host(a.client_addr), a.backend_start, a.state,
         (extract(epoch FROM clock_timestamp() - a.state_change) * 1000000)::bigint,
         (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000)::bigint,
         (extract(epoch FROM clock_timestamp() - a.query_start) * 1000000)::bigint,
         a.wait_event_type || ': ' || a.wait_event,
         (me.rolsuper OR NOT r.rolsuper) AND (pg_has_role(r.oid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE'))
  FROM backend_pids(p_name) b JOIN pg_stat_activity a ON a.pid = b.pid
    JOIN pg_roles r ON r.oid = a.usesysid JOIN pg_roles me ON me.rolname = current_user
  ORDER BY b.use, b.slot, b.resource, b.pid
$$;
