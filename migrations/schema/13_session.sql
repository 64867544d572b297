-- What operators do about a client.

-- break_session ends what a session has in p_limit locks after p_after, in the byte order of their names: its leases,
-- as break_lock does, and its tickets. It answers a row for each, with the ticket, or the token and the new token. The
-- session's row goes first (I25), so that its other tickets do not count any more. A client that is still alive loses
-- its leases, and its waiting calls queue again, at the end. All of it is one transaction.
CREATE FUNCTION break_session(
  p_session_id uuid, p_reason text, p_actor text, p_limit int DEFAULT 1000, p_after text DEFAULT '')
RETURNS TABLE (name text, slot int, ticket bigint, holder text, token bigint, new_token bigint,
               expires_at timestamptz, handed int[], watched boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
#variable_conflict use_column
DECLARE
  ok boolean := require_read_committed() AND require_durable_commit() AND is_operator(p_reason, p_actor)
    AND (p_session_id IS NOT NULL OR refuse('session_id', NULL, 'be a UUID'))
    AND (p_limit BETWEEN 1 AND 10000 IS TRUE OR refuse('limit', p_limit::text, 'be from 1 to 10000'));
  head locks;
  n    text;
  r    record;
  b    record;
  left_queue boolean;
BEGIN
  DELETE FROM sessions s WHERE s.session_id = p_session_id;
  FOR n IN
    SELECT a.name FROM (
      SELECT l.name FROM locks l WHERE l.session_id = p_session_id AND l.expires_at > clock_timestamp()
      UNION SELECT q.name FROM waiters q WHERE q.session_id = p_session_id) a
    WHERE a.name > p_after ORDER BY a.name LIMIT p_limit
  LOOP
    SELECT * INTO head FROM locks l WHERE l.name = n AND l.slot = 0 FOR NO KEY UPDATE;
    left_queue := false;
    name := n;
    FOR r IN DELETE FROM waiters q WHERE q.name = n AND q.session_id = p_session_id RETURNING q.ticket, q.holder LOOP
      left_queue := true;
      slot := NULL; ticket := r.ticket; holder := r.holder;
      token := NULL; new_token := NULL; expires_at := NULL; handed := NULL; watched := NULL;
      RETURN NEXT;
    END LOOP;
    FOR r IN
      SELECT l.slot, l.token FROM locks l
      WHERE l.name = n AND l.session_id = p_session_id AND l.expires_at > clock_timestamp() ORDER BY l.slot
    LOOP
      BEGIN
        b := break_lock(n, p_reason, p_actor, r.token);
      EXCEPTION WHEN SQLSTATE 'LK006' THEN
        CONTINUE;                                               -- it has just ended by itself
      END;
      left_queue := false;
      slot := r.slot; ticket := NULL; holder := b.holder; token := b.token; new_token := b.new_token;
      expires_at := b.expires_at; handed := b.handed; watched := b.watched;
      RETURN NEXT;
    END LOOP;
    IF left_queue THEN                                          -- those behind it may have their turn
      SELECT * INTO head FROM locks l WHERE l.name = n AND l.slot = 0;
      slot := NULL; ticket := NULL; holder := NULL; token := NULL; new_token := NULL; expires_at := NULL;
      handed := (serve(head, NULL, NULL, gen_random_uuid(), NULL)).handed;
      watched := head.watched_until > clock_timestamp();
      RETURN NEXT;                                              -- only what is to be announced
    END IF;
  END LOOP;
END $$;
