package fencedstore

import (
	"cmp"
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// ErrTimeLimit: a fenced transaction was ended because it took too long. errors.As with **TimeLimitError says which
// limit ended it, and how long that limit was.
var ErrTimeLimit = errors.New("fencedstore: the transaction took too long")

// TimeLimitError says which time limit ended a fenced transaction. It is an ErrTimeLimit. Nothing was committed.
//
// If the transaction waited for another's lock, more time would not have helped, and Wait says whose it was. Of a
// transaction of Guard this is known only while it waits at its fence. Wait is nil if nobody could be asked in time, or
// if the transaction did not wait.
//
// It goes by the time that has passed. A transaction that a lower setting of the user ended, after it had taken longer
// than Limit in all, gets this error too. If the callback hides the error of its statement, Write fails with SQLSTATE
// 25P02 instead.
type TimeLimitError struct {
	// Setting is PostgreSQL's name of the limit: lock_timeout, statement_timeout, idle_in_transaction_session_timeout
	// or transaction_timeout. It is "" if the connection was closed before COMMIT and the driver did not say why, or
	// if the callback's context ended first.
	Setting string
	// Limit is how long the transaction was allowed to take: what WithTimeLimit said or, without it, about as long as
	// the lease had left when the transaction passed the fence. A wait for a lock may take up to a quarter less, at
	// most a second less.
	Limit time.Duration
	Given bool // WithTimeLimit was given
	Wait  *Wait
	Err   error
}

func (e *TimeLimitError) Error() string {
	by, limit := cmp.Or(e.Setting, "the connection was closed or the context ended"), e.Limit.Round(time.Millisecond)
	const nothing = "fencedstore: nothing was written: the transaction waited "
	switch {
	case e.Wait != nil:
		return fmt.Sprintf(nothing+"for %s, until its time limit of %v (%s); %s shows more: %s",
			e.Wait, limit, by, e.Wait.query(), failure.Bare(e.Err))
	case e.Setting == "lock_timeout":
		return fmt.Sprintf(nothing+"for a lock of another transaction%s, until its time limit of %v (%s), "+
			"and nobody could see whose, perhaps that of a write around this one: while such a wait lasts, "+
			"SELECT pid, pg_blocking_pids(pid), query FROM pg_stat_activity "+
			"WHERE cardinality(pg_blocking_pids(pid)) > 0 shows it: %s",
			during(e.Err), limit, by, failure.Bare(e.Err))
	}
	what, cure := "its time limit of", "give WithTimeLimit a longer one"
	if !e.Given {
		what, cure = "its lease had left when it began,", "give WithTimeLimit for longer work"
	}
	if e.Setting == "idle_in_transaction_session_timeout" {
		cure = "the program stood still, or worked between two statements: move that work before the write, or " + cure
	}
	return fmt.Sprintf("fencedstore: the transaction took longer than %s %v (%s): %s, unless your own setting is "+
		"lower: %s", what, limit, by, cure, failure.Bare(e.Err))
}

// during is what the server says of the statement that waited, as in `while updating tuple (0,1) in relation
// "accounts"`.
func during(err error) string {
	where, _, _ := strings.Cut(protocol.Field(err, protocol.FieldWhere), "\n")
	if where == "" {
		return ""
	}
	return " (" + where + ")"
}

// Is reports whether target is ErrTimeLimit.
func (e *TimeLimitError) Is(target error) bool { return target == ErrTimeLimit }

func (e *TimeLimitError) Unwrap() error { return e.Err }

// WithTimeLimit sets how long the fenced transaction may take, from the fence to the end of COMMIT. That includes the
// wait at the fence. d is from pglock.MinTTL (100 ms) to pglock.MaxTTL (24 h), less the grace of the lease. Without the
// option the transaction may take as long as the lease has left when it passes the fence.
//
// If d is longer than the lease has left, the write first extends the lease with pglock.Lease.Extend, before BEGIN. The
// heartbeat goes on renewing it, and its deadline, Valid and Context follow. If d is shorter, the lease stays as it is
// and the transaction may take d. Several leases are extended together; if one of them is lost meanwhile, nothing is
// written. The server ends a transaction that takes longer (TimeLimitError); docs/fencing.md says how, and what a long
// d costs.
//
// After a store's write the lease goes back to its TTL at once; a crash just before that leaves the lock taken for up
// to d. Guard does not hear of the end of the transaction. After it the lease goes back when d has passed, or ends when
// you release it. If you need it back sooner, call Lease.Extend before BEGIN and its end after COMMIT instead.
//
// Under REPEATABLE READ and SERIALIZABLE give it to Guard only if Guard is the transaction's first statement: an older
// snapshot does not show the extension, and Guard then refuses (ErrInvalid).
func WithTimeLimit(d time.Duration) Option {
	return func(c *config) error {
		c.limit = d
		return refuse.If(d < pglock.MinTTL || d > pglock.MaxTTL, "time limit", d.String(),
			fmt.Sprintf("be from %v to %v", pglock.MinTTL, pglock.MaxTTL))
	}
}

// lateBy is how long after the time limit the callback's context ends, or the wait for the answer to the fence, so that
// the server comes first and says why.
const lateBy = 2 * time.Second

// slack is how much longer than the time limit a lease lasts at least, so that the limit ends the transaction first.
func slack(limit time.Duration) time.Duration {
	return min(max(limit/10, 50*time.Millisecond), time.Second)
}

// extend makes every lease last for the time limit and what is to spare, all at the same time. The caller ends the
// extensions with ends, also after an error.
func (o opening) extend(ctx context.Context, spare time.Duration) (ends []func(), err error) {
	if o.limit == 0 {
		return nil, nil
	}
	var short []*pglock.Lease
	for _, f := range o.fences {
		// An extension by another write may end with that write; the TTL stays.
		stays := min(f.Lease.TTL(), time.Until(f.Lease.Deadline()))
		if o.limit+spare > stays && !slices.Contains(short, f.Lease) {
			short = append(short, f.Lease)
		}
	}
	found, errs := make([]func(), len(short)), make([]error, len(short))
	var all sync.WaitGroup
	for i, lease := range short {
		all.Go(func() { found[i], errs[i] = o.extendOne(ctx, lease, spare) })
	}
	all.Wait()
	for i, end := range found {
		if errs[i] == nil {
			ends = append(ends, end)
		}
	}
	return ends, errors.Join(errs...)
}

// extendOne makes a lease last longer than the time limit, if the grace of the lease leaves room for that.
func (o opening) extendOne(ctx context.Context, lease *pglock.Lease, spare time.Duration) (end func(), err error) {
	end, err = lease.Extend(ctx, min(o.limit+spare, pglock.MaxTTL))
	if errors.Is(err, pglock.ErrInvalid) {
		end, err = lease.Extend(ctx, o.limit)
	}
	if argument, is := errors.AsType[*pglock.ArgumentError](err); is {
		err = refuse.Invalid("time limit", o.limit.String(), argument.Rule)
	}
	return end, err
}

// passage is how long a transaction may take from a moment on.
type passage hooks.Passage

// passage is that of a transaction which begins now.
func (o opening) passage() passage {
	p := passage{At: time.Now(), Limit: cmp.Or(o.limit, pglock.MaxTTL), Given: o.limit}
	for _, f := range o.fences {
		p.Limit = min(p.Limit, time.Until(f.Lease.Deadline()))
	}
	return p
}

func (p passage) overran() bool { return hooks.Passage(p).Overran() }

// lockLimit is how long a wait for a lock may take: less than a statement may, as the SQL function sooner says.
func (p passage) lockLimit() time.Duration {
	return p.Limit - min(max(p.Limit/20, 20*time.Millisecond), p.Limit/4, time.Second)
}

// explain returns a TimeLimitError if one of the fence's limits ended the transaction. Otherwise it returns nil: a
// lower limit of the user, or somebody who cancels a statement, ends a transaction sooner.
//
// isDead says that the connection has ended without a word of a limit, and that nothing was committed: a COMMIT whose
// answer is lost may have been. The server's own words are proof, because it looks at no limit between the commit and
// the answer to a COMMIT in the simple protocol, as drivers send it: only at a cancellation by somebody.
func (p passage) explain(err error, isDead bool) *TimeLimitError {
	setting, least := limitOf(err), p.Limit
	if setting == "lock_timeout" {
		least = p.lockLimit()
	}
	// none has begun; an administrator, or the server's end
	if p.At.IsZero() || strings.HasPrefix(protocol.State(err), "57P") {
		return nil
	}
	if setting == "" && !isDead || errors.Is(err, ErrTimeLimit) || errors.Is(err, ErrDone) ||
		time.Since(p.At) < least-least/100 {
		return nil
	}
	return p.error(err)
}

func (p passage) error(err error) *TimeLimitError {
	return &TimeLimitError{Setting: limitOf(err), Limit: cmp.Or(p.Given, p.Limit), Given: p.Given > 0, Err: err}
}

// limitOf is the setting that the server names as the reason, or "".
func limitOf(err error) string { return limits[protocol.State(err)] }

// limits are the settings whose end has an SQLSTATE.
var limits = map[string]string{
	"25P03": "idle_in_transaction_session_timeout", "25P04": "transaction_timeout", "55P03": "lock_timeout",
	"57014": "statement_timeout",
}

// saysClosed reports whether an error of an unknown driver says that the connection has ended.
func saysClosed(err error) bool {
	_, network := errors.AsType[net.Error](err)
	return errors.Is(err, driver.ErrBadConn) || errors.Is(err, net.ErrClosed) || network ||
		errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) ||
		protocol.State(err) != "" && protocol.ConnectionLost(err)
}
