package lockadmin

import (
	"cmp"
	"context"
	"encoding/json"
	"iter"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/pglock"
)

// Waiter is one place in the queue of a lock. Times are the server's, in UTC.
type Waiter struct {
	Lock    string      `json:"lock"`
	Ticket  int64       `json:"ticket"`
	Place   int         `json:"place"` // 1 is next
	Mode    pglock.Mode `json:"mode"`
	Limit   int         `json:"limit,omitempty"` // of pglock.ModeLimit
	Holder  string      `json:"holder"`          // the label that its lease will have
	Session string      `json:"session"`
	// false: its session gives no sign of life (on a standby: none has arrived), and the queue will skip it
	Alive   bool          `json:"alive"`
	TTL     time.Duration `json:"-"`
	Since   time.Time     `json:"since"`
	Waiting time.Duration `json:"-"`      // at the answer
	Behind  string        `json:"behind"` // the label of the waiter before it, or of the holder
	// the ticket of the waiter before it; 0 if it waits for the holder
	Before   int64           `json:"before,omitempty"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
}

// FenceInfo describes a fence: the highest token that has written to a resource, and the lock that it belongs to.
type FenceInfo struct {
	Resource   string       `json:"resource"`
	LastToken  pglock.Token `json:"last_token"`
	Lock       string       `json:"lock"`
	AdvancedAt time.Time    `json:"advanced_at"`
}

// Locks yields the leases of held locks in byte order of their names; of a lock with several holders all of them, by
// slot. It reads each page when the loop comes to it: a lock that is granted or released meanwhile may or may not be in
// it.
//
// Errors: pglock.ErrInvalid, ErrPermission, ErrReadOnly, ctx's error, or the connection's failure. An error ends the
// loop.
func (a *Admin) Locks(ctx context.Context, opts ...ListOption) iter.Seq2[pglock.LockInfo, error] {
	l, err := newListing(ofLocks, "", opts)
	return pages(l, err, func(last pglock.LockInfo, size int) ([]pglock.LockInfo, error) {
		args := []any{l.prefix, l.free, cmp.Or(last.Name, l.after), size, l.match, l.holder, l.session, string(l.mode),
			l.queued, l.older, string(l.order)}
		infos, err := server.List(ctx, a.db, a.db.Queries.List, args, scanLock)
		if err != nil {
			return nil, failed(ctx, "list locks", err)
		}
		return infos, nil
	})
}

// Waiters yields the queue of one lock in the order of service; with name "" the queues of all locks, in byte order
// of their names. Errors are those of Locks.
func (a *Admin) Waiters(ctx context.Context, name string, opts ...ListOption) iter.Seq2[Waiter, error] {
	l, err := newListing(ofWaiters, name, opts)
	return pages(l, err, func(last Waiter, size int) ([]Waiter, error) {
		after, ticket, place := last.Lock, last.Ticket, &last.Place
		if after == "" {
			place = nil
		}
		if after == "" && l.after != "" {
			after, ticket = l.after, math.MaxInt64
		}
		args := []any{name, size, after, ticket, place, l.prefix, l.match, l.holder, l.session, string(l.mode), l.older,
			string(l.order)}
		waiters, err := server.List(ctx, a.db, a.db.Queries.Waiters, args, scanWaiter)
		if err != nil {
			return nil, failed(ctx, "list waiters", err)
		}
		return waiters, nil
	})
}

// Fences yields the fences that leases of the lock have passed, and the fence of the resource with the lock's name;
// with name "" every fence. They come in byte order of the resources. Errors are those of Locks.
func (a *Admin) Fences(ctx context.Context, name string, opts ...ListOption) iter.Seq2[FenceInfo, error] {
	l, err := newListing(ofFences, name, opts)
	return pages(l, err, func(last FenceInfo, size int) ([]FenceInfo, error) {
		args := []any{name, size, cmp.Or(last.Resource, l.after), l.prefix, l.match, l.older, string(l.order)}
		fences, err := server.List(ctx, a.db, a.db.Queries.Fences, args, scanFence)
		if err != nil {
			return nil, failed(ctx, "list fences", err)
		}
		return fences, nil
	})
}

// pages reads one page after another, until one is not full or the list has reached its limit. read is told the last
// entry before the page, zero for the first page, and how many entries the page may have; a page of locks may have
// more.
func pages[T any](l listing, refused error, read func(last T, size int) ([]T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var last, none T
		if refused != nil {
			yield(none, refused)
			return
		}
		for n := 0; ; {
			size := l.page
			switch {
			case l.ranked():
				size = l.rank()
			case l.limit > 0:
				size = min(l.page, l.limit-n)
			}
			page, err := read(last, size)
			if err != nil {
				yield(none, err)
				return
			}
			for _, last = range page {
				if !yield(last, nil) {
					return
				}
			}
			n += len(page)
			if len(page) < size || l.ranked() || l.limit > 0 && n >= l.limit {
				return
			}
		}
	}
}

func scanLock(rows pgx.Rows) (pglock.LockInfo, error) {
	i, err := protocol.ScanLockInfo[pglock.Token, pglock.Mode](rows)
	return pglock.LockInfo(i), err
}

func scanWaiter(rows pgx.Rows) (w Waiter, err error) {
	var capacity *int
	var ttl, waiting int64
	var since, before *int64
	var behind, metadata *string
	err = rows.Scan(&w.Lock, &w.Ticket, &w.Place, &w.Mode, &capacity, &w.Holder, &w.Session, &w.Alive, &ttl, &since,
		&waiting,
		&before, &behind, &metadata)
	w.Limit, w.Since, w.Before, w.Behind = protocol.OrZero(capacity), protocol.Moment(since), protocol.OrZero(before),
		protocol.OrZero(behind)
	w.TTL, w.Waiting = time.Duration(ttl)*time.Microsecond, time.Duration(waiting)*time.Microsecond
	if metadata != nil {
		w.Metadata = json.RawMessage(*metadata)
	}
	return w, err
}

func scanFence(rows pgx.Rows) (f FenceInfo, err error) {
	var at *int64
	err = rows.Scan(&f.Resource, &f.LastToken, &f.Lock, &at)
	f.AdvancedAt = protocol.Moment(at)
	return f, err
}

// First reads the first n entries of a list, and reports whether there are more. 0 means all entries.
func First[T any](n int, list iter.Seq2[T, error]) (some []T, more bool, err error) {
	return first(n, list, func(T, T) bool { return false })
}

// FirstLocks is First for Locks in the order of names. It keeps the holders of a lock together: it also reads the other
// holders of the last lock, so that a list WithAfter that lock leaves nobody out.
func FirstLocks(n int, list iter.Seq2[pglock.LockInfo, error]) (some []pglock.LockInfo, more bool, err error) {
	return first(n, list, func(last, next pglock.LockInfo) bool { return last.Name == next.Name })
}

func first[T any](n int, list iter.Seq2[T, error], together func(last, next T) bool) (some []T, more bool, err error) {
	for one, err := range list {
		switch {
		case err != nil:
			return nil, false, err
		case n > 0 && len(some) >= n && !together(some[len(some)-1], one):
			return some, true, nil
		}
		some = append(some, one)
	}
	return some, false, nil
}

// Collect reads a list to its end, or to its error.
func Collect[T any](list iter.Seq2[T, error]) ([]T, error) {
	var all []T
	for one, err := range list {
		if err != nil {
			return nil, err
		}
		all = append(all, one)
	}
	return all, nil
}
