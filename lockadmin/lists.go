package lockadmin

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/server"
	"github.com/pglock-dev/pglock/pglock"
)

// The limits of a page.
const (
	DefaultPageSize = 1000
	MaxPageSize     = 10_000
)

// Waiter is one place in the queue of a lock. Times are the server's, in UTC.
type Waiter struct {
	Lock     string          `json:"lock"`
	Ticket   int64           `json:"ticket"`
	Place    int             `json:"place"` // 1 is next
	Mode     pglock.Mode     `json:"mode"`
	Limit    int             `json:"limit,omitempty"` // of pglock.ModeLimit
	Holder   string          `json:"holder"`          // the label that its lease will have
	Session  string          `json:"session"`
	Alive    bool            `json:"alive"` // false: its session gives no sign of life, and the queue will skip it
	TTL      time.Duration   `json:"-"`
	Since    time.Time       `json:"since"`
	Waiting  time.Duration   `json:"-"`                // at the answer
	Behind   string          `json:"behind"`           // the label of the waiter before it, or of the holder
	Before   int64           `json:"before,omitempty"` // the ticket of the waiter before it; 0 if it waits for the holder
	Metadata json.RawMessage `json:"metadata,omitempty"`
}

// FenceInfo describes a fence: the highest token that has written to a resource, and the lock that it belongs to.
type FenceInfo struct {
	Resource   string       `json:"resource"`
	LastToken  pglock.Token `json:"last_token"`
	Lock       string       `json:"lock"`
	AdvancedAt time.Time    `json:"advanced_at"`
}

// ListOption configures one list. A list refuses an option that does not apply to it, with pglock.ErrInvalid.
type ListOption func(*listing) error

type listing struct {
	prefix string
	free   bool
	page   int
	events eventFilter
}

// WithPrefix chooses locks whose names begin with the text, 1 to pglock.MaxNameBytes bytes. Only Locks takes it.
func WithPrefix(text string) ListOption {
	return func(l *listing) error {
		l.prefix = text
		return checkText("prefix", text, pglock.MaxNameBytes)
	}
}

// WithFree includes free locks. Only Locks takes it.
func WithFree() ListOption {
	return func(l *listing) error {
		l.free = true
		return nil
	}
}

// WithPageSize sets how many entries one statement reads, from 1 to MaxPageSize. Defaults to DefaultPageSize. Use
// fewer if the loop ends early; a page is the server's state at one moment.
func WithPageSize(n int) ListOption {
	return func(l *listing) error {
		if n < 1 || n > MaxPageSize {
			return &pglock.ArgumentError{Field: "page size", Value: fmt.Sprint(n), Rule: fmt.Sprintf("be from 1 to %d", MaxPageSize)}
		}
		l.page = n
		return nil
	}
}

// newListing reads the options of a list of locks, or of a list for the lock with this name; "" means all locks.
func newListing(name string, locks bool, opts []ListOption) (listing, error) {
	l := listing{page: DefaultPageSize}
	if err := apply(&l, opts); err != nil {
		return l, err
	}
	if l.events.option != "" {
		return l, &pglock.ArgumentError{Field: l.events.option, Value: "given", Rule: "be given to History only"}
	}
	return l, l.check(name, locks)
}

// check refuses a bad name, and what only a list of locks takes.
func (l listing) check(name string, locks bool) error {
	switch {
	case !locks && l.prefix != "":
		return &pglock.ArgumentError{Field: "WithPrefix", Value: "given", Rule: "be given to Locks only"}
	case !locks && l.free:
		return &pglock.ArgumentError{Field: "WithFree", Value: "given", Rule: "be given to Locks only"}
	case name != "":
		return checkText("name", name, pglock.MaxNameBytes)
	}
	return nil
}

// Locks yields the held locks in byte order of their names; of a lock with several holders all of them, by slot. It
// reads each page when the loop comes to it: a lock that is granted or released meanwhile may or may not be in it.
//
// Errors: pglock.ErrInvalid, ErrPermission, ErrReadOnly, ctx's error, or the connection's failure. An error ends the
// loop.
func (a *Admin) Locks(ctx context.Context, opts ...ListOption) iter.Seq2[pglock.LockInfo, error] {
	l, err := newListing("", true, opts)
	return pages(l.page, err, func(last pglock.LockInfo) ([]pglock.LockInfo, error) {
		infos, err := server.Rows(ctx, a.db, a.db.Queries.List, []any{l.prefix, l.free, last.Name, l.page}, scanLock)
		if err != nil {
			return nil, failed("list locks", err)
		}
		return infos, nil
	})
}

// Waiters yields the queue of one lock in the order of service; with name "" the queues of all locks, in byte order
// of their names. Errors are those of Locks.
func (a *Admin) Waiters(ctx context.Context, name string, opts ...ListOption) iter.Seq2[Waiter, error] {
	l, err := newListing(name, false, opts)
	return pages(l.page, err, func(last Waiter) ([]Waiter, error) {
		waiters, err := server.Rows(ctx, a.db, a.db.Queries.Waiters, []any{name, l.page, last.Lock, last.Ticket}, scanWaiter)
		if err != nil {
			return nil, failed("list waiters", err)
		}
		return waiters, nil
	})
}

// Fences yields the fences that leases of the lock have passed, and the fence of the resource with the lock's name;
// with name "" every fence. They come in byte order of the resources. Errors are those of Locks.
func (a *Admin) Fences(ctx context.Context, name string, opts ...ListOption) iter.Seq2[FenceInfo, error] {
	l, err := newListing(name, false, opts)
	return pages(l.page, err, func(last FenceInfo) ([]FenceInfo, error) {
		fences, err := server.Rows(ctx, a.db, a.db.Queries.Fences, []any{name, l.page, last.Resource}, scanFence)
		if err != nil {
			return nil, failed("list fences", err)
		}
		return fences, nil
	})
}

// pages reads one page after another, until one is not full.
func pages[T any](size int, refused error, read func(last T) ([]T, error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		var last, none T
		if refused != nil {
			yield(none, refused)
			return
		}
		for {
			page, err := read(last)
			if err != nil {
				yield(none, err)
				return
			}
			for _, last = range page {
				if !yield(last, nil) {
					return
				}
			}
			if len(page) < size {
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
	err = rows.Scan(&w.Lock, &w.Ticket, &w.Place, &w.Mode, &capacity, &w.Holder, &w.Session, &w.Alive, &ttl, &since, &waiting,
		&before, &behind, &metadata)
	w.Limit, w.Since, w.Before, w.Behind = protocol.OrZero(capacity), protocol.Moment(since), protocol.OrZero(before), protocol.OrZero(behind)
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
