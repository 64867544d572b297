package browser

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/pglock"
)

// Of a lock with several holders each one's token is present; of a free lock none is.
func TestAFenceSaysWhoseTokenHasPassedIt(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	first := s.hold("app-1", "thumbnails", pglock.WithLimit(2))
	second := s.hold("app-2", "thumbnails", pglock.WithLimit(2))
	store := fencedstore.New(s.pool)
	write := func(lease *pglock.Lease, resource string) {
		nothing := func(context.Context, pgx.Tx) error { return nil }
		must.Do(t, store.Write(t.Context(), fencedstore.Fence{Lease: lease, Resource: resource}, nothing))
	}
	write(first, "a")
	write(second, "b")
	p := open(t, s.home, "#/lock?name=thumbnails", 1240, 900)
	said := "[...document.querySelectorAll('[aria-label=Fences] tbody tr')].map(" +
		"r => r.firstChild.textContent + ': ' + r.lastChild.textContent).join('; ')"
	p.until(said + " === 'a: by the present token; b: by the present token'")
	for _, lease := range []*pglock.Lease{first, second} {
		must.Do(t, lease.Release(t.Context()))
	}
	p.until(said + " === 'a: by an earlier token; b: by the last token'")
}
