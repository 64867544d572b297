package protocol

import (
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
)

// How long statements go without names after one was lost: longer each time.
const (
	firstNameless = 10 * time.Second
	lastNameless  = time.Hour
)

// names decides whether statements may be prepared under names. Something between us and the server may lose them,
// such as a pooler that shares connections between transactions. A name lost for another reason must not slow us down
// for ever.
type names struct {
	unusableUntil atomic.Int64 // nanoseconds since 1970
	losses        atomic.Int64 // in a row
}

// usable reports whether names may be used on a connection of this mode. Any mode other than pgx's default forbids
// them.
func (n *names) usable(mode pgx.QueryExecMode) bool {
	return mode == pgx.QueryExecModeCacheStatement && time.Now().UnixNano() >= n.unusableUntil.Load()
}

// lost notes that a name was missing, or stood for something else: so many times in a row. No names are used for so
// long.
func (n *names) lost() (losses int, lasting time.Duration) {
	losses = int(n.losses.Add(1))
	lasting = min(firstNameless<<min(losses-1, 20), lastNameless)
	n.unusableUntil.Store(time.Now().Add(lasting).UnixNano())
	return losses, lasting
}

// worked notes that names work again.
func (n *names) worked() { n.losses.Store(0) }

// NameLost reports that a prepared statement is missing, or that its name stands for another. Nothing was done.
func NameLost(err error) bool {
	state := State(err)
	return state == "26000" || state == "42P05"
}
