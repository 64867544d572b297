//go:build unix

// Package load is the worker of the laboratory: a process with a client, whose goroutines take locks in all the ways
// there are and write under them, and which says what it does and what it was answered.
package load

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/pglock"
)

// Setup is the first line that a worker is told.
type Setup struct {
	Who        int64 // worker * history.Lives + life
	Seed       uint64
	URL        string
	Label      string
	Exec       bool          // the connections do without prepared statements
	Isolation  string        // the sessions' default
	SessionTTL time.Duration // after how long a dead worker's places in queues are passed over
	Goroutines int
	Pace       time.Duration // about so long is the pause of a goroutine between two calls
}

// Order is every line after it.
type Order struct {
	Do  string        `json:"do"` // one of the constants
	N   int           `json:"n,omitempty"`
	TTL time.Duration `json:"ttl,omitempty"`
	For time.Duration `json:"for,omitempty"`
}

// What a worker can be ordered to do.
const (
	Storm    = "storm"  // N calls that wait for as many held locks are cancelled at once
	Crowd    = "crowd"  // one client keeps N leases of the TTL, and beside them short ones for so long
	Throng   = "throng" // N clients ask for one lock at once, each for so long at most
	Extend   = "extend" // a lease, for so long
	Keep     = "keep"   // hold a lease of the TTL for ever, and ask for another when it is lost
	Lead     = "lead"   // campaign for ever, and write while it leads
	GoInside = "inside" // write, and wait within the callback, after the work, for GoOn
	GoOn     = "go on"
	Drain    = "drain" // end all calls
	Close    = "close" // close the client, and end
)

// worker is one life of a worker.
type worker struct {
	Setup
	pool   *pgxpool.Pool
	client *pglock.Client
	store  *fencedstore.Store
	out    *outbox
	dog    *watchdog

	ids     atomic.Int64
	storms  atomic.Int64
	big     sync.Mutex // held by what makes thousands of goroutines, or hundreds of connections
	goOn    chan struct{}
	errands sync.WaitGroup // what was ordered beside the load
}

// Run is the life of a worker: it is told what to do on in, and says what it does on out. When in ends it returns at
// once, and the process should end: its master has.
func Run(in io.Reader, out io.Writer) error {
	lines := bufio.NewScanner(in)
	w := &worker{out: &outbox{to: json.NewEncoder(out)}, goOn: make(chan struct{}, 1)}
	if !lines.Scan() || json.Unmarshal(lines.Bytes(), &w.Setup) != nil {
		return fmt.Errorf("load: no setup on standard input")
	}
	w.out.who = w.Who
	orders := make(chan Order)
	go func() {
		for lines.Scan() {
			var o Order
			if json.Unmarshal(lines.Bytes(), &o) == nil {
				orders <- o
			}
		}
		os.Exit(0) // nobody is left to tell us anything
	}()
	w.dog = newWatchdog(w.out)
	before := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if err := w.open(ctx); err != nil {
		return err
	}
	runtime.GC()
	heap := heapNow()
	opened := runtime.NumGoroutine()
	w.out.say(history.Event{Kind: history.Ready, At: history.Now()})

	load, stop := context.WithCancel(ctx)
	defer stop()
	var loops sync.WaitGroup
	for n := range w.Goroutines {
		r := rand.New(rand.NewPCG(w.Seed, uint64(w.Who)*1000+uint64(n)))
		loops.Go(func() { w.loop(load, r) })
	}
	for o := range orders {
		switch o.Do {
		case Storm:
			w.errands.Go(func() { w.storm(load, o) })
		case Crowd:
			w.errands.Go(func() { w.crowd(load, o) })
		case Throng:
			w.errands.Go(func() { w.throng(load, o) })
		case Extend:
			w.errands.Go(func() {
				q := request{how: "extended", names: []string{"extended " + w.Label}, mode: pglock.ModeExclusive,
					ttl: 500 * time.Millisecond, patience: 3 * time.Second}
				w.extend(load, rand.New(rand.NewPCG(w.Seed, uint64(w.id()))), q, o.For, func() {
					w.out.say(history.Event{Kind: history.Extended, At: history.Now()})
				})
			})
		case Keep:
			w.errands.Go(func() { w.keep(load, o.TTL) })
		case Lead:
			w.errands.Go(func() { w.lead(load) })
		case GoInside:
			w.errands.Go(func() { w.inside(load) })
		case GoOn:
			select {
			case w.goOn <- struct{}{}:
			default:
			}
		case Drain:
			stop()
			loops.Wait()
			w.errands.Wait()
			w.out.say(w.drained(opened))
		case Close:
			w.close(before, heap)
			w.dog.close()
			return nil
		}
	}
	return nil
}

// open makes pool and client, as soon as there is a server.
func (w *worker) open(ctx context.Context) (err error) {
	if w.pool, err = w.newPool(ctx, 6, w.Label); err != nil {
		return err
	}
	w.client, err = w.newClient(ctx, w.pool, w.Label)
	w.store = fencedstore.New(w.pool)
	return err
}

func (w *worker) newPool(ctx context.Context, most int32, name string) (*pgxpool.Pool, error) {
	config, err := pgxpool.ParseConfig(w.URL)
	if err != nil {
		return nil, err
	}
	config.MaxConns = most
	config.ConnConfig.RuntimeParams["application_name"] = name
	config.ConnConfig.RuntimeParams["default_transaction_isolation"] = w.Isolation
	if w.Exec {
		config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
	}
	pglock.ObserveCommits(config.ConnConfig)
	return pgxpool.NewWithConfig(ctx, config)
}

// newClient tries for as long as faults may keep the server away.
func (w *worker) newClient(ctx context.Context, pool *pgxpool.Pool, label string,
	opts ...pglock.Option) (c *pglock.Client, err error) {
	opts = append([]pglock.Option{pglock.WithDefaultHolder(label), pglock.WithSessionTTL(w.SessionTTL)}, opts...)
	for deadline := time.Now().Add(30 * time.Second); ; {
		attempt, cancel := context.WithTimeout(ctx, 3*time.Second)
		c, err = pglock.New(attempt, pool, opts...)
		cancel()
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return c, err
		}
		sleep(ctx, 20*time.Millisecond)
	}
}

// drained says how many goroutines are left when every call has returned, and no call comes. A leak stays for ever.
// What may take a while are connections under way to a server that is busy with the crowd of another worker.
func (w *worker) drained(opened int) history.Event {
	left := settled(opened+afterCalls, 20*time.Second)
	e := history.Event{Kind: history.Drained, At: history.Now(), Before: opened, Goroutines: left}
	if left > opened+afterCalls {
		e.Error = stacks()
	}
	return e
}

// close ends client and pool and says what is left.
func (w *worker) close(before int, heap uint64) {
	done := w.dog.watch("Client.Close", 15*time.Second)
	err := w.client.Close(context.Background())
	done()
	done = w.dog.watch("Pool.Close", 15*time.Second)
	w.pool.Close()
	done()
	left := settled(before, 5*time.Second)
	runtime.GC()
	e := history.Event{Kind: history.Closed, At: history.Now(), How: history.Close, Class: classify(err),
		Before: before, Goroutines: left, HeapBefore: heap, Heap: heapNow()}
	if left > before {
		e.Error = stacks()
	}
	w.out.say(e)
}

func (w *worker) id() int64 { return w.Who*1_000_000_000 + w.ids.Add(1) }

// settled is how many goroutines there are when they are no more than wanted, or when the time is over.
func settled(wanted int, within time.Duration) (n int) {
	for deadline := time.Now().Add(within); ; time.Sleep(10 * time.Millisecond) {
		if n = runtime.NumGoroutine(); n <= wanted || time.Now().After(deadline) {
			return n
		}
	}
}

func heapNow() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// stacks tells what the goroutines do, those that do the same together.
func stacks() string {
	var b strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
	return b.String()
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
}

// outbox says one event at a time.
type outbox struct {
	who int64
	mu  sync.Mutex
	to  *json.Encoder
}

func (o *outbox) say(e history.Event) {
	e.Who = o.who
	o.mu.Lock()
	defer o.mu.Unlock()
	_ = o.to.Encode(e) // whoever does not listen has ended
}
