package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/pglock-dev/pglock/pglock"
)

// pruneView is what prune has removed.
type pruneView struct {
	Locks     int64 `json:"locks"`
	Events    int64 `json:"events"`
	Leftovers int64 `json:"leftovers"` // rows that sweep() removes
	Idle      int64 `json:"idle_ms"`
	Older     int64 `json:"events_older_than_ms"`
	Waits     int   `json:"waits"` // how often the table of locks was in use
}

func newPrune(o *options) *cobra.Command {
	idle, older := 24*time.Hour, 90*24*time.Hour
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove what nobody needs: idle locks, old events, leftovers",
		Long: `Remove locks that have been free for longer than --idle and that nobody waits for, events older than --events, and
leftovers: tickets and sessions that have been dead for a minute, notes of requests that were given up an hour ago, receipts
of fenced writes of a week ago, and keys of work done once that are kept no longer. Of leftovers every program that holds a
lock removes a little by itself, about once a minute. Held locks and fences are never removed, and tokens go on from where
they were: a lock that was pruned and is used again has a greater token than ever before.

It removes a thousand locks at a time, and has their table alone for that moment: grants and renewals wait for some ten
milliseconds, again and again, for as long as there is something to remove. While others keep the table in use it tries again
until --timeout. What it has removed by then stays removed, and the next run goes on.

It needs the role pglock_admin.`,
		Example: `  pglock-admin prune
  pglock-admin prune --idle 1w --events 365d -o json
  pglock-admin prune --timeout 10m                   the first time, or when much has piled up`,
		Args:        noArguments,
		Annotations: usesDatabase,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if idle < 0 {
				return usageErrorf("--idle 1d", "--idle is %s: it must not be negative", durationText(idle))
			}
			if older < 0 {
				return usageErrorf("--events 90d", "--events is %s: it must not be negative", durationText(older))
			}
			return o.withPool(cmd.Context(), func(ctx context.Context, pool *pgxpool.Pool) error {
				return o.onPool(ctx, pool, func(ctx context.Context, _ *pglock.Client) error {
					view := pruneView{Idle: idle.Milliseconds(), Older: older.Milliseconds()}
					p := pruner{o: o, pool: pool, view: &view, tell: cmd.ErrOrStderr()}
					if err := p.run(ctx, idle, older); err != nil {
						return err
					}
					return o.changed(cmd, view, func(w *page) { drawPruned(w, view, idle, older) })
				})
			})
		},
	}
	durationVar(cmd.Flags(), &idle, "idle", "remove locks that have been free for longer than this `duration`")
	durationVar(cmd.Flags(), &older, "events", "remove events older than this `duration`")
	return cmd
}

// The statements of prune, each a call of one function; the library has no words for them. As text, PostgreSQL 14 reads no
// interval of more than 2^31 seconds or microseconds.
const (
	endInTime   = `SELECT pg_catalog.set_config('statement_timeout', $1::pg_catalog.text, true)`
	sweep       = `SELECT %s.sweep($1::pg_catalog.int4)`
	pruneEvents = `SELECT %s.prune_events(pg_catalog.make_interval(secs => $1::pg_catalog.float8))`
	pruneLocks  = `SELECT removed, next FROM %s.prune_locks(pg_catalog.make_interval(secs => $1::pg_catalog.float8), $2::pg_catalog.int4, $3::pg_catalog.text)`
)

const (
	sweptAtOnce = 1000 // of each kind
	namesAtOnce = 1000
	// A try stops every grant for up to a tenth of a second, and a step for as long as it lasts: those who had to queue behind
	// it go on meanwhile.
	pauseAfterTry  = 400 * time.Millisecond
	pauseAfterStep = 10 * time.Millisecond
)

// pruner counts in view what it has removed, and tells what it waits for.
type pruner struct {
	o    *options
	pool *pgxpool.Pool
	view *pruneView
	tell io.Writer

	busy bool // the last try found the table of locks in use
}

// run sweeps first, because a lock that anybody waits for is not pruned, and prunes the locks last, because they may have to
// be waited for.
func (p *pruner) run(ctx context.Context, idle, older time.Duration) error {
	for more := true; more; {
		n, _, err := p.call(ctx, sweep, sweptAtOnce)
		if err != nil {
			return p.explain(ctx, err)
		}
		p.view.Leftovers += n
		more = n >= sweptAtOnce // else no kind had so many
	}
	n, _, err := p.call(ctx, pruneEvents, older.Seconds())
	if err != nil {
		return p.explain(ctx, err)
	}
	p.view.Events = n
	return p.explain(ctx, p.locks(ctx, idle))
}

// locks goes through the names step by step.
func (p *pruner) locks(ctx context.Context, idle time.Duration) error {
	after := ""
	for {
		began, pause := time.Now(), pauseAfterTry
		n, next, err := p.call(ctx, pruneLocks, idle.Seconds(), namesAtOnce, after)
		switch {
		case isBusy(err):
			p.busy = true
			p.view.Waits++
			if p.view.Waits == 1 && p.o.output != outputJSON {
				fmt.Fprintf(p.tell, "pglock-admin: the table of locks is in use; waiting for those who write to it, for no longer than --timeout, which is %s\n", durationText(p.o.timeout))
			}
		case err != nil:
			return err
		default:
			p.busy = false
			p.view.Locks += n
			if next == nil {
				return nil
			}
			after, pause = *next, max(pauseAfterStep, time.Since(began))
		}
		select {
		case <-ctx.Done():
			if err == nil {
				err = ctx.Err()
			}
			return err
		case <-time.After(pause):
		}
	}
}

// call runs one of the statements in a transaction of its own. The server ends it when the time of this program is up: it
// would otherwise go on, with its locks, after the program has gone.
func (p *pruner) call(ctx context.Context, statement string, args ...any) (n int64, next *string, err error) {
	into := []any{&n}
	if statement == pruneLocks {
		into = append(into, &next)
	}
	err = pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, func(tx pgx.Tx) error {
		if deadline, ok := ctx.Deadline(); ok {
			left := max(1, time.Until(deadline).Milliseconds())
			if _, err := tx.Exec(ctx, endInTime, fmt.Sprint(left)); err != nil {
				return err
			}
		}
		return tx.QueryRow(ctx, fmt.Sprintf(statement, pgx.Identifier{p.o.schema}.Sanitize()), args...).Scan(into...)
	})
	return n, next, pglock.ErrorFromSQL(err, "", 0)
}

// outOfTime reports whether it was the time of this program that ended a statement, and not an administrator.
func outOfTime(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < 100*time.Millisecond
}

func stateOf(err error) string {
	var pgErr *pgconn.PgError
	if errors.As(err, &pgErr) {
		return pgErr.Code
	}
	return ""
}

func count(n int64, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

func isBusy(err error) bool { return stateOf(err) == "55P03" }

// explain says what was removed all the same, and what to do next.
func (p *pruner) explain(ctx context.Context, err error) error {
	late := stateOf(err) == "57014" && outOfTime(ctx) || errors.Is(ctx.Err(), context.DeadlineExceeded)
	switch {
	case err == nil:
		return nil
	case isBusy(err), late && p.busy:
		return &advised{code: exitFailure, text: fmt.Sprintf("the table of locks is in use; %s, after %s", p.removed(), count(int64(p.view.Waits), "wait")),
			hint: "again at a quieter time, or with a longer --timeout. It waits for VACUUM, and for transactions that have acquired, renewed\n" +
				"  or released a lock and are still open. Who they are:\n" +
				"  SELECT a.pid, a.usename, a.application_name, a.state, a.xact_start, l.mode, a.query\n" +
				"  FROM pg_locks l JOIN pg_stat_activity a USING (pid)\n" +
				"  WHERE l.relation = '" + strings.ReplaceAll(pgx.Identifier{p.o.schema, "locks"}.Sanitize(), "'", "''") + "'::regclass AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())\n" +
				"  AND l.granted AND l.mode NOT IN ('AccessShareLock', 'RowShareLock')"}
	case late:
		return &advised{code: exitFailure, text: fmt.Sprintf("there is more to remove than %s (--timeout) is enough for; %s", durationText(p.o.timeout), p.removed()),
			hint: again + ", which goes on; or with a longer --timeout"}
	case ctx.Err() != nil: // interrupted
		return &advised{code: exitInterrupted, text: "interrupted; " + p.removed(), hint: again + ", which goes on"}
	case p.view.Locks+p.view.Leftovers+p.view.Events > 0:
		code, hint := p.o.advice(ctx, err)
		return &advised{code: code, text: p.removed(), err: err, hint: hint}
	}
	return err
}

func (p *pruner) removed() string {
	return fmt.Sprintf("removed %s, %s and %s", count(p.view.Locks, "lock"), count(p.view.Leftovers, "leftover"), count(p.view.Events, "event"))
}

func drawPruned(w *page, v pruneView, idle, older time.Duration) {
	fmt.Fprintln(w, "removed")
	drawFields(w, [][2]string{
		{"  locks", fmt.Sprintf("%d, free for longer than %s", v.Locks, age(idle))},
		{"  events", fmt.Sprintf("%d, older than %s", v.Events, age(older))},
		{"  leftovers", fmt.Sprintf("%d, of dead sessions, old requests and work done once", v.Leftovers)},
	})
}
