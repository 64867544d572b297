package integration

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"

	"github.com/pglock-dev/pglock/internal/dev/pgtest"
)

// operation is one call on the one lock of a history: what was asked and what was answered.
type operation struct {
	release bool
	token   int64 // of the lease that is released
}

type outcome struct {
	done  bool
	token int64 // of the grant
}

// mutexState is a fenced mutex: who holds it, by token (0: nobody), and the last token granted.
type mutexState struct{ holder, last int64 }

var fencedMutex = porcupine.Model{
	Init: func() any { return mutexState{} },
	Step: func(state, input, output any) (bool, any) {
		s, in, out := state.(mutexState), input.(operation), output.(outcome)
		switch {
		case in.release && out.done:
			return s.holder == in.token, mutexState{0, s.last}
		case in.release:
			return s.holder != in.token, s
		case out.done:
			return s.holder == 0 && out.token > s.last, mutexState{out.token, out.token}
		}
		return s.holder != 0, s
	},
	DescribeOperation: func(input, output any) string { return fmt.Sprintf("%+v -> %+v", input, output) },
}

// The history of tries and releases of 8 clients is that of a mutex whose tokens strictly increase.
func TestI2_HistoryIsLinearizable(t *testing.T) {
	db := pgtest.Database(t)
	patientWaits(t, newPeer(t, db.URL())) // the first use of a name is waited for
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	began := time.Now()
	var mu sync.Mutex
	var history []porcupine.Operation
	var wg sync.WaitGroup
	for i := range 8 {
		p := newPeer(t, db.URL())
		record := func(in operation, call func() (outcome, error)) (outcome, bool) {
			start := time.Since(began)
			out, err := call()
			end := time.Since(began)
			if err != nil {
				t.Error(err)
				return out, false
			}
			mu.Lock()
			if len(history) == 3000 || end > lasting(12*time.Second) && len(history) >= 200 {
				cancel() // enough, and the checker's work grows faster than the history
			}
			history = append(history, porcupine.Operation{ClientId: i, Input: in, Call: int64(start), Output: out,
				Return: int64(end)})
			mu.Unlock()
			return out, true
		}
		wg.Go(func() {
			for ctx.Err() == nil {
				var g grant
				out, ok := record(operation{}, func() (outcome, error) {
					var err error
					g, err = p.acquire(context.Background(), "x", uuid.New(), time.Minute, false)
					return outcome{g.granted, g.token}, err
				})
				if ok && out.done {
					_, ok = record(operation{release: true, token: g.token}, func() (outcome, error) {
						released, err := p.release(context.Background(), g)
						return outcome{done: released}, err
					})
				}
				if !ok {
					return
				}
			}
		})
	}
	wg.Wait()
	if result := porcupine.CheckOperationsTimeout(fencedMutex, history, time.Minute); result != porcupine.Ok {
		t.Fatalf("I2: a history of %d operations is %s", len(history), result)
	}
	if len(history) < 200 {
		t.Errorf("%d operations are too few to show anything", len(history))
	}
}
