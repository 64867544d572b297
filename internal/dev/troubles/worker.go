//go:build unix

package troubles

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/hooks"
	"github.com/pglock-dev/pglock/lockadmin"
	"github.com/pglock-dev/pglock/pglock"
)

// The environment of a worker: a program that holds a lock, and that is killed or stopped.
const (
	roleVariable = "PGLOCK_TROUBLES_ROLE"
	urlVariable  = "PGLOCK_TROUBLES_URL"

	roleHold    = "hold"
	roleTake    = "take" // roleHold before the first renewal
	rolePrepare = "prepare"
)

// IsWorker reports whether this process was started as a worker. A program that calls Prepare calls Work if so, before
// anything else.
func IsWorker() bool { return os.Getenv(roleVariable) != "" }

// Work plays the worker, and returns its exit code.
func Work() int {
	err := work(context.Background(), os.Getenv(roleVariable), os.Getenv(urlVariable))
	fmt.Println("failed:", err)
	return 1
}

func work(ctx context.Context, role, url string) error {
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return err
	}
	c, err := pglock.New(ctx, pool)
	if err != nil {
		return err
	}
	if role == rolePrepare {
		if err := prepare(ctx, c, pool); err != nil {
			return err
		}
		fmt.Println("ready")
		select {}
	}
	lease, err := c.TryAcquire(ctx, report, pglock.WithTTL(30*time.Minute))
	if err != nil {
		return err
	}
	if role == roleHold {
		if err := beat(ctx, lease, pool); err != nil {
			return err
		}
	}
	again := make(chan os.Signal, 1)
	signal.Notify(again, syscall.SIGCONT)
	fmt.Println("ready")
	for range again { // its clock says that no renewal is due: half an hour has passed for the server alone
		if err := hooks.Of(lease).Renew(ctx); err != nil {
			fmt.Println("lost:", err)
		}
	}
	return nil
}

// beat makes the client renew a lease with its heartbeat, which opens that connection, and returns when the server
// knows it.
func beat(ctx context.Context, lease *pglock.Lease, pool *pgxpool.Pool) error {
	admin, err := lockadmin.New(ctx, pool)
	if err != nil {
		return err
	}
	end, err := lease.Extend(ctx, lease.TTL()+time.Second)
	if err != nil {
		return err
	}
	end()
	for pauseBriefly(ctx) {
		backends, err := admin.Backends(ctx, lease.Name())
		if err != nil {
			return err
		}
		for _, b := range backends {
			if b.Use == lockadmin.BackendHeartbeat && b.Token == lease.Token() {
				return nil
			}
		}
	}
	return ctx.Err()
}

// prepare leaves a fenced transaction prepared.
func prepare(ctx context.Context, c *pglock.Client, pool *pgxpool.Pool) error {
	lease, err := c.TryAcquire(ctx, report, pglock.WithTTL(5*time.Second))
	if err != nil {
		return err
	}
	if err := fencedstore.New(pool).Write(ctx, fencedstore.Fence{Lease: lease, SameToken: true}, nothing); err != nil {
		return err
	}
	tx, err := pool.Begin(ctx)
	if err != nil {
		return err
	}
	if _, err := fencedstore.Guard(ctx, tx, fencedstore.Fence{Lease: lease, SameToken: true}); err != nil {
		return err
	}
	for _, sql := range []string{"UPDATE accounts SET balance = balance + 60 WHERE id = 16",
		"PREPARE TRANSACTION 'transfer-2026-11-22-0316'"} {
		if _, err := tx.Exec(ctx, sql, pgx.QueryExecModeSimpleProtocol); err != nil {
			return err
		}
	}
	return nil
}

func nothing(context.Context, pgx.Tx) error { return nil }

// process starts a worker, and returns when it is ready.
func (s *Stage) process(role string) *os.Process {
	cmd := exec.Command(get(os.Executable()))
	cmd.Args = []string{"reporter"} // the name of the program, in its label and for ps
	cmd.Env = append(os.Environ(), roleVariable+"="+role, urlVariable+"="+s.url)
	cmd.Stderr = os.Stderr
	out := get(cmd.StdoutPipe())
	must(cmd.Start())
	said := make(chan string, 1)
	s.wg.Go(func() {
		for lines := bufio.NewScanner(out); lines.Scan(); {
			select {
			case said <- lines.Text():
			default:
			}
		}
		_ = cmd.Wait()
	})
	s.atEnd(func() { _ = cmd.Process.Kill() })
	select {
	case line := <-said:
		if line != "ready" {
			must(fmt.Errorf("the worker says: %s", strings.TrimSpace(line)))
		}
	case <-s.making.Done():
		must(s.making.Err())
	}
	return cmd.Process
}
