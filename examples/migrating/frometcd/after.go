package frometcd

import (
	"context"
	"time"

	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

// ElectionAfter leads until work returns, and campaigns again when leadership was lost.
func ElectionAfter(
	ctx context.Context, client *pglock.Client, me string, work func(context.Context, *pglock.Lease) error,
) error {
	candidate, err := leader.New(client, "leader/reporter", leader.WithTTL(30*time.Second), leader.WithHolder(me))
	if err != nil {
		return err
	}
	return candidate.Run(ctx, work)
}

// Leader calls tell with the leader's name, now and at each change, until ctx ends. It is empty while nobody leads.
func Leader(ctx context.Context, client *pglock.Client, tell func(name string)) error {
	for info, err := range leader.Observe(ctx, client, "leader/reporter") {
		if err != nil {
			return err
		}
		tell(info.Holder)
	}
	return nil
}
