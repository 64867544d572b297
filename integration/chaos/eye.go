//go:build unix

package main

import (
	"context"
	"net/url"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/integration/chaos/internal/check"
	"github.com/pglock-dev/pglock/integration/chaos/internal/cluster"
	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/integration/chaos/internal/wire"
	"github.com/pglock-dev/pglock/internal/lists"
	"github.com/pglock-dev/pglock/lockadmin"
)

const (
	lookEvery = 300 * time.Millisecond
	markEvery = 250 * time.Millisecond
	eyeName   = "chaos eye"
)

// eye is the laboratory's own client. Its line to the server is free of faults; it follows promotions.
type eye struct {
	line   *wire.Line
	pool   *pgxpool.Pool
	admin  *lockadmin.Admin
	judge  *check.Judge
	marks  atomic.Int64
	marked atomic.Int64 // the last mark that has appeared in the order of commits
	looked atomic.Int64 // how often it has
	failed atomic.Value // why the last look that failed has
}

func openEye(ctx context.Context, c *cluster.Cluster, judge *check.Judge) (_ *eye, err error) {
	line, err := wire.Listen(c.Address())
	if err != nil {
		return nil, err
	}
	e := &eye{judge: judge, line: line}
	defer func() {
		if err != nil {
			e.close()
		}
	}()
	u, err := url.Parse(c.URL())
	if err != nil {
		return nil, err
	}
	u.Host = line.Address()
	config, err := pgxpool.ParseConfig(u.String())
	if err != nil {
		return nil, err
	}
	config.MaxConns = 4
	config.ConnConfig.RuntimeParams["application_name"] = eyeName
	config.ConnConfig.RuntimeParams["synchronous_commit"] = "local" // it does not stand still with the standby
	if e.pool, err = pgxpool.NewWithConfig(ctx, config); err != nil {
		return nil, err
	}
	if e.admin, err = lockadmin.New(ctx, e.pool); err != nil {
		return nil, err
	}
	return e, nil
}

func (e *eye) close() {
	if e.pool != nil {
		e.pool.Close()
	}
	_ = e.line.Close()
}

// watch looks and marks until ctx ends.
func (e *eye) watch(ctx context.Context) {
	look, mark := time.NewTicker(lookEvery), time.NewTicker(markEvery)
	defer look.Stop()
	defer mark.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
			l, err := e.look(ctx)
			if err != nil {
				e.failed.Store(err.Error())
				continue
			}
			e.judge.Look(l)
			e.looked.Add(1)
		case <-mark.C:
			_ = e.mark(ctx)
		}
	}
}

// look asks the server what is held and who waits.
func (e *eye) look(ctx context.Context) (l history.Look, err error) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	l.Began = history.Now()
	held, err := lists.All(e.admin.Locks(ctx, lockadmin.LocksQuery{PageSize: lockadmin.MaxPageSize}))
	if err != nil {
		return l, err
	}
	waiters, err := lists.All(e.admin.Waiters(ctx, lockadmin.WaitersQuery{PageSize: lockadmin.MaxPageSize}))
	if err != nil {
		return l, err
	}
	l.Ended = history.Now()
	wall := history.ReadWall()
	for _, i := range held {
		if i.Held {
			l.Holders = append(l.Holders, history.Holder{Name: i.Name, Slot: i.Slot, Token: int64(i.Token),
				Label: i.Holder, Mode: string(i.Mode), Subtree: i.Subtree,
				AcquiredAt: wall.Time(i.AcquiredAt), ExpiresAt: wall.Time(i.ExpiresAt)})
		}
	}
	for _, w := range waiters {
		l.Tickets = append(l.Tickets, history.Ticket{Name: w.Lock, Number: w.Ticket, Place: w.Place, Label: w.Holder,
			Alive: w.Alive, Since: wall.Time(w.Since)})
	}
	return l, nil
}

// mark writes a mark into the order of commits: what was answered before it was sent comes earlier there.
func (e *eye) mark(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	n := e.marks.Add(1)
	e.judge.Marking(n, history.Now())
	began := history.Now()
	_, err := e.pool.Exec(ctx, `UPDATE public.marks SET n = $1`, n)
	e.judge.Marked(began, history.Now())
	return err
}

// flush returns when the order of commits has reached what is committed now. False: it does not get there.
func (e *eye) flush(ctx context.Context) bool {
	deadline := time.Now().Add(20 * time.Second)
	for e.mark(ctx) != nil && time.Now().Before(deadline) && ctx.Err() == nil {
		time.Sleep(50 * time.Millisecond)
	}
	for n := e.marks.Load(); e.marked.Load() < n; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			return false
		}
	}
	return true
}
