package pglock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Token is a fencing token: every grant of a lock has a greater one than every earlier grant of that lock. Renewals keep
// it; it is never used again.
type Token int64

// SchemaVersion is the version of the database schema that this library needs.
const SchemaVersion = 1

// closeGrace bounds what a client says to the server when its caller has no time to wait: a release, or giving back a
// grant whose caller went away. Never longer than the lease, which ends by itself.
const closeGrace = 5 * time.Second

// Client is one session: it holds any number of leases and keeps them alive with one heartbeat. It is safe for
// concurrent use. Make one for each process and database.
type Client struct {
	config     config
	key        uuid.UUID // proves that the session is ours
	session    uuid.UUID
	databaseID uuid.UUID
	pg         *pgStore // for what needs no lease; the loops speak to store
	store      store
	now        clock

	ctx    context.Context // ends when the client is closed
	cancel context.CancelCauseFunc
	tasks  sync.WaitGroup // every goroutine of the client, but the heartbeat's
	beats  sync.WaitGroup // the heartbeat's, which has a connection that Close needs after it
	calls  sync.WaitGroup // calls that may leave something to be told to the server
	ended  chan struct{}  // closed when Close has ended the leases

	// othersWait says that the last release handed its lock to another client: the next release then announces that in
	// the same round trip, on suspicion.
	othersWait atomic.Bool

	beatWake     chan struct{} // 1-buffered: something came that is due before the planned beat
	deadlineWake chan struct{} // 1-buffered: a lease came that ends before the planned look at the deadlines
	earWake      chan struct{} // 1-buffered: what the listener is to listen for has changed

	mu     sync.Mutex // guards what follows; never held across I/O; taken before a lease's
	leases map[*Lease]struct{}
	closed bool
	// When, on the monotonic clock, the heartbeat and the watch of the deadlines wake by themselves. A plan stands until it
	// has passed, also when the lease has gone for which it was made: leases that come and go wake nobody.
	plannedBeat     time.Duration
	plannedDeadline time.Duration
	queue           queue
	givingUp        givingUp
	lines           map[lineKey]*line
	watchers        map[string]map[*watcher]struct{} // by channel
	listening       bool                             // the listener's goroutine was started
}

// New makes a client over the application's pool, which stays the caller's. It asks the server once whether the schema
// is there and fits. ctx bounds that question alone. The client owns two goroutines and, while it holds leases for
// longer than a third of their TTL or waits, one connection outside the pool; from its first wait or watch on a third
// goroutine, and while anything waits or watches, one connection that listens. Lines of calls that wait for the same lock and
// statements that are under way have goroutines while they last. Close ends them all.
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
	store := newPgStore(pool, newQueries(config.schema), config.listen)
	databaseID, isolation, err := start(ctx, store, config.schema)
	if err != nil {
		return nil, err
	}
	store.explicit.Store(isolation != "read committed")
	c, err := newClient(config, store, systemClock())
	if err != nil {
		return nil, err
	}
	c.pg, c.databaseID = store, databaseID
	return c, nil
}

func newClient(config config, s store, now clock) (*Client, error) {
	key, err := newGrantID()
	if err != nil {
		return nil, err
	}
	c := &Client{
		config: config, key: key, session: sessionOf(key), store: s, now: now,
		beatWake: make(chan struct{}, 1), deadlineWake: make(chan struct{}, 1), earWake: make(chan struct{}, 1),
		ended:  make(chan struct{}),
		leases: make(map[*Lease]struct{}), plannedBeat: never, plannedDeadline: never,
		queue: newQueue(config.sessionTTL), givingUp: givingUp{most: giveUpMost}, lines: make(map[lineKey]*line), watchers: make(map[string]map[*watcher]struct{}),
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background()) //nolint:forbidigo // the client's own life, ended by Close
	s.orphans(c.orphaned)
	c.beats.Go(c.heartbeat)
	c.tasks.Go(c.watchDeadlines)
	return c, nil
}

// sessionOf is what others see of a session: a digest of its key, as the server reckons it.
func sessionOf(key uuid.UUID) (session uuid.UUID) {
	sum := sha256.Sum256(key[:])
	copy(session[:], sum[:])
	return session
}

// start asks whether the schema fits this library.
func start(ctx context.Context, store *pgStore, schema string) (databaseID uuid.UUID, isolation string, err error) {
	var version int
	var id string
	var readOnly, sequenceOK bool
	err = store.pooled(ctx, store.queries.start, nil, func(rows pgx.Rows) error {
		return rows.Scan(&version, &id, &isolation, &readOnly, &sequenceOK)
	})
	switch state := sqlState(err); {
	case state == "3F000" || state == "42883": // no such schema, no such function
		return uuid.Nil, "", &SchemaError{Schema: schema, Have: 0, Need: SchemaVersion}
	case err != nil:
		return uuid.Nil, "", fmt.Errorf("pglock: start client: %w", ErrorFromSQL(err, "", 0))
	case version != SchemaVersion:
		return uuid.Nil, "", &SchemaError{Schema: schema, Have: version, Need: SchemaVersion}
	case readOnly:
		return uuid.Nil, "", fmt.Errorf("%w: connect to the primary (target_session_attrs=read-write)", ErrReadOnly)
	case !sequenceOK:
		return uuid.Nil, "", fmt.Errorf("%w: sequence fencing_token_seq was altered and may hand tokens out of order: "+
			"ALTER SEQUENCE %s INCREMENT 1 CACHE 1 NO CYCLE", ErrSchema, pgx.Identifier{schema, "fencing_token_seq"}.Sanitize())
	}
	databaseID, err = uuid.Parse(id)
	return databaseID, isolation, err
}

// Close releases every lease, ends waiting calls with ErrClosed, and returns when every goroutine of the client has
// ended. It does so also when ctx has ended, as after a signal, and when every connection of the pool is taken: what it says
// to the server goes over a connection of the client's own, and is bounded by five seconds. The error says what could not be
// said: leases then run out by themselves, and places in queues end with the session. A second Close does nothing.
func (c *Client) Close(ctx context.Context) error {
	c.mu.Lock()
	already := c.closed
	c.closed = true
	leases := slices.Collect(maps.Keys(c.leases))
	ups := append(c.queue.leaveQueues(), c.givingUp.ups...)
	c.givingUp.ups = nil
	c.mu.Unlock()
	if already {
		c.tasks.Wait()
		return nil
	}
	c.cancel(ErrClosed)
	var claims []claim
	for _, l := range leases {
		if l.end(ErrReleased) {
			claims = append(claims, l.claim())
		}
	}
	close(c.ended)
	c.beats.Wait()
	returned := make(chan struct{})
	go func() { c.calls.Wait(); close(returned) }()
	err := c.farewell(ctx, claims, ups, returned)
	c.store.close()
	<-returned
	c.tasks.Wait()
	return err
}

// farewell tells the server what ends with the client: the waits first, so that no lease is handed to one of them; and last
// what calls and requests have brought that were under way.
func (c *Client) farewell(ctx context.Context, claims []claim, ups []*giveUp, returned chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	failures := []error{c.takeBackLast(ctx, ups), c.releaseLast(ctx, claims)}
	select {
	case <-returned:
	case <-ctx.Done():
	}
	c.store.landed(ctx)
	c.mu.Lock()
	late := c.givingUp.ups
	c.mu.Unlock()
	failures = append(failures, c.takeBackLast(ctx, late))
	if c.waited() {
		_ = c.store.endSession(ctx, c.who()) // it ends by itself where this fails
	}
	return errors.Join(failures...)
}

// waited reports whether the server knows the session: it has queued.
func (c *Client) waited() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.listening
}

// releaseLast releases leases that end with the client.
func (c *Client) releaseLast(ctx context.Context, claims []claim) error {
	var failure error
	left := 0
	for batch := range slices.Chunk(claims, giveUpMost) {
		var failed int
		err := lastly(ctx, func(ctx context.Context) (err error) {
			failed, err = c.releaseBatch(ctx, batch)
			return err
		})
		left, failure = left+failed, cmp.Or(failure, err)
	}
	if failure != nil {
		return fmt.Errorf("pglock: close: %d leases end with their TTL: %w", left, failure)
	}
	return nil
}

// releaseBatch releases leases; those that would have to wait for longer than a moment, in halves. It tells how many it
// could not release.
func (c *Client) releaseBatch(ctx context.Context, claims []claim) (failed int, err error) {
	sent := c.now()
	endings, err := c.store.releaseAll(ctx, claims)
	if err != nil {
		if len(claims) == 1 || connectionLost(err) || ctx.Err() != nil {
			return len(claims), err
		}
		first, err1 := c.releaseBatch(ctx, claims[:len(claims)/2])
		second, err2 := c.releaseBatch(ctx, claims[len(claims)/2:])
		return first + second, cmp.Or(err1, err2)
	}
	byName := make(map[string]handed)
	for i, e := range endings {
		for _, text := range e.handed.hints {
			c.heard(text, &sent)
		}
		if len(e.handed.slots) > 0 || e.handed.watched {
			h := byName[claims[i].name]
			h.slots, h.watched = append(h.slots, e.handed.slots...), true
			byName[claims[i].name] = h
		}
	}
	announce(ctx, byName, c.store.announceBeating)
	return 0, nil
}

// adopt takes a new lease into the care of the heartbeat, or says that the client was closed meanwhile.
func (c *Client) adopt(l *Lease) error {
	now := c.now().mono
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ErrClosed
	}
	c.leases[l] = struct{}{}
	if l.line != nil {
		l.line.holder = l
	}
	look := min(l.deadline.mono, now+wallClockLook)
	beatSooner, deadlineSooner := l.due.mono < c.plannedBeat, look < c.plannedDeadline
	if beatSooner {
		c.plannedBeat = l.due.mono
	}
	if deadlineSooner {
		c.plannedDeadline = look
	}
	c.mu.Unlock()
	if beatSooner {
		signal(c.beatWake)
	}
	if deadlineSooner {
		signal(c.deadlineWake)
	}
	return nil
}

func (c *Client) forget(l *Lease) {
	c.mu.Lock()
	delete(c.leases, l)
	if ln := l.line; ln != nil && ln.holder == l {
		ln.holder = nil
		c.tidy(ln)
	}
	c.mu.Unlock()
}

// begin counts a call that asks for a lock or ends a lease: Close waits until it has ended, or has left to others what is to
// be told. False says that the client is closed.
func (c *Client) begin() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.calls.Add(1)
	return true
}

// background runs f as a goroutine of the client, which Close joins, unless the client is closed already.
func (c *Client) background(f func()) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return false
	}
	c.tasks.Go(f)
	return true
}

func (c *Client) who() who { return who{c.key, c.config.holder, c.config.sessionTTL} }

func (c *Client) isClosed() bool { return errors.Is(context.Cause(c.ctx), ErrClosed) }

func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
