-- The tables. Names are unqualified. Run each migration in one transaction, with search_path set to exactly
-- "<schema>, pg_temp": the functions keep that path for ever, and pg_temp must come last, or a caller's temporary
-- table would shadow ours.

-- The functions find the server's functions and operators by their names and the types of their operands, and a better
-- match in this schema would run with the rights of the functions' owner. So whoever can make objects here, or has made
-- a function or an operator, must be able to act as that owner anyway. So must the owner of golang-migrate's table: to
-- write to it runs its triggers. Until that is sure, nothing is looked up here.
DO $do$
DECLARE
  path   text := pg_catalog.current_setting('search_path');
  schema name := pg_catalog.current_schema();
  here   record;
  r      record;
BEGIN
  PERFORM pg_catalog.set_config('search_path', 'pg_catalog, pg_temp', true);
  IF current_setting('server_version_num')::int < 140000 THEN
    RAISE EXCEPTION 'pglock needs PostgreSQL 14 or newer; this server is %', current_setting('server_version')
      USING ERRCODE = 'feature_not_supported';
  END IF;
  IF schema IS NULL
     OR regexp_replace(path, '[" ]', '', 'g') <> regexp_replace(schema, '[" ]', '', 'g') || ',pg_temp' THEN
    RAISE EXCEPTION 'search_path is "%": it must be an existing schema followed by pg_temp', path
      USING ERRCODE = 'invalid_schema_name', HINT = 'CREATE SCHEMA pglock; SET search_path = pglock, pg_temp;';
  END IF;
  SELECT n.oid, n.nspowner, n.nspacl, d.datdba INTO here
    FROM pg_namespace n JOIN pg_database d ON d.datname = current_database() WHERE n.nspname = schema;
  SELECT o.n, o.what, w.who, p.rolname INTO r
    FROM (
        SELECT 1 AS n, here.nspowner AS role, '' AS what
        UNION ALL SELECT 2, a.grantee, '' FROM aclexplode(here.nspacl) a WHERE a.privilege_type = 'CREATE'
        UNION ALL SELECT 3, f.proowner, f.oid::regprocedure::text FROM pg_proc f WHERE f.pronamespace = here.oid
        UNION ALL SELECT 4, f.oprowner, f.oid::regoperator::text FROM pg_operator f WHERE f.oprnamespace = here.oid
        UNION ALL SELECT CASE c.relkind WHEN 'v' THEN 5 ELSE 6 END, c.relowner, c.oid::regclass::text
          FROM pg_class c WHERE c.relnamespace = here.oid AND c.relname = 'pglock_schema_migrations') o
      CROSS JOIN LATERAL (SELECT CASE o.role WHEN 0 THEN 'PUBLIC' ELSE o.role::regrole::text END AS who) w
      LEFT JOIN pg_roles p
        ON p.oid = CASE pg_get_userbyid(o.role) WHEN 'pg_database_owner' THEN here.datdba ELSE o.role END
    WHERE pg_has_role(p.oid, current_user, 'MEMBER') IS NOT TRUE ORDER BY o.n, w.who LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION 'schema % %: that would give % the rights of %, who would own the functions', quote_ident(schema),
        CASE r.n WHEN 1 THEN 'belongs to ' || r.who WHEN 2 THEN 'lets ' || r.who || ' make objects'
                 ELSE 'has ' || r.what || ', which belongs to ' || r.who END, r.who, quote_ident(current_user)
      USING ERRCODE = 'object_not_in_prerequisite_state', HINT = CASE r.n
        WHEN 1 THEN format('SET ROLE %I; or ALTER SCHEMA %I OWNER TO %I;', r.rolname, schema, current_user)
        WHEN 2 THEN format('REVOKE CREATE ON SCHEMA %I FROM %s CASCADE;', schema, r.who)
        ELSE format('DROP %s %s;', (ARRAY['ROUTINE', 'OPERATOR', 'VIEW', 'TABLE'])[r.n - 2], r.what) END;
  END IF;
  IF NOT has_schema_privilege(here.oid, 'USAGE WITH GRANT OPTION') AND EXISTS (
      SELECT FROM unnest('{pglock_user,pglock_admin}'::text[]) u
      WHERE NOT coalesce(has_schema_privilege(to_regrole(u), here.oid, 'USAGE'),
                         has_schema_privilege(to_regrole('pglock_user'), here.oid, 'USAGE'), -- whose member it will be
                         has_schema_privilege('public'::name, here.oid, 'USAGE'))) THEN
    RAISE EXCEPTION 'user % cannot let the roles pglock_user and pglock_admin use schema %', quote_ident(current_user),
        quote_ident(schema)
      USING ERRCODE = 'insufficient_privilege',
            HINT = format('Let an administrator run: ALTER SCHEMA %I OWNER TO %I;', schema, current_user);
  END IF;
  -- What is in the schema already, such as an application's functions, keeps its rights.
  PERFORM set_config('pglock.before', ARRAY(
    SELECT 'f' || p.oid FROM pg_proc p WHERE p.pronamespace = here.oid
    UNION ALL SELECT 'c' || c.oid FROM pg_class c WHERE c.relnamespace = here.oid)::text, true);
  PERFORM set_config('search_path', path, true);
END $do$;

-- CACHE 1: a greater cache hands out numbers in the wrong order. MAXVALUE: the bits of a token below 2^43.
CREATE SEQUENCE fencing_token_seq AS bigint MINVALUE 1 MAXVALUE 8796093022207 NO CYCLE CACHE 1;
CREATE SEQUENCE ticket_seq AS bigint CACHE 1;

-- When a sweep last began, in seconds since 1970. A sequence keeps no old versions for open transactions, nobody waits
-- for it, and a sweep that fails leaves it set.
CREATE SEQUENCE swept_seq AS bigint CACHE 1;

-- Distinguishes this installation from every other, and holds what tokens are computed from.
CREATE TABLE installation (
  one            boolean PRIMARY KEY DEFAULT true CONSTRAINT installation_one_row CHECK (one),
  id             uuid   NOT NULL DEFAULT gen_random_uuid(),
  epoch          bigint NOT NULL DEFAULT 0,  -- what tokens have from 2^36 up, besides the sequence: see 02_token
  started        timestamptz,                -- the server process that last compared the timeline
  timeline       int,                        -- on which the last grant was written; NULL if not visible
  timeline_since timestamptz,                -- when a grant first noticed this timeline; NULL for the first
  system         bigint,                     -- the cluster whose timeline that is; NULL if not visible
  history_keep   interval NOT NULL DEFAULT '90 days',  -- for how long the history is kept
  history_since  timestamptz,                -- since when the history has every tenure; NULL: it has not
  history_pruned timestamptz,                -- what ended before may have been removed from the history; NULL: nothing
  subtrees       boolean NOT NULL DEFAULT false        -- the table of subtrees may have rows
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
  acquired_at   timestamptz NOT NULL,               -- the times are early in the row: whoever reads many reads no
  renewed_at    timestamptz NOT NULL,               -- further, and in this order: a statement asks the clock in the
  expires_at    timestamptz NOT NULL,               -- order of columns, and a lease lasts no less than its TTL
  ended_at      timestamptz,
  token         bigint      NOT NULL,               -- of the grant
  grant_id      uuid        NOT NULL,
  session_id    uuid        NOT NULL,
  owner_id      uuid,                               -- one line of work over several locks: for circles of waiters
  holder        text        NOT NULL,
  mode          text        NOT NULL DEFAULT 'exclusive',  -- or shared, limit
  capacity      int,                                -- the limit of mode limit
  ticket        bigint      NOT NULL DEFAULT 0,     -- the last one that this row was granted to
  ttl           interval    NOT NULL,
  extended      boolean     NOT NULL DEFAULT false, -- expires_at is later than a renewal by ttl makes it
  metadata      jsonb,
  grants        bigint      NOT NULL DEFAULT 0,     -- how often this row was granted
  slowest       interval,                           -- the longest time between two renewals; NULL: none yet
  -- of the head alone
  top_slot      int         NOT NULL DEFAULT 0,     -- the greatest slot that has a row
  served        bigint      NOT NULL DEFAULT 0,     -- tickets up to this one count no more
  limit_named   int,                                -- by the latest lease or ticket of mode limit
  spent_until   timestamptz,                        -- until then given-up grant IDs may still arrive
  watched_until timestamptz,                        -- until then somebody wants to hear of changes
  queued        boolean     NOT NULL DEFAULT false, -- somebody may queue though it is free: a subtree is in the way
  subtree       boolean     NOT NULL DEFAULT false, -- of each row: the lease covers all names below this one
  PRIMARY KEY (name, slot)
) WITH (fillfactor = 25, autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);

-- A session is one client. Its ID is a digest of a key that only the client knows. Its tickets count only while the
-- session is alive. What it holds does not depend on that; life_of tells people whether the client lives.
CREATE TABLE sessions (
  session_id  uuid        PRIMARY KEY,
  holder      text        NOT NULL,
  alive_until timestamptz NOT NULL,
  seen_at     timestamptz NOT NULL DEFAULT clock_timestamp(),  -- its last sign of life
  seen_by     int DEFAULT pg_backend_pid(),         -- the server process over which that came
  holds_until timestamptz,                          -- until then, it said, it holds something
  names       text[],                               -- some of the locks that it holds, as it said: for suspects
  version     text,                                 -- of the library; NULL until its heartbeat has told it
  pid         int,                                  -- of the server process of its heartbeat, as long as that holds the
  mark        bigint                                -- advisory lock with this key
) WITH (fillfactor = 50, vacuum_truncate = false);

-- The queue. A ticket is drawn and written by whoever has joined the head or taken it. So whoever takes the head sees
-- every ticket that is lower than any later one. Whoever ends a lease serves the queue, and nobody queues for a free
-- lock: so a lock whose head was released, and that has no slots, has no tickets that count, unless it says queued.
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
  enqueued_at timestamptz NOT NULL,
  subtree     boolean     NOT NULL DEFAULT false,   -- it wants all names below, too
  PRIMARY KEY (name, ticket)
) WITH (autovacuum_vacuum_cost_delay = 0, vacuum_truncate = false);
CREATE INDEX waiters_session ON waiters (session_id);
CREATE INDEX waiters_owner ON waiters (owner_id);

-- Requests for subtrees: see 06_subtree. A row counts as long as its ticket does, and then the lease that this was
-- granted.
CREATE TABLE subtrees (
  ticket   bigint  PRIMARY KEY,
  name     text COLLATE "C" NOT NULL,
  grant_id uuid    NOT NULL,
  owner_id uuid,
  mode     text    NOT NULL,
  xact     xid8    NOT NULL,                        -- the transaction that wrote the ticket
  waited   boolean NOT NULL DEFAULT false,          -- whoever may not have seen the ticket has ended
  under    text[],                                  -- who of these has not; NULL: not looked for
  below    text[]                                   -- names below that may still be in the way; NULL: not looked for
) WITH (vacuum_truncate = false);
CREATE INDEX subtrees_name ON subtrees (name);

-- Grant IDs that were given up while their request may still be under way. They are kept for an hour, far longer than
-- a request can be late.
CREATE TABLE spent_grants (
  grant_id uuid        PRIMARY KEY,
  at       timestamptz NOT NULL
) WITH (vacuum_truncate = false);
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
) WITH (fillfactor = 50, vacuum_truncate = false);

-- A receipt is what a fenced write leaves in its own transaction, in case the answer to its COMMIT is lost. A writer
-- uses one row again and again, but only when it knows what became of the previous write.
CREATE TABLE receipts (
  receipt_id uuid        PRIMARY KEY,
  write_id   uuid        NOT NULL,
  at         timestamptz NOT NULL
) WITH (fillfactor = 50, vacuum_truncate = false);

-- What was done once. A key that belongs to a time, such as a slot of a schedule or a message, need not be kept for
-- ever: a key older than it would be kept is refused, so forgetting it does not let the work be done again.
CREATE TABLE done_keys (
  key        text COLLATE "C" PRIMARY KEY CONSTRAINT done_keys_key_length CHECK (octet_length(key) BETWEEN 1 AND 512),
  lock_name  text COLLATE "C" NOT NULL,
  token      bigint      NOT NULL,
  done_at    timestamptz NOT NULL,
  keep_until timestamptz,                           -- NULL: for ever
  xact       xid8        NOT NULL DEFAULT pg_current_xact_id()   -- that noted it
) WITH (vacuum_truncate = false);
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
  token     bigint      NOT NULL,                   -- of the tenure
  new_token bigint,                                 -- the token that ended it
  holder    text,                                   -- of the tenure
  actor     text,                                   -- who did it, in their own words
  db_user   text        NOT NULL DEFAULT session_user,
  reason    text,
  resource  text[],                                 -- of a bypass: the tables that it wrote; ...: and more
  xact      xid8,                                   -- of a bypass: the transaction that is allowed to
  -- of a tenure
  session_id uuid,
  slot       int,
  mode       text,
  capacity   int,                                   -- the limit of mode limit
  granted_at timestamptz,
  ended_at   timestamptz,                           -- of a lease that ran out: its expiry
  number     bigint,                                -- the count of grants of the row: one more than its last tenure
  subtree    boolean                                -- it covered all names below, too
);
CREATE INDEX events_lock_token ON events (lock_name, token);
CREATE INDEX events_lock ON events (lock_name, id);
CREATE INDEX events_lost ON events (lock_name, id) WHERE kind IN ('takeover', 'break');  -- few among many releases
CREATE INDEX events_xact ON events (xact) WHERE xact IS NOT NULL;

-- A connection keeps its plans. A plan that it makes while a table has hardly a page reads the whole table, because
-- that is the cheapest way then, and goes on doing so when there are many rows. So each table that is searched by a key
-- begins with empty pages, which no vacuum takes away: sixteen or more, because that is more than the server takes a
-- search by a key to cost (8), and in the queue sixty-four, which is more than ten rows by their addresses (40).
-- The history is only searched where nothing else is allowed.
INSERT INTO locks (name, token, grant_id, session_id, holder, ttl, acquired_at, renewed_at, expires_at)
  SELECT n, 0, u, u, repeat('.', 1500), '0', now(), now(), now() FROM generate_series(1, 20) n, gen_random_uuid() u;
INSERT INTO sessions SELECT gen_random_uuid(), repeat('.', 1500), now() FROM generate_series(1, 40);
INSERT INTO waiters
  SELECT '', n, '', 0, gen_random_uuid(), gen_random_uuid(), NULL, false, repeat('.', 1500), '0', NULL, now(), false
  FROM generate_series(1, 340) n;
INSERT INTO subtrees SELECT n, n, gen_random_uuid(), NULL, repeat('.', 1500), '0' FROM generate_series(1, 90) n;
INSERT INTO spent_grants SELECT gen_random_uuid(), now() FROM generate_series(1, 2600);
INSERT INTO fences SELECT n, 0, repeat('.', 1500), 0, u, '0', now() FROM generate_series(1, 40) n, gen_random_uuid() u;
INSERT INTO receipts SELECT gen_random_uuid(), gen_random_uuid(), now() FROM generate_series(1, 1200);
INSERT INTO done_keys SELECT n, repeat('.', 1500), 0, now() FROM generate_series(1, 90) n;
DELETE FROM locks;
DELETE FROM sessions;
DELETE FROM waiters;
DELETE FROM subtrees;
DELETE FROM spent_grants;
DELETE FROM fences;
DELETE FROM receipts;
DELETE FROM done_keys;
