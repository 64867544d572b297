package main

import (
	"testing"

	"github.com/pglock-dev/pglock/internal/pgtest"
)

func TestTopShowsLocksAndEndsByQ(t *testing.T) {
	t.Parallel()
	db := pgtest.Database(t)
	hold(t, db, "worker-1", "jobs/a")
	s := onScreen(t, db.URL(), 120, 40, "top")
	t.Log(s.shows("jobs/a", "worker-1"))
	s.types("\r")
	t.Log(s.shows("HISTORY"))
	s.size(40, 20)
	t.Log(s.shows("HISTORY"))
	s.types("\x1b")
	t.Log(s.shows("LOCK"))
	s.types("q")
	s.ends(exitOK)
	t.Logf("%q", s.raw.String())
}
