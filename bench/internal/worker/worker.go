package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/pglock-dev/pglock/bench/internal/peer"
)

// patience bounds what should take no time at all.
const patience = 20 * time.Second

// grace is how long a worker may take to end.
const grace = 10 * time.Second

// Run is the life of a worker.
func Run(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	lines := make(chan []byte)
	go func() {
		in := bufio.NewReader(os.Stdin)
		for {
			line, err := in.ReadBytes('\n')
			if err != nil {
				cancel(errors.New("the one who started this worker has ended"))
				// some clients do not heed it while they wait for a server that is gone
				time.AfterFunc(grace, func() { os.Exit(1) })
				return
			}
			select {
			case lines <- line:
			case <-ctx.Done():
				return
			}
		}
	}()
	var o Order
	if err := read(ctx, lines, &o); err != nil {
		return err
	}
	kinds, err := peer.Named([]string{o.Peer})
	if err != nil {
		return err
	}
	out := json.NewEncoder(os.Stdout)
	if o.Holder {
		return hold(ctx, kinds[0], o, os.Stdout)
	}
	result, err := work(ctx, kinds[0], o, func(said string, next any) error {
		if err := out.Encode(said); err != nil {
			return err
		}
		return read(ctx, lines, next)
	})
	if err != nil {
		result = Result{Error: err.Error()}
	}
	return out.Encode(result)
}

func read(ctx context.Context, lines <-chan []byte, into any) error {
	select {
	case line := <-lines:
		return json.Unmarshal(line, into)
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (o Order) config() peer.Config {
	return peer.Config{Address: o.Address, Workload: o.Workload, Callers: o.Callers, Connections: o.Pool, TTL: o.TTL,
		Smoke: o.Smoke, Late: o.Crowd == Starts}
}

func (o Order) open(ctx context.Context, k peer.Kind) (peer.Client, error) {
	ctx, opened := context.WithTimeout(ctx, o.patience())
	defer opened()
	if o.Apart {
		return peer.Several(ctx, k, o.config(), o.Callers)
	}
	return k.Open(ctx, o.config())
}

// work opens the peer, gets ready, works for as long as the window says, and closes the peer when all are done. say
// says how far it is, and reads what comes next.
func work(ctx context.Context, k peer.Kind, o Order, say func(string, any) error) (result Result, err error) {
	client, err := o.open(ctx, k)
	if err != nil {
		return result, err
	}
	defer func() {
		closing, closed := context.WithTimeout(context.WithoutCancel(ctx), o.patience())
		defer closed()
		if closeErr := client.Close(closing); err == nil && closeErr != nil {
			err = fmt.Errorf("close: %w", closeErr)
		}
	}()
	loops := map[peer.Workload]func(context.Context, peer.Client, Order) (loop, error){
		peer.W1: pairs, peer.W2: waits, peer.W3: keeps, peer.W5: writes, peer.W6: firsts, peer.W7: pairs,
		peer.W8: crowd,
	}
	make := loops[o.Workload]
	if make == nil {
		return result, fmt.Errorf("workload %q has no loop", o.Workload)
	}
	run, err := make(ctx, client, o)
	if err != nil {
		return result, err
	}
	var w Window
	if err := say("ready", &w); err != nil {
		return result, err
	}
	if result, err = run(ctx, w); err != nil {
		return result, err
	}
	return result, say("done", new(string))
}

// loop does the work until the window ends.
type loop func(ctx context.Context, w Window) (Result, error)

// hold takes a lock and keeps it until this process is killed. It reports each request before it is sent, because the
// lease may be counted from there, and the grant.
func hold(ctx context.Context, k peer.Kind, o Order, out io.Writer) error {
	config := o.config()
	config.OnRequest = func(at time.Time) { _, _ = fmt.Fprintln(out, "sent", at.UnixNano()) }
	client, err := k.Open(ctx, config)
	if err != nil {
		return err
	}
	caller, err := client.Caller(ctx)
	if err != nil {
		return err
	}
	if _, err := caller.Acquire(ctx, o.Name); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, "granted"); err != nil {
		return err
	}
	<-ctx.Done()
	return context.Cause(ctx)
}
