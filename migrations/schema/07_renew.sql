-- Renewals and checks: what holders do. They lock the row of their lease alone, and a renewal never revives a lease that
-- has ended. Values are computed after the lock.

CREATE FUNCTION raise_lost(p_name text, p_token bigint, p_reason text) RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
  -- Two of the error's fields are for programs: the constraint is the lock's name, the column is the token.
  RAISE EXCEPTION 'the lease of lock % with token % is lost: %', quote_literal(p_name), p_token,
      CASE p_reason WHEN 'unknown' THEN format('schema %I of database %I has no such grant', current_schema(), current_database())
                    ELSE p_reason END
    USING ERRCODE = CASE p_reason WHEN 'expired' THEN 'LK001' ELSE 'LK003' END,
          DETAIL = 'reason=' || p_reason, CONSTRAINT = coalesce(p_name, ''), COLUMN = coalesce(p_token::text, ''),
          HINT = 'Stop the work that this lock protects; acquire it again to go on.';
END $$;

-- renew_leases extends every lease that is still held, each by its own TTL. One verdict for each: renewed, busy (somebody
-- has locked the row, or it moved: ask again), or why it is lost. One stuck row never costs the other leases. It is
-- planned for as many leases as there are.
CREATE FUNCTION renew_leases(p_names text[], p_tokens bigint[], p_grant_ids uuid[], p_slots int[])
RETURNS TABLE (n bigint, outcome text, expires_at timestamptz, remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET plan_cache_mode = force_custom_plan
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND require_durable_commit()
    AND is_batch(cardinality(p_names), cardinality(p_tokens), cardinality(p_grant_ids), cardinality(p_slots))
    AND (array_position(p_slots, NULL) IS NULL OR refuse('slot', NULL, 'be that of the lease'));
BEGIN
  RETURN QUERY
    WITH asked AS MATERIALIZED (
      SELECT * FROM unnest(p_names, p_tokens, p_grant_ids, p_slots) WITH ORDINALITY AS a (name, token, grant_id, slot, n)),
    held AS MATERIALIZED (
      SELECT l.ctid AS at, a.n FROM asked a JOIN locks l ON l.name = a.name AND l.slot = a.slot
      WHERE l.grant_id = a.grant_id AND a.token BETWEEN l.first_token AND l.token AND l.expires_at > clock_timestamp()
      ORDER BY l.name, l.slot FOR NO KEY UPDATE OF l SKIP LOCKED),
    renewed AS MATERIALIZED (
      UPDATE locks l SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + l.ttl
      FROM held h WHERE l.ctid = h.at AND l.expires_at > clock_timestamp()
      RETURNING h.n, l.expires_at)
    SELECT r.n, 'renewed', r.expires_at, microseconds_until(r.expires_at) FROM renewed r
    UNION ALL
    SELECT a.n, coalesce(lost_reason(a.name, a.token, a.grant_id), 'busy'), NULL::timestamptz, 0::bigint
    FROM asked a WHERE (SELECT count(*) FROM renewed) < cardinality(p_names) AND NOT EXISTS (SELECT FROM renewed r WHERE r.n = a.n);
END $$;

-- renew_lease extends one lease by its TTL, waiting for the row where it must; LK001 or LK003 when the lease is lost.
CREATE FUNCTION renew_lease(
  p_name text, p_token bigint, p_grant_id uuid, p_slot int DEFAULT NULL, OUT expires_at timestamptz, OUT remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND require_durable_commit();
  s  int;
BEGIN
  SELECT l.slot INTO s FROM locks l
    WHERE l.name = p_name AND l.slot = coalesce(p_slot, l.slot) AND l.grant_id = p_grant_id
      AND p_token BETWEEN l.first_token AND l.token
    FOR NO KEY UPDATE;
  UPDATE locks l SET renewed_at = clock_timestamp(), expires_at = clock_timestamp() + l.ttl
    WHERE l.name = p_name AND l.slot = s AND l.grant_id = p_grant_id AND l.expires_at > clock_timestamp()
    RETURNING l.expires_at, microseconds_until(l.expires_at) INTO renew_lease.expires_at, renew_lease.remaining_us;
  IF NOT FOUND THEN
    PERFORM raise_lost(p_name, p_token, coalesce(lost_reason(p_name, p_token, p_grant_id), 'expired'));
  END IF;
END $$;

-- check_leases tells of each lease how long it still runs, or why it is lost. Never from a standby, which may not know yet
-- what has become of the lease.
CREATE FUNCTION check_leases(p_names text[], p_tokens bigint[], p_grant_ids uuid[], p_slots int[])
RETURNS TABLE (n bigint, reason text, expires_at timestamptz, remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := is_batch(cardinality(p_names), cardinality(p_tokens), cardinality(p_grant_ids), cardinality(p_slots));
  a  record;
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION 'a standby cannot tell whether locks are held' USING ERRCODE = 'read_only_sql_transaction';
  END IF;
  FOR a IN
    SELECT * FROM unnest(p_names, p_tokens, p_grant_ids, p_slots) WITH ORDINALITY AS g (name, token, grant_id, slot, n)
  LOOP
    SELECT a.n, NULL, l.expires_at, microseconds_until(l.expires_at)
      INTO check_leases.n, check_leases.reason, check_leases.expires_at, check_leases.remaining_us
      FROM locks l WHERE l.name = a.name AND l.slot = coalesce(a.slot, l.slot) AND l.grant_id = a.grant_id
        AND a.token BETWEEN l.first_token AND l.token AND l.expires_at > clock_timestamp();
    IF NOT FOUND THEN
      check_leases.n := a.n;
      check_leases.reason := coalesce(lost_reason(a.name, a.token, a.grant_id), 'expired');
    END IF;
    RETURN NEXT;
  END LOOP;
END $$;

-- check_lease answers how long one lease still runs; LK001 or LK003 when it is lost.
CREATE FUNCTION check_lease(
  p_name text, p_token bigint, p_grant_id uuid, p_slot int DEFAULT NULL, OUT expires_at timestamptz, OUT remaining_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  why text;
BEGIN
  SELECT c.reason, c.expires_at, c.remaining_us INTO why, check_lease.expires_at, check_lease.remaining_us
    FROM check_leases(ARRAY[p_name], ARRAY[p_token], ARRAY[p_grant_id], ARRAY[p_slot]) c;
  IF why IS NOT NULL THEN
    PERFORM raise_lost(p_name, p_token, why);
  END IF;
END $$;

-- own_lease says whose an exclusive lease is, of which the server knew the session alone: for circles of waiters.
CREATE FUNCTION own_lease(p_name text, p_token bigint, p_grant_id uuid, p_owner_id uuid) RETURNS boolean
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
BEGIN
  UPDATE locks l SET owner_id = p_owner_id
    WHERE l.name = p_name AND l.slot = 0 AND l.grant_id = p_grant_id AND p_token BETWEEN l.first_token AND l.token;
  RETURN FOUND;
END $$;
