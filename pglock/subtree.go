package pglock

import (
	"context"
	"slices"
	"strings"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/protocol"
)

// WithSubtree asks for the lock and for every name below it: each that begins with the name and '/', now and while
// the lease lasts, without knowing the names. Whoever has another lease below, or a subtree above, is waited for. While
// it is held or waited for, later requests below wait behind it. A shared subtree (WithShared) excludes only what is
// not shared. Requests of the same owner (Lease.Context) for names below are granted while the subtree is held.
//
// The lease may pass the fence of any resource at or below its name (fencedstore.Fence). The name must not begin or
// end with '/', nor have two in a row. It excludes WithLimit. A subtree costs two round trips at least, and the server
// reads all names below it once.
func WithSubtree() AcquireOption {
	return func(r *request) error {
		r.Subtree = true
		return nil
	}
}

func checkSubtree(r *request) error {
	switch {
	case !r.Subtree:
		return nil
	case r.Mode == string(ModeLimit):
		return &ArgumentError{"mode", modeText(ModeLimit, r.Capacity), "be exclusive or shared for a subtree"}
	case slices.Contains(strings.Split(r.Name, "/"), ""):
		return &ArgumentError{"name", argument.Shorten(r.Name), "have no empty part between, before or behind " +
			"slashes, as that of a subtree"}
	}
	return nil
}

// compareNames orders names so that whatever is below a name follows it at once.
func compareNames(a, b string) int {
	return slices.Compare(strings.Split(a, "/"), strings.Split(b, "/"))
}

// undecided is how often a request for a subtree is sent again while nobody is in its way: the server waits each time,
// for at most a tenth of a second, until grants that were under way are known.
const undecided = 10

// isFree reports that the server has neither granted a try for a subtree nor said who is in the way: whoever joined the
// free lock at that moment is soon done.
func (q *pending) isFree(a protocol.Answer) bool {
	return q.Subtree && !q.Wait && !q.taken && !a.Granted && a.Ticket == 0 && a.Holder == ""
}

// askForSubtree asks again for a subtree whose ticket is written: no subtree is granted before that, nor handed over. A
// call that does not wait leaves the queue if it is not granted then.
func (c *Client) askForSubtree(ctx context.Context, q *pending, a protocol.Answer) (protocol.Answer, error) {
	for n := 0; n < undecided && !a.Granted && a.Ticket != 0 && (n == 0 || a.Holder == ""); n++ {
		q.Retry, q.queued = true, true
		last := a
		var err error
		if a, err = c.ask(ctx, q); err != nil {
			return a, c.leaveQueue(q, last, err)
		}
	}
	if !q.Wait && !a.Granted && a.Ticket != 0 {
		c.takeBack(q.RequestID, q.lost, q.TTL)
	}
	return a, nil
}
