-- Subtrees. A lease of a subtree covers its name and all names below it: those that begin with the name and '/'. It is
-- an ordinary lease of its name. Its request has a row in subtrees besides its ticket. Tickets are of one sequence, so
-- they also order requests for different names. Of two requests, where one covers the other,
--   the one below waits for leases above it, and for tickets that are lower than its own;
--   the one for the subtree waits for leases below it, and for tickets that are lower than its own.
-- Nothing else is in anybody's way, and what the same owner has is not. Two shared ones are not in each other's way.
--
-- At least one of two sees the other, because every grant locks the table of locks before its snapshot is taken. A
-- subtree's ticket is committed first. Then its request waits until all transactions have ended that had locked the
-- table (wait_out): all others see the ticket. Only then does it look for what lies below (fits_below). Whoever passes
-- over a ticket that is dead deletes it, and whoever grants one does: a row that somebody has locked is in the way.
--
-- Whoever waits for something above or below asks again when told (wake_tree), and when that would run out.

-- ancestors lists the names that a name lies below.
CREATE FUNCTION ancestors(p_name text) RETURNS text[]
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
  parts pg_catalog.text[] := pg_catalog.string_to_array(p_name, '/');
  path  pg_catalog.text := parts[1];
  all_  pg_catalog.text[] := '{}';
BEGIN
  FOR i IN 2..coalesce(pg_catalog.cardinality(parts), 0) LOOP
    all_ := pg_catalog.array_append(all_, path);
    path := pg_catalog.concat(path, '/', parts[i]);
  END LOOP;
  RETURN all_;
END $$;

-- is_below says that there is a request for a subtree, or there was lately, that covers this name. In their order all
-- names between a name above and this one begin with that name. So it looks for the last subtree up to the nearest name
-- above. If that is another, only a name above that it begins with can be a subtree.
CREATE FUNCTION is_below(p_name text) RETURNS boolean
LANGUAGE plpgsql STABLE
AS $$
DECLARE
  above pg_catalog.text := p_name;
  top   pg_catalog.text := pg_catalog.split_part(p_name, '/', 1);
  last  pg_catalog.text;
BEGIN
  WHILE above OPERATOR(pg_catalog.<>) top LOOP
    above := pg_catalog.left(above, OPERATOR(pg_catalog.-) pg_catalog.strpos(pg_catalog.reverse(above), '/'));
    CONTINUE WHEN NOT pg_catalog.starts_with(last, above);
    SELECT s.name INTO last FROM {{schema}}.subtrees s
      WHERE s.name OPERATOR(pg_catalog.>=) top AND s.name OPERATOR(pg_catalog.<=) above ORDER BY s.name DESC LIMIT 1;
    IF last IS NULL THEN
      RETURN false;
    ELSIF last OPERATOR(pg_catalog.=) above THEN
      RETURN true;
    END IF;
  END LOOP;
  RETURN false;
END $$;

-- in_tree says that a request may have something above or below it.
CREATE FUNCTION in_tree(w waiters) RETURNS boolean
LANGUAGE sql IMMUTABLE
AS $$ SELECT (w).subtree OR strpos((w).name, '/') > 0 $$;

-- is_path refuses what cannot be the name of a subtree.
CREATE FUNCTION is_path(p_name text) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT CASE WHEN '' = ANY (string_to_array(p_name, '/'))
    THEN refuse('name', quote_literal(left(p_name, 40)), 'have no empty part between, before or behind slashes, as '
      'that of a subtree') ELSE true END
$$;

-- above lists what covers a request and is in its way. A lease that has run out is, until somebody settles it, and so
-- is a ticket that is dead, until somebody deletes it.
CREATE FUNCTION above(w waiters) RETURNS TABLE (
  name text, ticket bigint, token bigint, slot int, holder text, owner_id uuid, until timestamptz, alive boolean)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
    SELECT s.name, s.ticket, l.token, l.slot, coalesce(l.holder, q.holder), s.owner_id,
      CASE WHEN l.name IS NULL THEN q.alive_until ELSE l.expires_at END,
      CASE WHEN l.name IS NULL THEN coalesce(q.alive_until > clock_timestamp(), false)
           ELSE is_running(l.expires_at, l.ended_at) END
    FROM subtrees s
      LEFT JOIN LATERAL (
        SELECT * FROM locks o WHERE o.name = s.name AND o.ticket = s.ticket AND o.grant_id = s.grant_id
          AND NOT is_over(o.expires_at, o.ended_at) LIMIT 1) l ON true
      LEFT JOIN LATERAL (
        SELECT o.holder, (SELECT a.alive_until FROM sessions a WHERE a.session_id = o.session_id) AS alive_until
        FROM waiters o WHERE o.name = s.name AND o.ticket = s.ticket AND o.ticket > (
          SELECT h.served FROM locks h WHERE h.name = s.name AND h.slot = 0)) q ON l.name IS NULL
    WHERE s.name = ANY (ancestors(w.name)) AND (s.owner_id = w.owner_id) IS NOT TRUE
      AND NOT (s.mode = 'shared' AND w.mode = 'shared')
      AND (l.name IS NOT NULL OR q.holder IS NOT NULL AND (w.ticket = 0 OR s.ticket < w.ticket));
END $$;

-- below lists what lies below a request for a subtree and is in its way, among p_names; NULL: all names. Without a
-- ticket all tickets are. Nobody announces the end of a ticket for sure: it is in the way for a moment.
CREATE FUNCTION below(w waiters, p_names text[]) RETURNS TABLE (
  name text, ticket bigint, token bigint, holder text, owner_id uuid, until timestamptz)
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off
AS $$
#variable_conflict use_column
BEGIN
  p_names := coalesce(p_names, names_below(w));
  RETURN QUERY
    SELECT l.name, NULL::bigint, l.token, l.holder, l.owner_id, l.expires_at FROM locks l
    WHERE l.name = ANY (p_names) AND NOT is_over(l.expires_at, l.ended_at)
      AND (l.owner_id = w.owner_id) IS NOT TRUE AND NOT (l.mode = 'shared' AND w.mode = 'shared')
    UNION ALL
    SELECT q.name, q.ticket, NULL, q.holder, q.owner_id, LEAST(clock_timestamp() + interval '0.1 s',
      (SELECT a.alive_until FROM sessions a WHERE a.session_id = q.session_id))
    FROM few_tickets q
    WHERE q.name = ANY (p_names) AND (w.ticket = 0 OR q.ticket < w.ticket)
      AND (q.owner_id = w.owner_id) IS NOT TRUE AND NOT (q.mode = 'shared' AND w.mode = 'shared');
END $$;

-- names_below lists the names below a subtree that have a lease which is not over, or a ticket that is lower than that
-- of the request; without a ticket any. It reads all names below. When whoever may not have seen the ticket has ended,
-- nothing else below can come to be in its way, but what the owner of one of these leases takes below its own subtree.
CREATE FUNCTION names_below(w waiters) RETURNS text[]
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off
AS $$
DECLARE
  first text := w.name || '/';
  after text := w.name || '0';                           -- the byte after '/'
BEGIN
  RETURN ARRAY(
    SELECT l.name FROM locks l
    WHERE l.name >= first AND l.name < after AND l.expires_at > '-infinity' AND NOT is_over(l.expires_at, l.ended_at)
    UNION
    SELECT q.name FROM waiters q WHERE q.name >= first AND q.name < after AND (w.ticket = 0 OR q.ticket < w.ticket)
    ORDER BY 1);
END $$;

-- obstacles lists what is in the way of a request, above and below it: leases, and tickets (queued). It locks nothing.
-- What lies below a request that has not looked yet is left out: it asks again at once.
CREATE FUNCTION obstacles(w waiters) RETURNS TABLE (
  name text, token bigint, holder text, owner_id uuid, until timestamptz, queued boolean)
LANGUAGE plpgsql STABLE
AS $$
#variable_conflict use_column
BEGIN
  IF NOT (SELECT i.subtrees FROM installation i) AND NOT w.subtree THEN
    RETURN;
  END IF;
  RETURN QUERY
    SELECT a.name, a.token, a.holder, a.owner_id, a.until, a.token IS NULL FROM above(w) a
    WHERE a.alive AND NOT is_own(w);
  IF w.subtree THEN
    RETURN QUERY
      SELECT b.name, b.token, b.holder, b.owner_id, b.until, b.token IS NULL
      FROM below(w, CASE WHEN w.ticket > 0
        THEN coalesce((SELECT s.below FROM subtrees s WHERE s.ticket = w.ticket AND s.waited), '{}') END) b
      WHERE b.until > clock_timestamp();
  END IF;
END $$;

-- holds_above says that the owner of a request holds a subtree above it, under which nobody else can have what is in
-- its way: an exclusive one, or for a shared request any. Whoever queues for that lock waits for this subtree.
CREATE FUNCTION holds_above(w waiters) RETURNS boolean
LANGUAGE plpgsql STABLE SET enable_seqscan = off SET jit = off
AS $$
BEGIN
  RETURN EXISTS (
    SELECT FROM locks l WHERE l.name = ANY (ancestors(w.name)) AND l.subtree AND l.owner_id = w.owner_id
      AND is_running(l.expires_at, l.ended_at) AND (l.mode = 'exclusive' OR w.mode = 'shared'));
END $$;

-- is_own is holds_above, and reads nothing where no owner or no tree is.
CREATE FUNCTION is_own(w waiters) RETURNS boolean
LANGUAGE sql STABLE
AS $$ SELECT (w).nested IS TRUE AND in_tree(w) AND holds_above(w) $$;

-- fits_tree says that nothing above a request is in its way, nor anything below one for a subtree. The caller has taken
-- the head of its lock. It waits for nobody: what somebody has locked is in the way. Below a subtree of its owner it
-- locks that one's row, and notes that: see require_unrenewed. What ends many leases does not, for it may end that one
-- next (I4): there the request waits for its turn as everybody does. p_own: w was let past the queue because it is_own.
-- That may have ended meanwhile, and then it has to ask again.
CREATE FUNCTION fits_tree(w waiters, p_own boolean DEFAULT false) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  a    record;
  gone boolean := false;
BEGIN
  LOCK TABLE locks IN ROW EXCLUSIVE MODE;                -- before any look: see wait_out
  IF NOT (SELECT i.subtrees FROM installation i) THEN
    RETURN NOT w.subtree AND NOT p_own;
  ELSIF current_setting('pglock.ends_many', true) IS DISTINCT FROM 'true' AND is_own(w) THEN
    -- Nobody is granted it before this transaction has ended.
    PERFORM FROM locks l WHERE l.name = ANY (ancestors(w.name)) AND l.subtree AND l.owner_id = w.owner_id
      AND is_running(l.expires_at, l.ended_at) AND (l.mode = 'exclusive' OR w.mode = 'shared')
      FOR KEY SHARE SKIP LOCKED;
    RETURN FOUND AND set_config('pglock.kept', 'true', true) IS NOT NULL;
  ELSIF p_own AND NOT is_own(w) THEN
    RETURN false;
  END IF;
  FOR a IN SELECT * FROM above(w) LOOP
    IF a.alive THEN
      RETURN false;
    ELSIF a.token IS NULL THEN
      DELETE FROM waiters q WHERE q.ctid = ANY (ARRAY(
        SELECT o.ctid FROM waiters o WHERE o.name = a.name AND o.ticket = a.ticket FOR UPDATE SKIP LOCKED));
      IF NOT FOUND THEN
        RETURN false;
      END IF;
    ELSIF NOT settled(a.name, a.slot, a.token) THEN
      RETURN false;
    END IF;
    gone := true;
  END LOOP;
  IF gone AND EXISTS (SELECT FROM above(w)) THEN         -- after the first look its owner may have been granted
    RETURN false;                                        -- another below it (note_granted), which only this look sees
  END IF;
  RETURN NOT w.subtree OR fits_below(w);
END $$;

-- would_fit says what fits_tree would, about the ticket of a subtree, and writes nothing.
CREATE FUNCTION would_fit(w waiters) RETURNS boolean
LANGUAGE sql VOLATILE
AS $$
  SELECT is_own(w) OR (SELECT s.waited FROM subtrees s WHERE s.ticket = w.ticket) IS TRUE
    AND NOT EXISTS (SELECT FROM above(w) a WHERE a.alive)
    AND NOT EXISTS (SELECT FROM below(w, NULL) b WHERE b.until > clock_timestamp())
$$;

-- settled says that a lease which has run out is over, and settles it if it can.
CREATE FUNCTION settled(p_name text, p_slot int, p_token bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  PERFORM settle(p_name);
  RETURN NOT EXISTS (SELECT FROM locks l WHERE l.name = p_name AND l.slot = p_slot AND l.token = p_token
    AND NOT is_over(l.expires_at, l.ended_at));
END $$;

-- fits_below says that nothing below a subtree is in the way of a request. Otherwise it keeps the names that still may
-- be, and marks one of them as watched, the one whose lease would last longest: its end is announced. If it cannot be
-- sure of that, the request waits for grants under way once more, and so asks again soon. It locks no ticket: whoever
-- serves the queue would pass it over. A mark leaves its lock on the new version of the row, as a renewal does, and is
-- noted: see require_unrenewed. What ends many leases marks none, or the end of one that it has marked would be no
-- change of the key (I4).
CREATE FUNCTION fits_below(w waiters) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  s      subtrees;
  names  text[];
  first  record;
  marked boolean;
BEGIN
  SELECT * INTO s FROM subtrees o WHERE o.ticket = w.ticket;
  IF s.waited IS NOT TRUE THEN
    RETURN false;
  END IF;
  names := coalesce(s.below, names_below(w));
  IF names = '{}' THEN
    RETURN true;
  END IF;
  names := still_below(w, names);
  SELECT b.name, b.ticket, b.token, b.until INTO first FROM below(w, names) b
    ORDER BY b.token IS NULL, b.until DESC LIMIT 1;
  IF NOT FOUND THEN                                      -- whoever held a subtree below may have more below that by now
    SELECT b.name, b.ticket, b.token, b.until INTO first FROM below(w, NULL) b LIMIT 1;
    IF NOT FOUND THEN
      RETURN true;
    END IF;
    names := names || first.name;
  END IF;
  UPDATE locks l
    SET watched_until = GREATEST(l.watched_until, GREATEST(first.until, clock_timestamp()) + interval '1 minute')
    WHERE l.ctid = (
      SELECT h.ctid FROM locks h
      WHERE h.name = first.name AND h.slot = 0 AND current_setting('pglock.ends_many', true) IS DISTINCT FROM 'true'
      FOR NO KEY UPDATE SKIP LOCKED);
  marked := FOUND AND set_config('pglock.kept', 'true', true) IS NOT NULL;
  PERFORM FROM locks l WHERE l.name = first.name AND l.token = first.token AND NOT is_over(l.expires_at, l.ended_at);
  UPDATE subtrees o SET below = names, waited = first.token IS NULL OR marked AND FOUND WHERE o.ticket = w.ticket;
  RETURN false;
END $$;

-- still_below keeps those of the names whose tickets or leases may still be in the way of a request. It deletes tickets
-- that are dead, and settles leases that have run out.
CREATE FUNCTION still_below(w waiters, p_names text[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off
AS $$
DECLARE
  waited text[];
  r      record;
BEGIN
  DELETE FROM waiters q WHERE q.ctid = ANY (ARRAY(
    SELECT o.ctid FROM waiters o WHERE o.name = ANY (p_names) AND o.ticket < w.ticket AND NOT EXISTS (
      SELECT FROM sessions a WHERE a.session_id = o.session_id AND a.alive_until > clock_timestamp())
    FOR UPDATE SKIP LOCKED));
  FOR r IN SELECT DISTINCT l.name FROM locks l WHERE l.name = ANY (p_names) AND NOT is_over(l.expires_at, l.ended_at)
    AND l.expires_at <= clock_timestamp()
  LOOP
    PERFORM settle(r.name);
  END LOOP;
  -- First tickets, then leases, each as of its own moment: whoever is granted the lock has no ticket any more.
  waited := ARRAY(SELECT DISTINCT q.name FROM few_tickets q WHERE q.name = ANY (p_names) AND q.ticket < w.ticket);
  RETURN waited || ARRAY(SELECT DISTINCT l.name FROM locks l
    WHERE l.name = ANY (p_names) AND l.name <> ALL (waited) AND NOT is_over(l.expires_at, l.ended_at));
END $$;

-- wait_out waits until the transactions have ended that have locked the table of locks to write it, for at most a tenth
-- of a second, and returns those that have not: '{}' if all have. Whatever they have granted is seen from then on, and
-- whoever locks the table later sees what was committed before. The next call names those that are left: new ones would
-- keep a request waiting for ever. A restart renames prepared transactions, so each of these is waited for. The caller
-- has not locked the table: two that waited so would wait for each other.
CREATE FUNCTION wait_out(p_under text[]) RETURNS text[]
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  under text[] := p_under;
  pause float8 := 0.0005;
  till  timestamptz := clock_timestamp() + interval '0.1 s';
BEGIN
  LOOP
    under := ARRAY(
      SELECT k.virtualtransaction FROM pg_locks k
      WHERE k.locktype = 'relation' AND k.relation = 'locks'::regclass AND k.granted
        AND k.database = (SELECT d.oid FROM pg_database d WHERE d.datname = current_database())
        AND k.mode NOT IN ('AccessShareLock', 'RowShareLock', 'ShareUpdateExclusiveLock', 'ShareLock')
        AND k.pid IS DISTINCT FROM pg_backend_pid()
        AND (under IS NULL OR k.virtualtransaction = ANY (under) OR k.pid IS NULL));
    IF under = '{}' OR clock_timestamp() > till THEN
      RETURN under;
    END IF;
    PERFORM pg_sleep(pause);
    pause := LEAST(2 * pause, 0.01);
  END LOOP;
END $$;

-- acquire_subtree is acquire_lease for a subtree: a lease of p_name and all names below it, exclusive or shared. It
-- grants nothing at the first time, because the ticket must be committed before, unless the owner holds a subtree that
-- covers it. So without p_wait, too, it writes a ticket, unless something is in the way: ask again, or give it up. more
-- has in addition
--   by                     the lock that the holder has, if another one is in the way
CREATE FUNCTION acquire_subtree(
  p_name text, p_grant_id uuid, p_session_key uuid, p_holder text, p_ttl interval, p_metadata jsonb DEFAULT NULL,
  p_retry boolean DEFAULT false, p_mode text DEFAULT 'exclusive', p_capacity int DEFAULT NULL,
  p_wait boolean DEFAULT true,
  p_session_ttl interval DEFAULT '10 s', p_owner_id uuid DEFAULT NULL, p_nested boolean DEFAULT false,
  p_alone boolean DEFAULT false)
RETURNS acquired
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND has_bytes('name', p_name, 512) AND is_path(p_name)
    AND CASE WHEN p_mode IN ('exclusive', 'shared') THEN true
             ELSE refuse('mode', coalesce(quote_literal(left(p_mode, 40)), 'NULL'), 'be exclusive or shared for a '
               'subtree') END
    AND (p_retry IS NOT NULL AND p_wait IS NOT NULL OR refuse('retry or wait', NULL, 'be true or false'));
  s  record;
  a  acquired;
  w  waiters := ROW(p_name, 0, p_mode, p_capacity, p_grant_id, session_of(p_session_key), p_owner_id, p_nested,
                    p_holder, p_ttl, p_metadata, NULL, true);
BEGIN
  SELECT o.ticket, o.waited, o.xact, o.under INTO s FROM waiters q JOIN subtrees o ON o.ticket = q.ticket
    WHERE q.grant_id = p_grant_id;
  IF NOT s.waited AND s.xact IS DISTINCT FROM pg_current_xact_id_if_assigned() THEN
    s.under := wait_out(s.under);
    -- Whoever has taken the head changes only rows that have waited, and it waits for the head with this one locked.
    UPDATE subtrees o SET waited = s.under = '{}', under = nullif(s.under, '{}') WHERE o.ctid = (
      SELECT r.ctid FROM subtrees r WHERE r.ticket = s.ticket AND NOT r.waited FOR UPDATE SKIP LOCKED);
  END IF;
  IF NOT p_wait AND s.ticket IS NULL THEN
    ok := check_request(w, p_session_ttl, p_retry, p_wait);
    a := try_subtree(w);
    IF a.granted IS NOT NULL THEN
      RETURN a;
    END IF;
  END IF;
  RETURN acquire_otherwise(w, false, p_session_key, p_session_ttl, p_retry, true, p_alone, false);
END $$;

-- try_subtree refuses a request that would have to wait, and locks nothing; otherwise it answers nothing.
CREATE FUNCTION try_subtree(w waiters) RETURNS acquired
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  ok   boolean := require_primary();
  head locks;
BEGIN
  head := (SELECT l FROM locks l WHERE l.name = w.name AND l.slot <= 0 ORDER BY l.slot DESC LIMIT 1);
  IF is_taken(w, head) THEN
    RETURN refusal(w, head, NULL, NULL, NULL);
  END IF;
  RETURN NULL;
END $$;

-- note_subtree writes what a ticket for a subtree needs besides, and removes what earlier requests for it have left:
-- each grant below would read that.
CREATE FUNCTION note_subtree(w waiters) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  DELETE FROM subtrees s WHERE s.ticket = ANY (ARRAY(SELECT e.ticket FROM ended_requests(w.name, 100) e));
  INSERT INTO subtrees AS s (ticket, name, grant_id, owner_id, mode, xact)
    VALUES (w.ticket, w.name, w.grant_id, w.owner_id, w.mode, pg_current_xact_id())
    ON CONFLICT (ticket) DO UPDATE SET name = EXCLUDED.name, grant_id = EXCLUDED.grant_id, mode = EXCLUDED.mode,
      owner_id = EXCLUDED.owner_id, xact = EXCLUDED.xact, waited = false, under = NULL, below = NULL;
  UPDATE installation i SET subtrees = true WHERE NOT (SELECT o.subtrees FROM installation o);
  RETURN true;
END $$;

-- note_granted writes what note_subtree does for a subtree that was granted without a ticket, because its owner holds
-- one that covers it. Whoever sees that one end sees this one: until this transaction has ended, it cannot.
CREATE FUNCTION note_granted(w waiters, p_served bigint) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  IF EXISTS (SELECT FROM locks l JOIN subtrees s ON s.ticket = l.ticket AND s.grant_id = l.grant_id
             WHERE l.name = w.name AND l.grant_id = w.grant_id) THEN
    RETURN true;
  END IF;
  DELETE FROM waiters q WHERE q.grant_id = w.grant_id;
  w.ticket := draw_ticket(p_served);
  UPDATE locks l SET ticket = w.ticket WHERE l.name = w.name AND l.grant_id = w.grant_id;
  RETURN note_subtree(w) AND watch_subtree(w.name);
END $$;

-- watch_subtree marks the head of a subtree's lock as watched, for as long as it has rows in subtrees: the end of the
-- lease is announced, and so is a ticket that is given up.
CREATE FUNCTION watch_subtree(p_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  UPDATE locks l SET watched_until = 'infinity'
    WHERE l.name = p_name AND l.slot = 0 AND l.watched_until IS DISTINCT FROM 'infinity';
  RETURN true;
END $$;

-- keep_queue marks a head that is free, or may be soon: whoever wants the lock looks at its queue first.
CREATE FUNCTION keep_queue(p_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  UPDATE locks l SET queued = true WHERE l.name = p_name AND l.slot = 0 AND NOT l.queued;
  RETURN true;
END $$;

-- wake_tree tells those to ask again for whom a change of this lock may matter: requests for subtrees that cover it,
-- and if it was a subtree, and is no exclusive one now, the first of each queue below, and of its own: the first whose
-- session is alive.
CREATE FUNCTION wake_tree(p_name text) RETURNS void
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off
AS $$
BEGIN
  IF NOT (SELECT i.subtrees FROM installation i) THEN
    RETURN;
  END IF;
  PERFORM ask_again(q) FROM subtrees s JOIN waiters q ON q.name = s.name AND q.ticket = s.ticket
    WHERE s.name = ANY (ancestors(p_name));
  IF EXISTS (SELECT FROM subtrees s WHERE s.name = p_name) AND NOT EXISTS (
      SELECT FROM locks l WHERE l.name = p_name AND l.slot = 0 AND l.subtree
        AND is_running(l.expires_at, l.ended_at)) THEN
    PERFORM ask_again(w) FROM (
        SELECT DISTINCT q.name FROM waiters q
        WHERE q.name = p_name OR q.name >= p_name || '/' AND q.name < p_name || '0') n
      JOIN locks h ON h.name = n.name AND h.slot = 0 CROSS JOIN next_waiter(h.name, h.served) w
    WHERE w.ticket IS NOT NULL;
  END IF;
END $$;

-- ask_again tells a waiter to ask: a hint of a grant without a token.
CREATE FUNCTION ask_again(w waiters) RETURNS void
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  PERFORM pg_notify('pglock_' || replace(w.session_id::text, '-', ''), hint(w.ticket, 0, 0, 0, w.grant_id));
END $$;

-- ended_requests locks the rows of requests that are neither queued nor granted any more, at most p_limit, for one name
-- or with NULL for all. It skips what somebody has locked.
CREATE FUNCTION ended_requests(p_name text, p_limit int) RETURNS SETOF subtrees
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off
AS $$
BEGIN
  RETURN QUERY SELECT * FROM subtrees o
    WHERE o.name >= coalesce(p_name, '') AND o.name <= coalesce(p_name, (SELECT max(m.name) FROM subtrees m))
      AND NOT EXISTS (SELECT FROM waiters q WHERE q.name = o.name AND q.ticket = o.ticket)
      AND NOT EXISTS (SELECT FROM locks l WHERE l.name = o.name AND l.ticket = o.ticket AND l.grant_id = o.grant_id
        AND NOT is_over(l.expires_at, l.ended_at))
    LIMIT p_limit FOR UPDATE SKIP LOCKED;
END $$;

-- sweep_subtrees removes the rows of all ended_requests, at most p_limit, and returns how many. The heads of names that
-- have no row any more are watched for a day after that, the most that anybody else may have asked for: watch writes
-- nothing where a subtree's mark is. A head that somebody has locked keeps its mark and its rows for the next sweep. It
-- looks for rows once more when it has locked the heads, so that it sees each that was granted before. That it has
-- locked some is noted: see require_unrenewed. When no row is left it notes that. It waits for nobody.
CREATE FUNCTION sweep_subtrees(p_limit int) RETURNS bigint
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET jit = off
AS $$
DECLARE
  ended bigint[];
  names text[];
  heads text[];
  n     bigint;
BEGIN
  IF NOT (SELECT i.subtrees FROM installation i) THEN
    RETURN 0;
  END IF;
  SELECT array_agg(e.ticket), array_agg(e.name) INTO ended, names FROM ended_requests(NULL, p_limit) e;
  heads := ARRAY(
    SELECT h.name FROM locks h WHERE h.name = ANY (names) AND h.slot = 0 AND h.watched_until = 'infinity'
    FOR NO KEY UPDATE SKIP LOCKED);
  PERFORM set_config('pglock.kept', 'true', true) WHERE heads <> '{}';
  DELETE FROM subtrees s WHERE s.ticket = ANY (ended) AND (s.name = ANY (heads) OR NOT EXISTS (
    SELECT FROM locks l WHERE l.name = s.name AND l.slot = 0 AND l.watched_until = 'infinity'));
  GET DIAGNOSTICS n = ROW_COUNT;
  UPDATE locks l SET watched_until = clock_timestamp() + interval '24 hours'
    WHERE l.name = ANY (heads) AND l.slot = 0 AND NOT EXISTS (SELECT FROM subtrees s WHERE s.name = l.name);
  IF NOT EXISTS (SELECT FROM subtrees) THEN
    BEGIN
      LOCK TABLE subtrees IN SHARE MODE NOWAIT;          -- nobody writes one now
      UPDATE installation i SET subtrees = false FROM (SELECT o.one FROM installation o FOR UPDATE SKIP LOCKED) mine
        WHERE i.one = mine.one AND NOT EXISTS (SELECT FROM subtrees);
    EXCEPTION WHEN lock_not_available THEN
      NULL;
    END;
  END IF;
  RETURN n;
END $$;
