package integration

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// I20: no session state is needed but LISTEN. Two clients and a store do everything through a pooler that gives each
// transaction another connection, in each of pgx's ways to send a statement.
func TestI20_Trap11_EverythingButListenWorksThroughAPooler(t *testing.T) {
	t.Parallel()
	for i, mode := range execModes {
		for j, isolation := range []string{"read committed", "repeatable read"} {
			// Each mode and each level, in the long tier each with each, and in the short one the first of both.
			if !pgtest.LargeLoads && (i+j)%2 == 1 || !pgtest.EveryTest && i > 0 {
				continue
			}
			t.Run(mode+"/"+isolation, func(t *testing.T) {
				t.Parallel() // most of it is waiting
				db := pgtest.Database(t)
				look := newPeer(t, db.URL())
				look.exec(t, `CREATE TABLE written (by text)`)
				look.exec(t, fmt.Sprintf(`ALTER DATABASE %s SET default_transaction_isolation = '%s'`,
					pgx.Identifier{db.Name()}.Sanitize(), isolation))
				p := newPooler(t, db)
				waiting := new(waits)
				s := pooled{look: look, waits: waiting, a: newClient(t, newPool(t, p.url(mode))),
					b:     newClient(t, newPool(t, p.url(mode)), pglock.WithObserver(waiting)),
					admin: newAdmin(t, newPool(t, p.url(mode))),
					store: fencedstore.New(newPool(t, p.url(storeMode(mode))))}
				for _, part := range []struct {
					name string
					run  func(pooled)
				}{
					{"hand-over", pooled.handOver}, {"own calls", pooled.ownCalls}, {"modes", pooled.modes},
					{"all and do", pooled.allAndDo}, {"heartbeat", pooled.heartbeat},
					{"watch and break", pooled.watchAndBreak}, {"fenced write", pooled.fencedWrite},
					{"cancel", pooled.cancel}, {"close", pooled.close},
				} {
					if !t.Run(part.name, func(t *testing.T) { s := s; s.t = t; part.run(s) }) {
						return
					}
				}
				p.wantNoTraces(t)
			})
		}
	}
}

// storeMode is how the store's pool sends statements. A transaction of the application's own, which a fenced write is,
// goes the way that the application chose for its pool: behind such a pooler without names.
func storeMode(mode string) string {
	switch mode {
	case "exec", "simple_protocol", "cache_describe":
		return mode
	}
	return "exec"
}

// pooled is what the parts of the test above share.
type pooled struct {
	t     *testing.T
	look  *peer
	a, b  *pglock.Client
	waits *waits // of b
	admin *lockadmin.Admin
	store *fencedstore.Store
}

func (s pooled) must(l *pglock.Lease, err error) *pglock.Lease {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
	return l
}

func (s pooled) release(leases ...*pglock.Lease) {
	s.t.Helper()
	for _, l := range leases {
		must.Do(s.t, l.Release(s.t.Context()))
	}
}

func (s pooled) handOver() {
	t := s.t
	first := s.must(s.a.TryAcquire(t.Context(), "x", pglock.WithMetadata([]byte(`{"a": [1]}`))))
	var held *pglock.HeldError
	if _, err := s.b.TryAcquire(t.Context(), "x"); !errors.As(err, &held) || held.Token != first.Token() {
		t.Errorf("a second try: %v, want ErrHeld with token %d", err, first.Token())
	}
	got := make(chan fetched, 1)
	acquireInBackground(t.Context(), s.b, 0, "x", got)
	awaitQueue(t, s.look, "x", 1)
	s.release(first)
	f := await(t, got)
	second := s.must(f.lease, f.err)
	if second.Token() <= first.Token() {
		t.Errorf("token %d after %d", second.Token(), first.Token())
	}
	if left, err := second.Check(t.Context()); err != nil || left <= 0 {
		t.Errorf("check: %v, %v", left, err)
	}
	s.release(second)
	if err := second.Release(t.Context()); !errors.Is(err, pglock.ErrReleased) {
		t.Errorf("a second release: %v", err)
	}
}

// ownCalls has calls of one client wait: each release grants to the next of them.
func (s pooled) ownCalls() {
	t := s.t
	const calls = 6
	held := s.must(s.b.Acquire(t.Context(), "own"))
	got := make(chan fetched, calls)
	for n := range calls {
		acquireInBackground(t.Context(), s.a, n, "own", got)
		awaitQueue(t, s.look, "own", n+1)
	}
	s.release(held)
	last := held.Token()
	for n := range calls {
		f := await(t, got)
		l := s.must(f.lease, f.err)
		if left, err := l.Check(t.Context()); err != nil || left <= 0 || l.Token() <= last || f.n != n {
			t.Errorf("call %d is served as number %d, with token %d after %d: check: %v, %v", f.n, n, l.Token(), last,
				left, err)
		}
		last = l.Token()
		s.release(l)
	}
	awaitQueue(t, s.look, "own", 0)
}

func (s pooled) modes() {
	t := s.t
	r1 := s.must(s.a.Acquire(t.Context(), "readers", pglock.WithShared()))
	r2 := s.must(s.b.Acquire(t.Context(), "readers", pglock.WithShared()))
	got := make(chan fetched, 1)
	acquireInBackground(t.Context(), s.a, 0, "readers", got)
	awaitQueue(t, s.look, "readers", 1)
	if _, err := s.b.TryAcquire(t.Context(), "readers", pglock.WithShared()); !errors.Is(err, pglock.ErrHeld) {
		t.Errorf("a reader after a waiting writer: %v, want ErrHeld", err)
	}
	s.release(r1, r2)
	f := await(t, got)
	s.release(s.must(f.lease, f.err))

	s1 := s.must(s.a.Acquire(t.Context(), "places", pglock.WithLimit(2)))
	s2 := s.must(s.b.Acquire(t.Context(), "places", pglock.WithLimit(2)))
	acquireInBackground(t.Context(), s.b, 0, "places", got, pglock.WithLimit(2))
	awaitQueue(t, s.look, "places", 1)
	s.release(s1)
	f = await(t, got)
	s3 := s.must(f.lease, f.err)
	if s3.Slot() != s1.Slot() {
		t.Errorf("slot %d, want the free one, %d", s3.Slot(), s1.Slot())
	}
	if _, err := s.a.TryAcquire(t.Context(), "places", pglock.WithLimit(3)); !errors.Is(err, pglock.ErrLimit) {
		t.Errorf("another limit: %v", err)
	}
	s.release(s2, s3)
}

func (s pooled) allAndDo() {
	t := s.t
	all := must.Get(s.a.AcquireAll(t.Context(), []string{"b", "a", "c"}))(t)
	done := make(chan error, 1)
	go func() {
		done <- s.b.Do(t.Context(), "b", func(ctx context.Context, l *pglock.Lease) error {
			if _, err := s.b.TryAcquire(ctx, "b"); !errors.Is(err, pglock.ErrSelfDeadlock) {
				return fmt.Errorf("the same owner once more: %w, want ErrSelfDeadlock", err)
			}
			return l.Err()
		})
	}()
	awaitQueue(t, s.look, "b", 1)
	must.Note(t, all.Release(t.Context()))
	select {
	case err := <-done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(patience):
		t.Fatalf("Do has not returned after %v", patience)
	}
}

func (s pooled) heartbeat() {
	t := s.t
	l := s.must(s.a.Acquire(t.Context(), "kept", pglock.WithTTL(6*time.Second)))
	pgtest.Eventually(t, "two renewals", func() bool {
		return one[bool](t, s.look, `SELECT renewed_at > acquired_at + '3 s' FROM pglock.locks WHERE name = 'kept'`)
	})
	must.Note(t, hooks.Of(l).Renew(t.Context()))
	if _, err := l.Check(t.Context()); err != nil {
		t.Error(err)
	}
	s.release(l)
}

func (s pooled) watchAndBreak() {
	t := s.t
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes := watching(ctx, s.a, "seen")
	see := func(want pglock.ChangeKind) {
		t.Helper()
		select {
		case c := <-changes:
			if c.Kind != want {
				t.Fatalf("saw %q, want %q", c.Kind, want)
			}
		case <-time.After(patience):
			t.Fatalf("did not see %q", want)
		}
	}
	see(pglock.ChangeState)
	l := s.must(s.b.Acquire(t.Context(), "seen"))
	see(pglock.ChangeGranted)
	s.release(l)
	see(pglock.ChangeReleased)
	l = s.must(s.b.Acquire(t.Context(), "seen"))
	see(pglock.ChangeGranted)
	if _, err := s.admin.Break(t.Context(), "seen", "a test",
		lockadmin.BreakOptions{Token: new(l.Token())}); err != nil {
		t.Fatal(err)
	}
	see(pglock.ChangeBroken)
	if _, err := l.Check(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("check after the break: %v, want ErrLost", err)
	}
	if events, err := lists.All(s.admin.History(t.Context(), lockadmin.HistoryQuery{Lock: "seen"})); err != nil ||
		len(events) != 1 {
		t.Errorf("events: %+v, %v", events, err)
	}
	if locks, err := lists.All(s.admin.Locks(t.Context(),
		lockadmin.LocksQuery{Prefix: "seen", Free: true})); err != nil || len(locks) != 1 {
		t.Errorf("list: %+v, %v", locks, err)
	}
}

func (s pooled) fencedWrite() {
	t := s.t
	write := func(fenced fencedstore.Fenced, by string) error {
		return s.store.Write(t.Context(), fenced, func(ctx context.Context, tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `INSERT INTO written VALUES ($1)`, by)
			return err
		})
	}
	old := s.must(s.a.Acquire(t.Context(), "data"))
	again := fencedstore.Fence{Lease: old, SameToken: true}
	for range 4 {
		must.Do(t, write(again, "old"))
	}
	must.Get(s.admin.Break(t.Context(), "data", "a test", lockadmin.BreakOptions{}))(t)
	if err := write(again, "broken"); !errors.Is(err, pglock.ErrLost) {
		t.Errorf("a write after the break: %v, want ErrLost", err)
	}
	l := s.must(s.b.Acquire(t.Context(), "data"))
	must.Do(t, write(l, "new"))
	if err := write(l, "twice"); !errors.Is(err, fencedstore.ErrStaleToken) {
		t.Errorf("a second write with one token: %v, want ErrStaleToken", err)
	}
	s.release(l)
	if got := one[string](t, s.look,
		`SELECT string_agg(by, ' ' ORDER BY by DESC) FROM written`); got != "old old old old new" {
		t.Errorf("written: %s", got)
	}
}

func (s pooled) cancel() {
	t := s.t
	l := s.must(s.a.Acquire(t.Context(), "long"))
	ctx, cancel := context.WithCancel(t.Context())
	got := make(chan fetched, 1)
	before := s.waits.Load()
	acquireInBackground(ctx, s.b, 0, "long", got)
	awaitQueue(t, s.look, "long", 1)
	pgtest.Eventually(t, "the call to know who holds the lock", func() bool { return s.waits.Load() > before })
	cancel()
	var held *pglock.HeldError
	if f := await(t, got); !errors.Is(f.err, context.Canceled) || !errors.As(f.err, &held) || held.Token != l.Token() {
		t.Errorf("%v, want the context's error and ErrHeld", f.err)
	}
	awaitQueue(t, s.look, "long", 0)
	s.release(l)
}

func (s pooled) close() {
	t := s.t
	const waiters = 10
	s.must(s.a.Acquire(t.Context(), "last"))
	got := make(chan fetched, waiters)
	for n := range waiters {
		acquireInBackground(t.Context(), s.b, n, "last", got)
	}
	awaitQueue(t, s.look, "last", waiters)
	for _, c := range []*pglock.Client{s.b, s.a} {
		must.Note(t, c.Close(t.Context()))
	}
	for range waiters {
		if f := await(t, got); !errors.Is(f.err, pglock.ErrClosed) {
			t.Errorf("%v, want ErrClosed", f.err)
		}
	}
	awaitQueue(t, s.look, "last", 0)
	wantCount(t, s.look, 0, "%d locks are held after Close",
		`SELECT count(*) FROM pglock.locks WHERE expires_at > clock_timestamp()`)
}

// wantNoTraces looks at both of the pooler's connections: no setting of the library's is left in their sessions.
func (p *pooler) wantNoTraces(t *testing.T) {
	t.Helper()
	for _, conn := range p.both(t) {
		rows, err := conn.Query(t.Context(),
			`SELECT name || ' = ' || setting FROM pg_settings WHERE source = 'session' AND setting <> ''
			AND name NOT IN ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings')`) // PgBouncer's own
		if err != nil {
			t.Fatal(err)
		}
		left, err := pgx.CollectRows(rows, pgx.RowTo[string])
		if err != nil || len(left) > 0 {
			t.Errorf("settings were left in a shared session: %v, %v", left, err)
		}
	}
}

// Hundreds of calls at once, whose statements the pooler mixes on its two connections.
func TestI20_ManyAtOnceThroughAPooler(t *testing.T) {
	t.Parallel() // most of it is waiting
	for _, mode := range execModes {
		t.Run(mode, func(t *testing.T) {
			db := pgtest.Database(t)
			look := newPeer(t, db.URL())
			look.exec(t, `CREATE TABLE counter AS SELECT n, 0 AS count FROM generate_series(0, 15) n`)
			logGrants(t, look)
			p := newPooler(t, db)
			store := fencedstore.New(newPool(t, p.url(storeMode(mode))))
			const clients, callers, names = 4, 64, 16
			each := 2
			if pgtest.LargeLoads {
				each = 4
			}
			start := make(chan struct{})
			wg := pgtest.Group(t)
			for n := range clients {
				c := newClient(t, newPool(t, p.url(mode)))
				for k := range callers / clients {
					wg.Go(func() {
						<-start
						for i := range each {
							lock := (n + 5*k + i) % names
							err := c.Do(t.Context(), fmt.Sprint("n", lock),
								func(ctx context.Context, l *pglock.Lease) error {
									if _, err := l.Check(ctx); err != nil {
										return err
									}
									return store.Write(ctx, l, func(ctx context.Context, tx pgx.Tx) error {
										_, err := tx.Exec(ctx, `UPDATE counter SET count = count + 1 WHERE n = $1`,
											lock)
										return err
									})
								})
							if err != nil {
								t.Error(err)
							}
						}
					})
				}
			}
			began := time.Now()
			close(start)
			wg.Wait()
			t.Logf("%d grants with a fenced write each in %v", callers*each, time.Since(began))
			if n := one[int](t, look, `SELECT sum(count) FROM counter`); n != callers*each {
				t.Errorf("%d writes, want %d", n, callers*each)
			}
			checkGrants(t, look)
			p.wantNoTraces(t)
		})
	}
}
