package integration

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

func init() {
	roles["pausee"] = pausee
	roles["zombie"] = zombie
}

// pausee holds a lease and watches its own clock: after every gap that is longer than the TTL, its very first act is to
// ask whether the lease is valid. Then it tries a fenced write that asks nobody but the server.
func pausee(ctx context.Context, url string, say func(report)) error {
	const ttl = 500 * time.Millisecond
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	c, err := pglock.New(ctx, pool)
	if err != nil {
		return err
	}
	lease, err := c.TryAcquire(ctx, "x", pglock.WithTTL(ttl))
	if err != nil {
		return err
	}
	last, deadline := time.Now(), lease.Deadline() // before the report: the pause may begin at once
	say(report{Event: "acquired", Token: int64(lease.Token())})
	for {
		now := time.Now()
		if gap := now.Sub(last); gap > ttl {
			valid := lease.Valid()
			if valid && lease.Deadline() != deadline {
				// It was renewed meanwhile: a busy machine has kept this goroutine from going on, not the process.
				last, deadline = time.Now(), lease.Deadline()
				continue
			}
			say(report{Event: "resumed", Valid: valid, Gap: gap})
			break
		}
		last, deadline = now, lease.Deadline()
	}
	<-lease.Context().Done()
	say(report{Event: "told", Err: context.Cause(lease.Context()).Error()})
	for overtaken := false; !overtaken; { // the pause may have been that of a busy machine, before the test's
		if err := pool.QueryRow(ctx, `SELECT token > $1 FROM pglock.locks WHERE name = 'x'`,
			int64(lease.Token())).Scan(&overtaken); err != nil {
			return err
		}
		time.Sleep(2 * time.Millisecond) // between two looks
	}
	_, err = pool.Exec(ctx, `SELECT FROM pglock.fence($1, $2, $3)`, lease.Name(), int64(lease.Token()),
		exported(lease).String())
	say(report{Event: "written", Err: fmt.Sprint(err)})
	return nil
}

// A process that is stopped past its lease knows in its first instruction, without any callback, that the lease is
// lost; another holder was granted at the expiry; and the server refuses the late write.
func TestI7_PausedHolderKnowsAtOnce(t *testing.T) {
	db := pgtest.Parallel(t)
	look := newPeer(t, db.URL())
	p := startProcess(t, "pausee", db.URL())
	first := p.await("acquired")
	p.signal(syscall.SIGSTOP)
	awaitExpiry(t, look, "x")
	next := look.mustAcquire(t, "x", time.Minute)
	if next.token <= first.Token {
		t.Errorf("I2: token %d after %d", next.token, first.Token)
	}
	look.exec(t, "SELECT pg_sleep(0.6)") // so that the pause is longer than the TTL, whenever the last renewal was
	p.signal(syscall.SIGCONT)
	if r := p.await("resumed"); r.Valid {
		t.Errorf("I7: the lease was believed valid after a pause of %v", r.Gap)
	}
	if r := p.await("told"); !strings.Contains(r.Err, "did not run for about ") {
		t.Errorf("it was told %q, want that it did not run", r.Err)
	}
	if r := p.await("written"); r.Err == fmt.Sprint(nil) {
		t.Error("I3: the late write passed the fence")
	}
}

// zombie begins a fenced transaction and gets stuck in it, as its mode says.
func zombie(ctx context.Context, url string, say func(report)) error {
	const ttl = 1500 * time.Millisecond
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		return err
	}
	p := &peer{conn, uuid.New()}
	var g grant
	for { // again where the lease was over by then, on a busy machine
		if g, err = p.acquire(ctx, "x", uuid.New(), ttl, false); err != nil {
			return err
		}
		if _, err := p.Exec(ctx, "BEGIN"); err != nil {
			return err
		}
		if err = p.fence(ctx, g, "x"); err == nil {
			break
		} else if state(err) != "LK001" {
			return err
		}
		if _, err := p.Exec(ctx, "ROLLBACK"); err != nil {
			return err
		}
	}
	say(report{Event: "fenced", Token: g.token, PID: conn.PgConn().PID()})
	switch mode := modeOfZombie(); mode {
	case "idle":
		select {}
	case "in a query":
		_, err = p.Exec(ctx, "SELECT pg_sleep(60)")
	case "dripping":
		for err == nil {
			_, err = p.Exec(ctx, "SELECT pg_sleep(0.1)")
		}
	default:
		err = fmt.Errorf("unknown mode %q", mode)
	}
	return err
}

// A holder that hangs inside a fenced transaction blocks the next one at the fence no longer than its own lease lasts,
// and a second for the server to notice.
func TestI16_Trap10_HungTransactionEndsWithItsLease(t *testing.T) {
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	look := newPeer(t, db.URL())
	version := one[int](t, look, `SELECT current_setting('server_version_num')::int`)
	for _, mode := range []string{"idle", "in a query", "dripping"} {
		for _, stopped := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/stopped=%v", mode, stopped), func(t *testing.T) {
				if mode == "dripping" && !stopped && version < 170000 {
					t.Skipf("only transaction_timeout ends a transaction that drips short statements, and server "+
						"version %d has none", version)
				}
				look.exec(t, `DELETE FROM pglock.locks`)
				look.exec(t, `DELETE FROM pglock.fences`)
				z := startProcess(t, "zombie", db.URL(), zombieVariable+"="+mode)
				pid := z.await("fenced").PID
				if mode == "in a query" {
					pgtest.Eventually(t, "the zombie's query, or its end", func() bool {
						return one[bool](t, look,
							`SELECT EXISTS (SELECT FROM pg_stat_activity WHERE pid = $1 AND wait_event = 'PgSleep')
							OR expires_at <= clock_timestamp() FROM pglock.locks WHERE name = 'x'`, pid)
					})
				}
				if stopped {
					z.signal(syscall.SIGSTOP)
				}
				awaitExpiry(t, look, "x")
				expired := time.Now()
				g := look.mustAcquire(t, "x", time.Minute) // for which it would wait if nothing ended the zombie
				look.exec(t, "BEGIN")
				err := look.fence(t.Context(), g, "x")
				waited := time.Since(expired)
				look.exec(t, "ROLLBACK")
				if err != nil || waited > 10*time.Second { // a second; the rest is for a busy machine
					t.Errorf("I16: the next holder waited %v after the lease's end (%v)", waited, err)
				}
			})
		}
	}
}

// The fence gives every transaction the bounds that end such holders; a bound that the user has set lower stays.
func TestI16_FenceBoundsTheTransaction(t *testing.T) {
	db := pgtest.Parallel(t)
	p := newPeer(t, db.URL())
	settings := map[string]bool{
		"lock_timeout": true, "statement_timeout": true, "idle_in_transaction_session_timeout": true,
		"tcp_user_timeout": true, "client_connection_check_interval": false,
	}
	if one[int](t, p, `SELECT current_setting('server_version_num')::int`) >= 170000 {
		settings["transaction_timeout"] = true
	}
	g := p.mustAcquire(t, "x", 20*time.Second)
	p.exec(t, "BEGIN")
	p.exec(t, "SET LOCAL lock_timeout = '5s'")
	must.Do(t, p.fence(t.Context(), g, "x"))
	for setting, byLease := range settings {
		ms := one[float64](t, p, `SELECT setting::float8 FROM pg_settings WHERE name = $1`, setting)
		low, high := 15000.0, 20101.0
		switch {
		case setting == "lock_timeout":
			low, high = 5000, 5000
		case !byLease:
			low, high = 1, 1000
		}
		if ms < low || ms > high {
			t.Errorf("I16: %s is %v ms in the fenced transaction, want %v to %v", setting, ms, low, high)
		}
	}
	p.exec(t, "ROLLBACK")
	for setting := range settings {
		if ms := one[float64](t, p, `SELECT setting::float8 FROM pg_settings WHERE name = $1`, setting); ms != 0 {
			t.Errorf("%s is still %v ms after the transaction", setting, ms)
		}
	}
}

// The server shows tcp_user_timeout without a unit, and the others with one. Over a Unix socket it has no such limit.
func TestI16_ALowerLimitOfTheUserStaysUnderTheFence(t *testing.T) {
	t.Parallel()
	p := newPeer(t, pgtest.Database(t).URL())
	limits := map[string]string{"lock_timeout": "5s", "statement_timeout": "5500ms",
		"idle_in_transaction_session_timeout": "0.1min", "client_connection_check_interval": "500"}
	if !strings.HasPrefix(p.Config().Host, "/") {
		limits["tcp_user_timeout"] = "5s"
	}
	if serverVersion(t, p) >= 170000 {
		limits["transaction_timeout"] = "1min"
	}
	if !one[bool](t, p, `SELECT pglock.can_check_connection()`) {
		delete(limits, "client_connection_check_interval")
	}
	g, own := p.mustAcquire(t, "x", time.Hour), map[string]string{}
	const shown = `SELECT setting FROM pg_settings WHERE name = $1`
	for setting, limit := range limits {
		p.exec(t, `SELECT set_config($1, $2, false)`, setting, limit)
		own[setting] = one[string](t, p, shown, setting)
	}
	p.exec(t, `BEGIN`)
	must.Do(t, p.fence(t.Context(), g, "x"))
	for setting := range limits {
		if now := one[string](t, p, shown, setting); now != own[setting] || now == "0" {
			t.Errorf("I16: %s of the user's is %s ms, and %s ms under the fence", setting, own[setting], now)
		}
	}
}

// A predecessor's open transaction is waited for, but no longer than one's own lease lasts.
func TestI16_WaitAtTheFenceIsBoundedByTheOwnLease(t *testing.T) {
	db := pgtest.Parallel(t)
	pool := db.Pool(t)
	zombie := newPeer(t, db.URL())
	g := zombie.mustAcquire(t, "other", time.Hour)
	zombie.exec(t, "BEGIN")
	must.Do(t, zombie.fence(t.Context(), g, "account"))
	const ttl = 2 * time.Second
	for try := 1; ; try++ { // this machine may stand still for a while
		next := newPeer(t, db.URL())
		began := time.Now()
		g := next.mustAcquire(t, fmt.Sprint("x", try), ttl)
		next.exec(t, "BEGIN")
		err := next.fence(t.Context(), g, "account")
		took := time.Since(began)
		late := state(err) == "LK001" // the lease was over before
		if !late && state(err) != "55P03" && state(err) != "25P04" {
			t.Errorf("I16: the fence was waited for %v, then %v", took, err)
		}
		if !late && took <= ttl*3/2 {
			break
		} else if try == 3 {
			t.Errorf("I16: the fence was waited for %v with a lease of %v, three times", took, ttl)
			break
		}
	}
	c := newClient(t, pool)
	lease, err := c.TryAcquire(t.Context(), "y", pglock.WithTTL(3*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	err = fencedstore.New(pool).Write(t.Context(), fencedstore.Fence{Lease: lease, Resource: "account"},
		func(context.Context, pgx.Tx) error {
			return nil
		})
	if err == nil || errors.Is(err, fencedstore.ErrStaleToken) {
		t.Errorf("a write past the zombie's open transaction answered %v", err)
	}
}
