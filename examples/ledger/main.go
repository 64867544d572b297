// Command ledger shows transfers between accounts whose table is under guard. A process is killed when it has taken
// the money from one account and not yet given it to the other, and a write without a lock is refused.
//
//	go run ./examples/ledger
package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/examples/internal/stage"
	"github.com/pglock-dev/pglock/fencedstore"
)

const transfers = 20 // of each process

func main() {
	stage.Main(stage.Play{
		Name: "ledger",
		Tables: `CREATE TABLE accounts (id bigint PRIMARY KEY, balance bigint NOT NULL);
			INSERT INTO accounts SELECT n, 100 FROM generate_series(1, 4) AS n;
			CREATE TABLE transfers (from_id bigint NOT NULL, to_id bigint NOT NULL, amount bigint NOT NULL)`,
		Story:  story,
		Worker: worker,
	})
}

func story(ctx context.Context, s *stage.Stage) (string, error) {
	if err := Guard(ctx, s.Pool, fencedstore.WithSchema(s.Schema)); err != nil {
		return "", err
	}
	if err := killedHalfWay(ctx, s); err != nil {
		return "", err
	}
	if err := withoutLock(ctx, s); err != nil {
		return "", err
	}
	others, err := s.StartAll("B", "C", "D")
	if err != nil {
		return "", err
	}
	for _, p := range others {
		if err := p.Tell("any"); err != nil {
			return "", err
		}
	}
	if err := s.AwaitAll(ctx, len(others), "has made"); err != nil {
		return "", err
	}
	return "no money was lost or made: not by the process that died half way, not by three at once, not past the lock.",
		errors.Join(
			s.Check(ctx, "sum of all accounts", 400, "SELECT sum(balance) FROM accounts"),
			s.Check(ctx, "transfers", 3*transfers, "SELECT count(*) FROM transfers"),
			s.Check(ctx, "accounts that differ from their transfers", 0,
				`SELECT count(*) FROM accounts WHERE balance <> 100
				+ (SELECT coalesce(sum(amount), 0) FROM transfers WHERE to_id = id)
				- (SELECT coalesce(sum(amount), 0) FROM transfers WHERE from_id = id)`),
		)
}

// killedHalfWay keeps a row from A, so that A hangs after its first UPDATE, and kills it.
func killedHalfWay(ctx context.Context, s *stage.Stage) error {
	return pgx.BeginFunc(ctx, s.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SELECT FROM accounts WHERE id = 2 FOR UPDATE"); err != nil {
			return err
		}
		a, err := s.Start("A")
		if err != nil {
			return err
		}
		if err := a.Tell("half"); err != nil {
			return err
		}
		for hangs := false; !hangs; {
			const blocked = `SELECT EXISTS (SELECT FROM pg_locks
				WHERE NOT granted AND pg_backend_pid() = ANY (pg_blocking_pids(pid)))`
			err := errors.Join(stage.Pause(ctx, 5*time.Millisecond), tx.QueryRow(ctx, blocked).Scan(&hangs))
			if err != nil {
				return err
			}
		}
		s.Say("A", "has taken 30 from account 1, and hangs at account 2")
		return a.Kill()
	})
}

// withoutLock writes as psql would.
func withoutLock(ctx context.Context, s *stage.Stage) error {
	_, err := s.Pool.Exec(ctx, "UPDATE accounts SET balance = balance + 1000 WHERE id = 3")
	var refusal *pgconn.PgError
	if !errors.As(err, &refusal) || refusal.Code != "LK011" {
		return fmt.Errorf("%w: a write without the lock was not refused: %v", stage.ErrPromise, err)
	}
	s.Say("psql", "UPDATE accounts SET balance = balance + 1000 WHERE id = 3: REFUSED, %s", refusal.Message)
	return nil
}

func worker(ctx context.Context, w *stage.Worker) error {
	ledger := &Ledger{Client: w.Client, Store: w.Store}
	if <-w.Orders == "half" {
		return ledger.Transfer(ctx, 1, 2, 30)
	}
	for range transfers {
		from := 1 + rand.Int64N(4)
		to := 1 + (from+rand.Int64N(3))%4
		for {
			err := ledger.Transfer(ctx, from, to, 1+rand.Int64N(50))
			if err == nil {
				break
			}
			if !errors.Is(err, ErrFunds) {
				return err
			}
			from, to = to, from
		}
	}
	w.Say("has made %d transfers", transfers)
	return nil
}
