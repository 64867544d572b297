//go:build unix

package load

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/pglock-dev/pglock/integration/chaos/internal/history"
	"github.com/pglock-dev/pglock/pglock"
)

// visit is a client that lives for a moment, and is closed while some of its calls wait and some of its leases are
// held.
func (w *worker) visit(ctx context.Context, r *rand.Rand) {
	as := fmt.Sprintf("%s+visit%d", w.Label, w.storms.Add(1))
	attempt, cancel := context.WithTimeout(ctx, 3*time.Second)
	client, err := pglock.New(attempt, w.pool, pglock.WithDefaultHolder(as), pglock.WithSessionTTL(w.SessionTTL))
	cancel()
	if err != nil {
		return // a fault keeps the server away
	}
	var names []string
	var calls sync.WaitGroup
	closed := make(chan struct{})
	for range 3 {
		q := w.ask(r, fmt.Sprint("x", r.IntN(exclusives)))
		q.how, q.alone, q.patience = "acquire", false, 10*time.Second
		if r.IntN(2) == 0 {
			q.names, q.mode = []string{"rw0"}, pglock.ModeShared
		}
		names = append(names, q.names[0])
		calls.Go(func() {
			w.call(ctx, client, as, q, func(ctx context.Context, hands []*hand) {
				for hold(ctx, hands, time.Second) { // until Close ends the lease
					select {
					case <-closed:
						return
					default:
					}
				}
			})
		})
	}
	sleep(ctx, upTo(r, 300*time.Millisecond))
	w.closeClient(client, as, names)
	close(closed)
	calls.Wait()
}

// closeClient closes a client, and tells of it as of a call for the locks that it uses: until Close has returned they
// may be held, and after it they may not, unless its error says so.
func (w *worker) closeClient(client *pglock.Client, as string, names []string) {
	id := w.id()
	w.out.say(history.Event{Kind: history.Asks, At: history.Now(), Call: id, Names: names, How: history.Close,
		Label: as, TTL: ttls[len(ttls)-1]})
	done := w.dog.watch("Client.Close of "+as, 10*time.Second)
	err := client.Close(context.Background())
	done()
	e := history.Event{Kind: history.Fails, At: history.Now(), Call: id, How: history.Close, Class: classify(err)}
	if err != nil {
		e.Error = err.Error()
	}
	w.out.say(e)
}
