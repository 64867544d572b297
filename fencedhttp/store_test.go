package fencedhttp_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedhttp"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// tableStore is one with its table, over a pool with the settings.
func tableStore(t *testing.T, db *pgtest.DB, table pgx.Identifier, settings map[string]string) *fencedhttp.TableStore {
	t.Helper()
	s := must.Get(fencedhttp.NewTableStore(db.Pool(t, func(c *pgxpool.Config) {
		for name, value := range settings {
			c.ConnConfig.RuntimeParams[name] = value
		}
	}), table))(t)
	must.Do(t, s.Create(t.Context()))
	return s
}

func stores(t *testing.T) map[string]fencedhttp.TokenStore {
	t.Helper()
	tokens := pgx.Identifier{"fencing_tokens"}
	return map[string]fencedhttp.TokenStore{
		"memory": &fencedhttp.MemoryStore{},
		"table":  tableStore(t, pgtest.EmptyDatabase(t), tokens, nil),
		"serializable": tableStore(t, pgtest.EmptyDatabase(t), tokens,
			map[string]string{"default_transaction_isolation": "serializable"}),
		"quoted": tableStore(t, pgtest.EmptyDatabase(t), pgx.Identifier{"public", `quo"ted; name`}, nil),
	}
}

func TestI3_StoresNeverGiveALowerTokenThanTheyHaveSeen(t *testing.T) {
	t.Parallel()
	for name, s := range stores(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for _, tc := range []struct {
				resource    string
				token, last pglock.Token
			}{
				{"a", 33, 33}, {"a", 33, 33}, {"a", 32, 33}, {"a", 1, 33}, {"b", 2, 2}, {"a", 34, 34}, {"a", 33, 34},
				{"ä/\x01 '\"", 5, 5}, {strings.Repeat("r", 512), 6, 6}, {"a", math.MaxInt64, math.MaxInt64},
				{"a", 35, math.MaxInt64}, {"b", 3, 3},
			} {
				if last, err := s.Advance(t.Context(), tc.resource, tc.token); err != nil || last != tc.last {
					t.Errorf("%.20q to %d: %d, %v; want %d", tc.resource, tc.token, last, err, tc.last)
				}
			}
			for _, bad := range []struct {
				resource string
				token    pglock.Token
			}{{"a", 0}, {"a", -1}, {"", 1}, {strings.Repeat("r", 513), 1}, {"a\x00", 1}, {"\xff", 1}} {
				if _, err := s.Advance(t.Context(), bad.resource, bad.token); !errors.Is(err, pglock.ErrInvalid) {
					t.Errorf("%.20q to %d: %v, want ErrInvalid", bad.resource, bad.token, err)
				}
			}
		})
	}
}

func TestI3_ConcurrentAdvancesAreOrdered(t *testing.T) {
	t.Parallel()
	for name, s := range stores(t) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const clients, each, rounds = 6, 10, 3
			for round := range rounds {
				resource := fmt.Sprint("round ", round)
				var mu sync.Mutex
				var answered pglock.Token // the greatest that any answer has had so far
				var all sync.WaitGroup
				for c := range clients {
					all.Go(func() {
						r := rand.New(rand.NewPCG(uint64(round), uint64(c)))
						for i := range each {
							token := pglock.Token(1 + i + r.IntN(5))
							mu.Lock()
							least := max(answered, token)
							mu.Unlock()
							last, err := s.Advance(t.Context(), resource, token)
							if err != nil || last < least || last > each+4 {
								t.Errorf("to %d: %d, %v; %d was answered before", token, last, err, least)
								return
							}
							mu.Lock()
							answered = max(answered, last)
							mu.Unlock()
						}
					})
				}
				all.Wait()
				if last, err := s.Advance(t.Context(), resource, 1); err != nil || last != answered {
					t.Errorf("in the end %d, %v; %d was answered", last, err, answered)
				}
			}
		})
	}
}

func TestAdvanceWaitsForAnOpenTransactionAndSeesWhatItWrote(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	s := tableStore(t, db, pgx.Identifier{"tokens"}, map[string]string{"application_name": "waiter"})
	must.Get(s.Advance(t.Context(), "r", 5))(t)
	conn, watch := db.Conn(t), db.Conn(t)
	tx := must.Get(conn.Begin(t.Context()))(t)
	must.Get(tx.Exec(t.Context(), "UPDATE tokens SET token = 9"))(t)
	type answer struct {
		last pglock.Token
		err  error
	}
	answers := must.Go(func() answer { last, err := s.Advance(t.Context(), "r", 7); return answer{last, err} })
	pgtest.Eventually(t, "the waiter is blocked", func() (blocked bool) {
		must.Do(t, watch.QueryRow(t.Context(),
			`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
			AND application_name = 'waiter' AND wait_event_type = 'Lock')`).Scan(&blocked))
		return blocked
	})
	must.Do(t, tx.Commit(t.Context()))
	if a := <-answers; a.err != nil || a.last != 9 {
		t.Errorf("to 7 after 9: %d, %v", a.last, a.err)
	}
}

func TestI12_AdvanceIsDurableWhateverTheSessionSays(t *testing.T) {
	t.Parallel()
	for setting, want := range map[string]string{"off": "on", "local": "on", "on": "on",
		"remote_apply": "remote_apply"} {
		db := pgtest.EmptyDatabase(t)
		s := tableStore(t, db, pgx.Identifier{"tokens"}, map[string]string{"synchronous_commit": setting})
		must.Get(db.Conn(t).Exec(t.Context(), `CREATE TABLE seen (mode text, token bigint);
			CREATE FUNCTION look() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
				INSERT INTO seen VALUES (current_setting('synchronous_commit'), NEW.token); RETURN NULL; END $$;
			CREATE TRIGGER look AFTER INSERT OR UPDATE ON tokens FOR EACH ROW EXECUTE FUNCTION look()`))(t)
		for _, token := range []pglock.Token{5, 5, 4, 6, 6} {
			must.Get(s.Advance(t.Context(), "r", token))(t)
		}
		var wrote []string
		rows, err := db.Conn(t).Query(t.Context(), "SELECT mode || ' ' || token FROM seen ORDER BY token")
		if err == nil {
			wrote, err = pgx.CollectRows(rows, pgx.RowTo[string])
		}
		// Two advances write; what was seen before, and what is refused, writes nothing.
		if err != nil || fmt.Sprint(wrote) != fmt.Sprintf("[%s 5 %s 6]", want, want) {
			t.Errorf("%s: wrote %v, %v", setting, wrote, err)
		}
	}
}

func TestTableStoreRemembersAcrossItsOwnEnd(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	must.Get(tableStore(t, db, pgx.Identifier{"tokens"}, nil).Advance(t.Context(), "r", 9))(t)
	if last, err := tableStore(t, db, pgx.Identifier{"tokens"}, nil).Advance(t.Context(), "r", 8); err != nil ||
		last != 9 {
		t.Errorf("%d, %v", last, err)
	}
}

func TestTableIsCreatedByManyAtOnce(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	pool := db.Pool(t)
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			s, err := fencedhttp.NewTableStore(pool, pgx.Identifier{"public", "tokens"})
			if err == nil {
				err = s.Create(t.Context())
			}
			if err == nil {
				_, err = s.Advance(t.Context(), "r", 1)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// The table may be made by somebody else, with the rights that the comment of TableStore names.
func TestATableThatIsThereNeedsNoRightToMakeOne(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	must.Get(conn.Exec(t.Context(), "CREATE SCHEMA theirs"))(t)
	old := tableStore(t, db, pgx.Identifier{"theirs", "tokens"}, nil)
	must.Get(old.Advance(t.Context(), "r", 34))(t)
	name := db.Name() + "_service"
	if _, err := conn.Exec(t.Context(), fmt.Sprintf(`CREATE ROLE %[1]s; GRANT USAGE ON SCHEMA theirs TO %[1]s;
		GRANT SELECT, INSERT, UPDATE ON theirs.tokens TO %[1]s; CREATE SCHEMA %[1]s AUTHORIZATION %[1]s;
		ALTER ROLE %[1]s IN DATABASE %[2]s SET search_path = '$user', theirs`, name, db.Name())); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_, _ = conn.Exec(context.WithoutCancel(t.Context()), "DROP OWNED BY "+name+" CASCADE; DROP ROLE "+name)
	})
	for _, table := range []pgx.Identifier{{"theirs", "tokens"}, {"tokens"}} {
		pool := db.Pool(t, func(c *pgxpool.Config) {
			c.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
				_, err := conn.Exec(ctx, fmt.Sprintf("SET ROLE %s; SET search_path = %[1]s, theirs", name))
				return err
			}
		})
		s, err := fencedhttp.NewTableStore(pool, table)
		if err == nil {
			err = s.Create(t.Context())
		}
		if err != nil {
			t.Fatal(err)
		}
		if last, err := s.Advance(t.Context(), "r", 33); err != nil || last != 34 {
			t.Errorf("%v: %d, %v; want the token 34 that was seen", table, last, err)
		}
	}
}

// I17: the row of a token may be there though the wait for the standby was cut off: the same token waits again.
func TestI17_ATokenThatTheStandbyMayLackIsWrittenAgain(t *testing.T) {
	t.Parallel()
	server := pgtest.Dedicated(t, map[string]string{"synchronous_standby_names": "nobody"})
	config := must.Get(pgxpool.ParseConfig(server.URL()))(t)
	config.ConnConfig.RuntimeParams["client_min_messages"] = "error"
	pglock.ObserveCommits(config.ConnConfig)
	pool := must.Get(pgxpool.NewWithConfig(t.Context(), config))(t)
	t.Cleanup(pool.Close)
	s := must.Get(fencedhttp.NewTableStore(pool, pgx.Identifier{"tokens"}))(t)
	if _, err := pool.Exec(t.Context(), `SET synchronous_commit = local; CREATE TABLE tokens (resource text PRIMARY KEY,
		token bigint, advanced_at timestamptz); INSERT INTO tokens VALUES ('r', 34)`); err != nil {
		t.Fatal(err)
	}
	if last, err := s.Advance(t.Context(), "r", 33); err != nil || last != 34 {
		t.Errorf("%d, %v; want the token 34 that was seen", last, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	if last, err := s.Advance(ctx, "r", 34); err == nil {
		t.Errorf("token %d was admitted without the standby", last)
	}
	for _, token := range []pglock.Token{34, 35} { // somebody cancels the wait, which the server takes for a success
		done := must.Go(func() error { _, err := s.Advance(t.Context(), "r", token); return err })
		pgtest.Eventually(t, "the wait for the standby to be cancelled", func() bool { // not only that of a call before
			must.Get(pool.Exec(t.Context(), `SELECT pg_cancel_backend(pid) FROM pg_stat_activity
				WHERE wait_event = 'SyncRep'`))(t)
			return len(done) > 0
		})
		if err := <-done; err == nil {
			t.Errorf("token %d was admitted though the wait for the standby was cancelled", token)
		}
	}
}

func TestTableStoreUnderAHostileSearchPath(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	must.Get(db.Conn(t).Exec(t.Context(), `CREATE SCHEMA hostile; CREATE SCHEMA mine;
		CREATE FUNCTION hostile.op(text, text) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE FUNCTION hostile.op(bigint, bigint) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE FUNCTION hostile.op(int, int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE FUNCTION hostile.op(bigint, int) RETURNS bool LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$;
		CREATE OPERATOR hostile.= (LEFTARG = text, RIGHTARG = text, FUNCTION = hostile.op);
		CREATE OPERATOR hostile.>= (LEFTARG = bigint, RIGHTARG = bigint, FUNCTION = hostile.op);
		CREATE OPERATOR hostile.>= (LEFTARG = int, RIGHTARG = int, FUNCTION = hostile.op);
		CREATE OPERATOR hostile.<= (LEFTARG = int, RIGHTARG = int, FUNCTION = hostile.op);
		CREATE OPERATOR hostile.> (LEFTARG = bigint, RIGHTARG = int, FUNCTION = hostile.op);
		CREATE FUNCTION hostile.octet_length(text) RETURNS int LANGUAGE plpgsql AS $$ BEGIN RAISE 'trapped'; END $$`))(t)
	s := tableStore(t, db, pgx.Identifier{"mine", "tokens"}, map[string]string{"search_path": "hostile, pg_catalog"})
	for _, tc := range []struct{ token, last pglock.Token }{{5, 5}, {4, 5}, {6, 6}} {
		if last, err := s.Advance(t.Context(), "r", tc.token); err != nil || last != tc.last {
			t.Errorf("to %d: %d, %v", tc.token, last, err)
		}
	}
}

func TestStoresRefuseWhatTheyCannotUse(t *testing.T) {
	t.Parallel()
	pool := pgtest.EmptyDatabase(t).Pool(t)
	for name, tc := range map[string]struct {
		pool  *pgxpool.Pool
		table pgx.Identifier
	}{
		"no pool": {nil, pgx.Identifier{"t"}}, "no table": {pool, nil}, "empty": {pool, pgx.Identifier{""}},
		"three parts": {pool, pgx.Identifier{"a", "b", "c"}}, "long": {pool, pgx.Identifier{strings.Repeat("t", 64)}},
		"NUL": {pool, pgx.Identifier{"a\x00"}},
	} {
		if _, err := fencedhttp.NewTableStore(tc.pool, tc.table); !errors.Is(err, pglock.ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	s := must.Get(fencedhttp.NewTableStore(pool, pgx.Identifier{"missing"}))(t)
	if last, err := s.Advance(t.Context(), "r", 1); err == nil || !strings.Contains(err.Error(), "missing") {
		t.Errorf("%d, %v", last, err)
	}
	m := &fencedhttp.MemoryStore{MaxResources: 2}
	for _, resource := range []string{"a", "b", "a"} {
		if _, err := m.Advance(t.Context(), resource, 1); err != nil {
			t.Error(err)
		}
	}
	if _, err := m.Advance(t.Context(), "c", 1); !errors.Is(err, fencedhttp.ErrFull) {
		t.Errorf("%v, want ErrFull", err)
	}
	if last, err := m.Advance(t.Context(), "a", 2); err != nil || last != 2 {
		t.Errorf("a full store: %d, %v", last, err)
	}
}
