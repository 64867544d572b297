package drivers_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/pglock-dev/pglock/examples/drivers"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// copied are the examples that people copy: each deposits 60, and 7 once.
var copied = map[string]func(ctx context.Context, url string) error{
	"lib/pq": drivers.LibPQ, "pgx": drivers.PGX, "GORM": drivers.GORM,
	"ent": drivers.Ent, "sqlc": drivers.SQLC, "bun": drivers.Bun,
}

func forEveryProgram(t *testing.T, test func(t *testing.T, s *scene, run func(ctx context.Context, url string) error)) {
	t.Helper()
	t.Parallel()
	for name, run := range copied {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			test(t, newScene(t), run)
		})
	}
}

func TestProgramWritesEachTimeAndDoesItsKeyOnce(t *testing.T) {
	forEveryProgram(t, func(t *testing.T, s *scene, run func(context.Context, string) error) {
		for n := range int64(3) {
			must.Do(t, run(t.Context(), s.url))
			s.has(t, 67+60*n)
		}
	})
}

func TestProgramsOfAllLibrariesTakeTurnsAndDoTheKeyOnceTogether(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	const rounds = 3
	all := pgtest.Group(t)
	for range rounds {
		for _, name := range slices.Collect(maps.Keys(copied)) {
			all.Go(func() {
				if err := copied[name](t.Context(), s.url); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			})
		}
	}
	all.Wait()
	s.has(t, 7+60*rounds*int64(len(copied)))
}

// The lease is broken while the program's write is open: its COMMIT is refused.
func TestI10_ProgramWhoseLeaseIsBrokenInsideItsWriteWritesNothing(t *testing.T) {
	forEveryProgram(t, func(t *testing.T, s *scene, run func(context.Context, string) error) {
		_, err := s.pool.Exec(t.Context(), `CREATE FUNCTION break_it() RETURNS trigger LANGUAGE plpgsql AS $$
			BEGIN PERFORM pglock.break_lock('accounts/16', 'its host is gone', 'alice'); RETURN NEW; END $$;
			CREATE TRIGGER break_it AFTER UPDATE ON accounts FOR EACH ROW EXECUTE FUNCTION break_it()`)
		if err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), s.url); !errors.Is(err, pglock.ErrLost) {
			t.Errorf("%v, want ErrLost", err)
		}
		s.has(t, 0)
	})
}

// A write that fails in the middle leaves nothing, whatever the library makes of it.
func TestProgramWhoseKeyFailsDoesItTheNextTime(t *testing.T) {
	forEveryProgram(t, func(t *testing.T, s *scene, run func(context.Context, string) error) {
		if _, err := s.pool.Exec(t.Context(),
			"ALTER TABLE accounts ADD CONSTRAINT poor CHECK (balance <= 60)"); err != nil {
			t.Fatal(err)
		}
		if err := run(t.Context(), s.url); err == nil || errors.Is(err, pglock.ErrLost) {
			t.Errorf("%v, want the violation of the constraint", err)
		}
		s.has(t, 60)
		must.Get(s.pool.Exec(t.Context(), "ALTER TABLE accounts DROP CONSTRAINT poor"))(t)
		must.Do(t, run(t.Context(), s.url))
		s.has(t, 127)
	})
}

// ent rolls a transaction back when one of its statements fails, and so would a caller.
func TestRollbackOfATransactionThatEntBeginsInsideLeavesNothing(t *testing.T) {
	t.Parallel()
	s := newScene(t)
	db := openSQL(t, "pgx", s.url)
	err := fencedstore.NewSQL(db).Write(t.Context(), s.lease(t), func(ctx context.Context, tx *sql.Tx) error {
		if _, err := tx.ExecContext(ctx, "UPDATE accounts SET balance = 1000 WHERE id = 16"); err != nil {
			return err
		}
		nested, err := drivers.EntIn(tx).Tx(ctx)
		if err != nil {
			return err
		}
		return nested.Rollback()
	})
	if err == nil {
		t.Error("the write answered that it was committed")
	}
	s.has(t, 0)
}

// programs runs a program as the examples do, and tells the balance after it.
func programs(run func(ctx context.Context, url string) error) {
	ctx, url := context.Background(), pgtest.URL()
	db, err := sql.Open("pgx", url)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, accountsSchema+"INSERT INTO accounts VALUES (16)"); err != nil {
		fmt.Println(err)
		return
	}
	if err := run(ctx, url); err != nil {
		fmt.Println(err)
		return
	}
	var balance int64
	if err := db.QueryRowContext(ctx, "SELECT balance FROM accounts WHERE id = 16").Scan(&balance); err != nil {
		fmt.Println(err)
	}
	fmt.Println("balance:", balance)
}
