package fencedstore

import (
	"context"
	"slices"
	"sync/atomic"

	"github.com/pglock-dev/pglock/internal/argument"
	"github.com/pglock-dev/pglock/internal/refuse"
)

// around is a write whose callback runs. The context of the callback has it.
type around struct {
	opening
	outer *around // the write around this one; nil: there is none
	over  atomic.Bool
}

type aroundKey struct{}

// writeAround is the innermost write whose callback has this context, or one made of it; nil: there is none.
func writeAround(ctx context.Context) *around {
	a, _ := ctx.Value(aroundKey{}).(*around)
	return a
}

// refuseWithin refuses a write that would wait for itself: the write around it keeps its fences, and its key, until the
// callback returns, which waits for this write.
func (o opening) refuseWithin(ctx context.Context) error {
	for a := writeAround(ctx); a != nil; a = a.outer {
		if a.over.Load() || a.home() != o.home() {
			continue
		}
		const rule = "not be that of a write around this one, which would wait for itself: " +
			"work in that one's transaction, or write after it"
		names := a.resources()
		for _, name := range o.resources() {
			if slices.Contains(names, name) {
				return refuse.Invalid("resource", argument.Shorten(name), rule)
			}
		}
		if o.key != "" && o.key == a.key {
			return refuse.Invalid("key", argument.Shorten(o.key), rule)
		}
	}
	return nil
}
