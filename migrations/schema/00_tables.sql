-- The tables. Names are unqualified. Run each migration in one transaction, with search_path set to exactly
-- "<schema>, pg_temp": the functions keep that path for ever, and pg_temp must come last, or a caller's temporary
-- table would shadow ours.

DO $do$
BEGIN
  IF current_setting('server_version_num')::int < 140000 THEN
    RAISE EXCEPTION 'pglock needs PostgreSQL 14 or newer; this server is %', current_setting('server_version')
      USING ERRCODE = 'feature_not_supported';
  END IF;
  IF current_schema() IS NULL
     OR regexp_replace(current_setting('search_path'), '[" ]', '', 'g')
        <> regexp_replace(current_schema(), '[" ]', '', 'g') || ',pg_temp' THEN
    RAISE EXCEPTION 'search_path is "%": it must be an existing schema followed by pg_temp',
      current_setting('search_path')
      USING ERRCODE = 'invalid_schema_name', HINT = 'CREATE SCHEMA pglock; SET search_path = pglock, pg_temp;';
  END IF;
  -- Existing functions in the schema, such as an application's, keep their rights.
  PERFORM set_config('pglock.before', ARRAY(SELECT p.oid FROM pg_proc p
                                            WHERE p.pronamespace = (SELECT n.oid FROM pg_namespace n
                                              WHERE n.nspname = current_schema()))::text, true);
END $do$;

-- CACHE 1: a greater cache hands out numbers in the wrong order.
CREATE SEQUENCE fencing_token_seq AS bigint MINVALUE 1 NO CYCLE CACHE 1;
CREATE SEQUENCE ticket_seq AS bigint CACHE 1;

-- Distinguishes this installation from every other, and holds what tokens are computed from.
CREATE TABLE installation (
  one            boolean PRIMARY KEY DEFAULT true CONSTRAINT installation_one_row CHECK (one),
  id             uuid   NOT NULL DEFAULT gen_random_uuid(),
  epoch          bigint NOT NULL DEFAULT 0,  -- the bits of tokens from 2^44 up
  started        timestamptz,                -- the server process that last compared the timeline
  timeline       int,                        -- on which the last grant was written; NULL if not visible
  timeline_since timestamptz,                -- when a grant first noticed this timeline; NULL for the first
  history_keep   interval NOT NULL DEFAULT '90 days',  -- for how long the history is kept
  history_since  timestamptz,                -- since when the history has every tenure; NULL: it has not
  history_pruned timestamptz                 -- what ended before may have been removed from the history; NULL: nothing
);
INSERT INTO installation DEFAULT VALUES;

-- A lock is one or more rows. Slot 0, the head, is the exclusive lease, and orders everything about the lock; slots
-- 1, 2, ... are the leases of readers and of a semaphore's holders. Rows stay when leases end, because the next token
-- is drawn under the row's lock. A lease ends
--   by a release or a break: expires_at is -infinity, and ended_at says when;
--   by the clock: expires_at has passed. ended_at is the same once that is settled: the row was locked after its
--   expiry, so no renewal and no COMMIT of a fenced transaction can be under way any more.
-- There are no CHECKs: PostgreSQL parses them anew in every statement that writes. Only the functions can write, and
-- they check. No index covers what a renewal or a grant changes, and at least half of each page stays free, so that
-- both stay HOT.
CREATE TABLE locks (
  name          text COLLATE "C" NOT NULL,
  slot          int         NOT NULL DEFAULT 0,
  token         bigint      NOT NULL,               -- of the grant; of a block of tokens the last
  first_token   bigint,                             -- of a block of tokens; NULL: a single token
  grant_id      uuid        NOT NULL,
  session_id    uuid        NOT NULL,
  owner_id      uuid,                               -- one line of work over several locks: for circles of waiters
  holder        text        NOT NULL,
  mode          text        NOT NULL DEFAULT 'exclusive',  -- or shared, limit
  capacity      int,                                -- the limit of mode limit
  ticket        bigint      NOT NULL DEFAULT 0,     -- the last one that this row was granted to
  ttl           interval    NOT NULL,
  acquired_at   timestamptz NOT NULL,
  renewed_at    timestamptz NOT NULL,
  expires_at    timestamptz NOT NULL,
  ended_at      timestamptz,
  extended      boolean     NOT NULL DEFAULT false, -- expires_at is later than a renewal by ttl makes it
  metadata      jsonb,
  grants        bigint      NOT NULL DEFAULT 0,     -- how often this row was granted
  slowest       interval,                           -- the longest time between two renewals; NULL: none yet
  -- of the head alone
  top_slot      int         NOT NULL DEFAULT 0,     -- the greatest slot that has a row
  queued        boolean     NOT NULL DEFAULT false, -- false: nobody has a ticket for this lock
  served        bigint      NOT NULL DEFAULT 0,     -- the last ticket that was served in its turn
  limit_named   int,                                -- by the latest lease or ticket of mode limit
  spent_until   timestamptz,                        -- until then given-up grant IDs may still arrive
  watched_until timestamptz,                        -- until then somebody wants to hear of changes
  PRIMARY KEY (name, slot)
) WITH (fillfactor = 25, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);

-- A session is one client. Its ID is a digest of a key that only the client knows. Its tickets count only while the
-- session is alive.
CREATE TABLE sessions (
  session_id  uuid        PRIMARY KEY,
  holder      text        NOT NULL,
  alive_until timestamptz NOT NULL,
  seen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),  -- when alive_until was written
  version     text                                  -- of the library; NULL until its heartbeat has told it
) WITH (fillfactor = 50, vacuum_truncate = false);

-- The queue. A ticket is drawn and written under the head's lock, with queued set. So whoever locks the head sees
-- every ticket that is lower than any later one, and a head that is not queued has no tickets.
CREATE TABLE waiters (
  name        text COLLATE "C" NOT NULL,
  ticket      bigint      NOT NULL,
  mode        text        NOT NULL,
  capacity    int,
  grant_id    uuid        NOT NULL CONSTRAINT waiters_grant_id_key UNIQUE,
  session_id  uuid        NOT NULL,
  owner_id    uuid,
  nested      boolean     NOT NULL,                 -- its owner already holds locks
  holder      text        NOT NULL,
  ttl         interval    NOT NULL,
  metadata    jsonb,
  turns       int         NOT NULL,                 -- how many tokens its grant should carry
  enqueued_at timestamptz NOT NULL,
  PRIMARY KEY (name, ticket)
) WITH (autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);
CREATE INDEX waiters_session ON waiters (session_id, ticket);
CREATE INDEX waiters_owner ON waiters (owner_id);

-- Grant IDs that were given up while their request may still be under way. They are kept for an hour, far longer than
-- a request can be late.
CREATE TABLE spent_grants (
  grant_id uuid        PRIMARY KEY,
  at       timestamptz NOT NULL
);
CREATE INDEX spent_grants_at ON spent_grants (at);

-- The highest token that wrote to a resource. Never pruned: a fence that forgets lets stale tokens in.
CREATE TABLE fences (
  resource    text COLLATE "C" PRIMARY KEY,
  last_token  bigint      NOT NULL,
  lock_name   text COLLATE "C" NOT NULL,
  slot        int         NOT NULL,
  grant_id    uuid        NOT NULL,
  fenced_xact xid8        NOT NULL,                 -- the transaction that passed last
  advanced_at timestamptz NOT NULL
) WITH (fillfactor = 50);

-- A receipt is what a fenced write leaves in its own transaction, in case the answer to its COMMIT is lost. A writer
-- uses one row again and again, but only when it knows what became of the previous write.
CREATE TABLE receipts (
  receipt_id uuid        PRIMARY KEY,
  write_id   uuid        NOT NULL,
  at         timestamptz NOT NULL
) WITH (fillfactor = 50);

-- What was done once. A key that belongs to a time, such as a slot of a schedule or a message, need not be kept for
-- ever: a key older than it would be kept is refused, so forgetting it does not let the work be done again.
CREATE TABLE done_keys (
  key        text COLLATE "C" PRIMARY KEY CONSTRAINT done_keys_key_length CHECK (octet_length(key) BETWEEN 1 AND 512),
  lock_name  text COLLATE "C" NOT NULL,
  token      bigint      NOT NULL,
  done_at    timestamptz NOT NULL,
  keep_until timestamptz                            -- NULL: for ever
);
CREATE INDEX done_keys_keep_until ON done_keys (keep_until) WHERE keep_until IS NOT NULL;

-- The history: what the server did, each entry in the transaction that did it. A tenure, the time for which a lease
-- was held, has one entry, written when it ends:
--   takeover   the lease ran out, and the lock was granted again       written always
--   break      an operator ended it                                    written always
--   expired    the lease ran out, and the lock's row was pruned        written always
--   release    its holder ended it                                     written at level all, by a trigger
--   handover   its holder ended it and chose the next                  written at level all, by a trigger
--   overlap    the lock was granted again before it was over           at level all: this must never happen
-- The other entries are acts of operators: bypass, epoch, and level, which changes what is written.
CREATE TABLE events (
  id        bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at        timestamptz NOT NULL DEFAULT clock_timestamp(),
  kind      text        NOT NULL,                   -- of those above: see locks about CHECKs
  lock_name text COLLATE "C" NOT NULL,
  token     bigint      NOT NULL,                   -- of the tenure; of a block of tokens the last
  first_token bigint,                               -- of its block; NULL if it had one token
  new_token bigint,                                 -- the token that ended it
  holder    text,                                   -- of the tenure
  actor     text,                                   -- who did it, in their own words
  db_user   text        NOT NULL DEFAULT session_user,
  reason    text,
  resource  text,                                   -- of a bypass: the tables that it wrote
  xact      xid8,                                   -- of a bypass: the transaction that is allowed to
  -- of a tenure
  session_id uuid,
  slot       int,
  mode       text,
  capacity   int,                                   -- the limit of mode limit
  granted_at timestamptz,
  ended_at   timestamptz,                           -- of a lease that ran out: its expiry
  number     bigint                                 -- the count of grants of the row: one more than its last tenure
);
CREATE INDEX events_lock_token ON events (lock_name, token);
CREATE INDEX events_lock ON events (lock_name, id);
CREATE INDEX events_xact ON events (xact) WHERE xact IS NOT NULL;
