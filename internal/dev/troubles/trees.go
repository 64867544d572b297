//go:build unix

package troubles

import (
	"time"

	"github.com/pglock-dev/pglock/pglock"
)

const (
	tenant   = "tenants/7"
	importer = tenant + "/import"
)

// subtreeAbove is of a program that has a whole tenant, and of two that wait for something of it.
func subtreeAbove(s *Stage) {
	c, pool := s.client("app-1/mover[4711]", pglock.WithDefaultTTL(30*time.Second))
	lease := get(c.Acquire(s.making, tenant, pglock.WithSubtree()))
	must(beat(s.making, lease, pool))
	s.queue(importer, "app-2/import[963]", "app-3/import[77]")
	s.waiting(importer, 4*time.Minute)
	s.heldFor(lease, 20*time.Minute)
}

// subtreeBelow is of a program that wants a whole tenant, of which somebody else holds something.
func subtreeBelow(s *Stage) {
	_, _, lease := s.holder("app-2/import[963]", importer)
	s.wantTenant()
	s.heldFor(lease, 20*time.Minute)
}

// subtreeBefore is of a program that waits because another one came before it and wants the whole tenant, of which
// somebody holds something else.
func subtreeBefore(s *Stage) {
	_, _, lease := s.holder("app-2/import[963]", tenant+"/report")
	s.wantTenant()
	s.queue(importer, "app-3/import[77]")
	s.waiting(importer, 3*time.Minute)
	s.heldFor(lease, 20*time.Minute)
}

// wantTenant has a program wait for the subtree, and has it look at what is below.
func (s *Stage) wantTenant() {
	c, _ := s.client("app-1/mover[4711]", pglock.WithDefaultTTL(30*time.Second))
	s.wait(c, s.ctx, tenant, pglock.WithSubtree())
	s.until("what the subtree waits for",
		"SELECT count(*) > 0 FROM pglock.subtrees WHERE name = $1 AND below <> '{}'", tenant)
	s.waiting(tenant, 4*time.Minute)
}
