-- Tokens. A token is the epoch, times 2^36, plus a number of one sequence. The epoch has two parts:
--   the line, the bits of a token from 2^44 up, grows with each change of the server's timeline, because a promoted
--   standby may have lost the sequence's last values along with grants;
--   the step, the bits from 2^36 to 2^42, grows when the sequence is found behind a granted token, as after a restore,
--   and by hand. It begins with 0 on each line.
-- A failover may lose steps. It cannot lose its own promotion, which outweighs all steps before it. That needs steps to
-- stay below the line: there are 127, the sequence ends below 2^43, and both raise an error when they are used up.

-- current_timeline is the timeline that the server writes; every promotion of a standby changes it at once. NULL if
-- the schema's owner may not see it.
CREATE FUNCTION current_timeline() RETURNS int
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::int;
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function
  OR object_not_in_prerequisite_state THEN
  RETURN NULL;
END $$;

-- current_system tells this cluster from others, of which each has timelines of its own: a restored dump and an upgrade
-- make another. A standby's is its primary's. NULL if the schema's owner may not see it.
CREATE FUNCTION current_system() RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  RETURN (SELECT c.system_identifier FROM pg_control_system() c);
EXCEPTION WHEN insufficient_privilege OR feature_not_supported OR undefined_function THEN
  RETURN NULL;
END $$;

UPDATE installation SET timeline = current_timeline(), system = current_system(), started = pg_postmaster_start_time();

-- refuse_empty raises that the row of the installation is missing. Without it no token and no database is known.
CREATE FUNCTION refuse_empty() RETURNS void
LANGUAGE plpgsql STABLE
AS $$
BEGIN
  RAISE EXCEPTION 'table installation of schema % is empty, as after a restore without data', current_schema()
    USING ERRCODE = 'object_not_in_prerequisite_state',
          HINT = format('As the owner of the schema: INSERT INTO %I.installation DEFAULT VALUES.', current_schema());
END $$;

-- epoch_of puts an epoch together.
CREATE FUNCTION epoch_of(p_line bigint, p_step bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
AS $$
BEGIN
  IF p_line > 524287 THEN
    RAISE EXCEPTION 'no greater token is left: tokens have room for 524287 changes of the timeline'
      USING ERRCODE = 'program_limit_exceeded';
  END IF;
  RETURN (p_line << 8) + p_step;
END $$;

-- epoch_now compares the timeline with the recorded one, records a change, and returns the epoch. Until the record is
-- committed all others compute the same from the old record, and wait for nobody. The line grows by as much as the
-- timeline does; if the record is of another cluster, as after a restore or an upgrade, or the timeline was set back,
-- by the whole timeline. So it is greater on a later timeline, even if the record of one in between was lost.
CREATE FUNCTION epoch_now() RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  line int    := current_timeline();
  host bigint := current_system();
  was  record;
BEGIN
  SELECT i.timeline, i.epoch, (i.system <> host) IS TRUE AS elsewhere INTO was FROM installation i;
  IF NOT FOUND THEN
    PERFORM refuse_empty();
  END IF;
  IF line <> coalesce(was.timeline, 0) OR was.elsewhere AND line IS NOT NULL THEN
    was.epoch := epoch_of((was.epoch >> 8) + line
      - CASE WHEN line > was.timeline AND NOT was.elsewhere THEN was.timeline ELSE 0 END, 0);
  END IF;
  UPDATE installation i SET timeline = line, epoch = GREATEST(i.epoch, was.epoch), started = pg_postmaster_start_time(),
      system = host, timeline_since = CASE WHEN line = i.timeline AND (i.system <> host) IS NOT TRUE OR line IS NULL
                                      THEN i.timeline_since ELSE clock_timestamp() END
    FROM (SELECT o.one FROM installation o FOR UPDATE SKIP LOCKED) mine
    WHERE i.one = mine.one AND i.started IS DISTINCT FROM pg_postmaster_start_time();
  RETURN was.epoch;
END $$;

-- next_epoch returns an epoch after p_epoch in which tokens are greater than p_above, where p_drawn is a number that
-- the sequence has reached. That is one step on, or if p_above is of a greater line, one step after it. It never begins
-- a greater line by itself: a failover that loses that would begin the same line, with a lower number.
CREATE FUNCTION next_epoch(p_epoch bigint, p_above bigint, p_drawn bigint) RETURNS bigint
LANGUAGE plpgsql IMMUTABLE
AS $$
DECLARE
  last bigint := GREATEST(p_epoch, (p_above - p_drawn) >> 36);
BEGIN
  IF (last & 255) < 127 THEN
    RETURN last + 1;
  ELSIF last >> 8 = p_epoch >> 8 AND p_above >> 44 <= p_epoch >> 8 THEN
    RAISE EXCEPTION 'no greater token is left on this timeline: its 127 steps are used up'
      USING ERRCODE = 'program_limit_exceeded',
            HINT = 'A promotion begins with new steps. Or begin a line by hand, which a later failover may lose: '
                   || format('advance_epoch(reason, actor, %s).', ((p_epoch >> 8) + 1) << 44);
  END IF;
  RETURN epoch_of((last >> 8) + 1, 0);
END $$;

-- await_record waits until nobody keeps the record of the installation. It locks nothing.
CREATE FUNCTION await_record() RETURNS boolean
LANGUAGE plpgsql VOLATILE
AS $$
BEGIN
  PERFORM FROM installation FOR SHARE;
  RAISE SQLSTATE 'LK000';
EXCEPTION
  WHEN SQLSTATE 'LK000' THEN RETURN true;
END $$;

-- draw_token draws the token of a grant. It is greater than p_above and than every token of this epoch. The caller has
-- locked the lock's head, and p_above is the greatest token in the lock's rows.
-- A server process keeps its timeline while it takes writes, so each process compares it once. If the sequence is
-- behind the rows, the epoch grows, and the grant records that, or what is below a subtree could get a lower token than
-- the subtree. For that it waits for whoever has locked the record, as long as its caller does for rows: 55P03. Those
-- that waited for the step of another keep no record: they do not commit one after the other.
CREATE FUNCTION draw_token(p_above bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE
AS $$
DECLARE
  base  bigint;
  token bigint;
BEGIN
  SELECT i.epoch INTO base FROM installation i WHERE i.started = pg_postmaster_start_time();
  IF NOT FOUND THEN
    base := epoch_now();
  END IF;
  token := (base << 36) + nextval('fencing_token_seq');
  IF token <= p_above THEN
    base := next_epoch(base, p_above, token - (base << 36));
    PERFORM await_record();
    IF (SELECT i.epoch < base FROM installation i) THEN                        -- what a new snapshot shows
      UPDATE installation i SET epoch = GREATEST(i.epoch, base);
    END IF;
    base := (SELECT i.epoch FROM installation i);
    token := (base << 36) + nextval('fencing_token_seq');
  END IF;
  RETURN token;
END $$;

-- timeline returns the server's timeline and the microseconds since it changed, as far as grants have noticed; 0 if
-- none has yet. Both are NULL if it is not visible, and the second if it has never changed. A standby refuses: it
-- writes no timeline.
CREATE FUNCTION timeline(OUT timeline int, OUT since_us bigint)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok  boolean := require_primary();
  was record;
BEGIN
  SELECT i.timeline, i.timeline_since, i.system <> current_system() AS elsewhere INTO was FROM installation i;
  timeline.timeline := current_timeline();
  IF timeline.timeline <> was.timeline OR was.elsewhere AND timeline.timeline IS NOT NULL THEN
    since_us := 0;
  ELSIF timeline.timeline IS NOT NULL AND was.timeline_since IS NOT NULL THEN
    since_us := GREATEST(0, extract(epoch FROM clock_timestamp() - was.timeline_since) * 1000000)::bigint;
  END IF;
END $$;

-- database_id distinguishes this database from every other. From one that was made from it as a template the OID of the
-- database does; from a dump that was restored that of the table, which may have the same ID in a database of the same
-- OID. In PL/pgSQL it keeps its plan, for outcome.
CREATE FUNCTION database_id() RETURNS uuid
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  found_ uuid := (
    SELECT encode(substr(sha256(convert_to(concat_ws('/', i.id, d.oid, i.tableoid), 'UTF8')), 1, 16), 'hex')::uuid
    FROM installation i, pg_database d WHERE d.datname = current_database());
BEGIN
  IF found_ IS NULL THEN
    PERFORM refuse_empty();
  END IF;
  RETURN found_;
END $$;

-- start_client is what a client asks once, when it starts.
CREATE FUNCTION start_client(
  OUT schema_version int, OUT database_id uuid, OUT isolation text, OUT read_only boolean, OUT sequence_ok boolean,
  OUT serves_from int)
LANGUAGE sql STABLE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
  SELECT schema_version(), database_id(), current_setting('default_transaction_isolation'),
         pg_is_in_recovery() OR current_setting('transaction_read_only')::boolean,
         (SELECT s.cache_size = 1 AND NOT s.cycle_option AND s.increment = 1 AND s.maximum_value <= 8796093022207
          FROM pg_sequence_parameters('fencing_token_seq'::regclass) s),
         serves_from()
$$;

-- advance_epoch makes every later token greater than any that this database knows of, and than p_above: after a
-- restore, or when a standby was promoted beside another. It returns a token that all later ones exceed.
CREATE FUNCTION advance_epoch(p_reason text, p_actor text, p_above bigint DEFAULT 0) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path FROM CURRENT
AS $$
DECLARE
  ok boolean := is_operator(p_reason, p_actor) AND require_durable_commit()
    AND (p_above >= 0 IS TRUE OR refuse('above', p_above::text, 'be a token, or 0'));
  e  bigint;
BEGIN
  UPDATE installation i SET epoch = next_epoch(i.epoch, p_above, (SELECT s.last_value FROM fencing_token_seq s))
    RETURNING i.epoch << 36 INTO e;
  IF NOT FOUND THEN
    PERFORM refuse_empty();
  END IF;
  INSERT INTO events (kind, lock_name, token, actor, reason) VALUES ('epoch', '', e, p_actor, p_reason);
  ok := bound_rest(false);
  RETURN e;
END $$;
