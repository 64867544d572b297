package fencedstore

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/pglock-dev/pglock/internal/dev/must"
	"github.com/pglock-dev/pglock/internal/dev/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// A write without a time limit extends nothing, also if its lease runs out just before: then the server says so.
func TestWriteWithoutATimeLimitExtendsNoLease(t *testing.T) {
	t.Parallel()
	client := must.Get(pglock.New(t.Context(), pgtest.Database(t).Pool(t)))(t)
	defer client.Close(t.Context())
	lease := must.Get(client.TryAcquire(t.Context(), "a", pglock.WithTTL(3*time.Second)))(t)
	must.Do(t, lease.Release(t.Context()))
	time.Sleep(time.Until(lease.Deadline()) + time.Millisecond) // nothing renews it any more
	o := opening{fences: []Fence{{Lease: lease}}}
	if ends, err := o.extend(t.Context(), time.Second); err != nil || ends != nil {
		t.Errorf("%d extensions, %v", len(ends), err)
	}
}

// A lease that had less left at the fence than the application gave ends the transaction sooner: that is a time limit
// too, and from then on the session may be spoiled. The error names what the application gave.
func TestATransactionThatGotLessThanItsTimeLimitIsLateAllTheSame(t *testing.T) {
	t.Parallel()
	refused := &pgconn.PgError{Code: "55P03"}
	for took, want := range map[time.Duration]bool{3400 * time.Millisecond: false, 3600 * time.Millisecond: true} {
		p := passage{At: time.Now().Add(-took), Limit: 3700 * time.Millisecond, Given: 4 * time.Second}
		late := p.explain(refused, false)
		if (late != nil) != want {
			t.Errorf("refused after %v: %v", took, late)
		}
		if late != nil && (!errors.Is(late, ErrTimeLimit) || late.Limit != p.Given || !late.Given ||
			!strings.Contains(late.Error(), "4s")) {
			t.Errorf("%+v: %v, want the limit that was given", late, late)
		}
		p.At = p.At.Add(-250 * time.Millisecond) // and what transaction_timeout has more
		if p.overran() != want {
			t.Errorf("a transaction of %v overran: %v", took, !want)
		}
	}
}
