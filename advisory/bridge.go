package advisory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// Bridge takes locks of a client together with the advisory locks that old programs take. It is safe for concurrent
// use. It has no goroutine and no connection: each Held has its own.
type Bridge struct {
	client *pglock.Client
	config Config
}

// Config says how the sessions of advisory locks connect. Its zero value connects as the client's pool does.
type Config struct {
	// ConnConfig is for a client whose pool goes through a pooler: it leads to the primary itself, to the same
	// database, as a user who may use pglock there. pgx.ParseConfig makes one.
	ConnConfig *pgx.ConnConfig
	// SessionPooler allows a pooler between the program and the server; without it a bridge returns ErrPooler. The
	// pooler must give each connection a session of the server that nobody else uses until the connection ends, and
	// then clear the session, as PgBouncer does with pool_mode=session. Nothing checks that.
	SessionPooler bool
}

// New makes a bridge over a client, which stays the caller's. It sends nothing.
//
// Errors: pglock.ErrInvalid.
func New(client *pglock.Client, c Config) (*Bridge, error) {
	if client == nil {
		return nil, refuse.Nil("client", "be a *pglock.Client")
	}
	if c.ConnConfig != nil {
		if !argument.Parsed(c.ConnConfig) {
			return nil, refuse.Invalid("conn config", "made by hand", "be made by pgx.ParseConfig")
		}
		c.ConnConfig = c.ConnConfig.Copy()
	}
	return &Bridge{client: client, config: c}, nil
}

// Acquire takes the lock, and then the advisory lock, and waits for each of them. ctx limits the wait for both
// together, and so does pglock.WithMaxWait. The heartbeat renews the lease while the call waits for the advisory lock.
// An exclusive lock takes the advisory lock as pg_advisory_lock does; with pglock.WithShared it takes it as
// pg_advisory_lock_shared does. A limit (pglock.WithLimit) is an ErrInvalid.
//
// Errors: those of Client.Acquire, of which ErrReadOnly may say that the session is on a standby; ErrHeld (HeldError)
// together with ctx's error if the time was up before the advisory lock was free; ErrLost or ErrReleased if the lease
// ended meanwhile; ErrPooler; pglock.ErrWrongDatabase if the session is in another database than the lease; or the
// failure to connect. After an error neither lock is held; if ctx has ended and nobody answers at once, the client goes
// on giving the lease back in the background.
func (b *Bridge) Acquire(ctx context.Context, name string, key Key, opts ...pglock.AcquireOption) (*Held, error) {
	return b.acquire(ctx, name, key, opts, true)
}

// TryAcquire is Acquire without waiting: both locks are free, or the error matches pglock.ErrHeld.
func (b *Bridge) TryAcquire(ctx context.Context, name string, key Key, opts ...pglock.AcquireOption) (*Held, error) {
	return b.acquire(ctx, name, key, opts, false)
}

// Do runs fn while both locks are held, and releases them when fn returns, panics or calls runtime.Goexit. fn's
// context ends when ctx ends or one of the locks is lost. The error is fn's, joined with ErrLost when a lock was lost
// before fn returned, or with ErrClosed if Client.Close has released both: then fn may have worked unprotected. Errors
// of taking the locks are those of Acquire, and fn did not run.
func (b *Bridge) Do(ctx context.Context, name string, key Key, fn func(context.Context, *Held) error,
	opts ...pglock.AcquireOption,
) (err error) {
	if fn == nil {
		return refuse.Nil("fn", "be a function")
	}
	held, err := b.acquire(ctx, name, key, opts, true)
	if err != nil {
		return err
	}
	working, cancel := context.WithCancelCause(held.Context())
	defer cancel(nil)
	defer context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })()
	defer func() {
		early := held.Err() // fn has returned: what ends now ends after its work
		switch lost := held.Release(ctx); {
		case errors.Is(lost, pglock.ErrLost):
			err = errors.Join(err, lost)
		case early != nil && hooks.Of(held.lease).ByClose() && !errors.Is(err, pglock.ErrClosed):
			err = errors.Join(err, pglock.ErrClosed)
		}
		err = failure.OfContext(ctx, err)
	}()
	return fn(working, held)
}

func (b *Bridge) acquire(
	ctx context.Context, name string, key Key, opts []pglock.AcquireOption, wait bool,
) (*Held, error) {
	want, err := b.client.ForSiblings(hooks.Key{}).Want(name, opts)
	if err != nil {
		return nil, err
	}
	if err := cmp.Or(key.check(), refuse.If(!want.Exclusive && !want.Shared, "mode", "a limit",
		"be exclusive or shared: an advisory lock has no limit")); err != nil {
		return nil, err
	}
	take, waiting := b.client.TryAcquire, ctx
	if wait = wait && want.MaxWait != 0; wait {
		take = b.client.Acquire
		if want.MaxWait > 0 { // for both; the client keeps it by itself, and names it
			var cancel context.CancelFunc
			waiting, cancel = b.client.ForSiblings(hooks.Key{}).WaitAtMost(ctx, want.MaxWait)
			defer cancel()
		}
	}
	lease, err := take(ctx, name, opts...)
	if err != nil {
		return nil, err
	}
	s, err := b.session(waiting, lease, key, want.Shared, wait)
	if err != nil {
		giving, cancel := pause.Afterwards(ctx, goodbye)
		defer cancel()
		also := lease.Release(giving)
		if also != nil && ctx.Err() == nil && !failure.IsOneOf(also, pglock.ErrLost, pglock.ErrReleased) {
			err = errors.Join(err, also)
		} // else the client gives the lease back in the background
		return nil, failure.At(waiting, err, "advisory: acquire lock %q", name)
	}
	return hold(lease, s), nil
}

func (b *Bridge) session(ctx context.Context, lease *pglock.Lease, key Key, shared, wait bool) (*session, error) {
	taking, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	defer context.AfterFunc(lease.Context(), func() { cancel(lease.Err()) })()
	conn, err := b.client.ForSiblings(hooks.Key{}).Connect(taking, b.config.ConnConfig)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", causeOf(taking, ctx, err))
	}
	s := &session{conn: conn, name: lease.Name(), key: key, shared: shared, idle: outlives(lease)}
	if err = s.open(taking, b.config.SessionPooler, hooks.Of(lease).Home()); err == nil {
		if wait {
			err = s.lock(taking)
		} else {
			err = s.tryOnce(taking)
		}
	}
	if err == nil {
		return s, nil
	}
	closing, end := pause.Afterwards(ctx, goodbye)
	defer end()
	_ = conn.Close(closing)
	return nil, causeOf(taking, ctx, err)
}

// causeOf is the loss of the lease, when that is why ctx has ended before the caller's did.
func causeOf(ctx, callers context.Context, err error) error {
	if ctx.Err() != nil && callers.Err() == nil {
		return context.Cause(ctx)
	}
	return err
}

func (s *session) tryOnce(ctx context.Context) error {
	locked, err := s.try(ctx)
	if err != nil || locked {
		return err
	}
	held := &HeldError{Lock: s.name, Key: s.key}
	if held.PID, err = s.holder(ctx); err != nil {
		return fmt.Errorf("%w: %w", held, err)
	}
	return held
}

// outlives is how long the server lets the session be idle. That is longer than the lease can last after the last ping,
// so nobody else has the advisory lock while a holder that no longer answers may believe in its lease. The heartbeat
// renews a lease, extended or not, before two thirds of its time are over.
func outlives(lease *pglock.Lease) time.Duration {
	ttl := lease.TTL()
	lasts := max(ttl, time.Until(lease.Deadline()))
	return lasts + lasts/2 + every(ttl)
}

// every is how long the session is quiet between two pings, and answer how long one may take.
func every(ttl time.Duration) time.Duration  { return min(ttl/4, 5*time.Second) }
func answer(ttl time.Duration) time.Duration { return min(ttl/2, 10*time.Second) }
