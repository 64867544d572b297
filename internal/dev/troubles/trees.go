//go:build unix

package troubles

import (
	"context"
	"time"

	"github.com/pglock-dev/pglock/pglock"
)

const (
	tenant   = "tenants/7"
	importer = tenant + "/import"
)

// subtreeAbove is of a program that has a whole tenant, and of two that wait for something of it.
func subtreeAbove(ctx context.Context, s *Stage) error {
	c, pool, err := s.client(ctx, "app-1/mover[4711]", pglock.WithDefaultTTL(30*time.Second))
	if err != nil {
		return err
	}
	lease, err := c.Acquire(ctx, tenant, pglock.WithSubtree())
	if err == nil {
		err = beat(ctx, lease, pool)
	}
	if err == nil {
		err = s.queue(ctx, importer, "app-2/import[963]", "app-3/import[77]")
	}
	if err == nil {
		err = s.waiting(ctx, importer, 4*time.Minute)
	}
	if err == nil {
		err = s.heldFor(ctx, lease, 20*time.Minute)
	}
	return err
}

// subtreeBelow is of a program that wants a whole tenant, of which somebody else holds something.
func subtreeBelow(ctx context.Context, s *Stage) error {
	_, _, lease, err := s.holder(ctx, "app-2/import[963]", importer)
	if err == nil {
		err = s.wantTenant(ctx)
	}
	if err == nil {
		err = s.heldFor(ctx, lease, 20*time.Minute)
	}
	return err
}

// subtreeBefore is of a program that waits because another one came before it and wants the whole tenant, of which
// somebody holds something else.
func subtreeBefore(ctx context.Context, s *Stage) error {
	_, _, lease, err := s.holder(ctx, "app-2/import[963]", tenant+"/report")
	if err == nil {
		err = s.wantTenant(ctx)
	}
	if err == nil {
		err = s.queue(ctx, importer, "app-3/import[77]")
	}
	if err == nil {
		err = s.waiting(ctx, importer, 3*time.Minute)
	}
	if err == nil {
		err = s.heldFor(ctx, lease, 20*time.Minute)
	}
	return err
}

// wantTenant has a program wait for the subtree, and has it look at what is below.
func (s *Stage) wantTenant(ctx context.Context) error {
	c, _, err := s.client(ctx, "app-1/mover[4711]", pglock.WithDefaultTTL(30*time.Second))
	if err == nil {
		err = s.wait(ctx, c, s.ctx, tenant, pglock.WithSubtree())
	}
	if err == nil {
		err = s.until(ctx, "what the subtree waits for",
			"SELECT count(*) > 0 FROM pglock.subtrees WHERE name = $1 AND below <> '{}'", tenant)
	}
	if err == nil {
		err = s.waiting(ctx, tenant, 4*time.Minute)
	}
	return err
}
