package lockadmin

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/protocol"
	"github.com/pglock-dev/pglock/internal/refuse"
	"github.com/pglock-dev/pglock/internal/shown"
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
// yields at most Limit entries, DefaultPageSize without it.
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

// LocksQuery chooses what Locks yields: with its zero value every held lock, by name. A field that is zero chooses
// nothing. Texts are compared in upper and lower case as given, and have at most pglock.MaxNameBytes bytes.
type LocksQuery struct {
	Prefix  string        // the name begins with it
	Match   string        // the name or the holder's label contains it
	Holder  string        // exactly this label, at most pglock.MaxHolderBytes bytes
	Session string        // the ID of the holder's session, as pglock.LockInfo has it
	Mode    pglock.Mode   // of the lease
	Older   time.Duration // the lease was granted so long ago, from 1 µs to 10 years
	Free    bool          // free locks too, by their last holders
	Queued  bool          // only locks for which somebody waits, free ones too
	Waited  bool          // by OrderName also locks that are free for three seconds though somebody waits

	Order Order  // OrderName by default, OrderAge, OrderRecent, OrderWaiting or OrderExpiry
	After string // begin after the lock with this name; with OrderName only
	// end after so many leases, in an order other than OrderName at most MaxPageSize; 0: no limit, in such an order
	// DefaultPageSize. The holders of one lock stay together: in OrderName the other holders of the last lock come too.
	Limit int
	// how many leases one statement reads, at most MaxPageSize; 0: DefaultPageSize. Use fewer if the loop ends early: a
	// page is the server's state at one moment.
	PageSize int
}

// WaitersQuery chooses what Waiters yields: with its zero value all queues, by the names of their locks. Its fields are
// those of LocksQuery, said of waiters.
type WaitersQuery struct {
	Lock    string // the queue of the lock with this name
	Prefix  string
	Match   string // in the lock's name or in the waiter's label
	Holder  string
	Session string
	Mode    pglock.Mode   // in which it waits
	Older   time.Duration // it has waited for so long

	Order    Order  // OrderName by default, or OrderAge
	After    string // not together with Lock
	Limit    int
	PageSize int
}

// FencesQuery chooses what Fences yields: with its zero value every fence, by the names of the resources. Its fields
// are those of LocksQuery, said of fences.
type FencesQuery struct {
	Lock   string        // the fences that its leases have passed, and that of the resource with its name
	Prefix string        // of the resource
	Match  string        // in the name of the resource or of the lock
	Older  time.Duration // nobody has passed it for so long

	Order    Order  // OrderName by default, or OrderAge
	After    string // the name of a resource
	Limit    int
	PageSize int
}

// SessionsQuery chooses what Sessions yields: with its zero value all clients, by their labels. Its fields are those of
// LocksQuery, said of sessions.
type SessionsQuery struct {
	Match   string // in the label or the ID
	Holder  string
	Session string
	Older   time.Duration // it has been silent for so long

	Order       Order  // OrderName by default, OrderAge, OrderWaiting or OrderLeases
	After       string // the ID of a session that there is still, or with AfterHolder
	AfterHolder string // its label: with that the session may have gone meanwhile
	Limit       int
	PageSize    int
}

// HistoryQuery chooses what History yields: with its zero value all entries, the newest first.
type HistoryQuery struct {
	Lock         string // what happened to the lock with this name
	Kinds        []EventKind
	Since, Until time.Time // written at Since or later, and before Until
	Before       int64     // continue after the entry with this ID, toward older ones

	Limit    int // as in LocksQuery
	PageSize int
}

// listing is what lists have in common.
type listing struct {
	lock, prefix, match, holder, session, after string
	mode                                        pglock.Mode
	older                                       time.Duration
	order                                       Order
	limit, page                                 int
}

const mostOlder = 10 * 365 * 24 * time.Hour

// check refuses what no list can be, and fills in what was left to the defaults. orders are those of the list.
func (l *listing) check(orders ...Order) error {
	l.order, l.page = cmp.Or(l.order, OrderName), cmp.Or(l.page, DefaultPageSize)
	for _, text := range []struct {
		field, value string
		most         int
	}{
		{"lock", l.lock, pglock.MaxNameBytes}, {"prefix", l.prefix, pglock.MaxNameBytes},
		{"match", l.match, pglock.MaxNameBytes}, {"holder", l.holder, pglock.MaxHolderBytes},
		{"after", l.after, pglock.MaxNameBytes},
	} {
		if err := refuse.Text(text.field, text.value, text.most); text.value != "" && err != nil {
			return err
		}
	}
	if err := checkSession("session", l.session); l.session != "" && err != nil {
		return err
	}
	modes := []pglock.Mode{pglock.ModeExclusive, pglock.ModeShared, pglock.ModeLimit}
	if err := oneOf("mode", l.mode, modes...); l.mode != "" && err != nil {
		return err
	}
	if err := oneOf("order", l.order, orders...); err != nil {
		return err
	}
	switch {
	case l.older != 0 && (l.older < time.Microsecond || l.older > mostOlder):
		return refuse.Invalid("older", l.older.String(), "be from 1µs to 10 years")
	case l.after != "" && l.ranked():
		return refuse.Invalid("after", argument.Shorten(l.after), "be given with the order name only")
	case l.limit < 0:
		return refuse.Invalid("limit", fmt.Sprint(l.limit), "be at least 1, or 0 for none")
	case l.limit > MaxPageSize && l.ranked():
		return refuse.Invalid("limit", fmt.Sprint(l.limit),
			fmt.Sprintf("be from 1 to %d in the order %s", MaxPageSize, l.order))
	}
	return refuse.Number("page size", l.page, 1, MaxPageSize)
}

// ranked says that the list is in an order that has no pages.
func (l *listing) ranked() bool { return l.order != OrderName }

// rank is how many entries a list without pages has.
func (l *listing) rank() int { return cmp.Or(l.limit, l.page) }

// since is for how long something must be so; NULL where that does not matter.
func (l *listing) since() *string {
	if l.older == 0 {
		return nil
	}
	return orNull(protocol.Interval(l.older))
}

// orNull is NULL for zero.
func orNull[T comparable](value T) *T {
	var zero T
	if value == zero {
		return nil
	}
	return &value
}

func oneOf[T ~string](field string, value T, some ...T) error {
	if slices.Contains(some, value) {
		return nil
	}
	words := shown.Words(some)
	last := len(words) - 1
	return refuse.Invalid(field, fmt.Sprintf("%q", string(value)),
		"be "+strings.Join(words[:last], ", ")+" or "+words[last])
}

func checkSession(field, id string) error {
	parsed, err := uuid.Parse(id)
	return refuse.If(err != nil || len(id) != 36 || parsed.String() != strings.ToLower(id), field,
		argument.Shorten(id), "be the ID of a session, as in 3b241101-e2bb-4255-8caf-4136c566a962")
}
