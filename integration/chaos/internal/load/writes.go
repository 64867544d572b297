//go:build unix

package load

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/pglock-dev/pglock/fencedstore"
	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/pglock"
)

// place is where the head of a resource's chain is kept.
type place struct{ resource, table, key, id string }

func cell(resource string) place { return place{resource, "cells", "resource", resource} }

func guardedRow(id string) place {
	return place{"guarded_rows/" + id, "guarded_rows", "id", id}
}

var guardedWhole = place{"guarded_whole", "guarded_whole", "id", "one"}

// write is one fenced write.
type write struct {
	how    string // for the table of operations
	places []place
	hands  []*hand       // one for each place
	before bool          // the heads are read before the fence
	again  bool          // the same token may write again
	key    string        // of Once
	think  time.Duration // spent in the callback, after the work
	inside func()        // called in the callback, after the work
	level  pgx.TxIsoLevel
}

// errChanged is a callback's own refusal, at random.
var errChanged = errors.New("the worker has changed its mind")

type queries interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// heads reads the last writes of the places.
func heads(ctx context.Context, q queries, places []place) ([]int64, error) {
	found := make([]int64, len(places))
	for i, p := range places {
		err := q.QueryRow(ctx, fmt.Sprintf(`SELECT head FROM public.%s WHERE %s = $1`, p.table, p.key),
			p.id).Scan(&found[i])
		if err != nil && !errors.Is(err, pgx.ErrNoRows) {
			return nil, err
		}
	}
	return found, nil
}

// link makes the operation the head of every place. It names what it builds on.
func (x write) link(ctx context.Context, tx pgx.Tx, op int64, prev []int64) error {
	for i, p := range x.places {
		h := x.hands[i]
		if _, err := tx.Exec(ctx, `INSERT INTO public.links VALUES ($1, $2, $3, $4, $5, $6, $7)`,
			op, p.resource, prev[i], h.Name(), h.Slot(), int64(h.Token()), x.again); err != nil {
			return err
		}
		if _, err := tx.Exec(ctx, fmt.Sprintf(`INSERT INTO public.%s AS t (%s, head) VALUES ($1, $2)
			ON CONFLICT (%s) DO UPDATE SET head = EXCLUDED.head`, p.table, p.key, p.key), p.id, op); err != nil {
			return err
		}
	}
	return nil
}

// write makes the write, and says so before and after. It gives the answer.
func (w *worker) write(ctx context.Context, r *rand.Rand, x write) string {
	op := w.id()
	limit := 4*time.Second + x.think
	bounded, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	back := w.dog.watch(x.how, limit+10*time.Second)
	defer back()
	var prev []int64
	if x.before {
		var err error
		if prev, err = heads(bounded, w.pool, x.places); err != nil {
			return history.Refused // nothing was asked for
		}
		if !hold(ctx, x.hands, upTo(r, 30*time.Millisecond)) {
			return history.Refused
		}
	}
	retreat := r.IntN(40) == 0
	run := func(ctx context.Context, tx pgx.Tx) (err error) {
		if !x.before {
			if prev, err = heads(ctx, tx, x.places); err != nil {
				return err
			}
		}
		if err := x.link(ctx, tx, op, prev); err != nil {
			return err
		}
		if x.inside != nil {
			x.inside()
		}
		if x.think > 0 {
			sleep(ctx, x.think)
		}
		if retreat {
			return errChanged
		}
		return nil
	}
	resources := make([]string, len(x.places))
	for i, p := range x.places {
		resources[i] = p.resource
	}
	w.out.say(history.Event{Kind: history.Writes, At: history.Now(), Op: op, How: x.how, Resources: resources,
		Token: int64(x.hands[0].Token()), Sleeps: x.think > 0 || x.inside != nil})
	err := w.send(bounded, x, run)
	back()
	return w.answered(ctx, r, op, x.how, err)
}

func (w *worker) send(ctx context.Context, x write, run func(context.Context, pgx.Tx) error) error {
	store := w.store.With(fencedstore.WithTxOptions(pgx.TxOptions{IsoLevel: x.level}))
	if x.key != "" {
		return store.Once(ctx, x.hands[0].Lease, x.key, run)
	}
	fences := make(fencedstore.Fences, len(x.places))
	for i, p := range x.places {
		fences[i] = fencedstore.Fence{Lease: x.hands[i].Lease, Resource: p.resource, SameToken: x.again}
	}
	if len(fences) == 1 {
		return store.Write(ctx, fences[0], run)
	}
	return store.Write(ctx, fences, run)
}

// answered says what a write was answered, and may ask what became of one whose outcome is unknown.
func (w *worker) answered(ctx context.Context, r *rand.Rand, op int64, how string, err error) string {
	e := history.Event{Kind: history.Wrote, At: history.Now(), Op: op, How: how, Answer: history.Done,
		Class: classify(err)}
	var unknown *fencedstore.OutcomeUnknownError
	switch {
	case errors.Is(err, pglock.ErrOutcomeUnknown):
		e.Answer = history.Unknown
		errors.As(err, &unknown)
	case err != nil:
		e.Answer = history.Refused
	}
	if err != nil {
		e.Error = err.Error()
	}
	w.out.say(e)
	if unknown != nil && r.IntN(2) == 0 {
		sleep(ctx, upTo(r, 2*time.Second))
		asking, cancel := context.WithTimeout(ctx, 3*time.Second)
		defer cancel()
		switch outcome, err := w.store.Outcome(asking, unknown.Receipt); {
		case err != nil:
		case outcome == fencedstore.OutcomeCommitted:
			w.out.say(history.Event{Kind: history.Learns, At: history.Now(), Op: op, Answer: history.Done})
		default:
			w.out.say(history.Event{Kind: history.Learns, At: history.Now(), Op: op, Answer: history.Refused,
				Class: string(outcome)})
		}
	}
	return e.Answer
}

// rogue writes to a guarded table without its fence, which must fail while the guard is as it was made. If it is let
// through it does no harm: the chain goes on.
func (w *worker) rogue(ctx context.Context, r *rand.Rand) {
	table := []string{"guarded_rows", "guarded_whole"}[r.IntN(2)]
	bounded, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	e := history.Event{Kind: history.Wrote, From: history.Now(), Op: w.id(), How: history.Unfenced, Name: table}
	_, err := w.pool.Exec(bounded, fmt.Sprintf(`UPDATE public.%s SET head = head`, table))
	e.At, e.Answer, e.Class = history.Now(), history.Refused, classify(err)
	if err == nil {
		e.Answer = history.Done
	}
	w.out.say(e)
}
