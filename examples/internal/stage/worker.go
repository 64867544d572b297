package stage

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/pglock"
)

// ttl of the leases: how long the lock of a process that was killed stays taken. A busy machine may keep a process from
// its renewals for seconds.
const ttl = 4 * time.Second

// Worker is what a process has at hand that a story has started.
type Worker struct {
	Name   string
	Args   []string
	Orders <-chan string // what the story tells it (Process.Tell); closed when the story lets go of it
	Pool   *pgxpool.Pool
	Client *pglock.Client
	Store  *fencedstore.Store
}

// Say tells the story, and whoever looks on, what happens.
func (*Worker) Say(format string, args ...any) { fmt.Printf(format+"\n", args...) }

// Hang says that the process is in the middle of its work, and waits there until it is killed.
func (w *Worker) Hang(ctx context.Context, format string, args ...any) error {
	w.Say(format, args...)
	<-ctx.Done()
	return context.Cause(ctx)
}

// work is the life of a process. It gives the exit code.
func work(p Play) int {
	life := context.Background() //nolint:forbidigo // the process's own, which ends with its standard input
	ctx, cancel := context.WithCancel(life)
	defer cancel()
	lines := bufio.NewScanner(os.Stdin)
	if !lines.Scan() {
		return 1
	}
	var s setup
	if err := json.Unmarshal(lines.Bytes(), &s); err != nil {
		fmt.Fprintf(os.Stderr, "%s: %v\n", p.Name, err)
		return 1
	}
	orders := make(chan string)
	go func() { // ends with standard input, at the latest with the process
		defer cancel()
		defer close(orders)
		for lines.Scan() {
			select {
			case orders <- lines.Text():
			case <-ctx.Done():
				return
			}
		}
	}()
	if err := join(ctx, p, s, orders); err != nil && ctx.Err() == nil {
		fmt.Fprintf(os.Stderr, "%s: %s: %v\n", p.Name, s.Name, err)
		return 1
	}
	return 0
}

func join(ctx context.Context, p Play, s setup, orders <-chan string) (err error) {
	pool, err := openPool(ctx, s.URL, s.Tables)
	if err != nil {
		return err
	}
	defer pool.Close()
	client, err := pglock.New(ctx, pool,
		pglock.WithSchema(s.Schema), pglock.WithDefaultHolder(s.Name), pglock.WithDefaultTTL(ttl))
	if err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		err = errors.Join(err, client.Close(ctx))
	}()
	return p.Worker(ctx, &Worker{Name: s.Name, Args: s.Args, Orders: orders,
		Pool: pool, Client: client, Store: fencedstore.New(pool)})
}

// Pause waits, as work does that takes its time.
func Pause(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
