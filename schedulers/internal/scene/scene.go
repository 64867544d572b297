// Package scene is what the tests of the schedulers share: replicas of an application, in this process and in others.
package scene

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// variable has the database of a child process.
const variable = "PGLOCK_SCHEDULERS_TEST_CHILD"

// TTL of all leases: how long the lock of a killed process stays taken.
const TTL = time.Second

// patience bounds every wait for what must happen.
const patience = 20 * time.Second

// Replica is a replica of the application.
type Replica struct {
	Name   string
	Client *pglock.Client
	Store  *fencedstore.Store
}

// Main is TestMain. In a process that Child starts it runs child until standard input ends.
func Main(m *testing.M, child func(ctx context.Context, r Replica) error) {
	url := os.Getenv(variable)
	if url == "" {
		pgtest.Main(m, pgtest.WithTemplate(func(ctx context.Context, url string) error {
			if err := migrations.Up(ctx, url); err != nil {
				return err
			}
			conn, err := pgx.Connect(ctx, url)
			if err != nil {
				return err
			}
			defer conn.Close(ctx)
			_, err = conn.Exec(ctx, "CREATE TABLE runs (slot timestamptz, by text NOT NULL)")
			return err
		}))
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		_, _ = bufio.NewReader(os.Stdin).ReadByte() // ends with the parent
		cancel()
	}()
	pool, err := pgxpool.New(ctx, url)
	if err == nil {
		var client *pglock.Client
		if client, err = pglock.New(ctx, pool, pglock.WithDefaultTTL(TTL)); err == nil {
			err = child(ctx, Replica{Name: "child", Client: client, Store: fencedstore.New(pool)})
		}
	}
	fmt.Fprintln(os.Stderr, err)
	os.Exit(1)
}

// Replicas makes n replicas in this process, which end with the test.
func Replicas(t *testing.T, db *pgtest.DB, n int) (all []Replica) {
	t.Helper()
	for i := range n {
		pool := db.Pool(t)
		name := fmt.Sprint("replica ", i+1)
		client, err := pglock.New(t.Context(), pool, pglock.WithDefaultTTL(TTL), pglock.WithDefaultHolder(name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 10*time.Second)
			defer cancel()
			if err := client.Close(ctx); err != nil {
				t.Error(err)
			}
		})
		all = append(all, Replica{Name: name, Client: client, Store: fencedstore.New(pool)})
	}
	return all
}

// InTheMiddle is what a child says when it is.
const InTheMiddle = "in the middle"

// Child starts this test's program again, as another replica, and waits until it is in the middle of a run. It gives
// the function that kills it.
func Child(t *testing.T, db *pgtest.DB) (kill func()) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), variable+"="+db.URL())
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		_ = cmd.Process.Kill() // it may be dead
		_ = cmd.Wait()
		_ = stdin.Close()
	}
	t.Cleanup(kill)
	for lines := bufio.NewScanner(stdout); lines.Scan(); {
		if lines.Text() == InTheMiddle {
			return kill
		}
	}
	t.Fatal("the child ended too soon")
	return nil
}

// Insert is the work of a job.
func (r Replica) Insert(ctx context.Context, tx pgx.Tx, slot time.Time) error {
	_, err := tx.Exec(ctx, "INSERT INTO runs VALUES ($1, $2)", slot, r.Name)
	return err
}

// WantOneRunPerSlot checks that every slot from the first to the last has one run, where there is one every so often.
// It gives them.
func WantOneRunPerSlot(t *testing.T, db *pgtest.DB, every time.Duration) (slots []time.Time) {
	t.Helper()
	rows, err := db.Conn(t).Query(t.Context(), "SELECT slot FROM runs ORDER BY slot")
	if err == nil {
		slots, err = pgx.CollectRows(rows, pgx.RowTo[time.Time])
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, slot := range slots {
		if i > 0 && slot.Sub(slots[i-1]) != every {
			t.Errorf("after the run of %v comes that of %v", slots[i-1], slot)
		}
	}
	if len(slots) == 0 {
		t.Error("no runs")
	}
	return slots
}

// Await receives n values, or fails. It gives the last.
func Await[T any](t *testing.T, n int, from <-chan T) (last T) {
	t.Helper()
	for range n {
		select {
		case last = <-from:
		case <-time.After(patience):
			t.Fatal("nothing happens any more")
		}
	}
	return last
}

// AwaitWaiter waits until a replica waits for the lock.
func AwaitWaiter(t *testing.T, db *pgtest.DB) {
	t.Helper()
	conn, began := db.Conn(t), time.Now()
	for waits := false; !waits; {
		if err := conn.QueryRow(t.Context(), "SELECT EXISTS (SELECT FROM pglock.waiters)").Scan(&waits); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) > patience {
			t.Fatal("nobody waits for the lock")
		}
	}
}
