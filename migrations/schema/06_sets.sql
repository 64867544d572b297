-- What is granted or ended together. Each function here does all that it was asked to do, in one statement that locks
-- rows in the byte order of their names and skips those that somebody else has locked. Or it undoes everything, also
-- the locks, and says which it could have locked. They wait for nobody, so they may lock names before those that the
-- caller has locked. Their plans find each row by its key, whatever the session forbids to the planner.

-- grant_set grants free locks to plain requests of a session, as acquire_lease does: to all that are chosen, or ns is
-- NULL, and free says which could be granted. Several requests for one lock never can: they have an order.
CREATE FUNCTION grant_set(
  p_names text[], p_grant_ids uuid[], p_session_key uuid, p_holders text[], p_ttls interval[], p_metadata jsonb[],
  p_modes text[], p_capacities int[], p_session_ttl interval, p_owner_ids uuid[], p_nested boolean[],
  p_chosen boolean[], OUT ns bigint[], OUT tokens bigint[], OUT watched boolean[], OUT free boolean[])
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_nestloop = on SET enable_indexscan = on
SET enable_tidscan = on SET jit = off
AS $$
DECLARE
  me     uuid := session_of(p_session_key);
  plain  boolean := is_plain_session(p_session_key, p_session_ttl);
  locked bigint[];
  wanted bigint;
BEGIN
  WITH asked AS MATERIALIZED (
      SELECT g.*, count(*) OVER (PARTITION BY g.name) AS together
      FROM unnest(p_names, p_grant_ids, p_holders, p_ttls, p_metadata, p_modes, p_capacities, p_owner_ids, p_nested,
          p_chosen)
        WITH ORDINALITY AS g (name, grant_id, holder, ttl, metadata, mode, capacity, owner_id, nested, chosen, n)
      WHERE g.chosen ORDER BY g.name COLLATE "C"),
    found AS MATERIALIZED (                              -- in that order
      SELECT a.*, h.at FROM asked a CROSS JOIN LATERAL (
        SELECT l.ctid AS at FROM locks l
        WHERE plain AND a.together = 1 AND l.name = a.name AND l.slot <= 0
          AND is_plain(a.name, a.grant_id, a.holder, a.ttl, a.metadata, a.mode, a.capacity, a.nested)
          AND is_free(l.expires_at, l.top_slot, l.queued, l.grant_id, l.spent_until, l.token, a.grant_id, (
            SELECT (i.epoch << 36) + pg_sequence_last_value('fencing_token_seq') FROM installation i
            WHERE i.started = pg_postmaster_start_time()))
          AND (NOT (SELECT i.subtrees FROM installation i) OR NOT is_below(a.name))
        ORDER BY l.slot DESC LIMIT 1 FOR UPDATE SKIP LOCKED) h),
    given AS (
      UPDATE locks l SET
        token = (SELECT i.epoch << 36 FROM installation i WHERE i.started = pg_postmaster_start_time())
                + nextval('fencing_token_seq'),
        grant_id = f.grant_id, owner_id = f.owner_id, holder = f.holder, ttl = f.ttl, metadata = f.metadata,
        grants = l.grants + 1, slowest = NULL, subtree = false, extended = false, session_id = me,
        acquired_at = clock_timestamp(), renewed_at = clock_timestamp(), expires_at = clock_timestamp() + f.ttl
      FROM found f WHERE l.ctid = f.at AND (SELECT count(*) FROM found) = (SELECT count(*) FROM asked)
      RETURNING f.n, l.token, l.watched_until > clock_timestamp() AS watched)
  SELECT coalesce(array_agg(v.n), '{}'), array_agg(v.token), array_agg(v.watched), (SELECT array_agg(f.n) FROM found f),
      (SELECT count(*) FROM asked)
    INTO ns, tokens, watched, locked, wanted FROM given v;
  IF cardinality(ns) < wanted THEN                       -- also if a row has changed since the statement began
    RAISE SQLSTATE 'LK000';
  END IF;
EXCEPTION WHEN SQLSTATE 'LK000' THEN
  ns := NULL;  tokens := NULL;  watched := NULL;
  free := chosen_of(locked, cardinality(p_names));
END $$;

-- end_set ends exclusive leases, as release_lease does: all that are chosen, or ns is NULL, and held says which could
-- be ended. queued: somebody queues for the lock, whom the caller serves. Several leases of one lock never can: those
-- of slots lock its head, and a lock of the caller's and the change here, in a subtransaction, are no change of the key
-- for a COMMIT that follows the row's versions (I4). So nor can they in a transaction that may have locked a
-- row before this call (p_first false).
CREATE FUNCTION end_set(
  p_names text[], p_tokens bigint[], p_grant_ids uuid[], p_slots int[], p_chosen boolean[],
  p_first boolean, OUT ns bigint[], OUT places tid[], OUT watched boolean[], OUT queued boolean[], OUT held boolean[])
LANGUAGE plpgsql VOLATILE SET enable_seqscan = off SET enable_nestloop = on SET enable_indexscan = on
SET enable_tidscan = on SET jit = off
AS $$
DECLARE
  plain  boolean := p_first AND current_setting('transaction_isolation') = 'read committed';
  names  text[];
  served bigint[];
  locked bigint[];
  wanted bigint;
BEGIN
  WITH asked AS MATERIALIZED (
      SELECT g.*, count(*) OVER (PARTITION BY g.name) AS together
      FROM unnest(p_names, p_tokens, p_grant_ids, p_slots, p_chosen)
        WITH ORDINALITY AS g (name, token, grant_id, slot, chosen, n)
      WHERE g.chosen ORDER BY g.name COLLATE "C"),
    found AS MATERIALIZED (                              -- in that order
      SELECT a.n, h.at FROM asked a CROSS JOIN LATERAL (
        SELECT l.ctid AS at FROM locks l
        WHERE plain AND a.together = 1 AND l.name = a.name AND l.slot <= 0 AND l.grant_id = a.grant_id
          AND l.token = a.token
          AND coalesce(a.slot, 0) = 0 AND is_running(l.expires_at, l.ended_at)
        ORDER BY l.slot DESC LIMIT 1 FOR UPDATE SKIP LOCKED) h),
    over AS (
      UPDATE locks l SET expires_at = '-infinity', ended_at = clock_timestamp()
      FROM found f WHERE l.ctid = f.at AND (SELECT count(*) FROM found) = (SELECT count(*) FROM asked)
      RETURNING f.n, l.name, l.ctid AS place, l.served, l.watched_until > clock_timestamp() AS watched)
  SELECT coalesce(array_agg(v.n), '{}'), array_agg(v.name), array_agg(v.place), array_agg(v.served),
      array_agg(v.watched), (SELECT array_agg(f.n) FROM found f), (SELECT count(*) FROM asked)
    INTO ns, names, places, served, watched, locked, wanted FROM over v;
  IF cardinality(ns) < wanted THEN                       -- also if a row has changed since the statement began
    RAISE SQLSTATE 'LK000';
  END IF;
  -- Nobody joins any more, and this statement sees whoever has joined before.
  SELECT array_agg((SELECT q.ticket FROM waiters q WHERE q.name = v.name AND q.ticket > v.served
                    ORDER BY q.ticket LIMIT 1) IS NOT NULL ORDER BY v.i)
    INTO queued FROM unnest(names, served) WITH ORDINALITY AS v (name, served, i);
EXCEPTION WHEN SQLSTATE 'LK000' THEN
  ns := NULL;  places := NULL;  watched := NULL;
  held := chosen_of(locked, cardinality(p_names));
END $$;

-- in_order refuses to wait for a lock whose name comes before one that the same statement has locked: two that waited
-- so could wait for each other. That happens if others disturb it twice, and whoever asks again finds them gone.
CREATE FUNCTION in_order(p_name text, p_locked text) RETURNS boolean
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
  IF p_name COLLATE "C" < p_locked THEN
    RAISE EXCEPTION 'others take lock % now, and its turn has passed: nothing was done', quote_literal(p_name)
      USING ERRCODE = '55P03', HINT = 'Try again.';
  END IF;
  RETURN true;
END $$;

-- chosen_of turns numbers from 1 to p_many into what says of each whether it is among them.
CREATE FUNCTION chosen_of(p_ns bigint[], p_many int) RETURNS boolean[]
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
  chosen boolean[] := array_fill(false, ARRAY[p_many]);
  n      bigint;
BEGIN
  FOREACH n IN ARRAY coalesce(p_ns, '{}') LOOP
    chosen[n] := true;
  END LOOP;
  RETURN chosen;
END $$;
