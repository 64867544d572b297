package integration

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/pglock-dev/pglock/advisory"
	"github.com/pglock-dev/pglock/fencedhttp"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/fencedstore/reversible"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// entryPoints are everything that the exported functions are called on.
type entryPoints struct {
	url    string
	pool   *pgxpool.Pool
	db     *sql.DB
	client *pglock.Client
	lease  *pglock.Lease // of lock "protected"
	other  *pglock.Lease // of lock "other"; the same as lease where one is enough
	taken  *pglock.Lease // of lock "taken", by another client
	store  *fencedstore.Store
	tx     pgx.Tx
	sqlTx  *sql.Tx
	// guarded and guardedSQL are of these transactions, which have gone back to before Guard.
	guarded, guardedSQL *fencedstore.Guarded

	bridge *advisory.Bridge
	held   *advisory.Held // of lock "bridged"
	admin  *lockadmin.Admin
	tokens *fencedhttp.TableStore
	work   func(ctx context.Context) error // of the functions that take one
	again  bool                            // the same token may pass again
}

func (s *entryPoints) protected() fencedstore.Fence {
	return fencedstore.Fence{Lease: s.lease, SameToken: s.again}
}

func newEntryPoints(t *testing.T) *entryPoints {
	t.Helper()
	ctx := t.Context()
	db := pgtest.Database(t)
	s := &entryPoints{url: db.URL(), pool: db.Pool(t, func(c *pgxpool.Config) { c.MaxConns = 16 })}
	s.store = fencedstore.New(s.pool)
	config := must.Get(pgx.ParseConfig(s.url))(t)
	s.db = stdlib.OpenDB(*config)
	t.Cleanup(func() { _ = s.db.Close() })
	s.client = must.Get(pglock.New(ctx, s.pool, pglock.WithDefaultTTL(time.Hour)))(t)
	t.Cleanup(func() { _ = s.client.Close(context.WithoutCancel(ctx)) })
	for name, into := range map[string]**pglock.Lease{"protected": &s.lease, "other": &s.other} {
		*into = must.Get(s.client.TryAcquire(ctx, name))(t)
	}
	second := must.Get(pglock.New(ctx, s.pool, pglock.WithDefaultTTL(time.Hour)))(t)
	t.Cleanup(func() { _ = second.Close(context.WithoutCancel(ctx)) })
	s.taken = must.Get(second.TryAcquire(ctx, "taken"))(t)
	s.bridge = must.Get(advisory.New(s.client, advisory.Config{}))(t)
	s.held = must.Get(s.bridge.TryAcquire(ctx, "bridged", advisory.Bigint(1)))(t)
	t.Cleanup(func() { _ = s.held.Release(context.WithoutCancel(ctx)) })
	// no entry uses its session, which that may end
	apart := must.Get(s.bridge.TryAcquire(ctx, "apart", advisory.Bigint(4)))(t)
	t.Cleanup(func() { _ = apart.Release(context.WithoutCancel(ctx)) })
	s.admin = must.Get(lockadmin.New(ctx, s.pool))(t)
	s.tokens = must.Get(fencedhttp.NewTableStore(s.pool, pgx.Identifier{"fencing_tokens"}))(t)
	must.Do(t, s.tokens.Create(ctx))
	s.tx = must.Get(s.pool.Begin(ctx))(t)
	t.Cleanup(func() { _ = s.tx.Rollback(context.WithoutCancel(ctx)) })
	s.sqlTx = must.Get(s.db.BeginTx(ctx, nil))(t)
	t.Cleanup(func() { _ = s.sqlTx.Rollback() })
	for _, sql := range []string{"SAVEPOINT before", "ROLLBACK TO before"} {
		_ = must.Get(s.tx.Exec(ctx, sql))(t)
		_ = must.Get(s.sqlTx.ExecContext(ctx, sql))(t)
		if s.guarded == nil {
			s.guarded = must.Get(fencedstore.Guard(ctx, s.tx, s.lease))(t)
			s.guardedSQL = must.Get(fencedstore.GuardSQL(ctx, s.sqlTx, s.other))(t)
		}
	}
	return s
}

func last[T any](list iter.Seq2[T, error]) (failure error) {
	for _, err := range list {
		if err != nil {
			failure = err
		} else {
			return nil
		}
	}
	return failure
}

// request sends one under the token of the lease.
func (s *entryPoints) request(ctx context.Context) error {
	service := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	defer service.Close()
	transport := &fencedhttp.Transport{Base: &http.Transport{DisableKeepAlives: true}}
	r, err := http.NewRequestWithContext(fencedhttp.ContextWithLease(ctx, s.lease), http.MethodPut, service.URL, nil)
	if err != nil {
		return err
	}
	response, err := transport.RoundTrip(r)
	if err == nil {
		_ = response.Body.Close()
	}
	return err
}

// verified is what a Verifier reports of a request to a store that does not answer.
func (s *entryPoints) verified(ctx context.Context) (reported error) {
	v := fencedhttp.Verifier{Store: s.tokens, Resource: func(*http.Request) (string, error) { return "r", nil },
		OnError: func(_ *http.Request, err error) { reported = err }}
	r := httptest.NewRequestWithContext(ctx, http.MethodPut, "/", nil)
	r.Header.Set(fencedhttp.Header, "33")
	v.Middleware(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
	return reported
}

func (s *entryPoints) inPgx() func(context.Context, pgx.Tx) error {
	return func(ctx context.Context, _ pgx.Tx) error { return s.work(ctx) }
}

func (s *entryPoints) inSQL() func(context.Context, *sql.Tx) error {
	return func(ctx context.Context, _ *sql.Tx) error { return s.work(ctx) }
}

// closed closes a client that is not used.
func closed(c *pglock.Client, err error) error {
	if err == nil {
		err = c.Close(context.Background())
	}
	return err
}

// entries are the exported functions that take a context and fail when it has ended, as calls on a entryPoints.
func (s *entryPoints) entries() map[string]func(ctx context.Context) error {
	fences := fencedstore.Fences{{Lease: s.lease}, {Lease: s.other}}
	receipt := fencedstore.Receipt{DatabaseID: s.lease.Export().DatabaseID, Schema: "pglock", ID: uuid.New(),
		Write: uuid.New()}
	first := func(_ any, err error) error { return err }
	return map[string]func(ctx context.Context) error{
		"pglock.New":        func(ctx context.Context) error { return closed(pglock.New(ctx, s.pool)) },
		"pglock.Open":       func(ctx context.Context) error { return closed(pglock.Open(ctx, s.url)) },
		"Client.TryAcquire": func(ctx context.Context) error { return first(s.client.TryAcquire(ctx, "taken")) },
		"Client.TryAcquire free": func(ctx context.Context) error {
			return first(s.client.TryAcquire(ctx, "free", pglock.WithGrace(time.Hour)))
		},
		"Client.Acquire": func(ctx context.Context) error { return first(s.client.Acquire(ctx, "taken")) },
		"Client.Acquire apart": func(ctx context.Context) error {
			return first(s.client.Acquire(ctx, "taken", pglock.WithMetadata([]byte(`{}`))))
		},
		"Client.Acquire shared": func(ctx context.Context) error {
			return first(s.client.Acquire(ctx, "taken", pglock.WithShared()))
		},
		"Client.AcquireAll": func(ctx context.Context) error {
			return first(s.client.AcquireAll(ctx, []string{"some", "taken"}))
		},
		"Client.Do": func(ctx context.Context) error {
			return s.client.Do(ctx, "taken", func(context.Context, *pglock.Lease) error { return nil })
		},
		"Lease.Check":       func(ctx context.Context) error { return first(s.lease.Check(ctx)) },
		"Lease.Renew":       func(ctx context.Context) error { return hooks.Of(s.lease).Renew(ctx) },
		"Lease.CanHandOver": func(ctx context.Context) error { return hooks.Of(s.lease).CanHandOver(ctx, "somebody") },
		"Lease.Extend":      func(ctx context.Context) error { return first(s.lease.Extend(ctx, 2*time.Hour)) },
		"Store.Write": func(ctx context.Context) error {
			return s.store.Write(ctx, s.protected(), s.inPgx())
		},
		"Store.Write for long": func(ctx context.Context) error {
			return s.store.With(fencedstore.WithTimeLimit(2*time.Hour)).Write(ctx, s.lease, s.inPgx())
		},
		"Store.Write of several": func(ctx context.Context) error { return s.store.Write(ctx, fences, s.inPgx()) },
		"Store.Once": func(ctx context.Context) error {
			return s.store.Once(ctx, s.lease, "key", s.inPgx())
		},
		"Store.Outcome": func(ctx context.Context) error { return first(s.store.Outcome(ctx, receipt)) },
		"reversible.Run": func(ctx context.Context) error {
			return reversible.Run(ctx, s.lease, s.operation())
		},
		"SQLStore.Write": func(ctx context.Context) error {
			return fencedstore.NewSQL(s.db).Write(ctx, s.protected(), s.inSQL())
		},
		"SQLStore.Write of several": func(ctx context.Context) error {
			return fencedstore.NewSQL(s.db).Write(ctx, fences, s.inSQL())
		},
		"SQLStore.Once": func(ctx context.Context) error {
			return fencedstore.NewSQL(s.db).Once(ctx, s.lease, "key", s.inSQL())
		},
		"SQLStore.Outcome": func(ctx context.Context) error {
			return first(fencedstore.NewSQL(s.db).Outcome(ctx, receipt))
		},
		"fencedstore.Guard": func(ctx context.Context) error { return first(fencedstore.Guard(ctx, s.tx, s.lease)) },
		"fencedstore.Guard of several": func(ctx context.Context) error {
			return first(fencedstore.Guard(ctx, s.tx, fences))
		},
		"fencedstore.Guard of a key": func(ctx context.Context) error {
			return first(fencedstore.Guard(ctx, s.tx, s.lease, fencedstore.WithKey("key")))
		},
		"fencedstore.GuardSQL": func(ctx context.Context) error {
			return first(fencedstore.GuardSQL(ctx, s.sqlTx, s.lease))
		},
		"fencedstore.GuardSQL of several": func(ctx context.Context) error {
			return first(fencedstore.GuardSQL(ctx, s.sqlTx, fences))
		},
		"fencedstore.GuardSQL of a key": func(ctx context.Context) error {
			return first(fencedstore.GuardSQL(ctx, s.sqlTx, s.lease, fencedstore.WithKey("key")))
		},
		"fencedstore.Guard for long": func(ctx context.Context) error {
			return first(fencedstore.Guard(ctx, s.tx, s.lease, fencedstore.WithTimeLimit(2*time.Hour)))
		},
		"Guarded.Seal":     func(ctx context.Context) error { return s.guarded.Seal(ctx) },
		"Guarded.Seal SQL": func(ctx context.Context) error { return s.guardedSQL.Seal(ctx) },
		"fencedstore.GuardTable": func(ctx context.Context) error {
			return fencedstore.GuardTable(ctx, s.pool, "none")
		},
		"fencedstore.UnguardTable": func(ctx context.Context) error {
			return fencedstore.UnguardTable(ctx, s.pool, "none")
		},
		"fencedstore.TableGuards": func(ctx context.Context) error {
			return first(fencedstore.TableGuards(ctx, s.pool))
		},
		"leader.Candidate.Run": func(ctx context.Context) error {
			return s.campaign(ctx, "taken", func(context.Context, *pglock.Lease) error { return nil })
		},
		"leader.Current": func(ctx context.Context) error { return first(leader.Current(ctx, s.client, "taken")) },
		"advisory.Acquire": func(ctx context.Context) error {
			return first(s.bridge.Acquire(ctx, "taken", advisory.Bigint(2)))
		},
		"advisory.Acquire both": func(ctx context.Context) error {
			return first(s.bridge.Acquire(ctx, "free bridge", advisory.Bigint(4)))
		},
		"advisory.TryAcquire": func(ctx context.Context) error {
			return first(s.bridge.TryAcquire(ctx, "taken", advisory.Bigint(2)))
		},
		"advisory.Do": func(ctx context.Context) error {
			return s.bridge.Do(ctx, "taken", advisory.Bigint(2), func(context.Context, *advisory.Held) error {
				return nil
			})
		},
		"advisory.Held.Write": func(ctx context.Context) error {
			return s.held.Under(fencedstore.Fence{SameToken: s.again}).Write(ctx, s.inPgx())
		},
		"advisory.Held.Guard":    func(ctx context.Context) error { return s.held.Guard(ctx, s.tx) },
		"advisory.Held.GuardSQL": func(ctx context.Context) error { return s.held.GuardSQL(ctx, s.sqlTx) },
		"fencedhttp.Transport":   s.request,
		"fencedhttp.Advance":     func(ctx context.Context) error { return first(s.tokens.Advance(ctx, "r", 33)) },
		"fencedhttp.Create":      func(ctx context.Context) error { return s.tokens.Create(ctx) },
		"fencedhttp.Verifier":    s.verified,
		"lockadmin.New":          func(ctx context.Context) error { return first(lockadmin.New(ctx, s.pool)) },
		"lockadmin.Diagnose":     func(ctx context.Context) error { return first(lockadmin.Diagnose(ctx, s.pool)) },
		"lockadmin.Places":       func(ctx context.Context) error { return first(lockadmin.Places(ctx, s.pool)) },
		"Admin.Diagnose":         func(ctx context.Context) error { return first(s.admin.Diagnose(ctx)) },
		"Admin.Ping":             func(ctx context.Context) error { return s.admin.Ping(ctx) },
		"Admin.Get":              func(ctx context.Context) error { return first(s.admin.Get(ctx, "none")) },
		"Admin.Holders":          func(ctx context.Context) error { return first(s.admin.Holders(ctx, "none")) },
		"Admin.Locks": func(ctx context.Context) error {
			return last(s.admin.Locks(ctx, lockadmin.LocksQuery{}))
		},
		"Admin.Waiters": func(ctx context.Context) error {
			return last(s.admin.Waiters(ctx, lockadmin.WaitersQuery{}))
		},
		"Admin.Fences": func(ctx context.Context) error { return last(s.admin.Fences(ctx, lockadmin.FencesQuery{})) },
		"Admin.Sessions": func(ctx context.Context) error {
			return last(s.admin.Sessions(ctx, lockadmin.SessionsQuery{}))
		},
		"Admin.History": func(ctx context.Context) error {
			return last(s.admin.History(ctx, lockadmin.HistoryQuery{}))
		},
		"Admin.Backends": func(ctx context.Context) error { return first(s.admin.Backends(ctx, "a")) },
		"Admin.Break": func(ctx context.Context) error {
			return first(s.admin.Break(ctx, "none", "a test", lockadmin.BreakOptions{}))
		},
		"Admin.BreakSession": func(ctx context.Context) error {
			return first(s.admin.BreakSession(ctx, "7f1c9c4e-0000-4000-8000-000000000000", "a test",
				lockadmin.BreakOptions{}))
		},
		"Admin.Prune": func(ctx context.Context) error {
			return first(s.admin.Prune(ctx, lockadmin.PruneOptions{}))
		},
		"Admin.Explain":         func(ctx context.Context) error { return first(s.admin.Explain(ctx, "protected")) },
		"Admin.Verify":          func(ctx context.Context) error { return first(s.admin.Verify(ctx, "protected")) },
		"Admin.Statistics":      func(ctx context.Context) error { return first(s.admin.Statistics(ctx, 1)) },
		"Admin.HistorySettings": func(ctx context.Context) error { return first(s.admin.HistorySettings(ctx)) },
		"Admin.SetHistory": func(ctx context.Context) error {
			return first(s.admin.SetHistory(ctx, lockadmin.HistoryChange{Keep: lockadmin.MinKeep}))
		},
		"Admin.RecentHistory": func(ctx context.Context) error {
			_, _, err := s.admin.RecentHistory(ctx, 0)
			return err
		},
		"migrations.Up": func(ctx context.Context) error {
			return migrations.Up(ctx, s.url, migrations.WithSchema("another"))
		},
		"migrations.Down": func(ctx context.Context) error {
			return migrations.Down(ctx, s.url, migrations.WithSchema("another"))
		},
		"migrations.Check": func(ctx context.Context) error {
			return migrations.Check(ctx, s.url, migrations.WithSchema("another"))
		},
		"migrations.Force": func(ctx context.Context) error {
			return migrations.Force(ctx, s.url, 0, migrations.WithSchema("another"))
		},
		"migrations.Version": func(ctx context.Context) error {
			_, _, err := migrations.Version(ctx, s.url, migrations.WithSchema("another"))
			return err
		},
	}
}

// campaign runs a new candidate.
func (s *entryPoints) campaign(ctx context.Context, name string, fn func(context.Context, *pglock.Lease) error) error {
	c, err := leader.New(s.client, name)
	if err != nil {
		return err
	}
	return c.Run(ctx, fn)
}

func (s *entryPoints) operation() reversible.Operation {
	return reversible.Operation{Apply: s.work, Restore: func(context.Context) error { return nil }}
}

// lose gives a lease that an operator has broken, and that knows it.
func (s *entryPoints) lose(t *testing.T, name string) *pglock.Lease {
	t.Helper()
	l := must.Get(s.client.TryAcquire(t.Context(), name))(t)
	must.Get(s.admin.Break(t.Context(), name, "a test", lockadmin.BreakOptions{}))(t)
	if _, err := l.Check(t.Context()); !errors.Is(err, pglock.ErrLost) {
		t.Fatal(err)
	}
	return l
}

// Whoever asks under the context of a lease that is lost learns that, and not only that a context has ended: from
// every exported function, in every package.
func TestCallUnderTheContextOfALostLeaseSaysThatItIsLost(t *testing.T) {
	t.Parallel()
	s := newEntryPoints(t)
	s.work = func(ctx context.Context) error { return ctx.Err() }
	outer := s.lose(t, "outer")
	for name, call := range s.entries() {
		t.Run(name, func(t *testing.T) {
			err := call(outer.Context())
			if err == nil {
				t.Fatal("it did not fail")
			}
			if !errors.Is(err, pglock.ErrLost) || !errors.Is(err, context.Canceled) {
				t.Errorf("%v: ErrLost is %v and context.Canceled is %v, want both", err,
					errors.Is(err, pglock.ErrLost), errors.Is(err, context.Canceled))
			}
			var lost *pglock.LostError
			if errors.As(err, &lost) && (lost.Lock != "outer" || lost.Reason != pglock.ReasonBroken) {
				t.Errorf("%+v, want the loss of the outer lease", lost)
			}
			if wrong := pgtest.PrefixedOnce(err); wrong != nil {
				t.Error(wrong)
			}
		})
	}
}

// A context that ends while the call waits says as much as one that has ended before.
func TestCallThatWaitsWhenALeaseIsLostSaysThatItIsLost(t *testing.T) {
	t.Parallel()
	s := newEntryPoints(t)
	s.again = true
	s.work = func(ctx context.Context) error { // of a function that waits for nothing but its context
		<-ctx.Done()
		return ctx.Err()
	}
	waits := map[string]func(ctx context.Context) error{
		"Lease of another client": func(ctx context.Context) error {
			_, err := s.client.Acquire(ctx, "other")
			return err
		},
		"gate": s.waitAtTheGate,
		"Client.Do in its function": func(ctx context.Context) error {
			return s.client.Do(ctx, "done", func(ctx context.Context, _ *pglock.Lease) error { return s.work(ctx) })
		},
		"advisory.Do in its function": func(ctx context.Context) error {
			return s.bridge.Do(ctx, "done too", advisory.Bigint(3), func(ctx context.Context, _ *advisory.Held) error {
				return s.work(ctx)
			})
		},
		"leader.Run in its function": func(ctx context.Context) error {
			return s.campaign(ctx, "led", func(ctx context.Context, _ *pglock.Lease) error { return s.work(ctx) })
		},
		"leader.Run, whose function does not say why": func(ctx context.Context) error {
			return s.campaign(ctx, "led too", func(ctx context.Context, _ *pglock.Lease) error {
				_ = s.work(ctx)
				return nil
			})
		},
		"Store.Write, whose function does not say why": func(ctx context.Context) error {
			return s.store.Write(ctx, s.other, func(ctx context.Context, _ pgx.Tx) error {
				_ = s.work(ctx)
				return nil
			})
		},
	}
	entries := s.entries()
	for _, name := range []string{"Client.Acquire", "Client.Acquire apart", "Client.Acquire shared",
		"Client.AcquireAll",
		"Client.Do", "Store.Write", "Store.Once", "reversible.Run", "SQLStore.Write", "SQLStore.Once",
		"leader.Candidate.Run", "advisory.Acquire", "advisory.Acquire both", "advisory.Do", "advisory.Held.Write"} {
		waits[name] = entries[name]
	}
	for name, call := range waits {
		t.Run(name, func(t *testing.T) {
			ctx, lose := context.WithCancelCause(t.Context())
			defer time.AfterFunc(20*time.Millisecond, func() {
				lose(&pglock.LostError{Lock: "outer", Token: 33, Reason: pglock.ReasonBroken})
			}).Stop() // the call may not have begun by then, or may long wait: both must say the same
			err := call(ctx)
			if !errors.Is(err, pglock.ErrLost) || !errors.Is(err, context.Canceled) {
				t.Errorf("%v: ErrLost is %v and context.Canceled is %v, want both", err,
					errors.Is(err, pglock.ErrLost), errors.Is(err, context.Canceled))
			}
		})
	}
}

// waitAtTheGate sends a request to a Verifier that makes it wait for the handler of a lower token.
func (s *entryPoints) waitAtTheGate(ctx context.Context) error {
	reported := make(chan error, 1)
	v := fencedhttp.Verifier{Store: &fencedhttp.MemoryStore{}, Serialize: true,
		Resource: func(*http.Request) (string, error) { return "r", nil },
		OnError:  func(_ *http.Request, err error) { reported <- err }}
	inside, leave, left := make(chan struct{}), make(chan struct{}), make(chan struct{})
	handler := v.Middleware(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { close(inside); <-leave }))
	send := func(ctx context.Context, token string) {
		r := httptest.NewRequestWithContext(ctx, http.MethodPut, "/", nil)
		r.Header.Set(fencedhttp.Header, token)
		handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	go func() { defer close(left); send(context.WithoutCancel(ctx), "33") }()
	<-inside
	send(ctx, "34")
	close(leave)
	<-left
	return <-reported
}

// A lost lease is no timeout of its caller's and no end of its caller's context, whatever kept the heartbeat from
// renewing it.
func TestLossIsNotTakenForTheEndOfTheCallersContext(t *testing.T) {
	t.Parallel()
	late := fmt.Errorf("renew: %w", context.DeadlineExceeded)
	for _, why := range []error{context.DeadlineExceeded, context.Canceled, late} {
		for _, lost := range []error{
			&pglock.LostError{Lock: "a", Token: 33, Reason: pglock.ReasonExpired, Err: why},
			&advisory.LostError{Lock: "a", Key: advisory.Bigint(1), Err: why},
		} {
			isEnd := errors.Is(lost, context.DeadlineExceeded) || errors.Is(lost, context.Canceled)
			if isEnd || !errors.Is(lost, pglock.ErrLost) {
				t.Errorf("%v is more than an ErrLost", lost)
			}
			if !strings.Contains(lost.Error(), why.Error()) {
				t.Errorf("%q does not say %q", lost, why)
			}
		}
	}
}

// However a call fails, the text of its error begins with the name of one package, names no other, and says once what
// was asked for.
func TestErrorOfAnExportedFunctionNamesItsPackageOnce(t *testing.T) {
	t.Parallel()
	nothing := func(context.Context) error { return nil }
	for name, c := range map[string]func(t *testing.T, s *entryPoints){
		"the pools are closed": func(_ *testing.T, s *entryPoints) {
			_ = s.tx.Rollback(context.Background())
			s.pool.Close()
			_ = s.db.Close()
		},
		"the client is closed": func(t *testing.T, s *entryPoints) { must.Do(t, s.client.Close(t.Context())) },
		"the leases are released": func(t *testing.T, s *entryPoints) {
			must.Do(t, s.lease.Release(t.Context()))
			must.Do(t, s.other.Release(t.Context()))
			must.Do(t, s.held.Release(t.Context()))
		},
		"the leases are broken": func(t *testing.T, s *entryPoints) {
			for _, name := range []string{"protected", "other", "bridged"} {
				must.Get(s.admin.Break(t.Context(), name, "a test", lockadmin.BreakOptions{}))(t)
			}
		},
		"the schema is gone": func(t *testing.T, s *entryPoints) {
			for _, sql := range []string{"DROP SCHEMA pglock CASCADE", "DROP TABLE fencing_tokens"} {
				must.Get(s.db.ExecContext(t.Context(), sql))(t)
			}
		},
		"the server is read-only": func(t *testing.T, s *entryPoints) {
			config := s.pool.Config()
			config.ConnConfig.RuntimeParams["default_transaction_read_only"] = "on"
			pool := must.Get(pgxpool.NewWithConfig(t.Context(), config))(t)
			t.Cleanup(pool.Close)
			s.pool, s.store = pool, fencedstore.New(pool)
		},
		"a token is stale": func(t *testing.T, s *entryPoints) {
			must.Do(t, s.store.Write(t.Context(), fencedstore.Fences{{Lease: s.lease}, {Lease: s.other}}, s.inPgx()))
		},
	} {
		if !pgtest.Among(name, "the pools are closed", "the leases are released") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newEntryPoints(t)
			s.work = nothing
			c(t, s)
			var failed atomic.Int32
			calls := pgtest.Group(t)
			var transaction sync.Mutex // one call at a time uses a transaction, or the session of an advisory lock
			for name, call := range s.entries() {
				calls.Go(func() {
					if strings.HasPrefix(name, "fencedstore.Guard") || strings.HasPrefix(name, "Guarded.Seal") ||
						strings.HasPrefix(name, "advisory.Held") {
						transaction.Lock()
						defer transaction.Unlock()
					}
					ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond) // for those that would wait
					defer cancel()
					err := call(ctx)
					if err == nil {
						return
					}
					failed.Add(1)
					if name == "fencedhttp.Transport" && errors.Is(err, context.DeadlineExceeded) {
						return // what Base says stays as it is
					}
					if wrong := pgtest.PrefixedOnce(err); wrong != nil {
						t.Errorf("%s: %v", name, wrong)
					}
				})
			}
			calls.Wait()
			if n := failed.Load(); n < 10 {
				t.Errorf("only %d calls failed", n)
			}
		})
	}
}
