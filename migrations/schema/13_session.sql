-- What operators do about a client.

-- break_session ends what a session has in p_limit locks after p_after, in the byte order of their names: its leases,
-- as break_lock does, and its tickets. It answers a row for each, with the ticket, or the token and the new token; of a
-- lock where nothing was left to end, a row with its name, so that whoever calls can count what was looked at. The
-- session's row goes first (I25), so that its other tickets do not count any more; unless the session itself is writing
-- it. A client that is still alive loses its leases, and its waiting calls queue again, at the end. All of it is one
-- transaction. It waits for each lock as break_lock does, and passes over a lease that ends meanwhile.
CREATE FUNCTION break_session(
  p_session_id uuid, p_reason text, p_actor text, p_limit int DEFAULT 1000, p_after text DEFAULT '')
RETURNS TABLE (name text, slot int, ticket bigint, holder text, token bigint, new_token bigint,
               expires_at timestamptz, handed int[], watched boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT SET lock_timeout = '5s'
SET plan_cache_mode = force_generic_plan
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND require_unrenewed() AND require_durable_commit()
    AND is_operator(p_reason, p_actor)
    AND (p_session_id IS NOT NULL OR refuse('session_id', NULL, 'be a UUID'))
    AND is_count('limit', p_limit, 1, 10000);
  head  locks;
  lease locks;
  n     text;
  r     record;
  left_queue boolean;
  told       boolean;
BEGIN
  ok := set_config('pglock.ends_many', 'true', true) IS NOT NULL;               -- see fits_below
  DELETE FROM sessions s WHERE s.ctid = ANY (ARRAY(
    SELECT o.ctid FROM sessions o WHERE o.session_id = p_session_id FOR UPDATE SKIP LOCKED));
  FOR n IN
    SELECT a.name FROM (
      SELECT l.name FROM locks l WHERE l.session_id = p_session_id AND is_running(l.expires_at, l.ended_at)
      UNION SELECT q.name FROM waiters q WHERE q.session_id = p_session_id) a
    WHERE a.name > coalesce(p_after, '') ORDER BY a.name LIMIT p_limit
  LOOP
    head := take_to_break(n, NULL);
    RETURN QUERY
      DELETE FROM waiters q WHERE q.ctid = ANY (ARRAY(         -- what is locked is being taken back
        SELECT o.ctid FROM waiters o WHERE o.name = n AND o.session_id = p_session_id AND o.ticket > head.served
        FOR UPDATE SKIP LOCKED))
      RETURNING n, NULL::int, q.ticket, q.holder, NULL::bigint, NULL::bigint, NULL::timestamptz, NULL::int[],
        NULL::boolean;
    left_queue := FOUND;
    told := FOUND;
    FOR r IN
      SELECT l.slot, l.token FROM locks l
      WHERE l.name = n AND l.session_id = p_session_id AND is_running(l.expires_at, l.ended_at) ORDER BY l.slot
    LOOP
      lease := take_to_break(n, r.slot);
      CONTINUE WHEN lease.token <> r.token OR NOT is_running(lease.expires_at, lease.ended_at);     -- it has just ended
      RETURN QUERY                                                  -- in no subtransaction: see await_row
        SELECT n, r.slot, NULL::bigint, b.* FROM break_row(lease, p_reason, p_actor) b;
      left_queue := false;
      told := true;
    END LOOP;
    IF left_queue THEN                                          -- those behind it may have their turn
      head := (SELECT l FROM locks l WHERE l.name = n AND l.slot = 0);
      RETURN QUERY SELECT n, NULL::int, NULL::bigint, NULL, NULL::bigint, NULL::bigint, NULL::timestamptz,
        (serve(head, NULL, NULL, gen_random_uuid(), NULL)).handed, head.watched_until > clock_timestamp();
    ELSIF NOT told THEN                                         -- else only what is to be announced
      RETURN QUERY SELECT n, NULL::int, NULL::bigint, NULL, NULL::bigint, NULL::bigint, NULL::timestamptz,
        NULL::int[], NULL::boolean;
    END IF;
  END LOOP;
  ok := bound_rest(false);
END $$;
