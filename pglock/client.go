package pglock

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/internal/listener"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/internal/trust"
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
	pg         database // for what needs no lease; the loops speak to backend
	backend    backend
	now        trust.Clock
	listener   *listener.Listener

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
	pg := database{server.New(pool, config.schema, config.listen, ErrClosed)}
	databaseID, err := pg.start(ctx, config.schema)
	if err != nil {
		return nil, err
	}
	c, err := newClient(config, pg, trust.SystemClock())
	if err != nil {
		return nil, err
	}
	c.pg, c.databaseID = pg, databaseID
	return c, nil
}

func newClient(config config, b backend, now trust.Clock) (*Client, error) {
	key, err := newGrantID()
	if err != nil {
		return nil, err
	}
	c := &Client{
		config: config, key: key, session: sessionOf(key), backend: b, now: now,
		beatWake: make(chan struct{}, 1), deadlineWake: make(chan struct{}, 1),
		ended:  make(chan struct{}),
		leases: make(map[*Lease]struct{}), plannedBeat: never, plannedDeadline: never,
		queue: newQueue(config.sessionTTL), givingUp: givingUp{most: giveUpMost}, lines: make(map[lineKey]*line), watchers: make(map[string]map[*watcher]struct{}),
	}
	c.ctx, c.cancel = context.WithCancelCause(context.Background()) //nolint:forbidigo // the client's own life, ended by Close
	c.listener = listener.New(listener.Config{Life: c.ctx, Own: c.channel(), Connect: b.Listen, Notify: b.Notify,
		Hint: func(text string) { c.heard(text, nil) }, Changed: c.changed, Hears: c.setHears})
	b.OnAbandoned(c.orphaned)
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
		c.listener.Wait()
		return nil
	}
	c.cancel(ErrClosed)
	var claims []protocol.Claim
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
	c.backend.Close()
	<-returned
	c.tasks.Wait()
	c.listener.Wait()
	return err
}

// farewell tells the server what ends with the client: the waits first, so that no lease is handed to one of them; and last
// what calls and requests have brought that were under way.
func (c *Client) farewell(ctx context.Context, claims []protocol.Claim, ups []*giveUp, returned chan struct{}) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeGrace)
	defer cancel()
	failures := []error{c.takeBackLast(ctx, ups), c.releaseLast(ctx, claims)}
	select {
	case <-returned:
	case <-ctx.Done():
	}
	c.backend.Drain(ctx)
	c.mu.Lock()
	late := c.givingUp.ups
	c.mu.Unlock()
	failures = append(failures, c.takeBackLast(ctx, late))
	if c.listener.Started() { // the server knows the session
		_ = c.backend.EndSession(ctx, c.who()) // it ends by itself where this fails
	}
	return errors.Join(failures...)
}

// releaseLast releases leases that end with the client.
func (c *Client) releaseLast(ctx context.Context, claims []protocol.Claim) error {
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
func (c *Client) releaseBatch(ctx context.Context, claims []protocol.Claim) (failed int, err error) {
	sent := c.now()
	endings, err := c.backend.ReleaseAll(ctx, claims)
	if err != nil {
		if len(claims) == 1 || protocol.ConnectionLost(err) || ctx.Err() != nil {
			return len(claims), err
		}
		first, err1 := c.releaseBatch(ctx, claims[:len(claims)/2])
		second, err2 := c.releaseBatch(ctx, claims[len(claims)/2:])
		return first + second, cmp.Or(err1, err2)
	}
	byName := make(map[string]protocol.Handed)
	for i, e := range endings {
		for _, text := range e.Handed.Hints {
			c.heard(text, &sent)
		}
		if len(e.Handed.Slots) > 0 || e.Handed.Watched {
			h := byName[claims[i].Name]
			h.Slots, h.Watched = append(h.Slots, e.Handed.Slots...), true
			byName[claims[i].Name] = h
		}
	}
	announce(ctx, byName, c.backend.AnnounceOwn)
	return 0, nil
}

// adopt takes a new lease into the care of the heartbeat, or says that the client was closed meanwhile.
func (c *Client) adopt(l *Lease) error {
	now := c.now().Mono
	c.mu.Lock()
	if c.closed {
		c.mu.Unlock()
		return ErrClosed
	}
	c.leases[l] = struct{}{}
	if l.line != nil {
		l.line.holder = l
	}
	look := min(l.deadline.Mono, now+wallClockLook)
	beatSooner, deadlineSooner := l.due.Mono < c.plannedBeat, look < c.plannedDeadline
	if beatSooner {
		c.plannedBeat = l.due.Mono
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

func (c *Client) who() protocol.Session {
	return protocol.Session{Key: c.key, Holder: c.config.holder, TTL: c.config.sessionTTL}
}

func (c *Client) isClosed() bool { return errors.Is(context.Cause(c.ctx), ErrClosed) }

// channel is where the server tells this client of its grants; the SQL function announce names it.
func (c *Client) channel() string {
	return "pglock_" + strings.ReplaceAll(c.session.String(), "-", "")
}

// setHears notes whether hints can be counted on. At either change the tables are looked at: what was told before is
// found there.
func (c *Client) setHears(hears bool) {
	now := c.now()
	c.mu.Lock()
	changed := c.queue.hears != hears
	if changed {
		c.queue.hears, c.queue.pace, c.queue.next = hears, firstLook, now
		for _, watchers := range c.watchers {
			for w := range watchers {
				signal(w.wake)
			}
		}
	}
	c.mu.Unlock()
	if changed {
		signal(c.beatWake)
	}
}

func signal(wake chan struct{}) {
	select {
	case wake <- struct{}{}:
	default:
	}
}
