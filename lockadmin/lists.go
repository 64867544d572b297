package lockadmin

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/internal/refuse"
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
	Behind  string        `json:"behind"` // the label of the live waiter before it, or of the holder; "" if not Alive
	// the lock of that holder, or of its request, if another one is in the way, above or below
	BehindLock string `json:"behind_lock,omitempty"`
	Subtree    bool   `json:"subtree,omitempty"` // it wants all names below, too
	// the ticket of the live waiter before it; 0 if it waits for the holder, or is not Alive
	Before   int64           `json:"before,omitempty"`
	Metadata json.RawMessage `json:"metadata,omitempty"`
}

// MarshalJSON writes durations in milliseconds.
func (w Waiter) MarshalJSON() ([]byte, error) {
	type plain Waiter
	return json.Marshal(struct {
		plain
		TTL     int64 `json:"ttl_ms"`
		Waiting int64 `json:"waiting_ms"`
	}{plain(w), w.TTL.Milliseconds(), w.Waiting.Milliseconds()})
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
func (a *Admin) Locks(ctx context.Context, q LocksQuery) iter.Seq2[pglock.LockInfo, error] {
	l := listing{prefix: q.Prefix, match: q.Match, holder: q.Holder, session: q.Session, mode: q.Mode, older: q.Older,
		order: q.Order, after: q.After, limit: q.Limit, page: q.PageSize}
	err := l.check(OrderName, OrderAge, OrderRecent, OrderWaiting, OrderExpiry)
	read := pageOf[pglock.LockInfo]{"list locks", a.db.Queries.List, scanLock}
	return pages(ctx, a.db, l, err, read, func(last pglock.LockInfo, size int) []any {
		return []any{l.prefix, q.Free, cmp.Or(last.Name, l.after), size, l.match, l.holder, orNull(l.session),
			string(l.mode), q.Queued, l.since(), string(l.order), q.Waited}
	})
}

// Get returns the state of one lock, held or free; if it has several holders, of the one with the lowest slot.
// ErrNotFound if its name was never used. Other errors are those of Locks.
func (a *Admin) Get(ctx context.Context, name string) (pglock.LockInfo, error) {
	infos, err := a.Holders(ctx, name)
	if err != nil {
		return pglock.LockInfo{}, err
	}
	return infos[0], nil
}

// Holders returns every lease of one lock at one moment, by slot; for a free lock its last lease, with Held false.
// ErrNotFound if its name was never used. Other errors are those of Locks.
func (a *Admin) Holders(ctx context.Context, name string) ([]pglock.LockInfo, error) {
	if err := refuse.Text("name", name, pglock.MaxNameBytes); err != nil {
		return nil, err
	}
	infos, err := server.Rows(ctx, a.db, a.db.Queries.Get, []any{name}, scanLock)
	if err != nil {
		return nil, failed(ctx, err, "get lock %q", name)
	}
	if len(infos) == 0 {
		return nil, fmt.Errorf("%w: %q", ErrNotFound, name)
	}
	return infos, nil
}

// Waiters yields queues in the order of service, in byte order of the locks' names. Errors are those of Locks.
func (a *Admin) Waiters(ctx context.Context, q WaitersQuery) iter.Seq2[Waiter, error] {
	l := listing{lock: q.Lock, prefix: q.Prefix, match: q.Match, holder: q.Holder, session: q.Session, mode: q.Mode,
		older: q.Older, order: q.Order, after: q.After, limit: q.Limit, page: q.PageSize}
	err := l.check(OrderName, OrderAge)
	if err == nil && l.after != "" && l.lock != "" {
		err = refuse.Invalid("after", argument.Shorten(l.after), "be given for all locks only")
	}
	read := pageOf[Waiter]{"list waiters", a.db.Queries.Waiters, scanWaiter}
	return pages(ctx, a.db, l, err, read, func(last Waiter, size int) []any {
		after, ticket, place := last.Lock, last.Ticket, &last.Place
		if after == "" {
			place = nil
		}
		if after == "" && l.after != "" {
			after, ticket = l.after, math.MaxInt64
		}
		return []any{l.lock, size, after, ticket, place, l.prefix, l.match, l.holder, orNull(l.session), string(l.mode),
			l.since(), string(l.order)}
	})
}

// Fences yields fences in byte order of the resources. Errors are those of Locks.
func (a *Admin) Fences(ctx context.Context, q FencesQuery) iter.Seq2[FenceInfo, error] {
	l := listing{lock: q.Lock, prefix: q.Prefix, match: q.Match, older: q.Older, order: q.Order, after: q.After,
		limit: q.Limit, page: q.PageSize}
	err := l.check(OrderName, OrderAge)
	read := pageOf[FenceInfo]{"list fences", a.db.Queries.Fences, scanFence}
	return pages(ctx, a.db, l, err, read, func(last FenceInfo, size int) []any {
		return []any{l.lock, size, cmp.Or(last.Resource, l.after), l.prefix, l.match, l.since(), string(l.order)}
	})
}

type pageOf[T any] struct {
	what string // it does, for errors
	sql  string
	scan func(pgx.Rows) (T, error)
}

// pages reads one page after another, until one is not full or the list has reached its limit. args is told the last
// entry before the page, zero for the first page, and how many entries the page may have; a page of locks may have
// more.
func pages[T any](ctx context.Context, db *server.Plain, l listing, refused error, read pageOf[T],
	args func(last T, size int) []any) iter.Seq2[T, error] {
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
			page, err := server.List(ctx, db, read.sql, args(last, size), read.scan)
			if err != nil {
				yield(none, failed(ctx, err, read.what))
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
	return pglock.ForSiblings(hooks.Key{}).ScanLockInfo(rows)
}

func scanWaiter(rows pgx.Rows) (w Waiter, err error) {
	err = rows.Scan(&w.Lock, &w.Ticket, &w.Place, &w.Mode, null(&w.Limit), &w.Holder, &w.Session, &w.Alive,
		micros(&w.TTL), moment(&w.Since), micros(&w.Waiting), null(&w.Before), null(&w.Behind),
		null((*[]byte)(&w.Metadata)), &w.Subtree, null(&w.BehindLock))
	return w, err
}

func scanFence(rows pgx.Rows) (f FenceInfo, err error) {
	err = rows.Scan(&f.Resource, &f.LastToken, &f.Lock, moment(&f.AdvancedAt))
	return f, err
}
