// Package scene is what the tests of the schedulers share: replicas of an application, in this process and in others.
package scene

import (
	"bufio"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/migrations"
	"github.com/pglock-dev/pglock/pglock"
)

// variable has the database of a child process.
const variable = "PGLOCK_SCHEDULERS_TEST_CHILD"

// TTL of all leases: how long the lock of a killed process stays taken. A busy machine renews them in time.
const TTL = 5 * time.Second

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

// Clock tells the replicas of a test the time, and notes when they asked.
type Clock struct {
	mu    sync.Mutex
	asked []time.Time
}

// Skewed is the clock of a replica that is late or early.
func (c *Clock) Skewed(by time.Duration) func() time.Time {
	checked := false
	return func() time.Time {
		now := time.Now().Add(by)
		c.mu.Lock()
		defer c.mu.Unlock()
		if checked { // NewSlots asks once, to check the schedule
			c.asked = append(c.asked, now)
		}
		checked = true
		return now
	}
}

// WantOneRunPerSlot checks that every slot that a replica has asked for has one run, up to the last run. So many calls
// have failed; each of them may be the only one for its slot. A machine that stands still for longer than a period
// makes all replicas miss a slot: nobody asks for it.
func (c *Clock) WantOneRunPerSlot(t *testing.T, db *pgtest.DB, period time.Duration, failed int) {
	t.Helper()
	ran := Slots(t, db)
	c.mu.Lock()
	defer c.mu.Unlock()
	missing := make(map[time.Time]bool)
	for _, now := range c.asked { // whoever is up to a tenth of the period early asks for the next slot
		if slot := now.UTC().Add(period / 10).Truncate(period); !slot.After(ran[len(ran)-1]) {
			missing[slot] = true
		}
	}
	for i, slot := range ran {
		if slot = slot.UTC(); i > 0 && slot.Equal(ran[i-1]) || !missing[slot] {
			t.Errorf("the slot of %v was run twice, or nobody has asked for it", slot)
		}
		delete(missing, slot)
	}
	if len(missing) > failed {
		t.Errorf("not run, with %d failures: %v", failed, slices.Collect(maps.Keys(missing)))
	}
}

// Slots are those that were run, in order.
func Slots(t *testing.T, db *pgtest.DB) (slots []time.Time) {
	t.Helper()
	rows, err := db.Conn(t).Query(t.Context(), "SELECT slot FROM runs ORDER BY slot")
	if err == nil {
		slots, err = pgx.CollectRows(rows, pgx.RowTo[time.Time])
	}
	if err != nil {
		t.Fatal(err)
	}
	if len(slots) == 0 {
		t.Fatal("no runs")
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

// AwaitDone waits until n slots are done.
func AwaitDone(t *testing.T, db *pgtest.DB, n int) {
	t.Helper()
	await(t, db, fmt.Sprintf("SELECT count(*) >= %d FROM pglock.done_keys", n), "nothing is done any more")
}

// AwaitWaiter waits until a replica waits for the lock.
func AwaitWaiter(t *testing.T, db *pgtest.DB) {
	t.Helper()
	await(t, db, "SELECT EXISTS (SELECT FROM pglock.waiters)", "nobody waits for the lock")
}

func await(t *testing.T, db *pgtest.DB, sql, inVain string) {
	t.Helper()
	conn, began := db.Conn(t), time.Now()
	for so := false; !so; {
		if err := conn.QueryRow(t.Context(), sql).Scan(&so); err != nil {
			t.Fatal(err)
		}
		if time.Since(began) > patience {
			t.Fatal(inVain)
		}
	}
}
