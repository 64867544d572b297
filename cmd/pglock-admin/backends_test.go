package main

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// beating makes the holder of a lease renew it over the connection of its heartbeat. It returns when the server knows
// this process, and nothing is left to do for it before the next renewal, which is far away.
func beating(t *testing.T, db *pgtest.DB, lease *pglock.Lease) lockadmin.Backend {
	t.Helper()
	must.Get(lease.Extend(t.Context(), lease.TTL()+time.Minute))(t)
	admin := must.Get(lockadmin.New(t.Context(), db.Pool(t)))(t)
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(5 * time.Millisecond) {
		all := must.Get(admin.Backends(t.Context(), lease.Name()))(t)
		if len(all) == 1 && all[0].State == "idle" && all[0].InState > 200*time.Millisecond {
			return all[0]
		}
	}
	t.Fatalf("the server does not know the heartbeat of %s", lease.Name())
	return lockadmin.Backend{}
}

func TestShowLeadsToTheProgramThatHoldsTheLockAndSaysHowToEndIt(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "worker-1", "jobs/a", pglock.WithTTL(time.Hour))
	pid := beating(t, db, lease).PID
	a := in(t, db.URL(), "show", "jobs/a").want(t, cli.ExitOK)
	a.inOrder(t, "PID", "USE", "APPLICATION", "CLIENT", "STATE", "TRANSACTION", fmt.Sprint(pid), "heartbeat", "pglock ",
		"/pglock-admin.test[", "idle for",
		"HOW TO END IT", fmt.Sprintf(`pglock-admin break jobs/a --reason "why" --token %d`, lease.Token()), "runs on",
		"stop the program",
		fmt.Sprintf("SELECT pg_terminate_backend(%d);", pid), "connects again", "has the right")
	said := in(t, db.URL(), "show", "jobs/a", "-o", "json").want(t, cli.ExitOK, `"transaction_ms": null`).stdout
	view := decode[look.ShowView](t, said)
	if len(view.Backends) != 1 || view.Backends[0].PID != pid || strings.Contains(said, `"in_state_ms": null`) ||
		!view.Backends[0].MayEnd {
		t.Error(said)
	}

	user := asUser(t, db, "pglock_user")
	a = in(t, user, "show", "jobs/a").want(t, cli.ExitOK, "pg_read_all_stats", "This user lacks the right",
		"pg_signal_backend", "/pglock-admin.test[", "hidden")
	if strings.Contains(a.stdout, "idle for") {
		t.Errorf("it tells what is hidden:\n%s", a.stdout)
	}
	view = decode[look.ShowView](t, in(t, user, "show", "jobs/a", "-o", "json").want(t, cli.ExitOK,
		`"in_state_ms": null`).stdout)
	if len(view.Backends) != 1 || !view.Backends[0].Hidden || view.Backends[0].MayEnd {
		t.Errorf("%+v", view.Backends)
	}
}

func TestShowTellsTheOpenTransactionOfAFormerHolder(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "worker-1", "jobs/a")
	nothing := func(pgx.Tx) error { return nil }
	must.Do(t, fencedWrite(t, db, lease, nothing))
	execute(t, db, "SELECT pglock.break_lock('jobs/a', 'stuck', 'me')")
	lease = hold(t, db, "worker-3", "jobs/a")
	err := fencedWrite(t, db, lease, func(tx pgx.Tx) error {
		execute(t, db, "SELECT pglock.break_lock('jobs/a', 'stuck', 'me')")
		a := in(t, db.URL(), "show", "jobs/a").want(t, cli.ExitOK, "FREE", "write to jobs/a", "idle in transaction for",
			fmt.Sprintf("SELECT pg_terminate_backend(%d);", tx.Conn().PgConn().PID()), "rolls back")
		if strings.Contains(a.stdout, "pglock-admin break") || strings.Contains(a.stdout, "No server process") {
			t.Errorf("nobody holds the lock:\n%s", a.stdout)
		}
		return nil
	})
	if err == nil {
		t.Error("the write of the former holder was committed")
	}
}

func TestShowSaysWhyItKnowsNoProcessOfAHolder(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "worker-1", "jobs/a", pglock.WithTTL(time.Hour)) // its first heartbeat is far away
	in(t, db.URL(), "show", "jobs/a").want(t, cli.ExitOK, "No server process is known for the heartbeat of the holder",
		"PgBouncer", "HOW TO END IT", "stop the program")
	if view := decode[look.ShowView](t, in(t, db.URL(), "show", "jobs/a", "-o", "json").want(t,
		cli.ExitOK).stdout); view.Backends == nil || len(view.Backends) != 0 {
		t.Errorf("%+v, want an empty list", view.Backends)
	}
}

// A server may keep pg_stat_activity from its users: show tells the rest.
func TestShowWithoutTheRightToSeeAnyProcessTellsTheRest(t *testing.T) {
	db := pgtest.Parallel(t)
	hold(t, db, "worker-1", "jobs/a")
	execute(t, db, "REVOKE SELECT ON pg_stat_activity FROM PUBLIC")
	user := asUser(t, db, "pglock_user")
	a := in(t, user, "show", "jobs/a").want(t, cli.ExitOK, "worker-1", "may not read pg_stat_activity", "HOW TO END IT",
		"stop the program")
	if strings.Contains(a.stdout, "No server process") {
		t.Errorf("it claims to have looked:\n%s", a.stdout)
	}
	view := decode[look.ShowView](t, in(t, user, "show", "jobs/a", "-o", "json").want(t, cli.ExitOK).stdout)
	if view.Backends != nil || view.BackendsNote == "" || view.Lock.Holder != "worker-1" {
		t.Errorf("%+v", view)
	}
}

func TestShowCountsHoldersWithoutAKnownProcess(t *testing.T) {
	db := pgtest.Parallel(t)
	lease := hold(t, db, "worker-1", "readers", pglock.WithShared(), pglock.WithTTL(time.Hour))
	hold(t, db, "worker-2", "readers", pglock.WithShared(), pglock.WithTTL(time.Hour))
	beating(t, db, lease)
	in(t, db.URL(), "show", "readers").want(t, cli.ExitOK, "heartbeat #1", "of 1 of the 2 holders")
}
