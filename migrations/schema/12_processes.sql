-- The server's processes behind a lock, and what they wait for. Nothing here locks a row or waits for one.

-- lockers gives the transactions that may have locked a row with this xmax: its number is that of a transaction, or of
-- a group of them. The number alone does not say which. It counts as a transaction's if one of p_known has it: those
-- that are known to have locked the row, as whoever writes a row of locks locks it first, and so does whoever queues.
-- A group of that very number is missed then. Otherwise the caller looks at what each of them has locked.
CREATE FUNCTION lockers(p_xmax xid, p_known xid[]) RETURNS SETOF xid
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN NEXT p_xmax;
  IF p_xmax = ANY (p_known) THEN
    RETURN;
  END IF;
  RETURN QUERY SELECT m.xid FROM pg_get_multixact_members(p_xmax) m;
EXCEPTION
  WHEN OTHERS THEN   -- there is no group of this number
    RETURN;
END $$;

-- resource_with is the resource with this hash, if a lease of the lock writes to it by default; otherwise ''.
CREATE FUNCTION resource_with(p_name text, p_hash oid) RETURNS text
LANGUAGE sql VOLATILE
AS $$
  SELECT coalesce((SELECT n.resource FROM (
      SELECT p_name UNION ALL SELECT concat(l.name, '#', l.slot) FROM locks l WHERE l.name = p_name) n (resource)
    WHERE hashtext(n.resource)::oid = p_hash LIMIT 1), '')
$$;

-- backend_pids tells the server processes and prepared transactions that list_backends describes. It reads which
-- transactions have locked the rows of the lock and of its fences: a row that they have written is visible to nobody
-- yet. A fence that nobody has passed before has no row to see, but whoever passes it has left a mark (pass_first). It
-- reads these rows only while somebody has locked or written rows of their tables, and goes by indexes, as list_fences
-- does.
CREATE FUNCTION backend_pids(p_name text) RETURNS TABLE (
  slot int, token bigint, holder text, use text, resource text, pid int, gid text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
SET plan_cache_mode = force_generic_plan SET enable_seqscan = off SET enable_bitmapscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN RETURN QUERY
  WITH here AS MATERIALIZED (SELECT d.oid FROM pg_database d WHERE d.datname = current_database()),
    k AS MATERIALIZED (
      SELECT *, o.locktype = 'advisory' AND o.granted AND o.database = (SELECT h.oid FROM here h) AS marks
      FROM pg_locks o WHERE o.locktype IN ('advisory', 'transactionid', 'relation', 'tuple')),
    writers AS MATERIALIZED (   -- a prepared transaction has no process, but locks like one
      SELECT DISTINCT t.transactionid, t.pid, t.virtualtransaction, r.relation FROM k t
        JOIN k r ON r.virtualtransaction = t.virtualtransaction AND r.pid IS NOT DISTINCT FROM t.pid
      WHERE t.locktype = 'transactionid' AND t.granted AND t.mode = 'ExclusiveLock'
        AND r.locktype = 'relation' AND r.granted AND r.mode IN ('RowShareLock', 'RowExclusiveLock')
        AND r.database = (SELECT h.oid FROM here h) AND r.relation IN ('locks'::regclass, 'fences'::regclass)),
    firsts AS MATERIALIZED (
      SELECT w.*, m.objid AS mark, resource_with(p_name, m.objid) AS resource
      FROM k m JOIN writers w ON w.virtualtransaction = m.virtualtransaction AND w.pid IS NOT DISTINCT FROM m.pid
        AND w.relation = 'fences'::regclass
      WHERE m.marks AND m.mode = 'ShareLock' AND m.objsubid = 2 AND hashtext(p_name)::oid IN (m.classid, m.objid)),
    seen AS MATERIALIZED (
      SELECT 'locks'::regclass::oid AS relation, NULL AS resource, l.xmax AS by, l.ctid::text::point AS at,
        ARRAY[l.xmin, (SELECT q.xmin FROM waiters q WHERE q.name = l.name ORDER BY q.ticket DESC LIMIT 1)] AS known
      FROM locks l WHERE l.name = p_name AND EXISTS (SELECT FROM writers w WHERE w.relation = 'locks'::regclass)
      UNION ALL SELECT 'fences'::regclass, o.resource, o.xmax, o.ctid::text::point, ARRAY[o.xmin] FROM fences o
      WHERE o.lock_name = p_name AND EXISTS (SELECT FROM writers w WHERE w.relation = 'fences'::regclass)
      UNION ALL SELECT 'fences'::regclass, o.resource, o.xmax, o.ctid::text::point, ARRAY[o.xmin] FROM fences o
      WHERE o.resource = p_name AND o.lock_name <> p_name
        AND EXISTS (SELECT FROM writers w WHERE w.relation = 'fences'::regclass)),
    ours AS MATERIALIZED (
      SELECT s.relation, s.resource, s.at, x.xid, NULL::oid AS mark FROM seen s, lockers(s.by, s.known) x (xid)
      WHERE s.by <> '0'::xid
      UNION ALL
      SELECT f.relation, f.resource, NULL, f.transactionid, f.mark FROM firsts f WHERE NOT EXISTS (   -- it waits there
        SELECT FROM firsts e JOIN k n USING (transactionid) WHERE e.mark = f.mark AND n.pid = f.pid AND NOT n.granted))
  SELECT l.slot, l.token, l.holder, 'heartbeat', NULL, k.pid, NULL FROM locks l
    CROSS JOIN LATERAL (SELECT o.pid, o.mark FROM sessions o WHERE o.session_id = l.session_id OFFSET 0) s
    JOIN k ON k.marks AND k.objsubid = 1 AND k.pid = s.pid AND (k.classid::bigint << 32 | k.objid::bigint) = s.mark
  WHERE l.name = p_name AND is_running(l.expires_at, l.ended_at)
  UNION SELECT NULL, NULL, NULL, CASE WHEN o.resource IS NULL THEN 'row' ELSE 'write' END, nullif(o.resource, ''),
         w.pid, p.gid FROM ours o JOIN writers w ON w.transactionid = o.xid AND w.relation = o.relation
    LEFT JOIN k u ON w.pid IS NULL AND u.pid IS NULL AND u.virtualtransaction = w.virtualtransaction
    LEFT JOIN pg_prepared_xacts p ON p.transaction = u.transactionid
  WHERE (w.pid IS NOT NULL OR p.gid IS NOT NULL) AND (o.mark IS NULL OR NOT EXISTS (   -- a row shows it
    SELECT FROM ours r WHERE r.xid = o.xid AND r.relation = o.relation AND r.mark IS NULL))
  UNION
  SELECT NULL, NULL, NULL, CASE WHEN o.resource IS NULL THEN 'at row' ELSE 'at fence' END, nullif(o.resource, ''),
         n.pid, NULL FROM ours o
    JOIN k n ON NOT n.granted AND (n.transactionid = o.xid OR n.locktype = 'tuple' AND n.relation = o.relation)
  WHERE EXISTS (SELECT FROM k r WHERE r.pid = n.pid AND r.locktype = 'relation' AND r.relation = o.relation
                AND r.mode IN ('RowShareLock', 'RowExclusiveLock'))
    AND (o.mark IS NULL OR EXISTS (
      SELECT FROM k m WHERE m.pid = n.pid AND m.marks AND m.objsubid = 2 AND m.objid = o.mark))
    AND NOT EXISTS (   -- it waits for another row
      SELECT FROM k t WHERE t.pid = n.pid AND t.locktype = 'tuple'
        AND (t.database, t.relation, t.page, t.tuple)
            IS DISTINCT FROM ((SELECT h.oid FROM here h), o.relation, o.at[0]::int, o.at[1]::int));
END $$;

-- list_backends tells what the server knows of the processes behind a lock: of the heartbeats of its holders (use is
-- heartbeat), of open transactions that have passed a fence of the lock (write) or wait there (at fence), of those
-- that have locked the lock's row for longer than a second (row) or wait for it (at row), and of whoever keeps one of
-- them from going on (blocker). A prepared transaction has a gid and no process. It runs with the caller's rights:
-- hidden says that the caller does not see what the process does, for want of a right or because its track_activities
-- is off, and may_end whether pg_terminate_backend is allowed, or COMMIT PREPARED. A holder whose heartbeat has not run
-- yet, or goes through a pooler, is not in it.
CREATE FUNCTION list_backends(p_name text)
RETURNS TABLE (slot int, token bigint, holder text, use text, resource text, pid int, db_user text,
               application_name text, hidden boolean, client_addr text, started_at timestamptz, state text,
               state_us bigint, transaction_us bigint, query_us bigint, waits_for text, may_end boolean,
               query text, gid text, blocked_by int[], blocked_by_gid text, blocked_at text)
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan SET jit = off
AS $$
#variable_conflict use_column
BEGIN RETURN QUERY
  WITH RECURSIVE ours AS MATERIALIZED (SELECT * FROM backend_pids(p_name)),
    chain AS (
      SELECT o.pid, pg_blocking_pids(o.pid) AS by FROM (SELECT DISTINCT s.pid FROM ours s WHERE s.pid IS NOT NULL) o
      UNION
      SELECT b.pid, pg_blocking_pids(b.pid) FROM chain c CROSS JOIN LATERAL unnest(c.by) b (pid) WHERE b.pid > 0),
    stuck AS MATERIALIZED (SELECT DISTINCT ON (c.pid) c.pid, c.by FROM chain c ORDER BY c.pid),
    k AS MATERIALIZED (
      SELECT * FROM pg_locks o WHERE EXISTS (SELECT FROM stuck s WHERE cardinality(s.by) > 0)),
    at AS MATERIALIZED (   -- of a wait for a transaction, the lock on the row says where
      SELECT DISTINCT ON (s.pid) s.pid, CASE
          WHEN w.locktype = 'advisory' THEN 'an advisory lock'
          WHEN w.locktype = 'transactionid' AND r.relation IS NULL THEN 'the end of another transaction'
          WHEN w.relation IS NULL AND r.relation IS NULL THEN 'a ' || w.locktype
          ELSE CASE w.locktype WHEN 'relation' THEN 'table ' ELSE 'a row of ' END || (
            SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.oid = coalesce(r.relation, w.relation)) END AS place,
        (SELECT p.gid FROM pg_prepared_xacts p JOIN k u ON u.pid IS NULL AND u.transactionid = p.transaction
           JOIN k g ON g.pid IS NULL AND g.virtualtransaction = u.virtualtransaction
         WHERE 0 = ANY (s.by) AND (g.transactionid = w.transactionid
           OR g.locktype = w.locktype AND g.relation = w.relation) LIMIT 1) AS gid
      FROM stuck s JOIN k w ON w.pid = s.pid AND NOT w.granted
        LEFT JOIN k r ON r.pid = s.pid AND r.locktype = 'tuple' AND w.locktype = 'transactionid'
      ORDER BY s.pid, r.relation),
    everybody AS (
      SELECT o.slot, o.token, o.holder, o.use, o.resource, o.pid, o.gid FROM ours o
      UNION ALL SELECT NULL, NULL, NULL, 'blocker', NULL, s.pid, NULL FROM stuck s WHERE s.pid NOT IN (
        SELECT o.pid FROM ours o WHERE o.pid IS NOT NULL)
      UNION ALL SELECT DISTINCT NULL::int, NULL::bigint, NULL, 'blocker', NULL, NULL::int, a.gid FROM at a
      WHERE a.gid IS NOT NULL AND a.gid NOT IN (SELECT o.gid FROM ours o WHERE o.gid IS NOT NULL))
  SELECT e.slot, e.token, e.holder, e.use, e.resource, e.pid, coalesce(a.usename, p.owner)::text, a.application_name,
         e.gid IS NULL AND a.hides, host(a.client_addr), coalesce(a.backend_start, p.prepared),
         CASE WHEN e.gid IS NOT NULL THEN 'prepared' WHEN NOT a.hides THEN a.state END,
         (extract(epoch FROM clock_timestamp() - coalesce(a.state_change, p.prepared)) * 1000000)::bigint,
         (extract(epoch FROM clock_timestamp() - CASE WHEN a.state = 'idle' THEN NULL  -- the server's own one
           ELSE coalesce(a.xact_start, p.prepared) END) * 1000000)::bigint,
         (extract(epoch FROM clock_timestamp() - a.query_start) * 1000000)::bigint,
         a.wait_event_type || ': ' || a.wait_event,
         CASE WHEN e.gid IS NOT NULL THEN me.rolsuper OR p.owner = me.rolname ELSE (me.rolsuper OR NOT r.rolsuper)
           AND (pg_has_role(r.oid, 'USAGE') OR pg_has_role('pg_signal_backend', 'USAGE')) END,
         CASE WHEN NOT a.hides THEN left(a.query, 1000) END, e.gid,
         nullif(array_remove(ARRAY(SELECT DISTINCT b FROM unnest(s.by) b ORDER BY b), 0), '{}'), at.gid, at.place
  FROM everybody e LEFT JOIN pg_prepared_xacts p ON p.gid = e.gid
    LEFT JOIN (SELECT *, coalesce(state = 'disabled', backend_start IS NULL) AS hides FROM pg_stat_activity) a
      ON a.pid = e.pid
    LEFT JOIN stuck s ON s.pid = e.pid LEFT JOIN at ON at.pid = e.pid LEFT JOIN pg_roles r ON r.oid = a.usesysid
    JOIN pg_roles me ON me.rolname = current_user
  WHERE (a.pid IS NOT NULL OR p.gid IS NOT NULL)
    AND (e.use NOT IN ('row', 'at row') OR e.gid IS NOT NULL OR a.xact_start < clock_timestamp() - interval '1 s'
      OR a.hides AND e.pid NOT IN (SELECT o.pid FROM ours o WHERE o.use = 'heartbeat'))
  ORDER BY array_position('{heartbeat, write, at fence, row, at row}', e.use), e.slot, e.resource, e.pid, e.gid;
END $$;

-- list_blockers tells whom server process p_pid waits for, and where: those at the end of the chain, who wait for none.
-- It also tells whose open transactions have passed the fence of one of these resources, of a hundred at most: a
-- transaction that waits there waits for one of them, or is one of them itself. Of those who wait it tells the end of
-- the chain. It runs with the caller's rights, as list_backends does, and hides the same.
CREATE FUNCTION list_blockers(p_pid int, p_resources text[] DEFAULT '{}')
RETURNS TABLE (blocked_at text, pid int, gid text, db_user text, application_name text, state text,
               transaction_us bigint)
LANGUAGE sql VOLATILE SET search_path FROM CURRENT
AS $$
  WITH RECURSIVE past AS MATERIALIZED (
      SELECT b.* FROM (SELECT u FROM unnest(p_resources) u LIMIT 100) r (resource)
        CROSS JOIN LATERAL list_backends(r.resource) b WHERE b.use = 'write' AND b.resource = r.resource),
    chain AS (
      SELECT s.pid AS root, s.pid, pg_blocking_pids(s.pid) AS by
      FROM (SELECT p_pid UNION SELECT w.pid FROM past w WHERE w.pid IS NOT NULL) s (pid)
      UNION
      SELECT c.root, b.pid, pg_blocking_pids(b.pid) FROM chain c CROSS JOIN LATERAL unnest(c.by) b (pid)
      WHERE b.pid > 0),
    k AS MATERIALIZED (
      SELECT * FROM pg_locks o WHERE EXISTS (SELECT FROM chain c WHERE c.root = p_pid AND cardinality(c.by) > 0)),
    at AS MATERIALIZED (   -- of a wait for a transaction, the lock on the row says where
      SELECT w.transactionid, CASE
          WHEN w.locktype = 'advisory' THEN 'an advisory lock'
          WHEN w.locktype = 'transactionid' AND r.relation IS NULL THEN 'the end of another transaction'
          WHEN w.relation IS NULL AND r.relation IS NULL THEN 'a ' || w.locktype
          ELSE CASE w.locktype WHEN 'relation' THEN 'table ' ELSE 'a row of ' END || (
            SELECT format('%I.%I', n.nspname, c.relname) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
            WHERE c.oid = coalesce(r.relation, w.relation)) END AS place
      FROM k w LEFT JOIN k r ON r.pid = w.pid AND r.locktype = 'tuple' AND w.locktype = 'transactionid'
      WHERE w.pid = p_pid AND NOT w.granted ORDER BY r.relation LIMIT 1)
  SELECT at.place, c.pid, NULL, a.usename::text, a.application_name, nullif(a.state, 'disabled'),
         (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000)::bigint
  FROM at CROSS JOIN (SELECT o.pid FROM chain o WHERE o.root = p_pid AND o.by <@ '{0}' AND o.pid <> p_pid) c
    JOIN pg_stat_activity a ON a.pid = c.pid
  UNION ALL
  SELECT at.place, NULL, p.gid, p.owner::text, NULL, 'prepared',
         (extract(epoch FROM clock_timestamp() - p.prepared) * 1000000)::bigint
  FROM at JOIN pg_prepared_xacts p ON p.transaction = at.transactionid
  UNION ALL
  SELECT 'the fence of ' || quote_literal(w.resource), w.pid, w.gid, w.db_user, w.application_name, w.state,
         w.transaction_us
  FROM past w
  WHERE w.pid IS NULL OR EXISTS (SELECT FROM chain c WHERE c.root = w.pid AND c.pid = w.pid AND c.by <@ '{0}')
  UNION ALL
  SELECT 'the fence of ' || quote_literal(w.resource), a.pid, NULL, a.usename::text, a.application_name,
         nullif(a.state, 'disabled'),
         (extract(epoch FROM clock_timestamp() - a.xact_start) * 1000000)::bigint
  FROM past w JOIN chain c ON c.root = w.pid AND c.pid <> w.pid AND c.by <@ '{0}'
    JOIN pg_stat_activity a ON a.pid = c.pid
$$;

-- list_waits tells what the sessions that hold a lock wait for, who holds that, or what is in the way of it above or
-- below (holder_name), and what those wait for: at most p_limit tickets, nearest first. Tickets of dead sessions do not
-- count. same_owner says that the line of work that holds is the one that waits; otherwise another one of the same
-- session does. held_us is the age of the lease that is waited for. any_of says that the end of another one would do
-- as well: it has a place that several have. OFFSET 0 keeps the planner to the order from a lock to its holders and
-- their tickets.
CREATE FUNCTION list_waits(p_name text, p_limit int DEFAULT 100)
RETURNS TABLE (depth int, holds text, waiter text, session_id uuid, same_owner boolean, ticket bigint, waits_for text,
               waiting_us bigint, holder text, holder_session_id uuid, holder_token bigint, holder_name text,
               held_us bigint, any_of boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := is_length(p_limit);
BEGIN
  RETURN QUERY WITH RECURSIVE w AS (
    SELECT 1 AS depth, l.name, l.holder, l.session_id, (l.owner_id = q.owner_id) IS TRUE AS same, q.ticket,
           q.name AS wanted, q.enqueued_at, q.capacity > 1 AS many
    FROM locks l CROSS JOIN LATERAL (SELECT * FROM few_tickets o WHERE o.session_id = l.session_id OFFSET 0) q
    WHERE l.name = p_name AND is_running(l.expires_at, l.ended_at) AND session_alive(q.session_id)
    UNION
    SELECT w.depth + 1, l.name, l.holder, l.session_id, (l.owner_id = q.owner_id) IS TRUE, q.ticket, q.name,
           q.enqueued_at, q.capacity > 1
    FROM w
      CROSS JOIN LATERAL (SELECT * FROM leases_before(w.wanted, w.ticket) h WHERE h.name <> p_name OFFSET 0) l
      CROSS JOIN LATERAL (SELECT * FROM few_tickets o WHERE o.session_id = l.session_id OFFSET 0) q
    WHERE w.depth < 8 AND session_alive(q.session_id))
  SELECT n.depth, n.name, n.holder, n.session_id, n.same, n.ticket, n.wanted,
         GREATEST(0, extract(epoch FROM clock_timestamp() - n.enqueued_at) * 1000000)::bigint,
         coalesce(h.holder, o.holder), coalesce(h.session_id, o.session_id), h.token,
         nullif(coalesce(h.name, o.name), n.wanted),
         GREATEST(0, extract(epoch FROM clock_timestamp() - h.acquired_at) * 1000000)::bigint,
         (n.many AND h.name = n.wanted) IS TRUE
  FROM (SELECT * FROM w LIMIT p_limit) n
    LEFT JOIN LATERAL (
      SELECT * FROM leases_before(n.wanted, n.ticket) l ORDER BY l.expires_at DESC LIMIT 5) h ON true
    LEFT JOIN LATERAL (
      SELECT s.* FROM few_tickets f CROSS JOIN LATERAL known_obstacles(f.w) s
      WHERE h.name IS NULL AND f.name = n.wanted AND f.ticket = n.ticket LIMIT 1) o ON true
  ORDER BY n.depth, NOT n.same, n.ticket;
END $$;
