package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

func tokenOf(t *testing.T, db *pgtest.DB, name string) (token int64) {
	t.Helper()
	return ask[int64](t, db, "SELECT token FROM pglock.get_lock($1) WHERE held", name)
}

func TestBreakAtATerminalShowsTheHolderAndAsks(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "host/worker\x1b[31m", "my \u202elock")
	s := atTerminal(t, db.URL(), `
		for i in 1 2 3 4; do "$RUN" break '"my \u202elock"' --reason r; echo "ends with $?"; done
		"$RUN" break '"my \u202elock"' --reason r --yes --token 999; echo "ends with $?"
		"$RUN" break '"my \u202elock"' --reason r --by me; echo "ends with $?"
		"$RUN" break nothing --reason r; echo "ends with $?"`)
	answers := func(typed, says, code string) {
		t.Helper()
		s.shows("at ")
		s.shows(`lock      '"my \u202elock"'`)
		s.shows(`holder    "host/worker\x1b[31m"`)
		s.shows(fmt.Sprintf("token     %d", lease.Token()))
		s.shows("held for  ")
		s.shows("End this lease? [y/N] ")
		s.types(typed)
		s.shows(says)
		s.shows("ends with " + code)
	}
	answers("\n", "nothing was broken: the answer was not y", "1")
	answers("no\n", "nothing was broken: the answer was not y", "1")
	answers("\x04", "nothing was broken: the answer was not y", "1") // Ctrl-D
	answers("\x03", "interrupted: nothing was broken", "130")        // Ctrl-C
	s.shows("ends with 3")                                           // another token, and no question
	if !lease.Valid() || tokenOf(t, db, "my \u202elock") != int64(lease.Token()) {
		t.Error("the lease was broken without a yes")
	}
	answers("y\n", "broke the lease", "0")
	s.shows("lock nothing does not exist")
	s.shows("ends with 3")
	if strings.Contains(s.seen, "\u202e") {
		t.Errorf("%q", s.seen)
	}
}

func TestBreakRefusesWhenTheLockHasMovedOnSinceTheQuestion(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "first", "a")
	s := atTerminal(t, db.URL(), `
		"$RUN" break a --reason r; echo "ends with $?"
		"$RUN" break a --reason r; echo "ends with $?"`)
	s.shows("holder    first")
	s.shows("[y/N] ")
	must.Do(t, lease.Release(t.Context()))
	next := hold(t, db, "second", "a")
	s.types("y\n")
	s.shows(fmt.Sprintf("the lock has moved on since the question: lock a is held with another token than %d; "+
		"nothing was broken", lease.Token()))
	s.shows("ends with 3")
	if token := tokenOf(t, db, "a"); token != int64(next.Token()) || !next.Valid() {
		t.Errorf("token %d, want that of the next holder, %d", token, next.Token())
	}
	s.shows("holder    second")
	s.shows("[y/N] ")
	must.Do(t, next.Release(t.Context()))
	s.types("y\n")
	s.shows("the lock has moved on since the question: lock a is not held; nothing was broken")
	s.shows("ends with 3")
}

func TestBreakOfASessionShowsTheClientAndAsks(t *testing.T) {
	db := pgtest.Parallel(t)
	one := hold(t, db, "client", "a")
	hold(t, db, "another", "b")
	await(t, db, "waiter", "b", pglock.ModeExclusive, 0)
	var session, waiter string
	must.Do(t, db.Conn(t).QueryRow(t.Context(), "SELECT session_id::text, (SELECT session_id::text FROM "+
		"pglock.list_waiters()) FROM pglock.get_lock('a')").Scan(&session, &waiter))
	s := atTerminal(t, db.URL(), fmt.Sprintf(`
		"$RUN" break --session %[1]s --reason r; echo "ends with $?"
		"$RUN" break --session %[1]s --reason r; echo "ends with $?"
		"$RUN" break --session %[1]s --reason r; echo "ends with $?"
		"$RUN" break --session %[2]s --reason r --yes; echo "ends with $?"
		"$RUN" break --session nonsense --reason r; echo "ends with $?"`, session, waiter))
	for _, typed := range []string{"\x03", "y\n"} {
		s.shows("session    " + session)
		s.shows("holder     client")
		s.shows("state      unknown: if it lives, it goes on, without these leases, and queues again")
		s.shows("leases     1")
		s.shows("End all of this? [y/N] ")
		if !one.Valid() {
			t.Error("the lease ended before the answer")
		}
		s.types(typed)
	}
	s.shows("broke 1 lease and 0 tickets of session " + session)
	s.shows("ends with 0")
	s.shows("holds nothing and waits for nothing")
	s.shows("ends with 3")
	s.shows("broke 0 leases and 1 ticket of session " + waiter)
	s.shows("ends with 0")
	s.shows(`session is "nonsense": it must be the ID of a session`)
	s.shows("ends with 2")
}
