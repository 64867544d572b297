package live

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/cli"
	"github.com/pglock-dev/pglock/cmd/pglock-admin/internal/look"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// How much of the database a screen reads at once.
const (
	liveLocks   = 500
	liveWaiters = 100
	liveEvents  = 50
)

type liveOrder string

const (
	byWait liveOrder = "wait"
	byAge  liveOrder = "age"
	byRate liveOrder = "rate"
)

type liveWish struct {
	name  string // of one lock; "" for a list
	order liveOrder
	match string
}

// liveShot is what one refresh has read, or why it could not.
type liveShot struct {
	wish  liveWish
	at    time.Time // by this machine's clock
	next  time.Time // when the next one is due
	locks []look.ListedLock
	more  bool // there are more than liveLocks

	lock look.ShowView
	gone bool // there is no lock of that name

	err     error
	trouble *cli.Problem // err for people
}

// liveReader asks the database again and again, never twice at once. Its goroutine belongs to whoever calls run.
type liveReader struct {
	o        *cli.Options
	pool     *pgxpool.Pool
	admin    *lockadmin.Admin
	interval time.Duration

	wish   atomic.Pointer[liveWish]
	wished chan struct{} // holds one: the wish has changed
}

// ask changes what the next refresh reads, and hurries it.
func (r *liveReader) ask(w liveWish) {
	r.wish.Store(&w)
	select {
	case r.wished <- struct{}{}:
	default:
	}
}

func (r *liveReader) run(ctx context.Context, send func(liveShot)) {
	timer := time.NewTimer(r.interval)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-timer.C:
		case <-r.wished:
		}
		shot := r.read(ctx)
		if ctx.Err() != nil {
			return
		}
		send(shot)
		timer.Reset(time.Until(shot.next))
	}
}

// liveShare says how long a refresh pauses: so many times as long as it took. A list that is hard to read, of a million
// locks, takes a fifth of one of the server's processors at most. A look that has failed is repeated within
// liveMostInterval: most of its time it may have waited for a server that is away.
const liveShare = 4

func pauseAfter(took, interval time.Duration) time.Duration {
	return max(interval-took, liveShare*took)
}

func (r *liveReader) read(ctx context.Context) liveShot {
	began := time.Now()
	bounded, cancel := r.o.Bounded(ctx)
	defer cancel()
	shot := liveShot{wish: *r.wish.Load()}
	if shot.wish.name == "" {
		shot.locks, shot.more, shot.err = liveList(bounded, r.admin, shot.wish)
	} else {
		shot.lock, shot.err = look.Look(bounded, r.admin, shot.wish.name, liveEvents, liveWaiters)
	}
	if shot.gone = shot.wish.name != "" && errors.Is(shot.err, lockadmin.ErrNotFound); shot.gone {
		shot.err = nil
	}
	if shot.err == nil { // a failover may have put a standby behind the address, or a pooler behind the connection
		shot.err = cli.IsPrimary(bounded, r.admin)
	}
	if errors.Is(shot.err, pglock.ErrReadOnly) {
		r.pool.Reset() // a new connection may find the primary
	}
	shot.err = cli.Because(bounded, r.o.WithRights(bounded, r.pool, shot.err))
	shot.at = time.Now()
	rest := pauseAfter(shot.at.Sub(began), r.interval)
	if shot.err != nil {
		p := r.o.Diagnose(ctx, shot.err)
		shot.trouble = &p
		rest = min(pauseAfter(time.Since(began), r.interval), liveMostInterval)
	}
	shot.next = time.Now().Add(rest)
	return shot
}

// liveList reads the first locks of an order with one statement, and then how they are.
func liveList(ctx context.Context, admin *lockadmin.Admin, w liveWish) ([]look.ListedLock, bool, error) {
	infos, more, err := lists.First(liveLocks, admin.Locks(ctx, lockadmin.LocksQuery{Match: w.match,
		Limit: liveLocks + 1, Order: listOrders[w.order], Free: w.order == byRate}))
	if err != nil {
		return nil, false, err
	}
	locks, err := look.Judged(ctx, admin, infos)
	return locks, more, err
}

// listOrders are the orders of the list. A lock that is granted often was granted lately, and may be free at this
// moment.
var listOrders = map[liveOrder]lockadmin.Order{byWait: lockadmin.OrderWaiting, byAge: lockadmin.OrderAge,
	byRate: lockadmin.OrderRecent}
