package migrations

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/pgtest"
)

// withFiles puts other files in the place of the embedded ones.
func withFiles(source fs.FS) Option {
	return func(c *config) error {
		c.source = source
		return nil
	}
}

// withOneMoreStep is the embedded files and a step to the version after the latest.
func withOneMoreStep(t *testing.T, up string) Option {
	t.Helper()
	all := fstest.MapFS{
		fmt.Sprintf("%06d_more.up.sql", Latest+1):   {Data: []byte(up)},
		fmt.Sprintf("%06d_more.down.sql", Latest+1): {Data: []byte("DROP TABLE more")},
	}
	names, err := fs.Glob(files, "*.sql")
	if err != nil || len(names) != 2*Latest {
		t.Fatalf("%q, %v", names, err)
	}
	for _, name := range names {
		content, err := files.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		all[name] = &fstest.MapFile{Data: content}
	}
	return withFiles(all)
}

func wantDirty(t *testing.T, err error, version, before int, cause string) {
	t.Helper()
	var dirty *DirtyError
	if !errors.As(err, &dirty) {
		t.Fatalf("%v, want a DirtyError", err)
	}
	if dirty.Schema != "pglock" || dirty.Version != version || dirty.Before != before {
		t.Errorf("%+v, want version %d, before it %d", dirty, version, before)
	}
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) != (cause != "") || !strings.Contains(err.Error(), cause) || !strings.Contains(err.Error(), "force") {
		t.Errorf("%v, want the cause %q and the way back", err, cause)
	}
}

func wantVersion(t *testing.T, url string, version int, dirty bool) {
	t.Helper()
	gotVersion, gotDirty, err := Version(t.Context(), url)
	if err != nil || gotVersion != version || gotDirty != dirty {
		t.Errorf("Version = %d, %v, %v; want %d, %v", gotVersion, gotDirty, err, version, dirty)
	}
}

func TestFailedStepIsRolledBackAndReportedUntilItIsForced(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		broken          func(t *testing.T) Option
		version, before int
	}{
		"the first step": {func(*testing.T) Option {
			return withFiles(fstest.MapFS{"000001_pglock.up.sql": {Data: []byte("CREATE TABLE half (); SELECT 1/0;")}})
		}, 1, 0},
		"the step after the latest": {func(t *testing.T) Option {
			return withOneMoreStep(t, "CREATE TABLE half (); SELECT 1/0;")
		}, Latest + 1, Latest},
		"a step between": {func(t *testing.T) Option {
			first, err := files.ReadFile("000001_pglock.up.sql")
			if err != nil {
				t.Fatal(err)
			}
			return withFiles(fstest.MapFS{"000001_pglock.up.sql": {Data: first}, "000002_queue.up.sql": {Data: []byte("CREATE TABLE half (); SELECT 1/0;")}})
		}, 2, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := pgtest.EmptyDatabase(t)
			wantDirty(t, Up(t.Context(), db.URL(), tc.broken(t)), tc.version, tc.before, "division by zero")
			wantVersion(t, db.URL(), tc.version, true)
			wantDirty(t, Up(t.Context(), db.URL()), tc.version, tc.before, "")
			wantDirty(t, Down(t.Context(), db.URL()), tc.version, tc.before, "")
			var half bool
			if err := db.Conn(t).QueryRow(t.Context(), "SELECT to_regclass('pglock.half') IS NOT NULL").Scan(&half); err != nil || half {
				t.Errorf("half of the step is left: %v, %v", half, err)
			}
			if err := Force(t.Context(), db.URL(), tc.before); err != nil {
				t.Fatalf("Force: %v", err)
			}
			wantVersion(t, db.URL(), tc.before, false)
			if err := Up(t.Context(), db.URL()); err != nil {
				t.Fatalf("Up after Force: %v", err)
			}
			wantVersion(t, db.URL(), Latest, false)
		})
	}
}

func TestFailedDownLeavesTheSchemaAndIsReported(t *testing.T) {
	t.Parallel()
	db := pgtest.EmptyDatabase(t)
	if err := Up(t.Context(), db.URL()); err != nil {
		t.Fatal(err)
	}
	conn := db.Conn(t)
	if _, err := conn.Exec(t.Context(), "CREATE VIEW report AS SELECT name FROM pglock.locks"); err != nil {
		t.Fatal(err)
	}
	wantDirty(t, Down(t.Context(), db.URL()), 0, 1, "report")
	wantVersion(t, db.URL(), 0, true)
	wantDirty(t, Up(t.Context(), db.URL()), 0, 1, "")
	if _, err := conn.Exec(t.Context(), "DROP VIEW report"); err != nil {
		t.Fatal(err)
	}
	if err := Force(t.Context(), db.URL(), 1); err != nil {
		t.Fatal(err)
	}
	wantVersion(t, db.URL(), 1, false)
	if err := Down(t.Context(), db.URL()); err != nil {
		t.Fatalf("Down after Force: %v", err)
	}
	wantVersion(t, db.URL(), 0, false)
}

func TestUpWhoseContextHasEndedDoesNothing(t *testing.T) {
	t.Parallel()
	db := pgtest.EmptyDatabase(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Up(ctx, db.URL()); !errors.Is(err, context.Canceled) {
		t.Errorf("Up = %v, want context.Canceled", err)
	}
	wantVersion(t, db.URL(), 0, false)
}
