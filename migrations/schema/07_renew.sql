-- Renewals and checks, which holders make. They lock only the row of their lease, and a renewal never revives a lease
-- that has ended. Values are computed after the row is locked.

-- raise_lost raises LK001 or LK003, for a lease that was lost for that reason.
CREATE FUNCTION raise_lost(p_name text, p_token bigint, p_reason text) RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
  -- Two of the error's fields are for programs: the constraint is the lock's name, the column is the token.
  RAISE EXCEPTION 'the lease of lock % with token % is lost: %', quote_literal(p_name), p_token,
      CASE p_reason WHEN 'unknown' THEN format('schema %I of database %I knows no such grant', current_schema(),
        current_database())
                    ELSE p_reason END
    USING ERRCODE = CASE p_reason WHEN 'expired' THEN 'LK001' ELSE 'LK003' END,
          DETAIL = 'reason=' || p_reason, CONSTRAINT = coalesce(p_name, ''), COLUMN = coalesce(p_token::text, ''),
          HINT = 'Stop the work that this lock protects; acquire it again to go on.';
END $$;

-- noted_end is how that lease ended, as the history says; NULL if it says nothing, 'unread' if it cannot be read.
-- A lock must not hang because of its history: noted_end waits for a table that somebody has locked, as VACUUM FULL
-- does, for a tenth of a second, and of all leases of a statement only once.
CREATE FUNCTION noted_end(p_name text, p_token bigint) RETURNS text
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_custom_plan SET lock_timeout = '100ms'
AS $$
BEGIN
  IF current_setting('pglock.history_locked', true) = statement_timestamp()::text THEN
    RETURN 'unread';
  END IF;
  RETURN (SELECT o.kind FROM events o
    WHERE o.lock_name = p_name AND o.token = p_token AND o.kind IN ('break', 'takeover', 'expired') LIMIT 1);
EXCEPTION WHEN OTHERS THEN
  PERFORM set_config('pglock.history_locked', statement_timestamp()::text, true) WHERE SQLSTATE = '55P03';
  RETURN 'unread';
END $$;

-- lost_reason says why the lease (p_name, p_token, p_grant_id, and p_slot, if known) is no longer held; NULL while it
-- is. A grant over a lease that ran out leaves a takeover in the history, and a break leaves a break. A lease with
-- neither was released, whether the history says so or not, if the same epoch has a later grant of the lock. A failover
-- or a restore that loses a grant loses the later ones of its epoch, too: nobody knows what has become of it.
-- Both functions are planned anew each time: a plan from before there was a history would read all of it.
CREATE FUNCTION lost_reason(p_name text, p_token bigint, p_grant_id uuid, p_slot int) RETURNS text
LANGUAGE plpgsql VOLATILE SET plan_cache_mode = force_custom_plan
AS $$
DECLARE
  r locks;
  e text;
BEGIN
  SELECT * INTO r FROM locks l
    WHERE l.name = p_name AND l.slot = coalesce(p_slot, l.slot) AND l.grant_id = p_grant_id
      AND l.token = p_token;
  IF FOUND THEN
    RETURN CASE WHEN r.expires_at = '-infinity' THEN 'released' WHEN NOT is_running(r.expires_at, r.ended_at)
      THEN 'expired' END;
  END IF;
  e := noted_end(p_name, p_token);
  IF e IS NOT NULL THEN
    RETURN CASE e WHEN 'break' THEN 'broken' WHEN 'takeover' THEN 'taken over' WHEN 'unread' THEN 'unknown' ELSE e END;
  END IF;
  PERFORM FROM locks l WHERE l.name = p_name AND l.token > p_token AND l.token >> 36 = p_token >> 36;
  RETURN CASE WHEN FOUND THEN 'released' ELSE 'unknown' END;
END $$;

-- renew_leases extends every lease that is still held, each by its own TTL. It returns a verdict for each: renewed,
-- busy (somebody has locked the row, or it moved: ask again), or why the lease is lost. A stuck row never costs the
-- other leases: only with p_wait does it wait for rows, for that long, and then raises 55P03. p_alone is as in
-- acquire_lease. Its one plan, made when a connection first renews, finds each lease by its key: so it suits any number
-- of leases, however the table has grown since, and whatever the session then forbade to the planner.
--
-- A lease that has an element in p_lasting lasts for at least that long from now on, and no renewal shortens it before.
-- Its TTL counts again when that time has passed, or when a renewal names in p_no_longer the expiry that it undoes. A
-- request that comes late names an expiry that the row no longer has, so it cannot undo a later extension.
CREATE FUNCTION renew_leases(
  p_names text[], p_tokens bigint[], p_grant_ids uuid[], p_slots int[], p_wait interval DEFAULT NULL,
  p_lasting interval[] DEFAULT NULL, p_no_longer timestamptz[] DEFAULT NULL, p_alone boolean DEFAULT false)
RETURNS TABLE (n bigint, outcome text, expires_at timestamptz, remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER
SET search_path FROM CURRENT SET lock_timeout = 0 SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
SET enable_nestloop = on SET enable_indexscan = on SET enable_tidscan = on SET jit = off
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND require_durable_commit()
    AND is_batch(ARRAY[cardinality(p_names), cardinality(p_tokens), cardinality(p_grant_ids), cardinality(p_slots)])
    AND ((SELECT bool_and(s IS NOT NULL) FROM unnest(p_slots) s) OR refuse('slot', NULL, 'be that of the lease'))
    AND (p_lasting IS NULL AND p_no_longer IS NULL
         OR is_batch(ARRAY[cardinality(p_names), cardinality(coalesce(p_lasting, array_fill(NULL::interval,
              ARRAY[cardinality(p_names)]))), cardinality(coalesce(p_no_longer, array_fill(NULL::timestamptz,
              ARRAY[cardinality(p_names)])))])
            AND (SELECT bool_and(g IS NULL OR is_ttl('lasting', g)) FROM unnest(p_lasting) g) IS NOT FALSE);
BEGIN
  IF p_wait NOT BETWEEN interval '0' AND interval '24 hours' THEN
    ok := refuse('wait', p_wait::text, 'be from 0 to 24 hours');
  ELSIF p_wait IS NOT NULL THEN
    ok := set_config('lock_timeout', GREATEST(1, extract(epoch FROM p_wait) * 1000)::int::text, true) IS NOT NULL;
    PERFORM FROM (SELECT * FROM unnest(p_names, p_grant_ids, p_slots) AS a (name, grant_id, slot)
                  ORDER BY a.name COLLATE "C", a.slot) a
      CROSS JOIN LATERAL (SELECT FROM locks l WHERE l.name = a.name AND l.slot = a.slot AND l.grant_id = a.grant_id
                          FOR NO KEY UPDATE) h;
  END IF;
  ok := p_alone OR bound_rest(true) AND set_config('pglock.renewed', 'true', true) IS NOT NULL;
  RETURN QUERY
    WITH asked AS MATERIALIZED (
      SELECT * FROM unnest(p_names, p_tokens, p_grant_ids, p_slots, p_lasting, p_no_longer) WITH ORDINALITY
        AS a (name, token, grant_id, slot, lasting, no_longer, n)
      ORDER BY a.name COLLATE "C", a.slot, a.n),
    held AS MATERIALIZED (                               -- in that order
      SELECT h.at, a.n, a.lasting, a.no_longer
      FROM asked a CROSS JOIN LATERAL (
        SELECT l.ctid AS at FROM locks l
        WHERE l.name = a.name AND l.slot = a.slot AND l.grant_id = a.grant_id AND l.token = a.token
          AND is_running(l.expires_at, l.ended_at)
        FOR NO KEY UPDATE SKIP LOCKED) h),
    renewed AS MATERIALIZED (
      UPDATE locks l SET renewed_at = clock_timestamp(),
        slowest = GREATEST(l.slowest, clock_timestamp() - l.renewed_at),
        expires_at = GREATEST(clock_timestamp() + GREATEST(l.ttl, h.lasting),
          CASE WHEN l.extended AND l.expires_at IS DISTINCT FROM h.no_longer THEN l.expires_at END),
        extended = coalesce(h.lasting > l.ttl, false)
          OR l.extended AND l.expires_at IS DISTINCT FROM h.no_longer AND l.expires_at > clock_timestamp() + l.ttl
      FROM held h WHERE l.ctid = h.at AND is_running(l.expires_at, l.ended_at)
      RETURNING h.n, l.expires_at)
    SELECT r.n, 'renewed', r.expires_at, microseconds_until(r.expires_at) FROM renewed r
    UNION ALL
    SELECT a.n, coalesce(lost_reason(a.name, a.token, a.grant_id, a.slot), 'busy'), NULL::timestamptz, 0::bigint
    FROM asked a WHERE (SELECT count(*) FROM renewed) < cardinality(p_names)
      AND a.n NOT IN (SELECT r.n FROM renewed r);        -- hashed, whatever the estimate
END $$;

-- check_leases says of each lease how long it still runs, or why it is lost. A standby refuses: it may not know yet
-- what has become of the lease.
CREATE FUNCTION check_leases(p_names text[], p_tokens bigint[], p_grant_ids uuid[], p_slots int[])
RETURNS TABLE (n bigint, reason text, expires_at timestamptz, remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := is_batch(ARRAY[cardinality(p_names), cardinality(p_tokens), cardinality(p_grant_ids),
                               cardinality(p_slots)]) AND require_primary();
  a  record;
BEGIN
  FOR a IN
    SELECT * FROM unnest(p_names, p_tokens, p_grant_ids, p_slots) WITH ORDINALITY AS g (name, token, grant_id, slot, n)
  LOOP
    SELECT a.n, NULL, l.expires_at, microseconds_until(l.expires_at)
      INTO check_leases.n, check_leases.reason, check_leases.expires_at, check_leases.remaining_us
      FROM locks l WHERE l.name = a.name AND l.slot = coalesce(a.slot, l.slot) AND l.grant_id = a.grant_id
        AND l.token = a.token AND is_running(l.expires_at, l.ended_at);
    IF NOT FOUND THEN
      check_leases.n := a.n;
      check_leases.reason := coalesce(lost_reason(a.name, a.token, a.grant_id, a.slot), 'expired');
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;
