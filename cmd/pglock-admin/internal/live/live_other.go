//go:build !unix

package live

import (
	"context"

	tea "charm.land/bubbletea/v2"
)

// quitting is ctx: here nobody sends SIGQUIT.
func quitting(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithCancel(ctx)
}

// suspends does nothing: here nobody continues a stopped program.
type suspends struct{}

func newSuspends(*tea.Program) *suspends { return &suspends{} }

func (*suspends) suspend() {}
func (*suspends) stop()    {}
