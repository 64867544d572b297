// Package frometcd comes from go.etcd.io/etcd/client/v3/concurrency.
package frometcd

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"

	"github.com/pglock-dev/pglock/examples/migrating/report"
)

// MutexBefore waits in etcd's queue.
func MutexBefore(ctx context.Context, etcd *clientv3.Client, pool *pgxpool.Pool) error {
	session, err := concurrency.NewSession(etcd, concurrency.WithTTL(30))
	if err != nil {
		return err
	}
	defer session.Close()
	mutex := concurrency.NewMutex(session, "/locks/nightly/")
	if err := mutex.Lock(ctx); err != nil {
		return err
	}
	defer mutex.Unlock(context.WithoutCancel(ctx))
	return report.Write(ctx, pool)
}

// ElectionBefore leads until work returns.
func ElectionBefore(ctx context.Context, etcd *clientv3.Client, me string, work func(context.Context) error) error {
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
		_, _ = etcd.Revoke(ctx, session.Lease()) // with the candidate's key; at worst it ends by itself
	}()
	election := concurrency.NewElection(session, "/leaders/reporter/")
	if err := election.Campaign(ctx, me); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(session.Ctx(), cancel)() // the lease is lost
	return work(ctx)
}
