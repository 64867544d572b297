package pglock

import (
	"testing"
	"testing/synctest"
	"time"
)

// A prepared statement that was lost is sent again without a name, and others are for a while: for longer each time that names
// are lost again. Names that work are used again.
func TestStatementsGoWithoutNamesForAWhileAfterOneWasLost(t *testing.T) {
	for _, code := range []string{"26000", "42P05"} {
		t.Run(code, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				pool := mutePool(t)
				conn, err := pool.Acquire(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Release()
				var e executor
				// send is one statement; a name is lost where a pooler is between.
				send := func(pooler bool) (attempts int, nameless bool) {
					t.Helper()
					if err := e.named(conn.Conn(), func() error {
						attempts++
						if nameless = e.isNameless(conn.Conn()); pooler && !nameless {
							return refusal(code)
						}
						return nil
					}); err != nil {
						t.Fatal(err)
					}
					return attempts, nameless
				}
				lost := func(want time.Duration) {
					t.Helper()
					if n, nameless := send(true); n != 2 || !nameless {
						t.Fatalf("%d attempts, the last without a name: %v", n, nameless)
					}
					time.Sleep(want - time.Nanosecond)
					if n, nameless := send(true); n != 1 || !nameless {
						t.Fatalf("%d attempts just before %v have passed, without a name: %v", n, want, nameless)
					}
					time.Sleep(time.Nanosecond)
				}
				for range 3 {
					for want := firstNameless; want < lastNameless; want *= 2 {
						lost(want)
					}
					lost(lastNameless)
					lost(lastNameless)
					if n, nameless := send(false); n != 1 || nameless {
						t.Fatalf("%d attempts, without a name: %v; want that names are used again", n, nameless)
					}
				}
			})
		})
	}
}

// Any other refusal is told, and says nothing of names.
func TestOtherRefusalIsNotSentAgainWithoutAName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn, err := mutePool(t).Acquire(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Release()
		var e executor
		for _, failure := range []error{refusal("40001"), refusal("22023"), errReset} {
			n := 0
			if err := e.named(conn.Conn(), func() error { n++; return failure }); err != failure || n != 1 || e.isNameless(conn.Conn()) {
				t.Errorf("%v after %d attempts, then without names: %v", err, n, e.isNameless(conn.Conn()))
			}
		}
	})
}
