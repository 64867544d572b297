package run

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/bench/internal/peer"
	"github.com/pglock-dev/pglock/bench/internal/server"
	"github.com/pglock-dev/pglock/migrations"
)

// when others queue, seen from the connections that are measured.
type when int

const (
	never  when = iota
	before      // they connect
	after       // they have used their locks, so their plans stem from a table without tickets
)

// queuedNames is how many locks others hold, and queue for.
const queuedNames = 100

// askMany has a session ask for locks, by the SQL functions: for $1 of $2 names, in turn. $3: it waits. It returns
// how many got the right answer.
const askMany = `
	SELECT count(*) FROM (
		SELECT array_agg('queue/' || n % $2::int) AS names, array_agg(gen_random_uuid()) AS grant_ids,
			array_agg('others'::text) AS holders, array_agg(interval '24 hours') AS ttls, array_agg(NULL::jsonb) AS metadata,
			array_agg(false) AS no, array_agg('exclusive'::text) AS modes, array_agg(NULL::int) AS capacities,
			array_agg($3::boolean) AS waits, array_agg(NULL::uuid) AS owner_ids
		FROM generate_series(1, $1::int) n) a,
		pglock.acquire_leases(a.names, a.grant_ids, $4::uuid, a.holders, a.ttls, a.metadata, a.no, a.modes, a.capacities,
			a.waits, '24 hours', a.owner_ids, a.no) r
	WHERE r.granted <> $3::boolean`

// beside is W7, of one peer: W1 by processes of one caller while the tickets of a live session queue for other locks.
// Those locks are held in every form, so that only the tickets differ.
func (r *Runner) beside(ctx context.Context, s step, processes, tickets int, w when) error {
	at, err := r.ticketServer(ctx, s.kinds[0])
	if err != nil {
		return err
	}
	queue := func(ctx context.Context, conn *pgx.Conn) error { return askFor(ctx, conn, tickets, true) }
	if err := onServer(ctx, at, func(ctx context.Context, conn *pgx.Conn) error {
		// As if nobody had ever used it.
		if _, err := conn.Exec(ctx, `DROP SCHEMA pglock CASCADE`); err != nil {
			return err
		}
		if err := migrations.Up(ctx, at.Address); err != nil {
			return err
		}
		if err := askFor(ctx, conn, queuedNames, false); err != nil {
			return err
		}
		if w == before {
			if err := queue(ctx, conn); err != nil {
				return err
			}
		}
		_, err := conn.Exec(ctx, `VACUUM ANALYZE pglock.locks, pglock.sessions, pglock.waiters`)
		return err
	}); err != nil {
		return err
	}
	var ready func() error
	if w == after {
		ready = func() error { return onServer(ctx, at, queue) }
	}
	o := r.order(s.kinds[0], s.lines[0].Workload, at, leaseTTL)
	o.Callers, o.Names, o.Pool = 1, 1, 1
	return r.counted(ctx, s, at, spread(o, processes), ready)
}

// askFor has a session that lives ask for the locks so often.
func askFor(ctx context.Context, conn *pgx.Conn, times int, waiting bool) error {
	var n int
	if err := conn.QueryRow(ctx, askMany, times, queuedNames, waiting, uuid.New()).Scan(&n); err != nil {
		return fmt.Errorf("ask for other locks: %w", err)
	}
	if n != times {
		return fmt.Errorf("ask for other locks: %d of %d were answered as they should be, waiting %v", n, times,
			waiting)
	}
	return nil
}

// ticketServer is a PostgreSQL server for W7 alone, because its leftovers in the tables would disturb others. It
// cleans up nothing by itself, so that this does not fall into a window.
func (r *Runner) ticketServer(ctx context.Context, k peer.Kind) (*server.Running, error) {
	return r.ownServer(ctx, peer.W7, 0, func(at *server.Running) error { return r.prepareTicketServer(ctx, k, at) })
}

// ownServer is a PostgreSQL server for one workload alone, which the first step that needs it starts and prepares.
func (r *Runner) ownServer(ctx context.Context, w peer.Workload, connections int,
	prepare func(*server.Running) error) (*server.Running, error) {
	name := string(w)
	if at := r.own[name]; at != nil {
		return at, nil
	}
	at, err := server.Start(ctx, peer.Postgres, server.Options{Smoke: r.options.Smoke, Connections: connections})
	if err != nil {
		return nil, err
	}
	if err := prepare(at); err != nil {
		return nil, errors.Join(err, at.Stop())
	}
	r.own[name] = at
	return at, nil
}

func (r *Runner) prepareTicketServer(ctx context.Context, k peer.Kind, at *server.Running) error {
	if err := onServer(ctx, at, func(ctx context.Context, conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, `ALTER SYSTEM SET autovacuum = off`); err != nil {
			return err
		}
		_, err := conn.Exec(ctx, `SELECT pg_reload_conf()`)
		return err
	}); err != nil {
		return err
	}
	const processes = 8
	o := r.order(k, peer.W7, at, leaseTTL)
	o.Callers = 1
	var t timed
	return t.together(ctx, spread(o, processes), 0, min(r.options.sizes().serverWarmUp, 2*time.Second), at.PID)
}

func onServer(ctx context.Context, at *server.Running, do func(context.Context, *pgx.Conn) error) error {
	conn, err := pgx.Connect(ctx, at.Address)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx)) //nolint:errcheck // the end
	return do(ctx, conn)
}
