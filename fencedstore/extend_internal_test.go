package fencedstore

import (
	"testing"
	"time"

	"github.com/pglock-dev/pglock/internal/pgtest"
	"github.com/pglock-dev/pglock/pglock"
)

// A write without a time limit extends nothing, also if its lease runs out just before: then the server says so.
func TestWriteWithoutATimeLimitExtendsNoLease(t *testing.T) {
	t.Parallel()
	client, err := pglock.New(t.Context(), pgtest.Database(t).Pool(t))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close(t.Context())
	lease, err := client.TryAcquire(t.Context(), "a", pglock.WithTTL(3*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(lease.Deadline()) + time.Millisecond) // nothing renews it any more
	o := opening{fences: []Fence{{Lease: lease}}}
	if ends, err := o.extend(t.Context()); err != nil || ends != nil {
		t.Errorf("%d extensions, %v", len(ends), err)
	}
}
