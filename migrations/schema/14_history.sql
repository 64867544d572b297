-- The history: who held what, and how it ended.

-- list_history shows operators the history, newest first: p_limit entries before the one with the id p_before; ''
-- means every lock's. p_kinds chooses kinds; p_since and p_until limit the time at which the entry was written.
CREATE FUNCTION list_history(
  p_lock_name text DEFAULT '', p_limit int DEFAULT 100, p_before bigint DEFAULT NULL, p_kinds text[] DEFAULT NULL,
  p_since timestamptz DEFAULT NULL, p_until timestamptz DEFAULT NULL)
RETURNS TABLE (id bigint, at timestamptz, kind text, lock_name text, token bigint, first_token bigint,
               new_token bigint, holder text, actor text, db_user text, reason text, resource text, session_id uuid,
               slot int, mode text, capacity int, granted_at timestamptz, ended_at timestamptz, number bigint)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
  SELECT e.id, e.at, e.kind, e.lock_name, e.token, e.first_token, e.new_token, e.holder, e.actor, e.db_user, e.reason,
    e.resource, e.session_id, e.slot, e.mode, e.capacity, e.granted_at, e.ended_at, e.number
  FROM events e
  WHERE (p_lock_name = '' OR e.lock_name = p_lock_name) AND e.id < coalesce(p_before, 9223372036854775807)
    AND (p_kinds IS NULL OR e.kind = ANY (p_kinds)) AND (p_since IS NULL OR e.at >= p_since)
    AND (p_until IS NULL OR e.at < p_until)
  ORDER BY e.id DESC LIMIT p_limit
$$;

-- prune_history removes older entries, and returns how many. It locks only them.
CREATE FUNCTION prune_history(p_older interval DEFAULT '90 days') RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
  WITH gone AS (DELETE FROM events e WHERE e.at < (SELECT clock_timestamp() - p_older) RETURNING e.id)
  SELECT CASE WHEN p_older >= interval '0' THEN (SELECT count(*) FROM gone)
              ELSE refuse('older', p_older::text, 'not be negative')::int END
$$;
