package listener

import (
	"context"
	"errors"
	"fmt"
)

// Conn is a connection that listens, and that others may use between. Only one goroutine uses a Conn.
type Conn interface {
	Subscribe(ctx context.Context, channels ...string) error
	Unsubscribe(ctx context.Context, channels ...string) error
	// Certain reports that it goes to the server itself: what it subscribes to will come.
	Certain() bool
	// InUse reports that a statement of others goes over it: what was heard meanwhile may come with its end.
	InUse() bool
	// Next returns what was heard first, ErrQuiet when ctx ends, and any other error if the connection is lost.
	Next(ctx context.Context) (channel, payload string, err error)
	// Close ends what Subscribe has begun. A connection that works goes on for others; any other is closed.
	Close(works bool)
}

// ErrQuiet: no notification came within the given time; the connection is still good.
var ErrQuiet = errors.New("nothing was heard")

// ErrDeaf: the connection works, but brings no notifications.
var ErrDeaf = errors.New("the connection brings no notifications, perhaps because of a pooler: connect to the server " +
	"itself (WithListenConfig)")

var (
	// ErrPooled: the connection does not go to the server itself.
	ErrPooled = fmt.Errorf("%w: another process answers than the one it was connected to", ErrDeaf)
	// errUnheard: a notification that was sent on another connection did not arrive.
	errUnheard = fmt.Errorf("%w: a notification to itself did not arrive", ErrDeaf)
)
