package pglock

import (
	"context"
	"crypto/sha256"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/listener"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/queue"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/internal/takeback"
	"github.com/pglock-dev/pglock/internal/trust"
)

// Token is a fencing token. Every grant of a lock has a greater token than every earlier grant of that lock.
// Renewals keep it; it is never used again.
type Token int64

// SchemaVersion is the version of the database schema that this library needs. A newer one works too, as long as it
// serves libraries of this version: so the schema is migrated first, and programs follow.
const SchemaVersion = 1

// parting bounds how long a client talks to the server at the end of a lease or of itself, if ctx has no
// deadline or has already ended.
const parting = 5 * time.Second

// Client is one session: it holds any number of leases and keeps them alive with one heartbeat. It is safe for
// concurrent use. Make one for each process and database.
type Client struct {
	config     config
	key        uuid.UUID // proves that the session is ours
	session    uuid.UUID
	databaseID uuid.UUID
	backend    backend
	pool       *pgxpool.Pool // of Open, ended by Close; nil: the pool is the application's
	now        trust.Clock

	ctx    context.Context // ends when the client is closed
	cancel context.CancelCauseFunc
	beats  sync.WaitGroup // the heartbeat
	ended  chan struct{}  // closed when Close has ended the leases
	gone   chan struct{}  // closed when Close has ended everything

	observing *observing // nil: nobody observes

	// othersWait says that the last release handed its lock to another client. The next release then expects
	// the same, and sends the announcement in the same round trip.
	othersWait atomic.Bool

	// mayBeKnown says that the server may know the session: a request that waits or is for a subtree, a look or a mark
	// makes it known.
	mayBeKnown atomic.Bool

	// worked says that the client has been granted a lease, or its heartbeat has done something, since the last sweep.
	worked atomic.Bool

	flights    sync.WaitGroup  // the heartbeat's statements under way; begun by the heartbeat only
	flying     context.Context // theirs, which Close ends
	endFlights context.CancelFunc

	beatWake     chan struct{} // 1-buffered: something is due before the planned beat
	deadlineWake chan struct{} // 1-buffered: a lease ends before the planned look at the deadlines

	// Each of these has its own mutex; none is held across I/O. Nested mutexes are taken in this order: leases, a
	// Lease or the queue, an owner. Nothing is called under the others. That of observing is the last of all.
	leases    *leases
	calls     calls
	queue     *queue.Queue
	takebacks *takeback.List
	watchers  watchers
	listener  *listener.Listener
}

// New makes a client over the application's pool, which stays the caller's. It asks the server once whether the
// schema exists and fits; ctx bounds only that question. The package's documentation lists the goroutines and
// connections that the client owns; Close ends them all.
//
// Errors: ErrInvalid, ErrSchema, ErrPermission, ErrReadOnly, or the failure to connect, which names the host.
func New(ctx context.Context, pool *pgxpool.Pool, opts ...Option) (*Client, error) {
	if pool == nil {
		return nil, &ArgumentError{"pool", "nil", "be a *pgxpool.Pool"}
	}
	config, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	pg := database{server.New(pool, config.schema, config.listen, ErrClosed)}
	databaseID, err := pg.start(server.Valueless{Context: ctx}, config.schema)
	if err != nil {
		return nil, failure.At(ctx, err, "pglock: start client")
	}
	c, err := newClient(config, pg, trust.SystemClock())
	if err != nil {
		return nil, failure.At(ctx, err, "pglock: start client")
	}
	c.databaseID = databaseID
	return c, nil
}

func newClient(config config, b backend, now trust.Clock) (*Client, error) {
	key, err := newGrantID()
	if err != nil {
		return nil, err
	}
	c := &Client{
		config: config, key: key, session: sessionOf(key), backend: b, now: now, ended: make(chan struct{}),
		gone:     make(chan struct{}),
		beatWake: make(chan struct{}, 1), deadlineWake: make(chan struct{}, 1),
		leases: newLeases(), queue: queue.New(config.sessionTTL), takebacks: takeback.New(),
	}
	//nolint:forbidigo // the client's own life, ended by Close
	c.ctx, c.cancel = context.WithCancelCause(context.Background())
	c.flying, c.endFlights = context.WithCancel(context.WithoutCancel(c.ctx))
	c.observing = observe(config.observers, c.ctx)
	c.listener = listener.New(listener.Config{Life: c.ctx, Own: c.channel(), Connect: b.Listen, Notify: b.Notify,
		Hint: func(text string) {
			c.queue.Hear(text, nil)
		}, Changed: c.watchers.changed, Hears: c.hears, Deaf: c.polls, Back: c.listens})
	b.OnAbandoned(c.abandoned, c.endedLate, c.handedLate)
	b.OnTrouble(server.Trouble{Unnamed: c.unnamed, Lost: c.goesElsewhere, Reconnected: c.beatsAgain})
	c.beats.Go(c.heartbeat)
	c.calls.tasks.Go(c.watchDeadlines)
	return c, nil
}

// sessionOf is the public ID of a session: a digest of its key, as the server computes it.
func sessionOf(key uuid.UUID) (session uuid.UUID) {
	sum := sha256.Sum256(key[:])
	copy(session[:], sum[:])
	return session
}

func (c *Client) who() protocol.Session {
	return protocol.Session{Key: c.key, Holder: c.config.holder, TTL: c.config.sessionTTL}
}

func (c *Client) isClosed() bool { return errors.Is(context.Cause(c.ctx), ErrClosed) }

// hasClosed reports whether an error of the backend says that this client is closed: a hook of the pool may use
// another.
func (c *Client) hasClosed(err error) bool { return errors.Is(err, ErrClosed) && c.isClosed() }

// channel is where the server notifies this client of its grants, as the SQL function announce names it.
func (c *Client) channel() string {
	return "pglock_" + strings.ReplaceAll(c.session.String(), "-", "")
}

// hears notes whether the client can rely on hints.
func (c *Client) hears(hears bool) {
	if c.queue.SetHears(hears, c.now()) {
		c.watchers.allChanged()
		signal(c.beatWake)
	}
}

func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
