package engine

// check is a feature that the protocol needs, and the statements that try it.
type check struct {
	item  string
	why   string // what goes wrong without it
	late  bool   // without it locks are safe, but waiters hear of them late
	steps []step
}

// The connections of a check.
const (
	a = iota
	b
	c // which the server ends
)

// step is a statement on a connection, and its only right answer: the first row, else the command tag, else the
// SQLSTATE of its error. "@" stands for the schema of the trial.
type step struct {
	on   int
	sql  string
	want string
}

// The answers that are no text.
const (
	anything = "*"       // but no error
	rising   = "rising"  // a number that is not less than the one before it in this check
	greater  = "greater" // than the one before it in this check
	waits    = "waits"   // none until another step has its answer; the next step with sql answer has this one
	answer   = "answer of the statement that waited"
	gone     = "gone"  // the server has ended the connection
	hears    = "hears" // sql is what the connection hears next; empty: nothing
)

const begin = "BEGIN ISOLATION LEVEL READ COMMITTED"

// checks are all that the protocol needs; docs/scaling.md has them, too.
var checks = []check{
	{item: "time limits",
		why: "A statement waits no longer than its transaction says, and a transaction that hangs ends. " +
			"Without them a holder that hangs keeps the next one out for ever.",
		steps: []step{
			{a, "CREATE TABLE @.limits (id int PRIMARY KEY)", anything},
			{a, "INSERT INTO @.limits VALUES (1)", "INSERT 0 1"},
			{a, begin, anything},
			{a, "SELECT id FROM @.limits WHERE id = 1 FOR UPDATE", "1"},
			{b, begin, anything},
			{b, "SELECT set_config('lock_timeout', '51', true)", anything},
			{b, "SELECT id FROM @.limits WHERE id = 1 FOR UPDATE", "55P03"},
			{b, "ROLLBACK", anything},
			{b, begin, anything},
			{b, "SELECT set_config('lock_timeout', '51', true)", anything},
			{b, "COMMIT", anything},
			{b, "SELECT current_setting('lock_timeout') = '51ms'", "f"}, // it was for the transaction alone
			{b, begin, anything},
			{b, "SELECT set_config('statement_timeout', '51', true)", anything},
			{b, "SELECT pg_sleep(1)", "57014"},
			{b, "ROLLBACK", anything},
			{c, begin, anything},
			{c, "SELECT set_config('idle_in_transaction_session_timeout', '51', true)", anything},
			{c, "SELECT id FROM @.limits WHERE id = 2", anything},
			{b, "SELECT pg_sleep(0.15)", anything},
			{c, "SELECT 1", gone},
			{a, "ROLLBACK", anything},
		}},
	{item: "row locks",
		why: "Whoever waits for a row decides on what it finds then, not on what was there before. Without " +
			"that two clients are granted one lock.",
		steps: []step{
			{a, "CREATE TABLE @.rows (id int PRIMARY KEY, token bigint)", anything},
			{a, "INSERT INTO @.rows VALUES (1, 1)", "INSERT 0 1"},
			{a, begin, anything},
			{a, "SHOW transaction_isolation", "read committed"},
			{a, "UPDATE @.rows SET token = 2 WHERE id = 1", "UPDATE 1"},
			{b, begin, anything},
			{b, "UPDATE @.rows SET token = 9 WHERE id = 1 AND token = 1", waits},
			{a, "COMMIT", anything},
			{b, answer, "UPDATE 0"},
			{b, "COMMIT", anything},
			{a, begin, anything},
			{a, "UPDATE @.rows SET token = 3 WHERE id = 1", "UPDATE 1"},
			{b, begin, anything},
			{b, "INSERT INTO @.rows AS r VALUES (1, 9) ON CONFLICT (id) DO UPDATE SET token = 9 WHERE r.token = 2",
				waits},
			{a, "COMMIT", anything},
			{b, answer, "INSERT 0 0"},
			{b, "COMMIT", anything},
			{a, begin, anything},
			{a, "INSERT INTO @.rows VALUES (2, 1)", "INSERT 0 1"},
			{b, begin, anything},
			{b, "INSERT INTO @.rows VALUES (2, 9) ON CONFLICT DO NOTHING", waits},
			{a, "COMMIT", anything},
			{b, answer, "INSERT 0 0"},
			{b, "COMMIT", anything},
			{a, "SELECT string_agg(token::text, ' ' ORDER BY id) FROM @.rows", "3 1"},
		}},
	{item: "FOR KEY SHARE",
		why: "COMMIT of a fenced write keeps a grant out, and lets a renewal pass. Without it the lock may go " +
			"to another client within the COMMIT, or the lease ends because of its own write.",
		steps: []step{
			{a, "CREATE TABLE @.leases (id int PRIMARY KEY, token bigint UNIQUE, expires int)", anything},
			{a, "INSERT INTO @.leases VALUES (1, 1, 1)", "INSERT 0 1"},
			{a, begin, anything},
			{a, "SELECT token FROM @.leases WHERE id = 1 FOR KEY SHARE", "1"},
			{b, "UPDATE @.leases SET expires = 2 WHERE id = 1", "UPDATE 1"},
			{b, "UPDATE @.leases SET token = 2 WHERE id = 1", waits},
			{a, "COMMIT", anything},
			{b, answer, "UPDATE 1"},
		}},
	{item: "SKIP LOCKED",
		why: "Whoever looks for a free row passes those that are locked. Without it a renewal or a release " +
			"waits for the transactions of others.",
		steps: []step{
			{a, "CREATE TABLE @.tickets (id int PRIMARY KEY)", anything},
			{a, "INSERT INTO @.tickets VALUES (1), (2)", "INSERT 0 2"},
			{a, begin, anything},
			{a, "SELECT id FROM @.tickets ORDER BY id LIMIT 1 FOR UPDATE", "1"},
			{b, begin, anything},
			{b, "SELECT id FROM @.tickets ORDER BY id LIMIT 1 FOR NO KEY UPDATE SKIP LOCKED", "2"},
			{b, "ROLLBACK", anything},
			{a, "ROLLBACK", anything},
		}},
	{item: "sequence",
		why: "Each number is greater than all before, whichever connection drew them. Without that a fence " +
			"refuses the holder, or lets its predecessor pass.",
		steps: []step{
			{a, "CREATE SEQUENCE @.tokens CACHE 1", anything},
			{a, "SELECT nextval('@.tokens')", greater},
			{b, "SELECT nextval('@.tokens')", greater},
			{a, "SELECT nextval('@.tokens')", greater},
			{b, begin, anything},
			{b, "SELECT nextval('@.tokens')", greater},
			{b, "ROLLBACK", anything},
			{b, "SELECT nextval('@.tokens')", greater},
			{a, "SELECT nextval('@.tokens')", greater},
		}},
	{item: "clock",
		why: "One clock for all, which goes on within a transaction. Without it a lease seems to be held that " +
			"has run out, or to have run out that is held.",
		steps: []step{
			{a, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", rising},
			{b, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", rising},
			{a, begin, anything},
			{a, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", rising},
			{a, "SELECT pg_sleep(0.02)", anything},
			{a, "SELECT clock_timestamp() >= now() + interval '20 ms'", "t"},
			{a, "ROLLBACK", anything},
			{b, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", rising},
			{a, "SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint", rising},
		}},
	{item: "check in COMMIT",
		why: "A deferred trigger looks at the lease when the transaction commits, knows its own transaction by " +
			"its number, and refuses it. Without it a fenced write may be committed after its lease is lost.",
		steps: []step{
			{a, "CREATE TABLE @.held (id int PRIMARY KEY, token bigint UNIQUE)", anything},
			{a, "INSERT INTO @.held VALUES (1, 1)", "INSERT 0 1"},
			{a, "CREATE TABLE @.fences (id int PRIMARY KEY, token bigint, xact xid8)", anything},
			{a, `CREATE FUNCTION @.at_commit() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER AS $$ DECLARE t bigint;
				BEGIN
					SELECT h.token INTO t FROM @.held h WHERE h.id = 1 FOR KEY SHARE;
					IF NEW.xact = pg_current_xact_id() AND t <> NEW.token THEN RAISE EXCEPTION 'lost'; END IF;
					RETURN NULL;
				END $$`, anything},
			{a, `CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT OR UPDATE ON @.fences
				DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION @.at_commit()`, anything},
			{a, begin, anything},
			{a, "INSERT INTO @.fences VALUES (1, 1, pg_current_xact_id())", "INSERT 0 1"},
			{b, "UPDATE @.held SET token = 2", "UPDATE 1"},
			{a, "COMMIT", "P0001"},
			{a, begin, anything},
			{a, "SAVEPOINT s", anything},
			{a, "INSERT INTO @.fences VALUES (2, 1, pg_current_xact_id())", "INSERT 0 1"},
			{a, "RELEASE SAVEPOINT s", anything},
			{a, "COMMIT", "P0001"},
			{a, begin, anything},
			{a, "INSERT INTO @.fences VALUES (3, 2, pg_current_xact_id())", "INSERT 0 1"},
			{a, "COMMIT", "COMMIT"},
			{a, begin, anything},
			{a, "SELECT count(*) FROM @.fences WHERE xact = pg_current_xact_id()", "0"}, // another one has that number
			{a, "ROLLBACK", anything},
			{a, "SELECT string_agg(id::text, ' ') FROM @.fences", "3"},
		}},
	{item: "LISTEN and NOTIFY", late: true,
		why: "A notification arrives when its transaction has committed, and not otherwise. Without it locks " +
			"are safe, but waiting calls hear of their grants by looks, up to a second late.",
		steps: []step{
			{a, `LISTEN "@"`, anything},
			{b, begin, anything},
			{b, "SELECT pg_notify('@', 'lost')", anything},
			{b, "ROLLBACK", anything},
			{b, begin, anything},
			{b, "SELECT pg_notify('@', 'kept')", anything},
			{a, "", hears},
			{b, "COMMIT", anything},
			{a, "kept", hears},
			{a, `UNLISTEN "@"`, anything},
		}},
}
