-- Lists, for people. They lock nothing. A list in the order of names walks an index from p_after on, and stops after
-- p_limit rows, however long the table is: so each page costs the same. Any other p_order reads the whole table once
-- for its p_limit first rows, and has no next page. Of the filters '' and NULL mean none; p_match is a text that a name
-- or a holder's label contains, p_older leaves out what is more recent.

-- is_listing refuses what no list can be. p_orders are its orders, as the message names them.
CREATE FUNCTION is_listing(p_order text, p_orders text, p_limit bigint, p_older interval) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT CASE WHEN p_order = 'name' THEN is_length(p_limit)
              WHEN p_order = ANY (regexp_split_to_array(p_orders, ', | or ')) THEN is_count('limit', p_limit, 1, 10000)
              ELSE refuse('order', quote_literal(p_order), 'be ' || p_orders) END
    AND (p_older IS NULL OR is_age('older', p_older))
$$;

-- is_listed says whether a row fits the filters that lists have in common.
CREATE FUNCTION is_listed(
  p_name text, p_in_holder text, p_in_session uuid, p_in_mode text, p_since timestamptz,
  p_prefix text, p_match text, p_holder text, p_session_id uuid, p_mode text, p_older interval) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT (coalesce(p_prefix, '') = '' OR starts_with(p_name, p_prefix))
    AND (coalesce(p_match, '') = '' OR strpos(p_name, p_match) > 0 OR strpos(p_in_holder, p_match) > 0)
    AND (coalesce(p_holder, '') = '' OR p_in_holder = p_holder)
    AND (p_session_id IS NULL OR p_in_session = p_session_id)
    AND (coalesce(p_mode, '') = '' OR p_in_mode = p_mode)
    AND (p_older IS NULL OR p_since <= clock_timestamp() - p_older)
$$;

-- last_with is a text that no text of up to 512 bytes with this prefix comes after, in byte order; NULL where the
-- database's encoding has no such text. The planner computes a chr of a constant whatever the encoding is.
CREATE FUNCTION last_with(p_prefix text) RETURNS text
LANGUAGE sql STABLE
AS $$ SELECT CASE getdatabaseencoding() WHEN 'UTF8' THEN p_prefix
       || repeat(chr(CASE getdatabaseencoding() WHEN 'UTF8' THEN 1114111 ELSE 65 END), 128) END $$;

-- walks_index lets the planner walk an index and nothing else, for a page in the order of names: a plan for a page of
-- unknown size would read and sort the whole table. It holds until the end of the function that calls it, which has SET
-- all of these, makes a plan for each call, and so has one for each order.
CREATE FUNCTION walks_index() RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT set_config('enable_seqscan', 'off', true) || set_config('enable_bitmapscan', 'off', true)
    || set_config('enable_sort', 'off', true) || set_config('enable_nestloop', 'on', true) <> ''
$$;

-- list_locks lists the leases of held locks in the byte order of the locks' names, p_limit of them after the lock
-- p_after, and never only half of a lock's holders; with p_free also free locks, by their last holder. With p_queued
-- it has the locks for which somebody waits, free ones too; with p_waited by name also those that have been free for
-- three seconds though somebody waits, and nothing above or below is in the way: the rule of suspects. By age the
-- oldest lease comes first; by recent the last grant; by waiting the queue that somebody has waited in for longest,
-- also those of free locks; by expiry the lease that ends next.
CREATE FUNCTION list_locks(
  p_prefix text DEFAULT '', p_free boolean DEFAULT false, p_after text DEFAULT '', p_limit int DEFAULT 1000,
  p_match text DEFAULT '', p_holder text DEFAULT '', p_session_id uuid DEFAULT NULL, p_mode text DEFAULT '',
  p_queued boolean DEFAULT false, p_older interval DEFAULT NULL, p_order text DEFAULT 'name',
  p_waited boolean DEFAULT false)
RETURNS SETOF described
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan
SET enable_seqscan = on SET enable_bitmapscan = on SET enable_sort = on SET enable_nestloop = off SET jit = off
AS $$
DECLARE
  ok boolean := is_listing(p_order, 'name, age, recent, waiting or expiry', p_limit, p_older)
    AND (p_order <> 'name' OR walks_index());
BEGIN
  RETURN QUERY SELECT d.* FROM (
      SELECT l.name, l.slot,
             CASE p_order WHEN 'waiting' THEN w.since WHEN 'age' THEN l.acquired_at
                          WHEN 'expiry' THEN nullif(l.expires_at, '-infinity') END AS least,
             CASE p_order WHEN 'recent' THEN l.acquired_at END AS most
      FROM locks l LEFT JOIN (
        SELECT q.name, min(q.enqueued_at) AS since FROM queue q WHERE p_order = 'waiting' OR p_queued
        GROUP BY q.name) w ON w.name = l.name
        CROSS JOIN LATERAL (SELECT CASE p_order WHEN 'name' THEN (         -- then w is not there
          SELECT q.ticket FROM waiters q WHERE q.name = l.name AND q.ticket > CASE l.slot WHEN 0 THEN l.served
            ELSE (SELECT h.served FROM locks h WHERE h.name = l.name AND h.slot = 0) END
          ORDER BY q.ticket LIMIT 1) IS NOT NULL ELSE w.name IS NOT NULL END AS waits) q
      WHERE (coalesce(p_after, '') = '' OR l.name > p_after) AND (coalesce(p_prefix, '') = '' OR l.name >= p_prefix
          AND l.name <= coalesce(last_with(p_prefix), (SELECT max(m.name) FROM locks m)))
        AND is_listed(l.name, l.holder, l.session_id, l.mode, l.acquired_at,
                      p_prefix, p_match, p_holder, p_session_id, p_mode, p_older)
        AND (p_queued IS NOT TRUE OR q.waits)
        AND (is_running(l.expires_at, l.ended_at)
          OR (p_free OR p_queued OR p_order = 'waiting' AND w.name IS NOT NULL OR p_waited AND p_order = 'name'
              AND q.waits AND is_left(l.name, coalesce(l.ended_at, l.expires_at))) AND NOT EXISTS (
            SELECT FROM locks o WHERE o.name = l.name AND (is_running(o.expires_at, o.ended_at) OR o.token > l.token)))
      ORDER BY least, most DESC, l.name, l.slot LIMIT CASE WHEN p_order <> 'name' THEN p_limit END) k
    CROSS JOIN LATERAL (SELECT * FROM described o WHERE o.name = k.name AND o.slot = k.slot OFFSET 0) d
  ORDER BY CASE WHEN p_order <> 'name' THEN k.least END, CASE p_order WHEN 'recent' THEN k.most END DESC, k.name,
           CASE WHEN p_order <> 'name' THEN k.slot END FETCH FIRST p_limit ROWS WITH TIES;   -- k has their order
END $$;

-- oldest_waiters picks the p_limit waiters that have waited longest, for list_waiters.
CREATE FUNCTION oldest_waiters(
  p_limit int, p_name text, p_prefix text, p_match text, p_holder text, p_session_id uuid, p_mode text,
  p_older interval)
RETURNS TABLE (name text, ticket bigint, served bigint, place bigint)
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_custom_plan
SET enable_seqscan = on SET enable_bitmapscan = on SET enable_sort = on
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT a.name, a.ticket, a.served, a.place FROM (
      SELECT w.*, row_number() OVER (PARTITION BY w.name ORDER BY w.ticket) AS place FROM queue w
      WHERE coalesce(p_name, '') = '' OR w.name = p_name) a
    WHERE is_listed(a.name, a.holder, a.session_id, a.mode, a.enqueued_at,
                    p_prefix, p_match, p_holder, p_session_id, p_mode, p_older)
    ORDER BY a.enqueued_at, a.name, a.ticket LIMIT p_limit;
END $$;

-- list_waiters lists the queue in order, of one lock or of all, p_limit waiters after the one of lock p_after with the
-- ticket p_after_ticket, which had the place p_after_place; NULL counts the places again. By age those come first that
-- have waited longest. The first one whose session is alive waits for the holder, or for what is in its way above or
-- below, which has the name behind_name; the others that are alive wait for the waiter before them. The dead wait for
-- nobody: to look behind each of these would take the square of them. It keeps a plan for all calls, and so names what
-- it picks by age only by their keys.
CREATE FUNCTION list_waiters(
  p_name text DEFAULT '', p_limit int DEFAULT 1000, p_after text DEFAULT '', p_after_ticket bigint DEFAULT 0,
  p_after_place bigint DEFAULT NULL, p_prefix text DEFAULT '', p_match text DEFAULT '', p_holder text DEFAULT '',
  p_session_id uuid DEFAULT NULL, p_mode text DEFAULT '', p_older interval DEFAULT NULL, p_order text DEFAULT 'name')
RETURNS TABLE (name text, ticket bigint, place bigint, mode text, capacity int, holder text, session_id uuid,
               alive boolean, ttl_us bigint, enqueued_at timestamptz, waiting_us bigint, behind_ticket bigint,
               behind_holder text, metadata jsonb, subtree boolean, behind_name text)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_bitmapscan = off SET enable_sort = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := is_listing(p_order, 'name or age', p_limit, p_older)
    AND (p_after_place IS NULL OR is_count('after_place', p_after_place, 0, 1000000000000));
  from_name   text   := coalesce(p_after, '');
  from_ticket bigint := coalesce(p_after_ticket, 0);
  served      bigint := (SELECT l.served FROM locks l WHERE l.name = p_name AND l.slot = 0);
BEGIN
  IF (p_name COLLATE "C", served) > (from_name, from_ticket) THEN   -- what counts no more may fill the index there
    from_name := p_name;  from_ticket := served;
  END IF;
  RETURN QUERY SELECT q.name, q.ticket, q.place, q.mode, q.capacity, q.holder, q.session_id, q.alive,
         (extract(epoch FROM q.ttl) * 1000000)::bigint, q.enqueued_at,
         GREATEST(0, extract(epoch FROM clock_timestamp() - q.enqueued_at) * 1000000)::bigint,
         b.ticket, coalesce(b.holder, k.holder), q.metadata, q.subtree, nullif(k.name, q.name)
  FROM (SELECT u.*, (
      SELECT s.alive_until > clock_timestamp() FROM sessions s WHERE s.session_id = u.session_id) IS TRUE AS alive
    FROM (
    (SELECT * FROM (
      SELECT w.*, h.served, row_number() OVER (PARTITION BY w.name ORDER BY w.ticket) + CASE WHEN w.name = p_after
               THEN coalesce(p_after_place, (SELECT count(*) FROM waiters e
                 WHERE e.name = p_after AND e.ticket > h.served AND e.ticket <= p_after_ticket))
               ELSE 0 END AS place
      FROM waiters w CROSS JOIN LATERAL (
        SELECT o.served FROM locks o WHERE o.name = w.name AND o.slot = 0 OFFSET 0) h
      WHERE w.ticket > h.served AND w.name >= coalesce(p_prefix, '')
        AND w.name <= coalesce(nullif(p_name, ''), last_with(p_prefix), (SELECT max(m.name) FROM waiters m))
        AND (w.name, w.ticket) > (from_name, from_ticket)) a
    WHERE p_order = 'name' AND is_listed(a.name, a.holder, a.session_id, a.mode, a.enqueued_at,
                                         p_prefix, p_match, p_holder, p_session_id, p_mode, p_older)
    ORDER BY a.name, a.ticket LIMIT p_limit)
    UNION ALL
    SELECT w.*, o.served, o.place
    FROM oldest_waiters(p_limit, p_name, p_prefix, p_match, p_holder, p_session_id, p_mode, p_older) o
      CROSS JOIN LATERAL (SELECT * FROM waiters i WHERE i.name = o.name AND i.ticket = o.ticket OFFSET 0) w
    WHERE p_order = 'age') u OFFSET 0) q
  LEFT JOIN LATERAL (
    SELECT p.ticket, p.holder FROM waiters p
    WHERE q.alive AND p.name = q.name AND p.ticket > q.served AND p.ticket < q.ticket
      AND (SELECT s.alive_until > clock_timestamp() FROM sessions s WHERE s.session_id = p.session_id)
    ORDER BY p.ticket DESC LIMIT 1) b ON true
  LEFT JOIN LATERAL keeper(CASE WHEN q.alive AND b.ticket IS NULL THEN q.name END, q.ticket) k ON true
  ORDER BY CASE p_order WHEN 'age' THEN q.enqueued_at END, q.name, q.ticket;
END $$;

-- list_fences lists the fences that a lock's tokens have passed, and that of the resource with its name; '' lists
-- every fence. They come in byte order of the resources, p_limit of them after p_after; by age those first that nobody
-- has passed for the longest time. p_match is contained in a resource or in the name of its lock.
CREATE FUNCTION list_fences(
  p_lock_name text DEFAULT '', p_limit int DEFAULT 1000, p_after text DEFAULT '', p_prefix text DEFAULT '',
  p_match text DEFAULT '', p_older interval DEFAULT NULL, p_order text DEFAULT 'name')
RETURNS TABLE (resource text, last_token bigint, lock_name text, advanced_at timestamptz)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan
SET enable_seqscan = on SET enable_bitmapscan = on SET enable_sort = on SET enable_nestloop = on SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := is_listing(p_order, 'name or age', p_limit, p_older) AND (p_order <> 'name' OR walks_index());
BEGIN
  RETURN QUERY SELECT f.resource, f.last_token, f.lock_name, f.advanced_at FROM (
    (SELECT * FROM fences o
     WHERE (coalesce(p_lock_name, '') = '' OR o.lock_name = p_lock_name)
       AND (coalesce(p_after, '') = '' OR o.resource > p_after)
       AND (coalesce(p_prefix, '') = '' OR o.resource >= p_prefix
         AND o.resource <= coalesce(last_with(p_prefix), (SELECT max(m.resource) FROM fences m)))
       AND is_listed(o.resource, o.lock_name, NULL, '', o.advanced_at, p_prefix, p_match, '', NULL, '', p_older)
     ORDER BY CASE p_order WHEN 'age' THEN o.advanced_at END, o.resource LIMIT p_limit)
    UNION
    SELECT * FROM fences o WHERE o.resource = p_lock_name AND (coalesce(p_after, '') = '' OR o.resource > p_after)
      AND is_listed(o.resource, o.lock_name, NULL, '', o.advanced_at, p_prefix, p_match, '', NULL, '', p_older)) f
  ORDER BY CASE p_order WHEN 'age' THEN f.advanced_at END, f.resource LIMIT p_limit;
END $$;

-- session_rows tells what the tables know of each session: clients that hold or wait, whose marked connection is open,
-- or that gave a sign of life within a minute; of others nobody knows whether they live, and nothing is theirs. A
-- client that has only ever held leases has no row in sessions. No index leads from a session to its leases, because a
-- grant would have to change it; so this reads all locks and all waiters, once. Its order is by label, or with p_order
-- by age (the longest silent first), leases or waiting (the most first). p_after is the session to continue after, in
-- the order of labels; with its label, p_after_holder, it may have gone meanwhile.
CREATE FUNCTION session_rows(
  p_limit int, p_match text, p_holder text, p_session_id uuid, p_older interval, p_order text, p_after uuid,
  p_after_holder text)
RETURNS TABLE (session_id uuid, holder text, version text, life text, seen_at timestamptz,
               leases bigint, tickets bigint, pid int)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
SET plan_cache_mode = force_custom_plan SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := is_listing(p_order, 'name, age, leases or waiting', p_limit, p_older)
    AND is_count('limit', p_limit, 1, 10000);
BEGIN
  RETURN QUERY
    WITH every AS MATERIALIZED (
      SELECT a.session_id, coalesce(max(s.holder), max(a.holder)) COLLATE "C" AS holder, max(s.version) AS version,
             max(s.pid) AS pid, max(s.mark) AS mark, max(s.alive_until) AS alive_until,
             GREATEST(max(a.seen), max(s.seen_at)) AS seen_at, GREATEST(max(a.signed), max(s.seen_at)) AS signed_at,
             max(a.since) AS since,
             (max(a.signed) > max(s.seen_at)) IS TRUE OR max(s.seen_by) IS NOT DISTINCT FROM max(s.pid) AS over_it,
             sum(a.leases)::bigint AS leases, sum(a.tickets)::bigint AS tickets
      FROM (
        SELECT l.session_id, max(l.holder) AS holder, max(l.renewed_at) AS seen, max(l.acquired_at) AS since,
               max(l.renewed_at) FILTER (WHERE l.slowest IS NOT NULL) AS signed, count(*) AS leases, 0 AS tickets
        FROM locks l WHERE is_running(l.expires_at, l.ended_at) GROUP BY l.session_id
        UNION ALL
        SELECT q.session_id, max(q.holder), max(q.enqueued_at), max(q.enqueued_at), NULL, 0, count(*) FROM queue q
        GROUP BY q.session_id
        UNION ALL
        SELECT o.session_id, NULL, NULL, NULL, NULL, 0, 0 FROM sessions o) a
        LEFT JOIN sessions s ON s.session_id = a.session_id
      WHERE p_session_id IS NULL OR a.session_id = p_session_id
      GROUP BY a.session_id)
    SELECT e.session_id, e.holder, e.version,
           life_of(e.signed_at, e.since, e.tickets = 0 OR (e.alive_until > clock_timestamp()) IS TRUE,
                   CASE WHEN e.mark IS NOT NULL AND NOT pg_is_in_recovery() THEN k.pid IS NOT NULL END, e.over_it),
           e.seen_at, e.leases, e.tickets, k.pid
    FROM (
      SELECT * FROM every o
      WHERE is_listed(o.session_id::text, o.holder, NULL, '', o.seen_at, '', p_match, p_holder, NULL, '', p_older)
        AND (o.leases + o.tickets > 0 OR o.seen_at > clock_timestamp() - interval '1 min'
          OR o.mark IN (SELECT m.mark FROM marked_pids() m))
        AND (p_after IS NULL OR (o.holder, o.session_id) > (
          coalesce(p_after_holder COLLATE "C", (SELECT t.holder FROM every t WHERE t.session_id = p_after)), p_after))
      ORDER BY CASE p_order WHEN 'leases' THEN -o.leases WHEN 'waiting' THEN -o.tickets END,
               CASE p_order WHEN 'age' THEN o.seen_at END, o.holder, o.session_id
      LIMIT p_limit) e
      LEFT JOIN (SELECT DISTINCT m.mark, m.pid FROM marked_pids() m) k ON k.mark = e.mark AND k.pid = e.pid
    ORDER BY CASE p_order WHEN 'leases' THEN -e.leases WHEN 'waiting' THEN -e.tickets END,
             CASE p_order WHEN 'age' THEN e.seen_at END, e.holder, e.session_id;
  ok := FOUND OR p_after IS NULL OR p_after_holder IS NOT NULL                  -- else nobody knows where it was
    OR EXISTS (SELECT FROM sessions s WHERE s.session_id = p_after)
    OR EXISTS (SELECT FROM locks l WHERE l.session_id = p_after AND is_running(l.expires_at, l.ended_at))
    OR EXISTS (SELECT FROM queue q WHERE q.session_id = p_after)
    OR refuse('after', p_after::text, 'be a session that there is still (or give after_holder, too)');
END $$;

-- holder_lives says of each lease that is held in these slots whether its holder lives, by life_of, when its last sign
-- of life came, and whether its marked connection is open: NULL says that none was marked, or that this is a standby,
-- which does not see it. A grant counts as no sign.
CREATE FUNCTION holder_lives(p_names text[], p_slots int[])
RETURNS TABLE (name text, slot int, token bigint, life text, signed_at timestamptz, silent_us bigint, connected boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := is_batch(ARRAY[cardinality(p_names), cardinality(p_slots)]);
BEGIN
  RETURN QUERY SELECT h.name, h.slot, h.token,
         life_of(h.signed_at, h.acquired_at, h.counts, h.connected, h.over_it), h.signed_at,
         GREATEST(0, extract(epoch FROM clock_timestamp() - h.signed_at) * 1000000)::bigint, h.connected
  FROM (
    SELECT l.name, l.slot, l.token, l.acquired_at, GREATEST(l.signed, s.seen_at) AS signed_at,
           (l.signed > s.seen_at) IS TRUE OR s.seen_by IS NOT DISTINCT FROM s.pid AS over_it,
           (s.alive_until > clock_timestamp()) IS TRUE
             OR NOT EXISTS (SELECT FROM few_tickets q WHERE q.session_id = l.session_id OFFSET 0) AS counts,
           CASE WHEN s.mark IS NOT NULL AND NOT pg_is_in_recovery()
             THEN (s.mark, s.pid) IN (SELECT m.mark, m.pid FROM marked_pids() m) END AS connected
    FROM unnest(p_names, p_slots) a (name, slot)
      CROSS JOIN LATERAL (
        SELECT o.*, CASE WHEN o.slowest IS NOT NULL THEN o.renewed_at END AS signed FROM locks o
        WHERE o.name = a.name AND o.slot = a.slot AND is_running(o.expires_at, o.ended_at) OFFSET 0) l
      LEFT JOIN LATERAL (SELECT * FROM sessions t WHERE t.session_id = l.session_id OFFSET 0) s ON true) h;
END $$;

-- list_sessions lists clients, as session_rows finds them, and what pg_stat_activity knows of the process of each
-- one's heartbeat. It runs with the caller's rights, as list_backends does. life is that of life_of.
CREATE FUNCTION list_sessions(
  p_limit int DEFAULT 1000, p_match text DEFAULT '', p_holder text DEFAULT '', p_session_id uuid DEFAULT NULL,
  p_older interval DEFAULT NULL, p_order text DEFAULT 'name', p_after uuid DEFAULT NULL,
  p_after_holder text DEFAULT NULL)
RETURNS TABLE (session_id uuid, holder text, version text, life text, seen_at timestamptz, silent_us bigint,
               leases bigint, tickets bigint, pid int, db_user text, application_name text,
               client_addr text, state text)
LANGUAGE sql VOLATILE SET search_path FROM CURRENT
AS $$
  SELECT r.session_id, r.holder, r.version, r.life, r.seen_at,
         GREATEST(0, extract(epoch FROM clock_timestamp() - r.seen_at) * 1000000)::bigint, r.leases, r.tickets,
         r.pid, a.usename::text, a.application_name, host(a.client_addr), a.state
  FROM session_rows(p_limit, p_match, p_holder, p_session_id, p_older, p_order, p_after,
                    p_after_holder) WITH ORDINALITY r
    LEFT JOIN pg_stat_activity a ON a.pid = r.pid
  ORDER BY r.ordinality
$$;
