//go:build unix

package run

import (
	"testing"
	"testing/synctest"
	"time"
)

// The kernel takes a moment to end what was killed, also after the lease.
func TestRunAwaitsTheEndOfAGroupAlsoAfterTheLease(t *testing.T) {
	t.Parallel()
	const never = time.Hour
	for what, c := range map[string]struct {
		lease, ends time.Duration // from now on
		want        bool
		takes       time.Duration // at most
	}{
		"it has ended":                       {-time.Second, 0, true, 0},
		"it ends after the lease":            {-time.Second, 200 * time.Millisecond, true, time.Second},
		"it ends after a lease that ends":    {100 * time.Millisecond, 200 * time.Millisecond, true, time.Second},
		"it ends before the lease":           {time.Minute, 30 * time.Second, true, 31 * time.Second},
		"it does not end after the lease":    {-time.Second, never, false, 3 * time.Second},
		"it does not end while it is leased": {time.Minute, never, false, 61 * time.Second},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				ended := awaitEnd(func() bool { return time.Since(began) >= c.ends }, began.Add(c.lease))
				if took := time.Since(began); ended != c.want || took > c.takes || !ended && time.Now().Before(
					began.Add(c.lease)) {
					t.Errorf("%v after %v, want %v within %v", ended, took, c.want, c.takes)
				}
			})
		})
	}
}
