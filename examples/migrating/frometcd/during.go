package frometcd

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/pglock-dev/pglock/examples/migrating/report"
	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

// MutexDuring holds the lease and the old lock.
func MutexDuring(ctx context.Context, client *pglock.Client, store *fencedstore.Store, etcd *clientv3.Client) error {
	return client.Do(ctx, "nightly", func(ctx context.Context, lease *pglock.Lease) error {
		granted, err := etcd.Grant(ctx, 30)
		if err != nil {
			return err
		}
		session, err := concurrency.NewSession(etcd, concurrency.WithLease(granted.ID))
		if err != nil {
			return err
		}
		defer func() { // for 5 s at most: TCP notices only after minutes that etcd is cut off
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
			defer cancel()
			session.Orphan()                         // it was renewed until here
			_, _ = etcd.Revoke(ctx, session.Lease()) // with the lock's key; at worst it ends by itself
		}()
		mutex := concurrency.NewMutex(session, "/locks/nightly/")
		if err := mutex.Lock(ctx); err != nil {
			return err
		}
		return store.Write(ctx, lease, func(ctx context.Context, tx pgx.Tx) error {
			if err := report.Write(ctx, tx); err != nil {
				return err
			}
			answer, err := etcd.Txn(ctx).If(mutex.IsOwner()).Commit() // the last step before COMMIT
			if err == nil && !answer.Succeeded {
				err = concurrency.ErrSessionExpired
			}
			return err
		})
	})
}

// ElectionDuring leads in pglock first, and then in etcd.
func ElectionDuring(
	ctx context.Context, client *pglock.Client, etcd *clientv3.Client, me string,
	work func(context.Context, *pglock.Lease) error,
) error {
	candidate, err := leader.New(client, "leader/reporter", leader.WithTTL(30*time.Second), leader.WithHolder(me))
	if err != nil {
		return err
	}
	return candidate.Run(ctx, func(ctx context.Context, lease *pglock.Lease) error {
		return ElectionBefore(ctx, etcd, me, func(ctx context.Context) error { return work(ctx, lease) })
	})
}
