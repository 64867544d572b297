package integration

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// fencedTx is an open transaction under the fence of its lease, with a row written. Lock and resource have the test's
// name.
type fencedTx struct {
	*peer
	look *peer // another program
	g    grant
	ends time.Time // the lease, as the transaction's snapshot shows it
}

// newFencedTx acquires the lock, for a test that begins the transaction itself.
func newFencedTx(t *testing.T, url string, ttl time.Duration) *fencedTx {
	t.Helper()
	return newFencedTxOn(t, newPeer(t, url), newPeer(t, url), ttl)
}

func newFencedTxOn(t *testing.T, p, look *peer, ttl time.Duration) *fencedTx {
	t.Helper()
	f := &fencedTx{peer: p, look: look}
	f.exec(t, `ROLLBACK`)                     // of a test before that failed
	f.exec(t, `RESET ALL`)                    // of a test before
	f.look.exec(t, `SET lock_timeout = '3s'`) // no wait is for ever, should one be wrong
	f.g = f.mustAcquire(t, t.Name(), ttl)
	return f
}

// tooLate are the answers to a transaction that begins when its lease is over, or whose connection its limits have
// ended.
var tooLate = []string{"LK001", "57014", "25P02", "25P03", "25P04", ""}

// beginFenced acquires the lock and begins the transaction, after the SQL before. It does so again where a short lease
// was over, on a busy machine, before the transaction had begun.
func beginFenced(t *testing.T, url string, level pgx.TxIsoLevel, ttl time.Duration, before ...string) *fencedTx {
	t.Helper()
	for deadline := time.Now().Add(patience); ; {
		f := newFencedTx(t, url, ttl)
		for _, sql := range before {
			f.exec(t, sql)
		}
		err := f.tryBegin(t.Context(), level)
		if err == nil {
			return f
		} else if ttl >= time.Minute || time.Now().After(deadline) || !slices.Contains(tooLate, state(err)) {
			t.Fatal(err)
		}
		_ = f.Close(t.Context())
		awaitExpiry(t, f.look, f.g.name)
	}
}

// begin begins the transaction, passes the fence and writes the row. The fence's time limits are lifted, so that the
// check inside COMMIT is what refuses.
func (f *fencedTx) begin(t *testing.T, level pgx.TxIsoLevel) {
	t.Helper()
	must.Do(t, f.tryBegin(t.Context(), level))
}

func (f *fencedTx) tryBegin(ctx context.Context, level pgx.TxIsoLevel) error {
	_, err := f.Exec(ctx, `BEGIN ISOLATION LEVEL `+string(level))
	if err == nil {
		err = f.fence(ctx, f.g, f.g.name)
	}
	if err == nil {
		err = f.QueryRow(ctx, `SELECT expires_at FROM pglock.locks WHERE name = $1 AND token = $2`, f.g.name,
			f.g.token).
			Scan(&f.ends)
	}
	if err == nil {
		_, err = f.Exec(ctx, liftingLimits)
	}
	if err == nil {
		_, err = f.Exec(ctx, `INSERT INTO public.ledger (token) VALUES ($1)`, f.g.token)
	}
	return err
}

// liftingLimits takes back the limits that the fence has set for the transaction, as no program may.
const liftingLimits = `SELECT set_config(name, '0', true) FROM pg_settings WHERE name IN ('lock_timeout',
	'statement_timeout', 'idle_in_transaction_session_timeout', 'transaction_timeout')`

func liftLimits(t *testing.T, p *peer) {
	t.Helper()
	p.exec(t, liftingLimits)
}

// endNow ends a lease as if its time had passed: no key is changed, and nobody waits.
func endNow(t *testing.T, look *peer, name string) {
	t.Helper()
	look.exec(t, `UPDATE pglock.locks SET expires_at = clock_timestamp() WHERE name = $1`, name)
}

// renew renews the lease for its TTL.
func (f *fencedTx) renew(t *testing.T) {
	t.Helper()
	f.look.mustRenew(t, f.g)
}

const breakSQL = `SELECT FROM pglock.break_lock($1, 'test', 'test')`

// wantWaits fails unless a statement waits for the fenced transaction, for as long as lock_timeout lets it.
func wantWaits(t *testing.T, look *peer, sql string, args ...any) {
	t.Helper()
	look.exec(t, `BEGIN; SET LOCAL lock_timeout = '50ms'`)
	defer look.exec(t, `ROLLBACK`)
	if _, err := look.Exec(t.Context(), sql, args...); state(err) != "55P03" {
		t.Errorf("I4: %s answered %v, want to wait for the fenced transaction", sql, err)
	}
}

// hastyBreaks lets a break give up its wait after half a second instead of five, where a test only wants it to wait.
func hastyBreaks(t *testing.T, p *peer) {
	t.Helper()
	p.exec(t, `ALTER FUNCTION pglock.break_lock SET lock_timeout = '500ms'`)
}

// wantNotGranted fails if the lock is granted to another although the fenced transaction has its row.
func wantNotGranted(t *testing.T, look *peer, g grant) {
	t.Helper()
	if again, err := look.acquire(t.Context(), g.name, uuid.New(), time.Minute, false); err != nil || again.granted {
		t.Errorf("I4: the lock was granted before the transaction of the holder before had ended: %+v, %v", again, err)
	}
}

type commitAnswer struct {
	tag string
	err error
}

// sendCommit sends COMMIT and does not wait for its answer; the end of the test does.
func sendCommit(t *testing.T, p *peer) <-chan commitAnswer {
	ctx, cancel := context.WithCancel(context.Background())
	answered, done := make(chan commitAnswer, 1), make(chan struct{})
	go func() {
		defer close(done)
		tag, err := p.Exec(ctx, `COMMIT`)
		answered <- commitAnswer{tag.String(), err}
	}()
	t.Cleanup(func() {
		cancel()
		<-done
	})
	return answered
}

// wantCommit sends COMMIT and compares its answer with an SQLSTATE, "" for committed, and the rows with the answer.
func (f *fencedTx) wantCommit(t *testing.T, want string) {
	t.Helper()
	tag, err := f.Exec(t.Context(), `COMMIT`)
	wantAnswer(t, f.look, f.g, tag.String(), err, want)
}

func wantAnswer(t *testing.T, look *peer, g grant, tag string, err error, want string) {
	t.Helper()
	if got := state(err); got != want || (err == nil) != (want == "") || err == nil && tag != "COMMIT" {
		t.Errorf("I4: COMMIT was answered %q, %v; want SQLSTATE %q", tag, err, want)
	}
	rows := 0
	if want == "" {
		rows = 1
	}
	if n := one[int](t, look, `SELECT count(*) FROM ledger WHERE token = $1`, g.token); n != rows {
		t.Errorf("I4: %d rows were committed, want %d", n, rows)
	}
}

// detail is the DETAIL of a server's error, or "".
func detail(err error) string {
	if pgErr, is := errors.AsType[*pgconn.PgError](err); is {
		return pgErr.Detail
	}
	return ""
}

// What may happen to a lease between the fence and COMMIT, and what COMMIT answers then: an SQLSTATE, or "" for done.
// Short leases end by the clock: an UPDATE of the row would be hidden from a snapshot, as time is not. Those that are
// renewed are longer, for a busy machine to be in time.
var checks = []struct {
	row       string
	ttl       time.Duration
	meanwhile func(t *testing.T, f *fencedTx)
	committed string // at READ COMMITTED, with the reason below
	snapshot  string // at REPEATABLE READ and SERIALIZABLE
	reason    string
	both      bool // the short tier, too, has it with a snapshot
}{
	{"expired before COMMIT", time.Second, func(t *testing.T, f *fencedTx) { awaitExpiry(t, f.look, f.g.name) },
		"LK001", "LK001", "expired", true},
	{"taken over before COMMIT", time.Second, func(t *testing.T, f *fencedTx) {
		awaitExpiry(t, f.look, f.g.name)
		f.look.mustAcquire(t, f.g.name, time.Minute)
	}, "LK003", "40001", "taken over", true},
	{"broken: new token", time.Minute, func(t *testing.T, f *fencedTx) {
		f.look.exec(t, breakSQL, f.g.name)
	}, "LK003", "40001", "broken", false},
	{"broken and granted to another", time.Minute, func(t *testing.T, f *fencedTx) {
		f.look.exec(t, breakSQL, f.g.name)
		f.look.mustAcquire(t, f.g.name, time.Minute)
	}, "LK003", "40001", "broken", false},
	{"released", time.Minute, func(t *testing.T, f *fencedTx) {
		if released, err := f.look.release(t.Context(), f.g); err != nil || !released {
			t.Fatal(released, err)
		}
	}, "LK003", "40001", "released", true},
	{"released and granted to the same holder again", time.Minute, func(t *testing.T, f *fencedTx) {
		if released, err := f.look.release(t.Context(), f.g); err != nil || !released {
			t.Fatal(released, err)
		}
		again := &peer{f.look.Conn, f.key}
		again.mustAcquire(t, f.g.name, time.Minute)
	}, "LK003", "40001", "released", false},
	{"released and handed to the next in the queue", time.Minute, func(t *testing.T, f *fencedTx) {
		waiter, err := f.look.enqueue(t.Context(), f.g.name, uuid.New(), "exclusive", nil)
		if err != nil || waiter.ticket == 0 {
			t.Fatal(waiter, err)
		}
		if released, err := f.look.release(t.Context(), f.g); err != nil || !released {
			t.Fatal(released, err)
		}
	}, "LK003", "40001", "released", false},
	{"expired and pruned", time.Second, func(t *testing.T, f *fencedTx) {
		awaitExpiry(t, f.look, f.g.name)
		// others write to the table, and no name but this one begins so
		pgtest.Eventually(t, "the lock is pruned", func() bool {
			var removed int
			err := f.look.QueryRow(t.Context(), `SELECT removed FROM pglock.prune_locks('0', 1, left($1, -1))`,
				f.g.name).Scan(&removed)
			if err != nil && state(err) != "55P03" {
				t.Fatal(err)
			}
			return removed == 1
		})
	}, "LK001", "40001", "expired", false},
	{"expired, and its row and its history are gone", time.Second, func(t *testing.T, f *fencedTx) {
		awaitExpiry(t, f.look, f.g.name)
		f.look.exec(t, `DELETE FROM pglock.locks WHERE name = $1`, f.g.name)
	}, "LK003", "40001", "unknown", false},
	{"heartbeat renewed meanwhile", time.Minute, func(t *testing.T, f *fencedTx) { f.renew(t) },
		"", "", "", false},
	{"heartbeat renewed meanwhile, COMMIT after the expiry that its snapshot shows", 5 * time.Second,
		func(t *testing.T, f *fencedTx) {
			pgtest.Eventually(t, "the first expiry to pass", func() bool {
				f.renew(t)
				return one[bool](t, f.look, `SELECT $1 <= clock_timestamp()`, f.ends)
			})
		}, "", "LK001", "", true},
	{"heartbeat renewed meanwhile, then expired", 5 * time.Second, func(t *testing.T, f *fencedTx) {
		f.renew(t)
		awaitExpiry(t, f.look, f.g.name)
	}, "LK001", "LK001", "expired", false},
	{"heartbeat renewed meanwhile, then taken over", 5 * time.Second, func(t *testing.T, f *fencedTx) {
		f.renew(t)
		awaitExpiry(t, f.look, f.g.name)
		f.look.mustAcquire(t, f.g.name, time.Minute)
	}, "LK003", "40001", "taken over", false},
}

// What COMMIT answers, for everything that may happen to the lease after the fence, at every isolation level. The level
// of the history changes nothing.
func TestI4_I10_I18_Trap5_A5_CommitAnswersForWhatBecameOfTheLease(t *testing.T) {
	t.Parallel()
	for _, history := range []string{"losses", "all"} {
		db := pgtest.Database(t)
		newLedger(t, db)
		p, look := newPeer(t, db.URL()), newPeer(t, db.URL())
		look.exec(t, `SELECT FROM pglock.set_history('test', $1)`, history)
		for _, c := range checks {
			for _, level := range fewLevels() {
				if history == "all" && (level != pgx.ReadCommitted || !pgtest.EveryTest) {
					continue // only there does the answer come from the history
				}
				if !pgtest.EveryTest && level != pgx.ReadCommitted && !c.both {
					continue
				}
				t.Run(history+"/"+c.row+"/"+string(level), func(t *testing.T) {
					var f *fencedTx
					if c.ttl < time.Minute {
						t.Parallel() // most of it is waiting for leases to end
						f = beginFenced(t, db.URL(), level, c.ttl)
					} else {
						f = newFencedTxOn(t, p, look, c.ttl)
						f.begin(t, level)
					}
					c.meanwhile(t, f)
					want := c.committed
					if level != pgx.ReadCommitted {
						want = c.snapshot
					}
					tag, err := f.Exec(t.Context(), `COMMIT`)
					wantAnswer(t, f.look, f.g, tag.String(), err, want)
					if reason := "reason=" + c.reason; level == pgx.ReadCommitted && want != "" &&
						detail(err) != reason {
						t.Errorf("the refusal has DETAIL %q, want %q", detail(err), reason)
					}
				})
			}
		}
	}
}

// A COMMIT that the network delivers after the expiry and a takeover is refused, however early it was sent.
func TestI4_A5_LateCommitIsRefused(t *testing.T) {
	t.Parallel() // most of it is waiting
	db := pgtest.Database(t)
	newLedger(t, db)
	l := newLine(t, db.URL())
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			f := beginFenced(t, l.url, level, time.Second)
			f.look = newPeer(t, db.URL()) // past the line
			l.toxic(t, "latency", "upstream", `{"latency": 3600000}`)
			answered := sendCommit(t, f.peer)
			awaitExpiry(t, f.look, f.g.name)
			next := f.look.mustAcquire(t, f.g.name, time.Minute)
			select {
			case a := <-answered:
				t.Fatalf("COMMIT was answered before the line was mended: %+v", a)
			default:
			}
			l.mend() // what was held up arrives
			a := <-answered
			want := "LK003"
			if level != pgx.ReadCommitted {
				want = "40001"
			}
			wantAnswer(t, f.look, f.g, a.tag, a.err, want)
			if next.token <= f.g.token {
				t.Errorf("I2: token %d after %d", next.token, f.g.token)
			}
		})
	}
}

// A transaction under the fences of two leases needs both of them at COMMIT.
func TestI4_TransactionUnderTwoFencesNeedsBothLeases(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	p, a, b := newPeer(t, db.URL()), newPeer(t, db.URL()), newPeer(t, db.URL())
	for _, which := range []string{"first", "second", "none"} {
		for _, level := range levels {
			t.Run(fmt.Sprintf("%s ended/%s", which, level), func(t *testing.T) {
				other := a.mustAcquire(t, t.Name()+"/other", time.Minute)
				f := newFencedTxOn(t, p, b, time.Minute)
				f.begin(t, level)
				must.Do(t, f.fence(t.Context(), other, other.name))
				ended, want := f.g, "LK003"
				switch {
				case which == "second":
					ended = other
				case which == "none":
					ended, want = b.mustAcquire(t, t.Name()+"/unrelated", time.Minute), ""
				}
				if want != "" && level != pgx.ReadCommitted {
					want = "40001"
				}
				if released, err := b.release(t.Context(), ended); err != nil || !released {
					t.Fatal(released, err)
				}
				f.wantCommit(t, want)
			})
		}
	}
}

// Of several holders of one lock, COMMIT checks only its own lease: the fate of another one does not matter.
func TestI4_CommitOfASlotAsksForItsOwnLease(t *testing.T) {
	db := pgtest.Parallel(t)
	newLedger(t, db)
	for _, level := range levels {
		t.Run(string(level), func(t *testing.T) {
			look := newPeer(t, db.URL())
			var fs [2]*fencedTx
			for i := range fs {
				f := &fencedTx{peer: newPeer(t, db.URL()), look: look}
				f.g = grant{name: t.Name(), id: uuid.New()}
				if err := f.QueryRow(t.Context(),
					`SELECT granted, token FROM pglock.acquire_lease($1, $2, $3, 'peer', '1 min',
					p_mode => 'limit', p_capacity => 2)`, f.g.name, f.g.id.String(), f.key.String()).Scan(&f.g.granted,
					&f.g.token); err != nil {
					t.Fatal(err)
				}
				f.exec(t, `BEGIN ISOLATION LEVEL `+string(level))
				f.exec(t, `SELECT FROM pglock.fence($1, $2, $3)`, f.g.name, f.g.token, f.g.id.String())
				f.exec(t, `INSERT INTO ledger (token) VALUES ($1)`, f.g.token)
				fs[i] = f
			}
			look.exec(t, `SELECT FROM pglock.break_lock($1, 'test', 'test', $2)`, fs[0].g.name, fs[0].g.token)
			fs[1].wantCommit(t, "")
			want := "LK003"
			if level != pgx.ReadCommitted {
				want = "40001"
			}
			fs[0].wantCommit(t, want)
		})
	}
}
