package lockadmin

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/pglock"
)

// The limits of a page.
const (
	DefaultPageSize = 1000
	MaxPageSize     = 10_000
)

// Order says in which order a list comes.
type Order string

// The orders of lists. Only OrderName has pages: it walks an index. Any other order reads the whole table once, and
// yields at most WithLimit entries, DefaultPageSize without it.
const (
	OrderName Order = "name" // byte order of names; of Sessions the order of their labels
	// the longest held, longest waiting, longest unused fence or longest silent session first
	OrderAge    Order = "age"
	OrderRecent Order = "recent" // the lock that was granted last first
	// the lock that somebody has waited for longest first; of Sessions the one with the most tickets
	OrderWaiting Order = "waiting"
	OrderExpiry  Order = "expiry" // the lease that ends next first
	OrderLeases  Order = "leases" // the session with the most leases first
)

// ListOption configures one list. A list refuses an option that does not apply to it, with pglock.ErrInvalid.
type ListOption func(*listing) error

type listing struct {
	name, prefix, match, holder, after string
	session                            *string
	mode                               pglock.Mode
	free, queued                       bool
	older                              *string
	order                              Order
	limit, page                        int // limit 0: none
	events                             eventFilter
	given                              []string
}

// texted makes an option of a text of 1 to most bytes.
func texted(option, field, text string, most int, to func(*listing) *string) ListOption {
	return func(l *listing) error {
		l.given = append(l.given, option)
		*to(l) = text
		return checkText(field, text, most)
	}
}

// WithPrefix chooses locks whose names begin with the text, 1 to pglock.MaxNameBytes bytes; of Fences the resources.
// Locks, Waiters and Fences take it.
func WithPrefix(text string) ListOption {
	return texted("WithPrefix", "prefix", text, pglock.MaxNameBytes, func(l *listing) *string { return &l.prefix })
}

// WithMatch chooses entries that contain the text in a name or in the label of a holder, in upper and lower case as
// given, 1 to pglock.MaxNameBytes bytes: in the name of a lock, a resource or a session's ID. Locks, Waiters, Fences
// and Sessions take it.
func WithMatch(text string) ListOption {
	return texted("WithMatch", "match", text, pglock.MaxNameBytes, func(l *listing) *string { return &l.match })
}

// WithHolder chooses entries with exactly this label, 1 to pglock.MaxHolderBytes bytes. Locks, Waiters and Sessions
// take it.
func WithHolder(label string) ListOption {
	return texted("WithHolder", "holder", label, pglock.MaxHolderBytes, func(l *listing) *string { return &l.holder })
}

// WithAfter begins after this entry in the order of names: after the lock with this name, of Fences after the resource,
// of Sessions after the session with this ID. It goes with OrderName only. Locks, Waiters for all locks, Fences and
// Sessions take it.
func WithAfter(name string) ListOption {
	return texted("WithAfter", "after", name, pglock.MaxNameBytes, func(l *listing) *string { return &l.after })
}

// WithSession chooses the entries of the session with this ID, as pglock.LockInfo has it. Locks, Waiters and Sessions
// take it.
func WithSession(id string) ListOption {
	return func(l *listing) error {
		l.given = append(l.given, "WithSession")
		l.session = &id
		return checkSession("session", id)
	}
}

// WithMode chooses leases or waiters of this mode. Locks and Waiters take it.
func WithMode(m pglock.Mode) ListOption {
	return func(l *listing) error {
		l.given = append(l.given, "WithMode")
		l.mode = m
		return oneOf("mode", m, pglock.ModeExclusive, pglock.ModeShared, pglock.ModeLimit)
	}
}

// WithFree includes free locks, by their last holders. Only Locks takes it.
func WithFree() ListOption {
	return func(l *listing) error {
		l.given = append(l.given, "WithFree")
		l.free = true
		return nil
	}
}

// WithQueued chooses locks for which somebody waits. Only Locks takes it.
func WithQueued() ListOption {
	return func(l *listing) error {
		l.given = append(l.given, "WithQueued")
		l.queued = true
		return nil
	}
}

// WithOlder keeps entries older than d, from 1 µs to 10 years: leases that were granted, waiters that came, fences
// that were passed last, and sessions that were heard of last, before that. Locks, Waiters, Fences and Sessions take
// it.
func WithOlder(d time.Duration) ListOption {
	return func(l *listing) error {
		l.given = append(l.given, "WithOlder")
		text := protocol.Interval(d)
		l.older = &text
		if d < time.Microsecond || d > mostOlder {
			return &pglock.ArgumentError{Field: "older", Value: d.String(), Rule: "be from 1µs to 10 years"}
		}
		return nil
	}
}

const mostOlder = 10 * 365 * 24 * time.Hour

// WithOrder chooses the order. Defaults to OrderName. Locks has OrderName, OrderAge, OrderRecent, OrderWaiting and
// OrderExpiry; Waiters and Fences have OrderName and OrderAge; Sessions has OrderName, OrderAge, OrderWaiting and
// OrderLeases.
func WithOrder(o Order) ListOption {
	return func(l *listing) error {
		l.given = append(l.given, "WithOrder")
		l.order = o
		return nil
	}
}

// WithLimit ends the list after so many entries, at least 1; in an order other than OrderName at most MaxPageSize. The
// holders of one lock stay together: in OrderName, Locks also yields the other holders of the last lock. Defaults to no
// limit, in an order other than OrderName to DefaultPageSize.
func WithLimit(n int) ListOption {
	return func(l *listing) error {
		l.given = append(l.given, "WithLimit")
		if l.limit = n; n < 1 {
			return &pglock.ArgumentError{Field: "limit", Value: fmt.Sprint(n), Rule: "be at least 1"}
		}
		return nil
	}
}

// WithPageSize sets how many entries one statement reads, from 1 to MaxPageSize. Defaults to DefaultPageSize. Use
// fewer if the loop ends early; a page is the server's state at one moment.
func WithPageSize(n int) ListOption {
	return func(l *listing) error {
		l.given = append(l.given, "WithPageSize")
		if n < 1 || n > MaxPageSize {
			return &pglock.ArgumentError{Field: "page size", Value: fmt.Sprint(n),
				Rule: fmt.Sprintf("be from 1 to %d", MaxPageSize)}
		}
		l.page = n
		return nil
	}
}

// kind is what distinguishes one list from another: its orders, and the options that only some lists take.
type kind struct {
	list   string
	orders []Order
	takes  []string
}

var (
	ofLocks = kind{"Locks", []Order{OrderName, OrderAge, OrderRecent, OrderWaiting, OrderExpiry},
		[]string{"WithPrefix", "WithMatch", "WithHolder", "WithSession", "WithMode", "WithFree", "WithQueued",
			"WithOlder", "WithOrder", "WithAfter"}}
	ofWaiters = kind{"Waiters", []Order{OrderName, OrderAge},
		[]string{"WithPrefix", "WithMatch", "WithHolder", "WithSession", "WithMode", "WithOlder", "WithOrder",
			"WithAfter"}}
	ofFences = kind{"Fences", []Order{OrderName, OrderAge}, []string{"WithPrefix", "WithMatch", "WithOlder",
		"WithOrder", "WithAfter"}}
	ofSessions = kind{"Sessions", []Order{OrderName, OrderAge, OrderWaiting, OrderLeases},
		[]string{"WithMatch", "WithHolder", "WithSession", "WithOlder", "WithOrder", "WithAfter"}}
	ofHistory = kind{list: "History", takes: []string{"WithKinds", "WithSince", "WithUntil", "WithBefore"}}
)

// every list takes these.
var always = []string{"WithLimit", "WithPageSize"}

// newListing reads the options of a list, of all locks or of the lock with this name; "" means all locks.
func newListing(k kind, name string, opts []ListOption) (listing, error) {
	l := listing{name: name, page: DefaultPageSize, order: OrderName}
	if err := apply(&l, opts); err != nil {
		return l, err
	}
	for _, option := range l.given {
		if !slices.Contains(k.takes, option) && !slices.Contains(always, option) {
			return l, &pglock.ArgumentError{Field: option, Value: "given", Rule: "not be given to " + k.list}
		}
	}
	if slices.Contains(l.given, "WithOrder") {
		if err := oneOf("order", l.order, k.orders...); err != nil {
			return l, err
		}
	}
	switch {
	case l.after != "" && l.ranked():
		return l, &pglock.ArgumentError{Field: "WithAfter", Value: "given", Rule: "be given with the order name only"}
	case l.after != "" && name != "" && k.list == ofWaiters.list:
		return l, &pglock.ArgumentError{Field: "WithAfter", Value: "given", Rule: "be given for all locks only"}
	case l.ranked() && l.limit > MaxPageSize:
		return l, &pglock.ArgumentError{Field: "limit", Value: fmt.Sprint(l.limit),
			Rule: fmt.Sprintf("be from 1 to %d in the order %s", MaxPageSize, l.order)}
	case name != "":
		return l, checkText("name", name, pglock.MaxNameBytes)
	}
	return l, nil
}

// ranked says that the list is in an order that has no pages.
func (l *listing) ranked() bool { return l.order != OrderName }

// rank is how many entries a list without pages has.
func (l *listing) rank() int {
	if l.limit == 0 {
		return l.page
	}
	return l.limit
}

// oneOf refuses a value that is not one of some.
func oneOf[T ~string](field string, value T, some ...T) error {
	if slices.Contains(some, value) {
		return nil
	}
	texts := make([]string, len(some))
	for i, one := range some {
		texts[i] = string(one)
	}
	last := len(texts) - 1
	return &pglock.ArgumentError{Field: field, Value: fmt.Sprintf("%q", string(value)), Rule: "be " +
		strings.Join(texts[:last], ", ") + " or " + texts[last]}
}

// checkSession refuses what cannot be a session's ID.
func checkSession(field, id string) error {
	if parsed, err := uuid.Parse(id); err != nil || len(id) != 36 || parsed.String() != strings.ToLower(id) {
		return &pglock.ArgumentError{Field: field, Value: argument.Shorten(id), Rule: "be the ID of a session, as in " +
			"3b241101-e2bb-4255-8caf-4136c566a962"}
	}
	return nil
}
