package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/server"
	"github.com/pglock-dev/pglock/bench/internal/worker"
)

// crowdPatience is how long what all clients do at once may take, and ticketsEvery how often their tickets are counted,
// which costs the server little.
const (
	crowdPatience = time.Minute
	ticketsEvery  = 50 * time.Millisecond
)

// crowdServer is a PostgreSQL server for W8 alone, with room for two connections of each client. If no figure counts
// the crowd is small.
func (r *Runner) crowdServer(ctx context.Context, k peer.Kind) (*server.Running, error) {
	if r.options.Smoke {
		return r.server(k), nil
	}
	size := r.options.sizes().crowd
	return r.ownServer(ctx, peer.W8, 2*max(size.resting, size.beside)+300, func(*server.Running) error { return nil })
}

// crowdOrder is for all callers, and the server for it. Each is a client by itself, but for goroutines that ask.
func (r *Runner) crowdOrder(ctx context.Context, s step, what worker.Crowd, callers, locks int) (worker.Order,
	*server.Running, error) {
	at, err := r.crowdServer(ctx, s.kinds[0])
	if err != nil {
		return worker.Order{}, nil, err
	}
	o := r.order(s.kinds[0], peer.W8, at, leaseTTL)
	o.Crowd, o.Callers, o.Names, o.Apart = what, callers, locks, what != worker.Asks
	return o, at, nil
}

// whileHeld does something with a crowd while a client holds the locks of its order. queued waits until all have their
// tickets.
func (r *Runner) whileHeld(ctx context.Context, s step, what worker.Crowd, callers, locks int,
	do func(at *server.Running, o worker.Order, queued func() error) error) error {
	o, at, err := r.crowdOrder(ctx, s, what, callers, locks)
	if err != nil {
		return err
	}
	return onServer(ctx, at, func(ctx context.Context, conn *pgx.Conn) (err error) {
		holder, err := s.kinds[0].Open(ctx, peer.Config{Address: o.Address, Workload: peer.W3, Callers: 1,
			Connections: 1, TTL: o.TTL, Smoke: o.Smoke})
		if err != nil {
			return err
		}
		defer func() { err = errors.Join(err, holder.Close(context.WithoutCancel(ctx))) }()
		var names []string
		for n := range locks {
			names = append(names, o.Lock(n))
		}
		if err := peer.Hold(ctx, holder, names); err != nil {
			return err
		}
		return do(at, o, func() error { return awaitTickets(ctx, conn, names, callers) })
	})
}

func awaitTickets(ctx context.Context, conn *pgx.Conn, names []string, want int) error {
	for late := time.Now().Add(crowdPatience); ; {
		var n int
		err := conn.QueryRow(ctx, `SELECT count(*) FROM pglock.waiters WHERE name = ANY ($1)`, names).Scan(&n)
		if err != nil || n >= want {
			return err
		}
		if time.Now().After(late) {
			return fmt.Errorf("%d of %d tickets after %v", n, want, crowdPatience)
		}
		if err := pause(ctx, ticketsEvery); err != nil {
			return err
		}
	}
}

// rest is W8, of one peer: clients that have waited for one lock for long.
func (r *Runner) rest(ctx context.Context, s step) error {
	size := r.options.sizes().crowd
	return r.whileHeld(ctx, s, worker.Waits, size.resting, 1,
		func(at *server.Running, o worker.Order, queued func() error) error {
			return r.keep(ctx, s, at, divide(o, size.processes), timed{ready: queued}, size.settles, size.lasts)
		})
}

// divide spreads the callers over processes.
func divide(o worker.Order, processes int) []worker.Order {
	o.Callers /= processes
	return spread(o, processes)
}

// handOvers is W2 by processes of one caller, on W8's server.
func (r *Runner) handOvers(ctx context.Context, s step) error {
	at, err := r.crowdServer(ctx, s.kinds[0])
	if err != nil {
		return err
	}
	o := r.order(s.kinds[0], peer.W2, at, leaseTTL)
	o.Callers, o.Pool = 1, 1
	return r.counted(ctx, s, at, spread(o, r.options.sizes().crowd.handing), nil)
}

// handOversBeside is handOvers in all repetitions, beside one crowd at rest.
func (r *Runner) handOversBeside(ctx context.Context, s step) error {
	size := r.options.sizes().crowd
	return r.whileHeld(ctx, s, worker.Waits, size.beside, size.locks,
		func(_ *server.Running, o worker.Order, queued func() error) error {
			group, err := worker.StartGroup(ctx, divide(o, size.processes))
			if err != nil {
				return err
			}
			if err = group.Ready(); err == nil {
				err = queued()
			}
			if err == nil {
				err = pause(ctx, size.settles)
			}
			for s.repetition = 0; err == nil && s.repetition < r.options.Repetitions; s.repetition++ {
				err = r.handOvers(ctx, s)
			}
			if err == nil {
				err = errors.Join(group.Go(worker.Window{}), group.Done())
			}
			if err != nil {
				return errors.Join(err, group.Discard())
			}
			_, err = group.Wait()
			return err
		})
}

// start is W8, of one peer: clients start at once and want one lock; those that do not wait, one after the other.
func (r *Runner) start(ctx context.Context, s step) error {
	n := r.options.sizes().crowd.starting
	what, locks := worker.Starts, 1
	if !queues(s.kinds[0]) {
		what, locks = worker.InTurn, n
	}
	o, at, err := r.crowdOrder(ctx, s, what, n, locks)
	if err != nil {
		return err
	}
	return r.keep(ctx, s, at, []worker.Order{o}, timed{open: true}, r.options.sizes().warmUp, crowdPatience)
}

// ask is W8, of one peer: goroutines of one client ask at once for a lock that another holds.
func (r *Runner) ask(ctx context.Context, s step) error {
	return r.whileHeld(ctx, s, worker.Asks, r.options.sizes().crowd.goroutines, 1,
		func(at *server.Running, o worker.Order, queued func() error) error {
			return r.keep(ctx, s, at, []worker.Order{o}, timed{open: true, done: queued}, r.options.sizes().warmUp,
				crowdPatience)
		})
}
