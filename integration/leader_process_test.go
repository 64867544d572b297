package integration

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/leader"
	"github.com/pglock-dev/pglock/pglock"
)

// What a candidate is told, in its environment.
const (
	candidateVariable    = "PGLOCK_INTEGRATION_CANDIDATE"     // its label
	candidateTTLVariable = "PGLOCK_INTEGRATION_CANDIDATE_TTL" // of its lease
)

func init() { roles["candidate"] = candidate }

// candidate campaigns for the lock x. While it leads it writes to the guarded table acts, as fast as it can. SIGUSR1
// makes it resign, SIGTERM end. After a loss it tries to write all the same, past every check of its own.
func candidate(ctx context.Context, url string, say func(report)) error {
	var saying sync.Mutex
	tell := func(r report) {
		saying.Lock()
		defer saying.Unlock()
		say(r)
	}
	ttl, err := time.ParseDuration(os.Getenv(candidateTTLVariable))
	if err != nil {
		return err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := pglock.New(ctx, pool)
	if err != nil {
		return err
	}
	defer func() { _ = client.Close(ctx) }()
	c, err := leader.New(client, "x", leader.WithHolder(os.Getenv(candidateVariable)), leader.WithTTL(ttl))
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGTERM)
	defer stop()
	go func() {
		resign := make(chan os.Signal, 1)
		signal.Notify(resign, syscall.SIGUSR1)
		for range resign {
			_ = c.Resign(ctx)
		}
	}()
	pauses := watchPauses()
	err = c.Run(ctx, func(ctx context.Context, lease *pglock.Lease) error {
		token := int64(lease.Token())
		tell(report{Event: "leads", Token: token, At: time.Now()})
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			<-ctx.Done()
			at := time.Now()
			tell(report{Event: "ended", Token: token, At: at, Gap: pauses(), Err: context.Cause(ctx).Error()})
		}()
		store := fencedstore.New(pool)
		for ctx.Err() == nil {
			_ = store.Write(ctx, fencedstore.Fence{Lease: lease, SameToken: true},
				func(ctx context.Context, tx pgx.Tx) error {
					_, err := tx.Exec(ctx, `INSERT INTO acts (token) VALUES ($1)`, token)
					return err
				})
		}
		<-ended
		if errors.Is(context.Cause(ctx), pglock.ErrLost) {
			tell(report{Event: "late", Token: token, Err: lateWrite(context.WithoutCancel(ctx), url, lease)})
		}
		return nil
	})
	tell(report{Event: "over", Err: fmt.Sprint(err)})
	return nil
}

// lateWrite is what the server answers to a deposed leader that writes, with whatever it has.
func lateWrite(ctx context.Context, url string, lease *pglock.Lease) string {
	for {
		err := func() error {
			ctx, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			conn, err := pgx.Connect(ctx, url)
			if err != nil {
				return err
			}
			defer func() { _ = conn.Close(ctx) }()
			return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
				_, err := tx.Exec(ctx, `SELECT FROM pglock.fence($1, $2, $3)`, lease.Name(), int64(lease.Token()),
					exported(lease).String())
				if err == nil {
					_, err = tx.Exec(ctx, `INSERT INTO acts (token) VALUES ($1)`, int64(lease.Token()))
				}
				return err
			})
		}()
		if err == nil || state(err) != "" {
			return fmt.Sprint(state(err))
		}
		time.Sleep(10 * time.Millisecond) // the line is cut
	}
}

// watchPauses watches for moments in which this process does not run. What it returns tells the longest of the last
// two seconds.
func watchPauses() func() time.Duration {
	var longest, since atomic.Int64
	last := atomic.Int64{}
	last.Store(time.Now().UnixNano())
	note := func() time.Duration {
		now := time.Now().UnixNano()
		gap := now - last.Swap(now)
		if gap > longest.Load() || now-since.Load() > int64(2*time.Second) {
			longest.Store(gap)
			since.Store(now)
		}
		return time.Duration(longest.Load())
	}
	go func() {
		for {
			time.Sleep(time.Millisecond)
			note()
		}
	}()
	return note
}
