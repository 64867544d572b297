package migrations

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// needy is a step that fails until somebody makes the table public.needed.
const needy = "INSERT INTO public.needed DEFAULT VALUES;"

func TestAFailedStepLeavesNothingAndTheSameCallWorksOnceTheCauseIsMended(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	for at := 1; at <= 3; at++ {
		files := ladder(t, 3, map[int]string{at: needy})
		before := map[int]string{1: "no table", 2: "1", 3: "2"}[at]
		for range 2 {
			err := Up(t.Context(), db.URL(), files)
			wantStep(t, err, at-1, at, `relation "public.needed" does not exist`)
			if pgErr, is := errors.AsType[*pgconn.PgError](err); !is || pgErr.Code != "42P01" {
				t.Errorf("%v does not lead to what the server said", err)
			}
			wantVersion(t, db.URL(), at-1, false)
			wantNoted(t, conn, before)
			var half, schema bool
			err = conn.QueryRow(t.Context(),
				"SELECT to_regclass($1) IS NOT NULL, to_regnamespace('pglock') IS NOT NULL",
				fmt.Sprint("pglock.rung", at)).Scan(&half, &schema)
			if err != nil || half || schema != (at > 1) {
				t.Errorf("half of the step is left: %v, a schema: %v, %v", half, schema, err)
			}
		}
		mustDo(t, conn, "CREATE TABLE public.needed ()")
		mustUp(t, db.URL(), files)
		wantVersion(t, db.URL(), 3, false)
		wantNoted(t, conn, "3")
		mustDo(t, conn, "DROP TABLE public.needed; DROP SCHEMA pglock CASCADE")
	}
}

func TestAFailedStepDownLeavesTheVersionItStartedFrom(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	files := ladder(t, 3, nil)
	mustUp(t, db.URL(), files)
	mustDo(t, conn, "CREATE VIEW report AS SELECT FROM pglock.rung2")
	for range 2 {
		wantStep(t, Down(t.Context(), db.URL(), files), 2, 1, "view public.report depends on table")
		wantVersion(t, db.URL(), 2, false)
		wantNoted(t, conn, "2")
	}
	mustUp(t, db.URL(), files) // back, or on the way down once the cause is mended
	wantStep(t, Down(t.Context(), db.URL(), files), 2, 1, "view public.report depends on table")
	mustDo(t, conn, "DROP VIEW report")
	mustDown(t, db.URL(), files)
	wantVersion(t, db.URL(), 0, false)
}

// Marks that a failed or killed step leaves under golang-migrate's own driver: on the way up to the version, or down
// to it.
func TestADirtyMarkThatAFailedStepExplainsIsPutRight(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	all := []struct{ has, mark int }{{0, 1}, {1, 2}, {2, 1}, {3, 3}, {0, -1}, {1, 1}, {1, -1}, {2, 2}, {2, 3}, {3, 2},
		{3, 4}}
	for _, tc := range all {
		t.Run(fmt.Sprintf("version %d marked %d", tc.has, tc.mark), func(t *testing.T) {
			mark := func() {
				if tc.has == 0 {
					mustDo(t, conn, "CREATE SCHEMA IF NOT EXISTS pglock")
				} else {
					mustUp(t, db.URL(), ladder(t, tc.has, nil))
				}
				noteByHand(t, conn, tc.mark, true)
				wantVersion(t, db.URL(), tc.has, false)
			}
			files := ladder(t, 3, nil)
			mark()
			mustUp(t, db.URL(), files)
			wantVersion(t, db.URL(), 3, false)
			wantNoted(t, conn, "3")
			mustDown(t, db.URL(), files)
			mark()
			mustDown(t, db.URL(), files)
			wantVersion(t, db.URL(), 0, false)
		})
	}
}

// Somebody has changed the schema, or what is noted of it, by hand.
func TestANoteThatNothingExplainsIsRefusedUntilItIsForced(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	all := []struct {
		has, note int
		dirty     bool
	}{{1, 2, false}, {2, 1, false}, {1, 3, true}, {0, 2, true}, {1, 3, false}, {1, 4, true}, {0, 2, false},
		{0, 1, false}}
	for _, tc := range all {
		t.Run(fmt.Sprintf("version %d noted %d %v", tc.has, tc.note, tc.dirty), func(t *testing.T) {
			mustDo(t, conn, "DROP SCHEMA IF EXISTS pglock CASCADE")
			if tc.has == 0 {
				mustDo(t, conn, "CREATE SCHEMA pglock")
			} else {
				mustUp(t, db.URL(), ladder(t, tc.has, nil))
			}
			noteByHand(t, conn, tc.note, tc.dirty)
			wantVersion(t, db.URL(), tc.has, true)
			files := ladder(t, 3, nil)
			for what, err := range map[string]error{"Up": Up(t.Context(), db.URL(), files),
				"Down": Down(t.Context(), db.URL(), files)} {
				var dirty *DirtyError
				if !errors.As(err, &dirty) || dirty.Version != tc.note || dirty.Before != tc.has ||
					!strings.Contains(err.Error(), fmt.Sprint("force ", tc.has)) {
					t.Errorf("%s: %v, want a DirtyError", what, err)
				}
			}
			wantVersion(t, db.URL(), tc.has, true)
			if err := Force(t.Context(), db.URL(), (tc.has+1)%2, files); !errors.Is(err, ErrInvalid) ||
				!strings.Contains(err.Error(), fmt.Sprint("must be ", tc.has)) {
				t.Errorf("Force of another version: %v, want ErrInvalid that says which", err)
			}
			must.Do(t, Force(t.Context(), db.URL(), tc.has, files))
			wantVersion(t, db.URL(), tc.has, false)
			mustUp(t, db.URL(), files)
			wantVersion(t, db.URL(), 3, false)
		})
	}
}

// Whatever is noted: programs work with a schema that is current.
func TestUpLeavesACurrentSchemaAloneWhateverIsNotedOfIt(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	conn := db.Conn(t)
	files := ladder(t, 3, nil)
	mustUp(t, db.URL(), files)
	noteByHand(t, conn, 1, false)
	mustUp(t, db.URL(), files)
	wantNoted(t, conn, "1")
}

func TestAFileThatDoesNotSayItsVersionIsRefused(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	files := ladder(t, 2, map[int]string{2: "CREATE OR REPLACE FUNCTION schema_version() RETURNS int LANGUAGE sql AS " +
		"'SELECT 1'"})
	wantStep(t, Up(t.Context(), db.URL(), files), 1, 2, "schema_version() returns 1 after the file of version 2")
	wantVersion(t, db.URL(), 1, false)
}

func TestUpWhoseContextHasEndedDoesNothing(t *testing.T) {
	db := pgtest.EmptyParallel(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Up(ctx, db.URL()); !errors.Is(err, context.Canceled) {
		t.Errorf("Up = %v, want context.Canceled", err)
	}
	wantVersion(t, db.URL(), 0, false)
}
