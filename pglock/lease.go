package pglock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/pause"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/internal/trust"
)

// Lease is one grant of a lock to this client, valid until it is released or lost. It is safe for concurrent use. Its
// client's heartbeat renews it.
type Lease struct {
	client  *Client
	name    string
	holder  string
	token   Token
	grantID uuid.UUID
	ttl     time.Duration
	class   int           // of the leases that are renewed with it
	grace   time.Duration // on the server the lease is longer by this
	mode    Mode
	subtree bool
	slot    int
	owner   *owner
	queued  bool   // the call waited for it
	strays  bool   // an attempt may still be under way: the end of the lease spends the grant ID
	sight   *sight // nil: nobody observes
	since   time.Time
	byClose atomic.Bool // Close has ended it

	ctx    context.Context
	life   context.Context // ends with the lease alone: in Do ctx may end before it
	cancel context.CancelCauseFunc

	mu        sync.Mutex    // guards what follows; never held across I/O
	deadline  trust.Instant // trust ends here
	expiresAt time.Time     // by the server's clock, as last reported; zero before that
	due       trust.Instant // the next renewal
	asked     trust.Instant // until then the server may answer in time; zero: it is not asked
	fresh     time.Duration // when the last successful request was sent, on the monotonic clock
	shrunk    time.Duration // when a request was sent that makes the lease shorter, on the monotonic clock
	failure   error         // of the last renewal
	took      time.Duration // the last successful request
	holds     []*hold       // what needs the lease for longer than its TTL
	tooLong   bool          // on the server it must be shortened
	tooShort  bool          // the server keeps it for less than it has confirmed, as after a failover
	ended     error         // ErrReleased or *LostError; final
	lost      error         // found by a release
	handing   int           // calls of HandOver that have asked the server, and have no answer
	hopes     int           // of these, those that may still get one
	doubt     error         // meanwhile the server did not know the lease
	handed    bool          // by one of these, as the heartbeat has found
}

func newLease(c *Client, parent context.Context, r request, grantID uuid.UUID, token Token, slot int) *Lease {
	l := &Lease{client: c, name: r.Name, holder: r.Holder, token: token, grantID: grantID, ttl: r.TTL,
		class: classOf(r.TTL), grace: r.Grace,
		mode: Mode(r.Mode), subtree: r.Subtree, slot: slot, owner: r.owner, sight: r.sight, since: time.Now()}
	parent = context.WithValue(parent, ownerKey{}, l)
	l.life, l.cancel = context.WithCancelCause(context.WithoutCancel(parent))
	if l.ctx = l.life; parent.Done() != nil {
		ctx, end := context.WithCancelCause(parent)
		over := l.cancel
		l.ctx, l.cancel = ctx, func(cause error) { over(cause); end(cause) }
	}
	return l
}

// Name is the lock's name.
func (l *Lease) Name() string { return l.name }

// Token is the fencing token of this grant.
func (l *Lease) Token() Token { return l.token }

// Holder is the label that people see.
func (l *Lease) Holder() string { return l.holder }

// Mode says how the lock is held.
func (l *Lease) Mode() Mode { return l.mode }

// Subtree reports whether the lease covers all names below the lock's, too (WithSubtree).
func (l *Lease) Subtree() bool { return l.subtree }

// Slot is the place among the holders of a lock with WithShared or WithLimit, from 1 up to the limit; 0 for an
// exclusive lease. No two leases have the same slot of a lock at the same time.
func (l *Lease) Slot() int { return l.slot }

// Resource is what the lease's fence protects, unless a fencedstore.Fence says otherwise: the lock's name;
// with a slot the name, '#', and the slot.
func (l *Lease) Resource() string {
	if l.slot == 0 {
		return l.name
	}
	return fmt.Sprintf("%s#%d", l.name, l.slot)
}

// TTL is how long a renewal extends the lease.
func (l *Lease) TTL() time.Duration { return l.ttl }

// String shows the lease without its grant ID.
func (l *Lease) String() string {
	return fmt.Sprintf("lease of lock %q with token %d by %q", l.name, l.token, l.holder)
}

// Context is done when the lease ends; context.Cause is then a *LostError (ErrLost) or ErrReleased. For a lease
// from Acquire or TryAcquire it carries the values of the call's context but not its end; in Do it ends with
// Do's context too. It carries the lease (LeaseFromContext) and its owner: requests under it have the same
// owner, which makes ErrSelfDeadlock and ErrDeadlock possible. It ends within a second of the local deadline
// even after the machine was suspended; Valid is exact, by the same clocks.
func (l *Lease) Context() context.Context { return l.ctx }

// Deadline is the local time up to which the lease may be trusted unless it is renewed: the time at which the
// last successful request was sent, plus the TTL, minus a margin of 1/20 of the TTL (at most a second). For an extended
// lease (Extend) the length of the extension counts instead of the TTL.
func (l *Lease) Deadline() time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return time.Now().Add(l.client.now().Until(l.deadline))
}

// Valid reports whether the lease may still be trusted. It compares the local clocks with the deadline, so it
// is right in the first instruction after a pause, unless a hypervisor stopped the clocks too. It does not ask the
// server: a write that must not be stale needs a fence.
func (l *Lease) Valid() bool { return l.Err() == nil }

// Err is nil while the lease may be trusted; then it is ErrReleased or a *LostError (ErrLost), for ever.
func (l *Lease) Err() error {
	now := l.client.now()
	l.mu.Lock()
	ended, expired := l.ended, now.Reached(l.deadline)
	l.mu.Unlock()
	if ended == nil && expired {
		l.end(errExpired)
		return l.Err()
	}
	return ended
}

// Check asks the server whether the lease is still held, and for how long; if not, it returns 0 and the error.
// If the server does not know the lease any more, the lease ends here at once, or when a HandOver that is under way has
// its answer.
//
// Errors: ErrLost (LostError), ErrReleased, ErrClosed, ErrReadOnly, ctx's error, or the connection's failure. ctx
// bounds the call; the server has ten seconds for the statement.
func (l *Lease) Check(ctx context.Context) (remaining time.Duration, err error) {
	err = l.ask(ctx, "check", func(ctx context.Context) error {
		r, err := l.client.backend.Check(ctx, l.claim())
		if err == nil && r.Lost != "" {
			return &LostError{Lock: l.name, Token: l.token, Reason: Reason(r.Lost)}
		}
		remaining = max(0, r.Left-l.grace)
		return err
	})
	if err != nil {
		return 0, err
	}
	return remaining, nil
}

// renew makes the lease last for its TTL from now on, without waiting for the heartbeat. Like a renewal of the
// heartbeat it also asks for extensions that have no answer yet, and shortens none that goes on (Extend). Errors are
// those of Check.
func (l *Lease) renew(ctx context.Context) error {
	sent := l.client.now()
	r := l.renewal(sent)
	var did tally
	err := l.ask(ctx, "renew", func(ctx context.Context) error {
		v, err := l.client.backend.Renew(ctx, r.claim)
		if err == nil {
			did.renewed(l, l.renewed(r, sent, v, sooner()))
		} else if !errors.Is(errorFromSQL(err, l.name, l.token), ErrLost) {
			did.failed(l, l.sinceRenewed())
		}
		return err
	})
	l.client.tellRenewals(ctx, did, sent, err)
	return err
}

// ask runs f, which ends with the client, and ends the lease if the server says that it is lost.
func (l *Lease) ask(ctx context.Context, what string, f func(context.Context) error) error {
	if err := l.Err(); err != nil {
		return err
	}
	asking, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(l.client.ctx, cancel)()
	err := f(asking)
	if err == nil {
		return l.Err()
	}
	err = errorFromSQL(err, l.name, l.token)
	if errors.Is(err, ErrLost) {
		l.end(err)
		return cmp.Or(l.Err(), err)
	}
	if l.client.isClosed() && ctx.Err() == nil {
		err = ErrClosed
	}
	return failure.At(ctx, err, "pglock: %s lock %q", what, l.name)
}

// Release ends the lease, so that the next waiter can have the lock. First its context is done, with cause
// ErrReleased. Then Release tells the server, for as long as ctx allows and at most the TTL; it has five seconds
// if ctx has already ended or has no deadline. That ctx ends with a lease does not count.
//
// The first call returns nil if the lease was held until now, else a *LostError (ErrLost). Later calls return an error
// that matches ErrReleased, or that loss again, and change nothing. Another error means that the server has not
// confirmed the release, and the client keeps trying in the background; where the server refuses for a reason that does
// not pass, for a minute or the TTL, whichever is longer. At worst the lease ends with its TTL, or with its extension
// (Extend). If time ran out, the error is context.DeadlineExceeded or that of ctx, whatever else it is.
func (l *Lease) Release(ctx context.Context) (err error) {
	if !l.client.calls.beginEnd() {
		<-l.client.ended // Close releases it
		return failure.Told(l.howEnded(), "pglock: release lock %q", l.name)
	}
	defer l.client.calls.ends.Done()
	if !l.end(ErrReleased) {
		l.outlived(ctx)
		return failure.Told(l.howEnded(), "pglock: release lock %q", l.name)
	}
	if l.sight != nil {
		defer func() { l.released(ctx, err) }()
	}
	ctx, cancel := lastWords(ctx, l.ttl)
	defer cancel()
	for repeated := false; ; {
		sent := l.client.now()
		e, err := l.giveBack(ctx)
		if err == nil {
			if e.Released {
				l.released(ctx, nil)
			}
			l.client.othersWait.Store(e.Handed.Announced || len(e.Handed.Slots) > 0)
			l.client.tell(ctx, l.name, e.Handed, &sent)
		}
		switch {
		case err == nil && e.Released:
			return nil
		case err == nil:
			return l.whyLost(ctx, repeated)
		case !protocol.ConnectionLost(err) && !protocol.LockedOut(err) || l.client.hasClosed(err) ||
			!pause.For(ctx, sayAgain):
			l.client.takeBack(l.requestID(), l.strays, l.ttl) // whether it was refused, or did not arrive
			// ErrLost would say that this lease is lost, so the cause of ctx's end is not part of it.
			err = triedUntilItEnded(ctx, errorFromSQL(err, l.name, l.token))
			return failure.Told(err, "pglock: release lock %q (at worst it ends with its TTL or extension)", l.name)
		}
		repeated = repeated || protocol.ConnectionLost(err) && !server.NeverSent(err)
	}
}

// giveBack tells the server that the lease has ended.
func (l *Lease) giveBack(ctx context.Context) (protocol.Ending, error) {
	if l.strays {
		sent := l.client.now()
		backs, err := l.client.backend.TakeBack(ctx, l.client.who(), true, []protocol.RequestID{l.requestID()})
		if signal(l.client.beatWake); err != nil { // as in tellUnconfirmed
			return protocol.Ending{}, err
		} else if backs[0].Ended {
			return protocol.Ending{Released: true, Handed: backs[0].Handed}, nil
		}
		l.client.tell(ctx, l.name, backs[0].Handed, &sent)
	}
	return l.client.backend.Release(ctx, l.claim(), l.queued && l.client.othersWait.Load())
}

// spend makes the server refuse attempts that are still under way, if there may be any, when the lease has ended.
func (l *Lease) spend() {
	if l.strays {
		l.client.takeBack(l.requestID(), true, l.ttl)
	}
}

func (l *Lease) requestID() protocol.RequestID {
	return protocol.RequestID{Name: l.name, GrantID: l.grantID}
}

// howEnded is the result of a release for a lease that has already ended.
func (l *Lease) howEnded() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return cmp.Or(l.lost, l.ended)
}

// whyLost asks for the reason when a release found the lease gone. A repeated release may find what its own first
// attempt has done, and one after a hand-over of unknown outcome that the lock was handed over: then the lease was
// released, not lost.
func (l *Lease) whyLost(ctx context.Context, repeated bool) error {
	l.mu.Lock()
	own := repeated || l.handing > 0
	l.mu.Unlock()
	r, err := l.client.backend.Check(ctx, l.claim())
	for protocol.ConnectionLost(err) && !l.client.hasClosed(err) && pause.For(ctx, sayAgain) {
		r, err = l.client.backend.Check(ctx, l.claim())
	}
	err = triedUntilItEnded(ctx, errorFromSQL(err, l.name, l.token))
	reason := Reason(r.Lost)
	switch {
	case err != nil && own:
		return failure.Told(fmt.Errorf("%w: %w", ErrOutcomeUnknown, err), "pglock: release lock %q", l.name)
	case reason == ReasonReleased && own:
		l.client.tellUnconfirmed(ctx, l.name, l.slot)
		return nil
	}
	lost := &LostError{Lock: l.name, Token: l.token, Reason: cmp.Or(reason, ReasonUnknown), Err: err}
	l.mu.Lock()
	l.lost = lost
	l.mu.Unlock()
	if reason == ReasonUnknown && own { // as after a failover: perhaps by our own attempt
		return failure.Told(fmt.Errorf("%w: %w", ErrOutcomeUnknown, lost), "pglock: release lock %q", l.name)
	}
	return lost
}

func (l *Lease) claim() protocol.Claim {
	return protocol.Claim{Name: l.name, Token: int64(l.token), GrantID: l.grantID, Slot: l.slot}
}

// extend moves the deadline after a grant by the TTL that was sent at the given moment. It never revives a lease that
// has ended, nor shortens one that a later request has extended. The next renewal comes sooner by this part of its
// interval.
func (l *Lease) extend(sent trust.Instant, v protocol.Verdict, sooner float64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended == nil {
		l.trust(l.ttl, sent, v, sooner)
	}
}

// trust moves the deadline as extend does, for a request that makes the lease last for so long. The caller has the
// mutex.
func (l *Lease) trust(lasts time.Duration, sent trust.Instant, v protocol.Verdict, sooner float64) {
	l.fresh = max(l.fresh, sent.Mono)
	deadline := trust.Deadline(sent, lasts, v.Remaining-l.grace)
	if deadline.Mono > l.deadline.Mono {
		l.deadline, l.expiresAt, l.failure = deadline, v.ExpiresAt, nil
	}
	// also after an answer that brought nothing
	if due := sent.Add(beatInterval(l.ttl, sooner)); due.Mono > l.due.Mono && !l.isUrgent() {
		l.due = due
	}
}

// end ends the lease with its cause, once, and reports whether this call did. A lease past its deadline ends as
// lost, whatever the cause given. If the server does not know the lease while HandOver waits for its answer, that
// answer decides, if it comes within a second; no renewal follows.
func (l *Lease) end(cause error) bool {
	now := l.client.now()
	paused := l.client.leases.paused(now)
	l.mu.Lock()
	if lost, is := cause.(*LostError); is && lost.Reason == ReasonUnknown && l.hopes > 0 && l.ended == nil {
		if l.doubt == nil {
			l.doubt, l.deadline = cause, l.deadline.Earlier(now.Add(time.Second))
		}
		l.due = l.deadline
		l.mu.Unlock()
		signal(l.client.deadlineWake)
		return false
	}
	first, elsewhere := l.ended == nil, false // on the server, before we knew
	goesOn := false                           // there: it was extended, or a late attempt may be granted it again
	if first {
		l.owner.loses(l)
		if lost, ok := cause.(*LostError); ok && lost.Reason == ReasonReleased && l.handing > 0 {
			cause, l.handed = ErrReleased, true // by our own HandOver, whose answer is on its way
		}
		if late := cause == ErrReleased && now.Reached(l.deadline); late || cause == errExpired {
			first = !late
			if cause = l.doubt; cause == nil {
				cause = &LostError{Lock: l.name, Token: l.token, Reason: ReasonExpired}
			}
		}
		if lost, ok := cause.(*LostError); ok && lost.Err == nil &&
			(lost.Reason == ReasonExpired || lost.Reason == ReasonTakenOver) {
			lost.Err = l.whyExpired(paused)
		}
		l.ended, elsewhere = cause, cause != ErrReleased || l.handed
		lost, is := cause.(*LostError)
		goesOn = is && lost.Reason == ReasonExpired && (l.strays || l.isExtended())
		l.noteEnd(now, cause, l.handed)
	}
	ended := l.ended
	l.mu.Unlock()
	l.cancel(ended)
	l.client.leases.forget(l)
	switch {
	case goesOn:
		l.giveUp()
	case elsewhere:
		l.spend()
	}
	return first
}
