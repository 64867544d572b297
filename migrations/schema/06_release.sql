-- Release. A row stays when its lease ends. It is locked FOR UPDATE first: an update under that lock counts as a
-- change of the key, so the check inside COMMIT sees it under REPEATABLE READ too; and it stays HOT.
-- synchronous_commit stays as it is unless something is granted: only a statement that is the whole transaction may
-- turn it off.

-- release_lease ends the caller's own lease and serves the queue, in one transaction. p_slot NULL: whichever it is.
-- released false: it was not held any more, and nothing changed. more has handed and watched, as in acquire_lease.
-- p_alone is as there. It waits for a COMMIT under way that has checked the lease, at most a second:
-- 55P03.
--
-- This statement ends an exclusive lease; after it nobody else queues for the lock. release_otherwise continues if
-- somebody has queued, and handles any other lease.
CREATE TYPE released AS (released boolean, more json);

CREATE FUNCTION release_lease(
  p_name text, p_token bigint, p_grant_id uuid, p_slot int DEFAULT NULL, p_alone boolean DEFAULT false)
RETURNS released
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
AS $$
DECLARE
  r {{schema}}.released;  at pg_catalog.tid;  served pg_catalog.int8;  watched boolean;  seen boolean;  ok boolean;
BEGIN
  IF p_alone IS NOT TRUE THEN
    ok := {{schema}}.require_unrenewed();                -- before it locks anything itself
  END IF;
  UPDATE {{schema}}.locks l SET expires_at = '-infinity', ended_at = pg_catalog.clock_timestamp()
  WHERE l.ctid OPERATOR(pg_catalog.=) (
    SELECT h.ctid FROM {{schema}}.locks h
    WHERE h.name OPERATOR(pg_catalog.=) p_name AND h.slot OPERATOR(pg_catalog.<=) 0
      AND h.grant_id OPERATOR(pg_catalog.=) p_grant_id AND h.token OPERATOR(pg_catalog.=) p_token
      AND (p_slot IS NULL OR p_slot OPERATOR(pg_catalog.=) 0)
        AND h.expires_at OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp()            -- is_running, written out
        AND (h.ended_at OPERATOR(pg_catalog.=) h.expires_at) IS NOT TRUE
      AND pg_catalog.current_setting('transaction_isolation') OPERATOR(pg_catalog.=) 'read committed'
    ORDER BY h.slot DESC LIMIT 1 FOR UPDATE SKIP LOCKED)
  RETURNING l.ctid, l.served, l.watched_until OPERATOR(pg_catalog.>) pg_catalog.clock_timestamp(),
      l.xmin OPERATOR(pg_catalog.=) l.xmax
    INTO at, served, watched, seen;
  IF at IS NOT NULL THEN
    ok := seen OR {{schema}}.refuse_unseen_end('55000');
    PERFORM FROM {{schema}}.waiters q
      WHERE q.name OPERATOR(pg_catalog.=) p_name AND q.ticket OPERATOR(pg_catalog.>) served ORDER BY q.ticket LIMIT 1;
  END IF;
  IF at IS NULL OR FOUND THEN
    r := {{schema}}.release_otherwise(p_name, p_token, p_grant_id, p_slot, at, false);
  ELSE
    r := ROW(true, CASE WHEN watched THEN '{"watched": true}'::pg_catalog.json END);
  END IF;
  IF p_alone AND (r.more IS NULL OR (r.more OPERATOR(pg_catalog.->) 'handed') IS NULL) THEN
    ok := pg_catalog.set_config('synchronous_commit', 'off', true) IS NOT NULL;
  END IF;
  IF p_alone IS NOT TRUE THEN
    ok := {{schema}}.bound_rest(false);
  END IF;
  RETURN r;
END $$;

-- release_leases is release_lease for many leases. n counts from 1. If one release would have to wait for longer than a
-- moment, nothing was done. It proceeds as acquire_leases does: end_set ends what it can together, and the others go in
-- the byte order of their names, and for one lock in the order of its slots.
CREATE FUNCTION release_leases(
  p_names text[], p_tokens bigint[], p_grant_ids uuid[], p_slots int[], p_alone boolean DEFAULT false)
RETURNS TABLE (n bigint, released boolean, more json)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  ok    boolean := require_unrenewed() AND is_batch(ARRAY[cardinality(p_names), cardinality(p_tokens),
                                                          cardinality(p_grant_ids), cardinality(p_slots)]);
  first boolean := pg_current_xact_id_if_assigned() IS NULL;     -- so this transaction has locked no row yet
  held  boolean[] := array_fill(true, ARRAY[cardinality(p_names)]);
  done  record;
  ended record;
  a     record;
  most  text;                                            -- the last name that it may have locked
BEGIN
  ok := ok AND set_config('pglock.ends_many', 'true', true) IS NOT NULL;        -- see fits_below
  FOR round IN 1..2 LOOP
    done := end_set(p_names, p_tokens, p_grant_ids, p_slots, held, first);
    FOR a IN
      SELECT * FROM unnest(done.ns, done.places, done.watched, done.queued) AS g (n, at, watched, queued)
    LOOP
      release_leases.n := a.n;  release_leases.released := true;
      release_leases.more := CASE WHEN a.watched THEN '{"watched": true}'::json END;
      IF a.queued THEN
        SELECT o.more INTO release_leases.more           -- not by subscript: an array may begin with any
          FROM unnest(p_names, p_tokens, p_grant_ids, p_slots) WITH ORDINALITY AS g (name, token, grant_id, slot, n),
            LATERAL release_otherwise(g.name, g.token, g.grant_id, g.slot, a.at, true) o
          WHERE g.n = a.n;
        ok := ok AND (more -> 'handed') IS NULL;
      END IF;
      RETURN NEXT;
    END LOOP;
    EXIT WHEN done.ns IS NOT NULL;
    held := CASE WHEN round = 1 THEN done.held ELSE held END;
    FOR a IN
      SELECT * FROM unnest(p_names, p_tokens, p_grant_ids, p_slots, held) WITH ORDINALITY
        AS g (name, token, grant_id, slot, held, n)
      WHERE g.held = (round = 2)                         -- first those that are not
      ORDER BY g.name COLLATE "C", g.slot, g.n
    LOOP
      ok := in_order(a.name, most) AND ok;
      ended := release_otherwise(a.name, a.token, a.grant_id, a.slot, NULL, true);
      most := GREATEST(most COLLATE "C", a.name);
      release_leases.n := a.n;  release_leases.released := ended.released;  release_leases.more := ended.more;
      RETURN NEXT;
      ok := ok AND (ended.more -> 'handed') IS NULL;
    END LOOP;
  END LOOP;
  IF p_alone AND ok THEN
    ok := set_config('synchronous_commit', 'off', true) IS NOT NULL;
  END IF;
  ok := bound_rest(p_alone);
END $$;

-- release_otherwise serves the queue after the end of an exclusive lease, whose row was at p_at: of many it may have
-- moved, as the first one's end may mark the others' rows for a subtree. Without p_at it ends the lease itself, and
-- may wait for its row. For an exclusive lease it locks only that row, which is the head; for another it takes the
-- head first.
CREATE FUNCTION release_otherwise(
  p_name text, p_token bigint, p_grant_id uuid, p_slot int, p_at tid, p_many boolean) RETURNS released
LANGUAGE plpgsql VOLATILE SET search_path FROM CURRENT SET lock_timeout = '1s' SET plan_cache_mode = force_generic_plan
AS $$
DECLARE
  head locks;
  mine locks;
  g    grants;
  seen boolean;
  ok   boolean := require_read_committed()
    AND (NOT p_many OR set_config('lock_timeout', '50ms', true) IS NOT NULL);       -- until the function ends
BEGIN
  IF p_at IS NULL THEN
    PERFORM knock(p_name, 0, p_grant_id);
    mine := (SELECT l FROM locks l
      WHERE l.name = p_name AND l.slot <= 0 AND l.grant_id = p_grant_id AND l.token = p_token
        AND coalesce(p_slot, 0) = 0 AND is_running(l.expires_at, l.ended_at)
      ORDER BY l.slot DESC LIMIT 1 FOR UPDATE);
    IF mine.name IS NULL AND p_slot IS DISTINCT FROM 0 AND EXISTS (  -- whoever has no lease locks nothing
         SELECT FROM locks l WHERE l.name = p_name AND l.slot > 0 AND l.grant_id = p_grant_id AND l.token = p_token
           AND is_running(l.expires_at, l.ended_at)) THEN
      head := take_head(p_name, true, false);
      mine := (SELECT l FROM locks l
        WHERE l.name = p_name AND l.slot > 0 AND l.grant_id = p_grant_id AND l.token = p_token FOR UPDATE);
    END IF;
    IF NOT is_running(mine.expires_at, mine.ended_at) THEN
      RETURN ROW(false, NULL::json);
    END IF;
    UPDATE locks l SET expires_at = '-infinity', ended_at = clock_timestamp() WHERE l.name = p_name
      AND l.slot = mine.slot RETURNING l.xmin = l.xmax INTO seen;
    ok := seen OR refuse_unseen_end('55000');
  END IF;
  head := (SELECT l FROM locks l WHERE l.name = p_name AND l.slot <= 0 ORDER BY l.slot DESC LIMIT 1);
  g := serve(head, CASE WHEN NOT p_many THEN p_at END, NULL, coalesce(mine.session_id, head.session_id), NULL);
  RETURN ROW(true, CASE WHEN g.hints IS NOT NULL OR g.handed IS NOT NULL OR head.watched_until > clock_timestamp()
    THEN json_strip_nulls(json_build_object('handed', handed_by(g),
                                            'watched', nullif(head.watched_until > clock_timestamp(), false))) END);
END $$;

-- hand_over ends the caller's own exclusive lease, and grants the lock in the same transaction to a request that waits
-- under the label p_to: of several to the first in the queue whose session is alive. Those before it keep their places.
-- So a holder may choose its successor; this is the only exception to the order of tickets (I9). outcome is
--   handed over   more has handed and watched, as in acquire_lease
--   nobody        nobody waits for the exclusive lock under that label, or none of them may_follow; nothing has changed
--   or why the lease is lost, as in renew_leases; nothing has changed.
-- p_look returns the outcome and changes nothing. Otherwise it looks, too, before it locks the row: a lock that is kept
-- where nothing changes would hide an end in another subtransaction from a COMMIT that follows the row's versions (I4).
-- If what it has found has gone when it has the lock, this transaction ends no lease any more. It waits for a COMMIT
-- under way that has checked the lease, at most a second: 55P03.
CREATE FUNCTION hand_over(
  p_name text, p_token bigint, p_grant_id uuid, p_to text, p_look boolean DEFAULT false, OUT outcome text,
    OUT more json)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '1s'
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  head   locks;
  w      waiters;
  g      grants;
  locked boolean;
  ok     boolean := require_read_committed() AND require_unrenewed() AND has_bytes('to', p_to, 256)
                    AND (p_look IS NOT NULL OR refuse('look', NULL, 'be true or false'));
BEGIN
  IF current_setting('transaction_read_only')::boolean THEN
    RAISE EXCEPTION 'this transaction may only read: it cannot tell who may be handed a lock'
      USING ERRCODE = 'read_only_sql_transaction';
  END IF;
  FOREACH locked IN ARRAY ARRAY[false, true] LOOP
    IF locked THEN
      PERFORM knock(p_name, 0, p_grant_id);
      PERFORM FROM locks l WHERE l.name = p_name AND l.slot = 0 AND l.grant_id = p_grant_id FOR UPDATE;
    END IF;
    head := (SELECT l FROM locks l WHERE l.name = p_name AND l.slot <= 0 ORDER BY l.slot DESC LIMIT 1);
    w := NULL;
    hand_over.outcome := lost_reason(p_name, p_token, p_grant_id, 0);
    WHILE hand_over.outcome IS NULL LOOP
      SELECT * INTO w FROM waiters q
        WHERE q.name = p_name AND q.ticket > coalesce(w.ticket, head.served) AND q.holder = p_to
          AND q.mode = 'exclusive' AND session_alive(q.session_id)
        ORDER BY q.ticket LIMIT 1;
      hand_over.outcome := CASE WHEN w.ticket IS NULL THEN 'nobody'
        WHEN NOT locked AND w.subtree THEN CASE WHEN would_fit(w) THEN 'handed over' END
        WHEN may_follow(w, head.owner_id) AND (NOT locked OR claim(ARRAY[w], w.ticket - 1) IS NOT NULL)
          THEN 'handed over' END;
    END LOOP;
    IF p_look OR hand_over.outcome <> 'handed over' THEN
      ok := bound_rest(false)
        AND (NOT locked OR set_config('pglock.renewed', 'true', true) IS NOT NULL);   -- see require_unrenewed
      RETURN;
    END IF;
  END LOOP;
  ok := bound_rest(false);
  g := tell(grant_head(g, w, place_of(p_name), head.token, false, 0, true), ARRAY[w], head.session_id, NULL);
  more := json_strip_nulls(json_build_object('handed', handed_by(g),
                                             'watched', nullif(head.watched_until > clock_timestamp(), false)));
END $$;

-- may_follow says that a holder may hand its lock over to a request: no subtree that somebody holds covers it, nor one
-- that the holder's own owner waits for; and for a subtree nothing is in its way.
CREATE FUNCTION may_follow(w waiters, p_owner_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  IF w.subtree OR NOT in_tree(w) THEN
    RETURN NOT w.subtree OR fits_tree(w);
  END IF;
  LOCK TABLE locks IN ROW EXCLUSIVE MODE;                -- as in fits_tree
  w.ticket := 0;
  RETURN NOT EXISTS (SELECT FROM above(w) a WHERE a.token IS NOT NULL OR a.owner_id = p_owner_id);
END $$;

-- give_up takes requests back: their tickets, or the leases that they were granted meanwhile, which go to the next
-- waiters. With p_spend it also spends their grant IDs, so that a request still under way is refused. For this it
-- changes the head: a request that has already read the head and does not see the note finds the head changed. Locks
-- are taken in the byte order of names. It returns one answer per request: ended says that a grant had come, place is
-- the place that the ticket had, more is as in acquire_lease. Requests for one lock wait for whoever has taken its
-- head, at most a second; those for several wait only for a moment: 55P03, and nothing was done.
CREATE FUNCTION give_up(
  p_session_key uuid, p_names text[], p_grant_ids uuid[], p_spend boolean DEFAULT false, p_alone boolean DEFAULT false)
RETURNS TABLE (n bigint, ended boolean, place int, token bigint, more json)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '1s'
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND require_unrenewed()
    AND is_batch(ARRAY[cardinality(p_names), cardinality(p_grant_ids)]);
  a  record;
  u  record;
BEGIN
  IF p_session_key IS NULL OR p_spend IS NULL OR (SELECT bool_or(g IS NULL) FROM unnest(p_grant_ids) g) THEN
    ok := refuse('session_key, grant_id or spend', NULL, 'not be NULL');
  END IF;
  ok := p_names[1] = ALL (p_names) OR set_config('lock_timeout', '50ms', true) IS NOT NULL;   -- until the function ends
  ok := cardinality(p_names) = 1 OR set_config('pglock.ends_many', 'true', true) IS NOT NULL;
  FOR a IN
    SELECT g.name COLLATE "C" AS name, array_agg(g.grant_id ORDER BY g.n) AS grant_ids, array_agg(g.n
      ORDER BY g.n) AS ns
    FROM unnest(p_names, p_grant_ids) WITH ORDINALITY AS g (name, grant_id, n)
    WHERE has_bytes('name', g.name, 512) GROUP BY 1 ORDER BY 1
  LOOP
    u := give_up_all(a.name, a.grant_ids, session_of(p_session_key), p_spend);
    ok := ok AND u.more -> 'handed' IS NULL;
    FOR i IN 1..cardinality(a.ns) LOOP                          -- the first answer has what is to be told
      give_up.n := a.ns[i];
      give_up.ended := u.ended[i];
      give_up.place := u.places[i];
      give_up.token := u.token;
      give_up.more := CASE WHEN i = 1 THEN u.more
        ELSE json_build_object('holder', u.more ->> 'holder', 'expires_at', u.more ->> 'expires_at') END;
      RETURN NEXT;
    END LOOP;
  END LOOP;
  IF p_alone AND ok THEN
    ok := set_config('synchronous_commit', 'off', true) IS NOT NULL;
  END IF;
  ok := bound_rest(p_alone);
END $$;

-- give_up_all is give_up for requests of one lock. The tickets go first, without the head: a ticket that is locked is
-- passed over by whoever serves the queue, and one that they are serving is waited for. So who leaves the queue of a
-- held lock is in nobody's way. It takes the head to spend, and where the lock may be free for those behind: if it can
-- be had in time. Otherwise they learn from a look that it is their turn.
CREATE FUNCTION give_up_all(
  p_name text, p_grant_ids uuid[], p_session_id uuid, p_spend boolean,
  OUT ended boolean[], OUT places int[], OUT token bigint, OUT more json)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
  head  locks;
  g     grants;
  gone  waiters;
  ahead bigint[];                                        -- the first tickets, before all but one of these went
  w     waiters;                                         -- one of them that had a ticket, best an exclusive one
  r     record;
  mine  boolean := false;                                -- a grant had come
BEGIN
  IF p_spend THEN
    head := take_to_spend(p_name, p_grant_ids);
    INSERT INTO spent_grants (grant_id, at) SELECT s, clock_timestamp()
      FROM unnest(p_grant_ids) s ON CONFLICT DO NOTHING;
    UPDATE locks l SET spent_until = clock_timestamp() + interval '1 hour' WHERE l.name = p_name AND l.slot = 0;
  ELSE
    head := (SELECT l FROM locks l WHERE l.name = p_name AND l.slot <= 0 ORDER BY l.slot DESC LIMIT 1);
  END IF;
  FOR i IN 1..cardinality(p_grant_ids) LOOP
    DELETE FROM waiters q WHERE q.grant_id = p_grant_ids[i] AND q.name = p_name RETURNING q.* INTO gone;
    CONTINUE WHEN NOT FOUND;
    w := CASE WHEN w.mode = 'exclusive' THEN w ELSE gone END;
    ahead := coalesce(ahead, gone.ticket || ARRAY(SELECT q.ticket FROM waiters q WHERE q.name = p_name
      AND q.ticket > coalesce(head.served, 0) ORDER BY q.ticket LIMIT 99));
    places[i] := LEAST(100, (SELECT count(*) + 1 FROM unnest(ahead) t
      WHERE t < gone.ticket AND t > coalesce(head.served, 0)));
  END LOOP;
  IF NOT p_spend THEN
    head := (SELECT l FROM locks l WHERE l.name = p_name AND l.slot <= 0 ORDER BY l.slot DESC LIMIT 1);
    mine := EXISTS (SELECT FROM locks l                  -- also beside a ticket that was passed over
      WHERE l.name = p_name AND l.grant_id = ANY (p_grant_ids) AND is_running(l.expires_at, l.ended_at));
    head := CASE WHEN mine OR NOT is_running(head.expires_at, head.ended_at)
      THEN take_head(p_name, mine OR (head.top_slot > 0 OR is_over(head.expires_at, head.ended_at))
        AND await_to_leave(p_name), false) END;
  END IF;
  FOR i IN 1..cardinality(p_grant_ids) LOOP
    ended[i] := end_grant(head, p_grant_ids[i]);
  END LOOP;
  IF head.name IS NOT NULL THEN
    head := (SELECT l FROM locks l WHERE l.name = p_name AND l.slot = 0);
    g := serve(head, NULL, NULL, p_session_id, NULL);
  END IF;
  SELECT h.token, h.holder, h.expires_at INTO r FROM (   -- those in whose company a request fits are not in its way
    SELECT l.token, l.holder, l.expires_at, l.mode = w.mode AND l.mode <> 'exclusive'
      AND (count(*) OVER () < w.capacity) IS NOT FALSE AS fits
    FROM locks l WHERE l.name = p_name AND is_running(l.expires_at, l.ended_at)) h
    WHERE h.fits IS NOT TRUE ORDER BY h.expires_at DESC LIMIT 1;
  token := r.token;
  more := json_strip_nulls(json_build_object('holder', r.holder, 'expires_at', json_time(r.expires_at),
    'handed', handed_by(g), 'watched', nullif((       -- of a held lock it concerns those above and below a subtree
      SELECT l.watched_until > clock_timestamp() AND (head.name IS NOT NULL OR l.watched_until = 'infinity')
      FROM locks l WHERE l.name = p_name AND l.slot = 0), false)));
END $$;

-- await_row waits until a lease's row can be locked FOR UPDATE, and says whether it can. It locks nothing: what is
-- locked in a subtransaction, as an EXCEPTION makes one, and changed outside it, is no change of the key for a COMMIT
-- that follows the row's versions (I4).
CREATE FUNCTION await_row(p_name text, p_slot int) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  PERFORM FROM locks l WHERE l.name = p_name AND l.slot = p_slot FOR UPDATE;
  RAISE SQLSTATE 'LK000';
EXCEPTION
  WHEN SQLSTATE 'LK000' THEN RETURN true;
  WHEN lock_not_available THEN RETURN false;
END $$;

-- await_to_leave waits for whoever has locked the head, and says whether those who leave the queue may wait for it. A
-- fenced transaction that is at its COMMIT, or prepared, may keep it for long, and their tickets must go. Who leaves
-- several queues does not ask: it fails where it has to wait, and is repeated for each.
CREATE FUNCTION await_to_leave(p_name text) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  PERFORM knock(p_name, 0);
  RETURN current_setting('lock_timeout')::interval < '1 s' OR await_row(p_name, 0);
END $$;

-- take_to_spend takes the head for those who spend grant IDs. A fenced transaction that is at its COMMIT, or prepared,
-- may keep it for long. Then it locks the head only against grants, and returns no head, so that nothing is granted.
-- By then whoever had joined with one of these grant IDs has had a second; a ticket that is still being written shows
-- in the looks of its session.
CREATE FUNCTION take_to_spend(p_name text, p_grant_ids uuid[]) RETURNS locks
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  PERFORM knock(p_name, 0);
  IF current_setting('lock_timeout')::interval >= '1 s' AND NOT await_row(p_name, 0) THEN   -- no other lock's, too
    PERFORM FROM locks l WHERE l.name = p_name AND l.slot = 0 FOR NO KEY UPDATE;
    IF NOT EXISTS (SELECT FROM locks l WHERE l.name = p_name AND l.grant_id = ANY (p_grant_ids)) THEN
      RETURN NULL;
    END IF;                                              -- a grant has come and is to end
  END IF;
  RETURN take_head(p_name, true, true);
END $$;

-- end_grant ends the lease with a grant ID, if there is one. The caller has taken the head, and serves the queue
-- afterwards. Without a head there is none. What it refuses is 55P03: whoever spends may have locked the head against
-- grants while another queued, and has only to try again.
CREATE FUNCTION end_grant(p_head locks, p_grant_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  r    locks := lease_of(p_head, p_grant_id);
  seen boolean;
BEGIN
  IF r.name IS NULL THEN
    RETURN false;
  END IF;
  PERFORM FROM locks l WHERE l.name = r.name AND l.slot = r.slot FOR UPDATE;
  UPDATE locks l SET expires_at = '-infinity', ended_at = clock_timestamp()
    WHERE l.name = r.name AND l.slot = r.slot AND l.grant_id = p_grant_id AND is_running(l.expires_at, l.ended_at)
    RETURNING l.xmin = l.xmax INTO seen;
  RETURN seen IS NOT NULL AND (seen OR refuse_unseen_end('55P03'));
END $$;

-- take_to_break takes the head, or with p_slot another row of the lock, for an operator: 55P03 says who has locked it.
CREATE FUNCTION take_to_break(p_name text, p_slot int) RETURNS locks
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  who record;
BEGIN
  PERFORM knock(p_name, coalesce(p_slot, 0));
  IF await_row(p_name, coalesce(p_slot, 0)) THEN
    RETURN (SELECT l FROM locks l WHERE l.name = p_name AND l.slot = coalesce(p_slot, 0) FOR UPDATE);
  END IF;
  SELECT string_agg(b.who, ' and ') AS names, string_agg(b.ends, ' ') AS ends INTO who FROM (
    SELECT DISTINCT
      CASE WHEN p.pid IS NULL THEN 'prepared transaction ' || quote_literal(p.gid)
           ELSE 'process ' || p.pid || coalesce(' (' || quote_literal(nullif(a.application_name, '')) || ')', '')
             || CASE WHEN a.wait_event = 'SyncRep' THEN ', whose commit waits for a standby' ELSE '' END END AS who,
      CASE WHEN p.pid IS NULL THEN
             format('COMMIT PREPARED %1$L or ROLLBACK PREPARED %1$L, as its other half ended;', p.gid)
           WHEN a.wait_event IS DISTINCT FROM 'SyncRep' THEN format('SELECT pg_terminate_backend(%s);', p.pid) || CASE
             WHEN a.state IS NULL THEN ' (Not while its wait_event is SyncRep, which is hidden here.)' ELSE '' END
           END AS ends   -- who waits for a standby has committed
    FROM backend_pids(p_name) p LEFT JOIN pg_stat_activity a ON a.pid = p.pid
    WHERE p.use = 'row' AND p.pid IS DISTINCT FROM pg_backend_pid() LIMIT 5) b;
  RAISE EXCEPTION 'lock % cannot be broken now: its row is locked by %; nothing was changed', quote_literal(p_name),
      coalesce(who.names, 'another transaction')
    USING ERRCODE = 'lock_not_available',
      HINT = 'Try again' || coalesce(', or end that transaction: ' || who.ends, '.');
END $$;

-- break_lock ends somebody else's lease and draws a new token. Without one, a fenced transaction of the old holder at
-- REPEATABLE READ would not notice the break, and would commit. Then it serves the queue. p_token, if given, must be
-- the holder's; with several holders it must be given. It waits for a COMMIT of the holder that is under way, and for
-- whoever else has locked the row, at most five seconds: 55P03, which names them, and nothing was done.
CREATE FUNCTION break_lock(
  p_name text, p_reason text, p_actor text, p_token bigint DEFAULT NULL,
  OUT holder text, OUT token bigint, OUT new_token bigint, OUT expires_at timestamptz, OUT handed int[],
    OUT watched boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '5s'
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND require_unrenewed() AND require_durable_commit()
                AND has_bytes('name', p_name, 512) AND is_operator(p_reason, p_actor);
  r      locks;
  tokens bigint[];
BEGIN
  ok := (take_to_break(p_name, NULL)).name IS NOT NULL;
  SELECT array_agg(l.token ORDER BY l.token) INTO tokens FROM locks l WHERE l.name = p_name
    AND is_running(l.expires_at, l.ended_at);
  IF cardinality(tokens) > 1 AND p_token IS NULL THEN
    RAISE EXCEPTION 'token is NULL: lock % has % holders, it must be one of their tokens %', quote_literal(p_name),
        cardinality(tokens), array_to_string(tokens, ', ') USING ERRCODE = 'invalid_parameter_value';
  END IF;
  SELECT * INTO r FROM locks l
    WHERE l.name = p_name AND is_running(l.expires_at, l.ended_at) AND coalesce(l.token = p_token, true);
  IF r.slot > 0 THEN
    r := take_to_break(p_name, r.slot);
  END IF;
  IF NOT is_running(r.expires_at, r.ended_at) THEN
    IF tokens IS NULL OR r.name IS NOT NULL THEN
      RAISE EXCEPTION 'lock % is not held: there is nothing to break', quote_literal(p_name) USING ERRCODE = 'LK006';
    END IF;
    RAISE EXCEPTION 'lock % is held with token %, not %: nothing was broken', quote_literal(p_name),
        array_to_string(tokens, ', '), p_token USING ERRCODE = 'LK006';
  END IF;
  SELECT b.* INTO holder, token, new_token, expires_at, handed, watched FROM break_row(r, p_reason, p_actor) b;
  ok := bound_rest(false);
END $$;

-- break_row is break_lock for a row whose lease runs. The caller has taken the head, and locked the row.
CREATE FUNCTION break_row(
  r locks, p_reason text, p_actor text,
  OUT holder text, OUT token bigint, OUT new_token bigint, OUT expires_at timestamptz, OUT handed int[],
    OUT watched boolean)
LANGUAGE plpgsql VOLATILE
AS $$
#variable_conflict use_column
DECLARE
  head locks;
  over timestamptz;
  seen boolean;
BEGIN
  new_token := draw_token((SELECT max(l.token) FROM locks l WHERE l.name = r.name));
  UPDATE locks l SET token = break_row.new_token, expires_at = '-infinity', ended_at = clock_timestamp()
    WHERE l.name = r.name AND l.slot = r.slot RETURNING l.ended_at, l.xmin = l.xmax INTO over, seen;
  PERFORM seen OR refuse_unseen_end('55000');
  holder := r.holder;
  token := r.token;
  expires_at := r.expires_at;
  INSERT INTO events (kind, lock_name, token, new_token, holder, actor, reason, session_id, slot, mode,
      capacity, granted_at, ended_at, number, subtree)
    VALUES ('break', r.name, r.token, break_row.new_token, r.holder, p_actor, p_reason, r.session_id,
      r.slot, r.mode, r.capacity, r.acquired_at, over, r.grants, r.subtree);
  head := (SELECT l FROM locks l WHERE l.name = r.name AND l.slot = 0);
  watched := head.watched_until > clock_timestamp();
  handed := (serve(head, NULL, NULL, gen_random_uuid(), NULL)).handed;
END $$;
