package integration

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/integration/internal/datafolder"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgprograms"
	"github.com/pglock-dev/pglock/internal/dev/pgserver"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// node is one server of a cluster that replicates: a primary, or a standby that can be promoted. Kill is the crash of
// it.
type node struct {
	*pgserver.Server
	url string // of the database postgres; every node has the password of the first primary
}

// newPrimary starts a migrated server that standbys can follow.
func newPrimary(t *testing.T) *node {
	t.Helper()
	server := migrated(t, map[string]string{"wal_keep_size": "256MB"})
	return &node{server, server.URL()}
}

// newStandby starts a streaming standby of a primary: a server of the test's own whose data are replaced by a copy,
// taken by the server's own backup functions, so that no client program is needed. It replicates asynchronously.
func newStandby(t *testing.T, primary *node) *node {
	t.Helper()
	server := pgtest.Dedicated(t, nil)
	must.Do(t, server.Kill())
	owner := must.Get(pgprograms.Account())(t)
	data := datafolder.Folder{Path: server.DataDir(), Owner: owner}
	must.Do(t, data.Clear())
	look := newPeer(t, primary.url)
	start, stop := `pg_backup_start('standby', true)`, `pg_backup_stop(false)`
	if one[int](t, look, `SELECT current_setting('server_version_num')::int`) < 150000 {
		start, stop = `pg_start_backup('standby', true, false)`, `pg_stop_backup(false)`
	}
	look.exec(t, `SELECT `+start)
	must.Do(t, data.CopyFrom(primary.DataDir()))
	label := one[string](t, look, `SELECT labelfile FROM `+stop)
	to := look.Config()
	must.Do(t, errors.Join(data.Append("backup_label", label), data.Append("standby.signal", ""),
		data.Append("postgresql.auto.conf", fmt.Sprintf("primary_conninfo = 'host=%s port=%d user=%s password=%s "+
			"sslmode=disable'\nwal_retrieve_retry_interval = '100ms'\n", to.Host, to.Port, to.User, to.Password))))
	must.Do(t, server.Restart(t.Context()))
	standby := &node{server, strings.Replace(primary.url, address(t, primary.url), address(t, server.URL()), 1)}
	standby.catchUp(t, look)
	return standby
}

// catchUp returns when the standby shows all that its primary has committed so far.
func (n *node) catchUp(t *testing.T, primary *peer) {
	t.Helper()
	primary.exec(t, `SELECT pg_logical_emit_message(true, 'probe', '')`) // its commit flushes those before it
	lsn := one[string](t, primary, `SELECT pg_current_wal_flush_lsn()::text`)
	look := newPeer(t, n.url)
	pgtest.Eventually(t, "the standby to catch up", func() bool {
		return one[bool](t, look, `SELECT coalesce(pg_last_wal_replay_lsn() >= $1::text::pg_lsn, false)`, lsn)
	})
}

// cutOff ends the replication: what its primary commits from now on is lost when the standby is promoted.
func (n *node) cutOff(t *testing.T) {
	t.Helper()
	look := newPeer(t, n.url)
	look.exec(t, `ALTER SYSTEM SET primary_conninfo = ''`)
	look.exec(t, `SELECT pg_reload_conf()`)
	pgtest.Eventually(t, "the standby to receive nothing", func() bool {
		return one[int](t, look, `SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'walreceiver'`) == 0
	})
}

// promote makes the standby a primary of the next timeline, and returns a peer of it.
func (n *node) promote(t *testing.T) *peer {
	t.Helper()
	look := newPeer(t, n.url)
	if !one[bool](t, look, `SELECT pg_promote(true, 20)`) {
		t.Fatal("the standby was not promoted")
	}
	t.Logf("promoted; its WAL file is %s", one[string](t, look, `SELECT pg_walfile_name(pg_current_wal_lsn())`))
	return look
}

// either is a connection string with both hosts that leads to the one of them that takes writes.
func either(t *testing.T, a, b *node) string {
	t.Helper()
	at := address(t, a.url)
	return strings.Replace(a.url, at, at+","+address(t, b.url), 1) + "&target_session_attrs=read-write"
}

func address(t *testing.T, url string) string {
	t.Helper()
	config := must.Get(pgx.ParseConfig(url))(t)
	return net.JoinHostPort(config.Host, strconv.Itoa(int(config.Port)))
}

// restore dumps the database of one server and restores it into another, which has the roles, or with --clean into the
// same, with PostgreSQL's own programs.
func restore(t *testing.T, from, to *node, options ...string) {
	t.Helper()
	dump, psql := clientProgram(t, from, "pg_dump"), clientProgram(t, from, "psql")
	var problems strings.Builder
	out := exec.CommandContext(t.Context(), dump, append(options, "--dbname="+from.url)...)
	out.Stderr = &problems
	script, err := out.Output()
	if err != nil {
		t.Fatalf("%v: %v\n%s", out.Path, err, &problems)
	}
	in := exec.CommandContext(t.Context(), psql, "--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--dbname="+to.url)
	in.Stdin, in.Stderr = bytes.NewReader(script), &problems
	if err := in.Run(); err != nil {
		t.Fatalf("%v: %v\n%s", in.Path, err, &problems)
	}
}

// clientProgram finds a client program that is not older than the server, beside the server's programs or on PATH.
// Where there is none the test is skipped, with the reason on standard output.
func clientProgram(t *testing.T, of *node, name string) string {
	t.Helper()
	path := name
	if programs, err := pgprograms.Find(t.Context()); err == nil {
		if _, err := os.Stat(programs.Path(name)); err == nil {
			path = programs.Path(name)
		}
	}
	major := one[int](t, newPeer(t, of.url), `SELECT current_setting('server_version_num')::int / 10000`)
	out, err := exec.CommandContext(t.Context(), path, "--version").Output()
	version := regexp.MustCompile(`\(PostgreSQL\) ([0-9]+)`).FindSubmatch(out)
	if err == nil && version != nil {
		if has, _ := strconv.Atoi(string(version[1])); has >= major {
			return path
		}
	}
	reason := fmt.Sprintf("%s needs %s of version %d or newer: %q says %q, %v", t.Name(), name, major, path, out, err)
	fmt.Fprintln(os.Stdout, reason)
	t.Skip(reason)
	return ""
}

// A client with both hosts in its connection string, over a failover that lost commits: the holder of a lost grant
// learns it from its first heartbeat that reaches the new primary; other leases and waiting calls continue.
func TestI7_HolderOfALostGrantIsToldByItsNextHeartbeat(t *testing.T) {
	pgtest.Long(t, "TestI22_I2_Trap12_TokensAscendAfterAFailoverThatLostSteps")
	t.Parallel() // it has servers of its own
	primary := newPrimary(t)
	standby := newStandby(t, primary)
	look := newPeer(t, primary.url)
	hosts := either(t, primary, standby)
	c := newClient(t, newPool(t, hosts), pglock.WithDefaultTTL(15*time.Second))
	kept := must.Get(c.TryAcquire(t.Context(), "kept"))(t)
	standby.catchUp(t, look)
	standby.cutOff(t)
	lost := must.Get(c.TryAcquire(t.Context(), "lost"))(t)
	granted, deadline := kept.Deadline(), lost.Deadline()
	waiting := make(chan fetched, 1)
	acquireInBackground(t.Context(), newClient(t, newPool(t, hosts)), 0, "kept", waiting)
	awaitQueue(t, look, "kept", 1)
	must.Do(t, primary.Kill())
	look = standby.promote(t)

	select {
	case <-lost.Context().Done():
	case <-time.After(patience):
		t.Fatal("the holder of a lost grant was not told")
	}
	if left := time.Until(deadline); left <= 0 {
		t.Errorf("the holder was told %v after its deadline", -left)
	}
	var why *pglock.LostError
	if err := context.Cause(lost.Context()); !errors.Is(err, pglock.ErrLost) || !errors.As(err, &why) ||
		why.Reason != pglock.ReasonUnknown {
		t.Errorf("the lost lease ended with %v", err)
	}
	pgtest.Eventually(t, "the new primary to renew the lease that it knows", func() bool {
		return kept.Deadline().After(granted.Add(time.Second))
	})
	if _, err := kept.Check(t.Context()); err != nil {
		t.Error(err)
	}
	again, err := c.TryAcquire(t.Context(), "lost")
	if err != nil || again.Token() <= lost.Token() {
		t.Fatalf("I22: %v after token %d: %v", again, lost.Token(), err)
	}
	awaitQueue(t, look, "kept", 1) // it has queued again
	must.Do(t, kept.Release(t.Context()))
	if f := await(t, waiting); f.err != nil || f.lease.Token() <= again.Token() {
		t.Errorf("I22: the waiting call came back with %v, %v", f.lease, f.err)
	}
}

// With a synchronous standby every answered grant is on the new primary, and a grant that waited for the standby when
// the primary died is asked for again there: its holder hears of one grant, and it is the new primary's.
func TestI17_FailoverToASynchronousStandbyLosesNoAnsweredGrant(t *testing.T) {
	pgtest.Long(t, "TestI17_GrantWaitsForTheStandbyAgain")
	t.Parallel() // it has servers of its own
	primary := newPrimary(t)
	standby := newStandby(t, primary)
	look := newPeer(t, primary.url)
	look.exec(t, `SET synchronous_commit = local`)
	logGrants(t, look)
	syncStandby(t, look, "nobody") // in force; the real one comes in its place without a gap
	look.exec(t, `ALTER SYSTEM SET synchronous_standby_names = '*'`)
	look.exec(t, `SELECT pg_reload_conf()`)
	hosts := either(t, primary, standby)
	observed := func(c *pgxpool.Config) { pglock.ObserveCommits(c.ConnConfig) }
	c := newClient(t, newPool(t, hosts, observed, withDefault("synchronous_commit", "local")),
		pglock.WithDefaultTTL(time.Minute))
	leases := make([]*pglock.Lease, 50)
	for n := range leases {
		var err error
		if leases[n], err = c.TryAcquire(t.Context(), fmt.Sprint("answered", n)); err != nil {
			t.Fatal(err)
		}
	}
	standby.cutOff(t) // the last commit that it has is the last grant that was answered
	unanswered := make(chan fetched, 1)
	go func() {
		l, err := c.TryAcquire(context.Background(), "unanswered")
		unanswered <- fetched{0, l, err}
	}()
	pgtest.Eventually(t, "the grant to wait for the standby", func() bool { return waiting(t, look, "SyncRep") == 1 })
	if len(unanswered) != 0 {
		t.Fatalf("I17: a grant that no standby has was answered: %+v", <-unanswered)
	}
	must.Do(t, primary.Kill())
	look = standby.promote(t)
	look.exec(t, `ALTER SYSTEM RESET synchronous_standby_names`)
	look.exec(t, `SELECT pg_reload_conf()`)

	next := served(t, unanswered)
	for _, l := range append(leases, next) {
		holdsAsGranted(t, look, l)
		if err := hooks.Of(l).Renew(t.Context()); err != nil {
			t.Errorf("I17: %s: %v", l.Name(), err)
		}
	}
	if last := leases[len(leases)-1].Token(); next.Token() <= last {
		t.Errorf("I22: token %d after token %d", next.Token(), last)
	}
}

// The address of the primary leads to a standby for a while: nothing is decided there, neither a grant nor a refusal
// nor the end of a lease, and everything works again when it is promoted.
func TestI23_NothingIsDecidedByAStandby(t *testing.T) {
	t.Parallel() // it has servers of its own
	primary := newPrimary(t)
	standby := newStandby(t, primary)
	look := newPeer(t, primary.url)
	look.exec(t, `CREATE TABLE ledger (token bigint)`)
	var at atomic.Pointer[pgx.ConnConfig]
	at.Store(look.Config())
	pool := newPool(t, primary.url, func(c *pgxpool.Config) {
		c.BeforeConnect = func(_ context.Context, to *pgx.ConnConfig) error {
			to.Host, to.Port = at.Load().Host, at.Load().Port
			return nil
		}
	})
	c, admin := newClient(t, pool, pglock.WithDefaultTTL(10*time.Minute)), newAdmin(t, pool)
	lease := must.Get(c.TryAcquire(t.Context(), "x"))(t)
	watch := func() (err error) {
		for _, err = range c.Watch(t.Context(), "x") {
			break
		}
		return err
	}
	must.Do(t, watch()) // for a while the next one writes nothing
	standby.catchUp(t, look)
	there := newPeer(t, standby.url)
	if life := one[string](t, there, `SELECT pglock.life_of(clock_timestamp() - interval '1 min',
		clock_timestamp() - interval '2 min', true, true, false)`); life != "unknown" {
		t.Errorf("I23: of whoever gave no sign that has arrived, a standby says %s", life)
	}
	at.Store(there.Config())
	pool.Reset()
	nothing := func(context.Context, pgx.Tx) error { return nil }
	for what, call := range map[string]func() error{
		"New":                   func() error { _, err := pglock.New(t.Context(), pool); return err },
		"TryAcquire, free lock": func() error { _, err := c.TryAcquire(t.Context(), "y"); return err },
		"TryAcquire, held lock": func() error { _, err := c.TryAcquire(t.Context(), "x"); return err },
		"Acquire": func() error {
			_, err := c.Acquire(t.Context(), "x", pglock.WithMaxWait(patience))
			return err
		},
		"Renew": func() error { return hooks.Of(lease).Renew(t.Context()) },
		"Check": func() error { _, err := lease.Check(t.Context()); return err },
		"Watch": watch,
		"Write": func() error { return <-write(pool, lease) },
		"Write, serializable": func() error {
			options := fencedstore.WithTxOptions(pgx.TxOptions{IsoLevel: pgx.Serializable})
			return fencedstore.New(pool).With(options).Write(t.Context(), lease, nothing)
		},
		"Write, in a serializable session": func() error {
			sessions := newPool(t, standby.url, func(c *pgxpool.Config) {
				c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "serializable"
			})
			return fencedstore.New(sessions).Write(t.Context(), lease, nothing)
		},
		"Write, READ WRITE": func() error {
			options := fencedstore.WithTxOptions(pgx.TxOptions{AccessMode: pgx.ReadWrite})
			return fencedstore.New(pool).With(options).Write(t.Context(), lease, nothing)
		},
		"Break": func() error {
			_, err := admin.Break(t.Context(), "x", "stuck", lockadmin.BreakOptions{})
			return err
		},
	} {
		if err := call(); !errors.Is(err, pglock.ErrReadOnly) {
			t.Errorf("I23: %s on a standby answered %v", what, err)
		}
	}
	if err := lease.Err(); err != nil {
		t.Errorf("I23: a standby ended the lease: %v", err)
	}
	if _, err := newPeer(t, standby.url).acquire(t.Context(), "z", uuid.New(), time.Minute,
		false); state(err) != "25006" {
		t.Errorf("acquire on a standby answered %v", err)
	}
	if _, err := there.Exec(t.Context(), `SELECT pglock.timeline()`); state(err) != "25006" {
		t.Errorf("I23: timeline on a standby answered %v", err)
	}
	standby.cutOff(t)
	must.Do(t, primary.Kill())
	standby.promote(t)
	must.Note(t, hooks.Of(lease).Renew(t.Context()))
	must.Note(t, <-write(pool, lease))
	if next, err := c.TryAcquire(t.Context(), "y"); err != nil || next.Token() <= lease.Token() {
		t.Errorf("%v, %v", next, err)
	}
}
