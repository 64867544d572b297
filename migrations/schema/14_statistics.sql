-- Numbers for monitoring. They name locks at most: whoever may use locks may read them. Nothing here locks anything.

-- blocked_statistics counts at most 1,000 transactions that use tables of this schema and wait for others, and those
-- others. blocking_seconds is the age of the oldest of those others, or of a prepared transaction that has locked
-- anything of this schema: most calls pass over rows that are locked, and wait without PostgreSQL. It leaves out ages
-- that the owner may not see. It uses no table of this schema: it answers also while somebody has locked one.
CREATE FUNCTION blocked_statistics() RETURNS TABLE (item text, value double precision)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET enable_nestloop = off SET jit = off
AS $$
  WITH ours AS MATERIALIZED (SELECT o.* FROM pg_locks o),
    users AS MATERIALIZED (
      SELECT r.pid, r.virtualtransaction, r.mode FROM ours r JOIN pg_class c ON c.oid = r.relation
      WHERE r.locktype = 'relation'
        AND c.relnamespace = (SELECT n.oid FROM pg_namespace n WHERE n.nspname = current_schema())
        AND r.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())),
    blocked AS MATERIALIZED (
      SELECT w.pid, w.waitstart FROM ours w WHERE NOT w.granted AND w.pid IN (SELECT u.pid FROM users u) LIMIT 1000),
    blockers AS MATERIALIZED (
      SELECT DISTINCT p.pid FROM blocked b CROSS JOIN unnest(pg_blocking_pids(b.pid)) AS p (pid)
      WHERE p.pid NOT IN (SELECT o.pid FROM blocked o))
  SELECT v.item, v.value FROM (VALUES
      ('blocked', (SELECT count(*) FROM blocked b)),
      ('blocked_seconds', (
        SELECT coalesce(GREATEST(0, extract(epoch FROM clock_timestamp() - min(b.waitstart))), 0) FROM blocked b)),
      ('blockers', (SELECT count(*) FROM blockers b)),
      ('blocking_seconds', (
        SELECT extract(epoch FROM clock_timestamp() - min(o.since)) FROM (
          SELECT a.xact_start FROM pg_stat_activity a JOIN blockers b ON b.pid = a.pid
          UNION ALL
          SELECT p.prepared FROM pg_prepared_xacts p JOIN ours o ON o.transactionid = p.transaction
          WHERE o.virtualtransaction IN (
            SELECT u.virtualtransaction FROM users u WHERE u.pid IS NULL AND u.mode <> 'AccessShareLock')) o (since)))
    ) AS v (item, value)
  WHERE v.value IS NOT NULL
$$;

-- statistics counts what there is at this moment. item says what value counts; lock_name is NULL for all locks
-- together. With p_top > 0 it also tells the numbers of single locks: of the p_top locks whose queue has waited for
-- longest or that are held for longest, in turns, and with lock_name '' of all others together. It reads the whole
-- table of locks once.
CREATE FUNCTION statistics(p_top int DEFAULT 0)
RETURNS TABLE (item text, lock_name text, value double precision)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET enable_nestloop = off SET jit = off
AS $$
  SELECT is_count('top', p_top, 0, 100000);
  WITH moment AS MATERIALIZED (SELECT clock_timestamp() AS now),
    leases AS MATERIALIZED (
      SELECT l.name, l.session_id, l.acquired_at, l.expires_at - m.now < l.ttl / 3 AS ending,
             life_of(GREATEST(CASE WHEN l.slowest IS NOT NULL THEN l.renewed_at END, s.seen_at), l.acquired_at,
                     true, NULL, false) = 'silent' AS dead
      FROM moment m JOIN locks l ON l.expires_at > m.now LEFT JOIN sessions s ON s.session_id = l.session_id),
    held AS (
      SELECT h.name, count(*) AS leases, count(*) FILTER (WHERE h.ending) AS ending, min(h.acquired_at) AS since
      FROM leases h GROUP BY h.name),
    queued AS (
      SELECT q.name, count(*) FILTER (WHERE s.alive_until > m.now) AS waiting,
             count(*) FILTER (WHERE (s.alive_until > m.now) IS NOT TRUE) AS dead,
             min(q.enqueued_at) FILTER (WHERE s.alive_until > m.now) AS since
      FROM moment m JOIN queue q ON q.ticket > 0 LEFT JOIN sessions s ON s.session_id = q.session_id GROUP BY q.name),
    known AS (
      SELECT h.name, coalesce(h.leases, 0) AS leases, coalesce(h.ending, 0) AS ending, h.since AS held_since,
             coalesce(q.waiting, 0) AS waiting, coalesce(q.dead, 0) AS dead, q.since AS waiting_since,
             LEAST(row_number() OVER (ORDER BY q.since, h.since, h.name),
                   row_number() OVER (ORDER BY h.since, q.since, h.name)) AS place
      FROM (SELECT h.name, h.leases, h.ending, h.since FROM held h
            UNION ALL
            SELECT q.name, NULL, NULL, NULL FROM queued q WHERE NOT EXISTS (SELECT FROM held o WHERE o.name = q.name)) h
        LEFT JOIN queued q ON q.name = h.name),
    ranked AS (
      SELECT CASE WHEN row_number() OVER (ORDER BY k.place, k.waiting_since, k.name) <= p_top THEN k.name ELSE '' END
               AS label, k.*
      FROM known k),
    sums AS (
      SELECT r.label, count(*) FILTER (WHERE r.leases > 0) AS locks, sum(r.leases) AS leases, sum(r.ending) AS ending,
             min(r.held_since) AS held_since, sum(r.waiting) AS waiting, sum(r.dead) AS dead,
             min(r.waiting_since) AS waiting_since
      FROM ranked r GROUP BY GROUPING SETS ((r.label), ()) HAVING p_top > 0 OR grouping(r.label) = 1)
  SELECT v.item, s.label, v.value FROM sums s CROSS JOIN moment m CROSS JOIN LATERAL (VALUES
      ('locks', s.locks), ('leases', coalesce(s.leases, 0)), ('ending', coalesce(s.ending, 0)),
      ('held_seconds', coalesce(GREATEST(0, extract(epoch FROM m.now - s.held_since)), 0)),
      ('waiters', coalesce(s.waiting, 0)), ('dead_waiters', coalesce(s.dead, 0)),
      ('waiting_seconds', coalesce(GREATEST(0, extract(epoch FROM m.now - s.waiting_since)), 0))) AS v (item, value)
  UNION ALL
  SELECT v.item, NULL, v.value FROM moment m CROSS JOIN LATERAL (VALUES
      ('sessions', (SELECT count(*) FROM sessions s WHERE s.alive_until > m.now)),
      ('dead_holders', (SELECT count(DISTINCT l.session_id) FROM leases l WHERE l.dead)),
      ('tokens', (SELECT CASE WHEN q.is_called THEN q.last_value ELSE 0 END FROM fencing_token_seq q)),
      ('notification_queue', pg_notification_queue_usage()::numeric)) AS v (item, value)
$$;

-- recent_events tells the IDs and kinds of events above p_after that somebody should know of, at most 100,000, and
-- with kind NULL the greatest ID that was drawn; on a standby, whose sequence is ahead, the greatest that is visible.
-- Events become visible when their transactions commit, and so not in the order of their IDs.
CREATE FUNCTION recent_events(p_after bigint DEFAULT NULL) RETURNS TABLE (id bigint, kind text)
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
  (SELECT e.id, e.kind FROM events e
   WHERE e.id > p_after AND e.kind IN ('takeover', 'break', 'overlap', 'bypass', 'epoch') ORDER BY e.id LIMIT 100000)
  UNION ALL
  SELECT coalesce(CASE WHEN pg_is_in_recovery() THEN (SELECT max(e.id) FROM events e)
                  ELSE pg_sequence_last_value(pg_get_serial_sequence('events', 'id')) END, 0), NULL
$$;
