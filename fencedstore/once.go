package fencedstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/failure"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/pglock"
)

// Refusals of Once, for errors.Is.
var (
	// ErrDone: the work of this key was committed before. errors.As with **DoneError says since when and under which
	// token.
	ErrDone = errors.New("fencedstore: already done")
	// ErrKeyTooOld: the key's retention is over. Nobody knows any more whether its work was done, so it is not done
	// again.
	ErrKeyTooOld = errors.New("fencedstore: key is too old")
)

// DoneError says when the write that did the work of a key began, and under which grant. It is an ErrDone.
type DoneError struct {
	Key   string
	At    time.Time    // when that write passed its fence, by the server's clock, in UTC; its COMMIT came later
	Lock  string       // the lock whose holder did it
	Token pglock.Token // of the grant under which it was done
}

func (e *DoneError) Error() string {
	return fmt.Sprintf("fencedstore: %q is done, by a write that began at %s under token %d of lock %q",
		e.Key, e.At.Format(time.RFC3339), e.Token, e.Lock)
}

// Is reports whether target is ErrDone.
func (e *DoneError) Is(target error) bool { return target == ErrDone }

// WithKey makes Guard do the work of a key, as Store.Once does: the transaction also records the key, under one fence.
// A key has 1 to 512 bytes. If the work was done before, the error of Guard is ErrDone (DoneError) and nothing has
// changed: roll the transaction back. If this very transaction has recorded the key, as in a callback of Once, nothing
// is committed yet: the error is pglock.ErrInvalid. Unlike Once, Guard does not wait until the disk and the synchronous
// standby have that work. The same grant may do the work of many keys, as with SameToken.
func WithKey(key string) Option {
	return func(c *config) error {
		c.key = key
		return refuse.Text("key", key, 512)
	}
}

// WithRetention limits how long the server keeps a key of Once: until d after the moment of. d is from 1 s to 100
// years. The moment of belongs to the key: a slot of a schedule, or the time at which a message was written. Once
// refuses an older key (ErrKeyTooOld), because the server has forgotten it and would do its work again. Everybody who
// uses the key must give the same moment and d. Without WithRetention the server keeps a key for ever, in about a
// hundred bytes.
func WithRetention(of time.Time, d time.Duration) Option {
	return func(c *config) error {
		c.of, c.keep = of, d
		return cmp.Or(refuse.If(of.IsZero() || of.UTC().Year() < 1 || of.UTC().Year() > 9999, "of", of.String(),
			"be the moment that the key belongs to, in the years 1 to 9999"),
			refuse.If(d < time.Second || d > 100*365*24*time.Hour, "retention", d.String(), "be from 1s to 100 years"))
	}
}

// confirmDone returns that the work of a key is done as soon as a transaction of its own has waited for the disk and
// the synchronous standby. The COMMIT of the work may not have: then a failover would lose the key, and the work with
// it.
func confirmDone(ctx context.Context, db database, receipt Receipt, done error) error {
	asking, cancel := context.WithTimeout(ctx, resolving)
	defer cancel()
	_, err := outcome(asking, receipt, db.look)
	switch {
	case err == nil:
		return done
	case ctx.Err() == nil:
		err = failure.OfOurs(err)
	}
	err = fmt.Errorf("%s, and that may not last: %w", failure.Bare(done), err)
	return &OutcomeUnknownError{Receipt: receipt, Err: err}
}

// openOnce is the opening of a transaction that does the work of a key.
func (o opening) openOnce() (opening, error) {
	if n := len(o.fences); n > 1 {
		return o, refuse.Invalid("fences", fmt.Sprint(n, " long"), "be one: the work of a key has one fence")
	}
	var of, keep *string
	if o.keep > 0 {
		of = new(protocol.Timestamp(o.of))
		// PostgreSQL 14 reads no interval of more than 2^31 of any unit.
		keep = new(fmt.Sprintf("%d.%06d", o.keep/time.Second, o.keep%time.Second/time.Microsecond))
	}
	f := o.fences[0]
	grant := hooks.Of(f).Export()
	o.sql = protocol.Once(grant.Schema)
	o.args = []any{o.key, f.Lease.Name(), int64(f.Lease.Token()), grant.ID.String(), f.named(), of, keep,
		grant.DatabaseID.String(), f.Lease.Slot()}
	o.read = func(row pgx.Row) (passed, error) {
		var first bool
		var at int64
		var left *int64
		var p passed
		done := &DoneError{Key: o.key}
		err := row.Scan(&first, &done.Lock, &done.Token, &at, &left, &p.pid)
		p.left = time.Duration(protocol.OrZero(left)) * time.Microsecond
		if err != nil || first {
			return p, err
		}
		done.At = time.UnixMicro(at).UTC()
		return p, done
	}
	return o, nil
}
